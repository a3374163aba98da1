"""The verb of one read: accumulators are fed all rows, group by group, and merged in a fixed tree.

One task reads several consecutive chunks, slab by slab with one read ahead, and reduces them to ONE state; a raw chunk is
never a task's result, because queuing and spilling do not bound memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import one_blas_thread, solve_paused
from bigpca.data.rounding import note_rounded
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.engine.cancel import check_cancelled
from bigpca.passes.engine.driver import run_pass
from bigpca.passes.engine.jobs import SHARED, Finish, GroupTask, Pass, RunOptions
from bigpca.passes.engine.states import PassState
from bigpca.passes.reading.blocks import Block, group_shift, prepare_block, product_dtype
from bigpca.passes.reading.layout import Layout, working_dtype
from bigpca.passes.reading.readers import GraphReader, Reader, read_ahead
from bigpca.passes.rows import RowInput

SHIFT = "bigpca-shift"  # the key of the shift of all rows in what groups share


def row_cutter(
    rows: RowInput,
    layout: Layout,
    templates: dict[str, Accumulator],
    stamp_of: Callable[[int], str],
    dtype: np.dtype[Any] | None = None,
) -> Callable[[int], tuple[GroupTask, Mapping[Any, Any]]]:
    """Return the function that makes the task of one group."""
    dtype = dtype or product_dtype(rows.dtype, layout.n_rows * sum(a.flops_per_row for a in templates.values()))

    def cut(group: int) -> tuple[GroupTask, Mapping[Any, Any]]:
        start, stop = layout.rows_of(group)
        reads = tuple(layout.reads[i] for i in layout.groups[group])
        reader, futures = rows.reader(start, stop)
        own = {name: a.for_rows(start, stop).without_shared() for name, a in templates.items()}
        stamp = stamp_of(group)
        task = FoldGroup(group, reader, reads, layout.slab_rows, dtype, rows.nan_policy, own, stamp)
        return task, futures

    return cut


def fold(
    rows: RowInput,
    accumulators: dict[str, Accumulator],
    finish: Finish,
    *,
    name: str,
    number: int,
    options: RunOptions,
    shift: NDArray[np.float64] | None = None,
    layout: Layout | None = None,
    dtype: np.dtype[Any] | None = None,
) -> Any:
    """Fold one read of X into accumulators and return ``finish(state)``.

    Parameters
    ----------
    rows : RowInput
    accumulators : dict of str to Accumulator
        Templates; all share the read.
    finish : callable
        Picklable; runs where the merged state lies (a task on a cluster), so that only its result travels.
    name : str
        Names the tasks (``bigpca-<name>-...``) and the progress.
    number : int
        Which pass of the fit this is, from 1.
    shift : ndarray of shape (d,) or None
        Subtracted from all rows (rounded to their precision); None for a shift of each group's own, its first slab's mean.
    layout : Layout or None
        Which rows are read, and how; None for all of them.
    dtype : numpy.dtype or None
        In which blocks are multiplied; None decides by the flops of this pass.

    Raises
    ------
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read, with rows and block.
    """
    layout = layout or rows.layout(sum(a.state_bytes for a in accumulators.values()))
    shared = {key: a.shared for key, a in accumulators.items() if a.shared is not None}
    if shift is not None:
        shared[SHIFT] = shift  # 200 KB at 25,000 columns: not with each of 4,096 tasks

    def stamp_of(group: int) -> str:
        return rows.stamp(*layout.rows_of(group)) if options.checkpoint else ""

    cut = row_cutter(rows, layout, accumulators, stamp_of, dtype)
    job = Pass(name, layout, accumulators, cut, stamp_of, finish, shared, paths=rows.paths, stored=rows.dtype)
    return run_pass(job, number, options)


@dataclass(frozen=True)
class FoldGroup:
    """Reads and folds the slabs of one group: the body of a fold task."""

    index: int
    reader: Reader
    reads: tuple[tuple[int, int], ...]
    slab_rows: int
    dtype: np.dtype[Any]
    nan_policy: str
    templates: dict[str, Accumulator]
    stamp: str

    def run(self, run_id: str, inputs: Mapping[Any, Any]) -> PassState:
        """Fold the group; memory: two reads, one slab, the product and one state."""
        if isinstance(self.reader, GraphReader):
            self.reader.inputs = inputs
        start, stop = self.reads[0][0], self.reads[-1][1]
        shared = inputs.get(SHARED, {})
        given = {name: a.with_shared(shared[name]) if name in shared else a for name, a in self.templates.items()}
        parts = {name: a.fresh(start, stop) for name, a in given.items()}
        omitted = 0
        shift = shared[SHIFT].astype(self.dtype) if SHIFT in shared else None
        # An overflow of float32 squares shows in the product, which is then made again in float64.
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            for first, rows in read_ahead(self.reader, self.reads):
                for i in range(0, len(rows), self.slab_rows):
                    check_cancelled(run_id)
                    slab = rows[i : i + self.slab_rows]
                    block, shift = self._block(slab, first + i, shift)
                    omitted += len(slab) - len(block.values)
                    if len(block.values):
                        for part in parts.values():
                            part.update(block)
                    del block, slab
                del rows
            for part in parts.values():
                part.close()
        return PassState(parts, sum(b - a for a, b in self.reads), omitted, {self.index: self.stamp})

    def _block(self, slab: NDArray[Any], row: int, shift: NDArray[Any] | None) -> tuple[Block, NDArray[Any]]:
        note_rounded(slab)
        values = slab.astype(self.dtype, copy=False)
        owned = self.reader.owned or values is not slab
        if shift is None:
            shift = group_shift(values)
        where = self.reader.where(row, row + len(slab))
        searched = any(part.needs_largest for part in self.templates.values())
        block = prepare_block(
            values, row, shift, owned=owned, nan_policy=self.nan_policy, where=where, find_largest=searched
        )
        return block, shift


def first_shift(rows: RowInput, layout: Layout) -> NDArray[np.float64]:
    """Return the mean of the first slab (d,): near enough to the mean that double centring has nothing to cancel."""
    return group_shift(first_rows(rows, layout)).astype(np.float64)


def first_rows(rows: RowInput, layout: Layout) -> NDArray[Any]:
    """Return the rows of the first slab in the working dtype: a read of the first chunks alone."""
    start, stop = layout.reads[0]
    reader, futures = rows.reader(start, stop)
    if isinstance(reader, GraphReader):
        reader.inputs = {k: f.result() for k, f in futures.items()}
    with solve_paused():  # nodes of a graph may fold rows themselves
        read = reader.read(start, stop)
    return read[: layout.slab_rows].astype(working_dtype(rows.dtype), copy=False)
