"""Drive one pass: load what a checkpoint holds, run the rest here or on a cluster, report."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from bigpca.blas import solve_paused
from bigpca.errors import warn_rounded
from bigpca.heap import steady_heap, trim_heap
from bigpca.passes.engine.cancel import cancel_run
from bigpca.passes.engine.checkpoint import Checkpoint, Resumed, WriteFailed, check_stamps, warn_unwritten
from bigpca.passes.engine.events import DoneEvent, PassEvent
from bigpca.passes.engine.jobs import Finish, Pass, RunOptions
from bigpca.passes.engine.local import current_client, run_locally
from bigpca.passes.engine.solving import with_solve_threads
from bigpca.passes.engine.states import PassState


def run_pass(job: Pass, number: int, options: RunOptions) -> Any:
    """Run one pass and return the result of ``job.finish``.

    Parameters
    ----------
    number : int
        Number of the pass within the fit, from 1; names its checkpoint directory.

    Raises
    ------
    CheckpointError
        If the input of finished groups has changed.
    TimeoutError, ConnectionError
        On a cluster: no worker for ``workers_timeout``, or the scheduler is lost.
    """
    began = time.perf_counter()
    steady_heap()
    resumed = Resumed()
    if options.checkpoint is not None:
        resumed = _resume(job, number, options.checkpoint)
    segments = enumerate(job.layout.segments)
    groups_resumed = sum(len(s) for i, s in segments if i < resumed.covered or i in resumed.segments)
    groups = range(len(job.layout.groups))
    options.emit(
        PassEvent(
            job.name, job.layout.n_rows, job.bytes_of(groups), len(groups), groups_resumed, job.evaluations_of(groups)
        )
    )
    job = replace(job, finish=CountRounded(with_solve_threads(job.finish)))
    with solve_paused():
        result, rounded = _run(job, options, resumed)
    options.emit(DoneEvent(job.name, time.perf_counter() - began))
    if rounded and not options.rounding_warned:
        options.rounding_warned = True
        warn_rounded(rounded)
    return result


def _run(job: Pass, options: RunOptions, resumed: Resumed) -> tuple[Any, int]:
    client = None if options.scheduler == "local" else current_client()
    try:
        if client is None:
            found: tuple[Any, int] = run_locally(job, options, resumed)
        else:
            from bigpca.passes.engine.cluster.run import run_on_cluster  # imports distributed, which is slow

            found = run_on_cluster(client, job, options, resumed)
        if resumed.files is not None:
            resumed.files.forget_unfinished()  # of workers that were killed while writing
    finally:
        cancel_run(job.run_id)
        trim_heap()
    return found


@dataclass(frozen=True)
class CountRounded:
    """Returns the result of ``finish``, and how many integers were rounded while reading."""

    finish: Finish

    def __call__(self, state: PassState) -> tuple[Any, int]:
        return self.finish(state), state.rounded


def _resume(job: Pass, number: int, checkpoint: Checkpoint) -> Resumed:
    """Return what an earlier run finished of this pass, after checking that its input is unchanged."""
    try:
        files = checkpoint.files(number, job.templates, job.layout)
    except OSError as error:
        warn_unwritten(WriteFailed(f"{type(error).__name__}: {error}"), checkpoint.path)
        return Resumed()
    resumed = checkpoint.finished(files, job.layout.segments)
    stored = dict(resumed.prefix.stamps) if resumed.prefix is not None else {}
    for index in resumed.segments:
        stored |= files.read("segment", index).stamps
    check_stamps(stored, {g: job.stamp(g) for g in stored}, job.layout.rows_of, checkpoint.path)
    return resumed
