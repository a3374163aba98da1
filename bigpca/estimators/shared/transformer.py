"""Estimators that map rows: lazily for lazy input, in memory otherwise, or to a new Zarr array."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, ClassVar, Self, TypeAlias

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from bigpca.estimators.shared.files import StoredModel, save_model
from bigpca.estimators.shared.inputs import as_dask, check_plain_parameters, is_lazy
from bigpca.passes.engine.checkpoint import stored_seed
from bigpca.passes.engine.progress import ProgressArgument, resolve_progress
from bigpca.passes.engine.run import Run
from bigpca.passes.project import project_in_memory, project_lazily, project_to
from bigpca.passes.reading.row_maps import RowMap
from bigpca.passes.rows import RowInput
from bigpca.seeds import check_seed, draw_seed, draws_seed

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
    """

    out: Path | None = None
    overwrite: bool = False
    progress: ProgressArgument = None


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
        self, X: Any, *, out: Path | None = None, overwrite: bool = False, progress: ProgressArgument = None
    ) -> Lazy:
        """Return the new features of X (n, d), row by row: lazy for lazy input with the same row chunks, else computed.

        Parameters
        ----------
        out : path
            Write to a new Zarr array instead, in one read, and return the Dask array over it. Invisible until complete; a
            killed run resumes.
        overwrite : bool
            Replace an existing ``out`` once the new one is complete.

        Raises
        ------
        NonFiniteError, MissingChunksError, CorruptedChunkError
            From the read, naming rows and block.
        OutputExistsError, OutputLockedError, MemoryBudgetError
            Before any read, where ``out`` is taken or does not fit the disk or memory.
        """
        check_is_fitted(self)
        if out is not None or is_lazy(X):
            self._reject_container()
        opened = self._open(X, reset=False)
        return self._map(X, opened, self._row_map(), self._n_features_out, Destination(out, overwrite, progress))

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
                return project_to(
                    rows, f, columns, to.out, name=self._output_name, run=run, overwrite=to.overwrite,
                    memory_limit=self.memory_limit,
                )  # fmt: skip
        if is_lazy(X):
            return project_lazily(opened, f, columns, missing_chunks=self.missing_chunks)
        return project_in_memory(RowInput(opened), f, columns)

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
