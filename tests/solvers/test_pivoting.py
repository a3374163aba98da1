"""Rejection among candidates: the law of pivots drawn one after the other, and no duplicates."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from bigpca.solvers.pivoting import accept_pivots, weighted_pivots
from tests.builders import symmetric

N = 5
K, _ = symmetric(np.array([4.0, 2.0, 1.0, 0.5, 0.1]))
NONE = np.zeros((N, 0))


def candidates(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.choice(N, size=count, p=np.diag(K) / np.trace(K))


def test_accepted_candidates_are_pivots_of_randomly_pivoted_cholesky() -> None:
    rng, draws = np.random.default_rng(0), 8000
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(draws):
        drawn = candidates(rng, 40)  # enough that two are always accepted
        accepted = accept_pivots(
            K[np.ix_(drawn, drawn)], np.zeros((40, 0)), np.diag(K)[drawn], rng.random(42), 2, rounding=1e-9
        )
        pivots = tuple(drawn[accepted].tolist())
        counts[pivots] = counts.get(pivots, 0) + 1
    for i, j in permutations(range(N), 2):
        left = np.diag(K) - K[:, i] ** 2 / K[i, i]
        p = K[i, i] / np.trace(K) * left[j] / np.delete(left, i).sum()
        assert abs(counts.get((i, j), 0) - draws * p) <= 4.5 * np.sqrt(draws * p * (1 - p))
    assert sum(counts.values()) == draws


def test_candidates_are_accepted_in_their_order_as_the_residual_allows() -> None:
    pair = np.array([[1.0, 0.8], [0.8, 1.0]])  # the second keeps 0.36 of its residual
    for draw, expected in ((0.35, [0, 1]), (0.37, [0])):
        accepted = accept_pivots(pair, np.zeros((2, 0)), np.ones(2), np.array([0.9, draw, 0, 0]), 2, rounding=1e-9)
        assert accepted.tolist() == expected


def test_what_was_chosen_before_counts_through_its_features() -> None:
    B = K[:, :1] / np.sqrt(K[0, 0])
    residual = np.diag(K) - B[:, 0] ** 2
    proposal = np.where(residual > 1e-9, residual, 1.0)
    accepted = accept_pivots(K, B, proposal, np.zeros(2 * N), N, rounding=1e-9)
    assert accepted.tolist() == [1, 2, 3, 4]  # row 0 is the landmark itself


@pytest.mark.parametrize("fill", [False, True])
def test_duplicates_are_never_accepted(fill: bool) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        drawn = candidates(rng, 60)
        distinct = len(set(drawn))
        accepted = accept_pivots(
            K[np.ix_(drawn, drawn)], np.zeros((60, 0)), np.diag(K)[drawn], rng.random(80), 20, rounding=1e-9, fill=fill
        )
        assert len(set(drawn[accepted])) == len(accepted) <= distinct
        if fill:
            assert len(accepted) == distinct


def test_only_filling_returns_all_that_were_requested() -> None:
    draws = np.full(2 * N, 0.999)  # rejects whatever lost a thousandth of its residual
    short = accept_pivots(K, NONE, np.diag(K), draws, N, rounding=1e-9)
    assert len(short) < N
    full = accept_pivots(K, NONE, np.diag(K), draws, N, rounding=1e-9, fill=True)
    assert sorted(full) == list(range(N))
    assert full[: len(short)].tolist() == short.tolist()


def test_weighted_pivots_are_drawn_by_what_is_left_and_stop_at_the_rank() -> None:
    rng = np.random.default_rng(0)
    F = rng.standard_normal((60, 7))
    K, weights = F @ F.T, rng.uniform(0.1, 3, 60)

    def drawn(draws):
        return weighted_pivots(lambda j: K[:, j], np.diag(K), weights, draws, enough=1e-12)

    assert len(drawn(rng.random(30))) == 7
    firsts = np.array([drawn(np.array([draw]))[0] for draw in (np.arange(4000) + 0.5) / 4000])
    shares = weights * np.diag(K)
    np.testing.assert_allclose(np.bincount(firsts, minlength=60) / 4000, shares / shares.sum(), atol=1 / 4000)
    second = np.array([drawn(np.array([0.3, draw]))[1] for draw in (np.arange(4000) + 0.5) / 4000])
    first = drawn(np.array([0.3]))[0]
    left = weights * (np.diag(K) - K[:, first] ** 2 / K[first, first])
    np.testing.assert_allclose(np.bincount(second, minlength=60) / 4000, left / left.sum(), atol=1 / 4000)
