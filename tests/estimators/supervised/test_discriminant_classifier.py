"""Where r2 = 1 a discriminant analysis classifies, as scikit-learn's does: by all c - 1 axes,
lazily, far from the origin too.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.base import ClassifierMixin, is_classifier
from sklearn.covariance import ledoit_wolf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.model_selection import GridSearchCV

import bigpca as bp
from bigpca import FisherDiscriminantAnalysis, RoweisDiscriminantAnalysis
from bigpca.errors import ApproximationWarning
from bigpca.estimators.supervised.linear_supervised import ClassDistance, ledoit_wolf_shrinkage
from tests.builders import power_law
from tests.estimators.labelled import centred, labelled_rows, within_scatter
from tests.estimators.stores import stored

Array = NDArray[Any]
N, D = 333, 9
METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function")
CLASSES = {c: labelled_rows(N, D, c, apart=0.7, mean=2.0) for c in (2, 3, 5)}
X, Y = CLASSES[5]
NAMES = np.array(["ant", "bee", "cow", "dog", "elk"])


def oracle(rows: Array, y: Array) -> Any:
    return LinearDiscriminantAnalysis(solver="eigen").fit(rows, y)


MODELS: dict[str, Any] = {
    "Fisher": FisherDiscriminantAnalysis(),
    "one component": FisherDiscriminantAnalysis(1),
    "r1 = 0.3": RoweisDiscriminantAnalysis(1, r1=0.3, r2=1),
    "double supervised, normalized": RoweisDiscriminantAnalysis(1, r1=1, r2=1.0, normalize=True),
    "pinv": FisherDiscriminantAnalysis(regularization="pinv"),
}


@pytest.mark.parametrize("c", CLASSES)
@pytest.mark.parametrize("name", MODELS)
def test_all_that_it_says_of_rows_equals_scikit_learn(name: str, c: int) -> None:
    rows, y = CLASSES[c]
    model, truth = MODELS[name].fit(rows, y), oracle(rows, y)
    for method in METHODS:
        found, expected = getattr(model, method)(rows), getattr(truth, method)(rows)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    for attribute in ("coef_", "intercept_", "classes_"):
        found, expected = getattr(model, attribute), getattr(truth, attribute)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert model.score(rows, y) == truth.score(rows, y)
    if getattr(model, "r1", 0) == 0:
        k = model.n_components_
        assert model.supervision_level_ == 0.5
        np.testing.assert_allclose(model.explained_variance_ratio_, truth.explained_variance_ratio_[:k], rtol=1e-6)


def test_scores_have_variance_1_within_classes_however_many_rows_there_are() -> None:
    """scikit-learn's, whose divisor is n, but for that and the centre."""
    for many in (1, 40):
        rows, y = np.repeat(X, many, axis=0), np.repeat(Y, many)
        scores = FisherDiscriminantAnalysis().fit_transform(rows, y)
        np.testing.assert_allclose(within_scatter(scores, y) / (len(y) - 5), np.eye(4), atol=1e-10)
        expected = centred(oracle(rows, y).transform(rows)) * np.sqrt((len(y) - 5) / len(y))
        np.testing.assert_allclose(scores, expected * np.sign((scores * expected).sum(axis=0)), atol=1e-9)
    model = RoweisDiscriminantAnalysis(2, r1=0.4, r2=1, regularization=3.0).fit(X, Y)
    R2 = (within_scatter(X, Y) + 3.0 * np.eye(D)) / (N - 5)
    np.testing.assert_allclose(model.components_ @ R2 @ model.components_.T, np.eye(2), atol=1e-10)
    inverse = np.linalg.inv(R2 * (N - 5) / N)
    np.testing.assert_allclose(model.coef_, model.class_means_ @ inverse, rtol=1e-9)
    axes, between = model.components_, model._result.state.between
    shares = ((between @ axes.T) ** 2).sum(axis=0) / np.trace(between @ np.linalg.inv(R2) @ between.T)
    np.testing.assert_allclose(model.explained_variance_ratio_, shares, rtol=1e-9)


def test_float32_rows_far_from_the_origin_keep_their_classes(float32_products: None) -> None:
    """Means of 1e4 deviations, and chunks that lack classes: 1e-3 deviations are what the rows have left."""
    far, y = (X + 1e4 * np.arange(1, D + 1)).astype("f4")[at := np.argsort(Y, kind="stable")], NAMES[Y[at]]
    model, truth = FisherDiscriminantAnalysis().fit(da.from_array(far, chunks=(50, D)), y), oracle(centred(far), y)
    np.testing.assert_allclose(model.predict_proba(far), truth.predict_proba(centred(far)), atol=2e-5)


