"""Base of the sparse sketches: a few entries of W per column of X, applied in O(nonzeros)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array

from bigpca import csr
from bigpca.costs import BlockForm, Work
from bigpca.sketches.base import Matrix, RandomSketch, spans

# Columns and rows of X that are transposed at a time. The sparse product streams through such a tile while its (q, 16)
# result stays in cache. Measured on 200 x 100,352 float32, q = 2,000: more rows are slower, especially if d is a
# multiple of 1,024.
TILE_COLUMNS, TILE_ROWS = 8192, 16
COLUMN_SECONDS, ENTRY_SECONDS = 2.5e-10, 3e-11  # of one core, per byte of a dense row: to transpose it, for each entry


@dataclass(frozen=True)
class SparseSketch(RandomSketch):
    """W with ``entries`` entries +-1/sqrt(entries) in each of its rows.

    A tile of X is transposed and multiplied from the left by a tile of W', so each number of X is read once and added
    to whole runs of rows. Costs 2 d entries flops per row, for any q.
    """

    _multiplies_csr: ClassVar[bool] = True

    @property
    @abstractmethod
    def entries(self) -> int:
        """Entries of W per column of X."""

    @abstractmethod
    def _entries_of(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Return positions in [0, q) and signs, (stop - start, entries) each, for columns ``start:stop`` of X."""

    def _rows(self, d: int, start: int, stop: int) -> Matrix:
        rows = np.zeros((stop - start, self.q))
        for first, last in spans(stop - start, TILE_COLUMNS):
            positions, signs = self._entries_of(start + first, start + last)
            np.add.at(rows, (np.arange(first, last)[:, None], positions), signs)  # colliding hashes add up
        rows /= np.sqrt(self.entries)
        return rows

    def _parts(self, d: int, dtype: np.dtype[Any]) -> Iterator[csc_array]:
        for start, stop in spans(d, TILE_COLUMNS):
            positions, signs = self._entries_of(start, stop)
            ends = np.arange(0, positions.size + 1, self.entries, dtype=np.int32)
            values, indices = signs.ravel().astype(dtype), positions.ravel().astype(np.int32)
            yield csc_array((values, indices, ends), shape=(self.q, stop - start))

    def _part_bytes(self, d: int, itemsize: int) -> tuple[int, int]:
        tiles = -(-d // TILE_COLUMNS)
        building = min(d, TILE_COLUMNS) * self.entries * 32  # positions, signs, their copies, and random numbers
        return d * (self.entries * (itemsize + 4) + 4) + 4096 * tiles, building

    def _apply(self, rows: NDArray[Any], parts: Iterable[csc_array], out: NDArray[Any]) -> None:
        start = 0
        out[...] = 0
        for part in parts:
            stop = start + part.shape[1]
            for first, last in spans(len(rows), TILE_ROWS):
                tile = np.ascontiguousarray(rows[first:last, start:stop].T)  # (columns, rows)
                out[first:last] += (part @ tile).T
            start = stop
        # Entries are cached as +-1, exact in both precisions.
        np.multiply(out, out.dtype.type(1 / np.sqrt(self.entries)), out=out)

    def _apply_csr(self, rows: csr_array, parts: Iterable[csc_array], out: NDArray[Any]) -> None:
        start = 0
        out[...] = 0
        for part in parts:
            stop = start + part.shape[1]
            own = rows if part.shape[1] == rows.shape[1] else rows[:, start:stop]
            csr.add_sparse_product(own, part.T, out)
            start = stop
        np.multiply(out, out.dtype.type(1 / np.sqrt(self.entries)), out=out)

    def _work(self, rows: BlockForm) -> Work:
        if rows.sparse:
            return csr.sparse_product_work(rows, self.entries)
        flops, terms = csr.sparse_product_flops(rows, self.entries), COLUMN_SECONDS + ENTRY_SECONDS * self.entries
        return Work(0, flops, flops, rows.columns * rows.itemsize * terms)

    def _scratch_bytes(self, rows: BlockForm) -> int:
        tile = 2 * min(rows.rows, TILE_ROWS) * (min(rows.columns, TILE_COLUMNS) + self.q) * rows.itemsize
        cut = rows.sparse and rows.columns > TILE_COLUMNS
        return tile + (int(2 * rows.rows * rows.values * (rows.itemsize + 4)) if cut else 0)
