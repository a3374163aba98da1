"""What all groups of a pass share, once on every worker that has groups.

Dask runs a task where its input is. With one copy of a shared input, all groups go to the worker that holds it, and
reach the others only as these steal them: of 200 workers, 199 stood idle. So each thread's share of the groups takes
its input from a copy of its own worker, a task that is pinned there for as long as the worker lives; copies pass from
worker to worker as a tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask

from bigpca.passes.engine.cluster.joining import by_value
from bigpca.passes.engine.cluster.tasks import the_same
from bigpca.passes.engine.cluster.watch import ask


@dataclass
class SharedCopies:
    """Copies of a value, and which group takes which.

    Attributes
    ----------
    client : distributed.Client
    value : what groups share
    name : str
        Start of the tasks' keys, unique to the pass.
    copies : dict of str to Future
        Worker -> its copy. A task each, so that Dask makes it again elsewhere where a worker dies.
    """

    client: Any
    value: Any
    name: str
    copies: dict[str, Any] = field(default_factory=dict)
    _made: list[Any] = field(default_factory=list)
    _first: int = 0  # of those that are made now
    _turn: int = 0

    def take(self, count: int, workers: Mapping[str, int]) -> list[Any]:
        """Return the copies for ``count`` consecutive groups: neighbours, whose states are merged, on one worker.

        Parameters
        ----------
        workers : mapping of str to int
            Those that live, and their threads.
        """
        seats = [worker for worker in sorted(workers) for _ in range(workers[worker])]
        if not seats:  # nobody is there just now: Dask waits for somebody
            return [self._made[-1] if self._made else self._make(None)] * count
        chosen = [seats[i] for i in self._places(count, seats)]
        for worker in chosen:
            if worker not in self.copies:
                self.copies[worker] = self._make(worker)
        return [self.copies[worker] for worker in chosen]

    def _make(self, worker: str | None) -> Any:
        """Make the first copy from the value, others each from one that is there."""
        made = len(self._made) - self._first
        source = self._made[self._first + (made - 1) // 2] if made else self.value
        place = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
            copy = self.client.submit(the_same, source, key=f"{self.name}-{len(self._made)}", pure=False, **place)
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
        """Let copies of workers that have gone be made again anywhere.

        Dask says so of pinned tasks that may go elsewhere, but forgets it of those that were due while there was no
        worker at all: these would wait for an address that never comes back.
        """
        gone = [worker for worker in self.copies if worker not in workers]
        if gone:
            keys = [self.copies.pop(worker).key for worker in gone]
            ask(self.client, self.client.run_on_scheduler, by_value(unpin), keys)

    def renew(self, blamed: Any) -> None:
        """Make all copies anew, under new names, where workers died over the task of one of them."""
        if any(copy.key == blamed for copy in self._made[self._first :]):
            self.begin_anew()

    def begin_anew(self) -> None:
        """Make all copies anew, under new names: some may lie where nobody can fetch them."""
        self.copies.clear()
        self._first = len(self._made)

    def release(self) -> None:
        """Let go of all copies."""
        for copy in self._made:
            copy.release()


def unpin(keys: list[str], dask_scheduler: Any = None) -> None:
    """Take the workers off tasks, on the scheduler, and send those off that no worker was found for."""
    tasks = [dask_scheduler.tasks[key] for key in keys if key in dask_scheduler.tasks]
    for task in tasks:
        task.worker_restrictions = None
    waiting = {task.key: "processing" for task in tasks if task.state == "no-worker"}
    if waiting and dask_scheduler.running:
        dask_scheduler.transitions(waiting, stimulus_id="bigpca-unpin")
