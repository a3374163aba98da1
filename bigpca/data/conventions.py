"""CF conventions: attributes that say that stored numbers are not yet the values they stand for."""

from __future__ import annotations

import base64
import binascii
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
    >>> check_decoded({"scale_factor": 0.1, "units": "K"}, "x", "Open it decoded")
    Traceback (most recent call last):
    ValueError: x has scale_factor = 0.1: its numbers are stored encoded and are not yet the values. Decoded values were ...
    """
    found = {
        name: attributes[name]
        for name, same in PACKED.items()
        if name in attributes and not _is(attributes[name], same)
    }
    found |= {name: attributes[name] for name in FILLS if name in attributes and not _is(attributes[name], np.nan)}
    if str(attributes.get("_Unsigned", "false")).lower() == "true":
        found["_Unsigned"] = "true"
    if found:
        shown = ", ".join(
            f"{name} = {np.asarray(value).ravel()[:3].tolist() if np.ndim(value) else value}"
            for name, value in found.items()
        )
        raise ValueError(
            f"{label} has {shown}: its numbers are stored encoded and are not yet the values. Decoded values were expected. "
            f"{remedy}."
        )


def _is(value: Any, same: float) -> bool:
    """Whether an attribute is this number; NaN is NaN, also as xarray writes it into Zarr (base64 of a little-endian double)."""
    if isinstance(value, str):
        try:
            value = struct.unpack("<d", base64.standard_b64decode(value))[0]
        except (binascii.Error, struct.error, ValueError):
            return value.lower() == "nan" and same != same
    try:
        values = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return False
    return bool(np.all(np.isnan(values) if same != same else values == same))
