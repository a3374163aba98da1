"""Records that a Dask array carries in its graph: what a row is, and the labels of rows and columns."""

from __future__ import annotations

from typing import Any

import dask.array as da
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import DataNode


def mark(X: da.Array, kind: str, record: object) -> da.Array:
    """Return X with a record, which every array that is computed from it lacks: those have other names."""
    marker = f"{X.name}-{kind}"
    layers = {**X.dask.layers, marker: MaterializedLayer({marker: DataNode(marker, record)})}
    graph = HighLevelGraph(layers, {**X.dask.dependencies, marker: set()})
    return da.Array(graph, X.name, X.chunks, meta=X._meta)


def marked(X: da.Array, kind: str) -> Any:
    """Return the record of that kind that :func:`mark` gave X; None if it has none."""
    marker = f"{X.name}-{kind}"
    layer = getattr(X.dask, "layers", {}).get(marker)
    if layer is None:
        return None
    node: Any = dict(layer)[marker]
    return node.value
