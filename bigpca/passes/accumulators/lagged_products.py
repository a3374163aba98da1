"""Products of the rows of a series with those at lags after them, from which the covariance of its windows follows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from bigpca.arrays import Array, Integers, Matrix, Vector
from bigpca.blas import STRIP_COLUMNS, each_piece, strips_of
from bigpca.passes.accumulators.base import KEPT, kept
from bigpca.passes.accumulators.kept_rows import RowsAt
from bigpca.passes.accumulators.stepped_moments import PairedRows
from bigpca.passes.reading.blocks import Block
from bigpca.planning import BlockForm, Work


@dataclass
class LaggedProducts(PairedRows):
    """Products ``sum_t (x_t - mean)(x_{t+lag} - mean)'`` over the pairs at each lag, and the rows at the ends of runs.

    The first lag is 0. The scatter of windows of L rows has (L d)^2 entries, and block (i, j) of it is the product at
    lag j - i, less the pairs that are in no such windows: those of rows at the ends of runs.
    :class:`bigpca.operators.windows.WindowOperator` multiplies by it.

    Attributes
    ----------
    n_features, lags, count, ...
        As of :class:`PairedRows`.
    runs : ndarray of int
        Number of the row before which each run of rows ends: those of these rows. It is the code of the run.
    mean : ndarray of shape (d,)
        Of all rows.
    pairs : ndarray of shape (l,)
        Their numbers at each lag.
    earlier, later : ndarray of shape (l, d)
        Sums of ``x_t - mean`` and of ``x_{t+lag} - mean`` over pairs.
    cross : ndarray of shape (l, d, d)
    margins : RowsAt
        The rows at the ends of runs, unchanged.
    """

    tag: ClassVar[str] = "LaggedProducts"

    mean: Vector = kept("n_features")
    pairs: Vector = kept("n_lags")
    earlier: Matrix = kept("n_lags", "n_features")
    later: Matrix = kept("n_lags", "n_features")
    cross: Array = kept("n_lags", "n_features", "n_features")
    margins: RowsAt = field(kw_only=True, metadata=KEPT)
    runs: Integers = field(kw_only=True)

    @property
    def n_lags(self) -> int:
        """l."""
        return len(self.lags)

    def for_rows(self, start: int, stop: int) -> LaggedProducts:
        own = slice(np.searchsorted(self.runs, start, "right"), np.searchsorted(self.runs, stop) + 1)
        return replace(self, margins=self.margins.for_rows(start, stop), runs=self.runs[own])

    def _codes_of(self, numbers: Integers) -> Vector:
        return self.runs[np.searchsorted(self.runs, numbers, "right")].astype(np.float64)

    def _add_rows(self, block: Block) -> None:
        self.mean = block.shift.astype(np.float64)  # that of the group, until it is closed
        here = np.flatnonzero(np.isin(block.rows, self.margins.numbers))
        self.margins.update(replace(block, values=block.values[here] + self.mean, rows=block.rows[here]))

    def _add_pairs(self, i: int, earlier: Matrix, later: Matrix, block: Block | None = None) -> None:
        def add(strip: tuple[int, int]) -> None:
            self.cross[i, slice(*strip)] += earlier[:, slice(*strip)].T @ later

        each_piece(add, strips_of(self.n_features, STRIP_COLUMNS))
        self.pairs[i] += len(earlier)
        self.earlier[i] += earlier.sum(axis=0)
        self.later[i] += later.sum(axis=0)

    def _add_across(self, i: int, earlier: Matrix, later: Matrix) -> None:
        self._add_pairs(i, earlier - self.mean, later - self.mean)

    def close(self) -> None:
        super().close()
        if self.count:
            mean = self.mean + self.earlier[0] / self.pairs[0]
            (self.earlier, self.later), self.mean = self._moved(mean, self.cross), mean

    def _moved(self, mean: Vector, cross: Array) -> tuple[Matrix, Matrix]:
        """Return the sums of rows about another mean, and add to products what they change by."""
        # With e = old mean - new:  sum (x + e)(y + e)' = sum x y' + (sum x) e' + e (sum y + n e)'.
        e = self.mean - mean
        moved = self.pairs[:, None] * e
        for total, x, y in zip(cross, self.earlier, self.later + moved, strict=True):
            total += np.outer(x, e) + np.outer(e, y)
        return self.earlier + moved, self.later + moved

    def _merged(self, other: LaggedProducts) -> LaggedProducts:
        pairs, cross = self.pairs + other.pairs, self.cross + other.cross
        mean = self.mean + (other.mean - self.mean) * (other.pairs[0] / pairs[0])
        (earlier, later), (x, y) = (one._moved(mean, cross) for one in (self, other))
        margins = self.margins.merge(other.margins)
        return replace(self, mean=mean, pairs=pairs, earlier=earlier + x, later=later + y, cross=cross, margins=margins)

    def cost(self, rows: BlockForm) -> Work:
        d = self.n_features
        # Rows in float64, after the last ones, and pairs; a product; and the rows at ends, which are concatenated.
        held = 8 * (d + 4) * (4 * rows.rows + 2 * self.reach) + 16 * d * d + 2 * self.margins.state_bytes
        return Work(held, float(2 * self.n_lags * d * d))
