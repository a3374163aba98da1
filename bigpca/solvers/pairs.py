"""Two blocks of columns and their centred moments: alignment of kernels, canonical correlations, covariances, ridge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from scipy.linalg import eigh, qr, solve_triangular, svd
from scipy.linalg.lapack import dpotrf

from bigpca.arrays import Matrix, Vector
from bigpca.solvers.eigh import top_eigenpairs

ROUNDED_SHARE = 64  # roundings of the sums below which an unbiased HSIC of a block with itself says nothing


Columns: TypeAlias = "slice[int, int, None]"


def block_edges(widths: Sequence[int]) -> list[Columns]:
    """Return the columns of blocks side by side.

    >>> block_edges((2, 3))
    [slice(0, 2, None), slice(2, 5, None)]
    """
    return [slice(stop - width, stop) for width, stop in zip(widths, accumulate(widths), strict=True)]


def block_squares(S: Matrix, edges: Sequence[Columns]) -> Matrix:
    """Return ``|S_ij|_F^2`` (L, L) of the blocks of a symmetric S (d, d)."""
    return np.array([[float(np.einsum("ij,ij->", S[a, b], S[a, b])) for b in edges] for a in edges])


def unbiased_hsic(squares: Matrix, norms: Vector, products: Matrix, n: int) -> Matrix:
    """Return the unbiased HSIC (L, L) of linear kernels of every two blocks (Song et al. 2012, eq. 5).

    About the mean, where the sums of rows are 0: with u_i = |x_i - mean_i|^2 and S the scatter, the terms of kernels
    without their diagonals are ``tr(K_i K_j) = |S_ij|^2 - sum u_i u_j``, ``1'K_i 1 = -sum u_i`` and ``1'K_i K_j 1 =
    sum u_i u_j``.

    Parameters
    ----------
    squares : ndarray of shape (L, L)
        From :func:`block_squares`.
    norms : ndarray of shape (L,), products : ndarray of shape (L, L)
        ``sum_t u(t)`` and ``sum_t u(t) u(t)'``.
    n : int, at least 4
    """
    traces = squares - products
    means = np.outer(norms, norms) / ((n - 1) * (n - 2))
    return (traces + means - 2 * products / (n - 2)) / (n * (n - 3))


def unbiased_rounding(squares: Matrix, norms: Vector, products: Matrix, n: int, eps: float) -> Vector:
    """Return what rounding may have added to the HSIC (L,) of each block with itself."""
    terms = np.diagonal(squares) + 2 * np.diagonal(products) + norms**2 / ((n - 1) * (n - 2))
    return ROUNDED_SHARE * eps * terms / (n * (n - 3))


def alignment(hsic: Matrix) -> Matrix:
    """Return ``hsic_ij / sqrt(hsic_ii hsic_jj)``, whose diagonal is exactly 1; NaN where hsic_ii is not positive."""
    own = np.diagonal(hsic)
    with np.errstate(invalid="ignore"):
        roots = np.sqrt(np.where(own > 0, own, np.nan))
    found = hsic / np.outer(roots, roots)
    np.fill_diagonal(found, np.where(own > 0, 1.0, np.nan))
    return np.asarray(found)


@dataclass(frozen=True)
class Canonical:
    """Canonical correlations, and directions (p, k) and (q, k) of columns as they were given to the solver.

    Attributes
    ----------
    values : ndarray of shape (k,), descending
    x, y : ndarray of shapes (p, k), (q, k)
        Of unit variance (regularised, if the solve is) along each column.
    ranks : (int, int)
        Numerical ranks of both covariances.
    """

    values: Vector
    x: Matrix
    y: Matrix
    ranks: tuple[int, int]


@dataclass(frozen=True)
class Whitening:
    """V (p, r) with ``V'(C + added I) V = I`` on the numerical range of C.

    Attributes
    ----------
    matrix : ndarray of shape (p, r), or (p, p)
        V; or, if ``triangular``, L of ``L L' = C + added I``, whose inverse is V'.
    triangular : bool
    rank : int
        Of C, numerically.
    """

    matrix: Matrix
    triangular: bool
    rank: int

    @classmethod
    def of(cls, C: Matrix, added: float, precision: float) -> Whitening:
        """Return V for C. Only the upper triangle of C is read."""
        d, eps = len(C), float(np.finfo(np.float64).eps)
        least = max(d * eps, np.sqrt(d) * precision * (precision > eps))  # of products in float32

        def factor(more: float) -> Matrix | None:
            shifted = C.copy(order="C").T
            np.fill_diagonal(shifted, shifted.diagonal() + more)
            L, failed = dpotrf(shifted, lower=True, overwrite_a=True)
            return None if failed else L

        # C has full rank if C - 4 least tr(C) I has a Cholesky factor: its eigenvalues are then above least lambda_max,
        # since tr(C) >= lambda_max, and the factorisation itself rounds by less than least tr(C).
        if factor(-4 * least * float(np.trace(C))) is not None and (L := factor(added)) is not None:
            return cls(L, True, d)
        values, vectors = eigh(C, lower=False, driver="evd")
        values, vectors = values[::-1], vectors[:, ::-1]
        rank = int((values > least * max(float(values[0]), 0.0)).sum())
        kept = d if added > 0 else rank
        return cls(vectors[:, :kept] / np.sqrt(np.maximum(values[:kept], 0.0) + added), False, rank)

    def across(self, A: Matrix) -> Matrix:
        """Return V'A."""
        return np.asarray(self._solved(A, 0) if self.triangular else self.matrix.T @ A)

    def along(self, U: Matrix) -> Matrix:
        """Return V U."""
        return np.asarray(self._solved(U, 1) if self.triangular else self.matrix @ U)

    def _solved(self, A: Matrix, trans: int) -> Matrix:
        return np.asarray(solve_triangular(self.matrix, A, trans, lower=True, check_finite=False))


