"""One solve from moments: the numerical range of a scatter, and every penalty in the units of its columns.

Columns are equilibrated by powers of two, so that no unit costs a digit. Stored values are the data: directions are
dropped only where they are rounding of the computation, whatever the stored dtype. Where that leaves too few digits,
one more read sums the same moments of rows ``z = T'(x - mean)``, whose scatter is near the identity (Yamamoto,
Nakatsukasa, Yanagisawa & Fukaya 2015, CholeskyQR2), and the same functions solve them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvalsh, qr, solve_triangular, svd
from scipy.linalg.lapack import dpocon, dpotrf

from bigpca.arrays import Matrix, Vector
from bigpca.errors import warn_approximation
from bigpca.records import stored
from bigpca.solvers.eigh import ENOUGH, EPS, FAINT, NOISE, TOLD, whole_spectrum

PART = 1e-3  # of a column in directions that are dropped, from which on it is named


@dataclass(frozen=True)
class Frame:
    """Coordinates ``z = T'(x - mean)`` of columns x; ``x - mean = R z``.

    Attributes
    ----------
    T, R : ndarray of shape (p, p), or (p,) of diagonal ones
    noise : ndarray of shape (p, p), or (p,)
        What the rounding of rows that are centred in float64 adds to the scatter of z.
    """

    T: Matrix = stored("d", "d")
    R: Matrix = stored("d", "d")
    noise: Matrix = stored("d", "d")

    @classmethod
    def equilibrating(cls, squares: Vector, noise: Matrix) -> Frame:
        """Return the frame that divides columns by the powers of two nearest to the roots of their sums of squares.

        Columns that vary by no more than the rounding of their values are 0 in it, as constant ones are: else what is
        rounding of a large constant is noise of all directions.

        Parameters
        ----------
        squares : ndarray of shape (p,)
        noise : ndarray of shape (p,), or (p, p)
            That of x.
        """
        E = np.ldexp(1.0, np.rint(np.log2(np.where(squares > 0, squares, 1.0)) / 2).astype(int))  # without rounding
        varies = squares > NOISE * (noise if noise.ndim == 1 else np.diagonal(noise))
        # R T = I on the columns that vary: coordinates and back, for directions and for products.
        T, R = np.where(varies | (squares == 0), (1 / E, E), 0.0)
        inverse = np.where(varies, 1 / E, 0.0)
        return cls(T, R, noise * inverse * (inverse if noise.ndim == 1 else inverse[:, None]))

    def into(self, A: Matrix) -> Matrix:
        """Return T'A (p, m)."""
        return _times(self.T.T, A)

    def congruent(self, S: Matrix) -> Matrix:
        """Return ``T'S T`` of a symmetric S."""
        return self.into(self.into(S).T)

    def out(self, A: Matrix) -> Matrix:
        """Return R A (p, m)."""
        return _times(self.R, A)

    def back(self, A: Matrix) -> Matrix:
        """Return T A (p, m): directions w of x with ``w'(x - mean) = a'z``."""
        return _times(self.T, A)

    def divided(self, units: Vector) -> Frame:
        """Return the frame of columns that are divided by ``units`` (p,)."""
        return Frame(_times(units, self.T), _times(1 / units, self.R), self.noise)


def _times(D: Matrix, A: Matrix) -> Matrix:
    """Return D A, where D may be a diagonal (p,)."""
    return np.asarray(D @ A if D.ndim == 2 else D.reshape(-1, *(1,) * (A.ndim - 1)) * A)


