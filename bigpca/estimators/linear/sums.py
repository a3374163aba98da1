"""One read into a state, and a solve from it: the fit, the result and the base of models that need nothing else."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

import numpy as np

from bigpca.arrays import Matrix, Vector
from bigpca.data.provenance import Provenance
from bigpca.engine.planning import PassCost, SolveCost
from bigpca.engine.run import Run
from bigpca.errors import positive_integer
from bigpca.estimators.linear.maps import projected, read_again
from bigpca.estimators.linear.spectrum import not_kept
from bigpca.estimators.shared.exporting import FeatureAxes, LinearExports
from bigpca.estimators.shared.fit import Fit, called, execute, unfitted
from bigpca.estimators.shared.growing import Grows, MoreRows
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.opening import planned_fit, rows_of_fit
from bigpca.estimators.shared.results import KeptRows, SummedRows
from bigpca.estimators.shared.transformer import Estimator
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.fold import Folded, fold, row_pass
from bigpca.passes.reading.blocks import PRECISE
from bigpca.passes.rows import Rows
from bigpca.records import Held, stored
from bigpca.settings import setting
from bigpca.solvers.components import check_n_components
from bigpca.solvers.eigh import eigh_bytes

if TYPE_CHECKING:
    from bigpca.solvers.moments import Frame

Found = TypeVar("Found")
State = TypeVar("State", bound=Accumulator)
FLOPS = 14.0  # times d^3, of one generalised eigenproblem
COPIES = 9  # of a (d, d) matrix that it holds
FRAMES = 6  # of the same for a second read


@dataclass(frozen=True)
class Refinement:
    """The rows of a second read, in which the scatter of each side is near the identity, and their state.

    ``T_x'(x - mean_x)``; beside ``T_y'(y - mean_y)``, or ``y - mean_y - B'(x - mean_x)``, where there are two sides.

    Attributes
    ----------
    mean : ndarray of shape (p + q,)
    x : Frame
    y : Frame or None
    B : ndarray of shape (p, q), or None
    state : Accumulator or None
        Once it is read.
    """

    mean: Vector
    x: Frame
    y: Frame | None = None
    B: Matrix | None = None
    state: Accumulator | None = None

    def applied(self, rows: Rows) -> Rows:
        """Return the rows of the second read, from those of the first."""
        p, d = len(self.x.T), len(self.mean)
        M = np.eye(d)
        M[:p, :p] = self.x.T
        if self.y is not None:
            M[p:, p:] = self.y.T
        if self.B is not None:
            M[:p, p:] = -self.B
        return projected(rows, self.mean, M)


@dataclass(frozen=True)
class SumsFit(Fit[Found], Generic[Found, State]):
    """One read into sums, whose products are in float64, and (d, d) problems; another read where digits are too few.

    Attributes
    ----------
    template : Accumulator
    solve : callable
        (state, omitted, roundings of the stored values, and the second read, if there was one) -> the result.
    problems : int
        How many are expected: 1, or as many as an iteration takes.
    sets : int
        How many sets of axes the result has.
    refine : callable or None
        (state, omitted) -> the rows of a second read, or None where the first has enough digits.
    """

    reads: ClassVar[tuple[str, ...]] = ("sums", "again")
    depends_on: ClassVar[tuple[str, ...]] = ("template",)
    solver: ClassVar[str] = "covariance"

    template: State
    solve: Callable[[State, int, tuple[float, ...], Refinement | None], Found]
    problems: int = 1
    sets: int = 1
    refine: Callable[[State, int], Refinement | None] | None = None

    @property
    def account(self) -> str:
        d = self.rows.n_columns
        return f"one read and {d} x {d} matrices"

    @cached_property
    def sums(self) -> PassCost:
        """The read."""
        return row_pass(self.rows, "sums", [self.template], dtype=PRECISE)

    @cached_property
    def again(self) -> PassCost | None:
        """The second read, if there may be one."""
        rows = None if self.refine is None else read_again(self.rows)
        return None if rows is None else row_pass(rows, "refined", [self.template], dtype=PRECISE).repeated(0, 1)

    def solve_cost(self) -> SolveCost:
        d, size = self.rows.n_columns, self.template.state_bytes
        held = 2 * size + COPIES * self.sets * 8 * d * d + eigh_bytes(d)
        held += 0 if self.again is None else size + FRAMES * 8 * d * d
        flops = FLOPS * self.problems * self.sets * d**3
        return SolveCost(flops, bytes=held, output_bytes=size + 2 * self.sets * 8 * d * d)

    def read(self, run: Run) -> Folded[State]:
        """Return the sums of X."""
        return fold(run, self.sums, self.rows, self.template)  # one pass over X

    def run(self, run: Run) -> Found:
        read = self.read(run)
        second = None if self.again is None or self.refine is None else self.refine(read.state, read.omitted)
        if self.again is not None and second is not None:
            state = fold(run, self.again, second.applied(self.rows), self.template).state
            second = replace(second, state=state)
        return self.solve(read.state, read.omitted, self.rows.roundings, second)


@dataclass(frozen=True, kw_only=True)
class SumsResult(SummedRows):
    """The result of such a fit, with what all have."""

    mean_: Vector = stored("d")
    components_: Matrix = stored("k", "d")


Solved = TypeVar("Solved", bound=SumsResult)


class SumsModel(Estimator[Solved], Grows, LinearExports, FeatureAxes):
    """Axes that follow from the sums of one read, to which rows can be added."""

    n_components: int | None

    @abstractmethod
    def _template(self, d: int) -> Unchecked:
        """Check the parameters, and return the empty sums of d columns."""

    @abstractmethod
    def _solved(
        self, state: Unchecked, omitted: int, roundings: tuple[float, ...], again: Refinement | None = None
    ) -> Solved:
        """Return the axes of the rows of a state in the host's memory; raises ValueError where there are none."""

    def _placed(self, template: Unchecked, rows: Rows, y: Unchecked) -> Unchecked:
        """Return the sums of these rows: a hook for those that depend on labels of the rows."""
        return template

    def _sizes(self) -> tuple[int, int]:
        """Return how many (d, d) problems are expected for a set of axes, and how many sets there are."""
        return 1, 1

    def _finished(self, state: Unchecked) -> Unchecked:
        """Return the state of all rows of a read, to which those of another are added."""
        return state

    def _fit(self, rows: Rows, y: Unchecked) -> SumsFit[Solved, Unchecked]:
        rows = rows_of_fit(self, rows, weighted=not self._traits.unweighted)
        if self.n_components is not None:
            positive_integer("n_components", self.n_components)
            check_n_components(self.n_components, None, rows.n_columns)
        template = self._placed(self._template(rows.n_columns), rows, y)
        return SumsFit(rows, template, unfitted(self)._solved, *self._sizes())

    def _more(self, kept: KeptRows, more: MoreRows) -> tuple[KeptRows, Provenance]:
        kept.known(self._missing_state, "partial_fit")
        fit = cast("SumsFit[Solved, Unchecked]", planned_fit(self, more.opened(self), more.y))
        call = f"{called(self)}.partial_fit(X)"
        read, made = execute(self, fit, fit.read, call, progress=more.progress, adds=True)
        return kept.merge(KeptRows(self._finished(read.state), read.omitted, fit.rows.roundings)), made

    def _solution(self, kept: KeptRows) -> tuple[Callable[[], Solved], str]:
        state, solve = kept.known(self._missing_state, "merge"), unfitted(self)._solved
        return lambda: solve(state, kept.n_omitted_, kept.roundings), self.solver_

    def _missing_state(self, what: str) -> str:
        """Return the message that ``what`` is impossible without the sums of all rows."""
        size = self._finished(self._template(self.n_features_in_)).state_bytes
        return not_kept(what, "sums of all rows", size, setting(self, "keep_state_bytes"))

    def _restored(self, held: Held) -> Solved:
        held.context["state"] = lambda held, name: self._finished(self._template(held.size("d")))
        return super()._restored(held)
