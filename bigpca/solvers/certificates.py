"""How far an approximate answer can be from the true one: bounds that hold, from the reads that gave the answer.

Everything here starts from a Nyström approximation A_hat of a positive semi-definite A with known trace. Its values
never exceed the eigenvalues of A, so what they leave of the trace, ``gap = trace(A) - trace(A_hat)``, bounds every
error; a few random probes multiplied in the same read bound ``|A - A_hat|_2`` more tightly, at a stated probability.
Bounds on eigenvalues come first, then bounds on the angles between computed and true subspaces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaincinv

from bigpca.arrays import Matrix, Vector
from bigpca.records import stored

FAILURE = 1e-3  # probability that a bound from probes is wrong
SLACK = 10.0  # of precision * trace; see rounding_slack
SUMMED, SUMMED_IN_ORDER = 256.0, 2.0**15  # of precision * norm, and of float64's eps * norm; see product_slack
SMALL_TERMS = 1e6  # products of fewer terms in all are small
NEGLIGIBLE = 1e-3  # of the first eigenvalue: uncertainties below this share of it are not a reason to distrust
TRUSTED_WIDTH = 2.0
DEPENDENT = 1e-12  # of its length: an axis that adds less to those before it adds rounding


@dataclass(frozen=True)
class Bounds:
    """Intervals ``lower[i] <= lambda_i <= upper[i]`` that all hold at once with probability ``confidence``.

    Attributes
    ----------
    lower, upper : ndarray of shape (k,), descending, >= 0; they contain the slack for rounding.
    confidence : float; 1 for bounds that cannot fail.
    """

    lower: Vector
    upper: Vector
    confidence: float


def rounding_slack(trace: float, *, precision: float, shift: float = 0.0) -> float:
    """Bound what rounding can do to the bounds: ``10 precision trace + shift``.

    With Y = A W + D, the computed approximation is an exact one of A + nu I + E, |E|_2 <= 3 |D|_2, while nu > 3 |D|_2
    keeps that positive semi-definite (:func:`bigpca.solvers.nystrom.nystrom`): every value is off by 3 |D|_2 at most.
    Roundings of one product that do not conspire have |D|_2 <= 2 precision |A|_F <= 2 precision trace; the trace's own
    rounding makes 6 into 10. The shift covers a W far from orthonormal, for which it grows with |D|_2.

    Parameters
    ----------
    trace : float; of A.
    precision : relative rounding of the products: 1.2e-7 for float32, 2.2e-16 for float64.
    shift : nu of the approximation.

    Examples
    --------
    >>> rounding_slack(64.0, precision=2.0**-23)  # float32
    7.62939453125e-05
    """
    return SLACK * precision * trace + shift


def product_slack(norm: float, size: int, *, precision: float, shift: float = 0.0) -> float:
    """Bound what the rounding of ``Y = A W`` can do to bounds: ``256 precision |A|_F + shift``, or more if Y is small.

    Every value is off by about |D|_2, D the rounding of Y (:func:`rounding_slack`). BLAS adds up to m = 512 terms of an
    inner product in order, in all products but small ones (under 1e6 terms in all), which are made in float64. Their
    roundings cancel where terms are of any size: ``|D|_2`` is some 6 precision |A|_F. They agree where rows take few
    values, as a column of ones and zeros does once it is centred: a small term that is added again and again is rounded
    by the same part of the sum, up to ``m / 2`` times its precision. 190 precision |A|_F were seen. Small products add
    all terms in order, ``m <= 1e6 / size``: 9,500 precision |A|_F were seen for two columns of ones and zeros, of up to
    400,000 rows, and ``2^15 eps |A|_F``, 7.3e-12 |A|_F, is allowed at most.

    Parameters
    ----------
    norm : float; |A|_F or more: :func:`frobenius_bound`.
    size : int; of the numbers in Y, or fewer
    precision, shift : as for :func:`rounding_slack`.

    Notes
    -----
    The trace does not measure it: it is |A|_F where one column is giant, and ``sqrt(N)`` times that on a flat spectrum.
    """
    small = min(SUMMED_IN_ORDER, SMALL_TERMS / (2 * max(1, size)))
    return max(SUMMED * precision, small * float(np.finfo(np.float64).eps)) * norm + shift


def frobenius_bound(values: Vector, trace: float, norm_bound: float | None = None) -> float:
    """Bound ``|A|_F`` from the values of a Nyström approximation: ``|A_hat|_F + |E|_F``, ``|E|_F^2 <= |E|_2 trace(E)``.

    Examples
    --------
    >>> frobenius_bound(np.array([4.0, 3.0]), 8.0), frobenius_bound(np.array([4.0, 3.0]), 8.0, 0.25)
    (6.0, 5.5)
    """
    missed = max(0.0, trace - float(values.sum()))
    largest = missed if norm_bound is None else min(norm_bound, missed)
    return float(np.linalg.norm(values) + np.sqrt(largest * missed))


def trace_bounds(values: Vector, k: int, trace: float, slack: float) -> Bounds:
    """Bound the k largest eigenvalues with certainty, from all values of a Nyström approximation and the trace of A.

    ``values[i] <= lambda_i`` for every i, and all lambda_i sum to the trace. So for every m <= i,
    ``(i - m + 1) lambda_i <= lambda_m + ... + lambda_i <= values[m] + ... + values[i] + gap``: m = i and m = 1 are the
    two classic bounds, the smallest over m is used. Costs O(k^2).

    Parameters
    ----------
    values : ndarray of shape (q,), descending, >= 0: ALL of the approximation's values, q >= k.
    k : eigenvalues to bound.
    trace : float; of A.
    slack : float; :func:`rounding_slack`.

    Returns
    -------
    Bounds
        With confidence 1; ``upper[i] <= trace / (i + 1)`` too.

    Raises
    ------
    ValueError
        When k is not in [1, q], or the values exceed the trace by more than rounding.

    Examples
    --------
    >>> bounds = trace_bounds(np.array([4.0, 2.0, 0.5]), 2, trace=7.0, slack=0.0)
    >>> bounds.lower.tolist(), bounds.upper.tolist()
    ([4.0, 2.0], [4.5, 2.5])
    """
    gap = _gap(values, k, trace, slack)
    sums = np.concatenate([[0.0], np.cumsum(values[:k])])
    upper = np.empty(k)
    for i in range(k):
        # For every j <= i: (i - j + 1) lambda_i <= lambda_j + ... + lambda_i <= values_j + ... + values_i + gap.
        upper[i] = np.min((sums[i + 1] - sums[: i + 1] + gap) / np.arange(i + 1, 0, -1))
    return Bounds(np.maximum(values[:k] - slack, 0.0), np.minimum.accumulate(upper) + slack, 1.0)


def probe_norm_bound(A_omega: Matrix, A_hat_omega: Matrix, failure: float = 1e-3) -> float:
    """Bound ``|A - A_hat|_2`` from r random probes: ``|(A - A_hat) Omega|_2 / sqrt(x)``,
    wrong with probability ``failure``.

    x is the ``failure`` quantile of the chi-square distribution of r degrees. With v the leading singular vector,
    ``|(A - A_hat) Omega|_2 >= |A - A_hat|_2 |v'Omega|``, and ``|v'Omega|^2`` has that distribution: the bound fails
    only when it lies below its quantile. Costs 2 N r^2 flops and one N x r copy.

    Parameters
    ----------
    A_omega : ndarray of shape (N, r); A Omega, where the entries of Omega are independent standard normal numbers.
        Omega must be independent of the approximation: never columns of its W, nor of a Krylov start.
    A_hat_omega : ndarray of shape (N, r); A_hat Omega.
    failure : probability, in (0, 1), that the bound is wrong.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        When the shapes differ or failure is not in (0, 1).

    Notes
    -----
    NOTE: Halko, Martinsson & Tropp (2011), section 4.3, takes the largest of the r column norms:
    ``alpha sqrt(2/pi) max_j |(A - A_hat) omega_j|``, wrong with probability alpha^-r. On a heavy tail the columns are
    nearly orthogonal, so their joint norm is hardly larger than one of them, and the quantile of r degrees is far from
    0: with eigenvalues i^-1, r = 10 or 20 and the same probability, this bound is half of theirs. It costs no more.

    Examples
    --------
    >>> omega = np.random.default_rng(0).standard_normal((100, 10))
    >>> round(probe_norm_bound(2 * omega, omega), 2)  # A - A_hat = I: |I|_2 = 1
    10.97
    """
    return float(np.linalg.norm(A_omega - A_hat_omega, 2)) / float(np.sqrt(probe_quantile(A_omega.shape[1], failure)))


def probe_quantile(probes: int, failure: float) -> float:
    """Return the ``failure`` quantile of ``|v'Omega|^2`` for a unit v and Gaussian Omega (N, probes)."""
    return 2.0 * float(gammaincinv(probes / 2, failure))


