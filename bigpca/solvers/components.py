"""How many components: the rules that turn ``n_components`` and a spectrum into k."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Vector = NDArray[np.float64]

SMALLEST = 1e-15  # relative to lambda_1: smaller eigenvalues are no signal for Minka's rule


@dataclass(frozen=True)
class RelativeThreshold:
    """Keep every component whose eigenvalue is at least ``eps`` times the largest.

    Parameters
    ----------
    eps : float in (0, 1].

    Raises
    ------
    ValueError, TypeError
        When eps is not such a number.

    Examples
    --------
    >>> resolve_components(RelativeThreshold(0.1), np.array([10.0, 2.0, 0.5]), 12.5, 100, 3)
    2
    """

    eps: float

    def __post_init__(self) -> None:
        eps: Any = self.eps
        if isinstance(eps, bool) or not isinstance(eps, Real):
            raise TypeError(f"eps is {eps!r}, but RelativeThreshold needs a number in (0, 1]. Give for example 1e-3.")
        if not 0 < float(eps) <= 1:
            raise ValueError(f"eps is {eps}, but RelativeThreshold needs it in (0, 1]. Give for example 1e-3.")


NComponents = int | float | str | RelativeThreshold | None


def check_n_components(n_components: NComponents, n_samples: int | None, n_features: int) -> None:
    """Refuse an ``n_components`` that no data of this size can satisfy, before any row is read.

    Parameters
    ----------
    n_components : int in [1, min(n, d)], float in (0, 1), ``"mle"``, :class:`RelativeThreshold` or None.
    n_samples : n; None where it is not known yet.
    n_features : d.

    Raises
    ------
    TypeError
        When it is of another type; booleans are refused.
    ValueError
        When it is out of range.

    Examples
    --------
    >>> check_n_components(5, 100, 3)
    Traceback (most recent call last):
    ...
    ValueError: n_components = 5 is out of range: 100 samples of 3 features have 1 to 3 components. Use at most 3.
    """
    choice: Any = n_components
    if choice is None or isinstance(choice, RelativeThreshold):
        return
    if isinstance(choice, str):
        _check_mle(choice, n_samples, n_features)
    elif isinstance(choice, bool | np.bool_) or not isinstance(choice, Real):
        raise TypeError(
            f"n_components = {choice!r} is a {type(choice).__name__}, but it must be an int, a float in (0, 1), "
            '"mle", a RelativeThreshold or None. Give one of these.'
        )
    elif isinstance(choice, Integral):
        largest = n_features if n_samples is None else min(n_samples, n_features)
        if not 1 <= int(choice) <= largest:
            known = "data" if n_samples is None else f"{n_samples} samples"
            raise ValueError(
                f"n_components = {choice} is out of range: {known} of {n_features} features have 1 to {largest} "
                f"components. Use at most {largest}."
            )
    elif not 0 < float(choice) < 1:
        raise ValueError(
            f"n_components = {choice} is a float outside (0, 1), where it means a share of the variance. "
            "Use a share such as 0.95, or an int for a number of components."
        )


def _check_mle(n_components: str, n_samples: int | None, n_features: int) -> None:
    if n_components != "mle":
        raise ValueError(f'n_components = {n_components!r} is not known: the only rule with a name is "mle". Use that.')
    if n_samples is not None and n_samples < n_features:
        raise ValueError(
            f'n_components = "mle" needs at least as many samples as features, but there are {n_samples} samples of '
            f"{n_features} features. Use a share such as 0.95, or an int."
        )


def needs_full_spectrum(n_components: NComponents) -> bool:
    """Whether the choice can be made only with every eigenvalue at hand (anything but a given number).

    Examples
    --------
    >>> needs_full_spectrum(0.95), needs_full_spectrum(64)
    (True, False)
    """
    return not isinstance(n_components, Integral)


def resolve_components(
    n_components: NComponents, eigenvalues: Vector, total: float, n_samples: int, n_features: int
) -> int:
    """Turn ``n_components`` into the number k of components to keep.

    None gives min(n, d). A share p gives the smallest k with (lambda_1 + ... + lambda_k) / total > p, as scikit-learn
    counts it, over the true total. ``"mle"`` gives :func:`minka_rank`. Data without variance gives 1 for these rules.

    Parameters
    ----------
    n_components : as in :func:`check_n_components`, which is called first.
    eigenvalues : ndarray of shape (r,), descending; the leading ones may do for a share or a threshold.
    total : float
        Sum of all eigenvalues (the total variance, known exactly even when only some eigenvalues are).
    n_samples, n_features : int

    Returns
    -------
    int
        In [1, min(n, d)].

    Raises
    ------
    ValueError, TypeError
        As :func:`check_n_components`; and when the given eigenvalues do not reach far enough to decide.

    Examples
    --------
    >>> resolve_components(0.9, np.array([6.0, 3.0, 1.0]), 10.0, 100, 3)
    3
    """
    check_n_components(n_components, n_samples, n_features)
    largest = min(n_samples, n_features)
    if n_components is None:
        return largest
    if isinstance(n_components, Integral):
        return int(n_components)
    given = eigenvalues[:largest]
    if isinstance(n_components, str):
        if len(given) < n_features:
            raise ValueError(
                f'n_components = "mle" needs all {n_features} eigenvalues, but {len(given)} are given. Use a solver '
                "that computes the whole spectrum, or an int."
            )
        return minka_rank(given, n_samples)
    if total <= 0 or given[0] <= 0:
        return 1
    if isinstance(n_components, RelativeThreshold):
        k = int(np.count_nonzero(given >= n_components.eps * given[0]))
        undecided = k == len(given)
    else:
        k = int(np.searchsorted(np.cumsum(given / total), n_components, side="right")) + 1
        undecided = k > len(given)
    if undecided and len(given) < largest:
        raise ValueError(
            f"{n_components} is not reached within the {len(given)} eigenvalues that are given, of {largest}. Use a "
            "solver that computes the whole spectrum, or an int."
        )
    return min(k, len(given))


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
    (scikit-learn fails there). One feature has no smaller dimension: the answer is 1, where scikit-learn says 0.

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
    return int(candidates[np.argmax(_log_evidence(s, n_samples)[candidates - 1])])


def _log_evidence(s: Vector, n: int) -> Vector:
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
