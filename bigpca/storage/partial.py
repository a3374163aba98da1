"""Unfinished outputs: their layout, whether an earlier run's can be resumed, and whether the disk has room."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from bigpca.errors import MemoryBudgetError, OutputExistsError
from bigpca.storage.chunks import ChunkWriter, fill_value
from bigpca.storage.files import atomic_write_bytes, exists, free_bytes, publish, remove, temporary_sibling
from bigpca.storage.regular import read_document
from bigpca.storage.stores import is_storable

FORMAT = (1, 0)
LEVEL = 1  # of zstd; scores and features hardly compress further
LARGEST_CHUNK = 2**31 - 1  # numcodecs' limit per buffer
JOURNAL = ".bigpca-"  # and 16 digits of the run's identity
GROWING = 2**62  # rows of an output whose number of rows is set before its last chunk is written


@dataclass(frozen=True)
class Layout:
    """What must agree for a partial output to be resumed."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    identity: str

    @property
    def grows(self) -> bool:
        """Whether the number of rows is set at the end; the metadata have 0 until then."""
        return self.shape[0] == GROWING

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in the metadata of the partial output."""
        return (0, *self.shape[1:]) if self.grows else self.shape

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        """Whether the Zarr metadata of a partial output describe this layout."""
        return bool(
            tuple(metadata["shape"]) == self.stored_shape
            and metadata["data_type"] == self.dtype.name
            and metadata["chunk_grid"]["configuration"]["chunk_shape"] == [self.chunk_rows, *self.shape[1:]]
            and metadata["attributes"]["bigpca"]["identity"] == self.identity
            and metadata["attributes"]["bigpca"]["format"] == list(FORMAT)
        )


def check_layout(shape: tuple[int, ...], dtype: DTypeLike, chunk_rows: int, identity: str) -> Layout:
    """Check the requested output and return it in its stored form."""
    kind = np.dtype(dtype)
    if not is_storable(kind):
        raise TypeError(
            f"an output of dtype {kind} was requested, but only bool, integers and floats (up to 64 bits) are written. "
            "Choose float32 or float64."
        )
    if len(shape) < 2 or shape[0] < 0 or min(shape[1:]) < 1:
        raise ValueError(f"an output of shape {tuple(shape)} was requested, but it must be (n, d) with d >= 1.")
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows is {chunk_rows}, but it must be at least 1.")
    n, d = int(shape[0]), math.prod(shape[1:])
    rows = min(int(chunk_rows), max(n, 1))
    if rows * d * kind.itemsize > LARGEST_CHUNK:
        largest = LARGEST_CHUNK // (d * kind.itemsize)
        raise ValueError(
            f"chunk_rows = {rows} makes chunks of {rows * d * kind.itemsize:,} bytes, but one chunk holds at most "
            f"{LARGEST_CHUNK:,}. Use chunk_rows <= {largest}."
        )
    return Layout((n, *map(int, shape[1:])), kind.newbyteorder("<"), rows, str(identity))


def open_partial(target: Path, layout: Layout, resume: bool, *, copied: bool = False) -> ChunkWriter:
    """Resume the partial output if it belongs to this run, else create it.

    Raises if the disk cannot hold it, and its copy beside it where it will be ``copied``.
    """
    import zarr  # heavy, and needed where an output is begun only
    from zarr.codecs import ZstdCodec

    store = target.with_name(target.name + ".partial")
    # Tasks of a run with another identity look for another journal, and so fail instead of mixing two outputs.
    journal = JOURNAL + hashlib.sha256(layout.identity.encode()).hexdigest()[:16]
    writer = ChunkWriter(str(store), str(store / journal), layout.shape, layout.dtype.str, layout.chunk_rows, LEVEL)
    ours = _read_partial(store)
    for unfinished in store.glob(".zarr.json.*.tmp"):  # of a run that was killed while it wrote the metadata
        remove(unfinished)
    if ours is not None and layout.grows and ours["shape"][0]:
        _grow_again(ours, writer)
    if ours is not None and resume and layout.matches(ours) and Path(writer.journal).is_dir():
        done = {record.index for record in writer.records() if writer.is_intact(record, check_bytes=False)}
        _check_disk(target, layout, sum(stop - start for start, stop in map(writer.row_range, done)), copied)
        return writer
    if exists(store):
        remove(store)
    _check_disk(target, layout, 0, copied)
    with temporary_sibling(store) as sibling:
        zarr.create_array(
            str(sibling),
            shape=layout.stored_shape,
            dtype=layout.dtype,
            chunks=(layout.chunk_rows, *layout.shape[1:]),
            compressors=[ZstdCodec(level=LEVEL, checksum=True)],
            filters=None,
            fill_value=fill_value(layout.dtype),
            attributes={"bigpca": {"kind": "partial array", "format": list(FORMAT), "identity": layout.identity}},
        )
        (sibling / journal).mkdir()
        (sibling / "c").mkdir()
        publish(sibling, store, replace=False)
    return writer


def remove_journals(target: Path) -> None:
    """Remove what a run that was killed once its output had become visible left in it."""
    for journal in target.glob(f"{JOURNAL}{'[0-9a-f]' * 16}"):
        remove(journal)


def set_rows(writer: ChunkWriter, n: int) -> None:
    """Write the number of rows into the metadata of a partial output; 0 if it is to grow."""
    path = Path(writer.store, "zarr.json")
    metadata = read_document(path)
    metadata["shape"][0] = n
    atomic_write_bytes(path, json.dumps(metadata).encode())


def _grow_again(metadata: dict[str, Any], writer: ChunkWriter) -> None:
    """Let a partial output grow whose run was killed at its end: without its last chunk, if that is a short one."""
    n, chunk_rows = metadata["shape"][0], metadata["chunk_grid"]["configuration"]["chunk_shape"][0]
    if n % chunk_rows:
        writer.chunk_path(n // chunk_rows).unlink(missing_ok=True)
    set_rows(writer, 0)
    metadata["shape"][0] = 0


def read_layout(target: Path) -> Layout | None:
    """Return the layout of the partial output beside a path, whatever has its identity; None if there is none."""
    metadata = _read_partial(target.with_name(target.name + ".partial"))
    if metadata is None:
        return None
    identity, chunks = metadata["attributes"]["bigpca"]["identity"], metadata["chunk_grid"]["configuration"]
    return Layout(tuple(metadata["shape"]), np.dtype(metadata["data_type"]), chunks["chunk_shape"][0], identity)


def _read_partial(store: Path) -> dict[str, Any] | None:
    """Read a partial output's metadata; None if there is none. Raises if unrelated files have its name."""
    if not exists(store):
        return None
    if store.is_symlink():
        raise OutputExistsError(
            f"{store} is a symbolic link, which is not followed: the unfinished output would be written to its target. "
            "Remove it."
        )
    try:
        metadata = read_document(store / "zarr.json")
        metadata["attributes"]["bigpca"]["identity"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputExistsError(
            f"{store} is in the way: the unfinished output is written there, but bigpca did not create it. Move it."
        ) from error
    return dict(metadata)


def _check_disk(target: Path, layout: Layout, rows_done: int, copied: bool) -> None:
    if layout.grows:
        return
    rows = layout.shape[0] * (2 if copied else 1) - rows_done
    d = math.prod(layout.shape[1:])
    needed = rows * d * layout.dtype.itemsize * 101 // 100
    free = free_bytes(target)
    if needed > free:
        twice = ", all of them once more in a table" if copied else ""
        raise MemoryBudgetError(
            f"{target} needs {needed:,} bytes of disk ({layout.shape[0] - rows_done:,} rows of {d} "
            f"{layout.dtype.name}{twice}, and 1 %), but {free:,} are free. Free space, or write to another disk."
        )
