"""Histogram kernels: sums over columns of a term that increases with both of its numbers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.kernels.base import Kernel, Rows, Vector
from bigpca.kernels.compiled import column_sums


@dataclass(frozen=True)
class PreparedHistograms:
    """Checked rows, and their binary logarithms if the kernel needs them (else the rows again)."""

    rows: Rows
    logarithms: Rows


@dataclass(frozen=True)
class Term:
    """What is added up.

    Attributes
    ----------
    name : str
        Of the compiled function.
    diagonal : float
        k(x, x) as a multiple of the sum of the prepared row.
    flops : float
        Measured cost of one term, in flops of a float64 product (2 for a multiplication and an addition).
    """

    name: str
    diagonal: float
    flops: float

    @property
    def takes_logarithms(self) -> bool:
        """Whether it needs the binary logarithms of the rows."""
        return self.name == "jensen shannon"


MINIMUM = Term("minimum", 1.0, 5.0)


@dataclass(frozen=True)
class HistogramKernel(Kernel):
    """A positive semi-definite sum over columns of ``term(x_c, y_c)``, of degree 1 in the prepared rows.

    A block needs the bytes of its result, and up to 1 MiB more.
    """

    _term: ClassVar[Term]

    @property
    def positive_semidefinite(self) -> bool:
        return True

    @abstractmethod
    def _histograms(self, rows: Rows, first_row: int) -> Rows:
        """Return new, non-negative rows; raise if the kernel does not accept them."""

    def prepare(self, rows: Rows, shift: Vector | None = None, first_row: int = 0) -> PreparedHistograms:
        histograms = np.ascontiguousarray(self._histograms(rows, first_row))
        if not self._term.takes_logarithms:
            return PreparedHistograms(histograms, histograms)
        logarithms = np.zeros_like(histograms)
        np.log2(histograms, out=logarithms, where=histograms > 0)
        return PreparedHistograms(histograms, logarithms)

    def block(self, A: PreparedHistograms, B: PreparedHistograms) -> NDArray[np.floating]:
        dtype = np.result_type(A.rows, B.rows)
        X, X_logarithms, Y, Y_logarithms = (
            part.astype(dtype, copy=False) for part in (A.rows, A.logarithms, B.rows, B.logarithms)
        )
        return column_sums(self._term.name, X, X_logarithms, Y, Y_logarithms, symmetric=A is B)

    def diagonal_of(self, A: PreparedHistograms) -> Vector:
        sums: Vector = self._term.diagonal * A.rows.sum(axis=1, dtype=np.float64)
        return sums

    def flops_per_entry(self, d: int) -> float:
        return self._term.flops * d

    def entry_bytes(self, itemsize: int) -> int:
        return itemsize

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return d * itemsize * (2 if self._term.takes_logarithms else 1)


@dataclass(frozen=True)
class HistogramIntersection(HistogramKernel):
    """``k(x, y) = sum_c min(x_c, y_c)`` of non-negative rows (Barla, Odone & Verri 2003, eq. 3).

    The minima are summed directly: the form with ``|x - y|_1`` is slower and cancels. Costs as much as 5 d flops.

    Parameters
    ----------
    levels : int >= 2 or None, default None
        If given, rows may hold only the integers 0, 1, ..., levels - 1, and the kernel has an exact feature map: the
        unary code, one column for each ``x_c >= t``, t = 1, ..., levels - 1.

    Raises
    ------
    ValueError
        From :meth:`prepare`, for a negative number, or one that is not such an integer.

    Examples
    --------
    >>> HistogramIntersection()([[1.0, 5.0], [2.0, 0.0]]).tolist()
    [[6.0, 1.0], [1.0, 2.0]]
    """

    _term = MINIMUM

    levels: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", _checked_levels(self.levels))

    def _histograms(self, rows: Rows, first_row: int) -> Rows:
        reject_negative(rows, first_row, self)
        if self.levels is not None:
            _reject_other_levels(rows, first_row, self.levels)
        return rows.copy()

    def feature_width(self, d: int) -> int | None:
        return None if self.levels is None else d * (self.levels - 1)

    def features(self, rows: Rows, first_row: int = 0) -> NDArray[np.floating]:
        if self.levels is None:
            return super().features(rows, first_row)
        return _unary_code(self._histograms(rows, first_row), self.levels, 1.0)


@dataclass(frozen=True)
class GeneralizedHistogramIntersection(HistogramKernel):
    """``k(x, y) = sum_c min(|x_c|^alpha, |y_c|^alpha)`` of any rows (Boughorbel, Tarel & Boujemaa 2005, eq. 3).

    Costs as much as 5 d flops: powers are computed once per row.

    Parameters
    ----------
    alpha : float > 0, default 1.0
    levels : int >= 2 or None, default None
        If given, the absolute values of rows must be integers 0, 1, ..., levels - 1, and the kernel has an exact
        feature map: the unary code of HistogramIntersection with column t multiplied by
        ``sqrt(t^alpha - (t - 1)^alpha)``.

    Raises
    ------
    ValueError
        From :meth:`prepare`, for an absolute value that is not such an integer, or a power that overflows.

    Examples
    --------
    >>> GeneralizedHistogramIntersection(2.0)([[-1.0, 5.0], [2.0, 0.0]]).tolist()
    [[26.0, 1.0], [1.0, 4.0]]
    """

    _term = MINIMUM

    alpha: float = 1.0
    levels: int | None = None

    def __post_init__(self) -> None:
        given: Any = self.alpha
        if isinstance(given, bool) or not isinstance(given, Real) or not 0 < float(given) < np.inf:
            raise ValueError(f"alpha = {given!r}; a finite number above 0 was expected. 1 is histogram intersection.")
        object.__setattr__(self, "alpha", float(given))
        object.__setattr__(self, "levels", _checked_levels(self.levels))
        if self.levels is not None and self.alpha * np.log(self.levels - 1) > np.log(np.finfo(np.float32).max):
            raise ValueError(
                f"levels = {self.levels} and alpha = {self.alpha} give powers over 3e38, the largest float32. Lower "
                "alpha."
            )

    def _histograms(self, rows: Rows, first_row: int) -> Rows:
        sizes = np.abs(rows)
        if self.levels is not None:
            _reject_other_levels(sizes, first_row, self.levels)
        with np.errstate(over="ignore"):
            powers: Rows = sizes**self.alpha
        if not np.isfinite(powers).all():
            row, column = np.argwhere(~np.isfinite(powers))[0]
            raise ValueError(
                f"row {first_row + row}, column {column}: |{rows[row, column]}|^{self.alpha} overflows {rows.dtype}. "
                "Scale the data down, or give float64."
            )
        return powers

    def feature_width(self, d: int) -> int | None:
        return None if self.levels is None else d * (self.levels - 1)

    def features(self, rows: Rows, first_row: int = 0) -> NDArray[np.floating]:
        if self.levels is None:
            return super().features(rows, first_row)
        sizes = np.abs(rows)
        _reject_other_levels(sizes, first_row, self.levels)
        return _unary_code(sizes, self.levels, self.alpha)


def reject_negative(rows: Rows, first_row: int, kernel: Kernel) -> None:
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


def _reject_other_levels(rows: Rows, first_row: int, levels: int) -> None:
    wrong = (rows != np.floor(rows)) | (rows > levels - 1)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"row {first_row + row}, column {column} has size {rows[row, column]}; with levels={levels}, integers up "
            f"to {levels - 1} were expected. Raise levels, round the data, or use levels=None (no feature map)."
        )


def _checked_levels(levels: Any) -> int | None:
    if levels is None:
        return None
    if isinstance(levels, bool) or not isinstance(levels, Integral) or levels < 2:
        raise ValueError(f"levels = {levels!r}; an integer of at least 2, or None, was expected. Use 256 for bytes.")
    return int(levels)


def _unary_code(sizes: Rows, levels: int, alpha: float) -> NDArray[np.floating]:
    """Return one column per (c, t): ``sqrt(t^alpha - (t - 1)^alpha)`` if x_c >= t, else 0.

    The dot product of two codes is the sum of minima, ``sum_(t <= min(x_c, y_c)) t^alpha - (t - 1)^alpha``.
    """
    steps = np.arange(levels, dtype=np.float64)
    weights = np.sqrt(np.diff(steps**alpha)).astype(sizes.dtype)
    code = (sizes[:, :, None] >= steps[1:].astype(sizes.dtype)) * weights
    unary: NDArray[np.floating] = code.reshape(len(sizes), -1)
    return unary
