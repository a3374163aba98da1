"""Kernels that are not positive semi-definite: iteration on a shifted matrix, bounds, and warnings."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import warn_approximation
from bigpca.estimators.kernel.spectrum import (
    KernelSettings,
)
from bigpca.estimators.linear.certified import Certificate
from bigpca.estimators.linear.iteration import (
    Iteration,
    iterate,
    kept_components,
    warn_unconverged,
)
from bigpca.estimators.linear.spectrum import counted
from bigpca.operators.kernel import KernelOperator
from bigpca.operators.products import Probes, Products
from bigpca.passes.engine.run import Run
from bigpca.solvers.certificates import rounding_slack
from bigpca.solvers.indefinite import negative_mass
from bigpca.solvers.krylov_problem import KrylovResult

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass
class ShiftedOperator:
    """``A + sigma I`` of an indefinite A, with sigma an upper bound of ``-lambda_min(A)``: positive semi-definite.

    Krylov spaces do not change with the shift. It is known after the first product: ``|A|_F^2 = sum_i lambda_i^2`` and
    each of the leading eigenvalues is at least its Ritz value, so ``lambda_min^2 <= |A|_F^2 - sum theta_i^2`` over
    positive Ritz values theta.

    Attributes
    ----------
    operator : KernelOperator
    sigma : float
    """

    operator: KernelOperator
    sigma: float = 0.0
    trace_error: float = 0.0
    omitted: int = 0

    @property
    def size(self) -> int:
        return self.operator.size

    @property
    def shape(self) -> tuple[int, int]:
        return self.operator.shape

    @property
    def weight(self) -> float:
        """Number of rows, which have no weights."""
        return float(self.size)

    @property
    def precision(self) -> float:
        return self.operator.precision

    @property
    def rounding(self) -> float:
        return self.operator.rounding

    @property
    def trace(self) -> float:
        return self.operator.trace + self.size * self.sigma

    @property
    def probes(self) -> Probes:
        found = self.operator.probes
        return Probes(found.vectors, found.products + self.sigma * found.vectors)

    @property
    def other_reads(self) -> int:
        return self.operator.other_reads

    @property
    def refinable(self) -> bool:
        return self.operator.refinable

    def refine(self) -> None:
        """Make later products more precise; sigma does not change."""
        self.operator.refine()

    def begin(self, V: Matrix) -> Products:
        """Multiply an orthonormal first block, and choose the shift."""
        AV = self.operator.begin(V).AB
        theta = np.linalg.eigvalsh(V.T @ AV)
        norm = self.operator.norm
        left = 1.0 - float(((theta[theta > 0] / (norm or 1.0)) ** 2).sum())  # of the squared norm
        self.sigma = norm * (float(np.sqrt(max(left, 0.0))) + 4 * self.precision)
        return Products(V, AV + self.sigma * V)

    def multiply(self, V: Matrix) -> Matrix:
        """Return ``(A + sigma I) V``."""
        return self.operator.multiply(V) + self.sigma * V


def iterate_indefinite(
    operator: KernelOperator, settings: KernelSettings, iteration: Iteration, run: Run
) -> tuple[KrylovResult, Vector, Certificate, float]:
    """Return the algebraically largest eigenvalues, their bounds, and the negative mass that was found."""
    shifted = ShiftedOperator(operator)
    result = iterate(shifted, None, settings, iteration)
    if not result.converged:
        warn_unconverged(shifted, result, settings, run)
    B = result.basis
    ritz = np.linalg.eigvalsh(B.T @ result.approximation.multiply(B)) - shifted.sigma  # the approximation is exact on B
    k = kept_components(shifted, result, settings)
    values = result.values[:k] - shifted.sigma
    positive = values > operator.size * np.finfo(np.float64).eps * np.abs(values).max(initial=0.0)
    values = np.maximum(values[: int(np.count_nonzero(positive)) or 1], 0.0)
    norm = operator.norm
    negative = negative_mass(ritz.astype(np.float64), 10 * operator.precision * norm)
    lower = np.maximum(result.ritz_values[: len(values)] - shifted.sigma, 0.0)
    certificate = replace(
        frobenius_bounds(operator, lower), residuals=result.residuals[: len(values)], n_passes=run.reads,
        converged=result.converged,
    )  # fmt: skip
    warn_indefinite(settings, negative, norm, whole=False)
    warn_fewer(
        settings,
        int(np.count_nonzero(positive)),
        f"the iteration on the matrix of {settings.kernel} finds",
        "Use fewer.",
    )
    return result, values, certificate, negative


def frobenius_bounds(operator: KernelOperator, lower: Vector) -> Certificate:
    """Bound the leading eigenvalues of an indefinite HKH, of which lower bounds (k,) are known.

    ``lambda_i^2 <= |HKH|_F^2 - sum_(j != i) lower_j^2``, over the positive lower bounds. Only the first eigenvalue is
    known to be at least 0 (``HKH 1 = 0``). Shares of a trace with negative parts are not defined.
    """
    norm = operator.norm
    slack = rounding_slack(operator.size**0.5 * norm, precision=operator.precision)
    least = lower - slack
    least[:1] = np.maximum(least[:1], 0.0)
    # As shares of the norm; reduced by the slack, because the square root below magnifies an excess.
    squares = (np.maximum(least, 0.0) / (norm or 1.0)) ** 2
    upper = norm * np.sqrt(np.maximum(1.0 - (np.sum(squares) - squares), 0.0)) + slack
    bounds = np.column_stack([least, np.maximum.accumulate(upper[::-1])[::-1]])
    return Certificate(bounds, None, None, 1.0)


def warn_fewer(settings: KernelSettings, positive: int, where: str, remedy: str) -> None:
    """Warn if an indefinite kernel has fewer positive eigenvalues than the requested components."""
    given = counted(settings.n_components)
    if given is not None and positive < given:
        warn_approximation(
            f"{given} components were requested, but {where} {positive} positive eigenvalues: "
            f"{max(1, positive)} are kept. {remedy}"
        )


def warn_indefinite(settings: KernelSettings, negative: float, norm: float, *, whole: bool) -> None:
    """Warn that the kernel is not an inner product, if negative mass was found, and report how much."""
    if not negative:
        return
    found = f"{negative:.3g}" if whole else f"at least {negative:.3g}"
    warn_approximation(
        f"{settings.kernel} is not positive semi-definite: its centred matrix has negative eigenvalues that sum to "
        f"-{found} (Frobenius norm {norm:.3g}). The largest eigenvalues by value are kept, and there are no bounds "
        f"from the trace. Use a positive semi-definite kernel where variances and distances must mean something."
    )
