"""Nyström's features of sparse rows, which are compared as they are with dense landmarks, equal those of dense rows."""

from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array, random_array
from sklearn.base import clone

import bigpca as bp
from bigpca.kernels import RBF, Cosine, Kernel, Laplacian, Linear, Polynomial, normalized

Array = NDArray[Any]
N, D, M = 400, 30, 12
KERNELS: dict[str, Kernel] = {
    "linear": Linear(),
    "polynomial": Polynomial(2, gamma=0.1, coef0=1.0),
    "cosine": Cosine(),
    "rbf": RBF(1e-3),
    "sum": RBF(1e-3) + 0.5 * Linear(),
    "dense strips": Laplacian(0.01),
    "dense strips, of another": normalized(Polynomial(2, gamma=0.1, coef0=1.0)),
}
SAMPLINGS: dict[str, Any] = {
    "numbers": np.arange(3, 3 + 5 * M, 5), "rpcholesky": "rpcholesky", "uniform": "uniform", "diagonal": "diagonal",
}  # fmt: skip


def sparse_rows() -> csr_array:
    """Counts, of which three rows are empty, and a column that is not small."""
    X = np.ceil(10 * random_array((N, D), density=0.2, rng=np.random.default_rng(0)).toarray())
    X[:, 4] += 20
    X[[0, 200, N - 1]] = 0
    return csr_array(X)


@pytest.fixture(autouse=True)
def small_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigpca.csr.STRIP_BYTES", 64 * D * 8)


def fitted(kernel: Kernel, sampling: Any, rows: Any) -> bp.NystromKernelPCA:
    return bp.NystromKernelPCA(3, kernel=kernel, n_landmarks=M, sampling=sampling).fit(rows)


@pytest.mark.parametrize(
    ("kernel", "sampling"),
    [*((name, "numbers") for name in KERNELS), *(("rbf", name) for name in SAMPLINGS), ("cosine", "rpcholesky")],
)
def test_sparse_rows_have_the_model_and_the_scores_of_dense_ones(kernel: str, sampling: str) -> None:
    rows = sparse_rows()
    own, dense = (fitted(KERNELS[kernel], SAMPLINGS[sampling], X) for X in (rows, rows.toarray()))
    np.testing.assert_allclose(own.eigenvalues_, dense.eigenvalues_, rtol=1e-9)
    np.testing.assert_array_equal(own.landmark_indices_, dense.landmark_indices_)
    truth, size = dense.transform(rows.toarray()), np.abs(dense.transform(rows.toarray())).max()
    np.testing.assert_allclose(own.transform(rows), truth, rtol=0, atol=1e-8 * size)
    np.testing.assert_allclose(own.novelty(rows), dense.novelty(rows.toarray()), rtol=0, atol=1e-7 * size**2)
    assert own.kernel_evaluations_ == dense.kernel_evaluations_


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("kernel", ["linear", "polynomial"])
def test_exact_features_of_sparse_rows_are_those_of_dense_ones(kernel: str, dtype: str, *, lazily: bool) -> None:
    rows = csr_array(sparse_rows().astype(dtype))
    given = da.from_array(rows, chunks=((150, 250), D)) if lazily else rows
    model = bp.KernelPCA(3, kernel=KERNELS[kernel], solver="features")
    own, dense = clone(model).fit(given), clone(model).fit(rows.toarray())
    np.testing.assert_allclose(own.eigenvalues_, dense.eigenvalues_, rtol=1e-9)
    truth = dense.transform(rows.toarray())
    np.testing.assert_allclose(own.transform(rows), truth, rtol=0, atol=1e-6 * np.abs(truth).max())


@pytest.mark.parametrize("preprocess", [None, bp.preprocessing.Power(0.5)])
def test_centres_of_sparse_rows_are_those_of_dense_chunks_of_bounded_size(
    preprocess: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigpca.data.dask_arrays.DASK_CHUNK_BYTES", 8 * max(D, 10 * 5) * 70)  # or 50 candidates
    rows, model = sparse_rows(), bp.NystromKernelPCA(3, kernel=RBF(1e-3), n_landmarks=5, sampling="kmeans")
    model.set_params(preprocess=preprocess)
    chunks = ((70, 70, 10, 70, 70, 70, 40), D)
    own = model.fit(da.from_array(rows, chunks=((150, 250), D)))
    dense = clone(model).fit(da.from_array(rows.toarray(), chunks=chunks))
    np.testing.assert_allclose(own.landmarks_, dense.landmarks_, rtol=1e-12)
    np.testing.assert_allclose(own.eigenvalues_, dense.eigenvalues_, rtol=1e-9)


def test_given_landmarks_may_be_sparse_and_rows_with_nan_have_no_scores() -> None:
    rows = sparse_rows()
    own, dense = (fitted(RBF(1e-3), X[3 : 3 + M], rows) for X in (rows, rows.toarray()))
    np.testing.assert_array_equal(own.eigenvalues_, dense.eigenvalues_)
    bad = rows.copy()
    bad.data[5] = np.nan
    row = int(np.searchsorted(bad.indptr, 5, side="right")) - 1
    with pytest.raises(bp.errors.NonFiniteError, match=f"the first in row {row}, column {bad.indices[5]}"):
        own.transform(bad)
    scores = own.set_params(nan_policy="omit").transform(bad)
    assert np.isnan(scores[row]).all()
    np.testing.assert_array_equal(np.delete(scores, row, axis=0), np.delete(own.transform(rows), row, axis=0))
