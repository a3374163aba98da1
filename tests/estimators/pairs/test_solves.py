"""Solves from moments against QR of the rows: public numbers, conditions, units, dependent columns, rounded values."""

import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict

import bigpca as bp
from bigpca.errors import ApproximationWarning
from bigpca.passes.reading import blocks

Array = NDArray[Any]
RNG = np.random.default_rng(0)
# NIST, Statistical Reference Datasets: Longley (1967) and Wampler (1970), with certified coefficients.
LONGLEY = np.array([
    [83, 234289, 2356, 1590, 107608, 1947], [88.5, 259426, 2325, 1456, 108632, 1948],
    [88.2, 258054, 3682, 1616, 109773, 1949], [89.5, 284599, 3351, 1650, 110929, 1950],
    [96.2, 328975, 2099, 3099, 112075, 1951], [98.1, 346999, 1932, 3594, 113270, 1952],
    [99, 365385, 1870, 3547, 115094, 1953], [100, 363112, 3578, 3350, 116219, 1954],
    [101.2, 397469, 2904, 3048, 117388, 1955], [104.6, 419180, 2822, 2857, 118734, 1956],
    [108.4, 442769, 2936, 2798, 120445, 1957], [110.8, 444546, 4681, 2637, 121950, 1958],
    [112.6, 482704, 3813, 2552, 123366, 1959], [114.2, 502601, 3931, 2514, 125368, 1960],
    [115.7, 518173, 4806, 2572, 127852, 1961], [116.9, 554894, 4007, 2827, 130081, 1962],
])  # fmt: skip
EMPLOYED = np.array([60323, 61122, 60171, 61187, 63221, 63639, 64989, 63761, 66019, 67857, 68169, 66513, 68655, 69564,
                     69331, 70551.0])  # fmt: skip
CERTIFIED = np.array([15.0618722713733, -0.0358191792925910, -2.02022980381683, -1.03322686717359, -0.0511041056535807,
                      1829.15146461355])  # fmt: skip
POWERS = np.arange(21.0)[:, None] ** np.arange(1, 6)
STEPS = np.array([759, -2048, 2048, -2048, 2523, -2048, 2048, -2048, 1838, -2048, 2048, -2048, 1838, -2048, 2048,
                  -2048, 2523, -2048, 2048, -2048, 759.0])  # fmt: skip
