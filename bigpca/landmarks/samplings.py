"""Samplings of landmarks that look at the kernel matrix or at clusters: pivoted Cholesky, leverage scores, k-means."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import dask
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import bigpca.dask_array as da
from bigpca.arrays import Array, Integers, Matrix, Vector
from bigpca.blas import one_blas_thread
from bigpca.data.sources import dense_chunk_rows, whole_rows
from bigpca.kernels.base import Kernel
from bigpca.landmarks.base import (
    LandmarkRequest,
    Landmarks,
    draw_pass,
    draw_rows,
    reject_indefinite,
    reject_zero,
    rows_of,
)
from bigpca.passes.accumulators.landmark_moments import (
    cross_block,
    diagonal_of,
    prepare_landmarks,
    square_block,
    tile_rows,
)
from bigpca.passes.accumulators.row_weights import BestRows, Diagonal, Ones, Residual, RowWeight
from bigpca.passes.project import mapped_lazily
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.rows import check_any_order
from bigpca.planning import PassCost, peak_bytes
from bigpca.seeds import integers, uniforms
from bigpca.solvers.eigh import top_eigenpairs
from bigpca.solvers.features import landmark_transform, residual_rounding, truncation_for
from bigpca.solvers.pivoting import BLOCK, Race, rejection_pivots

CANDIDATES = 10  # rows drawn in a read for each landmark: so many leave one to three reads on fast spectra
CANDIDATE_BYTES = 64 << 20  # limit of their rows and factors, except of those for which memory was always planned
FOLLOWED = 6  # of them are compared with landmarks, where many are rejected
MOST_READS = 6  # so that a plan has a bound: the last of them fills up from its candidates
FLOAT64 = float(np.finfo(np.float64).eps)
SAMPLE = 16  # rows in memory per landmark
MIN_SCORING = 256  # rows that may all be kept, if there are few landmarks
MIN_RIDGE = 1e-10  # relative to the mean of the weighted diagonal
INIT_ROUNDS = 5
MAX_ITERATIONS = 20  # landmarks do not need a converged clustering
START_READS = 5 + 2 * INIT_ROUNDS  # with the first chunk, which decides the unit
KMEANS_READS = 2 * 10 + START_READS, 2 * MAX_ITERATIONS + START_READS  # typically, at most


@dataclass(frozen=True)
class Chosen:
    """The landmarks so far, and the factor of their kernel matrix.

    Attributes
    ----------
    rows : ndarray of shape (s, d)
    indices : ndarray of shape (s,)
    T : ndarray of shape (s, r)
    """

    rows: Array
    indices: Integers
    T: Matrix


def rpcholesky(request: LandmarkRequest) -> Landmarks:
    """Draw landmarks by randomly pivoted Cholesky, in as many reads of X as its law needs: often one or two, at most 6.

    The law is the sequential one: given the landmarks S so far, the next is row i with probability proportional to
    ``d_i = k(x_i, x_i) - |k(x_i, S) T|^2``, ``T T' = k(S, S)^-1``. Each read computes these residuals of all rows for
    the landmarks of earlier reads, and draws up to ``10 m`` distinct candidates by them, in the order in which draws
    with replacement would first meet them. In memory the draws with replacement are completed with repeats, and each is
    accepted with probability (its residual now) / (its residual in the read), which is the law exactly
    (:func:`bigpca.solvers.pivoting.rejection_pivots`). X is read again where candidates run out before there are m
    landmarks: where the spectrum decays fast. Only the sixth read departs from the law: it completes the landmarks from
    its own candidates.

    Costs n kernel evaluations for the first read, ``n (s + 1)`` for a later one after s landmarks, and m for each
    candidate; state: the candidates' rows, and m numbers for each. If X has no more than ``10 m`` rows, one read
    suffices.

    Returns
    -------
    Landmarks
        Fewer than requested if the residuals of all other rows are zero to rounding: K has that rank.

    Raises
    ------
    ValueError
        If the kernel is not positive semi-definite, or all k(x, x) are 0.

    Notes
    -----
    Chen, Epperly, Tropp & Webber (2025), RPCholesky; Epperly, Tropp & Webber (2024), RejectionCholesky and its
    accelerated form. NOTE: the papers draw b rows with replacement; here a read draws distinct rows, by a race that
    does not depend on how rows are cut, and the repeats are drawn afterwards.
    """
    reject_indefinite(request.kernel, "rpcholesky")
    m = request.count
    chosen = Chosen(np.zeros((0, request.rows.n_columns)), np.zeros(0, np.int64), np.zeros((0, 0)))
    trace, turn = 0.0, 0
    (cost,) = rpcholesky_passes(request)
    while len(chosen.rows) < m and turn < cost.most_times:
        # Candidates by the residual diagonal, in one read: an exponential race, so that no second read is needed.
        drawn = draw_rows(request, cost, _weight(request, chosen), most_candidates(request), stream=f"landmarks-{turn}")
        if turn == 0:
            trace = drawn.diagonal_sum
            reject_zero(trace, f"all {drawn.count} values k(x, x) of {request.kernel}")
        turn += 1
        # All residuals are 0 to rounding, or together no more than that: the landmarks span K.
        if drawn.rows is None or drawn.weight_sum <= residual_rounding(request.precision) * trace:
            break
        chosen, every = _join(request, chosen, drawn, turn >= cost.most_times)
        if every:  # and none of the others has a residual
            break
    return Landmarks(chosen.rows, chosen.indices, trace)


def rpcholesky_passes(request: LandmarkRequest) -> tuple[PassCost]:
    """Declare the reads of :func:`rpcholesky`: one if all rows are candidates, else two typically and six at most."""
    m, candidates = request.count, most_candidates(request)
    whole = candidates == request.rows.n_rows
    # The second read compares all rows with the landmarks of the first, most of them where two reads are enough.
    compared = [1] if whole else [1, 3 * m // 4 + 1]
    cost = draw_pass(request, candidates, compared=compared).repeated(*((1, 1) if whole else (2, MOST_READS)))
    # With those accepted, and with the others of a block, which grows where few are accepted.
    joined = min(candidates, FOLLOWED * m) * (m + BLOCK[1])
    factors = 8 * candidates * (m + 4 * BLOCK[1] + 2 * request.rows.n_columns)
    return (
        replace(cost, evaluations=cost.evaluations + joined / cost.times, driver_bytes=cost.driver_bytes + factors),
    )


def most_candidates(request: LandmarkRequest) -> int:
    """Return the maximum number of candidates of a read: 10 m, fewer if rows are long or there are many landmarks."""
    n, m, d = request.rows.n_rows, request.count, request.rows.n_columns
    held = CANDIDATE_BYTES // (d * working_dtype(request.rows.dtype).itemsize + 8 * m)
    return min(n, max(min(CANDIDATES * m, held), 4 * -(-m // 3)))


def _weight(request: LandmarkRequest, chosen: Chosen) -> RowWeight:
    if not len(chosen.rows):
        return Diagonal(request.kernel, 1, request.shift)
    rows = chosen.rows.astype(request.dtype, copy=False)
    rounding = residual_rounding(request.precision)
    return Residual(request.kernel, rows, chosen.indices, chosen.T, rounding, request.shift)


def _join(request: LandmarkRequest, chosen: Chosen, drawn: BestRows, fill: bool) -> tuple[Chosen, bool]:
    """Return the landmarks with those accepted of the candidates, in float64, and whether all rows were candidates."""
    kernel, shift, run = request.kernel, request.shift, request.run
    rows, numbers = rows_of(drawn, request), drawn.indices

    def prepared(places: Integers) -> object:
        return prepare_landmarks(kernel, rows[places].astype(np.float64), numbers[places], shift)

    def block(at: Integers, others: Integers) -> Matrix:
        run.add_evaluations(len(at) * len(others))
        return cross_block(kernel, prepared(at), prepared(others))

    def features(start: int, stop: int) -> Matrix:
        if not len(chosen.rows):
            return np.zeros((stop - start, 0))
        run.add_evaluations((stop - start) * len(chosen.rows))
        return cross_block(kernel, prepared(np.arange(start, stop)), landmarks) @ chosen.T

    landmarks = prepare_landmarks(kernel, chosen.rows.astype(np.float64), chosen.indices, shift)
    diagonal = diagonal_of(kernel, prepared(np.arange(len(rows))))
    run.add_evaluations(len(rows))
    # The rest of the weights, of rows that were not drawn: nothing if all that have a weight were.
    every = len(rows) < most_candidates(request) or len(rows) == drawn.count
    unseen = 0.0 if every else max(0.0, drawn.weight_sum - float(drawn.weights.sum()))
    race, stream = Race(block, features, diagonal, drawn.weights, unseen), f"rejection-{len(chosen.rows)}"
    with one_blas_thread():  # many small products, which threads make no faster
        accepted = rejection_pivots(
            race,
            lambda start, stop: uniforms(request.seed, stream, start, stop, 2),
            request.count - len(chosen.rows),
            rounding=residual_rounding(FLOAT64),
            fill=fill,
        )
    joined = np.concatenate([chosen.rows.astype(rows.dtype, copy=False), rows[accepted]])
    indices = np.concatenate([chosen.indices, numbers[accepted]])
    if len(joined) == request.count or fill or every:
        return Chosen(joined, indices, np.zeros((0, 0))), every  # no later read needs a factor
    run.add_evaluations(len(joined) ** 2)
    T = landmark_transform(
        square_block(kernel, joined, indices, shift),
        truncation_for(request.precision),
        equilibrated=True,
        threads=request.threads,
    )
    return Chosen(joined, indices, T), every


@dataclass(frozen=True)
class Scorer:
    """A weighted sample S from which leverage scores are estimated: ``min(1, (k_ii - |k(x_i, S) T|^2) / ridge)``.

    Attributes
    ----------
    positions : ndarray of shape (s,); rows of the sample in memory
    T : ndarray of shape (s, s); ``T T' = (K_SS + ridge W^-2)^-1``
    ridge : float
    """

    positions: Integers
    T: Matrix
    ridge: float


@dataclass(frozen=True)
class Sample:
    """Rows in memory, in random order, and the kernel to compare them with."""

    rows: Matrix
    indices: Integers
    kernel: Kernel
    shift: Vector | None
    threads: int | None


def leverage(request: LandmarkRequest) -> Landmarks:
    """Draw rows by approximate ridge leverage scores, without replacement: two reads, (m + 1) n evaluations.

    The first read draws ``16 m`` rows uniformly, on which the recursion over halves runs in memory; the second scores
    all rows against the resulting weighted sample, and draws. In addition, each level costs some ``32 m^2``
    evaluations and ``m^3`` flops; state: ``16 m`` rows.

    Raises
    ------
    ValueError
        If the kernel is not positive semi-definite, or all k(x, x) are 0.

    Notes
    -----
    Musco & Musco (2017), RecursiveRLS-Nyström, with the constants of their experiments: k = m / (4 log m), oversampling
    log m. NOTE: their recursion starts from all rows, and every level evaluates half of them; here a sample of 16 m
    rows bounds the memory, and its weights are scaled by the sampled share. NOTE: if fewer than m rows have a score
    above rounding error, rows of the weighted sample complete the landmarks.
    """
    reject_indefinite(request.kernel, "leverage")
    m = request.count
    uniformly, by_score = leverage_passes(request)
    drawn = draw_rows(request, uniformly, Ones(), sampled_rows(request), stream="leverage-sample")
    rows = rows_of(drawn, request)
    sample = Sample(rows.astype(np.float64), drawn.indices, request.kernel, request.shift, request.threads)
    scorer, evaluations = score_by_halves(sample, m, drawn.count, request.seed)
    at = scorer.positions
    weight = Residual(
        request.kernel, rows[at].astype(request.dtype), drawn.indices[at], scorer.T, 0.0, request.shift, scorer.ridge
    )
    request.run.add_evaluations(evaluations)
    final = draw_rows(request, by_score, weight, m)
    reject_zero(final.diagonal_sum, f"all {final.count} values k(x, x) of {request.kernel}")
    chosen, indices = rows_of(final, request), final.indices
    more = at[~np.isin(drawn.indices[at], indices)][: m - len(indices)]  # empty if m rows have a score
    chosen, indices = np.concatenate([chosen, rows[more]]), np.concatenate([indices, drawn.indices[more]])
    return Landmarks(chosen, indices, final.diagonal_sum)


def sampled_rows(request: LandmarkRequest) -> int:
    """Return the rows of the uniform sample, which is held in memory."""
    return min(request.rows.n_rows, SAMPLE * request.count)


def scoring_rows(request: LandmarkRequest) -> int:
    """Return the rows of the sample that are planned to score others; on average m / 2 are kept at each level."""
    return min(sampled_rows(request), max(4 * request.count, MIN_SCORING))


def leverage_passes(request: LandmarkRequest) -> tuple[PassCost, PassCost]:
    """Declare the passes of :func:`leverage`."""
    m, size = request.count, sampled_rows(request)
    uniformly = draw_pass(request, size, name="leverage sample")
    by_score, halves = draw_pass(request, m, compared=(m,)), float(m * m)  # the scorer of all rows
    while size > m:  # each level scores its rows by about m of them
        halves += m * (m + size) + size
        size = -(-size // 2)
    return uniformly, replace(by_score, evaluations=by_score.evaluations + halves)


def score_by_halves(sample: Sample, m: int, n: int, seed: int) -> tuple[Scorer, int]:
    """Return the scorer of all n rows, computed from a sample of them, and the kernel evaluations spent.

    The sample is halved until about m rows remain, which get weight 1; each level then scores twice as many rows by
    those kept before, and keeps about m of them, each with its score as probability.
    """
    sizes = [len(sample.rows)]
    while sizes[-1] > m:
        sizes.append(-(-sizes[-1] // 2))
    oversampling = max(1.0, np.log(m))
    rank = max(1, int(np.ceil(m / (4 * oversampling))))
    positions, weights, evaluations = np.arange(sizes[-1]), np.ones(sizes[-1]), 0
    for level, size in enumerate(reversed(sizes[:-1])):
        scorer = _scorer(sample, positions, weights, rank, 1.0)
        scores = np.minimum(1.0, oversampling * _scores(sample, scorer, size))
        evaluations += len(positions) * (len(positions) + size) + size
        kept = np.flatnonzero(uniforms(seed, f"leverage-{level}", 0, size, 1)[:, 0] < scores)
        positions, weights = kept, 1 / np.sqrt(scores[kept])
        if not len(kept):  # all scores are near 0
            positions, weights = np.arange(min(m, size)), np.full(min(m, size), np.sqrt(size / min(m, size)))
    scorer = _scorer(sample, positions, weights, rank, n / len(sample.rows))
    return scorer, evaluations + len(positions) ** 2


def _scorer(sample: Sample, positions: Integers, weights: Vector, rank: int, share: float) -> Scorer:
    """Return the scorer of rows kept with ``weights``; each represents ``share`` rows."""
    weights = weights * np.sqrt(share)
    K_ss = square_block(sample.kernel, sample.rows[positions], sample.indices[positions], sample.shift)
    weighted = K_ss * weights * weights[:, None]
    trace = float(np.trace(weighted))
    largest = top_eigenpairs(weighted, min(rank, len(positions)), threads=sample.threads)[0]
    # ridge = (sum of all eigenvalues but the ``rank`` largest) / rank, for which the scores sum to at most 2 rank
    ridge = max((trace - float(largest.sum())) / rank, MIN_RIDGE * trace / len(positions))
    if ridge <= 0:  # all rows are zero, so any ridge will do
        ridge = 1.0
    # T = U diag(l)^-1/2 from K_SS + ridge W^-2 = U diag(l) U'
    np.fill_diagonal(K_ss, np.diagonal(K_ss) + ridge / weights**2)
    eigenvalues, vectors = top_eigenpairs(K_ss, threads=sample.threads)
    eigenvalues = np.maximum(eigenvalues, np.finfo(np.float64).eps * eigenvalues[0])
    return Scorer(positions, vectors.T / np.sqrt(eigenvalues), ridge)


def _scores(sample: Sample, scorer: Scorer, size: int) -> Vector:
    """Return ``(k_ii - |k(x_i, S) T|^2) / ridge`` of the first ``size`` rows, clipped at 0, a tile at a time."""
    kernel, at = sample.kernel, scorer.positions
    prepared = prepare_landmarks(kernel, sample.rows[at], sample.indices[at], sample.shift)
    d, scores = sample.rows.shape[1], np.zeros(size)
    step = tile_rows(kernel.prepared_bytes(d, 8) + len(at) * (kernel.entry_bytes(8) + 8))
    for i in range(0, size, step):
        stop = min(size, i + step)
        A = prepare_landmarks(kernel, sample.rows[i:stop], sample.indices[i:stop], sample.shift)
        B = cross_block(kernel, A, prepared) @ scorer.T
        scores[i:stop] = diagonal_of(kernel, A) - np.einsum("ij,ij->i", B, B)
    return np.maximum(scores, 0.0) / scorer.ridge


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
    _check_clustering()
    from dask_ml.cluster import KMeans  # heavy, and needed here only

    X = whole_rows(mapped_lazily(request.rows), working_dtype(request.rows.dtype))
    # The rounds (the logarithm of a cost) and the tolerance of dask-ml are absolute numbers: rows are divided by the
    # power of two that brings the largest value of the first chunk to between 4 and 8.
    exponent = int(np.frexp(np.abs(X.blocks[0].compute()).max(initial=0.0))[1]) - 3
    X = np.ldexp(X, -exponent)
    seed = int(integers(request.seed, "kmeans", 0, 1, 1, 2**31 - 1)[0, 0])
    clusters = KMeans(
        request.count,
        oversampling_factor=2 * request.count,
        init_max_iter=INIT_ROUNDS,
        max_iter=MAX_ITERATIONS,
        random_state=seed,
    )
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

    It holds the distances of all rows of a chunk to all candidates; k-means|| draws 2 m in each round.
    scikit-learn converts a tenth of float32 distances at a time to float64.
    """
    _check_clustering()
    check_any_order(request.rows, 'sampling="kmeans"')
    # Centres and distances beside one chunk: what dask-ml holds, since it does not say.
    rows, m, dtype = request.rows, request.count, working_dtype(request.rows.dtype)
    chunk_rows, candidates, itemsize = dense_chunk_rows(rows.X, dtype), 2 * m * INIT_ROUNDS, dtype.itemsize
    read, distances = chunk_rows * rows.n_columns * itemsize, chunk_rows * candidates * (itemsize + 1)
    return (
        PassCost(
            name="k-means",
            times=KMEANS_READS[0],
            most_times=KMEANS_READS[1],
            bytes_read=int(rows.n_rows * rows.origin.row_bytes),
            flops=float(rows.n_rows) * 3 * m,
            peak_bytes=peak_bytes(read, 0, distances, 0),
            driver_bytes=candidates * rows.n_columns * (itemsize + 8),
        ),
    )


def _check_clustering() -> None:
    """Reject k-means where dask-ml is of no use.

    Raises
    ------
    ImportError
        If dask-ml cannot be imported, or cannot work with the arrays that Dask makes.
    """
    try:
        if da.array_expr_enabled():
            raise ImportError("it does not support Dask's array expressions, and array.query-planning is on")
        import dask_ml.cluster  # noqa: F401
    except Exception as error:  # whatever an old release meets in new packages
        raise ImportError(
            f'sampling="kmeans" needs dask-ml, which cannot be used: {error}. All other samplings, and all other '
            'functions of bigpca, work without dask-ml. Use sampling="rpcholesky".'
        ) from error


def _reject(request: LandmarkRequest) -> None:
    if request.kernel.accepts_strings or not request.kernel.needs_rows:
        raise ValueError(
            f'sampling="kmeans" averages rows, but {request.kernel} does not compare vectors. '
            'Use sampling="rpcholesky" or "uniform".'
        )
    if request.rows.nan_policy == "omit":
        raise ValueError(
            'sampling="kmeans" cannot omit rows with missing values (nan_policy="omit"). '
            'Use sampling="rpcholesky" or "uniform", or repair the data.'
        )
