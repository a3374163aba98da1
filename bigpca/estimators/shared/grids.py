"""Labelled arrays out of labelled arrays: scores with the labels of their rows, and rows on the grid of the fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from sklearn.base import BaseEstimator

from bigpca.data.containers import is_labelled
from bigpca.data.grids import COMPONENT, FEATURE, Coordinate, Grid, Labels, labels_of
from bigpca.data.sources import open as open_array
from bigpca.errors import NonFiniteError, brief
from bigpca.estimators.shared.inputs import Exported, Input, Lazy, Opened


@contextmanager
def naming_places(opened: Opened) -> Iterator[None]:
    """Add the coordinates of the first column to an error about columns that have values in some rows only."""
    labels = labels_of(opened.array)
    try:
        yield
    except NonFiniteError as error:
        stored = error.stored_columns
        if labels is None or not (stored or error.columns):
            raise
        if not stored:
            kept = labels.grid.kept
            stored = error.columns if kept is None else tuple(kept[[*error.columns]].tolist())
        named = NonFiniteError(
            f"{error} {len(stored)} column{'s' if len(stored) > 1 else ''} of the DataArray "
            f"{'have' if len(stored) > 1 else 'has'} values in some samples only, the first at "
            f"{labels.grid.place(stored[0])}."
        )
        raise named from None


def labelled_rows(rows: Lazy, labels: Labels, name: str, dim: str | None = COMPONENT, values: Input = None) -> Exported:
    """Return rows (n, k) as a DataArray (samples..., dim), lazily if they are lazy.

    Parameters
    ----------
    dim : str or None, default "component"
        The dimension of the columns; None for the first column alone, without one.
    values : array-like of shape (k,), default None
        Its coordinate; None for numbers from 1.
    """
    import xarray as xr  # installed where there are DataArrays

    dims, coords = labels.grid.samples, dict(labels.coords.coords)
    if dim is None:
        return xr.DataArray(rows[:, 0].reshape(labels.sizes), dims=dims, coords=coords, name=name)
    if dim in (*dims, *map(str, labels.coords.variables)):
        raise ValueError(f"X has a dimension or coordinate {dim!r}, which is that of {name}. Rename it.")
    coords[dim] = np.arange(1, rows.shape[1] + 1) if values is None else np.asarray(values)
    return xr.DataArray(rows.reshape(*labels.sizes, rows.shape[1]), dims=(*dims, dim), coords=coords, name=name)


def by_component(X: Input, k: int) -> Input:
    """Return a DataArray of scores with its dimension ``component`` last, opened; other scores unchanged.

    Raises
    ------
    ValueError
        If the components are not 1 to k, in order.
    """
    if not is_labelled(X) or COMPONENT not in X.dims:
        return X
    if COMPONENT in X.coords and not np.array_equal(X.coords[COMPONENT].values, np.arange(1, k + 1)):
        raise ValueError(
            f"the scores are of the components {brief(X.coords[COMPONENT].values.tolist())}; 1 to {k}, in order, were "
            f"expected. Pass all scores, with 0 for components to leave out."
        )
    if X.dims == (COMPONENT,):
        raise ValueError(
            "the scores are of one sample, without a dimension of samples. Keep it, such as scores.isel(time=[0]) "
            "does, or add it: scores.expand_dims('time')."
        )
    return open_array(X, sample_dims=[dim for dim in X.dims if dim != COMPONENT])


def grid_of(model: BaseEstimator) -> Grid:
    """Return the grid of the features of a fit; one dimension ``feature`` for a fit on rows without labels."""
    grid: Grid | None = vars(model).get("_grid")
    if grid is not None:
        return grid
    names, d = getattr(model, "feature_names_in_", None), model.n_features_in_
    coords = {} if names is None else {FEATURE: Coordinate((FEATURE,), np.asarray(names, np.str_), {})}
    return Grid((FEATURE,), (d,), coords, ("sample",), None, {})


def rows_on_grid(rows: Lazy, labels: Labels, grid: Grid, name: str | None) -> Exported:
    """Return rows (n, d) as a DataArray (samples..., features...), NaN where columns were left out; lazily."""
    import xarray as xr  # as above

    values = grid.spread(rows).reshape(*labels.sizes, *grid.sizes)
    coords = {**labels.coords.coords, **grid_coords(grid)}
    return xr.DataArray(values, dims=(*labels.grid.samples, *grid.dims), coords=coords, name=name)


def grid_coords(grid: Grid) -> dict[str, Exported]:
    """Return the coordinates of a grid, for a DataArray."""
    coords: dict[str, Exported] = {name: (one.dims, one.values, dict(one.attrs)) for name, one in grid.coords.items()}
    for name, one in grid.coords.items():
        if one.levels:
            import pandas as pd
            import xarray as xr  # as above

            index = pd.MultiIndex.from_arrays([grid.coords[level].values for level in one.levels], names=one.levels)
            indexed = xr.Coordinates.from_pandas_multiindex(index, name)
            coords |= {key: indexed[key].assign_attrs(grid.coords[key].attrs) for key in indexed}
    return coords
