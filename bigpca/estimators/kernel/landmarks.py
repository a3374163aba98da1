"""Fits by landmarks: the choice of landmarks, the fit on their features, and the cost of rows added later.

Kernel PCA on Nyström features: landmarks L, features ``B = k(X, L) T``, and PCA of B about the mean over ALL rows.
Kernel PCA of a kernel with an exact finite feature map: PCA of the features, without a kernel matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike

from bigpca.arrays import Array, DType, Matrix, Vector, norm_of, unpack, working_dtype
from bigpca.csr import form_of
from bigpca.devices import device_of_solve
from bigpca.engine.planning import PassCost, SolveCost
from bigpca.engine.run import Run
from bigpca.errors import warn_approximation
from bigpca.estimators.kernel.maps import (
    SCORED_ROWS,
    Expansion,
    FeatureProjection,
    centred_expansion,
    scored_in_float64,
    spread_rows,
)
from bigpca.estimators.kernel.spectrum import (
    KeptFeatures,
    KernelFit,
    KernelSettings,
    KernelSpectrum,
    axis_coefficients,
    completed,
    rounding_of,
    warn_alike,
)
from bigpca.estimators.linear.choosing import plan_fit
from bigpca.estimators.linear.covariance_fit import CovarianceFit
from bigpca.estimators.linear.spectrum import (
    IterationSettings,
    PCAResult,
    Settings,
    shown_components,
)
from bigpca.estimators.shared.certificates import Certificate
from bigpca.estimators.shared.files import References
from bigpca.estimators.shared.fit import Fit
from bigpca.kernels.base import Kernel
from bigpca.landmarks import (
    LandmarkRequest,
    Landmarks,
    landmark_passes,
    landmark_values,
    select_landmarks,
)
from bigpca.passes.accumulators.all_pairs import double_centre, reject_contradicted, reject_underflow
from bigpca.passes.accumulators.landmark_moments import (
    HELD_TILES,
    LandmarkMap,
    LandmarkMoments,
)
from bigpca.passes.fold import Declared, FirstRows, Folded, Read, costs
from bigpca.passes.prices import counting_reads, priced
from bigpca.passes.project import project_lazily
from bigpca.passes.reading.blocks import product_dtype
from bigpca.passes.reading.row_maps import RowMap, chained
from bigpca.passes.rows import Rows
from bigpca.passes.summaries import Lesson, lessons
from bigpca.records import of_part
from bigpca.solvers.certificates import captured_variance_bounds, rounding_slack, trace_bounds
from bigpca.solvers.components import MULTIPLIED, counted, resolve_components
from bigpca.solvers.eigh import fix_signs, top_eigenpairs, top_eigenvalues
from bigpca.solvers.landmarks import landmark_transform, truncation_for
from bigpca.solvers.nystrom import SIGNIFICANT, negative_eigenvalue

MORE = ", or use more landmarks"
FLOAT64, FLOAT32 = (float(np.finfo(dtype).eps) for dtype in (np.float64, np.float32))
MISSED_BY_SINGLE = 1e-3  # of an eigenvalue of the landmarks, beyond which features in float32 do not do
MAX_AMPLIFICATION = 1.01 * truncation_for(float(np.finfo(np.float32).eps)) ** -0.5  # by a T made for float32
# Share of the trace, by convention: ordinary fits of narrow kernels miss half of it, and have bounds. Theory gives no
# share: landmarks by the law of RPCholesky miss in expectation at most 1 + eps times what the best axes miss (Chen,
# Epperly, Tropp & Webber 2023), and what these miss is not known.
MISSED = 0.9
CHUNK_BYTES = 32 << 20  # of features computed at a time


def features_of(
    kernel: Kernel,
    landmarks: Landmarks,
    shift: Vector,
    precision: float,
    threads: int | None,
    wanted: int | None = None,
) -> LandmarkMap:
    """Return the features of landmarks; K_mm and its factor are in float64 whatever the dtype of the rows.

    Features in float32 have fewer directions, unless ``wanted`` components (None for all) need the others: then those
    of float64, in which the read is made (:func:`pass_dtype`).

    Raises
    ------
    ValueError
        If all images of landmarks have length 0, or if they show that the kernel is not positive semi-definite.
    """
    found = LandmarkMap(kernel, landmarks.rows, np.zeros((0, 0)), shift, landmarks.indices)
    K_mm = found.block()
    if kernel.taken_on_trust:
        rounding = 10 * float(np.finfo(landmarks.rows.dtype).eps) * float(norm_of(K_mm))
        least = negative_eigenvalue(K_mm, rounding, threads=threads)
        reject_contradicted(
            kernel, None if least is None else f"the matrix of {len(K_mm)} landmarks has the eigenvalue {least:.3g}"
        )
    reject_underflow(kernel, float(np.trace(K_mm)), f"{len(K_mm)} landmarks", drawn=True)
    # Directions that rounding leaves in K_mm are dropped: of a stored matrix, half an eps of its own precision.
    stored = kernel.stored_eps(landmarks.rows.dtype)
    least, entries = max(truncation_for(FLOAT64), 10 * stored), max(FLOAT64, stored)
    T = landmark_transform(K_mm, least, precision=entries, equilibrated=True, threads=threads)
    if (truncation := truncation_for(precision)) > truncation_for(FLOAT64):
        T = _needed_columns(K_mm, T, truncation, wanted)
    return replace(found, transform=T)


def _needed_columns(K_mm: Matrix, T: Matrix, truncation: float, wanted: int | None) -> Matrix:
    """Return the columns of T (m, r) above a truncation, or all where the landmarks' own components need the others."""
    diagonal = np.maximum(np.diagonal(K_mm), 0.0)
    sizes = np.linalg.norm(np.sqrt(diagonal)[:, None] * T, axis=0) ** -2  # the eigenvalues of the equilibrated K_mm
    kept = int(np.count_nonzero(sizes > truncation * sizes[0]))
    if kept == len(sizes) or wanted == 0:
        return T[:, :kept]
    B = diagonal[:, None] * T * sizes  # K_mm T, of those eigenvectors
    B -= B.mean(axis=0)
    least = truncation_for(FLOAT64)
    if wanted is None:
        squares = np.einsum("ij,ij->j", B, B)
        return T if squares[kept:].sum() > MISSED_BY_SINGLE * squares.sum() else T[:, :kept]
    # An eigenvalue of B'B is at least that of some columns, and at most that of the kept ones and |B'B|_2 of the others
    # (Aronszajn), which is at most max K_ii times the largest size.
    first = B[:, : min(kept, 4 * wanted)]
    below = np.linalg.eigvalsh(first.T @ first)[::-1]
    smallest = max(float(below[wanted - 1]) if wanted <= len(below) else 0.0, least * float(below[0]))
    if diagonal.max() * sizes[kept] <= MISSED_BY_SINGLE * smallest:
        return T[:, :kept]
    count, few, device = min(wanted, len(sizes)), min(wanted, kept), device_of_solve(len(sizes))
    with device.precise():
        S = device.product(device.put(B), device.put(B))
    whole, part = top_eigenvalues(S, count), np.zeros(count)
    part[:few] = top_eigenvalues(S[:kept, :kept], few)
    return T if (whole - part > MISSED_BY_SINGLE * np.maximum(whole, least * whole[0])).any() else T[:, :kept]


