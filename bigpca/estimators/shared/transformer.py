"""The base class of all estimators: it plans a fit before any read, executes it, and maps rows.

``transform``, and all other methods that map the rows of X: lazily, in memory, or to a store. Answers that wait: rows
were added, and nothing is solved until a fitted attribute is accessed. Rows, weights and labels as users pass them to
a fit: opened, checked, and planned before any of them is read. What an estimator shows of itself: beside
scikit-learn's diagram in a notebook, and as a report. The names in bigpca of parameters that scikit-learn names
differently.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar, cast

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array
from bigpca.data.batches import BatchLabels, batch_labels, has_batches, reject_batches
from bigpca.data.containers import is_labelled
from bigpca.data.grids import Grid, as_fitted_grid
from bigpca.data.patterns import RowPattern
from bigpca.data.provenance import Provenance
from bigpca.data.sources import open as open_array
from bigpca.data.views import View, carried, carrying
from bigpca.data.weights import degrees_of_freedom, open_weights, warn_of_shares, weight_sum
from bigpca.errors import ShortTraceback, closest
from bigpca.estimators.shared.files import StoredModel, Values, save_model
from bigpca.estimators.shared.fit import Fit, Reading, draw_fit_seed, execute, fit_seed
from bigpca.estimators.shared.inputs import (
    Input,
    Lazy,
    Opened,
    as_fitted,
    check_policies,
    is_lazy,
    note_flattened,
    open_rows,
    open_scores,
)
from bigpca.estimators.shared.labelled import (
    by_component,
    grid_of,
    labelled_rows,
    leave_out,
    like_fitted,
    may_have_land,
    naming_places,
    rows_on_grid,
)
from bigpca.estimators.shared.outputs import (
    Destination,
    Path,
    check_float,
    map_rows,
    reject_container,
    with_dask_frames,
    write_rows,
)
from bigpca.passes.accumulators.observed_columns import ColumnSearch
from bigpca.passes.engine.driver import solving, solving_with
from bigpca.passes.engine.jobs import digest
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.engine.resources import find_resources, machine_speed
from bigpca.passes.project import Made
from bigpca.passes.reading.preprocessing import Preprocess, RowPreprocessor, preprocessors
from bigpca.passes.reading.row_maps import MapStep, RowMap, Stored, chained
from bigpca.passes.rows import Rows, reject_weights
from bigpca.passes.summaries import search_passes
from bigpca.planning import Plan, Resources
from bigpca.settings import setting


def captured(attributes: Mapping[str, object]) -> str:
    """Return a line of HTML: the number of components and their share of the variance, as far as they are solved."""
    k, ratio = attributes.get("n_components_"), attributes.get("explained_variance_ratio_")
    if not isinstance(k, Integral):
        return ""
    whole = "the variance between the classes" if "discriminants_" in attributes else "the variance"
    share = "" if not isinstance(ratio, np.ndarray) else f" with {100 * float(ratio.sum()):.3g} % of {whole}"
    return f"<p>{int(k):,} component{'' if k == 1 else 's'}{share}</p>"


def report(self: object, out: Path = "report.html", **options: Input) -> FilePath:
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


# scikit-learn's name -> (bigpca's name or "", a remark).
TRANSLATIONS = {
    "svd_solver": ("solver", '"full" and "covariance_eigh" are "covariance", "randomized" and "arpack" are "krylov".'),
    "eigen_solver": ("solver", '"dense", "krylov" or "auto".'),
    "iterated_power": ("max_passes", "solver='krylov' iterates until tol or max_passes."),
    "max_iter": ("max_passes", "An iteration stops at tol, or after max_passes reads of X."),
    "n_oversamples": ("tol", "solver='krylov' chooses its block and stops at tol."),
    "power_iteration_normalizer": ("", "solver='krylov' always orthonormalizes. Leave it out."),
    "shrinkage": ("regularization", "It is added to the scatter within classes."),
    "batch_size": ("", "X is read in blocks that memory_limit allows. Leave it out."),
    "copy": ("", "X is never changed. Leave it out."),
    "copy_X": ("", "X is never changed. Leave it out."),
    "n_jobs": ("", "Dask's scheduler sets the threads: dask.config.set(num_workers=...). Leave it out."),
    "kernel_params": ("kernel", "Give a kernel with its parameters, such as bigpca.kernels.RBF(gamma=0.1)."),
    "remove_zero_eig": ("", "Components of eigenvalue 0 have scores of 0. Leave it out."),
    "component_indices": ("sampling", "Give the numbers of the rows."),
    "store_covariance": ("", "PCA(...).get_covariance() returns it. Leave it out."),
    "priors": ("", "Classes have the shares that they have in y. Leave it out."),
    "seed": ("random_state", ""),
    "k": ("n_components", ""),
}


def check_parameter_names(estimator: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise for a keyword argument that the estimator does not have, with the right name.

    Parameters
    ----------
    estimator : str
        Name of the class.
    given, known : names of the arguments, and of the parameters of the estimator

    Raises
    ------
    TypeError
        For a name of scikit-learn or a misspelt one; Python reports other unknown names.

    Examples
    --------
    >>> check_parameter_names("PCA", ["copy"], ["solver"])
    Traceback (most recent call last):
    TypeError: PCA has no parameter 'copy'. X is never changed. Leave it out.
    """
    own = list(known)
    for name in given:
        if name in own:
            continue
        ours, remark = TRANSLATIONS.get(name, ("", ""))
        if ours in own:
            hint = f" It is called {ours} here. {remark}".rstrip()
        elif not ours and remark:
            hint = f" {remark}"
        else:
            hint = closest(name, own)
        if hint:
            raise TypeError(f"{estimator} has no parameter {name!r}.{hint}")


