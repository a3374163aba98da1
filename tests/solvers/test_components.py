"""How many components: the same numbers as scikit-learn, known answers in noise and at gaps, and clear errors."""

import json
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import bigpca as bp
from bigpca.parameters import RULES as NAMES
from bigpca.solvers import components
from bigpca.solvers.components import (
    ComponentRule,
    Elbow,
    GavishDonoho,
    MarchenkoPastur,
    RelativeThreshold,
    check_n_components,
    decode_components,
    encode_components,
    marchenko_pastur_median,
    minka_rank,
    needs_full_spectrum,
    resolve_components,
    resolve_partial,
    starting_components,
)
from tests import builders


def spectrum_of(X):
    return np.linalg.svd(X - X.mean(0), compute_uv=False) ** 2 / (len(X) - 1)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999999])
@pytest.mark.parametrize("name", ["flat", "power law 0.5", "power law 2", "gap", "rank deficient"])
def test_a_share_gives_scikit_learns_number(share, name):
    X, _ = builders.data_with_spectrum(60, builders.spectra(20)[name])
    expected = PCA(n_components=share, svd_solver="full").fit(X)
    values = (
        PCA(svd_solver="full").fit(X).explained_variance_
    )  # its own: on a flat spectrum 0.5 is a tie, met by rounding
    assert resolve_components(share, values, values.sum(), *X.shape) == expected.n_components_


def test_a_share_that_is_met_exactly_takes_one_more():
    # scikit-learn's side="right": the share must be exceeded.
    assert resolve_components(0.5, np.array([0.5, 0.25, 0.25]), 1.0, 10, 3) == 2
    assert resolve_components(0.4999, np.array([0.5, 0.25, 0.25]), 1.0, 10, 3) == 1


def test_a_share_beyond_the_rounded_sum_takes_all_that_are_not_rounding():
    assert resolve_components(0.9999999, np.array([0.6, 0.3]), 1.0, 10, 2) == 2
    assert resolve_components(1 - 2**-53, np.array([0.6, 0.3, 1e-17, 0.0]), 0.9, 10, 4) == 2


def test_shares_are_of_the_true_total_and_leading_eigenvalues_may_do():
    assert resolve_components(0.5, np.array([4.0, 2.0]), 10.0, 10, 5) == 2
    with pytest.raises(ValueError, match=r"0\.9 is not reached by the 2 of 5 eigenvalues that are given"):
        resolve_components(0.9, np.array([4.0, 2.0]), 10.0, 10, 5)


def reference_mle(X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn divides by zero on its way
        return PCA(n_components="mle", svd_solver="full").fit(X).n_components_


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["power law 0.5", "power law 2", "gap"])
@pytest.mark.parametrize("n", [30, 500])
def test_mle_gives_scikit_learns_number(seed, name, n):
    X, _ = builders.data_with_spectrum(n, builders.spectra(20)[name], seed=seed)
    X = X + 0.1 * np.random.default_rng(seed).standard_normal(X.shape)
    assert minka_rank(spectrum_of(X), n) == reference_mle(X)


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_mle_does_not_depend_on_the_units(unit):
    values = builders.gap(20, 4)
    assert minka_rank(values * unit, 200) == minka_rank(values, 200) == 4


def test_mle_survives_equal_zero_and_constant_eigenvalues():
    assert 1 <= minka_rank(builders.flat(10), 50) <= 9
    assert minka_rank(builders.rank_deficient(10, 3), 50) == 3
    assert minka_rank(np.zeros(10), 50) == 1
    assert minka_rank(np.ones(1), 50) == 1
    assert 1 <= minka_rank(spectrum_of(load_digits().data), 1797) <= 63  # constant pixels


def test_every_rule_that_needs_no_number_has_one_name():
    assert {"mle", *(name.replace("_", "-") for name in components.RULES)} - {"relative-threshold"} == set(NAMES)


@pytest.mark.parametrize(("eps", "k"), [(1.0, 1), (0.5, 2), (0.49, 2), (0.01, 4), (1e-9, 4)])
def test_a_relative_threshold_keeps_eigenvalues_at_or_above_it(eps, k):
    values = np.array([10.0, 5.0, 1.0, 0.1])
    assert resolve_components(RelativeThreshold(eps), values, values.sum(), 100, 4) == k


