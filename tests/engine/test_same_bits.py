"""The same store gives the same bits on every scheduler, with any workers, with and without kills and resumes."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client

import bigpca as bp
from bigpca.engine.cluster import run as cluster_module
from bigpca.engine.events import CheckpointEvent, Event, GroupEvent, RetryEvent
from bigpca.passes import side_by_side
from tests.engine.conftest import on_cluster
from tests.passes.kit import bits, logged, moments_of, normal, reads_in, rows_read, write_store

N, D = 4000, 24
CHUNK = 25  # 160 chunks in 80 groups of 50 rows, in 64 segments
pytestmark = [pytest.mark.usefixtures("small_groups"), pytest.mark.cluster]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bits") / "x.zarr"
    write_store(path, normal(N, D, mean=10.0), (CHUNK, D))
    return path


@pytest.fixture
def expected(store: Path, small_groups: None) -> tuple[Any, ...]:
    with dask.config.set(scheduler="sync"):
        return bits(moments_of(bp.open(store)))


@pytest.fixture
def doomed() -> Iterator[Client]:
    """A client of two workers that may be killed."""
    with on_cluster(2) as client:
        yield client


class Killer:
    """A progress callback that kills a process after so many events of a kind, and keeps all events."""

    def __init__(self, pid: int, kind: type[Event] = GroupEvent, after: int = 3) -> None:
        self.pid, self.kind, self.left = pid, kind, after
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, self.kind):
            self.left -= 1
            if self.left == 0:
                os.kill(self.pid, signal.SIGKILL)

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


@pytest.mark.parametrize("way", ["no checkpoint", "kept on workers", "workers write", "the client writes"])
def test_two_workers_give_the_bits_of_one_thread(
    way: str, store: Path, expected: Any, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "kept on workers":
        monkeypatch.setattr(cluster_module, "CLIENT_BYTES", 0)
    if way == "the client writes":
        monkeypatch.setattr(cluster_module, "_workers_see", lambda client, directory: False)
    checkpoint = tmp_path / "c" if "write" in way else None
    for read in (N, 0) if checkpoint else (N,):
        events: list[Event] = []
        assert bits(moments_of(bp.open(store), checkpoint=checkpoint, progress=events.append)) == expected
        assert rows_read(events) == read
        assert sum(isinstance(e, CheckpointEvent) for e in events) == (64 if checkpoint and read else 0)


def test_two_users_of_one_cluster_do_not_disturb_each_other(
    store: Path, expected: Any, client: Client, tmp_path: Path
) -> None:
    """One interrupts her pass, runs it again, and leaves; the other's waits for that, and has its own bits."""
    X, begun, gone = bp.open(store), threading.Event(), threading.Event()
    with dask.config.set(scheduler="sync"):
        alone = bits(moments_of(X * 2))

    def hold(event: Event) -> None:
        if isinstance(event, GroupEvent):
            begun.set()
            assert gone.wait(600)

    def other() -> tuple[Any, ...]:
        with Client(client.scheduler.address, set_as_default=False) as second, second.as_current():
            return bits(moments_of(X * 2, progress=hold))

    def stop(event: Event) -> None:
        if isinstance(event, CheckpointEvent) and event.segment >= 10:
            raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool:
        undisturbed = pool.submit(other)
        try:
            assert begun.wait(600)
            with Client(client.scheduler.address, set_as_default=False) as first, first.as_current():
                with pytest.raises(KeyboardInterrupt):
                    moments_of(X, checkpoint=tmp_path / "c", progress=stop)
                assert bits(moments_of(X, checkpoint=tmp_path / "c")) == expected
        finally:
            gone.set()
        assert undisturbed.result(600) == alone


def test_a_worker_of_two_threads_gives_the_bits_of_one(store: Path, expected: Any) -> None:
    with on_cluster(1, 2):
        assert bits(moments_of(bp.open(store))) == expected


@pytest.mark.parametrize("graph", [False, True])
def test_rows_in_memory_beside_a_store_are_sent_to_the_workers_that_read_it(
    graph: bool, store: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = bp.open(store) + 0 if graph else store, normal(N, 2, seed=1)
    there = bp.CCA(2).fit(X, Y)
    assert not there.plan_.resources.local
    with dask.config.set(scheduler="sync"):
        here = bp.CCA(2).fit(X, Y)
    assert here.plan_.resources.local
    assert here.x_rotations_.tobytes() == there.x_rotations_.tobytes()
    monkeypatch.setattr(side_by_side, "SENT_BYTES", Y.nbytes - 1)
    assert bp.CCA(2).plan(X, Y).resources.local


def test_a_state_too_large_for_the_client_to_write_is_rejected_where_workers_cannot_see_the_checkpoint(
    store: Path, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "CLIENT_BYTES", 0)
    monkeypatch.setattr(cluster_module, "_workers_see", lambda client, directory: False)
    with pytest.raises(
        bp.errors.CheckpointError, match=r"workers cannot see the checkpoint .* Put the checkpoint on storage that"
    ):
        moments_of(bp.open(store), checkpoint=tmp_path / "c")


@pytest.mark.parametrize("way", ["gathered", "kept on workers"])
def test_a_worker_killed_in_mid_pass_changes_no_bit_and_is_reported(
    way: str, store: Path, expected: Any, doomed: Client, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    if way == "kept on workers":
        monkeypatch.setattr(cluster_module, "CLIENT_BYTES", 0)
    victim = next(iter(doomed.run(os.getpid).values()))
    killer = Killer(victim)
    X = logged(store, tmp_path / "log", delay=0.01)
    with caplog.at_level("WARNING", "bigpca"):
        assert bits(moments_of(X, progress=killer)) == expected
    assert killer.count(RetryEvent) >= 1
    assert "lost 1 worker(s) (tcp://127.0.0.1:" in caplog.text
    if way != "kept on workers":  # finished segments had left the workers: only those in flight are read again
        assert len(reads_in(tmp_path / "log")) <= 80 + 16


@pytest.mark.parametrize("make", [lambda X: X, lambda X: X.rechunk((50, D)) * 2])
def test_a_resumed_pass_reads_only_what_is_missing(make: Callable[[Any], Any], store: Path, tmp_path: Path) -> None:
    X = make(bp.open(store))

    def stop_at(event: Event) -> None:
        if isinstance(event, CheckpointEvent) and event.segment >= 20:
            raise KeyboardInterrupt

    with dask.config.set(scheduler="sync"):
        undisturbed = bits(moments_of(X))
        with pytest.raises(KeyboardInterrupt):
            moments_of(X, checkpoint=tmp_path / "c", progress=stop_at)
        events: list[Event] = []
        assert bits(moments_of(X, checkpoint=tmp_path / "c", progress=events.append)) == undisturbed
        assert 0 < rows_read(events) < N
        events.clear()
        assert bits(moments_of(X, checkpoint=tmp_path / "c", progress=events.append)) == undisturbed
        assert rows_read(events) == 0
