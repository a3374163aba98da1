"""Run a pass in this process: on its own threads, or over rows that come in one order, which this thread reads."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from numbers import Integral
from queue import SimpleQueue
from typing import Any, cast
from weakref import WeakSet

import dask
import dask.threaded
from dask.base import get_scheduler, named_schedulers
from dask.system import CPU_COUNT
from dask.typing import Key

from bigpca.arrays import Array
from bigpca.blas import LOOK_SECONDS, Crew, forget_others, inside_fold, on_worker, undone
from bigpca.engine.checkpoint import Prefix, Resumed, SegmentStates, WriteFailed, warn_unwritten
from bigpca.engine.events import CheckpointEvent
from bigpca.engine.group import AHEAD, BEGUN, SHARED, Begun, begin_read, cancel_run, check_cancelled
from bigpca.engine.interfaces import Inputs, RowSource
from bigpca.engine.jobs import AnyPass, GroupTask, Pass, PassState, R, merge_states, run_group
from bigpca.engine.run import Run
from bigpca.errors import brief

# Dask keeps its thread pool and its clients in globals, which a child inherits without their threads. The pool is
# created again; an inherited client is rejected by :func:`reject_inherited`.
_inherited: WeakSet[Any] = WeakSet()


def _forget_threads() -> None:
    forget_others()
    dask.threaded.default_pool = None
    dask.threaded.pools.clear()
    clients = sys.modules.get("distributed.client")
    if clients is not None:
        _inherited.update(clients._global_clients.values())


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_threads)


def reject_inherited(client: Any) -> None:
    """Reject a client that was created before this process was forked: nothing here listens to its scheduler.

    Raises
    ------
    RuntimeError
    """
    if client in _inherited:
        raise RuntimeError(
            f"this process ({os.getpid()}) was forked from one that has a Dask client ({client.id}), which does not "
            'survive a fork. Start it by multiprocessing.get_context("spawn"), create a client here, or run without '
            'one: dask.config.set(scheduler="threads").'
        )


Get = Callable[..., Any]
ANSWER_SECONDS = 50  # of the scheduler and of each worker: a silent one is named within a minute


def current_client() -> Any:
    """Return the ``distributed.Client`` that Dask would use here, or None for a local scheduler.

    ``dask.config``'s scheduler takes precedence over a live client; inside a task the work stays in its process.

    Raises
    ------
    RuntimeError
        In a forked child, for a client of its parent.
    """
    if inside_fold() or on_worker():
        return None
    owner = getattr(chosen_scheduler(), "__self__", None)
    if not hasattr(owner, "scheduler_info"):
        return None
    reject_inherited(owner)
    return owner


def ask(client: Any, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a method of a client that its scheduler alone answers, in at most ``ANSWER_SECONDS``.

    Raises
    ------
    TimeoutError
    """

    async def answer() -> Any:
        return await method(*arguments, **options)

    try:
        return client.sync(answer, callback_timeout=ANSWER_SECONDS)
    except TimeoutError as error:
        raise TimeoutError(
            f"the scheduler {client.scheduler.address} did not answer within {ANSWER_SECONDS} s: it is stopped or "
            "overloaded. Look for the cause there, and run again."
        ) from error


def workers_of(client: Any) -> dict[str, Any]:
    """Return what the scheduler tells of each of its workers; nothing if it is gone.

    Raises
    ------
    TimeoutError
        If it is there and does not answer.
    """
    try:
        found: dict[str, Any] = ask(client, client.scheduler.identity, n_workers=-1)["workers"]
    except TimeoutError:
        raise
    except (OSError, RuntimeError, AttributeError):  # of a client that closes, and a closed one has no scheduler
        return {}
    return found


