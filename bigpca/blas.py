"""The number of BLAS threads in this process: one while rows are folded, more while a small matrix is solved.

The result's bits depend on the number of BLAS threads, and that number is global to the process, so a task cannot set
it for itself. The first fold to start lowers it to one and the last to finish restores it; a solve waits until no fold
is running and delays new folds meanwhile. A fit is one long solve that pauses while its passes (and anything else
computed for it) run. A solve inside a fold (a chunk function that fits a model) would deadlock: it uses one thread. So
would a solve that computes a Dask array of folds, such as a lazy transform: these do not wait while it waits for Dask.

An interrupt may come between any two instructions, those of a ``finally`` included. So nothing here is a number that
must be counted down: a fold or solve counts as long as the frame that entered it runs, and whoever waits looks again.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import math
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from types import FrameType
from typing import Any
from weakref import ref

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.linalg import cython_blas
from threadpoolctl import ThreadpoolController

_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Caller:
    """The frame that makes this: whoever waits for what it does looks whether it still runs.

    A reference that goes with the frame would not do: a traceback that is kept (IPython does that) keeps its frames.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        frame = sys._getframe(1)
        # Context managers are generators, which are on no stack while the body runs.
        while frame.f_back and (frame.f_code.co_flags & _SUSPENDED or frame.f_globals["__name__"] in _MANAGERS):
            frame = frame.f_back
        self._frame = frame

    def runs(self) -> bool:
        """Whether the frame is on its thread's stack."""
        # A generator that yields meanwhile cuts the stack of another thread short: look twice.
        return any(frame is self._frame for _ in range(2) for frame in _stack(self.thread))


