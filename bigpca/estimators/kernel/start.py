"""The start of an iteration on the kernel matrix: kernel PCA of the Nyström features of a few hundred landmarks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigpca.costs import PassCost
from bigpca.estimators.kernel.expansion import Expansion
from bigpca.estimators.kernel.landmark_features import features_pass, fit_landmarks
from bigpca.estimators.kernel.maps import KernelScores
from bigpca.estimators.kernel.spectrum import (
    KernelSettings,
)
from bigpca.estimators.linear.spectrum import counted
from bigpca.landmarks import LandmarkRequest, landmark_passes, select_landmarks
from bigpca.passes.accumulators.kept_rows import RowSample
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.states import PassState
from bigpca.passes.fold import fold_to, row_pass
from bigpca.passes.reading.row_maps import MapStep

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
LANDMARKS_A_COLUMN = 16  # for each column of the first block
LANDMARK_SHARE = 20  # at most one row in 20 is a landmark
MAX_LANDMARKS = 2048


def start_landmarks(n: int, block: int) -> int:
    """Return the number of landmarks of the start; 0 if there are too few rows."""
    wanted = min(LANDMARKS_A_COLUMN * block, MAX_LANDMARKS, n // LANDMARK_SHARE)
    return wanted if wanted >= 2 * block else 0


@dataclass(frozen=True)
class Start:
    """The leading axes of a Nyström approximation, from which an iteration starts: three reads.

    Attributes
    ----------
    request : LandmarkRequest
    settings : KernelSettings
        With the required number of axes.
    """

    request: LandmarkRequest
    settings: KernelSettings

    def passes(self) -> tuple[PassCost, ...]:
        """Declare the draw of the landmarks, the moments of their features, and the read of the scores."""
        rows, kernel, m = self.request.rows, self.settings.kernel, self.request.count
        return (*landmark_passes("diagonal", self.request), features_pass(rows, (kernel,), m), self._scores)

    @property
    def _scores(self) -> PassPlan:
        rows, m = self.request.rows, self.request.count
        template = RowSample(self._wanted, rows.n_rows, 8.0 * self._wanted)
        work = 2.0 * rows.n_rows * rows.n_columns * self._wanted
        cost = row_pass(rows, "start", [template], cut_bytes=template.state_bytes, work=work)
        evaluations, kernel = float(rows.n_rows) * m, self.settings.kernel
        return replace(
            cost, peak_bytes=cost.peak_bytes + 16 * 1024 * m + 8 * 3 * m**2, evaluations=evaluations,
            flops=evaluations * kernel.flops_per_entry(rows.n_columns),
        )  # fmt: skip

    @property
    def _wanted(self) -> int:
        return counted(self.settings.n_components) or 0

    def axes(self, run: Run, shift: Vector) -> tuple[Matrix, Vector] | None:
        """Return the axes (n, l) and their eigenvalues (l,); None if there are no axes."""
        rows = self.request.rows
        landmarks = select_landmarks("diagonal", replace(self.request, run=run, shift=shift))
        found = fit_landmarks(run, rows, self.settings, landmarks, shift)
        if not isinstance(found.expansion, Expansion) or not len(found.eigenvalues):
            return None
        width = found.expansion.coefficients.shape[1]
        scored = rows.mapped(MapStep(KernelScores(found.expansion), width))
        template = RowSample(width, rows.n_rows, 8.0 * width)
        scores = fold_to(
            run, self._scores, scored, {"rows": template}, _take_rows, shift=np.zeros(width)
        )  # one pass over X
        run.add_evaluations(rows.n_rows * len(landmarks.rows))
        return scores, found.eigenvalues


def _take_rows(state: PassState) -> Matrix:
    return np.concatenate(state.part("rows", RowSample).rows()).astype(np.float64)
