"""How rows are divided, depending only on shape, dtype and chunks, never on memory limits, workers or threads.

The same store therefore gives the same bits wherever it is folded:

- a *read* is a run of whole row chunks, of 16 to 64 MiB, or one larger chunk;
- a *slab* is multiplied at a time: a read, or a slice of a larger one; its products have a number of *strips*, which
  threads without a group take;
- a *group* is read by one task and folded into one state;
- a *segment* is stored by a checkpoint: at most 64 per pass, each a run of groups merged by a fixed binary tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bigpca.arrays import DType, working_dtype
from bigpca.engine.planning import BYTE_WORK, MIN_GROUP_BYTES, PIECES, Layout

MIB = 1 << 20
SLAB_BYTES = 64 * MIB
WIDE_SLAB_BYTES = 32 * MIB  # for rows over 64 KiB, whose states are already large
SLAB_ROWS = 8192  # enough rows that a d x d addition per slab takes little time compared with the product
MIN_SLAB_BYTES = 4 * MIB
READ_BYTES = 16 * MIB  # of a read of several chunks: groups of any size then hold the same, as a thread has two reads
READ_ROWS = 1024  # at least, so that products take no longer: their sums go over several slabs
GROUP_BYTES = 256 * MIB
MAX_GROUPS = 4096  # of at least GROUP_BYTES; beyond, groups grow to LARGE_GROUP_BYTES before there are more of them
LARGE_GROUP_BYTES = 1024 * MIB
MOST_GROUPS = 16384  # keep 3,000 threads busy 91 % of the time: the last of six rounds is not full
MIN_GROUPS = 16
FEW_GROUPS = 4  # where one thread has all of them, and a process waits after each, and reads ahead within it
STATE_WORK = 25 * BYTE_WORK  # of a group for each byte of its state at least, so that merging takes 4 %
STRIP_WORK = 2e8  # of a strip of a slab's products at least: some milliseconds
MAX_SEGMENTS = 64


@dataclass(frozen=True)
class Cut:
    """How rows of one kind are cut; the numbers are those of dense rows that cores multiply.

    Attributes
    ----------
    most_bytes : int
        Of a slab; of rows of more than 64 KiB half of that at most.
    slab_bytes : int
        Of each slab, where what multiplies them wants it; 0 for 8,192 rows within these limits.
    few : bool
        Whether groups may be few and large, because one thread has all of them.
    strips : bool
        Whether products of slabs are cut into strips.
    ends : bool
        Whether rows may end at any group: then each is a segment.
    """

    most_bytes: int = SLAB_BYTES
    slab_bytes: int = 0
    few: bool = False
    strips: bool = True
    ends: bool = False


def plan_layout(
    row_chunks: Sequence[int],
    n_columns: int,
    dtype: DType,
    state_bytes: int,
    stored_row_bytes: int = 0,
    row_bytes: int | None = None,
    work: float | None = None,
    cut: Cut = Cut(),
) -> Layout:
    """Divide rows into reads, groups and segments.

    ``groups = clamp(bytes / max(256 MiB, 8 state), 16, 4096)``, at least 4 MiB per group; where these would be larger
    than max(1 GiB, 8 state), as from 4 TiB on, there are more, up to 16,384. All bytes are in the working dtype, so
    that a uint8 store is divided like its float32 copy, or ``stored_row_bytes`` if a row is made of more. If groups
    would hold one large read each (over 32 MiB), with nothing to read while it is multiplied, there are half as many
    with two reads each. ``row_bytes`` are those of a row in the working dtype, if it does not store every column.

    With the operations of the read on its rows (``work``), there are at least 64 groups of 4 MiB or more, if each has a
    thousand for a byte of its state; 17 to 127 are in segments of about four. If chunks allow fewer groups, products
    have strips. ``cut`` says what is special to a kind of rows.
    """
    work = None if cut.few else work
    row_bytes = max(1, n_columns * working_dtype(dtype).itemsize if row_bytes is None else row_bytes)
    most = min(cut.most_bytes, WIDE_SLAB_BYTES) if row_bytes > 1 << 16 else cut.most_bytes
    slab_bytes = cut.slab_bytes or min(most, max(MIN_SLAB_BYTES, SLAB_ROWS * row_bytes))
    slab_rows = max(1, slab_bytes // row_bytes)
    n_rows = int(sum(row_chunks))
    total = n_rows * max(row_bytes, stored_row_bytes)
    all_work = 0 if work is None else work + BYTE_WORK * total
    least = max(MIN_GROUPS, min(PIECES, int(all_work // (STATE_WORK * max(1, state_bytes)))))
    least, group_bytes = (FEW_GROUPS, LARGE_GROUP_BYTES) if cut.few else (least, GROUP_BYTES)
    wanted = min(MAX_GROUPS, max(least, -(-total // max(group_bytes, 8 * state_bytes))))
    wanted = max(wanted, min(MOST_GROUPS, total // max(LARGE_GROUP_BYTES, 8 * state_bytes)))
    wanted = max(1, min(wanted, total // MIN_GROUP_BYTES))
    # Consecutive chunks are joined; empty ones are dropped, and larger ones kept whole.
    largest, share, most_rows = max(row_chunks, default=0), -(-n_rows // wanted), slab_rows
    if work is not None and cut.strips:
        most_rows = min(slab_rows, max(READ_ROWS, READ_BYTES // row_bytes))
    if work is not None and share > largest > 0:
        share = round(share / largest) * largest  # rounded down, 1.9 chunks would make nearly twice as many groups
        if share > (read := max(1, most_rows // largest) * largest) and cut.strips:
            share = round(share / read) * read  # groups of as many reads
            wanted = -(-n_rows // share)
    joined = coalesce(row_chunks, 1, min(most_rows, max(1, share))) if n_rows else ()
    reads = tuple(pairwise([0, *np.cumsum(joined, dtype=np.int64).tolist()]))
    if wanted <= len(reads) < 2 * wanted and 2 * row_bytes * max(joined) > SLAB_BYTES:
        wanted = max(1, len(reads) // 2)
    elif work is not None and wanted <= len(reads) < 2 * wanted:
        wanted = len(reads)  # some groups would have two reads, and take twice as long as the others
    groups = split_evenly(joined, wanted)
    few = MIN_GROUPS < len(groups) < 2 * PIECES and work is not None
    count = len(groups) if cut.ends else len(groups) // 4 if few else MAX_SEGMENTS
    segments = split_evenly([1] * len(groups), count)
    slab = (work or 0) / max(1, n_rows) * min(slab_rows, max(joined, default=0))
    strips = max(1, min(-(-PIECES // max(1, len(groups))), int(slab // STRIP_WORK), PIECES if cut.strips else 1))
    return Layout(n_rows, n_columns, row_bytes, slab_rows, reads, groups, segments, strips=strips)


def coalesce(chunks: Iterable[int], row_bytes: float, limit: int) -> tuple[int, ...]:
    """Join neighbouring whole chunks up to ``limit`` bytes; a chunk over the limit stays alone.

    Examples
    --------
    >>> coalesce((4, 4, 4, 2), row_bytes=1, limit=8)
    (8, 6)
    """
    sizes = np.fromiter(chunks, np.int64)
    sizes = sizes[sizes > 0]
    ends = np.cumsum(sizes)
    # For each chunk, the one after the last that fits beside it: a million chunks are searched at once.
    # 1e-9: rows of no columns have no bytes.
    fitting = np.searchsorted(ends, ends - sizes + int(limit / max(row_bytes, 1e-9)), side="right")
    alone = np.arange(1, len(sizes) + 1)
    if (fitting <= alone).all():
        return tuple(sizes.tolist()) or (0,)
    after, stops, i = np.maximum(fitting, alone).tolist(), [], 0
    while i < len(after):
        i = after[i]
        stops.append(i - 1)
    return tuple(np.diff(ends[stops], prepend=0).tolist()) or (0,)


def largest_slab(columns: int) -> int:
    """Return the rows of the largest slab of float32 rows with so many columns, however they are chunked."""
    row_bytes = 4 * max(1, columns)
    return min(max(SLAB_ROWS, MIN_SLAB_BYTES // row_bytes), max(1, SLAB_BYTES // row_bytes))


def split_evenly(weights: Sequence[int], parts: int) -> tuple[range, ...]:
    """Divide consecutive items into at most ``parts`` non-empty runs of about equal weight."""
    ends = np.cumsum(np.asarray(weights, dtype=np.int64)) if len(weights) else np.zeros(0, np.int64)
    runs: list[range] = []
    start = 0
    targets = ends[-1:] * np.arange(1, parts + 1) / parts if len(ends) else np.zeros(0)
    # All at once: each search of integers for a float would convert all of them again.
    for target, nearest in zip(targets, np.searchsorted(ends, targets).tolist(), strict=True):
        if start >= len(ends):
            break
        if nearest and target - ends[nearest - 1] < ends[nearest] - target:
            nearest -= 1
        stop = max(start, nearest) + 1
        runs.append(range(start, stop))
        start = stop
    return tuple(runs)
