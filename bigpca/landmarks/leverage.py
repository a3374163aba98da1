"""Landmarks drawn by ridge leverage scores, estimated by recursion on a uniform sample held in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigpca.kernels.base import Kernel
from bigpca.landmarks.base import LandmarkRequest, Landmarks, draw_pass, draw_rows, reject_indefinite, rows_of
from bigpca.landmarks.weighted import reject_zero
from bigpca.passes.accumulators.landmark_blocks import (
    cross_block,
    diagonal_of,
    prepare_landmarks,
    square_block,
    tile_rows,
)
from bigpca.passes.accumulators.row_weights import Ones, Residual
from bigpca.passes.engine.jobs import PassPlan
from bigpca.seeds import uniforms
from bigpca.solvers.eigh import top_eigenpairs

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]
SAMPLE = 16  # rows in memory per landmark
MIN_SCORING = 256  # rows that may all be kept, if there are few landmarks
MIN_RIDGE = 1e-10  # relative to the mean of the weighted diagonal


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

    rows: NDArray[np.float64]
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


def leverage_passes(request: LandmarkRequest) -> tuple[PassPlan, PassPlan]:
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
    """Return the scorer of rows kept with ``weights``, each of which represents ``share`` rows."""
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
