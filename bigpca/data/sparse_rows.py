"""Rows of a sparse matrix in a file or store: three arrays, of which only the parts of some rows are read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca.data.checks import NATIVE_BYTES, check_dtype, regular_chunks
from bigpca.data.members import SPARSE_PARTS
from bigpca.data.sparse import csr_block, densest_rows, fewest_rows
from bigpca.data.storages import Stamp, Storage
from bigpca.errors import CorruptedChunkError
from bigpca.storage.stores import kind_of

Places: TypeAlias = NDArray[np.int64]
T = TypeVar("T", bound=np.generic)
WINDOW_ROWS = 2**18  # of indptr that are decoded at a time: 2 MiB
WINDOWS_HELD = 8  # in a process: AnnData writes indptr as one chunk, which each read would decode again


@dataclass(frozen=True, eq=False)
class CsrRows:
    """Rows of a stored matrix in compressed sparse rows (CSR): row t is ``data[indptr[t]:indptr[t + 1]]``.

    The columns of these values are ``indices[indptr[t]:indptr[t + 1]]``, in any order; duplicates are added up. A read
    of some rows reads their part of each array, and checks it: no number outside the matrix is ever used as a place.

    Attributes
    ----------
    label : str
        Location of the matrix, for messages.
    array_shape : tuple of int
        (n, d).
    data, indices, indptr : Storage
        The arrays, of one dimension each.
    stored_values : int
        Stored entries of all rows, zeros among them: the last number of ``indptr``.
    """

    label: str
    array_shape: tuple[int, int]
    data: Storage
    indices: Storage
    indptr: Storage
    stored_values: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Stored dtype, in native byte order; float32 for float16, which SciPy's sparse matrices do not have."""
        stored = check_dtype(self.data.dtype)
        return np.dtype(np.float32) if stored == np.float16 else stored

    @property
    def value_bytes(self) -> int:
        """Bytes of one stored value with its column."""
        return self.data.dtype.itemsize + self.indices.dtype.itemsize

    def row_chunks(self) -> tuple[int, ...]:
        """Return chunks of equally many rows, of 16 to 64 MiB where they are densest; reads ``indptr`` once."""
        return _row_chunks(self)

    @property
    def densest(self) -> float:
        """Stored values of a mean row of the densest chunk."""
        return _densest(self)

    def read(self, start: int, stop: int, columns: tuple[int, int]) -> csr_array:
        """Read rows as SciPy's CSR in canonical form: columns sorted, duplicates added up; zeros are kept."""
        offsets, d = self.ends(start, stop), self.array_shape[1]
        lo, hi = int(offsets[0]), int(offsets[-1])
        data = values_of(self.data, lo, hi).astype(self.dtype, copy=False)
        rows = csr_block(data, values_of(self.indices, lo, hi), offsets - lo, d, self.label, start)
        return rows if columns == (0, d) else rows[:, slice(*columns)]

    def ends(self, start: int, stop: int) -> Places:
        """Return ``indptr[start : stop + 1]``, checked: where these rows begin, and where the last of them ends."""
        if start >= stop:
            return np.zeros(1, np.int64)
        parts, end = [], 0
        for first in range(start - start % WINDOW_ROWS, stop, WINDOW_ROWS):
            window = self._window(first)
            lo, hi = max(start - first, 0), min(stop - first, WINDOW_ROWS)
            parts.append(window[lo:hi])
            end = int(window[hi])
        return np.append(np.concatenate(parts) if len(parts) > 1 else parts[0], end)

    def _window(self, first: int) -> Places:
        """Return ``indptr`` of up to ``WINDOW_ROWS`` rows from ``first`` on, and where their last row ends."""
        last = min(first + WINDOW_ROWS, self.array_shape[0])
        local = kind_of(self.label) == "disk"  # elsewhere stamps take as long as these numbers, which are read again
        stamps = self.indptr.stamps(first, last + 1) if local else []
        key = _Window(self.label, tuple(stamps), first, last, self)
        return _held_window(key) if local else _checked_window(key)

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return stamps of what holds those rows, in each of the three arrays."""
        whole = (start, stop) == (0, self.array_shape[0])
        lo, hi = (0, self.stored_values) if whole else tuple(map(int, self.ends(start, stop)[[0, -1]]))
        found: dict[Stamp, None] = {}
        for name, bounds in {"indptr": (start, stop + 1), "indices": (lo, hi), "data": (lo, hi)}.items():
            part: Storage = getattr(self, name)
            for key, size, changed in part.stamps(*bounds):
                found[key if os.path.isabs(key) else f"{name}/{key}", size, changed] = None
        return list(found)

    @property
    def stamped(self) -> bool:
        """Whether the store says when its objects change."""
        return bool(getattr(self.data, "stamped", True))

    def filled(self) -> CsrRows:
        """Return the same rows, with the fill value in place of missing chunks, where the format may miss any."""
        parts: dict[str, Any] = {name: getattr(self, name) for name in SPARSE_PARTS}
        return replace(self, **{name: part.filled() for name, part in parts.items() if hasattr(part, "filled")})

    def describe(self) -> dict[str, Any]:
        """Return what the three arrays say of themselves, and the number of stored values."""
        parts: dict[str, Any] = {name: getattr(self, name).describe() for name in SPARSE_PARTS}
        return {"stored_values": self.stored_values, **parts}


def values_of(part: Storage, start: int, stop: int) -> NDArray[Any]:
    """Read a range of an array of one dimension."""
    if start == stop:
        return np.empty(0, part.dtype)
    values: NDArray[Any] = part.read(start, stop, (0, 1))
    return values.reshape(-1)


@dataclass(frozen=True)
class _Window:
    """Rows of an ``indptr`` in one state of its files."""

    label: str
    stamps: tuple[Stamp, ...]
    first: int
    last: int
    rows: CsrRows = field(compare=False)


def _checked_window(window: _Window) -> Places:
    """Read a part of ``indptr``.

    Raises
    ------
    CorruptedChunkError
        If it does not start at 0, decreases, or ends after the last value.
    """
    rows, first = window.rows, window.first
    stored = values_of(rows.indptr, first, window.last + 1)
    held = rows.data.array_shape[0]
    wrong = ""
    if first == 0 and stored[0] != 0:
        wrong = f"starts at {stored[0]:,}; it must start at 0"
    elif (falls := np.flatnonzero(stored[1:] < stored[:-1])).size:
        t = int(falls[0])
        wrong = f"falls from {stored[t]:,} to {stored[t + 1]:,} at row {first + t:,}; it must never decrease"
        wrong += " (32-bit integers that wrapped around?)" if stored[t + 1] < 0 else ""
    elif stored[-1] > held or stored[0] < 0:
        t = int(np.argmax((stored > held) | (stored < 0)))
        wrong = f"is {stored[t]:,} at row {first + t:,}, but there are only {held:,} stored values"
    if wrong:
        raise CorruptedChunkError(
            f"{rows.label}: indptr {wrong}. It is damaged or was not written completely: write the matrix again."
        )
    return stored.astype(np.int64, copy=False)


_held_window = lru_cache(maxsize=WINDOWS_HELD)(_checked_window)


@lru_cache(maxsize=16)
def _row_chunks(rows: CsrRows) -> tuple[int, ...]:
    """Cut rows into chunks of one size, each of at most about two pieces: 16 MiB, or up to 64 MiB if chunks are large.

    A piece has four chunks of the arrays, or one if they are larger than it, because the chunks where it begins and
    ends are decoded for its neighbours too. The size is that of the densest piece, so that what is planned for chunks
    of any density is what they take. Rows without values count too: no chunk is longer than ``WINDOW_ROWS``.
    """
    wanted = max(1, NATIVE_BYTES // rows.value_bytes)
    decoded = max(_decoded(rows.data), _decoded(rows.indices))
    piece = max(wanted, min(4 * decoded, 4 * wanted), decoded)
    n = rows.array_shape[0]
    fewest = min(n, WINDOW_ROWS)
    for first in range(0, n, WINDOW_ROWS):
        window = rows._window(first)
        fewest = fewest_rows(window, piece, fewest)
    return regular_chunks(n, fewest)


@lru_cache(maxsize=16)
def _densest(rows: CsrRows) -> float:
    chunks = np.array(rows.row_chunks())
    edges = np.concatenate([[0], np.cumsum(chunks)])
    ends = np.zeros(len(edges), np.int64)
    for first in range(0, rows.array_shape[0], WINDOW_ROWS):
        here = (edges >= first) & (edges <= first + WINDOW_ROWS)
        ends[here] = rows._window(first)[edges[here] - first]
    return densest_rows(ends, chunks)


def _decoded(part: Storage) -> int:
    """Return the values of a chunk, which are decoded together; 1 where any range can be read."""
    chunks: tuple[int, ...] | None = getattr(part, "chunks", None)
    return 1 if chunks is None else chunks[0]
