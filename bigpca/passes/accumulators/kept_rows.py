"""States that keep rows: those with given numbers, a sample, all of them, the ends of each column, or their sums."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from bigpca.arrays import Array, Integers, Matrix, Vector
from bigpca.costs import BlockForm, Work
from bigpca.engine.layout import SLAB_ROWS
from bigpca.forms import Values
from bigpca.passes.accumulators.base import KEPT, PARAMETER, Accumulator, kept
from bigpca.passes.reading.blocks import Block

MOST_SUMS = 2**22  # that differ, 64 MiB of them: cells have far fewer counts than that, so that n sets no memory


@dataclass
class RowsAt(Accumulator):
    """The rows with given numbers, unchanged but dense; weights do not matter except that rows of weight 0 are absent.

    Attributes
    ----------
    n_features : int
    numbers : ndarray of shape (m,), int64, ascending
    rows : ndarray of shape (found, d), with ``indices`` (found,), ascending: their numbers
        Rows found so far; None if there are none.
    """

    tag: ClassVar[str] = "RowsAt"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr", "weights"})

    n_features: int
    numbers: Integers = field(metadata=PARAMETER)
    itemsize: int = 8
    rows: Array | None = kept(default=None)
    indices: Integers = field(default_factory=lambda: np.zeros(0, np.int64), metadata=KEPT)

    def for_rows(self, start: int, stop: int) -> RowsAt:
        first, last = np.searchsorted(self.numbers, [start, stop])
        return replace(self, numbers=self.numbers[first:last])

    def update(self, block: Block) -> None:
        here = np.flatnonzero(np.isin(block.rows, self.numbers))
        if len(here):
            self._append(block.form.dense(block.values[here]), block.rows[here])

    def _append(self, rows: Array, indices: Integers) -> None:
        if self.rows is not None:
            rows, indices = np.concatenate([self.rows, rows]), np.concatenate([self.indices, indices])
        self.rows, self.indices = rows, indices

    def merge(self, other: RowsAt) -> RowsAt:
        merged = replace(self, numbers=np.concatenate([self.numbers, other.numbers]))
        if other.rows is not None:
            merged._append(other.rows, other.indices)
        return merged

    def found(self) -> tuple[Integers, Array]:
        """Return the numbers (found,) of the rows, ascending, and the rows."""
        rows = np.zeros((0, self.n_features)) if self.rows is None else self.rows
        order = np.argsort(self.indices)
        return self.indices[order], rows[order]

    @property
    def state_bytes(self) -> int:
        return len(self.numbers) * (self.n_features * self.itemsize + 8)

    def cost(self, rows: BlockForm) -> Work:
        return Work(2 * self.state_bytes, 1.0)

    def device_bytes(self, rows: BlockForm) -> int:
        return 0


@dataclass
class RowSample(Accumulator):
    """The rows of a sample, or all rows, unchanged; weights do not matter except that rows of weight 0 are absent.

    Attributes
    ----------
    n_features, wanted : int
        Number of columns, and number of rows of the whole sample.
    row_bytes : float
        Of a row; of sparse rows, on average.
    pieces : dict of first row to ndarray or csr_array of shape (rows, d)
    """

    tag: ClassVar[str] = "RowSample"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr", "weights"})

    n_features: int
    wanted: int
    row_bytes: float
    pieces: dict[int, Values] = field(default_factory=dict, metadata=KEPT)

    def update(self, block: Block) -> None:
        self.pieces[int(block.rows[0])] = block.values

    def rows(self) -> list[Values]:
        """The pieces in order of rows."""
        return [self.pieces[first] for first in sorted(self.pieces)]

    @property
    def state_bytes(self) -> int:
        return math.ceil(self.wanted * self.row_bytes)

    def cost(self, rows: BlockForm) -> Work:
        return Work(0, self.wanted * rows.values)  # of one triangle of their dot products


@dataclass
class Furthest(Accumulator):
    """The rows at both ends of each leading column, the furthest first (folded about a shift of zero).

    Of equal values the first rows are kept, so that the result depends on no order of merging.

    Attributes
    ----------
    n_columns, wanted : int
        c, the leading columns; and how many rows are kept at each end.
    rows : ndarray of shape (2, c, m), int64
        Numbers of the rows with the lowest values, and with the highest.
    values : ndarray of shape (2, c, m), float64, ascending
        The lowest values, and the highest with their signs changed.
    """

    tag: ClassVar[str] = "Furthest"

    n_columns: int
    wanted: int
    rows: Integers = field(default_factory=lambda: np.zeros((2, 0, 0), np.int64), metadata=KEPT)
    values: Matrix = field(default_factory=lambda: np.zeros((2, 0, 0)), metadata=KEPT)

    def fresh(self, start: int, stop: int) -> Furthest:
        empty = (2, self.n_columns, 0)  # as many rows as were found, at most those wanted
        return replace(self, rows=np.zeros(empty, np.int64), values=np.zeros(empty))

    def update(self, block: Block) -> None:
        for start in range(0, block.count, SLAB_ROWS):
            self._add(block.values[start : start + SLAB_ROWS], block.rows[start : start + SLAB_ROWS])

    def _add(self, values: Array, numbers: Integers) -> None:
        columns = values[:, : self.n_columns].astype(np.float64).T  # (c, b)
        ends, m = np.stack([columns, -columns]), min(self.wanted, len(values))
        limits = np.partition(ends, m - 1, axis=2)[:, :, m - 1]
        rows, lowest = np.empty((2, self.n_columns, m), np.int64), np.empty((2, self.n_columns, m))
        for place in np.ndindex(limits.shape):
            near = np.flatnonzero(ends[place] <= limits[place])  # with all ties, in the order of rows
            near = near[np.argsort(ends[place][near], kind="stable")[:m]]
            rows[place], lowest[place] = numbers[near], ends[place][near]
        self.rows, self.values = self._joined(rows, lowest)

    def _joined(self, rows: Integers, values: Matrix) -> tuple[Integers, Matrix]:
        rows, values = np.concatenate([self.rows, rows], axis=2), np.concatenate([self.values, values], axis=2)
        order = np.lexsort((rows, values), axis=2)[:, :, : self.wanted]
        return np.take_along_axis(rows, order, axis=2), np.take_along_axis(values, order, axis=2)

    def merge(self, other: Furthest) -> Furthest:
        if not self.rows.size or not other.rows.size:
            return self if self.rows.size else other
        rows, values = self._joined(other.rows, other.values)
        return replace(self, rows=rows, values=values)

    @property
    def state_bytes(self) -> int:
        return 32 * self.n_columns * self.wanted

    def cost(self, rows: BlockForm) -> Work:
        return Work(3 * 16 * self.n_columns * SLAB_ROWS + 2 * self.state_bytes, 16.0 * self.n_columns)


@dataclass
class RowTotals(Accumulator):
    """The sums of the rows that are above zero (folded about a shift of zero), and the weights of their rows.

    Sums of counts are integers with few different values, so many rows take little memory: at most that of
    ``MOST_SUMS``. If more differ, a ValueError says to pass a target.

    Attributes
    ----------
    most_bytes : int
        Of the state of all rows, if all sums differ and all are kept.
    sums : ndarray of shape (m,), float64, ascending
    weights : ndarray of shape (m,), float64
        Sum of the weights of the rows with each sum: their number, if rows are not weighted.
    """

    tag: ClassVar[str] = "RowTotals"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr", "weights"})

    most_bytes: int
    sums: Vector = field(default_factory=lambda: np.zeros(0), metadata=KEPT)
    weights: Vector = field(default_factory=lambda: np.zeros(0), metadata=KEPT)

    @property
    def median(self) -> float:
        """The median of the sums above zero; a row of weight w counts w times.

        Raises
        ------
        ValueError
            If no row has a sum above zero.
        """
        if not len(self.sums):
            raise ValueError("no row has a sum above zero, so there is no median. Rows of counts were expected.")
        ends = np.cumsum(self.weights)
        middle = [int(np.searchsorted(ends, ends[-1] / 2, side)) for side in ("left", "right")]
        return float(self.sums[middle].mean())

    def update(self, block: Block) -> None:
        totals = block.form.along_rows(block.values, np.add, np.float64)
        above = totals > 0
        self._add(totals[above], block.each[above])

    def _add(self, sums: Vector, weights: Vector) -> None:
        # A count of every sum that occurs is all that an exact median needs, and merges as a sum does.
        self.sums, places = np.unique(np.concatenate([self.sums, sums]), return_inverse=True)
        if len(self.sums) > MOST_SUMS:
            raise ValueError(
                f"more than {MOST_SUMS:,} sums of rows differ, but counts, whose sums are integers, were expected; the "
                "median is exact and needs all of them. Pass a target: bp.preprocessing.NormalizeTotal(1e4), or "
                "target_sum=1e4."
            )
        both = np.concatenate([self.weights, weights])
        self.weights = np.bincount(places, both, len(self.sums)).astype(np.float64, copy=False)

    def merge(self, other: RowTotals) -> RowTotals:
        merged = replace(self)
        merged._add(other.sums, other.weights)
        return merged

    @property
    def state_bytes(self) -> int:
        return min(self.most_bytes, 16 * MOST_SUMS)

    def cost(self, rows: BlockForm) -> Work:
        return Work(0, rows.values)
