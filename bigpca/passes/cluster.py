"""Drive one pass on a ``distributed.Client``: segments in a window, waits with limits, states that leave the workers.

A segment's state leaves the workers as soon as it is finished, to the checkpoint where they can see it, else to the
client up to 64 MiB, so that a lost worker costs the segments in flight and not the sub-tree above them. Larger states
without a checkpoint stay on the workers, and Dask replays what a dead one held.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import dask
from dask.task_spec import Task, TaskRef

from bigpca.errors import CheckpointError
from bigpca.passes.cancel import RunCancelled, cancel_run
from bigpca.passes.checkpoint import SegmentFiles, WriteFailed, warn_unwritten
from bigpca.passes.events import CheckpointEvent, RetryEvent
from bigpca.passes.jobs import SHARED, Left, Pass, RunOptions, fold_group, merge_states, tree
from bigpca.passes.pass_state import PassState

CLIENT_BYTES = 64 << 20  # largest state that is gathered to the client
POLL_SECONDS = 0.5
RESUBMISSIONS = 3
logger = logging.getLogger("bigpca")


@dataclass(frozen=True)
class Stored:
    """A segment whose state lies in the checkpoint."""

    segment: int


def store_segment(files: SegmentFiles, segment: int, state: PassState) -> Stored:
    """Write the state that ends a segment, in the task that made it."""
    files.write("segment", segment, state)
    return Stored(segment)


def extend_prefix(files: SegmentFiles, covered: int, stop: int) -> int:
    """Fold stored segments ``covered:stop`` into the stored prefix, in a task; returns ``stop``."""
    total = files.read("prefix", covered) if covered else None
    for segment in range(covered, stop):
        state = files.read("segment", segment)
        total = state if total is None else total.merge(state)
    if total is not None:
        files.write("prefix", stop, total)
    return stop


def finish_stored(finish: Any, files: SegmentFiles, covered: int) -> Any:
    """Finish from the stored prefix, in a task."""
    return finish(files.read("prefix", covered))


class Watch:
    """Waits on futures with limits: no worker for too long, or a lost scheduler, is an error and not a wait."""

    def __init__(self, client: Any, options: RunOptions) -> None:
        self.client, self.options = client, options
        self.seen = self.checked = time.monotonic()
        self.workers: dict[str, int] = {}
        self.lost = 0
        self.hint = f" Resume with checkpoint={str(options.checkpoint.path)!r}." if options.checkpoint else ""

    @property
    def threads(self) -> int:
        """Worker threads when the cluster was last looked at."""
        return sum(self.workers.values())

    def wait_for_workers(self) -> None:
        """Wait for a first worker."""
        self.check()
        while not self.workers:
            time.sleep(0.1)
            self.check()

    def check(self) -> None:
        """Raise where the cluster is gone; report lost workers."""
        now = self._nthreads()
        gone = self.workers.keys() - now.keys()
        self.workers, self.checked = now, time.monotonic()
        if now:
            self.seen = self.checked
        if gone:
            self.lost += len(gone)
            logger.warning(
                "lost %d worker(s) (%s); their unfinished groups are read again", len(gone), ", ".join(sorted(gone))
            )
            self.options.emit(RetryEvent("worker lost", self.lost))
        self._check_seen()

    def _nthreads(self) -> dict[str, int]:
        if self.client.status != "running":  # a client that reconnects has cancelled its futures
            raise self.scheduler_lost()
        try:
            return dict(self.client.sync(self.client.scheduler.ncores, callback_timeout=30))
        except (OSError, TimeoutError, RuntimeError) as error:
            raise self.scheduler_lost() from error

    def _check_seen(self) -> None:
        if time.monotonic() - self.seen > self.options.workers_timeout:
            raise TimeoutError(
                f"no worker on {self.client.scheduler.address} for {self.options.workers_timeout:.0f} s "
                f"(workers_timeout); at least one was expected. Start workers and run again.{self.hint}"
            )

    def scheduler_lost(self) -> ConnectionError:
        return ConnectionError(f"the Dask scheduler is lost (client status: {self.client.status}).{self.hint}")


@dataclass
class ClusterRun:
    """The segments of one pass on their way through a cluster."""

    client: Any
    job: Pass
    options: RunOptions
    files: SegmentFiles | None
    shared: bool
    total: Any  # PassState (gathered), Future (kept on workers), or None
    covered: int
    events: queue.Queue[Any] = field(default_factory=queue.Queue)
    futures: dict[str, Any] = field(default_factory=dict)
    segment_of: dict[str, int] = field(default_factory=dict)
    ready: dict[int, Any] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    folding: str | None = None
    shared_input: Any = None  # Future of what all groups share

    @property
    def gather(self) -> bool:
        """Whether states come to the client."""
        return not self.shared and self.job.state_bytes <= CLIENT_BYTES

    def submit_segment(self, index: int) -> None:
        """Cut the groups of a segment and send their graph."""
        attempt = self.tries.get(index, 0)
        name = f"{self.job.prefix}-segment-{index}" + (f"-try-{attempt}" if attempt else "")
        graph: dict[Any, Any] = {}
        leaves = []
        for g in self.job.layout.segments[index]:
            key = f"{self.job.prefix}-{g}" + (f"-try-{attempt}" if attempt else "")
            task, inputs = self.job.cut(g)
            if self.shared_input is not None:
                inputs = {**inputs, SHARED: self.shared_input}
            graph[key] = Task(key, fold_group, task, self.job.run_id, tuple(inputs), *inputs.values())
            leaves.append(key)
        root = tree(graph, leaves, name)
        if self.shared and self.files is not None:
            graph[name] = Task(name, partial(store_segment, self.files, index), TaskRef(root))
            root = name
        (future,) = self.client.get(graph, [root], sync=False)
        self.segment_of[future.key] = index
        self._watch(future)

    def has_room_for(self, index: int, threads: int) -> bool:
        """Whether another segment may be sent: the window covers 2 x threads, and few states wait for a slow one."""
        flying = sum(len(self.job.layout.segments[i]) for i in self.segment_of.values())
        ahead = sum(len(self.job.layout.segments[i]) for i in range(self.covered, index))
        return flying < 2 * threads and ahead < 4 * threads + len(self.job.layout.segments[index])

    def read(self, left: Left, kind: str, index: int) -> Any:
        """Read a state of an earlier run: here, or in a task where it is to stay on the workers."""
        if left.files is None:
            raise ValueError("there is no checkpoint to read from")
        if self.gather:
            return left.files.read(kind, index)
        key = f"{self.job.prefix}-{kind}-{index}"
        return self.client.submit(left.files.read, kind, index, key=key, pure=False)

    def held(self) -> list[Any]:
        """Every future of this run but what groups share: to cancel a task together with dependents that no client holds
        kills the client's stream in the scheduler (an assertion there), so that one is released once these are gone.
        """
        kept = [*self.ready.values(), self.total]
        return [*self.futures.values(), *(k for k in kept if hasattr(k, "key") and hasattr(k, "status"))]

    def hand_over(self) -> None:
        """Send what all groups share, once: a task that makes it, so that Dask makes it again where its worker dies."""
        if self.job.shared:
            key = f"{self.job.prefix}-shared"
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
                self.shared_input = self.client.submit(_the_same, dict(self.job.shared), key=key, pure=False)

    def submit(self, function: Any, *args: Any) -> Any:
        """Send one task and watch it."""
        future = self.client.submit(function, *args, key=f"{self.job.prefix}-{uuid.uuid4().hex[:8]}", pure=False)
        self._watch(future)
        return future

    def _watch(self, future: Any) -> None:
        self.futures[future.key] = future
        future.add_done_callback(self.events.put)

    def next_done(self, watch: Watch) -> Any:
        """Return the next finished future, checking on the cluster while waiting."""
        while True:
            if time.monotonic() - watch.checked > POLL_SECONDS:
                watch.check()
            try:
                future = self.events.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if future.key in self.futures and future.status in ("lost", "pending"):
                future.add_done_callback(self.events.put)  # its worker left with the result: Dask runs it again
            elif future.key in self.futures:
                return future

    def fold_ready(self) -> None:
        """Fold finished segments into the total, in order."""
        while self.covered in self.ready and self.folding is None:
            stop = self.covered + 1
            if self.shared:
                while stop in self.ready:
                    stop += 1
                self.folding = self.submit(extend_prefix, self.files, self.covered, stop).key
                return
            state = self.ready.pop(self.covered)
            if self.gather:
                self.total = state if self.total is None else self.total.merge(state)
                if self.files is not None:
                    self.files.write("prefix", stop, self.total)
                    self.files.forget_before(stop)
            elif self.total is None:
                self.total = state
            else:
                self.total = self.client.submit(
                    merge_states, self.total, state, key=f"{self.job.prefix}-total-{stop}", pure=False
                )
            self.covered = stop

    def accept(self, future: Any) -> None:
        """Take what a finished future brings; resubmit a segment that was cancelled through no fault of its own."""
        if future.key == self.folding:
            self.folding = None
            try:
                stop = int(self._result(future))
            except RunCancelled as error:
                self._count_cancelled(-1, error)  # fold_ready sends it again
                return
            for segment in range(self.covered, stop):
                self.ready.pop(segment, None)
            self.covered = stop
            self.files.forget_before(stop)  # type: ignore[union-attr]
            return
        index = self.segment_of.pop(future.key)
        try:
            value = self._value(future, index)
        except RunCancelled as error:
            self._count_cancelled(index, error)
            self.submit_segment(index)
            return
        self.ready[index] = value
        self.options.emit(self.job.done_event(self.job.layout.segments[index]))
        if self.files is not None:
            self.options.emit(CheckpointEvent(self.files.directory, index))

    def _count_cancelled(self, index: int, error: RunCancelled) -> None:
        self.tries[index] = self.tries.get(index, 0) + 1
        if self.tries[index] > RESUBMISSIONS:
            raise RuntimeError(
                f"tasks of this run were cancelled {self.tries[index]} times by another client or the scheduler; "
                f"they were expected to finish. Run again."
            ) from error
        self.options.emit(RetryEvent("segment cancelled", self.tries[index]))

    def _result(self, future: Any) -> Any:
        if future.status in ("error", "cancelled", "lost"):
            _reraise(future, self.options)
        return future.result()

    def _value(self, future: Any, index: int) -> Any:
        if not self.gather and not self.shared and future.status == "finished":
            return future  # stays on the workers
        value = self._result(future)
        if self.gather and self.files is not None:
            self.files.write("segment", index, value)
        return value


def _reraise(future: Any, options: RunOptions) -> None:
    from distributed import KilledWorker

    hint = f" Resume with checkpoint={str(options.checkpoint.path)!r}." if options.checkpoint else ""
    try:
        future.result(timeout=30)
    except KilledWorker as error:
        raise RuntimeError(
            f"workers died {error.allowed_failures + 1} times while they ran {error.task}: most often they were killed for "
            f"memory. Compare plan(X).peak_bytes with the workers' memory limit, give them more or fewer threads.{hint}"
        ) from error
    except RunCancelled:
        raise
    except Exception as error:
        if type(error).__name__ in ("CancelledError", "FutureCancelledError", "FuturesCancelledError"):
            raise RunCancelled(str(error)) from error
        raise


def run_on_cluster(client: Any, job: Pass, options: RunOptions, left: Left) -> Any:
    """Run one pass on a client; see :func:`bigpca.passes.driver.run_pass`."""
    watch = Watch(client, options)
    with _scheduler_loss_named(watch):
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


@contextlib.contextmanager
def _scheduler_loss_named(watch: Watch) -> Iterator[None]:
    """Turn whatever a call to a scheduler that has just died raises into the error that says so.

    The death may show first in any call: a gather, a submission, a cancelled future.
    """
    from distributed.comm import CommClosedError

    try:
        yield
    except CommClosedError as error:
        raise watch.scheduler_lost() from error
    except Exception as error:
        plain = type(error) is Exception or isinstance(error, RuntimeError)  # distributed's own, at a closed client
        if watch.client.status == "running" or not plain:
            raise
        raise watch.scheduler_lost() from error


def _run(watch: Watch, job: Pass, left: Left) -> Any:
    run = _begin(watch, job, left)
    waiting = [i for i in range(left.covered, len(job.layout.segments)) if i not in left.segments]
    try:
        run.fold_ready()
        if waiting:
            run.hand_over()
        while waiting or run.futures:
            while waiting and run.has_room_for(waiting[0], max(1, watch.threads)):
                run.submit_segment(waiting.pop(0))
            future = run.next_done(watch)
            run.accept(future)
            run.futures.pop(future.key)
            run.fold_ready()
        return _finish(run, watch)
    finally:
        cancel_run(job.run_id)
        with contextlib.suppress(Exception):
            watch.client.cancel(run.held(), force=True)
            if run.shared_input is not None:
                run.shared_input.release()


def _begin(watch: Watch, job: Pass, left: Left) -> ClusterRun:
    client, files = watch.client, left.files if left.writing else None
    shared = files is not None and _workers_see(client, Path(files.directory))
    if files is not None and not shared and job.state_bytes > CLIENT_BYTES:
        raise CheckpointError(
            f"workers cannot see the checkpoint {files.directory}, and a state of {job.state_bytes / 2**20:.0f} MiB is more than "
            f"the {CLIENT_BYTES >> 20} MiB that the client writes for them. Put the checkpoint on storage that workers share."
        )
    run = ClusterRun(client, job, watch.options, files, shared, None, left.covered)
    if not shared and left.prefix is not None:
        run.total = left.prefix if run.gather else run.read(left, "prefix", left.covered)
    for index in left.segments:
        run.ready[index] = Stored(index) if shared else run.read(left, "segment", index)
    return run


def _finish(run: ClusterRun, watch: Watch) -> Any:
    if run.gather:
        return run.job.finish(run.total)
    if run.shared:
        run.submit(finish_stored, run.job.finish, run.files, run.covered)
    else:
        run.submit(run.job.finish, run.total)
    return run._result(run.next_done(watch))


def _the_same(value: Any) -> Any:
    return value


def _sees(path: str) -> bool:
    return Path(path).exists()


def _workers_see(client: Any, directory: Path) -> bool:
    """Whether every worker sees a nonce file that the client just wrote."""
    nonce = directory / f".nonce-{uuid.uuid4().hex}"
    try:
        nonce.touch()
    except OSError as error:
        raise WriteFailed(f"{type(error).__name__}: {error}") from error
    try:
        return all(client.run(_sees, str(nonce)).values())
    finally:
        nonce.unlink(missing_ok=True)
