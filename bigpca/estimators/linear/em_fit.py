"""Factors of rows with missing values by maximum likelihood: an EM iteration of one read a step.

Noise of one variance makes probabilistic PCA of them, noise of its own variance in each column factor analysis.

Starts from the PCA of rows in which means fill the gaps. Each read yields the expected scores of the rows; loadings,
mean and noise that are likeliest for these follow from its sums, with the covariance of the scores as an expanded
parameter (Liu, Rubin & Wu 1998): without it, the largest variance grows slowly where the noise is low.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Generic, cast

import numpy as np

from bigpca.arrays import Vector
from bigpca.engine.jobs import PassState
from bigpca.engine.planning import SolveCost
from bigpca.engine.run import Run
from bigpca.errors import ApproximationWarning, warn_approximation
from bigpca.estimators.linear.krylov import MAX_PASSES
from bigpca.estimators.linear.spectrum import PCAResult, Settings
from bigpca.estimators.linear.sums import Solved
from bigpca.estimators.shared.fit import Fit
from bigpca.passes.accumulators.base import WeightSums
from bigpca.passes.accumulators.observed_columns import ExpectedScores, LatentModel
from bigpca.passes.fold import Declared, Folded, Read, costs
from bigpca.passes.reading.blocks import PRECISE
from bigpca.passes.reading.readers import ColumnFill
from bigpca.passes.rows import Rows
from bigpca.solvers.eigh import NOISE, fix_signs, rounded_squares

START = "start"
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


def maximised(state: PassState, least: float, pooled: bool, means: Vector) -> Maximised:
    """Return the model that is likeliest for the expected scores of a read; picklable, runs where its state is.

    The noise is at least ``least`` of the variance of its column, or, if it is pooled, of the mean one. Columns that
    are constant to the rounding of their means have none, and are in no further model.
    """
    sums = state.part("state", ExpectedScores)
    k, (p, q), weights = sums.n_scores, np.triu_indices(sums.n_terms), sums.weights
    # 1. Each column by itself: [W_j, mean_j] = T_j^-1 Y_j.
    T = np.empty((sums.n_features, k + 1, k + 1))
    T[:, p, q] = T[:, q, p] = sums.seconds
    T[weights == 0] = np.eye(k + 1)
    found = np.linalg.solve(T, sums.firsts[..., None])[..., 0]
    left, squares = sums.squares - np.einsum("jk,jk->j", sums.firsts, found), sums.squares
    if pooled:
        left, squares, weights = (np.full(len(one), one.sum()) for one in (left, squares, weights))
    else:
        squares = np.where(squares > NOISE * rounded_squares(squares, means, weights), squares, 0.0)
    noise = np.maximum(left, least * squares) * (squares > 0) / np.maximum(weights, TINY)
    # 2. Scores of mean a and covariance S become standard ones: W S^(1/2), mean + W a. The symmetric root, which turns
    # no axis without need, keeps successive steps comparable.
    S = np.empty((k + 1, k + 1))
    S[p, q] = S[q, p] = sums.scores / sums.scores[-1]
    values, vectors = np.linalg.eigh(S[:k, :k] - np.outer(S[:k, k], S[:k, k]))
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    latent = LatentModel(found[:, :k] @ root, found[:, k] + found[:, :k] @ S[:k, k], noise)
    return Maximised(latent, sums.likelihood, sums.count, sums.weight_sums)


def change_of(before: LatentModel, after: LatentModel, unit: Vector, faint: float) -> Vector:
    """Return the sine of the angle between two planes, and the relative changes of variances and noise (k + 1 + d,).

    All are those of columns that are divided by ``unit`` (d,), where changes of noise below ``faint`` are relative to
    that.
    """
    a, b = (np.linalg.qr(one.W / unit[:, None])[0] for one in (before, after))
    # |(I - a a') b|_2 is the sine of the largest angle between the planes; W turned within its plane is no change.
    sine = float(np.linalg.norm(b - a @ (a.T @ b), 2))
    old, new = (one.noise / unit**2 for one in (before, after))
    # Variances along the axes are eigenvalues of W'W, plus the noise.
    values = [np.linalg.eigvalsh((W := one.W / unit[:, None]).T @ W) for one in (before, after)]
    old, new = np.append(values[0] + old.mean(), old), np.append(values[1] + new.mean(), new)
    return np.append(sine, np.abs(new - old) / np.maximum(old, faint))


def extrapolated(trail: Sequence[LatentModel], unit: Vector) -> LatentModel:
    """Return where three successive models lead (SQUAREM: Varadhan & Roland 2008, scheme S3), in those units."""
    d, k = trail[0].W.shape
    units = np.append(np.repeat(unit, k + 1), np.full(d, np.sqrt(d)))  # the noise counts as one number more
    # As vectors: loadings and means in units of the columns, the noise by its logarithm, which keeps it positive.
    v0, v1, v2 = (
        np.concatenate([np.column_stack([one.W, one.mean]).ravel(), np.log(np.maximum(one.noise / unit**2, TINY))])
        / units
        for one in trail
    )
    # One step r, and how it changes, v: with steps that shrink by a factor, the limit is v0 + 2 a r + a^2 v, a = |r| /
    # |v|.
    r, v = v1 - v0, v2 - 2 * v1 + v0
    step = float(np.clip(np.linalg.norm(r) / max(float(np.linalg.norm(v)), TINY), 1.0, LONGEST))
    found = (v0 + 2 * step * r + step**2 * v) * units
    both = found[:-d].reshape(d, k + 1)
    return LatentModel(both[:, :k], both[:, k], np.where(trail[2].noise > 0, np.exp(found[-d:]) * unit**2, 0.0))


@dataclass(frozen=True)
class EMFit(Fit[Solved], Generic[Solved]):
    """Reads for a start from filled rows, and then one for each step, until plane and variances have settled.

    A subclass says what noise the model has, and makes the result.

    Attributes
    ----------
    settings : Settings
    start : Fit
        Of rows in which means fill the gaps.
    """

    depends_on: ClassVar[tuple[str, ...]] = ("start", "settings.n_components")
    solver: ClassVar[str] = "em"
    exact: ClassVar[bool] = False
    least: ClassVar[float]  # noise, of the variance of a column
    faint: ClassVar[float]  # noise whose changes are not relative to itself
    pooled: ClassVar[bool]  # whether all columns have the same noise
    limit: ClassVar[str]  # the parameter that limits the reads
    typical: ClassVar[int]  # reads after those of the start, in plans

    settings: Settings
    start: Fit[PCAResult]

    @abstractmethod
    def _constant(self, begun: PCAResult) -> Solved:
        """Return the result of columns that are all constant, from that of the start."""

    @abstractmethod
    def _result(self, found: Maximised, likelihoods: list[float], settled: bool) -> Solved:
        """Return the result of the last model and its counts, the likelihood of the model of each read, and its end."""

    @property
    def account(self) -> str:
        return f"EM with {self._k} components, one read a step, from the PCA of filled rows ({self.start.solver})"

    @property
    def _k(self) -> int:
        return int(self.settings.n_components)  # type: ignore[arg-type]  # checked by em_settings

    @property
    def _most(self) -> int:
        return MAX_PASSES if self.settings.max_passes is None else self.settings.max_passes

    @cached_property
    def expectation(self) -> Read[Folded[ExpectedScores]]:
        """The read of a step."""
        d, k = self.rows.n_columns, self._k
        template = ExpectedScores(d, k, LatentModel(np.zeros((d, k)), np.zeros(d), np.ones(d)))
        solving = 4 * template.state_bytes  # with whole matrices of all columns
        read = Read.into(self.rows, "expectation", template, dtype=PRECISE, finish_bytes=solving)
        # Three models, their vectors and orthonormal bases.
        return read.costing(driver_bytes=12 * 8 * d * (k + 2)).repeated(min(self.typical, self._most), self._most)

    def passes(self) -> tuple[Declared, ...]:
        begun = costs(self.start.passes())
        return (*(replace(one, name=f"{START} {one.name}") for one in begun), self.expectation)

    def solve_cost(self) -> SolveCost:
        start, (d, k) = self.start.solve_cost(), (self.rows.n_columns, self._k)
        return replace(start, between=start.between + 10.0 * d * k**2)

    def run(self, run: Run) -> Solved:
        with run.within(START), warnings.catch_warnings(action="ignore", category=ApproximationWarning):
            begun = replace(self.start, rows=filled_up(self.rows)).run(run)
        if not begun.explained_variance_[0]:
            return self._constant(begun)
        d, means = self.rows.n_columns, cast("Vector", self.rows.means)  # of the read before
        unit = np.ones(d) if self.pooled or begun.scale_ is None else begun.scale_
        read = self.expectation.to(partial(maximised, least=self.least, pooled=self.pooled, means=means))
        trail, before, likelihoods = [self._first(begun, unit)], None, [-np.inf]
        change, slow, settled = np.zeros(self._k + d + 1), np.zeros(self._k + d + 1), False
        latest = left = np.full_like(change, np.inf)
        for number in range(1, self._most + 1):
            model = ExpectedScores(d, self._k, trail[-1])
            found = read.holding(model)(run, shift=means)  # one pass over X
            # Of as many numbers as rows have: a share of the likelihood itself would depend on the unit of the data.
            rounding = STEADY * d * (found.count if found.weight_sums is None else found.weight_sums[0])
            if before is not None and not found.likelihood >= likelihoods[-1] - rounding:
                # The extrapolated model is less likely than the one it came from, which is taken up again.
                trail, before, change = [before], None, np.zeros_like(change)
                continue
            # With changes h that fall by a factor rho a read, h rho / (1 - rho) is left (Aitken). After an
            # extrapolation, the slowest changes are hidden by others: the factors before it count, too.
            latest = change_of(trail[-1], found.latent, unit, self.faint)
            rho = latest / np.maximum(change, TINY)
            held = np.minimum(np.maximum(rho, slow), 1.0)
            left = np.divide(latest * held, 1 - held, out=np.full_like(held, np.inf), where=held < 1)
            trail, change, before = [*trail[-2:], found.latent], latest, None
            likelihoods.append(found.likelihood)
            if settled := bool(np.where(latest < STEADY, 0.0, left).max() < self.settings.tol):
                break
            if len(trail) == 3 and number >= SETTLING:
                slow, before, change = np.minimum(rho, SLOWEST), trail[-1], np.zeros_like(change)
                trail = [extrapolated(trail, unit)]
        if not settled:
            warn_approximation(
                f"the iteration stopped after {self._most} reads ({self.limit}): the last step turned the plane of the "
                f"components by {latest[0]:.2g} and changed variances by up to {latest[1:].max():.2g} of their size. "
                f"As steps shrink slowly, {left.max():.2g} may be left, where {self.settings.tol:.3g} was asked for "
                f"(by tol). Raise {self.limit}, or request fewer components. Where most values are missing, the "
                "likelihood may have several maxima."
            )
        latent = before or trail[-1]
        latent = replace(latent, mean=latent.mean + means)
        return self._result(replace(found, latent=latent), likelihoods[1:], settled)

    def _first(self, begun: PCAResult, unit: Vector) -> LatentModel:
        """Return the model of filled rows: loadings of their components, and the noise that these leave."""
        d, values, total = self.rows.n_columns, begun.explained_variance_, begun.total_variance_
        # Probabilistic PCA (Tipping & Bishop 1999): noise is the mean of what is left, W = U (L - noise I)^1/2.
        noise = max(total - float(values.sum()), LEAST_NOISE * total) / (d - self._k)
        W = np.zeros((d, self._k))
        W[:, : len(values)] = begun.components_.T * np.sqrt(np.maximum(values - noise, LEAST_LOADING * noise))
        return LatentModel(W * unit[:, None], np.zeros(d), noise * unit**2)


@dataclass(frozen=True)
class ProbabilisticFit(EMFit[PCAResult]):
    """Probabilistic PCA: noise of one variance."""

    least: ClassVar[float] = LEAST_NOISE
    faint: ClassVar[float] = TINY
    pooled: ClassVar[bool] = True
    limit: ClassVar[str] = "max_passes"
    typical: ClassVar[int] = 8

    def _constant(self, begun: PCAResult) -> PCAResult:
        return replace(begun, settled=True)

    def _result(self, found: Maximised, likelihoods: list[float], settled: bool) -> PCAResult:
        """Return the axes of the model; variances have the divisor n - 1, as those of complete rows."""
        latent, weight = found.latent, float(found.count) if found.weight_sums is None else found.weight_sums[0]
        # The model's covariance is W W' + noise I: its axes are W's left singular vectors, with the noise along all of
        # them.
        axes, singular, _ = np.linalg.svd(latent.W, full_matrices=False)
        noise, (d, k) = latent.noise[0] * weight / (weight - 1), latent.W.shape
        values = singular**2 * weight / (weight - 1) + noise
        total = float(values.sum()) + (d - k) * noise
        mean, scale = self.settings.standardization.in_units_of_rows(latent.mean, None)
        made = PCAResult(found.count, 0, mean, scale, values, fix_signs(np.ascontiguousarray(axes.T)), total)
        return replace(made, weight_sums=found.weight_sums, roundings=self.rows.roundings, settled=settled)


def filled_up(rows: Rows) -> Rows:
    """Return the same rows with means in their gaps."""
    steps = (
        replace(one, f=replace(one.f, leaves=False)) if isinstance(one.f, ColumnFill) else one for one in rows.steps
    )
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


def without_moments(what: str) -> str:
    """Return the message that ``what`` needs what no iteration computes."""
    return f'{what} needs the moments of all rows, which nan_policy="em" never computes.'
