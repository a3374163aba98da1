"""The cache of sketches: one per process, locked and bounded, for matrices that can be rebuilt."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

CACHE_BYTES = 256 << 20


class _Entry:
    """One cached value, with a lock on which other threads wait while one builds it."""

    def __init__(self, nbytes: int) -> None:
        self.lock = threading.Lock()
        self.nbytes = nbytes
        self.value: Any = None


class Cache:
    """The most recently used values, up to ``limit`` bytes in total.

    Values are evicted before a new one is built, so the cache never exceeds the limit; an evicted value stays alive
    until the threads that use it are done.

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
        """Bytes of all cached values."""
        with self._lock:
            return sum(entry.nbytes for entry in self._entries.values())

    def fits(self, nbytes: int) -> bool:
        """Whether a value of this size is cached."""
        return nbytes <= self.limit

    def get(self, key: Hashable, nbytes: int, build: Callable[[], Any]) -> Any:
        """Return the value cached under ``key``, built once by the first thread that needs it.

        Parameters
        ----------
        key : everything that the value depends on.
        nbytes : its size; a value over the limit is not cached.
        build : builds it. Values are shared between threads and must not be modified.
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
        """Remove all values."""
        with self._lock:
            self._entries.clear()


CACHE = Cache(CACHE_BYTES)