def test_answers_are_lazy_where_rows_are_and_the_same(tmp_path: Path) -> None:
    model = FisherDiscriminantAnalysis(1).fit(X, NAMES[Y])
    for given in (da.from_array(X, chunks=(40, 4)), stored(tmp_path / "again", X, (40, D))):
        for method in METHODS:
            found, expected = getattr(model, method)(given), getattr(model, method)(X)
            assert isinstance(found, da.Array)
            assert found.chunks[0] == given.chunks[0]
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_array_equal(found.compute(), expected)
        assert model.score(given, da.from_array(NAMES[Y])) == model.score(X, NAMES[Y])
    two = FisherDiscriminantAnalysis().fit(*CLASSES[2])
    assert two.decision_function(da.from_array(X, chunks=50)).shape == (N,)


def test_integer_classes_beyond_2_53_are_predicted_to_the_last_bit(tmp_path: Path) -> None:
    """Of int64 in the first batch and uint64 in the next, which would meet in float64."""
    first, then = 2**60 + np.arange(5), np.array([2**60, 2**60 + 1, 2**60 + 2, 2**60 + 3, 2**63 + 5], np.uint64)
    model = FisherDiscriminantAnalysis().fit(X[:200], first[Y[:200]]).partial_fit(X[200:], then[Y[200:]])
    assert model.classes_.tolist() == [*first.tolist(), 2**63 + 5]
    model.save(tmp_path / "model")
    loaded = bp.load(tmp_path / "model")
    assert loaded.predict(X).dtype == np.uint64
    np.testing.assert_array_equal(loaded.predict(X), model.classes_[model.predict_proba(X).argmax(axis=1)])
    assert loaded.score(X[:200], first[Y[:200]]) == np.mean(loaded.predict(X[:200]) == first.astype(np.uint64)[Y[:200]])


def test_a_class_without_rows_is_never_predicted() -> None:
    bad = np.where((Y == 2)[:, None], np.nan, X)
    model = FisherDiscriminantAnalysis(nan_policy="omit").fit(bad, Y)
    truth = FisherDiscriminantAnalysis().fit(X[Y != 2], Y[Y != 2])
    np.testing.assert_allclose(model.predict_proba(X)[:, [0, 1, 3, 4]], truth.predict_proba(X), atol=1e-10)
    assert (model.predict_proba(X)[:, 2] == 0).all()
    assert (model.n_components_, model.class_counts_[2]) == (3, 0)
    np.testing.assert_array_equal(model.predict(X), truth.predict(X))


def test_rows_with_missing_values_have_no_class() -> None:
    bad = X.copy()
    bad[7, 3] = np.nan
    model = FisherDiscriminantAnalysis(nan_policy="omit").fit(X, Y)
    found = model.predict_proba(bad)
    assert np.isnan(found[7]).all()
    np.testing.assert_array_equal(np.delete(found, 7, axis=0), np.delete(model.predict_proba(X), 7, axis=0))
    with pytest.raises(
        bp.errors.NonFiniteError, match=r"1 row of .* hold NaN or infinite values, the first is row 7.*predict_"
    ):
        model.predict(bad)
    with pytest.raises(bp.errors.NonFiniteError, match="1 NaN or infinite value in"):
        FisherDiscriminantAnalysis().fit(X, Y).predict_proba(bad)


def test_score_counts_hits_among_rows_that_have_labels() -> None:
    model = FisherDiscriminantAnalysis(missing_labels="drop").fit(X, NAMES[Y])
    hits = model.predict(X) == NAMES[Y]
    assert model.score(X, NAMES[Y]) == hits.mean()
    weights = np.arange(N)
    assert model.score(X, NAMES[Y], sample_weight=weights) == pytest.approx(
        np.average(hits, weights=weights), rel=1e-12
    )
    some: Any = NAMES[Y].astype(object)
    some[:10] = "gnu"
    some[10:30] = None
    assert model.score(X, some) == hits[30:].sum() / (N - 20)
    frame, order = pd.DataFrame(X, index=[f"row {i}" for i in range(N)]), np.random.default_rng(3).permutation(N)
    assert model.score(frame, pd.Series(some, frame.index).iloc[order]) == hits[30:].sum() / (N - 20)
    holed = np.where((np.arange(N) < 30)[:, None], np.nan, X)  # of rows that have no label, or another one
    lenient = FisherDiscriminantAnalysis(missing_labels="drop", nan_policy="omit").fit(X, NAMES[Y])
    assert lenient.score(holed, some) == hits[30:].mean()
    with pytest.raises(bp.errors.NonFiniteError, match=r"in 10 rows.*rows 0, 1, 2"):
        model.score(holed, some)
    strict = FisherDiscriminantAnalysis().fit(X, NAMES[Y])
    assert strict.score(X, some, np.where(np.arange(N) < 30, 0, 2.0)) == hits[30:].mean()


