"""One group: its rows are read, one read ahead, and folded into one state. This is the only loop over rows.

    read ahead -> slabs -> steps (``apply``) -> blocks -> states (``update``), and at the end of the group ``close``

A block is what the steps of its group make and its states take, and the engine never looks inside. So the shift of a
block, weights, rows that do not count, and an array library on a device are known only to readers, steps and states.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from bigpca.blas import each_piece, in_strips, one_blas_thread
from bigpca.engine.interfaces import Inputs, RowSource
from bigpca.engine.jobs import PassState

V = TypeVar("V")
SHARED = "bigpca-shared"  # the key of a task's broadcast values among its inputs
AHEAD = "bigpca-ahead"  # the key of how many reads are made at a time by threads that none else needs
BEGUN = "bigpca-begun"  # the key of a read that has begun, among a task's inputs

_cancelled: set[str] = set()


class RunCancelled(RuntimeError):
    """Raised inside a task whose run was cancelled; callers of the public API never see it."""


def cancel_run(run_id: str) -> None:
    """Make the tasks of ``run_id`` in this process stop at their next slab."""
    _cancelled.add(run_id)


def check_cancelled(run_id: str) -> None:
    """Raise :class:`RunCancelled` if this task's run was cancelled, in this process or by the Dask scheduler."""
    if run_id in _cancelled:
        raise RunCancelled(run_id)
    state = getattr(sys.modules.get("distributed.worker"), "thread_state", None)
    worker, key = getattr(state, "execution_state", {}).get("worker"), getattr(state, "key", None)
    if worker is None or key is None:
        return
    task = worker.state.tasks.get(key)
    if task is None or task.state == "cancelled":
        raise RunCancelled(run_id)


@dataclass(frozen=True)
class Begun(Generic[V]):
    """The first read of a group, begun while the group before it is folded, and what begins that of the next group."""

    first: Future[V]
    follow: Callable[[], object]


def begin_read(pool: ThreadPoolExecutor, source: RowSource[V], start: int, stop: int) -> Future[V]:
    """Begin to read rows in a thread, in the context of the fold."""
    return pool.submit(copy_context().run, source.read, start, stop)


def read_ahead(
    source: RowSource[V], reads: Sequence[tuple[int, int]], ahead: int = 1, begun: Begun[V] | None = None
) -> Generator[tuple[int, V]]:
    """Yield (first row, rows) of each read while the next ``ahead`` are being read; no others are held.

    With 0, this thread reads: where it only asks others to work, changing threads would take longer than it does.
    Of a group that was ``begun``, the first read is under way, and the next group is begun with its last one.
    """
    if not ahead or (len(reads) <= 1 and begun is None):  # no thread for nothing to read ahead of
        for start, stop in reads:
            yield start, source.read(start, stop)
        return
    with ThreadPoolExecutor(ahead, thread_name_prefix="bigpca-read") as pool:
        coming = deque([] if begun is None else [begun.first])
        coming.extend(begin_read(pool, source, *read) for read in reads[len(coming) : ahead])
        for i, (start, _) in enumerate(reads):
            rows = coming.popleft().result()
            if i + ahead < len(reads):
                coming.append(begin_read(pool, source, *reads[i + ahead]))
            elif begun is not None:
                begun.follow()
            yield start, rows
            del rows


Reads: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Folding:
    """The steps and states of one group while it is folded.

    Attributes
    ----------
    source : RowSource
        Of the rows, with all inputs.
    apply : callable
        (slab, number of its first row) -> the blocks that the steps make of it.
    update : callable
        Adds a block to the states, in place.
    close : callable
        -> the closed states, once, at the end.
    ahead : int
        Reads that are made ahead.
    """

    source: RowSource[Any]
    apply: Callable[[Any, int], Iterable[Any]]
    update: Callable[[Any], object]
    close: Callable[[], PassState]
    ahead: int = 1


@dataclass(frozen=True, kw_only=True)
class Group(ABC, Generic[V]):
    """The rows of one group, sent to the task that folds it: a subclass for each verb says what steps and states do.

    Attributes
    ----------
    index : int
    reader : RowSource
    reads : tuple of (start, stop)
        What is read, in order.
    slab_rows : int
        Most rows of a slab.
    stamp : str
        Digest of the files that hold the rows.
    parts : tuple of reads
        What is read after that by threads that have no group, in any order.
    strips : int
        In which products of a slab are computed.
    waits : bool
        Whether an error waits for the read that is under way.
    """

    waits: ClassVar[bool] = False

    index: int
    reader: RowSource[V]
    reads: Reads
    slab_rows: int
    stamp: str = ""
    parts: tuple[Reads, ...] = ()
    strips: int = 1

    @abstractmethod
    def begin(self, inputs: Inputs, check: Callable[[], None]) -> AbstractContextManager[Folding]:
        """Return the steps and states. Those that take long call ``check``, which ends the task of a run that ended."""

    def slabs(self, start: int, stop: int) -> Iterable[tuple[int, int]]:
        """Return the slabs of a read."""
        return ((row, min(row + self.slab_rows, stop)) for row in range(start, stop, self.slab_rows))

    def run(self, run_id: str, inputs: Inputs) -> PassState:
        """Fold the group; memory: two reads, one slab, what the steps make of it, and the states."""
        check, ends = partial(check_cancelled, run_id), dict(self.reads)
        with one_blas_thread(), in_strips(self.strips), self.begin(inputs, check) as folding:

            def fold(reads: Reads, begun: Begun[Any] | None = None) -> None:
                ahead = read_ahead(folding.source, reads, folding.ahead, begun)
                with closing(ahead) if self.waits else nullcontext():
                    for first, rows in ahead:
                        slabs = self.slabs(first, ends[first])
                        for row, slab in folding.source.slabs(rows, first, slabs):
                            check()
                            for block in folding.apply(slab, row):
                                folding.update(block)
                                del block
                            del slab
                        del rows

            fold(self.reads, inputs.get(BEGUN))
            for part in self.parts:
                ends |= dict(part)
            each_piece(fold, self.parts)
            return folding.close()
