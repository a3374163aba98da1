"""Names of arrays in signatures, those whose dtype is any and those whose dtype is fixed; their digests and norms."""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]  # of whatever dtype: rows as they are stored, blocks in the precision of a pass
DType: TypeAlias = np.dtype[Any]
LEAST_NORM = 1e-140  # whose square is far from the ends of float64, with that of each part that counts


def content_digest(*arrays: Array | None) -> str:
    """Return the digest of arrays' values, in row order; it also says which of them are None."""
    content = hashlib.sha256()
    for array in arrays:
        content.update(b"-" if array is None else np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return content.hexdigest()


def norm_of(values: Array, axis: int | None = None) -> Any:
    """Return Euclidean norms along an axis, or that of all values, also where squares leave the range of float64.

    >>> float(norm_of(np.array([3e200, 4e200])))
    5e+200
    """
    with np.errstate(over="ignore", under="ignore"):
        found = np.linalg.norm(values, axis=axis)
        if np.min(found, initial=1.0) > LEAST_NORM and np.max(found, initial=1.0) < 1 / LEAST_NORM:
            return found
        exponent = int(np.frexp(np.max(np.abs(values), initial=0.0))[1])  # by a power of two, which rounds nothing
        return np.ldexp(np.linalg.norm(np.ldexp(values, -exponent), axis=axis), exponent)
