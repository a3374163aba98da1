"""Fit one contender to one Zarr store and print one JSON line: seconds, peak memory, reads per chunk, eigenvalue error.

usage: python examples/benchmarks/contenders.py NAME STORE K [--cold] [--reference FILE.npy] [key=value ...]

Peak memory is sampled over the process and its children: in all, and over what they hold just before the fit. Reads are
counted in the process itself. The error is the largest of the K eigenvalues, relative, against those in the file.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import zarr
from reading import Reads, drop_from_cache, open_counted, read_once, zarr_counted

warnings.filterwarnings("ignore")
MIB = 1 << 20


class PeakMemory:
    """Samples the resident memory of this process and its children every 20 ms."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.baseline = self.peak = self.resident()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)

    def resident(self) -> int:
        total = 0
        for process in [self.process, *self.process.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
        return total

    def cpu_seconds(self) -> float:
        """CPU time of this process and its children: on a machine shared with others, steadier than the clock."""
        total = 0.0
        for process in [self.process, *self.process.children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system
        return total

    def sample(self) -> None:
        while not self.stopped.wait(0.02):
            self.peak = max(self.peak, self.resident())

    def __enter__(self) -> "PeakMemory":
        self.baseline = self.peak = self.resident()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()


def timed(fit: Callable[[], np.ndarray], reads: Reads | None = None) -> dict:
    """Run a fit; the eigenvalues in the row are for ``compared``."""
    with PeakMemory() as memory:
        began, cpu = time.perf_counter(), memory.cpu_seconds()
        eigenvalues = fit()
        seconds, cpu = time.perf_counter() - began, memory.cpu_seconds() - cpu
    return {
        "seconds": round(seconds, 3),
        "cpu_s": round(cpu, 2),
        "peak_mib": round((memory.peak - memory.baseline) / MIB),
        "whole_mib": round(memory.peak / MIB),
        **({} if reads is None else reads.summary()),
        "eigenvalues": np.asarray(eigenvalues, np.float64),
    }


def compared(row: dict, k: int, reference: Path | None) -> dict:
    """Put errors against the reference, or else the first and the last, in the place of the eigenvalues."""
    found = row.pop("eigenvalues", None)
    if found is None:
        return row
    row |= {"first": float(found[0]), "last": float(found[-1])}
    if reference is not None:
        error = np.abs(found[:k] / np.load(reference)[:k] - 1)
        row |= {"max_error": float(f"{error.max():.3g}"), "mean_error": float(f"{error.mean():.3g}")}
    return row


def run_apart(contender: str, store: Path, k: int, *options: str, script: str = __file__) -> dict:
    """Run one contender, ``NAME key=value ...``, of a script in a process of its own."""
    name, *settings = contender.split()
    command = [sys.executable, script, name, str(store), str(k), *settings, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return {"contender": contender, "failed": said[-1] if said else f"exit status {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def roofline(store: str, k: int, **_: str) -> dict:
    """What disk and BLAS allow here and now: one read on two threads, one symmetric product on all, one solve."""
    import scipy.linalg as sl
    import scipy.linalg.blas as blas

    array = zarr.open_array(store, mode="r")
    n, d = array.shape
    read = read_once(store)
    block = array[: min(n, max(array.chunks[0], 4096))]
    began = time.perf_counter()
    product = blas.ssyrk(1.0, block.T)
    syrk = (time.perf_counter() - began) * n / len(block)
    S = product.astype("f8")
    began = time.perf_counter()
    sl.eigh(S, subset_by_index=[d - k, d - 1], overwrite_a=True, check_finite=False, lower=False)
    eigh = time.perf_counter() - began
    bound = syrk + read / os.cpu_count()
    return {"seconds": round(bound + eigh, 3), "read_s": read, "syrk_s": syrk, "eigh_s": eigh, "bound_s": bound}


def roofline_multiply(store: str, k: int, **_: str) -> dict:
    """What disk and BLAS allow an iteration: one read on two threads, one product ``X'(X
    W)`` with 2k columns on all.
    """
    array = zarr.open_array(store, mode="r")
    n, d = array.shape
    read = read_once(store)
    block = array[: min(n, max(array.chunks[0], (128 << 20) // d))].astype("f4")
    W = np.random.default_rng(0).standard_normal((d, 2 * k), dtype="f4")
    began = time.perf_counter()
    block.T @ (block @ W)
    multiply = (time.perf_counter() - began) * n / len(block)
    return {"seconds": round(max(read, multiply), 3), "read_s": read, "multiply_s": multiply}


def bigpca_fit(store: str, k: int, solver: str = "auto", memory_limit: str = "", tol: str = "", **_: str) -> dict:
    import bigpca as bp

    options = {"memory_limit": memory_limit or None, **({"tol": float(tol)} if tol else {})}
    X, reads = open_counted(store)
    return planned(bp.PCA(k, solver=solver, **options), X, reads)


def bigpca_one_pass(store: str, k: int, q: str = "", core: str = "nystrom", memory_limit: str = "", **_: str) -> dict:
    import bigpca as bp

    sketch = bp.sketches.Gaussian(int(q)) if q else None
    X, reads = open_counted(store)
    return planned(bp.ApproximatePCA(k, sketch, approximation=core, memory_limit=memory_limit or None), X, reads)


def planned(model: object, X: object, reads: Reads | None = None) -> dict:
    """Time a fit of bigpca, and say what its plan promised."""
    plan = model.plan(X)
    row = timed(lambda: model.fit(X).explained_variance_, reads)
    return row | {"passes": plan.passes, "tasks": plan.tasks, "planned_mib": round(plan.process_bytes / MIB)}


def bigpca_cluster(store: str, k: int, workers: str = "2", threads: str = "1", solver: str = "auto", **_: str) -> dict:
    from distributed import Client, LocalCluster

    import bigpca as bp

    count, per_worker = int(workers), int(threads)
    options = {"processes": True, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    with LocalCluster(n_workers=count, threads_per_worker=per_worker, **options) as cluster, Client(cluster) as client:
        client.run(lambda: __import__("bigpca.estimators.linear.pca") and None)  # a warm, idle worker
        return planned(bp.PCA(k, solver=solver), bp.open(store))


def dask_gram(store: str, k: int, **_: str) -> dict:
    import dask
    import dask.array as da
    import scipy.linalg as sl

    array, reads = zarr_counted(store)

    def fit() -> np.ndarray:
        X = da.from_zarr(array)
        (n, d), (S, m) = X.shape, dask.compute(X.T @ X, X.mean(0))
        C = S.astype("f8") / n - np.outer(m, m)
        return sl.eigh(C, eigvals_only=True, subset_by_index=[d - k, d - 1])[::-1] * n / (n - 1)

    return timed(fit, reads)


def dask_compressed(store: str, k: int, iterations: str = "2", **_: str) -> dict:
    """The QR iterator of Dask's randomized SVD, on centred data."""
    import dask
    import dask.array as da

    array, reads = zarr_counted(store)

    def fit() -> np.ndarray:
        X = da.from_zarr(array).astype("f4")
        X = X - X.mean(0)
        options = {"iterator": "QR", "n_power_iter": int(iterations), "compute": True, "seed": 0}
        _, s, v = da.linalg.svd_compressed(X, k, **options)
        return dask.compute(s, v)[0] ** 2 / (X.shape[0] - 1)

    return timed(fit, reads)


def sklearn_covariance(store: str, k: int, **_: str) -> dict:
    from sklearn.decomposition import PCA

    array, reads = zarr_counted(store)
    return timed(lambda: PCA(k, svd_solver="covariance_eigh").fit(array[:]).explained_variance_, reads)


def sklearn_randomized(store: str, k: int, iterations: str = "4", **_: str) -> dict:
    """In memory, loading included."""
    from sklearn.decomposition import PCA

    array, reads = zarr_counted(store)
    model = PCA(k, svd_solver="randomized", iterated_power=int(iterations), random_state=0)
    return timed(lambda: model.fit(array[:].astype("f4", copy=False)).explained_variance_, reads)


def sklearn_incremental(store: str, k: int, **_: str) -> dict:
    from sklearn.decomposition import IncrementalPCA

    array, reads = zarr_counted(store)

    def fit() -> np.ndarray:
        model = IncrementalPCA(k)
        for start in range(0, array.shape[0], array.chunks[0]):
            if len(block := array[start : start + array.chunks[0]]) >= k:
                model.partial_fit(block)
        return model.explained_variance_

    return timed(fit, reads)


def dask_ml(solver: str, store: str, k: int, iterations: str = "2", **_: str) -> dict:
    import dask.array as da
    from dask_ml.decomposition import PCA

    array, reads = zarr_counted(store)
    model = PCA(k, svd_solver=solver, iterated_power=int(iterations), random_state=0)
    return timed(lambda: model.fit(da.from_zarr(array)).explained_variance_, reads)


CONTENDERS = {
    "roofline": roofline,
    "roofline-multiply": roofline_multiply,
    "bigpca": bigpca_fit,
    "bigpca-one-pass": bigpca_one_pass,
    "bigpca-cluster": bigpca_cluster,
    "dask-gram": dask_gram,
    "dask-compressed": dask_compressed,
    "sklearn-covariance": sklearn_covariance,
    "sklearn-randomized": sklearn_randomized,
    "sklearn-incremental": sklearn_incremental,
    "dask-ml-full": partial(dask_ml, "full"),
    "dask-ml-randomized": partial(dask_ml, "randomized"),
}


def main(contenders: dict[str, Callable[..., dict]] = CONTENDERS, description: str | None = __doc__) -> None:
    """Run the contender that the command line names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=contenders)
    parser.add_argument("store")
    parser.add_argument("k", type=int)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="such as solver=dot, workers=2, threads=1")
    parser.add_argument("--cold", action="store_true", help="drop the store's files from the page cache first")
    parser.add_argument("--reference", type=Path, help="eigenvalues, largest first")
    given = parser.parse_intermixed_args()
    settings = dict(pair.split("=", 1) for pair in given.settings)
    if given.cold:
        drop_from_cache(given.store)
    row = compared(contenders[given.name](given.store, given.k, **settings), given.k, given.reference)
    print(json.dumps({"contender": " ".join([given.name, *given.settings]), **row}))


if __name__ == "__main__":
    main()
