"""Rotations of loadings to simple structure: varimax, quartimax and promax."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from bigpca.arrays import Matrix, Vector
from bigpca.blas import one_blas_thread
from bigpca.errors import warn_approximation

MAX_SWEEPS = 500
ROUNDING = 1e-15  # radians
TOLERANCE = 1e-10  # radians by which a sweep turns its planes at most, at the end


def orthomax(A: Matrix, gamma: float = 1.0) -> tuple[Matrix, float]:
    """Return the orthogonal R (k, k) that maximises ``sum_j [sum_i b_ij^4 - gamma / d (sum_i b_ij^2)^2]`` of B = A R.

    Varimax, the variance of the squared entries of each column, is ``gamma = 1``; quartimax is ``gamma = 0``. Planes of
    two columns are turned one after the other, each to the maximum of its own criterion, so that the sum never
    decreases. NOTE: the usual iteration, R from the singular vectors of the gradient, turns all planes at a time; near
    a perfect simple structure it alternates between two rotations and does not converge.

    Returns
    -------
    R : ndarray of shape (k, k)
    turned : float
        The largest angle of the last sweep, in radians; converged if it is at most ``TOLERANCE``.

    Notes
    -----
    Kaiser (1958); Neuhaus & Wrigley (1954).
    """
    columns, R = np.array(A.T, order="C"), np.eye(A.shape[1])
    turned = 0.0
    for _ in range(MAX_SWEEPS):
        turned = 0.0
        for i, j in combinations(range(len(columns)), 2):
            angle = _plane_angle(columns[i], columns[j], gamma)
            if abs(angle) > ROUNDING:
                # Both the loadings and R are turned in this plane.
                turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
                columns[[i, j]] = turn @ columns[[i, j]]
                R[:, [i, j]] = R[:, [i, j]] @ turn.T
            turned = max(turned, abs(angle))
        if turned <= TOLERANCE:
            break
    return R, turned


def _plane_angle(x: Vector, y: Vector, gamma: float) -> float:
    """Return the angle by which two columns are turned: ``tan 4 phi = (D - 2 g A B) / (C - g (A^2 - B^2))``.

    With g = gamma / d.
    """
    # Of loadings x + iy of a plane, (x + iy)^2 = u + iv: the criterion is a cosine of 4 phi in sums of u and v.
    u, v = x**2 - y**2, 2 * x * y
    a, b = float(u.sum()), float(v.sum())
    d = max(len(x), 1)  # 0 without a loading
    over = 2 * float(u @ v) - gamma * (2 * a * b / d)
    under = float(u @ u - v @ v) - gamma * ((a**2 - b**2) / d)
    return float(np.arctan2(over, under)) / 4


def simple_structure(A: Matrix, method: str, power: float = 4.0, *, normalized: bool = True) -> Matrix:
    """Return the T (k, k) by which loadings A (d, k) are rotated; a rotation that does not converge is reported.

    Promax fits ``B Q`` to ``sign(B) |B|^power``, B the varimax loadings, with factors of variance 1 (Hendrickson &
    White 1964).

    Parameters
    ----------
    method : {"varimax", "quartimax", "promax"}
    power : float
        Of promax.
    normalized : bool
        Whether rows have length 1 meanwhile: Kaiser's normalisation.

    Returns
    -------
    ndarray of shape (k, k)
        Orthogonal except for promax; the columns of ``A T`` have descending sums of squares and fixed signs.
    """
    lengths = np.linalg.norm(A, axis=1, keepdims=True)
    own = lengths[:, 0] > 0  # constant features do not count
    normal = A[own] / (lengths[own] if normalized else lengths.max(initial=np.finfo(np.float64).tiny))
    with one_blas_thread():
        T, turned = orthomax(normal, 0.0 if method == "quartimax" else 1.0)
        if method == "promax":
            B = normal @ T
            # Least squares fit of B to the target sign(B) |B|^power.
            Q = np.linalg.solve(B.T @ B, B.T @ (B * np.abs(B) ** (power - 1)))
            # Columns scaled so that the factors, whose covariance is (T'T)^-1, have variance 1.
            T = T @ (Q * np.sqrt(np.diagonal(np.linalg.inv(Q.T @ Q))))
        T = T[:, np.argsort(-((A @ T) ** 2).sum(axis=0), kind="stable")]
        B = A @ T
    if turned > TOLERANCE:
        warn_approximation(
            f"{method} still rotated by {turned:.1g} radians after {MAX_SWEEPS} sweeps; at most {TOLERANCE:g} was "
            "expected. Keep fewer components, or treat the rotation as approximate."
        )
    # The entry of largest magnitude of each column is positive.
    largest = B[np.abs(B).argmax(axis=0), np.arange(B.shape[1])]
    return T * np.where(largest < 0, -1.0, 1.0)
