"""How often a fit, or a transform, asks for a chunk, whatever it reads."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from distributed import Client
from zarr.codecs import BloscCodec, ShardingCodec, ZstdCodec

import bigpca as bp
from bigpca.data import zarr_arrays
from bigpca.data.zarr_arrays import ZarrReader
from bigpca.engine.events import Event, PassEvent
from tests.data.sparse_savers import to_zarr
from tests.estimators.stores import Looks, stored
from tests.estimators.test_every_estimator import READING, D, N, X, few_values, fitted, known

pytestmark = [
    pytest.mark.usefixtures("small_groups"),
    pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning"),
]
STORES: dict[str, Callable[[Path], Any]] = {  # 48 files, 240, 240 and 90
    "rows": lambda folder: stored(folder, X, (5, D)),
    "columns": lambda folder: stored(folder, X, (3, 2)),
    "shards": lambda folder: stored(folder, X, (1, 3), shards=(2, 3)),
    "sparse": lambda folder: bp.open(to_zarr(folder, few_values(), chunks=(16,)), member="X"),
}
FEW = ("PCA covariance", "PCA krylov", "NystromKernelPCA")
OF_EACH = {"columns": (*FEW, "CCA"), "shards": FEW, "sparse": (*FEW, "FisherDiscriminantAnalysis", "Ridge")}
WORK = [*(("rows", name) for name in READING), *((store, name) for store, names in OF_EACH.items() for name in names)]


@pytest.mark.parametrize(("store", "name"), WORK)
def test_a_fit_looks_at_a_chunk_once_a_read_and_opens_it_once_a_read(
    store: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many groups and passes, with a checkpoint too, and where a finished one is resumed; it lists nothing."""
    (tmp_path / "in").mkdir()
    rows = STORES[store](tmp_path / "in")
    looks = Looks(tmp_path / "in", monkeypatch)
    for options in ({}, {"checkpoint": tmp_path / "c"}, {"checkpoint": tmp_path / "c"}):
        events: list[Event] = []
        looks.clear()
        with dask.config.set(scheduler="sync"):
            fitted(name, rows, progress=events.append, **options)
        passes = sum(isinstance(event, PassEvent) for event in events)
        # one open a read, or two where tiles of rows meet each other; the first rows once more, for a shift
        assert looks.most("open") <= (2 if "Kernel" in name else 1) * passes + 1
        # One look before all reads, one after each, and one at the end; ScoredPCA looks at the end of each of its runs
        # too. Chunks of other stores are shared by several reads, which may hold what they have decoded.
        assert looks.most("stat") >= 2
        if store == "rows":
            assert looks.most("stat") <= looks.most("open") + (4 if name == "ScoredPCA" else 2)
        assert {called for called, _ in looks} <= {"stat", "open"}


@pytest.mark.cluster
def test_a_fit_on_a_cluster_looks_at_a_chunk_before_and_after_it(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the looks of its workers."""
    (tmp_path / "in").mkdir()
    rows = STORES["rows"](tmp_path / "in")
    looks = Looks(tmp_path / "in", monkeypatch)
    fitted("PCA covariance", rows)
    assert looks.most("stat") == 2


@pytest.mark.parametrize("store", STORES)
def test_a_transform_opens_a_chunk_once(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    rows, model, sparse = STORES[store](tmp_path / "in"), known("PCA covariance"), store == "sparse"
    looks = Looks(tmp_path / "in", monkeypatch)
    with dask.config.set(scheduler="sync"):
        model.transform(rows, out=tmp_path / "scores.zarr")
        assert looks.most("open") == 1
        assert 3 <= looks.most("stat") <= (6 if sparse else 3)
        looks.clear()
        assert model.transform(rows).compute().shape == (N, 2)
    assert looks.most("open") == 1
    assert looks.most("stat") == 1 + sparse  # by the task that reads it
    assert {called for called, _ in looks} <= {"stat", "open"}


@pytest.mark.parametrize("look", ["opening", "fit"])
def test_many_files_are_looked_at_at_the_same_time(look: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a network each look takes long; files that nobody looks at beside them would be waited for one by one."""
    rows, together, looking, stat = STORES["rows"](tmp_path), threading.Event(), set[int](), os.stat

    def slow(path: Any, *rest: Any, **options: Any) -> Any:
        if "/c/" in str(path):
            looking.add(threading.get_ident())
            if len(looking) > 1:
                together.set()
            assert together.wait(10)
        return stat(path, *rest, **options)

    monkeypatch.setattr(zarr_arrays, "BATCH", 16)
    monkeypatch.setattr(os, "stat", slow)
    with dask.config.set(scheduler="sync"):
        if look == "fit":
            fitted("PCA covariance", rows)
        else:
            bp.open(next(tmp_path.glob("*.zarr")))
    assert together.is_set()


@pytest.mark.parametrize("index_location", ["start", "end"])
@pytest.mark.parametrize("codecs", [[], [ZstdCodec()], [BloscCodec()]], ids=["raw", "zstd", "blosc"])
def test_a_read_of_parts_of_a_shard_opens_it_once(
    codecs: list[Any], index_location: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its index, and for all chunks in it."""
    X = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)
    sharding = ShardingCodec(
        chunk_shape=(1, 2), codecs=[zarr.codecs.BytesCodec(), *codecs], index_location=index_location
    )
    store = tmp_path / "x.zarr"
    zarr.create_array(store, shape=X.shape, dtype=X.dtype, chunks=(4, 6), serializer=sharding, compressors=None)[:] = X
    reader, looks = ZarrReader(store), Looks(tmp_path, monkeypatch)
    for rows, columns in [((0, 8), (0, 12)), ((1, 7), (1, 11)), ((3, 4), (0, 12)), ((0, 8), (5, 6))]:
        looks.clear()
        np.testing.assert_array_equal(reader.read((rows, columns)), X[slice(*rows), slice(*columns)])
        assert looks.most("open") == 1
        assert {called for called, _ in looks} == {"open"}
