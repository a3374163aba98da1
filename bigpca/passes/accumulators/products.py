"""Symmetric products of the rows of a block, in the precision that holds their squares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca import csr
from bigpca.arrays import Array, DType
from bigpca.passes.reading.arithmetic import Arithmetic, Values
from bigpca.passes.reading.blocks import cached_rows

MIN_SQUARE, MAX_SQUARE = 1e-28, 1e38  # the range in which float32 holds sums of squares


def column_squares(values: Values, weights: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Return the (weighted) sum of squares of every column in float64, converting only a few rows at a time."""
    total = np.zeros(values.shape[1])
    if isinstance(values, csr_array):
        csr.add_column_sums(values, total, weights, power=2)
        return total
    step = cached_rows(8 * values.shape[1])
    for i in range(0, len(values), step):
        rows = values[i : i + step].astype(np.float64, copy=False)
        total += np.einsum("ij,ij->j", rows, rows) if weights is None else weights[i : i + step] @ rows**2
    return total


def product_scratch(d: int, dtype: DType) -> Array:
    """Return a (d, d) array of zeros for :func:`symmetric_product` to write to repeatedly."""
    return np.zeros((d, d), dtype)


def symmetric_product(rows: Array, out: Array, arithmetic: Arithmetic) -> Array:
    """Return the upper triangle of ``rows' rows`` (d, d), in ``out`` if its precision holds it, else in float64.

    Squares of float32 overflow beyond 1e19 and underflow below 1e-19; such blocks are multiplied again in float64. The
    entries of ``out`` below the diagonal do not change: they are zeros if :func:`product_scratch` returned it.
    """
    arithmetic.rank_update(rows, out, False)
    if rows.dtype == np.float64 or _squares_held(np.diagonal(out), rows):
        return out
    wide = rows.astype(np.float64)
    product: Array = np.matmul(wide.T, wide)
    return product


def add_symmetric_product(rows: Array, out: Array, arithmetic: Arithmetic) -> bool:
    """Add the upper triangle of ``rows' rows`` to ``out`` (d, d) in its precision, if that holds every square.

    Returns
    -------
    bool
        False if it does not; ``out`` is then unchanged.
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
