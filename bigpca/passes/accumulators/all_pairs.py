"""States of a matrix of all pairs of rows: the dot matrix, from pairs of row panels or from column blocks, and its
products; and the product of a kernel matrix with a thin block, with its trace and its row norms, in one sweep.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.linalg.blas import dsymv, dsyr2

from bigpca import csr
from bigpca.arrays import Array, DType, Integers, Matrix, Vector, add_packed, packed_size, unpack_upper
from bigpca.blas import blas_threads, each_piece
from bigpca.costs import BlockForm, Work
from bigpca.devices import Device, Namespace, dtype_of
from bigpca.forms import DENSE, Values
from bigpca.host import HOST, KernelSums, product_scratch, symmetric_product
from bigpca.passes.accumulators.base import (
    KEPT,
    PARAMETER,
    Accumulator,
    Pieces,
    broadcast,
    column_moments,
    column_scale,
    joined,
    kept,
    standardized_columns,
)
from bigpca.passes.reading.blocks import Block
from bigpca.solvers.components import check_total
from bigpca.solvers.scaling import Blocks, LearnedScale

if TYPE_CHECKING:
    from bigpca.kernels.base import Kernel

COUNTED = 0.15  # share of the error of kernel entries that counts as precision; see entry_precision


def places(blocks: Blocks | None, first: int = 0, stop: float = inf) -> list[Integers | None]:
    """Return, for each block, its columns from ``first`` on; None, for all columns, without blocks."""
    if blocks is None:
        return [None]
    return [own[(own >= first) & (own < stop)] - first for own in blocks.columns.values()]


@dataclass
class DotPanels(Accumulator):
    """Row panels of the upper triangle of ``G = Y Y'`` (n, n), for shifted (and scaled) rows Y, or of a kernel matrix;
    of one such matrix for each block of columns, if there are blocks.

    Rows that have weights are multiplied by the square roots of these before they are paired. Tiles of a device stay
    there until their panel is complete.

    Attributes
    ----------
    n_samples, n_features : int
    blocks : Blocks or None
    panels : dict of int to ndarray of shape (blocks, rows, n - first)
        ``G[first : first + rows, first:]`` of each block, by first row.
    """

    tag: ClassVar[str] = "DotPanels"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr", "weights"})

    n_samples: int
    n_features: int
    blocks: Blocks | None = None
    panels: Pieces = field(default_factory=dict, metadata=KEPT)
    # Tiles by block and first row, from the diagonal on.
    _there: dict[tuple[int, int], list[Array]] = field(default_factory=dict, repr=False)
    _scale: Array | None = field(default=None, repr=False)

    def fresh(self, start: int, stop: int) -> DotPanels:
        # From the diagonal to the right: G is symmetric.
        panel = np.zeros((len(places(self.blocks)), stop - start, self.n_samples - start))
        return DotPanels(self.n_samples, self.n_features, self.blocks, {start: panel})

    def update(self, block: Block) -> None:
        raise NotImplementedError("a panel of the dot matrix is filled from pairs of blocks: use add_pair")

    def scaled(self, rows: Values, device: Namespace) -> Values:
        """Return rows of a device times a power of two, found in the first ones: float32 then holds their products."""
        rows = device.put(rows)
        self._scale = device.power_of_two(rows) if self._scale is None else self._scale
        return rows if self._scale is None else rows * self._scale

    def add_pair(self, first: int, rows: Values, other_first: int, columns: Values, device: Namespace = HOST) -> None:
        """Add the products of ``rows`` (a, d) from row ``first`` on with the transpose ``columns`` (d, b) of rows from
        row ``other_first`` on; both are dense, or CSR, or on a device and :meth:`scaled`.

        The product is summed in float64 every 8,192 columns; its bits do not depend on the panel's size. Of sparse
        rows, every term is.
        """
        for block, own in enumerate(places(self.blocks)):
            target = self._target(first, other_first, rows.shape[0], columns.shape[1], block)
            device.add_pair(*((rows, columns) if own is None else (rows[:, own], columns[own])), *target)

    def add_tile(self, K: Array, row: int, column: int, error: float = 0.0, device: Namespace = HOST) -> None:
        """Store a tile of G (a, b) whose first entry is ``G[row, column]``; those of a device come in order of columns.

        The error of its entries is not used: eigenvalues of the whole matrix need no bounds.
        """
        device.store(K, *self._target(row, column, *K.shape))

    def _target(self, row: int, column: int, a: int, b: int, block: int = 0) -> tuple[Array, list[Array]]:
        """Return the place of a tile in the panel, and the tiles of a device to its left."""
        ((start, panel),) = self.panels.items()
        tiles = self._there.setdefault((block, row), [])
        return panel[block, row - start : row - start + a, column - start : column - start + b], tiles

    def arrays_there(self) -> list[Array]:
        return [tile for tiles in self._there.values() for tile in tiles]

    def close(self) -> None:
        for (block, row), tiles in ((place, tiles) for place, tiles in self._there.items() if tiles):
            device, ((start, panel),) = Device.holding(tiles[0]), self.panels.items()
            lines = device.xp.concat(tiles, axis=1)
            lines = lines if self._scale is None else lines / self._scale / self._scale
            panel[block, row - start : row - start + lines.shape[0], row - start :] = device.fetch(lines)
        super().close()

    def matrix(self, block: int = 0) -> Matrix:
        """Return G (n, n), or that of a block, with zeros below the panels."""
        G = np.zeros((self.n_samples, self.n_samples))

        def fill(first: int) -> None:
            panel = self.panels[first][block]
            G[first : first + len(panel), first:] = panel

        each_piece(fill, self.panels)
        return G

    @property
    def state_bytes(self) -> int:
        return (
            8 * self.n_samples**2 * len(places(self.blocks))
        )  # of the matrix: panels have little more than half of it, and copies on the way

    def cost(self, rows: BlockForm) -> Work:
        return csr.pair_work(rows, self.n_samples)


@dataclass
class DotSum(Accumulator):
    """``G = sum over blocks of columns that are read of Y_J Y_J'`` (n, n), each column centred (and scaled) before its
    product; one such matrix for each block of a rule for the scale, if there is one.

    Column means and sums of squared deviations are exact, because a column block holds all rows.

    Attributes
    ----------
    n_samples : int
    blocks : Blocks or None
    packed : ndarray of shape (blocks, packed_size(n)), float64
        The upper triangle of each G as :func:`bigpca.arrays.packed_strips` lays it out.
    means, squares : dict of first column to ndarray
    """

    tag: ClassVar[str] = "DotSum"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights"})

    n_samples: int
    center: bool = True
    scale: LearnedScale = False
    blocks: Blocks | None = None
    packed: Matrix = kept("_n_blocks", "_packed_size")
    means: Pieces = field(default_factory=dict, metadata=KEPT)
    squares: Pieces = field(default_factory=dict, metadata=KEPT)
    _product: Array | None = field(default=None, repr=False)

    @property
    def _n_blocks(self) -> int:
        return len(places(self.blocks))

    @property
    def _packed_size(self) -> int:
        return packed_size(self.n_samples)

    def update(self, block: Block) -> None:
        first = int(block.rows[0])  # block.rows numbers columns of X
        values, mean, deviations = standardized_columns(block, block.values, self.center, self.scale)
        self.means[first], self.squares[first] = mean, deviations
        if self._product is None:
            self._product = product_scratch(len(values), values.dtype)
        for packed, own in zip(self.packed, places(self.blocks, first, first + values.shape[1]), strict=True):
            add_packed(packed, symmetric_product(values.T if own is None else values[:, own].T, self._product))

    def matrix(self, block: int = 0) -> Matrix:
        """Return G (n, n), or that of a block, with zeros below the diagonal blocks."""
        return unpack_upper(self.packed[block], self.n_samples)

    def cost(self, rows: BlockForm) -> Work:
        return Work(16 * self.n_samples**2, float(self.n_samples**2))


def double_centre(G: Matrix, weights: Vector | None = None) -> Vector:
    """Make the upper triangle of G (n, n) that of ``H G H``, ``H = I - 11'/n``, which removes the part of the mean that
    the shift left; and return the means of the rows.

    With weights w of the rows, ``G = R Y Y'R`` with ``R = diag(r)``, ``r = sqrt(w)``, and ``H = I - r r'/sum(w)``.
    """
    # H G H = G - r u' - u r' with u = m - (r'm / 2 s) r, m = G r / s and s = r'r; without weights r = 1
    r = np.ones(len(G)) if weights is None else np.sqrt(weights)
    with blas_threads(1):
        means: Vector = dsymv(1.0, G.T, r, lower=True) / (r @ r)
        dsyr2(-1.0, r, means - (r @ means) / (2 * (r @ r)) * r, a=G.T, lower=True, overwrite_a=True)
    return means


@dataclass
class ColumnProducts(Accumulator):
    """``V' X_J`` for column blocks J of all rows, centred (and scaled): pieces of a (k, d) product, maybe weighted.

    Attributes
    ----------
    V : ndarray of shape (n, k), float64
    pieces : dict of first column to ndarray of shape (k, columns)
    """

    tag: ClassVar[str] = "ColumnProducts"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights"})

    n_columns: int
    V: Matrix
    center: bool = True
    scale: LearnedScale = False
    pieces: Pieces = field(default_factory=dict, metadata=KEPT)

    def update(self, block: Block) -> None:
        values, first = block.values, int(block.rows[0])
        residual, deviations = column_moments(block, self.center)
        V = self.V if block.weights is None else self.V * block.weights[:, None]
        # Of values about the block's shift: what centring has left to do is of rank 1.
        piece = (V.T.astype(values.dtype) @ values).astype(np.float64)
        if self.center:
            piece -= np.multiply.outer(V.sum(axis=0), residual)  # V'(Y - 1 r') = V'Y - (V'1) r'
        if self.scale:
            mean, count = block.shift + residual, int(np.count_nonzero(block.each))
            piece /= column_scale(deviations, mean, count, self.scale, float(block.each.sum()))
        self.pieces[first] = piece

    def close(self) -> None:
        self.V = self.V[:0]

    def bare(self) -> ColumnProducts:
        return replace(self, V=self.V[:0])

    def product(self) -> Matrix:
        """Return ``V' X`` (k, d)."""
        return joined(self.pieces, axis=1)

    @property
    def state_bytes(self) -> int:
        return 8 * int(self.V.shape[1]) * self.n_columns

    def cost(self, rows: BlockForm) -> Work:
        return Work(0, 2.0 * self.V.size)