@dataclass(frozen=True)
class Eligible:
    """The workers that may run tasks, by ``dask.annotate(workers=..., resources=...)``: all without annotations.

    Attributes
    ----------
    names : frozenset of str
        Addresses, hosts or names of workers; empty for any.
    resources : dict of str to float
        What one task needs of each resource.
    """

    names: frozenset[str] = frozenset()
    resources: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def here(cls) -> Eligible:
        """Return those of this context."""
        found = dask.get_annotations()
        named = () if found.get("allow_other_workers") else found.get("workers", ())
        listed = named if isinstance(named, list | tuple | set) else [named]
        return cls(frozenset(map(str, listed)), found.get("resources") or {})

    @property
    def restricts(self) -> bool:
        """Whether there are annotations that name workers or resources."""
        return bool(self.names or self.resources)

    def __str__(self) -> str:
        """Return what is added to "no worker" in messages."""
        named = f" named {', '.join(sorted(self.names))}" if self.names else ""
        return named + (f" with the resources {dict(self.resources)}" if self.resources else "")

    def threads_of(self, workers: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
        """Return how many tasks each of these workers runs at a time; those that may run none are left out.

        Parameters
        ----------
        workers : mapping
            Address -> what the scheduler tells of the worker.
        """
        found = {}
        for who, worker in workers.items():
            known = {who, who.rpartition("/")[2], str(worker.get("name")), str(worker.get("host"))}
            has = worker.get("resources") or {}
            shares = [int(has.get(name, 0) // each) for name, each in self.resources.items() if each > 0]
            threads = min([int(worker["nthreads"]), *shares])
            if threads and (not self.names or self.names & known):
                found[who] = threads
        return found


def chosen_scheduler() -> Get | None:
    """Return the same as ``dask.base.get_scheduler``, without importing ``distributed``.

    If that has not been imported, there can be no client, and importing it takes as long as scikit-learn.

    Raises
    ------
    RuntimeError
        In a coroutine of an asynchronous client.
    """
    configured = dask.config.get("scheduler", None) or dask.config.get("get", None)
    chosen: Get | None = named_schedulers.get(configured.lower()) if isinstance(configured, str) else None
    if chosen is not None:
        return chosen
    try:
        chosen = get_scheduler() if configured or "distributed" in sys.modules else None
    except RuntimeError as error:
        if "asynchronous" not in str(error):
            raise
        raise RuntimeError(
            "the current Client is asynchronous, and this call, which waits for its result, would block the "
            "Client's event loop. Call it in a thread: await asyncio.to_thread(model.fit, X)."
        ) from None
    return chosen


def threads_here(solve_threads: int | None) -> int:
    """Return the BLAS threads of a solve: as given, or one per available core. Call it in the process that solves."""
    return solve_threads or int(CPU_COUNT)


def local_threads() -> int:
    """Return the number of threads of the local scheduler.

    Raises
    ------
    ValueError
        If Dask's ``num_workers``, or DASK_NUM_WORKERS, is no whole number of at least 1.
    """
    chosen = dask.config.get("scheduler", None)
    if inside_fold() or on_worker() or chosen in ("sync", "synchronous", "single-threaded"):
        return 1
    pool = dask.config.get("pool", None) or chosen  # which may be an executor
    size = getattr(pool, "_max_workers", None) or getattr(pool, "_processes", None)
    asked = dask.config.get("num_workers", None)
    if asked is not None and (not isinstance(asked, Integral) or int(asked) < 1):
        raise ValueError(
            f"Dask's num_workers (DASK_NUM_WORKERS in the environment) is {brief(repr(asked))}, but a whole number of "
            "at least 1 was expected. Set it, or remove it for one thread a core."
        )
    return int(size or asked or CPU_COUNT)


class Merging:
    """The states of groups, merged as they come: the tree of each segment, then the left fold of the segments.

    Whoever brings the second of two neighbours merges them, and whoever brings the next segment folds it, and those
    that waited for it in the checkpoint. That is written until writing fails once; the run then continues without it.
    """

    def __init__(self, job: AnyPass, options: Run, resumed: Resumed) -> None:
        self.job, self.options, self.files, self._writes = job, options, resumed.files, resumed.files is not None
        self.prefix = Prefix(resumed.prefix, resumed.covered)
        self.changed = threading.Condition()  # the prefix has grown, or the run is cancelled
        self.segment_of = [i for i, groups in enumerate(job.layout.segments) for _ in groups]
        self._halves = dict[tuple[int, int, int], PassState]()  # (segment, level, place) -> a state without neighbour
        self._ready: dict[int, PassState | None] = dict.fromkeys(resumed.segments)  # None: only in the checkpoint
        self._folds = False  # whether a thread folds segments
        self._fold_ready()

    def write(self, kind: str, index: int, state: PassState) -> bool:
        """Write a state if there is a checkpoint; return whether it was written."""
        if self.files is None or not self._writes:
            return False
        try:
            self.files.write(kind, index, state)
        except WriteFailed as error:
            with self.changed:
                first, self._writes = self._writes, False
            if first and self.options.checkpoint is not None:
                warn_unwritten(error, self.options.checkpoint.path)
            return False
        return True

    def forget(self, segments: range) -> None:
        """Delete what a prefix supersedes."""
        if self.files is not None and self._writes:
            self.files.forget(segments)

    def add(self, group: int, state: PassState) -> None:
        """Report a group as done, and merge what its state completes."""
        done = self.job.done_event(range(group, group + 1))
        self.options.progress(replace(done, rows=state.rows) if self.job.open_ended else done)
        segment, level = self.segment_of[group], 0
        groups = self.job.layout.segments[segment]
        place, count = group - groups.start, len(groups)
        while count > 1:
            if place ^ 1 < count:  # else it has no neighbour, and moves up
                with self.changed:
                    other = self._halves.pop((segment, level, place ^ 1), None)
                    if other is None:
                        self._halves[segment, level, place] = state
                        return
                check_cancelled(self.job.run_id)
                state = merge_states(other, state) if place & 1 else merge_states(state, other)
                del other
            place, count, level = place >> 1, (count + 1) >> 1, level + 1
        if self.files is not None:
            check_cancelled(self.job.run_id)
            state = state.here()  # once, to be stored and merged with others that are
            if segment > self.prefix.covered:
                self.write("segment", segment, state)
        with self.changed:
            self._ready[segment] = state
        del state
        self._fold_ready()

    def _fold_ready(self) -> None:
        """Fold the segments that are ready, unless another thread does."""
        while True:
            with self.changed:
                segment = self.prefix.covered
                if self._folds or segment not in self._ready:
                    return
                self._folds, state = True, self._ready.pop(segment)
            try:
                check_cancelled(self.job.run_id)
                stored = self.prefix.extend(state or cast("SegmentStates", self.files).read("segment", segment), self)
                del state
                if stored and self.files is not None:
                    self.options.progress(CheckpointEvent(self.files.directory, segment))
            finally:
                with self.changed:
                    self._folds = False
                    self.changed.notify_all()

    def merged(self) -> PassState:
        """Return the state of all groups.

        Raises
        ------
        ValueError
            If there were none.
        """
        # Of batches that ended within a segment, what has no neighbour, in order.
        left = sorted(self._halves, key=lambda half: half[2] << half[1])
        if left:
            self.prefix.extend(merge_states(*map(self._halves.pop, left)), self)
        if self.prefix.total is None:
            raise ValueError("there is nothing to read: the array or every batch is empty. Give at least one row.")
        return self.prefix.total


Coming = dict[int, tuple[GroupTask, str, dict[Key, Any]]]  # the next group of a thread


# No object of a pass refers to itself by a detour: its states, and what it shares, go as it ends.
class LocalPass:
    """One pass in this process: its groups, in order, which each thread takes until none is left."""

    def __init__(self, job: AnyPass, options: Run, resumed: Resumed, threads: int) -> None:
        self.job, self.threads, self.crew = job, threads, Crew(threads if job.cost.by_cores else 1)
        self.merging = Merging(job, options, resumed)
        self.error: BaseException | None = None  # the first
        left = [*enumerate(job.layout.segments)][resumed.covered :]
        self.left = deque(chain.from_iterable(groups for i, groups in left if i not in resumed.segments))
        # How many segments may run ahead of a slow one: those of two groups a thread, as Layout.held_states counts.
        self._ahead = max(2, -(-2 * threads // max(map(len, job.layout.segments), default=1)))
        # For threads that fold groups, and as many first reads of the next ones; it has no thread before it works.
        self.pool = ThreadPoolExecutor(2 * threads, thread_name_prefix="bigpca-fold")

    def work(self) -> None:
        """Fold groups until none is left, or a thread fails."""
        coming: Coming = {}
        try:
            while coming or self._begin(coming, waits=True):
                group = next(iter(coming))
                with self.crew.task():
                    self.merging.add(group, run_group(*coming.pop(group)))
        except BaseException as error:
            self.stop(error)
            raise

    def _begin(self, coming: Coming, *, waits: bool = False) -> bool:
        """Add the next group to ``coming``, as soon as it may begin; return whether there is one."""
        with self.merging.changed:
            while self.left:
                check_cancelled(self.job.run_id)
                if self.merging.segment_of[self.left[0]] < self.merging.prefix.covered + self._ahead:
                    break
                if not waits:
                    return False
                self.merging.changed.wait()
            if not self.left:
                return False
            group = self.left.popleft()
        task, futures = self.job.cut(group)
        inputs = {SHARED: self.job.shared, AHEAD: self.threads}
        inputs |= {key: future.result() for key, future in futures.items()}
        if self.job.follows:  # a thread holds two reads at most: the next group begins as this one ends
            start, stop = self.job.layout.reads[self.job.layout.groups[group][0]]
            read = begin_read(self.pool, task.reader.with_inputs(inputs), start, stop)
            inputs[BEGUN] = Begun(read, partial(self._begin, coming))
        coming[group] = task, self.job.run_id, inputs
        return True

    def stop(self, error: BaseException | None = None) -> None:
        """Let no thread fold, merge or write any more."""
        with self.merging.changed:
            self.error = self.error or error
            cancel_run(self.job.run_id)
            self.merging.changed.notify_all()


def run_locally(job: Pass[R], options: Run, resumed: Resumed) -> R:
    """Run one pass in this process, on this thread if one is enough; see :func:`bigpca.engine.driver.run_pass`."""
    local = LocalPass(job, options, resumed, local_threads())
    try:
        threads = min(local.crew.threads, len(local.left))
        if threads <= 1:
            local.work()
        else:
            wait([local.pool.submit(copy_context().run, local.work) for _ in range(threads)], None, FIRST_EXCEPTION)
        if local.error is not None:
            raise local.error
        with local.crew.task():
            return job.finish(local.merging.merged())
    finally:
        local.stop()
        local.crew.close()
        local.pool.shutdown(wait=False, cancel_futures=True)  # after an error, a store may not answer for minutes


# Groups start in order, and the rows of one are all read before those of the next. While the last reads of a group are
# multiplied, the next group gets its first ones. States are merged in the order and the tree of any other run: same
# bits.
Request = tuple[int, int, "Future[Array]"]


@dataclass(frozen=True)
class HandedRows:
    """A reader for the task of one group, which asks the fitting thread for rows and waits for them."""

    base: RowSource[Any]
    asked: SimpleQueue[Request | None] = field(default_factory=SimpleQueue)
    closed: list[bool] = field(default_factory=lambda: [False])

    @property
    def owned(self) -> bool:
        """Whether rows may be overwritten."""
        return self.base.owned

    def slabs(self, rows: Any, first: int, ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, Any]]:
        """Yield the slabs of what was read."""
        return self.base.slabs(rows, first, ranges)

    def with_inputs(self, inputs: Inputs) -> HandedRows:
        """Return itself: its base has the inputs."""
        return self

    def where(self, start: int, stop: int) -> str:
        """Name those rows in an error."""
        return self.base.where(start, stop)

    def read(self, start: int, stop: int) -> Array:
        """Return rows that the fitting thread reads."""
        answer: Future[Array] = Future()
        self.asked.put((start, stop, answer))
        if self.closed[0]:
            raise CancelledError
        while not self.closed[0]:  # an interrupt may come before an answer
            with suppress(TimeoutError):
                return answer.result(LOOK_SECONDS)
        raise CancelledError

    def serve(self, stop: int) -> None:
        """Read what the task asks for, up to row ``stop`` or the end of the task."""
        while (request := self.asked.get()) is not None:
            start, end, answer = request
            try:
                rows: Any = self.base.read(start, end)
                answer.set_result(rows)
                del rows
            except BaseException:
                answer.set_exception(CancelledError())
                raise
            del request, answer  # which hold the rows
            if end >= stop:
                return

    def close(self) -> None:
        """Let a task that waits, or asks later, fail."""
        self.closed[0] = True
        while not self.asked.empty():
            request = self.asked.get()
            if request is not None:
                request[2].set_exception(CancelledError())


def run_in_order(job: Pass[R], options: Run, resumed: Resumed) -> R:
    """Run one pass in this process, whose thread reads; see :func:`bigpca.engine.driver.run_pass`.

    Raises
    ------
    ValueError
        If there are more rows than the layout has.
    """
    merging = Merging(job, options, resumed)
    layout, has_row, covered = job.layout, job.has_row or (lambda row: True), merging.prefix.covered
    first = layout.segments[covered][0] if covered < len(layout.segments) else len(layout.groups)
    threads, alone = local_threads() if job.cost.by_cores else 1, job.alone
    running: deque[tuple[int, HandedRows, Future[PassState]]] = deque()

    def add(group: int, state: PassState) -> None:
        if job.stamp is not None:
            state = replace(state, stamps={group: job.stamp(group)})
        merging.add(group, state)

    def collect(most: int) -> None:
        """Merge the states of the first groups, until so many are running."""
        while len(running) > most:
            group, _, future = running[0]
            state = future.result()
            running.popleft()
            add(group, state)

    handed: list[HandedRows] = []  # also those of a task that an interrupt did not let us note as running
    pool = ThreadPoolExecutor(threads, thread_name_prefix="bigpca-fold")

    def end() -> None:
        cancel_run(job.run_id)
        for rows in handed:
            rows.close()
        pool.shutdown()

    with undone(end):
        for group in range(first, len(layout.groups)):
            start, stop = layout.rows_of(group)
            if not has_row(start) and job.open_ended:
                break
            collect(threads - 1)
            task, inputs = job.cut(group)
            inputs = {SHARED: job.shared, AHEAD: 0, **inputs}
            if alone:
                add(group, run_group(task, job.run_id, inputs))
                continue
            inputs[AHEAD] = 1
            rows = HandedRows(task.reader.with_inputs(inputs))
            handed = [*(rows for _, rows, _ in running), rows]
            own: GroupTask = replace(task, reader=rows)  # type: ignore[type-var]  # every task is a dataclass
            future = pool.submit(run_group, own, job.run_id, inputs)
            running.append((group, rows, future))
            future.add_done_callback(lambda _, asked=rows.asked: asked.put(None))  # type: ignore[misc]
            rows.serve(stop)
        collect(0)
    if job.layout.n_rows == job.whole:
        check_end(job.whole, has_row, open_ended=job.open_ended)
    return job.finish(merging.merged())


def check_end(n: int, has_row: Callable[[int], bool], *, open_ended: bool) -> None:
    """Reject rows beyond the n that a pass over all rows has read.

    Raises
    ------
    ValueError
    """
    if has_row(n):
        said = "the most without a shape" if open_ended else "which shape says"
        raise ValueError(f"the batches have more rows than the {n:,}, {said}. Correct the number in shape.")
