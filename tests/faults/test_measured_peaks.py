"""Measured peak <= planned peak, for every solver of every estimator, each in a process of its own, and on a worker."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import scipy.sparse as sp
import zarr
from zarr.codecs import BloscCodec

import bigpca as bp
from tests.data.sparse_savers import write_parts
from tests.engine.conftest import on_cluster

SHAPES = {
    "tall": (12_000, 400),
    "wide": (600, 10_000),
    "thin": (8_000, 100),
    "counts": (12_000, 400),
    "few": (2_400, 300),
    "several": (2_400, 400),
    "sparse": (8_000, 1_000),
    "square": (2_000, 1_600),
    "long": (260, 8_000),
    "whole": (32_768, 200),
    "tallest": (40_000, 500),
    "groups.parquet": (40_000, 100),
}
LAYOUTS: dict[str, Callable[[Path, Any], Any]] = {  # rows of 128 columns, which compress little
    "rows.zarr": lambda path, x: save_zarr(path, x, (4096, 128)),
    "columns.zarr": lambda path, x: save_zarr(path, x, (8192, 16)),
    "shards.zarr": lambda path, x: save_zarr(path, x, (512, 128), shards=(8192, 128)),
    "one-shard.zarr": lambda path, x: save_zarr(path, x, (512, 128), shards=(32_768, 128)),
    "columns-in-shards.zarr": lambda path, x: save_zarr(path, x, (1024, 32), shards=(8192, 128)),
    "blosc.zarr": lambda path, x: save_zarr(path, x, (1024, 128), shards=(8192, 128), compressors=BloscCodec()),
    "bytes.zarr": lambda path, x: save_zarr(path, (20 * x).astype("u1"), (8192, 128)),
    "rows.npy": np.save,
    "rows.h5": lambda path, x: save_hdf5(path, x, chunks=(1024, 128)),
    "gzip.h5": lambda path, x: save_hdf5(path, x, chunks=(1024, 128), compression="gzip", compression_opts=1),
    "columns.h5": lambda path, x: save_hdf5(path, x, chunks=(8192, 16), compression="lzf"),
    "lists.parquet": lambda path, x: parquet.write_table(lists(x), path, row_group_size=8192),
    "one-group.parquet": lambda path, x: parquet.write_table(lists(x), path),
}


def save_zarr(path: Path, x: np.ndarray, chunks: tuple[int, int], **layout: Any) -> None:
    zarr.create_array(path, shape=x.shape, dtype=x.dtype, chunks=chunks, **layout)[...] = x


def save_hdf5(path: Path, x: np.ndarray, **layout: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=x, **layout)


def lists(x: np.ndarray) -> pa.Table:
    ends = pa.array(np.arange(0, x.size + 1, x.shape[1], dtype=np.int32))
    return pa.table({"rows": pa.ListArray.from_arrays(ends, pa.array(x.reshape(-1)))})


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
LIMIT: dict[str, Any] = {"memory_limit": "8 GiB"}
CASES: dict[str, tuple[str, Callable[[], Any]]] = {  # name -> (rows, estimator)
    "covariance": ("tall", lambda: bp.PCA(8, solver="covariance", **LIMIT)),
    "covariance of many rows": ("tallest", lambda: bp.PCA(8, solver="covariance", **LIMIT)),
    "row groups": ("groups.parquet", lambda: bp.PCA(8, solver="covariance", **LIMIT)),
    "groups": ("tall", lambda: bp.PCA(8, **LIMIT)),
    "folds": ("tall", lambda: bp.PCA("cross-validated", **LIMIT)),
    "scale": ("tall", lambda: bp.PCA(8, solver="covariance", scale=True, **LIMIT)),
    "dot": ("wide", lambda: bp.PCA(8, solver="dot", **LIMIT)),
    "signflip": ("tall", lambda: bp.PCA(bp.rules.ParallelAnalysis("signflip", 2), solver="krylov", **LIMIT)),
    "krylov": ("wide", lambda: bp.PCA(8, solver="krylov", scale=True, max_passes=6, **LIMIT)),
    "nystrom sketch": ("wide", lambda: bp.ApproximatePCA(8, bp.sketches.Gaussian(100), **LIMIT)),
    "tutorial": ("wide", lambda: bp.ApproximatePCA(8, bp.sketches.Gaussian(100), approximation="tutorial", **LIMIT)),
    "ritz": (
        "wide", lambda: bp.ApproximatePCA(8, bp.sketches.FeatureHash(100), approximation="ritz", scale=True, **LIMIT)
    ),
    "kernel dense": ("few", lambda: bp.KernelPCA(5, kernel="rbf", gamma=0.01, solver="dense", **LIMIT)),
    "kernel krylov": ("several", lambda: bp.KernelPCA(5, kernel="rbf", gamma=0.01, solver="krylov", tol=1e-2, **LIMIT)),
    "features": ("thin", lambda: bp.KernelPCA(5, kernel="linear", solver="features", **LIMIT)),
    "kernel sketch": ("few", lambda: bp.ApproximateKernelPCA(5, kernel="rbf", gamma=0.01, **LIMIT)),
    **{
        name: (rows, partial(bp.NystromKernelPCA, 5, kernel="rbf", gamma=0.01, n_landmarks=m, sampling=name, **LIMIT))
        for name, rows, m in (
            ("uniform", "tall", 200), ("diagonal", "tall", 200), ("column-norm", "thin", 200),
            ("rpcholesky", "tall", 300), ("kmeans", "thin", 200),
        )
    },
    "supervised": ("tall", lambda: bp.SupervisedPCA(2, **LIMIT)),
    "fisher": ("tall", lambda: bp.FisherDiscriminantAnalysis(2, **LIMIT)),
    "roweis": ("tall", lambda: bp.RoweisDiscriminantAnalysis(3, r1=0.4, r2=0.7, **LIMIT)),
    "random projection": ("tall", lambda: bp.SupervisedRandomProjection(2, **LIMIT)),
    "scored": ("tall", lambda: bp.ScoredPCA(2, n_features_to_select=50, memory_limit="8 GiB")),
    "scored cv": ("thin", lambda: bp.ScoredPCA(2, n_features_to_select="cv", memory_limit="8 GiB")),
    "kernel supervised": ("thin", lambda: bp.KernelSupervisedPCA(2, gamma=0.01, n_landmarks=200, **LIMIT)),
    "kernel dual": ("few", lambda: bp.KernelSupervisedPCA(2, solver="pairs", kernel="rbf", gamma=0.01, **LIMIT)),
    "kernel ritz": ("few", lambda: bp.ApproximateKernelPCA(5, kernel="rbf", gamma=0.01, approximation="ritz", **LIMIT)),
    "kernel roweis": (
        "thin", lambda: bp.KernelRoweisDiscriminantAnalysis(2, r1=0.0, gamma=0.01, n_landmarks=200, **LIMIT),
    ),
    "sparse krylov": ("sparse", lambda: bp.PCA(8, solver="krylov", preprocess=bp.preprocessing.L2("keep"), **LIMIT)),
    "sparse sketch": (
        "sparse",
        lambda: bp.ApproximatePCA(8, bp.sketches.Gaussian(100), preprocess=bp.preprocessing.L2("keep"), **LIMIT),
    ),
    "sparse landmarks": (
        "sparse",
        lambda: bp.NystromKernelPCA(
            5, kernel="linear", n_landmarks=300, preprocess=bp.preprocessing.L2("keep"), **LIMIT
        ),
    ),
    "sparse fisher": ("sparse", lambda: bp.FisherDiscriminantAnalysis(2, regularization=0.1, **LIMIT)),
    "sparse scored": ("sparse", lambda: bp.ScoredPCA(2, n_features_to_select=50, memory_limit="8 GiB")),
    "sparse covariance": ("sparse", lambda: bp.PCA(8, solver="covariance", **LIMIT)),
    "dense of wide rows": ("wide", lambda: bp.KernelPCA(5, kernel="rbf", gamma=1e-4, solver="dense", **LIMIT)),
    "dense of many rows": ("square", lambda: bp.KernelPCA(5, kernel="rbf", gamma=1e-3, solver="dense", **LIMIT)),
    "dual of wide rows": ("wide", lambda: bp.KernelSupervisedPCA(2, solver="pairs", kernel="rbf", gamma=1e-4, **LIMIT)),
    "kernel direct": ("several", lambda: bp.KernelSupervisedPCA(2, gamma=0.01, **LIMIT)),
    "many reads": ("long", lambda: bp.PCA(10, solver="krylov", max_passes=12, tol=1e-9, **LIMIT)),
    "uniform of wide rows": (
        "wide",
        lambda: bp.NystromKernelPCA(5, kernel="rbf", gamma=1e-4, n_landmarks=200, sampling="uniform", **LIMIT),
    ),
    "covariance of one chunk": ("whole", lambda: bp.PCA(8, solver="covariance", **LIMIT)),
    "krylov of one chunk": ("whole", lambda: bp.PCA(8, solver="krylov", **LIMIT)),
    "fisher of one chunk": ("whole", lambda: bp.FisherDiscriminantAnalysis(2, **LIMIT)),
    "pixels": ("wide", lambda: bp.PCA(8, solver="covariance", **LIMIT)),
    "cca": ("tall", lambda: bp.CCA(3, **LIMIT)),
    "partial cca": ("tall", lambda: bp.CCA(3, **LIMIT)),
    "partial cross-validation": ("tall", lambda: bp.PCA("cross-validated", **LIMIT)),
    "mca": ("tall", lambda: bp.PLSSVD(3, **LIMIT)),
    "partial least squares": ("tall", lambda: bp.PLSRegression(3, **LIMIT)),
    "factors": ("tall", lambda: bp.FactorAnalysis(3, **LIMIT)),
    "folds of partial least squares": ("tall", lambda: bp.PLSRegression(bp.rules.CrossValidated(3), **LIMIT)),
    "steps": ("tall", lambda: bp.TICA(3, lag=500, **LIMIT)),
    "slow features": ("tall", lambda: bp.SlowFeatureAnalysis(3, **LIMIT)),
    "noise of lines": ("tall", lambda: bp.MinimumNoiseFraction(3, width=100, **LIMIT)),
    "correspondences": ("counts", lambda: bp.CorrespondenceAnalysis(3, **LIMIT)),
    "contrasts": ("tall", lambda: bp.ContrastivePCA(**LIMIT)),
    "a metric": ("tall", lambda: bp.GeneralizedPCA(3, metric=2 * np.eye(400), **LIMIT)),
    "ridge of folds": ("tall", lambda: bp.Ridge([0.1, 1.0], cv=5, **LIMIT)),
    "windows": ("thin", lambda: bp.PCA(100, solver="krylov", max_passes=3, **LIMIT)),
    "windows by moments": ("thin", lambda: bp.PCA(3, solver="covariance", **LIMIT)),
    **{f"covariance of {name}": (name, partial(bp.PCA, 8, solver="covariance", **LIMIT)) for name in LAYOUTS},
    **{
        f"krylov of {name}": (name, partial(bp.PCA, 8, solver="krylov", max_passes=3, **LIMIT))
        for name in ("shards.zarr", "gzip.h5")
    },
}  # fmt: skip
TARGETS = {
    "cca": 300,
    "partial cca": 300,
    "mca": 300,
    "partial least squares": 300,
    "folds of partial least squares": 300,
    "ridge of folds": 20,
}  # columns of Y
PATTERNS: dict[str, dict[str, Any]] = {
    **{name: {"member": "X"} for name in CASES if name.startswith("sparse")},
    "pixels": {"pattern": "n (c p) -> (n p) c", "c": 400, "p": list(range(24, 0, -1))},
}
NEAR = {
    "covariance of one chunk": 2,
    "fisher of one chunk": 3,
    "krylov of one chunk": 3,
    "sparse covariance": 4,
    "dense of wide rows": 3,
    "dense of many rows": 3,
    "dual of wide rows": 3,
    "kernel direct": 3,
    "many reads": 4,
    "uniform of wide rows": 3,
}
GROWN = ("covariance", "nystrom sketch", "rpcholesky", "supervised", "fisher", "kernel supervised")
CHILD = """
import json, os, sys, warnings
import dask.array, dask_ml.cluster, numpy, psutil, scipy.sparse
import bigpca as bp
from bigpca import csr
from bigpca.data import files
from bigpca.estimators.shared import fit as life
from bigpca.storage import regular_store
from tests.faults.test_measured_peaks import CASES, PATTERNS, labels, nearest

