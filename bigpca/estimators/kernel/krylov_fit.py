"""Kernel PCA by block Krylov iteration on the implicit HKH: a few sweeps over pairs of rows, nothing of size n x n.

The start is the kernel PCA of Nyström features of some hundred landmarks, at a few hundredths of a sweep's evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import warn_approximation
from bigpca.estimators.kernel.expansion import Expansion, kernel_identity, scored_evaluations
from bigpca.estimators.kernel.landmark_features import fit_landmarks
from bigpca.estimators.kernel.maps import KernelScores
from bigpca.estimators.kernel.spectrum import (
    KernelSettings,
    KernelSpectrum,
    axis_coefficients,
    closing_reads,
    first_share,
    held_share,
    hold_references,
    row_shift,
    training_expansion,
)
from bigpca.estimators.linear.covariance_fit import fold_memory
from bigpca.estimators.linear.krylov_fit import (
    BLOCKS,
    RULE_COLUMNS,
    Iteration,
    certify_iteration,
    iterate,
    kept_components,
    too_fine,
    warn_unconverged,
)
from bigpca.estimators.linear.spectrum import Certificate
from bigpca.landmarks import LandmarkRequest, select_landmarks
from bigpca.operators.covariance import PROBES, Probes, Products
from bigpca.operators.kernel import ALIKE, KernelOperator
from bigpca.passes.accumulators.kept_rows import MappedRows
from bigpca.passes.engine.jobs import RunOptions
from bigpca.passes.engine.states import PassState
from bigpca.passes.fold import fold
from bigpca.passes.rows import RowInput
from bigpca.passes.sweeps import kernel_layout, sweep_bytes
from bigpca.planning import Plan, Resources, peak_bytes
from bigpca.solvers.certificates import rounding_slack
from bigpca.solvers.components import starting_components
from bigpca.solvers.eigh import fix_signs
from bigpca.solvers.indefinite import negative_mass
from bigpca.solvers.krylov import KrylovResult

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
TYPICAL_SWEEPS = 3
LANDMARKS_A_COLUMN = 16  # of the first block
LANDMARK_SHARE = 20  # at most every twentieth row
MAX_LANDMARKS = 2048
MORE_COLUMNS = 10


def size_iteration(rows: RowInput, settings: KernelSettings, blocks: int = BLOCKS) -> Iteration:
    """Choose block and basis: sweeps cost far more than columns, so blocks are of 2 k columns, at least k + 10.

    Raises
    ------
    ValueError
        For a share or a rule that needs more of the spectrum than an iteration finds.
    """
    n = rows.n_rows
    k = starting_components(settings.n_components, n, n)
    if not settings.kernel.positive_semidefinite and not isinstance(settings.n_components, int | np.integer):
        raise ValueError(
            f"n_components = {settings.n_components!r} chooses by the whole spectrum where {settings.kernel} is not positive "
            f"semi-definite: the trace of HKH holds negative parts, which no leading eigenvalues show. Give a number, or use "
            f'solver="dense".'
        )
    block = min(n, max(2 * k, k + MORE_COLUMNS))
    columns = blocks * block
    if not isinstance(settings.n_components, int | np.integer):
        columns = max(columns, RULE_COLUMNS)
    return Iteration(k, block, min(n, columns), n)


def start_landmarks(n: int, block: int) -> int:
    """Landmarks of the start; 0 where there are too few rows for one."""
    wanted = min(LANDMARKS_A_COLUMN * block, MAX_LANDMARKS, n // LANDMARK_SHARE)
    return wanted if wanted >= 2 * block else 0


def plan_kernel_krylov(rows: RowInput, settings: KernelSettings, resources: Resources) -> tuple[Plan, Iteration]:
    """Cost of an iteration of three sweeps; the basis is of four blocks, or of three or two where that does not fit."""
    for blocks in (BLOCKS, 3, 2):
        iteration = size_iteration(rows, settings, blocks)
        plan = _plan_with(rows, settings, resources, iteration)
        if plan.process_bytes <= resources.room_bytes:
            break
    return plan, iteration


def _plan_with(rows: RowInput, settings: KernelSettings, resources: Resources, iteration: Iteration) -> Plan:
    n, d, kernel = rows.n_rows, rows.n_columns, settings.kernel
    width = iteration.block + PROBES + 1
    layout = kernel_layout(rows, kernel)
    wide = np.dtype(np.float64)  # of the rows, if the spectrum falls far
    read, working = sweep_bytes(rows, kernel, kernel_layout(rows, kernel, wide), width, wide)
    state = 8 * n * (width + int(not kernel.positive_semidefinite))
    peak = peak_bytes(read, 0, working, state)
    landmarks = start_landmarks(n, iteration.block)
    start = fold_memory(rows, 8 * n * iteration.block, 16 * 1024 * landmarks + 8 * 3 * landmarks**2, 0.0)[0]
    basis = iteration.basis_bytes
    if resources.local:
        peak = max(peak, start) + (basis + 16 * n * width) // resources.threads
    peak += held_share(rows, kernel, resources)
    sweep = layout.total_evaluations
    flops = sweep * (kernel.flops_per_entry(d) + 4.0 * width)
    before = (4 if landmarks else 1) + closing_reads(rows, kernel)
    reads = TYPICAL_SWEEPS * layout.sweep_reads + before
    return Plan(
        solver="krylov",
        reason=f"block Krylov on the implicit kernel matrix, {iteration.block} columns at a time, until the eigenvalues are "
        f"known to {settings.tol:g}",
        passes=round(reads, 2),
        bytes_read=int(reads * n * d * rows.dtype.itemsize),
        most_passes=round(max(settings.max_passes, TYPICAL_SWEEPS) * layout.sweep_reads + before, 2),
        flops=TYPICAL_SWEEPS * flops,
        tasks=TYPICAL_SWEEPS * (2 * len(layout.panels.groups) + 1),
        state_bytes=state,
        block_rows=layout.tile_rows,
        peak_bytes=peak,
        output_bytes=8 * n * (iteration.components + 1),
        resources=resources,
        notes=(
            f"a sweep makes {sweep:.3g} kernel evaluations and reads X {layout.sweep_reads:.3g} times; {TYPICAL_SWEEPS} are "
            f"typical, at most {settings.max_passes} (max_passes)",
            f"basis of up to {iteration.columns} columns: {basis / 2**20:,.0f} MiB in the process that fits",
        ),
        evaluations=float(TYPICAL_SWEEPS * sweep + scored_evaluations(kernel, rows.dtype, n)),
        most_evaluations=settings.max_kernel_evaluations,
    )  # fmt: skip


def describe_kernel_krylov(rows: RowInput, settings: KernelSettings, iteration: Iteration) -> dict[str, Any]:
    """Fingerprint of the passes: later ones depend on everything that led to their block."""
    return {
        "computes": "kernel krylov", "input": rows.describe(), "kernel": kernel_identity(settings.kernel),
        "n_components": repr(settings.n_components), "tol": settings.tol, "seed": settings.seed,
        "columns": [iteration.block, iteration.columns], "probes": PROBES,
    }  # fmt: skip


def run_kernel_krylov(
    rows: RowInput, settings: KernelSettings, options: RunOptions, iteration: Iteration
) -> KernelSpectrum:
    """Iterate until the wanted eigenvalues are known to ``tol``, or ``max_passes`` is reached."""
    kernel, shift = settings.kernel, row_shift(rows)
    operator = KernelOperator(rows, kernel, options, shift=shift, seed=settings.seed)
    operator.reads += first_share(rows)
    start, evaluations = _start(rows, settings, options, operator, iteration)
    facts: dict[str, float] = {}
    if kernel.positive_semidefinite:
        result = iterate(operator, start, settings, iteration)
        k = kept_components(operator, result, settings)
        certificate = certify_iteration(operator, result, k, settings)
        values = result.values[:k]
    else:
        result, values, certificate, facts = _indefinite(operator, start, settings, iteration)
        k = len(values)
    V = np.ascontiguousarray(fix_signs(np.ascontiguousarray(result.vectors[:k])).T)
    references = hold_references(rows, kernel, options, operator.number + 1)
    coefficients = axis_coefficients(V, values, operator.row_means)
    expansion = training_expansion(settings, shift, operator.row_means, coefficients, references)
    total = operator.evaluations + evaluations + scored_evaluations(kernel, rows.dtype, rows.n_rows)
    certificate = replace(certificate, n_passes=operator.reads + closing_reads(rows, kernel))
    return KernelSpectrum(rows.n_rows, 0, values, operator.trace, expansion, total, certificate, facts)


def _start(
    rows: RowInput, settings: KernelSettings, options: RunOptions, operator: KernelOperator, iteration: Iteration
) -> tuple[Matrix | None, int]:
    """Return the leading axes of a Nyström approximation (n, l), and the kernel evaluations they took."""
    random = max(2, iteration.block // 20)
    wanted, m = iteration.block - random, start_landmarks(rows.n_rows, iteration.block)
    if not m or not settings.kernel.positive_semidefinite:
        return None, 0
    request = LandmarkRequest(
        rows, settings.kernel, m, settings.seed, operator.shift, options, operator.number + 1, settings.threads
    )
    landmarks = select_landmarks("diagonal", request)
    operator.number += 1
    found = fit_landmarks(
        rows, replace(settings, n_components=wanted), landmarks, operator.shift, options, operator.number + 1
    )
    operator.number += 1
    if not isinstance(found.expansion, Expansion) or not len(found.eigenvalues):
        return None, landmarks.evaluations + found.evaluations
    if operator.refinable and too_fine(found.eigenvalues, iteration.components, settings.tol / ALIKE):
        operator.refine()
    axes = _collect(rows, found.expansion, options, operator.number + 1)
    operator.number += 1
    operator.reads += landmarks.passes + 2
    return axes, landmarks.evaluations + found.evaluations + rows.n_rows * len(landmarks.rows)


def _collect(rows: RowInput, expansion: Expansion, options: RunOptions, number: int) -> Matrix:
    """Return the scores of all rows along the expansion's axes (n, l), in one read."""
    n, width = rows.n_rows, expansion.coefficients.shape[1]
    template = MappedRows(n, rows.n_columns, width, KernelScores(expansion))
    scores: Matrix = fold(  # one pass over X
        rows, {"rows": template}, _take_rows, name="start", number=number, options=options,
        shift=np.zeros(rows.n_columns),
    )  # fmt: skip
    return scores


