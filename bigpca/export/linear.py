"""Linear maps of rows: what a fitted linear model is to other libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


class Affine(NamedTuple):
    """Scores are ``X @ A.T + b``.

    Attributes
    ----------
    A : ndarray of shape (k, d), float64
    b : ndarray of shape (k,), float64
    """

    A: Matrix
    b: Vector


@dataclass(frozen=True)
class LinearMap:
    """Scores are ``(x - centre) @ matrix'``: without the cancellation that ``x @ A' + b`` has far from the origin.

    Attributes
    ----------
    matrix : ndarray of shape (k, d)
    centre : ndarray of shape (d,)
    unit : bool
        Whether the scores of each row are divided by their norm, which is not linear.
    """

    matrix: Matrix
    centre: Vector
    unit: bool = False

    @property
    def affine(self) -> Affine:
        """The same as a matrix and an offset.

        Raises
        ------
        ValueError
            If the scores are divided by their norm.
        """
        if self.unit:
            raise ValueError(
                "whiten = Whitening(l2=True) divides the scores of each row by their norm, which is not linear. Export "
                "a model without l2 and normalise its scores, or use to_sklearn or to_onnx."
            )
        return Affine(self.matrix, -self.matrix @ self.centre)

    def placed(self, columns: NDArray[np.int64], d: int) -> LinearMap:
        """Return the map of rows of d columns, of which this one uses some."""
        matrix, centre = np.zeros((len(self.matrix), d)), np.zeros(d)
        matrix[:, columns], centre[columns] = self.matrix, self.centre
        return LinearMap(matrix, centre, self.unit)
