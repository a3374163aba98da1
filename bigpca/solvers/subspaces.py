"""How far computed axes can be turned away from the true ones: bounds on the sines of angles between subspaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

DEPENDENT = 1e-12  # of its length: an axis that adds less to those before it adds rounding


@dataclass(frozen=True)
class SeenAxes:
    """What a Nyström approximation A_hat shows of orthonormal axes U (k, N).

    Attributes
    ----------
    rayleigh : ndarray of shape (k, k); ``H = U A_hat U'``.
    off : ndarray of shape (k,); a bound of ``|A_hat U_j' - U_j' H_j|_2`` for the leading j axes.
    outside : ndarray of shape (k, k); the Gram matrix of the axes' parts outside of B: the identity without a B.
    """

    rayleigh: Matrix
    off: Vector
    outside: Matrix

    @property
    def missed(self) -> Vector:
        """A bound (k,) of the norm of the leading j axes' parts outside of B."""
        return np.sqrt(leading_norms(self.outside))

    @property
    def lowest(self) -> Vector:
        """A lower bound (k,) of the smallest eigenvalue of the leading block H_j (Weyl: diagonal and rest)."""
        diagonal = np.diagonal(self.rayleigh)
        return np.minimum.accumulate(diagonal) - leading_norms(self.rayleigh - np.diag(diagonal))


def see_axes(approximation: Any, axes: Matrix, basis: Matrix | None = None) -> SeenAxes:
    """Multiply axes (k, N) by A_hat, and split them by the basis B (N, q) on which A_hat
    is exact; 4 N (2 q + k) k flops.

    With ``A_hat U' = U' H + T`` and T orthogonal to U, the part of ``A_hat U_j'`` outside of the leading j axes is
    ``T_j + (the other axes)' H_(others, j)``, whose squared Frobenius norm is a sum of both.
    """
    U = axes.T
    product = approximation.multiply(U)
    H = axes @ product
    H = (H + H.T) / 2
    product -= U @ H
    squares = np.cumsum(H**2, axis=1)  # of row i, up to column j: those of rows beyond j leave the leading axes
    off = np.sqrt(np.cumsum(np.einsum("ij,ij->j", product, product)) + np.tril(squares, -1).sum(axis=0))
    if basis is None:
        return SeenAxes(H, off, np.eye(len(axes)))
    outside = np.subtract(U, basis @ (basis.T @ U), out=product)
    return SeenAxes(H, off, outside.T @ outside)


def leading_norms(G: Matrix) -> Vector:
    """Bound ``|G[:j, :j]|_2`` of a symmetric G (k, k) for all j at once: by the Frobenius norm or the largest row sum.

    >>> leading_norms(np.array([[3.0, 0.0], [0.0, 4.0]])).tolist()
    [3.0, 4.0]
    """
    frobenius = np.sqrt(np.cumsum(np.cumsum(G**2, axis=0), axis=1).diagonal())
    rows = np.maximum.accumulate(np.cumsum(np.abs(G), axis=1), axis=0).diagonal()
    return np.minimum(frobenius, rows)


@dataclass(frozen=True)
class SubspaceBounds:
    """What bounds the angles between leading computed axes U and leading eigenspaces of A, any number of each.

    Attributes
    ----------
    residuals : ndarray of shape (k,); at least ``|A U_j' - U_j' H_j|_2``, the slack for rounding included.
    deficits : ndarray of shape (k,); at least ``sum_(i <= j) lambda_i - tr(U_j A U_j')``, the same.
    lowest : ndarray of shape (k,); at most the smallest eigenvalue of H_j, and at most lambda_j.
    upper : ndarray of shape (P,), P > k; at least the leading P eigenvalues of A (0 for one beyond its size).
    """

    residuals: Vector
    deficits: Vector
    lowest: Vector
    upper: Vector

    def bound(self, j: int, p: int) -> float:
        """Bound the sine of the largest angle between the leading j axes and the span of the leading p eigenvectors.

        ``min(1, r_j / gap, sqrt(deficit_j / gap))`` with ``gap = lowest_j - upper_(p+1)``, and 1
        where that is not positive.

        Parameters
        ----------
        j, p : int; ``1 <= j <= k`` and ``j <= p < P``.

        Notes
        -----
        The sine is ``|S|_2`` for ``S = V'U_j'``, V the eigenvectors beyond the p-th, with eigenvalues Lambda of at most
        upper_(p+1). First, with ``A U_j' = U_j' H_j + R`` one has ``S H_j - Lambda S = -V'R``. Where Lambda >= 0,
        ``|S H_j| >= lowest_j |S|`` and ``|Lambda S| <= upper_(p+1) |S|``: ``|S| <= |R| / gap``, Davis & Kahan (1970),
        sin theta theorem. Second, the axes put a weight ``w_i = |U_j v_i|^2 <= 1`` on eigenvector i, j in all and ``s =
        |S|_F^2`` beyond the p-th. ``tr(U_j A U_j') = sum lambda_i w_i`` is largest where what is left, j - s, lies on
        the largest, so that it lacks at least ``s (lambda_j - lambda_(p+1))`` of the first j eigenvalues (Fan 1949):
        ``s <= deficit_j / gap``.

        If A = X'X and the axes are multiplied by X, as rows of XX' are in components, the bound stays:
        with X = Z Sigma V', ``|Z_p'(X u)| <= sqrt(upper_(p+1)) |S|``, and X shortens none
        of U_j to below sqrt(lowest_j).
        """
        gap = float(self.lowest[j - 1] - self.upper[p])
        if gap <= 0:
            return 1.0
        return min(1.0, float(self.residuals[j - 1]) / gap, float(np.sqrt(self.deficits[j - 1] / gap)))

    @property
    def errors(self) -> Vector:
        """Bounds (k,) for as many axes as eigenvectors: ``bound(j, j)`` for all j."""
        return np.array([self.bound(j, j) for j in range(1, len(self.lowest) + 1)])


def subspace_bounds(seen: SeenAxes, upper: Vector, norm_bound: float, slack: float) -> SubspaceBounds:
    """Bound angles from what A_hat shows of the axes and ``|A - A_hat|_2 <= norm_bound``; nothing is multiplied.

    ``A - A_hat`` is zero on B, so that ``|(A - A_hat) U_j'|_2 <= norm_bound |(I - B B') U_j'|_2``.

    Parameters
    ----------
    seen : SeenAxes
    upper : ndarray of shape (P,); upper bounds of the eigenvalues of A, which contain the slack.
    norm_bound : float
    slack : float; :func:`bigpca.solvers.certificates.rounding_slack`.
    """
    k = len(seen.off)
    shown = np.cumsum(np.diagonal(seen.rayleigh))
    deficits = np.cumsum(upper[:k]) - shown + slack * np.arange(1, k + 1)
    residuals = seen.off + norm_bound * seen.missed + slack
    return SubspaceBounds(residuals, np.maximum(deficits, 0.0), seen.lowest - slack, upper)


def orthonormal_axes(axes: Matrix) -> Matrix:
    """Return rows (k, N), of which the first j span what the first j axes (k, N) span; 0 for one
    that adds nothing to those.

    >>> orthonormal_axes(np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [1.0, 1.0, 0.0]])).round(9).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    rows = np.zeros_like(axes)
    for i in range(len(axes)):
        added = axes[i] - (axes[i] @ rows[:i].T) @ rows[:i]
        added -= (added @ rows[:i].T) @ rows[:i]
        length = float(np.linalg.norm(added))
        if length > DEPENDENT * float(np.linalg.norm(axes[i])):
            rows[i] = added / length
    return rows
