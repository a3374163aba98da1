"""The corners of the Roweis family are PCA, supervised PCA and Fisher's discriminants; all of it is SciPy's answer."""

from typing import Any

import numpy as np
import pytest

from bigpca import (
    FisherDiscriminantAnalysis,
    KernelRoweisDiscriminantAnalysis,
    RoweisDiscriminantAnalysis,
    SupervisedPCA,
)
from bigpca.errors import ApproximationWarning
from tests.estimators.labelled import (
    assert_same_axes,
    centred,
    generalised,
    labelled_rows,
    outside,
    roweis_matrices,
    unit_of,
)

N, D, C, K = 400, 9, 4, 3
X, Y = labelled_rows(N, D, C, mean=5.0)
REAL = X[:, 0] + np.random.default_rng(3).standard_normal(N)


def assert_solves(model: Any, r1: float, r2: float, k: int = K, tolerance: float = 1e-8) -> None:
    R1, R2 = roweis_matrices(X, Y, r1, r2)
    unit = unit_of(Y, r2)
    values, axes = generalised(R1, R2, k, unit)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=tolerance)
    assert_same_axes(model.components_, axes, tolerance)
    np.testing.assert_allclose(model.components_ @ (R2 / unit) @ model.components_.T, np.eye(k), atol=tolerance)


@pytest.mark.parametrize(("r1", "r2"), [(0, 0), (1, 0), (0, 1), (1, 1), (0.5, 0.5), (1e-3, 0.9), (0.2, 0), (0, 0.4)])
def test_every_point_is_the_generalised_eigenproblem_of_the_whole_matrix(r1: float, r2: float) -> None:
    model = RoweisDiscriminantAnalysis(K, r1=r1, r2=r2).fit(X, Y)
    assert_solves(model, r1, r2)
    assert model.supervision_level_ == (r1 + r2) / 2
    R1, R2 = roweis_matrices(X, Y, r1, r2)
    U = model.components_.T
    assert model.roweis_criterion_ == pytest.approx(np.trace(U.T @ R1 @ U) / np.trace(U.T @ R2 @ U), rel=1e-10)


def test_with_r1_alone_it_is_supervised_pca_for_classes_and_for_real_labels() -> None:
    for labels, k in ((Y, C - 1), (REAL, 1)):
        model, spca = RoweisDiscriminantAnalysis(r1=1, r2=0).fit(X, labels), SupervisedPCA().fit(X, labels)
        assert model.n_components_ == k
        np.testing.assert_array_equal(model.components_, spca.components_)
        near = RoweisDiscriminantAnalysis(k, r1=1, r2=1e-13).fit(X, Y) if labels is Y else model
        np.testing.assert_allclose(near.components_, spca.components_, atol=1e-8)


def test_real_labels_mix_with_the_total_scatter() -> None:
    model = RoweisDiscriminantAnalysis(K, r1=0.01, r2=0).fit(X, REAL)
    psi = centred(X).T @ REAL
    values, axes = generalised(0.01 * np.outer(psi, psi) + 0.99 * centred(X).T @ centred(X), np.eye(D), K)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-10)
    assert_same_axes(model.components_, axes)


def test_whole_numbers_are_classes_where_classes_are_needed() -> None:
    model = FisherDiscriminantAnalysis().fit(X, Y.astype(float))
    np.testing.assert_array_equal(model.components_, FisherDiscriminantAnalysis().fit(X, Y).components_)
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert not hasattr(RoweisDiscriminantAnalysis(1, r2=0).fit(X, Y.astype(float)), "classes_")


@pytest.mark.parametrize(("r1", "r2"), [(0.4, 0.5), (0, 0), (1, 0)])
def test_a_share_keeps_the_axes_that_hold_it(r1: float, r2: float) -> None:
    whole = generalised(*roweis_matrices(X, Y, r1, r2), D)[0].clip(0)
    for k in (1, 2):
        share = float(whole[:k].sum() / whole.sum())
        for n_components, kept in ((share * (1 - 1e-6), k), (share * (1 + 1e-6), k + 1)):
            model = RoweisDiscriminantAnalysis(n_components, r1=r1, r2=r2).fit(X, Y)
            np.testing.assert_allclose(model.eigenvalues_, whole[:kept], rtol=1e-9)


def test_none_keeps_all_axes_of_eigenvalues_that_are_not_0() -> None:
    found = {r1: RoweisDiscriminantAnalysis(r1=r1, r2=0.5).fit(X, Y).n_components_ for r1 in (0, 0.5, 1)}
    assert found == {0: D, 0.5: D, 1: C - 1}


