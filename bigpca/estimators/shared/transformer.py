"""The base class of all estimators: it plans a fit before any read, executes it, and maps rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar, cast

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array
from bigpca.data.containers import is_labelled
from bigpca.data.grids import Grid, as_fitted_grid, labels_of
from bigpca.data.patterns import RowPattern
from bigpca.data.provenance import Provenance
from bigpca.data.sources import open as open_array
from bigpca.data.views import View
from bigpca.data.weights import warn_of_shares
from bigpca.estimators.shared.display import captured, report
from bigpca.estimators.shared.files import StoredModel, Values, save_model
from bigpca.estimators.shared.fit import Fit, Reading
from bigpca.estimators.shared.frames import with_dask_frames
from bigpca.estimators.shared.grids import naming_places
from bigpca.estimators.shared.inputs import Input, Opened, as_fitted, note_flattened, open_rows
from bigpca.estimators.shared.land import like_fitted
from bigpca.estimators.shared.names import check_parameter_names
from bigpca.estimators.shared.opening import open_weighted, plan, planned_weighted
from bigpca.estimators.shared.outputs import Path
from bigpca.estimators.shared.policies import check_policies
from bigpca.estimators.shared.running import execute
from bigpca.estimators.shared.seeding import draw_fit_seed
from bigpca.estimators.shared.transforming import fit_transform, transform
from bigpca.estimators.shared.waiting import Unsolved, is_answer, postpone, settle, without_answer
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.engine.solving import solving
from bigpca.passes.engine.states import digest
from bigpca.passes.reading.preprocessing import Preprocess, RowPreprocessor, preprocessors
from bigpca.passes.reading.row_maps import MapStep, RowMap, chained
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan, Resources
from bigpca.settings import setting

FLOPS_PER_VALUE = 4  # of preprocessing

Found = TypeVar("Found")
Read = TypeVar("Read")


class Estimator(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
    ABC,
    Generic[Found],
):
    """A scikit-learn transformer that reports the cost of a fit in advance, and keeps to it.

    A subclass has the parameters named below and a row in the table of :mod:`bigpca.estimators.loading`. :meth:`_fit`
    plans its fit, :meth:`_take` sets the attributes from the result, and :meth:`_row_map` returns the map of rows. A
    ``partial_fit`` adds rows by :meth:`_take_later`, which postpones the solve until a fitted attribute is first
    accessed: by ``transform``, ``save`` or pickle, but not by ``clone``, ``repr`` or ``check_is_fitted``.

    Attributes
    ----------
    preprocess, nan_policy, missing_chunks, memory_limit, workers_timeout
        Parameters, as in :class:`bigpca.PCA`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str, if X had names
    seed_ : int
        Seed of the fit, if the estimator has a ``random_state``.
    plan_ : Plan
    """

    preprocess: Preprocess
    nan_policy: str
    missing_chunks: str
    memory_limit: int | str | None
    workers_timeout: float
    n_features_in_: int
    n_components_: int
    feature_names_in_: NDArray[np.object_]
    seed_: int
    plan_: Plan
    solver_: str
    _unsolved: Unsolved[Found] | None
    _output_name: ClassVar[str]  # of the output of transform, in the names of tasks and in messages
    _min_rows: ClassVar[int] = 2  # that a fit requires
    _unweighted: ClassVar[str] = ""  # why a fit cannot use weights, where it cannot
    _labelled: ClassVar[bool] = False  # whether a fit requires labels
    _labels_beside_rows: ClassVar[bool] = False  # whether it can take them with the rows of batches
    _nan_policies: ClassVar[tuple[str, ...]] = ("raise", "omit")
    _view: View | None
    _grid: Grid
    _preprocessed: tuple[RowPreprocessor, ...]

    def __new__(cls, *args: Input, **parameters: Input) -> Self:
        if parameters and not parameters.keys() <= set(cls.__init__.__code__.co_varnames):
            check_parameter_names(cls.__name__, parameters, cls._get_param_names())
        return object.__new__(cls)

    @abstractmethod
    def _fit(self, opened: Opened, y: Input) -> Reading:
        """Check the parameters and plan the fit, without reading X: a ``Fit``, unless the class overrides ``fit``."""

    @abstractmethod
    def _take(self, found: Found, solver: str) -> None:
        """Set the fitted attributes."""

    @abstractmethod
    def _row_map(self) -> RowMap:
        """Return the row map that ``transform`` applies."""

    @property
    def _n_features_out(self) -> int:
        """Number of columns of the output of ``transform``: that of the components, where there are such."""
        return self.n_components_

    @abstractmethod
    def _fitted_values(self) -> tuple[dict[str, Array], Values]:
        """Return the fitted values except the feature names: arrays, and JSON values."""

    @abstractmethod
    def _restore(self, stored: StoredModel) -> None:
        """Set the attributes from :meth:`_fitted_values`; KeyError, TypeError or ValueError if they are invalid."""

    plan = plan
    transform, fit_transform = transform, fit_transform
    report = report

    @solving
    def fit(
        self, X: Input, y: Input = None, *, sample_weight: Input = None, checkpoint: Path | None = None,
        progress: ProgressArgument = None,
    ) -> Self:  # fmt: skip
        """Fit to X (n, d), in the reads that :meth:`plan` counts.

        Parameters
        ----------
        X : Dask array or DataFrame, path, list of paths, Zarr array, h5py.Dataset, xarray.DataArray, or array-like
            ``bigpca.open(X, pattern=...)`` makes rows of pixels, tokens or pooled maps. Otherwise dimensions after the
            first are flattened, of which the log warns. Masked entries become NaN. Feature names are the columns of a
            frame or the coordinates of a DataArray's features. The first dimension of a DataArray is that of the
            samples (``bigpca.open(X, sample_dims=...)`` takes others), and columns that are NaN in all of them are
            left out: fitted attributes are those of the other columns.
        y : labels of the rows, for supervised models; ignored by the others, default None
            Joined by key where both have keys, else in the order of the rows: see :func:`bigpca.by_key`.
        sample_weight : array-like of shape (n,), Dask or Zarr array, or path such as "weights.csv::w", default None
            How often each row counts: an integer equals that many repetitions, 0 equals absence, and the sum takes the
            place of n. Joined as labels are. For weights that are not counts, see :func:`bigpca.reliability`. Not for
            every estimator and solver; the others reject it.
        checkpoint : path of a directory, default None
            A rerun of a killed fit resumes from here and gives the same bits.
        progress : True for a bar, or a callable that receives events, default None

        Returns
        -------
        Self
            The estimator itself.

        Raises
        ------
        MemoryBudgetError
            Before any read, if the plan does not fit.
        TypeError
            For dtypes and containers whose rows are not real numbers in memory (CSC, or on a GPU), for sparse rows in
            fits that pair all rows, and for weights that the fit cannot use; the message names an alternative.
        ValueError
            For weights that are negative or not finite, not one per row, or add up to at most 1.
        NonFiniteError, MissingChunksError, CorruptedChunkError
            During the read; the message names rows and block.
        CheckpointError, OutputLockedError
            If the checkpoint belongs to another computation, or is in use.
        """
        opened = open_weighted(self, X, sample_weight, progress=progress)
        opened = replace(opened, seed=draw_fit_seed(self, checkpoint))
        note_flattened(X)
        planned = cast("Fit[Found]", planned_weighted(self, opened, y))
        seed = opened.seed if hasattr(self, "random_state") else None
        weighted = "" if opened.weights is None else ", sample_weight=w"
        with naming_places(opened):
            found, made = execute(
                self,
                planned,
                planned.run,
                f"{self._called}.fit(X{weighted})",
                progress=progress,
                checkpoint=checkpoint,
                seed=seed,
            )
        self._finish(opened, planned.plan, found)
        self._provenance = made
        return self

    def save(self, path: Path, *, overwrite: bool = False) -> None:
        """Write the model to a Zarr group of arrays and JSON, never pickle; :func:`bigpca.load` reads it back.

        Parameters
        ----------
        path : path of a new folder
        overwrite : bool, default False
            Replace an existing model once the new one is complete.

        Raises
        ------
        OutputExistsError
            If the path exists and ``overwrite`` is False.
        """
        check_is_fitted(self)
        self._fitted_preprocessors()
        save_model(path, StoredModel.of(self), overwrite=overwrite)

    @property
    def provenance_(self) -> Provenance | None:
        """How the model was made, with what was planned and measured; None where an older file does not say."""
        return vars(self).get("_provenance")

    @property
    def pattern_(self) -> RowPattern | None:
        """What is a row, as :func:`bigpca.open` was told for the fit; None for whole samples, flattened."""
        view: View | None = vars(self).get("_view")
        return None if view is None else view.pattern

    def _open(self, X: Input, *, minimum: int = 1) -> Opened:
        """Open X; a hook for estimators that accept more than numbers."""
        return open_rows(X, type(self).__name__, minimum=minimum)

    def _open_like(self, X: Input) -> da.Array:
        """Open new rows as those of the fit, and compare the number and names, or the grid, of their features."""
        grid: Grid | None = vars(self).get("_grid")
        if grid is None:
            return as_fitted(self, self._open(X)).array
        name = type(self).__name__
        if is_labelled(X):
            X = open_array(as_fitted_grid(X, grid, name), sample_dims=grid.samples)
        return as_fitted(self, like_fitted(self._open(X), grid, name)).array

    @property
    def _policies(self) -> dict[str, Input]:
        check_policies(self)
        return {name: setting(self, name) for name in ("nan_policy", "missing_chunks", "workers_timeout")}

    def _rows(self, opened: da.Array, weights: Input = None) -> tuple[RowInput, Resources]:
        """Return the rows that a fit reads, with their weights and preprocessed, and the resources that it may use."""
        rows = RowInput(opened, **self._policies)
        if weights is not None:
            rows = rows.weighted(weights)
        d = rows.n_columns
        rows = rows.mapped(*(MapStep(one, d, FLOPS_PER_VALUE * d) for one in self._preprocessors()))
        return rows, find_resources(setting(self, "memory_limit"), in_process=rows.in_process)

    def _preprocessors(self) -> tuple[RowPreprocessor, ...]:
        """Return what is applied to each row first; a hook for estimators whose rows are not always vectors."""
        return preprocessors(self.preprocess)

    def _whole_map(self) -> RowMap:
        """Return the map of rows as they are given: the preprocessing, then that of :meth:`_row_map`."""
        return chained(self._fitted_preprocessors(), self._row_map())

    def _fitted_preprocessors(self) -> tuple[RowPreprocessor, ...]:
        """Return what was applied to each row of the fit.

        Raises
        ------
        ValueError
            If ``preprocess`` was changed since, which would map other rows than those that were fitted.
        """
        now = self._preprocessors()
        fitted = vars(self).get("_preprocessed", now)
        if fitted != now:
            raise ValueError(
                f"preprocess = {self.preprocess!r} was set after a fit with {list(fitted) or None}. Set it back, or "
                f"fit again."
            )
        return now

    def _remember(self, opened: Opened) -> None:
        """Set the number and names of features."""
        self.n_features_in_ = opened.n_features
        labels = labels_of(opened.array)
        self._set_known(
            feature_names_in_=opened.names, _view=opened.view, _grid=None if labels is None else labels.grid,
            _preprocessed=self._preprocessors(),
        )  # fmt: skip

    def _record_rows(self, added: Provenance) -> None:
        """Add the record of rows to that of the model; without the latter, none says how all rows came to be."""
        before = self.provenance_
        self._set_known(_provenance=before and before.with_rows(added))

    def _finish(self, opened: Opened, plan: Plan, found: Found) -> None:
        """Set the fitted attributes after a fit that succeeded."""
        self._take(found, plan.solver)  # first: if it fails, nothing has changed
        self._check_shares()
        self._set_known(_unsolved=None, _provenance=None)  # those of the previous fit
        self._remember(opened)
        if hasattr(self, "random_state"):
            self.seed_ = opened.seed
        self.plan_ = plan

    def _check_shares(self) -> None:
        """Warn where the weights are hardly counts; see :func:`warn_of_shares`."""
        labels = getattr(self, "_problem", None)
        classes = len(vars(self)["classes_"]) if labels is not None and labels().needs_classes else 1
        warn_of_shares(getattr(self, "sum_weights_", 0.0), getattr(self, "n_effective_", 0.0), classes)

    def _set_known(self, **values: object) -> None:
        """Set the attributes whose value is not None, and delete the others, which an earlier fit may have set."""
        for name, value in values.items():
            if value is None:
                self.__dict__.pop(name, None)
            else:
                setattr(self, name, value)

    @property
    def _called(self) -> str:
        """The class and its parameters other than defaults, in one line."""
        return " ".join(repr(self).split())

    def _digest(self) -> str:
        """Return the digest of the row map: it identifies a model, and the scores that the model made."""
        return digest(self._whole_map().describe())

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.allow_nan = self.nan_policy in ("omit", "mean")
        tags.input_tags.sparse = True
        tags.target_tags.required = self._labelled
        return tags

    def _take_later(self, solve: Callable[[], Found], solver: str | None = None) -> None:
        """Postpone ``solve`` until a fitted attribute is accessed; see :func:`postpone`."""
        postpone(self, solve, solver)

    if not TYPE_CHECKING:  # a type checker would conclude that every attribute exists

        def __getattr__(self, name: str) -> object:
            if is_answer(name):
                settle(self)
            return object.__getattribute__(self, name)  # set by now, or AttributeError

    def __copy__(self) -> Self:
        """Return a shallow copy, with the same pending solve."""
        twin = object.__new__(type(self))
        twin.__dict__.update(vars(self))
        return twin

    def __dir__(self) -> list[str]:
        return list(super(Estimator, without_answer(self)).__dir__())

    def _repr_html_inner(self) -> str:
        return str(super(Estimator, without_answer(self))._repr_html_inner()) + captured(vars(self))

    def _repr_mimebundle_(self, **options: Input) -> dict[str, str]:
        bundle: dict[str, str] = super(Estimator, without_answer(self))._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] += captured(vars(self))
        return bundle

    def __getstate__(self) -> dict[str, object]:
        settle(self)
        state: dict[str, object] = super().__getstate__()
        return state

    def __sklearn_is_fitted__(self) -> bool:
        return "_unsolved" in vars(self) or "n_components_" in vars(self)

    def _with_parameters(self) -> Self:
        """Return an unfitted estimator with the current parameters, for a solve that waits."""
        return type(self)(**self.get_params(deep=False))


for _name in ("transform", "fit_transform"):
    setattr(Estimator, _name, with_dask_frames(getattr(Estimator, _name)))

AnyEstimator: TypeAlias = Estimator[Any]  # type: ignore[explicit-any]  # whatever its fit returns
