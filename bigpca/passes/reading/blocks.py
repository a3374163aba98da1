"""How rows become blocks: reads, slabs, groups and segments, and the arithmetic precision of a block.

Everything here depends on shape, dtype and chunks alone, never on memory limits, workers or threads, so that the same
store gives the same bits wherever it is folded.

- a *read* is a run of whole row chunks, about 64 MiB, or one larger chunk;
- a *slab* is what is multiplied at a time: a read, or a slice of a larger one;
- a *group* is what one task reads and folds into one state;
- a *segment* is what a checkpoint stores: at most 64 in a pass, each a run of groups merged by a fixed binary tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import NonFiniteError

MIB = 1 << 20
SLAB_BYTES = 64 * MIB
WIDE_SLAB_BYTES = 32 * MIB  # for rows over 64 KiB, whose states are large already
SLAB_ROWS = 8192  # enough rows that a d x d addition per slab is hidden by the product
SLAB_LEAST = 4 * MIB
CACHED_BYTES = 3 * MIB // 2  # of rows looked at several times in a row
GROUP_BYTES = 256 * MIB
GROUP_LEAST = 4 * MIB
MOST_GROUPS = 4096
LEAST_GROUPS = 16
MOST_SEGMENTS = 64
PRECISE_FLOPS = 1e11
FLOAT32_LEAST, FLOAT32_MOST = 1e-12, 1e12  # largest entry of a block that is multiplied in float32


def working_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.floating]:
    """Return the dtype in which blocks of ``dtype`` are multiplied: float32 where it holds every value, else float64.

    >>> [working_dtype(np.dtype(t)).name for t in ("f2", "u1", "?", "i4", "f8")]
    ['float32', 'float32', 'float32', 'float64', 'float64']
    """
    exact = dtype.kind == "b" or dtype.itemsize <= 2 or dtype == np.float32
    return np.dtype(np.float32) if exact else np.dtype(np.float64)


def product_dtype(dtype: np.dtype[np.generic], flops: float) -> np.dtype[np.floating]:
    """Return the dtype in which blocks are multiplied when the whole pass costs ``flops``.

    float32 products carry an error of about 1e-7 of the largest eigenvalue, which falls with sqrt(n) and d. Where the pass
    is small that error is largest and float64 costs little (at most a second or two more), so small passes use it.
    """
    return np.dtype(np.float64) if flops <= PRECISE_FLOPS else working_dtype(dtype)


@dataclass(frozen=True)
class Layout:
    """Where the reads, groups and segments of one pass begin and end.

    Attributes
    ----------
    n_rows, n_columns : int
    row_bytes : int
        Bytes of one row in the working dtype.
    slab_rows : int
        Most rows multiplied at a time.
    reads : tuple of (start, stop)
        Consecutive row ranges.
    groups, segments : tuple of range
        Ranges of reads, and ranges of groups.
    """

    n_rows: int
    n_columns: int
    row_bytes: int
    slab_rows: int
    reads: tuple[tuple[int, int], ...]
    groups: tuple[range, ...]
    segments: tuple[range, ...]

    @property
    def read_rows(self) -> int:
        """Most rows held by one read."""
        return max((b - a for a, b in self.reads), default=0)

    def rows_of(self, group: int) -> tuple[int, int]:
        """First and last + 1 row of a group."""
        reads = self.groups[group]
        return self.reads[reads[0]][0], self.reads[reads[-1]][1]


def plan_layout(row_chunks: Sequence[int], n_columns: int, dtype: np.dtype[np.generic], state_bytes: int) -> Layout:
    """Cut rows into reads, groups and segments.

    ``groups = clamp(bytes / max(256 MiB, 8 state), 16, 4096)``, never less than 4 MiB a group; all bytes in the working
    dtype, so that a uint8 store is cut as its float32 copy would be. Where groups would hold one large read each (over 32
    MiB), with nothing to read while it is multiplied, there are fewer that hold two.
    """
    row_bytes = max(1, n_columns * working_dtype(dtype).itemsize)
    most = SLAB_BYTES if row_bytes <= 1 << 16 else WIDE_SLAB_BYTES
    slab_bytes = min(most, max(SLAB_LEAST, SLAB_ROWS * row_bytes))
    slab_rows = max(1, slab_bytes // row_bytes)
    n_rows = int(sum(row_chunks))
    total = n_rows * row_bytes
    wanted = min(MOST_GROUPS, max(LEAST_GROUPS, -(-total // max(GROUP_BYTES, 8 * state_bytes))))
    wanted = max(1, min(wanted, total // GROUP_LEAST))
    reads = _join_chunks(row_chunks, min(slab_rows, max(1, -(-n_rows // wanted))))
    if wanted <= len(reads) < 2 * wanted and 2 * row_bytes * max(b - a for a, b in reads) > SLAB_BYTES:
        wanted = max(1, len(reads) // 2)
    groups = _split_evenly([b - a for a, b in reads], wanted)
    segments = _split_evenly([1] * len(groups), MOST_SEGMENTS)
    return Layout(n_rows, n_columns, row_bytes, slab_rows, reads, groups, segments)


def _join_chunks(row_chunks: Sequence[int], most_rows: int) -> tuple[tuple[int, int], ...]:
    """Join consecutive chunks while they hold at most ``most_rows``; empty chunks vanish, larger ones stay whole."""
    reads: list[tuple[int, int]] = []
    start = row = 0
    for size in row_chunks:
        if row > start and row + size - start > most_rows:
            reads.append((start, row))
            start = row
        row += size
    if row > start:
        reads.append((start, row))
    return tuple(reads)


def _split_evenly(weights: Sequence[int], parts: int) -> tuple[range, ...]:
    """Cut consecutive items into at most ``parts`` non-empty runs of about equal weight: at the ends nearest to equal ones."""
    ends = np.cumsum(np.asarray(weights, dtype=np.int64)) if len(weights) else np.zeros(0, np.int64)
    runs: list[range] = []
    start = 0
    for part in range(1, parts + 1):
        if start >= len(ends):
            break
        target = ends[-1] * part / parts
        nearest = int(np.searchsorted(ends, target))
        if nearest and target - ends[nearest - 1] < ends[nearest] - target:
            nearest -= 1
        stop = max(start, nearest) + 1
        runs.append(range(start, stop))
        start = stop
    return tuple(runs)


@dataclass(frozen=True)
class Block:
    """Rows ready for arithmetic: upcast, finite, and with one fixed shift of the group subtracted.

    Attributes
    ----------
    values : ndarray of shape (rows, d), float32 or float64; ``x - shift``
    rows : ndarray of shape (rows,), int64
        Absolute row numbers: consecutive unless rows with missing values were omitted.
    shift : ndarray of shape (d,), float64
        Exactly representable in the dtype of ``values``.
    sums : ndarray of shape (d,), float64
        Column sums of ``values``.
    largest : float or None
        Largest magnitude in ``values``; None where nobody looked.
    """

    values: NDArray[np.floating]
    rows: NDArray[np.int64]
    shift: NDArray[np.float64]
    sums: NDArray[np.float64]
    largest: float | None = None


def within_range(values: NDArray[np.floating], largest: float | None = None) -> NDArray[np.floating]:
    """Return values in float64 where products of two, or of two with a third, leave float32's range."""
    if values.dtype == np.float64 or not values.size:
        return values
    if largest is None:
        largest = _largest(values)
    return values if largest == 0 or FLOAT32_LEAST < largest < FLOAT32_MOST else values.astype(np.float64)


