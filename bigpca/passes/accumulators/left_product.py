"""``V' X`` for a thin V, which is an array or is computed slab by slab."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, Self, overload

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, content_digest
from bigpca.costs import BlockForm, Work
from bigpca.passes.accumulators.base import Accumulator, Arrays
from bigpca.passes.reading.blocks import Block
from bigpca.passes.reading.layout import MIB

TILE_BYTES = 16 * MIB  # of rows of V in float64


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
    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.float64]: ...
    def __getitem__(self, rows: slice[int, int, None] | NDArray[np.int64]) -> Self | NDArray[np.float64]:
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
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights"})

    n_features: int
    V: NDArray[np.float64] | LeftRows
    first_row: int = 0
    product: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    weight: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    shift: NDArray[np.float64] | None = None

    def fresh(self, start: int, stop: int) -> LeftProduct:
        own, k = self.for_rows(start, stop), self.V.shape[1]
        return replace(own, product=np.zeros((k, self.n_features)), weight=np.zeros(k))

    def update(self, block: Block) -> None:
        self.shift = block.shift
        step = self._tile_rows
        for i in range(0, len(block.values), step):
            V = self.V[block.rows[i : i + step] - self.first_row]
            if block.weights is not None:
                V = V * block.weights[i : i + step, None]
            self.product += V.T.astype(block.values.dtype) @ block.values[i : i + step]
            self.weight += V.sum(axis=0)

    @property
    def _no_rows(self) -> NDArray[np.float64]:
        return np.zeros((0, int(self.V.shape[1])))

    @property
    def _tile_rows(self) -> int:
        return max(256, TILE_BYTES // (8 * max(1, int(self.V.shape[1]))))

    def close(self) -> None:
        self.V = self._no_rows

    def about(self, shift: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``sum_t v_t (x_t - shift)'`` (k, d) for another shift."""
        if self.shift is None:
            return self.product
        # sum_t v_t (x_t - s')' = sum_t v_t (x_t - s)' + (sum_t v_t) (s - s')'
        return self.product + np.multiply.outer(self.weight, self.shift - shift)

    def merge(self, other: LeftProduct) -> LeftProduct:
        if other.shift is None or self.shift is None:
            return self if other.shift is None else other
        merged = replace(self, V=self._no_rows, product=self.product + other.about(self.shift))
        merged.weight = self.weight + other.weight
        return merged

    @property
    def state_bytes(self) -> int:
        return 8 * int(self.V.shape[1]) * self.n_features

    def cost(self, rows: BlockForm) -> Work:
        tile = 2 * 8 * min(int(self.V.shape[0]), self._tile_rows) * int(self.V.shape[1])  # less in float32
        return Work(self.state_bytes + tile, 2.0 * int(self.V.shape[1]) * self.n_features)

    def to_arrays(self) -> Arrays:
        shift = np.zeros(0) if self.shift is None else self.shift
        return {"product": self.product, "weight": self.weight, "shift": shift}

    def with_arrays(self, arrays: Mapping[str, Array]) -> LeftProduct:
        shift = arrays["shift"] if arrays["shift"].size else None
        return replace(self, V=self._no_rows, product=arrays["product"], weight=arrays["weight"], shift=shift)

    def for_rows(self, start: int, stop: int) -> LeftProduct:
        return replace(self, V=self.V[start - self.first_row : stop - self.first_row], first_row=start)

    def bare(self) -> LeftProduct:
        return replace(self, V=self._no_rows)

    def identity(self) -> dict[str, object]:
        V = self.V
        return {"V": content_digest(V) if isinstance(V, np.ndarray) else V.digest()}
