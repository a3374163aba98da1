"""Supervised fits under a kernel: on Nyström features, which are exact with all rows as landmarks, or by one sweep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.estimators.kernel.expansion import Expansion, kernel_identity, scored_evaluations
from bigpca.estimators.kernel.landmark_features import LandmarkFeatures, features_of, landmark_expansion, pass_dtype
from bigpca.estimators.kernel.landmarks_fit import NystromJob
from bigpca.estimators.kernel.spectrum import (
    KernelSettings,
    KernelSpectrum,
    closing_reads,
    held_share,
    hold_references,
    row_shift,
    training_expansion,
)
from bigpca.estimators.supervised.labels import KeptStatistics, Labelled
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.operators.kernel import KernelOperator
from bigpca.passes.accumulators.landmark_moments import LandmarkMap
from bigpca.passes.accumulators.on_features import OnFeatures
from bigpca.passes.engine.jobs import RunOptions
from bigpca.passes.engine.states import PassState
from bigpca.passes.fold import fold
from bigpca.passes.rows import RowInput
from bigpca.passes.sweeps import kernel_layout, sweep_bytes
from bigpca.planning import Plan, Resources, peak_bytes
from bigpca.solvers.roweis import Axes

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class FeatureRead:
    """What a supervised fit learned of landmarks and rows, before it is solved.

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
        """What these axes, in the space of the features, make a fit."""
        features, statistics, supervision = self.features, self.statistics, self.kept.supervision
        facts: dict[str, Any] = {"n_unlabelled": supervision.unlabelled} | supervision.facts
        if supervision.classes is not None:
            facts["classes"] = supervision.classes
        facts |= {"landmark_transform": features.transform, "rank": axes.rank}
        if features.indices is not None:
            facts["landmark_indices"] = features.indices
        return KernelSpectrum(
            statistics.count, statistics.omitted, axes.values, statistics.total_scatter,
            in_features(features, statistics, axes), self.evaluations, None, facts, self.kept,
        )  # fmt: skip


def read_features(
    rows: RowInput, features: LandmarkFeatures, labelled: Labelled, options: RunOptions, *, whole: bool, number: int
) -> FeatureRead:
    """Return the labelled statistics of the features of all rows: one read of X."""
    inner = labelled.templates(features.transform.shape[1], whole=whole)
    mapped = LandmarkMap(
        (features.kernel,), features.landmarks, (features.transform,), features.shift, features.indices
    )
    template = OnFeatures(rows.n_columns, mapped, inner)
    state, omitted = fold(  # one pass over X
        rows, {"features": template}, _take, name="labelled-features", number=number, options=options,
        shift=np.zeros(rows.n_columns), dtype=pass_dtype(rows, (features,)),
    )  # fmt: skip
    statistics = LabelStatistics(state.inner["classes"], state.inner.get("cross"), omitted)
    return FeatureRead(features, KeptStatistics(statistics, labelled.supervision), state.evaluations)


@dataclass(frozen=True)
class FeatureLabelJob:
    """A supervised fit on the features of landmarks, planned.

    Attributes
    ----------
    landmarks : NystromJob
        The choice of landmarks, and the plan of it and one pass.
    labelled : Labelled
    whole : bool
        Whether the scatter of features is kept whole.
    solve : callable
        From statistics of the features to axes in their space.
    """

    landmarks: NystromJob
    labelled: Labelled
    whole: bool
    solve: Callable[[LabelStatistics], Axes]

    @property
    def rows(self) -> RowInput:
        """X."""
        return self.landmarks.rows

    @property
    def plan(self) -> Plan:
        """Of landmarks, features and label features; the eigenproblem is as large."""
        plan, m = self.landmarks.plan, self.landmarks.count
        states = [part for name, part in self.labelled.templates(m, whole=self.whole).items() if name == "cross"]
        held = sum(3 * part.state_bytes + part.product_bytes for part in states)
        if plan.resources.local:
            held += self.labelled.nbytes // plan.resources.threads
        reason = plan.reason + self.labelled.supervision.note
        return replace(plan, peak_bytes=plan.peak_bytes + held, reason=reason)

    def describe(self) -> dict[str, Any]:
        """Fingerprint of the passes."""
        return self.landmarks.describe() | {"labels": self.labelled.describe(), "whole": self.whole}

    def read(self, options: RunOptions) -> FeatureRead:
        """Choose landmarks and read X once more."""
        job = self.landmarks
        shift = row_shift(self.rows)
        landmarks = job.select(shift, options)
        features = features_of(job.settings.kernel, landmarks, shift, job.precision, job.settings.threads)
        number = 1 + job.numbers(landmarks)
        found = read_features(self.rows, features, self.labelled, options, whole=self.whole, number=number)
        return replace(found, evaluations=found.evaluations + landmarks.evaluations)

    def run(self, options: RunOptions) -> KernelSpectrum:
        """Choose landmarks, read X once more, solve."""
        read = self.read(options)
        return read.fit(self.solve(read.statistics))


