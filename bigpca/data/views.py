"""Views: which numbers of each stored sample are analysed, and what a row is.

A view is applied where rows are read, and nothing is copied. A Dask array carries it: :func:`viewed` makes one, and
:func:`view_of` finds array and view again, so that the engine reads the samples directly.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import DataNode
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class View:
    """Rows of stored samples: some axes of a sample number its rows, the others make their columns.

    Row ``sample * rows_per_sample + position`` is the row at a position of a sample.

    Attributes
    ----------
    sample : tuple of int
        Shape of one stored sample.
    row_axes : tuple of int
        Axes of the sample that number its rows, the slowest first; none where a sample is a row.
    positions : ndarray of int64, or None
        Which rows of each sample are kept, in this order; None for all.
    columns : ndarray of int64, or None
        Which columns are kept, in this order; None for all.
    """

    sample: tuple[int, ...]
    row_axes: tuple[int, ...] = ()
    positions: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None

    @property
    def rows_per_sample(self) -> int:
        """Rows of one sample."""
        return self._places if self.positions is None else len(self.positions)

    @property
    def width(self) -> int:
        """Columns of a row."""
        return math.prod(self.sample) // self._places if self.columns is None else len(self.columns)

    @property
    def _places(self) -> int:
        return math.prod(self.sample[axis] for axis in self.row_axes)

    def samples(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of samples that hold rows ``start:stop``."""
        return start // self.rows_per_sample, -(-stop // self.rows_per_sample)

    def chunks(self, samples: tuple[int, ...]) -> tuple[int, ...]:
        """Return the rows of chunks of so many samples."""
        return tuple(count * self.rows_per_sample for count in samples)

    def apply(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Return the rows (b * rows_per_sample, width) of samples (b, d)."""
        rows = samples
        if self.row_axes:
            others = tuple(axis for axis in range(len(self.sample)) if axis not in self.row_axes)
            order = (0, *(axis + 1 for axis in self.row_axes + others))
            rows = samples.reshape(len(samples), *self.sample).transpose(order)
            rows = rows.reshape(len(samples), self._places, math.prod(self.sample) // self._places)
            if self.positions is not None:
                rows = rows[:, self.positions]
            rows = rows.reshape(-1, rows.shape[2])
        return rows if self.columns is None else np.take(rows, self.columns, axis=1)

    def describe(self) -> dict[str, Any]:
        """Return what identifies the view, for fingerprints."""
        chosen = {"positions": self.positions, "columns": self.columns}
        digests = {name: None if a is None else hashlib.sha256(a.tobytes()).hexdigest() for name, a in chosen.items()}
        return {"sample": list(self.sample), "row_axes": list(self.row_axes), **digests}

    def __dask_tokenize__(self) -> object:
        return "bigpca.View", self.describe()


@dataclass(frozen=True)
class _Viewed:
    """What the graph of a viewed array keeps beside its blocks."""

    X: da.Array
    view: View


def viewed(X: da.Array, view: View) -> da.Array:
    """Return the rows of a view of X (n, d) as a Dask array (n * rows_per_sample, width)."""
    name = f"bigpca-view-{tokenize(X.name, view)}"
    whole = X if len(X.chunks[1]) == 1 else X.rechunk({1: -1})
    chunks = (view.chunks(X.chunks[0]), (view.width,))
    rows = da.map_blocks(view.apply, whole, name=name, dtype=X.dtype, chunks=chunks, meta=np.empty((0, 0), X.dtype))
    marker = f"{name}-of"
    layers = {**rows.dask.layers, marker: MaterializedLayer({marker: DataNode(marker, _Viewed(X, view))})}
    graph = HighLevelGraph(layers, {**rows.dask.dependencies, marker: set()})
    return da.Array(graph, name, chunks, meta=rows._meta)


def view_of(X: da.Array) -> tuple[da.Array, View | None]:
    """Return the array and the view that :func:`viewed` made X of; X and None for any other."""
    marker = f"{X.name}-of"
    layer = getattr(X.dask, "layers", {}).get(marker)
    if layer is None:
        return X, None
    held: Any = dict(layer)[marker]
    return held.value.X, held.value.view


def columns_of(X: da.Array, columns: NDArray[np.int64]) -> da.Array:
    """Return some columns of X, in their order, as a view."""
    return viewed(X, View((int(X.shape[1]),), columns=np.asarray(columns, np.int64)))
