"""Kernel PCA of few rows: the whole kernel matrix, centred twice and solved (tutorial, algorithm 5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.estimators.kernel.expansion import kernel_identity, scored_evaluations
from bigpca.estimators.kernel.krylov_fit import warn_fewer, warn_indefinite
from bigpca.estimators.kernel.spectrum import (
    KernelSettings,
    KernelSpectrum,
    axis_coefficients,
    closing_reads,
    held_share,
    hold_references,
    rounding_of,
    row_shift,
    training_expansion,
)
from bigpca.passes.accumulators.dot_matrix import DotPanels, double_centre
from bigpca.passes.accumulators.kernel_product import reject_contradicted, reject_overflow
from bigpca.passes.engine.jobs import RunOptions
from bigpca.passes.engine.states import PassState
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.rows import RowInput
from bigpca.passes.sweeps import fold_kernel, kernel_layout, sweep_bytes
from bigpca.planning import Plan, Resources, peak_bytes
from bigpca.solvers.components import needs_full_spectrum, resolve_components
from bigpca.solvers.eigh import eigh_bytes, fix_signs, top_eigenpairs
from bigpca.solvers.indefinite import negative_eigenvalue, negative_mass

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class DenseSpectrum:
    """Eigenpairs of HKH.

    Attributes
    ----------
    eigenvalues : ndarray of shape (k,); V : ndarray of shape (n, k)
    row_means : ndarray of shape (n,)
    trace, norm : float; of HKH, the Frobenius norm for the second
    negative_mass : float
        Sum of the negative eigenvalues, less its sign; 0 within rounding.
    """

    eigenvalues: Vector
    V: Matrix
    row_means: Vector
    trace: float
    norm: float
    negative_mass: float


def plan_kernel_dense(rows: RowInput, settings: KernelSettings, resources: Resources) -> Plan:
    """Cost of one sweep, an n x n matrix and its eigenproblem."""
    n, d, kernel = rows.n_rows, rows.n_columns, settings.kernel
    layout = kernel_layout(rows, kernel)
    read, working = sweep_bytes(rows, kernel, layout, 0)
    state = 8 * n * n
    panel = 8 * layout.panel_rows * n
    solve = 2 * state + eigh_bytes(n)
    peak = max(peak_bytes(read, 0, working, 0) + 2 * panel, (solve - 2 * state) // resources.threads)
    peak += held_share(rows, kernel, resources)
    evaluations = layout.total_evaluations + scored_evaluations(kernel, rows.dtype, n)
    reads = layout.sweep_reads + 1 + closing_reads(rows, kernel)
    return Plan(
        solver="dense",
        reason=f"a {n} x {n} kernel matrix in memory",
        passes=round(reads, 2),
        bytes_read=int(reads * n * d * rows.dtype.itemsize),
        flops=evaluations * kernel.flops_per_entry(d) + 10.0 * n**3 / 3,
        tasks=2 * len(layout.panels.groups) + 1,
        state_bytes=state,
        block_rows=layout.tile_rows,
        peak_bytes=peak,
        output_bytes=8 * n * 2,
        resources=resources,
        evaluations=float(evaluations),
        most_evaluations=settings.max_kernel_evaluations,
    )


def describe_kernel_dense(rows: RowInput, settings: KernelSettings) -> dict[str, Any]:
    """Fingerprint of the sweep: the matrix serves any number of components."""
    return {"computes": "kernel matrix", "input": rows.describe(), "kernel": kernel_identity(settings.kernel)}


def run_kernel_dense(rows: RowInput, settings: KernelSettings, options: RunOptions) -> KernelSpectrum:
    """Fit by one sweep."""
    kernel, shift = settings.kernel, row_shift(rows)
    layout = kernel_layout(rows, kernel)
    template = DotPanels(rows.n_rows, rows.n_columns, layout.panel_rows)
    found: DenseSpectrum = fold_kernel(  # one sweep over all pairs of rows
        rows,
        kernel,
        template,
        partial(_solve, settings=settings, eps=float(np.finfo(working_dtype(rows.dtype)).eps)),
        shift=shift,
        layout=layout,
        number=1,
        options=options,
    )
    facts: dict[str, float] = {}
    if not kernel.positive_semidefinite:
        facts["negative_mass"] = found.negative_mass
        warn_indefinite(settings, found.negative_mass, found.norm, whole=True)
        if isinstance(settings.n_components, int | np.integer):
            positive = int(np.count_nonzero(found.eigenvalues))
            warn_fewer(settings, positive, f"the centred matrix of {kernel} has", "Use fewer.")
    V = np.ascontiguousarray(fix_signs(np.ascontiguousarray(found.V.T)).T)
    references = hold_references(rows, kernel, options, 2)
    coefficients = axis_coefficients(V, found.eigenvalues, found.row_means)
    expansion = training_expansion(settings, shift, found.row_means, coefficients, references)
    total = layout.total_evaluations + scored_evaluations(kernel, rows.dtype, rows.n_rows)
    return KernelSpectrum(rows.n_rows, 0, found.eigenvalues, found.trace, expansion, total, None, facts)


def _solve(state: PassState, *, settings: KernelSettings, eps: float) -> DenseSpectrum:
    """Centre and eigen-decompose the kernel matrix; memory: two n x n matrices beside the state.

    ``eps`` is that of the rows, which may hold a kernel matrix in float32.
    """
    part: Any = state.parts["kernel"]
    K = part.matrix()
    n = len(K)
    with np.errstate(over="ignore", invalid="ignore"):
        row_means = K.mean(axis=1)
    reject_overflow(settings.kernel, row_means)
    rounding = 10 * eps * float(np.linalg.norm(K))
    double_centre(K)
    if settings.kernel.taken_on_trust:
        least = negative_eigenvalue(K, rounding, threads=settings.threads)
        evidence = None if least is None else f"its centred matrix has the eigenvalue {least:.3g}"
        reject_contradicted(settings.kernel, evidence)
    trace, norm = float(np.trace(K)), float(np.linalg.norm(K))
    given: Any = settings.n_components
    whole = given is None or needs_full_spectrum(given) or not settings.kernel.positive_semidefinite
    wanted = None if whole else min(int(given), n)
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