def _largest(values: NDArray[np.floating]) -> float:
    return max(float(values.max()), -float(values.min()))


def column_sums(values: NDArray[np.floating], total: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Sum each column: 128 rows at a time in the block's precision, then in float64 (16 times as fast as all float64).

    Added to ``total`` (d,) in place where it is given.
    """
    if total is None:
        total = np.zeros(values.shape[1])
    whole = len(values) // 128 * 128
    if whole:
        total += values[:whole].reshape(-1, 128, values.shape[1]).sum(axis=1).sum(axis=0, dtype=np.float64)
    if whole < len(values):
        total += values[whole:].sum(axis=0)
    return total


def cached_rows(row_bytes: int) -> int:
    """Rows of a strip that stays in a core's cache from one look at it to the next; whole 128s where it has as many."""
    rows = max(1, CACHED_BYTES // max(1, row_bytes))
    return rows if rows < 128 else rows // 128 * 128


def group_shift(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the mean of a slab's finite entries, rounded to its own precision so that subtracting it is exact."""
    with np.errstate(all="ignore"):
        mean = column_sums(values) / max(1, len(values))
        if not np.isfinite(mean).all():
            mean = np.where(np.isfinite(values), values, 0).mean(axis=0, dtype=np.float64)
        shift = mean.astype(values.dtype)
    shift[~np.isfinite(shift)] = 0
    return shift


def prepare_block(
    values: NDArray[np.floating],
    row_start: int,
    shift: NDArray[np.floating],
    *,
    owned: bool,
    nan_policy: str,
    where: str,
    find_largest: bool = False,
) -> Block:
    """Subtract the shift and find NaN and infinities through the column sums, which the moments need anyway.

    One walk through memory: a strip of rows is shifted, summed and, with ``find_largest``, searched while it lies in the
    cache.

    Parameters
    ----------
    values : ndarray of shape (rows, d), in the working dtype
    owned : bool
        Whether ``values`` may be overwritten.
    nan_policy : {"raise", "omit"}
    where : str
        What to call the block in an error.

    Raises
    ------
    NonFiniteError
        With count, first rows, column and block.
    """
    rows = np.arange(row_start, row_start + len(values))
    with np.errstate(all="ignore"):
        shifted = values if owned else np.empty_like(values)
        sums, largest = np.zeros(values.shape[1]), 0.0
        step = cached_rows(values.shape[1] * values.itemsize)
        for i in range(0, len(values), step):
            strip = np.subtract(values[i : i + step], shift, out=shifted[i : i + step])
            column_sums(strip, sums)
            if find_largest:
                largest = max(largest, _largest(strip))
        if not np.isfinite(sums).all():
            bad = ~np.isfinite(shifted)
            if bad.any():
                if nan_policy == "raise":
                    raise _non_finite(bad, row_start, where)
                keep = ~bad.any(axis=1)
                shifted, rows = shifted[keep], rows[keep]
                largest = _largest(shifted) if shifted.size else 0.0
            sums = shifted.sum(axis=0, dtype=np.float64)
    return Block(shifted, rows, shift.astype(np.float64), sums, largest if find_largest else None)


def _non_finite(bad: NDArray[np.bool_], row_start: int, where: str) -> NonFiniteError:
    rows = np.flatnonzero(bad.any(axis=1))
    shown = ", ".join(str(row_start + r) for r in rows[:5]) + (", ..." if len(rows) > 5 else "")
    column = int(np.flatnonzero(bad[rows[0]])[0])
    return NonFiniteError(
        f"{int(bad.sum())} NaN or infinite values in {len(rows)} rows of {where}: rows {shown}; "
        f"the first is in row {row_start + rows[0]}, column {column}. Finite values were expected; masked entries count as NaN. "
        f'Pass nan_policy="omit" to leave those rows out (solvers that pair all rows, such as "dot", refuse that), or repair '
        f"the data."
    )
