"""CF conventions and netCDF: attributes and defaults by which stored numbers are encoded values, or none."""

from __future__ import annotations

import base64
import binascii
import contextlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PACKED = {"scale_factor": 1.0, "add_offset": 0.0}  # with their neutral values
FILLS = ("_FillValue", "missing_value")
RANGES = ("valid_range", "valid_min", "valid_max")
NETCDF = "_NCProperties"  # of the file, by which netCDF-4 is told from other HDF5
MATLAB = "MATLAB_class"
# What netCDF-4 writes where a variable without _FillValue was never written (NC_FILL_* in netcdf.h).
_DEFAULT_FILLS = {"f": 15 * 2.0**119, "i1": -127, "u1": 255, "i2": -(2**15) + 1, "u2": 2**16 - 1,
    "i4": -(2**31) + 1, "u4": 2**32 - 1, "i8": -(2**63) + 2, "u8": 2**64 - 2}  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Which stored numbers of a variable are not values: the default fill of netCDF-4, and those out of its range.

    Attributes
    ----------
    fill : int, float or None
    low, high : int, float or None
        ``valid_range`` in the units of the stored numbers, ends included.
    """

    fill: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> Limits | None:
        """Return what the attributes of a variable of a dtype say; None if all numbers are values."""
        given = {name: _numbers(attributes[name]) for name in RANGES if name in attributes}
        ends = given.get("valid_range", [*given.get("valid_min", [None]), *given.get("valid_max", [None])])
        if len(ends) != 2 or not all(one is None or isinstance(one, int | float) for one in ends):
            ends = [None, None]
        unfilled = NETCDF in attributes and not set(FILLS[:1]) & set(attributes)
        fill = _DEFAULT_FILLS.get("f" if dtype.kind == "f" else f"{dtype.kind}{dtype.itemsize}") if unfilled else None
        return None if fill is ends[0] is ends[1] is None else cls(fill, *ends)

    def values(self, rows: NDArray[Any], label: str, first: int) -> NDArray[Any]:
        """Return rows, which are overwritten, with NaN in place of the default fill.

        Raises
        ------
        ValueError
            For integers that are the default fill, and for numbers out of the range; names the first row.
        """
        why = ""
        if self.fill is not None and (missing := rows == self.fill).any():
            if rows.dtype.kind == "f":
                rows[missing] = np.nan
            else:
                why = "what netCDF-4 holds where nothing was written, and the variable has no _FillValue"
        for end, beyond in ((self.low, np.less), (self.high, np.greater)):
            if not why and end is not None:
                # float32 numbers may equal an end that the attribute has in float64
                missing = beyond(rows, rows.dtype.type(end) if rows.dtype.kind == "f" else end)
                why = f"out of its valid range, {self.low} to {self.high}" if missing.any() else ""
        if why:
            row, column = (int(place) for place in np.argwhere(missing)[0])
            raise ValueError(
                f"{label}: row {first + row:,}, column {column} holds {rows[row, column]}, which is {why}. A value was "
                f"expected. Write missing values as NaN or, if it is a value, pass bigpca.open(path, fill=None)."
            )
        return rows


def check_decoded(attributes: Mapping[str, Any], label: str, remedy: str) -> None:
    """Reject values that are stored scaled, shifted, or with numbers in place of missing values.

    Parameters
    ----------
    attributes : mapping
        The array's attributes: CF conventions, sections 2.5.1 and 8.1.
    remedy : str
        How to decode them.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_decoded({"_FillValue": float("nan"), "scale_factor": 1.0}, "x", "")
    >>> check_decoded({"scale_factor": 0.1, "units": "K"}, "x", "Open it decoded")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: x has scale_factor = 0.1, so its stored numbers are encoded values. Decoded values were expected. ...
    """
    given = {name: _numbers(attributes[name]) for name in (*PACKED, *FILLS) if name in attributes}
    found: dict[str, Any] = {
        name: given[name] for name, same in PACKED.items() if name in given and given[name] != [same]
    }
    found |= {name: given[name] for name in FILLS if name in given and not _all_nan(given[name])}
    if str(attributes.get("_Unsigned", "false")).lower() == "true":
        found["_Unsigned"] = ["true"]
    if found:
        shown = ", ".join(f"{name} = {', '.join(map(str, values[:3]))}" for name, values in found.items())
        raise ValueError(
            f"{label} has {shown}, so its stored numbers are encoded values. Decoded values were expected. {remedy}."
        )


def _numbers(value: Any) -> list[Any]:
    """Return the numbers of an attribute; in Zarr v3, xarray writes those of floats as base64 little-endian doubles."""
    if isinstance(value, str):
        with contextlib.suppress(binascii.Error, struct.error, ValueError):
            return [struct.unpack("<d", base64.standard_b64decode(value))[0]]
        with contextlib.suppress(ValueError):
            return [float(value)]
    values: list[Any] = np.asarray(value).ravel().tolist()
    return values


def _all_nan(values: list[Any]) -> bool:
    return all(isinstance(value, float) and math.isnan(value) for value in values)
