"""Row maps of kernel models: scores, distances to the subspace, and pre-images.

The functions that kernel models apply to rows: expansions over reference rows, ``score(x) = k(x, R) A - b``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve

from bigpca.arrays import Array, DType, Matrix, Vector, working_dtype
from bigpca.blas import blas_threads, threads_of_solve
from bigpca.csr import PRODUCT, Forms, form_of
from bigpca.devices import Namespace, dtype_of
from bigpca.estimators.linear.maps import device_of_setting
from bigpca.estimators.shared.files import OF_REFERENCES, STREAM_BYTES, TILE_ROWS, References, streamed_rows
from bigpca.estimators.shared.inputs import bad_places, reject_non_finite, settle_non_finite
from bigpca.forms import Values
from bigpca.host import HOST
from bigpca.kernels.base import FIXED_BYTES, Kernel
from bigpca.passes.accumulators.landmark_moments import landmark_block, prepare_landmarks
from bigpca.passes.reading.row_maps import Float64Map, RowMap
from bigpca.records import Coding, Held, of_part, stored

# Exact kernel PCA expands over all training rows, Nyström's features over the landmarks; the centring is in A and b.
# The same sums give the distance of a row's image to the subspace.
#
# The precision of scores is chosen once, at the end of a fit, by scoring a sample of rows in float32 and in float64. It
# is part of the model, so scores do not depend on which rows are mapped together.
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
SCORED_ROWS = 256  # that are scored in both precisions, or a 16th of the references, but 32
SCORED_SHARE, MIN_SCORED = 16, 32
MAX_DIFFERENCE = 1e-4  # of a component's scores in float32 from those in float64, both in root mean square


OF_DTYPES: Coding = (lambda dtype: (dtype.name, {}), lambda name, own, held: _precision(name))


def _precision(name: object) -> DType:
    if name not in ("float32", "float64"):
        raise ValueError(f"it has scores in {name!r}, not in one of float32, float64")
    return np.dtype(name)


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
    shift: Vector = stored("s")
    references: References = stored(coding=OF_REFERENCES)
    coefficients: Matrix = stored("p", "k")
    offsets: Vector = stored("k")
    mean_weights: Vector = stored("p")
    mean_square: float = stored(of=float)
    centre: Vector = stored("p")
    dtype: DType = stored(coding=OF_DTYPES, default=FLOAT64)

    def __post_init__(self) -> None:
        # The memory order of a matrix affects the bits of its products, and a stored model is in row order.
        object.__setattr__(self, "coefficients", np.ascontiguousarray(self.coefficients))

    def place(self, device: Namespace) -> Namespace:
        """Return where dense rows are compared."""
        return self.kernel.place(device)

    def in_needed_precision(self, device: Namespace = HOST) -> Expansion:
        """Return the same map, in float32 if a sample of the references has the same scores as in float64, to 1e-4.

        The scores may be computed on a device, by kernels for devices.
        One read of the references and :func:`scored_evaluations` kernel evaluations; none if they are float64.
        """
        if scored_in_float64(self.kernel, self.references.dtype):
            return replace(self, dtype=FLOAT64)
        count, A = scored_rows(self.references.shape[0]), self.coefficients
        scores = {dtype: np.zeros((count, A.shape[1])) for dtype in (FLOAT32, FLOAT64)}
        sample: dict[DType, object] = {}
        device = self.kernel.place(device)
        # Products of tiles are too small for several threads of BLAS, which wait busily.
        with device.precise(), threads_of_solve():
            for first, references in self.references.tiles(self._tile_rows(device)):
                if not sample:  # spread over all rows in memory, or over the first tile that is read
                    rows = spread_rows(references if self.references.rows is None else self.references.rows, count)
                    sample = {dtype: self._prepare(rows, dtype, 0, device) for dtype in scores}
                    scores = {dtype: total[: len(rows)] for dtype, total in scores.items()}
                for dtype, total in scores.items():
                    B = self._prepare_references(references, dtype, first, device)
                    self._add(total, 0, sample[dtype], B, A, first, self.centre, device)
        left = self.offsets - self.centre @ A
        return replace(self, dtype=needed_precision(scores[FLOAT32] - left, scores[FLOAT64] - left))

    def limited(self, used: NDArray[np.bool_], k: int) -> Expansion:
        """Return k columns: those ``used``, and zeros for all others."""
        A, b = _columns(self.coefficients, used, k), _columns(self.offsets, used, k)
        return replace(self, coefficients=A, offsets=b)

    @cached_property
    def spread(self) -> float:
        """Root mean square distance of the references from their mean; one read of them."""
        # sum |r - m|^2 / p = sum |r - s|^2 / p - |m - s|^2 about the shift s, which is near the mean m.
        sums, squares = np.zeros(self.references.shape[1]), 0.0
        for _, rows in self.references.tiles():
            centred = rows - self.shift
            sums += centred.sum(axis=0)
            squares += float(np.einsum("ij,ij->", centred, centred))
        p = self.references.shape[0]
        return float(np.sqrt(max(0.0, squares / p - float(sums @ sums) / p**2)))

    @property
    def forms(self) -> Forms:
        """Sparse rows, if the kernel accepts them."""
        return PRODUCT if self.kernel.accepts_csr else {}

    def products(self, rows: Values, weights: Matrix, centre: Vector | None = None, device: Namespace = HOST) -> Matrix:
        """Return ``k(rows, R) weights`` (b, l) in float64, or ``(k(rows, R) - centre') weights``; one read of the
        references.

        The smaller side, rows or references, is held prepared, and the other side is compared with it tile by tile.
        """
        dtype = np.result_type(working_dtype(rows.dtype), self.dtype)
        total = np.zeros((rows.shape[0], weights.shape[1]))
        device = self.kernel.place(device) if form_of(rows).shifts else HOST
        tiles = self._tiles(rows, dtype, device)
        stored = self.references.tiles(self._tile_rows(device))
        references = ((i, self._prepare_references(R, dtype, i, device)) for i, R in stored)
        # Either way the references, which may be in a store, are read once.
        if rows.shape[0] <= self.references.shape[0]:
            held = list(tiles)
            for first, B in references:
                for start, A in held:
                    self._add(total, start, A, B, weights, first, centre, device)
        else:
            compared = list(references)
            for start, A in tiles:
                for first, B in compared:
                    self._add(total, start, A, B, weights, first, centre, device)
        return total

    def squares(self, rows: Values) -> Vector:
        """Return ``k(x, x)`` (b,) of the rows."""
        tiles = self._tiles(rows, working_dtype(rows.dtype))
        return np.concatenate([np.zeros(0), *(self.kernel.diagonal_of(A) for _, A in tiles)])

    def _tiles(self, rows: Values, dtype: DType, device: Namespace = HOST) -> Iterator[tuple[int, object]]:
        step = self._tile_rows(device)
        for i in range(0, rows.shape[0], step):
            yield i, self._prepare(rows[i : i + step], dtype, 0, device)

    def _tile_rows(self, device: Namespace) -> int:
        """Return the rows of a tile: on a device, such that neither they nor a tile of pairs exceed its tiles."""
        return device.tile_rows(TILE_ROWS, 8 * max(device.tile_edge(8), self.references.shape[1]), TILE_ROWS)

    def _add(
        self,
        total: Matrix,
        start: int,
        A: object,
        B: object,
        weights: Matrix,
        first: int,
        centre: Vector | None,
        device: Namespace = HOST,
    ) -> None:
        K: Array = landmark_block(self.kernel, A, B) if self.references.indices is not None else self.kernel.block(A, B)
        W, own = weights[first : first + K.shape[1]], total[start : start + K.shape[0]]
        dtype, put = dtype_of(K), device.put
        if centre is not None:
            exact = centre[first : first + K.shape[1]]
            near = exact.astype(dtype)
            K -= put(near)  # almost no rounding, because both are nearly equal when cancellation matters
            own += (near - exact) @ W
        product = K @ put(W.astype(dtype, copy=False))
        own += device.fetch(product)

    def _prepare(self, rows: Values, dtype: DType, first: int, device: Namespace = HOST) -> object:
        rows = rows.astype(dtype, copy=False)
        return self.kernel.prepare(device.rows(rows), self.shift, first)

    def _prepare_references(self, rows: Array, dtype: DType, first: int, device: Namespace = HOST) -> object:
        if self.references.indices is None or self.kernel.needs_rows:
            return self._prepare(rows, dtype, first, device)
        numbers = self.references.indices[first : first + len(rows)]
        return prepare_landmarks(self.kernel, rows.astype(dtype, copy=False), numbers, self.shift)

    def apply(self, rows: Values, device: Namespace = HOST) -> Matrix:
        """Return ``f`` of rows (b, d)."""
        total = self.products(rows, self.coefficients, self.centre, device)
        total -= self.offsets - self.centre @ self.coefficients
        return total

    def distances(self, rows: Values) -> Vector:
        """Return ``k_c(x, x) - |f(x)|^2`` (b,), clipped at 0: ``k_c(x, x) = k(x, x) - 2 k(x, R) c + c' k(R, R) c``."""
        # One product k(x, R) [A, c] has the scores and what the mean of the images needs.
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


def centred_expansion(kernel: Kernel, shift: Vector, references: References, A: Matrix, means: Vector) -> Expansion:
    """Return the expansion whose coefficients A (p, k) add up to 0, about the means (p,) of the rows of K."""
    p = len(means)
    return Expansion(kernel, shift, references, A, means @ A, np.full(p, 1.0 / p), float(means.mean()), means)


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
    mean: Vector = stored("f")
    components: Matrix = stored("k", "f")
    dtype: DType = stored(coding=OF_DTYPES, default=FLOAT64)
    forms: ClassVar[Forms] = {}  # a feature map makes rows dense

    @property
    def coefficients(self) -> Matrix:
        """Matrix (D, k) that multiplies the centred features."""
        return self.components.T

    def limited(self, used: NDArray[np.bool_], k: int) -> FeatureProjection:
        """As of an expansion."""
        return replace(self, components=_columns(self.components.T, used, k).T)

    def place(self, device: Namespace) -> Namespace:
        """Return where rows are mapped: here."""
        return HOST

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

    def apply(self, rows: Array, device: Namespace = HOST) -> Array:
        """Return ``f`` of rows (b, d), a few thousand at a time; never on a device."""
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
            # Pythagoras: what the axes leave of phi(x) - mean, without the difference of two large squares.
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


def _columns(values: Array, used: NDArray[np.bool_], k: int) -> Array:
    """Return the first k of the last axis, with zeros where they are not used."""
    columns = np.zeros((*values.shape[:-1], k))
    used = used[:k]
    columns[..., : len(used)] = np.where(used, values[..., : len(used)], 0.0)
    return columns


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


def scored_bytes(kernel: Kernel, dtype: DType, p: int, d: int, *, read: bool) -> int:
    """Return the peak bytes of :meth:`Expansion.in_needed_precision` with p references (p, d) of this dtype.

    A tile and the sample are prepared in both precisions, each from a copy. References that are ``read`` are held twice
    beside them: those of the last tile, and the next ones as they are decoded.
    """
    if scored_in_float64(kernel, dtype) or not kernel.needs_rows:
        return 0
    sample, tile, streamed = scored_rows(p), min(p, TILE_ROWS), min(p, streamed_rows(d * dtype.itemsize))
    each = 12 * d + kernel.prepared_bytes(d, 4) + kernel.prepared_bytes(d, 8)
    return FIXED_BYTES + 2 * read * streamed * d * dtype.itemsize + (sample + tile) * each + 32 * sample * tile


def spread_rows(rows: Values, count: int) -> Values:
    """Return ``count`` rows at even distances, or all where there are fewer."""
    return rows[np.unique(np.linspace(0, rows.shape[0] - 1, min(count, rows.shape[0])).astype(np.int64))]


@dataclass(frozen=True)
class KernelScores(RowMap):
    """Scores of rows (SPCA paper, appendix C: centred by the means of the training rows).

    Attributes
    ----------
    expansion : Expansion or FeatureProjection
    nan_policy : {"raise", "omit"}
    device : Host or Device
        Where dense rows are compared with the references, by kernels for devices; by default that of the setting when
        the map is made.
    """

    expansion: Expansion | FeatureProjection
    nan_policy: str = "raise"
    device: Namespace = field(default_factory=device_of_setting)

    forms = of_part("expansion", "forms")

    def on(self, device: Namespace) -> tuple[RowMap, Namespace]:
        """Where the kernel compares rows."""
        moved = self.expansion.place(device)
        return replace(self, device=moved), moved

    def apply(self, rows: Values, where: str) -> Array:
        """Return scores (b, k) of rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities and the policy is to raise.
        """
        clean, bad = _set_aside(rows, where, self.nan_policy, "scores")
        with np.errstate(over="ignore"), self.device.precise():
            scores = self.expansion.apply(clean, self.device).astype(working_dtype(rows.dtype), copy=False)
        settle_non_finite(clean, scores, where, "raise", "scores")
        scores[bad] = np.nan
        return scores

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The memory of the expansion, clean rows and scores; its coefficients are kept."""
        k = self.expansion.coefficients.shape[1]
        own = rows * (k * itemsize + d * (1 + itemsize))
        return self.expansion.bytes_for(d, rows, itemsize, k) + own, self.expansion.coefficients.nbytes


@dataclass(frozen=True)
class Novelty(Float64Map):
    """Squared distance of a row's image to the subspace, one column: ``k_c(x, x) - |y|^2``, clipped at 0."""

    expansion: Expansion | FeatureProjection
    nan_policy: str = "raise"

    forms = of_part("expansion", "forms")

    def apply(self, rows: Values, where: str) -> Array:
        """Return squared distances (b, 1)."""
        clean, bad = _set_aside(rows, where, self.nan_policy, "distances")
        distances = self.expansion.distances(clean)
        distances[bad] = np.nan
        return distances[:, None]

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """As for scores, in float64."""
        base, kept = KernelScores(self.expansion).bytes_for(d, rows, 8)
        return base + 8 * rows * (d + 4), 2 * kept


def _set_aside(rows: Values, where: str, nan_policy: str, name: str) -> tuple[Values, NDArray[np.bool_]]:
    """Return the rows with finite values in place of rows that are not finite, and a mask of these.

    The replacement is a valid row, so that every kernel accepts it; the caller sets its result to NaN.

    Raises
    ------
    NonFiniteError
        Where the policy is to raise.
    """
    bad = np.zeros(rows.shape[0], np.bool_)
    bad[bad_places(rows)[0]] = True
    if not bad.any():
        return rows, bad
    if nan_policy != "omit":
        reject_non_finite(rows, where, name)
    if bad.all():
        return form_of(rows).mapped(rows, np.ones_like), bad
    return rows[np.where(bad, np.argmin(bad), np.arange(len(bad)))], bad


@dataclass(frozen=True)
class FixedPoint(RowMap):
    """Pre-images under a Gaussian kernel by the fixed-point iteration (Mika et al. 1999, eq. 10).

    The projection of a row's image is ``sum_t g_t phi(r_t)`` with ``g = A y + c``; its pre-image is a fixed point of
    ``z = sum_t g_t k(z, r_t) r_t / sum_t g_t k(z, r_t)``. Starts at the row itself.

    Attributes
    ----------
    expansion : Expansion
        Whose kernel is an RBF.
    max_iter : int
    tol : float
        A row stops when it moves by at most ``tol`` of the spread of the references: neither other rows nor the origin
        affect it.
    """

    expansion: Expansion
    max_iter: int = 100
    tol: float = 1e-6

    def apply(self, rows: Array, where: str) -> Array:
        """Return pre-images (b, d) of the projections of rows (b, d); the last iterate if the weights vanish."""
        clean, _ = _set_aside(rows, where, "raise", "pre-images")
        e = self.expansion
        z = clean.astype(np.float64)
        weights = e.apply(z) @ e.coefficients.T + e.mean_weights  # (b, p)
        moving, least = np.arange(len(z)), self.tol * e.spread
        for _ in range(self.max_iter):
            before, z[moving] = z[moving], self._step(z[moving], weights[moving])
            moving = moving[np.linalg.norm(z[moving] - before, axis=1) > least]
            if not len(moving):
                break
        return z.astype(working_dtype(rows.dtype), copy=False)

    def _step(self, z: Matrix, weights: Matrix) -> Matrix:
        e = self.expansion
        A = e.kernel.prepare(z, e.shift, 0)
        numerator, denominator = np.zeros_like(z), np.zeros(len(z))
        for first, references in e.references.tiles():
            R = references.astype(np.float64)
            K = e.kernel.block(A, e.kernel.prepare(R, e.shift, first)) * weights[:, first : first + len(R)]
            numerator += K @ (R - e.shift)  # far from the origin the weighted rows would lose digits
            denominator += K.sum(axis=1)
        stuck = np.abs(denominator) <= 1e-12 * np.abs(weights).max(axis=1)
        return np.where(stuck[:, None], z, e.shift + numerator / np.where(stuck, 1.0, denominator)[:, None])

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Weights and kernel values of all references, and four copies of the rows in float64."""
        p = self.expansion.references.shape[0]
        held = self.expansion.references.held_bytes
        return 8 * rows * (p + 2 * TILE_ROWS + 5 * d) + 3 * 8 * TILE_ROWS * d, held


@dataclass(frozen=True)
class RidgePreimage(RowMap):
    """Rows back from scores by kernel ridge regression from scores to rows (scikit-learn's ``fit_inverse_transform``).

    Attributes
    ----------
    expansion : Expansion
        Over the scores of the reference rows, with the rows' regression coefficients.
    """

    expansion: Expansion

    def apply(self, rows: Array, where: str) -> Array:
        """Return rows (b, d) from scores (b, k)."""
        clean, _ = _set_aside(rows, where, "raise", "reconstructions")
        return self.expansion.apply(clean).astype(working_dtype(rows.dtype), copy=False)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """As for scores, with d columns."""
        return KernelScores(self.expansion).bytes_for(d, rows, itemsize)


def regression(expansion: Expansion, penalty: float, threads: int | None) -> Expansion:
    """Return the regression of the references R (p, d) on their scores S (p, k): ``(k(S, S) + penalty I)^-1 R``.

    ``p^3 / 3 + 2 p^2 d`` flop and ``2 p^2`` kernel evaluations; one read of the references.

    Raises
    ------
    ValueError
        If the kernel rejects scores as rows.
    """
    kernel, rows = expansion.kernel, np.concatenate([tile for _, tile in expansion.references.tiles()])
    held = replace(expansion, references=replace(expansion.references, rows=rows))  # read once
    with threads_of_solve():
        scores = np.ascontiguousarray(held.apply(rows))
    try:
        K = kernel(scores).astype(np.float64, copy=False)
    except ValueError as error:
        raise ValueError(
            f"fit_inverse_transform regresses rows on their scores, which {kernel} does not take: {error} Use "
            f"fit_inverse_transform=False."
        ) from error
    K.flat[:: len(K) + 1] += penalty
    # In Fortran order, K and the rows are overwritten.
    targets = np.array(rows, np.float64, order="F")
    with blas_threads(threads, len(K) ** 3 / 3 + 2.0 * len(K) * targets.size):
        coefficients = solve(K.T, targets, assume_a="sym", overwrite_a=True, overwrite_b=True, check_finite=False)
    return regressed_rows(kernel, scores, coefficients)


def regression_bytes(kernel: Kernel, p: int, d: int, k: int, itemsize: int) -> int:
    """Return the peak bytes of :func:`regression`: rows as they are and in float64, their scores, and ``k(S, S)``."""
    rows = p * (d * (itemsize + 8) + 16 * k + kernel.prepared_bytes(d, 8) + kernel.prepared_bytes(k, 8))
    return rows + p * p * kernel.entry_bytes(8) + TILE_ROWS**2 * kernel.entry_bytes(8) + 2 * FIXED_BYTES


def regressed_rows(kernel: Kernel, scores: Matrix, coefficients: Matrix) -> Expansion:
    """Return the map from scores to rows, of the scores (p, k) and coefficients (p, d) of a :func:`regression`."""
    p, d = coefficients.shape
    return Expansion(
        kernel, scores.mean(axis=0), References(scores), coefficients, np.zeros(d), np.zeros(p), 0.0, np.zeros(p)
    )


def _stored_preimage(value: object, own: dict[str, Array], held: Held) -> Expansion:
    for name, letters in (("scores", ("l", "k")), ("coefficients", ("l", "d"))):
        held.check(f"preimage__{name}", held.array(f"preimage__{name}").shape, letters)
    return regressed_rows(held.context["kernel"], own["scores"], own["coefficients"])


OF_PREIMAGES: Coding = (  # of rows of a model, which are one regression
    lambda found: (True, {"scores": found.references.rows, "coefficients": found.coefficients}),
    _stored_preimage,
)
