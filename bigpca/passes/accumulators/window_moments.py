"""Moments of the windows of a series, from which their covariance follows without its matrix."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from bigpca.arrays import Matrix, Vector, sum_of
from bigpca.blas import STRIP_COLUMNS, each_piece, strips_of
from bigpca.passes.accumulators.base import KEPT, kept
from bigpca.passes.accumulators.kept_rows import RowsAt
from bigpca.passes.accumulators.moments import CentredRows
from bigpca.passes.reading.blocks import Block
from bigpca.planning import BlockForm, Work


@dataclass
class WindowMoments(CentredRows):
    """Means of windows of L rows, the products of their first row with all, and the windows at the ends of runs.

    ``cross = sum_t (x_t - mean_0)(w_t - mean)'`` for windows ``w_t`` that begin with the row ``x_t``: their scatter has
    (L d)^2 entries, and block (i, j) of it is ``sum_t x_{t+i} x_{t+j}'``, block (0, j - i) of windows that begin i rows
    later. :class:`bigpca.operators.windows.WindowOperator` multiplies by it.

    Attributes
    ----------
    n_features, count, mean, weight_sums
        As of :class:`CentredRows`, of windows: L d columns.
    width : int
        Columns of the series, d.
    cross : ndarray of shape (d, L d), float64
    ends : RowsAt
        The first and the last windows of each run.
    """

    tag: ClassVar[str] = "WindowMoments"

    width: int = 0
    cross: Matrix = kept("width", "n_features")
    ends: RowsAt = field(kw_only=True, metadata=KEPT)

    def for_rows(self, start: int, stop: int) -> WindowMoments:
        return replace(self, ends=self.ends.for_rows(start, stop))

    def update(self, block: Block) -> None:
        self._begin(block)
        rows = block.values.astype(np.float64, copy=False)

        def add(strip: tuple[int, int]) -> None:
            self.cross[slice(*strip)] += rows[:, slice(*strip)].T @ rows

        each_piece(add, strips_of(self.width, STRIP_COLUMNS))
        # Unchanged, as the operator needs them about a mean that is known at the end.
        here = np.flatnonzero(np.isin(block.rows, self.ends.numbers))
        self.ends.update(replace(block, values=rows[here] + block.shift, rows=block.rows[here]))

    def close(self) -> None:
        offset = self._end()
        if offset is not None:
            self._add_outer(-self.weight, offset)

    def _add_outer(self, factor: float, e: Vector) -> None:
        self.cross += np.outer(factor * e[: self.width], e)

    def _add(self, other: WindowMoments, factor: float, e: Vector) -> None:
        self.cross, self.ends = sum_of(self.cross, other.cross), self.ends.merge(other.ends)
        self._add_outer(factor, e)

    def cost(self, rows: BlockForm) -> Work:
        held = 16 * self.width * self.n_features + 2 * self.ends.state_bytes
        held += 8 * rows.rows * self.n_features * (rows.itemsize < 8)  # in float64
        return Work(held, float(2 * self.width * self.n_features))
