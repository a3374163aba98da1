"""One group: its rows are read, one read ahead, and folded into one state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Generic, TypeVar

from bigpca.engine.interfaces import RowSource

V = TypeVar("V")
SHARED = "bigpca-shared"  # the key of a task's broadcast values among its inputs
AHEAD = "bigpca-ahead"  # the key of how many reads are made at a time by threads that none else needs
BEGUN = "bigpca-begun"  # the key of a read that has begun, among a task's inputs
MAPS = "bigpca-maps"  # the key of the row maps among the broadcast values
SHIFT = "bigpca-shift"  # the key of the shift


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
