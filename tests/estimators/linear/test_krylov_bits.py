"""A worker that dies with what the tasks share changes no bit of the model."""

import os
import signal
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client

import bigpca as bp
from bigpca import PCA
from bigpca.engine import layout
from bigpca.engine.events import Event, GroupEvent, PassEvent, RetryEvent
from tests.builders import data_with_spectrum, power_law
from tests.engine.conftest import start_cluster
from tests.passes.kit import logged, write_store

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


def model() -> PCA:
    return PCA(3, solver="krylov")


def bits(model: Any) -> Bits:
    """Everything that a model says, to the last bit."""
    names = ("components_", "explained_variance_", "mean_", "eigenvalue_bounds_", "residuals_")
    return (*(getattr(model, name).tobytes() for name in names), repr(model.total_variance_).encode())


def test_a_worker_that_dies_with_the_shared_factor_changes_no_bit(store: Path, tmp_path: Path) -> None:
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
        found = model().fit(X, checkpoint=tmp_path / "c", progress=kill_holder)
    assert killed
    assert sum(isinstance(event, RetryEvent) for event in seen) >= 1
    with dask.config.set(scheduler="sync"):
        assert bits(found) == bits(model().fit(bp.open(store)))
