"""What a run may use: settings of blocks, of the process and of its environment, and its memory limit and heap."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

import psutil

from bigpca.parameters import PARAMETERS, number_of

if sys.platform != "win32":
    import resource

DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "memory_limit": None,
        "solve_threads": None,
        "workers_timeout": 60.0,
        "keep_state_bytes": 256 << 20,
        "max_kernel_evaluations": 2e11,
        "arithmetic": None,
    }
)
# A thread or task without a block of its own, such as those of joblib, has the settings of the last block that is open
# in any other: dicts by id, which are added and removed in one step.
_own_block: ContextVar[Mapping[str, object] | None] = ContextVar("bigpca-settings", default=None)
_open_blocks: dict[int, Mapping[str, object]] = {}
_of_process: Mapping[str, object] = {}
# Tiles of a few MiB stay on the heap, where reuse is faster; slabs and thin matrices are mapped and unmapped.
MAPPED_FROM = 8 << 20
KEPT_ON_TOP = 8 << 20  # free memory kept at the top of each thread's heap, which malloc_trim cannot release


class config(AbstractContextManager[None]):  # read as a verb: with bp.config(...)
    """Set what runs may use: in a ``with`` block, or for the whole process by :meth:`keep`.

    These settings belong to the run, not to the model. The only one that is also a parameter of estimators is
    ``memory_limit``; a value other than None overrides the setting. The settings are those of the block in which a
    method such as ``fit`` or ``transform`` is called. A thread or asynchronous task that opens a block uses the
    settings of that block. All others use those of the last open block of the process. An estimator that is pickled
    takes the settings with it, and so do its clones: ``GridSearchCV`` and joblib use them in their threads and
    processes.

    Without blocks, the values of :meth:`keep` are used, and then the environment variables ``BIGPCA_MEMORY_LIMIT``,
    ``BIGPCA_SOLVE_THREADS``, ``BIGPCA_WORKERS_TIMEOUT``, ``BIGPCA_KEEP_STATE_BYTES``,
    ``BIGPCA_MAX_KERNEL_EVALUATIONS`` and ``BIGPCA_ARITHMETIC``, which are read at each call.

    Parameters
    ----------
    memory_limit : int, str or None, default None
        As in :class:`bigpca.PCA`. None leaves a setting unchanged, as in the other parameters.
    solve_threads : int or None, default None
        Number of BLAS threads between passes, by default one per core that the process may use. Overrides
        OPENBLAS_NUM_THREADS and similar variables. Computations of less than about half a second use one. The last
        bits depend on it, so ``provenance_`` records it.
        Passes and scores use one thread for each block of rows, and many blocks at a time.
    workers_timeout : float or None, default None
        Seconds without any worker after which a run on a cluster fails; 60 by default.
    keep_state_bytes : int or None, default None
        Maximum size of the sufficient statistics that a model keeps, for ``partial_fit`` and ``merge``; 256 MiB by
        default.
    max_kernel_evaluations : float or None, default None
        A plan that requires more is rejected before any read; 2e11 by default. ``np.inf`` for no limit.
    arithmetic : str or None, default None
        The array library that multiplies blocks of dense rows, and its device: "numpy" (the default), or "torch",
        "cupy" or "jax" with a device, such as "torch:cuda". If it is not set, batches and Dask chunks on a device are
        multiplied there. NumPy computes reads that cannot use it, and the plan says which library computes each read.
        The last bits depend on it, so what a checkpoint holds from another arithmetic is computed again.

    Raises
    ------
    TypeError, ValueError
        For values that are not numbers of threads, seconds, bytes or evaluations.

    Examples
    --------
    >>> import bigpca as bp
    >>> with bp.config(memory_limit="8 GiB", solve_threads=4):
    ...     plan = bp.PCA(1).plan([[0.0, 1.0], [1.0, 3.0], [2.0, 4.0]])
    >>> plan.resources.limit_bytes == 8 << 30
    True
    """

    def __init__(
        self,
        *,
        memory_limit: int | str | None = None,
        solve_threads: int | None = None,
        workers_timeout: float | None = None,
        keep_state_bytes: int | None = None,
        max_kernel_evaluations: float | None = None,
        arithmetic: str | None = None,
    ) -> None:
        given = {
            "memory_limit": memory_limit,
            "solve_threads": solve_threads,
            "workers_timeout": workers_timeout,
            "keep_state_bytes": keep_state_bytes,
            "max_kernel_evaluations": max_kernel_evaluations,
            "arithmetic": arithmetic,
        }
        self._given = {name: _checked(name, one) for name, one in given.items() if one is not None}
        self._block: AbstractContextManager[None] = nullcontext()

    def __enter__(self) -> None:
        self._block = block({**open_block(), **self._given})
        self._block.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._block.__exit__(*error)

    def keep(self) -> None:
        """Use the settings in the whole process, outside blocks, and discard those kept before.

        Examples
        --------
        >>> import bigpca as bp
        >>> bp.config(memory_limit="2 GiB").keep()
        >>> bp.config().keep()  # the defaults again
        """
        global _of_process
        _of_process = self._given


def _checked(name: str, value: Any) -> object:
    """Return the value of a setting, or raise; that of an environment variable is a text."""
    if name in ("memory_limit", "arithmetic"):  # whose text is read where processes and devices are found
        return value
    with suppress(ValueError):
        value = number_of(value) if isinstance(value, str) else value
    PARAMETERS[name].check(name, value)
    return value


@contextmanager
def block(own: Mapping[str, object]) -> Iterator[None]:
    """Use these settings, and no others of blocks."""
    outer = _own_block.get()
    try:
        try:
            _open_blocks[id(own)] = own
            _own_block.set(own)
            yield
        finally:
            _end(own, outer)
    finally:  # again, if that was interrupted
        _end(own, outer)


def _end(own: Mapping[str, object], outer: Mapping[str, object] | None) -> None:
    """Restore the outer settings, unless that is done: a block may have begun since."""
    _open_blocks.pop(id(own), None)
    if _own_block.get() is own:
        _own_block.set(outer)


def open_block() -> Mapping[str, object]:
    """Return the settings of the innermost block of this thread or task; without one, of the last in the process."""
    own = _own_block.get()
    return next(reversed(list(_open_blocks.values())), {}) if own is None else own


def in_force(estimator: object = None) -> dict[str, object]:
    """Return the settings of blocks and of the process, and before them those that an unpickled estimator brought."""
    return {**getattr(estimator, "_brought", {}), **_of_process, **open_block()}


def brought_by(estimator: object) -> AbstractContextManager[None]:
    """Use the settings that an estimator brought from the process in which it was pickled."""
    return block(in_force(estimator)) if getattr(estimator, "_brought", None) else nullcontext()


def setting(estimator: object, name: str, given: object = None) -> Any:
    """Return a setting: as it was given to a call, or that of the estimator (or None), of blocks, the process or its
    environment, or the default.
    """
    if given is not None:
        return given
    if name == "memory_limit" and (own := getattr(estimator, name, None)) is not None:
        return own
    for known in (open_block(), _of_process, getattr(estimator, "_brought", {})):
        if name in known:
            return known[name]
    text = os.environ.get(f"BIGPCA_{name.upper()}")
    return _checked(name, text) if text else DEFAULTS[name]


# Hard and soft limits of a container, v1 and v2: those that ``distributed.system.memory_limit`` looks at.
CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/memory/memory.soft_limit_in_bytes",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory.high",
    "/sys/fs/cgroup/memory.low",
)


def memory_limit(machine: int | None = None) -> int:
    """Return the bytes of memory that this process may use: the machine's, its container's or its own limit's.

    The same as ``distributed.system.MEMORY_LIMIT``, without the import of ``distributed``.
    """
    limits = [psutil.virtual_memory().total if machine is None else machine]
    if sys.platform != "win32":
        limits.append(resource.getrlimit(resource.RLIMIT_RSS)[1])  # -1 without a limit
    for name in CGROUP_LIMITS:
        with suppress(OSError, ValueError), open(name) as limit:  # no such file, or "max"
            limits.append(int(limit.read()))
    return int(min(limit for limit in limits if limit > 0))


def memory_now() -> tuple[int, int]:
    """Return the bytes that this process holds, and those that it may take beside them."""
    machine, held = psutil.virtual_memory(), int(_process(os.getpid()).memory_info().rss)
    return held, max(0, min(int(machine.available), memory_limit(int(machine.total)) - held))


@lru_cache(maxsize=1)
def _process(pid: int) -> psutil.Process:
    return psutil.Process(pid)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h


@cache
def of_libc(name: str) -> Any:
    """Return a function of the C library; None where it has none, or cannot be looked into, as on Windows."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except TypeError:
        return None


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
    option = of_libc("mallopt")
    return option is not None and bool(option(M_TRIM_THRESHOLD, KEPT_ON_TOP) and option(M_MMAP_THRESHOLD, MAPPED_FROM))


def trim_heap() -> None:
    """Return freed memory to the system, if the C library is glibc."""
    trim = of_libc("malloc_trim")
    if trim is not None:
        trim(0)
