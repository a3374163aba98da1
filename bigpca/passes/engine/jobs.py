"""One pass as a job, and the functions that its tasks run: the same ones wherever they run.

Groups become states, a fixed tree merges the states of a segment, a left fold goes over the segments; so the bits do
not depend on the scheduler.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from dask.task_spec import Task, TaskRef

from bigpca.blas import one_blas_thread
from bigpca.data.rounding import tally_rounded
from bigpca.heap import steady_heap
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.engine.checkpoint import Checkpoint, SegmentFiles
from bigpca.passes.engine.events import Event, GroupEvent, Progress
from bigpca.passes.engine.states import PassState
from bigpca.passes.reading.layout import Layout

Finish = Callable[[PassState], Any]
WORKERS_TIMEOUT = 60.0  # seconds
STALLED_SECONDS = 60.0
SHARED = "bigpca-shared"  # the key under which a task finds what all groups share


class GroupTask(Protocol):
    """What one task reads and folds into one state; picklable."""

    @property
    def reader(self) -> Any:
        """The reader of its rows, which names them in errors."""

    def run(self, run_id: str, inputs: Mapping[Any, Any]) -> PassState:
        """Fold the group. ``inputs`` are the values of persisted chunks that Dask passes in, and what groups share."""


@dataclass(frozen=True)
class Pass:
    """One read of X, ready to run.

    Attributes
    ----------
    name : str
    layout : Layout
    templates : dict of str to Accumulator
    cut : callable
        Group number -> (GroupTask, futures it needs); called when the group's turn comes.
    stamp : callable
        Group number -> digest of the files it reads.
    finish : callable
        Picklable; the complete state -> what the caller wants. Runs where the state lies.
    shared : dict of str to Any
        What all groups share: one copy on each worker that folds some, in each task as ``inputs[SHARED]``.
    evaluations : callable or None
        Group number -> kernel evaluations that the group makes.
    rows_read : callable or None
        Group number -> rows that the group decodes; None for those that it folds.
    stored : numpy.dtype
        Of X, as it is read.
    paths : dict of str to {"reads", "writes"}
        Files and directories that the tasks use, and how: workers must see them.
    run_id : str
        Names this run's tasks and files; a new one for every run.
    """

    name: str
    layout: Layout
    templates: dict[str, Accumulator]
    cut: Callable[[int], tuple[GroupTask, Mapping[Any, Any]]]
    stamp: Callable[[int], str]
    finish: Finish
    shared: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Callable[[int], int] | None = None
    paths: Mapping[str, str] = field(default_factory=dict)
    rows_read: Callable[[int], int] | None = None
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    stored: np.dtype[Any] = field(kw_only=True)

    @property
    def state_bytes(self) -> int:
        """Bytes of one state."""
        return sum(a.state_bytes for a in self.templates.values())

    @cached_property
    def prefix(self) -> str:
        """How the keys of this pass's tasks begin; a number follows where they fold groups."""
        return f"bigpca-{self.name}-{self.run_id}"

    def key(self, what: str, *numbers: object) -> str:
        """Return the key of another task of this pass.

        NOTE: Dask names a task group by what stands before the run's id. Groups under a name of their own,
        with few copies of what they share under another, would be "root-ish" to it: placed where there is
        room, and not where their copy lies.
        """
        return "-".join([self.prefix, what, *map(str, numbers)])

    def evaluations_of(self, groups: Iterable[int]) -> int:
        """Kernel evaluations of some groups."""
        return 0 if self.evaluations is None else sum(self.evaluations(group) for group in groups)

    def done_event(self, groups: range) -> GroupEvent:
        """What to report when consecutive groups are done."""
        return GroupEvent(self._rows_of(groups), self.bytes_of(groups), self.evaluations_of(groups))

    def bytes_of(self, groups: range) -> int:
        """Bytes decoded for consecutive groups: of X as it is stored, whatever it is multiplied in."""
        rows = self._rows_of(groups) if self.rows_read is None else sum(map(self.rows_read, groups))
        return rows * self.layout.n_columns * self.stored.itemsize

    def _rows_of(self, groups: range) -> int:
        reads = (self.layout.reads[i] for group in groups for i in self.layout.groups[group])
        return sum(stop - start for start, stop in reads)


@dataclass
class RunOptions:
    """How to run, not what: none of it changes a bit of the result.

    Attributes
    ----------
    checkpoint : Checkpoint or None
    progress : callable taking events
    workers_timeout : float
        Seconds without any worker after which a run on a cluster gives up.
    scheduler : "local" to stay in this process whatever client there is (NumPy input), or None.
    peak_bytes : int
        Planned peak of one worker thread, for errors; 0 where nobody planned.
    stalled_seconds : float
        Silence of a worker after which it is reported, and what it has is sent to others too.
    rounding_told : bool
        Whether this fit has warned of integers that float64 does not hold.
    """

    checkpoint: Checkpoint | None = None
    progress: Progress = lambda event: None
    workers_timeout: float = WORKERS_TIMEOUT
    scheduler: str | None = None
    peak_bytes: int = 0
    stalled_seconds: float = STALLED_SECONDS
    rounding_told: bool = False
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def emit(self, event: Event) -> None:
        """Report an event; threads take turns."""
        with self._lock:
            self.progress(event)


@dataclass(frozen=True)
class Left:
    """What an earlier run of this pass left, or nothing: where this run begins.

    Attributes
    ----------
    files : SegmentFiles or None
    prefix : PassState or None
        The fold of segments ``0:covered``.
    covered : int
    segments : frozenset of int
        Later segments whose states are on disk.
    writing : bool
        False once the checkpoint cannot be written: it is then only read.
    """

    files: SegmentFiles | None = None
    prefix: PassState | None = None
    covered: int = 0
    segments: frozenset[int] = frozenset()
    writing: bool = True


def fold_group(task: GroupTask, run_id: str, keys: tuple[Any, ...], *values: Any) -> PassState:
    """Fold one group; ``keys`` and ``values`` are the persisted chunks it needs."""
    steady_heap()
    return run_group(task, run_id, dict(zip(keys, values, strict=True)))


def run_group(task: GroupTask, run_id: str, inputs: Mapping[Any, Any]) -> PassState:
    """Fold one group, counting the integers that are rounded on the way."""
    with tally_rounded() as tally:
        state = task.run(run_id, inputs)
    return replace(state, rounded=tally.count)


def merge_states(left: PassState, right: PassState) -> PassState:
    """Merge two adjacent states, as folds do: with one BLAS thread."""
    with one_blas_thread():
        return left.merge(right)


def tree(graph: dict[Any, Any], leaves: list[Any], key: str) -> Any:
    """Add a fixed binary tree of merges over ``leaves`` to ``graph``, under keys that begin so;
    return the key of its root.
    """
    level = 0
    while len(leaves) > 1:
        merged = []
        for i in range(0, len(leaves) - 1, 2):
            name = f"{key}-{level}-{i}"
            graph[name] = Task(name, merge_states, TaskRef(leaves[i]), TaskRef(leaves[i + 1]))
            merged.append(name)
        leaves = merged + leaves[len(leaves) // 2 * 2 :]
        level += 1
    return leaves[0]
