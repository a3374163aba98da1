"""Conversion to portable JSON: no NaN literals, no NumPy scalars, no objects."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

NON_FINITE = "__non_finite__"  # {"__non_finite__": "nan" | "inf" | "-inf"}


def to_json(value: Any, where: str) -> Any:
    """Convert a value to plain JSON values; non-finite floats become ``{"__non_finite__": "nan"}``.

    Parameters
    ----------
    value : None, bool, int, float, str, NumPy scalar, or list, tuple, str-keyed mapping of those.
    where : the value's name in error messages.

    Raises
    ------
    TypeError
        If an entry cannot be represented; names the entry.

    Examples
    --------
    >>> to_json({"tol": np.float32(0.5), "limits": (1, float("inf"))}, "attributes")
    {'tol': 0.5, 'limits': [1, {'__non_finite__': 'inf'}]}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {NON_FINITE: repr(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [to_json(entry, f"{where}[{index}]") for index, entry in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == NON_FINITE:
                raise TypeError(
                    f"{where} has the key {key!r}, but keys must be str other than {NON_FINITE!r}. Rename it."
                )
        return {key: to_json(entry, f"{where}[{key!r}]") for key, entry in value.items()}
    raise TypeError(
        f"{where} is a {type(value).__name__}, which JSON cannot represent. Give numbers, strings, lists or dicts; "
        "store arrays as arrays."
    )


def from_json(value: Any) -> Any:
    """Undo :func:`to_json` (tuples stay lists)."""
    if isinstance(value, list):
        return [from_json(entry) for entry in value]
    if isinstance(value, dict):
        if set(value) == {NON_FINITE}:
            return float(value[NON_FINITE])
        return {key: from_json(entry) for key, entry in value.items()}
    return value


def canonical_json(value: Any) -> bytes:
    """Return one byte string per JSON value, independent of the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
