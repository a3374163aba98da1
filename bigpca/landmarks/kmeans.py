"""Landmarks that are no rows: the centres of k-means, by dask-ml."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import dask
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from bigpca.blas import one_blas_thread
from bigpca.landmarks.base import LandmarkRequest, Landmarks
from bigpca.passes.reading.layout import working_dtype
from bigpca.seeds import integers

INIT_ROUNDS = 5
MAX_ITERATIONS = 20  # landmarks need no converged clustering
START_READS = 4 + 2 * INIT_ROUNDS
KMEANS_READS = (2.0 * 10 + START_READS, 2.0 * MAX_ITERATIONS + START_READS)  # typically, at most


def kmeans(request: LandmarkRequest) -> Landmarks:
    """Return the centres of m clusters: ``dask_ml.cluster.KMeans`` on X, started by k-means||, at most 20 iterations.

    Centres minimise a bound on what the Nyström approximation loses for kernels of distances (Zhang, Tsang & Kwok
    2008). Two reads of X for each iteration, up to fourteen for the start and the end: by far the most passes of all
    samplings; no kernel evaluation. The centres depend on the chunks of X as well as on the seed, since dask-ml draws
    its random numbers chunk by chunk. Centres that are equal (fewer distinct rows than m) are returned once.

    Raises
    ------
    ValueError
        Where rows are strings, or numbers of a precomputed matrix, which have no mean; where missing values were to be
        left out; where X has missing values.

    Notes
    -----
    NOTE: dask-ml draws ``oversampling_factor`` candidates a round, 2 by default; Bahmani et al. (2012) draw 2 m
    in each of 5 rounds, and so does this.
    """
    _reject(request)
    from dask_ml.cluster import KMeans  # heavy, and needed here only

    X = request.rows.X.astype(working_dtype(request.rows.dtype)).rechunk({1: -1})
    seed = int(integers(request.seed, "kmeans", 0, 1, 1, 2**31 - 1)[0, 0])
    clusters = KMeans(
        request.count, oversampling_factor=2 * request.count, init_max_iter=INIT_ROUNDS, max_iter=MAX_ITERATIONS,
        random_state=seed,
    )  # fmt: skip
    here: Any = dask.config.set(scheduler="threads") if request.options.scheduler == "local" else nullcontext()
    # dask-ml computes in a way that no pass knows of: as a fold, so that chunks which fold rows
    # themselves find their turn.
    with one_blas_thread(), here, warnings.catch_warnings():
        # Fewer distinct rows than clusters: 0 / 0 draws no further candidate, and equal centres are returned once.
        for expected in (RuntimeWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", expected)
        clusters.fit(X)  # 2 n_iter_ + 14 passes over X at most
    centres = np.unique(np.asarray(clusters.cluster_centers_, X.dtype), axis=0)
    passes = float(2 * clusters.n_iter_ + START_READS)
    return Landmarks(centres, None, passes, 0, "kmeans", request.count)


def _reject(request: LandmarkRequest) -> None:
    if request.kernel.accepts_strings or not request.kernel.needs_rows:
        raise ValueError(
            f'{request.kernel} compares no vectors, and sampling="kmeans" averages rows. A kernel of real vectors was '
            f'expected. Use sampling="rpcholesky" or "uniform".'
        )
    if request.rows.nan_policy == "omit":
        raise ValueError(
            'sampling="kmeans" cannot leave out rows with missing values (nan_policy="omit"); '
            "complete rows were expected. "
            'Use sampling="rpcholesky" or "uniform", or repair the data.'
        )
