"""The host as a device: what a task does to a block of NumPy's or of sparse rows, which are where they are used.

:class:`Host` has the names of :class:`bigpca.devices.Device`: what is written for a device runs here, and transfers
return what they are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array

from bigpca import blas
from bigpca.arrays import Array, DType, Matrix, Vector, add_packed, add_product_packed, packed_size, unpack
from bigpca.csr import form_of
from bigpca.forms import Values, magnitude

CENTRED_BYTES = 1 << 20  # of rows that are centred and multiplied at a time: they stay in a core's cache
MIN_CENTRED_ROWS = 256
SUMMED_ROWS = 8192  # whose product is summed in their own precision
FLOAT32_MIN, FLOAT32_MAX = 1e-12, 1e12  # largest entry of a block that is multiplied in float32
LEAST_SQUARES = 1e-25  # sum of float32 squares to which those that underflow, below 1e-38 each, add nothing
MIN_SQUARE, MAX_SQUARE = 1e-28, 1e38  # the range in which float32 holds sums of squares


@dataclass(frozen=True)
class Host:
    """NumPy as a library of arrays on a device, whose place is the host's memory."""

    name: ClassVar[str] = "numpy"
    library: ClassVar[str] = "numpy"
    driven: ClassVar[bool] = False
    xp: ClassVar[ModuleType] = np
    identity: ClassVar[dict[str, object]] = {}
    reads_too: ClassVar[bool] = False
    slab_bytes: ClassVar[int] = 0

    def put(self, values: Any) -> Any:
        """Return the array."""
        return values

    rows = sent = fetch = put

    def home(self, value: Any, *, square: bool, order: str) -> Any:
        """Return what a state keeps."""
        return value

    def precise(self) -> AbstractContextManager[None]:
        """Return what statements run in: nothing has to be set."""
        return nullcontext()

    driving = precise

    def dtype_of(self, array: Any) -> DType:
        """Return the dtype of an array."""
        dtype: DType = array.dtype
        return dtype

    def floats(self, values: Any, dtype: DType) -> Any:
        """Return values in a floating-point dtype."""
        return values.astype(dtype, copy=False)

    def square_shape(self, d: int) -> tuple[int, ...]:
        """Return the shape of what a state keeps of a symmetric matrix (d, d): its packed triangle."""
        return (packed_size(d),)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike = np.float64, order: str = "C") -> Array:
        """Return zeros."""
        return np.zeros(shape, dtype, order=order)  # type: ignore[call-overload, no-any-return]

    def tile_rows(self, own: int, row_bytes: int, least: int = 1) -> int:
        """Return the rows that are used at a time: those that suit the host's cache, which are given."""
        return own

    def ahead(self, own: int) -> int:
        """Return how many tiles idle threads make at a time."""
        return own

    def beside(self, rows: Any, dtype: DType) -> Any:
        """Return rows that are compared with a block in that dtype."""
        return rows

    def reading(self, plain: Any, sending: Any, ahead: int) -> tuple[Any, int]:
        """Return the reader of rows that are multiplied here, and how many reads it makes ahead."""
        return plain, 1

    def lacking(self, size: int) -> int:
        """Return what a panel of that size takes beyond half of a device's memory."""
        return 0

    def speed(self) -> dict[str, float]:
        """Return the speed of a device."""
        return {}

    def tile_edge(self, itemsize: int) -> int:
        """Return the rows and columns of a square tile of a device."""
        return 1

    def taken(self, states: object, rows: object, merging: int, *, staying: bool) -> tuple[Host, int]:
        """Return what multiplies blocks for states, and what they take of a device."""
        return self, 0

    def within_range(self, values: Any, largest: float | None) -> Any:
        """Return rows, in float64 if float32 does not hold their products."""
        return within_range(values, largest)

    def power_of_two(self, values: Any, axis: int | None = None) -> Any:
        """Return by what values are multiplied before their products: rows beyond float32 are float64 here."""
        return 1.0

    def scaled(self, values: Any, scale: Any) -> Any:
        """Return values times a power of two, which is 1."""
        return values

    def mean_of(self, values: Any, dtype: DType | None = None) -> Any:
        """Return the mean of the finite values of rows (b, d), rounded to a dtype."""
        return form_of(values).mean(values, dtype)

    def shifted(self, values: Any, shift: Any | None, dtype: DType) -> tuple[Any, Any, Any, Any]:
        """Subtract a shift (d,) from rows in place, or their mean; return them, their sums, the shift, and a centre."""
        form = form_of(values)
        near = form.first_shift(values, shift, values.dtype)
        values = form.affine(values, near, None, values)
        sums = form.column_sums(values)
        return values, sums, *form.origin(near, sums, *values.shape)

    def subtracted(self, centre: Any) -> Any:
        """Return what is subtracted from products with rows of a block that has a centre."""
        return centre

    def sums(self, values: Any, weights: Vector | None = None, *, axis: int = 0) -> Vector:
        """Return the sums of the columns of (weighted) rows."""
        return form_of(values).column_sums(values, weights=weights)

    def squares(self, values: Any, weights: Vector | None = None, scale: Any = None) -> Vector:
        """Return the (weighted) sums of squares of columns (d,), in float64."""
        return form_of(values).column_squares(values, weights)

    def add_squares(self, block: Any, shift: Vector | None, squares: Vector) -> tuple[Any, Vector]:
        """Return a block about the shift of its group, and the squares with its own."""
        return block.form.add_squares(block, shift, squares), squares

    def add_left(self, product: Matrix, V: Matrix, values: Any, block: Any) -> Matrix:
        """Return a product with ``V' values``."""
        block.form.add_left(product, V, values, block)
        return product

    def row_squares(self, rows: Array) -> Vector:
        """Return the sum of squares of each row (b,), in float64."""
        out = np.empty(len(rows))
        for i in range(0, len(rows), 256):
            part = rows[i : i + 256].astype(np.float64, copy=False)
            out[i : i + 256] = np.einsum("ij,ij->i", part, part)
        return out

    def seen(self, V: Any, sums: Vector, shift: Vector) -> Vector:
        """Return the sums of rows that came in float64, with a mark where values are tiny, but not 0."""
        return form_of(V).seen(V, sums, shift)

    def add_pair(self, rows: Values, columns: Values, target: Array, there: list[Any]) -> None:
        """Add the product of rows (a, d) with others (d, b) to a tile (a, b)."""
        form_of(rows).add_pair(rows, columns, target)

    def store(self, K: Array, target: Array, there: list[Any]) -> None:
        """Store a tile."""
        target[...] = K

    def kernel_sums(self, V: Array, product: Matrix, squares: Vector, start: int) -> KernelSums:
        """Return what multiplies tiles of a kernel matrix by V (n, l), for rows from ``start`` on."""
        return KernelSums(V, product, squares, start)

    def all_finite(self, arrays: object) -> bool:
        """Whether all values of arrays of a device are finite; blocks here are looked at as they are made."""
        return True

    def product(self, V: Any, Z: Any) -> Any:
        """Return ``V'Z``, in the precision of both; V may be sparse."""
        return V.T @ Z

    def square(self, here: Any, there: Any) -> Matrix:
        """Return the scatter of moments, fetched or where they were, as a new (d, d) matrix: its upper triangle."""
        scatter: Matrix = here.scatter
        return scatter

    def whole(self, packed: Vector, d: int) -> Matrix:
        """Return both triangles of a packed matrix (d, d)."""
        return unpack(packed, d)

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
        """Return how many of ``rows`` rows are centred at a time, about the same number each time.

        That many rows are still in the cache when they are multiplied. Fewer would be slow, and the BLAS multiplies a
        single row by another routine, with other last bits.
        """
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

    scale: ClassVar[float] = 1.0

    def __init__(self, factor: Any) -> None:
        self.factor, self._rows = factor, 0
        self._open: Array | None = None

    def multiply(self, V: Values) -> Array:
        """Return ``V W`` (b, l)."""
        return form_of(V).by_rows(self.factor.multiply, V)

    def add(self, total: Matrix, V: Values, Z: Array) -> Matrix:
        """Add ``V'Z`` (d, l) to the open sum; return the one in float64."""
        if self._open is None or self._open.dtype != V.dtype or self._rows + V.shape[0] > SUMMED_ROWS:
            self._flush(total)
            self._open, self._rows = form_of(V).zeros(V, Z.shape[1]), 0
        form_of(V).add_product(V, Z, self._open)
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


def within_range(values: Values, largest: float | None = None) -> Values:
    """Convert values to float64 if products of two, or of two with a third, would leave the range of float32."""
    if values.dtype == np.float64 or 0 in values.shape:
        return values
    if largest is None:
        largest = magnitude(form_of(values).stored(values))
    return values if largest == 0 or FLOAT32_MIN < largest < FLOAT32_MAX else values.astype(np.float64)


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