FEW = 4  # of the columns to the wanted triplets: with more, a full decomposition is as fast
LEAST_SHARE = 1e-3  # of the first singular value: those above lose less than 1e-10 of it in a Gram matrix of 4,096


def leading_triplets(K: Matrix, k: int) -> tuple[Matrix, Vector, Matrix]:
    """Return the k largest singular values of K (p, q), descending, between their vectors (p, k) and (q, k).

    Few come from the Gram matrix of the smaller side, whose vectors V give left vectors and values as the singular
    values of K V (Rayleigh-Ritz). Squares lose the digits of small values: unless those found are large, and their
    residuals ``K'U - V S`` those of a full decomposition, that is made.
    """
    if K.shape[0] < K.shape[1]:
        V, s, U = leading_triplets(K.T, k)
        return U, s, V
    q, exponent = K.shape[1], int(np.frexp(np.abs(K).max())[1])
    K = np.ldexp(K, -exponent)  # so that squares stay within float64
    if k * FEW <= q:
        V = top_eigenpairs(K.T @ K, k)[1].T
        U, s, Wt = svd(K @ V, full_matrices=False)
        V = V @ Wt.T
        residuals = np.linalg.norm(K.T @ U - V * s, axis=0)
        if s[-1] > LEAST_SHARE * s[0] and residuals.max() <= 4 * q * np.finfo(np.float64).eps * s[0]:
            return U, np.ldexp(s, exponent), V
    U, s, Vt = svd(K, full_matrices=False)
    return U[:, :k], np.ldexp(s[:k], exponent), Vt[:k].T


def canonical(
    C: Matrix, p: int, k: int | None, added: tuple[float, float] = (0.0, 0.0), precision: float = 0.0
) -> Canonical:
    """Return the singular values of ``L_x^-1 C_xy L_y^-T``, where ``L L' = C + added I``, and their directions.

    Parameters
    ----------
    C : ndarray of shape (p + q, p + q)
        Covariance of both blocks, the first of p columns.
    k : int or None
        At most so many; None for all on the numerical range.
    """
    left, right = (
        Whitening.of(part, more, precision) for part, more in zip((C[:p, :p], C[p:, p:]), added, strict=True)
    )
    K = right.across(left.across(C[:p, p:]).T).T
    U, s, V = leading_triplets(K, min(K.shape) if k is None else min(k, *K.shape))
    return Canonical(np.minimum(s, 1.0), left.along(U), right.along(V), (left.rank, right.rank))


def deflated(directions: Matrix) -> tuple[Matrix, Matrix]:
    """Return the weights and rotations (p, k) of scikit-learn's deflation, from canonical directions.

    The weights of a component are in the row space of rows from which the earlier scores were removed, which is
    orthogonal to the earlier rotations: so they are the Q of a QR decomposition of the directions. A rotation is a
    direction whose part along its weights has length 1.
    """
    Q, R = qr(directions, mode="economic")
    lengths = np.diagonal(R)
    signs = np.where(lengths < 0, -1.0, 1.0)
    return Q * signs, directions / np.abs(lengths)


def ridge_coefficients(S_xx: Matrix, S_xy: Matrix, alphas: Sequence[float]) -> list[Matrix]:
    """Return ``(S_xx + alpha I)^-1 S_xy`` (p, q) for each alpha, from one eigendecomposition."""
    values, vectors = eigh(S_xx, driver="evd")
    projected = vectors.T @ S_xy
    # Of alpha 0: on the numerical range, the solution of least norm. No eigenvalue below is more than rounding.
    least = len(values) * np.finfo(np.float64).eps * max(float(values[-1]), 0.0) if len(values) else 0.0
    found = []
    for alpha in alphas:
        own = np.maximum(values, 0.0) + alpha
        inverse = np.where(own > (least if alpha == 0 else 0.0), 1.0 / np.where(own > 0, own, 1.0), 0.0)
        found.append(vectors @ (inverse[:, None] * projected))
    return found