@pytest.mark.parametrize("once", [False, True])
def test_a_score_takes_the_labels_that_come_with_batches(once: bool) -> None:
    model = FisherDiscriminantAnalysis(missing_labels="drop").fit(X, NAMES[Y])
    hits, gaps = model.predict(X) == NAMES[Y], [None if i % 7 == 0 else name for i, name in enumerate(NAMES[Y])]
    pairs = [(X[i : i + 50], gaps[i : i + 50]) for i in range(0, N, 50)]
    batches = bp.from_batches(iter(pairs) if once else pairs, classes=np.unique(NAMES))
    assert model.score(batches) == hits[np.arange(N) % 7 != 0].mean()
    for y, message in ((None, "requires y to be passed"), ([None] * N, f"all {N} labels are missing")):
        with pytest.raises(ValueError, match=message):
            model.score(X, y)
    with pytest.raises(ValueError, match="all 100 labels are missing"):
        model.score(bp.from_batches(iter([(X[:100], [None] * 100)]), shape=(100, X.shape[1]), classes=np.unique(NAMES)))
    with pytest.raises(ValueError, match="all weights are zero"):
        model.score(X, NAMES[Y], np.zeros(N))


@pytest.mark.parametrize("r2", [0, 0.5, 0.999])
def test_it_is_no_classifier_where_other_than_the_scatter_within_classes_counts(r2: float) -> None:
    model = RoweisDiscriminantAnalysis(2, r2=r2)
    for method in (*METHODS, "score"):
        assert not hasattr(model, method)
        with pytest.raises(AttributeError, match=f"has no attribute '{method}'") as caught:
            getattr(model, method)
        assert f"with r2 = {r2} is not a classifier" in str(caught.value.__cause__)
    assert not is_classifier(model)
    model.fit(X, Y)
    assert not any(hasattr(model, name) for name in ("coef_", "intercept_", "explained_variance_ratio_"))
    with pytest.raises(ValueError, match="fitted with r2 other than 1, so it is not a classifier"):
        model.set_params(r2=1).predict(X)
    assert is_classifier(model)
    assert isinstance(model, ClassifierMixin)
    assert model.fit(X, Y).score(X, Y) == FisherDiscriminantAnalysis().fit(X, Y).score(X, Y)
    assert not hasattr(model.set_params(r2=r2).fit(X, Y), "coef_")


def test_a_search_over_regularizations_scores_by_accuracy_and_frames_keep_their_names() -> None:
    frame = pd.DataFrame(X, columns=[f"f{j}" for j in range(D)])
    search = GridSearchCV(FisherDiscriminantAnalysis(), {"regularization": [1e-6, 1e9]}, cv=3).fit(frame, NAMES[Y])
    assert search.best_params_ == {"regularization": 1e-6}
    assert search.score(frame, NAMES[Y]) > 0.5
    with pytest.raises(ValueError, match="feature names should match"):
        search.best_estimator_.predict(frame[frame.columns[::-1]])


C = 5
NEW = X[:40] * 1.3
MEANS = np.array([X[j == Y].mean(axis=0) for j in range(C)])


def nearest(rows: Array, covariance: Array, means: Array = MEANS) -> Array:
    return cdist(rows, means, "mahalanobis", VI=np.linalg.inv(covariance)).min(axis=1) ** 2


@pytest.mark.parametrize(
    "options",
    [{}, {"n_components": 1}, {"regularization": 0.5}, {"robust": True}],
    ids=["all", "one", "ridge", "robust"],
)
def test_it_is_the_smallest_over_classes_whatever_the_axes_are(options: dict[str, Any]) -> None:
    model = bp.FisherDiscriminantAnalysis(**options).fit(X, Y)
    np.testing.assert_allclose(model.mahalanobis(NEW), nearest(NEW, within_scatter(X, Y) / (N - C)), rtol=1e-10)


