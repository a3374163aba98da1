"""Moments of the rows: count, mean and centred scatter, or the squares of each column only.

Then states of labelled rows: counts, means and the within-class scatter, or its product with a thin matrix; and of the
profiles of rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from bigpca import csr
from bigpca.arrays import (
    Array,
    Integers,
    Matrix,
    Vector,
    add_outer_packed,
    add_packed,
    packed_diagonal,
    packed_size,
    sum_of,
    sum_packed,
    unpack,
    unpack_upper,
)
from bigpca.costs import BlockForm, Work
from bigpca.data.weights import Codes
from bigpca.devices import Device, gram_bytes
from bigpca.engine.layout import MIB, SLAB_ROWS
from bigpca.host import Gram
from bigpca.passes.accumulators.base import (
    KEPT,
    Accumulator,
    Weighted,
    WeightSums,
    add_known,
    add_weights,
    centring_error,
    kept,
    lost_squares,
)
from bigpca.passes.reading.blocks import Block
from bigpca.passes.reading.row_maps import Profile

PROFILE = Profile(1.0)  # of rows of amounts
TILE_BYTES = 16 * MIB  # of labelled rows that are added at a time
MOST_CLASSES_THERE = 1024  # and more with more columns: products with one-hot codes then take as long as the scatter


@dataclass
class CentredRows(Weighted, Accumulator):
    """Count and mean of the rows seen so far, about which a subclass adds up squares or products of deviations.

    Inside a group, sums are about the group's shift; they are corrected once when it closes.

    Attributes
    ----------
    n_features : int
    count : int
        Number of rows; rows of weight 0 are not counted.
    mean : ndarray of shape (d,), float64
    weight_sums : (float, float) or None
        As of :class:`bigpca.passes.accumulators.base.Weighted`.
    """

    n_features: int
    count: int = kept(default=0)
    mean: Vector = kept("n_features")
    weight_sums: WeightSums = kept(default=None)
    _sums: Vector | None = field(default=None, repr=False)
    _shift: Vector | None = field(default=None, repr=False)

    def _begin(self, block: Block) -> None:
        """Add the count, the weights and the column sums of a block."""
        if self._sums is None:
            self._sums, self._shift = self.put(np.zeros(self.n_features)), self.put(block.shift)
        self.weight_sums = add_weights(self.count, self.weight_sums, block.count, block.weights)
        self.count += block.count
        self._sums += block.sums

    def _end(self) -> Vector | None:
        """Set the mean at the end of a group, and return its distance from the shift (d,); None without rows."""
        sums, shift, self._sums, self._shift = self._sums, self._shift, None, None
        if sums is None or shift is None or not self.count:
            return None
        offset: Vector = sums / self.weight
        self.mean = shift + offset
        return offset

    def merge(self, other: Self) -> Self:
        if not other.count or not self.count:
            return self if self.count else other
        # S = S_a + S_b + (w_a w_b / w) e e' with e = mean_b - mean_a (Chan, Golub & LeVeque 1983, eq. 2.1).
        weight, e = self.weight + other.weight, other.mean - self.mean
        both = replace(
            self,
            count=self.count + other.count,
            mean=self.mean + e * (other.weight / weight),
            weight_sums=add_weights(self.count, self.weight_sums, other.count, other.weight_sums),
        )
        both._add(other, self.weight * (other.weight / weight), e)
        return both

    @abstractmethod
    def _add(self, other: Self, factor: float, e: Vector) -> None:
        """Replace this copy's scatter by the sum of it, of another state's, and of ``factor e e'``."""


