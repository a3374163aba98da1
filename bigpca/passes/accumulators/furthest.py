"""The rows with the lowest and the highest values of each column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array
from bigpca.costs import BlockForm, Work
from bigpca.passes.accumulators.base import Accumulator, Arrays
from bigpca.passes.reading.blocks import Block
from bigpca.passes.reading.layout import SLAB_ROWS

Integers = NDArray[np.int64]
Values = NDArray[np.float64]


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
    rows: Integers = field(default_factory=lambda: np.zeros((2, 0, 0), np.int64))
    values: Values = field(default_factory=lambda: np.zeros((2, 0, 0)))

    def fresh(self, start: int, stop: int) -> Furthest:
        empty = (2, self.n_columns, 0)
        return Furthest(self.n_columns, self.wanted, np.zeros(empty, np.int64), np.zeros(empty))

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

    def _joined(self, rows: Integers, values: Values) -> tuple[Integers, Values]:
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

    def to_arrays(self) -> Arrays:
        return {"rows": self.rows, "values": self.values}

    def with_arrays(self, arrays: Mapping[str, Array]) -> Furthest:
        return replace(self, rows=arrays["rows"], values=arrays["values"])

    def identity(self) -> dict[str, object]:
        return {"wanted": self.wanted}
