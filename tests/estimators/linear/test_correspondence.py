"""Correspondence analysis equals the singular value decomposition of standardised residuals of the whole table."""

from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

import bigpca as bp

Array = NDArray[Any]
N, D = 300, 6
RNG = np.random.default_rng(8)
RATES = np.exp(RNG.standard_normal((N, 2)) @ RNG.standard_normal((2, D)) / 2) * RNG.integers(5, 60, (N, 1))
X = RNG.poisson(RATES) + np.eye(N, D)


def dense(X: Array) -> tuple[Array, Array, Array]:
    """Principal inertias, and principal coordinates of rows and columns."""
    P = X / X.sum()
    r, c = P.sum(axis=1), P.sum(axis=0)
    U, s, Vt = np.linalg.svd((P - np.outer(r, c)) / np.sqrt(np.outer(r, c)), full_matrices=False)
    return s**2, U * s / np.sqrt(r)[:, None], Vt.T * s / np.sqrt(c)[:, None]


def assert_same_up_to_sign(found: Array, expected: Array, atol: float) -> None:
    np.testing.assert_allclose(found * np.sign((found * expected).sum(axis=0)), expected, atol=atol)


@pytest.mark.parametrize("chunk", [1, 70, N])
@pytest.mark.parametrize("units", [1, 1e-4, 1e9])
def test_coordinates_are_those_of_the_dense_table_for_any_chunks_and_units(chunk: int, units: float) -> None:
    model = bp.CorrespondenceAnalysis().fit(da.from_array(X * units, chunks=(chunk, D)))
    inertias, rows, columns = dense(X)
    assert (model.rank_, model.n_samples_, model.plan_.passes) == (D - 1, N, 1)  # the trivial axis is none
    np.testing.assert_allclose(model.eigenvalues_, inertias[: D - 1], rtol=1e-11)
    np.testing.assert_allclose(model.total_inertia_, inertias.sum(), rtol=1e-12)
    np.testing.assert_allclose(model.explained_inertia_ratio_.sum(), 1)
    assert_same_up_to_sign(model.transform(X), rows[:, : D - 1], 1e-11)
    assert_same_up_to_sign(model.column_coordinates_, columns[:, : D - 1], 1e-11)
    np.testing.assert_allclose(
        model.inverse_transform(model.transform(X)), X / X.sum(axis=1, keepdims=True), atol=1e-12
    )


def test_small_inertias_of_float32_keep_their_digits() -> None:
    given = (1000 + RNG.standard_normal((2000, D))).astype("f4")  # inertia 1e-6
    model = bp.CorrespondenceAnalysis(2).fit(da.from_array(given, chunks=(300, D)))
    np.testing.assert_allclose(model.eigenvalues_, dense(given.astype("f8"))[0][:2], rtol=1e-8)


def test_sparse_rows_and_columns_of_zeros() -> None:
    wide = np.insert(X, 2, 0.0, axis=1)
    for given in (wide, csr_array(wide)):
        model = bp.CorrespondenceAnalysis(3).fit(given)
        np.testing.assert_allclose(model.eigenvalues_, dense(X)[0][:3], rtol=1e-10)
        assert not model.column_coordinates_[2].any()
        assert_same_up_to_sign(np.asarray(model.transform(given)), dense(X)[1][:, :3], 1e-10)


def test_axes_of_counts_scaled_for_poisson_noise_are_these_after_the_first() -> None:
    scaled = X / np.sqrt(np.outer(X.sum(axis=1), X.sum(axis=0)))  # Keenan & Kotula 2004, to a factor
    _, s, Vt = np.linalg.svd(scaled, full_matrices=False)
    model = bp.CorrespondenceAnalysis(4).fit(X)
    np.testing.assert_allclose(s[:5] ** 2, [1, *model.eigenvalues_], rtol=1e-10)
    assert_same_up_to_sign(np.sqrt(model.mean_)[:, None] * model.components_.T, Vt[1:5].T, 1e-10)


def test_rows_of_zeros_weigh_nothing() -> None:
    given = np.insert(X, [0, 60, 60], 0.0, axis=0)
    for rows in (da.from_array(given, chunks=(1, D)), csr_array(given)):
        model = bp.CorrespondenceAnalysis(3).fit(rows)
        np.testing.assert_allclose(model.eigenvalues_, dense(X)[0][:3], rtol=1e-10)
        assert model.n_samples_ == N
        np.testing.assert_allclose(model.transform(np.zeros((1, D)))[0], -model.components_ @ model.mean_)


def test_what_is_no_table_of_amounts_is_rejected() -> None:
    given = X.copy()
    given[7, 2] = -1.0
    for call in (bp.CorrespondenceAnalysis(1).fit, bp.CorrespondenceAnalysis(1).fit(X).transform):
        with pytest.raises(
            ValueError,
            match=r"^CorrespondenceAnalysis\(\) takes counts, or other amounts of at least 0, but row 7 of .* has -1\.",
        ):
            call(given)
    with pytest.raises(ValueError, match=r"the rows vary in 5 directions only, .*; 6 or more were expected"):
        bp.CorrespondenceAnalysis(6).fit(X)
    with pytest.raises(ValueError, match="n_features = 1, but a profile of one column is 1 in each row"):
        bp.CorrespondenceAnalysis().fit(X[:, :1])
    with pytest.raises(TypeError, match="cannot use: the sum of a row is its weight"):
        bp.CorrespondenceAnalysis(1).fit(X, sample_weight=np.ones(N))
    with pytest.raises(ValueError, match=r"preprocess = \[Profile\(target=1.0\)\] is not linear"):
        bp.CorrespondenceAnalysis(1).fit(X).linear_map()
