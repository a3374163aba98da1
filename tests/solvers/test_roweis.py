"""The Roweis family from its statistics: every (r1, r2) equals SciPy's generalised eigenproblem of matrices made
whole.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bigpca.solvers.eigh import EPS, rounded_squares
from bigpca.solvers.moments import Scatter
from bigpca.solvers.roweis import CENTRED, STRENGTHENED, Conditioning, RoweisFamily, completed, supervised_axes
from tests.estimators.labelled import (
    assert_same_axes,
    centred,
    generalised,
    labelled_rows,
    one_hot,
    outside,
    roweis_matrices,
    unit_of,
    within_scatter,
)

Array = NDArray[Any]
N, D, C = 200, 9, 4
X, Y = labelled_rows(N, D, C)
GRID = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.3, 0.7), (1e-6, 0.999), (0.5, 0.0), (0.0, 0.5)]


def statistics(X: Array, y: Array) -> tuple[Array, Array, Array]:
    """S_W, rows whose product is S_B, and Psi'."""
    psi = one_hot(y).T @ centred(X)
    return within_scatter(X, y), psi / np.sqrt(np.bincount(y))[:, None], psi


def family(X: Array = X, y: Array = Y, **options: Any) -> RoweisFamily:
    within, between, psi = statistics(X, y)
    return RoweisFamily(scattered(within, between, len(y) - len(np.unique(y))), between, psi, **options)


def scattered(within: Array, between: Array, freedom: int, precision: float = EPS) -> Scatter:
    noise = rounded_squares(np.diagonal(within) + (between**2).sum(axis=0), np.zeros(len(within)), 0, CENTRED)
    return Scatter.of(within, noise, precision, freedom)


@pytest.mark.parametrize(("r1", "r2"), GRID)
@pytest.mark.parametrize("k", [1, 3])
def test_every_point_of_the_family_equals_scipy(r1: float, r2: float, k: int) -> None:
    R1, R2 = roweis_matrices(X, Y, r1, r2)
    unit = unit_of(Y, r2)
    values, axes = generalised(R1, R2, k, unit)
    found = family().solve(r1, r2, k)
    np.testing.assert_allclose(found.values, values, rtol=1e-11)
    assert_same_axes(found.components, axes)
    np.testing.assert_allclose(found.components @ (R2 / unit) @ found.components.T, np.eye(k), atol=1e-12)


def test_one_family_serves_all_points_in_any_order() -> None:
    one = family()
    again = [one.solve(r1, r2, 3).components for r1, r2 in GRID[::-1]][::-1]
    for (r1, r2), components in zip(GRID, again, strict=True):
        np.testing.assert_array_equal(components, family().solve(r1, r2, 3).components)


def test_axes_have_the_sign_that_makes_their_largest_entry_positive() -> None:
    components = family().solve(0.3, 0.6, None).components
    assert (components[np.arange(D), np.abs(components).argmax(axis=1)] > 0).all()


@pytest.mark.parametrize(("r1", "r2", "rank"), [(1.0, 0.0, C - 1), (1.0, 0.8, C - 1), (0.999, 0.8, D), (0.0, 1.0, D)])
def test_rank_counts_the_eigenvalues_of_r1_above_rounding(r1: float, r2: float, rank: int) -> None:
    found = family().solve(r1, r2, None)
    assert (found.rank, len(found.values)) == (rank, D)
    assert found.values[rank:].sum() <= 1e-12 * found.values[0]


@pytest.mark.parametrize(("r1", "r2"), GRID)
def test_normalized_terms_have_the_trace_of_the_identity(r1: float, r2: float) -> None:
    B, T, W = (roweis_matrices(X, Y, *point)[which] for point, which in (((1, 0), 0), ((0, 0), 0), ((0, 1), 1)))
    unit = unit_of(Y, 1.0, D / np.trace(W)) ** r2
    B, T, W = (S * D / np.trace(S) for S in (B, T, W))
    values, axes = generalised(r1 * B + (1 - r1) * T, r2 * W + (1 - r2) * np.eye(D), 3, unit)
    found = family(normalize=True).solve(r1, r2, 3)
    np.testing.assert_allclose(found.values, values, rtol=1e-11)
    assert_same_axes(found.components, axes)


# R2 that is singular or nearly so

FEW = labelled_rows(10, D, 3, seed=2)  # d > n - c = 7: S_W has rank 7


def robust_matrix(R2: Array, share: float) -> tuple[Array, int, float]:
    """R2 with the eigenvalues beyond the fewest that hold that share at their mean (RDA paper, section 5.2)."""
    values, Q = np.linalg.eigh(R2)
    values, Q = values[::-1].clip(0), Q[:, ::-1]
    kept = next(k for k in range(1, len(values) + 1) if values[:k].sum() >= share * values.sum())
    mean = float(values[kept:].mean()) if kept < len(values) else 0.0
    replaced = np.concatenate([values[:kept], np.full(len(values) - kept, mean)])
    return (Q * replaced) @ Q.T, kept, mean


