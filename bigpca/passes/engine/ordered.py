"""Run a pass over rows that come in one order: this thread reads them, and tasks in other threads fold them.

Groups start in order, and the rows of one are all read before those of the next. While the last reads of a group are
multiplied, the next group gets its first ones. States are merged in the order and the tree of any other run: same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

from bigpca.arrays import Array
from bigpca.blas import LOOK_SECONDS, Caller
from bigpca.passes.engine.cancel import cancel_run
from bigpca.passes.engine.checkpoint import Resumed
from bigpca.passes.engine.events import CheckpointEvent
from bigpca.passes.engine.jobs import SHARED, AnyPass, GroupTask, Pass, R, merge_states, run_group
from bigpca.passes.engine.local import StateWriter, local_threads
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.states import PassState
from bigpca.passes.reading.readers import Reader, with_inputs

Request = tuple[int, int, "Future[Array]"]


@dataclass(frozen=True)
class HandedRows:
    """A reader for the task of one group, which asks the fitting thread for rows and waits for them."""

    base: Reader
    fit: Caller
    asked: SimpleQueue[Request | None] = field(default_factory=SimpleQueue)
    closed: list[bool] = field(default_factory=lambda: [False])

    @property
    def owned(self) -> bool:
        """Whether rows may be overwritten."""
        return self.base.owned

    def where(self, start: int, stop: int) -> str:
        """Name those rows in an error."""
        return self.base.where(start, stop)

    def read(self, start: int, stop: int) -> Array:
        """Return rows that the fitting thread reads."""
        answer: Future[Array] = Future()
        self.asked.put((start, stop, answer))
        if self.closed[0]:
            raise CancelledError
        while self.fit.runs() and not self.closed[0]:  # an interrupt may come before an answer, or a close
            with suppress(TimeoutError):
                return answer.result(LOOK_SECONDS)
        raise CancelledError

    def serve(self, stop: int) -> None:
        """Read what the task asks for, up to row ``stop`` or the end of the task."""
        while (request := self.asked.get()) is not None:
            start, end, answer = request
            try:
                answer.set_result(self.base.read(start, end))
            except BaseException:
                answer.set_exception(CancelledError())
                raise
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
            raise ValueError("the pass has no rows")
        return self.total

    def _join(self) -> None:
        count, right = self._stack.pop()
        before, left = self._stack.pop()
        self._stack.append((before + count, merge_states(left, right)))

    def _finish_segment(self) -> None:
        while len(self._stack) > 1:
            self._join()
        state = self._stack.pop()[1]
        self.total = state if self.total is None else merge_states(self.total, state)
        self.covered += 1
        if self.files is not None and self.writer.write("prefix", self.covered, self.total):
            self.files.forget_before(self.covered)
            self.options.emit(CheckpointEvent(self.files.directory, self.covered - 1))


def run_in_order(job: Pass[R], options: Run, resumed: Resumed) -> R:
    """Run one pass in this process, whose thread reads; see :func:`bigpca.passes.engine.driver.run_pass`.

    Raises
    ------
    ValueError
        If there are more rows than the layout has.
    """
    merge = OrderedMerge(job, options, resumed)
    layout, has_row = job.layout, job.has_row or _always
    first = layout.segments[merge.covered][0] if merge.covered < len(layout.segments) else len(layout.groups)
    threads, fit = local_threads(), Caller()
    running: deque[tuple[int, HandedRows, Future[PassState]]] = deque()

    def collect(most: int) -> None:
        """Merge the states of the first groups, until so many are running."""
        while len(running) > most:
            group, _, future = running[0]
            state = future.result()
            running.popleft()
            state = replace(state, stamps={group: job.stamp(group)})
            options.emit(replace(job.done_event(range(group, group + 1)), rows=state.rows))
            merge.add(group, state)

    handed: list[HandedRows] = []  # also those of a task that an interrupt did not let us note as running
    pool = ThreadPoolExecutor(threads, thread_name_prefix="bigpca-fold")
    try:
        for group in range(first, len(layout.groups)):
            start, stop = layout.rows_of(group)
            if job.open_ended and not has_row(start):
                break
            collect(threads - 1)
            task, inputs = job.cut(group)
            inputs = {SHARED: job.shared, **inputs}
            rows = HandedRows(with_inputs(task.reader, inputs), fit)
            handed = [*(rows for _, rows, _ in running), rows]
            own: GroupTask = replace(task, reader=rows)  # type: ignore[type-var]  # every task is a dataclass
            future = pool.submit(run_group, own, job.run_id, inputs)
            running.append((group, rows, future))
            future.add_done_callback(lambda _, asked=rows.asked: asked.put(None))  # type: ignore[misc]
            rows.serve(stop)
        collect(0)
    finally:
        cancel_run(job.run_id)
        for rows in handed:
            rows.close()
        pool.shutdown()
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


def _always(row: int) -> bool:
    return True
