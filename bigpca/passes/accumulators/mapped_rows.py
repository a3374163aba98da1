"""A row map applied to all rows, with the result in memory: thin matrices that a solver starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.passes.accumulators.base import Accumulator, Arrays
from bigpca.passes.project import RowMap
from bigpca.passes.reading.blocks import Block


@dataclass
class MappedRows(Accumulator):
    """``f(X)`` (n, k) for a row map f.

    Attributes
    ----------
    n_samples, n_features, width : int
        n, d and k.
    f : RowMap, or None in states (the driver hands it over)
    pieces : tuple of (first row, ndarray of shape (rows, k))
    """

    tag: ClassVar[str] = "MappedRows"
    shared_field: ClassVar[str | None] = "f"

    n_samples: int
    n_features: int
    width: int
    f: RowMap | None
    pieces: tuple[tuple[int, NDArray[Any]], ...] = ()

    def fresh(self, start: int, stop: int) -> MappedRows:
        return replace(self, pieces=())

    def update(self, block: Block) -> None:
        f: Any = self.f
        first = int(block.rows[0])
        self.pieces = (*self.pieces, (first, f.apply(block.values, f"the rows from {first}")))

    def close(self) -> None:
        self.f = None

    def merge(self, other: MappedRows) -> MappedRows:
        return replace(self, pieces=self.pieces + other.pieces)

    def rows(self) -> NDArray[Any]:
        """The mapped rows in order (n, k)."""
        return np.concatenate([rows for _, rows in sorted(self.pieces, key=lambda piece: piece[0])])

    @property
    def state_bytes(self) -> int:
        return 8 * self.n_samples * self.width

    @property
    def flops_per_row(self) -> int:
        return 2 * self.n_features * self.width

    def to_arrays(self) -> Arrays:
        return {f"rows-{first}": rows for first, rows in self.pieces}

    def with_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> MappedRows:
        pieces = sorted(((int(name.split("-")[1]), a) for name, a in arrays.items()), key=lambda piece: piece[0])
        return replace(self, f=None, pieces=tuple(pieces))

    def identity(self) -> dict[str, Any]:
        return {"map": {} if self.f is None else self.f.describe()}
