"""Dense symmetric eigenproblems: the small solve after the last pass.

``top_eigenpairs`` is the entrance. Few pairs of a large matrix come from a Lanczos iteration with a proof that none was
missed; all others from LAPACK.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, eigh
from scipy.linalg.blas import dsymv
from scipy.linalg.lapack import dpotrf

from bigpca.arrays import Matrix, Vector, mirror_upper, norm_of_upper
from bigpca.blas import blas_threads, threads_of_solve
from bigpca.devices import Device, device_of_solve, diagonal_of
from bigpca.seeds import normals

# The reduction to tridiagonal form that a dense solver starts with costs 4/3 d^3 flops, half of them bound by
# memory. A Lanczos iteration needs at most about as many products with a vector as the basis has columns, and 2 to
# 20 times less time for k of up to d / 20; but a Krylov space may miss an eigenvector. That it did not is shown by
# the Frobenius norm of what the space leaves of S, where the spectrum falls fast; or else found out by one Cholesky
# factorisation, d^3 / 3 flops at full speed: of ``(lambda_k + margin) I - (S - V diag(lambda) V')``, which
# exists if and only if no other eigenvalue is larger.

# Below, a dense solver takes at most 50 ms of one core, and no other thread (blas.ALONE). At d = 256, 512, 874, 1,000
# and 2,000 it takes 2, 9, 34, 50 and 440 ms of CPU for 2 to 10 pairs; an iteration 1, 2, 5, 5 and 25 where the spectrum
# falls as 1 / i^2, but 7 to 10, 17 to 25, 36 to 44, 47 to 60 and 280 to 360 where it is flat, and from 874 on 84, 118
# and 800 where 5 of 10 that are asked for stand out, and a dense solve follows: no gain that is sure before 1,024.
MIN_SIZE = 1024
MIN_RATIO = 20  # of d to k
ORTHONORMALITY = 1e-12  # of Lanczos vectors, below which their residuals prove them
EPS = float(np.finfo(np.float64).eps)
ENOUGH = 1e-3  # estimated relative error of a solution above which rows are read once more, or a warning tells
AGAIN = 1e-6  # the same of coefficients, and of what covariates leave, above which rows are read once more
TOLD = 1e-2  # of a solution: a change by the rounding of the stored values that is told
NOISE = 4.0  # times the variance that rounding adds to a direction: below it, no more is known
FAINT = 100.0  # times NOISE: a direction below it is known to a tenth at best, and is no loss where it is dropped
ROUNDED = 10.0  # eps of the products that rounding may change in an eigenvalue
CHOLESKY_STRIP = 256  # rows that are updated at a time before the factorisation
CHECKED = 5  # Lanczos vectors between two looks at the Ritz values: a look costs an eigenproblem of the basis
# Divide and conquer is 1.4 times as fast as evr for whole spectra, but needs 3 d^2 numbers instead of 2 d^2.
DIVIDE_AND_CONQUER_UP_TO = 4096
ACCEPTED_ORTHONORMALITY = 1e-8  # of a dense solver: worse vectors are solved for again
GRAM_STRIP = 256  # columns of the vectors that are checked at a time
FAR_FROM_ONE = 200  # binary exponent


def is_iterated(d: int, k: int) -> bool:
    """Whether :func:`leading_eigenpairs` is worth a try for k pairs of a (d, d) matrix."""
    return d >= MIN_SIZE and k * MIN_RATIO <= d


def basis_columns(k: int) -> int:
    """Columns of the Lanczos basis for k pairs."""
    return max(2 * k + 1, 80)


def leading_eigenpairs(S: Matrix, diagonal: Vector, k: int, *, lower: bool) -> tuple[Vector, Matrix] | None:
    """Return the k largest eigenvalues, ascending, and their eigenvectors as columns (d, k); or
    None where it is not sure.

    Parameters
    ----------
    S : ndarray of shape (d, d), float64, Fortran order, symmetric positive semi-definite, one triangle filled
        The other triangle is destroyed, and the diagonal.
    diagonal : ndarray of shape (d,)
        A copy of S's.
    lower : bool
        Which triangle is filled.

    Notes
    -----
    Thick-restart Lanczos with full reorthogonalisation (Wu & Simon 2000). Costs about d / 6 products with a vector at
    most, one with V, and the Cholesky factorisation where the Frobenius norm of what the basis leaves of S does not
    show that no other eigenvalue is larger. Eigenvalues are within ``4 d eps lambda_1`` of the largest there are, as
    those of a dense solver.
    """
    d, columns, eps, upper = len(S), basis_columns(k), float(np.finfo(np.float64).eps), S.T if lower else S
    Q, H, norm = np.empty((d, columns + 1), order="F"), np.zeros((columns, columns)), norm_of_upper(upper)
    start = normals(0, "lanczos-start", 0, 1, d, np.float64)[0]
    Q[:, 0] = start / np.linalg.norm(start)
    kept, converged, proven = 0, False, False
    for _ in range(max(7, d // (3 * (columns - k)))):
        for j in range(kept, columns):
            # 1. S Q = Q H + beta q e', with q orthogonal to the basis Q: twice is enough (Kahan). symv reads one
            # triangle, and the time of a product is that of reading S.
            basis, w = Q[:, : j + 1], dsymv(1.0, S, Q[:, j], lower=lower)
            for _ in range(2):
                h = w @ basis
                w -= basis @ h
                H[: j + 1, j] += h
            beta = float(np.linalg.norm(w))
            invariant = beta <= eps * norm
            Q[:, j + 1] = 0.0 if invariant else w / beta
            if (j + 1) % CHECKED and j + 1 < columns and not invariant:
                continue
            # 2. Ritz values, and the residuals beta |e'y| of their vectors.
            with threads_of_solve():
                ritz, Y = np.linalg.eigh(H[: j + 1, : j + 1], UPLO="U")
            coupling = beta * np.abs(Y[-1])
            converged = j + 1 >= k and bool(coupling[-k:].max() <= 4 * eps * ritz[-1])
            proven = converged and _rest_is_below(ritz, coupling, 4 * eps, norm, d) <= ritz[-k]
            if proven or invariant:
                break
        if converged or invariant:
            break
        # 3. Restart with the leading Ritz vectors and q.
        kept = (columns + k) // 2
        Q[:, :kept], Q[:, kept] = Q[:, :columns] @ Y[:, -kept:], Q[:, columns]
        H[:] = np.diag(np.append(ritz[-kept:], np.zeros(columns - kept)))
    if not converged:
        return None
    values, V = ritz[-k:], basis @ Y[:, -k:]
    # What a dense solver's eigenvalues are known to: residuals below it are converged.
    noise = 4 * d * eps * float(values[-1])
    products = np.column_stack([dsymv(1.0, S, v, lower=lower) for v in V.T])  # each faster than a thin gemm
    residuals = np.linalg.norm(products - V * values, axis=0)
    gram = V.T @ V
    gram[np.diag_indices(k)] -= 1.0
    if not (values[0] > noise and residuals.max() <= noise and np.abs(gram).max() < ORTHONORMALITY):
        return None  # eigenvectors of zeros are the dense solver's to choose
    if proven:
        return values, V
    mirror_upper(upper)
    return (values, V) if _are_largest(S, diagonal, values, V, float(values[0]) + noise, lower=not lower) else None


def _rest_is_below(ritz: Vector, coupling: Vector, eps: float, norm: float, d: int) -> float:
    """Bound the eigenvalues of S other than the Ritz values whose residuals have converged.

    In the basis of the other Ritz vectors and its complement they are those of [[Theta, E'], [E, R]], at most those of
    the same with norms, and ``|R|_F^2 = |S|_F^2 - sum_i theta_i^2 - 2 |E|^2``.
    """
    rest = coupling > eps * ritz[-1]
    top, E = float(ritz[rest].max(initial=0.0)), float(np.linalg.norm(coupling))
    left = max(norm**2 - float(ritz @ ritz) - 2 * E**2, 0.0) + d * eps * norm**2  # sums of d squares are rounded
    R = left**0.5
    return float((top + R) / 2 + np.hypot((top - R) / 2, np.linalg.norm(coupling[rest])))


def _are_largest(S: Matrix, diagonal: Vector, values: Vector, V: Matrix, bound: float, *, lower: bool) -> bool:
    """Whether all eigenvalues of ``S - V diag(values) V'`` are below the bound, computed in one triangle of S."""
    # S - V diag(values) V' has no eigenvalue above the bound exactly if bound I minus it has a Cholesky factor.
    scaled = V * values
    used = S if lower else S.T  # its lower triangle is the one that may be used
    for start in range(0, len(S), CHOLESKY_STRIP):
        stop = min(start + CHOLESKY_STRIP, len(S))
        used[stop:, start:stop] = scaled[stop:] @ V[start:stop].T - used[stop:, start:stop]
        block, below = used[start:stop, start:stop], np.tril_indices(stop - start, -1)
        block[below] = (scaled[start:stop] @ V[start:stop].T - block)[below]
    used[np.diag_indices(len(S))] = bound - diagonal + np.einsum("ij,ij->i", scaled, V)
    return int(dpotrf(S, lower=lower, overwrite_a=True, clean=False)[1]) == 0


def eigh_flops(d: int, k: int | None = None, *, signed: bool = False) -> float:
    """Floating-point operations of :func:`top_eigenpairs`; those of a matrix for which few pairs are iterated: the
    Cholesky factorisation, and as many products as the basis has columns."""
    kept = d if k is None else k
    if is_iterated(d, kept) and not signed:
        return d**3 / 3 + 2.0 * d * d * basis_columns(kept)
    return 4 * d**3 / 3 + 2.0 * d * d * kept


def eigh_bytes(d: int, k: int | None = None) -> int:
    """Peak bytes of :func:`top_eigenpairs` beside S itself.

    Parameters
    ----------
    d : size of the matrix.
    k : eigenpairs wanted; None for all.

    Returns
    -------
    int
        16 d k for LAPACK's vectors and their copy as rows; 24 d^2 where divide and conquer is used; a basis of vectors
        and its products, and BLAS's own buffers, where few pairs are iterated for.

    Examples
    --------
    >>> f"{eigh_bytes(10_000, 50) / 2**20:.0f} MiB beside a matrix of {8 * 10_000**2 / 2**20:.0f} MiB"
    '91 MiB beside a matrix of 763 MiB'
    """
    kept = d if k is None else k
    vectors = 24 * d * d if _divide_and_conquer(d, kept) else 16 * d * kept
    if is_iterated(d, kept):
        vectors = max(vectors, 8 * d * (basis_columns(kept) + 4 * kept))
        vectors += 2 * 8 * 256 * d  # OpenBLAS packs strips of 256 columns of both factors of the Cholesky factorisation
    return vectors + 8 * GRAM_STRIP * (d + kept) + 8 * 128 * d


def top_eigenpairs(
    S: Any, k: int | None = None, *, lower: bool = False, signed: bool = False, threads: int | None = None
) -> tuple[Vector, Matrix]:
    """Compute the k largest eigenvalues of a symmetric positive semi-definite matrix, and their eigenvectors.

    S is destroyed: it is the workspace. Few pairs of a large matrix come from
    :func:`bigpca.solvers.eigh.leading_eigenpairs` where they are sure. Else LAPACK's ``evr`` finds the wanted pairs,
    ``evd`` whole spectra up to d = 4096, and ``ev`` what ``evr`` fails at: about 4/3 d^3 flops for the reduction and 2
    d^2 k for the vectors. Memory beside S is :func:`eigh_bytes`. Eigenvectors of repeated or zero eigenvalues are
    orthonormal too, so a rank below k needs no filler.

    Parameters
    ----------
    S : ndarray of shape (d, d), float64, C or Fortran order (else it is copied).
    k : how many; None for all d.
    lower : which triangle is filled; the other may hold anything.
    signed : the matrix is indefinite: negative eigenvalues are reported as they are.
    threads : BLAS threads for the solve; None leaves the process's setting.

    Returns
    -------
    eigenvalues : ndarray of shape (k,), descending. Rounding can make zeros negative; they are
        reported as 0, unless signed.
    vectors : ndarray of shape (k, d), orthonormal rows.

    Raises
    ------
    ValueError
        When S is not square, k is not in [1, d], or the diagonal is not finite.
    TypeError
        When S is not float64.

    Examples
    --------
    >>> eigenvalues, vectors = top_eigenpairs(np.diag([1.0, 3.0, 2.0]), 2)
    >>> eigenvalues.tolist(), np.abs(vectors).tolist()
    ([3.0, 2.0], [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    """
    if not isinstance(S, np.ndarray):
        return _solved_there(S, k, signed=signed)
    if S.dtype != np.float64:
        raise TypeError(f"the matrix is {S.dtype}, but float64 is needed for its eigenvalues. Convert it.")
    if S.ndim != 2 or S.shape[0] != S.shape[1] or S.shape[0] == 0:
        raise ValueError(f"the matrix has shape {S.shape}, but it must be (d, d) with d >= 1.")
    kept = len(S) if k is None else k
    if not 1 <= kept <= len(S):
        raise ValueError(f"{kept} eigenpairs were requested, but a {S.shape} matrix has 1 to {len(S)}.")
    if not S.flags.writeable or not (S.flags.c_contiguous or S.flags.f_contiguous):
        S = np.array(S, order="C")
    if not S.flags.f_contiguous:
        # LAPACK wants Fortran order: the transposed view has it, with the triangles exchanged.
        S, lower = S.T, not lower
    diagonal = S.diagonal().copy()
    if not np.isfinite(diagonal).all():
        bad = int(np.flatnonzero(~np.isfinite(diagonal))[0])
        raise ValueError(f"the matrix has {diagonal[bad]} at [{bad}, {bad}], so it has no eigenvalues. Check the data.")
    if isinstance(device := device_of_solve(len(S)), Device):
        return _solved_there(device.put(mirror_upper(S.T if lower else S)), kept, signed=signed)
    exponent = int(np.frexp(np.max(np.abs(diagonal)))[1])
    if abs(exponent) > FAR_FROM_ONE:
        # LAPACK's bisection loses digits there; powers of two change none.
        np.ldexp(mirror_upper(S.T if lower else S), -exponent, out=S.T if lower else S)
        diagonal = np.ldexp(diagonal, -exponent)
    else:
        exponent = 0
    iterated = not signed and is_iterated(len(S), kept)
    with blas_threads(threads, eigh_flops(len(S), kept, signed=signed)):
        found = leading_eigenpairs(S, diagonal, kept, lower=lower) if iterated else None
        if found is None:
            np.fill_diagonal(S, diagonal)
            mirror_upper(S.T if lower else S)  # so that a failed solve can be repeated from the other triangle
        values, columns = _solve(S, diagonal, kept, lower) if found is None else found
    eigenvalues = np.ldexp(values[::-1], exponent)
    return eigenvalues if signed else np.maximum(eigenvalues, 0.0), np.array(columns[:, ::-1].T, order="C")


def _solved_there(S: Any, k: int | None, *, signed: bool) -> tuple[Vector, Matrix]:
    """Return what :func:`top_eigenpairs` does, by the dense solver of the device of S, which is whole."""
    device, d = Device.holding(S), int(S.shape[0])
    with device.precise():
        xp = device.xp
        exponent = int(np.frexp(np.max(np.abs(diagonal_of(S))))[1])
        exponent = exponent if abs(exponent) > FAR_FROM_ONE else 0
        half = exponent // 2  # of a factor that may be out of range
        values, V = xp.linalg.eigh(S * 2.0**-half * 2.0 ** (half - exponent) if exponent else S)
        values, V = (device.fetch(one[..., d - (k or d) :]) for one in (values, V))
    found = np.ldexp(values[::-1], exponent)
    return found if signed else np.maximum(found, 0.0), np.array(V[:, ::-1].T, order="C")


def whole_spectrum(S: Matrix) -> tuple[Vector, Matrix]:
    """Return all eigenvalues of a symmetric S (d, d), descending, and eigenvectors as columns; large S on a device."""
    if isinstance(device := device_of_solve(len(S)), Device):
        values, V = _solved_there(device.put(S), None, signed=True)
        return values, V.T
    values, V = eigh(S, driver="evd")
    return values[::-1], V[:, ::-1]


def all_eigenvalues(S: Matrix, threads: int | None = None) -> Vector:
    """Return all eigenvalues, descending, of a symmetric S (d, d) whose upper triangle is filled.

    The lower triangle is the workspace; the upper one, and with it what a solve finds in it, stays as it is.
    """
    diagonal = S.diagonal().copy()
    mirror_upper(S)
    with blas_threads(threads, 4 / 3 * len(S) ** 3):
        # LAPACK's upper triangle of the transpose, in Fortran order, is the lower one of S.
        values = eigh(S.T, lower=False, eigvals_only=True, overwrite_a=True, check_finite=False)
    np.fill_diagonal(S, diagonal)
    return np.asarray(np.maximum(values[::-1], 0.0))


def top_eigenvalues(S: Any, k: int) -> Vector:
    """Return the k largest eigenvalues of a symmetric S >= 0 (d, d), descending; on its device, if it is on one."""
    if isinstance(S, np.ndarray):
        return top_eigenpairs(S.copy(), k)[0]
    device = Device.holding(S)
    with device.precise():
        return np.asarray(device.fetch(device.xp.linalg.eigvalsh(S)[S.shape[0] - k :])[::-1])


def fix_signs(components: Matrix) -> Matrix:
    """Flip rows, in place, so that the entry of largest magnitude of each is positive (the first one on ties).

    Parameters
    ----------
    components : ndarray of shape (k, d), floating; modified and returned. Costs one look at it.

    Examples
    --------
    >>> fix_signs(np.array([[0.6, -0.8], [0.5, -0.5]])).tolist()
    [[-0.6, 0.8], [0.5, -0.5]]
    """
    for row in components:
        if row[np.argmax(np.abs(row))] < 0:
            np.negative(row, out=row)
    return components


def numerical_rank(eigenvalues: Vector, d: int) -> int:
    """Count the eigenvalues above d * eps * lambda_1: those below are rounding of the solver.

    Examples
    --------
    >>> numerical_rank(np.array([4.0, 1.0, 1e-17]), 3)
    2
    """
    if eigenvalues.size == 0:
        return 0
    # A backward stable solver finds those of S + E with |E|_2 up to about d eps |S|_2.
    level = d * float(np.finfo(np.float64).eps) * float(np.max(eigenvalues))
    return int(np.count_nonzero(eigenvalues > level))


def rounded_squares(squares: Vector, mean: Vector, weight: float | Vector, eps: float | Vector = EPS) -> Vector:
    """Return what the rounding of the computation adds to the sums of squares (p,) of columns.

    Rows are centred to a relative ``eps``; ``sum_t x_t^2 = squares + weight mean^2``.
    """
    return eps**2 * (squares + weight * mean**2)


def stored_squares(squares: Vector, mean: Vector, weight: float, rounding: float | Vector) -> Vector:
    """Return what the rounding of the stored values adds to the sums of squares (p,) of columns.

    It is even within half a unit of the last digit: that of the mean, and in proportion to deviations. ``rounding`` is
    that of a stored dtype, its eps / sqrt(12).
    """
    last = np.ldexp(rounding, np.frexp(mean)[1] - 1)  # of the mean: its unit of the last digit / sqrt(12)
    return np.asarray(weight * last**2 * (mean != 0) + rounding**2 * squares)


def noise_edge(n: int, d: int) -> float:
    """Return the largest variance that noise of unit variance has along any axis of n rows of d columns.

    ``(1 + sqrt(d / n))^2`` (Marchenko & Pastur 1967), and at least that of square matrices.
    """
    return max(NOISE, float((1 + np.sqrt(d / n)) ** 2))


def complete_orthonormal(V: Matrix, k: int) -> Matrix:
    """Append orthonormal rows to r orthonormal rows until there are k; no randomness, so the same rows every time.

    Each new row is the coordinate axis least covered by the rows so far, made orthogonal to them (twice, Kahan's
    "twice is enough"). Its remainder has squared length at least (d - r) / d. Costs O((k - r) k d).

    Parameters
    ----------
    V : ndarray of shape (r, d), orthonormal rows; r may be 0.
    k : rows wanted, r <= k <= d.

    Returns
    -------
    ndarray of shape (k, d); its first r rows are V.

    Raises
    ------
    ValueError
        When k is not in [r, d].

    Examples
    --------
    >>> complete_orthonormal(np.array([[1.0, 0.0, 0.0]]), 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    r, d = V.shape
    if not r <= k <= d:
        raise ValueError(f"{k} orthonormal rows were requested, but from {r} rows of length {d} only {r} to {d} exist.")
    rows = np.empty((k, d))
    rows[:r] = V
    # Squared length of the projection of each coordinate axis on the rows so far.
    covered = np.einsum("ij,ij->j", rows[:r], rows[:r])
    for i in range(r, k):
        row = np.zeros(d)
        row[np.argmin(covered)] = 1.0
        # Once leaves eps / (length of the remainder) of the others in the row; twice is enough (Kahan).
        for _ in range(2):
            row -= (rows[:i] @ row) @ rows[:i]
            row /= np.linalg.norm(row)
        rows[i] = row
        covered += row * row
    return rows


def _solve(S: Matrix, diagonal: Vector, k: int, lower: bool) -> tuple[Vector, Matrix]:
    """Solve in one triangle; where evr fails (it may, on extreme clusters), again from the other one."""
    d = len(S)
    options = {"overwrite_a": True, "check_finite": False}
    if _divide_and_conquer(d, k):
        return eigh(S, lower=lower, driver="evd", **options)  # type: ignore[no-any-return]
    wanted = None if k == d else [d - k, d - 1]
    try:
        values, columns = eigh(S, lower=lower, driver="evr", subset_by_index=wanted, **options)
        # evr may return fewer columns, or not orthogonal ones, without an error.
        if columns.shape == (d, k) and _is_orthonormal(columns):
            return values, columns
    except LinAlgError:
        pass
    # The failed solve destroyed one triangle and the diagonal; the mirrored one is whole.
    np.fill_diagonal(S, diagonal)
    values, columns = eigh(S, lower=not lower, driver="ev", **options)
    return values[d - k :], columns[:, d - k :]


def _divide_and_conquer(d: int, k: int) -> bool:
    return k == d and d <= DIVIDE_AND_CONQUER_UP_TO


def _is_orthonormal(columns: Matrix) -> bool:
    for start in range(0, columns.shape[1], GRAM_STRIP):
        gram = columns[:, start : start + GRAM_STRIP].T @ columns
        strip = np.arange(len(gram))
        gram[strip, start + strip] -= 1.0
        if not np.max(np.abs(gram)) < ACCEPTED_ORTHONORMALITY:
            return False
    return True
