"""PCA of sparse cells on Dask: bigpca beside scanpy's sc.pp.pca on the same Dask array, both checked against float64.

usage: python examples/benchmarks/cells.py [--cells 500000] [--genes 2000] [-k 50] [--chunk 20000] [--rounds 3]
       [--share 0.08] [--celltypist] [--counts TOP]

Counts of a negative binomial in ten cell types, with a share of values that are not zero, normalised to 10,000 per cell
and log1p, in float32: a pool of 20,000 cells, resampled to the number of cells, as one Dask array of CSR chunks. With
--celltypist the pool is the sample of 559 real cells that celltypist installs, with its most variable genes. Both fit
and compute all scores. The oracle is the covariance in float64, of dense rows about their mean; scanpy's eigenvalues,
divided by n on Dask, are compared after multiplication by n / (n - 1). Medians over the rounds of seconds and processor
seconds, and the peak of memory over what it was before. Ends with one JSON line.

With --counts the rows are the counts, and both go from these to the components of the TOP most variable genes: bigpca
by bp.cells.pca(counts=True), scanpy by normalize_total, log1p, highly_variable_genes, scale(max_value=10) and pca on a
copy of the counts in memory, as it is used. The oracle is that chain in float64.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import dask.array as da
import numpy as np
import scipy.sparse as sp
from contenders import MIB, PeakMemory
from scipy.linalg import eigh

import bigpca as bp

warnings.filterwarnings("ignore", category=FutureWarning)
POOL = 20_000
TYPES = 10


def synthetic(genes: int, share: float, rng: np.random.Generator) -> sp.csr_matrix:
    """Return counts of a pool of cells: negative binomial, of which about ``share`` are not zero."""
    base = rng.lognormal(0, 1.5, genes)
    programs = base * rng.lognormal(0, 0.7, (TYPES, genes))
    means = programs[np.arange(POOL) % TYPES] * rng.lognormal(0, 0.4, (POOL, 1))
    low, high = 1e-6, 10.0
    for _ in range(40):  # the factor that gives the share: P(0) = (1 + m / 2)^-2 for dispersion 2
        factor = np.sqrt(low * high)
        filled = 1 - np.mean((1 + factor * means[:500] / 2) ** -2.0)
        low, high = (factor, high) if filled < share else (low, factor)
    parts = [rng.poisson(rng.gamma(2.0, factor * means[i : i + 1000] / 2)) for i in range(0, POOL, 1000)]
    return sp.csr_matrix(np.concatenate(parts).astype("f4"))


def real(genes: int) -> sp.csr_matrix:
    """Return the counts of celltypist's sample, of its most variable genes."""
    import celltypist
    import pandas as pd

    path = Path(celltypist.__file__).parent / "data/samples/sample_cell_by_gene.csv"
    counts = sp.csr_matrix(pd.read_csv(path, index_col=0).to_numpy("f4"))
    logs = counts.log1p()
    spread = logs.power(2).mean(axis=0) - np.square(logs.mean(axis=0))
    return counts[:, np.sort(np.argsort(np.asarray(spread).ravel())[-genes:])]


def logs_of(pool: sp.csr_matrix) -> sp.csr_matrix:
    """Return the logarithms of normalised counts."""
    total = np.maximum(np.asarray(pool.sum(axis=1)).ravel(), 1)
    return sp.csr_matrix(sp.diags(1e4 / total) @ pool).log1p().astype("f4")


def array_of(pool: sp.csr_matrix, cells: int, chunk: int, rng: np.random.Generator) -> da.Array:
    """Return cells drawn from a pool, as a Dask array of CSR chunks in memory."""
    return da.from_array(pool[rng.integers(0, pool.shape[0], cells)], chunks=(chunk, -1))


def oracle(X: da.Array, k: int) -> np.ndarray:
    """Return the largest eigenvalues of the covariance, summed in float64 about the mean."""
    blocks = [X.blocks[i].compute() for i in range(X.numblocks[0])]
    mean = sum(np.asarray(block.sum(axis=0, dtype="f8")).ravel() for block in blocks) / X.shape[0]
    total = np.zeros((X.shape[1], X.shape[1]))
    for block in blocks:
        for i in range(0, block.shape[0], 2_000):
            rows = block[i : i + 2_000].toarray().astype("f8") - mean
            total += rows.T @ rows
    d = X.shape[1]
    return eigh(total / (X.shape[0] - 1), eigvals_only=True, subset_by_index=(d - k, d - 1))[::-1]


