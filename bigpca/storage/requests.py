"""Many objects at a time: what the threads of a process have in flight, which they share.

A network answers a request after tens of milliseconds, however small it is, so that speed comes from requests that
wait at the same time: at most 64 of them, for at most 64 MiB. ``requests()`` has those of this process, ``each``
yields bytes as they arrive, and ``ObjectFile`` is a file made of the parts of an object that have been got.
"""

from __future__ import annotations

import io
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from fnmatch import fnmatchcase
from functools import partial
from glob import has_magic
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from bigpca.arrays import Array
from bigpca.errors import CorruptedChunkError
from bigpca.storage import places
from bigpca.storage.files import change_of, note_got

if TYPE_CHECKING:
    from bigpca.storage.places import ObjectStore

T = TypeVar("T")
MAX_REQUESTS = 64  # in flight
MAX_BYTES = 64 * 2**20  # in flight, or one larger object
GAP_BYTES = 2**20  # between two ranges that one request gets
RANGE_BYTES = 16 * 2**20  # that are got by one request, where ranges are joined
PART_BYTES = 4 * 2**20  # of long ranges, which are got in parts at the same time
OTHER_ETAGS = ("GCSStore", "AzureStore")  # whose listings may have others than their answers
TAIL_BYTES = 2**16  # got at least where a file is read in small pieces
_REQUESTS: list[Requests] = []
_LOCK = threading.Lock()