@pytest.mark.parametrize(("r1", "r2"), [(0.3, 0.7), (1, 1), (0, 0), (1, 0)])
@pytest.mark.parametrize("k", [1, 2, D])
def test_scores_come_back_to_the_nearest_rows_that_they_allow(r1: float, r2: float, k: int) -> None:
    """Least squares over all scores: the residual is orthogonal to U (SPCA paper, eq. 4); with all axes there is
    none.
    """
    if r1 == 1 and k > C - 1:
        k = C - 1
    model = RoweisDiscriminantAnalysis(k, r1=r1, r2=r2).fit(X, Y)
    scores, U = model.transform(X), model.components_.T
    np.testing.assert_allclose(scores, centred(X) @ U, atol=1e-11)
    best = np.linalg.lstsq(U, centred(X).T, rcond=None)[0]  # coefficients of the axes in the rows
    back = model.inverse_transform(scores)
    np.testing.assert_allclose(back, X.mean(axis=0) + (U @ best).T, atol=1e-9)
    if k == D:
        np.testing.assert_allclose(back, X, atol=1e-9)


# S_W that is singular

CONSTANT = np.column_stack([X, np.full(N, 0.1)])


@pytest.mark.parametrize("options", [{"robust": 0.5}, {"regularization": "pinv"}, {"regularization": 1e-3}], ids=str)
def test_a_constant_feature_is_survived_where_something_is_said_about_it(options: dict[str, Any]) -> None:
    model = FisherDiscriminantAnalysis(**options).fit(CONSTANT, Y)
    assert np.abs(model.components_[:, -1]).max() < 1e-6 * np.abs(model.components_).max()
    truth = FisherDiscriminantAnalysis().fit(X, Y)
    if options.get("regularization") == "pinv":
        np.testing.assert_allclose(model.eigenvalues_, truth.eigenvalues_, rtol=1e-9)
        np.testing.assert_allclose(model.components_[:, :-1], truth.components_, atol=1e-9)


def test_the_robust_form_warns_where_it_had_to_strengthen_the_diagonal() -> None:
    with pytest.warns(
        ApproximationWarning, match=r"account for the whole sum.* was added to it. Use a smaller share than robust = "
    ):
        FisherDiscriminantAnalysis(1, robust=0.999999).fit(X[:7], [0, 1, 0, 1, 1, 0, 1])


@pytest.mark.parametrize("k", [C, D])
@pytest.mark.parametrize("kind", [RoweisDiscriminantAnalysis, KernelRoweisDiscriminantAnalysis])
def test_every_point_of_an_edge_warns_alike_of_axes_beyond_the_rank(kind: Any, k: int) -> None:
    """The corner (1, 0), which keeps no d x d matrix, among them; those axes are orthonormal too."""
    options = {"kernel": "linear", "sampling": X[:D]} if kind is KernelRoweisDiscriminantAnalysis else {}
    for r2 in (0, 1e-9, 0.5):
        with pytest.warns(ApproximationWarning, match=f"n_components = {k}, but R1 has 3 eigenvalues that are not 0"):
            model = kind(k, r1=1, r2=r2, **options).fit(X, Y)
        assert (model.n_components_, model.rank_) == (k, C - 1)
        assert model.eigenvalues_[C - 1 :].max() <= 1e-12 * model.eigenvalues_[0]
        if not r2 and not options:
            np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(k), atol=1e-12)
            np.testing.assert_array_equal(model.components_[: C - 1], SupervisedPCA().fit(X, Y).components_)


@pytest.mark.parametrize("n_components", [1, None, 0.5])
@pytest.mark.parametrize(("r1", "r2"), [(1, 0), (1, 0.5), (1, 1), (0, 1)])
def test_rows_that_do_not_depend_on_their_labels_have_arbitrary_axes_at_every_point(
    r1: float, r2: float, n_components: Any
) -> None:
    rows, y = np.vstack([X, -X]) + 0.37, np.tile(Y, 2)
    with pytest.warns(
        ApproximationWarning, match=r"all \d axes are arbitrary: to rounding, rows are equal or do not depend"
    ):
        model = RoweisDiscriminantAnalysis(n_components, r1=r1, r2=r2).fit(rows, y)
    assert np.isfinite(model.transform(rows)).all()


def test_more_axes_than_classes_tell_apart_warn() -> None:
    with pytest.warns(ApproximationWarning, match="n_components = 4, but 4 classes are separated by at most 3 axes"):
        model = FisherDiscriminantAnalysis(4).fit(X, Y)
    np.testing.assert_allclose(model.eigenvalues_[3], 1.0, rtol=1e-10)


def test_a_class_of_one_row_shifts_the_between_class_scatter_alone() -> None:
    """It is rejected in a fit, and taken in a batch: more of its rows may come."""
    labels = Y.copy()
    labels[0] = C
    model = FisherDiscriminantAnalysis().fit(X[1:], labels[1:])
    model.partial_fit(X[:1], labels[:1])
    with pytest.warns(ApproximationWarning, match="1 of 5 classes have only one row"):
        _ = model.components_
    values, axes = generalised(*roweis_matrices(X, labels, 0, 1), C, unit_of(labels, 1))
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-10)
    assert_same_axes(model.components_, axes)