warnings.simplefilter("ignore")
for name in bp.__all__:
    getattr(bp, name)

for dtype in ("f4", "f8"):  # compiled once, and not in each process
    rows, Q = scipy.sparse.eye_array(4, format="csr", dtype=dtype), numpy.eye(4, dtype=dtype)
    csr.add_product(rows, csr.multiply(rows, Q), Q.copy())
    csr.add_column_sums(rows, numpy.zeros(4))
    csr.add_gram(rows, None, numpy.zeros((4, 4)), numpy.zeros(4), numpy.zeros(4))
    csr.SPARSE.note_constants(rows, numpy.zeros(4), numpy.zeros(4, int))

plans, running = [], life.running  # those of added rows have no public plan

def recorded(fit, **options):
    plans.append(fit.plan)
    return running(fit, **options)

life.running = recorded

def measure(name, grown):
    rows, make = CASES[name]
    dask.config.set(scheduler="threads", num_workers=2)
    X = bp.open(f"{sys.argv[1]}/{rows if '.' in rows else rows + '.zarr'}", **PATTERNS.get(name, {}))
    if "windows" in name:
        X = bp.data.lagged(X, range(20))
    small = X[: min(600, 3 * X.shape[0] // 4)].compute()
    y, model, grouped = labels(name, X.shape[0]), make(), numpy.arange(X.shape[0]) % 6
    covariates = numpy.random.default_rng(3).standard_normal((X.shape[0], 200), dtype="f4")
    def beside(n):
        if name == "groups":
            return {"groups": grouped[:n]}
        return {"covariates": covariates[:n]} if "partial c" in name else {}
    shown = small.shape[0]
    model.fit(small, labels(name, shown), **beside(shown))  # libraries, BLAS buffers and thread stacks are there now
    if grown:
        model.partial_fit(X[:600], y if y is None else y[:600])
    before = psutil.Process().memory_info().rss
    open("/proc/self/clear_refs", "w").write("5")
    plans.clear()
    (model.partial_fit if grown else model.fit)(X, y, **beside(X.shape[0]))
    peak = int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
    own = make().plan(X, y, **beside(X.shape[0]))
    planned = max(plan.process_bytes for plan in (plans if grown else [own]))
    print(json.dumps({"name": name + ", grown" * grown, "growth": peak - before, "planned": planned}), flush=True)
    return planned <= nearest(name) * (peak - before)

for name in sys.argv[2:]:
    base = name.removesuffix(", grown")
    for _ in range(2):  # the second time where a busy machine made no threads reach their peaks together
        if os.fork() == 0:  # a fresh process for each, of one that has imported everything and started no thread
            try:
                near = measure(base, base != name)
            except BaseException as error:
                print(json.dumps({"name": name, "error": repr(error)}), flush=True)
                near = True
            os._exit(not near)
        if os.wait()[1] == 0:
            break
"""


LABELLED = (
    "contrasts",
    "supervised",
    "random projection",
    "fisher",
    "roweis",
    "scored",
    "scored cv",
    "kernel supervised",
    "kernel dual",
    "kernel roweis",
    "sparse fisher",
    "sparse scored",
    "dual of wide rows",
    "kernel direct",
    "fisher of one chunk",
)


def nearest(name: str) -> int:
    """How many times the measured peak a plan may be."""
    return NEAR.get(name, 6 if CASES[name][0] in ("wide", "sparse") else 8)


def labels(name: str, n: int) -> Any:
    """Three classes, numbers where they are to be predicted, or rows of Y; None where nothing learns from labels."""
    if name in TARGETS:
        return np.random.default_rng(2).standard_normal((n, TARGETS[name]), dtype="f4")
    classes = np.arange(n) % 3
    return (classes + 0.0 if "scored" in name else classes) if name in LABELLED else None


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peaks")
    for name, (n, d) in SHAPES.items():
        if name == "sparse":
            continue
        if name.endswith(".parquet"):
            values = np.random.default_rng(1).standard_normal((n, d))
            table = pa.table({f"f{j}": column for j, column in enumerate(values.T)})
            parquet.write_table(table, folder / name, row_group_size=n // 4)
            continue
        chunk = n if name == "whole" else max(1, n // 40)
        store = zarr.create_array(
            folder / f"{name}.zarr", shape=(n, d), chunks=(chunk, d), dtype="f4", compressors=None
        )
        rng = np.random.default_rng(1)
        spectrum = np.arange(1, d + 1, dtype="f4") ** (0.0 if name == "long" else -0.7)
        for i in range(0, n, chunk):
            rows = rng.standard_normal((min(chunk, n - i), d), dtype="f4") * spectrum
            rows[:, 0] += np.arange(i, i + len(rows)) % 3
            store[i : i + chunk] = np.abs(rows) if name == "counts" else rows
    for name, save in LAYOUTS.items():
        save(folder / name, np.random.default_rng(1).standard_normal((32_768, 128), dtype="f4"))
    sparse = sp.random_array(SHAPES["sparse"], density=0.05, format="csr", dtype="f4", rng=np.random.default_rng(1))
    write_parts(zarr.open_group(folder / "sparse.zarr", mode="w").create_group("X"), sparse, {"chunks": (1 << 16,)})
    return folder


@pytest.fixture(scope="module")
def measured(stores: Path) -> dict[str, dict[str, Any]]:
    """Growth and plan of the cases, in bytes."""
    command = [sys.executable, "-c", CHILD, str(stores), *CASES, *(f"{name}, grown" for name in GROWN)]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OPENBLAS_NUM_THREADS": "1", "BIGPCA_SOLVE_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=600)
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", [*CASES, *(f"{name}, grown" for name in GROWN)])
def test_the_measured_peak_of_a_fit_is_within_its_plan(name: str, measured: dict[str, dict[str, Any]]) -> None:
    found = measured[name]
    assert "error" not in found
    near = nearest(name.removesuffix(", grown"))
    assert 0 < found["growth"] <= found["planned"] <= near * found["growth"]


def peak_of_worker() -> int:
    """Most resident bytes since the last time that ``forget_peak`` was called."""
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024


def forget_peak() -> int:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return peak_of_worker()


@pytest.mark.cluster
def test_the_measured_peak_of_a_worker_is_within_the_plan(stores: Path) -> None:
    with on_cluster(1) as client:
        for name in ("covariance", "dot", "tutorial"):
            X, make = bp.open(stores / f"{CASES[name][0]}.zarr"), CASES[name][1]
            make().fit(X[:200])
            (before,) = client.run(forget_peak).values()
            model = make().fit(X)
            (peak,) = client.run(peak_of_worker).values()
            assert 0 < peak - before <= model.plan_.process_bytes, name
