"""Kernel models map lazily, to disk and in memory alike; their training rows are read again from their store."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from bigpca import KernelPCA, kernels
from bigpca.errors import MemoryBudgetError
from bigpca.estimators.kernel import maps, spectrum
from bigpca.estimators.shared import files
from tests.builders import data_with_spectrum, power_law
from tests.estimators.stores import stored, unreadable
from tests.operators.counting import Reads

N, D = 300, 6
X = data_with_spectrum(N, power_law(D), mean=1.0)[0]
FITTED: dict[str, dict[str, Any]] = {
    "rbf": {"kernel": "rbf", "gamma": 0.3},
    "krylov": {"kernel": "laplacian", "solver": "krylov"},
    "features": {"kernel": "poly", "degree": 2},
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", FITTED)
def test_lazy_written_and_computed_results_agree(name: str, dtype: str, tmp_path: Path) -> None:
    rows = X.astype(dtype)
    lazy = stored(tmp_path, rows, (40, D))
    model = KernelPCA(3, **FITTED[name]).fit(lazy)
    in_memory = KernelPCA(3, **FITTED[name]).fit(rows)
    tolerance = 1e-5 if dtype == "f4" else 1e-9
    np.testing.assert_allclose(model.eigenvalues_, in_memory.eigenvalues_, rtol=1e-9)
    for method, width in (("transform", (3,)), ("novelty", ())):
        expected = getattr(model, method)(rows)
        found = getattr(model, method)(lazy)
        assert isinstance(found, da.Array)
        assert (found.shape, found.chunks[0]) == ((N, *width), lazy.chunks[0])
        written = getattr(model, method)(lazy, out=tmp_path / f"{method}.zarr")
        assert written.shape == (N, *(width or (1,)))
        for result in (found.compute(), np.asarray(written).reshape(expected.shape)):
            assert result.dtype == expected.dtype
            np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * np.abs(expected).max())
    if name == "rbf":
        cleaned = model.denoise(rows, max_iter=5)
        np.testing.assert_allclose(model.denoise(lazy, max_iter=5).compute(), cleaned, rtol=0, atol=1e-5)
        written = model.denoise(lazy, max_iter=5, out=tmp_path / "d.zarr")
        np.testing.assert_allclose(np.asarray(written), cleaned, rtol=0, atol=1e-5)


@pytest.mark.parametrize("make", [lambda X: X * 1.0, lambda X: X.rechunk((37, 2)), lambda X: X[X[:, 0] > -np.inf]])
@pytest.mark.parametrize("solver", ["dense", "krylov", "features"])
def test_a_computation_is_held_row_by_row_in_the_model(make: Any, solver: str, tmp_path: Path) -> None:
    given = make(stored(tmp_path, X, (40, D)))
    options: dict[str, Any] = {"kernel": "poly", "degree": 2, "solver": solver}
    model, expected = KernelPCA(3, **options).fit(given), KernelPCA(3, **options).fit(X)
    np.testing.assert_allclose(model.eigenvalues_, expected.eigenvalues_, rtol=1e-9)
    found = model.transform(X)
    np.testing.assert_allclose(np.abs(found), np.abs(expected.transform(X)), rtol=0, atol=1e-6 * np.abs(found).max())
    if solver != "features":
        assert np.array_equal(model._expansion().references.rows, X)


def test_a_computation_too_large_to_hold_is_rejected_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "HELD_BYTES", 1000)
    with pytest.raises(MemoryBudgetError, match=r"the result of a computation of .*at most 1000 B are held.*bp.ingest"):
        KernelPCA(2, kernel="rbf").fit(unreadable(N, D))
    assert KernelPCA(2, kernel="linear").plan(unreadable(N, D)).solver == "features"  # which needs no training rows


def test_each_block_of_new_rows_reads_the_training_rows_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = KernelPCA(3, kernel="rbf").fit(stored(tmp_path, X, (40, D)))
    reads = Reads().watch(monkeypatch)
    model.transform(X[:50])
    assert (reads.per_chunk((N, D), (40, D)) == 1).all()
    model.transform(da.from_array(X[:90], chunks=(30, D)) + 0).compute()
    assert (reads.per_chunk((N, D), (40, D)) == 3).all()


def test_rows_and_references_beyond_a_tile_and_a_read_are_all_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (maps, files):
        monkeypatch.setattr(module, "TILE_ROWS", 32)
    monkeypatch.setattr(files, "STREAM_BYTES", 64 * 8 * D)
    model = KernelPCA(2, kernel="rbf", gamma=0.5).fit(stored(tmp_path, X, (40, D)))
    A, b = model._expansion().coefficients, model._expansion().offsets
    for new in (X, np.vstack([X, X + 1]), X[:5]):
        np.testing.assert_allclose(model.transform(new), kernels.RBF(0.5)(new, X) @ A - b, rtol=0, atol=1e-10)


def test_features_of_numpy_rows_are_made_in_this_process_whatever_client_there_is() -> None:
    model, rows = KernelPCA(2, kernel=kernels.Hellinger(), solver="features"), np.abs(X)
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0")
    with cluster, Client(cluster):
        model.fit(rows)
        assert not cluster.scheduler.transition_log
        model.fit(da.from_array(rows, chunks=(50, -1)) + 0)
        assert cluster.scheduler.transition_log
