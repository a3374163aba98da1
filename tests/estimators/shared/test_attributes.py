"""Fitted attributes and methods are those of scikit-learn's PCA(svd_solver="full"), for arrays in memory and lazy
ones.
"""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.decomposition import PCA as InMemoryPCA

import bigpca as bp
from bigpca import PCA, ApproximatePCA
from bigpca.sketches import Gaussian
from tests.builders import data_with_spectrum, power_law
from tests.estimators.stores import unreadable

N, D = 120, 12
SPECTRUM = power_law(D, 1.5)
X = data_with_spectrum(N, SPECTRUM, mean=3.0)[0]
WIDE = data_with_spectrum(N, SPECTRUM, mean=3.0)[0].T.copy()
CHOICES = [None, 1, 5, D, np.int64(4), 0.5, 0.9, 0.999, "mle"]
solvers = pytest.mark.parametrize("solver", ["covariance", "dot"])


def same_sign(reference: NDArray[Any]) -> NDArray[Any]:
    """Our sign rule: the entry of largest magnitude of each row is positive."""
    leading = reference[np.arange(len(reference)), np.argmax(np.abs(reference), axis=1)]
    return np.asarray(reference * np.sign(leading)[:, None])


@solvers
@pytest.mark.parametrize("n_components", CHOICES, ids=str)
def test_n_components_keeps_as_many_as_scikit_learn(solver: str, n_components: Any) -> None:
    reference = InMemoryPCA(n_components, svd_solver="full").fit(X)
    assert PCA(n_components, solver=solver).fit(X).n_components_ == reference.n_components_


@solvers
@pytest.mark.parametrize("lazy", [False, True], ids=["memory", "lazy"])
@pytest.mark.parametrize("data", [X, WIDE], ids=["tall", "wide"])
@pytest.mark.parametrize("k", [1, 4, 11])
@pytest.mark.parametrize("whiten", [False, True])
def test_attributes_are_those_of_scikit_learn(
    solver: str, lazy: bool, data: NDArray[Any], k: int, whiten: bool
) -> None:
    reference = InMemoryPCA(k, svd_solver="full", whiten=whiten).fit(data)
    given = da.from_array(data, chunks=(7, 50)) if lazy else data
    pca = PCA(k, solver=solver, whiten=whiten).fit(given)
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"):
        np.testing.assert_allclose(getattr(pca, name), getattr(reference, name), rtol=1e-8, err_msg=name)
    np.testing.assert_allclose(pca.noise_variance_, reference.noise_variance_, rtol=1e-6, atol=1e-15)
    for name in ("n_components_", "n_features_in_", "n_samples_"):
        assert getattr(pca, name) == getattr(reference, name)
    assert pca.solver_ == solver
    np.testing.assert_allclose(pca.components_, same_sign(reference.components_), atol=1e-6)
    signs = np.sign(np.einsum("ij,ij->i", pca.components_, reference.components_))
    scores = np.asarray(pca.transform(given))
    np.testing.assert_allclose(scores, reference.transform(data) * signs, atol=1e-6)
    np.testing.assert_allclose(
        np.asarray(pca.inverse_transform(scores)), reference.inverse_transform(reference.transform(data)), atol=1e-8
    )


