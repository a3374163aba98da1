"""The settings and the result of kernel fits, and the steps that they share.

Fitted kernel models on disk: expansions as arrays and JSON values, and back, validated.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from bigpca.arrays import Array, Integers, Matrix, Vector, norm_of
from bigpca.data.sources import open as open_array
from bigpca.data.sources import source_of
from bigpca.errors import MemoryBudgetError, brief, format_bytes, warn_approximation
from bigpca.estimators.kernel.maps import (
    Expansion,
    FeatureProjection,
    kernel_identity,
    regressed_rows,
    regression,
    regression_bytes,
    scored_bytes,
    scored_evaluations,
    scored_in_float64,
)
from bigpca.estimators.linear.spectrum import IterationSettings, counted
from bigpca.estimators.shared.certificates import Certificate, pack_certificate, unpack_certificate
from bigpca.estimators.shared.files import References, StoredModel, StoredState, Values, pack_values, unpack_values
from bigpca.estimators.shared.fit import Fit, Reading, seconds
from bigpca.kernels.base import Kernel
from bigpca.passes.accumulators.base import WeightSums
from bigpca.passes.accumulators.kept_rows import RowSample
from bigpca.passes.accumulators.landmark_moments import LandmarkMoments
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.engine.jobs import PassPlan, PassState
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import first_shift, fold_to, row_pass, shift_pass
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.rows import Rows
from bigpca.passes.sweeps import SweepPlan
from bigpca.planning import PassCost, Resources, SolveCost
from bigpca.solvers.components import NComponents, check_n_components
from bigpca.storage.files import kind_of, one_look

LOST = 1e-3  # of the largest eigenvalue: a rounding error that is worth a word
HELD_BYTES = 256 << 20  # maximum size of training rows that a model holds because it cannot read them again


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
class KernelSpectrum:
    """A solved kernel principal component problem.

    Attributes
    ----------
    count, omitted : int
        Rows used, and rows omitted because of missing values.
    eigenvalues : ndarray of shape (k,), descending
        Of the centred kernel matrix HKH (or of its approximation).
    total : float
        Trace of HKH, the total variance times n; with landmarks an upper bound of it.
    expansion : Expansion or FeatureProjection
        The map from rows to scores.
    evaluations : int
        Kernel evaluations of the fit.
    certificate : Certificate or None
        None for exact solvers.
    negative_mass : float or None
        Absolute sum of the negative eigenvalues of an indefinite kernel, or a lower bound of it.
    trace_error : float or None
        Of landmarks: share of the trace that their features miss.
    rank : int or None
        Of the features of landmarks, or axes that labels determine.
    landmark_transform : ndarray of shape (m, r), or None
    landmark_indices : ndarray of shape (m,), or None
        Of landmarks that are rows of X.
    classes : ndarray of shape (c,), or None
    n_unlabelled : int or None
    missed_label_trace : float or None
        Of labels; see :class:`bigpca.estimators.supervised.statistics.Supervision`.
    state : StoredState or None
        Sufficient statistics, for ``partial_fit``.
    weight_sums : (float, float) or None
        Sums of the weights and of their squares; None for rows without weights.
    preimage : Expansion or None
        The regression of the reference rows on their scores.
    """

    count: int
    omitted: int
    eigenvalues: Vector
    total: float
    expansion: Expansion | FeatureProjection
    evaluations: int
    certificate: Certificate | None = None
    negative_mass: float | None = None
    trace_error: float | None = None
    rank: int | None = None
    landmark_transform: Matrix | None = None
    landmark_indices: Integers | None = None
    classes: Array | None = None
    n_unlabelled: int | None = None
    missed_label_trace: float | None = None
    state: StoredState | None = None
    weight_sums: WeightSums = None
    preimage: Expansion | None = None


@dataclass(frozen=True)
class KernelReading(Reading):
    """Reads of X that a kernel compares.

    Attributes
    ----------
    settings : KernelSettings
    """

    settings: KernelSettings

    @property
    def max_evaluations(self) -> float:
        return self.settings.max_kernel_evaluations

    @property
    def compared(self) -> dict[str, object]:
        """Rows and kernel, on which a checkpoint must agree."""
        return {"input": self.rows.describe(), "kernel": kernel_identity(self.settings.kernel)}


@dataclass(frozen=True)
class KernelFit(KernelReading, Fit[KernelSpectrum]):
    """One way to solve a kernel principal component problem."""

    @classmethod
    def planned(cls, rows: Rows, settings: KernelSettings, resources: Resources) -> KernelFit:
        """Return the fit, cut for those resources; X is not read."""
        return cls(rows, resources, settings)

    @classmethod
    def offered(cls, rows: Rows, settings: KernelSettings) -> bool:
        """Whether ``solver="auto"`` may choose it."""
        return True

    @property
    def price(self) -> float:
        """Seconds of one core; :meth:`offered` states from how many rows an iteration replaces the whole matrix."""
        return seconds(self.plan)

    @property
    def n_references(self) -> int:
        """Number of rows with which the model compares others: all, or the landmarks."""
        return self.rows.n_rows

    @property
    def regression(self) -> tuple[PassCost, ...]:
        """The regression of the reference rows on their scores, if it was requested."""
        rows, kernel, p, d = self.rows, self.settings.kernel, self.n_references, self.rows.n_columns
        if not self.settings.penalty:
            return ()
        again, k = p == rows.n_rows and _read_again(rows), counted(self.settings.n_components) or p
        return (
            PassCost(
                name="regression", reads=int(again), bytes_read=again * p * d * rows.dtype.itemsize,
                flops=p**2 * (kernel.flops_per_entry(d) + kernel.flops_per_entry(k) + p / 3 + 2.0 * d),
                evaluations=2.0 * p**2, driver_bytes=regression_bytes(kernel, p, d, k, rows.dtype.itemsize),
            ),
        )  # fmt: skip

    @abstractmethod
    def spectrum(self, run: Run) -> KernelSpectrum:
        """Read X and solve."""

    def run(self, run: Run) -> KernelSpectrum:
        return self.regressed(run, self.spectrum(run))

    def regressed(self, run: Run, found: KernelSpectrum) -> KernelSpectrum:
        """Return what was found with its regression, if that was requested."""
        for cost in self.regression:
            run.read_beside(cost)
            found = replace(found, evaluations=found.evaluations + int(cost.evaluations))
            if found.certificate is not None:
                found = replace(found, certificate=replace(found.certificate, n_passes=run.reads))
        return with_regression(found, self.settings)


@dataclass(frozen=True)
class PairsFit(KernelFit):
    """Compares all pairs of rows, which it must know before and keep after."""

    @property
    @abstractmethod
    def sweep(self) -> SweepPlan:
        """The sweeps over the kernel matrix."""

    @property
    def starting(self) -> tuple[PassCost, ...]:
        """The reads for a start of an iteration."""
        return ()

    def passes(self) -> tuple[PassCost, ...]:
        rows, kernel = self.rows, self.settings.kernel
        # Beside the sweeps: rows of a computation, and rows that determine the precision of scores.
        held = (collect_pass(rows),) if kernel.needs_rows and rows.source is None else ()
        scoring = scoring_reads(rows, kernel)
        return (row_shift_pass(rows), *self.starting, self.sweep, *held, *scoring, *self.regression)

    def cost_of(self, k: int, flops: float = 0.0, *, between: float = 0.0, beside: int = 0) -> SolveCost:
        """Return the cost of a solve for k components, whose model has ``beside`` bytes other than their expansion."""
        rows, kernel = self.rows, self.settings.kernel
        held = 0 if not kernel.needs_rows or _read_again(rows) else _held_bytes(rows)
        output = expansion_bytes(rows, self.settings, k) + beside
        return SolveCost(flops, between, held_bytes=held, output_bytes=output)

    def solved(
        self, run: Run, values: Vector, V: Matrix, trace: float, *, rounding: float, shift: Vector, row_means: Vector,
        where: str, remedy: str = "", certificate: Certificate | None = None, negative_mass: float | None = None,
    ) -> KernelSpectrum:  # fmt: skip
        """Return the components of eigenvectors V (n, k) of HKH: scores are along ``H V / sqrt(lambda)``."""
        coefficients = axis_coefficients(V, values, rounding)
        expansion = training_expansion(run, self.rows, self.settings, shift, row_means, coefficients)
        if certificate is not None:
            certificate = replace(certificate, n_passes=run.reads)
        n = self.rows.n_rows
        found = KernelSpectrum(n, 0, values, trace, expansion, run.evaluations, certificate, negative_mass)
        return completed(found, self.settings.n_components, rounding, where, remedy)


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


def row_shift(run: Run, rows: Rows) -> Vector:
    """Return the mean of the first rows (d,), close enough to the mean for accurate distances."""
    return first_shift(run, rows, rows.layout(0))


def row_shift_pass(rows: Rows) -> PassCost:
    """Declare the read of :func:`row_shift`."""
    return shift_pass(rows, rows.layout(0))


def collect_pass(rows: Rows) -> PassPlan:
    """Declare the read that holds all rows of a computation."""
    dtype = working_dtype(rows.dtype)  # represents the rows exactly, in the planned number of bytes
    template = RowSample(rows.n_columns, rows.n_rows, rows.held_row_bytes(dtype))
    return row_pass(rows, "collect", [template], dtype=dtype, collected=True, finish_bytes=template.state_bytes)


def scoring_reads(rows: Rows, kernel: Kernel) -> tuple[PassCost, ...]:
    """Declare the read of the sample that determines the precision of scores; none for rows in float64."""
    if not kernel.needs_rows or scored_in_float64(kernel, rows.dtype):
        return ()
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
    values, certificate, wanted = found.eigenvalues, found.certificate, counted(n_components)
    used = values > rounding
    rank = int(np.count_nonzero(used))
    alike = rounding > LOST * float(values.max(initial=0.0)) and not found.negative_mass
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
    return replace(found, eigenvalues=eigenvalues, certificate=certificate, expansion=found.expansion.limited(used, k))


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
    n, references = len(row_means), hold_references(run, rows, settings.kernel)
    for scoring in scoring_reads(rows, settings.kernel):
        run.read_beside(scoring)
    return Expansion(
        settings.kernel, shift, references, coefficients, row_means @ coefficients, np.full(n, 1.0 / n),
        float(row_means.mean()), row_means,
    ).in_needed_precision(rows.device[0])  # fmt: skip


def hold_references(run: Run, rows: Rows, kernel: Kernel) -> References:
    """Return the reference rows: a store is read again, an array is kept, the rows of a computation are collected."""
    if not kernel.needs_rows:
        return References(np.zeros((rows.n_rows, 0)))
    source = rows.source
    if source is None:
        return References(collect_rows(run, rows))
    if _read_again(rows):
        with one_look(rows.inspected.seen):
            return References.stored(source)
    return References(np.ascontiguousarray(source.read(0, rows.n_rows)))


def check_references(rows: Rows, kernel: Kernel) -> None:
    """Reject, before any read, training rows that a model can neither hold nor read again.

    Raises
    ------
    MemoryBudgetError
    """
    size = _held_bytes(rows)
    if rows.source is None and kernel.needs_rows and size > HELD_BYTES:
        raise MemoryBudgetError(
            f"new rows are compared with all {rows.n_rows} training rows, which are the result of a computation of "
            f"{format_bytes(size)}; at most {format_bytes(HELD_BYTES)} are held in the model. Write X to a store first "
            f"(bp.ingest(X, out), bp.open(out)), or use NystromKernelPCA."
        )


def collect_rows(run: Run, rows: Rows) -> Array:
    """Return all rows, in one read."""
    cost = collect_pass(rows)
    template = RowSample(rows.n_columns, rows.n_rows, rows.held_row_bytes(cost.dtype))
    zero = np.zeros(rows.n_columns)
    return fold_to(run, cost, rows, {"sample": template}, _take_rows, shift=zero)  # one pass over X


def _take_rows(state: PassState) -> Array:
    return np.concatenate(state.part("sample", RowSample).rows())


LEARNED = (  # fields of a KernelSpectrum that only some fits have
    "negative_mass", "trace_error", "rank", "landmark_transform", "landmark_indices", "classes", "n_unlabelled",
    "missed_label_trace", "weight_sums",
)  # fmt: skip
EXPANSION = ("shift", "coefficients", "offsets", "mean_weights", "centre")
PRECISIONS = ("float32", "float64")


def expansion_bytes(rows: Rows, settings: KernelSettings, k: int, landmarks: int | None = None) -> int:
    """Return the bytes of a saved expansion of k axes over all rows, or over landmarks, with the eigenvalues, and with
    the regression of these rows on their scores."""
    p, kernel = rows.n_rows if landmarks is None else landmarks, settings.kernel
    stored = rows.source is not None and landmarks is None
    size = p * rows.n_columns * (rows.dtype if stored else working_dtype(rows.dtype)).itemsize
    named = rows.source is not None and not rows.source.in_memory and size > HELD_BYTES and landmarks is None
    held = 0 if named or (landmarks is None and not kernel.needs_rows) else size
    back = p * (k + rows.n_columns) if settings.penalty else 0
    return 8 * (2 * k + rows.n_columns + p * k + 2 * p + back) + held


def pack_kernel_spectrum(found: KernelSpectrum) -> tuple[dict[str, Array], Values]:
    """Return a solved problem as arrays and JSON values.

    Training rows of at most 256 MiB, and rows in memory, are copied into the model. A larger store is referenced, and
    must exist when the model is loaded.
    """
    arrays: dict[str, Array] = {"eigenvalues": found.eigenvalues}
    attributes: Values = {
        "n_samples": int(found.count), "n_omitted": int(found.omitted), "total": float(found.total),
        "evaluations": int(found.evaluations), "references": None,
    }  # fmt: skip
    # Facts: JSON values, strings as JSON, and arrays of numbers, each under its own name.
    learned = {name: getattr(found, name) for name in LEARNED if getattr(found, name) is not None}
    known = {name: value for name, value in learned.items() if isinstance(value, np.ndarray)}
    attributes["facts"] = {name: _plain(value) for name, value in learned.items() if name not in known}
    arrays |= {f"fact_{name}": value for name, value in known.items() if value.dtype.kind not in "US"}
    attributes["texts"] = {name: pack_values(value) for name, value in known.items() if value.dtype.kind in "US"}
    expansion = found.expansion
    attributes["transform_dtype"] = expansion.dtype.name
    if isinstance(expansion, FeatureProjection):
        arrays |= {"feature_mean": expansion.mean, "components": expansion.components}
    else:
        arrays |= {name: getattr(expansion, name) for name in EXPANSION}
        attributes["mean_square"] = float(expansion.mean_square)
        references = expansion.references
        # Rows that the model would have to hold are copied up to 256 MiB; a larger store is named with its fingerprint.
        held = references.shape[0] * references.shape[1] * references.dtype.itemsize
        if references.rows is None and references.source is not None and held > HELD_BYTES:
            source = references.source
            attributes["references"] = {"path": source.path, "member": source.member, "shape": list(source.shape)}
            attributes["references"]["fingerprint"] = references.fingerprint()
        else:
            arrays["references"] = np.concatenate([rows for _, rows in references.tiles()])
    if found.preimage is not None:
        arrays |= {"preimage_scores": np.asarray(found.preimage.references.rows)}
        arrays |= {"preimage_coefficients": found.preimage.coefficients}
    certified, attributes["certificate"] = pack_certificate(found.certificate)
    arrays |= certified
    if found.state is not None:
        arrays |= {f"state_{name}": np.asarray(array) for name, array in found.state.to_arrays().items()}
    return arrays, attributes


def unpack_kernel_spectrum(stored: StoredModel, kernel: Kernel, state: StoredState | None) -> KernelSpectrum:
    """Return the solved problem that :func:`pack_kernel_spectrum` packed.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a value is missing or not finite, shapes disagree, or the training rows are no longer in their place.
    """
    arrays, attributes = stored.arrays, stored.attributes
    # Files are not trusted: one NaN in a coefficient makes all scores NaN.
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
            raise ValueError(f"it has {name} with values that are not finite numbers")
    expansion = _unpack_expansion(stored, kernel)
    certificate = unpack_certificate(arrays, attributes["certificate"])
    facts = dict(attributes["facts"])
    if "weight_sums" in facts:
        total, squares = facts["weight_sums"]
        facts["weight_sums"] = float(total), float(squares)
    facts |= {name: unpack_values(value) for name, value in attributes["texts"].items()}
    facts |= {name.removeprefix("fact_"): array for name, array in arrays.items() if name.startswith("fact_")}
    if "preimage_scores" in arrays:
        scores, coefficients = arrays["preimage_scores"], arrays["preimage_coefficients"]
        expected = (len(scores), len(arrays["eigenvalues"])), (len(scores), int(attributes["n_features"]))
        if (scores.shape, coefficients.shape) != expected:
            raise ValueError(f"it has a regression of shapes {scores.shape} and {coefficients.shape}, not {expected}")
        facts["preimage"] = regressed_rows(kernel, scores, coefficients)
    return KernelSpectrum(
        int(attributes["n_samples"]), int(attributes["n_omitted"]), arrays["eigenvalues"], float(attributes["total"]),
        expansion, int(attributes["evaluations"]), certificate, state=state, **facts,
    )  # fmt: skip


def _unpack_expansion(stored: StoredModel, kernel: Kernel) -> Expansion | FeatureProjection:
    """Return the map to scores; raises as :func:`unpack_kernel_spectrum`."""
    arrays, attributes = stored.arrays, stored.attributes
    expansion: Expansion | FeatureProjection
    if attributes["transform_dtype"] not in PRECISIONS:
        raise ValueError(f"it has scores in {attributes['transform_dtype']!r}, not in one of {', '.join(PRECISIONS)}")
    dtype = np.dtype(attributes["transform_dtype"])
    if "components" in arrays:
        expansion = FeatureProjection(kernel, arrays["feature_mean"], arrays["components"], dtype)
    else:
        references = _read_references(stored)
        expansion = Expansion(
            kernel, arrays["shift"], references, arrays["coefficients"], arrays["offsets"], arrays["mean_weights"],
            float(attributes["mean_square"]), arrays["centre"], dtype,
        )  # fmt: skip
        # Arrays that do not fit each other would broadcast, or fail far from their cause.
        p = references.shape[0]
        if expansion.coefficients.shape[:1] != (p,):
            raise ValueError(f"it has {p} reference rows, but coefficients of shape {expansion.coefficients.shape}")
        d = attributes["n_features"]
        if kernel.needs_rows and {expansion.shift.shape, (d,)} != {(references.shape[1],)}:
            raise ValueError(
                f"it has rows of {references.shape[1]} columns, but a shift of shape {expansion.shift.shape} and "
                f"n_features = {d}"
            )
    return expansion


def stored_moments(stored: StoredModel) -> LandmarkMoments | None:
    """Return the stored moments of the features; None if the model kept none."""
    own = stored.named("state_")
    if not own:
        return None
    rank = stored.arrays["fact_landmark_transform"].shape[1]
    return LandmarkMoments(int(stored.attributes["n_features"]), None, (Moments(rank),)).with_arrays(own)


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _read_references(stored: StoredModel) -> References:
    """Return the training rows from the model, or from the store that it references.

    Raises
    ------
    ModelFormatError
        If that store is not in an allowed place.
    ValueError
        If the store does not exist, or holds an array of another shape or other rows.
    """
    place = stored.attributes["references"]
    if place is None:
        return References(stored.arrays["references"], None, stored.arrays.get("fact_landmark_indices"))
    path = stored.rows.resolve(str(place["path"]))
    if kind_of(path) == "disk" and not os.path.exists(path):
        raise ValueError(f"its training rows were in {path}, which is gone. Put them back there")
    source = source_of(open_array(path, member=place["member"] or None))
    if source is None or list(source.shape) != place["shape"]:
        found = None if source is None else source.shape
        raise ValueError(f"its training rows were of shape {brief(tuple(place['shape']))}, but {path} holds {found}")
    references = References.stored(source)
    if references.fingerprint() != place["fingerprint"]:
        raise ValueError(f"its training rows were in {path}, which now holds other rows. Put them back there")
    return references
