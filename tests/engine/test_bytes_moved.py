"""What travels between workers: states on their way up the tree of merges, and once what all groups share; never
rows.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.sizeof import sizeof
from distributed import Client, Scheduler, Worker

import bigpca as bp
from bigpca.engine import layout
from bigpca.engine.events import Event, PassEvent
from bigpca.engine.jobs import PassState
from bigpca.passes import sweeps
from tests.passes.kit import moments_of, normal, write_store

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
    "labels": (discriminant, (80, D), {"labels": WHOLE + 8 * (5 * D + 5)}),
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
