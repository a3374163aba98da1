"""The distance of a row to the nearest class, by the covariance within classes (Lee et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, DType, content_digest
from bigpca.estimators.shared.finite import settle_non_finite
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.passes.reading.row_maps import RowMap
from bigpca.solvers.component_rules import rounding_level
from bigpca.solvers.eigh import top_eigenpairs

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def ledoit_wolf_shrinkage(values: Vector, freedom: float) -> float:
    """Return the weight of the mean eigenvalue in the shrunk covariance, from the eigenvalues (d,) of a covariance.

    Ledoit's and Wolf's weight, averaged over all Gaussian rows that have this covariance: it needs no fourth moments,
    which one read of the rows about means that are not yet known does not give.

    Parameters
    ----------
    freedom : float
        Degrees of freedom of the covariance.

    Notes
    -----
    Chen, Wiesel, Eldar & Hero (2010), equation 17 (Rao-Blackwellised Ledoit-Wolf).
    """
    squares, trace = float((values**2).sum()), float(values.sum())
    spread = squares - trace**2 / len(values)
    if spread <= 0:
        return 1.0
    return min(1.0, ((freedom - 2) / freedom * squares + trace**2) / ((freedom + 2) * spread))


@dataclass(frozen=True)
class ClassDistance(RowMap):
    """``min_c (x - mean_c)' C^-1 (x - mean_c)``, with one covariance C for all classes.

    Attributes
    ----------
    mean : ndarray of shape (d,)
        Of all rows, about which rows are whitened.
    whitening : ndarray of shape (d, d)
        W with ``W C W' = I``.
    centres : ndarray of shape (c, d)
        ``W (mean_c - mean)`` of the classes that have rows.
    shrinkage : float
        Weight of the mean eigenvalue in C; 0 for the covariance within classes itself.
    nan_policy : {"raise", "omit"}
    """

    mean: Vector
    whitening: Matrix
    centres: Matrix
    shrinkage: float
    nan_policy: str = "raise"

    @classmethod
    def of(cls, statistics: LabelStatistics, nan_policy: str) -> ClassDistance:
        """Return the distance by ``C = S_W / (n - c)``, n the sum of the weights if any, shrunk where it is singular.

        Raises
        ------
        ValueError
            If the rows, or their weights, add up to no more than the classes, or rows do not differ from the means of
            their classes.
        """
        statistics.check_whole()
        moments, freedom = statistics.moments, statistics.freedom
        values, vectors = top_eigenpairs(statistics.within / freedom)
        if not values[0] > 0:
            raise ValueError(
                f"{statistics.count} rows of {statistics.n_classes} classes do not differ from the means of their "
                f"classes, so distances have no unit. Several different rows of a class were expected."
            )
        singular = values[-1] <= rounding_level(values, len(values))
        shrinkage = ledoit_wolf_shrinkage(values, freedom) if singular else 0.0
        shrunk = (1 - shrinkage) * values + shrinkage * values.mean()
        whitening = vectors / np.sqrt(shrunk)[:, None]
        deviations = statistics.deviations[moments.counts > 0]
        return cls(statistics.mean, whitening, deviations @ whitening.T, shrinkage, nan_policy)

    def output_dtype(self, dtype: DType) -> DType:
        """Always float64."""
        return np.dtype(np.float64)

    def apply(self, rows: Array, where: str) -> Array:
        """Return the squared distances (b, 1).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities and the policy is to raise.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            z = np.subtract(rows, self.mean, dtype=np.float64, casting="unsafe") @ self.whitening.T
            # |z - z_c|^2 up to |z|^2 finds the class; the distance itself is that of the difference, without cancelling
            nearest = (z @ self.centres.T - 0.5 * np.einsum("ij,ij->i", self.centres, self.centres)).argmax(axis=1)
            z -= self.centres[nearest]
            found: Array = np.vecdot(z, z)[:, None]
        settle_non_finite(rows, found, where, self.nan_policy, "distances")
        return found

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred, whitened and nearest rows in float64, and the products with the classes."""
        return 8 * rows * (3 * d + 2 * len(self.centres) + 4), 0

    def describe(self) -> dict[str, object]:
        """Digest of the map."""
        digest = content_digest(self.mean, self.whitening, self.centres)
        return {"map": "class distance", "nan_policy": self.nan_policy, "digest": digest}
