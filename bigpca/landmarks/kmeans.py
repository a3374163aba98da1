"""Landmarks that are not rows of X: the centres of k-means, by dask-ml."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext

import dask
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from bigpca.blas import one_blas_thread
from bigpca.costs import PassCost, Times, peak_bytes
from bigpca.data.sources import dense_chunk_rows, whole_rows
from bigpca.landmarks.base import LandmarkRequest, Landmarks
from bigpca.passes.project import mapped_lazily
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.row_checks import check_any_order
from bigpca.seeds import integers

INIT_ROUNDS = 5
MAX_ITERATIONS = 20  # landmarks do not need a converged clustering
START_READS = 5 + 2 * INIT_ROUNDS  # with the first chunk, which decides the unit
KMEANS_READS = Times(2 * 10 + START_READS, 2 * MAX_ITERATIONS + START_READS)  # typically, at most


def kmeans(request: LandmarkRequest) -> Landmarks:
    """Return the centres of m clusters: ``dask_ml.cluster.KMeans`` on X, started by k-means||, at most 20 iterations.

    The centres minimise a bound on the Nyström approximation's error for distance kernels (Zhang, Tsang & Kwok 2008).
    Two reads of X per iteration and up to fifteen for start and end, by far the most of all samplings; no kernel
    evaluations. The centres depend on the chunks of X as well as on the seed, since dask-ml draws its random numbers
    chunk by chunk. Sparse rows are made dense in chunks of at most 64 MiB.
    Equal centres (if X has fewer than m distinct rows) are returned once.

    Raises
    ------
    ValueError
        If rows are strings, or those of a precomputed matrix, which have no mean; if ``nan_policy="omit"``; if X has
        missing values.

    Notes
    -----
    NOTE: dask-ml draws ``oversampling_factor`` candidates per round, 2 by default; Bahmani et al. (2012) draw 2 m in
    each of 5 rounds, as here.
    """
    _reject(request)
    from dask_ml.cluster import KMeans  # heavy, and needed here only

    X = whole_rows(mapped_lazily(request.rows), working_dtype(request.rows.dtype))
    # The rounds (the logarithm of a cost) and the tolerance of dask-ml are absolute numbers: rows are divided by the
    # power of two that brings the largest value of the first chunk to between 4 and 8.
    exponent = int(np.frexp(np.abs(X.blocks[0].compute()).max(initial=0.0))[1]) - 3
    X = np.ldexp(X, -exponent)
    seed = int(integers(request.seed, "kmeans", 0, 1, 1, 2**31 - 1)[0, 0])
    clusters = KMeans(
        request.count, oversampling_factor=2 * request.count, init_max_iter=INIT_ROUNDS, max_iter=MAX_ITERATIONS,
        random_state=seed,
    )  # fmt: skip
    here: AbstractContextManager[object] = (
        dask.config.set(scheduler="threads") if request.run.scheduler == "local" else nullcontext()
    )
    # dask-ml computes outside the engine: with one BLAS thread, like a fold, so that chunks that fold rows themselves
    # do not wait for this solve; and scikit-learn sums in as many parts as it has threads.
    with one_blas_thread(), threadpool_limits(1, "openmp"), here, warnings.catch_warnings():
        # With fewer distinct rows than clusters, 0 / 0 draws no further candidate; equal centres are returned once.
        for expected in (RuntimeWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", expected)
        clusters.fit(X)  # 2 n_iter_ + 15 passes over X at most
    centres = np.unique(np.ldexp(np.asarray(clusters.cluster_centers_, X.dtype), exponent), axis=0)
    (cost,) = kmeans_passes(request)
    request.run.read_beside(cost, 2 * clusters.n_iter_ + START_READS)
    return Landmarks(centres, None)


def kmeans_passes(request: LandmarkRequest) -> tuple[PassCost]:
    """Declare the reads of :func:`kmeans`, which dask-ml executes.

    It holds the distances of all rows of a chunk to all candidates, of which k-means|| draws 2 m in each round.
    scikit-learn converts a tenth of float32 distances at a time to float64.
    """
    check_any_order(request.rows, 'sampling="kmeans"')
    rows, m, dtype = request.rows, request.count, working_dtype(request.rows.dtype)
    chunk_rows, candidates, itemsize = dense_chunk_rows(rows.X, dtype), 2 * m * INIT_ROUNDS, dtype.itemsize
    read, distances = chunk_rows * rows.n_columns * itemsize, chunk_rows * candidates * (itemsize + 1)
    return (
        PassCost(
            name="k-means", times=KMEANS_READS, bytes_read=rows.bytes_of(rows.n_rows),
            flops=float(rows.n_rows) * 3 * m, peak_bytes=peak_bytes(read, 0, distances, 0),
            driver_bytes=candidates * rows.n_columns * (itemsize + 8),
        ),
    )  # fmt: skip


def _reject(request: LandmarkRequest) -> None:
    if request.kernel.accepts_strings or not request.kernel.needs_rows:
        raise ValueError(
            f'sampling="kmeans" averages rows, but {request.kernel} does not compare real vectors. '
            'Use sampling="rpcholesky" or "uniform".'
        )
    if request.rows.nan_policy == "omit":
        raise ValueError(
            'sampling="kmeans" cannot omit rows with missing values (nan_policy="omit"). '
            'Use sampling="rpcholesky" or "uniform", or repair the data.'
        )
