"""Tables of Parquet: one file, a folder, a glob or partitions of them, also in object stores.

Rows are a column of equally long lists of numbers, or a table of number columns.

pyarrow decodes. pandas and pyarrow's datasets would read whole files, or in an order of their own, and would not notice
that a file has changed.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from bigpca.arrays import Array
from bigpca.data.checks import MemberError, arrow_leaf, arrow_rows, check_dtype, check_numbering, decoding, natural_key
from bigpca.data.flat_files import files_in
from bigpca.data.source import Stamp, StoredRows, Wanted, file_stamp, parts_of
from bigpca.errors import MAX_MESSAGE, CorruptedChunkError, brief, closest, required, shorten
from bigpca.storage.files import kind_of
from bigpca.storage.outputs import KEY_COLUMN, TABLE_MARK

PARQUET_SUFFIXES = (".parquet", ".pq")
BATCHES = 8  # in which one column of a row group is decoded: builders of Arrow double what they hold as they grow
MIN_BATCH_ROWS = 256
PAGES_BYTES = 1 << 20  # of a column that are read at a time
UNNAMED = "__index_level_0__"  # an index of pandas without a name


class _Group(NamedTuple):
    """A row group of a file."""

    path: str
    number: int
    rows: int


@dataclass(frozen=True, eq=False, repr=False)
class TableRows(StoredRows):
    """Rows of number columns, one for each feature; or of a list column, which is then the member.

    Its path is a file, folder or glob pattern. A row group is the smallest part that is read.

    Attributes
    ----------
    keys : str
        The column that names the rows, if the caller named one.
    """

    keys: str = ""
    format: str = field(default="parquet", kw_only=True)

    def facts(self) -> dict[str, Any]:
        """All rows of a group are decoded."""
        return super().facts() | {"decoded_rows": None}

    @property
    def _stamps(self) -> tuple[Stamp, ...]:
        return table_stamps(self.path)

    def _groups(self) -> _Groups:
        groups = _groups_of(self._stamps)
        held = _group_ends(groups)[-1] if groups else 0
        if held != self.array_shape[0]:
            raise ValueError(
                f"{self.path} has {held} rows now, but had {self.array_shape[0]} when opened. Open it again."
            )
        return groups

    def row_chunks(self) -> tuple[int, ...]:
        """Return the rows of each group."""
        return tuple(group.rows for group in self._groups() if group.rows) or (0,)

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Array:
        """Read a block, decoding each group that it overlaps once."""
        block, done = np.empty((stop - start, columns[1] - columns[0]), self.dtype), 0
        for group, lo, hi in self._parts(start, stop):
            row = 0
            for values in self._read_group(group, columns):
                own = values[max(lo - row, 0) : max(hi - row, 0)]
                block[done : done + len(own)] = own
                row, done = row + len(values), done + len(own)
            if row != group.rows:
                raise CorruptedChunkError(
                    f"{self._where(group)} holds {row:,} rows, but {group.rows:,} are declared: it is damaged. Copy it "
                    "again."
                )
        return block

    def _parts(self, start: int, stop: int) -> list[tuple[_Group, int, int]]:
        groups = self._groups()
        return [(groups[i], lo, hi) for i, lo, hi in parts_of(_group_ends(groups), start, stop)]

    def _where(self, group: _Group) -> str:
        column = f", column {brief(repr(self.member))}" if self.member else ""
        return f"{group.path}: row group {group.number}{column}"

    def _read_group(self, group: _Group, columns: tuple[int, int]) -> Iterator[Array]:
        """Yield the columns of a group, some rows at a time; of lists, of whole rows."""
        names = [self.member] if self.member else [one.name for one in self._columns]
        first = 0
        for found in _decoded(group, names if self.member else names[slice(*columns)]):
            if self.member:
                where = self._where(group) + (f", from row {first} on" if first else "")
                rows = np.asarray(arrow_rows(found.column(0), where, self.shape[1]), self.dtype)
                first += len(rows)
                yield rows.reshape(found.num_rows, self.shape[1])[:, slice(*columns)]
                continue
            nulls = [name for name in found.column_names if found[name].null_count]
            if nulls:
                where = f"{self._where(group)}, column {brief(repr(nulls[0]))}"
                raise ValueError(f"{where} has nulls. Drop or fill those rows first.")
            block = np.empty((found.num_rows, found.num_columns), self.dtype)
            for j, column in enumerate(found.columns):
                block[:, j] = column.to_numpy()
            yield block

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return a stamp for each file of those rows."""
        paths = dict.fromkeys(group.path for group, *_ in self._parts(start, stop))
        if kind_of(self.path) == "disk":
            return [file_stamp(path) for path in paths]
        return [stamp for stamp in self._stamps if stamp[0] in paths]  # of one listing

    @property
    def requests(self) -> tuple[int, int]:
        """Of objects: stamp and footer of each file, and the columns of each row group."""
        if kind_of(self.path) == "disk":
            return 0, 0
        from bigpca.storage.requests import flight_bytes

        groups = self._groups()
        largest = max((group.rows for group in groups), default=0) * self.shape[1] * self.dtype.itemsize
        return 4 * len(groups), flight_bytes(1, largest)

    def decoding_bytes(self, columns: int) -> int:
        """Of the largest group: its numbers, and pages in Arrow."""
        return 4 * max((group.rows for group in self._groups()), default=0) * columns * self.dtype.itemsize

    def details(self) -> dict[str, Any]:
        """Return the numbers of files and groups, and the column of keys."""
        groups = self._groups()
        found: dict[str, Any] = {"files": len({group.path for group in groups}), "row_groups": len(groups)}
        return found | ({"keys": self.keys} if self.keys else {})

    @property
    def _schema(self) -> Any:
        return parquet_schema(file_stamp(table_paths(self.path)[0]))

    @property
    def column_names(self) -> list[str] | None:
        """Names of the columns, which all files have; None for a list column."""
        return None if self.member else [one.name for one in self._columns]

    @property
    def _columns(self) -> list[Any]:
        return [one for one in _features(self._schema, self.keys) if _dtype_of(one) == self.stored]

    @property
    def key_column(self) -> str:
        """The column that names the rows: that of the caller, of scores, or of the index that pandas wrote; or ""."""
        if self.keys or not self.array_shape[0]:
            return self.keys
        marked = TABLE_MARK in (self._schema.metadata or {}) and KEY_COLUMN in self._schema.names
        return KEY_COLUMN if marked else _index_column(self._schema)

    def texts(self) -> Array | None:
        """Read the column that names the rows."""
        name = self.key_column
        return table_column(self.path, name) if name else None


