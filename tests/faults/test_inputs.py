"""An input that changes between two reads stops the fit; one that cannot be read for a moment is read again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import bigpca as bp
from bigpca.data.sources import open_source
from bigpca.data.zarr_arrays import ZarrReader, ZarrRows
from bigpca.passes.engine.events import Event, PassEvent, PlanEvent
from tests.passes.kit import bits, moments_of, normal, write_store

N, D = 2000, 24
pytestmark = pytest.mark.usefixtures("small_groups")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path / "x.zarr", normal(N, D), (25, D))
    return tmp_path / "x.zarr"


MODELS: dict[str, Callable[[], Any]] = {
    "krylov": lambda: bp.PCA(3, solver="krylov", tol=1e-2),
    "nystrom": lambda: bp.NystromKernelPCA(3, kernel="rbf", gamma=0.05, n_landmarks=30),
    "scored": lambda: bp.ScoredPCA(3, n_features_to_select=5),
    "scored, preprocessed": lambda: bp.ScoredPCA(3, n_features_to_select=5, preprocess=bp.rows.L2()),
}


@pytest.mark.parametrize("make", [lambda X: X, lambda X: X * 2], ids=["direct", "general"])
@pytest.mark.parametrize("name", MODELS)
def test_a_chunk_that_is_rewritten_between_two_reads_stops_the_fit(name: str, make: Any, store: Path) -> None:
    passes: list[Event] = []
    begins = PlanEvent if "scored" in name else PassEvent  # the second run of the fit, before it looks at the files

    def rewrite(event: Event) -> None:
        if isinstance(event, begins):
            passes.append(event)
            if len(passes) == 2:
                zarr.open_array(store)[25:50] = 7.0

    with (
        dask.config.set(scheduler="sync"),
        pytest.raises(ValueError, match=r"the input changed while it was read: .*Start again|yields different values"),
    ):
        MODELS[name]().fit(make(bp.open(store)), np.arange(N) % 3, progress=rewrite)
    assert len(passes) >= 2


def test_an_input_that_only_someone_reads_meanwhile_has_not_changed(store: Path) -> None:
    with dask.config.set(scheduler="sync"):
        MODELS["krylov"]().fit(bp.open(store), progress=lambda event: zarr.open_array(store, mode="r")[:25])


@dataclass(frozen=True)
class UnsteadyRows(ZarrRows):
    """Rows whose reads fail so many times, each at its first row, before they succeed; counted by files."""

    folder: str
    failures: int
    error: type[Exception]

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Any:
        for attempt in range(self.failures):
            mark = Path(self.folder, f"{start}-{attempt}")
            if start % 1000 == 0 and not mark.exists():
                mark.touch()
                message = "the store did not answer"
                raise OSError(errno.EIO, message) if self.error is OSError else self.error(message)
        return super().read_block(start, stop, columns)


def unsteady(store: Path, failures: int, error: type[Exception]) -> da.Array:
    folder = store.with_name(f"failures-{failures}-{error.__name__}")
    folder.mkdir()
    return open_source(UnsteadyRows.of(ZarrReader(store), str(folder), failures, error))


@pytest.mark.parametrize("error", [OSError, bp.errors.CorruptedChunkError])
def test_a_read_that_fails_twice_is_tried_again_to_the_same_bits(error: type[Exception], store: Path) -> None:
    with dask.config.set(scheduler="sync"):
        expected = bits(moments_of(bp.open(store)))
        assert bits(moments_of(unsteady(store, 2, error))) == expected
    assert len(os.listdir(store.with_name(f"failures-2-{error.__name__}"))) == 2 * 2  # two reads of two failures


@pytest.mark.parametrize("error", [OSError, bp.errors.CorruptedChunkError])
def test_a_read_that_fails_three_times_is_an_error(error: type[Exception], store: Path) -> None:
    with dask.config.set(scheduler="sync"), pytest.raises(error, match="the store did not answer"):
        moments_of(unsteady(store, 3, error))
