"""The dot matrix ``X X'`` (n, n) of a wide X: over pairs of row panels, or over column blocks.

Zarr decodes whole chunks, so a fold over column blocks is one read only where the store is chunked in columns; a store
chunked in rows is read ``(panels + 1) / 2`` times, with panels as large as the plan allows.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from bigpca.blas import solve_paused
from bigpca.passes.reading.layout import Layout, working_dtype
from bigpca.passes.reading.readers import GraphReader
from bigpca.passes.rows import RowInput


def first_rows(rows: RowInput, layout: Layout) -> NDArray[Any]:
    """Return the rows of the first slab in the working dtype: a read of the first chunks alone."""
    start, stop = layout.reads[0]
    reader, futures = rows.reader(start, stop)
    if isinstance(reader, GraphReader):
        reader.inputs = {k: f.result() for k, f in futures.items()}
    with solve_paused():  # nodes of a graph may fold rows themselves
        read = reader.read(start, stop)
    return read[: layout.slab_rows].astype(working_dtype(rows.dtype), copy=False)
