"""Limits of T2 and SPE for a share of the rows: quantiles of given values, and the theory of Gaussian rows."""

from __future__ import annotations

from numbers import Real

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, chi2, f, norm

from bigpca.errors import counted

Vector = NDArray[np.float64]
ROUNDING = 1e-9


def check_confidence(confidence: object) -> float:
    """Return the share of the rows below a limit.

    Raises
    ------
    ValueError
        If it is not between 0 and 1.
    """
    share = float(confidence) if isinstance(confidence, Real) else np.nan
    if not 0 < share < 1:
        raise ValueError(f"confidence = {confidence!r} is no share between 0 and 1. Give for example 0.95.")
    return share


def check_choice(name: str, given: str, known: tuple[str, ...]) -> str:
    """Return a choice among names.

    Raises
    ------
    ValueError
        For another name.
    """
    if given not in known:
        raise ValueError(f"{name} = {given!r}; one of {', '.join(map(repr, known))} was expected.")
    return given


def quantile_limit(values: Vector, confidence: float) -> float:
    """Return the empirical quantile of the statistics of rows (n,), without NaN.

    Raises
    ------
    ValueError
        If there are too few rows for one to be expected above the limit.
    """
    n = len(values)
    if n * (1 - confidence) < 1 - ROUNDING:
        raise ValueError(
            f"{counted(n, 'row')} cannot determine the {confidence:g} quantile, which takes at least "
            f"{int(np.ceil(1 / (1 - confidence)))}. Give more rows, a smaller confidence, or a limit from theory."
        )
    return float(np.quantile(values, confidence))


def gaussian_t2_limit(confidence: float, k: int, n: float, rows: str) -> float:
    """Return the limit of T2 of Gaussian rows under k axes fitted to n rows.

    New rows: ``k (n^2 - 1) / (n (n - k)) F(k, n - k)``; rows of the fit itself, which the axes follow:
    ``(n - 1)^2 / n Beta(k / 2, (n - k - 1) / 2)``.

    Raises
    ------
    ValueError
        If n is at most k (new rows) or k + 1 (rows of the fit).

    Notes
    -----
    Tracy, Young & Mason (1992). Exact for k = d; with fewer axes, which are chosen for their
    variance, it holds for large n.

    Examples
    --------
    >>> round(gaussian_t2_limit(0.95, 2, 40, "new"), 4), round(gaussian_t2_limit(0.95, 2, 40, "training"), 4)
    (6.8269, 5.6848)
    """
    least = k + (2 if rows == "training" else 1)
    if n < least:
        raise ValueError(
            f"{n:g} rows were fitted, but the distribution of T2 of {k} axes requires at least {least}. Keep fewer "
            f"components, or use an empirical limit."
        )
    if rows == "new":
        return float(k * (n**2 - 1) / (n * (n - k)) * f.ppf(confidence, k, n - k))
    return float((n - 1) ** 2 / n * beta.ppf(confidence, k / 2, (n - k - 1) / 2))


def chi_square_limit(confidence: float, mean: float, variance: float) -> float:
    """Return the limit of ``g chi^2(h)`` with this mean and variance: ``g = variance / (2 mean)``, ``h = 2 mean^2 /
    variance``.

    With the mean and variance of observed SPE it is the limit of Nomikos & MacGregor (1995); with their values for
    Gaussian rows, ``theta_1`` and ``2 theta_2``, that of Box (1954).
    """
    if mean <= 0 or variance <= 0:
        return max(0.0, mean)
    return float(variance / (2 * mean) * chi2.ppf(confidence, 2 * mean**2 / variance))


def power_unit(values: Vector) -> float:
    """Return a power of two near the largest value: divided by it, values have powers in the range of float64."""
    return float(np.ldexp(1.0, int(np.frexp(np.max(values, initial=0.0))[1])))


def jackson_mudholkar_limit(confidence: float, thetas: Vector) -> float:
    """Return the limit of SPE of Gaussian rows, from the power sums ``theta_i`` of the residual eigenvalues.

    ``theta_1 (1 + z h0 sqrt(2 theta_2) / theta_1 + theta_2 h0 (h0 - 1) / theta_1^2)^(1 / h0)`` with ``h0 = 1 - 2
    theta_1 theta_3 / (3 theta_2^2)`` and the normal quantile z.

    Raises
    ------
    ValueError
        If the approximation has no such quantile, because h0 is far below 0.

    Notes
    -----
    Jackson & Mudholkar (1979). NOTE: h0 is negative for spectra with a heavy tail. The power then
    decreases with SPE, so their quantile takes the sign of h0: here ``z h0`` has it, where the paper writes
    ``c_alpha sqrt(2 theta_2 h0^2)``.
    """
    first, second, third = (float(theta) for theta in thetas)
    if first <= 0 or second <= 0:
        return max(0.0, first)
    h0 = 1 - 2 * first * third / (3 * second**2)
    slope = float(norm.ppf(confidence)) * np.sqrt(2 * second) / first + second * (h0 - 1) / first**2
    if h0 == 0:
        return float(first * np.exp(slope))
    if h0 * slope <= -1:
        raise ValueError(
            f"Jackson's and Mudholkar's approximation has no {confidence:g} quantile for these residual eigenvalues "
            f'(h0 = {h0:.3g}; a value nearer 0 was expected). Use limit="box" or limit="empirical".'
        )
    return float(first * np.exp(np.log1p(h0 * slope) / h0))


def power_sums(values: Vector) -> Vector:
    """Return ``theta_i = sum_j lambda_j^i`` of eigenvalues, i = 1, 2, 3."""
    return np.array([float((values**i).sum()) for i in (1, 2, 3)])
