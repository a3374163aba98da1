"""Dask arrays without a direct source: the graph of one group of row chunks is cut lazily and sent inside a reader.

An array is *direct* when its chunks come straight from a source (:func:`bigpca.data.dask_arrays.source_of`). Any other
array (sliced, rechunked, computed) is *general*: a group is culled layer by layer when it is submitted, so a graph of
100,000 chunks is never materialised. Every Zarr array in the graph is wrapped, so that missing chunks are detected.
"""

from __future__ import annotations

import operator
import os
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
from dask._task_spec import convert_legacy_graph
from dask.base import is_dask_collection
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import Alias, DataNode, GraphNode, Task
from dask.typing import Key
from dask.utils import key_split

import bigpca.dask_array as da
from bigpca.blas import solve_paused
from bigpca.data.containers import is_hdf5_dataset, is_zarr_array
from bigpca.data.dask_arrays import array_of, graph_of
from bigpca.data.sources import Source, row_source
from bigpca.data.sparse import form_of_meta, is_rows, is_sliced
from bigpca.data.zarr_arrays import ZarrReader, ZarrRows
from bigpca.devices import place_name
from bigpca.engine.driver import get_watched
from bigpca.engine.interfaces import Inputs
from bigpca.errors import MemoryBudgetError
from bigpca.passes.reading.readers import GraphReader
from bigpca.storage.files import address_of

SAMPLED_CHUNKS = 30  # of so many chunks, a tenth may be read to count stored values
SHARED_BYTES = 256 << 20  # limit of the computed nodes that all groups use and that are sent with every task


