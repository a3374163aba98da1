"""Products of sparse rows (CSR), compiled, and what they cost: ``X Q`` and ``X'Z`` with thin matrices, and ``X'X``.

Rows are multiplied in tiles, so that the rows of the dense matrix that a tile needs stay in a core's cache. Measured on
one core, with 30,000 columns, 5 % of them stored, and 110 columns of Q: 21e9 operations per second for the product and
13e9 for the transposed one in float32, 11e9 and 8e9 in float64; SciPy 6e9 and 3e9, whatever the order of Q.

Every sum has one fixed order: 256 terms (of a row of ``X Q``) or rows (of ``X'Z``) at a time, and then their sums. So
the rounding of terms that are alike, as those of a column of ones, does not add up beyond what
:func:`bigpca.solvers.certificates.product_slack` allows for, and the bits of a row of ``X Q`` depend on that row alone.

Compiled on first use in each process (about a second per precision), as :mod:`bigpca.kernels.loops`. The compiled code
releases the GIL.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array, csr_matrix

from bigpca.arrays import Array, DType, Integers, Matrix, Vector
from bigpca.costs import STRIP_BYTES, BlockForm, Work
from bigpca.forms import DENSE, DenseForm, magnitude

RUN = 256  # terms, or rows, that are summed in order
# An operation of a sparse product counts as one operation, and a term of a product with a sparse matrix: fits and
# precisions are chosen by these, so they are fixed.
SLOWER, SCATTERED = 15.0, 100.0
TILE_BYTES = 1 << 18  # of the dense matrix: one row of it for each column of a tile
TILE_VALUES = 8  # stored values of a row that a tile should hold on average, so that the loops are worth their start
INDEX_BYTES = 4  # of a stored value's column, in the blocks that tasks read
SPARSE_SLAB_BYTES = 36 << 20  # two chunks of 16 MiB or one of 32, with their row ends, whatever the rounding of rows
GRAM_TILE_VALUES = 1 << 17  # stored values of a tile, 1.5 MiB with their columns
TILE_VALUE_BYTES = 3 * 16  # of a value of a tile about others: the terms of a difference and the result
SAMPLED = 1024  # rows that say which columns nearly all rows store
FULL = 0.9  # share of rows that store a column, above which the others store its zeros too
PAIR_FLOPS = {4: 100, 8: 50}  # operations of a dense product in the time of one pair of stored values, by item size
STRICT = frozenset(("contract", "nsz"))  # no reordering of sums


def multiply(rows: csr_array, Q: Array) -> Array:
    """Return ``rows @ Q`` (b, l) in the dtype of the rows.

    Parameters
    ----------
    rows : csr_array of shape (b, d), float32 or float64, with indices in range
    Q : ndarray of shape (d, l)
    """
    Z = np.empty((rows.shape[0], Q.shape[1]), rows.dtype)
    if Z.size:
        compiled(_multiply)(*_parts(rows), np.ascontiguousarray(Q, rows.dtype), Z, _tile_columns(rows, Q.shape[1]))
    return Z


def add_product(rows: csr_array, Z: Array, out: Array) -> None:
    """Add ``rows' Z`` to ``out``.

    Parameters
    ----------
    rows : csr_array of shape (b, d), float32 or float64, with indices in range
    Z : ndarray of shape (b, l)
    out : ndarray of shape (d, l); fastest in C order and of the dtype of the rows
    """
    if not Z.size:
        return
    direct = out.flags.c_contiguous and out.dtype == rows.dtype
    total = out if direct else np.zeros(out.shape, rows.dtype)
    compiled(_add_product)(*_parts(rows), np.ascontiguousarray(Z, rows.dtype), total, _tile_columns(rows, Z.shape[1]))
    if not direct:
        out += total


def add_column_sums(rows: csr_array, total: Vector, weights: Vector | None = None, power: int = 1) -> None:
    """Add ``sum_t w_t x_t^power`` (d,), power 1 or 2, to ``total``; w = 1 without weights.

    In float64, and exact to the rounding of the terms and of the result, however many rows there are.
    """
    w = np.zeros(0) if weights is None else np.ascontiguousarray(weights, np.float64)
    compiled(_add_column_sums)(*_parts(rows), w, total, power == 2)


def add_sparse_product(rows: csr_array, W: csr_array, out: Array) -> None:
    """Add ``rows @ W`` to ``out`` (b, l), for W (d, l) in CSR too, with a few entries in each row."""
    compiled(_add_sparse_product)(*_parts(rows), *_parts(W), out)


def row_squares(rows: csr_array) -> Vector:
    """Return ``|x_t|^2`` (b,) in float64."""
    squares: Vector = np.bincount(_lines(rows), rows.data.astype(np.float64) ** 2, rows.shape[0]).astype(np.float64)
    return squares


def residuals_above_zero(rows: csr_array, totals: Vector, shares: Vector, theta: float, clip: float) -> csr_array:
    """Return the Pearson residuals of counts, at most ``clip``, less those of zeros; what is not finite stays so."""
    values = np.empty(rows.nnz)
    compiled(_residuals_above_zero)(*_parts(rows), totals, shares, theta, clip, values)
    return csr_array((values, rows.indices, rows.indptr), rows.shape)


def product_flops(rows: BlockForm, columns: float) -> float:
    """Return the cost of a row times a matrix with ``columns`` columns, in operations at the speed of a dense product.

    Each value costs 2 operations for each column. In sparse rows only stored values cost anything, each as much as
    fifteen values of a dense row.
    """
    return 2.0 * (SLOWER if rows.sparse else 1.0) * rows.values * columns


def sparse_product_flops(rows: BlockForm, entries: float) -> float:
    """Return the cost of a row times a matrix with ``entries`` entries in each row, as :func:`product_flops`.

    Of sparse rows, each term is added at a place of its own, which counts as a hundred.
    """
    return 2.0 * (SCATTERED if rows.sparse else 1.0) * rows.values * entries


def product_bytes(rows: BlockForm, columns: int) -> int:
    """Return the memory of a product beside its input and output: none for dense rows."""
    if not rows.sparse:
        return 0
    width = columns * rows.itemsize
    return 2 * max(64, TILE_BYTES // max(1, width)) * width + 16 * rows.columns


def pair_work(rows: BlockForm, n: int) -> Work:
    """Return the cost of the products of a row with half of n others."""
    if not rows.sparse:
        return Work(0, float(n * rows.columns))
    # Later rows, half of all, that store a column: between what even columns would have, and all of them.
    return Work(0, sparse_product_flops(rows, n / 2 * (rows.values / max(1, rows.columns)) ** 0.5))


def entry_flops(rows: BlockForm, of_columns: Callable[[int], float]) -> float:
    """Return the cost of one entry of a kernel; ``of_columns`` gives it for a number of columns."""
    return of_columns(0) + product_flops(rows, 1) if rows.sparse else of_columns(rows.columns)


def copy_bytes(rows: BlockForm) -> int:
    """Return the memory of a copy of rows, in their precision."""
    return int((2 if rows.sparse else 1) * rows.rows * rows.values * rows.itemsize)


def multiplied(rows: BlockForm, slab_rows: int) -> tuple[BlockForm, int]:
    """Return what is multiplied of a block at a time, and the rows of products that are copied as they are centred."""
    return (rows, rows.rows) if rows.sparse else (replace(rows, rows=slab_rows), 0)


def made_bytes(rows: BlockForm, columns: int) -> int:
    """Return the memory of products of a tile of columns that are added up; dense rows reuse one array."""
    return (2 if rows.sparse else 1) * rows.rows * columns * rows.itemsize


def widened_bytes(rows: BlockForm) -> int:
    """Return the memory of sparse rows in float64, in which alone they are multiplied from the left."""
    return math.ceil(12 * rows.rows * rows.values) if rows.sparse else 0


def cut_bytes(rows: BlockForm, tile: int) -> int:
    """Return the memory of sparse rows that are cut into tiles of columns; slices of dense rows are not copied."""
    cut = rows.sparse and tile < rows.columns
    return int(2 * rows.rows * rows.values * (rows.itemsize + 4)) if cut else 0


def _parts(rows: csr_array) -> tuple[Integers, NDArray[np.int32], Array]:
    indices = np.ascontiguousarray(rows.indices, np.int32)  # one type for the compiler, whatever a store uses
    return np.asarray(rows.indptr, np.int64), indices, np.ascontiguousarray(rows.data)


def _tile_columns(rows: csr_array, width: int) -> int:
    """Return the columns of a tile; the bits of a product do not depend on it."""
    stored = max(1, int(rows.indptr[-1]))
    filled = TILE_VALUES * int(rows.shape[0]) * int(rows.shape[1]) // stored
    return max(64, TILE_BYTES // max(1, width * int(rows.dtype.itemsize)), filled)


@cache
def compiled(loop: Callable[..., Any], fastmath: frozenset[str] = STRICT) -> Any:
    """Return a function of arrays, compiled; no sum of it is reordered, unless ``fastmath`` says so.

    Compiling takes a process some seconds. Where ``NUMBA_CACHE_DIR`` names a folder, Numba keeps the result there. It
    keeps none elsewhere: next to the package, a cache would fail on a read-only or shared installation.
    """
    numba = importlib.import_module("numba")
    numba.config.reload_config()  # the variable may have been set since Numba was imported
    try:
        os.makedirs(numba.config.CACHE_DIR, exist_ok=True)
        kept = os.access(numba.config.CACHE_DIR, os.W_OK)  # Numba would look for another folder, or raise an error
    except OSError:  # it names none, or one that cannot be made
        kept = False
    return numba.njit(loop, fastmath=set(fastmath), nogil=True, cache=kept)


def _multiply(ptr: Any, indices: Any, values: Any, Q: Any, Z: Any, width: int) -> None:
    """Multiply tile by tile; four rows of Q at a time, so that z is loaded and stored once for the four."""
    (n, columns), d = Z.shape, len(Q)
    at = np.empty(RUN, np.int64)  # the next stored value of each row of a strip
    totals = np.zeros((RUN, columns), Z.dtype)  # sums of its complete runs
    for first in range(0, n, RUN):
        last = min(n, first + RUN)
        for t in range(first, last):
            at[t - first] = ptr[t]
            Z[t, :] = 0
        for start in range(0, d, width):
            stop = start + width
            for t in range(first, last):
                z, s, end = Z[t], at[t - first], ptr[t + 1]
                while s < end and (indices[s] < stop or stop >= d):
                    run = min(end, s - (s - ptr[t]) % RUN + RUN)  # the end of the run
                    while s + 4 <= run and (indices[s + 3] < stop or stop >= d):
                        a, b, c, e = values[s], values[s + 1], values[s + 2], values[s + 3]
                        p, q, r, u = Q[indices[s]], Q[indices[s + 1]], Q[indices[s + 2]], Q[indices[s + 3]]
                        for j in range(columns):
                            total = z[j] + a * p[j]
                            total = total + b * q[j]
                            total = total + c * r[j]
                            z[j] = total + e * u[j]
                        s += 4
                    while s < run and (indices[s] < stop or stop >= d):
                        a, p = values[s], Q[indices[s]]
                        for j in range(columns):
                            z[j] += a * p[j]
                        s += 1
                    if s == run and s < end:
                        for j in range(columns):
                            totals[t - first, j] += z[j]
                            z[j] = 0
                at[t - first] = s
        for t in range(first, last):
            if ptr[t + 1] - ptr[t] > RUN:
                for j in range(columns):
                    Z[t, j] += totals[t - first, j]
                    totals[t - first, j] = 0


def _add_product(ptr: Any, indices: Any, values: Any, Z: Any, out: Any, width: int) -> None:
    """Sum the terms of a tile, those of a strip of rows, and add each sum to its row of ``out``."""
    (n, columns), d = Z.shape, len(out)
    at = np.empty(RUN, np.int64)
    place = np.full(min(width, d), -1, np.int64)  # of the sum of a column of the tile
    found, sums = np.empty(len(place), np.int64), np.empty((len(place), columns), Z.dtype)
    for first in range(0, n, RUN):
        last = min(n, first + RUN)
        for t in range(first, last):
            at[t - first] = ptr[t]
        for start in range(0, d, width):
            stop, count = start + width, 0
            for t in range(first, last):
                z, s, end = Z[t], at[t - first], ptr[t + 1]
                while s < end and (indices[s] < stop or stop >= d):
                    a, c = values[s], indices[s] - start
                    s += 1
                    if c < 0:  # of indices that are not sorted
                        for j in range(columns):
                            out[start + c, j] += a * z[j]
                        continue
                    if place[c] < 0:
                        place[c], found[count] = count, c
                        for j in range(columns):
                            sums[count, j] = 0
                        count += 1
                    row = sums[place[c]]
                    for j in range(columns):
                        row[j] += a * z[j]
                at[t - first] = s
            for i in range(count):
                row, total = sums[i], out[start + found[i]]
                for j in range(columns):
                    total[j] += row[j]
                place[found[i]] = -1


def _add_sparse_product(ptr: Any, indices: Any, values: Any, ends: Any, places: Any, entries: Any, out: Any) -> None:
    for t in range(len(ptr) - 1):
        z = out[t]
        for s in range(ptr[t], ptr[t + 1]):
            j, value = indices[s], values[s]
            for e in range(ends[j], ends[j + 1]):
                z[places[e]] += value * entries[e]


def _add_column_sums(ptr: Any, indices: Any, values: Any, weights: Any, total: Any, squared: bool) -> None:
    """Add terms by Neumaier's compensated summation, because means are subtracted from these sums afterwards."""
    lost = np.zeros(len(total))
    for t in range(len(ptr) - 1):
        w = weights[t] if len(weights) else 1.0
        for s in range(ptr[t], ptr[t + 1]):
            value, c = np.float64(values[s]), indices[s]
            term = w * (value * value if squared else value)
            before = total[c]
            after = before + term
            if abs(before) >= abs(term):
                lost[c] += (before - after) + term
            else:
                lost[c] += (term - after) + before
            total[c] = after
    for c in range(len(total)):
        total[c] += lost[c]


