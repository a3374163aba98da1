"""Moments of the rows: count, mean and centred scatter, or the squares of each column only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array

from bigpca import csr
from bigpca.arrays import (
    Array,
    Matrix,
    Vector,
    add_outer_packed,
    add_packed,
    packed_diagonal,
    packed_size,
    unpack_upper,
)
from bigpca.passes.accumulators.base import (
    Accumulator,
    Arrays,
    WeightSums,
    add_known,
    add_symmetric_product,
    add_weights,
    centring_error,
    column_squares,
    lost_squares,
    product_scratch,
    stored_weights,
    symmetric_product,
)
from bigpca.passes.reading.blocks import STRIP_BYTES, Block, SumOnDevice, scaled_rows
from bigpca.passes.reading.layout import SLAB_ROWS
from bigpca.planning import BlockForm, Work


@dataclass
class SparseGram:
    """Sums of products of the sparse rows of one group, about zero, or about a value that most rows are near.

    Attributes
    ----------
    about : ndarray of shape (d,)
    product : ndarray of shape (d, d), float64; only the upper triangle is computed
    sums : ndarray of shape (d,)
    """

    about: Vector
    product: Matrix
    sums: Vector

    @classmethod
    def of(cls, first: csr_array) -> SparseGram:
        """Return the sums of no rows, for a group that begins with these."""
        d = int(first.shape[1])
        return cls(csr.usual_values(first), np.zeros((d, d)), np.zeros(d))

    def add(self, rows: csr_array, weights: Vector | None) -> None:
        """Add the rows of a block."""
        csr.add_gram(rows, weights, self.product, self.sums, self.about)


@dataclass
class Moments(Accumulator):
    """Count, mean and centred scatter of the rows seen so far.

    ``scatter = sum_t (x_t - mean)(x_t - mean)'``. Inside a group the sums are about the group's shift, and the mean is
    corrected once when the group closes. Groups merge with the mean-difference term, so an offset of the data costs no
    digits (Chan, Golub & LeVeque 1983, eq. 2.1). Only the upper triangle of the scatter is stored, packed.

    Groups whose first block has few stored values (:func:`bigpca.csr.prefers_strips`) are summed in float64 about
    zero, and centred when they close: the one exception, bounded by :attr:`centring_error`. Columns that nearly all
    rows store, whose mean may be far larger than the deviations, are shifted there too, at no cost. The blocks
    of other groups are made dense strip by strip, and their sums are about a shift like those of dense rows.

    Attributes
    ----------
    n_features : int
    count : int
        Number of rows; rows of weight 0 are not counted.
    mean : ndarray of shape (d,), float64
    packed : ndarray of shape (packed_size(d),), float64
        The scatter's upper triangle as :func:`bigpca.arrays.packed_strips` lays it out; empty before the first
        block.
    weight_sums : (float, float) or None
        ``sum_t w_t`` and ``sum_t w_t^2`` of weighted rows; None if every row counts once.
    lost : ndarray of shape (d,), or None
        Bound of the error of the diagonal of the scatter by the groups that were centred when they closed; None if no
        row was sparse.
    precision : float
        eps of the coarsest product of dense rows in the scatter; 0 before the first. Sparse rows have float64's.
    """

    tag: ClassVar[str] = "Moments"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr", "weights"})

    n_features: int
    count: int = 0
    mean: Vector = field(default_factory=lambda: np.zeros(0))
    packed: Vector = field(default_factory=lambda: np.zeros(0))
    weight_sums: WeightSums = None
    lost: Vector | None = None
    precision: float = 0.0
    _gram: SparseGram | None = field(default=None, repr=False)
    _sums: Vector | None = field(default=None, repr=False)
    _shift: Vector | None = field(default=None, repr=False)
    _product: Array | None = field(default=None, repr=False)
    _product_rows: int = field(default=0, repr=False)
    _there: SumOnDevice | None = field(default=None, repr=False)

    @property
    def scatter(self) -> Matrix:
        """The scatter's upper triangle as a new (d, d) matrix."""
        return unpack_upper(self.packed, self.n_features)

    def fresh(self, start: int, stop: int) -> Moments:
        return Moments(self.n_features, 0, np.zeros(self.n_features))

    def update(self, block: Block) -> None:
        if isinstance(block.values, csr_array) and block.count:
            if self.lost is None:
                self.lost = np.zeros(self.n_features)
                self._gram = None if csr.prefers_strips(block.values) else SparseGram.of(block.values)
            if self._gram is None:
                for strip in block.strips(self._shift):
                    self.update(strip)
                return
        if self._sums is None:
            self.packed = np.zeros(packed_size(self.n_features))
            self._sums, self._shift = np.zeros(self.n_features), block.shift
        self.weight_sums = add_weights(self.count, self.weight_sums, block.count, block.weights)
        self.count += block.count
        self._sums += block.sums
        if self._gram is not None:
            self._gram.add(block.values, block.weights)
            return
        if block.device is not None:
            if self._there is None:
                self._there = SumOnDevice(block.device, self.n_features)
            self.precision = max(self.precision, self._there.add(block.values, block.weights))
            return
        # sqrt(w) (x - shift): weighted after the shift, so that the deviations keep their digits
        self._multiply(block.values if block.weights is None else scaled_rows(block.values, np.sqrt(block.weights)))

    @property
    def weight(self) -> float:
        """``sum_t w_t``; the count of rows without weights."""
        return float(self.count) if self.weight_sums is None else self.weight_sums[0]

    def _multiply(self, values: Array) -> None:
        """Add ``values' values`` to the open product, which is added to the total every 8,192 rows.

        Slabs of wide rows are short. Summing several of them in float32 leaves the rounding error of one slab of 8,192
        rows, and makes additions in float64 rare: those are limited by memory bandwidth, the products are not.
        """
        if self._product is None or self._product.dtype != values.dtype:
            self._flush()
            self.precision = max(self.precision, float(np.finfo(values.dtype).eps))
            self._product = product_scratch(self.n_features, values.dtype)
        if self._product_rows + len(values) > SLAB_ROWS:
            self._flush()
        # 1. Added to the open product, in the rows' precision, up to SLAB_ROWS rows.
        if self._product_rows and add_symmetric_product(values, self._product):
            self._product_rows += len(values)
            return
        self._flush()
        # 2. Else the open product is moved to the float64 sums, and a new one begins.
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
        if self._there is not None:
            self._there.add_to(self.packed)
        self._product = self._there = None
        if self._sums is None or self._shift is None or not self.count:
            self.packed, self._sums, self._shift = np.zeros(packed_size(self.n_features)), None, None
            return
        if self._gram is not None:
            # Sparse rows are centred as below; the offset of constant columns is 0.
            offset = self._gram.sums / self.weight
            add_packed(self.packed, self._gram.product)
            self.lost = lost_squares(np.diagonal(self._gram.product), self.count)
            self.mean = self._gram.about + offset
            self._gram = self._sums = self._shift = None
            add_outer_packed(self.packed, -self.weight, offset)
            return
        # With o = mean - shift:  sum_t w_t (x_t - mean)(x_t - mean)' = sum_t w_t (x_t - shift)(x_t - shift)' - w o o'.
        offset = self._sums / self.weight
        self.mean = self._shift + offset
        self._sums = self._shift = None
        add_outer_packed(self.packed, -self.weight, offset)

    @property
    def centring_error(self) -> float | None:
        """Bound of the relative error of any variance by the centring of sparse rows; None if no row was sparse.

        Raises
        ------
        ValueError
            Beyond 1e-6.
        """
        if self.lost is None:
            return None
        return centring_error(self.lost, packed_diagonal(self.packed, self.n_features))

    def merge(self, other: Moments) -> Moments:
        if not other.count or not self.count:
            return self if self.count else other
        # S = S_a + S_b + (w_a w_b / w) e e' with e = mean_b - mean_a (Chan, Golub & LeVeque 1983, eq. 2.1).
        weight = self.weight + other.weight
        difference = other.mean - self.mean
        mean = self.mean + difference * (other.weight / weight)
        packed = self.packed + other.packed
        add_outer_packed(packed, self.weight * (other.weight / weight), difference)
        sums = add_weights(self.count, self.weight_sums, other.count, other.weight_sums)
        lost, precision = add_known(self.lost, other.lost), max(self.precision, other.precision)
        return Moments(self.n_features, self.count + other.count, mean, packed, sums, lost, precision)

    @property
    def state_bytes(self) -> int:
        return 8 * (packed_size(self.n_features) + self.n_features)

    def cost(self, rows: BlockForm) -> Work:
        if rows.sparse:  # one product, of values or of strips
            return Work(8 * self.n_features**2 + STRIP_BYTES + 16 * self.n_features) + csr.gram_work(rows)
        # Two products in float64 at most; the operations are those of one triangle of X'X.
        return Work(16 * self.n_features**2, float(rows.columns * (rows.columns + 1)))

    def device_bytes(self, rows: BlockForm) -> int:
        # A block; and the sum, the product that is added to it in float64, and the new sum.
        return rows.rows * rows.columns * rows.itemsize + 24 * self.n_features**2

    def to_arrays(self) -> Arrays:
        weights = {} if self.weight_sums is None else {"weights": np.array(self.weight_sums)}
        lost = {} if self.lost is None else {"lost": self.lost}
        coarse = {"precision": np.array(self.precision)} if self.precision > np.finfo(np.float64).eps else {}
        return {"count": np.array(self.count), "mean": self.mean, "scatter": self.packed, **weights, **lost, **coarse}

    def with_arrays(self, arrays: Mapping[str, Array]) -> Moments:
        sums, lost = stored_weights(arrays, "weights"), arrays.get("lost")
        precision = float(arrays.get("precision", 0.0))
        return Moments(self.n_features, int(arrays["count"]), arrays["mean"], arrays["scatter"], sums, lost, precision)


