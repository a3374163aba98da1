"""Angles between subspaces: the bounds hold, close where a gap is clear, and are 1 where nothing is known."""

import numpy as np
import pytest

from bigpca.solvers.certificates import (
    SubspaceBounds,
    leading_norms,
    orthonormal_axes,
    probe_bounds,
    probe_norm_bound,
    rounding_slack,
    see_axes,
    subspace_bounds,
)
from bigpca.solvers.nystrom import nystrom
from tests import builders

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
