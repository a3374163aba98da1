"""The broadcast values of a pass, one copy on every worker that folds groups.

Dask runs a task where its input is. With one copy of a shared input, all groups are sent to the worker that holds it,
and others get them only by stealing: of 200 workers, 199 were idle. So each thread's groups take their input from a
copy on their own worker, held by a task that is pinned there as long as the worker lives; copies are passed from worker
to worker as a tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask
from distributed import Client, Future

from bigpca.passes.engine.cluster.joining import by_value
from bigpca.passes.engine.cluster.tasks import identity
from bigpca.passes.engine.cluster.watch import ask


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
    _first: int = 0  # index of the first of the current copies
    _turn: int = 0

    def take(self, count: int, workers: Mapping[str, int]) -> list[Future]:
        """Return the copies for ``count`` consecutive groups; neighbours, whose states are merged, share a worker.

        Parameters
        ----------
        workers : mapping of str to int
            Live workers and their threads.
        """
        seats = [worker for worker in sorted(workers) for _ in range(workers[worker])]
        if not seats:  # no worker at the moment: Dask waits for one
            return [self._made[-1] if self._made else self._make(None)] * count
        chosen = [seats[i] for i in self._places(count, seats)]
        for worker in chosen:
            if worker not in self.copies:
                self.copies[worker] = self._make(worker)
        return [self.copies[worker] for worker in chosen]

    def _make(self, worker: str | None) -> Future:
        """Create the first copy from the value, and each other copy from an existing one."""
        made = len(self._made) - self._first
        source = self._made[self._first + (made - 1) // 2] if made else self.value
        place = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
            copy = self.client.submit(identity, source, key=f"{self.name}-{len(self._made)}", pure=False, **place)
        self._made.append(copy)
        return copy

    def _places(self, count: int, seats: Sequence[str]) -> list[int]:
        total, turn = len(seats), self._turn
        if total > count:
            self._turn += count
            return [(turn + i) % total for i in range(count)]
        self._turn += 1
        return [(turn + i * total // count) % total for i in range(count)]

    def free(self, workers: Mapping[str, int]) -> None:
        """Allow copies of workers that have left to be computed anywhere.

        Dask does this for pinned tasks with ``allow_other_workers``, except for those scheduled while there was no
        worker at all: these would wait for an address that never returns.
        """
        gone = [worker for worker in self.copies if worker not in workers]
        if gone:
            keys = [self.copies.pop(worker).key for worker in gone]
            ask(self.client, self.client.run_on_scheduler, by_value(unpin), keys)

    def renew(self, failed: str) -> None:
        """Create all copies again, under new names, if ``failed`` is the key of one of them."""
        if any(copy.key == failed for copy in self._made[self._first :]):
            self.renew_all()

    def renew_all(self) -> None:
        """Create all copies again, under new names: some may be on workers that do not answer."""
        self.copies.clear()
        self._first = len(self._made)


def unpin(keys: list[str], dask_scheduler: Any = None) -> None:
    """Remove the worker restrictions of tasks, on the scheduler, and schedule those that found no worker."""
    tasks = [dask_scheduler.tasks[key] for key in keys if key in dask_scheduler.tasks]
    for task in tasks:
        task.worker_restrictions = None
    waiting = {task.key: "processing" for task in tasks if task.state == "no-worker"}
    if waiting and dask_scheduler.running:
        dask_scheduler.transitions(waiting, stimulus_id="bigpca-unpin")
