"""Workers that are there but do nothing: stopped, or so short of memory or storage that they do not answer.

Dask gives a silent worker up after ``distributed.scheduler.worker-ttl`` (5 minutes). Here it is reported after a minute, and what it
holds up is sent to other workers too: the first result counts, which has the same bits. Nobody is stopped, for a worker may come
back. NOTE: one that answers while its task never ends is not found.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bigpca.passes.engine.cluster.joining import by_value
from bigpca.passes.engine.cluster.tasks import group_of, segment_of_key
from bigpca.passes.engine.cluster.watch import ask
from bigpca.passes.engine.events import RetryEvent
from bigpca.passes.engine.jobs import Pass, RunOptions

LOOKS = 4  # in the time after which a worker is stalled
logger = logging.getLogger("bigpca")


@dataclass
class Stalls:
    """The stalled workers of one pass.

    Attributes
    ----------
    workers : dict of str to set of str
        Address -> tasks of the pass that run there, or whose results lie there.
    """

    client: Any
    job: Pass
    options: RunOptions
    workers: dict[str, set[str]] = field(default_factory=dict)
    _suspected: set[str] = field(default_factory=set)
    _looked: float = field(default_factory=time.monotonic)
    _count: int = 0

    def look(self, workers: Mapping[str, int]) -> set[int]:
        """Return the segments that stalled workers hold up; a look is made four times in the time limit, and none between.

        Parameters
        ----------
        workers : mapping of str to int
            Those that live.

        Warns
        -----
        UserWarning
            For each of them, with its groups. Seen once only may be the scheduler's own delay.
        """
        limit = self.options.stalled_seconds
        if time.monotonic() - self._looked < limit / LOOKS:
            return set()
        found = ask(self.client, self.client.run_on_scheduler, by_value(silent), self.job.prefix, limit)
        self._looked = time.monotonic()
        seen = {who: set(keys) for who, keys in found.items() if who in workers and keys}
        for who in self.workers.keys() - seen.keys():
            logger.warning("worker %s goes on", who)
        now = {who: keys for who, keys in seen.items() if who in self._suspected or who in self.workers}
        self._suspected = set(seen)
        new = now.keys() - self.workers.keys()
        self.workers = now
        for who in sorted(new):
            self._warn(who, elsewhere=bool(self.awake(workers)))
        segments = {segment_of_key(self.job, key) for keys in now.values() for key in keys}
        return {segment for segment in segments if segment is not None}

    def awake(self, workers: Mapping[str, int]) -> dict[str, int]:
        """Return the workers that do not stall."""
        return {who: threads for who, threads in workers.items() if who not in self.workers}

    def holds(self, key: str) -> bool:
        """Whether a stalled worker has this task or its result, and others could have it."""
        return any(key in keys for keys in self.workers.values())

    def _warn(self, who: str, *, elsewhere: bool) -> None:
        self._count += 1
        groups = sorted({group for key in self.workers[who] if (group := group_of(self.job.prefix, key)) is not None})
        with_rows = [f"group {g} (rows {'{}:{}'.format(*self.job.layout.rows_of(g))})" for g in groups[:3]]
        what = ", ".join(with_rows) + (", ..." if len(groups) > 3 else "") or "a task that reads no rows"
        warnings.warn(
            f"worker {who} has been silent for more than {self.options.stalled_seconds:g} s, and has {what}: it was stopped, "
            f"swaps, or waits for storage. "
            + (
                "These rows are read by other workers too." if elsewhere else "No other worker is there: the run waits."
            ),
            UserWarning,
            stacklevel=2,
        )
        self.options.emit(RetryEvent("worker stalled", self._count))


def silent(prefix: str, limit: float, dask_scheduler: Any = None) -> dict[str, list[str]]:
    """Return, on the scheduler, the workers that have been silent for longer than ``limit`` seconds, and their tasks.

    It travels by value and imports what it needs, because bigpca may be missing where it runs.
    """
    import time

    found = {}
    for address, worker in dask_scheduler.workers.items():
        if time.time() - worker.last_seen > limit:
            tasks = [*worker.processing, *worker.has_what]
            found[address] = [str(task.key) for task in tasks if str(task.key).startswith(prefix)]
    return found