def _decoded(group: _Group, names: list[str]) -> Iterator[Any]:
    """Yield columns of a group as tables of Arrow, some rows at a time."""
    of = f", column {brief(repr(names[0]))}" if len(names) == 1 else ""
    tables, table = _read(group, names), None
    while True:
        with decoding(f"{group.path}: row group {group.number}{of} cannot be decoded", "Copy or write the file again."):
            table = next(tables, None)
        if table is None:
            return
        yield table


def _index_columns(schema: Any) -> list[str]:
    """Return the columns that are the index of pandas: those that its metadata name."""
    try:
        stated = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    except (ValueError, AttributeError):
        stated = []
    return [name for name in schema.names if name in (UNNAMED, *(one for one in stated if isinstance(one, str)))]


def _index_column(schema: Any) -> str:
    """Return the index of pandas if it names rows: it has a name, or holds texts; or ""."""
    index = _index_columns(schema)
    named = [name for name in index if not re.fullmatch("__.*__", name)]
    texts = [name for name in index if "string" in str(schema.field(name).type)]
    return (named or texts)[0] if len(index) == 1 and (named or texts) else ""


def _features(schema: Any, keys: str) -> list[Any]:
    """Return the fields that are features of a table: those of numbers, but for keys and an index."""
    marked = TABLE_MARK in (schema.metadata or {})
    others = {keys, *_index_columns(schema)} | ({KEY_COLUMN} if marked else set())
    return [field for field in schema if field.name not in others and _is_number(field.type)]


def _dtype_of(column: Any) -> str:
    return check_dtype(column.type.to_pandas_dtype()).str


def _is_number(kind: Any) -> bool:
    return bool(re.fullmatch("u?int(8|16|32|64)|(half)?float|double|halffloat|bool", str(kind)))


