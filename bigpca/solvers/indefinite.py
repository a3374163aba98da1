"""Leading eigenpairs of a symmetric matrix that is not positive semi-definite, from one product: signed, never by modulus."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
TRUNCATION = 1e-3  # of the largest |eigenvalue| of W'AW: smaller ones are divided by, and may be anything
OVERSAMPLED = 2 / 3  # most directions of W'AW that are kept


@dataclass(frozen=True)
class SignedPairs:
    """Eigenpairs of an approximation of A.

    Attributes
    ----------
    values : ndarray of shape (q,), descending: the algebraically largest first, negative ones last.
    vectors : ndarray of shape (k, N), orthonormal rows; of the first k values.
    """

    values: Vector
    vectors: Matrix

    @property
    def negative_mass(self) -> float:
        """Sum of the negative values, less its sign."""
        return float(-self.values[self.values < 0].sum())


def signed_ritz(B: Matrix, AB: Matrix, k: int) -> SignedPairs:
    """Return the Ritz pairs of A on orthonormal columns B (N, q), from the product A B.

    Every value is at most the eigenvalue of the same number, and the negative ones are at least those of A counted from the
    end (Cauchy): their mass is a lower bound of A's.

    Examples
    --------
    >>> A, B = np.diag([3.0, 1.0, -2.0]), np.eye(3)[:, [0, 2]]
    >>> signed_ritz(B, A @ B, 1).values.tolist()
    [3.0, -2.0]
    """
    S = B.T @ AB
    values, vectors = np.linalg.eigh((S + S.T) / 2)
    return SignedPairs(values[::-1].copy(), np.ascontiguousarray((B @ vectors[:, ::-1][:, :k]).T))


def signed_nystrom(W: Matrix, Y: Matrix, k: int) -> SignedPairs:
    """Return the eigenpairs of ``A_hat = Y (W'Y)^+ Y'`` from ``Y = A W``, with the signs of ``W'Y`` kept.

    ``(W'Y)^+`` is truncated: on an indefinite A its small eigenvalues may be small by cancellation, and dividing by them
    ruins the approximation. Costs 4 N q^2 flops.

    Notes
    -----
    Nakatsukasa & Park (2023), Randomized low-rank approximation for symmetric indefinite matrices, section 3: keep fewer
    directions than W has columns. NOTE: no bound holds here, unlike for positive semi-definite matrices.

    Examples
    --------
    >>> A = np.diag([3.0, 1.0, 0.0, -2.0])
    >>> W = np.eye(4)[:, [0, 1, 3]]
    >>> signed_nystrom(W, A @ W, 1).values.round(9).tolist()
    [3.0, -2.0]
    """
    Q, R = np.linalg.qr(W)
    keep = np.abs(np.diagonal(R)) > 1e-12 * np.abs(np.diagonal(R)).max()
    Y = np.linalg.solve(R[np.ix_(keep, keep)].T, Y[:, keep].T).T
    S = Q[:, keep].T @ Y
    sigma, U = np.linalg.eigh((S + S.T) / 2)
    order = np.argsort(-np.abs(sigma))[: max(1, int(np.ceil(OVERSAMPLED * len(sigma))))]
    order = order[np.abs(sigma[order]) > TRUNCATION * np.abs(sigma).max()]
    sigma, U = sigma[order], U[:, order]
    F, R = qr(Y @ (U / np.sqrt(np.abs(sigma))), mode="economic")
    values, vectors = np.linalg.eigh((R * np.sign(sigma)) @ R.T)
    return SignedPairs(values[::-1].copy(), np.ascontiguousarray((F @ vectors[:, ::-1][:, :k]).T))
