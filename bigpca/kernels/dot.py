"""Kernels that are functions of the dot product x'y (linear, polynomial, tanh, cosine), and the products they share."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, singledispatch
from itertools import combinations_with_replacement
from math import comb, factorial, prod, sqrt
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca import csr
from bigpca.arrays import Array, Vector, mirror_upper
from bigpca.blas import add_product
from bigpca.devices import Device, Namespace, RowsThere
from bigpca.errors import real_number
from bigpca.kernels.base import WIDEST, Block, Kernel, WithGamma, raise_to, strips

TILE = 256  # rows converted to float64 at a time
RUN = 64  # squares summed one by one: a sum of partial sums is more accurate
DEPTH = 1024  # columns converted at a time
HARMLESS = 1e-5  # accepted error of an entry for float32 rows, relative to the largest entry
LARGEST32 = 1e18  # sums of squares of entries must stay below the largest float32, 3e38
SMALLEST32 = 1e-18  # likewise above the smallest, 1e-38
LARGEST64 = 1e150  # whose square is still a float64


@dataclass(frozen=True)
class PreparedRows:
    """Rows prepared for matrix products.

    Attributes
    ----------
    columns : ndarray of shape (d, a), C-contiguous: the rows as columns, so that a product can add to a given block.
    squares : ndarray of shape (a,), float64: |x|^2.
    """

    columns: Array
    squares: Vector

    @property
    def width(self) -> int:
        """d."""
        return len(self.columns)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the rows."""
        return self.columns.dtype

    @cached_property
    def largest(self) -> float:
        """Largest |x|^2, from which the error of products is bounded."""
        return float(self.squares.max(initial=0.0))

    def taken(self, which: Array) -> NDArray[np.float64]:
        """Return some of the rows as columns (d, count)."""
        return self.columns[:, which].astype(np.float64)


class PreparedThere(PreparedRows):
    """Prepared rows on a device of another array library, where their products are made.

    Attributes
    ----------
    rows : RowsThere of shape (a, d)
    squares_there : array of shape (a,) of that library; :attr:`squares` has the same numbers here.
    """

    def __init__(self, rows: RowsThere, squares: Any) -> None:
        self.rows, self.squares_there = rows, squares
        self._latest: tuple[Any, Any] = None, None
        vars(self)["squares"] = np.asarray(RowsThere(squares, rows.place))

    @cached_property
    def columns(self) -> Array:
        """A copy in the host's memory."""
        return np.ascontiguousarray(np.asarray(self.rows).T)

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    def products(self, B: Any, dtype: np.dtype[Any], result: np.dtype[Any], less_squares: bool, scale: float) -> Any:
        """Return what :func:`products` returns, computed in ``dtype`` and rounded to that of the result."""
        xp, sides = self.rows.xp, (0, 1) if less_squares else (None, None)
        left, right = self.factor(dtype, sides[0], scale), B.factor(dtype, sides[1], 1.0)
        return xp.astype(left @ xp.matrix_transpose(right), getattr(xp, result.name), copy=False)

    def factor(self, dtype: np.dtype[Any], side: int | None, scale: float) -> Any:
        """Return the rows as a factor; with a side, as [x, -|x|^2 / 2, 1] or [x, 1, -|x|^2 / 2], norms from float64,
        times ``scale``.

        The product of two is then ``x'y - |x|^2 / 2 - |y|^2 / 2``, and takes one pass over the memory of a tile. Zeros
        follow, as libraries multiply multiples of eight numbers fastest. The latest factor is kept.
        """
        if self._latest[0] != (dtype, side, scale):
            xp, kind = self.rows.xp, getattr(self.rows.xp, dtype.name)
            rows = xp.astype(self.rows.array, kind, copy=False)
            if side is not None:
                norms = xp.astype(self.squares_there / -2, kind)[:, None]
                beside = [xp.ones_like(norms), xp.ones_like(norms), *[xp.zeros_like(norms)] * (-(self.width + 2) % 8)]
                beside[side] = norms
                rows = xp.concat([rows, *beside], axis=1)
            self._latest = (dtype, side, scale), rows if scale == 1 else rows * scale
        return self._latest[1]


