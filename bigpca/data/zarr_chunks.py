"""The stored objects of one Zarr array: the key of each chunk (or shard), whether it exists, and its size."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bigpca.data.bfloat16 import BFLOAT16
from bigpca.data.decoded_sizes import DecodedSizes
from bigpca.data.urls import public
from bigpca.data.zarr_direct import DirectRows
from bigpca.data.zarr_metadata import array_document, codecs_of, layout_digest, short_name
from bigpca.storage.regular import is_there, open_regular

if TYPE_CHECKING:
    import zarr

Cell = tuple[int, ...]
T = TypeVar("T")
MAX_SHOWN = 10
BATCH = 4096  # keys held at a time
CONCURRENCY = 64  # concurrent requests to a store that is not a local directory


class Missing(NamedTuple):
    """How many cells were checked, how many of them are missing, and the keys of the first ten."""

    looked: int
    lost: int
    first: tuple[str, ...]


@dataclass(frozen=True)
class ChunkFiles:
    """Grid, keys, presence and sizes of the stored objects of an open array.

    Attributes
    ----------
    array : zarr.Array
    cell_shape : tuple of int
        Shape of one stored object: a shard if there are shards, else a chunk.
    directory : str or None
        Directory of the array in a local store; None in any other store.
    blosc : bool
        Whether stored objects are plain Blosc buffers, whose decoder does not detect a truncated file.
    direct : DirectRows or None
        Reads whole rows without Zarr, if the layout allows it.
    sizes : DecodedSizes or None
        Decoded sizes of chunks; None outside local stores, where each would need a request.
    halves : bool
        Whether the array holds the bits of bfloat16 numbers.
    """

    array: zarr.Array[Any]
    cell_shape: tuple[int, ...]
    directory: str | None
    blosc: bool
    direct: DirectRows | None = None
    sizes: DecodedSizes | None = None
    halves: bool = False

    @classmethod
    def of(cls, array: zarr.Array[Any], halves: bool = False) -> ChunkFiles:
        """Describe an open array, without reading it."""
        root = local_root(array.store)
        directory = None if root is None else os.path.join(root, array.path)
        document, cell_shape = array_document(array), array.shards or array.chunks
        blosc = [short_name(name) for name, _ in codecs_of(document)][-1:] == ["blosc"]
        direct = DirectRows.of(array, directory)
        sizes = DecodedSizes.of(document, array.chunks, cell_shape, array.dtype.itemsize) if directory else None
        return cls(array, cell_shape, directory, blosc and not array.shards, direct, sizes, halves)

    @property
    def label(self) -> str:
        """Location of the array, for messages."""
        return self.directory or public(str(self.array.store_path))

    @property
    def digest(self) -> str:
        """SHA-256 of the metadata that define how chunks are decoded."""
        return layout_digest(self.array) + (BFLOAT16 if self.halves else "")

    def cells(self, bounds: Iterable[tuple[int, int]]) -> Iterator[Cell]:
        """Iterate over the cells that the half-open ranges touch, in C order."""
        spans = zip(bounds, self.cell_shape, strict=True)
        return itertools.product(
            *(range(lo // size, -(-hi // size)) if hi > lo else range(0) for (lo, hi), size in spans)
        )

    def all_cells(self) -> Iterator[Cell]:
        """Iterate over every cell of the array."""
        return self.cells((0, size) for size in self.array.shape)

    def key(self, cell: Cell) -> str:
        """Return the key of a cell, relative to the array: ``c/3/0`` or ``3.0``."""
        return self.array.metadata.encode_chunk_key(cell)

    def missing(self, cells: Iterable[Cell]) -> Missing:
        """Find the cells that are not in the store: a ``stat`` each in a local store (2 µs), a request elsewhere."""
        looked, lost, first, left = 0, 0, list[str](), iter(cells)
        while batch := [self.key(cell) for cell in itertools.islice(left, BATCH)]:
            absent = [key for key, found in zip(batch, self._there(batch), strict=True) if not found]
            looked, lost = looked + len(batch), lost + len(absent)
            first += absent[: MAX_SHOWN - len(first)]
        return Missing(looked, lost, tuple(first))

    def _there(self, keys: list[str]) -> list[bool]:
        if self.directory is None:
            return _gather(self.array.store.exists(self._full(key)) for key in keys)
        prefix = self.directory + os.sep
        return [is_there(prefix + key) for key in keys]

    def cut_short(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return Blosc chunks of a local store with fewer bytes than their header states.

        NOTE: Blosc's decoder reads past the end of such a buffer and returns whatever is there.
        """
        if not self.blosc or self.directory is None:
            return []
        return [cell for cell in cells if _is_cut(os.path.join(self.directory, self.key(cell)))]

    def too_large(self, bounds: Iterable[tuple[int, int]]) -> list[tuple[Cell, str]]:
        """Return cells in the half-open ranges whose stored or decoded size exceeds their shape, with the reason."""
        if self.sizes is None or self.directory is None:
            return []
        ranges, found = list(bounds), []
        for cell in self.cells(ranges):
            reason = self.sizes.too_large(os.path.join(self.directory, self.key(cell)), self._inside(cell, ranges))
            found += [(cell, reason)] if reason else []
        return found

    def _inside(self, cell: Cell, bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the range of the chunks of one shard that the bounds touch, along each axis."""
        pairs = []
        for i, (lo, hi), shard, chunk in zip(cell, bounds, self.cell_shape, self.array.chunks, strict=True):
            pairs.append((max(lo - i * shard, 0) // chunk, -(-min(hi - i * shard, shard) // chunk)))
        return pairs

    def stamp(self, cell: Cell) -> tuple[str, int, int]:
        """Return (key, size, mtime in ns) of a cell; size -1 if it is missing, time 0 if the store has none."""
        key = self.key(cell)
        try:
            if self.directory is None:
                from zarr.core.sync import sync

                return key, sync(self.array.store.getsize(self._full(key))), 0
            found = os.stat(os.path.join(self.directory, key))
            return key, found.st_size, found.st_mtime_ns
        except FileNotFoundError:
            return key, -1, 0

    def content(self, key: str) -> bytes:
        """Return the stored bytes of one object, undecoded."""
        from zarr.core.buffer import default_buffer_prototype
        from zarr.core.sync import sync

        buffer = sync(self.array.store.get(self._full(key), default_buffer_prototype()))
        if buffer is None:
            raise FileNotFoundError(f"{self.label} holds no {key}")
        return buffer.to_bytes()

    def may_hold(self, size: int) -> bool:
        """Whether a stored object of the array can be that large."""
        return self.sizes is None or size <= self.sizes.max_stored

    def decode(self, cell: Cell) -> NDArray[Any]:
        """Decode one cell, cut to the array's shape."""
        bounds = [(i * size, (i + 1) * size) for i, size in zip(cell, self.cell_shape, strict=True)]
        for _, reason in self.too_large(bounds):
            raise ValueError(reason)
        index = tuple(slice(*pair) for pair in bounds)
        return np.asarray(self.array[index])

    def _full(self, key: str) -> str:
        return f"{self.array.path}/{key}" if self.array.path else key


def local_root(store: Any) -> str | None:
    """Return the directory of a store on a local disk, also behind fsspec (``da.from_zarr`` of a path), else None."""
    from zarr.storage import LocalStore

    from bigpca.storage.regular_store import RegularStore

    if isinstance(store, LocalStore) and type(store) in (LocalStore, RegularStore):
        return os.path.abspath(store.root)
    files = getattr(store, "fs", None)
    protocol = getattr(getattr(files, "sync_fs", files), "protocol", ())
    if type(store).__name__ == "FsspecStore" and "file" in (protocol if isinstance(protocol, tuple) else (protocol,)):
        return os.path.abspath(str(store.path))
    return None


def _is_cut(path: str) -> bool:
    try:
        with open_regular(path, buffering=0) as file:
            head = file.read(16)
            return len(head) < 16 or os.fstat(file.fileno()).st_size < int.from_bytes(head[12:16], "little")
    except FileNotFoundError:
        return False


def _gather(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    from zarr.core.sync import sync

    async def bounded() -> list[T]:
        gate = asyncio.Semaphore(CONCURRENCY)

        async def one(request: Coroutine[Any, Any, T]) -> T:
            async with gate:
                return await request

        return await asyncio.gather(*(one(request) for request in requests))

    return sync(bounded())
