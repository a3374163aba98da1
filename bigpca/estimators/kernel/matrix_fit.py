"""Kernel PCA of few rows: the whole kernel matrix, double-centred and solved (tutorial, algorithm 5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import norm_of
from bigpca.costs import PassCost, SolveCost
from bigpca.estimators.kernel.expansion import kernel_identity
from bigpca.estimators.kernel.files import expansion_bytes
from bigpca.estimators.kernel.indefinite import warn_fewer, warn_indefinite
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
from bigpca.estimators.linear.spectrum import counted
from bigpca.passes.accumulators.dot_matrix import DotPanels, double_centre
from bigpca.passes.accumulators.kernel_product import reject_contradicted, reject_overflow
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.states import PassState
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.rows import RowInput
from bigpca.passes.sweeps import SweepPlan, fold_kernel, kernel_layout, sweep_pass
from bigpca.solvers.components import partial_will_do, resolve_components
from bigpca.solvers.eigh import eigh_bytes, fix_signs, top_eigenpairs
from bigpca.solvers.indefinite import negative_eigenvalue, negative_mass

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
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
    """

    eigenvalues: Vector
    V: Matrix
    row_means: Vector
    trace: float
    norm: float
    negative_mass: float


@dataclass(frozen=True)
class DenseFit(KernelFit):
    """One sweep, an n x n matrix and its eigenproblem."""

    solver: ClassVar[str] = "dense"

    @classmethod
    def offered(cls, rows: RowInput, settings: KernelSettings) -> bool:
        """Whenever no iteration is offered."""
        return not iterates(rows, settings)

    @property
    def account(self) -> str:
        return f"a {self.rows.n_rows} x {self.rows.n_rows} kernel matrix in memory"

    @cached_property
    def sweep(self) -> SweepPlan:
        """The sweep."""
        rows, kernel = self.rows, self.settings.kernel
        template = DotPanels(rows.n_rows, rows.n_columns, kernel_layout(rows, kernel).panel_rows)
        return sweep_pass(rows, kernel, "kernel", template, finish_bytes=eigh_bytes(rows.n_rows))

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
        return SolveCost(10.0 * n**3 / 3, held_bytes=held, output_bytes=output)

    def identity(self) -> dict[str, object]:
        """One checkpoint of the matrix serves any number of components."""
        kernel = kernel_identity(self.settings.kernel)
        return {"computes": "kernel matrix", "input": self.rows.describe(), "kernel": kernel}

    def run(self, run: Run) -> KernelSpectrum:
        rows, settings, kernel = self.rows, self.settings, self.settings.kernel
        shift = row_shift(run, rows)
        template = DotPanels(rows.n_rows, rows.n_columns, self.sweep.sweep.panel_rows)
        finish = partial(_solve, settings=settings, eps=float(np.finfo(working_dtype(rows.dtype)).eps))
        found = fold_kernel(run, self.sweep, rows, kernel, template, finish, shift=shift)  # one sweep over all pairs
        negative_mass = None
        if not kernel.positive_semidefinite:
            negative_mass = found.negative_mass
            warn_indefinite(settings, found.negative_mass, found.norm, whole=True)
            if isinstance(settings.n_components, int | np.integer):
                positive = int(np.count_nonzero(found.eigenvalues))
                warn_fewer(settings, positive, f"the centred matrix of {kernel} has", "Use fewer.")
        V = np.ascontiguousarray(fix_signs(np.ascontiguousarray(found.V.T)).T)
        warn_alike(found.eigenvalues, rounding_of(found.eigenvalues, found.row_means))
        coefficients = axis_coefficients(V, found.eigenvalues, found.row_means)
        expansion = training_expansion(run, rows, settings, shift, found.row_means, coefficients)
        return KernelSpectrum(
            rows.n_rows, 0, found.eigenvalues, found.trace, expansion, run.evaluations, negative_mass=negative_mass
        )


def iterates(rows: RowInput, settings: KernelSettings) -> bool:
    """Whether the default is to iterate: beyond a few thousand rows, if the number or rule allows it."""
    few = DENSE_ROWS if settings.kernel.positive_semidefinite else DENSE_INDEFINITE_ROWS
    if not settings.kernel.positive_semidefinite and counted(settings.n_components) is None:
        return False  # shares and rules require the whole indefinite spectrum
    return rows.n_rows > few and partial_will_do(settings.n_components, rows.n_rows, rows.n_rows)


def _solve(state: PassState, *, settings: KernelSettings, eps: float) -> DenseSpectrum:
    """Centre and eigen-decompose the kernel matrix; memory: two n x n matrices beside the state.

    ``eps`` is that of the rows, which may be a kernel matrix in float32.
    """
    K = state.part("kernel", DotPanels).matrix()
    n = len(K)
    with np.errstate(over="ignore", invalid="ignore"):
        row_means = K.mean(axis=1)
    reject_overflow(settings.kernel, row_means)
    rounding = 10 * eps * float(norm_of(K))
    double_centre(K)
    if settings.kernel.taken_on_trust:
        least = negative_eigenvalue(K, rounding, threads=settings.threads)
        evidence = None if least is None else f"its centred matrix has the eigenvalue {least:.3g}"
        reject_contradicted(settings.kernel, evidence)
    trace, norm = float(np.trace(K)), float(norm_of(K))
    given, number = settings.n_components, counted(settings.n_components)
    wanted = None if number is None or not settings.kernel.positive_semidefinite else min(number, n)
    eigenvalues, vectors = top_eigenpairs(K, wanted, signed=True, threads=settings.threads)
    rounding = rounding_of(eigenvalues, row_means)
    rank = max(1, int(np.count_nonzero(eigenvalues > rounding)))
    positive = np.where(eigenvalues > rounding, eigenvalues, 0.0)
    k = rank if given is None else min(resolve_components(given, positive, trace, n, n), n)
    if settings.kernel.positive_semidefinite:
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
    )
