"""Word of runs that were given up, for the tasks of this process to see between slabs."""

from __future__ import annotations

import sys

_cancelled: set[str] = set()


class RunCancelled(RuntimeError):
    """Raised inside a task whose run has been given up; no caller of the public API sees it."""


def cancel_run(run_id: str) -> None:
    """Make tasks of ``run_id`` that run in this process stop at their next slab."""
    _cancelled.add(run_id)


def check_cancelled(run_id: str) -> None:
    """Raise :class:`RunCancelled` where this task's run was given up, in this process or by the Dask scheduler."""
    if run_id in _cancelled:
        raise RunCancelled(run_id)
    workers = sys.modules.get("distributed.worker")
    state = getattr(workers, "thread_state", None)
    worker, key = getattr(state, "execution_state", {}).get("worker"), getattr(state, "key", None)
    if worker is None or key is None:
        return
    task = worker.state.tasks.get(key)
    if task is None or task.state == "cancelled":
        raise RunCancelled(run_id)
