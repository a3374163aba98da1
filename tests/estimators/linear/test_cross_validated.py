"""The number of components by folds of the read: errors of NumPy and scikit-learn, and planted ranks that are found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.decomposition import PCA as Theirs

import bigpca as bp
from bigpca.arrays import Array
from bigpca.rules import CrossValidated
from bigpca.solvers.components import decode_components, encode_components

RNG = np.random.default_rng(0)
N, D = 90, 6
X = RNG.standard_normal((N, D)) @ RNG.standard_normal((D, D)) + 4
FOLDS = RNG.integers(0, 4, N)


def planted(n: int, seed: int, noise: str) -> Array:
    """Rows of rank 6 in noise, 60 columns."""
    rng = np.random.default_rng(seed)
    axes, E = np.linalg.qr(rng.standard_normal((60, 6)))[0], rng.standard_normal((n, 60))
    if noise == "unequal":
        E *= np.sqrt(rng.uniform(0.2, 3, 60))
    rows = rng.standard_normal((n, 6)) * np.linspace(5, 2, 6) @ axes.T + E
    return rows * np.sqrt(4 / rng.chisquare(6, n))[:, None] if noise == "heavy" else rows


def by_brute_force(rows: Array, folds: Array, scale: bool, center: bool) -> Array:
    """Errors per row of each fold: each value from the others of its row, by least squares on the components.

    Or from the mean, for a column that is predicted better so in the rows of the other folds.
    """

    def error(V: Array, values: Array, j: int) -> Any:
        others = np.arange(D) != j
        scores = np.linalg.lstsq(V[others], values[:, others].T, rcond=None)[0]
        return ((values[:, j] - V[j] @ scores) ** 2).sum()

    found = []
    for fold in np.unique(folds):
        rest, own = rows[folds != fold], rows[folds == fold]
        mean, by = rest.mean(0) * center, rest.std(0) if scale else 1.0
        rest, own, errors = (rest - mean) / by, (own - mean) / by, []
        V = np.linalg.svd(rest)[2].T
        for k in range(D):
            kept = [k * (error(V[:, :k], rest, j) < (rest[:, j] ** 2).sum()) for j in range(D)]
            errors.append(sum(error(V[:, : kept[j]], own, j) for j in range(D)) / len(own))
        found.append(errors)
    return np.array(found)


@pytest.mark.parametrize(("scale", "center"), [(False, True), (True, True), (False, False)])
def test_errors_of_columns_are_those_of_leaving_each_value_out(scale: bool, center: bool) -> None:
    model = bp.PCA(CrossValidated(), scale=scale, center=center).fit(X, groups=FOLDS)
    np.testing.assert_allclose(model.cv_errors_, by_brute_force(X, FOLDS, scale, center), rtol=1e-9)


@pytest.mark.parametrize(("size", "scale", "rtol"), [(1.0, False, 1e-9), (1.0, True, 1e-9), (1e6, True, 1e-6)])
def test_covariates_are_regressed_on_in_the_other_folds(size: float, scale: bool, rtol: float) -> None:
    given = RNG.standard_normal((N, 2)) + 3
    rows, expected = X + size * given @ RNG.standard_normal((2, D)), []  # large effects take a second read
    for fold in range(4):
        beside = np.c_[np.ones(N), given - given[fold != FOLDS].mean(0)]
        effect = np.linalg.lstsq(beside[fold != FOLDS], rows[fold != FOLDS])[0]
        expected.append(by_brute_force(rows - beside[:, 1:] @ effect[1:], FOLDS, scale, True)[fold])
    model = bp.PCA(CrossValidated(), scale=scale).fit(rows, covariates=given, groups=FOLDS)
    np.testing.assert_allclose(model.cv_errors_, expected, rtol=rtol)
    if size == 1:
        grown = bp.PCA(CrossValidated(), scale=scale).fit(rows[:50], covariates=given[:50], groups=FOLDS[:50])
        grown.partial_fit(rows[50:], covariates=given[50:], groups=FOLDS[50:])
        np.testing.assert_allclose(grown.cv_errors_, expected, rtol=rtol)


def test_rows_added_to_a_fit_with_covariates_have_the_folds_of_one_fit() -> None:
    given = RNG.standard_normal((N, 2))
    whole = bp.PCA(CrossValidated(3)).fit(X, covariates=given)
    grown = bp.PCA(CrossValidated(3)).fit(X[:40], covariates=given[:40]).partial_fit(X[40:], covariates=given[40:])
    assert [one.count for one in grown._result.state.states] == [one.count for one in whole._result.state.states]
    np.testing.assert_allclose(grown.cv_errors_, whole.cv_errors_, rtol=1e-9)


def test_likelihoods_are_those_of_scikit_learn() -> None:
    model = bp.PCA(CrossValidated(criterion="likelihood")).fit(X, groups=FOLDS)
    for k in range(1, D):
        theirs = [-Theirs(k, svd_solver="full").fit(X[g != FOLDS]).score(X[g == FOLDS]) for g in range(4)]
        np.testing.assert_allclose(model.cv_errors_[:, k], theirs, rtol=1e-11)


def test_weights_are_repetitions() -> None:
    weights = RNG.integers(1, 4, N)
    many = np.repeat(np.arange(N), weights)
    for criterion in ("column", "likelihood"):
        rule = CrossValidated(criterion=criterion)
        weighted = bp.PCA(rule).fit(X, sample_weight=weights, groups=FOLDS)
        repeated = bp.PCA(rule).fit(X[many], groups=FOLDS[many])
        np.testing.assert_allclose(weighted.cv_errors_, repeated.cv_errors_, rtol=1e-9)


@pytest.mark.parametrize(("noise", "n"), [("equal", 400), ("unequal", 2000), ("heavy", 400)])
def test_a_planted_rank_is_found(noise: str, n: int) -> None:
    for seed in range(3):
        rows = planted(n, seed, noise)
        assert bp.PCA(CrossValidated()).fit(rows).n_components_ == 6
        if noise == "unequal":
            assert bp.PCA("mle", solver="covariance").fit(rows).n_components_ > 50
            assert bp.PCA("marchenko-pastur", solver="covariance").fit(rows).n_components_ > 40


def test_fewest_components_within_one_standard_error_of_the_difference_are_kept() -> None:
    errors = np.array([[9.0, 5.0, 4.0, 4.1], [9.0, 4.0, 4.0, 4.2], [9.0, 4.4, 4.2, 4.1], [9.0, 5.5, 4.0, 4.3]])
    chosen = CrossValidated().at(errors, np.ones(4)).choose(np.ones(3), 3.0, 40, 3)
    excess = errors - errors[:, 2:3]
    assert chosen == 2
    assert excess[:, 1].mean() > excess[:, 1].std(ddof=1) / 2
    errors[3, 1] = 3.0  # now the difference of 1 and 2 components varies more than it is large
    assert CrossValidated().at(errors, np.ones(4)).choose(np.ones(3), 3.0, 40, 3) == 1


@pytest.mark.parametrize("unit", [1e-150, 1e-80, 1e80, 1e150])
def test_units_do_not_matter(unit: float) -> None:
    assert bp.PCA(CrossValidated()).fit(planted(400, 0, "equal") * unit).n_components_ == 6


@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize("criterion", ["column", "likelihood"])
def test_no_more_components_than_the_rank_are_tried_in_any_units_and_order(rank: int, criterion: str) -> None:
    rng = np.random.default_rng(rank)
    rows = rng.standard_normal((60, rank)) @ rng.standard_normal((rank, 9)) + 3
    for unit in (0.1, 1.0, 3.0, 7.0, 1e60):
        for one in (rows * unit, rows[:, ::-1] * unit):
            model = bp.PCA(CrossValidated(criterion=criterion)).fit(one, groups=np.arange(60) % 4)
            assert model.cv_errors_.shape[1] == rank + 1
            # Exact rows have no likelihood along all their axes.
            assert model.n_components_ == (rank if criterion == "column" else max(rank - 1, 1))
            assert criterion == "likelihood" or (model.cv_errors_ >= 0).all()


def test_of_errors_that_are_equal_to_rounding_the_fewest_components_win() -> None:
    errors = np.array([[9.0, 4.0, 4.0 - 1e-15], [9.0, 4.0, 4.0 - 2e-15], [9.0, 4.0, 4.0 - 2e-15]])
    assert CrossValidated().at(errors, np.ones(3)).choose(np.ones(3), 3.0, 40, 3) == 1


def test_a_column_that_is_a_component_of_its_own_predicts_nothing() -> None:
    rows = planted(600, 0, "equal")
    rows[:, 0] = 30 * np.random.default_rng(1).standard_normal(600)
    model = bp.PCA(CrossValidated()).fit(rows)
    np.testing.assert_allclose(model.cv_errors_[:, 1], model.cv_errors_[:, 0], rtol=0.01)
    assert model.n_components_ == 7  # of six, and that column
    exact = np.diag([9.0, 2.0, 1.0, 1.0]).repeat(20, axis=0) * np.tile([1, -1], 40)[:, None]
    errors = bp.PCA(CrossValidated()).fit(exact, groups=np.tile([0, 0, 1, 1], 20)).cv_errors_
    np.testing.assert_allclose(errors, errors[:, :1] * np.ones(4))


def test_folds_are_kept_saved_grown_and_merged_and_their_models_too(tmp_path: Path) -> None:
    whole = bp.PCA(CrossValidated(3)).fit(X)
    assert not hasattr(whole, "groups_")
    grown = bp.PCA(CrossValidated(3)).partial_fit(X[:40])
    grown.save(tmp_path / "m.zarr")
    grown = bp.load(tmp_path / "m.zarr").partial_fit(X[40:])
    np.testing.assert_allclose(grown.cv_errors_, whole.cv_errors_, rtol=1e-9)
    assert grown.n_components_ == whole.n_components_
    a, b = (bp.PCA(CrossValidated()).fit(X[own], groups=FOLDS[own]) for own in (slice(50), slice(50, N)))
    both, once = bp.merge(a, b), bp.PCA(CrossValidated()).fit(X, groups=FOLDS)
    np.testing.assert_allclose(both.cv_errors_, once.cv_errors_, rtol=1e-9)
    once.save(tmp_path / "g.zarr")
    back = bp.load(tmp_path / "g.zarr")
    np.testing.assert_array_equal(back.cv_errors_, once.cv_errors_)
    assert back.n_components == CrossValidated()
    assert back.of_group(2).n_components_ == once.n_components_
    whole.n_components = 2  # a file of folds does not depend on the parameter
    whole.save(tmp_path / "k.zarr")
    assert bp.load(tmp_path / "k.zarr").n_components_ == whole.n_components_


def test_the_read_and_the_solve_of_folds_are_planned() -> None:
    plan, one = bp.PCA(CrossValidated()).plan(X), bp.PCA(2, solver="covariance").plan(X)
    assert (plan.solver, plan.passes) == ("covariance", 1)
    assert plan.state_bytes == 5 * one.state_bytes
    assert plan.solve.flops > 5 * one.solve.flops
    assert "for each of 5 folds" in plan.reason
    sparse = csr_array(np.where(X > 4, X, 0))
    errors = bp.PCA(CrossValidated()).fit(sparse).cv_errors_
    np.testing.assert_allclose(errors, bp.PCA("cross-validated").fit(sparse.toarray()).cv_errors_, rtol=1e-8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: CrossValidated(1), ValueError, "cv = 1; 2 to 20 folds were expected"),
        (lambda: CrossValidated(criterion="rows"), ValueError, "criterion = 'rows'"),
        (lambda: CrossValidated(max_components=0), ValueError, "max_components = 0"),
        (lambda: bp.PCA(CrossValidated(), solver="dot").fit(X), ValueError, "cannot be used with CrossValidated"),
        (lambda: bp.PCA(CrossValidated(), nan_policy="mean").fit(X), ValueError, "with CrossValidated"),
        (lambda: bp.ApproximatePCA(CrossValidated()).plan(X), ValueError, "needs the moments of folds of the rows"),
        (lambda: bp.KernelPCA(CrossValidated(), kernel="rbf").plan(X), ValueError, "needs the moments of folds of"),
        (lambda: bp.NystromKernelPCA("cross-validated", n_landmarks=9).plan(X), ValueError, "needs the moments of f"),
        (
            lambda: bp.ApproximateKernelPCA("cross-validated", kernel="poly", sketch=bp.sketches.Gaussian(9)).plan(X),
            ValueError,
            "needs the moments of folds",
        ),
        (lambda: bp.PCA(CrossValidated()).fit(X, groups=FOLDS * 0), ValueError, "at least 2"),
        (
            lambda: bp.PCA(CrossValidated()).fit(X, covariates=np.eye(len(X))[:, :-2]),
            ValueError,
            "of all other folds count",
        ),
        (
            lambda: bp.PCA(CrossValidated()).partial_fit(X, groups=FOLDS * 0).components_,
            ValueError,
            "only 1 of 1 folds",
        ),
        (
            lambda: bp.PCA(2).fit(X).set_params(n_components="cross-validated").partial_fit(X).mean_,
            ValueError,
            "state for ea",
        ),
    ],
)
def test_what_cannot_be_cross_validated_is_said(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_the_rule_is_stored_with_its_parameters() -> None:
    for rule in (CrossValidated(), CrossValidated(7, "likelihood", 12)):
        assert decode_components(encode_components(rule)) == rule
    limited = bp.PCA(CrossValidated(max_components=2)).fit(X)
    assert limited.cv_errors_.shape == (5, 3)
    assert limited.n_components_ <= 2
