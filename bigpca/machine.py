"""What the machine lets this process use: cores, memory limits, and a heap that returns freed blocks to the system."""

from __future__ import annotations

import ctypes
import resource
from functools import lru_cache
from pathlib import Path

import psutil

# Hard and soft limits of a container, v1 and v2: those that ``distributed.system.memory_limit`` looks at.
CGROUP_LIMITS = (
    "memory/memory.limit_in_bytes",
    "memory/memory.soft_limit_in_bytes",
    "memory.max",
    "memory.high",
    "memory.low",
)


def memory_limit() -> int:
    """Return the bytes of memory that this process may use: the machine's, its container's or its own limit's.

    The same as ``distributed.system.MEMORY_LIMIT``, without the import of ``distributed``.
    """
    own = resource.getrlimit(resource.RLIMIT_RSS)[1]  # -1 without a limit
    limits = [psutil.virtual_memory().total, own, *map(_cgroup_limit, CGROUP_LIMITS)]
    return int(min(limit for limit in limits if limit > 0))


def _cgroup_limit(name: str) -> int:
    try:
        return int(Path("/sys/fs/cgroup", name).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return 0


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h
# Tiles of a few MiB stay on the heap, where reuse is faster; slabs and thin matrices are mapped and unmapped.
MAPPED_FROM = 8 << 20
KEPT_ON_TOP = 8 << 20  # free memory kept at the top of each thread's heap, which malloc_trim cannot release


@lru_cache(maxsize=1)
def steady_heap() -> bool:
    """Fix malloc's mmap and trim thresholds at 8 MiB, once per process.

    By default glibc raises them to 32 and 64 MiB as blocks are freed, and memory freed inside its heaps stays there:
    a process then holds up to twice what it uses, and more the longer it runs.

    Returns
    -------
    bool
        Whether the C library accepted the settings.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    return option is not None and bool(option(M_TRIM_THRESHOLD, KEPT_ON_TOP) and option(M_MMAP_THRESHOLD, MAPPED_FROM))


def trim_heap() -> None:
    """Return freed memory to the system, if the C library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