TENTHS = 10.0 ** -np.arange(1, 6)
PUBLIC = {
    "Longley": (LONGLEY, EMPLOYED, CERTIFIED),
    "Wampler 1": (POWERS, POWERS.sum(1) + 1, np.ones(5)),
    "Wampler 2": (POWERS, POWERS @ TENTHS + 1, TENTHS),
    "Wampler 3": (POWERS, POWERS.sum(1) + 1 + STEPS, np.ones(5)),
    "Wampler 4": (POWERS, POWERS.sum(1) + 1 + 100 * STEPS, np.ones(5)),
    "Wampler 5": (POWERS, POWERS.sum(1) + 1 + 10000 * STEPS, np.ones(5)),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_coefficients_have_nine_digits_by_one_read_and_by_two_those_of_lstsq_or_ten(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, certified = PUBLIC[name]

    def error(found: Array) -> float:
        return float(np.abs(found.ravel() / certified - 1).max())

    monkeypatch.setattr(bp.Ridge, "_enough", np.inf)
    one = bp.Ridge(0.0).fit(X, y[:, None])
    monkeypatch.setattr(bp.Ridge, "_enough", 0.0)
    two = bp.Ridge(0.0).fit(X, y[:, None])
    assert (one.provenance_.reads, two.provenance_.reads) == (1, 2)
    centred = X - X.mean(0)
    unit = 2.0 ** np.round(np.log2(np.linalg.norm(centred, axis=0)))
    # The error of one solve is one draw of rounding, which differs from processor to processor: the largest of many.
    orders = [np.random.default_rng(seed).permutation(len(y)) for seed in range(20)]
    solved = [np.linalg.lstsq((centred / unit)[rows], (y - y.mean())[rows], rcond=None)[0] / unit for rows in orders]
    # One read has nine digits of the whole, each coefficient in units of its column's standard deviation (4.2e-10 at
    # most in 30 orders of the rows), and six of the coefficient of Wampler's x, 1e-6 of that: so does a scatter whose
    # entries are each the nearest float64 to the exact one. Exact products take 25 times as long.
    sd = X.std(axis=0)
    assert np.linalg.norm((one.coef_.ravel() - certified) * sd) < 1e-9 * np.linalg.norm(certified * sd)
    assert error(one.coef_) < (1e-9 if name == "Longley" else 1e-5)
    assert error(two.coef_) < max(1e-10, *map(error, solved))


# R 4.3, help(cancor): LifeCycleSavings (Belsley, Kuh & Welsch 1980), pop15 and pop75 against sr, dpi and ddpi.
SAVINGS_TEXT = """
11.43 29.35 2.87 2329.68 2.87 12.07 23.32 4.41 1507.99 3.93 13.17 23.80 4.43 2108.47 3.82 5.75 41.89 1.67 189.13 0.22
12.88 42.19 0.83 728.47 4.56 8.79 31.72 2.85 2982.88 2.43 0.60 39.74 1.34 662.86 2.67 11.90 44.75 0.67 289.52 6.51
4.98 46.64 1.06 276.65 3.08 10.78 47.64 1.14 471.24 2.80 16.85 24.42 3.93 2496.53 3.99 3.59 46.31 1.19 287.77 2.19
11.24 27.84 2.37 1681.25 4.32 12.64 25.06 4.70 2213.82 4.52 12.55 23.31 3.35 2457.12 3.44 10.67 25.62 3.10 870.85 6.28
3.01 46.05 0.87 289.71 1.48 7.70 47.32 0.58 232.44 3.19 1.27 34.03 3.08 1900.10 1.12 9.00 41.31 0.96 88.94 1.54
11.34 31.16 4.19 1139.95 2.99 14.28 24.52 3.48 1390.00 3.54 21.10 27.01 1.91 1257.28 8.21 3.98 41.74 0.91 207.68 5.81
10.35 21.80 3.73 2449.39 1.57 15.48 32.54 2.47 601.05 8.12 10.25 25.95 3.67 2231.03 3.62 14.65 24.71 3.25 1740.70 7.66
10.67 32.61 3.17 1487.52 1.76 7.30 45.04 1.21 325.54 2.48 4.44 43.56 1.20 568.56 3.61 2.02 41.18 1.05 220.56 1.03
12.70 44.19 1.28 400.06 0.67 12.78 46.26 1.12 152.01 2.00 12.49 28.96 2.85 579.51 7.48 11.14 31.94 2.28 651.11 2.19
13.30 31.92 1.52 250.96 2.00 11.77 27.74 2.87 768.79 4.35 6.86 21.44 4.54 3299.49 3.01 14.13 23.49 3.73 2630.96 2.70
5.13 43.42 1.08 389.66 2.96 2.81 46.12 1.21 249.87 1.13 7.81 23.27 4.46 1813.93 2.01 7.56 29.81 3.43 4001.89 2.45
9.22 46.40 0.90 813.39 0.53 18.56 45.25 0.56 138.33 5.14 7.72 41.12 1.73 380.47 10.23 9.24 28.13 2.72 766.54 1.88
8.89 43.69 2.07 123.58 16.71 4.71 47.20 0.66 242.69 5.08"""
SAVINGS = np.array(SAVINGS_TEXT.split(), float).reshape(50, 5)


def test_correlations_and_directions_are_those_of_r() -> None:
    found = bp.CCA(2, scale=False).fit(SAVINGS[:, 1:3], SAVINGS[:, [0, 3, 4]])
    np.testing.assert_allclose(found.correlations_, [0.8247966, 0.3652762], atol=5e-8)
    directions = found.x_rotations_ / np.linalg.norm(found.x_rotations_, axis=0)
    theirs = np.array([[-0.009110856, -0.03622206], [0.048647514, -0.26031158]])
    theirs /= np.linalg.norm(theirs, axis=0)
    np.testing.assert_allclose(np.abs(directions), np.abs(theirs), atol=5e-8)


def conditioned(n: int, p: int, condition: float, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.standard_normal(shape))[0] for shape in ((n, p), (p, p)))
    X = 100 * U * condition ** -np.linspace(0, 1, p) @ V.T
    return X, U[:, -4:] @ rng.standard_normal((min(p, 4), 4)) + 0.02 * rng.standard_normal((n, 4))


def basis(X: Array) -> Array:
    return np.asarray(np.linalg.qr((X - X.mean(0)) / X.std(0))[0])


@pytest.mark.parametrize(("condition", "reads"), [(1e3, 1), (2e7, 2), (1e12, 2)])
def test_nearly_dependent_columns_are_solved_to_the_digits_of_qr(condition: float, reads: int) -> None:
    X, Y = conditioned(600, 9, condition)
    ours, cca = bp.Ridge(0.0).fit(X, Y), bp.CCA(3).fit(X, Y)
    assert {ours.provenance_.reads, cca.provenance_.reads} == {reads}
    left, centred = basis(X), Y - Y.mean(0)
    truth = 1 - ((centred - left @ (left.T @ centred)) ** 2).sum(0) / (centred**2).sum(0)
    np.testing.assert_allclose(ours.cv_scores_[0], truth, atol=5e-6)
    assert ours.score(X, Y) == pytest.approx(truth.mean(), abs=5e-6)
    np.testing.assert_allclose(cca.correlations_, np.linalg.svd(left.T @ basis(Y), compute_uv=False)[:3], atol=1e-6)
    np.testing.assert_allclose(
        np.corrcoef(*cca.transform(X, Y), rowvar=False)[:3, 3:], np.diag(cca.correlations_), atol=1e-5
    )
    plan = bp.CCA(3).plan(X, Y)
    assert (plan.passes, plan.most_passes) == (1, 2)


@pytest.mark.parametrize("condition", [2e8, np.inf])
def test_what_one_read_cannot_tell_from_dependent_columns_is_read_again(condition: float) -> None:
    """Of their smallest eigenvalue one read knows no digit, nor its sign."""
    for seed in range(8):
        X, Y = np.eye(3)[np.random.default_rng(seed).integers(0, 3, 110)], TALL[:110]
        if condition < np.inf:
            X, Y = conditioned(110, 3, condition, seed)
        found = bp.Ridge(0.0).fit(X, Y)
        assert found.provenance_ is not None
        assert found.provenance_.reads == 2
        truth = np.linalg.lstsq(X - X.mean(0), Y - Y.mean(0), rcond=1e-12)[0].T
        error = np.linalg.norm(found.coef_ - truth) / np.linalg.norm(truth)
        assert error < 100 * found.solve_error_ < 1e-4
        with pytest.warns(ApproximationWarning, match="solve_error_"):
            assert bp.Ridge(0.0).fit(X[:60], Y[:60]).partial_fit(X[60:], Y[60:]).solve_error_ == 1.0


@pytest.mark.parametrize("constant", [9.487504950151309e54, 4.2971222388886844e45])
def test_a_huge_constant_changes_no_other_column(constant: float) -> None:
    """Its products with others are rounding of its size."""
    X, Y = TALL[:19] * 1e-30, TALL[:19, ::2] + 0.3 * TALL[20:39, ::2]
    beside = np.column_stack([X, np.full(19, constant)])
    for make in (partial(bp.Ridge, 0.0), partial(bp.CCA, 2, regularization=0.1), partial(bp.PLSSVD, 2)):
        found, alone = make().fit(beside, Y), make().fit(X, Y)
        for name in ("coef_", "x_weights_", "correlations_", "singular_values_"):
            if hasattr(alone, name):
                theirs, ours = getattr(alone, name), getattr(found, name)
                ours = ours[:, :4] if name == "coef_" else ours[: len(theirs)]
                np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=0)


