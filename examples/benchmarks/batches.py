"""PCA of rows that come in batches: bigpca.from_batches against fit of the same rows in memory, scikit-learn's
IncrementalPCA, and TorchDR's ExactIncrementalPCA, where it is installed.

usage: python examples/benchmarks/batches.py [--rows 262144] [--columns 2048] [--batch 256] [-k 64] [--rounds 3]

Rows have the covariance eigenvalues i^-1 in the limit. Rounds take turns; medians of wall and CPU seconds, the ratio to
the fit in memory of the same round, and the largest relative error of the k eigenvalues against that fit. "peak" is the
memory over idle of from_batches alone, in a process of its own whose batches are made one by one. Ends with one JSON
line.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import bigpca as bp

BLOCK = 4096  # rows that are drawn; the others repeat them with other signs


def made(rows: int, columns: int, batch: int) -> Iterator[Any]:
    """Yield batches whose rows differ, without holding all of them."""
    block = np.random.default_rng(0).standard_normal((BLOCK, columns), np.float32)
    block *= np.arange(1, columns + 1, dtype=np.float32) ** -0.5
    for start in range(0, rows, batch):
        numbers = np.arange(start, min(start + batch, rows))
        signs = np.where(np.random.default_rng(start).random(len(numbers)) < 0.5, -1, 1).astype(np.float32)
        yield block[numbers % BLOCK] * signs[:, None]


def contenders(X: Any, batch: int, k: int) -> dict[str, Callable[[], Any]]:
    """Return functions that fit X (n, d) and return the k leading eigenvalues."""
    cut = [X[i : i + batch] for i in range(0, len(X), batch)]

    def ours(rows: Any) -> Any:
        return bp.PCA(k, solver="covariance").fit(rows).explained_variance_

    def incremental() -> Any:
        from sklearn.decomposition import IncrementalPCA

        model = IncrementalPCA(k)
        wide = max(k, batch)  # it takes no fewer rows than components
        for i in range(0, len(X), wide):
            if len(X) - i >= k:
                model.partial_fit(X[i : i + wide])
        return model.explained_variance_

    def exact() -> Any:
        import torch
        from torchdr import ExactIncrementalPCA

        model = ExactIncrementalPCA(n_components=k, device="cpu")
        tensors = [torch.from_numpy(rows) for rows in cut]
        model.compute_mean(tensors)
        model.fit(tensors)
        return np.asarray(model.explained_variance_)

    found = {
        "memory": lambda: ours(X), "from_batches": lambda: ours(bp.from_batches(iter(cut), X.shape)),
        "from_batches, n unknown": lambda: ours(bp.from_batches(iter(cut))), "IncrementalPCA": incremental,
    }  # fmt: skip
    return found | ({"ExactIncrementalPCA": exact} if find_spec("torchdr") and find_spec("torch") else {})


def resident(name: str) -> int:
    """Return VmRSS or VmHWM of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def peak(rows: int, columns: int, batch: int) -> int:
    """Fit batches that are made one by one; return the peak over idle in bytes."""
    bp.PCA(2, solver="covariance").fit(next(made(64, columns, 64)))
    idle = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    bp.PCA(2, solver="covariance").fit(bp.from_batches(made(rows, columns, batch), (rows, columns)))
    return resident("VmHWM") - idle


def main() -> None:
    """Fit by every contender in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--rows", 262_144), ("--columns", 2048), ("--batch", 256), ("-k", 64), ("--rounds", 3)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--without", nargs="*", default=[], help="contenders to leave out")
    parser.add_argument("--peak", action="store_true", help="print the peak over idle in bytes, and nothing else")
    given = parser.parse_args()
    size = (given.rows, given.columns, given.batch)
    if given.peak:
        print(peak(*size))
        return
    named = [f"--{name}={value}" for name, value in zip(("rows", "columns", "batch"), size, strict=True)]
    alone = subprocess.run([sys.executable, __file__, "--peak", *named], capture_output=True, text=True, check=True)
    X = np.empty((given.rows, given.columns), np.float32)
    for start, rows in zip(range(0, given.rows, given.batch), made(*size), strict=True):
        X[start : start + len(rows)] = rows
    fits = {name: fit for name, fit in contenders(X, given.batch, given.k).items() if name not in given.without}
    wall: dict[str, list[float]] = {name: [] for name in fits}
    cpu: dict[str, list[float]] = {name: [] for name in fits}
    values = {}
    bp.PCA(2, solver="covariance").fit(X[: given.batch])  # imports
    for _ in range(given.rounds):
        for name, fit in fits.items():
            began, used = time.perf_counter(), time.process_time()
            values[name] = fit()
            wall[name].append(time.perf_counter() - began)
            cpu[name].append(time.process_time() - used)
    table = {}
    for name in fits:
        error = float(np.abs(values[name] / values["memory"] - 1).max())
        ratio = statistics.median(a / b for a, b in zip(wall[name], wall["memory"], strict=True))
        table[name] = {
            "seconds": statistics.median(wall[name]), "cpu": statistics.median(cpu[name]), "ratio": ratio,
            "error": error,
        }  # fmt: skip
        print(f"{name:<24}" + "".join(f"  {key} {value:<10.4g}" for key, value in table[name].items()))
    print(f"from_batches: {int(alone.stdout) / 2**20:.0f} MiB over idle")
    print(json.dumps({**table, "peak": int(alone.stdout)}))


if __name__ == "__main__":
    main()
