"""The base of models that learn linear axes from labelled rows in one read, whatever problem they solve."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from bigpca.arrays import Array
from bigpca.blas import one_blas_thread
from bigpca.estimators.linear.maps import Projection, Reconstruction
from bigpca.estimators.linear.restoring import inverse_transform
from bigpca.estimators.shared.datasets import to_xarray
from bigpca.estimators.shared.exporting import linear_map, to_faiss, to_onnx, to_sklearn, to_torch
from bigpca.estimators.shared.files import StoredModel, Values, pack_values, unpack_values
from bigpca.estimators.shared.inputs import Input, Opened
from bigpca.estimators.shared.opening import labels_of_fit
from bigpca.estimators.shared.running import execute
from bigpca.estimators.shared.transformer import Estimator
from bigpca.estimators.supervised.choosing import plan_labelled
from bigpca.estimators.supervised.classifying import (
    decision_function,
    predict,
    predict_log_proba,
    predict_proba,
    score,
)
from bigpca.estimators.supervised.kept import KeptStatistics, Supervision, merge_labelled, merge_models
from bigpca.estimators.supervised.label_features import label_features_from
from bigpca.estimators.supervised.labels import check_among, read_labels
from bigpca.estimators.supervised.labels_fit import LabelledFit, LabelsFit, SupervisedResult
from bigpca.estimators.supervised.problems import Problem
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.engine.solving import solving
from bigpca.solvers.components import NComponents
from bigpca.solvers.discriminants import Discriminants
from bigpca.solvers.roweis import Axes


def _grows(model: SupervisedModel) -> bool:
    """Whether rows can be added; otherwise raises AttributeError, as ``available_if`` requires."""
    thin = (getattr(model, "r1", 0.0), getattr(model, "r2", 1.0)) == (1, 0)  # solved by one method, which keeps all
    if getattr(model, "solver", "auto") == "krylov" and not thin:
        raise AttributeError(
            'partial_fit needs the whole scatter, which solver="krylov" never forms. Use solver="covariance", or '
            '"auto" if d x d fits.'
        )
    return True


class SupervisedModel(Estimator[SupervisedResult]):
    """Scores ``U'(x - mean)`` on axes U that were learned from labels, in one read of X.

    A subclass defines its problem (:meth:`_problem`).

    A point of the Roweis family with r2 = 1 is also a classifier: classes are normal with one covariance
    ``C = S_W / n`` (as ``LinearDiscriminantAnalysis(solver="eigen")`` of scikit-learn has it; conditioned as R2 is),
    and their prior probabilities are their shares of the rows. All c - 1 axes that separate classes are used,
    whatever ``n_components``; r1 has no effect.

    Attributes
    ----------
    components_ : ndarray of shape (k, d)
        U'; orthonormal only where R2 = I.
    eigenvalues_ : ndarray of shape (k,), descending
        Of the (generalised) eigenproblem.
    mean_ : ndarray of shape (d,)
        Of the labelled rows.
    classes_, class_counts_ : ndarray of shape (c,), sorted
    class_means_ : ndarray of shape (c, d)
        If labels are classes.
    total_variance_ : float
        Trace of the covariance of the labelled rows.
    n_samples_, n_omitted_, n_unlabelled_ : int
    sum_weights_, n_effective_ : float
        As of :class:`bigpca.PCA`; with weights, ``class_counts_`` are sums of weights.
        Rows used, omitted because of missing values, and omitted because of missing labels.
    n_passes_, converged_ : int, bool
        Of an iteration: reads of X, and whether the tolerance was met.
    missed_label_trace_ : float
        Under an RBF label kernel of real labels: the share of its trace that its features miss, 0 if they are exact
        (up to 256 distinct labels, and for smooth kernels). The fit warns above 1e-3.
    rank_ : int
        Number of eigenvalues above rounding: of all for supervised PCA, else of those computed.
    coef_ : ndarray of shape (c, d), or (1, d) of two classes
    intercept_ : ndarray of shape (c,), or (1,)
        Of a classifier's discriminant functions ``x'coef + intercept``, or of their difference.
    explained_variance_ratio_ : ndarray of shape (k,)
        Of a classifier: share of ``tr(R2^-1 S_B)``, the scatter between classes, that each component holds.
    discriminants_ : Discriminants
        The functions themselves, about the mean.
    """

    n_components: NComponents
    solve_threads: int | None
    missing_labels: str
    classes_: Array
    class_counts_: NDArray[np.int64] | NDArray[np.float64]
    class_means_: NDArray[np.float64]
    n_passes_: int
    converged_: bool
    missed_label_trace_: float
    discriminants_: Discriminants
    coef_: NDArray[np.float64]
    intercept_: NDArray[np.float64]
    explained_variance_ratio_: NDArray[np.float64]
    _statistics: LabelStatistics
    _supervision: Supervision
    _output_name = "scores"
    _labelled = _labels_beside_rows = True
    _merged_alike = ("preprocess",)

    @abstractmethod
    def _problem(self, seed: int = 0) -> Problem:
        """Check the parameters and return the problem."""

    predict = predict
    predict_proba = predict_proba
    predict_log_proba = predict_log_proba
    decision_function = decision_function
    score = score
    to_xarray = to_xarray
    linear_map = linear_map
    to_sklearn = to_sklearn
    to_onnx = to_onnx
    to_torch = to_torch
    to_faiss = to_faiss
    inverse_transform = inverse_transform

    @available_if(_grows)  # type: ignore[untyped-decorator]
    @solving
    def partial_fit(
        self, X: Input, y: Input = None, *, classes: Input = None, sample_weight: Input = None,
        progress: ProgressArgument = None,
    ) -> Self:  # fmt: skip
        """Add labelled rows; the result equals a fit on all rows to rounding. One read of the new rows.

        They may have new classes, even of one row; the features of real labels remain those of the first fit. The first
        call is a fit; later ones solve nothing until a fitted attribute is first accessed. The method does not exist
        for ``solver="krylov"``, which keeps no scatter.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (m, d)
            New rows, as for :meth:`fit`.
        y : array-like of shape (m,) or (m, c), or path such as "labels.csv::class", default None
            Labels of the new rows.
        classes : array-like, or None, default None
            The classes that labels may have, as for scikit-learn's classifiers. Optional: None accepts any class.
        sample_weight : weights of the new rows as for :meth:`fit`, default None
        progress : True, "auto", a callable that receives events, or None, default None
            True shows a bar, "auto" one after two seconds.

        Returns
        -------
        Self
            The estimator itself.

        Raises
        ------
        ValueError
            As ``fit``; for labels that are not in ``classes``; and before the read, if the model kept no scatter that
            its parameters require.
        """
        if classes is not None and y is None:
            raise ValueError("classes were given without y. Those of batches are named by from_batches(classes=...).")
        if classes is not None:
            check_among(y, classes, self.missing_labels)
        if not hasattr(self, "_statistics"):
            return self.fit(X, y, sample_weight=sample_weight, progress=progress)
        old, before, problem, name = self._statistics, self._supervision, self._problem(), type(self).__name__
        if problem.whole:
            old.check_whole()
        opened = self._open_like(X)
        rows, resources = self._rows(opened, sample_weight)
        y, missing = labels_of_fit(self, opened, y), self.missing_labels
        labelled = read_labels(y, rows.n_rows, problem, missing=missing, owner=name, like=before, weights=rows.weights)
        fit = LabelsFit(rows, resources, name, labelled, old.moments.whole, problem)
        new, made = execute(self, fit, fit.read, f"{self._called}.partial_fit(X, y)", progress=progress)
        merged, supervision = merge_labelled(old, before, new.statistics, new.supervision)
        self._take_later(lambda: SupervisedResult(merged, supervision, problem.solve(merged)))
        self._statistics, self._supervision = merged, supervision
        self._record_rows(made)
        return self

    def _reconstruction(self) -> Reconstruction:
        axes = np.asarray(np.linalg.pinv(self.components_).T, np.float64)  # rows of (U'U)^-1 U'
        return Reconstruction(self.mean_, None, axes, None)

    def _row_map(self) -> Projection:
        return Projection(self.mean_, None, self.components_, None, self.nan_policy)

    @property
    def _classifies(self) -> bool:
        """Whether the parameters make a classifier; False for parameters that ``fit`` rejects."""
        try:
            return self._problem().classifies
        except (TypeError, ValueError):
            return False

    def _take_merged(self, a: SupervisedModel, b: SupervisedModel) -> None:
        """Set the fitted attributes from the statistics of two models."""
        problem = self._problem(getattr(a, "seed_", 0))
        if problem.whole:
            a._statistics.check_whole()
            b._statistics.check_whole()
        kept = merge_models(*(KeptStatistics(model._statistics, model._supervision) for model in (a, b)))
        axes = problem.solve(kept.statistics)
        self._take(SupervisedResult(kept.statistics, kept.supervision, axes), type(self).__name__)
        self._check_shares()

    def _fit(self, opened: Opened, y: Input) -> LabelledFit:
        return self._planned(opened, y, self._problem(opened.seed))

    def _planned(self, opened: Opened, y: Input, problem: Problem) -> LabelledFit:
        rows, resources = self._rows(opened.array, opened.weights)
        problem.check(rows.n_columns)
        name = type(self).__name__
        missing = self.missing_labels
        labelled = read_labels(y, rows.n_rows, problem, missing=missing, owner=name, weights=rows.weights)
        return plan_labelled(rows, resources, name, labelled, problem)

    def _take(self, found: SupervisedResult, solver: str) -> None:
        statistics, supervision, axes = found.statistics, found.supervision, found.axes
        self._statistics, self._supervision = statistics, supervision
        self.components_, self.eigenvalues_, self.rank_ = axes.components, axes.values, axes.rank
        self.mean_, self.n_samples_, self.n_omitted_ = statistics.mean, statistics.count, statistics.omitted
        self.n_unlabelled_, self.solver_ = supervision.unlabelled, solver
        self.n_features_in_, self.n_components_ = len(self.mean_), len(axes.values)
        self.sum_weights_, self.n_effective_ = statistics.weight, statistics.n_effective
        self.total_variance_ = statistics.total_scatter / statistics.divisor
        self._set_known(
            n_passes_=found.n_passes, converged_=found.converged, missed_label_trace_=supervision.missed_label_trace,
            classes_=None, class_counts_=None, class_means_=None, discriminants_=None, coef_=None, intercept_=None,
            explained_variance_ratio_=None,
        )  # fmt: skip
        if supervision.classes is not None:
            self.classes_ = supervision.classes
            counts = statistics.moments.counts
            self.class_counts_ = counts.astype(np.int64) if statistics.moments.weight_sums is None else counts
            self.class_means_ = statistics.moments.means
        if axes.inverses is not None:
            self._take_classifier(axes.inverses, statistics)

    @one_blas_thread()  # so that a loaded model has the bits of the one that was saved
    def _take_classifier(self, inverses: NDArray[np.float64], statistics: LabelStatistics) -> None:
        """Set the attributes of the classifier, if R2 is the scatter within classes alone."""
        deviations, counts = statistics.deviations, statistics.moments.counts
        self.discriminants_ = functions = Discriminants.of(inverses, deviations, statistics.mean, counts)
        self.coef_, self.intercept_ = functions.coefficients, functions.intercepts
        self.explained_variance_ratio_ = statistics.shares_between(self.components_, functions.slopes)

    def _fitted_values(self) -> tuple[dict[str, Array], Values]:
        features, classes = self._supervision.features, self._supervision.classes
        arrays = {"components": self.components_, "eigenvalues": self.eigenvalues_} | self._statistics.to_arrays()
        if hasattr(self, "discriminants_"):
            arrays["inverses"] = self.discriminants_.inverses
        if features is not None:
            arrays |= {f"labels_{name}": array for name, array in features.to_arrays().items()}
        attributes = {
            "classes": None if classes is None else pack_values(classes), "omitted": self.n_omitted_,
            "rank": self.rank_,
            "unlabelled": self.n_unlabelled_, "missed": self._supervision.missed,
            "facts": {name: vars(self)[f"{name}_"] for name in ("n_passes", "converged") if f"{name}_" in vars(self)},
            "solver": self.solver_, "n_features": self.n_features_in_, "whole": self._statistics.moments.whole,
        }  # fmt: skip
        return arrays, attributes

    def _restore(self, stored: StoredModel) -> None:
        arrays, attributes = stored.arrays, stored.attributes
        for name, array in arrays.items():
            if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
                raise ValueError(f"it has {name} with values that are not finite numbers")
        own = {n: a for n, a in arrays.items() if n.startswith(("moments_", "cross_"))}
        d = int(attributes["n_features"])
        statistics = LabelStatistics.of_arrays(own, d, whole=attributes["whole"], omitted=int(attributes["omitted"]))
        classes = None
        features = None
        if attributes["classes"] is not None:
            classes = unpack_values(attributes["classes"])
        else:
            features = label_features_from(stored.named("labels_"))
        components, values = arrays["components"], arrays["eigenvalues"]
        if components.shape != (len(values), d) or statistics.moments.means.shape[1:] != (d,):
            raise ValueError(
                f"it has {len(values)} eigenvalues of {d} features, but components of shape {components.shape}"
            )
        supervision = Supervision(classes, features, int(attributes["unlabelled"]), float(attributes["missed"]))
        KeptStatistics(statistics, supervision).checked()
        inverses = arrays.get("inverses")
        if inverses is not None and inverses.shape != (len(statistics.moments.counts) + 1, d):
            raise ValueError(f"it has inverses of shape {inverses.shape} for {len(statistics.moments.counts)} classes")
        axes = Axes(values, components, int(attributes["rank"]), inverses)
        found = SupervisedResult(statistics, supervision, axes, **attributes["facts"])
        self._take(found, attributes["solver"])