def features_dtype(rows: Rows, kernel: Kernel, m: int) -> DType:
    """Return the dtype in which the kernel is evaluated: float64 if a pass is small, else the working dtype."""
    return product_dtype(rows.dtype, rows.n_rows * m * (kernel.entry_flops(priced(rows).form) + 3.0 * m))


def pass_dtype(rows: Rows, features: LandmarkMap) -> DType:
    """Dtype of the rows of a pass: float64, too, if T magnifies the rounding of float32 more than one made for it."""
    if features.amplification > MAX_AMPLIFICATION:
        return np.dtype(np.float64)
    return features_dtype(rows, features.kernel, len(features.landmarks))


def features_read(rows: Rows, kernel: Kernel, m: int) -> Read[Folded[LandmarkMoments]]:
    """Declare one read of X that maps rows to the features of m landmarks and accumulates their moments."""
    planned = LandmarkMap.planned(kernel, m, rows.n_columns)
    template = LandmarkMoments.of(rows.n_columns, planned)
    read = Read.into(rows, "features", template, refinable=True, dtype=features_dtype(rows, kernel, m))
    evaluations = float(rows.n_rows) * m
    # A row has m kernel values, which are multiplied by T (m, r), r <= m; the result is squared.
    return read.costing(
        evaluations=evaluations,
        flops=evaluations * (kernel.entry_flops(priced(rows).form) + (2.0 * m + 1)),
        shared_by=max(1, min(HELD_TILES, -(-read.cost.block_rows // planned.tile_rows))),
    )


def fold_features(run: Run, read: Read[Folded[LandmarkMoments]], features: LandmarkMap) -> KeptFeatures:
    """Return the moments of the features of all rows: one read of X, declared by :func:`features_read`."""
    # The precision depends on T, which is known now only. Rows are not shifted: kernels subtract their own shift, and
    # features are accumulated about the mean of their first block.
    rows = read.rows
    exact = read.holding(LandmarkMoments.of(rows.n_columns, features)).costing(dtype=pass_dtype(rows, features))
    found = exact(run, shift=np.zeros(rows.n_columns))  # one pass over X
    run.add_evaluations(found.state.evaluations)
    return KeptFeatures(features, found.state, found.state.moments.count, found.omitted, run.evaluations)


def solve_features(kept: KeptFeatures, settings: KernelSettings) -> KernelSpectrum:
    """Compute the kernel principal components from the moments of the features.

    ``eig(HBB'H)`` are the eigenvalues of the features' scatter; with eigenvectors V (r, k) the scores are
    ``(B - mean) V = k(x, L) T V - mean'V``.
    """
    features, state = kept.features, cast("LandmarkMoments", kept.state)
    moments, diagonal, residual = state.moments, state.diagonal, state.residual
    reject_underflow(features.kernel, diagonal)
    # The nonzero eigenvalues of H B B'H are those of B'H B (r, r), the scatter of the features about the mean over all
    # rows. It is positive semi-definite: negative eigenvalues are rounding.
    everything, vectors = top_eigenpairs(unpack(moments.packed, moments.n_features), threads=settings.threads)
    everything = np.maximum(everything, 0.0)
    reject_contradicted(features.kernel, _excess(everything, state, features))
    # trace(HKH) is trace(H B B'H) and that of H (K - B B') H, which is at most trace(K - B B'), the residual.
    n, total = kept.n_samples_, float(everything.sum()) + residual
    rank = max(1, int(np.count_nonzero(everything > len(everything) * FLOAT64 * everything[0])))
    shown, remedy = f"{len(everything)} landmarks show", "Use more landmarks, or fewer components."
    k = shown_components(settings, everything, total, (n, n), shown, remedy, weight=moments.weight, most=rank)
    V = fix_signs(vectors[:k]).T  # (r, k)
    # HKH - HBB'H is positive semi-definite, its trace at most the residual's: that bounds the eigenvalues of HKH.
    slack = features.rounding(diagonal, state.precision)
    bounds = trace_bounds(everything, k, total, slack)
    captured = np.array(captured_variance_bounds(everything, k, total, slack))
    share = np.minimum(captured / total, 1.0) if total > 0 else np.ones(2)
    certificate = Certificate(np.column_stack([bounds.lower, bounds.upper]), None, share, bounds.confidence)
    found = kept.solved(everything[:k], total, landmark_expansion(features, V, moments.mean), moments.weight_sums)
    missed = residual / diagonal if diagonal > 0 else 0.0
    return replace(found, certificate=certificate, trace_error_=missed, rank_=moments.n_features)


def completed_features(kept: KeptFeatures, settings: KernelSettings) -> KernelSpectrum:
    """Return :func:`completed` components of the moments of the features."""
    found, state, features = solve_features(kept, settings), cast("LandmarkMoments", kept.state), kept.features
    moments, largest = state.moments, float(found.eigenvalues_[0])
    rounding = max(len(features.landmarks) * FLOAT64, min(state.precision, FLOAT32)) * largest
    # Features far from 0 leave in their scatter the rounding of n |mean|^2.
    rounding += 10 * FLOAT64 * moments.weight * float(moments.mean @ moments.mean)
    # Where not even the largest eigenvalue is above 0 for certain, its upper bound says what rounding may add.
    if found.certificate is not None and found.certificate.eigenvalue_bounds[0, 0] <= 0:
        warn_alike(found.eigenvalues_, float(found.certificate.eigenvalue_bounds[0, 1]))
    where = f"the features of {len(features.landmarks)} landmarks have"
    return completed(found, settings.n_components, rounding, where, MORE)


def _excess(values: Vector, state: LandmarkMoments, features: LandmarkMap) -> str | None:
    """Return evidence against a kernel that is positive semi-definite by declaration only: |B(x)|^2 above k(x, x)."""
    if not features.kernel.taken_on_trust:
        return None
    # K >= B B' bounds the sum of |b(x)|^2, which is trace(B'H B) + n |mean|^2, by that of k(x, x).
    moments, trace = state.moments, state.diagonal
    found = float(values.sum() + moments.weight * (moments.mean @ moments.mean))
    rounding = rounding_slack(trace, precision=state.precision * features.amplification)
    if found <= trace * (1 + SIGNIFICANT) + rounding:
        return None
    return (
        f"the squares of the features of its {len(features.landmarks)} landmarks sum to {found:.3g}, over its trace, "
        f"{trace:.3g}"
    )


def landmark_expansion(features: LandmarkMap, V: Matrix, mean: Vector) -> Expansion:
    """Return the scores ``(B - mean) V`` as an expansion over the landmarks, in the precision that they require.

    The mean of ``k(x, L)`` over all rows is ``K_mm c`` with the weights ``c = T mean`` of the mean of the images.
    """
    # (B - mean) V = k(x, L) T V - mean'V: coefficients of the landmarks, and a constant.
    T, device = features.transform, device_of_solve(len(features.transform))
    weights = T @ mean
    expansion = Expansion(
        features.kernel,
        features.shift,
        References(features.landmarks, None, features.indices),
        T @ V,
        mean @ V,
        weights,
        float(mean @ mean),
        np.zeros(len(T)),
    )
    with device.precise():
        # k(L, L) c, the product of each landmark with the mean: found once, it centres the landmarks of other rows.
        centre = expansion.products(features.landmarks.astype(np.float64), weights[:, None], device=device)[:, 0]
    return replace(expansion, centre=centre).in_needed_precision(device)


def tutorial_spectrum(run: Run, n: int, features: LandmarkMap, settings: KernelSettings) -> KernelSpectrum:
    """Williams & Seeger's extension with landmark centring (tutorial, eqs. 62-63): no pass beyond the choice of
    landmarks.

    Eigenpairs (lambda_q, u) of the landmarks' centred block give ``lambda = (n / m) lambda_q``, and scores
    ``k_c(x, L) u / sqrt(lambda_q)``, centred by the landmarks' means.

    NOTE: the factor n / m is right for uniform sampling only. NOTE: eq. 63's vectors have length 1 with
    ``sqrt(m / n)``, not ``sqrt(n / m)``; the scores here are those of the features form, of variance ``lambda / n``
    over the landmarks.
    """
    K = features.block()
    m, means = len(K), K.mean(axis=1)
    # H K_mm H: centred by the means over the landmarks alone.
    double_centre(centred := K.copy())
    given = settings.n_components
    values, vectors = top_eigenpairs(centred, threads=settings.threads)
    # What rounding leaves of eigenvalues is 0, and so are the coefficients of their axes.
    entries = 10 * features.kernel.stored_eps(features.landmarks.dtype) * float(norm_of(K))
    rounding = rounding_of(values, means, entries)
    rank, number = max(1, int(np.count_nonzero(values > rounding))), counted(given)
    if number is None:
        k = rank if given is None else resolve_components(given, values, float(values.sum()), m, m)
    else:
        k = min(number, m)
    coefficients = axis_coefficients(fix_signs(vectors[:k]).T, values[:k], rounding)
    # The columns of A = H V / sqrt(lambda_q) sum to 0, so centring k(x, L) leaves (k(x, L) - means') A.
    references = References(features.landmarks, None, features.indices)
    expansion = centred_expansion(features.kernel, features.shift, references, coefficients, means)
    expansion = expansion.in_needed_precision()
    # Eigenvalues of n rows are n / m times those of m landmarks (eq. 62), and so is their sum.
    total = float(values.sum()) * n / m
    run.add_evaluations(m * m)
    kept = KeptFeatures(features, None, n, 0, run.evaluations)
    found = replace(kept.solved(values[:k] * n / m, total, expansion), rank_=rank)
    return completed(found, given, rounding * n / m, f"the centred matrix of {m} landmarks has", MORE)


@dataclass(frozen=True)
class Choice:
    """How a fit will choose its landmarks.

    Attributes
    ----------
    count : int
    sampling : str, or ndarray
    by_default : bool
        Whether no number was asked for: the count is then at most the number of rows that are not left out.
    """

    count: int
    sampling: str | Array
    by_default: bool = False

    @classmethod
    def of(cls, n_landmarks: int | None, sampling: str | ArrayLike, n: int, by_default: int) -> Choice:
        """Return the choice among n rows; raises ValueError for more landmarks than rows."""
        if not isinstance(sampling, str):
            given = landmark_values(sampling)
            return cls(len(given) if n_landmarks is None else n_landmarks, given)
        m = by_default if n_landmarks is None else n_landmarks
        if m > n:
            raise ValueError(f"n_landmarks = {m} is more than the {n} rows of X that count. Use {n} or fewer.")
        return cls(m, sampling, n_landmarks is None)

    @classmethod
    def like(cls, kept: KeptFeatures) -> Choice:
        """Return the choice of a fit: none of its rows is drawn again."""
        m = len(kept.features.landmarks)
        return cls(m, np.arange(m))

    def request(self, rows: Rows, settings: KernelSettings) -> LandmarkRequest:
        """Return the request for the landmarks, without the run."""
        return LandmarkRequest(
            rows, settings.kernel, self.count, settings.seed, threads=settings.threads, fewer=self.by_default
        )

    def describe(self) -> dict[str, object]:
        """Return what identifies the choice in fingerprints."""
        sampling = self.sampling if isinstance(self.sampling, str) else landmark_values(self.sampling).tolist()
        return {"count": self.count, "sampling": sampling}


@dataclass(frozen=True)
class LandmarksFit(KernelFit):
    """A fit that begins with the choice of landmarks, or the read of rows that are added to those of such a fit.

    Attributes
    ----------
    choice : Choice
    like : KeptFeatures or None
        Those of the rows before, whose landmarks remain.
    """

    depends_on: ClassVar[tuple[str, ...]] = ("settings.kernel", "settings.seed", "choice")

    choice: Choice
    like: KeptFeatures | None = field(default=None, kw_only=True)

    @property
    def solver(self) -> str:
        """Name of the solver, with the sampling."""
        sampling = self.choice.sampling
        return f"landmarks ({sampling if isinstance(sampling, str) else 'given'})"

    def choosing_passes(self) -> tuple[Declared, ...]:
        """Declare the reads that choose the landmarks, unless they are chosen already."""
        if self.like is not None:
            return ()
        rows = self.rows
        chosen = landmark_passes(self.choice.sampling, self.choice.request(rows, self.settings))
        return (self.first, *chosen)

    def features_of_fit(self, run: Run, precision: float, wanted: int | None = None) -> LandmarkMap:
        """Choose landmarks and return their features, or those of the fit to the rows before."""
        if self.like is not None:
            return self.like.features
        settings, shift = self.settings, self.first(run)
        request = replace(self.choice.request(self.rows, settings), run=run, shift=shift)
        landmarks = select_landmarks(self.choice.sampling, request)
        return features_of(settings.kernel, landmarks, shift, precision, settings.threads, wanted)

    @property
    def notes(self) -> tuple[str, ...]:
        if self.precision == FLOAT64:
            return ()
        return (
            f"features are computed in float32, without directions below {truncation_for(self.precision):g} of the "
            "landmarks' largest; in float64 where the components need them",
        )

    @property
    def precision(self) -> float:
        """eps of the features."""
        return float(np.finfo(features_dtype(self.rows, self.settings.kernel, self.choice.count)).eps)

    def solve_cost(self) -> SolveCost:
        m = self.choice.count
        between = (self.like is None) * 2.0 * m * m * self.settings.kernel.flops_per_entry(self.rows.n_columns)
        return SolveCost(14.0 * m**3, between, 8 * 6 * m**2)

    n_references = of_part("choice", "count")


@dataclass(frozen=True)
class NystromFit(LandmarksFit):
    """Landmarks, and the moments of the features of all rows.

    Attributes
    ----------
    extended : bool
        Whether components are those of the landmarks, extended to other rows, without a further read.
    """

    extended: bool = field(default=False, kw_only=True)

    @property
    def account(self) -> str:
        return f"{self.choice.count} landmarks, " + (
            "no pass beyond their choice" if self.extended else "features of all rows"
        )

    @cached_property
    def features(self) -> Read[Folded[LandmarkMoments]]:
        """The read of the features."""
        return features_read(self.rows, self.settings.kernel, self.choice.count)

    def passes(self) -> tuple[Declared, ...]:
        if self.like is not None:
            return (self.features,)
        return (*self.choosing_passes(), *(() if self.extended else (self.features,)), *self.regression)

    def read(self, run: Run) -> KeptFeatures:
        """Choose landmarks, if there are none, and read X once more."""
        # An exact PCA in m dimensions: of the images K_nm K_mm^(-1/2), whose products are K_nm K_mm^(-1) K_mn.
        features = self.features_of_fit(run, self.precision, counted(self.settings.n_components))
        return fold_features(run, self.features, features)

    def spectrum(self, run: Run) -> KernelSpectrum:
        if self.extended:
            return tutorial_spectrum(run, self.rows.n_rows, self.features_of_fit(run, FLOAT64), self.settings)
        kept = self.read(run)
        found, m = completed_features(kept, self.settings), len(kept.features.landmarks)
        _warn_missed(found, cast("LandmarkMoments", kept.state).residual, m, self.rows.n_rows)
        return found


def _warn_missed(spectrum: KernelSpectrum, residual: float, m: int, n: int) -> None:
    """Warn where landmarks miss nearly all of the trace, and more than all components hold: it may hold larger ones.

    Warns
    -----
    ApproximationWarning
    """
    held, missed = float(spectrum.eigenvalues_.sum()), spectrum.trace_error_
    if m < n and missed is not None and missed > MISSED and residual > held:
        warn_approximation(
            f"{m} landmarks miss {missed:.1%} of the trace of the kernel matrix (trace_error_), and the "
            f"{len(spectrum.eigenvalues_)} components hold only {held / residual * missed:.1%} of it, so larger "
            "components may be missing. Use more landmarks (n_landmarks), or a wider kernel."
        )


@dataclass(frozen=True)
class FeatureMap(RowMap):
    """The exact features of rows, in ``dtype`` or the working dtype, whichever is wider; a row map."""

    kernel: Kernel
    dtype: DType

    def output_dtype(self, dtype: DType) -> DType:
        """The wider of the working dtype and that of the map."""
        return np.result_type(working_dtype(dtype), self.dtype)

    def apply(self, rows: Array, where: str) -> Array:
        """Return ``phi(x)`` (b, D); rows that are not finite have NaN features, which the pass handles."""
        # Kernels reject rows that are not finite, so these are mapped apart from the others.
        bad = ~np.isfinite(rows).all(axis=1)
        dtype = self.output_dtype(rows.dtype)
        values = rows.astype(dtype, copy=False)
        if not bad.any():
            return self.kernel.features(values)
        features = np.full((len(rows), self.kernel.feature_width(rows.shape[1]) or 0), np.nan, dtype)
        if not bad.all():
            features[~bad] = self.kernel.features(values[~bad])
        return features

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The features, and about as much while they are computed."""
        return 2 * rows * (self.kernel.feature_width(d) or 0) * itemsize, 0


@dataclass(frozen=True)
class FeaturesFit(KernelFit):
    """PCA of the features of rows, which are mapped as they are read.

    Attributes
    ----------
    given : Rows
        X; ``rows`` are its features.
    pca : Fit
        Of the features.
    """

    depends_on: ClassVar[tuple[str, ...]] = ("settings.kernel", "pca")
    solver: ClassVar[str] = "features"

    given: Rows
    pca: Fit[PCAResult]

    @classmethod
    def choices(cls, rows: Rows, settings: KernelSettings) -> Sequence[KernelFit]:
        """Return the fit, by the solver that suits the number of features.

        Raises
        ------
        ValueError
            For a kernel without an exact finite feature map.
        """
        d, width = rows.n_columns, settings.kernel.feature_width(rows.n_columns)
        if width is None:
            raise ValueError(
                f'{settings.kernel} has no exact finite feature map of {d} columns; solver="features" needs one. Use '
                f'solver="auto", or NystromKernelPCA.'
            )
        # Features that are much wider than rows are made of fewer rows at a time, in chunks of at most 32 MiB.
        most = None if width <= 2 * d else max(1, CHUNK_BYTES // (8 * max(1, width)))
        features = FeatureMap(settings.kernel, product_dtype(rows.dtype, float(rows.n_rows) * width**2))
        mapped = project_lazily(rows.X, chained(tuple(step.f for step in rows.steps), features), width, chunk_rows=most)
        # No rows are added to exact kernel PCA, so no moments are kept for them.
        pca = Settings(
            keep_state_bytes=0, **{one.name: getattr(settings, one.name) for one in fields(IterationSettings)}
        )
        own = rows.order
        made = Rows.opened(mapped).begun(
            nan_policy=rows.nan_policy, in_process=own.in_process, memory_limit=own.memory_limit
        )
        return [cls(made, settings, rows, plan_fit(made, pca, "auto"))]

    @classmethod
    def offered(cls, rows: Rows, settings: KernelSettings) -> bool:
        """Whether the kernel has features, at least as many as components; further eigenvalues are 0."""
        width, given = settings.kernel.feature_width(rows.n_columns), settings.n_components
        return width is not None and not (isinstance(given, int | np.integer) and given > width)

    @cached_property
    def lessons(self) -> tuple[Lesson, ...]:
        return lessons(self.given)

    @property
    def declared(self) -> tuple[PassCost, ...]:
        return costs((*counting_reads(self.given), *(one.read for one in self.lessons), *self.passes()))

    @property
    def account(self) -> str:
        return (
            f"{self.settings.kernel} has {self.rows.n_columns} exact features; {self.pca.solver} PCA of them: "
            f"{self.pca.plan.reason}"
        )

    notes = of_part("pca", "notes")

    @property
    def sample(self) -> tuple[FirstRows, ...]:
        """The read of the rows that determine the precision of scores."""
        if self.given.in_memory or scored_in_float64(self.settings.kernel, self.given.dtype):
            return ()
        return (FirstRows(self.given, self.given.layout(0), "precision of scores"),)

    def passes(self) -> tuple[Declared, ...]:
        return (*self.pca.passes(), *self.sample)

    def solve_cost(self) -> SolveCost:
        return self.pca.solve_cost()

    def _scored_rows(self, run: Run) -> Array:
        """Return the rows that are scored in both precisions: the first, or evenly spaced ones of X in memory."""
        given = self.given
        if scored_in_float64(self.settings.kernel, given.dtype):
            return np.zeros((0, 0))
        # Rows in memory, spread over them all, cost no read; of other X the first are read again, as ``sample`` says.
        if given.in_memory and given.source is not None:
            rows = given.source.read(0, given.n_rows)
        else:
            rows = self.sample[0].values(run)
        rows = form_of(rows).dense(spread_rows(rows, SCORED_ROWS))
        return rows[np.isfinite(rows).all(axis=1)]

    def spectrum(self, run: Run) -> KernelSpectrum:
        for cost in counting_reads(self.given):
            run.read_beside(cost)
        found = self.pca.run(run)
        n, mean = found.n_samples_, found.mean_
        projection = FeatureProjection(self.settings.kernel, mean, found.components_)
        scored = self._scored_rows(run)
        # Variances have the divisor n - 1, eigenvalues of HKH none; shares of the trace do not depend on it.
        certificate = found.certificate
        if certificate is not None:
            residuals = None if certificate.residuals is None else certificate.residuals * (n - 1)
            bounds = certificate.eigenvalue_bounds * (n - 1)
            certificate = replace(certificate, eigenvalue_bounds=bounds, residuals=residuals)
        eigenvalues = found.explained_variance_ * (n - 1)
        spectrum = KernelSpectrum(
            n, found.n_omitted_, eigenvalues, found.total_variance_ * (n - 1), projection, 0, certificate
        )
        precision = self.pca.precision if isinstance(self.pca, CovarianceFit) else 0.0  # the others correct float32
        # The images of the rows have no part in axes whose eigenvalue is 0 to rounding.
        largest = float(eigenvalues.max(initial=0.0))
        rounding = FLOAT64 * (max(n, len(mean)) * largest + 10 * n * float(mean @ mean))
        rounding = max(rounding, MULTIPLIED * precision * largest)
        where = f"the features of {self.settings.kernel} have"
        spectrum = completed(spectrum, self.settings.n_components, rounding, where)
        return replace(spectrum, expansion=cast(FeatureProjection, spectrum.expansion).in_needed_precision(scored))