def in_flight(nbytes: int) -> int:
    """Return how many requests for that many bytes each are in flight at a time.

    >>> in_flight(2**20), in_flight(4 * 2**20), in_flight(2**30)
    (64, 16, 1)
    """
    return max(1, min(MAX_REQUESTS, MAX_BYTES // max(1, nbytes)))


def flight_bytes(count: int, nbytes: int) -> int:
    """Return the most bytes in flight in a process that gets ``count`` objects of so many bytes.

    >>> flight_bytes(1000, 2**16), flight_bytes(1000, 2**30)
    (4194304, 1073741824)
    """
    return min(count, in_flight(nbytes)) * nbytes


class Request(NamedTuple):
    """An object to get, or a part of it.

    Attributes
    ----------
    key : str
        In the place.
    nbytes : int
        Expected, at most, by which it counts among the bytes in flight.
    part : (int, int), int or None
        A half-open range, or that many bytes at the end; None for all.
    most : int or None
        Bytes of the answer beyond which it is rejected unread.
    """

    key: str
    nbytes: int
    part: tuple[int, int] | int | None = None
    most: int | None = None


class Got(NamedTuple):
    """Bytes of an object: all that were wanted, where they start in it, its whole size, and its stamp."""

    data: Any
    start: int
    size: int
    change: str | None


class Requests:
    """The requests that this process has in flight, each in a thread."""

    def __init__(self) -> None:
        self._turn, self._ended = threading.Lock(), threading.Condition()
        self._count = self._bytes = 0
        self._pool = ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="bigpca-request")

    def begin(self, nbytes: int, call: Callable[[], T]) -> Future[T]:
        """Make a request of the verbs of a place; returns once it is among those in flight."""
        with self._turn, self._ended:  # who waits for much is not overtaken by those that ask for little
            self._ended.wait_for(partial(self._has_room, nbytes))
            return self._begun(nbytes, call)

    def _begun(self, nbytes: int, call: Callable[[], T]) -> Future[T]:
        self._count, self._bytes = self._count + 1, self._bytes + nbytes

        def run() -> T:
            try:
                return call()
            finally:
                with self._ended:
                    self._count, self._bytes = self._count - 1, self._bytes - nbytes
                    self._ended.notify()

        return self._pool.submit(run)

    def _has_room(self, nbytes: int) -> bool:
        return self._count == 0 or (self._count < MAX_REQUESTS and self._bytes + nbytes <= MAX_BYTES)

    def each(self, place: ObjectStore, wanted: Sequence[Request]) -> Iterator[tuple[int, Got | None]]:
        """Yield (number, bytes) of what is wanted, as it arrives; None for an object that does not exist.

        What follows is begun as far as there is room, while the caller works on what has arrived.

        Raises
        ------
        PermissionError
            If the credentials do not suffice, or have expired.
        TimeoutError
            If the store has not answered for most of a minute; names the object.
        CorruptedChunkError
            For an object of more bytes than ``most``.
        """
        arrived: SimpleQueue[Future[Got | None]] = SimpleQueue()
        numbers, coming = dict[Future[Got | None], int](), enumerate(wanted)
        following = next(coming, None)
        while following is not None or numbers:
            while following is not None and (not numbers or self._has_room(following[1].nbytes)):
                begun = self.begin(following[1].nbytes, partial(get_part, place, following[1]))
                numbers[begun], following = following[0], next(coming, None)
                begun.add_done_callback(arrived.put)
            done = arrived.get()
            number, got = numbers.pop(done), done.result()
            if got is not None and type(place.store).__name__ not in OTHER_ETAGS:
                note_got(place.describe(wanted[number].key), got.size, got.change)
            yield number, got

    def all(self, place: ObjectStore, wanted: Sequence[Request]) -> list[Got]:
        """Return what is wanted, in that order; raises like :meth:`each`, and FileNotFoundError."""
        found: list[Any] = [None] * len(wanted)
        for number, got in self.each(place, wanted):
            if got is None:
                raise FileNotFoundError(f"{place.describe(wanted[number].key)} does not exist.")
            found[number] = got
        return found


def get_part(place: ObjectStore, one: Request) -> Got | None:
    """Get one object, or a part of it, at once; None if it does not exist."""
    import obstore

    def got() -> Got:
        part: Any = one.part
        if isinstance(part, int):
            part = {"suffix": part}
            if type(place.store).__name__ == "AzureStore":  # which has no such requests
                size = obstore.head(place.store, place.key(one.key))["size"]
                part = max(0, size - part["suffix"]), size
        reply = obstore.get(place.store, place.key(one.key), options=None if part is None else {"range": part})
        start, stop = reply.range
        if one.most is not None and stop - start > one.most:
            raise CorruptedChunkError(
                f"{place.describe(one.key)} has {stop - start:,} bytes; at most {one.most:,} can be stored for it, so "
                "it was not read. It is damaged or forged: restore it from a copy."
            )
        if len(data := reply.bytes()) != stop - start:
            raise places.BusyError(f"only {len(data):,} of {stop - start:,} bytes arrived")
        return Got(data, start, *change_of(reply.meta))

    try:
        return place.request("read", one.key, got)
    except places.NoBucketError:
        raise
    except FileNotFoundError:
        return None


def requests() -> Requests:
    """Return what this process has in flight."""
    places.check_not_forked()
    with _LOCK:
        if not _REQUESTS:
            _REQUESTS.append(Requests())
        return _REQUESTS[0]


def together(calls: Iterable[tuple[int, Callable[[], T]]]) -> list[T]:
    """Make requests, given with their bytes, at the same time, and return the answers in order.

    If one fails, the others have ended too.
    """
    begun: list[Future[T]] = []
    try:
        for nbytes, call in calls:
            begun.append(requests().begin(nbytes, call))
    finally:
        wait(begun)
    return [done.result() for done in begun]


def in_order(nbytes: int, calls: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Yield the answers of requests for so many bytes each, while those that follow are in flight."""
    coming: deque[Future[T]] = deque()
    for call in calls:
        coming.append(requests().begin(nbytes, call))
        if len(coming) >= in_flight(nbytes):
            yield coming.popleft().result()
    while coming:
        yield coming.popleft().result()


def joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges that cover half-open ranges of one object, by few requests that get little else.

    >>> joined([(0, 10), (20, 30), (5 * 2**20, 6 * 2**20)])
    [(0, 30), (5242880, 6291456)]
    """
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and start - found[-1][1] <= GAP_BYTES and stop - found[-1][0] <= RANGE_BYTES:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        elif stop > start:
            found.append((start, stop))
    return found


def split(url: str) -> tuple[ObjectStore, str]:
    """Return the place of the folder of an object, and its key there."""
    folder, _, name = url.rpartition("/")
    return places.ObjectStore(folder), name


def objects_at(pattern: str, endings: tuple[str, ...]) -> list[tuple[str, int, str | None]]:
    """List the objects of a folder or pattern whose names end so: (URL, size, change), by one request per 1,000.

    The case of the endings does not count.
    """
    folder, _, name = pattern.rpartition("/")
    named = name.lower().endswith(endings)
    # An object or a folder of just this name comes first. A folder is no pattern: that would be a search of the bucket.
    for within, wanted in [(folder, name)] * (named or has_magic(name)) + [(pattern.rstrip("/"), "*")] * (not named):
        listed = [entry for entry in places.ObjectStore(within).list() if "/" not in entry.key]
        found = [entry for entry in listed if entry.key.lower().endswith(endings)]
        literal = [entry for entry in found if entry.key == wanted]
        chosen = literal or [entry for entry in found if fnmatchcase(entry.key, wanted)]
        if chosen:
            return [(f"{within}/{entry.key}", entry.size, entry.change) for entry in chosen]
    return []


def object_stamp(url: str) -> tuple[str, int, str | None]:
    """Return (URL, size, change) of one object, by one request."""
    place, name = split(url)
    (got,) = requests().all(place, [Request(name, 1, (0, 1))])
    return url, got.size, got.change


def read_range(url: str, start: int, stop: int) -> Array:
    """Return the bytes of a range of an object, got in parts at the same time."""
    place, name = split(url)
    parts = [(at, min(at + PART_BYTES, stop)) for at in range(start, stop, PART_BYTES)]
    out = np.empty(stop - start, np.uint8)
    wanted = [Request(name, b - a, (a, b)) for a, b in parts]
    for number, got in requests().each(place, wanted):
        if got is None:
            raise FileNotFoundError(f"{place.describe(name)} does not exist.")
        (a, b), data = parts[number], np.frombuffer(got.data, np.uint8)
        if len(data) != b - a:
            raise CorruptedChunkError(f"{place.describe(name)} ended {b - a - len(data):,} bytes early. Copy it again.")
        out[a - start : b - start] = data
    return out


class ObjectFile(io.RawIOBase):
    """An object as a file: parts that were got are read from memory, and any others got when they are read.

    Parameters
    ----------
    place : ObjectStore
    key : str
    size : int
        Bytes of the whole object.
    *got : Got
        Parts of it.
    """

    def __init__(self, place: ObjectStore, key: str, size: int, *got: Got) -> None:
        super().__init__()
        self.place, self.name, self.size, self._at = place, key, size, 0
        self._parts: list[tuple[int, memoryview]] = []
        self.hold(got)

    def hold(self, got: Sequence[Got]) -> None:
        """Keep more parts."""
        self._parts = sorted([*self._parts, *((one.start, memoryview(one.data).cast("B")) for one in got)])

    def _held(self, start: int, stop: int) -> memoryview | None:
        at = bisect_right(self._parts, start, key=lambda part: part[0]) - 1
        first, data = self._parts[at] if at >= 0 else (0, memoryview(b""))
        return data[start - first : stop - first] if at >= 0 and stop <= first + len(data) else None

    def get(self, spans: Sequence[tuple[int, int]]) -> None:
        """Get parts of the object at the same time."""
        wanted = [Request(self.name, stop - start, (start, stop)) for start, stop in joined(spans)]
        self.hold(requests().all(self.place, wanted))

    def part(self, start: int, stop: int) -> memoryview:
        """Return a range of the bytes."""
        if stop <= start:
            return memoryview(b"")
        if (found := self._held(start, stop)) is None:
            end = min(max(stop, start + TAIL_BYTES), self.size)
            (got,) = requests().all(self.place, [Request(self.name, end - start, (start, end))])
            self.hold([got])
            found = memoryview(got.data).cast("B")[: stop - start]
        return found

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes."""
        stop = self.size if count < 0 else min(self._at + count, self.size)
        start, self._at = self._at, max(self._at, stop)
        return bytes(self.part(start, stop))

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes."""
        data = self.read(len(memoryview(buffer).cast("B")))
        memoryview(buffer).cast("B")[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        """Return the number of the next byte."""
        return self._at

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True
