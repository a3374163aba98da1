"""What a run may use: settings that hold within a ``with`` block, and the memory limit and heap of this process."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

_SETTINGS: ContextVar[Mapping[str, object]] = ContextVar("bigpca-settings", default=MappingProxyType({}))


@contextmanager
def config(
    *,
    memory_limit: int | str | None = None,
    solve_threads: int | None = None,
    workers_timeout: float | None = None,
    keep_state_bytes: int | None = None,
) -> Iterator[None]:
    """Set parameters of runs for all estimators that do not set them themselves.

    A parameter that has its default value has the value of the innermost ``with`` block that sets it; a parameter with
    another value keeps it. ``get_params``, ``clone`` and model files are as without the block. What counts is the block
    in which a method such as ``fit`` or ``transform`` is called, in its thread or asynchronous task.

    Parameters
    ----------
    memory_limit, solve_threads, workers_timeout, keep_state_bytes
        As in :class:`bigpca.PCA`; the default None leaves a setting as it is.

    Returns
    -------
    context manager

    Examples
    --------
    >>> import bigpca as bp
    >>> with bp.config(memory_limit="2 GiB", solve_threads=4):
    ...     plan = bp.PCA(1).plan([[0.0, 1.0], [1.0, 3.0], [2.0, 4.0]])
    >>> plan.resources.limit_bytes == 2 << 30
    True
    """
    given = {
        "memory_limit": memory_limit, "solve_threads": solve_threads, "workers_timeout": workers_timeout,
        "keep_state_bytes": keep_state_bytes,
    }  # fmt: skip
    outer = _SETTINGS.get()
    own = {**outer, **{name: one for name, one in given.items() if one is not None}}
    try:
        try:
            _SETTINGS.set(own)
            yield
        finally:
            _end(own, outer)
    finally:  # again, if that was interrupted
        _end(own, outer)


def _end(own: Mapping[str, object], outer: Mapping[str, object]) -> None:
    """Restore the outer settings, unless that is done: a block may have begun since."""
    if _SETTINGS.get() is own:
        _SETTINGS.set(outer)


def setting(estimator: object, name: str) -> Any:
    """Return a parameter of an estimator, or the value of the ``with`` block if it has its default; None without it."""
    value = getattr(estimator, name, None)
    default = (type(estimator).__init__.__kwdefaults__ or {}).get(name)
    return _SETTINGS.get().get(name, value) if value == default else value


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
