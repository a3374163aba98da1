"""What there is in each column of rows with missing values: its weight, and the mean; and the reads that found it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.costs import BlockForm, Work
from bigpca.engine.planning import PassCost
from bigpca.forms import cached_rows
from bigpca.passes.accumulators.base import Accumulator, kept
from bigpca.passes.reading.blocks import Block


@dataclass
class ObservedColumns(Accumulator):
    """Weight and mean of the values of every column that are not NaN.

    Sums are about the shift of a group; groups merge by the difference of their means, column by column.

    Attributes
    ----------
    n_features : int
    totals : ndarray of shape (3,), float64
        Number of rows, sum of their weights, and number of rows without any value.
    weights : ndarray of shape (d,), float64
        Sum of the weights of the values that are there: their number, if rows are not weighted.
    means : ndarray of shape (d,), float64
        0 for columns without values.
    """

    tag: ClassVar[str] = "ObservedColumns"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights", "nan"})

    n_features: int
    totals: NDArray[np.float64] = kept(3)
    weights: NDArray[np.float64] = kept("n_features")
    means: NDArray[np.float64] = kept("n_features")
    _shift: NDArray[np.float64] | None = field(default=None, repr=False)

    @property
    def absent(self) -> NDArray[np.bool_]:
        """Which columns (d,) have no value."""
        absent: NDArray[np.bool_] = self.weights == 0
        return absent

    def columns(self, kept: NDArray[np.int64]) -> ObservedColumns:
        """Return the same of some columns."""
        return ObservedColumns(len(kept), self.totals, self.weights[kept], self.means[kept])

    @property
    def missing_share(self) -> float:
        """Share of the entries that are missing, by weight."""
        whole = self.totals[1] * self.n_features
        return float(1 - self.weights.sum() / whole) if whole else 0.0

    def update(self, block: Block) -> None:
        self._shift = block.shift
        values = np.asarray(block.values)
        own = np.ones(len(values)) if block.weights is None else block.weights
        step = cached_rows(8 * max(1, self.n_features))
        for i in range(0, len(values), step):
            strip, w = values[i : i + step].astype(np.float64), own[i : i + step]
            missing = np.isnan(strip)
            strip[missing] = 0
            self.weights += w @ ~missing
            self.means += w @ strip  # sums about the shift, until the state is closed
            self.totals += [len(strip), w.sum(), np.count_nonzero(missing.all(axis=1))]

    def close(self) -> None:
        if self._shift is not None:
            there = self.weights > 0
            self.means = np.where(there, self._shift + self.means / np.where(there, self.weights, 1), 0.0)
            self._shift = None

    def merge(self, other: ObservedColumns) -> ObservedColumns:
        weights = self.weights + other.weights
        share = other.weights / np.where(weights > 0, weights, 1)
        means = np.where(self.weights > 0, self.means + (other.means - self.means) * share, other.means)
        return ObservedColumns(self.n_features, self.totals + other.totals, weights, means)

    def cost(self, rows: BlockForm) -> Work:
        return Work(0, 4.0 * self.n_features)


@dataclass(frozen=True)
class ColumnSearch:
    """The reads, before those of a fit, that find which columns have values: a fit counts them with its own.

    Attributes
    ----------
    costs : tuple of PassCost
        As often as they are declared or, once they are done, as often as they were made.
    found : ObservedColumns or None
        What there is in the columns that have values, in all rows; None if not all were read.
    """

    costs: tuple[PassCost, ...]
    found: ObservedColumns | None = None
