"""What a run will cost, computed before any row is read: what passes and solves cost, and the plan, their sum.

Plain arithmetic on shapes and limits, in this order: how the rows of a pass are cut (``Layout``), the cost of a pass
and of a solve (``PassCost``, ``SolveCost``), and the ``Plan`` that a user sees, which rejects what does not fit. The
limits come from :mod:`bigpca.engine.resources`, which queries Dask and the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any, Self

import numpy as np

from bigpca.arrays import DType
from bigpca.errors import EvaluationBudgetError, MemoryBudgetError, Shown, counted, format_bytes
from bigpca.settings import MAPPED_FROM

PIECES = 64  # of a read: groups, if each has enough work for its state, or strips of the products of fewer groups
MIN_GROUP_BYTES = 4 << 20
BYTE_WORK = 40  # operations that take as long as decoding and checking a byte of rows, or merging one of a state
MERGED_BYTES = 1 << 18  # of a state that is merged in pieces, one of them
# Of a thread beside its arrays: its stack, Python objects, pages of libraries; at most 1.2 MiB were measured.
THREAD_BYTES = 2 << 20
DOUBLE: DType = np.dtype(np.float64)
COSTLY = 1e10  # operations from which a plan says that a read leaves threads idle
TASK_SECONDS = 0.002  # of scheduling and of merging small states
STATE_SPEED = 3e9  # bytes of states that one core fills, adds or merges in a second
# What makes a block, and all that is computed from it, smaller: the end of every error about memory.
SMALLER_CHUNKS = "store the input in smaller chunks (bp.ingest(source, out, chunk_rows=...))"
SAFE_SHARE = 0.75  # of a worker's memory limit; Dask pauses the worker at 0.80


def peak_bytes(read_bytes: int, copy_bytes: int, product_bytes: int, held_reads: int = 2, *, more: bool = True) -> int:
    """Return the peak bytes of one worker thread beside states: 3 reads + 1 slab (if it is copied) + product.

    Two reads are held (one in use, the next being read; only one if a group has one) and a third accounts for the
    decoder's buffers. A slab is a copy if rows are upcast or owned by someone else, and otherwise a view of its read.
    Where ``more`` reads follow those that are held, a freed one that is too small to be mapped stays in the heap.
    """
    kept = read_bytes if more and read_bytes < MAPPED_FROM else 0
    return (held_reads + 1) * read_bytes + kept + copy_bytes + product_bytes


@dataclass(frozen=True)
class Layout:
    """The boundaries of the reads, groups and segments of one pass.

    Attributes
    ----------
    n_rows, n_columns : int
    row_bytes : int
        Bytes of one row in the working dtype; of sparse rows, on average.
    slab_rows : int
        Largest number of rows multiplied at a time.
    reads : tuple of (start, stop)
        Consecutive row ranges.
    groups, segments : tuple of range
        Ranges of reads, and ranges of groups.
    runs : tuple of (start, stop)
        The rows that are analysed, where reads hold others too; empty for all rows of the reads.
    decoded : tuple of int
        Rows decoded for each read, where it is only a part of what is stored together; empty for those of the reads.
    strips : int
        In which the products of a slab are computed.
    """

    n_rows: int
    n_columns: int
    row_bytes: int
    slab_rows: int
    reads: tuple[tuple[int, int], ...]
    groups: tuple[range, ...]
    segments: tuple[range, ...]
    runs: tuple[tuple[int, int], ...] = ()
    decoded: tuple[int, ...] = ()
    strips: int = 1

    @cached_property
    def read_rows(self) -> int:
        """Rows of the largest read."""
        return max((stop - start for start, stop in self.reads), default=0)

    def rows_of(self, group: int) -> tuple[int, int]:
        """Return the rows [start, stop) of a group."""
        reads = self.groups[group]
        return self.reads[reads[0]][0], self.reads[reads[-1]][1]

    def runs_of(self, group: int) -> tuple[tuple[int, int], ...]:
        """Return the runs in a group; empty for all of its rows."""
        if not self.runs:
            return ()
        start, stop = self.rows_of(group)
        return tuple((max(a, start), min(b, stop)) for a, b in self.runs if a < stop and b > start)

    @cached_property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """For each group, the rows that are analysed, and those that are decoded for it."""
        found = []
        for group, reads in enumerate(self.groups):
            count = sum(b - a for a, b in self.runs_of(group) or (self.rows_of(group),))
            found.append((count, sum(self.decoded[i] for i in reads) if self.decoded else count))
        return tuple(found)

    @property
    def decoded_rows(self) -> int:
        """Rows decoded for all groups."""
        return sum(self.decoded) if self.decoded else self.n_rows

    def held_states(self, threads: int, *, local: bool) -> int:
        """Return the most states that a process with so many threads holds at a time.

        Each thread fills one, others wait to be merged, and each merge makes one more. There are never more than one
        for each group and one for each merge at a time: one merge if every group is a segment of its own. In this
        process, two groups a thread begin before the sum of all earlier ones is complete, and unmerged subtrees of
        segments wait, whose number grows with the depth of the trees. The formula bounds what was held in simulated
        passes of 2 to 4,096 groups on 1 to 16 threads, in which groups took up to 30 times as long as others. Which
        groups a worker gets is not known: each thread fills one state, a task that merges four holds seven, and two of
        the next segment wait for groups elsewhere.
        """
        longest = max(map(len, self.segments), default=1)
        merged = 1 if longest == 1 else max(1, min(threads, len(self.groups) // 2))
        most = 2 * threads + 2 + math.ceil(math.log2(longest) * min(threads, 2 + threads / 4))
        return min(len(self.groups) + merged, most if local else 4 * threads + 5)

    @property
    def pieces(self) -> int:
        """The most threads that work at a time: at groups, and at strips of their products."""
        return len(self.groups) * self.strips

    def parallelism(self, work: float, state_bytes: int) -> float:
        """Return all work of a read over that of its longest chain: how many threads it keeps busy.

        The chain is the largest group, whose products have strips; the tree of its segment; and the fold of half of the
        segments: on half as many threads as there are groups, so many end at about the same time.
        """
        if not self.n_rows:
            return 1.0
        product, read, merge = work / self.n_rows, float(BYTE_WORK * self.row_bytes), float(BYTE_WORK * state_bytes)
        largest = max(count * product / self.strips + decoded * read for count, decoded in self.sizes)
        merges = (max(map(len, self.segments)) - 1).bit_length() + len(self.segments) // 2
        pieces = min(PIECES, max(1, state_bytes // MERGED_BYTES))
        whole = work + self.decoded_rows * read + (len(self.groups) - 1) * merge
        return whole / (largest + merges * merge / pieces)


NO_ROWS = Layout(0, 0, 0, 1, (), (), ())  # of a read that is no pass of the engine


@dataclass(frozen=True, kw_only=True)
class PassCost:
    """One pass as a fit declares it: the plan is the sum of these, and a run that exceeds one of them fails.

    Attributes
    ----------
    name : str
        Of the pass; unique within a fit.
    reads : float
        Share of X that one execution decodes.
    most_reads : float
        The same in float64, where the fit may go over to it; 0 where that takes no more.
    times, most_times : float
        How often it runs: typically, and at most. They differ where the data decide.
    bytes_read : int
        Of one execution.
    block_rows : int
        Most rows multiplied at a time.
    state_bytes : int
        Most that one state may hold.
    peak_bytes : int
        Peak memory of one worker thread above the idle process, beside the states.
    finish_bytes : int
        Peak memory of the finish in the process that runs it, with the merged state.
    driver_bytes : int
        What the fitting process holds beside this pass.
    device_bytes : int
        Peak memory of one worker thread on the device of another array library; 0 without one.
    collected : bool
        Whether the states of groups are disjoint parts of one.
    shared_by : int
        The most threads that share the work on a slab, whatever its strips.
    flops, evaluations : float
        Floating-point operations and kernel evaluations of one execution.
    layout : Layout
        How the rows of a pass of the engine are cut; none for other reads.
    dtype : numpy.dtype
        Dtype in which blocks are multiplied.
    refinable : bool
        Whether the fit may switch to float64, for which the plan has room.
    device : Device or None
        What multiplies the rows instead of the cores; one thread drives it.
    there : bool
        Whether rows that come from that library stay on the device.
    """

    name: str
    reads: float = 1.0
    most_reads: float = 0.0
    times: float = 1.0
    most_times: float = 1.0
    bytes_read: int = 0
    block_rows: int = 0
    state_bytes: int = 0
    peak_bytes: int = 0
    finish_bytes: int = 0
    driver_bytes: int = 0
    device_bytes: int = 0
    collected: bool = False
    shared_by: int = PIECES
    flops: float = 0.0
    evaluations: float = 0.0
    layout: Layout = NO_ROWS
    dtype: DType = DOUBLE
    refinable: bool = False
    device: Any = None
    there: bool = False

    @property
    def by_cores(self) -> bool:
        """Whether cores multiply, and not what one thread drives, which then folds all groups of a process."""
        return not self.device_bytes

    @property
    def single(self) -> bool:
        """Whether blocks are multiplied in float32."""
        return self.dtype == np.float32

    @property
    def parallelism(self) -> float:
        """How many threads the pass keeps busy: its work over that of its longest chain; inf where nobody counts it."""
        state_bytes = 0 if self.collected else self.state_bytes
        layout = replace(self.layout, strips=min(self.layout.strips, self.shared_by))
        return layout.parallelism(self.flops, state_bytes) if layout.groups else inf

    def repeated(self, times: float, most: float | None = None) -> Self:
        """Return the same pass, run so many times, typically and at most."""
        return replace(self, times=times, most_times=times if most is None else most)


@dataclass(frozen=True)
class SolveCost:
    """What a fit computes and holds in the fitting process once its passes are done, and what it returns.

    Attributes
    ----------
    flops : float
    between : float
        Floating-point operations in float64 between the passes and beside ``flops``, for estimates of time alone: no
        fit is chosen by them.
    bytes : int
        Peak memory of the solve, with the states that it is computed from.
    held_bytes : int
        What the fitting process holds during all passes as well.
    """

    flops: float = 0.0
    between: float = 0.0
    bytes: int = 0
    held_bytes: int = 0


@dataclass(frozen=True)
class Resources:
    """What one process of the run may use.

    Attributes
    ----------
    threads : int
        Task threads per process.
    limit_bytes : int
        Memory limit of one process.
    baseline_bytes : int
        Memory that the idle process holds.
    where : str
        Where the limit comes from.
    local : bool
        Whether passes run in the planning process, which then also holds what an iteration keeps between passes.
    processes : int
        Processes that share the passes.
    single, double : float
        Floating-point operations of matrix products, in float32 and in float64, that one core does in a second; 0 where
        nobody asked how long a plan takes.
    read : float
        Bytes of stored rows that it decodes and prepares for a product in a second.
    """

    threads: int
    limit_bytes: int
    baseline_bytes: int
    where: str
    local: bool = True
    processes: int = 1
    single: float = field(default=0.0, compare=False)
    double: float = field(default=0.0, compare=False)
    read: float = field(default=0.0, compare=False)

    @property
    def room_bytes(self) -> int:
        """Bytes available to the run: three quarters of the limit, less the baseline."""
        return int(SAFE_SHARE * self.limit_bytes) - self.baseline_bytes


def format_seconds(seconds: float) -> str:
    """Return a time that was measured, for people.

    >>> [format_seconds(s) for s in (0.04, 2.25, 125, 7260)]
    ['0.04 s', '2.2 s', '2 min 05 s', '2 h 01 min']
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.1g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def format_estimate(seconds: float) -> str:
    """Return a planned time for people: of no more than two digits, and none below a second, which start-up exceeds.

    >>> [format_estimate(s) for s in (0.0058, 7.34, 95, 4000, 200_000)]
    ['under 1 s', 'about 7.3 s', 'about 1.6 min', 'about 1.1 h', 'about 2.3 days']
    """
    if seconds < 1:
        return "under 1 s"
    units = ((60, "s", 1), (3600, "min", 60), (86400, "h", 3600), (float("inf"), "days", 86400))
    unit, size = next((unit, size) for limit, unit, size in units if seconds < limit)
    return f"about {seconds / size:.2g} {unit}"


