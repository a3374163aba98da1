"""Tables in files: Parquet, Arrow (Hugging Face's ``save_to_disk``) and CSV; one file, a folder or a glob of them.

Rows are a column of equally long lists of numbers, or a table of number columns. A form says what the schema of a file
is, which groups of rows it has, and how columns of a group are read; all else is the same for all forms.

pyarrow decodes. pandas and pyarrow's datasets would read whole files, or in an order of their own, and would not notice
that a file has changed.
"""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from bigpca.arrays import Array
from bigpca.data.checks import MemberError, arrow_leaf, arrow_rows, check_dtype, check_numbering, decoding, natural_key
from bigpca.data.flat_files import files_in
from bigpca.data.source import Stamp, StoredRows, Wanted, file_stamp, parts_of
from bigpca.errors import MAX_MESSAGE, CorruptedChunkError, brief, closest, required, shorten
from bigpca.storage.files import MAX_DOCUMENT_BYTES, kind_of, open_regular, read_document
from bigpca.storage.forms import KEY_COLUMN, TABLE_MARK

PARQUET_SUFFIXES = (".parquet", ".pq")
ARROW_SUFFIXES = (".arrow", ".feather", ".ipc")
CSV_SUFFIXES = (".csv", ".tsv")
TABLE_SUFFIXES = (*PARQUET_SUFFIXES, *ARROW_SUFFIXES, *CSV_SUFFIXES)
BATCHES = 8  # in which one column of a row group is decoded: builders of Arrow double what they hold as they grow
MIN_BATCH_ROWS = 256
PAGES_BYTES = 1 << 20  # of a column that are read at a time
CSV_BYTES = 4 << 20  # of a block of lines: its text and its numbers are held beside the rows
TEXT_COPIES = 7  # of a block: as read, and in the parser and the pools of memory that Arrow keeps, by measurement
MAX_BLOCKS = 4000  # of a CSV file, whose list every task has
MAX_WHOLE = 2.0**53  # from which float64 rounds integers
LONG_INTEGER = re.compile(r"\s*[+-]?\d{16,}\s*")
UNNAMED = "__index_level_0__"  # the index of pandas in Parquet; in CSV, a first column without a name
DICTIONARY, RECORDS = 2, 3  # messages of Arrow
FIRST_ROWS = 1000  # among which one must hold a list
FEW_ROWS = 5  # in so few rows, integers may increase by chance


class _Group(NamedTuple):
    """Rows that are decoded together: a number of the file's, or the bytes from an offset on."""

    path: str
    number: int
    rows: int
    size: int = 0


class TableFormat(NamedTuple):
    """How files of one kind are read; all of it from their stamps, so that a file that changes is read again."""

    suffixes: tuple[str, ...]
    schema: Callable[[Stamp], Any]
    groups: Callable[[Stamp], Iterable[_Group]]
    read: Callable[[_Group, list[str]], Iterator[Any]]


