"""Nyström approximation of a symmetric positive semi-definite matrix from one product: Y = A W."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import LinAlgError, cholesky, qr, solve_triangular

from bigpca.arrays import Matrix, Vector
from bigpca.blas import blas_threads
from bigpca.solvers.eigh import top_eigenpairs

SHIFT = 4.0  # of precision |Y|_F: what keeps the rounded A + nu I positive semi-definite
STRIP_ROWS = 2048  # rows worked on at a time
ORTHONORMAL = 1e-10  # largest entry of W'W - I that needs no correction
SMALLEST_DIRECTION = 1e-6  # directions of W below this share of |W|_2, or sqrt(precision) of it, are dropped
ONE_STEP = 1e-3  # a W with a smaller direction is made orthonormal in two steps


@dataclass(frozen=True)
class NystromApproximation:
    """``A_hat = Y (W'Y)^-1 Y'``: its eigenvalues, its leading eigenvectors, and its products.

    Attributes
    ----------
    values : ndarray of shape (q,), descending, >= 0; ``values[i]`` never exceeds the i-th
        eigenvalue of A but by rounding.
    vectors : ndarray of shape (k, N), orthonormal rows, also where values are 0.
    shift : float; nu, added to A before the factorisation and subtracted from the values.
    """

    values: Vector
    vectors: Matrix
    shift: float
    _factor: Matrix = field(repr=False)  # F (N, r), A_hat + its share of the shift = F F'
    _mixing: Matrix = field(repr=False)  # (r, r), A_hat = F mixing F'

    @property
    def trace(self) -> float:
        """Trace of A_hat: the sum of all q values."""
        return float(np.sum(self.values))

    def divided(self, exponent: int) -> NystromApproximation:
        """Return the approximation of ``A / 2^exponent``."""
        values, mixing = np.ldexp(self.values, -exponent), np.ldexp(self._mixing, -exponent)
        return replace(self, values=values, shift=float(np.ldexp(self.shift, -exponent)), _mixing=mixing)

    def multiply(self, omega: Matrix) -> Matrix:
        """Return ``A_hat omega`` (N, p) for omega (N, p); 4 N q p flops."""
        return self._factor @ (self._mixing @ (self._factor.T @ omega))

    def majorant_values(self, B: Matrix, norm_bound: float, k: int) -> Vector:
        """Bound the k largest eigenvalues of A from above by those of ``A_hat + norm_bound (I - B B')``.

        For W = B orthonormal, ``A_hat B = A B``: the remainder ``A - A_hat`` is positive semi-definite and zero on B,
        so with ``|A - A_hat|_2 <= norm_bound`` it is at most ``norm_bound (I - B B')``. Where a leading eigenvector
        lies in B up to an angle t, that adds ``norm_bound sin(t)^2`` to its eigenvalue, and not the whole norm_bound as
        Weyl's inequality does: an iteration that converges has bounds that close.

        Costs 6 N q^2 flops and one N x q array.

        Parameters
        ----------
        B : ndarray of shape (N, q); the W that this approximation was made from, with orthonormal columns.
        norm_bound : float
        k : int

        Returns
        -------
        ndarray of shape (k,), descending

        Notes
        -----
        With ``A_hat = F mixing F'``, ``C = B'F`` and ``F - B C = Q R``, the majorant is ``[C; R] mixing [C; R]' +
        norm_bound diag(0, I)`` in the basis [B, Q], and norm_bound elsewhere. R comes from Householder's QR: the Gram
        matrix of F - B C would give half the digits where eigenvalues are equal. What rounding leaves of B in it, eps
        |F|, is far below the slack of every bound.
        """
        F = self._factor
        # The part of F in the span of B, and what lies outside, by its triangular factor R.
        C = B.T @ F
        outside = np.empty(F.shape, order="F")
        np.subtract(F, np.matmul(B, C, out=outside), out=outside)
        R = qr(outside, mode="r", overwrite_a=True, check_finite=False)[0][: F.shape[1]]
        # A_hat in the basis [B, Q], plus the bound of what A_hat misses outside of B.
        joint = np.vstack([C, R])
        M = joint @ self._mixing @ joint.T
        M[len(C) :, len(C) :] += norm_bound * np.eye(len(R))
        # Orthogonal to both, only the bound is left.
        values = np.concatenate([np.linalg.eigvalsh(M), np.full(k, norm_bound)])
        return np.sort(values)[::-1][:k]


def nystrom_bytes(N: int, q: int, k: int, *, overwrite: bool = False) -> int:
    """Peak bytes of :func:`nystrom` beside W and Y: the factor (none with ``overwrite``), the vectors and their QR.

    Examples
    --------
    >>> f"{nystrom_bytes(100_352, 300, 50) / 2**20:.0f} MiB beside two arrays of {8 * 100_352 * 300 / 2**20:.0f} MiB"
    '369 MiB beside two arrays of 230 MiB'
    """
    factor = 0 if overwrite else 8 * N * q
    return factor + 24 * N * k + 32 * STRIP_ROWS * q + 64 * q * q


def nystrom(
    W: Matrix, Y: Matrix, k: int, *, precision: float, threads: int | None = None, overwrite: bool = False
) -> NystromApproximation:
    """Approximate a symmetric positive semi-definite A of size N from ``Y = A W`` by ``A_hat = Y (W'Y)^-1 Y'``.

    A is shifted first, so that the rounding of the products cannot make it indefinite: with W orthonormal,
    ``nu = 4 precision |Y|_F``, ``Y_nu = Y + nu W``, ``W'Y_nu = R'R``, ``F = Y_nu R^-1 = U diag(s) V'``, and the
    eigenpairs are ``(max(s^2 - nu, 0), U)``. Where Cholesky fails, R comes from the leading eigenpairs of W'Y_nu.

    Costs 7 N q^2 flops (twice that for a W that is not orthonormal); memory beside W and Y is :func:`nystrom_bytes`.

    Parameters
    ----------
    W : ndarray of shape (N, q), float32 or float64
        Any test matrix: a sketch, or an orthonormal basis. It may lack rank: directions below ``sqrt(precision)
        |W|_2``, or 1e-6 of it, are dropped.
    Y : ndarray of shape (N, q), float32 or float64; A W.
    k : eigenvectors wanted, 1 <= k <= min(q, N).
    precision : relative rounding of the products: 1.2e-7 for float32, 2.2e-16 for float64.
    threads : BLAS threads; None leaves the process's setting.
    overwrite : let the factor replace Y (where Y is float64 and writeable).

    Returns
    -------
    NystromApproximation

    Raises
    ------
    ValueError
        When the shapes do not fit, k is out of range, or Y is not finite.

    Notes
    -----
    Tropp, Yurtsever, Udell & Cevher (2017), Fixed-rank approximation of a positive-semidefinite matrix from streaming
    data, algorithm 3. NOTE: the antisymmetric part K of W'Y is rounding, and Y loses it as well (Y - W K): then Y_nu is
    exactly a product of a symmetric matrix within 3 |D|_2 of A + nu I, D the rounding of Y, and no value can exceed its
    eigenvalue by more while nu >= 3 |D|_2. NOTE: the paper has nu = sqrt(N) eps |Y|_2. On float32 products of N = 300
    to 1500 that is 3 to 30 times 3 |D|_2, growing with N, and a direction that W sees at length sqrt(q / N) loses nu N
    / q: at N = 25,088, q = 500 and i^-2 an error of 0.07 in lambda_20 instead of 0.006. The Frobenius norm, which |D|_2
    follows, gives 0.8 to 6 times 3 |D|_2 on all spectra. NOTE: s and V come from F'F, not from an SVD of F: its
    rounding, eps |F|^2, is below nu.

    Examples
    --------
    >>> A = np.diag([4.0, 2.0, 0.0])
    >>> W = np.eye(3)[:, :2]
    >>> nystrom(W, A @ W, 1, precision=2.2e-16).values.round(9).tolist()
    [4.0, 2.0]
    """
    exponent = _check(W, Y, k)
    N, q = Y.shape
    in_place = overwrite and Y.dtype == np.float64 and Y.flags.writeable
    F = np.ldexp(Y, -exponent, out=Y) if in_place else np.ldexp(Y, -exponent, dtype=np.float64)
    with blas_threads(threads, 10.0 * N * q**2):
        # 1. W made orthonormal: the shift nu is stated for orthonormal test matrices.
        T = _whitening(W, max(SMALLEST_DIRECTION, float(np.sqrt(precision))))
        # 2. The shift: more than the rounding of Y can take from an eigenvalue (second NOTE).
        nu = SHIFT * precision * float(np.linalg.norm(F))
        nu *= 1.0 if T is None else float(np.linalg.norm(T, 2))
        # 3. F with F F' = Y_nu (W'Y_nu)^-1 Y_nu', the Nystrom approximation of A + nu I.
        F = _factor(W, F, T, nu)
        # 4. Its eigenpairs, from the small matrix F'F = V diag(s^2) V'; the shift is subtracted again.
        squares, V = top_eigenpairs(_gram(F, F))
        values = np.maximum(squares - nu, 0.0)
        safe = np.where(squares > 0, squares, 1.0)
        # A_hat = F mixing F': what bounds need of A_hat without its vectors.
        mixing = (V.T * (values / safe)) @ V
        # 5. Vectors U = F V / s; those whose s is rounding are left to completion by orthonormal rows.
        used = squares[:k] > N * np.finfo(np.float64).eps * squares[0]
        columns, coefficients = np.zeros((N, k), order="F"), V[:k] * (used / np.sqrt(safe[:k]))[:, None]
        np.matmul(F, coefficients.T, out=columns[:, : len(coefficients)])
        vectors = orthonormal_rows(columns.T)
    everything = np.zeros(q)
    everything[: len(values)] = np.ldexp(values, exponent)
    return NystromApproximation(everything, vectors, float(np.ldexp(nu, exponent)), F, np.ldexp(mixing, exponent))


def _check(W: Matrix, Y: Matrix, k: int) -> int:
    """Check the input and return the binary exponent of Y's largest entry."""
    largest = max(float(np.max(Y)), -float(np.min(Y)))
    if not np.isfinite(largest):
        raise ValueError(f"the product Y holds {largest}, so it has no eigenvalues. Check the data.")
    return int(np.frexp(largest)[1])


def _gram(A: Matrix, B: Matrix) -> Matrix:
    """Return ``A'B`` (q, q) in float64, strip by strip: no copy of either in another type."""
    total = np.zeros((A.shape[1], B.shape[1]))
    for i in range(0, len(A), STRIP_ROWS):
        left = A[i : i + STRIP_ROWS].astype(np.float64, copy=False)
        right = left if A is B else B[i : i + STRIP_ROWS].astype(np.float64, copy=False)
        total += left.T @ right
    return total


def _whitening(W: Matrix, smallest: float) -> Matrix | None:
    """Return T (q, r) with ``(W T)'(W T) = I``, or None when W is orthonormal as it is.

    The first T is wrong by the rounding of W'W, magnified by 1 / s^2 for a direction of length s |W|_2. A second step,
    on W T, leaves rounding alone (Cholesky QR2: Yamamoto, Nakatsukasa, Yanagisawa & Fukaya 2015).
    """
    G = _gram(W, W)
    if np.max(np.abs(G - np.eye(len(G)))) <= ORTHONORMAL:
        return None
    T = _inverse_root(G, smallest**2)
    lengths = np.linalg.norm(T, axis=0)  # 1 / s
    if lengths[0] >= ONE_STEP * lengths[-1]:
        return T
    # The second step of Cholesky QR2, on W T.
    G = np.zeros((T.shape[1], T.shape[1]))
    for i in range(0, len(W), STRIP_ROWS):
        rows = W[i : i + STRIP_ROWS] @ T
        G += rows.T @ rows
    return T @ _inverse_root(G, 0.0)


def _factor(W: Matrix, Y: Matrix, T: Matrix | None, nu: float) -> Matrix:
    """Return F (N, r) with ``F F'`` the Nyström approximation of A + nu I; Y is the workspace."""
    Y, S = (Y, _gram(W, Y)) if T is None else _orthonormal_product(W, Y, T)
    # K = (S - S') / 2, the antisymmetric part of W'Y, is rounding: Y loses W K, and gains nu W (first NOTE).
    shift = (S.T - S) / 2 + nu * np.eye(len(S))  # nu I - K
    if T is not None:
        shift = T @ shift
    S = (S + S.T) / 2 + nu * np.eye(len(S))
    try:
        # F = Y_nu R^-1 with R'R = W'Y_nu; where that is singular to rounding, its pseudo-inverse root.
        R, inverse = cholesky(S, check_finite=False), None
    except LinAlgError:
        R, inverse = None, _inverse_root(S, len(S) * np.finfo(np.float64).eps)
    for i in range(0, len(Y), STRIP_ROWS):
        rows = Y[i : i + STRIP_ROWS] + W[i : i + STRIP_ROWS] @ shift
        if inverse is None:
            rows = solve_triangular(R, rows.T, trans="T", overwrite_b=True, check_finite=False).T
        else:
            rows = rows @ inverse
        Y[i : i + STRIP_ROWS, : rows.shape[1]] = rows
    return Y[:, : rows.shape[1]]


def _orthonormal_product(W: Matrix, Y: Matrix, T: Matrix) -> tuple[Matrix, Matrix]:
    """Return ``Y T`` (N, r), in place of Y, and ``S = (W T)'(Y T)``.

    NOTE: ``T'(W'Y) T`` would be cheaper, but magnifies the rounding of W'Y by |T|^2, and nu only allows for |T|.
    """
    S = np.zeros((T.shape[1], T.shape[1]))
    for i in range(0, len(Y), STRIP_ROWS):
        rows = Y[i : i + STRIP_ROWS] @ T
        S += (W[i : i + STRIP_ROWS] @ T).T @ rows
        Y[i : i + STRIP_ROWS, : T.shape[1]] = rows
    return Y[:, : T.shape[1]], S


def _inverse_root(S: Matrix, smallest: float) -> Matrix:
    """Return E (q, r) with ``E'S E = I`` on the directions of S above ``smallest |S|``; one zero column for S = 0."""
    # E = V s^-1/2 has E'S E = I.
    s, V = top_eigenpairs(S)
    r = max(1, int(np.count_nonzero(s > smallest * s[0])))
    return (V[:r] / np.sqrt(s[:r])[:, None]).T if s[0] > 0 else np.zeros((len(S), 1))


def orthonormal_rows(rows: Matrix) -> Matrix:
    """Return rows (k, N) made orthonormal, in place; zero rows are replaced by any that complete them.

    Eigenvectors from F'F lose orthogonality as eps |F|^2 / s_i^2. Householder's QR restores it, the leading ones moving
    least, and its Q is orthonormal even for columns of zeros.
    """
    Q, R = qr(rows.T, mode="economic", overwrite_a=True, check_finite=False)
    signs = np.where(np.diagonal(R) < 0, -1.0, 1.0)
    return np.ascontiguousarray((Q * signs).T)
