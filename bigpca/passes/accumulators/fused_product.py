"""The fused multiplication ``X'(X W)`` by a thin W (d, l), in one read of X instead of two.

One state serves the block Krylov iteration (W is an orthonormal block), the one-pass sketches (W is a sketch, and
``X'Z`` comes with ``Z = X W``) and the probes of the certificates (more columns of W).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca import csr, csr_gram
from bigpca.arrays import Array
from bigpca.costs import BlockForm, Work
from bigpca.passes.accumulators.base import Accumulator, Arrays, WeightSums, add_weights, broadcast, stored_weights
from bigpca.passes.accumulators.centring import add_known, centring_error, lost_squares
from bigpca.passes.accumulators.factors import Factor, _check_one_factor
from bigpca.passes.accumulators.products import column_squares
from bigpca.passes.reading.blocks import Block, within_range
from bigpca.passes.reading.layout import largest_slab

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
FLUSH_ROWS = 8192  # rows summed in the blocks' precision before the sum is added in float64
NOTED_SECONDS = csr.COLUMN_SECONDS + 2e-9  # of one core, to sum the squares of sparse columns and to find constant ones


@dataclass
class FusedProduct(Accumulator):
    """``X'(X W)`` about a shift, with the sums that centre it: ``product = sum_t (x_t - shift)(x_t - shift)'W``.

    Blocks of one group share a shift. States about one shift are added; a state about another shift is moved first,
    which is exact, because ``(x - s + e)(x - s + e)'W`` expands into sums that the state holds. If all groups have the
    same shift, W is not needed after the fold.

    Attributes
    ----------
    n_features : int
    factor : Factor or None
        W; None in closed states and in templates being sent, if W is a broadcast value.
    n_columns : int
        l, number of columns of W.
    squared : bool
        Whether column sums of squares are computed (for trace and scale).
    by_driver : bool
        Whether W is a broadcast value.
    count : int
    shift : ndarray of shape (d,), float64, or None before the first row
    sums : ndarray of shape (d,); ``sum_t (x_t - shift)``
    weights : ndarray of shape (l,); ``sum_t W'(x_t - shift)``
    product : ndarray of shape (d, l), float64, in Fortran order
    squares : ndarray of shape (d,) or (0,); ``sum_t (x_t - shift)^2``
    precision : float
        eps of the coarsest precision in which a block was multiplied; 0 before the first row.
    weight_sums : (float, float) or None
        ``sum_t w_t`` and ``sum_t w_t^2`` of weighted rows, over which all sums are weighted; None without weights.
    lost : ndarray of shape (d,) or (0,), or None
        Bound of the error of the squares of sparse rows, whose sums are about zero and are centred afterwards; None if
        no row was sparse.
    constants : ndarray of shape (d,) or (0,), or None
        Of sparse rows, the value of each column that is the same in all rows, whose deviations are 0 whatever the
        rounding of sums; NaN for other columns.
    """

    tag: ClassVar[str] = "FusedProduct"
    shared_field: ClassVar[str | None] = "factor"
    needs_largest: ClassVar[bool] = True
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr", "weights"})

    n_features: int
    factor: Factor | None
    n_columns: int
    squared: bool = True
    by_driver: bool = False
    count: int = 0
    shift: Vector | None = None
    sums: Vector = field(default_factory=lambda: np.zeros(0))
    weights: Vector = field(default_factory=lambda: np.zeros(0))
    product: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    squares: Vector = field(default_factory=lambda: np.zeros(0))
    precision: float = 0.0
    weight_sums: WeightSums = None
    lost: Vector | None = None
    constants: Vector | None = None
    _open: Array | None = field(default=None, repr=False)
    _open_rows: int = field(default=0, repr=False)
    _centre: Vector | None = field(default=None, repr=False)
    _projected: Vector | None = field(default=None, repr=False)
    _counts: NDArray[np.int64] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, n_features: int, factor: Factor, *, squared: bool = True, by_driver: bool = False) -> FusedProduct:
        """Return a template; ``by_driver`` if W is too large to be sent with every task."""
        return cls(n_features, factor, factor.columns, squared, by_driver)

    @property
    def shared(self) -> object:
        return self.factor if self.by_driver else None

    def fresh(self, start: int, stop: int) -> FusedProduct:
        d, width = self.n_features, self.n_columns
        squares = np.zeros(d if self.squared else 0)
        return replace(
            self, count=0, sums=np.zeros(d), weights=np.zeros(width), product=_zeros(d, width), squares=squares
        )

    def update(self, block: Block) -> None:
        values = within_range(block.values, block.largest)
        self.shift = block.shift
        Z = broadcast(self.factor).multiply(values, block.arithmetic)  # (b, l)
        if isinstance(values, csr_array) and block.centre is not None:
            self._note_sparse(values)
            Z -= self._about(block.centre).astype(Z.dtype)
        if self._open is None or self._open.dtype != values.dtype or self._open_rows + block.count > FLUSH_ROWS:
            self._flush()
        if self._open is None:
            self._open = block.arithmetic.zeros(values, self.n_columns)
        if block.weights is not None:
            Z = Z * block.weights.astype(Z.dtype)[:, None]
        block.arithmetic.add_product(values, Z, self._open)
        self._open_rows += block.count
        self.weight_sums = add_weights(self.count, self.weight_sums, block.count, block.weights)
        self.count += block.count
        self.precision = max(self.precision, float(np.finfo(values.dtype).eps))
        self.sums += block.sums
        self.weights += Z.sum(axis=0, dtype=np.float64)
        if self.squared:
            self.squares += column_squares(values, block.weights)

    @property
    def weight(self) -> float:
        """``sum_t w_t``; the count of rows without weights."""
        return float(self.count) if self.weight_sums is None else self.weight_sums[0]

    def _note_sparse(self, values: csr_array) -> None:
        """Follow which columns are constant, if their squares are asked for."""
        if self.constants is None or self._counts is None:
            self.constants = np.zeros(self.n_features if self.squared else 0)
            self._counts = np.zeros(len(self.constants), np.int64)
        if self.squared:
            csr_gram.note_constants(values, self.constants, self._counts)

    def _about(self, centre: Vector) -> Vector:
        """Return ``W' centre`` (l,): of all sparse rows of a group the same, which :meth:`close` adds again."""
        if self._centre is None or self._projected is None:
            self._centre, self._projected = centre, broadcast(self.factor).multiply(centre[None, :])[0]
        return self._projected

    def _flush(self) -> None:
        if self._open is not None:
            self.product += self._open
        self._open, self._open_rows = None, 0

    def close(self) -> None:
        self._flush()
        if self._projected is not None:
            # sum_t x_t x_t'W = sum_t x_t (x_t - c)'W + (sum_t x_t) c'W, in float64
            self.product += np.multiply.outer(self._projected, self.sums).T
            self.weights += self.weight * self._projected
        if self.constants is not None and self._counts is not None:
            zero = (self._counts == 0) | (self.constants == 0)
            self.constants = np.where(zero, 0.0, np.where(self._counts == self.count, self.constants, np.nan))
            self.lost = lost_squares(self.squares, 0)  # compensated sums, of which each term is exact
        self._centre = self._projected = self._counts = None
        if self.by_driver:
            self.factor = None

    def merge(self, other: FusedProduct) -> FusedProduct:
        if not other.count or not self.count:
            return self if self.count else other
        if self.factor is not None and other.factor is not None and self.factor is not other.factor:
            _check_one_factor(self.factor.describe(), other.factor.describe())
        if other.shift is not self.shift and not np.array_equal(other.shift, self.shift):  # type: ignore[arg-type]
            other = other.about(self.shift, self.product)  # type: ignore[arg-type]
            product = other.product
        else:
            product = self.product + other.product
        return replace(
            self,
            count=self.count + other.count,
            sums=self.sums + other.sums,
            weights=self.weights + other.weights,
            product=product,
            squares=self.squares + other.squares,
            precision=max(self.precision, other.precision),
            weight_sums=add_weights(self.count, self.weight_sums, other.count, other.weight_sums),
            lost=add_known(self.lost, other.lost),
            constants=_alike(self.constants, other.constants),
        )

    def about(self, shift: Vector, added: Matrix | None = None) -> FusedProduct:
        """Return this state about another shift, with ``added`` (d, l) added to its product in one new array.

        Raises
        ------
        ValueError
            If W was a broadcast value, which is dropped: such states must be folded about one shift.
        """
        if self.factor is None:
            raise ValueError(
                "states without their factor W must share one shift to be merged; fold with a given shift."
            )
        e = self.shift - shift  # type: ignore[operator]
        # e'W is computed in float64 whatever the dtype of the rows, because e is as large as the distance between
        # groups, and its rounding in float32 would remain in the product.
        projected = self.factor.multiply(e[None, :])[0]
        # With u = x - s:  sum_t (u_t + e)(u_t + e)'W = sum_t u_t u_t'W + (sum_t u_t + n e) e'W + e sum_t u_t'W.
        product = (np.column_stack([projected, self.weights]) @ np.vstack([self.sums + self.weight * e, e])).T
        product += self.product
        if added is not None:
            product += added
        squares = self.squares + 2 * e * self.sums + self.weight * e**2 if self.squared else self.squares
        return replace(
            self, shift=shift, sums=self.sums + self.weight * e, weights=self.weights + self.weight * projected,
            product=product, squares=squares,
        )  # fmt: skip

    @property
    def offset(self) -> Vector:
        """Mean of the rows less the shift (d,)."""
        return self.sums / (self.weight or 1.0)

    @property
    def mean(self) -> Vector:
        """Mean of the rows (d,)."""
        mean = self.offset if self.shift is None else self.shift + self.offset
        return (
            mean
            if self.constants is None or not len(self.constants)
            else np.where(self._constant, self.constants, mean)
        )

    @property
    def _constant(self) -> NDArray[np.bool_]:
        """Which columns (d,) are constant; none if all rows were dense, or their squares were not asked for."""
        if self.constants is None or not len(self.constants):
            return np.zeros(self.n_features, bool)
        constant: NDArray[np.bool_] = ~np.isnan(self.constants)
        return constant

    @property
    def centring_error(self) -> float | None:
        """Bound of the relative error of any variance by the centring of sparse rows; None if no row was sparse.

        Raises
        ------
        ValueError
            Beyond 1e-6.
        """
        if self.lost is None or not len(self.lost):
            return None
        return centring_error(np.where(self._constant, 0, self.lost), self.centred_squares())

    def centred(self) -> Matrix:
        """Return ``Xc'Xc W`` (d, l), centred exactly at the mean."""
        if not self.count:
            return self.product.copy()
        # sum_t u_t u_t'W - n m m'W with u = x - s and m = sum_t u_t / n
        centred: Matrix = self.product - np.multiply.outer(self.weights / self.weight, self.sums).T
        centred[self._constant] = 0
        return centred

    def projected_mean(self) -> Vector:
        """Return ``W' mean`` (l,), for sums about zero; requires W, like :meth:`about`."""
        projected: Vector = broadcast(self.factor).multiply(self.mean[None, :])[0]
        return projected

    def centred_squares(self) -> Vector:
        """Return the sums of squared deviations (d,) from the mean."""
        squares = np.maximum(self.squares - self.sums**2 / (self.weight or 1.0), 0)
        return np.where(self._constant, 0, squares) if self.squared else squares

    @property
    def state_bytes(self) -> int:
        return 8 * (self.n_features * (self.n_columns + 3) + self.n_columns)

    def cost(self, rows: BlockForm) -> Work:
        d, width, copied = self.n_features, self.n_columns, rows.rows  # of Z, without its part of the centre
        if not rows.sparse:
            rows, copied = replace(rows, rows=largest_slab(d)), 0
        held = 8 * (d + copied) * width + csr.product_bytes(rows, width)
        own = Work() if self.factor is None else self.factor.cost(rows)
        noted = NOTED_SECONDS * rows.values if rows.sparse and self.squared else 0.0
        return own + Work(held, loops=noted) + csr.add_product_work(rows, width)

    def to_arrays(self) -> Arrays:
        shift = np.zeros(0) if self.shift is None else self.shift
        weights = {} if self.weight_sums is None else {"weight_sums": np.array(self.weight_sums)}
        sparse = {"lost": self.lost, "constants": self.constants}
        return {
            "count": np.array(self.count), "shift": shift, "sums": self.sums, "weights": self.weights,
            "product": self.product, "squares": self.squares, "precision": np.array(self.precision), **weights,
            **{name: array for name, array in sparse.items() if array is not None},
        }  # fmt: skip

    def with_arrays(self, arrays: Mapping[str, Array]) -> FusedProduct:
        shift = arrays["shift"] if arrays["shift"].size else None
        return replace(
            self, count=int(arrays["count"]), shift=shift, sums=arrays["sums"], weights=arrays["weights"],
            product=arrays["product"], squares=arrays["squares"], precision=float(arrays["precision"]),
            weight_sums=stored_weights(arrays, "weight_sums"), lost=arrays.get("lost"),
            constants=arrays.get("constants"),
        )  # fmt: skip

    def identity(self) -> dict[str, object]:
        factor = {} if self.factor is None else self.factor.describe()
        return {"squared": self.squared, **factor}


def _alike(a: Vector | None, b: Vector | None) -> Vector | None:
    """Return the values that are constant in both of two sets of rows; none if one of them is dense."""
    if a is None or b is None:
        return None if a is b else np.full_like(a if b is None else b, np.nan)
    return np.where(a == b, a, np.nan)


def _zeros(d: int, width: int) -> Array:
    """Return (d, width) zeros in Fortran order, in which ``X'Z`` is a fifth faster for widths near 100."""
    return np.zeros((width, d)).T
