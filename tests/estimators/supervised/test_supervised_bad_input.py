"""What supervised models reject, and why: before any row is read where that can be known."""

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone

import bigpca as bp
from bigpca import (
    FisherDiscriminantAnalysis,
    KernelRoweisDiscriminantAnalysis,
    KernelSupervisedPCA,
    RoweisDiscriminantAnalysis,
    SupervisedPCA,
    SupervisedRandomProjection,
)
from tests.estimators.labelled import labelled_rows
from tests.estimators.stores import unreadable

Array = NDArray[Any]
N, D, C = 60, 5, 3
X, Y = labelled_rows(N, D, C)
REAL = X[:, 0] + 0.5
CENTRES = np.random.default_rng(2).standard_normal((C, D))
LINEAR = (SupervisedPCA, RoweisDiscriminantAnalysis, FisherDiscriminantAnalysis, SupervisedRandomProjection)
KERNEL = (KernelSupervisedPCA, KernelRoweisDiscriminantAnalysis)
ALL = (*LINEAR, *KERNEL)


def gaps(labels: Array) -> list[Any]:
    return [None if i in (4, 9) else label for i, label in enumerate(labels.tolist())]


# Known before any read: reading X raises.
PARAMETERS: dict[str, tuple[type, dict[str, Any], Any, type[Exception], str]] = {
    "r1 above 1": (RoweisDiscriminantAnalysis, {"r1": 1.5}, Y, ValueError,
        r"r1 = 1.5 is outside \[0, 1\].*a Roweis factor"),
    "real, r2": (
        RoweisDiscriminantAnalysis, {"r2": 0.1}, REAL, ValueError,
        "labels are continuous numbers, and r2 = 0.1 > 0 needs the within-class scatter; "
            "classes were expected.*use r2 = 0",
    ),
    "real, Fisher": (FisherDiscriminantAnalysis, {}, REAL, ValueError, "labels are continuous numbers, and r2 = 1 > 0"),
    "real, kernel": (KernelRoweisDiscriminantAnalysis, {}, REAL, ValueError,
        "labels are continuous numbers, and r2 = 0.5 > 0"),
    "robust share": (
        RoweisDiscriminantAnalysis, {"robust": 1.0}, Y, ValueError,
        r"robust = 1\.0 is outside \(0, 1\); True, False or a share of the eigenvalues such as 0\.98 was",
    ),
    "regularization": (
        RoweisDiscriminantAnalysis, {"regularization": "ridge"}, Y, TypeError,
        "regularization = 'ridge' is a str; .* None, \"pinv\" or a positive number",
    ),
    "too many components": (
        RoweisDiscriminantAnalysis, {"n_components": D + 1}, Y, ValueError, "n_components = 6 is out of range: .* to 5",
    ),
    "kernel components": (
        KernelRoweisDiscriminantAnalysis, {"n_components": N + 1}, Y, ValueError,
        "n_components = 61 is out of range: .* 1 to 60",
    ),
    "label gamma": (
        SupervisedPCA, {"label_kernel": "rbf", "label_gamma": 0}, REAL, ValueError,
        r"label_gamma = 0 is outside \(0, inf\); a number such as 0\.1, or None",
    ),
    "landmarks": (KernelSupervisedPCA, {"n_landmarks": N + 1}, Y, ValueError, "61 is more than the 60 rows of X"),
    "landmarks, gaps": (KernelSupervisedPCA, {"n_landmarks": N - 1, "missing_labels": "drop"}, gaps(Y), ValueError,
        "59 is more than the 58 rows of X that count"),
    "indefinite": (KernelSupervisedPCA, {"kernel": "sigmoid"}, Y, ValueError, "is not positive semi-definite"),
    "dual, gaps": (
        KernelSupervisedPCA, {"solver": "pairs", "missing_labels": "drop"}, gaps(Y), ValueError,
        'all pairs of rows are compared.*cannot omit.*use solver="landmarks"',
    ),
    "dual, omit": (KernelSupervisedPCA, {"solver": "pairs", "nan_policy": "omit"}, Y, ValueError,
        "all pairs of rows are compared"),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_that_cannot_be_are_rejected_before_any_read(name: str) -> None:
    kind, parameters, labels, error, message = PARAMETERS[name]
    with pytest.raises(error, match=message):
        kind(**parameters).fit(unreadable(N, D), labels)


LABELS: dict[str, tuple[Any, str]] = {
    "none": (None, "requires y to be passed, but the target y is None. Give one label for each row"),
    "too few": (Y[:-1], "there are 59 labels for 60 rows"),
    "too many": (np.append(Y, 1), "there are 61 labels for 60 rows"),
    "missing": (gaps(Y), r"2 of 60 labels are missing \(rows 4, 9\).*missing_labels=\"drop\""),
    "one class": (np.zeros(N, int), r"all 60 labels belong to 1 class \(0\); at least 2 classes were expected"),
    "three dimensions": (np.zeros((N, 2, 2)), r"labels .* have shape \(60, 2, 2\)"),
}


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("name", LABELS)
def test_labels_that_say_nothing_are_rejected_before_any_read(name: str, kind: type) -> None:
    labels, message = LABELS[name]
    with pytest.raises(ValueError, match=message):
        kind().fit(unreadable(N, D), labels)


NAN = np.where(np.arange(N) == 7, np.nan, REAL)


@pytest.mark.parametrize("kind", [SupervisedPCA, SupervisedRandomProjection, KernelSupervisedPCA])
@pytest.mark.parametrize(("labels", "message"), [
    (NAN, r"1 of 60 labels are missing \(row 7\)"), (np.full(N, 2.5), "all 60 labels are equal"),
    (np.full((N, 2), 0.1), "all 60 labels are equal"), (np.where(np.isnan(NAN), np.inf, NAN),
        "1 of 60 targets are infinite"),
], ids=["nan", "equal", "equal columns", "infinite"])  # fmt: skip
def test_real_labels_that_say_nothing_are_rejected_before_any_read(kind: type, labels: Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind().fit(unreadable(N, D), labels)


# Known from the read only


def test_more_components_than_labels_determine_are_rejected() -> None:
    message = (
        "n_components = 3, but the labels determine 2 axes, the rank of .*: for classes, one less.*Use 2 or fewer, "
        "or Roweis"
    )
    for model in (SupervisedPCA(3), KernelSupervisedPCA(3, kernel="linear")):
        with pytest.raises(ValueError, match=message):
            model.fit(X, Y)
    with pytest.raises(ValueError, match="n_components = 2, but the labels determine 1 axes"):
        SupervisedPCA(2).fit(X, REAL)
    assert SupervisedPCA(2).fit(X, Y).n_components_ == 2


WAYS = r".*Use robust=True, regularization=\"pinv\" or a number added to its diagonal, r2 < 1, or fewer features"
SINGULAR: dict[str, tuple[Array, Array, str]] = {
    "constant feature": (np.column_stack([X, np.full(N, 7.1)]), Y, f"1 of its 6 eigenvalues are 0{WAYS}"),
    "repeated feature": (X[:, [0, 1, 2, 3, 4, 0]], Y, f"1 of its 6 eigenvalues are 0{WAYS}"),
    "d > n - c": (X[:6], np.arange(6) % 3, "at most 3 of 5 directions. Use a number as regularization"),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_a_singular_scatter_within_classes_is_rejected_with_the_ways_out(name: str) -> None:
    rows, labels, message = SINGULAR[name]
    for model in (FisherDiscriminantAnalysis(), RoweisDiscriminantAnalysis(2, r1=0.5, r2=1)):
        with pytest.raises(ValueError, match=message):
            model.fit(rows, labels)
    linear = KernelRoweisDiscriminantAnalysis(2, r1=0, r2=1, kernel="linear", sampling=rows[:5])
    if name == "d > n - c":
        with pytest.raises(ValueError, match="is singular"):
            linear.fit(rows, labels)
    for out in ({"regularization": "pinv"}, {"regularization": 0.1}):
        assert np.isfinite(FisherDiscriminantAnalysis(1, **out).fit(rows, labels).transform(rows)).all()
    assert np.isfinite(RoweisDiscriminantAnalysis(1, r2=0.9).fit(rows, labels).eigenvalues_).all()


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("chunk", [7, N])
@pytest.mark.parametrize("options", [{}, {"robust": True}, {"regularization": "pinv"}], ids=str)
def test_rows_that_equal_their_class_mean_are_rejected_whatever_rounding_leaves(
    offset: float, chunk: int, options: dict[str, Any]
) -> None:
    rows = bp.open(CENTRES[Y] + offset).rechunk((chunk, D))
    with pytest.raises(
        ValueError, match=r"r2 = 1 is 0: rows of a class are equal.*, or there is one row per class.*r2 < 1"
    ):
        FisherDiscriminantAnalysis(**options).fit(rows, Y)
    model = FisherDiscriminantAnalysis(regularization=1e-3).fit(rows, Y)
    assert model.transform(rows).compute().std(axis=0).min() > 1


@pytest.mark.parametrize("alone", [1, 3, 8])
@pytest.mark.parametrize("model", [
    FisherDiscriminantAnalysis(), RoweisDiscriminantAnalysis(r2=0.01), KernelRoweisDiscriminantAnalysis(r2=0.5),
], ids=str)  # fmt: skip
def test_a_class_of_one_row_is_rejected_where_the_scatter_within_classes_counts(model: Any, alone: int) -> None:
    """... and may be left out; supervised PCA and r2 = 0 take it."""
    y = Y.astype(object)
    y[:alone] = 100 + np.arange(alone)
    named = "100, 101, 102, 103, 104, \\.\\.\\." if alone == 8 else ", ".join(map(str, 100 + np.arange(alone)))
    with pytest.raises(
        ValueError, match=rf"{alone} of {C + alone} classes have only one row \({named}\), .*at least 2 of"
    ):
        model.fit(X, y.astype(int))
    y[:alone] = None
    assert clone(model).set_params(missing_labels="drop").fit(X, y).n_samples_ == N - alone


def test_supervised_pca_takes_classes_of_one_row() -> None:
    assert SupervisedPCA().fit(X[:8], np.arange(8)).n_components_ == D
    assert RoweisDiscriminantAnalysis(r1=0.5, r2=0).fit(X[:8], np.arange(8)).n_samples_ == 8
    with pytest.raises(ValueError, match=r"8 of 8 classes .*Give more rows, or use SupervisedPCA"):  # none is left
        RoweisDiscriminantAnalysis().fit(X[:8], np.arange(8))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sampling": np.array([3, 4, 5])}, r"row 4 was given as a landmark, but it is left out \(for .* no label\)"),
        ({"kernel": "precomputed"}, "rows between 0 and 59 were left out .*no label.*by number"),
    ],
)
def test_landmarks_without_a_label_are_named(parameters: dict[str, Any], message: str) -> None:
    rows = X @ X.T if "kernel" in parameters else X
    with pytest.raises(ValueError, match=message):
        KernelSupervisedPCA(1, missing_labels="drop", **parameters).fit(rows, gaps(Y))


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
@pytest.mark.parametrize("model", [
    SupervisedPCA(), KernelSupervisedPCA(gamma=0.1), KernelSupervisedPCA(gamma=0.1, solver="pairs"),
], ids=str)  # fmt: skip
def test_equal_rows_do_not_depend_on_their_labels(model: Any, value: float) -> None:
    with pytest.raises(
        ValueError, match=r"rows do not depend on their labels: .* is 0, as with a single class, equal rows"
    ):
        model.fit(np.full((N, D), value), Y)


@pytest.mark.parametrize("model", [
    SupervisedPCA(), KernelSupervisedPCA(kernel="linear"), KernelSupervisedPCA(kernel="linear", solver="pairs"),
], ids=str)  # fmt: skip
def test_classes_whose_means_differ_by_rounding_have_no_axes(model: Any) -> None:
    rows = np.vstack([X, -X]) + 0.37
    with pytest.raises(ValueError, match="rows do not depend on their labels"):
        model.fit(rows, np.tile(Y, 2))
    rows[0, 0] += 1e-3
    assert model.fit(rows, np.tile(Y, 2)).rank_ >= 1


def test_two_classes_have_one_axis_however_far_rows_are_from_zero() -> None:
    for model in (SupervisedPCA(), RoweisDiscriminantAnalysis(r1=1.0, r2=0.0), RoweisDiscriminantAnalysis(r1=1.0)):
        assert model.fit(X + 1e10, Y == 1).rank_ == 1


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        (1e151, r"X'H Delta has the norm .*e\+15\d, whose square leaves the range of float64"),
        (1e200, "the total variance is (inf|nan): squares of the values overflow float64"),
    ],
)
def test_values_whose_squares_overflow_are_rejected(unit: float, said: str) -> None:
    with pytest.raises(ValueError, match=said), np.errstate(over="ignore", invalid="ignore"):
        SupervisedPCA().fit(X * unit, Y)