@dataclass
class Moments(CentredRows):
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
    n_features, count, mean, weight_sums
        As of :class:`CentredRows`.
    packed : ndarray of shape (packed_size(d),), float64
        The scatter's upper triangle as :func:`bigpca.arrays.packed_strips` lays it out.
    lost : ndarray of shape (d,), or None
        Bound of the error of the diagonal of the scatter by the groups that were centred when they closed; None if no
        row was sparse.
    precision : float
        eps of the coarsest product of dense rows in the scatter; 0 before the first. Sparse rows have float64's.
    """

    tag: ClassVar[str] = "Moments"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr", "factors", "weights"})
    lives_there: ClassVar[bool] = True

    packed: Vector = kept("n_features", square=True)
    lost: Vector | None = kept(default=None)
    precision: float = kept(default=0.0)
    _gram: csr.SparseGram | None = field(default=None, repr=False)
    _products: Gram | None = field(default=None, repr=False)

    @property
    def scatter(self) -> Matrix:
        """The scatter's upper triangle as a new (d, d) matrix."""
        return unpack_upper(self.packed, self.n_features)

    @property
    def squares(self) -> Vector:
        """``sum_t w_t (x_t - mean)^2`` (d,), the diagonal of the scatter."""
        return packed_diagonal(self.packed, self.n_features)

    def update(self, block: Block) -> None:
        if self._shift is None:  # the first block of a group
            self.lost = None if block.form.shifts else np.zeros(self.n_features)
            self._gram = block.form.gram(block.values)
        if self._gram is None:
            for strip in block.strips(self._shift):
                self._begin(strip)
                self._add_products(strip)
            return
        self._begin(block)
        self._gram.add(block.values, block.weights)

    def _add_products(self, block: Block) -> None:
        if self._products is None:
            self._products = self.device.gram(self.n_features)
        self.packed = self._products.add(self.packed, block.values, block.weights)
        self.precision = max(self.precision, self._products.precision)

    def close(self) -> None:
        self.packed, self._products = self._products.close(self.packed) if self._products else self.packed, None
        offset = self._end()
        if offset is None:
            return
        if self._gram is not None:
            # Sparse rows are centred in the same way, about the values of their own sums; it is 0 of constant columns.
            offset = self._gram.sums / self.weight
            add_packed(self.packed, self._gram.product)
            self.lost = lost_squares(np.diagonal(self._gram.product), self.count)
            self.mean = self._gram.about + offset
            self._gram = None
        # With o = mean - shift:  sum_t w_t (x_t - mean)(x_t - mean)' = sum_t w_t (x_t - shift)(x_t - shift)' - w o o'.
        self.packed = add_outer_packed(self.packed, -self.weight, offset)

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
        return centring_error(self.lost, self.squares)

    def times(self, M: Matrix) -> Moments:
        """Return the moments of rows ``x'M``, for M of shape (d, w)."""
        # The scatter of M'x is M'S M: moments of any linear map of the rows need no read.
        packed = np.zeros(packed_size(M.shape[1]))
        add_packed(packed, M.T @ unpack(self.packed, self.n_features) @ M)
        return replace(self, n_features=M.shape[1], mean=self.mean @ M, packed=packed, lost=None)

    def rescaled(self, shift: Vector, factors: Vector) -> Moments:
        """Return the moments of rows ``shift + factors x``, for vectors (d,) or (1,)."""
        # A shift moves the mean only: the scatter, which is about it, is multiplied by f_i f_j.
        packed = np.zeros_like(self.packed)
        add_packed(packed, self.scatter * factors * factors[:, None])
        lost = None if self.lost is None else self.lost * factors**2
        return replace(self, mean=shift + factors * self.mean, packed=packed, lost=lost)

    def _add(self, other: Moments, factor: float, e: Vector) -> None:
        self.packed = sum_packed(self.packed, other.packed, factor, e)  # a new array: both states stay as they are
        self.lost, self.precision = add_known(self.lost, other.lost), max(self.precision, other.precision)

    def cost(self, rows: BlockForm) -> Work:
        return csr.gram_work(rows)

    def device_bytes(self, rows: BlockForm) -> int:
        # A block, and its columns scaled; the sum, and the product, which is converted to float64 and added to it.
        return 2 * rows.rows * rows.columns * rows.itemsize + gram_bytes(self.n_features, rows.rows, rows.itemsize)


@dataclass
class ColumnMoments(CentredRows):
    """Count, mean and sum of squared deviations of every column: :class:`Moments` without the cross products.

    Attributes
    ----------
    n_features, count, mean, weight_sums
        As of :class:`CentredRows`.
    squares : ndarray of shape (d,), float64; ``sum_t w_t (x_t - mean)^2``
    """

    tag: ClassVar[str] = "ColumnMoments"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights"})  # sparse rows in strips, about a shift

    lives_there: ClassVar[bool] = True

    squares: Vector = kept("n_features")

    def update(self, block: Block) -> None:
        block, self.squares = block.form.add_squares(block, self._shift, self.squares)
        self._begin(block)

    def close(self) -> None:
        offset = self._end()
        if offset is not None:
            # sum w (x - mean)^2 = sum w (x - shift)^2 - w o^2, with the small o = mean - shift, as in Moments.
            self.squares -= self.weight * offset**2

    def _add(self, other: ColumnMoments, factor: float, e: Vector) -> None:
        self.squares = self.squares + other.squares + e**2 * factor

    def cost(self, rows: BlockForm) -> Work:
        return Work(0, 2.0 * self.n_features)

    def device_bytes(self, rows: BlockForm) -> int:
        return 3 * rows.rows * rows.columns * rows.itemsize + 8 * rows.columns


