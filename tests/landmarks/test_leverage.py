"""Estimated leverage scores are near those of the matrix, and follow the share of the rows that was in memory."""

from __future__ import annotations

import numpy as np
import pytest

from bigpca.kernels import RBF, Kernel, Polynomial
from bigpca.landmarks.samplings import Sample, Scorer, score_by_halves
from tests.landmarks.cases import digits, matrix

N, M = 800, 100
KERNELS = [RBF(gamma=0.002), Polynomial(degree=3, gamma=1.0, coef0=0.0)]


def scorer_of(kernel: Kernel, n: int, seed: int = 0) -> Scorer:
    return score_by_halves(Sample(digits(N), np.arange(N), kernel, None, 1), M, n, seed)[0]


def scores(K: np.ndarray, scorer: Scorer) -> np.ndarray:
    B = K[:, scorer.positions] @ scorer.T
    return np.minimum(1.0, (np.diag(K) - (B**2).sum(axis=1)) / scorer.ridge)


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_are_near_the_ridge_leverage_scores_of_the_matrix(kernel: Kernel) -> None:
    K = matrix(kernel, digits(N))
    rank = int(np.ceil(M / (4 * np.log(M))))
    tail = np.linalg.eigvalsh(K)[:-rank].sum() / rank
    for seed in range(3):
        scorer = scorer_of(kernel, N, seed)
        exact = np.diag(np.linalg.solve(K + scorer.ridge * np.eye(N), K))
        ratio = scores(K, scorer) / exact
        assert 2 / 3 < ratio.min() <= ratio.max() < 3 / 2  # Musco & Musco prove 1 to 3 with more rows kept
        assert 0.6 * tail < scorer.ridge < 1.4 * tail
        assert M / 2 < len(scorer.positions) < 3 * M / 2


def test_rows_that_stand_for_more_raise_the_ridge_and_lower_the_scores() -> None:
    for kernel in KERNELS:
        few, many = scorer_of(kernel, N), scorer_of(kernel, 10 * N)
        assert np.array_equal(few.positions, many.positions)
        assert many.ridge == pytest.approx(10 * few.ridge, rel=1e-9)
        np.testing.assert_allclose(
            many.T @ many.T.T, few.T @ few.T.T, rtol=0, atol=1e-9 * np.abs(few.T @ few.T.T).max()
        )
