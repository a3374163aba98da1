"""Label features Delta with ``K_y = Delta Delta'``: the label kernel is never n x n."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from bigpca.arrays import Integers, Matrix, Vector
from bigpca.blas import one_blas_thread
from bigpca.data.batches import ColumnRows, LabelColumn
from bigpca.kernels.distance import RBF
from bigpca.records import pack, size_of, stored
from bigpca.seeds import normals, uniforms
from bigpca.solvers.components import check_total
from bigpca.solvers.landmarks import landmark_transform, residual_rounding, truncation_for, weighted_pivots
from bigpca.storage.files import content_digest

MAX_LANDMARKS = 256  # distinct labels up to which the RBF label kernel is exact
MAX_CANDIDATES = 4096  # distinct labels among which landmarks are drawn, and on which what they miss is measured
FLOAT64 = float(np.finfo(np.float64).eps)


class LabelFeatures(ABC):
    """Features of real labels."""

    @property
    def columns(self) -> int:
        """Columns t of the labels."""
        return cast("int", size_of(self, "t"))

    @property
    def count(self) -> int:
        """Features m of each row: as many as columns, unless a subclass has more."""
        return self.columns

    @abstractmethod
    def features(self, values: Matrix) -> Matrix:
        """Return Delta (n, m) of labels (n, t)."""


@dataclass(frozen=True)
class LinearLabels(LabelFeatures):
    """``Delta = y - offset``, the linear label kernel: ``Delta'H X`` is the same for any offset; the mean has the
    smallest rounding error.

    Attributes
    ----------
    offset : ndarray of shape (t,)
    """

    offset: Vector = stored("t")

    @classmethod
    def of(cls, values: Matrix) -> LinearLabels:
        """Return features for labels (n, t) about their mean; columns of one value become exact zeros."""
        return cls(values[0] + (values - values[0]).mean(axis=0))

    def features(self, values: Matrix) -> Matrix:
        """Return the labels less the offset."""
        return values - self.offset


def candidates(values: Matrix, weights: Vector | None = None) -> tuple[Matrix, Vector]:
    """Return distinct labels (b, t) and the rows that each represents: all, or an even sample in sorted order.

    Weights are those of the labels, which then count so often.
    """
    distinct, places = np.unique(values, axis=0, return_inverse=True)
    counts = np.bincount(places.ravel(), weights)
    if len(distinct) > MAX_CANDIDATES:
        ends = np.cumsum(counts)
        places = (np.arange(MAX_CANDIDATES) + 0.5) / MAX_CANDIDATES * ends[-1]
        at, counts = np.unique(np.searchsorted(ends, places, side="right"), return_counts=True)
        distinct = distinct[at]
    return distinct, counts.astype(np.float64)


@dataclass(frozen=True)
class LandmarkLabels(LabelFeatures):
    """``Delta = k(y, L) T`` with ``T'k(L, L) T = I``: the RBF label kernel, exact on labels in L, otherwise by
    Nyström.

    Up to 256 distinct labels are all landmarks; from more, 256 are drawn by randomly pivoted Cholesky, weighted by
    their numbers of rows.

    Attributes
    ----------
    gamma : float
    landmarks : ndarray of shape (m, t)
    transform : ndarray of shape (m, r)
    """

    gamma: float = stored(of=float, least=0)
    landmarks: Matrix = stored("l", "t")
    transform: Matrix = stored("l", "r")

    @property
    def count(self) -> int:
        """Rank r of the landmarks' kernel."""
        return int(self.transform.shape[1])

    @classmethod
    def of(cls, values: Matrix, gamma: float, weights: Vector | None = None) -> LandmarkLabels:
        """Return features for labels (n, t): landmarks are all distinct ones, or 256 by randomly pivoted Cholesky."""
        kernel, (distinct, counts) = RBF(gamma), candidates(values, weights)
        with one_blas_thread():  # the draw must not depend on the number of threads
            if len(distinct) > MAX_LANDMARKS:
                every, draws = distinct, uniforms(0, "label-landmarks", 0, 1, MAX_LANDMARKS)[0]

                def column(j: int) -> Vector:
                    return np.asarray(kernel(every, every[j : j + 1]), np.float64)[:, 0]

                distinct = every[weighted_pivots(column, np.ones(len(every)), counts, draws, enough=1e-12)]
            K = np.asarray(kernel(distinct), np.float64)
            return cls(gamma, distinct, landmark_transform(K, truncation_for(FLOAT64)))

    def missed(self, values: Matrix, weights: Vector | None = None) -> float:
        """Return the share of the label kernel's trace that the features of labels (n, t) miss; 0 to rounding is 0.

        Measured on all distinct labels, or on 4,096 evenly spaced ones in sorted order.
        """
        distinct, counts = candidates(values, weights)
        left = 1.0 - (self.features(distinct) ** 2).sum(axis=1)
        left[left <= residual_rounding(FLOAT64)] = 0.0
        return float(counts @ left / counts.sum())

    def features(self, values: Matrix) -> Matrix:
        """Return Delta, 4,096 rows at a time."""
        kernel, out = RBF(self.gamma), np.empty((len(values), self.transform.shape[1]))
        for i in range(0, len(values), 4096):
            out[i : i + 4096] = kernel(values[i : i + 4096], self.landmarks) @ self.transform
        return out


