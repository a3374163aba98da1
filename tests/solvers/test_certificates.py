"""Bounds hold, always or at their stated probability, and are narrow enough to be of use."""

import numpy as np
import pytest

from bigpca.solvers.certificates import (
    Bounds,
    SubspaceBounds,
    captured_variance_bounds,
    frobenius_bound,
    leading_norms,
    orthonormal_axes,
    probe_bounds,
    probe_norm_bound,
    product_slack,
    residual_bound,
    rounding_slack,
    see_axes,
    subspace_bounds,
    trace_bounds,
    trustworthy,
)
from bigpca.solvers.nystrom import nystrom
from tests import builders

SIZES = [(30, 12, 5), (60, 20, 20), (90, 60, 10), (120, 25, 8), (150, 40, 15)]  # N, q, k
SEEDS = range(5)
FAILURE = 1e-3
PROBES = 10


def sketch(N, q, seed):
    """Gaussian, orthonormal, sparse, and one that lacks rank, by turns."""
    rng = np.random.default_rng(1000 + seed)
    W = rng.standard_normal((N, q)) / np.sqrt(q)
    if seed % 4 == 1:
        return np.linalg.qr(W)[0]
    if seed % 4 == 2:
        return np.where(rng.random((N, q)) < 2 / q, np.sign(W), 0.0)
    if seed % 4 == 3:
        W[:, 1] = W[:, 0]
    return W


def one_read(A, q, k, seed):
    """What one read of the data gives: the approximation, the trace, the slack, and the norm bound of the probes."""
    N = len(A.A)
    W, omega = sketch(N, q, seed), np.random.default_rng(2000 + seed).standard_normal((N, PROBES))
    products = A(np.hstack([W, omega]))
    found = nystrom(W, products[:, :q], k, precision=A.precision)
    trace = float(np.trace(A.A))
    norm_bound = probe_norm_bound(products[:, q:], found.multiply(omega), FAILURE)
    return found, trace, rounding_slack(trace, precision=A.precision, shift=found.shift), norm_bound


@pytest.mark.parametrize("name", builders.solver_spectra(30))
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_bound_holds_in_every_case(name, dtype):
    """11 spectra x 2 dtypes x 5 sizes x 5 seeds: 550 cases, none of which may fail; of the probes' 0.55 expected at
    most.
    """
    for N, q, k in SIZES:
        for seed in SEEDS:
            A = builders.CountedProduct(builders.symmetric(builders.solver_spectra(N)[name], seed)[0], dtype)
            found, trace, slack, norm_bound = one_read(A, q, k, seed)
            true = A.eigenvalues()[:k]
            certain = trace_bounds(found.values, k, trace, slack)
            probed = probe_bounds(found.values, k, trace, slack, norm_bound=norm_bound, failure=FAILURE)
            for bounds in (certain, probed):
                assert (bounds.lower <= true).all()
                assert (true <= bounds.upper).all()
                assert (np.diff(bounds.upper) <= 0).all()
            captured = float(np.trace(found.vectors @ A.A @ found.vectors.T))
            for bound in (None, norm_bound):
                lower, upper = captured_variance_bounds(found.values, k, trace, slack, norm_bound=bound)
                assert lower <= captured <= upper
                errors = found.vectors @ A.A - found.values[:k, None] * found.vectors
                residuals = np.linalg.norm(errors, axis=1)
                assert residuals.max() <= residual_bound(found.values, trace, slack, norm_bound=bound)
            assert np.linalg.norm(A.A - found.multiply(np.eye(N)), 2) <= norm_bound + slack


