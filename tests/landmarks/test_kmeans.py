"""Centres of clusters as landmarks: the clusters are found, reads are bounded, and what has no mean is rejected."""

import sys
from dataclasses import dataclass
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from scipy.sparse import random_array
from sklearn.base import clone

import bigpca as bp
import bigpca.dask_array
from bigpca.engine.run import Run
from bigpca.kernels.distance import RBF
from bigpca.landmarks import landmark_passes
from tests.estimators.stores import stored
from tests.landmarks.cases import choose, digits, request
from tests.operators.counting import Reads

KERNEL = RBF(gamma=0.01)
CLUSTERS, EACH, D = 5, 60, 4


def blobs(dtype: str = "f4") -> np.ndarray:
    """Clusters of deviation 1, 50 apart."""
    rng = np.random.default_rng(0)
    centres = 50.0 * np.arange(CLUSTERS)[:, None] * np.ones(D)
    return (np.repeat(centres, EACH, axis=0) + rng.standard_normal((CLUSTERS * EACH, D))).astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
def test_centres_of_clusters_are_their_means(dtype: str) -> None:
    X = blobs(dtype)
    found = choose("kmeans", request(da.from_array(X, chunks=(70, 3)), KERNEL, CLUSTERS))
    means = X.reshape(CLUSTERS, EACH, D).mean(axis=1, dtype="f8")
    assert found.rows.dtype == ("f8" if dtype == "f8" else "f4")
    np.testing.assert_allclose(found.rows[np.argsort(found.rows[:, 0])], means, rtol=0, atol=1e-4)
    assert found.indices is None
    assert (found.evaluations, found.short) == (0, False)


def test_the_seed_decides_and_threads_do_not() -> None:
    X = da.from_array(digits(200), chunks=(50, 64))
    found = []
    for scheduler, seed in (("sync", 1), ("threads", 1), ("sync", 2)):
        with dask.config.set(scheduler=scheduler):
            found.append(choose("kmeans", request(X, KERNEL, 8, seed=seed)).rows)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12)
    assert not np.allclose(found[0], found[2])
    local = choose("kmeans", request(X, KERNEL, 8, seed=1, run=Run(scheduler="local")))
    np.testing.assert_allclose(local.rows, found[0], rtol=0, atol=1e-12)


def test_reads_are_at_most_those_stated(reads: Reads, tmp_path: Path) -> None:
    X = stored(tmp_path, digits(400).astype("f4"), (50, 64))
    found = choose("kmeans", request(X, KERNEL, 20))
    most = reads.per_chunk((400, 64), (50, 64)).max()
    assert 0.8 * found.passes < most <= found.passes <= 55


def test_duplicates_give_fewer_centres() -> None:
    X = np.repeat(blobs()[::EACH], 30, axis=0)
    found = choose("kmeans", request(X, KERNEL, 9))
    assert len(found.rows) >= CLUSTERS
    assert len(np.unique(found.rows, axis=0)) == len(found.rows)


@dataclass(frozen=True)
class StringsRBF(RBF):
    @property
    def accepts_strings(self) -> bool:
        return True


def test_rows_without_a_mean_are_rejected() -> None:
    with pytest.raises(
        ValueError, match=r'"kmeans" averages rows, but .* does not compare vectors.*Use sampling="rpch'
    ):
        choose("kmeans", request(blobs(), StringsRBF(gamma=1.0), 4))
    with pytest.raises(ValueError, match=r'"kmeans" .* cannot omit rows with missing values.*or repair the data'):
        choose("kmeans", request(blobs(), KERNEL, 4, nan_policy="omit"))


def test_rows_that_a_model_maps_lazily_are_clustered_while_a_fit_waits_for_them() -> None:
    """Scores are folds, which a solve holds back; dask-ml computes them in the middle of a fit."""
    X = da.from_array(blobs(), chunks=(70, D))
    scores = bp.PCA(2).fit(X).transform(X)
    model = bp.NystromKernelPCA(2, kernel=KERNEL, sampling="kmeans", n_landmarks=CLUSTERS).fit(scores)
    assert model.n_samples_ == len(X)


@pytest.mark.parametrize("why", ["dask_ml", "does not support Dask's array expressions"])
def test_where_dask_ml_fails_the_error_says_what_works(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "dask_ml":
        monkeypatch.setitem(sys.modules, "dask_ml", None)
        monkeypatch.setitem(sys.modules, "dask_ml.cluster", None)
    wanted = request(blobs(), KERNEL, CLUSTERS)
    if why != "dask_ml":
        monkeypatch.setattr(bigpca.dask_array, "array_expr_enabled", lambda: True)
    with pytest.raises(
        ImportError, match=rf'"kmeans" needs dask-ml, .*{why}.* work without dask-ml. Use sampling="rpch'
    ):
        landmark_passes("kmeans", wanted)


def test_chunks_are_cut_by_the_distances_of_their_rows_to_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    X = blobs()
    model = bp.NystromKernelPCA(2, kernel="rbf", gamma=0.1, n_landmarks=6, sampling="kmeans", random_state=0)
    monkeypatch.setattr("bigpca.data.dask_arrays.DASK_CHUNK_BYTES", 4 * 60 * 100)  # of float32, and 60 candidates
    found, cut = (clone(model).fit(da.from_array(X, chunks=(rows, D))) for rows in (300, 100))
    np.testing.assert_array_equal(found.landmarks_, cut.landmarks_)
    monkeypatch.undo()
    (before,) = (one for one in clone(model).plan(da.from_array(X, chunks=(300, D))).costs if one.name == "k-means")
    (after,) = (one for one in found.plan_.costs if one.name == "k-means")
    assert after.peak_bytes < before.peak_bytes / 2


def test_a_chunk_of_sparse_rows_is_planned_as_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigpca.data.dask_arrays.DASK_CHUNK_BYTES", 1 << 18)
    rows = random_array((4000, 500), density=0.01, format="csr", rng=np.random.default_rng(0), dtype=np.float32)
    model = bp.NystromKernelPCA(2, kernel="rbf", gamma=0.1, n_landmarks=5, sampling="kmeans")
    (cost,) = (one for one in model.plan(rows).costs if one.name == "k-means")
    assert cost.peak_bytes < rows.toarray().nbytes / 2
