"""Members of a .npz file: read in place if stored uncompressed, as a stream if compressed."""

from __future__ import annotations

import math
import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigpca.data.checks import check_dtype, readable_chunks, regular_chunks, row_width
from bigpca.data.flat_files import FlatFile, npy_header, raw_file
from bigpca.data.members import SPARSE_PARTS, choose_member
from bigpca.data.sparse_groups import SparseGroup
from bigpca.data.sparse_rows import CsrRows
from bigpca.data.storages import Stamp, file_stamp
from bigpca.errors import CorruptedChunkError, brief
from bigpca.storage.regular import open_regular
from bigpca.storage.zip_members import check_member, check_place, read_npy_header

SKIP_BYTES = 2**20
MAX_FORMAT_BYTES = 64
STREAMS = 4  # open at a time in a process: a sparse matrix is read from three members in turn


@dataclass(eq=False)
class _Stream:
    """An open compressed member and its current row, kept so that rows in order are decoded once."""

    file: IO[bytes] | None = None
    row: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Start again at the first row."""
        if self.file is not None:
            self.file.close()
        self.file, self.row = None, 0


@lru_cache(maxsize=STREAMS)
def _stream(entry: str, stamp: Stamp) -> _Stream:
    """Return the stream of a member of a file in one state; one per process."""
    return _Stream()


@dataclass(frozen=True)
class CompressedMember:
    """Rows of a compressed .npz member. Reading in row order decodes once; going back decodes again from the start.

    Attributes
    ----------
    path, entry : str
        File, and name inside it with ``.npy``.
    array_shape : tuple of int
    stored : str
        Dtype with its byte order.
    order : {"C", "F"}
    """

    path: str
    entry: str
    array_shape: tuple[int, ...]
    stored: str
    order: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """Stored dtype, in native byte order."""
        return check_dtype(self.stored)

    @property
    def _row_bytes(self) -> int:
        return row_width(self.array_shape) * self.dtype.itemsize

    def row_chunks(self) -> tuple[int, ...]:
        """Return chunks of about 16 MiB in C order; in Fortran order, where rows end with the array, a single one."""
        n = self.array_shape[0]
        return readable_chunks(n, self._row_bytes) if self.order == "C" else regular_chunks(n, n)

    def read(self, start: int, stop: int, columns: tuple[int, int]) -> NDArray[Any]:
        """Read a block by decoding up to its last row; only its whole rows are held in memory."""
        try:
            if self.order == "F":
                with open_regular(self.path) as file, np.load(file, allow_pickle=False) as archive:
                    rows = archive[self.entry.removesuffix(".npy")][start:stop]
            else:
                rows = self._read_rows(_stream(self.entry, file_stamp(self.path)), start, stop)
        except (zlib.error, zipfile.BadZipFile, EOFError, RuntimeError) as error:
            raise CorruptedChunkError(
                f"{self.path}: {brief(self.entry)} cannot be decoded ({brief(error)}). Copy it again."
            ) from error
        block: NDArray[Any] = rows.reshape(stop - start, row_width(self.array_shape))[:, slice(*columns)]
        return block

    def _read_rows(self, stream: _Stream, start: int, stop: int) -> NDArray[Any]:
        rows = np.empty((stop - start, *self.array_shape[1:]), self.stored)
        view = rows.reshape(-1).view(np.uint8).data
        with stream.lock:
            try:
                file = self._at_row(stream, start)
                done = 0
                while done < len(view):
                    piece = _some(file, min(len(view) - done, SKIP_BYTES))
                    view[done : done + len(piece)] = piece
                    done += len(piece)
                stream.row = stop
            except BaseException:
                stream.close()
                raise
        return rows

    def _at_row(self, stream: _Stream, start: int) -> IO[bytes]:
        """Return the open member at a row, decoding up to it: from the start, if it is behind."""
        if stream.row > start:
            stream.close()
        if stream.file is None:
            with zipfile.ZipFile(self.path) as archive:  # the open member keeps the file open
                stream.file = archive.open(self.entry)
            npy_header(stream.file, self.path)
        skip = (start - stream.row) * self._row_bytes
        while skip:
            skip -= len(_some(stream.file, min(skip, SKIP_BYTES)))
        return stream.file

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return the stamp of the file."""
        return [file_stamp(self.path)]

    def describe(self) -> dict[str, Any]:
        """Return byte order and layout."""
        return {"stored": self.stored, "order": self.order, "compressed": True}


