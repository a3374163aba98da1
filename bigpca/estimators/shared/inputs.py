"""The inputs that estimators accept as X, checked once at the entrance.

The parameters that say what a fit does about missing values and chunks, checked. What is not finite in rows, and what
becomes of it in the rows that a map returns.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import signature
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

import bigpca.dask_array as da
from bigpca.arrays import Array, Integers, unmasked
from bigpca.csr import form_of
from bigpca.data.checks import check_dtype, row_width
from bigpca.data.containers import (
    check_columns,
    embeddings,
    is_dask_frame,
    is_hdf5_dataset,
    is_labelled,
    is_path_list,
    is_place,
    is_stored_sparse,
    is_zarr_array,
    is_zarr_group,
    is_zarr_store,
    reject_foreign,
    reject_sparse_forms,
)
from bigpca.data.dask_arrays import carried, names_of, open_graph, source_of, taken_from, viewed, with_index
from bigpca.data.grids import COMPONENT, Grid, Labels, is_held
from bigpca.data.provenance import are_scores
from bigpca.data.sources import feature_names, open_samples
from bigpca.data.sources import open as open_array
from bigpca.data.sparse import as_csr, is_csr, is_sliced, is_sparse
from bigpca.data.views import NO_CODES, MissingCodes, RowPattern, View
from bigpca.devices import looked_at
from bigpca.errors import NonFiniteError, an, brief, check_choice, counted, naming_argument, warn_caller
from bigpca.forms import Values
from bigpca.parameters import PARAMETERS, Parameter
from bigpca.passes.project import project_lazily
from bigpca.passes.reading.blocks import INCOMPLETE
from bigpca.passes.reading.row_maps import Affine, GeneMap, RowPreprocessor, row_of
from bigpca.passes.residuals import Residuals
from bigpca.passes.rows import Rows, as_given
from bigpca.settings import setting
from bigpca.solvers.scaling import Whitening
from bigpca.storage.files import Look, digest, one_look

MYPY = False  # mypy takes it for true; other checkers have stubs of scikit-learn, and should see its classes

# scikit-learn has no types: with bases of type Any, mypy would let our constructors take any further names, since it
# could not tell what those bases take.
if MYPY:

    class BaseEstimator:
        """What the estimators use of it; mypy takes all other names for Any."""

        def __getattr__(self, name: str) -> Any: ...
        def __getstate__(self) -> dict[str, object]: ...
        def __sklearn_clone__(self) -> Any: ...
        def __sklearn_tags__(self) -> Any: ...
        def _repr_html_inner(self) -> str: ...
        def _repr_mimebundle_(self, **options: Any) -> dict[str, str]: ...
        @classmethod
        def _get_param_names(cls) -> list[str]: ...

    class TransformerMixin:
        """Of methods that it adds, each is Any."""

    class ClassifierMixin:
        """Of methods that it adds, each is Any."""

else:
    from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin  # noqa: F401 # for other modules

Names: TypeAlias = NDArray[np.object_] | None
Unchecked: TypeAlias = Any  # an Input, or a parameter, inside: until its type is checked
Lazy: TypeAlias = "NDArray[Any] | da.Array"  # an array in memory, or a Dask array for lazy input


def is_lazy(X: Unchecked) -> bool:
    """Whether the engine reads X (Dask, Zarr, xarray, HDF5, paths, memory maps); False for an array in memory."""
    if type(X) is np.ndarray:  # what is asked below concerns other containers, and imports their libraries
        return False
    if isinstance(X, da.Array) or is_sliced(X):
        return isinstance(X, da.Array)
    stores = (is_zarr_array, is_zarr_group, is_zarr_store, is_hdf5_dataset, is_stored_sparse)
    known = (is_labelled, is_dask_frame, is_place, *stores)
    return isinstance(X, (str, os.PathLike, np.memmap)) or is_path_list(X) or any(is_one(X) for is_one in known)


@dataclass(frozen=True)
class Steps:
    """What a fit did: what it made of its rows before it computed anything, and its parameters.

    Written once by the fit (and by each ``partial_fit``), and stored with the model: exports, reports and figures read
    it, not the parameters, which may have been changed since.

    Attributes
    ----------
    view : View or None
        How rows were taken from stored samples; None for whole samples.
    grid : Grid or None
        Of the features of a labelled array.
    preprocessing : tuple of RowPreprocessor, or None
        None before a fit.
    filled : str
        The policy by which all rows decided what was made of missing values, such as "mean"; empty for none.
    standardized : dict of JSON values, or None
        Digest of a given centre and scale.
    summed : int
        Number of covariates that are in the sums of a fit.
    counts : GeneMap or None
        What makes the rows of the model of counts of all genes.
    parameters : dict
        Of the estimator, at the last fit or ``partial_fit``.
    """

    view: View | None = None
    grid: Grid | None = None
    preprocessing: tuple[RowPreprocessor, ...] | None = None
    filled: str = ""
    standardized: dict[str, object] | None = None
    summed: int = 0
    counts: GeneMap | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def covariates(self) -> int:
        """Number of covariates whose effect was taken out, by a map of the rows or of their sums."""
        return self.summed + sum(one.covariates for one in self.preprocessing or () if isinstance(one, Residuals))

    @property
    def missing_value(self) -> MissingCodes:
        """The values in rows that stand for missing ones."""
        return NO_CODES if self.view is None else self.view.missing


def open_rows(X: Unchecked, estimator: str, *, minimum: int = 1, single: bool = False) -> Rows:
    """Check the dtype and shape of X and open it, without reading.

    Arrays in memory go through scikit-learn's validation, which handles data frames and feature names; the pass handles
    NaN. Masked entries become NaN; dimensions after the first are flattened.

    Parameters
    ----------
    estimator : str
        Name of the class, for messages.
    minimum : int
        Required number of rows.
    single : bool
        Whether a number for each row, (n,), is one column; the ``sample`` of such rows is ().

    Raises
    ------
    TypeError
        For dtypes that have no principal components, and for containers whose rows cannot be read.
    ValueError
        For empty input.
    """
    if not is_lazy(X):
        values, names, sample = in_memory(X, estimator, minimum=minimum, single=single)
        rows = Rows.held(values, names=names, sample=sample)
        named = hasattr(X, "loc") or hasattr(X, "obs_names")  # by an index
        return rows.shown(with_index(rows.X, X)) if named else rows
    seen, given = dict[str, Look](), isinstance(X, da.Array)
    if given:
        opened, sample = open_graph(X, single=single)
    else:
        with one_look(seen):
            opened, sample = open_samples(X, single=single)
    n, d = opened.shape
    if d == 0:
        raise ValueError(f"Found array with 0 feature(s) (shape={opened.shape}) while a minimum of 1 is required.")
    if n < minimum:
        raise ValueError(
            f"Found array with {n} sample{'s' if n != 1 else ''} (shape={opened.shape}) while a minimum of {minimum} "
            f"is required{': a variance needs two rows' if minimum > 1 else ''}. Give more rows."
        )
    rows = Rows.opened(opened, names=names_of(opened), sample=sample, lazy=given or not is_held(X))
    if rows.origin.stored is not None and not given:
        rows.origin.opened_as = digest([rows.origin.samples.name.removeprefix("bigpca-open-")])
        rows.origin.seen = seen
    return rows


def open_scores(model: BaseEstimator, X: Unchecked) -> Rows:
    """Open scores of a model; raises as :func:`bigpca.data.provenance.are_scores`."""
    rows = open_rows(_by_component(X, len(model.get_feature_names_out())), type(model).__name__)
    are_scores(model, X, X if type(X) is np.ndarray else rows.X, "scores")
    return as_given(rows, lazy=rows.origin.lazy and not is_held(X))


def _by_component(X: Any, k: int) -> Any:
    """Return a DataArray of scores with its dimension ``component`` last, opened; other scores unchanged.

    Raises
    ------
    ValueError
        If the components are not 0 to k - 1, in order.
    """
    if not is_labelled(X) or COMPONENT not in X.dims:
        return X
    if COMPONENT in X.coords and not np.array_equal(X.coords[COMPONENT].values, np.arange(k)):
        raise ValueError(
            f"the scores are of the components {brief(X.coords[COMPONENT].values.tolist())}; 0 to {k - 1}, in order, "
            f"were expected. Pass all scores, with 0 for components to leave out."
        )
    if X.dims == (COMPONENT,):
        raise ValueError(
            "the scores are of one sample, without a dimension of samples. Keep it, such as scores.isel(time=[0]) "
            "does, or add it: scores.expand_dims('time')."
        )
    return open_array(X, sample_dims=[dim for dim in X.dims if dim != COMPONENT])


def in_memory(
    X: Any, estimator: str, *, minimum: int = 1, single: bool = False
) -> tuple[Values, Names, tuple[int, ...]]:
    """Return X, which is not lazy, as a checked array or CSR (n, d), its feature names, and the shape of a sample.

    Raises as :func:`open_rows`.
    """
    if type(X) is np.ndarray:
        pass
    elif is_sparse(X):
        X = as_csr(X)
    else:
        reject_sparse_forms(X)
        reject_foreign(X)
        X = embeddings(X)
        check_columns(X)
    if isinstance(X, list | tuple):
        # Arrays of several rows each would become one long row each.
        shapes = [tuple(getattr(one, "shape", ())) for one in X]
        if shapes and all(len(shape) > 1 for shape in shapes):
            raise ValueError(
                f"X is {an(type(X).__name__)} of {counted(len(X), 'array')}, the first of shape {shapes[0]}. Batches "
                "of rows are bp.from_batches(X); samples of several dimensions are np.stack(X)."
            )
        if any(isinstance(one, Mapping) for one in X):
            raise TypeError(
                f"X is {an(type(X).__name__)} of {counted(len(X), 'dict')}. Batches of blocks of rows, {{name: rows}}, "
                "are bp.from_batches(X); records of numbers are pandas.DataFrame(X)."
            )
    if isinstance(X, np.ndarray | list | tuple):
        X = unmasked(X)
    if single and not hasattr(X, "shape") and hasattr(X, "__array__"):  # of Arrow
        X = np.asarray(X)
    shape = tuple(map(int, getattr(X, "shape", ())))
    column = single and len(shape) == 1
    if column:
        X = X.to_frame(0) if hasattr(X, "iloc") else np.asarray(X).reshape(-1, 1)
        check_columns(X)
    if len(shape) > 2:
        X = np.asarray(X).reshape(X.shape[0], row_width(X.shape))
    if (isinstance(X, np.ndarray) or is_csr(X)) and X.dtype.kind not in "OUS":
        if X.dtype.kind == "c":
            raise ValueError(f"Complex data not supported: X is {X.dtype}. Take real and imaginary parts as columns.")
        check_dtype(X.dtype)
    if isinstance(X, np.ndarray) and X.dtype.kind == "O":  # beside numbers, dates would become numbers
        for kind in {np.datetime64, np.timedelta64} & {type(value) for value in X.flat}:
            check_dtype(kind)
    asked = BaseEstimator()  # receives the names
    options = {"dtype": "numeric", "ensure_all_finite": False, "ensure_min_samples": minimum, "accept_sparse": "csr"}
    validated = validate_data(asked, X, estimator=estimator, **options)
    checked: Values = np.asarray(validated) if isinstance(validated, np.ndarray) else validated
    if checked.dtype == object:  # decimals of pyarrow
        checked = checked.astype(np.float64)
    sample = shape[1:] if column or len(shape) > 2 else checked.shape[1:]
    # scikit-learn does not find the names of a RecordBatch.
    names = feature_names(X) if hasattr(X, "schema") else getattr(asked, "feature_names_in_", None)
    return checked, names, sample


def check_features(estimator: BaseEstimator, n_features: int, names: Names) -> None:
    """Compare the number and names of features with those of the fit.

    Raises
    ------
    ValueError
    """
    check_names(getattr(estimator, "feature_names_in_", None), names, type(estimator).__name__)
    if n_features != estimator.n_features_in_:
        name, view = type(estimator).__name__, getattr(estimator, "_steps", Steps()).view
        on, remedy = "rows of that length", "Pass rows of the same features."
        if view is not None:
            on, remedy = f"rows of samples ({view.pattern})", "Pass such samples, or bp.open(X, pattern=...)."
            if view.absent:
                places = math.prod(view.sample)
                on, remedy = f"the columns of {places} that have values", f"Pass rows of {places}, NaN in the others."
        raise ValueError(
            f"X has {n_features} features, but {name} is expecting {estimator.n_features_in_} features as input: it "
            f"was fitted on {on}. {remedy}"
        )


def as_fitted(estimator: BaseEstimator, rows: Rows) -> Rows:
    """Return new rows as those of the fit: samples are cut by the view that the model keeps, where they need it.

    Raises
    ------
    ValueError
        For a different number of features or other names, and where it is not clear whether the view applies.
    """
    steps, known = getattr(estimator, "_steps", Steps()), getattr(estimator, "feature_names_in_", None)
    if steps.view is not None:
        rows = viewed_as(steps.view, rows, known, type(estimator).__name__)
    if known is not None and rows.origin.view is None:
        rows = alleles_of(known, rows, type(estimator).__name__)
    if steps.counts is not None and known is not None:
        rows = scores_of(steps.counts, rows, known, type(estimator).__name__)
    check_features(estimator, rows.viewed_columns, rows.origin.names)
    return rows


def alleles_of(known: NDArray[np.object_], rows: Rows, name: str) -> Rows:
    """Return genotypes, and rows that were taken from these, at the variants of a fit, as counts of its alleles.

    See ``match_alleles``. Other rows are returned as they are.
    """
    if known[0].count(":") < 3 or min(one.count(":") for one in known) < 3:  # other names
        return rows
    origin, names = rows.origin, rows.origin.names
    lazily = origin.stored is None and origin.arrays is not None and names is not None
    stored = [source_of(base) for base in taken_from(rows.X).bases] if lazily else [origin.stored]
    if names is None or not all(one is not None and one.format in ("bed", "pgen") for one in stored):
        return rows
    if np.array_equal(names, known):
        return rows
    from bigpca.data.genotypes import match_alleles  # with other formats of files, of no use to arrays

    places, swapped = match_alleles(known.tolist(), names.tolist(), name)
    X = viewed(rows.X, View((rows.viewed_columns,), columns=places, pattern=RowPattern()))
    if swapped.any():
        X = project_lazily(X, Affine(swapped * np.float64(2), np.where(swapped, -1.0, 1.0)), len(known))
    return rows.shown(X, names=known, sample=(len(known),))


def scores_of(counts: GeneMap, rows: Rows, known: NDArray[np.object_], name: str) -> Rows:
    """Return what a fit made of counts of all genes, which are found by their names where both have some.

    Rows that have the names of the model's own columns, or none but their number, are returned as they are.

    Raises
    ------
    ValueError
        For other numbers of columns, and without some genes, as the sum of a cell is that over all of the fit.
    """
    names, width = rows.origin.names, rows.viewed_columns
    if width == counts.n_top_genes < counts.n_genes if names is None else list(names) == list(known):
        return rows
    if counts.names is not None and names is not None:
        missing = sorted(set(counts.names) - set(names))
        if missing:
            raise ValueError(
                f"X lacks {counted(len(missing), 'gene')} of the fit of {name}, such as {missing[0]!r}, but the sum of "
                f"each cell is that over all {counts.n_genes} genes of the fit. Give the counts of all."
            )
        if list(names) != list(counts.names):
            chosen = _places(counts.names, rows, name)
            rows = rows.shown(viewed(rows.X, View((rows.viewed_columns,), columns=chosen, pattern=RowPattern())))
    if rows.viewed_columns != counts.n_genes:
        raise ValueError(
            f"X has {rows.viewed_columns} columns, but {name} was fitted to counts of {counts.n_genes} genes, and uses "
            f"{counts.n_top_genes} of them. Give the counts of all genes, or the standard scores of those."
        )
    return rows.shown(project_lazily(rows.X, counts, counts.n_top_genes), names=known, sample=(counts.n_top_genes,))


def _places(known: Sequence[str], rows: Rows, name: str) -> Integers:
    """Return the columns of rows that have those names.

    Raises
    ------
    ValueError
        For names of several columns.
    """
    names = list(rows.origin.names if rows.origin.names is not None else ())
    wanted = set(known)
    twice = [one for one, count in Counter(names).items() if count > 1 and one in wanted]
    if twice:
        raise ValueError(
            f"{twice[0]!r} is the name of {Counter(names)[twice[0]]} columns of X, and {name} was "
            "fitted on one. Make the names unique, such as adata.var_names_make_unique()."
        )
    place = {column: i for i, column in enumerate(names)}
    return np.array([place[column] for column in known], np.int64)


def viewed_as(view: View, rows: Rows, known: Names, name: str) -> Rows:
    """Return new rows cut by the view of a fit, if they are not a view already."""
    own = rows.origin.view
    if all(one is None or not one.pattern or one.pattern.text is None for one in (own, view)):
        given = rows.origin.sample if own is None else own.sample
        if min(len(given), len(view.sample)) > 1 and given != view.sample:
            raise ValueError(
                f"samples of X have the shape {given}, but {name} was fitted on samples of shape {view.sample}. Pass "
                "such samples."
            )
    if own is not None:
        first, second = (np.arange(one.width) if one.columns is None else one.columns for one in (own, view))
        named = known is not None and rows.origin.names is not None  # which are compared: they may stand elsewhere
        chosen = own.columns is not None and math.prod(own.sample) == math.prod(view.sample) and not named
        if chosen and not np.array_equal(first, second):
            raise ValueError(
                f"X was opened with other columns, or another mask, than those that {name} was fitted on. Open X with "
                "these, or without: the model chooses them."
            )
        return _decoded(view, rows, name)
    again = _view_again(view, rows, known, name)
    if again is None and view.missing:
        again = View.of(RowPattern(missing=view.missing), (rows.viewed_columns,))
        known = rows.origin.names  # of rows whose columns are compared with those of the fit
    if again is None:
        return rows
    names = None if rows.origin.names is None else known
    return rows.shown(viewed(rows.X, again, names), names=names, sample=(again.width,))


def _decoded(view: View, rows: Rows, name: str) -> Rows:
    """Return rows of a view, in whose samples the codes of missing values are those of the fit, if it had some."""
    stored, own, missing = rows.origin.samples, rows.origin.view, view.missing
    if not missing or own is None or own.missing == missing:
        return rows
    if own.missing:
        raise ValueError(
            f"missing_value = {own.missing} in X, but {name} was fitted with missing_value = {missing}. Give X the "
            "code of the fit, or NaN where values are missing."
        )
    return rows.shown(viewed(stored, replace(own, missing=missing), carried(rows.X).names))


def _view_again(view: View, rows: Rows, known: Names, name: str) -> View | None:
    """Return the view of new samples, or None if they are not samples that the pattern of the fit describes.

    Chosen columns are found by their names, if both have names. Maps are cut again if they have the dimensions of the
    pattern, and their columns are those of the fit. Rows (n, d) are cut only if d is that of the samples of the fit
    and not that of its rows.
    """
    pattern, shape, stored = view.pattern, rows.origin.sample, math.prod(view.sample)
    if view.absent and math.prod(shape) == stored:
        return view
    if pattern is None or pattern == RowPattern(missing=pattern.missing):
        return None
    if known is not None and rows.origin.names is not None and view.rows_per_sample == 1:
        if list(known) == list(rows.origin.names) or not set(known) <= set(rows.origin.names):
            return None
        chosen, width = _places(list(known), rows, name), rows.viewed_columns
        return View((width,), columns=chosen, pattern=pattern, missing=view.missing)
    given, remedy = f"X has shape {(rows.X.shape[0], *shape)}", "bp.open(X, pattern=...) says what its rows are."
    if len(shape) > 1 and pattern.text is not None:
        again = View.of(pattern, shape) if len(shape) + 1 == pattern.dimensions else None
        if again is None or again.column_sizes != view.column_sizes:
            raise ValueError(
                f"{given}, but {name} was fitted on rows of samples of shape {view.sample} ({pattern}). Such "
                f"dimensions and columns were expected, or rows of {view.width} numbers. {remedy}"
            )
        return again
    if math.prod(shape) != stored:
        return None
    if view.width == stored:
        raise ValueError(
            f"{given}, and could be rows or samples: {name} was fitted on rows of {stored} numbers, and its samples "
            f"({pattern}) have {stored} too. {remedy}"
        )
    return View.of(pattern, shape) if pattern.dimensions == 2 else None


def check_names(known: Names, names: Names, name: str, what: str = "X") -> None:
    """Compare feature names with those of the fit of an estimator, with the messages of scikit-learn."""
    if known is None or names is None:
        if names is not None:
            warn_caller(f"{what} has feature names, but {name} was fitted without feature names", UserWarning)
        if known is not None:
            warn_caller(
                f"{what} does not have valid feature names, but {name} was fitted with feature names", UserWarning
            )
        return
    compare_names(known, names)


def compare_own_columns(labels: Labels | None, known: Names, given: Any, argument: str) -> None:
    """Compare the columns of X with those of a Series, a frame or a DataArray beside it, if both name them.

    Beside a DataArray X, vectors are aligned by their coordinates instead, and landmarks must be on the same grid.
    """
    named = list(given.dims) if is_labelled(given) else []
    if named and labels is not None:
        grid = labels.grid
        if argument == "sampling" and {*named} & {*grid.dims}:
            place = {dim: 0 for dim in named if dim not in grid.dims}
            grid.aligned(given.isel(place), argument)
            if tuple(dim for dim in named if dim not in place) != grid.dims:
                raise ValueError(
                    f"{argument} has the dimensions {', '.join(named)}, but the features of X are "
                    f"{', '.join(grid.dims)}. Pass {argument}.transpose(..., {', '.join(map(repr, grid.dims))})."
                )
        return
    if known is None:
        return
    if named:
        own = given.coords[named[-1]].values if named[-1] in given.coords else ()
    else:
        series = hasattr(given, "iloc") and given.ndim == 1 and argument != "sampling"  # of row numbers
        own = given.index if series else feature_names(given)
    own = np.asarray(own, dtype=object)
    if own.ndim == 1 and len(own) and all(isinstance(name, str) for name in own):
        with naming_argument(argument):
            compare_names(known, own)


def compare_names(known: NDArray[np.object_], names: NDArray[np.object_]) -> None:
    """Reject names of columns that are not those of the fit, in the words of scikit-learn."""
    if len(known) == len(names) and (known == names).all():
        return
    unseen, missing = sorted(set(names) - set(known)), sorted(set(known) - set(names))
    message = "The feature names should match those that were passed during fit.\n"
    for title, found in (
        ("Feature names unseen at fit time", unseen),
        ("Feature names seen at fit time, yet now missing", missing),
    ):
        if found:
            message += "".join(
                [f"{title}:\n", *(f"- {one}\n" for one in found[:5]), "- ...\n" if len(found) > 5 else ""]
            )
    if not unseen and not missing:
        message += "Feature names must be in the same order as they were in fit.\n"
    raise ValueError(message)


def check_parameters(estimator: BaseEstimator) -> None:
    """Reject parameters outside their ranges, which are in :mod:`bigpca.parameters`, or in the traits of the class.

    Raises
    ------
    TypeError, ValueError
    """
    check_policies(estimator)
    kind: Unchecked = type(estimator)
    for name, one in declared_parameters(kind).items():
        one.check(name, getattr(estimator, name))


@cache
def declared_parameters(kind: Any) -> Mapping[str, Parameter]:
    """Return what is declared of the parameters of a class: in the table of all, or in its traits."""
    known = {**PARAMETERS, **kind._traits.ranges}
    return {name: known[name] for name in signature(kind).parameters if name in known}


def summed(estimator: BaseEstimator) -> list[str]:
    """Return the parameters that act on the sums of rows, which rows that are added later must share.

    A parameter that nothing declares may act on them.
    """
    kind: Unchecked = type(estimator)
    known = declared_parameters(kind)
    return [name for name in signature(kind).parameters if name not in known or known[name].acts == "sums"]


def check_policies(estimator: BaseEstimator) -> None:
    """Reject policies that the maps of a fitted model cannot follow, either.

    Raises
    ------
    TypeError, ValueError
    """
    accepts = estimator._traits.accepts
    taken = [one for one in INCOMPLETE if one in accepts]
    if (policy := estimator.nan_policy) in INCOMPLETE and policy not in taken:
        others = {"mean": ", ApproximatePCA and RotatedPCA", "em": " and FactorAnalysis"}
        which = f"PCA{others.get(policy, '')}"
        raise ValueError(
            f'nan_policy = "{policy}" is for {which}, not for {type(estimator).__name__}. Use "raise" or "omit", or '
            f"fill in the missing values first."
        )
    check_choice("nan_policy", policy, ("raise", "omit", *taken))
    preprocess = getattr(estimator, "preprocess", None)
    if policy in INCOMPLETE and preprocess is not None:
        raise ValueError(
            f'nan_policy = "{policy}" is about missing values in the columns of X, but preprocess = {preprocess!r} is '
            'a function of complete rows. Preprocess the rows before the fit, or use nan_policy="omit".'
        )
    whiten = getattr(estimator, "whiten", False)
    if not isinstance(whiten, bool | np.bool_ | Whitening):
        raise TypeError(
            f"whiten = {whiten!r} is {an(type(whiten).__name__)}; True, False or a rule such as "
            f"bp.scales.Whitening(power=0.25) was expected."
        )


def policies(model: BaseEstimator) -> dict[str, Unchecked]:
    """Return the policies of a model about its rows, checked, as options of :meth:`Rows.begun`."""
    check_policies(model)
    return {"nan_policy": model.nan_policy, "memory_limit": setting(model, "memory_limit")}


def settle_non_finite(rows: Values, mapped: Array, where: str, nan_policy: str, name: str) -> None:
    """Reject what is not finite in mapped rows, or make all of such a row NaN, in place.

    Parameters
    ----------
    rows : ndarray of shape (b, d), or csr_array
    mapped : ndarray of shape (b, k)
        Each value must depend on its whole row: rows with finite results are not checked.
    where : str
        Names the rows in messages; ``name`` names the results.
    nan_policy : {"raise", "omit"}
        Anything but "omit" is to raise.

    Raises
    ------
    NonFiniteError
        Where rows hold NaN or infinities and the policy is to raise.
    ValueError
        If finite rows overflow.
    """
    if np.isfinite(mapped).all():
        return
    lines = np.unique(bad_places(rows)[0])
    if not len(lines):
        remedy = "Divide the data by a constant first." if mapped.dtype == np.float64 else "Pass float64 input."
        raise ValueError(f"{name} of {where} overflow {mapped.dtype}: the values are too large. {remedy}")
    if nan_policy != "omit":
        reject_non_finite(rows, where, name)
    mapped[lines] = np.nan


def bad_places(rows: Values) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and columns of NaN and infinities, in order of rows."""
    rows = looked_at(rows)
    form = form_of(rows)
    return form.places(rows, ~np.isfinite(form.stored(rows)))


def reject_non_finite(rows: Values, where: str, name: str) -> None:
    """Reject rows (b, d) that hold NaN or infinities; ``where`` and ``name`` as for :func:`settle_non_finite`.

    Raises
    ------
    NonFiniteError
        With the number of such values and rows, and the first of them.
    """
    lines, columns = bad_places(rows)
    if len(lines):
        count = counted(len(lines), "NaN or infinite value")
        raise NonFiniteError(
            f"{count} in {counted(len(np.unique(lines)), 'row')} of {where}: the first in "
            f"{row_of(where, int(lines[0]))}, column {columns[0]}. Finite values were expected; "
            f'nan_policy="omit" gives such rows NaN {name}.'
        )
