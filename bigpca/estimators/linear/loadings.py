"""What the axes of a linear model mean: variances of columns, correlations of features, the largest weights."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.estimators.linear.judging import Judging, check_centred, has_covariance
from bigpca.passes.accumulators.fused_product import FusedProduct
from bigpca.passes.accumulators.moments import Moments
from bigpca.sketches.base import positive_integer
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


class Correlating(Judging, Protocol):
    """A fitted linear model that keeps the statistics of its rows."""

    @property
    def loadings_(self) -> Matrix: ...

    def _column_variances(self, what: str) -> Vector: ...


class WithAxes(Protocol):
    """A fitted linear model."""

    components_: Matrix
    n_components_: int


def top_features(self: WithAxes, component: int, n: int = 10) -> TopFeatures:
    """Return the features with the largest weights in a component.

    Parameters
    ----------
    component : int, 0 to k - 1
        The row of ``components_``.
    n : int, default 10
        How many; at most d are returned.

    Returns
    -------
    TopFeatures
        Their columns, weights with signs, and names.

    Raises
    ------
    ValueError
        If there is no such component, or ``n`` is not positive.

    Examples
    --------
    >>> from bigpca import PCA
    >>> pca = PCA(1).fit(np.diag([1.0, 2.0, 9.0]))
    >>> pca.top_features(0, n=2).features.tolist()
    [2, 1]
    """
    check_is_fitted(self)
    k, given = self.n_components_, cast("object", component)
    if isinstance(given, bool) or not isinstance(given, Integral) or not 0 <= int(given) < k:
        raise ValueError(f"component = {component!r}, but there are {k}: 0 to {k - 1} were expected.")
    return TopFeatures.of(
        self.components_[int(component)], positive_integer("n", n), getattr(self, "feature_names_in_", None)
    )


@available_if(has_covariance)  # type: ignore[untyped-decorator]
def feature_correlations(self: Correlating) -> NDArray[np.float64]:
    """Return the correlations of features with scores: loadings divided by the standard deviations of features.

    Their squares are the share of a feature's variance that each component explains. No read: the standard
    deviations are those of the kept statistics.

    Returns
    -------
    ndarray of shape (d, k), float64, in [-1, 1]
        0 for constant features.

    Raises
    ------
    ValueError
        If the model does not keep the statistics of its rows, or is not about the mean.
    """
    check_is_fitted(self)
    check_centred(self, "a correlation")
    variances = self._column_variances("feature_correlations")
    return correlations(self.loadings_, variances if self.scale_ is None else variances / self.scale_**2)