@dataclass
class ColumnMoments(Accumulator):
    """Count, mean and sum of squared deviations of every column: :class:`Moments` without the cross products.

    Attributes
    ----------
    n_features : int
    count : int
    mean, squares : ndarray of shape (d,), float64; ``squares = sum_t w_t (x_t - mean)^2``
    weight_sums : (float, float) or None
        As of :class:`Moments`.
    """

    tag: ClassVar[str] = "ColumnMoments"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights"})  # sparse rows in strips, about a shift

    n_features: int
    count: int = 0
    mean: Vector = field(default_factory=lambda: np.zeros(0))
    squares: Vector = field(default_factory=lambda: np.zeros(0))
    weight_sums: WeightSums = None
    _sums: Vector | None = field(default=None, repr=False)
    _shift: Vector | None = field(default=None, repr=False)

    def fresh(self, start: int, stop: int) -> ColumnMoments:
        return ColumnMoments(self.n_features, 0, np.zeros(self.n_features), np.zeros(self.n_features))

    def update(self, block: Block) -> None:
        if self._sums is None:
            self._sums, self._shift = np.zeros(self.n_features), block.shift
        self.weight_sums = add_weights(self.count, self.weight_sums, block.count, block.weights)
        self.count += block.count
        self._sums += block.sums
        self.squares += column_squares(block.values, block.weights)

    @property
    def weight(self) -> float:
        """``sum_t w_t``; the count of rows without weights."""
        return float(self.count) if self.weight_sums is None else self.weight_sums[0]

    def close(self) -> None:
        if self._sums is None or self._shift is None or not self.count:
            return
        offset = self._sums / self.weight
        self.mean = self._shift + offset
        self.squares -= self.weight * offset**2
        self._sums = self._shift = None

    def merge(self, other: ColumnMoments) -> ColumnMoments:
        if not other.count or not self.count:
            return self if self.count else other
        weight = self.weight + other.weight
        difference = other.mean - self.mean
        mean = self.mean + difference * (other.weight / weight)
        squares = self.squares + other.squares + difference**2 * (self.weight * (other.weight / weight))
        sums = add_weights(self.count, self.weight_sums, other.count, other.weight_sums)
        return ColumnMoments(self.n_features, self.count + other.count, mean, squares, sums)

    @property
    def state_bytes(self) -> int:
        return 16 * self.n_features

    def cost(self, rows: BlockForm) -> Work:
        return Work(0, 2.0 * self.n_features)

    def to_arrays(self) -> Arrays:
        weights = {} if self.weight_sums is None else {"weights": np.array(self.weight_sums)}
        return {"count": np.array(self.count), "mean": self.mean, "squares": self.squares, **weights}

    def with_arrays(self, arrays: Mapping[str, Array]) -> ColumnMoments:
        sums = stored_weights(arrays, "weights")
        return ColumnMoments(self.n_features, int(arrays["count"]), arrays["mean"], arrays["squares"], sums)
