"""Models that learn linear axes from labelled rows in one read: what they share, whichever problem they solve."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.blas import one_blas_thread
from bigpca.estimators.linear.maps import Projection, Reconstruction
from bigpca.estimators.shared.files import StoredModel, pack_values, unpack_values
from bigpca.estimators.shared.fit import Fit
from bigpca.estimators.shared.inputs import Opened
from bigpca.estimators.shared.planned import PlannedModel
from bigpca.estimators.shared.transformer import Destination, Lazy, Path
from bigpca.estimators.supervised.label_features import label_features_from
from bigpca.estimators.supervised.labels import KeptStatistics, LabelReader, Supervision, check_among, merge_labelled
from bigpca.estimators.supervised.labels_fit import LabelsFit, SupervisedResult
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.engine.solving import solving
from bigpca.solvers.components import NComponents
from bigpca.solvers.discriminants import Discriminants
from bigpca.solvers.roweis import Axes

OPTIONAL = (  # fitted attributes that depend on labels, parameters and solver
    "classes_", "class_counts_", "class_means_", "n_passes_", "converged_", "missed_label_trace_", "discriminants_", "coef_", "intercept_",
    "explained_variance_ratio_",
)  # fmt: skip


def _grows(model: Any) -> bool:
    """Whether a model takes more rows; AttributeError with the reason where not, as scikit-learn wants."""
    thin = (getattr(model, "r1", 0.0), getattr(model, "r2", 1.0)) == (1, 0)  # which has one solver
    if getattr(model, "solver", "auto") == "krylov" and not thin:
        raise AttributeError(
            'partial_fit needs the whole scatter, which solver="krylov" never forms. Use solver="covariance", or "auto" where d x d '
            "fits."
        )
    return True


class SupervisedModel(LabelReader, PlannedModel[SupervisedResult]):
    """Scores ``U'(x - mean)`` on axes U that were learned from labels, in one read of X.

    A subclass says which labels it takes, whether it needs the (d, d) scatter, and solves (:meth:`_solve`).

    Attributes
    ----------
    components_ : ndarray of shape (k, d)
        U'; orthonormal only where R2 = I.
    eigenvalues_ : ndarray of shape (k,), descending
        Of the (generalised) eigenproblem.
    mean_ : ndarray of shape (d,)
        Of the labelled rows.
    classes_ : ndarray of shape (c,), sorted; class_counts_ : ndarray of shape (c,); class_means_ : ndarray of shape (c, d)
        Where labels are classes.
    total_variance_ : float
        Trace of the covariance of the labelled rows.
    n_samples_, n_omitted_, n_unlabelled_ : int
        Rows used, left out for missing values, and left out for missing labels.
    n_passes_, converged_ : int, bool
        Of an iteration: reads of X, and whether the tolerance was met.
    missed_label_trace_ : float
        Under an RBF label kernel of real labels: the share of its trace that its features miss, 0 where they are exact (up to
        256 distinct labels, and smooth kernels). From 1e-3 on a warning says so.
    rank_ : int
        Eigenvalues above rounding: all of them where the axes are supervised PCA's, else among those computed.
    """

    n_components: NComponents
    solve_threads: int | None
    _statistics: LabelStatistics
    _supervision: Supervision
    _output_name = "scores"

    @abstractmethod
    def _solve(self, statistics: LabelStatistics) -> Axes:
        """Return the axes."""

    def _check_parameters(self, d: int) -> None:
        """Refuse parameters that no labels could make right, before any read of rows of d columns."""

    @available_if(_grows)  # type: ignore[untyped-decorator]
    @solving
    def partial_fit(self, X: Any, y: Any = None, *, classes: Any = None, progress: ProgressArgument = None) -> Self:
        """Add labelled rows; the result equals a fit on all rows to rounding. One read of the new rows.

        New classes may come with them, of one row too; features of real labels stay those of the first fit. The first call is
        a fit; later ones solve nothing until a fitted attribute is first asked for. There is none for ``solver="krylov"``,
        which keeps no scatter.

        Parameters
        ----------
        classes : array-like, or None
            The only ones that labels may be, as scikit-learn's classifiers are told. Not needed: None takes any.

        Raises
        ------
        ValueError
            As ``fit``; for other labels than ``classes``; and before the read where the model kept no scatter that its
            parameters need.
        """
        if classes is not None:
            check_among(y, classes, self.missing_labels)
        if not hasattr(self, "_statistics"):
            return self.fit(X, y, progress=progress)
        if self._whole:
            self._statistics.check_whole()
        rows, resources = self._rows(self._open_like(X))
        old, before = self._statistics, self._supervision
        labelled = self._labelled(y, rows.n_rows, before)
        fit = LabelsFit(rows, resources, type(self).__name__, labelled, old.moments.whole, self._solve)
        new = self._execute(fit, fit.read, progress=progress).statistics
        merged, supervision = merge_labelled(old, before, new, labelled.supervision)
        solver = self._with_parameters()
        self._take_later(lambda: SupervisedResult(merged, supervision, solver._solve(merged)))
        self._statistics, self._supervision = merged, supervision
        return self

    @solving
    def inverse_transform(self, X: Any, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
        """Return rows (n, d) from scores (n, k): ``U (U'U)^-1 y + mean``, the least-squares reconstruction (SPCA paper, eq. 4)."""
        check_is_fitted(self)
        opened = self._open_scores(X)
        axes = np.asarray(np.linalg.pinv(self.components_).T, np.float64)  # rows of (U'U)^-1 U'
        back = Reconstruction(self.mean_, None, axes, None)
        return self._map(X, opened, back, self.n_features_in_, Destination(out, overwrite))

    # Inside ---------------------------------------------------------------------------------------------------------

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def _row_map(self) -> Projection:
        return Projection(self.mean_, None, self.components_, None, self.nan_policy)

    def _fit(self, opened: Opened, y: Any) -> Fit[SupervisedResult]:
        rows, resources = self._rows(opened.array)
        self._check_parameters(rows.n_columns)
        labelled = self._labelled(y, rows.n_rows, seed=opened.seed)
        fit = LabelsFit(rows, resources, type(self).__name__, labelled, self._whole, self._solve)
        return self._iterating(fit) or fit

    def _iterating(self, fit: LabelsFit) -> Fit[SupervisedResult] | None:
        """Return an iteration, where one was asked for or the fit does not fit memory; a hook, None by default."""
        return None

    def _take(self, found: SupervisedResult, solver: str) -> None:
        statistics, supervision, axes = found.statistics, found.supervision, found.axes
        self._statistics, self._supervision = statistics, supervision
        self.components_, self.eigenvalues_, self.rank_ = axes.components, axes.values, axes.rank
        self.mean_, self.n_samples_, self.n_omitted_ = statistics.mean, statistics.count, statistics.omitted
        self.n_unlabelled_, self.solver_ = supervision.unlabelled, solver
        self.n_features_in_, self.n_components_ = len(self.mean_), len(axes.values)
        self.total_variance_ = statistics.total_scatter / max(1, statistics.count - 1)
        self._facts = found.facts
        for name in OPTIONAL:
            self.__dict__.pop(name, None)
        for name, value in (found.facts | supervision.facts).items():
            setattr(self, f"{name}_", value)
        if supervision.classes is not None:
            self.classes_ = supervision.classes
            self.class_counts_, self.class_means_ = statistics.moments.counts.astype(np.int64), statistics.moments.means
        if axes.inverses is not None:
            self._take_classifier(axes.inverses, statistics)

    @one_blas_thread()  # so that a loaded model has the bits of the one that was saved
    def _take_classifier(self, inverses: NDArray[np.float64], statistics: LabelStatistics) -> None:
        """Set what classifies rows, where R2 is the scatter within classes alone."""
        deviations, counts = statistics.deviations, statistics.moments.counts
        self.discriminants_ = functions = Discriminants.of(inverses, deviations, statistics.mean, counts)
        self.coef_, self.intercept_ = functions.coefficients, functions.intercepts
        self.explained_variance_ratio_ = statistics.shares_between(self.components_, functions.slopes)

    def _fitted_values(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        features, classes = self._supervision.features, self._supervision.classes
        arrays = {"components": self.components_, "eigenvalues": self.eigenvalues_} | self._statistics.to_arrays()
        if hasattr(self, "discriminants_"):
            arrays["inverses"] = self.discriminants_.inverses
        if features is not None:
            arrays |= {f"labels_{name}": array for name, array in features.to_arrays().items()}
        attributes = {
            "classes": None if classes is None else pack_values(classes), "omitted": self.n_omitted_, "rank": self.rank_,
            "unlabelled": self.n_unlabelled_, "missed": self._supervision.missed, "facts": self._facts,
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
        self._take(SupervisedResult(statistics, supervision, axes, dict(attributes["facts"])), attributes["solver"])
