"""The row step of a group: slabs become blocks, mapped, weighted, without rows that do not count, about one shift."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_array

from bigpca.arrays import Array, DType, Integers
from bigpca.data.checks import note_rounded
from bigpca.devices import Device
from bigpca.engine.interfaces import RowSource
from bigpca.passes.reading.blocks import (
    Block,
    CountedRows,
    Look,
    Values,
    block_on,
    check_looks,
    group_shift,
    prepare_block,
    sparse_block,
)
from bigpca.passes.reading.row_maps import MapStep, map_tiles


@dataclass
class Preparing:
    """What makes blocks of the slabs of one group, in order.

    Attributes
    ----------
    reader : RowSource
        Names rows in errors, and tells whether they may be overwritten.
    dtype : numpy.dtype
        Of the blocks.
    nan_policy : {"raise", "omit", "mean"}
    device : Device or None
        Where blocks are multiplied.
    maps : tuple of MapStep
    counted : CountedRows
        Of the rows of the group, from row ``first`` on.
    shift : ndarray of shape (d,), or None
        What blocks are about; None for the mean of the first one, which it then is.
    searched, keeps_nan, copied : bool
        Whether the states need the largest magnitude of a block, count its NaN, and would keep the whole read with it.
    made_here : bool
        Whether the rows are changed here, as by their weights, before they are put on the device.
    looks : list of Look
        At blocks on a device, to be checked at the end of the group.
    count, omitted : int
        Rows so far, and those among them that are left out for their values.
    """

    reader: RowSource[Values]
    dtype: DType
    nan_policy: str = "raise"
    device: Device | None = None
    maps: tuple[MapStep, ...] = ()
    counted: CountedRows = field(default_factory=CountedRows)
    first: int = 0
    shift: Array | None = None
    searched: bool = False
    keeps_nan: bool = False
    copied: bool = False
    made_here: bool = False
    looks: list[Look] = field(default_factory=list)
    count: int = 0
    omitted: int = 0

    def apply(self, slab: Values, row: int) -> Iterator[Block]:
        """Yield the blocks of a slab, one per mapped tile, all about one shift, without empty ones.

        Sparse rows are one block about zero, or as their maps leave them: sparse, or dense and about a shift.
        """
        self.count += slab.shape[0]
        slab, numbers = self.counted.of_slab(slab, row, self.first)
        if self.copied and isinstance(slab, np.ndarray):
            slab = slab.copy()
        self.omitted += slab.shape[0]
        note_rounded(slab.data if isinstance(slab, csr_array) else slab)
        last = row + slab.shape[0] if numbers is None else int(numbers[-1]) + 1 if len(numbers) else row
        where, weights = self.reader.where(row, last), self.counted.weights
        complete = self.prepared(slab, row, where, self.shift, numbers, owned=numbers is not None)
        for block in self._mapped(complete, where) if self.maps else (complete,):
            if weights is not None:
                block = block.weighted(weights[block.rows - self.first])
            self.omitted -= block.count
            if block.count:  # rows that are all left out say nothing of where the others are
                self.shift = block.origin  # of a device, there: it is transferred once
                yield block

    def _mapped(self, complete: Block, where: str) -> Iterator[Block]:
        shift = self.shift
        for rows, numbers in map_tiles(self.maps, complete, where):
            sparse = isinstance(rows, csr_array)
            block = Block.of_csr(rows, numbers, shift) if sparse else Block.about(rows, numbers, shift, self.device)
            shift = block.origin
            yield block

    def prepared(
        self,
        slab: Values,
        row: int,
        where: str,
        shift: Array | None,
        numbers: Integers | None = None,
        *,
        owned: bool = False,
    ) -> Block:
        """Return the finite rows of a slab before the maps: less a shift, or their mean, unless maps follow.

        Sparse rows are about zero.
        """
        dtype, policy = self.dtype, self.nan_policy
        if isinstance(slab, csr_array):
            values = slab.astype(dtype, copy=False)
            return sparse_block(values, row, policy, where, numbers, shift, self.keeps_nan)
        if self.there and self.device is not None:
            looks = self.looks
            return block_on(
                self.device, slab, row, shift, looks, nan_policy=policy, where=where, numbers=numbers, dtype=dtype
            )
        about, plain = None, not self.maps
        if plain:
            about = group_shift(slab, dtype) if shift is None else shift.astype(dtype)
        return prepare_block(
            slab,
            row,
            about,
            owned=owned or self.reader.owned,
            nan_policy=policy,
            where=where,
            find_largest=self.searched and plain,
            numbers=numbers,
            keep_nan=self.keeps_nan and plain,
            dtype=dtype,
        )

    @property
    def there(self) -> bool:
        """Whether rows are put on the device as they are read, and checked there."""
        return self.device is not None and not self.maps and not self.made_here

    def check(self, sums: Iterable[Array]) -> None:
        """Reject blocks on a device that had NaN or infinite values, and sums there that are not finite."""
        if self.device is not None:
            check_looks(self.device, self.looks, [*sums], self.nan_policy)
