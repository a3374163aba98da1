"""The verb for stores chunked in columns: accumulators are updated with blocks of columns.

Zarr decodes whole chunks, so this takes one read only if the store is chunked in columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, DType
from bigpca.blas import one_blas_thread
from bigpca.costs import ONCE, BlockForm, Times, peak_bytes
from bigpca.data.rounding import note_rounded
from bigpca.passes.accumulators.column_products import ColumnProducts, DotProduct
from bigpca.passes.accumulators.dot_matrix import DotSum
from bigpca.passes.engine.cancel import check_cancelled
from bigpca.passes.engine.driver import run_pass
from bigpca.passes.engine.jobs import SHARED, Finish, GroupTask, Inputs, Pass, PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.states import PassState
from bigpca.passes.panels import dot_dtype
from bigpca.passes.reading.blocks import Block, group_shift, prepare_block
from bigpca.passes.reading.layout import Layout, plan_layout
from bigpca.passes.reading.readers import ColumnReader, Reader, ValueReader, read_ahead
from bigpca.passes.row_checks import check_any_order, check_dense, check_states
from bigpca.passes.rows import RowInput

ColumnState: TypeAlias = DotSum | DotProduct | ColumnProducts
C = TypeVar("C", DotSum, DotProduct, ColumnProducts)
R = TypeVar("R")


@dataclass(frozen=True)
class ColumnGroup:
    """Folds column blocks of all rows into one sum of dot matrices."""

    index: int
    reader: Reader
    reads: tuple[tuple[int, int], ...]
    slab_columns: int
    dtype: DType
    template: ColumnState
    stamp: str
    weights: NDArray[np.float64] | None = None

    def run(self, run_id: str, inputs: Inputs) -> PassState:
        """Fold the group; memory: two column blocks of all rows, one product and one state."""
        shared = inputs.get(SHARED, {})
        state = (self.template.with_shared(shared["dot"]) if "dot" in shared else self.template).fresh(0, 0)
        # Squares that overflow float32 make the product infinite; it is then repeated in float64.
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            for first, columns in read_ahead(self.reader, self.reads):
                for j in range(0, columns.shape[1], self.slab_columns):
                    check_cancelled(run_id)
                    state.update(self._block(columns[:, j : j + self.slab_columns], first + j))
                del columns
            state.close()
        start, stop = self.reads[0][0], self.reads[-1][1]
        return PassState({"dot": state}, stop - start, 0, {self.index: self.stamp})

    def _block(self, columns: Array, first: int) -> Block:
        note_rounded(columns)
        values = np.ascontiguousarray(columns.astype(self.dtype, copy=False))
        if self.weights is not None:  # rows of weight 0 may hold anything
            values[self.weights == 0] = 0
        shift = group_shift(values) if self.template.center else np.zeros(values.shape[1], self.dtype)
        where = self.reader.where(first, first + columns.shape[1])
        block = prepare_block(values, 0, shift, owned=True, nan_policy="raise", where=where)
        if self.weights is not None:
            block = block.weighted(self.weights)
        return replace(block, rows=np.arange(first, first + columns.shape[1]))


def column_layout(rows: RowInput) -> Layout | None:
    """Return the layout of a fold over column blocks, or None if the store is not chunked in columns."""
    source = rows.source
    if source is None or source.column_chunk >= source.shape[1]:
        return None
    d, width = rows.n_columns, source.column_chunk
    chunks = [min(width, d - j) for j in range(0, d, width)]
    return plan_layout(chunks, rows.n_rows, rows.dtype, 8 * rows.n_rows**2)


def column_pass(
    rows: RowInput, name: str, template: ColumnState, layout: Layout, *, times: Times = ONCE, driver_bytes: int = 0,
    refinable: bool = False, collected: bool = False, dtype: DType | None = None,
) -> PassPlan:  # fmt: skip
    """Declare one read of X by column blocks that is folded into states like ``template``.

    Products have the dtype of a DotProduct, or else ``dtype``, by default that of a dot matrix. Collected states are
    pieces that are concatenated at the end.
    """
    check_any_order(rows, "a read of column blocks")
    check_dense(rows, "a read of column blocks")
    n = rows.n_rows
    dtype = template.dtype if isinstance(template, DotProduct) else dtype or dot_dtype(rows)
    read = layout.read_rows * n * rows.dtype.itemsize
    slab = min(layout.slab_rows, layout.read_rows) * n * (8 if refinable else dtype.itemsize)
    work = template.cost(BlockForm(n))
    return PassPlan(
        name=name,
        times=times,
        bytes_read=n * rows.n_columns * rows.dtype.itemsize,
        tasks=2 * len(layout.groups) + 1,
        block_rows=n,
        state_bytes=template.state_bytes,
        peak_bytes=peak_bytes(read, slab, work.bytes, 0 if collected else template.state_bytes) + slab,
        finish_bytes=2 * template.state_bytes if collected else 0,
        collected=collected,
        driver_bytes=driver_bytes,
        flops=float(rows.n_columns) * work.flops,
        layout=layout,
        dtype=dtype,
        refinable=refinable,
    )


def fold_columns(run: Run, cost: PassPlan, rows: RowInput, template: C) -> C:
    """Fold column blocks of all rows, each centred exactly before its product: one read of X.

    Viewed and mapped rows are rejected: a column block holds columns as they are stored.

    Parameters
    ----------
    cost : PassPlan
        From :func:`column_pass`.
    template : DotSum (for the dot matrix), DotProduct (for its product with V) or ColumnProducts (for V' X)
    """
    return fold_columns_to(run, cost, rows, template, _Whole(type(template)))


def fold_columns_to(run: Run, cost: PassPlan, rows: RowInput, template: ColumnState, finish: Finish[R]) -> R:
    """Fold like :func:`fold_columns` and return ``finish(state)``, computed where the merged state is.

    Raises
    ------
    TypeError
        If the rows have weights that the state cannot use.
    ValueError
        If they are not columns of a store as they are: for views, row maps and Dask graphs.
    """
    source = rows.source
    if source is None:
        made = "row maps" if rows.steps else "a view" if rows.view is not None else "a Dask graph"
        raise ValueError(
            f"the columns are computed by {made}, but a fold over column blocks reads them from a store. Fold over "
            "rows, or write the rows to a store chunked in columns first."
        )
    layout = cost.layout
    check_states(rows, [template])
    present = None if rows.weights is None else rows.weights > 0

    def cut(group: int) -> tuple[GroupTask, Inputs]:
        reads = tuple(layout.reads[i] for i in layout.groups[group])
        own, columns = template.without_shared(), ColumnReader(source)
        reader = columns if rows.limits is None else ValueReader(columns, rows.limits, present=present)
        task = ColumnGroup(group, reader, reads, layout.slab_rows, cost.dtype, own, stamp(group), rows.weights)
        return task, {}

    def stamp(group: int) -> str:
        return rows.stamp(0, rows.n_rows) if run.checkpoint else ""

    shared = {} if template.shared is None else {"dot": template.shared}
    job = Pass(
        cost=cost, templates={"dot": template}, cut=cut, stamp=stamp, finish=finish, shared=shared, paths=rows.paths,
        unit_bytes=rows.n_rows * rows.dtype.itemsize, whole=rows.n_columns, input=rows.identity,
    )  # fmt: skip
    return run_pass(job, run)


@dataclass(frozen=True)
class _Whole(Generic[C]):
    """A finish that returns the accumulator itself."""

    kind: type[C]

    def __call__(self, state: PassState) -> C:
        return state.part("dot", self.kind)