@pytest.mark.parametrize("where", ["first", "anywhere", "of any size"])
def test_sums_of_equal_float32_terms_err_by_more_than_a_share_of_the_trace(where):
    precision, beyond = 2.0**-23, 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(100, 2000))
        few = np.arange(n) < max(2, 0.1 * n) if where == "first" else rng.random(n) < rng.uniform(0.01, 0.5)
        x = rng.standard_normal(n) if where == "of any size" else few * rng.uniform(1, 10)
        X, W = (rng.standard_normal((n, 60)).astype("f4") for _ in range(2))
        X[:, 0] = 1e4 * (x - x.mean())
        q = X[:, 0].astype("f8") / np.linalg.norm(X[:, 0].astype("f8"))
        W[:, 0] = q
        norm = float(np.sum((q @ X.astype("f8")) ** 2))
        error = abs(float(q @ (X @ (X.T @ W)).astype("f8")[:, 0]) - norm)
        assert error <= product_slack(norm, X.size, precision=precision)
        beyond += error > rounding_slack(norm, precision=precision)
    assert (beyond > 10) == (where != "of any size")


def test_the_frobenius_norm_is_bounded_by_what_is_seen_of_it():
    for name in builders.solver_spectra(90):
        A = builders.CountedProduct(builders.symmetric(builders.solver_spectra(90)[name])[0], np.float64)
        found, trace, _, norm_bound = one_read(A, 20, 5, 1)
        true = float(np.linalg.norm(A.A))
        for bound in (None, norm_bound):
            assert true <= frobenius_bound(found.values, trace, bound) * (1 + 1e-12)
            assert frobenius_bound(found.values, trace, bound) <= trace * (1 + 1e-12)


def test_the_best_average_is_used():
    values, trace = np.array([10.0, 1.0, 1.0, 1.0]), 13.5
    upper = trace_bounds(values, 4, trace, 0.0).upper
    expected = [min((sum(values[m : i + 1]) + 0.5) / (i - m + 1) for m in range(i + 1)) for i in range(4)]
    assert upper.tolist() == expected
    # Better than both classic bounds: lambda_4 <= 1 + 0.5, and <= (10 + 1 + 1 + 1 + 0.5) / 4.
    assert upper[3] == pytest.approx(1 + 0.5 / 3)


def test_the_exact_values_leave_no_width_but_the_slack():
    values = builders.power_law(20)
    bounds = trace_bounds(values, 20, float(values.sum()), 1e-9)
    assert (bounds.upper - bounds.lower).max() <= 2.001e-9
    assert bounds.confidence == 1.0


@pytest.mark.parametrize("failure", [0.02, 0.2, 0.5])
@pytest.mark.parametrize("probes", [1, 4])
def test_the_norm_bound_fails_exactly_as_often_as_stated_on_a_matrix_of_rank_one(failure, probes):
    trials, rng = 4000, np.random.default_rng(0)
    products = np.zeros((3, probes))
    failures = 0
    for _ in range(trials):
        products[0] = rng.standard_normal(probes)  # (A - A_hat) Omega for A - A_hat = e1 e1', of norm 1
        failures += probe_norm_bound(products, np.zeros_like(products), failure) < 1.0
    assert abs(failures / trials - failure) < 4 * np.sqrt(failure * (1 - failure) / trials)


def exponent_case(p, N=2000, q=150, k=20, seed=0):
    """One read of a diagonal matrix with eigenvalues i^-p: as good as any, since the sketch has no preferred axes."""
    spectrum, rng = builders.power_law(N, p), np.random.default_rng(seed)
    W, omega = rng.standard_normal((N, q)), rng.standard_normal((N, PROBES))
    found = nystrom(W, spectrum[:, None] * W, k, precision=2.2e-16)
    trace = float(spectrum.sum())
    slack = rounding_slack(trace, precision=2.2e-16, shift=found.shift)
    norm_bound = probe_norm_bound(spectrum[:, None] * omega, found.multiply(omega), FAILURE)
    certain = trace_bounds(found.values, k, trace, slack)
    return certain, probe_bounds(found.values, k, trace, slack, norm_bound=norm_bound, failure=FAILURE)


def test_probes_bound_a_heavy_tail_five_times_as_tightly_as_the_trace():
    ratios = []
    for seed in range(5):
        certain, probed = exponent_case(1.0, seed=seed)
        ratios.append((probed.upper[0] - probed.lower[0]) / (certain.upper[0] - certain.lower[0]))
    assert np.median(ratios) <= 0.2


