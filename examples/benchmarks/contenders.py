"""Fit one contender to one Zarr store and print one JSON line: seconds, and peak memory over the idle process(es).

usage: python examples/benchmarks/contenders.py NAME STORE K [key=value ...]

Peak memory is sampled over the process and its children, and the idle baseline is what they hold just before the fit.
"""

import argparse
import json
import os
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import zarr

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


def timed(fit: Callable[[], np.ndarray]) -> dict:
    with PeakMemory() as memory:
        began = time.perf_counter()
        eigenvalues = fit()
        seconds = time.perf_counter() - began
    return {
        "seconds": round(seconds, 3),
        "peak_mib": round((memory.peak - memory.baseline) / MIB),
        "first": float(eigenvalues[0]),
        "last": float(eigenvalues[-1]),
    }


def roofline(store: str, k: int, **_: str) -> dict:
    """What disk and BLAS allow here and now: one read on two threads, one symmetric product on all, one solve."""
    import scipy.linalg as sl
    import scipy.linalg.blas as blas

    array = zarr.open_array(store, mode="r")
    n, d = array.shape
    step = array.chunks[0]
    with ThreadPoolExecutor(2) as pool:
        began = time.perf_counter()
        list(pool.map(lambda i: array[i : i + step].shape, range(0, n, step)))
        read = time.perf_counter() - began
    block = array[: min(n, max(step, 4096))]
    began = time.perf_counter()
    product = blas.ssyrk(1.0, block.T)
    syrk = (time.perf_counter() - began) * n / len(block)
    S = product.astype("f8")
    began = time.perf_counter()
    sl.eigh(S, subset_by_index=[d - k, d - 1], overwrite_a=True, check_finite=False, lower=False)
    eigh = time.perf_counter() - began
    bound = syrk + read / os.cpu_count()
    return {"seconds": round(bound + eigh, 3), "read_s": read, "syrk_s": syrk, "eigh_s": eigh, "bound_s": bound}


def bigpca_fit(store: str, k: int, solver: str = "auto", memory_limit: str = "", **_: str) -> dict:
    import bigpca as bp

    X = bp.open(store)
    pca = bp.PCA(k, solver=solver, memory_limit=memory_limit or None)
    plan = pca.plan(X)
    row = timed(lambda: pca.fit(X).explained_variance_)
    return row | {"passes": plan.passes, "tasks": plan.tasks, "planned_mib": round(plan.process_bytes / MIB)}


def bigpca_cluster(store: str, k: int, workers: str = "2", threads: str = "1", solver: str = "auto", **_: str) -> dict:
    from distributed import Client, LocalCluster

    count, per_worker = int(workers), int(threads)
    options = {"processes": True, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    with LocalCluster(n_workers=count, threads_per_worker=per_worker, **options) as cluster, Client(cluster) as client:
        client.run(lambda: __import__("bigpca.estimators.pca") and None)  # a warm, idle worker
        return bigpca_fit(store, k, solver)


def dask_gram(store: str, k: int, **_: str) -> dict:
    import dask
    import dask.array as da
    import scipy.linalg as sl

    def fit() -> np.ndarray:
        X = da.from_zarr(store)
        (n, d), (S, m) = X.shape, dask.compute(X.T @ X, X.mean(0))
        C = S.astype("f8") / n - np.outer(m, m)
        return sl.eigh(C, eigvals_only=True, subset_by_index=[d - k, d - 1])[::-1] * n / (n - 1)

    return timed(fit)


def sklearn_covariance(store: str, k: int, **_: str) -> dict:
    from sklearn.decomposition import PCA

    return timed(
        lambda: PCA(k, svd_solver="covariance_eigh").fit(zarr.open_array(store, mode="r")[:]).explained_variance_
    )


def sklearn_incremental(store: str, k: int, **_: str) -> dict:
    from sklearn.decomposition import IncrementalPCA

    def fit() -> np.ndarray:
        array, model = zarr.open_array(store, mode="r"), IncrementalPCA(k)
        for start in range(0, array.shape[0], array.chunks[0]):
            if len(block := array[start : start + array.chunks[0]]) >= k:
                model.partial_fit(block)
        return model.explained_variance_

    return timed(fit)


def dask_ml_full(store: str, k: int, **_: str) -> dict:
    import dask.array as da
    from dask_ml.decomposition import PCA

    return timed(lambda: PCA(k, svd_solver="full").fit(da.from_zarr(store)).explained_variance_)


CONTENDERS = {
    "roofline": roofline,
    "bigpca": bigpca_fit,
    "bigpca-cluster": bigpca_cluster,
    "dask-gram": dask_gram,
    "sklearn-covariance": sklearn_covariance,
    "sklearn-incremental": sklearn_incremental,
    "dask-ml-full": dask_ml_full,
}


def main() -> None:
    """Run the contender that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("store")
    parser.add_argument("k", type=int)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="such as solver=dot, workers=2, threads=1")
    given = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in given.settings)
    row = CONTENDERS[given.name](given.store, given.k, **settings)
    print(json.dumps({"contender": " ".join([given.name, *given.settings]), **row}))


if __name__ == "__main__":
    main()
