"""Groups whose workers died: which are retried, which are retried alone, and which is blamed.

Dask counts, for each task, the workers that died while it was assigned to them, whether it caused the deaths or merely
happened to be running; after ``distributed.scheduler.allowed-failures`` + 1 deaths (4 by default) it marks the task as
failed. On a cluster with preempted workers this affects innocent groups, and next to a group that is too large for its
worker it affects those that share the worker. So that verdict only raises a suspicion here:

1. No further segment is submitted until those in flight have ended.
2. The group is submitted again, alone: nothing else of this run is on the workers. If workers die again until Dask
   marks it as failed, it is blamed, with its rows, the planned memory and the worker's memory.
3. If it succeeds, its state is kept and the run continues as before.
4. Tasks that read nothing (merges, files of the checkpoint) are submitted again at most ``RESUBMISSIONS`` times.
5. After ``MAX_SUSPICIONS`` in one pass the run fails without blaming a group: workers die faster than groups finish.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from distributed import Future, KilledWorker

from bigpca.errors import format_bytes
from bigpca.passes.engine.cluster.tasks import group_of
from bigpca.passes.engine.cluster.watch import resume_hint
from bigpca.passes.engine.events import RetryEvent
from bigpca.passes.engine.jobs import AnyPass
from bigpca.passes.engine.run import Run

RESUBMISSIONS = 3
MAX_SUSPICIONS = 16
REMEDY = (
    "Start workers with more memory or fewer threads, or store the input in smaller chunks "
    "(bp.ingest(source, out, chunk_rows=...)); the workers' logs say more."
)
logger = logging.getLogger("bigpca")


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
