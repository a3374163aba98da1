"""Where r2 = 1 a discriminant analysis classifies, as scikit-learn's does: by all c - 1 axes,
lazily, far from the origin too.
"""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, is_classifier
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.model_selection import GridSearchCV

import bigpca as bp
from bigpca import FisherDiscriminantAnalysis, RoweisDiscriminantAnalysis
from bigpca.engine import layout
from bigpca.passes.reading import blocks
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


@pytest.mark.parametrize("order", ["mixed", "sorted by class"])
@pytest.mark.parametrize("chunk", [50, N])
def test_float32_rows_far_from_the_origin_keep_their_classes(
    order: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Means of 1e4 deviations, products in float32, chunks that lack classes: 1e-3 deviations are what the rows have
    left.
    """
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0)
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 64)
    far = (X + 1e4 * np.arange(1, D + 1)).astype("f4")
    at = np.argsort(Y, kind="stable") if order != "mixed" else np.arange(N)
    far, y = far[at], NAMES[Y[at]]
    lazy = da.from_array(far, chunks=(chunk, D))
    model, truth = FisherDiscriminantAnalysis().fit(lazy, y), oracle(centred(far), y)
    np.testing.assert_allclose(model.predict_proba(far), truth.predict_proba(centred(far)), atol=2e-5)
    expected = truth.transform(centred(far)) * np.sqrt((N - 5) / N)
    found = model.transform(far)
    np.testing.assert_allclose(found * np.sign((found * expected).sum(axis=0)), expected, atol=1e-4)


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


def test_saved_grown_and_mapped_models_classify_alike(tmp_path: Path) -> None:
    whole = FisherDiscriminantAnalysis(2).fit(X, NAMES[Y])
    whole.save(tmp_path / "model")
    mapped = bp.roweis_map(X, NAMES[Y], [0.0, 1.0], model=RoweisDiscriminantAnalysis(2)).models[0][1]
    part = NAMES[Y[:200]] != "cow"  # a class that comes later
    grown = FisherDiscriminantAnalysis(2).partial_fit(X[:200][part], NAMES[Y[:200]][part], classes=NAMES)
    rest = np.r_[np.flatnonzero(~part), 200:N]
    grown.partial_fit(X[rest], NAMES[Y[rest]], classes=NAMES)
    for model, tolerance in ((bp.load(tmp_path / "model"), 0.0), (mapped, 1e-9), (grown, 1e-9)):
        for method in ("decision_function", "predict_proba"):
            np.testing.assert_allclose(
                getattr(model, method)(X), getattr(whole, method)(X), rtol=tolerance, atol=tolerance
            )
        np.testing.assert_array_equal(model.predict(X), whole.predict(X))
        np.testing.assert_allclose(model.coef_, whole.coef_, rtol=tolerance)
        np.testing.assert_allclose(model.explained_variance_ratio_, whole.explained_variance_ratio_, rtol=tolerance)
    with pytest.raises(ValueError, match=r"1 classes are new: elk\. The 4 known classes are"):
        grown.partial_fit(X, NAMES[Y], classes=NAMES[:4])


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
