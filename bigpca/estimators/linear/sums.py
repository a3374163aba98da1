"""One read into a state, and a solve from it: the fit of models that need nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

from bigpca.estimators.shared.fit import Fit
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import Folded, fold, row_pass
from bigpca.passes.reading.blocks import PRECISE
from bigpca.planning import PassCost, SolveCost
from bigpca.solvers.eigh import eigh_bytes

Found = TypeVar("Found")
State = TypeVar("State", bound=Accumulator)
FLOPS = 14.0  # times d^3, of one generalised eigenproblem
COPIES = 9  # of a (d, d) matrix that it holds


@dataclass(frozen=True)
class SumsFit(Fit[Found], Generic[Found, State]):
    """One read into sums, whose products are in float64, and (d, d) problems.

    Attributes
    ----------
    template : Accumulator
    solve : callable
        (state, omitted, roundings of the stored values) -> the result.
    problems : int
        How many are expected: 1, or as many as an iteration takes.
    """

    solver: ClassVar[str] = "covariance"

    template: State
    solve: Callable[[State, int, tuple[float, ...]], Found]
    problems: int = 1

    @property
    def account(self) -> str:
        d = self.rows.n_columns
        return f"one read and {d} x {d} matrices"

    @cached_property
    def sums(self) -> PassPlan:
        """The read."""
        return row_pass(self.rows, "sums", [self.template], dtype=PRECISE)

    def passes(self) -> tuple[PassCost, ...]:
        return (self.sums,)

    def solve_cost(self) -> SolveCost:
        d, size = self.rows.n_columns, self.template.state_bytes
        held = 2 * size + COPIES * 8 * d * d + eigh_bytes(d)
        return SolveCost(FLOPS * self.problems * d**3, bytes=held, output_bytes=size + 2 * 8 * d * d)

    def identity(self) -> dict[str, object]:
        """One checkpoint serves any number of components."""
        return {"computes": "sums", "input": self.rows.describe(), "state": self.template.describe()}

    def read(self, run: Run) -> Folded[State]:
        """Return the sums of X."""
        return fold(run, self.sums, self.rows, self.template)  # one pass over X

    def run(self, run: Run) -> Found:
        read = self.read(run)
        return self.solve(read.state, read.omitted, self.rows.roundings)
