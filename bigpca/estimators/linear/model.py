"""What all linear models share, however they were fitted: scores, reconstructions, rows that are added, files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Self, TypeVar, cast

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from bigpca.arrays import Array
from bigpca.data.grids import Grid, labels_of
from bigpca.data.provenance import Provenance
from bigpca.data.sources import open_in_memory
from bigpca.estimators.linear.certified import Certificate, certified_attributes, containment_bound
from bigpca.estimators.linear.density import get_covariance, get_precision, score, score_samples
from bigpca.estimators.linear.files import StateForm, pack_spectrum, unpack_spectrum
from bigpca.estimators.linear.incomplete import FILLED, of_all_rows
from bigpca.estimators.linear.loadings import column_variances, feature_correlations, top_features
from bigpca.estimators.linear.maps import Projection
from bigpca.estimators.linear.monitoring import (
    contributions,
    hotelling_t2,
    mahalanobis,
    rank_outliers,
    spe,
    spe_limit,
    statistics,
    t2_limit,
)
from bigpca.estimators.linear.restoring import inverse_transform, reconstruction, remove_components
from bigpca.estimators.linear.spectrum import Spectrum, Vector
from bigpca.estimators.linear.standardization import Center, Scale, Standardization, limits_of
from bigpca.estimators.shared.datasets import to_xarray
from bigpca.estimators.shared.exporting import linear_map, to_faiss, to_onnx, to_sklearn, to_torch
from bigpca.estimators.shared.files import StoredModel, Values
from bigpca.estimators.shared.inputs import Input, Opened, check_features, in_memory, is_lazy
from bigpca.estimators.shared.opening import with_weights, without_land
from bigpca.estimators.shared.policies import check_filling
from bigpca.estimators.shared.seeding import fit_seed
from bigpca.estimators.shared.transformer import Estimator
from bigpca.passes.accumulators.base import WeightSums
from bigpca.passes.accumulators.fused_product import FusedProduct
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.engine.solving import solving
from bigpca.passes.reading.row_maps import Affine
from bigpca.passes.rows import RowInput
from bigpca.planning import Resources
from bigpca.solvers.components import NComponents
from bigpca.solvers.whitening import Whitening

State = TypeVar("State", Moments, FusedProduct)


def _adds_rows(model: LinearModel[State]) -> bool:
    """Whether the state of one read determines the model; otherwise raises AttributeError, with the reason."""
    if model.nan_policy == "mean":
        raise AttributeError(of_all_rows("partial_fit"))
    if not model._additive:
        raise AttributeError(model._missing_state("partial_fit"))
    return True


@dataclass(frozen=True)
class Added(Generic[State]):
    """The rows of one read, to be added to a model.

    Attributes
    ----------
    state : Accumulator
    omitted : int
        Rows omitted because of NaN or infinite values.
    made : Provenance
        The record of the read.
    """

    state: State
    omitted: int
    made: Provenance


class LinearModel(Estimator[Spectrum], Generic[State]):
    """Scores along components: ``(X - mean) / scale @ components_'``, each with its variance.

    A subclass defines its fit and the statistics that it keeps: :meth:`_fit`, :meth:`_read_state`,
    :meth:`_solution`, :meth:`_missing_state`, :meth:`_state_form` and :attr:`_orthonormal`. The fitted attributes are
    those of :class:`bigpca.PCA`; a fit that is not exact also has those below.

    With ``nan_policy="mean"``, ``transform`` gives rows with NaN the scores of the point in the plane of the components
    that is nearest in the columns that are there (Nelson, Taylor & MacGregor 1996), with a warning where these do not
    determine it: then the scores of minimum norm, which are 0 for a row of NaN alone. Other methods reject such rows.

    Attributes
    ----------
    eigenvalue_bounds_ : ndarray of shape (k, 2)
        Lower and upper bounds of the eigenvalues of the covariance of all rows.
    captured_variance_bounds_ : ndarray of shape (2,)
        Bounds of the share of the total variance that the components capture (or their span, if they are not
        orthogonal).
    subspace_error_bounds_ : ndarray of shape (k,)
        Entry j bounds the sine of the largest angle between the leading j components and the leading j true principal
        axes; 1.0 where nothing is certain: within a cluster of eigenvalues (see :meth:`containment_bound`), or if the
        total variance and the probes are not informative enough.
    bounds_confidence_ : float
        Probability with which all these bounds hold; 1.0 if they always do. It is over the seed (``random_state``,
        or that of the sketch), for data that do not depend on the seed: a fit with a second seed is an independent
        check.
    residuals_ : ndarray of shape (k,), ``|C v_i - lambda_i v_i|`` in the units of the eigenvalues
    n_passes_ : float
        Reads of X by the fit.
    converged_ : bool
    """

    n_components: NComponents
    center: Center
    scale: Scale
    whiten: bool | Whitening
    keep_state_bytes: int
    _state: State | None
    _summed_rows: list[dict[str, object]]  # see _analysed_rows
    _apart: tuple[Array, ...] = ()  # added rows in memory that are not in the state yet
    _merged_alike: ClassVar[tuple[str, ...]]  # parameters in which models must agree to be merged
    _certificate: Certificate | None
    _weight_sums: WeightSums = None
    _output_name: ClassVar[str] = "scores"
    _nan_policies: ClassVar[tuple[str, ...]] = ("raise", "omit", "mean")

    @property
    @abstractmethod
    def _orthonormal(self) -> bool:
        """Whether the components are orthonormal; else they are unit vectors, and the model has no density."""

    @abstractmethod
    def _whole_spectrum(self, what: str) -> Vector:
        """Return all eigenvalues of the covariance, descending, from the kept state.

        Raises
        ------
        ValueError
            If the state is not kept: ``what`` requires it.
        """

    @abstractmethod
    def _read_state(
        self, X: da.Array, *, old: State | None, progress: ProgressArgument, weights: Input = None
    ) -> Added[State]:
        """Return the sufficient statistics of the rows of X, to be added to ``old``, in one read of X.

        Raises before that read if the statistics exceed ``keep_state_bytes`` or the plan does not fit.
        """

    @abstractmethod
    def _solution(self, state: State, count: int, omitted: int) -> tuple[Callable[[State], Spectrum], str]:
        """Check the parameters, and return the function that solves from statistics of ``count`` rows, and the solver's
        name.

        ``state`` is a part of these statistics, or all.
        """

    @property
    @abstractmethod
    def _apart_bytes(self) -> int:
        """Bytes of small batches that are kept as rows until they are multiplied together; 0 if none are."""

    @abstractmethod
    def _missing_state(self, what: str) -> str:
        """Return the message that ``what`` is impossible without the sufficient statistics of this fitted model."""

    @abstractmethod
    def _state_form(self, d: int) -> StateForm:
        """Return how the sufficient statistics of d features are stored."""

    @property
    def _additive(self) -> bool:
        """Whether the state of one read determines a model with these parameters, so that rows can be added."""
        return True

    containment_bound = containment_bound
    hotelling_t2, spe, mahalanobis, statistics = hotelling_t2, spe, mahalanobis, statistics
    contributions, rank_outliers = contributions, rank_outliers
    t2_limit, spe_limit = t2_limit, spe_limit
    score_samples = score_samples
    score = score
    get_covariance = get_covariance
    get_precision = get_precision
    top_features, feature_correlations = top_features, feature_correlations
    inverse_transform, remove_components = inverse_transform, remove_components
    _reconstruction = reconstruction
    to_xarray = to_xarray
    linear_map = linear_map
    to_sklearn, to_onnx, to_torch, to_faiss = to_sklearn, to_onnx, to_torch, to_faiss

    @available_if(_adds_rows)  # type: ignore[untyped-decorator]
    @solving
    def partial_fit(
        self, X: Input, y: Input = None, *, sample_weight: Input = None, progress: ProgressArgument = None
    ) -> Self:
        """Add rows, any number at a time; the result equals a fit on all rows to rounding. One read of the new rows.

        ``PCA`` uses the covariance, whatever ``solver`` is. With fewer rows than ``n_components``, it keeps one
        component per row. Nothing is solved until a fitted attribute is first accessed.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (m, d)
            New rows, as for :meth:`fit`.
        y : ignored, default None
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
            If the model has no sufficient statistics, because its solver keeps none or they exceed
            ``keep_state_bytes``; or if ``preprocess``, a given ``center`` or a given ``scale`` was changed after the
            fit. The method does not exist if the parameters exclude such statistics.
        MemoryBudgetError
            Before any read, if the plan does not fit.
        """
        if "_state" not in vars(self):
            opened = without_land(self, with_weights(self._open(X), sample_weight), progress=progress)
            opened = replace(opened, seed=fit_seed(self))
            first = self._read_state(opened.array, old=None, progress=progress, weights=sample_weight)
            self._remember(opened)
            self._absorb(first.state, first.omitted)
            self._provenance = first.made
            return self
        if self._summed_rows != self._analysed_rows(self.n_features_in_):
            raise ValueError(
                f"preprocess, nan_policy, center or scale was changed after the fit: {self._called}. The kept "
                f"statistics are of rows under the former values, and those of other rows cannot be added. Set them "
                f"again, or fit all rows."
            )
        apart: tuple[Array, ...] = self._apart
        old = self._state
        if old is None:
            raise ValueError(self._missing_state("partial_fit"))
        rows = None if progress is not None or sample_weight is not None else self._small_batch(X)
        if rows is None:
            opened_like = self._open_like(X)
            new = self._read_state(opened_like, old=old, progress=progress, weights=sample_weight)
            state, omitted, made = old.merge(new.state), new.omitted + self.n_omitted_, new.made
        else:
            made = Provenance.now((), "", len(rows), "", seconds=0.0, reads=1.0)
            state, apart, omitted = old, (*apart, rows), self.n_omitted_
            if sum(batch.nbytes for batch in apart) > self._apart_bytes:
                state, apart = self._with_apart(old, apart), ()
        self._absorb(state, omitted, apart)
        self._record_rows(made)
        return self

    @property
    def loadings_(self) -> NDArray[np.float64]:
        """Loadings (d, k): ``components_' sqrt(explained_variance_)``, the covariance of features and unit scores.

        With ``scale`` they are of the scaled features, and so correlations, but for the factor ``sqrt(1 - 1 / n)``.
        """
        return np.asarray(self.components_.T * np.sqrt(self.explained_variance_), np.float64)

    def _whole_state(self, what: str) -> State:
        """Return the statistics of all rows, which ``what`` requires.

        Raises
        ------
        ValueError
            If they are not kept.
        """
        if self._state is None:
            raise ValueError(self._missing_state(what))
        return self._with_apart(self._state, self._apart)

    def _column_variances(self, what: str) -> Vector:
        """Return the variances (d,) of the columns as they are given; raises as :meth:`_whole_state`."""
        divisors = self._standardization(self.n_features_in_).divisors
        return column_variances(self._whole_state(what)) * divisors**2

    def _column_shares(self) -> Vector | None:
        """Return the share of each column (d,) in ``total_variance_``; None if the statistics of rows are not kept."""
        if self._state is None:
            return None
        state, standardization = self._whole_state("a share"), self._standardization(self.n_features_in_)
        columns = column_variances(state)
        if not standardization.center:  # about zero, or about the given centre, which the state has subtracted
            columns = columns + state.weight / (state.weight - 1) * state.mean**2
        if self.scale_ is not None:
            columns = columns * (standardization.divisors / self.scale_) ** 2
        total = float(columns.sum())
        return columns / total if total > 0 else columns

    def _small_batch(self, X: Input) -> Array | None:
        """Return a copy of a small batch of finite rows in memory, which requires no read; None for other input."""
        if is_lazy(X) or not self._apart_bytes or vars(self).get("_view") is not None:
            return None
        batch, names, _ = in_memory(X, type(self).__name__)
        check_features(self, batch.shape[1], names)
        if not isinstance(batch, np.ndarray):  # sparse rows
            return None
        if batch.nbytes > self._apart_bytes or not np.isfinite(batch).all():
            return None
        mapped = batch
        for one in self._preprocessors():  # whose errors are those of this call, not of the solve
            mapped = one.apply(mapped, "the added rows")
        return batch.copy()

    def _with_apart(self, state: State, apart: tuple[Array, ...]) -> State:
        """Return the statistics including the rows that were kept apart."""
        for dtype in sorted({batch.dtype for batch in apart}, key=str):
            rows = np.concatenate([batch for batch in apart if batch.dtype == dtype])
            state = state.merge(self._read_state(open_in_memory(rows), old=state, progress=None).state)
        return state

    def _absorb(self, state: State, omitted: int, apart: tuple[Array, ...] = ()) -> None:
        """Keep the statistics and the rows apart from them, and postpone the solve; two rows are the minimum."""
        count = state.count + sum(len(batch) for batch in apart)
        solve, solver = self._solution(state, count, omitted)
        if count >= 2:
            reader = self._with_parameters()
            reader._set_known(_grid=vars(self).get("_grid"))
            self._take_later(lambda: solve(reader._with_apart(state, apart)), solver)
        self._state, self._apart, self.n_samples_, self.n_omitted_ = state, apart, count, omitted
        self._summed_rows = self._analysed_rows(state.n_features)

    def _remember(self, opened: Opened) -> None:
        super()._remember(opened)
        self._summed_rows = self._analysed_rows(opened.n_features)

    def _analysed_rows(self, d: int) -> list[dict[str, object]]:
        """Return what the parameters do to rows before their statistics are summed."""
        described: list[dict[str, object]] = [one.describe() for one in self._preprocessors()]
        described += [FILLED] if self.nan_policy == "mean" else []
        given: Affine | None = self._standardization(d).given
        return described if given is None else [*described, given.describe()]

    def _row_map(self) -> Projection:
        l2 = self._whitening is not None and self._whitening.l2
        check_filling(self)
        return Projection(
            self.mean_, self.scale_, self.components_, self._deviations(), self.nan_policy, l2, limits_of(self.scale)
        )

    @property
    def _whitening(self) -> Whitening | None:
        return self.whiten if isinstance(self.whiten, Whitening) else Whitening() if self.whiten else None

    def _deviations(self) -> NDArray[np.float64] | None:
        """Return the divisors of the scores; None if they are not whitened."""
        rank, whitening = min(self.n_samples_, self.n_features_in_), self._whitening
        return None if whitening is None else whitening.divisors(self.explained_variance_, rank)

    def _rows_to_fit(self, X: da.Array, weights: Input = None) -> tuple[RowInput, Standardization, Resources]:
        """Return the rows that a fit reads, about a given centre and divided by a given scale."""
        rows, resources = self._rows(X, weights)
        rows = rows.filled() if self.nan_policy == "mean" else rows
        labels = labels_of(X)
        standardization = self._standardization(rows.n_columns, None if labels is None else labels.grid)
        return standardization.applied(rows), standardization, resources

    def _standardization(self, d: int, grid: Grid | None = None) -> Standardization:
        """Return centre and scale of d columns, those of ``grid`` or of the fit."""
        return Standardization.of(self.center, self.scale, d, vars(self).get("_grid") if grid is None else grid)

    def _take(self, found: Spectrum, solver: str) -> None:
        n, d, k, weight = found.count, len(found.mean), len(found.variances), found.weight
        self.components_ = found.components
        self.explained_variance_ = found.variances
        self.explained_variance_ratio_ = found.variances / found.total if found.total > 0 else np.zeros(k)
        self.singular_values_ = np.sqrt(found.variances * (weight - 1))
        self.mean_, self.scale_ = found.mean, found.scale
        self.total_variance_ = found.total
        left, rest = min(max(n, weight), d) - k, found.total - float(found.variances.sum())
        rounding = min(n, d) * float(np.finfo(np.float64).eps) * found.total
        self.noise_variance_ = rest / left if left > 0 and rest > rounding else 0.0
        self.n_components_, self.n_samples_, self.n_omitted_ = k, n, found.omitted
        self.sum_weights_, self.n_effective_, self._weight_sums = weight, found.n_effective, found.weight_sums
        self.n_features_in_, self.solver_ = d, solver
        self._state, self._apart = cast("State | None", found.state), ()
        self._certificate = found.certificate
        self._set_known(**certified_attributes(found.certificate), centring_error_=found.centring_error)

    def _found(self) -> Spectrum:
        """Return the result from which :meth:`_take` set the attributes."""
        return Spectrum(
            self.n_samples_, self.n_omitted_, self.mean_, self.scale_, self.explained_variance_, self.components_,
            self.total_variance_, self._state, self._certificate, self._weight_sums,
            vars(self).get("centring_error_"),
        )  # fmt: skip

    def _fitted_values(self) -> tuple[dict[str, Array], Values]:
        arrays, attributes = pack_spectrum(self._found(), self._state_form(self.n_features_in_))
        return arrays, attributes | {"solver": self.solver_}

    def _restore(self, stored: StoredModel) -> None:
        found = unpack_spectrum(stored, self._state_form, orthonormal=self._orthonormal)
        self._take(found, stored.attributes["solver"])
        self._summed_rows = self._analysed_rows(self.n_features_in_)
