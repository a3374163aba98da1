"""Kernels derived from one kernel: inside an RBF, normalised.

Sums, products and powers are operators of Kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from bigpca.arrays import Array, Vector
from bigpca.kernels.base import Block, Kernel, Product, Sum, checked_gamma, reject_overflow, strips, widened
from bigpca.kernels.distance import RBF
from bigpca.kernels.dot import Linear

__all__ = ["Normalized", "Product", "RBFOf", "Sum", "normalized", "rbf_of"]


MAX_EXPONENT_ERROR = 1e-3  # largest accepted rounding error of an exponent in float64


@dataclass(frozen=True)
class PreparedWith:
    """A prepared block of the inner kernel, and one number per row: k(x, x), or the inverse of its root."""

    inner: Any
    numbers: Vector


@dataclass(frozen=True)
class Around(Kernel):
    """A kernel with k(x, x) = 1, of an inner kernel and its k(x, x), which a kernel of row numbers does not have.

    A subclass says how a ``finished`` matrix is made of K with the diagonal d.
    """

    finished: ClassVar[str]

    inner: Kernel

    def __post_init__(self) -> None:
        given: Any = self.inner
        if not isinstance(given, Kernel):
            raise TypeError(f"inner = {given!r} is not a kernel, such as bigpca.kernels.RBF().")
        if not given.needs_rows:
            raise ValueError(
                f"{given} only sees row numbers, but {type(self).__name__} needs k(x, x) of each row. Give "
                f"Precomputed() the finished matrix: {self.finished}."
            )
        self._check_options()

    def _check_options(self) -> None:
        """Check the parameters other than the kernel."""

    @property
    def positive_semidefinite(self) -> bool:
        return self.inner.positive_semidefinite

    @property
    def taken_on_trust(self) -> bool:
        return self.inner.taken_on_trust

    def resolve(self, d: int) -> Self:
        return replace(self, inner=self.inner.resolve(d))

    def diagonal_of(self, A: PreparedWith) -> Vector:
        return np.ones(len(A.numbers))

    def entry_error(self, A: PreparedWith, B: PreparedWith) -> float:
        return self.inner.entry_error(A.inner, B.inner)

    def flops_per_entry(self, d: int) -> float:
        return self.inner.flops_per_entry(d) + 100.0

    def entry_bytes(self, itemsize: int) -> int:
        return self.inner.entry_bytes(itemsize)

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return self.inner.prepared_bytes(d, itemsize) + 8

    @property
    def accepts_strings(self) -> bool:
        return self.inner.accepts_strings


@dataclass(frozen=True)
class RBFOf(Around):
    """``exp(-gamma (k(x, x) + k(y, y) - 2 k(x, y)))``; made by :func:`rbf_of`.

    Parameters
    ----------
    inner : Kernel
    gamma : float > 0
        In units of 1 / (the units of ``inner``).
    """

    finished: ClassVar[str] = "np.exp(-gamma * (d[:, None] + d - 2 * K)) with d = np.diag(K)"

    gamma: float

    def _check_options(self) -> None:
        if self.gamma is None:
            raise ValueError("gamma = None, but no default suits every kernel; give a finite number above 0.")
        checked_gamma(self.gamma)

    def prepare(self, rows: Array, shift: Vector | None = None, first_row: int = 0) -> PreparedWith:
        """Prepare in float64: k(x, x) + k(y, y) - 2 k(x, y) cancels digits that float32 does not have."""
        inner = self.inner.prepare(rows.astype(np.float64, copy=False), shift, first_row)
        return PreparedWith(inner, np.asarray(self.inner.diagonal_of(inner), np.float64))

    def block(self, A: PreparedWith, B: PreparedWith) -> Block:
        for numbers in (A.numbers, B.numbers):
            # Kernel values so large that their differences are mostly rounding error.
            largest = float(np.abs(numbers).max(initial=0.0))
            error = 4 * float(np.finfo(np.float64).eps) * self.gamma * largest
            if error > MAX_EXPONENT_ERROR:
                raise ValueError(
                    f"k(x, x) reaches {largest:.3g} under {self.inner}, so float64 gives gamma |phi(x) - phi(y)|^2 "
                    f"only to {error:.1g}; {MAX_EXPONENT_ERROR:g} is required. Centre or scale the rows, or use a "
                    "smaller gamma, a normalised kernel, or RBF."
                )
        result = self.inner.block(A.inner, B.inner)
        with np.errstate(over="ignore"):
            for where, strip in strips(result):
                # 2 k(x, y) - k(x, x) - k(y, y) = -|phi(x) - phi(y)|^2, times gamma, exponentiated.
                strip *= 2
                strip -= A.numbers[where, None]
                strip -= B.numbers
                if self.inner.positive_semidefinite:
                    # Rounding can make a squared distance negative, which that of feature vectors is not.
                    np.minimum(strip, 0, out=strip)
                strip *= self.gamma
                np.exp(strip, out=strip)
        reject_overflow(result, "the exponential of kernel values")
        if A is B:
            # A row has distance 0 to itself, whatever the rounding of its kernel values.
            np.fill_diagonal(result, 1)
        return result

    def entry_error(self, A: PreparedWith, B: PreparedWith) -> float:
        largest = float(A.numbers.max(initial=0.0) + B.numbers.max(initial=0.0))
        error = float(np.finfo(np.float64).eps) + self.inner.entry_error(A.inner, B.inner)
        moved = self.gamma * largest * error
        return min(1.0, moved) if self.inner.positive_semidefinite else moved

    def flops_per_entry(self, d: int) -> float:
        return 2 * self.inner.flops_per_entry(d) + 200.0

    def entry_bytes(self, itemsize: int) -> int:
        return self.inner.entry_bytes(8)

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return self.inner.prepared_bytes(d, 8) + 8


@dataclass(frozen=True)
class Normalized(Around):
    """``k(x, y) / sqrt(k(x, x) k(y, y))``; made by :func:`normalized`.

    Parameters
    ----------
    inner : Kernel
    """

    finished: ClassVar[str] = "K / np.sqrt(np.outer(d, d)) with d = np.diag(K)"

    def _inverse_lengths(self, prepared: Any, first_row: int) -> Vector:
        diagonal = self.inner.diagonal_of(prepared)
        if not (diagonal > 0).all():
            row = int(np.argmin(diagonal > 0))
            raise ValueError(
                f"k(x, x) = {diagonal[row]:.6g} at row {first_row + row}, but normalisation needs a value above 0. "
                "Drop such rows, or add a constant to the kernel."
            )
        # |phi(x)| = sqrt(k(x, x))
        return np.asarray(1 / np.sqrt(diagonal), np.float64)

    def prepare(self, rows: Array, shift: Vector | None = None, first_row: int = 0) -> PreparedWith:
        inner = self.inner.prepare(rows, shift, first_row)
        return PreparedWith(inner, self._inverse_lengths(inner, first_row))

    def block(self, A: PreparedWith, B: PreparedWith) -> Block:
        # k(x, y) / sqrt(k(x, x) k(y, y)): the inverse lengths are those of single rows, which are prepared once.
        largest = float(A.numbers.max(initial=0.0) * B.numbers.max(initial=0.0))
        result = widened(self.inner.block(A.inner, B.inner), largest)
        for where, strip in strips(result):
            strip *= A.numbers[where, None]
            strip *= B.numbers
        if A is B:
            np.fill_diagonal(result, 1)
        return result

    def feature_width(self, d: int) -> int | None:
        return self.inner.feature_width(d)

    def features(self, rows: Array, first_row: int = 0) -> Block:
        inverse = self._inverse_lengths(self.inner.prepare(rows, None, first_row), first_row)
        unit: Block = self.inner.features(rows, first_row) * inverse[:, None].astype(rows.dtype)
        return unit


def rbf_of(kernel: Kernel, gamma: float) -> RBFOf | RBF:
    """Return ``exp(-gamma |phi(x) - phi(y)|^2)`` in the feature space of k, positive semi-definite if k is.

    The inner kernel is evaluated in float64, which about doubles the cost for float32 rows. For the linear kernel the
    result is ``RBF(gamma)``, which subtracts before it squares.

    Parameters
    ----------
    kernel : Kernel
    gamma : float > 0

    Returns
    -------
    RBFOf or RBF

    Examples
    --------
    >>> from bigpca.kernels import Linear
    >>> rbf_of(Linear(), gamma=0.5)([[0.0]], [[1.0]]).round(4).tolist()
    [[0.6065]]
    """
    found = RBFOf(kernel, gamma)
    return RBF(gamma) if isinstance(kernel, Linear) else found


def normalized(kernel: Kernel) -> Normalized:
    """Return ``k(x, y) / sqrt(k(x, x) k(y, y))``, positive semi-definite if k is; rows with k(x, x) <= 0 are rejected.

    Parameters
    ----------
    kernel : Kernel

    Returns
    -------
    Normalized

    Examples
    --------
    >>> from bigpca.kernels import Linear
    >>> normalized(Linear())([[3.0, 4.0]], [[1.0, 0.0]]).round(3).tolist()
    [[0.6]]
    """
    return Normalized(kernel)