def _residuals_above_zero(
    ptr: Any, indices: Any, values: Any, totals: Any, shares: Any, theta: float, clip: float, out: Any
) -> None:
    for t in range(len(totals)):
        for s in range(ptr[t], ptr[t + 1]):
            value, expected = np.float64(values[s]), totals[t] * shares[indices[s]]
            out[s] = 0 if np.isfinite(value) else value
            if expected > 0 and np.isfinite(value):
                precision = 1 / np.sqrt(expected * (1 + expected / theta))
                out[s] = min(value * precision, clip + expected * precision)


# A tile of rows is read by columns: row j of the result is the sum of the rows that store column j, from there on, and
# stays in a core's cache meanwhile. Measured on one core at 2,000 columns, in microseconds per row:
#
#     stored values               2 %    5 %   10 %   20 %
#     this product                2.5     10     26     87
#     SciPy's                      14     35     95    250
#     dense strips, float32        28     30     31     34
#     dense strips, float64        52     59     63     69
#
# Compiled on first use in each process, as :mod:`bigpca.csr`. Every sum is in the order of the rows, so that its bits
# do not depend on tiles; values are multiplied in float64, where products of float32 are exact.


def prefers_strips(rows: csr_array) -> bool:
    """Whether dense strips of these rows are multiplied faster, decided by the counted pairs of stored values."""
    stored = np.diff(rows.indptr).astype(np.float64)
    return bool(_pair_flops(stored @ stored, rows.dtype.itemsize) > float(rows.shape[0]) * rows.shape[1] ** 2)


