"""Arguments beside X that are read whole (labels, weights, groups, keys, a centre, a scale, landmarks), as one array.

They are read as X is: nothing is unpickled, no lost chunk becomes 0, and encoded numbers are errors. Rows that are read
beside those of X are opened by :func:`bigpca.estimators.shared.labelled.open_side`.

First cells in files of AnnData and 10x Genomics: beside the matrix, the names of cells and genes, and columns of obs.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

import bigpca.dask_array as da
from bigpca.arrays import Array
from bigpca.data.checks import MemberError, check_dtype, decoding
from bigpca.data.containers import (
    Names,
    is_hdf5_dataset,
    is_labelled,
    is_zarr,
    is_zarr_array,
    is_zarr_group,
    reject_foreign,
)
from bigpca.data.grids import lazy_table
from bigpca.data.hdf5 import HDF5_SUFFIXES, hdf5_names, hdf5_nodes, read_dataset, written
from bigpca.data.source import Wanted, file_stamp
from bigpca.data.tables import PARQUET_SUFFIXES, parquet_schema, table_column, table_paths, table_rows
from bigpca.data.zarr_arrays import arrays_of, check_chunks, is_zarr_directory, open_node, read_whole
from bigpca.data.zarr_format import naming_damage
from bigpca.errors import MAX_MESSAGE, brief, closest, listed, naming_argument, shorten
from bigpca.storage.files import (
    changed,
    check_regular,
    input_changed,
    kind_of,
    local_path,
    look_at,
    open_regular,
    public,
    read_npy_header,
    without_credentials,
)

if TYPE_CHECKING:
    import zarr


log = logging.getLogger("bigpca")
OF_CELLS = ("X", "layers", "obsm", "raw")  # whose rows are cells
OF_GENES = ("X", "layers", "raw")  # whose columns are genes
BOM = b"\xef\xbb\xbf"
TENX = "matrix"  # the group in files of Cell Ranger 3 and later; earlier ones name it after the genome
TENX_CELLS, TENX_GENES = ("barcodes",), ("features/name", "gene_names")  # those that scanpy.read_10x_h5 takes
# No leading zeros: "01" and "1" are two codes, which as numbers would silently become one class.
INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
REAL = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)


def cell_names(home: Any) -> Names | None:
    """Return the names of the cells of a matrix: ``obs_names`` or barcodes; None if they are not distinct.

    Parameters
    ----------
    home : str or place in an open store of Zarr
        The file or store, or a matrix in it, such as ``"cells.zarr/X"``.
    """
    place, name = _in_file(home, "")
    names = _index(place, "obs") if name.split("/")[0] in OF_CELLS else None
    names = _of_tenx(place, name, TENX_CELLS) if names is None else names
    if names is not None and len(set(names)) < len(names):
        log.warning("the names of the cells in %s are not distinct, so they are not used as keys of the rows.", place)
        return None
    return names


def gene_names(home: Any, member: str, width: int) -> Names | None:
    """Return the names of the ``width`` columns of a matrix, ``var_names`` or features; None for other matrices.

    Raises
    ------
    ValueError
        For a different number of names.
    """
    place, name = _in_file(home, member)
    frame = "raw/var" if name.startswith("raw/") else "var"
    names = _index(place, frame) if name.split("/")[0] in OF_GENES else None
    if names is None:
        frame, names = "its list of features", _of_tenx(place, name, TENX_GENES)
    if names is not None and len(names) != width:
        raise ValueError(
            f"{place}: {brief(name)} has {width:,} columns, but {frame} has {len(names):,} names; the same number "
            f"was expected. The file was not written completely: write it again."
        )
    return names


def cell_column(path: str, name: str | None, word: str) -> Array | None:
    """Return a column of ``obs``, one value for each cell, such as ``"type"`` or ``"obs/type"``; gaps are None.

    None for a file that is not AnnData. ``word`` says what is read, for messages.

    Raises
    ------
    MemberError
        If there is no such column; lists those that there are.
    """
    with _nodes(path) as node:
        frame = _frame(node, "obs")
        if node is None or frame is None:
            return None
        columns = [str(one) for one in frame.get("column-order", ())]
        short = (name or "").strip("/").removeprefix("obs/")
        if short not in columns and "/" in (name or ""):
            return None  # the place of an array
        if short not in columns:
            short = _choose(f"{path}: obs", short or None, columns, "column", word)
        found = node(f"obs/{short}")
        members = list(found) if hasattr(found, "keys") else [""]
        parts: dict[str, Any] = {one: _values(node(f"obs/{short}/{one}".rstrip("/")), word) for one in members}
    if any(values is None for values in parts.values()):
        raise MemberError(f"{path}: obs/{brief(short)} does not hold one value for each cell. Pass the values.")
    if {"codes", "categories"} <= parts.keys():
        categories: Array = np.array([*parts["categories"], None], dtype=object)
        return np.asarray(categories[parts["codes"].astype(np.int64)])  # -1: a gap
    if {"values", "mask"} <= parts.keys():
        values: Array = parts["values"].astype(object)
        values[parts["mask"].astype(bool)] = None
        return values
    (single,) = parts.values()
    return np.asarray(single)


@contextmanager
def _nodes(home: Any) -> Iterator[Callable[[str], Any] | None]:
    """Yield a function from a name in an HDF5 file or a Zarr group to what is there, or None; None for other files."""
    local = isinstance(home, str) and kind_of(home) == "disk"
    if local and os.path.isfile(home) and home.lower().endswith(HDF5_SUFFIXES):
        with hdf5_nodes(home) as node:
            yield node
    elif local and not is_zarr_directory(home):
        yield None
    else:
        with without_credentials(str(home)), naming_damage(public(str(home))):
            root: Any = open_node(home)
            yield (lambda name: root.get(name) if name else root) if is_zarr_group(root) else None


def _frame(node: Callable[[str], Any] | None, name: str) -> Mapping[str, Any] | None:
    """Return the attributes of a data frame of AnnData; None in a file of another kind."""
    if node is None or str(node("").attrs.get("encoding-type", "")) != "anndata":
        return None
    found = node(name)
    return found.attrs if hasattr(found, "keys") else {}


def _values(node: Any, word: str) -> Any:
    """Return the values of an array of one dimension in a file or store; None for anything else."""
    if getattr(node, "ndim", 0) != 1:
        return None
    return read_whole(node, word) if is_zarr_array(node) else read_dataset(node)


def _in_file(home: Any, member: str) -> tuple[Any, str]:
    """Return the file or store of a matrix, and its name there; X where none is given."""
    if isinstance(home, str) and kind_of(home) == "disk":
        home = local_path(home)
    if member:
        return home, member.strip("/")
    parts = (home.rstrip("/") if isinstance(home, str) else f"/{home.path}").split("/")
    for depth, folders in ((1, ("X",)), (2, OF_CELLS)):
        if len(parts) > depth and parts[-depth] in folders:
            above = "/".join(parts[:-depth])
            return above if isinstance(home, str) else type(home)(home.store, above), "/".join(parts[-depth:])
    return home, "X"


def _index(home: Any, frame: str) -> Names | None:
    """Return the names of the rows of a data frame of AnnData; None in a file of another kind."""
    with _nodes(home) as node:
        name = (_frame(node, frame) or {}).get("_index")
        found = None if node is None or name is None else _values(node(f"{frame}/{name}"), "name")
    return None if found is None else np.asarray(found, object)


def _of_tenx(path: Any, name: str, columns: tuple[str, ...]) -> Names | None:
    """Return names in an HDF5 file of 10x Genomics, which are in the group of the matrix; None in other files."""
    group = TENX if name == "X" else name
    if not isinstance(path, str):  # a place in an open store of Zarr
        return None
    if not os.path.isfile(path):  # the path may name the group
        path, group = os.path.split(path)
    if not os.path.isfile(path) or not path.lower().endswith(HDF5_SUFFIXES):
        return None
    return hdf5_names(path, *(f"{group}/{column}" for column in columns))


def read_label_file(source: str, word: str = "label") -> Array:
    """Read the labels at a path in their stored form; gaps are None or NaN.

    Parameters
    ----------
    source : str
        A ``.npy`` file, a ``.csv`` file with a header, Parquet (a file, folder or glob), a Zarr store or URL, or
        AnnData. ``"path::name"`` names the column of a table, the array of a Zarr group, or the
        column of ``obs``; unnecessary if there is only one.
    word : {"label", "weight", "key", "value", "name"}, default "label"
        What is read, for messages.

    Returns
    -------
    ndarray of the stored shape, such as (n,) or (n, m)

    Raises
    ------
    FileNotFoundError
        If the path does not exist.
    MemberError
        If the table has no such column; lists its columns.
    ValueError
        If the format is unknown, a column must be named, or a line of a CSV has a different number of fields.
    CorruptedChunkError, MissingChunksError
        If the file cannot be decoded, or a chunk is missing from the store.
    InputChangedError
        If the file changes as it is read.
    """
    path, name = split_column(source)
    if kind_of(path) != "disk":
        if path.lower().endswith((".npy", ".csv", *PARQUET_SUFFIXES)):
            raise ValueError(
                f"{public(path)} is at a URL, but files of labels and weights can only be read from a disk. Copy it to "
                "this machine, or pass its values; labels in Zarr are read at URLs."
            )
        with without_credentials(path):
            return read_zarr(open_node(path), name, word)
    path = local_path(path)
    before = look_at(path)
    found = _in_place(path, name, word)
    if changed(before, look_at(path)):
        raise input_changed(path)
    return found


def _in_place(path: str, name: str | None, word: str) -> Array:
    if os.path.isdir(path) and is_zarr_directory(path):
        with naming_damage(path):
            node = open_node(path)
            column = cell_column(path, name, word) if is_zarr_group(node) else None
            return read_zarr(node, name, word) if column is None else column
    if path.lower().endswith(PARQUET_SUFFIXES) or (os.path.isdir(path) and table_paths(path)):
        return _parquet_column(path, name, word)
    if not os.path.exists(path) or os.path.isdir(path):
        raise FileNotFoundError(
            f"{path} holds no {word}s: a .npy or .csv file, Parquet or a Zarr store was expected. Check the path."
        )
    if path.lower().endswith((".csv", ".tsv")):
        return _csv_column(path, name, word)
    if not path.lower().endswith(".npy"):
        column = cell_column(path, name, word)
        if column is not None:
            return column
        raise ValueError(
            f"{path} has an unknown format for {word}s: .npy, .csv, Parquet, a Zarr directory or AnnData was expected. "
            "Read it yourself and pass the array."
        )
    if name is not None:
        raise MemberError(f"{path} is one array, so it has no member {name!r}. Leave ::{name} out.")
    return _npy(path)


def column_names(path: str) -> list[str]:
    """Return the names of the columns of a table of labels: CSV, Parquet, or a Zarr group.

    Columns of lists are left out. There are none in other files (of AnnData, too, where the names of the cells are the
    keys), in damaged ones, and where there is no file.
    """
    path, found = local_path(path), list[str]()
    try:
        if os.path.isdir(path) and is_zarr_directory(path):
            with naming_damage(path):
                node = open_node(path)
                if is_zarr_group(node) and node.attrs.get("encoding-type") != "anndata":
                    found = [name for name, array in arrays_of(node) if array.ndim == 1]
        elif path.lower().endswith(PARQUET_SUFFIXES) or (os.path.isdir(path) and table_paths(path)):
            for file in table_paths(path)[:1]:
                schema = parquet_schema(file_stamp(file))
                found = [field.name for field in schema if not field.type.num_fields]
        elif path.lower().endswith((".csv", ".tsv")) and os.path.exists(path):
            with io.TextIOWrapper(open_regular(path), "utf-8-sig", newline="") as text:
                found = next(csv.reader(text, strict=True, delimiter=_delimiter(path)), [])
    except (csv.Error, UnicodeDecodeError, ValueError, TypeError, EOFError, ImportError):
        return []  # the reader of a column reports what is wrong
    return found


def split_column(source: str) -> tuple[str, str | None]:
    """Return path and column of ``"path::column"``; None without a column."""
    path, mark, name = source.partition("::")
    # "simplecache::s3://..." is one URL
    whole = not mark or kind_of(name) != "disk" or os.path.exists(local_path(source))
    return (source, None) if whole else (path, name)


def _choose(path: str, name: str | None, names: Sequence[str], what: str, word: str) -> str:
    shown = shorten(listed(names, 20), MAX_MESSAGE // 4) or "nothing"
    if name is None and len(names) == 1:
        return names[0]
    if name is not None and names.count(name) == 1:
        return name
    if name in names:
        raise MemberError(f"{path} has {names.count(name)} {what}s {brief(repr(name))}. Rename them: {shown}.")
    found = f"{len(names)} {what}s." if name is None else f"no {what} {brief(repr(name))}.{closest(name, names)}"
    raise MemberError(f"{path} has {found} Name the one that holds the {word}s, as in 'path::name': {shown}.")


def _npy(path: str) -> Array:
    with open_regular(path) as file, decoding(f"{path} is not a complete .npy file", "Write it again with np.save."):
        # A header may state more bytes than the file holds: found before NumPy allocates memory for them.
        shape, _, dtype = read_npy_header(file)
        if dtype.hasobject:
            raise TypeError(
                f"{path} holds pickled objects, which are never loaded. Save numbers or strings instead, for "
                "instance np.save(path, y.astype(str))."
            )
        needed, held = math.prod(shape) * dtype.itemsize, os.fstat(file.fileno()).st_size - file.tell()
        if held < needed:
            raise ValueError(f"{held:,} bytes of values, but its header states {needed:,}")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


def _delimiter(path: str) -> str:
    return "\t" if path.lower().endswith(".tsv") else ","


def _csv_column(path: str, name: str | None, word: str) -> Array:
    """Return a column of a CSV file with a header; empty fields, and blank lines before the last row, are gaps."""
    import pyarrow as pa
    import pyarrow.csv as pc

    what = f"{path} cannot be read as comma-separated UTF-8 text"
    errors = (pa.ArrowInvalid, UnicodeDecodeError)
    with decoding(what, "Repair or write it again.", errors=errors), open_regular(path) as file:
        data = file.read().removeprefix(BOM).rstrip(b"\r\n") + b"\n"
        how: dict[str, Any] = {
            "read_options": pc.ReadOptions(use_threads=False, block_size=len(data)),  # so that errors name the row
            "parse_options": pc.ParseOptions(
                delimiter=_delimiter(path), newlines_in_values=True, ignore_empty_lines=False
            ),
        }
        names = pc.open_csv(pa.BufferReader(data), **how).schema.names if len(data) > 1 else []
        name = _choose(path, name, names, "column", word)
        # Of texts: numbers would lose what they look like, and "01" is not 1.
        wanted = pc.ConvertOptions(include_columns=[name], column_types={name: pa.string()}, strings_can_be_null=False)
        return parse_column(pc.read_csv(pa.BufferReader(data), **how, convert_options=wanted).column(0).to_pylist())


def parse_column(texts: Sequence[str]) -> Array:
    """Convert the texts of one CSV column to integers, real numbers or strings, the first that fits all; "" is a gap.

    In a column of numbers "nan" is a gap too. Numbers have no leading zeros, so "007" remains a string.

    Returns
    -------
    ndarray of shape (n,), object; gaps are None

    Examples
    --------
    >>> parse_column(["1", "", "2"]).tolist(), parse_column(["1", "2.5"]).tolist(), parse_column(["01", "1"]).tolist()
    ([1, None, 2], [1.0, 2.5], ['01', '1'])
    """
    given = {text for text in texts if text}
    numbers = {text for text in given if text.lower() != "nan"}
    known: dict[str, Any] = dict.fromkeys(given)
    if numbers and all(INTEGER.fullmatch(text) for text in numbers):
        known |= {text: int(text) for text in numbers}
    elif numbers and all(REAL.fullmatch(text) or INFINITE.fullmatch(text) for text in numbers):
        known |= {text: float(text) for text in numbers}
    else:
        known = {text: text for text in given}
    return np.array([known.get(text) for text in texts], dtype=object)


def _parquet_column(path: str, name: str | None, word: str) -> Array:
    paths = table_paths(path)
    if not paths:
        raise FileNotFoundError(f"no Parquet files were found for {path}. Check the path.")
    for file in paths:
        check_regular(file)
        with decoding(f"{file} cannot be decoded", "Copy or write the file again."):
            schema = parquet_schema(file_stamp(file))
        name = _choose(file, name, schema.names, "column", word)
        if schema.field(name).type.num_fields:
            rows = table_rows(path, name, Wanted())
            return rows.read_block(0, rows.shape[0], (0, rows.shape[1]))
    return table_column(path, name or "")


def read_zarr(node: zarr.Array[Any] | zarr.Group, name: str | None = None, word: str = "label") -> Array:
    """Read a Zarr array, or one of a group, which need not be named if it is the only one, by :func:`read_whole`."""
    path = public(str(node.store_path))
    if is_zarr_group(node):
        arrays = dict(arrays_of(node))
        node = arrays[_choose(path, name and name.strip("/"), list(arrays), "array", word)]
    elif name is not None:
        raise MemberError(f"{path} is one Zarr array, so it has no member {name!r}. Leave ::{name} out.")
    return read_whole(node, word)


def whole(given: Any, name: str, word: str, expected: str) -> Any:
    """Return an argument that is stored or lazy as an array in memory; anything else that NumPy can read unchanged.

    Parameters
    ----------
    name : str
        The argument, for messages.
    word : {"label", "weight", "key", "value", "group", "number", "landmark"}
        What one of its values is.
    expected : str
        What is expected, as :func:`bigpca.data.containers.reject_foreign` says it.

    Raises
    ------
    TypeError
        For containers that NumPy cannot read, and chunks of another dtype than a Dask array declares.
    ValueError
        For numbers that are stored encoded.
    MissingChunksError
        For chunks that are not in their store or file.
    """
    with naming_argument(name):
        if is_labelled(given):
            given = lazy_table(given) if given.dtype.kind in "biuf" else given.data
        if is_hdf5_dataset(given):
            given = read_dataset(given)
        elif is_zarr(given):
            given = read_zarr(open_node(given), word=word)
        elif hasattr(given, "__dask_graph__") and hasattr(given, "compute"):
            given = _computed(given, word)
        if given is not None:
            reject_foreign(given, name, expected)
        if getattr(getattr(given, "dtype", None), "kind", "") == "V" and not given.dtype.names:
            check_dtype(given.dtype)  # rejects bfloat16, as of X
    return given


def check_stored(given: Any, word: str) -> None:
    """Reject a Dask array or frame that reads stores without some of their chunks, which Dask would take for zeros.

    Raises
    ------
    MissingChunksError
    """
    for node in dict(given.__dask_graph__() or {}).values():
        held = getattr(node, "value", node)
        if is_zarr_array(held):
            check_chunks(held, word)
        elif is_hdf5_dataset(held):
            written(held)


def _computed(given: Any, word: str) -> Any:
    """Return the values of a Dask array or frame, whose stores must have all their chunks."""
    check_stored(given, word)
    if isinstance(given, da.Array):
        given = given.map_blocks(_declared, given.dtype, word, dtype=given.dtype, meta=given._meta)
    return da.computed(given)


def _declared(block: Any, dtype: np.dtype[Any], word: str) -> Any:
    """Return a chunk in the dtype that its Dask array declares: Dask itself would cast
    all to that of the first, unchecked.
    """
    own = getattr(block, "dtype", dtype)
    if own == dtype or own.kind not in "biufc" or dtype.kind not in "biuf":
        return block
    if not np.can_cast(own, dtype, "safe"):
        raise TypeError(
            f"a chunk of the {word}s has dtype {own}, but the Dask array declares {dtype}, so {word}s would be rounded "
            "or would wrap around. Convert the chunks first: y.map_blocks(lambda block: block.astype(...), dtype=...)."
        )
    return block.astype(dtype)
