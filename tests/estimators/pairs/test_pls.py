"""PLSRegression equals partial least squares on rows, and scikit-learn's where that converges."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import cross_decomposition

import bigpca as bp

Array = NDArray[Any]
N, P, Q, K = 300, 8, 3, 4
RNG = np.random.default_rng(5)
X = RNG.standard_normal((N, P)) @ RNG.standard_normal((P, P)) + 5.0
Y = X[:, :4] @ RNG.standard_normal((4, Q)) + 3 * RNG.standard_normal((N, Q)) - 2.0
NAMES = ("x_weights_", "y_weights_", "x_rotations_", "y_rotations_", "x_loadings_", "y_loadings_", "coef_")


def by_deflation(X: Array, Y: Array, k: int) -> tuple[list[Array], Array, list[float]]:
    """Weights, scores and explained squares of rows that are deflated, as the method is defined."""
    X, Y = ((one - one.mean(axis=0)) / one.std(axis=0, ddof=1) for one in (X, Y))
    weights, scores, squares = [], [], []
    for _ in range(k):
        w = np.linalg.svd(X.T @ Y)[0][:, 0]
        w *= np.sign(w[np.abs(w).argmax()])
        t = X @ w
        c = Y.T @ t / (t @ t)
        X, Y = X - np.outer(t, X.T @ t / (t @ t)), Y - np.outer(t, c)
        weights, scores, squares = [*weights, w], [*scores, t], [*squares, float(c @ c * (t @ t))]
    return weights, np.stack(scores, axis=1), squares


@pytest.mark.parametrize("q", [1, Q])
@pytest.mark.parametrize("chunk", [7, 100, N])
def test_scores_weights_and_importances_are_those_of_deflated_rows(q: int, chunk: int) -> None:
    model = bp.PLSRegression(K).fit(da.from_array(X, chunks=(chunk, P)), Y[:, :q])
    weights, scores, squares = by_deflation(X, Y[:, :q], K)
    np.testing.assert_allclose(model.x_weights_, np.stack(weights, axis=1), atol=1e-10)
    np.testing.assert_allclose(model.transform(X), scores, atol=1e-9)
    np.testing.assert_allclose(model.r2_, np.array(squares) / (q * (N - 1)), atol=1e-12)
    vip = np.sqrt(P * (np.stack(weights, axis=1) ** 2 @ squares) / sum(squares))
    np.testing.assert_allclose(model.vip_, vip, rtol=1e-9)
    assert model.score(X, Y[:, :q]) == pytest.approx(model.r2_.sum())


@pytest.mark.parametrize("scale", [True, False])
def test_names_and_numbers_are_those_of_scikit_learn(scale: bool) -> None:
    model = bp.PLSRegression(K, scale=scale).fit(X, Y)
    theirs = cross_decomposition.PLSRegression(K, scale=scale, tol=1e-15, max_iter=5000).fit(X, Y)
    for name in NAMES:
        expected = getattr(theirs, name)
        np.testing.assert_allclose(getattr(model, name), expected, atol=1e-6 * np.abs(expected).max(), err_msg=name)
    np.testing.assert_allclose(model.predict(X), theirs.predict(X), atol=1e-6)
    for found, expected in zip(model.transform(X, Y), theirs.transform(X, Y), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("units", [1e80, 1e-80, 10.0 ** np.arange(-40, 40, 10)], ids=["up", "down", "own"])
def test_columns_may_have_any_units(units: Any) -> None:
    plain, model = bp.PLSRegression(K).fit(X, Y), bp.PLSRegression(K).fit(X * units, Y * 1e60)
    np.testing.assert_allclose(model.x_rotations_, plain.x_rotations_, atol=1e-9)
    np.testing.assert_allclose(model.coef_ * units / 1e60, plain.coef_, rtol=1e-7)


def test_components_that_explain_nothing_are_zero_and_reported() -> None:
    with pytest.warns(bp.errors.ApproximationWarning, match="1 components explain all of Y that X can: the other 2 "):
        model = bp.PLSRegression(3, scale=False).fit(X[:, :1] * np.eye(4)[:1], X[:, 0])
    assert model.r2_.round(9).tolist() == [1.0, 0.0, 0.0]
    rank_two = X[:, :2] @ RNG.standard_normal((2, P))
    with pytest.warns(bp.errors.ApproximationWarning, match=r"2 components .* the other 3"):
        model = bp.PLSRegression(5).fit(rank_two, Y)
    assert np.isfinite(model.coef_).all()
    assert not model.x_rotations_[:, 2:].any()
    expected = np.linalg.lstsq(rank_two - rank_two.mean(axis=0), Y - Y.mean(axis=0))[0]
    np.testing.assert_allclose(model.predict(rank_two), (rank_two - rank_two.mean(axis=0)) @ expected + Y.mean(axis=0))


def test_all_components_are_least_squares_and_weights_are_repetitions() -> None:
    model = bp.PLSRegression(P).fit(X, Y)
    expected = np.linalg.lstsq(X - X.mean(axis=0), Y - Y.mean(axis=0))[0].T
    np.testing.assert_allclose(model.coef_, expected, rtol=1e-7)
    counts = RNG.integers(0, 4, N)
    weighted = bp.PLSRegression(K).fit(X, Y, sample_weight=counts)
    repeated = bp.PLSRegression(K).fit(np.repeat(X, counts, axis=0), np.repeat(Y, counts, axis=0))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-9)
    with pytest.raises(ValueError, match=f"n_components = 9, but X has {P} columns: at most {P} components exist"):
        bp.PLSRegression(9).fit(X, Y)