def _take_rows(state: PassState) -> Matrix:
    part: Any = state.parts["rows"]
    rows: Matrix = part.rows().astype(np.float64)
    return rows


@dataclass
class ShiftedOperator:
    """``A + sigma I`` of an indefinite A, with sigma an upper bound of ``-lambda_min(A)``: positive semi-definite.

    Krylov spaces do not change with the shift. It is known after the first product: ``|A|_F^2 = sum_i lambda_i^2`` and each
    of the leading eigenvalues is at least its Ritz value, so ``lambda_min^2 <= |A|_F^2 - sum theta_i^2`` over positive
    Ritz values theta.

    Attributes
    ----------
    operator : KernelOperator
    sigma : float
    """

    operator: KernelOperator
    sigma: float = 0.0
    omitted: int = 0

    @property
    def size(self) -> int:
        return self.operator.size

    @property
    def shape(self) -> tuple[int, int]:
        return self.operator.shape

    @property
    def precision(self) -> float:
        return self.operator.precision

    @property
    def rounding(self) -> float:
        return self.operator.rounding

    @property
    def reads(self) -> float:
        return self.operator.reads

    @property
    def trace(self) -> float:
        return self.operator.trace + self.size * self.sigma

    @property
    def probes(self) -> Probes | None:
        found = self.operator.probes
        return None if found is None else Probes(found.vectors, found.products + self.sigma * found.vectors)

    @property
    def refinable(self) -> bool:
        return self.operator.refinable

    def refine(self) -> None:
        """Make later products more precise; sigma stays."""
        self.operator.refine()

    def begin(self, V: Matrix) -> Products:
        """Multiply an orthonormal first block, and choose the shift."""
        AV = self.operator.begin(V).AB
        theta = np.linalg.eigvalsh(V.T @ AV)
        left = self.operator.squared_norm - float((theta[theta > 0] ** 2).sum())
        rounding = 4 * self.precision * np.sqrt(self.operator.squared_norm)
        self.sigma = float(np.sqrt(max(left, 0.0))) + rounding
        return Products(V, AV + self.sigma * V)

    def multiply(self, V: Matrix) -> Matrix:
        """Return ``(A + sigma I) V``."""
        return self.operator.multiply(V) + self.sigma * V


