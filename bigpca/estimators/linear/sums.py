"""One read into sums, and a solve from them: the fit, the result and the base of all models that need nothing else.

One row or two sides of it, with weights, folds or covariates: each is a state that adds up. Where the digits of one
read are too few for a solution, its rows are read once more, in other coordinates.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import ClassVar, Generic, TypeVar, cast

from bigpca.arrays import Matrix, Vector
from bigpca.engine.planning import SolveCost
from bigpca.engine.run import Run
from bigpca.errors import positive_integer
from bigpca.estimators.linear.maps import SecondRead, read_again
from bigpca.estimators.shared.files import held_folds
from bigpca.estimators.shared.fit import Fit, unfitted
from bigpca.estimators.shared.growing import Grows
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.opening import rows_of_fit
from bigpca.estimators.shared.results import KeptRows, Result, SummedRows
from bigpca.estimators.shared.transformer import Estimator
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.folds import FoldStates
from bigpca.passes.fold import Folded, Read
from bigpca.passes.reading.blocks import PRECISE
from bigpca.passes.residuals import Remainder
from bigpca.passes.rows import Rows
from bigpca.records import Held, stored
from bigpca.settings import setting
from bigpca.solvers.components import check_n_components
from bigpca.solvers.eigh import eigh_bytes

FLOPS = 14.0  # times d^3, of one generalised eigenproblem
COPIES = 9  # of a (d, d) matrix that it holds
FRAMES = 6  # of the same for a second read
BESIDE = 3  # of the same without the effect of covariates, and of what they explain

Solved = TypeVar("Solved", bound=Result)


@dataclass(frozen=True)
class SumsFit(Fit[Solved], Generic[Solved]):
    """One read into sums, whose products are in float64, and (d, d) problems; another read where digits are too few.

    Attributes
    ----------
    owner : SumsModel
        With the parameters of the fit: it solves, and says whether digits are too few.
    empty : KeptRows
        The statistics before the read.
    like : KeptRows or None
        Those of the rows to which these are added.
    """

    reads: ClassVar[tuple[str, ...]] = ("sums", "again")
    depends_on: ClassVar[tuple[str, ...]] = ("template",)
    solver: ClassVar[str] = "covariance"

    owner: SumsModel[Solved]
    empty: KeptRows
    like: KeptRows | None = None

    @property
    def template(self) -> Accumulator:
        """The empty sums."""
        return cast("Accumulator", self.empty.state)

    @property
    def account(self) -> str:
        d, widths = self.rows.n_columns, self.rows.widths
        if not widths:
            return f"one read and {d} x {d} matrices" if self.problems else "one read and a thin matrix"
        folds = f", for each of {self.template.n_folds} folds" if isinstance(self.template, FoldStates) else ""
        return f"one read of both sides, {' + '.join(map(str, widths))} columns, and a {d} x {d} matrix{folds}"

    @property
    def problems(self) -> float:
        """How many (d, d) problems are expected; 0 for thin matrices, whose precision follows from their size."""
        return self.owner._problems(self.template)

    def _into_sums(self, rows: Rows, name: str) -> Read[Folded[Accumulator]]:
        return Read.into(rows, name, self.template, dtype=PRECISE if self.problems else None)

    @cached_property
    def sums(self) -> Read[Folded[Accumulator]]:
        """The read."""
        return self._into_sums(self.rows, "sums")

    @cached_property
    def again(self) -> Read[Folded[Accumulator]] | None:
        """The second read, if there may be one: of rows that can be read again, and are not added to others."""
        doubtful = self.like is None and self.owner._may_doubt(self.rows)
        rows = read_again(self.rows) if doubtful else None
        return None if rows is None else self._into_sums(rows, "refined").repeated(0, 1)

    def solve_cost(self) -> SolveCost:
        widths, d = self.rows.widths or (self.rows.n_columns,), self.rows.n_columns
        before, whole = None if self.like is None else self.like.state, self.template
        if isinstance(before, FoldStates) and isinstance(whole, FoldStates):
            whole = replace(whole, n_folds=len(before.union(whole)[0]))
        size, problems, beside = whole.state_bytes, self.owner._problems(whole), self.owner._held_bytes(self.rows)
        if not problems:
            return SolveCost(size / 2, bytes=3 * size, held_bytes=beside)
        held = 3 * size + (COPIES + BESIDE * (len(widths) > 2)) * 8 * d * d + eigh_bytes(d)
        held += 0 if self.again is None else size + FRAMES * 8 * d * d
        flops = FLOPS * problems * sum(float(width) ** 3 for width in widths)
        return SolveCost(flops, bytes=held, held_bytes=beside)

    def read(self, run: Run) -> KeptRows:
        """Return the statistics of X."""
        found = self.sums(run)  # one pass over X
        return self.empty.of(found.state.finished(), found.omitted)

    def run(self, run: Run) -> Solved:
        kept, owner = self.read(run), self.owner
        second = None if self.again is None else owner._doubt(kept)
        if second is None:
            solved = owner._solve(kept)
            second = None if self.again is None else owner._doubt(kept, solved)
            if second is None:
                return solved
        again = replace(cast("Read[Folded[Accumulator]]", self.again), rows=second.applied(self.rows))
        state = again(run).state.finished()  # one more pass over X
        return owner._solve(kept, replace(second, state=state))


@dataclass(frozen=True, kw_only=True)
class SumsResult(SummedRows):
    """The result of such a fit along axes, with what all have."""

    mean_: Vector = stored("d")
    components_: Matrix = stored("k", "d")


class SumsModel(Estimator[Solved], Grows, Generic[Solved]):
    """What follows from the sums of one read, to which rows can be added.

    A subclass writes two functions, ``_empty`` and ``_solve``. Its rows, folds, plan, growth, merges and files follow.
    """

    _enough: ClassVar[float] = inf  # estimated error above which rows are read once more; inf where none is estimated

    @abstractmethod
    def _empty(self, d: int, rows: Rows | None = None, y: Unchecked = None, like: Unchecked = None) -> Accumulator:
        """Check the parameters, and return the empty sums of d columns.

        With ``rows``, of these, and of their labels y; and where ``like`` is the state of others, to be added to that.
        """

    @abstractmethod
    def _solve(self, kept: Unchecked, again: Unchecked = None) -> Solved:
        """Return the result, from the statistics of all rows, and from their second read, if there was one.

        Raises
        ------
        ValueError
            Where they have none.
        """

    def _doubt(self, kept: Unchecked, solved: Solved | None = None) -> SecondRead | Remainder | None:
        """Return a second read, where one leaves too few digits: of the sums, before the solve, or of its result."""
        return None

    def _may_doubt(self, rows: Rows) -> bool:
        """Whether these rows may have to be read twice."""
        return self._enough < inf or len(rows.widths) > 2

    def _rows(self, rows: Rows, y: Unchecked, like: KeptRows | None = None) -> Rows:
        """Return the rows that a fit reads, preprocessed, and what belongs to them."""
        return rows_of_fit(self, rows, weighted=not self._traits.unweighted)

    def _kept(self, rows: Rows, state: Accumulator) -> KeptRows:
        """Return the statistics before a read of these rows."""
        return KeptRows(state, 0, rows.roundings)

    def _check(self, widths: tuple[int, ...]) -> None:
        """Check the parameters for rows of so many columns on each side."""
        k = getattr(self, "n_components", None)
        if k is not None:
            check_n_components(positive_integer("n_components", k), None, widths[0])

    def _problems(self, state: Unchecked) -> float:
        """Return how many (d, d) problems are expected; 0 where matrices are thin."""
        return 1

    def _held_bytes(self, rows: Rows) -> int:
        """Return the bytes of what belongs to the rows, which the fitting process holds."""
        return 0

    def _fit(self, rows: Rows, y: Unchecked, like: KeptRows | None = None) -> Fit[Solved]:
        read = self._rows(rows, y, like)
        self._check(read.widths or (read.n_columns,))
        state = self._empty(read.n_columns, replace(read, groups=rows.groups), y, None if like is None else like.state)
        return SumsFit(read, unfitted(self), self._kept(read, state), like)

    def _result_of(self, kept: KeptRows, **own: Unchecked) -> Solved:
        """Return the result: what was solved, with what all results of sums have."""
        made: Unchecked = self._traits.result
        return made(  # type: ignore[no-any-return]
            n_samples_=kept.state.count, n_omitted_=kept.n_omitted_, roundings=kept.roundings,
            weight_sums=getattr(kept.state, "weight_sums", None), state=self._kept_state(kept.state), **own,
        )  # fmt: skip

    def _kept_state(self, state: Accumulator) -> Accumulator | None:
        """Return a state that a model keeps; None if it is too large."""
        return state if state.state_bytes <= setting(self, "keep_state_bytes") else None

    def _restored(self, held: Held) -> Solved:
        covariates = len(held.arrays.get("regression__mean", ()))

        def template(held: Held, name: str) -> Accumulator:
            d = held.size("d") + held.sizes.get("q", (0, ""))[0] + covariates
            return held_folds(held, name, self._empty(d).finished())

        held.context["state"] = template
        found = super()._restored(held)
        self._steps = replace(self._steps, summed=covariates)
        return found
