"""Slow workers, and workers whose memory is limited from outside Dask."""

import os
import resource
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster, WorkerPlugin

import bigpca as bp
from bigpca.data.dask_arrays import open_source
from bigpca.data.zarr_arrays import ZarrReader, ZarrRows
from bigpca.engine.cluster.run import ClusterRun
from tests.engine.conftest import on_cluster
from tests.faults.kit import memory_group, process, worker_command, worker_inside
from tests.passes.kit import bits, logged, moments_of

N, D = 2000, 24
pytestmark = [pytest.mark.usefixtures("small_groups"), pytest.mark.cluster]


class Straggler(WorkerPlugin):
    """Makes one worker begin a task only once others have read five times since, or nothing for a while."""

    def __init__(self, name: int, log: Path) -> None:
        self.straggler, self.log = name, log

    def setup(self, worker: Any) -> None:
        self.slow = worker.name == self.straggler

    def transition(self, key: Any, start: str, finish: str, **options: Any) -> None:
        if self.slow and finish == "executing" and str(key).startswith("bigpca-moments"):
            first = last = len(os.listdir(self.log))
            since = time.monotonic()
            while last < first + 5 and time.monotonic() < since + 0.3:
                time.sleep(0.01)
                if (now := len(os.listdir(self.log))) > last:
                    last, since = now, time.monotonic()


def test_a_straggler_gets_few_groups_and_changes_no_bit(store: Path, tmp_path: Path) -> None:
    with dask.config.set(scheduler="sync"):
        expected = bits(moments_of(bp.open(store)))
    with on_cluster(2) as client:
        client.wait_for_workers(2, timeout=600)
        X = logged(store, tmp_path / "log")
        client.register_plugin(Straggler(0, tmp_path / "log"))
        pids = client.run(lambda dask_worker: (dask_worker.name, os.getpid()))
        assert bits(moments_of(X)) == expected
    reads = Counter(int(name.split("-")[2]) for name in os.listdir(tmp_path / "log"))
    slow = dict(pids.values())[0]
    assert reads.total() >= 80
    assert reads[slow] <= reads.total() // 3  # of two, with the segments that were on their way


@dataclass(frozen=True)
class HungryRows(ZarrRows):
    """Rows that take a lot of memory while they are read, from row ``first`` on."""

    first: int = 1000
    size: int = 700 << 20

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Any:
        eaten = np.ones(self.size if start >= self.first else 1, np.uint8)
        return super().read_block(start, stop, columns)[: len(eaten) and None]


def test_a_group_whose_worker_the_system_kills_for_memory_is_named_with_the_numbers(
    store: Path, tmp_path: Path
) -> None:
    X = open_source(HungryRows.of(ZarrReader(store)))
    with (
        memory_group(600 << 20) as group,
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", silence_logs=50, host="127.0.0.1") as cluster,
        process(worker_command(cluster.scheduler_address, tmp_path, *worker_inside(group, tmp_path))),
        Client(cluster, set_as_default=False) as client,
        client.as_current(),
    ):
        client.wait_for_workers(1, timeout=600)
        said = (
            r"workers died 1 times? while they read rows 1\d\d\d:1\d\d\d of .*x\.zarr .*planned .* had 2\.0 "
            r"GiB\).*more memory"
        )
        with pytest.raises(RuntimeError, match=said):
            moments_of(X, workers_timeout=300)
        moments_of(bp.open(store), workers_timeout=600)  # the worker that took its place works


def test_memory_that_a_worker_may_not_have_is_a_memory_error_at_once(store: Path) -> None:
    X = open_source(HungryRows.of(ZarrReader(store), size=1 << 42))
    with on_cluster(1) as client:
        client.run(limit_address_space)
        with pytest.raises(MemoryError, match=r"Unable to allocate 4\.00 TiB"):
            moments_of(X)
        moments_of(bp.open(store))


def limit_address_space() -> None:
    """What ``ulimit -v`` does."""
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))


def test_a_last_worker_that_dies_with_a_finished_state_is_an_error_after_the_timeout_and_no_endless_wait(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = ClusterRun.accept
    with (
        LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", silence_logs=50, host="127.0.0.1") as cluster,
        process(worker_command(cluster.scheduler_address, tmp_path, "--no-nanny")) as worker,
        Client(cluster, set_as_default=False) as client,
        client.as_current(),
    ):
        client.wait_for_workers(1, timeout=600)

        def kill_first(run: ClusterRun, future: Any) -> None:
            worker.kill()
            worker.wait(60)
            accept(run, future)

        monkeypatch.setattr(ClusterRun, "accept", kill_first)
        with pytest.raises(TimeoutError, match=r"no worker on .* for 2 s \(workers_timeout\).*Start workers"):
            moments_of(bp.open(store), workers_timeout=2)
