"""How a fit is planned, checked and run: from X and parameters to a plan, a route and its options."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dask.array as da

from bigpca.errors import MemoryBudgetError, format_bytes
from bigpca.estimators.covariance_route import describe_covariance, plan_covariance, run_covariance
from bigpca.estimators.dot_route import describe_dot, plan_dot, run_dot
from bigpca.estimators.spectrum import Settings, Spectrum, check_enough_rows
from bigpca.passes.checkpoint import Checkpoint
from bigpca.passes.events import PlanEvent
from bigpca.passes.jobs import RunOptions
from bigpca.passes.progress import ProgressArgument, resolve_progress
from bigpca.passes.resources import find_resources
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan

SOLVERS = ("auto", "covariance", "dot")
FLOPS_PER_SECOND = 3e10  # of one core: only ratios of costs matter
BYTES_PER_SECOND = 1e9


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
    """

    rows: RowInput
    settings: Settings
    plan: Plan

    def run(self, options: RunOptions) -> Spectrum:
        """Read X and solve."""
        if self.plan.solver == "covariance":
            return run_covariance(self.rows, self.settings, options)
        return run_dot(self.rows, self.settings, options, self.plan.resources)

    def describe(self) -> dict[str, Any]:
        """Fingerprint of the passes."""
        if self.plan.solver == "covariance":
            return describe_covariance(self.rows)
        return describe_dot(self.rows, self.settings)


def seconds(plan: Plan) -> float:
    """Estimate a plan's time on one core, for comparing solvers only."""
    return max(plan.flops / FLOPS_PER_SECOND, plan.bytes_read / BYTES_PER_SECOND)


def choose(covariance: Plan, dot: Plan) -> Plan:
    """Compare the costs of both routes, and take the cheaper one that fits memory.

    Raises
    ------
    MemoryBudgetError
        Where neither fits, with both accounts.
    """
    fitting = [plan for plan in (covariance, dot) if plan.fits]
    if not fitting:
        raise MemoryBudgetError(
            f"{covariance.shortage()}; {dot.shortage()}. Give each process more memory or fewer threads, store the input in "
            f"smaller chunks (bp.ingest(source, out, chunk_rows=...)), or reduce the columns."
        )
    best = min(fitting, key=seconds)
    other = dot if best is covariance else covariance
    ratio = seconds(other) / max(seconds(best), 1e-9)
    against = (
        f"does not fit ({format_bytes(other.process_bytes)} per process)"
        if not other.fits
        else f"costs {ratio:,.{0 if ratio >= 100 else 1}f} times as much"
    )
    return best.with_solver(best.solver, f"{best.reason}; {other.solver} {against}")


def check_solver(solver: str) -> None:
    """Refuse an unknown solver.

    Raises
    ------
    ValueError
    """
    if solver not in SOLVERS:
        raise ValueError(f"solver = {solver!r} is unknown; one of {', '.join(map(repr, SOLVERS))} was expected.")


def plan_fit(
    X: da.Array,
    settings: Settings,
    solver: str,
    *,
    memory_limit: int | str | None,
    policies: dict[str, str],
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
    resources = find_resources(memory_limit, in_process=rows.in_memory)
    if solver == "covariance":
        plan = plan_covariance(rows, settings, resources)
    elif solver == "dot":
        plan = plan_dot(rows, settings, resources)
    elif rows.nan_policy == "omit":
        plan = plan_covariance(rows, settings, resources)
    else:
        plan = choose(plan_covariance(rows, settings, resources), plan_dot(rows, settings, resources))
    return FitJob(rows, settings, plan)


@contextmanager
def running(
    rows: RowInput,
    description: dict[str, Any] | None,
    *,
    checkpoint: str | os.PathLike[str] | None,
    progress: ProgressArgument,
    workers_timeout: float,
    plan: Plan | None = None,
) -> Iterator[RunOptions]:
    """Open what a run needs, progress and the locked checkpoint, and close it at the end."""
    with resolve_progress(progress) as report:
        if plan is not None:
            report(PlanEvent(plan.solver, plan.reason, int(plan.passes + 0.999), plan.bytes_read, plan.peak_bytes))
        held = None
        if checkpoint is not None and description is not None:
            held = Checkpoint(checkpoint, description)
        try:
            yield RunOptions(held, report, workers_timeout, "local" if rows.in_memory else None)
        finally:
            if held is not None:
                held.release()
