"""Probabilistic PCA of rows with missing values by maximum likelihood: an EM iteration of one read a step.

Starts from the PCA of rows in which means fill the gaps. Each read yields the expected scores of the rows; loadings,
mean and noise that are likeliest for these follow from its sums, with the covariance of the scores as an expanded
parameter (Liu, Rubin & Wu 1998): without it, the largest variance grows slowly where the noise is low.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from bigpca.arrays import Vector
from bigpca.engine.jobs import PassState
from bigpca.engine.planning import SolveCost
from bigpca.engine.run import Run
from bigpca.errors import ApproximationWarning, warn_approximation
from bigpca.estimators.linear.krylov import MAX_PASSES
from bigpca.estimators.linear.spectrum import PCAFit, PCAResult, Settings, linear_bytes
from bigpca.estimators.shared.fit import Fit
from bigpca.passes.accumulators.base import WeightSums
from bigpca.passes.accumulators.expected_scores import ExpectedScores, LatentModel
from bigpca.passes.fold import Declared, Folded, Read, costs
from bigpca.passes.reading.blocks import PRECISE
from bigpca.passes.rows import Rows
from bigpca.solvers.eigh import fix_signs

START = "start"
TYPICAL_READS = 8  # after those of the start
LEAST_NOISE = 1e-12  # of the mean variance of a column: with less, scores of rows with few values are rounding
LEAST_LOADING = 1e-2  # of the noise: an axis with none at the start would never get any
TINY = 1e-200  # instead of 0, to divide by
STEADY = 1e-8  # change of plane and variances that is rounding
SETTLING = 4  # reads of the iteration itself before steps are extrapolated
LONGEST = 50.0  # steps that one extrapolation may take
SLOWEST = 0.98  # ratio of successive changes that later reads are held to


@dataclass(frozen=True)
class Maximised:
    """What comes of one read.

    Attributes
    ----------
    latent : LatentModel
        The next model.
    likelihood : float
        Logarithm of that of the model of the read.
    count : int
    weight_sums : (float, float) or None
    """

    latent: LatentModel
    likelihood: float
    count: int
    weight_sums: WeightSums


def maximised(state: PassState) -> Maximised:
    """Return the model that is likeliest for the expected scores of a read; picklable, runs where its state is."""
    sums = state.part("state", ExpectedScores)
    k, (p, q) = sums.n_scores, np.triu_indices(sums.n_terms)
    # 1. Each column by itself: [W_j, mean_j] = T_j^-1 Y_j.
    T = np.empty((sums.n_features, k + 1, k + 1))
    T[:, p, q] = T[:, q, p] = sums.seconds
    found = np.linalg.solve(T, sums.firsts[..., None])[..., 0]
    weight = float(sums.weights.sum())
    noise = float((sums.squares - np.einsum("jk,jk->j", sums.firsts, found)).sum()) / weight
    # 2. Scores of mean a and covariance S become standard ones: W S^(1/2), mean + W a. The symmetric root, which turns
    # no axis without need, keeps successive steps comparable.
    S = np.empty((k + 1, k + 1))
    S[p, q] = S[q, p] = sums.scores / sums.scores[-1]
    values, vectors = np.linalg.eigh(S[:k, :k] - np.outer(S[:k, k], S[:k, k]))
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    noise = max(noise, LEAST_NOISE * float(sums.squares.sum()) / weight)
    latent = LatentModel(found[:, :k] @ root, found[:, k] + found[:, :k] @ S[:k, k], noise)
    return Maximised(latent, sums.likelihood, sums.count, sums.weight_sums)


def change_of(before: LatentModel, after: LatentModel) -> Vector:
    """Return the sine of the angle between two planes, and the relative changes of variances and noise (k + 2,)."""
    a, b = np.linalg.qr(before.W)[0], np.linalg.qr(after.W)[0]
    sine = float(np.linalg.norm(b - a @ (a.T @ b), 2))
    return np.append(sine, np.abs(after.variances / before.variances - 1))


def extrapolated(trail: Sequence[LatentModel]) -> LatentModel:
    """Return where three successive models lead (SQUAREM: Varadhan & Roland 2008, scheme S3)."""
    v0, v1, v2 = (np.concatenate([one.W.ravel(), one.mean, [np.log(one.noise)]]) for one in trail)
    r, v, (d, k) = v1 - v0, v2 - 2 * v1 + v0, trail[0].W.shape
    step = float(np.clip(np.linalg.norm(r) / max(float(np.linalg.norm(v)), TINY), 1.0, LONGEST))
    found = v0 + 2 * step * r + step**2 * v
    return LatentModel(found[: d * k].reshape(d, k), found[d * k : -1], float(np.exp(found[-1])))


@dataclass(frozen=True)
class EMFit(PCAFit):
    """Reads for a start from filled rows, and then one for each step, until plane and variances have settled.

    Attributes
    ----------
    start : Fit
        Of rows in which means fill the gaps.
    """

    depends_on: ClassVar[tuple[str, ...]] = ("start", "settings.n_components")
    solver: ClassVar[str] = "em"
    exact: ClassVar[bool] = False

    start: Fit[PCAResult]

    @property
    def account(self) -> str:
        return f"EM with {self._k} components, one read a step, from the PCA of filled rows ({self.start.solver})"

    @property
    def _k(self) -> int:
        return int(self.settings.n_components)  # type: ignore[arg-type]  # checked by em_fit

    @property
    def _most(self) -> int:
        return MAX_PASSES if self.settings.max_passes is None else self.settings.max_passes

    @cached_property
    def expectation(self) -> Read[Folded[ExpectedScores]]:
        """The read of a step."""
        d, k = self.rows.n_columns, self._k
        template = ExpectedScores(d, k, LatentModel(np.zeros((d, k)), np.zeros(d), 1.0))
        solving = 4 * template.state_bytes  # with whole matrices of all columns
        read = Read.into(self.rows, "expectation", template, dtype=PRECISE, finish_bytes=solving)
        # Three models, their vectors and orthonormal bases.
        return read.costing(driver_bytes=12 * 8 * d * (k + 1)).repeated(min(TYPICAL_READS, self._most), self._most)

    def passes(self) -> tuple[Declared, ...]:
        begun = costs(self.start.passes())
        return (*(replace(one, name=f"{START} {one.name}") for one in begun), self.expectation)

    def solve_cost(self) -> SolveCost:
        start, (d, k) = self.start.solve_cost(), (self.rows.n_columns, self._k)
        return replace(start, output_bytes=linear_bytes(k, d), between=start.between + 10.0 * d * k**2)

    def run(self, run: Run) -> PCAResult:
        with run.within(START), warnings.catch_warnings(action="ignore", category=ApproximationWarning):
            begun = replace(self.start, rows=filled_up(self.rows)).run(run)
        if not begun.explained_variance_[0]:
            return replace(begun, settled=True)  # constant columns
        means, read, trail, before, likelihood = self.rows.means, self.expectation, [self._first(begun)], None, -np.inf
        change, slow, settled = np.zeros(self._k + 2), np.zeros(self._k + 2), False
        for number in range(1, self._most + 1):
            model = ExpectedScores(self.rows.n_columns, self._k, trail[-1])
            found = read.holding(model).to(maximised)(run, shift=means)  # one pass over X
            if before is not None and found.likelihood < likelihood - STEADY * abs(likelihood):
                # The extrapolated model is less likely than the one it came from, which is taken up again.
                trail, before, change = [before], None, np.zeros_like(change)
                continue
            # With changes h that fall by a factor rho a read, h rho / (1 - rho) is left (Aitken). After an
            # extrapolation, the slowest changes are hidden by others: the factors before it count, too.
            latest = change_of(trail[-1], found.latent)
            rho = latest / np.maximum(change, TINY)
            held = np.minimum(np.maximum(rho, slow), 1.0)
            left = np.divide(latest * held, 1 - held, out=np.full_like(held, np.inf), where=held < 1)
            trail, change, before, likelihood = [*trail[-2:], found.latent], latest, None, found.likelihood
            if settled := bool(np.where(latest < STEADY, 0.0, left).max() < self.settings.tol):
                break
            if len(trail) == 3 and number >= SETTLING:
                slow, before, change = np.minimum(rho, SLOWEST), trail[-1], np.zeros_like(change)
                trail = [extrapolated(trail)]
        if not settled:
            warn_approximation(
                f"the iteration stopped after {self._most} reads (max_passes): the last step turned the plane of the "
                f"components by {latest[0]:.2g} and changed variances by up to {latest[1:].max():.2g} of their size; "
                f"tol = {self.settings.tol:g} was asked for. Raise max_passes, or request fewer components. Where most "
                "values are missing, the likelihood may have several maxima."
            )
        return self._result(before or trail[-1], found, settled)

    def _first(self, begun: PCAResult) -> LatentModel:
        """Return the model of filled rows: loadings of their components, and the noise that these leave."""
        d, values, total = self.rows.n_columns, begun.explained_variance_, begun.total_variance_
        noise = max(total - float(values.sum()), LEAST_NOISE * total) / (d - self._k)
        W = np.zeros((d, self._k))
        W[:, : len(values)] = begun.components_.T * np.sqrt(np.maximum(values - noise, LEAST_LOADING * noise))
        return LatentModel(W, np.zeros(d), noise)

    def _result(self, latent: LatentModel, found: Maximised, settled: bool) -> PCAResult:
        """Return the axes of the model; variances have the divisor n - 1, as those of complete rows."""
        weight = float(found.count) if found.weight_sums is None else found.weight_sums[0]
        axes, singular, _ = np.linalg.svd(latent.W, full_matrices=False)
        values, (d, k) = (singular**2 + latent.noise) * (weight / (weight - 1)), latent.W.shape
        total = float(values.sum()) + (d - k) * latent.noise * (weight / (weight - 1))
        mean = latent.mean + (0.0 if self.rows.means is None else self.rows.means)
        mean, scale = self.settings.standardization.in_units_of_rows(mean, None)
        made = PCAResult(found.count, 0, mean, scale, values, fix_signs(np.ascontiguousarray(axes.T)), total)
        return replace(made, weight_sums=found.weight_sums, roundings=self.rows.roundings, settled=settled)


def filled_up(rows: Rows) -> Rows:
    """Return the same rows with means in their gaps."""
    steps = (replace(one, f=replace(one.f, leaves=False)) if one.f is rows.fill else one for one in rows.steps)
    return replace(rows, steps=tuple(steps))


def em_settings(rows: Rows, settings: Settings, solver: str) -> Settings:
    """Return the settings of the start of an EM iteration.

    Raises
    ------
    ValueError
        For parameters that the iteration has no use for.
    """
    d, k, plain = rows.n_columns, settings.n_components, settings.standardization
    for name, value, wanted, fine in (
        ("solver", solver, '"auto"', solver == "auto"),
        ("center", "False, or a vector", "True: the mean is estimated", plain.center),
        ("scale", f"{plain.scale!r}", "False, or a vector of deviations", not plain.scale),
        ("n_components", f"{k!r}", f"an integer below {d}", isinstance(k, int | np.integer) and k < d),
    ):
        if not fine:
            raise ValueError(f'{name} = {value} cannot be used with nan_policy="em", which needs {wanted}.')
    return replace(settings, keep_state_bytes=0)
