"""What one read of X adds up: small states that fold blocks, merge, and travel as named arrays.

An accumulator is a template until :meth:`Accumulator.fresh` makes an empty copy for the rows of one group. The task that
owns a copy may update it in place; ``merge`` never changes what it merges, because Dask may need its inputs again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import symmetric_rank_update
from bigpca.passes.reading.blocks import SLAB_ROWS, Block, cached_rows
from bigpca.triangles import add_outer_packed, add_packed, packed_size, unpack_upper

Arrays = dict[str, NDArray[Any]]
LEAST_SQUARE, MOST_SQUARE = 1e-28, 1e38  # between which float32 holds sums of squares


@dataclass
class Accumulator(ABC):
    """One state folded over row blocks and merged by a fixed tree.

    The life of a state, in this order; whoever folds keeps to it, and ``tests/passes/accumulators/test_accumulators.py`` walks every
    accumulator through it::

        template                  made by the caller: sizes and parameters, no rows
        for_rows(start, stop)     in the driver: only what the rows of one group need
        without_shared()          travels to the task without the broadcast value, which every group needs
        with_shared(value)        in the task: has the broadcast value again
        fresh(start, stop)        an empty state for the group; ``for_rows`` has been applied
        update(block) ...         in place, in order of rows, all blocks about one shift
        close()                   once, in place, at the end of the group; drops the broadcast value
        merge(other) ...          any grouping of closed states; changes neither
        to_arrays()               into a checkpoint, and back by ``template.bare().with_arrays(arrays)``

    Attributes
    ----------
    tag : str
        Names the state in checkpoints and fingerprints: it never changes, whatever the class is called.
    shared_field : str or None
        The field that holds the broadcast value: a parameter that every group needs to fold, too large to travel with each
        task. It is None in states that travel and in closed ones.
    needs_largest : bool
        Whether ``update`` asks for the largest magnitude in its block.
    """

    tag: ClassVar[str]
    shared_field: ClassVar[str | None] = None
    needs_largest: ClassVar[bool] = False

    @abstractmethod
    def fresh(self, start: int, stop: int) -> Self:
        """Return an empty state for rows ``start:stop``."""

    @abstractmethod
    def update(self, block: Block) -> None:
        """Add the rows of one block, in place. All blocks of one group have the same shift."""

    def close(self) -> None:  # noqa: B027  (most states need no closing)
        """Correct the state once at the end of a group, in place."""

    def for_rows(self, start: int, stop: int) -> Self:
        """Return a template that carries only what rows ``start:stop`` need."""
        return self

    def bare(self) -> Self:
        """Return a template without the parameters that only folding needs."""
        return self.without_shared()

    @property
    def shared(self) -> Any:
        """The broadcast value, or None where there is none or it travels with the state."""
        return None if self.shared_field is None else getattr(self, self.shared_field)

    def without_shared(self) -> Self:
        """Return a template that travels without the broadcast value."""
        return self if self.shared is None else self.with_shared(None)

    def with_shared(self, value: Any) -> Self:
        """Return a template that has the broadcast value again."""
        return self if self.shared_field is None else replace(self, **{self.shared_field: value})

    @abstractmethod
    def merge(self, other: Self) -> Self:
        """Return the state of both row ranges; associative to rounding."""

    @property
    @abstractmethod
    def state_bytes(self) -> int:
        """Bytes of the closed state."""

    @property
    def product_bytes(self) -> int:
        """Bytes of the scratch space that ``update`` keeps while a group is folded."""
        return 0

    @property
    @abstractmethod
    def flops_per_row(self) -> int:
        """Floating-point operations that one row costs."""

    @abstractmethod
    def to_arrays(self) -> Arrays:
        """Return the closed state as named arrays."""

    @abstractmethod
    def with_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return a closed state made of ``arrays``, as :meth:`to_arrays` gave them."""

    def describe(self) -> dict[str, Any]:
        """Return what identifies the computation, for fingerprints: the tag, and :meth:`identity`."""
        return {"accumulator": self.tag, **self.identity()}

    def identity(self) -> dict[str, Any]:
        """Return the parameters that the state depends on, arrays as digests."""
        return {}


def column_squares(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of squares of every column in float64, a few rows at a time: no second slab in float64."""
    total = np.zeros(values.shape[1])
    step = cached_rows(8 * values.shape[1])
    for i in range(0, len(values), step):
        rows = values[i : i + step].astype(np.float64, copy=False)
        total += np.einsum("ij,ij->j", rows, rows)
    return total


def product_scratch(d: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a (d, d) array of zeros for :func:`symmetric_product` to write to, again and again."""
    return np.zeros((d, d), dtype)


def symmetric_product(rows: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
    """Return the upper triangle of ``rows' rows`` (d, d), in ``out`` where its precision holds it, else in float64.

    Squares of float32 overflow beyond 1e19 and vanish below 1e-19; such blocks are multiplied again in float64. Below the
    diagonal, ``out`` keeps what it had: zeros, when it was made by :func:`product_scratch`.
    """
    symmetric_rank_update(rows, out)
    if rows.dtype == np.float64 or _squares_held(np.diagonal(out), rows):
        return out
    wide = rows.astype(np.float64)
    product: NDArray[Any] = np.matmul(wide.T, wide)
    return product


def add_symmetric_product(rows: NDArray[Any], out: NDArray[Any]) -> bool:
    """Add the upper triangle of ``rows' rows`` to ``out`` (d, d) in its precision, where that holds every square of it.

    Returns
    -------
    bool
        False where it does not; ``out`` is then as it was.
    """
    if rows.dtype != np.float64:
        squares = np.einsum("ij,ij->j", rows, rows)
        if not (_squares_held(squares, rows) and (np.diagonal(out) + squares < MOST_SQUARE).all()):
            return False
    symmetric_rank_update(rows, out, add=True)
    return True


def _squares_held(squares: NDArray[Any], rows: NDArray[Any]) -> bool:
    """Whether float32 sums of the columns' squares neither overflowed nor lost a value that is not zero."""
    small = np.flatnonzero(squares < LEAST_SQUARE)
    return bool(np.isfinite(squares).all()) and not (len(small) and rows[:, small].any())


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