@dataclass(frozen=True, eq=False, repr=False)
class TableRows(StoredRows):
    """Rows of number columns, one for each feature; or of a list column, which is then the member.

    Its path is a file, folder or glob pattern. A row group, batch or block of lines is the smallest part that is read.

    Attributes
    ----------
    keys : str
        The column that names the rows, if the caller named one.
    packed : bytes
        The blocks of lines of CSV, which each process would otherwise look for again.
    """

    keys: str = ""
    packed: bytes = b""
    format: str = field(default="parquet", kw_only=True)

    @property
    def decoded_rows(self) -> None:
        """All of a row group, or of a block of lines."""

    @property
    def _stamps(self) -> tuple[Stamp, ...]:
        return table_stamps(self.path, self.format)

    def _groups(self) -> _Groups:
        if self.packed:
            return _unpacked(self.packed)
        groups = _groups_of(self.format, self._stamps)
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
        return f"{group.path}: {_place(self.format, group)}{column}"

    def _read_group(self, group: _Group, columns: tuple[int, int]) -> Iterator[Array]:
        """Yield the columns of a group, some rows at a time; of lists, of whole rows."""
        names = [self.member] if self.member else [one.name for one in self._columns]
        first = 0
        for found in _decoded(self.format, group, names if self.member else names[slice(*columns)]):
            if self.member:
                where = self._where(group) + (f", from row {first} on" if first else "")
                rows = np.asarray(arrow_rows(found.column(0), where, self.shape[1]), self.dtype)
                first += len(rows)
                yield rows.reshape(found.num_rows, self.shape[1])[:, slice(*columns)]
                continue
            if self.format == "csv":
                _check_exact(group, found)
            nulls = [name for name in found.column_names if found[name].null_count and self.format != "csv"]
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
        """Of the largest group: its numbers and pages in Arrow, or its numbers and the copies of the text of CSV."""
        groups = self._groups()
        numbers = max((group.rows for group in groups), default=0) * columns * self.dtype.itemsize
        text = TEXT_COPIES * max((group.size for group in groups), default=0) if self.parsed else 3 * numbers
        return numbers + text

    def details(self) -> dict[str, Any]:
        """Return the numbers of files and groups, and the column of keys."""
        groups = self._groups()
        found: dict[str, Any] = {"files": len({group.path for group in groups}), "row_groups": len(groups)}
        return found | ({"keys": self.keys} if self.keys else {})

    @property
    def _schema(self) -> Any:
        return FORMS[self.format].schema(file_stamp(table_paths(self.path, self.format)[0]))

    @property
    def column_names(self) -> list[str] | None:
        """Names of the columns, which all files have; None for a list column, and for CSV without a header."""
        if self.member or (self.packed and not csv_head(file_stamp(table_paths(self.path, "csv")[0])).named):
            return None
        return [one.name for one in self._columns]

    @property
    def _columns(self) -> list[Any]:
        found = _features(self._schema, self.keys)
        return found if self.format == "csv" else [one for one in found if _dtype_of(one) == self.stored]

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
        return table_column(self.path, self.format, name) if name else None

    @property
    def parsed(self) -> bool:
        """Whether each read parses text."""
        return self.format == "csv"


