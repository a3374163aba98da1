"""Rules that choose the number of components from a spectrum, or from its beginning and the total."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
TIE = 1e-9  # of lambda_1: heights that differ by less are equal, whatever their rounding in the units of the data


def rounding_level(values: Vector, d: int) -> float:
    """Return d * eps * lambda_1: eigenvalues below are the solver's rounding, and no signal for any rule."""
    return d * float(np.finfo(np.float64).eps) * float(values[0])


class ComponentRule(ABC):
    """Chooses k from descending eigenvalues and the true total variance.

    Attributes
    ----------
    by_weight : bool
        Whether ``n_samples`` is the number of observations behind the eigenvalues: of weighted rows, the sum of their
        weights. Otherwise it is the number of rows, which bounds the rank.
    """

    by_weight: ClassVar[bool] = False

    def for_columns(self, variances: Vector | None) -> ComponentRule:
        """Return the rule for columns of these variances (d,); None if they are not known."""
        return self

    @property
    def whole_spectrum_because(self) -> str | None:
        """Why the rule needs every eigenvalue; None where leading ones and the total may do."""
        return None

    @abstractmethod
    def choose(self, values: Vector, total: float, n_samples: int, n_features: int) -> int | None:
        """Return k in [0, r], or None where the r leading eigenvalues do not reach far enough to tell.

        ``values`` (r,) with ``values[0] > 0`` and ``1 <= r <= min(n, d)``; ``total > 0`` is the sum of all eigenvalues.
        """


