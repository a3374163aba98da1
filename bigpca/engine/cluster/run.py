"""Drive one pass on a ``distributed.Client``: segments in a window, waits with limits, states moved off the workers.

In the order of the file: ``Stalls``, workers that make no progress (stopped, swapping, or waiting for storage);
``Suspects``, which group is blamed for deaths, whatever ``distributed.scheduler.allowed-failures`` is; the broadcast
values of a pass, one copy on every worker that folds groups; and the segments, submitted in a window, watched, folded
in order.

A segment's state is moved off the workers as soon as it is finished: to the checkpoint if workers can write it, else to
the client up to 64 MiB. A lost worker therefore costs the segments in flight, not the sub-tree above them. Without a
checkpoint, larger states stay on the workers, and Dask recomputes those that a dead worker held.

Workers may join and leave at any time. Each is checked when it first appears
(:mod:`bigpca.engine.cluster.watch`), and the window of segments in flight follows the number of threads. A
worker that is retired, scaled down or at the end of its ``--lifetime`` transfers its results; SIGTERM is not graceful
in Dask (the nanny stops the worker with its task and its results), so preemption costs as much as a kill.
"""

from __future__ import annotations

import logging
import queue
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future as Pending
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, cast

import cloudpickle
import dask
from distributed import Client, Future, KilledWorker

from bigpca.engine.checkpoint import Prefix, Resumed, SegmentStates, WriteFailed, warn_unwritten
from bigpca.engine.cluster.tasks import (
    GATHER_SECONDS,
    begun,
    extend_prefix,
    finish_stored,
    group_of,
    group_task,
    identity,
    releasing,
    result_of,
    segment_graph,
    starts_with,
)
from bigpca.engine.cluster.watch import (
    QUIET_SECONDS,
    Unknown,
    Watch,
    ask_workers,
    at_work,
    by_value,
    join_workers,
    known_of,
    resume_hint,
    scheduler_loss_named,
)
from bigpca.engine.events import CheckpointEvent, RetryEvent
from bigpca.engine.group import RunCancelled, cancel_run
from bigpca.engine.jobs import AnyPass, Pass, PassState, R, merge_states
from bigpca.engine.local import ask
from bigpca.engine.planning import SMALLER_CHUNKS
from bigpca.engine.run import Run
from bigpca.errors import CheckpointError, counted, format_bytes

# One rule for what is slow or lost: a piece of work is submitted once more, to other workers, where each of its
# submissions in flight is held up, and the first result counts; all have the same bits. A submission is held up where
# its tasks, or results of theirs, are on a worker that
#
# 1. has been silent for ``stalled_seconds`` (a minute; Dask removes such a worker after 5 minutes, which is
#    ``distributed.scheduler.worker-ttl``), or is paused; or
# 2. has finished nothing of the pass for that time, and for five times the longest segment so far: Dask never removes a
#    worker that still answers while its task hangs, for example on a lost file server. Until a segment has finished,
#    the limit is twice ``stalled_seconds``, and counts only if groups have finished elsewhere;
#
# or where the scheduler does not know its tasks any more. At most ``LIVE`` are in flight: rows that nobody can read do
# not take all workers. No worker is stopped, because it may recover. Until it does, new groups go to others, at the
# beginning of the next pass too, and what it holds up is kept although its result is there: Dask takes a worker whose
# hung task was released for idle, and sends it more.
LOOKS = 12  # checks within the time after which a worker counts as stalled
ENDLESS = 5.0  # a worker is stalled if it finishes nothing for this many times the longest segment of the pass
FIRST = 2.0  # and before a segment has ended, for this many times ``stalled_seconds``
LIVE = 4  # submissions of a piece of work that are in flight at a time
logger = logging.getLogger("bigpca")


