"""Histogram kernels: sums over columns of a term of two numbers, compiled, without a temporary per pair.

Intersection and generalised intersection; chi-square, Hellinger and Jensen-Shannon, which are derived from divergences.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from bigpca.arrays import Array, Vector
from bigpca.errors import real_number
from bigpca.kernels.base import FeatureKernel, Kernel


def column_sums(term: str, X: Array, X_extra: Array, Y: Array, Y_extra: Array, symmetric: bool) -> Array:
    """Compute ``K[i, j] = sum_c term(X[i, c], Y[j, c])`` (a, b), in the precision of the rows.

    Runs of 16 columns are summed in the precision of the rows, and the runs in float64: for float32 rows and terms of
    one sign this adds at most 16 * 6e-8 = 1e-6 of the sum to the error of the terms themselves. The bits of an entry
    depend only on its two rows, not on their block.

    Parameters
    ----------
    term : "minimum", "chi square" or "jensen shannon"
    X : ndarray of shape (a, d), C-contiguous, float32 or float64
    X_extra : ndarray of shape (a, d), same dtype; binary logarithms of X (0 for 0), or X itself if the term needs none.
    Y, Y_extra : likewise, of shape (b, d) and of the same dtype
    symmetric : whether Y is X, so that one triangle suffices.
    """
    from bigpca.kernels import loops  # Numba is imported with it

    out = np.empty((len(X), len(Y)), X.dtype)
    divided, growth = (None if term == "minimum" else True), None
    if term == "jensen shannon":
        coefficients = growth_polynomial(9 if X.dtype == np.float32 else 19).astype(X.dtype)
        growth = tuple(coefficients[::-2]), tuple(coefficients[-2::-2])
    loops.term_sums(X, X_extra, Y, Y_extra, out, symmetric, divided, growth)
    return out


@cache
def growth_polynomial(degree: int) -> NDArray[np.float64]:
    """Return the coefficients in t = 2 r - 1, lowest first, of an approximation of (1 + r) log2(1 + r) / r on [0, 1].

    The nearest singularity is r = -1, so each degree gains a factor 3 + sqrt(8) = 5.8 (Bernstein's ellipse; Trefethen
    2013, theorem 8.2): degree 9 suffices for float32, degree 19 for float64.
    """

    def growth(t: NDArray[np.float64]) -> NDArray[np.float64]:
        r = (1 + t) / 2
        values: NDArray[np.float64] = (1 + r) * np.log1p(r) / (r * np.log(2))
        return values

    # Interpolation at Chebyshev's points is within a small factor of the best polynomial of this degree.
    coefficients = np.zeros(degree + 1)
    nodes = chebyshev.chebpts1(degree + 1)
    found = chebyshev.cheb2poly(chebyshev.chebfit(nodes, growth(nodes), degree))
    coefficients[: len(found)] = found  # NumPy drops trailing zeros
    return coefficients


@dataclass(frozen=True)
class PreparedHistograms:
    """Checked rows, and their binary logarithms if the kernel needs them (else the rows again)."""

    rows: Array
    logarithms: Array


@dataclass(frozen=True)
class HistogramKernel(Kernel):
    """A positive semi-definite sum over columns of ``term(x_c, y_c)``, of degree 1 in the prepared rows.

    A block needs the bytes of its result, and up to 1 MiB more. A subclass names the compiled ``term``, what k(x, x) is
    as a multiple of the sum of the prepared row, and the measured cost of a term, in flops of a float64 product (2 for
    a multiplication and an addition).
    """

    _term: ClassVar[str] = "minimum"
    _diagonal: ClassVar[float] = 1.0
    _flops: ClassVar[float] = 5.0
    positive_semidefinite: ClassVar[bool] = True

    def _histograms(self, rows: Array, first_row: int) -> Array:
        """Return new, non-negative rows; raise if the kernel does not accept them."""
        reject_negative(rows, first_row, self)
        return rows.copy()

    def prepare(self, rows: Array, shift: Vector | None = None, first_row: int = 0) -> PreparedHistograms:
        histograms = np.ascontiguousarray(self._histograms(rows, first_row))
        if self._term != "jensen shannon":
            return PreparedHistograms(histograms, histograms)
        # 0 log 0 = 0: the logarithm of 0 is only ever multiplied by 0.
        logarithms = np.zeros_like(histograms)
        np.log2(histograms, out=logarithms, where=histograms > 0)
        return PreparedHistograms(histograms, logarithms)

    def block(self, A: PreparedHistograms, B: PreparedHistograms) -> NDArray[np.floating]:
        dtype = np.result_type(A.rows, B.rows)
        X, X_logarithms, Y, Y_logarithms = (
            part.astype(dtype, copy=False) for part in (A.rows, A.logarithms, B.rows, B.logarithms)
        )
        return column_sums(self._term, X, X_logarithms, Y, Y_logarithms, symmetric=A is B)

    def diagonal_of(self, A: PreparedHistograms) -> Vector:
        sums: Vector = self._diagonal * A.rows.sum(axis=1, dtype=np.float64)
        return sums

    def flops_per_entry(self, d: int) -> float:
        return self._flops * d

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return d * itemsize * (2 if self._term == "jensen shannon" else 1)


@dataclass(frozen=True)
class HistogramIntersection(HistogramKernel):
    """``k(x, y) = sum_c min(x_c, y_c)`` of non-negative rows (Barla, Odone & Verri 2003, eq. 3).

    The minima are summed directly: the form with ``|x - y|_1`` is slower and cancels. Costs as much as 5 d flops.

    Raises
    ------
    ValueError
        From :meth:`prepare`, for a negative number.

    Examples
    --------
    >>> HistogramIntersection()([[1.0, 5.0], [2.0, 0.0]]).tolist()
    [[6.0, 1.0], [1.0, 2.0]]
    """


@dataclass(frozen=True)
class GeneralizedHistogramIntersection(HistogramKernel):
    """``k(x, y) = sum_c min(|x_c|^alpha, |y_c|^alpha)`` of any rows (Boughorbel, Tarel & Boujemaa 2005, eq. 3).

    Costs as much as 5 d flops: powers are computed once per row.

    Parameters
    ----------
    alpha : float > 0, default 1.0

    Raises
    ------
    ValueError
        From :meth:`prepare`, for a power that overflows.

    Examples
    --------
    >>> GeneralizedHistogramIntersection(2.0)([[-1.0, 5.0], [2.0, 0.0]]).tolist()
    [[26.0, 1.0], [1.0, 4.0]]
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        expected = "a finite number above 0 (1 is histogram intersection)"
        object.__setattr__(self, "alpha", real_number("alpha", self.alpha, "(0, inf)", expected))

    def _histograms(self, rows: Array, first_row: int) -> Array:
        # min(|x|^a, |y|^a) is the intersection of powers, which are those of single rows.
        with np.errstate(over="ignore"):
            powers: Array = np.abs(rows) ** self.alpha
        if not np.isfinite(powers).all():
            row, column = np.argwhere(~np.isfinite(powers))[0]
            raise ValueError(
                f"row {first_row + row}, column {column}: |{rows[row, column]}|^{self.alpha} overflows {rows.dtype}. "
                "Scale the data down, or give float64."
            )
        return powers


def reject_negative(rows: Array, first_row: int, kernel: Kernel) -> None:
    """Check that rows hold no negative numbers.

    Raises
    ------
    ValueError
        If they do; names the first.
    """
    if rows.size and rows.min() < 0:
        row, column = np.argwhere(rows < 0)[0]
        raise ValueError(
            f"row {first_row + row}, column {column} is {rows[row, column]}; {type(kernel).__name__} needs numbers of "
            "at least 0. Shift the data, or use GeneralizedHistogramIntersection or a kernel of distances."
        )


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

    _term, _diagonal, _flops = "chi square", 0.5, 16.0


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

    _term, _diagonal, _flops = "jensen shannon", 2.0, 60.0


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

    def features(self, rows: Array, first_row: int = 0) -> NDArray[np.floating]:
        reject_negative(rows, first_row, self)
        # sum_c sqrt(x_c) sqrt(y_c) is a plain product of the roots.
        return np.sqrt(rows)
