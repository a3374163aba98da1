"""Run a pass in this process: as one Dask graph, or over rows that come in one order, which this thread reads."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any
from weakref import WeakSet

import dask
import dask.local
import dask.threaded
from dask.base import get_scheduler, named_schedulers
from dask.callbacks import Callback
from dask.order import order
from dask.system import CPU_COUNT
from dask.task_spec import GraphNode, Task, TaskRef
from dask.typing import Key

from bigpca.arrays import Array
from bigpca.blas import LOOK_SECONDS, Crew, forget_others, inside_fold, on_worker, undone
from bigpca.engine.checkpoint import Resumed, SegmentStates, WriteFailed, warn_unwritten
from bigpca.engine.events import CheckpointEvent
from bigpca.engine.group import AHEAD, BEGUN, SHARED, Begun, begin_read, cancel_run
from bigpca.engine.interfaces import Inputs, RowSource
from bigpca.engine.jobs import AnyPass, GroupTask, Pass, PassState, R, merge_states, run_group, tree
from bigpca.engine.run import Run

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
    if _in_task():
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


def _in_task() -> bool:
    return inside_fold() or on_worker()


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

    def __init__(self, files: SegmentStates | None, options: Run) -> None:
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

    def __init__(self, job: AnyPass, options: Run, resumed: Resumed, pool: ThreadPoolExecutor, crew: Crew) -> None:
        self.job, self.options, self.resumed, self.pool, self.crew = job, options, resumed, pool, crew
        self.files, self.writer = resumed.files, StateWriter(resumed.files, options)
        self._groups = dict[Key, int]()  # by the keys of their tasks
        self._order: Mapping[Key, int] = {}
        self._threads = local_threads()
        self._dask: dict[str, Any] = {"ready": [], "dependents": {}}  # the state of Dask's scheduler, if it tells it
        self._begun: dict[int, tuple[GroupTask, dict[Key, Any], Future[Any] | None]] = {}
        self._lock = threading.Lock()

    def fold(self, group: int, _after: None = None) -> PassState:
        with self._lock:
            begun = self._begun.pop(group, None)
        task, inputs, first = self._begin(group) if begun is None else begun
        if first is not None:
            inputs |= {BEGUN: Begun(first, partial(self._follow, group))}
        with self.crew.task():
            state = run_group(task, self.job.run_id, inputs)
        self.options.progress(self.job.done_event(range(group, group + 1)))
        return state

    def _begin(self, group: int) -> tuple[GroupTask, dict[Key, Any], Future[Any] | None]:
        task, futures = self.job.cut(group)
        inputs = {SHARED: self.job.shared, AHEAD: self._threads}
        inputs |= {key: future.result() for key, future in futures.items()}
        if not self.job.follows:
            return task, inputs, None
        start, stop = self.job.layout.reads[self.job.layout.groups[group][0]]
        return task, inputs, begin_read(self.pool, task.reader.with_inputs(inputs), start, stop)

    def watch(self, graph: Mapping[Key, GraphNode], get: Get) -> Get:
        """Return ``get`` so that it tells this pass what is ready, if it is one of Dask's own."""
        if not self.job.follows or get not in (dask.local.get_sync, dask.threaded.get):
            return get
        self._groups = {self.job.key(str(group)): group for group in range(len(self.job.layout.groups))}
        self._order = order(graph)  # in which Dask adds tasks that become ready at once
        # Of start, start_state, pretask, posttask and finish, the second is given the state, which Dask then changes.
        watched = None, lambda _, state: setattr(self, "_dask", state), None, None, None
        return partial(get, callbacks=(*Callback.active, watched))

    def _follow(self, group: int) -> None:
        """Begin to read the group that comes after one that is ending; each thread thus holds two reads at most."""
        with self._lock:
            following = self._following(self.job.key(str(group))) if len(self._begun) < self._threads else None
            if following is not None:
                self._begun[following] = self._begin(following)

    def _following(self, done: Key) -> int | None:
        """Return the group that begins after ``done``: Dask runs first what became ready last."""
        ready, waits = [*self._dask["ready"]], dict[Key, int]()
        while True:
            for key in sorted(self._dask["dependents"].get(done, ()), key=self._order.__getitem__, reverse=True):
                waits[key] = waits.get(key, len(self._dask["waiting"].get(key, ()))) - 1
                if not waits[key]:
                    ready.append(key)
            while (group := self._groups.get(done := ready.pop() if ready else "")) in self._begun:
                pass
            if group is not None or not done:
                return group

    def store(self, segment: int, state: PassState) -> PassState:
        state = state.here()  # once, to be stored and merged with others that are
        if self.files is not None and self.writer.write("segment", segment, state):
            self.options.progress(CheckpointEvent(self.files.directory, segment))
        return state

    def merge(self, left: PassState, right: PassState) -> PassState:
        with self.crew.task():
            return merge_states(left, right)

    def fold_prefix(self, segment: int, state: PassState, total: PassState | None) -> PassState:
        total = state if total is None else self.merge(total, state)
        if self.files is not None and self.writer.write("prefix", segment + 1, total):
            self.files.forget(range(segment, segment + 1))
        return total

    def read(self, segment: int, _after: None = None) -> PassState:
        if self.files is None:
            raise ValueError("there is no checkpoint to read from")
        return self.files.read("segment", segment)

    def graph(self) -> tuple[dict[Key, GraphNode], Key | None]:
        """Return the graph of all remaining segments and the key of the complete state; None if none remain."""
        job, graph = self.job, dict[Key, GraphNode]()
        total: TaskRef | PassState | None = self.resumed.prefix
        # How many segments may run ahead of a slow one: those of two groups a thread, as Layout.held_states counts.
        ahead = max(2, -(-2 * self._threads // max(map(len, job.layout.segments), default=1)))
        for index in range(self.resumed.covered, len(job.layout.segments)):
            gate = job.key("gate", index - ahead)
            after = [TaskRef(gate)] if gate in graph else []  # so that a segment does not start too early
            if index in self.resumed.segments:
                segment = job.key("store", index)
                graph[segment] = Task(segment, self.read, index, *after)
            else:
                groups = {f"{job.prefix}-{group}": group for group in job.layout.segments[index]}
                graph |= {key: Task(key, self.fold, group, *after) for key, group in groups.items()}
                segment = tree(graph, list(groups), job.key("merge", index), self.merge)
                if self.files is not None:
                    root, segment = segment, job.key("store", index)
                    graph[segment] = Task(segment, self.store, index, TaskRef(root))
            name, opened = job.key("fold", index), job.key("gate", index)
            graph[name] = Task(name, self.fold_prefix, index, TaskRef(segment), total)
            total = TaskRef(name)
            if index + ahead < len(job.layout.segments):
                graph[opened] = Task(opened, _discard, total)
        return graph, total.key if isinstance(total, TaskRef) else None


def run_locally(job: Pass[R], options: Run, resumed: Resumed) -> R:
    """Run one pass in this process; see :func:`bigpca.engine.driver.run_pass`."""
    threads = local_threads()
    crew = Crew(1 if job.cost.serial else threads)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="bigpca-read")
    try:
        local = LocalPass(job, options, resumed, pool, crew)
        graph, key = local.graph()
        if key is not None:
            get: Get = dask.threaded.get
            if len(job.layout.groups) <= 1 or job.cost.serial or _in_task():
                get = dask.local.get_sync
            elif not hasattr(getattr(chosen_scheduler(), "__self__", None), "scheduler_info"):
                get = chosen_scheduler() or get
            # Tasks here share this process's memory: another process would pickle states and see no progress.
            get = dask.threaded.get if get is named_schedulers.get("processes") else get
            return job.finish(local.watch(graph, get)(graph, key))
    finally:
        crew.close()
        pool.shutdown(wait=False, cancel_futures=True)  # after an error, a store may not answer for minutes
    if resumed.prefix is None:
        raise ValueError("there are no rows to read: the array or all batches are empty. Give at least one row.")
    return job.finish(resumed.prefix)


def _discard(state: PassState) -> None:
    """Signal that a state exists, without passing it on."""


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


class OrderedMerge:
    """Merges the states of groups as they arrive in order: the tree of each segment, then the left fold of segments."""

    def __init__(self, job: AnyPass, options: Run, resumed: Resumed) -> None:
        self.job, self.options, self.files = job, options, resumed.files
        self.writer = StateWriter(resumed.files, options)
        self.total, self.covered = resumed.prefix, resumed.covered
        self._stack: list[tuple[int, PassState]] = []  # (groups, state) of complete subtrees, the larger ones first

    def add(self, group: int, state: PassState) -> None:
        """Add the state of the next group."""
        self._stack.append((1, state))
        while len(self._stack) > 1 and self._stack[-1][0] == self._stack[-2][0]:
            self._join()
        if group == self.job.layout.segments[self.covered][-1]:
            self._finish_segment()

    def finish(self) -> PassState:
        """Return the state of all groups.

        Raises
        ------
        ValueError
            If there were none.
        """
        if self._stack:  # rows ended within a segment
            self._finish_segment()
        if self.total is None:
            raise ValueError("there are no rows to read: the array or all batches are empty. Give at least one row.")
        return self.total

    def _join(self) -> None:
        count, right = self._stack.pop()
        before, left = self._stack.pop()
        self._stack.append((before + count, merge_states(left, right)))

    def _finish_segment(self) -> None:
        while len(self._stack) > 1:
            self._join()
        state = self._stack.pop()[1]
        state = state if self.files is None else state.here()  # once, as are all that are stored
        self.total = state if self.total is None else merge_states(self.total, state)
        self.covered += 1
        if self.files is not None and self.writer.write("prefix", self.covered, self.total):
            self.files.forget(range(self.covered - 1, self.covered))
            self.options.progress(CheckpointEvent(self.files.directory, self.covered - 1))


def run_in_order(job: Pass[R], options: Run, resumed: Resumed) -> R:
    """Run one pass in this process, whose thread reads; see :func:`bigpca.engine.driver.run_pass`.

    Raises
    ------
    ValueError
        If there are more rows than the layout has.
    """
    merge = OrderedMerge(job, options, resumed)
    layout, has_row = job.layout, job.has_row or (lambda row: True)
    first = layout.segments[merge.covered][0] if merge.covered < len(layout.segments) else len(layout.groups)
    threads, alone = 1 if job.cost.serial else local_threads(), job.alone
    running: deque[tuple[int, HandedRows, Future[PassState]]] = deque()

    def add(group: int, state: PassState) -> None:
        if job.stamp is not None:
            state = replace(state, stamps={group: job.stamp(group)})
        options.progress(replace(job.done_event(range(group, group + 1)), rows=state.rows))
        merge.add(group, state)

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
    return job.finish(merge.finish())


def check_end(n: int, has_row: Callable[[int], bool], *, open_ended: bool) -> None:
    """Reject rows beyond the n that a pass over all rows has read.

    Raises
    ------
    ValueError
    """
    if has_row(n):
        said = "the most without a shape" if open_ended else "which shape says"
        raise ValueError(f"the batches have more rows than the {n:,}, {said}. Correct the number in shape.")
