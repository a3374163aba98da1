"""The number of BLAS threads in this process: one while rows are folded, more while a small matrix is solved.

The result's bits depend on the number of BLAS threads, and that number is global to the process, so a task cannot set
it for itself. The first fold to start lowers it to one and the last to finish restores it; a solve waits until no fold
is running and delays new folds meanwhile. A fit is one long solve that pauses while its passes (and anything else
computed for it) run. A solve inside a fold (a chunk function that fits a model) would deadlock: it uses one thread. So
would a solve that computes a Dask array of folds, such as a lazy transform: these do not wait while it waits for Dask.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.linalg import cython_blas
from threadpoolctl import ThreadpoolController


@dataclass
class _Solve:
    """A solve in progress: the BLAS threads it uses, the counts to restore, its thread, and whether it is running."""

    count: int
    thread: int = field(default_factory=threading.get_ident)
    before: list[int] = field(default_factory=list)
    held: bool = False


_turn = threading.Condition()
_folding = 0
_solving = False
_solver = 0  # the thread that solves
_solves_waiting = 0
_inside_fold: ContextVar[bool] = ContextVar("bigpca_inside_fold", default=False)
_inside_solve: ContextVar[_Solve | None] = ContextVar("bigpca_inside_solve", default=None)
_before: list[int] = []
HOLD_BACK_SECONDS = 10.0  # the longest that a new fold is delayed by a waiting solve
LOOK_SECONDS = 0.5  # after which a fold that waits for a solve looks again at what that does
_WAITING = {("dask.local", "get_async"), ("distributed.utils", "sync")}
_libraries: list[Any] = [lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas"]


def _set_threads(counts: list[int]) -> None:
    """Set each library's thread count from any thread; threadpoolctl honours only the first thread that called it."""
    for lib, count in zip(_libraries, counts, strict=True):
        getattr(lib, "_real_set_num_threads", lib.set_num_threads)(count)


def current_threads() -> list[int]:
    """Return the number of threads that each BLAS library of this process uses now."""
    return [int(lib.get_num_threads()) for lib in _libraries]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run the body (a fold) with one BLAS thread; nested and concurrent folds share the setting.

    A surrounding solve pauses.
    """
    with solve_paused(), _fold():
        yield


@contextmanager
def _fold() -> Iterator[None]:
    global _folding, _before
    awaited = _inside_solve.get() is not None  # Dask runs it for a solve, in whose context its threads are
    with _turn:
        if not (inside_fold() or awaited):
            _turn.wait_for(lambda: _may_fold() and not _solves_waiting, timeout=HOLD_BACK_SECONDS)
        while not (awaited or _turn.wait_for(_may_fold, timeout=LOOK_SECONDS)):
            pass
        _folding += 1
        if _folding == 1:
            _before = current_threads()
            _set_threads([1] * len(_libraries))
    outer = _inside_fold.set(True)
    try:
        yield
    finally:
        _inside_fold.reset(outer)
        with _turn:
            _folding -= 1
            if _folding == 0:
                _set_threads(_before)
                _turn.notify_all()


def _may_fold() -> bool:
    """Whether nothing is solved; the thread of a solve that waits for Dask, perhaps for this fold, solves nothing."""
    if not _solving:
        return True
    frame = sys._current_frames().get(_solver)
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _WAITING:
            return True
        frame = frame.f_back
    return False


def inside_fold() -> bool:
    """Whether the caller runs inside a fold, or reads for one."""
    return _inside_fold.get()


@contextmanager
def blas_threads(count: int | None) -> Iterator[None]:
    """Run the body (a solve) with ``count`` BLAS threads once no fold is running; None keeps the current number.

    A nested solve keeps the number of the outer one.
    """
    if count is None or inside_fold() or _inside_solve.get() is not None:
        yield
        return
    solve = _Solve(count)
    _enter(solve)
    outer = _inside_solve.set(solve)
    try:
        yield
    finally:
        _inside_solve.reset(outer)
        _leave(solve)


@contextmanager
def solve_paused() -> Iterator[None]:
    """Suspend the caller's solve, if there is one, while the body folds rows or waits for folds.

    Only the thread that solves suspends it. If the body raises, the solve is not resumed: that would mean waiting for
    folds that still run.
    """
    solve = _inside_solve.get()
    if solve is None or solve.thread != threading.get_ident():
        yield
        return
    _inside_solve.set(None)
    _leave(solve)
    yield
    _enter(solve)
    _inside_solve.set(solve)


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
    solve = _inside_solve.get()
    if solve is None or solve.count == 1 or inside_fold():
        yield 1
        return
    before = current_threads()
    _set_threads([1] * len(_libraries))
    try:
        yield solve.count
    finally:
        _set_threads(before)


def _enter(solve: _Solve) -> None:
    global _solving, _solver, _solves_waiting
    with _turn:
        _solves_waiting += 1
        try:
            _turn.wait_for(lambda: not _solving and _folding == 0)
        finally:
            _solves_waiting -= 1
            _turn.notify_all()
        _solving, _solver, solve.held, solve.before = True, threading.get_ident(), True, current_threads()
        _set_threads([solve.count] * len(_libraries))


def _leave(solve: _Solve) -> None:
    global _solving, _before
    with _turn:
        if solve.held:
            if _folding:  # folds that began while it waited for Dask: the last one restores the numbers
                _before = solve.before
            else:
                _set_threads(solve.before)
            _solving = solve.held = False
            _turn.notify_all()


def forget_others() -> None:
    """Reset the state in a forked child, which inherits none of its parent's folding or solving threads."""
    global _turn, _folding, _solving, _solves_waiting
    if _folding:
        _set_threads(_before)
    _turn = threading.Condition()
    _folding = _solves_waiting = 0
    _solving = False


def blas_description() -> str:
    """Return name, version and kernel of the BLAS libraries, as recorded with checkpoints and models."""
    np.ones((2, 2)) @ np.ones((2, 2))  # the kernel is chosen at the first product
    found = [lib.info() for lib in _libraries]
    names = {f"{lib.get('internal_api')} {lib.get('version')} {lib.get('architecture') or ''}".strip() for lib in found}
    return ", ".join(sorted(names)) or "unknown"


def numerical_environment() -> dict[str, str]:
    """Return what the last bits of a result depend on besides its input; recorded with checkpoints and models."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "blas": blas_description(),
    }


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
