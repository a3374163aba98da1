"""Drive one pass on a ``distributed.Client``: segments in a window, waits with limits, states that leave the workers.

A segment's state leaves the workers as soon as it is finished, to the checkpoint where they can see it, else to the
client up to 64 MiB, so that a lost worker costs the segments in flight and not the sub-tree above them. Larger states
without a checkpoint stay on the workers, and Dask replays what a dead one held.

Workers come and go. Each is looked at when it is first seen (:mod:`bigpca.passes.engine.cluster.joining`); the window
of segments in flight follows the threads there are. A worker that is retired, scaled down or at the end of its
``--lifetime`` hands its results over; SIGTERM is no farewell in Dask (its nanny stops it with its task and its
results), so preemption costs what a kill costs. Whom deaths are blamed on, whatever
``distributed.scheduler.allowed-failures`` is: :mod:`bigpca.passes.engine.cluster.suspects`.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from distributed import KilledWorker

from bigpca.errors import CheckpointError
from bigpca.passes.engine.cancel import cancel_run
from bigpca.passes.engine.checkpoint import WriteFailed, warn_unwritten
from bigpca.passes.engine.cluster.joining import join_workers
from bigpca.passes.engine.cluster.outcomes import result_of
from bigpca.passes.engine.cluster.segments import ClusterRun
from bigpca.passes.engine.cluster.suspects import killed
from bigpca.passes.engine.cluster.tasks import Stored, finish_stored
from bigpca.passes.engine.cluster.watch import Watch, ask, scheduler_loss_named
from bigpca.passes.engine.events import RetryEvent
from bigpca.passes.engine.jobs import Left, Pass, RunOptions

CLIENT_BYTES = 64 << 20  # largest state that is gathered to the client


def run_on_cluster(client: Any, job: Pass, options: RunOptions, left: Left) -> Any:
    """Run one pass on a client; see :func:`bigpca.passes.engine.driver.run_pass`."""

    def join(workers: Iterable[str]) -> list[str]:
        return join_workers(client, workers, job.paths, partial(planned_bytes, job, options))

    watch = Watch(client, options, join)
    with scheduler_loss_named(watch):
        watch.wait_for_workers()
        try:
            return _run(watch, job, left)
        except WriteFailed as error:
            if left.files is None or options.checkpoint is None:
                raise
            warn_unwritten(error, options.checkpoint.path)
            options.emit(RetryEvent("checkpoint not writable", 1))
            found = options.checkpoint.finished(left.files, job.layout.segments)
            left = Left(left.files, found.prefix, found.covered, found.segments, writing=False)
            return _run(watch, replace(job, run_id=uuid.uuid4().hex[:12]), left)


def _run(watch: Watch, job: Pass, left: Left) -> Any:
    run = _begin(watch, job, left)
    waiting = [i for i in range(left.covered, len(job.layout.segments)) if i not in left.segments]
    try:
        run.fold_ready()
        if waiting:
            run.hand_over()
        while waiting or run.futures or run.suspects.waiting:
            if run.suspects.waiting and not run.futures:
                run.submit_suspect()
            while waiting and not run.suspects.waiting and run.has_room_for(waiting[0], max(1, watch.threads)):
                run.submit_segment(waiting.pop(0))
            run.accept(run.next_done())
            run.fold_ready()
        return _finish(run, watch)
    finally:
        cancel_run(job.run_id)
        with contextlib.suppress(Exception):
            watch.client.cancel(run.held(), force=True)
            if run.copies is not None:
                run.copies.release()


def _begin(watch: Watch, job: Pass, left: Left) -> ClusterRun:
    client, files = watch.client, left.files if left.writing else None
    shared = files is not None and _workers_see(client, Path(files.directory))
    if files is not None and not shared and job.state_bytes > CLIENT_BYTES:
        raise CheckpointError(
            f"workers cannot see the checkpoint {files.directory}, and a state of {job.state_bytes / 2**20:.0f} MiB is "
            f"more than the {CLIENT_BYTES >> 20} MiB that the client writes for them. Put the checkpoint on storage "
            "that workers share."
        )
    gather = not shared and job.state_bytes <= CLIENT_BYTES
    run = ClusterRun(client, job, watch.options, files, shared, gather, None, left.covered, watch)
    if not shared and left.prefix is not None:
        run.total = left.prefix if run.gather else run.read(left, "prefix", left.covered)
    for index in left.segments:
        run.ready[index] = Stored(index) if shared else run.read(left, "segment", index)
    return run


def _finish(run: ClusterRun, watch: Watch) -> Any:
    if run.gather:
        return run.job.finish(run.total)
    if run.shared:
        run.submit("solve", finish_stored, run.job.finish, run.files, run.covered)
    else:
        run.submit("solve", run.job.finish, run.total)
    try:
        return result_of(run.next_done(), watch.check)
    except KilledWorker as error:
        raise killed(error, f"finished the pass ({error.task})", run.job, run.options) from error


def _sees(path: str) -> bool:
    return Path(path).exists()


def planned_bytes(job: Pass, options: RunOptions, threads: int) -> int:
    """Planned bytes of a process of so many threads over the idle process; 0 where nobody planned."""
    return threads * options.peak_bytes + 3 * job.state_bytes if options.peak_bytes else 0


def _workers_see(client: Any, directory: Path) -> bool:
    """Whether every worker sees a nonce file that the client just wrote."""
    nonce = directory / f".nonce-{uuid.uuid4().hex}"
    try:
        nonce.touch()
    except OSError as error:
        raise WriteFailed(f"{type(error).__name__}: {error}") from error
    try:
        return all(ask(client, client.run, _sees, str(nonce)).values())
    finally:
        nonce.unlink(missing_ok=True)
