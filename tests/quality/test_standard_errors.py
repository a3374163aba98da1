"""Standard errors agree with the spread of many samples, and say where there are none."""

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray

import bigpca as bp
from bigpca.quality import standard_errors

N, D = 1500, 6
DEVIATIONS = np.array([4.0, 3.0, 2.2, 1.6, 1.1, 0.7])
AXES = np.linalg.qr(np.random.default_rng(5).standard_normal((D, D)))[0]
RNG = np.random.default_rng(0)
Rows = NDArray[np.float64]


def gaussian(size: tuple[int, ...]) -> Rows:
    return RNG.standard_normal(size)


def heavy(size: tuple[int, ...]) -> Rows:
    return RNG.laplace(size=size) / np.sqrt(2)  # the kurtosis of each entry is 6


def sample(draw: Callable[[tuple[int, ...]], Rows], *size: int) -> Rows:
    return (draw((*size, D)) * DEVIATIONS) @ AXES.T


@pytest.mark.parametrize(("draw", "scale"), [(gaussian, False), (heavy, False), (gaussian, True)])
def test_one_read_gives_the_spread_of_many_samples(draw: Callable[[tuple[int, ...]], Rows], scale: bool) -> None:
    population = (AXES * DEVIATIONS**2) @ AXES.T
    if scale:
        population /= np.sqrt(np.outer(*2 * [population.diagonal()]))
    axes = np.linalg.eigh(population)[1][:, ::-1]
    measured: dict[str, list[Rows]] = {"values": [], "shares": [], "angles": []}
    for _ in range(600):
        values, vectors = np.linalg.eigh((np.corrcoef if scale else np.cov)(sample(draw, N).T))
        measured["values"].append(values[::-1])
        measured["shares"].append(values[::-1] / values.sum())
        cosines = np.abs((vectors[:, ::-1] * axes).sum(axis=0))
        measured["angles"].append(np.arccos(np.minimum(cosines, 1)))
    found = []
    for _ in range(16):
        rows = sample(draw, N)
        found.append(standard_errors(bp.PCA(solver="covariance", scale=scale).fit(rows), rows))
    for name, truth in (
        ("explained_variance_", np.std(measured["values"], axis=0)),
        ("explained_variance_ratio_", np.std(measured["shares"], axis=0)),
        ("component_angle_", np.sqrt(np.mean(np.square(measured["angles"]), axis=0))),
    ):
        mean = np.mean([getattr(one, name) for one in found], axis=0)
        np.testing.assert_allclose(mean, truth, rtol=0.1, err_msg=name)


@pytest.mark.parametrize("scale", [False, True])
def test_fewer_components_give_the_same_errors_of_eigenvalues_and_upper_values_of_angles(scale: bool) -> None:
    rows = sample(gaussian, N)
    whole = standard_errors(bp.PCA(solver="covariance", scale=scale).fit(rows), rows)
    lazy = da.from_array(rows, chunks=(400, D))
    some = standard_errors(bp.PCA(4, solver="covariance", scale=scale).fit(rows), lazy)
    np.testing.assert_allclose(some.explained_variance_, whole.explained_variance_[:4], rtol=1e-10)
    np.testing.assert_allclose(some.explained_variance_ratio_, whole.explained_variance_ratio_[:4], rtol=1e-10)
    assert (some.component_angle_[:3] >= whole.component_angle_[:3] * (1 - 1e-10)).all()
    assert (some.component_angle_[:3] <= 1.5 * whole.component_angle_[:3]).all()
    assert some.n_rows == N
    assert repr(some).split()[:5] == ["component", "variance", "share", "angle", "pca0"]


def test_axes_of_equal_eigenvalues_seem_determined_in_one_sample_of_a_hundred() -> None:
    draws = [np.random.default_rng(seed).standard_normal((400, 2)) for seed in range(100)]
    determined = sum(
        np.isfinite(standard_errors(bp.PCA(solver="covariance").fit(rows), rows).component_angle_[0]) for rows in draws
    )
    assert determined <= 5  # of a Poisson variable of mean 1.1, 1 in 1,000 is larger


