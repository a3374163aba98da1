"""Where rows are stored: one source that is read directly, or a Dask graph that is cut group by group."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property, partial

import dask.array as da
import numpy as np

from bigpca.costs import PassCost
from bigpca.data.batches import BatchRows, reject_batches
from bigpca.data.checks import NATIVE_BYTES, coalesce
from bigpca.data.sources import RowSource, source_of
from bigpca.data.sparse import is_csr, stored_row_bytes
from bigpca.data.zarr_reader import ZarrReader
from bigpca.passes.engine.cluster.get import get_watched
from bigpca.passes.engine.jobs import WORKERS_TIMEOUT, Inputs
from bigpca.passes.engine.states import digest
from bigpca.passes.graphs import GraphSource, filling, paths_in, sources_of_graph
from bigpca.passes.reading.readers import DirectReader, Reader
from bigpca.storage.stores import kind_of

COUNTED_BYTES = 64 << 20  # of a sparse chunk, if it stored its zeros, beyond which its values are counted


class Stored:
    """Where rows come from: a source that is read directly, or a graph to cut.

    Parameters
    ----------
    X : dask.array.Array of shape (n, d), with known chunks
    missing_chunks : {"raise", "fill"}
    workers_timeout : float
    """

    def __init__(self, X: da.Array, missing_chunks: str, workers_timeout: float) -> None:
        self.X, self.missing_chunks, self.workers_timeout = X, missing_chunks, workers_timeout
        found = source_of(X)
        self.source: RowSource | None = filling(found) if found is not None and missing_chunks == "fill" else found
        if found is None:
            reject_batches(X, f"the Dask array {X.name}")
        self._graph: GraphSource | None = None
        self._lock = threading.Lock()
        self._digest: str | None = None

    @property
    def in_memory(self) -> bool:
        """Whether X is an array of this process."""
        return self.source is not None and self.source.in_memory

    @property
    def batches(self) -> BatchRows | None:
        """The batches that this process reads in order; None for rows that are read in any order."""
        storage = None if self.source is None else self.source.storage
        return storage if isinstance(storage, BatchRows) else None

    @property
    def graph(self) -> GraphSource:
        """The graph to cut; its shared nodes are computed on first use."""
        with self._lock:  # the first groups are cut in several threads
            if self._graph is None:
                self._graph = GraphSource(self.X, self.missing_chunks, self.workers_timeout)
        return self._graph

    def csr_row_bytes(self, itemsize: int) -> float:
        """Return the bytes of a mean sparse row with ``itemsize`` bytes per value."""
        return stored_row_bytes(1, self.values_per_row, itemsize)

    def densest_row_bytes(self, itemsize: int) -> float:
        """Return the bytes of a mean sparse row where rows are densest, which memory must hold."""
        known = None if self.source is None else self.source.densest
        return stored_row_bytes(1, self.values_per_row if known is None else known, itemsize)

    @property
    def values_per_row(self) -> float:
        """Stored values of a mean sparse row.

        Those of a graph are unknown before they are computed. They are counted in some of its chunks if these would be
        large without zeros, and otherwise taken to be all columns.
        """
        n, d = map(int, self.X.shape)
        known = None if self.source is None else self.source.stored_values
        if known is not None:
            return known / max(1, n)
        rows, values = self.counted
        return values / rows if rows else float(d)

    @cached_property
    def counted(self) -> tuple[int, int]:
        """The rows in which the stored values of a sparse graph were counted, and these; (0, 0) for other arrays."""
        sparse = self.source is None and is_csr(self.X._meta)
        largest = max(self.X.chunks[0], default=0) * int(self.X.shape[1]) * self.X.dtype.itemsize
        return self.graph.stored_values() if sparse and largest > COUNTED_BYTES else (0, 0)

    @property
    def counting(self) -> tuple[PassCost, ...]:
        """The read that counted stored values; nothing where they are known."""
        rows = self.counted[0]
        share = rows / max(1, int(self.X.shape[0]))
        return (PassCost(name="stored values", reads=share, bytes_read=int(rows * self.row_bytes)),) if rows else ()

    @property
    def row_bytes(self) -> float:
        """Stored bytes of a row; of sparse rows, on average."""
        if is_csr(self.X._meta):
            return self.csr_row_bytes(int(self.X.dtype.itemsize))
        return int(self.X.shape[1]) * int(self.X.dtype.itemsize)

    def chunks(self, *, joined: bool) -> tuple[int, ...]:
        """Return the row chunks of the array; ``joined`` those of the source, if rows are read from one directly."""
        if joined and self.source is not None:
            return coalesce(self.source.row_chunks(), self.row_bytes, NATIVE_BYTES)
        return tuple(int(c) for c in self.X.chunks[0])

    @property
    def sources(self) -> Sequence[RowSource | ZarrReader]:
        """All sources that tasks read."""
        return [self.source] if self.source is not None else self.graph.sources()

    def reader(self, start: int, stop: int) -> tuple[Reader, Inputs]:
        """Return a reader of rows ``start:stop``, and the futures its task must be given."""
        if self.source is not None:
            return DirectReader(self.source), {}
        cut = self.graph.cut(start, stop)
        return cut.reader, cut.futures

    def stamp(self, start: int, stop: int) -> str:
        """Digest of (key, size, change) of the files that hold those rows; of the content for arrays in memory.

        Of a graph, and of a store that is listed as a whole, it is that of all files when it was first asked for.
        """
        if self.source is not None and kind_of(self.source.path) == "disk":
            return digest(self.source.stamps(start, stop))
        if self._digest is None:
            self._digest = self.stamp_of_all()
        return self._digest

    def stamp_of_all(self) -> str:
        """Digest of (key, size, change) of all files as they are now."""
        return digest([s.stamps(0, s.shape[0]) if isinstance(s, RowSource) else s.stamps() for s in self.sources])

    @cached_property
    def unstamped(self) -> str:
        """The first source that does not say when its objects change; empty if all do."""
        sources = sources_of_graph(self.X) if self.source is None else [self.source]
        return next((source.label for source in sources if not source.stamped), "")

    def describe(self) -> object:
        """JSON-able description for fingerprints."""
        if self.source is not None:
            return self.source.describe()
        return {"format": "dask", "name": self.X.name, "sources": [_describe(s) for s in self.sources]}


def _describe(source: RowSource | ZarrReader) -> object:
    return source.describe() if isinstance(source, RowSource) else [source.label, source.digest, list(source.shape)]


def count_rows(X: da.Array, workers_timeout: float = WORKERS_TIMEOUT) -> da.Array:
    """Return X with known row chunks, which are counted in one read."""  # one pass over X
    lengths = da.map_blocks(
        lambda block: np.array([[block.shape[0]]]),
        X,
        dtype=np.int64,
        chunks=((1,) * X.numblocks[0], (1,) * X.numblocks[1]),
    )
    get = partial(get_watched, paths=paths_in(X), workers_timeout=workers_timeout)
    known = tuple(int(c) for c in lengths[:, 0].compute(scheduler=get))
    return da.Array(X.dask, X.name, (known, X.chunks[1]), meta=X._meta)
