"""What the axes of a linear model mean: variances of columns, correlations of features, the largest weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.passes.accumulators.fused_product import FusedProduct
from bigpca.passes.accumulators.moments import Moments
from bigpca.triangles import packed_diagonal

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class TopFeatures:
    """The features with the largest weights in a component, the largest first.

    Attributes
    ----------
    features : ndarray of shape (m,), int64
        Their columns; of equal weights the first.
    weights : ndarray of shape (m,), float64
        Entries of the component, with their signs.
    names : ndarray of shape (m,), str, or None, default None
        None if the rows of the fit had no names.
    """

    features: NDArray[np.int64]
    weights: Vector
    names: NDArray[np.object_] | None = None

    @classmethod
    def of(cls, weights: Vector, n: int, names: NDArray[np.object_] | None) -> TopFeatures:
        """Return the n largest of the weights (d,)."""
        features = np.argsort(-np.abs(weights), kind="stable")[:n]
        return cls(features, weights[features], None if names is None else np.asarray(names)[features])


def column_variances(state: Moments | FusedProduct) -> Vector:
    """Return the variances (d,) of the columns, divisor n - 1, from the statistics of all rows."""
    if isinstance(state, Moments):
        squares = packed_diagonal(state.packed, state.n_features)
    else:
        squares = state.centred_squares()
    return np.maximum(squares, 0.0) / (state.weight - 1)


def correlations(loadings: Matrix, variances: Vector) -> Matrix:
    """Return the loadings (d, k) divided by the standard deviations of their features; 0 for constant features."""
    deviations = np.sqrt(variances)[:, None]
    return np.where(deviations > 0, loadings / np.where(deviations > 0, deviations, 1.0), 0.0)
