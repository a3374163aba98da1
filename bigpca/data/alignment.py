"""Weights and labels in the order of the rows: what names both, for the rules of :mod:`bigpca.data.keys`.

From the rows of a view back to its samples: scores as maps, and labels of samples for their rows. A file of labels
beside the rows of a store: which columns are labels, keys and pictures.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import bigpca.dask_array as da
from bigpca.data.containers import is_cells, is_labelled
from bigpca.data.grids import label
from bigpca.data.keys import (
    ABSENT,
    Keys,
    given_keys,
    home_of,
    joined,
    keys_carried,
    keys_listed,
    keys_of_bases,
    keys_of_index,
    keys_of_source,
    label_places,
    names_as_texts,
    names_of_samples,
    origins_of_rows,
    stored_keys,
)
from bigpca.data.label_files import column_names, read_label_file, split_column
from bigpca.data.labels import ARGUMENTS, label_values, with_gaps
from bigpca.data.sources import open as open_array
from bigpca.data.views import carried, records_in, sources_in, view_of, was_persisted
from bigpca.errors import counted
from bigpca.storage.files import public

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".pgm", ".ppm")
MAX_COLUMNS = 64  # that are searched for keys and pictures; of more, those that have a name of keys
KEY_NAMES = ("key", "id", "name", "filename", "file", "path")


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Columns of a file of labels, in the order of its lines.

    Attributes
    ----------
    path, column : str
        Of the labels; "" for the column of a file that has no names.
    labels, keys : ndarray of shape (m,), object, or None
        Classes or values; names of the rows. None in the gaps.
    key : str
        Name of the column of keys; "key" for keys beside an array.
    searched : tuple of str
        Other columns.
    read : callable
        Returns a column by name.
    """

    path: str
    column: str
    labels: NDArray[Any] | None
    keys: NDArray[Any] | None
    key: str
    searched: tuple[str, ...]
    read: Callable[[str], NDArray[Any]]

    @property
    def pictures(self) -> NDArray[Any] | None:
        """Paths of images, of shape (m,), object: the first column whose values all end as image files do; or None."""
        return next((values for values in map(self.read, self.searched) if _holds_pictures(values)), None)


def read_table(
    source: str | os.PathLike[str], row_keys: NDArray[np.str_] | None = None, *, keys: Any = None, word: str = "label"
) -> LabelTable:
    """Read a file of labels, and find which of its columns holds keys.

    Parameters
    ----------
    source : path such as "labels.csv" or "labels.csv::class"
        Of a table of several columns (CSV, Parquet, records in ``.npy``, a Zarr group), see :func:`key_column`. A Zarr
        array has the keys that are stored beside it. The labels of a table of two more columns must be named, if these
        are not keys or pictures.
    row_keys : ndarray of shape (n,), str, or None
    keys : path such as "labels.csv::name", where the column of keys is known; others are ignored
    word : what is read, for messages

    Raises
    ------
    FileNotFoundError, MemberError
        If there is no such file, or a column must be named.
    """
    text = os.fspath(source)
    path, column = split_column(text)
    names = column_names(path)
    read = cache(lambda name: read_label_file(f"{path}::{name}", word))
    searched = [
        name
        for name in names
        if name != column and len(names) > 1 and (len(names) <= MAX_COLUMNS or name.lower() in KEY_NAMES)
    ]
    of, key = split_column(keys) if isinstance(keys, str) else ("", None)
    key = key if key and of == path else key_column(searched, read, row_keys)
    left = [name for name in names if name != key]
    if column is None and len(left) > 1:
        left = [name for name in left if not _holds_pictures(read(name))]
    named = column or (left[0] if len(left) == 1 and len(names) > 1 else "")
    labels = None
    if named or left or not names:
        labels = read(named) if named else read_label_file(text, word)  # which names the columns, if there are several
    own = read(key) if key else stored_keys(path) if not names else None
    return LabelTable(path, named, labels, own, key or "key", tuple(searched), read)


def key_column(
    names: Sequence[str], read: Callable[[str], NDArray[Any]], row_keys: NDArray[np.str_] | None = None
) -> str:
    """Return the column that holds the keys of rows, or "".

    Beside rows with keys, that is the first one which holds at least half of them; or else the first with a name of
    keys (key, id, name, filename, file or path); or else, beside rows with keys, the first of paths of images, or of
    which all texts differ.

    >>> columns = {"class": np.array(["a", "b"]), "photo": np.array(["y", "x"])}
    >>> key_column(list(columns), columns.get, np.array(["x", "y"]))
    'photo'
    """
    likely = sorted(names, key=lambda name: name.lower() not in KEY_NAMES)
    if row_keys is not None:
        for name in likely:
            if np.isin(row_keys, _texts(read(name))).mean() >= 0.5:
                return name
    if row_keys is None or (likely and likely[0].lower() in KEY_NAMES):
        return next((name for name in likely if name.lower() in KEY_NAMES), "")
    return next((name for test in (_holds_pictures, _all_differ) for name in names if test(read(name))), "")