@dataclass(frozen=True)
class Solution:
    """V with ``V'(S + alpha I) V = I`` on the numerical range of S, in the units of the columns.

    Attributes
    ----------
    scatter : Scatter
    alpha : float
    triangular : ndarray of shape (p, p), or None
        Lower K with ``K K' = T'(S + alpha I) T``, where no direction is rounding.
    error : float
        Estimated relative error of what is solved with it, by the rounding of S.
    """

    scatter: Scatter
    alpha: float
    triangular: Matrix | None
    error: float

    @property
    def rank(self) -> int:
        """r: columns of V."""
        return len(self.scatter.S) if self.triangular is not None else len(self.scatter.spectral.s)

    @cached_property
    def _weights(self) -> Vector:
        # Of V = U (s^2 + alpha)^-1/2, relative to the duals U / s: without a penalty, 1.
        s = self.scatter.spectral.s
        return s / np.hypot(s, np.sqrt(self.alpha))

    def across(self, A: Matrix) -> Matrix:
        """Return V'A (r, m) of A in the range of S, in the coordinates of the frame."""
        if self.triangular is not None:
            return np.asarray(solve_triangular(self.triangular, A, lower=True, check_finite=False))
        found = self.scatter.spectral
        return self._weights[:, None] * (found.W.T @ (found.inverse @ A))

    def along(self, U: Matrix) -> Matrix:
        """Return V U (p, m): directions of the columns."""
        if self.triangular is not None:
            return self.scatter.frame.back(self._raised(U))
        return self.scatter.spectral.duals @ (self._weights[:, None] * U)

    def products(self, U: Matrix) -> Matrix:
        """Return S V U (p, m)."""
        if self.triangular is not None:
            return self.scatter.frame.out(self.scatter.S @ self._raised(U))
        # S U / s = U s = F W: nothing is divided by small s and multiplied by it again.
        found = self.scatter.spectral
        return np.asarray(found.F @ (found.W @ (self._weights[:, None] * U)))

    def _raised(self, U: Matrix) -> Matrix:
        """Return K'^-1 U: directions in the coordinates of the frame."""
        return np.asarray(solve_triangular(self.triangular, U, trans=1, lower=True, check_finite=False))


@dataclass(frozen=True)
class Spectral:
    """``S = F F'`` on the numerical range of S (p, p), and ``F = U diag(s) W'``.

    Attributes
    ----------
    F : ndarray of shape (p, r), in the units of the columns
    inverse : ndarray of shape (r, p)
        h with ``h T'S T h' = I``, of coordinates of the frame.
    s : ndarray of shape (r,), descending; W : ndarray of shape (r, r)
    axes : ndarray of shape (p, p)
        U, and orthonormal columns that complete it.
    duals : ndarray of shape (p, r)
        ``U / s``.
    """

    F: Matrix
    inverse: Matrix
    s: Vector
    W: Matrix
    axes: Matrix
    duals: Matrix


