"""From the merged state of a pass to eigenvalues and components: the small solve at the end of a fit, and its result.

What a fit computes; the eigenproblem of moments, and the errors of left-out folds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Self, cast

import numpy as np

from bigpca.arrays import Array, Matrix, Vector, mirror_upper, unpack
from bigpca.devices import device_of_solve, diagonal_of, divided_by, host_array, plus_outer, square_on
from bigpca.engine.local import threads_here
from bigpca.estimators.linear.maps import Standardization
from bigpca.estimators.shared.certificates import Certificate, Certified
from bigpca.estimators.shared.files import OF_VALUES
from bigpca.estimators.shared.fit import Fit
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.results import SummedRows
from bigpca.passes.accumulators.base import Accumulator, WeightSums, column_scale
from bigpca.passes.accumulators.folds import FoldStates, left_out, whole_moments
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.accumulators.observed_columns import ObservedPairs
from bigpca.passes.residuals import Adjustment, Regression, Remainder, taken_out
from bigpca.passes.rows import Rows
from bigpca.records import of_part, stored
from bigpca.settings import setting
from bigpca.solvers.components import (
    MULTIPLIED,
    CrossValidated,
    NComponents,
    by_name,
    check_n_components,
    check_total,
    counted,
    degrees_of_freedom,
    resolve_components,
    resolve_partial,
    rounding_level,
)
from bigpca.solvers.eigh import (
    EPS,
    NOISE,
    ROUNDED,
    all_eigenvalues,
    fix_signs,
    noise_edge,
    numerical_rank,
    rounded_squares,
    stored_squares,
    top_eigenpairs,
)
from bigpca.solvers.nystrom import negative_eigenvalue
from bigpca.solvers.scaling import Blocks
from bigpca.solvers.shrinkage import shrinkage_factors

WHOLE = 1024  # rows or columns of a matrix whose other eigenvalues cost little beside its leading pairs


@dataclass(frozen=True)
class IterationSettings:
    """What every fit of components computes, and what an iteration depends on.

    Attributes
    ----------
    n_components : int, float, "mle", RelativeThreshold or None
    tol : float
        Relative error of the eigenvalues at which an iteration stops.
    max_passes : int or None
        Maximum number of reads of all rows, or sweeps over a kernel matrix; None for as many as it takes.
    seed : int
        Seed of the sample, random columns and probes.
    solve_threads : int or None
        BLAS threads of solves; None for all cores of the machine that solves.
    """

    n_components: NComponents
    _: KW_ONLY
    tol: float = 1e-3
    max_passes: int | None = 10
    seed: int = 0
    solve_threads: int | None = None

    @classmethod
    def of(cls, model: Unchecked, **own: Unchecked) -> Self:
        """Return what the parameters of a model say, and what else its class has."""
        named = {name: getattr(model, name) for name in ("n_components", "tol", "max_passes") if hasattr(model, name)}
        return cls(**named, solve_threads=setting(model, "solve_threads"), **own)

    @property
    def threads(self) -> int:
        """BLAS threads for a solve in this process."""
        return threads_here(self.solve_threads)


@dataclass(frozen=True)
class Settings(IterationSettings):
    """What a fit computes, independent of how it is executed.

    Attributes
    ----------
    standardization : Standardization
    keep_state_bytes : int
        Maximum size of a state that the model keeps.
    covariates : int
        Number of the last columns, whose linear effect is taken out of the others.
    roundings : tuple of float
        Relative rounding of the stored values, of rows and of covariates.
    """

    standardization: Standardization = field(default_factory=Standardization)
    keep_state_bytes: int = 256 << 20
    covariates: int = 0
    roundings: tuple[float, ...] = (EPS,)

    center = of_part("standardization", "center")
    scale = of_part("standardization", "scale")  # by what is learned of the columns they are divided
    of_columns = of_part("standardization", "of_columns")  # or by what is learned of single columns, before blocks
    scales = of_part("standardization", "scales")  # whether by anything, learned or given

    @property
    def adjustment(self) -> Adjustment:
        """How the effect of covariates is taken out."""
        return Adjustment(self.covariates, self.roundings, self.scales)

    def wanted(self, n: int, d: int) -> int:
        """Number of eigenpairs to compute."""
        k = counted(self.n_components)
        return min(n, d) if k is None else min(k, n, d)


def shown_components(
    settings: IterationSettings,
    values: Vector,
    total: float,
    shape: tuple[int, int],
    shown: str,
    remedy: str,
    *,
    weight: float | None = None,
    most: int | None = None,
) -> int:
    """Return the number of components where only some eigenvalues are known, as ``shown`` says; all of them for None.

    Raises
    ------
    ValueError
        If a share or a rule requires more of the spectrum.
    """
    given, number, most = settings.n_components, counted(settings.n_components), len(values) if most is None else most
    if given is None:
        return most
    check_n_components(given, *shape)
    if number is not None:
        return min(number, len(values))
    k = resolve_partial(given, values, total, *shape, weight)
    if k is None:
        share = float(values.sum()) / total if total > 0 else 1.0
        raise ValueError(
            f"n_components = {given!r} needs more of the spectrum than {shown}: {share:.3f} of the variance. {remedy}"
        )
    return min(k, most)


@dataclass(frozen=True)
class PCAResult(SummedRows, Certified):
    """A solved principal component problem: the fitted attributes of a linear model, and what it keeps beside them.

    Attributes
    ----------
    mean_, scale_ : ndarray of shape (d,); the scale is None if columns were not scaled
    explained_variance_ : ndarray of shape (k,)
        Eigenvalues of the (scaled) covariance, divided by n - 1, descending.
    components_ : ndarray of shape (k, d), orthonormal rows, signs fixed
    total_variance_ : float
        The trace of that covariance.
    groups_ : ndarray or None
        Labels of the groups.
    cv_errors_ : ndarray of shape (f, m), or None
        As of :class:`bigpca.PCA`.
    certificate : Certificate or None
        None for exact solvers, whose only error is rounding.
    centring_error_ : float or None
        Bound of the relative error of any column's variance by the centring of sparse rows; None for dense rows.
    regression : Regression or None
        Of the columns on covariates, whose effect was taken out.
    left : Moments or None
        Of what covariates left of the columns, from a second read.
    negative_eigenvalue_ : float or None
        Of the covariance from pairs that are there; None of all others.
    shrinkage : tuple of k floats, or None
        Of the components, from all eigenvalues; None where a fit finds only some.
    settled : bool or None
        Whether an iteration without a certificate met its tolerance.
    column_variances : ndarray of shape (d,), or None
        Of the columns as they were read, where the fit knows them but keeps no moments.
    """

    none_is_known: ClassVar[frozenset[str]] = frozenset({"scale_"})

    mean_: Vector = stored("d")
    scale_: Vector | None = stored("d", optional=True)
    explained_variance_: Vector = stored("k")
    components_: Matrix = stored("k", "d")
    total_variance_: float = stored(of=float, least=0)
    groups_: Array | None = stored(coding=OF_VALUES, default=None)
    cv_errors_: Matrix | None = stored("f", "m", default=None)
    certificate: Certificate | None = stored(of=Certificate, default=None)
    centring_error_: float | None = stored(of=float, least=0, default=None)
    regression: Regression | None = stored(of=Regression, default=None)
    left: Moments | None = stored(of=lambda held, name: Moments(held.size("d")), default=None)
    negative_eigenvalue_: float | None = stored(of=float, most=0, default=None)
    shrinkage: tuple[float, ...] | None = stored(of=tuple, least=0, most=1, default=None)
    settled: bool | None = stored(of=bool, default=None)
    column_variances: Vector | None = stored("d", default=None)

    solve_error_ = of_part("regression", "error")
    covariate_coef_ = of_part("regression", "coef")
    covariate_mean_ = of_part("regression", "mean")

    @property
    def converged_(self) -> bool | None:
        """Whether an iteration met its tolerance; None if there was none."""
        return self.settled if self.certificate is None else self.certificate.converged

    @property
    def explained_variance_ratio_(self) -> Vector:
        """Shares (k,) of the total variance."""
        total = self.total_variance_
        return self.explained_variance_ / total if total > 0 else np.zeros(self.n_components_)

    @property
    def singular_values_(self) -> Vector:
        """``sqrt((n - 1) eigenvalue)`` (k,)."""
        return np.sqrt(self.explained_variance_ * (self.sum_weights_ - 1))

    @property
    def noise_variance_(self) -> float:
        """Probabilistic PCA: the mean variance along the axes that were not kept; 0 where it is rounding."""
        n, d, total = self.n_samples_, len(self.mean_), self.total_variance_
        counted = max(n, self.sum_weights_) - (0 if self.regression is None else self.regression.rank)
        # The model of an iteration, by its likelihood, has noise along all axes, also where rows are fewer.
        left = (min(counted, d) if self.settled is None else d) - self.n_components_
        rest, noise = total - float(self.explained_variance_.sum()), self.stored_noise
        beside = float(noise.sum() - (self.components_**2 @ noise).sum())  # along the axes that were not kept
        rounding = max(min(n, d) * EPS * total, NOISE * beside)
        return rest / left if left > 0 and rest > rounding else 0.0

    @property
    def stored_noise(self) -> Vector:
        """The variance of each (scaled) column (d,) by the rounding of the stored values."""
        unit = np.ones(len(self.mean_)) if self.scale_ is None else self.scale_**2
        # diag(V L V'): the variance of each column along the axes, in the units of the rows.
        variances = unit * (self.explained_variance_ @ self.components_**2)
        return stored_squares(variances, self.mean_, 1.0, self.roundings[0]) / unit

    @property
    def known_variances(self) -> Vector:
        """The variances (k,) that may be divided by: 0 for axes that are rounding, of the fit or of stored values."""
        n, d = self.n_samples_, len(self.mean_)
        # A rounding with variances s_j adds v'diag(s) v along the axis v, and up to noise_edge times it by chance.
        least = noise_edge(n, d) * (self.components_**2 @ self.stored_noise)
        least = np.maximum(least, rounding_level(self.explained_variance_, min(n, d)))
        return np.where(self.explained_variance_ > least, self.explained_variance_, 0.0)


def result_of(
    found: Unchecked, settings: Settings, values: Vector, components: Matrix, certificate: Certificate
) -> PCAResult:
    """Return the result of an operator, or of a sketch, that knows the statistics of the rows it was made from."""
    # A given centre and given divisors are applied to the rows before these are summed: undo them.
    mean, scale = settings.standardization.in_units_of_rows(found.mean, found.scale)
    return PCAResult(
        found.count,
        found.omitted,
        mean,
        scale,
        values,
        components,
        found.trace,
        certificate=certificate,
        weight_sums=found.weight_sums,
        centring_error_=found.centring_error,
    )


@dataclass(frozen=True)
class PCAFit(Fit[PCAResult]):
    """One way to compute principal components.

    Attributes
    ----------
    settings : Settings
    """

    settings: Settings

    @classmethod
    def choices(cls, rows: Rows, settings: Settings) -> Sequence[PCAFit]:
        """Return the fit in each size that it may have, the best first; the first that fits in memory is taken."""
        return [cls(rows, settings)]

    @classmethod
    def offered(cls, rows: Rows, settings: Settings) -> bool:
        """Whether ``solver="auto"`` may choose it."""
        return True

    @classmethod
    def prefers_exact(cls, rows: Rows, settings: Settings) -> bool:
        """Whether an exact fit replaces this one even if it was requested by name."""
        return False


def solve_moments(
    sums: Accumulator, settings: Settings, *, omitted: int = 0, again: Remainder | None = None
) -> PCAResult:
    """Eigen-decompose the covariance of a :class:`Moments` state, or of one for each group (tutorial, algorithm 1).

    ``center=False`` uses moments about zero, ``scatter + n mean mean'``, without cancellation; ``scale`` divides by the
    standard deviations (correlation matrix). With covariates, the moments of the residuals are solved: see
    :class:`Adjustment`. Memory beside the packed state: the d x d matrix and LAPACK's work space.

    Raises
    ------
    ValueError
        With fewer than two rows left.
    """
    # Without covariates and groups, sums, summed, joint and moments are one state.
    summed = whole_moments(sums)
    joint = summed.here()
    check_enough_rows(joint.count, omitted, sums=joint.weight_sums)
    moments, regression = settings.adjustment.of(joint, again)
    n, d, weight = moments.count, moments.n_features, moments.weight
    before, effects = joint.squares[:d], 0 if regression is None else regression.rank
    centred = moments.centring_error if settings.center or settings.scale else None
    keep = sums.state_bytes <= settings.keep_state_bytes
    S = square_on(device_of_solve(d), moments, summed if regression is None else moments)
    scale, spread = None, diagonal_of(S)
    if settings.of_columns:
        scale = column_scale(spread, moments.mean, n, settings.of_columns, weight)
    if not settings.center:  # sum x x' = S + w m m'
        S = plus_outer(S, weight, moments.mean)
    if scale is not None:
        S = divided_by(S, scale)
    if isinstance(settings.scale, Blocks):
        noise = rounded_squares(spread, moments.mean, weight) / (1.0 if scale is None else scale**2)
        roots = block_roots(S, settings.scale, weight, noise)
        S, scale = divided_by(S, roots), roots if scale is None else scale * roots
    # From here on, S is the covariance, in units of the scale; its trace is the total variance.
    S /= weight - 1
    columns = diagonal_of(S)
    total = float(columns.sum())
    check_total(total, mean=moments.mean)
    # Entries from different rows make no Gram matrix: negative eigenvalues say how far it is from one.
    lowest = None
    if isinstance(sums, ObservedPairs):
        whole = mirror_upper(S) if isinstance(S, np.ndarray) else host_array(S)
        lowest = negative_eigenvalue(whole, 0.0, threads=settings.threads) or 0.0
        del whole
    # All eigenvalues only where rows are fewer than columns: shrinkage of new rows needs what is left beyond k.
    spectrum = all_eigenvalues(S, settings.threads) if n <= d <= WHOLE and isinstance(S, np.ndarray) else None
    values, vectors = top_eigenpairs(S, settings.wanted(n, d), threads=settings.threads)
    rule, errors = by_name(settings.n_components), None
    if isinstance(rule, CrossValidated) and isinstance(sums, FoldStates):
        errors, weights = held_out_errors(sums, settings, rule, again)
        rule = rule.at(errors, weights)
    k = resolve_components(rule, values, total, n - effects, d, weight - effects, columns, moments.precision)
    rank = numerical_rank(values, d)  # the others are rounding of the solver
    noise = rounded_squares(before, moments.mean, weight)
    if moments.precision > np.finfo(np.float64).eps:
        # Or of the products: an entry is known to eps of its two columns, so u'S u to sqrt(d) eps of their part in u.
        # What was taken out was rounded as large as it was.
        spread = before / ((weight - 1) * (1.0 if scale is None else scale**2))
        known = values > ROUNDED * np.sqrt(d) * moments.precision * (vectors**2 @ spread)
        rank = min(rank, int(np.flatnonzero(known)[-1]) + 1 if known.any() else 0)
    # Or of rows that were centred in float64, as the last bits of a constant column: each axis by itself.
    noise /= (weight - 1) * (1.0 if scale is None else scale**2)
    sound = (np.arange(len(values)) < rank) & (values > noise_edge(n, d) * (vectors**2 @ noise))
    last = np.argsort(~sound, kind="stable")  # those that are rounding
    values, components = np.where(sound, values, 0.0)[last], fix_signs(np.ascontiguousarray(vectors[last[:k]]))
    if not lowest and total - float(values.sum()) <= MULTIPLIED * moments.precision * total:
        total = float(values.sum())  # the same, to the rounding of the products
    mean, scale = settings.standardization.in_units_of_rows(moments.mean if settings.center else np.zeros(d), scale)
    state = (sums.present if isinstance(sums, FoldStates) else joint) if keep else None
    return PCAResult(
        n,
        omitted,
        mean,
        scale,
        values[:k],
        components,
        total,
        state=state,
        groups_=getattr(state, "labels", None),
        cv_errors_=errors,
        weight_sums=moments.weight_sums,
        centring_error_=centred,
        regression=regression,
        left=moments if keep and again is not None else None,
        shrinkage=shrinkage_of(spectrum, k, weight - settings.center - effects),
        roundings=settings.roundings,
        negative_eigenvalue_=lowest,
    )


def block_roots(S: Array, rule: Blocks, weight: float, noise: Vector) -> Vector:
    """Return the roots (d,) of the first eigenvalue of the block of each column, 1 for blocks that are constant.

    ``S / (weight - 1)`` is the covariance, or holds its upper triangle; ``noise`` (d,) is the rounding of its diagonal.
    """
    roots = np.ones(len(noise))
    for own in rule.columns.values():
        # As multiple factor analysis weighs tables: the first axis of every block then has variance 1.
        block = S[own[:, None], own]
        largest = float(top_eigenpairs(block if isinstance(block, np.ndarray) else host_array(block), 1)[0][0])
        if largest > noise[own].sum():
            roots[own] = np.sqrt(largest / (weight - 1))
    return roots


def shrinkage_of(whole: Vector | None, k: int, freedom: float) -> tuple[float, ...] | None:
    """Return the shrinkage of k components from all eigenvalues, if these are known."""
    return None if whole is None else tuple(shrinkage_factors(whole[:k], whole[k:], freedom).tolist())


def held_out_errors(
    folds: FoldStates, settings: Settings, rule: CrossValidated, again: Remainder | None = None
) -> tuple[Matrix, Vector]:
    """Return the errors (f, m) of 0 to m - 1 components per row of each fold, by all others, and the rows of each.

    Those others have the mean, the effect of covariates and the scale, too. With a second read, its rows are taken:
    covariates have taken little out of them.

    Raises
    ------
    ValueError
        If fewer than two folds have rows.
    """
    folds = folds if again is None else cast("FoldStates", again.state)
    states, found = cast("list[Moments]", folds.filled("an int")), []
    for state, rest in zip(states, left_out(states), strict=True):
        check_enough_rows(rest.count, sums=rest.weight_sums)
        # Mean, effect of covariates and scale come from the rest of the rows; the fold's rows only get them.
        left, effect = settings.adjustment.of(rest)
        own = taken_out(state, effect)
        S, e = unpack(own.packed, own.n_features), own.mean - left.mean
        d, C, mean, scale = left.n_features, left.scatter, left.mean, None
        if again is not None:
            mean = mean + again.mean[:d]
        if settings.of_columns:
            scale = column_scale(np.diagonal(C).copy(), mean, rest.count, settings.of_columns, rest.weight)
        if not settings.center:
            e += mean
            C = plus_outer(C, rest.weight, mean)
        S += state.weight * np.outer(e, e)  # about the mean of the others, which has seen none of these rows
        if scale is not None:
            C, S = divided_by(C, scale), S / scale / scale[:, None]
        if isinstance(settings.scale, Blocks):
            roots = block_roots(C, settings.scale, rest.weight, np.zeros(d))
            C, S = divided_by(C, roots), S / roots / roots[:, None]
        values, axes = top_eigenpairs(C / (rest.weight - 1), threads=settings.threads)
        rank = min(rest.count - (0 if effect is None else effect.rank), d)
        # Eigenvalues that are rounding of the products tell nothing of rows that are held out.
        values = np.where(values > MULTIPLIED * left.precision * values[0], values, 0.0)
        found.append(rule.errors(values, axes.T, S, state.weight, rank))
    m = min(map(len, found))
    return np.stack([errors[:m] for errors in found]), np.array([state.weight for state in states])


def check_enough_rows(n: int, omitted: int = 0, minimum: int = 2, sums: WeightSums = None, what: str = "array") -> None:
    """Reject fewer than two rows of ``what``, or than ``minimum``, and weights that add up to less than two.

    Raises
    ------
    ValueError
    """
    if n < minimum:
        left = f" after {omitted} rows with NaN or infinite values were left out" if omitted else ""
        raise ValueError(
            f"Found {what} with {n} sample{'s' if n != 1 else ''}{left}, while a minimum of {minimum} is required: a "
            f"variance needs two rows. Give more rows."
        )
    if minimum > 1 and sums is not None:
        degrees_of_freedom(n, sums)
