"""Run a pass on Dask's local schedulers, as one graph."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import dask
import dask.local
import dask.threaded
from dask.base import get_scheduler, named_schedulers
from dask.system import CPU_COUNT
from dask.task_spec import GraphNode, Task, TaskRef
from dask.typing import Key

from bigpca.blas import inside_fold
from bigpca.passes.engine.checkpoint import Resumed, SegmentFiles, WriteFailed, warn_unwritten
from bigpca.passes.engine.events import CheckpointEvent
from bigpca.passes.engine.forks import reject_inherited
from bigpca.passes.engine.jobs import SHARED, AnyPass, Pass, R, merge_states, run_group, tree
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.states import PassState

Get = Callable[..., Any]


def current_client() -> Any:
    """Return the ``distributed.Client`` that Dask would use here, or None for a local scheduler.

    ``dask.config``'s scheduler takes precedence over a live client; inside a task the work stays in its process.

    Raises
    ------
    RuntimeError
        In a forked child, for a client of its parent.
    """
    if _in_task():
        return None
    owner = getattr(chosen_scheduler(), "__self__", None)
    if not hasattr(owner, "scheduler_info"):
        return None
    reject_inherited(owner)
    return owner


def chosen_scheduler() -> Get | None:
    """Return the same as ``dask.base.get_scheduler``, without importing ``distributed``.

    If that has not been imported, there can be no client, and importing it takes as long as scikit-learn.

    Raises
    ------
    RuntimeError
        In a coroutine of an asynchronous client.
    """
    configured = any(dask.config.get(name, None) for name in ("scheduler", "get"))
    try:
        chosen: Get | None = get_scheduler() if configured or "distributed" in sys.modules else None
    except RuntimeError as error:
        if "asynchronous" not in str(error):
            raise
        raise RuntimeError(
            "the current Client is asynchronous, and this call, which waits for its result, would stop the event loop "
            "in which that Client works. Call it in a thread: await asyncio.to_thread(model.fit, X)."
        ) from None
    return chosen


def _in_task() -> bool:
    if inside_fold():
        return True
    get_worker = getattr(sys.modules.get("distributed.worker"), "get_worker", None)  # a worker has imported it
    try:
        return get_worker is not None and get_worker() is not None
    except ValueError:
        return False


def threads_here(solve_threads: int | None) -> int:
    """Return the BLAS threads of a solve: as given, or one per available core. Call it in the process that solves."""
    return solve_threads or int(CPU_COUNT)


def local_threads() -> int:
    """Return the number of threads of the local scheduler."""
    if _in_task() or dask.config.get("scheduler", None) in ("sync", "synchronous", "single-threaded"):
        return 1
    pool = dask.config.get("pool", None)
    return int(getattr(pool, "_max_workers", 0) or dask.config.get("num_workers", None) or CPU_COUNT)


class StateWriter:
    """Writes states to the checkpoint until that fails once; the run then continues without it."""

    def __init__(self, files: SegmentFiles | None, options: Run) -> None:
        self.files, self.options = files, options
        self._lock = threading.Lock()

    def write(self, kind: str, index: int, state: PassState) -> bool:
        """Write a state if there is a checkpoint; return whether it was written."""
        files = self.files
        if files is None:
            return False
        try:
            files.write(kind, index, state)
        except WriteFailed as error:
            with self._lock:
                first, self.files = self.files is not None, None
            if first and self.options.checkpoint is not None:
                warn_unwritten(error, self.options.checkpoint.path)
            return False
        return True


class LocalPass:
    """One pass in this process: its tasks and their graph."""

    def __init__(self, job: AnyPass, options: Run, resumed: Resumed) -> None:
        self.job, self.options, self.resumed = job, options, resumed
        self.files, self.writer = resumed.files, StateWriter(resumed.files, options)

    def fold(self, group: int, _after: None = None) -> PassState:
        task, inputs = self.job.cut(group)
        inputs = {SHARED: self.job.shared} | {key: future.result() for key, future in inputs.items()}
        state = run_group(task, self.job.run_id, inputs)
        self.options.emit(self.job.done_event(range(group, group + 1)))
        return state

    def store(self, segment: int, state: PassState) -> PassState:
        if self.files is not None and self.writer.write("segment", segment, state):
            self.options.emit(CheckpointEvent(self.files.directory, segment))
        return state

    def fold_prefix(self, segment: int, state: PassState, total: PassState | None) -> PassState:
        total = state if total is None else merge_states(total, state)
        if self.files is not None and self.writer.write("prefix", segment + 1, total):
            self.files.forget_before(segment + 1)
        return total

    def read(self, segment: int, _after: None = None) -> PassState:
        if self.files is None:
            raise ValueError("there is no checkpoint to read from")
        return self.files.read("segment", segment)

    def graph(self) -> tuple[dict[Key, GraphNode], Key | None]:
        """Return the graph of all remaining segments and the key of the complete state; None if none remain."""
        job, graph = self.job, dict[Key, GraphNode]()
        total: TaskRef | PassState | None = self.resumed.prefix
        ahead = 2 * local_threads()  # segments that may wait, each with a state, for a slow one before them
        for index in range(self.resumed.covered, len(job.layout.segments)):
            gate = job.key("gate", index - ahead)
            segment = self._add_segment(graph, index, [TaskRef(gate)] if gate in graph else [])
            name, opened = job.key("fold", index), job.key("gate", index)
            graph[name] = Task(name, self.fold_prefix, index, TaskRef(segment), total)
            total = TaskRef(name)
            graph[opened] = Task(opened, _discard, total)
        return graph, total.key if isinstance(total, TaskRef) else None

    def _add_segment(self, graph: dict[Key, GraphNode], index: int, after: list[TaskRef]) -> str:
        """Add the tasks of a segment, which start after ``after``; return the key of its state."""
        job, name = self.job, self.job.key("store", index)
        if index in self.resumed.segments:
            graph[name] = Task(name, self.read, index, *after)
            return name
        groups = {f"{job.prefix}-{group}": group for group in job.layout.segments[index]}
        for key, group in groups.items():
            graph[key] = Task(key, self.fold, group, *after)
        root = tree(graph, list(groups), job.key("merge", index))
        graph[name] = Task(name, self.store, index, TaskRef(root))
        return name


def run_locally(job: Pass[R], options: Run, resumed: Resumed) -> R:
    """Run one pass in this process; see :func:`bigpca.passes.engine.driver.run_pass`."""
    graph, key = LocalPass(job, options, resumed).graph()
    if key is not None:
        return job.finish(_local_get(len(job.layout.groups))(graph, key))
    if resumed.prefix is None:
        raise ValueError("the pass has no rows")
    return job.finish(resumed.prefix)


def _discard(state: PassState) -> None:
    """Signal that a state exists, without passing it on."""


def _local_get(groups: int) -> Get:
    get: Get = dask.threaded.get
    if groups <= 1 or _in_task():
        get = dask.local.get_sync
    elif not hasattr(getattr(chosen_scheduler(), "__self__", None), "scheduler_info"):
        get = chosen_scheduler() or get
    # Tasks here share this process's memory: another process would pickle states and see no progress.
    return dask.threaded.get if get is named_schedulers.get("processes") else get
