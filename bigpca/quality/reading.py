"""One planned read of X for a measurement: of all rows, or of chosen ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.engine.jobs import RunOptions
from bigpca.passes.engine.progress import ProgressArgument, resolve_progress
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.engine.states import PassState
from bigpca.passes.fold import fold
from bigpca.passes.reading.layout import Layout, working_dtype
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan, peak_bytes
from bigpca.quality.states import ChosenRows

State = TypeVar("State", bound=Accumulator)
ROW_FORMATS = ("npy", "npy-folder", "raw", "numpy")  # formats in which a row can be read without decoding others
MAX_SEGMENTS = 64


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
        Which rows to read, unshifted and in their own precision; None for all.

    Raises
    ------
    MemoryBudgetError
        Before any read, if blocks and state do not fit ``memory_limit`` (None for that of the processes).
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read; names rows and block.
    """
    chosen = layout or rows.layout(template.state_bytes)
    plan_read(rows, template, name, chosen, memory_limit).check()
    with resolve_progress(progress) as report:
        options = RunOptions(progress=report, scheduler="local" if rows.in_process else None)
        unshifted = None if layout is None else np.zeros(rows.n_columns)
        dtype = None if layout is None else working_dtype(rows.dtype)
        state: State = fold(
            rows, {"state": template}, _take, name=name, number=1, options=options,
            shift=unshifted, layout=chosen, dtype=dtype,
        )  # fmt: skip
    return state


def _take(state: PassState) -> Accumulator:
    return state.parts["state"]


def plan_read(rows: RowInput, template: Accumulator, name: str, layout: Layout, memory_limit: int | str | None) -> Plan:
    """Return the cost of one read that is folded into ``template``."""
    n, d = layout.n_rows, rows.n_columns
    block_rows = min(layout.slab_rows, layout.read_rows)
    read = layout.read_rows * d * rows.dtype.itemsize
    copied = 8 * block_rows * d  # in float64 at most
    return Plan(
        solver=name,
        reason="one read",
        passes=n / max(1, rows.n_rows),
        bytes_read=n * d * rows.dtype.itemsize,
        flops=float(n) * template.flops_per_row,
        tasks=2 * len(layout.groups),
        state_bytes=template.state_bytes,
        block_rows=block_rows,
        peak_bytes=peak_bytes(read, copied, template.product_bytes, template.state_bytes),
        output_bytes=0,
        resources=find_resources(memory_limit, in_process=rows.in_process),
    )


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
    template = ChosenRows(rows.n_columns, wanted, working_dtype(rows.dtype).str)
    return read_once(rows, template, name, layout=layout).matrix()


def _runs(wanted: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Return (start, stop) of each run of consecutive numbers."""
    breaks = np.flatnonzero(np.diff(wanted) > 1) + 1
    return tuple((int(run[0]), int(run[-1]) + 1) for run in np.split(wanted, breaks))


def _spans(wanted: NDArray[np.int64], row_chunks: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return (start, stop) from the first to the last wanted row of each chunk that holds one."""
    chunk = np.searchsorted(np.cumsum(row_chunks), wanted, side="right")
    breaks = np.flatnonzero(np.diff(chunk)) + 1
    return tuple((int(held[0]), int(held[-1]) + 1) for held in np.split(wanted, breaks))