def _all_differ(values: NDArray[Any]) -> bool:
    texts = values.tolist()
    return all(isinstance(text, str) for text in texts) and len(set(texts)) == len(texts) > 1


def _texts(values: NDArray[Any]) -> NDArray[np.str_]:
    return values.astype(object).astype(np.str_)  # NumPy does not convert its strings of variable length directly


def _holds_pictures(values: NDArray[Any]) -> bool:
    texts = [text for text in values.tolist() if text is not None]
    return bool(texts) and all(isinstance(text, str) and text.lower().endswith(PICTURE_SUFFIXES) for text in texts)


log = logging.getLogger("bigpca")


def by_key(values: Any, X: Any, keys: Any = None, *, absent: Any = ABSENT) -> NDArray[Any]:
    """Return weights or labels in the order of the rows of X, matched by key.

    Parameters
    ----------
    values : pandas or Dask Series or frame, path such as "weights.csv::weight", or array-like, of shape (m,) or (m, c)
        Anything that a fit takes as ``sample_weight`` or ``y``, in any order; it may include entries for other rows.
    X : path, array of :func:`bigpca.open`, pandas or Dask DataFrame, AnnData, or xarray.DataArray
        Rows with keys: those in their store, as :func:`bigpca.data.stored_keys` returns, an index, the names of cells,
        or a coordinate of the samples. If a pattern cuts samples into rows, each row gets the value of its sample. X is
        not read, except for the index of a Dask DataFrame.
    keys : array-like of shape (m,), path such as "weights.csv::name", or False, default None
        Keys of the values, strings or integers; None for the index of a Series, the keys in a store of values, or the
        key column of a table. False means that values are in the order of the rows, whatever keys they or the rows
        have.
    absent : default "raise"
        The value of rows whose key is missing: 0 leaves them out as weights, None leaves them out as labels with
        ``missing_labels="drop"``. "raise" rejects such rows.

    Returns
    -------
    ndarray of shape (n,) or (n, c)

    Raises
    ------
    ValueError
        If a row has no value, or no row has one; if a key has two values, or a value has no key; and if X or the values
        have no keys. Names the keys. Values of other rows are reported in the log, as a warning if rows also lack a
        value.
    TypeError
        For keys that are neither strings nor integers.

    Examples
    --------
    >>> import pathlib, tempfile, bigpca as bp
    >>> rows = bp.ingest(np.eye(3), pathlib.Path(tempfile.mkdtemp()) / "rows.zarr", keys=["a", "b", "c"])
    >>> by_key([2.5, 1.0], rows, ["c", "a"], absent=0).tolist()
    [1.0, 0.0, 2.5]
    >>> by_key([1, 2, 3], rows, keys=False).tolist()
    [1, 2, 3]
    """
    if keys is False:
        return with_gaps(*label_values(values, "value"))
    found = aligned(values, X, keys, absent=absent, word="value", by_key=True)
    found.note("value")
    return with_gaps(*label_values(found.values, "value"))


@dataclass(frozen=True, eq=False)
class Aligned:
    """Labels or weights in the order of the rows.

    Attributes
    ----------
    values : as they were given, or ndarray of shape (n,) or (n, c)
    places : of :func:`bigpca.data.keys.label_places`; None by position
    how : str
        How labels and rows met, in words; "" for labels without keys that are not in a file.
    doubtful : bool
        Whether the rows have keys and the labels have none, or each has some that the other lacks.
    table : LabelTable or None
        The columns of a file.
    """

    values: Any
    places: tuple[NDArray[np.intp], NDArray[np.bool_]] | None = None
    how: str = ""
    doubtful: bool = False
    table: LabelTable | None = None

    def taken(self, column: NDArray[Any] | None) -> NDArray[Any] | None:
        """Return another column of the file in the order of the rows."""
        return column if column is None or self.places is None else joined(column, self.places, None, "label")

    def note(self, word: str) -> None:
        """Log how labels and rows met, unless neither has keys."""
        if self.places is not None or self.doubtful:
            log.log(logging.WARNING if self.doubtful else logging.INFO, "%ss: %s.", word, self.how)


