"""Estimators that map rows: lazily for lazy input, in memory otherwise, or to a new Zarr array."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from bigpca.data.provenance import Provenance
from bigpca.estimators.shared.files import StoredModel, save_model
from bigpca.estimators.shared.inputs import as_dask, check_plain_parameters, is_lazy
from bigpca.estimators.shared.names import check_parameter_names
from bigpca.passes.engine.checkpoint import stored_seed
from bigpca.passes.engine.progress import ProgressArgument, resolve_progress
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.states import digest
from bigpca.passes.project import Made, project_in_memory, project_lazily, project_to
from bigpca.passes.reading.row_maps import RowMap
from bigpca.passes.rows import RowInput
from bigpca.seeds import check_seed, draw_seed, draws_seed
from bigpca.storage.forms import form_of

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


class RowTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """A scikit-learn transformer whose ``transform`` is a :class:`bigpca.passes.reading.row_maps.RowMap`.

    A subclass has the parameters named below, and is named in the table of :mod:`bigpca.estimators.loading`.

    Attributes
    ----------
    nan_policy, missing_chunks, memory_limit, workers_timeout
        Parameters, as in :class:`bigpca.PCA`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str, where X had names
    seed_ : int
        Of the fit, where there is a ``random_state``.
    """

    nan_policy: str
    missing_chunks: str
    memory_limit: int | str | None
    workers_timeout: float
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    seed_: int
    _output_name: ClassVar[str]  # what transform returns, in the names of tasks and in messages

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

    def _begun(self, checkpoint: Path | None = None) -> Self:
        """Return a shallow copy that a fit is made of, with its seed: of what the checkpoint holds, where one is drawn."""
        begun = copy(self)
        if hasattr(self, "random_state"):
            begun.seed_ = draw_seed(self.random_state)
            held = stored_seed(checkpoint) if checkpoint is not None and draws_seed(self.random_state) else None
            begun.seed_ = begun.seed_ if held is None else held
        return begun

    @abstractmethod
    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from X (n, d) what ``transform`` needs."""

    @abstractmethod
    def __sklearn_is_fitted__(self) -> bool:
        """Whether ``transform`` has what it needs."""

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
            Write to a new Zarr array instead, in one read, and return the Dask array over it. Invisible until complete; a
            killed run resumes. ``"scores.npy"`` and ``"scores.parquet"`` become tables: numbers of shape (n, k), with keys
            records of the fields ``key`` and ``scores``; a column ``key`` and those of :meth:`get_feature_names_out`.
        overwrite : bool
            Replace an existing ``out`` once the new one is complete.
        progress : True for a bar, or a callable that takes events
        keys : array-like of shape (n,), or path such as ``"labels.csv::filename"``
            A distinct string or integer for each row, stored beside the scores; None for those of the store that X lies in,
            where it has any. :func:`bigpca.data.keys.stored_keys` returns them.

        Raises
        ------
        NonFiniteError, MissingChunksError, CorruptedChunkError
            From the read, naming rows and block.
        OutputExistsError, OutputLockedError, MemoryBudgetError, ImportError
            Before any read, where ``out`` is taken, does not fit the disk or memory, or needs a library.
        ValueError
            Before any read, for missing and doubled keys, for another number of keys than rows, and for keys without ``out``.
        """
        if keys is not None and out is None:
            raise ValueError("keys are stored beside the scores, but no out was given. Give out=, or leave keys out.")
        check_is_fitted(self)
        if out is not None or is_lazy(X):
            self._reject_container()
        opened = self._open(X, reset=False)
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

    @property
    def provenance_(self) -> Provenance | None:
        """How the model was made; None where that was not recorded: of rows that were added, merged models, older files."""
        return vars(self).get("_provenance")

    # Inside ---------------------------------------------------------------------------------------------------------

    def _open(self, X: Any, *, reset: bool, minimum: int = 1) -> da.Array:
        """Return X, checked, as a Dask array; a hook for estimators that take more than numbers."""
        return as_dask(self, X, reset=reset, minimum=minimum)

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

    def _remember_features(self, seen: RowTransformer) -> None:
        """Take number and names of features, and the seed, from ``seen``, a copy of this estimator that X was checked with."""
        self.n_features_in_ = seen.n_features_in_
        if "seed_" in vars(seen):
            self.seed_ = seen.seed_
        if hasattr(seen, "feature_names_in_"):
            self.feature_names_in_ = seen.feature_names_in_
        else:
            self.__dict__.pop("feature_names_in_", None)

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
        return tags
