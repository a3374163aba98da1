"""Pivots among a few candidates: the rejection step of randomly pivoted Cholesky, on a small residual matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bigpca.arrays import Integers, Matrix, Vector


def accept_pivots(
    K: Matrix, B: Matrix, proposal: Vector, draws: Vector, wanted: int, *, rounding: float, fill: bool = False
) -> Integers:
    """Accept up to ``wanted`` of b candidates, in their order, each with probability ``h_j / proposal_j``.

    ``h`` is the diagonal of ``H = K - B B'``, downdated by a Cholesky step for each candidate that was
    accepted; what was proposed with probability proportional to ``proposal`` is then distributed as pivots
    drawn one after the other by h. Duplicates of accepted candidates have h = 0. Costs ``b^2`` numbers and
    ``b (s + wanted)`` more, ``2 b (s + wanted)`` flops a pivot.

    Parameters
    ----------
    K : ndarray of shape (b, b)
        Kernel matrix of the candidates, positive semi-definite.
    B : ndarray of shape (b, s)
        Their features in the span of what was chosen before.
    proposal : ndarray of shape (b,), positive
        The residuals by which they were drawn.
    draws : ndarray of shape (b + wanted,)
        Uniforms in [0, 1): one for each candidate, then one for each that ``fill`` may need.
    wanted : int
    rounding : float
        Residuals below this share of a candidate's K_jj are rounding, and taken as 0.
    fill : bool
        Draw what is missing from the rejected candidates, with probability proportional to ``h_j / proposal_j``.

    Returns
    -------
    ndarray of shape (accepted,), int64
        Positions, in the order of acceptance.

    Notes
    -----
    Epperly, Tropp & Webber (2024), RejectionCholesky, for candidates drawn without replacement.
    """
    residual = Residuals(K, B, wanted, rounding)
    for j in range(len(K)):
        if len(residual.accepted) == wanted:
            break
        # Rejection: the proposal was drawn by the old residuals, which are never below the present ones.
        if draws[j] < residual.diagonal[j] / proposal[j]:
            residual.accept(j)
    while fill and len(residual.accepted) < wanted:
        # The rest by their acceptance probabilities: close to the law, where no further read is allowed.
        cumulated = np.cumsum(residual.diagonal / proposal)
        if cumulated[-1] <= 0:
            break
        place = draws[len(K) + len(residual.accepted)] * cumulated[-1]
        residual.accept(int(np.searchsorted(cumulated, place, side="right")))
    return np.array(residual.accepted, np.int64)


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


class Residuals:
    """The diagonal of a residual matrix under Cholesky steps, whose columns are computed when they are needed."""

    def __init__(self, K: Matrix, B: Matrix, wanted: int, rounding: float) -> None:
        self.K, self.used = K, B.shape[1]
        self.factor = np.hstack([B, np.zeros((len(K), wanted))])  # (b, s + wanted)
        self.least = rounding * np.diagonal(K)
        self.diagonal: Vector = np.diagonal(K) - np.einsum("ij,ij->i", B, B)
        self.accepted: list[int] = []
        self._clip()

    def accept(self, j: int) -> None:
        """Take candidate j as a pivot, whose residual must be positive."""
        past = self.factor[:, : self.used]
        column = (self.K[:, j] - past @ past[j]) / np.sqrt(self.diagonal[j])
        self.factor[:, self.used] = column
        self.used += 1
        self.accepted.append(j)
        self.diagonal -= column**2
        self._clip()

    def _clip(self) -> None:
        self.diagonal[self.diagonal <= self.least] = 0.0
        self.diagonal[self.accepted] = 0.0
