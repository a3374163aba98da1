"""Kernel PCA by block Krylov iteration on the implicit HKH: a few sweeps over pairs of rows, nothing of size n x n.

It starts from kernel PCA of the Nyström features of a few hundred landmarks, which costs a few hundredths of a sweep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.costs import PassCost, SolveCost, Times
from bigpca.estimators.kernel.expansion import kernel_identity
from bigpca.estimators.kernel.files import expansion_bytes
from bigpca.estimators.kernel.indefinite import iterate_indefinite
from bigpca.estimators.kernel.matrix_fit import DenseFit, iterates
from bigpca.estimators.kernel.spectrum import (
    KernelFit,
    KernelSettings,
    KernelSpectrum,
    axis_coefficients,
    closing_passes,
    held_bytes,
    rounding_of,
    row_shift,
    row_shift_pass,
    training_expansion,
    warn_alike,
)
from bigpca.estimators.kernel.start import Start, start_landmarks
from bigpca.estimators.linear.certified import certificate_bytes
from bigpca.estimators.linear.iteration import (
    RULE_COLUMNS,
    Iteration,
    certify_iteration,
    iterate,
    kept_components,
    too_fine,
)
from bigpca.estimators.shared.fit import first_that_fits
from bigpca.landmarks import LandmarkRequest
from bigpca.operators.kernel import ALIKE, KernelOperator, product_pass
from bigpca.operators.products import PROBES
from bigpca.passes.engine.run import Run
from bigpca.passes.rows import RowInput
from bigpca.passes.sweeps import SweepPlan
from bigpca.planning import Resources
from bigpca.solvers.components import partial_will_do, starting_components
from bigpca.solvers.eigh import fix_signs

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
TYPICAL_SWEEPS = 3


def size_iteration(rows: RowInput, settings: KernelSettings) -> Iterator[Iteration]:
    """Return the choices of block and basis, the largest first.

    Raises
    ------
    ValueError
        For a share or a rule that requires more of the spectrum than an iteration computes.
    """
    n = rows.n_rows
    k = starting_components(settings.n_components, n, n)
    if not settings.kernel.positive_semidefinite and not isinstance(settings.n_components, int | np.integer):
        raise ValueError(
            f"n_components = {settings.n_components!r} chooses by the whole spectrum where {settings.kernel} is not "
            f"positive semi-definite: the trace of HKH has negative parts, which no leading eigenvalues show. Give a "
            f'number, or use solver="dense".'
        )
    return Iteration.sizes(settings, k, n)


@dataclass(frozen=True)
class KernelKrylovFit(KernelFit):
    """An iteration of about three sweeps.

    Attributes
    ----------
    iteration : Iteration
    """

    solver: ClassVar[str] = "krylov"
    exact: ClassVar[bool] = False

    iteration: Iteration

    @classmethod
    def planned(cls, rows: RowInput, settings: KernelSettings, resources: Resources) -> KernelFit:
        """Return the fit with the largest basis that fits.

        The whole spectrum of few rows is computed from the whole matrix.
        """
        if not partial_will_do(settings.n_components, rows.n_rows, rows.n_rows) and rows.n_rows <= RULE_COLUMNS:
            return DenseFit.planned(rows, settings, resources)
        return first_that_fits(cls(rows, resources, settings, sizes) for sizes in size_iteration(rows, settings))

    @classmethod
    def offered(cls, rows: RowInput, settings: KernelSettings) -> bool:
        """For many rows."""
        return iterates(rows, settings)

    @property
    def account(self) -> str:
        return (
            f"block Krylov on the implicit kernel matrix, {self.iteration.block} columns at a time, until the "
            f"eigenvalues are known to {self.settings.tol:g}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        sweep = self.sweep
        return (
            f"a sweep makes {sweep.evaluations:.3g} kernel evaluations and reads X {sweep.reads:.3g} times; "
            f"{TYPICAL_SWEEPS} are typical, at most {self.iteration.max_passes} (max_passes)",
            self.iteration.note,
        )

    @cached_property
    def sweep(self) -> SweepPlan:
        """One multiplication."""
        rows, iteration, most = self.rows, self.iteration, self.iteration.max_passes
        width = iteration.block + PROBES + 1
        return product_pass(
            rows, self.settings.kernel, iteration.block, Times(min(TYPICAL_SWEEPS, most), most),
            driver_bytes=iteration.basis_bytes + 16 * rows.n_rows * width, most=iteration.most_block,
            refinable=not self.settings.kernel.taken_on_trust,
        )  # fmt: skip

    @cached_property
    def start(self) -> Start | None:
        """The start, if there are enough rows for one."""
        m = start_landmarks(self.rows.n_rows, self.iteration.block)
        if not m or not self.settings.kernel.positive_semidefinite:
            return None
        random = max(2, self.iteration.block // 20)
        request = LandmarkRequest(self.rows, self.settings.kernel, m, self.settings.seed, threads=self.settings.threads)
        return Start(request, replace(self.settings, n_components=self.iteration.block - random))

    def passes(self) -> tuple[PassCost, ...]:
        rows = self.rows
        start = () if self.start is None else self.start.passes()
        closing = closing_passes(rows, self.settings.kernel)
        return (row_shift_pass(rows), *start, self.sweep, *closing)

    def solve_cost(self) -> SolveCost:
        held = held_bytes(self.rows, self.settings.kernel)
        k, n = self.iteration.components, self.rows.n_rows
        output = expansion_bytes(self.rows, self.settings.kernel, k) + certificate_bytes(k, n)
        between = self.iteration.flops(self.sweep.times.typical)
        return SolveCost(between=between, held_bytes=held, output_bytes=output)

    def identity(self) -> dict[str, object]:
        """Return also everything that determines the blocks of later passes."""
        settings, iteration = self.settings, self.iteration
        return {
            "computes": "kernel krylov", "input": self.rows.describe(), "kernel": kernel_identity(settings.kernel),
            "n_components": repr(settings.n_components), "tol": settings.tol, "seed": settings.seed,
            "columns": [iteration.block, iteration.columns], "probes": PROBES,
        }  # fmt: skip

    def run(self, run: Run) -> KernelSpectrum:
        """Iterate until the requested eigenvalues are known to ``tol``, or ``max_passes`` is reached."""
        rows, settings, kernel, iteration = self.rows, self.settings, self.settings.kernel, self.iteration
        shift = row_shift(run, rows)
        operator = KernelOperator(rows, kernel, run, self.sweep, shift=shift, seed=settings.seed)
        start = None if self.start is None else self._started(run, operator, shift)
        negative_mass = None
        if kernel.positive_semidefinite:
            result = iterate(operator, start, settings, iteration)
            k = kept_components(operator, result, settings)
            certificate = certify_iteration(operator, result, k, settings, run)
            values = result.values[:k]
        else:
            result, values, certificate, negative_mass = iterate_indefinite(operator, settings, iteration, run)
            k = len(values)
        V = np.ascontiguousarray(fix_signs(np.ascontiguousarray(result.vectors[:k])).T)
        if certificate.converged:  # else a warning has said why
            warn_alike(values, rounding_of(values, operator.row_means))
        coefficients = axis_coefficients(V, values, operator.row_means)
        expansion = training_expansion(run, rows, settings, shift, operator.row_means, coefficients)
        certificate = replace(certificate, n_passes=run.reads)
        return KernelSpectrum(
            rows.n_rows, 0, values, operator.trace, expansion, run.evaluations, certificate, negative_mass
        )

    def _started(self, run: Run, operator: KernelOperator, shift: Vector) -> Matrix | None:
        """Return the axes of the start; its eigenvalues determine the precision of the tiles."""
        found = None if self.start is None else self.start.axes(run, shift)
        if found is None:
            return None
        axes, eigenvalues = found
        if operator.refinable and too_fine(eigenvalues, self.iteration.components, self.settings.tol / ALIKE):
            operator.refine()
        return axes
