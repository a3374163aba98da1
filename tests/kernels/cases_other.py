"""Rows of the shared suite: histogram, string, Fisher and precomputed kernels, with formulas that share no code with
them.
"""

from collections import Counter
from functools import cache
from itertools import combinations

import numpy as np

from bigpca.arrays import Vector
from bigpca.kernels.custom import Fisher, GaussianMixtureScore, Precomputed
from bigpca.kernels.histogram import (
    ChiSquare,
    GeneralizedHistogramIntersection,
    Hellinger,
    HistogramIntersection,
    JensenShannon,
)
from bigpca.kernels.string import Spectrum, Subsequence
from tests.kernels.cases import T32, T64, Case, Rows

D = 37  # not a multiple of the compiled sums' run
SCORE = GaussianMixtureScore([0.3, 0.7], [[0.0, 1.0, -1.0], [1.0, 0.0, 2.0]], [[1.0, 2.0, 0.5], [0.3, 1.0, 1.5]])


def histograms(seed: int, n: int) -> Rows:
    """Over many orders of magnitude, a third of the bins empty, two rows empty, two rows equal."""
    rng = np.random.default_rng(seed)
    rows = np.exp(3 * rng.standard_normal((n, D))) * (rng.random((n, D)) < 0.67)
    rows[3:5] = 0
    rows[6:7] = rows[5:6]
    return rows


def wide_histograms(seed: int, n: int) -> Rows:
    """With more columns than one tile has."""
    return np.random.default_rng(seed).random((n, 1100))


def signed(seed: int, n: int) -> Rows:
    return np.random.default_rng(seed).standard_normal((n, D))


def words(seed: int, n: int) -> Rows:
    """Codes of words of 0 to 9 letters of "abc"."""
    rng = np.random.default_rng(seed)
    return rng.integers(97, 100, (n, 9)) * (np.arange(9) < rng.integers(0, 10, (n, 1))).astype(float)


def normal(seed: int, n: int) -> Rows:
    return np.random.default_rng(seed).standard_normal((n, 3))


def matrix(seed: int, n: int) -> Rows:
    """A kernel matrix whose rows are known by their largest entry, which lies on the diagonal."""
    X = np.random.default_rng(seed).standard_normal((n, 4))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X @ X.T + 3 * np.eye(n)


def indefinite_matrix(seed: int, n: int) -> Rows:
    return 3 * np.eye(n) - 0.5


def chi_square(x: Vector, y: Vector) -> float:
    both = (x > 0) & (y > 0)
    return float((x[both] * y[both] / (x + y)[both]).sum())


def jensen_shannon(x: Vector, y: Vector) -> float:
    in_x, in_y = x > 0, y > 0
    of_x = x[in_x] * np.log2((x + y)[in_x] / x[in_x])
    of_y = y[in_y] * np.log2((x + y)[in_y] / y[in_y])
    return float(of_x.sum() + of_y.sum())


def text(codes: Vector) -> str:
    return "".join(chr(int(code)) for code in codes if code)


@cache
def substrings(word: str, length: int) -> Counter[str]:
    return Counter(word[i : i + length] for i in range(len(word) - length + 1))


@cache
def subsequences(word: str, length: int, decay: float) -> dict[str, float]:
    weights: dict[str, float] = {}
    for places in combinations(range(len(word)), length):
        u = "".join(word[i] for i in places)
        weights[u] = weights.get(u, 0.0) + decay ** (places[-1] - places[0] + 1)
    return weights


def spectrum(length: int):
    def oracle(x: Vector, y: Vector) -> float:
        left, right = substrings(text(x), length), substrings(text(y), length)
        return float(sum(count * right[u] for u, count in left.items()))

    return oracle


def subsequence(length: int, decay: float):
    def oracle(x: Vector, y: Vector) -> float:
        left, right = subsequences(text(x), length, decay), subsequences(text(y), length, decay)
        return float(sum(weight * right.get(u, 0.0) for u, weight in left.items()))

    return oracle


def fisher_vector(x: Vector) -> Vector:
    """Sanchez et al. 2013, eqs. 16-18, component by component."""
    w, m, v = np.array(SCORE.weights), np.array(SCORE.means), np.array(SCORE.covariances)
    densities = np.array([w[c] * np.prod(np.exp(-((x - m[c]) ** 2) / v[c] / 2) / np.sqrt(v[c])) for c in range(len(w))])
    g = densities / densities.sum()
    parts = [(g - w) / np.sqrt(w)]
    parts += [g[c] / np.sqrt(w[c]) * (x - m[c]) / np.sqrt(v[c]) for c in range(len(w))]
    parts += [g[c] / np.sqrt(2 * w[c]) * ((x - m[c]) ** 2 / v[c] - 1) for c in range(len(w))]
    return np.concatenate(parts)


def minimum(x: Vector, y: Vector) -> float:
    return float(np.minimum(x, y).sum())


def hellinger(x: Vector, y: Vector) -> float:
    return float(np.sqrt(x * y).sum())


def fisher(x: Vector, y: Vector) -> float:
    return float(fisher_vector(x) @ fisher_vector(y))


def power_minimum(x: Vector, y: Vector) -> float:
    return float(np.minimum(np.abs(x) ** 1.5, np.abs(y) ** 1.5).sum())


def entry(x: Vector, y: Vector) -> float:
    return float(x[np.argmax(y)])


# Strings: integers below 2^24, or sums of few powers of 1/2, in any precision.
OTHER_CASES: list[Case] = [
    Case("histogram intersection", HistogramIntersection(), histograms, minimum, True, T64, T32),
    Case("histogram intersection, wide", HistogramIntersection(), wide_histograms, minimum, True, T64, T32),
    Case("generalized", GeneralizedHistogramIntersection(1.5), signed, power_minimum, True, T64, T32),
    Case("chi square", ChiSquare(), histograms, chi_square, True, T64, T32),
    Case("chi square, wide", ChiSquare(), wide_histograms, chi_square, True, T64, T32),
    Case("hellinger", Hellinger(), histograms, hellinger, True, T64, T32),
    Case("jensen shannon", JensenShannon(), histograms, jensen_shannon, True, T64, T32),
    Case("jensen shannon, wide", JensenShannon(), wide_histograms, jensen_shannon, True, T64, T32),
    Case("spectrum", Spectrum(3), words, spectrum(3), True, T64, T64),
    Case("subsequence", Subsequence(3, decay=0.7), words, subsequence(3, 0.7), True, T64, T64),
    Case("subsequence of single letters", Subsequence(1, decay=1.0), words, subsequence(1, 1.0), True, T64, T64),
    Case("fisher", Fisher(SCORE), normal, fisher, True, T64, T32),
    Case("fisher of a function", Fisher(SCORE.scores, 14), normal, fisher, True, T64, T32),
    Case("precomputed", Precomputed(), matrix, entry, True, T64, T32),
    Case("precomputed, indefinite", Precomputed(indefinite=True), indefinite_matrix, entry, False, T64, T32),
]
