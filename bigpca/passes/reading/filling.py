"""Values that are checked or changed as rows are read: those outside limits are rejected, and missing ones filled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca.arrays import Array, DType
from bigpca.passes.reading.arithmetic import Values
from bigpca.passes.reading.blocks import cached_rows
from bigpca.passes.reading.layout import working_dtype

Vector = NDArray[np.float64]
ROUNDING = 1e-6  # by which values may exceed their limits


@dataclass(frozen=True)
class Limits:
    """The range in which all values must lie; missing ones are in no range.

    Attributes
    ----------
    low, high : float
    what : str
        What the values are and who expects them, for messages.
    """

    low: float
    high: float
    what: str

    def check(
        self, rows: Values, where: str, first: tuple[int, int] = (0, 0), present: NDArray[np.bool_] | None = None
    ) -> None:
        """Reject values outside the range, in rows that are ``present``.

        ``first`` are the numbers of the first row and column.

        Raises
        ------
        ValueError
            Names the first such value, its row and its column.
        """
        if isinstance(rows, csr_array):
            if self._inside(rows.data[None]):
                return
            rows = rows.toarray()  # to name the value
        if present is not None and not present.all():
            rows = np.where(present[:, None], rows, self.low)
        step = cached_rows(rows.shape[1] * rows.itemsize)
        for i in range(0, len(rows), step):
            strip = rows[i : i + step]
            if not self._inside(strip):
                self._reject(strip, where, (first[0] + i, first[1]))

    def _inside(self, values: Array) -> bool:
        if not values.size:
            return True
        low, high = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)  # which pass over NaN
        return not (low < self.low - ROUNDING or high > self.high + ROUNDING)

    def _reject(self, values: Array, where: str, first: tuple[int, int]) -> None:
        with np.errstate(invalid="ignore"):
            row, column = (
                int(a[0]) for a in np.nonzero((values < self.low - ROUNDING) | (values > self.high + ROUNDING))
            )
        value = values[row, column].item()
        raise ValueError(
            f"row {row + first[0]}, column {column + first[1]} of {where} holds {value:g}; {self.what}, "
            f"{self.low:g} to {self.high:g}, were expected. If {value:g} is the code of missing values, open the rows "
            f"by bp.open(source, missing_value={value:g}); sparse rows store NaN instead."
        )


@dataclass
class ColumnFill:
    """What takes the place of missing values: the mean of each column, once the read that finds it is done.

    Attributes
    ----------
    means : ndarray of shape (d,), or None before that read
    """

    means: Vector | None = None

    @property
    def found(self) -> Vector:
        """The means.

        Raises
        ------
        RuntimeError
            Before the read that finds them.
        """
        if self.means is None:
            raise RuntimeError("rows were read before the means that take the place of missing values were known")
        return self.means


def filled_dtype(dtype: DType) -> DType:
    """Return the dtype of filled rows: their working dtype, because the means of float16 values are no such values."""
    return working_dtype(dtype)


def fill(rows: Values, means: Vector, *, owned: bool) -> Values:
    """Return rows with the means of their columns in the place of NaN, in place if ``owned``."""
    dtype = filled_dtype(rows.dtype)
    own = means.astype(dtype)
    values = rows.astype(dtype, copy=not owned)
    if isinstance(values, csr_array):
        values.data = np.where(np.isnan(values.data), own[values.indices], values.data)
        return values
    step = cached_rows(values.shape[1] * dtype.itemsize)
    for i in range(0, len(values), step):
        strip = values[i : i + step]
        np.copyto(strip, own, where=np.isnan(strip))
    return values