@pytest.mark.parametrize("unit", [1e-90, 1e90])
def test_labels_and_rows_whose_products_have_no_squares_are_named(unit: float) -> None:
    with pytest.raises(ValueError, match=r"has the norm .*e.1[78]\d, whose square leaves the range of float64"):
        SupervisedPCA(1).fit(X * unit, X[:, 0] * unit)


@pytest.mark.parametrize("model", [
    FisherDiscriminantAnalysis(nan_policy="omit"), RoweisDiscriminantAnalysis(nan_policy="omit"),
    KernelRoweisDiscriminantAnalysis(2, nan_policy="omit", sampling=X[:9]),
], ids=str)  # fmt: skip
def test_one_class_that_is_left_of_several_is_rejected(model: Any) -> None:
    rows = np.where((Y == 1)[:, None], X, np.nan)
    with pytest.raises(ValueError, match=r"only one of 3 classes has rows left, out of 20 rows\. Give rows"):
        model.fit(rows, Y)


@pytest.mark.parametrize("unit", [1e-150, 1e-8, 1.0, 1e8, 1e150])
@pytest.mark.parametrize("kind", [SupervisedPCA, KernelSupervisedPCA, SupervisedRandomProjection])
def test_the_width_of_labels_that_an_error_prints_works(kind: Any, unit: float) -> None:
    """Which rows are left out is not known before the read, so the width is given: as printed, to four digits."""
    rows = np.random.default_rng(3).standard_normal((N, 3))
    y, rows[3, 1] = rows[:, 0] * unit, np.nan
    given = {} if kind is SupervisedRandomProjection else {"label_kernel": "rbf"}
    with pytest.raises(ValueError, match="known only after the read") as caught:
        kind(2, nan_policy="omit", **given).fit(rows, y)
    gamma = float(re.findall(r"label_gamma=([^ ]+)\.$", str(caught.value))[0])
    assert gamma * y.var() == pytest.approx(1, rel=1e-3)
    found = kind(2, nan_policy="omit", label_gamma=gamma, **given).fit(rows, y)
    assert found.n_omitted_ == 1
    expected = kind(2, label_gamma=1 / (rows[:, 0]).var(), **given).fit(np.delete(rows, 3, 0), np.delete(y / unit, 3))
    np.testing.assert_allclose(found.eigenvalues_, expected.eigenvalues_, rtol=1e-2)