@dataclass
class StoredColumnMoments(ColumnMoments):
    """:class:`ColumnMoments` that takes sparse rows as they are.

    Their sums are about zero or, for columns that nearly all rows store, about the value that is usual there, unless
    the read is about zero.

    Attributes
    ----------
    lost : ndarray of shape (d,), or None
        As of :class:`Moments`.
    """

    tag: ClassVar[str] = "StoredColumnMoments"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr", "weights"})

    lost: Vector | None = kept(default=None)

    def update(self, block: Block) -> None:
        self.lost = None if block.form.shifts else np.zeros(self.n_features)
        super().update(block)

    def close(self) -> None:
        if self.lost is not None:
            self.lost = lost_squares(self.squares, self.count)
        super().close()

    def _add(self, other: ColumnMoments, factor: float, e: Vector) -> None:
        super()._add(other, factor, e)
        self.lost = add_known(self.lost, cast("StoredColumnMoments", other).lost)

    def cost(self, rows: BlockForm) -> Work:
        return Work(csr.tile_bytes(rows), 2.0 * rows.values)


def labelled_tiles(
    values: Array, codes: NDArray[np.int32], weights: Vector | None, step: int
) -> Iterator[tuple[Array, NDArray[np.int32], Vector | None]]:
    """Yield the rows with a label, their codes and weights, of ``step`` rows at a time; code -1 marks rows without."""
    for i in range(0, len(codes), step):
        own, rows = codes[i : i + step], values[i : i + step]
        labelled = np.flatnonzero(own >= 0)
        if len(labelled):
            # No copy where all rows are labelled, the usual case.
            rows = rows if len(labelled) == len(own) else rows[labelled]
            yield rows, own[labelled], None if weights is None else weights[i : i + step][labelled]


