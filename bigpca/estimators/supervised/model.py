"""The base of models that learn linear axes from labelled rows in one read, whatever problem they solve.

The result; which methods a model has; the model, which is also a classifier where r2 = 1 (normal classes with one
covariance); and the row map to its classes, probabilities and discriminant functions.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, cast

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array, DType, Input, Integers, Matrix, Vector
from bigpca.blas import one_blas_thread
from bigpca.data.labels import merge_classes
from bigpca.engine.driver import solving
from bigpca.errors import NonFiniteError, counted
from bigpca.estimators.linear.maps import Projection, Reconstruction, SecondRead
from bigpca.estimators.linear.sums import SumsModel
from bigpca.estimators.shared.exporting import FeatureAxes, LinearExports
from bigpca.estimators.shared.inputs import Lazy, Unchecked, settle_non_finite
from bigpca.estimators.shared.opening import read_mapped, rows_like, rows_of_fit
from bigpca.estimators.shared.outputs import mapped_to_numbers, maps_rows
from bigpca.estimators.shared.results import KeptRows, SummedRows
from bigpca.estimators.shared.transformer import of_all
from bigpca.estimators.supervised.problems import Problem, labels_of, read_labels
from bigpca.estimators.supervised.statistics import KeptLabels, LabelStatistics, Supervision, held_statistics
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.moments import Hits
from bigpca.passes.reading.row_maps import RowMap, row_of
from bigpca.passes.rows import Rows
from bigpca.records import of_part, stored
from bigpca.solvers.components import NComponents
from bigpca.solvers.eigh import ENOUGH
from bigpca.solvers.moments import Scatter
from bigpca.solvers.roweis import Axes, Discriminants

LABELS = frozenset({"labels", "labels beside rows"})


@dataclass(frozen=True, kw_only=True)
class SupervisedResult(SummedRows):
    """The result of a read of labelled rows and a solve: the fitted attributes, and the statistics.

    Attributes
    ----------
    state : LabelStatistics
    supervision : Supervision
    axes : Axes
    refined : Scatter or None
        S_W of a second read.
    """

    state: LabelStatistics = stored(of=held_statistics)
    supervision: Supervision = stored(of=Supervision)
    axes: Axes = stored(of=Axes)
    refined: Scatter | None = stored(of=Scatter, default=None)

    @property
    def so_far(self) -> KeptLabels:
        """The statistics, to which rows are added."""
        return KeptLabels(
            state=self.state, n_omitted_=self.n_omitted_, roundings=self.roundings, supervision=self.supervision
        )

    def checked(self) -> Self:
        """Return itself; raises ValueError for statistics of other rows, labels or axes."""
        self.so_far.checked()
        # C^-1 times the deviation of each class mean, and times the mean of all.
        c, inverses = len(self.state.moments.counts), self.axes.inverses
        if inverses is not None and len(inverses) != c + 1:
            raise ValueError(f"it has inverses of shape {inverses.shape} for {c} classes")
        return super().checked()

    components_ = of_part("axes", "components")
    eigenvalues_ = of_part("axes", "values")
    rank_ = of_part("axes", "rank")
    solve_error_ = property(lambda self: self.axes.error or None)
    mean_ = of_part("state", "mean")
    total_variance_ = property(lambda self: self.state.total_scatter / self.state.divisor)
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
        moments = self.state.moments
        if self.classes_ is None:
            return None
        return moments.counts.astype(np.int64) if moments.weight_sums is None else moments.counts

    @property
    def class_means_(self) -> Matrix | None:
        """Means of the classes (c, d)."""
        return None if self.classes_ is None else self.state.moments.means

    @cached_property
    def discriminants_(self) -> Discriminants | None:
        """Of a classifier, if R2 is the within-class scatter alone."""
        statistics, inverses = self.state, self.axes.inverses
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
            return self.state.shares_between(self.components_, self.discriminants_.slopes)


def classifies(model: SupervisedModel) -> bool:
    """Whether a model is a classifier; otherwise raises AttributeError, as ``available_if`` requires."""
    try:
        found = model._problem().r2 == 1
    except (TypeError, ValueError):  # parameters that ``fit`` rejects
        found = False
    if not found:
        point = f" with r2 = {model.r2!r}" if hasattr(model, "r2") else ""
        raise AttributeError(
            f"{type(model).__name__}{point} is not a classifier: normal classes with one covariance require r2 = 1, "
            "where R2 is the within-class scatter alone. Use r2=1, FisherDiscriminantAnalysis, or a classifier on "
            "the scores."
        )
    return True


@of_all
class SupervisedModel(SumsModel[SupervisedResult], LinearExports, FeatureAxes):
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
    classes_, class_counts_, class_means_ : ndarray of shape (c,), (c,), (c, d)
        If labels are classes: them, sorted, their numbers of rows, and the means of these.
    total_variance_ : float
        Trace of the covariance of the labelled rows.
    n_samples_, n_unlabelled_, n_omitted_ : int
        Rows used, left out because they have no label, and left out of the others because of missing values.
    sum_weights_, n_effective_ : float
        As of :class:`bigpca.PCA`; with weights, ``class_counts_`` are sums of weights.
    missed_label_trace_ : float
        Under an RBF label kernel of real labels: the share of its trace that its features miss, 0 if they are exact
        (up to 256 distinct labels, and for smooth kernels). The fit warns above 1e-3.
    rank_ : int
        Number of eigenvalues above rounding: of all for supervised PCA, else of those computed.
    coef_, intercept_ : ndarray of shape (c, d), (c,); or (1, d), (1,) of two classes
        Of a classifier's discriminant functions ``x'coef + intercept``, or of their difference.
    explained_variance_ratio_ : ndarray of shape (k,)
        Of a classifier: share of ``tr(R2^-1 S_B)``, the scatter between classes, that each component holds.
    discriminants_ : Discriminants
        Of a classifier: the functions themselves, about the mean.
    solve_error_ : float
        Where r2 > 0, the estimated relative error of the axes by rounding; above 1e-3 with a warning.
    """

    n_components: NComponents
    missing_labels: str = "raise"

    @abstractmethod
    def _problem(self, seed: int = 0) -> Problem:
        """Check the parameters and return the problem."""

    def _check(self, widths: tuple[int, ...]) -> None:
        self._problem().check(widths[0])

    def _rows(self, rows: Rows, y: Unchecked, like: KeptRows | None = None) -> Rows:
        before = None if like is None else cast("KeptLabels", like).supervision
        return read_labels(self, rows_of_fit(self, rows), y, self._problem(rows.seed), like=before)

    def _empty(self, d: int, rows: Rows | None = None, y: Unchecked = None, like: Unchecked = None) -> LabelStatistics:
        problem, labelled = self._problem(), labels_of(cast("Rows", rows))
        if like is None:
            problem.check_labels(labelled, d)
        elif problem.whole:
            like.check_whole()  # a fit at (1, 0) kept only the diagonal of the scatter
        return labelled.template(d, whole=problem.whole if like is None else like.moments.whole)

    def _kept(self, rows: Rows, state: Unchecked) -> KeptLabels:
        known = labels_of(rows).supervision
        return KeptLabels(state=state, n_omitted_=0, roundings=rows.roundings, supervision=known)

    def _problems(self, state: LabelStatistics) -> float:
        return 2.5 * state.moments.whole  # that of R2, and that of R1 in its axes

    def _held_bytes(self, rows: Rows) -> int:
        return labels_of(rows).nbytes

    def _may_doubt(self, rows: Rows) -> bool:
        return self._problem().needs_classes and labels_of(rows).supervision.after is None

    def _doubt(self, kept: KeptLabels, solved: SupervisedResult | None = None) -> SecondRead | None:
        if solved is not None or self._problem().error(kept.scatter) <= ENOUGH:
            return None
        # S_W again, in coordinates in which it is near the identity.
        return SecondRead(kept.state.mean, slice(None), kept.scatter.refined())

    def _solve(self, kept: KeptLabels, again: Unchecked = None) -> SupervisedResult:
        problem, state = self._problem(), kept.state
        if problem.whole:
            state.check_whole()
        refined = None if again is None else replace(kept.scatter, S=again.state.within, frame=again.frame)
        axes = problem.solve(state, refined or (kept.scatter if problem.whole else None))
        return self._result_of(kept, supervision=kept.supervision, axes=axes, refined=refined)

    def _kept_state(self, state: Accumulator) -> Accumulator:
        return state  # class means and others are its own

    @available_if(classifies)  # type: ignore[untyped-decorator]
    @maps_rows
    def predict(self, X: Input) -> Lazy:
        """Return the most probable class of each row of X (n, d), (n,): lazy for lazy input, like ``transform``.

        Returns
        -------
        ndarray or dask.array.Array of shape (n,)
            Values of ``classes_``. Lazy if X is lazy. For a DataArray, one with the coordinates of its samples.

        Raises
        ------
        NonFiniteError
            For rows with missing values, whatever ``nan_policy`` is: they have no class.
        """
        return self._classified(X, "classes", one=True)

    @available_if(classifies)  # type: ignore[untyped-decorator]
    @maps_rows
    def predict_proba(self, X: Input) -> Lazy:
        """Return the posterior probabilities of classes (n, c), float64; lazy for lazy input.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, c), float64
            Columns in the order of ``classes_``; each row sums to 1. Lazy if X is lazy. For a DataArray, one with the
            coordinates of its samples and a dimension ``class``.
        """
        return self._classified(X, "probabilities")

    @available_if(classifies)  # type: ignore[untyped-decorator]
    @maps_rows
    def predict_log_proba(self, X: Input) -> Lazy:
        """Return the logarithms of :meth:`predict_proba` (n, c), which do not underflow; lazy for lazy input.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, c), float64
            Columns in the order of ``classes_``. Lazy if X is lazy. For a DataArray, one with the coordinates of its
            samples and a dimension ``class``.
        """
        return self._classified(X, "log-probabilities")

    @available_if(classifies)  # type: ignore[untyped-decorator]
    @maps_rows
    def decision_function(self, X: Input) -> Lazy:
        """Return log-posteriors (n, c), up to a constant for each row, or log-odds of ``classes_[1]`` (n,); lazily.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, c), or (n,) for two classes
            Columns in the order of ``classes_``. Lazy if X is lazy. For a DataArray, one with the coordinates of its
            samples and a dimension ``class``.
        """
        two = len(self.classes_) == 2 if hasattr(self, "classes_") else False
        return self._classified(X, "decisions", one=two)

    @available_if(classifies)  # type: ignore[untyped-decorator]
    @solving
    def score(self, X: Input, y: Input | None = None, sample_weight: Input | None = None) -> float:
        """Return the share of the labelled rows of X whose class is predicted correctly, in one read.

        ``nan_policy="omit"`` leaves out rows with NaN.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, d)
            Rows, as for :meth:`fit`.
        y : labels as in ``fit``, default None, for those that come with batches
            Classes that were not fitted count as errors.
        sample_weight : array-like of shape (n,), or None, default None

        Returns
        -------
        float in [0, 1]
        """
        f, rows = self._class_map("classes"), rows_like(self, X, y, use="more", sample_weight=sample_weight)
        like = Supervision(self.classes_, None, 0)
        rows = read_labels(self, rows, rows.y, self._problem(), like=like)
        labelled = labels_of(rows)
        # The predicted class as a code of the given labels, -1 where none is of that class.
        classes, known, given = merge_classes(self.classes_, cast("Array", labelled.supervision.classes))
        codes = np.full(len(classes), -1.0)
        codes[given] = np.arange(len(given))
        f, flops = replace(f, classes=codes[known]), 2 * f.functions.slopes.size
        found = read_mapped(rows, f, Hits(labelled.codes), "hits", flops=flops)
        labelled.supervision.read()
        return found.hits / found.weight

    def _classified(self, X: Unchecked, output: str, *, one: bool = False) -> Lazy:
        found = self._class_map(output)
        return mapped_to_numbers(self, X, found, output, dim=None if one else "class", values=self.classes_)

    def _class_map(self, output: str) -> ClassMap:
        check_is_fitted(self)
        functions = self._result.discriminants_
        if functions is None:
            raise ValueError("the model was fitted with r2 other than 1, so it is not a classifier. Fit with r2=1.")
        return ClassMap(functions, self.classes_, output, self.nan_policy)

    def _reconstruction(self) -> Reconstruction:
        axes = np.asarray(np.linalg.pinv(self.components_).T, np.float64)  # rows of (U'U)^-1 U'
        return Reconstruction(self.mean_, None, axes, None)

    def _row_map(self) -> Projection:
        return Projection(self.mean_, None, self.components_, None, self.nan_policy)

    def _warn(self, found: SupervisedResult, n_classes: int = 1) -> None:
        super()._warn(found, len(found.state.moments.counts) if self._problem().needs_classes else 1)