def test_a_class_that_missing_values_leave_one_row_warns_where_the_scatter_within_classes_counts() -> None:
    bad = X.copy()
    bad[np.flatnonzero(Y == 2)[1:]] = np.nan
    with pytest.warns(ApproximationWarning, match="1 of 4 classes have only one row without missing values"):
        FisherDiscriminantAnalysis(nan_policy="omit").fit(bad, Y)
    RoweisDiscriminantAnalysis(2, r1=0.5, r2=0, nan_policy="omit").fit(bad, Y)  # a warning would be an error


def test_classes_a_thousand_apart_in_float32_keep_their_discriminants(float32_products: None) -> None:
    """Tolerance: 1e-4 of eigenvalues over 1e5, from float32 blocks. The total scatter rounded to float32 loses S_W."""
    rows, y = labelled_rows(2000, 6, 3, apart=1e3, dtype="f4")
    model = FisherDiscriminantAnalysis().fit(rows, y)
    values, axes = generalised(*roweis_matrices(rows, y, 0, 1), 2)
    assert values[0] > 1e5
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-4)
    assert outside(axes.T, model.components_.T) < 1e-4


def test_rounding_of_float32_makes_no_axes_in_the_null_space_of_few_rows(float32_products: None) -> None:
    """d - (n - c) = 40 - 17 eigenvalues of S_W are 0, whatever its sums in float32 leave there."""
    rows, y = labelled_rows(20, 40, 3, mean=10.0, dtype="f4")
    with pytest.raises(ValueError, match="at most 17 of 40 directions"):
        FisherDiscriminantAnalysis().fit(rows, y)
    model = FisherDiscriminantAnalysis(regularization="pinv").fit(rows, y)
    with pytest.raises(ValueError, match="at most 17 of 40 directions"):
        FisherDiscriminantAnalysis().fit(rows.astype("f8"), y)
    truth = FisherDiscriminantAnalysis(regularization="pinv").fit(rows.astype("f8"), y)
    np.testing.assert_allclose(model.eigenvalues_, truth.eigenvalues_, rtol=1e-3)


# One read, any chunks, checkpoints


UNITS = 10.0 ** np.array([8, -2, 2.5, 0, -9, 12, 1, -5, 3])
TURNED = np.linalg.qr(np.random.default_rng(5).standard_normal((D, D)))[0]
DEPENDENT = {
    "units": (X * UNITS, {}, 1),
    "units and offsets": (X * UNITS + 1e3 * UNITS, {}, 1),
    "nearly dependent": (X * 1e-7 ** np.linspace(0, 1, D) @ TURNED, {}, 2),
    "dependent": (np.hstack([X, X[:, :4] @ TURNED[:4, :3]]), {"regularization": "pinv"}, 2),
    "dependent, in float32": (np.hstack([X, X[:, :2]]).astype("f4"), {"regularization": "pinv"}, 2),
}


@pytest.mark.usefixtures("float32_products")
@pytest.mark.parametrize("name", DEPENDENT)
def test_fisher_separates_in_any_units_and_by_nearly_dependent_features_as_qr_of_the_rows(name: str) -> None:
    rows, options, reads = DEPENDENT[name]
    means = np.array([rows[c == Y].mean(axis=0, dtype="f8") for c in np.unique(Y)])
    within, between = rows - means[np.unique(Y, return_inverse=True)[1]], means - rows.mean(axis=0, dtype="f8")
    unit = np.linalg.norm(within, axis=0)
    _, s, Vt = np.linalg.svd(within / unit, full_matrices=False)
    kept = s > 1e-9 * s[0]
    B = np.sqrt(np.unique(Y, return_counts=True)[1])[:, None] * between / unit @ Vt[kept].T / s[kept]
    truth = 1 + np.linalg.svd(B, compute_uv=False)[: C - 1] ** 2
    model = FisherDiscriminantAnalysis(**options).fit(rows, Y)
    assert model.n_passes_ == reads if hasattr(model, "n_passes_") else model.provenance_.reads == reads
    np.testing.assert_allclose(model.eigenvalues_, truth, rtol=1e-6)
    assert model.solve_error_ < 1e-6
    scores = np.asarray(model.transform(rows))
    for c in np.unique(Y):
        scores[c == Y] -= scores[c == Y].mean(axis=0)
    np.testing.assert_allclose(scores.T @ scores / (N - C), np.eye(C - 1), atol=1e-6)


def test_rows_added_to_fisher_by_nearly_dependent_features_say_how_uncertain_it_is() -> None:
    rows = X * 2e-6 ** np.linspace(0, 1, D) @ TURNED
    model = FisherDiscriminantAnalysis().fit(rows[:200], Y[:200]).partial_fit(rows[200:], Y[200:])
    with pytest.warns(ApproximationWarning, match=r"within classes are so nearly dependent .*\(solve_error_\)"):
        assert 1e-3 < model.solve_error_ <= 1
    assert FisherDiscriminantAnalysis().fit(rows, Y).solve_error_ < 1e-6
