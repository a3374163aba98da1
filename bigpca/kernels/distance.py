"""Kernels that decrease with the distance of two rows: RBF and Laplacian."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar, cast

import numpy as np
from scipy.sparse import csr_array

from bigpca.arrays import Array, Vector, mirror_upper
from bigpca.devices import Namespace, RowsThere
from bigpca.errors import check_choice
from bigpca.host import HOST
from bigpca.kernels.base import Block, WithGamma, strips
from bigpca.kernels.dot import (
    HARMLESS,
    LARGEST32,
    SMALLEST32,
    Prepared,
    PreparedRows,
    PreparedThere,
    prepare_rows,
    product_error,
    products,
)

HARMLESS64 = 1e-12  # accepted error of an entry for float64 rows
NEAREST = 0.01  # share of the largest |x|^2: pairs with a smaller |x - y|^2 are few, and computed one by one
TYPICAL = 1 / 6  # root mean square error of a product, as a share of its bound: see product_error
GATHERED = 1 << 17  # numbers in a batch of such pairs
NARROW = 1e-4  # error of entries beyond which it is asked how many pairs have it: few, of kernels as narrow as rounding


@dataclass(frozen=True)
class DistanceKernel(WithGamma):
    """``exp(-gamma D(x, y))`` of a distance or a squared distance D that does not depend on gamma."""

    _scale: ClassVar[float] = 1.0  # K = exp(gamma scale v) with v from _negative_distances
    positive_semidefinite: ClassVar[bool] = True

    @abstractmethod
    def _negative_distances(self, A: Any, B: Any, gamma: float) -> Block:
        """Return v (a, b) with ``K = exp(gamma scale v)``, still to be clipped at 0; accurate enough up to gamma.

        Of rows on a device, ``gamma scale v``.
        """

    def block(self, A: Any, B: Any) -> Block:
        gamma = self.gamma_for(self._columns_of(A))
        distances = self._negative_distances(A, B, gamma)
        return self._values(distances, gamma, A, B)

    def diagonal_of(self, A: Any) -> Vector:
        return np.ones(self._rows_of(A))

    def _entry_error(self, A: Any, B: Any, moved: float, power: int) -> float:
        """Return the root mean square error of entries, where rounding changes ``(gamma D)^(1 / power)`` by ``moved``.

        Values lie in [0, 1], so an error is at most 1. Pairs have it that are not much farther apart than the width or
        the rounding, whichever is wider: those whose value at that width is not 0. Equal rows have an exact 1.
        """
        width = self.gamma_for(self._columns_of(A))
        for _ in range(power):
            width /= max(1.0, moved)
        if moved <= NARROW or not width:  # or distances overflow
            return min(1.0, moved)
        here = PreparedRows(A.columns, A.squares) if isinstance(A, PreparedThere) else A
        values = replace(self, gamma=width).block(here, B)
        changed = np.count_nonzero(values) - np.count_nonzero(values == 1)
        return min(1.0, moved) * sqrt(changed / max(1, values.size))

    def entry_bytes(self, itemsize: int) -> int:
        return itemsize if self.gamma is None or _fits32(self.gamma) else 8

    @abstractmethod
    def _columns_of(self, A: Any) -> int:
        """Return the number of columns of a prepared block."""

    @abstractmethod
    def _rows_of(self, A: Any) -> int:
        """Return the number of rows of a prepared block."""

    def _values(self, distances: Any, gamma: float, A: Any, B: Any) -> Block:
        """Return ``exp(gamma scale min(v, 0))`` in the place of v; symmetric with a unit diagonal for the same rows."""
        if isinstance(A, PreparedThere):
            # Rounding may leave v above 0 there, too. Not by clip, which some libraries make of masks.
            xp = A.rows.xp
            return cast(Block, xp.exp(xp.minimum(distances, xp.zeros_like(distances[:1, :1]))))
        out: Block = distances
        factor = _factor(gamma * self._scale, out.dtype)
        for _, strip in strips(out):
            np.minimum(strip, 0, out=strip)
            with np.errstate(over="ignore"):  # exp(-inf) is 0
                strip *= factor
            np.exp(strip, out=strip)
        if A is B:
            mirror_upper(out)
            np.fill_diagonal(out, 1)
        return out


@dataclass(frozen=True)
class RBF(DistanceKernel):
    """``k(x, y) = exp(-gamma |x - y|^2)``.

    One product, 2 d flops per entry, and four passes over strips that stay in cache. Rows are shifted by about their
    mean, norms are summed in float64, and squares are clipped at 0. Float32 rows are multiplied in float64 if the
    largest norms of two blocks would allow an error of more than 1e-5 in the exponent. If even float64 does not suffice
    (1e-5, or 1e-12 for float64 rows), the nearest pairs are computed again from differences.

    Parameters
    ----------
    gamma : float > 0, or None for 1 / d, default None

    Examples
    --------
    >>> RBF(gamma=0.5)([[0.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]).round(4).tolist()
    [[1.0, 0.3679]]
    """

    _scale: ClassVar[float] = 2.0
    accepts_csr: ClassVar[bool] = True

    def place(self, device: Namespace) -> Namespace:
        return device

    def prepare(self, rows: Array | csr_array | RowsThere, shift: Vector | None = None, first_row: int = 0) -> Prepared:
        return prepare_rows(rows, shift)

    def flops_per_entry(self, d: int) -> float:
        return 2.0 * d + 200

    def entry_error(self, A: Prepared, B: PreparedRows) -> float:
        """Bound the errors of |x - y|^2 and of shifted rows, since ``2 gamma t exp(-gamma t^2) <= sqrt(gamma)``."""
        gamma, dtype = self.gamma_for(A.width), np.result_type(A.dtype, B.dtype)
        error = _remaining_error(gamma * square_error(A, B, dtype), dtype)
        return self._entry_error(A, B, error + sqrt(gamma) * _shift_error(A.largest, B.largest, dtype), 2)

    def _columns_of(self, A: Prepared) -> int:
        return A.width

    def _rows_of(self, A: Prepared) -> int:
        return len(A.squares)

    def _negative_distances(self, A: Prepared, B: PreparedRows, gamma: float) -> Block:
        dtype = _distance_dtype(A, B, gamma)
        if dtype == np.float32 and gamma * square_error(A, B) <= HARMLESS:
            return products(A, B, dtype, less_squares=True, scale_there=2 * gamma)
        error, harmless = square_error(A, B, np.float64), HARMLESS if dtype == np.float32 else HARMLESS64
        if isinstance(A, PreparedThere) and (gamma * error > harmless or not _fits32(gamma)):
            # Pair by pair: not on the device.
            return _put(self._negative_distances(PreparedRows(A.columns, A.squares), B, gamma), 2 * gamma, A)
        result = products(A, B, dtype, less_squares=True, exact=dtype == np.float32, scale_there=2 * gamma)
        if gamma * error > harmless:
            # -|x - y|^2 / 2 again from differences. An error e of |x - y|^2 becomes at most e / (2.7 |x - y|^2) in the
            # kernel at any width, since t exp(-t) <= 1 / 2.7; so this is needed only for the nearest pairs, and only
            # if norms are large compared with the width.
            for where, strip in strips(result):
                i, j = np.nonzero(strip >= -min(0.37 * error / harmless, NEAREST * max(A.largest, B.largest)) / 2)
                strip[i, j] = -(_differences(A, B, where.start + i, j) ** 2) / 2
        return result


@dataclass(frozen=True)
class Laplacian(DistanceKernel):
    """``k(x, y) = exp(-gamma |x - y|)`` with scikit-learn's L1 norm, or the tutorial's L2 norm (gamma = 1 / sigma).

    L1: compiled on first use (half a second); 14e9 terms per second in float32 and 8e9 in float64 on one core.
    L2: one product. The square root magnifies errors of close rows, so those pairs are computed again from differences;
    on a device, all products are in float64 instead, and :meth:`entry_error` has what is left.

    Parameters
    ----------
    gamma : float > 0, or None for 1 / d, default None
    norm : "l1" or "l2", default "l1"

    Examples
    --------
    >>> Laplacian(gamma=1.0)([[0.0, 0.0]], [[0.25, 0.75]]).round(4).tolist()
    [[0.3679]]
    """

    norm: str = "l1"

    def _check_options(self) -> None:
        check_choice("norm", self.norm, ("l1", "l2"))

    def place(self, device: Namespace) -> Namespace:
        """With the L2 norm a device: libraries have no sums of differences that are as fast as 16 cores."""
        return device if self.norm == "l2" else HOST

    def prepare(self, rows: Array, shift: Vector | None = None, first_row: int = 0) -> Any:
        if self.norm == "l2":
            return prepare_rows(rows, shift)
        return np.array(rows, order="C") if shift is None else np.subtract(rows, shift.astype(rows.dtype), order="C")

    def flops_per_entry(self, d: int) -> float:
        return 2.0 * d + 400 if self.norm == "l2" else 7.0 * d + 600

    def entry_error(self, A: Any, B: Any) -> float:
        gamma = self.gamma_for(self._columns_of(A))
        if self.norm == "l2":
            dtype, there = np.result_type(A.dtype, B.dtype), isinstance(A, PreparedThere)
            # An error e of |x - y|^2 is one of at most sqrt(e) of |x - y|.
            error = gamma * sqrt(square_error(A, B, np.float64 if there else dtype))
            error = TYPICAL * error if there else _remaining_error(error, dtype)
            return self._entry_error(A, B, error + gamma * _shift_error(A.largest, B.largest, dtype), 1)
        a, b = (float(np.einsum("ij,ij->i", rows, rows).max(initial=0.0)) for rows in (A, B))
        return self._entry_error(A, B, gamma * _shift_error(a, b, np.result_type(A, B)), 1)

    def _columns_of(self, A: Any) -> int:
        return int(A.width if self.norm == "l2" else A.shape[1])

    def _rows_of(self, A: Any) -> int:
        return len(A.squares) if self.norm == "l2" else len(A)

    def _negative_distances(self, A: Any, B: Any, gamma: float) -> Block:
        if self.norm == "l2":
            return _negative_lengths(A, B, gamma)
        from bigpca.kernels import loops  # Numba is imported with it

        dtype = np.result_type(A, B) if _fits32(gamma) else np.dtype(np.float64)
        result: Block = np.empty((len(A), len(B)), dtype)
        loops.negative_l1(A.astype(dtype, copy=False), B.astype(dtype, copy=False), result)
        return result


def _remaining_error(error: float, dtype: Any) -> float:
    """Estimate the error of exponents that remains of this bound once the nearest pairs are computed again."""
    return TYPICAL * min(error, HARMLESS if dtype == np.float32 else HARMLESS64)


def _shift_error(a: float, b: float, dtype: Any) -> float:
    """Estimate the change of |x - y| from rounding shifted rows of squared lengths up to a and b."""
    return float(np.finfo(dtype).eps) / 4 * (sqrt(a) + sqrt(b))


def _fits32(gamma: float) -> bool:
    """Whether float32 holds exponents of this width: distances that it does not hold then have a kernel of 0 or 1."""
    return SMALLEST32 <= gamma <= LARGEST32


def _factor(factor: float, dtype: np.dtype[Any]) -> Any:
    """Return a factor of distances in their dtype, finite: infinity times the distance 0 of equal rows is no number."""
    return dtype.type(min(factor, float(np.finfo(dtype).max)))


def _put(distances: Block, factor: float, A: PreparedThere) -> Block:
    """Return exponents on the device of these rows."""
    with np.errstate(over="ignore"):
        return cast(Block, A.rows.put(distances * _factor(factor, distances.dtype)))


def _distance_dtype(A: Prepared, B: PreparedRows, gamma: float) -> np.dtype[Any]:
    """Return the dtype of distances: that of the rows, or float64 where float32 does not hold their squares or the
    width.
    """
    largest = max(A.largest, B.largest)
    fits = (SMALLEST32 <= largest <= LARGEST32 or not largest) and _fits32(gamma)
    return np.result_type(A.dtype, B.dtype) if fits else np.dtype(np.float64)


def square_error(A: Prepared, B: PreparedRows, dtype: Any = np.float32) -> float:
    """Bound the error of ``|x - y|^2`` computed from norms and a product in this precision."""
    return product_error(A.width, np.dtype(dtype)) * (A.largest + B.largest)


def _negative_lengths(A: Prepared, B: PreparedRows, gamma: float) -> Block:
    """Return ``-|x - y|`` (a, b), from products where that is accurate, and from differences for the nearest pairs.

    An error e of |x - y|^2 becomes at most e / |x - y| in the square root, so pairs with ``|x - y| <= gamma e /
    harmless`` are computed again; these are few, unless many rows are equal. If ``sqrt(e) > gamma e / harmless``, even
    equal rows among the other pairs have an error of at most ``gamma sqrt(e) < harmless``.
    """
    dtype = _distance_dtype(A, B, gamma)
    if isinstance(A, PreparedThere):
        if gamma * sqrt(square_error(A, B, np.float64)) > HARMLESS or not _fits32(gamma):
            return _put(_negative_lengths(PreparedRows(A.columns, A.squares), B, gamma), gamma, A)
        xp = A.rows.xp
        squares = products(A, B, np.dtype(np.float64), less_squares=True, scale_there=-2 * gamma**2)
        lengths = -xp.sqrt(xp.maximum(squares, xp.zeros_like(squares[:1, :1])))
        return cast(Block, xp.astype(lengths, getattr(xp, dtype.name), copy=False))
    # Pairs whose distance is lost in the rounding of |x|^2 + |y|^2 - 2 x'y, if the square root magnifies it.
    nearest = NEAREST * max(A.largest, B.largest)
    close = gamma * square_error(A, B, dtype) / (HARMLESS if dtype == np.float32 else HARMLESS64)
    close *= close  # infinite for the largest gamma, where a power would raise
    # Too many would be near in float32: products in float64, whose nearest pairs are few.
    exact = dtype == np.float32 and close > nearest
    result = products(A, B, dtype, less_squares=True, exact=exact)
    if exact:
        close = (gamma * square_error(A, B, np.float64) / HARMLESS) ** 2
    close = min(close, nearest)
    for where, strip in strips(result):
        strip *= -2
        i, j = np.nonzero(strip <= close)
        np.maximum(strip, 0, out=strip)
        np.sqrt(strip, out=strip)
        np.negative(strip, out=strip)
        # The nearest pairs again, from differences: exact where rows are equal.
        strip[i, j] = -_differences(A, B, where.start + i, j)
    return result


def _differences(A: Prepared, B: PreparedRows, i: Any, j: Any) -> Vector:
    """Return ``|x - y|`` of rows i of A and j of B, pair by pair, in batches."""
    # Exact where rows are equal, while |x|^2 + |y|^2 - 2 x'y leaves the rounding of the squares.
    lengths = np.empty(len(i))
    batch = max(1, GATHERED // max(1, A.width))
    for first in range(0, len(i), batch):
        some = slice(first, first + batch)
        differences = A.taken(i[some]) - B.taken(j[some])
        lengths[some] = np.sqrt(np.einsum("ij,ij->j", differences, differences))
    return lengths
