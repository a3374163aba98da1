"""Verbs for the dot matrix ``X X'`` (n, n) of a wide X: pairs of row panels, or blocks of columns.

A store chunked in rows is read ``(panels + 1) / 2`` times, with panels as large as the plan allows; one chunked in
columns is read once.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import methodcaller
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

import numpy as np

from bigpca.arrays import Array, DType, Vector
from bigpca.blas import each_piece
from bigpca.costs import BlockForm
from bigpca.csr import form_of
from bigpca.data.sparse import transposed
from bigpca.data.weights import CountedRows
from bigpca.devices import Namespace, gram_bytes
from bigpca.engine.group import SHARED, Folding, Group
from bigpca.engine.interfaces import Inputs
from bigpca.engine.jobs import Finish, GroupTask, Pass, PassState
from bigpca.engine.layout import coalesce, plan_layout, split_evenly
from bigpca.engine.planning import BYTE_WORK, PIECES, Layout
from bigpca.engine.run import Run
from bigpca.forms import WIDTH, Values
from bigpca.host import HOST
from bigpca.passes.accumulators.all_pairs import ColumnProducts, DotPanels, DotProduct, DotSum
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.observed_columns import ObservedBlocks
from bigpca.passes.fold import Read
from bigpca.passes.prices import priced, read_cost
from bigpca.passes.reading.blocks import (
    Block,
    Preparing,
    product_dtype,
)
from bigpca.passes.reading.readers import MAPS, SHIFT, ColumnReader, StoredMap, sent_to
from bigpca.passes.reading.row_maps import MapStep, map_rows
from bigpca.passes.rows import Rows, check_any_order, check_dense, one_stamp, pass_over, reject_weights
from bigpca.solvers.scaling import Blocks

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
PARTS = 8  # of the rows after a panel, which idle threads take; each part is read ahead of
CORRECTED = 10.0  # times that the cost of a corrected pass counts when its precision is chosen


@dataclass(frozen=True)
class PanelLayout(Layout):
    """A group for each panel, whose rows are multiplied with those after them; strips are pairs of slabs.

    Idle threads take parts of the rows after a panel, which they read, and strips.
    """

    def parts_after(self, group: int) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Return the reads after a panel, in parts."""
        later = self.reads[self.groups[group].stop :]
        return tuple(later[part.start : part.stop] for part in split_evenly([1] * len(later), PARTS))

    @property
    def pieces(self) -> int:
        return sum(max(1, len(self.parts_after(group))) for group in range(len(self.groups)))

    def parallelism(self, work: float, state_bytes: int) -> float:
        """All products and decoded rows over those of the longest panel; nothing is merged."""
        n, read, chains = self.n_rows, float(BYTE_WORK * self.row_bytes), [1.0]
        for group, (count, decoded) in enumerate(self.sizes):
            parts = max(1, len(self.parts_after(group)))
            products = work * count * (n - self.rows_of(group)[0] - count / 2) / (n**2 / 2)
            chains.append(products / max(parts, self.strips) + (count + (decoded - count) / parts) * read)
        return (work + self.decoded_rows * read) / max(chains)