def probe_bounds(values: Vector, k: int, trace: float, slack: float, *, norm_bound: float, failure: float) -> Bounds:
    """Tighten :func:`trace_bounds` by a bound on ``|A - A_hat|_2``: ``lambda_i <= values[i] + norm_bound`` (Weyl).

    Parameters
    ----------
    values, k, trace, slack : as for :func:`trace_bounds`.
    norm_bound : float; :func:`probe_norm_bound`.
    failure : the probability that norm_bound is wrong; one event for all k.

    Examples
    --------
    >>> bounds = probe_bounds(np.array([4.0, 2.0, 0.5]), 2, 7.0, 0.0, norm_bound=0.25, failure=1e-3)
    >>> bounds.upper.tolist(), bounds.confidence
    ([4.25, 2.25], 0.999)
    """
    bounds = trace_bounds(values, k, trace, slack)
    return Bounds(bounds.lower, np.minimum(bounds.upper, values[:k] + norm_bound + slack), 1.0 - failure)


def captured_variance_bounds(
    values: Vector, k: int, trace: float, slack: float, *, norm_bound: float | None = None, seen: float | None = None
) -> tuple[float, float]:
    """Bound ``tr(U A U')``, the variance that k orthonormal axes U (k, N) capture.

    ``U A U' = U A_hat U' + U (A - A_hat) U'``, and the second term is positive semi-definite, with
    eigenvalues of at most ``|A - A_hat|_2`` and a trace of at most ``trace(A - A_hat) = gap``. So the
    captured variance is at least ``seen = tr(U A_hat U')`` and, as ``seen <= sum(values[:k])`` for any axes,
    at most ``sum(values[:k]) + min(gap, k |A - A_hat|_2)``.

    Parameters
    ----------
    values, k, trace, slack : as for :func:`trace_bounds`.
    norm_bound : float; :func:`probe_norm_bound`, whose probability of failure the result inherits. None for certainty.
    seen : float; of the axes in hand. None for the leading eigenvectors of A_hat, where it is ``sum(values[:k])``.

    Examples
    --------
    >>> captured_variance_bounds(np.array([4.0, 2.0, 0.5]), 2, trace=7.0, slack=0.0)
    (6.0, 6.5)
    """
    gap = _gap(values, k, trace, slack)
    width = gap if norm_bound is None else min(gap, k * norm_bound)
    sum_of_values = float(np.sum(values[:k]))
    least = sum_of_values if seen is None else seen
    return max(least - slack, 0.0), min(sum_of_values + width, trace) + slack