def _indefinite(
    operator: KernelOperator, start: Matrix | None, settings: KernelSettings, iteration: Iteration
) -> tuple[KrylovResult, Vector, Certificate, dict[str, float]]:
    """Return the algebraically largest eigenvalues, their bounds, and how much negative mass was seen."""
    shifted = ShiftedOperator(operator)
    result = iterate(shifted, start, settings, iteration)
    if not result.converged:
        warn_unconverged(shifted, result, settings)
    B = result.basis
    ritz = np.linalg.eigvalsh(B.T @ result.approximation.multiply(B)) - shifted.sigma  # the approximation is exact on B
    k = kept_components(shifted, result, settings)
    values = result.values[:k] - shifted.sigma
    positive = values > operator.size * np.finfo(np.float64).eps * np.abs(values).max(initial=0.0)
    values = np.maximum(values[: int(np.count_nonzero(positive)) or 1], 0.0)
    norm = float(np.sqrt(operator.squared_norm))
    negative = negative_mass(ritz.astype(np.float64), 10 * operator.precision * norm)
    lower = np.maximum(result.ritz_values[: len(values)] - shifted.sigma, 0.0)
    certificate = replace(
        frobenius_bounds(operator, lower), residuals=result.residuals[: len(values)], n_passes=operator.reads,
        converged=result.converged,
    )  # fmt: skip
    warn_indefinite(settings, negative, norm, whole=False)
    warn_fewer(settings, int(np.count_nonzero(positive)), f"the iteration finds under {settings.kernel}", "Use fewer.")
    return result, values, certificate, {"negative_mass": negative}


