"""Parquet in one file or a folder of files: a column of equally long lists of numbers, or a table of number columns."""

from __future__ import annotations

import glob
import json
import os
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from bigpca.arrays import Array
from bigpca.data.checks import check_dtype, is_decode_error, natural_key
from bigpca.data.source import Source, Stamp, file_stamp, parts_of
from bigpca.errors import MAX_MESSAGE, CorruptedChunkError, brief, shorten
from bigpca.storage.forms import KEY_COLUMN, TABLE_ATTRIBUTES, TABLE_MARK


class _Group(NamedTuple):
    path: str
    number: int
    rows: int


@dataclass(frozen=True, eq=False, repr=False)
class ParquetRows(Source):
    """Rows of a list column; a row group is the smallest part that can be read.

    Its path is a file, folder or glob pattern, its member the column.

    Attributes
    ----------
    stored : str
        Dtype.
    """

    stored: str
    format: str = field(default="parquet", kw_only=True)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the list values."""
        return np.dtype(self.stored)

    @property
    def attributes(self) -> dict[str, Any]:
        """What the first file says of its numbers: those of codes."""
        found = parquet_metadata(file_stamp(parquet_paths(self.path)[0])).metadata or {}
        return dict(json.loads(found.get(TABLE_ATTRIBUTES, b"{}")))

    def _groups(self) -> _Groups:
        groups = _row_groups(tuple(file_stamp(path) for path in parquet_paths(self.path)))
        held = _group_ends(groups)[-1] if groups else 0
        if held != self.array_shape[0]:
            raise ValueError(
                f"{self.path} has {held} rows now, but had {self.array_shape[0]} when opened. Open it again."
            )
        return groups

    def row_chunks(self) -> tuple[int, ...]:
        """Return the rows of each row group."""
        return tuple(group.rows for group in self._groups() if group.rows) or (0,)

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Array:
        """Read a block, decoding each row group that it overlaps once."""
        block, done = np.empty((stop - start, columns[1] - columns[0]), self.dtype), 0
        for group, lo, hi in self._parts(start, stop):
            block[done : done + hi - lo] = self._read_group(group)[lo:hi, slice(*columns)]
            done += hi - lo
        return block

    def _parts(self, start: int, stop: int) -> list[tuple[_Group, int, int]]:
        groups = self._groups()
        return [(groups[i], lo, hi) for i, lo, hi in parts_of(_group_ends(groups), start, stop)]

    def _read_group(self, group: _Group) -> Array:
        import pyarrow.parquet as pq

        where = f"{group.path}: row group {group.number}, column {brief(repr(self.member))}"
        try:
            known = parquet_metadata(file_stamp(group.path))
            with pq.ParquetFile(group.path, metadata=known, page_checksum_verification=True) as file:
                column = file.read_row_group(group.number, columns=[self.member]).column(0).combine_chunks()
        except (OSError, ValueError) as error:
            if not is_decode_error(error) or isinstance(error, CorruptedChunkError):
                raise
            raise CorruptedChunkError(
                f"{where} cannot be decoded ({brief(error)}). Copy or write the file again."
            ) from error
        d = self.array_shape[1]
        values = column.flatten()
        if column.null_count or values.null_count:
            raise ValueError(f"{where} has nulls. Drop or fill those rows first.")
        lengths = np.asarray(column.value_lengths())
        if len(lengths) != group.rows:
            raise CorruptedChunkError(
                f"{where} holds {len(lengths):,} rows, but the file's footer states {group.rows:,}: it is damaged. "
                "Copy it again."
            )
        if np.any(lengths != d):
            row = int(np.flatnonzero(lengths != d)[0])
            raise ValueError(
                f"{where}: the list of row {row} has {lengths[row]} values; {d} were expected, as in the first rows. "
                "Drop or repair such rows first."
            )
        return np.asarray(values.to_numpy(zero_copy_only=False), self.dtype).reshape(group.rows, d)

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return a stamp for each file of those rows."""
        return [file_stamp(path) for path in dict.fromkeys(group.path for group, *_ in self._parts(start, stop))]

    def details(self) -> dict[str, Any]:
        """Return the numbers of files and row groups."""
        groups = self._groups()
        return {"files": len({group.path for group in groups}), "row_groups": len(groups)}


