"""Zarr arrays whose missing chunks are never read as zeros, and whose damaged chunks are named.

``ChunkFiles`` are the stored objects of an array: the key of each chunk (or shard), whether it exists, its size and
stamp. ``ZarrReader`` reads ranges of the array through them, in any process; ``ZarrRows`` are its rows as a source.
Then which array, or sparse matrix, of a store a name means; and small arrays beside rows, such as labels, read whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import math
import os
import pickle
import re
import threading
import zlib
from collections.abc import Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np

from bigpca.arrays import Array
from bigpca.data import zarr_format
from bigpca.data.checks import MemberError, decoding, is_decode_error, regular_chunks
from bigpca.data.containers import is_place, is_zarr_array, is_zarr_group
from bigpca.data.source import SPARSE_PARTS, Index, Source, Stamp, choose_member, plan_index, stored_values
from bigpca.data.sparse import SparseGroup
from bigpca.errors import CorruptedChunkError, MissingChunksError, brief, check_choice
from bigpca.storage.files import (
    ABSENT,
    DOCUMENTS,
    MARKERS,
    address_of,
    change_of,
    disk_path,
    is_there,
    kind_of,
    local_path,
    looking,
    open_regular,
    public,
    read_document,
    seen_file,
    split_url,
    without_credentials,
)

if TYPE_CHECKING:
    import zarr

    from bigpca.storage.places import ObjectStore
    from bigpca.storage.regular_store import ObjectDocuments, RegularStore
    from bigpca.storage.requests import Got, Request


Cell = tuple[int, ...]
Found = tuple[int, int | str | None]  # the last two numbers of a stamp
T = TypeVar("T")
MAX_SHOWN = 10  # keys of missing chunks
BATCH = 4096  # keys held at a time
CONCURRENCY = 64  # concurrent requests to a store that is not a local directory
MANY = 2**20  # keys of an array; of more, those that a listing has
MEMORY = ("MemoryStore", "ManagedMemoryStore")
PLACES = ("S3Store", "GCSStore", "AzureStore", "MemoryStore", "LocalStore")  # of obstore: those that list
# One handle per array and process, and the stamp of its metadata; replaced when they change.
_OPENED: dict[tuple[str, str], tuple[tuple[int, int, int] | None, ChunkFiles]] = {}
_LOCK = threading.Lock()
WHOLE_SHARD_BYTES = 64 * 2**20  # larger shards are read chunk by chunk
SMALL_SHARD_BYTES = 2**20  # smaller ones are got whole, whatever is needed of them
TEXT_CODECS = zarr_format.ALLOWED_CODECS | {"vlen-utf8", "vlen-bytes"}


class Opened(NamedTuple):
    """An object that is read: its cell, the part of the ranges that it has and of it, and the file; None if missing."""

    cell: Cell
    part: tuple[slice, ...]
    own: tuple[slice, ...]
    file: Any
    size: int


class _Known:
    """The last listing of an array in this process; not sent with it."""

    listed: dict[str, Found] | None = None

    def __reduce__(self) -> Any:
        return _Known, ()


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
    document : dict
        The metadata that define how chunks are decoded.
    digest : str
        Their SHA-256.
    decoder : Decoder
    place : ObjectStore or None
        Where the objects of the array are, in an object store that lists them.
    """

    array: zarr.Array[Any]
    cell_shape: tuple[int, ...]
    directory: str | None
    document: Mapping[str, Any]
    digest: str
    decoder: zarr_format.Decoder
    place: ObjectStore | None = None
    known: _Known = field(default_factory=_Known, compare=False)

    @classmethod
    def of(cls, array: zarr.Array[Any], place: ObjectStore | None = None) -> ChunkFiles:
        """Describe an open array, without reading it."""
        root = disk_path(array.store)
        directory = None if root is None else os.path.join(root, array.path)
        place = place if place is not None or directory is not None else _place_of(array)
        document = zarr_format.array_document(array)
        decoder, text = zarr_format.Decoder.of(array, document), json.dumps(document, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return cls(array, array.shards or array.chunks, directory, document, digest, decoder, place)

    @property
    def cell_bytes(self) -> int:
        """Bytes of one stored object, decoded."""
        return math.prod(self.cell_shape) * int(self.array.dtype.itemsize)

    @property
    def label(self) -> str:
        """Location of the array, for messages."""
        return self.directory or public(str(self.array.store_path))

    def _spans(self, bounds: Iterable[tuple[int, int]]) -> list[range]:
        spans = zip(bounds, self.cell_shape, strict=True)
        return [range(lo // size, -(-hi // size)) if hi > lo else range(0) for (lo, hi), size in spans]

    def all_cells(self) -> Iterator[Cell]:
        """Iterate over every cell of the array."""
        return itertools.product(*self._spans((0, size) for size in self.array.shape))

    def key(self, cell: Cell) -> str:
        """Return the key of a cell, relative to the array: ``c/3/0`` or ``3.0``."""
        return self.array.metadata.encode_chunk_key(cell)

    def keys(self, bounds: Sequence[tuple[int, int]]) -> list[str]:
        """Return the keys of the cells that the half-open ranges touch: of a million, five times as fast as each."""
        start, between = self.array.metadata.encode_chunk_key((0,) * self.array.ndim).split("0")[:2]
        return [
            start + between.join(cell) for cell in itertools.product(*(map(str, one) for one in self._spans(bounds)))
        ]

    def missing(self) -> tuple[int, list[str]]:
        """Count the cells that are not in the store, and name ten: a ``stat`` each, or elsewhere by a listing."""
        lost, first, left = 0, list[str](), self.all_cells()
        while batch := [self.key(cell) for cell in itertools.islice(left, BATCH)]:
            absent = [key for key, found in zip(batch, self._there(batch), strict=True) if not found]
            lost, first = lost + len(absent), first + absent[: MAX_SHOWN - len(first)]
        return lost, first

    def _there(self, keys: list[str]) -> list[bool]:
        if self.place is not None and (listed := self.listing()):
            return [key in listed for key in keys]
        if self.directory is None:
            return _gather(self.array.store.exists(self._full(key)) for key in keys)
        prefix = self.directory + os.sep
        return [is_there(prefix + key) for key in keys]

    def stamps(self, bounds: Iterable[tuple[int, int]]) -> list[Stamp]:
        """Return (key, size, change) of the cells that the half-open ranges touch; size -1 of missing ones.

        A local store has times of change; elsewhere a listing, of 1,000 objects per request, has ETags, versions and
        times. Where the store stamps its whole content (an icechunk session, a zip file), it is one stamp without key.
        A change of None means that nothing would tell whether rows change.
        """
        ranges = list(bounds)
        count = math.prod(map(len, self._spans(ranges)))
        if self.directory is not None and count <= MANY:
            keys, start = self.keys(ranges), os.path.join(self.directory, "")
            if count <= BATCH:
                return [(key, *seen_file(start + key)) for key in keys]
            parts = (keys[i : i + BATCH // 8] for i in range(0, count, BATCH // 8))
            return list(
                itertools.chain.from_iterable(
                    looking(lambda part: [(key, *seen_file(start + key)) for key in part], parts)
                )
            )
        listed = self.listing(fresh=True)
        if "" in listed:
            return [("", *listed[""])]
        if count > MANY:
            return [(key, *listed[key]) for key in sorted(listed)] or [("", -1, None)]
        keys = self.keys(ranges)
        if self.directory is None and not any(change for _, change in listed.values()):  # HTTP, or no right to list
            found = self._looked_up(keys)
            return [(key, *one) for key, one in zip(keys, found, strict=True)]
        return [(key, *listed.get(key, ABSENT)) for key in keys]

    def looked_up(self, bounds: Iterable[tuple[int, int]]) -> list[Stamp]:
        """Return stamps of the cells that the half-open ranges touch, of a store that has no place and can change.

        By one request each, or a listing where only times tell: a library may write those of one object otherwise.
        """
        if self.directory is not None or self.place is not None or "" in (listed := self.listing()):
            return []
        if not any(re.search("etag", str(change), re.IGNORECASE) for _, change in listed.values()):
            return self.stamps(bounds)
        keys = self.keys(list(bounds))
        return [(key, *one) for key, one in zip(keys, self._looked_up(keys), strict=True)]

    def _looked_up(self, keys: Sequence[str]) -> list[Found]:
        with without_credentials(address_of(self.array.store)):
            return _gather(_of_object(self.array.store, self._full(key)) for key in keys)

    @cached_property
    def unseen(self) -> str | None:
        """See :attr:`Source.unseen`: virtual chunks in files elsewhere, or all of a store that gives no times."""
        if self.directory is None and self.place is None:
            document = "zarr.json" if self.array.metadata.zarr_format == 3 else ".zarray"
            if self._looked_up([document])[0][1] is None:
                return None
        store = _bare(self.array.store)
        found = store.session.all_virtual_chunk_locations() if type(store).__name__ == "IcechunkStore" else []
        return "icechunk's virtual chunks" if found else ""

    def listing(self, *, fresh: bool = False) -> dict[str, Found]:
        """Return size and change of all stored objects of the array by key, as they are now or were last listed."""
        if fresh or self.known.listed is None:
            self.known.listed = self._listed()
        return self.known.listed

    def _listed(self) -> dict[str, Found]:
        """Return size and change of all stored objects of the array by key, without its metadata."""
        found: dict[str, Found]
        if self.place is not None:
            chunks = "c" if self.key((0,) * self.array.ndim).startswith("c/") else ""  # without what else is there
            try:
                found = {entry.key: (entry.size, entry.change) for entry in self.place.list(chunks)}
            except PermissionError:  # who may read objects need not be allowed to list them
                found = {}
        elif self.directory is None:
            from zarr.core.sync import sync

            found = sync(_listing(self.array.store, self.array.path))
        else:
            found, start = {}, len(os.path.join(self.directory, ""))
            for folder, _, names in os.walk(self.directory):
                paths = [os.path.join(folder, name) for name in names]
                found |= {path[start:].replace(os.sep, "/"): seen_file(path) for path in paths}
        return {key: one for key, one in found.items() if key not in DOCUMENTS}

    def objects(self, bounds: Sequence[tuple[int, int]]) -> Generator[Opened]:
        """Open the objects that the half-open ranges touch: files one after another, others as they arrive.

        If only some chunks of a shard are needed, gets its index and these chunks; neighbours in one request.
        """
        if self.directory is None:
            yield from self._arriving(bounds)
            return
        for cell, part, own in zarr_format.overlaps(bounds, self.cell_shape):
            try:
                with open_regular(os.path.join(self.directory, self.key(cell)), buffering=0) as file:
                    yield Opened(cell, part, own, file, os.fstat(file.fileno()).st_size)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                yield Opened(cell, part, own, None, 0)

    def _arriving(self, bounds: Sequence[tuple[int, int]]) -> Generator[Opened]:
        from bigpca.storage.requests import ObjectFile, Request, joined

        place: Any = self.place
        large = self.decoder.per_shard and self.cell_bytes > SMALL_SHARD_BYTES
        whole, parts, all_of_it = list[Opened](), list[Opened](), tuple(slice(0, size) for size in self.cell_shape)
        for found in zarr_format.overlaps(bounds, self.cell_shape):
            one = Opened(*found, None, 0)
            (parts if large and one.own != all_of_it else whole).append(one)
        size, most = self.decoder.index_bytes, self.decoder.max_stored
        index: Any = (0, size) if self.decoder.index_at_start else size
        for cells, nbytes, part in ((whole, self.cell_bytes, None), (parts, size, index)):
            for i, got in self._each([Request(self.key(one.cell), nbytes, part, most) for one in cells]):
                one = cells[i]
                if got is not None:
                    one = one._replace(file=ObjectFile(place, self.key(one.cell), got.size, got), size=got.size)
                if got is not None and part is not None:
                    with suppress(ValueError):  # of a damaged index, which who decodes it finds again
                        spans = joined(self.decoder.spans(one.file, one.size, one.own))
                        wanted = [Request(one.file.name, b - a, (a, b)) for a, b in spans]
                        one.file.hold([got for _, got in self._each(wanted) if got is not None])
                yield one

    def _each(self, wanted: Sequence[Request]) -> Iterator[tuple[int, Got | None]]:
        """Yield (number, bytes) of what is wanted, as it arrives; from a store of Zarr, as many at a time."""
        from bigpca.storage.requests import in_flight, requests

        if self.place is not None:
            yield from requests().each(self.place, wanted) if wanted else ()
            return
        for start in range(0, len(wanted), step := in_flight(self.cell_bytes)):
            yield from enumerate(_gather(self._got(one) for one in wanted[start : start + step]), start)

    async def _got(self, one: Request) -> Got | None:
        from zarr.abc.store import RangeByteRequest, SuffixByteRequest
        from zarr.core.buffer import default_buffer_prototype

        from bigpca.storage.requests import Got

        store, key, part = self.array.store, self._full(one.key), None
        if one.part is not None:
            part = SuffixByteRequest(one.part) if isinstance(one.part, int) else RangeByteRequest(*one.part)
        with decoding(f"{self.label}: chunk {one.key} cannot be read", "Restore it from a copy."):
            if (found := await store.get(key, default_buffer_prototype(), part)) is None:
                return None
            size = len(found) if part is None else await store.getsize(key)
        start = one.part[0] if isinstance(one.part, tuple) else size - len(found)
        return Got(found.as_numpy_array(), start, size, None)

    def whole(self, cell: Cell) -> Generator[Opened]:
        """Open the object of a cell, cut to the array's shape, for as long as the iteration lasts."""
        sizes = zip(cell, self.cell_shape, self.array.shape, strict=True)
        return self.objects([(i * size, min((i + 1) * size, n)) for i, size, n in sizes])

    def empty(self, shape: Sequence[int]) -> Array:
        """Return new memory for values of the array, in native byte order."""
        return np.empty(shape, self.array.dtype.newbyteorder("="))

    def _full(self, key: str) -> str:
        return f"{self.array.path}/{key}" if self.array.path else key


async def _of_object(store: Any, key: str) -> Found:
    """Return size and change of one object; of a store that stamps its whole content, that stamp."""
    store = _bare(store)
    name = type(store).__name__
    try:
        if name == "IcechunkStore":
            return 0, None if store.session.has_uncommitted_changes else store.session.snapshot_id
        if name == "ZipStore":
            return seen_file(str(store.path))
        if name in MEMORY:
            from zarr.core.buffer import default_buffer_prototype

            found = await store.get(key, default_buffer_prototype())
            return ABSENT if found is None else (len(found), zlib.crc32(found.to_bytes()))
        if name == "FsspecStore":
            return change_of(await store.fs._info(f"{store.path}/{key}"))
        if name == "ObjectStore":
            import obstore

            return change_of(await obstore.head_async(store.store, key))
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
            found = {path.strip("/")[len(root.strip("/")) + 1 :]: change_of(facts) for path, facts in listed.items()}
    except Exception:  # of any client: who may read objects need not be allowed to list them
        return {}
    return found


def _bare(store: Any) -> Any:
    """Return the store that wrappers of Zarr hold."""
    from zarr.storage import WrapperStore

    while isinstance(store, WrapperStore):
        store = store._store
    return store


def _place_of(array: zarr.Array[Any]) -> ObjectStore | None:
    """Return the place of an array in an obstore store that lists its objects."""
    store = _bare(array.store)
    if type(store).__name__ not in ("ObjectStore", "ObjectDocuments") or type(store.store).__name__ not in PLACES:
        return None
    from bigpca.storage.places import ObjectStore

    return ObjectStore(store.store).at(array.path)


def _gather(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    from zarr.core.sync import sync

    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(request: Coroutine[Any, Any, T]) -> T:
        async with gate:
            return await request

    async def every() -> list[T]:
        return await asyncio.gather(*map(one, requests))

    return sync(every())


class ZarrReader:
    """A Zarr array (v2 or v3, sharded or not, any dimensions) that checks that chunks exist before it decodes them.

    Pickled as a path and a few numbers; the handle is opened once per process. Inside an existing shard, Zarr does not
    distinguish a chunk that was never written from one of fill values, so neither does this class.

    Parameters
    ----------
    store : str, path or zarr.Array
        Local directory, or a URL that Zarr understands. An array in any other store is kept open.
    path_in_group : str
        Path of the array inside a group; empty for a store that is one array.
    missing_chunks : {"raise", "fill"}
        What to do about a missing chunk: raise an error, or use Zarr's fill value.

    Raises
    ------
    FileNotFoundError
        If there is no array at that path.
    TypeError, ValueError
        For dtypes and codecs that :func:`bigpca.data.zarr_format.check_document` rejects, before any chunk is read.
    """

    def __init__(
        self, store: str | os.PathLike[str] | zarr.Array[Any], path_in_group: str = "", missing_chunks: str = "raise"
    ) -> None:
        check_choice("missing_chunks", missing_chunks, ("raise", "fill"))
        self.missing_chunks = missing_chunks
        self._held: ChunkFiles | None = None
        if isinstance(store, str | os.PathLike):
            self.store = local_path(store) if kind_of(store) == "disk" else os.fspath(store)
        else:
            path_in_group = store.path
            self.store = address_of(store.store)
            if disk_path(store.store) is None:
                self._held = ChunkFiles.of(store)
        self.path_in_group = path_in_group.strip("/")
        self.label = public(self.store)  # for messages
        if self.path_in_group:
            self.label = os.path.join(self.label, self.path_in_group)
        self.digest = ""  # of the metadata that define how chunks are decoded
        if self._held is not None:
            zarr_format.check_document(self._held.document, self.label)
        elif kind_of(self.store) != "disk":
            _OPENED.pop((self.store, self.path_in_group), None)
        files = self.files(look=True)
        self.digest = files.digest
        self.shape: tuple[int, ...] = files.array.shape
        self.bounds = tuple((0, n) for n in self.shape)  # of all of it
        self.chunks: tuple[int, ...] = files.array.chunks
        self.cell_shape: tuple[int, ...] = files.cell_shape
        cells = math.prod(-(-n // size) for n, size in zip(self.shape, self.cell_shape, strict=True))
        self.on_disk = files.directory is not None and cells <= MANY  # whether each is a file, looked at if missing too
        self.dtype: np.dtype[Any] = files.array.dtype.newbyteorder("=")  # which was checked in the metadata
        small = math.prod(self.cell_shape) * self.dtype.itemsize <= WHOLE_SHARD_BYTES
        self.unit = self.cell_shape if small else self.chunks  # what is decoded at once

    def __getstate__(self) -> dict[str, Any]:
        """Try to pickle an open array first, so that a store that cannot be sent to workers is named.

        Raises
        ------
        TypeError
        """
        if self._held is not None and self._held.place is not None and kind_of(self.store) != "process":
            self._held.place.check_sendable()
        try:
            pickle.dumps(self._held)
        except BaseException as error:  # pyo3's PanicException is not an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise TypeError(
                f"{self.label} cannot be sent to workers, because its store cannot be pickled ({type(error).__name__}: "
                f'{brief(error)}). Pass its URL or, with icechunk, an array of repo.readonly_session("main").store; or '
                'run without workers (dask.config.set(scheduler="threads")).'
            ) from None
        return vars(self)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def home(self) -> Any:
        """What :func:`open_node` opens again: a path or URL, or the place in an open store."""
        if self._held is not None:
            return self._held.array.store_path
        return f"{self.store}/{self.path_in_group}" if self.path_in_group else self.store

    def __repr__(self) -> str:
        return f"<ZarrReader {self.label} shape={self.shape} dtype={self.dtype} missing_chunks={self.missing_chunks!r}>"

    def __dask_tokenize__(self) -> object:
        return "bigpca.ZarrReader", self.label, self.digest, self.missing_chunks, self.files().stamps(self.bounds)

    def files(self, *, look: bool = False) -> ChunkFiles:
        """Return this process's open array and its stored objects, as its metadata were at the last ``look``.

        Raises
        ------
        ValueError
            If they are those of another array by now.
        """
        if self._held is not None:
            return self._held
        key, (document, stamp) = (self.store, self.path_in_group), ("", None)
        known = None if look else _OPENED.get(key)
        if known is not None and known[1].digest == self.digest:
            return known[1]
        if kind_of(self.store) == "disk":
            document, stamp = _metadata_file(self.label)
            if not document:
                raise FileNotFoundError(
                    f"{self.label} holds no Zarr array: it has neither zarr.json nor .zarray. "
                    "Check the path, and the member for an array inside a group."
                )
        with _LOCK:
            before, files = _OPENED.get(key, (None, None))
            if files is None or before != stamp or self.digest not in ("", files.digest):
                files = self._open(document)
                _OPENED[key] = stamp, files
        if self.digest and files.digest != self.digest:
            raise ValueError(
                f"{self.label} is not the array that was opened: its shape, dtype, chunks or codecs changed "
                f"(shape {self.shape} then, {files.array.shape} now). Open it again."
            )
        return files

    def _open(self, document: str) -> ChunkFiles:
        import zarr  # slow to import, so only when the first store is opened

        if document:  # the metadata that are checked are those that are opened, without a search for the version
            found = read_document(document)
            if found.get("node_type", "array") != "array":
                raise ValueError(f"{self.label} is a Zarr group, not an array. Name the array with member=.")
            with zarr_format.naming_damage(self.label):
                zarr_format.check_document(found, self.label)
                attributes = os.path.join(os.path.dirname(document), ".zattrs")
                if document.endswith(".zarray") and os.path.lexists(attributes):
                    found["attributes"] = read_document(attributes)
                path = zarr.storage.StorePath(documents_at(self.store), self.path_in_group)
                return ChunkFiles.of(zarr.Array.from_dict(path, found))
        with without_credentials(self.store), zarr_format.naming_damage(self.label):
            place = place_at(self.store)
            home = documents_at(place) if place else self.store
            array = zarr.open_array(home, path=self.path_in_group, mode="r")
            zarr_format.check_document(zarr_format.array_document(array), self.label)
        return ChunkFiles.of(array, place and place.at(self.path_in_group))

    def __getitem__(self, index: Index) -> Array:
        """Read integers, slices of any step and one list of positions per axis, as Dask requests; see :meth:`read`."""
        plan = plan_index(index, self.shape)
        return np.asarray(plan.finish(self.read(plan.bounds)), order="C")

    def read(self, bounds: tuple[tuple[int, int], ...]) -> Array:
        """Read a half-open range of each axis into new memory.

        Raises
        ------
        MissingChunksError
            If a chunk of the ranges is not in the store (``missing_chunks="raise"``).
        CorruptedChunkError
            If one cannot be decoded. An OSError of the file system is not changed.
        """
        files, broken, lost = self.files(look=True), list[tuple[Opened, Exception]](), list[Cell]()
        out, fill = files.empty([hi - lo for lo, hi in bounds]), files.array.fill_value
        with without_credentials(self.store), closing(files.objects(bounds)) as opened:
            for one in opened:
                if one.file is None:
                    lost.append(one.cell)
                    out[one.part] = 0 if fill is None else fill
                    continue
                try:
                    files.decoder.decode(one.file, one.size, out[one.part], one.own)
                except Exception as error:
                    if not is_decode_error(error):
                        raise
                    broken.append((one, error))
                    if len(broken) == MAX_SHOWN:
                        break
        keys = [files.key(cell) for cell in sorted(lost)]
        listed = files.place is not None and any(key in files.listing() for key in keys)
        if listed or (lost and self.missing_chunks == "raise"):
            why = (
                "They are listed: they were deleted or replaced while they were read. Restore them, and run again "
                "without changing the input meanwhile."
                if listed
                else "Either their files were lost (a killed writer, a full disk, an incomplete copy), or the writer "
                "dropped chunks that contain only the fill value (write_empty_chunks=False, Zarr's default). "
                'Restore them, or, if you know that they held the fill value, pass missing_chunks="fill".'
            )
            raise MissingChunksError(
                f"{self.label}: {len(lost)} of the {len(files.keys(bounds))} chunks needed here are not in the store: "
                f"{', '.join(keys[:MAX_SHOWN])}{', ...' * (len(keys) > MAX_SHOWN)}. {why}"
            )
        if broken:
            raise CorruptedChunkError(self._describe(files, broken)) from broken[0][1]
        return out

    def _describe(self, files: ChunkFiles, broken: Sequence[tuple[Opened, Exception]]) -> str:
        (one, error), shape, nbytes = broken[0], files.cell_shape, files.cell_bytes
        others = f" Nor can {', '.join(files.key(other.cell) for other, _ in broken[1:])}." if broken[1:] else ""
        expected = "exactly" if zarr_format.is_uncompressed(files.document) else "compressed data that decode to"
        return (
            f"{self.label}: chunk {files.key(one.cell)} cannot be decoded: its file has {one.size:,} bytes, {expected} "
            f"{nbytes:,} bytes for the shape {shape} were expected ({type(error).__name__}: {error}).{others} "
            "Restore the file from a copy, or rewrite the store; `bigpca verify` lists all damaged chunks."
        )


@dataclass(frozen=True, eq=False, repr=False)
class ZarrRows(Source):
    """Rows of a Zarr array; each stored object (chunk, or shard up to 64 MiB) is decoded once."""

    reader: ZarrReader
    format: str = field(default="zarr", kw_only=True)

    @classmethod
    def of(cls, reader: ZarrReader, *fields: Any, **named: Any) -> Self:
        """Return the rows of one array; ``fields`` are those of a subclass."""
        return cls(reader.shape, reader, *fields, path=public(reader.store), member=reader.path_in_group, **named)

    def facts(self) -> dict[str, Any]:
        """Rows are decoded by chunks, also inside a shard; columns of a matrix by chunks, of feature maps together."""
        reader, d = self.reader, max(self.shape[1], 1)
        across = min(reader.unit[1], d) if len(self.array_shape) == 2 else d
        return {"dtype": reader.dtype, "decoded_rows": (*reader.chunks, 1)[0], "column_chunk": across}

    @property
    def home(self) -> Any:
        """Also in a store that is only open."""
        return self.reader.home

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the array, including ``_FillValue``, which xarray stores as the fill value in Zarr v2."""
        array = self.reader.files().array
        found = dict(array.attrs)
        if array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in found and array.metadata.fill_value is not None:
            found.setdefault("_FillValue", array.metadata.fill_value)
        return found

    def row_chunks(self) -> tuple[int, ...]:
        """Return the rows of each chunk (or shard)."""
        return regular_chunks(self.array_shape[0], self.reader.unit[0])

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Array:
        """Read a block; for feature maps, whole rows are decoded and then cut."""
        if len(self.array_shape) == 2:
            return self.reader.read(((start, stop), columns))
        rows = self.reader.read(((start, stop), *self.reader.bounds[1:]))
        return rows.reshape(stop - start, self.shape[1])[:, slice(*columns)]

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return a stamp for each chunk (or shard) of those rows."""
        return self.reader.files().stamps([(start, stop), *self.reader.bounds[1:]])

    def looked_up(self, start: int, stop: int) -> list[Stamp]:
        """Return a stamp for each chunk (or shard) of those rows, in a store of another library."""
        return self.reader.files().looked_up([(start, stop), *self.reader.bounds[1:]])

    def decoding_bytes(self, columns: int) -> int:
        """What decoding takes, and the objects that a store of Zarr has in flight."""
        reader, files, flight = self.reader, self.reader.files(), 0
        if files.directory is None and files.place is None:
            from bigpca.storage.requests import flight_bytes

            across = zip(reader.shape[1:], reader.cell_shape[1:], strict=True)
            flight = flight_bytes(math.prod(-(-n // size) for n, size in across), files.cell_bytes)
        return flight + files.decoder.beside_bytes

    @property
    def unseen(self) -> str | None:
        return self.reader.files().unseen

    @property
    def requests(self) -> tuple[int, int]:
        """One request per chunk (or shard) and per 1,000 of a listing; of larger shards an index for each read too."""
        files, units = self.reader.files(), len(self.row_chunks())
        if files.place is None:
            return 0, 0
        from bigpca.storage.places import LISTED  # for object stores only
        from bigpca.storage.requests import flight_bytes

        count = math.prod(-(-n // size) for n, size in zip(self.array_shape, self.reader.cell_shape, strict=True))
        inside = 0 if self.reader.unit == self.reader.cell_shape else units
        return max(count, inside) + inside + -(-count // LISTED), flight_bytes(count, files.cell_bytes)

    def details(self) -> dict[str, Any]:
        """Return chunks, digest of the metadata, and the policy for missing chunks."""
        return {
            "chunks": list(self.reader.chunks),
            "shards": list(self.reader.cell_shape),
            "metadata_sha256": self.reader.digest,
            "missing_chunks": self.reader.missing_chunks,
        }


def place_at(url: str) -> ObjectStore | None:
    """Return the place of a URL that is read by obstore; None for other URLs, and where it is not installed."""
    if split_url(url)[0] not in ("s3", "gs", "az") or find_spec("obstore") is None:
        return None
    from bigpca.storage.places import ObjectStore

    return ObjectStore(url)


def documents_at(home: str | ObjectStore) -> RegularStore | ObjectDocuments:
    """Return the Zarr store of a local folder or a place, which reads its metadata."""
    from bigpca.storage.regular_store import ObjectDocuments, RegularStore

    return RegularStore(home, read_only=True) if isinstance(home, str) else ObjectDocuments(home.whole, read_only=True)


def is_zarr_directory(path: str) -> bool:
    """Whether a directory is a Zarr array or group."""
    return any(os.path.isfile(os.path.join(path, name)) for name in MARKERS)


def arrays_of(group: zarr.Group) -> Iterator[tuple[str, zarr.Array[Any]]]:
    """Iterate over (path below the group, array) of all arrays, including nested groups."""
    skip = len(group.path) + 1 if group.path else 0
    for _, node in group.members(max_depth=None):
        if is_zarr_array(node):
            yield node.path[skip:], node


def node_source(node: zarr.Array[Any] | zarr.Group, member: str | None, missing_chunks: str, place: str = "") -> Source:
    """Return the rows of an open array, or of a member of a group: an array, or a sparse matrix of three arrays.

    Parameters
    ----------
    member : str or None
        None for X of AnnData, or the only matrix.
    place : str
        Path or URL at which each process opens the arrays again; "" for those of a store that is only open.

    Raises
    ------
    MemberError
        If it has no array of that name; lists those that exist.
    ValueError
        If the choice is ambiguous.
    """

    def rows(array: zarr.Array[Any]) -> ZarrRows:
        return ZarrRows.of(ZarrReader(place or array, array.path, missing_chunks))

    if is_zarr_array(node):
        if member is not None:
            raise _without_members(public(str(node.store_path)), member)
        return rows(node)
    group: zarr.Group = node
    arrays = dict(arrays_of(group))
    shapes = {name: array.shape for name, array in arrays.items()}
    if member is None and isinstance(made := group.attrs.get("bigpca"), dict):
        path = public(os.path.join(address_of(group.store), group.path).rstrip("/"))
        raise ValueError(
            f"{path} is a saved model ({brief(made.get('kind'))}); rows of features were expected. Open the data or "
            "the scores; bigpca.load reads the model, and member= opens one of its arrays."
        )
    anndata = group.attrs.get("encoding-type") == "anndata"
    chosen = choose_member(public(str(group.store_path)), member, shapes, anndata=anndata)
    if chosen in arrays:
        return rows(arrays[chosen])
    inside = f"{chosen}/" if chosen else ""
    parts = {name: rows(arrays[inside + name]) for name in SPARSE_PARTS}
    shape = rows(arrays[f"{inside}shape"]) if f"{inside}shape" in arrays else None
    owner: Any = group[chosen] if chosen else group
    return SparseGroup.of(parts["data"].path, owner.path, dict(owner.attrs), shape, set(owner)).rows(parts)


def zarr_source(path: str, member: str | None, missing_chunks: str) -> Source:
    """Return the rows at a local path or URL, or of a member of the group there."""
    local = kind_of(path) == "disk"
    if local or (member is None and place_at(path) is not None):
        with suppress(ValueError, LookupError, FileNotFoundError):  # a group, or damaged: asked once more
            return ZarrRows.of(ZarrReader(path, member or "", missing_chunks))
    with zarr_format.naming_damage(path) if local else without_credentials(path):
        try:
            node = None if local and is_array_directory(path) else open_node(path)
        except ValueError as error:
            if "bfloat16" not in str(error):
                raise
            raise TypeError(f"{public(path)} holds bfloat16, which Zarr cannot open. Store float32.") from error
        if is_zarr_group(node):
            return node_source(node, member, missing_chunks, path)
    if member is not None:
        raise _without_members(public(path), member)
    return ZarrRows.of(ZarrReader(path, "", missing_chunks))


def store_source(store: Any, member: str | None, missing_chunks: str) -> Source:
    """Return the rows of what an open store of Zarr holds: an array, or a member of a group."""
    import zarr  # which made the store

    root = disk_path(store)
    if root is not None:
        return zarr_source(root, member, missing_chunks)
    with without_credentials(address_of(store)):
        node = zarr.open(store, mode="r")
    return node_source(node, member, missing_chunks)


def _without_members(path: str, member: str) -> MemberError:
    return MemberError(f"{path} is one Zarr array, so it has no member {member!r}. Leave member out.")


def _metadata_file(path: str) -> tuple[str, tuple[int, int, int] | None]:
    """Return the file with the metadata of an array in a directory, or of a group of Zarr v3, and its stamp."""
    for file in (os.path.join(path, "zarr.json"), os.path.join(path, ".zarray")):
        with suppress(FileNotFoundError, NotADirectoryError):
            found = os.stat(file)
            return file, (found.st_mtime_ns, found.st_size, found.st_ino)
    return "", None


def is_array_directory(path: str) -> bool:
    """Whether a directory is a Zarr array."""
    file, _ = _metadata_file(path)
    return file.endswith(".zarray") or (bool(file) and read_document(file).get("node_type") == "array")


def open_node(home: Any) -> zarr.Array[Any] | zarr.Group:
    """Open the Zarr array or group at a path or URL, in a store (or at a place in one), or at a place of objects."""
    import zarr  # slow to import, and not needed for labels in a table

    if is_place(home):
        from bigpca.storage.places import ObjectStore  # for object stores only

        home = ObjectStore(home).openable()
    if is_zarr_array(home) or is_zarr_group(home):
        return home
    if isinstance(home, str) and kind_of(home) == "disk":
        home = documents_at(home)
    elif isinstance(home, str) and (place := place_at(home)) is not None:
        home = documents_at(place)
    return zarr.open(home, mode="r")


def read_whole(array: zarr.Array[Any], word: str) -> Array:
    """Read a Zarr array of numbers or strings beside rows; raises as :func:`check_whole`."""
    check_whole(array, word)
    if array.dtype.kind in "OSTU" or not array.ndim:
        return np.asarray(array[...])
    rows = stored_values(ZarrRows.of(ZarrReader(array)), "default")
    return np.asarray(rows.read(0, rows.shape[0])).reshape(array.shape)


def check_whole(array: zarr.Array[Any], word: str) -> None:
    """Check that no chunk of a Zarr array of numbers or strings beside rows is missing, and that it may be decoded.

    Parameters
    ----------
    word : what is read, for messages.

    Raises
    ------
    MissingChunksError
        If a chunk is missing, which Zarr would read as the fill value, and so as a class.
    TypeError, ValueError
        For dtypes and codecs that are not allowed, before any chunk is read.
    """
    path = public(str(array.store_path))
    document = zarr_format.array_document(array)
    zarr_format.check_grid(document, path, max(1, array.dtype.itemsize))
    check_chunks(array, word)
    unknown = [one for one, _ in zarr_format.codecs_of(document) if zarr_format.short_name(one) not in TEXT_CODECS]
    if array.dtype.kind in "OSTU" and unknown:
        raise ValueError(
            f"{path} uses the codec {unknown[0]!r}, which is not allowed for untrusted input; no chunk was read. "
            "If you trust the store, read it with Zarr and pass the array."
        )


def check_chunks(array: zarr.Array[Any], word: str = "label") -> None:
    """Reject a Zarr array of labels with missing chunks, with the remedy for labels; ``word`` says what they are."""
    files = ChunkFiles.of(array)
    lost, first = files.missing()
    if lost:
        raise MissingChunksError(
            f"{files.label}: {lost} chunks of {word}s are not in the store: {', '.join(first[:5])}. "
            f"They were lost, or held only the fill value {brief(str(array.fill_value))} and were dropped when "
            "written (Zarr's default). Restore them or, if you know that they held it, pass the values: array[:]."
        )
