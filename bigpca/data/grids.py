"""Labels of an xarray.DataArray: the dimensions and coordinates of its samples and of its features.

Grids in model files: coordinates of numbers, strings and dates. Tables: xarray.DataArray and Dask DataFrame, recognised
without importing xarray or pandas.

Rows are samples in C order of their dimensions; columns are the grid of the other dimensions, in their order. xarray is
imported only where a DataArray is made, so that models with a grid are read without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import bigpca.dask_array as da
from bigpca.arrays import FILLS, unmasked
from bigpca.data.checks import check_decoded, numbers_of
from bigpca.data.containers import check_columns, is_dask_frame, is_labelled, reject_foreign
from bigpca.data.views import NO_CODES, MissingCodes, RowPattern, View
from bigpca.errors import NonFiniteError, brief, check_choice, closest, counted, warn_caller

FEATURE = "feature"  # dimension of columns without labels
COMPONENT = "component"  # dimension of scores and patterns; components are numbered from 0


@dataclass(frozen=True, eq=False)
class Coordinate:
    """Values along some dimensions, and their attributes.

    Attributes
    ----------
    dims : tuple of str
    values : ndarray
    attrs : dict
    """

    dims: tuple[str, ...]
    values: NDArray[Any]
    attrs: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Grid:
    """The dimensions that make the columns, with their coordinates.

    Attributes
    ----------
    dims : tuple of str
    sizes : tuple of int
    coords : dict of str to Coordinate
    samples : tuple of str
        Names of the dimensions of the samples, the slowest first.
    name : str or None
        Of the DataArray, with ``attrs``, its attributes.
    kept : ndarray of int64, or None
        The places, in C order, that are columns: the others have no values. None for all.
    why : {"nan", "masked"}
        Why the other places are left out: they are NaN in every row, or a mask excludes them.
    missing : MissingCodes
        Values that mean that there is none.
    """

    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    coords: Mapping[str, Coordinate]
    samples: tuple[str, ...]
    name: str | None
    attrs: Mapping[str, Any]
    kept: NDArray[np.int64] | None = None
    why: str = "nan"
    missing: MissingCodes = NO_CODES

    @property
    def width(self) -> int:
        """Number of places, with those that have no values."""
        return math.prod(self.sizes)

    @property
    def n_columns(self) -> int:
        """Number of places that are columns."""
        return self.width if self.kept is None else len(self.kept)

    def columns(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return those of the values of all places (width,) that belong to columns; others unchanged."""
        return values[self.kept] if self.kept is not None and values.shape == (self.width,) else values

    def spread(self, rows: Any) -> Any:
        """Return rows (n, n_columns) at all places (n, width), NaN where there is no column; lazily if lazy."""
        if self.kept is None:
            return rows
        put = partial(_put_back, kept=self.kept, width=self.width)
        if not isinstance(rows, da.Array):
            return put(rows)
        rows = rows.rechunk({1: -1})
        return rows.map_blocks(put, dtype=rows.dtype, chunks=(rows.chunks[0], (self.width,)))

    def names(self, axes: tuple[int, ...] | None = None) -> NDArray[np.object_] | None:
        """Return the names of the columns: coordinates as strings, joined by commas; None without coordinates.

        ``axes`` are the dimensions that make the columns, by default all.
        """
        used = self._axes if axes is None else [self._axes[axis] for axis in axes]
        if not any(dim in self.coords for dim, _ in used):
            return None
        texts = [list(map(str, self.coords[dim].values if dim in self.coords else range(size))) for dim, size in used]
        joined = texts[0] if len(texts) == 1 else [", ".join(each) for each in product(*texts)]
        return np.array(joined, dtype=object)

    @property
    def _axes(self) -> list[tuple[str, int]]:
        return list(zip(self.dims, self.sizes, strict=True))

    def column_names(self) -> NDArray[np.object_] | None:
        """Return the names of the places that are columns."""
        names = self.names()
        return None if names is None else self.columns(names)

    def place(self, column: int) -> str:
        """Return where a column is, such as ``"lat = 10.5, lon = 20"``: its coordinates, or positions without those."""
        at = np.unravel_index(column, self.sizes)
        shown = [(d, self.coords[d].values[i] if d in self.coords else i) for d, i in zip(self.dims, at, strict=True)]
        return ", ".join(f"{dim} = {value}" for dim, value in shown)

    def naming(self, error: NonFiniteError) -> NonFiniteError:
        """Return an error about columns that have values in some rows only, with the coordinates of the first."""
        if not (stored := error.stored_columns):
            stored = error.columns if self.kept is None else tuple(self.kept[[*error.columns]].tolist())
        if not stored:
            return error
        several = len(stored) > 1
        return NonFiniteError(
            f"{error} {counted(len(stored), 'column')} of the DataArray {'have' if several else 'has'} values in some "
            f"samples only, the first at {self.place(stored[0])}."
        )

    def column_values(self, name: str, what: str) -> NDArray[np.float64]:
        """Return a coordinate for each column; ``what`` names it, in messages.

        Raises
        ------
        ValueError
            If there is no such coordinate, or it is not numbers.
        """
        found = self.coords.get(name)
        if found is None:
            known = ", ".join(map(repr, self.coords)) or "none"
            raise ValueError(
                f"{what} names the coordinate {name!r}, but the features of X have {known}.{closest(name, self.coords)}"
                " Name one of these, or pass an array with a value for each column."
            )
        if found.values.dtype.kind not in "iuf":
            raise ValueError(
                f"{what} names the coordinate {name!r}, which has {found.values.dtype}, not numbers. Pass an array "
                "with a value for each column."
            )
        return self._along(found.values, found.dims)

    def _along(self, values: NDArray[Any], dims: tuple[str, ...]) -> NDArray[np.float64]:
        """Return values along some of the dimensions, for each column."""
        values = values.transpose([dims.index(dim) for dim in self.dims if dim in dims])
        values = values.reshape([size if dim in dims else 1 for dim, size in self._axes])
        return np.asarray(self.columns(np.broadcast_to(values, self.sizes).astype(np.float64).ravel()))

    def aligned(self, given: Any, what: str) -> NDArray[np.float64]:
        """Return what a DataArray gives for each column, by the names of its dimensions; ``what`` names it.

        Raises
        ------
        ValueError
            For a dimension that the columns do not have, another size, and other coordinates.
        """
        sizes, dims = dict(self._axes), tuple(map(str, given.dims))
        if any(sizes.get(dim) != size for dim, size in zip(dims, given.shape, strict=True)):
            shown = " x ".join(f"{dim} = {size}" for dim, size in zip(dims, given.shape, strict=True)) or "none"
            raise ValueError(
                f"{what} has the dimensions {shown}, but the features of X are {_shown(self)}. Give numbers along some "
                "of these, in any order."
            )
        for dim in [dim for dim in dims if dim in self.coords and dim in given.coords]:
            remedy = f"Put both on one grid, for example with {what}.reindex({dim}=X.{dim})."
            _check_equal(dim, given.coords[dim].values, what, self.coords[dim].values, "that of X is", remedy)
        return self._along(np.asarray(given.values, np.float64), dims)

    def masked(self, mask: Any) -> Grid:
        """Return the grid without the places where a mask is False: a DataArray, or an array of the shape of the grid.

        Raises
        ------
        TypeError, ValueError
            As :func:`masked_places`, and :meth:`aligned` for a DataArray.
        """
        if is_labelled(mask):
            check_mask(mask.dtype)
            mask = self.aligned(mask, "mask").reshape(self.sizes) > 0
        return replace(self, kept=masked_places(mask, self.sizes), why="masked")

    def check_same(self, other: Grid, owner: str) -> None:
        """Compare with the grid of new rows.

        Raises
        ------
        ValueError
            For other dimensions, sizes or coordinates.
        """
        if self.dims != other.dims or self.sizes != other.sizes:
            raise ValueError(
                f"the features of X are {_shown(other)}, but {owner} was fitted on {_shown(self)}. Pass X on that grid."
            )
        for name in [name for name in self.coords if name in other.coords]:
            known, given = self.coords[name], other.coords[name]
            found = given.values if known.dims == given.dims else np.array([f"along {', '.join(given.dims)}"])
            remedy = "Pass X on the grid of the fit; use X.reindex or X.interp."
            _check_equal(name, found, "X", known.values, f"{owner} was fitted on", remedy)

    def like(self, other: Grid) -> Grid:
        """Return a grid that :meth:`check_same` accepted with all coordinates that this one has."""
        return replace(other, coords={**other.coords, **self.coords})