def in_row_order(values: Any, X: Any, *, absent: Any = ABSENT, word: str = "label") -> Any:
    """Return labels or weights in the order of the rows of X, by :func:`aligned`, and log how they met."""
    found = aligned(values, X, absent=absent, word=word)
    found.note(word)
    return found.values


def aligned(
    values: Any,
    X: Any,
    keys: Any = None,
    *,
    absent: Any = ABSENT,
    word: str = "label",
    by_key: bool = False,
    pictures: bool = False,
) -> Aligned:
    """Return labels or weights in the order of the rows of X, by the rules of :mod:`bigpca.data.keys`.

    Every door goes through here: fits, figures, reports, functions of quality, and the command line.

    Parameters
    ----------
    values : as in :func:`by_key`
    X : rows or scores, as they were given or as they were opened; or their Keys
    keys : as in :func:`by_key`
    absent : "raise", or None for a label that is missing
    word : {"label", "weight", "value"}
    by_key : bool
        Whether they must have keys.
    pictures : bool
        Whether a file may have pictures alone, and no labels.

    Raises
    ------
    ValueError
        By the rules, and for a file without a column of labels.
    """
    if not by_key and (values is None or isinstance(values, np.ndarray | list | tuple)):
        return Aligned(values)
    if is_labelled(values) and isinstance(X, da.Array) and (grid := carried(X).labels) is not None:
        return Aligned(grid.by_sample(values, ARGUMENTS[word]))
    table, file, rows = None, "", Keys()
    if isinstance(values, str | os.PathLike):
        rows = keys_of_rows(X)
        table = read_table(values, rows.of_rows, keys=keys, word=word)
        values, file = table.labels, os.path.basename(table.path)
        if values is None and not pictures:
            raise ValueError(
                f"{file} has no columns other than keys and pictures. Name the column of the {word}s: {file}::column."
            )
    labels = replace(_keys_of_labels(values, table, keys, word), file=file)
    if not file and (by_key or labels.names is not None):
        rows = keys_of_rows(X)
    if by_key:
        rows, labels = rows.firm(), labels.firm()
    own, given = rows.of_rows, labels.of_rows
    if by_key and (own is None or given is None):
        raise ValueError(_without_keys(X, own, table))
    places, how = label_places(rows, labels, absent=absent, word=word), ""
    if places is None or own is None or given is None:
        ignored = own is not None and given is None and keys is None and bool(file)
        how = f"{file}, by position: {word} 1 belongs to row 1" if file else ""
        if ignored and own is not None:
            how += f", for no column of it has keys like those of the rows, such as {keys_listed(own[:1])}"
        return Aligned(values, None, how, ignored, table)
    lacking, spare = own[~places[1]], given[~np.isin(given, own)]
    how = f"{places[1].sum():,}, joined by the key {'' if table is None else table.key}".rstrip()
    how += f"; {len(lacking):,} rows have none, such as {keys_listed(lacking[:1])}" if len(lacking) else ""
    how += f"; {len(spare):,}{file and f' of {file}'} belong to no row: {keys_listed(spare)}" if len(spare) else ""
    values = None if values is None else joined(values, places, absent, word)
    return Aligned(values, places, how, len(lacking) > 0 and len(spare) > 0, table)


def _keys_of_labels(values: Any, table: LabelTable | None, keys: Any, word: str) -> Keys:
    if keys is False:
        return Keys()
    if keys is not None:
        return Keys(given_keys(keys, len(label_values(values, word).values), word))
    if table is None:
        return keys_of_rows(values)
    return Keys(None if table.keys is None else given_keys(table.keys, len(table.keys), word))


def _without_keys(X: Any, own: NDArray[Any] | None, table: LabelTable | None) -> str:
    """Return the message for rows and values where nothing says which belong together."""
    if own is None:
        return (
            f"the rows of X ({type(X).__name__}) have no keys. Store them: bigpca.ingest(X, path, keys=...); or pass "
            "the path of rows that have keys, a table with an index, AnnData, or a DataArray with a coordinate."
        )
    given = "keys=, or a Series with an index of keys" if table is None else f'keys="{table.path}::COLUMN"'
    return f"the values have no keys, such as {keys_listed(own[:2])}, to join them to the rows by. Pass {given}."


