"""Networks that break, are slow or are late change no bit: real namespaces, rate limits and a relay."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

import bigpca as bp
from bigpca.engine.events import Event, GroupEvent
from tests.faults.kit import Link, SlowRelay, linked_namespace, process, when, worker_command
from tests.passes.kit import bits, logged, moments_of, rows_read

N, D = 1000, 24
pytestmark = [pytest.mark.usefixtures("small_groups"), pytest.mark.cluster]
FORGET = {"distributed.scheduler.worker-ttl": "3s"}  # a worker that says nothing for so long is given up


@pytest.fixture
def expected(store: Path, small_groups: None) -> tuple[Any, ...]:
    with dask.config.set(scheduler="sync"):
        return bits(moments_of(bp.open(store)))


def scheduler_at(host: str) -> LocalCluster:
    """Start a scheduler without workers that listens at an address."""
    return LocalCluster(n_workers=0, host=host, dashboard_address="127.0.0.1:0", silence_logs=50, protocol="tcp://")


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Link, Client]]:
    """A client of one worker, and a link behind which others may be started; with short limits."""
    with (
        linked_namespace() as link,
        dask.config.set(FORGET),
        scheduler_at(link.here) as cluster,
        Client(cluster, set_as_default=False) as client,
        process(worker_command(cluster.scheduler_address, tmp_path_factory.mktemp("near"), "--no-nanny")),
    ):
        client.wait_for_workers(1, timeout=600)
        yield link, client


@contextmanager
def far_worker(link: Link, client: Client, folder: Path, *options: str) -> Iterator[str]:
    """Start a second worker, behind the link; yields its address."""
    with process(link.inside(worker_command(client.scheduler.address, folder, *options))):
        client.wait_for_workers(2, timeout=600)
        yield next(who for who in client.scheduler_info()["workers"] if link.there in who)


@pytest.mark.parametrize("nanny", ["--no-nanny", "--nanny"])
def test_a_link_that_is_down_for_a_while_changes_no_bit_and_counts_no_row_twice(
    nanny: str, link: tuple[Link, Client], store: Path, expected: Any, tmp_path: Path
) -> None:
    wire, client = link
    events: list[Event] = []
    down, back = list[float](), threading.Event()

    def given_up() -> Any:
        """Whether the scheduler has given the worker up; it first tries for long to reach a nanny."""
        if nanny == "--nanny":
            return down and time.monotonic() > down[0] + 6
        return down and client.run_on_scheduler(lambda dask_scheduler: far not in dask_scheduler.workers)

    def come_back() -> None:
        wire.set("up")
        back.set()

    def cut(event: Event) -> None:
        events.append(event)
        groups = sum(isinstance(e, GroupEvent) for e in events)
        if groups == 5 and isinstance(event, GroupEvent):
            wire.set("down")
            down.append(time.monotonic())
        if groups == 25 and isinstance(event, GroupEvent):
            assert back.wait(600)  # the run is not over when the worker comes back

    with client.as_current(), far_worker(wire, client, tmp_path, nanny) as far, when(given_up, come_back):
        X = logged(store, tmp_path / "log", delay=0.05)
        assert bits(moments_of(X, progress=cut)) == expected
    assert rows_read(events) == N


def test_a_link_of_a_few_megabits_changes_no_bit(
    link: tuple[Link, Client], store: Path, expected: Any, tmp_path: Path
) -> None:
    wire, client = link
    wire.limit_rate("2mbit")
    with client.as_current(), far_worker(wire, client, tmp_path):
        assert bits(moments_of(bp.open(store))) == expected


def test_a_network_of_long_delays_changes_no_bit(store: Path, expected: Any, tmp_path: Path) -> None:
    with (
        scheduler_at("127.0.0.1") as cluster,
        SlowRelay(cluster.scheduler_address, 0.02) as relay,
        process(worker_command(relay.address, tmp_path)),
        Client(relay.address, set_as_default=False, timeout=600) as client,
        client.as_current(),
    ):
        client.wait_for_workers(1, timeout=600)
        assert bits(moments_of(bp.open(store))) == expected
        assert relay.passed > 100