class Fitting(Protocol):
    """An estimator that is to be fitted."""

    nan_policy: str
    _min_rows: ClassVar[int]
    _unweighted: ClassVar[str]
    _labelled: ClassVar[bool]
    _labels_beside_rows: ClassVar[bool]

    @property
    def _policies(self) -> dict[str, Input]: ...

    def _open(self, X: Input, *, minimum: int = 1) -> Opened: ...

    def _fit(self, opened: Opened, y: Input) -> Reading: ...


def plan(self: Fitting, X: Input, y: Input = None, *, sample_weight: Input = None) -> Plan:
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
    opened = replace(open_weighted(self, X, sample_weight, read=False), seed=fit_seed(self))
    planned = planned_weighted(self, opened, y)
    planned.check_readable()
    return replace(planned.plan, speed=machine_speed())


def open_weighted(
    self: Fitting, X: Input, weights: Input, *, read: bool = True, progress: ProgressArgument = None
) -> Opened:
    """Open X with the weights of its rows, for a fit; the options are those of :func:`without_land`."""
    opened = with_weights(self._open(X, minimum=self._min_rows), weights)
    if opened.weights is not None:
        sums = weight_sum(opened.weights), float(opened.weights @ opened.weights)
        degrees_of_freedom(int(np.count_nonzero(opened.weights)), sums)
    return without_land(self, opened, read=read, progress=progress)


def with_weights(opened: Opened, weights: Input) -> Opened:
    """Return the rows with their weights, if there are any."""
    if weights is None:
        return opened
    return replace(opened, weights=open_weights(weights, opened.array))


def without_land(self: Fitting, opened: Opened, *, read: bool = True, progress: ProgressArgument = None) -> Opened:
    """Return the rows of a DataArray without the columns that have no values, others unchanged.

    Unless ``read`` is True or the rows are in memory, those columns remain, and only the reads that will find them are
    declared.
    """
    if not may_have_land(opened):
        return opened
    rows = Rows.of(opened.array, **self._policies)
    rows = rows if opened.weights is None else rows.weighted(opened.weights)
    if not read and not rows.in_memory:
        return replace(opened, array=carrying(opened.array, search=ColumnSearch(search_passes(rows))))
    resources = find_resources(setting(self, "memory_limit"), in_process=rows.in_process)
    return leave_out(opened, rows, resources, progress)


