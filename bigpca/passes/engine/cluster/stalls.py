"""Workers that make no progress: stopped, swapping, or waiting for storage.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed import Client

from bigpca.passes.engine.cluster.joining import by_value
from bigpca.passes.engine.cluster.tasks import group_of, segment_of_key
from bigpca.passes.engine.cluster.watch import ask
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
