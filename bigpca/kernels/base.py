"""The kernel interface: a function of two rows, evaluated block by block, with its diagonal, cost and limits.

A block of rows is *prepared* once (checked, and everything computed that depends on single rows: norms, roots, score
vectors), and then evaluated against many other prepared blocks. Kernels know nothing of Dask, centring or passes.
:class:`Sum` and :class:`Product` are defined here because the operators of :class:`Kernel` return them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import reduce
from math import isfinite, prod
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bigpca import csr
from bigpca.arrays import Array, Vector, held_array
from bigpca.costs import BlockForm
from bigpca.devices import Namespace
from bigpca.host import HOST

Block = NDArray[np.floating]
FIXED_BYTES = 8 << 20  # temporaries of a block of any size: strips, tiles in float64
STRIP_ENTRIES = 1 << 17  # entries of a strip
MAX_FACTOR32 = 1e6  # float32 kernel values may be multiplied by 1 / MAX_FACTOR32 to MAX_FACTOR32
WIDEST = 20_000  # columns up to which a feature map is worthwhile


def checked_rows(X: ArrayLike, name: str) -> Array:
    """Return X as a matrix of finite float32 or float64; bool and integers of up to 16 bits become float32.

    Raises
    ------
    ValueError
        If X is not a matrix of finite numbers.
    TypeError
        As :func:`bigpca.arrays.held_array`.
    """
    rows = held_array(X, name)
    if rows.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {rows.dtype}, which holds no real numbers. Convert it.")
    if rows.dtype not in (np.float32, np.float64):
        narrow = rows.dtype.kind == "b" or rows.dtype.itemsize <= 2
        rows = rows.astype(np.float32 if narrow else np.float64)
    if rows.ndim != 2:
        raise ValueError(f"{name} has shape {rows.shape}. Reshape it to (rows, columns).")
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise ValueError(f"{name}[{row}, {column}] = {rows[row, column]} is not finite. Repair the data.")
    return rows


def strips(block: Block) -> Iterator[tuple[slice, Block]]:
    """Yield (slice, view) for strips of rows of a block, of at most :data:`STRIP_ENTRIES` (but at least one row)."""
    height = max(1, STRIP_ENTRIES // max(1, block.shape[1]))
    for start in range(0, len(block), height):
        where = slice(start, min(start + height, len(block)))
        yield where, block[where]


def widens(*factors: float) -> bool:
    """Whether kernel values (1e-18 to 1e18) times one of these factors leave the range of float32."""
    return any(factor and not 1 / MAX_FACTOR32 <= abs(factor) <= MAX_FACTOR32 for factor in factors)


def widened(block: Block, *factors: float) -> Block:
    """Return a block that may be multiplied by these factors: in float64 if float32 would overflow or underflow."""
    return block.astype(np.float64, copy=False) if widens(*factors) else block


def raise_to(block: Block, exponent: int) -> None:
    """Raise a block to an integer power in place, by repeated multiplication: negative entries keep their sign."""
    if exponent == 1:
        return
    for _, strip in strips(block):
        base = strip.copy()  # of a strip, which stays in a cache
        for _ in range(exponent - 1):
            strip *= base


def reject_overflow(block: Block, what: str) -> None:
    """Raise if a block holds values outside the range of float64, checked strip by strip.

    Raises
    ------
    ValueError
    """
    for _, strip in strips(block):
        if not np.isfinite(strip).all():
            raise ValueError(f"{what} exceeds 1.8e308, beyond float64. Scale the rows, or normalise the kernels.")


def side_by_side(parts: Iterable[Block], weights: tuple[float, ...], constant: float) -> Block:
    """Return the feature map (b, D) of a weighted sum: those of the parts, and a column for the constant."""
    # sum_i w_i phi_i(x)'phi_i(y) + c is the product of [sqrt(w_1) phi_1, ..., sqrt(c)].
    scaled = [part * float(np.sqrt(weight)) for part, weight in zip(parts, weights, strict=True)]
    if constant > 0:
        scaled.append(np.full((len(scaled[0]), 1), np.sqrt(constant), scaled[0].dtype))
    return np.concatenate(scaled, axis=1)


def _add(total: Block, part: Block) -> Block:
    """Add two blocks in place, in the one with the wider dtype."""
    return np.add(total, part, out=total if total.dtype.itemsize >= part.dtype.itemsize else part)


def _power(block: Block, exponent: float) -> Block:
    block = block.astype(np.float64, copy=False)
    if isinstance(exponent, int):
        raise_to(block, exponent)
        return block
    if (lowest := float(block.min(initial=0.0))) < 0:
        raise ValueError(
            f"a kernel value is {lowest:.6g}, which has no real power {exponent}; values >= 0 were expected. "
            "Use an integer."
        )
    return np.power(block, exponent, out=block)


def is_number(value: Any) -> bool:
    """Whether a parameter is a real number; booleans are not."""
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


def finite_numbers(name: str, values: tuple[float, ...], count: int) -> tuple[float, ...]:
    """Return ``count`` finite floats, or raise an error with the parameter's name."""
    if len(values) != count or not all(is_number(value) and isfinite(value) for value in values):
        raise ValueError(f"{name} = {values!r}, but every kernel requires one finite number: {count} in all.")
    return tuple(float(value) for value in values)


