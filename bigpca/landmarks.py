"""Landmarks of Nyström approximations: what a fit asks for and gets, and the samplings that choose them.

A fit makes a ``LandmarkRequest`` from its rows, with their view and maps, and declares ``landmark_passes``;
``select_landmarks`` then checks the sampling and calls its function, which folds ``BestRows`` with a ``RowWeight`` and
returns ``Landmarks`` in the dtype of the rows.

First the pass by which samplings draw rows; then landmarks that the caller chose; "uniform", "diagonal" and
"column-norm", whose weights are known from the rows alone or from one sweep; "rpcholesky", randomly pivoted Cholesky in
one read or a few; "kmeans", cluster centres, by dask-ml; and the table of all.

Add a sampling: a function and its passes, one row of ``SAMPLINGS``, one row in ``tests/landmarks``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import dask
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import bigpca.dask_array as da
from bigpca import csr
from bigpca.arrays import Array, DType, Integers, Matrix, Vector, unmasked, working_dtype
from bigpca.blas import one_blas_thread
from bigpca.data.checks import row_width
from bigpca.data.containers import table_rows
from bigpca.data.dask_arrays import dense_chunk_rows, whole_rows
from bigpca.data.label_files import whole
from bigpca.data.sparse import as_csr, is_sparse
from bigpca.engine.driver import get_watched
from bigpca.engine.local import current_client
from bigpca.engine.planning import DOUBLE, NO_ROWS, PassCost
from bigpca.engine.run import Run
from bigpca.kernels.base import Kernel
from bigpca.operators.kernel import squares
from bigpca.passes.accumulators.all_pairs import KernelProduct, reject_underflow
from bigpca.passes.accumulators.kept_rows import RowsAt
from bigpca.passes.accumulators.landmark_moments import (
    TILE_BYTES,
    compared_bytes,
    cross_block,
    diagonal_of,
    prepare_landmarks,
    square_block,
    tile_rows,
)
from bigpca.passes.accumulators.row_weights import BestRows, Diagonal, GivenWeight, Ones, Residual, RowWeight
from bigpca.passes.fold import Declared, Folded, Read
from bigpca.passes.graphs import paths_in
from bigpca.passes.prices import priced, read_cost
from bigpca.passes.project import mapped_lazily
from bigpca.passes.reading.blocks import product_dtype
from bigpca.passes.reading.row_maps import map_run
from bigpca.passes.rows import Rows, check_any_order, reject_weights
from bigpca.passes.sweeps import Sweep
from bigpca.seeds import integers, uniforms
from bigpca.solvers.landmarks import (
    BLOCK,
    Race,
    landmark_transform,
    rejection_pivots,
    residual_rounding,
    spread_share,
    truncation_for,
)

STREAM = "landmarks"
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
class LandmarkRequest:
    """A request for landmarks.

    Attributes
    ----------
    rows : Rows
    kernel : Kernel
        Resolved, so that nothing depends on d any more.
    count : int
        m, at most n.
    seed : int
    shift : ndarray of shape (d,) or None
        Subtracted by translation-invariant kernels; near the mean of the rows.
    run : Run
    threads : int or None
        BLAS threads of the m x m solves.
    fewer : bool
        Whether all rows that are not left out will do where they are fewer than m, which was not asked for.
    """

    rows: Rows
    kernel: Kernel
    count: int
    seed: int = 0
    shift: Vector | None = None
    run: Run = field(default_factory=Run)
    threads: int | None = None
    fewer: bool = False

    @property
    def dtype(self) -> DType:
        """The precision of kernel evaluations for all rows; chosen by the cost of all reads, so the same in each."""
        n, d = self.rows.n_rows, self.rows.n_columns
        return product_dtype(self.rows.dtype, n * self.count * (self.kernel.flops_per_entry(d) + 2.0 * self.count))

    @property
    def precision(self) -> float:
        """eps of :attr:`dtype`."""
        return float(np.finfo(self.dtype).eps)


@dataclass(frozen=True)
class Landmarks:
    """The chosen rows: fewer than requested if no other row has any weight.

    Attributes
    ----------
    rows : ndarray of shape (m, d), in the working dtype of X
    indices : ndarray of shape (m,), int64, or None
        Their row numbers, in the order in which they were chosen; None for cluster centres, which are not rows.
    trace : float or None
        ``sum_i k(x_i, x_i)`` over all rows, if it was computed.
    """

    rows: Array
    indices: Integers | None
    trace: float | None = None


def drawing(
    request: LandmarkRequest, count: int, *, name: str = STREAM, compared: Sequence[int] = ()
) -> Read[Folded[BestRows]]:
    """Declare draws of up to ``count`` rows, each compared with so many in the first draw, the second and so on."""
    rows, m, d = request.rows, request.count, request.rows.n_columns
    template = BestRows(d, count, Ones(), request.seed, name, request.dtype.itemsize)
    n, draws, itemsize = float(rows.n_rows), max(1, len(compared)), request.dtype.itemsize
    form, working = priced(rows, 1, request.dtype).form, 0
    tile = tile_rows(request.kernel.prepared_bytes(d, itemsize))
    # A row has kernel values with the landmarks s so far; k(x, S) T, with T (s, s), is its part in their span.
    each = sum(compared) / draws * request.kernel.entry_flops(form) + 2.0 * m * sum(compared) / draws
    read = Read.into(rows, name, template, work=n * each, dtype=request.dtype)
    cost = read.cost
    # Rows are compared where kernels of many rows are computed, also if they have to be transferred.
    solver, own = (request.kernel.place(one) if compared else one for one in rows.device)
    device = solver if max(compared, default=0) > 1 else own
    if max(compared, default=0) > 1:
        landmarks, T = np.broadcast_to(np.float32(0), (m, d)), np.broadcast_to(0.0, (m, m))
        weight = Residual(request.kernel, landmarks, np.zeros(m, np.int64), T, 0.0)
        tile = min(cost.block_rows, weight.tile_rows(d, itemsize, device))
        working = weight.working_bytes(d, itemsize) + 2 * m * d * itemsize  # and the landmarks, once more as they join
        working += 2 * TILE_BYTES + csr.product_bytes(form, m) if form.sparse else 0  # rows and products of a tile
    held = cost.device_bytes + 2 * cost.block_rows * d * itemsize
    held += compared_bytes(tile, d, itemsize, max(compared)) if compared else 0
    return read.costing(
        device=device,
        there=own.driven,
        device_bytes=device.held(0, held)[1],
        peak_bytes=cost.peak_bytes + working,
        evaluations=n * sum(compared) / draws,
        flops=n * each,
        shared_by=-(-cost.block_rows // tile),
    )


def draw_rows(
    request: LandmarkRequest, read: Read[Folded[BestRows]], weight: RowWeight, *, stream: str = STREAM
) -> BestRows:
    """Draw rows with probability proportional to ``weight``, without replacement, in one read.

    Parameters
    ----------
    read : Read
        From :func:`drawing`.
    stream : str
        Names the random numbers; the same stream and proportional weights draw the same rows.

    Raises
    ------
    ValueError
        If a weight is negative or not finite (names its row), or missing values leave fewer rows than landmarks.
    """
    template = replace(cast("BestRows", read.states["state"]), weight=weight, stream=stream)
    drawn = read.holding(template)(request.run, shift=np.zeros(request.rows.n_columns)).state  # one pass over X
    request.run.add_evaluations(drawn.evaluations)
    if drawn.count < request.count and not request.fewer:
        raise ValueError(
            f"{request.count} landmarks were requested, but only {drawn.count} of {request.rows.n_rows} rows are not "
            "left out (for missing values, or no label). Request fewer, or repair the data."
        )
    return drawn


def rows_of(drawn: BestRows, request: LandmarkRequest) -> Array:
    """Return the drawn rows (m, d) in the working dtype of X, which represents them exactly."""
    if drawn.rows is None:
        return np.zeros((0, request.rows.n_columns), working_dtype(request.rows.dtype))
    return drawn.rows.astype(working_dtype(request.rows.dtype), copy=False)


def landmark_values(landmarks: Any) -> Array:
    """Return the caller's landmarks as an array: row numbers (m,) or rows (m, d); masked entries become NaN.

    Dimensions after the first are flattened, like those of X; sparse rows are made dense, as landmarks are held.

    Raises
    ------
    TypeError, ValueError
        For containers that cannot be read, for row numbers that are not integers, and for other dimensions.
    """
    if is_sparse(landmarks):
        landmarks = as_csr(landmarks).toarray()
    landmarks = table_rows(whole(landmarks, "sampling", "landmark", "Row numbers (m,) or rows (m, d)"), "sampling")
    values = unmasked(landmarks)
    if values.dtype.kind not in "iuf" or (values.ndim == 1 and values.dtype.kind == "f"):
        raise TypeError(
            f"sampling has dtype {values.dtype} and shape {values.shape}; row numbers, integers (m,), or rows, numbers "
            "(m, d), were expected. Convert it."
        )
    if not values.ndim:
        raise ValueError("sampling has no dimension; (m,) for row numbers or (m, d) for rows was expected. Reshape it.")
    return values.reshape(len(values), row_width(values.shape)) if values.ndim > 2 else values


def given(landmarks: Array, request: LandmarkRequest) -> Landmarks:
    """Return the rows with given numbers (m,), read once and in the given order, or given rows (m, d), mapped as those
    of X are.

    Raises
    ------
    ValueError
        If there are not m of them; if a row number is out of range or repeated; if rows have a different number of
        columns or are not finite.
    """
    if len(landmarks) != request.count:
        raise ValueError(
            f"{len(landmarks)} landmarks were given, but n_landmarks = {request.count}. Give "
            f"n_landmarks={len(landmarks)}."
        )
    return _given_rows(landmarks, request) if landmarks.ndim == 2 else _given_numbers(landmarks, request)


def _given_rows(rows: Array, request: LandmarkRequest) -> Landmarks:
    d = request.rows.n_columns
    if rows.shape[1] != d:
        raise ValueError(
            f"the given landmarks have {rows.shape[1]} columns, but X has {d}. Give rows with the columns of X."
        )
    if not np.isfinite(rows).all():
        i, j = np.argwhere(~np.isfinite(rows))[0]
        raise ValueError(
            f"landmark {i} has {rows[i, j]} in column {j}, which is not finite. Repair it, or give another row."
        )
    converted = rows.astype(working_dtype(request.rows.dtype))
    return Landmarks(map_run(request.rows.steps, converted, 0, "the given landmarks"), None)


def _given_numbers(numbers: Array, request: LandmarkRequest) -> Landmarks:
    n = request.rows.n_rows
    outside = np.flatnonzero((numbers < 0) | (numbers >= n))
    if len(outside):
        raise ValueError(
            f"landmark {outside[0]} is row {numbers[outside[0]]}, but X has rows 0 to {n - 1}. Correct it."
        )
    values, counts = np.unique(numbers, return_counts=True)
    if (counts > 1).any():
        twice = values[counts > 1][0]
        raise ValueError(f"row {twice} is given as a landmark more than once. Remove the duplicates.")
    wanted, d = numbers.astype(np.int64), request.rows.n_columns
    (read,) = given_passes(numbers, request)
    template = RowsAt(d, np.sort(wanted), read.cost.dtype.itemsize)
    found = read.holding(template)(request.run, shift=np.zeros(d)).state  # one pass over X
    missing = np.setdiff1d(wanted, found.indices)
    if len(wanted) == request.rows.n_present:  # all rows were wanted: omitted ones are not landmarks
        wanted, missing = wanted[np.isin(wanted, found.indices)], missing[:0]
    if len(missing) or found.rows is None:
        raise ValueError(
            f"row {missing[0]} was given as a landmark, but it is left out (for missing values, weight 0 or no label). "
            "Choose another, or repair the data."
        )
    # The read finds rows in ascending order; landmarks are in the order that was given.
    return Landmarks(found.rows[np.searchsorted(found.indices, wanted)], wanted)


def given_passes(landmarks: Array, request: LandmarkRequest) -> tuple[Read[Folded[RowsAt]], ...]:
    """Declare the pass of :func:`given`; none if rows were given.

    Raises
    ------
    ValueError
        For given rows beside covariates, whose effect cannot be taken out of them.
    """
    if landmarks.ndim != 1 and request.rows.origin.widths:
        raise ValueError(
            f"sampling has {len(landmarks)} rows, but not their covariates, whose effect is taken out of the rows of "
            "X. Give the numbers of rows of X."
        )
    if landmarks.ndim != 1:
        return ()
    rows, dtype = request.rows, working_dtype(request.rows.dtype)
    template = RowsAt(rows.n_columns, np.broadcast_to(np.int64(0), (len(landmarks),)), dtype.itemsize)
    return (Read.into(rows, "landmarks", template, dtype=dtype),)


def uniform(request: LandmarkRequest) -> Landmarks:
    """Draw every row with the same probability, without replacement, in one read without kernel evaluations."""
    return _landmarks(draw_rows(request, *uniform_passes(request), Ones()), request)


def uniform_passes(request: LandmarkRequest) -> tuple[Read[Folded[BestRows]]]:
    """Declare the pass of :func:`uniform`."""
    return (drawing(request, request.count),)


def diagonal(request: LandmarkRequest) -> Landmarks:
    """Draw rows with ``p_i = k(x_i, x_i)^2 / sum_j k(x_j, x_j)^2``, without replacement: one read, n evaluations.

    For RBF, Laplacian, cosine and normalised kernels, whose diagonal is constant, this is uniform sampling, and draws
    the same rows for the same seed. For polynomial kernels it is far better.

    Raises
    ------
    ValueError
        If all k(x, x) are 0.

    Notes
    -----
    Tutorial, eq. 64. NOTE: its denominator is printed as another sum, with which the p_i do not add up to 1.
    """
    drawn = draw_rows(request, *diagonal_passes(request), Diagonal(request.kernel, 2, request.shift))
    reject_underflow(request.kernel, drawn.weight_sum, what="the sum of k(x, x)^2", drawn=True)
    return _landmarks(drawn, request, trace=drawn.diagonal_sum)


def diagonal_passes(request: LandmarkRequest) -> tuple[Read[Folded[BestRows]]]:
    """Declare the pass of :func:`diagonal`."""
    return (drawing(request, request.count, compared=(1,)),)


def column_norm(request: LandmarkRequest) -> Landmarks:
    """Draw rows with ``p_j ~ sum_i k(x_i, x_j)^2``, without replacement.

    One sweep over the kernel matrix, and one read. The sweep costs n^2 / 2 kernel evaluations, because K is symmetric.
    Estimating the sums from a few columns is not reliable.

    Raises
    ------
    ValueError
        If all entries of K are 0, or rows may be left out.

    Notes
    -----
    Tutorial, eq. 65.
    """
    sweep, draw = column_norm_passes(request)
    shift = np.zeros(request.rows.n_columns) if request.shift is None else request.shift
    weights = sweep(request.run, shift=shift).squares
    drawn = draw_rows(request, draw, GivenWeight(weights))
    reject_underflow(request.kernel, drawn.weight_sum, what="the sum of k(x, y)^2", drawn=True)
    return _landmarks(drawn, request)


def column_norm_passes(request: LandmarkRequest) -> tuple[Sweep[KernelProduct], Read[Folded[BestRows]]]:
    """Declare the sweep and the pass of :func:`column_norm`."""
    _reject_absent(request.rows, "column-norm")
    return squares(request.rows, request.kernel), drawing(request, request.count)


def _landmarks(drawn: BestRows, request: LandmarkRequest, trace: float | None = None) -> Landmarks:
    return Landmarks(rows_of(drawn, request), drawn.indices, trace)


@dataclass(frozen=True)
class Chosen:
    """The landmarks so far, and the factor of their kernel matrix.

    Attributes
    ----------
    rows : ndarray of shape (s, d)
    indices : ndarray of shape (s,)
    T : ndarray of shape (s, r)
    share, amplification : float
        Of T, for :func:`bigpca.solvers.landmarks.residual_rounding`.
    """

    rows: Array
    indices: Integers
    T: Matrix
    share: float = 1.0
    amplification: float = 1.0

    def rounding(self, precision: float) -> float:
        """Return the share of k(x, x) below which a residual of rows of this precision is rounding."""
        return residual_rounding(precision, self.share, self.amplification)


def rpcholesky(request: LandmarkRequest) -> Landmarks:
    """Draw landmarks by randomly pivoted Cholesky, in as many reads of X as its law needs: often one or two, at most 6.

    The law is the sequential one: given the landmarks S so far, the next is row i with probability proportional to
    ``d_i = k(x_i, x_i) - |k(x_i, S) T|^2``, ``T T' = k(S, S)^-1``. Each read computes these residuals of all rows for
    the landmarks of earlier reads, and draws up to ``10 m`` distinct candidates by them, in the order in which draws
    with replacement would first meet them. In memory the draws with replacement are completed with repeats, and each is
    accepted with probability (its residual now) / (its residual in the read), which is the law exactly
    (:func:`bigpca.solvers.landmarks.rejection_pivots`). X is read again where candidates run out before there are m
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
    if not request.kernel.positive_semidefinite:
        raise ValueError(
            f'{request.kernel} is not positive semi-definite, but sampling="rpcholesky" requires a kernel that is: its '
            'residuals of k(x, x), which may be negative here, are used as probabilities. Use sampling="uniform".'
        )
    m = request.count
    chosen = Chosen(np.zeros((0, request.rows.n_columns)), np.zeros(0, np.int64), np.zeros((0, 0)))
    trace, turn = 0.0, 0
    (read,) = rpcholesky_passes(request)
    most = read.cost.most_times
    while len(chosen.rows) < m and turn < most:
        # Candidates by the residual diagonal, in one read: an exponential race, so that no second read is needed.
        drawn = draw_rows(request, read, _weight(request, chosen), stream=f"landmarks-{turn}")
        if turn == 0:
            trace = drawn.diagonal_sum
            reject_underflow(request.kernel, trace, drawn=True)
        turn += 1
        # All residuals are 0 to rounding, or together no more than that: the landmarks span K.
        if drawn.rows is None or drawn.weight_sum <= chosen.rounding(request.precision) * trace:
            break
        chosen, every = _join(request, chosen, drawn, turn >= most)
        if every:  # and none of the others has a residual
            break
    return Landmarks(chosen.rows, chosen.indices, trace)


