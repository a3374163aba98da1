"""The result of a future, or an error that a user can act on."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from distributed import Client, Future, KilledWorker

from bigpca.passes.engine.cancel import RunCancelled

GATHER_SECONDS = 5.0
T = TypeVar("T")


def result_of(future: Future, check: Callable[[], None]) -> Any:
    """Return a finished future's result; raise :class:`RunCancelled` for a cancelled one.

    Parameters
    ----------
    check : callable
        Called every few seconds while the result is transferred, or computed again because its worker died with it;
        raises if the cluster is gone.
    """
    try:
        return awaited(future.client, future.result, check, GATHER_SECONDS)
    except (RunCancelled, KilledWorker):
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC and error.strerror == os.strerror(errno.ENOSPC):  # not raised by this package
            raise _spill_disk_full(future.client) from error
        raise
    except Exception as error:
        if type(error).__name__ in ("CancelledError", "FutureCancelledError", "FuturesCancelledError"):
            raise RunCancelled(str(error)) from error
        raise


def awaited(client: Client, call: Callable[[], Awaitable[T]], check: Callable[[], None], seconds: float) -> T:
    """Return the result of an asynchronous call of a client, and call ``check`` every few ``seconds`` meanwhile.

    An interrupt ends the wait and not the call, unlike in ``Client.sync``: a gather that is cancelled before its first
    step makes every later gather of the client fail.
    """

    async def result() -> T:
        return await call()

    pending = asyncio.run_coroutine_threadsafe(result(), client.loop.asyncio_loop)
    while True:
        try:
            return pending.result(timeout=seconds)
        except TimeoutError:
            if pending.done():  # it is the call's own, or the call ended just now
                return pending.result()
        try:
            check()
        except Exception:
            pending.cancel()
            raise


def _spill_disk_full(client: Client) -> OSError:
    workers = client.scheduler_info(n_workers=-1).get("workers", {}).values()
    places = ", ".join(sorted({str(worker["local_directory"]) for worker in workers})[:3])
    return OSError(
        errno.ENOSPC,
        f"the disk to which workers spill chunks that do not fit in their memory is full ({places}). Free space, start "
        "workers with --local-directory on a larger disk or with more memory, or do not persist the input: it is read "
        "chunk by chunk",
    )
