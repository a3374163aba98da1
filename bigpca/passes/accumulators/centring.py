"""The error of implicit centring: of sums of squares from which the mean is subtracted afterwards.

Rows are centred before they are multiplied everywhere else in the library. Of sparse rows that would store every zero.
Their sums are in float64 instead, and the digits that the subtraction costs are bounded, reported and limited.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
MAX_CENTRING_ERROR = 1e-6
COMPENSATED = 4  # roundings of a compensated sum, its square and their difference


def lost_squares(squares: Vector, terms: int) -> Vector:
    """Return what rounding may have cost sums of squares (d,) of so many terms, and the subtraction of their mean."""
    return np.finfo(np.float64).eps * (terms + COMPENSATED) * squares


def centring_error(lost: Vector, scatter: Vector) -> float:
    """Return ``max_j lost_j / scatter_jj``, the relative error of the variance of the worst column.

    Parameters
    ----------
    lost : ndarray of shape (d,)
        Bounds of the errors of sums that were centred afterwards; 0 for columns that are known exactly.
    scatter : ndarray of shape (d,)
        ``sum_t w_t (x_tj - mean_j)^2`` of all rows.

    Raises
    ------
    ValueError
        Beyond 1e-6; names the column.
    """
    if not len(lost):
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(lost > 0, lost / np.maximum(scatter, 0), 0)
    worst = int(np.argmax(errors))
    if errors[worst] > MAX_CENTRING_ERROR:
        raise ValueError(
            f"column {worst} of the sparse rows varies little about its mean. Centred without storing its zeros, its "
            f"variance has a relative error of up to {errors[worst]:.1e}, over {MAX_CENTRING_ERROR:.0e}. Subtract a "
            "constant from the column, leave it out, or pass dense rows: X.toarray(), or of a Dask array "
            "X.map_blocks(lambda block: block.toarray())."
        )
    return float(errors[worst])


def add_known(a: Vector | None, b: Vector | None) -> Vector | None:
    """Return the sum of two vectors, of which None is zero."""
    return b if a is None else a if b is None else a + b
