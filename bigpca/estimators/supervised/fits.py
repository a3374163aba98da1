"""Fits of labelled rows in one read, whatever problem is solved from their statistics.

Roweis discriminant analysis without a d x d matrix: Rayleigh-Ritz on a block Krylov space of S_W. The choice of a
solver of a problem with labels: exact, or an iteration if that is far cheaper or alone fits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from bigpca.arrays import Integers, Matrix, Vector
from bigpca.blas import blas_threads, one_blas_thread
from bigpca.engine.planning import SolveCost
from bigpca.engine.run import Run
from bigpca.errors import warn_approximation
from bigpca.estimators.linear.maps import projected, read_again
from bigpca.estimators.shared.fit import Fit, Reading, first_that_fits
from bigpca.estimators.shared.results import Result
from bigpca.estimators.supervised.problems import Labelled, Problem, check_classes, reject_singular
from bigpca.estimators.supervised.statistics import (
    KeptStatistics,
    LabelRead,
    LabelStatistics,
    Supervision,
    fold_labels,
    label_statistics,
)
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.moments import WithinFactor, WithinProduct
from bigpca.passes.accumulators.thin_products import LeftProduct
from bigpca.passes.fold import Folded, Read
from bigpca.passes.reading.blocks import PRECISE
from bigpca.passes.rows import Rows
from bigpca.records import of_part, stored
from bigpca.seeds import normals
from bigpca.solvers.eigh import ENOUGH, eigh_bytes
from bigpca.solvers.moments import Scatter
from bigpca.solvers.roweis import Axes, Conditioning, Discriminants, RoweisFamily

EXTRA = 10  # random columns in addition to the requested axes, for the leading axes of S_W
TYPICAL_READS = 6
CHEAPER = 20.0  # "auto" iterates if the exact fit takes more than this many times the operations


@dataclass(frozen=True)
class SupervisedResult(Result):
    """The result of a read of labelled rows and a solve: the fitted attributes, and the statistics.

    Attributes
    ----------
    statistics : LabelStatistics
    supervision : Supervision
    axes : Axes
    n_passes_ : int or None
    converged_ : bool or None
        For an iteration: reads of X, and whether the tolerance was met.
    refined : Scatter or None
        S_W of a second read.
    """

    statistics: LabelStatistics = stored(of=LabelStatistics)
    supervision: Supervision = stored(of=Supervision)
    axes: Axes = stored(of=Axes)
    n_passes_: int | None = stored(of=int, least=0, default=None)
    converged_: bool | None = stored(of=bool, default=None)
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

    depends_on: ClassVar[tuple[str, ...]] = ("templates",)

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
    def labels(self) -> LabelRead:
        """The read of rows and labels."""
        dtype = PRECISE if self.whole else None
        return Read.of(self.rows, "labels", self.templates, label_statistics, dtype=dtype)

    def read(self, run: Run) -> KeptStatistics:
        """Read X."""
        return self.labelled.kept(fold_labels(run, self.labels))


@dataclass(frozen=True)
class LabelledFit(LabelledReading, Fit[SupervisedResult]):
    """A fit that begins with a read of labelled rows.

    Attributes
    ----------
    problem : Problem
    """

    problem: Problem

    price = of_part("plan", "flops")

    def output_bytes(self) -> int:
        """Return the bytes of a saved model: axes, statistics, and the classifier."""
        d, labelled = self.rows.n_columns, self.labelled
        k = self.problem.most_axes(labelled.rank, d)
        inverses = d * (labelled.n_classes + 1) if self.problem.classifies else 0
        return 8 * (k * d + k + inverses) + labelled.kept_bytes(d, whole=self.whole)


@dataclass(frozen=True)
class LabelsFit(LabelledFit):
    """One read of labelled rows, and a (d, d) or thin solve."""

    reads: ClassVar[tuple[str, ...]] = ("labels", "again")

    @property
    def account(self) -> str:
        d = self.rows.n_columns
        what = f"and a {d} x {d} eigenproblem" if self.whole else "and a thin one"
        return f"one read of rows and labels, {what}{self.labelled.supervision.note}"

    @cached_property
    def again(self) -> LabelRead | None:
        """The second read, if there may be one: where R2^-1 divides by the scatter, and rows can be read again."""
        problem, labelled = self.problem, self.labelled
        divides = problem.divides and labelled.beside is None
        rows = read_again(self.rows) if divides else None
        if rows is None:
            return None
        return Read.of(rows, "refined", self.templates, label_statistics, dtype=PRECISE).repeated(0, 1)

    def solve_cost(self) -> SolveCost:
        d, state = self.rows.n_columns, self.labels.cost.state_bytes
        held = sum(template.V.nbytes for template in self.templates.values() if isinstance(template, LeftProduct))
        return SolveCost(
            35.0 * d**3 if self.whole else 4.0 * state / 8,
            bytes=3 * state + 9 * 8 * d * d + eigh_bytes(d) if self.whole else 3 * state,
            held_bytes=held,
            output_bytes=self.output_bytes(),
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


@dataclass(frozen=True)
class KrylovRoweisFit(LabelledFit):
    """The iteration.

    One read for class means; then each read multiplies S_W by a new block, and the generalised eigenproblem is solved
    on the span of all blocks so far (Rayleigh-Ritz): eigenvalues grow towards the true ones. The first block spans the
    class means, the label features and some random directions, so that the space holds ``p(S_W) S_B`` for all
    polynomials p of a degree that grows by one with each read, which approximate ``R2^-1``.

    Attributes
    ----------
    problem : Problem
    k : int
        Number of requested axes.
    most : int
        Reads at most: ``max_passes``, or where that is None those that span the space, if their products fit in memory.
    """

    reads: ClassVar[tuple[str, ...]] = ("labels", "product")
    depends_on: ClassVar[tuple[str, ...]] = (
        "templates",
        "k",
        "problem.r1",
        "problem.r2",
        "added",
        "problem.normalize",
        "problem.tol",
        "most",
    )
    exact: ClassVar[bool] = False

    problem: Problem
    k: int
    most: int

    @classmethod
    def planned(cls, rows: Rows, name: str, labelled: Labelled, problem: Problem) -> KrylovRoweisFit:
        """Return the fit.

        Raises
        ------
        ValueError
            As :meth:`Problem.wanted`.
        """
        classes = labelled.supervision.classes
        k = problem.wanted(1 if classes is None else len(classes))
        fit = cls(rows, name, labelled, False, problem, k, problem.max_passes or 0)
        if problem.max_passes is not None:
            return fit
        # Without a limit: the reads whose blocks span the whole space, or the most of whose products fit in memory.
        whole = 2 * (-(-rows.n_columns // fit.width) + 2)
        granted = [whole, *(whole >> i for i in range(1, whole.bit_length()) if whole >> i >= TYPICAL_READS)]
        return first_that_fits([replace(fit, most=most) for most in granted])

    @property
    def price(self) -> float:
        return CHEAPER * self.plan.flops

    @property
    def solver(self) -> str:
        return f"{self.name} (krylov)"

    @property
    def account(self) -> str:
        return (
            f"{self.width} columns at a time until the eigenvalues change by less than {self.problem.tol:g}: "
            f"{TYPICAL_READS} reads are typical, at most {self.most} (max_passes)"
        )

    @property
    def added(self) -> float:
        """Multiple of I that is added to R2."""
        return float(self.problem.conditioning.regularization or 0.0)

    @property
    def width(self) -> int:
        """Columns of the first block; later blocks have at most as many."""
        labelled = self.labelled
        features = 0 if labelled.features is None else labelled.columns
        return min(self.rows.n_columns, self.k + EXTRA + labelled.n_classes + (self.problem.r2 == 1.0) + features)

    @cached_property
    def product(self) -> Read[Folded[WithinProduct]]:
        """One multiplication."""
        n, d, width, most = self.rows.n_rows, self.rows.n_columns, self.width, self.most - 1
        means, codes = np.broadcast_to(0.0, (self.labelled.n_classes, d)), self.labelled.codes[:0]
        block = WithinProduct(d, width, codes, WithinFactor(means, np.broadcast_to(0.0, (d, width))))
        # Basis and products, both copied as they grow, and the rotated basis: as large as the reads granted make them.
        columns = min(d, width * most)
        held = 8 * (d * (5 * columns + 6 * width) + 5 * columns**2)
        read = Read.into(self.rows, "within", block, work=4.0 * n * d * width * TYPICAL_READS)
        return read.costing(driver_bytes=held).repeated(min(TYPICAL_READS - 1, most), most)

    def solve_cost(self) -> SolveCost:
        return SolveCost(output_bytes=self.output_bytes())

    def run(self, run: Run) -> SupervisedResult:
        """Read X until the eigenvalues converge."""
        problem, codes = self.problem, self.labelled.codes
        read = self.read(run)
        statistics = read.statistics
        if problem.r2 == 1.0 and not self.added:
            reject_singular(statistics.count, statistics.n_classes, self.rows.n_columns)
        Q = first_block(statistics, self.k, problem.r2)
        basis, products = np.zeros((len(Q), 0)), np.zeros((len(Q), 0))
        values, converged, reads = np.zeros(0), False, 1
        while reads < self.most and Q.shape[1]:
            reads += 1
            template = WithinProduct(len(Q), Q.shape[1], codes, WithinFactor(statistics.moments.means, Q))
            Y = self.product.holding(template)(run).state.product  # one pass over X
            basis, products = np.hstack([basis, Q]), np.hstack([products, Y])
            with blas_threads(problem.threads, 20.0 * len(basis) * basis.shape[1] ** 2):
                family = family_in(basis, products, statistics, problem, self.added)
                found = family.solve(problem.r1, problem.r2, self.k).values
            if len(values) == len(found):
                converged = bool((np.abs(found - values) <= problem.tol * found).all())
            values = found
            if converged:
                break
            # Orthonormal columns that Y adds to the span of the basis; none if it adds nothing.
            Z = Y / max(float(np.linalg.norm(Y, 2)), np.finfo(float).tiny)
            for _ in range(2):
                Z = Z - basis @ (basis.T @ Z)
            U, s, _ = np.linalg.svd(Z, full_matrices=False)
            Q = np.ascontiguousarray(U[:, s > 1e-10][:, : len(basis) - basis.shape[1]])
        converged = converged or not Q.shape[1]  # the basis spans the whole Krylov space
        check_classes(statistics, problem.r1, problem.r2)
        axes = replace(problem, n_components=self.k, conditioning=Conditioning()).axes(family, statistics)
        axes = problem.certified(axes, family.within)
        if not converged:
            warn_approximation(
                f"the eigenvalues changed by more than tol = {problem.tol:g} in the last of {reads} reads; they are "
                f"lower bounds. Give a larger max_passes, r2 further from 1, or a regularization."
            )
        return SupervisedResult(statistics, read.supervision, axes, round(run.reads), converged)


def first_block(statistics: LabelStatistics, k: int, r2: float) -> Matrix:
    """Return orthonormal columns (d, l): class means, label features, a classifier's mean, random directions."""
    d = statistics.moments.n_features
    random = normals(0, "roweis-start", 0, k + EXTRA, d, np.float64)
    origin = statistics.mean[None] if r2 == 1.0 else np.zeros((0, d))  # a classifier requires R2^-1 mean
    parts = [statistics.between, statistics.psi if statistics.cross is not None else np.zeros((0, d)), origin, random]
    columns = [
        part.T / max(float(np.linalg.norm(part, 2)) if part.size else 1.0, np.finfo(float).tiny) for part in parts
    ]
    return orthonormal(np.hstack(columns)[:, :d] if d < sum(map(len, parts)) else np.hstack(columns))