@dataclass(frozen=True, eq=False, repr=False)
class DatasetRows(StoredRows):
    """Rows of a list column of a Dataset of Hugging Face, in the order that it has: selected, shuffled or joined.

    Attributes
    ----------
    data : datasets.Dataset
        It is read in ranges, as Arrow; pickled, it has the paths of its files.
    stored : str
        Dtype.
    """

    data: Any
    format: str = field(default="datasets", kw_only=True)

    @classmethod
    def of(cls, data: Any, member: str | None) -> DatasetRows:
        """Describe the named list column, or the only one; raises as :func:`table_rows`."""
        data = data.with_format("arrow")
        schema = data[:1].schema
        lists = [one.name for one in _lists(schema)]
        if (member not in lists) if member is not None else len(lists) != 1:
            raise MemberError(
                f"{len(lists)} columns of the Dataset hold lists; one was expected, named with member=. Its columns: "
                f"{_listed(schema)}."
            )
        name = member or lists[0]
        known = data[:FIRST_ROWS].column(name).drop_null()[:1]
        first = arrow_rows(known, f"column {brief(repr(name))} of the Dataset")
        stored = check_dtype(first.dtype).str
        return cls((len(data), *first.shape[1:]), stored, data.select_columns([name]), member=name)

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Array:
        """Read a range of rows, and choose columns of it."""
        if start == stop:
            return np.empty((0, columns[1] - columns[0]), self.dtype)
        where, absent = f"rows {start}:{stop} of {self.member!r}", (self.shape[1],)
        rows = arrow_rows(self.data[start:stop].column(self.member), where, *absent)
        if rows.shape[1:] not in (self.array_shape[1:], absent):
            raise ValueError(
                f"{where} are lists of {rows.shape[1:]} values; {self.array_shape[1:]} "
                "were expected, as in the first row. Drop or repair such rows first."
            )
        return np.asarray(rows, self.dtype).reshape(stop - start, -1)[:, slice(*columns)]

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return a stamp for each file of the Dataset; of one in memory, its fingerprint."""
        files = [file_stamp(str(one["filename"])) for one in self.data.cache_files]
        return files or [("memory", len(self.data), str(self.data._fingerprint))]

    def details(self) -> dict[str, Any]:
        """Return the fingerprint of the Dataset, which tells what was done to it."""
        return {"fingerprint": str(self.data._fingerprint)}


def _place(form: str, group: _Group) -> str:
    kinds = {"parquet": "row group", "arrow": "batch", "csv": "lines from byte"}
    return f"{kinds[form]} {group.number}" + (" on" if form == "csv" else "")


def _decoded(form: str, group: _Group, names: list[str]) -> Iterator[Any]:
    """Yield columns of a group as tables of Arrow, some rows at a time."""
    remedy = "Correct the lines." if form == "csv" else "Copy or write the file again."
    of = f", column {brief(repr(names[0]))}" if len(names) == 1 else ""
    tables, table = FORMS[form].read(group, names), None
    while True:
        with decoding(f"{group.path}: {_place(form, group)}{of} cannot be decoded", remedy):
            table = next(tables, None)
        if table is None:
            return
        yield table


def _index_columns(schema: Any) -> list[str]:
    """Return the columns that are the index of pandas: those that its metadata name, and one of CSV without a name."""
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


def table_rows(form: str, pattern: str, member: str | None, wanted: Wanted) -> TableRows:
    """Describe the rows of tables: a list column, the named or the only one; or else the columns of numbers.

    Raises
    ------
    ValueError, MemberError
        If a column must be named, does not hold lists, or has lists of different lengths; for a column that holds no
        numbers, and for a number of the row in CSV; and for files that differ in their columns.
    TypeError
        For columns of several dtypes, and if files disagree in them.
    """
    required("pyarrow.parquet", pattern)
    stamps = table_stamps(pattern, form)
    if pattern != stamps[0][0]:
        check_numbering(stamp[0] for stamp in stamps)
    schema = FORMS[form].schema(stamps[0])
    if wanted.keys is not None and schema.names.count(wanted.keys) != 1:
        raise MemberError(
            f"{stamps[0][0]} has {schema.names.count(wanted.keys) or 'no'} column {brief(repr(wanted.keys))}, which "
            f"keys= names.{closest(wanted.keys, schema.names)} Its columns: {_listed(schema)}."
        )
    if member is not None or _lists(schema):
        return _of_list_column(form, pattern, stamps, member, wanted)
    fields = _checked_features(stamps[0][0], schema, wanted)
    if form == "csv":
        _check_no_row_number(stamps[0], fields, wanted)
    if wanted.columns is not None and form != "csv":  # others may have any dtype
        own = {_dtype_of(one) for one in fields if one.name in wanted.columns}
        fields = [one for one in fields if _dtype_of(one) in own]
    dtypes = {_dtype_of(one): one.name for one in fields}
    if form == "csv":
        dtypes = {"<f8": ""}
    if len(dtypes) != 1:
        listed = ", ".join(f"{brief(name)} ({np.dtype(dtype)})" for dtype, name in dtypes.items())
        raise TypeError(
            f"{stamps[0][0]}: its columns have {len(dtypes)} dtypes, such as {listed}; one was expected. Convert the "
            "columns, or pass dask.dataframe.read_parquet(path)."
        )
    for stamp in stamps[1:]:
        others = _features(FORMS[form].schema(stamp), wanted.keys or "")
        needed, there = ([(f.name, f.type) for f in one] for one in (fields, others))
        if there != needed and (wanted.columns is None or not {*needed} <= {*there}):
            raise ValueError(
                f"{stamp[0]} has {len(others)} columns whose names, types or order differ from the {len(fields)} of "
                f"{stamps[0][0]}. Write it again with the same columns."
            )
    groups, packed = _groups_of(form, stamps), b""
    if form == "csv":
        places = {stamp[0]: i for i, stamp in enumerate(stamps)}
        blocks = [[places[group.path], *group[1:]] for group in groups]
        packed = zlib.compress(json.dumps([list(places), blocks]).encode())
    n = sum(group.rows for group in groups)
    return TableRows((n, len(fields)), next(iter(dtypes)), wanted.keys or "", packed, path=pattern, format=form)


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
            f"these columns of {path} do not hold numbers: {shown}. {key} the names of the others, "
            "columns=[...] (--columns), and labels as y='path::column'. Numbers with decimal commas are read by "
            f"dask.dataframe.read_csv(path, sep=';', decimal=','). Its columns: {_listed(schema)}."
        )
    _check_unique(path, [field.name for field in fields])
    return fields


def _check_unique(path: str, names: list[str]) -> None:
    """Reject names of columns that are not unique."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"{path}: {names.count(twice)} of its columns have the name {brief(repr(twice))}, but names in a table "
            f"must be unique. Rename them."
        )


