"""Sparse counts that stay sparse: bigpca's krylov from a Zarr CSR store, beside ARPACK of scikit-learn in memory.

usage: python examples/benchmarks/sparse_counts.py [--directory DIR] [--rows 200000] [--columns 30000] [--density 0.05]
       [-k 50] [--only NAME ...] [--solver krylov] [--tol 1e-3]

Counts of cells that mix programs of genes are drawn, and written as AnnData writes them (float32 values with int32
columns). Each contender runs in a process of its own: seconds and processor seconds of the fit, with the reading of the
store for bigpca and without it for ARPACK, and the peak of memory over what the process held before it opened the
store, with the matrix for ARPACK. The error is the largest relative difference of the k eigenvalues, against ARPACK's.
Ends with one JSON line.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import zarr
from contenders import compared, run_apart, timed

PROGRAMS, TOGETHER = 80, 5_000


def drawn(rng: np.random.Generator, cumulated: np.ndarray, rows: int, depth: float) -> sp.csr_matrix:
    """Draw counts of cells: of the reads of a cell, 60 % fall on genes by its own program, the others by any."""
    reads = rng.negative_binomial(4, 4 / (4 + depth), rows) + 1
    cells = np.repeat(np.arange(rows), reads)
    programs = np.repeat(rng.integers(0, len(cumulated), rows), reads)
    other = np.repeat(rng.integers(0, len(cumulated), rows), reads)
    programs = np.where(rng.random(len(cells)) < 0.6, programs, other)
    genes = np.empty(len(cells), np.int32)
    for i, shares in enumerate(cumulated):
        here = programs == i
        genes[here] = np.searchsorted(shares, rng.random(here.sum()))
    return sp.coo_matrix((np.ones(len(cells), "f4"), (cells, genes)), (rows, cumulated.shape[1])).tocsr()


def written(folder: Path, rows: int, columns: int, density: float) -> Path:
    """Write the counts in chunks of about 2^20 values, and return the path of the store."""
    path = folder / f"counts-{rows}x{columns}-{density:g}.zarr"
    if path.exists():
        return path
    rng = np.random.default_rng(0)
    shares = rng.lognormal(0, 1.5, columns) * rng.lognormal(0, 0.7, (PROGRAMS, columns))
    cumulated = np.cumsum(shares / shares.sum(axis=1, keepdims=True), axis=1)
    cumulated[:, -1] = 1
    depth = density * columns
    for _ in range(4):  # several reads of a cell fall on one gene
        depth *= density * columns * 500 / drawn(np.random.default_rng(1), cumulated, 500, depth).nnz
    partial = path.with_suffix(".partial")
    group = zarr.open_group(partial, mode="w").create_group("X")
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [rows, columns]})
    data, indices = (group.create_array(name, shape=0, dtype=kind, chunks=2**20) for name, kind in
                     (("data", "f4"), ("indices", "i4")))  # fmt: skip
    ends = [0]
    for start in range(0, rows, TOGETHER):
        part = drawn(rng, cumulated, min(TOGETHER, rows - start), depth)
        data.append(part.data)
        indices.append(part.indices.astype("i4"))
        ends += (ends[-1] + part.indptr[1:].astype("i8")).tolist()
    group.create_array("indptr", data=np.array(ends, "i8"))
    partial.rename(path)
    return path


def of_bigpca(store: str, k: int, solver: str = "krylov", tol: str = "1e-3") -> dict:
    """Fit from the store."""
    import bigpca as bp

    bp.PCA(2, solver="krylov").fit(sp.random(300, 40, 0.2, "csr", random_state=0))  # imports and compiles
    pca = bp.PCA(k, solver=solver, tol=float(tol))
    row = timed(lambda: pca.fit(bp.open(store, member="X")).explained_variance_)
    return row | {"reads": pca.n_passes_, "converged": pca.converged_}


def of_arpack(store: str, k: int) -> dict:
    """Load the matrix, and fit it in memory."""
    from sklearn.decomposition import PCA

    PCA(2, svd_solver="arpack").fit(sp.random(300, 40, 0.2, "csr", random_state=0))
    fitted: dict[str, float] = {}

    def fit() -> np.ndarray:
        group = zarr.open_group(store, mode="r")["X"]
        parts = tuple(group[name][:] for name in ("data", "indices", "indptr"))
        X = sp.csr_matrix(parts, shape=group.attrs["shape"])
        began, cpu = time.perf_counter(), time.process_time()
        found = PCA(k, svd_solver="arpack", random_state=0).fit(X).explained_variance_
        fitted.update(seconds=round(time.perf_counter() - began, 3), cpu_s=round(time.process_time() - cpu, 2))
        return found

    return timed(fit) | fitted


CONTENDERS = {"bigpca": of_bigpca, "arpack": of_arpack}


def compare() -> None:
    """Write the store, run each contender in a process of its own, and print their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=str(Path(tempfile.gettempdir()) / "bigpca-benchmarks"))
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=30_000)
    parser.add_argument("--density", type=float, default=0.05)
    parser.add_argument("-k", type=int, default=50)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--solver", default="krylov")
    parser.add_argument("--tol", default="1e-3")
    given = parser.parse_args()
    folder = Path(given.directory)
    folder.mkdir(parents=True, exist_ok=True)
    store = written(folder, given.rows, given.columns, given.density)
    stored = zarr.open_group(store, mode="r")["X/data"].shape[0]
    record: dict = {"rows": given.rows, "columns": given.columns, "density": stored / given.rows / given.columns}
    reference = folder / f"arpack-{store.stem}-{given.k}.npy"
    for name in [one for one in ("arpack", "bigpca") if one in given.only]:
        settings = f" solver={given.solver} tol={given.tol}" if name == "bigpca" else ""
        known = ["--reference", str(reference)] if name == "arpack" or reference.exists() else []
        record[name] = run_apart(f"{name}{settings}", store, given.k, *known, script=__file__)
        print(f"{name:8} {record[name]}", flush=True)
    print(json.dumps(record))


def one() -> None:
    """Run one contender, and print its row; ARPACK's eigenvalues become the reference."""
    name, store, k, *others = sys.argv[1:]
    reference = Path(others[others.index("--reference") + 1]) if "--reference" in others else None
    row = CONTENDERS[name](store, int(k), **dict(other.split("=") for other in others if "=" in other))
    if name == "arpack" and reference is not None:
        np.save(reference, row["eigenvalues"])
    print(json.dumps(compared(row, int(k), reference)))


if __name__ == "__main__":
    one() if sys.argv[1:2] and sys.argv[1] in CONTENDERS else compare()
