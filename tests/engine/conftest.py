"""How clusters are started, and disks that are full."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster


def start_cluster(workers: int, threads: int = 1, **options: Any) -> LocalCluster:
    """Start nanny processes on the loopback interface."""
    return LocalCluster(
        n_workers=workers, threads_per_worker=threads, processes=True, memory_limit="1GiB",
        dashboard_address="127.0.0.1:0", **{"silence_logs": 50, **options},
    )  # fmt: skip


def cluster_here(workers: int) -> LocalCluster:
    """Start a scheduler that others can join, and workers of one thread, all in this process."""
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1",
        dashboard_address="127.0.0.1:0", silence_logs=50,
    )  # fmt: skip


@contextmanager
def on_cluster(workers: int, threads: int = 1, **options: Any) -> Iterator[Client]:
    """Make the current client one of a cluster of so many workers with nannies, or of a scheduler alone."""
    with (
        start_cluster(workers, threads, **options) as cluster,
        Client(cluster, set_as_default=False) as client,
        client.as_current(),
    ):
        yield client


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill_disk(place: Path, leave: int) -> Path:
    """Write a file that leaves about ``leave`` bytes free."""
    filler = place / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(descriptor, bytes(4096))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    finally:
        os.close(descriptor)
    if leave:
        os.truncate(filler, max(0, filler.stat().st_size - leave))
    return filler
