"""The functions that kernel models apply to rows: expansions over reference rows, ``score(x) = k(x, R) A - b``.

Exact kernel PCA expands over all training rows, Nyström's features over the landmarks; the centring is in A and b. The
same sums give the distance of a row's image to the subspace.

The precision of scores is chosen once, at the end of a fit, by scoring a sample of rows in float32 and in float64. It
is part of the model, so scores do not depend on which rows are mapped together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, DType, content_digest
from bigpca.estimators.shared.references import STREAM_BYTES, TILE_ROWS, References
from bigpca.kernels.base import Kernel
from bigpca.kernels.rows import FIXED_BYTES
from bigpca.passes.accumulators.landmark_blocks import landmark_block, prepare_landmarks
from bigpca.passes.reading.arithmetic import Values
from bigpca.passes.reading.layout import working_dtype

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
SCORED_ROWS = 256  # that are scored in both precisions, or a 16th of the references, but 32
SCORED_SHARE, MIN_SCORED = 16, 32
MAX_DIFFERENCE = 1e-4  # of a component's scores in float32 from those in float64, both in root mean square


@dataclass(frozen=True)
class Expansion:
    """``f(x) = k(x, R) A - b`` over reference rows R (p, d), computed as ``(k(x, R) - c') A - (b - c'A)``.

    Far from the origin all kernel values may be nearly equal: centring them first preserves the digits of the sums.

    Attributes
    ----------
    kernel : Kernel
        Resolved.
    shift : ndarray of shape (d,)
        Near the mean of the rows; see :meth:`bigpca.kernels.base.Kernel.prepare`.
    references : References
    coefficients : ndarray of shape (p, k); A
    offsets : ndarray of shape (k,); b
    mean_weights : ndarray of shape (p,)
        c, with which the mean of the images is ``sum_t c_t phi(r_t)``.
    mean_square : float
        Its squared length, ``c' k(R, R) c``.
    centre : ndarray of shape (p,); c
        Near the mean of ``k(x, R)`` over the rows of the fit.
    dtype : float32 or float64
        Precision in which float32 rows are compared with the references; see :meth:`in_needed_precision`.
    """

    kernel: Kernel
    shift: Vector
    references: References
    coefficients: Matrix
    offsets: Vector
    mean_weights: Vector
    mean_square: float
    centre: Vector
    dtype: DType = FLOAT64

    def __post_init__(self) -> None:
        # The memory order of a matrix affects the bits of its products, and a stored model is in row order.
        object.__setattr__(self, "coefficients", np.ascontiguousarray(self.coefficients))

    def in_needed_precision(self) -> Expansion:
        """Return the same map, in float32 if a sample of the references has the same scores as in float64, to 1e-4.

        One read of the references and :func:`scored_evaluations` kernel evaluations; none if they are float64.
        """
        if scored_in_float64(self.kernel, self.references.dtype):
            return replace(self, dtype=FLOAT64)
        count, A = scored_rows(self.references.shape[0]), self.coefficients
        scores = {dtype: np.zeros((count, A.shape[1])) for dtype in (FLOAT32, FLOAT64)}
        sample: dict[DType, object] = {}
        for first, references in self.references.tiles():
            if not sample:  # spread over all rows in memory, or over the first tile that is read
                rows = spread_rows(references if self.references.rows is None else self.references.rows, count)
                sample = {dtype: self._prepare(rows, dtype, 0) for dtype in scores}
                scores = {dtype: total[: len(rows)] for dtype, total in scores.items()}
            for dtype, total in scores.items():
                B = self._prepare_references(references, dtype, first)
                self._add(total, 0, sample[dtype], B, A, first, self.centre)
        left = self.offsets - self.centre @ A
        return replace(self, dtype=needed_precision(scores[FLOAT32] - left, scores[FLOAT64] - left))

    @property
    def takes_csr(self) -> bool:
        """Whether new rows may be sparse, compared as they are with dense references."""
        return self.kernel.accepts_csr

    def products(self, rows: Values, weights: Matrix, centre: Vector | None = None) -> Matrix:
        """Return ``k(rows, R) weights`` (b, l) in float64, or ``(k(rows, R) - centre') weights``; one read of the
        references.

        The smaller side, rows or references, is held prepared, and the other side is compared with it tile by tile.
        """
        dtype = np.result_type(working_dtype(rows.dtype), self.dtype)
        total = np.zeros((rows.shape[0], weights.shape[1]))
        if rows.shape[0] <= self.references.shape[0]:
            held = list(self._tiles(rows, dtype))
            for first, B in self._reference_tiles(dtype):
                for start, A in held:
                    self._add(total, start, A, B, weights, first, centre)
        else:
            references = list(self._reference_tiles(dtype))
            for start, A in self._tiles(rows, dtype):
                for first, B in references:
                    self._add(total, start, A, B, weights, first, centre)
        return total

    def squares(self, rows: Values) -> Vector:
        """Return ``k(x, x)`` (b,) of the rows."""
        tiles = self._tiles(rows, working_dtype(rows.dtype))
        return np.concatenate([np.zeros(0), *(self.kernel.diagonal_of(A) for _, A in tiles)])

    def _tiles(self, rows: Values, dtype: DType) -> Iterator[tuple[int, object]]:
        for i in range(0, rows.shape[0], TILE_ROWS):
            yield i, self._prepare(rows[i : i + TILE_ROWS], dtype, 0)

    def _reference_tiles(self, dtype: DType) -> Iterator[tuple[int, object]]:
        for first, rows in self.references.tiles():
            yield first, self._prepare_references(rows, dtype, first)

    def _add(
        self, total: Matrix, start: int, A: object, B: object, weights: Matrix, first: int, centre: Vector | None
    ) -> None:
        K = landmark_block(self.kernel, A, B) if self.references.indices is not None else self.kernel.block(A, B)
        W = weights[first : first + K.shape[1]]
        if centre is not None:
            exact = centre[first : first + K.shape[1]]
            near = exact.astype(K.dtype)
            K -= near  # almost no rounding, because both are nearly equal when cancellation matters
            total[start : start + len(K)] += (near - exact) @ W
        total[start : start + len(K)] += K @ W.astype(K.dtype, copy=False)

    def _prepare(self, rows: Values, dtype: DType, first: int) -> object:
        return self.kernel.prepare(rows.astype(dtype, copy=False), self.shift, first)

    def _prepare_references(self, rows: Array, dtype: DType, first: int) -> object:
        if self.references.indices is None:
            return self._prepare(rows, dtype, first)
        numbers = self.references.indices[first : first + len(rows)]
        return prepare_landmarks(self.kernel, rows.astype(dtype, copy=False), numbers, self.shift)

    def apply(self, rows: Values) -> Matrix:
        """Return ``f`` of rows (b, d)."""
        total = self.products(rows, self.coefficients, self.centre)
        total -= self.offsets - self.centre @ self.coefficients
        return total

    def distances(self, rows: Values) -> Vector:
        """Return ``k_c(x, x) - |f(x)|^2`` (b,), clipped at 0: ``k_c(x, x) = k(x, x) - 2 k(x, R) c + c' k(R, R) c``."""
        weights = np.column_stack([self.coefficients, self.mean_weights])
        values = rows.astype(np.float64)
        products = self.products(values, weights)
        scores = products[:, :-1] - self.offsets
        centred = self.squares(values) - 2 * products[:, -1] + self.mean_square
        distances: Vector = np.maximum(centred - np.einsum("ij,ij->i", scores, scores), 0.0)
        return distances

    def bytes_for(self, d: int, rows: int, itemsize: int, columns: int) -> int:
        """Peak bytes of :meth:`products` beside its input, with ``columns`` columns of weights."""
        itemsize = max(itemsize, self.dtype.itemsize)
        held = min(rows, self.references.shape[0]) + TILE_ROWS
        prepared = held * self.kernel.prepared_bytes(d, itemsize) + 2 * TILE_ROWS * d * itemsize
        tile = TILE_ROWS**2 * self.kernel.entry_bytes(itemsize) + FIXED_BYTES
        read = self.references.held_bytes if self.references.rows is None else 0
        return prepared + tile + read + 8 * (rows + 2 * TILE_ROWS) * columns

    def describe(self) -> dict[str, object]:
        """Digest of the expansion."""
        digest = content_digest(self.coefficients, self.offsets, self.shift, self.centre)
        return {
            "kernel": kernel_identity(self.kernel), "references": self.references.describe(), "digest": digest,
            "dtype": self.dtype.name,
        }  # fmt: skip


@dataclass(frozen=True)
class FeatureProjection:
    """``f(x) = (phi(x) - mean) components'`` by the exact finite feature map of a kernel.

    Attributes
    ----------
    kernel : Kernel
    mean : ndarray of shape (D,)
    components : ndarray of shape (k, D)
    dtype : float32 or float64
        Precision of the features of float32 rows; see :meth:`in_needed_precision`.
    """

    kernel: Kernel
    mean: Vector
    components: Matrix
    dtype: DType = FLOAT64

    @property
    def takes_csr(self) -> bool:
        """Never: a feature map makes rows dense."""
        return False

    @property
    def coefficients(self) -> Matrix:
        """Matrix (D, k) that multiplies the centred features."""
        return self.components.T

    def in_needed_precision(self, rows: Array) -> FeatureProjection:
        """Return the same map, in float32 if these finite rows have the same scores as in float64, to 1e-4."""
        if scored_in_float64(self.kernel, rows.dtype) or not len(rows):
            return replace(self, dtype=FLOAT64)
        with np.errstate(over="ignore", invalid="ignore"):  # then float64 is what they need
            return replace(self, dtype=needed_precision(self._scores(rows, FLOAT32), self._scores(rows, FLOAT64)))

    def _scores(self, rows: Array, dtype: DType) -> Matrix:
        features = self.kernel.features(rows.astype(dtype, copy=False))
        near = self.mean.astype(features.dtype)
        scores = (features - near) @ self.components.T.astype(features.dtype)
        return scores + (near - self.mean) @ self.components.T

    def apply(self, rows: Array) -> Array:
        """Return ``f`` of rows (b, d), a few thousand at a time."""
        dtype = np.result_type(working_dtype(rows.dtype), self.dtype)
        out = np.empty((len(rows), len(self.components)), working_dtype(rows.dtype))
        for i in range(0, len(rows), self.step):
            out[i : i + self.step] = self._scores(rows[i : i + self.step], dtype)
        return out

    def distances(self, rows: Array) -> Vector:
        """Return ``|phi(x) - mean|^2 - |f(x)|^2`` (b,), clipped at 0, from features in float64."""
        out = np.empty(len(rows))
        for i in range(0, len(rows), self.step):
            centred = self.kernel.features(rows[i : i + self.step].astype(np.float64)) - self.mean
            centred -= (centred @ self.components.T) @ self.components
            out[i : i + self.step] = np.einsum("ij,ij->i", centred, centred)
        return out

    @property
    def step(self) -> int:
        """Rows mapped at a time: 16 MiB of features."""
        return max(1, STREAM_BYTES // 2 // (8 * max(1, len(self.mean))))

    def bytes_for(self, d: int, rows: int, itemsize: int, columns: int) -> int:
        """Peak bytes beside the input: a step of features, three copies of it, and the result."""
        return 4 * 8 * self.step * max(1, len(self.mean)) + 8 * rows * columns

    def describe(self) -> dict[str, object]:
        """Digest of the map."""
        digest = content_digest(self.mean, self.components)
        return {"kernel": kernel_identity(self.kernel), "digest": digest, "dtype": self.dtype.name}


def kernel_identity(kernel: Kernel) -> object:
    """Return the identity of a kernel for a fingerprint; the representation of one with a Python function."""
    try:
        return kernel.describe()
    except TypeError:
        return repr(kernel)


def needed_precision(single: Matrix, double: Matrix) -> DType:
    """Return float32 if scores in it (s, k) differ by at most 1e-4 of each component's size from those in float64."""
    difference, size = (np.linalg.norm(scores, axis=0) for scores in (single - double, double))
    return FLOAT32 if bool((difference <= MAX_DIFFERENCE * size).all()) else FLOAT64


def scored_in_float64(kernel: Kernel, dtype: DType) -> bool:
    """Whether rows of this dtype are always compared in float64: float32 is not faster for strings."""
    return working_dtype(dtype) == FLOAT64 or kernel.accepts_strings


def scored_rows(p: int) -> int:
    """Return how many of p references are scored in both precisions.

    >>> scored_rows(20), scored_rows(1000), scored_rows(100_000)
    (20, 62, 256)
    """
    return min(p, max(MIN_SCORED, min(SCORED_ROWS, p // SCORED_SHARE)))


def scored_evaluations(kernel: Kernel, dtype: DType, p: int) -> int:
    """Return the kernel evaluations of :meth:`Expansion.in_needed_precision` with p references of this dtype."""
    return 0 if scored_in_float64(kernel, dtype) or not kernel.needs_rows else 2 * scored_rows(p) * p


def spread_rows(rows: Array, count: int) -> Array:
    """Return ``count`` rows at even distances, or all where there are fewer."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64))]
