"""Which solver of PCA: every plan that can do what was asked, compared by cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import dask.array as da

from bigpca.errors import MemoryBudgetError, format_bytes
from bigpca.estimators.linear.covariance_fit import describe_covariance, plan_covariance, run_covariance
from bigpca.estimators.linear.dot_fit import describe_dot, plan_dot, run_dot
from bigpca.estimators.linear.krylov_fit import RULE_COLUMNS, Iteration, describe_krylov, plan_krylov, run_krylov
from bigpca.estimators.linear.spectrum import Settings, Spectrum, check_enough_rows
from bigpca.passes.engine.jobs import RunOptions
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan, Resources
from bigpca.sketches.base import positive_integer
from bigpca.solvers.components import partial_will_do

SOLVERS = ("auto", "covariance", "dot", "krylov")
FLOPS_PER_SECOND = 3e10  # of one core: only ratios of costs matter
BYTES_PER_SECOND = 1e9
EXACT_SECONDS = 30.0  # of one core: what an exact answer is worth


@dataclass(frozen=True)
class SolverChoice:
    """Which solver was chosen, and why, with the numbers.

    Attributes
    ----------
    solver, reason : str
    """

    solver: str
    reason: str

    def __str__(self) -> str:
        return f"{self.solver}: {self.reason}"


@dataclass(frozen=True)
class FitJob:
    """One fit, planned.

    Attributes
    ----------
    rows : RowInput
    settings : Settings
    plan : Plan
    iteration : Iteration or None
        Sizes of a block Krylov iteration, where that is planned.
    """

    rows: RowInput
    settings: Settings
    plan: Plan
    iteration: Iteration | None = None

    def run(self, options: RunOptions) -> Spectrum:
        """Read X and solve."""
        if self.plan.solver == "covariance":
            return run_covariance(self.rows, self.settings, options)
        if self.iteration is not None:
            found = run_krylov(self.rows, self.settings, options, self.iteration)
            check_enough_rows(found.count, found.omitted)
            return found
        return run_dot(self.rows, self.settings, options, self.plan.resources)

    def describe(self) -> dict[str, Any]:
        """Fingerprint of the passes."""
        if self.plan.solver == "covariance":
            return describe_covariance(self.rows)
        if self.iteration is not None:
            return describe_krylov(self.rows, self.settings, self.iteration)
        return describe_dot(self.rows, self.settings)


def seconds(plan: Plan) -> float:
    """Estimate a plan's time on one core, for comparing solvers only."""
    return max(plan.flops / FLOPS_PER_SECOND, plan.bytes_read / BYTES_PER_SECOND)


def choose(exact: Sequence[Plan], iteration: Plan | None = None) -> Plan:
    """Compare the costs of the routes, and take the cheapest one that fits memory.

    An iteration knows eigenvalues to a tolerance only, so it is taken where no exact route fits, or where the best of them
    costs more than thirty seconds of one core and more than twice as much.

    Raises
    ------
    MemoryBudgetError
        Where nothing fits, with every account.
    """
    plans = [*exact, *([iteration] if iteration is not None else [])]
    fitting = [plan for plan in plans if plan.fits]
    if not fitting:
        raise MemoryBudgetError(
            f"{'; '.join(plan.shortage() for plan in plans)}. Give each process more memory or fewer threads, store the input "
            f"in smaller chunks (bp.ingest(source, out, chunk_rows=...)), ask for fewer components, or reduce the columns."
        )
    best = min(fitting, key=lambda plan: _handicapped(plan, iteration))
    against = [_compare(other, best) for other in plans if other is not best]
    return best.with_solver(best.solver, "; ".join([best.reason, *against]))


def _handicapped(plan: Plan, iteration: Plan | None) -> float:
    return max(EXACT_SECONDS, 2 * seconds(plan)) if plan is iteration else seconds(plan)


def _compare(other: Plan, best: Plan) -> str:
    if not other.fits:
        return f"{other.solver} does not fit ({format_bytes(other.process_bytes)} per process)"
    ratio = seconds(other) / max(seconds(best), 1e-9)
    return f"{other.solver} costs {ratio:,.{0 if ratio >= 100 else 1}f} times as much"


def check_solver(solver: str) -> None:
    """Refuse an unknown solver.

    Raises
    ------
    ValueError
    """
    if solver not in SOLVERS:
        raise ValueError(f"solver = {solver!r} is unknown; one of {', '.join(map(repr, SOLVERS))} was expected.")


def check_iteration(tol: float, max_passes: int) -> None:
    """Refuse a tolerance or a number of reads that no iteration can have.

    Raises
    ------
    TypeError, ValueError
    """
    given: Any = tol
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeError(f"tol = {tol!r} is a {type(tol).__name__}; a number in (0, 1) was expected, such as 1e-3.")
    if not 0 < tol < 1:
        raise ValueError(f"tol = {tol} is outside (0, 1), where it is a relative error. Give a number such as 1e-3.")
    if positive_integer("max_passes", max_passes) < 2:
        raise ValueError(
            "max_passes = 1, but an iteration reads X at least twice. Give 2 or more, or use ApproximatePCA."
        )


def plan_fit(
    X: da.Array,
    settings: Settings,
    solver: str,
    *,
    memory_limit: int | str | None,
    policies: Mapping[str, Any],
    minimum: int = 2,
) -> FitJob:
    """Plan a fit of a Dask array without reading it (a counting read only where row chunks are unknown).

    Raises
    ------
    ValueError
        For an unknown solver, and for fewer rows than ``minimum``.
    MemoryBudgetError
        With ``solver="auto"`` where nothing fits.
    """
    check_solver(solver)
    rows = RowInput(X, **policies)
    check_enough_rows(rows.n_rows, minimum=minimum)
    resources = find_resources(memory_limit, in_process=rows.in_process)
    partial = partial_will_do(settings.n_components, rows.n_rows, rows.n_columns)
    if solver == "krylov" and (partial or min(rows.n_rows, rows.n_columns) > RULE_COLUMNS):
        return FitJob(rows, settings, *plan_krylov(rows, settings, resources))
    if solver == "covariance":
        return FitJob(rows, settings, plan_covariance(rows, settings, resources))
    if solver == "dot":
        return FitJob(rows, settings, plan_dot(rows, settings, resources))
    return _choose_route(rows, settings, resources)


def _choose_route(rows: RowInput, settings: Settings, resources: Resources) -> FitJob:
    """Plan every route that can do what is asked, and take the cheapest that fits.

    Of few rows or columns a basis would hold the whole space: where the whole spectrum is asked for, that is solved exactly.
    """
    exact = [plan_covariance(rows, settings, resources)]
    if rows.nan_policy != "omit":
        exact.append(plan_dot(rows, settings, resources))
    if not partial_will_do(settings.n_components, rows.n_rows, rows.n_columns):
        return FitJob(rows, settings, choose(exact))
    krylov, iteration = plan_krylov(rows, settings, resources)
    best = choose(exact, krylov)
    return FitJob(rows, settings, best, iteration if best.solver == "krylov" else None)
