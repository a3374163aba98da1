"""Row keys: one distinct string for each row, stored beside the rows, so that tables join by key, not by position.

Which label belongs to which row: the rules by which the keys of both are compared, in one place for every door.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import bigpca.dask_array as da
from bigpca.data.checks import MemberError
from bigpca.data.containers import is_place, is_zarr_array, is_zarr_group, is_zarr_store
from bigpca.data.label_files import cell_names
from bigpca.data.labels import label_values, rows_shown, with_gaps
from bigpca.data.source import Source, file_stamp
from bigpca.data.sources import row_source, source_of
from bigpca.data.tables import TableRows, parquet_metadata, table_column
from bigpca.data.views import carried, records_in, taken_from
from bigpca.data.zarr_arrays import check_whole, is_array_directory, open_node, place_at, read_whole
from bigpca.errors import brief
from bigpca.storage.files import disk_path, kind_of
from bigpca.storage.forms import KEY_COLUMN, TABLE_MARK
from bigpca.storage.grammar import KEYS

log = logging.getLogger("bigpca")

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
SHOWN_KEYS = 5
KEY_BYTES = 450  # that a key takes while it is read, as strings of Python and of NumPy
DISTINCT = "Keys must be distinct: choose another column, or join columns to one that is."
REPEATED = (
    "Use each once (keys = bigpca.data.stored_keys(X); X[np.sort(np.unique(keys, return_index=True)[1])]) or, if they "
    'are different rows or are meant to count, pass bigpca.open([path, ...], repeats="keep").'
)
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
    several : bool
        Whether the rows come from several stores.
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
    several: bool = False
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
            f"Use distinct keys, or pass the {word}s in that order. {REPEATED if rows.several else BY_POSITION}"
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


def given_keys(keys: Any, count: int, word: str) -> NDArray[np.str_]:
    """Read the keys that a caller gives for so many labels.

    Raises
    ------
    ValueError
        For a different number of keys, and for labels without a key.
    """
    values, gaps = label_values(keys, "key")
    if len(values) != count:
        raise ValueError(
            f"the number of keys, {len(values):,}, does not match the number of {word}s, {count:,}. "
            f"Give one key for each {word}."
        )
    if gaps.any():
        raise ValueError(
            f"{gaps.sum():,} of {count:,} {word}s have no key ({rows_shown(gaps)}), so they belong to no row. "
            "Give them a key, or remove them."
        )
    return values.astype(np.str_)


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
    shown = ", ".join(brief(repr(key)) for key in keys[:SHOWN_KEYS].tolist())
    return shown + (", ..." if len(keys) > SHOWN_KEYS else "")


def _doubled(keys: NDArray[np.str_]) -> NDArray[np.str_]:
    ordered = np.sort(keys)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def row_keys(keys: Any, n: int | None = None, *, remedy: str = DISTINCT) -> NDArray[np.str_]:
    """Read and check the keys of n rows; they are held whole, four bytes for each character of the longest times n.

    Parameters
    ----------
    keys : array, list, pandas or Dask object, zarr.Array or path
        Strings or integers, read as labels are (:func:`bigpca.data.labels.open_labels`): a path is
        ``"labels.csv::filename"``, a ``.npy`` file, Parquet or a Zarr store. Integers become their decimal digits.
    n : int or None
        Number of rows; None for any.
    remedy : str
        What to do about repeated keys, for messages.

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
    _check_distinct(found, remedy)
    return found


def _check_distinct(keys: NDArray[np.str_], remedy: str) -> None:
    ordered = np.sort(keys)
    same = ordered[1:] == ordered[:-1]
    if not same.any():
        return
    names = np.unique(ordered[1:][same])
    doubled = np.isin(keys, names)
    raise ValueError(
        f"{doubled.sum():,} of {len(keys):,} rows share their key with another row: {keys_listed(names)} "
        f"({rows_shown(doubled)}). {remedy}"
    )


