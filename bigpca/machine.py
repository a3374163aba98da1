"""What the machine lets this process use."""

from __future__ import annotations

import resource
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
