"""The settings and the result of kernel fits, and the steps that they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np

from bigpca.arrays import Array, Integers, Matrix, Vector, norm_of, working_dtype
from bigpca.engine.jobs import PassState
from bigpca.engine.planning import PassCost, SolveCost
from bigpca.engine.run import Run
from bigpca.errors import MemoryBudgetError, an, format_bytes, warn_approximation
from bigpca.estimators.kernel.maps import (
    OF_PREIMAGES,
    Expansion,
    FeatureProjection,
    centred_expansion,
    regression,
    regression_bytes,
    scored_bytes,
    scored_evaluations,
    scored_in_float64,
)
from bigpca.estimators.linear.spectrum import IterationSettings
from bigpca.estimators.shared.certificates import Certificate, Certified
from bigpca.estimators.shared.files import HELD_BYTES, OF_VALUES, References
from bigpca.estimators.shared.fit import Fit, Reading, seconds
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.results import RowCounts
from bigpca.kernels.base import Kernel
from bigpca.operators.kernel import KernelOperator
from bigpca.passes.accumulators.all_pairs import KernelProduct
from bigpca.passes.accumulators.base import WeightSums
from bigpca.passes.accumulators.kept_rows import RowSample
from bigpca.passes.accumulators.landmark_moments import LandmarkMap
from bigpca.passes.fold import Declared, FirstRows, Folded, Read
from bigpca.passes.prices import priced
from bigpca.passes.rows import Rows
from bigpca.passes.sweeps import Sweep
from bigpca.records import of_part, stored
from bigpca.solvers.components import NComponents, check_n_components, counted, degrees_of_freedom, reject_folds
from bigpca.storage.files import one_look

LOST = 1e-3  # of the largest eigenvalue: a rounding error that is worth a word


@dataclass(frozen=True)
class KernelSettings(IterationSettings):
    """What a kernel fit computes, independent of how it is executed.

    Attributes
    ----------
    kernel : Kernel
        Resolved for the number of columns.
    max_kernel_evaluations : float
        Maximum number of kernel evaluations; a plan with more is rejected before any read.
    penalty : float
        Of the regression of the reference rows on their scores; 0 without one.
    """

    kernel: Kernel
    max_kernel_evaluations: float = 1e12
    penalty: float = 0.0


@dataclass(frozen=True)
class KernelSpectrum(RowCounts, Certified):
    """A solved kernel principal component problem: the fitted attributes of a kernel model, and what it keeps.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (k,), descending
        Of the centred kernel matrix HKH (or of its approximation).
    total : float
        Trace of HKH, the total variance times n; with landmarks an upper bound of it.
    expansion : Expansion or FeatureProjection
        The map from rows to scores.
    kernel_evaluations_ : int
        Kernel evaluations of the fit.
    certificate : Certificate or None
        None for exact solvers.
    negative_mass_ : float or None
        Absolute sum of the negative eigenvalues of an indefinite kernel, or a lower bound of it.
    trace_error_ : float or None
        Of landmarks: share of the trace that their features miss.
    rank_ : int or None
        Of the features of landmarks, or axes that labels determine.
    landmark_transform_ : ndarray of shape (m, r), or None
    landmark_indices_ : ndarray of shape (m,), or None
        Of landmarks that are rows of X.
    classes_ : ndarray of shape (c,), or None
    n_unlabelled_ : int or None
        None without labels.
    missed_label_trace_ : float or None
        Of labels; see :class:`bigpca.estimators.supervised.statistics.Supervision`.
    state : LandmarkMoments, KeptLabels or None
        Sufficient statistics, for ``partial_fit``.
    preimage : Expansion or None
        The regression of the reference rows on their scores.
    """

    eigenvalues_: Vector = stored("k")
    total: float = stored(of=float)
    expansion: Expansion | FeatureProjection = stored(of=(Expansion, FeatureProjection))
    kernel_evaluations_: int = stored(of=int, least=0)
    certificate: Certificate | None = stored(of=Certificate, default=None)
    negative_mass_: float | None = stored(of=float, default=None)
    trace_error_: float | None = stored(of=float, default=None)
    rank_: int | None = stored(of=int, least=0, default=None)
    landmark_transform_: Matrix | None = stored("p", "m", default=None)
    landmark_indices_: Integers | None = stored("p", default=None)
    classes_: Array | None = stored(coding=OF_VALUES, default=None)
    n_unlabelled_: int | None = stored(of=int, least=0, default=None)
    missed_label_trace_: float | None = stored(of=float, default=None)
    state: Unchecked = stored(default=None)
    preimage: Expansion | None = stored(coding=OF_PREIMAGES, default=None)

    kernel_ = of_part("expansion", "kernel")  # with its defaults filled in
    transform_dtype_ = of_part("expansion", "dtype")  # precision in which float32 rows are scored

    @property
    def so_far(self) -> KeptFeatures:
        """The statistics of the features of landmarks, to which rows are added."""
        own, T = self.over_rows, np.asarray(self.landmark_transform_)
        features = LandmarkMap(own.kernel, np.asarray(own.references.rows), T, own.shift, own.references.indices)
        return KeptFeatures(features, self.state, self.n_samples_, self.n_omitted_, self.kernel_evaluations_)

    @property
    def total_variance_(self) -> float:
        """``trace(HKH) / (n - 1)``."""
        return self.total / self._divisor

    @property
    def explained_variance_(self) -> Vector | None:
        """Variances (k,): eigenvalues of HKH over n - 1; those of labelled fits measure dependence on labels."""
        return self.eigenvalues_ / self._divisor if self.n_unlabelled_ is None else None

    @property
    def explained_variance_ratio_(self) -> Vector | None:
        """Shares (k,) of the trace of HKH."""
        if self.n_unlabelled_ is not None:
            return None
        return self.eigenvalues_ / self.total if self.total > 0 else np.zeros(self.n_components_)

    @property
    def landmarks_(self) -> Array | None:
        """Landmarks (m, d)."""
        return None if self.landmark_transform_ is None else self.over_rows.references.rows

    @property
    def eigenvectors_(self) -> Matrix | None:
        """Eigenvectors (n, k) of HKH: A = H V / sqrt(lambda), where H V = V, as those with lambda > 0 sum to 0."""
        known = isinstance(self.expansion, Expansion) and self.landmark_transform_ is None
        if not known or self.n_unlabelled_ is not None:
            return None
        return self.over_rows.coefficients * np.sqrt(np.maximum(self.eigenvalues_, 0.0))

    @property
    def over_rows(self) -> Expansion:
        """The expansion; raises TypeError for a fit by the features of a kernel, which has none."""
        if not isinstance(self.expansion, Expansion):
            raise TypeError(f"the fit is {an(type(self.expansion).__name__)}; an expansion over rows was expected")
        return self.expansion

    @property
    def _divisor(self) -> float:
        return degrees_of_freedom(self.n_samples_, self.weight_sums)


@dataclass(frozen=True)
class KeptFeatures:
    """The statistics that a fit by landmarks keeps of the features of all rows.

    Attributes
    ----------
    features : LandmarkMap
    state : LandmarkMoments, KeptLabels or None
    n_samples_, n_omitted_ : int
        As of the result.
    evaluations : int
        Kernel evaluations so far.
    """

    features: LandmarkMap
    state: Unchecked
    n_samples_: int
    n_omitted_: int
    evaluations: int

    def merge(self, other: KeptFeatures) -> KeptFeatures:
        """Return the statistics of the rows of both, which have the same landmarks."""
        n, omitted = self.n_samples_ + other.n_samples_, self.n_omitted_ + other.n_omitted_
        evaluations = self.evaluations + other.evaluations
        return KeptFeatures(self.features, self.state.merge(other.state), n, omitted, evaluations)

    def solved(
        self, values: Vector, total: float, expansion: Expansion, weight_sums: WeightSums = None
    ) -> KernelSpectrum:
        """Return the result: what was solved, with what all results by landmarks have."""
        T, numbers, n, omitted = self.features.transform, self.features.indices, self.n_samples_, self.n_omitted_
        found = KernelSpectrum(n, omitted, values, total, expansion, self.evaluations, weight_sums=weight_sums)
        return replace(found, state=self.state, landmark_transform_=T, landmark_indices_=numbers)


@dataclass(frozen=True)
class KernelReading(Reading):
    """Reads of X that a kernel compares.

    Attributes
    ----------
    settings : KernelSettings
    """

    depends_on: ClassVar[tuple[str, ...]] = ("settings.kernel",)

    settings: KernelSettings

    max_evaluations = of_part("settings", "max_kernel_evaluations")


@dataclass(frozen=True)
class KernelFit(KernelReading, Fit[KernelSpectrum]):
    """One way to solve a kernel principal component problem."""

    @property
    def first(self) -> FirstRows:
        """The read of the first rows, whose mean is close enough to that of all rows for accurate distances."""
        return FirstRows(self.rows, self.rows.layout(0))

    @classmethod
    def choices(cls, rows: Rows, settings: KernelSettings) -> Sequence[KernelFit]:
        """Return the fit in each size that it may have, the best first; the first that fits in memory is taken."""
        return [cls(rows, settings)]

    @classmethod
    def offered(cls, rows: Rows, settings: KernelSettings) -> bool:
        """Whether ``solver="auto"`` may choose it."""
        return True

    @property
    def price(self) -> float:
        """Seconds of one core; :meth:`offered` states from how many rows an iteration replaces the whole matrix."""
        return seconds(self.plan)

    n_references = of_part("rows", "n_rows")  # with which the model compares others: all rows, or the landmarks

    @property
    def regression(self) -> tuple[PassCost, ...]:
        """The regression of the reference rows on their scores, if it was requested."""
        rows, kernel, p, d = self.rows, self.settings.kernel, self.n_references, self.rows.n_columns
        if not self.settings.penalty:
            return ()
        # Where all rows are references, they are read again, unless they lie in memory. The operations: the kernel of
        # the rows, that of their scores, and the Cholesky factor of the latter plus the penalty, p^3 / 3.
        again, k = p == rows.n_rows and _read_again(rows), counted(self.settings.n_components) or p
        return (
            PassCost(
                name="regression",
                reads=int(again),
                bytes_read=again * p * d * rows.dtype.itemsize,
                flops=p**2 * (kernel.flops_per_entry(d) + kernel.flops_per_entry(k) + p / 3 + 2.0 * d),
                evaluations=2.0 * p**2,
                driver_bytes=regression_bytes(kernel, p, d, k, rows.dtype.itemsize),
            ),
        )

    @abstractmethod
    def spectrum(self, run: Run) -> KernelSpectrum:
        """Read X and solve."""

    def run(self, run: Run) -> KernelSpectrum:
        return self.regressed(run, self.spectrum(run))

    def regressed(self, run: Run, found: KernelSpectrum) -> KernelSpectrum:
        """Return what was found with its regression, if that was requested."""
        for cost in self.regression:
            run.read_beside(cost)
            found = replace(found, kernel_evaluations_=found.kernel_evaluations_ + int(cost.evaluations))
        return with_regression(found, self.settings)


@dataclass(frozen=True)
class EigenPairs:
    """Eigenvalues (k,) and eigenvectors V (n, k) of HKH, and what is known of that matrix beside them.

    Attributes
    ----------
    trace, rounding : float
        Eigenvalues up to ``rounding`` are 0.
    row_means : ndarray of shape (n,)
        Of K.
    shift : ndarray of shape (d,)
        Which the kernel subtracted from rows.
    """

    values: Vector
    V: Matrix
    trace: float
    rounding: float
    row_means: Vector
    shift: Vector
    certificate: Certificate | None = None
    negative_mass: float | None = None

    @classmethod
    def of(
        cls, operator: KernelOperator, values: Vector, V: Matrix, certificate: Certificate, negative_mass: float | None
    ) -> EigenPairs:
        """Return what an operator knows."""
        means, rounding = operator.row_means, rounding_of(values, operator.row_means, operator.tile_rounding)
        return cls(values, V, operator.own_trace, rounding, means, operator.shift, certificate, negative_mass)


@dataclass(frozen=True)
class PairsFit(KernelFit):
    """Compares all pairs of rows, which it must know before and keep after."""

    @property
    @abstractmethod
    def sweep(self) -> Sweep[object]:
        """The sweeps over the kernel matrix."""

    @property
    def starting(self) -> tuple[Declared, ...]:
        """The reads for a start of an iteration."""
        return ()

    def passes(self) -> tuple[Declared, ...]:
        rows, kernel = self.rows, self.settings.kernel
        # Beside the sweeps: rows of a computation, and rows that determine the precision of scores.
        held = (collecting(rows),) if kernel.needs_rows and rows.source is None else ()
        scoring = scoring_reads(rows, kernel)
        return (self.first, *self.starting, self.sweep, *held, *scoring, *self.regression)

    def cost_of(self, flops: float = 0.0, *, between: float = 0.0) -> SolveCost:
        """Return the cost of a solve, whose process holds the rows of the model if it cannot read them again."""
        rows, kernel = self.rows, self.settings.kernel
        held = 0 if not kernel.needs_rows or _read_again(rows) else _held_bytes(rows)
        return SolveCost(flops, between, held_bytes=held)

    def operator(self, run: Run, seed: int, *, shifted: bool = False) -> KernelOperator:
        """Return HKH, about the mean of the first rows."""
        return KernelOperator(
            run, cast("Sweep[KernelProduct]", self.sweep), shift=self.first(run), seed=seed, shifted=shifted
        )

    def solved(self, run: Run, found: EigenPairs, where: str, remedy: str = "") -> KernelSpectrum:
        """Return the components: scores are along ``H V / sqrt(lambda)``."""
        coefficients = axis_coefficients(found.V, found.values, found.rounding)
        expansion = training_expansion(run, self.rows, self.settings, found.shift, found.row_means, coefficients)
        n, bounds, negative = self.rows.n_rows, found.certificate, found.negative_mass
        spectrum = KernelSpectrum(n, 0, found.values, found.trace, expansion, run.evaluations, bounds, negative)
        return completed(spectrum, self.settings.n_components, found.rounding, where, remedy)


def with_regression(found: KernelSpectrum, settings: KernelSettings) -> KernelSpectrum:
    """Return what was found with the regression of the reference rows on their scores, if that was requested."""
    if not settings.penalty or not isinstance(found.expansion, Expansion):
        return found
    return replace(found, preimage=regression(found.expansion, settings.penalty, settings.threads))


def check_kernel_components(n_components: NComponents, n: int, d: int, m: int | None = None) -> None:
    """Reject a number of components that a kernel matrix of n rows of d columns does not have, or m landmarks.

    Raises
    ------
    TypeError, ValueError
    """
    most, whose = (n, f"the kernel matrix of {n} rows") if m is None else (m, f"the features of {m} landmarks")
    counted = isinstance(n_components, int | np.integer) and not isinstance(n_components, bool | np.bool_)
    if counted and not 1 <= int(n_components) <= most:  # type: ignore[arg-type]
        raise ValueError(
            f"n_components = {n_components} is out of range: {whose} (of {d} columns, which do not limit it) has 1 to "
            f"{most} components. Use at most {most}."
        )
    check_n_components(n_components, most, most)
    reject_folds(n_components)


def collecting(rows: Rows) -> Read[Folded[RowSample]]:
    """Declare the read that holds all rows of a computation."""
    dtype = working_dtype(rows.dtype)  # represents the rows exactly, in the planned number of bytes
    template = RowSample(rows.n_columns, rows.n_rows, priced(rows, 1, dtype).held)
    return Read.into(rows, "collect", template, dtype=dtype, collected=True, finish_bytes=template.state_bytes)


def scoring_reads(rows: Rows, kernel: Kernel) -> tuple[PassCost, ...]:
    """Declare the read of the sample that determines the precision of scores; none for rows in float64."""
    if not kernel.needs_rows or scored_in_float64(kernel, rows.dtype):
        return ()
    # A few rows are compared with all references: of rows in memory, that costs kernel values only.
    again, size = int(_read_again(rows)), rows.n_rows * rows.n_columns * rows.dtype.itemsize
    evaluations = scored_evaluations(kernel, rows.dtype, rows.n_rows)
    held = scored_bytes(kernel, rows.dtype, rows.n_rows, rows.n_columns, read=_read_again(rows))
    return (
        PassCost(
            name="precision of scores", reads=again, bytes_read=again * size, evaluations=evaluations, driver_bytes=held
        ),
    )


def _read_again(rows: Rows) -> bool:
    """Whether the training rows are in a store that can be read again."""
    return rows.source is not None and not rows.source.in_memory


def _held_bytes(rows: Rows) -> int:
    """Return the bytes of all rows: of an array in memory as it is, of a computation in the working dtype."""
    dtype = working_dtype(rows.dtype) if rows.source is None else rows.dtype
    return rows.n_rows * rows.n_columns * dtype.itemsize


def rounding_of(eigenvalues: Vector, row_means: Vector, entries: float) -> float:
    """Return the rounding error of an eigenvalue of HKH: a share of the largest, and one of ``|K|_2``; or, where that
    is more, what the rounding of K's entries in the precision of the tiles changes, ``entries``.

    ``|K|_2 >= |K 1| / sqrt(n) = sqrt(n) |r|``, r the row means: if all rows are nearly equal, only
    such rounding remains after centring.
    """
    n, eps = len(row_means), float(np.finfo(np.float64).eps)
    largest = float(np.abs(eigenvalues).max(initial=0.0))
    return max(entries, eps * (n * largest + 10 * float(np.sqrt(n) * norm_of(row_means))))


def warn_alike(eigenvalues: Vector, rounding: float, what: str = "largest eigenvalue") -> None:
    """Warn if rounding is a notable part of the largest eigenvalue: K is far larger than what centring leaves of it.

    Warns
    -----
    ApproximationWarning
    """
    largest = float(eigenvalues.max(initial=0.0))
    if rounding > LOST * largest:
        warn_approximation(
            f"the values of the kernel hardly differ: the {what} of their centred matrix is {largest:.3g}, "
            f"and rounding changes it by up to {rounding:.2g}. Centre the columns, or use a narrower kernel."
        )


def completed(
    found: KernelSpectrum, n_components: NComponents, rounding: float, where: str, remedy: str = ""
) -> KernelSpectrum:
    """Return as many components as were requested: those whose eigenvalue is rounding have the eigenvalue 0, and scores
    of 0. Of all (None), they are left out, except the first.

    Warns
    -----
    ApproximationWarning
        Where values hardly differ (:func:`warn_alike`), or else where fewer eigenvalues are above 0 than components
        were requested; ``where`` they are, as "the centred matrix has".
    """
    values, certificate, wanted = found.eigenvalues_, found.certificate, counted(n_components)
    used = values > rounding
    rank = int(np.count_nonzero(used))
    alike = rounding > LOST * float(values.max(initial=0.0)) and not found.negative_mass_
    if alike:
        warn_alike(values, rounding)  # where an iteration did not converge, too: this says why, and what would help
    elif wanted is not None and rank < wanted:
        warn_approximation(
            f"{wanted} components were requested, but {where} {rank} eigenvalues above 0: the others, and their "
            f"scores, are set to 0. Request fewer components{remedy}."
        )
    k = max(1, rank) if n_components is None else wanted or len(values)
    eigenvalues = np.zeros(k)
    eigenvalues[: len(values)] = np.where(used, values, 0.0)[:k]
    if certificate is not None:
        certificate = certificate.limited(k)
    return replace(found, eigenvalues_=eigenvalues, certificate=certificate, expansion=found.expansion.limited(used, k))


def axis_coefficients(V: Matrix, eigenvalues: Vector, rounding: float) -> Matrix:
    """Return ``A = H V / sqrt(lambda)`` (n, k) from eigenpairs (k,), (n, k) of HKH; 0 if lambda is rounding."""
    used = eigenvalues > rounding
    coefficients: Matrix = (V - V.mean(axis=0)) * (used / np.sqrt(np.where(used, eigenvalues, 1.0)))
    return coefficients


def training_expansion(
    run: Run, rows: Rows, settings: KernelSettings, shift: Vector, row_means: Vector, coefficients: Matrix
) -> Expansion:
    """Return the scores of rows from coefficients A (n, k), whose columns sum to 0, in the precision that they require.

    ``y = sum_t a_t (k(x, x_t) - mean_s k(x, x_s) - r_t + mean(r))`` (tutorial, algorithm 5; SPCA paper, appendix C):
    the columns of A sum to 0, so that leaves ``(k(x, X) - r') A``.
    """
    references = hold_references(run, rows, settings.kernel)
    for scoring in scoring_reads(rows, settings.kernel):
        run.read_beside(scoring)
    found = centred_expansion(settings.kernel, shift, references, coefficients, row_means)
    return found.in_needed_precision(rows.device[0])


def hold_references(run: Run, rows: Rows, kernel: Kernel) -> References:
    """Return the reference rows: a store is read again, an array is kept, the rows of a computation are collected."""
    if not kernel.needs_rows:
        return References(np.zeros((rows.n_rows, 0)))
    source = rows.source
    if source is None:
        held = collecting(rows).to(take_rows)(run, shift=np.zeros(rows.n_columns))  # one pass over X
        return References(held)
    if _read_again(rows):
        with one_look(rows.origin.seen):
            return References.stored(source)
    return References(np.ascontiguousarray(source.read(0, rows.n_rows)))


def check_references(rows: Rows, kernel: Kernel, solver: str = "a sweep") -> None:
    """Reject, before any read, training rows that a model can neither hold nor read again, and rows to be left out.

    Raises
    ------
    ValueError, MemoryBudgetError
    """
    if rows.nan_policy == "omit":
        raise ValueError(
            f'nan_policy="omit" leaves out rows as they are read, but {solver} compares all pairs of rows and must '
            "know them in advance. Remove such rows first, or use NystromKernelPCA."
        )
    size = _held_bytes(rows)
    if rows.source is None and kernel.needs_rows and size > HELD_BYTES:
        raise MemoryBudgetError(
            f"new rows are compared with all {rows.n_rows} training rows, which are the result of a computation of "
            f"{format_bytes(size)}; at most {format_bytes(HELD_BYTES)} are held in the model. Write X to a store first "
            f"(bp.ingest(X, out), bp.open(out)), or use NystromKernelPCA."
        )


def take_rows(state: PassState) -> Array:
    """Return the rows of a state that kept them."""
    return np.concatenate(state.part("state", RowSample).rows())