@pytest.mark.parametrize("share", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("r2", [0.9, 1.0])
def test_the_robust_form_replaces_trailing_eigenvalues_by_their_mean(share: float, r2: float) -> None:
    R1, R2 = roweis_matrices(*FEW, 0.2, r2)
    replaced, kept, mean = robust_matrix(R2, share)
    assert 1 <= kept < D
    assert mean > 0
    found = family(*FEW).solve(0.2, r2, 3, Conditioning(robust=share))
    values, axes = generalised(R1, replaced, 3, unit_of(FEW[1], r2))
    np.testing.assert_allclose(found.values, values, rtol=1e-9)
    assert_same_axes(found.components, axes)


def test_the_robust_form_is_strengthened_where_the_mean_is_0_and_says_by_how_much() -> None:
    one = family(*FEW)
    share = 1 - 1e-9  # the 7 eigenvalues that are not 0 hold it, and no fewer
    L, added = one.constraint(1.0, Conditioning(robust=share))
    assert added == STRENGTHENED * L[0] > 0
    np.testing.assert_allclose(L, [*np.linalg.eigvalsh(within_scatter(*FEW))[::-1][:7], added, added], rtol=1e-9)
    assert one.constraint(1.0, Conditioning(robust=0.5))[1] == 0.0


def test_the_pseudo_inverse_leaves_out_the_null_space() -> None:
    R1, R2 = roweis_matrices(*FEW, 0.4, 1.0)
    values, Q = np.linalg.eigh(R2)
    Q, L = Q[:, 2:], values[2:]
    inner, vectors = np.linalg.eigh((Q / np.sqrt(L)).T @ R1 @ (Q / np.sqrt(L)))
    found = family(*FEW).solve(0.4, 1.0, None, Conditioning(regularization="pinv"))
    np.testing.assert_allclose(found.values, inner[::-1], rtol=1e-9)
    assert_same_axes(
        found.components[:2], np.sqrt(7) * ((Q / np.sqrt(L)) @ vectors[:, ::-1]).T[:2]
    )  # beyond c - 1 they are alike
    assert np.abs(found.components @ np.linalg.eigh(R2)[1][:, :2]).max() < 1e-7 * np.abs(found.components).max()


@pytest.mark.parametrize("number", [1e-3, 2.0])
def test_a_number_is_added_to_the_diagonal(number: float) -> None:
    R1, R2 = roweis_matrices(*FEW, 0.4, 1.0)
    values, axes = generalised(R1, R2 + number * np.eye(D), 3, 7)
    found = family(*FEW).solve(0.4, 1.0, 3, Conditioning(regularization=number))
    np.testing.assert_allclose(found.values, values, rtol=1e-9)
    assert_same_axes(found.components, axes)


@pytest.mark.parametrize(
    "conditioning", [Conditioning(), Conditioning(robust=0.5), Conditioning(regularization=0.1)], ids=str
)
def test_inverses_are_those_of_the_covariance_within_classes_conditioned_as_r2(conditioning: Conditioning) -> None:
    one, rows = family(), np.random.default_rng(4).standard_normal((3, D))
    R2 = within_scatter(X, Y)
    if conditioning.robust:
        R2 = robust_matrix(R2, 0.5)[0]
    covariance = (R2 + (conditioning.regularization or 0.0) * np.eye(D)) / N
    np.testing.assert_allclose(one.inverses(rows, N, conditioning), rows @ np.linalg.inv(covariance), rtol=1e-9)


def test_a_singular_r2_is_rejected_with_the_ways_out() -> None:
    message = (
        r"r2 = 1 is singular: 2 of its 9 eigenvalues are 0.*robust=True, regularization=\"pinv\" or a number .*r2 < 1"
    )
    with pytest.raises(ValueError, match=message):
        family(*FEW).solve(0.0, 1.0, 2)
    assert family(*FEW).solve(0.0, 0.999, 2).values.shape == (2,)
    constant = X.copy()
    constant[:, [2, 5]] = 3.0
    with pytest.raises(ValueError, match="2 of its 9 eigenvalues are 0"):
        family(constant).solve(0.0, 1.0, 2)


def test_classes_a_million_deviations_apart_are_not_taken_for_equal_rows() -> None:
    rows, y = labelled_rows(N, D, C, apart=1e6)
    found = family(rows, y).solve(0.0, 1.0, C - 1)
    np.testing.assert_allclose(found.values, generalised(*roweis_matrices(rows, y, 0.0, 1.0), C - 1)[0], rtol=1e-5)


# Supervised PCA


@pytest.mark.parametrize(("m", "d"), [(3, 20), (20, 3), (12, 12), (12, 13), (1, 5)])
def test_the_dual_form_equals_the_direct_one(m: int, d: int) -> None:
    psi = np.random.default_rng(m).standard_normal((m, d))
    found = supervised_axes(psi, None)
    k = min(m, d)
    values, vectors = np.linalg.eigh(psi.T @ psi)
    np.testing.assert_allclose(found.values, values[::-1][:k], rtol=1e-9)
    assert_same_axes(found.components, vectors[:, ::-1].T[:k])
    assert found.rank == k


def test_supervised_axes_are_orthonormal_and_as_many_as_were_asked_for() -> None:
    psi = statistics(X, Y)[2]
    for k in (1, 2, None):
        found = supervised_axes(psi, k)
        assert len(found.values) == (k or C - 1)
        assert found.rank == C - 1
        np.testing.assert_allclose(found.components @ found.components.T, np.eye(len(found.values)), atol=1e-13)
    assert outside(psi.T, found.components.T) < 1e-12


def test_no_dependence_has_rank_0() -> None:
    assert supervised_axes(np.zeros((3, 5)), None).rank == 0
    assert supervised_axes(np.zeros((5, 3)), None).rank == 0


@pytest.mark.parametrize("m", [0, 3, 9])
def test_axes_are_completed_by_orthonormal_ones_of_eigenvalue_0(m: int) -> None:
    found = supervised_axes(np.random.default_rng(m).standard_normal((m, D)), None)
    whole = completed(found, D)
    np.testing.assert_allclose(whole.components @ whole.components.T, np.eye(D), atol=1e-13)
    np.testing.assert_array_equal(whole.components[:m], found.components)
    assert (whole.rank, whole.values[m:].tolist()) == (m, [0.0] * (D - m))
    np.testing.assert_array_equal(completed(found, D).components, whole.components)
