"""How many components: from ``n_components`` and a spectrum, whole or partial, to k.

First the rules (thresholds, elbow, Gavish-Donoho, Marchenko-Pastur, Minka's evidence, parallel analysis,
cross-validation), then their choice by name and by spectrum; and what variances need: totals within float64, and
degrees of freedom, which weights leave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import gammaln

from bigpca.arrays import Matrix, Vector
from bigpca.errors import an, check_choice, closest, positive_integer, real_number
from bigpca.parameters import RULES as NAMES
from bigpca.seeds import check_seed

MULTIPLIED = 4.0  # eps of lambda_1 that a covariance may be off by; measured: up to 1.1, of 300 rows
TIED_ERRORS = 1e-12  # of the largest error: errors of held-out rows that differ by less are equal
TIE = 1e-9  # of lambda_1: heights that differ by less are equal, whatever their rounding in the units of the data
SMALLEST = 1e-15  # relative to lambda_1: smaller eigenvalues are not a signal for Minka's rule
NULLS = ("deterministic", "signflip")
CRITERIA = ("column", "likelihood")
ALONE = 1e-8  # part of a column outside of the components, below which it is a component of its own
SMALLEST_VARIANCE = 1e-300  # from which on sums of squares keep all digits of float64
MAX_FOLDS = 20  # of rows; groups may be more
FIRST_GUESS = 64  # components to start with if a rule decides how many


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
        """Why the rule needs every eigenvalue; None if the leading ones and the total may be enough."""
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
        real_number("eps", self.eps, "(0, 1]", "a share of the largest eigenvalue such as 1e-3")

    def choose(self, values: Vector, total: float, n_samples: int, n_features: int) -> int | None:
        """Count the eigenvalues at or above the threshold; undecided if the last one given is among them."""
        # Values that were not computed are at most the last one that was.
        k = int(np.count_nonzero(values >= self.eps * values[0]))
        return k if k < len(values) or len(values) == min(n_samples, n_features) else None


@dataclass(frozen=True)
class Elbow(ComponentRule):
    """Keep the components before the elbow of the scree plot.

    With p = min(n, d), the elbow is the point (i, lambda_i) farthest below the chord from (1, lambda_1) to (p,
    lambda_p), the first one if there are ties (to 1e-9 lambda_1): ``i* = argmin lambda_i + (lambda_1 - lambda_p) (i -
    1) / (p - 1)``, and k = max(i* - 1, 1). Distances scale with either axis in the same way, so the answer does not
    depend on units. A heuristic: it uses the shape of the whole curve, so one huge eigenvalue hides the structure below
    it.

    With part of the spectrum, lambda_p is only known to be in a range: from 0 to the last given eigenvalue, or to the
    mean of the missing ones if that is smaller. If the whole range gives one elbow, the answer is certain.

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
    # Below the chord by the same amount: lambda_i - chord(i), plus what the chord falls by until i.
    heights = values + (1 - last) * np.arange(len(values)) / max(p - 1, 1)
    least = float(np.min(heights))
    return int(np.argmax(heights <= least + TIE)), least


