"""The result of a fit of labelled rows, whatever problem is solved from their sums."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from bigpca.arrays import Integers, Matrix, Vector
from bigpca.blas import one_blas_thread
from bigpca.estimators.shared.results import SummedRows
from bigpca.estimators.supervised.statistics import KeptLabels, LabelStatistics, Supervision, held_statistics
from bigpca.records import of_part, stored
from bigpca.solvers.moments import Scatter
from bigpca.solvers.roweis import Axes, Discriminants


@dataclass(frozen=True, kw_only=True)
class SupervisedResult(SummedRows):
    """The result of a read of labelled rows and a solve: the fitted attributes, and the statistics.

    Attributes
    ----------
    state : LabelStatistics
    supervision : Supervision
    axes : Axes
    refined : Scatter or None
        S_W of a second read.
    """

    state: LabelStatistics = stored(of=held_statistics)
    supervision: Supervision = stored(of=Supervision)
    axes: Axes = stored(of=Axes)
    refined: Scatter | None = stored(of=Scatter, default=None)

    @property
    def so_far(self) -> KeptLabels:
        """The statistics, to which rows are added."""
        return KeptLabels(
            state=self.state, n_omitted_=self.n_omitted_, roundings=self.roundings, supervision=self.supervision
        )

    def checked(self) -> Self:
        """Return itself; raises ValueError for statistics of other rows, labels or axes."""
        self.so_far.checked()
        # C^-1 times the deviation of each class mean, and times the mean of all.
        c, inverses = len(self.state.moments.counts), self.axes.inverses
        if inverses is not None and len(inverses) != c + 1:
            raise ValueError(f"it has inverses of shape {inverses.shape} for {c} classes")
        return super().checked()

    components_ = of_part("axes", "components")
    eigenvalues_ = of_part("axes", "values")
    rank_ = of_part("axes", "rank")
    solve_error_ = property(lambda self: self.axes.error or None)
    mean_ = of_part("state", "mean")
    total_variance_ = property(lambda self: self.state.total_scatter / self.state.divisor)
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
        moments = self.state.moments
        if self.classes_ is None:
            return None
        return moments.counts.astype(np.int64) if moments.weight_sums is None else moments.counts

    @property
    def class_means_(self) -> Matrix | None:
        """Means of the classes (c, d)."""
        return None if self.classes_ is None else self.state.moments.means

    @cached_property
    def discriminants_(self) -> Discriminants | None:
        """Of a classifier, if R2 is the within-class scatter alone."""
        statistics, inverses = self.state, self.axes.inverses
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
            return self.state.shares_between(self.components_, self.discriminants_.slopes)
