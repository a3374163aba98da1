"""The state of one sweep over a kernel matrix: its product with a thin block, its trace and its row norms."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from bigpca.arrays import Array, DType, Matrix, Vector
from bigpca.costs import BlockForm, Work
from bigpca.devices import Device
from bigpca.kernels.base import Kernel
from bigpca.passes.accumulators.base import PARAMETER, Accumulator, broadcast, kept
from bigpca.passes.reading.blocks import Block
from bigpca.solvers.components import check_total

COUNTED = 0.15  # share of the error of entries that counts as precision; see entry_precision
DEPTH = 1024  # rows of V multiplied in float32 at a time, before their products are added in float64


def entry_precision(dtype: DType, error: float) -> float:
    """Return the precision of kernel entries from which the slack of bounds is computed: eps, or 0.15 of their error.

    Errors e of random sign change K by ``2 sqrt(n) e`` in the norm; the slack should be three times that. It is 40
    ``precision |K|_F`` (10 from rounding_slack, 4 from the operator), with ``|K|_F >= sqrt(n)`` if k(x, x) = 1, so
    ``precision = 0.15 e`` is enough.
    """
    return max(float(np.finfo(dtype).eps), COUNTED * error)


class ProductThere:
    """``K V`` (and the squares of K) on a device, from tiles of K that are there: a piece for each tile of rows.

    Sums are in float64. Pieces are replaced, because arrays of JAX cannot be changed, and fetched once, at the end.

    Parameters
    ----------
    device : Device
    V : ndarray of shape (n, l)
    squared : bool
        Whether ``sum_j K_ij^2`` is computed.
    """

    def __init__(self, device: Device, V: Array, squared: bool) -> None:
        self.device, self.V, self.squared = device, V, squared
        self._factors: dict[int, Array] = {}
        self.products: dict[int, Array] = {}
        self.squares: dict[int, Array] = {}

    def add(self, K: Array, row: int, column: int) -> None:
        """Add a tile (a, b) of K, and its mirror image if it is off the diagonal."""
        self._add(K, row, column)
        if row != column:
            self._add(self.device.xp.matrix_transpose(K), column, row)

    def _add(self, K: Array, row: int, column: int) -> None:
        xp = self.device.xp
        if column not in self._factors:
            rows = self.V[column : column + K.shape[1]]
            self._factors[column] = self.device.put(rows.astype(self.device.dtype_of(K)))
        product = self._multiplied(K, self._factors[column])
        self.products[row] = self.products[row] + product if row in self.products else product
        if self.squared:
            squares = xp.sum(K * K, axis=1, dtype=xp.float64)
            self.squares[row] = self.squares[row] + squares if row in self.squares else squares

    def _multiplied(self, K: Array, V: Array) -> Array:
        """Return ``K V`` (a, l): products of strips of K (a, b), as one stack, and their sum in float64."""
        (a, b), xp = K.shape, self.device.xp
        depth = min(DEPTH, b)
        whole = b // depth * depth
        strips = xp.permute_dims(xp.reshape(K[:, :whole], (a, b // depth, depth)), (1, 0, 2))
        factors = xp.reshape(V[:whole, :], (b // depth, depth, V.shape[1]))
        product: Array = xp.sum(xp.matmul(strips, factors), axis=0, dtype=xp.float64)
        return product if whole == b else product + self._multiplied(K[:, whole:], V[whole:, :])


@dataclass
class KernelProduct(Accumulator):
    """``K V`` for a thin V (n, l), from tiles of the upper triangle of K, each used twice: itself and its mirror image.

    A state covers the rows from ``start`` to the last, because a panel is paired with itself and later rows; states
    with different starts can be added.

    Attributes
    ----------
    n_samples, n_columns : int
        n, and the number l of columns of V.
    V : ndarray of shape (n, l)
        A broadcast value: None in closed states, and in templates being sent.
    squared : bool
        Whether ``sum_j K_ij^2`` is computed for every row.
    start : int
    product : ndarray of shape (n - start, l), float64
    squares : ndarray of shape (n - start,) or (0,), float64
    diagonal : float
        ``sum_i k(x_i, x_i)`` of the panel's rows.
    evaluations : int
        Entries of K that were computed.
    precision : float
        :func:`entry_precision` of the coarsest tile; 0 before the first.
    """

    tag: ClassVar[str] = "KernelProduct"
    shared_field: ClassVar[str | None] = "V"

    n_samples: int
    n_columns: int
    V: Array | None
    squared: bool = False
    start: int = field(default=0, metadata=PARAMETER)
    product: Matrix = kept("_rows", "n_columns")
    squares: Vector = kept("_squared_rows")
    diagonal: float = kept(default=0.0)
    evaluations: int = kept(default=0)
    precision: float = kept(default=0.0)
    _there: ProductThere | None = field(default=None, repr=False)

    @property
    def _rows(self) -> int:
        return self.n_samples - self.start

    @property
    def _squared_rows(self) -> int:
        return self._rows if self.squared else 0

    def for_rows(self, start: int, stop: int) -> KernelProduct:
        return replace(self, start=start)

    def update(self, block: Block) -> None:
        raise NotImplementedError("a sweep over a kernel matrix computes pairs of tiles: use add_tile")

    def add_tile(self, K: Array, row: int, column: int, error: float = 0.0, device: Device | None = None) -> None:
        """Add a tile (a, b) of K whose first entry is ``K[row, column]``, ``row <= column``; it may be on a device.

        ``error`` is :meth:`bigpca.kernels.base.Kernel.entry_error` of the tile. A tile off the diagonal is used for its
        mirror image too. Products are computed in the tile's precision and summed in float64.
        """
        if device is None:
            self._add_here(K, row, column)
        else:
            self._there = self._there or ProductThere(device, broadcast(self.V), self.squared)
            self._there.add(K, row, column)
        self.evaluations += K.shape[0] * K.shape[1]
        dtype = K.dtype if device is None else device.dtype_of(K)
        self.precision = max(self.precision, entry_precision(dtype, error))

    def _add_here(self, K: Array, row: int, column: int) -> None:
        V = broadcast(self.V)
        a, b = K.shape
        rows = slice(row - self.start, row - self.start + a)
        columns = slice(column - self.start, column - self.start + b)
        self.product[rows] += K @ V[column : column + b].astype(K.dtype, copy=False)
        # K_ji = K_ij': a tile off the diagonal adds K_ij V_j to rows i, and K_ij' V_i to rows j.
        mirrored = row != column
        if mirrored:
            self.product[columns] += K.T @ V[row : row + a].astype(K.dtype, copy=False)
        if self.squared:
            self.squares[rows] += np.einsum("ij,ij->i", K, K, dtype=np.float64)
            if mirrored:
                self.squares[columns] += np.einsum("ij,ij->j", K, K, dtype=np.float64)
        if not mirrored:
            self.diagonal += float(np.diagonal(K).sum(dtype=np.float64))

    def close(self) -> None:
        if self._there is not None:
            fetch = self._there.device.fetch
            for here, there in ((self.product, self._there.products), (self.squares, self._there.squares)):
                for row, piece in there.items():
                    here[row - self.start : row - self.start + piece.shape[0]] = fetch(piece)
        self.V = self._there = None

    def merge(self, other: KernelProduct) -> KernelProduct:
        first, second = (self, other) if self.start <= other.start else (other, self)
        offset = second.start - first.start  # tiles of K are above its diagonal: the later start has fewer rows
        product, squares = first.product.copy(), first.squares.copy()
        product[offset:] += second.product
        if self.squared:
            squares[offset:] += second.squares
        return replace(
            first,
            product=product,
            squares=squares,
            diagonal=first.diagonal + second.diagonal,
            evaluations=first.evaluations + second.evaluations,
            precision=max(first.precision, second.precision),
        )

    def cost(self, rows: BlockForm) -> Work:
        return Work(0, 2.0 * self.n_samples * self.n_columns)


def reject_contradicted(kernel: Kernel, evidence: str | None) -> None:
    """Reject a kernel that was declared positive semi-definite if there is evidence that it is not.

    Raises
    ------
    ValueError
    """
    if evidence is not None:
        raise ValueError(
            f"{kernel} was assumed to be positive semi-definite, but {evidence}, so it has negative eigenvalues. "
            "Use KernelPCA with -D**2 / 2 for a matrix D of distances, or keep the largest eigenvalues by value "
            f"with Precomputed(indefinite=True) or FromFunction(f, positive_semidefinite=False)."
        )


def reject_underflow(
    kernel: Kernel, total: float, rows: str = "all rows", what: str = "the sum of k(x, x)", *, drawn: bool = False
) -> None:
    """Reject values k(x, x) of rows whose sum is so small that float64 has lost their digits, or 0.

    A kernel that is taken on trust may have zeros there without having lost anything: distances have. From these, no
    landmarks can be ``drawn``.

    Raises
    ------
    ValueError
    """
    if drawn and total == 0 and kernel.taken_on_trust:  # |k(x, y)|^2 <= k(x, x) k(y, y)
        raise ValueError(
            f"{what} of {rows} under {kernel} is 0, so a kernel that is positive semi-definite, as it was assumed to "
            "be, is 0 everywhere. Use KernelPCA with -D**2 / 2 for a matrix D of distances, or another kernel."
        )
    if kernel.positive_semidefinite:
        check_total(total, f"{what} of {rows} under {kernel}", positive=drawn or not kernel.taken_on_trust)


def reject_overflow(kernel: Kernel, row_means: Vector) -> None:
    """Reject kernel values that overflow float64, detected by the mean of each row of K.

    Raises
    ------
    ValueError
        With the first such row.
    """
    bad = np.flatnonzero(~np.isfinite(row_means))
    if len(bad):
        raise ValueError(
            f"{kernel} has values beyond float64 (1.8e308), or computes them from squares beyond it, in {len(bad)} "
            f"rows of the kernel matrix; the first is row {bad[0]}. Divide the data by a constant."
        )