@dataclass(frozen=True)
class GavishDonoho(ComponentRule):
    """Keep the singular values above the optimal hard threshold for a low-rank matrix in white noise.

    With m = n - 1 rows left by centring, ``beta = min(m, d) / max(m, d)`` and singular values ``y_i = sqrt(m
    lambda_i)``, keep ``y_i > t(beta) sqrt(max(m, d) s)`` for noise of variance s per entry, where ``t(beta)^2 = 2 (beta
    + 1) + 8 beta / (beta + 1 + sqrt(beta^2 + 14 beta + 1))``. For unknown noise, ``max(m, d) s = y_med^2 / mu_beta``,
    with the median singular value and the median of the Marchenko-Pastur law. As n and d grow it minimises the squared
    error of the reconstruction, among hard thresholds.

    Parameters
    ----------
    noise_variance : float or None, default None
        Variance of the noise in one entry of X (after scaling, if any). None estimates it from the median, which needs
        the whole spectrum; a number needs only the leading eigenvalues.

    Raises
    ------
    ValueError, TypeError
        When the noise variance is not a positive number.

    Notes
    -----
    Gavish & Donoho 2014 (The optimal hard threshold for singular values is 4/sqrt(3)), their lambda(beta) for known and
    omega(beta) for unknown noise. It assumes white noise and, if the median is used, a rank well below half of min(n,
    d).

    Examples
    --------
    >>> rule = GavishDonoho(noise_variance=1.0)
    >>> rule.choose(np.array([9.0, 5.0, 1.2, 1.0, 0.8]), 17.0, 1001, 5)
    2
    """

    by_weight: ClassVar[bool] = True

    noise_variance: float | None = None

    def __post_init__(self) -> None:
        if self.noise_variance is not None:
            what = "a variance, or None to take it from the median"
            real_number("noise_variance", self.noise_variance, "(0, inf)", what)

    @property
    def whole_spectrum_because(self) -> str | None:
        """The median, if the noise is unknown."""
        return "it takes the noise from the median of all singular values" if self.noise_variance is None else None

    def choose(self, values: Vector, total: float, n_samples: int, n_features: int) -> int | None:
        """Count the eigenvalues above the threshold."""
        m, d = n_samples - 1, n_features
        small, large = min(m, d), max(m, d)
        beta = small / large
        # For unknown noise, s from y_med^2 = m lambda_med = max(m, d) s mu_beta.
        if self.noise_variance is None:
            noise = float(np.median(values[:small])) * m / (large * marchenko_pastur_median(beta))
        else:
            noise = float(self.noise_variance)
        # y_i = sqrt(m lambda_i) > t sqrt(max(m, d) s) is lambda_i > t^2 max(m, d) s / m.
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
    where the noise is estimated from what k components leave of the total, ``s_k = (total - lambda_1 - ... - lambda_k)
    / ((d - k) (1 - k / m))``. As k grows the edge falls, so this is where the iteration "count, estimate the noise,
    count again" ends. Only the total and k + 1 eigenvalues are needed.

    A direction of the signal is visible in the sample only if its variance exceeds ``s sqrt(d / m)``. The edge holds
    for infinitely large samples; in finite samples, pure noise slightly exceeds it in about one case in six.

    Notes
    -----
    The law: Marchenko & Pastur 1967; largest eigenvalue of pure noise: Johnstone 2001; the limit for signals: Baik &
    Silverstein 2006. NOTE: the factor 1 - k / m is ours. Large sample eigenvalues absorb more than their share of the
    noise, about s d / m each, so the plain mean of the others is too small.

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
        # What k components leave of the total, for every k.
        left = total - np.concatenate([[0.0], np.cumsum(values)])
        for k in range(min(len(values), most)):
            noise = float(left[k]) / ((d - k) * (1 - k / m))
            if values[k] <= max(noise * (1 + np.sqrt(d / m)) ** 2, rounding_level(values, d)):
                return k
        return most if len(values) >= most else None


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
    # The evidence does not depend on the unit, so lambda_1 is 1.
    s = np.maximum(spectrum / spectrum[0], 0.0)
    ranks = np.arange(1, d)
    candidates = ranks[s[ranks - 1] >= SMALLEST]
    return int(candidates[np.argmax(_log_evidence(s, float(n_samples))[candidates - 1])])


def _log_evidence(s: Vector, n: float) -> Vector:
    """Evaluate the log evidence of the ranks 1 to d - 1, from prefix sums over the pairs i < j."""
    d = len(s)
    r = np.arange(1, d)
    eps = float(np.finfo(np.float64).eps)
    # Minka's eq. 78, term by term, for every rank r at once: the volume of the axes, the likelihood of the kept
    # variances and of the noise, and half the Hessian's log determinant.
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


