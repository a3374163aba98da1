"""The state of a Krylov iteration: Ritz pairs, their residuals, and an estimate of their error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.solvers.eigh import top_eigenpairs
from bigpca.solvers.krylov_basis import EPS, KrylovBasis

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Wanted = int | Callable[[Vector], int]

FLOOR = 10.0  # of the precision, relative to theta_1: an eigenvalue below it is rounding


@dataclass(frozen=True)
class RitzPairs:
    """Ritz pairs (theta_i, u_i) of a basis B of c columns, of which k (at most c) are
    wanted; and what bounds the others.

    With the residuals ``r_i = A u_i - theta_i u_i``, orthogonal to B, and ``Z = R Theta^-1/2 = Q T^1/2 V'``
    by its Gram matrix ``Z'Z = V T V'``, the Nyström approximation is ``A_hat = (U Theta^1/2 + Z)(U Theta^1/2
    + Z)'``: its eigenvalues are those of ``Theta + Z'Z``, and in the basis [U, Q] it is ``[[Theta, K], [K',
    T]]`` with ``K = Theta^1/2 V T^1/2``.

    Attributes
    ----------
    values : ndarray of shape (c,), descending; coefficients : ndarray of shape (c, c), rows.
    gram : ndarray of shape (c, c); ``R'R / theta_1^2``.
    residuals : ndarray of shape (k,); norms of the first.
    nystrom_values : ndarray of shape (c,), between the Ritz values and the eigenvalues.
    coupling, outside : ndarray of shape (c, p), (p,); K and T, divided by theta_1.
    size : int; N.
    unit : float; theta_1.
    floor : float; F = 10 precision theta_1, below which an eigenvalue is rounding.
    tol : float
    shift : float; A is this multiple of I more than the matrix whose eigenvalues are wanted.
    complete : bool; whether the basis has as many columns as pairs are wanted.
    block : columns of the next block.
    """

    values: Vector
    coefficients: Matrix
    gram: Matrix
    residuals: Vector
    nystrom_values: Vector
    coupling: Matrix
    outside: Vector
    size: int
    unit: float
    floor: float
    tol: float
    shift: float
    complete: bool
    block: int

    @property
    def k(self) -> int:
        return len(self.residuals)

    @property
    def weights(self) -> Vector:
        """What ``(A u_i)(A u_i)'`` count in A_hat: ``1 / theta_i``, kept finite where theta_i vanishes."""
        return 1.0 / _lifted(self.values, self.floor)

    @property
    def scales(self) -> Vector:
        """What errors of the k values are compared with: ``max(nu_i, F / tol)``."""
        scales = np.maximum(self.nystrom_values[: self.k] - self.shift, self.floor / self.tol)
        return np.where(scales > 0, scales, 1.0)

    def unresolved(self, trace: float) -> int:
        """Return how many of the k values lie below ``F / tol``, where rounding hides a relative error of tol.

        The count is 0 if the resolved values leave a trace of at most k F: no value of interest is missing.
        """
        nu = self.nystrom_values[: self.k] - self.shift
        resolved = nu[nu >= self.floor / self.tol]
        return 0 if trace - float(resolved.sum()) <= self.k * self.floor else self.k - len(resolved)

    def upper_values(self, norm: float, first: int = 0) -> Vector:
        """Bound the k largest eigenvalues of A from above, if ``|A - A_hat|_2 <= norm``: the
        majorant ``A_hat + norm (I - BB')``.

        The remainder is zero on B, so an error norm counts only as far as eigenvectors lie outside of B. Without the
        pairs before ``first``, the largest bounds ``|A - A_hat|_2`` of the Nyström approximation by these pairs alone:
        it exceeds this one by what the others hold.
        """
        values, coupling = self.values[first:], self.coupling[first:]
        c, p, mu = len(values), len(self.outside), norm / self.unit
        M = np.zeros((c + p, c + p))
        np.fill_diagonal(M, np.concatenate([values / self.unit, self.outside + mu]))
        M[:c, c:] = coupling
        M[c:, :c] = coupling.T
        elsewhere = self.k if c + p < self.size else 0
        bounds = np.concatenate([np.linalg.eigvalsh(M), np.full(elsewhere, mu)])
        return self.unit * np.sort(bounds)[::-1][: self.k]

    def error_for(self, norm: float) -> float:
        """Return the largest relative error of the k values, if ``|A - A_hat|_2`` is this norm: E(norm)."""
        if not np.isfinite(norm):
            return np.inf
        excess = self.upper_values(norm) - self.nystrom_values[: self.k]
        return max(0.0, float(np.max(excess / self.scales)))


def ritz_pairs(
    basis: KrylovBasis,
    k: Wanted,
    block: int,
    *,
    tol: float,
    shift: float,
    precision: float,
    rank: int,
) -> RitzPairs:
    """Measure the Ritz pairs of a basis, from its stored products, and leave it the next directions.

    Costs ``2 N c r + N c^2`` flops, r the remainders of the basis that are not zero.

    Raises
    ------
    ValueError
        When the basis cannot hold twice the wanted pairs.
    """
    values, coefficients = basis.ritz()
    wanted = min(int(k(values)) if callable(k) else k, basis.N)
    check_room(wanted, basis.size, basis.N, rank)
    c = basis.count
    block = min(max(block, wanted), max(basis.size - wanted, 1))
    unit = float(values[0]) or 1.0
    floor = FLOOR * max(precision, EPS) * float(values[0])
    gram = basis.residuals(unit, coefficients, min(block, c))
    roots = np.sqrt(unit / _lifted(values, floor))
    T = roots[:, None] * gram * roots
    nystrom = unit * top_eigenpairs(np.diag(values / unit) + T)[0]
    if callable(k):  # Ritz values are below the eigenvalues: fewer of the latter may meet the rule
        wanted = min(wanted, int(k(nystrom)))
    norms = np.sqrt(gram.diagonal()[:wanted]) * values[0]
    outside, V = top_eigenpairs(T)
    p = min(c, basis.N - c)
    coupling = np.sqrt(values / unit)[:, None] * V[:p].T * np.sqrt(outside[:p])
    return RitzPairs(
        values, coefficients, gram, norms, nystrom, coupling, outside[:p], basis.N, unit, floor, tol, shift,
        wanted <= c, block,
    )  # fmt: skip


def _lifted(values: Vector, floor: float) -> Vector:
    """Ritz values kept away from 0, so that dividing by them does not magnify the rounding of residuals."""
    return values + max(floor, float(np.finfo(np.float64).tiny))


def check_room(k: int, columns: int, N: int, rank: int) -> None:
    """Reject more eigenpairs than there are, or than a basis of this size can hold twice (or all of, where it can)."""
    if not 1 <= k <= N:
        raise ValueError(f"{k} eigenpairs were requested, but a matrix of size {N} has 1 to {N}.")
    needed = max(k, min(2 * k, rank))
    if columns < needed:
        raise ValueError(
            f"{k} eigenpairs need a basis of {needed} columns, but only {columns} fit the memory limit. "
            "Request fewer components, or raise memory_limit."
        )