def gram_work(rows: BlockForm) -> Work:
    """Return the scratch space of ``X'X``, and its operations per row at the speed of a dense product.

    Of sparse rows by :func:`add_gram`, in tiles that are not one row of more values (their order by columns, and their
    values about others), or by dense strips if those are faster.
    """
    d, v = rows.columns, rows.values
    if not rows.sparse:  # two products in float64 at most; the operations are those of one triangle of X'X
        return Work(16 * d**2, float(d * (d + 1)))
    tile, pairs = tile_values(d), _pair_flops(v**2, 4)
    held, flops = (24 + TILE_VALUE_BYTES) * tile + 16 * d, min(pairs, float(d) ** 2)
    return Work(8 * d**2 + STRIP_BYTES + 16 * d + held, flops)  # one product, of values or of strips


def tile_bytes(rows: BlockForm) -> int:
    """Return the memory of a tile of sparse rows about others; 0 of dense rows."""
    return TILE_VALUE_BYTES * tile_values(rows.columns) if rows.sparse else 0


def tile_values(d: int) -> int:
    """Return the stored values of a tile, unless it is one row of more."""
    return max(GRAM_TILE_VALUES, 4 * d)


def _pair_flops(squares: float, itemsize: int) -> float:
    return squares * PAIR_FLOPS[itemsize]


