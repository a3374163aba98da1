"""An atlas of 100 million cells: its plan, and memory and processor time per million cells of slices of it.

usage: python examples/benchmarks/atlas.py [--directory DIR] [--cells 100000000] [--slices 500000 1000000 2000000]
       [--genes 2000] [--share 0.08] [-k 50] [--threads 1]

Each store is a CSR matrix in Zarr as AnnData writes it, with the counts of cells.py. Its metadata and its ``indptr``
are those of so many cells, but its chunks of ``data`` and ``indices`` are hard links to the few of a pool of 20,000
cells: the atlas takes the space of its ``indptr``, and a read finds and decodes real chunks. The model is that of
counts, normalised to 10,000 per cell, log1p, standard scores clipped at 10: two reads. A process of its own plans the
whole atlas: what the plan says, and the memory and processor time that planning takes. Another one fits each slice. As
the pool is repeated, the eigenvalues of all slices are equal to rounding. Ends with one JSON line.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import zarr
from cells import POOL, synthetic
from contenders import MIB, PeakMemory, run_apart, timed
from contenders import main as run_contender

PARTS = 4  # chunks of the pool
TOGETHER = 50  # pools whose ``indptr`` is written in one go


def replayed(folder: Path, cells: int, pool: sp.csr_matrix) -> Path:
    """Write a store of so many cells, a multiple of those of the pool, and return its path."""
    stored = len(pool.data) // PARTS * PARTS
    ends, length = np.minimum(pool.indptr[1:], stored).astype("i8"), stored // PARTS
    path, repeats = folder / f"{cells}.zarr", cells // POOL
    group = zarr.open_group(path, mode="w").create_group("X")
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [cells, pool.shape[1]]})
    for name, values in (("data", pool.data), ("indices", pool.indices.astype("i4"))):
        array = group.create_array(name, shape=repeats * stored, dtype=values.dtype, chunks=length)
        array[:stored] = values[:stored]
        chunks = path / "X" / name / "c"
        for i in range(PARTS, repeats * PARTS):
            os.link(chunks / str(i % PARTS), chunks / str(i))
    indptr = group.create_array("indptr", shape=cells + 1, dtype="i8", chunks=TOGETHER * POOL)
    for first in range(0, repeats, TOGETHER):
        pools = np.arange(first, min(first + TOGETHER, repeats))
        starts = np.concatenate([[0], ends[:-1]]) + stored * pools[:, None]
        indptr[first * POOL : (pools[-1] + 1) * POOL] = starts.ravel()
    indptr[-1] = repeats * stored
    return path


def model_of(k: int):
    """Return the model from counts."""
    import bigpca as bp

    steps = [bp.preprocessing.NormalizeTotal(1e4), bp.preprocessing.Log1p(), bp.preprocessing.Standardize(10)]
    return bp.PCA(k, solver="covariance", preprocess=steps)


def of_plan(store: str, k: int, **_: str) -> dict:
    """Open and plan."""
    import bigpca as bp

    with PeakMemory() as memory:
        began = time.process_time()
        plan = model_of(k).plan(bp.open(store, member="X"))
        cpu = time.process_time() - began
    return {"reads": plan.passes, "tasks": plan.tasks, "planned_mib": round(plan.process_bytes / MIB),
            "read_bytes": plan.bytes_read, "cpu_s": round(cpu, 2),
            "peak_mib": round((memory.peak - memory.baseline) / MIB)}  # fmt: skip


def of_fit(store: str, k: int, threads: str = "1", **_: str) -> dict:
    """Fit, after one to a few rows, which imports and compiles."""
    import dask

    import bigpca as bp

    with dask.config.set(num_workers=int(threads)):
        X, model = bp.open(store, member="X"), model_of(k)
        model_of(2).fit(X[:1000])
        row = timed(lambda: model.fit(X).explained_variance_)
    return row | {"planned_mib": round(model.plan_.process_bytes / MIB)}


def compare() -> None:
    """Write the stores, and run each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="for the stores; a temporary folder by default")
    parser.add_argument("--cells", type=int, default=100_000_000, help="of the plan")
    parser.add_argument("--slices", type=int, nargs="*", default=[500_000, 1_000_000, 2_000_000])
    parser.add_argument("--genes", type=int, default=2_000)
    parser.add_argument("--share", type=float, default=0.08, help="of values that are not zero")
    parser.add_argument("-k", type=int, default=50)
    parser.add_argument("--threads", default="1")
    given = parser.parse_args()
    pool = synthetic(given.genes, given.share, np.random.default_rng(0))
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        plan = run_apart("plan", replayed(Path(folder), given.cells, pool), given.k, script=__file__)
        print(f"plan of {given.cells:,} cells: {plan}", flush=True)
        rows = {}
        for cells in given.slices:
            store = replayed(Path(folder), cells, pool)
            rows[cells] = run_apart(f"fit threads={given.threads}", store, given.k, script=__file__)
            rows[cells]["cpu_s_per_million"] = round(1e6 * rows[cells]["cpu_s"] / cells, 2)
            print(f"{cells:,} cells: {rows[cells]}", flush=True)
    print(json.dumps({"cells": given.cells, "share": pool.nnz / np.prod(pool.shape), "plan": plan, "slices": rows}))


if __name__ == "__main__":
    import sys

    if sys.argv[1:2] in (["plan"], ["fit"]):
        run_contender({"plan": of_plan, "fit": of_fit}, __doc__)
    else:
        compare()
