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

from bigpca.arrays import Array, DType
from bigpca.passes.accumulators.base import Accumulator, Arrays, WeightSums, add_weights, broadcast, stored_weights
from bigpca.passes.accumulators.factors import Factor, _check_one_factor
from bigpca.passes.accumulators.products import column_squares
from bigpca.passes.reading.blocks import Block, within_range
from bigpca.passes.reading.layout import MIB, MIN_SLAB_BYTES, SLAB_ROWS

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
FLUSH_ROWS = 8192  # rows summed in the blocks' precision before the sum is added in float64


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
    _open: Array | None = field(default=None, repr=False)
    _open_rows: int = field(default=0, repr=False)

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
        Z = broadcast(self.factor).multiply(values)  # (b, l)
        if self._open is None or self._open.dtype != values.dtype or self._open_rows + block.count > FLUSH_ROWS:
            self._flush(values.dtype)
        if block.weights is not None:
            Z = Z * block.weights.astype(Z.dtype)[:, None]
        block.arithmetic.add_product(values, Z, self._open)  # type: ignore[arg-type]
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

    def _flush(self, dtype: DType | None) -> None:
        if self._open is not None:
            self.product += self._open
        if dtype is None:
            self._open = None
        elif self._open is not None and self._open.dtype == dtype:
            self._open.fill(0)
        else:
            self._open = _zeros(self.n_features, self.n_columns, dtype)
        self._open_rows = 0

    def close(self) -> None:
        self._flush(None)
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
    def mean(self) -> Vector:
        """Mean of the rows (d,)."""
        offset = self.sums / (self.weight or 1.0)
        return offset if self.shift is None else self.shift + offset

    def centred(self) -> Matrix:
        """Return ``Xc'Xc W`` (d, l), centred exactly at the mean."""
        if not self.count:
            return self.product.copy()
        # sum_t u_t u_t'W - n m m'W with u = x - s and m = sum_t u_t / n
        return self.product - np.multiply.outer(self.weights / self.weight, self.sums).T

    def projected_mean(self) -> Vector:
        """Return ``W' mean`` (l,), for sums about zero; requires W, like :meth:`about`."""
        projected: Vector = broadcast(self.factor).multiply(self.mean[None, :])[0]
        return projected

    def centred_squares(self) -> Vector:
        """Return the sums of squared deviations (d,) from the mean."""
        return np.maximum(self.squares - self.sums**2 / (self.weight or 1.0), 0)

    @property
    def state_bytes(self) -> int:
        return 8 * (self.n_features * (self.n_columns + 3) + self.n_columns)

    @property
    def product_bytes(self) -> int:
        d = max(1, self.n_features)
        rows = max(SLAB_ROWS, MIN_SLAB_BYTES // (4 * d))
        rows = min(rows, max(1, 64 * MIB // (4 * d)))
        multiply = self.factor.bytes_for(self.n_features, rows, 8) if self.factor is not None else 0
        return 8 * self.n_features * self.n_columns + multiply

    @property
    def flops_per_row(self) -> int:
        own = self.factor.flops_per_row(self.n_features) if self.factor is not None else 0
        return own + 2 * self.n_features * self.n_columns

    def to_arrays(self) -> Arrays:
        shift = np.zeros(0) if self.shift is None else self.shift
        weights = {} if self.weight_sums is None else {"weight_sums": np.array(self.weight_sums)}
        return {
            "count": np.array(self.count), "shift": shift, "sums": self.sums, "weights": self.weights,
            "product": self.product, "squares": self.squares, "precision": np.array(self.precision), **weights,
        }  # fmt: skip

    def with_arrays(self, arrays: Mapping[str, Array]) -> FusedProduct:
        shift = arrays["shift"] if arrays["shift"].size else None
        return replace(
            self, count=int(arrays["count"]), shift=shift, sums=arrays["sums"], weights=arrays["weights"],
            product=arrays["product"], squares=arrays["squares"], precision=float(arrays["precision"]),
            weight_sums=stored_weights(arrays, "weight_sums"),
        )  # fmt: skip

    def identity(self) -> dict[str, object]:
        factor = {} if self.factor is None else self.factor.describe()
        return {"squared": self.squared, **factor}


def _zeros(d: int, width: int, dtype: DType | type[np.float64] = np.float64) -> Array:
    """Return (d, width) zeros in Fortran order, in which ``X'Z`` is a fifth faster for widths near 100."""
    return np.zeros((width, d), dtype).T
