"""Rotations of loadings to simple structure: varimax and promax, on a thin (d, k) matrix."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
MAX_SWEEPS = 500
ROUNDING = 1e-15  # radians
TOLERANCE = 1e-10  # radians by which a sweep turns its planes at most, at the end


def varimax(A: Matrix) -> tuple[Matrix, float]:
    """Return the orthogonal R (k, k) that maximises the variance of the squared entries of each column of ``A R``.

    Planes of two columns are turned one after the other, each to the maximum of its own criterion, so that the sum
    never decreases. NOTE: the usual iteration, R from the singular vectors of the gradient, turns all planes at a time;
    near a perfect simple structure it alternates between two rotations and does not converge.

    Returns
    -------
    R : ndarray of shape (k, k)
    turned : float
        The largest angle of the last sweep, in radians; converged if it is at most ``TOLERANCE``.

    Notes
    -----
    Kaiser (1958).
    """
    columns, R = np.array(A.T, order="C"), np.eye(A.shape[1])
    turned = 0.0
    for _ in range(MAX_SWEEPS):
        turned = 0.0
        for i, j in combinations(range(len(columns)), 2):
            angle = _plane_angle(columns[i], columns[j])
            if abs(angle) > ROUNDING:
                # Both the loadings and R are turned in this plane.
                turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
                columns[[i, j]] = turn @ columns[[i, j]]
                R[:, [i, j]] = R[:, [i, j]] @ turn.T
            turned = max(turned, abs(angle))
        if turned <= TOLERANCE:
            break
    return R, turned


def _plane_angle(x: Vector, y: Vector) -> float:
    """Return the angle by which varimax turns two columns: ``tan 4 phi = (D - 2 A B / d) / (C - (A^2 - B^2) / d)``."""
    u, v = x**2 - y**2, 2 * x * y
    a, b = float(u.sum()), float(v.sum())
    over = 2 * float(u @ v) - 2 * a * b / len(x)
    under = float(u @ u - v @ v) - (a**2 - b**2) / len(x)
    return float(np.arctan2(over, under)) / 4


def rotate(A: Matrix, method: str, power: float) -> tuple[Matrix, float]:
    """Return the T by which loadings A (d, k) are rotated, with Kaiser's normalisation: rows have length 1 meanwhile.

    Promax fits ``B Q`` to ``sign(B) |B|^power``, B the varimax loadings, with factors of variance 1 (Hendrickson &
    White 1964).

    Parameters
    ----------
    method : {"varimax", "promax"}
    power : float
        Of promax.

    Returns
    -------
    T : ndarray of shape (k, k)
        Orthogonal for varimax; the columns of ``A T`` have descending sums of squares and fixed signs.
    turned : float
        As of :func:`varimax`.
    """
    lengths = np.linalg.norm(A, axis=1, keepdims=True)
    normal = A[lengths[:, 0] > 0] / lengths[lengths > 0][:, None]  # constant features do not count
    T, turned = varimax(normal)
    if method == "promax":
        B = normal @ T
        # Least squares fit of B to the target sign(B) |B|^power.
        Q = np.linalg.solve(B.T @ B, B.T @ (B * np.abs(B) ** (power - 1)))
        # Columns scaled so that the factors, whose covariance is (T'T)^-1, have variance 1.
        T = T @ (Q * np.sqrt(np.diagonal(np.linalg.inv(Q.T @ Q))))
    T = T[:, np.argsort(-((A @ T) ** 2).sum(axis=0), kind="stable")]
    B = A @ T
    # The entry of largest magnitude of each column is positive.
    largest = B[np.abs(B).argmax(axis=0), np.arange(B.shape[1])]
    return T * np.where(largest < 0, -1.0, 1.0), turned