def checked_gamma(gamma: float | None) -> None:
    """Check that gamma is None or a finite number above 0.

    Raises
    ------
    ValueError
    """
    if gamma is not None and not (is_number(gamma) and isfinite(gamma) and gamma > 0):
        raise ValueError(f"gamma = {gamma!r} is not a finite number above 0. Use for example 0.1, or None for 1 / d.")


def json_value(name: str, value: Any) -> Any:
    """Return a parameter as a JSON value; ``name`` is for the message.

    Raises
    ------
    TypeError
        If it is a Python function or object, which cannot be stored in a file.
    """
    if hasattr(value, "describe"):
        return value.describe()
    if isinstance(value, tuple):
        return [json_value(name, item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is not None and not isinstance(value, bool | int | float | str):
        kind = "function" if callable(value) else "object"
        raise TypeError(
            f"{name} is the Python {kind} {value!r}, which cannot be stored in a model "
            "file. Keep the model in memory, or pickle it."
        )
    return value


@dataclass(frozen=True)
class Kernel(ABC):
    """A symmetric function ``k(x, y)`` of two rows.

    Subclasses are frozen dataclasses whose fields are their parameters. They are combined by ``k1 + k2``, ``c * k``,
    ``k + c``, ``k1 * k2``, ``k ** p``, and by the functions of :mod:`bigpca.kernels.algebra`;
    ``positive_semidefinite`` is derived from the parts.

    Examples
    --------
    >>> from bigpca.kernels import RBF, Linear
    >>> kernel = 2 * RBF(gamma=0.5) + Linear() ** 2 + 1
    >>> kernel.positive_semidefinite, (Linear() - 1).positive_semidefinite
    (True, False)
    >>> kernel([[0.0, 1.0]], [[0.0, 1.0], [1.0, 1.0]]).round(3).tolist()
    [[4.0, 3.213]]
    """

    @property
    @abstractmethod
    def positive_semidefinite(self) -> bool:
        """Whether every kernel matrix of accepted rows is positive semi-definite."""

    @property
    def taken_on_trust(self) -> bool:
        """Whether positive semi-definiteness is only the caller's claim; fits then look for evidence against it."""
        return False

    def stored_eps(self, dtype: np.dtype[Any]) -> float:
        """Return a tenth of the rounding of a matrix stored in this dtype, as an eps; 0 where rows are stored.

        Products err by some eps of each entry. Storing rounds once, by half an eps: it moves an eigenvalue by at most
        ``eps |K|_F / 2``.
        """
        return 0.0 if self.needs_rows or dtype.kind != "f" else float(np.finfo(dtype).eps) / 20

    @abstractmethod
    def prepare(self, rows: Array, shift: Vector | None = None, first_row: int = 0) -> Any:
        """Return all that :meth:`block` needs from these rows; reject rows outside the kernel's domain.

        Parameters
        ----------
        rows : ndarray of shape (a, d), float32 or float64, finite; or such a csr_array, if :attr:`accepts_csr`
            Not overwritten; copied if it might change later.
        shift : ndarray of shape (d,) or None
            A row close to the mean of all rows, the same for all blocks. Translation-invariant kernels subtract it, so
            that distances keep their precision; others ignore it.
        first_row : int
            Absolute number of the first row, for error messages and to identify rows in precomputed kernels.

        Raises
        ------
        ValueError
            If the kernel does not accept these rows; names the first such row and column.
        """

    @abstractmethod
    def block(self, A: Any, B: Any) -> Block:
        """Return ``K[i, j] = k(a_i, b_j)`` (a, b) of two prepared blocks: a new array, at least as precise as the rows.

        ``block(A, A)`` (the same object twice) is symmetric, and its diagonal equals :meth:`diagonal_of` to rounding
        (distances are exactly 0 there).
        """

    @abstractmethod
    def diagonal_of(self, A: Any) -> Vector:
        """Return ``k(a_i, a_i)`` (a,) of a prepared block, float64."""

    def entry_error(self, A: Any, B: Any) -> float:
        """Return the root mean square error of entries of ``block(A, B)``, as a share of ``sqrt(k(x, x) k(y, y))``.

        An upper estimate of the cancellation error in differences that the kernel then magnifies; 0 if entries are as
        exact as their dtype.
        """
        return 0.0

    @abstractmethod
    def flops_per_entry(self, d: int) -> float:
        """Return the cost of one entry of a block, in floating-point operations at the speed of a matrix product.

        Elementwise passes over the block are counted by their measured time, as 80 to 600 operations.
        """

    def entry_bytes(self, itemsize: int) -> int:
        """Return the peak bytes of :meth:`block` per entry, including the result; ``itemsize`` is that of the rows.

        Each block being computed needs another :data:`bigpca.kernels.base.FIXED_BYTES`. By default one value.
        """
        return itemsize

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        """Return the bytes of one prepared row: by default the row, and one number in float64."""
        return d * itemsize + 8

    def resolve(self, d: int) -> Kernel:
        """Return the kernel with defaults that depend on the number of columns filled in (``gamma=None`` is 1 / d)."""
        return self

    def feature_width(self, d: int) -> int | None:
        """Return the number of columns D of the exact finite feature map, or None if there is none."""
        return None

    def features(self, rows: Array, first_row: int = 0) -> Block:
        """Return ``phi(x)`` (a, D) with ``phi(x)'phi(y) = k(x, y)``, in the precision of the rows.

        Raises
        ------
        TypeError
            If the kernel has no exact finite feature map.
        """
        raise TypeError(f"{self} has no exact finite feature map. Use KernelPCA's other solvers, or NystromKernelPCA.")

    @property
    def needs_rows(self) -> bool:
        """Whether ``block(A, B)`` uses the rows of B, rather than only their row numbers (precomputed kernels)."""
        return True

    @property
    def accepts_csr(self) -> bool:
        """Whether :meth:`prepare` accepts CSR, to be compared with dense rows; others are given dense strips."""
        return False

    def entry_flops(self, rows: BlockForm) -> float:
        """Return the cost of one entry between a row like these and a dense one, as :meth:`flops_per_entry`."""
        return csr.entry_flops(rows.taken(self.accepts_csr)[1], self.flops_per_entry)

    def place(self, device: Namespace) -> Namespace:
        """Return where rows are compared: a device, if :meth:`prepare` also accepts its rows; else the host."""
        return HOST

    @property
    def accepts_strings(self) -> bool:
        """Whether rows are strings, encoded as character codes and padded with zeros."""
        return False

    def __call__(self, X: ArrayLike, Y: ArrayLike | None = None) -> Block:
        """Return the kernel matrix of rows X (n, d) and Y (m, d), or of X with itself, in memory.

        Raises
        ------
        ValueError
            If shapes do not match, values are not finite, or the kernel does not accept the rows.
        """
        rows = checked_rows(X, "X")
        kernel = self.resolve(rows.shape[1])
        shift = rows.mean(axis=0, dtype=np.float64) if len(rows) else None
        A = kernel.prepare(rows, shift)
        if Y is None:
            return kernel.block(A, A)
        others = checked_rows(Y, "Y")
        if others.shape[1] != rows.shape[1] and kernel.needs_rows and not kernel.accepts_strings:
            raise ValueError(
                f"X has {rows.shape[1]} columns, but Y has {others.shape[1]}. Give rows with the same columns."
            )
        return kernel.block(A, kernel.prepare(others, shift))

    def diagonal(self, X: ArrayLike) -> Vector:
        """Return ``k(x, x)`` (n,) of the rows of X, without computing the rest of the kernel matrix."""
        rows = checked_rows(X, "X")
        kernel = self.resolve(rows.shape[1])
        return kernel.diagonal_of(kernel.prepare(rows, rows.mean(axis=0, dtype=np.float64) if len(rows) else None))

    def describe(self) -> dict[str, Any]:
        """Return name and parameters as JSON values; :func:`bigpca.kernels.kernel_from` restores the kernel.

        Raises
        ------
        TypeError
            If a parameter is a Python function, which cannot be stored in a file.
        """
        kind = type(self).__name__
        given = {item.name: json_value(f"{item.name} of {kind}", getattr(self, item.name)) for item in fields(self)}
        return {"kernel": kind} | given

    def __add__(self, other: Kernel | float) -> Kernel:
        own = _as_sum(self)
        if isinstance(other, Kernel):
            more = _as_sum(other)
            return Sum((*own.kernels, *more.kernels), (*own.weights, *more.weights), own.constant + more.constant)
        if not is_number(other):
            return NotImplemented
        return Sum(own.kernels, own.weights, own.constant + float(other))

    def __sub__(self, other: Kernel | float) -> Kernel:
        if not isinstance(other, Kernel) and not is_number(other):
            return NotImplemented
        return self + -1.0 * other

    __radd__ = __add__

    def __mul__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, Kernel):
            # Products of products are flat: each entry is one product in float64, however the user wrote it.
            own, more = _as_product(self), _as_product(other)
            return Product((*own.kernels, *more.kernels), (*own.exponents, *more.exponents))
        if not is_number(other):
            return NotImplemented
        # A factor goes to the weights and the constant: no kernel evaluates another one to multiply it.
        addends = _as_sum(self)
        weights = tuple(float(other) * weight for weight in addends.weights)
        return Sum(addends.kernels, weights, float(other) * addends.constant)

    __rmul__ = __mul__

    def __pow__(self, exponent: float) -> Kernel:
        if not is_number(exponent):
            return NotImplemented
        return Product((self,), (exponent,))


@dataclass(frozen=True)
class WithGamma(Kernel):
    """A kernel with a width gamma, which is 1 / d by default."""

    gamma: float | None = None

    def __post_init__(self) -> None:
        checked_gamma(self.gamma)
        self._check_options()

    def _check_options(self) -> None:
        """Check the parameters other than gamma."""

    def gamma_for(self, d: int) -> float:
        """Return gamma, or its default for d columns."""
        return 1.0 / max(1, d) if self.gamma is None else float(self.gamma)

    def resolve(self, d: int) -> Self:
        return replace(self, gamma=1.0 / max(1, d) if self.gamma is None else self.gamma)


@dataclass(frozen=True)
class Combined(Kernel):
    """Base of kernels made from several kernels; each prepares the rows for itself."""

    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        given: tuple[Any, ...] = tuple(self.kernels)
        if not given or not all(isinstance(item, Kernel) for item in given):
            raise TypeError(f"kernels = {given!r}; one or more kernels were expected, such as bigpca.kernels.RBF().")
        if len(kinds := {rows_of(item): item for item in given}) > 1:
            names = ", ".join(f"{item} compares {rows}" for rows, item in kinds.items())
            raise TypeError(f"{names}, so they cannot be combined. Combine kernels of one kind of rows.")
        object.__setattr__(self, "kernels", given)
        self._check_options()

    @abstractmethod
    def _check_options(self) -> None:
        """Check the parameters other than the kernels."""

    @property
    def _all_positive(self) -> bool:
        return all(kernel.positive_semidefinite for kernel in self.kernels)

    @property
    def taken_on_trust(self) -> bool:
        return self.positive_semidefinite and any(kernel.taken_on_trust for kernel in self.kernels)

    def prepare(self, rows: Array, shift: Vector | None = None, first_row: int = 0) -> Any:
        return tuple(kernel.prepare(rows, shift, first_row) for kernel in self.kernels)

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return sum(kernel.prepared_bytes(d, itemsize) for kernel in self.kernels)

    def flops_per_entry(self, d: int) -> float:
        return sum(kernel.flops_per_entry(d) + 100.0 for kernel in self.kernels)

    @property
    def accepts_csr(self) -> bool:
        return all(kernel.accepts_csr for kernel in self.kernels)

    def entry_flops(self, rows: BlockForm) -> float:
        return sum(kernel.entry_flops(rows) + 100.0 for kernel in self.kernels)

    def entry_bytes(self, itemsize: int) -> int:
        """Return the bytes of the largest part plus those of the partial result."""
        return max(kernel.entry_bytes(itemsize) for kernel in self.kernels) + 8

    def resolve(self, d: int) -> Self:
        return replace(self, kernels=tuple(kernel.resolve(d) for kernel in self.kernels))

    @property
    def needs_rows(self) -> bool:
        return self.kernels[0].needs_rows

    @property
    def accepts_strings(self) -> bool:
        return self.kernels[0].accepts_strings


@dataclass(frozen=True)
class Sum(Combined):
    """``sum_i weights_i k_i(x, y) + constant``: the result of ``k1 + k2``, ``c * k`` and ``k + c``.

    Positive semi-definite if all kernels are, and weights and constant are >= 0. The feature map concatenates those of
    the parts, times the square roots of the weights, and a column for the constant.

    Parameters
    ----------
    kernels : tuple of Kernel
    weights : tuple of float, one per kernel
    constant : float, default 0.0
        Removed by centring.
    """

    weights: tuple[float, ...]
    constant: float = 0.0

    def _check_options(self) -> None:
        object.__setattr__(self, "weights", finite_numbers("weights", self.weights, len(self.kernels)))
        object.__setattr__(self, "constant", finite_numbers("constant", (self.constant,), 1)[0])

    @property
    def positive_semidefinite(self) -> bool:
        # A cone: sums of positive semi-definite matrices are, and a constant adds c 1 1'.
        return min(*self.weights, self.constant) >= 0 and self._all_positive

    def block(self, A: Any, B: Any) -> Block:
        parts = (kernel.block(*pair) for kernel, *pair in zip(self.kernels, A, B, strict=True))
        # One part at a time is in memory beside the sum; what a factor would take out of float32 is widened.
        factors = (*self.weights, self.constant)
        with np.errstate(over="ignore", invalid="ignore"):
            wide = (widened(part, *factors) for part in parts)
            weighted = (np.multiply(part, weight, out=part) for part, weight in zip(wide, self.weights, strict=True))
            total = reduce(_add, weighted)
            total += self.constant
        if widens(*factors):
            reject_overflow(total, "a weighted sum of kernel values")
        return total

    def diagonal_of(self, A: Any) -> Vector:
        parts = zip(self.kernels, self.weights, A, strict=True)
        return np.asarray(sum(w * kernel.diagonal_of(own) for kernel, w, own in parts) + self.constant, np.float64)

    def entry_error(self, A: Any, B: Any) -> float:
        return max(kernel.entry_error(*pair) for kernel, *pair in zip(self.kernels, A, B, strict=True))

    def feature_width(self, d: int) -> int | None:
        widths = [kernel.feature_width(d) or 0 for kernel in self.kernels]
        total = sum(widths) + (self.constant > 0)
        allowed = min(*self.weights, self.constant) >= 0 and total <= max(WIDEST, *widths)
        return total if allowed and all(widths) else None

    def features(self, rows: Array, first_row: int = 0) -> Block:
        if self.feature_width(rows.shape[1]) is None:
            return super().features(rows, first_row)
        parts = (kernel.features(rows, first_row) for kernel in self.kernels)
        return side_by_side(parts, self.weights, self.constant)


@dataclass(frozen=True)
class Product(Combined):
    """``prod_i k_i(x, y)^exponents_i``, in float64: the result of ``k1 * k2`` and ``k ** p``.

    Positive semi-definite if all kernels are and the exponents are positive integers (Schur 1911). The feature map is
    the Kronecker product of those of the parts, if it has at most 20,000 columns.

    Parameters
    ----------
    kernels : tuple of Kernel
    exponents : tuple of float > 0, one per kernel
    """

    exponents: tuple[float, ...]

    def _check_options(self) -> None:
        exponents = finite_numbers("exponents", self.exponents, len(self.kernels))
        if min(exponents) <= 0:
            raise ValueError(f"exponents = {exponents}; numbers above 0 were expected. Use for example 2.")
        object.__setattr__(self, "exponents", tuple(int(p) if p.is_integer() else p for p in exponents))

    @property
    def positive_semidefinite(self) -> bool:
        return all(isinstance(p, int) for p in self.exponents) and self._all_positive

    def entry_bytes(self, itemsize: int) -> int:
        return max(kernel.entry_bytes(itemsize) for kernel in self.kernels) + 16

    def block(self, A: Any, B: Any) -> Block:
        parts = (kernel.block(*pair) for kernel, *pair in zip(self.kernels, A, B, strict=True))
        powers = (_power(part, exponent) for part, exponent in zip(parts, self.exponents, strict=True))
        with np.errstate(over="ignore", invalid="ignore"):
            result = reduce(lambda total, part: np.multiply(total, part, out=total), powers)
        reject_overflow(result, "a product of kernel values")
        return result

    def diagonal_of(self, A: Any) -> Vector:
        parts = zip(self.kernels, self.exponents, A, strict=True)
        return prod((kernel.diagonal_of(own) ** p for kernel, p, own in parts), start=np.ones(()))

    def entry_error(self, A: Any, B: Any) -> float:
        parts = zip(self.kernels, self.exponents, A, B, strict=True)
        return float(sum(p * kernel.entry_error(a, b) for kernel, p, a, b in parts))

    def feature_width(self, d: int) -> int | None:
        widths = [kernel.feature_width(d) for kernel in self.kernels]
        if None in widths or not all(isinstance(p, int) for p in self.exponents):
            return None
        total = prod(int(width or 0) ** p for width, p in zip(widths, self.exponents, strict=True))
        return int(total) if total <= WIDEST else None

    def features(self, rows: Array, first_row: int = 0) -> Block:
        if self.feature_width(rows.shape[1]) is None:
            return super().features(rows, first_row)
        parts = (kernel.features(rows, first_row) for kernel in self.kernels)
        # All products of one column of each factor.
        factors = (part for part, p in zip(parts, self.exponents, strict=True) for _ in range(int(p)))
        return reduce(lambda left, right: (left[:, :, None] * right[:, None, :]).reshape(len(left), -1), factors)


def rows_of(kernel: Kernel) -> str:
    """Return what a kernel compares, in words."""
    if not kernel.needs_rows:
        return "rows of a kernel matrix"
    return "strings" if kernel.accepts_strings else "vectors"


def _as_sum(kernel: Kernel) -> Sum:
    return kernel if isinstance(kernel, Sum) else Sum((kernel,), (1.0,))


def _as_product(kernel: Kernel) -> Product:
    return kernel if isinstance(kernel, Product) else Product((kernel,), (1,))


@dataclass(frozen=True)
class FeatureKernel(Kernel):
    """``k(x, y) = phi(x)'phi(y)``: a prepared block holds the features of its rows. Costs 2 D flops."""

    positive_semidefinite: ClassVar[bool] = True

    @abstractmethod
    def feature_width(self, d: int) -> int:
        """Return the number of features D."""

    @abstractmethod
    def features(self, rows: Array, first_row: int = 0) -> Block:
        """Return the features (a, D); reject rows outside the kernel's domain."""

    def prepare(self, rows: Array, shift: Vector | None = None, first_row: int = 0) -> Block:
        return self.features(rows, first_row)

    def block(self, A: Any, B: Any) -> Block:
        products: Block = A @ B.T
        return products

    def diagonal_of(self, A: Any) -> Vector:
        squares: Vector = np.einsum("ij,ij->i", A, A, dtype=np.float64)
        return squares

    def flops_per_entry(self, d: int) -> float:
        return 2.0 * self.feature_width(d)

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return self.feature_width(d) * itemsize
