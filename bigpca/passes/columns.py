"""The verb for stores chunked in columns: accumulators are fed blocks of columns.

Zarr decodes whole chunks, so this is one read only where the store is chunked in columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import one_blas_thread
from bigpca.data.rounding import note_rounded
from bigpca.passes.accumulators.dot_matrix import ColumnProducts, DotProduct, DotSum
from bigpca.passes.engine.cancel import check_cancelled
from bigpca.passes.engine.driver import run_pass
from bigpca.passes.engine.jobs import SHARED, Finish, GroupTask, Pass, RunOptions
from bigpca.passes.engine.states import PassState
from bigpca.passes.panels import dot_dtype
from bigpca.passes.reading.blocks import Block, group_shift, prepare_block
from bigpca.passes.reading.layout import Layout, plan_layout
from bigpca.passes.reading.readers import ColumnReader, read_ahead
from bigpca.passes.rows import RowInput


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
