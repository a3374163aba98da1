"""Grids in model files: coordinates of numbers, strings, dates (those of cftime too) and of several levels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.grids import Coordinate, Grid
from bigpca.errors import brief, warn_caller

SINCE = "microseconds since 1970-01-01"  # whole numbers, which are exact


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
    for name, one in sorted(grid.coords.items(), key=lambda item: bool(item[1].levels)):  # after those of the levels
        found: dict[str, Any] | None = {"levels": list(one.levels)} if one.levels else _stored(one.values)
        if found is None or not set(one.levels) <= {each["name"] for each in coords}:
            kinds = sorted({type(value).__name__ for value in one.values.ravel()})
            lost.append(brief(f"{name!r} ({', '.join(kinds)})"))
            continue
        if "array" in found:
            place = f"coord_{len(coords)}"
            arrays[place], found["array"] = found["array"], place
        coords.append({"name": name, "dims": list(one.dims), "attrs": _plain(one.attrs), **found})
    if lost:
        warn_caller(
            f"the file leaves out the coordinates {', '.join(lost)}, which are no numbers, strings or dates: what a "
            f"loaded model returns is without them",
            UserWarning,
        )
    return {
        "dims": list(grid.dims), "sizes": list(grid.sizes), "samples": list(grid.samples),
        "name": None if grid.name is None else str(grid.name), "attrs": _plain(grid.attrs), "coords": coords,
    }, arrays  # fmt: skip


def names_stored(grid: Grid, values: Mapping[str, Any]) -> bool:
    """Whether what :func:`grid_to_stored` gave has all that :meth:`Grid.names` are made of, without another library."""
    stored = {one["name"] for one in values["coords"] if not {"levels", "calendar"} & {*one}}
    return all(dim in stored for dim in grid.dims if dim in grid.coords)


def grid_from_stored(values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Grid:
    """Return what :func:`grid_to_stored` gave.

    Raises
    ------
    KeyError, TypeError, ValueError
        For values that it does not give.

    Warns
    -----
    UserWarning
        For coordinates that need pandas or cftime, if that is not installed: they are left out.
    """
    dims, sizes = tuple(map(str, values["dims"])), tuple(map(int, values["sizes"]))
    shape = dict(zip(dims, sizes, strict=True))
    if min(sizes, default=0) < 1:
        raise ValueError(f"its grid has the shape {sizes}")
    coords: dict[str, Coordinate] = {}
    missing: set[str] = set()
    for one in values["coords"]:
        own, levels = tuple(one["dims"]), tuple(one.get("levels", ()))
        if any(level in missing for level in levels):
            continue
        try:
            found = _several_levels([coords[level].values for level in levels]) if levels else _values(one, arrays)
        except ImportError as error:
            warn_caller(f"the coordinate {one['name']!r} of the model is left out: {error}", UserWarning)
            missing.add(one["name"])
            continue
        coords[str(one["name"])] = Coordinate(own, found.reshape([shape[dim] for dim in own]), one["attrs"], levels)
    kept = arrays.get("kept")
    grid = Grid(dims, sizes, coords, tuple(map(str, values["samples"])), values["name"], values["attrs"], kept)
    if kept is not None and not (len(kept) and kept[0] >= 0 and kept[-1] < grid.width and (np.diff(kept) > 0).all()):
        raise ValueError("the columns of its grid are not places of it, in order")
    return grid


def _stored(values: NDArray[Any]) -> dict[str, Any] | None:
    """Return what stores values without loss, or None: ``strings``, or a numeric ``array`` with what it means."""
    kind, calendar = values.dtype.kind, _calendar(values)
    if kind == "U" or (kind == "O" and all(isinstance(value, str) for value in values.ravel())):
        return {"strings": values.ravel().tolist()}
    if kind in "biufmM":
        return {
            "array": values.view(np.int64) if kind in "mM" else values, "dtype": values.dtype.newbyteorder("=").str
        }  # fmt: skip
    if calendar is None:
        return None
    import cftime  # that of the values

    numbers = cftime.date2num(values, SINCE, calendar=calendar[0], has_year_zero=calendar[1])
    return {"array": numbers.astype(np.int64), "calendar": calendar}


def _values(one: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the values of a coordinate in their own dtype, in C order."""
    if "array" not in one:
        return np.array(one["strings"], np.str_)
    found = arrays[one["array"]]
    if "calendar" in one:
        import cftime

        calendar, year_zero = one["calendar"]
        return np.asarray(cftime.num2date(found, SINCE, calendar=calendar, has_year_zero=year_zero), object)
    dtype = np.dtype(one["dtype"])
    return found.view(dtype) if dtype.kind in "mM" else found


def _several_levels(levels: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the values of a coordinate of several levels: tuples, as xarray has them."""
    import pandas as pd

    return np.asarray(pd.MultiIndex.from_arrays(levels).values)


def _calendar(values: NDArray[Any]) -> list[Any] | None:
    """Return the calendar of the dates of cftime, and whether it has a year 0; None for other values."""
    kinds = {type(value) for value in values.ravel()} if values.dtype.kind == "O" else set()
    if len(kinds) != 1 or kinds.pop().__module__.partition(".")[0] != "cftime":
        return None
    found = {(value.calendar, value.has_year_zero) for value in values.ravel()}
    return list(found.pop()) if len(found) == 1 and "" not in next(iter(found)) else None


def _plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return those attributes that are strings, numbers, or lists of them."""
    found = {str(name): value.tolist() if isinstance(value, np.ndarray | np.generic) else value
             for name, value in attrs.items()}  # fmt: skip
    return {name: value for name, value in found.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return (
        all(map(_is_plain, value)) if isinstance(value, list | tuple) else isinstance(value, str | bool | int | float)
    )
