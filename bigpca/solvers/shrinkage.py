"""Scores of new rows where rows are few beside columns: the axes follow the rows of the fit, and new rows project too
near the mean. What they are divided by, and the axes as they would be with one more row.
"""

from __future__ import annotations

import numpy as np

from bigpca.arrays import Matrix, Vector

TILE_BYTES = 2**20  # of the matrices of rows at a time
EQUAL = 1e-10  # of an eigenvalue: another that is nearer is equal, and their difference is rounding


def shrinkage_factors(values: Vector, rest: Vector, freedom: float) -> Vector:
    """Return ``f_k = 1 / (1 + sum_j rest_j / (l_k - rest_j) / N)``: scores of new rows over those of rows of the fit.

    Parameters
    ----------
    values : ndarray of shape (k,)
        Eigenvalues of the components, in any unit.
    rest : ndarray of shape (m,)
        All others.
    freedom : float
        N: rows, less one for the mean.

    Notes
    -----
    Dey & Lee (2019), "Asymptotic properties of principal component analysis and shrinkage-bias adjustment under the
    generalized spiked population model", the d-estimator, as ``hdpca`` has it. A component that is not above the others
    has the factor 0.

    Examples
    --------
    >>> shrinkage_factors(np.array([9.0]), np.array([1.0, 1.0]), 2).round(3).tolist()
    [0.889]
    """
    gaps = values[:, None] - rest
    terms = np.divide(rest, gaps, out=np.full(gaps.shape, np.inf), where=gaps > EQUAL * values[:, None])
    return np.asarray(1 / (1 + np.where(rest > 0, terms, 0.0).sum(axis=1) / freedom))


def augmented_scores(z: Matrix, residuals: Vector, singular: Vector) -> Matrix:
    """Return the scores (b, k) of rows in the decomposition of the fit with each of them as one more row.

    The rows of the fit stand in it by their components alone: ``[diag(s) 0; z' |e|]`` has the left singular vectors and
    the singular values that matter. Its scores are turned and scaled, by all rows of the fit, to those of the fit.

    Parameters
    ----------
    z : ndarray of shape (b, k)
        Scores by the axes of the fit.
    residuals : ndarray of shape (b,)
        Squared distances to the plane of the axes.
    singular : ndarray of shape (k,)
        Of the rows of the fit, all positive.

    Notes
    -----
    Online augmentation, decomposition and Procrustes: Zhang, Dey & Lee (2020), "Fast and robust ancestry prediction
    using principal component analysis"; from scores as in ``bigutilsr::pca_OADP_proj2`` (Prive et al. 2020).
    """
    k, found = len(singular), np.empty_like(z)
    step, own = max(1, TILE_BYTES // (8 * (k + 1) ** 2)), np.arange(k)
    for i in range(0, len(z), step):
        tile = np.s_[i : i + step]
        A = np.zeros((len(z[tile]), k + 1, k + 1))
        A[:, own, own], A[:, k, :k], A[:, k, k] = singular, z[tile], np.sqrt(residuals[tile])
        E, w, _ = np.linalg.svd(A)
        B = E[:, :, :k] * w[:, None, :k]  # (b, k + 1, k): the rows of the fit have U B[:k], the new one B[k]
        P, G, R = np.linalg.svd(singular[:, None] * B[:, :k])
        length = G.sum(axis=1) / (B[:, :k] ** 2).sum(axis=(1, 2))
        found[tile] = length[:, None] * (P @ (R @ B[:, k, :, None]))[..., 0]
    return found


def augmented_bytes(k: int) -> int:
    """Return the bytes that :func:`augmented_scores` takes beside its result."""
    return 8 * max(TILE_BYTES, 8 * (k + 1) ** 2)
