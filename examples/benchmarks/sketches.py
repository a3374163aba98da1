"""Seconds per 1,000 rows of every sketch, against a dense product, and the error of its dot products.

usage: python examples/benchmarks/sketches.py [--rows 200] [--columns 100352] [-q 2000] [--rounds 5]

Rows are dense float32 maps of 7 x 7 cells per channel, non-negative as a network's features are; one BLAS thread. "W
kept" is the plain product with a Gaussian W in memory, the yardstick of the ratios: medians over the rounds, in turn.
"first" is the first call, which makes W. The error is that of dot products of pairs of rows relative to |x||y|, root
mean square. Ends with one JSON line.
"""

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from bigpca.blas import one_blas_thread
from bigpca.sketches import SRHT, Downsample, FeatureHash, Gaussian, Sketch, SparseSign

CELLS = 7


def feature_maps(rows: int, columns: int) -> np.ndarray:
    """Rectified rows (rows, columns): a level per channel and row, and noise per cell."""
    generator = np.random.default_rng(0)
    maps = generator.standard_normal((rows, columns // CELLS**2, CELLS**2), dtype="f4")
    maps += generator.standard_normal((rows, columns // CELLS**2, 1), dtype="f4")
    return np.maximum(maps, 0, out=maps).reshape(rows, columns)


def contenders(columns: int, q: int) -> dict[str, Sketch]:
    """Every sketch at this q; downsampling to one cell per channel, whatever q."""
    channels = columns // CELLS**2
    return {
        "Gaussian": Gaussian(q),
        "SparseSign, 8 entries": SparseSign(q, nnz=8),
        "FeatureHash": FeatureHash(q),
        "FeatureHash, 4 hashes": FeatureHash(q, n_hashes=4),
        "FeatureHash, unsigned": FeatureHash(q, signed=False),
        "SRHT": SRHT(q),
        "Downsample": Downsample((channels, CELLS, CELLS), (channels, 1, 1)),
    }


def kept_product(columns: int, q: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return the product with a Gaussian W (columns, q) that stays in memory."""
    W = np.empty((columns, q), np.float32)
    for start in range(0, columns, 4096):
        W[start : start + 4096] = Gaussian(q).matrix(columns, start, min(start + 4096, columns))
    return lambda rows: rows @ W


def dot_product_error(sketch: Sketch, X: np.ndarray) -> float:
    """Root mean square error of neighbouring rows' dot products over |x||y|."""
    Z, X = sketch.apply(X).astype("f8"), X.astype("f8")
    x, y = X[:-1], X[1:]
    unit = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    found = np.einsum("ij,ij->i", Z[:-1], Z[1:]) - np.einsum("ij,ij->i", x, y)
    return float(np.sqrt(np.mean((found / unit) ** 2)))


def main() -> None:
    """Time all in turn, round after round, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--columns", type=int, default=100_352, help=f"a multiple of {CELLS**2}")
    parser.add_argument("-q", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if given.columns % CELLS**2:
        parser.error(f"{given.columns} columns make no maps of {CELLS} x {CELLS} cells: give a multiple of {CELLS**2}.")
    X = feature_maps(given.rows, given.columns)
    sketches = contenders(given.columns, given.q)
    calls = {"Gaussian, W kept": kept_product(given.columns, given.q)}
    calls |= {name: sketch.apply for name, sketch in sketches.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with one_blas_thread():
        for _ in range(given.rounds + 1):
            for name, call in calls.items():
                began = time.perf_counter()
                call(X)
                seconds[name].append((time.perf_counter() - began) * 1000 / given.rows)
        errors = {name: dot_product_error(sketch, X) for name, sketch in sketches.items()}
    medians = {name: float(np.median(times[1:])) for name, times in seconds.items()}
    yardstick = medians["Gaussian, W kept"]
    print(f"{given.rows} rows x {given.columns} float32, q = {given.q}; seconds per 1,000 rows")
    print(f"{'sketch':24}{'first':>9}{'later':>9}{'times as fast':>15}{'error':>9}")
    for name, median in medians.items():
        accuracy = f"{errors[name]:9.4f}" if name in errors else ""
        print(f"{name:24}{seconds[name][0]:9.3f}{median:9.3f}{yardstick / median:15.1f}{accuracy}")
    result = {name: {"times_as_fast": round(yardstick / median, 3)} for name, median in medians.items()}
    for name, error in errors.items():
        result[name]["error"] = float(f"{error:.3g}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
