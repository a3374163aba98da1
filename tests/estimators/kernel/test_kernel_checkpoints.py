"""A kernel fit has the same bits on every scheduler, and goes on from where it was killed."""

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
from bigpca import KernelPCA
from bigpca.estimators.kernel import features_fit
from bigpca.estimators.kernel.expansion import scored_evaluations
from bigpca.passes import sweeps
from bigpca.passes.engine.events import CheckpointEvent, Event, PassEvent, PlanEvent
from bigpca.passes.reading import layout
from tests.builders import data_with_spectrum, power_law
from tests.passes.conftest import start_cluster
from tests.passes.kit import logged, reads_in, write_store

N, D, CHUNK = 1200, 12, 50
Bits = tuple[bytes, ...]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small data as if it were large: 16 panels, whose ends lie inside chunks."""
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 256)
    monkeypatch.setattr(sweeps, "MIN_TILE", 16)
    monkeypatch.setattr(features_fit, "CHUNK_BYTES", 40_000)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bits") / "x.zarr"
    write_store(path, data_with_spectrum(N, power_law(D, 0.3), mean=3.0, dtype="f4")[0], (CHUNK, D))
    return path


def models() -> dict[str, KernelPCA]:
    return {
        "dense": KernelPCA(3, kernel="rbf", solver="dense", solve_threads=1),
        "krylov": KernelPCA(
            2, kernel="laplacian", solver="krylov", tol=1e-5, solve_threads=1
        ),  # with landmarks, in sweeps
        "features": KernelPCA(3, kernel="poly", degree=2, solver="features", solve_threads=1),
    }


def bits(model: KernelPCA) -> Bits:
    """Everything that a model says, to the last bit."""
    expansion = model._expansion()
    names = ("eigenvalue_bounds_", "residuals_")
    certified = (getattr(model, name).tobytes() for name in names if hasattr(model, name))
    said = (model.eigenvalues_, expansion.coefficients, getattr(expansion, "offsets", model.eigenvalues_))
    return (*(array.tobytes() for array in said), *certified, repr(model.total_variance_).encode())


@pytest.fixture
def expected(store: Path, small_groups: None) -> dict[str, Bits]:
    with dask.config.set(scheduler="sync"):
        return {name: bits(model.fit(bp.open(store))) for name, model in models().items()}


def test_the_iteration_takes_landmarks_and_sweeps(store: Path) -> None:
    events: list[Event] = []
    models()["krylov"].fit(bp.open(store), progress=events.append)
    names = [event.name for event in events if isinstance(event, PassEvent)]
    assert names[:3] == ["landmarks", "features", "start"]
    assert len(names) >= 5
    assert set(names[3:]) == {"kernel"}


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_threads_give_the_bits_of_one_thread(workers: int, store: Path, expected: dict[str, Bits]) -> None:
    with dask.config.set(scheduler="threads", num_workers=workers):
        assert {name: bits(model.fit(bp.open(store))) for name, model in models().items()} == expected


@pytest.mark.cluster
def test_worker_processes_give_the_bits_of_one_thread(store: Path, expected: dict[str, Bits], tmp_path: Path) -> None:
    with start_cluster(2) as cluster, Client(cluster, set_as_default=False) as client, client.as_current():
        X = bp.open(store)
        for name, model in models().items():
            assert bits(model.fit(X, checkpoint=tmp_path / name)) == expected[name], name
        scores = models()["krylov"].fit(X).transform(X, out=tmp_path / "scores.zarr")
    with dask.config.set(scheduler="sync"):
        here = models()["krylov"].fit(X).transform(X, out=tmp_path / "here.zarr")
        assert scores.compute().tobytes() == here.compute().tobytes()


@pytest.mark.parametrize("name", ["dense", "krylov", "features"])
def test_a_stopped_fit_goes_on_to_the_same_bits(name: str, store: Path, tmp_path: Path) -> None:
    X = bp.open(store)
    written: list[Event] = []

    def stop(event: Event) -> None:
        if isinstance(event, CheckpointEvent):
            written.append(event)
            if len(written) == 7:
                raise KeyboardInterrupt

    with dask.config.set(scheduler="sync"):
        undisturbed = bits(models()[name].fit(X))
        with pytest.raises(KeyboardInterrupt):
            models()[name].fit(X, checkpoint=tmp_path / "c", progress=stop)
        events: list[Event] = []
        again = models()[name].fit(X, checkpoint=tmp_path / "c", progress=events.append)
        assert bits(again) == undisturbed
        assert max(event.groups_resumed for event in events if isinstance(event, PassEvent)) > 0
        with pytest.raises(bp.CheckpointError):
            models()[name].set_params(kernel="cosine").fit(X, checkpoint=tmp_path / "c")


CHILD = """
import sys
from pathlib import Path
import dask
from bigpca import KernelPCA
from bigpca.passes.reading import layout
from bigpca.passes import sweeps
from tests.passes.kit import logged