@pytest.mark.parametrize(("p", "trusted"), [(0.5, False), (2.0, True), (3.0, True)])
def test_a_slow_spectrum_is_not_to_be_trusted_and_a_fast_one_is(p, trusted):
    for bounds in exponent_case(p):
        assert trustworthy(bounds).trusted is trusted


def test_the_warning_carries_the_numbers_and_the_remedy():
    trust = trustworthy(Bounds(np.array([4.0, 1.0, 0.5]), np.array([4.1, 3.5, 3.0]), 1.0))
    assert (trust.components, trust.k, trust.width, trust.trusted) == (1, 3, 5.0, False)
    text = trust.warning('Use PCA(solver="krylov").')
    assert text.startswith("the bounds certify 1 of 3 components")
    assert "5 times that bound, and 2 times is the limit" in text
    assert text.endswith('Use PCA(solver="krylov").')


def test_trust_is_relative_to_the_limit_on_both_sides():
    lower = np.array([1.0])
    assert trustworthy(Bounds(lower, np.array([2.9999]), 1.0)).trusted
    assert not trustworthy(Bounds(lower, np.array([3.0001]), 1.0)).trusted


def test_eigenvalues_at_zero_need_no_certificate():
    bounds = Bounds(np.array([1.0, 0.0]), np.array([1.0001, 0.0015]), 1.0)
    assert trustworthy(bounds).trusted
    assert not trustworthy(Bounds(bounds.lower, np.array([1.0001, 0.0025]), 1.0)).trusted
    assert trustworthy(Bounds(np.zeros(2), np.zeros(2), 1.0)).trusted  # data without variance
    assert not trustworthy(Bounds(np.zeros(2), np.full(2, 1e-9), 1.0)).trusted  # nothing but slack


@pytest.mark.parametrize("k", [0, 4])
def test_only_values_that_are_given_are_bounded(k):
    with pytest.raises(
        ValueError, match=f"bounds of {k} eigenvalues were requested, but 3 values are given. Use 1 to 3"
    ):
        trace_bounds(np.ones(3), k, 5.0, 0.0)


def test_values_above_the_trace_are_rejected_beyond_rounding_only():
    assert trace_bounds(np.ones(3), 1, 3.0 - 1e-9, 1e-8).upper[0] <= 1 + 1e-8
    with pytest.raises(ValueError, match=r"values add up to 3, more than the trace 2\.9 plus rounding"):
        trace_bounds(np.ones(3), 1, 2.9, 1e-8)


# Angles between subspaces: the bounds hold, close where a gap is clear, and are 1 where nothing is known


N, Q, K = 60, 20, 6
EPS = 2.0**-52


def sine(U, V):
    """Of the largest angle between rows U and the span of rows V."""
    return float(np.linalg.norm(U - (U @ V.T) @ V, 2))


def bounded(spectrum, axes_of=lambda found: found.vectors, *, seed=0, power=0, precision=EPS):
    """Axes from one product with A (or with an orthonormal basis of A^power W), their bounds, and the eigenvectors."""
    A, V = builders.symmetric(spectrum, seed)
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((N, Q))
    for _ in range(power):
        W = A @ W
    W = np.linalg.qr(W)[0]
    dtype = np.float32 if precision > EPS else np.float64
    found = nystrom(W, (A.astype(dtype) @ W.astype(dtype)).astype(np.float64), K, precision=precision)
    omega = rng.standard_normal((N, 10))
    norm_bound = probe_norm_bound(A @ omega, found.multiply(omega))
    trace = float(np.trace(A))
    slack = rounding_slack(trace, precision=precision, shift=found.shift)
    P = 2 * K + 1
    upper = probe_bounds(found.values, P, trace, slack, norm_bound=norm_bound, failure=1e-3).upper
    upper = np.minimum(upper, found.majorant_values(W, norm_bound, P) + slack)
    axes = orthonormal_axes(axes_of(found))
    return axes, subspace_bounds(see_axes(found, axes, W), upper, norm_bound, slack), V


