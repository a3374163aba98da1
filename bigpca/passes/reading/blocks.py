"""Slabs of rows become blocks: checked, shifted, in the precision of the pass; and what multiplies them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca import blas, csr
from bigpca.arrays import Array, DType, Integers, Vector, working_dtype
from bigpca.data.sparse import stored_values, with_values
from bigpca.devices import Device, RowsThere, library_on
from bigpca.engine.layout import MIB
from bigpca.errors import NonFiniteError, counted

Values: TypeAlias = Array | csr_array  # or RowsThere, where a read asked for them
STRIP_BYTES = 4 * MIB  # of sparse rows that are made dense at a time
CACHED_BYTES = 3 * MIB // 2  # of rows that are accessed several times in succession
PRECISE_FLOPS = 1e11  # passes, and all typical passes of an iteration, up to this cost are computed in float64
# Of products by which a solve divides: few digits of those leave none, whatever they cost.
PRECISE = np.dtype(np.float64)


def multiply(V: Values, Q: Array) -> Array:
    """Return ``V Q``, by BLAS gemm or a sparse product."""
    if isinstance(V, csr_array):
        return csr.multiply(V, Q)
    product: Array = V @ Q.astype(V.dtype, copy=False)
    return product


def add_product(V: Values, Z: Array, out: Array) -> None:
    """Add ``V'Z``, by BLAS gemm or a sparse product."""
    (csr if isinstance(V, csr_array) else blas).add_product(V, Z, out)


def zeros(V: Values, columns: int) -> Array:
    """Return (d, l) zeros: in C order for CSR, else in Fortran order, a fifth faster for widths near 100."""
    return np.zeros((V.shape[1], columns), V.dtype, order="C" if isinstance(V, csr_array) else "F")


