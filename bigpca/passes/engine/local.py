"""Run a pass on Dask's local schedulers: one graph a pass."""

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
from dask.task_spec import Task, TaskRef

from bigpca.blas import inside_fold
from bigpca.passes.engine.checkpoint import SegmentFiles, WriteFailed, warn_unwritten
from bigpca.passes.engine.events import CheckpointEvent
from bigpca.passes.engine.forks import reject_inherited
from bigpca.passes.engine.jobs import SHARED, Left, Pass, RunOptions, merge_states, run_group, tree
from bigpca.passes.engine.states import PassState

Get = Callable[..., Any]


def current_client() -> Any:
    """Return the ``distributed.Client`` that Dask would use here, or None for a local scheduler.

    ``dask.config``'s scheduler beats a live client; inside a task the work stays in its process.

    Raises
    ------
    RuntimeError
        In a forked child, for a client of the process that it was forked from.
    """
    if _in_task():
        return None
    owner = getattr(chosen_scheduler(), "__self__", None)
    if not hasattr(owner, "scheduler_info"):
        return None
    reject_inherited(owner)
    return owner


def chosen_scheduler() -> Get | None:
    """Return what ``dask.base.get_scheduler`` returns, without its import of ``distributed``.

    Where nobody has imported that, there is no client to ask, and asking takes as long as importing scikit-learn.
    """
    configured = any(dask.config.get(name, None) for name in ("scheduler", "get"))
    chosen: Get | None = get_scheduler() if configured or "distributed" in sys.modules else None
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
    """BLAS threads of a solve in this process: as given, or one for each core that it may use.

    Ask where the solve runs.
    """
    return solve_threads or int(CPU_COUNT)


def local_threads() -> int:
    """Number of threads that the local scheduler uses here."""
    if _in_task() or dask.config.get("scheduler", None) in ("sync", "synchronous", "single-threaded"):
        return 1
    pool = dask.config.get("pool", None)
    return int(getattr(pool, "_max_workers", 0) or dask.config.get("num_workers", None) or CPU_COUNT)


class Keeper:
    """Writes states to the checkpoint until that fails once; then the run goes on without."""

    def __init__(self, files: SegmentFiles | None, options: RunOptions) -> None:
        self.files, self.options = files, options
        self._lock = threading.Lock()

    def keeps(self, kind: str, index: int, state: PassState) -> bool:
        """Write a state where there is a checkpoint; whether it is there now."""
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


def run_locally(job: Pass, options: RunOptions, left: Left) -> Any:
    """Run one pass in this process; see :func:`bigpca.passes.engine.driver.run_pass`."""
    files = left.files
    graph: dict[Any, Any] = {}

    def fold(group: int, _after: None = None) -> PassState:
        task, inputs = job.cut(group)
        state = run_group(task, job.run_id, {SHARED: job.shared} | {k: f.result() for k, f in inputs.items()})
        options.emit(job.done_event(range(group, group + 1)))
        return state

    keeper = Keeper(files, options)

    def store(segment: int, state: PassState) -> PassState:
        if files is not None and keeper.keeps("segment", segment, state):
            options.emit(CheckpointEvent(files.directory, segment))
        return state

    def fold_prefix(segment: int, state: PassState, total: PassState | None) -> PassState:
        total = state if total is None else merge_states(total, state)
        if files is not None and keeper.keeps("prefix", segment + 1, total):
            files.forget_before(segment + 1)
        return total

    def read(segment: int, _after: None = None) -> PassState:
        if files is None:
            raise ValueError("there is no checkpoint to read from")
        return files.read("segment", segment)

    last: Any = left.prefix
    ahead = 2 * local_threads()  # segments that may wait, each with a state, for a slow one before them
    for index, groups in enumerate(job.layout.segments):
        if index < left.covered:
            continue
        name = job.key("store", index)
        gate = job.key("gate", index - ahead)
        after = [TaskRef(gate)] if gate in graph else []
        if index in left.segments:
            graph[name] = Task(name, read, index, *after)
        else:
            for g in groups:
                graph[f"{job.prefix}-{g}"] = Task(f"{job.prefix}-{g}", fold, g, *after)
            root = tree(graph, [f"{job.prefix}-{g}" for g in groups], job.key("merge", index))
            graph[name] = Task(name, store, index, TaskRef(root))
        total = job.key("fold", index)
        graph[total] = Task(total, fold_prefix, index, TaskRef(name), last)
        last = TaskRef(total)
        opened = job.key("gate", index)
        graph[opened] = Task(opened, _nothing, last)
    if not isinstance(last, TaskRef):
        return job.finish(last)
    state = _local_get(len(job.layout.groups))(graph, last.key)
    return job.finish(state)


def _nothing(state: PassState) -> None:
    """Pass on that a state is there, and not the state."""


def _local_get(groups: int) -> Get:
    get: Get = dask.threaded.get
    if groups <= 1 or _in_task():
        get = dask.local.get_sync
    elif not hasattr(getattr(chosen_scheduler(), "__self__", None), "scheduler_info"):
        get = chosen_scheduler() or get
    # Tasks here share this process's memory: another process would pickle states and see no progress.
    return dask.threaded.get if get is named_schedulers.get("processes") else get
