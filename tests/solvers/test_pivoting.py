"""Rejection among candidates: the law of pivots drawn one after the other, and no duplicates."""

from collections import Counter
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chi2

from bigpca.solvers.landmarks import Race, rejection_pivots, weighted_pivots

N, M = 5, 2
# Row 0 has two thirds of the trace, and row 1 is nearly its multiple: without repeats the law would be another.
G = np.array([[4.0, 0, 0], [1.2, 0.4, 0], [0, 1, 1], [0.5, 0.5, 1], [1, 0, 1]])
K = G @ G.T + np.diag([0.1, 0.1, 0.2, 0.4, 0.3])


@cache
def residuals(*chosen: int) -> np.ndarray:
    left = np.diag(K) - np.einsum(
        "ij,ji->i", K[:, list(chosen)], np.linalg.solve(K[np.ix_(chosen, chosen)], K[list(chosen)])
    )
    left[list(chosen)] = 0
    return left if chosen else np.diag(K).copy()


@cache
def features(*chosen: int) -> np.ndarray:
    return K[:, list(chosen)] @ np.linalg.inv(np.linalg.cholesky(K[np.ix_(chosen, chosen)])).T


def drawn_in_reads(rng: np.random.Generator, wanted: int, candidates: int, reads: int = 99) -> list[int]:
    """Draw pivots as the sampling of landmarks does: a race by residual in each read, completed by repeats."""
    chosen: list[int] = []
    for read in range(reads):
        weights, B = residuals(*chosen), features(*chosen)
        with np.errstate(divide="ignore"):
            race = np.argsort(rng.exponential(size=N) / weights)[: min(candidates, np.count_nonzero(weights > 1e-9))]
        unseen = 0.0 if len(race) < candidates else weights.sum() - weights[race].sum()
        found = rejection_pivots(
            Race(lambda a, b, p=race: K[np.ix_(p[a], p[b])], lambda i, j, p=race, B=B: B[p[i:j]], np.diag(K)[race],
                 weights[race], unseen),
            lambda start, stop: rng.random((stop - start, 2)), wanted - len(chosen), rounding=1e-9,
            fill=read == reads - 1 and reads < 99,
        )  # fmt: skip
        chosen += race[found].tolist()
        if len(chosen) == wanted or len(race) < candidates:
            return chosen
    return chosen


@pytest.mark.parametrize("candidates", [2, N])
def test_accepted_candidates_are_pivots_of_randomly_pivoted_cholesky(candidates: int) -> None:
    rng, draws = np.random.default_rng(0), 1500
    counts = Counter(tuple(drawn_in_reads(rng, M, candidates)) for _ in range(draws))
    statistic = 0.0
    for i, j in permutations(range(N), M):
        p = K[i, i] / np.trace(K) * residuals(i)[j] / residuals(i).sum()
        statistic += (counts[i, j] - draws * p) ** 2 / (draws * p)
    assert statistic < chi2.isf(1e-3, N * (N - 1) - 1)


def test_where_no_further_read_is_allowed_all_are_returned() -> None:
    for seed in range(20):
        found = drawn_in_reads(np.random.default_rng(seed), 4, 4, reads=1)
        assert len(set(found)) == 4


def test_duplicates_are_never_accepted() -> None:
    copies = np.repeat(np.arange(N), 8)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        order = rng.permutation(copies)
        race = Race(
            lambda a, b, p=order: K[np.ix_(p[a], p[b])], lambda i, j: np.zeros((j - i, 0)), np.diag(K)[order],
            np.diag(K)[order], 0.0,
        )  # fmt: skip
        found = rejection_pivots(race, lambda i, j, r=rng: r.random((j - i, 2)), 20, rounding=1e-9)
        assert sorted(order[found]) == list(range(N))


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
