"""The decoded size of a stored chunk, determined before it is decoded.

A compressed chunk is untrusted: a few kilobytes can decode to gigabytes. Blosc, zstd and LZ4 state the size in their
header, zstd frames that do not are bounded by their blocks, and formats without a size (gzip, zlib, bz2, lzma) are
decoded in pieces that are discarded, up to the limit.
"""

from __future__ import annotations

import bz2
import lzma
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, BinaryIO

import numpy as np

from bigpca.data.zarr_direct import ZSTD_MAGIC, frame_size
from bigpca.data.zarr_metadata import COMPRESSORS, codecs_of, short_name
from bigpca.storage.regular import max_encoded, open_regular

HEAD_BYTES = 32
PIECE_BYTES = 2**20
ZSTD_BLOCK = 128 * 2**10  # RFC 8878, section 3.1.1.2.4
SPARE_BYTES = 64  # checksums of filters that lie inside the compressed bytes
WIDENING = {"astype", "delta", "fixedscaleoffset", "quantize", "packbits", "bitround"}  # filters that change the dtype
MAX_WIDENING = 16
ABSENT = 2**64 - 1  # in a shard's index


@dataclass(frozen=True)
class DecodedSizes:
    """How the chunks of one array are decoded, from its metadata.

    Attributes
    ----------
    compressor : str
        Empty if there is none; a chunk is then as large as its file.
    skip : int
        Bytes of checksums before the compressed bytes.
    limit : int
        Largest accepted size of a decoded chunk.
    per_shard : tuple of int
        Chunks in a shard along each axis; empty without shards.
    index_at_start : bool
    index_checksum : bool
    """

    compressor: str
    skip: int
    limit: int
    per_shard: tuple[int, ...] = ()
    index_at_start: bool = False
    index_checksum: bool = False

    @classmethod
    def of(
        cls, document: Mapping[str, Any], chunks: Sequence[int], cell_shape: Sequence[int], itemsize: int
    ) -> DecodedSizes:
        """Read the metadata of an array whose codecs are allowed."""
        codecs = [(short_name(name), options) for name, options in codecs_of(document)]
        names = [name for name, _ in codecs]
        place = next((i for i, name in enumerate(names) if name in COMPRESSORS), None)
        nbytes = int(np.prod(chunks, dtype=object)) * itemsize
        limit = nbytes * (MAX_WIDENING if WIDENING & set(names) else 1) + SPARE_BYTES
        after = [] if place is None else codecs[place + 1 :]
        before = ("crc32", "adler32", "jenkins_lookup3")
        skip = 4 * sum(name in before and options.get("location", "start") != "end" for name, options in after)
        found = cls("" if place is None else names[place], skip, limit)
        if "sharding_indexed" not in names:
            return found
        options = codecs[names.index("sharding_indexed")][1]
        index = [codec if isinstance(codec, str) else codec["name"] for codec in options.get("index_codecs") or ()]
        inside = tuple(a // b for a, b in zip(cell_shape, chunks, strict=True))
        return cls(found.compressor, skip, limit, inside, options.get("index_location") == "start", "crc32c" in index)

    @property
    def max_stored(self) -> int:
        """Largest possible file of a chunk, or of a shard with its index."""
        count = math.prod(self.per_shard)
        return max_encoded(self.limit) * count + (16 * count if self.per_shard else 0)

    def too_large(self, path: str, bounds: Sequence[tuple[int, int]]) -> str:
        """Return why a chunk in this file is too large to be read or decoded; empty if it is not.

        Parameters
        ----------
        bounds : range of the chunks in a shard that will be decoded, along each axis; unused without shards
        """
        try:
            with open_regular(path, buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size > self.max_stored:
                    return f"at most {self.max_stored:,} bytes can be stored for it, so it was not read"
                if not self.compressor:
                    return ""
                places = self._places(file, bounds) if self.per_shard else [(0, size)]
                decoded = max((self._over(file, *place) for place in places), default=0)
        except FileNotFoundError:
            return ""
        return f"it would decode to {decoded:,} bytes or more, and was not decoded" if decoded else ""

    def _places(self, file: BinaryIO, bounds: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Iterate over (offset, bytes) of chunks of a shard; a damaged index is left to Zarr, which reports it."""
        count, size = int(np.prod(self.per_shard)), os.fstat(file.fileno()).st_size
        length = 16 * count
        start = 0 if self.index_at_start else size - length - 4 * self.index_checksum
        if start < 0 or size < length:
            return
        file.seek(start)
        entries = np.frombuffer(file.read(length), "<u8").reshape(*self.per_shard, 2)
        for cell in product(*(range(*pair) for pair in bounds)):
            offset, nbytes = (int(number) for number in entries[cell])
            if offset != ABSENT and offset + nbytes <= size:
                yield offset, nbytes

    def _over(self, file: BinaryIO, offset: int, nbytes: int) -> int:
        size = self._size(file, offset + self.skip, nbytes - self.skip)
        return size if size > self.limit else 0

    def _size(self, file: BinaryIO, offset: int, nbytes: int) -> int:
        file.seek(offset)
        if self.compressor in STREAMED:
            return streamed_size(_pieces(file, nbytes), STREAMED[self.compressor], self.limit)
        head = file.read(min(HEAD_BYTES, max(nbytes, 0)))
        if self.compressor == "blosc":
            return int.from_bytes(head[4:8], "little")
        if self.compressor == "lz4":
            return int.from_bytes(head[:4], "little")
        if self.compressor == "zstd":
            if (stated := frame_size(head)) is not None:
                return stated
            most = _zstd_bound(head + file.read(max(nbytes - len(head), 0)), MAX_WIDENING * self.limit)
            return most if most > MAX_WIDENING * self.limit else 0  # only a bound, because frames may be flushed often
        return 0


def _pieces(file: BinaryIO, nbytes: int) -> Iterator[bytes]:
    while nbytes > 0 and (piece := file.read(min(nbytes, PIECE_BYTES))):
        nbytes -= len(piece)
        yield piece


STREAMED: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(31),
    "zlib": zlib.decompressobj,
    "bz2": bz2.BZ2Decompressor,
    "lzma": lzma.LZMADecompressor,
}


def streamed_size(pieces: Iterator[bytes], decoder: Callable[[], Any], limit: int) -> int:
    """Decode in pieces that are discarded, and return their size; stops beyond the limit.

    Undecodable bytes are left to Zarr, which reports them.
    """
    size, decode = 0, decoder()
    try:
        for piece in pieces:
            left = piece
            while size <= limit:
                size += len(decode.decompress(left, PIECE_BYTES))
                left = decode.unconsumed_tail if hasattr(decode, "unconsumed_tail") else b""
                if decode.eof:  # several members may follow one another, and all of them are decoded
                    left, decode = decode.unused_data, decoder()
                    if not left:
                        break
                elif not left and getattr(decode, "needs_input", True):
                    break
    except (zlib.error, OSError, lzma.LZMAError, EOFError):
        pass
    return size


def _zstd_bound(data: bytes, limit: int) -> int:
    """Bound the decoded size of zstd frames that state none, by their blocks; stops beyond the limit."""
    at, most = 0, 0
    while len(data) > at + 5 and data[at : at + 4] == ZSTD_MAGIC and most <= limit:
        descriptor = data[at + 4]
        at += (
            5
            + (not descriptor & 0x20)
            + (0, 1, 2, 4)[descriptor & 3]
            + (descriptor & 0x20 > 0, 2, 4, 8)[descriptor >> 6]
        )
        last = False
        while not last and at + 3 <= len(data) and most <= limit:
            block = int.from_bytes(data[at : at + 3], "little")
            last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            most += size if kind < 2 else ZSTD_BLOCK  # raw and run-length blocks state their size
            at += 3 + (1 if kind == 1 else size)
        at += 4 * bool(descriptor & 4)
    return most
