"""Where a command runs: in this process, on local workers it starts (loopback only), or on a running cluster."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from bigpca.cli.options import Cluster
from bigpca.cli.parsing import parse_size

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 10


@contextmanager
def running(options: Cluster) -> Iterator[Client | None]:
    """Provide the scheduler that the options ask for; None is Dask's threaded scheduler in this process.

    Raises
    ------
    ConnectionError
        If no scheduler answers at ``--scheduler``, or it has no worker that can import bigpca.
    """
    if options.scheduler is not None and options.starts_workers:
        raise typer.BadParameter(
            "--scheduler joins a cluster and --workers, --threads, --memory start one. Give one or the other."
        )
    if options.scheduler is not None:
        with _joined(options.scheduler) as client:
            yield client
    elif options.starts_workers:
        with _started(options) as client:
            yield client
    else:
        yield None


@contextmanager
def _started(options: Cluster) -> Iterator[Client]:
    memory = "auto" if options.memory is None else parse_size(options.memory)
    from dask.system import CPU_COUNT
    from distributed import Client, LocalCluster

    workers = options.workers or 1
    # A Ctrl-C in a terminal goes to the whole process group: workers that inherit "ignore" leave it to this process.
    with _ignoring_interrupts():
        cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=options.threads or max(1, CPU_COUNT // workers),
            memory_limit=memory,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.ERROR,
        )
    with cluster, Client(cluster) as client:
        yield client


@contextmanager
def _joined(address: str) -> Iterator[Client]:
    from distributed import Client

    try:
        client = Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError, RuntimeError) as error:  # the last two: how Dask says what TLS lacks
        raise ConnectionError(
            f"no Dask scheduler answered at {address} within {CONNECT_SECONDS} s ({type(error).__name__}: {error}). "
            "Check the address (such as tcp://host:8786) and that the scheduler runs. One that speaks TLS has an address "
            "such as tls://host:8786 and wants certificates: set DASK_CONFIG to the directory that configures them."
        ) from error
    with client:
        check_workers(client)
        yield client


def check_workers(client: Client) -> dict[str, dict[str, Any]]:
    """Ask every worker for its versions.

    Raises
    ------
    ConnectionError
        If there is no worker, or bigpca cannot be imported on one of them.
    """
    answers: dict[str, dict[str, Any] | Exception] = client.run(worker_facts, on_error="return")
    if not answers:
        raise ConnectionError("the scheduler has 0 workers, but at least 1 is needed. Start workers and run again.")
    found: dict[str, dict[str, Any]] = {}
    for address, answer in answers.items():
        if isinstance(answer, Exception):
            raise ConnectionError(
                f"the worker at {address} cannot import bigpca ({answer}). Install the same bigpca on every worker."
            )
        found[address] = answer
    return found


def worker_facts() -> dict[str, Any]:
    """Versions and memory of the process that calls it (runs on workers)."""
    from bigpca.cli.facts import versions

    return versions()


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def stop_like_interrupt() -> None:
    """Let SIGTERM end a command as Ctrl-C does: outputs stay invisible, finished segments stay in the checkpoint."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, stop)
