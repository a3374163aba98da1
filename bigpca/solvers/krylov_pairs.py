"""What a Krylov basis knows so far: its Ritz pairs, their residuals, and how far they still are from the eigenpairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import blas_threads
from bigpca.solvers.eigh import top_eigenpairs
from bigpca.solvers.krylov_basis import EPS, KrylovBasis

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Wanted = int | Callable[[Vector], int]

FLOOR = 10.0  # of the precision: what rounding makes of the smallest Ritz values


@dataclass(frozen=True)
class RitzPairs:
    """Ritz pairs of a basis of c columns, of which k (at most c) are wanted.

    Attributes
    ----------
    values : ndarray of shape (c,), descending; coefficients : ndarray of shape (c, c), rows.
    residual_rows : ndarray of shape (r, N), divided by theta_1; the directions of the next block.
    residuals : ndarray of shape (k,); their norms.
    nystrom_values : ndarray of shape (k,), between the Ritz values and the eigenvalues.
    scales : ndarray of shape (k,); what errors are compared with.
    complete : bool; whether the basis has as many columns as pairs are wanted.
    block : columns of the next block.
    """

    values: Vector
    coefficients: Matrix
    residual_rows: Matrix
    residuals: Vector
    nystrom_values: Vector
    scales: Vector
    complete: bool
    block: int

    @property
    def k(self) -> int:
        return len(self.residuals)

    @property
    def excess(self) -> float:
        """Estimate of the largest relative error of a wanted Ritz value."""
        return self.excess_of(self.nystrom_values)

    def excess_of(self, values: Vector) -> float:
        """Return the largest excess of these values over the Ritz values, relative to the scales."""
        return float(np.max((values - self.values[: self.k]) / self.scales))


def ritz_pairs(
    basis: KrylovBasis, k: Wanted, block: int, *, tol: float, precision: float, threads: int | None
) -> RitzPairs:
    """Measure the leading Ritz pairs of a basis, from its stored products.

    The Nyström values are those of the leading Ritz vectors U with residuals R: with ``A U = U Theta + R`` and ``U'R = 0``,
    they are the eigenvalues of ``Theta + Theta^-1/2 R'R Theta^-1/2``. Costs 4 N c l flops.

    Raises
    ------
    ValueError
        When the basis cannot hold twice the wanted pairs.
    """
    with blas_threads(threads):
        values, coefficients = basis.ritz()
    wanted = min(int(k(values)) if callable(k) else k, basis.N)
    check_room(wanted, basis.size, basis.N)
    block = min(max(block, wanted), max(basis.size - wanted, 1))
    used = max(block, wanted)
    with blas_threads(threads):
        rows = basis.residual_rows(values[:used], coefficients[:used])
        gram = rows @ rows.T
        better = top_eigenpairs(_nystrom_of_ritz(values[:used], gram, precision), min(wanted, len(gram)))[0]
    norms = np.sqrt(gram.diagonal()[:wanted]) * values[0]
    smallest = max(tol, max(precision, FLOOR * EPS) / tol)  # eigenvalues below this share of theta_1 count as if there
    scales = np.maximum(values[: len(norms)], smallest * values[0])
    scales = np.where(scales > 0, scales, 1.0)
    return RitzPairs(values, coefficients, rows[:block], norms, better, scales, wanted <= basis.count, block)


def _nystrom_of_ritz(values: Vector, gram: Matrix, precision: float) -> Matrix:
    """Return ``Theta + Theta^-1/2 R R' Theta^-1/2`` for the Gram matrix of residuals divided by theta_1.

    Theta is shifted under the root, so that rounding in R is not magnified where theta_i vanishes.
    """
    roots = values[0] / np.sqrt(values + max(FLOOR * precision * values[0], np.finfo(np.float64).tiny))
    M: Matrix = np.diag(values) + roots[:, None] * gram * roots
    return M


def check_room(k: int, columns: int, N: int) -> None:
    """Refuse more eigenpairs than there are, or than a basis of this size can hold twice."""
    if not 1 <= k <= N:
        raise ValueError(f"{k} eigenpairs were asked for, but a matrix of size {N} has 1 to {N}.")
    if columns < min(2 * k, N):
        raise ValueError(
            f"{k} eigenpairs need a basis of {min(2 * k, N)} columns, but only {columns} fit the memory limit. "
            "Ask for fewer components, or raise memory_limit."
        )
