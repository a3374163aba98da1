"""The BLAS threads of all that a fit computes where it was called, and of the last task of its passes.

One place holds them, the public method: what it calls need not know. Bits then depend on ``solve_threads`` (or the
cores), and not on what the process was started with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from bigpca.blas import blas_threads
from bigpca.passes.engine.jobs import Finish
from bigpca.passes.engine.local import threads_here
from bigpca.passes.engine.states import PassState
from bigpca.sketches.base import positive_integer

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M")
_asked: ContextVar[int | None] = ContextVar("bigpca_solve_threads", default=None)


@contextmanager
def solving_with(solve_threads: int | None) -> Iterator[None]:
    """Run the body with ``solve_threads`` BLAS threads, None for one for each core here; its passes run as they do.

    Raises
    ------
    TypeError, ValueError
        For what is no number of threads.
    """
    if solve_threads is not None:
        positive_integer("solve_threads", solve_threads)
    outer = _asked.set(solve_threads)
    try:
        with blas_threads(threads_here(solve_threads)):
            yield
    finally:
        _asked.reset(outer)


def solving(method: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
    """Make a method compute with its object's ``solve_threads``."""

    @wraps(method)
    def run(self: M, *arguments: P.args, **options: P.kwargs) -> R:
        given: Any = self
        with solving_with(getattr(given, "solve_threads", None)):
            return method(self, *arguments, **options)

    return cast("Callable[Concatenate[M, P], R]", run)


def finish_alike(finish: Finish) -> Finish:
    """Return ``finish``, picklable, with the threads that were asked for here, wherever it will run."""
    return _Finish(finish, _asked.get())


class _Finish:
    def __init__(self, finish: Finish, solve_threads: int | None) -> None:
        self.finish, self.solve_threads = finish, solve_threads

    def __call__(self, state: PassState) -> Any:
        with solving_with(self.solve_threads):
            return self.finish(state)
