"""The number of BLAS threads in this process: one while rows are folded, more while a small matrix is solved.

The result's bits depend on the number of BLAS threads, and that number is global to the process, so a task cannot set
it for itself. The first fold to start lowers it to one and the last to finish restores it; a solve waits until no fold
is running and delays new folds meanwhile. A fit is one long solve that pauses while its passes (and anything else
computed for it) run. A solve inside a fold (a chunk function that fits a model) would deadlock: it uses one thread. So
would a solve that computes a Dask array of folds, such as a lazy transform: these begin at once in its context, which
Dask gives its threads.

Work in pieces, such as the strips of a product, is shared with the threads of a pass that have no task, as at its end.
What a piece computes is fixed, so the number of threads changes no bit.

An interrupt may come between any two instructions, those of a ``finally`` included. So what must not be left is undone
twice; a call after one that was not interrupted finds nothing to do.
"""

from __future__ import annotations

import ctypes
import math
import platform
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

T = TypeVar("T")
R = TypeVar("R")
STRIP_COLUMNS = 128  # at least, of the strips of a product: narrower ones take more than a sixth longer
FACTOR_COLUMNS = 256  # the same, of products with few columns
STRIP_ROWS = 1024  # at least, of rows that are multiplied by few columns
ALONE = 6e9  # floating-point operations: half a second of one core
HOLD_BACK_SECONDS = 10.0  # the longest that a new fold is delayed by a waiting solve
LOOK_SECONDS = 0.5  # after which those that wait look again
ARGUMENTS = {"syrk": 10, "gemm": 13}  # of BLAS routines


@dataclass(eq=False)
class _Work:
    """A fold, which has one thread, or a solve."""

    threads: int = 1
    solves: bool = False
    shares: bool = False  # whether it uses its threads itself, each with one of BLAS
    thread: int = field(default_factory=threading.get_ident)


# In C, whose ``with`` no interrupt divides; a finalizer that ends a fold may run in a thread that has the lock.
_mutex = threading.RLock()
_changed = threading.Condition(_mutex)  # a fold or solve has ended, or waits no longer
_running: list[_Work] = []
_waiting: list[_Work] = []  # solves
_idle: list[int] = []  # the numbers of threads to restore when all have ended; empty when they are restored
_inside: ContextVar[_Work | None] = ContextVar("bigpca_inside", default=None)
_crew: ContextVar[Crew | None] = ContextVar("bigpca_crew", default=None)
_strips: ContextVar[int] = ContextVar("bigpca_strips", default=1)


@contextmanager
def undone(undo: Callable[[], object]) -> Iterator[None]:
    """Call ``undo`` when the body has ended, twice: one of the calls is made and not interrupted."""
    try:
        try:
            yield
        finally:
            undo()
    finally:
        undo()


