"""Genotypes with Patterson's scale beside scikit-allel, from the same int8 calls, complete and with missing ones.

usage: python examples/benchmarks/genotypes.py [--samples 1000] [--variants 20000] [--missing 0.02] [-k 10] [--rounds 2]

Simulates three populations (Balding & Nichols 1995, F_ST 0.05) in a Zarr array of samples x variants, without variants
that do not vary, by whose scale of 0 scikit-allel divides. Contenders run in turn: bigpca from the Zarr array,
scikit-allel from the array in memory, as int8 (which it computes in float16) and as float64. Prints every run, then one
JSON line of medians: seconds, CPU seconds, peak memory above idle in MiB, and the largest relative error of the
eigenvalues, against those of float64; for missing calls, against NumPy's of the filled matrix. Time under other load
means little: compare contenders of one run.
"""

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import allel
import numpy as np
import zarr
from contenders import MIB, PeakMemory

import bigpca as bp

F_ST = 0.05


def simulate(samples: int, variants: int, missing: float) -> tuple[np.ndarray, np.ndarray]:
    """Complete calls (n, d) of 0, 1 and 2, and the same with -1 where a call is missing."""
    rng = np.random.default_rng(0)
    ancestral = rng.uniform(0.1, 0.9, variants)
    spread = (1 - F_ST) / F_ST
    frequencies = rng.beta(ancestral * spread, (1 - ancestral) * spread, (3, variants))
    calls = rng.binomial(2, np.clip(frequencies, 0.01, 0.99)[np.arange(samples) % 3]).astype("i1")
    calls = np.ascontiguousarray(calls[:, calls.min(axis=0) < calls.max(axis=0)])
    return calls, np.where(rng.random(calls.shape) < missing, -1, calls).astype("i1")


def exact(calls: np.ndarray, k: int) -> np.ndarray:
    """Eigenvalues by NumPy in float64, divided by n - 1; missing calls are 0 after centring."""
    held = np.where(calls < 0, np.nan, calls)
    p = np.nanmean(held, axis=0) / 2
    z = np.nan_to_num((held - 2 * p) / np.sqrt(p * (1 - p)))
    return np.linalg.eigvalsh(z @ z.T)[::-1][:k] / (len(z) - 1)


def bigpca_of(path: Path, k: int, code: int | None) -> np.ndarray:
    """Eigenvalues of calls in a Zarr array."""
    policy = "raise" if code is None else "mean"
    return (
        bp.PCA(k, scale=bp.scales.Patterson(), nan_policy=policy)
        .fit(bp.open(path, missing_value=code))
        .explained_variance_
    )


def allel_of(calls: np.ndarray, k: int, dtype: str) -> np.ndarray:
    """Eigenvalues of calls in memory, which scikit-allel divides by n."""
    _, model = allel.pca(calls.T.astype(dtype), n_components=k, scaler="patterson")
    return model.explained_variance_ * len(calls) / (len(calls) - 1)


def measured(run: Callable[[], np.ndarray], truth: np.ndarray) -> dict[str, float]:
    """Seconds, CPU seconds, peak memory and error of one run."""
    with PeakMemory() as memory:
        wall, cpu = time.perf_counter(), time.process_time()
        found = run()
        row = {"seconds": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    peak = (memory.peak - memory.baseline) / MIB
    return row | {"peak_mib": peak, "error": float(np.abs(found / truth - 1).max())}


def main() -> None:
    """Run all contenders in turn, and print the medians."""
    parser = argparse.ArgumentParser(
        usage="python examples/benchmarks/genotypes.py [--samples N] [--variants D] [--missing SHARE] [-k K]",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--samples", type=int, default=1_000)
    parser.add_argument("--variants", type=int, default=20_000)
    parser.add_argument("--missing", type=float, default=0.02)
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    warnings.simplefilter("ignore", bp.errors.ApproximationWarning)
    complete, coded = simulate(given.samples, given.variants, given.missing)
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for name, calls in (("complete", complete), ("coded", coded)):
            paths[name] = Path(folder, f"{name}.zarr")
            chunks = (max(1, given.samples // 10), calls.shape[1])
            zarr.create_array(paths[name], shape=calls.shape, chunks=chunks, dtype="i1")[:] = calls
        truth, filled = exact(complete, given.k), exact(coded, given.k)
        contenders: dict[str, tuple[Callable[[], np.ndarray], np.ndarray]] = {
            "bigpca": (lambda: bigpca_of(paths["complete"], given.k, None), truth),
            "bigpca, missing calls": (lambda: bigpca_of(paths["coded"], given.k, -1), filled),
            "scikit-allel, int8": (lambda: allel_of(complete, given.k, "i1"), truth),
            "scikit-allel, float64": (lambda: allel_of(complete, given.k, "f8"), truth),
        }
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        for run, _ in contenders.values():  # imports
            run()
        for _ in range(given.rounds):
            for name, (run, answer) in contenders.items():
                rows[name].append(measured(run, answer))
                print(f"{name:24}", {key: float(f"{value:.3g}") for key, value in rows[name][-1].items()}, flush=True)
    medians = {
        name: {key: float(f"{statistics.median(one[key] for one in found):.3g}") for key in found[0]}
        for name, found in rows.items()
    }
    print(json.dumps(medians | {"shrunk": float(f"{filled[0] / truth[0]:.4g}")}))


if __name__ == "__main__":
    main()
