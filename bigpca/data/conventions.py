"""CF conventions: attributes that say that stored numbers are not yet the values they stand for."""

from __future__ import annotations

import base64
import binascii
import contextlib
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

PACKED = {"scale_factor": 1.0, "add_offset": 0.0}  # and the value that changes nothing
FILLS = ("_FillValue", "missing_value")


def check_decoded(attributes: Mapping[str, Any], label: str, remedy: str) -> None:
    """Reject values that are stored scaled, shifted, or with numbers in place of missing values.

    Parameters
    ----------
    attributes : mapping
        Of the array: CF conventions, sections 2.5.1 and 8.1.
    remedy : str
        What decodes them.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_decoded({"_FillValue": float("nan"), "scale_factor": 1.0}, "x", "")
    >>> check_decoded({"scale_factor": 0.1, "units": "K"}, "x", "Open it decoded")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: x has scale_factor = 0.1: its numbers are stored encoded and are not yet the values. ...
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
            f"{label} has {shown}: its numbers are stored encoded and are not yet the values. Decoded values were "
            f"expected. {remedy}."
        )


def _numbers(value: Any) -> list[Any]:
    """Return the numbers of an attribute; xarray writes those of floats into Zarr v3 as the base64
    of a little-endian double.
    """
    if isinstance(value, str):
        with contextlib.suppress(binascii.Error, struct.error, ValueError):
            return [struct.unpack("<d", base64.standard_b64decode(value))[0]]
        with contextlib.suppress(ValueError):
            return [float(value)]
    values: list[Any] = np.asarray(value).ravel().tolist()
    return values


def _all_nan(values: list[Any]) -> bool:
    return all(isinstance(value, float) and math.isnan(value) for value in values)
