"""Products of all rows with thin matrices: ``X'(X W)`` in one read instead of two, and ``V'X``.

``FusedProduct`` serves the block Krylov iteration (W is an orthonormal block), the one-pass sketches (W is a sketch,
and ``X'Z`` comes with ``Z = X W``) and the probes of the certificates (more columns of W). A factor W is a given array,
or a sketch that is generated where it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Protocol, Self, overload

import numpy as np
from numpy.typing import NDArray

from bigpca import csr
from bigpca.arrays import Array, Integers, Matrix, Vector
from bigpca.costs import BlockForm, Work
from bigpca.csr import form_of
from bigpca.engine.layout import MIB, largest_slab
from bigpca.forms import Values
from bigpca.host import Thin
from bigpca.passes.accumulators.base import (
    Accumulator,
    Weighted,
    WeightSums,
    add_known,
    add_weights,
    broadcast,
    centring_error,
    kept,
    lost_squares,
)
from bigpca.passes.reading.blocks import Block
from bigpca.passes.reading.row_maps import identified
from bigpca.seeds import normals
from bigpca.sketches.base import Sketch

FLUSH_ROWS = 8192  # rows summed in the blocks' precision before the sum is added in float64
TILE_BYTES = 16 * MIB  # of rows of V in float64


class Factor(Protocol):
    """A thin matrix W (d, l) that rows are multiplied by; picklable."""

    @property
    def columns(self) -> int:
        """l."""

    def multiply(self, rows: Values) -> Array:
        """Return ``rows @ W`` (b, l) in the dtype of ``rows``, which are dense or CSR."""

    def cost(self, rows: BlockForm) -> Work:
        """Return what :meth:`multiply` needs in addition to its input, and its operations per row."""

    def matrix(self) -> Array:
        """Return W as an array."""


@dataclass(frozen=True)
class DenseFactor:
    """A block given as an array.

    Attributes
    ----------
    Q : ndarray of shape (d, l), float32 or float64
    """

    Q: Array

    @property
    def columns(self) -> int:
        return int(self.Q.shape[1])

    def multiply(self, rows: Values) -> Array:
        return form_of(rows).multiply(rows, self.Q)

    def cost(self, rows: BlockForm) -> Work:
        held = (rows.rows + rows.columns) * self.columns * rows.itemsize  # the product, and Q in the blocks' precision
        return Work(held, csr.product_flops(rows, self.columns))

    def matrix(self) -> Array:
        return self.Q


@dataclass(frozen=True)
class SketchFactor:
    """A sketch, and Gaussian probes next to it, generated where they are needed.

    Attributes
    ----------
    sketch : Sketch
    d : int
    probes : int
        Number of columns of independent standard normals after those of the sketch, for the certificates.
    seed : int
        Of the probes.
    inverse_scale : ndarray of shape (d,) or None
        Factors by which the columns of X are multiplied first: ``(x / scale)' W``.
    """

    sketch: Sketch
    d: int
    probes: int = 0
    seed: int = 0
    inverse_scale: Vector | None = None

    @property
    def columns(self) -> int:
        return self.sketch.width(self.d) + self.probes

    def multiply(self, rows: Values) -> Array:
        if self.inverse_scale is not None:
            rows = form_of(rows).mapped(rows, np.multiply, self.inverse_scale.astype(rows.dtype))
        sketched = self.sketch.apply(rows)
        if not self.probes:
            return sketched
        return np.hstack([sketched, form_of(rows).multiply(rows, probe_vectors(self.seed, self.d, self.probes))])

    def matrix(self) -> Array:
        W = self.sketch.matrix(self.d)
        W = np.hstack([W, probe_vectors(self.seed, self.d, self.probes)]) if self.probes else W
        return W if self.inverse_scale is None else self.inverse_scale[:, None] * W

    def cost(self, rows: BlockForm) -> Work:
        d, b, itemsize = rows.columns, rows.rows, rows.itemsize
        scaled = 0 if self.inverse_scale is None else csr.copy_bytes(rows)
        probing = ((d + b) * self.probes + b * self.columns) * itemsize if self.probes else 0
        return self.sketch.cost(rows) + Work(scaled + probing, csr.product_flops(rows, self.probes))


@lru_cache(maxsize=2)
def probe_vectors(seed: int, d: int, probes: int) -> NDArray[np.float32]:
    """Return the probes (d, r): standard normals that depend on the seed and their position only."""
    vectors: NDArray[np.float32] = normals(seed, "probes", 0, d, probes, np.float32)
    vectors.flags.writeable = False
    return vectors


@dataclass
class SparseCentre:
    """Of the sparse rows of a group, what is subtracted from each product, and the columns that may be constant.

    Attributes
    ----------
    projected : ndarray of shape (l,), W' centre
    constants : ndarray of shape (d,) or (0,); the stored value of each column, NaN where it varies
    counts : ndarray of shape (d,) or (0,); rows that store one
    """

    projected: Vector
    constants: Vector
    counts: Integers

    def constant_of(self, rows: int) -> Vector:
        """Return the value of each column that is the same in that many rows, all of them; NaN for the others."""
        zero = (self.counts == 0) | (self.constants == 0)
        return np.where(zero, 0.0, np.where(self.counts == rows, self.constants, np.nan))


@dataclass
class FusedProduct(Weighted, Accumulator):
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
    gaps: ClassVar[tuple[str, ...]] = ("constants",)
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr", "factors", "weights"})
    lives_there: ClassVar[bool] = True

    n_features: int
    factor: Factor | None
    n_columns: int
    squared: bool = True
    by_driver: bool = False
    count: int = kept(default=0)
    shift: Vector | None = kept("n_features", default=None)
    sums: Vector = kept("n_features")
    weights: Vector = kept("n_columns")
    # In Fortran order, in which X'Z is a fifth faster for widths near 100.
    product: Matrix = kept("n_features", "n_columns", order="F")
    squares: Vector = kept("_squared_columns")
    precision: float = kept(default=0.0)
    weight_sums: WeightSums = kept(default=None)
    lost: Vector | None = kept(default=None)
    constants: Vector | None = kept(default=None)
    _centre: SparseCentre | None = field(default=None, repr=False)
    _thin: Thin | None = field(default=None, repr=False)

    @classmethod
    def of(cls, n_features: int, factor: Factor, *, squared: bool = True, by_driver: bool = False) -> FusedProduct:
        """Return a template; ``by_driver`` if W is too large to be sent with every task."""
        return cls(n_features, factor, factor.columns, squared, by_driver)

    @property
    def shared(self) -> object:
        return self.factor if self.by_driver else None

    @property
    def _squared_columns(self) -> int:
        return self.n_features if self.squared else 0

    def update(self, block: Block) -> None:
        device, factor = self.device, broadcast(self.factor)
        self.shift = block.shift if self.shift is None else self.shift
        values = device.within_range(block.values, block.largest)
        if self._thin is None:
            self._thin = device.thin(factor, values)
        thin, Z = self._thin, self._thin.multiply(values)  # (b, l)
        centre = None if block.form.shifts else block.centre
        if centre is not None:
            # (x - c)'W = x'W - c'W: sparse rows are centred after the product, which keeps their zeros.
            # W' centre is the same of all sparse rows of a group; ``close`` adds it again.
            if self._centre is None:
                self.constants = np.zeros(self.n_features if self.squared else 0)
                projected = factor.multiply(centre[None, :])[0]
                self._centre = SparseCentre(projected, self.constants, np.zeros(len(self.constants), np.int64))
            if self.squared:
                block.form.note_constants(values, self._centre.constants, self._centre.counts)
            Z -= self._centre.projected.astype(Z.dtype)
        dtype = values.dtype
        if block.weights is not None:
            Z = Z * self.put(block.weights.astype(dtype))[:, None]
        self.product = thin.add(self.product, values, Z)
        # 1'Z, by which merging and centring move the product to another shift.
        self.weights += self.xp.sum(Z, axis=0, dtype=self.xp.float64)
        self.weight_sums = add_weights(self.count, self.weight_sums, block.count, block.weights)
        self.count += block.count
        self.precision = max(self.precision, float(np.finfo(dtype).eps))
        self.sums += block.sums
        if self.squared:
            self.squares += block.form.column_squares(values, block.weights, thin.scale)

    def close(self) -> None:
        factor = None if self.by_driver else self.factor
        if self._thin is not None:
            self.product, self.weights = self._thin.close(self.product, self.weights)
        if self._centre is not None:
            # sum_t x_t x_t'W = sum_t x_t (x_t - c)'W + (sum_t x_t) c'W, in float64
            self.product += np.multiply.outer(self._centre.projected, self.sums).T
            self.weights += self.weight * self._centre.projected
            self.constants = self._centre.constant_of(self.count)
            self.lost = lost_squares(self.squares, 0)  # compensated sums of exact terms
        super().close()
        self.factor = factor  # by which states about several shifts are moved to one

    def merge(self, other: FusedProduct) -> FusedProduct:
        if not other.count or not self.count:
            return self if self.count else other
        # Products by different blocks must never be added: a stale broadcast would do so.
        if self.factor is not None and other.factor is not None and self.factor is not other.factor:
            mine, theirs = identified(self.factor), identified(other.factor)
            if mine != theirs:
                raise ValueError(
                    f"products with {mine} and with {theirs} cannot be added, because these are different matrices W. "
                    f"Use the same sketch for all rows: the same kind, number of columns and seed."
                )
        if not (isinstance(self.shift, np.ndarray) and isinstance(other.shift, np.ndarray)):
            return self.here().merge(other.here())  # each about a shift of its own, which is on the device
        if other.shift is not self.shift and not np.array_equal(other.shift, self.shift):
            # States of groups with different shifts: both about one of them, then added.
            other = other.about(self.shift, self.product)
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
            self,
            shift=shift,
            sums=self.sums + self.weight * e,
            weights=self.weights + self.weight * projected,
            product=product,
            squares=squares,
        )

    @property
    def offset(self) -> Vector:
        """Mean of the rows less the shift (d,)."""
        return self.sums / (self.weight or 1.0)

    @property
    def mean(self) -> Vector:
        """Mean of the rows (d,)."""
        mean = self.offset if self.shift is None else self.shift + self.offset
        constant = _constant_columns(self)
        return mean if self.constants is None or not constant.any() else np.where(constant, self.constants, mean)

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
        return centring_error(np.where(_constant_columns(self), 0, self.lost), self.centred_squares())

    def centred(self) -> Matrix:
        """Return ``Xc'Xc W`` (d, l), centred exactly at the mean."""
        if not self.count:
            return self.product.copy()
        # sum_t u_t u_t'W - n m m'W with u = x - s and m = sum_t u_t / n
        centred: Matrix = self.product - np.multiply.outer(self.weights / self.weight, self.sums).T
        centred[_constant_columns(self)] = 0
        return centred

    def centred_squares(self) -> Vector:
        """Return the sums of squared deviations (d,) from the mean."""
        squares = np.maximum(self.squares - self.sums**2 / (self.weight or 1.0), 0)
        return np.where(_constant_columns(self), 0, squares) if self.squared else squares

    def cost(self, rows: BlockForm) -> Work:
        d, width = self.n_features, self.n_columns
        rows, copied = csr.multiplied(rows, largest_slab(d))  # of Z, without its part of the centre
        held = 8 * (d + copied) * width + csr.product_bytes(rows, width)
        own = Work() if self.factor is None else self.factor.cost(rows)
        return own + Work(held, csr.product_flops(rows, width))

    def device_bytes(self, rows: BlockForm) -> int:
        # A block, and what its squares take; Z, which weights copy; Q scaled, in both precisions; and three sums.
        thin = 2 * rows.rows * rows.itemsize + self.n_features * (36 if rows.itemsize == 8 else 44)
        copies = self.squared * (1 if rows.itemsize == 8 else 2)
        return (1 + copies) * rows.rows * rows.columns * rows.itemsize + thin * self.n_columns


