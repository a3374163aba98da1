"""Names of arrays in signatures: those whose dtype is any, and those whose dtype is fixed."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]  # of whatever dtype: rows as they are stored, blocks in the precision of a pass
DType: TypeAlias = np.dtype[Any]