@dataclass(frozen=True)
class ParallelAnalysis(ComponentRule):
    """Keep the components whose eigenvalues exceed those of unrelated columns of the same variances.

    Horn's parallel analysis compares the eigenvalues with those of rows whose columns were permuted, which destroys
    what the columns share. All components above the largest of these, the edge, are kept.

    - ``null="deterministic"``: as n and d grow, the edge is known without drawing anything. With m = n - 1 rows left by
      centring and the variances s_l of the columns, it is the smallest value of
      ``z(u) = 1 / u + (1 / m) sum_l s_l / (1 - s_l u)`` over ``0 < u < 1 / max s_l``. With equal variances it equals
      the edge of :class:`MarchenkoPastur` for noise with the whole variance of each column.
      ``PCA(solver="covariance")`` has these variances; other solvers of PCA, and ApproximatePCA, need one more read
      for them.
    - ``null="signflip"``: every entry of the centred (and scaled) rows has its sign flipped with probability 1/2, which
      preserves the size of every entry, and therefore of rows and columns. The edge is a quantile of the largest
      eigenvalue over ``n_flips`` such matrices. It takes one read for the mean, and then a fit of one component to each
      matrix, by the cheapest solver: ``n_flips`` reads with a d x d matrix. The plan counts them.

    Parameters
    ----------
    null : {"deterministic", "signflip"}, default "deterministic"
        How the edge is found.
    n_flips : int, default 10
        Matrices of flipped signs.
    quantile : float in [0, 1], default 1.0
        Quantile of their largest eigenvalues; 1 is the largest of all.
    random_state : int, default 0
        Seed of the signs, which depend only on it and on absolute row and column numbers.

    Raises
    ------
    ValueError, TypeError
        For another null, no flips, a quantile outside [0, 1], and an invalid seed.

    Notes
    -----
    Horn 1965 (A rationale and test for the number of factors in factor analysis); Dobriban & Owen 2019 (Deterministic
    parallel analysis), their DPA, with the edge of Silverstein & Choi 1995; Hong, Sheng & Dobriban 2020 (Selecting the
    number of components in PCA via random signflips), algorithm 1, with the upper edge for all components. Large
    components raise the variances of columns and therefore the edge, so small components beside them may be missed. The
    deterministic edge fails on rows of unequal size (outliers, mixed scales), because permuted columns do not preserve
    it: the edge is too low, and too many components are kept. Flipping signs preserves the sizes of rows too. With
    either null, noise that is correlated between columns is counted as components. "signflip" rejects sparse rows,
    because centring would make them dense.

    Examples
    --------
    >>> rule = ParallelAnalysis().for_columns(np.array([4.0, 4.0, 1.2, 1.0, 0.8]))
    >>> rule.choose(np.array([7.5, 1.1, 1.0, 0.9, 0.5]), 11.0, 401, 5)
    1
    """

    by_weight: ClassVar[bool] = True

    null: str = "deterministic"
    n_flips: int = 10
    quantile: float = 1.0
    random_state: int = 0
    _variances: Vector | None = field(default=None, init=False, repr=False, compare=False)
    _edge: float | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_choice("null", self.null, NULLS)
        positive_integer("n_flips", self.n_flips)
        real_number("quantile", self.quantile, "[0, 1]", "a share such as 1.0")
        check_seed(self.random_state, "random_state")

    def for_columns(self, variances: Vector | None) -> ParallelAnalysis:
        """Return the rule with the variances of the columns, which the deterministic edge requires."""
        return self._knowing(_variances=variances)

    def at(self, edge: float) -> ParallelAnalysis:
        """Return the rule with its edge."""
        return self._knowing(_edge=edge)

    def _knowing(self, **known: Vector | float | None) -> Self:
        rule = replace(self)
        for name, value in {"_variances": self._variances, "_edge": self._edge, **known}.items():
            object.__setattr__(rule, name, value)
        return rule

    @property
    def whole_spectrum_because(self) -> str | None:
        """The edge; None once it is known, because the leading eigenvalues are then enough."""
        return "its edge is not known" if self._edge is None else None

    def choose(self, values: Vector, total: float, n_samples: int, n_features: int) -> int | None:
        """Count the eigenvalues above the edge.

        Raises
        ------
        ValueError
            If neither the edge nor the numbers from which it is computed are known.
        """
        edge = self._edge
        if edge is None:
            if self.null != "deterministic" or self._variances is None:
                raise ValueError(unknown_edge(self))
            edge = noise_edge(self._variances, n_samples - 1)
        k = int(np.count_nonzero(values > max(edge, rounding_level(values, n_features))))
        return k if k < len(values) or len(values) == min(n_samples, n_features) else None


