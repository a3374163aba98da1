"""The within-class scatter times a thin matrix, in one read, for scatters that do not fit in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, DType
from bigpca.costs import BlockForm, Work
from bigpca.passes.accumulators.base import Accumulator, Arrays, broadcast
from bigpca.passes.accumulators.codes import Codes, codes_bytes
from bigpca.passes.reading.blocks import Block, within_range
from bigpca.passes.reading.layout import MIB

Matrix = NDArray[np.float64]
TILE_BYTES = 32 * MIB


@dataclass(frozen=True)
class WithinFactor:
    """The broadcast value of :class:`WithinProduct`.

    Attributes
    ----------
    means : ndarray of shape (c, d)
        Means of the classes, from an earlier read.
    W : ndarray of shape (d, l)
    """

    means: Matrix
    W: Matrix


@dataclass
class WithinProduct(Accumulator):
    """``S_W W = sum_t (x_t - mean_{y_t}) (x_t - mean_{y_t})'W`` (d, l), with known class means.

    Rows with code -1 are omitted, and weighted rows are summed with their weights. Costs ``4 d l`` flops per row.

    Attributes
    ----------
    n_features, n_columns : int
        d and l.
    codes : ndarray of shape (rows,), int32, or CodeRows
        Classes of rows ``first_row : first_row + rows``.
    factor : WithinFactor
        A broadcast value: None in closed states, and in templates being sent.
    product : ndarray of shape (d, l), float64
    """

    tag: ClassVar[str] = "WithinProduct"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights"})
    shared_field: ClassVar[str | None] = "factor"
    needs_largest: ClassVar[bool] = True

    n_features: int
    n_columns: int
    codes: Codes
    factor: WithinFactor | None
    first_row: int = 0
    product: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    _prepared: tuple[DType, Array, Array] | None = field(default=None, repr=False)

    def bare(self) -> WithinProduct:
        return replace(self, factor=None, codes=self.codes[:0])

    def for_rows(self, start: int, stop: int) -> WithinProduct:
        return replace(self, codes=self.codes[start - self.first_row : stop - self.first_row], first_row=start)

    def fresh(self, start: int, stop: int) -> WithinProduct:
        zeros = np.zeros((self.n_features, self.n_columns))
        return replace(self.for_rows(start, stop), product=zeros, _prepared=None)

    def update(self, block: Block) -> None:
        factor = broadcast(self.factor)
        values = within_range(block.values, block.largest)  # of two products in succession
        dtype = values.dtype
        if self._prepared is None or self._prepared[0] != dtype:
            means = (factor.means - block.shift).astype(dtype)  # all blocks of a group have one shift
            self._prepared = (dtype, means, factor.W.astype(dtype))
        _, means, W = self._prepared
        codes = self.codes[block.rows - self.first_row]
        step = max(64, TILE_BYTES // (4 * max(1, self.n_features)))
        for i in range(0, len(codes), step):
            labelled = np.flatnonzero(codes[i : i + step] >= 0) + i
            if len(labelled):
                rows = values[labelled]
                rows -= means[codes[labelled]]
                Z = rows @ W
                if block.weights is not None:
                    Z *= block.weights[labelled].astype(dtype)[:, None]
                self.product += rows.T @ Z

    def close(self) -> None:
        self.factor = self._prepared = None
        self.codes = self.codes[:0]

    def merge(self, other: WithinProduct) -> WithinProduct:
        return replace(self, codes=self.codes[:0], product=self.product + other.product)

    @property
    def state_bytes(self) -> int:
        return 8 * self.n_features * self.n_columns

    def cost(self, rows: BlockForm) -> Work:
        classes = 0 if self.factor is None else len(self.factor.means)
        tile = 2 * max(2 * TILE_BYTES, 64 * 8 * self.n_features)
        scratch = 2 * self.state_bytes + tile + 8 * classes * self.n_features
        return Work(scratch, 4.0 * self.n_features * self.n_columns)

    def to_arrays(self) -> Arrays:
        return {"product": self.product}

    def with_arrays(self, arrays: Mapping[str, Array]) -> WithinProduct:
        return replace(self, factor=None, codes=self.codes[:0], product=arrays["product"])

    def identity(self) -> dict[str, object]:
        content = hashlib.sha256(codes_bytes(self.codes))
        if self.factor is not None:
            content.update(np.ascontiguousarray(self.factor.means).tobytes())
            content.update(np.ascontiguousarray(self.factor.W).tobytes())
        return {"columns": self.n_columns, "content": content.hexdigest()}