def _of_list_column(
    form: str, pattern: str, stamps: tuple[Stamp, ...], member: str | None, wanted: Wanted
) -> TableRows:
    name, stored, shape = "", "", tuple[int, ...]((-1,))
    for stamp in stamps:
        found = _list_column(form, stamp, member or name or None)
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
    n = sum(group.rows for group in _groups_of(form, stamps))
    return TableRows(
        (n, *shape) if min(shape) >= 0 else (n, 0), stored, wanted.keys or "", path=pattern, member=name, format=form
    )


def _list_column(form: str, stamp: Stamp, wanted: str | None) -> tuple[str, str, tuple[int, ...]]:
    """Return name, dtype and shape of one row (-1 if there are no rows) of the list column of one file."""
    path, schema = stamp[0], FORMS[form].schema(stamp)
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
    length = _list_length(parquet_metadata(stamp), schema, name, path) if form == "parquet" else None
    groups, where = _groups_of(form, (stamp,)), f"{path}: column {brief(repr(name))}"
    parts = (part for group in groups if group.rows for part in _decoded(form, group, [name]))
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


def table_paths(pattern: str, form: str = "parquet") -> list[str]:
    """List the files of a file, folder or glob in natural order; of a folder in partitions, such as "year=2020"."""
    if kind_of(pattern) != "disk":
        return [stamp[0] for stamp in table_stamps(pattern, form)]
    if os.path.isfile(pattern):
        return [pattern]
    if not os.path.isdir(pattern):
        return sorted(glob.glob(pattern), key=natural_key)
    found = files_in(pattern, *FORMS[form].suffixes)
    state = os.path.join(pattern, "state.json")
    if found and form == "arrow" and os.path.isfile(state):  # of Hugging Face, beside whose files others are cached
        files = read_document(state).get("_data_files", [])
        found = [os.path.join(pattern, os.path.basename(str(one["filename"]))) for one in files]
    if not found:
        parts = glob.glob(os.path.join(glob.escape(pattern), "*=*", ""))
        found = [path for part in parts for path in table_paths(os.path.abspath(part), form)]
    return sorted((path for path in found if os.path.basename(path)[0] not in "._"), key=natural_key)


def table_stamps(pattern: str, form: str) -> tuple[Stamp, ...]:
    """Return the stamps of the files of a file, folder, glob or URL; of a URL by one request per 1,000."""
    if kind_of(pattern) == "disk":
        return tuple(file_stamp(path) for path in table_paths(pattern, form))
    from bigpca.storage.requests import objects_at  # imports clients of object stores

    return tuple(sorted(objects_at(pattern, FORMS[form].suffixes), key=lambda stamp: natural_key(stamp[0])))


def form_of_folder(path: str, names: Iterable[str]) -> str | None:
    """Return the form of the tables in a folder of files of these names, or in partitions of it; None without."""
    names = [name for name in names if not name.startswith((".", "_"))]
    for form, one in FORMS.items():
        if any(name.lower().endswith(one.suffixes) for name in names):
            return form
    return next((form for form in FORMS if any("=" in name for name in names) and table_paths(path, form)), None)


def table_column(pattern: str, form: str, name: str) -> Array:
    """Return a column of tables, one value for each row: texts as they are written in CSV; gaps are None.

    The column may be that of a partition, which is a text.
    """
    parts: list[Array] = [np.zeros(0, object)]
    for path in table_paths(pattern, form):
        below = partition_values(pattern, path, name)
        for group in FORMS[form].groups(file_stamp(path)):
            if below is not None:
                parts.append(np.full(group.rows, below, object))
                continue
            for table in _decoded(form, group, [name]) if form != "csv" else [_csv_texts(group, [name])]:
                column = table.column(0)
                exact = _is_number(column.type) and not column.null_count
                with decoding(f"{path} cannot be decoded"):  # an index that its dictionary does not have
                    parts.append(column.to_numpy() if exact else np.array(column.to_pylist(), object))
    same = len({part.dtype for part in parts[1:]}) == 1
    return np.concatenate(parts[1:] if same else [part.astype(object) for part in parts])


