"""Discriminant models: points of the Roweis family, which are classifiers too where the scatter within classes is all of R2."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.data.labels import TargetLabels, merge_classes, open_labels
from bigpca.estimators.linear.choosing import check_iteration
from bigpca.estimators.shared.transformer import Destination, Lazy
from bigpca.estimators.supervised.class_maps import ClassMap
from bigpca.estimators.supervised.krylov_fit import KrylovRoweisFit, Point, reject_singular
from bigpca.estimators.supervised.label_features import LabelFeatures, LinearLabels, label_width
from bigpca.estimators.supervised.labels_fit import LabelsFit
from bigpca.estimators.supervised.model import SupervisedModel
from bigpca.estimators.supervised.roweis_axes import (
    check_classes,
    check_components,
    check_conditioning,
    family_axes,
    family_of,
    thin_axes,
)
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.estimators.supervised.supervised_pca import is_share
from bigpca.solvers.roweis import Axes, Conditioning, RoweisFamily

SOLVERS = ("auto", "covariance", "krylov")
CHEAPER = 20.0  # times as many operations the exact route may take before an iteration is chosen by itself


def _classifies(model: Any) -> bool:
    """Whether a model is a classifier; AttributeError with the reason where not, as scikit-learn wants."""
    if not model._is_classifier:
        raise AttributeError(
            f"{type(model).__name__} with r2 = {model.r2!r} is no classifier: normal classes of one covariance need r2 = 1, where "
            f"R2 is the scatter within classes alone. Use r2=1, FisherDiscriminantAnalysis, or a classifier on the scores."
        )
    return True


class DiscriminantModel(ClassifierMixin, SupervisedModel):  # type: ignore[misc]
    """Generalised eigenproblems of the Roweis family; a subclass names its point (r1, r2).

    Where r2 = 1 it is a classifier as well: classes are normal with one covariance ``C = S_W / n`` (as
    ``LinearDiscriminantAnalysis(solver="eigen")`` of scikit-learn has it; conditioned as R2 is), their prior probabilities
    the shares of their rows. All c - 1 axes that tell classes apart count, whatever ``n_components``; r1 does not matter.

    Attributes
    ----------
    coef_ : ndarray of shape (c, d), or (1, d) of two classes
    intercept_ : ndarray of shape (c,), or (1,)
        Of the discriminant functions ``x'coef + intercept``, or of their difference.
    explained_variance_ratio_ : ndarray of shape (k,)
        Share of ``tr(R2^-1 S_B)``, the scatter between classes, that each component holds.
    discriminants_ : Discriminants
        The functions themselves, about the mean.
    components_, eigenvalues_, mean_, classes_, ...
        See :class:`bigpca.estimators.supervised.model.SupervisedModel`.
    """

    robust: bool
    robust_share: float
    regularization: float | str | None
    solver: str
    tol: float
    max_passes: int

    @property
    @abstractmethod
    def _factors(self) -> tuple[float, float]:
        """(r1, r2), checked."""

    @property
    @abstractmethod
    def _normalized(self) -> bool:
        """Whether the terms have equal traces."""

    @property
    @abstractmethod
    def _is_classifier(self) -> bool:
        """Whether r2 = 1; parameters may be anything."""

    @available_if(_classifies)  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Lazy:
        """Return the most probable class of each row of X (n, d), (n,): lazy for lazy input, as ``transform``.

        Raises
        ------
        NonFiniteError
            For rows with missing values, whatever ``nan_policy`` is: they have no class.
        """
        return self._classified(X, "classes", 1)[:, 0]

    @available_if(_classifies)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Lazy:
        """Return the posterior probabilities of classes (n, c), float64; lazy for lazy input."""
        return self._classified(X, "probabilities", None)

    @available_if(_classifies)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Lazy:
        """Return the logarithms of :meth:`predict_proba` (n, c), which do not underflow; lazy for lazy input."""
        return self._classified(X, "log-probabilities", None)

    @available_if(_classifies)  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Lazy:
        """Return log-posteriors up to a constant of each row (n, c), or the log-odds of ``classes_[1]`` (n,); lazy for lazy input."""
        two = len(self.classes_) == 2 if hasattr(self, "classes_") else False
        found = self._classified(X, "decisions", 1 if two else None)
        return found[:, 0] if two else found

    @available_if(_classifies)  # type: ignore[untyped-decorator]
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows of X whose class is the one predicted: one read. Rows without a label do not count.

        Parameters
        ----------
        y : labels as in ``fit``; classes that were not fitted count as errors
        sample_weight : array-like of shape (n,), or None
        """
        predicted = np.asarray(self.predict(X))
        labels: Any = open_labels(y, len(predicted), kind="classes", missing=self.missing_labels, min_classes=1)
        _, known, given = merge_classes(self.classes_, labels.classes)
        used = labels.used
        hits = known[np.searchsorted(self.classes_, predicted[used])] == given[labels.codes[used]]
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)[used]
        return float(np.average(hits, weights=weights))

    def _classified(self, X: Any, output: str, columns: int | None) -> Lazy:
        check_is_fitted(self)
        functions = getattr(self, "discriminants_", None)
        if functions is None:
            raise ValueError("the model was fitted with another r2 than 1, and classifies nothing. Fit again.")
        found = ClassMap(functions, self.classes_, output, self.nan_policy)
        return self._map(X, self._open_like(X), found, columns or len(self.classes_), Destination())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if not self._is_classifier:
            tags.estimator_type = tags.classifier_tags = None
        return tags

    @property
    def _needs_classes(self) -> bool:
        return self._factors[1] > 0

    @property
    def supervision_level_(self) -> float:
        """``(r1 + r2) / 2``: 0 for PCA, 1 for double supervised discriminant analysis."""
        return sum(self._factors) / 2

    @property
    def roweis_criterion_(self) -> float:
        """``tr(U'R1 U) / tr(U'R2 U)``, the mean of the eigenvalues."""
        return float(self.eigenvalues_.mean())

    @property
    def _whole(self) -> bool:
        return self._factors != (1.0, 0.0)

    def _features(self, labels: TargetLabels, seed: int) -> LabelFeatures:
        if self._factors[1] > 0:
            raise ValueError(
                f"labels are continuous numbers, and r2 = {self._factors[1]:g} > 0 needs the scatter within classes; "
                "classes were expected. Give classes (strings or integers), or use r2 = 0."
            )
        known = labels.values[labels.used]
        label_width(known)  # refuses labels that are all equal
        return LinearLabels.of(known)

    def _check_parameters(self, d: int) -> None:
        check_components(self.n_components, d)
        check_conditioning(self.robust, self.robust_share, self.regularization)
        if self.solver not in SOLVERS:
            raise ValueError(
                f"solver = {self.solver!r} is unknown; one of {', '.join(map(repr, SOLVERS))} was expected."
            )
        check_iteration(self.tol, self.max_passes)

    def _iterating(self, fit: LabelsFit) -> KrylovRoweisFit | None:
        if not self._whole:
            return None
        conditioning, (r1, r2) = self._conditioning, self._factors
        if r2 == 1.0 and conditioning == check_conditioning(False, self.robust_share, None):
            labelled = fit.labelled
            reject_singular(int(np.count_nonzero(labelled.codes >= 0)), labelled.n_classes, fit.rows.n_columns)
        if self.solver == "covariance":
            return None
        classes = fit.labelled.supervision.classes
        n_classes = 1 if classes is None else len(classes)
        given: Any = n_classes - 1 if self.n_components is None and (r1, r2) == (0.0, 1.0) else self.n_components
        if given is None or is_share(given) or conditioning.robust or conditioning.regularization == "pinv":
            what = "robust=True" if conditioning.robust else f"n_components = {given!r}"
            what = 'regularization="pinv"' if conditioning.regularization == "pinv" else what
            if self.solver == "auto":
                return None  # the plan says what does not fit
            raise ValueError(
                f'solver="krylov" with {what} would need the whole spectrum of the scatter, which it never forms. Give an integer '
                f"for n_components and a number for regularization."
            )
        added = float(conditioning.regularization or 0.0)
        point = Point(
            partial(self._axes_in, n_components=int(given)), int(given), r1, r2, added, self._normalized, float(self.tol),
            self.max_passes, threads=self.solve_threads,
        )  # fmt: skip
        iteration = KrylovRoweisFit(fit.rows, fit.resources, fit.name, fit.labelled, False, point)
        if self.solver == "auto" and fit.plan.fits and fit.plan.flops <= CHEAPER * iteration.plan.flops:
            return None
        return iteration

    def _axes_in(self, family: RoweisFamily, statistics: LabelStatistics, *, n_components: int) -> Axes:
        check_classes(statistics, *self._factors)
        return family_axes(family, *self._factors, n_components, Conditioning(), statistics)

    def _solve(self, statistics: LabelStatistics) -> Axes:
        if not self._whole:
            return thin_axes(statistics, self.n_components, normalize=self._normalized, threads=self.solve_threads)
        check_classes(statistics, *self._factors)
        family = family_of(statistics, normalize=self._normalized, threads=self.solve_threads)
        return family_axes(family, *self._factors, self.n_components, self._conditioning, statistics)

    @property
    def _conditioning(self) -> Conditioning:
        return check_conditioning(self.robust, self.robust_share, self.regularization)
