"""The dot matrix ``X X'`` (n, n) of a wide X: over pairs of row panels, or over column blocks.

Zarr decodes whole chunks, so a fold over column blocks is one read only where the store is chunked in columns; a store
chunked in rows is read ``(panels + 1) / 2`` times, with panels as large as the plan allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import one_blas_thread, solve_paused
from bigpca.data.rounding import note_rounded
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.dot_matrix import ColumnProducts, DotPanels, DotProduct, DotSum
from bigpca.passes.engine.cancel import check_cancelled
from bigpca.passes.engine.driver import run_pass
from bigpca.passes.engine.jobs import SHARED, Finish, GroupTask, Pass, RunOptions
from bigpca.passes.engine.states import PassState
from bigpca.passes.reading.blocks import (
    Block,
    Layout,
    group_shift,
    plan_layout,
    prepare_block,
    product_dtype,
    within_range,
    working_dtype,
)
from bigpca.passes.reading.readers import ColumnReader, GraphReader, Reader, read_ahead
from bigpca.passes.rows import RowInput


@dataclass(frozen=True)
class PanelGroup:
    """Holds one row panel and streams the rows from its start to the end past it."""

    index: int
    reader: Reader
    panel: tuple[tuple[int, int], ...]
    stream: tuple[tuple[int, int], ...]
    slab_rows: int
    dtype: np.dtype[Any]
    shift: NDArray[np.float64]
    inverse_scale: NDArray[np.float64] | None
    template: DotPanels
    stamp: str

    def run(self, run_id: str, inputs: Mapping[Any, Any]) -> PassState:
        """Fill one panel of the dot matrix."""
        if isinstance(self.reader, GraphReader):
            self.reader.inputs = inputs
        start, stop = self.panel[0][0], self.panel[-1][1]
        state = self.template.fresh(start, stop)
        held: list[tuple[int, NDArray[Any]]] = []
        with one_blas_thread():
            for first, rows in read_ahead(self.reader, self.panel + self.stream):
                for i in range(0, len(rows), self.slab_rows):
                    check_cancelled(run_id)
                    slab = self._prepare(rows[i : i + self.slab_rows], first + i)
                    if first < stop:
                        held.append((first + i, slab))
                        note_rounded(rows[i : i + self.slab_rows])
                    for row, other in held:
                        state.add_pair(row, other, first + i, slab)
                    del slab
                del rows
        return PassState({"dot": state}, stop - start, 0, {self.index: self.stamp})

    def _prepare(self, slab: NDArray[Any], row: int) -> NDArray[Any]:
        values = slab.astype(self.dtype, copy=False)
        where = self.reader.where(row, row + len(slab))
        owned = self.reader.owned or values is not slab
        shift = self.shift.astype(self.dtype)
        block = prepare_block(
            values, row, shift, owned=owned, nan_policy="raise", where=where, find_largest=self.inverse_scale is None
        )
        if self.inverse_scale is not None:
            np.multiply(block.values, self.inverse_scale.astype(self.dtype), out=block.values)
        return within_range(block.values, block.largest)


@dataclass(frozen=True)
class ColumnGroup:
    """Folds column blocks of all rows into one sum of dot matrices."""

    index: int
    reader: ColumnReader
    reads: tuple[tuple[int, int], ...]
    slab_columns: int
    dtype: np.dtype[Any]
    template: DotSum | DotProduct | ColumnProducts
    stamp: str

    def run(self, run_id: str, inputs: Mapping[Any, Any]) -> PassState:
        """Fold the group; memory: two column blocks of all rows, one product and one state."""
        shared = inputs.get(SHARED, {})
        state = (self.template.with_shared(shared["dot"]) if "dot" in shared else self.template).fresh(0, 0)
        # An overflow of float32 squares shows in the product, which is then made again in float64.
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            for first, columns in read_ahead(self.reader, self.reads):
                for j in range(0, columns.shape[1], self.slab_columns):
                    check_cancelled(run_id)
                    state.update(self._block(columns[:, j : j + self.slab_columns], first + j))
                del columns
            state.close()
        start, stop = self.reads[0][0], self.reads[-1][1]
        return PassState({"dot": state}, stop - start, 0, {self.index: self.stamp})

    def _block(self, columns: NDArray[Any], first: int) -> Block:
        note_rounded(columns)
        values = np.ascontiguousarray(columns.astype(self.dtype, copy=False))
        shift = group_shift(values) if self.template.center else np.zeros(values.shape[1], self.dtype)
        where = self.reader.where(first, first + columns.shape[1])
        block = prepare_block(values, 0, shift, owned=True, nan_policy="raise", where=where)
        return replace(block, rows=np.arange(first, first + columns.shape[1]))


def dot_dtype(rows: RowInput) -> np.dtype[np.floating]:
    """Dtype in which the blocks of the dot matrix are multiplied."""
    return product_dtype(rows.dtype, float(rows.n_rows) ** 2 * rows.n_columns)


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


def panel_layout(layout: Layout, panels: int) -> Layout:
    """Return ``layout`` with its reads gathered into at most ``panels`` row panels of about equal size, each a group."""
    counts = np.array([b - a for a, b in layout.reads])
    target = -(-layout.n_rows // panels)
    groups, start = [], 0
    for i in range(len(counts)):
        if i + 1 == len(counts) or counts[start : i + 2].sum() > target:
            groups.append(range(start, i + 1))
            start = i + 1
    return replace(layout, groups=tuple(groups), segments=tuple(range(i, i + 1) for i in range(len(groups))))


def fold_panels(
    rows: RowInput,
    finish: Finish,
    *,
    layout: Layout,
    shift: NDArray[np.float64],
    inverse_scale: NDArray[np.float64] | None,
    number: int,
    options: RunOptions,
) -> Any:
    """Fill the dot matrix of shifted rows over pairs of row panels, and return ``finish(state)``.

    Parameters
    ----------
    layout : Layout
        From :func:`panel_layout`; ``(panels + 1) / 2`` reads of X.
    shift : ndarray of shape (d,)
        Subtracted from every row before the product.
    inverse_scale : ndarray of shape (d,) or None
    """
    panel_rows = max(b - a for a, b in map(layout.rows_of, range(len(layout.groups))))
    template = DotPanels(rows.n_rows, rows.n_columns, panel_rows)

    def cut(group: int) -> tuple[GroupTask, Mapping[Any, Any]]:
        members = layout.groups[group]
        start = layout.reads[members[0]][0]
        reader, futures = rows.reader(start, layout.n_rows)
        panel = tuple(layout.reads[i] for i in members)
        task = PanelGroup(
            group, reader, panel, layout.reads[members[-1] + 1 :], layout.slab_rows, dot_dtype(rows),
            shift, inverse_scale, template, stamp(group),
        )  # fmt: skip
        return task, futures

    def stamp(group: int) -> str:
        return rows.stamp(layout.rows_of(group)[0], layout.n_rows) if options.checkpoint else ""

    templates: dict[str, Accumulator] = {"dot": template}
    return run_pass(
        Pass("dot", layout, templates, cut, stamp, finish, paths=rows.paths, stored=rows.dtype), number, options
    )


def column_layout(rows: RowInput) -> Layout | None:
    """Return the layout of a fold over column blocks, or None where the store is not chunked in columns."""
    source = rows.source
    if source is None or source.column_chunk >= source.shape[1]:
        return None
    d, width = rows.n_columns, source.column_chunk
    chunks = [min(width, d - j) for j in range(0, d, width)]
    return plan_layout(chunks, rows.n_rows, rows.dtype, 8 * rows.n_rows**2)


def fold_columns(
    rows: RowInput,
    template: DotSum | DotProduct | ColumnProducts,
    finish: Finish,
    *,
    layout: Layout,
    number: int,
    options: RunOptions,
) -> Any:
    """Fold column blocks of all rows, each centred exactly before its product: one read of X.

    Parameters
    ----------
    template : DotSum (for the dot matrix), DotProduct (for its product with V) or ColumnProducts (for V' X)
    layout : Layout
        From :func:`column_layout`.
    """
    source = rows.source
    if source is None:
        raise ValueError("a fold over column blocks needs a direct source")
    dtype = dot_dtype(rows) if isinstance(template, DotSum | ColumnProducts) else template.dtype

    def cut(group: int) -> tuple[GroupTask, Mapping[Any, Any]]:
        reads = tuple(layout.reads[i] for i in layout.groups[group])
        own = template.without_shared()
        return ColumnGroup(group, ColumnReader(source), reads, layout.slab_rows, dtype, own, stamp(group)), {}

    def stamp(group: int) -> str:
        return rows.stamp(0, rows.n_rows) if options.checkpoint else ""

    names = {DotSum: "dot", DotProduct: "product", ColumnProducts: "components"}
    shared = {} if template.shared is None else {"dot": template.shared}
    job = Pass(
        names[type(template)],
        layout,
        {"dot": template},
        cut,
        stamp,
        finish,
        shared,
        paths=rows.paths,
        stored=rows.dtype,
    )
    return run_pass(job, number, options)