@pytest.mark.parametrize("lazy", [False, True], ids=["memory", "lazy"])
@pytest.mark.parametrize("k", [1, 5, D])
@pytest.mark.parametrize("whiten", [False, True])
def test_likelihood_and_covariance_are_those_of_scikit_learn(lazy: bool, k: int, whiten: bool) -> None:
    # NOTE: scikit-learn's covariance of a whitened model multiplies by the variances twice, so its
    # plain model is the judge.
    reference = InMemoryPCA(k, svd_solver="full").fit(X)
    pca = PCA(k, whiten=whiten).fit(X)
    new = X[:40] + 0.1
    given = da.from_array(new, chunks=(7, 5)) if lazy else new
    samples = pca.score_samples(given)
    assert isinstance(samples, da.Array) is lazy
    np.testing.assert_allclose(np.asarray(samples), reference.score_samples(new), rtol=1e-9)
    np.testing.assert_allclose(pca.score(given), reference.score(new), rtol=1e-9)
    np.testing.assert_allclose(pca.get_covariance(), reference.get_covariance(), atol=1e-12)
    np.testing.assert_allclose(pca.get_precision(), reference.get_precision(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(pca.get_precision() @ pca.get_covariance(), np.eye(D), atol=1e-9)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("mean", [0.0, 1000.0])
@pytest.mark.parametrize(
    "model",
    [PCA(5, solver=s, whiten=True) for s in ("covariance", "dot", "krylov")]
    + [ApproximatePCA(5, Gaussian(10), approximation=c, whiten=True) for c in ("nystrom", "tutorial", "ritz")],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
def test_whitened_scores_along_axes_of_variance_0_are_0(model: Any, mean: float, dtype: str) -> None:
    spread = np.random.default_rng(0).integers(-9, 10, (N, 2)) @ np.random.default_rng(1).integers(-3, 4, (2, D))
    data = (spread + mean).astype(dtype)  # exact: rank 2
    fitted = clone(model).fit(data)
    scores = fitted.transform(data)
    assert scores[:, :2].any(axis=0).all()
    assert not scores[:, 2:].any(), fitted.explained_variance_
    if getattr(model, "approximation", "") != "tutorial":  # whose eigenvalues and axes are off
        np.testing.assert_allclose(scores[:, :2].std(axis=0, ddof=1), 1, rtol=1e-4)
        back = fitted.inverse_transform(scores)
        np.testing.assert_allclose(back, data, atol=1e3 * np.finfo(dtype).eps * float(np.abs(data).max()))


def test_the_precision_of_a_singular_model_is_the_pseudo_inverse() -> None:
    pca = PCA().fit(WIDE)  # 12 samples of 120 features: no noise, rank 11
    covariance, precision = pca.get_covariance(), pca.get_precision()
    np.testing.assert_allclose(covariance @ precision @ covariance, covariance, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int32])
def test_scores_have_the_working_dtype(dtype: type) -> None:
    data = (10 * X + 100).astype(dtype)
    expected = np.float64 if dtype in (np.float64, np.int32) else np.float32
    pca = PCA(3).fit(data)
    lazy = pca.transform(da.from_array(data, chunks=(50, 6)))
    assert pca.transform(data).dtype == lazy.dtype == lazy.compute().dtype == expected


@pytest.mark.parametrize("method", ["transform", "inverse_transform", "score_samples"])
def test_lazy_in_lazy_out_reads_nothing_and_keeps_the_row_chunks(method: str) -> None:
    pca = PCA(4).fit(X)
    lazy = unreadable(35, 4 if method == "inverse_transform" else D)
    result = getattr(pca, method)(lazy)
    assert isinstance(result, da.Array)
    assert result.chunks[0] == lazy.chunks[0] == (10, 10, 10, 5)
    assert result.shape[1:] == {"transform": (4,), "inverse_transform": (D,), "score_samples": ()}[method]
    with pytest.raises(AssertionError, match="a row was read"):
        result.compute()


@solvers
def test_unknown_chunk_sizes_are_counted(solver: str, tmp_path: Path) -> None:
    lazy = da.from_array(X, chunks=(50, D))
    chosen, expected = lazy[lazy[:, 0] > 3], X[X[:, 0] > 3]
    assert np.isnan(chosen.shape[0])
    pca = PCA(3, solver=solver).fit(chosen)
    np.testing.assert_allclose(pca.explained_variance_, PCA(3).fit(expected).explained_variance_, rtol=1e-9)
    assert pca.n_samples_ == len(expected)
    known = PCA(3, solver=solver).plan(da.from_array(expected, chunks=(50, D)))
    assert pca.plan_.passes == known.passes + 1
    np.testing.assert_allclose(pca.transform(chosen).compute(), pca.transform(expected), atol=1e-12)
    written = pca.transform(chosen, out=tmp_path / "scores.zarr")
    np.testing.assert_allclose(written.compute(), pca.transform(expected), atol=1e-12)


def test_more_features_than_a_dense_covariance_holds_are_rejected() -> None:
    pca = PCA(1, solver="dot").fit(np.eye(3, 60_000))
    with pytest.raises(bp.errors.MemoryBudgetError, match=r"60000 x 60000 matrix takes 26.8 GiB.*Use components_"):
        pca.get_covariance()
