"""One read: all rows, or a sample, go into accumulators group by group, which merge in a fixed tree.

One task reads several consecutive chunks, slab by slab with one read ahead, and reduces them to ONE state; a raw chunk
is never the result of a task, because neither queuing nor spilling bounds the memory of results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, Self, TypeAlias, TypeVar, cast

import numpy as np

from bigpca.arrays import DType, Vector, working_dtype
from bigpca.blas import solve_paused
from bigpca.costs import BlockForm
from bigpca.csr import form_of
from bigpca.data.sparse import stacked
from bigpca.data.weights import CountedRows
from bigpca.devices import Namespace, host_array, namespace_of, solving_on, taken
from bigpca.engine.driver import run_pass
from bigpca.engine.group import SHARED, Folding, Group, Reads
from bigpca.engine.interfaces import Inputs
from bigpca.engine.jobs import Finish, GroupTask, Pass, PassState
from bigpca.engine.layout import MAX_SEGMENTS, MIB, SLAB_ROWS, split_evenly
from bigpca.engine.planning import Layout, PassCost
from bigpca.engine.run import Run
from bigpca.forms import Values
from bigpca.host import HOST
from bigpca.passes.accumulators.base import Accumulator, cost_of, update_all
from bigpca.passes.prices import priced, read_cost
from bigpca.passes.reading.blocks import Block, Preparing, product_dtype
from bigpca.passes.reading.readers import MAPS, SHIFT, sent_to
from bigpca.passes.rows import Rows, pass_over, reject_weights
from bigpca.seeds import uniforms

A = TypeVar("A", bound=Accumulator)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
# A sample consists of runs spread evenly over the file, one run at a random place in each stratum: dumps are often
# sorted by class, and consecutive rows need few chunks. The choice does not depend on chunks or workers.
RUNS = 16
SAMPLE_BYTES = 384 * MIB
SAMPLE_ROWS = 4096
ROWS_PER_COLUMN = 16
SAMPLE_SHARE = 10  # at most every tenth row


@dataclass(frozen=True)
class Folded(Generic[A]):
    """The state of one accumulator after a read.

    Attributes
    ----------
    state : Accumulator
    omitted : int
        Rows omitted because of NaN or infinite values.
    rows : int
        Rows read, with those omitted and those of weight 0.
    """

    state: A
    omitted: int
    rows: int


@dataclass(frozen=True)
class Read(Generic[R_co]):
    """One read of X that is folded into states: declared, planned by its cost, and executed by calling it.

    Attributes
    ----------
    rows : Rows
    states : dict of str to Accumulator
        Empty, by name; updated in the same read. Those of a declaration may hold zeros for numbers that are not known
        before it runs; see :meth:`holding`.
    cost : PassCost
        As the plan has it: also what a run is held to.
    finish : callable
        Picklable; the merged state -> result. Runs where that state is (in a task on a cluster), so that only the
        result is transferred.
    """

    rows: Rows
    states: Mapping[str, Accumulator]
    cost: PassCost
    finish: Finish[R_co]

    @staticmethod
    def into(
        rows: Rows,
        name: str,
        state: A | Mapping[str, Accumulator],
        *,
        cut_bytes: int | None = None,
        work: float | None = None,
        layout: Layout | None = None,
        dtype: DType | None = None,
        refinable: bool = False,
        finish_bytes: int | None = None,
        collected: bool = False,
    ) -> Read[Folded[A]]:
        """Declare a read into one state, its result, or into several; :meth:`to` then makes the result of them.

        Parameters
        ----------
        cut_bytes : int or None
            State size from which rows are cut into groups; None for that of all states. Where it and ``work`` are
            given, an additional accumulator changes no group, and so no bit.
        work : float or None
            Floating-point operations from which the precision of the products is chosen; None for those of all states
            in dense rows.
        layout : Layout or None
            The rows that are read, and how they are cut; None for all rows, cut by ``cut_bytes``.
        dtype : numpy.dtype or None
            Dtype in which blocks are multiplied; None chooses by ``work``.
        refinable : bool
            Whether the fit may switch to float64, for which memory is then planned.
        finish_bytes : int or None
            None for three states: that of all rows, and two that are computed from it.
        collected : bool
            As in :class:`bigpca.engine.planning.PassCost`.
        """
        states = {"state": state} if isinstance(state, Accumulator) else state
        folded, (device, own) = list(states.values()), rows.device
        reject_weights(rows, [one.tag for one in folded if "weights" not in one.accepts])
        if work is None:
            work = float(rows.n_rows) * sum(one.cost(BlockForm(rows.n_columns)).flops for one in folded)
        if layout is None:
            held, least = sum(one.state_bytes for one in folded) if cut_bytes is None else cut_bytes, work
            if rows.sparse:
                least = min(work, sum(cost_of(one, priced(rows).form).flops for one in folded) * rows.n_rows)
            layout = rows.layout(held, least)
        dtype = dtype or product_dtype(rows.dtype, work)
        widest = np.dtype(np.float64) if refinable else dtype
        block_rows = min(layout.slab_rows, layout.read_rows)
        price = priced(rows, block_rows, widest)
        copied = max(price.copied * block_rows, price.read_bytes(block_rows) if layout.runs else 0)
        merging = 1 + len(layout.groups).bit_length()
        device, device_bytes = taken(device, folded, price.form, merging, staying=own.driven)
        stays = own.driven and device.driven
        if stays:  # rows take none of the host's memory
            copied, price = 0, priced(rows, min(block_rows, SLAB_ROWS), widest)
        block = sum((cost_of(one, price.form) for one in folded), price.work)
        read = price.read_bytes(max([layout.read_rows, *(layout.decoded if layout.runs else ())]))
        # One read is in use while the next one waits: that of the same group or, in an object store, of the next group.
        several = max(map(len, layout.groups), default=1) > 1
        held_reads = 2 if several or (rows.origin.requests[0] and len(layout.groups) > 1) else 1
        cost = read_cost(
            rows,
            name,
            layout,
            folded,
            dtype,
            flops=float(layout.n_rows) * block.flops,
            read=0 if stays else read,
            copied=copied,
            scratch=block.bytes,
            held_reads=held_reads,
            more=len(layout.reads) > held_reads,
            finish_bytes=finish_bytes,
            device_bytes=device_bytes + stays * (several + 3) * read,
            collected=collected,
            refinable=refinable,
            device=device,
            there=stays,
        )
        return Read(rows, states, cost, _Whole(cast("type[A]", type(state))))

    def holding(self, state: Accumulator, rows: Rows | None = None) -> Self:
        """Return the same read into a state, and of rows, with the numbers that a run has found."""
        (name,) = self.states
        return replace(self, states={name: state}, rows=self.rows if rows is None else rows)

    def costing(self, **changed: object) -> Self:
        """Return the same read with these fields of its cost changed."""
        return replace(self, cost=replace(self.cost, **changed))  # type: ignore[arg-type]  # by name

    def repeated(self, times: float, most: float | None = None) -> Self:
        """Return the same read, run so many times, typically and at most."""
        return replace(self, cost=self.cost.repeated(times, most))

    def to(self, finish: Finish[T]) -> Read[T]:
        """Return the same read with another finish."""
        return cast("Read[T]", replace(self, finish=cast("Finish[R_co]", finish)))

    def __call__(self, run: Run, *, shift: Vector | None = None) -> R_co:
        """Read X, and return what the finish makes of the merged state.

        Parameters
        ----------
        shift : ndarray of shape (d,) or None
            Subtracted from all rows after their maps (rounded to their precision). None: each group subtracts the mean
            of its first slab.

        Raises
        ------
        TypeError
            If the rows have weights that a state cannot use.
        NonFiniteError, MissingChunksError, CorruptedChunkError
            From the read; names rows and block.
        """
        return run_pass(self.job(run, shift), run)

    def job(self, run: Run, shift: Vector | None = None) -> Pass[R_co]:
        """Return the pass of a call, ready to run."""
        rows, cost, layout, counted = self.rows, self.cost, self.cost.layout, self.rows.counted
        whole = layout.n_rows == rows.n_rows and not run.adds
        absent = rows.n_rows - rows.n_present if counted.coming is None else counted
        own = _OfRows(self.finish, cost.device, absent if whole else None)

        def stamp(group: int) -> str:
            return rows.origin.stamp(*layout.rows_of(group)) if run.checkpoint else ""

        def cut(group: int) -> tuple[GroupTask, Inputs]:
            (start, stop), of_group = layout.rows_of(group), layout.groups[group]
            reads = layout.reads[of_group.start : of_group.stop]
            reader, futures = rows.reader(start, stop, cost)
            known = "" if rows.order.in_order else stamp(group)  # of rows in order: after they were read
            states = {name: a.for_rows(start, stop) for name, a in self.states.items()}
            task = FoldGroup(
                index=group, reader=reader, reads=reads, slab_rows=layout.slab_rows, stamp=known, strips=layout.strips,
                dtype=cost.dtype, nan_policy=rows.nan_policy, templates=states, counted=counted.part(start, stop),
                device=cost.device, runs=layout.runs_of(group),
            )  # fmt: skip
            return task, futures

        job = pass_over(run, cost, rows, self.states, cut, own, stamp=stamp, shift=shift)
        return replace(job, follows=rows.origin.requests[0] > 0)


@dataclass(frozen=True)
class _OfRows(Generic[R]):
    """A finish that solves large problems on the device of its pass, wherever the state is.

    If the state is of all rows, at least one was added to it, beside those that do not count (``absent``: their number,
    or what knows it once labels came with the rows).
    """

    finish: Finish[R]
    device: Namespace
    absent: int | CountedRows | None

    def __call__(self, state: PassState) -> R:
        if self.absent is not None and state.omitted:
            absent = self.absent.absent(state.rows) if isinstance(self.absent, CountedRows) else self.absent
            if state.omitted + absent == state.rows:
                raise ValueError(
                    f"Found array with 0 samples after {state.rows} rows with NaN or infinite values were left out. "
                    "Leave out columns that have no value in any row, by bp.open(source, columns=...), or fill in the "
                    'missing values, such as by nan_policy="mean" of PCA.'
                )
        with solving_on(self.device):
            return self.finish(state)


@dataclass(frozen=True)
class _Whole(Generic[A]):
    """A finish that returns the accumulator itself."""

    kind: type[A]

    def __call__(self, state: PassState) -> Folded[A]:
        return Folded(state.part("state", self.kind), state.omitted, state.rows)


@dataclass(frozen=True, kw_only=True)
class FoldGroup(Group[Values]):
    """Folds the rows of one group, or the runs in them."""

    dtype: DType
    nan_policy: str
    templates: dict[str, Accumulator]
    counted: CountedRows = field(default_factory=CountedRows)
    device: Namespace = HOST
    runs: Reads = ()

    def slabs(self, start: int, stop: int) -> Iterable[tuple[int, int]]:
        for first, last in self.runs or ((start, stop),):
            yield from super().slabs(max(first, start), min(last, stop))

    @contextmanager
    def begin(self, inputs: Inputs, check: object) -> Iterator[Folding]:
        shared, (start, stop) = inputs.get(SHARED, {}), (self.reads[0][0], self.reads[-1][1])
        given = {name: a.with_shared(shared.get(name)).there(self.device) for name, a in self.templates.items()}
        parts = {name: a.fresh(start, stop) for name, a in given.items()}
        reader, ahead = sent_to(self.device, self.reader.with_inputs(inputs), inputs, stored=MAPS not in shared)
        strip_shift = shift = shared.get(SHIFT)
        step = Preparing(
            self.reader, self.dtype, self.nan_policy, self.device, shared.get(MAPS, ()), self.counted, start, shift,
            searched=any(part.needs_largest for part in parts.values()),
            keeps_nan=all("nan" in part.accepts for part in parts.values()),
            copied=bool(self.runs),
        )  # fmt: skip

        def update(block: Block) -> None:
            nonlocal strip_shift
            strip_shift = update_all(parts.values(), block, strip_shift)

        def close() -> PassState:
            for part in parts.values():
                part.note_rows(step.count)
                part.close()
            step.check(array for part in parts.values() for array in part.arrays_there())
            return PassState(parts, step.count, step.omitted, {self.index: self.stamp})

        # Squares that overflow float32 make the product infinite; it is then repeated in float64.
        with self.device.precise(), np.errstate(over="ignore", invalid="ignore"):
            yield Folding(reader, step.apply, update, close, ahead)


@dataclass(frozen=True)
class FirstRows:
    """The read of the first rows that count, whose mean is so near that of all rows that centring costs no digits.

    Attributes
    ----------
    rows : Rows
    layout : Layout
        Of the passes that are shifted by the mean.
    name : str
        Of the read.
    """

    rows: Rows
    layout: Layout
    name: str = "first rows"

    @cached_property
    def reads(self) -> Sequence[tuple[int, int]]:
        """The read that has the first row that counts, or all that may have it.

        Which rows are omitted is known only after they are read, so all reads may be needed. Batches can be read only
        once: only their first read is there.
        """
        rows, present = self.rows, self.rows.counted.present
        layout = self.layout
        reads = layout.reads if present is None else [one for one in layout.reads if present[slice(*one)].any()]
        omits = rows.nan_policy == "omit" and rows.dtype.kind == "f" and not rows.order.in_order
        return reads if omits else reads[:1]

    @cached_property
    def cost(self) -> PassCost:
        """The first read, and others where all rows of that may be left out."""
        rows, (start, stop) = self.rows, self.reads[0] if self.reads else (0, 0)
        whole = rows.sparse or stop == start  # sparse rows are read as they are decoded
        decoded = stop - start if whole else int(np.diff(rows.origin.decoded(start, stop))[0])
        size = int(decoded * rows.origin.row_bytes)
        cost = PassCost(name=self.name, reads=decoded / max(1, rows.n_rows), bytes_read=size)
        return cost.repeated(1, max(1, len(self.reads)))

    def __call__(self, run: Run) -> Vector:
        """Return the mean of the first rows (d,)."""
        first = self.values(run, there=self.rows.device[1].driven)
        shift: Vector = host_array(form_of(first).mean(first)).astype(np.float64)
        return shift

    def values(self, run: Run, *, there: bool = False) -> Values:
        """Return the rows that count of the first slab that has any, mapped, in the working dtype."""
        rows, dtype, most = self.rows, working_dtype(self.rows.dtype), self.layout.slab_rows
        for start, stop in self.reads:
            run.read_beside(self.cost)
            reader, futures = rows.reader(start, stop, there=there)
            reader = reader.with_inputs({k: f.result() for k, f in futures.items()})
            with solve_paused():  # because nodes of a graph may fold rows themselves
                read = reader.read(start, stop)
            step = Preparing(
                reader, dtype, rows.nan_policy, namespace_of(read), rows.steps, rows.counted.part(start, stop), start,
                np.zeros(rows.n_columns),
            )  # fmt: skip
            ranges = ((row, min(row + most, stop)) for row in range(start, stop, most))
            for row, slab in reader.slabs(read, start, ranges):
                if found := [block.values for block in step.apply(slab, row)]:
                    return stacked(found)
        return np.zeros((0, rows.n_columns), dtype)


Declared: TypeAlias = Read[object] | FirstRows | PassCost  # or the cost of a read by others


def costs(declared: Iterable[Declared]) -> tuple[PassCost, ...]:
    """Return what declared reads cost."""
    return tuple(one if isinstance(one, PassCost) else one.cost for one in declared)


def sample_size(n: int, row_bytes: int, least: int) -> int:
    """Rows of a sample: 16 for each of the ``least`` columns of a start, at most a tenth of n, 4,096 rows and 384 MiB.

    The limit in bytes never falls below 4 rows per column. Returns 0 if a tenth of the rows is fewer than ``least``.

    >>> sample_size(25_000, 4 * 25_088, 100), sample_size(25_000, 4 * 100_352, 100), sample_size(900, 400, 100)
    (1600, 1003, 0)
    """
    most = max(SAMPLE_BYTES // max(1, row_bytes), 4 * least)
    wanted = min(n // SAMPLE_SHARE, ROWS_PER_COLUMN * least, SAMPLE_ROWS, most)
    return wanted if wanted >= least else 0


def sample_runs(n: int, wanted: int, seed: int) -> tuple[tuple[int, int], ...]:
    """Return (start, stop) of the runs of a sample of ``wanted`` rows: one in each of 16 equal strata.

    >>> runs = sample_runs(1_000, 160, seed=0)
    >>> len(runs), sum(b - a for a, b in runs), all(a // 62.5 == i for i, (a, _) in enumerate(runs))
    (16, 160, True)
    """
    count = min(RUNS, wanted)
    places = uniforms(seed, "sample", 0, count, 1)[:, 0]
    lengths = [wanted * (i + 1) // count - wanted * i // count for i in range(count)]
    runs = []
    for i, length in enumerate(lengths):
        first, last = -(-i * n // count), (i + 1) * n // count
        start = first + int(places[i] * (last - first - length + 1))
        runs.append((start, start + length))
    return tuple(runs)


def runs_layout(rows: Rows, runs: Sequence[tuple[int, int]]) -> Layout:
    """Return the layout of a read of those runs alone, which ascend: what is stored together is decoded once.

    A read begins at the first row that is not decoded for the read before it, and ends with the last run in the rows
    that are decoded for it. Where these are more than a slab, it holds rows of one chunk.
    """
    base = rows.layout(0)
    reads: list[tuple[int, int]] = []
    known = 0  # rows before it are decoded for the reads so far
    for start, stop in runs:
        while start < stop:
            if start < known:
                end = min(stop, known)
                reads[-1] = (reads[-1][0], end)
            else:
                end = min(stop, start + base.slab_rows)
                first, known = rows.origin.decoded(start, end)
                if known - first > base.slab_rows:
                    known = rows.origin.decoded(start, start + 1)[1]
                    end = min(end, known)
                reads.append((start, end))
            start = end
    decoded = tuple(last - first for first, last in (rows.origin.decoded(*read) for read in reads))
    # A group of a Dask array holds the values shared by its nodes until the last of them has run: one read each.
    groups = split_evenly([1] * len(reads), len(reads) if rows.origin.stored is None else MAX_SEGMENTS)
    segments = split_evenly([1] * len(groups), MAX_SEGMENTS)
    count = sum(stop - start for start, stop in runs)
    return replace(
        base, n_rows=count, reads=tuple(reads), groups=groups, segments=segments, runs=tuple(runs), decoded=decoded
    )
