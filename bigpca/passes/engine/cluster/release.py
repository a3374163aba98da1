"""Release every task that a piece of work has on the scheduler when the work ends, wherever it was interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from dask.typing import Key
from distributed import Client

T = TypeVar("T")


def releasing(client: Client, owns: Callable[[Key], bool], work: Callable[[], T]) -> T:
    """Return ``work()``, and release all tasks whose keys the work owns, whether it returns, raises or is interrupted.

    An interrupt may come between the submission of a task and the record of its future, and while tasks are released.
    The first is why tasks are found by their keys: the client notes each before it submits it, whereas the futures may
    live on in the frames of a traceback, which IPython keeps. The second is why they are released twice.

    Parameters
    ----------
    owns : callable
        Key -> whether it is of this work alone.
    """
    try:
        try:
            return work()
        finally:
            _release(client, owns)
    except BaseException:
        _release(client, owns)
        raise


def _release(client: Client, owns: Callable[[Key], bool]) -> None:
    """Release tasks as their last future would, which may exist."""

    async def release() -> None:  # in the thread of the client's events, after the messages of all submissions
        for key in filter(owns, list(client.futures)):
            client._release_key(key)

    with contextlib.suppress(Exception):  # without a connection the scheduler has released them itself
        client.sync(release)


def starts_with(prefix: str) -> Callable[[Key], bool]:
    """Return whether keys are names that begin with ``prefix``."""
    return lambda key: isinstance(key, str) and key.startswith(prefix)