@dataclass(frozen=True)
class RelativeThreshold(ComponentRule):
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
    >>> RelativeThreshold(0.1).choose(np.array([10.0, 2.0, 0.5]), 12.5, 100, 3)
    2
    """

    eps: float

    def __post_init__(self) -> None:
        eps: Any = self.eps
        if isinstance(eps, bool) or not isinstance(eps, Real):
            raise TypeError(f"eps is {eps!r}, but RelativeThreshold needs a number in (0, 1]. Give for example 1e-3.")
        if not 0 < float(eps) <= 1:
            raise ValueError(f"eps is {eps}, but RelativeThreshold needs it in (0, 1]. Give for example 1e-3.")

    def choose(self, values: Vector, total: float, n_samples: int, n_features: int) -> int | None:
        """Count the eigenvalues at or above the threshold; undecided while the last one given is among them."""
        k = int(np.count_nonzero(values >= self.eps * values[0]))
        return k if k < len(values) or len(values) == min(n_samples, n_features) else None


@dataclass(frozen=True)
class Elbow(ComponentRule):
    """Keep the components before the elbow of the scree plot.

    With p = min(n, d), the elbow is the point (i, lambda_i) farthest below the chord from (1, lambda_1) to (p,
    lambda_p), the first such on ties (to 1e-9 lambda_1): ``i* = argmin lambda_i + (lambda_1 - lambda_p) (i - 1) / (p -
    1)``, and k = max(i* - 1, 1). The distances scale alike with either axis, so the answer depends on no units. A
    heuristic: it looks at the shape of the whole curve, so one huge eigenvalue hides what is below it.

    A partial spectrum is decided exactly: lambda_p lies between 0 and the smaller of the last eigenvalue given and the
    mean of those left out; where all values in that range give the same elbow, none of the left-out points can beat it.

    Notes
    -----
    The scree plot is Cattell's (1966, The scree test for the number of factors); the farthest point from the chord is
    Satopaa et al. 2011 (Finding a "kneedle" in a haystack, section III), without their smoothing.

    Examples
    --------
    >>> Elbow().choose(np.array([9.0, 8.0, 7.0, 0.4, 0.3, 0.2]), 24.9, 100, 6)
    3
    """

    def choose(self, values: Vector, total: float, n_samples: int, n_features: int) -> int | None:
        """Find the elbow for both ends of the range in which the last eigenvalue lies."""
        p, r = min(n_samples, n_features), len(values)
        values, total = values / values[0], total / float(values[0])
        if r == p:
            return max(_farthest(values, values[-1], p)[0], 1)
        largest = max(0.0, min(float(values[-1]), (total - float(np.sum(values))) / (p - r)))
        # Heights are linear in lambda_p: what is lowest at both ends of its range is lowest between them.
        found = set()
        for last in (0.0, largest):
            index, height = _farthest(values, last, p)
            found.add(index)
            if height > last + (1 - last) * r / (p - 1) + TIE:  # the least height that a point left out can have
                return None
        return max(found.pop(), 1) if len(found) == 1 else None


def _farthest(values: Vector, last: float, p: int) -> tuple[int, float]:
    """Return index and height, above the chord turned to slope 0, of the first point farthest below (lambda_1 = 1)."""
    heights = values + (1 - last) * np.arange(len(values)) / max(p - 1, 1)
    least = float(np.min(heights))
    return int(np.argmax(heights <= least + TIE)), least


@dataclass(frozen=True)
class GavishDonoho(ComponentRule):
    """Keep the singular values above the optimal hard threshold for a low-rank matrix in white noise.

    With m = n - 1 rows left by centring, ``beta = min(m, d) / max(m, d)`` and singular values ``y_i = sqrt(m
    lambda_i)``, keep ``y_i > t(beta) sqrt(max(m, d) s)`` for noise of variance s per entry, where ``t(beta)^2 = 2 (beta
    + 1) + 8 beta / (beta + 1 + sqrt(beta^2 + 14 beta + 1))``. Of unknown noise, ``max(m, d) s = y_med^2 / mu_beta``,
    with the median singular value and the median of the Marchenko-Pastur law. As n and d grow it minimises the squared
    error of the reconstruction, among hard thresholds.

    Parameters
    ----------
    noise_variance : float or None, default None
        Variance of the noise in one entry of X (after scaling, where scaled). None takes it from the median, which
        needs the whole spectrum; with a number, leading eigenvalues do.

    Raises
    ------
    ValueError, TypeError
        When the noise variance is not a positive number.

    Notes
    -----
    Gavish & Donoho 2014 (The optimal hard threshold for singular values is 4/sqrt(3)), their lambda(beta) for known and
    omega(beta) for unknown noise. It assumes white noise, and a rank well below half of min(n, d)
    where the median is used.

    Examples
    --------
    >>> rule = GavishDonoho(noise_variance=1.0)
    >>> rule.choose(np.array([9.0, 5.0, 1.2, 1.0, 0.8]), 17.0, 1001, 5)
    2
    """

    by_weight: ClassVar[bool] = True

    noise_variance: float | None = None

    def __post_init__(self) -> None:
        given: Any = self.noise_variance
        if given is None:
            return
        if isinstance(given, bool) or not isinstance(given, Real):
            raise TypeError(
                f"noise_variance is {given!r}, but GavishDonoho needs a positive number, or None to take it from the "
                "median. Give one of these."
            )
        if not 0 < float(given) < np.inf:
            raise ValueError(
                f"noise_variance is {given}, but GavishDonoho needs a positive number. "
                "Use None to take it from the median."
            )

    @property
    def whole_spectrum_because(self) -> str | None:
        """The median, where the noise is unknown."""
        return "it takes the noise from the median of all singular values" if self.noise_variance is None else None

    def choose(self, values: Vector, total: float, n_samples: int, n_features: int) -> int | None:
        """Count the eigenvalues above the threshold."""
        m, d = n_samples - 1, n_features
        small, large = min(m, d), max(m, d)
        beta = small / large
        if self.noise_variance is None:
            noise = float(np.median(values[:small])) * m / (large * marchenko_pastur_median(beta))
        else:
            noise = float(self.noise_variance)
        factor = 2 * (beta + 1) + 8 * beta / (beta + 1 + np.sqrt(beta**2 + 14 * beta + 1))
        threshold = max(factor * large * noise / m, rounding_level(values, d))
        k = int(np.count_nonzero(values > threshold))
        return k if k < len(values) or len(values) == min(n_samples, n_features) else None


def marchenko_pastur_median(beta: float) -> float:
    """Return the median of the Marchenko-Pastur law of ratio beta in (0, 1] and unit variance.

    Density ``sqrt((b - t) (t - a)) / (2 pi beta t)`` on [a, b] = [(1 - sqrt(beta))^2, (1 + sqrt(beta))^2] (Marchenko &
    Pastur 1967), integrated over the angle of ``t = 1 + beta + 2 sqrt(beta) sin(angle)``, where it is smooth.

    Examples
    --------
    >>> round(marchenko_pastur_median(1.0), 4)
    0.6528
    """
    from scipy.integrate import quad  # a fifth of a second that workers need not spend
    from scipy.optimize import brentq

    root = np.sqrt(beta)

    def density(angle: float) -> float:
        # At beta = 1 both parts of the quotient vanish at the lower end, where its limit is 2.
        at = 1 + beta + 2 * root * np.sin(angle)
        return float(2 * np.cos(angle) ** 2 / (np.pi * at)) if at > 0 else 2 / np.pi

    def excess(angle: float) -> float:
        return float(quad(density, -np.pi / 2, angle, epsabs=1e-12, epsrel=1e-12)[0]) - 0.5

    middle = float(brentq(excess, -np.pi / 2, np.pi / 2, xtol=1e-13))
    return float(1 + beta + 2 * root * np.sin(middle))


@dataclass(frozen=True)
class MarchenkoPastur(ComponentRule):
    """Keep the components whose eigenvalues white noise cannot reach: those above the Marchenko-Pastur edge.

    With m = n - 1 rows left by centring, k is the smallest number with ``lambda_(k+1) <= s_k (1 + sqrt(d / m))^2``,
    where the noise is taken from what k components leave of the total, ``s_k = (total - lambda_1 - ... - lambda_k) /
    ((d - k) (1 - k / m))``. As k grows the edge falls, so this is where the iteration "count, estimate the noise, count
    again" ends. Only the total and k + 1 eigenvalues are needed.

    A direction of the signal shows in the sample only if its variance exceeds ``s sqrt(d / m)``. The edge is that of
    infinitely large samples: in finite ones pure noise passes it by a little in about one case in six.

    Notes
    -----
    The law: Marchenko & Pastur 1967; largest eigenvalue of pure noise: Johnstone 2001; the limit for signals: Baik &
    Silverstein 2006. NOTE: the factor 1 - k / m is ours. Large sample eigenvalues take more than their share of the
    noise with them, about s d / m each, so that the plain mean of the others is too small.

    Examples
    --------
    >>> MarchenkoPastur().choose(np.array([9.0, 5.0, 1.1, 1.0, 0.9]), 17.0, 401, 5)
    2
    """

    by_weight: ClassVar[bool] = True

    def choose(self, values: Vector, total: float, n_samples: int, n_features: int) -> int | None:
        """Count from the largest while the eigenvalue is above the edge of the noise that would remain."""
        m, d = n_samples - 1, n_features
        most = min(m, d)
        left = total - np.concatenate([[0.0], np.cumsum(values)])
        for k in range(min(len(values), most)):
            noise = float(left[k]) / ((d - k) * (1 - k / m))
            if values[k] <= max(noise * (1 + np.sqrt(d / m)) ** 2, rounding_level(values, d)):
                return k
        return most if len(values) >= most else None