def column_sums(
    values: Values, total: Vector | None = None, weights: Vector | None = None, dtype: DType | None = None
) -> Vector:
    """Sum each column: 128 rows at a time in the block's precision, then in float64 (16 times as fast as all float64).

    If ``total`` (d,) is given, the sums are added to it in place. With weights (rows,), ``sum_t w_t x_t``, all in
    float64. Rows are converted to ``dtype`` a few at a time.
    """
    if total is None:
        total = np.zeros(values.shape[1])
    if isinstance(values, csr_array):
        csr.add_column_sums(values, total, weights)
        return total
    if weights is not None:
        step = cached_rows(8 * max(1, values.shape[1]))
        for i in range(0, len(values), step):
            total += values[i : i + step].astype(np.float64).T @ weights[i : i + step]
        return total
    whole = len(values) // 128 * 128
    dtype = values.dtype if dtype is None else dtype
    if whole:
        step = max(128, cached_rows(values.shape[1] * dtype.itemsize) // 128 * 128)
        strips = (values[i : min(i + step, whole)].astype(dtype, copy=False) for i in range(0, whole, step))
        parts = [strip.reshape(-1, 128, strip.shape[1]).sum(axis=1) for strip in strips]
        total += np.concatenate(parts).sum(axis=0, dtype=np.float64)
    if whole < len(values):
        total += values[whole:].astype(dtype, copy=False).sum(axis=0)
    return total


NEITHER = (
    'Pass nan_policy="omit" to leave those rows out (solvers that pair all rows, such as "dot", reject that), '
    'nan_policy="mean" to fill in the means of the columns for NaN (PCA and ApproximatePCA)'
)
FITS_ONLY = (
    'With nan_policy="mean" a fit fills in NaN, but no infinities, and transform takes incomplete rows; whatever else '
    'reads rows takes complete ones. Set nan_policy="omit" to leave those rows out'
)
FLOAT32_MIN, FLOAT32_MAX = 1e-12, 1e12  # largest entry of a block that is multiplied in float32


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
    device : Device or None
        Where the values are, and states multiply them by another array library; None for this process.
    centre : ndarray of shape (d,), float64, or None
        Of CSR values: what dense rows would be shifted by, for states that subtract it from products with the rows.
        The mean of the block if none is given. Of a block on a device, the shift there; None for other dense values.
    doubles : bool
        Whether the rows came in float64: other dtypes hold no value whose square float64 loses, so none is looked for.
    """

    values: Values
    rows: Integers
    shift: NDArray[np.float64]
    sums: NDArray[np.float64]
    largest: float | None = None
    weights: NDArray[np.float64] | None = None
    device: Device | None = None
    centre: NDArray[np.float64] | None = None
    doubles: bool = True

    def __post_init__(self) -> None:
        """Set sums of tiny values to :data:`bigpca.csr.SEEN`, as :func:`bigpca.csr.add_column_sums` does for CSR."""
        V = self.values
        if not self.doubles or isinstance(V, csr_array) or V.dtype != np.float64 or not self.count:
            return
        if self.device is not None:  # all columns are looked at, because nothing is fetched
            largest = self.device.largest(V, 0)
            still = (abs(self.sums) < csr.SEEN) & (largest > 0) & (largest < csr.LEAST_SQUARED)
            object.__setattr__(self, "sums", self.device.xp.where(still, csr.SEEN, self.sums))
        elif (still := (np.abs(self.sums) < csr.SEEN) & (np.abs(self.shift) < csr.SEEN)).any():
            few = 4 * np.count_nonzero(still) <= len(still)  # which are copied, in less time
            looked = V[:, still] if few else V
            largest = np.maximum(np.max(looked, axis=0), -np.min(looked, axis=0))
            tiny = (largest > 0) & (largest < csr.LEAST_SQUARED)
            still[still] = tiny if few else tiny[still]
            object.__setattr__(self, "sums", np.where(still, csr.SEEN, self.sums))

    def noted(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return sums (..., d), there if the block is on a device, plus :data:`bigpca.csr.SEEN` where its own are that.

        For states whose means are not of the sums of blocks.
        """
        if not self.doubles:
            return sums
        xp: ModuleType = library_on(self.device)
        return sums + xp.where(self.sums == csr.SEEN, self.sums, 0.0)  # type: ignore[no-any-return]

    @classmethod
    def about(cls, values: Values, rows: Integers, shift: Array | None, device: Device | None = None) -> Block:
        """Return a block of finite rows; subtracts the shift in place, or their own mean if it is None."""
        if device is not None:
            return cls.on(device, device.rows(values), rows, shift)
        shift = group_shift(values) if shift is None else shift.astype(values.dtype, copy=False)
        values -= shift
        return cls(values, rows, shift.astype(np.float64), column_sums(values))

    @classmethod
    def on(
        cls, device: Device, values: RowsThere, rows: Integers, shift: Array | None, dtype: DType | None = None
    ) -> Block:
        """Return a block of rows on a device, less a shift or their own mean; nothing is fetched."""
        with device.precise():
            shifted, there = device.shifted(values, shift, dtype or values.dtype)
            about = shift.astype(shifted.dtype).astype(np.float64) if isinstance(shift, np.ndarray) else there
            doubles = values.dtype == np.float64
            return cls(shifted, rows, about, device.sums(shifted), device=device, centre=there, doubles=doubles)

    @classmethod
    def of_csr(cls, values: csr_array, rows: Integers, centre: NDArray[np.float64] | None = None) -> Block:
        """Return a block of finite sparse rows about zero, because a shift would make them dense."""
        zero, sums = np.zeros(values.shape[1]), column_sums(values)
        near = sums / max(1, values.shape[0]) if centre is None else centre
        return cls(values, rows, zero, sums, centre=near)

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
        sums = column_sums if self.device is None else self.device.sums
        return replace(self, weights=weights, sums=sums(self.values, weights=weights))

    def strips(self, shift: Array | None = None) -> Iterator[Block]:
        """Yield the rows as dense blocks of at most 4 MiB, about ``shift`` or else the mean of the first strip."""
        if not isinstance(self.values, csr_array):
            yield self
            return
        for values, first in dense_strips(self.values):
            part = slice(first, first + len(values))
            block = Block.about(values, self.rows[part], shift)
            shift = block.shift
            yield block if self.weights is None else block.weighted(self.weights[part])


class CodeRows(Protocol):
    """Codes of rows that come with the rows."""

    @property
    def nbytes(self) -> int:
        """Bytes of the codes."""

    def __len__(self) -> int:
        """Number of rows."""

    @overload
    def __getitem__(self, rows: slice[int | None, int, None]) -> Codes: ...
    @overload
    def __getitem__(self, rows: Integers) -> NDArray[np.int32]: ...
    def __getitem__(self, rows: slice[int | None, int, None] | Integers) -> Codes | NDArray[np.int32]:
        """Return the codes of a slice of rows (an array if it is empty), or an array of those with given numbers."""

    def digest(self) -> str:
        """What identifies them before the read."""


Codes: TypeAlias = NDArray[np.int32] | CodeRows


@dataclass(frozen=True)
class CountedRows:
    """Which rows count, and how often. What the others hold is never looked at.

    Attributes
    ----------
    weights : ndarray of shape (n,), float64, or None
        How often; None for once.
    present : ndarray of shape (n,), bool, or None
        Which rows have a weight above 0, and the label that a fit requires; None for all.
    coming : ndarray of int32, or CodeRows, or None
        Of labels that come with the rows: below 0 for rows without one.
    """

    weights: NDArray[np.float64] | None = None
    present: NDArray[np.bool_] | None = None
    coming: Codes | None = None

    @property
    def sums(self) -> tuple[float, float] | None:
        """Sums of the weights and of their squares."""
        w = self.weights
        return None if w is None else (float(w.sum()), float(w @ w))

    def among(self, labels: Codes) -> CountedRows:
        """Return the same without rows whose code is below 0."""
        if not isinstance(labels, np.ndarray):
            return replace(self, coming=labels)
        own = labels >= 0
        present = own if self.present is None else own & self.present
        return CountedRows(None if self.weights is None else np.where(own, self.weights, 0.0), present)

    def part(self, start: int, stop: int) -> CountedRows:
        """Return those of rows ``start:stop``, numbered from 0."""
        own, (w, present, coming) = slice(start, stop), (self.weights, self.present, self.coming)
        coming = None if coming is None else coming[own]
        return CountedRows(None if w is None else w[own], None if present is None else present[own], coming)

    def absent(self, n: int) -> int:
        """Return how many of the first n rows do not count, once the labels that come with them are known."""
        step = 2**20
        strips = (self.of_slab(np.empty((min(step, n - row), 0)), row)[0] for row in range(0, n, step))
        return n - sum(int(strip.shape[0]) for strip in strips)

    def of_slab(self, slab: Values, row: int, first: int = 0) -> tuple[Values, Integers | None]:
        """Return the rows of a slab that count, and their numbers unless these are consecutive, from ``row`` on.

        ``first`` is the number of the first row of this.
        """
        if self.present is None and self.coming is None:
            return slab, None
        numbers = np.arange(row, row + slab.shape[0])
        present = np.ones(len(numbers), bool) if self.present is None else self.present[numbers - first]
        if self.coming is not None:
            present = present & (self.coming[numbers - first] >= 0)
        return (slab, None) if present.all() else (slab[present], numbers[present])


def dense_strips(values: csr_array) -> Iterator[tuple[Array, int]]:
    """Yield sparse rows as dense arrays of at most 4 MiB, and the place of the first row of each."""
    step = strip_rows(values.shape[1], values.dtype.itemsize)
    for i in range(0, values.shape[0], step):
        yield values[i : i + step].toarray(), i


def strip_rows(d: int, itemsize: int) -> int:
    """Return the rows of d columns that are made dense at a time."""
    return max(1, STRIP_BYTES // max(1, d * itemsize))


def within_range(values: Values, largest: float | None = None) -> Values:
    """Convert values to float64 if products of two, or of two with a third, would leave the range of float32."""
    if values.dtype == np.float64 or 0 in values.shape:
        return values
    if largest is None:
        largest = _largest(stored_values(values))
    return values if largest == 0 or FLOAT32_MIN < largest < FLOAT32_MAX else values.astype(np.float64)


def _largest(values: Array) -> float:
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))


