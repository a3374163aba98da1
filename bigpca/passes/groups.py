"""The body of a fold task: one group of rows, read slab by slab and reduced to one state.

It imports as little as a worker needs: nothing that builds graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import one_blas_thread
from bigpca.data.rounding import note_rounded
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.engine.cancel import check_cancelled
from bigpca.passes.engine.jobs import SHARED
from bigpca.passes.engine.states import PassState
from bigpca.passes.reading.blocks import Block, group_shift, prepare_block
from bigpca.passes.reading.readers import GraphReader, Reader, read_ahead

SHIFT = "bigpca-shift"  # the key of the shift of all rows in what groups share


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
