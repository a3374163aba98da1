"""Fits by landmarks: the choice of landmarks, the fit on their features, and the cost of rows added later."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bigpca.costs import PassCost, SolveCost
from bigpca.estimators.kernel.expansion import Expansion, kernel_identity
from bigpca.estimators.kernel.files import expansion_bytes
from bigpca.estimators.kernel.landmark_features import (
    LandmarkFeatures,
    features_dtype,
    features_of,
    features_pass,
    fold_features,
    solve_features,
    tutorial_spectrum,
)
from bigpca.estimators.kernel.spectrum import (
    KernelFit,
    KernelReading,
    KernelSettings,
    KernelSpectrum,
    row_shift,
    row_shift_pass,
    warn_alike,
)
from bigpca.estimators.shared.inputs import Input
from bigpca.kernels.base import Kernel
from bigpca.landmarks import LandmarkRequest, Landmarks, compared_rows, landmark_passes, select_landmarks
from bigpca.landmarks.given import landmark_values
from bigpca.passes.accumulators.landmark_moments import LandmarkMoments
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.rows import RowInput
from bigpca.solvers.components import needs_full_spectrum
from bigpca.triangles import packed_size

FLOAT64 = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Choice:
    """How a fit will choose its landmarks.

    Attributes
    ----------
    count : int
    sampling : str, or ndarray
    rounds : int
    """

    count: int
    sampling: Input
    rounds: int

    @property
    def name(self) -> str:
        """Name of the sampling."""
        return self.sampling if isinstance(self.sampling, str) else "given"

    def request(self, rows: RowInput, settings: KernelSettings) -> LandmarkRequest:
        """Return the request for the landmarks, without the run."""
        return LandmarkRequest(
            rows, settings.kernel, self.count, settings.seed, threads=settings.threads, rounds=self.rounds
        )

    def identity(self) -> dict[str, object]:
        """Return the identity of the choice, for fingerprints."""
        sampling = self.sampling if isinstance(self.sampling, str) else landmark_values(self.sampling).tolist()
        return {"count": self.count, "sampling": sampling, "rounds": self.rounds}


@dataclass(frozen=True)
class LandmarksFit(KernelFit):
    """A fit that begins with the choice of landmarks.

    Attributes
    ----------
    choice : Choice
    """

    choice: Choice

    @property
    def solver(self) -> str:
        """Name of the solver, with the sampling."""
        return f"landmarks ({self.choice.name})"

    def choosing_passes(self) -> tuple[PassCost, ...]:
        """Declare the reads that choose the landmarks."""
        rows = self.rows
        chosen = landmark_passes(self.choice.sampling, self.choice.request(rows, self.settings))
        return (row_shift_pass(rows), *chosen)

    def choose(self, run: Run) -> tuple[Landmarks, NDArray[np.float64]]:
        """Choose the landmarks, and return them with the shift."""
        shift = row_shift(run, self.rows)
        request = replace(self.choice.request(self.rows, self.settings), run=run, shift=shift)
        return select_landmarks(self.choice.sampling, request), shift

    @property
    def precision(self) -> float:
        """eps of the features."""
        return float(np.finfo(features_dtype(self.rows, self.settings.kernel, self.choice.count)).eps)

    def solve_cost(self) -> SolveCost:
        m = self.choice.count
        request = self.choice.request(self.rows, self.settings)
        compared = compared_rows(self.choice.sampling, request)
        between = (m * m + compared**2) * self.settings.kernel.flops_per_entry(self.rows.n_columns)
        return SolveCost(14.0 * m**3, between, 8 * 6 * max(m, compared) ** 2, output_bytes=self.output_bytes)

    @property
    def most_axes(self) -> int:
        """Maximum number of axes of the model."""
        m, given = self.choice.count, self.settings.n_components
        return m if given is None or needs_full_spectrum(given) else min(int(given), m)  # type: ignore[arg-type]

    @property
    def output_bytes(self) -> int:
        """Bytes of the expansion over landmarks, and of the map to their features."""
        m, k = self.choice.count, self.most_axes
        sampling = self.choice.sampling
        numbered = sampling != "kmeans" if isinstance(sampling, str) else np.ndim(sampling) == 1
        return expansion_bytes(self.rows, self.settings.kernel, k, m) + 8 * (m * m + (m if numbered else 0))

    def identity(self) -> dict[str, object]:
        return {
            "computes": "landmarks", "input": self.rows.describe(), "kernel": kernel_identity(self.settings.kernel),
            "seed": self.settings.seed, **self.choice.identity(),
        }  # fmt: skip


@dataclass(frozen=True)
class NystromFit(LandmarksFit):
    """Landmarks, and the moments of the features of all rows under one kernel or several.

    Attributes
    ----------
    kernels : tuple of Kernel
        Kernels of the features; empty for the tutorial's extension, which makes no further read.
    """

    kernels: tuple[Kernel, ...]

    @property
    def account(self) -> str:
        return f"{self.choice.count} landmarks, " + (
            "features of all rows" if self.kernels else "no pass beyond their choice"
        )

    @cached_property
    def features(self) -> PassPlan:
        """The read of the features."""
        return features_pass(self.rows, self.kernels, self.choice.count)

    def passes(self) -> tuple[PassCost, ...]:
        return (*self.choosing_passes(), *((self.features,) if self.kernels else ()))

    @property
    def output_bytes(self) -> int:
        if not self.kernels:
            return super().output_bytes
        m, k = self.choice.count, self.most_axes
        return super().output_bytes + 8 * (2 * k + 2) + 8 * (5 + m + packed_size(m))

    def run(self, run: Run) -> KernelSpectrum:
        """Choose landmarks, and read X once more."""
        if self.kernels:
            return self.run_widths(run)[0]
        landmarks, shift = self.choose(run)
        features = features_of(self.settings.kernel, landmarks, shift, FLOAT64, self.settings.threads)
        found = tutorial_spectrum(run, self.rows.n_rows, features, self.settings)
        return _with_landmarks(run, found, landmarks, features)

    def run_widths(self, run: Run) -> list[KernelSpectrum]:
        """Fit with every kernel, on shared landmarks, from one read after their choice."""
        landmarks, shift = self.choose(run)
        before = run.evaluations
        threads = self.settings.threads
        features = tuple(features_of(kernel, landmarks, shift, self.precision, threads) for kernel in self.kernels)
        found = fold_features(run, self.features, self.rows, features)
        spectra = []
        for which, own in enumerate(features):
            state = _single(found.state, which)
            settings = replace(self.settings, kernel=own.kernel)
            spectrum = solve_features(state, 0, own, settings, omitted=found.omitted)
            if spectrum.certificate is not None and spectrum.certificate.eigenvalue_bounds[0, 0] <= 0:
                warn_alike(spectrum.eigenvalues, float(spectrum.certificate.eigenvalue_bounds[0, 1]))
            spectrum = replace(spectrum, state=state, evaluations=before + state.evaluations)
            spectra.append(_with_landmarks(run, spectrum, landmarks, own))
        return spectra


def _single(state: LandmarkMoments, which: int) -> LandmarkMoments:
    """Return the moments of one of the kernels."""
    count = len(state.moments)
    if count == 1:
        return state
    return replace(
        state, moments=(state.moments[which],), diagonals=state.diagonals[which : which + 1],
        residuals=state.residuals[which : which + 1], evaluations=state.evaluations // count,
    )  # fmt: skip


@dataclass(frozen=True)
class Grown:
    """A fit to which rows were added.

    Attributes
    ----------
    found : KernelSpectrum
        With the statistics of all rows; the other values are those of the previous fit.
    solve : callable
        Returns the fit to all rows.
    """

    found: KernelSpectrum
    solve: Callable[[], KernelSpectrum]


@dataclass(frozen=True)
class Growth(KernelReading):
    """Added rows, with the landmarks of the fit: one read, into moments or statistics of labels.

    Attributes
    ----------
    features : LandmarkFeatures
    """

    features: LandmarkFeatures

    @property
    def solver(self) -> str:
        return "landmarks (given)"

    @property
    def account(self) -> str:
        return f"features of new rows by {len(self.features.landmarks)} landmarks"

    def weighted(self, weights: object) -> Self:
        """Return the read of the same rows with weights.

        Raises
        ------
        TypeError, ValueError
            If the weights are invalid, or not used by the statistics that the model keeps.
        """
        return replace(self, rows=self.rows.weighted(weights))

    @property
    @abstractmethod
    def read_of_features(self) -> PassPlan:
        """The read."""

    @abstractmethod
    def read(self, run: Run, latest: KernelSpectrum) -> Grown:
        """Read the new rows, and merge them with the latest fit."""

    def passes(self) -> tuple[PassCost, ...]:
        return (self.read_of_features,)

    def solve_cost(self) -> SolveCost:
        m = len(self.features.landmarks)
        return SolveCost(14.0 * m**3, bytes=8 * 6 * m**2)

    def identity(self) -> dict[str, object]:
        return {"computes": "growth", "input": self.rows.describe(), "kernel": kernel_identity(self.settings.kernel)}


@dataclass(frozen=True)
class MomentsGrowth(Growth):
    """The read of the moments of added rows."""

    @cached_property
    def read_of_features(self) -> PassPlan:
        return features_pass(self.rows, (self.settings.kernel,), len(self.features.landmarks))

    def read(self, run: Run, latest: KernelSpectrum) -> Grown:
        new = fold_features(run, self.read_of_features, self.rows, (self.features,))
        if not isinstance(latest.state, LandmarkMoments):
            raise TypeError(f"the fit keeps {type(latest.state).__name__}, where moments of features were expected")
        state = latest.state.merge(new.state)
        grown = replace(
            latest, state=state, omitted=latest.omitted + new.omitted,
            evaluations=latest.evaluations + new.state.evaluations,
        )  # fmt: skip
        return Grown(grown, partial(_solve_grown, grown, state, self.features, self.settings))


def _solve_grown(
    grown: KernelSpectrum, state: LandmarkMoments, features: LandmarkFeatures, settings: KernelSettings
) -> KernelSpectrum:
    found = solve_features(state, 0, features, settings, omitted=grown.omitted)
    return replace(
        found, state=state, evaluations=grown.evaluations, landmark_transform=grown.landmark_transform,
        landmark_indices=grown.landmark_indices,
    )  # fmt: skip


def _with_landmarks(
    run: Run, found: KernelSpectrum, landmarks: Landmarks, features: LandmarkFeatures
) -> KernelSpectrum:
    """Return the result of the fit with the attributes of its landmarks."""
    certificate = found.certificate
    if certificate is not None:
        certificate = replace(certificate, n_passes=run.reads)
    return replace(
        found, landmark_transform=features.transform, landmark_indices=landmarks.indices, certificate=certificate
    )


def landmark_features(found: KernelSpectrum) -> LandmarkFeatures:
    """Return the feature map of a fit by landmarks."""
    expansion = found.expansion
    if not isinstance(expansion, Expansion) or expansion.references.rows is None:
        raise TypeError("the fit is not an expansion over landmarks in memory")
    return LandmarkFeatures(
        expansion.kernel, expansion.references.rows, np.asarray(found.landmark_transform), expansion.shift,
        expansion.references.indices,
    )  # fmt: skip
