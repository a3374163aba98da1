"""Labelled arrays out of labelled arrays: scores with the labels of their rows, and rows on the grid of the fit.

Columns of a labelled array that have no values, such as those of land in a field of the sea: found, and left out. A
fitted linear model as an xarray.Dataset: its patterns on the grid of the features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from bigpca.arrays import Matrix
from bigpca.data.containers import is_labelled
from bigpca.data.dask_arrays import carrying, viewed
from bigpca.data.grids import COMPONENT, FEATURE, Coordinate, Grid, Labels, as_fitted_grid, is_held, kept_view
from bigpca.data.provenance import version_of
from bigpca.data.sources import open as open_array
from bigpca.data.views import View
from bigpca.data.weights import CountedRows
from bigpca.engine.events import ProgressArgument
from bigpca.errors import naming_argument, required, warn_caller
from bigpca.estimators.shared.fit import Reading, called, running
from bigpca.estimators.shared.inputs import Lazy, Unchecked, compare_names, is_lazy, open_rows, policies, viewed_as
from bigpca.passes.accumulators.observed_columns import ColumnSearch
from bigpca.passes.fold import Declared
from bigpca.passes.rows import Rows, as_given
from bigpca.passes.side_by_side import rows_at
from bigpca.passes.summaries import search_columns, searches, warn_of_filled

if TYPE_CHECKING:
    import xarray as xr

BY_COMPONENT = (
    "explained_variance",
    "explained_variance_ratio",
    "singular_values",
    "eigenvalues",
    "residuals",
    "subspace_error_bounds",
    "correlations",
    "squared_covariance_fraction",
)
BY_FEATURE = ("mean", "scale", "std")
PATTERNS = ("weights", "rotations", "loadings")  # of shape (d, k), of each of two sides


def labels_for(X: Unchecked, rows: Rows) -> Labels | None:
    """Return the labels that results for opened rows have, None for none: X is a DataArray, or windows of one."""
    labels = rows.origin.labels
    return labels if labels is not None and (labels.shown or is_labelled(X)) else None


def labelled_rows(
    rows: Lazy, labels: Labels | None, name: str, dim: str | None = COMPONENT, values: ArrayLike | None = None
) -> Unchecked:
    """Return rows (n, k) as a DataArray (samples..., dim), lazily if they are lazy; as they are without labels.

    Parameters
    ----------
    dim : str or None, default "component"
        The dimension of the columns; None for the first column alone, without one.
    values : array-like of shape (k,), default None
        Its coordinate; None for numbers from 0.
    """
    if labels is None:
        return rows
    import xarray as xr  # installed where there are DataArrays

    dims, coords = labels.grid.samples, dict(labels.coords.coords)
    if dim is None:
        return xr.DataArray(rows[:, 0].reshape(labels.sizes), dims=dims, coords=coords, name=name)
    if dim in (*dims, *map(str, labels.coords.variables)):
        raise ValueError(f"X has a dimension or coordinate {dim!r}, which is that of {name}. Rename it.")
    coords[dim] = np.arange(rows.shape[1]) if values is None else np.asarray(values)
    return xr.DataArray(rows.reshape(*labels.sizes, rows.shape[1]), dims=(*dims, dim), coords=coords, name=name)


def grid_of(model: BaseEstimator, side: str = "") -> Grid:
    """Return the grid of the features of a fit, or of its Y (``side`` "y_"); see :func:`grid_of_columns`."""
    if side == "y_":
        return model._result.targets.grid or grid_of_columns(None, model.n_targets_)
    return model._steps.grid or grid_of_columns(getattr(model, "feature_names_in_", None), model.n_features_in_)


def grid_of_columns(names: Unchecked, d: int) -> Grid:
    """Return the grid of columns without labels: the dimension ``feature``, with its names, and no samples."""
    coords = {} if names is None else {FEATURE: Coordinate((FEATURE,), np.asarray(names, np.str_), {})}
    return Grid((FEATURE,), (d,), coords, (), None, {})


def common_grid(first: Grid | None, second: Grid | None) -> Grid | None:
    """Return the grid of two models of labelled arrays, None if one has none; other grids are rejected."""
    if first is None or second is None:
        return None
    first.check_same(second, "the first model")
    if not np.array_equal(first.columns(np.arange(first.width)), second.columns(np.arange(first.width))):
        raise ValueError(
            "the models left out different columns without values. Fit both on rows with the same columns."
        )
    return first


def common_view(first: View | None, second: View | None, side: str = "") -> View | None:
    """Return the view of two models, None if they have not the same; rows of different patterns are rejected.

    Rows of X, not those of a ``side``, may also have been cut before one of the fits.
    """
    # Rows of maps of several sizes are alike.
    patterns = [one and one.pattern and replace(one.pattern, sizes=()) for one in (first, second)]
    if patterns[0] != patterns[1] and (side or all(patterns)):
        raise ValueError(
            f"the models were fitted to rows{side} of different patterns, {patterns[0]} and {patterns[1]}. Fit both "
            "with the same."
        )
    return first if first and second and first.describe() == second.describe() else None


def on_fitted_grid(
    model: BaseEstimator, X: Unchecked, rows: Rows, found: Lazy, what: str = "", grid: Grid | None = None
) -> Unchecked:
    """Return rows of features (n, d) as X is given: if it is a DataArray, as one (samples..., features...).

    It is on the grid of the fit, or on another one, with NaN where columns were left out; lazily.
    """
    labels, grid = labels_for(X, rows), grid or grid_of(model)
    if labels is None:
        return found
    import xarray as xr  # as above

    values = grid.spread(found).reshape(*labels.sizes, *grid.sizes)
    coords = {**labels.coords.coords, **grid_coords(grid)}
    return xr.DataArray(values, dims=(*labels.grid.samples, *grid.dims), coords=coords, name=what or grid.name)


def grid_coords(grid: Grid) -> dict[str, object]:
    """Return the coordinates of a grid, for a DataArray."""
    return {name: (one.dims, one.values, dict(one.attrs)) for name, one in grid.coords.items()}


@dataclass(frozen=True)
class EmptyColumns(Reading):
    """The reads before a fit that find the columns without values."""

    solver: ClassVar[str] = "columns without values"
    account: ClassVar[str] = "they are left out, so the fit is planned once they are known"

    def passes(self) -> tuple[Declared, ...]:
        return searches(self.rows)


def without_absent_columns(
    model: BaseEstimator,
    rows: Rows,
    counted: CountedRows | None = None,
    *,
    read: bool = True,
    progress: ProgressArgument = None,
) -> Rows:
    """Return the rows of a DataArray without the columns that are NaN in every row, others unchanged.

    The rows that count are those of ``counted``, which may be known before those of a fit; None for those of the rows.

    Unless ``read`` is True or the rows are in memory, those columns remain, and only the reads that will find them
    are declared.

    Raises
    ------
    ValueError
        If all columns are NaN.
    NonFiniteError
        For infinities in the rows that are read.
    """
    labels = rows.origin.labels
    # Floats alone may be NaN; a mask has chosen the columns.
    if labels is None or labels.grid.kept is not None or rows.dtype.kind != "f" or rows.n_rows < 1:
        return rows
    begun = replace(rows, counted=rows.counted if counted is None else counted, covariates=None)
    begun = begun.begun(**policies(model))
    if not read and not begun.in_memory:
        return rows.shown(carrying(rows.X, search=ColumnSearch(tuple(one.cost for one in searches(begun)))))
    with running(EmptyColumns(begun), progress=None if begun.nan_policy == "raise" else progress) as run:
        found, made = search_columns(run, begun)
    kept = np.flatnonzero(~found.absent)
    if not len(kept):
        count = int(found.totals[0])
        seen = "every row" if count == begun.n_present else f"the first {count} rows" if count > 1 else "the first row"
        raise ValueError(
            f"all {len(found.absent)} columns of the DataArray are NaN in {seen}, so none has values. Drop "
            f"such rows by dropna({labels.grid.samples[0]!r}, how='all')."
        )
    if len(kept) < len(found.absent):
        rows = _cut(rows, replace(labels.grid, kept=kept))
    if made.found is not None:
        made = replace(made, found=found.columns(kept))
        if begun.nan_policy == "mean":
            warn_of_filled(found.columns(kept))
    return rows.shown(carrying(rows.X, search=made))


def open_side(
    Y: Unchecked,
    estimator: str,
    name: str = "Y",
    grid: Grid | None = None,
    view: View | None = None,
    beside: Rows | None = None,
) -> Rows:
    """Open rows that belong to those of X, as X is opened, unless they are opened: the one door for all such rows.

    A number for each row, (n,), is one column: ``sample`` of such rows is ().

    The grid and the view are those of a fit. Rows ``beside`` others are returned in the order of these: joined by key
    where both have keys that differ.

    Raises as :func:`bigpca.estimators.shared.inputs.open_rows` and :func:`open_on_grid`, with the name of the side in
    place of X.
    """
    if isinstance(Y, Rows):
        return Y
    named = grid is not None and not grid.samples  # of a fit to a frame, which has no other grid
    with naming_argument(name):
        series = hasattr(Y, "map_partitions") and hasattr(Y, "to_frame")  # of Dask
        if column := (series or is_labelled(Y)) and Y.ndim == 1:
            Y = Y.to_frame(0) if series else Y.expand_dims(FEATURE, 1)
        opened = partial(open_rows, estimator=estimator, single=True)
        rows = open_on_grid(Y, None if named else grid, estimator, opened)
        rows = as_given(rows, sample=()) if column else rows
        if beside is not None and rows.origin.arrays is not None and not np.isnan([beside.n_rows, rows.n_rows]).any():
            from bigpca.data.keys import keys_of_rows, label_places  # imports all formats of labels

            keys = (keys_of_rows(one.origin.given) for one in (beside, rows))
            joined = label_places(*keys, word="covariate")
            rows = rows if joined is None else rows_at(joined[0], rows)
        own = rows.origin
        if grid is not None and named and own.names is not None:
            compare_names(grid.coords[FEATURE].values, own.names)
        if grid is not None and own.labels is None and own.view is None and rows.viewed_columns == grid.width:
            return _cut(rows, grid)
        return rows if view is None else viewed_as(view, rows, None, estimator)


def open_on_grid(X: Unchecked, grid: Grid | None, owner: str, opened: Callable[[Unchecked], Rows]) -> Rows:
    """Open new rows: labelled ones on the grid of the fit, if there was one, without the columns that it left out.

    Raises
    ------
    ValueError
        For another grid, and another mask.

    Warns
    -----
    UserWarning
        If the rows have fewer coordinates than the fit, along which they are taken by position.
    """
    if grid is None:
        return opened(X)
    lazy = is_lazy(X) and not is_held(X)
    if is_labelled(X):
        codes = cast("float | None", grid.missing or None)
        X = open_array(as_fitted_grid(X, grid, owner), sample_dims=grid.samples, missing_value=codes)
    rows = as_given(opened(X), lazy=lazy)
    labels = rows.origin.labels
    if labels is None:
        return rows
    grid.check_same(labels.grid, owner)
    unknown = [dim for dim in grid.dims if dim in grid.coords and dim not in labels.grid.coords]
    if unknown:
        warn_caller(
            f"X has no coordinates along {', '.join(unknown)}, but {owner} was fitted with them: its columns are taken "
            f"by position",
            UserWarning,
        )
    rows = as_given(rows, names=grid.like(labels.grid).column_names())
    own = labels.grid
    if own.missing and own.missing != grid.missing:
        raise ValueError(
            f"missing_value = {own.missing} in X, but {owner} was fitted with {grid.missing or 'none'}. Give X the "
            "codes of the fit, or NaN where values are missing."
        )
    if own.kept is None:
        return _cut(rows, grid)
    if grid.kept is None or not np.array_equal(grid.kept, own.kept):
        raise ValueError(
            f"the mask of X keeps {own.n_columns} places, which are not the {grid.n_columns} that {owner} was fitted "
            "on. Pass X without a mask, or with that of the fit."
        )
    return rows


def _cut(rows: Rows, grid: Grid) -> Rows:
    """Return rows of all places of a grid without those that are not its columns."""
    view, labels = kept_view(grid), rows.origin.labels
    if view is None:
        return rows
    names = rows.origin.names if view.columns is None or rows.origin.names is None else rows.origin.names[view.columns]
    labels = labels and replace(labels, grid=replace(labels.grid, kept=grid.kept, missing=grid.missing))
    samples = rows.X if rows.origin.view is None else rows.origin.samples  # whose codes of missing values this view has
    array = carrying(viewed(samples, view, names), labels=labels)
    return rows.shown(array, names=names, sample=(view.width,))


def dataset_of(model: BaseEstimator, side: str = "") -> xr.Dataset:
    """Return a fitted model as a Dataset, see :meth:`Estimator.to_xarray`; of two sides, that of ``side`` "x_" or "y_".

    Variables are named as the attributes, without the side.
    """
    xr = required("xarray", "to_xarray", "'bigpca[xarray]'")
    grid, made = grid_of(model, side), model.provenance_
    names = [name for name in PATTERNS if hasattr(model, f"{side}{name}_")] if side else []
    patterns = {name: getattr(model, f"{side}{name}_").T for name in names} or {"components": model.components_}
    taken = {COMPONENT: "that of patterns", **dict.fromkeys((*patterns, *BY_COMPONENT, *BY_FEATURE), "a variable")}
    clash = next((name for name in (*grid.dims, *grid.coords) if name in taken), None)
    if clash is not None:
        raise ValueError(
            f"the features have a dimension or coordinate {clash!r}, which is {taken[clash]} of the Dataset. Rename it "
            f"before the fit."
        )

    def fields(values: Matrix) -> Matrix:
        return np.asarray(grid.spread(values).reshape(len(values), *grid.sizes))

    k = model.n_components_
    found: dict[str, object] = {name: ((COMPONENT, *grid.dims), fields(one)) for name, one in patterns.items()}
    for name in BY_COMPONENT:
        values = getattr(model, f"{name}_", None)
        if values is not None and np.shape(values) == (k,):
            found[name] = (COMPONENT, values)
    for name in BY_FEATURE:
        values = getattr(model, f"{side}{name}_", None)
        if values is not None:
            found[name] = (grid.dims, fields(np.asarray(values)[None])[0])
    own = {
        "bigpca_version": version_of("bigpca"),
        "call": called(model) if made is None else made.call,
        "solver": getattr(model, "solver_", ""),
        "n_samples": int(model.n_samples_),
        "sample_dims": ", ".join(grid.samples or ("sample",)),
        **({} if grid.name is None else {"variable": str(grid.name)}),
    }
    coords = {**grid_coords(grid), COMPONENT: np.arange(k)}
    return xr.Dataset(found, coords=coords, attrs={**grid.attrs, **own})
