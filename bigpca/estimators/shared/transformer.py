"""The base class of all estimators: it plans a fit before any read, executes it, and maps rows.

What a subclass writes comes first, then the methods that users call, and the result, in whose place a solve may wait.
Above the class: the names in bigpca of parameters that scikit-learn names differently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from inspect import Parameter, Signature, get_annotations
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar, cast, dataclass_transform

import numpy as np
from numpy.typing import DTypeLike, NDArray
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Input, Path
from bigpca.data.batches import BatchLabels, batch_labels, has_batches, reject_batches
from bigpca.data.grids import Grid
from bigpca.data.provenance import Provenance
from bigpca.data.views import RowPattern, View
from bigpca.engine.driver import solving
from bigpca.engine.events import ProgressArgument
from bigpca.engine.planning import Plan
from bigpca.errors import ShortTraceback, an, closest, warn_approximation
from bigpca.estimators.shared.exporting import Tables
from bigpca.estimators.shared.files import StoredModel, save_model
from bigpca.estimators.shared.fit import Fit, Reading, call_of, draw_fit_seed, execute, fit_seed, unfitted
from bigpca.estimators.shared.inputs import (
    BaseEstimator,
    Lazy,
    Steps,
    TransformerMixin,
    Unchecked,
    as_fitted,
    is_lazy,
    open_rows,
)
from bigpca.estimators.shared.labelled import labelled_rows, labels_for, open_on_grid
from bigpca.estimators.shared.opening import (
    given_beside,
    opened,
    preprocessors_of,
    set_known,
)
from bigpca.estimators.shared.outputs import (
    Destination,
    check_float,
    mapped,
    maps_rows,
    reject_container,
    whole_map,
)
from bigpca.estimators.shared.results import Result, Traits, Waiting
from bigpca.passes.prices import machine_speed
from bigpca.passes.reading.blocks import INCOMPLETE
from bigpca.passes.reading.row_maps import Copy, Preprocess, RowMap, RowPreprocessor, preprocessors
from bigpca.passes.residuals import LearnedResiduals, Residuals
from bigpca.passes.rows import Rows
from bigpca.records import Held, check_shapes, unpack
from bigpca.settings import DEFAULTS as RUN_SETTINGS
from bigpca.settings import config, in_force
from bigpca.storage.files import digest

# scikit-learn's name -> (bigpca's names: a class has one of them, or ""; a remark on the first).
TRANSLATIONS = {
    "svd_solver": (
        "solver",
        '"full" and "covariance_eigh" are "covariance", "randomized" and "arpack" are "krylov", '
        'and "tsqr" of dask-ml is "dot" or "covariance".',
    ),
    "eigen_solver": ("solver", '"dense", "krylov" or "auto".'),
    "svd_method": ("solver", "By default it is chosen by cost."),
    "algorithm": ("solver", "By default it is chosen by cost."),
    "iterated_power": ("max_passes", "solver='krylov' iterates until tol or max_passes."),
    "max_iter": ("max_passes", "An iteration stops at tol, or after max_passes reads of X."),
    "n_iter": ("max_passes max_iter", "An iteration stops at tol, or after max_passes reads of X."),
    "n_oversamples": ("tol", "An iteration chooses its block, and stops at tol."),
    "power_iteration_normalizer": ("", "Bases are always orthonormalized. Leave it out."),
    "shrinkage": ("regularization", "It is added to the within-class scatter."),
    "batch_size": ("", "X is read in blocks that memory_limit allows. Leave it out."),
    "copy": ("", "X is never changed. Leave it out."),
    "copy_X": ("", "X is never changed. Leave it out."),
    "n_jobs": ("", "Dask's scheduler sets the threads: dask.config.set(num_workers=...). Leave it out."),
    "kernel_params": ("kernel", "Give a kernel with its parameters, such as bigpca.kernels.RBF(gamma=0.1)."),
    "remove_zero_eig": ("", "Components of eigenvalue 0 have scores of 0. Leave it out."),
    "component_indices": ("sampling", "Pass the numbers of the rows."),
    "store_covariance": ("", "PCA(...).get_covariance() returns it. Leave it out."),
    "priors": ("", "Class priors are their shares in y. Leave it out."),
    "seed": ("random_state", ""),
    "alphas": ("alpha", ""),
    "alpha": ("fit_inverse_transform", "It takes the penalty in place of True, which is 1.0."),
    "k": ("n_components", ""),
    "dim": ("n_components", ""),
}


ATTRIBUTES = {  # of scikit-learn's estimators
    "n_samples_seen_": "n_samples_",
    "var_": "get_covariance().diagonal()",
    "covariance_": "get_covariance()",
    "means_": "class_means_",
    "scalings_": "components_",
    "lambdas_": "eigenvalues_",
    "alphas_": "eigenvectors_",
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
        names, remark = TRANSLATIONS.get(name, ("", ""))
        ours = next((one for one in names.split() if one in own), "")
        if name in RUN_SETTINGS:
            hint = f" It is a setting of runs: with bigpca.config({name}=...), or bigpca.config({name}=...).keep()."
        elif ours:
            hint = f" It is called {ours} here. {remark if names.startswith(ours) else ''}".rstrip()
        elif name in TRANSLATIONS:
            hint = f" {'Nothing of the kind is chosen here. Leave it out.' if names else remark}"
        else:
            hint = closest(name, own)
        if hint:
            raise TypeError(f"{estimator} has no parameter {name!r}.{hint}")


Found = TypeVar("Found", bound=Result)
Constructed = TypeVar("Constructed")


@dataclass_transform(kw_only_default=True)
def of_all(kind: type[Constructed]) -> type[Constructed]:
    """Declare, for type checkers, that all subclasses take the fields with a default, after their own and by name."""
    return kind


@of_all
class CommonParameters(BaseEstimator):
    """The parameters of all estimators: what is applied to each row first, and what is to be done in general."""

    preprocess: Preprocess = None
    nan_policy: str = "raise"
    memory_limit: int | str | None = None


OF_ALL = tuple(CommonParameters.__annotations__)


@dataclass_transform(eq_default=False)
def with_parameters(kind: type[Constructed]) -> type[Constructed]:
    """Write the constructor of an estimator: one attribute for each of its annotated fields, and those of its bases.

    NOTE: not as a dataclass: other libraries take the fields of a dataclass for all of its state, so that Dask would
    give two fits with equal parameters one token.
    """
    found = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    for base in kind.__mro__:
        place = Parameter.POSITIONAL_OR_KEYWORD if base is kind else Parameter.KEYWORD_ONLY
        for name, hint in get_annotations(base).items():
            if hint == "KW_ONLY":
                place = Parameter.KEYWORD_ONLY
            elif name in vars(base) and name[0] != "_" and name not in {one.name for one in found}:
                found.append(Parameter(name, place, default=getattr(kind, name), annotation=hint))
    made = Signature(found, return_annotation=None)
    defaults = {one.name: one.default for one in found[1:]}
    positional = [one.name for one in found[1:] if one.kind is Parameter.POSITIONAL_OR_KEYWORD]

    def __init__(self: object, *values: object, **named: object) -> None:
        stated = dict(zip(positional, values, strict=False))
        if len(stated) < len(values) or stated.keys() & named.keys() or not named.keys() <= defaults.keys():
            check_parameter_names(type(self).__name__, named, defaults)
            try:
                made.bind(self, *values, **named)
            except TypeError as error:
                raise TypeError(f"{type(self).__name__}: {error}") from None
        vars(self).update(defaults | stated | named)

    __init__.__signature__ = made  # type: ignore[attr-defined]
    kind.__init__ = __init__  # type: ignore[method-assign]
    return kind


class Estimator(CommonParameters, Tables, TransformerMixin, BaseEstimator, ABC, Generic[Found]):
    """A scikit-learn transformer that reports the cost of a fit in advance, and keeps to it.

    What you write to add an estimator: its parameters as fields, a row in the table of :mod:`bigpca.estimators`, and
    these; most have a default::

        _traits             the class of the result, the prefix of names, and what fits take beside rows
        _fit                the parameters checked, and the fit planned: a ``Fit``, which nothing reads yet
        _row_map            the map of rows that ``transform`` applies
        _shrunk_map         the same with scores that are corrected for shrinkage, if the class knows it
        _made               the result of what the fit returned, if that is not the record itself
        _warn               warnings of a new result
        _restored           the result from a file, with what only the class knows of it
        _open               X opened, if the class takes more than numbers
        _targets            y as a fit takes it, if it is rows too
        _preprocessors      what is applied to each row first, if rows are not always vectors
        _steps_of           what a fit makes of its rows, if that is more
        _remember           what the model keeps of the rows beside its result

    The result is a frozen record: its attributes are those of the fitted model, and its fields those of the file.
    Rooms of methods are bases beside it: :class:`bigpca.estimators.shared.growing.Grows` (``partial_fit``, ``merge``),
    ``LinearExports`` and ``FeatureAxes`` of :mod:`bigpca.estimators.shared.exporting`, and ``BoundedSubspaces`` of
    :mod:`bigpca.estimators.shared.certificates`.

    Attributes
    ----------
    preprocess, nan_policy, memory_limit
        Parameters, as in :class:`bigpca.PCA`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str, if X had names
    seed_ : int
        Seed of the fit, if the estimator has a ``random_state``.
    plan_ : Plan
    """

    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    _found: Found | Waiting[Found]
    _traits: ClassVar[Traits]
    _beside: ClassVar[bool] = False  # whether the map of rows takes their covariates, too
    _steps: Steps = Steps()
    _brought: Mapping[str, object] = MappingProxyType({})  # settings of the process in which it was pickled

    @abstractmethod
    def _fit(self, rows: Rows, y: Unchecked) -> Reading:
        """Check the parameters and plan the fit, without reading X: a ``Fit``, unless the class overrides ``fit``."""

    def _made(self, found: Unchecked) -> Found:
        """Return the record of what a fit returned; a hook for models that make more of it."""
        return cast("Found", found)

    def _warn(self, found: Found, n_classes: int = 1) -> None:
        """Warn where a new result is uncertain: where weights are hardly counts.

        Kish's effective number of rows is far above their sum where they are shares or precisions, and the divisor
        ``sum - n_classes`` then moves variances by over 1 %.

        Raises
        ------
        ValueError
            For weights that add up to too little for a variance.
        """
        getattr(found, "total_variance_", None)
        total, effective = getattr(found, "sum_weights_", 0.0), getattr(found, "n_effective_", 0.0)
        if effective > 2 * total and total < 100 * n_classes:
            factor = (1 - n_classes / effective) / (1 - n_classes / total)
            warn_approximation(
                f"the weights add up to {total:.6g}, but are worth {effective:.6g} rows of equal weights: if these are "
                f"not counts, variances are {factor:.3g} times too large, as they are divided by the sum minus "
                f"{n_classes}. Pass sample_weight=bp.data.reliability(w)."
            )

    @abstractmethod
    def _row_map(self) -> RowMap:
        """Return the row map that ``transform`` applies."""

    def _shrunk_map(self, shrinkage: str) -> RowMap:
        """Return the row map to scores that are corrected for shrinkage; a hook for models that know it."""
        raise TypeError(
            f"shrinkage = {shrinkage!r} corrects the scores of PCA, but the model is {an(type(self).__name__)}. Leave "
            "it out."
        )

    def _restored(self, held: Held) -> Found:
        """Return the record that a file holds; KeyError, TypeError or ValueError if it is invalid."""
        return cast("Found", unpack(self._traits.result, held))

    @solving
    def plan(
        self,
        X: Input,
        y: Input | None = None,
        *,
        sample_weight: Input | None = None,
        covariates: Input | None = None,
        groups: Input | None = None,
    ) -> Plan:
        """Return the cost of ``fit(X, y, sample_weight=...)`` without reading X: print the plan, or use its fields.

        The first plan in a process takes a third of a second to measure the speed from which times are estimated. For a
        lazy DataArray all columns are counted, because only a read shows which ones have no values: after the fit,
        ``plan_`` has the numbers for the columns that remain.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, d)
            Rows, as for :meth:`fit`.
        y : labels as for :meth:`fit`, default None
        sample_weight : weights of the rows as for :meth:`fit`, default None
        covariates : covariates as for :meth:`fit`, default None
        groups : labels of groups as for :meth:`fit`, default None

        Returns
        -------
        Plan
            Solver, reads, bytes, memory in bytes and time in seconds.

        Raises
        ------
        MemoryBudgetError
            If no solver fits in memory (``solver="auto"``); the plan of a named solver has ``fits = False`` instead.
        """
        beside: dict[str, Unchecked] = {"sample_weight": sample_weight, "covariates": covariates, "groups": groups}
        rows = replace(opened(self, X, y, **beside, use="plan"), seed=fit_seed(self))
        planned = self._fit(rows, rows.y)
        return planned.plan.timed(machine_speed())

    @solving
    def fit(
        self,
        X: Input,
        y: Input | None = None,
        *,
        sample_weight: Input | None = None,
        covariates: Input | None = None,
        groups: Input | None = None,
        checkpoint: Path | None = None,
        progress: ProgressArgument = None,
    ) -> Self:
        """Fit to X (n, d), in the reads that :meth:`plan` counts.

        Parameters
        ----------
        X : Dask array or DataFrame, path, list of paths, Zarr array, h5py.Dataset, xarray.DataArray, or array-like
            ``bigpca.open(X, pattern=...)`` makes rows of pixels or tokens. Otherwise dimensions after the
            first are flattened. Masked entries become NaN. Feature names are the columns of
            a frame or the coordinates of a DataArray's features. The first dimension of a DataArray holds the samples
            (``bigpca.open(X, sample_dims=...)`` chooses others). Columns that are NaN in every sample are left out,
            unless a mask chose the columns (``bigpca.open(X, mask=...)``); fitted attributes cover the others.
        y : labels of the rows, for supervised models; ignored by the others, default None
            Joined by key where both have keys, else in the order of the rows: see :func:`bigpca.data.by_key`.
        sample_weight : array-like of shape (n,), Dask or Zarr array, or path such as "weights.csv::w", default None
            How often each row counts: an integer equals that many repetitions, 0 equals absence, and the sum
            replaces n. Joined as labels are. For weights that are not counts, see :func:`bigpca.data.reliability`.
            Not for every estimator and solver; the others reject it.
        covariates : array-like, Dask array, path and so on, of shape (n, q), default None
            Covariates Z of the same rows, such as indicators of batches or the age: the model is that of the residuals
            of the regression of X on Z and a constant; of CCA, PLSSVD, PLSRegression and Ridge, of X and Y. These, and
            PCA by its moments, read both once; other fits find the effect in one more read, and apply that of the
            first fit to rows that are added. Joined as labels are. Rows that are opened with them,
            ``bigpca.open(X, covariates=Z)``, have them in all methods.
        groups : labels of the rows, default None
            Rows that belong together, such as those of one subject or site. Joined as ``y`` is. PCA keeps the moments
            of each group; each is a fold of the cross-validation of Ridge with several penalties, and a trajectory for
            estimators of steps between rows, such as TICA. Others reject it.
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
            For dtypes and containers whose rows are not real numbers in memory, for sparse rows in
            fits that pair all rows, and for weights that the fit cannot use; the message names an alternative.
        ValueError
            For weights that are negative or not finite, not one per row, or add up to at most 1.
        NonFiniteError, MissingChunksError, CorruptedChunkError
            During the read; the message names rows and block.
        CheckpointError, OutputLockedError
            If the checkpoint belongs to another computation, or is in use.
        """
        belonging: dict[str, Unchecked] = {"sample_weight": sample_weight, "covariates": covariates, "groups": groups}
        rows = replace(opened(self, X, y, **belonging, progress=progress), seed=draw_fit_seed(self, checkpoint))
        planned = cast("Fit[Found]", self._fit(rows, rows.y))
        seed = rows.seed if hasattr(self, "random_state") else None
        call = call_of(self, "fit", rows)
        found, made = execute(self, planned, planned.run, call, progress=progress, checkpoint=checkpoint, seed=seed)
        finish(self, rows, planned.plan, found)
        self._provenance = made
        return self

    @maps_rows
    def transform(
        self,
        X: Input,
        *,
        out: Path | None = None,
        overwrite: bool = False,
        progress: ProgressArgument = None,
        keys: Input | None = None,
        dtype: DTypeLike | None = None,
        covariates: Input | None = None,
        shrinkage: str | None = None,
    ) -> Lazy:
        """Map X (n, d) row by row: lazily and with the same row chunks if X is lazy, otherwise immediately.

        If the model was fitted with a pattern, stored samples (n, c, h, w) are cut into rows by it again. Rows from
        :func:`bigpca.from_batches` are mapped immediately, in order, as the batches are iterated.

        Parameters
        ----------
        out : path, default None
            Write to a new Zarr array in one read, and return the Dask array over it. The array is invisible until it is
            complete, and a killed run resumes (a run over batches starts again). ``"scores.npy"`` is a file of shape
            (n, k), without keys; ``"scores.parquet"`` is a table with the columns of :meth:`get_feature_names_out`,
            and a column ``key`` if rows have keys.
        overwrite : bool, default False
            Replace an existing ``out`` once the new one is complete.
        progress : True for a bar, or a callable that receives events, default None
        keys : array-like of shape (n,), or path such as ``"labels.csv::filename"``, default None
            A distinct string or integer for each row, stored beside the scores; None for the keys in the store of X,
            or those of a frame's index, if it has any. :func:`bigpca.data.keys.stored_keys` returns them.
        dtype : {"float16", "float32", "float64"}, default None
            Dtype in which the scores are returned or stored; None for the dtype in which they are computed. Scores that
            it cannot hold are rejected.
        covariates : array-like, Dask array, path and so on, of shape (n, q), default None
            Covariates of these rows, if X was not opened with them. Only for a model of rows with covariates.
        shrinkage : {"oadp", "factor"}, default None
            Of PCA, for rows that were not fitted, where rows of the fit were few beside columns and new rows project
            too near the mean. "oadp": the scores of a fit with this row as one more, the noisier the row the larger.
            "factor": scores divided by ``shrinkage_factors_``, among rows of the fit like this one. For rows of the fit
            both are wrong; ``inverse_transform`` takes uncorrected scores.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, k)
            Scores, in float32 if it represents every number of X's dtype, otherwise in float64. Lazy if X is lazy, and
            with ``out``. For a DataArray, a DataArray with the coordinates of its samples and a dimension
            ``component``, numbered from 0.

        Raises
        ------
        NonFiniteError, MissingChunksError, CorruptedChunkError
            During the read; the message names rows and block.
        OutputExistsError, OutputLockedError, MemoryBudgetError, ImportError
            Before any read, if ``out`` exists, is in use, exceeds the disk or memory, or requires a missing library.
        ValueError
            Before any read, for missing or duplicate keys, a number of keys other than n, or keys without ``out``; for
            a DataArray on another grid than that of the fit; and for another dtype.
        """
        check_is_fitted(self)
        if out is not None or is_lazy(X):
            reject_container(self, self._traits.output, X if out is None else None)
        names = () if out is None else tuple(map(str, self.get_feature_names_out()))
        to = Destination(out, overwrite, progress, keys, names)
        with ShortTraceback():
            f, width = self._row_map() if shrinkage is None else self._shrunk_map(shrinkage), self._result.width
            if dtype is not None:
                f = Copy(check_float(dtype), f)
            rows = opened(self, X, covariates=covariates, use="map")
            scores = mapped(self, rows, f, width, to)
        return labelled_rows(scores, labels_for(X, rows), self._traits.output)

    def fit_transform(self, X: Input, y: Input | None = None, **options: Any) -> Lazy:  # type: ignore[explicit-any]
        """Fit to X and return its transform, which reads X once more (for a lazy result, when it is computed).

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, d)
            Rows, as for :meth:`fit`.
        y : labels as for :meth:`fit`, default None
        **options
            ``covariates``, ``checkpoint`` and ``progress``, as for :meth:`fit`.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, k)
            Scores. Lazy if X is lazy. Of CCA, PLSSVD and PLSRegression, as in scikit-learn, a tuple of the scores of X
            and of those of y.
        """
        if is_lazy(X):
            reject_container(self, self._traits.output, X)
            if has_batches(opened := self._open(X).X):
                raise TypeError(
                    "fit_transform needs a second read, which an iterator cannot give, and in which batches may come "
                    "in another order. Call fit(X) and then transform(X) with what from_batches returns."
                )
            reject_batches(opened, self._traits.output)
        own = {"covariates": options["covariates"]} if options.get("covariates") is not None else {}
        if "scores of y" in self._traits.accepts:
            own["Y"] = y
        return self.fit(X, y, **options).transform(X, **own)

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
        TypeError
            For a class of your own that extends one of bigpca.
        """
        check_is_fitted(self)
        preprocessors_of(self, same=True)
        if "_traits" not in vars(type(self)):
            raise TypeError(
                f"{type(self).__name__} is a class of your own, which bigpca.load would not know. Pickle the model, or "
                "fit one of the class that it extends."
            )
        save_model(path, StoredModel.of(self), overwrite=overwrite)

    @property
    def provenance_(self) -> Provenance | None:
        """How the model was made, with what was planned and measured; None where an older file does not say."""
        return vars(self).get("_provenance")

    @property
    def preprocess_(self) -> tuple[RowPreprocessor, ...]:
        """The steps that are applied to each row first, in order; a target that the fit found is filled in."""
        check_is_fitted(self)
        return preprocessors_of(self, same=True)

    @property
    def pattern_(self) -> RowPattern | None:
        """The pattern given to :func:`bigpca.open` for the fit, which says what a row is; None for whole samples."""
        view = self._steps.view
        return None if view is None else view.pattern

    def _open(self, X: Unchecked, *, minimum: int = 1, fitted: bool = False) -> Rows:
        """Open X, as rows of the fit if that is asked; a hook for estimators that accept more than numbers."""
        grid, opened = self._steps.grid, partial(open_rows, estimator=type(self).__name__, minimum=minimum)
        if not fitted:
            return opened(X)
        return as_fitted(self, opened(X) if grid is None else open_on_grid(X, grid, type(self).__name__, opened))

    def _targets(self, rows: Rows, y: Unchecked, use: str, progress: ProgressArgument) -> Unchecked:
        """Return y as a fit takes it: labels in the order of the rows, given or brought by these or by their batches.

        A hook for models of two sides. The options are those of :func:`bigpca.estimators.shared.opening.opened`.
        """
        held = rows.origin.arrays is None and isinstance(y, np.ndarray | list | tuple)  # neither has keys
        if "labels" not in self._traits.accepts or held:  # those that are ignored are not read
            return y
        from bigpca.data.keys import in_row_order  # imports all formats of labels, which other fits do not need

        absent = None if getattr(self, "missing_labels", "raise") == "drop" else "raise"
        found = batch_labels(rows.X, in_row_order(given_beside(rows, "labels", y, absent), rows.X, absent=absent))
        if isinstance(found, BatchLabels) and "labels beside rows" not in self._traits.accepts:
            found.reject()  # the fit must know all before the read
        return found

    def _preprocessors(self) -> tuple[RowPreprocessor, ...]:
        """Return what is applied to each row first; a hook for estimators whose rows are not always vectors."""
        return () if self.preprocess is None else preprocessors(self.preprocess)

    def _learns(self, rows: Rows) -> tuple[RowPreprocessor, ...]:
        """Return what a read of a fit finds of rows with covariates, to take their effect out; a hook for sums of z."""
        # Linear models subtract and report the mean themselves.
        return (LearnedResiduals(Residuals("mean_" in self._traits.result.names())),)

    def _remember(self, rows: Rows) -> None:
        """Set the number and names of features, and what was made of the rows."""
        self.n_features_in_ = rows.viewed_columns
        set_known(self, feature_names_in_=rows.origin.names)
        labels, view = rows.origin.labels, rows.origin.view
        view = view if view is not None and view.kept else None
        analysed = self._steps_of(rows.viewed_columns, view, None if labels is None else labels.grid)
        applied = analysed.preprocessing if rows.preprocessing is None else tuple(f.settled for f in rows.preprocessing)
        of_each = 0 if rows.covariates is None else rows.covariates.viewed_columns
        analysed = replace(analysed, summed=0, preprocessing=applied, counts=None)
        self._steps = replace(analysed, summed=of_each - analysed.covariates)
        set_known(self, covariate_names_in_=rows.covariates and rows.covariates.origin.names)

    def _steps_of(self, d: int, view: View | None, grid: Grid | None) -> Steps:
        """Return what a fit to rows of d columns makes of them; a hook for models that do more."""
        before = self._steps
        steps = Steps(view, grid, preprocessors_of(self), summed=before.summed, counts=before.counts)
        filled = self.nan_policy if self.nan_policy in INCOMPLETE else ""
        return replace(steps, filled=filled, parameters=self.get_params(deep=False))

    def _digest(self) -> str:
        """Return the digest of the row map: it identifies a model, and the scores that the model made.

        It depends neither on where blocks are multiplied nor on what becomes of rows with missing values.
        """
        plain = copy(self)
        plain.nan_policy = "raise"
        with config(arithmetic="numpy"):
            return digest(whole_map(plain).describe())

    @property
    def _result(self) -> Found:
        """The fitted numbers; the solve that waits, if any, runs now."""
        found = vars(self).get("_found")
        if found is None:
            raise NotFittedError(f"This {type(self).__name__} instance is not fitted yet. Call fit first.")
        if isinstance(found, Waiting):
            vars(self)["_found"] = found = found()
        return cast("Found", found)

    if not TYPE_CHECKING:  # a type checker would conclude that every attribute exists

        def __getattr__(self, name: str) -> object:
            found = vars(self).get("_found")
            if found is not None and name in self._traits.result.names():
                with suppress(AttributeError):
                    if isinstance(found, Waiting) and name in ("n_samples_", "n_omitted_"):
                        return getattr(found.kept, name)
                    if self.__sklearn_is_fitted__():
                        return self._result.attribute(name)
            ours = ATTRIBUTES.get(name, "")
            if ours and hasattr(self, ours.partition("(")[0]):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}. Use {ours}.")
            return object.__getattribute__(self, name)  # raises AttributeError, with the reason of a property

    def __setattr__(self, name: str, value: object) -> None:
        kind = self._traits.result
        if "_found" not in vars(self) or name not in kind.names():
            object.__setattr__(self, name, value)
        elif name in kind.__dataclass_fields__:
            self._found = replace(cast("Unchecked", self._result), **{name: value})
        else:
            raise AttributeError(f"{name} follows from other numbers of the fit, and cannot be set.")

    def __copy__(self) -> Self:
        """Return a shallow copy, with the same pending solve."""
        twin = object.__new__(type(self))
        twin.__dict__.update(vars(self))
        return twin

    def __getstate__(self) -> dict[str, object]:
        state: dict[str, object] = super().__getstate__()
        return {**state, "_brought": brought} if (brought := in_force(self)) else state

    def __sklearn_clone__(self) -> Self:
        twin: Self = super().__sklearn_clone__()
        set_known(twin, _brought=self._brought or None)
        return twin

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.allow_nan = self.nan_policy in ("omit", *INCOMPLETE)
        tags.input_tags.sparse = True
        tags.target_tags.required = "labels" in self._traits.accepts
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        found = vars(self).get("_found")
        return found is not None and not (isinstance(found, Waiting) and found.kept.n_samples_ < self._traits.min_rows)


def finish(model: Estimator[Found], rows: Rows, plan: Plan, found: object) -> None:
    """Set the fitted attributes after a fit that succeeded."""
    made = check_shapes(model._made(found))  # first: if it fails, nothing has changed
    owner = unfitted(model)  # with the names of these rows, not of an earlier fit
    set_known(owner, feature_names_in_=rows.origin.names)
    owner._warn(made)
    model._found, model.solver_ = made, plan.solver
    set_known(model, _provenance=None)  # that of the previous fit
    model._remember(rows)
    if hasattr(model, "random_state"):
        model.seed_ = rows.seed
    model.plan_ = plan


AnyEstimator: TypeAlias = Estimator[Any]  # type: ignore[explicit-any]  # whatever its fit returns
