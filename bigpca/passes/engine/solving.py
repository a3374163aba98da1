"""The BLAS threads of everything that a fit computes in the calling process, and of the last task of its passes.

They are set in one place, the public method, and need not be passed on to what it calls. The bits therefore depend on
``solve_threads`` (or the number of cores), and not on the environment in which the process was started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Concatenate, Generic, ParamSpec, TypeVar, cast

from bigpca.blas import blas_threads
from bigpca.errors import ShortTraceback
from bigpca.passes.engine.jobs import Finish
from bigpca.passes.engine.local import threads_here
from bigpca.passes.engine.states import PassState
from bigpca.settings import setting
from bigpca.sketches.base import positive_integer

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M")
_solve_threads: ContextVar[int | None] = ContextVar("bigpca_solve_threads", default=None)


@contextmanager
def solving_with(solve_threads: int | None) -> Iterator[None]:
    """Run the body with ``solve_threads`` BLAS threads (None: one per core here); its passes use one thread.

    Raises
    ------
    TypeError, ValueError
        If ``solve_threads`` is not a number of threads.
    """
    if solve_threads is not None:
        positive_integer("solve_threads", solve_threads)
    outer = _solve_threads.set(solve_threads)
    try:
        with blas_threads(threads_here(solve_threads)):
            yield
    finally:
        _solve_threads.reset(outer)


def solving(method: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
    """Decorate a public method to compute with its object's ``solve_threads``, and to raise short tracebacks."""

    @wraps(method)
    def run(self: M, *arguments: P.args, **options: P.kwargs) -> R:
        with solving_with(setting(self, "solve_threads")), ShortTraceback():
            return method(self, *arguments, **options)

    return cast("Callable[Concatenate[M, P], R]", run)


def with_solve_threads(finish: Finish[R]) -> Finish[R]:
    """Return ``finish``, picklable, bound to this context's ``solve_threads`` wherever it will run."""
    return _Finish(finish, _solve_threads.get())


class _Finish(Generic[R]):
    def __init__(self, finish: Finish[R], solve_threads: int | None) -> None:
        self.finish, self.solve_threads = finish, solve_threads

    def __call__(self, state: PassState) -> R:
        with solving_with(self.solve_threads):
            return self.finish(state)
