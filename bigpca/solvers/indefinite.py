"""Symmetric matrices that are not positive semi-definite: evidence, and leading eigenpairs by signed value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigvalsh, qr

from bigpca.arrays import Matrix, Vector, norm_of
from bigpca.blas import blas_threads

KEPT = 2 / 3  # directions of W'AW that are kept, the largest by modulus
UNCANCELLED = 3.0  # times the most negative eigenvalue of W'AW: larger ones are kept, too
ROUNDING = 4.0  # of precision |Y|_F: smaller eigenvalues of W'AW are rounding
SIGNIFICANT = 1e-5  # share of |A|_F below which a negative eigenvalue is overlooked, as scikit-learn does of lambda_1
SMALLEST_DIRECTION = 1e-2  # directions of W below this share of |W|_2 are dropped: they only magnify rounding


@dataclass(frozen=True)
class SignedPairs:
    """Eigenpairs of an approximation of A.

    Attributes
    ----------
    values : ndarray of shape (r,), descending: the algebraically largest first, negative ones last.
    vectors : ndarray of shape (k, N), orthonormal rows; of the first k values.
    """

    values: Vector
    vectors: Matrix


def negative_mass(values: Vector, rounding: float) -> float:
    """Return the sum of the values below ``-rounding``, less its sign; 0.0 where there is none.

    >>> negative_mass(np.array([2.0, -1e-17, -1.0]), 1e-15), negative_mass(np.array([2.0, -1e-17]), 1e-15)
    (1.0, 0.0)
    """
    return float(np.abs(values[values < -rounding]).sum())


def negative_eigenvalue(A: Matrix, rounding: float, *, threads: int | None = None) -> float | None:
    """Return the smallest eigenvalue of a symmetric A (n, n) where it is below ``-(1e-5 |A|_F + rounding)``, else None.

    ``n^3 / 3`` flops and a copy of A, for a Cholesky factor of ``A + (1e-5 |A|_F + rounding) I`` shows that it is not.

    >>> negative_eigenvalue(np.diag([2.0, -1.0]), 0.0), negative_eigenvalue(np.diag([2.0, -1e-9]), 0.0)
    (-1.0, None)
    """
    allowed = SIGNIFICANT * float(norm_of(A)) + rounding
    if not allowed or not np.isfinite(allowed):
        return None
    # A Cholesky factor of the shifted matrix exists if no eigenvalue is below -allowed: a third of the flops of eigh.
    shifted = A.copy()
    shifted.flat[:: len(A) + 1] += allowed
    with blas_threads(threads, len(A) ** 3 / 3):
        try:
            cholesky(shifted, overwrite_a=True, check_finite=False)
        except LinAlgError:
            return float(eigvalsh(A, subset_by_index=[0, 0], check_finite=False)[0])
    return None


def contradiction(B: Matrix, AB: Matrix, trace: float, norm: float, rounding: float) -> str | None:
    """Return how the products with a thin B show that A is not positive semi-definite, in
    words; None where they do not.

    A negative Ritz value is no larger than the smallest eigenvalue's; the Ritz values of a positive semi-definite
    matrix sum to at most its trace.

    Parameters
    ----------
    B, AB : ndarray of shape (n, q)
    trace, norm : float; of A, the Frobenius norm (or an estimate) for the second
    rounding : float
        What rounding may leave of an eigenvalue.
    """
    values, allowed = signed_ritz(*orthonormal_product(B, AB), 1).values, SIGNIFICANT * norm + rounding
    if trace < -allowed:
        return f"its centred matrix has the trace {trace:.3g}"
    if values[-1] < -allowed:
        return f"its centred matrix has an eigenvalue of at most {values[-1]:.3g}, beside {values[0]:.3g}"
    if float(values.sum()) > trace + len(values) * allowed:
        return f"{len(values)} eigenvalues of its centred matrix sum to {values.sum():.3g}, over its trace, {trace:.3g}"
    return None


def signed_ritz(B: Matrix, AB: Matrix, k: int) -> SignedPairs:
    """Return the Ritz pairs of A on orthonormal columns B (N, q), from the product A B.

    Every value is at most the eigenvalue of the same number, and the negative ones are at least those of A counted from
    the end (Cauchy): their mass is a lower bound of A's.

    Examples
    --------
    >>> A, B = np.diag([3.0, 1.0, -2.0]), np.eye(3)[:, [0, 2]]
    >>> signed_ritz(B, A @ B, 1).values.tolist()
    [3.0, -2.0]
    """
    # B'AB on orthonormal columns; its antisymmetric part is rounding.
    S = B.T @ AB
    values, vectors = np.linalg.eigh((S + S.T) / 2)
    return SignedPairs(values[::-1].copy(), np.ascontiguousarray((B @ vectors[:, ::-1][:, :k]).T))


def orthonormal_product(W: Matrix, Y: Matrix) -> tuple[Matrix, Matrix]:
    """Return orthonormal columns Q (N, r) that span W (N, q), and A Q, from ``Y = A W``; W may lack rank.

    Directions of W below 1e-2 |W|_2 are dropped. Costs some 8 N q^2 flops.
    """
    # W = Q s V', so that A Q = (A W) V s^-1 without a further product.
    Q, s, V = np.linalg.svd(W, full_matrices=False)
    kept = s > SMALLEST_DIRECTION * s[0]
    return Q[:, kept], Y @ (V[kept].T / s[kept])


def signed_nystrom(W: Matrix, Y: Matrix, k: int, *, precision: float = 2.0**-52) -> SignedPairs:
    """Return the eigenpairs of ``A_hat = Y (W'Y)^+ Y'`` from ``Y = A W``, with the signs of ``W'Y`` kept.

    ``(W'Y)^+`` is truncated: on an indefinite A its small eigenvalues may be small by cancellation, and dividing by
    them ruins the approximation. Two thirds of them are kept, and those over 3 times the most negative one: where A has
    little negative mass, all but the smallest. Costs 12 N q^2 flops.

    Parameters
    ----------
    precision : float
        Relative rounding of the products: what of W'Y is below ``4 precision |Y|_F`` is dropped.

    Notes
    -----
    Nakatsukasa & Park (2023), Randomized low-rank approximation for symmetric indefinite matrices, section 3: keep
    fewer directions than W has columns. NOTE: two thirds rather than their half, and more where nothing cancels: on 17
    matrices with spectra from nearly definite to evenly signed, n = 400 and q = 50, no fixed share comes near the best
    one on all; this rule is within 0.01 of it in the mean squared cosine of the leading 10 axes on all but one (0.05).
    NOTE: no bound holds here, unlike for positive semi-definite matrices.

    Examples
    --------
    >>> A = np.diag([3.0, 1.0, 0.0, -2.0])
    >>> W = np.eye(4)[:, [0, 1, 3]]
    >>> signed_nystrom(W, A @ W, 1).values.round(9).tolist()
    [3.0, -2.0]
    """
    Q, Y = orthonormal_product(W, Y)
    S = Q.T @ Y
    sigma, U = np.linalg.eigh((S + S.T) / 2)
    # By modulus: negative eigenvalues are as much part of A as positive ones.
    order = np.argsort(-np.abs(sigma))
    sigma, U = sigma[order], U[:, order]
    # Eigenvalues that cannot be small by cancellation, then at least two thirds, none of them rounding.
    kept = np.abs(sigma) > UNCANCELLED * max(0.0, -float(sigma.min()))
    kept[: max(1, int(np.ceil(KEPT * len(sigma))))] = True
    kept &= np.abs(sigma) > ROUNDING * precision * float(norm_of(Y))
    if not kept.any():  # A = 0, as far as can be seen
        return SignedPairs(np.zeros(1), np.ascontiguousarray(Q[:, :1].T))
    # A_hat = (Y U / |sigma|^1/2) sign(sigma) (...)': its eigenpairs from the triangular factor.
    F, R = qr(Y @ (U[:, kept] / np.sqrt(np.abs(sigma[kept]))), mode="economic")
    values, vectors = np.linalg.eigh((R * np.sign(sigma[kept])) @ R.T)
    return SignedPairs(values[::-1].copy(), np.ascontiguousarray((F @ vectors[:, ::-1][:, :k]).T))
