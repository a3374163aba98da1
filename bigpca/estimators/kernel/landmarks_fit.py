"""One fit by landmarks, planned: which rows stand for all, what that costs, and what more rows cost later."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.estimators.kernel.expansion import kernel_identity
from bigpca.estimators.kernel.landmark_features import (
    LandmarkFeatures,
    features_dtype,
    features_of,
    fold_features,
    solve_features,
    tutorial_spectrum,
)
from bigpca.estimators.kernel.spectrum import KernelSettings, KernelSpectrum, first_share, row_shift
from bigpca.estimators.linear.covariance_fit import fold_memory
from bigpca.kernels.base import Kernel
from bigpca.landmarks import KMEANS_READS, LandmarkRequest, Landmarks, select_landmarks
from bigpca.landmarks.given import landmark_values
from bigpca.operators.kernel import kernel_row_squares
from bigpca.passes.accumulators.landmark_moments import LandmarkMap, LandmarkMoments
from bigpca.passes.engine.jobs import RunOptions
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.rows import RowInput
from bigpca.passes.sweeps import kernel_layout
from bigpca.planning import Plan, Resources
from bigpca.triangles import packed_size

FLOAT64 = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class NystromJob:
    """One fit by landmarks, planned.

    Attributes
    ----------
    rows : RowInput
    settings : KernelSettings
    plan : Plan
    count : int
        Landmarks wanted.
    sampling : str, or ndarray
    rounds : int
    extension : {"features", "tutorial"}
    """

    rows: RowInput
    settings: KernelSettings
    plan: Plan
    count: int
    sampling: Any
    rounds: int
    extension: str

    def run(self, options: RunOptions) -> KernelSpectrum:
        """Choose landmarks, and read X once more."""
        shift = row_shift(self.rows)
        landmarks = self.select(shift, options)
        number = 1 + self.numbers(landmarks)
        if self.extension == "tutorial":
            features = features_of(self.settings.kernel, landmarks, shift, FLOAT64, self.settings.threads)
            found = tutorial_spectrum(self.rows.n_rows, features, self.settings, landmarks.evaluations)
        else:
            features = features_of(self.settings.kernel, landmarks, shift, self.precision, self.settings.threads)
            state, omitted = fold_features(self.rows, (features,), options, number)
            found = solve_features(state, 0, features, self.settings, omitted=omitted)
            found = replace(found, state=state, evaluations=found.evaluations + landmarks.evaluations)
        passes = landmarks.passes + (self.extension == "features") + before_landmarks(self.rows)
        return with_landmarks(found, landmarks, features, passes)

    def select(self, shift: NDArray[np.float64], options: RunOptions) -> Landmarks:
        """Choose the landmarks."""
        kernel, seed = self.settings.kernel, self.settings.seed
        request = LandmarkRequest(
            self.rows, kernel, self.count, seed, shift, options, 1, self.settings.threads, self.rounds
        )
        return select_landmarks(
            self.sampling, request, partial(kernel_row_squares, self.rows, kernel, options, shift=shift, number=9)
        )

    @staticmethod
    def numbers(landmarks: Landmarks) -> int:
        """How many numbered passes a choice can take."""
        return int(landmarks.passes) + 10

    @property
    def precision(self) -> float:
        """eps of the features."""
        return float(np.finfo(features_dtype(self.rows, self.settings.kernel, self.count)).eps)

    def describe(self) -> dict[str, Any]:
        """Fingerprint of the passes."""
        sampling = self.sampling if isinstance(self.sampling, str) else landmark_values(self.sampling).tolist()
        return {
            "computes": "landmarks", "input": self.rows.describe(), "kernel": kernel_identity(self.settings.kernel),
            "count": self.count, "sampling": sampling, "rounds": self.rounds, "seed": self.settings.seed,
        }  # fmt: skip


def before_landmarks(rows: RowInput) -> float:
    """Return the passes before the choice of landmarks: rows of unknown number are counted, the first ones give the shift."""
    return rows.counted + first_share(rows)


def with_landmarks(
    found: KernelSpectrum, landmarks: Landmarks, features: LandmarkFeatures, passes: float
) -> KernelSpectrum:
    """Add what is known of the landmarks to what the fit brings."""
    facts = found.facts | {"landmark_transform": features.transform}
    if landmarks.indices is not None:
        facts["landmark_indices"] = landmarks.indices
    certificate = found.certificate
    if certificate is not None:
        certificate = replace(certificate, n_passes=passes)
    return replace(found, facts=facts, certificate=certificate)


def landmark_features(found: KernelSpectrum) -> LandmarkFeatures:
    """Return the features that a fit by landmarks maps rows to."""
    expansion: Any = found.expansion
    return LandmarkFeatures(
        expansion.kernel, expansion.references.rows, found.facts["landmark_transform"], expansion.shift,
        expansion.references.indices,
    )  # fmt: skip


def plan_nystrom(
    rows: RowInput, settings: KernelSettings, resources: Resources, m: int, sampling: Any, rounds: int, extension: str
) -> Plan:
    """Cost of choosing m landmarks, and of one pass of features."""
    n, d, kernel = rows.n_rows, rows.n_columns, settings.kernel
    named = sampling if isinstance(sampling, str) else "given"
    counted = {"rpcholesky": n * m * rounds / 2, "column-norm": n * n / 2, "leverage": n * m, "diagonal": n}
    evaluations = counted.get(named, 0)
    passes, most = choosing_reads(rows, kernel, sampling, min(rounds, m))
    one_pass = n * m * (extension == "features")
    features = LandmarkMap(
        (kernel,), np.broadcast_to(np.float32(0), (m, d)), (np.broadcast_to(0.0, (m, m)),), np.zeros(d)
    )
    template = LandmarkMoments.of(d, features)
    flops = (evaluations + one_pass) * (kernel.flops_per_entry(d) + 2.0 * m) + one_pass * m
    candidates = 2 * -(-m // max(1, rounds)) if named == "rpcholesky" else m * (16 if named == "leverage" else 1)
    state = max(template.state_bytes, candidates * d * 8)
    peak, block_rows, groups = fold_memory(rows, state, template.product_bytes, flops)
    solve = 8 * 6 * max(m, candidates) ** 2
    if resources.local:
        peak = max(peak, solve // resources.threads)
    others = (extension == "features") + before_landmarks(rows)
    passes, most = passes + others, most + others
    return Plan(
        solver=f"landmarks ({named})",
        reason=f"{m} landmarks, " + ("features of all rows" if one_pass else "no pass beyond their choice"),
        passes=round(passes, 2),
        bytes_read=int(passes * n * d * rows.dtype.itemsize),
        flops=flops + 14.0 * m**3,
        tasks=int(passes) * (2 * groups + 1),
        state_bytes=state,
        block_rows=block_rows,
        peak_bytes=peak,
        output_bytes=8 * m * (d + 64) + 8 * packed_size(m),
        resources=resources,
        evaluations=float(evaluations + one_pass),
        most_evaluations=settings.max_kernel_evaluations,
        most_passes=round(most, 2) if most > passes else None,
    )


def choosing_reads(rows: RowInput, kernel: Kernel, sampling: Any, rounds: int) -> tuple[float, float]:
    """Return the reads of X that a choice of landmarks takes: typically, and at most."""
    if not isinstance(sampling, str):
        return (0.0, 0.0) if np.ndim(sampling) == 2 else (1.0, 1.0)
    if sampling == "kmeans":
        return KMEANS_READS
    if sampling == "rpcholesky":
        return float(rounds), float(rounds + (rounds > 1))  # one more where rounds accepted too few
    reads = {"column-norm": 1 + kernel_layout(rows, kernel).sweep_reads, "leverage": 2.0}.get(sampling, 1.0)
    return reads, reads


def plan_growth(
    rows: RowInput, settings: KernelSettings, features: LandmarkFeatures, memory_limit: int | str | None
) -> Plan:
    """Cost of reading more rows by landmarks that are chosen already.

    Raises
    ------
    MemoryBudgetError, EvaluationBudgetError
        Where that does not fit.
    """
    resources = find_resources(memory_limit, in_process=rows.in_process)
    plan = plan_nystrom(rows, settings, resources, len(features.landmarks), features.landmarks, 1, "features")
    plan.check()
    return replace(plan, passes=1.0, most_passes=None, bytes_read=rows.n_rows * rows.n_columns * rows.dtype.itemsize)
