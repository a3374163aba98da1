"""One planned read of new rows for what a fitted model, or a measure of quality, says of all of them.

Their likelihood, the share that is classified correctly, quantiles of their statistics: numbers, or a few arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

import numpy as np

from bigpca.arrays import DType, working_dtype
from bigpca.estimators.shared.fit import Reading, running
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.labelled import naming_places
from bigpca.estimators.shared.opening import fitted_preprocessors, open_like, rows_of_fit
from bigpca.estimators.shared.sklearn_bases import BaseEstimator
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.engine.events import ProgressArgument
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import fold, row_pass
from bigpca.passes.reading.row_maps import MapStep, RowMap
from bigpca.passes.rows import Rows, naming_sides, warn_repeats
from bigpca.planning import Layout, PassCost

State = TypeVar("State", bound=Accumulator)


def rows_like(model: BaseEstimator, X: Unchecked, weights: Unchecked = None) -> Rows:
    """Return new rows as those of the fit were read: opened, preprocessed, and left out by the same policies.

    Raises
    ------
    TypeError, ValueError
        As :func:`bigpca.estimators.shared.opening.open_like` and ``fitted_preprocessors``, and for weights.
    """
    fitted_preprocessors(model)  # which rejects others than those of the fit
    return rows_of_fit(model, open_like(model, X).weighted(weights))


def read_mapped(rows: Rows, f: RowMap, template: State, name: str, *, width: int = 1, flops: int = 0) -> State:
    """Fold ``f`` of rows, of ``width`` numbers, about zero into ``template``, in one read: as f maps rows for outputs.

    Raises as :func:`read_once`.
    """
    mapped = rows.mapped(MapStep(f, width, flops))
    return read_once(mapped, template, name, dtype=working_dtype(rows.dtype), about_zero=True)


@dataclass(frozen=True)
class Measurement(Reading, Generic[State]):
    """One read that is folded into an accumulator.

    Attributes
    ----------
    solver : str
        Name of the read.
    template : Accumulator
    part : Layout or None
        The rows that are read, unshifted and in their own precision; None for all rows.
    dtype : numpy.dtype or None
        Of the products; None chooses by their number.
    about_zero : bool
        Whether rows are unshifted, so that sums of integers are exact.
    """

    reads: ClassVar[tuple[str, ...]] = ("pass_plan",)
    depends_on: ClassVar[tuple[str, ...]] = ("name",)
    account: ClassVar[str] = "one read"

    name: str
    template: State
    part: Layout | None = None
    dtype: DType | None = None
    about_zero: bool = False

    @property
    def solver(self) -> str:
        return self.name

    @cached_property
    def pass_plan(self) -> PassCost:
        """The read."""
        dtype = self.dtype if self.part is None else working_dtype(self.rows.dtype)
        return row_pass(self.rows, self.name, [self.template], layout=self.part, dtype=dtype)

    def read(self, run: Run) -> State:
        """Return the state."""
        unshifted = np.zeros(self.rows.n_columns) if self.about_zero or self.part is not None else None
        return fold(run, self.pass_plan, self.rows, self.template, shift=unshifted).state  # one pass over X


def read_once(
    rows: Rows,
    template: State,
    name: str,
    *,
    progress: ProgressArgument = None,
    layout: Layout | None = None,
    dtype: DType | None = None,
    about_zero: bool = False,
) -> State:
    """Fold one read of X into ``template`` and return its state.  # one pass over X

    Parameters
    ----------
    layout : Layout or None
        The rows to read, unshifted and in their own precision; None for all rows.
    dtype : numpy.dtype or None
        Of the products; None chooses by their number.
    about_zero : bool
        Whether rows are unshifted.

    Raises
    ------
    MemoryBudgetError
        Before any read, if blocks and state do not fit.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read; names rows and block.
    """
    measurement, labels = Measurement(rows, name, template, layout, dtype, about_zero), rows.origin.labels
    named = naming_sides(rows.widths, "XYZ") if labels is None else naming_places(labels)
    with named, running(measurement, progress=progress) as run:
        warn_repeats(rows.origin)
        return measurement.read(run)
