"""Histogram kernels derived from divergences: chi-square, Hellinger and Jensen-Shannon."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.kernels.base import Rows
from bigpca.kernels.features import FeatureKernel
from bigpca.kernels.histogram import HistogramKernel, Term, reject_negative


@dataclass(frozen=True)
class ChiSquare(HistogramKernel):
    """``k(x, y) = sum_c x_c y_c / (x_c + y_c)`` of non-negative rows, with 0 / 0 = 0.

    Half the kernel of Vedaldi & Zisserman 2012, table 1. Positive semi-definite, with ``k(x, x) = sum_c x_c / 2``. It
    differs from scikit-learn's ``chi2_kernel``, which is the exponential of a distance. Costs as much as 16 d flops.

    Raises
    ------
    ValueError
        From :meth:`prepare`, for a negative number.

    Examples
    --------
    >>> ChiSquare()([[1.0, 3.0], [1.0, 0.0]]).tolist()
    [[2.0, 0.5], [0.5, 0.5]]
    """

    _term = Term("chi square", 0.5, 16.0)

    def _histograms(self, rows: Rows, first_row: int) -> Rows:
        reject_negative(rows, first_row, self)
        return rows.copy()


@dataclass(frozen=True)
class JensenShannon(HistogramKernel):
    """``k(x, y) = sum_c x_c log2((x_c + y_c) / x_c) + y_c log2((x_c + y_c) / y_c)``, with 0 log 0 = 0.

    Rows are non-negative. Twice the kernel of Vedaldi & Zisserman 2012, table 1: ``k(x, x) = 2 sum_c x_c``. Computed as
    ``low (Q(low / high) + |log2 x - log2 y|)`` from the smaller and the larger of the two numbers, with a polynomial Q
    for ``(1 + r) log2(1 + r) / r``: both parts are positive, so nothing cancels, whether x and y are nearly equal or
    far apart. The relative error of an entry is at most ``2 eps max |log2|`` plus 2e-15 (float64) or 3e-6 (float32,
    sums included). Logarithms are computed once per row. Costs as much as 60 d flops.

    Raises
    ------
    ValueError
        From :meth:`prepare`, for a negative number.

    Examples
    --------
    >>> JensenShannon()([[1.0, 3.0], [1.0, 0.0]]).round(12).tolist()
    [[8.0, 2.0], [2.0, 2.0]]
    """

    _term = Term("jensen shannon", 2.0, 60.0)

    def _histograms(self, rows: Rows, first_row: int) -> Rows:
        reject_negative(rows, first_row, self)
        return rows.copy()


@dataclass(frozen=True)
class Hellinger(FeatureKernel):
    """``k(x, y) = sum_c sqrt(x_c y_c)`` of non-negative rows; the square roots are its exact feature map.

    Also called Bhattacharyya's kernel (Vedaldi & Zisserman 2012, table 1). Costs 2 d flops.

    Raises
    ------
    ValueError
        From :meth:`prepare` and :meth:`features`, for a negative number.

    Examples
    --------
    >>> Hellinger()([[1.0, 4.0], [9.0, 0.0]]).tolist()
    [[5.0, 3.0], [3.0, 9.0]]
    """

    def feature_width(self, d: int) -> int:
        return d

    def features(self, rows: Rows, first_row: int = 0) -> NDArray[np.floating]:
        reject_negative(rows, first_row, self)
        roots: NDArray[np.floating] = np.sqrt(rows)
        return roots
