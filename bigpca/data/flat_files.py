"""Arrays stored as plain bytes in one file: .npy, raw memory maps, stored .npz members, safetensors."""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bigpca.data.bfloat16 import BFLOAT16, widened
from bigpca.data.checks import check_dtype, readable_chunks, row_width
from bigpca.data.members import choose_member
from bigpca.data.storages import Stamp, file_stamp
from bigpca.errors import CorruptedChunkError, brief
from bigpca.storage.annotations import KEY_COLUMN
from bigpca.storage.forms import VALUES
from bigpca.storage.regular import check_regular, open_regular
from bigpca.storage.zip_members import read_npy_header

PIECE_BYTES = 2**20
_CHECKING = Lock()  # threads wait for the first, rather than read the whole file too
MAX_HEADER_BYTES = 100 * 2**20  # safetensors' own limit
_SAFETENSORS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "?", "U8": "u1", "I8": "i1"} | {
    f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (2, 4, 8)
}
_SAFETENSORS["BF16"] = BFLOAT16
_BITS = {name: 8 * np.dtype(stored).itemsize for name, stored in _SAFETENSORS.items() if stored != BFLOAT16} | {
    "BF16": 16, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


@dataclass(frozen=True)
class FlatFile:
    """An array at an offset of a file, in C or Fortran order.

    Nothing stays mapped or open between reads: mapped pages would count as the worker's memory, and a file that was
    replaced or truncated meanwhile is detected instead of crashing the process.

    Attributes
    ----------
    path : str
    offset : int, bytes
    array_shape : tuple of int
    stored : str
        Dtype with its byte order, such as ``">f4"``, or "bfloat16".
    order : {"C", "F"}
    lead : int, bytes
        What stands before the values of each row, such as its key; 0 for plain arrays.
    checked : (int, int) or None
        CRC-32 of the values and of so many bytes before them, which the first read of a process compares: reads in any
        order, of any rows, must not give damaged ones.
    """

    path: str
    offset: int
    array_shape: tuple[int, ...]
    stored: str
    order: str = "C"
    lead: int = 0
    checked: tuple[int, int] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Stored dtype, in native byte order; float32 for bfloat16."""
        return np.dtype(np.float32) if self.stored == BFLOAT16 else check_dtype(self.stored)

    @property
    def _bits(self) -> np.dtype[Any]:
        """Dtype of the numbers in the file, in its byte order; integers for bfloat16."""
        return np.dtype("<u2" if self.stored == BFLOAT16 else self.stored)

    def row_chunks(self) -> tuple[int, ...]:
        """Chunks of about 16 MiB."""
        return readable_chunks(self.array_shape[0], row_width(self.array_shape) * self.dtype.itemsize)

    @property
    def _nbytes(self) -> int:
        return math.prod(self.array_shape) * self._bits.itemsize + (self.lead and self.lead * self.array_shape[0])

    def check_size(self) -> None:
        """Check that the file is as large as its header states."""
        size = check_regular(self.path).st_size
        if size < self.offset + self._nbytes:
            raise CorruptedChunkError(
                f"{self.path} has {size:,} bytes, but an array of shape {self.array_shape} and dtype {self.dtype} "
                f"at offset {self.offset} needs {self.offset + self._nbytes:,}: the file is truncated. Copy it again."
            )

    def read(self, start: int, stop: int, columns: tuple[int, int]) -> NDArray[Any]:
        """Read a block: whole rows in C order directly into new memory, others through a short-lived map."""
        self.check_size()
        if self.checked is not None:
            with _CHECKING:
                _check_crc(self, file_stamp(self.path))
        block = self._read_bits(start, stop, columns)
        if self.stored == BFLOAT16:
            return widened(block)
        return block.astype(self.dtype, copy=False)

    def _read_bits(self, start: int, stop: int, columns: tuple[int, int]) -> NDArray[Any]:
        width, stored = row_width(self.array_shape), self._bits
        if self.lead:
            record = np.dtype([("", f"V{self.lead}"), (VALUES, stored, (width,))])
            records = np.empty(stop - start, record)
            with open_regular(self.path, buffering=0) as file:
                file.seek(self.offset + start * record.itemsize)
                _fill(file, records, self.path)
            return np.ascontiguousarray(records[VALUES][:, slice(*columns)])
        if self.order == "C" and columns == (0, width):
            block = np.empty((stop - start, width), stored)
            with open_regular(self.path, buffering=0) as file:
                file.seek(self.offset + start * width * stored.itemsize)
                _fill(file, block, self.path)
            return block
        block = np.empty((stop - start, columns[1] - columns[0]), stored.newbyteorder("="))
        if block.size:
            order: Any = self.order
            mapped = np.memmap(self.path, stored, "r", self.offset, self.array_shape, order)
            rows = np.asarray(mapped)[start:stop]
            block[...] = (rows if rows.ndim == 2 else rows.reshape(stop - start, width))[:, slice(*columns)]
        return block

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return the stamp of the file."""
        return [file_stamp(self.path)]

    def describe(self) -> dict[str, Any]:
        """Return offset, byte order and layout."""
        found = {"offset": self.offset, "stored": self.stored, "order": self.order}
        return found | ({"lead": self.lead} if self.lead else {})


@lru_cache(maxsize=64)
def _check_crc(flat: FlatFile, stamp: Stamp) -> None:
    """Read a member of a .npz file in one state from end to end, and compare its CRC-32; once per process."""
    expected, lead = flat.checked or (0, 0)
    found, left = 0, flat._nbytes + lead
    with open_regular(flat.path, buffering=0) as file:
        file.seek(flat.offset - lead)
        while left and (piece := file.read(min(left, PIECE_BYTES))):
            found, left = zlib.crc32(piece, found), left - len(piece)
    if found != expected:
        raise CorruptedChunkError(
            f"{flat.path}: the array of shape {flat.array_shape} at byte {flat.offset:,} has the CRC-32 {found:08x}, "
            f"but {expected:08x} was written: it is damaged. Copy the file again."
        )


def _fill(file: BinaryIO, block: NDArray[Any], path: str) -> None:
    view = block.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(view):
        got = file.readinto(view[done : done + 2**30])  # type: ignore[attr-defined]
        if not got:
            raise CorruptedChunkError(f"{path} ended {len(view) - done:,} bytes early while being read. Copy it again.")
        done += got


def raw_file(path: str, offset: int, shape: tuple[int, ...], dtype: DTypeLike, order: str = "C") -> FlatFile:
    """Describe plain bytes, such as those behind a ``np.memmap``."""
    stored = BFLOAT16
    if not isinstance(dtype, str) or dtype != BFLOAT16:
        check_dtype(dtype)
        stored = np.dtype(dtype).str
    flat = FlatFile(path, offset, tuple(map(int, shape)), stored, order)
    flat.check_size()
    return flat


def npy_file(path: str) -> FlatFile:
    """Describe a .npy file from its header: an array, or scores with keys; objects are rejected, never unpickled."""
    with open_regular(path) as file:
        shape, order, dtype = npy_header(file, path)
        if dtype.names is not None:
            values = dtype[VALUES]
            check_dtype(values.base)
            keyed = FlatFile(
                path, file.tell(), (*shape, *values.shape), values.base.str, lead=dtype[KEY_COLUMN].itemsize
            )
            keyed.check_size()
            return keyed
        return raw_file(path, file.tell(), shape, dtype, order)


def npy_header(file: Any, label: str) -> tuple[tuple[int, ...], str, np.dtype[Any]]:
    """Read shape, order and dtype with NumPy's own header reader, which leaves the file at the first value."""
    try:
        shape, fortran, dtype = read_npy_header(file)
    except (ValueError, EOFError) as error:
        raise CorruptedChunkError(
            f"{label} is not a complete .npy file: {brief(error)}. Write it again with np.save."
        ) from error
    if len(shape) == 1 and dtype.names == (KEY_COLUMN, VALUES):
        return shape, "C", dtype
    try:
        check_dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{label}: {error}") from None
    return shape, "F" if fortran else "C", dtype


def safetensors_file(path: str, member: str | None) -> tuple[FlatFile, str]:
    """Describe a tensor of a safetensors file: the named one, or the only one with two dimensions or more."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if length > min(size - 8, MAX_HEADER_BYTES):
            raise CorruptedChunkError(
                f"{path} has {size:,} bytes and is not a complete safetensors file. Copy it again."
            )
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise CorruptedChunkError(
                f"{path} is not a safetensors file: its header is not JSON ({brief(error)})."
            ) from error
    try:
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        shapes = {name: tuple(map(index, entry["shape"])) for name, entry in tensors.items()}
        spans = {name: tuple(map(index, entry["data_offsets"])) for name, entry in tensors.items()}
        sound = all(isinstance(entry["dtype"], str) for entry in tensors.values())
        sound &= all(len(span) == 2 and 0 <= span[0] <= span[1] for span in spans.values())
    except (AttributeError, TypeError, LookupError):
        sound = False
    if not sound or any(min(shape, default=0) < 0 for shape in shapes.values()):
        raise CorruptedChunkError(
            f"{path} is not a safetensors file: its header lacks dtype, shape or data_offsets of a tensor. "
            "Copy it again."
        )
    dtypes = {name: entry["dtype"] for name, entry in tensors.items()}
    _check_spans(path, size - 8 - length, dtypes, shapes, spans)
    name = choose_member(path, member, shapes)
    if dtypes[name] not in _SAFETENSORS:
        raise TypeError(
            f"{path}: tensor {brief(repr(name))} has dtype {brief(dtypes[name])}, which NumPy does not support. "
            "Save it as float32."
        )
    return raw_file(path, 8 + length + spans[name][0], shapes[name], _SAFETENSORS[dtypes[name]]), name


def _check_spans(
    path: str, held: int, dtypes: dict[str, str], shapes: dict[str, tuple[int, ...]], spans: dict[str, tuple[int, ...]]
) -> None:
    """Check what the format requires: tensors as large as their shapes, without holes or overlaps in the file."""
    end = 0
    for name in sorted(spans, key=lambda name: spans[name]):
        start, stop = spans[name]
        bits = _BITS.get(dtypes[name])
        nbytes = None if bits is None else math.prod(shapes[name]) * bits // 8
        if start != end or (nbytes is not None and stop - start != nbytes):
            expected = f"{end:,} to {'the next tensor' if nbytes is None else f'{end + nbytes:,}'}"
            raise CorruptedChunkError(
                f"{path}: tensor {brief(repr(name))} of shape {brief(shapes[name])} and dtype {brief(dtypes[name])} "
                f"lies at bytes {start:,} to {stop:,}; {expected} were expected, after the previous tensor. The header "
                "is damaged or forged: copy the file again."
            )
        end = stop
    if end != held:
        raise CorruptedChunkError(
            f"{path} holds {held:,} bytes of tensors, but its header states {end:,}: it was truncated or altered. "
            "Copy it again."
        )
