"""What groups share is on every worker, and groups are spread over all of them."""

import os
import signal
import time
import warnings
from collections import Counter
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait
from numpy.typing import NDArray

import bigpca as bp
from bigpca.engine.cluster.run import SharedCopies, unpin
from tests.engine.conftest import on_cluster
from tests.faults.kit import wait_until
from tests.passes.kit import wait_for_none

Array = NDArray[Any]


class Copy:
    """Stands for a future, where no cluster is needed."""

    def __init__(self, key: str, source: Any, worker: str) -> None:
        self.key, self.source, self.worker, self.status = key, source, worker, "finished"


class Submitted:
    """Stands for a client that only takes note."""

    def __init__(self) -> None:
        self.copies: list[Copy] = []

    def submit(self, function: Any, source: Any, *, key: str, workers: list[str], **options: Any) -> Copy:
        assert not options.get("allow_other_workers")  # which Dask also takes from those that they are pinned to
        self.copies.append(Copy(key, source, workers[0]))
        return self.copies[-1]


def copies_of(workers: int) -> tuple[SharedCopies, dict[str, int], Submitted]:
    client = Submitted()
    return SharedCopies(client, {"a": 1}, "name"), {f"w{i}": 1 for i in range(workers)}, client


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 64, 200])
@pytest.mark.parametrize("count", [1, 3, 16, 64])
def test_groups_are_spread_evenly_and_neighbours_stay_together(workers: int, count: int) -> None:
    """Over so many segments that every worker has its turn, loads differ by less than a segment's share and one."""
    copies, live, _ = copies_of(workers)
    load: Counter[str] = Counter()
    for _ in range(4 * workers):
        taken = [copy.worker for copy in copies.take(count, live)]
        load.update(taken)
        changes = sum(a != b for a, b in pairwise(taken))
        assert changes <= min(workers, count) - 1
    assert len(load) == workers
    assert max(load.values()) - min(load.values()) <= -(-count // workers) + 1


def test_copies_pass_from_worker_to_worker_as_a_tree_and_only_the_first_comes_from_the_client() -> None:
    copies, live, client = copies_of(100)
    copies.take(3, live)
    assert len(client.copies) == 2 * 3  # for the workers that have a group
    copies.take(200, live)
    assert len({copy.key for copy in client.copies}) == len(client.copies) == 2 * 100
    assert client.copies[0].source == {"a": 1}
    served = Counter(copy.source.key for copy in client.copies[1:])
    assert max(served.values()) == 3  # two others, and the copy of its own worker, which nothing is made of
    assert all(copy.source.worker == copy.worker and copy.key not in served for copy in copies.copies.values())


def test_workers_with_more_threads_take_more_and_those_that_left_none() -> None:
    copies, _, _ = copies_of(0)
    taken = Counter(copy.worker for copy in copies.take(12, {"big": 3, "small": 1}))
    assert taken == {"big": 9, "small": 3}
    assert {copy.worker for copy in copies.take(12, {"small": 1, "new": 1})} == {"small", "new"}
    assert copies.take(2, {})[0].worker == "new"  # nobody is there just now: Dask waits for somebody


def test_a_group_goes_to_the_thread_with_the_fewest_groups_in_flight() -> None:
    """In turn, half of the last groups waited behind those of a slow worker while another had none."""
    copies, _, _ = copies_of(0)
    live, flying, taken = {"fast": 1, "slow": 1, "wide": 2}, list[str](), Counter[str]()
    for _ in range(20):
        (copy,) = copies.take(1, live, flying)
        taken[copy.worker] += 1
        if copy.worker == "slow":  # it finishes none
            flying.append(copy.key)
    assert taken["slow"] == 1
    assert 3 < taken["fast"] < taken["wide"]
    keys = {worker: copy.key for worker, copy in copies.copies.items()}
    assert [copy.worker for copy in copies.take(3, live, [keys["wide"], keys["slow"], keys["slow"]])].count("slow") == 0
    assert {copy.worker for copy in copies.take(2, live, [keys["fast"], keys["slow"]])} == {"wide"}


def test_a_copy_over_which_workers_died_is_made_again_under_another_name() -> None:
    copies, live, client = copies_of(3)
    before = {copy.key for copy in copies.take(3, live)}
    copies.renew()
    assert not {copy.key for copy in copies.take(3, live)} & before
    assert client.copies[6].source == {"a": 1}  # not from those that are blamed


@pytest.mark.cluster
@pytest.mark.parametrize("anywhere", [True, False])
def test_copies_whose_workers_all_died_are_made_again_by_new_ones(anywhere: bool) -> None:
    """Dask alone leaves a pinned task that was due without a worker waiting for ever."""
    with on_cluster(2) as client:
        copies = SharedCopies(client, {"a": 1}, "shared")
        workers = client.nthreads()
        results = [client.submit(len, copy, pure=False) for copy in copies.take(2, workers)]
        wait(results)
        for process in client.run(os.getpid, nanny=False).values():
            os.kill(process, signal.SIGKILL)
        client.sync(client.scheduler.ncores)

        def replaced() -> bool:
            copies.forget(client.nthreads())
            return len(client.nthreads()) == 2 and not client.nthreads().keys() & workers.keys()

        def computed() -> bool:  # as a run does, which looks again
            client.run_on_scheduler(unpin, "shared", [] if anywhere else [*client.nthreads()])
            return all(future.done() for future in results)

        wait_until(replaced)
        wait_until(computed)
        assert [future.result(timeout=600) for future in results] == [1, 1]
        assert {copy.result(timeout=600)["a"] for copy in copies.take(4, client.nthreads())} == {1}


@pytest.mark.cluster
def test_copies_stay_where_they_are_while_dask_drops_replicas_of_what_is_scattered(client: Client) -> None:
    """Every two seconds it leaves one replica of each value."""
    workers = client.nthreads()
    copies = SharedCopies(client, {"a": 1}, "kept").take(sum(workers.values()), workers)
    scattered = client.scatter(7, broadcast=True)
    wait(copies)
    assert len(client.who_has([scattered])[scattered.key]) == len(workers)
    client.amm.run_once()
    wait_until(lambda: len(client.who_has([scattered])[scattered.key]) == 1)
    held = client.who_has(copies)
    assert {held[copy.key] for copy in copies} == {(worker,) for worker in workers}


@pytest.mark.cluster
@pytest.mark.usefixtures("small_groups")
def test_every_worker_folds_its_share_of_a_pass_whose_groups_share_something() -> None:
    """With one copy, the worker that held it took nearly all; groups of a millisecond would be
    stolen back and forth.
    """
    X = da.random.default_rng(0).standard_normal((64 * 40, 300), chunks=(40, 300)).map_blocks(slow, dtype="f8")
    model = bp.PCA(3, solver="krylov", tol=0.5, max_passes=2)
    with on_cluster(3) as client:
        wait(client.map(int, range(3)))
        before = executed(client)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bp.errors.ApproximationWarning)
            model.fit(X)
        after = executed(client)
        wait_for_none(client.who_has)  # futures that are released go a moment later: no copy stays behind
    ran = np.array([after[worker] - before[worker] for worker in after])
    assert ran.min() >= ran.mean() / 2


def slow(block: Any) -> Any:
    """Return the block after a twentieth of a second."""
    time.sleep(0.05)
    return block


def executed(client: Client) -> dict[str, int]:
    found: dict[str, int] = client.run(lambda dask_worker: dask_worker.state.executed_count)
    return found
