"""The row map that several measurements share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigpca.arrays import Array, Matrix, Vector
from bigpca.engine.layout import MIB
from bigpca.passes.reading.row_maps import Float64Map, MapStep

STRIP_BYTES = 4 * MIB  # of float64 rows processed at a time, so that no second slab is needed


def strip_rows(d: int) -> int:
    """Return the rows of d float64 numbers in one strip."""
    return max(1, STRIP_BYTES // (8 * max(1, d)))


@dataclass(frozen=True)
class SquaredScores(Float64Map):
    """Row map to the squares of the scores and of what they leave: ``(t_1^2, ..., t_k^2, |x - sum t_i v_i|^2) / unit``.

    What is left is squared itself, because a difference of two large sums would lose a small one.

    Attributes
    ----------
    mean : ndarray of shape (d,)
    components : ndarray of shape (k, d)
        Orthonormal rows.
    scale : ndarray of shape (d,) or None
        Divisors of the columns.
    unit : float
        A power of 2 near the total variance, so that fourth powers of the scores neither overflow nor underflow.
    """

    mean: Vector
    components: Matrix
    scale: Vector | None = None
    unit: float = 1.0

    @property
    def step(self) -> MapStep:
        """The map, in tiles."""
        k, d = self.components.shape
        return MapStep(self, k + 1, 4 * k * d + 4 * d, strip_rows(d))

    def apply(self, rows: Array, where: str) -> Array:
        """Return the squares (b, k + 1), in float64."""
        centred = rows - self.mean
        if self.scale is not None:
            centred /= self.scale
        scores = centred @ self.components.T
        centred -= scores @ self.components
        left = np.einsum("ij,ij->i", centred, centred)
        squares: Array = np.column_stack([scores**2, left])
        squares /= self.unit
        return squares

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred rows, what the scores explain of them, scores and squares, in float64."""
        return 8 * rows * (2 * d + 2 * len(self.components) + 2), 0
