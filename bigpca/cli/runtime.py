"""Where a command runs: in this process, on local workers that it starts (loopback only), or on a running cluster."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from bigpca.cli.options import Cluster
from bigpca.cli.parsing import parse_size

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 10


@contextmanager
def running(options: Cluster) -> Iterator[Client | None]:
    """Provide the client of the requested scheduler; None for Dask's threaded scheduler in this process.

    Raises
    ------
    ConnectionError, TimeoutError
        If no scheduler answers at ``--scheduler``, or no worker connects to it in time. The software of workers is
        checked before the first read, and by ``bigpca doctor``.
    """
    if options.scheduler is not None and options.starts_workers:
        raise typer.BadParameter(
            "--scheduler joins a cluster and --workers, --threads, --memory start one. Give one or the other."
        )
    if options.scheduler is not None:
        with _joined(options.scheduler, options.workers_timeout) as client:
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
    # Ctrl-C in a terminal signals the whole process group: workers that inherit "ignore" leave it to this process.
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
def _joined(address: str, timeout: float) -> Iterator[Client]:
    import asyncio

    from distributed import Client

    from bigpca.passes.engine.cluster.watch import Watch
    from bigpca.passes.engine.run import Run

    try:
        asyncio.run(asyncio.wait_for(_greet(address), CONNECT_SECONDS))
        client = Client(address, timeout=CONNECT_SECONDS)
    # MemoryError: the first bytes of another protocol are read as sizes; TypeError, RuntimeError: Dask's TLS errors.
    except (OSError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        cause = f"{type(error).__name__}: {error}" if str(error) else "it was silent"
        raise ConnectionError(
            f"no Dask scheduler answered at {address} within {CONNECT_SECONDS} s ({cause}). Check the address (such as "
            "tcp://host:8786) and that the scheduler is running. With TLS the address is like tls://host:8786, and "
            "certificates are required: set DASK_CONFIG to the directory that configures them."
        ) from error
    with client:
        Watch(client, Run(workers_timeout=timeout), lambda workers: []).wait_for_workers()
        yield client


async def _greet(address: str) -> None:
    """Shake hands with a scheduler, because Dask's client would wait for ever for a peer that accepts but is silent."""
    from distributed.comm import connect
    from distributed.security import Security

    comm = await connect(address, timeout=CONNECT_SECONDS, **Security().get_connection_args("client"))
    comm.abort()


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
