"""Nyström approximation of a symmetric matrix from one product, Y = A W.

Of a positive semi-definite one first, whose values never exceed the eigenvalues; then of one that is not: the evidence
for that, and leading eigenpairs by signed value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigvalsh, qr, solve_triangular

from bigpca.arrays import Matrix, Vector, norm_of
from bigpca.blas import blas_threads
from bigpca.solvers.eigh import top_eigenpairs

SHIFT = 4.0  # of precision |Y|_F: what keeps the rounded A + nu I positive semi-definite
STRIP_ROWS = 2048  # rows worked on at a time
ORTHONORMAL = 1e-10  # largest entry of W'W - I that needs no correction
SMALLEST_DIRECTION = 1e-6  # directions of W below this share of |W|_2, or sqrt(precision) of it, are dropped
ONE_STEP = 1e-3  # a W with a smaller direction is made orthonormal in two steps
CLEAR_DIRECTION = 1e-2  # the same of an indefinite A, where a small one only magnifies rounding
KEPT = 2 / 3  # directions of W'AW that are kept, the largest by modulus
UNCANCELLED = 3.0  # times the most negative eigenvalue of W'AW: larger ones are kept, too
ROUNDING = 4.0  # of precision |Y|_F: smaller eigenvalues of W'AW are rounding
SIGNIFICANT = 1e-5  # share of |A|_F below which a negative eigenvalue is overlooked, as scikit-learn does of lambda_1


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
    kept = s > CLEAR_DIRECTION * s[0]
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
