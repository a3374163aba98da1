"""Landmarks by randomly pivoted Cholesky: their law, their reads and what they lose, against the sequential algorithm.

usage: python examples/benchmarks/landmarks.py [--draws N] [--seeds S] [--rows N]

Law: landmarks of 6 rows, 3 of them, in so many draws with other seeds, against the exact probability of each of the 120
ordered choices; the chi-square statistic has 119 degrees of freedom. Then, for kernels with slow and fast spectra: the
median of the reads, and the geometric mean over seeds of the trace error divided by that of the sequential algorithm
(Chen, Epperly, Tropp & Webber 2025, a pivot at a time), with two standard errors. Prints a table, and one JSON line.
"""

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import permutations

import numpy as np
from scipy.stats import chi2
from sklearn.datasets import load_digits

import bigpca as bp
from bigpca.kernels import RBF, Kernel, Laplacian, Polynomial
from bigpca.landmarks import LandmarkRequest, select_landmarks
from bigpca.passes.rows import Rows


def chosen(X: np.ndarray, kernel: Kernel, m: int, seed: int) -> tuple[list[int], float]:
    """Return the landmarks' row numbers, and the reads."""
    request = LandmarkRequest(Rows.of(bp.open(X)), kernel.resolve(X.shape[1]), m, seed)
    found = select_landmarks("rpcholesky", request)
    return [int(i) for i in found.indices], request.run.reads


def sequential(K: np.ndarray, m: int, seed: int) -> list[int]:
    """Draw the landmarks one after the other from the whole matrix."""
    rng, residual, factor = np.random.default_rng(seed), np.diag(K).copy(), np.zeros((len(K), m))
    pivots = []
    for i in range(m):
        j = int(rng.choice(len(K), p=residual / residual.sum()))
        column = K[:, j] - factor[:, :i] @ factor[j, :i]
        factor[:, i] = column / np.sqrt(column[j])
        pivots.append(j)
        residual = np.maximum(residual - factor[:, i] ** 2, 0)
        residual[pivots] = 0
    return pivots


def residuals(K: np.ndarray, pivots: list[int]) -> np.ndarray:
    """Return the diagonal of ``K - K_S K_SS^-1 K_S'``."""
    if not pivots:
        return np.diag(K).copy()
    left = np.diag(K) - np.einsum("ij,ji->i", K[:, pivots], np.linalg.solve(K[np.ix_(pivots, pivots)], K[pivots]))
    left[pivots] = 0
    return np.maximum(left, 0)


def trace_error(K: np.ndarray, pivots: list[int]) -> float:
    """Return ``trace(K - B B') / trace(K)``."""
    return float(residuals(K, pivots).sum() / np.trace(K))


def law(draws: int) -> dict[str, float]:
    """Compare the choices of 3 of 6 rows with the law."""
    X = np.array([[4.0, 0, 0], [1.2, 0.4, 0], [0, 1, 1], [0.5, 0.5, 1], [1, 0, 1], [3.8, 0.3, 0.1]])
    kernel = Polynomial(degree=2, gamma=0.3, coef0=1.0)
    K = np.asarray(kernel(X), np.float64)
    counts = Counter(tuple(chosen(X, kernel, 3, seed)[0]) for seed in range(draws))
    statistic = 0.0
    for choice in permutations(range(len(X)), 3):
        p, before = 1.0, list[int]()
        for j in choice:
            left = residuals(K, before)
            p *= left[j] / left.sum()
            before.append(j)
        statistic += (counts[choice] - draws * p) ** 2 / (draws * p)
    return {"chi_square": statistic, "degrees": 119, "p": float(chi2.sf(statistic, 119))}


def data_sets(n: int) -> Iterator[tuple[str, np.ndarray, Kernel, int]]:
    """Yield ten kernels on rows, with the number of landmarks."""
    rng = np.random.default_rng(0)
    digits, normal = load_digits().data[:n] / 16, rng.standard_normal((n, 20))
    angle = rng.uniform(0, 2 * np.pi, n)
    ring = np.column_stack([np.cos(angle), np.sin(angle)]) + 0.01 * rng.standard_normal((n, 2))
    outliers = 0.5 * rng.standard_normal((n, 20))
    outliers[:50] *= 100
    yield "digits, RBF, narrow", digits, RBF(gamma=0.5), 100
    yield "digits, RBF, wide", digits, RBF(gamma=0.02), 100
    yield "digits, polynomial", digits, Polynomial(degree=3, gamma=0.1, coef0=1.0), 60
    yield "digits, Laplacian", digits, Laplacian(gamma=0.05), 100
    yield "20 columns, RBF", normal, RBF(gamma=0.02), 100
    yield "5 columns, RBF", normal[:, :5].copy(), RBF(gamma=0.1), 100
    yield "2 columns, RBF", normal[:, :2].copy(), RBF(gamma=0.1), 30
    yield "1 column, RBF", normal[:, :1].copy(), RBF(gamma=2.0), 25
    yield "ring, RBF", ring, RBF(gamma=5.0), 40
    yield "outliers, RBF", outliers, RBF(gamma=0.05), 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1797)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = law(options.draws)
    print(f"law: chi-square {found['chi_square']:.0f} of {found['degrees']} degrees, p = {found['p']:.2f}", flush=True)
    print(f"{'':24}   m  reads  trace error    ratio")
    sets = []
    for name, X, kernel, m in data_sets(options.rows):
        K = np.asarray(kernel.resolve(X.shape[1])(X), np.float64)
        ours, reads, plain = [], [], []
        for seed in range(options.seeds):
            pivots, read = chosen(X, kernel, m, seed)
            ours.append(np.log(trace_error(K, pivots)))
            reads.append(read)
            plain.append(np.log(trace_error(K, sequential(K, m, seed))))
        ratio = float(np.exp(np.mean(ours) - np.mean(plain)))
        error = 2 * float(np.sqrt((np.var(ours) + np.var(plain)) / options.seeds))
        one = {"name": name, "m": m, "reads": float(np.median(reads)), "trace_error": float(np.exp(np.mean(plain)))}
        sets.append(one | {"ratio": ratio, "two_errors": error})
        print(f"{name:24} {m:3} {one['reads']:6.1f} {one['trace_error']:12.2e} {ratio:8.3f} +- {error:.3f}", flush=True)
    print(json.dumps({"law": found, "sets": sets}))


if __name__ == "__main__":
    main()