@pytest.mark.parametrize(
    ("name", "power", "precision"),
    [*((name, 1, EPS) for name in builders.solver_spectra(N)),
     *((name, 0, 2.0**-23) for name in builders.solver_spectra(N)), ("gap", 3, EPS), ("power law 1", 3, 2.0**-23)],
)  # fmt: skip
def test_no_angle_exceeds_its_bound(name, power, precision):
    off = np.random.default_rng(1).standard_normal((K, K))
    for seed in range(3):
        for share in (0.0, 0.1, 1e-9):  # the last: squares of entries off the diagonal are below eps of those on it
            mixing = np.eye(K) + share * off
            axes, bounds, V = bounded(
                builders.solver_spectra(N)[name], lambda found, mixing=mixing: mixing @ found.vectors,
                seed=seed, power=power, precision=precision,
            )  # fmt: skip
            for j in range(1, K + 1):
                for p in range(j, 2 * K + 1):
                    assert sine(axes[:j], V[:p]) <= bounds.bound(j, p) + 1e-14, (j, p)
            assert bounds.errors.tolist() == [bounds.bound(j, j) for j in range(1, K + 1)]


def test_bounds_close_with_the_iteration_where_there_is_a_gap():
    spectrum = builders.gap(N, K, size=20.0)
    errors = [bounded(spectrum, power=power)[1].errors[-1] for power in range(5)]
    assert errors[1] < 0.1
    assert errors[3] < 1e-4
    assert errors[4] < 1e-5


def test_a_cluster_is_not_split_but_the_whole_of_it_is_certain():
    spectrum = np.r_[np.full(4, 8.0), 2.0, 1.5, np.full(N - 6, 0.01)]
    axes, bounds, V = bounded(spectrum, power=3)
    assert bounds.errors[:3].tolist() == [1.0] * 3
    assert bounds.errors[3] < 1e-6
    assert max(bounds.bound(j, 4) for j in range(1, 5)) < 1e-6
    assert sine(axes[:2], V[:4]) < 1e-6


def test_both_arguments_count_and_one_without_a_gap_says_nothing():
    bounds = SubspaceBounds(
        np.array([0.1, 0.1]), np.array([0.04, 1e-6]), np.array([2.0, 1.0]), np.array([2.0, 1.0, 0.9])
    )
    assert bounds.bound(1, 1) == pytest.approx(0.1)  # |R| / gap
    assert bounds.bound(2, 2) == pytest.approx(np.sqrt(1e-5))  # sqrt(deficit / gap)
    assert bounds.bound(1, 2) == pytest.approx(0.1 / 1.1)
    assert SubspaceBounds(np.zeros(1), np.zeros(1), np.ones(1), np.array([2.0, 1.0])).bound(1, 1) == 1.0
    assert SubspaceBounds(np.ones(1), np.ones(1), np.ones(1), np.array([1.0, 0.9])).bound(1, 1) == 1.0


def test_norms_of_leading_blocks_are_bounded_by_the_better_of_two():
    G = np.random.default_rng(0).standard_normal((7, 7))
    G += G.T
    true = np.array([np.linalg.norm(G[:j, :j], 2) for j in range(1, 8)])
    assert (true <= leading_norms(G) * (1 + 1e-14)).all()
    assert leading_norms(np.eye(5)).tolist() == [1.0] * 5  # row sums
    assert leading_norms(np.ones((5, 5))).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_orthonormal_axes_span_what_they_spanned_and_empty_ones_stay_empty():
    axes = np.random.default_rng(0).standard_normal((4, 30))
    axes[2] = axes[0] - 2 * axes[1]
    rows = orthonormal_axes(np.vstack([axes, np.zeros(30)]))
    np.testing.assert_allclose(rows @ rows.T, np.diag([1.0, 1, 0, 1, 0]), atol=1e-14)
    for j in (1, 2, 4):
        np.testing.assert_allclose(axes[:j] @ rows[:j].T @ rows[:j], axes[:j], atol=1e-13)
