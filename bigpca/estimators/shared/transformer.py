"""The base of all estimators: a fit is planned before any read, and rows are mapped lazily, in memory or to a store."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from bigpca.data.provenance import Provenance
from bigpca.estimators.shared.files import StoredModel, save_model
from bigpca.estimators.shared.fit import Reading
from bigpca.estimators.shared.inputs import Opened, check_features, check_plain_parameters, is_lazy, open_rows
from bigpca.estimators.shared.names import check_parameter_names
from bigpca.estimators.shared.running import made_by, running
from bigpca.estimators.shared.waiting import Unsolved, is_answer
from bigpca.passes.engine.checkpoint import stored_seed
from bigpca.passes.engine.progress import ProgressArgument, resolve_progress
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.solving import solving, solving_with
from bigpca.passes.engine.speed import machine_speed
from bigpca.passes.engine.states import digest
from bigpca.passes.project import Made, project_in_memory, project_lazily, project_to
from bigpca.passes.reading.row_maps import RowMap
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan, Resources
from bigpca.seeds import check_seed, draw_seed, draws_seed
from bigpca.storage.forms import form_of

Found = TypeVar("Found")
Read = TypeVar("Read")
Path: TypeAlias = str | os.PathLike[str]
RandomState: TypeAlias = int | np.random.RandomState | np.random.Generator | None
Lazy: TypeAlias = Any  # an array in memory, or a Dask array (which has no types) for lazy input


@dataclass(frozen=True)
class Destination:
    """Where mapped rows go: back to the caller, or to a new Zarr array.

    Attributes
    ----------
    out : path or None
    overwrite : bool
        Replace an existing ``out``.
    progress : True, a callable that takes events, or None
    keys : of the rows, or None
        Anything that :func:`bigpca.data.keys.row_keys` reads.
    names : tuple of str
        Of the columns in a table; empty for numbers.
    """

    out: Path | None = None
    overwrite: bool = False
    progress: ProgressArgument = None
    keys: Any = None
    names: tuple[str, ...] = ()


class Estimator(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
    ABC,
    Generic[Found],
):
    """A scikit-learn transformer that states what a fit will cost, and then fits in as many reads.

    A subclass has the parameters named below, and is named in the table of :mod:`bigpca.estimators.loading`. It plans
    by :meth:`_fit`, sets what a run of that returns by :meth:`_take`, and maps rows by :meth:`_row_map`. Its
    ``partial_fit``, if it has one, adds rows by :meth:`_take_later`: the solve waits until a fitted attribute is first
    asked for, which ``transform``, ``save`` and pickle do, and ``clone``, ``repr`` and ``check_is_fitted`` do not.

    Attributes
    ----------
    nan_policy, missing_chunks, memory_limit, workers_timeout
        Parameters, as in :class:`bigpca.PCA`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str, where X had names
    seed_ : int
        Of the fit, where there is a ``random_state``.
    plan_ : Plan
    """

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
    _output_name: ClassVar[str]  # what transform returns, in the names of tasks and in messages
    _min_rows: ClassVar[int] = 2  # of a fit
    _labelled: ClassVar[bool] = False  # whether a fit requires labels

    def __new__(cls, *args: Any, **parameters: Any) -> Self:
        if parameters and not parameters.keys() <= set(cls.__init__.__code__.co_varnames):
            check_parameter_names(cls.__name__, parameters, cls._get_param_names())
        return object.__new__(cls)

    @property
    def _seed(self) -> int:
        """Seed of this fit: ``random_state``, or what was drawn from it.

        Raises
        ------
        TypeError, ValueError
            For what is no random state.
        """
        given = getattr(self, "random_state", 0)
        return int(vars(self).get("seed_", 0)) if draws_seed(given) else check_seed(given, "random_state")

    def _drawn_seed(self, checkpoint: Path | None = None) -> int:
        """Return the seed of a new fit: of what the checkpoint holds, where one is drawn."""
        given = getattr(self, "random_state", 0)
        drawn = draw_seed(given)
        held = stored_seed(checkpoint) if checkpoint is not None and draws_seed(given) else None
        return drawn if held is None else held

    @abstractmethod
    def _fit(self, opened: Opened, y: Any) -> Reading:
        """Check the parameters and plan the fit, a ``Fit`` unless the class has its own ``fit``; X is not read."""

    @abstractmethod
    def _take(self, found: Found, solver: str) -> None:
        """Set the fitted attributes."""

    @abstractmethod
    def _row_map(self) -> RowMap:
        """Return the function of rows that ``transform`` applies."""

    @property
    @abstractmethod
    def _n_features_out(self) -> int:
        """Columns of what ``transform`` returns."""

    @abstractmethod
    def _fitted_values(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return what a fit learned, beside the names of features: arrays, and JSON values."""

    @abstractmethod
    def _restore(self, stored: StoredModel) -> None:
        """Set what :meth:`_fitted_values` gave; KeyError, TypeError and ValueError mean a wrong model."""

    def plan(self, X: Any, y: Any = None) -> Plan:
        """Return what ``fit(X, y)`` will cost, without reading X: print it, or use its fields.

        The first plan on a machine takes a second to measure how fast it is, for the time that a plan states.

        Raises
        ------
        MemoryBudgetError
            Where nothing fits (with ``solver="auto"``); a named solver's plan says ``fits`` instead.
        """
        opened = replace(self._open(X, minimum=self._min_rows), seed=self._seed)
        return replace(self._fit(opened, y).plan, speed=machine_speed())

    @solving
    def fit(self, X: Any, y: Any = None, *, checkpoint: Path | None = None, progress: ProgressArgument = None) -> Self:
        """Fit to X (n, d), in as many reads as :meth:`plan` counts.

        Parameters
        ----------
        X : Dask array or DataFrame, path, list of paths, Zarr array, h5py.Dataset, xarray.DataArray, or array-like
            Dimensions after the first are flattened; masked entries are NaN; columns of frames and coordinates of a
            DataArray's features are feature names.
        y : labels of the rows, where the model learns from them; else ignored
        checkpoint : path of a directory
            What a killed run leaves there, a rerun of the same fit continues from, to the same bits.
        progress : True for a bar, or a callable that takes events

        Raises
        ------
        MemoryBudgetError
            Before any read, where the plan does not fit.
        TypeError
            For dtypes and containers whose rows are no dense real numbers in memory (sparse, on a GPU): with what to
            pass.
        NonFiniteError, MissingChunksError, CorruptedChunkError
            From the read, naming rows and block.
        CheckpointError, OutputLockedError
            Where the checkpoint is another computation's or in use.
        """
        opened = replace(self._open(X, minimum=self._min_rows), seed=self._drawn_seed(checkpoint))
        planned: Any = self._fit(opened, y)
        seed = opened.seed if hasattr(self, "random_state") else None
        with self._running(planned, progress=progress, checkpoint=checkpoint, seed=seed) as run:
            found = planned.run(run)
        self._finish(opened, planned.plan, found)
        self._provenance = made_by(f"{self._called}.fit(X)", planned, run)
        return self

    def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Lazy:
        """Fit to X and return its transform: one more read of X, when a lazy result is computed."""
        if is_lazy(X):
            self._reject_container()
        return self.fit(X, y, **options).transform(X)

    def transform(
        self, X: Any, *, out: Path | None = None, overwrite: bool = False, progress: ProgressArgument = None,
        keys: Any = None,
    ) -> Lazy:  # fmt: skip
        """Return the new features of X (n, d), row by row: lazy for lazy input with the same row chunks, else computed.

        Parameters
        ----------
        out : path
            Write to a new Zarr array instead, in one read, and return the Dask array over it. Invisible until complete;
            a killed run resumes. ``"scores.npy"`` and ``"scores.parquet"`` become tables: numbers of shape (n, k), with
            keys records of the fields ``key`` and ``scores``; a column ``key`` and those of
            :meth:`get_feature_names_out`.
        overwrite : bool
            Replace an existing ``out`` once the new one is complete.
        progress : True for a bar, or a callable that takes events
        keys : array-like of shape (n,), or path such as ``"labels.csv::filename"``
            A distinct string or integer for each row, stored beside the scores; None for those of the store that X lies
            in, where it has any. :func:`bigpca.data.keys.stored_keys` returns them.

        Raises
        ------
        NonFiniteError, MissingChunksError, CorruptedChunkError
            From the read, naming rows and block.
        OutputExistsError, OutputLockedError, MemoryBudgetError, ImportError
            Before any read, where ``out`` is taken, does not fit the disk or memory, or needs a library.
        ValueError
            Before any read, for missing and doubled keys, for another number of keys than rows, and for keys without
            ``out``.
        """
        if keys is not None and out is None:
            raise ValueError("keys are stored beside the scores, but no out was given. Give out=, or leave keys out.")
        check_is_fitted(self)
        if out is not None or is_lazy(X):
            self._reject_container()
        opened = self._open_like(X)
        names = () if out is None else tuple(map(str, self.get_feature_names_out()))
        to = Destination(out, overwrite, progress, keys, names)
        return self._map(X, opened, self._row_map(), self._n_features_out, to)

    def save(self, path: Path, *, overwrite: bool = False) -> None:
        """Write the model to a Zarr group of arrays and JSON, never pickle; :func:`bigpca.load` reads it back.

        Raises
        ------
        OutputExistsError
            Where the path is taken and ``overwrite`` is False.
        """
        check_is_fitted(self)
        save_model(path, StoredModel.of(self), overwrite=overwrite)

    def report(self, out: Path = "report.html", **options: Any) -> FilePath:
        """Write a report on the model to an HTML file and return its path; see :func:`bigpca.report.write_report`.

        Parameters
        ----------
        out : path, default "report.html"
        **options
            ``scores``, ``labels``, ``keys``, ``pictures``, ``image_shape``, ``feature_names``, ``provenance`` and
            ``overwrite``, as there.
        """
        from bigpca.report import write_report  # figures: only where they are asked for

        return write_report(self, out, **options)

    @property
    def provenance_(self) -> Provenance | None:
        """How the model was made; None where that was not recorded: of added rows, merged models, older files."""
        return vars(self).get("_provenance")

    def _open(self, X: Any, *, minimum: int = 1) -> Opened:
        """Open X; a hook for estimators that take more than numbers."""
        return open_rows(X, type(self).__name__, minimum=minimum)

    def _open_like(self, X: Any) -> da.Array:
        """Return new rows, having compared number and names of their features with those of the fit."""
        opened = self._open(X)
        check_features(self, opened.n_features, opened.names)
        return opened.array

    def _open_scores(self, X: Any) -> da.Array:
        """Return scores, having checked how many components they have."""
        opened, k = open_rows(X, type(self).__name__).array, self._n_features_out
        if opened.shape[1] != k:
            raise ValueError(f"scores have {opened.shape[1]} columns; {k} (n_components_) were expected.")
        return opened

    @property
    def _policies(self) -> dict[str, Any]:
        for name, allowed in (("nan_policy", ("raise", "omit")), ("missing_chunks", ("raise", "fill"))):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f'{name} = {getattr(self, name)!r} is unknown; "{allowed[0]}" or "{allowed[1]}" was expected.'
                )
        check_plain_parameters(self)
        named = {name: getattr(self, name) for name in ("nan_policy", "missing_chunks")}
        return {**named, "workers_timeout": self.workers_timeout}

    def _rows(self, opened: da.Array) -> tuple[RowInput, Resources]:
        """Return the rows that a fit reads, and what it may use."""
        rows = RowInput(opened, **self._policies)
        return rows, find_resources(self.memory_limit, in_process=rows.in_process)

    def _remember(self, opened: Opened) -> None:
        """Set number and names of features."""
        self.n_features_in_ = opened.n_features
        self.__dict__.pop("feature_names_in_", None)
        if opened.names is not None:
            self.feature_names_in_ = opened.names

    def _execute(
        self, planned: Reading, read: Callable[[Run], Read], *, progress: ProgressArgument,
        checkpoint: Path | None = None, seed: int | None = None,
    ) -> Read:  # fmt: skip
        """Return what ``read`` returns, within the plan."""
        with self._running(planned, progress=progress, checkpoint=checkpoint, seed=seed) as run:
            return read(run)

    def _running(
        self, planned: Reading, *, progress: ProgressArgument, checkpoint: Path | None, seed: int | None
    ) -> AbstractContextManager[Run]:
        """Return the run of what was planned, if it fits."""
        planned.plan.check()
        return running(
            planned, checkpoint=checkpoint, progress=progress, workers_timeout=self.workers_timeout, seed=seed
        )

    def _finish(self, opened: Opened, plan: Plan, found: Found) -> None:
        """Set what a fit learned, once all went well."""
        self._take(found, plan.solver)  # first: it may fail, and then changes nothing
        self._set_known(_unsolved=None, _provenance=None)  # of what was fitted before
        self._remember(opened)
        if hasattr(self, "random_state"):
            self.seed_ = opened.seed
        self.plan_ = plan

    def _set_known(self, **values: Any) -> None:
        """Set the attributes whose value is not None, and delete the others: those of an earlier fit."""
        for name, value in values.items():
            if value is None:
                self.__dict__.pop(name, None)
            else:
                setattr(self, name, value)

    def _map(self, X: Any, opened: da.Array, f: RowMap, columns: int, to: Destination) -> Lazy:
        """Return ``f`` of the rows of X, which ``opened`` is as a Dask array."""
        if to.out is not None:
            rows = RowInput(opened, **self._policies)
            with resolve_progress(to.progress) as report:
                run = Run(None, report, self.workers_timeout, "local" if rows.in_process else None)
                call = f"{self._output_name} of X by {self._called}"
                names = to.names or tuple(f"column_{i + 1}" for i in range(columns))
                return project_to(
                    rows, f, columns, to.out, name=self._output_name, run=run, made=Made(call, self._digest(), to.keys),
                    form=form_of(os.fspath(to.out), names), overwrite=to.overwrite, memory_limit=self.memory_limit,
                )  # fmt: skip
        if is_lazy(X):
            return project_lazily(opened, f, columns, missing_chunks=self.missing_chunks)
        return project_in_memory(RowInput(opened), f, columns)

    @property
    def _called(self) -> str:
        """The class and its parameters that are no defaults, in one line."""
        return " ".join(repr(self).split())

    def _digest(self) -> str:
        """Return what identifies the function from rows to scores: of a model, and of the scores that it made."""
        return digest(self._row_map().describe())

    def _reject_container(self) -> None:
        own = getattr(self, "_sklearn_output_config", {}).get("transform")
        container = own or get_config()["transform_output"]
        if container != "default":
            asked = (
                f'set_output(transform="{container}")' if own else f'sklearn.set_config(transform_output="{container}")'
            )
            raise TypeError(
                f"{asked} would load all lazy {self._output_name} into memory. "
                f'Call set_output(transform="default") and convert what fits, or compute() X first.'
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.allow_nan = self.nan_policy == "omit"
        tags.target_tags.required = self._labelled
        return tags

    def _take_later(self, solve: Callable[[], Found], solver: str | None = None) -> None:
        """Forget the answer for fewer rows, and call ``solve``, at most once, when the new one is first asked for.

        ``solver`` is its name; None for that of the fit that the rows are added to.
        """
        waiting: Unsolved[Found] | None = vars(self).get("_unsolved")
        solver = solver or (self.solver_ if waiting is None else waiting.solver)
        for name in [name for name in vars(self) if is_answer(name)]:
            del self.__dict__[name]
        self.__dict__.pop("_provenance", None)  # of fewer rows
        self._unsolved = Unsolved(solve, solver, getattr(self, "solve_threads", None))

    def _settle(self) -> None:
        """Solve, where rows were added since; one thread does it, and a solve that fails changes nothing."""
        waiting: Unsolved[Found] | None = vars(self).get("_unsolved")
        if waiting is None:
            return
        with waiting.lock, solving_with(waiting.threads):
            if vars(self).get("_unsolved") == waiting:  # not solved by another thread meanwhile
                solved = self._unasked()
                solved._take(waiting.solve(), waiting.solver)
                del solved.__dict__["_unsolved"]
                self.__dict__ = solved.__dict__  # at once: another thread sees all of the answer, or none

    def _unasked(self) -> Self:
        """Return a shallow copy without the answer that waits, of which scikit-learn asks names and displays."""
        twin = copy(self)
        if "_unsolved" in vars(twin):
            twin._unsolved = None
        return twin

    if not TYPE_CHECKING:  # for which every attribute would exist

        def __getattr__(self, name: str) -> Any:
            if is_answer(name):
                self._settle()
            return object.__getattribute__(self, name)  # there now, or the error of an attribute that is not

    def __copy__(self) -> Self:
        """Return a shallow copy; what waits to be solved waits in both."""
        twin = object.__new__(type(self))
        twin.__dict__.update(vars(self))
        return twin

    def __dir__(self) -> list[str]:
        return list(super(Estimator, self._unasked()).__dir__())

    def _repr_html_inner(self) -> str:
        return str(super(Estimator, self._unasked())._repr_html_inner()) + self._captured()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super(Estimator, self._unasked())._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] += self._captured()
        return bundle

    def _captured(self) -> str:
        """Return a line for notebooks: how many components, and their share of the variance, where they are solved."""
        known = vars(self)
        if "n_components_" not in known:
            return ""
        k, ratio = known["n_components_"], known.get("explained_variance_ratio_")
        share = "" if ratio is None else f" with {100 * float(ratio.sum()):.3g} % of the variance"
        return f"<p>{k:,} component{'' if k == 1 else 's'}{share}</p>"

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        state: dict[str, Any] = super().__getstate__()
        return state

    def __sklearn_is_fitted__(self) -> bool:
        return "_unsolved" in vars(self) or "n_components_" in vars(self)

    def _with_parameters(self) -> Self:
        """Return an unfitted estimator with the parameters as they are now, for a solve that waits."""
        return type(self)(**self.get_params(deep=False))
