"""Dask's array expressions (``array.query-planning``): a graph with records as one expression, and any one as a graph.

Imported only where that option is on.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

import dask.array as da
import numpy as np
from dask._expr import Expr
from dask._task_spec import convert_legacy_graph
from dask.array._array_expr._expr import ArrayExpr
from dask.array._array_expr._io import FromArray
from dask.base import is_dask_collection, tokenize
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import Alias

_KEPT = "_bigpca_graph"  # in the attributes of an expression: its graph, made once


class Layers(ArrayExpr):  # type: ignore[misc]  # Dask has no types
    """The array of a name in a graph that was made before, whose layers and records it keeps."""

    _parameters: ClassVar[list[str]] = ["graph", "key", "chunks", "given"]
    _determ_token: str | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Layers:
        # NOTE: not one instance for each name, as of Dask's expressions: arrays of one name may carry other records.
        made: Layers = Expr.__new__(cls, *args, **kwargs)
        return made

    @property
    def _name(self) -> str:
        return str(self.operand("key"))

    @property
    def _meta(self) -> Any:
        return self.operand("given")

    def __dask_tokenize__(self) -> Any:
        """Name what is computed from this array by its records too, because Dask keeps one expression for each name."""
        if not self._determ_token:
            records = {
                name: [_named(getattr(layer.record, field.name)) for field in fields(layer.record)]
                for name, layer in self.operand("graph").layers.items()
                if hasattr(layer, "record")
            }
            self._determ_token = tokenize(self._name, self.operand("chunks"), records)
        return self._determ_token

    def _layer(self) -> dict[Any, Any]:  # which Dask calls
        return dict(self.operand("graph"))


def _named(value: Any) -> Any:
    return value.expr.__dask_tokenize__() if isinstance(value, da.Array) else value


class ChunkedLayer(MaterializedLayer):  # type: ignore[misc]
    """The tasks of one expression, and the chunks of its array."""

    def __init__(self, mapping: Any, chunks: Any) -> None:
        super().__init__(mapping)
        self.chunks = chunks


def array_of_layers(graph: HighLevelGraph, name: str, chunks: Any, meta: Any) -> da.Array:
    """Return the array of a name in a graph."""
    return da.Array(Layers(graph, name, chunks, meta))


def lowered(X: da.Array) -> da.Array:
    """Return the array that X is once Dask drops steps that change nothing, such as new chunks that are the old."""
    found = X.expr.lower_completely()
    if not isinstance(X.dtype, np.dtype):  # as ``zeros`` is given it, such as "f4"
        return array_of_layers(layers_of(X), X.name, X.chunks, X._meta)
    return da.Array(found) if isinstance(found, Layers | FromArray) and found._name != X.name else X


def layers_of(X: da.Array) -> HighLevelGraph:
    """Return the graph of an array with one layer for each expression, in which stored objects stand alone.

    It is lazy only where a graph was given: Dask makes all tasks of an expression at once.
    """
    kept = vars(X.expr)
    if _KEPT not in kept:
        kept[_KEPT] = _layers(X)
    return kept[_KEPT]


def _layers(X: da.Array) -> HighLevelGraph:
    layers: dict[str, Any] = {}
    dependencies: dict[str, set[str]] = {}
    top = X.expr.lower_completely()
    waiting = [top]
    while waiting:
        expr = waiting.pop()
        if isinstance(expr, Layers):
            layers.update(expr.operand("graph").layers)
            dependencies.update(expr.operand("graph").dependencies)
        elif expr._name not in layers:
            tasks, below = dict(expr._layer()), expr.dependencies()
            stored = {
                key: tasks.pop(key) for key in list(tasks) if isinstance(key, str) and key.startswith("original-")
            }
            layers.update({key: MaterializedLayer({key: value}) for key, value in stored.items()})
            dependencies.update({key: set() for key in stored})
            known = {*tasks, *stored, *(key for one in below for key in flatten(one.__dask_keys__()))}
            own = dict(convert_legacy_graph(tasks, all_keys=known)) if below or stored else tasks
            layers[expr._name] = ChunkedLayer(own, getattr(expr, "chunks", None))
            dependencies[expr._name] = {*stored, *(one._name for one in below)}
            waiting += below
            for one in expr.operands:  # a delayed object, whose graph Dask's expressions leave out
                if is_dask_collection(one) and not isinstance(one, Expr):
                    layers.update(one.__dask_graph__().layers)
                    dependencies.update(one.__dask_graph__().dependencies)
                    dependencies[expr._name] |= {*one.__dask_layers__()}
    if top._name != X.name:  # such as new chunks, which Dask names otherwise once it knows how to make them
        keys = [key[1:] for key in layers[top._name].get_output_keys() if key[0] == top._name]
        layers[X.name] = ChunkedLayer({(X.name, *at): Alias((X.name, *at), (top._name, *at)) for at in keys}, X.chunks)
        dependencies[X.name] = {top._name}
    return HighLevelGraph(layers, dependencies)