def residual_bound(values: Vector, trace: float, slack: float, *, norm_bound: float | None = None) -> float:
    """Bound the residuals of a Nyström approximation without another product: ``|A u - theta u| = |(A - A_hat) u|``.

    It is at most ``|A - A_hat|_2 <= min(gap, norm_bound)``.
    """
    gap = _gap(values, 1, trace, slack)
    return (gap if norm_bound is None else min(gap, norm_bound)) + slack


@dataclass(frozen=True)
class Trust:
    """How many leading components the bounds certify.

    Attributes
    ----------
    components : int; the leading ones whose intervals are all narrow enough.
    k : int; components requested.
    width : float; the largest relative width of an interval, ``(upper - lower) / max(lower, 1e-3 lower_1)``.
    """

    components: int
    k: int
    width: float

    @property
    def trusted(self) -> bool:
        """Whether all k components are certified."""
        return self.components == self.k

    def warning(self, remedy: str) -> str:
        """Return the warning about an unreliable result; ``remedy`` names what to run instead."""
        return (
            f"the bounds certify {self.components} of {self.k} components: an eigenvalue may exceed its lower bound by "
            f"{self.width:.3g} times that bound, and {TRUSTED_WIDTH:g} times is the limit. {remedy}"
        )


def trustworthy(bounds: Bounds) -> Trust:
    """Decide which components to trust: those whose interval, and all before it, reach at most 3 times their lower end.

    The bounds overestimate errors by about an order of magnitude, so a factor of 3 that cannot be excluded goes with
    eigenvalue errors near a tenth and directions that are right; where even it fails, directions are rubbish too.
    Intervals are measured relative to ``max(lower_i, 1e-3 lower_1)``: eigenvalues at zero need no certificate.

    Examples
    --------
    >>> trustworthy(Bounds(np.array([4.0, 1.0]), np.array([5.0, 4.0]), 1.0))
    Trust(components=1, k=2, width=3.0)
    """
    # Components of next to no variance may be uncertain: nothing depends on them.
    scale = np.maximum(bounds.lower, NEGLIGIBLE * bounds.lower[0])
    widths = (bounds.upper - bounds.lower) / np.where(scale > 0, scale, np.inf)
    if scale[0] == 0 and bounds.upper[0] > 0:
        widths = np.full(len(widths), np.inf)
    wide = np.flatnonzero(widths > TRUSTED_WIDTH)
    return Trust(int(wide[0]) if len(wide) else len(widths), len(widths), float(np.max(widths)))


