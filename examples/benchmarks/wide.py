"""Wide data, n < d: 2,000 x 100,352 by the dot matrix within 1 GiB, against NumPy's SVD of the whole matrix.

usage: python examples/benchmarks/wide.py [--directory DIR] [--rows 2000] [--columns 100352] [--limit MiB]
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import zarr
from contenders import MIB, PeakMemory
from dump import write_dump

import bigpca as bp


def main() -> None:
    """Fit within the limit (a total for the process), then compare with the exact answer; print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=str(Path(tempfile.gettempdir()) / "bigpca-benchmarks"))
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--columns", type=int, default=100_352)
    parser.add_argument("--limit", type=int, default=1_024)
    parser.add_argument("-k", type=int, default=20)
    given = parser.parse_args()
    Path(given.directory).mkdir(parents=True, exist_ok=True)
    name = f"wide-{given.rows}x{given.columns}.zarr"
    store = write_dump(Path(given.directory, name), given.rows, given.columns, chunk_rows=50)
    bp.PCA(2, solver="dot").fit(np.random.default_rng(0).normal(size=(10, 20)))  # imports
    pca = bp.PCA(given.k, solver="dot", memory_limit=given.limit * MIB)
    X = bp.open(store)
    print(pca.plan(X))
    with PeakMemory() as memory:
        began = time.perf_counter()
        pca.fit(X)
        seconds = time.perf_counter() - began
    row = {
        "seconds": seconds,
        "peak_over_idle_mib": (memory.peak - memory.baseline) / MIB,
        "peak_mib": memory.peak / MIB,
    }
    Y = zarr.open_array(store, mode="r")[:].astype("f8")
    Y -= Y.mean(axis=0)
    began = time.perf_counter()
    _, s, Vt = np.linalg.svd(Y, full_matrices=False)
    row["svd_seconds"] = time.perf_counter() - began
    exact = s[: given.k] ** 2 / (given.rows - 1)
    row["eigenvalue_error"] = float(np.abs(pca.explained_variance_ - exact).max() / exact[0])
    row["relative_eigenvalue_error"] = float(np.abs(pca.explained_variance_ / exact - 1).max())
    cosines = np.linalg.svd(pca.components_ @ Vt[: given.k].T, compute_uv=False)
    row["largest_angle"] = float(np.sqrt(max(0.0, 1 - cosines.min() ** 2)))
    print(json.dumps({key: float(f"{value:.4g}") for key, value in row.items()}))


if __name__ == "__main__":
    main()
