"""A worker that is stopped, or whose read never ends, holds nobody up: it is named, and its groups are read by others
too.
"""

import asyncio
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future as Pending
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import bigpca as bp
from bigpca.data.dask_arrays import open_source
from bigpca.data.zarr_arrays import ZarrReader
from bigpca.engine.cluster import run, watch
from bigpca.engine.cluster.run import ClusterRun
from bigpca.engine.events import Event, GroupEvent, PassEvent
from bigpca.engine.run import Run
from bigpca.passes.rows import Rows
from bigpca.plots.data import drawn_scores
from tests.engine.conftest import start_cluster
from tests.faults.kit import when
from tests.passes.kit import LoggedRows, Moments, bits, folded, logged, moments_of, normal, reads_in, write_store

N, D = 2000, 16
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("small_groups")]


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look as often as these small limits want it."""
    monkeypatch.setattr(run, "POLL_SECONDS", 0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two workers, for tests that stop one and let it go on."""
    with start_cluster(2) as found:
        yield found


def fold_with(X: Any, seconds: float) -> tuple[Moments, list[str]]:
    """Fold as fits do, with a limit of so many seconds; also the warnings."""
    rows = Rows.of(X)
    with warnings.catch_warnings(record=True) as told, patch.object(Run, "stalled_seconds", seconds):
        warnings.simplefilter("always")
        found = folded(rows, Moments(D), Run(), name="moments").state
    return found, [str(one.message) for one in told if str(one.message).startswith("worker ")]


