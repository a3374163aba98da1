"""Drive one pass: take up what a checkpoint holds, run the rest here or on a cluster, report."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from bigpca.blas import solve_paused
from bigpca.errors import warn_rounded
from bigpca.heap import steady_heap, trim_heap
from bigpca.passes.engine.cancel import cancel_run
from bigpca.passes.engine.checkpoint import Checkpoint, WriteFailed, check_stamps, warn_unwritten
from bigpca.passes.engine.events import DoneEvent, PassEvent
from bigpca.passes.engine.jobs import Finish, Left, Pass, RunOptions
from bigpca.passes.engine.local import current_client, run_locally
from bigpca.passes.engine.solving import finish_alike
from bigpca.passes.engine.states import PassState


def run_pass(job: Pass, number: int, options: RunOptions) -> Any:
    """Run one pass and return what ``job.finish`` makes of its state.

    Parameters
    ----------
    number : int
        Which pass of the fit this is, from 1; names its checkpoint directory.

    Raises
    ------
    CheckpointError
        Where finished groups read input that has changed since.
    TimeoutError, ConnectionError
        On a cluster: no worker for ``workers_timeout``; the scheduler lost.
    """
    began = time.perf_counter()
    steady_heap()
    left = Left()
    if options.checkpoint is not None:
        left = _take_up(job, number, options.checkpoint)
    resumed = sum(len(s) for i, s in enumerate(job.layout.segments) if i < left.covered or i in left.segments)
    groups = len(job.layout.groups)
    options.emit(
        PassEvent(
            job.name, job.layout.n_rows, job.bytes_of(range(groups)), groups, resumed, job.evaluations_of(range(groups))
        )
    )
    job = replace(job, finish=CountRounded(finish_alike(job.finish)))
    with solve_paused():
        result, rounded = _run(job, options, left)
    options.emit(DoneEvent(job.name, time.perf_counter() - began))
    if rounded and not options.rounding_told:
        options.rounding_told = True
        warn_rounded(rounded)
    return result


def _run(job: Pass, options: RunOptions, left: Left) -> tuple[Any, int]:
    client = None if options.scheduler == "local" else current_client()
    try:
        if client is None:
            found: tuple[Any, int] = run_locally(job, options, left)
        else:
            from bigpca.passes.engine.cluster.run import run_on_cluster  # with distributed, which is heavy

            found = run_on_cluster(client, job, options, left)
        if left.files is not None:
            left.files.forget_unfinished()  # of workers that were killed while they wrote
    finally:
        cancel_run(job.run_id)
        trim_heap()
    return found


@dataclass(frozen=True)
class CountRounded:
    """What ``finish`` makes of a state, and how many integers were rounded on the way."""

    finish: Finish

    def __call__(self, state: PassState) -> tuple[Any, int]:
        return self.finish(state), state.rounded


def _take_up(job: Pass, number: int, checkpoint: Checkpoint) -> Left:
    """Return what an earlier run finished of this pass, after a look whether its input is still the same."""
    try:
        files = checkpoint.files(number, job.templates, job.layout)
    except OSError as error:
        warn_unwritten(WriteFailed(f"{type(error).__name__}: {error}"), checkpoint.path)
        return Left()
    found = checkpoint.finished(files, job.layout.segments)
    stored = dict(found.prefix.stamps) if found.prefix is not None else {}
    for index in found.segments:
        stored |= files.read("segment", index).stamps
    check_stamps(stored, {g: job.stamp(g) for g in stored}, job.layout.rows_of, checkpoint.path)
    return Left(files, found.prefix, found.covered, found.segments)