@contextmanager
def during(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable for as long as the body runs."""
    with undone(partial(variable.set, variable.get())):
        variable.set(value)
        yield


@cache
def _libraries() -> list[Any]:
    """Return the BLAS libraries of this process, looked for at the first fold: that takes as long as many imports."""
    import scipy.linalg  # noqa: F401  loads SciPy's own BLAS, which may differ from NumPy's

    return [lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas"]


def _current() -> _Work | None:
    """Return the fold or solve of this context, if it runs: threads of a context may outlive it."""
    work = _inside.get()
    return work if work in _running else None


def _adjust() -> None:
    """Set the number of threads for what runs: folds have one each, and a solve runs alone."""
    now = current_threads()
    if _running or _idle:
        _idle[:] = _idle or now
        least = min((1 if work.shares else work.threads for work in _running), default=0)
        for lib, before, count in zip(_libraries(), now, [least] * len(now) if least else _idle, strict=True):
            if before != count:  # from any thread; threadpoolctl honours only the first that called it
                getattr(lib, "_real_set_num_threads", lib.set_num_threads)(count)
    if not _running:
        _idle.clear()


def _begin(work: _Work, *, waits: bool = True) -> None:
    """Count a fold or solve among those that run: a solve when nothing runs, a fold when nothing is solved.

    Those that wait to be solved hold a fold back for ``HOLD_BACK_SECONDS``. No longer does any solve hold back a worker
    of this process: it may wait for what a callback has Dask compute.
    """
    end = time.monotonic() + HOLD_BACK_SECONDS
    with _mutex:
        if work.solves:
            _waiting.append(work)
        while waits:
            solving = _waiting or any(one.solves for one in _running)
            late = time.monotonic() >= end and (not _running or on_worker())
            if not _running if work.solves else late or not solving:
                break
            _changed.wait(LOOK_SECONDS)
        _waiting[:] = [one for one in _waiting if one is not work]
        _running.append(work)
        _adjust()


def _end(work: _Work) -> None:
    """Count a fold or solve no longer."""
    with _mutex:
        for works in (_running, _waiting):
            works[:] = [one for one in works if one is not work]
        _adjust()
        _changed.notify_all()


@contextmanager
def _counted(work: _Work, *, waits: bool = True) -> Iterator[None]:
    with undone(partial(_end, work)), during(_inside, work):
        _begin(work, waits=waits)
        yield


def current_threads() -> list[int]:
    """Return the number of threads that each BLAS library of this process uses now."""
    return [int(lib.get_num_threads()) for lib in _libraries()]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run the body (a fold) with one BLAS thread; nested and concurrent folds share the setting.

    A surrounding solve pauses. One of another thread does not: it computes this fold by Dask, and waits for it.
    """
    with solve_paused(), _counted(_Work(), waits=_current() is None):
        yield


def inside_fold() -> bool:
    """Whether the caller runs inside a fold, or reads for one."""
    work = _current()
    return work is not None and not work.solves


def on_worker() -> bool:
    """Whether the caller runs in a task of ``distributed``."""
    get_worker = getattr(sys.modules.get("distributed.worker"), "get_worker", None)  # a worker has imported it
    try:
        return get_worker is not None and get_worker() is not None
    except ValueError:
        return False


@contextmanager
def blas_threads(count: int | None, flops: float = math.inf) -> Iterator[None]:
    """Run the body (a solve) with ``count`` BLAS threads once no fold is running; None keeps the current number.

    A nested solve keeps the number of the outer one. A body of fewer than ``ALONE`` operations uses one thread: where
    the cores have other work too, threads that wait busily for each other take up to forty times as long.
    """
    if count is not None and _current() is None:
        with _counted(_Work(1 if flops < ALONE else count, solves=True)):
            yield
    else:
        with threads_of_solve() if flops < ALONE else nullcontext():
            yield


@contextmanager
def solve_paused() -> Iterator[None]:
    """Suspend the caller's solve, if there is one, while the body folds rows or waits for folds.

    Only the thread that solves suspends it. If the body raises, the solve is not resumed: that would mean waiting for
    folds that still run.
    """
    solve = _current()
    if solve is None or not solve.solves or solve.thread != threading.get_ident():
        yield
        return
    with during(_inside, None):
        _end(solve)
        yield
    _begin(solve)


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
    solve = _current()
    if solve is None or solve.threads == 1:
        yield 1
        return
    with undone(partial(_share, solve, solve.shares)):
        _share(solve, True)
        yield solve.threads


def _share(solve: _Work, shares: bool) -> None:
    with _mutex:
        solve.shares = shares
        _adjust()


def forget_others() -> None:
    """Reset the state in a forked child, which inherits none of its parent's folding or solving threads."""
    global _mutex, _changed
    _mutex = threading.RLock()
    _changed = threading.Condition(_mutex)
    _running.clear()
    _waiting.clear()
    _adjust()


def _taken(left: deque[T]) -> Iterator[T]:
    """Yield items that are left; other threads take some of them meanwhile."""
    with suppress(IndexError):
        while True:
            yield left.popleft()


class Crew:
    """The threads of a pass in this process.

    Parameters
    ----------
    threads : int
        Of tasks and helpers together; a task that starts while all are busy makes a helper leave after its piece.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._busy = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="bigpca-piece")  # no thread before it works

    @contextmanager
    def task(self) -> Iterator[None]:
        """Run the body, one task, on this thread; those that are idle help it."""
        with self._lock:
            self._busy += 1
        try:
            with during(_crew, self):
                yield
        finally:
            self._leave()

    def close(self) -> None:
        """End the threads that help."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _leave(self) -> None:
        with self._lock:
            self._busy -= 1

    def each(self, work: Callable[[T], object], pieces: Iterable[T]) -> None:
        """Call ``work`` for every piece, on this thread and on idle ones."""
        left = deque(pieces)
        with self._helpers(work, left) as ask:
            for piece in _taken(left):
                ask(len(left))
                work(piece)

    def ahead(self, work: Callable[[T], Iterable[R]], pieces: Sequence[T], most: int) -> Iterator[Iterable[R]]:
        """Yield what ``work`` yields of every piece, in order; see :func:`made_ahead`."""
        made, left, begun = [Future[list[R]]() for _ in pieces], deque[int](), 0

        def make(i: int) -> None:
            try:
                made[i].set_result(list(work(pieces[i])))
            except BaseException as error:
                made[i].set_exception(error)

        with self._helpers(make, left) as ask:
            for i, piece in enumerate(pieces):
                end = min(len(pieces), i + min(most, 1 + ask(0) + max(0, self.threads - self._busy)))
                left.extend(range(begun, end))
                begun = max(begun, end)
                ask(len(left) - 1)
                own = False  # the first that is left is this piece, or another makes this one
                while not (own or made[i].done()) and (first := next(_taken(left), None)) is not None:
                    own = first == i
                    if not own:
                        make(first)
                yield work(piece) if own else made[i].result()
                made[i] = Future()  # which holds nothing

    @contextmanager
    def _helpers(self, work: Callable[[T], object], left: deque[T]) -> Iterator[Callable[[int], int]]:
        """Yield what has up to so many idle threads take pieces that are left, until the body ends, and counts them."""
        helping = list[Future[None]]()

        def help_out() -> None:
            try:
                for piece in _taken(left):
                    work(piece)
                    if self._busy > self.threads:
                        break
            finally:
                self._leave()

        def ask(count: int) -> int:
            helping[:] = [one for one in helping if not one.done() or one.result()]
            while len(helping) < min(count, self.threads):
                with self._lock:
                    if self._busy >= self.threads:
                        break
                    self._busy += 1
                helping.append(self._pool.submit(copy_context().run, help_out))
            return len(helping)

        try:
            yield ask
        finally:
            left.clear()
            for one in helping:
                if one.cancel():
                    self._leave()
                else:
                    one.result()


def each_piece(work: Callable[[T], object], pieces: Iterable[T]) -> None:
    """Call ``work`` for every piece, in any order: on this thread, and on those of the pass that are idle."""
    crew = _crew.get()
    if crew is None or crew.threads == 1:
        for piece in pieces:
            work(piece)
    else:
        crew.each(work, pieces)


def made_ahead(work: Callable[[T], Iterable[R]], pieces: Sequence[T], most: int) -> Iterator[Iterable[R]]:
    """Yield what ``work`` yields of every piece, in order, while idle threads make the next: up to ``most`` at a time,
    with the one that is in use.
    """
    crew = _crew.get()
    return map(work, pieces) if crew is None or crew.threads == 1 or most < 2 else crew.ahead(work, pieces, most)


def in_strips(count: int) -> AbstractContextManager[None]:
    """Run the body, the fold of a group, whose products have so many strips, as the layout of the read fixes it."""
    return during(_strips, count)


def by_rows(work: Callable[[Any], NDArray[Any]], rows: Any) -> NDArray[Any]:
    """Return what ``work`` makes of rows, strip by strip; sparse rows are one."""
    strips, made = strips_of(rows.shape[0], STRIP_ROWS), dict[int, NDArray[Any]]()
    if len(strips) == 1:
        return work(rows)
    each_piece(lambda strip: made.update({strip[0]: work(rows[slice(*strip)])}), strips)
    return np.concatenate([made[start] for start, _ in strips])


def strips_of(size: int, least: int) -> list[tuple[int, int]]:
    """Return the edges of the strips, of at least ``least`` rows or columns, in which ``size`` of them are computed."""
    count = max(1, min(_strips.get(), size // least))
    return [(size * i // count, size * (i + 1) // count) for i in range(count)]


def blas_description() -> str:
    """Return name, version and kernel of the BLAS libraries, as recorded with checkpoints and models."""
    np.ones((2, 2)) @ np.ones((2, 2))  # the kernel is chosen at the first product
    found = [lib.info() for lib in _libraries()]
    names = {f"{lib.get('internal_api')} {lib.get('version')} {lib.get('architecture') or ''}".strip() for lib in found}
    return ", ".join(sorted(names)) or "unknown"


def numerical_environment() -> dict[str, str]:
    """Return what the last bits of a result depend on besides its input; recorded with checkpoints and models."""
    simd = np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", ())  # of sums and elementary functions
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "blas": blas_description(),
        "simd": " ".join(simd) or "unknown",
    }


@cache
def _fortran_routine(name: str, precision: str) -> tuple[Any, type[Any]]:
    """Return SciPy's BLAS routine for calls without the GIL (f2py's wrappers hold it), and the type of its scalars.

    ``precision`` is the character of the dtype, ``"f"`` or ``"d"``.
    """
    from scipy.linalg import cython_blas  # commands that multiply nothing start without it

    capsule = cython_blas.__pyx_capi__[{"f": "s", "d": "d"}[precision] + name]
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get_pointer(capsule, get_name(capsule))
    routine = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * ARGUMENTS[name])(address)
    return routine, {"f": ctypes.c_float, "d": ctypes.c_double}[precision]


def symmetric_rank_update(rows: NDArray[Any], out: NDArray[Any], *, add: bool = False) -> None:
    """Write the upper triangle of ``rows' rows`` (d, d) into ``out``, or add it; the lower triangle is not touched.

    Calls BLAS syrk on the rows in their memory order: half the flops of a general product. NumPy's ``rows.T @ rows``
    uses syrk too, but then mirrors the triangle, which takes an eighth of the time on slabs of 3,000 rows. Where the
    layout of a read has strips, these are runs of rows of ``out``, of about equal areas.

    Parameters
    ----------
    rows : ndarray of shape (n, d), n > 0, float32 or float64
        Copied unless it is contiguous in either order.
    out : ndarray of shape (d, d), C-contiguous, of the same dtype
    """
    if not (rows.flags.c_contiguous or rows.flags.f_contiguous):
        rows = np.ascontiguousarray(rows)
    d = rows.shape[1]
    count = len(strips_of(d, STRIP_COLUMNS))
    # The first i rows of the triangle leave a triangle of (d - i)^2 / 2 entries.
    edges = [round(d * (1 - (1 - i / count) ** 0.5)) for i in range(count)] + [d]
    each_piece(lambda strip: _update_strip(rows, out, *strip, float(add)), list(pairwise(edges)))


def _update_strip(rows: NDArray[Any], out: NDArray[Any], i: int, j: int, beta: float) -> None:
    """Compute rows ``i:j`` of the triangle: a smaller one, and the columns beyond it."""
    (n, d), size = rows.shape, rows.itemsize
    (syrk, real), (gemm, _) = (_fortran_routine(name, rows.dtype.char) for name in ("syrk", "gemm"))
    # Fortran sees both arrays transposed: its lower triangle is our upper one, and rows in C order need no transpose.
    inner, other, leading, step = (b"N", b"T", d, size) if rows.flags.c_contiguous else (b"T", b"N", n, n * size)
    first, beyond = rows.ctypes.data + i * step, rows.ctypes.data + j * step
    count, own, rest, lead, wide = (ctypes.byref(ctypes.c_int(number)) for number in (n, j - i, d - j, leading, d))
    one, added = ctypes.byref(real(1.0)), ctypes.byref(real(beta))
    at = out.ctypes.data + (i * d + i) * size
    syrk(b"L", inner, own, count, one, first, lead, added, at, wide)
    if j < d:
        gemm(inner, other, rest, own, count, one, beyond, lead, first, lead, added, at + (j - i) * size, wide)


def add_product(rows: NDArray[Any], factors: NDArray[Any], out: NDArray[Any]) -> None:
    """Add ``rows' factors`` to ``out`` in its precision, by BLAS gemm with beta = 1: no temporary as large as ``out``.

    Where the layout of a read has strips, these are runs of rows of ``out``.

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
    routine, real = _fortran_routine("gemm", rows.dtype.char)
    (n, d), width, size = rows.shape, factors.shape[1], rows.itemsize
    one = ctypes.byref(real(1.0))

    def add_strip(strip: tuple[int, int]) -> None:
        i, j = strip
        # Fortran sees rows and factors transposed. For an out in C order it computes out' += factors' rows, else
        # out += rows' factors.
        own, other, at = (rows.ctypes.data + i * size, j - i, d), (factors.ctypes.data, width, width), i
        if out.flags.c_contiguous:
            own, other, at = other, own, i * width
        sizes = own[1], other[1], n, own[2], other[2], width if out.flags.c_contiguous else d
        high, wide, count, *leading = (ctypes.byref(ctypes.c_int(number)) for number in sizes)
        to = out.ctypes.data + at * size
        routine(b"N", b"T", high, wide, count, one, own[0], leading[0], other[0], leading[1], one, to, leading[2])

    each_piece(add_strip, strips_of(d, FACTOR_COLUMNS))
