"""From landmarks to features: the factor T of K_mm that makes ``B = k(X, L) T`` a feature map."""

from __future__ import annotations

import numpy as np

from bigpca.arrays import Matrix, Vector
from bigpca.solvers.eigh import top_eigenpairs

FLOAT64 = float(np.finfo(np.float64).eps)
OFFSET = 1000.0  # |mean|^2 of images over their variance, from which limits are relative to the variance


def truncation_for(precision: float) -> float:
    """Return the share of the largest eigenvalue below which K_mm's are dropped, for blocks of that eps.

    The error of a block is multiplied by up to ``truncation^-1/2``: 1e5 in float64, 316 in float32.

    >>> truncation_for(2.0**-52), truncation_for(2.0**-23)
    (1e-10, 1e-05)
    """
    return 1e-10 if precision < 1e-10 else 1e-5


def residual_rounding(precision: float, share: float = 1.0, amplification: float = 1.0) -> float:
    """Return the share of k(x, x) below which a residual ``k(x, x) - |B(x)|^2`` is rounding, and taken as 0.

    Of images far from the origin (:func:`spread_share` below 1), what a factor of this amplification leaves.

    >>> f"{residual_rounding(2.0**-52):.1e}, {residual_rounding(2.0**-23):.1e}"
    '3.6e-10, 6.0e-04'
    """
    return float(16 * precision * max(share / truncation_for(precision) ** 0.5, amplification))


def spread_share(K: Matrix) -> float:
    """Return :data:`OFFSET` times the variance of the images of rows as a share of their mean square, at most 1.

    Centring removes the mean of the images. Where that is nearly all of a kernel matrix K (m, m), as of dot products of
    rows far from the origin, limits relative to K would drop the rest: times this share, they do not depend on the
    origin. Each image counts with length 1.
    """
    roots: Vector = np.sqrt(np.maximum(np.diagonal(K), 0.0))
    scale = np.divide(1.0, roots, out=np.zeros(len(K)), where=roots > 0)
    mean, count = float(scale @ K @ scale), int(np.count_nonzero(scale))
    return min(1.0, OFFSET * max(0.0, 1.0 - mean / max(1, count) ** 2))


def landmark_transform(
    K_mm: Matrix,
    tolerance: float = 1e-10,
    *,
    precision: float = FLOAT64,
    equilibrated: bool = False,
    threads: int | None = None,
) -> Matrix:
    """Return T with ``T' K_mm T = I``: the columns of ``B = k(X, L) T`` are coordinates in the span of the landmarks.

    ``T = U lambda^(-1/2)`` over the eigenvalues above ``tolerance`` times the largest, so ``T T' = pinv(K_mm)``
    truncated there, and duplicates among the landmarks do no harm. Costs about ``9 m^3`` flops; K_mm is left as it is.

    Parameters
    ----------
    K_mm : ndarray of shape (m, m), float64
        Positive semi-definite; small negative eigenvalues are dropped with the small ones.
    tolerance : float
        1e-10 for blocks in float64, 1e-5 for float32 (:func:`truncation_for`): relative, whatever the kernel's scale.
        Times :func:`spread_share`, down to the rounding of K_mm.
    precision : float
        eps of the blocks, ``10 m`` times which is that rounding.
    equilibrated : bool
        Truncate the eigenvalues of ``D^(-1/2) K_mm D^(-1/2)``, ``D = diag(K_mm)``, instead: landmarks of small k(x, x)
        (polynomial kernels) keep their directions. ``T' K_mm T = I`` holds; ``T T'`` is a generalised inverse, another
        than ``pinv`` where something was dropped.
    threads : int or None
        BLAS threads.

    Returns
    -------
    ndarray of shape (m, r), float64
        r the numerical rank of K_mm; 0 for a matrix of zeros.

    Raises
    ------
    ValueError
        When K_mm is not square or its diagonal not finite.

    Notes
    -----
    The factor of the Nyström approximation ``K ~ K_nm pinv(K_mm) K_mn = B B'`` (Williams & Seeger 2001).

    Examples
    --------
    >>> T = landmark_transform(np.array([[4.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]))
    >>> T.shape, np.round(T @ T.T, 12).tolist()
    ((3, 2), [[0.25, 0.0, 0.0], [0.0, 0.25, 0.25], [0.0, 0.25, 0.25]])
    """
    if not len(K_mm):
        return np.zeros((0, 0))
    K_mm = np.array(K_mm, np.float64)  # the solve destroys its input
    scale, least = np.ones(len(K_mm)), tolerance * spread_share(K_mm)
    if equilibrated:
        diagonal = np.diagonal(K_mm).copy()
        scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1)), 0.0)
        K_mm *= scale
        K_mm *= scale[:, None]
    # T = D^-1/2 U lambda^-1/2, so that T'K_mm T = I; eigenvalues below the truncation would magnify rounding by their
    # roots.
    eigenvalues, vectors = top_eigenpairs(K_mm, threads=threads)
    kept = eigenvalues > max(least, min(tolerance, 10 * len(K_mm) * precision)) * eigenvalues[0]
    T: Matrix = scale[:, None] * vectors[kept].T / np.sqrt(eigenvalues[kept])
    return T
