"""The host as a device: what a task does to a block of NumPy's or of sparse rows, which are where they are used.

:class:`Host` has the names of :class:`bigpca.devices.Device`: what is written for a device runs here, and transfers
return what they are given. What is done to rows is done by their form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array

from bigpca import blas
from bigpca.arrays import Array, DType, Matrix, Vector, add_packed, add_product_packed, packed_size
from bigpca.csr import form_of
from bigpca.forms import DENSE, DenseForm, Values, magnitude

CENTRED_BYTES = 1 << 20  # of rows that are centred and multiplied at a time: they stay in a core's cache
MIN_CENTRED_ROWS = 256
BYTES_THERE = 256 << 20  # of a tile, at most: a device has no cache to hold it, and is asked for few of them
SLAB_BYTES_THERE = 1024 << 20  # of rows that are there, at most: to ask for a block takes longer than its products
SLABS_THERE = 64  # that its memory could hold at least
SUMMED_ROWS = 8192  # whose product is summed in their own precision
FLOAT32_MIN, FLOAT32_MAX = 1e-12, 1e12  # largest entry of a block that is multiplied in float32
LEAST_SQUARES = 1e-25  # sum of float32 squares to which those that underflow, below 1e-38 each, add nothing
MIN_SQUARE, MAX_SQUARE = 1e-28, 1e38  # the range in which float32 holds sums of squares


@dataclass(frozen=True)
class Host:
    """NumPy as a library of arrays on a device, whose place is the host's memory.

    A device is another library, and the names of a place in it; what it does otherwise is in
    :class:`bigpca.devices.Device`.
    """

    library = "numpy"
    place = ""
    form: ClassVar[DenseForm] = DENSE  # of dense rows that are there
    driven: ClassVar[bool] = False  # whether one thread drives it

    @property
    def name(self) -> str:
        """The setting that chooses it."""
        return f"{self.library}:{self.place}" if self.place else self.library

    @property
    def reads_too(self) -> bool:
        """Whether the thread that drives it may make batches too: they would see the precision that JAX is set to."""
        return self.driven and self.library != "jax"

    @property
    def xp(self) -> Any:
        """The library's functions, as the array API standard names them."""
        return np

    @property
    def identity(self) -> dict[str, object]:
        """What the last bits of sums on it depend on."""
        return {"arithmetic": self.name, "slab_bytes": self.slab_bytes} if self.driven else {}

    def share(self, parts: int, most: int) -> int:
        """Return one of so many parts of a device's memory, or ``most`` bytes: none of the host's, which is planned."""
        return 0

    def held(self, here: int, there: int) -> tuple[int, int]:
        """Return the bytes of this process, and of a device, that something takes: it is on one of them."""
        return (0, there) if self.driven else (here, 0)

    @property
    def slab_bytes(self) -> int:
        """Bytes of the rows on a device that are multiplied at a time."""
        return self.share(SLABS_THERE, SLAB_BYTES_THERE)

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile."""
        return self.share(SLABS_THERE, BYTES_THERE)

    def tile_rows(self, own: int, row_bytes: int, least: int = 1) -> int:
        """Return the rows of so many bytes that are used at a time: on the host ``own``, those that suit its cache."""
        return max(least, self.tile_bytes // max(1, row_bytes)) if self.driven else own

    def tile_edge(self, itemsize: int) -> int:
        """Return the rows and columns of a square tile of a device."""
        return math.isqrt(self.tile_bytes // itemsize)

    def ahead(self, own: int) -> int:
        """Return how many tiles idle threads make at a time: one thread drives a device."""
        return 1 if self.driven else own

    def beside(self, rows: Any, dtype: DType) -> Any:
        """Return rows that are compared with a block in that dtype."""
        return self.rows(rows.astype(dtype, copy=False)) if self.driven else rows

    def reading(self, plain: Any, sending: Any, ahead: int) -> tuple[Any, int]:
        """Return the reader of rows that are multiplied here, and how many reads it makes ahead; to a device, rows are
        on their way when they are returned.
        """
        return (sending, ahead) if self.driven else (plain, 1)

    def put(self, values: Any) -> Any:
        """Return the array."""
        return values

    rows = sent = fetch = put

    def home(self, value: Any, *, square: bool, order: str) -> Any:
        """Return what a state keeps."""
        return value

    def precise(self) -> AbstractContextManager[Any]:
        """Return what statements run in: nothing has to be set."""
        return nullcontext()

    driving = precise

    def floats(self, values: Any, dtype: DType) -> Any:
        """Return values in a floating-point dtype."""
        return values.astype(dtype, copy=False)

    def square_shape(self, d: int) -> tuple[int, ...]:
        """Return the shape of what a state keeps of a symmetric matrix (d, d): its packed triangle."""
        return (packed_size(d),)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike = np.float64, order: str = "C") -> Array:
        """Return zeros."""
        return np.zeros(shape, dtype, order=order)  # type: ignore[call-overload, no-any-return]

    def within_range(self, values: Any, largest: float | None) -> Any:
        """Return rows, in float64 if products of two, or of two with a third, would leave the range of float32."""
        if values.dtype == np.float64 or 0 in values.shape:
            return values
        most = magnitude(form_of(values).stored(values)) if largest is None else largest
        return values if most == 0 or FLOAT32_MIN < most < FLOAT32_MAX else values.astype(np.float64)

    def power_of_two(self, values: Any, axis: int | None = None) -> Any:
        """Return by what values are multiplied before their products; None for 1: rows beyond float32 are float64."""
        return None

    def row_squares(self, rows: Array) -> Vector:
        """Return the sum of squares of each row (b,), in float64."""
        out = np.empty(len(rows))
        for i in range(0, len(rows), 256):
            part = rows[i : i + 256].astype(np.float64, copy=False)
            out[i : i + 256] = np.einsum("ij,ij->i", part, part)
        return out

    def add_pair(self, rows: Values, columns: Values, target: Array, there: list[Any]) -> None:
        """Add the product of rows (a, d) with others (d, b) to a tile (a, b)."""
        form_of(rows).add_pair(rows, columns, target)

    def store(self, K: Array, target: Array, there: list[Any]) -> None:
        """Store a tile."""
        target[...] = K

    def kernel_sums(self, V: Array, product: Matrix, squares: Vector, start: int) -> KernelSums:
        """Return what multiplies tiles of a kernel matrix by V (n, l), for rows from ``start`` on."""
        return KernelSums(V, product, squares, start)

    def product(self, V: Any, Z: Any) -> Any:
        """Return ``V'Z``, in the precision of both; V may be sparse."""
        return V.T @ Z

    def plus_squares(self, total: Array, rows: Array, sign: float, *, whole: bool) -> Array:
        """Return a packed triangle plus ``sign rows' rows``, or its diagonal plus that of it; in place."""
        if whole:
            add_product_packed(total, sign, rows)
        else:
            total += sign * np.einsum("ij,ij->j", rows, rows)
        return total

    def one_hot(self, codes: NDArray[np.int32], classes: int, weights: Vector | None, dtype: DType) -> Any:
        """Return a row (c,) for each code, with the weight of its row, or 1, in the column of its class."""
        ones = np.ones(len(codes), dtype) if weights is None else weights.astype(dtype)
        return csr_array((ones, codes, np.arange(len(codes) + 1)), (len(codes), classes))

    def less(self, V: Array, centres: Array, codes: NDArray[np.int32], out: Array | None = None) -> Array:
        """Return rows less the centres of their classes, in the memory of ``out`` if it has room."""
        if out is None or out.dtype != V.dtype or len(out) < len(V):
            out = np.empty(V.shape, V.dtype)
        rows = out[: len(V)]
        np.take(centres, codes, axis=0, out=rows, mode="clip")
        return np.subtract(V, rows, out=rows)

    def projected(self, rows: Values, mean: Array, axes: Array) -> Array:
        """Return ``(rows - mean) axes`` (b, k) in the precision of the axes (d, k)."""
        strip = self.centred_rows(rows.shape[0], len(axes), axes.dtype.itemsize)
        return form_of(rows).projected(rows, mean, axes, strip)

    def scored(
        self, rows: Array, mean: Vector, axes: Array, rest: Vector | None, factors: Vector | None, *, residuals: bool
    ) -> Iterator[tuple[int, Array, Vector | None]]:
        """Yield (first row, scores (b, k), squared residuals (b,) if asked for) of strips of rows."""
        inverse = np.ascontiguousarray(axes.T)
        for start, scores, shifted in self.centred(rows, mean, axes, rest, factors):
            yield start, scores, _squared_residuals(scores, shifted, inverse) if residuals else None

    def centred(
        self, rows: Array, mean: Vector, axes: Array, rest: Vector | None, factors: Vector | None
    ) -> Iterator[tuple[int, Array, Array]]:
        """Yield (first row, scores (b, k), centred and scaled rows (b, d)) of strips of rows, in the dtype of the axes.

        Mean and scale apply to the rows, so that no difference of large numbers remains: the rounding of the mean to
        float32 is added back. The centred rows may be overwritten.
        """
        (d, k), dtype = axes.shape, axes.dtype
        strip = self.centred_rows(len(rows), d, dtype.itemsize)
        centred, scores = np.empty((strip, d), dtype), np.empty((strip, k), dtype)
        for start in range(0, len(rows), strip):
            part = rows[start : start + strip]
            shifted = np.subtract(part, mean, out=centred[: len(part)], dtype=dtype, casting="unsafe")
            # What float32 cannot represent beside the mean is as large as the deviations of columns far from zero.
            if rest is not None:
                shifted += rest
            if factors is not None:
                shifted *= factors
            yield start, np.matmul(shifted, axes, out=scores[: len(part)]), shifted

    def centred_rows(self, rows: int, d: int, itemsize: int) -> int:
        """Return how many of ``rows`` rows are centred at a time, about the same number each time: on a device, all.

        That many rows are still in the cache when they are multiplied. Fewer would be slow, and the BLAS multiplies a
        single row by another routine, with other last bits.
        """
        if self.driven:
            return rows
        most = max(MIN_CENTRED_ROWS, CENTRED_BYTES // max(1, d * itemsize))
        return max(1, -(-rows // max(1, -(-rows // most))))

    def gram(self, d: int) -> Gram:
        """Return what adds up products of rows (b, d) with themselves."""
        return Gram(d)

    def thin(self, factor: Any, first: Values) -> Thin:
        """Return what multiplies rows by a thin factor (d, l), for a group that begins with these."""
        return Thin(factor)


HOST = Host()


@dataclass
class KernelSums:
    """``K V`` for rows from ``start`` on, and the sums of squares of rows of K if there is room for them, from tiles.

    Products are in the precision of tiles, sums in float64.
    """

    V: Array
    product: Matrix
    squares: Vector
    start: int

    def add(self, K: Array, row: int, column: int) -> float:
        """Add a tile (a, b) of K, and its mirror image if it is off the diagonal; else return its trace."""
        V, (a, b) = self.V, K.shape
        rows = slice(row - self.start, row - self.start + a)
        columns = slice(column - self.start, column - self.start + b)
        self.product[rows] += K @ V[column : column + b].astype(K.dtype, copy=False)
        # K_ji = K_ij': a tile off the diagonal adds K_ij V_j to rows i, and K_ij' V_i to rows j.
        mirrored = row != column
        if mirrored:
            self.product[columns] += K.T @ V[row : row + a].astype(K.dtype, copy=False)
        if len(self.squares):
            self.squares[rows] += np.einsum("ij,ij->i", K, K, dtype=np.float64)
            if mirrored:
                self.squares[columns] += np.einsum("ij,ij->j", K, K, dtype=np.float64)
        return 0.0 if mirrored else float(np.diagonal(K).sum(dtype=np.float64))

    def close(self) -> None:
        """All tiles are added."""


def _squared_residuals(scores: Array, shifted: Array, axes: Array) -> Vector:
    shifted -= scores @ axes
    with np.errstate(under="ignore"):
        squares: Vector = np.vecdot(shifted, shifted).astype(np.float64)
    if shifted.dtype != np.float64:  # the squares of very small or large rows leave float32's range
        far = ~((squares > LEAST_SQUARES) & (squares < 1 / LEAST_SQUARES))
        squares[far] = np.einsum("ij,ij->i", shifted[far], shifted[far], dtype=np.float64)
    return squares


class Gram:
    """Products ``V'V`` (d, d) of rows, added to a packed triangle in float64 every 8,192 rows.

    Slabs of wide rows are short. Summing several of them in float32 leaves the rounding error of one slab of 8,192
    rows, and makes additions in float64 rare: those are limited by memory bandwidth, the products are not.
    """

    def __init__(self, d: int) -> None:
        self.d, self.precision, self._rows = d, 0.0, 0
        self._product: Array | None = None

    def add(self, total: Vector, values: Array, weights: Vector | None = None) -> Vector:
        """Add rows to the open product, in their precision; return the packed triangle."""
        if weights is not None:  # sqrt(w) (x - shift): after the shift, so that the deviations keep their digits
            values = values * np.sqrt(weights).astype(values.dtype)[:, None]
        if self._product is None or self._product.dtype != values.dtype:
            self._flush(total)
            self.precision = max(self.precision, float(np.finfo(values.dtype).eps))
            self._product = product_scratch(self.d, values.dtype)
        if self._rows + len(values) > SUMMED_ROWS:
            self._flush(total)
        # 1. Added to the open product, in the rows' precision, up to SUMMED_ROWS rows.
        if self._rows and add_symmetric_product(values, self._product):
            self._rows += len(values)
            return total
        self._flush(total)
        # 2. Else the open product is moved to the float64 sums, and a new one begins.
        product = symmetric_product(values, self._product)
        if product is self._product:
            self._rows = len(values)
        else:
            add_packed(total, product)
        return total

    def _flush(self, total: Vector) -> None:
        if self._rows and self._product is not None:
            add_packed(total, self._product)
        self._rows = 0

    def close(self, total: Vector) -> Vector:
        """Return the packed triangle of all rows."""
        self._flush(total)
        return total


class Thin:
    """Products of rows with a thin factor W (d, l), and with what comes of that.

    Products of up to 8,192 rows are summed in the rows' precision, and these sums in float64.
    """

    scale = 1.0

    def __init__(self, factor: Any) -> None:
        self.factor, self._rows = factor, 0
        self._open: Array | None = None

    def multiply(self, V: Values) -> Array:
        """Return ``V W`` (b, l)."""
        return blas.by_rows(lambda rows: form_of(rows).linear(rows, self.factor.multiply), V)

    def add(self, total: Matrix, V: Values, Z: Array) -> Matrix:
        """Add ``V'Z`` (d, l) to the open sum; return the one in float64."""
        if self._open is None or self._open.dtype != V.dtype or self._rows + V.shape[0] > SUMMED_ROWS:
            self._flush(total)
            self._rows = 0
        self._open = form_of(V).add_product(V, Z, self._open)
        self._rows += V.shape[0]
        return total

    def _flush(self, total: Matrix) -> None:
        if self._open is not None:
            total += self._open
        self._open = None

    def close(self, total: Matrix, sums: Vector) -> tuple[Matrix, Vector]:
        """Return the sum of all rows, and the sums of ``Z``."""
        self._flush(total)
        return total, sums


def product_scratch(d: int, dtype: DType) -> Array:
    """Return a (d, d) array of zeros for :func:`symmetric_product` to write to repeatedly."""
    return np.zeros((d, d), dtype)


def symmetric_product(rows: Array, out: Array) -> Array:
    """Return the upper triangle of ``rows' rows`` (d, d), in ``out`` if its precision holds it, else in float64.

    Squares of float32 overflow beyond 1e19 and underflow below 1e-19; such blocks are multiplied again in float64. The
    entries of ``out`` below the diagonal do not change: they are zeros if :func:`product_scratch` returned it.
    """
    blas.symmetric_rank_update(rows, out)
    if rows.dtype == np.float64 or squares_held(np.diagonal(out), rows):
        return out
    wide = rows.astype(np.float64)
    product: Array = np.matmul(wide.T, wide)
    return product


def add_symmetric_product(rows: Array, out: Array) -> bool:
    """Add the upper triangle of ``rows' rows`` to ``out`` (d, d) in its precision, if that holds every square.

    Returns
    -------
    bool
        False if it does not; ``out`` is then unchanged.
    """
    if rows.dtype != np.float64:
        squares = np.einsum("ij,ij->j", rows, rows)
        if not (squares_held(squares, rows) and (np.diagonal(out) + squares < MAX_SQUARE).all()):
            return False
    blas.symmetric_rank_update(rows, out, add=True)
    return True


def squares_held(squares: Array, rows: Array) -> bool:
    """Whether float32 sums of the columns' squares neither overflowed nor lost a value that is not zero."""
    small = np.flatnonzero(squares < MIN_SQUARE)
    return bool(np.isfinite(squares).all()) and not (len(small) and rows[:, small].any())