@dataclass
class Stalls:
    """The stalled workers of one pass.

    Attributes
    ----------
    workers : dict of str to set of str
        Address -> tasks of the pass that run there, or whose results are there if the worker does not answer.
    forgotten : set of str
        Tasks that the client waits for, and the scheduler does not know: it forgot them without telling the client.
    """

    client: Client
    job: AnyPass
    options: Run
    workers: dict[str, set[str]] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    _unknown: Unknown = field(default_factory=Unknown)
    _suspected: set[str] = field(default_factory=set)
    _told: set[str] = field(default_factory=set)  # workers that a warning has named
    _progress: dict[str, tuple[set[str], float]] = field(default_factory=dict)  # tasks there, and when one last ended
    _ended: bool = False  # whether a group of the pass has ended
    _looked: float = field(default_factory=time.monotonic)
    _tasks: dict[str, set[str]] = field(default_factory=dict)  # of the pass on each worker
    _quiet: float = field(default_factory=time.monotonic)  # since when these are the same; inf once that was said
    _count: int = 0

    def __post_init__(self) -> None:
        known = known_of(self.client)
        self.workers = {who: set() for who in known.stalled | known.unanswered}

    def look(self, waited: Iterable[str], workers: Mapping[str, int], longest: float = 0.0) -> None:
        """Find the stalled workers among live ones, by what the scheduler knows; twelve times within the time limit.

        Parameters
        ----------
        waited : iterable of str
            Tasks that the client waits for.
        workers : mapping of str to int
            Live workers and their threads.
        longest : float
            Seconds of the slowest finished segment of the pass, from which a hanging read is recognised; 0 before that.

        Warns
        -----
        UserWarning
            For each of them, with its groups, once it is seen twice: a single time may be the scheduler's own delay.
        """
        limit = self.options.stalled_seconds
        if time.monotonic() - self._looked < limit / LOOKS:
            return
        silent = limit * (1 - 2 / LOOKS)  # with the two looks that see it, ``limit`` in all
        asked = self.job.prefix, silent, list(waited), self.client.id
        found, unknown, heard = ask(self.client, self.client.run_on_scheduler, by_value(at_work), *asked)
        self.forgotten = self._unknown.forgotten(unknown, heard)
        self._looked = time.monotonic()
        self._tell_of_quiet({who: set(found[who][1]) for who in found.keys() & workers.keys()})
        seen: dict[str, set[str]] = {}
        why: dict[str, str] = {}
        endless = max(limit, ENDLESS * longest) if longest else FIRST * limit if self._ended else inf
        anywhere = {key for _, processing, *_ in found.values() for key in processing}
        for who in found.keys() & workers.keys():
            silence, processing, held, others, full, status = found[who]
            idle = self._idle(who, set(processing), anywhere, others=others)
            if silence > silent:
                seen[who], why[who] = {*processing, *held}, f"has been silent for {silence:.3g} s"
            elif status == "paused":  # one that retires completes what it runs, or leaves
                seen[who], why[who] = set(processing), "is paused, and takes no tasks"
            elif full and who in self.workers:
                seen[who], why[who] = set(processing), "runs a task of an earlier pass that hangs"
            elif idle > endless:
                took = f"no segment took more than {longest:.2g} s" if longest else "others finished groups"
                seen[who], why[who] = set(processing), f"has finished nothing for {idle:.0f} s, while {took}"
        for who in self.workers.keys() & workers.keys() - seen.keys():
            logger.warning("worker %s makes progress again", who)
        self.workers = {who: keys for who, keys in seen.items() if who in self._suspected or who in self.workers}
        self._suspected = set(seen)
        known_of(self.client).stalled = set(self.workers)
        self._told &= self.workers.keys()
        for who in sorted(who for who, keys in self.workers.items() if keys and who not in self._told):
            self._warn(who, why[who], elsewhere=bool(self.awake(workers)))

    def _idle(self, who: str, processing: set[str], anywhere: set[str], *, others: bool) -> float:
        """Return for how many seconds a worker that has groups to read, and runs no ``others``, finished none of them.

        Groups wait there behind the tasks of others that have a higher priority. What is now ``anywhere`` else was
        taken from it.
        """
        before, since = self._progress.get(who, (set(), self._looked))
        self._ended |= any(map(self._reads, before - anywhere))
        if before - anywhere or others or not any(map(self._reads, processing)):
            since = self._looked
        self._progress[who] = processing, since
        return self._looked - since

    def _reads(self, key: str) -> bool:
        return group_of(self.job.prefix, key) is not None

    def _tell_of_quiet(self, tasks: dict[str, set[str]]) -> None:
        """Log once what is waited for if no task of the pass has begun or ended for a while: a long read, or a hang."""
        if tasks != self._tasks:
            self._tasks, self._quiet = tasks, self._looked
        elif tasks and self._looked - self._quiet > QUIET_SECONDS:
            has = [f"worker {who} has {self._described(keys)}" for who, keys in sorted(tasks.items()) if keys]
            said = "; ".join(has[:3]) or "no worker has any"
            logger.warning("no task of this pass has begun or ended for %g s; %s", QUIET_SECONDS, said)
            self._quiet = inf

    def awake(self, workers: Mapping[str, int]) -> dict[str, int]:
        """Return the workers that do not stall."""
        return {who: threads for who, threads in workers.items() if who not in self.workers}

    def held(self) -> set[str]:
        """Return the tasks that stalled workers have, and those whose results are on some that do not answer."""
        return set().union(*self.workers.values())

    def _warn(self, who: str, why: str, *, elsewhere: bool) -> None:
        self._count += 1
        self._told.add(who)
        what = self._described(self.workers[who])
        warnings.warn(
            f"worker {who} {why}, and has {what}. It may be stopped, swapping, short of memory, or waiting for "
            "storage. " + ("Others do its work too." if elsewhere else "There is no other worker, so the run waits."),
            UserWarning,
            stacklevel=2,
        )
        self.options.progress(RetryEvent("worker stalled", self._count))

    def _described(self, keys: set[str]) -> str:
        """Name the groups that tasks of the pass read, with their rows."""
        groups = sorted({group for key in keys if (group := group_of(self.job.prefix, key)) is not None})
        with_rows = [f"group {g} (rows {'{}:{}'.format(*self.job.layout.rows_of(g))})" for g in groups[:3]]
        return ", ".join(with_rows) + (", ..." if len(groups) > 3 else "") or "a task that reads no rows"


