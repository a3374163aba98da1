"""States that wait for a slow segment before them stay on their workers beyond a limit in bytes; nothing else changes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest
from distributed import Client

import bigpca as bp
from bigpca.data.sources import RowSource, open_source
from bigpca.data.zarr_reader import ZarrReader
from bigpca.passes import segments
from bigpca.passes.segments import ClusterRun
from tests.passes.conftest import start_cluster
from tests.passes.engine import LoggedRows, bits, moments_of, normal, reads_in, write_store

N, D, CHUNK = 2000, 24, 25
SLOW = 1.0  # seconds
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("small_groups")]


@dataclass(frozen=True)
class SlowFirstRows(LoggedRows):
    """Rows of which the first group takes a second; it kills its process instead, the first ``deaths`` times."""

    deaths: int = 0

    def read(self, start: int, stop: int, columns: tuple[int, int]) -> Any:
        if start == 0:
            time.sleep(SLOW)
            died = Path(self.log + ".died")
            died.mkdir(exist_ok=True)
            if len(os.listdir(died)) < self.deaths:
                (died / str(os.getpid())).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().read(start, stop, columns)


def slow_first(store: Path, log: Path, deaths: int = 0) -> da.Array:
    log.mkdir()
    return open_source(RowSource("zarr", str(store), "", SlowFirstRows(ZarrReader(store), str(log), deaths=deaths)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parked") / "x.zarr"
    write_store(path, normal(N, D, mean=10.0), (CHUNK, D))
    return path


@pytest.fixture
def expected(store: Path, small_groups: None) -> tuple[Any, ...]:
    with dask.config.set(scheduler="sync"):
        return bits(moments_of(bp.open(store)))


@dataclass
class Held:
    """The most segments whose states waited in the client, and on workers."""

    ready: int = 0
    parked: int = 0


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    found, fold_ready = Held(), ClusterRun.fold_ready

    def look(run: ClusterRun) -> None:
        found.ready, found.parked = max(found.ready, len(run.ready)), max(found.parked, len(run.parked))
        fold_ready(run)

    monkeypatch.setattr(ClusterRun, "fold_ready", look)
    return found


@pytest.fixture(scope="module")
def mortal() -> Iterator[Client]:
    """Two workers that tests kill; their scheduler gives a task up at the first death."""
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        cluster = start_cluster(2)
    with cluster, Client(cluster, set_as_default=False) as client:
        yield client


@pytest.mark.parametrize("states", [0, 3, 100])
def test_the_client_holds_no_more_waiting_states_than_fit(
    states: int, store: Path, expected: Any, client: Client, held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "WAITING_BYTES", states * moments_of(bp.open(store)).state_bytes)
    held.ready = held.parked = 0
    assert bits(moments_of(slow_first(store, tmp_path / "log"))) == expected
    assert len(reads_in(tmp_path / "log")) == N // CHUNK  # nothing was read twice
    assert held.ready <= states + 1  # those that wait, and the one whose turn it is
    assert (held.parked > 0) == (states < 100)
    if states == 100:
        assert held.ready > 3


def test_segments_whose_worker_dies_while_they_wait_there_are_made_again(
    store: Path, expected: Any, mortal: Client, held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first group kills its worker; it is then suspected, and tried with nothing else of the run on the workers."""
    monkeypatch.setattr(segments, "WAITING_BYTES", 0)
    with mortal.as_current():
        found = moments_of(slow_first(store, tmp_path / "log", deaths=1), workers_timeout=60)
    assert bits(found) == expected
    assert held.parked > 0
    assert len(reads_in(tmp_path / "log")) <= N // CHUNK + 16


def test_a_state_that_waits_on_a_worker_that_is_killed_is_made_again(
    store: Path, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "WAITING_BYTES", 0)
    accept = ClusterRun.accept
    killed: list[int] = []
    with start_cluster(2) as cluster, Client(cluster, set_as_default=False) as client, client.as_current():

        def kill_its_worker(run: ClusterRun, future: Any) -> None:
            accept(run, future)
            if run.parked and not killed:
                (address,) = client.who_has([next(iter(run.parked.values()))]).popitem()[1]
                killed.append(client.run(os.getpid, workers=[address])[address])
                os.kill(killed[0], signal.SIGKILL)

        monkeypatch.setattr(ClusterRun, "accept", kill_its_worker)
        found = moments_of(slow_first(store, tmp_path / "log"), workers_timeout=60)
    assert killed
    assert bits(found) == expected
    assert N // CHUNK < len(reads_in(tmp_path / "log")) <= N // CHUNK + 16
