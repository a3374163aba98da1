"""What sketches keep between blocks: one store per process, locked and bounded, of matrices that can be made again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

CACHE_BYTES = 256 << 20


class _Entry:
    """One kept value; its lock makes the threads that want it wait for the one that builds it."""

    def __init__(self, nbytes: int) -> None:
        self.lock = threading.Lock()
        self.nbytes = nbytes
        self.value: Any = None


class Cache:
    """The values used last, up to ``limit`` bytes in all.

    Room is made before a value is built, so kept values never exceed the limit; a value that a thread still uses when
    it is dropped lives until that thread is done.

    Parameters
    ----------
    limit : int, bytes
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        with self._lock:
            return sum(entry.nbytes for entry in self._entries.values())

    def fits(self, nbytes: int) -> bool:
        """Whether a value of this size is kept at all."""
        return nbytes <= self.limit

    def get(self, key: Hashable, nbytes: int, build: Callable[[], Any]) -> Any:
        """Return the value kept under ``key``, built once by whichever thread asks first.

        Parameters
        ----------
        key : what the value depends on, whole.
        nbytes : its size; it is not kept where that is over the limit.
        build : makes it. Values are shared between threads and must not be changed.
        """
        if not self.fits(nbytes):
            return build()
        with self._lock:
            entry = self._entries.setdefault(key, _Entry(nbytes))
            self._entries.move_to_end(key)
            while sum(kept.nbytes for kept in self._entries.values()) > self.limit:
                self._entries.popitem(last=False)
        with entry.lock:
            if entry.value is None:
                entry.value = build()
            return entry.value

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._entries.clear()


CACHE = Cache(CACHE_BYTES)
