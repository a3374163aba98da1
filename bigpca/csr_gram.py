"""``X'X`` of sparse rows (CSR) in float64, compiled; and when dense strips of the rows are faster.

A tile of rows is read by columns: row j of the result is the sum of the rows that store column j, from there on, and
stays in a core's cache meanwhile. Measured on one core at 2,000 columns, in microseconds per row:

    stored values               2 %    5 %   10 %   20 %
    this product                2.5     10     26     87
    SciPy's                      14     35     95    250
    dense strips, float32        28     30     31     34
    dense strips, float64        52     59     63     69

Compiled on first use in each process, as :mod:`bigpca.csr`. Every sum is in the order of the rows, so that its bits do
not depend on tiles; values are multiplied in float64, where products of float32 are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca import csr
from bigpca.costs import BlockForm, Work

Vector = NDArray[np.float64]
TILE_VALUES = 1 << 17  # stored values of a tile, 1.5 MiB with their columns
SAMPLED = 1024  # rows that say which columns nearly all rows store
FULL = 0.9  # share of rows that store a column, above which the others store its zeros too
PAIR_FLOPS = {4: 100, 8: 50}  # operations of a dense product in the time of one pair of stored values, by item size
# Of one core: per stored value, per pair, and per entry of the result for each tile, which is read and written again
VALUE_SECONDS, PAIR_SECONDS, RESULT_SECONDS = 3e-8, 6e-10, 1e-9


def prefers_strips(rows: csr_array) -> bool:
    """Whether dense strips of these rows are multiplied faster, decided by the counted pairs of stored values."""
    stored = np.diff(rows.indptr).astype(np.float64)
    return bool(_pair_flops(stored @ stored, rows.dtype.itemsize) > float(rows.shape[0]) * rows.shape[1] ** 2)


def gram_work(rows: BlockForm) -> Work:
    """Return the scratch space of ``X'X``, and its operations per row at the speed of a dense product.

    Of sparse rows, by :func:`add_gram` in tiles that are not one row of more values (their order by columns, and their
    values about others: the terms of a difference and the result), or by dense strips if those are faster; of dense
    rows, those of one triangle, without scratch space.
    """
    d, v = rows.columns, rows.values
    if not rows.sparse:
        return Work(0, float(d * (d + 1)))
    tile, pairs = max(TILE_VALUES, 4 * d), _pair_flops(v**2, 4)
    held, flops = (24 + 3 * 16) * tile + 16 * d, min(pairs, float(d) ** 2)
    if _pair_flops(v**2, rows.itemsize) > d**2:
        return Work(held, flops) + rows.strip_work
    return Work(held, flops, flops, v * (VALUE_SECONDS + PAIR_SECONDS * v + RESULT_SECONDS * d**2 / tile))


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
    full = np.flatnonzero(about)
    w = np.zeros(0) if weights is None else np.ascontiguousarray(weights, np.float64)
    ends, most = np.asarray(rows.indptr, np.int64), max(TILE_VALUES, 4 * rows.shape[1])
    start = 0
    while start < rows.shape[0]:
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + most, side="right")) - 1)
        tile = _less(rows[start:stop], about[full], full) if len(full) else rows[start:stop]
        csr.add_column_sums(tile, sums, w[start:stop])
        csr.compiled(_gram)(tile.indptr.astype(np.int64), tile.indices, tile.data, w[start:stop], out)
        start = stop


def _less(rows: csr_array, values: Vector, columns: NDArray[np.int64]) -> csr_array:
    """Return rows minus the values in some columns, in float64, where a difference of float32 keeps all its digits."""
    b, index = rows.shape[0], rows.indices.dtype
    ends = np.arange(b + 1, dtype=rows.indptr.dtype) * len(columns)
    shift = csr_array((np.tile(values, b), np.tile(columns.astype(index), b), ends), rows.shape)
    return csr_array(rows.astype(np.float64) - shift)


def note_constants(rows: csr_array, values: Vector, counts: NDArray[np.int64]) -> None:
    """Follow which columns are constant, in place.

    Parameters
    ----------
    rows : csr_array of shape (b, d)
    values : ndarray of shape (d,)
        The stored value of each column; NaN where two differ.
    counts : ndarray of shape (d,)
        How many values are stored in each column. In a constant column other than zero, as many as there are rows.
    """
    csr.compiled(_constants)(rows.indices, rows.data, values, counts)


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