@pytest.mark.parametrize(("size", "delay"), [(25, 0.05), (100, 0.3)])
def test_a_stopped_worker_is_named_and_its_groups_are_read_elsewhere(
    size: int, delay: float, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow groups, too, which Dask would take from a busy worker for one that seems idle because it is stopped."""
    store, log = tmp_path / "x.zarr", tmp_path / "log"
    write_store(store, normal(N, D), (size, D))
    expected = bits(moments_of(logged(store, tmp_path / "before")))
    X = logged(store, log, delay=delay)
    with Client(cluster) as client:
        stopped = sorted(client.run(os.getpid).items())[0]
        try:
            with when(lambda: len(reads_in(log)) > 200 // size, lambda: os.kill(stopped[1], signal.SIGSTOP)):
                found, told = fold_with(X, 2)
            monkeypatch.setattr(watch, "ANSWER_SECONDS", 2)
            with pytest.warns(UserWarning, match=f"^worker {stopped[0]} did not answer within 2 s.* Others do its"):
                watch.check_visible(client, str(tmp_path))
        finally:
            os.kill(stopped[1], signal.SIGCONT)
    assert bits(found) == expected
    assert any(f"worker {stopped[0]} has been silent for " in one for one in told)
    assert any("Others do its work too." in one for one in told)


async def pause(fraction: float, seconds: float, dask_worker: Any) -> None:
    """Let a worker take no more tasks while it uses more than this share of its memory; it looks every 0.1 s."""
    dask_worker.memory_manager.memory_pause_fraction = fraction
    await asyncio.sleep(seconds)


@pytest.mark.parametrize("act", ["kill", "kill late", "stop", "pause", "pause late"])
def test_a_worker_that_is_lost_as_a_pass_begins_is_as_harmless_as_one_that_is_lost_within(
    act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was to pass on a copy of what groups share, where it is asked before the first pass, and where
    tasks that are pinned to it are on their way as it is seen to be lost.
    """
    monkeypatch.setattr(Run, "stalled_seconds", 2)
    monkeypatch.setattr(watch, "ANSWER_SECONDS", 1.5)
    rows = normal(N, D)
    rows *= 0.7 ** np.arange(D, dtype=rows.dtype)
    write_store(tmp_path / "x.zarr", rows, (50, D))

    def fit(**options: Any) -> Any:
        model = bp.PCA(2, solver="krylov", tol=1e-9, max_passes=4, random_state=0)
        return model.fit(bp.open(tmp_path / "x.zarr"), **options).components_.tobytes()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with dask.config.set(scheduler="sync"):
            expected = fit()
        with start_cluster(3) as cluster, Client(cluster) as client:
            for number, options in [
                (2, {}),
                (3, {"checkpoint": tmp_path / "c"}),
                *([(1, {})] if act == "stop" else []),
            ]:
                client.wait_for_workers(3, timeout=600)
                if number == 1:
                    watch.known_of(client).looked.clear()
                who, begun = min(client.nthreads()), 0
                lost = client.submit(os.getpid, workers=[who], pure=False).result()
                sends = client.scheduler_comm
                usual = sends.interval

                def lose(event: Event, number: int = number, lost: int = lost, who: str = who) -> None:
                    nonlocal begun
                    sends.interval = usual  # noqa: B023
                    begun += isinstance(event, PassEvent)
                    if not isinstance(event, PassEvent) or begun != number:
                        return
                    if "pause" in act:
                        client.run(pause, 1e-9, 0 if act == "pause late" else 0.5, workers=[who])
                    elif act == "kill late":
                        sends.interval = 1.5  # noqa: B023
                        threading.Timer(0.3, os.kill, (lost, signal.SIGKILL)).start()
                    else:
                        os.kill(lost, signal.SIGKILL if act == "kill" else signal.SIGSTOP)

                assert fit(progress=lose, **options) == expected
                assert begun >= number
                if act == "stop":
                    os.kill(lost, signal.SIGCONT)
                if "pause" in act:
                    client.run(pause, 0.9, 0.5, workers=[who])


@pytest.mark.parametrize("task", ["solve", "alone"])
def test_a_worker_that_stops_with_the_only_task_in_flight_holds_nobody_up(
    task: str, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a solve of what is in a checkpoint, or a group that is tried alone."""
    monkeypatch.setattr(Run, "stalled_seconds", 2)
    write_store(tmp_path / "x.zarr", normal(N, D), (50, D))
    name = "submit_suspect" if task == "alone" else "submit"
    submit, submit_segment = getattr(ClusterRun, name), ClusterRun.submit_segment
    stopped: list[int] = []

    def fit(**options: Any) -> bytes:
        fitted: bytes = bp.PCA(2, solver="covariance").fit(tmp_path / "x.zarr", **options).components_.tobytes()
        return fitted

    def submit_there(own: ClusterRun, *what: Any) -> None:
        with monkeypatch.context() as patch:
            if not stopped and task in (*what[:1], "alone"):
                stopped.append(pids[there])
                os.kill(pids[there], signal.SIGSTOP)
                patch.setattr(own, "_place", lambda: {"workers": [there]})
            submit(own, *what)

    def suspect(own: ClusterRun, index: int) -> None:
        if index == 5 and not own.suspects.count:
            own.suspects.count, own.suspects.waiting[5] = 1, 5
        else:
            submit_segment(own, index)

    with dask.config.set(scheduler="sync"):
        expected = fit()
    with Client(cluster) as client:
        pids = client.run(os.getpid)
        there = min(pids)
        monkeypatch.setattr(ClusterRun, name, submit_there)
        if task == "alone":
            monkeypatch.setattr(ClusterRun, "submit_segment", suspect)
        try:
            with pytest.warns(UserWarning, match=r"^worker tcp.* has been silent .* Others do its work too"):
                assert fit(checkpoint=tmp_path / "c") == expected
            assert stopped
        finally:
            os.kill(pids[there], signal.SIGCONT)


def test_groups_that_wait_for_the_tasks_of_others_are_not_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "ENDLESS", 1.0)
    write_store(tmp_path / "x.zarr", normal(N, D), (25, D))
    X, log = logged(tmp_path / "x.zarr", tmp_path / "log", delay=0.02), tmp_path / "log"
    with start_cluster(1) as cluster, Client(cluster) as client, Client(cluster, set_as_default=False) as other:
        others: list[Any] = []
        with when(lambda: len(reads_in(log)) > 20, lambda: others.append(other.submit(time.sleep, 3, priority=9))):
            _, told = fold_with(X, 1)
        assert client.status == "running"
    assert others
    assert not [one for one in told if "has finished nothing" in one]


def test_a_pass_in_which_nothing_begins_or_ends_says_what_it_waits_for(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also before any group has ended, when a hanging read cannot be told from a long one; once, until it goes on."""
    store, gate = tmp_path / "x.zarr", tmp_path / "gate"
    write_store(store, normal(N, D), (25, D))
    monkeypatch.setattr(run, "QUIET_SECONDS", 0.5)
    caplog.set_level("WARNING")  # also of the handlers, which a LocalCluster silences
    X = logged(store, tmp_path / "log", gate=str(gate))
    looks, tell = list[tuple[Any, int]](), run.Stalls._tell_of_quiet

    def count(self: Any, tasks: Any) -> None:
        tell(self, tasks)
        looks.append((tasks, caplog.text.count("begun or ended")))

    monkeypatch.setattr(run.Stalls, "_tell_of_quiet", count)
    with client.as_current(), when(lambda: sum(lines > 0 for _, lines in looks) > 4, gate.touch):
        fold_with(X, 1)
    quiet = [[lines for _, lines in same] for _, same in groupby(looks, key=itemgetter(0))]
    assert max(lines[-1] - lines[0] for lines in quiet) == 1
    said = [one.getMessage() for one in caplog.records if "begun or ended" in one.getMessage()]
    assert re.fullmatch(r"no task .* ended for 0\.5 s; worker tcp://\S+ has group \d+ \(rows \d+:\d+\).*", said[0])


def test_tasks_that_wait_in_an_interrupted_connection_are_not_forgotten(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Other connections of the client to the scheduler may answer first: they would be cancelled again and again."""
    write_store(tmp_path / "x.zarr", normal(N, D), (25, D))
    stream, decide, asked, held = client.scheduler_comm, watch.Unknown.forgotten, list[float](), list[Any]()
    send = stream.send

    def go_on_later(self: Any, unknown: set[Any], heard: float) -> set[Any]:
        asked.append(heard)
        if len(asked) == 5:
            monkeypatch.setattr(stream, "send", send)
            client.loop.add_callback(send, *held)
        return decide(self, unknown, heard)

    monkeypatch.setattr(watch.Unknown, "forgotten", go_on_later)
    monkeypatch.setattr(stream, "send", lambda *messages: held.extend(messages))
    fold_with(bp.open(tmp_path / "x.zarr"), 1)
    assert len(asked) >= 5
    assert "has forgotten" not in caplog.text


def test_a_look_at_the_workers_takes_as_long_whatever_others_hold_there(client: Client) -> None:
    def steps(waited: list[str], dask_scheduler: Any = None) -> tuple[int, Any]:
        import sys

        taken = 0

        def trace(frame: Any, event: str, argument: object) -> Any:
            nonlocal taken
            frame.f_trace_opcodes, taken = True, taken + 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            found = look("own-", 60.0, waited, "", dask_scheduler)
        finally:
            sys.settrace(before)
        return taken, found

    look = watch.by_value(watch.at_work)
    own = [client.submit(int, i, key=f"own-{i}", pure=False) for i in range(3)]
    total = client.submit(sum, own, key="own-sum", pure=False)
    total.result()
    taken = []
    for others in (10, 10_000):
        held = client.scatter({f"of-others-{i}": i for i in range(others)})
        steps_taken, (found, unknown, _) = client.run_on_scheduler(
            steps, ["own-sum", *(one.key for one in own), "own-9"]
        )
        taken.append(steps_taken)
        assert (found.keys(), unknown) == (client.nthreads().keys(), {"own-9"})
        del held
    assert taken[1] < 2 * taken[0]


@pytest.mark.parametrize("what", ["counts", "labels", "frame", "figure", "clusters"])
def test_a_worker_that_stopped_before_what_no_pass_computes_is_named(
    what: str, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watch.ANSWER_SECONDS + watch.LOOK_SECONDS < 60  # within a minute
    assert min(watch.ANSWER_SECONDS, watch.LOST_SECONDS) > 45  # for which a scheduler may pause
    rows, y, told = normal(N, D), np.arange(N) % 3, list[str]()
    rows += 50 * (np.arange(N) % 9 - 4)[:, None]  # nine clusters, which are found in a few reads
    X, model = da.from_array(rows, chunks=(500, D)), bp.FisherDiscriminantAnalysis(2).fit(rows, y)
    ask: dict[str, Callable[[Any], Any]] = {
        "counts": lambda X: bp.PCA(2).fit(X[X[:, 0] > 0]).explained_variance_,
        "labels": lambda X: bp.FisherDiscriminantAnalysis(1).fit(rows, (X[:, 0] > 0).astype(int)).eigenvalues_,
        "frame": lambda X: bp.PCA(2).fit(rows, sample_weight=abs(X).to_dask_dataframe()[0]).explained_variance_,
        "clusters": lambda X: (
            bp.NystromKernelPCA(2, kernel="rbf", n_landmarks=9, sampling="kmeans").fit(X).eigenvalues_
        ),
        "figure": lambda X: drawn_scores(model, X, "rows").scores,
    }
    with Client(cluster) as client:
        before = ask[what](X)  # the workers are known from now on, and not asked again
        who, process = sorted(client.run(os.getpid).items())[0]
        monkeypatch.setattr(watch, "ANSWER_SECONDS", 2)
        monkeypatch.setattr(watch, "LOOK_SECONDS", 0.2)
        monkeypatch.setattr(warnings, "warn", lambda text, *_, **options: told.append(str(text)))
        if what == "clusters":
            KMeans = pytest.importorskip("dask_ml.cluster").KMeans
            cluster_rows = KMeans.fit

            def stop_and_cluster(model: Any, *rows: Any) -> Any:
                os.kill(process, signal.SIGSTOP)
                return cluster_rows(model, *rows)

            monkeypatch.setattr(KMeans, "fit", stop_and_cluster)
        else:
            os.kill(process, signal.SIGSTOP)
        with when(lambda: any(who in one for one in told), lambda: os.kill(process, signal.SIGCONT)):
            found = ask[what](X * 1)
    assert any(one.startswith(f"worker {who} has been silent for ") for one in told)
    np.testing.assert_allclose(found, before)


@pytest.mark.parametrize(("row", "segments"), [(N // 2, 64), (0, 1)])
def test_a_worker_whose_read_never_ends_is_named_once_and_its_groups_are_read_elsewhere(
    row: int, segments: int, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no segment can end before. It has one thread, and gets no more groups while that hangs, nor in the
    next read.
    """
    monkeypatch.setattr(run, "ENDLESS", 1.0)
    monkeypatch.setattr("bigpca.engine.layout.MAX_SEGMENTS", segments)
    monkeypatch.setattr("bigpca.engine.layout.MIN_GROUPS", 16)  # Dask takes them from a busy worker one by one
    store, log, gate = tmp_path / "x.zarr", tmp_path / "log", tmp_path / "gate"
    write_store(store, normal(N, D), (25, D))
    with Client(cluster) as client:
        unhindered, _ = fold_with(logged(store, tmp_path / "before"), 60)  # in it workers import what segments need
        stuck = sorted(client.run(os.getpid).items())[0]
        X = logged(store, log, delay=0.02, gate=str(gate), gate_row=row, gate_process=stuck[1])
        try:
            found, told = fold_with(X, 1)
            again, told_again = fold_with(X, 3)
        finally:
            gate.touch()
    assert bits(found) == bits(again) == bits(unhindered)
    assert not [one for one in told_again if stuck[0] in one]
    (said,) = [one for one in told if one.startswith(f"worker {stuck[0]} has finished nothing for ")]
    assert ", and has group " in said


@dataclass(frozen=True)
class Sticky(LoggedRows):
    """Rows with one group that nobody can read until ``gate`` exists."""

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Any:
        free = self.gate and start != self.gate_row
        return (replace(self, gate="") if free else super()).read_block(start, stop, columns)


def test_rows_that_can_be_read_nowhere_take_no_more_than_four_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on, and the run ends as soon as they can be read."""
    monkeypatch.setattr(run, "ENDLESS", 1.0)
    monkeypatch.setattr("bigpca.engine.layout.MIN_GROUPS", 16)
    store, log, gate, events = tmp_path / "x.zarr", tmp_path / "log", tmp_path / "gate", list[Event]()
    write_store(store, normal(N, D), (25, D))
    log.mkdir()
    X = open_source(Sticky.of(ZarrReader(store), str(log), 0.02, str(gate), 1000))

    def readers() -> int:
        return len([one for one in reads_in(log) if one[0] == 1000])

    def stuck() -> bool:
        return readers() == run.LIVE and sum(isinstance(event, GroupEvent) for event in events) >= 12

    with start_cluster(5) as cluster, Client(cluster) as client:
        client.wait_for_workers(5, timeout=600)
        released = when(lambda: stuck() and not time.sleep(1.5), gate.touch)
        with released, warnings.catch_warnings(), patch.object(Run, "stalled_seconds", 1):
            warnings.simplefilter("ignore")
            found = folded(Rows.of(X), Moments(D), Run(progress=events.append), name="moments").state
    assert readers() == run.LIVE
    assert bits(found) == bits(moments_of(bp.open(store)))


def test_a_result_that_does_not_arrive_holds_up_no_other(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one comes after five others were taken."""
    write_store(tmp_path / "x.zarr", normal(N, D), (25, D))
    expected = bits(moments_of(bp.open(tmp_path / "x.zarr")))
    held, taken = list[tuple[Any, Any]](), list[int]()
    begin, take = run.begun, ClusterRun._take_segment

    def slow(client: Client, call: Any) -> Any:
        begun = begin(client, call)
        if held:
            return begun
        held.append((begun, Pending()))
        return held[0][1]

    def counted(one: ClusterRun, segment: Any, value: Any) -> None:
        take(one, segment, value)
        taken.append(segment.index)
        if len(taken) == 5:
            begun, later = held[0]
            later.set_result(begun.result(600))

    monkeypatch.setattr(run, "GATHER_SECONDS", 0.1)
    monkeypatch.setattr(run, "begun", slow)
    monkeypatch.setattr(ClusterRun, "_take_segment", counted)
    with Client(cluster):
        found, told = fold_with(bp.open(tmp_path / "x.zarr"), 600)
    assert bits(found) == expected
    assert len(taken) == len(set(taken)) > 5
    assert told == []
