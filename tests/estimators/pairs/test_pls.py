"""PLSRegression equals partial least squares on rows, and scikit-learn's where that converges."""

from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import cross_decomposition
from sklearn.model_selection import GridSearchCV, PredefinedSplit

import bigpca as bp
from bigpca.rules import CrossValidated

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
    scores, expected = model.transform(X, Y), theirs.transform(X, Y)
    back = zip(model.inverse_transform(*scores), theirs.inverse_transform(*expected), strict=True)
    for own, other in [*zip(scores, expected, strict=True), *back]:
        np.testing.assert_allclose(own, other, atol=1e-6 * np.abs(other).max())


@pytest.mark.parametrize("units", [1e80, 1e-80, 10.0 ** np.arange(-40, 40, 10)], ids=["up", "down", "own"])
def test_columns_may_have_any_units(units: Any) -> None:
    plain, model = bp.PLSRegression(K).fit(X, Y), bp.PLSRegression(K).fit(X * units, Y * 1e60)
    np.testing.assert_allclose(model.x_rotations_, plain.x_rotations_, atol=1e-9)
    np.testing.assert_allclose(model.coef_ * units / 1e60, plain.coef_, rtol=1e-7)


@pytest.mark.parametrize("n_components", [K, CrossValidated(max_components=4)])
@pytest.mark.parametrize(("of_x", "of_y"), [(1e80, 1e78), (1e140, 1e140), (1e-80, 1e80), (1e-140, 1e-140)])
def test_sides_that_are_not_scaled_may_have_any_unit(of_x: float, of_y: float, n_components: Any) -> None:
    plain = bp.PLSRegression(n_components, scale=False).fit(X, Y)
    model = bp.PLSRegression(n_components, scale=False).fit(X * of_x, Y * of_y)
    for name in ("x_weights_", "x_loadings_", "r2_", "vip_"):
        np.testing.assert_allclose(getattr(model, name), getattr(plain, name), rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(model.coef_ * (of_x / of_y), plain.coef_, rtol=1e-9)
    np.testing.assert_allclose(model.y_rotations_ * (of_y / of_x), plain.y_rotations_, rtol=1e-9)
    np.testing.assert_allclose(model.predict(X * of_x) / of_y, plain.predict(X), rtol=1e-9, atol=1e-12)
    if n_components != K:
        np.testing.assert_allclose(model.cv_errors_, plain.cv_errors_, rtol=1e-9)


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


FOLDS = RNG.integers(0, 4, N)


@pytest.mark.parametrize("q", [1, Q])
@pytest.mark.parametrize("scale", [True, False])
def test_errors_of_folds_are_those_of_a_grid_search_of_scikit_learn(q: int, scale: bool) -> None:
    targets = Y[:, :q] * [3.0, 1.0, 0.2][:q]
    model = bp.PLSRegression(CrossValidated(max_components=6), scale=scale)
    rows = da.from_array(X, chunks=(70, P))
    assert model.plan(rows, targets, groups=FOLDS).passes == 1
    model.fit(rows, targets, groups=FOLDS)
    theirs = GridSearchCV(
        cross_decomposition.PLSRegression(scale=scale, tol=1e-15, max_iter=5000),
        {"n_components": [1, 2, 3, 4, 5, 6]}, cv=PredefinedSplit(FOLDS),
        scoring=lambda fitted, X, y: -np.mean((y - fitted.predict(X).reshape(y.shape)) ** 2 / targets.var(axis=0)),
    )  # fmt: skip
    theirs.fit(X, targets)
    expected = [-theirs.cv_results_[f"split{fold}_test_score"] for fold in range(4)]
    np.testing.assert_allclose(model.cv_errors_[:, 1:], expected, rtol=1e-6)
    of_means = [
        np.mean((targets[f == FOLDS] - targets[f != FOLDS].mean(axis=0)) ** 2 / targets.var(axis=0)) for f in range(4)
    ]
    np.testing.assert_allclose(model.cv_errors_[:, 0], of_means, rtol=1e-10)
    chosen = CrossValidated().at(model.cv_errors_, np.bincount(FOLDS)).choose(np.ones(1), 1.0, N, P)
    assert model.n_components_ == chosen
    alone = bp.PLSRegression(model.n_components_, scale=scale).fit(X, targets)
    np.testing.assert_allclose(model.coef_, alone.coef_, rtol=1e-9)
    assert model.transform(X).shape == (N, chosen)


def test_the_number_that_predicts_is_chosen_and_one_where_nothing_does() -> None:
    rng = np.random.default_rng(2)
    scores = rng.standard_normal((2000, 3)) * [3, 2, 1.5]
    wide = scores @ rng.standard_normal((3, 30)) + 0.05 * rng.standard_normal((2000, 30))
    targets = scores @ rng.standard_normal((3, 2)) + 0.5 * rng.standard_normal((2000, 2))
    for n_components in (CrossValidated(), "cross-validated"):
        assert bp.PLSRegression(n_components).fit(wide, targets).n_components_ == 3
    assert bp.PLSRegression(CrossValidated()).fit(wide, rng.standard_normal(2000)).n_components_ == 1


def test_folds_of_added_rows_of_merged_models_and_beside_covariates_are_those_of_one_fit(tmp_path: Any) -> None:
    given, rule = RNG.standard_normal((N, 2)), CrossValidated(max_components=5)
    whole = bp.PLSRegression(rule).fit(X, Y, groups=FOLDS)
    half = slice(150), slice(150, N)
    grown = bp.PLSRegression(rule).fit(X[half[0]], Y[half[0]], groups=FOLDS[half[0]])
    grown.partial_fit(X[half[1]], Y[half[1]], groups=FOLDS[half[1]])
    merged = bp.merge(*(bp.PLSRegression(rule).fit(X[own], Y[own], groups=FOLDS[own]) for own in half))
    merged.save(tmp_path / "m.zarr")
    loaded = bp.load(tmp_path / "m.zarr")
    for model in (grown, merged, loaded):
        np.testing.assert_allclose(model.cv_errors_, whole.cv_errors_, rtol=1e-9)
        assert model.groups_.tolist() == [0, 1, 2, 3]
    assert loaded.n_components == rule
    beside = bp.PLSRegression(rule, scale=False).fit(X, Y, covariates=given, groups=FOLDS)
    for fold in range(4):
        own = fold == FOLDS
        effects = [np.linalg.lstsq(np.c_[np.ones(N), given][~own], one[~own])[0] for one in (X, Y)]
        left, target = (one - np.c_[np.ones(N), given] @ b for one, b in zip((X, Y), effects, strict=True))
        kept = bp.PLSRegression(3, scale=False).fit(left[~own], target[~own])
        spread = (Y - np.c_[np.ones(N), given] @ np.linalg.lstsq(np.c_[np.ones(N), given], Y)[0]).var(axis=0)
        error = np.mean((target[own] - kept.predict(left[own])) ** 2 / spread)
        np.testing.assert_allclose(beside.cv_errors_[fold, 3], error, rtol=1e-9)


@pytest.mark.parametrize(
    ("n_components", "message"),
    [
        (CrossValidated(criterion="likelihood"), "the criterion is one of PCA, but PLSRegression compares the errors"),
        (CrossValidated(max_components=9), f"n_components = 9, but X has {P} columns"),
        ("elbow", "n_components = 'elbow'"),
        (0.5, "n_components = 0.5"),
    ],
)
def test_rules_that_are_not_of_predictions_are_rejected_unread(n_components: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        bp.PLSRegression(n_components).fit(X, Y)
    with pytest.raises(TypeError, match="groups were passed to this PLSRegression, which uses none"):
        bp.PLSRegression(2).fit(X, Y, groups=FOLDS)
    with pytest.raises(ValueError, match=r"only 1 of 5 folds have rows|Found array with 1 sample"):
        bp.PLSRegression(CrossValidated()).partial_fit(X[:2], Y[:2]).cv_errors_  # noqa: B018
