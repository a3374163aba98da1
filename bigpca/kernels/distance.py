"""Kernels that fall with the distance of two rows: RBF and Laplacian, for one width or several at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt
from typing import Any, ClassVar, Self, cast

import numpy as np

from bigpca.kernels.base import Kernel, Rows, Vector
from bigpca.kernels.dot import HARMLESS, checked_gamma
from bigpca.kernels.products import PreparedRows, prepare_rows, product_error, products, products_in_float64
from bigpca.kernels.rows import Block, strips
from bigpca.triangles import mirror_upper

RUN = 512  # terms of an L1 distance that are summed in the precision of the rows
HARMLESS64 = 1e-12  # error of an entry that rows of float64 may leave
NEAREST = 0.01  # of the largest |x|^2: pairs at a smaller |x - y|^2 are few, and may be computed one by one
TYPICAL = 1 / 6  # root mean square of errors, of the bound of a product's: see product_error
GATHERED = 1 << 17  # numbers of a batch of such pairs


@dataclass(frozen=True)
class DistanceKernel(Kernel):
    """``exp(-gamma D(x, y))`` of a distance, or of its square, that does not depend on gamma."""

    gamma: float | None = None
    _scale: ClassVar[float] = 1.0  # K = exp(gamma scale v) of what _fallen returns

    def __post_init__(self) -> None:
        checked_gamma(self.gamma)
        self._check_options()

    @abstractmethod
    def _check_options(self) -> None:
        """Refuse the parameters beside gamma."""

    @abstractmethod
    def _fallen(self, A: Any, B: Any, gamma: float) -> Block:
        """Return v (a, b) with ``K = exp(gamma scale v)``, to be clipped at 0, accurate
        enough for widths up to gamma.
        """

    @property
    def positive_semidefinite(self) -> bool:
        return True

    def with_gamma(self, gamma: float) -> Self:
        """Return this kernel at another width. Prepared blocks serve both."""
        return replace(self, gamma=gamma)

    def resolve(self, d: int) -> Self:
        return replace(self, gamma=1.0 / max(1, d) if self.gamma is None else self.gamma)

    def block(self, A: Any, B: Any) -> Block:
        gamma = self._width(A)
        fallen = self._fallen(A, B, gamma)
        return self._values(fallen, gamma, A is B, out=fallen)

    def blocks_at(self, A: Any, B: Any, gammas: Sequence[float]) -> Iterator[Block]:
        """Yield the block at each of several gammas; the distances are computed once.

        Takes :meth:`entry_bytes` and one more number per entry, beside the blocks that the caller keeps.

        Raises
        ------
        ValueError
            Where a gamma is not a finite number above 0.
        """
        for gamma in gammas:
            checked_gamma(gamma)
        if not gammas:
            return
        fallen = self._fallen(A, B, max(gammas))
        for gamma in gammas:
            yield self._values(fallen, gamma, A is B, out=np.empty_like(fallen))

    def diagonal_of(self, A: Any) -> Vector:
        return np.ones(self._rows_of(A))

    @abstractmethod
    def _width(self, A: Any) -> float:
        """Return gamma, with its default for these rows."""

    @abstractmethod
    def _rows_of(self, A: Any) -> int:
        """Return the number of rows of a prepared block."""

    def _values(self, fallen: Block, gamma: float, same: bool, out: Block) -> Block:
        """Write ``exp(gamma scale min(v, 0))`` to ``out``; made symmetric, with ones on the
        diagonal, where rows are the same.
        """
        factor = out.dtype.type(gamma * self._scale)
        for where, strip in strips(out):
            np.minimum(fallen[where], 0, out=strip)
            strip *= factor
            np.exp(strip, out=strip)
        if same:
            mirror_upper(out)
            np.fill_diagonal(out, 1)
        return out


@dataclass(frozen=True)
class RBF(DistanceKernel):
    """``k(x, y) = exp(-gamma |x - y|^2)``.

    One product, 2 d flops per entry, and four passes over strips that stay in cache. Rows are shifted to near their
    mean, norms are summed in float64, squares are clipped at 0. Rows of float32 meet in float64 where the largest norms
    of two blocks would let the exponent err by more than 1e-5. Where not even float64 would do (1e-5, and 1e-12 for
    rows of float64), the nearest pairs are computed again from differences.

    Parameters
    ----------
    gamma : float > 0, or None for 1 / d

    Examples
    --------
    >>> RBF(gamma=0.5)([[0.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]).round(4).tolist()
    [[1.0, 0.3679]]
    """

    _scale: ClassVar[float] = 2.0

    def _check_options(self) -> None:
        pass

    def prepare(self, rows: Rows, shift: Vector | None = None, first_row: int = 0) -> PreparedRows:
        return prepare_rows(rows, shift)

    def flops_per_entry(self, d: int) -> float:
        return 2.0 * d + 200

    def entry_bytes(self, itemsize: int) -> int:
        return itemsize

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return d * itemsize + 8

    def entry_error(self, A: PreparedRows, B: PreparedRows) -> float:
        """Of |x - y|^2, and of rows that were rounded when they were shifted: ``2 gamma t
        exp(-gamma t^2) <= sqrt(gamma)``.
        """
        gamma, dtype = self._width(A), np.result_type(A.columns, B.columns)
        return _left(gamma * square_error(A, B, dtype), dtype) + sqrt(gamma) * _moved(A.largest, B.largest, dtype)

    def _width(self, A: PreparedRows) -> float:
        return 1.0 / max(1, len(A.columns)) if self.gamma is None else float(self.gamma)

    def _rows_of(self, A: PreparedRows) -> int:
        return len(A.squares)

    def _fallen(self, A: PreparedRows, B: PreparedRows, gamma: float) -> Block:
        dtype = np.result_type(A.columns, B.columns)
        if dtype == np.float32 and gamma * square_error(A, B) <= HARMLESS:
            return products(A, B, dtype, less_squares=True)
        product = products_in_float64 if dtype == np.float32 else products
        result = product(A, B, dtype, less_squares=True)
        error, harmless = square_error(A, B, np.float64), HARMLESS if dtype == np.float32 else HARMLESS64
        if gamma * error > harmless:
            _settle_near_squares(A, B, 0.37 * error / harmless, result)
        return result


@dataclass(frozen=True)
class Laplacian(DistanceKernel):
    """``k(x, y) = exp(-gamma |x - y|)`` with the L1 norm (scikit-learn's) or the L2 norm (the
    tutorial's, gamma = 1 / sigma).

    L1: compiled at its first use (half a second), 14e9 terms per second of float32 and 8e9 of float64 on one core.
    L2: one product; the root makes its errors large for near rows, so those pairs are computed again from differences.

    Parameters
    ----------
    gamma : float > 0, or None for 1 / d
    norm : "l1" or "l2"

    Examples
    --------
    >>> Laplacian(gamma=1.0)([[0.0, 0.0]], [[0.25, 0.75]]).round(4).tolist()
    [[0.3679]]
    """

    norm: str = "l1"

    def _check_options(self) -> None:
        if self.norm not in ("l1", "l2"):
            raise ValueError(f"norm = {self.norm!r}; 'l1' or 'l2' was expected. Use one of these.")

    def prepare(self, rows: Rows, shift: Vector | None = None, first_row: int = 0) -> Any:
        if self.norm == "l2":
            return prepare_rows(rows, shift)
        return np.array(rows, order="C") if shift is None else np.subtract(rows, shift.astype(rows.dtype), order="C")

    def flops_per_entry(self, d: int) -> float:
        return 2.0 * d + 400 if self.norm == "l2" else 7.0 * d + 600

    def entry_bytes(self, itemsize: int) -> int:
        return itemsize

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return d * itemsize + 8 * (self.norm == "l2")

    def entry_error(self, A: Any, B: Any) -> float:
        gamma = self._width(A)
        if self.norm == "l2":
            dtype = np.result_type(A.columns, B.columns)
            left = _left(gamma * sqrt(square_error(A, B, dtype)), dtype)
            return left + gamma * _moved(A.largest, B.largest, dtype)
        a, b = (float(np.einsum("ij,ij->i", rows, rows).max(initial=0.0)) for rows in (A, B))
        return gamma * _moved(a, b, np.result_type(A, B))

    def _width(self, A: Any) -> float:
        d = len(A.columns) if self.norm == "l2" else A.shape[1]
        return 1.0 / max(1, d) if self.gamma is None else float(self.gamma)

    def _rows_of(self, A: Any) -> int:
        return len(A.squares) if self.norm == "l2" else len(A)

    def _fallen(self, A: Any, B: Any, gamma: float) -> Block:
        if self.norm == "l2":
            return _negative_lengths(A, B, gamma)
        dtype = np.result_type(A, B)
        result: Block = np.empty((len(A), len(B)), dtype)
        _compiled_l1()(A.astype(dtype, copy=False), B.astype(dtype, copy=False), result)
        return result


def _left(error: float, dtype: Any) -> float:
    """Estimate what is left of this largest error of exponents, once the nearest pairs are computed again."""
    return TYPICAL * min(error, HARMLESS if dtype == np.float32 else HARMLESS64)


def _moved(a: float, b: float, dtype: Any) -> float:
    """Estimate how far rounding their shift moves rows of squared lengths up to a and b from each other."""
    return float(np.finfo(dtype).eps) / 4 * (sqrt(a) + sqrt(b))


def square_error(A: PreparedRows, B: PreparedRows, dtype: Any = np.float32) -> float:
    """Bound the error of ``|x - y|^2`` made of norms and a product in this precision."""
    return product_error(len(A.columns), np.dtype(dtype)) * (A.largest + B.largest)


def _negative_lengths(A: PreparedRows, B: PreparedRows, gamma: float) -> Block:
    """Return ``-|x - y|`` (a, b), from products where that is accurate, and from differences for the nearest pairs.

    An error e of |x - y|^2 is one of at most e / |x - y| in its root, so pairs with ``|x - y| <= gamma e / harmless``
    are computed again: there are none to few, unless rows are often repeated. Of the others even equal rows, with
    ``sqrt(e) > gamma e / harmless``, err by no more than ``gamma sqrt(e) < harmless``.
    """
    dtype = np.result_type(A.columns.dtype, B.columns.dtype)
    nearest = NEAREST * max(A.largest, B.largest)
    close = (gamma * square_error(A, B, dtype) / (HARMLESS if dtype == np.float32 else HARMLESS64)) ** 2
    if dtype == np.float32 and close > nearest:
        result = products_in_float64(A, B, dtype, less_squares=True)
        close = (gamma * square_error(A, B, np.float64) / HARMLESS) ** 2
    else:
        result = products(A, B, dtype, less_squares=True)
    close = min(close, nearest)
    for where, strip in strips(result):
        strip *= -2
        i, j = np.nonzero(strip <= close)
        np.maximum(strip, 0, out=strip)
        np.sqrt(strip, out=strip)
        np.negative(strip, out=strip)
        strip[i, j] = -_differences(A, B, where.start + i, j)
    return result


def _settle_near_squares(A: PreparedRows, B: PreparedRows, close: float, halves: Block) -> None:
    """Compute ``-|x - y|^2 / 2`` again where ``|x - y|^2 <= close``, from differences.

    An error e of a square |x - y|^2 is one of at most e / (2.7 |x - y|^2) in the kernel at whatever width: only where
    norms are vast beside the width do the nearest pairs need this.
    """
    for where, strip in strips(halves):
        i, j = np.nonzero(strip >= -min(close, NEAREST * max(A.largest, B.largest)) / 2)
        strip[i, j] = -(_differences(A, B, where.start + i, j) ** 2) / 2


def _differences(A: PreparedRows, B: PreparedRows, i: Any, j: Any) -> Vector:
    """Return ``|x - y|`` of rows i of A and j of B, pair by pair, in batches."""
    lengths = np.empty(len(i))
    batch = max(1, GATHERED // max(1, len(A.columns)))
    for first in range(0, len(i), batch):
        some = slice(first, first + batch)
        differences = A.columns[:, i[some]].astype(np.float64) - B.columns[:, j[some]]
        lengths[some] = np.sqrt(np.einsum("ij,ij->j", differences, differences))
    return lengths


@cache
def _compiled_l1() -> Callable[[Rows, Rows, Block], None]:
    """Compile ``out[i, j] = -sum_k |A[i, k] - B[j, k]|``; terms are summed in the rows' precision
    in runs, runs in float64.

    On one core 6 times (float32) and 3.3 times (float64) as fast as SciPy's cdist, and 1.9 times that on two. Nothing
    is cached on disk, so that no folder has to be writable.
    """
    import numba

    compiled: Any = numba.njit(nogil=True, fastmath={"reassoc", "contract", "nsz"})

    def run(x: Any, y: Any) -> Any:
        total = x.dtype.type(0)
        for k in range(len(x)):
            total += abs(x[k] - y[k])
        return total

    compiled_run = compiled(run)

    def l1(A: Any, B: Any, out: Any) -> None:
        for i0 in range(0, len(A), 16):
            for j0 in range(0, len(B), 16):
                for i in range(i0, min(i0 + 16, len(A))):
                    for j in range(j0, min(j0 + 16, len(B))):
                        total = 0.0
                        for start in range(0, A.shape[1], RUN):
                            total += compiled_run(A[i, start : start + RUN], B[j, start : start + RUN])
                        out[i, j] = -total

    return cast(Callable[[Rows, Rows, Block], None], compiled(l1))
