"""The passes of a kernel fit, and the evaluations that progress counts."""

from pathlib import Path
from typing import Any

import pytest

import bigpca as bp
from bigpca import KernelPCA
from bigpca.engine import layout
from bigpca.engine.events import Event, PassEvent, PlanEvent
from bigpca.estimators.kernel.maps import scored_evaluations
from bigpca.passes import sweeps
from tests.builders import data_with_spectrum, power_law
from tests.passes.kit import write_store

N, D, CHUNK = 1200, 12, 50


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small data as if it were large: 16 panels, whose ends lie inside chunks."""
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 256)
    monkeypatch.setattr(sweeps, "MIN_TILE", 16)
    monkeypatch.setattr(sweeps, "MIN_PANELS", 16)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bits") / "x.zarr"
    write_store(path, data_with_spectrum(N, power_law(D, 0.3), mean=3.0, dtype="f4")[0], (CHUNK, D))
    return path


def models() -> dict[str, KernelPCA]:
    return {
        "dense": KernelPCA(3, kernel="rbf", solver="dense"),
        "krylov": KernelPCA(2, kernel="laplacian", solver="krylov", tol=1e-5),
    }


def test_the_iteration_takes_landmarks_and_sweeps(store: Path) -> None:
    events: list[Event] = []
    models()["krylov"].fit(bp.open(store), progress=events.append)
    names = [event.name for event in events if isinstance(event, PassEvent)]
    assert names[:3] == ["landmarks", "features", "start"]
    assert len(names) >= 5
    assert set(names[3:]) == {"kernel"}


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
    assert plan.plan.solver == "dense"