@dataclass(frozen=True)
class CrossValidated(ComponentRule):
    """Keep the fewest components that predict rows left out as well as the best number does, within one standard error.

    The rows are in folds, or in the groups of ``fit(X, groups=labels)``, whose moments are kept apart in the one read
    of ``PCA(solver="covariance")``. Each fold has errors by the axes V and eigenvalues l of all others:

    - ``criterion="column"``: each value of a row is predicted from its other columns, as if it were missing:
      ``sum_j [(I - V V') S (I - V V')]_jj / (1 - [V V']_jj)^2``, with the scatter S of the fold about the mean of the
      others. A column that others predict worse than its mean is predicted by its mean.
    - ``criterion="likelihood"``: minus the log-likelihood under probabilistic PCA, as scikit-learn's ``PCA.score``.
      Noise of unequal variances counts as components.

    :class:`bigpca.PLSRegression` compares the squared errors of its predictions, and has no other criterion.

    k is the smallest number whose error exceeds the least one by no more than the standard error of that difference
    over folds, or by rounding. Numbers above the rank of the rows without some fold are not tried. With either
    criterion, noise that is correlated between columns counts as components.

    Parameters
    ----------
    cv : int from 2 to 20, default 5
        By a hash of the keys of the rows, or of their numbers if they have none; groups replace them.
    criterion : {"column", "likelihood"}, default "column"
    max_components : int or None, default None
        The largest number that is tried; None for the rank, or one less where rows or columns limit it.

    Raises
    ------
    ValueError, TypeError
        For other values.

    Notes
    -----
    The error of whole rows that were left out falls with every further component, so that it chooses nothing: Bro,
    Kjeldahl, Smilde & Kiers 2008 (Cross-validation of component models), whose missing-data imputation with least
    squares, one value at a time, is the first criterion. Costs one eigen-decomposition and three products of (d, d)
    matrices for each fold.

    Examples
    --------
    >>> rule = CrossValidated().at(np.array([[9.0, 4.0, 4.1], [8.0, 5.0, 4.9]]), np.array([10.0, 10.0]))
    >>> rule.choose(np.array([5.0, 1.0, 0.5]), 6.5, 20, 3)
    1
    """

    cv: int = 5
    criterion: str = "column"
    max_components: int | None = None
    _errors: Matrix | None = field(default=None, init=False, repr=False, compare=False)
    _weights: Vector | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 2 <= positive_integer("cv", self.cv) <= MAX_FOLDS:
            raise ValueError(f"cv = {self.cv}; 2 to {MAX_FOLDS} folds were expected. Groups may be more.")
        check_choice("criterion", self.criterion, CRITERIA)
        if self.max_components is not None:
            positive_integer("max_components", self.max_components)

    def at(self, errors: Matrix, weights: Vector) -> CrossValidated:
        """Return the rule with the errors (f, m) of 0 to m - 1 components per row of each fold, and the folds' rows."""
        rule = replace(self)
        object.__setattr__(rule, "_errors", errors)
        object.__setattr__(rule, "_weights", weights)
        return rule

    @property
    def whole_spectrum_because(self) -> str | None:
        """The folds."""
        return "it leaves out folds of the rows"

    def choose(self, values: Vector, total: float, n_samples: int, n_features: int) -> int | None:
        """Apply the one-standard-error rule to paired differences of the folds.

        Raises
        ------
        ValueError
            If the errors are not known.
        """
        if self._errors is None or self._weights is None:
            raise ValueError(unknown_errors(self))
        # More components than the best number are not tried: fewer are wanted.
        best = int(np.argmin(self._weights @ self._errors))
        errors = self._errors[:, : best + 1]
        # So that squares stay within float64, whatever the units of the columns are.
        errors = np.ldexp(errors, -np.frexp(np.abs(errors[np.isfinite(errors)]).max(initial=0.0))[1])
        excess = errors - errors[:, best:]
        error = excess.std(axis=0, ddof=1) / np.sqrt(len(excess)) + TIED_ERRORS
        return int(np.argmax(self._weights @ excess / self._weights.sum() <= error))

    def errors(self, values: Vector, V: Matrix, S: Matrix, n_rows: float, rank: int) -> Vector:
        """Return the errors (m,) per row of a fold, of 0 to m - 1 components.

        Parameters
        ----------
        values, V : ndarray of shape (d,), (d, d)
            Eigenvalues of the other folds, descending, and eigenvectors as columns.
        S : ndarray of shape (d, d)
            Scatter of the fold about the mean of the others.
        n_rows : float
            Of the fold, or the sum of their weights.
        rank : int
            What rows and columns allow: more eigenvalues are 0, as are those within the rounding of the largest.
        """
        d, T = len(values), V.T @ S @ V
        # 0 components count, too: hence one more than there are variances above rounding.
        m = min(rank, d, int(np.count_nonzero(values > rounding_level(values, d))) + 1)
        m = m if self.max_components is None else min(m, self.max_components + 1)
        t = np.diagonal(T)
        if self.criterion == "likelihood":
            # Of k components: log |C| and the trace of C^-1 S, with the noise s2 = mean(l_k+1, ...) along all others.
            with np.errstate(divide="ignore", invalid="ignore"):
                left, logs, parts = (_before(one) for one in (values, np.log(values), t / values))
                k = np.arange(m)
                s2 = (values[:rank].sum() - left[:m]) / (rank - k)
                determinant = logs[:m] + (d - k) * np.log(s2)
                fit = parts[:m] + (t.sum() - _before(t)[:m]) / s2
                found = (n_rows * (d * np.log(2 * np.pi) + determinant) + fit) / (2 * n_rows)
            known = s2 > rounding_level(values, d)
            return np.where(known & np.isfinite(found), found, np.inf)
        # diag((I - V_k V_k') S (I - V_k V_k')): sums over pairs of the axes after k, the last first.
        U = V @ np.tril(T, -1)  # sum over b > a of V_jb T_ba
        residual, squares = _after(V * (2 * U + V * t))[:, :m], V**2
        outside = _after(squares)[:, :m]
        # NOTE: a column that the other columns predict worse than its mean does, in the rows of the other folds, is
        # predicted by its mean. Else a column that is nearly a component of its own would outweigh all others.
        divisors = np.maximum(outside, ALONE) ** 2
        alone = (outside < ALONE) | (_after(squares * values)[:, :m] >= divisors * (squares @ values)[:, None])
        errors = np.divide(np.maximum(residual, 0.0), divisors, out=np.tile(np.diagonal(S), (m, 1)).T, where=~alone)
        return np.asarray(errors.sum(axis=0) / n_rows)


