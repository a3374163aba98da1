"""Waits on a cluster have limits: no worker for too long, or a lost scheduler, is an error instead of a wait."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from distributed import Client

from bigpca.errors import MemoryBudgetError
from bigpca.passes.engine.cluster.release import releasing, starts_with
from bigpca.passes.engine.events import RetryEvent
from bigpca.passes.engine.run import Run

ANSWER_SECONDS = 60
_pool = ThreadPoolExecutor(1, thread_name_prefix="bigpca-join")
logger = logging.getLogger("bigpca")


class Watch:
    """Watches the workers of a client while a pass waits for its futures.

    Parameters
    ----------
    client : distributed.Client
    options : Run
    join : callable
        Addresses of new workers -> sentences about those with too little memory; raises for workers that cannot run
        tasks.
    """

    def __init__(self, client: Client, options: Run, join: Callable[[Iterable[str]], list[str]]) -> None:
        self.client, self.options, self.join = client, options, join
        self.unasked: set[str] = set()
        self.asking: Future[list[str]] | None = None
        self.seen = self.checked = time.monotonic()
        self.workers: dict[str, int] = {}
        self.lost = 0

    @property
    def threads(self) -> int:
        """Worker threads at the last check of the cluster."""
        return sum(self.workers.values())

    def wait_for_workers(self) -> None:
        """Wait until a worker is up, then check all of them.

        Submits a dummy task, because adaptive clusters start workers only when there is work.
        """
        self.check()
        if not self.workers:
            key = f"bigpca-waits-for-a-worker-{uuid.uuid4().hex[:8]}"
            releasing(self.client, starts_with(key), partial(self._wait_by, key))
        short = self._join(sorted(self.unasked))
        self.unasked.clear()
        if short:
            raise MemoryBudgetError(
                f"{'; '.join(short)}. Start workers with more memory or fewer threads, or store the input in smaller "
                "chunks (bp.ingest(source, out, chunk_rows=...))."
            )

    def _wait_by(self, key: str) -> None:
        future = self.client.submit(int, key=key, pure=False)
        while not self.workers:
            time.sleep(0.1)
            self.check()
        future.release()

    def check(self) -> None:
        """Raise if the cluster is gone; report lost workers."""
        now = self._nthreads()
        gone, new = self.workers.keys() - now.keys(), now.keys() - self.workers.keys()
        self.unasked = (self.unasked | new) & now.keys()
        self.workers, self.checked = now, time.monotonic()
        if now:
            self.seen = self.checked
        if gone:
            self.lost += len(gone)
            logger.warning(
                "lost %d worker(s) (%s); their unfinished groups are read again", len(gone), ", ".join(sorted(gone))
            )
            self.options.emit(RetryEvent("worker lost", self.lost))
        self._check_seen()

    def look_at_new(self, *, wait: bool = False) -> None:
        """Check workers that joined during the run, in the background: one that has just died answers late.

        Parameters
        ----------
        wait : bool
            Whether to wait for the answers. After a failed task, what its worker lacks explains more than the failure.
        """
        if self.asking is None and self.unasked:
            self.asking = _pool.submit(self._join, sorted(self.unasked))
            self.unasked.clear()
        if self.asking is not None and (wait or self.asking.done()):
            asking, self.asking = self.asking, None
            short = asking.result()
            if short:
                warnings.warn(
                    f"{'; '.join(short)}: it joined during the run, and may be killed.", UserWarning, stacklevel=2
                )

    def _join(self, workers: list[str]) -> list[str]:
        try:
            return self.join(workers)
        except (ConnectionError, FileNotFoundError) as error:
            raise type(error)(f"{error}{resume_hint(self.options)}") from error

    def _nthreads(self) -> dict[str, int]:
        end, lost = time.monotonic() + ANSWER_SECONDS, None
        # A scheduler that is paused, or too busy to accept connections for a while, is not lost.
        while self.client.status == "running" and (left := end - time.monotonic()) > 0:
            try:
                return dict(self.client.sync(self.client.scheduler.ncores, callback_timeout=left))
            except (OSError, TimeoutError, RuntimeError) as error:
                lost = error
            time.sleep(0.1)
        raise self.scheduler_lost() from lost  # a client that reconnects has cancelled its futures

    def _check_seen(self) -> None:
        if not self.workers and time.monotonic() - self.seen > self.options.workers_timeout:
            raise TimeoutError(
                f"no worker on {self.client.scheduler.address} for {self.options.workers_timeout:g} s "
                f"(workers_timeout). Start workers and run again.{resume_hint(self.options)}"
            )

    def scheduler_lost(self) -> ConnectionError:
        """Return the error to raise."""
        return ConnectionError(
            f"the Dask scheduler is lost (client status: {self.client.status}).{resume_hint(self.options)}"
        )


def ask(client: Client, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a method of a client that waits for answers of its cluster, for at most ``ANSWER_SECONDS``.

    Raises
    ------
    TimeoutError
        If a worker or the scheduler is there but does not answer.
    """

    async def answer() -> Any:
        return await method(*arguments, **options)

    try:
        return client.sync(answer, callback_timeout=ANSWER_SECONDS)
    except TimeoutError as error:
        raise TimeoutError(
            f"{client.scheduler.address} or one of its workers did not answer within {ANSWER_SECONDS} s. "
            "Look for stopped or overloaded processes there, remove them from the cluster and run again."
        ) from error


def resume_hint(options: Run) -> str:
    """Return the end of an error message that explains how to resume; empty without a checkpoint."""
    return f" Resume with checkpoint={str(options.checkpoint.path)!r}." if options.checkpoint else ""


@contextlib.contextmanager
def scheduler_loss_named(watch: Watch) -> Iterator[None]:
    """Convert the errors of calls to a scheduler that has just died into the one that names the cause.

    The loss may show first in any call: a gather, a submission, a cancelled future.
    """
    from distributed.comm import CommClosedError

    try:
        yield
    except CommClosedError as error:
        raise watch.scheduler_lost() from error
    except Exception as error:
        # raised by distributed for a closed client and its futures
        plain = type(error) is Exception or isinstance(error, RuntimeError | CancelledError)
        if watch.client.status == "running" or not plain:
            raise
        raise watch.scheduler_lost() from error