def usual_values(rows: csr_array) -> Vector:
    """Return for each column that nearly all rows store the value nearest its mean; 0 for other columns.

    Sums about these values lose no digits to the mean, and constant columns become zero. Of the others at least a tenth
    of the rows is zero, so that their squares exceed ten times their scatter in no block like this one.
    """
    first = rows[:SAMPLED]
    stored = np.bincount(first.indices, minlength=rows.shape[1])
    full, usual = np.flatnonzero(stored > FULL * first.shape[0]), np.zeros(rows.shape[1])
    values = first[:, full].toarray().astype(np.float64)
    if values.size:
        nearest = np.abs(values - values.mean(axis=0)).argmin(axis=0)
        usual[full] = values[nearest, np.arange(len(full))]
    return usual


@dataclass
class SparseGram:
    """Sums of products of the sparse rows of one group, about zero, or about a value that most rows are near.

    Attributes
    ----------
    about : ndarray of shape (d,)
    product : ndarray of shape (d, d), float64; only the upper triangle is computed
    sums : ndarray of shape (d,)
    """

    about: Vector
    product: NDArray[np.float64]
    sums: Vector

    def add(self, rows: csr_array, weights: Vector | None) -> None:
        """Add the rows of a block."""
        add_gram(rows, weights, self.product, self.sums, self.about)


