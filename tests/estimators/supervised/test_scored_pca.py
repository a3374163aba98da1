"""Scored PCA: the scores are scikit-learn's statistics, the best features are chosen, and the rest is the
estimator's.
"""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.feature_selection import f_classif, f_regression
from sklearn.linear_model import LinearRegression

import bigpca as bp
from bigpca import ScoredPCA
from tests.estimators.labelled import labelled_rows
from tests.estimators.stores import stored, unreadable
from tests.operators.counting import Reads

Array = NDArray[Any]
N, D = 240, 12
X, Y = labelled_rows(N, D, 3, mean=5.0)
REAL = X[:, 3] - 2 * X[:, 7] + 0.1 * np.random.default_rng(1).standard_normal(N)


def alone(columns: list[int], **options: Any) -> Array:
    """Rows that depend on the target in these columns only, and noise."""
    rows = np.random.default_rng(2).standard_normal((N, D))
    rows[:, columns] += np.linspace(-3, 3, N)[:, None]
    return rows


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_of_classes_are_the_one_way_statistic_and_rank_two_classes_as_the_correlation(classes: int) -> None:
    y = Y % classes
    model = ScoredPCA(1, n_features_to_select=4).fit(X, y)
    np.testing.assert_allclose(model.scores_, f_classif(X, y)[0], rtol=1e-10)
    if classes == 2:
        correlation = np.abs(np.corrcoef(X.T, y)[-1, :-1])
        np.testing.assert_array_equal(np.argsort(model.scores_), np.argsort(correlation))


def test_of_equal_scores_the_first_features_are_chosen_whatever_the_container_and_the_order_of_rows() -> None:
    rng, kinds = np.random.default_rng(5), np.random.default_rng(6).standard_normal((N, 2)) + Y[:, None] * [1.0, 0.2]
    rows = np.empty((N, 30))
    for j in range(30):  # the same values for each class, in another order
        for label in range(3):
            rows[label == Y, j] = rng.permutation(kinds[label == Y, j % 2])
    for order in (slice(None), slice(None, None, -1), rng.permutation(N)):
        for form in (np.asarray, csr_array, lambda x: da.from_array(x, chunks=(50, 7))):
            model = ScoredPCA(1, n_features_to_select=9).fit(form(rows[order]), Y[order])
            assert model.selected_.tolist() == [*range(0, 18, 2)]


def test_scores_of_real_labels_are_the_squared_multiple_correlation() -> None:
    F = f_regression(X, REAL)[0]
    one = ScoredPCA(1).fit(X, REAL)
    np.testing.assert_allclose(one.scores_, F / (F + N - 2), rtol=1e-9)
    both = np.column_stack([REAL, np.sin(X[:, 0])])
    two = ScoredPCA(1).fit(X, both)
    truth = [LinearRegression().fit(both, column).score(both, column) for column in X.T]
    np.testing.assert_allclose(two.scores_, truth, rtol=1e-9)


def test_labels_of_omitted_rows_do_not_count() -> None:
    y, rows = np.column_stack([REAL, np.sin(X[:, 0])]), X.copy()
    rows[::3, 0], y[:5] = np.nan, np.nan
    left = np.isfinite(rows).all(axis=1)
    expected = ScoredPCA(1, missing_labels="drop").fit(X[left], y[left]).scores_
    model = ScoredPCA(1, n_features_to_select=D, nan_policy="omit", missing_labels="drop")
    np.testing.assert_allclose(model.fit(rows, y).scores_, expected, rtol=1e-9)
    assert model.mean_.shape == (D,)


