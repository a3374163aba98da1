"""Names of arrays in signatures: those whose dtype is any, and those whose dtype is fixed; digests of their values."""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]  # of whatever dtype: rows as they are stored, blocks in the precision of a pass
DType: TypeAlias = np.dtype[Any]


def content_digest(*arrays: Array | None) -> str:
    """Return the digest of arrays' values, in row order; it also says which of them are None."""
    content = hashlib.sha256()
    for array in arrays:
        content.update(b"-" if array is None else np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return content.hexdigest()
