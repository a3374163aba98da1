"""The base class of all estimators: it plans a fit before any read, executes it, and maps rows.

The methods that users call come first, then the way of rows and labels into a fit, the way of rows through a fitted
model, solves that wait until a fitted attribute is accessed, and what an estimator shows of itself. Above the class:
the names in bigpca of parameters that scikit-learn names differently, and methods that only some families have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from inspect import Signature, signature
from numbers import Integral
from pathlib import Path as FilePath
from types import MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar, cast, dataclass_transform

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

import bigpca.dask_array as da
from bigpca.arrays import Vector
from bigpca.data.batches import BatchLabels, batch_labels, has_batches, reject_batches
from bigpca.data.containers import is_labelled
from bigpca.data.grids import Grid
from bigpca.data.patterns import RowPattern
from bigpca.data.provenance import Made, Provenance
from bigpca.data.roles import ROWS
from bigpca.data.views import View, carrying
from bigpca.data.weights import degrees_of_freedom, warn_of_shares
from bigpca.errors import ShortTraceback, check_choice, closest, naming_argument, required
from bigpca.estimators.shared.certificates import bounds_subspaces
from bigpca.estimators.shared.files import StoredModel, save_model
from bigpca.estimators.shared.fit import Fit, Reading, draw_fit_seed, execute, fit_seed
from bigpca.estimators.shared.inputs import (
    Exported,
    Input,
    Lazy,
    Steps,
    as_fitted,
    check_names,
    check_policies,
    compare_own_names,
    is_lazy,
    note_flattened,
    open_rows,
    open_scores,
)
from bigpca.estimators.shared.labelled import (
    dataset_of,
    grid_of,
    labelled_rows,
    naming_places,
    open_on_grid,
    open_side,
    rows_on_grid,
    without_empty_columns,
)
from bigpca.estimators.shared.outputs import (
    Destination,
    Path,
    check_float,
    container_of,
    lazy_dask_frames,
    map_rows,
    maps_rows,
    reject_container,
    write_rows,
)
from bigpca.estimators.shared.results import Kept, Result, Waiting, unsolved
from bigpca.estimators.shared.sklearn_bases import BaseEstimator, TransformerMixin
from bigpca.export.linear import Affine, LinearMap, LinearRowMap, faiss_index, faiss_transform, torch_layer, write_onnx
from bigpca.passes.accumulators.observed_columns import ColumnSearch
from bigpca.passes.engine.driver import solving
from bigpca.passes.engine.events import ProgressArgument
from bigpca.passes.engine.jobs import digest
from bigpca.passes.engine.local import threads_here
from bigpca.passes.engine.resources import find_resources, speed_with
from bigpca.passes.graphs import wrap_sources
from bigpca.passes.reading.row_maps import (
    Copy,
    EachSide,
    MapStep,
    Preprocess,
    RowMap,
    RowPreprocessor,
    Stored,
    chained,
    preprocessors,
)
from bigpca.passes.rows import Rows, reject_weights
from bigpca.passes.summaries import search_passes
from bigpca.planning import Plan, Resources
from bigpca.records import Held, unpack
from bigpca.settings import DEFAULTS as RUN_SETTINGS
from bigpca.settings import brought_by, config, in_force, setting

if TYPE_CHECKING:
    from bigpca.passes.reading.codes import Codes

# scikit-learn's name -> (bigpca's name or "", a remark).
TRANSLATIONS = {
    "svd_solver": (
        "solver",
        '"full" and "covariance_eigh" are "covariance", "randomized" and "arpack" are "krylov", '
        'and "tsqr" of dask-ml is "dot" or "covariance".',
    ),
    "eigen_solver": ("solver", '"dense", "krylov" or "auto".'),
    "iterated_power": ("max_passes", "solver='krylov' iterates until tol or max_passes."),
    "max_iter": ("max_passes", "An iteration stops at tol, or after max_passes reads of X."),
    "n_oversamples": ("tol", "solver='krylov' chooses its block and stops at tol."),
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
    "alpha": ("fit_inverse_transform", "It takes the penalty in place of True, which is 1.0."),
    "missing_chunks": ("", 'It belongs to the rows: fit(bigpca.open(X, missing_chunks="fill")).'),
    "k": ("n_components", ""),
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
        ours, remark = TRANSLATIONS.get(name, ("", ""))
        if name in RUN_SETTINGS:
            hint = f" It is a setting of runs: with bigpca.config({name}=...), or bigpca.config({name}=...).keep()."
        elif ours in own:
            hint = f" It is called {ours} here. {remark}".rstrip()
        elif not ours and remark:
            hint = f" {remark}"
        else:
            hint = closest(name, own)
        if hint:
            raise TypeError(f"{estimator} has no parameter {name!r}.{hint}")


Found = TypeVar("Found", bound=Result)
Method = TypeVar("Method")
Constructed = TypeVar("Constructed")


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def with_parameters(kind: type[Constructed]) -> type[Constructed]:
    """Write the constructor of an estimator, which sets one attribute for each of the annotated fields.

    It is the constructor of a dataclass, but the class is none: other libraries take the fields of a dataclass for all
    of its state, so that Dask would give two fits with equal parameters one token.
    """
    made: Input = dataclass(eq=False, repr=False, match_args=False)(kind)
    del made.__dataclass_fields__, made.__dataclass_params__
    made.__signature__ = signature(MethodType(made.__init__, made))  # tools would show what __new__ takes
    return kind


class _OfClassesWith:
    """A method of the classes that set a flag; for others the attribute does not exist."""

    def __init__(self, flag: str, fn: Input) -> None:
        self.flag, self.fn = flag, fn
        self.__doc__, self.__wrapped__ = fn.__doc__, fn

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, model: object, owner: type) -> object:
        if not getattr(owner, self.flag):
            raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}")
        return self.fn.__get__(model, owner)

    def __call__(self, *args: Input, **options: Input) -> Input:
        """Call the function; that the descriptor is callable gives pages of the API its signature."""
        return self.fn(*args, **options)


def only_with(flag: str) -> Callable[[Method], Method]:
    """Keep a method to the classes that set ``flag``: one place for what linear models of all families have.

    scikit-learn's ``available_if`` would show it among the methods of all classes.
    """

    def of_classes(method: Method) -> Method:
        return cast("Method", _OfClassesWith(flag, method))

    return of_classes


FLOPS_PER_VALUE = 4  # of preprocessing


def _of_first_side(maps: tuple[RowPreprocessor, ...], rows: Rows) -> tuple[RowMap, ...]:
    """Return maps of X, which leave covariates behind it as they are."""
    return (EachSide((maps, ()), rows.widths),) if maps and rows.widths else maps


@lazy_dask_frames
class Estimator(TransformerMixin, BaseEstimator, ABC, Generic[Found]):
    """A scikit-learn transformer that reports the cost of a fit in advance, and keeps to it.

    A subclass has the parameters named below and a row in the table of :mod:`bigpca.estimators.loading`. :meth:`_fit`
    plans its fit, ``_kind`` is the class of the record that it returns, whose attributes are those of the fitted model,
    and :meth:`_row_map` returns the map of rows. A ``partial_fit`` adds rows by :meth:`_solve_later`, which postpones
    the solve until a fitted attribute is first accessed: by ``transform``, ``save`` or pickle, but not by ``clone``,
    ``repr`` or ``check_is_fitted``.

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

    preprocess: Preprocess
    nan_policy: str
    memory_limit: int | str | None
    n_features_in_: int
    n_components_: int
    feature_names_in_: NDArray[np.object_]
    seed_: int
    plan_: Plan
    solver_: str
    _found: Found | Waiting[Found]
    _kind: ClassVar[type[Result]]  # of the record of a fit
    _prefix: ClassVar[str]  # of the names of components
    _summarized: ClassVar[tuple[tuple[str, str], ...]] = (  # columns of summary(), and attributes that some models have
        ("variance", "eigenvalues_"), ("variance", "explained_variance_"), ("share", "explained_variance_ratio_"),
    )  # fmt: skip
    _output_name: ClassVar[str]  # of the output of transform, in the names of tasks and in messages
    _min_rows: ClassVar[int] = 2  # that a fit requires
    _unweighted: ClassVar[str] = ""  # why a fit cannot use weights, where it cannot
    _takes_given: ClassVar[bool] = False  # whether a fit can take out the effect of covariates
    _labelled: ClassVar[bool] = False  # whether a fit requires labels
    _labels_beside_rows: ClassVar[bool] = False  # whether it can take them with the rows of batches
    _nan_policies: ClassVar[tuple[str, ...]] = ("raise", "omit")
    _maps_linearly: ClassVar[bool] = False  # whether other libraries can compute transform
    _certified: ClassVar[bool] = False  # whether a fit may be approximate, with bounds of its error
    _has_axes: ClassVar[bool] = False  # whether scores are along axes in the space of the features
    _components_of: ClassVar[str] = ""  # the attribute with the model whose components these are, if not this one
    _steps: Steps = Steps()
    _brought: Mapping[str, object] = MappingProxyType({})  # settings of the process in which it was pickled
    __signature__: ClassVar[Signature] = Signature()  # an abstract class has no constructor

    def __init_subclass__(cls, **options: Input) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):  # tools would show what __new__ takes
            cls.__signature__ = signature(MethodType(cls.__init__, cls))

    def __new__(cls, *args: Input, **parameters: Input) -> Self:
        if parameters and not parameters.keys() <= set(cls.__init__.__code__.co_varnames):
            check_parameter_names(cls.__name__, parameters, cls._get_param_names())
        return object.__new__(cls)

    @abstractmethod
    def _fit(self, rows: Rows, y: Input) -> Reading:
        """Check the parameters and plan the fit, without reading X: a ``Fit``, unless the class overrides ``fit``."""

    def _made(self, found: Input) -> Found:
        """Return the record of what a fit returned; a hook for models that make more of it."""
        return cast("Found", found)

    def _warn(self, found: Found) -> None:
        """Warn where a new result is uncertain: where the weights are hardly counts; see :func:`warn_of_shares`.

        Raises
        ------
        ValueError
            For weights that add up to too little for a variance.
        """
        getattr(found, "total_variance_", None)
        warn_of_shares(getattr(found, "sum_weights_", 0.0), getattr(found, "n_effective_", 0.0), self._n_classes(found))

    def _n_classes(self, found: Found) -> int:
        """Return the number of classes between which the fit tells rows apart; a hook."""
        return 1

    @abstractmethod
    def _row_map(self) -> RowMap:
        """Return the row map that ``transform`` applies."""

    def _reconstruction(self) -> RowMap:
        """Return the map from scores back to rows, of models that have one."""
        raise NotImplementedError

    @property
    def _n_features_out(self) -> int:
        """Number of columns of the output of ``transform``: that of the components, where there are such."""
        return self.n_components_

    def _restored(self, held: Held) -> Found:
        """Return the record that a file holds; KeyError, TypeError or ValueError if it is invalid."""
        return cast("Found", unpack(self._kind, held))

    @solving
    def plan(
        self, X: Input, y: Input = None, *, sample_weight: Input = None, given: Input = None, groups: Input = None
    ) -> Plan:  # fmt: skip
        """Return the cost of ``fit(X, y, sample_weight=...)`` without reading X: print the plan, or use its fields.

        The first plan on a machine takes about a second, to measure the speed from which times are estimated. For a
        lazy DataArray all columns are counted, because only a read shows which ones have no values: after the fit,
        ``plan_`` has the numbers for the columns that remain.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, d)
            Rows, as for :meth:`fit`.
        y : labels as for :meth:`fit`, default None
        sample_weight : weights of the rows as for :meth:`fit`, default None
        given : covariates as for :meth:`fit`, default None
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
        rows = replace(self._open_weighted(X, sample_weight, given, groups, read=False), seed=fit_seed(self))
        planned = self._planned_fit(rows, self._opened_targets(y, read=False))
        planned.check_readable()
        return replace(planned.plan, speed=speed_with(planned.device))

    @solving
    def fit(
        self, X: Input, y: Input = None, *, sample_weight: Input = None, given: Input = None, groups: Input = None,
        checkpoint: Path | None = None, progress: ProgressArgument = None,
    ) -> Self:  # fmt: skip
        """Fit to X (n, d), in the reads that :meth:`plan` counts.

        Parameters
        ----------
        X : Dask array or DataFrame, path, list of paths, Zarr array, h5py.Dataset, xarray.DataArray, or array-like
            ``bigpca.open(X, pattern=...)`` makes rows of pixels, tokens or pooled maps. Otherwise dimensions after the
            first are flattened, with a warning in the log. Masked entries become NaN. Feature names are the columns of
            a frame or the coordinates of a DataArray's features. The first dimension of a DataArray holds the samples
            (``bigpca.open(X, sample_dims=...)`` chooses others). Columns that are NaN in every sample are left out, and
            fitted attributes cover the other columns.
        y : labels of the rows, for supervised models; ignored by the others, default None
            Joined by key where both have keys, else in the order of the rows: see :func:`bigpca.data.by_key`.
        sample_weight : array-like of shape (n,), Dask or Zarr array, or path such as "weights.csv::w", default None
            How often each row counts: an integer equals that many repetitions, 0 equals absence, and the sum
            replaces n. Joined as labels are. For weights that are not counts, see :func:`bigpca.data.reliability`.
            Not for every estimator and solver; the others reject it.
        given : array-like, Dask array, path and so on, of shape (n, q), default None
            Covariates Z of the same rows, such as indicators of batches or the age: the model is that of the residuals
            of the regression of X on Z and a constant, from one read of both. For PCA; others reject it.
        groups : labels of the rows, default None
            Rows that belong together, such as those of one subject or video: each group is a fold of the
            cross-validation. Joined as ``y`` is. For Ridge of several penalties; others reject it.
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
        rows = self._open_weighted(X, sample_weight, given, groups, progress=progress)
        rows = replace(rows, seed=draw_fit_seed(self, checkpoint))
        note_flattened(X)
        planned = cast("Fit[Found]", self._planned_fit(rows, self._opened_targets(y, progress=progress)))
        seed = rows.seed if hasattr(self, "random_state") else None
        weighted = "" if rows.weights is None else ", sample_weight=w"
        weighted += "" if rows.covariates is None else ", given=Z"
        weighted += "" if rows.groups is None else ", groups=groups"
        labels = None if planned.rows.widths else rows.labels  # whose columns are those that are read
        with nullcontext() if labels is None else naming_places(labels):
            called = f"{self._called}.fit(X{weighted})"
            found, made = execute(
                self, planned, planned.run, called, progress=progress, checkpoint=checkpoint, seed=seed
            )
        self._finish(rows, planned.plan, found)
        self._provenance = made
        return self

    @maps_rows
    def transform(
        self, X: Input, *, out: Path | None = None, overwrite: bool = False,
        progress: ProgressArgument = None, keys: Input = None, dtype: Input = None, given: Input = None,
    ) -> Lazy:  # fmt: skip
        """Map X (n, d) row by row: lazily and with the same row chunks if X is lazy, otherwise immediately.

        If the model was fitted with a pattern, stored samples (n, c, h, w) are cut into rows by it again. Rows from
        :func:`bigpca.from_batches` are mapped immediately, in order, as the batches are iterated.

        Parameters
        ----------
        out : path, default None
            Write to a new Zarr array in one read, and return the Dask array over it. The array is invisible until it is
            complete, and a killed run resumes (a run over batches starts again). ``"scores.npy"`` is a file of shape
            (n, k) or, with keys, of records with the fields ``key`` and ``scores``; ``"scores.parquet"`` is a table
            with a column ``key`` and the columns of :meth:`get_feature_names_out`.
        overwrite : bool, default False
            Replace an existing ``out`` once the new one is complete.
        progress : True for a bar, or a callable that receives events, default None
        keys : array-like of shape (n,), or path such as ``"labels.csv::filename"``, default None
            A distinct string or integer for each row, stored beside the scores; None for the keys in the store of X,
            or those of a frame's index, if it has any. :func:`bigpca.data.keys.stored_keys` returns them.
        dtype : {"float16", "float32", "float64", "int8", "bits"}, default None
            Dtype in which the scores are returned or stored; None for the dtype in which they are computed. Scores that
            it cannot hold are rejected. "int8" and "bits" are codes for vector databases, whose range is known from the
            variances of the fit: no further read. "int8" is ``round(score / scale)``, at most 127 in magnitude, with
            one scale for all columns, 4 / 127 of the largest standard deviation: distances of codes are those of
            scores. ``out`` has the scale as its attribute ``scale_factor`` (in Parquet, in the metadata of the file
            under ``bigpca_attributes``), and the share of codes at the end of their range as ``saturated_share``. Where
            scores are read, such a store is decoded. "bits" are the signs of the scores, 8 in a byte (uint8, as
            ``numpy.packbits``), to be compared by Hamming distance. See :func:`bigpca.quality.recall`.
        given : array-like, Dask array, path and so on, of shape (n, q), default None
            Covariates of these rows; required after a fit with covariates, and rejected after others.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, k), or (n, ceil(k / 8)) of bits
            Scores, in float32 if it represents every number of X's dtype, otherwise in float64. Lazy if X is lazy, and
            with ``out``. For a DataArray, a DataArray with the coordinates of its samples and a dimension
            ``component``, numbered from 0. For a Dask DataFrame after ``set_output(transform="pandas")``, a Dask
            DataFrame with its index.

        Raises
        ------
        NonFiniteError, MissingChunksError, CorruptedChunkError
            During the read; the message names rows and block.
        OutputExistsError, OutputLockedError, MemoryBudgetError, ImportError
            Before any read, if ``out`` exists, is in use, exceeds the disk or memory, or requires a missing library.
        ValueError
            Before any read, for missing or duplicate keys, a number of keys other than n, or keys without ``out``; for
            a DataArray on another grid than that of the fit; for another dtype, codes in a .npy file, bits in a frame
            or a DataArray, and scores that are divided by their norm as codes.
        TypeError
            For codes of models whose scores have no variances, such as those of labelled fits.

        Warns
        -----
        ApproximationWarning
            Where more than 1 % of the codes of some rows are saturated.
        """
        check_is_fitted(self)
        if out is not None or is_lazy(X):
            reject_container(self, self._output_name, X if out is None else None)
        names = () if out is None else tuple(map(str, self.get_feature_names_out()))
        to = Destination(out, overwrite, progress, keys, names)
        with ShortTraceback():
            f, width = self._row_map(), self._n_features_out
            kind = "" if dtype is None else check_float(dtype, "int8", "bits")
            if kind in ("int8", "bits"):
                codes = self._codes(kind)
                if kind == "bits" and (is_labelled(X) or (out is None and container_of(self)[0] != "default")):
                    raise ValueError(
                        'dtype = "bits" packs 8 components into a byte, which have no columns of their own in a frame '
                        'or a DataArray. Pass an array, with set_output(transform="default"), or dtype="int8".'
                    )
                f, width, to = Stored(f, codes), codes.columns, replace(to, names=codes.names(names))
            elif kind:
                f = Stored(f, Copy(kind))
            rows = self._open_like(X, given)
            scores = self._mapped(rows, f, width, to)
        labels = rows.labels if is_labelled(X) else None
        if labels is None:
            return scores
        return labelled_rows(scores, labels, self._output_name).assign_attrs(f.attributes)

    def fit_transform(self, X: Input, y: Input = None, **options: Input) -> Lazy:
        """Fit to X and return its transform, which reads X once more (for a lazy result, when it is computed).

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, d)
            Rows, as for :meth:`fit`.
        y : labels as for :meth:`fit`, default None
        **options
            ``given``, ``checkpoint`` and ``progress``, as for :meth:`fit`.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, k)
            Scores. Lazy if X is lazy.
        """
        if is_lazy(X):
            reject_container(self, self._output_name, X)
            if has_batches(opened := self._open(X).X):
                raise TypeError(
                    "fit_transform needs a second read, which an iterator cannot give, and in which batches may come "
                    "in another order. Call fit(X) and then transform(X) with what from_batches returns."
                )
            reject_batches(opened, self._output_name)
        own = {"given": options["given"]} if options.get("given") is not None else {}
        return self.fit(X, y, **options).transform(X, **own)

    @only_with("_has_axes")
    @solving
    @maps_rows
    def inverse_transform(self, X: Input, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
        """Return rows (n, d) from scores (n, k): the least-squares reconstruction of the preprocessed rows.

        For axes U (d, k) this is ``mean + U (U'U)^-1 y`` (SPCA paper, eq. 4); after a rotation it is ``mean + loadings_
        y``, which equals the reconstruction by the PCA. Whitening is undone, but ``preprocess`` is not, because it has
        no inverse.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, k)
            Scores.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, d)
            Rows in the space of the features. Lazy if X is lazy.

        Raises
        ------
        ValueError
            For ``whiten=Whitening(l2=True)``, which does not keep the norms of the scores.
        """
        check_is_fitted(self)
        return self._mapped_back(X, self._reconstruction(), Destination(out, overwrite))

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

    def get_feature_names_out(self, input_features: Input = None) -> NDArray[np.object_]:
        """Return the names of the columns of ``transform``: "pca0", "pca1" and so on, also in figures and reports.

        Wherever components are chosen by number (counted from 0), these names are accepted too.

        Parameters
        ----------
        input_features : default None
            Ignored; the names do not depend on it.

        Returns
        -------
        ndarray of shape (k,), object
        """
        check_is_fitted(self)
        return np.array(self._component_names, dtype=object)

    def summary(self) -> Exported:
        """Return a table of the components: names, variances, their shares, and bounds where they are approximate.

        Returns
        -------
        pandas.DataFrame of k rows, whose index is the names of the components
            ``variance`` (of models without variances, such as discriminants, the eigenvalue); ``share`` of the total
            variance, and its ``cumulative`` sum, where the model has them; ``lower`` and ``upper``, certified bounds of
            approximate models. Of CCA, ``correlation``; of PLSSVD, ``covariance`` and its ``share`` of the squared
            covariance; of Ridge, a row for each target, with ``alpha`` and ``cv_score``.

        Raises
        ------
        ImportError
            If pandas is not installed.

        Examples
        --------
        >>> from bigpca import PCA
        >>> PCA(1).fit([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]).summary()["variance"].to_dict()
        {'pca0': 4.0}
        """
        check_is_fitted(self)
        columns = {name: getattr(self, found) for name, found in self._summarized if hasattr(self, found)}
        if "share" in columns:
            columns["cumulative"] = np.cumsum(columns["share"])
        if hasattr(self, "eigenvalue_bounds_"):
            columns["lower"], columns["upper"] = np.asarray(self.eigenvalue_bounds_).T
        return required("pandas", "summary", "pandas").DataFrame(columns, index=self._components_index("summary"))

    def to_frame(self, scores: Input = None) -> Exported:
        """Return scores, or the loadings, as a table whose rows and columns have their names.

        Parameters
        ----------
        scores : array-like, Dask array or path, of shape (n, k), or None, default None
            What ``transform`` returned or wrote, which is read into memory; None for the loadings of a linear model.

        Returns
        -------
        pandas.DataFrame of shape (n, k) or (d, k)
            Its columns are the names of the components. Its index holds the keys that are stored with the scores, or
            the names of the features; numbers from 0 where there are none.

        Raises
        ------
        ValueError, TypeError
            For scores of a different number of components, for codes, and without scores if the model has no loadings.
        ImportError
            If pandas is not installed.

        Examples
        --------
        >>> from bigpca import PCA
        >>> pca = PCA(1).fit([[0.0, 3.0], [2.0, 3.0], [4.0, 3.0]])
        >>> pca.to_frame()["pca0"].tolist(), pca.to_frame(pca.transform([[5.0, 3.0]])).columns.tolist()
        ([2.0, 0.0], ['pca0'])
        """
        check_is_fitted(self)
        columns = self._components_index("to_frame")
        if scores is not None:
            from bigpca.data.keys import stored_keys  # imports the formats of labels, which fits do not need

            values = np.asarray(wrap_sources(open_scores(self, scores).X))
            return required("pandas", "to_frame", "pandas").DataFrame(values, stored_keys(scores), columns)
        if not hasattr(self, "loadings_"):
            raise ValueError(f"{type(self).__name__} has no loadings_. Pass scores: to_frame(model.transform(X)).")
        return required("pandas", "to_frame", "pandas").DataFrame(
            self.loadings_, getattr(self, "feature_names_in_", None), columns
        )

    def _components_index(self, what: str) -> Exported:
        return required("pandas", what, "pandas").Index(
            self.get_feature_names_out(), name="target" if self._output_name == "predictions" else "component"
        )

    @property
    def _component_names(self) -> list[str]:
        return [f"{self._prefix}{i}" for i in range(self._n_features_out)]

    def report(
        self, out: Path = "report.html", *, scores: Input = None, labels: Input = None, keys: Input = None,
        pictures: Input = None, image_shape: tuple[int, ...] | None = None, feature_names: Input = None,
        standard_errors: Input = None, layers: Input = None, held_out: tuple[Input, Input] | None = None,
        provenance: bool = True, overwrite: bool = False,
    ) -> FilePath | str:  # fmt: skip
        """Write a report on the model to an HTML file, and return its path.

        Parameters
        ----------
        out : path, default "report.html"
        scores : array, or path of a store, of shape (n, k), default None
            Read once, in blocks. Without it no rows are shown.
        labels : array-like of shape (n,), or path such as "labels.csv::class", default None
            Joined by key where labels and scores have keys, or ``keys`` are given; else in the order of the rows.
        keys, pictures : array-like of shape (n,), default None
            Names of the rows, by default the keys of the scores; False for labels in the order of the rows, whatever
            keys they have. And paths of their images.
        image_shape : (height, width) or (height, width, 3), default None
            Of one row: components are then shown as pictures.
        feature_names : array-like of shape (d,), default None
            None for those of the fit.
        standard_errors : StandardErrors, default None
            From :func:`bigpca.quality.standard_errors`, of this model.
        layers : LayerComparison, default None
            From :func:`bigpca.compare_layers`: the report then has its heat map.
        held_out : (rows, labels), default None
            Rows that were not fitted, with their classes: accuracy is measured on them, in one read.
        provenance : bool, default True
            False leaves out paths and commands.
        overwrite : bool, default False
            Replace an existing file.

        Returns
        -------
        Path
            ``out``.
        """
        from bigpca.report import write_report  # imports Matplotlib, which other methods do not need

        return write_report(
            self, out, scores=scores, labels=labels, keys=keys, pictures=pictures, image_shape=image_shape,
            feature_names=feature_names, standard_errors=standard_errors, layers=layers, held_out=held_out,
            provenance=provenance, overwrite=overwrite,
        )  # fmt: skip

    @only_with("_certified")
    @available_if(bounds_subspaces)  # type: ignore[untyped-decorator]
    def containment_bound(self, n_axes: int, n_true: int) -> float:
        """Bound the angle between the leading axes and a larger true principal subspace.

        Where eigenvalues are close together, as in a cluster cut by ``n_axes``, the leading axes are not determined,
        and ``subspace_error_bounds_`` is 1; it may still be certain that they are within the span of the whole cluster.

        Parameters
        ----------
        n_axes : int, 1 to k
            The leading axes, in order.
        n_true : int, ``n_axes`` to 2 k (at most the number of eigenvalues)
            Dimension of the true leading principal subspace.

        Returns
        -------
        float
            The sine of the largest angle between an axis, or a combination of them, and that subspace is at most this,
            with probability ``bounds_confidence_``; 1.0 if nothing is certain. ``containment_bound(j, j)`` is
            ``subspace_error_bounds_[j - 1]``.

        Raises
        ------
        ValueError
            For numbers out of range.
        AttributeError
            If the model has no ``subspace_error_bounds_``.
        """
        subspaces = getattr(getattr(self._result, "certificate", None), "subspaces", None)
        if subspaces is None:
            raise AttributeError("the model has no certified bounds of subspaces.")
        k, most = len(subspaces.lowest), len(subspaces.upper) - 1
        if not 1 <= n_axes <= k or not n_axes <= n_true <= most:
            raise ValueError(
                f"n_axes = {n_axes} and n_true = {n_true}; 1 <= n_axes <= {k} (n_components_) and n_axes <= n_true <= "
                f"{most} were expected. Fit more components to bound larger subspaces."
            )
        return float(subspaces.bound(n_axes, n_true))

    @only_with("_maps_linearly")
    def linear_map(self) -> Affine:
        """Return (A (k, d), b (k,)), such that ``X @ A.T + b`` equals ``transform(X)``.

        Returns
        -------
        A : ndarray of shape (k, d), float64
        b : ndarray of shape (k,), float64

        Raises
        ------
        ValueError
            If the map is not linear: with ``preprocess``, a ``missing_value``, or scores divided by their norm.
        """
        return self._linear().affine

    @only_with("_maps_linearly")
    def to_sklearn(self) -> Exported:
        """Return a fitted ``sklearn.decomposition.PCA`` with the same ``transform``, or a Pipeline.

        It is a Pipeline if X is preprocessed or scaled, or if scores are divided by more than their standard
        deviations, or a code stands for missing values. For models other than PCA, it has only the components and the
        mean. It rejects rows with missing values, whatever ``nan_policy`` is.

        Returns
        -------
        sklearn.decomposition.PCA or sklearn.pipeline.Pipeline

        Raises
        ------
        ValueError
            If the model is not a linear map of preprocessed rows.
        """
        from bigpca.export.sklearn import KEPT, decoder, joined  # imports more of scikit-learn than a fit

        check_is_fitted(self)
        known = {name: getattr(self, name, None) for name in KEPT}
        facts = {name: value for name, value in known.items() if value is not None}
        missing = self._steps.missing_value
        first = [] if missing is None else [decoder(missing)]
        first += [one.sklearn_step() for one in self._fitted_preprocessors()]
        return joined(first + self._linear_rows().sklearn_steps(self.n_features_in_, facts))

    @only_with("_maps_linearly")
    def to_onnx(self, path: Path, *, overwrite: bool = False) -> FilePath | str:
        """Write an ONNX model of ``transform`` in float32, from ``rows`` (n, d) to ``scores`` (n, k); return its path.

        Preprocessing is part of it; rows of zeros remain zero. Rows that hold the ``missing_value`` of the fit, NaN or
        infinity have scores of NaN, whatever ``nan_policy`` is.

        Parameters
        ----------
        path : path of the new file
        overwrite : bool, default False
            Replace an existing file.

        Returns
        -------
        Path
            ``path``.

        Raises
        ------
        ImportError
            If onnx is not installed.
        OutputExistsError
            If the path exists and ``overwrite`` is False.
        ValueError
            If the model is not a linear map of preprocessed rows.
        """
        check_is_fitted(self)
        linear = self._linear_rows().linear(self.n_features_in_)
        missing = self._steps.missing_value
        return write_onnx(linear, path, overwrite=overwrite, before=self._fitted_preprocessors(), missing=missing)

    @only_with("_maps_linearly")
    def to_torch(self) -> Exported:
        """Return a ``torch.nn.Linear`` in float32, equal to ``transform`` to the rounding of ``X @ A.T + b``.

        Returns
        -------
        torch.nn.Linear

        Raises
        ------
        ImportError
            If torch is not installed.
        ValueError
            As for :meth:`linear_map`.
        """
        return torch_layer(self._linear())

    @only_with("_maps_linearly")
    def to_faiss(self, *, dtype: str | None = None) -> Exported:
        """Return a trained ``faiss.LinearTransform`` in float32, for a ``faiss.IndexPreTransform``.

        Parameters
        ----------
        dtype : {"int8"}, default None
            "int8" returns an empty ``faiss.IndexPreTransform`` of rows, with 8 bits for each component: trained, with
            ranges of 4 standard deviations of each component from the fit. FAISS decodes what it compares, so that each
            component may have its own range.

        Returns
        -------
        faiss.LinearTransform or faiss.IndexPreTransform

        Raises
        ------
        ImportError
            If faiss is not installed.
        TypeError
            For codes, as :meth:`transform`.
        ValueError
            As for :meth:`linear_map`, and for another dtype.
        """
        transform = faiss_transform(self._linear())
        if dtype is None:
            return transform
        check_choice("dtype", dtype, ("int8",))
        return faiss_index(transform, self._score_variances())

    def _codes(self, kind: str) -> Codes:
        """Return the codes of scores, with ranges from their variances."""
        from bigpca.passes.reading.codes import Codes  # which other transforms do not need

        return Codes.of(kind, self._score_variances())

    def _score_variances(self) -> Vector:
        """Return the variances (k,) of the scores; a hook for models that know them.

        Raises
        ------
        TypeError
            If the model does not.
        """
        raise TypeError(
            f"codes need the variances of the scores, which the fit of a {type(self).__name__} does not give. Write "
            "its scores as float16, or fit a PCA to them and transform them by it."
        )

    def _linear_rows(self) -> LinearRowMap:
        """Return the row map that ``transform`` applies after preprocessing, which is linear.

        Raises
        ------
        TypeError
            If it needs covariates beside the rows.
        """
        if self._steps.covariates:
            raise TypeError(
                f"{type(self).__name__} was fitted with {self._steps.covariates} covariates, which other libraries "
                "have no place for. Export a PCA of the residuals."
            )
        return cast("LinearRowMap", self._row_map())

    def _linear(self) -> LinearMap:
        check_is_fitted(self)
        if self._fitted_preprocessors():
            raise ValueError(
                f"preprocess = {self.preprocess!r} is not linear, so the model is not a linear map of X. Preprocess "
                f"X before a fit without it, or use to_sklearn or to_onnx."
            )
        missing = self._steps.missing_value
        if missing is not None:
            raise ValueError(
                f"missing_value = {missing:g} stands for missing values, but a linear map would multiply it like any "
                "other number. Use to_sklearn or to_onnx, or fit rows that hold NaN instead."
            )
        return self._linear_rows().linear(self.n_features_in_)

    @only_with("_has_axes")
    @solving
    def to_xarray(self) -> Exported:
        """Return the model as a Dataset: patterns on the grid of the features, which a fit to a DataArray keeps.

        After other fits the only feature dimension is ``feature``. Components are numbered from 0 (the modes of xeofs
        from 1). No read.

        Returns
        -------
        xarray.Dataset
            ``components`` of shape (component, features...), ``mean`` and ``scale`` of shape (features...), with NaN
            where columns without values were left out; ``explained_variance``, ``explained_variance_ratio`` and other
            attributes of the model of shape (component,), where it has them. Its attributes are those of the DataArray,
            plus the call, the solver, the number of samples, and the version of bigpca.

        Raises
        ------
        ImportError
            If xarray is not installed.
        ValueError
            If a dimension or coordinate of the features has the name of a variable or dimension of the Dataset.

        Examples
        --------
        >>> import bigpca as bp, numpy as np, xarray as xr
        >>> field = xr.DataArray(np.eye(4).reshape(4, 2, 2), dims=("time", "lat", "lon"), coords={"lat": [10, 20]})
        >>> modes = bp.PCA(2).fit(field).to_xarray()
        >>> modes.components.dims, modes.sizes["component"], modes.lat.values.tolist()
        (('component', 'lat', 'lon'), 2, [10, 20])
        """
        check_is_fitted(self)
        return dataset_of(self)

    @property
    def provenance_(self) -> Provenance | None:
        """How the model was made, with what was planned and measured; None where an older file does not say."""
        return vars(self).get("_provenance")

    @property
    def pattern_(self) -> RowPattern | None:
        """The pattern given to :func:`bigpca.open` for the fit, which says what a row is; None for whole samples."""
        view = self._steps.view
        return None if view is None else view.pattern

    def _open(self, X: Input, *, minimum: int = 1) -> Rows:
        """Open X; a hook for estimators that accept more than numbers."""
        return open_rows(X, type(self).__name__, minimum=minimum)

    def _open_weighted(
        self, X: Input, weights: Input, given: Input = None, groups: Input = None, *, read: bool = True,
        progress: ProgressArgument = None,
    ) -> Rows:  # fmt: skip
        """Open X with what belongs to its rows; the options are those of :meth:`_without_empty_columns`."""
        rows = self._open(X, minimum=self._min_rows).weighted(weights)
        if rows.weights is not None:
            degrees_of_freedom(rows.n_present, rows.weight_sums)
        rows = self._without_empty_columns(rows, read=read, progress=progress)
        return replace(self._with_covariates(rows, given), groups=groups)

    def _with_covariates(self, rows: Rows, given: Input) -> Rows:
        """Return the rows with their covariates, which every call of the class passes through here.

        Raises
        ------
        TypeError
            If the class has no use for them.
        """
        if given is None:
            return rows
        if not self._takes_given:
            raise TypeError(
                f"given = Z was passed to {type(self).__name__}, which cannot remove the effect of covariates: "
                "bigpca.PCA can, from one read. Fit that, or pass the residuals as X."
            )
        return replace(rows, covariates=open_side(given, type(self).__name__, "Z"))

    def _opened_targets(self, y: Input, **options: Input) -> Input:
        """Return y as a fit takes it: labels unchanged; a hook for models of two sides.

        The options are those of :meth:`_without_empty_columns`.
        """
        return y

    def _without_empty_columns(self, rows: Rows, *, read: bool = True, progress: ProgressArgument = None) -> Rows:
        """Return the rows of a DataArray without the columns that have no values, others unchanged.

        Unless ``read`` is True or the rows are in memory, those columns remain, and only the reads that will find them
        are declared.
        """
        # Floats alone may be NaN; a view has its columns already.
        if rows.labels is None or rows.view is not None or rows.dtype.kind != "f" or rows.n_rows < 1:
            return rows
        begun = rows.begun(**self._policies)
        if not read and not begun.in_memory:
            return rows.shown(carrying(rows.X, search=ColumnSearch(search_passes(begun))))
        resources = find_resources(setting(self, "memory_limit"), in_process=begun.in_process)
        return without_empty_columns(rows, begun, resources, progress)

    def _labels_of_fit(self, X: da.Array, y: Input) -> Input:
        """Return the labels of a fit in the order of the rows: y, or those that come with batches.

        The latter are returned in advance if the fit requires that. Labels that the estimator ignores are not read.
        """
        if not self._labelled:
            return y
        from bigpca.data.alignment import in_row_order  # imports all formats of labels, which other fits do not need

        drop = getattr(self, "missing_labels", "raise") == "drop"
        found = in_row_order(y, X, absent=None if drop else "raise")
        if found is None or np.isnan(X.shape[0]):
            found = batch_labels(X, found)
        return found.in_advance() if isinstance(found, BatchLabels) and not self._labels_beside_rows else found

    def _planned_fit(self, rows: Rows, y: Input) -> Reading:
        """Plan the fit, and reject weights that it does not read.

        Raises
        ------
        TypeError
        """
        planned = self._fit(rows, self._labels_of_fit(rows.X, y))
        if planned.rows.weights is None:
            reject_weights(rows, [type(self).__name__], self._unweighted)
        if not hasattr(getattr(planned, "template", None), "n_folds"):
            self._reject_groups(rows.groups)
        return planned

    def _reject_groups(self, groups: Input) -> None:
        if groups is not None:
            raise TypeError(
                f"groups were passed to this {type(self).__name__}, which has no folds: bigpca.Ridge with several "
                "alphas has. Leave them out."
            )

    @property
    def _policies(self) -> dict[str, Input]:
        check_policies(self)
        return {"nan_policy": self.nan_policy}

    def _rows(self, rows: Rows, *, weighted: bool = True) -> tuple[Rows, Resources]:
        """Return the rows that a fit reads, preprocessed, and the resources that it may use.

        Those of a fit that cannot use weights have none.
        """
        for name in ("center", "scale", "sampling"):  # parameters that may name the columns
            compare_own_names(rows.names, getattr(self, name, None), name)
        rows = (rows if weighted else replace(rows, weights=None)).begun(**self._policies)
        d = rows.n_columns
        maps = _of_first_side(self._preprocessors(), rows)
        rows = rows.mapped(*(MapStep(one, d, FLOPS_PER_VALUE * d) for one in maps))
        return rows, find_resources(setting(self, "memory_limit"), in_process=rows.in_process)

    def _preprocessors(self) -> tuple[RowPreprocessor, ...]:
        """Return what is applied to each row first; a hook for estimators whose rows are not always vectors."""
        return () if self.preprocess is None else preprocessors(self.preprocess)

    def _remember(self, rows: Rows) -> None:
        """Set the number and names of features, and what was made of the rows."""
        self.n_features_in_ = rows.viewed_columns
        self._set_known(feature_names_in_=rows.names)
        labels, view = rows.labels, rows.view if rows.view is not None and rows.view.kept else None
        analysed = self._steps_of(rows.viewed_columns, view, None if labels is None else labels.grid)
        of_each = 0 if rows.covariates is None else rows.covariates.viewed_columns
        self._steps = replace(analysed, covariates=of_each)
        self._set_known(covariate_names_in_=rows.covariates and rows.covariates.names)

    def _steps_of(self, d: int, view: View | None, grid: Grid | None) -> Steps:
        """Return what a fit to rows of d columns makes of them; a hook for models that do more."""
        return Steps(view, grid, self._preprocessors(), parameters=self.get_params(deep=False))

    def _record_rows(self, added: Provenance) -> None:
        """Add the record of rows to that of the model; without the latter, none says how all rows came to be."""
        before = self.provenance_
        self._steps = replace(self._steps, parameters=self.get_params(deep=False))
        threads = threads_here(setting(self, "solve_threads"))
        self._set_known(_provenance=before and replace(before.with_rows(added), solve_threads=threads))

    def _finish(self, rows: Rows, plan: Plan, found: Input) -> None:
        """Set the fitted attributes after a fit that succeeded."""
        made = self._made(found)  # first: if it fails, nothing has changed
        self._warn(made)
        self._found, self.solver_ = made, plan.solver
        self._set_known(_provenance=None)  # that of the previous fit
        self._remember(rows)
        if hasattr(self, "random_state"):
            self.seed_ = rows.seed
        self.plan_ = plan

    def _set_known(self, **values: object) -> None:
        """Set the attributes whose value is not None, and delete the others, which an earlier fit may have set."""
        for name, value in values.items():
            if value is None:
                self.__dict__.pop(name, None)
            else:
                setattr(self, name, value)

    def _open_like(self, X: Input, given: Input = None) -> Rows:
        """Open new rows as those of the fit, and compare the number and names, or the grid, of their features.

        Raises
        ------
        TypeError, ValueError
            Without the covariates of these rows, if there were some in the fit; and for others.
        """
        rows = self._with_covariates(self._open_as_fitted(X), given)
        known, q = self._steps.covariates, 0 if rows.covariates is None else rows.covariates.viewed_columns
        if known and not q:
            raise TypeError(
                f"{type(self).__name__} was fitted with {known} covariates, which these rows need too: "
                "transform(X, given=Z). Other methods cannot remove the effect of covariates: pass the residuals to a "
                "PCA."
            )
        if q != known:
            raise ValueError(
                f"Z has {q} columns, but {type(self).__name__} was fitted with {known} covariates. Pass those of "
                "the fit, in the same order."
            )
        if rows.covariates is not None:
            names = rows.covariates.names
            with naming_argument("Z"):
                check_names(vars(self).get("covariate_names_in_"), names, type(self).__name__, "Z")
        return rows

    def _open_as_fitted(self, X: Input) -> Rows:
        grid = self._steps.grid
        rows = self._open(X) if grid is None else open_on_grid(X, grid, type(self).__name__, self._open)
        return as_fitted(self, rows)

    def _mapped_to_numbers(
        self, X: Input, f: RowMap, what: str, to: Destination | None = None, *, dim: str | None = None,
        values: Input = None,
    ) -> Lazy:  # fmt: skip
        """Return ``f`` of the rows of X: a number of each (n,), or (n, 1) in ``to.out``.

        Where ``values`` name the columns of f, they are (n, k), along ``dim`` for a DataArray X, whose samples label
        rows.
        """
        rows, to = self._open_like(X), to or Destination()
        to = replace(to, what=to.what or what)
        found = self._mapped(rows, f, 1 if dim is None else len(values), to)
        labels = rows.labels if is_labelled(X) else None
        if labels is not None:
            return labelled_rows(found, labels, what, dim, values)
        return found[:, 0] if dim is None and to.out is None else found

    def _mapped_to_rows(self, X: Input, f: RowMap, to: Destination) -> Lazy:
        """Return ``f`` of the rows of X as rows (n, d), on the grid of the fit if X is a DataArray."""
        rows = self._open_like(X)
        mapped = self._mapped(rows, f, self.n_features_in_, replace(to, what=to.what or ROWS))
        return self._on_fitted_grid(X, rows, mapped, to.what)

    def _mapped_back(self, X: Input, back: RowMap, to: Destination) -> Lazy:
        """Return ``back`` of scores X (n, k): rows (n, d), on the grid of the fit if X is a DataArray."""
        rows, to = open_scores(self, X), replace(to, what=ROWS)
        return self._on_fitted_grid(X, rows, self._mapped_as_given(rows, back, self.n_features_in_, to))

    def _mapped(self, rows: Rows, f: RowMap, columns: int, to: Destination) -> Lazy:
        """Return ``f`` of opened rows, preprocessed, beside their covariates."""
        rows = rows.beside_covariates()
        maps = _of_first_side(self._fitted_preprocessors(), rows)
        return self._mapped_as_given(rows, chained(maps, f), columns, to)

    def _mapped_as_given(self, rows: Rows, f: RowMap, columns: int, to: Destination) -> Lazy:
        """Return ``f`` of opened rows that are not preprocessed, such as scores."""
        what, limit = to.what or self._output_name, setting(self, "memory_limit")
        made = Made(what, f"{what} of X by {self._called}", self._digest(), to.keys)
        if to.out is None:
            return map_rows(rows, f, columns, made=made, memory_limit=limit)
        with brought_by(self):
            return write_rows(rows.begun(**self._policies), f, columns, to, name=what, made=made, memory_limit=limit)

    def _on_fitted_grid(self, X: Input, rows: Rows, mapped: Lazy, what: str = "", grid: Grid | None = None) -> Lazy:
        labels, grid = rows.labels if is_labelled(X) else None, grid or grid_of(self)
        return mapped if labels is None else rows_on_grid(mapped, labels, grid, what or grid.name)

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
        now, fitted = self._preprocessors(), self._steps.preprocessing
        if fitted is not None and fitted != now:
            raise ValueError(
                f"preprocess = {self.preprocess!r} was set after a fit with {list(fitted) or None}. Set it back, or "
                f"fit again."
            )
        return now

    @property
    def _called(self) -> str:
        """The class and its parameters other than defaults, in one line."""
        return " ".join(repr(self).split())

    def _digest(self) -> str:
        """Return the digest of the row map: it identifies a model, and the scores that the model made.

        It depends neither on where blocks are multiplied nor on what becomes of rows with missing values.
        """
        plain = copy(self)
        plain.nan_policy = "raise"
        with config(arithmetic="numpy"):
            return digest(plain._whole_map().describe())

    @property
    def _result(self) -> Found:
        """The fitted numbers; the solve that waits, if any, runs now."""
        found = vars(self).get("_found")
        if found is None:
            raise NotFittedError(f"This {type(self).__name__} instance is not fitted yet. Call fit first.")
        if isinstance(found, Waiting):
            vars(self)["_found"] = found = found()
        return cast("Found", found)

    def _solve_later(self, solve: Callable[[], Input], kept: Kept, solver: str | None = None) -> None:
        """Keep a solve in the place of the result: it runs once, when that is needed.

        ``solver`` is its name; None for the solver of the fit to which the rows are added.
        """
        owner = self._with_parameters()

        def solved() -> Found:
            found = owner._made(solve())
            owner._warn(found)
            return found

        self._found = Waiting(solved, kept, setting(self, "solve_threads"))
        self.solver_ = solver or self.solver_

    if not TYPE_CHECKING:  # a type checker would conclude that every attribute exists

        def __getattr__(self, name: str) -> object:
            found = vars(self).get("_found")
            if found is not None and name in self._kind.names():
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
        found = vars(self).get("_found")
        if found is not None and name[-1:] == "_" and name in self._kind.__dataclass_fields__:
            self._found = replace(cast("Input", self._result), **{name: value})
        else:
            object.__setattr__(self, name, value)

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
        twin._set_known(_brought=self._brought or None)
        return twin

    def __dir__(self) -> list[str]:
        found = vars(self).get("_found")
        shown = super(Estimator, self._shown()).__dir__()
        return sorted({*shown, *([] if found is None or isinstance(found, Waiting) else found.attributes)})

    def _shown(self) -> Self:
        """Return a copy that has no attributes while a solve waits: pages that show a model look at all of them."""
        twin, found = copy(self), vars(self).get("_found")
        if isinstance(found, Waiting):
            twin._found = replace(found, solve=unsolved, found=None)
        return twin

    def _repr_html_inner(self) -> str:
        return str(super(Estimator, self._shown())._repr_html_inner()) + captured(vars(self).get("_found"))

    def _repr_mimebundle_(self, **options: Input) -> dict[str, str]:
        bundle: dict[str, str] = super(Estimator, self._shown())._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] += captured(vars(self).get("_found"))
        return bundle

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.allow_nan = self.nan_policy in ("omit", "mean")
        tags.input_tags.sparse = True
        tags.target_tags.required = self._labelled
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        found = vars(self).get("_found")
        return found is not None and not (isinstance(found, Waiting) and found.kept.n_samples_ < self._min_rows)

    def _with_parameters(self) -> Self:
        """Return an unfitted estimator with the current parameters, for a solve that waits."""
        return type(self)(**self.get_params(deep=False))


def captured(found: Result | Waiting[Input] | None) -> str:
    """Return a line of HTML: the number of components and their share of the variance, as far as they are solved."""
    k, ratio = getattr(found, "n_components_", None), getattr(found, "explained_variance_ratio_", None)
    if not isinstance(k, Integral):
        return ""
    whole = "the variance between the classes" if hasattr(found, "discriminants_") else "the variance"
    share = "" if not isinstance(ratio, np.ndarray) else f" with {100 * float(ratio.sum()):.3g} % of {whole}"
    return f"<p>{int(k):,} component{'' if k == 1 else 's'}{share}</p>"


AnyEstimator: TypeAlias = Estimator[Any]  # type: ignore[explicit-any]  # whatever its fit returns