Held: TypeAlias = list[tuple[int, Any]]  # type: ignore[explicit-any]  # first row, and rows as a kernel prepares them
Prepare: TypeAlias = Callable[[Values, int], Values]  # slab and its first row -> rows as they are multiplied
P = TypeVar("P", bound=Accumulator)
B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class PanelGroup(Group[Values], Generic[P, B]):
    """Holds one panel of rows, and reads all rows from its start on, to pair them with it.

    What is read first, in order, is the panel, and for a kernel all later rows; those of a dot matrix are parts.

    Attributes
    ----------
    name : str
        Of the state.
    sent : bool
        Whether reads are sent to a device ahead of their use, and checked once, at the end.
    panel : (start, stop)
    """

    name: ClassVar[str]
    sent: ClassVar[bool] = True

    panel: tuple[int, int]
    dtype: DType
    template: P
    counted: CountedRows = field(default_factory=CountedRows)
    device: Namespace = HOST

    @contextmanager
    def begin(self, inputs: Inputs, check: Callable[[], None]) -> Iterator[Folding]:
        shared, (start, stop), held = inputs[SHARED], self.panel, Held()
        maps: tuple[MapStep, ...] = shared.get(MAPS, ())
        state = self.template.with_shared(shared.get(self.name)).fresh(start, stop)
        stored, reader = not maps and self.counted.every, self.reader.with_inputs(inputs)
        reader, ahead = sent_to(self.device if self.sent else HOST, reader, inputs, stored=stored)
        step = Preparing(
            self.reader, self.dtype, device=self.device, maps=maps, searched=stored and self.sent,
            made_here=not self.counted.every,
        )  # fmt: skip

        def prepare(slab: Values, row: int) -> Values:
            check()
            return self._prepare(step, slab, row, shared[SHIFT])

        def close() -> PassState:
            if self.sent:
                step.check(state.arrays_there())
            state.close()
            return PassState({self.name: state}, stop - start, 0, {self.index: self.stamp})

        blocks, add = partial(self._blocks, state, held, prepare), partial(self._add, state, held)
        with self.device.precise():
            yield Folding(reader, blocks, add, close, ahead)

    @abstractmethod
    def _blocks(self, state: P, held: Held, prepare: Prepare, slab: Values, row: int) -> Iterator[B]:
        """Prepare the rows of a slab, and hold them if they are of the panel."""

    @abstractmethod
    def _add(self, state: P, held: Held, block: B) -> None:
        """Add the pairs of a block with what is held."""

    def _prepare(self, step: Preparing, slab: Values, row: int, shift: Vector | None) -> Values:
        """Return the rows of a slab, mapped, times the roots of their weights, less the shift if there is one."""
        where = self.reader.where(row, row + slab.shape[0])
        about, own = np.zeros(slab.shape[1]) if shift is None else shift, self.counted.emptied(slab, row)
        block = step.prepared(own, row, where, about, owned=own is not slab)
        values = map_rows(step.maps, block.values, block.rows, where) if step.maps else block.values
        if not step.plain and about.any():
            values = form_of(values).affine(values, about.astype(self.dtype), None, values)
        values = self.counted.rooted(values, row)
        return values if shift is None else self.device.within_range(values, block.largest)


@dataclass(frozen=True, kw_only=True)
class DotGroup(PanelGroup[DotPanels, tuple[int, Values]]):
    """Fills one panel of the dot matrix from pairs of slabs."""

    name: ClassVar[str] = "dot"

    def _blocks(
        self, state: DotPanels, held: Held, prepare: Prepare, slab: Values, row: int
    ) -> Iterator[tuple[int, Values]]:
        rows = state.scaled(prepare(slab, row), self.device)
        if row < self.panel[1]:
            held.append((row, rows))
        yield row, rows

    def _add(self, state: DotPanels, held: Held, block: tuple[int, Values]) -> None:
        row, rows = block
        columns = transposed(rows)
        each_piece(lambda one: state.add_pair(*one, row, columns, self.device), held)


def dot_dtype(rows: Rows, *, corrected: bool = False) -> DType:
    """Dtype in which the blocks of the dot matrix are multiplied.

    If the first order of its error is ``corrected`` afterwards, float32 is used from a tenth of the usual cost on.
    Sparse rows, which are centred after they are multiplied, are always multiplied in float64.
    """
    flops = float(rows.n_rows) ** 2 * rows.n_columns
    return rows.origin.form.projected_dtype(product_dtype(rows.dtype, CORRECTED * flops if corrected else flops))