def _lists(schema: Any) -> list[Any]:
    found = re.compile(r"(fixed_size_|large_)?list<|extension<.*(array|tensor)", re.IGNORECASE)
    return [field for field in schema if found.match(str(field.type))]


def _listed(schema: Any) -> str:
    return shorten(", ".join(f"{brief(field.name)} ({brief(field.type)})" for field in schema), MAX_MESSAGE // 4)


def table_rows(pattern: str, member: str | None, wanted: Wanted) -> TableRows:
    """Describe the rows of tables: a list column, the named or the only one; or else the columns of numbers.

    Raises
    ------
    ValueError, MemberError
        If a column must be named, does not hold lists, or has lists of different lengths; for a column that holds no
        numbers; and for files that differ in their columns.
    TypeError
        For columns of several dtypes, and if files disagree in them.
    """
    required("pyarrow.parquet", pattern)
    stamps = table_stamps(pattern)
    if pattern != stamps[0][0]:
        check_numbering(stamp[0] for stamp in stamps)
    schema = parquet_schema(stamps[0])
    if wanted.keys is not None and schema.names.count(wanted.keys) != 1:
        raise MemberError(
            f"{stamps[0][0]} has {schema.names.count(wanted.keys) or 'no'} column {brief(repr(wanted.keys))}, which "
            f"keys= names.{closest(wanted.keys, schema.names)} Its columns: {_listed(schema)}."
        )
    if member is not None or _lists(schema):
        return _of_list_column(pattern, stamps, member, wanted)
    fields = _checked_features(stamps[0][0], schema, wanted)
    if wanted.columns:  # others may have any dtype
        own = {_dtype_of(one) for one in fields if one.name in wanted.columns}
        fields = [one for one in fields if _dtype_of(one) in own]
    dtypes = {_dtype_of(one): one.name for one in fields}
    if len(dtypes) != 1:
        listed = ", ".join(f"{brief(name)} ({np.dtype(dtype)})" for dtype, name in dtypes.items())
        raise TypeError(
            f"{stamps[0][0]}: its columns have {len(dtypes)} dtypes, such as {listed}; one was expected. Convert the "
            "columns, or pass dask.dataframe.read_parquet(path)."
        )
    for stamp in stamps[1:]:
        others = _features(parquet_schema(stamp), wanted.keys or "")
        needed, there = ([(f.name, f.type) for f in one] for one in (fields, others))
        if there != needed and not (wanted.columns and {*needed} <= {*there}):
            raise ValueError(
                f"{stamp[0]} has {len(others)} columns whose names, types or order differ from the {len(fields)} of "
                f"{stamps[0][0]}. Write it again with the same columns."
            )
    n = sum(group.rows for group in _groups_of(stamps))
    return TableRows((n, len(fields)), next(iter(dtypes)), wanted.keys or "", path=pattern)


def _checked_features(path: str, schema: Any, wanted: Wanted) -> list[Any]:
    """Return the features of a table, if all columns that a caller did not leave out hold numbers."""
    fields = _features(schema, wanted.keys or "")
    rest = {wanted.keys, KEY_COLUMN if TABLE_MARK in (schema.metadata or {}) else "", *_index_columns(schema)}
    rest |= {field.name for field in fields}
    texts = [one for one in schema if one.name not in rest and (wanted.columns is None or one.name in wanted.columns)]
    if texts or not fields:
        shown = ", ".join(f"{brief(repr(one.name))} ({brief(one.type)})" for one in texts[:3]) or "none has numbers"
        name = repr(texts[0].name) if texts else "..."
        key = f"Either pass keys={brief(name)} if it names the rows; or" if wanted.keys is None else "Pass"
        raise ValueError(
            f"these columns of {path} do not hold numbers: {shown}. {key} columns=slice(None) (--columns :) for all "
            f"that do, or their names, and labels as y='path::column'. Its columns: {_listed(schema)}."
        )
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"{path}: {names.count(twice)} of its columns have the name {brief(repr(twice))}, but names in a table "
            f"must be unique. Rename them."
        )
    return fields