@dataclass
class DotProduct(Accumulator):
    """``G V`` for the dot matrix ``G = sum over column blocks of Y_J Y_J'`` (n, n): ``sum_J Y_J (Y_J' V)`` in one read.

    Attributes
    ----------
    n_samples, n_columns : int
        n, and the columns l of V.
    V : ndarray of shape (n, l)
        A broadcast value: None in closed states, and in templates being sent.
    dtype : numpy.dtype
        Dtype in which blocks are multiplied.
    product : ndarray of shape (n, l), float64
    total : float
        Trace of G.
    means, squares : dict of first column to ndarray
    """

    tag: ClassVar[str] = "DotProduct"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights"})
    shared_field: ClassVar[str | None] = "V"

    n_samples: int
    n_columns: int
    V: Array | None
    dtype: DType
    center: bool = True
    scale: LearnedScale = False
    product: Matrix = kept("n_samples", "n_columns")
    total: float = kept(default=0.0)
    means: Pieces = field(default_factory=dict, metadata=KEPT)
    squares: Pieces = field(default_factory=dict, metadata=KEPT)

    def update(self, block: Block) -> None:
        # A block of columns holds all rows, so that it can be centred and scaled before it is multiplied.
        first, values = int(block.rows[0]), HOST.within_range(block.values, block.largest)
        values, mean, deviations = standardized_columns(block, values, self.center, self.scale)
        self.means[first], self.squares[first] = mean, deviations
        # trace(G) = |Y|_F^2, and G V = sum_J Y_J (Y_J'V): G itself, of n x n, is never made.
        self.total += float(DENSE.column_squares(values).sum())
        self.product += values @ (values.T @ np.asarray(self.V, values.dtype))

    def cost(self, rows: BlockForm) -> Work:
        return Work(2 * self.state_bytes, 4.0 * self.n_samples * self.n_columns)


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

    def fresh(self, start: int, stop: int) -> KernelProduct:
        return super(KernelProduct, replace(self, start=start)).fresh(start, stop)

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
        super().close()

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
