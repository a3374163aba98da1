"""What a read costs, by its rows and its states alone: bytes, peak memory and operations of one pass.

And the speed at which this machine multiplies and reads, measured once in a process, for time estimates of plans.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from bigpca.arrays import Array, DType
from bigpca.blas import add_product, one_blas_thread
from bigpca.costs import BlockForm, Work
from bigpca.engine.planning import DOUBLE, Layout, PassCost, peak_bytes
from bigpca.forms import DENSE
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.reading.row_maps import chain_cost
from bigpca.passes.rows import Rows

# No solver is chosen by the speed, because the choice, and with it the bits, must not depend on the machine.
SIDE = 1024  # columns of the rows that are read
# Rows of 16 MiB, which are multiplied there and back by a block as thin as those of an iteration.
ROWS, COLUMNS, WIDTH = 512, 8192, 100
ROUNDS = 2


@dataclass(frozen=True)
class Priced:
    """What a block of rows takes.

    Attributes
    ----------
    form : BlockForm
        What they are after the maps: states are updated with it, as far as costs depend on it.
    work : Work
        Of the maps, and the bytes that formats, view and weights need beside a read.
    read : float
        Bytes of a row as it is read, before the maps.
    copied : int
        Bytes of a row's copy in the precision of the block; 0 if rows are read so and may be overwritten.
    held : float
        Bytes of a mapped row in that precision; of sparse rows, on average.
    """

    form: BlockForm
    work: Work
    read: float
    copied: int
    held: float

    def read_bytes(self, rows: int) -> int:
        """Return the bytes of ``rows`` rows as they are read."""
        return math.ceil(rows * self.read)


def priced(rows: Rows, count: int = 1, dtype: DType = DOUBLE) -> Priced:
    """Return what so many rows take, which are multiplied in ``dtype``."""
    origin, row_bytes = rows.origin, rows.row_bytes(dtype)
    stored = None if origin.form.shifts else origin.values_per_sample
    form, work = BlockForm(rows.viewed_columns, count, stored, dtype.itemsize), Work()
    if rows.steps:
        work, form = chain_cost(rows.steps, form)
    beside = rows.counted.bytes_for(form.rows, form.values * form.value_bytes)
    beside += origin.chunk_bytes
    if origin.stored is not None:
        beside += origin.stored.decoding_bytes(rows.viewed_columns)
    changed = origin.owned or any(step.f.changes for step in rows.stored_steps)
    kept = origin.form.shifts and changed and dtype == rows.dtype
    as_read = not rows.steps or (form.sparse and not form.factors)
    return Priced(
        form,
        Work(work.bytes + beside, work.flops),
        rows.row_bytes(origin.dtype),
        0 if kept else math.ceil(row_bytes),
        row_bytes if as_read else rows.n_columns * dtype.itemsize,
    )


def read_cost(  # type: ignore[explicit-any]  # by name
    rows: Rows,
    name: str,
    layout: Layout,
    states: Iterable[Accumulator],
    dtype: DType,
    *,
    flops: float,
    read: int,
    copied: int = 0,
    scratch: int = 0,
    held: int = 0,
    held_reads: int = 2,
    more: bool = True,
    finish_bytes: int | None = None,
    **further: Any,
) -> PassCost:
    """Return what a read costs that is cut so.

    Parameters
    ----------
    layout : Layout
        ``NO_ROWS`` for one that another library makes, of all rows.
    read, copied, scratch, held_reads, more
        As of :func:`bigpca.engine.planning.peak_bytes`: bytes of the largest read, of a slab's copy, and of what is
        made of it.
    held : int
        Bytes of rows that stay beside the slabs.
    finish_bytes : int or None
        None for three states: that of all rows, and two that are computed from it.
    **further
        Further fields of the cost.
    """
    state_bytes, decoded = sum(one.state_bytes for one in states), layout.decoded_rows if layout.groups else rows.n_rows
    return PassCost(
        name=name,
        reads=decoded / max(1, rows.n_rows),
        bytes_read=int(decoded * rows.origin.row_bytes),
        block_rows=min(layout.slab_rows, layout.read_rows),
        state_bytes=state_bytes,
        peak_bytes=peak_bytes(read, copied, scratch, held_reads, more=more) + held,
        finish_bytes=3 * state_bytes if finish_bytes is None else finish_bytes,
        flops=flops,
        layout=layout,
        dtype=dtype,
        **further,
    )


def counting_reads(rows: Rows) -> tuple[PassCost, ...]:
    """Return the reads that counted rows of unknown number and stored values, and that found columns without values."""
    origin, found = rows.origin, list[PassCost]()
    if rows.order.counted:
        found.append(PassCost(name="count", bytes_read=int(rows.n_rows * origin.row_bytes)))
    if looked := origin.looked_at[0]:
        share, size = looked / max(1, int(origin.samples.shape[0])), int(looked * origin.sample_bytes)
        found.append(PassCost(name="stored values", reads=share, bytes_read=size))
    return (*found, *(() if origin.search is None else origin.search.costs))


def known_speed() -> dict[str, float]:
    """Return the speed if this process has asked for it, else nothing; nothing is measured."""
    return machine_speed() if machine_speed.cache_info().currsize else {}


@cache
def machine_speed() -> dict[str, float]:
    """Measure products in both precisions; and reading: a chunk is decoded, copied, shifted and searched for NaN."""
    from numcodecs import Zstd  # installed with Zarr; only needed here

    drawn = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)
    rates = []
    with one_blas_thread():
        for dtype in (np.float32, np.float64):
            V = drawn.astype(dtype)
            W, out = V[:WIDTH].T.copy(), np.zeros((WIDTH, COLUMNS), dtype).T
            rates.append(4.0 * ROWS * COLUMNS * WIDTH / _least_seconds(partial(_multiply, V, W, out)))
    codec, zero = Zstd(), np.zeros(SIDE, np.float32)
    encoded = codec.encode(drawn)

    def read() -> None:
        rows = np.frombuffer(codec.decode(encoded), np.float32).reshape(-1, SIDE).copy()
        DENSE.centred(rows, zero, owned=True, dtype=rows.dtype, find_largest=False)

    return {"single": rates[0], "double": rates[1], "read": drawn.nbytes / _least_seconds(read)}


def _multiply(V: Array, W: Array, out: Array) -> None:
    add_product(V, V @ W, out)


def _least_seconds(action: Callable[[], object]) -> float:
    """Return processor time: what this core does in a second that it has, whatever else the machine does."""
    seconds = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        action()
        seconds.append(time.thread_time() - began)
    return min(seconds)
