"""Row keys: one distinct string for each row, stored beside the rows, so that tables join by key, not by position.

Which label belongs to which row: the rules by which the keys of both are compared, in one place for every door; what
names the rows, and what the labels; and weights and labels in the order of the rows. Which columns of a file of labels
are labels, keys and pictures.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import bigpca.dask_array as da
from bigpca.arrays import Input
from bigpca.data.checks import MemberError
from bigpca.data.containers import is_cells, is_labelled, is_place, is_zarr_array, is_zarr_group, is_zarr_store
from bigpca.data.dask_arrays import (
    carried,
    known_beside,
    records_in,
    source_of,
    sources_in,
    taken_from,
    was_persisted,
)
from bigpca.data.grids import label
from bigpca.data.label_files import cell_names, column_names, read_label_file, split_column
from bigpca.data.labels import ARGUMENTS, label_values, one_each, rows_shown, with_gaps
from bigpca.data.source import Source
from bigpca.data.sources import row_source
from bigpca.data.tables import PARQUET_SUFFIXES, TableRows
from bigpca.data.zarr_arrays import is_array_directory, open_node, place_at, read_whole
from bigpca.errors import brief, counted, listed
from bigpca.storage.files import disk_path, kind_of, local_path, public
from bigpca.storage.grammar import KEYS
from bigpca.storage.outputs import KEY_COLUMN

log = logging.getLogger("bigpca")
Ends: TypeAlias = "Callable[[da.Array], bool]"
Origins: TypeAlias = "tuple[list[da.Array], NDArray[np.int64] | None, bool]"

# The first rule that fits decides:
#
# 1. The caller says how: ``bigpca.data.by_key(y, X, keys)`` joins, ``keys=False`` takes labels by position.
# 2. Both sides have keys, equal one by one: by position. Repeated keys are allowed.
# 3. Both have keys, all distinct: joined. Rows without a label are an error; so are repeated keys in another order.
# 4. DataArrays whose coordinates differ are rejected (:meth:`bigpca.data.grids.Labels.by_sample`).
# 5. Labels have keys, but the rows lost theirs since they left a store that has some, or the labels are a column of a
#    table with keys, and the rows have none: an error.
# 6. All else is by position: NumPy labels, and the unnamed integers of an index, as scikit-learn's ``train_test_split``
#    leaves them. The same integers in another order on both sides are an error.
SHOWN_KEYS = 5  # in messages
DISTINCT = "Keys must be distinct: choose another column, or join columns to one that is."
ABSENT = "raise"
_REMEDIES = {
    "label": ', or use missing_labels="drop" (--missing-labels drop)',
    "value": ", or pass absent=0 for weights, absent=None for labels",
}
BY_POSITION = (
    "If they are in the order of the rows, declare it: bigpca.data.by_key(values, X, keys=False), or keys=False in a "
    "report, or --by-position on the command line."
)
MAX_KEY_LENGTH = 1024  # characters; every key takes the memory of the longest
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".pgm", ".ppm")
MAX_COLUMNS = 64  # that are searched for keys and pictures; of more, those that have a name of keys
KEY_NAMES = ("key", "id", "name", "filename", "file", "path")


@dataclass(frozen=True, eq=False)
class Keys:
    """What names rows, or labels.

    Attributes
    ----------
    names : ndarray of shape (m,), str (integers where they are loose), or None
    places : ndarray of shape (n,), int, or None
        Which name each row has; None for m rows in the order of the names.
    samples : bool
        Whether the names are those of samples that have several rows each.
    loose : bool
        Whether they are the unnamed integers of an index, by which nothing is joined.
    lost : str
        From what rows without names were computed, where that has keys, or may have had some.
    file : str
        The table in which labels and their keys are columns.
    """

    names: NDArray[Any] | None = None
    places: NDArray[np.int64] | None = None
    samples: bool = False
    loose: bool = False
    lost: str = ""
    file: str = ""

    @property
    def of_rows(self) -> NDArray[Any] | None:
        """The name of each row."""
        return self.names if self.names is None or self.places is None else self.names[self.places]

    def firm(self) -> Keys:
        """Return the same keys, by which labels are joined even if they are integers of an index."""
        return self if self.names is None else replace(self, names=self.names.astype(np.str_), loose=False)


def label_places(
    rows: Keys, labels: Keys, *, absent: Any = ABSENT, word: str = "label"
) -> tuple[NDArray[np.intp], NDArray[np.bool_]] | None:
    """Return the place of each row's label, and which rows have one; None where labels are taken by position.

    Parameters
    ----------
    rows, labels : Keys
        Without names where rule 1 says so, or where there are none.
    absent : "raise", or the label of rows without one
    word : {"label", "weight", "value"}
        What is joined, for messages.

    Raises
    ------
    ValueError
        By the rules above; names five keys, and the remedy.

    Examples
    --------
    >>> places, there = label_places(Keys(np.array(["a", "b"])), Keys(np.array(["c", "b", "a"])))
    >>> places.tolist(), there.all()
    ([2, 1], np.True_)
    """
    given, own = labels.of_rows, rows.of_rows
    if given is None or (own is None and (labels.loose or not (rows.lost or labels.file))):
        return None
    if own is None and rows.lost:
        raise ValueError(
            f"the {word}s have keys, such as {keys_listed(given[:2])}, but the rows of X have lost theirs: X was "
            f"computed from {rows.lost}. Slices, lists of rows, masks, rechunk, astype and scores of transform keep "
            f"them: pass one of these, or write X with keys: bigpca.ingest(X, path, keys=...). {BY_POSITION}"
        )
    if own is None:
        raise ValueError(
            f"the {word}s in {labels.file} have keys, such as {keys_listed(given[:2])}, but the rows of X have none to "
            f"join them by. Store them: bigpca.ingest(X, path, keys=...) (bigpca ingest ... --keys). {BY_POSITION}"
        )
    if rows.loose or labels.loose:
        if len(own) != len(given):
            return None
        if not (rows.loose and labels.loose):
            own, given = own.astype(np.str_), given.astype(np.str_)
        if not np.array_equal(own, given) and np.array_equal(np.sort(own), np.sort(given)):
            raise ValueError(
                f"the rows and their {word}s have the same index in a different order: {keys_listed(own)} and "
                f"{keys_listed(given)}. Match them by key with bigpca.data.by_key(values, X). {BY_POSITION}"
            )
        return None
    if np.array_equal(own, given):
        return None
    doubled = np.empty(0) if rows.samples else _doubled(own)
    if len(doubled):
        raise ValueError(
            f"{np.isin(own, doubled).sum():,} of {len(own):,} rows share their key with another row: "
            f"{keys_listed(doubled)}. Repeated keys only match if the {word}s have the same keys in the same order. "
            f"Use distinct keys, or pass the {word}s in that order. {BY_POSITION}"
        )
    doubled = _doubled(given)
    if len(doubled):
        have = "key has" if len(doubled) == 1 else "keys have"
        raise ValueError(
            f"{len(doubled):,} {have} more than one {word}: {keys_listed(doubled)}. One {word} for each key was "
            "expected: remove the others."
        )
    order = np.argsort(given, kind="stable")
    places = np.minimum(np.searchsorted(given, own, sorter=order), max(len(given) - 1, 0))
    places = order[places] if len(given) else np.zeros(len(own), np.intp)
    there = given[places] == own if len(given) else np.zeros(len(own), bool)
    strict = isinstance(absent, str) and absent == ABSENT
    if not there.all() and (strict or not there.any()):
        raise ValueError(
            f"{(~there).sum():,} of {len(own):,} rows have no {word}: {keys_listed(own[~there])}. The {word}s "
            f"have keys such as {keys_listed(given[:2])}. Add the missing {word}s"
            f"{_REMEDIES.get(word, '') if strict else ''}.{'' if there.any() else ' ' + BY_POSITION}"
        )
    return places, there


def joined(values: Any, found: tuple[NDArray[np.intp], NDArray[np.bool_]], absent: Any, word: str) -> NDArray[Any]:
    """Return the labels at the places of :func:`label_places`, and ``absent`` for rows without one."""
    places, there = found
    entries = with_gaps(*label_values(values, word))
    if there.all():
        return entries[places]
    of_rows = np.full((len(places), *entries.shape[1:]), absent, dtype=object)
    of_rows[there] = entries[places[there]]
    return with_gaps(*label_values(of_rows, word))


def keys_listed(keys: NDArray[Any]) -> str:
    """Format the first of some keys, for messages.

    >>> keys_listed(np.array(["a", "b"]))
    "'a', 'b'"
    """
    return listed([repr(key) for key in keys[: SHOWN_KEYS + 1].tolist()], SHOWN_KEYS)


def _doubled(keys: NDArray[np.str_]) -> NDArray[np.str_]:
    ordered = np.sort(keys)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


class KeyList:
    """Distinct keys of rows that come in batches.

    Attributes
    ----------
    texts : list of str
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts = list(texts)
        self._known = set(self.texts)

    def add(self, keys: Any, count: int, label: str) -> None:
        """Add the keys of the next ``count`` rows, which are those of ``label``.

        Raises
        ------
        TypeError, ValueError
            As :func:`row_keys`; for keys that earlier rows have.
        """
        found = row_keys(keys, count).tolist()
        doubled = [key for key in found if key in self._known]
        if doubled:
            raise ValueError(
                f"{label} has {counted(len(doubled), 'key')} of earlier rows: {keys_listed(np.array(doubled))}. Each "
                "row is written once: leave out repeated rows, such as the padding of a sampler, or give them other "
                "keys."
            )
        self.texts.extend(found)
        self._known.update(found)

    def keep(self, rows: int) -> None:
        """Forget the keys of rows from that number on."""
        self._known.difference_update(self.texts[rows:])
        del self.texts[rows:]


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
        For a different number of keys than rows, and for missing, doubled and overlong keys, with the rows that have
        them.
    TypeError
        For keys that are neither strings nor integers.

    Examples
    --------
    >>> row_keys([7, 12], 2).tolist()
    ['7', '12']
    """
    values, gaps = one_each(keys, n, "key", gaps=True)
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
    names = _doubled(found)
    if len(names):
        doubled = np.isin(found, names)
        raise ValueError(
            f"{doubled.sum():,} of {len(found):,} rows share their key with another row: {keys_listed(names)} "
            f"({rows_shown(doubled)}). {DISTINCT}"
        )
    return found


def stored_keys(source: Input) -> NDArray[np.str_] | None:
    """Return the row keys that are stored with a source.

    Parameters
    ----------
    source : path, URL, store, place or Dask array
        A Zarr array that ``transform`` or ``ingest`` wrote with keys (``keys=``, an index of names or a coordinate);
        scores in a Parquet table; a matrix of AnnData in a file, whose keys are the names of the cells; or
        what :func:`bigpca.open` returned for one of these. Slices ``X[a:b:s]`` of rows and columns of such an array,
        lists of rows, masks, other chunks and dtypes, and lazy scores keep the keys of their rows. Anything
        else has no keys.

    Returns
    -------
    ndarray of shape (n,), str; or None where there are none

    Raises
    ------
    CorruptedChunkError, MissingChunksError, ValueError
        If the keys are damaged.

    Examples
    --------
    >>> import pathlib, tempfile, bigpca as bp
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.zarr"
    >>> X = bp.ingest(np.eye(3), path, keys=["a", "b", "c"])
    >>> stored_keys(path).tolist(), stored_keys(X[::2]).tolist(), stored_keys(np.eye(2))
    (['a', 'b', 'c'], ['a', 'c'], None)
    """
    if hasattr(source, "dask") and hasattr(source, "chunks"):  # not a DataArray
        bases, places, samples = origins_of_rows(source)
        found = Keys() if samples or any(map(_named, bases)) else keys_of_bases(bases)
        return found.names if found.names is None or places is None else found.names[places]
    return keys_of_source(source)


def keys_of_source(source: Any) -> NDArray[np.str_] | None:
    """Return the keys beside what a path, a source or a Zarr array reads; raises as :func:`stored_keys`."""
    home = home_of(source)
    path = home if isinstance(home, str) else ""
    table = path.lower().endswith((".npy", ".bed", ".pgen", *PARQUET_SUFFIXES)) and (
        kind_of(path) != "disk" or os.path.isfile(path)
    )
    if table and not isinstance(source, Source):
        try:
            source = row_source(path)
        except (ValueError, TypeError):  # damaged, or not rows, such as labels: whoever reads them reports that
            return None
    if isinstance(source, Source) and (found := source.texts()) is not None:
        try:
            return row_keys(found)
        except ValueError:
            if not isinstance(source, TableRows) or source.key_column in (source.keys, KEY_COLUMN):
                raise
            log.warning("the index in %s is not distinct, so it is not used as keys of the rows.", source.path)
            return None
    if table:
        return None
    with suppress(MemberError):
        if (node := _keys_beside(home)) is not None:
            return row_keys(read_whole(node, "key") if is_zarr_array(node) else node)
    names = cell_names(home) if home else None
    return None if names is None else row_keys(names)


def origins_of_rows(X: da.Array, ends: Ends | None = None) -> Origins:
    """Return the arrays that name the rows of X, the place of each row in these, and whether samples have several rows.

    They are found through choices of rows, joined rows, views and maps of rows: what :func:`bigpca.open` returned, or
    X where they lead nowhere. Places count the rows of all in turn; None where X is one array. ``ends`` says at which
    array to stop; None for those that name their rows.
    """
    taken = taken_from(X)
    places, each = taken.places, [_origins_before(one, ends or _named) for one in taken.bases]
    samples = any(own for _, _, own in each)
    inner = each[0][1]
    if len(each) > 1 and any(own is not None for _, own, _ in each):
        counts = [sum(base.shape[0] for base in bases) for bases, _, _ in each]
        ranges = [np.arange(count) if own is None else own for count, (_, own, _) in zip(counts, each, strict=True)]
        inner = np.concatenate([own + first for own, first in zip(ranges, np.cumsum([0, *counts]), strict=False)])
    chosen = inner if places is None else places if inner is None else inner[places]
    return [base for bases, _, _ in each for base in bases], chosen, samples


def _origins_before(base: da.Array, ends: Ends) -> Origins:
    """Return the same of one array, through the view or map that made it."""
    found = carried(base)
    if ends(base) or found.before is None:
        return [base], None, False
    bases, places, samples = origins_of_rows(found.before, ends)
    if found.view is None or found.view.rows_per_sample == 1:
        return bases, places, samples
    own = np.arange(base.shape[0]) // found.view.rows_per_sample
    return bases, own if places is None else places[own], True


def _named(base: da.Array) -> bool:
    """Whether an array carries the index of a frame or the coordinates of a DataArray."""
    return not (carried(base).index is carried(base).labels is None)


def brought(X: da.Array, name: str, given: Any = None) -> tuple[list[tuple[da.Array, Any]], NDArray[np.int64] | None]:
    """Return the opened rows that those of X are, each with what was opened beside it, and the places of X in them.

    Nothing if they were opened without what has that name.

    Raises
    ------
    ValueError
        For rows that were computed from such rows, or joined with others; and if the same is ``given`` to a call.
    """
    bases, places, _ = origins_of_rows(X, lambda base: bool(carried(base).beside))
    known = [carried(base).beside for base in bases]
    if not all(known) or len({name in one for one in known}) > 1:
        again = ", ".join(f"{one}=..." for one in sorted({*known_beside(X)} or {name}))
        raise ValueError(
            "X was computed or persisted from rows that were opened with covariates, weights, labels or groups, or "
            "joined with rows that have none, so it is not known which belong to it. Slices, lists of rows, masks, "
            "rechunk and astype keep them. Other results are computed of rows that were opened without, and then "
            f"opened: bigpca.open(result, {again})."
        )
    found = [(base, one[name]) for base, one in zip(bases, known, strict=True) if name in one]
    if found and given is not None:
        raise ValueError(f"the rows were opened with {name}, and others were given. Give them once.")
    return found, places


def keys_of_bases(bases: Sequence[da.Array]) -> Keys:
    """Return the keys of the rows of some arrays, one after the other; without names if one of several has none."""
    found = [keys_carried(carried(one)) or Keys(keys_of_source(source_of(one))) for one in bases]
    names = [one.names for one in found if one.names is not None and not (one.loose and len(found) > 1)]
    if len(found) == 1:
        return found[0]
    return Keys(np.concatenate(names) if len(names) == len(found) else None)


def keys_carried(known: Any) -> Keys | None:
    """Return the keys of the frame or DataArray that an array was made from; None for others."""
    if known.index is not None:
        return keys_of_index(known.index)
    return None if known.labels is None else Keys(names_of_samples(known.labels))


def names_of_index(X: da.Array) -> NDArray[np.str_] | None:
    """Return the names that the index of a frame, or a coordinate, gave to rows; None if they are loose, or no keys."""
    bases, places, samples = origins_of_rows(X)
    found = keys_of_bases(bases) if any(map(_named, bases)) and not samples else Keys()
    if found.names is None or found.loose:
        return None
    try:
        return row_keys(found.names if places is None else found.names[places])
    except ValueError as error:
        log.info("the names of the rows are not stored as their keys: %s", error)
        return None


def keys_of_index(index: Any) -> Keys:
    """Return the keys that the index of a frame gives to its rows; numbers without a name are loose."""
    loose = index.name is None and getattr(index.dtype, "kind", "") in ("i", "u")
    index = da.computed(index) if hasattr(index, "compute") else index
    return Keys(np.asarray(index) if loose else names_as_texts(np.asarray(index)), loose=loose)


def names_of_samples(labels: Any) -> NDArray[np.str_] | None:
    """Return the coordinate of the rows of a DataArray as strings; None without one, or for several dimensions."""
    dim, *others = labels.grid.samples
    return None if others or dim not in labels.coords.coords else names_as_texts(labels.coords[dim].values)


def names_as_texts(names: NDArray[Any]) -> NDArray[np.str_]:
    """Return names as strings; dates of nanoseconds, whatever their unit is."""
    if names.dtype == object:  # tuples, which NumPy would make rows of an array
        return np.array(list(map(str, names)), np.str_)
    return (names.astype("M8[ns]") if names.dtype.kind == "M" else names).astype(np.str_)


def home_of(source: Any) -> Any:
    """Return beside what keys may be stored, as :attr:`bigpca.data.source.Source.home`; "" for none."""
    if isinstance(source, Source):
        return source.home
    if is_place(source):
        from bigpca.storage.places import ObjectStore  # for object stores only

        source = ObjectStore(source).openable()
    if isinstance(source, str | os.PathLike):
        return local_path(source) if kind_of(source) == "disk" else os.fspath(source)
    if is_zarr_store(source):
        source = open_node(source)
    if is_zarr_array(source) or is_zarr_group(source):
        if (root := disk_path(source.store)) is not None:
            return os.path.join(root, source.path)
        return source.store_path if is_zarr_array(source) else source.store_path / "X"  # of AnnData
    return ""


def _keys_beside(home: Any) -> Any:
    """Return the array of keys that is stored beside rows, as :func:`open_node` does; None without one."""
    with suppress(FileNotFoundError):
        if not isinstance(home, str):
            return open_node(home / KEYS)
        if kind_of(home) != "disk":
            place, there = place_at(home), False
            with suppress(PermissionError):  # for who may not list, the answer about an object that does not exist
                there = place is None or place.exists(f"{KEYS}/zarr.json")
            return open_node(f"{home.rstrip('/')}/{KEYS}") if there else None
        beside = os.path.join(home, KEYS)
        return open_node(beside) if home and is_array_directory(home) and is_array_directory(beside) else None


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
        Of a table of several columns (CSV, Parquet, a Zarr group), see :func:`key_column`. A Zarr
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


def by_key(
    values: Input, X: Input | None, keys: Input | bool | None = None, *, absent: object = ABSENT
) -> NDArray[Any]:
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
    joined : bool
        Whether they met by key; without ``places`` if both have the same keys in the same order.
    """

    values: Any
    places: tuple[NDArray[np.intp], NDArray[np.bool_]] | None = None
    how: str = ""
    doubtful: bool = False
    table: LabelTable | None = None
    joined: bool = False

    def taken(self, column: NDArray[Any] | None) -> NDArray[Any] | None:
        """Return another column of the file in the order of the rows."""
        return column if column is None or self.places is None else joined(column, self.places, None, "label")

    def note(self, word: str) -> None:
        """Log how labels and rows met, unless neither has keys."""
        if self.joined or self.doubtful:
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
    key = f"joined by the key {'' if table is None else table.key}".rstrip()
    if places is None and own is not None and given is not None and np.array_equal(own, given):
        return Aligned(values, None, f"{len(own):,}, {key}, in the same order", False, table, True)
    if places is None or own is None or given is None:
        ignored = own is not None and given is None and keys is None and bool(file)
        how = f"{file}, by position: {word} 1 belongs to row 1" if file else ""
        if ignored and own is not None:
            how += f", for no column of it has keys like those of the rows, such as {keys_listed(own[:1])}"
        return Aligned(values, None, how, ignored, table)
    lacking, spare = own[~places[1]], given[~np.isin(given, own)]
    how = f"{places[1].sum():,}, {key}"
    how += f"; {len(lacking):,} rows have none, such as {keys_listed(lacking[:1])}" if len(lacking) else ""
    how += f"; {len(spare):,}{file and f' of {file}'} belong to no row: {keys_listed(spare)}" if len(spare) else ""
    values = None if values is None else joined(values, places, absent, word)
    return Aligned(values, places, how, len(lacking) > 0 and len(spare) > 0, table, True)


def _keys_of_labels(values: Any, table: LabelTable | None, keys: Any, word: str) -> Keys:
    if keys is False:
        return Keys()
    if keys is not None:
        given = one_each(keys, len(label_values(values, word).values), "key", word)
    elif table is None:
        return keys_of_rows(values)
    elif table.keys is None:
        return Keys()
    else:
        given = one_each(table.keys, None, "key", word)
    return Keys(given.values.astype(np.str_))


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
        return replace(found, places=places, samples=samples)
    if is_cells(X):
        return Keys(np.asarray(X.obs_names).astype(np.str_))
    if is_labelled(X):
        if X.ndim == 1:
            return Keys(names_as_texts(X.coords[X.dims[0]].values) if X.dims[0] in X.coords else None)
        return Keys(names_of_samples(label(X, None)[1]))
    if hasattr(X, "loc") and hasattr(X, "index"):  # tables and series of pandas and Dask
        return keys_of_index(X.index)
    return Keys(keys_of_source(X))