def test_ties_and_as_many_features_as_rows_are_undetermined() -> None:
    tied = RNG.standard_normal((2000, 5)) * [3, 1, 1, 1, 1]
    found = standard_errors(bp.PCA().fit(tied), tied)
    assert np.isfinite(found.component_angle_[0])
    assert np.isnan(found.component_angle_[1:]).all()
    wide = RNG.standard_normal((100, 80))
    noise = standard_errors(bp.PCA(3).fit(wide), wide)
    assert np.isnan(noise.component_angle_).all()
    assert np.isnan(noise.explained_variance_).all()
    undetermined, biased = noise.notes
    assert undetermined.startswith("3 of 3 eigenvalues and 3 of 3 axes are not determined by 100 rows")
    assert "80 columns and 100 rows: the leading eigenvalues of a sample are then biased upwards" in biased
    assert "(1 + sqrt(d / n))^2 = 3.6 (Marchenko and Pastur)" in biased
    assert found.notes[1:] == ()
    assert standard_errors(bp.PCA(1).fit(tied), tied).notes == ()
    some = standard_errors(bp.PCA(1).fit(tied), tied)  # the rest, 4, may belong to one axis, but is less than 9
    assert np.isfinite(some.component_angle_[0])


def test_no_axis_of_noise_is_determined_where_columns_are_comparable_with_rows_and_none_at_all_by_two_rows() -> None:
    deviations = np.r_[10, 4, np.ones(28)]
    for _ in range(5):
        rows = gaussian((60, 30)) * deviations
        found = standard_errors(bp.PCA().fit(rows), rows)
        for errors in (found.explained_variance_, found.component_angle_):
            assert np.isfinite(errors).tolist() == [True] * 2 + [False] * 28
    for d in (1, 3):
        two = gaussian((2, d))
        none = standard_errors(bp.PCA().fit(two), two)
        assert np.isnan([none.explained_variance_, none.explained_variance_ratio_, none.component_angle_]).all()
        assert "or there are too few rows" in none.notes[0]