@dataclass(frozen=True)
class PreparedSparse:
    """Sparse rows prepared for products with dense ones, x standing for ``x - shift``.

    Attributes
    ----------
    rows : csr_array of shape (a, d)
        Not shifted.
    shift : ndarray of shape (d,), float64
        In the precision of the rows.
    squares : ndarray of shape (a,), float64: |x - shift|^2.
    largest : float
        Largest |x|^2 or |x - shift|^2, from which the error of products is bounded.
    """

    rows: csr_array
    shift: Vector
    squares: Vector
    largest: float

    @property
    def width(self) -> int:
        """d."""
        return int(self.rows.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the rows."""
        dtype: np.dtype[Any] = self.rows.dtype
        return dtype

    def taken(self, which: Array) -> NDArray[np.float64]:
        """Return some of the rows, shifted, as columns (d, count)."""
        dense: NDArray[np.float64] = self.rows[which].toarray().T - self.shift[:, None]
        return dense


Prepared: TypeAlias = PreparedRows | PreparedSparse


@singledispatch
def prepare_rows(rows: Any, shift: Vector | None = None) -> Prepared:
    """Prepare the rows, minus ``shift`` (d,) in their precision (each difference is rounded once)."""
    # Stored as columns: BLAS takes either order, and strips of a product then read runs of rows.
    columns = np.empty(rows.shape[::-1], rows.dtype)
    if shift is None:
        columns[...] = rows.T
    else:
        np.subtract(rows.T, shift.astype(rows.dtype)[:, None], out=columns)
    squares = np.zeros(len(rows))
    for k in range(0, len(columns), RUN):
        run = columns[k : k + RUN]
        # |x|^2 in float64, run by run, so that no array of squares is made.
        squares += np.einsum("ij,ij->j", run, run, dtype=np.float64)
    return PreparedRows(columns, squares)


@prepare_rows.register
def _(rows: csr_array, shift: Vector | None = None) -> PreparedSparse:
    """Sparse rows stay sparse."""
    about = np.zeros(rows.shape[1]) if shift is None else shift.astype(rows.dtype).astype(np.float64)
    own = squares = csr.row_squares(rows)
    if about.any():
        # |x - s|^2 = |x|^2 - 2 x's + |s|^2
        along = csr.multiply(rows.astype(np.float64), about[:, None])[:, 0]
        squares = np.maximum(own - 2 * along + about @ about, 0)
    return PreparedSparse(rows, about, squares, max(own.max(initial=0.0), squares.max(initial=0.0)))


@prepare_rows.register
def _(rows: RowsThere, shift: Vector | None = None) -> PreparedThere:
    device, near = Device.holding(rows), rows
    if shift is not None:
        with device.precise():
            near = RowsThere(device.put(rows) - device.floats(device.put(shift), rows.dtype), device.name)
    exact = near.xp.astype(near.array, near.xp.float64, copy=False)
    return PreparedThere(near, near.xp.sum(exact * exact, axis=1))


def product_error(d: int, dtype: np.dtype[Any]) -> float:
    """Return an error bound of the product of two rows of d numbers, relative to (|x|^2 + |y|^2) / 2.

    ``u (4 + 0.75 sqrt(d))`` with the unit roundoff u, for rounding errors of random sign (Higham & Mary 2019, sec. 2).
    For four kinds of rows with d = 5 to 8,000, the largest of 90,000 errors was 0.1 to 0.7 of the bound.
    """
    return float(np.finfo(dtype).eps) / 2 * (4 + 0.75 * sqrt(d))


def products(
    A: Prepared,
    B: PreparedRows,
    dtype: np.dtype[Any],
    less_squares: bool = False,
    *,
    exact: bool = False,
    scale_there: float = 1.0,
) -> Block:
    """Return ``x'y``, or ``x'y - |x|^2 / 2 - |y|^2 / 2 = -|x - y|^2 / 2``, of all pairs (a, b).

    Rows of another precision than ``dtype``, and all rows if ``exact``, are multiplied in float64 tiles, which are
    rounded once. On a device, the result is multiplied by ``scale_there``, which costs nothing.
    """
    wide = np.dtype(np.float64) if exact else np.result_type(A.dtype, B.dtype, dtype)
    if isinstance(A, PreparedThere):
        return cast(Block, A.products(B, wide, dtype, less_squares, scale_there))
    result: Block = np.empty((len(A.squares), len(B.squares)), dtype)
    if isinstance(A, PreparedSparse):
        _fill_sparse(A, B, result, less_squares, wide)
    elif A.dtype == B.dtype == dtype and not exact:
        # BLAS adds the product to the squares.
        _start(result, A.squares, B.squares, less_squares)
        add_product(A.columns, B.columns, result)
    else:
        _fill_in_tiles(A, B, result, less_squares)
    return result


def _fill_sparse(A: PreparedSparse, B: PreparedRows, out: Block, less_squares: bool, dtype: np.dtype[Any]) -> None:
    """Compute ``(x - shift)'y = x'y - shift'y`` of sparse rows in ``dtype``, rounded once to that of ``out``."""
    exact: Block = out if out.dtype == dtype else np.empty(out.shape, dtype)
    _start(exact, A.squares, B.squares, less_squares)
    # shift'y is one number a column: sparse rows are never made dense.
    rows = A.rows.astype(dtype, copy=False)
    for j in range(0, out.shape[1], TILE):
        columns = B.columns[:, j : j + TILE]
        about = A.shift @ columns.astype(np.float64) if A.shift.any() else np.zeros(columns.shape[1])
        exact[:, j : j + TILE] += csr.multiply(rows, columns) - about.astype(dtype)
    if exact is not out:
        out[...] = exact


def _fill_in_tiles(A: PreparedRows, B: PreparedRows, out: Block, less_squares: bool) -> None:
    for i in range(0, out.shape[0], TILE):
        for j in range(0, out.shape[1], TILE):
            left, right = slice(i, i + TILE), slice(j, j + TILE)
            tile = np.empty(out[left, right].shape)
            _start(tile, A.squares[left], B.squares[right], less_squares)
            for k in range(0, len(A.columns), DEPTH):  # copies in float64 stay small, whatever d is
                columns = A.columns[k : k + DEPTH, left].astype(np.float64)
                add_product(columns, B.columns[k : k + DEPTH, right].astype(np.float64), tile)
            out[left, right] = tile


def _start(out: Block, a: Vector, b: Vector, less_squares: bool) -> None:
    """Initialise what the product is added to: 0, or -|x|^2 / 2 - |y|^2 / 2."""
    if less_squares:
        np.add.outer((-a / 2).astype(out.dtype), (-b / 2).astype(out.dtype), out=out)
    else:
        out[...] = 0


@dataclass(frozen=True)
class DotKernel(Kernel):
    """A function of ``x'y``, computed from one product of two blocks; the shift is ignored."""

    accepts_csr: ClassVar[bool] = True

    def place(self, device: Namespace) -> Namespace:
        return device

    def prepare(self, rows: Array | csr_array | RowsThere, shift: Vector | None = None, first_row: int = 0) -> Prepared:
        prepared = prepare_rows(rows)
        self._check_rows(prepared, first_row)
        return prepared

    def _check_rows(self, A: Prepared, first_row: int) -> None:
        """Raise if the kernel does not accept the rows."""

    @abstractmethod
    def _precision(self, A: Prepared, B: PreparedRows) -> np.dtype[Any]:
        """Return the precision that the product of these rows requires, from their norms."""

    @abstractmethod
    def _values(self, products: Any, d: int, xp: Any = np) -> Any:
        """Return the kernel's values of products ``x'y`` of a library; those of NumPy replace the products."""

    def block(self, A: Prepared, B: PreparedRows) -> Block:
        dtype = np.result_type(A.dtype, B.dtype, self._precision(A, B))
        result = products(A, B, dtype)
        if isinstance(A, PreparedThere):
            return cast(Block, self._values(result, A.width, A.rows.xp))
        for _, strip in strips(result):
            self._values(strip, A.width)
        if A is B:  # BLAS may round x'y and y'x in another order
            mirror_upper(result)
        return result

    def diagonal_of(self, A: Prepared) -> Vector:
        values = A.squares[:, None].copy()
        self._values(values, A.width)
        return values[:, 0]

    def flops_per_entry(self, d: int) -> float:
        return 2.0 * d + 80

    def entry_bytes(self, itemsize: int) -> int:
        return 8


@dataclass(frozen=True)
class Linear(DotKernel):
    """``k(x, y) = x'y + coef0``; positive semi-definite if coef0 >= 0.

    One product, 2 d flops per entry. The feature map is the row itself, with a column sqrt(coef0) if that is not 0.

    Parameters
    ----------
    coef0 : float, default 0.0
        Removed by centring.

    Examples
    --------
    >>> Linear()([[1.0, 2.0]], [[3.0, 4.0]]).tolist()
    [[11.0]]
    """

    coef0: float = 0.0

    def __post_init__(self) -> None:
        real_number("coef0", self.coef0, "(-inf, inf)", "a finite number such as 1.0")

    @property
    def positive_semidefinite(self) -> bool:
        return self.coef0 >= 0

    def _precision(self, A: Prepared, B: PreparedRows) -> np.dtype[Any]:
        size = max(A.largest, B.largest) + abs(self.coef0)
        return np.dtype(np.float32 if SMALLEST32 <= size <= LARGEST32 else np.float64)

    def _values(self, products: Any, d: int, xp: Any = np) -> Any:
        products += self.coef0
        return products

    def feature_width(self, d: int) -> int | None:
        return None if self.coef0 < 0 else d + (self.coef0 > 0)

    def features(self, rows: Array, first_row: int = 0) -> Block:
        if self.coef0 < 0:
            return super().features(rows, first_row)
        if self.coef0 == 0:
            return rows
        return np.concatenate([rows, np.full((len(rows), 1), sqrt(self.coef0), rows.dtype)], axis=1)


@dataclass(frozen=True)
class AffineKernel(WithGamma, DotKernel):
    """A function of ``gamma x'y + coef0``."""

    coef0: float = 1.0

    def _check_options(self) -> None:
        real_number("coef0", self.coef0, "(-inf, inf)", "a finite number such as 1.0")

    def _affine(self, products: Any, d: int) -> Any:
        products *= self.gamma_for(d)
        products += self.coef0
        return products


@dataclass(frozen=True)
class Polynomial(AffineKernel):
    """``k(x, y) = (gamma x'y + coef0)^degree``; positive semi-definite if coef0 >= 0.

    One product, and degree - 1 multiplications per entry (a negative base keeps its sign). Float32 rows are multiplied
    in float64 if ``(gamma |x|^2 + |coef0|)^degree`` may exceed 1e18, or if the degree would raise the product's
    rounding error above 1e-5 of the largest entry. The feature map consists of all monomials, times the square roots of
    their multinomial coefficients; it exists if that makes at most 20,000 columns.

    Parameters
    ----------
    degree : int >= 1, default 3
    gamma : float > 0, or None for 1 / d, default None
        By name, as ``coef0``.
    coef0 : float, default 1.0

    Raises
    ------
    ValueError
        From :meth:`prepare`, for a row whose k(x, x) overflows even float64.

    Examples
    --------
    >>> Polynomial(degree=2, gamma=1.0)([[1.0, 2.0]], [[3.0, -4.0]]).tolist()
    [[16.0]]
    """

    degree: int = 3
    gamma: float | None = field(default=None, kw_only=True)  # so that Polynomial(2) is of degree 2
    coef0: float = field(default=1.0, kw_only=True)

    def _check_options(self) -> None:
        super()._check_options()
        expected = "an integer of at least 1 (k ** p is a fractional power)"
        real_number("degree", self.degree, "[1, inf)", expected, whole=True)

    @property
    def positive_semidefinite(self) -> bool:
        return self.coef0 >= 0

    def _check_rows(self, A: Prepared, first_row: int) -> None:
        # |gamma x'y + c| <= gamma |x| |y| + |c| (Cauchy and Schwarz): squares bound all entries of these rows.
        with np.errstate(over="ignore"):
            bounds = self.gamma_for(A.width) * A.squares + abs(self.coef0)
        largest = LARGEST64 ** (1 / self.degree)
        if bounds.max(initial=0.0) > largest:
            row = int(np.argmax(bounds > largest))
            raise ValueError(
                f"row {first_row + row}: gamma |x|^2 + |coef0| = {bounds[row]:.3g}; at most {largest:.3g} is possible, "
                f"because larger values overflow float64 when raised to the power {self.degree} and squared. Scale the "
                "rows, or use a smaller gamma."
            )

    def _precision(self, A: Prepared, B: PreparedRows) -> np.dtype[Any]:
        d = A.width
        base = self.gamma_for(d) * max(A.largest, B.largest) + abs(self.coef0)
        safe = SMALLEST32 ** (1 / self.degree) <= base <= LARGEST32 ** (1 / self.degree)
        safe = safe and SMALLEST32 <= max(A.largest, B.largest) <= LARGEST32
        # A relative error e of the base is one of p e in its power.
        accurate = self.degree * product_error(d, np.dtype(np.float32)) <= HARMLESS
        return np.dtype(np.float32 if safe and accurate else np.float64)

    def _values(self, products: Any, d: int, xp: Any = np) -> Any:
        base = self._affine(products, d)
        if not isinstance(base, np.ndarray):
            return base**self.degree
        raise_to(base, self.degree)
        return base

    def flops_per_entry(self, d: int) -> float:
        return 2.0 * d + 110 + 18 * self.degree

    def feature_width(self, d: int) -> int | None:
        if self.coef0 < 0:
            return None
        # (x'y)^p = sum over monomials of degree p, with multinomial coefficients; a constant is one more column.
        width = comb(d + (self.coef0 > 0) + self.degree - 1, self.degree)
        return width if width <= WIDEST else None

    def features(self, rows: Array, first_row: int = 0) -> Block:
        d = rows.shape[1]
        if self.feature_width(d) is None:
            return super().features(rows, first_row)
        # gamma x'y + c is a dot product of [sqrt(gamma) x, sqrt(c)]; its power has all monomials of degree p of these.
        base = rows * sqrt(self.gamma_for(d))
        if self.coef0 > 0:
            base = np.concatenate([base, np.full((len(rows), 1), sqrt(self.coef0), rows.dtype)], axis=1)
        places, roots = _monomials(base.shape[1], self.degree)
        result: Block = base[:, places[0]] * roots.astype(rows.dtype)
        for place in places[1:]:
            result *= base[:, place]
        return result


@dataclass(frozen=True)
class Tanh(AffineKernel):
    """``k(x, y) = tanh(gamma x'y + coef0)``, scikit-learn's sigmoid; not positive semi-definite.

    One product and a tanh (as much time as 80 flops) per entry; in float64 if the argument's error in float32 could
    exceed 1e-5.

    Parameters
    ----------
    gamma : float > 0, or None for 1 / d, default None
    coef0 : float, default 1.0
    """

    positive_semidefinite: ClassVar[bool] = False

    def _precision(self, A: Prepared, B: PreparedRows) -> np.dtype[Any]:
        d = A.width
        largest = max(A.largest, B.largest)
        safe = SMALLEST32 <= largest <= LARGEST32 and abs(self.coef0) <= LARGEST32
        accurate = product_error(d, np.dtype(np.float32)) * self.gamma_for(d) * largest <= HARMLESS
        return np.dtype(np.float32 if safe and accurate else np.float64)

    def _values(self, products: Any, d: int, xp: Any = np) -> Any:
        with np.errstate(over="ignore"):  # tanh(inf) is 1
            base = self._affine(products, d)
        return np.tanh(base, out=base) if xp is np else xp.tanh(base)

    def flops_per_entry(self, d: int) -> float:
        return 2.0 * d + 160


@dataclass(frozen=True)
class Cosine(DotKernel):
    """``k(x, y) = x'y / (|x| |y|)``: each row is divided by its length once, which is also the feature map.

    A row of zeros is mapped to 0, so its kernel with every row is 0, as in scikit-learn.

    Examples
    --------
    >>> Cosine()([[1.0, 0.0], [0.0, 0.0]], [[3.0, 4.0]]).round(3).tolist()
    [[0.6], [0.0]]
    """

    positive_semidefinite: ClassVar[bool] = True

    def prepare(self, rows: Array | csr_array | RowsThere, shift: Vector | None = None, first_row: int = 0) -> Prepared:
        return prepare_directions(rows)

    def _precision(self, A: Prepared, B: PreparedRows) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def _values(self, products: Any, d: int, xp: Any = np) -> Any:
        return products

    def entry_bytes(self, itemsize: int) -> int:
        return itemsize

    def feature_width(self, d: int) -> int | None:
        return d

    def features(self, rows: Array, first_row: int = 0) -> Block:
        return directions(rows)


def directions(rows: Array) -> Block:
    """Return ``x / |x|`` (a, d), and 0 for rows of zeros."""
    with np.errstate(over="ignore", under="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    far = np.flatnonzero(~((squares > 1 / LARGEST64) & (squares < LARGEST64)) & rows.any(axis=1))
    if len(far):  # squares of very small or large numbers underflow or overflow: scale these rows first
        exponents = np.frexp(np.abs(rows[far]).max(axis=1, keepdims=True))[1]
        rows = rows.copy()
        rows[far] = np.ldexp(rows[far], -exponents)  # by powers of two, which round nothing
        squares[far] = np.einsum("ij,ij->i", rows[far], rows[far], dtype=np.float64)
    unit: Block = rows / np.sqrt(np.where(squares > 0, squares, 1.0))[:, None]
    return unit.astype(rows.dtype, copy=False)


@singledispatch
def prepare_directions(rows: Any) -> Prepared:
    """Prepare ``x / |x|``, whose squares are 1, or 0 for rows of zeros."""
    return PreparedRows(np.array(directions(rows).T, order="C"), np.asarray(rows.any(axis=1), np.float64))


@prepare_directions.register
def _(rows: RowsThere) -> PreparedThere:
    # Each row by its largest value, so that squares stay in range, and then by its length.
    xp = rows.xp
    size = V = xp.astype(rows.array, xp.float64, copy=False)
    for order in (float("inf"), 2):
        size = xp.linalg.vector_norm(V, axis=1, keepdims=True, ord=order)
        V = V / (size + xp.astype(size == 0, size.dtype))
    unit = RowsThere(xp.astype(V, rows.array.dtype, copy=False), rows.place)
    return PreparedThere(unit, xp.astype(size[:, 0] > 0, xp.float64))


@prepare_directions.register
def _(rows: csr_array) -> PreparedSparse:
    # The stored values of each row by the largest, and then by the length.
    largest = np.maximum.reduceat(np.append(np.abs(rows.data), 0).astype(np.float64), rows.indptr[:-1])
    largest[(np.diff(rows.indptr) == 0) | (largest == 0)] = 1.0
    row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    unit = csr_array((rows.data / largest[row], rows.indices, rows.indptr), rows.shape)
    lengths = np.sqrt(csr.row_squares(unit))
    unit.data /= np.where(lengths > 0, lengths, 1.0)[row]
    squares = np.asarray(lengths > 0, np.float64)
    return PreparedSparse(unit.astype(rows.dtype), np.zeros(rows.shape[1]), squares, squares.max(initial=0.0))


@lru_cache(maxsize=8)
def _monomials(d: int, degree: int) -> tuple[NDArray[np.intp], Vector]:
    """Return the factors (degree, D) of all monomials, and the square roots of their multinomial coefficients."""
    factors = list(combinations_with_replacement(range(d), degree))
    counts = [factorial(degree) // prod(map(factorial, Counter(item).values())) for item in factors]
    return np.array(factors, np.intp).reshape(-1, degree).T.copy(), np.sqrt(np.array(counts, np.float64))
