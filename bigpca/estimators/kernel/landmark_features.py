"""Kernel PCA on Nyström features: landmarks L, features ``B = k(X, L) T``, and PCA of B about the mean over ALL rows.

The features span the images of the landmarks, so ``K >= B B'``: the residual ``k(x, x) - |B(x)|^2``, summed over all
rows, bounds the error of every eigenvalue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, DType, norm_of
from bigpca.estimators.kernel.expansion import Expansion
from bigpca.estimators.kernel.spectrum import KernelSettings, KernelSpectrum
from bigpca.estimators.linear.certified import Certificate
from bigpca.estimators.linear.spectrum import counted
from bigpca.estimators.shared.references import References
from bigpca.kernels.base import Kernel
from bigpca.landmarks import Landmarks
from bigpca.passes.accumulators.dot_matrix import double_centre
from bigpca.passes.accumulators.kernel_product import reject_contradicted
from bigpca.passes.accumulators.landmark_blocks import diagonal_of, prepare_landmarks, square_block
from bigpca.passes.accumulators.landmark_moments import LandmarkMap, LandmarkMoments
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import Folded, fold, row_pass
from bigpca.passes.reading.blocks import product_dtype
from bigpca.passes.rows import RowInput
from bigpca.solvers.certificates import captured_variance_bounds, rounding_slack, trace_bounds
from bigpca.solvers.components import resolve_components, resolve_partial
from bigpca.solvers.eigh import fix_signs, top_eigenpairs
from bigpca.solvers.features import landmark_transform, truncation_for
from bigpca.solvers.indefinite import SIGNIFICANT, negative_eigenvalue
from bigpca.triangles import unpack

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
ALIKE = (
    128.0  # eps in three sums of a matrix product whose terms are all equal: up to 35 in each, measured for n to 8192
)
MAX_AMPLIFICATION = 1.01 * truncation_for(float(np.finfo(np.float32).eps)) ** -0.5  # by a T made for float32


@dataclass(frozen=True)
class LandmarkFeatures:
    """The features of given landmarks under one kernel.

    Attributes
    ----------
    kernel : Kernel
    landmarks : ndarray of shape (m, d)
    transform : ndarray of shape (m, r)
        T.
    shift : ndarray of shape (d,)
    indices : ndarray of shape (m,), or None
    """

    kernel: Kernel
    landmarks: Array
    transform: Matrix
    shift: Vector
    indices: NDArray[np.int64] | None = None

    @property
    def references(self) -> References:
        """The landmarks, with which new rows are compared."""
        return References(self.landmarks, None, self.indices)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Row numbers of the landmarks, or their positions if they are not rows of X."""
        return np.arange(len(self.landmarks)) if self.indices is None else self.indices

    def block(self) -> Matrix:
        """Return K_mm (m, m) in float64."""
        return square_block(self.kernel, self.landmarks, self.numbers, self.shift)

    @property
    def amplification(self) -> float:
        """The factor by which T magnifies the rounding of kernel values, relative to ``sqrt(k(x, x) k(l, l))``.

        Largest column of ``diag(K_mm)^(1/2) T``: 1 over the root of the smallest eigenvalue kept of the scaled K_mm.
        """
        prepared = prepare_landmarks(self.kernel, self.landmarks.astype(np.float64), self.numbers, self.shift)
        lengths = np.sqrt(diagonal_of(self.kernel, prepared))
        return max(1.0, float(np.linalg.norm(lengths[:, None] * self.transform, axis=0).max()))


def features_of(
    kernel: Kernel, landmarks: Landmarks, shift: Vector, precision: float, threads: int | None
) -> LandmarkFeatures:
    """Return the features of landmarks; K_mm and its factor are in float64 whatever the dtype of the rows.

    Raises
    ------
    ValueError
        If all images of landmarks have length 0, or if they show that the kernel is not positive semi-definite.
    """
    found = LandmarkFeatures(kernel, landmarks.rows, np.zeros((0, 0)), shift, landmarks.indices)
    K_mm = found.block()
    if kernel.taken_on_trust:
        rounding = 10 * float(np.finfo(landmarks.rows.dtype).eps) * float(norm_of(K_mm))
        least = negative_eigenvalue(K_mm, rounding, threads=threads)
        reject_contradicted(
            kernel, None if least is None else f"the matrix of {len(K_mm)} landmarks has the eigenvalue {least:.3g}"
        )
    T = landmark_transform(K_mm, truncation_for(precision), equilibrated=True, threads=threads)
    if not T.size:
        raise ValueError(
            f"k(x, x) = 0 for all {len(landmarks.rows)} landmarks under {kernel}, so they span nothing. Choose other "
            f"landmarks, or another kernel."
        )
    return replace(found, transform=T)


