"""A row map: a pure function from rows to rows, applied inside the task that reads them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class RowMap(Protocol):
    """A picklable function of rows."""

    def apply(self, rows: NDArray[Any], where: str) -> NDArray[Any]:
        """Map rows (b, d) to rows (b, k)."""

    def output_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Dtype of the result for input of ``dtype``."""

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Return the peak bytes of ``apply``, result included, and what it keeps in the process, once for all threads.

        Of ``rows`` rows of d columns, of ``itemsize`` bytes a number in their working dtype.
        """

    def describe(self) -> dict[str, Any]:
        """What identifies the map, for the fingerprint of a partial output."""
