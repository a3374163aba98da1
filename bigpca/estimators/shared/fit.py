"""One way to solve a problem, as a record: its reads are declared once, then planned, enforced and executed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import ClassVar, Generic, Self, TypeVar

from bigpca.costs import PassCost, SolveCost
from bigpca.errors import MemoryBudgetError, format_bytes
from bigpca.passes.engine.run import Run
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan, Resources, plan_of

Found = TypeVar("Found", covariant=True)
FLOPS_PER_SECOND = 3e10  # of one core: only ratios of costs matter
BYTES_PER_SECOND = 1e9
EXACT_SECONDS = 30.0  # of one core: what an exact answer is worth


@dataclass(frozen=True)
class Reading(ABC):
    """Reads of X, planned: what they are, and what they cost.

    A subclass declares its passes (:meth:`passes`) from the same templates and layouts that it executes; a run that
    does anything else fails.

    Attributes
    ----------
    rows : RowInput
    resources : Resources
    against : tuple of str
        How it compares with what else could have been done.
    """

    exact: ClassVar[bool] = True  # or to a tolerance

    rows: RowInput
    resources: Resources
    against: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    @abstractmethod
    def solver(self) -> str:
        """Its name."""

    @property
    @abstractmethod
    def account(self) -> str:
        """What it does, in a few words with numbers."""

    @abstractmethod
    def passes(self) -> tuple[PassCost, ...]:
        """Declare all passes, and reads beside them, that a run may make."""

    @abstractmethod
    def solve_cost(self) -> SolveCost:
        """What is computed and held in the fitting process."""

    @abstractmethod
    def identity(self) -> dict[str, object]:
        """All that the passes depend on, for the fingerprint of checkpoints; threads and limits never."""

    @property
    def declared(self) -> tuple[PassCost, ...]:
        """All that is read: before any pass the rows, where their number was unknown, and then the passes."""
        return (*self.rows.counting, *self.passes())

    @property
    def reason(self) -> str:
        """What it does, and why it was chosen."""
        return "; ".join((self.account, *self.against))

    @property
    def notes(self) -> tuple[str, ...]:
        """What else a plan says."""
        return ()

    @property
    def max_evaluations(self) -> float:
        """Kernel evaluations beyond which the plan is rejected."""
        return inf

    @cached_property
    def plan(self) -> Plan:
        """What it costs."""
        return plan_of(self)

    def chosen(self, against: Sequence[str]) -> Self:
        """Return the same with an account of the choice."""
        return replace(self, against=tuple(against))


@dataclass(frozen=True)
class Fit(Reading, Generic[Found]):
    """One way to solve a problem: its reads, its solve, and the loop that executes them."""

    @abstractmethod
    def run(self, run: Run) -> Found:
        """Read X and solve."""

    @property
    def price(self) -> float:
        """What fits of one problem are compared by: seconds of one core, at a constant speed.

        A fit that gives an answer to a tolerance is chosen only if no exact one fits memory, or if the best of them
        costs more than thirty seconds of one core and more than twice as much.
        """
        return seconds(self.plan) if self.exact else max(EXACT_SECONDS, 2 * seconds(self.plan))


AnyFit = TypeVar("AnyFit", bound=Fit[object])


def seconds(plan: Plan) -> float:
    """Estimate a plan's time on one core, to compare solvers: at a constant speed, the same on every machine."""
    return max(plan.flops / FLOPS_PER_SECOND, plan.bytes_read / BYTES_PER_SECOND)


def choose(fits: Sequence[AnyFit]) -> AnyFit:
    """Return the fit of the lowest price of those that memory allows, with the comparison as its reason.

    A fit that has no alternative is returned as it is: its plan says what does not fit.

    Raises
    ------
    EvaluationBudgetError, MemoryBudgetError
        If nothing fits.
    """
    if len(fits) == 1:
        return fits[0]
    fitting = [fit for fit in fits if fit.plan.fits]
    if not fitting:
        for fit in fits:
            if fit.plan.evaluations > fit.plan.most_evaluations:
                fit.plan.check()
        raise MemoryBudgetError(
            f"{'; '.join(fit.plan.shortage() for fit in fits)}. Give each process more memory or fewer threads, store "
            f"the input in smaller chunks (bp.ingest(source, out, chunk_rows=...)), ask for fewer components, or "
            f"reduce the number of columns."
        )
    best = min(fitting, key=lambda fit: fit.price)
    return best.chosen([_compare(other.plan, best.plan) for other in fits if other is not best])


def first_that_fits(fits: Iterable[AnyFit]) -> AnyFit:
    """Return the first fit that memory allows, or the last, whose plan says what is missing."""
    for fit in fits:
        if fit.plan.process_bytes <= fit.resources.room_bytes:
            break
    return fit


def _compare(other: Plan, best: Plan) -> str:
    if not other.fits:
        return f"{other.solver} does not fit ({format_bytes(other.process_bytes)} per process)"
    ratio = seconds(other) / max(seconds(best), 1e-9)
    return f"{other.solver} costs {ratio:,.{0 if ratio >= 100 else 1}f} times as much"
