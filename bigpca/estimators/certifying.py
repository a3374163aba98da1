"""Certificates of approximate models: bounds from the reads that gave the answer, and the warnings they lead to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import warn_approximation
from bigpca.estimators.spectrum import Certificate
from bigpca.operators.covariance import Probes
from bigpca.solvers.certificates import (
    Bounds,
    captured_variance_bounds,
    probe_bounds,
    probe_norm_bound,
    residual_bound,
    rounding_slack,
    trace_bounds,
    trustworthy,
)

FAILURE = 1e-3  # probability that a bound from probes is wrong
Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def certify(
    approximation: Any,
    k: int,
    trace: float,
    *,
    precision: float,
    probes: Probes | None = None,
    residuals: Vector | None = None,
    basis: Matrix | None = None,
) -> Certificate:
    """Bound the first k eigenvalues, the captured variance and the residuals (MATHS: Nyström, trace and probes).

    Parameters
    ----------
    approximation : NystromApproximation
    trace : float
        Of the matrix: the true total variance.
    precision : float
        Relative rounding of the products.
    probes : Probes or None
        Independent of the approximation; without them bounds come from the trace alone, and cannot fail.
    residuals : ndarray of shape (k,) or None
        Measured ones; None for a bound on them.
    basis : ndarray of shape (N, q) or None
        The orthonormal columns whose products made the approximation, where they hold the leading eigenvectors nearly: the
        approximation is exact on them, so upper bounds close as an iteration converges.
    """
    values = approximation.values
    slack = rounding_slack(trace, precision=precision, shift=approximation.shift)
    norm_bound = None
    if probes is None:
        bounds = trace_bounds(values, k, trace, slack)
    else:
        norm_bound = probe_norm_bound(probes.products, approximation.multiply(probes.vectors), FAILURE)
        bounds = probe_bounds(values, k, trace, slack, norm_bound=norm_bound, failure=FAILURE)
    missed = max(0.0, trace - float(values.sum())) + slack
    largest = missed if norm_bound is None else min(missed, norm_bound)
    if basis is not None:
        closing = approximation.majorant_values(basis, largest, k) + slack
        bounds = replace(bounds, upper=np.minimum(bounds.upper, closing))
    if residuals is None:
        residuals = np.full(k, residual_bound(values, trace, slack, norm_bound=norm_bound))
    captured = np.array(captured_variance_bounds(values, k, trace, slack, norm_bound=norm_bound))
    if basis is not None:
        outside = k - float(np.linalg.norm(approximation.vectors[:k] @ basis)) ** 2  # tr V (I - B B') V'
        captured[1] = min(captured[1], float(values[:k].sum()) + largest * max(0.0, outside) + (1 + k) * slack)
    share = captured / trace if trace > 0 else np.ones(2)
    limits = np.column_stack([bounds.lower, bounds.upper])
    return Certificate(limits, residuals, share, bounds.confidence)


def warn_if_doubtful(certificate: Certificate, remedy: str) -> None:
    """Warn where the bounds are too wide to trust the answer, and say what to run instead."""
    lower, upper = certificate.eigenvalue_bounds.T
    trust = trustworthy(Bounds(lower, upper, certificate.confidence))
    if not trust.trusted:
        warn_approximation(trust.warning(remedy))
