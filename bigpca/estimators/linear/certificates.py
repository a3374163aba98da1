"""Certificates of approximate models: bounds from the reads of the fit itself, and the warnings that follow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import warn_approximation
from bigpca.estimators.linear.certified import Certificate
from bigpca.operators.products import Probes
from bigpca.solvers.basis_approximation import BasisApproximation
from bigpca.solvers.certificates import (
    FAILURE,
    Bounds,
    captured_variance_bounds,
    frobenius_bound,
    probe_bounds,
    probe_norm_bound,
    product_slack,
    residual_bound,
    trace_bounds,
    trustworthy,
)
from bigpca.solvers.eigh import FAR_FROM_ONE
from bigpca.solvers.krylov_basis import ORTHONORMAL
from bigpca.solvers.nystrom import NystromApproximation
from bigpca.solvers.subspaces import SeenAxes, see_axes, subspace_bounds

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def certify(
    approximation: NystromApproximation | BasisApproximation,
    k: int,
    trace: float,
    *,
    precision: float,
    probes: Probes | None = None,
    residuals: Vector | None = None,
    basis: Matrix | None = None,
    axes: Matrix | None = None,
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
    axes : ndarray of shape (k, N) or None
        The axes of the model, orthonormal; rows of 0 for axes in the span of those before them. None for the
        leading vectors of the approximation.
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
            approximation.divided(exponent), k, float(np.ldexp(trace, -exponent)), precision=precision, probes=divided,
            residuals=None if residuals is None else np.ldexp(residuals, -exponent), basis=basis, axes=axes,
            multiplied=multiplied, norm_bound=None if norm_bound is None else float(np.ldexp(norm_bound, -exponent)),
            trace_error=float(np.ldexp(trace_error, -exponent)),
        ).times(exponent)  # fmt: skip
    values, N = approximation.values, approximation.vectors.shape[1]
    P = min(2 * k + 1, N)  # eigenvalues bounded from above, including those that bounds of wider subspaces refer to
    padded = np.concatenate([values, np.zeros(max(0, P - len(values)))])
    if norm_bound is None and probes is not None:
        norm_bound = probe_norm_bound(probes.products, approximation.multiply(probes.vectors), FAILURE)
    norm = frobenius_bound(values, trace, norm_bound)
    rounding = slack = product_slack(norm, precision=precision, shift=approximation.shift) + trace_error
    bounds = _value_bounds(padded, P, trace, slack, norm_bound)
    missed = max(0.0, trace - float(values.sum())) + slack
    largest = missed if norm_bound is None else min(missed, norm_bound)
    majorant: Vector | None = None
    if isinstance(approximation, BasisApproximation):
        basis, majorant = approximation.basis, approximation.majorant_values(largest, P)
    elif basis is not None:
        majorant = approximation.majorant_values(basis, largest, P)
    if basis is not None and majorant is not None:
        rounding = slack + ORTHONORMAL * np.sqrt(basis.shape[1]) * float(majorant[0])
        bounds = replace(bounds, upper=np.minimum(bounds.upper, majorant + rounding))
    if residuals is None:
        residuals = np.full(k, residual_bound(values, trace, slack, norm_bound=norm_bound))
    seen = see_axes(approximation, approximation.vectors[:k] if axes is None else axes, basis)
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


def _value_bounds(values: Vector, k: int, trace: float, slack: float, norm_bound: float | None) -> Bounds:
    """Bound the first k eigenvalues, by the norm of what the values leave, or by the trace alone."""
    if norm_bound is None:
        return trace_bounds(values, k, trace, slack)
    return probe_bounds(values, k, trace, slack, norm_bound=norm_bound, failure=FAILURE)


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