def test_distances_far_from_zero_lazily_in_files_and_after_added_rows_are_the_same(tmp_path: Path) -> None:
    model = bp.FisherDiscriminantAnalysis().fit(X[:200] + 1e4, Y[:200]).partial_fit(X[200:] + 1e4, Y[200:])
    lazy = model.mahalanobis(far := da.from_array(NEW + 1e4, (7, D)))
    assert isinstance(lazy, da.Array)
    np.testing.assert_allclose(lazy, nearest(NEW, within_scatter(X, Y) / (N - C)), rtol=1e-7)
    np.testing.assert_allclose(model.mahalanobis(far, out=tmp_path / "far.zarr")[:, 0], lazy, rtol=1e-12)


@pytest.mark.parametrize("apart", [1e-6, 3e-8])
def test_columns_that_are_read_twice_have_the_distance_of_what_tells_them_apart(apart: float, tmp_path: Path) -> None:
    def near(rows: Array) -> Array:
        return np.column_stack([rows[:, :-1], rows[:, 0] + apart * rows[:, -1]])

    model, plain = (bp.FisherDiscriminantAnalysis().fit(rows, Y) for rows in (near(X), X))
    assert model.provenance_.reads == 2
    model.save(tmp_path / "m")
    for found in (model, bp.load(tmp_path / "m")):
        np.testing.assert_allclose(found.mahalanobis(near(NEW)), plain.mahalanobis(NEW), rtol=1e-5)


@pytest.mark.parametrize("apart", [1e-2, 1e-6, 3e-8])
@pytest.mark.parametrize("regularization", [1e-3, 100.0])
def test_a_regularised_fit_tells_where_one_read_does_not_tell_features_apart(
    apart: float, regularization: float
) -> None:
    near = np.column_stack([X[:, :-1], X[:, 0] + apart * X[:, -1]])
    model = bp.FisherDiscriminantAnalysis(regularization=regularization).fit(near, Y)
    told = (
        nullcontext() if apart > 1e-4 else pytest.warns(ApproximationWarning, match="may change distances by .* size")
    )
    with told:
        found = model.mahalanobis(near)
    if apart > 1e-4:
        np.testing.assert_allclose(found, bp.FisherDiscriminantAnalysis().fit(X, Y).mahalanobis(X), rtol=1e-5)


def test_a_singular_covariance_is_shrunk_as_ledoit_and_wolf_do_on_average() -> None:
    rows, y = X[:12], np.repeat([0, 1, 2], 4)
    model = bp.FisherDiscriminantAnalysis(regularization="pinv").fit(np.hstack([rows, rows[:, :3]]), y)
    distance = ClassDistance.of(model._result.state, "raise")
    tied = within_scatter(np.hstack([rows, rows[:, :3]]), y) / 9
    assert 0 < distance.shrinkage < 1
    shrunk = (1 - distance.shrinkage) * tied + distance.shrinkage * np.trace(tied) / 12 * np.eye(12)
    means = np.array([np.hstack([rows, rows[:, :3]])[y == j].mean(axis=0) for j in range(3)])
    judged = np.hstack([NEW, NEW[:, 3:6]])
    np.testing.assert_allclose(model.mahalanobis(judged), nearest(judged, shrunk, means), rtol=1e-8)

    rng, own, theirs = np.random.default_rng(0), [], []
    for _ in range(100):
        drawn = rng.standard_normal((30, 50)) * np.sqrt(power_law(50))
        own.append(ledoit_wolf_shrinkage(np.linalg.eigvalsh(drawn.T @ drawn / 30), 30))
        theirs.append(ledoit_wolf(drawn, assume_centered=True)[1])
    assert np.mean(own) == pytest.approx(np.mean(theirs), abs=0.01)  # each varies by 0.06 between draws
    assert ledoit_wolf_shrinkage(np.ones(3), 10) == 1


def test_rows_with_missing_values_raise_or_have_no_distance() -> None:
    holed = NEW.copy()
    holed[4, 2] = np.nan
    with pytest.raises(bp.errors.NonFiniteError, match="gives such rows NaN distances"):
        bp.FisherDiscriminantAnalysis().fit(X, Y).mahalanobis(holed)
    found = bp.FisherDiscriminantAnalysis(nan_policy="omit").fit(X, Y).mahalanobis(holed)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(found)), [4])


def test_models_without_a_covariance_within_classes_are_rejected() -> None:
    same = bp.FisherDiscriminantAnalysis(regularization=1.0).fit(np.repeat(np.eye(2), 3, axis=0), np.repeat([0, 1], 3))
    with pytest.raises(ValueError, match="all 6 rows of 2 classes equal the mean of their class"):
        same.mahalanobis(np.eye(2))