def _before(values: Vector) -> Vector:
    """Return the sums (d + 1,) of the first 0, 1, ... values."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _after(values: Matrix) -> Matrix:
    """Return for each column the sum of it and all later ones."""
    return np.cumsum(values[:, ::-1], axis=1)[:, ::-1]


def unknown_errors(rule: CrossValidated) -> str:
    """Return the message where no folds of the rows are kept apart."""
    return (
        f"{rule} needs the moments of folds of the rows, which are not available here. Use fit of "
        'PCA(solver="covariance"), MarchenkoPastur, or an int.'
    )


def reject_folds(n_components: NComponents) -> None:
    """Reject cross-validation, before a read, where no folds of the rows are kept apart; raises ValueError."""
    rule = by_name(n_components)
    if isinstance(rule, CrossValidated):
        raise ValueError(unknown_errors(rule))


def unknown_edge(rule: ParallelAnalysis) -> str:
    """Return the message where nothing determines the edge of a rule."""
    what = "the variances of the columns" if rule.null == "deterministic" else "the rows again, with flipped signs"
    return (
        f"{rule} needs {what}, which are not available here. Use fit of PCA or ApproximatePCA, MarchenkoPastur, or an "
        "int."
    )


def noise_edge(variances: Vector, m: int) -> float:
    """Return the upper edge of the eigenvalues of m independent rows with unrelated columns of these variances.

    Examples
    --------
    >>> round(noise_edge(np.ones(100), 400), 6)  # (1 + sqrt(1 / 4))^2
    2.25
    """
    from scipy.optimize import minimize_scalar  # a fifth of a second that workers need not spend

    largest = float(variances.max())
    if largest <= 0:
        return 0.0
    shares = variances / largest
    found = minimize_scalar(
        lambda u: 1 / u + float((shares / (1 - shares * u)).sum()) / m,
        bounds=(0, 1),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return largest * float(found.fun)


NComponents = int | float | str | ComponentRule | None

RULES: dict[str, type[ComponentRule]] = {
    "relative_threshold": RelativeThreshold,
    "elbow": Elbow,
    "gavish_donoho": GavishDonoho,
    "marchenko_pastur": MarchenkoPastur,
    "parallel_analysis": ParallelAnalysis,
    "cross_validated": CrossValidated,
}  # by their names, "-" or "_"


def by_name(n_components: NComponents) -> NComponents:
    """Return the rule that a name stands for; other choices are returned unchanged.

    >>> by_name("marchenko-pastur"), by_name("mle"), by_name(3)
    (MarchenkoPastur(), 'mle', 3)
    """
    rule = RULES.get(n_components.replace("-", "_")) if isinstance(n_components, str) else None
    return n_components if rule is None or rule is RelativeThreshold else rule()


def check_n_components(n_components: NComponents, n_samples: int | None, n_features: int) -> None:
    """Reject an ``n_components`` that no data of this size can satisfy, before any row is read.

    Parameters
    ----------
    n_components : int in [1, min(n, d)], float in (0, 1), ``"mle"``, a :class:`ComponentRule` or its name, or None.
    n_samples : n; None where it is not known yet.
    n_features : d.

    Raises
    ------
    TypeError
        If it is of another type; booleans are rejected.
    ValueError
        When it is out of range.

    Examples
    --------
    >>> check_n_components(5, 100, 3)
    Traceback (most recent call last):
    ...
    ValueError: n_components = 5 is out of range: 100 samples of 3 features have 1 to 3 components. Use at most 3.
    """
    choice: Any = by_name(n_components)
    if choice is None or isinstance(choice, ComponentRule):
        return
    if isinstance(choice, str):
        if choice != "mle":
            raise ValueError(
                f"n_components = {choice!r} is not known; the rules with a name are {', '.join(map(repr, NAMES))}."
                f"{closest(choice, NAMES)}"
            )
        # Minka's evidence takes the logarithm of every eigenvalue; of fewer samples than features, some are 0.
        if n_samples is not None and n_samples < n_features:
            raise ValueError(
                f'n_components = "mle" needs at least as many samples as features, but there are {n_samples} samples '
                f"of {n_features} features. Use a share such as 0.95, or an int."
            )
    elif isinstance(choice, bool | np.bool_) or not isinstance(choice, Real):
        raise TypeError(
            f"n_components = {choice!r} is {an(type(choice).__name__)}, but it must be an int, a float in (0, 1), "
            '"mle", a rule such as RelativeThreshold(1e-3) or None. Give one of these.'
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
            f"n_components = {choice} is a float outside (0, 1), the range of a share of the variance. "
            "Use a share such as 0.95, or an int for a number of components."
        )


def counted(n_components: NComponents) -> int | None:
    """Return the number of components if it is given; None for a share, a rule, or all."""
    return int(n_components) if isinstance(n_components, Integral) else None


def check_total(
    variance: float,
    what: str = "the total variance",
    mean: Vector | None = None,
    *,
    positive: bool = False,
    whole: str = "the data",
) -> None:
    """Reject a total variance that is beyond float64, or so small that its squares have lost digits.

    A variance of 0 is rejected where a mean shows that values of this size have it, whatever they are; always where it
    must be ``positive``.
    """
    means = np.abs([] if mean is None else mean)
    lost = variance == 0 and (positive or bool(((means > 0) & (means < np.sqrt(SMALLEST_VARIANCE))).any()))
    if lost or 0 < variance < SMALLEST_VARIANCE:
        raise ValueError(
            f"{what} is {variance:.3g}: squares of values below 1e-150 leave the range of float64. Multiply "
            f"{whole} by a constant first{', or are they all zero?' if positive and lost else '.'}"
        )
    if not np.isfinite(variance):
        raise ValueError(
            f"{what} is {variance}: squares of the values overflow float64 (beyond 1e154). Divide {whole} "
            f"by a constant first."
        )


def degrees_of_freedom(count: int, sums: tuple[float, float] | None, subtracted: int = 1) -> float:
    """Return ``sum(w) - c``, by which a scatter is divided; ``n - c`` for rows without weights, at least 1.

    Parameters
    ----------
    count : int
        Rows.
    sums : (float, float) or None
        Sums of their weights and of the squares; None for rows without weights.
    subtracted : int, default 1
        c: 1, or the number of classes for the within-class scatter.

    Raises
    ------
    ValueError
        For weights whose sum less c is below 1, by more than the rounding of n additions: as numbers of rows they leave
        no degree of freedom, and the divisor would be rounding or a number without meaning.
    """
    if sums is None:
        return float(max(1, count - subtracted))
    total, squares = sums
    if total * (1 + count * np.finfo(np.float64).eps) < subtracted + 1:
        effective = total**2 / squares if squares else float(count)  # squares of tiny weights are 0
        within = "" if subtracted == 1 else f" within {subtracted} classes"
        remedy = "For weights that are not counts, pass sample_weight=bp.data.reliability(w)"
        if effective < subtracted + 1:
            remedy = f"These {count} rows are worth {effective:.3g} of equal weights. Give more rows of weight"
        raise ValueError(
            f"the weights add up to {total:.6g}, but weights count rows, and a sum of at least {subtracted + 1} is "
            f"required: the covariance{within} is divided by their sum minus {subtracted}. {remedy}."
        )
    return total - subtracted


def needs_full_spectrum(n_components: NComponents) -> bool:
    """Whether the choice can be made only with every eigenvalue at hand (anything but a given number).

    Examples
    --------
    >>> needs_full_spectrum(0.95), needs_full_spectrum(64)
    (True, False)
    """
    return not isinstance(n_components, Integral)


def resolve_components(
    n_components: NComponents,
    eigenvalues: Vector,
    total: float,
    n_samples: int,
    n_features: int,
    weight: float | None = None,
    columns: Vector | None = None,
    precision: float = 0.0,
) -> int:
    """Turn ``n_components`` into the number k of components to keep.

    None gives min(n, d). A share p gives the smallest k with (lambda_1 + ... + lambda_k) / total > p, as scikit-learn
    counts it, over the true total, and no more than the numerical rank. ``"mle"`` gives
    :func:`bigpca.solvers.components.minka_rank`. A rule that finds no component gives 1, and so does data without
    variance.

    Parameters
    ----------
    n_components : as in :func:`check_n_components`, which is called first.
    eigenvalues : ndarray of shape (r,), descending; the leading ones may do for a share or a rule.
    total : float
        Sum of all eigenvalues (the total variance, known exactly even when only some eigenvalues are).
    n_samples, n_features : int
    weight : float or None
        Sum of the weights of weighted rows, which "mle", :class:`GavishDonoho` and :class:`MarchenkoPastur` take for
        the number of observations; the other choices depend on the number of rows alone. None for rows without weights.
    columns : ndarray of shape (d,), or None
        Variances of the columns, for :class:`ParallelAnalysis`; None if they are not known.
    precision : float
        eps of the products: to a rule, and to "mle", eigenvalues below ``MULTIPLIED`` of it, relative to the largest,
        are 0.

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
    n_components = by_name(n_components)
    largest = min(n_samples, n_features)
    if n_components is None:
        return largest
    if isinstance(n_components, Integral):
        return int(n_components)
    # More eigenvalues than min(n, d) are zeros by rounding.
    given = eigenvalues[:largest]
    if len(given) < largest:
        _reject_partial(n_components, largest, f"{len(given)} are given")
    if isinstance(n_components, ComponentRule):
        n_components = n_components.for_columns(columns)
    if not isinstance(n_components, float):
        # A rule, or "mle", takes what rounding left of zeros for noise, or for signal.
        given = np.where(given > max(MULTIPLIED * precision * given[0], rounding_level(given, largest)), given, 0.0)
    k = _choose(n_components, given, total, n_samples, n_features, weight)
    if k is None:
        raise ValueError(
            f"{n_components} is not reached by the {len(given)} of {largest} eigenvalues that are given. Use a "
            "solver that computes the whole spectrum, or an int."
        )
    return k


