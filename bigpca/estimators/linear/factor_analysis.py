"""Factor analysis by maximum likelihood, from the moments of one read; of rows with missing values, by EM."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.linalg import pinvh, solve_triangular
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, cg
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Matrix, Vector, unpack
from bigpca.engine.driver import solving
from bigpca.errors import warn_approximation
from bigpca.estimators.linear.em_fit import EMFit, Maximised, em_settings, filled_up, without_moments
from bigpca.estimators.linear.maps import (
    Projection,
    Reconstruction,
    SecondRead,
    Standardization,
    low_rank_plus_diagonal,
)
from bigpca.estimators.linear.monitoring import Density, check_density
from bigpca.estimators.linear.spectrum import PCAResult, Settings, check_enough_rows
from bigpca.estimators.linear.sums import SumsModel, SumsResult
from bigpca.estimators.shared.exporting import FeatureAxes, LinearExports
from bigpca.estimators.shared.fit import Fit, unfitted
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.results import KeptRows, Traits
from bigpca.estimators.shared.transformer import with_parameters
from bigpca.parameters import Parameter
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.accumulators.observed_columns import LatentModel
from bigpca.passes.rows import Rows, filled
from bigpca.records import stored
from bigpca.settings import setting
from bigpca.solvers.components import check_total
from bigpca.solvers.eigh import EPS, NOISE, fix_signs, rounded_squares, top_eigenpairs
from bigpca.solvers.rotation import simple_structure

EXPECTED = 30  # iterations in plans
FAINT = 1e-2  # noise whose changes are not relative to itself: in a Heywood case it falls slowly, and hardly matters
LEAST = 1e-6  # of the variance of a column: its noise is at least that


@dataclass(frozen=True, kw_only=True)
class FactorResult(SumsResult):
    """The result of :class:`FactorAnalysis`, whose attributes it has."""

    noise_variance_: Vector = stored("d")
    explained_variance_: Vector = stored("k")
    total_variance_: float = stored(of=float, least=0)
    loglike_: Vector = stored("i")
    converged_: bool = stored(of=bool)

    @property
    def explained_variance_ratio_(self) -> Vector:
        """Share of the variance of all columns that each factor explains (k,)."""
        return self.explained_variance_ / self.total_variance_

    @property
    def n_iter_(self) -> int:
        """Iterations of the solve."""
        return len(self.loglike_)


@dataclass(frozen=True)
class FactorFit(EMFit[FactorResult]):
    """Factor analysis of rows with missing values: noise of its own variance in each column.

    Attributes
    ----------
    owner : FactorAnalysis
    """

    least: ClassVar[float] = LEAST
    faint: ClassVar[float] = FAINT
    pooled: ClassVar[bool] = False
    limit: ClassVar[str] = "max_iter"
    typical: ClassVar[int] = 100

    owner: FactorAnalysis

    def _constant(self, begun: PCAResult) -> FactorResult:
        raise ValueError(constant(len(begun.mean_), begun.n_samples_))

    def _result(self, found: Maximised, likelihoods: list[float], settled: bool) -> FactorResult:
        """Return the factors along principal axes in units of the noise, as those of complete rows."""
        latent = found.latent
        # Loadings are known up to a rotation: that with W' Psi^(-1) W diagonal is the one that complete rows give.
        turned = np.linalg.svd(latent.W / latent.roots[:, None], full_matrices=False)[2] @ latent.W.T
        return FactorResult(
            n_samples_=found.count,
            n_omitted_=0,
            weight_sums=found.weight_sums,
            roundings=self.rows.roundings,
            **self.owner._factors(turned, latent.noise),
            mean_=latent.mean,
            loglike_=np.array(likelihoods[1:] or likelihoods),
            converged_=settled,
        )


def constant(d: int, n: int) -> str:
    """Return the message that all columns are constant."""
    return (
        f"all {d} columns are constant in {n} rows, to the rounding of their values: there is no variance to explain. "
        "Check the data."
    )


@with_parameters
class FactorAnalysis(Density[FactorResult], SumsModel[FactorResult], LinearExports, FeatureAxes):
    """Factor analysis by maximum likelihood: ``x = mean + W'z + noise``, with noise of its own variance in each column.

    PCA treats the noise of all columns alike; where it is not, its components follow the noisy columns, and factors do
    not. Solved from the covariance of one read: no iteration reads rows. Columns are divided by their deviations during
    the iteration, so that units do not change the factors. Names and numbers are those of scikit-learn's
    FactorAnalysis, which approaches them slowly: at its default ``tol`` it stops earlier.

    The likelihood may have several maxima, and the one that is found may be lower than another. In simulations with 4
    to 24 columns this was so for 4 % of fits with as many factors as the data have, by at most 1.0 in the
    log-likelihood of all rows, and for about 20 % of fits with too many factors or few rows. Compare ``loglike_[-1]``
    with that of fewer factors: it must not be lower.

    Parameters
    ----------
    n_components : int or None, default None
        Factors; None for d.
    tol : float, default 1e-7
        The iteration stops where the log-likelihood of a row changes by no more than this times the relative change of
        the noise of any column. Newton's steps, which ``n_iter_`` does not count, then end it at rounding. With
        ``nan_policy="em"``: where the plane of the factors and the noise are known to the root of this.
    max_iter : int, default 500
        Iterations after which it stops with a warning. With ``nan_policy="em"`` each of them reads all rows.
    rotation : {"varimax", "quartimax"} or None, default None
        Rotate the factors to simple structure, as scikit-learn does: without Kaiser's normalisation. The likelihood is
        the same.
    preprocess : as in :class:`bigpca.PCA`, default None
    nan_policy : {"raise", "omit", "em"}, default "raise"
        Rows with missing values raise an error, or are left out. "em": the factors are those that are likeliest for the
        values that are there, found by an iteration of one read a step, 10 to 50 or, where a noise is small, hundreds;
        ``n_components`` is a number. ``transform`` gives a row with missing values its expected factors.
    memory_limit : int, str or None, default None
        Per process.

    Attributes
    ----------
    components_ : ndarray of shape (k, d)
        Loadings W; factors are determined up to a rotation: without ``rotation``, the first have the largest variance
        in units of the noise of the columns.
    noise_variance_ : ndarray of shape (d,)
        At least 1e-6 of the variance of a column: less would mean that factors determine it (a Heywood case). 0 for
        constant columns.
    explained_variance_ : ndarray of shape (k,)
        Variance that each factor explains, in all columns.
    explained_variance_ratio_ : ndarray of shape (k,)
        Share of the variance of all columns.
    total_variance_ : float
        Of all columns, with the noise; divisor n.
    mean_ : ndarray of shape (d,)
    loglike_ : ndarray of shape (n_iter_,)
        Log-likelihood of the rows after each iteration, as far as a next one knows it with ``nan_policy="em"``.
    n_iter_ : int
    converged_ : bool
    n_samples_, n_omitted_, sum_weights_, n_effective_
        As of :class:`bigpca.PCA`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((5000, 1)) * [1.0, 1, 1, 0] + rng.standard_normal((5000, 4)) * [0.5, 0.5, 0.5, 9]
    >>> FactorAnalysis(1).fit(X).components_[:, :3].round(1).tolist()
    [[1.0, 1.0, 1.0]]
    """

    _traits = Traits(
        FactorResult,
        "factor",
        frozenset({"em"}),
        ranges={
            "max_iter": Parameter("", "[1, inf)", "a number of iterations such as 500", whole=True),
            "rotation": Parameter(words=("varimax", "quartimax"), none="none"),
        },
    )

    n_components: int | None = None
    _: KW_ONLY
    tol: float = 1e-7
    max_iter: int = 500
    rotation: str | None = None

    def _fit(self, rows: Rows, y: Unchecked, like: KeptRows | None = None) -> Fit[FactorResult]:
        read = filled(self._rows(rows, y)) if self.nan_policy == "em" else rows
        if not read.with_gaps:
            return super()._fit(rows, y, like)
        from bigpca.estimators.linear.choosing import plan_fit  # all solvers of PCA

        found = Settings.of(self, max_passes=self.max_iter)
        begun = em_settings(read, Settings(self.n_components, solve_threads=found.solve_threads), "auto")
        start = plan_fit(filled_up(read), replace(begun, standardization=Standardization(scale=True)), "auto")
        return FactorFit(read, replace(found, tol=np.sqrt(self.tol)), start, unfitted(self))

    def _unsummed(self, what: str) -> str:
        return without_moments(what) if self.nan_policy == "em" else ""

    def _problems(self, state: Moments) -> int:
        return EXPECTED

    def _empty(self, d: int, rows: Rows | None = None, y: Unchecked = None, like: Moments | None = None) -> Moments:
        return Moments(d)

    def _solve(self, kept: KeptRows, again: SecondRead | None = None) -> FactorResult:
        """Return the factors; raises ValueError for fewer than two rows, and for constant ones."""
        state: Moments = kept.state
        check_enough_rows(state.count, kept.n_omitted_, sums=state.weight_sums)
        n, d = state.weight, state.n_features
        squares = state.squares
        check_total(float(squares.sum()), mean=state.mean)
        own = squares > NOISE * rounded_squares(squares, state.mean, n)
        if not own.any():
            raise ValueError(constant(d, state.count))
        deviations = np.sqrt(squares[own] / n)
        # Of correlations: the likelihood's maximum scales with the columns, and a step then has one size for all.
        R = unpack(state.packed, d)[np.ix_(own, own)] / n / np.outer(deviations, deviations)
        k = d if self.n_components is None else self.n_components
        W, noise, likelihoods, slope, least = self._iterate(R, min(k, len(R)))
        converged = slope <= max(self.tol, least)
        components, variances = np.zeros((k, d)), np.zeros(d)
        components[: len(W), own], variances[own] = W * deviations, noise * deviations**2
        if not converged:
            warn_approximation(
                f"the likelihood still has a slope of {slope:.1g} after {len(likelihoods)} iterations; tol = "
                f"{self.tol:g} was expected. Fit fewer factors, or give a larger max_iter or tol."
            )
        return self._result_of(
            kept,
            **self._factors(components, variances),
            mean_=state.mean,
            loglike_=n * (likelihoods - np.log(deviations).sum()),
            converged_=converged,
        )

    def _factors(self, components: Matrix, variances: Vector) -> dict[str, Unchecked]:
        """Return what follows from loadings (k, d), which are rotated if that is asked, and the noise of columns."""
        if self.rotation is not None:
            components = simple_structure(components.T, self.rotation, normalized=False).T @ components
        return {
            "components_": fix_signs(components),
            "explained_variance_": (components**2).sum(axis=1),
            "total_variance_": float((components**2).sum() + variances.sum()),
            "noise_variance_": variances,
        }

    def _iterate(self, R: Matrix, k: int) -> tuple[Matrix, Vector, Vector, float, float]:
        """Return loadings (k, d), noise (d,), log-likelihoods of a row, their largest slope, and that of rounding.

        R (d, d) are correlations. Given the noise, the loadings that maximise the likelihood are principal axes of the
        columns divided by its deviations, so that the likelihood is a function of the noise alone (Jöreskog 1967,
        equations 10 and 20).
        """
        d, likelihoods, latest = len(R), list[float](), [0.0]

        def loadings(noise: Vector) -> tuple[Vector, Matrix, float]:
            roots = np.sqrt(noise)
            scaled = R / np.outer(roots, roots)
            total = float(np.trace(scaled))
            values, vectors = top_eigenpairs(scaled, k, threads=setting(self, "solve_threads"))
            values = np.maximum(values, 1.0)
            return values, np.sqrt(values - 1)[:, None] * vectors * roots, total

        def negative(logs: Vector) -> tuple[float, Vector]:
            noise = np.exp(logs)
            values, W, total = loadings(noise)
            latest[0] = float(logs.sum() + np.log(values).sum() + total - (values - 1).sum()) / 2
            slopes = ((W**2).sum(axis=0) + noise - 1) / noise
            return latest[0], slopes / 2

        bounds = [(np.log(LEAST), 0.0)] * d
        options = {"maxiter": self.max_iter, "maxfun": 20 * self.max_iter, "ftol": 0.0, "gtol": self.tol, "maxcor": 20}
        # What the other columns do not explain of each, 1 less the squared multiple correlation (Jöreskog 1967).
        start = -np.log(np.clip(np.diagonal(pinvh(R)), 1.05, 200.0))
        found = minimize(
            negative,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options=options,
            callback=lambda logs: likelihoods.append(-latest[0]),
        )

        def inside(logs: Vector) -> tuple[float, Vector]:
            value, slopes = negative(logs)
            return value, logs - np.clip(logs - slopes, *bounds[0])  # 0 at a bound, but for rounding

        x, (last, slopes), better = found.x, inside(found.x), found.nit < self.max_iter
        # The search ends where the likelihood is known no better. Its slopes are: Newton's steps end at their rounding.
        while better:
            trial = np.clip(x - self._step(R, k, x, slopes), *bounds[0])
            of_trial = inside(trial)[1]
            better = bool(np.abs(of_trial).max() < np.abs(slopes).max() / 2)
            x, slopes = (trial, of_trial) if better else (x, slopes)
        noise = np.exp(x)
        _, W, total = loadings(noise)
        logs = np.array(likelihoods or [-last]) - d * np.log(2 * np.pi) / 2
        # The likelihood is known to eps of its terms, and where it is largest to the root of that.
        return W, noise, logs, float(np.abs(slopes).max()), float(np.sqrt(EPS * total))

    def _step(self, R: Matrix, k: int, logs: Vector, slopes: Vector) -> Vector:
        """Return Newton's step for the logarithms of the noise whose slope is not 0 (Clarke 1970, equation 8).

        The likelihood is ``sum (t - log t) / 2`` over the eigenvalues t of no factor, of the columns divided by the
        deviations of their noise.
        """
        roots, free = np.exp(logs / 2), slopes != 0
        values, vectors = top_eigenpairs(R / np.outer(roots, roots), threads=setting(self, "solve_threads"))
        k = int(np.count_nonzero(values[:k] > 1))
        top, rest, A, B = values[:k, None], values[k:], vectors[:k], vectors[k:]
        own, mixed = (B.T @ B) * ((B.T * rest) @ B), (1 - rest) * (top + rest) / (top - rest)

        def curvature(v: Vector) -> Vector:
            v = np.where(free, v, 0.0)
            product: Vector = (own @ v + (A * ((mixed * ((A * v) @ B.T)) @ B)).sum(axis=0)) / 2
            return np.where(free, product, 0.0)

        with np.errstate(all="ignore"):  # of directions without curvature: the step is not taken
            step, _ = cg(LinearOperator(R.shape, curvature, dtype=np.float64), slopes, rtol=1e-6, maxiter=len(R))
        return np.asarray(np.nan_to_num(step), np.float64)

    def _row_map(self) -> Projection:
        """Return the map to the expected factors: ``(I + W N^-1 W')^-1 W N^-1 (x - mean)`` with the noise N."""
        W, noise = self.components_, self.noise_variance_
        weighted = np.divide(W, noise, out=np.zeros_like(W), where=noise > 0)
        axes = np.linalg.solve(np.eye(len(W)) + weighted @ W.T, weighted)
        gaps = LatentModel(W.T, self.mean_, noise) if self.nan_policy == "em" else None
        return Projection(self.mean_, None, axes, None, self.nan_policy, latent=gaps)

    def _reconstruction(self) -> Reconstruction:
        return Reconstruction(self.mean_, None, self.components_, None)

    @property
    def loadings_(self) -> Matrix:
        """Loadings (d, k): ``components_'``, the covariance of features and factors."""
        return np.ascontiguousarray(self.components_.T)

    @solving
    def get_covariance(self) -> Matrix:
        """Return the covariance of the model (d, d): ``components' components + diag(noise)``.

        Returns
        -------
        ndarray of shape (d, d), float64
        """
        check_is_fitted(self)
        return low_rank_plus_diagonal(self.components_, np.ones(len(self.components_)), self.noise_variance_)

    @solving
    def get_precision(self) -> Matrix:
        """Return the inverse of :meth:`get_covariance` (d, d), by the matrix inversion lemma.

        Returns
        -------
        ndarray of shape (d, d), float64

        Raises
        ------
        ValueError
            If a column has no noise: the covariance is singular.
        """
        check_is_fitted(self)
        check_density(self)
        noise, W = self.noise_variance_, self.components_
        weighted = W / np.sqrt(noise)
        L = np.linalg.cholesky(np.eye(len(W)) + weighted @ weighted.T)
        reduced = solve_triangular(L, W / noise, lower=True)
        return low_rank_plus_diagonal(reduced, np.full(len(W), -1.0), 1 / noise)
