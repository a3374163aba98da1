"""Row keys: one distinct string for each row, stored beside the rows, so that tables join by key, not by position."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.cell_files import cell_names
from bigpca.data.checks import MemberError
from bigpca.data.containers import is_zarr_array
from bigpca.data.label_joins import keys_listed
from bigpca.data.label_values import label_values, rows_shown
from bigpca.data.parquet import parquet_metadata
from bigpca.data.row_source import RowSource
from bigpca.data.storages import file_stamp
from bigpca.data.zarr_groups import is_array_directory
from bigpca.errors import brief
from bigpca.storage.annotations import KEY_COLUMN, KEYS
from bigpca.storage.forms import TABLE_MARK
from bigpca.storage.regular import check_regular
from bigpca.storage.stores import kind_of

if TYPE_CHECKING:
    import dask.array as da

MAX_KEY_LENGTH = 1024  # characters; every key takes the memory of the longest


def row_keys(keys: Any, n: int | None = None) -> NDArray[np.str_]:
    """Read and check the keys of n rows; they are held whole, four bytes for each character of the longest times n.

    Parameters
    ----------
    keys : array, list, pandas or Dask object, zarr.Array or path
        Strings or integers, read as labels are (:func:`bigpca.data.labels.open_labels`): a path is
        ``"labels.csv::filename"``, a ``.npy`` file, Parquet or a Zarr store. Integers become their decimal digits.
    n : int or None
        Number of rows; None for any.

    Returns
    -------
    ndarray of shape (n,), str; distinct and not empty

    Raises
    ------
    ValueError
        For another number of keys than rows, and for missing, doubled and overlong keys, with the rows that have them.
    TypeError
        For keys that are neither strings nor integers.

    Examples
    --------
    >>> row_keys([7, 12], 2).tolist()
    ['7', '12']
    """
    values, gaps = label_values(keys, "key")
    if values.ndim != 1:
        raise ValueError(
            f"keys have shape {values.shape}; one column, (n,), was expected. Name the column of the keys."
        )
    if n is not None and len(values) != n:
        raise ValueError(
            f"X has {n:,} row{'s'[: n != 1]}, but {len(values):,} key{'s'[: len(values) != 1]}. Give one key for each "
            "row, in the order of the rows."
        )
    if values.dtype.kind not in "iuU" and not gaps.all():
        raise TypeError(
            f"keys have dtype {values.dtype}; strings or integers were expected. Convert them, for instance with "
            "astype(str)."
        )
    found: NDArray[np.str_] = values.astype(np.str_)
    missing = gaps | (found == "")
    if missing.any():
        raise ValueError(
            f"{missing.sum():,} of {len(found):,} rows have no key ({rows_shown(missing)}). Give a key to each row, or "
            "no keys."
        )
    lengths = np.char.str_len(found)
    long = lengths > MAX_KEY_LENGTH
    if long.any():
        raise ValueError(
            f"{long.sum():,} of {len(found):,} keys have more than {MAX_KEY_LENGTH:,} characters ({rows_shown(long)}); "
            f"the longest has {lengths.max():,}. Use shorter keys."
        )
    codes = np.ascontiguousarray(found).view(np.uint32).reshape(len(found), found.itemsize // 4)
    surrogate = np.asarray(((codes >= 0xD800) & (codes < 0xE000)).any(axis=1))
    if surrogate.any():
        raise ValueError(
            f"{surrogate.sum():,} of {len(found):,} keys cannot be stored in UTF-8 ({rows_shown(surrogate)}), such as "
            f"{brief(ascii(found[surrogate][0]))}: bytes of file names in another encoding. Give other keys there."
        )
    found = found.astype(f"U{max(1, lengths.max(initial=0))}", copy=False)  # integers were given room for any
    _check_distinct(found)
    return found


def _check_distinct(keys: NDArray[np.str_]) -> None:
    ordered = np.sort(keys)
    same = ordered[1:] == ordered[:-1]
    if not same.any():
        return
    names = np.unique(ordered[1:][same])
    doubled = np.isin(keys, names)
    raise ValueError(
        f"{doubled.sum():,} of {len(keys):,} rows share their key with another row: {keys_listed(names)} "
        f"({rows_shown(doubled)}). Keys must be distinct: choose another column, or join columns to one that is."
    )


def stored_keys(source: Any) -> NDArray[np.str_] | None:
    """Return the row keys that are stored beside the rows of a source.

    Parameters
    ----------
    source : path, URL or Dask array
        A Zarr array that ``transform(out=..., keys=...)`` or ``ingest(..., keys=...)`` wrote, scores in a Parquet or
        ``.npy`` table, a matrix of AnnData in a file, whose keys are the names of the cells, or what
        :func:`bigpca.open` returned for one. Of such an array also slices ``X[a:b:s]`` of rows and columns, and lazy
        scores, which have the keys of their rows. Anything else has no keys.

    Returns
    -------
    ndarray of shape (n,), str; or None where there are none

    Raises
    ------
    CorruptedChunkError, MissingChunksError, ValueError
        If there are keys, but damaged.

    Examples
    --------
    >>> import pathlib, tempfile, bigpca as bp
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.zarr"
    >>> X = bp.ingest(np.eye(3), path, keys=["a", "b", "c"])
    >>> stored_keys(path).tolist(), stored_keys(X[::2]).tolist(), stored_keys(np.eye(2))
    (['a', 'b', 'c'], ['a', 'c'], None)
    """
    if hasattr(source, "dask") and hasattr(source, "chunks"):  # not a DataArray
        base, places, samples = origin_of_rows(source)
        found = None if samples else keys_of_source(_source_of(base))
        return found if found is None or places is None else found[places]
    return keys_of_source(source)


def keys_of_source(source: Any) -> NDArray[np.str_] | None:
    """Return the keys beside what a path, a RowSource or a Zarr array reads; raises as :func:`stored_keys`."""
    path = path_of_source(source)
    place = _place_of_keys(path)
    with suppress(FileNotFoundError, MemberError):
        if place is not None:
            return row_keys(place)
    names = cell_names(path) if path else None
    return None if names is None else row_keys(names)


def origin_of_rows(X: da.Array) -> tuple[da.Array, NDArray[np.int64] | None, bool]:
    """Return the array that names the rows of X, the place of each row in it, and whether samples have several rows.

    It is found through slices, views and maps of rows: what :func:`bigpca.open` returned, or X where they lead nowhere.
    """
    from bigpca.data.grids import labels_of  # these import dask.array, which paths do not need
    from bigpca.data.marks import marked, sliced_from
    from bigpca.data.views import view_of

    places, samples = None, False
    while True:
        base, own = sliced_from(X, ("index", "labels", "rows", "of"))
        if own is not None:
            places = own if places is None else own[places]
        if marked(base, "index") is not None or labels_of(base) is not None:
            return base, places, samples
        before, view = marked(base, "rows"), None
        if before is None:
            before, view = view_of(base)
        if before is base:
            return base, places, samples
        if view is not None and view.rows_per_sample > 1:
            places = (np.arange(base.shape[0]) if places is None else places) // view.rows_per_sample
            samples = True
        X = before


def _source_of(X: da.Array) -> Any:
    from bigpca.data.sources import source_of  # imports dask.array, which paths do not need

    return source_of(X)


def path_of_source(source: Any) -> str:
    """Return the path beside which keys may lie; "" for none."""
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    if is_zarr_array(source):
        root = getattr(source.store, "root", "")
        return os.path.join(root, source.path) if root else ""
    if not isinstance(source, RowSource):
        return ""
    member = source.member.strip("/") if source.path and source.format in ("zarr", "hdf5") else ""
    return os.path.join(source.path, member) if member else source.path


def _place_of_keys(path: str) -> str | None:
    """Return where the label reader finds the keys of what lies at a path; None where there cannot be any."""
    if kind_of(path) != "disk":
        return f"{path.rstrip('/')}/{KEYS}"
    path = os.path.abspath(os.path.expanduser(path)) if path else ""
    if os.path.isfile(path) and _has_key_column(path):
        return f"{path}::{KEY_COLUMN}"
    beside = os.path.join(path, KEYS)
    return beside if path and is_array_directory(path) and is_array_directory(beside) else None


def _has_key_column(path: str) -> bool:
    """Whether a file is a table that bigpca wrote, with keys."""
    if path.lower().endswith(".npy"):
        check_regular(path)
        with suppress(ValueError, EOFError):  # damaged: whoever reads its rows reports that
            return KEY_COLUMN in (np.lib.format.open_memmap(path, mode="r").dtype.names or ())
    if not path.lower().endswith(".parquet"):
        return False
    schema = parquet_metadata(file_stamp(path)).schema.to_arrow_schema()
    return TABLE_MARK in (schema.metadata or {}) and KEY_COLUMN in schema.names
