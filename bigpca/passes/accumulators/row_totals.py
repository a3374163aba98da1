"""The sums of the rows: each sum that occurs, and how often."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from bigpca.arrays import Vector
from bigpca.costs import BlockForm, Work
from bigpca.passes.accumulators.base import KEPT, Accumulator
from bigpca.passes.reading.blocks import Block

MOST_SUMS = 2**22  # that differ, 64 MiB of them: cells have far fewer counts than that, so that n sets no memory


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
        weights = np.ones(len(totals)) if block.weights is None else block.weights
        self._add(totals[above], weights[above])

    def _add(self, sums: Vector, weights: Vector) -> None:
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