@dataclass(frozen=True, eq=False, repr=False)
class ParquetTable(ParquetRows):
    """Rows of a table of numbers, one column for each feature, or component as ``transform`` writes it."""

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, which all files have."""
        stamp = file_stamp(parquet_paths(self.path)[0])
        return list(_number_names(stamp))

    def _read_group(self, group: _Group) -> Array:
        import pyarrow.parquet as pq

        try:
            known = parquet_metadata(file_stamp(group.path))
            names = _number_names(file_stamp(group.path))
            with pq.ParquetFile(group.path, metadata=known, page_checksum_verification=True) as file:
                found = file.read_row_group(group.number, columns=list(names))
        except (OSError, ValueError) as error:
            if not is_decode_error(error):
                raise
            raise CorruptedChunkError(
                f"{group.path}: row group {group.number} cannot be decoded ({brief(error)}). Write the file again."
            ) from error
        nulls = next((name for name in names if found[name].null_count), None)
        if nulls is not None:
            raise ValueError(
                f"{group.path}: row group {group.number}, column {brief(repr(nulls))} has nulls. Drop or fill those "
                "rows first."
            )
        return np.column_stack([column.to_numpy() for column in found.columns]).astype(self.dtype, copy=False)


def _number_columns(schema: Any) -> list[Any]:
    """Return the fields of a table whose columns are features: all of them, without the keys of a table of scores."""
    marked = TABLE_MARK in (schema.metadata or {})
    return [field for field in schema if not (marked and field.name == KEY_COLUMN)]


@lru_cache(maxsize=64)
def _number_names(stamp: Stamp) -> tuple[str, ...]:
    return tuple(field.name for field in _number_columns(parquet_metadata(stamp).schema.to_arrow_schema()))


def _number_table(pattern: str, stamps: list[Stamp]) -> ParquetTable | None:
    """Describe a table of number columns; None if a column of the first file holds something else.

    Raises
    ------
    TypeError, ValueError
        For columns of several dtypes or of one name, and files that differ in their columns; names them.
    """
    import pyarrow.types as kinds

    fields = _number_columns(parquet_metadata(stamps[0]).schema.to_arrow_schema()) if stamps else []
    if not fields or not all(kinds.is_integer(f.type) or kinds.is_floating(f.type) or kinds.is_boolean(f.type)
                             for f in fields):  # fmt: skip
        return None
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"{stamps[0][0]}: {names.count(twice)} of its columns have the name {brief(repr(twice))}, but names are "
            "unique in a table. Rename them."
        )
    dtypes = {check_dtype(field.type.to_pandas_dtype()).str: field.name for field in fields}
    if len(dtypes) != 1:
        listed = ", ".join(f"{brief(name)} ({np.dtype(dtype)})" for dtype, name in dtypes.items())
        raise TypeError(
            f"{stamps[0][0]}: its columns have {len(dtypes)} dtypes, such as {listed}; one was expected. Convert the "
            "columns, or pass dask.dataframe.read_parquet(path)."
        )
    for stamp in stamps[1:]:
        others = _number_columns(parquet_metadata(stamp).schema.to_arrow_schema())
        if [(f.name, f.type) for f in others] != [(f.name, f.type) for f in fields]:
            raise ValueError(
                f"{stamp[0]} has {len(others)} columns of other names, types or order than the {len(fields)} of "
                f"{stamps[0][0]}. Write it again with the same columns."
            )
    n = sum(group.rows for group in _row_groups(tuple(stamps)))
    return ParquetTable((n, len(fields)), next(iter(dtypes)), path=pattern)


def parquet_paths(pattern: str) -> list[str]:
    """List the Parquet files of a file, folder or glob in natural order."""
    if os.path.isfile(pattern):
        return [pattern]
    if os.path.isdir(pattern):
        found = [p for end in ("*.parquet", "*.pq") for p in glob.glob(os.path.join(glob.escape(pattern), end))]
    else:
        found = glob.glob(pattern)
    return sorted(found, key=natural_key)


def parquet_rows(pattern: str, column: str | None) -> ParquetRows:
    """Describe a list column from the files' footers: the named or the only one; or a table of number columns.

    Raises
    ------
    ValueError
        If a column must be named, does not hold lists, or has lists of different lengths.
    TypeError
        If files disagree in dtype, or the values are not numbers.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{pattern} needs pyarrow, which is not installed. Run: pip install 'bigpca[formats]'"
        ) from error
    stamps = [file_stamp(path) for path in parquet_paths(pattern)]
    if column is None and (table := _number_table(pattern, stamps)) is not None:
        return table
    name, stored, d = "", "", -1
    for stamp in stamps:
        found = _column(stamp, column or name or None)
        if name and found[1] != stored:
            raise TypeError(
                f"{stamp[0]}: {brief(repr(name))} has dtype {found[1]}; {stored} was expected, as in {stamps[0][0]}."
            )
        if d >= 0 and found[2] not in (-1, d):
            raise ValueError(
                f"{stamp[0]}: {brief(repr(name))} has lists of {found[2]}; {d} were expected, as in {stamps[0][0]}."
            )
        name, stored, d = found[0], found[1], max(d, found[2])
    n = sum(group.rows for group in _row_groups(tuple(stamps)))
    return ParquetRows((n, max(d, 0)), stored, path=pattern, member=name)


