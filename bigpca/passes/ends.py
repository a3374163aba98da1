"""The verb that finds the rows at both ends of each column, in one read."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.furthest import Furthest
from bigpca.passes.accumulators.kept_rows import RowsAt
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.progress import ProgressArgument, resolve_progress
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.states import PassState
from bigpca.passes.fold import fold_to, row_pass
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan, Resources

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Ends:
    """Rows with the lowest and highest values of each column, the furthest first.

    Attributes
    ----------
    lowest, highest : ndarray of shape (c, m), int64
        Numbers of the rows; m is the number asked for, or that of all rows with values if there are fewer.
    lowest_scores, highest_scores : ndarray of shape (c, m), float64
    lowest_keys, highest_keys : ndarray of shape (c, m), str, or None, default None
        Keys of those rows; None where rows have no keys.
    """

    lowest: Integers
    lowest_scores: NDArray[np.float64]
    highest: Integers
    highest_scores: NDArray[np.float64]
    lowest_keys: NDArray[np.str_] | None = None
    highest_keys: NDArray[np.str_] | None = None

    def with_keys(self, keys: NDArray[np.str_] | None) -> Ends:
        """Return the same rows with their keys, of the keys (n,) of all rows."""
        if keys is None:
            return self
        return replace(self, lowest_keys=keys[self.lowest], highest_keys=keys[self.highest])


@dataclass(frozen=True)
class EndsRead:
    """What one read found.

    Attributes
    ----------
    ends : Ends
    chosen : ndarray of shape (m, n_columns), with ``chosen_rows`` (m,)
        The chosen rows that have values, and their numbers, ascending.
    omitted : int
        Rows omitted because of missing values.
    """

    ends: Ends
    chosen: Array
    chosen_rows: Integers
    omitted: int


@dataclass(frozen=True)
class _Finish:
    """Picklable; runs where the merged state is."""

    n_columns: int

    def __call__(self, state: PassState) -> EndsRead:
        found, kept = state.part("ends", Furthest), state.part("chosen", RowsAt)
        chosen = np.zeros((0, self.n_columns)) if kept.rows is None else kept.rows
        order = np.argsort(kept.indices)
        ends = Ends(found.rows[0], found.values[0], found.rows[1], -found.values[1])
        return EndsRead(ends, chosen[order], kept.indices[order], state.omitted)


def read_ends(
    rows: RowInput,
    n: int,
    *,
    columns: int | None = None,
    chosen: Integers | None = None,
    memory_limit: int | str | None = None,
    progress: ProgressArgument = None,
) -> EndsRead:
    """Return the n rows with the lowest and the n with the highest values of each column, and chosen rows: one read.

    Parameters
    ----------
    rows : RowInput
        Rows of n_columns numbers, after the maps. With ``nan_policy="omit"``, rows with NaN are at no end.
    columns : int or None
        c, the leading columns whose ends are wanted, at most n_columns; None for all.
    chosen : ndarray of int64, ascending, or None
        Numbers of further rows to return.

    Raises
    ------
    MemoryBudgetError
        Before any read, if the blocks do not fit.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read; names rows and block.
    """
    width = rows.n_columns
    wanted = np.zeros(0, np.int64) if chosen is None else chosen
    templates: dict[str, Accumulator] = {
        "ends": Furthest(min(width, columns or width), n),
        "chosen": RowsAt(width, wanted),
    }
    size, work = sum(one.state_bytes for one in templates.values()), float(rows.n_rows) * 16 * width
    cost = row_pass(
        rows, "ends of the columns", templates.values(), cut_bytes=size, work=work, dtype=working_dtype(rows.dtype)
    )
    plan = _plan(cost, find_resources(memory_limit, in_process=rows.in_process))
    plan.check()
    with resolve_progress(progress) as report:
        run = Run(None, report, rows.workers_timeout, "local" if rows.in_process else None, plan.peak_bytes)
        return fold_to(run, cost, rows, templates, _Finish(width), shift=np.zeros(width))  # one pass over X


def _plan(cost: PassPlan, resources: Resources) -> Plan:
    return Plan(
        solver=cost.name,
        reason="one read",
        passes=1,
        bytes_read=cost.bytes_read,
        flops=cost.flops,
        tasks=cost.tasks,
        state_bytes=cost.state_bytes,
        block_rows=cost.block_rows,
        peak_bytes=cost.peak_bytes,
        output_bytes=0,
        resources=resources,
    )
