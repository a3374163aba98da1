"""States of reads of column blocks, each of which holds all rows: products with a thin block of vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, DType, content_digest
from bigpca.costs import BlockForm, Work
from bigpca.passes.accumulators.base import Accumulator, Arrays
from bigpca.passes.accumulators.column_statistics import (
    Pieces,
    column_moments,
    column_scale,
    joined,
    named_pieces,
    pieces_in,
    present_rows,
    standardized_columns,
    total_weight,
)
from bigpca.passes.accumulators.products import column_squares
from bigpca.passes.reading.blocks import Block, within_range
from bigpca.solvers.scaling import LearnedScale, scale_identity


@dataclass
class ColumnProducts(Accumulator):
    """``V' X_J`` for column blocks J of all rows, centred (and scaled): pieces of a (k, d) product, maybe weighted.

    Attributes
    ----------
    V : ndarray of shape (n, k), float64
    pieces : tuple of (first column, ndarray of shape (k, columns))
    """

    tag: ClassVar[str] = "ColumnProducts"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights"})

    n_columns: int
    V: NDArray[np.float64]
    center: bool = True
    scale: LearnedScale = False
    pieces: Pieces = ()

    def fresh(self, start: int, stop: int) -> ColumnProducts:
        return ColumnProducts(self.n_columns, self.V, self.center, self.scale)

    def update(self, block: Block) -> None:
        values, first = block.values, int(block.rows[0])
        residual, deviations = column_moments(block, self.center)
        V = self.V if block.weights is None else self.V * block.weights[:, None]
        piece = (V.T.astype(values.dtype) @ values).astype(np.float64)
        if self.center:
            piece -= np.multiply.outer(V.sum(axis=0), residual)  # V'(Y - 1 r') = V'Y - (V'1) r'
        if self.scale:
            mean, count, weight = block.shift + residual, present_rows(block), total_weight(block)
            piece /= column_scale(deviations, mean, count, self.scale, weight)
        self.pieces = (*self.pieces, (first, piece))

    def close(self) -> None:
        self.V = self.V[:0]

    def merge(self, other: ColumnProducts) -> ColumnProducts:
        return ColumnProducts(self.n_columns, self.V[:0], self.center, self.scale, self.pieces + other.pieces)

    def bare(self) -> ColumnProducts:
        return ColumnProducts(self.n_columns, self.V[:0], self.center, self.scale)

    def product(self) -> NDArray[np.float64]:
        """Return ``V' X`` (k, d)."""
        return joined(self.pieces, axis=1)

    @property
    def state_bytes(self) -> int:
        return 8 * int(self.V.shape[1]) * self.n_columns

    def cost(self, rows: BlockForm) -> Work:
        return Work(0, 2.0 * self.V.size)

    def to_arrays(self) -> Arrays:
        return named_pieces("piece", self.pieces)

    def with_arrays(self, arrays: Mapping[str, Array]) -> ColumnProducts:
        pieces = pieces_in(arrays, "piece")
        return ColumnProducts(self.n_columns, self.V[:0], self.center, self.scale, pieces)

    def identity(self) -> dict[str, object]:
        digest = content_digest(self.V)
        return {"V": digest, "center": self.center, "scale": scale_identity(self.scale)}


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
    means, squares : tuple of (first column, ndarray)
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
    product: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    total: float = 0.0
    means: Pieces = ()
    squares: Pieces = ()

    def fresh(self, start: int, stop: int) -> DotProduct:
        return replace(self, product=np.zeros((self.n_samples, self.n_columns)), total=0.0)

    def update(self, block: Block) -> None:
        first, values = int(block.rows[0]), within_range(block.values, block.largest)
        values, mean, deviations = standardized_columns(block, values, self.center, self.scale)
        self.means, self.squares = (*self.means, (first, mean)), (*self.squares, (first, deviations))
        self.total += float(column_squares(values).sum())
        self.product += values @ (values.T @ np.asarray(self.V, values.dtype))

    def close(self) -> None:
        self.V = None

    def merge(self, other: DotProduct) -> DotProduct:
        return replace(
            self, product=self.product + other.product, total=self.total + other.total,
            means=self.means + other.means, squares=self.squares + other.squares,
        )  # fmt: skip

    def columns(self, which: str) -> NDArray[np.float64]:
        """Return the means or the squares of all columns, in order."""
        return joined(getattr(self, which))

    @property
    def state_bytes(self) -> int:
        return 8 * self.n_samples * self.n_columns

    def cost(self, rows: BlockForm) -> Work:
        return Work(2 * self.state_bytes, 4.0 * self.n_samples * self.n_columns)

    def to_arrays(self) -> Arrays:
        pieces = {**named_pieces("means", self.means), **named_pieces("squares", self.squares)}
        return {"product": self.product, "total": np.array(self.total), **pieces}

    def with_arrays(self, arrays: Mapping[str, Array]) -> DotProduct:
        means, squares = pieces_in(arrays, "means"), pieces_in(arrays, "squares")
        return replace(self, product=arrays["product"], total=float(arrays["total"]), means=means, squares=squares)

    def identity(self) -> dict[str, object]:
        digest = "" if self.V is None else content_digest(self.V)
        return {"V": digest, "center": self.center, "scale": scale_identity(self.scale)}