def resolve_partial(
    n_components: NComponents, values: Vector, total: float, n: int, d: int, weight: float | None = None
) -> int | None:
    """Turn ``n_components`` into k from the leading eigenvalues, where they tell: what a solver of some pairs asks.

    Parameters
    ----------
    n_components : as in :func:`check_n_components`, which is called first.
    values : ndarray of shape (r,), descending
        The largest eigenvalues; all of them where r = min(n, d). Converged ones: a value that is still too small looks
        like the end of the signal to a threshold, an edge or an elbow, which then decide too early.
    total : float
        Sum of all eigenvalues.
    n, d : int
        Samples and features.
    weight : float or None
        As for :func:`resolve_components`.

    Returns
    -------
    int or None
        k in [1, min(n, d)], the same that the whole spectrum would give; None where more eigenvalues are needed (there
        are fewer than the number requested, the share is not reached, or the rule is undecided).

    Raises
    ------
    ValueError, TypeError
        As :func:`check_n_components`; and, with r < min(n, d), for the choices that need every eigenvalue: None, "mle"
        and :class:`GavishDonoho` of unknown noise.

    Examples
    --------
    >>> resolve_partial(0.9, np.array([6.0, 2.0]), 10.0, 100, 5) is None
    True
    >>> resolve_partial(0.9, np.array([6.0, 2.0, 1.5]), 10.0, 100, 5)
    3
    """
    check_n_components(n_components, n, d)
    n_components = by_name(n_components)
    largest, given = min(n, d), values[: min(n, d)]
    choice: Any = n_components
    if isinstance(choice, Integral):
        return int(choice) if int(choice) <= len(given) else None
    if len(given) == largest:
        return resolve_components(n_components, given, total, n, d, weight)
    _reject_partial(n_components, largest, f"this solver has computed {len(given)}")
    return _choose(n_components, given, total, n, d, weight)


