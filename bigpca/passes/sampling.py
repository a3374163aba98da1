"""The rows of a sample, and the layout that reads them.

A sample consists of runs spread evenly over the file, one run at a random place in each stratum: dumps are often sorted
by class, and consecutive rows need few chunks. The choice does not depend on chunks or workers.
"""

from __future__ import annotations

from dataclasses import replace

from bigpca.passes.reading.layout import MIB, Layout
from bigpca.seeds import uniforms

RUNS = 16
SAMPLE_BYTES = 384 * MIB
SAMPLE_ROWS = 4096
ROWS_PER_COLUMN = 16
SAMPLE_SHARE = 10  # at most every tenth row


def sample_size(n: int, row_bytes: int, least: int) -> int:
    """Rows of a sample: 16 for each of the ``least`` columns of a start, at most a tenth of n, 4,096 rows and 384 MiB.

    The limit in bytes never falls below 4 rows per column. Returns 0 if a tenth of the rows is fewer than ``least``.

    >>> sample_size(25_000, 4 * 25_088, 100), sample_size(25_000, 4 * 100_352, 100), sample_size(900, 400, 100)
    (1600, 1003, 0)
    """
    most = max(SAMPLE_BYTES // max(1, row_bytes), 4 * least)
    wanted = min(n // SAMPLE_SHARE, ROWS_PER_COLUMN * least, SAMPLE_ROWS, most)
    return wanted if wanted >= least else 0


def sample_runs(n: int, wanted: int, seed: int) -> tuple[tuple[int, int], ...]:
    """Return (start, stop) of the runs of a sample of ``wanted`` rows: one in each of 16 equal strata.

    >>> runs = sample_runs(1_000, 160, seed=0)
    >>> len(runs), sum(b - a for a, b in runs), all(a // 62.5 == i for i, (a, _) in enumerate(runs))
    (16, 160, True)
    """
    count = min(RUNS, wanted)
    places = uniforms(seed, "sample", 0, count, 1)[:, 0]
    lengths = [wanted * (i + 1) // count - wanted * i // count for i in range(count)]
    runs = []
    for i, length in enumerate(lengths):
        first, last = -(-i * n // count), (i + 1) * n // count
        start = first + int(places[i] * (last - first - length + 1))
        runs.append((start, start + length))
    return tuple(runs)


def sample_layout(base: Layout, runs: tuple[tuple[int, int], ...]) -> Layout:
    """Return the layout of a read of those runs alone, one group per run."""
    reads: list[tuple[int, int]] = []
    groups = []
    for start, stop in runs:
        first = len(reads)
        reads += [(i, min(i + base.slab_rows, stop)) for i in range(start, stop, base.slab_rows)]
        groups.append(range(first, len(reads)))
    segments = tuple(range(i, i + 1) for i in range(len(groups)))
    rows = sum(b - a for a, b in runs)
    return replace(base, n_rows=rows, reads=tuple(reads), groups=tuple(groups), segments=segments)