def test_what_cannot_be_read_twice_says_how_uncertain_it_is() -> None:
    X, Y = conditioned(600, 9, 1e10)
    for make in (partial(bp.Ridge, 0.0), partial(bp.CCA, 2)):
        half = make().fit(X, Y)
        assert half.solve_error_ < 1e-5
        with pytest.warns(ApproximationWarning, match=r"solve_error_"):
            make().fit(bp.from_batches(iter([(X[:300], Y[:300]), (X[300:], Y[300:])])))
        with pytest.warns(ApproximationWarning, match=r"solve_error_"):
            _ = bp.merge(half, half).coef_
        with pytest.warns(ApproximationWarning, match=r"solve_error_"):
            assert half.partial_fit(X, Y).solve_error_ == 1.0


def penalised(X: Array, Y: Array, alpha: float) -> Array:
    """Predictions by QR of the equilibrated columns above those of the penalty."""
    centred = X - X.mean(0)
    A = np.vstack([centred, np.sqrt(alpha) * np.eye(X.shape[1])])
    unit = np.linalg.norm(A, axis=0)
    below = np.vstack([Y - Y.mean(0), np.zeros((X.shape[1], Y.shape[1]))])
    found = np.linalg.lstsq(A / unit, below, rcond=1e-11)[0] / unit[:, None]
    return np.asarray(Y.mean(0) + centred @ found)


