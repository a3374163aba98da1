"""Parameters that are records, such as ``L2()``, in model files: a name from a fixed table, and JSON values."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np

from bigpca.passes.reading.preprocessing import L2, Power
from bigpca.solvers.scaling import CosLatitude, Patterson
from bigpca.solvers.whitening import Whitening

Record: TypeAlias = L2 | Power | CosLatitude | Patterson | Whitening
RECORDS: dict[str, type[Record]] = {one.__name__: one for one in (L2, Power, CosLatitude, Patterson, Whitening)}
KEY = "record"  # of the name
VECTOR = "vector"


def encode_record(value: Any) -> Any:
    """Return a record, a vector, or a list of records as JSON values; other parameters unchanged."""
    if type(value) in RECORDS.values():
        return {KEY: type(value).__name__, **{field.name: getattr(value, field.name) for field in fields(value)}}
    if isinstance(value, list | tuple):
        return [encode_record(one) for one in value]
    return {KEY: VECTOR, "values": value.tolist()} if isinstance(value, np.ndarray) else value


def decode_record(value: Any) -> Any:
    """Return what :func:`encode_record` encoded.

    Raises
    ------
    KeyError, TypeError, ValueError
        For an unknown record or invalid values of it.
    """
    if isinstance(value, list):
        return [decode_record(one) for one in value]
    if isinstance(value, dict) and value.get(KEY) == VECTOR:
        return np.array(value["values"])
    if isinstance(value, dict) and KEY in value:
        return RECORDS[value[KEY]](**{name: given for name, given in value.items() if name != KEY})
    return value
