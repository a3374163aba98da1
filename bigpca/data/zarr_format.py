"""Checks of untrusted Zarr metadata: dtype and codecs must be on a list before any chunk is decoded.

How stored chunks are decoded: directly into the result, where their layout is a usual one.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bigpca.data.checks import check_cells, check_chunk, check_dtype, is_decode_error
from bigpca.errors import CorruptedChunkError, brief
from bigpca.storage.files import max_encoded

if TYPE_CHECKING:
    import zarr


# Decoders that only convert bytes to numbers. Excluded: pickle, json2, msgpack2, vlen-*, categorize, and filters that
# compute with numbers (bitround leaves them as they are when they are read).
ALLOWED_CODECS = {
    *("bytes", "endian", "sharding_indexed"),
    *("blosc", "zstd", "gzip", "zlib", "lz4"),
    *("crc32c", "crc32", "adler32", "fletcher32"),
    *("shuffle", "bitround"),
}
# Decoders whose output can be far larger than their input: at most one is allowed, and its output size is checked.
COMPRESSORS = {"blosc", "zstd", "gzip", "zlib", "lz4"}
INDEX_CODECS = {"bytes", "crc32c"}  # for a shard's index, whose size must be known
CHECKSUM_CODECS = {"crc32c", "crc32", "adler32", "fletcher32", "gzip", "zlib"}
# Zarr would read a chunk into one buffer, decode it into a second and copy that into a third, each in new memory whose
# pages the kernel must map first: for large chunks that costs several times the copying itself. It decodes up to ten
# chunks at a time, in threads whose heaps keep what they free, and holds all chunks of a shard that it reads. Here one
# chunk beside the result suffices for the usual layouts: C order, native bytes, one compressor or none.
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# A compressed chunk is untrusted: a few kilobytes can decode to gigabytes. Blosc, zstd and LZ4 state the size in their
# header, and other formats are decoded as streams, up to the limit.
HEAD_BYTES = 32  # of a stored chunk, which hold the header of its format
SPARE_BYTES = 64  # checksums that lie inside the compressed bytes
ABSENT = 2**64 - 1  # in a shard's index
STREAMS: dict[str, Callable[..., Any]] = {
    "gzip": gzip.open,
    "zstd": lambda file: import_module("pyarrow").CompressedInputStream(file, "zstd"),
}
Slices: TypeAlias = tuple[slice, ...]


@contextmanager
def naming_damage(label: str) -> Iterator[None]:
    """Name the store in errors that forged or damaged metadata cause in this package's and Zarr's readers.

    Raises
    ------
    CorruptedChunkError
        Instead of an error that does not name the store.
    """
    try:
        yield
    except Exception as error:
        absent = isinstance(error, FileNotFoundError)  # Zarr's have no errno
        if absent or not is_decode_error(error) or label in str(error):
            raise
        raise CorruptedChunkError(
            f"{label}: its metadata are damaged or forged ({type(error).__name__}: {brief(error)}). Restore them, or "
            "rewrite the store."
        ) from error


def array_document(array: zarr.Array[Any]) -> dict[str, Any]:
    """Return the metadata of an open array that define how chunks are decoded, as plain JSON values."""
    found = array.metadata.to_dict()
    kept = {key: found[key] for key in sorted(found) if key not in ("attributes", "consolidated_metadata")}
    document: dict[str, Any] = json.loads(json.dumps(kept, default=_plain))
    return document


def _plain(value: Any) -> Any:
    for name in ("get_config", "to_dict"):
        if hasattr(value, name):
            return getattr(value, name)()
    return str(value)


def codecs_of(document: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (name, configuration) of all codecs and filters, including those inside shards, for Zarr v2 and v3."""
    if document.get("zarr_format") == 2:
        filters = [*(document.get("filters") or ()), document.get("compressor")]
        return [(str(one["id"]), one) for one in filters if one]
    return list(_v3_codecs(document.get("codecs") or ()))