def frobenius_bounds(operator: KernelOperator, lower: Vector) -> Certificate:
    """Bound the leading eigenvalues of an indefinite HKH, of which lower bounds (k,) are known.

    ``lambda_i^2 <= |HKH|_F^2 - sum_(j != i) lower_j^2``, over the lower bounds that are positive. Only the first eigenvalue is
    known to be none below 0 (``HKH 1 = 0``). There is no share of a trace that has negative parts.
    """
    squared = operator.squared_norm
    slack = rounding_slack(float(np.sqrt(operator.size * squared)), precision=operator.precision)
    least = lower - slack
    least[:1] = np.maximum(least[:1], 0.0)
    known = np.maximum(least, 0.0)  # less the slack: a square root magnifies what is subtracted too much
    upper = np.sqrt(np.maximum(squared - (np.sum(known**2) - known**2), 0.0)) + slack
    bounds = np.column_stack([least, np.maximum.accumulate(upper[::-1])[::-1]])
    return Certificate(bounds, None, None, 1.0)


def warn_fewer(settings: KernelSettings, positive: int, where: str, remedy: str) -> None:
    """Warn where an indefinite kernel has fewer positive eigenvalues than components were asked for."""
    given: Any = settings.n_components
    if given is not None and positive < given:
        warn_approximation(
            f"{given} components were asked for, and {positive} positive eigenvalues are what {where}: {max(1, positive)} are "
            f"kept. {remedy}"
        )


def warn_indefinite(settings: KernelSettings, negative: float, norm: float, *, whole: bool) -> None:
    """Warn that the kernel is no inner product, with the negative mass that was found; not where none was."""
    if not negative:
        return
    found = f"{negative:.3g}" if whole else f"at least {negative:.3g}"
    warn_approximation(
        f"{settings.kernel} is not positive semi-definite: its centred matrix has negative eigenvalues that sum to -{found} "
        f"(Frobenius norm {norm:.3g}). The largest eigenvalues by value are kept, and there are no bounds from the trace. "
        f"Use a positive semi-definite kernel where variances and distances must mean something."
    )
