"""Graphs stay small, and raw chunks are never a task's result."""

import pickle
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from dask.sizeof import sizeof
from dask.task_spec import Task
from distributed import Client, Scheduler, Worker

import bigpca as bp
from bigpca.data.dask_arrays import open_source
from bigpca.data.zarr_arrays import ZarrReader
from bigpca.engine import layout
from bigpca.engine.checkpoint import Resumed
from bigpca.engine.cluster import run as cluster_module
from bigpca.engine.events import Event, PassEvent
from bigpca.engine.jobs import Pass, PassState, fold_group, merge_states
from bigpca.engine.local import run_locally
from bigpca.engine.planning import PassCost
from bigpca.engine.run import Run
from bigpca.passes import sweeps
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.accumulators.thin_products import LeftProduct
from bigpca.passes.fold import Read
from bigpca.passes.reading.readers import GraphReader
from bigpca.passes.rows import Rows
from tests.faults.kit import when
from tests.passes.kit import LoggedRows, bits, moments_of, normal, write_store

TINY = 100_000


@pytest.fixture(scope="module")
def many_chunks(tmp_path_factory: pytest.TempPathFactory) -> da.Array:
    """100,000 chunks of 8 rows of 64 columns that nobody writes: graphs of it are cut, never run."""
    path = tmp_path_factory.mktemp("many") / "x.zarr"
    z = zarr.create_array(path, shape=(8 * TINY, 64), chunks=(8, 64), dtype="f4")
    return da.from_zarr(z)


def test_a_store_of_100000_chunks_makes_at_most_2000_tasks(many_chunks: da.Array) -> None:
    layout = Rows.of(many_chunks).layout(Moments(64).state_bytes)
    groups, segments = len(layout.groups), len(layout.segments)
    assert 2 * groups + 3 * segments <= 2000
    assert bp.PCA(4, solver="covariance").plan(many_chunks).tasks <= 2000


def test_the_first_group_of_a_general_array_materialises_its_own_nodes_only(many_chunks: da.Array) -> None:
    rows = Rows.of(many_chunks[: 8 * 4000] * 2 + 1)
    layout = rows.layout(Moments(64).state_bytes)
    start, stop = layout.rows_of(0)
    reader, futures = rows.reader(start, stop)
    assert not futures
    chunks = (stop - start) // 8
    assert isinstance(reader, GraphReader)
    assert len(cloudpickle.loads(reader.blob)) <= 5 * chunks + 5