def rpcholesky_passes(request: LandmarkRequest) -> tuple[Read[Folded[BestRows]]]:
    """Declare the reads of :func:`rpcholesky`: one if all rows are candidates, else two typically and six at most."""
    m, candidates = request.count, most_candidates(request)
    whole = candidates == request.rows.n_rows
    # The second read compares all rows with the landmarks of the first, most of them where two reads are enough.
    compared = [1] if whole else [1, 3 * m // 4 + 1]
    read = drawing(request, candidates, compared=compared).repeated(*((1, 1) if whole else (2, MOST_READS)))
    cost = read.cost
    # With those accepted, and with the others of a block, which grows where few are accepted.
    joined = min(candidates, FOLLOWED * m) * (m + BLOCK[1])
    factors = 8 * candidates * (m + 4 * BLOCK[1] + 2 * request.rows.n_columns)
    more = joined / cost.times
    return (read.costing(evaluations=cost.evaluations + more, driver_bytes=cost.driver_bytes + factors),)


def most_candidates(request: LandmarkRequest) -> int:
    """Return the maximum number of candidates of a read: 10 m, fewer if rows are long or there are many landmarks."""
    n, m, d = request.rows.n_rows, request.count, request.rows.n_columns
    held = CANDIDATE_BYTES // (d * working_dtype(request.rows.dtype).itemsize + 8 * m)
    return min(n, max(min(CANDIDATES * m, held), 4 * -(-m // 3)))


def _weight(request: LandmarkRequest, chosen: Chosen) -> RowWeight:
    if not len(chosen.rows):
        return Diagonal(request.kernel, 1, request.shift)
    rows = chosen.rows.astype(request.dtype, copy=False)
    rounding = chosen.rounding(request.precision)
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
            rounding=chosen.rounding(FLOAT64),
            fill=fill,
        )
    joined = np.concatenate([chosen.rows.astype(rows.dtype, copy=False), rows[accepted]])
    indices = np.concatenate([chosen.indices, numbers[accepted]])
    if len(joined) == request.count or fill or every:
        return Chosen(joined, indices, np.zeros((0, 0))), every  # no later read needs a factor
    run.add_evaluations(len(joined) ** 2)
    K, precision = square_block(kernel, joined, indices, shift), request.precision
    T = landmark_transform(
        K, truncation_for(precision), precision=precision, equilibrated=True, threads=request.threads
    )
    lengths = np.sqrt(np.maximum(np.diagonal(K), 0.0))
    amplification = float(np.linalg.norm(lengths[:, None] * T, axis=0).max(initial=1.0))
    return Chosen(joined, indices, T, spread_share(K), amplification), every


def kmeans(request: LandmarkRequest) -> Landmarks:
    """Return the centres of m clusters: ``dask_ml.cluster.KMeans`` on X, started by k-means||, at most 20 iterations.

    The centres minimise a bound on the Nyström approximation's error for distance kernels (Zhang, Tsang & Kwok 2008).
    Two reads of X per iteration and up to fifteen for start and end, by far the most of all samplings; no kernel
    evaluations. The centres depend on the chunks of X as well as on the seed, since dask-ml draws its random numbers
    chunk by chunk; chunks are cut so that distances to the candidates of k-means||, 10 m for each row, are 64 MiB.
    Equal centres (if X has fewer than m distinct rows) are returned once.

    Raises
    ------
    ValueError
        If rows are strings, or those of a precomputed matrix, which have no mean; if rows may be left out; if X has
        missing values.

    Notes
    -----
    NOTE: dask-ml draws ``oversampling_factor`` candidates per round, 2 by default; Bahmani et al. (2012) draw 2 m in
    each of 5 rounds, as here.
    """
    (cost,) = kmeans_passes(request)
    from dask_ml.cluster import KMeans  # heavy, and needed here only

    X = whole_rows(mapped_lazily(request.rows), working_dtype(request.rows.dtype), 2 * request.count * INIT_ROUNDS)
    seed = int(integers(request.seed, "kmeans", 0, 1, 1, 2**31 - 1)[0, 0])
    clusters = KMeans(
        request.count,
        oversampling_factor=2 * request.count,
        init_max_iter=INIT_ROUNDS,
        max_iter=MAX_ITERATIONS,
        random_state=seed,
    )
    local = request.run.scheduler == "local"
    client, chosen = None if local else current_client(), "threads" if local else dask.config.get("scheduler", None)
    if client is not None:
        chosen = partial(get_watched, paths=paths_in(X), client=client)
    # dask-ml computes outside the engine: with one BLAS thread, like a fold, so that chunks that fold rows themselves
    # do not wait for this solve; and scikit-learn sums in as many parts as it has threads.
    with (
        one_blas_thread(),
        threadpool_limits(1, "openmp"),
        dask.config.set(scheduler=chosen),
        warnings.catch_warnings(),
    ):
        # With fewer distinct rows than clusters, 0 / 0 draws no further candidate; equal centres are returned once.
        for expected in (RuntimeWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", expected)
        # The rounds (the logarithm of a cost) and the tolerance of dask-ml are absolute numbers: rows are divided by
        # the power of two that brings the largest value of the first chunk to between 4 and 8.
        exponent = int(np.frexp(np.abs(X.blocks[0].compute()).max(initial=0.0))[1]) - 3
        X = np.ldexp(X, -exponent)
        clusters.fit(X)  # 2 n_iter_ + 15 passes over X at most
    centres = np.unique(np.ldexp(np.asarray(clusters.cluster_centers_, X.dtype), exponent), axis=0)
    request.run.read_beside(cost, 2 * clusters.n_iter_ + START_READS)
    return Landmarks(centres, None)


def kmeans_passes(request: LandmarkRequest) -> tuple[PassCost]:
    """Declare the reads of :func:`kmeans`, which dask-ml executes.

    It holds the distances of all rows of a chunk to all candidates; k-means|| draws 2 m in each round.
    scikit-learn converts a tenth of float32 distances at a time to float64.
    """
    _reject(request)
    _check_clustering()
    check_any_order(request.rows, 'sampling="kmeans"')
    # Centres and distances beside one chunk: what dask-ml holds, since it does not say.
    rows, m, dtype = request.rows, request.count, working_dtype(request.rows.dtype)
    candidates, itemsize = 2 * m * INIT_ROUNDS, dtype.itemsize
    chunk_rows = dense_chunk_rows(rows.X, dtype, candidates)
    # A stored chunk is held as it is while its parts, made dense, are compared.
    stored = math.ceil(max(rows.X.chunks[0], default=0) * rows.origin.row_bytes)
    read = stored + chunk_rows * rows.n_columns * itemsize
    distances = chunk_rows * candidates * (itemsize + 1)
    work = float(rows.n_rows) * 3 * m
    held = candidates * rows.n_columns * (itemsize + 8)
    cost = read_cost(rows, "k-means", NO_ROWS, (), DOUBLE, flops=work, read=read, scratch=distances, driver_bytes=held)
    return (cost.repeated(*KMEANS_READS),)


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
    _reject_absent(request.rows, "kmeans")


def _reject_absent(rows: Rows, sampling: str) -> None:
    if rows.nan_policy == "omit" or rows.n_present < rows.n_rows or rows.counted.coming is not None:
        raise ValueError(
            f'sampling="{sampling}" looks at all rows: it cannot omit rows with missing values (nan_policy="omit") or '
            'without a label (missing_labels="drop"). Use sampling="rpcholesky" or "uniform", or repair the data.'
        )


@dataclass(frozen=True)
class Sampling:
    """A method that chooses landmarks.

    Attributes
    ----------
    choose : callable
    passes : callable
        Declares what ``choose`` reads.
    """

    choose: Callable[[LandmarkRequest], Landmarks]
    passes: Callable[[LandmarkRequest], tuple[Declared, ...]]


SAMPLINGS = {
    "rpcholesky": Sampling(rpcholesky, rpcholesky_passes),
    "uniform": Sampling(uniform, uniform_passes),
    "diagonal": Sampling(diagonal, diagonal_passes),
    "column-norm": Sampling(column_norm, column_norm_passes),
    "kmeans": Sampling(kmeans, kmeans_passes),
}


def landmark_passes(sampling: str | Array, request: LandmarkRequest) -> tuple[Declared, ...]:
    """Declare what :func:`select_landmarks` reads; rejects weighted rows unless the landmarks are given."""
    if not isinstance(sampling, str):
        return given_passes(landmark_values(sampling), request)
    reject_weights(request.rows, [f"sampling={sampling!r}"], "it draws landmarks with every row counted once")
    return SAMPLINGS[sampling].passes(request)


def select_landmarks(sampling: str | Array, request: LandmarkRequest) -> Landmarks:
    """Return m landmarks of X, chosen by the method ``sampling``.

    =============== =========================================== ====== =================== ============
    sampling        which                                       reads  kernel evaluations  kernels
    =============== =========================================== ====== =================== ============
    "rpcholesky"    by the residual of k(x, x)                  1 to 6 n m                 PSD
    "uniform"       with equal probability                      1      0                   all
    "diagonal"      by k(x, x)^2; uniform for RBF, Laplacian,   1      n                   all
                    cosine and normalised kernels
    "column-norm"   by the sums of squares of K's columns       2      n^2                 all
    "kmeans"        the centres of m clusters, not rows         many   0                   real vectors
    ndarray (m,)    the rows with these numbers                 1      0                   all
    ndarray (m, d)  these rows                                  0      0                   all
    =============== =========================================== ====== =================== ============

    Except for k-means, the choice depends only on the seed and the rows, not on chunks, workers or threads.

    Parameters
    ----------
    sampling : str or ndarray
    request : LandmarkRequest

    Raises
    ------
    ValueError
        For an unknown sampling, more landmarks than rows, or input that the sampling rejects.
    TypeError
        For given landmarks that are not numbers.
    """
    n, m = request.rows.n_rows, request.count
    if m < 1:
        raise ValueError(f"n_landmarks = {m}; at least 1 was expected. Give for example {min(n, 1000)}.")
    if not isinstance(sampling, str):
        return given(landmark_values(sampling), request)
    if m > n:
        raise ValueError(f"{m} landmarks were requested, but X has only {n} rows. Give n_landmarks={n} or fewer.")
    if sampling not in SAMPLINGS:
        raise ValueError(
            f"sampling = {sampling!r} is unknown. Use one of {', '.join(map(repr, SAMPLINGS))}, an array of row "
            "numbers, or an array of rows."
        )
    return SAMPLINGS[sampling].choose(request)