@dataclass(frozen=True)
class Scatter:
    """A scatter S in the coordinates of a frame, and what is known of its rounding.

    Attributes
    ----------
    S : ndarray of shape (p, p); ``T'S_xx T``, symmetric
    frame : Frame
    precision : float
        eps of the products.
    freedom : int
        Most directions in which the rows can differ: n - 1, or fewer.
    """

    S: Matrix = stored("d", "d")
    frame: Frame = stored(of=Frame)
    precision: float = stored(of=float, least=0)
    freedom: int = stored(of=int, least=0)

    @classmethod
    def of(cls, S: Matrix, noise: Matrix, precision: float, freedom: int) -> Scatter:
        """Return the scatter S (p, p) of columns, equilibrated; ``noise`` is that of x, (p,) or (p, p)."""
        frame = Frame.equilibrating(np.diagonal(S), noise)
        return cls(frame.congruent(S), frame, precision, freedom)

    @property
    def least(self) -> float:
        """Rounding of eigenvalues of S, relative to the largest."""
        p = len(self.S)
        return float(max(p * EPS, np.sqrt(p) * self.precision))

    @cached_property
    def _eigen(self) -> tuple[Vector, Matrix, Vector]:
        """Eigenvalues, descending, eigenvectors (p, p), and the noise of each."""
        # The noise of a direction v is v'N v: rounding of the stored values, seen along it.
        values, V = whole_spectrum(self.S)
        values, N = np.maximum(values, 0.0), self.frame.noise
        return values, V, (V**2).T @ N if N.ndim == 1 else np.einsum("ij,ij->j", V, N @ V)

    @property
    def level(self) -> float:
        """Eigenvalues up to it are rounding of the products."""
        return self.least * float(self._eigen[0][0])

    @cached_property
    def kept(self) -> NDArray[np.bool_]:
        """Whether each eigenvalue is more than rounding (p,)."""
        values, _, noise = self._eigen
        return (values > np.maximum(self.level, self._floor * noise)) & (np.arange(len(values)) < self.freedom)

    @cached_property
    def rank(self) -> int:
        """Numerical rank of S."""
        return len(self.S) if self.solved().triangular is not None else int(self.kept.sum())

    @property
    def cut(self) -> tuple[int, ...]:
        """Columns, none of them constant, along whose combinations one read knows no digit."""
        values, V, _ = self._eigen
        live = np.diagonal(self.S) > 0
        if self.frame.T.ndim == 2 or int(self.kept.sum()) >= min(int(live.sum()), self.freedom):
            return ()
        # The share of each column that lies in the directions which were dropped.
        lost = (V[:, ~self.kept & (np.arange(len(values)) < self.freedom)] ** 2).sum(axis=1)
        return tuple(np.flatnonzero(live & (lost > PART)).tolist())

    @property
    def factor(self) -> Matrix:
        """F (p, r), in the units of the columns, with ``S = F F'`` on the numerical range of S."""
        values, V, _ = self._eigen
        return self.frame.out(V[:, self.kept] * np.sqrt(values[self.kept]))

    @cached_property
    def spectral(self) -> Spectral:
        """The factor of S and its singular value decomposition."""
        values, V, _ = self._eigen
        roots = np.sqrt(values[self.kept])
        inverse = (V[:, self.kept] / roots).T
        F = self.factor
        if not len(roots):
            return Spectral(F, inverse, roots, np.zeros((0, 0)), np.eye(len(V)), F)
        axes, s, W = graded_svd(F)
        full = len(s) == len(V)
        duals = self.frame.back(inverse.T @ W) if full else axes[:, : len(s)] / s
        if full:
            axes = duals * s  # whose rows have the digits of each unit
        return Spectral(F, inverse, s, W, axes, duals)

    @property
    def _floor(self) -> float:
        """Times the noise of a direction, up to which it is rounding: of each of p coordinates in a second read."""
        return NOISE * (1 if self.frame.T.ndim == 1 else len(self.S))

    def solved(self, alpha: float = 0.0) -> Solution:
        """Return V with ``V'(S_xx + alpha I) V = I``."""
        p, T, N = len(self.S), self.frame.T, self.frame.noise
        # In the coordinates z = T'x, the penalty alpha |b|^2 is alpha c'T'T c, with b = T c.
        own = self.S.copy()
        if alpha:
            own += alpha * (np.diag(T**2) if T.ndim == 1 else T.T @ T)

        def factor(less: float) -> Matrix | None:
            shifted = own.copy()
            shifted.flat[:: p + 1] -= less
            if less:
                shifted -= self._floor * (np.diag(N) if N.ndim == 1 else N)
            L, failed = dpotrf(shifted.T, lower=True, overwrite_a=True)
            return None if failed else L

        # No direction is rounding if a matrix less all rounding has a Cholesky factor; trace(S) >= lambda_max.
        lost = self.least * float(np.trace(self.S))
        sure = (alpha > 0 or self.freedom >= p) and factor(NOISE * lost) is not None
        if sure and (L := factor(0.0)) is not None:
            # The smallest eigenvalue from LAPACK's estimate of the condition in the 1-norm, which costs p^2.
            norm = float(np.abs(own).sum(axis=0).max())
            smallest = norm * float(dpocon(L, norm, uplo="L")[0])
            return Solution(self, alpha, L, max(lost / smallest, self._moved(smallest)))
        values, V, noise = self._eigen
        # Directions that a second read may find: more than rounding of its rows, as far as this one tells.
        most = values + self.least * (V**2).T @ np.diagonal(self.S)
        found = most > np.maximum(FAINT * NOISE * noise, EPS * self.level)
        unsure = self.kept if T.ndim == 2 else self.kept | (found & (np.arange(p) < self.freedom))
        V = V[:, unsure]
        left = eigvalsh(V.T @ own @ V, subset_by_index=(0, 0)) if alpha and unsure.any() else values[unsure]
        smallest = max(float(left.min(initial=np.inf)), self.level)
        return Solution(self, alpha, None, max(self.level / smallest, self._moved(smallest, noise[unsure])))

    def _moved(self, smallest: float, noise: Vector | None = None) -> float:
        """Return how far rounding of each row moves the faintest direction of a second read, whose rows are rounded.

        Those of the first read are the stored values, which are what is solved. ``noise`` is that of the directions
        (r,), of all by default.
        """
        if self.frame.T.ndim == 1:
            return 0.0
        most = np.trace(self.frame.noise) if noise is None else noise.max(initial=0.0)
        return float(np.sqrt(NOISE * most / (self.freedom * smallest)))

    def refined(self) -> Frame:
        """Return the frame in which one more read sums the scatter: ``T V (L + t)^-1/2`` of all directions."""
        values, V, _ = self._eigen
        # There S is near the identity, and its faintest direction is summed to its own digits. Without the level t, a
        # direction that the first read did not resolve would be divided by 0.
        roots = np.sqrt(values + self.level)
        own = V / roots
        return Frame(self.frame.back(own), self.frame.out(V * roots), own.T @ _times(self.frame.noise, own))