def _take(state: PassState) -> tuple[Any, int]:
    return state.parts["features"], int(state.omitted)


def in_features(features: LandmarkFeatures, statistics: LabelStatistics, axes: Axes) -> Expansion:
    """Return the scores ``U'(B - mean)`` as an expansion over the landmarks: ``k(x, L) T U - U'mean``."""
    return landmark_expansion(features, axes.components.T, statistics.mean)


@dataclass(frozen=True)
class DualLabelJob:
    """Kernel supervised PCA by its dual: one sweep over the kernel matrix with the label features, planned.

    ``(Delta'H K H Delta) v = s^2 v``, scores ``s^-1 v'Delta'H k(X, x)`` (SPCA paper, section 6.2). NOTE: they are divided
    by s, not by s^2.
    """

    rows: RowInput
    settings: KernelSettings
    plan: Plan
    labelled: Labelled
    wanted: Callable[[Axes], Axes]

    def describe(self) -> dict[str, Any]:
        """Fingerprint of the sweep."""
        return {
            "computes": "kernel label product", "input": self.rows.describe(), "kernel": kernel_identity(self.settings.kernel),
            "labels": self.labelled.describe(),
        }  # fmt: skip

    def run(self, options: RunOptions) -> KernelSpectrum:
        """Sweep and solve."""
        rows, settings = self.rows, self.settings
        operator = KernelOperator(rows, settings.kernel, options, shift=row_shift(rows), seed=settings.seed)
        delta = self.labelled.delta()
        delta -= delta.mean(axis=0)
        Y = operator.begin(delta).AB
        G = delta.T @ Y
        values, vectors = np.linalg.eigh((G + G.T) / 2)
        order = np.argsort(values)[::-1]
        values, vectors = values[order], vectors[:, order]
        eps = float(np.finfo(np.float64).eps)
        noise = eps * max(len(G) * values[0], float((delta**2).sum()) * operator.trace, 0.0)  # of sums of n products
        rank = int(np.count_nonzero(values > noise))
        axes = self.wanted(Axes(values[:rank], vectors[:, :rank].T, rank))
        s = np.sqrt(axes.values)
        scores = Y @ axes.components.T / s  # of the training rows
        signs = np.sign(scores[np.argmax(np.abs(scores), axis=0), np.arange(len(s))])
        coefficients = delta @ (axes.components.T * signs) / s
        references = hold_references(rows, settings.kernel, options, operator.number + 1)
        expansion = training_expansion(settings, operator.shift, operator.row_means, coefficients, references)
        evaluations = operator.evaluations + scored_evaluations(settings.kernel, rows.dtype, rows.n_rows)
        supervision = self.labelled.supervision
        facts: dict[str, Any] = {"n_unlabelled": supervision.unlabelled, "rank": rank} | supervision.facts
        if supervision.classes is not None:
            facts["classes"] = supervision.classes
        return KernelSpectrum(rows.n_rows, 0, axes.values, operator.trace, expansion, evaluations, None, facts)


def plan_dual(rows: RowInput, settings: KernelSettings, resources: Resources, columns: int) -> Plan:
    """Cost of one sweep with the label features."""
    n, d, kernel = rows.n_rows, rows.n_columns, settings.kernel
    layout = kernel_layout(rows, kernel)
    width = columns + 11  # probes and a constant
    reads = layout.sweep_reads + 1 + closing_reads(rows, kernel)
    read, working = sweep_bytes(rows, kernel, layout, width)
    state = 8 * n * width
    peak = peak_bytes(read, 0, working, state) + held_share(rows, kernel, resources)
    if resources.local:
        peak += 3 * 8 * n * columns // resources.threads
    return Plan(
        solver="dual",
        reason=f"one sweep over pairs of rows with {columns} label features",
        passes=round(reads, 2),
        bytes_read=int(reads * n * d * rows.dtype.itemsize),
        flops=layout.total_evaluations * (kernel.flops_per_entry(d) + 4.0 * width),
        tasks=2 * len(layout.panels.groups) + 1,
        state_bytes=state,
        block_rows=layout.tile_rows,
        peak_bytes=peak,
        output_bytes=8 * n * columns,
        resources=resources,
        evaluations=float(layout.total_evaluations + scored_evaluations(kernel, rows.dtype, n)),
        most_evaluations=settings.max_kernel_evaluations,
    )
