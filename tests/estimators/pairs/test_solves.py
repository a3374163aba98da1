"""Solves from moments against QR of the rows: public numbers, conditions, units, dependent columns, rounded values."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import bigpca as bp
from bigpca.errors import ApproximationWarning
from bigpca.estimators.pairs import model as pair_model
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
def test_public_coefficients_have_by_two_reads_the_digits_of_lstsq_or_ten(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, certified = PUBLIC[name]

    def error(found: Array) -> float:
        return float(np.abs(found.ravel() / certified - 1).max())

    one = bp.Ridge(0.0).fit(X, y[:, None])
    monkeypatch.setattr(pair_model, "ENOUGH", 0.0)
    with pytest.warns(ApproximationWarning):  # of the limit that this test moves
        two = bp.Ridge(0.0).fit(X, y[:, None])
    assert (one.provenance_.reads, two.provenance_.reads) == (1, 2)
    centred = X - X.mean(0)
    unit = 2.0 ** np.round(np.log2(np.linalg.norm(centred, axis=0)))
    equilibrated = np.linalg.lstsq(centred / unit, y - y.mean(), rcond=None)[0] / unit
    # NOTE: a float64 scatter of Wampler's rows, each entry the nearest number to the exact one, has 7 digits of x.
    assert error(one.coef_) < (1e-9 if name == "Longley" else 1e-5)
    assert error(two.coef_) < max(1e-10, 3 * error(equilibrated))


def conditioned(n: int, p: int, condition: float, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.standard_normal(shape))[0] for shape in ((n, p), (p, p)))
    X = 100 * U * condition ** -np.linspace(0, 1, p) @ V.T
    return X, U[:, -4:] @ rng.standard_normal((4, 4)) + 0.02 * rng.standard_normal((n, 4))


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


def test_what_cannot_be_read_twice_says_how_uncertain_it_is() -> None:
    X, Y = conditioned(600, 9, 1e10)
    for make in (partial(bp.Ridge, 0.0), partial(bp.CCA, 2)):
        half = make().fit(X, Y)
        assert half.solve_error_ < 1e-6
        with pytest.warns(ApproximationWarning, match=r"solve_error_"):
            make().fit(bp.from_batches(iter([(X[:300], Y[:300]), (X[300:], Y[300:])])))
        with pytest.warns(ApproximationWarning, match=r"solve_error_"):
            bp.merge(half, half)
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
    with pytest.warns(ApproximationWarning, match="32 independent columns together, of which at most 29 .*: 3 of the"):
        found = bp.CCA(4).fit(X, Y)
    np.testing.assert_allclose(found.correlations_[:3], 1.0, atol=1e-9)
    assert found.correlations_[3] < 0.999
    bp.CCA(4, regularization=0.1).fit(X, Y)


def test_covariances_of_huge_values_are_finite(tmp_path: Any) -> None:
    X, Y = RNG.standard_normal((50, 5)), RNG.standard_normal((50, 3))
    huge, plain = bp.PLSSVD(2, scale=False).fit(X * 1e80, Y * 1e80), bp.PLSSVD(2, scale=False).fit(X, Y)
    np.testing.assert_allclose(huge.squared_covariance_fraction_, plain.squared_covariance_fraction_, rtol=1e-9)
    huge.save(tmp_path / "m.zarr")
    np.testing.assert_allclose(bp.load(tmp_path / "m.zarr").singular_values_, plain.singular_values_ * 1e160)


def test_columns_that_are_rounding_of_their_values_are_not_analysed() -> None:
    X = np.full((80, 3), 1e6, "f4") + np.float32(0.0625) * RNG.integers(0, 2, (80, 3)).astype("f4")
    with pytest.raises(ValueError, match=r"X varies by no more than the rounding of its stored values, 3e-08"):
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
        assert np.count_nonzero(model.explained_variance_) == 2
        assert np.abs(model.transform(other)).max() < 20
        assert np.abs(model.get_precision()).max() < 1e3
    assert bp.PCA(2, scale=scale).fit(rows).noise_variance_ == 0


FACTORS = RNG.integers(-200, 201, (300, 3)) / 100
RANK3 = (FACTORS @ RNG.integers(-2000, 2001, (3, 40)) / 2.0**14).astype("f4")


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_minkas_rank_is_that_of_the_rows(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0 if dtype == "f4" else np.inf)
    assert bp.PCA("mle", solver="covariance").fit(RANK3).n_components_ == 3


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_svcca_of_all_variance_is_that_of_the_column_spaces(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PRECISE_FLOPS", 0.0 if dtype == "f4" else np.inf)
    rng = np.random.default_rng(4)
    Y = (FACTORS @ rng.standard_normal((3, 8)) + rng.standard_normal((300, 8))).astype("f4")
    left, right = (np.linalg.svd(one - one.mean(0, dtype="f8"), full_matrices=False)[0] for one in (RANK3, Y))
    truth = np.linalg.svd(left[:, :3].T @ right, compute_uv=False)
    assert bp.quality.svcca(RANK3, Y, variance=1.0).value == pytest.approx(truth.mean(), abs=1e-6)


def test_a_column_with_one_value_above_zero_gives_every_fold_a_score() -> None:
    """The scatter of that column is 0 in all folds but one, and rounds below 0."""
    X, Y = RNG.standard_normal((300, 4)), RNG.standard_normal((300, 2))
    X[:, 3] = np.where(np.arange(300) == 7, 0.3, 0.0)
    assert np.isfinite(bp.Ridge([0.1, 1.0], cv=5).fit(X, Y + X[:, :1]).cv_scores_).all()
