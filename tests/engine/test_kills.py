"""Client and scheduler die of SIGKILL; a rerun reads only what is missing and gives the same bits."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client

from bigpca.engine.events import CheckpointEvent, Event, RetryEvent
from tests.faults.kit import PYTHON, client_of, start, wait_until
from tests.forks import kill_after
from tests.passes.kit import bits, logged, moments_of, reads_in, rows_read

N, D = 4000, 24
CHILD = "import sys; from tests.passes.child import main; main(*sys.argv[1:])"
pytestmark = [pytest.mark.usefixtures("small_groups"), pytest.mark.cluster]


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


def test_a_client_killed_on_the_threaded_scheduler_resumes_to_the_same_bits(
    store: Path, expected: Any, tmp_path: Path
) -> None:
    kill_after("stored", CHILD, store, tmp_path / "c", 8)
    before = clear(store)
    events: list[Event] = []
    X = logged(store, store.with_name("log"))
    assert bits(moments_of(X, checkpoint=tmp_path / "c", progress=events.append)) == expected
    assert rows_read(events) <= N - 8 * 50
    assert before + len(reads_in(tmp_path / "log")) <= 80 + 8  # the segments in flight are read twice


@contextmanager
def scheduler_and_workers(folder: Path) -> Iterator[dict[str, Any]]:
    """Start a scheduler and two workers with nannies as processes of their own."""
    file = folder / "scheduler.json"
    place = ["--host", "127.0.0.1", "--no-dashboard"]
    workers = ["--nworkers", "2", "--nthreads", "1", "--memory-limit", "1GiB", "--local-directory", str(folder)]
    started = [start([*PYTHON, "distributed.cli.dask_scheduler", *place, "--port", "0", "--scheduler-file", str(file)])]
    try:
        wait_until(lambda: file.exists() and file.stat().st_size > 0)
        command = [*PYTHON, "distributed.cli.dask_worker", *place, "--scheduler-file", str(file), *workers]
        started.append(start(command))
        yield {"file": str(file), "scheduler": started[0]}
    finally:
        for process in reversed(started):  # workers first: they say goodbye to a scheduler that is there
            process.terminate()
            process.wait(600)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """For tests after which they are whole again."""
    with scheduler_and_workers(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def test_a_client_killed_on_a_cluster_frees_the_workers_and_resumes_to_the_same_bits(
    store: Path, expected: Any, tmp_path: Path, processes: dict[str, Any]
) -> None:
    with Client(scheduler_file=processes["file"], set_as_default=False) as client:
        address = client.scheduler.address
        kill_after("stored", CHILD, store, tmp_path / "c", 3, address)
        wait_until(lambda: not any(client.processing().values()))
        # A cancelled task leaves that list at once, but its thread ends with the read that it is in.
        wait_until(lambda: not any(client.run(lambda dask_worker: len(dask_worker.active_threads)).values()))
        events: list[Event] = []
        X = logged(store, store.with_name("second-log"))  # a worker may begin one more before it hears of the end
        with client.as_current():
            assert bits(moments_of(X, checkpoint=tmp_path / "c", progress=events.append)) == expected
    assert rows_read(events) <= N - 3 * 50
    assert len(reads_in(tmp_path / "second-log")) <= 80 - 3


def test_a_killed_scheduler_is_an_error_that_names_the_checkpoint_and_a_rerun_has_the_same_bits(
    store: Path, expected: Any, tmp_path: Path
) -> None:
    seen: list[Event] = []

    def kill(event: Event) -> None:
        seen.append(event)
        if isinstance(event, CheckpointEvent) and sum(isinstance(e, CheckpointEvent) for e in seen) == 3:
            processes["scheduler"].kill()

    X = logged(store, store.with_name("log"), delay=0.02)
    with (
        scheduler_and_workers(tmp_path) as processes,
        client_of(processes["file"], 2),
        pytest.raises(ConnectionError, match=r"the Dask scheduler is lost .*Resume with checkpoint='.*/c'\."),
    ):
        moments_of(X, checkpoint=tmp_path / "c", progress=kill)
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