def _of_list_column(pattern: str, stamps: tuple[Stamp, ...], member: str | None, wanted: Wanted) -> TableRows:
    name, stored, shape = "", "", tuple[int, ...]((-1,))
    for stamp in stamps:
        found = _list_column(stamp, member or name or None)
        if name and found[1] != stored:
            raise TypeError(
                f"{stamp[0]}: {brief(repr(name))} has dtype {found[1]}; {stored} was expected, as in {stamps[0][0]}."
            )
        if min(shape) >= 0 and found[2] not in ((-1,), shape):
            lists, expected = ((one[0] if len(one) == 1 else one) for one in (found[2], shape))
            raise ValueError(
                f"{stamp[0]}: {brief(repr(name))} has lists of {lists}; {expected} were expected, as in {stamps[0][0]}."
            )
        name, stored, shape = found[0], found[1], shape if found[2] == (-1,) else found[2]
    n = sum(group.rows for group in _groups_of(stamps))
    return TableRows((n, *shape) if min(shape) >= 0 else (n, 0), stored, wanted.keys or "", path=pattern, member=name)


def _list_column(stamp: Stamp, wanted: str | None) -> tuple[str, str, tuple[int, ...]]:
    """Return name, dtype and shape of one row (-1 if there are no rows) of the list column of one file."""
    path, schema = stamp[0], parquet_schema(stamp)
    lists = [field.name for field in _lists(schema)]
    if (wanted is None and len(lists) != 1) or (wanted is not None and wanted not in lists):
        found = (
            f"column {brief(repr(wanted))} is not a column of lists" if wanted else f"{len(lists)} columns hold lists"
        )
        raise ValueError(
            f"{path}: {found}; one column of equally long lists was expected, named with member=. If each feature is "
            f"a column, leave member out, or pass dask.dataframe.read_parquet(path). Its columns: {_listed(schema)}."
        )
    name = wanted or lists[0]
    kind, shape = arrow_leaf(schema.field(name).type)
    try:
        stored = check_dtype(kind.to_pandas_dtype()).str
    except (TypeError, NotImplementedError) as error:
        shown = brief(schema.field(name).type)
        raise TypeError(f"{path}: column {brief(repr(name))} holds {shown}: {error}") from None
    if min(shape) >= 0:
        return name, stored, shape
    length = _list_length(parquet_metadata(stamp), schema, name, path)
    groups, where = _groups_of((stamp,)), f"{path}: column {brief(repr(name))}"
    parts = (part for group in groups if group.rows for part in _decoded(group, [name]))
    known = (part.column(0).drop_null()[:1] for part in parts)
    if length is None:
        length = next((arrow_rows(one, where)[0].size for one in known if len(one)), -1)
    return name, stored, (length,)


def _leaves(kind: Any) -> int:
    """Return how many columns of Parquet hold a type of Arrow."""
    kind = getattr(kind, "storage_type", kind)
    if hasattr(kind, "item_type"):  # a map
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    if hasattr(kind, "value_type"):
        return _leaves(kind.value_type)
    return sum(_leaves(one.type) for one in kind) if str(kind).startswith("struct<") else 1


def _leaf_columns(schema: Any, names: Iterable[str]) -> list[int]:
    """Return the numbers of the columns of Parquet that hold fields; their paths are ambiguous, as names have dots."""
    ends = dict(zip(schema.names, accumulate(_leaves(one.type) for one in schema), strict=True))
    return [j for name in names for j in range(ends[name] - _leaves(schema.field(name).type), ends[name])]


def _list_length(metadata: Any, schema: Any, name: str, path: str) -> int | None:
    """Return the values per row from the counts in the footer, without reading data; None where it has nulls."""
    for i in range(metadata.num_row_groups):
        group, (j,) = metadata.row_group(i), _leaf_columns(schema, [name])
        leaf = group.column(j)
        length, rest = divmod(leaf.num_values, max(1, group.num_rows))
        if leaf.statistics is None or not leaf.statistics.has_null_count or leaf.statistics.null_count:
            return None
        if rest:
            raise ValueError(
                f"{path}: row group {i} of {brief(repr(name))} has {leaf.num_values} values in {group.num_rows} rows: "
                "lists of one length were expected. Drop or repair the rows of other lengths first."
            )
        if group.num_rows:
            return int(length)
    return -1