@dataclass(frozen=True)
class FourierLabels(LabelFeatures):
    """``Delta = sqrt(2 / m) cos(y W + b)``: random Fourier features of the RBF label kernel (Rahimi & Recht 2007).

    Attributes
    ----------
    frequencies : ndarray of shape (t, m), normal with variance ``2 gamma``
    phases : ndarray of shape (m,), uniform on [0, 2 pi)
    """

    frequencies: Matrix = stored("t", "q")
    phases: Vector = stored("q")

    @property
    def count(self) -> int:
        """Random features m."""
        return len(self.phases)

    @classmethod
    def draw(cls, columns: int, count: int, gamma: float, seed: int) -> FourierLabels:
        """Return m random features of labels with ``columns`` columns."""
        frequencies = normals(seed, "label-frequencies", 0, columns, count, np.float64) * np.sqrt(2 * gamma)
        return cls(frequencies, 2 * np.pi * uniforms(seed, "label-phases", 0, 1, count)[0])

    def features(self, values: Matrix) -> Matrix:
        """Return Delta."""
        features: Matrix = np.sqrt(2 / len(self.phases)) * np.cos(values @ self.frequencies + self.phases)
        return features


@dataclass(frozen=True)
class ColumnLabels(LabelFeatures):
    """:class:`LinearLabels` of labels that come with the rows, about their column's origin.

    Attributes
    ----------
    column : LabelColumn
    width : int
        Its columns.
    """

    column: LabelColumn
    width: int

    @property
    def columns(self) -> int:
        """Those of the column."""
        return self.width

    @property
    def known(self) -> LinearLabels:
        """The same after the read."""
        return LinearLabels(self.column.origin)

    def features(self, values: Matrix) -> Matrix:
        """Return the labels of rows that were read, less the origin."""
        return self.known.features(values) if len(values) else values


@dataclass(frozen=True)
class DeltaRows:
    """Delta (rows, m) of real labels, computed slab by slab: labels are small, but their features may be wider than X.

    Attributes
    ----------
    maker : LabelFeatures
    values : ndarray of shape (rows, t), float64, or ColumnRows of targets
        NaN for a missing label, whose row of Delta is 0.
    """

    maker: LabelFeatures
    values: Matrix | ColumnRows

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, m)."""
        return len(self.values), self.maker.count

    @property
    def nbytes(self) -> int:
        """Bytes of the labels, which are held instead of Delta."""
        return int(self.values.nbytes)

    def __getitem__(self, rows: slice | Integers) -> Any:  # those of a slice, or a matrix
        """Return the maker of a slice of rows, or rows of Delta: of none no maker, so that it does not travel."""
        if isinstance(rows, slice):
            values = self.values[rows]
            return replace(self, values=values) if len(values) else np.zeros((0, self.maker.count))
        chosen = self.values[rows]
        known = ~np.isnan(chosen).any(axis=1)
        if known.all():
            return self.maker.features(chosen)
        delta = np.zeros((len(chosen), self.maker.count))
        delta[known] = self.maker.features(chosen[known])
        return delta

    def whole(self) -> Matrix:
        """Return Delta."""
        found: Matrix = self[np.arange(len(self.values))]
        return found

    def digest(self) -> str:
        """Digest of the labels and of the arrays of their features."""
        maker = self.maker  # the offset of a column is not known yet
        arrays = [np.zeros(maker.columns)] if isinstance(maker, ColumnLabels) else [*pack(maker)[0].values()]
        if isinstance(self.values, ColumnRows):
            return self.values.digest() + content_digest(*arrays)
        return content_digest(self.values, *arrays)


STORED_FEATURES = (LinearLabels, LandmarkLabels, FourierLabels)  # in model files


def label_width(values: Matrix, gamma: float | None = None, weights: Vector | None = None) -> float:
    """Return the gamma of a label kernel: the given one, or ``1 / sum_j var(y_j)`` over the t columns of labels.

    Raises
    ------
    ValueError
        If all labels are equal, or float64 does not hold the squares of how they differ.
    """
    if not len(values) or not np.ptp(values, axis=0).any():
        raise ValueError(
            f"all {len(values)} labels are equal, so rows cannot be told apart by them. Give labels that "
            f"differ, or use PCA."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        spread = (values - np.average(values, axis=0, weights=weights)) ** 2
        variance = float(np.average(spread, axis=0, weights=weights).sum())
    check_total(variance, "the variance of the labels", positive=True, whole="the labels")
    return 1.0 / variance if gamma is None else float(gamma)
