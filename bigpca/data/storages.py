"""The protocol between input formats and RowSource, and its implementations for Zarr and memory."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bigpca.data.checks import check_dtype, readable_chunks, row_width
from bigpca.storage.files import check_regular

Stamp = tuple[str, int, int | str | None]  # key, size, change: a time, or what a store has in its place


class Storage(Protocol):
    """Rows of one array in one format; a small picklable record without open handles.

    One that does not store rows whole has the property ``column_chunk``: how many columns of the (n, d) view can be
    read without decoding others.
    """

    @property
    def array_shape(self) -> tuple[int, ...]:
        """Stored shape, rows first."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Stored dtype, in native byte order."""

    def row_chunks(self) -> tuple[int, ...]:
        """Return consecutive row counts that can each be read without decoding anything twice."""

    def read(self, start: int, stop: int, columns: tuple[int, int]) -> Any:
        """Read a block of the (n, d) view, of shape (stop - start, columns); the bounds have been checked.

        An array, or from a storage of sparse rows a ``csr_array`` as :func:`bigpca.data.sparse.csr_block` makes it.
        Such a storage has the properties ``stored_values``, the number of values that it stores, and ``densest``, that
        of a mean row of the densest of its row chunks, by which memory is planned.
        """

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return (key, size, change) of the files that hold those rows: their mtime in ns, or what a store has."""

    def describe(self) -> dict[str, Any]:
        """Return what a fingerprint needs beyond shape and dtype, as JSON values."""


def file_stamp(path: str) -> Stamp:
    """Return (path, size, mtime in ns) of one file."""
    found = check_regular(path)
    return path, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, eq=False)
class MemoryRows:
    """Rows of a NumPy array; pickled with its values."""

    array: NDArray[Any]

    @property
    def array_shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype in native byte order."""
        return check_dtype(self.array.dtype)

    def row_chunks(self) -> tuple[int, ...]:
        """Chunks of about 16 MiB."""
        return readable_chunks(self.array_shape[0], row_width(self.array_shape) * self.dtype.itemsize)

    def read(self, start: int, stop: int, columns: tuple[int, int]) -> NDArray[Any]:
        """Copy a block."""
        block = np.empty((stop - start, columns[1] - columns[0]), self.dtype)
        block[...] = self.view(start, stop)[:, slice(*columns)]
        return block

    def view(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows as they lie in memory, (stop - start, d), for whoever does not change them."""
        rows = self.array[start:stop]
        return rows if rows.ndim == 2 else rows.reshape(stop - start, row_width(self.array_shape))

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return the CRC-32 of those values in place of a file's mtime."""
        rows = self.read(start, stop, (0, row_width(self.array_shape)))
        return [("memory", rows.nbytes, zlib.crc32(rows.data))]

    def describe(self) -> dict[str, Any]:
        """Return the CRC-32 of all values (reads the whole array, 16 MiB at a time)."""
        crc, start, width = 0, 0, row_width(self.array_shape)
        for rows in self.row_chunks():
            crc = zlib.crc32(self.read(start, start + rows, (0, width)).data, crc)
            start += rows
        return {"crc32": crc}
