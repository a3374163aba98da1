"""Models that learn axes in feature space from labels, on Nyström features that may be exact: what they share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.metaestimators import available_if

from bigpca.estimators.kernel.landmarks_fit import Choice, landmark_features
from bigpca.estimators.kernel.model import KernelModel
from bigpca.estimators.kernel.spectrum import KernelSpectrum
from bigpca.estimators.shared.files import StoredModel, unpack_values
from bigpca.estimators.supervised.kernel_fit import FeatureLabelFit, LabelledGrowth
from bigpca.estimators.supervised.labels import KeptStatistics, Labelled, LabelReader, merge_labelled
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.landmarks.given import landmark_values
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.engine.solving import solving
from bigpca.passes.rows import RowInput
from bigpca.planning import Resources
from bigpca.sketches.base import positive_integer
from bigpca.solvers.roweis import Axes

EXACT_ROWS = 2000  # up to which all rows are landmarks


def _grows(model: Any) -> bool:
    """Whether a model takes more rows; AttributeError with the reason where not, as scikit-learn wants."""
    if getattr(model, "form", "direct") == "dual":
        raise AttributeError(
            'partial_fit needs the statistics of the features, which form="dual" does not keep. Use form="direct".'
        )
    return True


class KernelLabelModel(LabelReader, KernelModel):
    """Scores on axes in feature space that were learned from labels.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (k,), descending
        Of the (generalised) eigenproblem: no variances.
    classes_ : ndarray of shape (c,), where labels are classes
    n_unlabelled_ : int
        Rows left out for missing labels.
    missed_label_trace_ : float
        Under an RBF label kernel, as in :class:`bigpca.estimators.supervised.model.SupervisedModel`.
    rank_ : int
        Axes that the labels determine, among those computed.
    landmarks_, landmark_indices_, landmark_transform_
        As in :class:`bigpca.NystromKernelPCA`, where there are landmarks.
    kernel_, kernel_evaluations_, n_samples_, n_omitted_, ...
        As in :class:`bigpca.estimators.kernel.model.KernelModel`.
    """

    n_landmarks: int | None
    sampling: Any
    rounds: int
    _variances: ClassVar[bool] = False

    @abstractmethod
    def _solve(self, statistics: LabelStatistics) -> Axes:
        """Return the axes in the space of the features."""

    @available_if(_grows)  # type: ignore[untyped-decorator]
    @solving
    def partial_fit(self, X: Any, y: Any = None, *, progress: ProgressArgument = None) -> Self:
        """Add labelled rows; the result equals a fit on all rows with the same landmarks to rounding. One read of the new rows.

        The first call is a fit, which chooses the landmarks; later ones keep them, and solve nothing until a fitted attribute
        is first asked for. New classes may come with the rows. There is
        none for ``form="dual"``, which keeps no statistics.

        Raises
        ------
        ValueError
            After a fit with another form.
        MemoryBudgetError, EvaluationBudgetError
            Before the read, where it does not fit.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, progress=progress)
        latest = self._latest
        old: Any = latest.state
        if not isinstance(old, KeptStatistics):
            raise ValueError(
                'partial_fit needs the statistics of the features, which a fit with form="dual" does not keep. Fit again.'
            )
        if self._whole:
            old.statistics.check_whole()
        rows, resources = self._rows(self._open_like(X))
        labelled = self._labelled(y, rows.n_rows, old.supervision)
        whole, features = old.statistics.moments.whole, landmark_features(latest)
        fit = LabelledGrowth(rows, resources, self._settings(rows.n_columns), features, labelled, whole)
        new = self._execute(fit, fit.read, progress=progress)
        kept = KeptStatistics(*merge_labelled(old.statistics, old.supervision, new.statistics, labelled.supervision))
        read = replace(new, kept=kept, evaluations=latest.evaluations + new.evaluations)
        solver = self._with_parameters()
        self._take_later(lambda: read.fit(solver._solve(kept.statistics)))
        self._grown = replace(latest, state=kept, evaluations=read.evaluations)
        return self

    def _stored_state(self, stored: StoredModel) -> KeptStatistics | None:
        own = stored.named("state_")
        if not own:
            return None
        texts, arrays = stored.attributes["texts"], stored.arrays
        classes = unpack_values(texts["classes"]) if "classes" in texts else arrays.get("fact_classes")
        return KeptStatistics.of_arrays(own, arrays["fact_landmark_transform"].shape[1], classes)

    def _feature_fit(self, rows: RowInput, resources: Resources, labelled: Labelled, seed: int) -> FeatureLabelFit:
        settings, n = self._settings(rows.n_columns, seed), rows.n_rows
        if not settings.kernel.positive_semidefinite:
            raise ValueError(
                f"{settings.kernel} is not positive semi-definite, so it has no features to learn axes in; a kernel that is was "
                f"expected. Use another kernel."
            )
        sampling, m = self.sampling, n
        if self.n_landmarks is not None:
            m = positive_integer("n_landmarks", self.n_landmarks)
        elif not isinstance(sampling, str):
            m = len(landmark_values(sampling))
        elif n > EXACT_ROWS:
            m = 1000
        if m > n and isinstance(sampling, str):
            raise ValueError(
                f"n_landmarks = {m}, but X has {n} rows; at most as many landmarks as rows were expected. Use {n} or fewer."
            )
        if m == n and isinstance(sampling, str):
            sampling = np.arange(n)
        rounds = positive_integer("rounds", self.rounds)
        choice = Choice(m, sampling, rounds)
        return FeatureLabelFit(rows, resources, settings, choice, labelled, self._whole, self._solve)

    def _take_more(self, found: KernelSpectrum) -> None:
        expansion: Any = found.expansion
        self.kernel_ = expansion.kernel
        self.__dict__.pop("landmarks_", None)
        if "landmark_transform" in found.facts:
            self.landmarks_ = expansion.references.rows
        self._fit_preimage(expansion)
