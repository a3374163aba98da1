"""The verb for pairs of row panels: the dot matrix ``X X'`` (n, n) of a wide X, block by block.

A store chunked in rows is read ``(panels + 1) / 2`` times, with panels as large as the plan allows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, DType
from bigpca.blas import one_blas_thread
from bigpca.costs import ONCE, peak_bytes
from bigpca.data.rounding import note_rounded
from bigpca.passes.accumulators.dot_matrix import DotPanels
from bigpca.passes.engine.cancel import check_cancelled
from bigpca.passes.engine.driver import run_pass
from bigpca.passes.engine.jobs import MAPS, SHARED, Finish, GroupTask, Inputs, Pass, PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.states import PassState
from bigpca.passes.fold import SHIFT
from bigpca.passes.reading.blocks import complete_rows, prepare_block, product_dtype, scaled_rows, within_range
from bigpca.passes.reading.layout import Layout
from bigpca.passes.reading.readers import Reader, read_ahead, with_inputs
from bigpca.passes.reading.row_maps import MapStep, map_rows
from bigpca.passes.row_checks import check_any_order, check_dense, check_states
from bigpca.passes.rows import RowInput

R = TypeVar("R")
Vector = NDArray[np.float64]
CORRECTED = 10.0  # times that the cost of a corrected pass counts when its precision is chosen


@dataclass(frozen=True)
class PanelGroup:
    """Holds one row panel and reads the rows from its start to the last row of X, slab by slab."""

    index: int
    reader: Reader
    panel: tuple[tuple[int, int], ...]
    stream: tuple[tuple[int, int], ...]
    slab_rows: int
    dtype: DType
    template: DotPanels
    stamp: str
    weights: NDArray[np.float64] | None = None

    def run(self, run_id: str, inputs: Inputs) -> PassState:
        """Fill one panel of the dot matrix."""
        reader, shared = with_inputs(self.reader, inputs), inputs[SHARED]
        start, stop = self.panel[0][0], self.panel[-1][1]
        state = self.template.fresh(start, stop)
        held: list[tuple[int, Array]] = []
        with one_blas_thread():
            for first, rows in read_ahead(reader, self.panel + self.stream):
                for i in range(0, len(rows), self.slab_rows):
                    check_cancelled(run_id)
                    slab = self._prepare(rows[i : i + self.slab_rows], first + i, shared[SHIFT], shared[MAPS])
                    if first < stop:
                        held.append((first + i, slab))
                        note_rounded(rows[i : i + self.slab_rows])
                    for row, other in held:
                        state.add_pair(row, other, first + i, slab)
                    del slab
                del rows
        return PassState({"dot": state}, stop - start, 0, {self.index: self.stamp})

    def _prepare(self, slab: Array, row: int, shift: Vector, steps: tuple[MapStep, ...]) -> Array:
        where, owned = self.reader.where(row, row + len(slab)), self.reader.owned
        weights = None if self.weights is None else self.weights[row : row + len(slab)]
        if weights is not None:  # rows of weight 0 may hold anything; ones pass through every map
            slab, owned = np.where(weights[:, None] > 0, slab, slab.dtype.type(1)), True
        about = shift.astype(self.dtype)
        if not steps:
            block = prepare_block(
                slab, row, about, owned=owned, nan_policy="raise", where=where, find_largest=weights is None,
                dtype=self.dtype,
            )  # fmt: skip
            values, largest = block.values, block.largest
        else:
            complete = complete_rows(slab, row, owned=owned, nan_policy="raise", where=where, dtype=self.dtype)
            values, largest = map_rows(steps, complete, where), None
            if about.any():
                np.subtract(values, about, out=values)
        return within_range(values if weights is None else scaled_rows(values, np.sqrt(weights)), largest)


def dot_dtype(rows: RowInput, *, corrected: bool = False) -> DType:
    """Dtype in which the blocks of the dot matrix are multiplied.

    If the first order of its error is ``corrected`` afterwards, float32 is used from a tenth of the usual cost on.
    """
    flops = float(rows.n_rows) ** 2 * rows.n_columns
    return product_dtype(rows.dtype, CORRECTED * flops if corrected else flops)


def panel_layout(layout: Layout, panels: int) -> Layout:
    """Return ``layout`` with its reads joined into at most ``panels`` groups of about equal size."""
    counts = np.array([b - a for a, b in layout.reads])
    target = -(-layout.n_rows // panels)
    groups, start, ends = [], 0, np.cumsum(counts)
    while start < len(counts):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + target, side="right")))
        groups.append(range(start, stop))
        start = stop
    return replace(layout, groups=tuple(groups), segments=tuple(range(i, i + 1) for i in range(len(groups))))


def panel_pass(rows: RowInput, count: int, *, dtype: DType | None = None) -> PassPlan:
    """Declare the dot matrix over pairs of at most ``count`` row panels; ``count`` changes no bit of the result.

    Rows are multiplied in ``dtype``, by default that of :func:`dot_dtype`.
    """
    check_any_order(rows, "a dot matrix of all rows")
    check_dense(rows, "a dot matrix of all rows")
    base, dtype = rows.layout(0), dtype or dot_dtype(rows)
    layout, n = panel_layout(base, count), rows.n_rows
    panel_rows = _panel_rows(layout)
    read, slab_rows = rows.read_bytes(base.read_rows), min(base.slab_rows, base.read_rows)
    copied, scratch = rows.copied_row_bytes(dtype) * slab_rows, rows.scratch_bytes(slab_rows, dtype.itemsize)
    decoded = sum(n - layout.rows_of(i)[0] for i in range(len(layout.groups)))
    return PassPlan(
        name="dot",
        reads=decoded / max(1, n),
        times=ONCE,
        bytes_read=rows.bytes_of(decoded),
        tasks=2 * len(layout.groups) + 1,
        block_rows=slab_rows,
        state_bytes=8 * n * n,
        peak_bytes=peak_bytes(read, copied, scratch, 0) + panel_rows * (rows.n_columns * dtype.itemsize + 8 * n),
        flops=float(n) * n * rows.n_columns,
        layout=layout,
        dtype=dtype,
    )


def fold_panels(run: Run, cost: PassPlan, rows: RowInput, finish: Finish[R], *, shift: Vector) -> R:
    """Fill the dot matrix over pairs of row panels, and return ``finish(state)``: (panels + 1) / 2 reads of X.

    ``cost`` is from :func:`panel_pass`. The shift (d,) is subtracted from every row, after the row maps.
    """
    layout = cost.layout
    template = DotPanels(rows.n_rows, rows.n_columns, _panel_rows(layout))
    check_states(rows, [template])

    def cut(group: int) -> tuple[GroupTask, Inputs]:
        members = layout.groups[group]
        start = layout.reads[members[0]][0]
        reader, futures = rows.reader(start, layout.n_rows)
        panel = tuple(layout.reads[i] for i in members)
        task = PanelGroup(
            group, reader, panel, layout.reads[members[-1] + 1 :], layout.slab_rows, cost.dtype, template,
            stamp(group), rows.weights,
        )  # fmt: skip
        return task, futures

    def stamp(group: int) -> str:
        return rows.stamp(layout.rows_of(group)[0], layout.n_rows) if run.checkpoint else ""

    def rows_read(group: int) -> int:
        return layout.n_rows - layout.rows_of(group)[0]

    job = Pass(
        cost=cost, templates={"dot": template}, cut=cut, stamp=stamp, finish=finish, paths=rows.paths,
        rows_read=rows_read, unit_bytes=rows.row_bytes, whole=rows.n_rows,
        shared={SHIFT: shift, MAPS: rows.steps} | rows.broadcast, input=rows.identity,
    )  # fmt: skip
    return run_pass(job, run)


def _panel_rows(layout: Layout) -> int:
    return max(b - a for a, b in map(layout.rows_of, range(len(layout.groups))))