def labels_of_fit(self: Input, X: da.Array, y: Input) -> Input:
    """Return the labels of a fit in the order of the rows: y, or those that come with batches.

    The latter are returned in advance if the fit requires that. Labels that the estimator ignores are not looked at.
    """
    if not self._labelled:
        return y
    from bigpca.data.alignment import in_row_order  # imports all formats of labels, which other fits do not need

    drop = getattr(self, "missing_labels", "raise") == "drop"
    found = batch_labels(X, in_row_order(y, X, absent=None if drop else "raise"))
    return found.in_advance() if isinstance(found, BatchLabels) and not self._labels_beside_rows else found


def planned_weighted(self: Fitting, opened: Opened, y: Input) -> Reading:
    """Plan the fit, and reject weights that it does not read.

    Raises
    ------
    TypeError
    """
    planned = self._fit(opened, labels_of_fit(self, opened.array, y))
    if opened.weights is not None and planned.rows.weights is None:
        reject_weights(planned.rows.weighted(opened.weights), [type(self).__name__], self._unweighted)
    return planned


class Transforming(Protocol):
    """A fitted estimator that maps rows."""

    missing_chunks: str
    n_features_in_: int
    _output_name: ClassVar[str]

    @property
    def _n_features_out(self) -> int: ...

    @property
    def _policies(self) -> dict[str, Input]: ...

    @property
    def _called(self) -> str: ...

    def get_feature_names_out(self) -> NDArray[np.object_]: ...

    def _row_map(self) -> RowMap: ...

    def _fitted_preprocessors(self) -> tuple[RowPreprocessor, ...]: ...

    def _digest(self) -> str: ...

    def _open(self, X: Input, *, minimum: int = 1) -> Opened: ...

    def _open_like(self, X: Input) -> da.Array: ...

    def fit(
        self, X: Input, y: Input = None, *, sample_weight: Input = None, checkpoint: Path | None = None,
        progress: ProgressArgument = None,
    ) -> Transforming: ...  # fmt: skip

    def transform(self, X: Input) -> Lazy: ...


