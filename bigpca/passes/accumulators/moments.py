"""Moments of the rows: count, mean and centred scatter, or the squares of each column only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.passes.accumulators.base import Accumulator, Arrays
from bigpca.passes.accumulators.products import (
    add_symmetric_product,
    column_squares,
    product_scratch,
    symmetric_product,
)
from bigpca.passes.reading.blocks import Block
from bigpca.passes.reading.layout import SLAB_ROWS
from bigpca.triangles import add_outer_packed, add_packed, packed_size, unpack_upper


@dataclass
class Moments(Accumulator):
    """Count, mean and centred scatter of the rows seen so far.

    ``scatter = sum_t (x_t - mean)(x_t - mean)'``. Inside a group the sums are about the group's shift, and the mean is
    corrected once when the group closes; groups merge with the mean-difference term, so an offset of the data costs no
    digits (Chan, Golub & LeVeque 1983, eq. 2.1). The scatter is its upper triangle only, packed.

    Attributes
    ----------
    n_features : int
    count : int
    mean : ndarray of shape (d,), float64
    packed : ndarray of shape (packed_size(d),), float64
        The scatter's upper triangle as :func:`bigpca.triangles.packed_strips` lays it out; empty before the first block.
    """

    tag: ClassVar[str] = "Moments"

    n_features: int
    count: int = 0
    mean: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    packed: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    _sums: NDArray[np.float64] | None = field(default=None, repr=False)
    _shift: NDArray[np.float64] | None = field(default=None, repr=False)
    _product: NDArray[Any] | None = field(default=None, repr=False)
    _product_rows: int = field(default=0, repr=False)

    @property
    def scatter(self) -> NDArray[np.float64]:
        """The scatter's upper triangle as a new (d, d) matrix."""
        return unpack_upper(self.packed, self.n_features)

    def fresh(self, start: int, stop: int) -> Moments:
        return Moments(self.n_features, 0, np.zeros(self.n_features))

    def update(self, block: Block) -> None:
        if self._sums is None:
            self.packed = np.zeros(packed_size(self.n_features))
            self._sums, self._shift = np.zeros(self.n_features), block.shift
        self.count += len(block.values)
        self._sums += block.sums
        self._multiply(block.values)

    def _multiply(self, values: NDArray[Any]) -> None:
        """Add ``values' values`` to the product of the slabs before, up to as many rows as one slab may have, or to the total.

        Errors of float32 are then those of one slab of 8,192 rows, however few rows wide slabs have; and the addition in
        float64, which waits for memory where the product does not, costs as little.
        """
        if self._product is None or self._product.dtype != values.dtype:
            self._flush()
            self._product = product_scratch(self.n_features, values.dtype)
        if self._product_rows + len(values) > SLAB_ROWS:
            self._flush()
        if self._product_rows and add_symmetric_product(values, self._product):
            self._product_rows += len(values)
            return
        self._flush()
        product = symmetric_product(values, self._product)
        if product is self._product:
            self._product_rows = len(values)
        else:
            add_packed(self.packed, product)

    def _flush(self) -> None:
        if self._product_rows and self._product is not None:
            add_packed(self.packed, self._product)
        self._product_rows = 0

    def close(self) -> None:
        self._flush()
        self._product = None
        if self._sums is None or self._shift is None:
            self.packed = np.zeros(packed_size(self.n_features))
            return
        offset = self._sums / self.count
        self.mean = self._shift + offset
        self._sums = self._shift = None
        add_outer_packed(self.packed, -float(self.count), offset)

    def merge(self, other: Moments) -> Moments:
        if not other.count or not self.count:
            return self if self.count else other
        count = self.count + other.count
        difference = other.mean - self.mean
        mean = self.mean + difference * (other.count / count)
        packed = self.packed + other.packed
        add_outer_packed(packed, self.count * (other.count / count), difference)
        return Moments(self.n_features, count, mean, packed)

    @property
    def state_bytes(self) -> int:
        return 8 * (packed_size(self.n_features) + self.n_features)

    @property
    def product_bytes(self) -> int:
        return 16 * self.n_features**2  # two products in float64 at most

    @property
    def flops_per_row(self) -> int:
        return self.n_features * (self.n_features + 1)

    def to_arrays(self) -> Arrays:
        return {"count": np.array(self.count), "mean": self.mean, "scatter": self.packed}

    def with_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> Moments:
        return Moments(self.n_features, int(arrays["count"]), arrays["mean"], arrays["scatter"])


@dataclass
class ColumnMoments(Accumulator):
    """Count, mean and sum of squared deviations of every column: :class:`Moments` without the cross products.

    Attributes
    ----------
    n_features : int
    count : int
    mean, squares : ndarray of shape (d,), float64; ``squares = sum_t (x_t - mean)^2``
    """

    tag: ClassVar[str] = "ColumnMoments"

    n_features: int
    count: int = 0
    mean: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    squares: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    _sums: NDArray[np.float64] | None = field(default=None, repr=False)
    _shift: NDArray[np.float64] | None = field(default=None, repr=False)

    def fresh(self, start: int, stop: int) -> ColumnMoments:
        return ColumnMoments(self.n_features, 0, np.zeros(self.n_features), np.zeros(self.n_features))

    def update(self, block: Block) -> None:
        if self._sums is None:
            self._sums, self._shift = np.zeros(self.n_features), block.shift
        self.count += len(block.values)
        self._sums += block.sums
        self.squares += column_squares(block.values)

    def close(self) -> None:
        if self._sums is None or self._shift is None or not self.count:
            return
        offset = self._sums / self.count
        self.mean = self._shift + offset
        self.squares -= self.count * offset**2
        self._sums = self._shift = None

    def merge(self, other: ColumnMoments) -> ColumnMoments:
        if not other.count or not self.count:
            return self if self.count else other
        count = self.count + other.count
        difference = other.mean - self.mean
        mean = self.mean + difference * (other.count / count)
        squares = self.squares + other.squares + difference**2 * (self.count * (other.count / count))
        return ColumnMoments(self.n_features, count, mean, squares)

    @property
    def state_bytes(self) -> int:
        return 16 * self.n_features

    @property
    def flops_per_row(self) -> int:
        return 2 * self.n_features

    def to_arrays(self) -> Arrays:
        return {"count": np.array(self.count), "mean": self.mean, "squares": self.squares}

    def with_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> ColumnMoments:
        return ColumnMoments(self.n_features, int(arrays["count"]), arrays["mean"], arrays["squares"])
