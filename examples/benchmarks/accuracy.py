"""Eigenvalue errors of float32 data at mean/std of 0, 1, 10, 100 and 1e4, in the regime of float32 products.

usage: python examples/benchmarks/accuracy.py [--rows 200000] [--columns 1024]

Power-law spectrum with lambda_20 = 1.05e-3 lambda_1; the reference is NumPy in float64 on the same float32
values. Prints the largest error of the top 20 relative to lambda_1 and to each eigenvalue, for bigpca and
scikit-learn's covariance_eigh.
"""

import argparse
import json
import warnings

import numpy as np
import scipy.linalg as sl
from sklearn.decomposition import PCA as InMemoryPCA

import bigpca as bp

K = 20


def reference(X: np.ndarray) -> np.ndarray:
    """Top eigenvalues of the covariance, everything in float64."""
    mean = X.mean(axis=0, dtype="f8")
    S = np.zeros((X.shape[1], X.shape[1]))
    for start in range(0, len(X), 8192):
        block = X[start : start + 8192].astype("f8") - mean
        S += block.T @ block
    d = len(S)
    return sl.eigh(S, eigvals_only=True, subset_by_index=[d - K, d - 1])[::-1] / (len(X) - 1)


def main() -> None:
    """Fit at each offset and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=1_024)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    generator = np.random.default_rng(0)
    spectrum = np.arange(1, given.columns + 1) ** (np.log(1.05e-3) / np.log(K))
    axes = np.linalg.qr(generator.standard_normal((given.columns, given.columns)))[0]
    factor = (np.sqrt(spectrum)[:, None] * axes).astype("f4")
    centred = generator.standard_normal((given.rows, given.columns), dtype="f4") @ factor
    deviation = float(np.sqrt(spectrum.sum() / given.columns))
    for ratio in (0, 1, 10, 100, 1e4):
        X = centred + np.float32(ratio * deviation)
        exact = reference(X)
        row = {"mean_over_std": ratio, "lambda_20_over_lambda_1": exact[-1] / exact[0]}
        models = {
            "bigpca": bp.PCA(K, solver="covariance"),
            "sklearn_covariance_eigh": InMemoryPCA(K, svd_solver="covariance_eigh"),
        }
        for name, model in models.items():
            found = model.fit(X).explained_variance_
            row[f"{name}_to_lambda_1"] = np.abs(found - exact).max() / exact[0]
            row[f"{name}_relative"] = np.abs(found / exact - 1).max()
        print(json.dumps({key: float(f"{value:.3g}") for key, value in row.items()}), flush=True)


if __name__ == "__main__":
    main()
