"""A few leading eigenpairs of a large matrix that is at hand: by Lanczos iteration, with a proof that none was missed.

The reduction to tridiagonal form that a dense solver starts with costs 4/3 d^3 flops, half of them bound by
memory. ARPACK needs about as many products with a vector as the basis has columns, and 2 to 10 times less
time for k of up to d / 20; but a Krylov space may miss an eigenvector. That is found out by one Cholesky
factorisation, d^3 / 3 flops at full speed: of ``(lambda_k + margin) I - (S - V diag(lambda) V')``, which
exists if and only if no other eigenvalue is larger.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, eigsh

from bigpca.seeds import normals

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

MIN_SIZE = 1024  # below, a dense solver takes less than half a second
MIN_RATIO = 20  # of d to k
ORTHONORMALITY = 1e-12
STRIP = 256
_SEEDED: dict[str, Any] = (
    {"rng": 0} if "rng" in inspect.signature(eigsh).parameters else {}
)  # of restarts, SciPy >= 1.17


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
    S : ndarray of shape (d, d), float64, Fortran order, symmetric positive semi-definite, both triangles filled
        The triangle named is destroyed, and the diagonal; the other one stays.
    diagonal : ndarray of shape (d,)
        A copy of S's.
    lower : bool
        Which triangle may be used.

    Notes
    -----
    Costs about d / 6 products with a vector at most, one with V, and the Cholesky factorisation. Eigenvalues are within
    ``4 d eps lambda_1`` of the largest there are, as those of a dense solver.
    """
    d, columns = len(S), basis_columns(k)
    start = normals(0, "lanczos-start", 0, 1, d, np.float64)[0]
    try:
        values, V = eigsh(
            S, k, which="LA", v0=start, ncv=columns, maxiter=max(4, d // (6 * (columns - k))), tol=0, **_SEEDED
        )
    except (ArpackNoConvergence, ArpackError):
        return None
    order = np.argsort(values)
    values, V = values[order], V[:, order]
    noise = 4 * d * float(np.finfo(np.float64).eps) * float(values[-1])
    residuals = np.linalg.norm(S @ V - V * values, axis=0)
    gram = V.T @ V
    gram[np.diag_indices(k)] -= 1.0
    if not (values[0] > noise and residuals.max() <= noise and np.abs(gram).max() < ORTHONORMALITY):
        return None  # eigenvectors of zeros are the dense solver's to choose
    if not _are_largest(S, diagonal, values, V, float(values[0]) + noise, lower=lower):
        return None
    return values, V


def _are_largest(S: Matrix, diagonal: Vector, values: Vector, V: Matrix, bound: float, *, lower: bool) -> bool:
    """Whether all eigenvalues of ``S - V diag(values) V'`` are below the bound, computed in one triangle of S."""
    scaled = V * values
    used = S if lower else S.T  # its lower triangle is the one that may be used
    for start in range(0, len(S), STRIP):
        stop = min(start + STRIP, len(S))
        used[stop:, start:stop] = scaled[stop:] @ V[start:stop].T - used[stop:, start:stop]
        block, below = used[start:stop, start:stop], np.tril_indices(stop - start, -1)
        block[below] = (scaled[start:stop] @ V[start:stop].T - block)[below]
    used[np.diag_indices(len(S))] = bound - diagonal + np.einsum("ij,ij->i", scaled, V)
    return int(dpotrf(S, lower=lower, overwrite_a=True, clean=False)[1]) == 0
