"""The source of a command: one path, or several that are shards of one matrix, in an order that is shown."""

from __future__ import annotations

import glob
import os
from typing import Any

import typer

from bigpca.cli.options import Reading
from bigpca.errors import format_bytes
from bigpca.storage.stores import kind_of


def in_order(sources: list[str]) -> list[str]:
    """Return shards in natural order if a shell has expanded them, which sorts by characters; else as given.

    Raises
    ------
    typer.BadParameter
        If a shard is given twice.

    Examples
    --------
    >>> in_order(["s_1.npy", "s_10.npy", "s_2.npy"]), in_order(["b.npy", "a.npy"])
    (['s_1.npy', 's_2.npy', 's_10.npy'], ['b.npy', 'a.npy'])
    """
    from bigpca.data.checks import natural_key

    twice = [path for index, path in enumerate(sources) if path in sources[:index]]
    if twice:
        raise typer.BadParameter(f"{twice[0]} is given twice, so its rows would count twice. Give each shard once.")
    return sorted(sources, key=natural_key) if sources == sorted(sources) else sources


def open_sources(sources: list[str], reading: Reading) -> Any:
    """Open the sources of a command as one row-chunked Dask array; no data is read."""
    import bigpca

    given = sources[0] if len(sources) == 1 else in_order(sources)
    return bigpca.open(given, **reading.given)


def recorded(sources: list[str]) -> Any:
    """Return the sources for a JSON record: a string if there is one."""
    return sources[0] if len(sources) == 1 else in_order(sources)


def shards_of(sources: list[str]) -> list[str]:
    """Return the files of several sources, of a folder or of a pattern, in the order in which they are read."""
    if len(sources) > 1:
        return in_order(sources)
    path = os.path.expanduser(sources[0])
    if kind_of(path) != "disk" or not (os.path.isdir(path) or glob.has_magic(path)) or os.path.isfile(path):
        return []
    from bigpca.data.parquet import parquet_paths
    from bigpca.data.shards import shard_paths
    from bigpca.data.zarr_groups import is_zarr_directory

    if is_zarr_directory(path):
        return []
    return [one for one in shard_paths(path) if one.endswith(".npy")] or list(parquet_paths(path))


def described(sources: list[str], data: Any) -> list[str]:
    """Return what is read, for display: the shards and their order, then rows, columns, dtype, bytes and chunks."""
    from bigpca.data.sources import source_of

    n, d = data.shape
    known = n == n  # a Dask array may not know its rows
    found = source_of(data)
    chunks = len(found.row_chunks()) if found is not None else data.numblocks[0]
    row_bytes = d * data.dtype.itemsize if found is None else found.row_bytes
    size = f", {format_bytes(n * row_bytes)}" if known else ""
    if found is not None and found.stored_values is not None:
        size = f", sparse with {100 * found.stored_values / max(1, n * d):.3g} % stored{size}"
    shape = f"{n:,} rows x {d:,} columns" if known else f"{d:,} columns"
    return [*shard_line(shards_of(sources)), f"{shape}, {data.dtype}{size}, {chunks:,} chunk{'s'[: chunks != 1]}"]


def shard_line(shards: list[str]) -> list[str]:
    """Return one line that names the first and the last shard, or none.

    >>> shard_line(["x/shard_00.npy", "x/shard_01.npy", "x/shard_02.npy"])
    ['3 shards, shard_00.npy to shard_02.npy, in this order']
    """
    if len(shards) < 2:
        return []
    first, last = os.path.basename(shards[0]), os.path.basename(shards[-1])
    return [f"{len(shards):,} shards, {first} to {last}, in this order"]