def kept_view(grid: Grid) -> View | None:
    """Return the view of all places of a grid that are its columns, as in the fit; None for all as they are."""
    missing = grid.missing
    if grid.kept is None:
        return View((grid.width,), pattern=RowPattern(missing=missing), missing=missing) if missing else None
    return View((grid.width,), columns=grid.kept, absent=grid.why, missing=missing)


def check_mask(dtype: np.dtype[Any]) -> None:
    """Reject a mask that is not of booleans.

    Raises
    ------
    TypeError
    """
    if dtype.kind != "b":
        raise TypeError(f"mask has the dtype {dtype}; bool was expected. Pass mask > 0.5, or mask.notnull().")


def masked_places(mask: ArrayLike, sizes: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the places, in C order, where a mask of the shape of a sample, or of its columns, is True.

    Raises
    ------
    TypeError
        For other values than booleans.
    ValueError
        For another shape, and where none is True.
    """
    check_mask(np.asanyarray(mask).dtype)
    given = unmasked(np.asanyarray(mask))
    if given.dtype.kind != "b":
        raise TypeError(
            "mask is a masked array with masked entries; True or False was expected. Pass mask.filled(False)."
        )
    if given.shape not in (sizes, (math.prod(sizes),)):
        raise ValueError(f"mask has the shape {given.shape}, but a sample has {sizes}. Pass one of that shape.")
    places = np.flatnonzero(given).astype(np.int64)
    if not len(places):
        raise ValueError(
            f"mask is False at all {given.size} places, so no column is left. Set it to True at the places to keep."
        )
    return places


def _put_back(rows: NDArray[Any], kept: NDArray[np.int64], width: int) -> NDArray[Any]:
    """Return rows (b, width) with these columns, and NaN in the others.

    >>> _put_back(np.ones((1, 2)), np.array([0, 2]), 3).tolist()
    [[1.0, nan, 1.0]]
    """
    out = np.full((len(rows), width), np.nan, rows.dtype)
    out[:, kept] = rows
    return out


@dataclass(frozen=True, eq=False)
class Labels:
    """The grid of the columns, and the labels of the rows.

    Attributes
    ----------
    grid : Grid
    sizes : tuple of int
        Of the dimensions of the samples.
    coords : xarray.Dataset
        Coordinates of the samples.
    shown : bool, default False
        Whether results for these rows have labels even if they are a Dask array, as windows of a DataArray.
    """

    grid: Grid
    sizes: tuple[int, ...]
    coords: Any
    shown: bool = False

    def at(self, places: NDArray[np.int64]) -> Labels:
        """Return those of some rows; of several dimensions of samples, rows that were chosen have no coordinates."""
        first, *others = self.grid.samples
        coords = self.coords
        coords = coords.drop_dims([first, *others]) if others else coords.isel({first: places}, missing_dims="ignore")
        return replace(self, sizes=(len(places),), coords=coords)

    def by_sample(self, given: Any, what: str) -> Any:
        """Return what is given for each sample, in the order of the rows; other than a DataArray unchanged.

        Raises
        ------
        ValueError
            For a DataArray along other dimensions, or with other coordinates than those of the samples.
        """
        if not is_labelled(given):
            return given
        dims = self.grid.samples
        if not set(dims) <= set(given.dims):
            raise ValueError(
                f"{what} has the dimensions {', '.join(map(str, given.dims)) or 'none'}, but the samples of X are "
                f"along {', '.join(dims)}. Pass a value for each sample, or {what}.values in the order of the rows."
            )
        given = given.transpose(*dims, ...)
        for name in [name for name in self.coords.coords if name in given.coords and name in dims]:
            own, other = self.coords.coords[name].values, given.coords[name].values
            remedy = f"Put them in the same order, for example with {what}.reindex_like(X)."
            _check_equal(name, other, what, own, "that of X is", remedy)
        return given if len(dims) == 1 else given.values.reshape(-1, *given.shape[len(dims) :])


def label(X: Any, sample_dims: str | Sequence[str] | None) -> tuple[Any, Labels]:
    """Return a DataArray with the dimensions of the samples first, and its labels; its values are not computed.

    Parameters
    ----------
    X : xarray.DataArray
    sample_dims : str, sequence of str, or None
        None for the first dimension.

    Raises
    ------
    ValueError
        For dimensions that X does not have or that are named twice, and if none or all of them are of samples.
    """
    X = _named(X)
    samples = _sample_dims(X, sample_dims)
    X = X.transpose(*samples, ...)
    dims = tuple(dim for dim in X.dims if dim not in samples)
    coords = X.coords.to_dataset()
    own = {str(name): one for name, one in coords.coords.items() if one.dims and set(one.dims) <= set(dims)}
    found = {name: Coordinate(one.dims, np.asarray(one.values), dict(one.attrs)) for name, one in own.items()}
    sizes = tuple(int(X.sizes[dim]) for dim in dims)
    grid = Grid(dims, sizes, found, samples, X.name, dict(X.attrs))
    apart = [name for name, one in coords.coords.items() if not set(one.dims) <= set(samples) or not one.dims]
    return X, Labels(grid, tuple(int(X.sizes[dim]) for dim in samples), coords.drop_vars(apart))


def _named(X: Any) -> Any:
    """Return a DataArray whose dimensions have strings as names."""
    other = {dim: str(dim) for dim in X.dims if not isinstance(dim, str)}
    return X.rename(other) if other else X


def _sample_dims(X: Any, given: str | Sequence[str] | None) -> tuple[str, ...]:
    shown = f"the dimensions of X are {', '.join(X.dims) or 'none'}"
    if given is None:
        return tuple(X.dims[:1])
    dims = tuple(map(str, (given,) if isinstance(given, str | int) else given))
    unknown = next((dim for dim in dims if dim not in X.dims), None)
    if unknown is not None:
        raise ValueError(
            f"sample_dims has {unknown!r}, but {shown}.{closest(unknown, X.dims)} Name the dimensions of the samples."
        )
    if not dims or len(set(dims)) < len(dims):
        raise ValueError(f"sample_dims = {dims!r}; one or more different dimensions were expected: {shown}.")
    if len(dims) == X.ndim:
        raise ValueError(
            f"sample_dims = {dims!r} are all dimensions of X, which leaves none for its features. Leave out those of "
            f"the features."
        )
    return dims


def as_fitted_grid(X: Any, grid: Grid, owner: str) -> Any:
    """Return a DataArray whose dimensions are those of a fit, in their order, for :func:`label`.

    Raises
    ------
    ValueError
        For other dimensions.
    """
    X = _named(X)
    if set(X.dims) != {*grid.samples, *grid.dims}:
        lost = [dim for dim in grid.samples if dim not in X.dims]
        remedy = "bp.open(X, sample_dims=...) makes rows of other samples."
        if lost and set(X.dims) | set(lost) == {*grid.samples, *grid.dims}:
            remedy = f"X.expand_dims({lost}) makes a row of one sample."
        raise ValueError(
            f"X has the dimensions {', '.join(X.dims)}, but {owner} was fitted on samples along "
            f"{', '.join(grid.samples)} with the features {', '.join(grid.dims)}. Pass those, in any order; {remedy}"
        )
    return X.transpose(*grid.samples, *grid.dims)


def _shown(grid: Grid) -> str:
    return " x ".join(f"{dim} = {size}" for dim, size in zip(grid.dims, grid.sizes, strict=True))


def _equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether coordinates are equal: numbers by value, with NaN and NaT equal to themselves."""
    if a.dtype.kind in "fmM" and b.dtype.kind in "iufmM":
        return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    try:
        return bool(np.array_equal(a, b))
    except TypeError:  # dates of two calendars
        return False


def _check_equal(name: str, given: NDArray[Any], of: str, known: NDArray[Any], that: str, remedy: str) -> None:
    """Reject values of a coordinate that are not the known ones."""
    if not _equal(known, given):
        shown, expected = (brief(values.ravel()[:4].tolist()) for values in (given, known))
        raise ValueError(f"the coordinate {name!r} of {of} is {shown}..., but {that} {expected}.... {remedy}")


def grid_to_stored(grid: Grid) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return JSON values and arrays of a grid.

    Warns
    -----
    UserWarning
        For coordinates of other values than numbers, strings and dates, which are left out.
    """
    arrays: dict[str, NDArray[Any]] = {} if grid.kept is None else {"kept": grid.kept}
    coords: list[dict[str, Any]] = []
    lost: list[str] = []
    for name, one in grid.coords.items():
        if (found := _stored(one.values)) is None:
            kinds = sorted({type(value).__name__ for value in one.values.ravel()})
            lost.append(brief(f"{name!r} ({', '.join(kinds)})"))
            continue
        if "array" in found:
            place = f"coord_{len(coords)}"
            arrays[place], found["array"] = found["array"], place
        coords.append({"name": name, "dims": list(one.dims), "attrs": _plain(one.attrs), **found})
    if lost:
        warn_caller(
            f"the file leaves out the coordinates {', '.join(lost)}, which are not numbers, strings or dates: a "
            f"loaded model returns results without them",
            UserWarning,
        )
    return {
        "dims": list(grid.dims),
        "sizes": list(grid.sizes),
        "samples": list(grid.samples),
        "name": None if grid.name is None else str(grid.name),
        "attrs": _plain(grid.attrs),
        "coords": coords,
        **({} if grid.why == "nan" else {"why": grid.why}),
        **({"missing": grid.missing.to_json()} if grid.missing else {}),
    }, arrays


def names_stored(grid: Grid, values: Mapping[str, Any]) -> bool:
    """Whether what :func:`grid_to_stored` gave has all that :meth:`Grid.names` are made of."""
    stored = {one["name"] for one in values["coords"]}
    return all(dim in stored for dim in grid.dims if dim in grid.coords)


def grid_from_stored(values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Grid:
    """Return what :func:`grid_to_stored` gave.

    Raises
    ------
    KeyError, TypeError, ValueError
        For values that it does not give.
    """
    dims, sizes = tuple(map(str, values["dims"])), tuple(map(int, values["sizes"]))
    shape = dict(zip(dims, sizes, strict=True))
    if min(sizes, default=0) < 1:
        raise ValueError(f"its grid has the shape {sizes}")
    coords: dict[str, Coordinate] = {}
    for one in values["coords"]:
        own = tuple(one["dims"])
        found = _values(one, arrays).reshape([shape[dim] for dim in own])
        coords[str(one["name"])] = Coordinate(own, found, one["attrs"])
    kept = arrays.get("kept")
    grid = Grid(dims, sizes, coords, tuple(map(str, values["samples"])), values["name"], values["attrs"], kept)
    codes = MissingCodes.from_json(values.get("missing"))
    grid = replace(grid, why=values.get("why", grid.why), missing=codes)
    check_choice("why", grid.why, ("nan", "masked"))
    if kept is not None and not (len(kept) and kept[0] >= 0 and kept[-1] < grid.width and (np.diff(kept) > 0).all()):
        raise ValueError("the columns of its grid are not positions in the grid, in order")
    return grid


def _stored(values: NDArray[Any]) -> dict[str, Any] | None:
    """Return how values are stored without loss, as ``strings`` or a numeric ``array`` with its meaning; or None."""
    kind = values.dtype.kind
    if kind == "U" or (kind == "O" and all(isinstance(value, str) for value in values.ravel())):
        return {"strings": values.ravel().tolist()}
    if kind in "biufmM":
        return {"array": values.view(np.int64) if kind in "mM" else values, "dtype": values.dtype.newbyteorder("=").str}
    return None


def _values(one: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the values of a coordinate in their own dtype, in C order."""
    if "array" not in one:
        return np.array(one["strings"], np.str_)
    found, dtype = arrays[one["array"]], np.dtype(one["dtype"])
    return found.view(dtype) if dtype.kind in "mM" else found


def _plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return those attributes that are strings, numbers, or lists of them."""
    found = {
        str(name): value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for name, value in attrs.items()
    }
    return {name: value for name, value in found.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return (
        all(map(_is_plain, value)) if isinstance(value, list | tuple) else isinstance(value, str | bool | int | float)
    )


def check_field(X: Any, fill: str | None = "default", codes: Iterable[float] = ()) -> None:
    """Reject a DataArray whose attributes show that its values are still encoded; see :func:`check_decoded`."""
    decoded = [one for name in FILLS if name in X.encoding for one in numbers_of(X.encoding[name])]
    missing = "bigpca.open(field.where(field != {code}), fill=None), or bigpca.open(field, fill=None)"
    remedy = 'Open it without mask_and_scale=False, or take xr.decode_cf(ds)["x"]'
    check_decoded(X.attrs, f"the DataArray {X.name!r}", remedy, fill, {*codes, *decoded}, missing)


def lazy_table(X: Any, fill: str | None = "default", codes: Iterable[float] = ()) -> Any:
    """Return the array behind a labelled table, without computing it; other arguments are returned unchanged.

    ``fill`` and ``codes`` are those of :func:`check_field`.

    Raises
    ------
    ValueError
        For a DataArray whose attributes show that its values are still encoded.
    TypeError
        For columns of a Dask DataFrame that do not hold numbers.
    """
    if is_labelled(X):
        check_field(X, fill, codes)
        return X.data if X.chunks is not None or is_held(X) else X.chunk({X.dims[0]: "auto"}).data
    return _frame_rows(X) if is_dask_frame(X) else X


def is_held(X: Any) -> bool:
    """Whether this is a DataArray over an array in memory, for which ``X.data`` reads no file."""
    return is_labelled(X) and X.chunks is None and bool(not X.ndim or X.variable._in_memory)


def sample_rows(X: Any, count: int, fill: str | None, codes: Iterable[float]) -> Any:
    """Return the values of a DataArray with its first ``count`` dimensions, those of the samples, as one.

    Lazily, unless that is a view of the memory.
    """
    values = lazy_table(X, fill, codes)
    if count == 1:
        return values
    n, rest = math.prod(values.shape[:count]), values.shape[count:]
    if not isinstance(values, da.Array):
        reject_foreign(values, "the source")
        values = np.asarray(values)
        if all(values.strides[i] == values.strides[i + 1] * values.shape[i + 1] for i in range(count - 1)):
            return values.reshape(n, *rest)
        values = da.from_array(values, chunks=("auto",) + (-1,) * (values.ndim - 1), name=False)
    return values.rechunk(dict.fromkeys(range(1, values.ndim), -1)).reshape(n, *rest)


def _frame_rows(X: Any) -> da.Array:
    """Return the rows of a Dask DataFrame, in the common dtype of its columns, without computing partitions."""
    check_columns(X)
    dtypes = []
    for given in X.dtypes:
        dtype = getattr(given, "numpy_dtype", given)
        held = dtype.kind == "f" or (given is dtype and dtype.kind in "biu")
        dtypes.append(dtype if held else np.dtype(np.float64))  # NaN for missing values
    common = np.result_type(*dtypes) if dtypes else np.dtype(np.float64)
    return X.map_partitions(_values_labelled, common, meta=np.empty((0, len(dtypes)), common))


def _values_labelled(part: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    check_columns(part)  # what a frame says of its partitions need not be true
    if dtype.kind != "f":
        return np.asarray(part.to_numpy(dtype=dtype))
    return np.asarray(part.to_numpy(dtype=dtype, na_value=np.nan))
