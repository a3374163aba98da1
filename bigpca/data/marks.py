"""Records that a Dask array carries in its graph: what a row is, and the labels of rows and columns."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import Alias, DataNode
from numpy.typing import NDArray


def mark(X: da.Array, kind: str, record: object) -> da.Array:
    """Return X with a record, which every array that is computed from it lacks: those have other names."""
    marker = f"{X.name}-{kind}"
    layers = {**X.dask.layers, marker: MaterializedLayer({marker: DataNode(marker, (record, X.chunks))})}
    graph = HighLevelGraph(layers, {**X.dask.dependencies, marker: set()})
    return da.Array(graph, X.name, X.chunks, meta=X._meta)


def marked(X: da.Array, kind: str) -> Any:
    """Return the record of that kind that :func:`mark` gave X; None if it has none."""
    found = _layer_value(X, f"{X.name}-{kind}")
    return None if found is None else found[0]


def sliced_from(X: da.Array, kinds: tuple[str, ...]) -> tuple[da.Array, NDArray[np.int64] | None]:
    """Return the array of which X has slices, and the places of the rows of X in it.

    It is the first one that has a record of one of the kinds, or that reads a source directly. X and None where X is
    such an array itself, and where there is none, or other steps than slices lie between.
    """
    layers, names = getattr(X.dask, "layers", {}), [X.name]
    while (chunks := _known_chunks(X, names[-1], kinds)) is None:
        before = X.dask.dependencies.get(names[-1], ()) if layers else ()
        if len(before) != 1 or not isinstance(layers.get(names[-1]), MaterializedLayer):
            return X, None
        names.extend(before)
    name, starts = names[-1], np.cumsum([0, *chunks[0]])
    if name == X.name or np.isnan(starts[-1]):
        return X, None

    def rows_of(key: Any) -> NDArray[np.int64]:
        if key[0] == name:
            return np.arange(starts[key[1]], starts[key[1] + 1])
        node: Any = layers[key[0]][key]
        if isinstance(node, Alias):
            return rows_of(node.target)
        if getattr(node.func, "__name__", "") != "getitem" or not isinstance(node.args[1][0], slice):
            raise LookupError
        return rows_of(node.args[0].key)[node.args[1][0]]

    try:
        places = [rows_of((X.name, i) + (0,) * (X.ndim - 1)) for i in range(len(X.chunks[0]))]
    except LookupError:
        return X, None
    return da.Array(X.dask, name, chunks, meta=X._meta), np.concatenate(places)


def _known_chunks(X: da.Array, name: str, kinds: tuple[str, ...]) -> Any:
    """Return the chunks of an array in the graph of X that has a record, or reads a source; None for others."""
    for kind in kinds:
        if (found := _layer_value(X, f"{name}-{kind}")) is not None:
            return found[1]
    if f"original-{name}" not in getattr(X.dask, "layers", {}):
        return None
    deps = getattr(X.dask.layers[name], "io_deps", {}).values()
    return next((dep.chunks for dep in deps if hasattr(dep, "chunks")), None)


def _layer_value(X: da.Array, name: str) -> Any:
    layer = getattr(X.dask, "layers", {}).get(name)
    if layer is None:
        return None
    node: Any = dict(layer)[name]
    return getattr(node, "value", node)


def sources_in(X: da.Array) -> list[Any]:
    """Return the objects from which the graph of X reads."""
    return [_layer_value(X, name) for name in getattr(X.dask, "layers", {}) if name.startswith("original-")]