def features_dtype(rows: RowInput, kernel: Kernel, m: int) -> DType:
    """Return the dtype in which the kernel is evaluated: float64 if a pass is small, else the working dtype."""
    flops = rows.n_rows * m * (entry_flops(rows, kernel) + 3.0 * m)
    return product_dtype(rows.dtype, flops)


def entry_flops(rows: RowInput, kernel: Kernel) -> float:
    """Return the operations of one kernel value between a row and a landmark."""
    return kernel.entry_flops(rows.mapped_form())


def pass_dtype(rows: RowInput, features: tuple[LandmarkFeatures, ...]) -> DType:
    """Dtype of the rows of a pass: float64, too, if a T magnifies the rounding of float32 more than one made for it."""
    if max(f.amplification for f in features) > MAX_AMPLIFICATION:
        return np.dtype(np.float64)
    return features_dtype(rows, features[0].kernel, len(features[0].landmarks))


def features_pass(rows: RowInput, kernels: tuple[Kernel, ...], m: int) -> PassPlan:
    """Declare one read of X that maps rows to the features of m landmarks and accumulates their moments."""
    d = rows.n_columns
    landmarks, transforms = np.broadcast_to(np.float32(0), (m, d)), (np.broadcast_to(0.0, (m, m)),) * len(kernels)
    template = LandmarkMoments.of(d, LandmarkMap(kernels, landmarks, transforms, np.zeros(d)))
    cost = row_pass(
        rows, "features", [template], cut_bytes=template.state_bytes, work=0.0, refinable=True,
        dtype=features_dtype(rows, kernels[0], m),
    )  # fmt: skip
    evaluations = float(rows.n_rows) * m
    return replace(
        cost,
        evaluations=evaluations,
        flops=evaluations * (entry_flops(rows, kernels[0]) + len(kernels) * (2.0 * m + 1)),
    )


def fold_features(
    run: Run, cost: PassPlan, rows: RowInput, features: tuple[LandmarkFeatures, ...]
) -> Folded[LandmarkMoments]:
    """Return the moments of the features of all rows: one read of X, declared by :func:`features_pass`."""
    first = features[0]
    mapped = LandmarkMap(
        tuple(f.kernel for f in features),
        first.landmarks,
        tuple(f.transform for f in features),
        first.shift,
        first.indices,
    )
    template, exact = LandmarkMoments.of(rows.n_columns, mapped), replace(cost, dtype=pass_dtype(rows, features))
    found = fold(run, exact, rows, template, shift=np.zeros(rows.n_columns))  # one pass over X
    run.add_evaluations(found.state.evaluations)
    return found


def solve_features(
    state: LandmarkMoments, which: int, features: LandmarkFeatures, settings: KernelSettings, *, omitted: int = 0
) -> KernelSpectrum:
    """Compute the kernel principal components from the moments of the features.

    ``eig(HBB'H)`` are the eigenvalues of the features' scatter; with eigenvectors V (r, k) the scores are
    ``(B - mean) V = k(x, L) T V - mean'V``.
    """
    moments: Moments = state.moments[which]
    n, T = moments.count, features.transform
    everything, vectors = top_eigenpairs(unpack(moments.packed, moments.n_features), threads=settings.threads)
    everything = np.maximum(everything, 0.0)
    reject_contradicted(features.kernel, _excess(everything, state, which, features))
    residual = float(state.residuals[which])
    total = float(everything.sum()) + residual
    k = _components(settings, everything, total, n, moments.weight)
    V = fix_signs(vectors[:k]).T  # (r, k)
    expansion = landmark_expansion(features, V, moments.mean)
    certificate = _certify(everything, k, total, state, which, features)
    diagonal = float(state.diagonals[which])
    return KernelSpectrum(
        n, omitted, everything[:k], total, expansion, state.evaluations // len(state.moments), certificate,
        trace_error=residual / diagonal if diagonal > 0 else 0.0, rank=int(T.shape[1]),
        weight_sums=moments.weight_sums,
    )  # fmt: skip


def _excess(values: Vector, state: LandmarkMoments, which: int, features: LandmarkFeatures) -> str | None:
    """Return evidence against a kernel that is positive semi-definite by declaration only: |B(x)|^2 above k(x, x)."""
    if not features.kernel.taken_on_trust:
        return None
    moments, trace = state.moments[which], float(state.diagonals[which])
    found = float(values.sum() + moments.weight * (moments.mean @ moments.mean))
    rounding = rounding_slack(trace, precision=state.precision * features.amplification)
    if found <= trace * (1 + SIGNIFICANT) + rounding:
        return None
    return (
        f"the squares of the features of its {len(features.landmarks)} landmarks sum to {found:.3g}, over its trace, "
        f"{trace:.3g}"
    )