def show(event):
    print(type(event).__name__, getattr(event, "name", ""), flush=True)

layout.MIN_GROUP_BYTES, sweeps.MIN_TILE = 256, 16
with dask.config.set(scheduler="threads", num_workers=2):
    X = logged(Path(sys.argv[1]), Path(sys.argv[2]), delay=0.005)
    model = KernelPCA(2, kernel="laplacian", solver="krylov", tol=1e-5, solve_threads=1)
    model.fit(X, checkpoint=Path(sys.argv[3]), progress=show)
"""


@pytest.mark.cluster
def test_a_run_killed_in_its_second_sweep_resumes_to_the_same_bits(
    store: Path, expected: dict[str, Bits], tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", CHILD, str(store), str(tmp_path / "log"), str(tmp_path / "c")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        sweeps = stored = 0
        for line in child.stdout or []:
            sweeps += line.strip() == "PassEvent kernel"
            stored += sweeps == 2 and line.startswith("CheckpointEvent")
            if stored == 5:
                os.kill(child.pid, signal.SIGKILL)
                break
    assert child.returncode == -signal.SIGKILL
    for name in (tmp_path / "log").iterdir():
        name.unlink()
    events: list[Event] = []
    with dask.config.set(scheduler="threads", num_workers=2):
        found = models()["krylov"].fit(
            logged(store, tmp_path / "log"), checkpoint=tmp_path / "c", progress=events.append
        )
    assert bits(found) == expected["krylov"]
    passes = [event for event in events if isinstance(event, PassEvent)]
    assert all(event.groups_resumed == event.groups_total for event in passes[:4])
    assert 5 <= passes[4].groups_resumed < passes[4].groups_total
    # The first rows are read for the shift; then panels that are not stored, from the chunk in which each begins.
    starts = [N * p // 16 // CHUNK * CHUNK for p in range(16)]
    most = N + sum(N - start for start in starts[5:]) + (len(passes) - 5) * sum(N - start for start in starts)
    assert sum(stop - start for start, stop in reads_in(tmp_path / "log")) <= most


def events_of(model: Any, X: Any) -> list[Event]:
    events: list[Event] = []
    model.fit(X, progress=events.append)
    return events


def test_progress_counts_kernel_evaluations(store: Path) -> None:
    events = events_of(models()["dense"], bp.open(store))
    (plan,) = (event for event in events if isinstance(event, PlanEvent))
    (sweep,) = (event for event in events if isinstance(event, PassEvent))
    done = sum(getattr(event, "evaluations", 0) for event in events)
    model = models()["dense"].fit(bp.open(store))
    both = scored_evaluations(model.kernel_, bp.open(store).dtype, model.n_samples_)  # after the sweep
    assert sweep.evaluations_total == done == model.kernel_evaluations_ - both
    assert plan.solver == "dense"
