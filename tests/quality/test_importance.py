"""Examples weigh as the dot matrix's eigenvectors say."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA as InMemoryPCA
from sklearn.exceptions import NotFittedError

import bigpca as bp
from bigpca.quality import example_importance
from tests.builders import data_with_spectrum, power_law, rank_deficient
from tests.passes.kit import logged, reads_in, write_store

EPS = float(np.finfo(np.float64).eps)
X = data_with_spectrum(90, power_law(8, 1.0), mean=4.0)[0]


def dot_eigenvectors(A: NDArray[Any], k: int) -> NDArray[np.float64]:
    """Leading eigenvectors (n, k) of the centred dot matrix, by NumPy on the whole matrix."""
    centred = A - A.mean(0)
    return np.asarray(np.linalg.eigh(centred @ centred.T)[1][:, ::-1][:, :k])


@pytest.mark.parametrize("solver", ["covariance", "dot"])
@pytest.mark.parametrize("options", [{}, {"whiten": True}, {"scale": True}], ids=str)
def test_importance_is_the_eigenvectors_of_the_dot_matrix_up_to_sign(solver: str, options: dict[str, Any]) -> None:
    V = example_importance(bp.PCA(5, solver=solver, **options).fit(X), X)
    truth = dot_eigenvectors(X / X.std(0) if "scale" in options else X, 5)
    np.testing.assert_allclose(np.abs((V * truth).sum(0)), 1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(V.T @ V, np.eye(5), rtol=0, atol=1e-12)


def test_a_component_is_the_sum_of_the_examples_with_these_weights() -> None:
    pca = bp.PCA(3).fit(X)  # equation 25
    axes = example_importance(pca, X).T @ (X - X.mean(0)) / pca.singular_values_[:, None]
    np.testing.assert_allclose(axes, pca.components_, rtol=0, atol=1e-12)


def test_lazy_rows_give_a_lazy_array_of_the_same_chunks_read_when_computed(tmp_path: Path) -> None:
    write_store(tmp_path / "x.zarr", X.astype("f4"), (20, 8))
    source = logged(tmp_path / "x.zarr", tmp_path / "log", chunk_rows=20)
    pca = bp.PCA(3).fit(X)
    lazy = example_importance(pca, source)
    assert isinstance(lazy, da.Array)
    assert (lazy.chunks[0], lazy.shape, lazy.dtype) == (source.chunks[0], (90, 3), np.dtype("f4"))
    assert not reads_in(tmp_path / "log")
    np.testing.assert_allclose(lazy.compute(), example_importance(pca, X), rtol=0, atol=1e-6)


def test_the_model_of_another_library_will_do() -> None:
    V = example_importance(InMemoryPCA(2).fit(X), X)
    np.testing.assert_allclose(np.abs((V * dot_eigenvectors(X, 2)).sum(0)), 1, rtol=0, atol=1e-12)


def test_an_example_that_is_an_outlier_ranks_first() -> None:
    A = np.random.default_rng(0).standard_normal((50, 6))
    A[17] *= 40
    V = example_importance(bp.PCA(3).fit(A), A)
    assert abs(V[17, 0]) > 0.9 > abs(np.delete(V[:, 0], 17)).max()


def test_a_component_without_variance_or_an_unfitted_model_is_rejected() -> None:
    A = data_with_spectrum(30, rank_deficient(6, 2))[0]
    with pytest.raises(ValueError, match=r"component 2 of 4 has variance 0, .* Fit with n_components = 2"):
        example_importance(bp.PCA(4).fit(A), A)
    with pytest.raises(NotFittedError):
        example_importance(bp.PCA(2), A)
