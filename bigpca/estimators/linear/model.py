"""What all linear models share, however they were fitted: scores, reconstructions, rows that are added, files.

Rows back from scores, and rows without some of their components. The density of a linear model, probabilistic PCA:
likelihoods of rows, the covariance and its inverse. What the axes of a linear model mean: variances of columns,
correlations of features, the largest weights.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array, Input, Integers, Matrix, Path, Vector
from bigpca.data.grids import Grid
from bigpca.data.provenance import Provenance
from bigpca.data.views import View
from bigpca.engine.driver import solving
from bigpca.errors import Shown, component_columns, positive_integer
from bigpca.estimators.linear.maps import (
    Center,
    Projection,
    Reconstruction,
    Removal,
    Scale,
    Standardization,
    dual_axes,
    limits_of,
    low_rank_plus_diagonal,
    of_all_rows,
    orthonormality_error,
)
from bigpca.estimators.linear.monitoring import (
    RowStatistics,
    check_centred,
    has_covariance,
    plain_projection,
)
from bigpca.estimators.linear.spectrum import PCAResult
from bigpca.estimators.shared.certificates import BoundedSubspaces
from bigpca.estimators.shared.exporting import FeatureAxes, LinearExports
from bigpca.estimators.shared.files import held_folds
from bigpca.estimators.shared.fit import fit_seed
from bigpca.estimators.shared.growing import Grows, check_same_steps, read_more, required, solve_later
from bigpca.estimators.shared.inputs import Lazy, Steps, Unchecked, check_features, check_policies, in_memory, is_lazy
from bigpca.estimators.shared.opening import (
    opened,
    preprocessors_of,
    rows_of_fit,
)
from bigpca.estimators.shared.outputs import Destination, mapped_to_rows, maps_rows
from bigpca.estimators.shared.results import KeptRows
from bigpca.estimators.shared.transformer import of_all
from bigpca.passes.accumulators.folds import FoldStates, merged
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.blocks import INCOMPLETE
from bigpca.passes.residuals import Adjustment
from bigpca.passes.rows import Rows, filled
from bigpca.records import Held
from bigpca.solvers.scaling import Whitening

if TYPE_CHECKING:
    from bigpca.passes.accumulators.thin_products import FusedProduct

MIN_BATCH_BYTES = 1 << 20  # bytes of small batches that are multiplied together, however small the moments are
NOT_ORTHONORMAL = 1e-4  # deviation of stored components from orthonormal ones, which are not those of a fit


@dataclass(frozen=True, repr=False)
class TopFeatures(Shown):
    """The features with the largest weights in a component, the largest first.

    Attributes
    ----------
    features : ndarray of shape (m,), int64
        Their columns; of equal weights the first.
    weights : ndarray of shape (m,), float64
        Entries of the component, with their signs.
    names : ndarray of shape (m,), str, or None, default None
        None if the rows of the fit had no names.
    """

    features: Integers
    weights: Vector
    names: NDArray[np.object_] | None = None

    @classmethod
    def of(cls, weights: Vector, n: int, names: NDArray[np.object_] | None) -> TopFeatures:
        """Return the n largest of the weights (d,)."""
        features = np.argsort(-np.abs(weights), kind="stable")[:n]
        return cls(features, weights[features], None if names is None else np.asarray(names)[features])

    def cells(self) -> list[tuple[str, ...]]:
        """Return a line for each feature."""
        names = [""] * len(self.features) if self.names is None else map(str, self.names)
        lines = zip(self.features, names, self.weights, strict=True)
        return [("feature", "name", "weight"), *((f"{at}", name, f"{weight:.4g}") for at, name, weight in lines)]


def column_variances(state: Moments | FusedProduct) -> Vector:
    """Return the variances (d,) of the columns, divisor n - 1, from the statistics of all rows."""
    squares = state.squares if isinstance(state, Moments) else state.centred_squares()
    return np.maximum(squares, 0.0) / (state.weight - 1)


def correlations(loadings: Matrix, variances: Vector) -> Matrix:
    """Return the loadings (d, k) divided by the standard deviations of their features; 0 for constant features."""
    deviations = np.sqrt(variances)[:, None]
    return np.where(deviations > 0, loadings / np.where(deviations > 0, deviations, 1.0), 0.0)


State = TypeVar("State", Moments, "FusedProduct")


@of_all
class LinearModel(RowStatistics, Grows, LinearExports, FeatureAxes, BoundedSubspaces, Generic[State]):
    """Scores along components: ``(X - mean) / scale @ components_'``, each with its variance.

    A subclass defines its fit, its solve and the statistics that it keeps: :meth:`_fit`, :meth:`_solve`,
    :meth:`_unsummed`, :meth:`_empty` and :attr:`_orthonormal`. The fitted attributes are
    those of :class:`bigpca.PCA`; a fit that is not exact also has those below.

    With ``nan_policy="mean"``, "pairwise" and "em", ``transform`` gives rows with NaN the scores of the point in the
    plane of the components that is nearest in the columns that are there (Nelson, Taylor & MacGregor 1996), with a
    warning where these do not determine it: then the scores of minimum norm. A row of NaN alone has scores of NaN.
    Other methods reject such rows.

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
        Of an iteration: whether it met its tolerance.
    """

    center: Center = True
    scale: Scale = False
    whiten: bool | Whitening = False

    @abstractmethod
    def _empty(self, d: int) -> State:
        """Return the empty sufficient statistics of d features."""

    @property
    def _why_fixed(self) -> str:
        if self.nan_policy in INCOMPLETE:
            return of_all_rows("partial_fit", self.nan_policy)
        return self._unsummed("partial_fit")

    def _first(self, X: Unchecked, y: Unchecked, **beside: Unchecked) -> Self:
        rows: Rows = replace(opened(self, X, y, **beside, use="first"), seed=fit_seed(self))
        kept, made, solver = read_more(self, rows, KeptRows(None, 0, ()), beside["progress"])
        self._remember(rows)
        self.solver_ = solver
        solve_later(self, kept)
        self._provenance = made
        return self

    def _more(self, kept: KeptRows, X: Unchecked, y: Unchecked, **beside: Unchecked) -> tuple[KeptRows, Provenance]:
        # Small batches in memory wait as rows: one product of many rows is faster than many of few.
        rows, most = None, apart_bytes(kept.state)
        if all(one is None for one in beside.values()):
            rows = small_batch(self, X, most)
        if rows is None:
            return super()._more(kept, X, y, **beside)
        kept = replace(kept, apart=(*kept.apart, rows))
        if sum(batch.nbytes for batch in kept.apart) > most:
            kept = replace(kept, state=with_apart(self, kept.state, kept.apart), apart=())
        return kept, Provenance.now((), "", len(rows), "", seconds=0.0, reads=1.0)

    @available_if(has_covariance)  # type: ignore[untyped-decorator]
    @solving
    def get_covariance(self) -> NDArray[np.float64]:
        """Return the model's covariance (d, d): ``components' (variances - noise) components + noise I``.

        Returns
        -------
        ndarray of shape (d, d), float64
        """
        check_is_fitted(self)
        weights = np.maximum(self._result.known_variances - self.noise_variance_, 0)
        return low_rank_plus_diagonal(self.components_, weights, self.noise_variance_)

    @available_if(has_covariance)  # type: ignore[untyped-decorator]
    @solving
    def get_precision(self) -> NDArray[np.float64]:
        """Return the inverse of :meth:`get_covariance`, by the matrix inversion lemma.

        Returns
        -------
        ndarray of shape (d, d), float64
        """
        check_is_fitted(self)
        if self.noise_variance_ <= 0:
            if self.n_components_ < self.n_features_in_ or (self._result.known_variances <= 0).any():
                return np.asarray(np.linalg.pinv(self.get_covariance(), hermitian=True))
            return low_rank_plus_diagonal(self.components_, 1 / self.explained_variance_, 0.0)
        noise = self.noise_variance_
        weights = 1 / np.maximum(self.explained_variance_, noise) - 1 / noise
        return low_rank_plus_diagonal(self.components_, weights, 1 / noise)

    def top_features(self, component: int | str, n: int = 10) -> TopFeatures:
        """Return the features with the largest weights in a component.

        Parameters
        ----------
        component : int from 0, or str
            Index in ``components_``, or name, such as "pca0".
        n : int, default 10
            How many to return, at most d.

        Returns
        -------
        TopFeatures
            Their columns, weights with signs, and names.

        Raises
        ------
        ValueError
            If the component does not exist, or ``n`` is not positive.

        Examples
        --------
        >>> from bigpca import PCA
        >>> pca = PCA(1).fit(np.diag([1.0, 2.0, 9.0]))
        >>> pca.top_features(0, n=2).features.tolist()
        [2, 1]
        """
        check_is_fitted(self)
        (column,) = component_columns([component], self.get_feature_names_out().tolist())
        return TopFeatures.of(
            self.components_[column], positive_integer("n", n), getattr(self, "feature_names_in_", None)
        )

    @available_if(has_covariance)  # type: ignore[untyped-decorator]
    def feature_correlations(self) -> NDArray[np.float64]:
        """Return the correlations of features with scores: loadings divided by the standard deviations of features.

        Their squares are the share of a feature's variance that each component explains. Needs no read: the standard
        deviations come from the kept statistics.

        Returns
        -------
        ndarray of shape (d, k), float64, in [-1, 1]
            0 for constant features.

        Raises
        ------
        ValueError
            If the model does not keep the statistics of its rows, or is not centred at the mean.
        """
        check_is_fitted(self)
        check_centred(self, "a correlation")
        divisors, variances = standardization_of(self, self.n_features_in_).divisors, self._result.column_variances
        if variances is None:
            variances = column_variances(residual_state(self, "feature_correlations"))
        variances = variances * divisors**2  # of columns as given
        return correlations(self.loadings_, variances if self.scale_ is None else variances / self.scale_**2)

    @solving
    @maps_rows
    def remove_components(
        self, X: Input, components: Input, *, out: Path | None = None, overwrite: bool = False
    ) -> Lazy:
        """Return rows (n, d) without their part along some components: ``x - sum_i t_i v_i``; lazy if X is lazy.

        The mean and the residual remain. With ``scale``, t and v refer to the scaled features, and the result has the
        units of X. With ``preprocess``, rows are preprocessed first. Whitening has no effect. With ``out``, one read:
        the rows are written there, as :meth:`transform` does.

        Parameters
        ----------
        components : int or str, or a sequence of these
            Numbers of the components, from 0, or names, such as "pca0".

        Returns
        -------
        ndarray or dask.array.Array of shape (n, d)
            Lazy if X is lazy.

        Raises
        ------
        ValueError
            For components that do not exist or are given twice.

        Notes
        -----
        Mu & Viswanath (2018), "All-but-the-top: simple and effective postprocessing for word representations", who
        also subtract the mean.
        """
        check_is_fitted(self)
        axes = self.components_[component_columns(components, self.get_feature_names_out().tolist())]
        duals = axes if self._orthonormal else dual_axes(axes)
        removal = Removal(replace(plain_projection(self), components=duals), axes)
        return mapped_to_rows(self, X, removal, Destination(out, overwrite))

    @property
    def loadings_(self) -> NDArray[np.float64]:
        """Loadings (d, k): ``components_' sqrt(explained_variance_)``, the covariance of features and unit scores.

        With ``scale`` they refer to the scaled features, so they are correlations, except for the factor ``sqrt(1 - 1 /
        n)``.
        """
        return np.asarray(self.components_.T * np.sqrt(self.explained_variance_), np.float64)

    def _reconstruction(self) -> Reconstruction:
        """Return the map from scores, maybe whitened, to rows; raises as :func:`inverse_transform`."""
        if scored_l2(self):
            raise ValueError(
                f"whiten = {self.whiten!r} divides the scores of each row by their norm, which is not kept. "
                f"Fit with l2=False for inverse_transform."
            )
        axes = self.components_ if self._orthonormal else dual_axes(self.components_)
        return Reconstruction(self.mean_, self.scale_, axes, score_divisors(self))

    def _column_shares(self) -> Vector | None:
        """Return the share of each column (d,) in ``total_variance_``; None if the statistics of rows are not kept."""
        if self._result.state is None:
            return None
        state, standardization = residual_state(self, "a share"), standardization_of(self, self.n_features_in_)
        columns = column_variances(state)
        if not standardization.center:  # about zero, or about the given centre, which the state has subtracted
            columns = columns + state.weight / (state.weight - 1) * state.mean**2
        if self.scale_ is not None:
            columns = columns * (standardization.divisors / self.scale_) ** 2
        total = float(columns.sum())
        return columns / total if total > 0 else columns

    def _steps_of(self, d: int, view: View | None, grid: Grid | None) -> Steps:
        found = super()._steps_of(d, view, grid)
        given = Standardization.of(self.center, self.scale, d, grid).given
        standardized = None if given is None else given.describe()
        return replace(found, standardized=standardized)

    def _row_map(self) -> Projection:
        l2 = scored_l2(self)
        check_policies(self)
        mean, scale, axes = self.mean_, self.scale_, self.components_
        return Projection(mean, scale, axes, score_divisors(self), self.nan_policy, l2, limits_of(self.scale))

    def _warn(self, found: PCAResult, n_classes: int = 1) -> None:
        super()._warn(found)
        if found.regression is not None:
            found.regression.warn()

    def _restored(self, held: Held) -> PCAResult:
        q = len(held.arrays.get("regression__mean", ()))
        held.context["state"] = lambda held, name: held_folds(held, name, self._empty(held.size("d") + q))
        found = super()._restored(held)
        off = orthonormality_error(found.components_)
        if self._orthonormal and off > NOT_ORTHONORMAL:
            raise ValueError(f"it has components that are not orthonormal (off by {off:.1g})")
        self._steps = replace(self._steps, summed=q)
        return found


def with_apart(model: LinearModel[State], state: State, apart: tuple[Array, ...]) -> State:
    """Return statistics including the rows that were kept apart."""
    for dtype in sorted({batch.dtype for batch in apart}, key=str):
        rows = np.concatenate([batch for batch in apart if batch.dtype == dtype])
        held = Rows.held(rows)
        state = state.merge(read_more(model, held, KeptRows(state, 0, ()))[0].state)
    return state


def standardization_of(model: LinearModel[State], d: int, grid: Grid | None = None) -> Standardization:
    """Return centre and scale of d columns, those of ``grid`` or of the fit."""
    return Standardization.of(model.center, model.scale, d, model._steps.grid if grid is None else grid)


def apart_bytes(state: Moments | FusedProduct) -> int:
    """Return the bytes of small batches that are kept as rows until they are multiplied together; 0 if none are."""
    return max(state.state_bytes, MIN_BATCH_BYTES) if isinstance(state, Moments) else 0


def whole_state(model: LinearModel[State], what: str) -> State:
    """Return the statistics of all rows, which ``what`` requires.

    Raises
    ------
    ValueError
        If they are not kept.
    """
    kept: KeptRows = required(model, what)
    state = with_apart(model, kept.state, kept.apart)
    return cast("State", merged(state.states)) if isinstance(state, FoldStates) else state


def residual_state(model: LinearModel[State], what: str) -> State:
    """Return the statistics of all rows without the effect of covariates; raises as :func:`whole_state`."""
    if (left := getattr(model._result, "left", None)) is not None:  # of a second read
        return cast("State", left)
    state: Unchecked = whole_state(model, what)
    return Adjustment(model._steps.summed, model._result.roundings).of(state)[0]  # type: ignore[return-value]


def in_units_of_rows(model: LinearModel[State], state: Moments) -> Moments:
    """Return moments that a model keeps, which are of ``(x - center) / scale`` where these are given, as those of x.

    Whatever compares moments gets them from here, because units and centres of models may differ.

    Raises
    ------
    ValueError
        If centre or scale were changed after the fit.
    """
    check_same_steps(model)
    given = standardization_of(model, state.n_features)
    return state if given.given is None else state.rescaled(given.shift, given.divisors)


def small_batch(model: LinearModel[State], X: Unchecked, most: int) -> Array | None:
    """Return a copy of a small batch of finite rows in memory, which requires no read; None for other input."""
    steps = model._steps
    if is_lazy(X) or not most or steps.view is not None or steps.covariates or steps.counts is not None:
        return None
    batch, names, _ = in_memory(X, type(model).__name__)
    check_features(model, batch.shape[1], names)
    if not isinstance(batch, np.ndarray):  # sparse rows
        return None
    if batch.nbytes > most or not np.isfinite(batch).all():
        return None
    mapped = batch
    for one in preprocessors_of(model):  # whose errors are those of this call, not of the solve
        mapped = one.apply(mapped, "the added rows")
    return batch.copy()


def scored_l2(model: LinearModel[State]) -> bool:
    """Whether scores are divided by their norm."""
    whitening = whitening_of(model)
    return whitening is not None and whitening.l2


def whitening_of(model: LinearModel[State]) -> Whitening | None:
    """Return the rule by which scores are whitened; None if they are not."""
    return model.whiten if isinstance(model.whiten, Whitening) else Whitening() if model.whiten else None


def score_divisors(model: LinearModel[State]) -> NDArray[np.float64] | None:
    """Return the divisors of the scores; None if they are not whitened."""
    rank, whitening = min(model.n_samples_, model.n_features_in_), whitening_of(model)
    return None if whitening is None else whitening.divisors(model._result.known_variances, rank)


def rows_to_fit(model: LinearModel[State], rows: Rows, covariates: int = 0) -> tuple[Rows, Standardization]:
    """Return the rows that a fit reads, about a given centre and divided by a given scale.

    The last columns may be so many covariates, which are neither.
    """
    rows = rows_of_fit(model, rows)
    rows, labels = filled(rows) if model.nan_policy in INCOMPLETE else rows, rows.origin.labels
    standardization = standardization_of(model, rows.n_columns - covariates, None if labels is None else labels.grid)
    return standardization.applied(rows), standardization