@pytest.mark.cluster
@pytest.mark.usefixtures("small_groups")
def test_no_task_of_a_segment_is_hashed_to_name_the_graph(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask's own name of a graph took four fifths of the client's time for a group."""

    def reject(task: Task) -> None:
        raise AssertionError(f"{task.key} was hashed")

    X = da.from_zarr(write_store(tmp_path / "x.zarr", normal(2000, 8), (25, 8)))
    monkeypatch.setattr(Task, "__dask_tokenize__", reject)
    for graph in submitted(client, X, monkeypatch):
        assert type(pickle.loads(pickle.dumps(graph))) is dict  # what the scheduler gets


def submitted(client: Client, X: da.Array, monkeypatch: pytest.MonkeyPatch) -> list[dict[Any, Any]]:
    graphs: list[dict[Any, Any]] = []
    get = Client.get

    def look(self: Client, graph: dict[Any, Any], keys: list[Any], **options: Any) -> Any:
        graphs.append(graph)
        return get(self, graph, keys, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "get", look)
        moments_of(X)
    assert graphs
    return graphs


@pytest.mark.cluster
@pytest.mark.usefixtures("small_groups")
def test_what_is_sent_to_a_cluster_is_folds_and_merges_and_no_task_returns_rows(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = da.from_zarr(write_store(tmp_path / "x.zarr", normal(2000, 8), (5, 8)))
    for graph in submitted(client, X, monkeypatch) + submitted(client, X.rechunk((20, 8)) + 1, monkeypatch):
        for key, task in graph.items():
            assert str(key).startswith("bigpca-moments-")
            assert type(task) is Task
            assert task.func in (fold_group, merge_states)


@pytest.mark.cluster
@pytest.mark.usefixtures("small_groups")
def test_persisted_chunks_reach_their_tasks_as_inputs_and_not_through_the_client(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = da.from_zarr(write_store(tmp_path / "x.zarr", normal(2000, 8), (50, 8))).persist()
    graphs = submitted(client, X * 2, monkeypatch)
    inputs = {str(k) for graph in graphs for task in graph.values() for k in task.dependencies}
    assert sum("from-zarr" in k for k in inputs) == 40


@dataclass(frozen=True)
class SlowStart(LoggedRows):
    """Rows whose first group takes a second, and until ``gate`` exists, if that is given."""

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Any:
        time.sleep(1.0 if start == 0 else 0.0)
        return (replace(self, gate="") if self.gate and start else super()).read_block(start, stop, columns)


@pytest.mark.cluster
@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize(("waiting_bytes", "ahead"), [(64 << 20, 4), (0, 2)], ids=["small states", "large states"])
def test_few_segments_are_on_their_way_at_a_time(
    waiting_bytes: int, ahead: int, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first group is slow, and others run ahead of it as far as they may; their states wait where there is room."""
    monkeypatch.setattr("bigpca.engine.cluster.run.WAITING_BYTES", waiting_bytes)
    most = here = 0
    submit = cluster_module.ClusterRun.submit_segment

    def count(run: Any, index: int) -> None:
        nonlocal most, here
        submit(run, index)
        most = max(most, len(run.segments) + len(run.ready))
        here = max(here, len(run.ready))

    monkeypatch.setattr(cluster_module.ClusterRun, "submit_segment", count)
    write_store(tmp_path / "x.zarr", normal(4000, 8), (10, 8))
    (tmp_path / "log").mkdir()
    gate = tmp_path / "gate"
    X = open_source(SlowStart.of(ZarrReader(tmp_path / "x.zarr"), str(tmp_path / "log"), gate=str(gate)))
    with when(lambda: ahead < most and bool(here) == bool(waiting_bytes), gate.touch):
        found = moments_of(X)
    assert ahead < most <= 2 * ahead + 1  # of two threads
    assert bool(here) == bool(waiting_bytes)
    with dask.config.set(scheduler="sync"):
        assert bits(found) == bits(moments_of(bp.open(tmp_path / "x.zarr")))


@pytest.mark.cluster
@pytest.mark.usefixtures("small_groups")
def test_the_next_segment_is_there_while_one_is_merged_and_its_groups_come_after(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four groups a segment on two threads; Dask gives graphs of the same minute one priority, unless told."""
    monkeypatch.setattr("bigpca.engine.layout.MAX_SEGMENTS", 20)
    submit = cluster_module.ClusterRun.submit_segment
    flying: list[int] = []
    seen: dict[int, set[Any]] = {}  # of each segment, the priorities of its groups

    def look(run: Any, index: int) -> None:
        flying.append(len(run.segments))
        submit(run, index)
        known = client.run_on_scheduler(priorities_of, run.job.prefix)
        for segment, groups in enumerate(run.job.layout.segments):
            found = {known[key][:2] for key in (f"{run.job.prefix}-{group}" for group in groups) if key in known}
            seen.setdefault(segment, set()).update(found)

    monkeypatch.setattr(cluster_module.ClusterRun, "submit_segment", look)
    write_store(tmp_path / "x.zarr", normal(4000, 8), (10, 8))
    (tmp_path / "log").mkdir()
    moments_of(open_source(SlowStart.of(ZarrReader(tmp_path / "x.zarr"), str(tmp_path / "log"))))
    assert flying[:2] == [0, 1]
    known = [of_segment for of_segment in seen.values() if of_segment]  # of groups that were there as it was asked
    assert len(known) >= 2
    assert all(max(a) < min(b) for a, b in pairwise(known))


def priorities_of(prefix: str, dask_scheduler: Any) -> dict[str, Any]:
    """On the scheduler, return the priorities of the tasks of a pass: by user, then by graph, then in the graph."""
    return {key: task.priority for key, task in dask_scheduler.tasks.items() if str(key).startswith(prefix)}


@pytest.mark.cluster
@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_the_client_holds_does_not_grow_with_the_number_of_groups(
    checkpoint: bool, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups in flight, tasks, states that wait for a slow first group, copies of what groups share, and futures."""
    monkeypatch.setattr("bigpca.engine.layout.MIN_GROUP_BYTES", 1)
    most, accept = Counter[str](), cluster_module.ClusterRun.accept

    def count(run: Any, future: Any) -> None:
        held = {
            "groups": sum(len(run.job.layout.segments[index]) for index in run.segments),
            "tasks": len(run.flights) + run.events.qsize(),
            "states": len(run.ready),
            "copies": 0 if run.copies is None else len(run.copies._made),
            "futures": len(client.futures),
        }
        for name, value in held.items():
            most[name] = max(most[name], value)
        accept(run, future)

    monkeypatch.setattr(cluster_module.ClusterRun, "accept", count)
    monkeypatch.setattr("bigpca.engine.layout.MIN_GROUPS", 400)
    store, log, events = tmp_path / "x.zarr", tmp_path / "log", list[Event]()
    write_store(store, normal(40_000, 4), (100, 4))
    log.mkdir()
    X = open_source(SlowStart.of(ZarrReader(store), str(log)))
    options = {"checkpoint": tmp_path / "c"} if checkpoint else {}
    bp.PCA(2, solver="krylov", random_state=0).fit(X, progress=events.append, **options)
    assert max(event.groups_total for event in events if isinstance(event, PassEvent)) == 400
    assert 0 < most["copies"] <= 2
    assert most["groups"] < 4 + 2 * 8  # twice the threads, a segment, and that which goes beyond
    assert most["states"] <= 9
    assert max(most["tasks"], most["futures"]) <= 12


class SlowFirst:
    """Stands for the group tasks of a pass whose first group is slow."""

    def __init__(self, group: int, live: list[int], most: list[int]) -> None:
        self.group, self.live, self.most = group, live, most

    def run(self, run_id: str, inputs: Any) -> PassState:
        time.sleep(0.5 if self.group == 0 else 0.001)
        self.live.append(self.group)
        self.most[0] = max(self.most[0], len(self.live))
        state: Any = Moments(2).fresh(0, 1)
        return PassState({"moments": state}, 1, 0, {self.group: ""})


@pytest.mark.usefixtures("small_groups")
def test_a_slow_first_group_does_not_let_all_other_states_pile_up_in_memory() -> None:
    rows = Rows.of(bp.open(normal(4000, 24)).rechunk((25, 24)))
    layout = rows.layout(0)
    live: list[int] = []
    most = [0]
    done_before_first: list[int] = []

    def cut(group: int) -> Any:
        if 0 not in live:
            done_before_first.append(group)
        return SlowFirst(group, live, most), {}

    cost = PassCost(name="moments", layout=layout, dtype=np.dtype("f8"))
    job = Pass(
        cost=cost, templates={"moments": Moments(2)}, cut=cut, stamp=lambda g: "", finish=lambda state: state.rows,
        unit_bytes=rows.origin.row_bytes, whole=rows.n_rows,
    )  # fmt: skip
    with dask.config.set(scheduler="threads", num_workers=2):
        assert run_locally(job, Run(), Resumed()) == len(layout.groups)
    assert len(done_before_first) <= 12


def test_groups_carry_their_own_rows_of_a_thin_factor_only() -> None:
    V = np.zeros((4000, 2))
    rows, template = Rows.of(bp.open(normal(4000, 24))), LeftProduct(24, V)
    read = Read.into(rows, "product", template, cut_bytes=0, work=0.0)
    task: Any = read.to(str).job(Run()).cut(0)[0]
    start, stop = read.cost.layout.rows_of(0)
    assert task.templates["state"].V.shape == (stop - start, 2)


def test_bits_do_not_depend_on_the_size_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = bp.open(write_store(tmp_path / "x.zarr", normal(500, 8), (50, 8)))
    found = bits(moments_of(X))
    monkeypatch.setattr("bigpca.engine.local.CPU_COUNT", 64)
    assert bits(moments_of(X)) == found


# What travels between workers: states on their way up the tree of merges, and once what all groups share; never rows


N, D = 2_000, 64
RECORD = 256  # bytes of counts and sums beside the arrays of a state
CUTS = (  # about 24 groups in 3 segments: trees of 8
    (layout, "MIN_GROUP_BYTES", 256), (layout, "MIN_GROUPS", 24), (layout, "MAX_SEGMENTS", 3),
    (sweeps, "MIN_TILE", 64), (sweeps, "MAX_SEGMENTS", 3),
)  # fmt: skip
Fit = Callable[[da.Array, Path, Any], Any]


def project(X: da.Array, place: Path, progress: Any) -> None:
    bp.PCA(4, solver="covariance").fit(X).transform(X, out=place / "scores.zarr", progress=progress)


def landmarks(X: da.Array, place: Path, progress: Any) -> None:
    bp.NystromKernelPCA(4, kernel="rbf", gamma=0.01, n_landmarks=40).fit(X, progress=progress)


def sweep(X: da.Array, place: Path, progress: Any) -> None:
    sketch = bp.sketches.Gaussian(8)
    bp.ApproximateKernelPCA(4, kernel="rbf", gamma=0.01, sketch=sketch).fit(X, progress=progress)


def discriminant(X: da.Array, place: Path, progress: Any) -> None:
    bp.FisherDiscriminantAnalysis(2).fit(X, np.arange(N) % 5, progress=progress)


WHOLE = 8 * (D * D + D)  # bytes of a scatter and a mean
# what runs, chunks of the store, and bytes of one state of each of its passes
CASES: dict[str, tuple[Fit, tuple[int, int], dict[str, int]]] = {
    "rows": (lambda X, place, p: bp.PCA(4, solver="covariance").fit(X, progress=p), (80, D), {"moments": WHOLE}),
    "products": (
        lambda X, place, p: bp.PCA(4, solver="krylov").fit(X, progress=p), (80, D),
        {"sample": 8 * D * N // 10, "product": 8 * D * (14 + 10 + 4)},
    ),
    "sketch": (
        lambda X, place, p: bp.ApproximatePCA(4, sketch=bp.sketches.Gaussian(16)).fit(X, progress=p), (80, D),
        {"sketch": 8 * D * (16 + 10 + 4)},
    ),
    "labels": (discriminant, (80, D), {"sums": WHOLE + 8 * (5 * D + 5)}),
    "pairs": (
        lambda X, place, p: bp.PCA(4, solver="dot").fit(X, progress=p), (80, D),
        {"dot": 8 * N * N, "components": 8 * 6 * (D + 14)},
    ),
    "columns": (
        lambda X, place, p: bp.PCA(4, solver="dot").fit(X, progress=p), (N, 4),
        {"dot": 8 * N * N + 16 * D, "components": 8 * 6 * D},
    ),
    "kernel pairs": (sweep, (80, D), {"kernel": 8 * N * (8 + 12)}),
    "landmarks": (landmarks, (80, D), {"landmarks": 10 * 8 * 40 * D, "features": WHOLE}),
    "projection": (project, (80, D), {"scores": 0}),
}  # fmt: skip


def take_moves(dask_worker: Worker) -> list[tuple[str, int]]:
    """Empty a worker's log of what it took from others: (key, bytes)."""
    moved = [(str(key), int(size)) for log in dask_worker.transfer_incoming_log for key, size in log["keys"].items()]
    dask_worker.transfer_incoming_log.clear()
    return moved


def count_steals(dask_scheduler: Scheduler) -> int:
    """How often the scheduler asked for a task to go to another worker."""
    return int(dask_scheduler.extensions["stealing"].count)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
@pytest.mark.parametrize("kind", CASES)
def test_each_group_costs_two_moved_states_at_most_and_no_rows(
    kind: str, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, chunks, states = CASES[kind]
    for module, name, value in CUTS:
        monkeypatch.setattr(module, name, value)
    X = bp.open(write_store(tmp_path / "x.zarr", normal(N, D), chunks))
    events: list[Event] = []
    client.run(take_moves)
    steals = client.run_on_scheduler(count_steals)
    fit(X, tmp_path, events.append)
    moved = [move for moves in client.run(take_moves).values() for move in moves]
    groups = Counter(dict.fromkeys(states, 0))
    for event in events:
        if isinstance(event, PassEvent):
            groups[event.name] += event.groups_total
    assert groups.keys() == states.keys()
    for name, state_bytes in states.items():
        sizes = [size for key, size in moved if key.startswith(f"bigpca-{name}-") and "-shared-" not in key]
        assert len(sizes) <= 2 * groups[name]
        assert sum(sizes) <= (state_bytes + RECORD) * len(sizes)
    shared = [key for key, _ in moved if "-shared-" in key]
    steals = client.run_on_scheduler(count_steals) - steals
    # To the worker that copies it; again for groups that Dask sends there while it holds the original, and stolen ones.
    assert len(shared) <= 2 * len(set(shared)) + steals
    assert len(shared) < sum(groups.values())


def test_a_state_weighs_its_arrays(tmp_path: Path) -> None:
    X = bp.open(write_store(tmp_path / "x.zarr", normal(100, D), (100, D)))
    state = PassState({"moments": moments_of(X)}, 100, 0, {})
    assert WHOLE <= sizeof(state) <= WHOLE + RECORD
