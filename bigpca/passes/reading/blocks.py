"""The row step of a group: slabs become blocks, mapped, weighted, without rows that do not count, about one shift.

And in which precision they are multiplied, and what is said of rows with NaN or infinite values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, DType, Integers, working_dtype
from bigpca.csr import form_of
from bigpca.data.weights import CountedRows
from bigpca.devices import Device, Namespace, all_finite, dtype_of, marks
from bigpca.engine.interfaces import RowSource
from bigpca.errors import NonFiniteError, counted
from bigpca.forms import DenseForm, Values, magnitude
from bigpca.host import HOST
from bigpca.passes.reading.row_maps import MapStep, map_stored, map_tiles

PRECISE_FLOPS = 1e11  # passes, and all typical passes of an iteration, up to this cost are computed in float64
# Of products by which a solve divides: few digits of those leave none, whatever they cost.
PRECISE = np.dtype(np.float64)
LARGEST_SUMMED = 1e36  # 128 such values can be added in float32
LARGEST_SQUARED = 1e154  # whose square float64 holds
LARGEST_GROWTH = 1e17  # whose squares float32 holds
# Policies by which a fit uses incomplete rows, and transform projects them. All rows decide what is made of a gap.
INCOMPLETE = ("mean", "pairwise", "em")
REMEDY = (
    'Pass nan_policy="omit" to leave those rows out (solvers that pair all rows, such as "dot", reject that), or '
    'nan_policy="mean" to fill in the means of the columns for NaN, not for infinities, in fit and transform of PCA '
    "and ApproximatePCA; whatever else reads rows takes complete ones"
)


def product_dtype(dtype: DType, flops: float) -> DType:
    """Return the dtype in which blocks are multiplied if the whole pass costs ``flops``.

    Products in float32 have an error of about 1e-7 of the largest eigenvalue, which decreases with sqrt(n) and d. For
    small passes that error is largest and float64 costs little (at most a second or two more), so they use float64.
    """
    return np.dtype(np.float64) if flops <= PRECISE_FLOPS else working_dtype(dtype)


@dataclass(frozen=True)
class Block:
    """Rows ready for arithmetic: upcast, finite, and minus one fixed shift per group.

    Attributes
    ----------
    values : ndarray of shape (rows, d), float32 or float64, or csr_array; ``x - shift``, with shift 0 for CSR
        RowsThere, of a block on a device.
    rows : ndarray of shape (rows,), int64
        Absolute row numbers: consecutive unless rows with missing values were omitted.
    shift : ndarray of shape (d,), float64
        Exactly representable in the dtype of ``values``.
    sums : ndarray of shape (d,), float64
        Column sums of ``values``, weighted if the rows are; of a block on a device, there, as is a shift that was not
        given.
    largest : float or None
        Largest magnitude in ``values``; None if it was not computed, as of blocks on a device.
    weights : ndarray of shape (rows,), float64, or None
        Weight of each row; None if every row counts once.
    device : Host or Device
        Where the values are, and states multiply them.
    centre : ndarray of shape (d,), float64, or None
        Of CSR values: what dense rows would be shifted by, for states that subtract it from products with the rows.
        The mean of the block if none is given. Of a block on a device, the shift there; None for other dense values.
    """

    values: Values
    rows: Integers
    shift: NDArray[np.float64]
    sums: NDArray[np.float64]
    largest: float | None = None
    weights: NDArray[np.float64] | None = None
    device: Namespace = HOST
    centre: NDArray[np.float64] | None = None

    @classmethod
    def about(
        cls,
        values: Values,
        rows: Integers,
        shift: Array | None,
        device: Namespace = HOST,
        dtype: DType | None = None,
    ) -> Block:
        """Return a block of finite rows, less the shift, or their own mean if it is None.

        In place, if they are in the host's memory; from a device, nothing is fetched.
        """
        with device.precise():
            there = device.rows(values)
            given = values.dtype if isinstance(values.dtype, np.dtype) else there.dtype  # or a dtype of the library
            shifted, sums, about, centre = form_of(there).shifted(there, shift, dtype or given)
            return cls(shifted, rows, about, sums, device=device, centre=centre)

    @property
    def form(self) -> DenseForm:
        """What the values do in the way of their kind."""
        return form_of(self.values)

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.values.shape[0])

    @property
    def origin(self) -> NDArray[np.float64]:
        """What later blocks of the group are shifted by, or centred about."""
        return self.shift if self.centre is None else self.centre

    @property
    def each(self) -> NDArray[np.float64]:
        """The weight of each row (rows,), 1 where every row counts once."""
        return np.ones(self.count) if self.weights is None else self.weights

    def weights_at(self, which: slice[int, int, None] | Integers) -> NDArray[np.float64] | None:
        """Return the weights of some of the rows, for :meth:`weighted`."""
        return None if self.weights is None else self.weights[which]

    def weighted(self, weights: NDArray[np.float64] | None) -> Block:
        """Return the same rows with weights (rows,) > 0; None changes nothing."""
        if weights is None:
            return self
        return replace(self, weights=weights, sums=self.form.column_sums(self.values, weights=weights))

    def strips(self, shift: Array | None = None) -> Iterator[Block]:
        """Return the rows as dense blocks, cut to 4 MiB, about ``shift`` or else the mean of the first one."""
        return self.form.strips_of(self, shift)

    def taken(self, whole: bool) -> Iterator[Block]:
        """Yield the rows for what takes sparse ones as they are (``whole``), or as dense strips about this shift."""
        return iter((self,)) if whole else self.strips(self.shift)

    def moved(self, shift: NDArray[np.float64]) -> Block:
        """Return the same values as rows that are less another shift too."""
        return replace(self, shift=shift + self.shift, centre=None)


def complete_rows(values: Values) -> NDArray[np.bool_]:
    """Return which rows have finite values only."""
    return ~rows_with(values, ~np.isfinite(form_of(values).stored(values)))


def rows_with(values: Values, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which rows (b,) have some of the values that they store."""
    form = form_of(values)
    return form.along_rows(form.mapped(values, lambda stored: chosen), np.logical_or, np.bool_)


def non_finite(
    by_row: NDArray[np.bool_], by_column: NDArray[np.bool_], numbers: Integers, where: str
) -> NonFiniteError:
    """Return the error for rows (b,) and columns (d,) with NaN or infinite values, or for which values (b, d)."""
    bad = by_row if by_row.ndim == 2 else None
    rows = np.flatnonzero(by_row if bad is None else np.any(bad, axis=1))
    columns = np.flatnonzero(by_column if bad is None else np.any(bad, axis=0))
    shown = ", ".join(str(numbers[r]) for r in rows[:5]) + (", ..." if len(rows) > 5 else "")
    if bad is None:
        what, first = "NaN or infinite values", f"in column {', '.join(map(str, columns[:5]))}"
    else:
        column = int(np.flatnonzero(bad[rows[0]])[0])
        what, first = counted(int(bad.sum()), "NaN or infinite value"), f"in row {numbers[rows[0]]}, column {column}"
    error = NonFiniteError(
        f"{what} in {counted(len(rows), 'row')} of {where}: row{'s'[: len(rows) != 1]} {shown}; the first is {first}. "
        f"Finite values were expected; masked entries are treated as NaN. "
        f"{REMEDY}; or repair the data."
    )
    error.columns = tuple(columns.tolist())
    return error


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
        for rows, numbers in map_tiles(self.maps, complete.values, complete.rows, where):
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
