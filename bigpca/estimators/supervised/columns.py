"""Row maps between all features and the selected ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, DType, content_digest
from bigpca.export.linear import LinearMap
from bigpca.passes.reading.row_maps import RowMap


@dataclass(frozen=True)
class Selected(RowMap):
    """A row map on some columns.

    Attributes
    ----------
    columns : ndarray of shape (q,), int64
    inner : RowMap
    """

    columns: NDArray[np.int64]
    inner: RowMap

    def linear(self, d: int) -> LinearMap:
        """Return the inner map, if it is linear, with zeros for the other columns.

        Raises
        ------
        ValueError
            For kernel models.
        """
        found = getattr(self.inner, "linear", None)
        if found is None:
            raise ValueError(
                "the model of the selected columns has no linear map: it is a kernel model, or preprocesses its rows. "
                "Use a linear estimator without preprocess, such as bp.PCA(2)."
            )
        inner: LinearMap = found(len(self.columns))
        return inner.placed(self.columns, d)

    def sklearn_steps(self, d: int, facts: dict[str, object]) -> list[object]:
        """Return the same map as a transformer of scikit-learn."""
        from bigpca.export.sklearn import fitted_pca  # imports more of scikit-learn than a fit

        return [fitted_pca(self.linear(d), facts)]

    def output_dtype(self, dtype: DType) -> DType:
        """That of the inner map."""
        return self.inner.output_dtype(dtype)

    def apply(self, rows: Array, where: str) -> Array:
        """Return the map of those columns; rows with non-finite values in other columns are NaN, too."""
        chosen = rows[:, self.columns]
        if rows.dtype.kind == "f":
            chosen[~np.isfinite(rows).all(axis=1)] = np.nan
        return self.inner.apply(chosen, where)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The columns' copy, and what the inner map needs."""
        mapping, kept = self.inner.bytes_for(len(self.columns), rows, itemsize)
        return mapping + rows * (len(self.columns) * itemsize + d), kept

    def describe(self) -> dict[str, object]:
        """What identifies the map."""
        return {"map": "selected", "columns": self.columns.tolist(), "inner": self.inner.describe()}


@dataclass(frozen=True)
class Placed(RowMap):
    """Rows of the selected columns (q,) as rows of all columns, of which the others are set to their means.

    Attributes
    ----------
    columns : ndarray of shape (q,), int64
    mean : ndarray of shape (d,)
    """

    columns: NDArray[np.int64]
    mean: NDArray[np.float64]

    def output_dtype(self, dtype: DType) -> DType:
        """That of the columns."""
        return dtype

    def apply(self, rows: Array, where: str) -> Array:
        """Return rows (b, d); NaN where the columns are NaN."""
        placed = np.tile(self.mean.astype(rows.dtype), (len(rows), 1))
        placed[:, self.columns] = rows
        placed[np.isnan(rows).any(axis=1)] = np.nan
        return placed

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The rows and a copy."""
        return 2 * rows * len(self.mean) * itemsize, 0

    def describe(self) -> dict[str, object]:
        """What identifies the map."""
        return {"map": "placed", "columns": self.columns.tolist(), "mean": content_digest(self.mean)}
