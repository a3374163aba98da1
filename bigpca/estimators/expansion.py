"""Row maps of kernel models: every one is an expansion over reference rows, ``score(x) = k(x, R) A - b``.

Exact kernel PCA expands over all training rows, Nyström's features over the landmarks; the centring is in A and b. The
same sums give the distance of a row's image to the subspace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.estimators.references import STREAM_BYTES, TILE_ROWS, References, content_digest
from bigpca.kernels.base import Kernel
from bigpca.kernels.rows import FIXED_BYTES
from bigpca.passes.blocks import working_dtype
from bigpca.passes.landmark_blocks import landmark_block, prepare_landmarks

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Expansion:
    """``f(x) = k(x, R) A - b`` over reference rows R (p, d).

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
    """

    kernel: Kernel
    shift: Vector
    references: References
    coefficients: Matrix
    offsets: Vector
    mean_weights: Vector
    mean_square: float

    def products(self, rows: NDArray[Any], weights: Matrix) -> Matrix:
        """Return ``k(rows, R) weights`` (b, l) in float64; one read of the references.

        The side that is smaller, rows or references, is held prepared, and the other goes past it tile by tile.
        """
        dtype = working_dtype(rows.dtype)
        total = np.zeros((len(rows), weights.shape[1]))
        if len(rows) <= self.references.shape[0]:
            held = list(self._tiles(rows, dtype))
            for first, B in self._reference_tiles(dtype):
                for start, A in held:
                    self._add(total, start, A, B, weights, first)
        else:
            references = list(self._reference_tiles(dtype))
            for start, A in self._tiles(rows, dtype):
                for first, B in references:
                    self._add(total, start, A, B, weights, first)
        return total

    def squares(self, rows: NDArray[Any]) -> Vector:
        """Return ``k(x, x)`` (b,) of the rows."""
        tiles = self._tiles(rows, working_dtype(rows.dtype))
        return np.concatenate([np.zeros(0), *(self.kernel.diagonal_of(A) for _, A in tiles)])

    def _tiles(self, rows: NDArray[Any], dtype: np.dtype[Any]) -> Iterator[tuple[int, Any]]:
        for i in range(0, len(rows), TILE_ROWS):
            yield i, self._prepare(rows[i : i + TILE_ROWS], dtype, 0)

    def _reference_tiles(self, dtype: np.dtype[Any]) -> Iterator[tuple[int, Any]]:
        for first, rows in self.references.tiles():
            yield first, self._prepare_references(rows, dtype, first)

    def _add(self, total: Matrix, start: int, A: Any, B: Any, weights: Matrix, first: int) -> None:
        K = landmark_block(self.kernel, A, B) if self.references.indices is not None else self.kernel.block(A, B)
        W = weights[first : first + K.shape[1]]
        total[start : start + len(K)] += K @ W.astype(K.dtype, copy=False)

    def _prepare(self, rows: NDArray[Any], dtype: np.dtype[Any], first: int) -> Any:
        return self.kernel.prepare(rows.astype(dtype, copy=False), self.shift, first)

    def _prepare_references(self, rows: NDArray[Any], dtype: np.dtype[Any], first: int) -> Any:
        if self.references.indices is None:
            return self._prepare(rows, dtype, first)
        numbers = self.references.indices[first : first + len(rows)]
        return prepare_landmarks(self.kernel, rows.astype(dtype, copy=False), numbers, self.shift)

    def apply(self, rows: NDArray[Any]) -> Matrix:
        """Return ``f`` of rows (b, d)."""
        total = self.products(rows, self.coefficients)
        total -= self.offsets
        return total

    def distances(self, rows: NDArray[Any]) -> Vector:
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
        held = min(rows, self.references.shape[0]) + TILE_ROWS
        prepared = held * self.kernel.prepared_bytes(d, itemsize) + 2 * TILE_ROWS * d * itemsize
        tile = TILE_ROWS**2 * self.kernel.entry_bytes(itemsize) + FIXED_BYTES
        read = self.references.held_bytes if self.references.rows is None else 0
        return prepared + tile + read + 8 * (rows + 2 * TILE_ROWS) * columns

    def describe(self) -> dict[str, Any]:
        """Digest of the expansion."""
        digest = content_digest(self.coefficients, self.offsets, self.shift)
        return {"kernel": kernel_identity(self.kernel), "references": self.references.describe(), "digest": digest}


@dataclass(frozen=True)
class FeatureProjection:
    """``f(x) = (phi(x) - mean) components'`` by the exact finite feature map of a kernel.

    Attributes
    ----------
    kernel : Kernel
    mean : ndarray of shape (D,)
    components : ndarray of shape (k, D)
    """

    kernel: Kernel
    mean: Vector
    components: Matrix

    @property
    def coefficients(self) -> Matrix:
        """What the centred features are multiplied by (D, k)."""
        return self.components.T

    def centred(self, rows: NDArray[Any]) -> NDArray[np.floating]:
        """Return ``phi(x) - mean`` (b, D) in the working dtype of the rows."""
        features = self.kernel.features(rows.astype(working_dtype(rows.dtype), copy=False))
        return features - self.mean.astype(features.dtype)

    def apply(self, rows: NDArray[Any]) -> NDArray[np.floating]:
        """Return ``f`` of rows (b, d), a few thousand at a time."""
        out = np.empty((len(rows), len(self.components)), working_dtype(rows.dtype))
        for i in range(0, len(rows), self.step):
            centred = self.centred(rows[i : i + self.step])
            out[i : i + self.step] = centred @ self.components.T.astype(centred.dtype)
        return out

    def distances(self, rows: NDArray[Any]) -> Vector:
        """Return ``|phi(x) - mean|^2 - |f(x)|^2`` (b,), clipped at 0."""
        out = np.empty(len(rows))
        for i in range(0, len(rows), self.step):
            centred = self.centred(rows[i : i + self.step]).astype(np.float64)
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

    def describe(self) -> dict[str, Any]:
        """Digest of the map."""
        return {"kernel": kernel_identity(self.kernel), "digest": content_digest(self.mean, self.components)}


def kernel_identity(kernel: Kernel) -> Any:
    """Return what identifies a kernel in a fingerprint; one with a Python function by its representation."""
    try:
        return kernel.describe()
    except TypeError:
        return repr(kernel)
