"""What is not finite in rows, and what becomes of it in the rows that a map returns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca.arrays import Array
from bigpca.errors import NonFiniteError, counted
from bigpca.passes.reading.arithmetic import Values


def settle_non_finite(rows: Values, mapped: Array, where: str, nan_policy: str, name: str) -> None:
    """Reject what is not finite in mapped rows, or make all of such a row NaN, in place.

    Parameters
    ----------
    rows : ndarray of shape (b, d), or csr_array
    mapped : ndarray of shape (b, k)
        Each value must depend on its whole row: rows with finite results are not checked.
    where : str
        Names the rows in messages; ``name`` names the results.
    nan_policy : {"raise", "omit"}
        Anything but "omit" is to raise.

    Raises
    ------
    NonFiniteError
        Where rows hold NaN or infinities and the policy is to raise.
    ValueError
        If finite rows overflow.
    """
    if np.isfinite(mapped).all():
        return
    lines = np.unique(bad_places(rows)[0])
    if not len(lines):
        remedy = "Divide the data by a constant first." if mapped.dtype == np.float64 else "Pass float64 input."
        raise ValueError(f"{name} of {where} overflow {mapped.dtype}: the values are too large. {remedy}")
    if nan_policy != "omit":
        reject_non_finite(rows, where, name)
    mapped[lines] = np.nan


def bad_places(rows: Values) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and columns of NaN and infinities, in order of rows."""
    if isinstance(rows, csr_array):
        bad = np.flatnonzero(~np.isfinite(rows.data))
        return np.searchsorted(rows.indptr, bad, side="right") - 1, rows.indices[bad].astype(np.int64)
    lines, columns = np.nonzero(~np.isfinite(rows))
    return lines, columns


def reject_non_finite(rows: Values, where: str, name: str) -> None:
    """Reject rows (b, d) that hold NaN or infinities; ``where`` and ``name`` as for :func:`settle_non_finite`.

    Raises
    ------
    NonFiniteError
        With the number of such values and rows, and the first of them.
    """
    lines, columns = bad_places(rows)
    if len(lines):
        count = counted(len(lines), "NaN or infinite value")
        raise NonFiniteError(
            f"{count} in {counted(len(np.unique(lines)), 'row')} of {where}: the first in its "
            f"row {lines[0]}, column {columns[0]}. Finite values were expected; "
            f'nan_policy="omit" gives such rows NaN {name}.'
        )