# Dask counts, for each task, the workers that died while it was assigned to them, whether it caused the deaths or
# merely happened to be running; after ``distributed.scheduler.allowed-failures`` + 1 deaths (4 by default) it marks the
# task as failed. On a cluster with preempted workers this affects innocent groups, and next to a group that is too
# large for its worker it affects those that share the worker. So that verdict only raises a suspicion here:
#
# 1. No further segment is submitted until those in flight have ended.
# 2. The group is submitted again, alone: nothing else of this run is on the workers. If workers die again until Dask
#    marks it as failed, it is blamed, with its rows, the planned memory and the worker's memory.
# 3. If it succeeds, its state is kept and the run continues as before.
# 4. Tasks that read nothing (merges, files of the checkpoint) are submitted again at most ``RESUBMISSIONS`` times.
# 5. After ``MAX_SUSPICIONS`` in one pass the run fails without blaming a group: workers die faster than groups finish.
RESUBMISSIONS = 3
MAX_SUSPICIONS = 16
REMEDY = f"Start workers with more memory or fewer threads, or {SMALLER_CHUNKS}; the workers' logs say more."


@dataclass(eq=False)
class Segment:
    """What is known of one segment from its first submission until its state is there; or of the whole pass.

    Attributes
    ----------
    index : int
    keys : set of str
        Its tasks in flight: the first to finish gives its state, or that of a group that is tried alone.
    tries : int
        How often it was submitted again: names its tasks.
    cancelled, unread : int
        How often that was because its tasks were cancelled, and because workers died during one that reads nothing.
    copies : list of str
        The copies of the broadcast values that its tasks take, one for each group.
    later : Future or None
        Its finished task, whose state stays on a worker until its turn comes.
    """

    index: int
    keys: set[str] = field(default_factory=set)
    tries: int = 0
    cancelled: int = 0
    unread: int = 0
    copies: list[str] = field(default_factory=list)
    later: Future | None = None


@dataclass
class Flight:
    """A submitted task whose result the client waits for.

    Attributes
    ----------
    segment : Segment
    again : callable
        Submits it again.
    tasks : set of str
        All that it waits for, and itself.
    group : int or None
        The group that it tries alone.
    since : float or None
        When it was submitted; None once it has finished.
    """

    future: Future
    segment: Segment
    again: Callable[[], None]
    tasks: Set[str]
    group: int | None = None
    since: float | None = field(default_factory=time.monotonic)


@dataclass
class Suspects:
    """The groups of one pass whose workers died.

    Attributes
    ----------
    waiting : dict of int to int
        Segment -> its group that is to be tried alone.
    survived : dict of int to Future
        Groups that succeeded alone; their states wait for the rest of their segment.
    count : int
        Suspicions so far.
    """

    job: AnyPass
    options: Run
    waiting: dict[int, int] = field(default_factory=dict)
    survived: dict[int, Future] = field(default_factory=dict)
    count: int = 0

    def add(self, segment: Segment, error: KilledWorker) -> bool:
        """Record Dask's verdict on a task of a segment; return whether a group is to be tried alone.

        If not, the segment is to be submitted again.

        Raises
        ------
        RuntimeError
            If the number of retries is exhausted.
        """
        self.count += 1
        group = group_of(self.job.prefix, error.task)
        if self.count > MAX_SUSPICIONS:
            raise self._unstable(error) from error
        known = self.survived.get(group) if group is not None else None
        if known is not None and known.key == error.task:  # its state was lost, and workers died while recomputing it
            del self.survived[group]  # type: ignore[arg-type]
        alone = group is not None and group not in self.survived
        if alone:
            self.waiting[segment.index] = group  # type: ignore[assignment]
        else:
            segment.unread += 1
            if segment.unread > RESUBMISSIONS:
                raise killed(error, f"ran {error.task}, which reads no rows,", self.job, self.options) from error
        logger.warning(
            "%d worker(s) died while %s was assigned to them; %s",
            error.allowed_failures + 1,
            f"group {group}" if alone else error.task,
            "it is tried alone" if alone else "it is submitted again",
        )
        self.options.progress(RetryEvent("workers died", self.count))
        return alone

    def blame(self, group: int, error: KilledWorker) -> RuntimeError:
        """Return the error that names a group whose workers died while it ran alone."""
        start, stop = self.job.layout.rows_of(group)
        where = self.job.cut(group)[0].reader.where(start, stop)
        again = f", and again {_times(error)} with no other work of this run on them"
        return killed(error, f"read {where} (group {group}){again}", self.job, self.options)

    def _unstable(self, error: KilledWorker) -> RuntimeError:
        return RuntimeError(
            f"{self.count} tasks of this pass failed because {error.allowed_failures + 1} workers died during each, "
            f"although groups succeeded alone; at most {MAX_SUSPICIONS} were expected. Workers stop faster than "
            f"groups finish, or their threads together need more memory than is available "
            f"({_memory(self.job, self.options, error.last_worker)}). Use workers that run longer, or that have "
            f"fewer threads each.{resume_hint(self.options)}"
        )