def cached_rows(row_bytes: int) -> int:
    """Return the rows of a strip that stays in a core's cache between accesses; a multiple of 128 if possible."""
    rows = max(1, CACHED_BYTES // max(1, row_bytes))
    return rows if rows < 128 else rows // 128 * 128


def group_shift(values: Values, dtype: DType | None = None) -> Array:
    """Return the mean of a slab's finite entries in the ``dtype`` of its block, by default its own.

    Of dense rows, only the complete ones count, if there are any: the others may be left out, and may be far from them.
    """
    with np.errstate(all="ignore"):
        mean = column_sums(values, dtype=dtype) / max(1, values.shape[0])
        if not np.isfinite(mean).all():
            known, counts = _known(values)
            mean = column_sums(known, dtype=dtype) / counts
        shift: Array = mean.astype(dtype or values.dtype)
    shift[~np.isfinite(shift)] = 0
    return shift


def complete_rows(values: Values) -> NDArray[np.bool_]:
    """Return which rows have finite values only."""
    bad = ~np.isfinite(stored_values(values))
    bad = with_values(values, bad) if isinstance(values, csr_array) else bad
    complete: NDArray[np.bool_] = bad.sum(axis=1) == 0
    return complete


def _known(values: Values) -> tuple[Values, Integers]:
    """Return rows without NaN and infinities, and how many values of each column (d,) their sums have.

    The complete rows, if they are dense and there are any; else all, with 0 in place of what is not finite.
    """
    if isinstance(values, csr_array):
        finite = np.isfinite(values.data)
        missing = np.bincount(values.indices[~finite], minlength=values.shape[1])
        zeros = np.where(finite, values.data, 0)
        return csr_array((zeros, values.indices, values.indptr), values.shape), np.maximum(1, values.shape[0] - missing)
    finite = np.isfinite(values)
    complete = finite.all(axis=1)
    if complete.any():
        return values[complete], np.full(values.shape[1], np.count_nonzero(complete))
    return np.where(finite, values, 0), np.maximum(1, np.count_nonzero(finite, axis=0))


def prepare_block(
    values: Values,
    row_start: int,
    shift: Array | None = None,
    *,
    owned: bool,
    nan_policy: str,
    where: str,
    find_largest: bool = False,
    numbers: Integers | None = None,
    keep_nan: bool = False,
    dtype: DType | None = None,
) -> Block:
    """Subtract the shift, and detect NaN and infinities by the column sums, which the moments need anyway.

    Memory is traversed once: a strip of rows is converted, shifted, summed and, with ``find_largest``, searched while
    it is in the cache.

    Parameters
    ----------
    values : ndarray of shape (rows, d)
    shift : ndarray of shape (d,), in the dtype of the block, or None for zeros
    owned : bool
        Whether ``values`` may be overwritten.
    nan_policy : {"raise", "omit", "mean"}
        "omit" leaves out rows with NaN or infinities. "raise" rejects both, and so does "mean", whose rows were filled
        as they were read.
    where : str
        Name of the block in errors.
    numbers : ndarray of shape (rows,), int64, or None
        Absolute row numbers, unless they are consecutive from ``row_start`` on.
    keep_nan : bool
        Leave NaN in the block, for states that count them: then the policy is that of infinities alone.
    dtype : dtype or None
        Of the block; None for that of ``values``.

    Raises
    ------
    NonFiniteError
        Names the number of values, the first rows, the column and the block.
    """
    rows = np.arange(row_start, row_start + len(values)) if numbers is None else numbers
    dtype = values.dtype if dtype is None else dtype
    shift = np.zeros(values.shape[1], dtype) if shift is None else shift
    with np.errstate(all="ignore"):
        sums, largest, step = np.zeros(values.shape[1]), 0.0, cached_rows(values.shape[1] * dtype.itemsize)
        shifted = values if owned and values.dtype == dtype else np.empty_like(values, dtype)
        for i in range(0, len(values), step):
            strip = shifted[i : i + step]
            if values.dtype != dtype:  # converted in place, without another strip
                strip[...] = values[i : i + step]
            np.subtract(strip if values.dtype != dtype else values[i : i + step], shift, out=strip)
            column_sums(strip, sums)
            if find_largest:
                largest = max(largest, _largest(strip))
        if not np.isfinite(sums).all():
            bad = np.isinf(shifted) if keep_nan else ~np.isfinite(shifted)
            if bad.any():
                if nan_policy != "omit":
                    raise non_finite(bad, bad, rows, where, nan_policy)
                keep = ~bad.any(axis=1)
                shifted, rows = shifted[keep], rows[keep]
                largest = _largest(shifted) if shifted.size else 0.0
            sums = shifted.sum(axis=0, dtype=np.float64)
    found = largest if find_largest else None
    return Block(shifted, rows, shift.astype(np.float64), sums, found, doubles=values.dtype == np.float64)


def non_finite(
    by_row: NDArray[np.bool_], by_column: NDArray[np.bool_], numbers: Integers, where: str, nan_policy: str
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
        f"{FITS_ONLY if nan_policy == 'mean' else NEITHER}, or repair the data."
    )
    error.columns = tuple(columns.tolist())
    return error
