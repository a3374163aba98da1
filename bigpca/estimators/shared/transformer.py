"""The base class of all estimators: it plans a fit before any read, executes it, and maps rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar, cast

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array
from bigpca.data.batch_labels import BatchLabels
from bigpca.data.batches import batch_labels, has_batches, reject_batches
from bigpca.data.containers import is_labelled
from bigpca.data.grids import Grid, as_fitted_grid, labels_of
from bigpca.data.patterns import RowPattern
from bigpca.data.provenance import Provenance
from bigpca.data.sources import open as open_array
from bigpca.data.views import View
from bigpca.data.weights import check_total, open_weights
from bigpca.errors import ShortTraceback
from bigpca.estimators.shared.display import captured
from bigpca.estimators.shared.files import StoredModel, Values, save_model
from bigpca.estimators.shared.fit import Fit, Reading
from bigpca.estimators.shared.frames import with_dask_frames
from bigpca.estimators.shared.grids import (
    by_component,
    grid_of,
    labelled_scores,
    like_fitted,
    naming_places,
    rows_on_grid,
    without_absent,
)
from bigpca.estimators.shared.inputs import (
    Input,
    Lazy,
    Opened,
    as_fitted,
    check_policies,
    is_lazy,
    note_flattened,
    note_positions,
    open_rows,
    open_scores,
)
from bigpca.estimators.shared.names import check_parameter_names
from bigpca.estimators.shared.outputs import Destination, Path, check_float, map_rows, reject_container, write_rows
from bigpca.estimators.shared.running import made_by, running
from bigpca.estimators.shared.seeding import draw_fit_seed, fit_seed
from bigpca.estimators.shared.waiting import Unsolved, is_answer, postpone, settle, without_answer
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.solving import solving
from bigpca.passes.engine.speed import machine_speed
from bigpca.passes.engine.states import digest
from bigpca.passes.project import Made, Stored
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
    @abstractmethod
    def _n_features_out(self) -> int:
        """Number of columns of the output of ``transform``."""

    @abstractmethod
    def _fitted_values(self) -> tuple[dict[str, Array], Values]:
        """Return the fitted values except the feature names: arrays, and JSON values."""

    @abstractmethod
    def _restore(self, stored: StoredModel) -> None:
        """Set the attributes from :meth:`_fitted_values`; KeyError, TypeError or ValueError if they are invalid."""

    def plan(self, X: Input, y: Input = None, *, sample_weight: Input = None) -> Plan:
        """Return the cost of ``fit(X, y, sample_weight=...)`` without reading X: print the plan, or use its fields.

        The first plan on a machine takes about a second, to measure the speed from which times are estimated.
        Of a lazy DataArray all columns are counted, because only a read shows which have no values: ``plan_`` after the
        fit has the numbers of the others.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, d)
            Rows, as for :meth:`fit`.
        y : labels as for :meth:`fit`, default None
        sample_weight : weights of the rows as for :meth:`fit`, default None

        Returns
        -------
        Plan
            Solver, reads, bytes, memory in bytes and time in seconds.

        Raises
        ------
        MemoryBudgetError
            If no solver fits in memory (``solver="auto"``); the plan of a named solver has ``fits = False`` instead.
        """
        opened = replace(self._open_weighted(X, sample_weight, read=False), seed=fit_seed(self))
        planned = self._planned_weighted(opened, y)
        planned.check_readable()
        return replace(planned.plan, speed=machine_speed())

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
        sample_weight : array-like of shape (n,), Dask or Zarr array, or path such as "weights.csv::w", default None
            How often each row counts: an integer equals that many repetitions, 0 equals absence, and the sum takes the
            place of n. For weights that are not counts, see :func:`bigpca.reliability`. Not for every estimator and
            solver; the others reject it.
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
        opened = replace(self._open_weighted(X, sample_weight), seed=draw_fit_seed(self, checkpoint))
        note_flattened(X)
        note_positions(X, y)
        planned = cast("Fit[Found]", self._planned_weighted(opened, y))
        seed = opened.seed if hasattr(self, "random_state") else None
        weighted = "" if opened.weights is None else ", sample_weight=w"
        with naming_places(opened):
            found, made = self._execute(
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

    def fit_transform(self, X: Input, y: Input = None, **options: Input) -> Lazy:
        """Fit to X and return its transform, which reads X once more (a lazy result: when it is computed).

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, d)
            Rows, as for :meth:`fit`.
        y : labels as for :meth:`fit`, default None
        **options
            ``checkpoint`` and ``progress``, as for :meth:`fit`.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, k)
            Scores. Lazy if X is lazy.
        """
        if is_lazy(X):
            reject_container(self, self._output_name, X)
            if has_batches(opened := self._open(X).array):
                raise TypeError(
                    "fit_transform maps the rows in a further read, which an iterator does not have, and in which "
                    "batches may come in another order. Call fit(X) and then transform(X) with what from_batches "
                    "returns."
                )
            reject_batches(opened, self._output_name)
        return self.fit(X, y, **options).transform(X)

    def transform(
        self, X: Input, *, out: Path | None = None, overwrite: bool = False, progress: ProgressArgument = None,
        keys: Input = None, dtype: Input = None,
    ) -> Lazy:  # fmt: skip
        """Map X (n, d) row by row: lazily and with the same row chunks if X is lazy, else at once.

        If the model was fitted on rows of a pattern, stored samples (n, c, h, w) are cut by it again. Rows that
        :func:`bigpca.from_batches` returned are mapped at once, in their order, while the batches are iterated.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, d)
            Rows, as for :meth:`fit`.
        out : path, default None
            Write to a new Zarr array in one read, and return the Dask array over it. The array is invisible until it is
            complete, and a killed run resumes (that of batches begins again). ``"scores.npy"`` is a file of shape
            (n, k), or with keys of records with the fields ``key`` and ``scores``; ``"scores.parquet"`` is a table with
            a column ``key`` and those of :meth:`get_feature_names_out`.
        overwrite : bool, default False
            Replace an existing ``out`` once the new one is complete.
        progress : True for a bar, or a callable that receives events, default None
        keys : array-like of shape (n,), or path such as ``"labels.csv::filename"``, default None
            A distinct string or integer for each row, stored beside the scores; None for the keys in the store of X, if
            it has any. :func:`bigpca.data.keys.stored_keys` returns them.
        dtype : {"float16", "float32", "float64"}, default None
            Dtype of the scores, which are computed as without it; None for that dtype. Scores that it cannot hold are
            rejected.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, k)
            Scores, in float32 if it represents every number of the dtype of X, else float64. Lazy if X is lazy, and
            with ``out``. For a DataArray, a DataArray with the coordinates of its samples and a dimension
            ``component``, numbered from 1. For a Dask DataFrame after ``set_output(transform="pandas")``, a Dask
            DataFrame with its index.

        Raises
        ------
        NonFiniteError, MissingChunksError, CorruptedChunkError
            During the read; the message names rows and block.
        OutputExistsError, OutputLockedError, MemoryBudgetError, ImportError
            Before any read, if ``out`` exists, is in use, exceeds the disk or memory, or requires a missing library.
        ValueError
            Before any read, for missing or duplicate keys, a number of keys other than n, or keys without ``out``; for
            a DataArray on another grid than that of the fit.
        """
        check_is_fitted(self)
        if out is not None or is_lazy(X):
            reject_container(self, self._output_name, X if out is None else None)
        names = () if out is None else tuple(map(str, self.get_feature_names_out()))
        to = Destination(out, overwrite, progress, keys, names)
        with ShortTraceback():
            f = self._row_map() if dtype is None else Stored(self._row_map(), check_float(dtype))
            opened = self._open_like(X)
            scores = self._map(X, opened, f, self._n_features_out, to)
        labels = labels_of(opened) if is_labelled(X) else None
        return scores if labels is None else labelled_scores(scores, labels, self._output_name)

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

    def report(self, out: Path = "report.html", **options: Input) -> FilePath:
        """Write a report on the model to an HTML file and return its path; see :func:`bigpca.report.write_report`.

        Parameters
        ----------
        out : path, default "report.html"
        **options
            ``scores``, ``labels``, ``keys``, ``pictures``, ``image_shape``, ``feature_names``, ``standard_errors``,
            ``provenance`` and ``overwrite``, as there.

        Returns
        -------
        Path
            ``out``.
        """
        from bigpca.report import write_report  # imports Matplotlib, which other methods do not need

        return write_report(self, out, **options)

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

    def _labels(self, X: da.Array, y: Input) -> Input:
        """Return the labels of a fit: y, or those that come with batches, in advance if the fit requires that."""
        found = batch_labels(X, y) if self._labelled else y
        return found.in_advance() if isinstance(found, BatchLabels) and not self._labels_beside_rows else found

    def _open_weighted(self, X: Input, weights: Input, *, read: bool = True) -> Opened:
        """Open X with the weights of its rows, for a fit; ``read`` as for :meth:`_observed`."""
        opened = self._open(X, minimum=self._min_rows)
        if weights is not None:
            given = open_weights(weights)
            check_total(float(given.sum()))
            opened = replace(opened, weights=given)
        return self._observed(opened, read=read)

    def _observed(self, opened: Opened, *, read: bool = True) -> Opened:
        """Return the rows of a DataArray without the columns that have no values, others unchanged.

        Those are found by reading a row, unless ``read`` is False and the rows are not in memory.
        """
        if labels_of(opened.array) is None:
            return opened
        rows = RowInput(opened.array, **self._policies)
        rows = rows if opened.weights is None else rows.weighted(opened.weights)
        return without_absent(opened, rows, complete=self.nan_policy == "raise") if read or rows.in_memory else opened

    def _planned_weighted(self, opened: Opened, y: Input) -> Reading:
        """Plan the fit, and reject weights that it does not read.

        Raises
        ------
        TypeError
        """
        planned = self._fit(opened, self._labels(opened.array, y))
        if opened.weights is not None and planned.rows.weights is None:
            planned.rows.weighted(opened.weights).reject_weights([type(self).__name__], self._unweighted)
        return planned

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

    def _execute(
        self, planned: Reading, read: Callable[[Run], Read], call: str, *, progress: ProgressArgument,
        checkpoint: Path | None = None, seed: int | None = None,
    ) -> tuple[Read, Provenance]:  # fmt: skip
        """Return the result of ``read`` in a run that is held to the plan, and the record of it.

        ``call`` is what a user called, for the record.
        """
        with running(
            planned,
            checkpoint=checkpoint,
            progress=progress,
            workers_timeout=setting(self, "workers_timeout"),
            seed=seed,
        ) as run:
            found = read(run)
        return found, made_by(call, planned, run)

    def _record_rows(self, added: Provenance) -> None:
        """Add the record of rows to that of the model; without the latter, none says how all rows came to be."""
        before = self.provenance_
        self._set_known(_provenance=before and before.with_rows(added))

    def _finish(self, opened: Opened, plan: Plan, found: Found) -> None:
        """Set the fitted attributes after a fit that succeeded."""
        self._take(found, plan.solver)  # first: if it fails, nothing has changed
        self._set_known(_unsolved=None, _provenance=None)  # those of the previous fit
        self._remember(opened)
        if hasattr(self, "random_state"):
            self.seed_ = opened.seed
        self.plan_ = plan

    def _set_known(self, **values: object) -> None:
        """Set the attributes whose value is not None, and delete the others, which an earlier fit may have set."""
        for name, value in values.items():
            if value is None:
                self.__dict__.pop(name, None)
            else:
                setattr(self, name, value)

    def _map(self, X: Input, opened: da.Array, f: RowMap, columns: int, to: Destination) -> Lazy:
        """Return ``f`` of the rows of X, preprocessed, which ``opened`` holds as a Dask array."""
        return self._map_as_given(X, opened, chained(self._fitted_preprocessors(), f), columns, to)

    def _map_as_given(self, X: Input, opened: da.Array, f: RowMap, columns: int, to: Destination) -> Lazy:
        """Return ``f`` of X, which is not preprocessed, such as scores."""
        if to.out is None:
            limit = setting(self, "memory_limit")
            return map_rows(X, opened, f, columns, missing_chunks=self.missing_chunks, memory_limit=limit)
        rows, what = RowInput(opened, **self._policies), to.what or self._output_name
        made = Made(f"{what} of X by {self._called}", self._digest(), to.keys)
        return write_rows(rows, f, columns, to, name=what, made=made, memory_limit=setting(self, "memory_limit"))

    def _map_rows(self, X: Input, f: RowMap, to: Destination) -> Lazy:
        """Return ``f`` of the rows of X as rows (n, d), on the grid of the fit if X is a DataArray."""
        opened = self._open_like(X)
        return self._on_grid(X, opened, self._map(X, opened, f, self.n_features_in_, to))

    def _map_back(self, X: Input, back: RowMap, to: Destination) -> Lazy:
        """Return ``back`` of scores X (n, k): rows (n, d), on the grid of the fit if X is a DataArray."""
        opened = open_scores(by_component(X, self._n_features_out), type(self).__name__, self._n_features_out)
        return self._on_grid(X, opened, self._map_as_given(X, opened, back, self.n_features_in_, to))

    def _on_grid(self, X: Input, opened: da.Array, rows: Lazy) -> Lazy:
        labels = labels_of(opened) if is_labelled(X) else None
        return rows if labels is None else rows_on_grid(rows, labels, grid_of(self))

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
