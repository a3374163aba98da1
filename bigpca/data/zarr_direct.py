"""Whole rows of a plain local Zarr array, decoded directly into the result.

Zarr reads a chunk into one buffer, decodes it into a second and copies that into a third, each in new memory whose
pages the kernel must map first: for large chunks that costs several times the copying itself. For the usual layout
(local directory, no shards, whole rows per chunk, C order, native bytes, uncompressed or zstd) one buffer suffices. In
all other cases, and whenever a file is not as expected, the caller uses Zarr itself, which also reports errors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.zarr_metadata import array_document, codecs_of, short_name
from bigpca.storage.regular import max_encoded, open_regular

if TYPE_CHECKING:
    import zarr

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class DirectRows:
    """Reads rows of one array whose layout allows it.

    Attributes
    ----------
    directory : str
    dtype : numpy.dtype
    chunk_shape : tuple of int
    shape : tuple of int
    compressed : bool
    """

    directory: str
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    shape: tuple[int, ...]
    compressed: bool

    @classmethod
    def of(cls, array: zarr.Array[Any], directory: str | None) -> DirectRows | None:
        """Return the reader of an open array under ``directory``, or None if its layout is not supported."""
        document = array_document(array)
        whole_rows = len(array.shape) >= 1 and array.chunks[1:] == array.shape[1:]
        if directory is None or array.shards or not whole_rows or not array.dtype.isnative:
            return None
        codecs = [(short_name(name), options) for name, options in codecs_of(document)]
        if document.get("zarr_format") == 2:
            plain = document.get("order", "C") == "C" and not document.get("filters")
            names = [name for name, _ in codecs]
        else:
            plain = bool(codecs) and codecs[0][0] == "bytes" and _is_native(codecs[0][1], array.dtype)
            names = [name for name, _ in codecs[1:]]
        if not plain or names not in ([], ["zstd"]):
            return None
        return cls(directory, array.dtype, array.chunks, array.shape, bool(names))

    def read(self, key: Callable[[tuple[int, ...]], str], start: int, stop: int) -> NDArray[Any] | None:
        """Read rows ``start:stop`` into new memory, or return None if a file is missing or not as expected."""
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        step, rest = self.chunk_shape[0], (0,) * (len(self.shape) - 1)
        for i in range(start // step, -(-stop // step)):
            first, last = max(start, i * step), min(stop, (i + 1) * step)
            path = os.path.join(self.directory, key((i, *rest)))
            try:
                whole = self._read_chunk(path, out[first - start : last - start], first - i * step)
            except (OSError, RuntimeError, ValueError):
                return None
            if not whole:
                return None
        return out

    def _read_chunk(self, path: str, target: NDArray[Any], skip: int) -> bool:
        """Fill ``target`` with the chunk's rows from ``skip`` on; return False if the file is not as expected."""
        nbytes = int(np.prod(self.chunk_shape)) * self.dtype.itemsize
        with open_regular(path, buffering=0) as file:
            if not self.compressed:
                if os.fstat(file.fileno()).st_size != nbytes:
                    return False
                file.seek(skip * (nbytes // self.chunk_shape[0]))
                return _fill(file, target)
            if os.fstat(file.fileno()).st_size > max_encoded(nbytes):
                return False
            data = file.read()
        if frame_size(data) != nbytes:
            return False
        from numcodecs.zstd import decompress  # imported here because a fit of arrays needs no codecs

        if target.nbytes == nbytes:
            decompress(data, target)
        else:
            chunk = np.empty(self.chunk_shape, self.dtype)
            decompress(data, chunk)
            target[...] = chunk[skip : skip + len(target)]
        return True


def _is_native(options: Any, dtype: np.dtype[Any]) -> bool:
    endian = options.get("endian", "little")
    return bool(dtype.itemsize == 1 or endian == sys.byteorder)


def _fill(file: Any, target: NDArray[Any]) -> bool:
    view = target.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            return False
        done += count
    return True


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
