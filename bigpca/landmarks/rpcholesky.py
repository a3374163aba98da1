"""Randomly pivoted Cholesky in a few reads: each draws candidates by exact residuals and thins them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array
from bigpca.costs import Times
from bigpca.landmarks.base import LandmarkRequest, Landmarks, draw_pass, draw_rows, reject_indefinite, rows_of
from bigpca.landmarks.weighted import reject_zero
from bigpca.passes.accumulators.drawn_rows import BestRows
from bigpca.passes.accumulators.landmark_blocks import cross_block, prepare_landmarks, square_block
from bigpca.passes.accumulators.row_weights import Diagonal, Residual, RowWeight
from bigpca.passes.engine.jobs import PassPlan
from bigpca.seeds import uniforms
from bigpca.solvers.features import landmark_transform, residual_rounding, truncation_for
from bigpca.solvers.pivoting import accept_pivots

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]
OVERSAMPLING = 2  # candidates drawn for each landmark that a round needs
FLOAT64 = float(np.finfo(np.float64).eps)


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
    """Draw landmarks by randomly pivoted Cholesky, in ``rounds`` reads of X with n m evaluations in all.

    Each round computes the residuals ``d_i = k(x_i, x_i) - |k(x_i, S) T|^2`` of all rows, and draws twice as many
    candidates as it needs, with probability proportional to d and without replacement. A candidate is accepted with
    probability (its residual once those accepted before it have joined S) / d_i. Near-duplicates are therefore
    rejected, and the distribution is that of the sequential method as long as there are candidates. Only the last round
    adds rejected candidates to complete its share. If there are still too few although other rows have a residual, one
    more round follows (unless ``rounds=1``).

    Costs n m kernel evaluations (a third of m columns in the second of three rounds, two thirds in the third; 2 n m
    with an additional round) and about ``m^2`` more, ``n m^2`` flops; state: the candidates' rows, 4 m^2 numbers.

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
    Chen, Epperly, Tropp & Webber (2025), RPCholesky; Epperly, Tropp & Webber (2024), RejectionCholesky.
    NOTE: the papers draw with replacement and read all rows once per block; the relative trace error of three rounds is
    within a few percent of the sequential method's (tests/landmarks).
    """
    reject_indefinite(request.kernel, "rpcholesky")
    m = request.count
    rounds = max(1, min(request.rounds, m))
    chosen = Chosen(np.zeros((0, request.rows.n_columns)), np.zeros(0, np.int64), np.zeros((0, 0)))
    trace, turn = 0.0, 0
    (cost,) = rpcholesky_passes(request)
    while len(chosen.rows) < m and turn < cost.times.most:
        needed = m * min(turn + 1, rounds) // rounds - len(chosen.rows)
        count = min(most_candidates(request), OVERSAMPLING * needed)
        drawn = draw_rows(request, cost, _weight(request, chosen), count, stream=f"landmarks-{turn}")
        if turn == 0:
            trace = drawn.diagonal_sum
            reject_zero(trace, f"all {drawn.count} values k(x, x) of {request.kernel}")
        turn += 1
        if drawn.rows is None:
            break
        chosen, spent = _join(request, chosen, drawn, needed, turn >= rounds)
        request.run.add_evaluations(spent)
    return Landmarks(chosen.rows, chosen.indices, trace)


def rpcholesky_passes(request: LandmarkRequest) -> tuple[PassPlan]:
    """Declare the rounds of :func:`rpcholesky`; one more if they accepted too few."""
    m, rounds = request.count, max(1, min(request.rounds, request.count))
    times = Times(rounds, rounds + (rounds > 1))
    compared = [m * turn // rounds + 1 for turn in range(rounds)]  # and with itself
    cost = draw_pass(request, most_candidates(request), times=times, compared=compared)
    drawn = min(request.rows.n_rows, OVERSAMPLING * -(-m // rounds))  # candidates, compared in memory
    joined = sum(drawn * (drawn + m * turn // rounds) + (m * turn // rounds) ** 2 for turn in range(rounds))
    return (replace(cost, evaluations=cost.evaluations + joined / rounds),)


def most_candidates(request: LandmarkRequest) -> int:
    """Return the maximum number of candidates of a round: twice what it and the shortfall of earlier rounds need."""
    m, rounds = request.count, max(1, min(request.rounds, request.count))
    return min(request.rows.n_rows, OVERSAMPLING * m, max(2 * OVERSAMPLING * -(-m // rounds), m))


def _weight(request: LandmarkRequest, chosen: Chosen) -> RowWeight:
    if not len(chosen.rows):
        return Diagonal(request.kernel, 1, request.shift)
    rows = chosen.rows.astype(request.dtype, copy=False)
    rounding = residual_rounding(request.precision)
    return Residual(request.kernel, rows, chosen.indices, chosen.T, rounding, request.shift)


def _join(request: LandmarkRequest, chosen: Chosen, drawn: BestRows, needed: int, fill: bool) -> tuple[Chosen, int]:
    """Thin the candidates and add the accepted ones, in float64; return the landmarks and the evaluations spent."""
    kernel, shift = request.kernel, request.shift
    rows = rows_of(drawn, request)
    K_bb = square_block(kernel, rows, drawn.indices, shift)
    B = _features(request, chosen, drawn, rows)
    draws = uniforms(request.seed, f"rejection-{len(chosen.rows)}", 0, len(rows) + needed, 1)[:, 0]
    rounding = residual_rounding(FLOAT64)
    accepted = accept_pivots(K_bb, B, drawn.weights, draws, needed, rounding=rounding, fill=fill)
    joined = np.concatenate([chosen.rows.astype(rows.dtype, copy=False), rows[accepted]])
    indices = np.concatenate([chosen.indices, drawn.indices[accepted]])
    spent = len(rows) * (len(rows) + len(chosen.rows))
    if len(joined) == request.count:
        return Chosen(joined, indices, np.zeros((0, 0))), spent  # complete: no later round needs a factor
    T = landmark_transform(
        square_block(kernel, joined, indices, shift), truncation_for(request.precision), equilibrated=True,
        threads=request.threads,
    )  # fmt: skip
    return Chosen(joined, indices, T), spent + len(joined) ** 2


def _features(request: LandmarkRequest, chosen: Chosen, drawn: BestRows, rows: Array) -> Matrix:
    if not len(chosen.rows):
        return np.zeros((len(rows), 0))
    kernel, shift = request.kernel, request.shift
    landmarks = prepare_landmarks(kernel, chosen.rows.astype(np.float64), chosen.indices, shift)
    candidates = prepare_landmarks(kernel, rows.astype(np.float64), drawn.indices, shift)
    product: Matrix = cross_block(kernel, candidates, landmarks) @ chosen.T
    return product
