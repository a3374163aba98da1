"""Scores of how much each feature depends on the labels, and the share of the labels that the best ones explain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array
from bigpca.estimators.supervised.statistics import LabelStatistics, check_shapes

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def one_hot(codes: NDArray[np.int32], n_classes: int) -> Matrix:
    """Return one-hot classes (n, c); zeros for rows of code -1."""
    hot: Matrix = (codes[:, None] == np.arange(n_classes)).astype(np.float64)
    return hot


@dataclass(frozen=True)
class LabelSpread:
    """Scatter of real labels, mergeable over batches of rows.

    Attributes
    ----------
    count : int
    mean : ndarray of shape (m,)
    scatter : ndarray of shape (m, m)
        About the mean.
    """

    count: int
    mean: Vector
    scatter: Matrix

    @classmethod
    def of(cls, values: Matrix) -> LabelSpread:
        """Return the spread of labels (n, m)."""
        mean = values[0] + (values - values[0]).mean(axis=0)
        centred = values - mean
        return cls(len(values), mean, centred.T @ centred)

    def merge(self, other: LabelSpread) -> LabelSpread:
        """Return the spread of both sets of labels."""
        n, apart = self.count + other.count, other.mean - self.mean
        scatter = self.scatter + other.scatter + self.count * other.count / n * np.outer(apart, apart)
        return LabelSpread(n, self.mean + other.count / n * apart, scatter)

    def to_arrays(self) -> dict[str, Array]:
        """Return it as named arrays."""
        return {"count": np.array(self.count), "mean": self.mean, "scatter": self.scatter}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> LabelSpread:
        """Return the spread that :meth:`to_arrays` packed.

        Raises
        ------
        KeyError, ValueError
            For arrays that are missing or of other shapes.
        """
        m = len(arrays["mean"])
        check_shapes(arrays, {"count": (), "mean": (m,), "scatter": (m, m)})
        return cls(int(arrays["count"]), arrays["mean"], arrays["scatter"])


def feature_scores(statistics: LabelStatistics, spread: LabelSpread | None) -> Vector:
    """Return F of every feature for classes, R^2 for real labels, whose spread is given (d,); 0 for constant features.

    ``F = (sum_c n_c (mean_c - mean)^2 / (c - 1)) / (S_W / (n - c))``. ``R^2 = r'C^-1 r`` with the correlations r of a
    feature and the labels, C those among the labels.
    """
    n, within = statistics.count, np.maximum(statistics.moments.within, 0.0)
    if spread is None:
        between = (statistics.between**2).sum(axis=0)
        c = int(np.count_nonzero(statistics.moments.counts))
        noise = np.finfo(np.float64).eps * n * (within + between)
        constant = within + between <= np.finfo(np.float64).eps ** 2 * n * statistics.mean**2
        F = between / max(1, c - 1) / np.maximum(within, np.maximum(noise, np.finfo(np.float64).tiny)) * max(1, n - c)
        return np.where(constant, 0.0, F)
    cross = statistics.psi  # (m, d)
    explained = np.einsum("md,md->d", cross, np.linalg.pinv(spread.scatter, hermitian=True) @ cross)
    constant = within <= np.finfo(np.float64).eps ** 2 * n * statistics.mean**2
    return np.where(constant, 0.0, np.minimum(explained / np.where(constant, 1.0, within), 1.0))


def ranked(scores: Vector) -> NDArray[np.int64]:
    """Return the features (d,) from the highest score to the lowest; of equal scores the first feature first."""
    return np.lexsort((np.arange(len(scores)), -scores))