def graded_svd(F: Matrix) -> tuple[Matrix, Vector, Matrix]:
    """Return U (p, p), s (r,), W (r, r) of ``F = U diag(s) W'`` (p, r), whose rows differ by the units of columns."""
    # QR with pivoting of F' finds small singular values to their own digits, which a decomposition of F itself would
    # find to those of the largest (Drmac & Veselic 2008).
    Q, R, pivots = qr(F.T, mode="economic", pivoting=True, check_finite=False)
    U, s, Wt = svd(R.T, check_finite=False)
    axes = np.empty_like(U)
    axes[pivots] = U
    return axes, s, Q @ Wt.T


def warn_dependent(error: float, of: str, remedy: str) -> None:
    """Warn of a solution that rounding may change, with its estimated relative error and what can be done."""
    if error > ENOUGH:
        warn_approximation(
            f"{of} are so nearly dependent that rounding may change the solution by {error:.1g} of its size "
            f"(solve_error_). {remedy}"
        )


def least_squares(x: Scatter, S_ze: Matrix, alpha: float, B: Matrix | None = None) -> tuple[Matrix, float]:
    """Return ``(S_xx + alpha I)^-1 S_xy`` (p, q), of least norm where alpha is 0, and its estimated relative error.

    Parameters
    ----------
    x : Scatter
    S_ze : ndarray of shape (p, q)
        Between the coordinates z and ``e = y - mean_y - B'(x - mean)``.
    B : ndarray of shape (p, q), or None for 0
    """
    if B is not None:
        # e = y - mean_y - B'(x - mean), so S_zy = S_ze + S_zx B, and x = R z.
        S_ze = S_ze + x.S @ _times(x.frame.R.T, B)
    # V V' = (S + alpha I)^-1, so b = V (V'S_xy).
    solution = x.solved(alpha)
    return solution.along(solution.across(S_ze)), solution.error


