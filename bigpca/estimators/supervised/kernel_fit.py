"""Supervised fits with a kernel on Nyström features, which are exact if all rows are landmarks.

Kernel supervised PCA by its dual: one sweep over pairs of rows, exact for any number of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bigpca.arrays import Matrix
from bigpca.estimators.kernel.landmarks import (
    Choice,
    Growth,
    LandmarkFeatures,
    LandmarksFit,
    features_dtype,
    features_of,
    landmark_expansion,
    landmark_features,
    pass_dtype,
)
from bigpca.estimators.kernel.spectrum import (
    KernelSettings,
    KernelSpectrum,
    PairsFit,
    row_shift,
    training_expansion,
    warn_alike,
)
from bigpca.estimators.supervised.problems import Labelled, Problem, cut_axes
from bigpca.estimators.supervised.statistics import KeptStatistics, LabelStatistics, fold_labels
from bigpca.kernels.base import Kernel
from bigpca.operators.kernel import KernelOperator, product_pass
from bigpca.passes.accumulators.landmark_moments import LandmarkMap
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import row_pass
from bigpca.passes.rows import Rows
from bigpca.planning import PassCost, Resources, SolveCost
from bigpca.solvers.roweis import Axes

EXACT_ROWS = 2000  # up to which all rows are landmarks


@dataclass(frozen=True)
class FeatureRead:
    """The landmarks and statistics of a supervised fit, before the solve.

    Attributes
    ----------
    features : LandmarkFeatures
    kept : KeptStatistics
    evaluations : int
        Of the kernel.
    """

    features: LandmarkFeatures
    kept: KeptStatistics
    evaluations: int

    @property
    def statistics(self) -> LabelStatistics:
        """Of the features."""
        return self.kept.statistics

    def fit(self, axes: Axes) -> KernelSpectrum:
        """Return the result of the fit with these axes in the space of the features."""
        features, statistics, supervision = self.features, self.statistics, self.kept.supervision
        return KernelSpectrum(
            statistics.count,
            statistics.omitted,
            axes.values,
            statistics.total_scatter,
            landmark_expansion(features, axes.components.T, statistics.mean),
            self.evaluations,
            rank_=axes.rank,
            landmark_transform_=features.transform,
            landmark_indices_=features.indices,
            classes_=supervision.classes,
            n_unlabelled_=supervision.unlabelled,
            missed_label_trace_=supervision.missed_label_trace,
            state=self.kept,
            weight_sums=statistics.moments.weight_sums,
        )


def labelled_features_pass(rows: Rows, kernel: Kernel, labelled: Labelled, m: int, *, whole: bool) -> PassCost:
    """Declare one read of X that maps rows to the features of m landmarks, and accumulates labelled statistics."""
    d = rows.n_columns
    mapped = LandmarkMap(
        (kernel,), np.broadcast_to(np.float32(0), (m, d)), (np.broadcast_to(0.0, (m, m)),), np.zeros(d)
    )
    cost = row_pass(
        rows.mapped(mapped.step),
        "labelled-features",
        labelled.templates(m, whole=whole).values(),
        dtype=features_dtype(rows, kernel, m),
        refinable=True,
    )
    return replace(cost, evaluations=float(rows.n_rows) * m)


def read_features(
    run: Run, cost: PassCost, rows: Rows, features: LandmarkFeatures, labelled: Labelled, *, whole: bool
) -> FeatureRead:
    """Return the labelled statistics of the features of all rows: the read of :func:`labelled_features_pass`."""
    inner = labelled.templates(features.transform.shape[1], whole=whole)
    mapped = LandmarkMap(
        (features.kernel,), features.landmarks, (features.transform,), features.shift, features.indices
    )
    exact = replace(cost, dtype=pass_dtype(rows, (features,)))
    statistics = fold_labels(run, exact, rows.mapped(mapped.step), inner)  # one pass over X
    run.add_evaluations((rows.n_rows - statistics.omitted) * len(features.landmarks))
    return FeatureRead(features, labelled.kept(statistics), run.evaluations)


@dataclass(frozen=True)
class FeatureLabelFit(LandmarksFit):
    """A supervised fit on the features of landmarks.

    Attributes
    ----------
    labelled : Labelled
    problem : Problem
        Solved in the space of the features.
    """

    labelled: Labelled
    problem: Problem

    @classmethod
    def of(
        cls,
        rows: Rows,
        resources: Resources,
        settings: KernelSettings,
        labelled: Labelled,
        problem: Problem,
        *,
        n_landmarks: int | None,
        sampling: str | ArrayLike,
    ) -> FeatureLabelFit:
        """Return the fit: all rows are landmarks up to 2,000, unless a number or the landmarks are given.

        Raises
        ------
        ValueError
            For a kernel without features, and for more landmarks than rows.
        """
        n = rows.n_rows
        if not settings.kernel.positive_semidefinite:
            raise ValueError(
                f"{settings.kernel} is not positive semi-definite, so it has no features to learn axes in. Use a "
                f"kernel that is."
            )
        choice = Choice.of(n_landmarks, sampling, n, 1000 if n > EXACT_ROWS else n)
        # All rows as landmarks need no draw: they are named by number, without rows of weight 0, which do not count.
        if choice.count == n and isinstance(sampling, str):
            all_rows = np.arange(n) if rows.weights is None else np.flatnonzero(rows.weights)
            choice = Choice(len(all_rows), all_rows)
        return cls(rows, resources, settings, choice, labelled, problem)

    @property
    def whole(self) -> bool:
        """Whether the scatter of features is kept whole."""
        return self.problem.whole

    @property
    def account(self) -> str:
        return f"{self.choice.count} landmarks, features of all rows{self.labelled.supervision.note}"

    @cached_property
    def features(self) -> PassCost:
        """The read of the features."""
        kernel, m = self.settings.kernel, self.choice.count
        return labelled_features_pass(self.rows, kernel, self.labelled, m, whole=self.whole)

    def passes(self) -> tuple[PassCost, ...]:
        return (*self.choosing_passes(), self.features, *self.regression)

    def solve_cost(self) -> SolveCost:
        return replace(super().solve_cost(), held_bytes=self.labelled.nbytes)

    @property
    def most_axes(self) -> int:
        return self.problem.most_axes(self.labelled.rank, self.choice.count)

    @property
    def output_bytes(self) -> int:
        kept = self.labelled.kept_bytes(self.choice.count, whole=self.whole)
        return super().output_bytes + kept

    def identity(self) -> dict[str, object]:
        return super().identity() | {"labels": self.labelled.describe(), "whole": self.whole}

    def read(self, run: Run) -> FeatureRead:
        """Choose landmarks and read X once more."""
        landmarks, shift = self.choose(run)
        features = features_of(self.settings.kernel, landmarks, shift, self.precision, self.settings.threads)
        return read_features(run, self.features, self.rows, features, self.labelled, whole=self.whole)

    def spectrum(self, run: Run) -> KernelSpectrum:
        """Choose landmarks, read X once more, solve."""
        read = self.read(run)
        axes, statistics = self.problem.solve(read.statistics), read.statistics
        trace = statistics.total_scatter
        rounding = read.features.rounding(
            trace + statistics.weight * float(statistics.mean @ statistics.mean), statistics.precision
        )
        if rounding >= trace:
            warn_alike(np.array([trace]), rounding, "trace")
        return read.fit(axes)


@dataclass(frozen=True)
class LabelledGrowth(Growth):
    """The read of the labelled statistics of added rows.

    Attributes
    ----------
    labelled : Labelled
    problem : Problem
    whole : bool
        Whether the previous fit kept the scatter whole.
    """

    labelled: Labelled
    problem: Problem
    whole: bool

    @cached_property
    def read_of_features(self) -> PassCost:
        m = len(self.features.landmarks)
        return labelled_features_pass(self.rows, self.settings.kernel, self.labelled, m, whole=self.whole)

    def solve_cost(self) -> SolveCost:
        return replace(super().solve_cost(), held_bytes=self.labelled.nbytes)

    def identity(self) -> dict[str, object]:
        return super().identity() | {"labels": self.labelled.describe()}

    def read(self, run: Run, latest: KernelSpectrum) -> KernelSpectrum:
        cost, old = self.read_of_features, kept_labels(latest)
        new = read_features(run, cost, self.rows, self.features, self.labelled, whole=self.whole)
        kept, evaluations = old.merge(new.kept), latest.kernel_evaluations_ + new.evaluations
        return replace(
            latest, n_samples_=kept.n_samples_, n_omitted_=kept.n_omitted_, state=kept, kernel_evaluations_=evaluations
        )


def solve_labels(grown: KernelSpectrum, problem: Problem) -> KernelSpectrum:
    """Return the fit to all rows, from their statistics."""
    read = FeatureRead(landmark_features(grown), kept_labels(grown), grown.kernel_evaluations_)
    return read.fit(problem.solve(read.statistics))


def kept_labels(found: KernelSpectrum) -> KeptStatistics:
    """Return the statistics that a fit kept."""
    if not isinstance(found.state, KeptStatistics):
        raise TypeError(f"the fit keeps {type(found.state).__name__}, where statistics of labels were expected")
    return found.state


@dataclass(frozen=True)
class DualFit(PairsFit):
    """Kernel supervised PCA by its dual: one sweep over the kernel matrix with the label features.

    ``(Delta'H K H Delta) v = s^2 v``, scores ``s^-1 v'Delta'H k(X, x)`` (SPCA paper, section 6.2). NOTE: they are
    divided by s, not by s^2.

    Attributes
    ----------
    labelled : Labelled
    """

    solver: ClassVar[str] = "dual"

    labelled: Labelled

    @property
    def account(self) -> str:
        columns, note = self.labelled.columns, self.labelled.supervision.note
        return f"one sweep over pairs of rows with {columns} label features{note}"

    @cached_property
    def sweep(self) -> PassCost:
        """The sweep."""
        columns = self.labelled.columns
        held = 3 * 8 * self.rows.n_rows * columns
        return product_pass(self.rows, self.settings.kernel, columns, driver_bytes=held)

    def solve_cost(self) -> SolveCost:
        given, rank = self.settings.n_components, self.labelled.rank
        k = rank if given is None else min(rank, int(given))  # type: ignore[arg-type]
        return self.cost_of(k)

    def identity(self) -> dict[str, object]:
        return self.compared | {"computes": "kernel label product", "labels": self.labelled.describe()}

    def multiply(self, run: Run) -> tuple[KernelOperator, Matrix, Matrix]:
        """Return the operator, the centred label features (n, m), and its product with them: one sweep."""
        rows, settings = self.rows, self.settings
        shift = row_shift(run, rows)
        operator = KernelOperator(rows, settings.kernel, run, self.sweep, shift=shift, seed=settings.seed)
        delta = self.labelled.delta()
        delta -= delta.mean(axis=0)
        return operator, delta, operator.begin(delta).AB

    def spectrum(self, run: Run) -> KernelSpectrum:
        rows, settings = self.rows, self.settings
        operator, delta, Y = self.multiply(run)
        G = delta.T @ Y
        values, vectors = np.linalg.eigh((G + G.T) / 2)
        order = np.argsort(values)[::-1]
        values, vectors = values[order], vectors[:, order]
        # What rounding leaves of an eigenvalue: that of the solver, and that of the entries of K in their precision.
        longest = float(np.linalg.eigvalsh(delta.T @ delta)[-1])
        entries = operator.tile_rounding
        if not settings.kernel.needs_rows:
            # Labels do not depend on how a stored matrix was rounded: of c label features, such errors add up to those
            # of about 2 sqrt(c) entries, each eps |K|_F / 2n, and not to |E|_F.
            entries *= 2 * len(G) ** 0.5 / rows.n_rows
        noise = max(len(G) * float(np.finfo(np.float64).eps) * values[0], entries * longest)
        rank = int(np.count_nonzero(values > noise))
        axes = cut_axes(Axes(values[:rank], vectors[:, :rank].T, rank), settings.n_components, "Delta'H K H Delta")
        warn_alike(np.array([operator.norm]), operator.tile_rounding, "Frobenius norm")
        s = np.sqrt(axes.values)
        scores = Y @ axes.components.T / s  # of the training rows
        signs = np.sign(scores[np.argmax(np.abs(scores), axis=0), np.arange(len(s))])
        coefficients = delta @ (axes.components.T * signs) / s
        expansion = training_expansion(run, rows, settings, operator.shift, operator.row_means, coefficients)
        supervision = self.labelled.supervision
        return KernelSpectrum(
            rows.n_rows,
            0,
            axes.values,
            operator.trace,
            expansion,
            run.evaluations,
            rank_=rank,
            classes_=supervision.classes,
            n_unlabelled_=supervision.unlabelled,
            missed_label_trace_=supervision.missed_label_trace,
        )
