"""Rules for the number of components: known answers in noise, at gaps and at their edges, and clear errors."""

import numpy as np
import pytest

import bigpca as bp
from bigpca.solvers.components import (
    Elbow,
    GavishDonoho,
    MarchenkoPastur,
    RelativeThreshold,
    marchenko_pastur_median,
    resolve_components,
)
from tests import builders


def spectrum_of(X):
    return np.linalg.svd(X - X.mean(0), compute_uv=False) ** 2 / (len(X) - 1)


@pytest.mark.parametrize("k", [1, 2, 5, 12])
@pytest.mark.parametrize("d", [20, 300])
@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_the_elbow_of_a_gap_is_the_gap(k, d, unit):
    assert resolve_components(Elbow(), unit * builders.gap(d, k), unit * builders.gap(d, k).sum(), 1000, d) == k


def test_the_elbow_is_the_point_farthest_from_the_chord_in_the_plane():
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = np.sort(rng.exponential(size=12) ** 3)[::-1]
        points = np.column_stack([np.linspace(0, 1, 12), (values - values[-1]) / (values[0] - values[-1])])
        chord = (points[-1] - points[0]) / np.linalg.norm(points[-1] - points[0])
        across = chord[0] * (points[:, 1] - points[0, 1]) - chord[1] * (points[:, 0] - points[0, 0])
        assert resolve_components(Elbow(), values, values.sum(), 50, 12) == max(int(np.argmin(across)), 1)


@pytest.mark.parametrize("unit", [0.1, 1 / 255**2, 3.0, 1e-200, 1e200])
@pytest.mark.parametrize("shape", ["straight", "integers", "geometric", "two"])
def test_the_elbow_does_not_depend_on_the_unit_even_where_points_tie(shape, unit):
    values = {
        "straight": np.arange(23, 0, -1.0), "integers": np.repeat([17.0, 11, 5, 2], 4),
        "geometric": 0.5 ** np.arange(30),
        "two": np.array([0.7, 0.3]),
    }[shape]  # fmt: skip
    for r in range(1, len(values) + 1):
        choices = [Elbow().choose(c * values[:r], float(c * values.sum()), 100, len(values)) for c in (1.0, unit)]
        assert choices[0] == choices[1], r


def test_a_straight_scree_plot_has_its_elbow_at_the_beginning():
    assert resolve_components(Elbow(), np.ones(8), 8.0, 50, 8) == 1
    assert resolve_components(Elbow(), np.array([2.0, 1.0]), 3.0, 50, 2) == 1
    assert resolve_components(Elbow(), np.array([2.0]), 2.0, 50, 1) == 1


def noisy(n, d, rank, strength, *, noise=1.0, seed=0):
    """White noise, and ``rank`` orthogonal directions of variance ``strength``."""
    rng = np.random.default_rng(seed)
    signal = rng.standard_normal((n, rank)) * np.sqrt(strength) @ builders.orthonormal_rows(rank, d, seed)
    return signal + np.sqrt(noise) * rng.standard_normal((n, d))


@pytest.mark.parametrize("rule", [GavishDonoho(), GavishDonoho(1.0), MarchenkoPastur()], ids=str)
@pytest.mark.parametrize(("n", "d"), [(600, 60), (200, 200), (60, 600)])
@pytest.mark.parametrize("seed", range(3))
def test_strong_signals_in_white_noise_are_counted(rule, n, d, seed):
    # The variance of a direction shows above s sqrt(d / n); Gavish & Donoho keep what is some way above that.
    values = spectrum_of(noisy(n, d, 5, 8 * (1 + np.sqrt(d / n)) ** 2, seed=seed))
    assert resolve_components(rule, values, values.sum(), n, d) == 5


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("make", [lambda u: GavishDonoho(), lambda u: GavishDonoho(u), lambda u: MarchenkoPastur()])
def test_the_noise_rules_do_not_depend_on_the_units(make, unit):
    values = unit * spectrum_of(noisy(300, 80, 7, 30.0))
    assert resolve_components(make(unit), values, values.sum(), 300, 80) == 7


def test_the_edge_separates_signals_that_show_from_those_that_do_not():
    # d / n = 1 / 4: variances above 0.5 show in infinite samples. At 1.5 all do, at 0.1 none.
    shown, hidden = [], []
    for seed in range(20):
        for found, strength in ((shown, 1.5), (hidden, 0.1)):
            values = spectrum_of(noisy(800, 200, 4, strength, seed=seed))
            found.append(MarchenkoPastur().choose(values, values.sum(), 800, 200))
    assert all(4 <= k <= 5 for k in shown)
    assert np.mean(np.array(shown) == 4) >= 0.6
    assert all(k <= 1 for k in hidden)
    assert np.mean(np.array(hidden) == 0) >= 0.6


