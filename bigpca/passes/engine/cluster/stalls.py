"""Workers that make no progress: stopped, swapping, or waiting for storage.

Groups whose workers died: which are retried, which are retried alone, and which is blamed.

Dask removes a silent worker after ``distributed.scheduler.worker-ttl`` (5 minutes), but never one that still answers
while its task hangs, for example on a lost file server. Here a silent worker is reported after ``stalled_seconds`` (a
minute), and one that finishes nothing after that time and five times the longest segment so far. The segments that they
hold up are also submitted to other workers; the first result counts, and all have the same bits. No worker is stopped,
because it may recover.

NOTE: until a segment of the pass has finished, a hanging read cannot be recognised.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed import Client, Future, KilledWorker

from bigpca.errors import format_bytes
from bigpca.passes.engine.cluster.tasks import group_of, segment_of_key
from bigpca.passes.engine.cluster.watch import ask, by_value, resume_hint
from bigpca.passes.engine.events import RetryEvent
from bigpca.passes.engine.jobs import AnyPass
from bigpca.passes.engine.run import Run

LOOKS = 12  # checks within the time after which a worker counts as stalled
ENDLESS = 5.0  # a worker is stalled if it finishes nothing for this many times the longest segment of the pass
logger = logging.getLogger("bigpca")


@dataclass
class Stalls:
    """The stalled workers of one pass.

    Attributes
    ----------
    workers : dict of str to set of str
        Address -> tasks of the pass that run there, or whose results are there if the worker does not answer.
    """

    client: Client
    job: AnyPass
    options: Run
    workers: dict[str, set[str]] = field(default_factory=dict)
    _suspected: set[str] = field(default_factory=set)
    _progress: dict[str, tuple[set[str], float]] = field(default_factory=dict)  # tasks there, and when one last ended
    _looked: float = field(default_factory=time.monotonic)
    _count: int = 0

    def look(self, workers: Mapping[str, int], longest: float | None = None) -> set[int]:
        """Return the segments that stalled workers hold up; checks at most twelve times within the time limit.

        Parameters
        ----------
        workers : mapping of str to int
            Live workers and their threads.
        longest : float or None
            Seconds of the slowest finished segment of the pass, from which a hanging read is recognised.

        Warns
        -----
        UserWarning
            For each of them, with its groups, once it is seen twice: a single time may be the scheduler's own delay.
        """
        limit = self.options.stalled_seconds
        if time.monotonic() - self._looked < limit / LOOKS:
            return set()
        silent = limit * (1 - 2 / LOOKS)  # with the two looks that see it, ``limit`` in all
        endless = None if longest is None else max(limit, ENDLESS * longest)
        found = ask(self.client, self.client.run_on_scheduler, by_value(at_work), self.job.prefix)
        self._looked = time.monotonic()
        seen: dict[str, set[str]] = {}
        why: dict[str, str] = {}
        for who in found.keys() & workers.keys():
            silence, processing, held = found[who]
            idle = self._idle(who, set(processing))
            if silence > silent:
                seen[who], why[who] = {*processing, *held}, f"has been silent for {silence:.3g} s"
            elif endless is not None and idle > endless:
                seen[who] = set(processing)
                why[who] = f"has finished nothing for {idle:.0f} s, while no segment took more than {longest:.2g} s"
        seen = {who: keys for who, keys in seen.items() if keys}
        for who in self.workers.keys() - seen.keys():
            logger.warning("worker %s makes progress again", who)
        now = {who: keys for who, keys in seen.items() if who in self._suspected or who in self.workers}
        self._suspected = set(seen)
        new = now.keys() - self.workers.keys()
        self.workers = now
        for who in sorted(new):
            self._warn(who, why[who], elsewhere=bool(self.awake(workers)))
        segments = {segment_of_key(self.job, key) for keys in now.values() for key in keys}
        return {segment for segment in segments if segment is not None}

    def _idle(self, who: str, processing: set[str]) -> float:
        """Return for how many seconds a worker that has groups to read has finished none of its tasks."""
        before, since = self._progress.get(who, (set(), self._looked))
        if before - processing or not any(group_of(self.job.prefix, key) is not None for key in processing):
            since = self._looked
        self._progress[who] = processing, since
        return self._looked - since

    def awake(self, workers: Mapping[str, int]) -> dict[str, int]:
        """Return the workers that do not stall."""
        return {who: threads for who, threads in workers.items() if who not in self.workers}

    def holds(self, key: str) -> bool:
        """Whether a stalled worker has this task, or holds its result and does not answer."""
        return any(key in keys for keys in self.workers.values())

    def _warn(self, who: str, why: str, *, elsewhere: bool) -> None:
        self._count += 1
        groups = sorted({group for key in self.workers[who] if (group := group_of(self.job.prefix, key)) is not None})
        with_rows = [f"group {g} (rows {'{}:{}'.format(*self.job.layout.rows_of(g))})" for g in groups[:3]]
        what = ", ".join(with_rows) + (", ..." if len(groups) > 3 else "") or "a task that reads no rows"
        warnings.warn(
            f"worker {who} {why}, and has {what}. It may be stopped, swapping, or waiting for storage. "
            + (
                "These rows are read by other workers too."
                if elsewhere
                else "There is no other worker, so the run waits."
            ),
            UserWarning,
            stacklevel=2,
        )
        self.options.emit(RetryEvent("worker stalled", self._count))


def at_work(prefix: str, dask_scheduler: Any = None) -> dict[str, Any]:
    """Return each worker's silence in seconds, and its running and finished tasks of a pass; runs on the scheduler.

    It is pickled by value and imports what it needs, because bigpca may be missing where it runs.
    """
    import time

    found = {}
    for address, worker in dask_scheduler.workers.items():
        processing, held = (
            [key for key in (str(task.key) for task in tasks) if key.startswith(prefix)]
            for tasks in (worker.processing, worker.has_what)
        )
        found[address] = time.time() - worker.last_seen, processing, held
    return found


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
REMEDY = (
    "Start workers with more memory or fewer threads, or store the input in smaller chunks "
    "(bp.ingest(source, out, chunk_rows=...)); the workers' logs say more."
)


@dataclass
class Suspects:
    """The groups of one pass whose workers died.

    Attributes
    ----------
    waiting : dict of int to int
        Segment -> its group that is to be tried alone.
    trial : tuple of (int, int, str) or None
        Segment, group and key of the task that is being tried alone.
    survived : dict of int to Future
        Groups that succeeded alone; their states wait for the rest of their segment.
    count : int
        Suspicions so far.
    resubmissions : Counter
        Segment -> how often it was resubmitted because of a task that reads nothing; -1 for the prefix.
    """

    job: AnyPass
    options: Run
    waiting: dict[int, int] = field(default_factory=dict)
    trial: tuple[int, int, str] | None = None
    survived: dict[int, Future] = field(default_factory=dict)
    count: int = 0
    resubmissions: Counter[int] = field(default_factory=Counter)

    def add(self, segment: int, error: KilledWorker) -> bool:
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
            self.waiting[segment] = group  # type: ignore[assignment]
        else:
            self.resubmissions[segment] += 1
            if self.resubmissions[segment] > RESUBMISSIONS:
                raise killed(error, f"ran {error.task}, which reads no rows,", self.job, self.options) from error
        logger.warning(
            "%d worker(s) died while %s was assigned to them; %s",
            error.allowed_failures + 1,
            f"group {group}" if alone else error.task,
            "it is tried alone" if alone else "it is submitted again",
        )
        self.options.emit(RetryEvent("workers died", self.count))
        return alone

    def blame(self, group: int, error: KilledWorker) -> RuntimeError:
        """Return the error that names a group whose workers died while it ran alone."""
        start, stop = self.job.layout.rows_of(group)
        where = self.job.cut(group)[0].reader.where(start, stop)
        again = f", and again {_times(error)} with nothing else of this run on them"
        return killed(error, f"read {where} (group {group}){again}", self.job, self.options)

    def _unstable(self, error: KilledWorker) -> RuntimeError:
        return RuntimeError(
            f"{self.count} tasks of this pass failed because {error.allowed_failures + 1} workers died during each, "
            f"although groups succeeded alone; at most {MAX_SUSPICIONS} were expected. Workers leave faster than "
            "groups finish, or their threads together need more memory than they have "
            f"({_memory(self.job, self.options, error.last_worker)}). Run on workers that stay longer, or with fewer "
            f"threads each.{resume_hint(self.options)}"
        )


def killed(error: KilledWorker, doing: str, job: AnyPass, options: Run) -> RuntimeError:
    """Return the error that reports what workers were doing when they died, the planned memory and theirs."""
    return RuntimeError(
        f"workers died {_times(error)} while they {doing}: most likely they were killed for lack of memory "
        f"({_memory(job, options, error.last_worker)}). {REMEDY}{resume_hint(options)}"
    )


def _times(error: KilledWorker) -> str:
    deaths = error.allowed_failures + 1
    return f"{deaths} time{'s' if deaths > 1 else ''}"


def _memory(job: AnyPass, options: Run, worker: Any) -> str:
    """Describe the planned bytes of a process, and the limit of the worker that died last."""
    threads = max(1, int(worker.nthreads))
    thread = options.peak_bytes or job.cost.peak_bytes
    planned = threads * thread + 3 * job.state_bytes
    limit = format_bytes(worker.memory_limit) if worker.memory_limit else "no memory limit"
    each = f"{threads} thread{'s' if threads > 1 else ''} x {format_bytes(thread)}"
    return (
        f"planned {format_bytes(planned)} above the idle process, {each} + 3 states of "
        f"{format_bytes(job.state_bytes)}; the last worker, {worker.address}, had {limit}"
    )