def killed(error: KilledWorker, doing: str, job: AnyPass, options: Run) -> RuntimeError:
    """Return the error that reports what workers were doing when they died, the planned memory and theirs."""
    return RuntimeError(
        f"workers died {_times(error)} while they {doing}: most likely they were killed for lack of memory "
        f"({_memory(job, options, error.last_worker)}). {REMEDY}{resume_hint(options)}"
    )


def _times(error: KilledWorker) -> str:
    return counted(error.allowed_failures + 1, "time")


def _memory(job: AnyPass, options: Run, worker: Any) -> str:
    """Describe the planned bytes of a process, and the limit of the worker that died last."""
    threads = max(1, int(worker.nthreads))
    thread = options.peak_bytes or job.cost.peak_bytes
    limit = format_bytes(worker.memory_limit) if worker.memory_limit else "no memory limit"
    each = f"{counted(threads, 'thread')} x {format_bytes(thread)}"
    return (
        f"planned {format_bytes(threads * thread)} above the idle process, {each}; the last worker, {worker.address}, "
        f"had {limit}"
    )


# Dask runs a task where its input is. With one copy of a shared input, all groups are sent to the worker that holds it,
# and others get them only by stealing: of 200 workers, 199 were idle. So each thread's groups take their input from a
# copy on their own worker, held by a task that is pinned there as long as the worker lives; copies are passed from
# worker to worker as a tree.
@dataclass
class SharedCopies:
    """Copies of a value, and the assignment of groups to them.

    Attributes
    ----------
    client : distributed.Client
    value : the broadcast values
    name : str
        Start of the tasks' keys, unique to the pass.
    copies : dict of str to Future
        Worker -> its copy. Each is a task, so that Dask computes it again elsewhere if a worker dies.
    """

    client: Client
    value: Mapping[str, object]
    name: str
    copies: dict[str, Future] = field(default_factory=dict)
    _made: list[Future] = field(default_factory=list)
    _passed: list[Future] = field(default_factory=list)  # what the current copies are made of
    _turn: int = 0

    def take(self, count: int, workers: Mapping[str, int], flying: Iterable[str] = ()) -> list[Future]:
        """Return the copies for ``count`` consecutive groups; neighbours, whose states are merged, share a worker.

        Parameters
        ----------
        workers : mapping of str to int
            Live workers and their threads.
        flying : iterable of str
            The copy that each group in flight takes: fewer groups than there are threads go where fewest are.
        """
        seats = [(worker, thread) for worker in sorted(workers) for thread in range(workers[worker])]
        if not seats:  # no worker at the moment: Dask waits for one
            return [self._made[-1] if self._passed else self._make(None)] * count
        busy = Counter(flying)
        waiting = {worker: busy[copy.key] for worker, copy in self.copies.items()}
        rounds = [(waiting.get(worker, 0) - thread - 1) // workers[worker] for worker, thread in seats]  # ahead of it
        chosen = [seats[i][0] for i in self._places(count, rounds)]
        for worker in chosen:
            if worker not in self.copies:
                self.copies[worker] = self._make(worker)
        return [self.copies[worker] for worker in chosen]

    def _make(self, worker: str | None) -> Future:
        """Pass the value on, first from here and then from a worker that has it, and make a copy of what arrives.

        Nothing else takes the copy: Dask drops replicas of what is passed on, and may leave the one that is elsewhere.
        """
        made = len(self._passed)
        source = self._passed[(made - 1) // 2] if made else self.value
        submit = partial(self.client.submit, identity, pure=False, **({} if worker is None else {"workers": [worker]}))
        key = f"{self.name}-{len(self._made)}"
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
            self._passed.append(submit(source, key=f"{key}-passed"))
            self._made.append(submit(self._passed[-1], key=key))
        return self._made[-1]

    def _places(self, count: int, rounds: Sequence[int]) -> list[int]:
        total, turn = len(rounds), self._turn
        if total > count:
            self._turn += count
            free = sorted(range(total), key=lambda i: rounds[(turn + i) % total])[:count]
            return [(turn + i) % total for i in sorted(free)]
        self._turn += 1
        return [(turn + i * total // count) % total for i in range(count)]

    def forget(self, workers: Mapping[str, int]) -> None:
        """Take no more of the copies of workers that are not among these."""
        for worker in [worker for worker in self.copies if worker not in workers]:
            del self.copies[worker]

    def renew(self) -> set[str]:
        """Create all copies again, under new names; return the keys of the copies that are still being made.

        Some may be on workers that do not answer, and others are made from them.
        """
        self.copies.clear()
        self._passed.clear()
        return {copy.key for copy in self._made if copy.status == "pending"}


def unpin(prefix: str, workers: list[str], dask_scheduler: Any = None) -> None:
    """On the scheduler, allow these workers (none: all) to run the pinned tasks of a pass that no worker takes.

    Their workers left, or are paused or retired. Dask would do this for tasks that are pinned loosely, but steals these
    for any worker that seems idle: also for one that is stopped, or that lacks the resources that annotations name.
    """
    own = [task for task in dask_scheduler.unrunnable if isinstance(task.key, str) and task.key.startswith(prefix)]
    keys = [task.key for task in own if task.worker_restrictions]
    dask_scheduler.set_restrictions(dict.fromkeys(keys, workers))
    if keys and dask_scheduler.running:
        dask_scheduler.transitions(dict.fromkeys(keys, "processing"), stimulus_id="bigpca-unpin")


POLL_SECONDS = 0.5
WAITING_BYTES = 64 << 20  # of states that wait here for a slow segment; beyond this, they stay where they were made


@dataclass
class ClusterRun:
    """The state of one pass on a cluster.

    Attributes
    ----------
    files : SegmentStates or None
        The checkpoint that is written.
    shared : bool
        Whether workers write it; else the client does.
    gather : bool
        Whether states are gathered to the client.
    total : PassState (gathered), Future (kept on the workers) or None
    covered : int
        Segments folded into the total or the stored prefix.
    watch : Watch
        Watches the live workers.
    """

    job: AnyPass
    files: SegmentStates | None
    shared: bool
    gather: bool
    total: PassState | Future | None
    covered: int
    watch: Watch
    events: queue.Queue[Future] = field(default_factory=queue.Queue)
    flights: dict[str, Flight] = field(default_factory=dict)
    segments: dict[int, Segment] = field(default_factory=dict)  # those whose states are still to come
    ready: dict[int, PassState | Future | int] = field(default_factory=dict)
    whole: Segment = field(default_factory=partial(Segment, -1))  # for the tasks of the whole pass, one at a time
    longest: float = 0.0  # seconds that the slowest finished segment took
    copies: SharedCopies | None = None  # of the broadcast values
    coming: dict[str, Pending[Any]] = field(default_factory=dict)  # results that are being transferred
    losers: list[Flight] = field(default_factory=list)  # submissions in flight whose result came from another one
    solved: object = None  # the result of the pass, where it is not computed here

    def __post_init__(self) -> None:
        self.client, self.options = self.watch.client, self.watch.options
        self.suspects = Suspects(self.job, self.options)
        self.stalls = Stalls(self.client, self.job, self.options)

    def submit_segment(self, index: int) -> None:
        """Cut the groups of a segment and submit their graph."""
        segment = self.segments.setdefault(index, Segment(index))
        shared = self._take_shared(segment, len(self.job.layout.segments[index]))
        files = self.files if self.shared else None
        graph, root = segment_graph(self.job, index, segment.tries, shared, files, self.suspects.survived)
        # Without the time limit, Dask's order of tasks is by segments: else those of one minute are mixed, and their
        # states wait for each other.
        (future,) = self.client.get(graph, [root], sync=False, fifo_timeout="0s", **self._place())
        self._watch(Flight(future, segment, partial(self.submit_segment, index), {*graph, *segment.copies}))

    def submit_suspect(self) -> None:
        """Submit one suspected group alone; nothing else may be in flight."""
        index, group = next(iter(self.suspects.waiting.items()))
        segment = self.segments.setdefault(index, Segment(index))
        key = f"{self.job.prefix}-{group}-alone-{self.suspects.count}-{segment.tries}"
        graph = {key: group_task(self.job, group, key, self._take_shared(segment, 1)[0])}
        (future,) = self.client.get(graph, [key], sync=False, **self._place())
        self._watch(Flight(future, segment, self.submit_suspect, {key, *segment.copies}, group))

    def has_room_for(self, index: int, threads: int) -> bool:
        """Whether another segment may be submitted: 2 x threads groups, and one segment that merges, are in flight.

        While one worker merges the states of a segment, the others have groups of the next. Small states, and those
        that workers write to a checkpoint, may be up to 4 x threads groups ahead of a slow segment.
        """
        segments = self.job.layout.segments
        flying = sum(len(segments[s.index]) for s in self.segments.values() if s.later is None)
        ahead = sum(len(segments[i]) for i in range(self.covered, index))
        size, most = len(segments[index]), 4 * threads
        if not self.shared:
            most = min(most, max(2 * threads, size * (WAITING_BYTES // max(1, self.job.state_bytes))))
        return flying < 2 * threads + size and ahead < most + size

    def read(self, resumed: Resumed, kind: str, index: int) -> PassState | Future:
        """Read a state of an earlier run: here, or in a task if it is to stay on the workers."""
        read = cast(SegmentStates, resumed.files).read
        if self.gather:
            return read(kind, index)
        return self.client.submit(read, kind, index, key=self.job.key(f"stored-{kind}", index), pure=False)

    def _check(self) -> None:
        self.watch.check()
        if self.copies is not None:
            self.copies.forget(self.watch.workers)
        restricted = self.watch.wanted.restricts
        if self.watch.workers or not restricted:  # at each look: a submission may have been on its way at the last
            anywhere = [*self.watch.workers] if restricted else []
            with suppress(OSError):
                ask(self.client, self.client.run_on_scheduler, by_value(unpin), self.job.prefix, anywhere)
        before = self.stalls.workers.keys()
        self.stalls.look(self.flights, self.watch.workers, self.longest)
        if lost := [self.flights[key].future for key in self.stalls.forgotten & self.flights.keys()]:
            logger.warning("the scheduler has forgotten %d task(s) of this run; they are computed again", len(lost))
            self.client.cancel(lost)  # they are now cancelled for the client too
            self.stalls.forgotten.clear()
        held = self.stalls.held()
        if self.stalls.workers.keys() - before and self.copies is not None:
            held |= self.copies.renew()  # of a copy that a stalled worker was to pass on
        self._release_losers(held)
        for segment in dict.fromkeys(flight.segment for flight in self.flights.values()) if self._awake() else ():
            flying = [self.flights[key] for key in segment.keys]  # none where the result is here
            if 0 < len(flying) < LIVE and not any(held.isdisjoint(flight.tasks) for flight in flying):
                segment.tries += 1
                flying[0].again()

    def _release_losers(self, held: Set[str]) -> None:
        """Release the submissions that lost, but for those whose tasks are ``held`` by stalled workers."""
        for flight in [flight for flight in self.losers if held.isdisjoint(flight.tasks)]:
            self.losers.remove(flight)
            flight.future.release()

    def _awake(self) -> dict[str, int]:
        return self.stalls.awake(self.watch.workers)

    def _place(self) -> dict[str, object]:
        """Return the options of a submission to workers that do not stall."""
        awake = self._awake()
        return {"workers": list(awake)} if self.stalls.workers and awake else {}

    def _take_shared(self, segment: Segment, count: int) -> Sequence[Future | None]:
        """Return the copies for the groups of a segment that are submitted."""
        if self.copies is None:
            return [None] * count
        flying = chain.from_iterable(other.copies for other in self.segments.values() if other.later is None)
        taken = self.copies.take(count, self._awake() or self.watch.workers, flying)
        segment.copies = [copy.key for copy in taken]
        return taken

    def submit(self, what: str, function: Callable[..., object], *args: object) -> None:
        """Submit one task of the whole pass and watch it; it is submitted again if its worker stalls."""
        key = self.job.key(what, uuid.uuid4().hex[:8])
        future = self.client.submit(function, *args, key=key, pure=False, **self._place())
        self._watch(Flight(future, self.whole, partial(self.submit, what, function, *args), {key}))

    def _watch(self, flight: Flight) -> None:
        self.flights[flight.future.key] = flight
        flight.segment.keys.add(flight.future.key)
        flight.future.add_done_callback(self.events.put)

    def next_done(self) -> Future:
        """Return the next finished future, checking the cluster while waiting."""
        watch = self.watch
        while True:
            if time.monotonic() - watch.checked > POLL_SECONDS:
                self._check()
                watch.look_at_new()
            try:
                future = self.events.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if future.status == "error":
                self._check()
                watch.look_at_new(wait=True)  # the check of a worker that lacks something explains more than its task
            if future.key in self.flights and future.status in ("lost", "pending"):
                future.add_done_callback(self.events.put)  # its worker left with the result, and Dask computes it again
            elif future.key in self.flights:
                return future

    def fold_ready(self) -> None:
        """Fold finished segments into the total, in order."""
        while self.covered in self.ready and not self.whole.keys:
            stop = self.covered + 1
            if self.shared:
                while stop in self.ready:
                    stop += 1
                self.submit("store", extend_prefix, self.files, self.covered, stop)
                return
            state = self.ready.pop(self.covered)
            if self.gather:
                prefix = Prefix(cast("PassState | None", self.total), self.covered)
                prefix.extend(cast(PassState, state), self.files)
                self.total = prefix.total
            elif self.total is None:
                self.total = state
            else:
                self.total = self.client.submit(
                    merge_states, self.total, state, key=self.job.key("merge", "total", stop), pure=False
                )
            self.covered = stop
        segment = self.segments.get(self.covered)
        if segment is not None and segment.later is not None:
            self.events.put(segment.later)
            segment.later = None

    def accept(self, future: Future) -> None:
        """Process a finished future; submit again a task that failed through no fault of its own."""
        flight = self.flights[future.key]
        segment = flight.segment
        if segment is not self.whole and flight.group is None:
            if future.status == "finished" and flight.since is not None:
                self.longest = max(self.longest, time.monotonic() - flight.since)
                flight.since = None
            waiting = (len(self.ready) + 1) * self.job.state_bytes
            if self.gather and segment.index > self.covered and waiting > WAITING_BYTES:
                segment.later = future
                return
        kept = flight.group is not None or not (self.gather or self.shared)
        stays = kept and segment is not self.whole and future.status == "finished"
        if not (stays or self.has_arrived(future)):
            return
        segment.keys.remove(future.key)
        try:
            value = future if stays else result_of(self.coming.pop(future.key), self.client)
        except RunCancelled as error:
            self.count_cancelled(segment, error)
            flight.again()
        except KilledWorker as error:
            if flight.group is None:
                segment.tries += 1
                alone = self.suspects.add(segment, error)
                if self.copies is not None:
                    self.copies.renew()
                if not alone:
                    flight.again()
            elif not segment.keys:  # else it was held up, and another submission is not
                raise self.suspects.blame(flight.group, error) from error
        else:
            self.losers += [self.flights.pop(rival) for rival in segment.keys]
            for rival in segment.keys:
                self.coming.pop(rival, None)
            segment.keys.clear()
            self._release_losers(self.stalls.held())
            if segment is self.whole and self.covered == len(self.job.layout.segments):
                self.solved = value
            elif segment is self.whole:
                self._take_prefix(int(value))
            elif flight.group is not None:
                del self.suspects.waiting[segment.index]
                self.suspects.survived[flight.group] = future
                self.submit_segment(segment.index)
            else:
                self._take_segment(segment, value)
        del self.flights[future.key]

    def _take_prefix(self, stop: int) -> None:
        for segment in range(self.covered, stop):
            self.ready.pop(segment, None)
        self.files.forget(range(self.covered, stop))  # type: ignore[union-attr]
        self.covered = stop

    def _take_segment(self, segment: Segment, value: PassState | Future | int) -> None:
        if self.gather and self.files is not None:
            self.files.write("segment", segment.index, cast(PassState, value))
        self.ready[segment.index] = value
        del self.segments[segment.index]
        self.suspects.waiting.pop(segment.index, None)  # of a rival whose workers died
        groups = self.job.layout.segments[segment.index]
        for group in groups:
            self.suspects.survived.pop(group, None)
        self.options.progress(self.job.done_event(groups))
        if self.files is not None:
            self.options.progress(CheckpointEvent(self.files.directory, segment.index))

    def count_cancelled(self, segment: Segment, error: RunCancelled) -> None:
        segment.tries += 1
        segment.cancelled += 1
        self.watch.wait_until_settled()  # before an error, too: the next run submits at once
        kept = [state for state in (self.total, *self.ready.values()) if isinstance(state, Future)]
        if segment.cancelled > RESUBMISSIONS or any(state.status == "cancelled" for state in kept):
            raise self.watch.cancelled(segment.cancelled) from error
        # NOTE: their state does not tell whether they are lost. A restart forgets all tasks, but if some are left there
        # that no client asks for any more, it fails (an assertion of Dask's) before it tells the clients.
        if self.copies is not None:
            self.copies.renew()
        for other in self.segments.values():
            if other.later is not None:  # cancelled too, if all were
                self.events.put(other.later)
                other.later = None
        self.options.progress(RetryEvent("segment cancelled", segment.cancelled))

    def has_arrived(self, future: Future) -> bool:
        """Whether the result of a finished future is here, within seconds; if not, it is an event again once it is.

        A worker that stalls may hold it. Others are taken meanwhile, and it is computed again as one that is slow.
        """
        known = self.coming.get(future.key)
        pending = self.coming[future.key] = known or begun(self.client, future.result)
        wait([pending], GATHER_SECONDS)
        if known is None and not pending.done():
            pending.add_done_callback(lambda _: self.events.put(future))
        return pending.done()


CLIENT_BYTES = 64 << 20  # largest state that is gathered to the client


def run_on_cluster(client: Client, job: Pass[R], options: Run, resumed: Resumed) -> R:
    """Run one pass on a client; see :func:`bigpca.engine.driver.run_pass`."""

    def join(workers: Mapping[str, int]) -> list[str]:
        return join_workers(client, workers, job.paths, options.peak_bytes)

    cloudpickle.dumps(job.cut(0)[0].reader)  # so that a store that cannot be sent is named, which Dask would not do
    watch = Watch(client, options, join)
    with scheduler_loss_named(watch):
        watch.wait_for_workers()
        try:
            return cast("R", _run(watch, job, resumed))
        except WriteFailed as error:
            if resumed.files is None or options.checkpoint is None:
                raise
            warn_unwritten(error, options.checkpoint.path)
            options.progress(RetryEvent("checkpoint not writable", 1))
            resumed = replace(options.checkpoint.finished(resumed.files, job.layout.segments), writing=False)
            return cast("R", _run(watch, replace(job, run_id=uuid.uuid4().hex[:12]), resumed))


def _run(watch: Watch, job: AnyPass, resumed: Resumed) -> object:
    return releasing(watch.client, starts_with(job.prefix), partial(_fold, watch, job, resumed))


def _fold(watch: Watch, job: AnyPass, resumed: Resumed) -> object:
    run = _start(watch, job, resumed)
    waiting = [i for i in range(resumed.covered, len(job.layout.segments)) if i not in resumed.segments]
    try:
        run.fold_ready()
        if waiting and run.job.shared:  # values that are broadcast
            run.copies = SharedCopies(run.client, dict(run.job.shared), run.job.key("shared"))
        while waiting or run.flights or run.suspects.waiting:
            if run.suspects.waiting and not run.flights:
                run.submit_suspect()
            while waiting and not run.suspects.waiting and run.has_room_for(waiting[0], max(1, watch.threads)):
                run.submit_segment(waiting.pop(0))
            run.accept(run.next_done())
            run.fold_ready()
        return _finish(run)
    finally:
        cancel_run(job.run_id)


def _start(watch: Watch, job: AnyPass, resumed: Resumed) -> ClusterRun:
    files = resumed.files if resumed.writing else None
    shared = files is not None and bool(files.place.shared)
    if files is not None and files.place.shared is None:
        shared = _workers_see(watch, Path(files.directory))
    if files is not None and not shared and job.state_bytes > CLIENT_BYTES:
        raise CheckpointError(
            f"workers cannot see the checkpoint {files.directory}, and a state of {job.state_bytes / 2**20:.0f} MiB is "
            f"more than the {CLIENT_BYTES >> 20} MiB that the client writes for them. Put the checkpoint on storage "
            "that workers share."
        )
    gather = not shared and job.state_bytes <= CLIENT_BYTES
    run = ClusterRun(job, files, shared, gather, None, resumed.covered, watch)
    if not shared and resumed.prefix is not None:
        run.total = resumed.prefix if run.gather else run.read(resumed, "prefix", resumed.covered)
    for index in resumed.segments:
        run.ready[index] = index if shared else run.read(resumed, "segment", index)
    return run


def _finish(run: ClusterRun) -> object:
    if run.gather:
        return run.job.finish(cast(PassState, run.total))
    if run.shared:
        run.submit("solve", finish_stored, run.job.finish, run.files, run.covered)
    else:
        run.submit("solve", run.job.finish, run.total)
    while run.whole.keys:
        run.accept(run.next_done())
    return run.solved


def _workers_see(watch: Watch, directory: Path) -> bool:
    """Whether the workers see a file that the client has just created; each is asked once for a checkpoint."""
    known, checkpoint = known_of(watch.client), str(directory.parent)
    unknown = [who for who in watch.workers.keys() - known.unanswered if (who, checkpoint) not in known.sees]
    if unknown:
        nonce = directory / f".nonce-{uuid.uuid4().hex}"
        try:
            nonce.touch()
        except OSError as error:
            raise WriteFailed(f"{type(error).__name__}: {error}") from error
        try:
            found = ask_workers(watch.client, partial(watch.client.run, nonce.exists, on_error="return"), unknown)
        finally:
            nonce.unlink(missing_ok=True)
        known.sees |= {(who, checkpoint): seen for who, seen in found.items() if isinstance(seen, bool)}
    seen = [known.sees[who, checkpoint] for who in watch.workers if (who, checkpoint) in known.sees]
    return bool(seen) and all(seen)
