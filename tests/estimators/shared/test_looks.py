"""How often a fit asks for a chunk, whatever it reads."""

from __future__ import annotations

from pathlib import Path

import dask
import pytest

import bigpca as bp
from bigpca.passes.engine.events import Event, PassEvent
from tests.data.sparse_savers import to_zarr
from tests.estimators.stores import Looks, stored
from tests.estimators.test_every_estimator import READING, D, X, few_values, fitted

pytestmark = [
    pytest.mark.usefixtures("small_groups"),
    pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning"),
]


@pytest.mark.parametrize(
    "name", [*READING, *(f"{name} sparse" for name in ("PCA krylov", "Ridge", "NystromKernelPCA"))]
)
def test_a_fit_looks_at_a_chunk_before_and_after_it_reads_and_not_between(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many groups and passes, with a checkpoint too, and where a finished fit is resumed."""
    name, sparse = name.removesuffix(" sparse"), name.endswith(" sparse")
    store = to_zarr(tmp_path, few_values(), chunks=(64,)) if sparse else stored(tmp_path, X, (5, D))
    rows = bp.open(store, member="X") if sparse else store
    looks, fits = Looks(tmp_path, monkeypatch), 3 if name == "ScoredPCA" else 1
    for options in ({}, {"checkpoint": tmp_path / "c"}, {"checkpoint": tmp_path / "c"}):
        events: list[Event] = []
        looks.clear()
        with dask.config.set(scheduler="sync"):
            fitted(name, rows, progress=events.append, **options)
        passes = sum(isinstance(event, PassEvent) for event in events)
        # one open a read, or two where tiles of rows meet each other; the first rows once more, for a shift
        assert looks.most("open") <= (2 if "Kernel" in name else 1) * passes + 1
        assert looks.most("stat") <= 2 * fits + (passes + 1 if sparse else 0)  # a pass asks whether indptr has changed
        assert {called for called, _ in looks} <= {"stat", "open"}
