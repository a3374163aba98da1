"""Slabs of rows become blocks: checked, shifted, in the precision of the pass; and what multiplies them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, DType, Integers, working_dtype
from bigpca.csr import form_of
from bigpca.devices import Namespace
from bigpca.errors import NonFiniteError, counted
from bigpca.forms import DenseForm, Values
from bigpca.host import HOST

PRECISE_FLOPS = 1e11  # passes, and all typical passes of an iteration, up to this cost are computed in float64
# Of products by which a solve divides: few digits of those leave none, whatever they cost.
PRECISE = np.dtype(np.float64)


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

    def weighted(self, weights: NDArray[np.float64]) -> Block:
        """Return the same rows with weights (rows,) > 0."""
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