@pytest.mark.parametrize("unit", [1e-150, 1e-90, 1e90, 1e150])
def test_the_unit_of_the_columns_does_not_matter(unit: float) -> None:
    rows = sample(gaussian, 300)
    found, truth = (standard_errors(bp.PCA(3).fit(X), X) for X in (rows * unit, rows))
    np.testing.assert_allclose(found.explained_variance_ / unit / unit, truth.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(found.explained_variance_ratio_, truth.explained_variance_ratio_, rtol=1e-6)
    np.testing.assert_allclose(found.component_angle_, truth.component_angle_, rtol=1e-6)


def test_a_given_scale_is_that_of_scaled_rows() -> None:
    rows = sample(gaussian, 300)
    scale = RNG.uniform(1, 3, rows.shape[1])
    found = standard_errors(bp.PCA(3, scale=scale).fit(rows), rows)
    truth = standard_errors(bp.PCA(3).fit(rows / scale), rows / scale)
    for name in ("explained_variance_", "explained_variance_ratio_", "component_angle_"):
        np.testing.assert_allclose(getattr(found, name), getattr(truth, name), rtol=1e-9, err_msg=name)


def test_weights_equal_repeated_rows() -> None:
    rows, weights = sample(gaussian, 300), RNG.integers(0, 4, 300)
    found = standard_errors(bp.PCA(3).fit(rows, sample_weight=weights), rows, sample_weight=weights)
    repeated = np.repeat(rows, weights, axis=0)
    truth = standard_errors(bp.PCA(3).fit(repeated), repeated)
    for name in ("explained_variance_", "explained_variance_ratio_", "component_angle_", "n_rows"):
        np.testing.assert_allclose(getattr(found, name), getattr(truth, name), rtol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    ("model", "rows", "error", "message"),
    [
        (lambda X: bp.PCA(2, scale=True, center=False).fit(X), slice(None), ValueError, "scale = True is learned"),
        (lambda X: bp.PCA(2).fit(2 * X), slice(None), ValueError, "X has the total variance .* the rows of the fit"),
        (lambda X: bp.PCA(2).fit(X), slice(50), ValueError, r"X has 50 rows of weight 50, but .* fitted to 90"),
        (
            lambda X: bp.ApproximatePCA(2, approximation="tutorial").fit(X),
            slice(None),
            TypeError,
            "orthonormal components",
        ),
        (
            lambda X: bp.FactorAnalysis(1).fit(X),
            slice(None),
            TypeError,
            "FactorAnalysis without orthonormal components",
        ),
        (lambda X: bp.KernelPCA(2).fit(X), slice(None), TypeError, "a KernelPCA has no components_"),
    ],
    ids=["scale", "other values", "other rows", "tutorial", "factors", "kernel"],
)
@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
def test_models_and_rows_that_have_none_are_rejected(model: Any, rows: slice, error: Any, message: str) -> None:
    X = sample(gaussian, 90)
    with pytest.raises(error, match=message):
        standard_errors(model(X), X[rows])


def of_groups(rng: Any, sizes: Any, effect: float) -> tuple[Rows, Any]:
    """Rows of groups whose means and variances differ, with eigenvalues DEVIATIONS**2 of the population."""
    rows, between = [], (0.3 * effect) ** 2
    for m in sizes:
        within = np.exp(effect * rng.standard_normal(D) - effect**2 / 2) * (1 - between)
        z = rng.standard_normal((m, D)) * np.sqrt(within) + np.sqrt(between) * rng.standard_normal(D)
        rows.append(z * DEVIATIONS)
    return np.concatenate(rows), np.repeat(np.arange(len(sizes)), sizes)


def test_the_jackknife_over_groups_is_the_formula_of_all_fits_without_one() -> None:
    rng = np.random.default_rng(3)
    rows, labels = of_groups(rng, rng.integers(15, 60, 12), 0.5)
    found = standard_errors(bp.PCA(3).fit(rows, groups=labels), method="jackknife")
    n, m = len(rows), np.bincount(labels)[:, None]

    def logs(kept: Any) -> tuple[Rows, Rows]:
        values, vectors = np.linalg.eigh(np.cov(rows[kept].T))
        return np.log(values[::-1]), vectors[:, ::-1]

    (theta, axes), without = logs(labels >= 0), [logs(labels != g) for g in range(12)]
    values = np.stack([one for one, _ in without])
    mean = 12 * theta - ((1 - m / n) * values).sum(axis=0)
    pseudo = n / m * theta - (n / m - 1) * values
    errors = np.exp(theta) * np.sqrt(((pseudo - mean) ** 2 / (n / m - 1)).mean(axis=0))
    np.testing.assert_allclose(found.explained_variance_, errors[:3], rtol=1e-9)
    turns = np.stack([np.arccos(np.minimum(np.abs((axes * other).sum(axis=0)), 1)) for _, other in without])
    np.testing.assert_allclose(found.component_angle_, np.sqrt(((n / m - 1) * turns**2).mean(axis=0))[:3], rtol=1e-6)
    low, high = found.interval().T
    np.testing.assert_allclose(low * high, np.exp(2 * theta[:3]))
    np.testing.assert_allclose(np.log(high / low) / 2, 2.200985 * (errors / np.exp(theta))[:3], rtol=1e-6)  # t(11)
    assert (found.n_rows, found.degrees_of_freedom) == (n, 11)


def test_intervals_of_the_jackknife_cover_where_groups_have_effects() -> None:
    rng, covered, truth = np.random.default_rng(0), {"jackknife": 0.0, "influence": 0.0}, DEVIATIONS[:3] ** 2
    for _ in range(60):
        rows, labels = of_groups(rng, rng.integers(20, 80, 20), 0.6)
        model = bp.PCA(3).fit(rows, groups=labels)
        for method, X in (("jackknife", None), ("influence", rows)):
            low, high = standard_errors(model, X, method=method).interval().T
            covered[method] += np.mean((low <= truth) & (truth <= high)) / 60
    assert 0.88 <= covered["jackknife"] <= 0.98
    assert covered["influence"] < 0.65


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda X, g: standard_errors(bp.PCA(2).fit(X), X, method="boot"), ValueError, "method = 'boot'"),
        (lambda X, g: standard_errors(bp.PCA(2).fit(X)), TypeError, "'influence' was given no X"),
        (lambda X, g: standard_errors(bp.PCA(2).fit(X, groups=g), X, method="jackknife"), TypeError, "reads nothing"),
        (lambda X, g: standard_errors(bp.PCA(2).fit(X), method="jackknife"), ValueError, "the model has no groups"),
        (
            lambda X, g: standard_errors(bp.PCA(2).fit(X, groups=g), method="jackknife", sample_weight=g),
            TypeError,
            "the jackknife has the weights of the fit",
        ),
        (lambda X, g: standard_errors(bp.PCA(2).fit(X), X).interval(95), ValueError, r"level = 95 is outside \(0, 1\)"),
        (
            lambda X, g: standard_errors(bp.ApproximatePCA(2).fit(X), method="jackknife"),
            TypeError,
            "a PCA was expected",
        ),
        (
            lambda X, g: standard_errors(bp.PCA(2).fit(X, groups=g * 0), method="jackknife"),
            ValueError,
            "all rows are in the group 0",
        ),
        (
            lambda X, g: standard_errors(bp.PCA(5).fit(X, groups=g > 2), method="jackknife"),
            ValueError,
            "without the group True, 3 rows are left, with fewer than 5 components",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:a jackknife over")
def test_a_jackknife_needs_groups_and_no_rows(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(sample(gaussian, 40), np.arange(40))


def test_a_jackknife_over_few_groups_warns() -> None:
    model = bp.PCA(2).fit(sample(gaussian, 90), groups=np.arange(90) % 9)
    with pytest.warns(bp.errors.ApproximationWarning, match="a jackknife over 9 groups"):
        standard_errors(model, method="jackknife")