@dataclass(frozen=True)
class PanelRead(Read[R_co]):
    """The dot matrix, filled over pairs of row panels: (panels + 1) / 2 reads of X.

    The shift is subtracted from every row, after the row maps.
    """

    @classmethod
    def of_panels(
        cls, rows: Rows, count: int, *, dtype: DType | None = None, blocks: Blocks | None = None
    ) -> PanelRead[DotPanels]:
        """Declare it with at most ``count`` panels; ``count`` changes no bit of the result.

        Rows are multiplied in ``dtype``, by default that of :func:`dot_dtype`. The finish has the panels and the
        matrix.
        """
        check_any_order(rows, "a dot matrix of all rows")
        base, dtype = rows.layout(0), dtype or dot_dtype(rows)
        device, own = rows.device
        # The reads are joined into at most ``count`` groups of about equal size.
        n, ends = rows.n_rows, np.fromiter((stop for _, stop in base.reads), np.int64)
        joined = coalesce(np.diff(ends, prepend=0), 1, -(-n // count))
        stops = (np.searchsorted(ends, np.cumsum(joined)) + 1).tolist()
        ranges = tuple(map(range, [0, *stops], stops)), tuple(map(range, range(len(stops)), range(1, len(stops) + 1)))
        decoded = np.diff(ends, prepend=0)
        for reads in ranges[0]:  # all rows after those of a panel are read past them
            decoded[reads.start] += n - ends[reads.stop - 1]
        slab_rows = min(base.slab_rows, base.read_rows)
        price = priced(rows, slab_rows, dtype)
        read = price.read_bytes(base.read_rows)
        held = max(1, -(-n // (len(stops) * slab_rows)) // 2)  # slabs, with which one is multiplied
        layout = PanelLayout(
            n, base.n_columns, base.row_bytes, base.slab_rows, base.reads, *ranges, decoded=tuple(decoded.tolist()),
            strips=1 if rows.sparse else min(PIECES, held * -(-rows.n_columns // WIDTH)),
        )  # fmt: skip
        panel_rows = max(count for count, _ in layout.sizes)
        template = DotPanels(n, rows.n_columns, blocks)
        copied, scratch = price.copied * slab_rows, price.work.bytes
        if rows.sparse:  # their transpose, and the sums of columns
            scratch += copied + 4 * 8 * rows.n_columns
        # On a device: rows of the panel and of a slab, as they come and scaled; its entries, and those of a slab with
        # all rows.
        wide, there = rows.n_columns * dtype.itemsize, own.driven and rows.counted.every
        entries = template.state_bytes // n * (panel_rows + 2 * slab_rows)
        entries += gram_bytes(slab_rows, rows.n_columns, dtype.itemsize)
        moved = (panel_rows + 3 * slab_rows) * wide + entries + there * 4 * read
        held, device_bytes = device.held(math.ceil(panel_rows * price.held), moved)
        cost = read_cost(
            rows, "dot", layout, [template], dtype, flops=n * template.cost(price.form).flops, read=read, copied=copied,
            scratch=scratch, held=held, collected=True, device=device, there=there, device_bytes=device_bytes,
        )  # fmt: skip
        # Panels, the matrix, and what the allocator still keeps of the reads: up to 6 % of the plan without it.
        cost = replace(cost, finish_bytes=2 * template.state_bytes + cost.peak_bytes - held)
        return PanelRead(rows, {"dot": template}, cost, methodcaller("part", "dot", DotPanels))

    def job(self, run: Run, shift: Vector | None = None) -> Pass[R_co]:
        rows, cost, layout = self.rows, self.cost, cast("PanelLayout", self.cost.layout)
        (template,), stamp = cast("Iterable[DotPanels]", self.states.values()), one_stamp(run, rows)

        def cut(group: int) -> tuple[GroupTask, Inputs]:
            panel, members = layout.rows_of(group), layout.groups[group]
            reader, futures = rows.reader(panel[0], layout.n_rows, cost)
            reads, later = layout.reads[members.start : members.stop], layout.parts_after(group)
            task = DotGroup(
                index=group, reader=reader, reads=reads, parts=later, slab_rows=layout.slab_rows, stamp=stamp(group),
                panel=panel, dtype=cost.dtype, template=template, counted=rows.counted, device=cost.device,
            )  # fmt: skip
            return task, futures

        return pass_over(run, cost, rows, self.states, cut, self.finish, stamp=stamp, shift=shift)


# Zarr decodes whole chunks, so this takes one read only if the store is chunked in columns.
ColumnState: TypeAlias = DotSum | DotProduct | ColumnProducts | ObservedBlocks
C = TypeVar("C", DotSum, DotProduct, ColumnProducts, ObservedBlocks)


@dataclass(frozen=True, kw_only=True)
class ColumnGroup(Group[Values]):
    """Folds column blocks of all rows into one sum of dot matrices: the "rows" that are read are columns."""

    dtype: DType
    template: ColumnState
    counted: CountedRows = field(default_factory=CountedRows)
    steps: tuple[StoredMap, ...] = ()  # of these columns

    @contextmanager
    def begin(self, inputs: Inputs, check: object) -> Iterator[Folding]:
        shared, reader = inputs.get(SHARED, {}), self.reader.with_inputs(inputs)
        state = self.template.with_shared(shared.get("dot")).fresh(0, 0)

        def close() -> PassState:
            state.close()
            columns = self.reads[-1][1] - self.reads[0][0]
            return PassState({"dot": state}, columns, 0, {self.index: self.stamp})

        # Squares that overflow float32 make the product infinite; it is then repeated in float64.
        with np.errstate(over="ignore", invalid="ignore"):
            yield Folding(reader, self._blocks, state.update, close)

    def _blocks(self, columns: Array, first: int) -> Iterator[Block]:
        last, start = first + columns.shape[1], self.reads[0][0]
        columns, where = self.counted.emptied(columns, 0, 0), self.reader.where(first, last)
        for f in self.steps:
            columns = f.of_columns(first - start, last - start).apply(columns, where)
        values = np.ascontiguousarray(columns.astype(self.dtype, copy=False))
        shift = None if self.template.center else np.zeros(values.shape[1])
        step = Preparing(self.reader, self.dtype, keeps_nan="nan" in self.template.accepts)
        block = self.counted.weigh(step.prepared(values, 0, where, shift, owned=True), 0)
        yield replace(block, rows=np.arange(first, last))


def column_layout(rows: Rows) -> Layout | None:
    """Return the layout of a fold over column blocks, or None if the store is not chunked in columns."""
    source = rows.by_columns
    if source is None or source.column_chunk >= source.shape[1]:
        return None
    d, width = rows.n_columns, source.column_chunk
    chunks = [min(width, d - j) for j in range(0, d, width)]
    return plan_layout(chunks, rows.n_rows, rows.dtype, 8 * rows.n_rows**2)


@dataclass(frozen=True)
class ColumnRead(Read[R_co]):
    """A fold over column blocks of all rows, each centred exactly before its product: one read of X.

    The state is a DotSum (for the dot matrix), a DotProduct (for its product with V), ColumnProducts (for V' X), or
    ObservedBlocks (for what there is).
    """

    @classmethod
    def of_columns(
        cls,
        rows: Rows,
        name: str,
        template: C,
        layout: Layout,
        *,
        refinable: bool = False,
        collected: bool = False,
        dtype: DType | None = None,
    ) -> ColumnRead[C]:
        """Declare it.

        Products have the dtype of a DotProduct, or else ``dtype``, by default that of a dot matrix. Collected states
        are pieces that are concatenated at the end; of others, the finish has three.
        """
        check_any_order(rows, "a read of column blocks")
        check_dense(rows, "a read of column blocks")
        reject_weights(rows, [] if "weights" in template.accepts else [template.tag])
        n = rows.n_rows
        dtype = template.dtype if isinstance(template, DotProduct) else dtype or dot_dtype(rows)
        read = layout.read_rows * n * rows.dtype.itemsize
        slab = min(layout.slab_rows, layout.read_rows) * n * (8 if refinable else dtype.itemsize)
        work = template.cost(BlockForm(n))
        cost = read_cost(
            rows, name, layout, [template], dtype, flops=float(rows.n_columns) * work.flops, read=read, copied=slab,
            scratch=work.bytes, held=slab, finish_bytes=(2 if collected else 3) * template.state_bytes,
            collected=collected, refinable=refinable, device=HOST,
        )  # fmt: skip
        cost = replace(cost, reads=1.0, bytes_read=n * rows.n_columns * rows.dtype.itemsize, block_rows=n)
        finish: Finish[C] = methodcaller("part", "dot", type(template))
        return ColumnRead(rows, {"dot": template}, cost, finish)

    def job(self, run: Run, shift: Vector | None = None) -> Pass[R_co]:
        """Return the pass.

        Raises
        ------
        ValueError
            If they are not columns of a store as they are: for views, row maps and Dask graphs.
        """
        rows, cost, layout = self.rows, self.cost, self.cost.layout
        (template,) = cast("Iterable[ColumnState]", self.states.values())
        source = rows.by_columns
        if source is None:
            made = "row maps" if rows.steps else "a view" if rows.origin.view is not None else "a Dask graph"
            raise ValueError(
                f"the columns are computed by {made}, but column blocks must be read from a store. Fold over "
                "rows, or write the rows to a store chunked in columns first."
            )
        stamp = one_stamp(run, rows)

        def cut(group: int) -> tuple[GroupTask, Inputs]:
            reads = tuple(layout.reads[i] for i in layout.groups[group])
            steps = tuple(cast("StoredMap", one.f).of_columns(reads[0][0], reads[-1][1]) for one in rows.steps)
            task = ColumnGroup(
                index=group, reader=ColumnReader(source), reads=reads, slab_rows=layout.slab_rows, stamp=stamp(group),
                dtype=cost.dtype, template=template.for_rows(0, layout.n_rows), counted=rows.counted, steps=steps,
            )  # fmt: skip
            return task, {}

        job = pass_over(run, cost, rows, self.states, cut, self.finish, stamp=stamp)
        return replace(job, unit_bytes=rows.n_rows * rows.dtype.itemsize, whole=rows.n_columns)
