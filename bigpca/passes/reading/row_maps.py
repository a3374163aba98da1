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
        """Return the dtype of the result for input of ``dtype``."""

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Return the peak bytes of ``apply``, including its result, and the bytes it keeps per process for all threads.

        For ``rows`` rows of d columns, with ``itemsize`` bytes per number in their working dtype.
        """

    def describe(self) -> dict[str, Any]:
        """Return what identifies the map, for the fingerprint of a partial output."""