def of_scanpy(X: da.Array, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues (divisor n - 1) and scores."""
    import anndata
    import scanpy as sc

    adata = anndata.AnnData(X)
    sc.pp.pca(adata, n_comps=k)
    scores = adata.obsm["X_pca"]
    scores = scores.compute() if hasattr(scores, "compute") else scores
    return adata.uns["pca"]["variance"] * (X.shape[0] / (X.shape[0] - 1)), scores


def of_bigpca(X: da.Array, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the same."""
    model = bp.PCA(k, solver="covariance").fit(X)
    return model.explained_variance_, model.transform(X).compute()


def chain_of_scanpy(X: da.Array, k: int, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the same, of counts in memory."""
    import anndata
    import scanpy as sc

    adata = anndata.AnnData(X.compute().copy())
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    sc.pp.highly_variable_genes(adata, n_top_genes=top)
    adata = adata[:, adata.var["highly_variable"]].copy()
    sc.pp.scale(adata, max_value=10)
    sc.pp.pca(adata, n_comps=k)
    return adata.uns["pca"]["variance"], adata.obsm["X_pca"]


def chain_of_bigpca(X: da.Array, k: int, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the same, of counts where they are."""
    import anndata

    adata = anndata.AnnData(X)
    bp.cells.pca(adata, k, counts=True, n_top_genes=top, target_sum=1e4, max_value=10)
    return adata.uns["pca"]["variance"], adata.obsm["X_pca"]


Fit = Callable[[da.Array, int], tuple[np.ndarray, np.ndarray]]


def once(fit: Fit, X: da.Array, k: int) -> tuple[np.ndarray, tuple[float, float, float]]:
    """Return the eigenvalues; seconds, processor seconds, and MiB of memory over that before."""
    with PeakMemory() as memory:
        cpu, began = time.process_time(), time.perf_counter()
        found, scores = fit(X, k)
        spent = time.perf_counter() - began, time.process_time() - cpu
    assert scores.shape == (X.shape[0], k)
    return found, (*spent, (memory.peak - memory.baseline) / MIB)


def main() -> None:
    """Time both in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=500_000)
    parser.add_argument("--genes", type=int, default=2_000)
    parser.add_argument("-k", type=int, default=50)
    parser.add_argument("--chunk", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.08, help="of values that are not zero")
    parser.add_argument("--celltypist", action="store_true", help="resample real cells")
    parser.add_argument("--counts", type=int, metavar="TOP", help="from counts to components of the TOP genes")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    pool = real(given.genes) if given.celltypist else synthetic(given.genes, given.share, rng)
    X = array_of(pool if given.counts else logs_of(pool), given.cells, given.chunk, rng)
    share = pool.nnz / np.prod(pool.shape)
    print(f"{X.shape[0]:,} cells x {X.shape[1]:,} genes, {share:.1%} not zero, {X.numblocks[0]} chunks", flush=True)
    fits: dict[str, Fit] = {"bigpca": of_bigpca, "scanpy": of_scanpy}
    if given.counts:
        fits = {
            "bigpca": partial(chain_of_bigpca, top=given.counts),
            "scanpy": partial(chain_of_scanpy, top=given.counts),
        }
    truth = fits["scanpy"](X.astype("f8"), given.k)[0] if given.counts else oracle(X, given.k)
    for fit in fits.values():  # imports and compilation
        once(fit, X.blocks[:1], given.k)
    spent: dict[str, list[tuple[float, float, float]]] = {name: [] for name in fits}
    errors = {}
    for _ in range(given.rounds):
        for name, fit in fits.items():
            found, row = once(fit, X, given.k)
            spent[name].append(row)
            errors[name] = float(np.max(np.abs(found - truth)) / truth[0])
    names = ("seconds", "cpu_seconds", "peak_mib")
    result = {
        name: {what: statistics.median(row[i] for row in rows) for i, what in enumerate(names)}
        | {"eigenvalue_error": errors[name]}
        for name, rows in spent.items()
    }
    for name, row in result.items():
        print(
            f"  {name:8}{row['seconds']:8.2f} s {row['cpu_seconds']:8.2f} s of processors {row['peak_mib']:7.0f} MiB "
            f"more, eigenvalues within {row['eigenvalue_error']:.1e} of the largest"
        )
    ratio = statistics.median(a[0] / b[0] for a, b in zip(spent["bigpca"], spent["scanpy"], strict=True))
    size = {"shape": list(X.shape), "share": share, "seconds_ratio": ratio}
    print(json.dumps(size | result))


if __name__ == "__main__":
    main()
