"""Symmetric products of the rows of a block, as the accumulators sum them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca.arrays import Array, DType
from bigpca.passes.reading.arithmetic import Arithmetic, Values
from bigpca.passes.reading.blocks import cached_rows

MIN_SQUARE, MAX_SQUARE = 1e-28, 1e38  # between which float32 holds sums of squares


def column_squares(values: Values) -> NDArray[np.float64]:
    """Return the sum of squares of every column in float64, a few rows at a time: no second slab in float64."""
    total = np.zeros(values.shape[1])
    if isinstance(values, csr_array):
        np.add.at(total, values.indices, values.data.astype(np.float64) ** 2)
        return total
    step = cached_rows(8 * values.shape[1])
    for i in range(0, len(values), step):
        rows = values[i : i + step].astype(np.float64, copy=False)
        total += np.einsum("ij,ij->j", rows, rows)
    return total


def product_scratch(d: int, dtype: DType) -> Array:
    """Return a (d, d) array of zeros for :func:`symmetric_product` to write to, again and again."""
    return np.zeros((d, d), dtype)


def symmetric_product(rows: Array, out: Array, arithmetic: Arithmetic) -> Array:
    """Return the upper triangle of ``rows' rows`` (d, d), in ``out`` where its precision holds it, else in float64.

    Squares of float32 overflow beyond 1e19 and vanish below 1e-19; such blocks are multiplied again in float64. Below
    the diagonal, ``out`` keeps what it had: zeros, when it was made by :func:`product_scratch`.
    """
    arithmetic.rank_update(rows, out, False)
    if rows.dtype == np.float64 or _squares_held(np.diagonal(out), rows):
        return out
    wide = rows.astype(np.float64)
    product: Array = np.matmul(wide.T, wide)
    return product


def add_symmetric_product(rows: Array, out: Array, arithmetic: Arithmetic) -> bool:
    """Add the upper triangle of ``rows' rows`` to ``out`` (d, d) in its precision, where that holds every square of it.

    Returns
    -------
    bool
        False where it does not; ``out`` is then as it was.
    """
    if rows.dtype != np.float64:
        squares = np.einsum("ij,ij->j", rows, rows)
        if not (_squares_held(squares, rows) and (np.diagonal(out) + squares < MAX_SQUARE).all()):
            return False
    arithmetic.rank_update(rows, out, True)
    return True


def _squares_held(squares: Array, rows: Array) -> bool:
    """Whether float32 sums of the columns' squares neither overflowed nor lost a value that is not zero."""
    small = np.flatnonzero(squares < MIN_SQUARE)
    return bool(np.isfinite(squares).all()) and not (len(small) and rows[:, small].any())
