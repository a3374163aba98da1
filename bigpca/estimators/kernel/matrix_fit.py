"""Kernel PCA of few rows: the whole kernel matrix, double-centred and solved (tutorial, algorithm 5).

Kernels that are not positive semi-definite: iteration on a shifted matrix, bounds, and warnings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from bigpca.arrays import Matrix, Vector, norm_of
from bigpca.errors import warn_approximation
from bigpca.estimators.kernel.maps import kernel_identity
from bigpca.estimators.kernel.spectrum import (
    KernelFit,
    KernelSettings,
    KernelSpectrum,
    axis_coefficients,
    closing_passes,
    expansion_bytes,
    held_bytes,
    rounding_of,
    row_shift,
    row_shift_pass,
    training_expansion,
    warn_alike,
)
from bigpca.estimators.linear.krylov import Iteration, iterate, kept_components, warn_unconverged
from bigpca.estimators.linear.spectrum import counted
from bigpca.estimators.shared.certificates import Certificate
from bigpca.kernels.base import FIXED_BYTES
from bigpca.operators.kernel import KernelOperator
from bigpca.passes.accumulators.dot_matrix import DotPanels, double_centre
from bigpca.passes.accumulators.kernel_product import reject_contradicted, reject_overflow
from bigpca.passes.engine.jobs import PassState
from bigpca.passes.engine.run import Run
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.rows import Rows
from bigpca.passes.sweeps import SweepPlan, fold_kernel, kernel_layout, sweep_pass
from bigpca.planning import PassCost, SolveCost
from bigpca.solvers.certificates import rounding_slack
from bigpca.solvers.components import partial_will_do, resolve_components
from bigpca.solvers.eigh import eigh_bytes, eigh_flops, fix_signs, top_eigenpairs
from bigpca.solvers.indefinite import negative_eigenvalue, negative_mass
from bigpca.solvers.krylov import KrylovResult


def iterate_indefinite(
    operator: KernelOperator, settings: KernelSettings, iteration: Iteration, run: Run
) -> tuple[KrylovResult, Vector, Certificate, float]:
    """Return the algebraically largest eigenvalues, their bounds, and the negative mass that was found.

    The operator is a shifted one.
    """
    result = iterate(operator, None, settings, iteration)
    if not result.converged:
        warn_unconverged(operator, result, settings, run)
    B = result.basis
    ritz = (
        np.linalg.eigvalsh(B.T @ result.approximation.multiply(B)) - operator.sigma
    )  # the approximation is exact on B
    k = kept_components(operator, result, settings)
    values = result.values[:k] - operator.sigma
    positive = values > rounding_of(values, operator.row_means, operator.tile_rounding)
    values = np.maximum(values[: int(np.count_nonzero(positive)) or 1], 0.0)
    norm = operator.norm
    negative = negative_mass(ritz.astype(np.float64), 10 * operator.precision * norm)
    lower = np.maximum(result.ritz_values[: len(values)] - operator.sigma, 0.0)
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
    """Bound the leading eigenvalues of an indefinite HKH, whose lower bounds (k,) are known.

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
        f"from the trace. Use a positive semi-definite kernel if variances and distances must be meaningful."
    )


DENSE_ROWS = 2000  # up to which the whole matrix is the default
DENSE_INDEFINITE_ROWS = 4000  # the same for indefinite kernels: only the whole spectrum determines their negative mass


@dataclass(frozen=True)
class DenseSpectrum:
    """Eigenpairs of HKH.

    Attributes
    ----------
    eigenvalues : ndarray of shape (k,); V : ndarray of shape (n, k)
    row_means : ndarray of shape (n,)
    trace, norm : float; of HKH, the Frobenius norm for the second
    negative_mass : float
        Absolute sum of the negative eigenvalues; 0 within rounding.
    rounding : float
        Below which an eigenvalue is 0, in the precision of the tiles.
    """

    eigenvalues: Vector
    V: Matrix
    row_means: Vector
    trace: float
    norm: float
    negative_mass: float
    rounding: float


