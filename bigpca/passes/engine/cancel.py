"""Cancellation flags that tasks in this process check between slabs."""

from __future__ import annotations

import sys

_cancelled: set[str] = set()


class RunCancelled(RuntimeError):
    """Raised inside a task whose run was cancelled; callers of the public API never see it."""


def cancel_run(run_id: str) -> None:
    """Make the tasks of ``run_id`` in this process stop at their next slab."""
    _cancelled.add(run_id)


def check_cancelled(run_id: str) -> None:
    """Raise :class:`RunCancelled` if this task's run was cancelled, in this process or by the Dask scheduler."""
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