def _column(stamp: Stamp, wanted: str | None) -> tuple[str, str, int]:
    """Return name, dtype and list length (-1 if there are no rows) of the list column of one file."""
    import pyarrow as pa

    path, metadata = stamp[0], parquet_metadata(stamp)
    schema = metadata.schema.to_arrow_schema()
    lists = [
        f.name
        for f in schema
        if pa.types.is_list(f.type) or pa.types.is_fixed_size_list(f.type) or pa.types.is_large_list(f.type)
    ]
    listed = shorten(", ".join(f"{brief(field.name)} ({brief(field.type)})" for field in schema), MAX_MESSAGE // 4)
    if (wanted is None and len(lists) != 1) or (wanted is not None and wanted not in lists):
        found = (
            f"column {brief(repr(wanted))} is not a column of lists" if wanted else f"{len(lists)} columns hold lists"
        )
        raise ValueError(
            f"{path}: {found}; one column of equally long lists was expected, named with member=. If each feature is "
            f"a column, pass dask.dataframe.read_parquet(path). Its columns: {listed}."
        )
    name = wanted or lists[0]
    kind = schema.field(name).type
    try:
        stored = check_dtype(kind.value_type.to_pandas_dtype()).str
    except (TypeError, NotImplementedError) as error:
        raise TypeError(f"{path}: column {brief(repr(name))} holds {brief(kind)}: {error}") from None
    return name, stored, kind.list_size if pa.types.is_fixed_size_list(kind) else _list_length(metadata, name, path)


def _list_length(metadata: Any, name: str, path: str) -> int:
    """Return the values per row from the counts in the footer, without reading data."""
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        for j in range(group.num_columns):
            leaf = group.column(j)
            if leaf.path_in_schema.split(".")[0] == name and group.num_rows:
                length, rest = divmod(leaf.num_values, group.num_rows)
                if rest:
                    raise ValueError(
                        f"{path}: row group {i} of {brief(repr(name))} has {leaf.num_values} values in "
                        f"{group.num_rows} rows: "
                        "lists of one length were expected. Drop or repair the rows of other lengths first."
                    )
                return int(length)
    return -1


@lru_cache(maxsize=64)
def parquet_metadata(stamp: Stamp) -> Any:
    """Return the footer of a file."""
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(stamp[0])
    except (OSError, ValueError) as error:
        if not is_decode_error(error):
            raise
        raise CorruptedChunkError(
            f"{stamp[0]} is not a complete Parquet file ({brief(error)}). Copy or write it again."
        ) from error


@lru_cache(maxsize=8)
def _row_groups(stamps: tuple[Stamp, ...]) -> _Groups:
    groups = []
    for stamp in stamps:
        metadata = parquet_metadata(stamp)
        groups += [_Group(stamp[0], i, metadata.row_group(i).num_rows) for i in range(metadata.num_row_groups)]
    return _Groups(groups)


class _Groups(tuple[_Group, ...]):
    """Row groups that compare and hash by identity, as what is known of many of them is kept."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@lru_cache(maxsize=8)
def _group_ends(groups: _Groups) -> list[int]:
    return list(accumulate(group.rows for group in groups))
