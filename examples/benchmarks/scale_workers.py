"""Light workers for ``scale.py``: hundreds in one process, whose fold tasks sleep instead of reading and multiplying.

usage: python examples/benchmarks/scale_workers.py SCHEDULER WORKERS

One thing is replaced here: ``fold_group``, the body of a fold task, in this process alone. It sleeps, and writes
the chunks of a transform as zeros, or returns a :class:`Span`, a few bytes that count as much as the state they stand
for wherever Dask weighs them. Where the merges of
a segment are complete, the span becomes a real state of real size, folded by the real task from 64 rows of each
segment's first group; whatever is beyond (the client, the left fold over segments, the solve) gets real states.
"""

import argparse
import asyncio
import json
import os
import time
from bisect import bisect_right
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Any

import dask
import numpy as np
from dask.sizeof import sizeof
from distributed import Worker

from bigpca.data.source import Source, Stamp
from bigpca.engine import jobs
from bigpca.engine.jobs import PassState
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.project import WriteGroup

RANK = 96  # of the rows that stand for the data
ROWS = 64  # of each segment that are really folded
QUIET = {  # a worker looks after its event loop 50 times a second, and counts open files: here those of hundreds
    "distributed.admin.tick.interval": "1h",
    "distributed.admin.tick.cycle": "1h",
    "distributed.admin.system-monitor.interval": "1h",
    "distributed.worker.use-file-locking": False,  # each worker tries the locks of all
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}
begun: dict[str, list[float]] = {}  # run -> when each of its groups began here
inputs_of: dict[str, Any] = {}  # run -> what its groups share


@dataclass(frozen=True)
class SleepingRows(Source):
    """Rows of a store that is not there: what a task that folds them costs, and rows of its kind.

    Attributes
    ----------
    chunk_rows : int
    seconds : float
        That a task sleeps.
    segment_ends : tuple of int
        Group numbers where segments end; empty where every group is a segment.
    """

    chunk_rows: int
    seconds: float
    segment_ends: tuple[int, ...] = ()

    def facts(self) -> dict[str, Any]:
        """float32."""
        return {"dtype": np.dtype(np.float32)}

    def row_chunks(self) -> tuple[int, ...]:
        """Equal chunks."""
        whole, rest = divmod(self.array_shape[0], self.chunk_rows)
        return (self.chunk_rows,) * whole + ((rest,) if rest else ())

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> np.ndarray:
        """Return normal rows of rank 96 whose variances fall like 1/i, with a mean of 3."""
        scores = np.random.default_rng(start).standard_normal((stop - start, RANK), np.float32)
        rows: np.ndarray = scores @ directions(self.array_shape[1])[:, slice(*columns)] + np.float32(3)
        return rows

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """No files."""
        return []

    def details(self) -> dict[str, Any]:
        """Nothing beyond shape and dtype."""
        return {}


@lru_cache(maxsize=2)
def directions(columns: int) -> np.ndarray:
    """Directions (96, d) of the variance."""
    normal = np.random.default_rng(0).standard_normal((RANK, columns), np.float32)
    return normal / np.sqrt(np.arange(1, RANK + 1, dtype=np.float32))[:, None]


@dataclass(frozen=True)
class Span:
    """Stands for the state of consecutive groups.

    Attributes
    ----------
    task : GroupTask
        Of the first group.
    run_id : str
    groups, state_bytes : int
    """

    task: Any
    run_id: str
    groups: int
    state_bytes: int

    def merge(self, other: "Span") -> Any:
        """Return what stands for both, or the real state where the segment is complete."""
        return replace(self, groups=self.groups + other.groups).whole()

    def whole(self) -> Any:
        """Return the real state of a complete segment; the span where it is not complete."""
        start, stop = self.task.reads[0]
        ends = storage_of(self.task).segment_ends
        whole = not ends or self.task.reads[-1][1] - start <= ROWS
        if not whole and self.groups < segment_groups(ends, self.task.index):
            return self
        short = replace(self.task, reads=((start, min(stop, start + ROWS)),))
        state: PassState = short.run(self.run_id, inputs_of[self.run_id])
        return state


def segment_groups(ends: tuple[int, ...], group: int) -> int:
    """Return how many groups the segment has that begins with this one."""
    segment = bisect_right(ends, group)
    return ends[segment] - (ends[segment - 1] if segment else 0)


def storage_of(task: Any) -> SleepingRows:
    """Where a task reads."""
    source: SleepingRows = task.reader.source
    return source


def sleep_group(task: Any, run_id: str, keys: tuple[Any, ...], *values: Any) -> Any:
    """Stand for ``fold_group``: sleep as long as a group takes, and return what stands for its state."""
    begun.setdefault(run_id, []).append(time.time())
    inputs_of[run_id] = dict(zip(keys, values, strict=True))
    time.sleep(storage_of(task).seconds)
    if isinstance(task, WriteGroup):
        return written(task)
    return Span(task, run_id, 1, state_bytes(task)).whole()


def written(task: WriteGroup) -> PassState:
    """Write the chunks of a group with the real writer: zeros, which take next to no disk."""
    ranges = [task.writer.row_range(chunk) for chunk in task.chunks]
    zeros = [np.zeros((stop - start, *task.writer.shape[1:]), task.writer.dtype) for start, stop in ranges]
    records = [task.writer.write(chunk, rows) for chunk, rows in zip(task.chunks, zeros, strict=True)]
    return PassState({}, sum(map(len, zeros)), 0, {task.index: json.dumps([astuple(record) for record in records])})


def state_bytes(task: Any) -> int:
    """Bytes of the real state of a task."""
    parts: dict[str, Accumulator] = getattr(task, "templates", None) or {"kernel": task.template}
    return sum(part.state_bytes for part in parts.values())


sizeof.register(Span, lambda span: span.state_bytes)


@dataclass
class Traffic:
    """What a worker did.

    Attributes
    ----------
    tasks : int
        That it ran since it started.
    moved : list of (key, bytes)
        That it took from others since it was last asked.
    process : int
    runs : dict of str to (float, int)
        When the first group of a pass began in this process, and how many did.
    """

    tasks: int
    moved: list[tuple[str, int]]
    process: int
    runs: dict[str, tuple[float, int]]


def take_traffic(dask_worker: Worker) -> Traffic:
    """Read and empty a worker's log of transfers (runs on workers)."""
    moved = [(str(key), int(size)) for log in dask_worker.transfer_incoming_log for key, size in log["keys"].items()]
    dask_worker.transfer_incoming_log.clear()
    runs = {run: (times[0], len(times)) for run, times in begun.items()}
    return Traffic(dask_worker.state.executed_count, moved, os.getpid(), runs)


async def start(scheduler: str, count: int) -> None:
    """Run ``count`` workers of one thread each until the scheduler goes."""
    workers = [
        Worker(scheduler, nthreads=1, memory_limit="16 GiB", dashboard=False, validate=False) for _ in range(count)
    ]
    for worker in workers:
        worker.periodic_callbacks["find-missing"].callback_time = 60_000  # of no consequence, each second
    for some in range(0, count, 50):
        await asyncio.gather(*workers[some : some + 50])
    await asyncio.gather(*(worker.finished() for worker in workers))


def main() -> None:
    """Run the workers that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scheduler")
    parser.add_argument("workers", type=int)
    given = parser.parse_args()
    jobs.fold_group = sleep_group
    with dask.config.set(QUIET):
        asyncio.run(start(given.scheduler, given.workers))


if __name__ == "__main__":
    import scale_workers  # under the name by which tasks and the client know it

    scale_workers.main()