def _some(stream: IO[bytes], count: int) -> bytes:
    piece = stream.read(count)
    if not piece:
        raise EOFError("it ended early")
    return piece


def npz_member(path: str, member: str | None) -> tuple[FlatFile | CompressedMember | CsrRows, str]:
    """Describe a member of a .npz file: the named one, the only matrix, or the sparse one of ``scipy.sparse``."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            names = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
            headers, held = {}, os.fstat(file.fileno()).st_size
            for short, name in names.items():
                # Other members may hold objects; only the chosen one must be numbers.
                if member not in names or short == member:
                    check_place(archive.getinfo(name), held)
                    headers[short] = _header(archive, name, path)
            shapes = {short: headers[short].shape if short in headers else () for short in names}
            form = _sparse_format(archive, path, headers)
            chosen = "" if form and member is None else choose_member(path, member, shapes)
            sparse = {part: f"{chosen}/{part}".lstrip("/") for part in (*SPARSE_PARTS, "shape")}
            places = {chosen: chosen} if chosen in headers else sparse
            there = {part: place for part, place in places.items() if place in headers}
            found = {part: _stored(path, archive.getinfo(names[at]), headers[at]) for part, at in there.items()}
    except (zipfile.BadZipFile, EOFError, zlib.error, struct.error, RuntimeError, UnicodeError) as error:
        # RuntimeError: encrypted members; NotImplementedError, its subclass: compression that zipfile does not support
        raise CorruptedChunkError(
            f"{path} is not a complete .npz file ({brief(error)}). Copy or write it again."
        ) from error
    if chosen in found:
        return found[chosen], chosen
    return SparseGroup.of(path, chosen, {"encoding-type": form}, found.get("shape"), names).rows(found), chosen


class _Header(NamedTuple):
    """What a .npy header says, and how long it is."""

    shape: tuple[int, ...]
    order: str
    stored: str
    nbytes: int


def _sparse_format(archive: zipfile.ZipFile, path: str, headers: Mapping[str, _Header]) -> str:
    """Return the format that ``scipy.sparse.save_npz`` wrote, such as "csr"; empty for a file of other arrays."""
    if {"format", "shape", "data"} - set(headers) or headers["format"].shape != ():
        return ""
    stored = np.dtype(headers["format"].stored)
    if stored.kind not in "SU" or stored.itemsize > MAX_FORMAT_BYTES:
        return ""
    with archive.open("format.npy") as file:
        value = np.lib.format.read_array(file, allow_pickle=False).item()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _stored(path: str, info: zipfile.ZipInfo, header: _Header) -> FlatFile | CompressedMember:
    shape, order, stored, header_bytes = header
    try:
        check_dtype(stored)
    except TypeError as error:
        raise TypeError(f"{path}: {brief(info.filename)}: {error}") from None
    try:
        check_member(info, header_bytes, math.prod(shape) * np.dtype(stored).itemsize)
    except ValueError as error:
        raise CorruptedChunkError(f"{path}: {error}: it is damaged or forged. Copy or write it again.") from error
    if info.compress_type != zipfile.ZIP_STORED:
        return CompressedMember(path, info.filename, shape, stored, order)
    flat = raw_file(path, _data_offset(path, info) + header_bytes, shape, stored, order)
    return replace(flat, checked=(info.CRC, header_bytes))


def _header(archive: zipfile.ZipFile, name: str, path: str) -> _Header:
    with archive.open(name) as file:
        try:
            shape, fortran, dtype = read_npy_header(file)
        except ValueError as error:
            raise CorruptedChunkError(
                f"{path}: {brief(name)} is not a complete .npy file: {brief(error)}. Write it again with np.savez."
            ) from error
        return _Header(shape, "F" if fortran else "C", dtype.str if dtype.names is None else "V", file.tell())


def _data_offset(path: str, info: zipfile.ZipInfo) -> int:
    """Return where a member's bytes start: after its local header, whose extra field may differ from the directory."""
    with open_regular(path) as file:
        file.seek(info.header_offset)
        name_length, extra_length = struct.unpack("<26x2H", file.read(30))
    return int(info.header_offset) + 30 + int(name_length) + int(extra_length)