def partition_values(pattern: str, path: str, name: str) -> str | None:
    """Return what the folders below ``pattern`` say of a file: the value of the partition ``name``."""
    below = os.path.relpath(path, pattern).split(os.sep)[:-1] if os.path.isdir(pattern) else []
    return next((part.partition("=")[2] for part in below if part.partition("=")[0] == name and "=" in part), None)


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


def _parquet_groups(stamp: Stamp) -> list[_Group]:
    metadata = parquet_metadata(stamp)
    return [_Group(stamp[0], i, metadata.row_group(i).num_rows) for i in range(metadata.num_row_groups)]


def _parquet_read(group: _Group, names: list[str]) -> Iterator[Any]:
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


@lru_cache(maxsize=64)
def _arrow_index(stamp: Stamp) -> tuple[Any, list[_Group]]:
    """Return the schema and the batches of a file: by number in the file format, by offset in the stream format."""
    import pyarrow as pa

    path, groups = stamp[0], list[_Group]()
    broken = decoding(f"{path} is not a complete Arrow file", errors=(OSError, ValueError, EOFError, struct.error))
    with broken, open_regular(path) as file, pa.OSFile(path) as opened:
        numbered = file.read(6) == b"ARROW1"
        offset, reader = 8 * numbered, (pa.ipc.open_file if numbered else pa.ipc.open_stream)(opened)
        schema, count = reader.schema, reader.num_record_batches if numbered else None
        while (count is None or len(groups) < count) and (found := _arrow_message(file, offset, stamp[1])):
            kind, rows, end = found
            if kind == RECORDS:
                groups.append(_Group(path, len(groups), rows) if numbered else _Group(path, offset, rows, end - offset))
            elif kind == DICTIONARY and not numbered:
                raise ValueError("a dictionary was found in the stream; write it as Parquet")
            offset = end
        return schema, groups


def _arrow_message(file: Any, offset: int, size: int) -> tuple[int, int, int] | None:
    """Return kind and rows of the message at an offset of a file, and where it ends; None after the last one.

    NOTE: PyArrow reads a message with all its values; in a map of the file, but a process dies (SIGBUS) if another one
    truncates what it has mapped. So the numbers are read here: Message.fbs of Arrow, a table of Flatbuffers.
    """
    file.seek(offset)
    head = file.read(8)
    marked = head[:4] == b"\xff\xff\xff\xff"  # not before Arrow 0.15
    length, start = int.from_bytes(head[4:] if marked else head[:4], "little"), offset + (8 if marked else 4)
    if not length:
        return None
    file.seek(start)
    data = file.read(min(length, MAX_DOCUMENT_BYTES))

    def number(form: str, place: int) -> int:
        return int(struct.unpack_from(f"<{form}", data, place)[0])

    def field(form: str, table: int, which: int) -> int:
        """Return a number of a table, 0 where it is left out; of another table ("I"), where that begins."""
        fields = table - number("i", table)
        place = number("H", fields + 4 + 2 * which) if 4 + 2 * which < number("H", fields) else 0
        return place and number(form, table + place) + (table + place if form == "I" else 0)

    message = number("I", 0)
    kind, end = field("B", message, 1), start + length + field("q", message, 3)
    if not start < end <= size:
        raise ValueError(f"a message ends at byte {end:,} of {size:,}")
    return kind, field("q", field("I", message, 2), 0) if kind == RECORDS else 0, end


def _arrow_read(group: _Group, names: list[str]) -> Iterator[Any]:
    import pyarrow as pa

    schema = _arrow_index(file_stamp(group.path))[0]
    with pa.OSFile(group.path) as file:
        if group.size:
            file.seek(group.number)
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(file), schema)
            yield pa.Table.from_batches([batch]).select(names)
            return
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
        batch = pa.ipc.open_file(file, options=options).get_batch(group.number)
        yield pa.Table.from_batches([batch]).select(names)


