"""The error of implicit centring: of sums of squares about zero from which the mean is subtracted afterwards.

Rows are centred before they are multiplied everywhere else in the library. Of sparse rows that would store every zero.
Their sums are in float64 instead, and the digits that the subtraction costs are bounded, reported and limited.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
MAX_CENTRING_ERROR = 1e-6


def centring_error(squares: Vector, scatter: Vector) -> float:
    """Return ``max_j eps sum_t x_tj^2 / scatter_jj``, the relative error of the variance of the worst column.

    Parameters
    ----------
    squares : ndarray of shape (d,)
        ``sum_t w_t x_tj^2`` of the rows that were centred afterwards; 0 for columns that are known exactly.
    scatter : ndarray of shape (d,)
        ``sum_t w_t (x_tj - mean_j)^2`` of all rows.

    Raises
    ------
    ValueError
        Beyond 1e-6; names the column.
    """
    if not len(squares):
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(squares > 0, np.finfo(np.float64).eps * squares / np.maximum(scatter, 0), 0)
    worst = int(np.argmax(errors))
    if errors[worst] > MAX_CENTRING_ERROR:
        share = max(float(scatter[worst]), 0.0) / float(squares[worst])
        raise ValueError(
            f"column {worst} of the sparse rows varies little about its mean: its sum of squares is "
            f"{squares[worst]:.3g}, of which {share:.1e} is variance. Centred without storing its zeros, its variance "
            f"has a relative error of {errors[worst]:.1e}, over {MAX_CENTRING_ERROR:.0e}. Subtract a constant from the "
            "column, leave it out, or pass dense rows: X.toarray(), or of a Dask array X.map_blocks(lambda block: "
            "block.toarray())."
        )
    return float(errors[worst])


def add_known(a: Vector | None, b: Vector | None) -> Vector | None:
    """Return the sum of two vectors, of which None is zero."""
    return b if a is None else a if b is None else a + b