def test_a_relative_threshold_below_the_given_eigenvalues_is_undecided():
    values = np.array([10.0, 5.0])
    assert resolve_components(RelativeThreshold(0.6), values, 20.0, 100, 4) == 1
    with pytest.raises(ValueError, match=r"RelativeThreshold\(eps=0.1\) is not reached by the 2"):
        resolve_components(RelativeThreshold(0.1), values, 20.0, 100, 4)


@pytest.mark.parametrize("rule", [0.9, "mle", RelativeThreshold(0.1), Elbow(), GavishDonoho(), MarchenkoPastur()])
def test_data_without_variance_keeps_one_component(rule):
    assert resolve_components(rule, np.zeros(3), 0.0, 10, 3) == 1


def test_numbers_and_none_need_no_spectrum():
    assert resolve_components(None, np.zeros(0), 0.0, 4, 9) == 4
    assert resolve_components(np.int32(3), np.zeros(0), 0.0, 4, 9) == 3
    assert not needs_full_spectrum(np.int64(3))
    assert all(
        needs_full_spectrum(rule) for rule in (None, 0.9, "mle", RelativeThreshold(0.1), Elbow(), MarchenkoPastur())
    )


def test_mle_needs_every_eigenvalue():
    with pytest.raises(ValueError, match='"mle" needs all 9 eigenvalues, but 4 are given'):
        resolve_components("mle", np.ones(4), 9.0, 100, 9)


LEADING = {
    "power law": (builders.power_law(40), 41),
    "steep": (builders.power_law(40, 2.0), 400),
    "gap": (builders.gap(40, 6), 400),
    "clustered": (builders.clustered(40), 60),
    "flat": (builders.flat(40), 400),
    "rank deficient": (builders.rank_deficient(40, 7), 400),
    "wide": (builders.gap(30, 4), 30),
}
RULES = [
    0.5,
    0.9,
    0.999,
    RelativeThreshold(0.2),
    RelativeThreshold(0.01),
    Elbow(),
    MarchenkoPastur(),
    GavishDonoho(0.5),
]


@pytest.mark.parametrize("name", LEADING)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_leading_eigenvalues_tell_what_the_whole_spectrum_would_or_that_they_cannot(rule, name):
    values, n = LEADING[name]
    d = 90 if name == "wide" else len(values)
    whole = resolve_components(rule, values, values.sum(), n, d)
    assert resolve_partial(rule, values, values.sum(), n, d) == whole
    found = [resolve_partial(rule, values[:r], values.sum(), n, d) for r in range(len(values))]
    assert set(found) <= {None, whole}
    assert found[0] is None
    decided = [r for r, k in enumerate(found) if k is not None]
    assert decided == list(range(decided[0], len(values))) if decided else True


@pytest.mark.parametrize(
    ("rule", "name", "most"),
    [
        (0.5, "power law", 5), (RelativeThreshold(0.2), "power law", 6), (Elbow(), "gap", 7), (Elbow(), "steep", 25),
        (MarchenkoPastur(), "gap", 7), (GavishDonoho(0.5), "gap", 7), (MarchenkoPastur(), "wide", 5),
    ],
    ids=str,
)  # fmt: skip
def test_rules_decide_from_few_eigenvalues(rule, name, most):
    values, n = LEADING[name]
    d = 90 if name == "wide" else len(values)
    assert resolve_partial(rule, values[:most], values.sum(), n, d) is not None


def test_no_part_of_a_random_spectrum_decides_otherwise_than_the_whole():
    rng = np.random.default_rng(0)
    decided = 0
    for trial in range(400):
        values = np.sort(rng.exponential(size=8) ** rng.integers(1, 5) + rng.choice([0.0, 0.5]))[::-1]
        for rule in RULES:
            whole = resolve_components(rule, values, values.sum(), 30, 8)
            found = [resolve_partial(rule, values[:r], values.sum(), 30, 8) for r in range(1, 8)]
            assert set(found) <= {None, whole}, (trial, rule)
            decided += sum(k is not None for k in found)
    assert decided > 400 * len(RULES)