@pytest.mark.parametrize("count", [3, "cv"])
@pytest.mark.parametrize("container", [np.asarray, csr_array, lambda rows: bp.open(rows, columns=slice(1, None))])
def test_all_parts_omit_the_same_rows(container: Any, count: Any) -> None:
    rows = X.copy()
    rows[::3, 0], rows[1::5, 5] = np.nan, np.inf if container is np.asarray else np.nan
    expected = rows[:, X.shape[1] - container(rows).shape[1] :]  # the columns that are analysed
    left = np.isfinite(expected).all(axis=1)
    assert 20 < left.sum() < N - 20
    plain = ScoredPCA(2, n_features_to_select=3).fit(expected[left], Y[left])
    model = ScoredPCA(2, n_features_to_select=count, nan_policy="omit").fit(container(rows), Y)
    assert model.estimator_.n_samples_ == left.sum()
    chosen = bp.PCA(2).fit(expected[left][:, model.selected_])
    np.testing.assert_allclose(model.estimator_.explained_variance_, chosen.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(model.scores_, plain.scores_, rtol=1e-9)


def test_class_codes_are_never_taken_for_numbers() -> None:
    names = np.array(["c", "a", "b"])[Y]
    np.testing.assert_array_equal(ScoredPCA(1).fit(X, names).selected_, ScoredPCA(1).fit(X, Y).selected_)
    np.testing.assert_array_equal(ScoredPCA(1).fit(X, [7, -3, 100] @ np.eye(3)[:, Y].astype(int)).scores_.shape, (D,))


@pytest.mark.parametrize(("given", "count"), [(4, 4), (0.25, 3), (0.01, 1), (D, D)])
def test_the_best_features_go_to_the_estimator(given: Any, count: int) -> None:
    model = ScoredPCA(1, n_features_to_select=given).fit(X, Y)
    best = np.sort(np.argsort(-f_classif(X, Y)[0])[:count])
    np.testing.assert_array_equal(model.selected_, best)
    plain = bp.PCA(1).fit(X[:, best])
    np.testing.assert_allclose(model.transform(X), plain.transform(X[:, best]), rtol=0, atol=1e-12)


def test_any_estimator_may_follow_and_is_left_as_it_was(tmp_path: Path) -> None:
    inner = bp.KernelPCA(2, kernel="rbf", gamma=0.05)
    model = ScoredPCA(estimator=inner, n_features_to_select=3).fit(X, Y)
    chosen = X[:, model.selected_]
    np.testing.assert_allclose(model.transform(X), inner.fit(chosen).transform(chosen), rtol=0, atol=1e-12)
    assert model.estimator_ is not inner
    lazy = da.from_array(X, chunks=(70, D))
    np.testing.assert_allclose(model.transform(lazy).compute(), model.transform(X), atol=1e-12)
    written = model.transform(lazy, out=tmp_path / "scores.zarr").compute()
    np.testing.assert_allclose(written, model.transform(X), atol=1e-12)
    supervised = ScoredPCA(estimator=bp.SupervisedPCA(), n_features_to_select=5).fit(X, Y)  # labels reach it too
    np.testing.assert_array_equal(supervised.estimator_.classes_, [0, 1, 2])
    first = ScoredPCA(2, n_features_to_select=4).fit(X[:150], Y[:150])  # whose estimator takes rows, from a file too
    first.save(tmp_path / "model")
    for one in (first, bp.load(tmp_path / "model")):
        one.estimator_.partial_fit(X[150:, one.selected_])
        chosen = X[:, one.selected_]
        np.testing.assert_allclose(one.transform(X), bp.PCA(2).fit(chosen).transform(chosen), atol=1e-8)


def test_cross_validation_finds_the_features_that_matter_in_one_further_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, y = alone([2, 5, 9]), np.linspace(-3, 3, N)
    lazy = stored(tmp_path, rows, (40, D))
    reads = Reads().watch(monkeypatch)
    model = ScoredPCA(1, n_features_to_select="cv").fit(lazy, y)
    counted = reads.per_chunk((N, D), (40, D))
    assert (counted == 3).all()  # scores, folds, PCA
    assert set(model.cv_scores_) == {12, 6, 3, 1}
    np.testing.assert_array_equal(model.selected_, [2, 5, 9])
    assert model.plan(lazy, y).passes == 3


@pytest.mark.parametrize("n_components", [2, 0.7, None])
def test_the_explained_share_is_that_of_regression_on_the_components_of_the_other_folds(n_components: Any) -> None:
    rows, y = alone([2, 5, 9]), np.linspace(-3e-3, 3e-3, N)  # shares do not depend on the unit
    model = ScoredPCA(n_components, n_features_to_select="cv", cv=3, random_state=4).fit(rows, y)
    assert min(model.cv_scores_) == (2 if n_components == 2 else 1)  # no fewer features than components
    from bigpca.seeds import integers

    folds = integers(4, "folds", 0, N, 1, 3)[:, 0]
    best = np.argsort(-model.scores_, kind="stable")
    for count, found in model.cv_scores_.items():
        columns, shares = best[:count], []
        for fold in range(3):
            train, test = folds != fold, folds == fold
            pca = bp.PCA(n_components).fit(rows[np.ix_(train, columns)])
            line = LinearRegression().fit(pca.transform(rows[np.ix_(train, columns)]), y[train])
            residual = y[test] - line.predict(pca.transform(rows[np.ix_(test, columns)]))
            shares.append(1 - (residual**2).sum() / ((y[test] - y[train].mean()) ** 2).sum())
        assert found == pytest.approx(np.mean(shares), abs=1e-9)


def test_constant_features_score_0_and_rows_without_a_label_do_not_score() -> None:
    rows = X.copy()
    rows[:, 4] = 3.0
    names = np.where(np.arange(N) % 10 == 0, None, np.array(["a", "b", "c"], object)[Y])
    model = ScoredPCA(1, missing_labels="drop").fit(rows, names)
    used = np.arange(N) % 10 != 0
    others = np.arange(D) != 4
    assert model.scores_[4] == 0
    np.testing.assert_allclose(model.scores_[others], f_classif(rows[used][:, others], Y[used])[0], rtol=1e-10)
    assert model.estimator_.n_samples_ == N


REJECTED: list[tuple[dict[str, Any], Any, type[Exception], str]] = [
    ({"n_features_to_select": 0}, Y, ValueError, 'an integer from 1 to 12, a share in .* or "cv" was expected'),
    ({"n_features_to_select": D + 1}, Y, ValueError, "n_features_to_select = 13"),
    ({"n_features_to_select": 1.0}, Y, ValueError, "n_features_to_select = 1.0"),
    ({"n_features_to_select": True}, Y, ValueError, "n_features_to_select = True"),
    ({"cv": 1, "n_features_to_select": "cv"}, Y, ValueError, "cv = 1 is outside"),
    ({"estimator": "PCA"}, Y, TypeError, "an estimator of bigpca was expected"),
    ({}, None, ValueError, "requires y to be passed"),
    ({}, Y[:-1], ValueError, "240"),
    ({}, np.zeros(N, int), ValueError, "class"),
    ({}, np.arange(N), ValueError, "240 rows have 240 classes, one row each.*Give classes of several rows"),
    ({}, np.full(N, 0.5), ValueError, "all 240 labels are equal"),
    ({"estimator": bp.PCA(5), "n_features_to_select": 4}, Y, ValueError, "n_components = 5 is out of range"),
]


@pytest.mark.parametrize(("options", "y", "error", "message"), REJECTED, ids=lambda value: str(value)[:30])
def test_what_cannot_be_is_rejected_unread(
    options: dict[str, Any], y: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ScoredPCA(1, **options).fit(unreadable(N, D), y)


@pytest.mark.parametrize("given", [4, "cv"])
def test_rows_of_unknown_number_are_counted_once_and_give_the_same_model(given: Any) -> None:
    lazy = da.from_array(X, chunks=(70, D))
    unknown = lazy[lazy[:, 0] > -1e9]
    assert np.isnan(unknown.shape[0])
    model, truth = (ScoredPCA(1, n_features_to_select=given).fit(rows, REAL) for rows in (unknown, X))
    np.testing.assert_array_equal(model.selected_, truth.selected_)
    np.testing.assert_allclose(model.transform(X), truth.transform(X), atol=1e-10)
    assert ScoredPCA(1, n_features_to_select=given).plan(unknown, REAL).passes == 3 + (given == "cv")


def test_a_plan_hands_the_labels_to_an_estimator_that_learns_from_them() -> None:
    for inner in (bp.SupervisedPCA(), bp.RoweisDiscriminantAnalysis(2)):
        plan = ScoredPCA(estimator=inner, n_features_to_select=4).plan(unreadable(N, D), Y)
        assert plan.passes == 2