def _gap(values: Vector, k: int, trace: float, slack: float) -> float:
    """Return ``trace(A) - trace(A_hat)``, at least 0."""
    if not 1 <= k <= len(values):
        raise ValueError(
            f"bounds of {k} eigenvalues were requested, but {len(values)} values are given. Use 1 to {len(values)}."
        )
    gap, rounding = trace - float(np.sum(values)), len(values) * slack  # every value may be off by the slack
    if gap < -rounding:
        raise ValueError(
            f"the values add up to {trace - gap:.8g}, more than the trace {trace:.8g} plus rounding ({rounding:.2g}): "
            "they are not a Nyström approximation of that matrix. Please report this, with the output of bigpca doctor."
        )
    return max(gap, 0.0)


@dataclass(frozen=True)
class SeenAxes:
    """What a Nyström approximation A_hat shows of orthonormal axes U (k, N).

    Attributes
    ----------
    rayleigh : ndarray of shape (k, k); ``H = U A_hat U'``.
    off : ndarray of shape (k,); a bound of ``|A_hat U_j' - U_j' H_j|_2`` for the leading j axes.
    outside : ndarray of shape (k, k); the Gram matrix of the axes' parts outside of B: the identity without a B.
    """

    rayleigh: Matrix
    off: Vector
    outside: Matrix

    @property
    def missed(self) -> Vector:
        """A bound (k,) of the norm of the leading j axes' parts outside of B."""
        return np.sqrt(leading_norms(self.outside))

    @property
    def lowest(self) -> Vector:
        """A lower bound (k,) of the smallest eigenvalue of the leading block H_j (Weyl: diagonal and rest)."""
        diagonal = np.diagonal(self.rayleigh)
        return np.minimum.accumulate(diagonal) - leading_norms(self.rayleigh - np.diag(diagonal))


def see_axes(approximation: Any, axes: Matrix, basis: Matrix | None = None) -> SeenAxes:
    """Multiply axes (k, N) by A_hat, and split them by the basis B (N, q) on which A_hat
    is exact; 4 N (2 q + k) k flops.

    With ``A_hat U' = U' H + T`` and T orthogonal to U, the part of ``A_hat U_j'`` outside of the leading j axes is
    ``T_j + (the other axes)' H_(others, j)``, whose squared Frobenius norm is a sum of both.
    """
    U = axes.T
    product = approximation.multiply(U)
    H = axes @ product
    H = (H + H.T) / 2
    # T = A_hat U' - U' H, orthogonal to U as H = U A_hat U'.
    product -= U @ H
    squares = np.cumsum(H**2, axis=1)  # of row i, up to column j: those of rows beyond j leave the leading axes
    off = np.sqrt(np.cumsum(np.einsum("ij,ij->j", product, product)) + np.tril(squares, -1).sum(axis=0))
    if basis is None:
        return SeenAxes(H, off, np.eye(len(axes)))
    outside = np.subtract(U, basis @ (basis.T @ U), out=product)
    return SeenAxes(H, off, outside.T @ outside)


def leading_norms(G: Matrix) -> Vector:
    """Bound ``|G[:j, :j]|_2`` of a symmetric G (k, k) for all j at once: by the Frobenius norm or the largest row sum.

    >>> leading_norms(np.array([[3.0, 0.0], [0.0, 4.0]])).tolist()
    [3.0, 4.0]
    """
    # Sums of the leading blocks for all j by cumulated sums, instead of k norms: of squares, and of rows.
    frobenius = np.sqrt(np.cumsum(np.cumsum(G**2, axis=0), axis=1).diagonal())
    rows = np.maximum.accumulate(np.cumsum(np.abs(G), axis=1), axis=0).diagonal()
    return np.minimum(frobenius, rows)