def stored_keys(source: Any) -> NDArray[np.str_] | None:
    """Return the row keys that are stored with a source.

    Parameters
    ----------
    source : path, URL, store, place or Dask array
        A Zarr array that ``transform`` or ``ingest`` wrote with keys (``keys=``, an index of names or a coordinate);
        scores in a Parquet or ``.npy`` table; a matrix of AnnData in a file, whose keys are the names of the cells; or
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
    if isinstance(source, TableRows) and source.key_column:
        try:
            return row_keys(source.texts(source.key_column))
        except ValueError:
            if source.keys:
                raise
            log.warning("the index in %s is not distinct, so it is not used as keys of the rows.", source.path)
            return None
    home = home_of(source)
    path = home if isinstance(home, str) else ""
    if path.lower().endswith((".npy", ".parquet")) and (kind_of(path) != "disk" or os.path.isfile(path)):
        found = _keys_in_table(path)
        return None if found is None else row_keys(found)
    with suppress(MemberError):
        if (node := _keys_beside(home)) is not None:
            return row_keys(read_whole(node, "key") if is_zarr_array(node) else node)
    names = cell_names(home) if home else None
    return None if names is None else row_keys(names)


def origins_of_rows(X: da.Array) -> tuple[list[da.Array], NDArray[np.int64] | None, bool]:
    """Return the arrays that name the rows of X, the place of each row in these, and whether samples have several rows.

    They are found through choices of rows, joined rows, views and maps of rows: what :func:`bigpca.open` returned, or
    X where they lead nowhere. Places count the rows of all in turn; None where X is one array.
    """
    found, places = taken_from(X)
    each = [_origins_before(one) for one in found]
    samples = any(own for _, _, own in each) or any(one.repeats for one in records_in(X))
    inner = each[0][1]
    if len(each) > 1 and any(own is not None for _, own, _ in each):
        counts = [sum(base.shape[0] for base in bases) for bases, _, _ in each]
        ranges = [np.arange(count) if own is None else own for count, (_, own, _) in zip(counts, each, strict=True)]
        inner = np.concatenate([own + first for own, first in zip(ranges, np.cumsum([0, *counts]), strict=False)])
    chosen = inner if places is None else places if inner is None else inner[places]
    return [base for bases, _, _ in each for base in bases], chosen, samples


def _origins_before(base: da.Array) -> tuple[list[da.Array], NDArray[np.int64] | None, bool]:
    """Return the same of one array, through the view or map that made it."""
    found = carried(base)
    if _named(base) or found.before is None:
        return [base], None, False
    bases, places, samples = origins_of_rows(found.before)
    if found.view is None or found.view.rows_per_sample == 1:
        return bases, places, samples
    own = np.arange(base.shape[0]) // found.view.rows_per_sample
    return bases, own if places is None else places[own], True


def _named(base: da.Array) -> bool:
    """Whether an array carries the index of a frame or the coordinates of a DataArray."""
    return not (carried(base).index is carried(base).labels is None)


def keys_of_bases(bases: Sequence[da.Array]) -> Keys:
    """Return the keys of the rows of some arrays, one after the other; without names if one of several has none."""
    found = [keys_carried(carried(one)) or Keys(keys_of_source(source_of(one))) for one in bases]
    names = [one.names for one in found if one.names is not None and not (one.loose and len(found) > 1)]
    if len(found) == 1:
        return found[0]
    return Keys(np.concatenate(names) if len(names) == len(found) else None)


def repeats(X: da.Array) -> int:
    """Return how many rows of several stores have the key of an earlier row, unless that is meant; reads their keys.

    Keys are compared by 64 bits: 8 bytes a row, 24 where rows are chosen. Those of stores are read in pieces.
    """
    bases, places, samples = origins_of_rows(X)
    if samples or len(bases) == 1:
        return 0
    digests, done = np.empty(sum(int(base.shape[0]) for base in bases), np.uint64), 0
    pieces: Iterable[NDArray[np.str_]]
    for base in bases:
        node = None if _named(base) else _keys_beside(home_of(source_of(base)))
        if is_zarr_array(node) and node.dtype.kind in ("O", "T", "U"):
            check_whole(node, "key")
            if node.shape != (rows := int(base.shape[0]),):
                row_keys(node, rows)  # raises
            step = node.chunks[0]
            pieces = (row_keys(node[i : i + step]) for i in range(0, rows, step))
        else:
            keys = keys_of_bases([base])
            if keys.names is None or keys.loose:
                return 0
            pieces = [keys.names]
        for piece in pieces:
            digests[done : done + len(piece)] = _digests(piece)
            done += len(piece)
    digests = digests if places is None else digests[places]
    digests.sort()
    return int((digests[1:] == digests[:-1]).sum())


def _digests(names: NDArray[np.str_]) -> NDArray[np.uint64]:
    """Return 64 bits of each name, whatever the length of the longest."""
    found = np.zeros(len(names), np.uint64)
    for codes in np.ascontiguousarray(names).view(np.uint32).reshape(len(names), -1).T:
        mixed = (found ^ codes) * np.uint64(0x9E3779B97F4A7C15)
        found = np.where(codes > 0, mixed ^ mixed >> np.uint64(32), found)
    return found


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


def _is_loose(index: Any) -> bool:
    return getattr(index, "name", None) is None and getattr(getattr(index, "dtype", None), "kind", None) in ("i", "u")


def keys_of_index(index: Any) -> Keys:
    """Return the keys that the index of a frame gives to its rows; numbers without a name are loose."""
    loose, index = _is_loose(index), index.compute() if hasattr(index, "compute") else index
    return Keys(np.asarray(index) if loose else names_as_texts(np.asarray(index)), loose=loose)


def names_of_samples(labels: Any) -> NDArray[np.str_] | None:
    """Return the coordinate of the rows of a DataArray as strings; None without one, or for several dimensions."""
    dim, *others = labels.grid.samples
    return None if others or dim not in labels.coords.coords else names_as_texts(labels.coords[dim].values)


def names_as_texts(names: NDArray[Any]) -> NDArray[np.str_]:
    """Return names as strings; dates of nanoseconds, whatever their unit is."""
    return (names.astype("M8[ns]") if names.dtype.kind == "M" else names).astype(np.str_)


def home_of(source: Any) -> Any:
    """Return beside what keys may be stored, as :attr:`bigpca.data.source.Source.home`; "" for none."""
    if is_place(source):
        from bigpca.storage.places import Place  # for object stores only

        source = Place(source).openable()
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    if is_zarr_store(source):
        source = open_node(source)
    if is_zarr_array(source) or is_zarr_group(source):
        if (root := disk_path(source.store)) is not None:
            return os.path.join(root, source.path)
        return source.store_path if is_zarr_array(source) else source.store_path / "X"  # of AnnData
    return source.home if isinstance(source, Source) else ""


def _keys_beside(home: Any) -> Any:
    """Return the array of keys that is stored beside rows, as :func:`open_node` does; None without one."""
    place = _place_of_keys(home) if isinstance(home, str) else home / KEYS
    with suppress(FileNotFoundError):
        return None if place is None else open_node(place)


def _place_of_keys(path: str) -> str | None:
    """Return where the label reader finds the keys of what is at a path; None where there cannot be any."""
    if kind_of(path) != "disk":
        place = place_at(path)
        with suppress(PermissionError):  # for who may not list, the answer about an object that does not exist
            return f"{path.rstrip('/')}/{KEYS}" if place is None or place.exists(f"{KEYS}/zarr.json") else None
        return None
    path = os.path.abspath(os.path.expanduser(path)) if path else ""
    beside = os.path.join(path, KEYS)
    return beside if path and is_array_directory(path) and is_array_directory(beside) else None


def _keys_in_table(path: str) -> Any:
    """Return the keys in a table that bigpca wrote; None where it has none."""
    if path.lower().endswith(".npy"):
        try:
            shards: Any = row_source(path)
        except (ValueError, TypeError):  # damaged, or not rows, such as labels: whoever reads them reports that
            return None
        return shards.texts()
    schema = parquet_metadata(file_stamp(path)).schema.to_arrow_schema()
    marked = TABLE_MARK in (schema.metadata or {}) and KEY_COLUMN in schema.names
    return table_column(path, "parquet", KEY_COLUMN) if marked else None
