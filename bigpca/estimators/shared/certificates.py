"""Certificates of approximate models: bounds from the reads of the fit itself, and the warnings that follow.

First the record, and its fitted attributes; then :func:`certify`, which makes it from what the reads of
a fit have left.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils.metaestimators import available_if

from bigpca.arrays import Matrix, Vector, norm_of
from bigpca.errors import warn_approximation
from bigpca.estimators.shared.inputs import BaseEstimator
from bigpca.operators import Probes
from bigpca.records import of_part, stored
from bigpca.solvers.certificates import (
    FAILURE,
    Bounds,
    SeenAxes,
    SubspaceBounds,
    captured_variance_bounds,
    frobenius_bound,
    orthonormal_axes,
    probe_bounds,
    probe_norm_bound,
    product_slack,
    residual_bound,
    see_axes,
    subspace_bounds,
    trace_bounds,
    trustworthy,
)
from bigpca.solvers.eigh import FAR_FROM_ONE
from bigpca.solvers.nystrom import NystromApproximation

if TYPE_CHECKING:
    from bigpca.solvers.krylov import BasisApproximation

MAX_PASSES = 1e9  # reads of a fit that a file may name


@dataclass(frozen=True)
class Certificate:
    """Bounds of the error of an approximate result.

    Attributes
    ----------
    eigenvalue_bounds : ndarray of shape (k, 2)
        Lower and upper bounds of the leading eigenvalues of the covariance, which ``variances`` approximate.
    residuals : ndarray of shape (k,) or None
        ``|C v_i - lambda_i v_i|``, in the units of the eigenvalues; None if the reads do not determine them.
    captured_variance_bounds : ndarray of shape (2,) or None
        Bounds of the share of ``total`` along the components; None if the matrix is not positive semi-definite.
    confidence : float
        Probability with which all bounds hold; 1.0 for bounds that always do.
    n_passes : float or None
        Reads of X by the fit; a read of a tenth of the rows counts 0.1.
    converged : bool or None
        Whether the tolerance was met; None without a tolerance.
    subspaces : SubspaceBounds or None
        Bounds of the angles between leading axes and leading eigenspaces; None if the matrix is not multiplied, or
        not positive semi-definite.
    """

    eigenvalue_bounds: Matrix = stored("k", "2")
    residuals: Vector | None = stored("k", optional=True)
    captured_variance_bounds: Vector | None = stored("2", optional=True)
    confidence: float = stored(of=float, least=0, most=1)
    n_passes: float | None = stored(of=float, least=0, most=MAX_PASSES, default=None)
    converged: bool | None = stored(of=bool, default=None)
    subspaces: SubspaceBounds | None = stored(of=SubspaceBounds, default=None)

    def times(self, exponent: int) -> Certificate:
        """Return the certificate of ``2^exponent A``; sines and shares do not change."""
        limits, residuals, subspaces = self.eigenvalue_bounds, self.residuals, self.subspaces
        return replace(
            self,
            eigenvalue_bounds=np.ldexp(limits, exponent),
            residuals=None if residuals is None else np.ldexp(residuals, exponent),
            subspaces=subspaces
            and SubspaceBounds(*(np.ldexp(getattr(subspaces, one.name), exponent) for one in fields(subspaces))),
        )

    def limited(self, k: int) -> Certificate:
        """Return the certificate of k components: those beyond the given ones have the upper bound of the last."""
        limits, residuals, lack = self.eigenvalue_bounds[:k], self.residuals, max(0, k - len(self.eigenvalue_bounds))
        beyond = np.tile([min(0.0, limits[-1, 0]), limits[-1, 1]], (lack, 1))
        return replace(
            self,
            eigenvalue_bounds=np.vstack([limits, beyond]),
            residuals=None if residuals is None else np.append(residuals[:k], np.zeros(lack)),
            subspaces=None if lack or self.subspaces is None else self.subspaces.limited(k),
        )

    @property
    def subspace_error_bounds(self) -> Vector | None:
        """Bounds (k,) of the sines of the angles between the leading j axes and the leading j eigenvectors."""
        return None if self.subspaces is None else self.subspaces.errors


class Certified:
    """A result whose certificate gives fitted attributes."""

    certificate: Certificate | None
    eigenvalue_bounds_ = of_part("certificate", "eigenvalue_bounds")
    residuals_ = of_part("certificate", "residuals")
    captured_variance_bounds_ = of_part("certificate", "captured_variance_bounds")
    subspace_error_bounds_ = of_part("certificate", "subspace_error_bounds")
    bounds_confidence_ = of_part("certificate", "confidence")
    n_passes_ = of_part("certificate", "n_passes")
    converged_ = of_part("certificate", "converged")


def bounds_subspaces(model: object) -> bool:
    """Whether a model has bounds of subspaces; otherwise the method that requires them does not exist."""
    found = getattr(model, "_result", None) if getattr(model, "__sklearn_is_fitted__", bool)() else None
    return getattr(getattr(found, "certificate", None), "subspaces", None) is not None


def certify(
    approximation: NystromApproximation | BasisApproximation,
    k: int,
    trace: float,
    *,
    precision: float,
    probes: Probes | None = None,
    residuals: Vector | None = None,
    basis: Matrix | None = None,
    axes: tuple[Matrix, Vector] | None = None,
    multiplied: bool = False,
    norm_bound: float | None = None,
    trace_error: float = 0.0,
) -> Certificate:
    """Bound the first k eigenvalues, captured variance, residuals, and angles (Nyström, trace and probes).

    Parameters
    ----------
    approximation : NystromApproximation or BasisApproximation
    trace : float
        Of the matrix: the true total variance.
    precision : float
        Relative rounding of the products.
    probes : Probes or None
        Independent of the approximation; without them the bounds use the trace alone, and always hold.
    residuals : ndarray of shape (k,) or None
        Measured residuals; None to bound them instead.
    basis : ndarray of shape (N, q) or None
        The orthonormal columns whose products made the approximation, if they nearly span the leading eigenvectors:
        the approximation is exact on them, so the upper bounds tighten as an iteration converges. Their deviation from
        orthonormality counts as a relative rounding error of the majorant. A BasisApproximation has its own.
    axes : (ndarray of shape (k, N), ndarray of shape (k,)) or None
        The axes of the model, which need not be orthonormal, and their eigenvalues. None for the leading vectors of the
        approximation.
    multiplied : bool
        Whether the model's axes are these times a factor X' of ``A = X X'``: components from vectors of the dot matrix,
        or the axes in feature space of vectors of a kernel matrix.
    norm_bound : float or None
        A bound of ``|A - A_hat|_2`` that holds except with probability ``FAILURE``, if one is known; otherwise the
        probes yield one.
    trace_error : float
        Bound of the error of ``trace``, which sparse rows have because they are centred by sums.
    """
    exponent = int(np.frexp(trace)[1])
    if abs(exponent) > FAR_FROM_ONE:  # |A|_F^2 may leave the range of float64: bound eigenvalues of A / 2^exponent
        divided = None if probes is None else replace(probes, products=np.ldexp(probes.products, -exponent))
        return certify(
            approximation.divided(exponent),
            k,
            float(np.ldexp(trace, -exponent)),
            precision=precision,
            probes=divided,
            residuals=None if residuals is None else np.ldexp(residuals, -exponent),
            basis=basis,
            axes=axes and (axes[0], np.ldexp(axes[1], -exponent)),
            multiplied=multiplied,
            norm_bound=None if norm_bound is None else float(np.ldexp(norm_bound, -exponent)),
            trace_error=float(np.ldexp(trace_error, -exponent)),
        ).times(exponent)
    values, N = approximation.values, approximation.vectors.shape[1]
    P = min(2 * k + 1, N)  # eigenvalues bounded from above, including those that bounds of wider subspaces refer to
    padded = np.concatenate([values, np.zeros(max(0, P - len(values)))])
    if norm_bound is None and probes is not None:
        norm_bound = probe_norm_bound(probes.products, approximation.multiply(probes.vectors), FAILURE)
    norm = frobenius_bound(values, trace, norm_bound)
    rounding = slack = (
        product_slack(norm, approximation.vectors.size, precision=precision, shift=approximation.shift) + trace_error
    )
    if norm_bound is None:  # from the trace alone, else by the norm of what the values leave
        bounds = trace_bounds(padded, P, trace, slack)
    else:
        bounds = probe_bounds(padded, P, trace, slack, norm_bound=norm_bound, failure=FAILURE)
    missed = max(0.0, trace - float(values.sum())) + slack
    largest = missed if norm_bound is None else min(missed, norm_bound)
    majorant: Vector | None = None
    if not isinstance(approximation, NystromApproximation):
        basis, majorant = approximation.basis, approximation.majorant_values(largest, P)
    elif basis is not None:
        majorant = approximation.majorant_values(basis, largest, P)
    if basis is not None and majorant is not None:
        from bigpca.solvers.krylov import ORTHONORMAL  # heavy, and only iterations have a basis

        rounding = slack + ORTHONORMAL * np.sqrt(basis.shape[1]) * float(majorant[0])
        bounds = replace(bounds, upper=np.minimum(bounds.upper, majorant + rounding))
    if residuals is None:
        residuals = np.full(k, residual_bound(values, trace, slack, norm_bound=norm_bound))
    own = approximation.vectors[:k]
    if axes is not None:
        # |A u - lambda u| <= |A_hat u - lambda u| + |A - A_hat|, the latter being the residuals so far.
        own, (V, theta) = orthonormal_axes(axes[0]), axes
        residuals = residuals + norm_of(approximation.multiply(V.T) - V.T * theta, axis=0)
    seen = see_axes(approximation, own, basis)
    captured = np.array(
        captured_variance_bounds(values, k, trace, slack, norm_bound=norm_bound, seen=float(np.trace(seen.rayleigh)))
    )
    if basis is not None:
        captured[1] = min(captured[1], _most_captured(seen, largest, multiplied) + (1 + k) * slack)
    share = captured / np.array([trace + trace_error, trace - trace_error]) if trace > trace_error else np.ones(2)
    beyond = bounds.upper if 2 * k < P else np.append(bounds.upper, 0.0)  # there is no eigenvalue N + 1
    subspaces = subspace_bounds(seen, beyond, largest, rounding)
    limits = np.column_stack([bounds.lower, bounds.upper])[:k]
    return Certificate(limits, residuals, share, bounds.confidence, subspaces=subspaces)


def _most_captured(seen: SeenAxes, norm_bound: float, multiplied: bool) -> float:
    """Bound the variance that eigenvectors V (N, k) of A_hat capture, by their parts O outside of the basis.

    ``V'A V = H + V'E V`` with ``E = A - A_hat`` between 0 and ``norm_bound (I - B B')``. With ``A = X X'``, the span of
    ``X'V`` captures ``tr((V'A V)^-1 V'A^2 V)``; ``A V = V H + E V`` makes that at most
    ``tr(V'A V) + tr(H^-1 V'E^2 V)``.
    """
    most = float(np.trace(seen.rayleigh)) + norm_bound * float(np.trace(seen.outside))
    if not multiplied:
        return most
    if seen.lowest[-1] <= 0:
        return np.inf
    return most + norm_bound**2 * float(np.trace(np.linalg.solve(seen.rayleigh, seen.outside)))


def warn_if_doubtful(certificate: Certificate, remedy: str) -> None:
    """Warn if the bounds are too wide to trust the result, with an alternative."""
    lower, upper = certificate.eigenvalue_bounds.T
    trust = trustworthy(Bounds(lower, upper, certificate.confidence))
    if not trust.trusted:
        warn_approximation(trust.warning(remedy))


class BoundedSubspaces(BaseEstimator):
    """The method of models whose fit may be approximate, with bounds of its error."""

    @available_if(bounds_subspaces)  # type: ignore[untyped-decorator]
    def containment_bound(self, n_axes: int, n_true: int) -> float:
        """Bound the angle between the leading axes and a larger true principal subspace.

        Where eigenvalues are close together, as in a cluster cut by ``n_axes``, the leading axes are not determined,
        and ``subspace_error_bounds_`` is 1; it may still be certain that they are within the span of the whole cluster.

        Parameters
        ----------
        n_axes : int, 1 to k
            The leading axes, in order.
        n_true : int, ``n_axes`` to 2 k (at most the number of eigenvalues)
            Dimension of the true leading principal subspace.

        Returns
        -------
        float
            The sine of the largest angle between an axis, or a combination of them, and that subspace is at most this,
            with probability ``bounds_confidence_``; 1.0 if nothing is certain. ``containment_bound(j, j)`` is
            ``subspace_error_bounds_[j - 1]``.

        Raises
        ------
        ValueError
            For numbers out of range.
        AttributeError
            If the model has no ``subspace_error_bounds_``.
        """
        subspaces = self._result.certificate.subspaces
        if subspaces is None:
            raise AttributeError("the model has no certified bounds of subspaces.")
        k, most = len(subspaces.lowest), len(subspaces.upper) - 1
        if not 1 <= n_axes <= k or not n_axes <= n_true <= most:
            raise ValueError(
                f"n_axes = {n_axes} and n_true = {n_true}; 1 <= n_axes <= {k} (n_components_) and n_axes <= n_true <= "
                f"{most} were expected. Fit more components to bound larger subspaces."
            )
        return float(subspaces.bound(n_axes, n_true))
