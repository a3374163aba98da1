"""FactorAnalysis has the largest likelihood, and scikit-learn's numbers where that has converged."""

from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import decomposition
from sklearn.decomposition._factor_analysis import _ortho_rotation

import bigpca as bp

Array = NDArray[Any]
N, D, K = 500, 9, 2
RNG = np.random.default_rng(2)
LOADINGS = RNG.standard_normal((K, D))
X = RNG.standard_normal((N, K)) @ LOADINGS + RNG.standard_normal((N, D)) * np.linspace(0.7, 3, D) + 5.0


def by_fixed_point(X: Array, k: int) -> tuple[Array, Array]:
    """Loadings and noise by alternation on the covariance, until nothing changes."""
    S = np.cov(X.T, bias=True)
    noise = np.ones(len(S))
    for _ in range(20_000):
        values, V = np.linalg.eigh(S / np.sqrt(np.outer(noise, noise)))
        W = np.sqrt(np.maximum(values[::-1][:k] - 1, 0))[:, None] * V[:, ::-1][:, :k].T * np.sqrt(noise)
        update = np.diag(S) - (W**2).sum(axis=0)
        if np.abs(update / noise - 1).max() < 1e-12:
            break
        noise = update
    return W, update


@pytest.mark.parametrize("chunk", [13, 100, N])
def test_loadings_and_noise_are_those_of_the_fixed_point(chunk: int) -> None:
    model = bp.FactorAnalysis(K, tol=1e-9).fit(da.from_array(X, chunks=(chunk, D)))
    W, noise = by_fixed_point(X, K)
    np.testing.assert_allclose(model.noise_variance_, noise, rtol=1e-6)
    np.testing.assert_allclose(np.abs(model.components_), np.abs(W), atol=1e-6)
    np.testing.assert_allclose(model.get_covariance().diagonal(), X.var(axis=0), rtol=1e-6)
    assert model.converged_
    assert model.total_variance_ == pytest.approx(X.var(axis=0).sum())
    assert len(model.loglike_) == model.n_iter_


@pytest.mark.parametrize("rotation", [None, "varimax", "quartimax"])
def test_names_and_numbers_are_those_of_scikit_learn(rotation: str | None) -> None:
    model = bp.FactorAnalysis(K, rotation=rotation).fit(X)
    theirs = decomposition.FactorAnalysis(K, tol=0.0, max_iter=20_000, svd_method="lapack").fit(X)
    if rotation is not None:  # at the 1e-6 of its criterion where scikit-learn stops, loadings are known to 2e-4
        turned = _ortho_rotation(theirs.components_.T, rotation, tol=0.0, max_iter=1000)
        theirs.components_ = turned[np.argsort(-(turned**2).sum(axis=1))]
    for name in ("get_covariance", "get_precision"):
        np.testing.assert_allclose(getattr(model, name)(), getattr(theirs, name)(), atol=1e-6)
    np.testing.assert_allclose(model.noise_variance_, theirs.noise_variance_, rtol=1e-6)
    assert model.loglike_[-1] == pytest.approx(theirs.loglike_[-1], rel=1e-9)
    np.testing.assert_allclose(np.abs(model.components_), np.abs(theirs.components_), atol=1e-5)
    np.testing.assert_allclose(np.abs(model.transform(X)), np.abs(theirs.transform(X)), atol=1e-5)
    np.testing.assert_allclose(model.score_samples(X), theirs.score_samples(X), rtol=1e-6)
    rows = model.mean_ + model.transform(X) @ model.components_
    np.testing.assert_allclose(model.inverse_transform(model.transform(X)), rows, atol=1e-9)
    assert model.score(X) == pytest.approx(theirs.score(X), rel=1e-9)
    assert model.score(X) * N == pytest.approx(model.loglike_[-1], rel=1e-9)


@pytest.mark.parametrize("units", [1e80, 1e-80, 10.0 ** np.arange(-40, 50, 10)], ids=["up", "down", "own"])
def test_columns_may_have_any_units_and_any_mean(units: Any) -> None:
    plain, model = bp.FactorAnalysis(K).fit(X), bp.FactorAnalysis(K).fit((X + 100) * units)
    np.testing.assert_allclose(np.abs(model.components_), np.abs(plain.components_) * units, rtol=1e-4, atol=0)
    np.testing.assert_allclose(model.noise_variance_, plain.noise_variance_ * units**2, rtol=1e-5)
    np.testing.assert_allclose(model.score_samples(((X + 100) * units)[:9]),
                               plain.score_samples(X[:9]) - np.sum(np.log(units) * np.ones(D)), rtol=1e-5)  # fmt: skip


def test_a_column_that_factors_determine_keeps_a_little_noise() -> None:
    twins = np.column_stack([X[:, 0], X[:, 0], X[:, 1:3]])
    model = bp.FactorAnalysis(1).fit(twins)
    assert model.noise_variance_[0] == pytest.approx(1e-6 * X[:, 0].var())
    assert np.isfinite(model.transform(twins)).all()
    for rows in (twins[:, :3], X[:2]):  # at the bound there is nothing to report
        assert bp.FactorAnalysis().fit(rows).converged_
    theirs = decomposition.FactorAnalysis(1, tol=1e-6, svd_method="lapack").fit(X)
    assert bp.FactorAnalysis(1).fit(X).loglike_[-1] >= theirs.loglike_[-1]


def test_constant_columns_have_neither_loadings_nor_noise() -> None:
    wide = np.column_stack([X, np.full(N, 1e6 + 0.1)])
    model = bp.FactorAnalysis(K).fit(wide)
    plain = bp.FactorAnalysis(K).fit(X)
    assert model.noise_variance_[-1] == 0
    assert not model.components_[:, -1].any()
    np.testing.assert_allclose(model.transform(wide), plain.transform(X), atol=1e-6)
    for call in (lambda: model.score_samples(wide), model.get_precision):
        with pytest.raises(ValueError, match="the model has no density: 1 of 10 columns are constant"):
            call()
    with pytest.raises(ValueError, match=r"all 3 columns are constant in 20 rows"):
        bp.FactorAnalysis(1).fit(np.full((20, 3), 7.1))


def test_an_iteration_that_stops_early_says_so() -> None:
    with pytest.warns(bp.errors.ApproximationWarning, match=r"a slope of .* after 2 iterations; tol = 1e-07 was"):
        model = bp.FactorAnalysis(K, max_iter=2).fit(X)
    assert not model.converged_
    with pytest.raises(ValueError, match="max_iter = 0"):
        bp.FactorAnalysis(K, max_iter=0).fit(X)
