"""Workers come, retire, are preempted and die in mid-pass: the same bits, and no innocent group is blamed."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import pytest
from distributed import Client, KilledWorker, LocalCluster, Worker
from distributed.core import Status
from distributed.scheduler import WorkerState

import bigpca as bp
from bigpca.data.dask_arrays import open_source
from bigpca.data.zarr_arrays import ZarrReader
from bigpca.engine.cluster import run as run_module
from bigpca.engine.cluster.run import RESUBMISSIONS, ClusterRun, Segment, Suspects
from bigpca.engine.events import CheckpointEvent, Event, GroupEvent, RetryEvent
from bigpca.engine.run import Run
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.fold import Read
from bigpca.passes.rows import Rows
from tests.engine.conftest import start_cluster
from tests.faults.kit import start, wait_until, when, worker_command
from tests.passes.kit import LoggedRows, bits, logged, moments_of, normal, reads_in, write_store

N, D = 4000, 24
pytestmark = [pytest.mark.usefixtures("small_groups")]


@dataclass(frozen=True)
class DeadlyRows(LoggedRows):
    """Rows whose read at ``deadly_row`` kills its process by SIGKILL, the first ``deaths`` times."""

    deadly_row: int = 0
    deaths: int = 0

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Any:
        died = Path(self.log + ".died")
        died.mkdir(exist_ok=True)
        if start <= self.deadly_row < stop and len(os.listdir(died)) < self.deaths:
            (died / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read_block(start, stop, columns)


def deadly(store: Path, log: Path, row: int, deaths: int) -> da.Array:
    log.mkdir()
    return open_source(DeadlyRows.of(ZarrReader(store), str(log), 0.01, deadly_row=row, deaths=deaths))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("elastic") / "x.zarr"
    write_store(path, normal(N, D, mean=10.0), (25, D))
    return path


@pytest.fixture
def expected(store: Path, small_groups: None) -> tuple[Any, ...]:
    with dask.config.set(scheduler="sync"):
        return bits(moments_of(bp.open(store)))


@pytest.fixture(scope="module")
def unforgiving() -> Iterator[Client]:
    """Two workers under a scheduler that gives a task up at the first death; nannies replace the dead."""
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        cluster = start_cluster(2)
    with cluster, Client(cluster, set_as_default=False) as client:
        yield client


@pytest.mark.cluster
def test_groups_that_were_only_in_flight_when_a_worker_died_are_tried_alone_and_change_no_bit(
    store: Path, expected: Any, unforgiving: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    made: list[Suspects] = []
    begin = Suspects.__init__

    def note(suspects: Suspects, *arguments: Any) -> None:
        begin(suspects, *arguments)
        made.append(suspects)

    monkeypatch.setattr(Suspects, "__init__", note)
    with unforgiving.as_current():
        found = moments_of(deadly(store, tmp_path / "log", 1010, 1), progress=events.append)
    assert bits(found) == expected
    reasons = [e.reason for e in events if isinstance(e, RetryEvent)]
    assert reasons.count("workers died") >= 1
    assert [suspects.survived for suspects in made] == [{}]  # no state of a group stays on a worker
    assert len(reads_in(tmp_path / "log")) <= 80 + 16  # the segments in flight, and the groups that were tried alone


@pytest.mark.cluster
def test_a_group_that_kills_its_workers_alone_is_blamed_with_rows_memory_and_remedy(
    store: Path, unforgiving: Client, tmp_path: Path
) -> None:
    events: list[Event] = []
    message = (
        r"workers died 1 time while they read rows 1000:1050 of .*x\.zarr \(group 20\), "
        r"and again 1 time with no other work of "
        r"this run on them: most likely they were killed for lack of memory "
        r"\(planned \d+\.\d KiB above the idle process, "
        r"1 thread x "
        r"\d+\.\d KiB; the last worker, tcp://127\.0\.0\.1:\d+, had 1\.0 GiB\)\. "
        r"Start workers with "
        r"more memory or fewer threads, or store the input in smaller chunks \(bp\.ingest\(.*Resume with "
        r"checkpoint='.*/c'\."
    )
    with unforgiving.as_current(), pytest.raises(RuntimeError, match=message) as caught:
        moments_of(
            deadly(store, tmp_path / "log", 1010, 100), checkpoint=tmp_path / "c", progress=events.append
        )  # fmt: skip
    assert isinstance(caught.value.__cause__, KilledWorker)
    assert sum(isinstance(e, CheckpointEvent) for e in events) >= 12  # those before it are safe


@pytest.mark.cluster
def test_workers_that_leave_faster_than_groups_end_stop_the_run_without_blaming_a_group(
    store: Path, unforgiving: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "MAX_SUSPICIONS", 0)
    with (
        unforgiving.as_current(),
        pytest.raises(RuntimeError, match=r"1 tasks of this pass failed .*; at most 0 were expected. Workers stop"),
    ):
        moments_of(deadly(store, tmp_path / "log", 1010, 1))


@pytest.fixture(scope="module")
def elastic() -> Iterator[tuple[LocalCluster, Client]]:
    """A cluster whose size the tests change; it begins each with what the last one left, at least one worker."""
    with start_cluster(1) as cluster, Client(cluster, set_as_default=False) as client:
        yield cluster, client


class AtGroup:
    """A progress callback that does something once, after so many finished segments, and keeps all events."""

    def __init__(self, action: Callable[[], Any], after: int = 3) -> None:
        self.action, self.left = action, after
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.left -= isinstance(event, GroupEvent)
        if self.left == 0 and isinstance(event, GroupEvent):
            self.action()

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, RetryEvent)]


def readers_in(log: Path) -> Counter[int]:
    """How many reads each process made."""
    return Counter(int(name.split("-")[2]) for name in os.listdir(log))


@pytest.mark.cluster
def test_a_worker_that_joins_in_mid_pass_gets_groups(
    store: Path, expected: Any, elastic: tuple[LocalCluster, Client], tmp_path: Path
) -> None:
    cluster, client = elastic
    (first,) = client.run(os.getpid).values()

    def join() -> None:
        cluster.scale(2)
        client.wait_for_workers(2, timeout=600)

    log, gate = tmp_path / "log", tmp_path / "gate"  # at which the first worker waits for the other
    X = logged(store, log, gate=str(gate), gate_row=N // 2, gate_process=first)
    with client.as_current(), when(lambda: readers_in(log).total() - readers_in(log)[first] >= 10, gate.touch):
        found = moments_of(X, progress=AtGroup(join))
    assert bits(found) == expected
    readers = readers_in(log)
    assert readers.total() - readers[first] >= 10
    assert readers.total() == 80


@pytest.mark.cluster
def test_a_worker_that_is_retired_in_mid_pass_is_asked_to_finish_and_loses_nothing_but_segments_in_flight(
    store: Path, expected: Any, elastic: tuple[LocalCluster, Client], tmp_path: Path
) -> None:
    cluster, client = elastic
    cluster.scale(2)
    client.wait_for_workers(2, timeout=600)
    address = next(iter(client.scheduler_info()["workers"]))
    retire = AtGroup(lambda: client.retire_workers([address]))
    with client.as_current():
        found = moments_of(logged(store, tmp_path / "log", delay=0.02), progress=retire)
    assert bits(found) == expected
    assert "workers died" not in retire.reasons()
    assert len(reads_in(tmp_path / "log")) <= 80 + 4


@pytest.mark.cluster
def test_an_adaptive_cluster_begins_from_no_worker_and_gives_the_same_bits(
    store: Path, expected: Any, elastic: tuple[LocalCluster, Client], tmp_path: Path
) -> None:
    cluster, client = elastic
    cluster.scale(0)
    wait_until(lambda: not client.scheduler_info()["workers"])
    adaptive = cluster.adapt(minimum=0, maximum=2, interval="100ms", wait_count=3)
    try:
        with client.as_current():
            found = moments_of(logged(store, tmp_path / "log", delay=0.02))
    finally:
        adaptive.stop()
    assert bits(found) == expected


def leave(dask_worker: Worker) -> None:
    """What a worker does at the end of its ``--lifetime``."""
    dask_worker.loop.add_callback(dask_worker.close_gracefully, restart=False, reason="worker-lifetime-reached")


@pytest.mark.cluster
@pytest.mark.parametrize("ending", ["SIGTERM", "--lifetime"])
def test_a_worker_that_is_preempted_or_at_the_end_of_its_lifetime_costs_segments_in_flight(
    ending: str, store: Path, expected: Any, elastic: tuple[LocalCluster, Client], tmp_path: Path
) -> None:
    cluster, client = elastic
    cluster.scale(1)
    wait_until(lambda: len(client.scheduler_info()["workers"]) == 1)
    first = next(iter(client.scheduler_info()["workers"]))
    place = ["--no-nanny", "--host", "127.0.0.1", "--memory-limit", "1GiB"]
    process = start(worker_command(client.scheduler.address, tmp_path, *place))

    def end() -> None:
        if ending == "SIGTERM":
            process.terminate()
        else:
            client.run(leave, workers=[*(client.scheduler_info()["workers"].keys() - {first})])
        wait_until(lambda: len(client.scheduler_info()["workers"]) == 1)

    try:
        client.wait_for_workers(2, timeout=600)
        at = AtGroup(end)
        with client.as_current():
            found = moments_of(logged(store, tmp_path / "log", delay=0.02), progress=at)
        assert bits(found) == expected
        assert at.reasons() == ["worker lost"]
        assert len(readers_in(tmp_path / "log")) == 2
        assert len(reads_in(tmp_path / "log")) <= 80 + 8
    finally:
        process.kill()
        process.wait(600)


def killed_at(task: str, allowed_failures: int = 3) -> KilledWorker:
    """What the scheduler raises for a task."""
    worker = WorkerState(
        address="tcp://127.0.0.1:1", status=Status.closed, pid=1, name="a", nthreads=2, memory_limit=0,
        local_directory="/tmp",
        nanny=None, server_id="a",
    )  # fmt: skip
    return KilledWorker(task, worker, allowed_failures)


def suspects_of(store: Path) -> Suspects:
    rows = Rows.of(bp.open(store))
    job = Read.into(rows, "moments", Moments(D), cut_bytes=0, work=0.0).to(str).job(Run())
    return Suspects(job, Run(peak_bytes=1 << 20))


def test_tasks_that_read_nothing_are_sent_again_so_many_times_and_no_more(store: Path) -> None:
    suspects = suspects_of(store)
    error, segment = killed_at(suspects.job.key("merge", 5, 0, 0)), Segment(5)
    for _ in range(RESUBMISSIONS):
        assert suspects.add(segment, error) is False
    with pytest.raises(
        RuntimeError,
        match=r"workers died 4 times while they ran .*-merge-5-0-0, which reads no rows,: .*planned 2\.0 MiB above the "
        r"idle process, 2 threads x 1\.0 MiB; the last worker, tcp://127\.0\.0\.1:1, "
        r"had no memory limit",
    ):
        suspects.add(segment, error)


def test_a_group_whose_workers_died_is_not_tried_alone_once_its_segment_has_come_from_elsewhere(
    store: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two submissions of a segment, as beside a stalled worker: one is lost with its workers, the other finishes."""
    submit, arrived, lost = ClusterRun.submit_segment, ClusterRun.has_arrived, list[str]()

    def submit_twice(run: ClusterRun, index: int) -> None:
        submit(run, index)
        if index == 5 and not run.segments[5].tries:
            run.segments[5].tries = 1
            submit(run, index)

    def lose(run: ClusterRun, future: Any) -> bool:
        if not lost and run.flights[future.key].segment.index == 5:
            lost.append(future.key)
            run.coming[future.key] = futures.Future()
            run.coming[future.key].set_exception(killed_at(f"{run.job.prefix}-{run.job.layout.segments[5][0]}"))
            return True
        return arrived(run, future)

    monkeypatch.setattr(ClusterRun, "submit_segment", submit_twice)
    monkeypatch.setattr(ClusterRun, "has_arrived", lose)
    monkeypatch.setattr(ClusterRun, "submit_suspect", None)  # no group is tried alone
    events = list[Event]()
    found = moments_of(bp.open(store), progress=events.append)
    assert lost
    assert sum(event.rows for event in events if isinstance(event, GroupEvent)) == N
    with dask.config.set(scheduler="sync"):
        assert bits(found) == bits(moments_of(bp.open(store)))


def test_a_group_that_came_through_alone_is_tried_alone_again_only_where_its_state_was_lost(store: Path) -> None:
    suspects = suspects_of(store)
    prefix = suspects.job.prefix
    assert suspects.add(Segment(2), killed_at(f"{prefix}-2")) is True
    assert suspects.waiting.pop(2) == 2
    suspects.survived[2] = SimpleNamespace(key=f"{prefix}-2-alone-1-0")
    assert suspects.add(Segment(2), killed_at(f"{prefix}-2-try-1")) is False  # only passes the state on
    assert suspects.add(Segment(2), killed_at(f"{prefix}-2-alone-1-0")) is True
    assert not suspects.survived