@dataclass(frozen=True)
class SubspaceBounds:
    """What bounds the angles between leading computed axes U and leading eigenspaces of A, any number of each.

    Attributes
    ----------
    residuals : ndarray of shape (k,); at least ``|A U_j' - U_j' H_j|_2``, the slack for rounding included.
    deficits : ndarray of shape (k,); at least ``sum_(i <= j) lambda_i - tr(U_j A U_j')``, the same.
    lowest : ndarray of shape (k,); at most the smallest eigenvalue of H_j, and at most lambda_j.
    upper : ndarray of shape (P,), P > k; at least the leading P eigenvalues of A (0 for one beyond its size).
    """

    residuals: Vector = stored("k")
    deficits: Vector = stored("k")
    lowest: Vector = stored("k")
    upper: Vector = stored("P")

    def __post_init__(self) -> None:
        if len(self.upper) <= len(self.lowest):
            raise ValueError(f"it has upper bounds of {len(self.upper)} eigenvalues for {len(self.lowest)} axes")

    def limited(self, k: int) -> SubspaceBounds:
        """Return the bounds of the first k axes."""
        return SubspaceBounds(self.residuals[:k], self.deficits[:k], self.lowest[:k], self.upper)

    def bound(self, j: int, p: int) -> float:
        """Bound the sine of the largest angle between the leading j axes and the span of the leading p eigenvectors.

        ``min(1, r_j / gap, sqrt(deficit_j / gap))`` with ``gap = lowest_j - upper_(p+1)``, and 1
        where that is not positive.

        Parameters
        ----------
        j, p : int; ``1 <= j <= k`` and ``j <= p < P``.

        Notes
        -----
        The sine is ``|S|_2`` for ``S = V'U_j'``, V the eigenvectors beyond the p-th, with eigenvalues Lambda of at most
        upper_(p+1). First, with ``A U_j' = U_j' H_j + R`` one has ``S H_j - Lambda S = -V'R``. Where Lambda >= 0,
        ``|S H_j| >= lowest_j |S|`` and ``|Lambda S| <= upper_(p+1) |S|``: ``|S| <= |R| / gap``, Davis & Kahan (1970),
        sin theta theorem. Second, the axes put a weight ``w_i = |U_j v_i|^2 <= 1`` on eigenvector i, j in all and ``s =
        |S|_F^2`` beyond the p-th. ``tr(U_j A U_j') = sum lambda_i w_i`` is largest where what is left, j - s, lies on
        the largest, so that it lacks at least ``s (lambda_j - lambda_(p+1))`` of the first j eigenvalues (Fan 1949):
        ``s <= deficit_j / gap``.

        If A = X'X and the axes are multiplied by X, as rows of XX' are in components, the bound stays:
        with X = Z Sigma V', ``|Z_p'(X u)| <= sqrt(upper_(p+1)) |S|``, and X shortens none
        of U_j to below sqrt(lowest_j).
        """
        gap = float(self.lowest[j - 1] - self.upper[p])
        if gap <= 0:
            return 1.0
        return min(1.0, float(self.residuals[j - 1]) / gap, float(np.sqrt(self.deficits[j - 1] / gap)))

    @property
    def errors(self) -> Vector:
        """Bounds (k,) for as many axes as eigenvectors: ``bound(j, j)`` for all j."""
        return np.array([self.bound(j, j) for j in range(1, len(self.lowest) + 1)])


def subspace_bounds(seen: SeenAxes, upper: Vector, norm_bound: float, slack: float) -> SubspaceBounds:
    """Bound angles from what A_hat shows of the axes and ``|A - A_hat|_2 <= norm_bound``; nothing is multiplied.

    ``A - A_hat`` is zero on B, so that ``|(A - A_hat) U_j'|_2 <= norm_bound |(I - B B') U_j'|_2``.

    Parameters
    ----------
    seen : SeenAxes
    upper : ndarray of shape (P,); upper bounds of the eigenvalues of A, which contain the slack.
    norm_bound : float
    slack : float; :func:`bigpca.solvers.certificates.rounding_slack`.
    """
    k = len(seen.off)
    # sum_(i <= j) lambda_i <= sum_(i <= j) upper_i, and tr(U_j A U_j') >= tr(U_j A_hat U_j').
    shown = np.cumsum(np.diagonal(seen.rayleigh))
    deficits = np.cumsum(upper[:k]) - shown + slack * np.arange(1, k + 1)
    residuals = seen.off + norm_bound * seen.missed + slack
    return SubspaceBounds(residuals, np.maximum(deficits, 0.0), seen.lowest - slack, upper)


def orthonormal_axes(axes: Matrix) -> Matrix:
    """Return rows (k, N) whose first j span what the first j axes (k, N) span; 0 for one
    that adds nothing to those.

    >>> orthonormal_axes(np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [1.0, 1.0, 0.0]])).round(9).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    rows = np.zeros_like(axes)
    for i in range(len(axes)):
        # Gram-Schmidt, twice (Kahan): once leaves the rounding of the first subtraction.
        added = axes[i] - (axes[i] @ rows[:i].T) @ rows[:i]
        added -= (added @ rows[:i].T) @ rows[:i]
        length = float(np.linalg.norm(added))
        if length > DEPENDENT * float(np.linalg.norm(axes[i])):
            rows[i] = added / length
    return rows