def add_gram(rows: csr_array, weights: Vector | None, out: NDArray[np.float64], sums: Vector, about: Vector) -> None:
    """Add the upper triangle of ``sum_t w_t (x_t - a)(x_t - a)'`` to ``out``, and ``sum_t w_t (x_t - a)`` to ``sums``.

    Parameters
    ----------
    rows : csr_array of shape (b, d), float32 or float64, with sorted indices in range
    weights : ndarray of shape (b,) or None
    out : ndarray of shape (d, d), in C order
    sums : ndarray of shape (d,)
    about : ndarray of shape (d,)
        a; 0 for columns that many rows do not store, because their zeros would be stored in a tile.
    """
    for tile, w in tiles_about(rows, weights, about):
        add_column_sums(tile, sums, w)
        compiled(_gram)(tile.indptr.astype(np.int64), tile.indices, tile.data, w, out)


def tiles_about(rows: csr_array, weights: Vector | None, about: Vector) -> Iterator[tuple[csr_array, Vector]]:
    """Yield a few rows at a time, less the values of ``about`` (d,), and their weights, none if there are none."""
    full = np.flatnonzero(about)
    w = np.zeros(0) if weights is None else np.ascontiguousarray(weights, np.float64)
    ends, most = np.asarray(rows.indptr, np.int64), tile_values(rows.shape[1])
    start = 0
    while start < rows.shape[0]:
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + most, side="right")) - 1)
        tile = rows[start:stop]
        yield _less(tile, about[full], full) if len(full) else tile, w[start:stop]
        start = stop


def _less(rows: csr_array, values: Vector, columns: Integers) -> csr_array:
    """Return rows minus the values in some columns, in float64, where a difference of float32 keeps all its digits."""
    b, index = rows.shape[0], rows.indices.dtype
    ends = np.arange(b + 1, dtype=rows.indptr.dtype) * len(columns)
    shift = csr_array((np.tile(values, b), np.tile(columns.astype(index), b), ends), rows.shape)
    return csr_array(rows.astype(np.float64) - shift)


def _gram(ptr: Any, indices: Any, values: Any, weights: Any, out: Any) -> None:
    n, d, stored = len(ptr) - 1, len(out), len(values)
    starts = np.zeros(d + 1, np.int64)  # of the columns, among the values in order of columns
    for s in range(stored):
        starts[indices[s] + 1] += 1
    for j in range(d):
        starts[j + 1] += starts[j]
    places, ends, scaled = np.empty(stored, np.int64), np.empty(stored, np.int64), np.empty(stored, np.float64)
    at = starts[:d].copy()
    for t in range(n):
        w = weights[t] if len(weights) else 1.0
        for s in range(ptr[t], ptr[t + 1]):
            e = at[indices[s]]
            places[e], ends[e], scaled[e] = s, ptr[t + 1], w * np.float64(values[s])
            at[indices[s]] += 1
    for j in range(d):
        row = out[j]
        for e in range(starts[j], starts[j + 1]):
            v = scaled[e]
            for s in range(places[e], ends[e]):
                row[indices[s]] += v * np.float64(values[s])