def landmark_expansion(features: LandmarkFeatures, V: Matrix, mean: Vector) -> Expansion:
    """Return the scores ``(B - mean) V`` as an expansion over the landmarks, in the precision that they require.

    The mean of ``k(x, L)`` over all rows is ``K_mm c`` with the weights ``c = T mean`` of the mean of the images.
    """
    T = features.transform
    weights = T @ mean
    expansion = Expansion(
        features.kernel, features.shift, features.references, T @ V, mean @ V, weights, float(mean @ mean),
        np.zeros(len(T)),
    )  # fmt: skip
    centre = expansion.products(features.landmarks.astype(np.float64), weights[:, None])[:, 0]
    return replace(expansion, centre=centre).in_needed_precision()


def _components(settings: KernelSettings, values: Vector, total: float, n: int, weight: float) -> int:
    """Return the number of components.

    Raises
    ------
    ValueError
        If a share or a rule requires more of the spectrum than the landmarks determine.
    """
    given, number = settings.n_components, counted(settings.n_components)
    rank = max(1, int(np.count_nonzero(values > len(values) * np.finfo(np.float64).eps * values[0])))
    if given is None:
        return rank
    if number is not None:
        return min(number, len(values))
    k = resolve_partial(given, values, total, n, n, weight)
    if k is None:
        share = float(values.sum()) / total if total > 0 else 1.0
        raise ValueError(
            f"n_components = {given!r} needs more of the spectrum than {len(values)} landmarks show: their features "
            f"hold {share:.3f} of the variance. Use more landmarks, or fewer components."
        )
    return min(k, rank)


def _certify(
    values: Vector, k: int, total: float, state: LandmarkMoments, which: int, features: LandmarkFeatures
) -> Certificate:
    """Bound the eigenvalues of HKH: ``HKH - HBB'H`` is positive semi-definite, with a trace of at most the residual's.

    T magnifies the rounding of kernel values. It does not magnify the rounding of sums over landmarks and rows, but
    that does not cancel if rows are alike.
    """
    diagonal = float(state.diagonals[which])
    slack = rounding_slack(diagonal, precision=state.precision * features.amplification)
    slack += ALIKE * state.precision * diagonal
    bounds = trace_bounds(values, k, total, slack)
    captured = np.array(captured_variance_bounds(values, k, total, slack))
    share = np.minimum(captured / total, 1.0) if total > 0 else np.ones(2)
    return Certificate(np.column_stack([bounds.lower, bounds.upper]), None, share, bounds.confidence)


def fit_landmarks(
    run: Run, rows: RowInput, settings: KernelSettings, landmarks: Landmarks, shift: Vector
) -> KernelSpectrum:
    """Fit to given landmarks in one pass over X."""
    precision = float(np.finfo(features_dtype(rows, settings.kernel, len(landmarks.rows))).eps)
    features = features_of(settings.kernel, landmarks, shift, precision, settings.threads)
    found = fold_features(run, features_pass(rows, (settings.kernel,), len(landmarks.rows)), rows, (features,))
    return replace(solve_features(found.state, 0, features, settings, omitted=found.omitted), state=found.state)


def tutorial_spectrum(run: Run, n: int, features: LandmarkFeatures, settings: KernelSettings) -> KernelSpectrum:
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
    centred = double_centre(K.copy())
    given = settings.n_components
    values, vectors = top_eigenpairs(centred, threads=settings.threads)
    rank = max(1, int(np.count_nonzero(values > m * np.finfo(np.float64).eps * values[0])))
    k = rank if given is None else min(resolve_components(given, values, float(values.sum()), m, m), m)
    V, used = fix_signs(vectors[:k]).T, values[:k] > m * np.finfo(np.float64).eps * values[0]
    coefficients = (V - V.mean(axis=0)) * (used / np.sqrt(np.where(used, values[:k], 1.0)))
    expansion = Expansion(
        features.kernel, features.shift, features.references, coefficients, means @ coefficients,
        np.full(m, 1.0 / m), float(means.mean()), means,
    ).in_needed_precision()  # fmt: skip
    total = float(values.sum()) * n / m
    run.add_evaluations(m * m)
    return KernelSpectrum(n, 0, values[:k] * n / m, total, expansion, run.evaluations, rank=rank)
