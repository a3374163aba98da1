"""X as the engine sees it: where rows come from, how they are chunked, and what becomes of bad rows and lost chunks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import dask.array as da
import numpy as np

from bigpca.costs import PassCost
from bigpca.data.sources import RowSource, source_of
from bigpca.data.zarr_reader import ZarrReader
from bigpca.passes.engine.cluster.get import get_watched
from bigpca.passes.engine.jobs import WORKERS_TIMEOUT
from bigpca.passes.engine.states import digest
from bigpca.passes.graphs import GraphSource, filling, paths_in
from bigpca.passes.reading.layout import Layout, plan_layout
from bigpca.passes.reading.readers import DirectReader, Reader


class RowInput:
    """X as the engine sees it: direct (a :class:`RowSource`) or general (a graph to cut), with known row chunks.

    Parameters
    ----------
    X : dask.array.Array of shape (n, d)
        Unknown row chunks are counted first: one more read.
    missing_chunks : {"raise", "fill"}
    nan_policy : {"raise", "omit"}
    workers_timeout : float
        Seconds without any worker after which what is computed before a pass gives up.
    in_process : bool
        Whether X is computed from an array of this process, which never travels to workers; known for NumPy input.
    """

    def __init__(
        self, X: da.Array, *, missing_chunks: str = "raise", nan_policy: str = "raise",
        workers_timeout: float = WORKERS_TIMEOUT, in_process: bool = False,
    ) -> None:  # fmt: skip
        self.counted = bool(np.isnan(X.shape[0]))
        self.X = count_rows(X, workers_timeout) if self.counted else X
        self.workers_timeout = workers_timeout
        self.missing_chunks, self.nan_policy = missing_chunks, nan_policy
        self.source: RowSource | None = source_of(self.X)
        if self.source is not None and missing_chunks == "fill":
            self.source = filling(self.source)
        self.in_process = in_process or self.in_memory
        self._graph: GraphSource | None = None
        self._lock = threading.Lock()
        self._source_digest: str | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return int(self.X.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Stored dtype."""
        dtype: np.dtype[Any] = np.dtype(self.X.dtype)
        return dtype

    @property
    def in_memory(self) -> bool:
        """Whether X is a NumPy array of this process."""
        return self.source is not None and self.source.format == "numpy"

    @property
    def row_chunks(self) -> tuple[int, ...]:
        """Native row chunks: the store's for direct arrays, Dask's for general ones."""
        return self.source.row_chunks() if self.source is not None else tuple(int(c) for c in self.X.chunks[0])

    @property
    def counting(self) -> tuple[PassCost, ...]:
        """What was read before any pass: all rows, where their number was unknown."""
        size = self.n_rows * self.n_columns * self.dtype.itemsize
        return (PassCost(name="count", bytes_read=size),) if self.counted else ()

    def copied_row_bytes(self, dtype: np.dtype[Any]) -> int:
        """Bytes of one row's copy in ``dtype``; 0 where rows are read in it and may be overwritten."""
        return 0 if self.source is not None and dtype == self.dtype else self.n_columns * dtype.itemsize

    @property
    def paths(self) -> dict[str, str]:
        """Files and directories that tasks read, for :attr:`bigpca.passes.engine.jobs.Pass.paths`."""
        return paths_in(self.X) if self.source is None else {self.source.path: "reads"}

    @property
    def member(self) -> str:
        """Array or column inside the one source of the rows; empty where there is none, or several."""
        return "" if self.source is None else self.source.member

    @property
    def graph(self) -> GraphSource:
        """The graph to cut; shared small nodes are computed when first asked for."""
        with self._lock:  # the first groups ask from several threads
            if self._graph is None:
                self._graph = GraphSource(self.X, self.missing_chunks, self.workers_timeout)
        return self._graph

    def layout(self, state_bytes: int) -> Layout:
        """Cut the rows for a state of that size."""
        return plan_layout(self.row_chunks, self.n_columns, self.dtype, state_bytes)

    def reader(self, start: int, stop: int) -> tuple[Reader, Mapping[Any, Any]]:
        """Return a reader of rows ``start:stop``, and the futures its task must be given."""
        if self.source is not None:
            return DirectReader(self.source), {}
        cut = self.graph.cut(start, stop)
        return cut.reader, cut.futures

    def describe(self) -> dict[str, Any]:
        """JSON-able description for fingerprints."""
        if self.source is not None:
            source: Any = self.source.describe()
        else:
            source = {"format": "dask", "name": self.X.name, "sources": [_describe(s) for s in self.graph.sources()]}
        return {
            "source": source,
            "shape": [self.n_rows, self.n_columns],
            "dtype": self.dtype.str,
            "row_chunks": digest(self.row_chunks),
            "missing_chunks": self.missing_chunks,
            "nan_policy": self.nan_policy,
        }

    def stamp(self, start: int, stop: int) -> str:
        """Digest of (key, size, mtime) of the files that hold those rows; of the content for arrays in memory."""
        if self.source is not None:
            return digest(self.source.stamps(start, stop))
        if self._source_digest is None:
            self._source_digest = digest([_stamps(s) for s in self.graph.sources()])
        return self._source_digest

    def files_digest(self) -> str:
        """Digest of (key, size, mtime) of all files as they are now; empty for arrays in memory."""
        if self.in_memory:
            return ""
        return digest([_stamps(s) for s in ([self.source] if self.source is not None else self.graph.sources())])


def _describe(source: RowSource | ZarrReader) -> Any:
    return source.describe() if isinstance(source, RowSource) else [source.label, source.digest, list(source.shape)]


def _stamps(source: RowSource | ZarrReader) -> Any:
    if isinstance(source, RowSource):
        return source.stamps(0, source.shape[0])
    files = source.files()
    return [files.stamp(cell) for cell in files.cells([(0, size) for size in source.shape])]


def count_rows(X: da.Array, workers_timeout: float = WORKERS_TIMEOUT) -> da.Array:
    """Return X with known row chunks; a counting pass over X where they are unknown."""  # pass over X
    lengths = da.map_blocks(
        lambda block: np.array([[block.shape[0]]]),
        X,
        dtype=np.int64,
        chunks=((1,) * X.numblocks[0], (1,) * X.numblocks[1]),
    )
    get = partial(get_watched, paths=paths_in(X), workers_timeout=workers_timeout)
    known = tuple(int(c) for c in lengths[:, 0].compute(scheduler=get))
    return da.Array(X.dask, X.name, (known, X.chunks[1]), meta=X._meta)