def starting_components(n_components: NComponents, n: int, d: int) -> int:
    """Return how many components to compute first where :func:`resolve_partial` will decide.

    A given number is itself; a share or a rule begins with min(64, n, d). Call it before any row is read: it rejects
    what no partial spectrum can decide.

    Raises
    ------
    ValueError, TypeError
        As :func:`resolve_partial`.

    Examples
    --------
    >>> starting_components(10, 1000, 500), starting_components(0.95, 1000, 500), starting_components(0.95, 1000, 20)
    (10, 64, 20)
    """
    check_n_components(n_components, n, d)
    choice: Any = n_components
    if isinstance(choice, Integral):
        return int(choice)
    first = min(FIRST_GUESS, n, d)
    if first < min(n, d):
        _reject_partial(by_name(n_components), min(n, d), "this solver computes only the leading ones")
    return first


def partial_will_do(n_components: NComponents, n: int, d: int) -> bool:
    """Whether the leading eigenvalues are enough for ``n_components``; :func:`starting_components` rejects the others.

    Examples
    --------
    >>> partial_will_do(10, 1000, 500), partial_will_do("mle", 1000, 500)
    (True, False)
    """
    try:
        starting_components(n_components, n, d)
    except ValueError:
        return False
    return True


def _choose(
    n_components: NComponents, values: Vector, total: float, n: int, d: int, weight: float | None
) -> int | None:
    """Choose k from r leading eigenvalues; None where they do not tell. The number and the whole are handled before."""
    # Weights count repetitions: their sum is the number of observations.
    observations = n if weight is None else max(2, round(weight))
    if isinstance(n_components, str):
        return minka_rank(values, observations)
    if not len(values):
        return None
    # No variance: one component, as scikit-learn keeps.
    if total <= 0 or values[0] <= 0:
        return 1
    if isinstance(n_components, ComponentRule):
        k = n_components.choose(values, total, observations if n_components.by_weight else n, d)
        return None if k is None else max(k, 1)
    share: Any = n_components
    # The smallest k whose cumulated share exceeds p; "right", so that a share reached exactly is not enough.
    k = int(np.searchsorted(np.cumsum(values / total), share, side="right")) + 1
    if k > len(values) and len(values) < min(n, d):
        return None
    return min(k, max(1, int(np.count_nonzero(values > rounding_level(values, len(values))))))


