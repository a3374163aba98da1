"""The state of one sweep over a kernel matrix: its product with a thin block, its trace and its row norms."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from bigpca.arrays import Array, DType, Matrix, Vector
from bigpca.costs import BlockForm, Work
from bigpca.devices import Namespace, dtype_of
from bigpca.host import HOST, KernelSums
from bigpca.kernels.base import Kernel
from bigpca.passes.accumulators.base import PARAMETER, Accumulator, broadcast, kept
from bigpca.passes.reading.blocks import Block
from bigpca.solvers.components import check_total

COUNTED = 0.15  # share of the error of entries that counts as precision; see entry_precision


def entry_precision(dtype: DType, error: float) -> float:
    """Return the precision of kernel entries from which the slack of bounds is computed: eps, or 0.15 of their error.

    Errors e of random sign change K by ``2 sqrt(n) e`` in the norm; the slack should be three times that. It is 40
    ``precision |K|_F`` (10 from rounding_slack, 4 from the operator), with ``|K|_F >= sqrt(n)`` if k(x, x) = 1, so
    ``precision = 0.15 e`` is enough.
    """
    return max(float(np.finfo(dtype).eps), COUNTED * error)


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
    _sums: KernelSums | None = field(default=None, repr=False)

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

    def add_tile(self, K: Array, row: int, column: int, error: float = 0.0, device: Namespace = HOST) -> None:
        """Add a tile (a, b) of K whose first entry is ``K[row, column]``, ``row <= column``; it may be on a device.

        ``error`` is :meth:`bigpca.kernels.base.Kernel.entry_error` of the tile. A tile off the diagonal is used for its
        mirror image too. Products are computed in the tile's precision and summed in float64.
        """
        if self._sums is None:
            self._sums = device.kernel_sums(broadcast(self.V), self.product, self.squares, self.start)
        self.diagonal += self._sums.add(K, row, column)
        self.evaluations += K.shape[0] * K.shape[1]
        self.precision = max(self.precision, entry_precision(dtype_of(K), error))

    def close(self) -> None:
        if self._sums is not None:
            self._sums.close()
        self.V = self._sums = None

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
