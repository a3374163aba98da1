"""PCA of the windows of a series by sums of one read, where their covariance matrix does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, cast

import numpy as np

from bigpca.arrays import Integers
from bigpca.data.lags import LaggedRows
from bigpca.data.sources import open_source
from bigpca.estimators.linear.krylov import KrylovFit, size_iteration
from bigpca.estimators.linear.spectrum import PCAResult, Settings
from bigpca.operators.base import PROBES
from bigpca.operators.windows import WindowOperator, window_bytes, window_flops
from bigpca.passes.accumulators.kept_rows import RowsAt
from bigpca.passes.accumulators.lagged_products import LaggedProducts
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import fold, row_pass
from bigpca.passes.reading.blocks import PRECISE
from bigpca.passes.rows import Origin, Rows
from bigpca.planning import PassCost, SolveCost

PRODUCTS = 6  # that are expected, where no sample of the rows gives the first block


@dataclass(frozen=True)
class WindowsFit(KrylovFit):
    """One read for sums of the windows of a series; the iteration multiplies by the matrix that follows from them."""

    reads: ClassVar[tuple[str, ...]] = ("sums",)
    depends_on: ClassVar[tuple[str, ...]] = ("template",)

    @classmethod
    def choices(cls, rows: Rows, settings: Settings) -> Sequence[WindowsFit]:
        """Return the fit with each basis, the largest first; products from memory are not reads."""
        sizes = size_iteration(rows, replace(settings, max_passes=None))
        return [cls(rows, settings, size) for size in sizes]

    @property
    def windows(self) -> LaggedRows:
        """The windows."""
        return cast("LaggedRows", self.rows.source)

    @property
    def account(self) -> str:
        L, d = self.template.n_lags, self.template.n_features
        return (
            f"one read for the {L} {d} x {d} blocks of a block Toeplitz matrix, and block Krylov in memory, "
            f"{self.iteration.block} columns at a time, until the eigenvalues are known to {self.settings.tol:g}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return (self.iteration.note,)

    @cached_property
    def series(self) -> Rows:
        """The rows that the windows are cut from."""
        return replace(self.rows, origin=Origin.of(open_source(self.windows.series), lazy=self.rows.origin.lazy))

    @cached_property
    def ends(self) -> tuple[Integers, Integers]:
        """The first and the last rows of each run, which do not occur at every position of a window."""
        return self.windows.series.ends_of_runs(self.windows.reach)

    @cached_property
    def template(self) -> LaggedProducts:
        """The empty sums."""
        d, lags = self.series.n_columns, tuple(range(0, self.windows.reach + 1, cast("int", self.windows.step)))
        margins = RowsAt(d, np.unique(np.concatenate(self.ends)))
        return LaggedProducts(d, lags, margins=margins, runs=self.windows.series.ends)

    @cached_property
    def sums(self) -> PassCost:
        """The read."""
        return row_pass(self.series, "sums", [self.template], dtype=PRECISE)

    def solve_cost(self) -> SolveCost:
        d, lags = self.template.n_features, self.template.n_lags
        sizes = lags * d, d, sum(map(len, self.ends)) // (lags - 1)
        held = self.template.state_bytes + window_bytes(*sizes) + self.iteration.basis_bytes
        multiplied = PRODUCTS * window_flops(*sizes, self.iteration.block + PROBES)
        return replace(self.solve_after(PRODUCTS), flops=multiplied, bytes=held)

    def run(self, run: Run) -> PCAResult:
        """Read the sums, and iterate until the eigenvalues are known to ``tol``."""
        state = fold(run, self.sums, self.series, self.template).state  # one pass over X
        own = self.settings
        # The matrix, and not the rows, is multiplied from here on.
        operator = WindowOperator(
            state,
            *self.ends,
            self.windows.lags,
            center=own.center,
            scale=own.scale,
            seed=own.seed,
            threads=own.solve_threads,
        )
        return self._iterated(run, operator, None)
