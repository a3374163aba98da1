"""One read of rows whose eigenvalues and axes are known exactly: the cores of
ApproximatePCA, and what their bounds say.

usage: python examples/benchmarks/one_pass.py [--directory DIR] [--rows 4000] [-q 500] [-k 20] [--rounds 3]

Eigenvalues i^-1 and i^-0.5 at d = 2,000, and i^-2 at d = 25,088 (its first rows - 1). Medians over the rounds, each
with a Gaussian sketch of another seed, of: the mean similarity of the k leading axes, the mean and the largest relative
error of their eigenvalues, the width of the bounds over the eigenvalue (of the first, and the median of k), reads per
chunk. Shows the warning, where a core gives one. Ends with one JSON line.
"""

import argparse
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from dump import known_axes, write_known
from reading import open_counted

import bigpca as bp
from bigpca.quality import similarity

CASES = ((1.0, 2_000), (2.0, 25_088), (0.5, 2_000))  # powers and columns
CORES = ("nystrom", "tutorial", "ritz")
COLUMNS = {
    "similarity": "similarity", "error": "mean_error", "largest": "max_error", "width 1": "first_width",
    "width k": "median_width", "most reads": "most_reads", "seconds": "seconds",
}  # fmt: skip


def fit(store: Path, power: float, k: int, q: int, core: str, seed: int) -> tuple[dict[str, float], str]:
    """Fit once; the row of the table, and the text of the warning, if there was one."""
    X, reads = open_counted(store)
    model = bp.ApproximatePCA(k, bp.sketches.Gaussian(q, random_state=seed), approximation=core)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", bp.errors.ApproximationWarning)
        began = time.perf_counter()
        model.fit(X)
        seconds = time.perf_counter() - began
    exact = np.arange(1.0, k + 1) ** -power
    error = abs(model.explained_variance_ / exact - 1)
    width = (model.eigenvalue_bounds_[:, 1] - model.eigenvalue_bounds_[:, 0]) / exact
    row = {
        "similarity": similarity(known_axes(X.shape[1], k), model.components_).mean(),
        "mean_error": error.mean(), "max_error": error.max(), "first_width": width[0], "median_width": np.median(width),
        **reads.summary(), "seconds": seconds,
    }  # fmt: skip
    said = [str(one.message) for one in caught if issubclass(one.category, bp.errors.ApproximationWarning)]
    return {name: float(value) for name, value in row.items()}, said[0] if said else ""


def main() -> None:
    """Fit every core to every spectrum, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=str(Path(tempfile.gettempdir()) / "bigpca-benchmarks"))
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--columns", type=int, help="instead of 2,000 and 25,088")
    parser.add_argument("-q", type=int, default=500)
    parser.add_argument("-k", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    Path(given.directory).mkdir(parents=True, exist_ok=True)
    bp.ApproximatePCA(2).fit(np.random.default_rng(0).normal(size=(50, 20)))  # imports
    result: dict[str, dict[str, float]] = {}
    print(f"{given.rows:,} rows, q = {given.q}, top {given.k}\n{'':28}" + "".join(f"{head:>12}" for head in COLUMNS))
    for power, d in ((power, given.columns or d) for power, d in CASES):
        store = write_known(Path(given.directory, f"known-{power}-{given.rows}x{d}.zarr"), given.rows, d, power)
        said: dict[str, str] = {}
        for core in CORES:
            fits = [fit(store, power, given.k, given.q, core, seed) for seed in range(given.rounds)]
            row = {name: statistics.median(one[name] for one, _ in fits) for name in fits[0][0]}
            said[core] = next((text for _, text in fits if text), "")
            result[f"i^-{power:g} {core}"] = row | {"warned": sum(bool(text) for _, text in fits)}
            numbers = "".join(f"{row[name]:12.4g}" for name in COLUMNS.values())
            print(f"{f'i^-{power:g}, d = {d:,}, {core}':28}{numbers}{'  warns' if said[core] else ''}", flush=True)
        if said["nystrom"]:
            print(f"  nystrom warns: {said['nystrom']}")
    print(json.dumps({name: {key: float(f"{x:.4g}") for key, x in row.items()} for name, row in result.items()}))


if __name__ == "__main__":
    main()