@dataclass
class ClassMoments(Weighted, Accumulator):
    """Count and mean of every class, and the scatter of all rows about the means of their classes.

    ``within = sum_t (x_t - mean_{y_t})(x_t - mean_{y_t})'``, accumulated directly: each class has a fixed shift in a
    group, the rows of a block are multiplied once for any number of classes, and means are corrected when the group
    closes. The difference of total and between-class scatter would cancel (a relative error of 0.39 in float32 for
    classes 1e3 apart). Rows with code -1 have no label and are omitted. With one class these are the moments of all
    rows.

    Parameters
    ----------
    n_features : int
    n_classes : int
    codes : ndarray of shape (rows,), int32, or ColumnRows
        Classes of rows ``first_row : first_row + rows``.
    whole : bool
        Whether the (d, d) scatter is computed, or only its diagonal.

    Attributes
    ----------
    counts : ndarray of shape (c,), float64
        Rows of each class, or sums of their weights.
    means : ndarray of shape (c, d), float64; zeros for classes without rows
    within : ndarray, float64
        The scatter's upper triangle as :func:`bigpca.arrays.packed_strips` lays it out, or its diagonal (d,).
    count : int
        Number of labelled rows.
    weight_sums : (float, float) or None
        Of the labelled rows, as of :class:`bigpca.passes.accumulators.moments.Moments`.
    """

    tag: ClassVar[str] = "ClassMoments"
    by_row: ClassVar[str | None] = "codes"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights"})
    lives_there: ClassVar[bool] = True

    n_features: int
    n_classes: int
    codes: Codes
    whole: bool = True
    first_row: int = 0
    counts: Vector = kept("n_classes", here=True)
    means: Matrix = kept("n_classes", "n_features")
    within: Vector = kept("n_features", square="whole")
    count: int = kept(default=0)
    weight_sums: WeightSums = kept(default=None)
    _shifts: Array | None = field(default=None, repr=False)
    _group_shift: Vector | None = field(default=None, repr=False)
    _products: Gram | None = field(default=None, repr=False)
    _rows: Array | None = field(default=None, repr=False)

    @property
    def mean(self) -> Vector:
        """Mean of all labelled rows (d,); if all class means are equal, the same bits as theirs."""
        if not self.count:
            return np.zeros(self.n_features)
        # About the mean of a class: a weighted mean of equal numbers need not be that number in floating point.
        origin = self.means[np.argmax(self.counts > 0)]
        mean: Vector = origin + self.counts @ (self.means - origin) / self.counts.sum()
        return mean

    @property
    def scatter(self) -> Matrix:
        """The within-class scatter's upper triangle as a new (d, d) matrix."""
        return unpack_upper(self.within, self.n_features)

    def update(self, block: Block) -> None:
        codes = self.codes[block.rows - self.first_row]
        self._group_shift = self.put(block.shift) if self._group_shift is None else self._group_shift
        for rows, own, weights in labelled_tiles(block.values, codes, block.weights, self._tile_rows):
            self._add(rows, own, weights)

    def _add(self, values: Array, codes: NDArray[np.int32], weights: Vector | None) -> None:
        self.weight_sums = add_weights(self.count, self.weight_sums, len(codes), weights)
        self.count += len(codes)
        device, xp, V, dtype = self.device, self.xp, self.put(values), values.dtype
        counts = np.bincount(codes, weights, minlength=self.n_classes)
        one_hot = device.one_hot(codes, self.n_classes, weights, dtype)
        shifts = device.zeros((self.n_classes, self.n_features)) if self._shifts is None else self._shifts
        self._shifts = shifts = device.floats(shifts, dtype)
        # 1. The shift of a class is the mean of its first rows, in their precision.
        if (unseen := (counts > 0) & (self.counts == 0)).any():
            means = device.product(one_hot, V) / self.put(np.maximum(counts, counts == 0).astype(dtype))[:, None]
            self._shifts = shifts = xp.where(self.put(unseen)[:, None], device.floats(means, dtype), shifts)
        # 2. Rows less the shifts of their classes. Until the group closes, means are sums about these.
        self._rows = rows = device.less(V, shifts, codes, self._rows)
        self.counts += counts
        self.means += device.product(one_hot, rows)
        # sum_t w_t y_t y_t' is the product of rows sqrt(w_t) y_t: weights need no product of their own.
        if weights is not None:  # after the shift
            rows = rows * self.put(np.sqrt(weights).astype(dtype))[:, None]
        if not self.whole:
            self.within += device.form.column_squares(rows)
            return
        if self._products is None:
            self._products = device.gram(self.n_features)
        self.within = self._products.close(self._products.add(self.within, rows))

    def close(self) -> None:
        if self._shifts is None or self._group_shift is None:
            super().close()
            return
        # For each class, about its shift s_c:  S_c = sum_t (x_t - s_c)(x_t - s_c)' - n_c o_c o_c', o_c = mean_c - s_c.
        xp, put, seen = self.xp, self.put, self.counts > 0
        offsets = self.means / put(np.where(seen, self.counts, 1.0))[:, None]
        own = put(np.flatnonzero(seen))
        self._correct(xp.take(offsets, own, axis=0) * put(np.sqrt(self.counts[seen]))[:, None], -1.0)
        means = self._group_shift + self.device.floats(self._shifts, np.dtype(np.float64)) + offsets
        self.means = xp.where(put(seen)[:, None], means, xp.zeros_like(means))
        super().close()

    def _correct(self, rows: Matrix, sign: float) -> None:
        """Add ``sign rows' rows`` to the scatter, in place."""
        self.within = self.device.plus_squares(self.within, rows, sign, whole=self.whole)

    def merge(self, other: ClassMoments) -> ClassMoments:
        # For each class, S = S_a + S_b + (n_a n_b / n) e e' with e = mean_b - mean_a, as in Moments.merge.
        counts = self.counts + other.counts
        share = np.divide(other.counts, counts, out=np.zeros_like(counts), where=counts > 0)
        difference = other.means - self.means
        means = self.means + difference * self.put(share)[:, None]
        both = np.flatnonzero((self.counts > 0) & (other.counts > 0))
        merged = replace(
            self,
            codes=self.codes[:0],
            counts=counts,
            means=means,
            within=sum_of(self.within, other.within),
            count=self.count + other.count,
            weight_sums=add_weights(self.count, self.weight_sums, other.count, other.weight_sums),
        )
        # Chan's term of each class that both have: its rows were centred about two means.
        moved = self.xp.take(difference, self.put(both), axis=0)
        merged._correct(moved * self.put(np.sqrt(self.counts[both] * share[both]))[:, None], 1.0)
        return merged

    def with_classes(self, positions: Integers, n_classes: int) -> ClassMoments:
        """Return the state with class j at ``positions[j]`` of ``n_classes``; the other classes are empty."""
        # An empty class changes no sum: the scatter within classes stays as it is.
        counts, means = np.zeros(n_classes), np.zeros((n_classes, self.n_features))
        counts[positions], means[positions] = self.counts, self.means
        return replace(self, n_classes=n_classes, counts=counts, means=means)

    def cost(self, rows: BlockForm) -> Work:
        d, c = self.n_features, self.n_classes
        squares = 16 * d * d if self.whole else 0
        scratch = squares + 2 * 8 * d * min(rows.rows, len(self.codes), self._tile_rows) + 3 * 8 * c * d
        return Work(scratch, float(d * ((d if self.whole else 2) + 4)))

    def device_bytes(self, rows: BlockForm) -> float:
        d, c = self.n_features, self.n_classes
        if c > max(MOST_CLASSES_THERE, d):
            return inf
        b, copies = min(rows.rows, self._tile_rows), 2 if rows.itemsize == 8 else 5
        sums = gram_bytes(d, b, rows.itemsize) if self.whole else 0
        return (rows.rows * d + copies * b * (d + c)) * rows.itemsize + sums + 32 * c * d

    @property
    def _tile_rows(self) -> int:
        d = max(1, self.n_features)
        return self.device.tile_rows(max(256, TILE_BYTES // (4 * d)), 4 * max(d, self.n_classes), SLAB_ROWS)


@dataclass
class Hits(Accumulator):
    """How many rows, each a number, are the code of their label (folded about a shift of zero).

    Attributes
    ----------
    codes : ndarray of shape (rows,), int32, or ColumnRows
        Of rows ``first_row : first_row + rows``.
    weight, hits : float
        Number of all rows, and of those; or sums of their weights.
    """

    tag: ClassVar[str] = "Hits"
    by_row: ClassVar[str | None] = "codes"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights"})

    codes: Codes
    first_row: int = 0
    weight: float = kept(default=0.0)
    hits: float = kept(default=0.0)

    def update(self, block: Block) -> None:
        weights = block.each
        self.weight += float(weights.sum())
        self.hits += float(weights[block.values[:, 0] == self.codes[block.rows - self.first_row]].sum())

    def cost(self, rows: BlockForm) -> Work:
        return Work(21 * rows.rows, 2.0)


@dataclass
class ProfileMoments(Accumulator):
    """Moments of rows of amounts divided by their sums, which are their weights; rows of zeros have none.

    Attributes
    ----------
    n_features : int
    moments : Moments
        Of the profiles: the mean is the share of each column in all amounts, and ``moments.weight`` their sum.
    """

    tag: ClassVar[str] = "ProfileMoments"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr"})

    n_features: int
    moments: Moments = field(metadata=KEPT)
    _shift: Vector | None = field(default=None, repr=False)

    @classmethod
    def of(cls, d: int) -> ProfileMoments:
        """Return a template."""
        return cls(d, Moments(d))

    @property
    def count(self) -> int:
        """Number of rows that are not zero."""
        return self.moments.count

    def update(self, block: Block) -> None:
        if not block.count:
            return
        device, rows = block.device, block.values.astype(np.float64, copy=False)
        if isinstance(device, Device):  # rows that are rejected are named here
            there = device.put(rows) + device.put(block.origin)
            least, totals = device.xp.min(there, axis=1), device.xp.sum(there, axis=1)
            least, masses = device.fetch(device.xp.stack([least, totals]))
            if least.min() < 0:
                PROFILE.apply_at(device.fetch(there), block.rows, "X")
            profiles = device.rows(there / device.xp.where(totals > 0, totals, 1.0)[:, None])
        else:
            rows = block.form.affine(rows, -block.shift, None)  # at least 0 where x is
            profiles, masses = PROFILE.apply_at(rows, block.rows, "X"), block.form.along_rows(rows, np.add, np.float64)
        # Correspondence analysis: a row of amounts is the profile x / sum(x), with the weight sum(x).
        own = np.flatnonzero(masses)
        profiles, numbers = profiles[own] if len(own) < len(masses) else profiles, block.rows[own]
        if not len(own):
            return
        part = Block.about(profiles, numbers, self._shift, device)
        self._shift = part.origin
        self.moments.update(part.weighted(masses[own]))

    def cost(self, rows: BlockForm) -> Work:
        work = self.moments.cost(rows)
        return replace(work, bytes=work.bytes + int(32 * rows.rows * (rows.values + 1)))

    def device_bytes(self, rows: BlockForm) -> int:
        return 24 * rows.rows * (rows.columns + 1) + self.moments.device_bytes(replace(rows, itemsize=8))