def exact_ridge(X: Array, y: Array, alpha: float) -> Array:
    """Coefficients of the stored numbers, in fractions."""
    A = [[Fraction(float(value)) for value in (*row, target)] for row, target in zip(X, y, strict=True)]
    means = [sum(column) / len(A) for column in zip(*A, strict=True)]
    A = [[value - mean for value, mean in zip(row, means, strict=True)] for row in A]
    S = [[sum(row[i] * row[j] for row in A) for j in range(len(means))] for i in range(len(means) - 1)]
    for i in range(len(S)):
        S[i][i] += Fraction(alpha)
    for i, pivot in enumerate(S):  # Gauss and Jordan, of a positive definite matrix
        pivot[:] = [value / pivot[i] for value in pivot]
        for other in S[:i] + S[i + 1 :]:
            other[:] = [value - other[i] * own for value, own in zip(other, pivot, strict=True)]
    return np.array([float(row[-1]) for row in S])


@pytest.mark.filterwarnings("ignore:values are stored")
@pytest.mark.parametrize("once", [False, True])
def test_coefficients_are_within_ten_times_their_estimated_error_or_a_warning_tells(once: bool) -> None:
    """Dependent columns, small penalties, units, offsets and short floats, against fractions."""
    told = 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        X = np.round(rng.standard_normal((14, 3)) * 50)
        X[:, 2] = [X[:, 0] - 2 * X[:, 1], X[:, 0] + 10.0 ** -(seed // 3) * X[:, 2], X[:, 2]][seed % 3]
        X = (X * 10.0 ** rng.uniform(-3, 3, 3) ** (seed % 2) + 10.0 ** rng.uniform(0, 4)).astype(
            ["f8", "f4", "f2"][seed // 8]
        )
        y, alpha = (
            rng.standard_normal(14) + X[:, 0].astype("f8") / X[:, 0].astype("f8").std(),
            10.0 ** rng.uniform(-12, 1),
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            halves = [bp.Ridge(alpha).fit(X[own], y[own]) for own in (slice(0, 7), slice(7, 14))] if once else []
            warnings.simplefilter("always")
            model = bp.merge(*halves) if once else bp.Ridge(alpha).fit(X, y)
            assert model.solve_error_ <= 1
        truth, units = exact_ridge(X, y, alpha), X.astype("f8").std(axis=0)
        error = np.linalg.norm(units * (model.coef_.ravel() - truth)) / np.linalg.norm(units * truth)
        warned = any("solve_error_" in str(one.message) for one in caught)
        told += warned
        assert warned or error < max(10 * model.solve_error_, 1e-6), seed
    assert told < (12 if once else 4)


GROUPS = np.eye(6)[RNG.integers(0, 6, 300)]
TALL = RNG.standard_normal((300, 4))
SIDES = {
    "units": np.column_stack([RNG.lognormal(15, 1, 300), RNG.random(300), 280 + TALL[:, 0]]),
    "more columns than rows": RNG.standard_normal((300, 320)),
    "dependent": np.hstack([TALL, TALL @ RNG.standard_normal((4, 5))]) + 50,
    "indicators": GROUPS,
    "indicators and units": np.column_stack([GROUPS, 1e8 * TALL[:, 0] + 1e9]),
    "a constant": np.column_stack([TALL, np.full(300, 7.7)]),
    "multiples": TALL[:, :1] * [1.0, 1000.0],
}


@pytest.mark.parametrize("precise", [True, False])
@pytest.mark.parametrize("name", SIDES)
def test_every_penalty_has_the_predictions_of_qr(name: str, precise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 1e11 if precise else 0.0)
    X = SIDES[name]
    Y = X[:, :3] / X[:, :3].std(0) @ RNG.standard_normal((min(3, X.shape[1]), 2)) + RNG.standard_normal((300, 2))
    for dtype in ("f8", "f4"):
        rows = X.astype(dtype)
        for alpha in (1e-9, 1e-3, 1e3) if dtype == "f8" else (1.0,):
            model = bp.Ridge([alpha, 1e6], cv=3).fit(rows, Y)
            assert (model.cv_scores_ <= 1).all()
            assert (model.cv_scores_ > -3).all()
            model = bp.Ridge(alpha).fit(rows, Y)
            np.testing.assert_allclose(model.predict(rows), penalised(rows.astype("f8"), Y, alpha), atol=1e-6)


def test_correlations_that_are_one_whatever_the_rows_are_told() -> None:
    X, Y = RNG.standard_normal((30, 20)), RNG.standard_normal((30, 12))
    with pytest.warns(
        ApproximationWarning, match="32 independent columns together, and 30 rows can tell at most 29 apart: 3 of the"
    ):
        found = bp.CCA(4).fit(X, Y)
    np.testing.assert_allclose(found.correlations_[:3], 1.0, atol=1e-9)
    assert found.correlations_[3] < 0.999
    with pytest.warns(
        ApproximationWarning, match="20 .*, and 20 rows beside the covariates can tell at most 19 apart: 1 of the"
    ):
        assert bp.CCA(1).fit(X[:, :10], Y[:, :10], covariates=RNG.standard_normal((30, 10))).correlations_[0] > 1 - 1e-9
    bp.CCA(4, regularization=0.1).fit(X, Y)


def test_covariances_of_huge_values_are_finite() -> None:
    X, Y = RNG.standard_normal((50, 5)), RNG.standard_normal((50, 3))
    huge, plain = (bp.PLSSVD(2, scale=False).fit(X * unit, Y * unit) for unit in (1e80, 1.0))
    np.testing.assert_allclose(huge.squared_covariance_fraction_, plain.squared_covariance_fraction_, rtol=1e-9)
    np.testing.assert_allclose(huge.singular_values_, plain.singular_values_ * 1e160)


def test_rounding_of_stored_values_changes_no_number_and_is_told() -> None:
    """Half of the steps of float32, 0.0625, are rounding: what is stored is solved, as if it were float64."""
    rng = np.random.default_rng(1)
    X = np.full((80, 3), 1e6, "f4") + np.float32(0.0625) * rng.integers(0, 2, (80, 3)).astype("f4")
    Y = (X - X[0]) @ rng.standard_normal((3, 2)) * 9 + rng.standard_normal((80, 2))
    near = TALL @ np.eye(4, 6) + 3.0
    near[:, 4:] = near[:, :2]  # whose differences are rounding of float32
    near = (near + 1e-9 * np.random.default_rng(2).standard_normal(near.shape)).astype("f4")
    for make in (partial(bp.CCA, 1), partial(bp.Ridge, 0.0)):
        for rows, y in ((X, Y), (near * np.float32(1.1), TALL[:, :2] + RNG.standard_normal((300, 2)))):
            with pytest.warns(ApproximationWarning, match="stored to a relative 3e-08, which changes the solution by"):
                found = make().fit(rows, y)
            truth = make().fit(rows.astype("f8"), y)
            for name in ("coef_", "correlations_", "cv_scores_", "solve_error_"):
                if hasattr(truth, name):
                    np.testing.assert_allclose(getattr(found, name), getattr(truth, name), rtol=1e-6, atol=1e-12)
            assert found.solve_error_ < 1e-3
        make().fit((TALL + 100).astype("f4"), TALL[:, :2] + RNG.standard_normal((300, 2)))


def test_columns_that_are_rounding_of_float64_are_not_analysed() -> None:
    X = np.full((80, 3), 1e6) + 2.0**-33 * RNG.integers(0, 2, (80, 3))
    with pytest.raises(ValueError, match=r"X varies by no more than the rounding of float64, 2e-16 of the size of its"):
        bp.CCA(1).fit(X, RNG.standard_normal((80, 2)))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("scale", [True, False])
def test_rounding_of_stored_values_is_neither_whitened_nor_inverted(
    dtype: str, scale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of rank 2 far from zero: what float32 rounds is 1e-5 of their deviations, in all other directions."""
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0 if dtype == "f4" else np.inf)
    rng = np.random.default_rng(3)
    rows = (rng.standard_normal((500, 2)) @ rng.standard_normal((2, 6)) + 100).astype("f4")
    other = rows + rng.standard_normal(rows.shape).astype("f4")
    whole, grown = bp.PCA(whiten=True, scale=scale).fit(rows), bp.PCA(whiten=True, scale=scale)
    grown.partial_fit(rows[:200]).partial_fit(rows[200:])
    merged = bp.merge(*(bp.PCA(whiten=True, scale=scale).fit(half) for half in (rows[:200], rows[200:])))
    for model in (whole, grown, merged):
        assert np.count_nonzero(np.asarray(model.transform(rows)).std(axis=0)) == 2
        assert np.abs(model.transform(other)).max() < 20
        assert np.abs(model.get_precision()).max() < 1e3
    assert bp.PCA(2, scale=scale).fit(rows).noise_variance_ == 0


@pytest.mark.parametrize("solver", ["covariance", "dot", "krylov"])
def test_shares_of_the_variance_count_that_of_axes_which_may_be_rounding(solver: str) -> None:
    """Half precision rounds 1000 to 0.5: the last of ten axes vary by little more."""
    rows = (1000 + RNG.standard_normal((200, 10)) * np.geomspace(3, 0.3, 10)).astype("f2")
    for k in (2, 5):
        model = bp.PCA(k, solver=solver).fit(rows)
        assert model.total_variance_ == pytest.approx(np.cov(rows.T.astype("f8")).trace(), rel=1e-9)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        partial(bp.PCA, 5, solver="covariance"), partial(bp.PCA, 5, solver="dot"), partial(bp.PCA, 5, solver="krylov"),
        partial(bp.ApproximatePCA, 5),
    ],
)  # fmt: skip
def test_no_solver_whitens_the_rounding_of_stored_values(make: partial[Any], scale: bool, tmp_path: Path) -> None:
    """Five axes of rows of rank 2 with more columns than rows, whose rounding has the larger eigenvalues."""
    rng = np.random.default_rng(3)
    rows = (rng.standard_normal((60, 2)) @ rng.standard_normal((2, 300)) + 100).astype("f4")
    other = rows + rng.standard_normal(rows.shape).astype("f4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)
        model = make(whiten=True, scale=scale).fit(rows)
    model.save(tmp_path / "model")
    for one in (model, bp.load(tmp_path / "model")):
        assert np.count_nonzero(one.transform(rows).std(axis=0)) == 2
        assert np.abs(one.transform(other)).max() < 20
        assert np.abs(one.get_precision()).max() < 1e3


FACTORS = RNG.integers(-200, 201, (300, 3)) / 100
RANK3 = (FACTORS @ RNG.integers(-2000, 2001, (3, 40)) / 2.0**14).astype("f4")


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_minkas_rank_is_that_of_the_rows(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0 if dtype == "f4" else np.inf)
    assert bp.PCA("mle", solver="covariance").fit(RANK3).n_components_ == 3


@pytest.mark.parametrize("intercept", [True, False])
def test_a_column_that_is_constant_without_a_fold_has_no_coefficient_there(intercept: bool) -> None:
    """Its scatter without that fold is the rounding of the shift, which that fold moves."""
    rng = np.random.default_rng(0)
    for n in range(30, 60):
        X, Y, groups = rng.standard_normal((n, 4)), rng.standard_normal((n, 2)), np.arange(n) % 4
        X[:, 3] = np.where(np.arange(n) == 7, 0.3, 0.0)
        found = bp.Ridge([0.0, 1.0], fit_intercept=intercept).fit(X, Y, groups=groups)
        for alpha, scores in zip((0.0, 1.0), found.cv_scores_, strict=True):
            theirs = SklearnRidge(alpha, fit_intercept=intercept, solver="svd")
            left = Y - cross_val_predict(theirs, X, Y, groups=groups, cv=LeaveOneGroupOut())
            expected = 1 - (left**2).sum(0) / ((Y - Y.mean(0)) ** 2).sum(0)
            np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-9)


Y4 = RNG.integers(0, 4, 300)
SOLVED: dict[str, Callable[[Array], Any]] = {
    "Ridge": lambda X: bp.Ridge(0.1).fit(X, X[:, :2]),
    "Ridge of folds": lambda X: bp.Ridge([0.1, 1.0], cv=3).fit(X, X[:, :2]),
    "CCA": lambda X: bp.CCA(2).fit(X[:, :5], X[:, 5:]),
    "PLSSVD": lambda X: bp.PLSSVD(2).fit(X[:, :5], X[:, 5:]),
    "Fisher": lambda X: bp.FisherDiscriminantAnalysis().fit(X, Y4),
    "Roweis": lambda X: bp.RoweisDiscriminantAnalysis(2, r1=0.5, r2=0.5).fit(X, Y4),
    "covariates": lambda X: bp.PCA(2).fit(X[:, :5], covariates=X[:, 5:]),
}


@pytest.mark.parametrize("name", SOLVED)
def test_what_is_divided_by_is_multiplied_in_float64_whatever_it_costs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (RNG.standard_normal((300, 8)) + 5).astype("f4")
    precise = SOLVED[name](rows)
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0)
    large = SOLVED[name](rows)
    known = {key: getattr(precise, key) for key in dir(precise) if key[-1] == "_" != key[0]}
    found = {key: value for key, value in known.items() if isinstance(value, np.ndarray)}
    assert len(found) > 3
    for key, value in found.items():
        np.testing.assert_array_equal(getattr(large, key), value, err_msg=key)
