"""The same store gives the same model, to the last bit, on every scheduler and whoever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client

import bigpca as bp
from bigpca import PCA, ApproximatePCA
from bigpca.passes.engine.events import Event, GroupEvent, PassEvent, RetryEvent
from bigpca.passes.reading import layout
from tests.builders import data_with_spectrum, power_law
from tests.passes.conftest import start_cluster
from tests.passes.kit import logged, reads_in, write_store

N, D, CHUNK = 1000, 24, 25  # 40 chunks in 40 groups
pytestmark = [pytest.mark.cluster]
Bits = tuple[bytes, ...]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small data as if it were large."""
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 256)
    monkeypatch.setattr(layout, "MIN_GROUPS", 40)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bits") / "x.zarr"
    write_store(path, data_with_spectrum(N, power_law(D), mean=10.0, dtype="f4")[0], (CHUNK, D))
    return path


def models() -> dict[str, Any]:
    return {
        "krylov": PCA(3, solver="krylov", solve_threads=1),
        "krylov scale": PCA(3, solver="krylov", scale=True, solve_threads=1),
        "nystrom": ApproximatePCA(3, bp.sketches.Gaussian(12), solve_threads=1),
        "ritz": ApproximatePCA(3, bp.sketches.SparseSign(12), core="ritz", solve_threads=1),
    }


def bits(model: Any) -> Bits:
    """Everything that a model says, to the last bit."""
    names = ("components_", "explained_variance_", "mean_", "eigenvalue_bounds_", "residuals_")
    return (*(getattr(model, name).tobytes() for name in names), repr(model.total_variance_).encode())


def all_bits(X: Any) -> list[Bits]:
    return [bits(model.fit(X)) for model in models().values()]


@pytest.fixture
def expected(store: Path, small_groups: None) -> list[Bits]:
    with dask.config.set(scheduler="sync"):
        return all_bits(bp.open(store))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_threads_give_the_bits_of_one_thread(workers: int, store: Path, expected: list[Bits]) -> None:
    with dask.config.set(scheduler="threads", num_workers=workers):
        assert all_bits(bp.open(store)) == expected


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_give_the_bits_of_one_thread(
    workers: int, store: Path, expected: list[Bits], tmp_path: Path
) -> None:
    with start_cluster(workers) as cluster, Client(cluster, set_as_default=False) as client, client.as_current():
        X = bp.open(store)
        assert bits(models()["krylov scale"].fit(X)) == expected[1]
        assert bits(models()["ritz"].fit(X)) == expected[3]
        assert bits(models()["krylov"].fit(X, checkpoint=tmp_path / "c")) == expected[0]
        assert client.status == "running"
        client.sync(client.scheduler.identity)  # the same scheduler still answers


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_a_worker_that_dies_with_the_shared_factor_changes_no_bit(
    with_checkpoint: bool, store: Path, expected: list[Bits], tmp_path: Path
) -> None:
    seen: list[Event] = []
    killed: list[int] = []
    with start_cluster(2) as cluster, Client(cluster, set_as_default=False) as client, client.as_current():
        pids = client.run(os.getpid)

        def kill_holder(event: Event) -> None:
            seen.append(event)
            products = sum(isinstance(e, PassEvent) and e.name == "product" for e in seen)
            if products == 2 and isinstance(event, GroupEvent) and not killed:
                held = {key: who for key, who in client.who_has().items() if "-shared-" in str(key) and who}
                if held:
                    killed.append(pids[next(iter(held.values()))[0]])
                    os.kill(killed[0], signal.SIGKILL)

        X = logged(store, tmp_path / "log", delay=0.01)
        checkpoint = tmp_path / "c" if with_checkpoint else None
        found = models()["krylov"].fit(X, checkpoint=checkpoint, progress=kill_holder)
    assert killed
    assert sum(isinstance(event, RetryEvent) for event in seen) >= 1
    assert bits(found) == expected[0]


CHILD = """
import sys
from pathlib import Path
import dask
from bigpca import PCA
from bigpca.passes.reading import layout
from tests.passes.kit import logged

def show(event):
    print(type(event).__name__, getattr(event, "name", ""), flush=True)

layout.MIN_GROUP_BYTES, layout.MIN_GROUPS = 256, 40
with dask.config.set(scheduler="threads", num_workers=2):
    X = logged(Path(sys.argv[1]), Path(sys.argv[2]), delay=0.01)
    PCA(3, solver="krylov", solve_threads=1).fit(X, checkpoint=Path(sys.argv[3]), progress=show)
"""


def test_a_run_killed_in_its_second_multiplication_resumes_to_the_same_bits(
    store: Path, expected: list[Bits], tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", CHILD, str(store), str(tmp_path / "log"), str(tmp_path / "c")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        products = stored = 0
        for line in child.stdout or []:
            products += line.strip() == "PassEvent product"
            stored += products == 2 and line.startswith("CheckpointEvent")
            if stored == 5:
                os.kill(child.pid, signal.SIGKILL)
                break
    assert child.returncode == -signal.SIGKILL
    for name in (tmp_path / "log").iterdir():
        name.unlink()
    events: list[Event] = []
    with dask.config.set(scheduler="threads", num_workers=2):
        X = logged(store, tmp_path / "log")
        found = models()["krylov"].fit(X, checkpoint=tmp_path / "c", progress=events.append)
    assert bits(found) == expected[0]
    passes = [event for event in events if isinstance(event, PassEvent)]
    assert [event.groups_resumed for event in passes[:2]] == [event.groups_total for event in passes[:2]]
    assert 5 <= passes[2].groups_resumed < passes[2].groups_total
    read = sum(stop - start for start, stop in reads_in(tmp_path / "log"))
    assert read <= N * (len(passes) - 2) - 5 * CHUNK
