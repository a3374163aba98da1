"""The stored objects of one Zarr array: the key of each chunk (or shard), whether it exists, its size and stamp."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import zlib
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bigpca.data.bfloat16 import BFLOAT16
from bigpca.data.decoded_sizes import DecodedSizes
from bigpca.data.urls import public
from bigpca.data.zarr_direct import DirectRows
from bigpca.data.zarr_metadata import array_document, codecs_of, layout_digest, short_name
from bigpca.storage.regular import is_there, open_regular
from bigpca.storage.stores import MARKERS, disk_path

if TYPE_CHECKING:
    import zarr

Cell = tuple[int, ...]
Stamp = tuple[str, int, int | str | None]
Found = tuple[int, int | str | None]  # the last two numbers of a stamp
T = TypeVar("T")
MAX_SHOWN = 10
BATCH = 4096  # keys held at a time
CONCURRENCY = 64  # concurrent requests to a store that is not a local directory
FEW = 1000  # files of a local store that are looked up one by one instead of listed
MANY = 2**20  # keys of an array; of more, those that a listing has
ABSENT = (-1, 0)
MEMORY = ("MemoryStore", "ManagedMemoryStore")
CHANGES = {"etag", "version", "versionid", "generation", "md5hash", "lastmodified", "updated", "mtime", "created"}


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
        root = disk_path(array.store)
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

    def size(self, cell: Cell) -> int:
        """Return the stored bytes of a cell, -1 if it is missing."""
        key = self.key(cell)
        if self.directory is not None:
            return _of_file(os.path.join(self.directory, key))[0]
        from zarr.core.sync import sync

        try:
            return int(sync(self.array.store.getsize(self._full(key))))
        except FileNotFoundError:
            return -1

    def stamps(self, bounds: Iterable[tuple[int, int]]) -> list[Stamp]:
        """Return (key, size, change) of the cells that the half-open ranges touch; size -1 of missing ones.

        A local store has times of change; elsewhere a listing, of 1,000 objects per request, has ETags, versions and
        times. Where the store stamps its whole content (an icechunk session, a zip file), it is one stamp without key.
        A change of None means that nothing would tell whether rows change.
        """
        ranges = list(bounds)
        count = math.prod(-(-hi // size) - lo // size for (lo, hi), size in zip(ranges, self.cell_shape, strict=True))
        if self.directory is not None and count <= FEW:
            return [(key, *_of_file(os.path.join(self.directory, key))) for key in map(self.key, self.cells(ranges))]
        listed = self._listed()
        if "" in listed:
            return [("", *listed[""])]
        if count > MANY:
            return [(key, *listed[key]) for key in sorted(listed)] or [("", -1, None)]
        keys = [self.key(cell) for cell in self.cells(ranges)]
        if self.directory is None and not any(change for _, change in listed.values()):  # HTTP, or no right to list
            found = _gather(_of_object(self.array.store, self._full(key)) for key in keys)
            return [(key, *one) for key, one in zip(keys, found, strict=True)]
        return [(key, *listed.get(key, ABSENT)) for key in keys]

    @cached_property
    def stamped(self) -> bool:
        """Whether the store says when its objects change."""
        if self.directory is not None:
            return True
        document = "zarr.json" if self.array.metadata.zarr_format == 3 else ".zarray"
        return _gather([_of_object(self.array.store, self._full(document))])[0][1] is not None

    def _listed(self) -> dict[str, Found]:
        """Return size and change of all stored objects of the array by key, without its metadata."""
        if self.directory is None:
            from zarr.core.sync import sync

            found = sync(_listing(self.array.store, self.array.path))
        else:
            found, start = {}, len(os.path.join(self.directory, ""))
            for folder, _, names in os.walk(self.directory):
                paths = [os.path.join(folder, name) for name in names]
                found |= {path[start:].replace(os.sep, "/"): _of_file(path) for path in paths}
        return {key: one for key, one in found.items() if key not in (*MARKERS, ".zattrs")}

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


def _of_file(path: str) -> Found:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return ABSENT
    return found.st_size, found.st_mtime_ns


async def _of_object(store: Any, key: str) -> Found:
    """Return size and change of one object; of a store that stamps its whole content, that stamp."""
    store = _bare(store)
    name = type(store).__name__
    try:
        if name == "IcechunkStore":
            return 0, None if store.session.has_uncommitted_changes else store.session.snapshot_id
        if name == "ZipStore":
            return _of_file(str(store.path))
        if name in MEMORY:
            from zarr.core.buffer import default_buffer_prototype

            found = await store.get(key, default_buffer_prototype())
            return ABSENT if found is None else (len(found), zlib.crc32(found.to_bytes()))
        if name == "FsspecStore":
            return _of_facts(await store.fs._info(f"{store.path}/{key}"))
        if name == "ObjectStore":
            import obstore

            return _of_facts(await obstore.head_async(store.store, key))
        return await store.getsize(key), None
    except FileNotFoundError:
        return ABSENT


async def _listing(store: Any, prefix: str) -> dict[str, Found]:
    """Return size and change of all objects below a prefix, by their keys there; none if the store lists none.

    A store that stamps its whole content has one key, which is empty.
    """
    store = _bare(store)
    name, start, found = type(store).__name__, f"{prefix}/" if prefix else "", dict[str, Found]()
    if name in ("IcechunkStore", "ZipStore"):
        return {"": await _of_object(store, "")}
    if name in MEMORY:
        return {key[len(start) :]: await _of_object(store, key) async for key in store.list_prefix(start)}
    try:
        if name == "FsspecStore":
            root = f"{store.path}/{prefix}".rstrip("/")
            getattr(store.fs, "sync_fs", store.fs).invalidate_cache()  # of listings
            listed = await store.fs._find(root, detail=True)
            found = {path.strip("/")[len(root.strip("/")) + 1 :]: _of_facts(facts) for path, facts in listed.items()}
        if name == "ObjectStore":
            import obstore

            async for batch in obstore.list(store.store, prefix=prefix or None):
                found |= {facts["path"][len(start) :]: _of_facts(facts) for facts in batch}
    except Exception:  # of any client: who may read objects need not be allowed to list them
        return {}
    return found


def _of_facts(facts: Mapping[str, Any]) -> Found:
    """Return the size of an object, and its ETag, version and time of change, as far as its store has them."""
    changes = [f"{key} {facts[key]}" for key in sorted(facts) if _is_change(key) and facts[key] is not None]
    return int(facts["size"] or 0), " ".join(changes) or None


def _is_change(name: str) -> bool:
    return re.sub("[-_]", "", name.lower()) in CHANGES


def _bare(store: Any) -> Any:
    """Return the store that wrappers of Zarr hold."""
    from zarr.storage import WrapperStore

    while isinstance(store, WrapperStore):
        store = store._store
    return store


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
