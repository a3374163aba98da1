"""The row step of a group: slabs become blocks, mapped, weighted, without rows that do not count, about one shift."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from bigpca.arrays import Array, DType, Integers
from bigpca.csr import form_of
from bigpca.data.weights import CountedRows
from bigpca.devices import Device, Namespace, all_finite, dtype_of, marks
from bigpca.engine.interfaces import RowSource
from bigpca.forms import Values, magnitude
from bigpca.host import HOST
from bigpca.passes.reading.blocks import Block, complete_rows, non_finite, rows_with
from bigpca.passes.reading.row_maps import MapStep, map_stored, map_tiles

LARGEST_SUMMED = 1e36  # 128 such values can be added in float32
LARGEST_SQUARED = 1e154  # whose square float64 holds
LARGEST_GROWTH = 1e17  # whose squares float32 holds


@dataclass(frozen=True)
class Look:
    """Sums over the columns (b,) and the rows (d,) of a block on a device, which are finite if its values are.

    They are looked at when the group ends, because a look at each block would wait for its products.
    """

    rows: Integers
    where: str
    by_row: Array
    by_column: Array


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
    device : Host or Device
        Where blocks are multiplied.
    maps : tuple of MapStep
        Those of stored rows first; once it is made, the others, which map complete rows.
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
    device: Namespace = HOST
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
    of_stored: tuple[MapStep, ...] = ()

    def __post_init__(self) -> None:
        self.of_stored = tuple(step for step in self.maps if step.f.of_stored)
        self.maps = self.maps[len(self.of_stored) :]

    @property
    def plain(self) -> bool:
        """Whether rows are subtracted from as they are checked: neither mapped nor put on a device after that."""
        return not self.maps and not (self.of_stored and self.device.driven)

    def apply(self, slab: Values, row: int) -> Iterator[Block]:
        """Yield the blocks of a slab, one per mapped tile, all about one shift, without empty ones.

        Sparse rows are one block about zero, or as their maps leave them: sparse, or dense and about a shift.
        """
        self.count += slab.shape[0]
        slab, numbers = self.counted.of_slab(slab, row, self.first)
        if self.copied and isinstance(slab, np.ndarray):
            slab = slab.copy()
        self.omitted += slab.shape[0]
        last = row + slab.shape[0] if numbers is None else int(numbers[-1]) + 1 if len(numbers) else row
        where = self.reader.where(row, last)
        complete = self.prepared(slab, row, where, self.shift, numbers, owned=numbers is not None)
        for block in (complete,) if self.plain else self._mapped(complete, where):
            block = self.counted.weigh(block, self.first)
            self.omitted -= block.count
            if block.count:  # rows that are all left out say nothing of where the others are
                self.shift = block.origin  # of a device, there: it is transferred once
                yield block

    def _mapped(self, complete: Block, where: str) -> Iterator[Block]:
        shift = self.shift
        for rows, numbers in map_tiles(self.maps, complete, where):
            block = Block.about(rows, numbers, shift, self.device)
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

        Raises
        ------
        NonFiniteError
            Names the number of values, the first rows, the column and the block.
        """
        rows = np.arange(row, row + slab.shape[0]) if numbers is None else numbers
        if self.of_stored and self.nan_policy == "omit":
            keep = complete_rows(slab)
            slab, rows = slab[keep], rows[keep]
        stored = map_stored(self.of_stored, slab, rows, where, owned=owned or self.reader.owned)
        slab, owned = stored, owned or self.reader.owned or stored is not slab
        if self.there:
            return self._on(cast("Device", self.device), slab, rows, where, shift)
        form, searched = form_of(slab), self.searched and self.plain
        about = form.first_shift(slab, shift, self.dtype) if self.plain else None
        # Memory is traversed once: a strip of rows is converted, shifted, summed and searched while it is in the cache.
        # Column sums, which the moments need anyway, show NaN and infinities.
        with np.errstate(all="ignore"):
            shifted, sums, largest = form.centred(slab, about, owned=owned, dtype=self.dtype, find_largest=searched)
            if not np.isfinite(sums).all():
                stored = form.stored(shifted)
                bad = np.isinf(stored) if self.keeps_nan else ~np.isfinite(stored)
                if bad.any():
                    if self.nan_policy != "omit":
                        marks = form.dense(form.mapped(shifted, lambda values: bad))
                        raise non_finite(marks, marks, rows, where)
                    keep = ~rows_with(shifted, bad)
                    shifted, rows = shifted[keep], rows[keep]
                    largest = magnitude(form.stored(shifted))
                sums = form.total(shifted)
        origin, centre = form.origin(about, sums, *shifted.shape)
        return Block(shifted, rows, origin, sums, largest if searched else None, centre=centre)

    def _on(self, device: Device, values: Values, rows: Integers, where: str, shift: Array | None) -> Block:
        """Put rows on a device, and subtract the shift there.

        What shows whether all values are finite is looked at later; only rows that are left out are looked for at once.
        """
        there = device.rows(values if device.takes(values.dtype) else values.astype(self.dtype))
        there.settle()
        block = Block.about(there, rows, shift, device, self.dtype)
        look = Look(rows, where, marks(block.values), block.sums)
        if self.nan_policy != "omit":
            self.looks.append(look)
            return block
        keep = np.isfinite(device.fetch(look.by_row))
        return block if keep.all() else Block.about(there[keep], rows[keep], block.origin, device, self.dtype)

    @property
    def there(self) -> bool:
        """Whether rows are put on the device as they are read, and checked there."""
        return self.device.driven and self.plain and not self.made_here

    def check(self, sums: Iterable[Array] = ()) -> None:
        """Reject blocks on a device that had NaN or infinite values, and sums there that are not finite.

        Raises
        ------
        NonFiniteError
            Names the first rows, the columns and the block.
        ValueError
            For values whose sums leave the range of float32.
        """
        device, looks = self.device, self.looks
        shown = [*(one for look in looks for one in (look.by_row, look.by_column)), *sums]
        if all_finite(shown):
            looks.clear()
            return
        for look in looks:
            by_row, by_column = (~np.isfinite(device.fetch(one)) for one in (look.by_row, look.by_column))
            if by_row.any():
                raise non_finite(by_row, by_column, look.rows, look.where)
        kind = dtype_of(looks[0].by_row) if looks else np.dtype(np.float32)
        raise ValueError(
            f"sums over {looks[0].where if looks else 'the rows'} are beyond {kind} on {device.name}: values of more "
            f"than {LARGEST_SUMMED if kind == np.float32 else LARGEST_SQUARED:g}, or more than {LARGEST_GROWTH:g} "
            "times those of the first rows. Divide such columns by a constant, pass float64 rows, or use "
            'arithmetic="numpy".'
        )
