"""Row maps that change the dtype in which rows are stored, and reject values that it cannot hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigpca.arrays import Array, DType
from bigpca.passes.reading.row_maps import RowMap


@dataclass(frozen=True)
class Copy(RowMap):
    """The identity with an optional cast, for ``ingest``. Values that the dtype cannot hold are rejected."""

    dtype: str | None = None

    def apply(self, rows: Array, where: str) -> Array:
        if self.dtype is None:
            return rows
        dtype = np.dtype(self.dtype)
        if rows.size and dtype.kind != "b" and not np.can_cast(rows.dtype, dtype):
            low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else _float_range(dtype)
            infinite = dtype.kind == "f"  # which holds NaN and infinities
            inside = (rows >= low) & (rows <= high) | (infinite & ~np.isfinite(rows))
            if not inside.all():
                row, column = np.argwhere(~inside)[0]
                raise ValueError(
                    f"{where}: {rows[row, column]} (row {row} of these, column {column}) does not fit dtype {dtype}, "
                    f"whose values lie in {low:g} to {high:g}. Choose another dtype, or repair the data."
                )
        return rows.astype(dtype, copy=False)

    def output_dtype(self, dtype: DType) -> DType:
        return np.dtype(self.dtype) if self.dtype is not None else dtype.newbyteorder("=")

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The cast rows; before that, three masks of the values that fit."""
        return 0 if self.dtype is None else rows * d * max(3, np.dtype(self.dtype).itemsize), 0

    def describe(self) -> dict[str, object]:
        return {"map": "copy", "dtype": self.dtype}


@dataclass(frozen=True)
class Stored(RowMap):
    """A map whose results are stored in another dtype; values that it cannot hold are rejected.

    Attributes
    ----------
    f : RowMap
    dtype : str
    """

    f: RowMap
    dtype: str

    def apply(self, rows: Array, where: str) -> Array:
        return Copy(self.dtype).apply(self.f.apply(rows, where), where)

    def output_dtype(self, dtype: DType) -> DType:
        return np.dtype(self.dtype)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Those of the map, with the masks of the values that fit, and the result: as much as the map's again."""
        peak, kept = self.f.bytes_for(d, rows, itemsize)
        return 2 * peak, kept

    def describe(self) -> dict[str, object]:
        return {"map": "stored", "of": self.f.describe(), "dtype": self.dtype}


def _float_range(dtype: DType) -> tuple[float, float]:
    return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
