"""The segments of one pass on a cluster: submitted in a window, watched, folded in order."""

from __future__ import annotations

import queue
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from distributed import Client, Future, KilledWorker

from bigpca.passes.engine.cancel import RunCancelled
from bigpca.passes.engine.checkpoint import Resumed, SegmentFiles
from bigpca.passes.engine.cluster.outcomes import result_of
from bigpca.passes.engine.cluster.shared_copies import SharedCopies
from bigpca.passes.engine.cluster.stalls import Stalls
from bigpca.passes.engine.cluster.suspects import RESUBMISSIONS, Suspects
from bigpca.passes.engine.cluster.tasks import Stored, extend_prefix, group_task, segment_graph
from bigpca.passes.engine.cluster.watch import Watch
from bigpca.passes.engine.events import CheckpointEvent, RetryEvent
from bigpca.passes.engine.jobs import AnyPass, merge_states
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.states import PassState

POLL_SECONDS = 0.5
WAITING_BYTES = 64 << 20  # of states that may wait for a slow segment; beyond this, fewer are submitted ahead of it


@dataclass
class ClusterRun:
    """The state of one pass on a cluster.

    Attributes
    ----------
    files : SegmentFiles or None
        The checkpoint that is written.
    shared : bool
        Whether workers write it; else the client does.
    gather : bool
        Whether states are gathered to the client.
    total : PassState (gathered), Future (kept on the workers) or None
    covered : int
        Segments folded into the total or the stored prefix.
    watch : Watch
        Watches the live workers.
    """

    client: Client
    job: AnyPass
    options: Run
    files: SegmentFiles | None
    shared: bool
    gather: bool
    total: PassState | Future | None
    covered: int
    watch: Watch
    events: queue.Queue[Future] = field(default_factory=queue.Queue)
    futures: dict[str, Future] = field(default_factory=dict)
    segment_of: dict[str, int] = field(default_factory=dict)
    ready: dict[int, PassState | Future | Stored] = field(default_factory=dict)
    tries: Counter[int] = field(default_factory=Counter)  # how often a segment was resubmitted: names its tasks
    cancelled: Counter[int] = field(default_factory=Counter)
    avoiding: dict[int, frozenset[str]] = field(default_factory=dict)  # stalled workers that a segment avoids
    submitted: dict[str, float] = field(default_factory=dict)  # when the futures of segments were submitted
    longest: float | None = None  # seconds that the slowest finished segment took
    folding: str | None = None
    copies: SharedCopies | None = None  # of the broadcast values

    def __post_init__(self) -> None:
        self.suspects = Suspects(self.job, self.options)
        self.stalls = Stalls(self.client, self.job, self.options)

    def submit_segment(self, index: int) -> None:
        """Cut the groups of a segment and submit their graph."""
        graph, root = segment_graph(
            self.job, index, self.tries[index], self._take_shared(len(self.job.layout.segments[index])),
            self.files if self.shared else None, self.suspects.survived,
        )  # fmt: skip
        (future,) = self.client.get(graph, [root], sync=False, **self._place())
        self.segment_of[future.key] = index
        self.submitted[future.key] = time.monotonic()
        self._watch(future)

    def submit_suspect(self) -> None:
        """Submit one suspected group alone; nothing else may be in flight."""
        segment, group = next(iter(self.suspects.waiting.items()))
        key = f"{self.job.prefix}-{group}-alone-{self.suspects.count}-{self.tries[segment]}"
        (future,) = self.client.get({key: group_task(self.job, group, key, self._take_shared(1)[0])}, [key], sync=False)
        self.suspects.trial = segment, group, key
        self._watch(future)

    def has_room_for(self, index: int, threads: int) -> bool:
        """Whether another segment may be submitted: up to 2 x threads groups in flight, and few states waiting.

        Small states, and those that workers write to a checkpoint, may be up to 4 x threads groups ahead of a slow
        segment.
        """
        segments = self.job.layout.segments
        flying = sum(len(segments[i]) for i in set(self.segment_of.values()))
        ahead = sum(len(segments[i]) for i in range(self.covered, index))
        size, most = len(segments[index]), 4 * threads
        if not self.shared:
            most = min(most, max(2 * threads, size * (WAITING_BYTES // max(1, self.job.state_bytes))))
        return flying < 2 * threads and ahead < most + size

    def read(self, resumed: Resumed, kind: str, index: int) -> PassState | Future:
        """Read a state of an earlier run: here, or in a task if it is to stay on the workers."""
        if resumed.files is None:
            raise ValueError("there is no checkpoint to read from")
        if self.gather:
            return resumed.files.read(kind, index)
        key = self.job.key(f"stored-{kind}", index)
        return self.client.submit(resumed.files.read, kind, index, key=key, pure=False)

    def prepare_broadcast(self) -> None:
        """Prepare copies of the broadcast values, if there are any."""
        if self.job.shared:
            self.copies = SharedCopies(self.client, dict(self.job.shared), self.job.key("shared"))

    def _check(self) -> None:
        self.watch.check()
        if self.copies is not None:
            self.copies.free(self.watch.workers)
        before = self.stalls.workers.keys()
        held_up = self.stalls.look(self.watch.workers, self.longest)
        if self.stalls.workers.keys() - before and self.copies is not None:
            self.copies.renew_all()
        if self.stalls.workers and self._awake():
            self._submit_elsewhere(held_up)

    def _awake(self) -> dict[str, int]:
        return self.stalls.awake(self.watch.workers)

    def _place(self) -> dict[str, object]:
        """Return the options of a submission that prefer workers that do not stall."""
        awake = self._awake()
        return {"workers": list(awake), "allow_other_workers": True} if self.stalls.workers and awake else {}

    def _submit_elsewhere(self, segments: set[int]) -> None:
        """Submit segments that stalled workers hold up a second time; the first result counts."""
        around = frozenset(self.stalls.workers)
        for index in sorted(segments & set(self.segment_of.values())):
            if not around <= self.avoiding.get(index, frozenset()):
                self.avoiding[index] = around
                self.tries[index] += 1
                self.submit_segment(index)
        if self.folding is not None and self.stalls.holds(self.folding):
            self.futures.pop(self.folding).release()
            self.folding = None
            self.fold_ready()

    def _forget_rivals(self, index: int) -> None:
        for key in [key for key, other in self.segment_of.items() if other == index]:
            del self.segment_of[key]
            self.futures.pop(key).release()

    def _take_shared(self, count: int) -> list[Future | None]:
        workers = self._awake() or self.watch.workers
        return [None] * count if self.copies is None else self.copies.take(count, workers)

    def submit(self, what: str, function: Callable[..., object], *args: object) -> Future:
        """Submit one task and watch it."""
        future = self.client.submit(
            function, *args, key=self.job.key(what, uuid.uuid4().hex[:8]), pure=False, **self._place()
        )
        self._watch(future)
        return future

    def _watch(self, future: Future) -> None:
        self.futures[future.key] = future
        future.add_done_callback(self.events.put)

    def next_done(self) -> Future:
        """Return the next finished future, checking the cluster while waiting."""
        watch = self.watch
        while True:
            if time.monotonic() - watch.checked > POLL_SECONDS:
                self._check()
                watch.look_at_new()
            try:
                future = self.events.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if future.status == "error":
                self._check()
                watch.look_at_new(wait=True)  # the check of a worker that lacks something explains more than its task
            if future.key in self.futures and future.status in ("lost", "pending"):
                future.add_done_callback(self.events.put)  # its worker left with the result, and Dask computes it again
            elif future.key in self.futures:
                return future

    def fold_ready(self) -> None:
        """Fold finished segments into the total, in order."""
        while self.covered in self.ready and self.folding is None:
            stop = self.covered + 1
            if self.shared:
                while stop in self.ready:
                    stop += 1
                self.folding = self.submit("store", extend_prefix, self.files, self.covered, stop).key
                return
            state = self.ready.pop(self.covered)
            if self.gather:
                self._fold_gathered(cast(PassState, state), stop)
            elif self.total is None:
                self.total = state
            else:
                self.total = self.client.submit(
                    merge_states, self.total, state, key=self.job.key("merge", "total", stop), pure=False
                )
            self.covered = stop

    def _fold_gathered(self, state: PassState, stop: int) -> None:
        total = state if self.total is None else merge_states(cast(PassState, self.total), state)
        self.total = total
        if self.files is not None:
            self.files.write("prefix", stop, total)
            self.files.forget_before(stop)

    def accept(self, future: Future) -> None:
        """Process a finished future; submit again a task that failed through no fault of its own."""
        if future.key == self.folding:
            self._accept_prefix(future)
        elif self.suspects.trial is not None and future.key == self.suspects.trial[2]:
            self._accept_trial(future, *self.suspects.trial[:2])
        else:
            self._accept_segment(future, self.segment_of.pop(future.key))
        del self.futures[future.key]

    def _accept_prefix(self, future: Future) -> None:
        self.folding = None  # if it failed, fold_ready submits it again
        try:
            stop = int(result_of(future, self._check))
        except RunCancelled as error:
            self._count_cancelled(-1, error)
            return
        except KilledWorker as error:
            self.suspects.add(-1, error)
            return
        for segment in range(self.covered, stop):
            self.ready.pop(segment, None)
        self.covered = stop
        self.files.forget_before(stop)  # type: ignore[union-attr]

    def _accept_trial(self, future: Future, segment: int, group: int) -> None:
        self.suspects.trial = None
        try:
            if future.status != "finished":
                result_of(future, self._check)
        except RunCancelled as error:
            self._count_cancelled(segment, error)  # it is still to be tried alone
            return
        except KilledWorker as error:
            raise self.suspects.blame(group, error) from error
        del self.suspects.waiting[segment]
        self.suspects.survived[group] = future
        self.submit_segment(segment)

    def _accept_segment(self, future: Future, index: int) -> None:
        try:
            value = self._value(future, index)
        except RunCancelled as error:
            self._count_cancelled(index, error)
            self.submit_segment(index)
            return
        except KilledWorker as error:
            self._suspect(index, error)
            return
        self.longest = max(self.longest or 0.0, time.monotonic() - self.submitted[future.key])
        self._forget_rivals(index)
        self.ready[index] = value
        for group in self.job.layout.segments[index]:
            self.suspects.survived.pop(group, None)
        self.options.emit(self.job.done_event(self.job.layout.segments[index]))
        if self.files is not None:
            self.options.emit(CheckpointEvent(self.files.directory, index))

    def _suspect(self, index: int, error: KilledWorker) -> None:
        self.tries[index] += 1
        alone = self.suspects.add(index, error)
        if self.copies is not None:
            self.copies.renew(error.task)
        if not alone:
            self.submit_segment(index)

    def _count_cancelled(self, index: int, error: RunCancelled) -> None:
        self.tries[index] += 1
        self.cancelled[index] += 1
        if self.cancelled[index] > RESUBMISSIONS:
            raise RuntimeError(
                f"tasks of this run were cancelled {self.cancelled[index]} times, by another client or the scheduler. "
                "Run again."
            ) from error
        self.options.emit(RetryEvent("segment cancelled", self.cancelled[index]))

    def _check_result(self, key: str) -> None:
        self._check()
        if self.stalls.holds(key) and self._awake():
            raise RunCancelled("a stalled worker holds the result")

    def _value(self, future: Future, index: int) -> PassState | Future | Stored:
        if not self.gather and not self.shared and future.status == "finished":
            return future  # stays on the workers
        value = result_of(future, partial(self._check_result, future.key))
        if self.gather and self.files is not None:
            self.files.write("segment", index, value)
        return value