@dataclass(frozen=True)
class Coefficients:
    """Least squares with a penalty, and what rounding may change in it, relative to its size.

    Sizes are in units of the columns' deviations and of each target.

    Attributes
    ----------
    x : Scatter
    alpha : float
    b : ndarray of shape (p, q)
    squares, sums : ndarray of shape (p,)
        Of each column of X about its mean, and about 0.
    totals, residuals : ndarray of shape (q,)
        Sums of squares of each target, and of what b leaves of it.
    """

    x: Scatter
    alpha: float
    b: Matrix
    squares: Vector
    sums: Vector
    totals: Vector
    residuals: Vector

    @property
    def _per_target(self) -> Vector:
        return np.divide(1.0, np.sqrt(self.totals), out=np.zeros(len(self.totals)), where=self.totals > 0)

    def _size(self, b: Matrix) -> float:
        return float(np.linalg.norm(np.sqrt(self.squares)[:, None] * b * self._per_target))

    def error(self) -> float:
        """Return the estimated error by the rounding of the computation.

        Of a second read ``|M| rho``: with ``F = R V L^1/2 = U s W'``, b is ``M = U diag(s / (s^2 + alpha)) W'L^-1/2``
        times ``V'S_ze``, along the eigenvectors V of S, and rho the error of that; of a first read a bound of it.
        """
        x, size, totals = self.x, self._size(self.b), np.sqrt(self.totals)
        if size == 0.0:
            return 0.0
        if x.frame.T.ndim == 1:
            # Twice the relative error of the solve, of b and of a target that b does not explain, by their sizes in the
            # frame.
            in_frame = float(np.linalg.norm(x.frame.R[:, None] * self.b * self._per_target))
            targets = float(np.sqrt(np.count_nonzero(totals) / np.trace(x.S)))
            return min(2 * x.solved(self.alpha).error * (1 + targets / in_frame), 1.0)
        values, V, noise = x._eigen
        # Directions that were dropped are those of least norm, or may be as large as what they were taken for.
        used = (x.kept | (self.alpha > 0)) & (np.arange(len(values)) < x.freedom)
        values = np.maximum(np.where(x.kept, values, 0.0), np.maximum(x._floor * noise, EPS * x.level))
        V, L = V[:, used], np.sqrt(values[used, None])
        # Twice the chance correlation of a target with rounding, which is even within half a unit of its digits.
        faint = np.sqrt(noise[used] / (3 * x.freedom))[:, None]
        lengths = np.linalg.norm(np.sqrt(self.sums)[:, None] * self.b, axis=0)
        rho = faint * np.sqrt(self.residuals) + EPS * L * (len(values) * totals + np.sqrt(x._floor) * lengths)
        # M of the docstring, with absolute values: the parts of rho may have any signs.
        axes, s, W = graded_svd(x.frame.out(V * L[:, 0]))
        root = np.hypot(s, np.sqrt(self.alpha))
        shares = np.divide(s / root, root, out=np.zeros(len(s)), where=root > 0)
        return min(self._size(np.abs((axes[:, : len(s)] * shares) @ (W / L).T) @ rho) / size, 1.0)

    def stored(self, noise: Vector, weight: float) -> float:
        """Return the standard deviation of b by a rounding of stored values that adds ``noise`` (p,) to the squares.

        ``cov(b) = G (diag(noise) residual / n + S sum_j noise_j b_j^2 / n) G`` with ``G = (S + alpha I)^-1``.
        """
        size = self._size(self.b)
        if size == 0.0:
            return 0.0
        solution = self.x.solved(self.alpha)
        V = solution.along(np.eye(solution.rank))  # G = V V'
        G = V @ V.T
        # In units of deviations, as sizes are: rows of G times the roots of the squares.
        G *= np.sqrt(self.squares)[:, None]
        first, second = float((G**2).sum(axis=0) @ noise), float(self.squares @ (V**2).sum(axis=1))
        second -= self.alpha * float((G**2).sum())  # G S G = G - alpha G^2
        variances = (first * self.residuals + max(second, 0.0) * (noise @ self.b**2)) / weight
        return float(np.sqrt(variances @ self._per_target**2)) / size


def warn_stored(changed: float, roundings: tuple[float, ...]) -> None:
    """Warn of a solution that the rounding of the stored values changes, by how much of its size."""
    if changed > TOLD and max(roundings) > EPS:
        warn_approximation(
            f"values are stored to a relative {max(roundings):.1g}, which changes the solution by about {changed:.1g} "
            "of its size: columns far from 0 are rounded coarsely, or nearly dependent. The result is that of the "
            "stored values. Store float64, deviations from a constant, or fewer columns."
        )
