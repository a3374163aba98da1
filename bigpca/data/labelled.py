"""Tables with feature names: xarray.DataArray and Dask DataFrame, recognised without importing xarray or pandas."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from bigpca.data.cells import is_cells
from bigpca.data.containers import check_columns, is_dask_frame, is_labelled, reject_foreign
from bigpca.data.conventions import check_decoded
from bigpca.data.grids import label, labels_of
from bigpca.data.marks import mark
from bigpca.data.rounding import note_rounded
from bigpca.data.views import names_of


def lazy_table(X: Any) -> Any:
    """Return the array behind a labelled table, without computing it; other arguments are returned unchanged.

    Raises
    ------
    ValueError
        For a DataArray whose attributes show that its values are still encoded.
    TypeError
        For columns of a Dask DataFrame that do not hold numbers.
    """
    if is_labelled(X):
        check_decoded(
            X.attrs, f"the DataArray {X.name!r}", 'Open it without mask_and_scale=False, or take xr.decode_cf(ds)["x"]'
        )
        return X.data if X.chunks is not None or is_held(X) else X.chunk({X.dims[0]: "auto"}).data
    return _frame_rows(X) if is_dask_frame(X) else X


def with_index(rows: da.Array, X: Any) -> da.Array:
    """Return the rows of a frame of pandas or Dask, or of AnnData, with the index that names them; others unchanged."""
    if is_cells(X):
        return mark(rows, "index", X.obs_names)
    return mark(rows, "index", X.index) if hasattr(X, "loc") and hasattr(X, "index") else rows


def is_held(X: Any) -> bool:
    """Whether this is a DataArray over an array in memory, for which ``X.data`` reads no file."""
    return is_labelled(X) and X.chunks is None and bool(not X.ndim or X.variable._in_memory)


def sample_rows(X: Any, count: int) -> Any:
    """Return the values of a DataArray with its first ``count`` dimensions, those of the samples, as one.

    Lazily, unless that is a view of the memory.
    """
    values = lazy_table(X)
    if count == 1:
        return values
    n, rest = math.prod(values.shape[:count]), values.shape[count:]
    if not isinstance(values, da.Array):
        reject_foreign(values, "the source")
        values = np.asarray(values)
        if all(values.strides[i] == values.strides[i + 1] * values.shape[i + 1] for i in range(count - 1)):
            return values.reshape(n, *rest)
        values = da.from_array(values, chunks=("auto",) + (-1,) * (values.ndim - 1), name=False)
    return values.rechunk(dict.fromkeys(range(1, values.ndim), -1)).reshape(n, *rest)


def feature_names(X: Any, axes: tuple[int, ...] | None = None) -> NDArray[np.object_] | None:
    """Return the names of the features of a table, or None if it has none.

    For a Dask DataFrame, its columns if they are strings; for a DataArray, the coordinates of all dimensions but the
    first as strings, joined by commas if features have several dimensions; ``axes`` are those of a sample that make
    features, by default all. For a Dask array, those that :func:`bigpca.open` gave it.

    Raises
    ------
    TypeError
        If some column names are strings and others are not, as in scikit-learn.
    """
    if isinstance(X, da.Array):
        names, labels = names_of(X), labels_of(X)
        return labels.grid.names() if names is None and labels is not None else names
    if is_dask_frame(X) or (hasattr(X, "columns") and hasattr(X, "dtypes")):
        names = np.asarray(list(X.columns), dtype=object)
        kinds = sorted({type(name).__qualname__ for name in names})
        if len(kinds) > 1 and "str" in kinds:
            raise TypeError(
                f"Feature names are only supported if all input features have string names, but X has {kinds}. Convert "
                "them all: X.columns = X.columns.astype(str)."
            )
        return names if kinds == ["str"] else None
    if not is_labelled(X):
        return None
    return label(X, None)[1].grid.names(axes)


def _frame_rows(X: Any) -> da.Array:
    """Return the rows of a Dask DataFrame, in the common dtype of its columns, without computing partitions."""
    check_columns(X)
    dtypes = []
    for given in X.dtypes:
        dtype = getattr(given, "numpy_dtype", given)
        held = dtype.kind == "f" or (given is dtype and dtype.kind in "biu")
        dtypes.append(dtype if held else np.dtype(np.float64))  # NaN for missing values
    common = np.result_type(*dtypes) if dtypes else np.dtype(np.float64)
    return X.map_partitions(_values, common, meta=np.empty((0, len(dtypes)), common))


def note_rounded_columns(frame: Any) -> None:
    """Tally the integers of a frame (pandas, polars, pyarrow) that are rounded by conversion to float64."""
    if not hasattr(frame, "iloc"):
        for name in getattr(frame, "column_names", frame.columns):
            note_rounded(np.asarray(frame[name]))
        return
    for j, given in enumerate(frame.dtypes):
        if getattr(given, "kind", "") in "iu":  # NumPy's, or pandas' nullable ones
            note_rounded(frame.iloc[:, j].fillna(0).to_numpy(dtype=getattr(given, "numpy_dtype", given)))


def _values(part: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    check_columns(part)  # what a frame says of its partitions need not be true
    if dtype.kind != "f":
        return np.asarray(part.to_numpy(dtype=dtype))
    note_rounded_columns(part)
    return np.asarray(part.to_numpy(dtype=dtype, na_value=np.nan))
