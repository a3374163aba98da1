"""Drive one pass on a ``distributed.Client``: segments in a window, waits with limits, states moved off the workers.

A segment's state is moved off the workers as soon as it is finished: to the checkpoint if workers can write it, else to
the client up to 64 MiB. A lost worker therefore costs the segments in flight, not the sub-tree above them. Without a
checkpoint, larger states stay on the workers, and Dask recomputes those that a dead worker held.

Workers may join and leave at any time. Each is checked when it first appears
(:mod:`bigpca.passes.engine.cluster.joining`), and the window of segments in flight follows the number of threads. A
worker that is retired, scaled down or at the end of its ``--lifetime`` transfers its results; SIGTERM is not graceful
in Dask (the nanny stops the worker with its task and its results), so preemption costs as much as a kill.
:mod:`bigpca.passes.engine.cluster.suspects` decides which group is blamed for deaths, whatever
``distributed.scheduler.allowed-failures`` is.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import cloudpickle
from distributed import Client, KilledWorker

from bigpca.errors import CheckpointError
from bigpca.passes.engine.cancel import cancel_run
from bigpca.passes.engine.checkpoint import Resumed, WriteFailed, warn_unwritten
from bigpca.passes.engine.cluster.joining import join_workers
from bigpca.passes.engine.cluster.outcomes import result_of
from bigpca.passes.engine.cluster.release import releasing, starts_with
from bigpca.passes.engine.cluster.segments import ClusterRun
from bigpca.passes.engine.cluster.suspects import killed
from bigpca.passes.engine.cluster.tasks import Stored, finish_stored
from bigpca.passes.engine.cluster.watch import Watch, ask, scheduler_loss_named
from bigpca.passes.engine.events import RetryEvent
from bigpca.passes.engine.jobs import AnyPass, Pass, R
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.states import PassState

CLIENT_BYTES = 64 << 20  # largest state that is gathered to the client


def run_on_cluster(client: Client, job: Pass[R], options: Run, resumed: Resumed) -> R:
    """Run one pass on a client; see :func:`bigpca.passes.engine.driver.run_pass`."""

    def join(workers: Iterable[str]) -> list[str]:
        return join_workers(client, workers, job.paths, partial(planned_bytes, job, options))

    cloudpickle.dumps(job.cut(0)[0].reader)  # so that a store that cannot be sent is named, which Dask would not do
    watch = Watch(client, options, join)
    with scheduler_loss_named(watch):
        watch.wait_for_workers()
        try:
            return cast("R", _run(watch, job, resumed))
        except WriteFailed as error:
            if resumed.files is None or options.checkpoint is None:
                raise
            warn_unwritten(error, options.checkpoint.path)
            options.emit(RetryEvent("checkpoint not writable", 1))
            resumed = replace(options.checkpoint.finished(resumed.files, job.layout.segments), writing=False)
            return cast("R", _run(watch, replace(job, run_id=uuid.uuid4().hex[:12]), resumed))


def _run(watch: Watch, job: AnyPass, resumed: Resumed) -> object:
    return releasing(watch.client, starts_with(job.prefix), partial(_fold, watch, job, resumed))


def _fold(watch: Watch, job: AnyPass, resumed: Resumed) -> object:
    run = _start(watch, job, resumed)
    waiting = [i for i in range(resumed.covered, len(job.layout.segments)) if i not in resumed.segments]
    try:
        run.fold_ready()
        if waiting:
            run.prepare_broadcast()
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


def _start(watch: Watch, job: AnyPass, resumed: Resumed) -> ClusterRun:
    client, files = watch.client, resumed.files if resumed.writing else None
    shared = files is not None and _workers_see(client, Path(files.directory))
    if files is not None and not shared and job.state_bytes > CLIENT_BYTES:
        raise CheckpointError(
            f"workers cannot see the checkpoint {files.directory}, and a state of {job.state_bytes / 2**20:.0f} MiB is "
            f"more than the {CLIENT_BYTES >> 20} MiB that the client writes for them. Put the checkpoint on storage "
            "that workers share."
        )
    gather = not shared and job.state_bytes <= CLIENT_BYTES
    run = ClusterRun(client, job, watch.options, files, shared, gather, None, resumed.covered, watch)
    if not shared and resumed.prefix is not None:
        run.total = resumed.prefix if run.gather else run.read(resumed, "prefix", resumed.covered)
    for index in resumed.segments:
        run.ready[index] = Stored(index) if shared else run.read(resumed, "segment", index)
    return run


def _finish(run: ClusterRun, watch: Watch) -> object:
    if run.gather:
        return run.job.finish(cast(PassState, run.total))
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


def planned_bytes(job: AnyPass, options: Run, threads: int) -> int:
    """Return the planned bytes of a process with ``threads`` threads, above the idle process; 0 without a plan."""
    return threads * options.peak_bytes + 3 * job.state_bytes if options.peak_bytes else 0


def _workers_see(client: Client, directory: Path) -> bool:
    """Whether every worker can see a file that the client has just created."""
    nonce = directory / f".nonce-{uuid.uuid4().hex}"
    try:
        nonce.touch()
    except OSError as error:
        raise WriteFailed(f"{type(error).__name__}: {error}") from error
    try:
        return all(ask(client, client.run, _sees, str(nonce)).values())
    finally:
        nonce.unlink(missing_ok=True)
