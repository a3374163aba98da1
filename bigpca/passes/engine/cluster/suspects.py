"""Groups whose workers died: which are tried again, which are tried alone, and which is blamed.

Dask counts, for each task, the workers that died while it was assigned to them, whether it was the cause or only in
flight; after ``distributed.scheduler.allowed-failures`` + 1 deaths (4 by default) it gives the task up. On a cluster
whose workers are preempted that hits innocent groups, and beside a group that is too large for its worker it hits those
that share the worker. So that verdict is a suspicion here:

1. No further segment is sent until those in flight have ended.
2. The group is sent again, alone: nothing else of this run is on the workers. If workers die again until Dask gives it
   up, it is blamed, with its rows, the memory that was planned and what the worker had.
3. If it comes through, its state is kept and the run goes on as before.
4. Tasks that read nothing (merges, files of the checkpoint) are sent again at most ``RESUBMISSIONS`` times.
5. After ``MAX_SUSPICIONS`` in one pass the run ends without blaming a group: workers die faster than groups end.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from distributed import KilledWorker

from bigpca.errors import format_bytes
from bigpca.passes.engine.cluster.tasks import group_of
from bigpca.passes.engine.cluster.watch import resume_hint
from bigpca.passes.engine.events import RetryEvent
from bigpca.passes.engine.jobs import Pass, RunOptions
from bigpca.planning import peak_bytes

RESUBMISSIONS = 3
MAX_SUSPICIONS = 16
REMEDY = (
    "Start workers with more memory or fewer threads, or store the input in smaller chunks "
    "(bp.ingest(source, out, chunk_rows=...)); the workers' logs say more."
)
logger = logging.getLogger("bigpca")


@dataclass
class Suspects:
    """What is known of the groups of one pass whose workers died.

    Attributes
    ----------
    waiting : dict of int to int
        Segment -> its group that is to be tried alone.
    trial : tuple of (int, int, str) or None
        Segment, group and key of the task that is on the workers alone.
    survived : dict of int to Future
        Groups that came through alone; their states wait for the rest of their segment.
    count : int
        Suspicions so far.
    resubmissions : Counter
        Segment -> how often it was sent again for a task that reads nothing; -1 stands for the prefix.
    """

    job: Pass
    options: RunOptions
    waiting: dict[int, int] = field(default_factory=dict)
    trial: tuple[int, int, str] | None = None
    survived: dict[int, Any] = field(default_factory=dict)
    count: int = 0
    resubmissions: Counter[int] = field(default_factory=Counter)

    def add(self, segment: int, error: KilledWorker) -> bool:
        """Take up Dask's verdict on a task of a segment; whether a group is to be tried
        alone, else send the segment again.

        Raises
        ------
        RuntimeError
            Where tries are used up.
        """
        self.count += 1
        group = group_of(self.job.prefix, error.task)
        if self.count > MAX_SUSPICIONS:
            raise self._unstable(error) from error
        known = self.survived.get(group) if group is not None else None
        if known is not None and known.key == error.task:  # its state was lost, and workers died over it again
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
            "it is tried alone" if alone else "it is sent again",
        )
        self.options.emit(RetryEvent("workers died", self.count))
        return alone

    def blame(self, group: int, error: KilledWorker) -> RuntimeError:
        """Return the error that names a group which died alone."""
        start, stop = self.job.layout.rows_of(group)
        where = self.job.cut(group)[0].reader.where(start, stop)
        again = f", and again {_times(error)} with nothing else of this run on them"
        return killed(error, f"read {where} (group {group}){again}", self.job, self.options)

    def _unstable(self, error: KilledWorker) -> RuntimeError:
        return RuntimeError(
            f"{self.count} tasks of this pass were given up because {error.allowed_failures + 1} workers died under "
            f"each; alone, groups came through. At most {MAX_SUSPICIONS} were expected: workers leave faster than "
            "groups end, or their threads together need more memory than they have "
            f"({_memory(self.job, self.options, error.last_worker)}). Run on workers that stay longer, or with fewer "
            f"threads each.{resume_hint(self.options)}"
        )


def killed(error: KilledWorker, doing: str, job: Pass, options: RunOptions) -> RuntimeError:
    """Return the error that says what workers did when they died, what was planned for it and what they had."""
    return RuntimeError(
        f"workers died {_times(error)} while they {doing}: most often they were killed for memory "
        f"({_memory(job, options, error.last_worker)}). {REMEDY}{resume_hint(options)}"
    )


def _times(error: KilledWorker) -> str:
    deaths = error.allowed_failures + 1
    return f"{deaths} time{'s' if deaths > 1 else ''}"


def _memory(job: Pass, options: RunOptions, worker: Any) -> str:
    """Planned bytes of a process beside the limit of the worker that died last."""
    threads = max(1, int(worker.nthreads))
    thread = options.peak_bytes or _peak_of(job)
    planned = threads * thread + 3 * job.state_bytes
    limit = format_bytes(worker.memory_limit) if worker.memory_limit else "no memory limit"
    each = f"{threads} thread{'s' if threads > 1 else ''} x {format_bytes(thread)}"
    return (
        f"planned {format_bytes(planned)} over the idle process, {each} + 3 states of {format_bytes(job.state_bytes)}; "
        f"the last worker, {worker.address}, had {limit}"
    )


def _peak_of(job: Pass) -> int:
    """Peak bytes of a thread that folds this pass, where no plan says it: every slab counts as copied."""
    layout = job.layout
    read = layout.read_rows * layout.row_bytes
    slab = min(layout.slab_rows, layout.read_rows) * layout.row_bytes
    return peak_bytes(read, slab, sum(a.product_bytes for a in job.templates.values()), job.state_bytes)
