"""How the C library's heap keeps memory: blocks of a pass go back to the system when they are
freed, where glibc can do it.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
# Tiles of a few MiB are reused from the heap, which is faster; slabs and thin matrices are not kept.
MAPPED_FROM = 8 << 20
KEPT_ON_TOP = 8 << 20  # of each thread's heap: malloc_trim cannot reach it


@lru_cache(maxsize=1)
def steady_heap() -> bool:
    """Have blocks from 8 MiB mapped by themselves, and no more kept above the last used one, once in a process.

    glibc raises these thresholds to 32 and 64 MiB as blocks are freed, and what is freed inside its heaps stays there:
    a process then holds up to twice what it uses, and more the longer it runs.

    Returns
    -------
    bool
        Whether the C library obeys.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    return option is not None and bool(option(M_TRIM_THRESHOLD, KEPT_ON_TOP) and option(M_MMAP_THRESHOLD, MAPPED_FROM))


def trim_heap() -> None:
    """Give freed memory back to the system, where glibc keeps it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