def orthonormal(V: Matrix) -> Matrix:
    """Return orthonormal columns that span V, without directions of rounding."""
    U, s, _ = np.linalg.svd(V, full_matrices=False)
    return U[:, s > 1e-10 * s[0]] if s.size and s[0] > 0 else U[:, :0]


def family_in(
    basis: Matrix, products: Matrix, statistics: LabelStatistics, problem: Problem, added: float
) -> RoweisFamily:
    """Return the family on the span of the basis."""
    S = basis.T @ products
    d = statistics.moments.n_features
    within = float(statistics.moments.within.sum())
    traces = (float((statistics.psi**2).sum()), statistics.total_scatter, within)
    # Each matrix then has the trace of the identity, so that r1 and r2 weigh matrices of one size.
    scales = tuple(d / trace if problem.normalize and trace > 0 else 1.0 for trace in traces)
    noise = basis.T @ (statistics.noise[:, None] * basis)
    return RoweisFamily(
        Scatter.of((S + S.T) / 2, noise, statistics.precision, statistics.most_rank),
        statistics.between,
        statistics.psi,
        divisor=statistics.freedom if problem.r2 > 0 else None,
        threads=problem.threads,
        scales=scales,
        added=added,
        basis=basis,
        normalize=problem.normalize,
    )