class _Head(NamedTuple):
    """The first line of a CSV file, and what its first block says of the columns."""

    names: tuple[str, ...]
    named: bool
    delimiter: str
    start: int  # of the first row
    schema: Any


@lru_cache(maxsize=64)
def csv_head(stamp: Stamp) -> _Head:
    """Return the names of the columns of a CSV file, and the types of their first block of lines.

    Raises
    ------
    ValueError
        For a first line that may be names or numbers, and names that are not unique.
    CorruptedChunkError
        For a file that is not text in UTF-8.
    """
    import pyarrow as pa

    path = stamp[0]
    with open_regular(path) as file:
        line = file.readline(64 << 20)
    with decoding(f"{path} cannot be read as UTF-8 text in columns", errors=(UnicodeDecodeError, csv.Error)):
        text = line.decode("utf-8-sig").rstrip("\r\n")
        delimiter = "\t" if path.lower().endswith(".tsv") else next((one for one in ",;\t" if one in text), ",")
        names = next(csv.reader(io.StringIO(text), delimiter=delimiter, strict=True), [])
    numbers = [_as_number(name) for name in names]
    named = None in numbers
    values = [number for number in numbers if number is not None]
    if not named and len(values) > 1 and all(b > a and a.is_integer() for a, b in pairwise(values)):
        raise ValueError(
            f"{path}: its first line, {brief(text)}, may be names of columns or numbers. Give the columns names that "
            "are not numbers, or pass dask.dataframe.read_csv(path, header=None) if it is a row (header=0 if not)."
        )
    if not names:
        raise ValueError(f"{path} is empty. Write its first line, with the names of the columns, or leave it out.")
    if named:
        _check_unique(path, names)
        names[0] = names[0] or UNNAMED
    else:
        names = [f"column {j}" for j in range(len(names))]
    head = _Head(tuple(names), named, delimiter, len(line) if named else 3 * line.startswith(b"\xef\xbb\xbf"), None)
    first = next(_csv_blocks(path, head), None)
    schema = pa.schema([(name, pa.null()) for name in names])
    if first is not None:
        with decoding(f"{path} cannot be read as columns of text", "Correct the lines."):
            schema = _csv_parsed(first, head, None, None).schema
    fields = [pa.field(one.name, pa.float64() if pa.types.is_null(one.type) else one.type) for one in schema]
    return head._replace(schema=pa.schema(fields))


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _csv_blocks(path: str, head: _Head) -> Iterator[_Group]:
    """Yield blocks of whole lines, which a count of quotes and ends of lines finds; blank lines may end the file."""
    size = os.stat(path).st_size
    most, start = max(CSV_BYTES, size // MAX_BLOCKS), head.start
    with open_regular(path, buffering=0) as file:
        while start < size:
            length, end = most, 0
            while not end and length < 2 * size + most:
                file.seek(start)
                data = file.read(length)
                whole = start + len(data) >= size
                end = len(data) if whole else data.rfind(b"\n") + 1
                while not whole and end and data.count(b'"', 0, end) % 2:  # within quotes
                    end = data.rfind(b"\n", 0, end - 1) + 1
                length *= 2
            lines = data[:end].rstrip(b"\r\n") if whole else data[: end - 1]
            if lines:
                plain = re.sub(rb'"[^"]*"', b"", lines) if b'"' in lines else lines
                yield _Group(path, start, plain.count(b"\n") + 1, len(lines))
            start += end


def _csv_parsed(group: _Group, head: _Head, names: list[str] | None, kind: Any) -> Any:
    """Return columns of a block as a table of Arrow, all of one type; of inferred types where it is None."""
    import pyarrow as pa
    import pyarrow.csv as pc

    with open_regular(group.path, buffering=0) as file:
        file.seek(group.number)
        data = file.read(group.size)
    if b"\0" in data:
        raise ValueError("it holds the byte 0, which no text has")
    used = list(head.names) if names is None else names
    types = {} if kind is None else dict.fromkeys(used, kind)
    found = pc.read_csv(
        pa.BufferReader(data),
        read_options=pc.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(head.names)),
        parse_options=pc.ParseOptions(delimiter=head.delimiter, newlines_in_values=b'"' in data),
        convert_options=pc.ConvertOptions(
            column_types=types, include_columns=used, strings_can_be_null=kind is None, quoted_strings_can_be_null=True
        ),
    )
    if found.num_rows != group.rows:
        raise ValueError(f"{group.rows:,} lines hold {found.num_rows:,} rows: remove blank lines")
    return found