class _Work(Caller):
    """A fold or a solve, with its numbers of threads; held by its context manager, and known elsewhere weakly."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = self.of_blas = count  # those that it was given, and those that BLAS uses of them


_MANAGERS = {"contextlib", __name__}
_mutex = threading.RLock()  # in C, whose ``with`` no interrupt divides; threading.Condition is written in Python
_alarms: list[threading.Lock] = []  # one for each waiting thread, released when a fold or solve ends
_folds: list[ref[_Work]] = []
_solves: list[ref[_Work]] = []
_waiting: list[ref[_Work]] = []  # solves
_idle: list[int] = []  # the numbers of threads to restore when all have ended; empty when they are restored
_inside_fold: ContextVar[ref[_Work] | None] = ContextVar("bigpca_inside_fold", default=None)
_inside_solve: ContextVar[ref[_Work] | None] = ContextVar("bigpca_inside_solve", default=None)
ALONE = 6e9  # floating-point operations: half a second of one core
HOLD_BACK_SECONDS = 10.0  # the longest that a new fold is delayed by a waiting solve
LOOK_SECONDS = 0.5  # after which those that wait look again
_WAITING = {("dask.local", "get_async"), ("distributed.utils", "sync")}


@cache
def _libraries() -> list[Any]:
    """Return the BLAS libraries of this process, looked for at the first fold: that takes as long as many imports."""
    return [lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas"]


def _stack(thread: int) -> Iterator[FrameType]:
    """Iterate over the frames that a thread executes, innermost first."""
    frame = sys._getframe() if thread == threading.get_ident() else _frames_of_threads().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _frames_of_threads() -> dict[int, FrameType]:
    """Return the innermost frame of each thread.

    NOTE: before Python 3.11.9, sys._current_frames holds the interpreter's lock of its threads while it allocates. If
    that starts a garbage collection whose finalizers let another thread run, and that one begins or ends a thread, both
    wait for ever, and no signal is handled (python/cpython#106883). Later versions stop the collector as is done here.
    """
    with _mutex:
        collects = gc.isenabled()
        try:
            gc.disable()
            return sys._current_frames()
        finally:
            if collects:
                gc.enable()


def _running(works: list[ref[_Work]]) -> _Work | None:
    """Return the first that runs, and forget those before it."""
    while works:
        work = works[0]()
        if work is not None and work.runs():
            return work
        del works[0]
    return None


def _current(inside: ContextVar[ref[_Work] | None]) -> _Work | None:
    """Return the fold or solve of this context that still runs."""
    one = inside.get()
    work = None if one is None else one()
    return work if work is not None and work.runs() else None


def _set_threads(counts: list[int]) -> None:
    """Set each library's thread count from any thread; threadpoolctl honours only the first thread that called it."""
    for lib, count in zip(_libraries(), counts, strict=True):
        getattr(lib, "_real_set_num_threads", lib.set_num_threads)(count)


def _adjust() -> None:
    """Set the number of threads for what runs now, and wake those that wait."""
    if running := _running(_folds) or _running(_solves):
        _idle[:] = _idle or current_threads()
        wanted = [running.of_blas] * len(_libraries())
        if current_threads() != wanted:
            _set_threads(wanted)
    elif _idle:
        _set_threads(_idle)
        _idle.clear()
    while _alarms:
        _alarms.pop().release()


def _begin(work: _Work, works: list[ref[_Work]], ready: Callable[[], bool], seconds: float = math.inf) -> bool:
    """Count a fold or solve among those that run as soon as it may; False if it may not within so many seconds."""
    end = time.monotonic() + seconds
    while True:
        with _mutex:
            if ready():
                _waiting[:] = [one for one in _waiting if one() is not work]
                works.append(ref(work))
                _adjust()
                return True
            alarm = threading.Lock()
            alarm.acquire()
            _alarms.append(alarm)
        if time.monotonic() >= end:
            return False
        alarm.acquire(timeout=max(0.0, min(LOOK_SECONDS, end - time.monotonic())))


def _end(work: _Work) -> None:
    """Count a fold or solve no longer, even if that is interrupted once."""
    try:
        _forget(work)
    except BaseException:
        _forget(work)
        raise


def _forget(work: _Work) -> None:
    with _mutex:
        for works in (_folds, _solves, _waiting):
            works[:] = [one for one in works if one() is not work]
        _adjust()


def current_threads() -> list[int]:
    """Return the number of threads that each BLAS library of this process uses now."""
    return [int(lib.get_num_threads()) for lib in _libraries()]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run the body (a fold) with one BLAS thread; nested and concurrent folds share the setting.

    A surrounding solve pauses.
    """
    with solve_paused(), _fold():
        yield


@contextmanager
def _fold() -> Iterator[None]:
    fold = _Work(1)
    awaited = _current(_inside_solve) is not None  # Dask runs it for a solve, in whose context its threads are
    if awaited:
        _begin(fold, _folds, lambda: True)
    elif inside_fold() or not _begin(fold, _folds, lambda: _may_fold() and not _running(_waiting), HOLD_BACK_SECONDS):
        _begin(fold, _folds, _may_fold)
    outer = _inside_fold.get()
    try:
        _inside_fold.set(ref(fold))
        yield
    finally:
        _inside_fold.set(outer)
        _end(fold)


def _may_fold() -> bool:
    """Whether nothing is solved; the thread of a solve that waits for Dask, perhaps for this fold, solves nothing."""
    solve = _running(_solves)
    if solve is None:
        return True
    return any((at.f_globals.get("__name__"), at.f_code.co_name) in _WAITING for at in _stack(solve.thread))


def inside_fold() -> bool:
    """Whether the caller runs inside a fold, or reads for one."""
    return _current(_inside_fold) is not None


@contextmanager
def blas_threads(count: int | None, flops: float = math.inf) -> Iterator[None]:
    """Run the body (a solve) with ``count`` BLAS threads once no fold is running; None keeps the current number.

    A nested solve keeps the number of the outer one. A body of fewer than ``ALONE`` operations uses one thread: where
    the cores have other work too, threads that wait busily for each other take up to forty times as long.
    """
    if count is None or inside_fold() or _current(_inside_solve) is not None:
        with threads_of_solve() if flops < ALONE else nullcontext():
            yield
        return
    solve = _Work(1 if flops < ALONE else count)
    try:
        _solve(solve)
        _inside_solve.set(ref(solve))
        yield
    finally:
        _inside_solve.set(None)
        _end(solve)


@contextmanager
def solve_paused() -> Iterator[None]:
    """Suspend the caller's solve, if there is one, while the body folds rows or waits for folds.

    Only the thread that solves suspends it. If the body raises, the solve is not resumed: that would mean waiting for
    folds that still run.
    """
    solve = _current(_inside_solve)
    if solve is None or solve.thread != threading.get_ident():
        yield
        return
    _inside_solve.set(None)
    _end(solve)
    yield
    _solve(solve)
    _inside_solve.set(ref(solve))


@contextmanager
def solving_alone(count: int | None) -> Iterator[None]:
    """Run the body as :func:`blas_threads` does, with one BLAS thread, whatever the number that is given or surrounds.

    For matrices of some hundred rows, and for work that uses :func:`threads_of_solve` itself.
    """
    with blas_threads(count), threads_of_solve():
        yield


@contextmanager
def threads_of_solve() -> Iterator[int]:
    """Yield the number of threads of the surrounding solve, and set BLAS to one meanwhile: the caller uses them itself.

    1 without a solve, inside a fold, and for a solve of one thread; BLAS then keeps its number.
    """
    solve = _current(_inside_solve)
    if solve is None or solve.count == 1 or inside_fold():
        yield 1
        return
    before = solve.of_blas
    try:
        _use(solve, 1)
        yield solve.count
    finally:
        _use(solve, before)


def _use(solve: _Work, of_blas: int) -> None:
    with _mutex:
        solve.of_blas = of_blas
        _adjust()


def _solve(solve: _Work) -> None:
    """Begin a solve, or go on with it, once no other one and no fold runs."""
    with _mutex:
        _waiting.append(ref(solve))
    _begin(solve, _solves, lambda: not (_running(_solves) or _running(_folds)))


def forget_others() -> None:
    """Reset the state in a forked child, which inherits none of its parent's folding or solving threads."""
    global _mutex
    _mutex = threading.RLock()
    for works in (_folds, _solves, _waiting):
        works.clear()
    _alarms.clear()
    _adjust()


def blas_description() -> str:
    """Return name, version and kernel of the BLAS libraries, as recorded with checkpoints and models."""
    np.ones((2, 2)) @ np.ones((2, 2))  # the kernel is chosen at the first product
    found = [lib.info() for lib in _libraries()]
    names = {f"{lib.get('internal_api')} {lib.get('version')} {lib.get('architecture') or ''}".strip() for lib in found}
    return ", ".join(sorted(names)) or "unknown"


def numerical_environment() -> dict[str, str]:
    """Return what the last bits of a result depend on besides its input; recorded with checkpoints and models."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "blas": blas_description(),
        "simd": _vector_instructions(),
    }


def _vector_instructions() -> str:
    """Return the vector instructions with which NumPy sums and computes elementary functions here."""
    known = np.show_config(mode="dicts")
    return " ".join(known.get("SIMD Extensions", {}).get("found", ())) or "unknown"


def _fortran_routine(name: str, arguments: int) -> Any:
    """Return SciPy's BLAS routine ``name`` for calls without the GIL (f2py's wrappers hold it)."""
    capsule = cython_blas.__pyx_capi__[name]
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get_pointer(capsule, get_name(capsule))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(address)


_SYRK = {"f": (_fortran_routine("ssyrk", 10), ctypes.c_float), "d": (_fortran_routine("dsyrk", 10), ctypes.c_double)}
_GEMM = {"f": (_fortran_routine("sgemm", 13), ctypes.c_float), "d": (_fortran_routine("dgemm", 13), ctypes.c_double)}


def symmetric_rank_update(rows: NDArray[Any], out: NDArray[Any], *, add: bool = False) -> None:
    """Write the upper triangle of ``rows' rows`` (d, d) into ``out``, or add it; the lower triangle is not touched.

    Calls BLAS syrk on the rows in their memory order: half the flops of a general product. NumPy's ``rows.T @ rows``
    uses syrk too, but then mirrors the triangle, which takes an eighth of the time on slabs of 3,000 rows.

    Parameters
    ----------
    rows : ndarray of shape (n, d), n > 0, float32 or float64
        Copied unless it is contiguous in either order.
    out : ndarray of shape (d, d), C-contiguous, of the same dtype
    """
    if not (rows.flags.c_contiguous or rows.flags.f_contiguous):
        rows = np.ascontiguousarray(rows)
    routine, real = _SYRK[rows.dtype.char]
    count, d = (ctypes.c_int(size) for size in rows.shape)
    # Fortran sees both arrays transposed: its lower triangle is our upper one, and rows in C order need no transpose.
    order, leading = (b"N", d) if rows.flags.c_contiguous else (b"T", count)
    one, beta = real(1.0), real(float(add))
    routine(
        b"L", order, ctypes.byref(d), ctypes.byref(count), ctypes.byref(one), rows.ctypes.data, ctypes.byref(leading),
        ctypes.byref(beta), out.ctypes.data, ctypes.byref(d),
    )  # fmt: skip


def add_product(rows: NDArray[Any], factors: NDArray[Any], out: NDArray[Any]) -> None:
    """Add ``rows' factors`` to ``out`` in its precision, by BLAS gemm with beta = 1: no temporary as large as ``out``.

    Parameters
    ----------
    rows : ndarray of shape (n, d), factors : ndarray of shape (n, l), n > 0, both C-contiguous (else copied)
    out : ndarray of shape (d, l), contiguous in either order; all three of one dtype, float32 or float64
    """
    rows, factors = np.ascontiguousarray(rows), np.ascontiguousarray(factors)
    contiguous = out.flags.c_contiguous or out.flags.f_contiguous
    if not (rows.dtype == factors.dtype == out.dtype and contiguous):
        raise TypeError(
            f"rows are {rows.dtype}, factors {factors.dtype}, out {out.dtype}; "
            "one dtype and a contiguous out were expected"
        )
    # Fortran sees rows and factors transposed. For an out in C order it computes out' += factors' rows, else
    # out += rows' factors.
    left, right = (factors, rows) if out.flags.c_contiguous else (rows, factors)
    routine, real = _GEMM[rows.dtype.char]
    count, high, wide = (ctypes.c_int(size) for size in (len(rows), left.shape[1], right.shape[1]))
    one = real(1.0)
    routine(
        b"N", b"T", ctypes.byref(high), ctypes.byref(wide), ctypes.byref(count), ctypes.byref(one),
        left.ctypes.data, ctypes.byref(high), right.ctypes.data, ctypes.byref(wide), ctypes.byref(one),
        out.ctypes.data, ctypes.byref(high),
    )  # fmt: skip
