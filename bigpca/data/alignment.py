"""Weights and labels in the order of the rows, joined by key."""

from __future__ import annotations

import logging
import os
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from bigpca.data.cells import is_cells
from bigpca.data.containers import is_labelled
from bigpca.data.grids import label, labels_of
from bigpca.data.keys import row_keys, stored_keys
from bigpca.data.label_files import column_names, read_label_file
from bigpca.data.label_joins import ABSENT, join_labels, keys_listed
from bigpca.data.label_tables import key_column
from bigpca.data.label_values import label_values, with_gaps
from bigpca.data.samples import repeat_labels
from bigpca.data.views import view_of

log = logging.getLogger("bigpca")


def by_key(values: Any, X: Any, keys: Any = None, *, absent: Any = ABSENT) -> NDArray[Any]:
    """Return weights or labels in the order of the rows of X: those with the same key, wherever they are in a table.

    Parameters
    ----------
    values : pandas or Dask Series or frame, path such as "weights.csv::weight", or array-like, of shape (m,) or (m, c)
        What a fit takes as ``sample_weight`` or ``y``, in any order; entries of other rows may be among them.
    X : path, array of :func:`bigpca.open`, pandas or Dask DataFrame, AnnData, or xarray.DataArray
        Rows with keys: those in their store, as :func:`bigpca.stored_keys` returns, an index, the names of cells, or a
        coordinate of the samples. Of rows that a pattern makes of samples, each has the value of its sample. X is not
        read, except for the index of a Dask DataFrame.
    keys : array-like of shape (m,), or path such as "weights.csv::name", default None
        Keys of the values, strings or integers; None for the index of a Series, or the keys in a store of values.
    absent : default "raise"
        The value of rows whose key the values lack: 0 leaves them out as weights, None as labels with
        ``missing_labels="drop"``. "raise" rejects such rows.

    Returns
    -------
    ndarray of shape (n,) or (n, c)

    Raises
    ------
    ValueError
        If a row has no value, or no row has one; if a key has two values or a value no key; and if X or the values have
        no keys. Names the keys. Values of other rows are named in the log: in a warning, where rows lack a value too.
    TypeError
        For keys that are neither strings nor integers.

    Examples
    --------
    >>> import pathlib, tempfile, bigpca as bp
    >>> rows = bp.ingest(np.eye(3), pathlib.Path(tempfile.mkdtemp()) / "rows.zarr", keys=["a", "b", "c"])
    >>> by_key([2.5, 1.0], rows, ["c", "a"], absent=0).tolist()
    [1.0, 0.0, 2.5]
    """
    own = _keys_of(X)
    if keys is None:
        keys = named_rows(values)
    if keys is None:
        raise ValueError(_without_keys(values, own))
    entries = with_gaps(*label_values(values, "value"))
    joined = join_labels(entries, keys, own, absent=absent, word="value")
    _note_others(label_values(keys, "key").values.astype(np.str_), own)
    if isinstance(X, da.Array) and (view := view_of(X)[1]) is not None and view.rows_per_sample > 1:
        return repeat_labels(joined, X)
    return with_gaps(*label_values(joined, "value"))


def named_rows(X: Any) -> Any:
    """Return what names the rows of X, unchecked: stored keys, or an index, the names of cells, or a coordinate.

    Of an array that :func:`bigpca.open` opened with a pattern, the names of the samples.

    Returns
    -------
    array-like of shape (n,), or None where nothing does
    """
    labels = None
    if is_cells(X):
        return np.asarray(X.obs_names, dtype=object)
    if is_labelled(X):
        labels = label(X, None)[1]
    elif isinstance(X, da.Array):
        X = view_of(X)[0]
        labels = labels_of(X)
    elif hasattr(X, "loc") and hasattr(X, "index"):  # tables and series of pandas and Dask
        index = X.index.compute() if hasattr(X.index, "compute") else X.index
        return _texts_of_dates(np.asarray(index))
    if labels is None:
        return stored_keys(X)
    dim, *others = labels.grid.samples
    return None if others or dim not in labels.coords.coords else _texts_of_dates(labels.coords[dim].values)


def _texts_of_dates(names: NDArray[Any]) -> NDArray[Any]:
    """Return names in which dates are strings, of nanoseconds whatever their unit is."""
    return names.astype("M8[ns]").astype(np.str_) if names.dtype.kind == "M" else names


def _keys_of(X: Any) -> NDArray[np.str_]:
    """Return the keys of the rows of X, or of its samples.

    Raises
    ------
    ValueError
    """
    found = named_rows(X)
    if found is None:
        raise ValueError(
            f"the rows of X ({type(X).__name__}) have no keys. Store them: bigpca.ingest(X, path, keys=...); or pass "
            "the path of rows that have keys, a table with an index, AnnData, or a DataArray with a coordinate."
        )
    return row_keys(found)


def _without_keys(values: Any, own: NDArray[np.str_]) -> str:
    """Return the message about values of which nothing says to which rows they belong."""
    path = os.fspath(values).partition("::")[0] if isinstance(values, str | os.PathLike) else ""
    names = column_names(path) if path else []
    likely = key_column({name: read_label_file(f"{path}::{name}", "key") for name in names}, own)
    given = f'keys="{path}::{likely or "COLUMN"}"' if names else "keys=, or a Series with an index of keys"
    return f"the values have no keys, such as {keys_listed(own[:2])}, to join them to the rows by. Pass {given}."


def _note_others(keys: NDArray[np.str_], own: NDArray[np.str_]) -> None:
    """Log which values belong to no row: in a warning where rows lack a value, because the keys may be misspelt."""
    others = keys[~np.isin(keys, own)]
    lacking = own[~np.isin(own, keys)]
    if not len(others):
        return
    message = "%s of %s values belong to no row of X: %s."
    if not len(lacking):
        log.info(message, f"{len(others):,}", f"{len(keys):,}", keys_listed(others))
        return
    log.warning(
        message + " %s of %s rows have no value: %s. Check the spelling of the keys.",
        f"{len(others):,}", f"{len(keys):,}", keys_listed(others), f"{len(lacking):,}", f"{len(own):,}",
        keys_listed(lacking),
    )  # fmt: skip