def _csv_groups(stamp: Stamp) -> Iterable[_Group]:
    return _csv_blocks(stamp[0], csv_head(stamp))


def _csv_read(group: _Group, names: list[str], kind: str = "float64") -> Any:
    return _csv_parsed(group, csv_head(file_stamp(group.path)), names, kind)


_csv_texts = partial(_csv_read, kind="string")


def _check_exact(group: _Group, table: Any) -> None:
    """Reject integers in a block of lines that float64 rounds, which are names rather than numbers."""
    head = csv_head(file_stamp(group.path))
    for name in table.column_names:
        whole = str(head.schema.field(name).type) == "int64"  # beyond 2^63, integers are inferred as double
        if not (whole or group.number == head.start) or not (np.abs(table[name].to_numpy()) >= MAX_WHOLE).any():
            continue
        texts = _csv_texts(group, [name])[name].to_pylist()
        text = next((one for one in texts if LONG_INTEGER.fullmatch(one) and int(one) != int(float(one))), "")
        if text:
            raise ValueError(
                f"{group.path}: column {brief(repr(name))} holds the integer {brief(text)}, which float64 rounds: it "
                f"is exact up to 2^53. If the column names the rows, pass keys={brief(repr(name))}; if not, name the "
                "other columns in columns=[...] (--columns)."
            )


def _check_no_row_number(stamp: Stamp, fields: list[Any], wanted: Wanted) -> None:
    """Reject a column of integers that increase from row to row, which a caller did not name: it numbers the rows."""
    whole = [one.name for one in fields if str(one.type) == "int64" and one.name not in (wanted.columns or ())]
    if wanted.columns is not None or not whole:
        return
    head = csv_head(stamp)
    first = _csv_parsed(next(iter(_csv_blocks(stamp[0], head))), head, whole, None)
    for name in whole if first.num_rows >= FEW_ROWS else ():
        values = first[name].to_numpy()
        if first[name].null_count == 0 and (values[1:] > values[:-1]).all():
            raise ValueError(
                f"{stamp[0]}: column {brief(repr(name))} holds integers that increase from row to row "
                f"({values[0]}, {values[1]}, ...): it numbers the rows, and would become the first component. "
                f"If it names the rows, pass keys={brief(repr(name))}; if it is a feature, name it in columns=[...] "
                "(--columns); if neither, name the others there."
            )


FORMS = {
    "parquet": TableFormat(PARQUET_SUFFIXES, parquet_schema, _parquet_groups, _parquet_read),
    "arrow": TableFormat(
        ARROW_SUFFIXES, lambda stamp: _arrow_index(stamp)[0], lambda stamp: _arrow_index(stamp)[1], _arrow_read
    ),
    "csv": TableFormat(
        CSV_SUFFIXES,
        lambda stamp: csv_head(stamp).schema,
        _csv_groups,
        lambda group, names: map(_csv_read, [group], [names]),
    ),
}


class _Groups(tuple[_Group, ...]):
    """Groups that compare and hash by identity, as what is known of many of them is kept."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@lru_cache(maxsize=8)
def _groups_of(form: str, stamps: tuple[Stamp, ...]) -> _Groups:
    return _Groups(group for stamp in stamps for group in FORMS[form].groups(stamp))


@lru_cache(maxsize=8)
def _unpacked(packed: bytes) -> _Groups:
    paths, blocks = json.loads(zlib.decompress(packed))
    return _Groups(_Group(paths[place], *rest) for place, *rest in blocks)


@lru_cache(maxsize=8)
def _group_ends(groups: _Groups) -> list[int]:
    return list(accumulate(group.rows for group in groups))