def table_paths(pattern: str) -> list[str]:
    """List the files of a file, folder or glob in natural order; of a folder in partitions, such as "year=2020"."""
    if kind_of(pattern) != "disk":
        return [stamp[0] for stamp in table_stamps(pattern)]
    if os.path.isfile(pattern):
        return [pattern]
    if not os.path.isdir(pattern):
        return sorted(glob.glob(pattern), key=natural_key)
    found = files_in(pattern, *PARQUET_SUFFIXES)
    if not found:
        parts = glob.glob(os.path.join(glob.escape(pattern), "*=*", ""))
        found = [path for part in parts for path in table_paths(os.path.abspath(part))]
    return sorted((path for path in found if os.path.basename(path)[0] not in "._"), key=natural_key)


def table_stamps(pattern: str) -> tuple[Stamp, ...]:
    """Return the stamps of the files of a file, folder, glob or URL; of a URL by one request per 1,000."""
    if kind_of(pattern) == "disk":
        return tuple(file_stamp(path) for path in table_paths(pattern))
    from bigpca.storage.requests import objects_at  # imports clients of object stores

    return tuple(sorted(objects_at(pattern, PARQUET_SUFFIXES), key=lambda stamp: natural_key(stamp[0])))


def table_column(pattern: str, name: str) -> Array:
    """Return a column of tables, one value for each row; gaps are None."""
    parts: list[Array] = [np.zeros(0, object)]
    for path in table_paths(pattern):
        for group in _groups_of((file_stamp(path),)):
            for table in _decoded(group, [name]):
                column = table.column(0)
                exact = _is_number(column.type) and not column.null_count
                with decoding(f"{path} cannot be decoded"):  # an index that its dictionary does not have
                    parts.append(column.to_numpy() if exact else np.array(column.to_pylist(), object))
    same = len({part.dtype for part in parts[1:]}) == 1
    return np.concatenate(parts[1:] if same else [part.astype(object) for part in parts])


@lru_cache(maxsize=64)
def parquet_metadata(stamp: Stamp) -> Any:
    """Return the footer of a file."""
    import pyarrow.parquet as pq

    with decoding(f"{stamp[0]} is not a complete Parquet file"):
        return pq.read_metadata(_opened(stamp))


def _opened(stamp: Stamp) -> Any:
    """Return the path of a file, or an object as a file."""
    if kind_of(stamp[0]) == "disk":
        return stamp[0]
    from bigpca.storage.requests import ObjectFile, split  # as above

    return ObjectFile(*split(stamp[0]), stamp[1])


def parquet_schema(stamp: Stamp) -> Any:
    """Return the columns of a file, with their metadata."""
    return parquet_metadata(stamp).schema.to_arrow_schema()


def _read(group: _Group, names: list[str]) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    stamp = file_stamp(group.path)
    known, file = parquet_metadata(stamp), _opened(stamp)
    if not isinstance(file, str):  # the columns of an object are got at the same time
        stored = known.row_group(group.number)
        chunks = [stored.column(i) for i in _leaf_columns(known.schema.to_arrow_schema(), names)]
        starts = [one.dictionary_page_offset or one.data_page_offset for one in chunks]
        file.get([(a, a + one.total_compressed_size) for a, one in zip(starts, chunks, strict=True)])
    # A column of lists is as large as all others together: it is read and decoded in parts.
    part = {"pre_buffer": False, "buffer_size": PAGES_BYTES} if len(names) == 1 else {}
    with pq.ParquetFile(file, metadata=known, page_checksum_verification=True, **part) as opened:
        if not part:
            yield opened.read_row_group(group.number, columns=names).select(names)
            return
        rows = max(-(-group.rows // BATCHES), MIN_BATCH_ROWS)
        for batch in opened.iter_batches(rows, row_groups=[group.number], columns=names):
            yield pa.Table.from_batches([batch]).select(names)


class _Groups(tuple[_Group, ...]):
    """Groups that compare and hash by identity, as what is known of many of them is kept."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@lru_cache(maxsize=8)
def _groups_of(stamps: tuple[Stamp, ...]) -> _Groups:
    known = [(stamp[0], parquet_metadata(stamp)) for stamp in stamps]
    return _Groups(_Group(path, i, one.row_group(i).num_rows) for path, one in known for i in range(one.num_row_groups))


@lru_cache(maxsize=8)
def _group_ends(groups: _Groups) -> list[int]:
    return list(accumulate(group.rows for group in groups))