@dataclass(frozen=True)
class DenseFit(KernelFit):
    """One sweep, an n x n matrix and its eigenproblem."""

    solver: ClassVar[str] = "dense"

    @classmethod
    def offered(cls, rows: Rows, settings: KernelSettings) -> bool:
        """Whenever no iteration is offered."""
        return not iterates(rows, settings)

    @property
    def account(self) -> str:
        return f"a {self.rows.n_rows} x {self.rows.n_rows} kernel matrix in memory"

    @cached_property
    def sweep(self) -> SweepPlan:
        """The sweep."""
        rows, kernel, n = self.rows, self.settings.kernel, self.rows.n_rows
        template = DotPanels(n, rows.n_columns, kernel_layout(rows, kernel).panel_rows)
        # Panels of the upper triangle, also as they come from other workers; the matrix; and its factorisation. The
        # temporaries of each thread's last tile are free then, but the allocator may still keep them.
        held = 8 * n * (n + template.panel_rows) + 8 * n * n + 16 * n * n * kernel.taken_on_trust
        solve = eigh_bytes(n, pairs_wanted(self.settings, n)) + self.resources.threads * FIXED_BYTES
        return sweep_pass(rows, kernel, "kernel", template, finish_bytes=held + solve, collected=True)

    def passes(self) -> tuple[PassCost, ...]:
        rows = self.rows
        closing = closing_passes(rows, self.settings.kernel)
        return (row_shift_pass(rows), self.sweep, *closing)

    def solve_cost(self) -> SolveCost:
        n = self.rows.n_rows
        held = held_bytes(self.rows, self.settings.kernel)
        given = counted(self.settings.n_components)
        k = n if given is None else given
        output = expansion_bytes(self.rows, self.settings.kernel, k)
        flops = eigh_flops(n, pairs_wanted(self.settings, n))
        return SolveCost(flops, held_bytes=held, output_bytes=output)

    def identity(self) -> dict[str, object]:
        """One checkpoint of the matrix serves any number of components."""
        kernel = kernel_identity(self.settings.kernel)
        return {"computes": "kernel matrix", "input": self.rows.describe(), "kernel": kernel}

    def run(self, run: Run) -> KernelSpectrum:
        rows, settings, kernel = self.rows, self.settings, self.settings.kernel
        shift = row_shift(run, rows)
        template = DotPanels(rows.n_rows, rows.n_columns, self.sweep.sweep.panel_rows)
        stored, tiles = (float(np.finfo(dtype).eps) for dtype in (working_dtype(rows.dtype), self.sweep.dtype))
        finish = partial(_solve, settings=settings, stored=stored, tiles=max(tiles, kernel.stored_eps(rows.dtype)))
        found = fold_kernel(run, self.sweep, rows, kernel, template, finish, shift=shift)  # one sweep over all pairs
        negative_mass = None
        if not kernel.positive_semidefinite:
            negative_mass = found.negative_mass
            warn_indefinite(settings, found.negative_mass, found.norm, whole=True)
            if isinstance(settings.n_components, int | np.integer):
                positive = int(np.count_nonzero(found.eigenvalues))
                warn_fewer(settings, positive, f"the centred matrix of {kernel} has", "Use fewer.")
        V = np.ascontiguousarray(fix_signs(np.ascontiguousarray(found.V.T)).T)
        warn_alike(found.eigenvalues, found.rounding)
        coefficients = axis_coefficients(V, found.eigenvalues, found.rounding)
        expansion = training_expansion(run, rows, settings, shift, found.row_means, coefficients)
        return KernelSpectrum(
            rows.n_rows, 0, found.eigenvalues, found.trace, expansion, run.evaluations, negative_mass=negative_mass
        )


def iterates(rows: Rows, settings: KernelSettings) -> bool:
    """Whether the default is to iterate: beyond a few thousand rows, if the number or rule allows it."""
    few = DENSE_ROWS if settings.kernel.positive_semidefinite else DENSE_INDEFINITE_ROWS
    if not settings.kernel.positive_semidefinite and counted(settings.n_components) is None:
        return False  # shares and rules require the whole indefinite spectrum
    return rows.n_rows > few and partial_will_do(settings.n_components, rows.n_rows, rows.n_rows)


def pairs_wanted(settings: KernelSettings, n: int) -> int | None:
    """Return how many eigenpairs are computed; None for all, as the negative mass of an indefinite kernel requires."""
    number = counted(settings.n_components)
    return None if number is None or not settings.kernel.positive_semidefinite else min(number, n)


def _solve(state: PassState, *, settings: KernelSettings, stored: float, tiles: float) -> DenseSpectrum:
    """Centre and eigen-decompose the kernel matrix; memory: two n x n matrices beside the state.

    ``stored`` is the eps of the rows, in which a kernel of the caller may compute, and ``tiles`` that of K's entries.
    """
    K = state.part("kernel", DotPanels).matrix()
    n = len(K)
    with np.errstate(over="ignore", invalid="ignore"):
        row_means = K.mean(axis=1)
    reject_overflow(settings.kernel, row_means)
    # Eigenvalues of HKH are known to about eps |K|, for the eps of its entries: ten times that is rounding.
    entries = 10 * float(norm_of(K))
    double_centre(K)
    if settings.kernel.taken_on_trust:
        least = negative_eigenvalue(K, stored * entries, threads=settings.threads)
        evidence = None if least is None else f"its centred matrix has the eigenvalue {least:.3g}"
        reject_contradicted(settings.kernel, evidence)
    # Before the eigensolver, which destroys the matrix.
    trace, norm = float(np.trace(K)), float(norm_of(K))
    given, signed = settings.n_components, not settings.kernel.positive_semidefinite
    eigenvalues, vectors = top_eigenpairs(K, pairs_wanted(settings, n), signed=signed, threads=settings.threads)
    rounding = rounding_of(eigenvalues, row_means, tiles * entries)
    rank = max(1, int(np.count_nonzero(eigenvalues > rounding)))
    positive = np.where(eigenvalues > rounding, eigenvalues, 0.0)
    k = rank if given is None else min(resolve_components(given, positive, trace, n, n), n)
    if settings.kernel.positive_semidefinite:
        # A positive semi-definite matrix has a trace below 0 by rounding only.
        trace = max(trace, 0.0)
    else:
        k = min(k, rank)
    return DenseSpectrum(
        positive[:k],
        np.ascontiguousarray(vectors[:k].T),
        row_means,
        trace,
        norm,
        negative_mass(eigenvalues, rounding),
        rounding,
    )
