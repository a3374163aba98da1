"""bfloat16, which is no dtype of NumPy: read as the integers of its bits, and widened to float32, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

BFLOAT16 = "bfloat16"


def is_half(document: Mapping[str, Any]) -> bool:
    """Whether the metadata of an array, of Zarr v2 or v3, say that it holds bfloat16."""
    return BFLOAT16 in (document.get("dtype"), document.get("data_type"))


def as_integers(document: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of an array or group with bfloat16 declared as uint16, and fill values as their bits."""
    found = dict(document)
    if is_half(document):
        found |= {"dtype": "<u2"} if document.get("zarr_format") == 2 else {"data_type": "uint16"}
        if document.get("fill_value") is not None:
            found["fill_value"] = _bits(document["fill_value"])
    inside = document.get("consolidated_metadata")
    if isinstance(inside, dict) and isinstance(inside.get("metadata"), dict):
        members = {name: as_integers(one) for name, one in inside["metadata"].items() if isinstance(one, dict)}
        found["consolidated_metadata"] = inside | {"metadata": members}
    return found


def _bits(fill: Any) -> int:
    """Return the bits of a fill value: a number, "NaN", "Infinity", "-Infinity", or bits such as "0x7fc0"."""
    if isinstance(fill, str) and fill.lower().startswith("0x"):
        return int(fill, 16)
    return int(np.float32(fill).view(np.uint32) >> 16)


def widened(bits: NDArray[Any]) -> NDArray[np.float32]:
    """Return the float32 numbers whose upper halves are these integers: the same numbers exactly.

    >>> widened(np.array([0x3FC0, 0xC000], np.uint16))
    array([ 1.5, -2. ], dtype=float32)
    """
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)
