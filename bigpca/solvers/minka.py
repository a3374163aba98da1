"""Minka's choice of the dimension: the evidence of probabilistic PCA."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Vector = NDArray[np.float64]

SMALLEST = 1e-15  # relative to lambda_1: smaller eigenvalues are no signal for Minka's rule


def minka_rank(spectrum: Vector, n_samples: int) -> int:
    """Choose the dimension by the evidence of probabilistic PCA (Minka 2000, equation 78's Laplace approximation).

    Parameters
    ----------
    spectrum : ndarray of shape (d,), descending: all eigenvalues of the covariance.
    n_samples : int

    Returns
    -------
    int
        In [1, max(d - 1, 1)]. Costs O(d^2) time and memory.

    Notes
    -----
    NOTE: scikit-learn's formula, with its guard against tiny eigenvalues taken relative to lambda_1 (its absolute
    1e-15 makes the answer depend on the units), and with differences of equal eigenvalues floored at their rounding
    (scikit-learn fails there). One feature has no smaller dimension: the answer is 1, where scikit-learn returns 0.

    Examples
    --------
    >>> minka_rank(np.array([100.0, 50.0, 1.1, 1.0, 0.9]), 1000)
    2
    """
    d = len(spectrum)
    if d == 1 or spectrum[0] <= 0:
        return 1
    s = np.maximum(spectrum / spectrum[0], 0.0)
    ranks = np.arange(1, d)
    candidates = ranks[s[ranks - 1] >= SMALLEST]
    return int(candidates[np.argmax(_log_evidence(s, float(n_samples))[candidates - 1])])


def _log_evidence(s: Vector, n: float) -> Vector:
    """Evaluate the log evidence of the ranks 1 to d - 1, from prefix sums over the pairs i < j."""
    d = len(s)
    r = np.arange(1, d)
    eps = float(np.finfo(np.float64).eps)
    positive = np.maximum(s, SMALLEST)
    noise = np.maximum((np.sum(s) - np.cumsum(s)[:-1]) / (d - r), SMALLEST)  # v: mean of the d - r smallest
    i = np.arange(1, d)
    log_volume = -r * np.log(2.0) + np.cumsum(gammaln((d - i + 1) / 2) - np.log(np.pi) * (d - i + 1) / 2)
    log_kept = -n / 2 * np.cumsum(np.log(positive))[:-1]
    log_noise = -n / 2 * (d - r) * np.log(noise)
    pairs = d * r - r * (r + 1) / 2  # free parameters of the axes: pairs i < j with i <= r
    # The Hessian's log determinant: sum over those pairs of log((s_i - s_j)(1 / s~_j - 1 / s~_i) n), where s~ has
    # the d - r smallest replaced by v.
    gaps = np.triu(np.log(np.maximum(s[:, None] - s[None, :], eps * positive[:, None])), 1)
    inverse = 1 / positive
    inverse_gaps = np.triu(np.log(np.maximum(inverse[None, :] - inverse[:, None], eps * inverse[:, None])), 1)
    within = np.cumsum(np.sum(inverse_gaps, axis=0))[:-1]
    log_hessian = np.cumsum(np.sum(gaps, axis=1))[:-1] + within + pairs * np.log(n)
    for rank in range(1, d):
        toward_noise = np.maximum(1 / noise[rank - 1] - inverse[:rank], eps * inverse[:rank])
        log_hessian[rank - 1] += (d - rank) * np.sum(np.log(toward_noise))
    log_parameters = (pairs + r) * np.log(2 * np.pi) / 2
    evidence: Vector = log_volume + log_kept + log_noise + log_parameters - log_hessian / 2 - r * np.log(n) / 2
    return evidence
