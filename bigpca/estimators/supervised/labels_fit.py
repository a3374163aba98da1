"""Fits of labelled rows in one read, whatever problem is solved from their statistics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from bigpca.costs import PassCost, SolveCost
from bigpca.estimators.shared.fit import Fit, Reading
from bigpca.estimators.supervised.kept import KeptStatistics, Supervision
from bigpca.estimators.supervised.labels import Labelled
from bigpca.estimators.supervised.problems import Problem
from bigpca.estimators.supervised.statistics import LabelStatistics, fold_labels
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.left_product import LeftProduct
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import row_pass
from bigpca.passes.rows import RowInput
from bigpca.solvers.eigh import eigh_bytes
from bigpca.solvers.roweis import Axes


@dataclass(frozen=True)
class SupervisedResult:
    """The result of a read of labelled rows and a solve.

    Attributes
    ----------
    statistics : LabelStatistics
    supervision : Supervision
    axes : Axes
    n_passes : int or None
    converged : bool or None
        For an iteration: reads of X, and whether the tolerance was met.
    """

    statistics: LabelStatistics
    supervision: Supervision
    axes: Axes
    n_passes: int | None = None
    converged: bool | None = None


def labels_pass(rows: RowInput, templates: dict[str, Accumulator], *, name: str = "labels") -> PassPlan:
    """Declare one read of labelled rows."""
    states = list(templates.values())
    size, work = sum(state.state_bytes for state in states), rows.dense_work(*states)
    return row_pass(rows, name, states, cut_bytes=size, work=work)


@dataclass(frozen=True)
class LabelledReading(Reading):
    """A read of labelled rows.

    Attributes
    ----------
    name : str
        Name of the estimator, and of its only exact solver.
    labelled : Labelled
    whole : bool
        Whether the (d, d) scatter is kept.
    """

    name: str
    labelled: Labelled
    whole: bool

    @property
    def solver(self) -> str:
        return self.name

    @cached_property
    def templates(self) -> dict[str, Accumulator]:
        """The accumulators of the read."""
        return self.labelled.templates(self.rows.n_columns, whole=self.whole)

    @cached_property
    def labels(self) -> PassPlan:
        """The read of rows and labels."""
        return labels_pass(self.rows, self.templates)

    def read(self, run: Run) -> KeptStatistics:
        """Read X."""
        statistics = fold_labels(run, self.labels, self.rows, self.templates)
        return self.labelled.kept(statistics)


@dataclass(frozen=True)
class LabelledFit(LabelledReading, Fit[SupervisedResult]):
    """A fit that begins with a read of labelled rows.

    Attributes
    ----------
    problem : Problem
    """

    problem: Problem

    @property
    def price(self) -> float:
        return self.plan.flops

    def output_bytes(self) -> int:
        """Return the bytes of a saved model: axes, statistics, and the classifier."""
        d, labelled = self.rows.n_columns, self.labelled
        k = self.problem.most_axes(labelled.rank, d)
        inverses = d * (labelled.n_classes + 1) if self.problem.classifies else 0
        return 8 * (k * d + k + inverses) + labelled.kept_bytes(d, whole=self.whole)


@dataclass(frozen=True)
class LabelsFit(LabelledFit):
    """One read of labelled rows, and a (d, d) or thin solve."""

    @property
    def account(self) -> str:
        d = self.rows.n_columns
        what = f"and a {d} x {d} eigenproblem" if self.whole else "and a thin one"
        return f"one read of rows and labels, {what}{self.labelled.supervision.note}"

    def passes(self) -> tuple[PassCost, ...]:
        return (self.labels,)

    def solve_cost(self) -> SolveCost:
        d, state = self.rows.n_columns, self.labels.state_bytes
        held = sum(template.V.nbytes for template in self.templates.values() if isinstance(template, LeftProduct))
        return SolveCost(
            9.0 * d**3 if self.whole else 4.0 * state / 8,
            bytes=3 * 8 * d * d + eigh_bytes(d) if self.whole else 3 * state,
            held_bytes=held,
            output_bytes=self.output_bytes(),
        )

    def identity(self) -> dict[str, object]:
        """One checkpoint of the read serves any number of components and any (r1, r2)."""
        states = {name: template.describe() for name, template in self.templates.items()}
        return {"computes": "labelled moments", "input": self.rows.describe(), "states": states}

    def run(self, run: Run) -> SupervisedResult:
        read = self.read(run)
        return SupervisedResult(read.statistics, read.supervision, self.problem.solve(read.statistics))
