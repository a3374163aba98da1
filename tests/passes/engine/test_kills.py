"""Client and scheduler die of SIGKILL; a rerun reads only what is missing and gives the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client

from bigpca.passes.engine.events import CheckpointEvent, Event, RetryEvent
from tests.faults.kit import wait_until
from tests.passes.kit import bits, logged, moments_of, normal, reads_in, rows_read, write_store

N, D = 4000, 24
pytestmark = [pytest.mark.usefixtures("small_groups"), pytest.mark.cluster]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path / "x.zarr", normal(N, D, mean=10.0), (25, D))
    return tmp_path / "x.zarr"


@pytest.fixture
def expected(store: Path, small_groups: None) -> tuple[Any, ...]:
    with dask.config.set(scheduler="sync"):
        found = bits(moments_of(logged(store, store.with_name("log"))))
    clear(store)
    return found


def clear(store: Path) -> int:
    """Forget the logged reads; returns how many there were."""
    names = list(store.with_name("log").iterdir())
    for name in names:
        name.unlink()
    return len(names)


def run_child(*arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.passes.child", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)


def kill_after(child: subprocess.Popen[str], line: str, count: int) -> None:
    """SIGKILL a child after it printed a line so many times."""
    with child:
        if child.stdout is None:
            raise ValueError("the child's output is not captured")
        for text in child.stdout:
            count -= text.strip() == line
            if count == 0:
                os.kill(child.pid, signal.SIGKILL)
                break
    assert child.returncode == -signal.SIGKILL


def test_a_client_killed_on_the_threaded_scheduler_resumes_to_the_same_bits(
    store: Path, expected: Any, tmp_path: Path
) -> None:
    kill_after(run_child(store, tmp_path / "c"), "CheckpointEvent", 8)
    before = clear(store)
    events: list[Event] = []
    X = logged(store, store.with_name("log"))
    assert bits(moments_of(X, checkpoint=tmp_path / "c", progress=events.append)) == expected
    assert rows_read(events) <= N - 8 * 50
    assert before + len(reads_in(tmp_path / "log")) <= 80 + 8  # the segments in flight are read twice


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A scheduler and two nanny workers as processes of their own."""
    command = [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-dashboard",
    ]
    file = tmp_path / "scheduler.json"
    scheduler = quiet([*command, "--scheduler-file", str(file)])
    started = [scheduler]
    try:
        wait_until(lambda: file.exists() and file.stat().st_size > 0)
        for _ in range(2):
            worker = [
                sys.executable,
                "-m",
                "distributed.cli.dask_worker",
                "--scheduler-file",
                str(file),
                "--nthreads",
                "1",
            ]
            options = [
                "--memory-limit",
                "1GiB",
                "--no-dashboard",
                "--local-directory",
                str(tmp_path),
                "--host",
                "127.0.0.1",
            ]
            started.append(quiet([*worker, *options]))
        yield {"file": str(file), "scheduler": scheduler, "workers": started[1:]}
    finally:
        for process in reversed(started):  # workers first: they say goodbye to a scheduler that is there
            process.terminate()
            process.wait(600)


def quiet(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)


def test_a_client_killed_on_a_cluster_frees_the_workers_and_resumes_to_the_same_bits(
    store: Path, expected: Any, tmp_path: Path, processes: dict[str, Any]
) -> None:
    child = [sys.executable, "-m", "tests.passes.child", str(store), str(tmp_path / "c")]
    with Client(scheduler_file=processes["file"], set_as_default=False) as client:
        address = client.scheduler.address
        kill_after(run_child(*child[3:], address), "CheckpointEvent", 3)
        wait_until(lambda: not any(client.processing().values()))
        # A cancelled task leaves that list at once, but its thread ends with the read that it is in.
        wait_until(lambda: not any(client.run(lambda dask_worker: len(dask_worker.active_threads)).values()))
        clear(store)
        events: list[Event] = []
        X = logged(store, store.with_name("log"))
        with client.as_current():
            assert bits(moments_of(X, checkpoint=tmp_path / "c", progress=events.append)) == expected
    assert rows_read(events) <= N - 3 * 50
    assert len(reads_in(tmp_path / "log")) <= 80 - 3


def test_a_killed_scheduler_is_an_error_that_names_the_checkpoint_and_a_rerun_has_the_same_bits(
    store: Path, expected: Any, tmp_path: Path, processes: dict[str, Any]
) -> None:
    seen: list[Event] = []

    def kill(event: Event) -> None:
        seen.append(event)
        if sum(isinstance(e, CheckpointEvent) for e in seen) == 3:
            processes["scheduler"].kill()

    X = logged(store, store.with_name("log"), delay=0.02)
    began = time.monotonic()
    with (
        Client(scheduler_file=processes["file"], set_as_default=False) as client,
        client.as_current(),
        pytest.raises(ConnectionError, match=r"the Dask scheduler is lost .*Resume with checkpoint='.*/c'\."),
    ):
        moments_of(X, checkpoint=tmp_path / "c", progress=kill)
    assert time.monotonic() - began < 45
    again = logged(store, store.with_name("second-log"))  # orphans of the lost scheduler may still write to the first
    with dask.config.set(scheduler="threads"):
        assert bits(moments_of(again, checkpoint=tmp_path / "c")) == expected
    assert len(reads_in(tmp_path / "second-log")) <= 80 - 3


def test_all_workers_killed_and_new_ones_started_go_on_to_the_same_bits(
    store: Path, expected: Any, tmp_path: Path, processes: dict[str, Any]
) -> None:
    seen: list[Event] = []

    def kill(event: Event) -> None:
        seen.append(event)
        if sum(isinstance(e, CheckpointEvent) for e in seen) == 3 and len(pids) == 2:
            while pids:
                os.kill(pids.pop(), signal.SIGKILL)  # their nannies start new ones

    with Client(scheduler_file=processes["file"], set_as_default=False) as client, client.as_current():
        client.wait_for_workers(2, timeout=600)
        pids = list(client.run(os.getpid).values())
        X = logged(store, store.with_name("log"), delay=0.02)
        assert bits(moments_of(X, checkpoint=tmp_path / "c", progress=kill)) == expected
    assert sum(isinstance(e, RetryEvent) for e in seen) >= 1
