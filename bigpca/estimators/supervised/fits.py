"""The fit of labelled rows in one read, whatever problem is solved from their statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from bigpca.arrays import Integers, Matrix, Vector
from bigpca.blas import one_blas_thread
from bigpca.engine.planning import SolveCost
from bigpca.engine.run import Run
from bigpca.estimators.linear.maps import projected, read_again
from bigpca.estimators.shared.fit import Fit
from bigpca.estimators.shared.results import Result
from bigpca.estimators.supervised.problems import Labelled, Problem, label_read
from bigpca.estimators.supervised.statistics import (
    KeptStatistics,
    LabelRead,
    LabelStatistics,
    Supervision,
    fold_labels,
)
from bigpca.passes.accumulators.thin_products import LeftProduct
from bigpca.records import of_part, stored
from bigpca.solvers.eigh import ENOUGH, eigh_bytes
from bigpca.solvers.moments import Scatter
from bigpca.solvers.roweis import Axes, Discriminants


@dataclass(frozen=True)
class SupervisedResult(Result):
    """The result of a read of labelled rows and a solve: the fitted attributes, and the statistics.

    Attributes
    ----------
    statistics : LabelStatistics
    supervision : Supervision
    axes : Axes
    refined : Scatter or None
        S_W of a second read.
    """

    statistics: LabelStatistics = stored(of=LabelStatistics)
    supervision: Supervision = stored(of=Supervision)
    axes: Axes = stored(of=Axes)
    refined: Scatter | None = stored(of=Scatter, default=None)

    @property
    def so_far(self) -> KeptStatistics:
        """The statistics, to which rows are added."""
        return KeptStatistics(self.statistics, self.supervision)

    components_ = of_part("axes", "components")
    eigenvalues_ = of_part("axes", "values")
    rank_ = of_part("axes", "rank")
    solve_error_ = property(lambda self: self.axes.error or None)
    mean_ = of_part("statistics", "mean")
    n_samples_ = of_part("statistics", "count")
    n_omitted_ = of_part("statistics", "omitted")
    sum_weights_ = of_part("statistics", "weight")
    n_effective_ = of_part("statistics", "n_effective")
    total_variance_ = property(lambda self: self.statistics.total_scatter / self.statistics.divisor)
    n_unlabelled_ = of_part("supervision", "unlabelled")
    missed_label_trace_ = of_part("supervision", "missed_label_trace")
    classes_ = of_part("supervision", "classes")

    @property
    def n_components_(self) -> int:
        """k."""
        return len(self.axes.values)

    @property
    def class_counts_(self) -> Integers | Vector | None:
        """Rows of each class (c,), or sums of their weights."""
        moments = self.statistics.moments
        if self.classes_ is None:
            return None
        return moments.counts.astype(np.int64) if moments.weight_sums is None else moments.counts

    @property
    def class_means_(self) -> Matrix | None:
        """Means of the classes (c, d)."""
        return None if self.classes_ is None else self.statistics.moments.means

    @cached_property
    def discriminants_(self) -> Discriminants | None:
        """Of a classifier, if R2 is the within-class scatter alone."""
        statistics, inverses = self.statistics, self.axes.inverses
        if inverses is None:
            return None
        with one_blas_thread():  # so that a loaded model has the bits of the one that was saved
            return Discriminants.of(inverses, statistics.deviations, statistics.mean, statistics.moments.counts)

    @property
    def coef_(self) -> Matrix | None:
        """Of the discriminant functions about the origin."""
        return None if self.discriminants_ is None else self.discriminants_.coefficients

    @property
    def intercept_(self) -> Vector | None:
        """Of the same functions."""
        return None if self.discriminants_ is None else self.discriminants_.intercepts

    @cached_property
    def explained_variance_ratio_(self) -> Vector | None:
        """Of a classifier: shares (k,) of the scatter between classes."""
        if self.discriminants_ is None:
            return None
        with one_blas_thread():
            return self.statistics.shares_between(self.components_, self.discriminants_.slopes)


@dataclass(frozen=True)
class LabelsFit(Fit[SupervisedResult]):
    """One read of labelled rows, and a (d, d) or thin solve.

    Attributes
    ----------
    name : str
        Of the estimator.
    labelled : Labelled
    whole : bool
        Whether the (d, d) scatter is kept.
    problem : Problem
    """

    reads: ClassVar[tuple[str, ...]] = ("labels", "again")
    depends_on: ClassVar[tuple[str, ...]] = ("labels.states",)

    name: str
    labelled: Labelled
    whole: bool
    problem: Problem

    @property
    def solver(self) -> str:
        return self.name

    @property
    def account(self) -> str:
        d = self.rows.n_columns
        what = f"and a {d} x {d} eigenproblem" if self.whole else "and a thin one"
        return f"one read of rows and labels, {what}{self.labelled.supervision.note}"

    @cached_property
    def labels(self) -> LabelRead:
        """The read of rows and labels."""
        return label_read(self.rows, self.labelled, whole=self.whole)

    def read(self, run: Run) -> KeptStatistics:
        """Read X."""
        return self.labelled.kept(fold_labels(run, self.labels))

    @cached_property
    def again(self) -> LabelRead | None:
        """The second read, if there may be one: where R2^-1 divides by the scatter, and rows can be read again."""
        problem, labelled = self.problem, self.labelled
        divides = problem.divides and labelled.beside is None
        rows = read_again(self.rows) if divides else None
        if rows is None:
            return None
        return label_read(rows, labelled, whole=self.whole, name="refined").repeated(0, 1)

    def solve_cost(self) -> SolveCost:
        d, state = self.rows.n_columns, self.labels.cost.state_bytes
        held = sum(template.V.nbytes for template in self.labels.states.values() if isinstance(template, LeftProduct))
        # A saved model: axes, statistics, and the classifier.
        k = self.problem.most_axes(self.labelled.rank, d)
        inverses = d * (self.labelled.n_classes + 1) if self.problem.classifies else 0
        return SolveCost(
            35.0 * d**3 if self.whole else 4.0 * state / 8,
            bytes=3 * state + 9 * 8 * d * d + eigh_bytes(d) if self.whole else 3 * state,
            held_bytes=held,
            output_bytes=8 * (k * d + k + inverses) + self.labelled.kept_bytes(d, whole=self.whole),
        )

    def run(self, run: Run) -> SupervisedResult:
        read, problem, refined = self.read(run), self.problem, None
        scatter = None if self.again is None else read.statistics.scatter
        if self.again is not None and scatter is not None and problem.error(scatter) > ENOUGH:
            # S_W again, in coordinates in which it is near the identity.
            frame = scatter.refined()
            z = fold_labels(run, replace(self.again, rows=projected(self.rows, read.statistics.mean, frame.T)))
            refined = scatter = replace(scatter, S=z.within, frame=frame)
        axes = problem.solve(read.statistics, scatter)
        return SupervisedResult(read.statistics, read.supervision, axes, refined=refined)
