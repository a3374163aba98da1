"""Row maps of kernel models: every one is an expansion over reference rows, ``score(x) = k(x, R) A - b``.

Exact kernel PCA expands over all training rows, Nyström's features over the landmarks; the centring is in A and b. The
same sums give the distance of a row's image to the subspace, and its pre-image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve

from bigpca.data.row_source import RowSource
from bigpca.estimators.projection import settle_non_finite
from bigpca.kernels.base import Kernel
from bigpca.kernels.rows import FIXED_BYTES
from bigpca.passes.blocks import working_dtype
from bigpca.passes.landmark_blocks import landmark_block, prepare_landmarks
from bigpca.passes.readers import DirectReader

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
TILE_ROWS = 1024
GONE = "which is gone; new rows are compared with them. Put them back there, or fit again."
STREAM_BYTES = 32 << 20  # of reference rows read at a time


@dataclass(frozen=True)
class References:
    """Rows that others meet in the kernel: held in memory, or read from the store in which they lie.

    Attributes
    ----------
    rows : ndarray of shape (p, d), or None where they are read
    source : RowSource or None
    indices : ndarray of shape (p,), or None where they are all rows from the first
        Row numbers, for kernels that know rows by them.
    """

    rows: NDArray[Any] | None
    source: RowSource | None = None
    indices: NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(p, d)."""
        given: Any = self.source if self.rows is None else self.rows
        return int(given.shape[0]), int(given.shape[1])

    def tiles(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (first row, rows) in tiles of 1,024 rows; one read of them where they lie in a store."""
        count, d = self.shape
        if self.rows is not None:
            for start in range(0, count, TILE_ROWS):
                yield start, self.rows[start : start + TILE_ROWS]
            return
        reader = DirectReader(self.source)  # type: ignore[arg-type]
        itemsize = self.source.dtype.itemsize  # type: ignore[union-attr]
        step = max(1, STREAM_BYTES // (TILE_ROWS * d * itemsize)) * TILE_ROWS
        for first in range(0, count, step):
            try:
                rows = reader.read(first, min(first + step, count))
            except FileNotFoundError as error:
                path = self.source.path  # type: ignore[union-attr]
                raise FileNotFoundError(f"the model's training rows were in {path}, {GONE} ({error})") from error
            for start in range(0, len(rows), TILE_ROWS):
                yield first + start, rows[start : start + TILE_ROWS]

    @property
    def held_bytes(self) -> int:
        """Bytes of the rows in memory, or of those read at a time."""
        return self.rows.nbytes if self.rows is not None else STREAM_BYTES

    def describe(self) -> dict[str, Any]:
        """What identifies the rows."""
        if self.source is not None:
            return {"source": self.source.describe()}
        return {"rows": _digest(np.ascontiguousarray(self.rows))}


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
        digest = _digest(self.coefficients, self.offsets, self.shift)
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
        return {"kernel": kernel_identity(self.kernel), "digest": _digest(self.mean, self.components)}


def kernel_identity(kernel: Kernel) -> Any:
    """Return what identifies a kernel in a fingerprint; one with a Python function by its representation."""
    try:
        return kernel.describe()
    except TypeError:
        return repr(kernel)


def _digest(*arrays: NDArray[Any]) -> str:
    content = hashlib.sha256()
    for array in arrays:
        content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()


@dataclass(frozen=True)
class KernelScores:
    """Scores of rows (SPCA paper, appendix C: centred by the means of the training rows).

    Attributes
    ----------
    expansion : Expansion or FeatureProjection
    nan_policy : {"raise", "omit"}
    """

    expansion: Expansion | FeatureProjection
    nan_policy: str = "raise"

    def output_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """float32 for float32 and narrower input, else float64."""
        return working_dtype(dtype)

    def apply(self, rows: NDArray[Any], where: str) -> NDArray[Any]:
        """Return scores (b, k) of rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities and the policy is to raise.
        """
        clean, bad = _set_aside(rows, where, self.nan_policy, "scores")
        scores = self.expansion.apply(clean).astype(working_dtype(rows.dtype), copy=False)
        scores[bad] = np.nan
        return scores

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """What the expansion takes, clean rows and scores; its coefficients are kept."""
        k = self.expansion.coefficients.shape[1]
        own = rows * (k * itemsize + d * (1 + itemsize))
        return self.expansion.bytes_for(d, rows, itemsize, k) + own, self.expansion.coefficients.nbytes

    def describe(self) -> dict[str, Any]:
        """Digest of the map."""
        return {"map": "kernel scores", "nan_policy": self.nan_policy, **self.expansion.describe()}


@dataclass(frozen=True)
class Novelty:
    """Squared distance of a row's image to the subspace, one column: ``k_c(x, x) - |y|^2`` (MATHS; clipped at 0)."""

    expansion: Expansion | FeatureProjection
    nan_policy: str = "raise"

    def output_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Always float64: the difference of nearly equal numbers."""
        return np.dtype(np.float64)

    def apply(self, rows: NDArray[Any], where: str) -> NDArray[Any]:
        """Return squared distances (b, 1)."""
        clean, bad = _set_aside(rows, where, self.nan_policy, "distances")
        distances = self.expansion.distances(clean)
        distances[bad] = np.nan
        return distances[:, None]

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """As for scores, in float64."""
        base, kept = KernelScores(self.expansion).bytes_for(d, rows, 8)
        return base + 8 * rows * (d + 4), 2 * kept

    def describe(self) -> dict[str, Any]:
        """Digest of the map."""
        return {"map": "novelty", "nan_policy": self.nan_policy, **self.expansion.describe()}


def _set_aside(rows: NDArray[Any], where: str, nan_policy: str, name: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the rows with zeros for those that are not finite, and which those are.

    Raises
    ------
    NonFiniteError
        Where the policy is to raise.
    """
    bad: NDArray[np.bool_] = ~np.isfinite(rows).all(axis=1)
    if not bad.any():
        return rows, bad
    settle_non_finite(rows, np.where(np.isfinite(rows), 0.0, np.nan), where, nan_policy, name)
    clean = rows.copy()
    clean[bad] = rows[~bad][0] if not bad.all() else 1
    return clean, bad


@dataclass(frozen=True)
class FixedPoint:
    """Pre-images under a Gaussian kernel by the fixed-point iteration (Mika et al. 1999, eq. 10).

    The projection of a row's image is ``sum_t g_t phi(r_t)`` with ``g = A y + c``; its pre-image is a fixed point of
    ``z = sum_t g_t k(z, r_t) r_t / sum_t g_t k(z, r_t)``. Starts at the row itself.

    Attributes
    ----------
    expansion : Expansion
        Whose kernel is an RBF.
    max_iter : int
    tol : float
        Stop when no row moves by more than ``tol`` of its length.
    """

    expansion: Expansion
    max_iter: int = 100
    tol: float = 1e-6

    def output_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """float32 for float32 and narrower input, else float64."""
        return working_dtype(dtype)

    def apply(self, rows: NDArray[Any], where: str) -> NDArray[Any]:
        """Return pre-images (b, d) of the projections of rows (b, d); where the weights vanish, the row so far."""
        clean, _ = _set_aside(rows, where, "raise", "pre-images")
        e = self.expansion
        z = clean.astype(np.float64)
        weights = e.apply(z) @ e.coefficients.T + e.mean_weights  # (b, p)
        for _ in range(self.max_iter):
            moved = self._step(z, weights)
            still = np.linalg.norm(moved - z, axis=1) <= self.tol * np.maximum(np.linalg.norm(moved, axis=1), 1e-300)
            z = moved
            if still.all():
                break
        return z.astype(working_dtype(rows.dtype), copy=False)

    def _step(self, z: Matrix, weights: Matrix) -> Matrix:
        e = self.expansion
        A = e.kernel.prepare(z, e.shift, 0)
        numerator, denominator = np.zeros_like(z), np.zeros(len(z))
        for first, references in e.references.tiles():
            R = references.astype(np.float64)
            K = e.kernel.block(A, e.kernel.prepare(R, e.shift, first)) * weights[:, first : first + len(R)]
            numerator += K @ R
            denominator += K.sum(axis=1)
        stuck = np.abs(denominator) <= 1e-12 * np.abs(weights).max(axis=1)
        return np.where(stuck[:, None], z, numerator / np.where(stuck, 1.0, denominator)[:, None])

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Weights and kernel values of all references, and four copies of the rows in float64."""
        p = self.expansion.references.shape[0]
        held = self.expansion.references.held_bytes
        return 8 * rows * (p + 2 * TILE_ROWS + 5 * d) + 3 * 8 * TILE_ROWS * d, held

    def describe(self) -> dict[str, Any]:
        """Digest of the map."""
        return {"map": "fixed point", "max_iter": self.max_iter, "tol": self.tol, **self.expansion.describe()}


@dataclass(frozen=True)
class RidgePreimage:
    """Rows back from scores by kernel ridge regression from scores to rows (scikit-learn's ``fit_inverse_transform``).

    Attributes
    ----------
    expansion : Expansion
        Over the scores of the reference rows, with the rows' regression coefficients.
    """

    expansion: Expansion

    def output_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The working dtype of the scores."""
        return working_dtype(dtype)

    def apply(self, rows: NDArray[Any], where: str) -> NDArray[Any]:
        """Return rows (b, d) from scores (b, k)."""
        clean, _ = _set_aside(rows, where, "raise", "reconstructions")
        return self.expansion.apply(clean).astype(working_dtype(rows.dtype), copy=False)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """As for scores, with d columns."""
        return KernelScores(self.expansion).bytes_for(d, rows, itemsize)

    def describe(self) -> dict[str, Any]:
        """Digest of the map."""
        return {"map": "ridge pre-image", **self.expansion.describe()}


def ridge_preimage(kernel: Kernel, rows: NDArray[Any], scores: Matrix, alpha: float) -> Expansion:
    """Return the regression from scores (p, k) to rows (p, d): ``(k(S, S) + alpha I)^-1 R``; p^3 / 3 + 2 p^2 d flops."""
    K = kernel(scores).astype(np.float64)
    K.flat[:: len(K) + 1] += alpha
    coefficients = solve(K, rows.astype(np.float64), assume_a="sym")
    points = References(np.ascontiguousarray(scores))
    return Expansion(
        kernel, scores.mean(axis=0), points, coefficients, np.zeros(rows.shape[1]), np.zeros(len(rows)), 0.0
    )
