"""Two blocks of columns and their centred moments: alignment of kernels, canonical correlations, covariances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from scipy.linalg import qr, svd

from bigpca.arrays import Matrix, Vector
from bigpca.solvers.eigh import top_eigenpairs
from bigpca.solvers.moments import Solution

ROUNDED_SHARE = 64  # roundings of the sums below which an unbiased HSIC of a block with itself says nothing


Columns: TypeAlias = "slice[int, int, None]"
FEW = 4  # of the columns to the wanted triplets: with more, a full decomposition is as fast
LEAST_SHARE = 1e-3  # of the first singular value: those above lose less than 1e-10 of it in a Gram matrix of 4,096


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
    # The three terms of the estimate, each with the rounding of its sums, with none of their signs: they may cancel.
    terms = np.diagonal(squares) + 2 * np.diagonal(products) + norms**2 / ((n - 1) * (n - 2))
    return ROUNDED_SHARE * eps * terms / (n * (n - 3))


def alignment(hsic: Matrix) -> Matrix:
    """Return ``hsic_ij / sqrt(hsic_ii hsic_jj)``, whose diagonal is exactly 1; NaN where hsic_ii is not positive."""
    # An unbiased estimate may be negative: then there is no root, and no alignment.
    own = np.diagonal(hsic)
    with np.errstate(invalid="ignore"):
        roots = np.sqrt(np.where(own > 0, own, np.nan))
    found = hsic / np.outer(roots, roots)
    np.fill_diagonal(found, np.where(own > 0, 1.0, np.nan))
    return np.asarray(found)


@dataclass(frozen=True)
class Canonical:
    """Canonical correlations, and directions (p, k) and (q, k) of columns in their units.

    Attributes
    ----------
    values : ndarray of shape (k,), descending
    x, y : ndarray of shapes (p, k), (q, k)
        Of unit length by the scatter of their columns (regularised, if the solve is).
    x_products, y_products : ndarray of shapes (p, k), (q, k)
        The scatters times the directions.
    """

    values: Vector
    x: Matrix
    y: Matrix
    x_products: Matrix
    y_products: Matrix


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
        # K'K = V S^2 V', and the singular values of K V (p, k) are S without the squares.
        V = top_eigenpairs(K.T @ K, k)[1].T
        U, s, Wt = svd(K @ V, full_matrices=False)
        V = V @ Wt.T
        residuals = np.linalg.norm(K.T @ U - V * s, axis=0)
        if s[-1] > LEAST_SHARE * s[0] and residuals.max() <= 4 * q * np.finfo(np.float64).eps * s[0]:
            return U, np.ldexp(s, exponent), V
    U, s, Vt = svd(K, full_matrices=False)
    return U[:, :k], np.ldexp(s[:k], exponent), Vt[:k].T


def canonical(x: Solution, y: Solution, S_xy: Matrix, k: int) -> Canonical:
    """Return the k largest singular values of ``V_x'S_xy V_y``, and their directions.

    Parameters
    ----------
    x, y : Solution
        V of both scatters, with their penalties.
    S_xy : ndarray of shape (p, q)
        In the coordinates of the frames of both.
    """
    # Whitened on both sides, the cross-scatter has the canonical correlations as singular values: V_x'S_xy V_y = U S
    # V'.
    K = y.across(x.across(S_xy).T).T
    U, s, V = leading_triplets(K, min(k, *K.shape))
    return Canonical(np.minimum(s, 1.0), x.along(U), y.along(V), x.products(U), y.products(V))


def deflated(directions: Matrix) -> tuple[Matrix, Matrix]:
    """Return the weights and rotations (p, k) of scikit-learn's deflation, from canonical directions.

    The weights of a component are in the row space of rows from which the earlier scores were removed, which is
    orthogonal to the earlier rotations: so they are the Q of a QR decomposition of the directions. A rotation is a
    direction whose part along its weights has length 1.
    """
    # directions = Q R with R triangular: column j of Q is direction j less what lies along the earlier ones.
    Q, R = qr(directions, mode="economic")
    lengths = np.diagonal(R)
    signs = np.where(lengths < 0, -1.0, 1.0)
    return Q * signs, directions / np.abs(lengths)