def _constant_columns(state: FusedProduct) -> NDArray[np.bool_]:
    """Return which columns (d,) are constant; none if all rows were dense, or their squares were not asked for."""
    if state.constants is None or not len(state.constants):
        return np.zeros(state.n_features, bool)
    return ~np.isnan(state.constants)


def _alike(a: Vector | None, b: Vector | None) -> Vector | None:
    """Return the values that are constant in both of two sets of rows; none if one of them is dense."""
    if a is None or b is None:
        return None if a is b else np.full_like(a if b is None else b, np.nan)
    return np.where(a == b, a, np.nan)


class LeftRows(Protocol):
    """Rows of V (n, k) that are computed on access, such as features of labels, which are larger than the labels."""

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, k)."""

    @property
    def nbytes(self) -> int:
        """Bytes from which the rows are computed."""

    @overload
    def __getitem__(self, rows: slice[int, int, None]) -> Self: ...
    @overload
    def __getitem__(self, rows: Integers) -> NDArray[np.float64]: ...
    def __getitem__(self, rows: slice[int, int, None] | Integers) -> Self | NDArray[np.float64]:
        """Return the same object for a slice of rows, or an array (b, k) of the rows with given numbers."""

    def digest(self) -> str:
        """Digest of all rows."""


@dataclass
class LeftProduct(Accumulator):
    """``V' X`` for a thin V (n, k), about a shift: ``product = sum_t v_t (x_t - shift)'``, weighted if the rows are.

    States about different shifts merge exactly because they include the column sums of V.

    Attributes
    ----------
    V : ndarray of shape (rows, k), float64, or LeftRows; the rows ``first_row : first_row + rows`` of the whole V
    product : ndarray of shape (k, d), float64
    weight : ndarray of shape (k,), float64; ``sum_t v_t``
    shift : ndarray of shape (d,), float64
    """

    tag: ClassVar[str] = "LeftProduct"
    by_row: ClassVar[str | None] = "V"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr", "factors", "weights"})
    lives_there: ClassVar[bool] = True

    n_features: int
    V: NDArray[np.float64] | LeftRows
    first_row: int = 0
    product: NDArray[np.float64] = kept("_width", "n_features")
    weight: NDArray[np.float64] = kept("_width", here=True)
    shift: NDArray[np.float64] | None = kept("n_features", default=None)

    @property
    def _width(self) -> int:
        return int(self.V.shape[1])

    def update(self, block: Block) -> None:
        self.shift = self.put(block.shift) if self.shift is None else self.shift
        step = self._tile_rows if block.form.shifts else block.count
        for own in (slice(i, i + step) for i in range(0, block.count, step)):
            # V has a row for each row of X: V'(X - s) needs 1'V to be moved to another shift.
            V = self.V[block.rows[own] - self.first_row]
            if block.weights is not None:
                V = V * block.weights[own, None]
            self.product = block.form.add_left(self.product, V, block.values[own], block)
            self.weight += V.sum(axis=0)

    @property
    def _tile_rows(self) -> int:
        return max(256, TILE_BYTES // (8 * max(1, self._width)))

    def about(self, shift: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``sum_t v_t (x_t - shift)'`` (k, d) for another shift."""
        if self.shift is None:
            return self.product
        # sum_t v_t (x_t - s')' = sum_t v_t (x_t - s)' + (sum_t v_t) (s - s')'
        moved: NDArray[np.float64] = self.product + self.put(self.weight)[:, None] * (self.shift - shift)
        return moved

    def merge(self, other: LeftProduct) -> LeftProduct:
        if other.shift is None or self.shift is None:
            return self if other.shift is None else other
        return replace(self, product=self.product + other.about(self.shift), weight=self.weight + other.weight)

    def cost(self, rows: BlockForm) -> Work:
        tile = 2 * 8 * min(int(self.V.shape[0]), self._tile_rows) * self._width  # less in float32
        return Work(self.state_bytes + tile + csr.widened_bytes(rows), csr.product_flops(rows, self._width))

    def device_bytes(self, rows: BlockForm) -> int:
        thin = min(rows.rows, self._tile_rows) * (8 + rows.itemsize) + 24 * rows.columns
        return rows.rows * rows.columns * rows.itemsize + thin * self._width