def format_times(count: float) -> str:
    """Return how often, for people.

    >>> format_times(1.0), format_times(2.063)
    ('once', '2.06 times')
    """
    return "once" if count == 1 else f"{count:.3g} times"


def plan_of(
    passes: Sequence[PassCost],
    solve: SolveCost,
    resources: Resources,
    *,
    solver: str,
    reason: str,
    notes: tuple[str, ...] = (),
    most_evaluations: float = inf,
    share: float = 1.0,
) -> Plan:
    """Return the cost of a fit: the sum of its passes, for that share of the declared rows, and its solve.

    What the fitting process holds is added where the passes run in the same process.
    """

    reads = sum(one.reads * one.times for one in passes)
    usual = [(one, one.times * share) for one in passes]
    most = sum(max(one.reads, one.most_reads) * one.most_times for one in passes)
    threads, local, peak = resources.threads, resources.local, 0
    for one in passes:
        states = 1 if one.collected else one.layout.held_states(threads, local=local)
        # Few groups leave some threads of this process idle; workers may have other numbers of threads.
        busy = min(threads, max(1, one.layout.pieces)) if local else threads
        passing = busy * one.peak_bytes + states * one.state_bytes
        peak = max(peak, max(passing, one.finish_bytes) + local * one.driver_bytes)
    if local:
        peak = max(peak, solve.bytes) + solve.held_bytes
    return Plan(
        solver=solver,
        reason=reason,
        passes=round(reads, 2),
        bytes_read=int(sum(one.bytes_read * times for one, times in usual)),
        flops=sum(one.flops * times for one, times in usual) + solve.flops,
        tasks=int(sum((2 * len(one.layout.groups) + 1) * times for one, times in usual)),
        state_bytes=max((one.state_bytes for one in passes), default=0),
        block_rows=max((one.block_rows for one in passes), default=0),
        peak_bytes=-(-peak // threads) + THREAD_BYTES,
        resources=resources,
        notes=notes,
        evaluations=sum(one.evaluations * times for one, times in usual),
        most_evaluations=most_evaluations,
        most_passes=round(most, 2) if round(most, 2) > round(reads, 2) else None,
        costs=tuple(one if share == 1 else replace(one, times=times) for one, times in usual),
        solve=solve,
        rows_known=share == 1,
    )


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """Cost of a run, before it runs.

    Attributes
    ----------
    solver, reason : str
        What will run, and why it was chosen.
    passes : float
        Reads of the whole input.
    bytes_read : int
        Bytes decoded over all passes.
    flops : float
        Floating-point operations of passes and solve.
    tasks : int
        Dask tasks, at most: on a cluster, a task merges up to four small states.
    state_bytes : int
        One accumulator state.
    block_rows : int
        Largest number of rows multiplied at a time.
    peak_bytes : int
        Peak memory of one worker thread above the idle process, with its share of what the process holds.
    resources : Resources
    notes : tuple of str
    evaluations : float
        Kernel evaluations; 0 without a kernel.
    most_evaluations : float
        Budget of kernel evaluations; a plan above it is rejected.
    most_passes : float or None
        Upper limit of the reads if their number depends on the data; ``passes`` is then the typical number. None if
        ``passes`` is exact.
    costs : tuple of PassCost
        The passes that it is the sum of; where the number of rows is not known, as often as a million rows take.
    solve : SolveCost
        What the fitting process computes.
    rows_known : bool
        Whether the number of rows is known. If it is not, bytes_read, flops, tasks and evaluations are those of a
        million rows.
    output_bytes : int
        Bytes of what is written; 0 for a fit.
    requests : int
        To an object store, over all passes; 0 for local files.
    flight_bytes : int
        The most bytes in flight from it, which the threads of a process share.
    """

    solver: str
    reason: str
    passes: float
    bytes_read: int
    flops: float
    tasks: int
    state_bytes: int
    block_rows: int
    peak_bytes: int
    resources: Resources
    notes: tuple[str, ...] = field(default=())
    evaluations: float = 0.0
    most_evaluations: float = inf
    most_passes: float | None = None
    costs: tuple[PassCost, ...] = ()
    solve: SolveCost = SolveCost()
    rows_known: bool = True
    output_bytes: int = 0
    requests: int = 0
    flight_bytes: int = 0

    def timed(self, speed: Mapping[str, float]) -> Self:
        """Return the same plan where these speeds of one core are known, which are those of :class:`Resources`."""
        return replace(self, resources=replace(self.resources, **speed))  # type: ignore[arg-type]  # by name

    @property
    def parallelism(self) -> dict[str, float]:
        """Read -> how many threads of the run it keeps busy: all its work over that of its longest chain of work."""
        threads = self.resources.threads * self.resources.processes
        return {one.name: round(min(threads, one.parallelism), 1) for one in self.costs if one.parallelism < inf}

    @property
    def idle(self) -> str | None:
        """Which read leaves threads of this run without work for long, and what to do; None if none does."""
        threads, solve = self.resources.threads * self.resources.processes, self.solve.flops + self.solve.between
        costly = [one for one in self.costs if one.flops > COSTLY and one.by_cores]
        worst = min(costly, key=lambda one: one.parallelism, default=None)
        if worst is None or worst.parallelism >= threads:
            return None
        whole = sum(one.flops * one.times for one in self.costs) + solve
        said = f"the read {worst.name!r} keeps {worst.parallelism:.2g} of {threads} threads busy"
        said += f"; the solve is {solve / whole:.0%} of the work"
        cut = worst.layout  # into chunks that are read at a time; smaller ones may keep more threads busy
        rows = max(cut.n_rows // PIECES, MIN_GROUP_BYTES // max(1, cut.row_bytes), 1)
        if rows >= cut.read_rows // 2:
            return said
        return f"{said}. It has {len(cut.reads)} chunks: bp.ingest(X, out, chunk_rows={rows})"

    @property
    def seconds(self) -> float | None:
        """Estimate of the time that the fit takes; None where the speed of the machine, or of a device, is not known.

        Blocks are decoded and multiplied one after the other, by all threads of all processes; the solve has the
        threads of one process. It assumes that every core is as fast as the one measured, and that storage keeps up.
        """
        threads, speed = self.resources.threads, self.resources
        if not speed.single or not all(one.by_cores for one in self.costs):
            return None
        passes = self.bytes_read / speed.read + TASK_SECONDS * self.tasks
        for one in self.costs:
            passes += one.flops * one.times / (speed.single if one.single else speed.double)
            if not one.collected:  # tasks fill and merge states
                passes += (2 * len(one.layout.groups) + 1) * one.state_bytes * one.times / STATE_SPEED
        solves = (self.solve.flops + self.solve.between) / speed.double
        return passes / (threads * self.resources.processes) + solves / threads

    @property
    def process_bytes(self) -> int:
        """Peak of one process above idle: every thread's peak, and what is in flight."""
        return self.resources.threads * self.peak_bytes + self.flight_bytes

    @property
    def fits(self) -> bool:
        """Whether it fits the memory of a process and the budget of kernel evaluations."""
        return self.process_bytes <= self.resources.room_bytes and self.evaluations <= self.most_evaluations

    def shortage(self) -> str:
        """Describe what does not fit, with the numbers."""
        room = self.resources
        flight = f" + {format_bytes(self.flight_bytes)} of requests in flight" if self.flight_bytes else ""
        return (
            f"{self.solver} needs {format_bytes(self.process_bytes)} per process ({room.threads} threads x "
            f"{format_bytes(self.peak_bytes)}{flight}; a state is {format_bytes(self.state_bytes)}), but "
            f"{format_bytes(max(0, room.room_bytes))} are left of {room.where} = {format_bytes(room.limit_bytes)} "
            f"({SAFE_SHARE:.0%} of it, less {format_bytes(room.baseline_bytes)} that the idle process holds)"
        )

    def check(self) -> None:
        """Raise if the plan does not fit.

        Raises
        ------
        EvaluationBudgetError
            If it needs more kernel evaluations than ``max_kernel_evaluations``.
        MemoryBudgetError
            If its peak does not fit the memory limit; the message has the numbers and the alternatives.
        """
        if self.evaluations > self.most_evaluations:
            raise EvaluationBudgetError(
                f"{self.solver} needs about {self.evaluations:.2g} kernel evaluations, over max_kernel_evaluations = "
                f"{self.most_evaluations:.2g}. Use NystromKernelPCA(n_landmarks=1000), "
                "which needs 1,000 per row and read and reports "
                'its error (with labels: solver="landmarks"), or set bigpca.config(max_kernel_evaluations=...).'
            )
        if not self.fits:
            raise MemoryBudgetError(
                f"{self.shortage()}. Give each process more memory or fewer threads, {SMALLER_CHUNKS}, or reduce the "
                "number of columns."
            )

    def cells(self) -> list[tuple[str, ...]]:
        """Return the plan as (name, text) pairs for display."""
        reason, _, others = self.reason.partition("; ")
        reads = f"all rows {'about ' * (self.most_passes is not None)}{format_times(self.passes)}, "
        reads += format_bytes(self.bytes_read)
        if self.requests:
            reads += f" in about {counted(self.requests, 'request')}"
        if self.most_passes is not None:
            reads += f"; at most {format_times(self.most_passes)}"
        blocks = f", in blocks of up to {self.block_rows:,} rows" if self.block_rows else ""
        resources, where = self.resources, f"{format_bytes(self.resources.limit_bytes)}, {self.resources.where}"
        threads = resources.threads * resources.processes
        each = f" in each of {resources.processes} processes" if resources.processes > 1 else ""
        timed = []
        if self.seconds is not None:
            speeds = f"{resources.single / 1e9:.0f} Gflop/s in float32, {resources.double / 1e9:.0f} in float64"
            speeds += f", {format_bytes(resources.read)}/s read, measured on one core"
            timed = [("time", f"{format_estimate(self.seconds)} on {counted(threads, 'thread')}"), ("speed", speeds)]
        return [
            ("solver", f"{self.solver}: {reason}"),
            *([("others", others)] if others else []),
            *([] if self.rows_known else [("rows", "not known before the read; reads, work and time are per million")]),
            ("reads", reads),
            ("work", f"{self.flops / 1e9:,.4g} Gflop in {counted(self.tasks, 'task')}{blocks}"),
            *timed,
            *([] if (idle := self.idle) is None else [("idle threads", idle)]),
            *([("kernel", f"{self.evaluations:.3g} evaluations")] if self.evaluations else []),
            ("state", format_bytes(self.state_bytes)),
            (
                "peak memory",
                f"{format_bytes(self.process_bytes)}{each} ({counted(resources.threads, 'thread')}, "
                f"{format_bytes(self.peak_bytes)} each) above {format_bytes(resources.baseline_bytes)} when idle",
            ),
            ("limit", f"{where}: {'fits' if self.fits else 'DOES NOT FIT'}"),
            *([("output", format_bytes(self.output_bytes))] if self.output_bytes else []),
            *(("note", note) for note in self.notes),
        ]