def keys_of_rows(X: Any) -> Keys:
    """Return what names the rows of X: stored keys, an index, the names of cells, or a coordinate of the samples."""
    if isinstance(X, Keys):
        return X
    if isinstance(X, da.Array):
        bases, places, samples = origins_of_rows(X)
        found = keys_of_bases(bases)
        if found.names is None:
            stores = [public(str(home_of(one))) for one in sources_in(X) if keys_of_source(one) is not None]
            tables = [keys_carried(one) for one in records_in(X)]
            stores += ["a table or DataArray" for one in tables if one and one.names is not None and not one.loose]
            lost = f"{stores[0]}, whose rows have keys" if stores else ""
            return Keys(lost=lost or ("rows that were persisted, which keep no keys" if was_persisted(X) else ""))
        return replace(found, places=places, samples=samples, several=len(bases) > 1)
    if is_cells(X):
        return Keys(np.asarray(X.obs_names).astype(np.str_))
    if is_labelled(X):
        if X.ndim == 1:
            return Keys(names_as_texts(X.coords[X.dims[0]].values) if X.dims[0] in X.coords else None)
        return Keys(names_of_samples(label(X, None)[1]))
    if hasattr(X, "loc") and hasattr(X, "index"):  # tables and series of pandas and Dask
        return keys_of_index(X.index)
    return Keys(keys_of_source(X))


def as_maps(scores: Any, shape: tuple[int, ...]) -> Any:
    """Return the scores of the places of each sample as a map, lazily if the scores are lazy.

    Parameters
    ----------
    scores : array of shape (n * h * w, k), or a path
        Of rows that a pattern such as ``"n c h w -> (n h w) c"`` makes.
    shape : (h, w)
        Or any other shape for the places of one sample, in the order of the pattern.

    Returns
    -------
    ndarray or dask.array.Array of shape (n, h, w, k)

    Raises
    ------
    ValueError
        If the number of rows is unknown or not a multiple of the number of places.

    Examples
    --------
    >>> as_maps(np.zeros((24, 3)), (4, 2)).shape
    (3, 4, 2, 3)
    """
    if not isinstance(shape, tuple | list):
        raise TypeError(f"shape = {shape!r} is a {type(shape).__name__}; the height and width, (h, w), were expected.")
    shape = tuple(int(size) for size in shape)
    places = math.prod(shape)
    X = scores if isinstance(scores, np.ndarray | da.Array) else open_array(scores)
    if X.ndim != 2:
        raise ValueError(
            f"scores have shape {X.shape}; (n, k) was expected. Give a statistic of the rows as a column, spe[:, None]."
        )
    if np.isnan(X.shape[0]):
        raise ValueError("the number of rows of the scores is not known. Call compute_chunk_sizes() first.")
    n, k = int(X.shape[0]), int(X.shape[1])
    if min(shape, default=0) < 1 or n % places:
        raise ValueError(
            f"{n} rows do not divide into maps of shape {shape}, {places} rows each. Give the height and width of one "
            "sample."
        )
    if isinstance(X, np.ndarray):
        return X.reshape(n // places, *shape, k)
    if any(count % places for count in X.chunks[0]) or len(X.chunks[1]) > 1:
        largest = max(X.chunks[0])
        X = X.rechunk((-(-largest // places) * places, k))
    counts = tuple(count // places for count in X.chunks[0])
    return X.map_blocks(
        lambda block: block.reshape(-1, *shape, k),
        dtype=X.dtype,
        chunks=(counts, *((s,) for s in shape), (k,)),
        new_axis=list(range(1, len(shape) + 1)),
    )


def repeat_labels(y: Any, X: da.Array) -> NDArray[Any]:
    """Return the label of each sample once for every row that a pattern makes of it.

    Parameters
    ----------
    y : array-like or path of n labels
        As for the ``fit`` of supervised models: one for each sample, by key where samples and labels have keys, as in
        :func:`bigpca.data.by_key`, else in their order.
    X : dask.array.Array
        Rows opened with a pattern by :func:`bigpca.open`.

    Returns
    -------
    ndarray of shape (rows of X,) or (rows of X, m)
        Missing labels are None, or NaN among real numbers.

    Raises
    ------
    ValueError
        For a different number of labels than samples, keys that do not fit, and arrays that were opened without a
        pattern.

    Examples
    --------
    >>> X = open_array(np.zeros((2, 5, 3)), pattern="n t d -> (n t) d", t=slice(1, 4))
    >>> repeat_labels(["cat", "dog"], X).tolist()
    ['cat', 'cat', 'cat', 'dog', 'dog', 'dog']
    """
    samples, view = view_of(X)
    if view is None:
        raise ValueError("X was opened without a pattern, so each sample is one row. Pass the labels as they are.")
    values, gaps = label_values(in_row_order(y, samples))
    if len(values) != samples.shape[0]:
        given = counted(len(values), "label")
        raise ValueError(f"y has {given}, but X has {counted(samples.shape[0], 'sample')}. Give one for each.")
    return np.repeat(with_gaps(values, gaps), view.rows_per_sample, axis=0)
