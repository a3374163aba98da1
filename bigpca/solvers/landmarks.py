"""Landmarks: the factor T of K_mm that makes ``B = k(X, L) T`` a feature map, and pivots as landmarks.

Pivots are those of randomly pivoted Cholesky: by rejection from rows drawn before, and one after the other from a few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from bigpca.arrays import Integers, Matrix, Vector
from bigpca.solvers.eigh import top_eigenpairs

FLOAT64 = float(np.finfo(np.float64).eps)
OFFSET = 1000.0  # |mean|^2 of images over their variance, from which limits are relative to the variance
BLOCK = 32, 128  # proposals that are decided together: a quarter of those wanted, within these limits
FEW = 4  # blocks double where less than one proposal in so many is accepted: each costs the same dozen small products


def truncation_for(precision: float) -> float:
    """Return the share of the largest eigenvalue below which K_mm's are dropped, for blocks of that eps.

    The error of a block is multiplied by up to ``truncation^-1/2``: 1e5 in float64, 316 in float32.

    >>> truncation_for(2.0**-52), truncation_for(2.0**-23)
    (1e-10, 1e-05)
    """
    return 1e-10 if precision < 1e-10 else 1e-5


def residual_rounding(precision: float, share: float = 1.0, amplification: float = 1.0) -> float:
    """Return the share of k(x, x) below which a residual ``k(x, x) - |B(x)|^2`` is rounding, and taken as 0.

    Of images far from the origin (:func:`spread_share` below 1), what a factor of this amplification leaves.

    >>> f"{residual_rounding(2.0**-52):.1e}, {residual_rounding(2.0**-23):.1e}"
    '3.6e-10, 6.0e-04'
    """
    return float(16 * precision * max(share / truncation_for(precision) ** 0.5, amplification))


def spread_share(K: Matrix) -> float:
    """Return :data:`OFFSET` times the variance of the images of rows as a share of their mean square, at most 1.

    Centring removes the mean of the images. Where that is nearly all of a kernel matrix K (m, m), as of dot products of
    rows far from the origin, limits relative to K would drop the rest: times this share, they do not depend on the
    origin. Each image counts with length 1.
    """
    roots: Vector = np.sqrt(np.maximum(np.diagonal(K), 0.0))
    scale = np.divide(1.0, roots, out=np.zeros(len(K)), where=roots > 0)
    # Of images of length 1, |mean|^2 = 1'K 1 / n^2, and the variance is 1 less that.
    mean, count = float(scale @ K @ scale), int(np.count_nonzero(scale))
    return min(1.0, OFFSET * max(0.0, 1.0 - mean / max(1, count) ** 2))


def landmark_transform(
    K_mm: Matrix,
    tolerance: float = 1e-10,
    *,
    precision: float = FLOAT64,
    equilibrated: bool = False,
    threads: int | None = None,
) -> Matrix:
    """Return T with ``T' K_mm T = I``: the columns of ``B = k(X, L) T`` are coordinates in the span of the landmarks.

    ``T = U lambda^(-1/2)`` over the eigenvalues above ``tolerance`` times the largest, so ``T T' = pinv(K_mm)``
    truncated there, and duplicates among the landmarks do no harm. Costs about ``9 m^3`` flops; K_mm is left as it is.

    Parameters
    ----------
    K_mm : ndarray of shape (m, m), float64
        Positive semi-definite; small negative eigenvalues are dropped with the small ones.
    tolerance : float
        1e-10 for blocks in float64, 1e-5 for float32 (:func:`truncation_for`): relative, whatever the kernel's scale.
        Times :func:`spread_share`, down to the rounding of K_mm.
    precision : float
        eps of the blocks, ``10 m`` times which is that rounding.
    equilibrated : bool
        Truncate the eigenvalues of ``D^(-1/2) K_mm D^(-1/2)``, ``D = diag(K_mm)``, instead: landmarks of small k(x, x)
        (polynomial kernels) keep their directions. ``T' K_mm T = I`` holds; ``T T'`` is a generalised inverse, another
        than ``pinv`` where something was dropped.
    threads : int or None
        BLAS threads.

    Returns
    -------
    ndarray of shape (m, r), float64
        r the numerical rank of K_mm; 0 for a matrix of zeros.

    Raises
    ------
    ValueError
        When K_mm is not square or its diagonal not finite.

    Notes
    -----
    The factor of the Nyström approximation ``K ~ K_nm pinv(K_mm) K_mn = B B'`` (Williams & Seeger 2001).

    Examples
    --------
    >>> T = landmark_transform(np.array([[4.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]))
    >>> T.shape, np.round(T @ T.T, 12).tolist()
    ((3, 2), [[0.25, 0.0, 0.0], [0.0, 0.25, 0.25], [0.0, 0.25, 0.25]])
    """
    if not len(K_mm):
        return np.zeros((0, 0))
    K_mm = np.array(K_mm, np.float64)  # the solve destroys its input
    scale, least = np.ones(len(K_mm)), tolerance * spread_share(K_mm)
    if equilibrated:
        diagonal = np.diagonal(K_mm).copy()
        scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1)), 0.0)
        K_mm *= scale
        K_mm *= scale[:, None]
    # T = D^-1/2 U lambda^-1/2, so that T'K_mm T = I; eigenvalues below the truncation would magnify rounding by their
    # roots.
    eigenvalues, vectors = top_eigenpairs(K_mm, threads=threads)
    kept = eigenvalues > max(least, min(tolerance, 10 * len(K_mm) * precision)) * eigenvalues[0]
    T: Matrix = scale[:, None] * vectors[kept].T / np.sqrt(eigenvalues[kept])
    return T


def block_size(wanted: int) -> int:
    """Return how many proposals are decided together."""
    return min(max(wanted // 4, BLOCK[0]), BLOCK[1])


@dataclass(frozen=True)
class Race:
    """Distinct rows of n as draws with replacement by weight first meet them, in that order, and the kernel on them.

    Attributes
    ----------
    block : callable
        From positions (a,) and (b,) to the kernel matrix (a, b) of these candidates, positive semi-definite.
    features : callable
        From a range of positions to the features (stop - start, s) of these candidates in the span of what was chosen
        before.
    diagonal, weights : ndarray of shape (c,)
        k(x, x) of the candidates, and the positive residuals by which they were drawn.
    unseen : float
        The sum of the weights of all other rows; 0 if there is none with a positive weight.
    """

    block: Callable[[Integers, Integers], Matrix]
    features: Callable[[int, int], Matrix]
    diagonal: Vector
    weights: Vector
    unseen: float


def rejection_pivots(
    race: Race, draws: Callable[[int, int], Matrix], wanted: int, *, rounding: float, fill: bool = False
) -> Integers:
    """Draw up to ``wanted`` pivots one after the other, each with probability proportional to its residual, from rows
    that were drawn by earlier residuals.

    A draw by weight with replacement meets a new row, the next of the race, with probability (weight of the rows not
    yet seen) / (weight of all rows), or one of those seen in proportion to weight. A row is accepted with probability
    h / weight, where h is its present residual: accepted rows follow h, whichever rows were accepted before. The draws
    end at the last candidate, or as soon as there are enough.

    Costs ``c s + c wanted`` kernel values, fewer if few candidates are needed, and ``2 c (s + wanted)^2`` flops;
    state: ``c (s + wanted)`` numbers.

    Parameters
    ----------
    race : Race
    draws : callable
        From a range of proposals to two uniforms in [0, 1) for each, (stop - start, 2).
    wanted : int
    rounding : float
        Residuals below this share of k(x, x) are rounding, and are treated as 0. Before any row was chosen, less where
        the images are far from the origin: what the first proposals show.
    fill : bool
        Continue at the last candidate with those seen alone, by their residuals: close to the law, where no further
        read is allowed.

    Returns
    -------
    ndarray of shape (accepted,), int64
        Positions, in the order of acceptance.

    Notes
    -----
    Epperly, Tropp & Webber (2024), RejectionCholesky and its accelerated form. NOTE: rejected
    draws of rows that were seen are skipped, because a few large weights would cause millions of them: rows seen are
    proposed by a bound of h instead of by their weight, the residual when the block of proposals began. NOTE: rows are
    factorised in the order of the race, and only as far as it is followed.
    """
    c, size = len(race.weights), block_size(wanted)
    # Weight of all rows that are not among the first so many: summed from the end, so that no digit cancels.
    left = race.unseen + np.append(np.cumsum(race.weights[::-1])[::-1], 0.0)
    if fill:
        left[c] = 0.0
    least, bound = rounding * race.diagonal, np.zeros(c)
    accepted, seen, known, turn = np.zeros(0, np.int64), 0, 0, 0
    factor, used, before = np.zeros((c, 0)), 0, 0
    while len(accepted) < wanted:
        # 1. Factor rows and residuals of the candidates that this block may meet.
        if (new := min(c, seen + size)) > known:
            span = race.features(known, new)
            if not known:
                used = before = span.shape[1]
                factor = np.zeros((c, before + wanted))
            factor[known:new, :before] = span
            if len(accepted):
                columns = race.block(np.arange(known, new), accepted) - span @ factor[accepted, :before].T
                L = factor[accepted, before:used]  # lower triangular
                factor[known:new, before:used] = solve_triangular(L, columns.T, lower=True).T
            rows = factor[known:new, :used]
            bound[known:new] = race.diagonal[known:new] - np.einsum("ij,ij->i", rows, rows)
            bound[:new][bound[:new] <= least[:new]] = 0.0
            known = new
        # 2. Proposals: new rows by the weight of all that are unseen, rows seen by their residuals.
        uniform = draws(turn, turn + size)
        turn += size
        summed, proposed, rates = np.cumsum(bound[:known]), [], []
        for place, _ in uniform:
            held = summed[seen - 1] if seen else 0.0
            whole = held + left[seen]
            if whole <= 0 or (seen == c and left[c] > 0):
                break
            if place * whole < held:
                proposed.append(int(np.searchsorted(summed[:seen], place * whole, side="right")))
                rates.append(bound[proposed[-1]])
            elif seen < c:
                proposed.append(seen)
                rates.append(race.weights[seen])
                seen += 1
        if not proposed:
            break
        # 3. Each is accepted with probability h / rate, and lowers h of the others; never where h is 0 already.
        hopeful = np.flatnonzero(bound[proposed] > 0)
        if not len(hopeful):  # nothing to decide, and a block of no rows is none for a precomputed matrix
            size = min(2 * size, BLOCK[1])
            continue
        distinct, places = np.unique(np.array(proposed)[hopeful], return_inverse=True)
        rows = factor[distinct, :used]
        G, h = race.block(distinct, distinct) - rows @ rows.T, bound[distinct]
        if not used and (share := spread_share(G)) < 1:
            least = min(rounding, residual_rounding(FLOAT64, share, wanted)) * race.diagonal
        own, taken = np.zeros((len(distinct), min(len(distinct), wanted - len(accepted)))), list[int]()
        for i, at in zip(places, hopeful, strict=True):
            if uniform[at, 1] * rates[at] < h[i]:
                s = len(taken)
                own[:, s] = (G[:, i] - own[:, :s] @ own[i, :s]) / np.sqrt(h[i])
                taken.append(i)
                h = h - own[:, s] ** 2
                h[h <= least[distinct]] = 0.0
                h[taken] = 0.0
                if len(accepted) + len(taken) == wanted:
                    break
        # 4. Those accepted become columns of the factor, for all rows that are known.
        if taken and len(accepted) + len(taken) < wanted:
            joined, end = distinct[taken], used + len(taken)
            columns = race.block(np.arange(known), joined) - factor[:known, :used] @ factor[joined, :used].T
            L = own[taken, : len(taken)]
            factor[:known, used:end] = solve_triangular(L, columns.T, lower=True).T
            factor[joined, used:end] = np.tril(L)  # exactly 0 where rounding would leave something, as in earlier rows
            factor[accepted, used:end] = 0.0
            bound[:known] -= np.einsum("ij,ij->i", factor[:known, used:end], factor[:known, used:end])
            bound[:known][bound[:known] <= least[:known]] = 0.0
            bound[joined] = 0.0
            used = end
        accepted = np.append(accepted, distinct[taken])
        if len(taken) * FEW < size:
            size = min(2 * size, BLOCK[1])
    return accepted


def weighted_pivots(
    column: Callable[[int], Vector], diagonal: Vector, weights: Vector, draws: Vector, *, enough: float
) -> Integers:
    """Draw pivots one after the other, each with probability proportional to its weight
    times what is left of its diagonal.

    Stops early where the weighted trace that is left is ``enough`` of the whole. Costs n numbers, n kernel evaluations
    and ``2 n s`` flops a pivot, s those drawn before.

    Parameters
    ----------
    column : callable
        From j to column j of the kernel matrix (n,), which is positive semi-definite.
    diagonal, weights : ndarray of shape (n,)
    draws : ndarray of shape (wanted,)
        Uniforms in [0, 1), one for each pivot.
    enough : float

    Returns
    -------
    ndarray of shape (drawn,), int64

    Notes
    -----
    Chen, Epperly, Tropp & Webber (2025), RPCholesky; row j stands for ``weights[j]`` equal ones.
    """
    left, pivots = diagonal.copy(), np.zeros(0, np.int64)
    factor = np.zeros((len(diagonal), len(draws)))
    for s, draw in enumerate(draws):
        # A pivot with probability proportional to its weighted residual.
        cumulated = np.cumsum(weights * left)
        if cumulated[-1] <= enough * float(weights @ diagonal):
            break
        j = int(np.searchsorted(cumulated, draw * cumulated[-1], side="right"))
        past = factor[:, :s]
        # One column of the Cholesky factor, and the residuals that it leaves.
        factor[:, s] = (column(j) - past @ past[j]) / np.sqrt(left[j])
        pivots = np.append(pivots, j)
        left = np.maximum(left - factor[:, s] ** 2, 0.0)
        left[pivots] = 0.0
    return pivots
