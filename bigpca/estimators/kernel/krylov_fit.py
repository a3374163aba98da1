"""Kernel PCA by block Krylov iteration on the implicit HKH: a few sweeps over pairs of rows, nothing of size n x n.

The start is the kernel PCA of Nyström features of some hundred landmarks, at a few hundredths of a sweep's evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import warn_approximation
from bigpca.estimators.kernel.expansion import Expansion, kernel_identity
from bigpca.estimators.kernel.landmark_features import features_pass, fit_landmarks
from bigpca.estimators.kernel.maps import KernelScores
from bigpca.estimators.kernel.spectrum import (
    KernelFit,
    KernelSettings,
    KernelSpectrum,
    axis_coefficients,
    closing_passes,
    held_bytes,
    row_shift,
    row_shift_pass,
    training_expansion,
)
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
from bigpca.estimators.shared.fit import first_that_fits
from bigpca.landmarks import LandmarkRequest, landmark_passes, select_landmarks
from bigpca.operators.covariance import PROBES, Probes, Products
from bigpca.operators.kernel import ALIKE, KernelOperator, product_pass
from bigpca.passes.accumulators.kept_rows import MappedRows
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.states import PassState
from bigpca.passes.fold import fold_to, row_pass
from bigpca.passes.rows import RowInput
from bigpca.passes.sweeps import SweepPlan
from bigpca.planning import PassCost, Resources, SolveCost, Times
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
    by_rule = not isinstance(settings.n_components, int | np.integer)
    columns = max(blocks * block, RULE_COLUMNS if by_rule else 0)
    return Iteration(k, block, min(n, columns), n, by_rule)


def start_landmarks(n: int, block: int) -> int:
    """Landmarks of the start; 0 where there are too few rows for one."""
    wanted = min(LANDMARKS_A_COLUMN * block, MAX_LANDMARKS, n // LANDMARK_SHARE)
    return wanted if wanted >= 2 * block else 0


@dataclass(frozen=True)
class KernelKrylovFit(KernelFit):
    """An iteration of some three sweeps.

    Attributes
    ----------
    iteration : Iteration
    """

    solver: ClassVar[str] = "krylov"
    exact: ClassVar[bool] = False

    iteration: Iteration

    @classmethod
    def planned(cls, rows: RowInput, settings: KernelSettings, resources: Resources) -> KernelKrylovFit:
        """Return the fit with a basis of four blocks, or of three or two where that does not fit."""
        fits = (cls(rows, resources, settings, size_iteration(rows, settings, blocks)) for blocks in (BLOCKS, 3, 2))
        return first_that_fits(fits)

    @property
    def account(self) -> str:
        return (
            f"block Krylov on the implicit kernel matrix, {self.iteration.block} columns at a time, until the eigenvalues "
            f"are known to {self.settings.tol:g}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        sweep, columns, basis = self.sweep, self.iteration.columns, self.iteration.basis_bytes
        return (
            f"a sweep makes {sweep.evaluations:.3g} kernel evaluations and reads X {sweep.reads:.3g} times; "
            f"{TYPICAL_SWEEPS} are typical, at most {self.settings.max_passes} (max_passes)",
            f"basis of up to {columns} columns: {basis / 2**20:,.0f} MiB in the process that fits",
        )

    @cached_property
    def sweep(self) -> SweepPlan:
        """One multiplication."""
        rows, iteration, most = self.rows, self.iteration, self.settings.max_passes
        width = iteration.block + PROBES + 1
        return product_pass(
            rows, self.settings.kernel, iteration.block, Times(min(TYPICAL_SWEEPS, most), most),
            driver_bytes=iteration.basis_bytes + 16 * rows.n_rows * width, most=iteration.most_block,
            refinable=not self.settings.kernel.taken_on_trust,
        )  # fmt: skip

    @cached_property
    def start(self) -> Start | None:
        """The start, where there are rows enough for one."""
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
        return (*rows.counting, row_shift_pass(rows), *start, self.sweep, *closing)

    def solve_cost(self) -> SolveCost:
        held = held_bytes(self.rows, self.settings.kernel)
        return SolveCost(held_bytes=held, output_bytes=8 * self.rows.n_rows * (self.iteration.components + 1))

    def identity(self) -> dict[str, Any]:
        """Later passes depend on everything that led to their block."""
        settings, iteration = self.settings, self.iteration
        return {
            "computes": "kernel krylov", "input": self.rows.describe(), "kernel": kernel_identity(settings.kernel),
            "n_components": repr(settings.n_components), "tol": settings.tol, "seed": settings.seed,
            "columns": [iteration.block, iteration.columns], "probes": PROBES,
        }  # fmt: skip

    def run(self, run: Run) -> KernelSpectrum:
        """Iterate until the wanted eigenvalues are known to ``tol``, or ``max_passes`` is reached."""
        rows, settings, kernel, iteration = self.rows, self.settings, self.settings.kernel, self.iteration
        shift = row_shift(run, rows)
        operator = KernelOperator(rows, kernel, run, self.sweep, shift=shift, seed=settings.seed)
        start = None if self.start is None else self._started(run, operator, shift)
        facts: dict[str, float] = {}
        if kernel.positive_semidefinite:
            result = iterate(operator, start, settings, iteration)
            k = kept_components(operator, result, settings)
            certificate = certify_iteration(operator, result, k, settings, run)
            values = result.values[:k]
        else:
            result, values, certificate, facts = _indefinite(operator, settings, iteration, run)
            k = len(values)
        V = np.ascontiguousarray(fix_signs(np.ascontiguousarray(result.vectors[:k])).T)
        coefficients = axis_coefficients(V, values, operator.row_means)
        expansion = training_expansion(run, rows, settings, shift, operator.row_means, coefficients)
        certificate = replace(certificate, n_passes=run.reads)
        return KernelSpectrum(rows.n_rows, 0, values, operator.trace, expansion, run.evaluations, certificate, facts)

    def _started(self, run: Run, operator: KernelOperator, shift: Vector) -> Matrix | None:
        """Return the axes of the start; its eigenvalues choose the precision of the tiles."""
        found = None if self.start is None else self.start.axes(run, shift)
        if found is None:
            return None
        axes, eigenvalues = found
        if operator.refinable and too_fine(eigenvalues, self.iteration.components, self.settings.tol / ALIKE):
            operator.refine()
        return axes


@dataclass(frozen=True)
class Start:
    """The leading axes of a Nyström approximation, from which an iteration starts: three reads.

    Attributes
    ----------
    request : LandmarkRequest
    settings : KernelSettings
        With the number of axes wanted.
    """

    request: LandmarkRequest
    settings: KernelSettings

    def passes(self) -> tuple[PassCost, ...]:
        """Declare the draw of the landmarks, the moments of their features, and the read of the scores."""
        rows, kernel, m = self.request.rows, self.settings.kernel, self.request.count
        return (*landmark_passes("diagonal", self.request), features_pass(rows, (kernel,), m), self._scores)

    @property
    def _scores(self) -> PassPlan:
        rows, m = self.request.rows, self.request.count
        template = MappedRows(rows.n_rows, rows.n_columns, self._wanted, None)
        cost = row_pass(
            rows, "start", [template], cut_bytes=template.state_bytes,
            work=float(rows.n_rows) * template.flops_per_row,
        )  # fmt: skip
        evaluations, kernel = float(rows.n_rows) * m, self.settings.kernel
        return replace(
            cost, peak_bytes=cost.peak_bytes + 16 * 1024 * m + 8 * 3 * m**2, evaluations=evaluations,
            flops=evaluations * kernel.flops_per_entry(rows.n_columns),
        )  # fmt: skip

    @property
    def _wanted(self) -> int:
        wanted: Any = self.settings.n_components
        return int(wanted)

    def axes(self, run: Run, shift: Vector) -> tuple[Matrix, Vector] | None:
        """Return the axes (n, l) and their eigenvalues (l,); None where there are none."""
        rows = self.request.rows
        landmarks = select_landmarks("diagonal", replace(self.request, run=run, shift=shift))
        found = fit_landmarks(run, rows, self.settings, landmarks, shift)
        if not isinstance(found.expansion, Expansion) or not len(found.eigenvalues):
            return None
        width = found.expansion.coefficients.shape[1]
        template = MappedRows(rows.n_rows, rows.n_columns, width, KernelScores(found.expansion))
        zero = np.zeros(rows.n_columns)
        scores = fold_to(run, self._scores, rows, {"rows": template}, _take_rows, shift=zero)  # one pass over X
        run.add_evaluations(rows.n_rows * len(landmarks.rows))
        return scores, found.eigenvalues


def _take_rows(state: PassState) -> Matrix:
    return state.part("rows", MappedRows).rows().astype(np.float64)


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
    operator: KernelOperator, settings: KernelSettings, iteration: Iteration, run: Run
) -> tuple[KrylovResult, Vector, Certificate, dict[str, float]]:
    """Return the algebraically largest eigenvalues, their bounds, and how much negative mass was seen."""
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
    norm = float(np.sqrt(operator.squared_norm))
    negative = negative_mass(ritz.astype(np.float64), 10 * operator.precision * norm)
    lower = np.maximum(result.ritz_values[: len(values)] - shifted.sigma, 0.0)
    certificate = replace(
        frobenius_bounds(operator, lower), residuals=result.residuals[: len(values)], n_passes=run.reads,
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