def transform(
    self: Transforming, X: Input, *, out: Path | None = None, overwrite: bool = False,
    progress: ProgressArgument = None, keys: Input = None, dtype: Input = None,
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
        scores = mapped(self, X, opened, f, self._n_features_out, to)
    labels = carried(opened).labels if is_labelled(X) else None
    return scores if labels is None else labelled_rows(scores, labels, self._output_name)


def fit_transform(self: Transforming, X: Input, y: Input = None, **options: Input) -> Lazy:
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


def mapped(self: Transforming, X: Input, opened: da.Array, f: RowMap, columns: int, to: Destination) -> Lazy:
    """Return ``f`` of the rows of X, preprocessed, which ``opened`` holds as a Dask array."""
    return mapped_as_given(self, X, opened, chained(self._fitted_preprocessors(), f), columns, to)


def mapped_as_given(self: Transforming, X: Input, opened: da.Array, f: RowMap, columns: int, to: Destination) -> Lazy:
    """Return ``f`` of X, which is not preprocessed, such as scores."""
    if to.out is None:
        limit = setting(self, "memory_limit")
        return map_rows(X, opened, f, columns, missing_chunks=self.missing_chunks, memory_limit=limit)
    rows, what = Rows.of(opened, **self._policies), to.what or self._output_name
    made = Made(f"{what} of X by {self._called}", self._digest(), to.keys)
    return write_rows(rows, f, columns, to, name=what, made=made, memory_limit=setting(self, "memory_limit"))


def mapped_to_numbers(
    self: Transforming, X: Input, f: RowMap, what: str, to: Destination | None = None, *, dim: str | None = None,
    values: Input = None,
) -> Lazy:  # fmt: skip
    """Return ``f`` of the rows of X: a number of each (n,), or (n, 1) in ``to.out``.

    Where ``values`` name the columns of f, they are (n, k), along ``dim`` for a DataArray X, whose samples label rows.
    """
    opened, to = self._open_like(X), to or Destination()
    found = mapped(self, X, opened, f, 1 if dim is None else len(values), to)
    labels = carried(opened).labels if is_labelled(X) else None
    if labels is not None:
        return labelled_rows(found, labels, what, dim, values)
    return found[:, 0] if dim is None and to.out is None else found


def mapped_to_rows(self: Transforming, X: Input, f: RowMap, to: Destination) -> Lazy:
    """Return ``f`` of the rows of X as rows (n, d), on the grid of the fit if X is a DataArray."""
    opened = self._open_like(X)
    return _on_grid(self, X, opened, mapped(self, X, opened, f, self.n_features_in_, to), to.what)


def mapped_back(self: Transforming, X: Input, back: RowMap, to: Destination) -> Lazy:
    """Return ``back`` of scores X (n, k): rows (n, d), on the grid of the fit if X is a DataArray."""
    opened = open_scores(by_component(X, self._n_features_out), type(self).__name__, self._n_features_out)
    return _on_grid(self, X, opened, mapped_as_given(self, X, opened, back, self.n_features_in_, to))


def _on_grid(self: Transforming, X: Input, opened: da.Array, rows: Lazy, what: str = "") -> Lazy:
    labels, grid = carried(opened).labels if is_labelled(X) else None, grid_of(self)
    return rows if labels is None else rows_on_grid(rows, labels, grid, what or grid.name)


Found = TypeVar("Found")
Taken = TypeVar("Taken", contravariant=True)
Model = TypeVar("Model")


class Settable(Protocol[Taken]):
    """An estimator that sets its fitted attributes from the result of a solve."""

    solver_: str

    def _take(self, found: Taken, solver: str) -> None: ...

    def _check_shares(self) -> None: ...


@dataclass(frozen=True, eq=False)
class Unsolved(Generic[Found]):
    """The pending solve of an estimator to which rows were added.

    Attributes
    ----------
    solve : callable
        Computes the result from the statistics and parameters at the time when the rows were added.
    solver : str
    threads : int or None
        ``solve_threads``.
    lock : threading.Lock
        Held while one thread solves.
    """

    solve: Callable[[], Found]
    solver: str
    threads: int | None
    lock: threading.Lock = field(default_factory=threading.Lock)


NOT_SOLVED_FOR = {"n_features_in_", "feature_names_in_", "plan_", "seed_"}  # known from the rows, or from a fit


def is_answer(name: str) -> bool:
    """Whether an attribute of this name holds the result of a solve."""
    return name in ("_found", "_preimage", "_certificate") or (
        name[-1:] == "_" != name[:1] and name not in NOT_SOLVED_FOR
    )


def pending(model: object) -> Unsolved[object] | None:
    """Return the solve that waits, if any."""
    return cast("Unsolved[object] | None", vars(model).get("_unsolved"))


def postpone(model: Settable[Found], solve: Callable[[], Found], solver: str | None = None) -> None:
    """Delete the fitted attributes of fewer rows, and keep ``solve``, to be called at most once by :func:`settle`.

    ``solver`` is its name; None for the solver of the fit to which the rows are added.
    """
    waiting, attributes = pending(model), vars(model)
    solver = solver or (model.solver_ if waiting is None else waiting.solver)
    for name in [name for name in attributes if is_answer(name)]:
        del attributes[name]
    attributes["_unsolved"] = Unsolved(solve, solver, setting(model, "solve_threads"))


def settle(model: Settable[Found]) -> None:
    """Run the solve that waits, if any, in one thread only; a solve that fails changes nothing."""
    found = pending(model)
    if found is None:
        return
    waiting = cast("Unsolved[Found]", found)
    with waiting.lock, solving_with(waiting.threads):
        if pending(model) == waiting:  # no other thread has solved it meanwhile
            solved = without_answer(model)
            solved._take(waiting.solve(), waiting.solver)
            solved._check_shares()
            del vars(solved)["_unsolved"]
            model.__dict__ = solved.__dict__  # in one step: another thread sees the whole result, or none of it


def without_answer(model: Model) -> Model:
    """Return a shallow copy without the solve that waits: its names and display can be computed without solving."""
    twin = copy(model)
    if "_unsolved" in vars(twin):
        vars(twin)["_unsolved"] = None
    return twin


FLOPS_PER_VALUE = 4  # of preprocessing

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

    def _rows(self, opened: da.Array, weights: Input = None) -> tuple[Rows, Resources]:
        """Return the rows that a fit reads, with their weights and preprocessed, and the resources that it may use."""
        rows = Rows.of(opened, **self._policies)
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
        labels = carried(opened.array).labels
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