@dataclass(frozen=True)
class ClassMap(RowMap):
    """A function of the discriminant functions of rows, in float64 because these are differences of large terms.

    Attributes
    ----------
    functions : Discriminants
    classes : ndarray of shape (c,)
    output : {"classes", "probabilities", "log-probabilities", "decisions"}
        The most probable class (b, 1), the first in a tie; posterior probabilities (b, c); their logarithms, which do
        not underflow; discriminant functions about the origin (b, c), or the difference of two (b, 1).
    nan_policy : {"raise", "omit"}
        "omit" returns NaN for rows that hold one; it does not apply to classes.
    """

    functions: Discriminants
    classes: Array
    output: str
    nan_policy: str = "raise"

    def output_dtype(self, dtype: DType) -> DType:
        """That of the classes, or float64."""
        return self.classes.dtype if self.output == "classes" else np.dtype(np.float64)

    def apply(self, rows: Array, where: str) -> Array:
        """Return the output for rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities, and the policy is to raise or the output is a class.
        """
        of = self.functions
        with np.errstate(invalid="ignore", over="ignore"):
            centred = rows.astype(np.float64) - of.mean
            # Log-posteriors up to a constant of the row (Hastie, Tibshirani & Friedman 2009, eq. 4.10).
            values: Matrix = centred @ of.slopes.T
        settle_non_finite(rows, values, where, self.nan_policy, self.output)
        values += of.offsets
        found: Array
        if self.output == "classes":
            missing = np.flatnonzero(np.isnan(values).any(axis=1))
            if len(missing):
                raise NonFiniteError(
                    f"{counted(len(missing), 'row')} of {where} hold NaN or infinite values, the first is "
                    f"{row_of(where, int(missing[0]))}: they have no class. Remove them, or use predict_proba, which "
                    "returns NaN for such rows."
                )
            found = self.classes[values.argmax(axis=1)][:, None]
        elif self.output == "probabilities":
            found = softmax(values, axis=1)
        elif self.output == "log-probabilities":
            found = log_softmax(values, axis=1)
        elif len(of.slopes) == 2:
            # Two classes: log-odds of the second, in which the constant cancels.
            found = np.diff(values, axis=1)
        else:
            # About the origin, as in scikit-learn: all classes of a row gain (x - mean)'C^-1 mean + mean'C^-1 mean / 2.
            found = values + (centred @ of.common + 0.5 * (of.mean @ of.common))[:, None]
        return found

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred rows in float64, and values before and after their last step."""
        return 8 * rows * (d + 4 * len(self.functions.slopes)), 0