def test_a_number_waits_for_as_many_eigenvalues():
    assert resolve_partial(np.int64(3), np.ones(2), 9.0, 100, 9) is None
    assert resolve_partial(3, np.ones(3), 9.0, 100, 9) == 3
    assert resolve_partial(None, np.ones(9), 9.0, 100, 9) == 9
    assert resolve_partial("mle", builders.gap(9, 2), builders.gap(9, 2).sum(), 100, 9) == 2


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (None, "n_components = None needs all 9 eigenvalues, but {}: it keeps them all"),
        ("mle", 'n_components = "mle" needs all 9 eigenvalues, but {}: it compares every number of components'),
        (
            GavishDonoho(),
            r"GavishDonoho\(noise_variance=None\) needs all 9 eigenvalues, but {}: it takes the noise from",
        ),
    ],
)
def test_choices_that_need_the_whole_spectrum_are_rejected_on_a_part_of_it_with_the_reason(rule, reason):
    with pytest.raises(ValueError, match=reason.format("this solver has computed 4")):
        resolve_partial(rule, np.ones(4), 9.0, 100, 9)
    with pytest.raises(
        ValueError, match=r"needs all 500 eigenvalues, but this solver computes only the leading ones.*Use"
    ):
        starting_components(rule, 1000, 500)
    if rule is not None:
        with pytest.raises(ValueError, match=reason.format("4 are given")):
            resolve_components(rule, np.ones(4), 9.0, 100, 9)


def test_data_without_variance_keeps_one_component_from_a_part_of_the_spectrum_too():
    for rule in RULES:
        assert resolve_partial(rule, np.zeros(2), 0.0, 10, 9) == 1


def test_the_first_guess_is_the_number_itself_or_64_where_there_are_as_many():
    assert starting_components(np.int64(200), 1000, 500) == 200
    for rule in RULES:
        assert starting_components(rule, 1000, 500) == 64
        assert starting_components(rule, 1000, 30) == 30
        assert starting_components(rule, 20, 30) == 20
    assert starting_components("mle", 100, 64) == 64
    with pytest.raises(ValueError, match="n_components = 31 is out of range"):
        starting_components(31, 1000, 30)


@pytest.mark.parametrize("rule", [None, 3, np.int32(3), 0.5, "mle", RelativeThreshold(0.1), Elbow(), GavishDonoho(),
                                  GavishDonoho(np.float64(2.0)), MarchenkoPastur()], ids=str)  # fmt: skip
def test_every_choice_comes_back_from_json(rule):
    back = decode_components(json.loads(json.dumps(encode_components(rule))))
    assert back == rule
    assert type(back) in (type(rule), int)


def test_the_stored_form_of_a_threshold_is_that_of_earlier_models():
    assert encode_components(RelativeThreshold(0.2)) == {"relative_threshold": 0.2}


@pytest.mark.parametrize("stored", [{"kaiser": None}, {}, {"elbow": None, "relative_threshold": 0.1}])
def test_an_unknown_stored_rule_is_rejected(stored):
    with pytest.raises(ValueError, match=r"is not a rule; one of relative_threshold, elbow, .* was expected"):
        decode_components(stored)


def test_a_rule_of_ones_own_chooses_but_is_not_saved():
    class Half(ComponentRule):
        def choose(self, values, total, n_samples, n_features):
            return len(values) // 2

    assert resolve_components(Half(), np.ones(8), 8.0, 50, 8) == 4
    with pytest.raises(TypeError, match=r"cannot be saved: one of relative_threshold, .* Fit with the int"):
        encode_components(Half())


@pytest.mark.parametrize(
    ("bad", "n", "error", "message"),
    [
        (0, 20, ValueError, "n_components = 0 is out of range: 20 samples of 9 features have 1 to 9 components"),
        (10, 20, ValueError, "Use at most 9"),
        (5, 4, ValueError, "4 samples of 9 features have 1 to 4 components. Use at most 4"),
        (10, None, ValueError, "data of 9 features have 1 to 9 components"),
        (-1, 20, ValueError, "n_components = -1 is out of range"),
        (1.0, 20, ValueError, r"1\.0 is a float outside \(0, 1\), the range of a share"),
        (0.0, 20, ValueError, r"0\.0 is a float outside"),
        (2.5, 20, ValueError, r"2\.5 is a float outside"),
        (float("nan"), 20, ValueError, "nan is a float outside"),
        ("auto", 20, ValueError, "n_components = 'auto' is not known"),
        ("mle", 8, ValueError, "at least as many samples as features, but there are 8 samples of 9 features"),
        (True, 20, TypeError, "n_components = True is a bool"),
        (np.True_, 20, TypeError, "is a bool"),
        ([3], 20, TypeError, r"n_components = \[3\] is a list"),
        (1 + 0j, 20, TypeError, "is a complex"),
    ],
)
def test_impossible_choices_are_rejected_with_the_numbers(bad, n, error, message):
    with pytest.raises(error, match=message):
        check_n_components(bad, n, 9)


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
