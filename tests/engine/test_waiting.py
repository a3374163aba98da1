"""Every wait has a limit, every run takes its tasks away, and the scheduler that the user chose is the one that
runs.
"""

import asyncio
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, Future, LocalCluster, Scheduler

import bigpca as bp
from bigpca import blas
from bigpca.blas import blas_threads, one_blas_thread
from bigpca.engine.cluster import run as cluster_module
from bigpca.engine.cluster import watch as watch_module
from bigpca.engine.cluster.run import ClusterRun
from bigpca.engine.events import Event, GroupEvent, PassEvent, RetryEvent
from bigpca.engine.group import RunCancelled, cancel_run, check_cancelled
from bigpca.engine.local import current_client, local_threads
from bigpca.engine.run import Run
from tests.engine.conftest import on_cluster
from tests.faults.kit import wait_until, when
from tests.passes.kit import (
    bits,
    interrupt_after,
    logged,
    moments_of,
    normal,
    reads_in,
    tasks_on,
    wait_for_none,
    write_store,
)

N, D = 2000, 16
pytestmark = pytest.mark.usefixtures("small_groups")


def tasks_of_runs(client: Client) -> list[str]:
    return [key for key in tasks_on(client) if key.startswith("bigpca-")]


@pytest.mark.cluster
def test_no_worker_for_the_timeout_is_an_error_with_a_remedy_and_not_a_wait(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A longer wait is explained on the way, once."""
    monkeypatch.setattr(watch_module, "QUIET_SECONDS", 0.3)
    with (
        on_cluster(0, silence_logs=30),
        pytest.raises(TimeoutError, match=r"no worker on tcp://127\.0\.0\.1:\d+ for 1 s \(workers_timeout\)\. "
                      r"Start workers and run again\. Resume with checkpoint='.*/c'"),
    ):  # fmt: skip
        moments_of(bp.open(store), checkpoint=tmp_path / "c", workers_timeout=1.0)
    (said,) = [one.getMessage() for one in caplog.records if "the run waits" in one.getMessage()]
    assert re.fullmatch(r"no worker on tcp://\S+ for 0\.3 s; the run waits up to 1 s for one \(workers_timeout\)", said)


@pytest.mark.cluster
@pytest.mark.parametrize("unknown", ["lengths", "means", "weights", "index"])
def test_what_is_computed_beside_passes_waits_no_longer_for_workers(store: Path, unknown: str) -> None:
    X: Any = bp.open(store)
    model = bp.PCA(2)
    begin: dict[str, Callable[[], Any]] = {
        "lengths": lambda: model.fit(X[X[:, 0] > 0]),
        "means": lambda: model.fit(X - X.mean(axis=0)),
        "weights": lambda: model.fit(normal(N, D), sample_weight=abs(X[:, 0])),
        "index": lambda: bp.data.by_key(np.arange(N), X.to_dask_dataframe(), np.arange(N)),
    }
    with (
        on_cluster(0),
        pytest.raises(TimeoutError, match=r"for 0\.5 s \(workers_timeout\)"),
        bp.config(workers_timeout=0.5),
    ):
        begin[unknown]()


@pytest.mark.cluster
def test_workers_that_all_leave_in_mid_pass_are_an_error_after_the_timeout(store: Path, tmp_path: Path) -> None:
    X = logged(store, tmp_path / "log", delay=0.02)
    with (
        on_cluster(1) as client,
    ):

        def leave(event: Event) -> None:
            if isinstance(event, GroupEvent) and client.cluster.workers:
                time.sleep(0.3)  # the next group finishes too, and its state leaves with the worker
                client.cluster.scale(0)
                wait_until(lambda: not client.scheduler_info()["workers"])

        with pytest.raises(TimeoutError, match="Start workers and run again"):
            moments_of(X, progress=leave, workers_timeout=1.0)


@pytest.mark.cluster
def test_an_interrupted_run_leaves_no_task_and_its_tasks_stop_reading(
    store: Path, tmp_path: Path, client: Client
) -> None:
    X = logged(store, tmp_path / "log", delay=0.05)
    with pytest.raises(KeyboardInterrupt):
        moments_of(X, progress=interrupt_after(3))
    wait_for_none(lambda: tasks_of_runs(client))
    wait_for_none(lambda: [keys for keys in client.processing().values() if keys])
    counts = [-1]  # reads that had begun may end; those of tasks that go on would be 80
    wait_until(lambda: time.sleep(0.3) or counts.append(len(reads_in(tmp_path / "log"))) or counts[-1] == counts[-2])
    assert counts[-1] < 40


@pytest.mark.cluster
def test_a_failing_group_takes_the_others_away_and_its_error_comes_through(tmp_path: Path, client: Client) -> None:
    A = normal(N, D)
    A[300, 2] = np.nan
    write_store(tmp_path / "n.zarr", A, (25, D))
    with pytest.raises(bp.errors.NonFiniteError, match=r"row 300; the first is in row 300, column 2"):
        moments_of(logged(tmp_path / "n.zarr", tmp_path / "log", delay=0.02))
    wait_for_none(lambda: tasks_of_runs(client))
    assert len(reads_in(tmp_path / "log")) < 60


def break_connection(client: Client) -> None:
    """End the connection to the scheduler, which the client makes again; it has lost all futures then."""
    client.loop.add_callback(client.scheduler_comm.comm.abort)


def farewell(client: Client) -> None:
    """End the connection as a scheduler does that notices late that an earlier one broke; the client is not told."""
    client.run_on_scheduler(say_farewell, client.id)


async def say_farewell(client: str, dask_scheduler: Any = None) -> None:
    present = dask_scheduler.client_comms[client]
    present.send({"op": "stream-closed"})
    await present.close()


def restart(client: Client) -> None:
    """Restart the workers, or start others: a nanny closes if its worker takes too long to end, or fails to start.

    It does either on a busy machine.
    """
    with Client(client.scheduler.address, set_as_default=False) as other, suppress(TimeoutError):
        other.restart(wait_for_workers=False)  # a client would drop its own callbacks
    cluster: Any = client.cluster
    try:
        wait_until(lambda: len(client.nthreads()) == 2, 60)
    except TimeoutError:
        cluster.scale(0)
        cluster.scale(2)


def forget(client: Client) -> None:
    """Forget what a client asked for without telling it, as a restart does that fails midway."""
    client.run_on_scheduler(release_all, client.id)


def release_all(client: str, dask_scheduler: Any = None) -> None:
    wanted = [task.key for task in dask_scheduler.clients[client].wants_what]
    dask_scheduler.client_releases_keys(keys=wanted, client=client, stimulus_id="test")


def held(block: Any, gate: Path) -> Any:
    """Return the block once the file exists."""
    wait_until(gate.exists)
    return block


def cancel_all(client: Client) -> None:
    client.cancel([Future(key, client) for key in client.futures])


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
def test_what_a_broken_connection_or_a_restart_cancels_is_computed_again_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what groups share, which is lost too, and with a solve of states in a checkpoint."""
    rows = normal(N, D)
    rows *= 0.7 ** np.arange(D, dtype=rows.dtype)
    write_store(tmp_path / "x.zarr", rows, (50, D))
    submit, acts, begun = ClusterRun.submit, list[Callable[[Client], None]](), list[Event]()

    def fit(**options: Any) -> bytes:
        model = bp.PCA(2, solver="krylov", tol=1e-9, max_passes=3, random_state=0)
        with bp.config(workers_timeout=300):  # those that are started again, on a busy machine
            fitted: bytes = model.fit(tmp_path / "x.zarr", **options).components_.tobytes()
        return fitted

    def act_at_solve(run: ClusterRun, what: str, *arguments: Any) -> Any:
        future = submit(run, what, *arguments)
        if what == "solve" and acts:
            acts.pop()(run.client)
        return future

    def in_the_second_pass(event: Event) -> None:
        begun.append(event)
        if sum(isinstance(one, PassEvent) for one in begun) == 2 and isinstance(event, GroupEvent) and acts:
            acts.pop()(client)

    with dask.config.set(scheduler="sync"):
        expected = fit()
    monkeypatch.setattr(Run, "stalled_seconds", 12)  # a look every second
    with on_cluster(2) as client:
        for act in (restart, break_connection, farewell):
            acts.append(act)

            begun.clear()
            assert fit(progress=in_the_second_pass) == expected
            assert not acts
            acts.append(act)
            with monkeypatch.context() as patch:
                patch.setattr(ClusterRun, "submit", act_at_solve)
                assert fit(checkpoint=tmp_path / act.__name__) == expected
            assert not acts
            acts.append(act)
            begun.clear()
            with monkeypatch.context() as patch:
                patch.setattr(cluster_module, "CLIENT_BYTES", 0)  # finished states stay on workers, and are lost there
                with pytest.raises(RuntimeError, match="were cancelled 1 time"):
                    fit(progress=in_the_second_pass)
        acts.append(forget)
        begun.clear()
        assert fit(progress=in_the_second_pass) == expected
        assert not acts


@pytest.mark.cluster
def test_a_scheduler_that_notices_broken_connections_late_cancels_no_more_than_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drops the present connection too, each time: without waiting for it, tasks are cancelled again and again."""
    handle, late = Scheduler.handle_stream, [True] * 5

    async def notice_late(self: Scheduler, comm: Any, extra: dict[str, Any] | None = None) -> None:
        await handle(self, comm, extra)
        if extra and "client" in extra and late:
            late.pop()
            await asyncio.sleep(0.6)

    retries = list[Event]()

    def break_once(event: Event) -> None:
        if isinstance(event, GroupEvent) and not retries:
            break_connection(client)
        if isinstance(event, RetryEvent):
            retries.append(event)

    monkeypatch.setattr(Scheduler, "handle_stream", notice_late)
    write_store(tmp_path / "x.zarr", normal(100, D), (25, D))
    X = logged(tmp_path / "x.zarr", tmp_path / "log", delay=0.9)  # a group is longer in flight than that
    with on_cluster(1) as client:
        found = moments_of(X, progress=break_once)
    assert retries
    assert {event.count for event in retries} == {1}
    with dask.config.set(scheduler="sync"):
        assert bits(found) == bits(moments_of(bp.open(tmp_path / "x.zarr")))


@pytest.mark.cluster
def test_a_break_is_waited_for_once_whatever_it_cancels(
    store: Path, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And not once for each segment; connections of others may never settle."""
    waits, wait, ended = list[float](), watch_module.Watch.wait_until_settled, list[Event]()

    def count(self: Any) -> None:
        wait(self)
        waits.append(self.broke)

    def cancel(event: Event) -> None:
        if isinstance(event, GroupEvent) and not ended:
            ended.append(event)
            cancel_all(client)

    monkeypatch.setattr(watch_module.Watch, "wait_until_settled", count)
    monkeypatch.setattr(watch_module, "settled", lambda client, dask_scheduler=None: (True, False))
    monkeypatch.setattr(watch_module, "LOST_SECONDS", 1.0)
    monkeypatch.setattr(watch_module.Watch, "_nthreads", lambda self: client.nthreads())  # has that limit too
    caplog.set_level("WARNING")
    with dask.config.set(scheduler="sync"):
        expected = bits(moments_of(bp.open(store)))
    assert bits(moments_of(bp.open(store), progress=cancel)) == expected
    assert len(waits) > 1
    assert caplog.text.count("a connection to the scheduler broke; waiting up to 1 s") == len(set(waits))


@pytest.mark.cluster
@pytest.mark.parametrize("processes", [False, True])
def test_a_client_that_is_closed_in_a_fit_is_said_to_be_closed(store: Path, processes: bool) -> None:
    with LocalCluster(n_workers=1, processes=processes, dashboard_address="127.0.0.1:0") as cluster:
        client = Client(cluster, set_as_default=False)
        with client.as_current(), pytest.raises(ConnectionError, match=r"or the client was closed during the run"):
            moments_of(bp.open(store), progress=lambda event: isinstance(event, GroupEvent) and client.close())


@pytest.mark.cluster
def test_questions_to_a_scheduler_are_not_in_its_log(
    store: Path, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "LOOKS", 1e9)  # one at each turn
    monkeypatch.setattr(cluster_module, "POLL_SECONDS", 0.0)
    moments_of(bp.open(store))
    caplog.set_level("INFO")
    caplog.set_level("INFO", "distributed.worker")
    moments_of(bp.open(store))
    client.run_on_scheduler(release_all, client.id)
    assert [name for name in ("at_work", "unpin", "release_all") if f"function '{name}'" in caplog.text] == [
        "release_all"
    ]


@pytest.mark.cluster
def test_tasks_that_are_cancelled_again_and_again_are_an_error_with_the_reasons(
    store: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel(event: Event) -> None:
        if isinstance(event, GroupEvent) or (isinstance(event, RetryEvent) and event.reason == "segment cancelled"):
            cancel_all(client)

    reasons = "by another client, by a restart of the workers, or because the connection to the scheduler broke"
    with pytest.raises(RuntimeError, match=rf"^tasks of this run were cancelled 4 times: {reasons}\. Run again\.$"):
        moments_of(logged(store, store.with_name("log"), delay=0.02), progress=cancel)
    monkeypatch.setattr(watch_module, "LOOK_SECONDS", 0.2)
    for act in (cancel_all, forget):
        gate = store.with_name(act.__name__)
        X = bp.open(store).map_blocks(held, gate=gate, dtype="f4", meta=np.empty((0, 0), "f4"))
        with (
            when(lambda: {*map(str, client.futures)} & tasks_on(client).keys(), partial(act, client)),
            pytest.raises(RuntimeError, match=rf"^tasks of this run were cancelled 1 time: {reasons}"),
        ):
            moments_of(X[X[:, 0] > 0])  # whose rows are counted before the first pass
        gate.touch()


@pytest.mark.cluster
def test_a_scheduler_in_the_configuration_beats_a_live_client(client: Client) -> None:
    assert current_client() is client
    for name in ("threads", "sync", "synchronous", "single-threaded"):
        with dask.config.set(scheduler=name):
            assert current_client() is None
    with dask.config.set(scheduler="sync"):
        assert local_threads() == 1
    with dask.config.set(scheduler="threads", num_workers=3):
        assert local_threads() == 3


@pytest.mark.cluster
def test_arrays_in_memory_stay_in_this_process(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("rows in memory were sent to the cluster")

    for name in ("get", "submit", "scatter"):
        monkeypatch.setattr(Client, name, reject)
    assert bp.PCA(3, solver="covariance").fit(normal(N, D)).n_samples_ == N
    assert bp.PCA(3, solver="dot").fit(normal(30, D)).n_samples_ == 30


def fit_inside(path: str) -> tuple[Any, bool]:
    return bits(moments_of(bp.open(path))), current_client() is None


@pytest.mark.cluster
def test_a_fit_inside_a_task_stays_in_its_process_and_has_the_same_bits(store: Path, client: Client) -> None:
    # The groups of the small_groups fixture are this process's: the worker's layout has one group.
    found, inside = client.submit(fit_inside, str(store), pure=False).result(timeout=600)
    assert inside
    assert found[0] == N


def test_the_processes_scheduler_is_not_used_for_a_pass(store: Path) -> None:
    with dask.config.set(scheduler="sync"):
        expected = bits(moments_of(bp.open(store)))
    with dask.config.set(scheduler="processes"):
        assert bits(moments_of(bp.open(store))) == expected


INSIDE: list[list[int]] = []


def note_threads(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    INSIDE.append(blas.current_threads())
    return block


@pytest.mark.usefixtures("two_blas_threads")
@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_blas_threads_are_one_in_a_fold_and_come_back_after_it(scheduler: str, store: Path) -> None:
    before = blas.current_threads()
    X = bp.open(store).rechunk((25, D)).map_blocks(note_threads, dtype="f4", meta=np.empty((0, 0), "f4"))
    INSIDE.clear()
    with dask.config.set(scheduler=scheduler):
        moments_of(X)
        assert INSIDE
        assert all(count == 1 for counts in INSIDE for count in counts)
        assert blas.current_threads() == before
        with pytest.raises(KeyboardInterrupt):
            moments_of(bp.open(store), progress=interrupt_after(3))
    wait_until(lambda: blas.current_threads() == before)


def test_a_cancelled_run_stops_its_tasks_and_no_others() -> None:
    cancel_run("this run")
    with pytest.raises(RunCancelled):
        check_cancelled("this run")
    check_cancelled("another run")


def test_a_chunk_function_that_fits_a_model_itself_does_not_wait_for_its_own_fold() -> None:
    rows = da.from_array(normal(400, 8), chunks=(100, 8))

    def local_scores(block: Any) -> Any:
        return bp.PCA(3).fit_transform(block) if len(block) else np.zeros((0, 3))

    scores = rows.map_blocks(local_scores, chunks=(rows.chunks[0], (3,)), dtype="f8", meta=np.zeros((0, 0)))
    fitted = bp.PCA(2).fit(scores)
    np.testing.assert_allclose(fitted.components_, bp.PCA(2).fit(scores.compute()).components_, atol=1e-12)


def test_a_waiting_solve_goes_before_folds_that_begin_later() -> None:
    order: list[str] = []
    folding, leave = threading.Event(), threading.Event()

    def fold() -> None:
        with one_blas_thread():
            folding.set()
            leave.wait(600)

    def solve() -> None:
        with blas_threads(1):
            order.append("solve")

    def later_fold() -> None:
        with one_blas_thread():
            order.append("fold")

    begun = {fold: folding.is_set, solve: lambda: blas._waiting, later_fold: lambda: len(blas._changed._waiters) > 1}
    threads = [threading.Thread(target=work, daemon=True) for work in begun]
    for thread, begins in zip(threads, begun.values(), strict=True):
        thread.start()
        wait_until(begins)
    leave.set()
    for thread in threads:
        thread.join(600)
    assert order == ["solve", "fold"]


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("setting", ["pool", "scheduler"])
def test_reads_have_the_threads_of_the_given_pool_and_after_an_error_none_begins_a_group(
    setting: str, store: Path
) -> None:
    done, stop = list[Event](), interrupt_after(3)

    def note(event: Event) -> None:
        if isinstance(event, GroupEvent):
            done.append(event)
        stop(event)

    with ThreadPoolExecutor(2) as pool, dask.config.set({setting: pool}):
        assert local_threads() == 2
        with pytest.raises(KeyboardInterrupt):
            moments_of(bp.open(store), progress=note)
    assert 3 <= len(done) <= 4
