"""One planned read of X for a measurement: of all rows, or of chosen ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from bigpca.costs import PassCost, SolveCost
from bigpca.estimators.shared.fit import Reading
from bigpca.estimators.shared.running import running
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.kept_rows import RowsAt
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import fold, row_pass
from bigpca.passes.reading.layout import Layout, working_dtype
from bigpca.passes.rows import RowInput

State = TypeVar("State", bound=Accumulator)
ROW_FORMATS = ("npy", "npy-folder", "raw", "numpy", "scipy")  # rows are read without decoding others
MAX_SEGMENTS = 64


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
    """

    name: str
    template: State
    part: Layout | None = None

    @property
    def solver(self) -> str:
        return self.name

    @property
    def account(self) -> str:
        return "one read"

    @cached_property
    def pass_plan(self) -> PassPlan:
        """The read."""
        size, work = self.template.state_bytes, self.rows.dense_work(self.template)
        dtype = None if self.part is None else working_dtype(self.rows.dtype)
        return row_pass(self.rows, self.name, [self.template], cut_bytes=size, work=work, layout=self.part, dtype=dtype)

    def passes(self) -> tuple[PassCost, ...]:
        return (self.pass_plan,)

    def solve_cost(self) -> SolveCost:
        return SolveCost()

    def identity(self) -> dict[str, Any]:
        return {"computes": self.name, "input": self.rows.describe()}

    def read(self, run: Run) -> State:
        """Return the state."""
        unshifted = None if self.part is None else np.zeros(self.rows.n_columns)
        return fold(run, self.pass_plan, self.rows, self.template, shift=unshifted).state  # one pass over X


def read_once(
    rows: RowInput,
    template: State,
    name: str,
    *,
    memory_limit: int | str | None = None,
    progress: ProgressArgument = None,
    layout: Layout | None = None,
) -> State:
    """Fold one read of X into ``template`` and return its state.  # one pass over X

    Parameters
    ----------
    layout : Layout or None
        The rows to read, unshifted and in their own precision; None for all rows.

    Raises
    ------
    MemoryBudgetError
        Before any read, if blocks and state do not fit ``memory_limit`` (None for that of the processes).
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read; names rows and block.
    """
    resources = find_resources(memory_limit, in_process=rows.in_process)
    measurement = Measurement(rows, resources, name, template, layout)
    measurement.plan.check()
    with running(measurement, progress=progress, workers_timeout=rows.workers_timeout) as run:
        return measurement.read(run)


def read_rows(rows: RowInput, wanted: NDArray[np.int64], name: str) -> NDArray[Any]:
    """Return the rows of X at ascending row numbers, reading only these and rows stored with them.

    Formats that can be read from any row yield only the runs of wanted rows. In chunked formats and Dask arrays, each
    chunk with a wanted row is read once, from its first wanted row to its last.

    Returns
    -------
    ndarray of shape (m, d), float32 or float64
    """
    direct = rows.source is not None and rows.source.format in ROW_FORMATS
    reads = _runs(wanted) if direct else _spans(wanted, rows.row_chunks)
    # A group of a Dask array holds the values shared by its nodes until the last of them has run: one read each.
    groups = tuple(range(i, i + 1) for i in range(len(reads)))
    if direct:
        groups = tuple(range(i, min(i + 64, len(reads))) for i in range(0, len(reads), 64))
    step = -(-len(groups) // MAX_SEGMENTS)
    segments = tuple(range(i, min(i + step, len(groups))) for i in range(0, len(groups), step))
    count = sum(stop - start for start, stop in reads)
    layout = replace(rows.layout(0), n_rows=count, reads=reads, groups=groups, segments=segments)
    found = read_once(rows, RowsAt(rows.n_columns, wanted, working_dtype(rows.dtype).itemsize), name, layout=layout)
    kept = np.zeros((0, rows.n_columns)) if found.rows is None else found.rows
    return kept[np.argsort(found.indices)]


def _runs(wanted: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Return (start, stop) of each run of consecutive numbers."""
    breaks = np.flatnonzero(np.diff(wanted) > 1) + 1
    return tuple((int(run[0]), int(run[-1]) + 1) for run in np.split(wanted, breaks))


def _spans(wanted: NDArray[np.int64], row_chunks: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return (start, stop) from the first to the last wanted row of each chunk that holds one."""
    chunk = np.searchsorted(np.cumsum(row_chunks), wanted, side="right")
    breaks = np.flatnonzero(np.diff(chunk)) + 1
    return tuple((int(held[0]), int(held[-1]) + 1) for held in np.split(wanted, breaks))
