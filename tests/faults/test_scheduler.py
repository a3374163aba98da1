"""The scheduler dies at moments that are hard to hit: every one is told as what it is, with the way to resume."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client

import bigpca as bp
from bigpca.engine import local
from bigpca.engine.cluster.run import ClusterRun
from tests.faults.kit import PYTHON, client_of, process, wait_until, worker_command
from tests.passes.kit import bits, moments_of, normal, write_store

GONE_SECONDS = 3  # for how long a client tries to reach a scheduler again
pytestmark = [pytest.mark.usefixtures("small_groups"), pytest.mark.cluster]


@pytest.mark.parametrize("step", ["extend_prefix", "finish_stored"])
def test_a_scheduler_that_dies_with_a_task_that_folds_the_checkpoint_is_named_and_nothing_is_lost(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_store(tmp_path / "x.zarr", normal(1000, 16), (25, 16))
    with dask.config.set(scheduler="sync"):
        expected = bits(moments_of(bp.open(tmp_path / "x.zarr")))
    submit = ClusterRun.submit
    with (
        scheduler_and_client(tmp_path) as (scheduler, client),
        process(worker_command(client.scheduler.address, tmp_path, "--no-nanny")),
    ):

        def kill(run: ClusterRun, what: str, function: Any, *arguments: Any) -> Any:
            future = submit(run, what, function, *arguments)
            if function.__name__ == step:
                scheduler.kill()
                scheduler.wait(60)
            return future

        monkeypatch.setattr(ClusterRun, "submit", kill)
        with pytest.raises(ConnectionError, match=r"the Dask scheduler is lost .*Resume with checkpoint='.*/c'\."):
            moments_of(bp.open(tmp_path / "x.zarr"), checkpoint=tmp_path / "c")
    with dask.config.set(scheduler="sync"):
        assert bits(moments_of(bp.open(tmp_path / "x.zarr"), checkpoint=tmp_path / "c")) == expected


def test_a_plan_and_a_fit_on_a_scheduler_that_has_just_gone_say_what_is_known(tmp_path: Path) -> None:
    """Nothing is known of its workers: the plan is for one thread, and the fit names the loss."""
    write_store(tmp_path / "x.zarr", normal(200, 16), (25, 16))
    with scheduler_and_client(tmp_path) as (scheduler, client):
        scheduler.kill()
        scheduler.wait(60)
        wait_until(lambda: client.status != "running")
        model = bp.PCA(2)
        assert model.plan(bp.open(tmp_path / "x.zarr")).resources.threads == 1
        with pytest.raises(ConnectionError, match="the Dask scheduler is lost"):
            model.fit(bp.open(tmp_path / "x.zarr"))


def test_a_scheduler_that_is_stopped_before_a_plan_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_store(tmp_path / "x.zarr", normal(200, 16), (25, 16))
    monkeypatch.setattr(local, "ANSWER_SECONDS", 3)
    with scheduler_and_client(tmp_path) as (scheduler, _):
        scheduler.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError, match=r"the scheduler tcp://.* did not answer within 3 s: it is stopped"):
                bp.PCA(2).fit(bp.open(tmp_path / "x.zarr"))
        finally:
            scheduler.send_signal(signal.SIGCONT)
        assert bp.PCA(2).plan(bp.open(tmp_path / "x.zarr")).resources.threads == 1


@contextmanager
def scheduler_and_client(folder: Path) -> Iterator[tuple[Any, Client]]:
    file = folder / "scheduler.json"
    command = [*PYTHON, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    with process([*command, "--no-dashboard", "--scheduler-file", str(file)]) as scheduler:
        wait_until(lambda: file.exists() and file.stat().st_size > 0)
        with client_of(file, GONE_SECONDS) as client:
            yield scheduler, client