def test_the_remainder_of_the_total_estimates_the_noise_though_many_signals_are_removed():
    n, d, rank = 300, 150, 60
    values = spectrum_of(noisy(n, d, rank, 100.0, noise=2.0))
    m, left = n - 1, values.sum() - values[:rank].sum()
    corrected, plain = left / ((d - rank) * (1 - rank / m)), left / (d - rank)
    assert abs(corrected / 2.0 - 1) < 0.02  # standard error of 90 x 239 squares: 0.01
    assert plain / 2.0 < 0.85
    assert resolve_components(MarchenkoPastur(), values, values.sum(), n, d) == rank


@pytest.mark.parametrize("rule", [MarchenkoPastur(), GavishDonoho(), GavishDonoho(1e-30)], ids=str)
def test_rounding_below_the_rank_is_no_signal(rule):
    values = builders.rank_deficient(20, 6)
    values[6:] = np.linspace(1e-16, 1e-17, 14)
    assert resolve_components(rule, values, values[:6].sum(), 100, 20) == 6


def test_equal_eigenvalues_of_wide_data_are_noise_unless_the_noise_is_known_to_be_small():
    values = np.append(np.full(9, 5.0), 0.0)  # 10 centred rows
    assert resolve_components(MarchenkoPastur(), values, values.sum(), 10, 40) == 1
    assert resolve_components(GavishDonoho(), values, values.sum(), 10, 40) == 1
    assert resolve_components(GavishDonoho(1e-6), values, values.sum(), 10, 40) == 9


def test_the_zero_that_centring_leaves_is_not_in_the_median():
    # 3 centred rows have 2 singular values; with the zero the median would be 1, and 10 above its threshold of 3.3.
    assert GavishDonoho().choose(np.array([10.0, 1.0, 0.0]), 11.0, 3, 9) == 0


@pytest.mark.parametrize("beta", [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
def test_the_marchenko_pastur_median_is_that_of_white_noise(beta):
    d = 400
    noise = np.random.default_rng(0).standard_normal((int(d / beta), d))
    sampled = float(np.median(np.linalg.eigvalsh(noise.T @ noise / len(noise))))
    assert marchenko_pastur_median(beta) == pytest.approx(sampled, abs=0.02)
    # Gavish & Donoho's polynomial for t(beta) / sqrt(median), good to 0.02.
    t = np.sqrt(2 * (beta + 1) + 8 * beta / (beta + 1 + np.sqrt(beta**2 + 14 * beta + 1)))
    polynomial = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
    assert t / np.sqrt(marchenko_pastur_median(beta)) == pytest.approx(polynomial, abs=0.021)


def test_the_square_thresholds_are_the_papers_4_over_root_3_and_2_858():
    assert 4 / np.sqrt(3) / np.sqrt(marchenko_pastur_median(1.0)) == pytest.approx(2.858, abs=5e-4)
    n = 101  # centred: m = 100 = d
    edge = 16 / 3  # (4 / sqrt(3))^2 max(m, d) s / m
    for factor, k in ((1.001, 1), (0.999, 0)):
        values = np.full(100, 0.5)
        values[0] = factor * edge
        assert GavishDonoho(1.0).choose(values, values.sum(), n, 100) == k


@pytest.mark.parametrize("rule", [Elbow(), GavishDonoho(), GavishDonoho(0.5), MarchenkoPastur()], ids=str)
@pytest.mark.parametrize("solver", ["covariance", "dot"])
def test_a_rule_is_a_choice_of_pca(rule, solver, tmp_path):
    X = noisy(120, 30, 3, 40.0, noise=0.5)
    pca = bp.PCA(rule, solver=solver).fit(X)
    assert pca.n_components_ == 3
    pca.save(tmp_path / "model.zarr")
    assert bp.load(tmp_path / "model.zarr").n_components == rule


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf")])
def test_a_noise_variance_that_is_not_positive_is_rejected(bad):
    with pytest.raises(ValueError, match=r"noise_variance = .* is outside \(0, inf\); a variance, or None"):
        GavishDonoho(bad)


@pytest.mark.parametrize("bad", [True, "1", [1.0]])
def test_a_noise_variance_that_is_no_number_is_rejected(bad):
    with pytest.raises(
        TypeError, match=r"noise_variance = .* is a .*; a number in \(0, inf\) was expected: a variance"
    ):
        GavishDonoho(bad)


@pytest.mark.parametrize("eps", [0, -0.1, 1.5, float("nan")])
def test_a_threshold_outside_its_range_is_rejected(eps):
    with pytest.raises(ValueError, match=r"eps = .* is outside \(0, 1\]; a share of the largest"):
        RelativeThreshold(eps)


@pytest.mark.parametrize("eps", [True, "0.1", None])
def test_a_threshold_that_is_no_number_is_rejected(eps):
    with pytest.raises(TypeError, match=r"eps = .* is a .*; a number in \(0, 1\]"):
        RelativeThreshold(eps)
