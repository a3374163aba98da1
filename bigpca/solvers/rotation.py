"""Rotations of loadings to simple structure: varimax and promax, on a thin (d, k) matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
MAX_ROUNDS = 5000
TOLERANCE = 1e-12  # relative growth of the criterion's gradient at which varimax stops


@dataclass(frozen=True)
class Rotated:
    """Rotated loadings.

    Attributes
    ----------
    loadings : ndarray of shape (d, k)
        ``A T`` for loadings A, columns in descending order of their sum of squares, signs fixed.
    transformation : ndarray of shape (k, k)
        T; orthogonal for varimax.
    phi : ndarray of shape (k, k)
        ``(T'T)^-1``: the correlations of the rotated unit scores; I for varimax.
    converged : bool
    """

    loadings: Matrix
    transformation: Matrix
    phi: Matrix
    converged: bool


def varimax(A: Matrix) -> tuple[Matrix, bool]:
    """Return the orthogonal R (k, k) that maximises the variance of the squared entries of each column of ``A R``.

    Each round replaces R by the orthogonal factor of ``A'(B^3 - B diag(B'B) / d)``, ``B = A R``, the gradient of the
    criterion.

    Returns
    -------
    R : ndarray of shape (k, k)
    converged : bool

    Notes
    -----
    Kaiser (1958); all planes at a time instead of one after the other, as in R's ``varimax``.
    """
    R, reached = np.eye(A.shape[1]), 0.0
    for _ in range(MAX_ROUNDS):
        B = A @ R
        U, s, Vt = np.linalg.svd(A.T @ (B**3 - B * ((B**2).sum(axis=0) / len(A))))
        R, before, reached = U @ Vt, reached, float(s.sum())
        if reached < before * (1 + TOLERANCE):
            return R, True
    return R, False


def rotate(A: Matrix, method: str, power: float) -> Rotated:
    """Rotate loadings A (d, k), with Kaiser's normalisation: rows have length 1 while the rotation is sought.

    Promax fits ``B Q`` to ``sign(B) |B|^power``, B the varimax loadings, with factors of variance 1 (Hendrickson &
    White 1964).

    Parameters
    ----------
    method : {"varimax", "promax"}
    power : float
        Of promax.
    """
    lengths = np.linalg.norm(A, axis=1, keepdims=True)
    normal = A / np.where(lengths > 0, lengths, 1.0)
    T, converged = varimax(normal)
    if method == "promax":
        B = normal @ T
        Q = np.linalg.solve(B.T @ B, B.T @ (B * np.abs(B) ** (power - 1)))
        T = T @ (Q * np.sqrt(np.diagonal(np.linalg.inv(Q.T @ Q))))
    T = T[:, np.argsort(-((A @ T) ** 2).sum(axis=0), kind="stable")]
    B = A @ T
    largest = B[np.abs(B).argmax(axis=0), np.arange(B.shape[1])]
    T = T * np.where(largest < 0, -1.0, 1.0)
    return Rotated(A @ T, T, np.asarray(np.linalg.inv(T.T @ T), np.float64), converged)
