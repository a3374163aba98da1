"""Labelled rows added later give the model of a fit on all rows; saved models come back as they were and go on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bigpca as bp
from bigpca import FisherDiscriminantAnalysis, RoweisDiscriminantAnalysis, SupervisedPCA, SupervisedRandomProjection
from bigpca.estimators.loading import restored
from bigpca.estimators.shared.files import StoredModel
from tests.estimators.labelled import labelled_rows
from tests.estimators.stores import unreadable

N, D, C = 120, 6, 4
X, Y = labelled_rows(N, D, C, mean=20.0)
NAMES = np.array(["dog", "ape", "cod", "bee"])
REAL = np.column_stack([X[:, 0] ** 2, X[:, 1]])
ATTRIBUTES = (
    "classes_", "class_counts_", "class_means_", "mean_", "n_samples_", "n_omitted_", "n_unlabelled_",
    "total_variance_",
    "rank_", "eigenvalues_", "components_",
)  # fmt: skip

CLASS_MODELS: dict[str, Any] = {
    "SPCA": SupervisedPCA(1),
    "PCA": RoweisDiscriminantAnalysis(2, r1=0, r2=0),
    "RDA": RoweisDiscriminantAnalysis(2, r1=0.3, r2=0.7, normalize=True),
    "FDA": FisherDiscriminantAnalysis(1, regularization=0.5),
    "(1, 0)": RoweisDiscriminantAnalysis(1, r1=1, r2=0),
}
REAL_MODELS: dict[str, Any] = {
    "linear": SupervisedPCA(1),
    "RDA": RoweisDiscriminantAnalysis(2, r1=0.3, r2=0),
    "random": SupervisedRandomProjection(2, n_features=30, label_gamma=0.1),
}


def fresh(model: Any, **parameters: Any) -> Any:
    return type(model)(**{**model.get_params(), **parameters})


@pytest.mark.parametrize("name", [*CLASS_MODELS, *REAL_MODELS])
@pytest.mark.parametrize("weighted", [False, True])
def test_merged_models_are_that_of_all_rows(name: str, weighted: bool, tmp_path: Path) -> None:
    classes = name in CLASS_MODELS
    model, y = (CLASS_MODELS | REAL_MODELS)[name], NAMES[Y].astype(object) if classes else REAL.copy()
    order = np.argsort(Y, kind="stable") if classes else np.argsort(REAL[:, 0])  # other classes, other offsets
    rows, y = X[order], y[order]
    y[5] = None if classes else np.nan
    weights = np.arange(N) % 3 + 0.5
    parts = [
        fresh(model, missing_labels="drop").fit(
            rows[part], y[part], **({"sample_weight": weights[part]} if weighted else {})
        )
        for part in (slice(0, 70), slice(70, N))
    ]
    expected = fresh(model, missing_labels="drop").fit(rows, y, **({"sample_weight": weights} if weighted else {}))
    before = StoredModel.of(parts[0]).arrays
    merged = bp.merge(*parts)
    assert_same(merged, expected, 1e-7)
    assert merged.n_unlabelled_ == 1
    np.testing.assert_allclose(np.abs(merged.transform(X)), np.abs(expected.transform(X)), atol=1e-6)
    merged.save(tmp_path / "m")
    assert_same(bp.load(tmp_path / "m").partial_fit(X, NAMES[Y] if classes else REAL), expected.partial_fit(
        X, NAMES[Y] if classes else REAL
    ), 1e-7)  # fmt: skip
    assert all(np.array_equal(array, before[key]) for key, array in StoredModel.of(parts[0]).arrays.items())


def test_models_of_labels_that_differ_in_kind_are_not_merged() -> None:
    a, rbf = SupervisedPCA(1).fit(X, NAMES[Y]), SupervisedPCA(1, label_kernel="rbf")
    with pytest.raises(ValueError, match="are classes, those of the other are numbers"):
        bp.merge(a, SupervisedPCA(1).fit(X, REAL))
    with pytest.raises(ValueError, match="two models use different label features"):
        bp.merge(fresh(rbf).fit(X[:60], REAL[:60]), fresh(rbf).fit(X[60:], REAL[60:]))
    thin, whole = (RoweisDiscriminantAnalysis(1, r1=1, r2=r2).fit(X, Y) for r2 in (0, 0.5))
    with pytest.raises(ValueError, match="keep only the diagonal of the scatter"):
        bp.merge(thin, whole)


def assert_same(one: Any, other: Any, rtol: float = 1e-9) -> None:
    for name in ATTRIBUTES:
        assert hasattr(one, name) == hasattr(other, name), name
        if not hasattr(one, name):
            continue
        a, b = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        if a.dtype.kind in "US":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max(), err_msg=name)


@pytest.mark.parametrize(
    ("name", "late"), [*((name, 0) for name in CLASS_MODELS), *(("RDA", late) for late in range(1, C))]
)
def test_a_class_that_comes_later_equals_a_fit_on_all_rows(name: str, late: int) -> None:
    """In sorted place, whichever it is: the codes of the others move."""
    first = late != Y
    model = fresh(CLASS_MODELS[name]).fit(X[first], NAMES[Y[first]])
    assert len(model.classes_) == C - 1
    model.partial_fit(X[~first], NAMES[Y[~first]])
    assert_same(
        model,
        fresh(CLASS_MODELS[name]).fit(np.vstack([X[first], X[~first]]), NAMES[Y[np.argsort(~first, kind="stable")]]),
    )
    assert model.classes_.tolist() == sorted(NAMES)


@pytest.mark.parametrize("write",
    [np.asarray, lambda y: y[:, None], lambda y: y.astype(float)], ids=["flat", "column", "whole numbers"])  # fmt: skip
def test_a_batch_may_write_the_classes_in_another_way(write: Any) -> None:
    model = FisherDiscriminantAnalysis(1).fit(X[:60], Y[:60]).partial_fit(X[60:], write(Y[60:]))
    assert_same(model, FisherDiscriminantAnalysis(1).fit(X, Y))


def test_omitted_and_unlabelled_rows_are_counted_over_all_batches() -> None:
    bad, labels = X.copy(), NAMES[Y].astype(object)
    bad[[3, 70, 71]] = np.nan
    labels[[5, 90, 70]] = None
    options: dict[str, Any] = {"nan_policy": "omit", "missing_labels": "drop"}
    model = SupervisedPCA(**options).fit(bad[:60], labels[:60]).partial_fit(bad[60:], labels[60:])
    assert (model.n_omitted_, model.n_unlabelled_, model.n_samples_) == (2, 3, N - 5)  # row 70 lacks both
    kept = np.delete(np.arange(N), [3, 70, 71, 5, 90])
    truth = SupervisedPCA().fit(X[kept], NAMES[Y[kept]])
    np.testing.assert_allclose(model.components_, truth.components_, atol=1e-10)


@pytest.mark.parametrize("name", REAL_MODELS)
def test_labels_of_another_width_are_rejected(name: str) -> None:
    model = fresh(REAL_MODELS[name]).fit(X, REAL)
    with pytest.raises(ValueError, match="labels have 1 columns, but 2 in the first fit; the same number was expected"):
        model.partial_fit(X, REAL[:, 0])


@pytest.mark.parametrize(
    "model",
    [
        SupervisedPCA(1),
        SupervisedRandomProjection(1, n_features=3, label_gamma=0.1),
        bp.KernelSupervisedPCA(1, n_landmarks=20),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("collinear", [False, True])
def test_more_axes_than_the_labels_of_all_rows_determine_leave_the_model_as_it_was(model: Any, collinear: bool) -> None:
    y = REAL[:, [0, 0]] if collinear else REAL
    model = fresh(model).fit(X[:60], y[:60])
    before, rows, most = model.transform(X), model.n_samples_, model.rank_
    with pytest.raises(ValueError, match=f"n_components = {most + 1}, but the labels determine {most} axes"):
        model.set_params(n_components=most + 1).partial_fit(X[60:], y[60:])
    np.testing.assert_array_equal(model.transform(X), before)
    assert model.n_samples_ == rows
    model.set_params(n_components=1).partial_fit(X[60:], y[60:])
    assert model.n_samples_ == N
    if not isinstance(model, bp.KernelSupervisedPCA):  # which keeps the landmarks of its first rows
        assert_same(model, fresh(model).fit(X, y))


def test_other_factors_may_be_set_before_a_batch_where_the_scatter_is_whole() -> None:
    model = RoweisDiscriminantAnalysis(2, r1=0, r2=0).fit(X[:60], Y[:60]).set_params(r1=0.2, r2=0.9)
    assert_same(model.partial_fit(X[60:], Y[60:]), RoweisDiscriminantAnalysis(2, r1=0.2, r2=0.9).fit(X, Y))
    thin = RoweisDiscriminantAnalysis(1, r1=1, r2=0).fit(X[:60], Y[:60]).set_params(r2=0.5)
    with pytest.raises(
        ValueError,
        match=r"fitted with r1 = 1 and r2 = 0\. Such fits keep only the diagonal.*Fit again",
    ):
        thin.partial_fit(unreadable(N - 60, D), Y[60:])  # before the read


# Files

LABELS: dict[str, Any] = {
    "strings": NAMES[Y],
    "non-ASCII": np.array(["ä", "猫", "", "x y"])[Y],
    "bytes": NAMES[Y].astype("S"),
    "integers": Y * 10**12 - 5,
    "unsigned": np.array([0, 2**64 - 1, 7, 3], np.uint64)[Y],
    "booleans": Y > 1,
}


@pytest.mark.parametrize("labels", LABELS)
def test_classes_of_any_type_come_back_from_a_file_and_more_rows_are_added(labels: str, tmp_path: Path) -> None:
    y, model = LABELS[labels], fresh(CLASS_MODELS["FDA"])
    model.fit(X[:80], y[:80]).save(tmp_path / "model.zarr")
    loaded = bp.load(tmp_path / "model.zarr")
    assert loaded.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(loaded.classes_, model.classes_)
    assert_same(loaded.partial_fit(X[80:], y[80:]), fresh(model).fit(X, y))


def test_statistics_of_other_label_features_than_the_model_has_are_rejected() -> None:
    model = StoredModel.of(SupervisedRandomProjection(1, n_features=9).fit(X, REAL))
    fewer = {name: array[..., :-1] for name, array in model.arrays.items() if "features__" in name}
    with pytest.raises(ValueError, match="9 label features, where 1 and 8 were expected"):
        restored(replace(model, arrays=model.arrays | fewer))