def _reject_partial(n_components: NComponents, largest: int, given: str) -> None:
    if n_components is None:
        name, because = "n_components = None", "it keeps them all"
    elif isinstance(n_components, str):
        name, because = f'n_components = "{n_components}"', "it compares every number of components with the rest"
    elif isinstance(n_components, ComponentRule) and n_components.whole_spectrum_because is not None:
        name, because = f"n_components = {n_components}", n_components.whole_spectrum_because
    else:
        return
    raise ValueError(
        f"{name} needs all {largest} eigenvalues, but {given}: {because}. Use a solver that computes the whole "
        "spectrum, an int, or a share such as 0.95."
    )


def encode_components(n_components: NComponents) -> Any:
    """Return ``n_components`` as a JSON value: itself, or ``{name of the rule: its parameter, or a list of several}``.

    Raises
    ------
    TypeError
        For a rule that is not bigpca's own.

    Examples
    --------
    >>> encode_components(RelativeThreshold(0.1)), encode_components(Elbow()), encode_components(np.int64(3))
    ({'relative_threshold': 0.1}, {'elbow': None}, 3)
    """
    if isinstance(n_components, ComponentRule):
        names = [name for name, rule in RULES.items() if type(n_components) is rule]
        if not names:
            raise TypeError(
                f"n_components = {n_components!r} cannot be saved: one of {', '.join(RULES)} was expected, which can "
                "be read back anywhere. Fit with the int that it chose."
            )
        parameters = [_plain(getattr(n_components, name)) for name in _parameters(type(n_components))]
        return {names[0]: parameters if len(parameters) > 1 else parameters[0] if parameters else None}
    return _plain(n_components)


def decode_components(value: Any) -> Any:
    """Return ``n_components`` as it was given, from its JSON form.

    Raises
    ------
    ValueError
        For a rule that is not known.

    Examples
    --------
    >>> decode_components({"gavish_donoho": None}), decode_components(0.95)
    (GavishDonoho(noise_variance=None), 0.95)
    """
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not set(value) <= set(RULES):
        raise ValueError(f"n_components = {value} is not a rule; one of {', '.join(RULES)} was expected.")
    ((name, parameter),) = value.items()
    rule: Any = RULES[name]
    if not _parameters(rule):
        return rule()
    return rule(*parameter) if isinstance(parameter, list) else rule(parameter)


def _parameters(rule: Any) -> list[str]:
    return [one.name for one in fields(rule) if one.init]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