def _constants(indices: Any, stored: Any, values: Any, counts: Any) -> None:
    for s in range(len(stored)):
        j = indices[s]
        if counts[j] == 0:
            values[j] = stored[s]
        elif values[j] != stored[s]:
            values[j] = np.nan
        counts[j] += 1


def _lines(rows: csr_array) -> Integers:
    return np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))


class CsrForm(DenseForm):
    """Rows that store some values: nothing is subtracted from them, because a shift would make them dense."""

    shifts: ClassVar[bool] = False
    once: ClassVar[str] = (
        'Write the array once, still sparse, with anndata.io.write_elem(zarr.open_group(out, mode="w"), "X", X) '
        "and open that."
    )

    def meta(self, dtype: Any) -> Any:
        """Return ``csr_matrix``, as in anndata and scanpy."""
        return csr_matrix((0, 0), dtype=dtype)

    def row_bytes(self, values: float, itemsize: int) -> float:
        return values * (itemsize + INDEX_BYTES) + INDEX_BYTES  # their columns, and the end of the row

    def stored(self, rows: csr_array) -> Array:
        values: Array = rows.data
        return values

    def here(self, rows: csr_array) -> csr_array:
        return rows

    def dense(self, rows: csr_array) -> Array:
        values: Array = rows.toarray()
        return values

    def content(self, rows: csr_array, first: int) -> Any:
        entries = np.empty(rows.nnz, [("row", "<i8"), ("column", "<i8"), ("value", rows.dtype)])
        entries["row"], entries["column"], entries["value"] = first + _lines(rows), rows.indices, rows.data
        return entries.view(np.uint8).data

    def places(self, rows: csr_array, chosen: NDArray[np.bool_]) -> tuple[Integers, Integers]:
        at = np.flatnonzero(chosen)
        return np.searchsorted(rows.indptr, at, side="right") - 1, rows.indices[at].astype(np.int64)

    def mapped(
        self, rows: csr_array, f: Callable[..., Array], *by_column: Array, by_row: Sequence[Array] = (), **out: Any
    ) -> csr_array:
        """Return rows with other stored values in the same places."""
        # NumPy repeats the numbers of rows: SciPy's product with a diagonal takes five times as long.
        of_rows = [np.repeat(numbers, np.diff(rows.indptr)) for numbers in by_row]
        values = f(rows.data, *(vector[rows.indices] for vector in by_column), *of_rows)
        return csr_array((values, rows.indices, rows.indptr), rows.shape)

    def along_rows(self, rows: csr_array, f: np.ufunc, dtype: DTypeLike | None = None) -> Array:
        found = np.zeros(rows.shape[0], rows.dtype if dtype is None else dtype)
        f.at(found, _lines(rows), rows.data.astype(found.dtype, copy=False))
        return found

    def affine(self, rows: csr_array, shift: Vector | None, inverse_scale: Vector | None, out: Any = None) -> csr_array:
        return rows if inverse_scale is None else self.mapped(rows, np.multiply, inverse_scale.astype(rows.dtype))

    def multiply(self, V: csr_array, Q: Array, out: Any = None) -> Array:
        return multiply(V, Q)

    def projected(self, V: csr_array, mean: Array, axes: Array, strip: int) -> Array:
        scores: Array = self.multiply(V.astype(np.float64, copy=False), axes) - axes.T @ mean  # which keeps the zeros
        return scores

    def projected_dtype(self, dtype: Any) -> Any:
        return np.dtype(np.float64)

    def add_product(self, V: csr_array, Z: Array, out: Array | None = None) -> Array:
        out = np.zeros((V.shape[1], Z.shape[1]), V.dtype) if out is None else out
        add_product(V, Z, out)
        return out

    def add_sketched(self, V: csr_array, part: Any, out: Array, step: int) -> None:
        add_sparse_product(V, part.T, out)

    def add_pair(self, rows: csr_array, columns: csr_array, target: Array) -> None:
        add_sparse_product(rows, columns, target)

    def column_sums(
        self, values: csr_array, total: Vector | None = None, weights: Vector | None = None, dtype: Any = None
    ) -> Vector:
        total = np.zeros(values.shape[1]) if total is None else total
        add_column_sums(values, total, weights)
        return total

    def column_squares(self, values: csr_array, weights: Vector | None = None, scale: Any = None) -> Vector:
        total = np.zeros(values.shape[1])
        add_column_sums(values, total, weights, power=2)
        return total

    def add_squares(self, block: Any, shift: Vector | None, squares: Vector) -> tuple[Any, Vector]:
        about = np.where(block.origin == 0, 0, usual_values(block.values)) if shift is None else shift
        sums = np.zeros(len(about))
        for tile, w in tiles_about(block.values, block.weights, about):
            add_column_sums(tile, sums, w)
            add_column_sums(tile, squares, w, power=2)
        return replace(block, shift=about, sums=sums), squares

    def row_norms(self, values: csr_array) -> Array:
        norms: Array = np.sqrt(row_squares(values)).astype(values.dtype)
        return norms

    def known(self, values: csr_array) -> tuple[csr_array, Integers]:
        finite = np.isfinite(values.data)
        missing = np.bincount(values.indices[~finite], minlength=values.shape[1])
        zeros = self.mapped(values, lambda stored: np.where(finite, stored, 0))
        return zeros, np.maximum(1, values.shape[0] - missing)

    def first_shift(self, values: csr_array, shift: Array | None, dtype: Any) -> Array | None:
        return shift  # it is subtracted from products, not from rows

    def centred(
        self, values: csr_array, shift: Array | None, *, owned: bool, dtype: Any, find_largest: bool = False
    ) -> tuple[csr_array, Vector, float]:
        values = values.astype(dtype, copy=False)
        return values, self.column_sums(values), magnitude(values.data) if find_largest else 0.0

    def shifted(
        self, values: csr_array, shift: Array | None, dtype: Any
    ) -> tuple[csr_array, Vector, Vector, Vector | None]:
        sums = self.column_sums(values)
        return values, sums, *self.origin(shift, sums, *values.shape)

    def total(self, values: csr_array) -> Vector:
        return self.column_sums(values)

    def origin(self, shift: Array | None, sums: Vector, count: int, d: int) -> tuple[Vector, Vector | None]:
        return np.zeros(d), np.asarray(sums / max(1, count) if shift is None else shift)

    def strips_of(self, block: Any, shift: Array | None) -> Iterator[Any]:
        for values, first in self.parts(block.values, False):
            part = slice(first, first + len(values))
            strip = block.about(values, block.rows[part], shift)
            shift = strip.shift
            yield strip if block.weights is None else strip.weighted(block.weights[part])

    def parts(self, rows: csr_array, whole: bool) -> Iterator[tuple[Any, int]]:
        if whole:
            yield rows, 0
            return
        step = max(1, STRIP_BYTES // max(1, rows.shape[1] * rows.dtype.itemsize))
        for i in range(0, max(1, rows.shape[0]), step):
            yield self.dense(rows[i : i + step]), i

    def gram(self, rows: csr_array) -> SparseGram | None:
        d = int(rows.shape[1])
        return None if prefers_strips(rows) else SparseGram(usual_values(rows), np.zeros((d, d)), np.zeros(d))

    def add_left(self, product: Array, V: Array, values: csr_array, block: Any) -> Array:
        total = np.zeros(product.shape[::-1])  # in float64, because these rows are about zero
        self.add_product(values.astype(np.float64, copy=False), V, total)
        product += total.T
        return product

    def note_constants(self, rows: csr_array, values: Vector, counts: Integers) -> None:
        compiled(_constants)(rows.indices, rows.data, values, counts)


SPARSE = CsrForm()


@dataclass(frozen=True)
class FactoredRows:
    """Rows ``stored + left right`` whose zeros have values too: functions of a number of their row and one of their
    column, which a product of two thin factors approximates.

    Attributes
    ----------
    stored : csr_array of shape (b, d), float64
    left : ndarray of shape (b, q)
    right : ndarray of shape (q, d)
    single : dtype
        Of dense rows made of them.
    """

    stored: csr_array
    left: Array
    right: Array
    single: DType
    dtype: ClassVar[DType] = np.dtype(np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        """(b, d)."""
        b, d = self.stored.shape
        return b, d

    def __getitem__(self, rows: Any) -> FactoredRows:
        """Return some of the rows."""
        return replace(self, stored=self.stored[rows], left=self.left[rows])

    def astype(self, dtype: DTypeLike, copy: bool = True) -> FactoredRows:
        """Return the rows: they are always multiplied in float64, because their two parts may cancel."""
        return self


class FactoredForm(CsrForm):
    """Sparse rows plus a thin product: sums and products are those of both parts."""

    factors: ClassVar[bool] = True

    def stored(self, rows: FactoredRows) -> Array:
        return super().stored(rows.stored)

    def dense(self, rows: FactoredRows) -> Array:
        values = rows.left @ rows.right
        values += rows.stored
        return values.astype(rows.single, copy=False)

    def whole(self, rows: FactoredRows) -> Array:
        return self.dense(rows)

    def places(self, rows: FactoredRows, chosen: NDArray[np.bool_]) -> tuple[Integers, Integers]:
        return super().places(rows.stored, chosen)

    def linear(self, rows: FactoredRows, f: Callable[[Any], Array]) -> Array:
        product = f(rows.stored)
        product += rows.left @ f(rows.right)
        return product

    def multiply(self, V: FactoredRows, Q: Array, out: Any = None) -> Array:
        return self.linear(V, lambda part: form_of(part).multiply(part, Q))

    def add_product(self, V: FactoredRows, Z: Array, out: Array | None = None) -> Array:
        out = super().add_product(V.stored, Z, out)
        out += V.right.T @ (V.left.T @ Z)
        return out

    def column_sums(
        self, values: FactoredRows, total: Vector | None = None, weights: Vector | None = None, dtype: Any = None
    ) -> Vector:
        total = super().column_sums(values.stored, total, weights)
        total += (values.left.sum(axis=0) if weights is None else weights @ values.left) @ values.right
        return total

    def column_squares(self, values: FactoredRows, weights: Vector | None = None, scale: Any = None) -> Vector:
        total = super().column_squares(values.stored, weights)
        total += 2 * np.einsum("jq,qj->j", self.crossed(values, weights), values.right)
        return np.maximum(total, 0)

    def crossed(self, rows: FactoredRows, weights: Vector | None) -> Matrix:
        """Return M (d, q) with ``X'X = S'S + M right + right'M'`` for the stored values S, weighted."""
        left = rows.left if weights is None else rows.left * weights[:, None]
        M: Matrix = super().add_product(rows.stored, left)
        M += rows.right.T @ (rows.left.T @ left / 2)
        return M

    def note_constants(self, rows: FactoredRows, values: Vector, counts: Integers) -> None:
        values[:], counts[:] = np.nan, 1  # no column is known to be constant

    def gram(self, rows: FactoredRows) -> FactoredGram | None:
        d = int(rows.shape[1])
        return None if prefers_strips(rows.stored) else FactoredGram(np.zeros(d), np.zeros((d, d)), np.zeros(d))


class FactoredGram(SparseGram):
    """Sums of products of sparse rows plus a thin product."""

    def add(self, rows: FactoredRows, weights: Vector | None) -> None:
        """Add the rows of a block."""
        super().add(rows.stored, weights)
        from scipy.linalg.blas import dsyr2k  # takes a tenth of a second, which `bigpca info` does not need

        thin = replace(rows, stored=csr_array(rows.shape))
        FACTORED.column_sums(thin, self.sums, weights)
        crossed, right = FACTORED.crossed(rows, weights).T, np.asfortranarray(rows.right)
        dsyr2k(1.0, crossed, right, beta=1.0, c=self.product.T, trans=True, lower=True, overwrite_c=True)


FACTORED = FactoredForm()
# What row maps make of the sparse rows that they take as they are, by their form: others come in dense strips.
Forms: TypeAlias = Mapping[DenseForm, DenseForm]
KEPT: Forms = {SPARSE: SPARSE}
PRODUCT: Forms = {SPARSE: DENSE}
LINEAR: Forms = {SPARSE: DENSE, FACTORED: DENSE}
RESIDUALS: Forms = {SPARSE: FACTORED}


def sparse_form(factors: bool) -> DenseForm:
    """Return the form of CSR, or of CSR plus the product of two thin factors."""
    return FACTORED if factors else SPARSE


FORMS: dict[type, DenseForm] = {csr_array: SPARSE, csr_matrix: SPARSE, FactoredRows: FACTORED}


def form_of(rows: Any) -> DenseForm:
    """Return what rows do in their own way: those of NumPy, and of other libraries on a device, are dense."""
    return FORMS.get(type(rows), DENSE)
