"""One read of rows side by side into their joint moments, with folds, and the solve of a problem from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

from bigpca.data.batches import has_batches
from bigpca.engine.planning import PassCost, SolveCost
from bigpca.engine.run import Run
from bigpca.estimators.linear.maps import read_again
from bigpca.estimators.linear.spectrum import Remainder
from bigpca.estimators.linear.sums import Refinement
from bigpca.estimators.shared.fit import Fit
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.labelled import open_side
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.folds import FoldStates
from bigpca.passes.fold import Folded, fold, row_pass
from bigpca.passes.reading.blocks import PRECISE
from bigpca.passes.rows import Rows, blocks_of_batches, naming_sides, side_by_side
from bigpca.solvers.eigh import eigh_bytes

Found = TypeVar("Found")
State = TypeVar("State", bound=Accumulator)


def open_pair(rows: Rows, Y: Unchecked, owner: str) -> Rows:
    """Return opened rows of X with those of Y side by side, and covariates behind them.

    Y of None stands for the second arrays of batches.

    Raises
    ------
    ValueError
        If there is no Y; as :func:`bigpca.passes.rows.side_by_side`, and for batches of a different number of arrays.
    """
    if Y is None and has_batches(rows.X):
        joined = blocks_of_batches(rows)
        if joined is not None and len(joined.widths) != 2:
            raise ValueError(f"the batches have {len(joined.widths)} blocks; pairs (X, Y) were expected.")
        if joined is not None:
            return joined if rows.covariates is None else side_by_side([rows, rows.covariates], "XZ")  # which raises
    if Y is None:
        raise ValueError(f"{owner} requires y to be passed, but the target y is None. Give Y of shape (n, q).")
    more = [] if rows.covariates is None else [rows.covariates]
    return side_by_side([rows, open_side(Y, owner, "Y"), *more], "XYZ"[: 2 + len(more)])


@dataclass(frozen=True)
class PairFit(Fit[Found], Generic[Found, State]):
    """One read of both sides and a solve from their moments; one more read if that solution has too few digits.

    Attributes
    ----------
    template : Accumulator
        Moments of all columns, or one state for each fold.
    solve : callable
        (state, omitted, refinement or None) -> the result.
    before : Accumulator or None
        The state to which that of these rows is added.
    refine : callable or None
        Result -> the rows of a second read, or None where it has enough digits.
    apart : callable or None
        State -> the rows of a second read, or None where what covariates leave has enough digits.
    """

    reads: ClassVar[tuple[str, ...]] = ("moments", "again")
    depends_on: ClassVar[tuple[str, ...]] = ("template",)
    solver: ClassVar[str] = "covariance"

    template: State
    solve: Callable[[State, int, Refinement | Remainder | None], Found]
    before: State | None = None
    refine: Callable[[Found], Refinement | None] | None = None
    apart: Callable[[State], Remainder | None] | None = None

    @property
    def account(self) -> str:
        d = self.rows.n_columns
        folds = f", for each of {self.template.n_folds} folds" if isinstance(self.template, FoldStates) else ""
        return (
            f"one read of both sides, {' + '.join(map(str, self.rows.widths))} columns, and a {d} x {d} matrix{folds}"
        )

    @cached_property
    def moments(self) -> PassCost:
        """The read."""
        return row_pass(self.rows, "pairs", [self.template], cut_bytes=self.template.state_bytes, dtype=PRECISE)

    @cached_property
    def again(self) -> PassCost | None:
        """The second read, if there may be one: of rows that can be read again."""
        rows = None if self.refine is None and self.apart is None else read_again(self.rows)
        if rows is None:
            return None
        size = self.template.state_bytes
        return row_pass(rows, "refined", [self.template], cut_bytes=size, dtype=PRECISE).repeated(0, 1)

    def solve_cost(self) -> SolveCost:
        d = self.rows.n_columns
        states, size = getattr(self.template, "n_folds", 1), self.template.state_bytes
        if isinstance(self.template, FoldStates) and isinstance(self.before, FoldStates):
            states = len(self.before.union(self.template)[0])
            size = states * self.template.template.state_bytes
        flops = 9.0 * sum(float(width) ** 3 for width in self.rows.widths) * states
        beside = 3 * (len(self.rows.widths) > 2)  # matrices without the covariates, and what they explain
        held = 3 * size + (9 + beside) * 8 * d * d + eigh_bytes(d)
        return SolveCost(flops, bytes=held, output_bytes=size + 16 * d * 64)

    def read(self, run: Run, again: tuple[PassCost, Rows] | None = None) -> Folded[State]:
        """Return the state of X and Y, or that of the second read."""
        cost, rows = again or (self.moments, self.rows)
        with naming_sides(self.rows):
            return fold(run, cost, rows, self.template)  # one pass over X and Y

    def run(self, run: Run) -> Found:
        read = self.read(run)
        if self.again is None:
            return self.solve(read.state, read.omitted, None)
        second: Refinement | Remainder | None = None if self.apart is None else self.apart(read.state)
        if second is None:
            found = self.solve(read.state, read.omitted, None)
            second = None if self.refine is None else self.refine(found)
            if second is None:
                return found
        state = self.read(run, (self.again, second.applied(self.rows))).state
        return self.solve(read.state, read.omitted, replace(second, state=state))