class GraphSource:
    """Cuts a general (n, d) Dask array, with known row chunks, into readers of consecutive row chunks.

    Parameters
    ----------
    X : dask.array.Array of shape (n, d)
    label : str
        What X is, for messages.
    """

    def __init__(self, X: da.Array, label: str = "") -> None:
        self.X, self.label = X, label or f"the Dask array {X.name}"
        self.offsets = np.concatenate([[0], np.cumsum(X.chunks[0])]).astype(np.int64)
        self.graph = graph_of(X)
        self.shared: dict[Key, object] = {}
        self.paths = paths_in(X)
        self._leaves = _count_leaves(self.graph)
        if len(X.chunks[0]) > 1:
            self._compute_shared()

    def row_keys(self, first: int, last: int) -> list[list[Key]]:
        """Keys of the column chunks of row chunks ``first:last``."""
        columns = range(len(self.X.chunks[1]))
        return [[(self.X.name, i, j) for j in columns] for i in range(first, last)]

    def cut(self, start: int, stop: int) -> tuple[GraphReader, Inputs]:
        """Return the reader of rows ``start:stop``, and the futures of persisted chunks that its task depends on.

        Raises
        ------
        ValueError
            If the row chunks with those rows need more than twice their share of the graph's input chunks.
        """
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        last = int(np.searchsorted(self.offsets, stop, side="left"))
        keys = self.row_keys(first, last)
        nodes, futures = self._nodes([k for row in keys for k in row])
        # A cut may not read more than twice its share of the chunks from which the graph starts.
        rows = int(self.offsets[last] - self.offsets[first])
        leaves = sum(1 for key in nodes if key not in self.shared and _is_leaf(key, nodes, self.shared))
        share = self._leaves * rows / max(1, int(self.offsets[-1]))
        if leaves > 2 * share + 16:
            raise ValueError(
                f"each group of {rows} rows of the Dask array {self.X.name} needs {leaves} input chunks instead of "
                f"{share:.0f}, so most of the input would be read again for every group. {self._remedy}"
            )
        promised = int(self.X.shape[1]), np.dtype(self.X.dtype).str
        sparse = not form_of_meta(self.X._meta).shifts
        reader = GraphReader(self.offsets[first : last + 1], keys, _opaque(nodes), *promised, self.label, sparse)
        return reader, futures

    def stored_values(self) -> tuple[int, int]:
        """Return the rows of a few chunks of a sparse array, which are computed here, and their stored values.

        The middle chunk; of 30 chunks or more the first and the last too.
        """
        filled = [i for i, rows in enumerate(self.X.chunks[0]) if rows]
        if not filled:
            return 0, 0
        middle = filled[len(filled) // 2]
        rows = values = 0
        for i in {filled[0], middle, filled[-1]} if len(filled) >= SAMPLED_CHUNKS else {middle}:
            start, stop = int(self.offsets[i]), int(self.offsets[i + 1])
            reader, futures = self.cut(start, stop)
            reader = reader.with_inputs({key: future.result() for key, future in futures.items()})
            with solve_paused():  # because nodes of a graph may fold rows themselves
                values += len(reader.read(start, stop).data)
            rows += stop - start
        return rows, values

    def _nodes(self, keys: list[Key]) -> tuple[dict[Key, GraphNode], Inputs]:
        raw = dict(self.graph.cull(keys))
        held = {k: v for k, v in raw.items() if _is_future(v)}
        plain = {k: v for k, v in raw.items() if k not in held}
        nodes = _with_own_rows(convert_legacy_graph(plain, all_keys=set(raw)))
        needed = _needed(keys, nodes)  # Dask keeps all of a layer of objects, such as chunks that are held in memory
        futures = {k: future for k, future in held.items() if k in needed}
        gone = sum(future.client.status in ("closing", "closed") or future.cancelled() for future in futures.values())
        if gone:
            raise ConnectionError(
                f"{gone} of {len(futures)} chunks of the Dask array {self.X.name} were persisted on a cluster that is "
                "closed or has dropped them. Make the array again, and persist it on the cluster that is in use."
            )
        return {k: self._wrapped(k, node) for k, node in nodes.items() if k in needed}, futures

    def _wrapped(self, key: Key, node: GraphNode) -> GraphNode:
        if isinstance(node, DataNode):
            value = guarded(node.value)
            return node if value is node.value else DataNode(key, value)
        if type(node) is Task and any(
            isinstance(a, Source) or is_zarr_array(a) or is_hdf5_dataset(a) for a in node.args
        ):
            return Task(key, node.func, *map(guarded, node.args), **{k: guarded(v) for k, v in node.kwargs.items()})
        return node

    def _compute_shared(self) -> None:
        """Compute nodes that every group would repeat, such as the column means of ``X - X.mean(0)``."""
        first, _ = self._nodes(self.row_keys(0, 1)[0])
        last_row = len(self.X.chunks[0]) - 1
        last, _ = self._nodes(self.row_keys(last_row, last_row + 1)[0])
        shared = {k for k in first if k in last and _is_computed(first[k], first)}
        if last_row == 1:  # each of two reads the stored chunk at their border itself, instead of being sent it
            shared -= {k for k in shared if first[k].dependencies and _is_leaf(k, first, {})}

        def used(graph: Mapping[Key, GraphNode]) -> set[Key]:
            return {k for key, node in graph.items() if key not in shared for k in node.dependencies}

        # Nodes that both groups use directly. A chunk that one group reads itself, and the other only through a shared
        # node (as a term of a mean), is not computed in advance.
        frontier = shared & used(first) & used(last)
        if frontier:
            one_of_each = list({_layer_of(k): k for k in sorted(frontier, key=str)}.values())
            self._compute(one_of_each)  # to estimate the size of all before they are in memory
            counts = Counter(map(_layer_of, frontier))
            self._check_shared_bytes(sum(counts[_layer_of(k)] * _nbytes(v) for k, v in self.shared.items()))
            self._compute(sorted(frontier - self.shared.keys(), key=str))
            self._check_shared_bytes(sum(map(_nbytes, self.shared.values())))
            # Their layers hold values from here on.
            by_layer: dict[Hashable, dict[Key, DataNode]] = {}
            for key, value in self.shared.items():
                by_layer.setdefault(_layer_of(key), {})[key] = DataNode(key, value)
            layers, dependencies = dict(self.graph.layers), dict(self.graph.dependencies)
            for name, mapping in by_layer.items():
                if name in layers and mapping.keys() >= set(layers[name].get_output_keys()):
                    layers[name], dependencies[name] = MaterializedLayer(mapping), set()
                elif name in layers:  # some of its keys are not shared
                    layers[name] = MaterializedLayer({**layers[name], **mapping})
            self.graph = HighLevelGraph(layers, dependencies)

    def _compute(self, keys: list[Key]) -> None:
        if keys:
            every, held = self._nodes(keys)
            self.shared |= dict(zip(keys, get_watched({**every, **held}, keys, self.paths), strict=True))

    def _check_shared_bytes(self, size: int) -> None:
        if size > SHARED_BYTES:
            raise MemoryBudgetError(
                f"the groups of the Dask array {self.X.name} share {size / 2**20:.0f} MiB of computed nodes, more than "
                f"the {SHARED_BYTES >> 20} MiB that may be sent with every task. {self._remedy}"
            )

    @property
    def _remedy(self) -> str:
        return form_of_meta(self.X._meta).once


def _with_own_rows(nodes: dict[Key, GraphNode]) -> dict[Key, GraphNode]:
    """Return the nodes with slices of sparse rows and of sources in memory, so that a task is not sent all rows."""
    stored = {k: node.value for k, node in nodes.items() if isinstance(node, DataNode)}
    values = {k: v for k, v in stored.items() if is_sliced(v) or place_name(v)}
    slices = (da.core.getter, da.core.getter_inline, da.core.getter_nofancy, operator.getitem)  # Dask's of an array
    taken: dict[Key, GraphNode] = {}
    for key, node in nodes.items():
        if type(node) is Task and node.func in slices and node.dependencies and node.dependencies <= values.keys():
            taken[key] = DataNode(key, node({k: values[k] for k in node.dependencies}))
    return {**nodes, **taken}


def _opaque(nodes: dict[Key, GraphNode]) -> bytes | dict[Key, GraphNode]:
    """Return nodes as a pickle; or as they are, if it would copy chunks from a device to the host, or is impossible."""
    if any(isinstance(node, DataNode) and place_name(node.value) for node in nodes.values()):
        return nodes
    try:
        pickled: bytes = cloudpickle.dumps(nodes)
        return pickled
    except TypeError:  # of a store that only this process can read; where tasks run elsewhere, it is raised again
        return nodes


def _needed(keys: list[Key], nodes: Mapping[Key, GraphNode]) -> set[Key]:
    """Return the keys and all that they depend on."""
    found: set[Key] = set()
    waiting = list(keys)
    while waiting:
        key = waiting.pop()
        if key not in found:
            found.add(key)
            waiting.extend(nodes[key].dependencies if key in nodes else ())
    return found


def _layer_of(key: Key) -> Hashable:
    layer: Hashable = key[0] if isinstance(key, tuple) else key
    return layer


def _nbytes(value: object) -> int:
    return int(getattr(value, "nbytes", 0))


def _is_computed(node: GraphNode, nodes: Mapping[Key, GraphNode]) -> bool:
    """Whether a node computes something; stored objects and aliases of them do not."""
    while isinstance(node, Alias) and node.target in nodes:
        node = nodes[node.target]
    return not isinstance(node, DataNode | Alias)


def _is_leaf(key: Key, nodes: Mapping[Key, GraphNode], shared: Mapping[Key, object]) -> bool:
    """Whether a node reads: a chunk in memory, or a node that depends only on stored objects (keys without chunk)."""
    node = nodes[key]
    if isinstance(node, DataNode):
        return is_rows(node.value)
    if isinstance(node, Alias):  # of a stored object, which is counted itself
        return False
    return all(isinstance(nodes.get(k), DataNode) and k not in shared and isinstance(k, str) for k in node.dependencies)


def _count_leaves(graph: HighLevelGraph) -> int:
    """Count the chunks that the graph starts from: output keys of layers that depend on single objects only."""
    count = 0
    for name, layer in graph.layers.items():
        inputs = [graph.layers[k] for k in graph.dependencies[name]]
        if inputs and all(map(_is_stored, inputs)):
            count += len(layer.get_output_keys())
        elif isinstance(layer, MaterializedLayer) and not inputs:
            values = [v.value if isinstance(v, DataNode) else v for v in layer.mapping.values()]
            arrays = sum(is_rows(v) or _is_future(v) for v in values)
            tasks = sum(isinstance(v, Task | tuple) for v in layer.mapping.values())
            count += arrays + tasks
        elif not inputs and not isinstance(layer, MaterializedLayer):
            count += len(layer.get_output_keys())
    return count


def _is_stored(layer: Any) -> bool:
    """Whether a layer is one object, such as a source."""
    return isinstance(layer, MaterializedLayer) and len(layer.mapping) == 1 and isinstance(next(iter(layer)), str)


def _is_future(value: object) -> bool:
    return type(value).__module__ == "distributed.client" and type(value).__name__ == "Future"


def sources_of_graph(X: da.Array) -> list[Source]:
    """Return all sources that the graph of an array reads, without computing anything of it."""
    found = (ZarrRows.of(value) if isinstance(value, ZarrReader) else value for value in map(guarded, _held_by(X)))
    return [value for value in found if isinstance(value, Source)]


def _held_by(X: da.Array) -> Iterator[Any]:
    """Yield the objects in the graph of an array, stored arrays among them."""
    for layer in graph_of(X).layers.values():
        for node in layer.mapping.values() if isinstance(layer, MaterializedLayer) else ():
            yield _behind_xarray(node.value if isinstance(node, DataNode) else node)


def _behind_xarray(value: Any) -> Any:
    """Return the Zarr array from which a node of ``xarray.open_zarr`` reads, and any other value unchanged."""
    while type(value).__module__.startswith("xarray.") and (inner := getattr(value, "array", None)) is not None:
        value = inner
    stored = value.get_array() if hasattr(value, "get_array") else None
    return stored if is_zarr_array(stored) else value


def computed(given: Any) -> Any:
    """Return the values of what may be lazy; on a cluster, under the limits of a pass (:func:`get_watched`)."""
    if not is_dask_collection(given):
        return given
    paths = paths_in(given) if isinstance(given, da.Array) else {}
    return given.compute(scheduler=partial(get_watched, paths=paths))


def paths_in(X: da.Array) -> dict[str, str]:
    """Return the paths that the sources of an array read, as in :attr:`bigpca.engine.jobs.Pass.paths`."""
    found = set[str]()
    for value in _held_by(X):
        if is_zarr_array(value):  # of any dtype: labels may be strings
            found.add(address_of(value.store))
        elif is_hdf5_dataset(value):
            found.add(os.path.abspath(value.file.filename))
        elif isinstance(value, Source | ZarrReader):
            found.add(value.path if isinstance(value, Source) else value.store)
    return dict.fromkeys(found, "reads")


def unknown_layer(X: da.Array) -> str:
    """Return the name of the first layer that reads something other than a source.

    Such as netCDF behind xarray, delayed functions and tables. Functions of NumPy and of Dask's arrays make numbers,
    and are known.
    """
    for name, layer in graph_of(X).layers.items():
        if isinstance(layer, MaterializedLayer) and any(map(_is_unknown, layer.mapping.values())):
            return str(key_split(name.removeprefix("original-")))
    return ""


def _is_unknown(node: Any) -> bool:
    if not isinstance(node, Task):
        value = _behind_xarray(node.value if isinstance(node, DataNode) else node)
        return type(value).__module__.startswith("xarray.")
    function = getattr(node.func, "func", node.func)  # of a partial one
    if getattr(function, "__name__", "") == "_execute_subgraph":  # a fused part of a table
        return any(map(_is_unknown, node.args[0].values()))
    return not node.dependencies and not function.__module__.startswith(("numpy", "dask.array", "bigpca"))


def guarded(value: Any) -> object:
    """Return a Zarr array or an open dataset as what rejects missing chunks; any other value unchanged."""
    if is_zarr_array(value):
        return ZarrReader(value)
    if is_hdf5_dataset(value):  # an open handle cannot be pickled
        if value.ndim not in (1, 2):
            raise TypeError(
                f"the Dask array reads the h5py.Dataset {value.name} of shape {value.shape} through an open file. "
                "Workers can reopen only datasets of one or two dimensions. Pass the dataset itself, or bp.open(path, "
                f"member={value.name!r})."
            )
        return row_source(value, single=True)
    return value


def wrap_sources(X: Any) -> Any:
    """Return a Dask array with every Zarr array in its graph wrapped, so that lazy results detect missing chunks too.

    Other arrays are returned as they are.
    """
    if not isinstance(X, da.Array):
        return X
    graph = graph_of(X)
    layers: dict[str, object] = {}
    for name, layer in graph.layers.items():
        if isinstance(layer, MaterializedLayer):
            mapping: dict[Hashable, object] = {}
            for key, node in layer.mapping.items():
                value = node.value if isinstance(node, DataNode) else node
                wrapped = guarded(value)
                mapping[key] = node if wrapped is value else wrapped
            layers[name] = MaterializedLayer(mapping)
        else:
            layers[name] = layer
    return array_of(HighLevelGraph(layers, graph.dependencies), X.name, X.chunks, X._meta)
