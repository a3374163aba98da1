"""One batch as NumPy arrays, rows and labels, whatever library's arrays or tensors these are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.checks import check_dtype
from bigpca.data.containers import reject_foreign, table_rows, unmasked
from bigpca.errors import brief

Rows = NDArray[Any]


def split_batch(batch: Any, label: str) -> tuple[Rows, Any]:
    """Return the rows of a batch as a NumPy array of at least one dimension, and its labels or None.

    A list or tuple of one or two arrays is (rows,) or (rows, labels), as a DataLoader yields it.

    Raises
    ------
    TypeError
        For what is not an array of numbers.
    """
    parts = _parts(batch)
    if len(parts) > 2:
        raise TypeError(f"{label} has {len(parts)} arrays. Give the rows, or the rows and their labels.")
    return batch_values(parts[0], label), host_array(parts[1]) if len(parts) == 2 else None


def _parts(batch: Any) -> Sequence[Any]:
    pair = isinstance(batch, list | tuple) and len(batch) > 0 and len(getattr(batch[0], "shape", ())) > 1
    parts: Sequence[Any] = batch if pair else (batch,)
    return parts


def same_columns(batch: Any, names: list[Any] | None, label: str) -> list[Any] | None:
    """Return the names of the columns of the batches so far, of which this one may be a table.

    Raises
    ------
    ValueError
        If this one has other names than those before, or another order.
    """
    rows = _parts(batch)[0]
    found = list(rows.columns) if hasattr(rows, "columns") and hasattr(rows, "dtypes") else names
    if names is not None and found != names:
        raise ValueError(
            f"{label} has the columns {brief(found)}, but the batches before {brief(names)}. The same columns in the "
            "same order were expected."
        )
    return found


def batch_values(rows: Any, label: str) -> Rows:
    """Return an array or tensor as a NumPy array of a dtype that PCA can use; bfloat16 becomes float32, exactly."""
    if not hasattr(rows, "detach"):
        reject_foreign(rows, label)
        rows = table_rows(rows, label)
    try:
        array = unmasked(rows) if isinstance(rows, np.ma.MaskedArray) else host_array(rows)
    except ValueError:
        raise TypeError(
            f"{label} is a {type(rows).__name__} that is no array of numbers. Give an array (b, d), or a pair of such "
            "rows and their labels."
        ) from None
    if array.dtype.type.__module__ == "ml_dtypes" and array.dtype.itemsize <= 2:
        array = array.astype(np.float32)
    return array.astype(check_dtype(array.dtype), copy=False)


def host_array(array: Any) -> Rows:
    """Return an array or a tensor as a NumPy array in the host's memory, without importing the tensor's library."""
    if not hasattr(array, "detach"):
        return np.asarray(array)
    tensor = array.detach().cpu()
    try:
        return np.asarray(tensor)
    except (TypeError, RuntimeError):  # NumPy has no such dtype
        return np.asarray(tensor.float())


def fitting(rows: Rows, dtype: np.dtype[Any], first: int) -> Rows:
    """Return rows in a dtype.

    Raises
    ------
    ValueError
        If finite values overflow it; names the first row.
    """
    if rows.dtype == dtype:
        return rows
    with np.errstate(over="ignore", invalid="ignore"):  # of NaN in integers, too
        cast = rows.astype(dtype)
    changed = np.isinf(cast) & np.isfinite(rows) if dtype.kind == "f" else cast != rows
    if changed.any():
        place = tuple(np.argwhere(changed)[0])
        raise ValueError(
            f"row {first + place[0]:,} has {rows[place]}, which {dtype.name} cannot hold. Choose a wider dtype."
        )
    return cast
