"""CF conventions: attributes by which stored numbers are encoded values."""

from __future__ import annotations

import base64
import binascii
import contextlib
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

PACKED = {"scale_factor": 1.0, "add_offset": 0.0}  # with their neutral values
FILLS = ("_FillValue", "missing_value")


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
