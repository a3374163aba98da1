"""One sweep over the kernel matrix ``K[i, j] = k(x_i, x_j)`` (n, n): every pair of tiles once, none kept.

A task holds one prepared panel of rows and reads the rows from the start of the panel to the last row of X. A sweep of
P panels therefore takes ``(P + 1) / 2`` reads, and slightly more if panels begin inside chunks. K is symmetric: each
tile is used for its mirror image too, and a sweep computes little more than ``n^2 / 2`` kernel entries.

A device computes tiles of 256 MiB, one panel at a time, whose rows it holds; later rows are streamed past them. Mostly,
one panel has all rows: more of them are what a run that was stopped within a sweep does not repeat.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from typing import ClassVar, Self, TypeAlias, TypeVar, cast

import numpy as np

from bigpca.arrays import Array, DType, Vector
from bigpca.blas import made_ahead
from bigpca.devices import DEPTH, Device, Namespace
from bigpca.engine.group import Folding
from bigpca.engine.interfaces import Inputs
from bigpca.engine.jobs import Finish, GroupTask, Pass
from bigpca.engine.layout import MAX_GROUPS, MAX_SEGMENTS, MIB, coalesce
from bigpca.engine.planning import Layout
from bigpca.engine.run import Run
from bigpca.forms import Values
from bigpca.host import HOST
from bigpca.kernels.base import FIXED_BYTES, STRIP_ENTRIES, Kernel
from bigpca.passes.accumulators.all_pairs import DotPanels, KernelProduct
from bigpca.passes.fold import Read
from bigpca.passes.panels import Held, PanelGroup, Prepare
from bigpca.passes.prices import priced, read_cost
from bigpca.passes.reading.blocks import Preparing, product_dtype
from bigpca.passes.rows import Rows, check_any_order, check_dense, one_stamp, pass_over, reject_weights

SweepState: TypeAlias = KernelProduct | DotPanels
Tile: TypeAlias = tuple[Array, int, int, float]  # of K; its first row and column; the error of its entries
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S", KernelProduct, DotPanels)
T = TypeVar("T")
TILE_ROWS = 1024  # rows of a tile, which is 4 MiB in float32 and fits in the cache
MIN_TILE = 128
TILES_ACROSS = 16  # at least, if there are enough rows: tiles on the diagonal are computed in full
PANELS = 16  # at least, so that all workers have work
MIN_PANELS, PANEL_FLOPS = 4, 2e8  # unless there is little: each panel prepares all later rows
MAX_PANELS = 64
AHEAD, AHEAD_BYTES = 8, 128 * MIB  # of tiles that idle threads make at a time
PANEL_ROWS = 4096
PANEL_BYTES = 128 * MIB
TILES_ACROSS_THERE = 8  # at least, if there are enough rows: to ask for a tile takes half a millisecond
PANEL_BYTES_THERE = 2048 * MIB  # of a panel's rows there, at most; more rows are streamed past several panels
PANELS_THERE = 8  # that the memory of a device could hold at least
BAND_FLOPS = 1e14  # of a panel there, some seconds: what a run that was stopped has to repeat


@dataclass(frozen=True)
class KernelLayout(Layout):
    """How a sweep cuts the rows, which depends on shape, dtype, chunks and kernel alone: one panel for each group.

    Its reads are the panels; decoded are all rows from the chunk on in which the panel begins. A slab is a tile.

    Attributes
    ----------
    stream : tuple of (start, stop)
        Runs of whole row chunks that are read at a time.
    added : float
        Operations by which an entry of the kernel matrix is added to a product.
    """

    stream: tuple[tuple[int, int], ...] = ()
    added: float = 0.0

    @property
    def sweep_reads(self) -> float:
        """Reads of X in one sweep."""
        return self.decoded_rows / max(1, self.n_rows)

    @property
    def stream_rows(self) -> int:
        """Rows beyond a panel that are compared at a time with a tile of it: more than a tile, if that is small."""
        return max(self.slab_rows, STRIP_ENTRIES // max(self.slab_rows, 2 * self.n_columns))

    def clipped(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the reads that hold rows ``start:stop``, cut to them."""
        return tuple((max(a, start), min(b, stop)) for a, b in self.stream if a < stop and b > start)

    def evaluations(self, panel: int) -> int:
        """Return the kernel evaluations of one panel: its tiles in pairs, each pair once, and with all later rows."""
        (start, stop), tile = self.reads[panel], self.slab_rows
        tiles = [min(tile, b - i) for a, b in self.clipped(start, stop) for i in range(a, b, tile)]
        rows = stop - start
        return (rows**2 + sum(t * t for t in tiles)) // 2 + rows * (self.n_rows - stop)

    @property
    def ahead(self) -> int:
        """Tiles of later rows that idle threads compare with a panel at a time."""
        return max(1, min(AHEAD, AHEAD_BYTES // (8 * self.read_rows * self.stream_rows)))

    @property
    def total_evaluations(self) -> int:
        """Kernel evaluations of one sweep."""
        return sum(map(self.evaluations, range(len(self.groups))))

    @property
    def pieces(self) -> int:
        return len(self.groups) * self.ahead

    def parallelism(self, work: float, state_bytes: int) -> float:
        """All tiles over those of the longest panel, which idle threads compute and its own thread adds."""
        evaluations, longest = self.total_evaluations, max(map(self.evaluations, range(len(self.groups))))
        added = min(1.0, self.added * evaluations / max(1.0, work))
        return evaluations / longest / (added + (1 - added) / self.ahead)


def kernel_layout(rows: Rows, kernel: Kernel, dtype: DType | None = None, *, device: Namespace = HOST) -> KernelLayout:
    """Cut the rows of X into panels, reads and tiles, for rows in this dtype; None for :func:`kernel_dtype`.

    On a device, tiles are large, and a panel has all rows, unless they take much memory or much time.
    """
    check_any_order(rows, "a kernel matrix of all pairs of rows")
    check_dense(rows, "a kernel matrix of all pairs of rows")
    n, base = rows.n_rows, rows.layout(0)
    itemsize = (dtype or kernel_dtype(rows)).itemsize
    flops = n**2 * kernel.flops_per_entry(rows.n_columns) / 2
    held, stream = n * kernel.prepared_bytes(rows.n_columns, itemsize), base.reads
    if isinstance(device, Device):
        largest = max(1, device.tile_edge(itemsize) // DEPTH)
        tile = step = DEPTH * min(largest, -(-n // (TILES_ACROSS_THERE * DEPTH)))
        most = device.share(PANELS_THERE, PANEL_BYTES_THERE)
        panels = max(min(MAX_PANELS, round(flops / BAND_FLOPS)), -(-held // most))
        lengths = (*[tile] * (n // tile), n % tile) if rows.in_memory else rows.origin.row_chunks
        stops = itertools.accumulate(coalesce(lengths, 1, max(1, base.slab_rows // tile) * tile))
        stream = tuple(itertools.pairwise([0, *stops]))
    else:
        tile, step = max(MIN_TILE, min(TILE_ROWS, -(-n // TILES_ACROSS))), 1
        worth = max(MIN_PANELS, int(flops / PANEL_FLOPS))
        panels = min(MAX_PANELS, max(min(PANELS, round(n / tile), worth), n // PANEL_ROWS))
        panels = max(panels, -(-held // PANEL_BYTES))
    panels = max(1, min(panels, MAX_GROUPS, n))
    edges = sorted({n * p // panels // step * step for p in range(panels)} | {n})
    panels = len(edges) - 1
    groups = tuple(range(p, p + 1) for p in range(panels))
    runs = min(MAX_SEGMENTS, panels)
    ends = [panels * s // runs for s in range(runs + 1)]
    segments = tuple(range(a, b) for a, b in itertools.pairwise(ends))
    cut = tuple(itertools.pairwise(edges))
    starts = np.asarray(edges[:-1])
    if not rows.in_memory:  # arrays in memory are cut; else a task reads from the start of a chunk, decoded whole
        chunks = np.concatenate([[0], np.cumsum(rows.origin.row_chunks)])
        starts = chunks[np.searchsorted(chunks, starts, side="right") - 1]
    decoded = tuple((n - starts).tolist())
    return KernelLayout(n, rows.n_columns, base.row_bytes, tile, cut, groups, segments, decoded=decoded, stream=stream)


def kernel_dtype(rows: Rows) -> DType:
    """Return the dtype of the rows that a kernel is given: float64 for small sweeps, else the working dtype."""
    return product_dtype(rows.dtype, float(rows.n_rows) ** 2 * rows.n_columns)


@dataclass(frozen=True, kw_only=True)
class KernelGroup(PanelGroup[SweepState, Tile]):
    """Compares a prepared panel with the rows from its start on, tile by tile; no tile crosses the end of the panel."""

    name: ClassVar[str] = "kernel"
    sent: ClassVar[bool] = False  # tiles leave no room for more

    stream_rows: int
    kernel: Kernel
    ahead: int

    @contextmanager
    def begin(self, inputs: Inputs, check: Callable[[], None]) -> Iterator[Folding]:
        # Overflows make row means of K infinite, which is checked after the sweep.
        own = super().begin(inputs, check)
        with self.device.driving(), np.errstate(over="ignore", invalid="ignore"), own as folding:
            yield folding

    def slabs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        edge = min(max(self.panel[1], start), stop)
        yield from super().slabs(start, edge)
        if edge < stop:
            yield edge, stop

    def _blocks(self, state: SweepState, held: Held, prepare: Prepare, slab: Values, row: int) -> Iterator[Tile]:
        if row < self.panel[1]:
            held.append((row, prepare(slab, row)))
            if self.device.driven and isinstance(state, KernelProduct):
                state.diagonal += float(self.kernel.diagonal_of(held[-1][1]).sum())
            yield from self._compared(held, *held[-1])
            return

        def compare(at: int) -> Iterator[Tile]:
            return self._compared(held, at, prepare(slab[at - row : at - row + self.stream_rows], at))

        for several in made_ahead(compare, range(row, row + len(slab), self.stream_rows), self.ahead):
            yield from several

    def _add(self, state: SweepState, held: Held, block: Tile) -> None:
        state.add_tile(*block, self.device)

    def _compared(self, held: Held, row: int, prepared: object) -> Iterator[Tile]:
        """Yield the tiles of prepared rows, which begin at ``row``, and of all that are held."""
        for other_row, other in held:
            yield self.kernel.block(other, prepared), other_row, row, self.kernel.entry_error(other, prepared)

    def _prepare(self, step: Preparing, slab: Values, row: int, shift: Vector | None) -> Values:
        values = super()._prepare(step, slab, row, None)
        step.check()
        prepared: Values = self.kernel.prepare(self.device.rows(values), shift, row)
        return prepared


@dataclass(frozen=True)
class Sweep(Read[R_co]):
    """One sweep over all pairs of rows.

    The state is a KernelProduct (with V, for K V) or DotPanels (for K itself). The shift is near the mean of the rows;
    see :meth:`bigpca.kernels.base.Kernel.prepare`.

    Attributes
    ----------
    kernel : Kernel
        Resolved for the number of columns.
    """

    kernel: Kernel

    @classmethod
    def of_pairs(
        cls, rows: Rows, kernel: Kernel, name: str, template: S, *, refinable: bool = False, collected: bool = False
    ) -> Sweep[S]:
        """Declare it.

        If ``refinable``, memory is planned for tiles in float64; see :meth:`refined`. Collected states are panels; of
        others, the finish has three.
        """
        reject_weights(rows, ["a kernel matrix of all rows"], "it is centred with every row counted once")
        device, own = kernel.place(rows.device[0]), rows.device[1]
        there = device.driven and own.driven
        d, dtype = rows.n_columns, kernel_dtype(rows)
        widest = np.dtype(np.float64) if refinable else dtype
        cut = partial(kernel_layout, rows, kernel, device=device)
        layout, widest_layout = cut(dtype), cut(widest)
        columns, kept = (template.n_columns, False) if isinstance(template, KernelProduct) else (0, True)
        # A task reads slabs and holds a prepared panel, tiles and products.
        itemsize, tile_rows = widest.itemsize, widest_layout.stream_rows
        prepared = (widest_layout.read_rows + 2 * tile_rows) * kernel.prepared_bytes(d, itemsize)
        price = priced(rows, tile_rows, widest)
        slab = 2 * tile_rows * d * itemsize + price.work.bytes
        tile = widest_layout.slab_rows * tile_rows * kernel.entry_bytes(itemsize) + FIXED_BYTES
        read = price.read_bytes(max(b - a for a, b in widest_layout.stream))
        device_bytes = 0
        if device.driven:
            device_bytes = max(_device_bytes(layout, dtype, columns), _device_bytes(widest_layout, widest, columns))
            device_bytes += there * 4 * read
            device_bytes += (
                kept * dtype.itemsize * rows.n_rows * (layout.read_rows + layout.slab_rows)
            )  # tiles of a panel
            prepared, tile = 8 * widest_layout.read_rows, FIXED_BYTES
        if widest_layout.ahead > 1:  # tiles that idle threads made: for each thread, at most those of a panel
            tile += widest_layout.read_rows * tile_rows * itemsize
        working = prepared + slab + tile + 4 * 8 * tile_rows * columns
        evaluations = layout.total_evaluations
        layout = replace(layout, added=4.0 * columns)
        cost = read_cost(
            rows, name, layout, [template], dtype, flops=evaluations * (kernel.flops_per_entry(d) + 4.0 * columns),
            read=read, scratch=working, most_reads=widest_layout.sweep_reads, collected=collected,
            evaluations=float(evaluations), refinable=refinable, device=device, there=there, device_bytes=device_bytes,
        )  # fmt: skip
        finish: Finish[S] = methodcaller("part", "kernel", type(template))
        return Sweep(rows, {"kernel": template}, cost, finish, kernel)

    def refined(self) -> Self:
        """Return the sweep with tiles in float64, in which float32 rows are exact."""
        dtype, before = np.dtype(np.float64), cast("KernelLayout", self.cost.layout)
        layout = replace(kernel_layout(self.rows, self.kernel, dtype, device=self.cost.device), added=before.added)
        return self.costing(dtype=dtype, layout=layout, reads=layout.sweep_reads)

    def job(self, run: Run, shift: Vector | None = None) -> Pass[R_co]:
        rows, cost, layout = self.rows, self.cost, cast("KernelLayout", self.cost.layout)
        (template,), n, stamp = cast("Iterable[SweepState]", self.states.values()), rows.n_rows, one_stamp(run, rows)
        tile, stream, bare = layout.slab_rows, layout.stream_rows, template.for_rows(0, n)

        def cut(group: int) -> tuple[GroupTask, Inputs]:
            panel = layout.reads[group]
            reader, futures, reads = *rows.reader(panel[0], n, cost), layout.clipped(panel[0], n)
            task = KernelGroup(
                index=group, reader=reader, reads=reads, slab_rows=tile, stamp=stamp(group), panel=panel,
                dtype=cost.dtype, template=bare, device=cost.device, stream_rows=stream,
                kernel=self.kernel, ahead=layout.ahead,
            )  # fmt: skip
            return task, futures

        job = pass_over(run, cost, rows, self.states, cut, self.finish, stamp=stamp, shift=shift)
        return replace(job, evaluations=layout.evaluations)


def _device_bytes(layout: KernelLayout, dtype: DType, columns: int) -> int:
    """Return what a sweep takes of a device: the rows of a panel, factors and products of all, and tiles."""
    panel, tile, itemsize = layout.read_rows, layout.slab_rows, dtype.itemsize
    n, d = layout.n_rows, layout.n_columns
    rows = (panel + 2 * tile) * (2 * itemsize * (d + 5) + 8)  # as they are, and as factors
    return rows + n * columns * (8 + itemsize) + 4 * itemsize * tile**2 + 16 * tile * columns