def _v3_codecs(codecs: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for codec in codecs:
        name, configuration = (codec, {}) if isinstance(codec, str) else (codec["name"], codec.get("configuration"))
        configuration = configuration or {}
        yield str(name), configuration
        yield from _v3_codecs(configuration.get("codecs") or ())
        for index, _ in _v3_codecs(configuration.get("index_codecs") or ()):
            if index not in INDEX_CODECS:
                yield f"{index} of a shard's index", {}


def short_name(codec: str) -> str:
    """Return the name of a codec without the ``numcodecs.`` prefix of Zarr v3 extensions."""
    return codec.removeprefix("numcodecs.")


def has_checksum(document: Mapping[str, Any]) -> bool:
    """Whether a flipped bit in a chunk is detected when the chunk is decoded."""
    return any(
        short_name(name) in CHECKSUM_CODECS or (short_name(name) == "zstd" and bool(configuration.get("checksum")))
        for name, configuration in codecs_of(document)
    )


def is_uncompressed(document: Mapping[str, Any]) -> bool:
    """Whether a stored chunk is exactly as large as its values."""
    return {short_name(name) for name, _ in codecs_of(document)} <= {"bytes", "endian", "bitround", "shuffle"}


def check_document(document: Mapping[str, Any], label: str) -> None:
    """Reject non-numeric dtypes, codecs that are not allowed, and impossible sizes, before any chunk is read.

    Raises
    ------
    TypeError
        For a dtype that PCA cannot use.
    ValueError
        For a codec or filter that could do more than decode numbers (``pickle``) or computes with them, for chunks
        stored by columns, nested compressors or shards, and chunks that extend far beyond the array.
    """
    stored = document["dtype"] if document.get("zarr_format") == 2 else document.get("data_type")
    itemsize = check_stored_dtype(stored, label).itemsize
    check_codecs(document, label)
    check_grid(document, label, itemsize)


def check_codecs(document: Mapping[str, Any], label: str) -> None:
    """Reject codecs that are not on the list, and chains whose decoded size cannot be known."""
    names = [short_name(name) for name, _ in codecs_of(document)]
    remedy = (
        "If you trust the store, let Zarr decode it, once: dask.array.from_zarr(path).to_zarr('rows.zarr'), with "
        "component= inside a group. It copies no attributes: apply a _FillValue or a scale_factor first."
    )
    unknown = [name for name, _ in codecs_of(document) if short_name(name) not in ALLOWED_CODECS]
    if unknown or document.get("order") == "F":
        raise ValueError(
            f"{label} uses the codec or filter {brief(repr(unknown[0] if unknown else 'order F'))}, which is not one "
            f"of the decoders allowed for untrusted input; no chunk was read. {remedy}"
        )
    chained = [name for name in names if name in COMPRESSORS]
    outer = document.get("codecs") or ()
    if len(chained) > 1 or names.count("sharding_indexed") > (len(outer) == 1):
        raise ValueError(
            f"{label} uses {brief(', '.join(chained)) if len(chained) > 1 else 'shards'} inside one another, or shards "
            "inside another codec, so that the size of a decoded chunk is not known before it is decoded; one "
            f"compressor, in one layer of shards, was expected. {remedy}"
        )


def check_grid(document: Mapping[str, Any], label: str, itemsize: int) -> None:
    """Reject impossible shapes and chunks, and chunks far larger than the array itself."""
    shape: Any = document.get("shape")
    grid = document.get("chunk_grid")
    if isinstance(grid, Mapping) and grid.get("name", "regular") != "regular":
        raise ValueError(
            f"{label} has the chunk grid {brief(repr(grid['name']))}, with chunks of several sizes; a regular one was "
            "expected, with chunks of one size. Copy it to an array with regular chunks (zarr.create_array)."
        )
    chunks: Any = _chunk_shape(document)
    sizes = [*(shape or ()), *(chunks or ())]
    sound = isinstance(shape, list) and isinstance(chunks, list) and len(shape) == len(chunks)
    if not sound or not all(type(size) is int and size >= 0 for size in sizes) or 0 in (chunks or ()):
        raise ValueError(
            f"{label} has shape {brief(shape)} and chunks {brief(chunks)}; integers, equally many of both, and chunks "
            "of at least 1 were expected. Its metadata are damaged: restore them, or rewrite the store."
        )
    for one in (chunks, _grid_shape(document) or chunks):  # the chunk, and its shard, whose index is read whole
        check_chunk(shape, one, itemsize, label)
    check_cells(shape, chunks, label)


def _chunk_shape(document: Mapping[str, Any]) -> Any:
    """Return the shape that is decoded at a time: that of a chunk, inside a shard if there are shards."""
    if document.get("zarr_format") == 2:
        return document.get("chunks")
    for name, configuration in codecs_of(document):
        if name == "sharding_indexed":
            return configuration.get("chunk_shape")
    return _grid_shape(document)


def _grid_shape(document: Mapping[str, Any]) -> Any:
    """Return the shape of a stored object in Zarr v3 metadata, or None."""
    grid = document.get("chunk_grid")
    return (grid.get("configuration") or {}).get("chunk_shape") if isinstance(grid, Mapping) else None


def check_stored_dtype(stored: Any, label: str) -> np.dtype[Any]:
    """Return the dtype that Zarr metadata spell; raise if PCA cannot use it."""
    try:
        if isinstance(stored, list):
            stored = [tuple(field) for field in stored]
        elif not isinstance(stored, str):
            raise TypeError(stored)
        found = check_dtype(stored)
        if found.type.__module__ == "ml_dtypes":  # which NumPy knows once that was imported, but Zarr does not
            raise TypeError(stored)
        return found
    except TypeError as error:
        reason = (
            str(error)
            if "cannot be used" in str(error)
            else f"dtype {brief(repr(stored))} is not one of NumPy's numbers. Store float32."
        )
        raise TypeError(f"{label}: {reason}") from None


def overlaps(
    bounds: Sequence[tuple[int, int]], shape: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Slices, Slices]]:
    """Yield the cells of a grid that half-open ranges touch; the part of each in the ranges, and in the cell.

    >>> list(overlaps([(1, 3)], [2]))
    [((0,), (slice(0, 1, None),), (slice(1, 2, None),)), ((1,), (slice(1, 2, None),), (slice(0, 1, None),))]
    """
    pairs = list(zip(bounds, shape, strict=True))
    for cell in product(*(range(lo // step, -(-hi // step)) if hi > lo else range(0) for (lo, hi), step in pairs)):
        part, own = [], []
        for i, ((lo, hi), step) in zip(cell, pairs, strict=True):
            first, last = max(lo, i * step), min(hi, (i + 1) * step)
            part.append(slice(first - lo, last - lo))
            own.append(slice(first - i * step, last - i * step))
        yield cell, tuple(part), tuple(own)


def fill_from(file: Any, target: NDArray[Any]) -> int:
    """Read into a contiguous array, 1 GiB at a time, and return the bytes read: fewer where the file ended."""
    view, done = target.reshape(-1).view(np.uint8).data, 0
    while done < len(view) and (count := file.readinto(view[done : done + 2**30])):
        done += count
    return done


def frame_size(data: bytes) -> int | None:
    """Return the content size that a zstd frame states (RFC 8878, section 3.1.1.1), or None if it states none.

    >>> from numcodecs import Zstd
    >>> frame_size(Zstd().encode(bytes(1000)))
    1000
    """
    if len(data) < 6 or data[:4] != ZSTD_MAGIC:
        return None
    descriptor = data[4]
    flag, single = descriptor >> 6, bool(descriptor & 0x20)
    width = (1 if single else 0, 2, 4, 8)[flag]
    offset = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3]
    if width == 0 or len(data) < offset + width:
        return None
    return int.from_bytes(data[offset : offset + width], "little") + (256 if width == 2 else 0)


@dataclass(frozen=True)
class Decoder:
    """How the chunks of one array are decoded, from its metadata: one by one, in the thread that reads.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the array.
    chunk_shape : tuple of int
        Of what is decoded at a time: that of a stored object, or of a part of it where there are shards.
    fill : number
        What chunks hold that a shard does not have.
    limit : int
        Largest accepted size of a decoded chunk.
    stored : numpy.dtype
        Of the numbers, in their byte order.
    codecs : tuple of (name, options)
        What their bytes were changed by.
    per_shard : tuple of int
        Chunks in a shard along each axis; empty without shards.
    index_at_start : bool
    beside_bytes : int
        What decoding a chunk takes beside the result and a copy: what is read, and what each step makes.
    index_checksum : bool
    """

    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    fill: Any
    limit: int
    stored: np.dtype[Any]
    codecs: tuple[tuple[str, Mapping[str, Any]], ...]
    beside_bytes: int
    per_shard: tuple[int, ...] = ()
    index_at_start: bool = False
    index_checksum: bool = False

    @classmethod
    def of(cls, array: zarr.Array[Any], document: Mapping[str, Any]) -> Decoder:
        """Read the metadata of an array whose codecs are allowed."""
        codecs = [(short_name(name), options) for name, options in codecs_of(document)]
        chunk_bytes = math.prod(array.chunks or (1,)) * array.dtype.itemsize
        shard, stored, after = dict(codecs).get("sharding_indexed"), array.dtype, []
        for name, options in codecs:
            if name in ("bytes", "endian"):
                stored = stored.newbyteorder(">" if options.get("endian") == "big" else "<")
            elif name not in ("sharding_indexed", "bitround"):
                after.append((name, options))
        beside = (bool(after) + (len(after) > 1) * len(after)) * chunk_bytes
        limit, fill = chunk_bytes + SPARE_BYTES, array.fill_value
        found = cls(array.dtype, array.chunks or (1,), fill, limit, stored, tuple(after), beside)
        if shard is None:
            return found
        index = [codec if isinstance(codec, str) else codec["name"] for codec in shard.get("index_codecs") or ()]
        inside = tuple(a // b for a, b in zip(array.shards or (), array.chunks, strict=True))
        at_start = shard.get("index_location") == "start"
        return replace(found, per_shard=inside, index_at_start=at_start, index_checksum="crc32c" in index)

    @property
    def max_stored(self) -> int:
        """Largest possible file of a chunk, or of a shard with its index."""
        count = math.prod(self.per_shard)
        return max_encoded(self.limit) * count + (16 * count if self.per_shard else 0)

    def decode(self, file: Any, size: int, out: NDArray[Any], own: Sequence[slice]) -> None:
        """Fill ``out`` with a part of an open object of ``size`` bytes.

        Raises
        ------
        Exception
            Any, if it is damaged, or would decode to more than it may.
        """
        if size > self.max_stored:
            raise ValueError(f"at most {self.max_stored:,} bytes can be stored for it, so it was not read")
        for offset, nbytes, part, inside in self._places(file, size, own or (slice(0, 1),)):
            if offset == nbytes == ABSENT:
                out[part] = self.fill
            elif not self._fits(offset, nbytes, size):
                raise ValueError(f"a chunk of {nbytes:,} bytes at byte {offset:,} of it was not read")
            else:
                self._fill(file, offset, nbytes, np.atleast_1d(out)[part], inside)

    def _fill(self, file: Any, offset: int, nbytes: int, out: NDArray[Any], own: Slices) -> None:
        """Fill ``out`` with a part of one chunk, which is decoded there if it is whole rows of the chunk."""
        encoded, rows = self.codecs or self.stored != out.dtype, own[0]
        if encoded:
            rows = slice(0, self.chunk_shape[0])
        shape = (rows.stop - rows.start, *self.chunk_shape[1:])
        block = out if out.shape == shape and out.flags.c_contiguous else np.empty(shape, out.dtype)
        if encoded:
            file.seek(offset)
            self._undo(file.read(nbytes), block)
        else:
            expected = math.prod(self.chunk_shape) * out.itemsize
            file.seek(offset + rows.start * (expected // self.chunk_shape[0]))
            if nbytes != expected or fill_from(file, block) != block.nbytes:
                raise ValueError(f"{nbytes:,} bytes were found, where {expected:,} were expected")
        if block is not out:
            out[...] = block[slice(own[0].start - rows.start, own[0].stop - rows.start), *own[1:]]

    def _undo(self, data: Any, block: NDArray[Any]) -> None:
        """Decode a whole chunk."""
        into = block if len(self.codecs) == 1 and self.stored == block.dtype else None
        for name, options in reversed(self.codecs):
            data = undone(name, options, data, self.limit, into)
        if data is not into:
            block[...] = np.frombuffer(data, self.stored).reshape(block.shape)

    @property
    def index_bytes(self) -> int:
        """Bytes of the index of a shard."""
        return 16 * math.prod(self.per_shard) + 4 * self.index_checksum

    def _index(self, file: Any, size: int) -> NDArray[Any]:
        """Return (offset, bytes) of all chunks of a shard.

        Raises
        ------
        ValueError
            If it is damaged.
        """
        length = 16 * math.prod(self.per_shard)
        start = 0 if self.index_at_start else size - self.index_bytes
        if start < 0 or size < self.index_bytes:
            raise ValueError("it ended before its index")
        file.seek(start)
        data = file.read(self.index_bytes)
        if self.index_checksum:
            import google_crc32c  # for shards only

            if google_crc32c.value(data[:length]) != int.from_bytes(data[length:], "little"):
                raise ValueError("the checksum of its index does not match")
        return np.frombuffer(data[:length], "<u8").reshape(*self.per_shard, 2)

    def _places(self, file: Any, size: int, own: Sequence[slice]) -> Iterator[tuple[int, int, Slices, Slices]]:
        """Yield offset and bytes of the chunks in a part of an object; the part of each in that part, and in itself."""
        entries = self._index(file, size) if self.per_shard else None
        for chunk, part, inside in overlaps([(one.start, one.stop) for one in own], self.chunk_shape):
            offset, nbytes = (0, size) if entries is None else map(int, entries[chunk])
            yield offset, nbytes, part, inside

    def _fits(self, offset: int, nbytes: int, size: int) -> bool:
        return offset + nbytes <= size and nbytes <= max_encoded(self.limit)

    def spans(self, file: Any, size: int, own: Sequence[slice]) -> list[tuple[int, int]]:
        """Return the half-open ranges of the chunks in a part of a shard, without those larger than one can be."""
        return [(at, at + n) for at, n, _, _ in self._places(file, size, own) if self._fits(at, n, size)]


def undone(name: str, options: Mapping[str, Any], data: Any, most: int, into: NDArray[Any] | None) -> Any:
    """Undo one codec of a chunk: into an array, if it has that size, else into new memory of ``most`` bytes at most.

    Raises
    ------
    Exception
        Any, if it is damaged, or would be larger.

    NOTE: Blosc's decoder reads past the end of a buffer that was cut, and returns whatever is there.
    """
    if name in ("blosc", "lz4", "zstd"):
        stated = stated_size(name, bytes(data[:HEAD_BYTES]), len(data))
        if stated is None and name == "blosc":
            raise ValueError("its Blosc header states more")
        if stated is not None:
            _check_limit(stated, most)
            target = into if into is not None and into.nbytes == stated else np.empty(stated, np.uint8)
            with suppress(ValueError) if name == "zstd" else nullcontext():  # several frames
                return import_module(f"numcodecs.{name}").decompress(data, target)
    if name == "zlib":
        stream = zlib.decompressobj()
        found = stream.decompress(data, most + 1)
        if len(found) <= most and not stream.eof:
            raise ValueError("the stream ended before its end was marked")
    elif name in STREAMS:
        with STREAMS[name](io.BytesIO(data)) as stream:
            found = stream.read(most + 1)
    else:
        return import_module("numcodecs").get_codec({"id": name, **options}).decode(data)
    _check_limit(len(found), most)
    return found


def _check_limit(size: int, most: int) -> None:
    if size > most:
        raise ValueError(f"it would decode to {size:,} bytes or more, and was not decoded")


def stated_size(compressor: str, head: bytes, nbytes: int) -> int | None:
    """Return the decoded size that the head of a chunk of ``nbytes`` states; None if it states none, or was cut."""
    if compressor == "blosc":
        cut = len(head) < 16 or nbytes < int.from_bytes(head[12:16], "little")
        return None if cut else int.from_bytes(head[4:8], "little")
    if compressor == "lz4":
        return int.from_bytes(head[:4], "little")
    return frame_size(head) if compressor == "zstd" else None
