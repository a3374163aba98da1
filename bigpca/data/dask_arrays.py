"""Dask arrays, taken apart and made: what one carries beside its blocks, which source it reads, whose rows it has.

Nothing else in the package looks into a graph, except :mod:`bigpca.passes.graphs`, which cuts those without a source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import Alias, TaskRef
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix, issparse

import bigpca.dask_array as da
from bigpca.arrays import Array
from bigpca.csr import SPARSE
from bigpca.data import containers
from bigpca.data.checks import check_dtype, check_shape, regular_chunks, row_width
from bigpca.data.source import Looks, MemoryRows, ObjectLooks, Source
from bigpca.data.sparse import held_csr, is_csr, is_sparse, sparse_rows
from bigpca.data.views import Names, View
from bigpca.data.zarr_arrays import ZarrReader, ZarrRows
from bigpca.devices import host_array, place_name
from bigpca.engine.layout import coalesce
from bigpca.errors import listed
from bigpca.storage.files import kind_of, one_look

DASK_CHUNK_BYTES = 64 * 2**20
OPENED = "bigpca-open-"  # begins the names of arrays that read one source
BESIDE = "bigpca-beside-"  # in names of rows with what belongs to them, which Dask keeps where it drops records
LEFT_OUT = (
    "the rows were opened with covariates, weights, labels or groups, which this call does not use. Open them without: "
    "bigpca.open(X). Estimators, such as bigpca.PCA and NystromKernelPCA, use them."
)


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What a Dask array carries in its graph beside its blocks; no task is sent it.

    Attributes
    ----------
    chunks : tuple of tuple of int
        Those of the array.
    before : dask.array.Array, or None
        The array whose rows these are, or were made of: by the view, or by maps that keep the order of rows.
    view : View or None
        Which numbers of the rows of ``before`` are analysed, and what a row is.
    names : ndarray of shape (d,), or None
        Those of the columns.
    labels : bigpca.data.grids.Labels, or None
        The dimensions and coordinates of a DataArray.
    index : pandas.Index, dask.dataframe.Index, or None
        Names of the rows of a frame, or of AnnData.
    search : bigpca.passes.accumulators.observed_columns.ColumnSearch, or None
        The reads that found which columns have values.
    place : tuple of str, or None
        The file whose variable this is, its name, and its dimensions in the order of the array.
    made : bigpca.data.provenance.Made, or None
        What model made the rows, and as what.
    parts : tuple of dask.array.Array
        The arrays of a list, whose rows these are, one after the other.
    beside : mapping of str to what a user gave
        What belongs to the rows, by the names of :func:`bigpca.open`: weights, labels, groups and covariates.
    taken : Taken or None
        Whose rows these are, where names and labels are those of other rows (:func:`following`).
    """

    chunks: Any
    before: da.Array | None = None
    view: View | None = None
    names: Names = None
    labels: Any = None
    index: Any = None
    search: Any = None
    place: tuple[str, ...] | None = None
    made: Any = None
    parts: tuple[da.Array, ...] = ()
    beside: Mapping[str, Any] = field(default_factory=dict)
    taken: Taken | None = None


class CarriedLayer(MaterializedLayer):  # type: ignore[misc]  # Dask has no types
    """A layer of a graph with a record and no keys, which vanishes when Dask optimizes the graph."""

    # NOTE: a key that no task needs would stay: HighLevelGraph.cull keeps the layers that it visits after the last one
    # that is needed.
    def __init__(self, record: Carried) -> None:
        super().__init__({})
        self.record = record


def graph_of(X: da.Array) -> HighLevelGraph:
    """Return the graph of a Dask array, in layers: one for each step, and one for each stored object."""
    if da.array_expr_enabled():
        from bigpca.expressions import layers_of  # as the option needs it

        return layers_of(X)
    graph = X.__dask_graph__()
    return graph if isinstance(graph, HighLevelGraph) else HighLevelGraph.from_collections(X.name, dict(graph))


def array_of(graph: HighLevelGraph, name: str, chunks: Any, meta: Any) -> da.Array:
    """Make the Dask array of a name in a graph: the only place that does, because Dask has two kinds of arrays."""
    if da.array_expr_enabled():
        from bigpca.expressions import array_of_layers

        return array_of_layers(graph, name, chunks, meta)
    return da.Array(graph, name, chunks, meta=meta)


def carrying(X: da.Array, **records: Any) -> da.Array:
    """Return X with further fields of :class:`Carried`; arrays that are computed from it have other names, and none."""
    layer = f"{X.name}-carried"
    graph = graph_of(X)
    layers = {**graph.layers, layer: CarriedLayer(replace(carried(X), **records))}
    return array_of(HighLevelGraph(layers, {**graph.dependencies, layer: set()}), X.name, X.chunks, X._meta)


def carried(X: da.Array) -> Carried:
    """Return what X carries; a record of its chunks alone if it carries nothing."""
    return _found(graph_of(X).layers, X.name) or Carried(chunks=X.chunks)


def _found(layers: Mapping[str, Any], name: str) -> Carried | None:
    """Return what an array of a graph carries."""
    layer = layers.get(f"{name}-carried")
    return layer.record if isinstance(layer, CarriedLayer) else None


def with_beside(X: da.Array, given: Mapping[str, Any]) -> da.Array:
    """Return the same rows with what belongs to them, under another name: elsewhere, the same rows may have other.

    Raises
    ------
    ValueError
        For rows that have, or had, something beside them already.
    """
    if carries_beside(X):
        known = known_beside(X)
        every = ", ".join(f"{one}=..." for one in dict.fromkeys([*known, *given]))
        raise ValueError(
            f"the rows were opened with {' and '.join(known) or 'covariates, weights, labels or groups'} already. Open "
            f"them once, open(X, {every}), and then take rows or columns of what it returns. What is computed or "
            "persisted is computed of rows that were opened without, and then opened."
        )
    name = f"{BESIDE}{tokenize(X.name, given)}"
    meta = X._meta
    if type(meta) is np.ndarray:
        meta = meta.view(WithBeside)
    elif is_csr(meta):
        meta = (CSRWithBeside if isinstance(meta, csr_matrix) else CSRArrayWithBeside)(meta)
    rows = da.map_blocks(_as_they_are, X, name=name, dtype=X.dtype, chunks=X.chunks, meta=meta)
    return carrying(rows, **vars(carried(X)) | {"before": X, "beside": given})


class WithBeside(np.ndarray[Any, Any]):
    """The kind of array that Dask has for rows with what belongs to them: it stays where records are dropped."""

    __array_priority__ = 1.0  # also beside other arrays


class CSRWithBeside(csr_matrix):  # type: ignore[misc]  # SciPy has no types
    """The same for sparse rows."""


class CSRArrayWithBeside(csr_array):  # type: ignore[misc]
    """The same for sparse rows."""


def _as_they_are(rows: Any) -> Any:
    return rows


def known_beside(X: da.Array) -> list[str]:
    """Return the names of what was opened with the rows from which X was computed, as far as Dask knows."""
    return sorted({one for record in records_in(X) for one in record.beside})


def carries_beside(X: da.Array) -> bool:
    """Whether X was computed from rows with what belongs to them, unless it is what a model made of these."""
    graph = graph_of(X)
    if isinstance(X._meta, WithBeside | CSRWithBeside | CSRArrayWithBeside):
        return True
    waiting = [X.name] if BESIDE in " ".join(graph.layers) else []
    seen = set(waiting)
    while waiting:
        if (name := waiting.pop()).startswith(BESIDE):
            return True
        found = _found(graph.layers, name)
        if found is None or found.made is None:
            waiting += graph.dependencies.get(name, set()) - seen
            seen.update(waiting)
    return False


@dataclass(frozen=True, eq=False)
class Taken:
    """Which rows and columns an array has of others.

    Attributes
    ----------
    bases : list of dask.array.Array
        The others; X alone where X is not known to have rows of others.
    rows : range, or ndarray of int64
        The places of the rows of X in these, one after the other.
    columns : ndarray of int64, or None
        Those of its columns; None where they are not known.
    """

    bases: list[da.Array]
    rows: range | NDArray[np.int64]
    columns: NDArray[np.int64] | None

    @property
    def places(self) -> NDArray[np.int64] | None:
        """Those of the rows; None for all in order."""
        counts = [base.shape[0] for base in self.bases]
        every = self.rows if np.isnan(counts).any() else range(sum(counts))
        whole = self.rows == every if isinstance(self.rows, range) else np.array_equal(self.rows, every)
        return None if whole else np.asarray(self.rows, np.int64)

    @property
    def whole_columns(self) -> bool:
        """Whether the columns are all of each other array, in order."""
        return self.columns is not None and all(
            np.array_equal(self.columns, np.arange(base.shape[1])) for base in self.bases
        )


def taken_from(X: da.Array) -> Taken:
    """Return the arrays that X has rows of, and the places of its rows and columns in these.

    Steps are known by the names of Dask's functions: a subclass of its arrays would be lost where these are pickled,
    joined or optimized. A step that is not known costs the rows their keys, with an error that says so.

    They are arrays that carry what names rows, or that read a source directly, to which slices, lists, masks, new
    chunks and dtypes, and arrays that are joined lead. X alone where X is such an array itself, and where other steps
    lie between.
    """
    if (known_before := carried(X).taken) is not None:
        return known_before
    alone = Taken([X], range(0), None if X.ndim != 2 or np.isnan(X.shape[1]) else np.arange(X.shape[1]))
    if not np.isnan(X.shape[0]):
        alone = replace(alone, rows=range(X.shape[0]))
    graph = graph_of(X)
    known, names, steps = dict[str, Any](), [X.name], dict[Any, Any]()
    for name in names:  # which grows
        chunks, layer = _known_chunks(X, name), graph.layers.get(name, ())
        if chunks is not None:
            known[name] = chunks
        elif isinstance(layer, MaterializedLayer) or _called(getattr(layer, "task", None)):
            steps.update(layer)
            names += [before for before in graph.dependencies[name] if before not in names]
        else:
            return alone
    if X.name in known or any(np.isnan(size) for chunks in known.values() for size in chunks[0]):
        return alone
    starts = dict[str, int]()  # of the rows of each array, in the order in which X has some of them

    @cache
    def along(axis: int, key: Any) -> Any:
        """Return the places of the rows, or columns, of a block: a range where they follow each other."""
        if (name := key[0]) in known:
            if name not in starts:
                starts[name] = sum(sum(known[one][0]) for one in starts)
            own = known[name][axis] if len(known[name]) == 2 or not axis else ()
            if not own:
                raise LookupError
            first = sum(own[: key[1 + axis]]) + (0 if axis else starts[name])
            return range(first, first + own[key[1 + axis]])
        node: Any = steps[key]
        if isinstance(node, Alias) or (isinstance(node, tuple) and isinstance(node[0], str)):  # another key
            return along(axis, getattr(node, "target", node))
        called = _called(node)
        args: Any = node.args if called else (None,)
        given, *rest = args
        if called == "astype":
            return along(axis, given.key)
        if called in ("getitem", "_getitem"):
            place = rest[0] if called == "getitem" else steps[rest[0].key].value[1]
            if isinstance(place, TaskRef):
                raise LookupError
            index = place[axis] if axis < len(place) else slice(None)
            if isinstance(index, slice):
                return along(axis, given.key)[index]
            if isinstance(index, np.ndarray):
                return np.asarray(along(axis, given.key))[index]
        if called == "concatenate_shaped":
            parts, width = list(given), math.prod(rest[0][1:])
            return joined(axis, [parts[i : i + width] for i in range(0, len(parts), width)])
        if called == "concatenate3":  # rows of blocks
            return joined(axis, [parts.args for parts in given.args])
        if called == "concatenate_arrays":  # the blocks from which a list takes, and the order in which it does
            order, across = np.argsort(steps[rest[0].key].value[1]), rest[1]
            found = joined(axis, [given] if across else [[part] for part in given])
            return found if across != axis else np.asarray(found)[order]
        raise LookupError

    def joined(axis: int, blocks: Sequence[Sequence[Any]]) -> Any:
        """Return the places of lines of blocks, if they are the same across these."""
        lines = blocks if axis == 0 else list(zip(*blocks, strict=True))
        found = list[Any]()
        for line in lines:
            one, *others = (along(axis, getattr(part, "key", part)) for part in line)
            if not all(np.array_equal(one, other) for other in others):
                raise LookupError
            last = found[-1] if found else None
            if isinstance(one, range) and isinstance(last, range) and one.step == last.step == 1:
                one = range(found.pop().start, one.stop) if one.start == last.stop else one
            found.append(one)
        return found[0] if len(found) == 1 else np.concatenate(found)

    blocks = [[(X.name, i, *at) for at in np.ndindex(X.numblocks[1:])] for i in range(X.numblocks[0])]
    try:
        rows = joined(0, blocks)
    except LookupError:
        return alone
    try:
        columns = np.asarray(joined(1, blocks), np.int64) if X.ndim == 2 else None
    except LookupError:
        columns = None
    return Taken([array_of(graph, name, known[name], X._meta) for name in starts], rows, columns)


def following(X: da.Array) -> da.Array:
    """Return X with the names of columns, and the grid of rows of a DataArray, of the rows that it has.

    Raises
    ------
    ValueError
        For joined rows whose columns have different names.
    """
    if _found(graph_of(X).layers, X.name) or not any(
        one.names is not None or one.labels is not None for one in records_in(X)
    ):
        return X
    taken = taken_from(X)
    if taken.columns is None or taken.bases[0].name == X.name:
        return X
    each = [names_of(base) for base in taken.bases]
    each = [None if names is None else names[taken.columns] for names in each]
    names, *others = each
    for other in others:
        if names is None or other is None:
            names = None
        elif not np.array_equal(names, other):
            pairs = [f"{one!r} and {two!r}" for one, two in zip(names, other, strict=True) if one != two]
            raise ValueError(
                f"rows whose columns have different names were joined: {listed(pairs)}. Put the columns in one order; "
                "or join the values alone, X.map_blocks(numpy.asarray), which have no names."
            )
    labels = carried(taken.bases[0]).labels if len(taken.bases) == 1 and taken.whole_columns else None
    if labels is not None and taken.places is not None:
        labels = labels.at(taken.places)
    return carrying(X, names=names, labels=labels, taken=taken)


def names_of(X: da.Array) -> Names:
    """Return the names of the columns of an array, if it carries some."""
    found = carried(X)
    return found.names if found.names is not None or found.labels is None else found.labels.grid.column_names()


def was_persisted(X: da.Array) -> bool:
    """Whether Dask replaced what a store or a map of rows is read from by its blocks, and so its records."""
    layers = graph_of(X).layers
    return any(
        (name.startswith("bigpca-open-") and f"original-{name}" not in layers)
        or (name.startswith("bigpca-map-") and name.count("-") == 2 and f"{name}-carried" not in layers)
        for name in layers
    )


def _called(node: Any) -> str:
    """Return the name of Dask's own function that a node calls; "" for others."""
    function = getattr(node, "func", None)
    own = str(getattr(function, "__module__", "")).startswith(("dask.", "_operator"))  # of methods of C it is None
    return getattr(function, "__name__", "") if own else ""


def _known_chunks(X: da.Array, name: str) -> Any:
    """Return the chunks of an array in the graph of X that carries what names rows, or reads a source; else None."""
    layers = graph_of(X).layers
    found = _found(layers, name)
    if found is not None and not (found.taken or found.before is found.labels is found.index is None):
        return found.chunks
    if name not in layers or f"original-{name}" not in layers:  # what is optimised has no layer of its name
        return None
    deps = [layers[name], *getattr(layers[name], "io_deps", {}).values()]
    return next((dep.chunks for dep in deps if hasattr(dep, "chunks")), None)


def largest_chunk(X: da.Array) -> int:
    """Return the bytes of the largest chunk that the graph of X reads of a store; X may take a part of it."""
    layers, found = graph_of(X).layers, 0.0
    for name in layers:
        chunks = _known_chunks(X, name.removeprefix("original-")) if name.startswith("original-") else None
        if chunks is not None and not np.isnan(rows := max(chunks[0], default=0)):
            node = dict(layers[name])[name]
            source = _source_behind(getattr(node, "value", node))
            if isinstance(source, Source) and not source.in_memory:
                found = max(found, rows * source.row_bytes)
    return math.ceil(found)


def sources_in(X: da.Array) -> list[Any]:
    """Return the objects from which the graph of X reads."""
    nodes = [dict(layer)[name] for name, layer in graph_of(X).layers.items() if name.startswith("original-")]
    return [getattr(node, "value", node) for node in nodes]


def records_in(X: da.Array) -> list[Carried]:
    """Return what arrays in the graph of X carry."""
    return [layer.record for layer in graph_of(X).layers.values() if isinstance(layer, CarriedLayer)]


def viewed(X: da.Array, view: View, names: Names = None) -> da.Array:
    """Return the rows of a view of X (n, d) as a Dask array (n * rows_per_sample, width).

    ``names`` (width,) are those of its columns, if they have any.
    """
    name = f"bigpca-view-{tokenize(X.name, view)}"
    whole = X if len(X.chunks[1]) == 1 else X.rechunk({1: -1})
    chunks, dtype, meta = (view.chunks(X.chunks[0]), (view.width,)), view.dtype(X.dtype), np.empty((0, 0), X.dtype)
    if issparse(X._meta):
        if view.sample != (X.shape[1],) or view.column_axes != (0,) or view.taken:
            raise ValueError(
                f"pattern = {view.pattern} cannot be used with sparse rows. Choose columns with columns=, or pass "
                "dense rows."
            )
        meta = X._meta
    rows = da.map_blocks(view.apply, whole, name=name, dtype=dtype, chunks=chunks, meta=meta.astype(dtype))
    return carrying(rows, before=X, view=view, names=names)


def named(X: da.Array, names: Names) -> da.Array:
    """Return the same Dask array (n, d), whose columns have names (d,)."""
    return X if names is None else carrying(X, names=names)


def with_index(rows: da.Array, X: Any) -> da.Array:
    """Return the rows of a frame of pandas or Dask, or of AnnData, with the index that names them; others unchanged."""
    if containers.is_cells(X):
        return carrying(rows, index=X.obs_names)
    return carrying(rows, index=X.index) if hasattr(X, "loc") and hasattr(X, "index") else rows


def view_of(X: da.Array) -> tuple[da.Array, View | None]:
    """Return the array and the view that :func:`viewed` made X of; X and None for any other."""
    found = carried(X)
    if found.beside and found.before is not None:
        return view_of(found.before)
    return (X, None) if found.view is None or found.before is None else (found.before, found.view)


def rows_from(X: da.Array, first: int) -> da.Array:
    """Return the rows of X from one on, which is the first of a sample, in the view of X."""
    base, view = view_of(X)
    return X[first:] if view is None else viewed(base[first // view.rows_per_sample :], view, carried(X).names)


def columns_of(X: da.Array, columns: NDArray[np.int64], *, complete: bool = False) -> da.Array:
    """Return some columns of X, in their order, as a view; those of a viewed array as another view of its samples.

    With ``complete``, rows that are not finite in some other column of X are NaN.
    """
    base, view = view_of(X)
    columns = np.asarray(columns, np.int64)
    known = View((int(X.shape[1]),)) if view is None else view
    whole = np.arange(int(X.shape[1]), dtype=np.int64) if known.columns is None else known.columns
    needed = whole if complete and known.complete is None else known.complete
    chosen = replace(known, columns=whole[columns], pattern=None, absent="", complete=needed)
    return viewed(X if view is None else base, chosen)


def held_rows(array: Any) -> Source:
    """Return the source of an array or CSR in memory."""
    return held_csr(array) if is_sparse(array) else MemoryRows(array.shape, array)


def open_source(source: Source, token: str | None = None, rows: tuple[int, ...] | None = None) -> da.Array:
    """Create the Dask array whose single ``original-`` node is the source; ``token`` names it.

    ``rows`` are those of its chunks; None joins stored chunks up to 64 MiB.
    """
    d = source.shape[1]
    most = source.densest if source.sparse else None
    row_bytes = source.form.row_bytes(d if most is None else most, source.dtype.itemsize)
    rows = coalesce(source.row_chunks(), row_bytes, DASK_CHUNK_BYTES) if rows is None else rows
    chunks = tuple(rows), (d,)
    with one_look() as seen:
        stamps = [] if token is not None or source.in_memory else source.stamps(0, source.shape[0])
    name = OPENED + (token or source.token(stamps))
    if token is None and not source.in_memory:
        on_disk = kind_of(source.path) == "disk"
        source = replace(source, looks=Looks(source, rows, seen) if on_disk else ObjectLooks(stamps))
    graph = da.core.graph_from_arraylike(source, chunks, source.shape, name, da.core.getter_nofancy, asarray=False)
    return array_of(graph, name, chunks, source.form.meta(source.dtype))


def open_graph(X: da.Array, *, single: bool) -> tuple[da.Array, tuple[int, ...]]:
    """Return a Dask array of samples as :func:`open_samples` does."""
    found = source_of(X) if X.name.startswith(OPENED) else None
    if found is not None:  # its dtype and shape were checked when it was opened
        return X, found.array_shape[1:]
    X = _settled(X) if da.array_expr_enabled() else X
    rows = following(_flatten(X[:, None] if single and X.ndim == 1 else X))
    found = source_of(X) if X.ndim == 2 and carried(X).view is None else None
    return rows, tuple(map(int, X.shape[1:])) if found is None else found.array_shape[1:]


def _flatten(X: da.Array) -> da.Array:
    label = f"the Dask array {X.name}"
    check_dtype(X.dtype)
    if type(X._meta) is np.ndarray and X.ndim == 2 and not np.isnan(X.shape[1]):
        return X
    if is_sparse(X._meta):
        if X.ndim != 2:
            raise ValueError(f"{label} has sparse chunks and shape {X.shape}; sparse rows have two dimensions, (n, d).")
        if len(X.chunks[1]) > 1:
            remedy = f"Pass X.rechunk(({max(X.chunks[0])}, -1))."
            if getattr(X._meta, "format", "") == "csc":  # where each chunk may hold all rows
                remedy = "Write compressed columns (csc) once by row: adata.X = adata.X.tocsr() of AnnData in memory."
            raise ValueError(
                f"{label} has sparse chunks of {len(X.chunks[1])} column blocks; whole rows were expected in every "
                f"chunk. {remedy}"
            )
        if is_csr(X._meta):
            return X
        dtype = np.dtype(X.dtype)
        return X.map_blocks(sparse_rows, label, dtype, dtype=dtype, meta=SPARSE.meta(dtype))
    containers.reject_chunks(X._meta, label)
    check_shape(X.shape, "the Dask array")
    if np.isnan(X.shape[1:]).any():
        raise ValueError(
            f"{label} has shape {X.shape}, so its number of columns is unknown. Call X.compute_chunk_sizes() first."
        )
    if X.ndim == 2:
        return X
    width, whole = row_width(X.shape), X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    if not np.isnan(X.shape[0]) and hasattr(whole, "reshape"):  # which Dask's expressions do not have
        return whole.reshape(X.shape[0], width)
    return whole.map_blocks(  # Dask reshapes known numbers of rows only
        _flat_block, width, drop_axis=list(range(2, X.ndim)), chunks=(X.chunks[0], (width,)), meta=X._meta.reshape(0, 0)
    )


def _flat_block(block: Array, width: int) -> Array:
    return block.reshape(len(block), width)


def _settled(X: da.Array) -> da.Array:
    """Return X without steps that Dask would drop, which expressions keep until they run."""
    from bigpca.expressions import lowered

    return lowered(X)


def source_of(X: da.Array) -> Source | None:
    """Find the source that a Dask array reads directly.

    Returns
    -------
    Source or None
        The source of a fresh :func:`open`, ``da.from_zarr`` or ``da.from_array`` of a 2-d Zarr or NumPy array; None
        once X was sliced, rechunked, transformed, persisted in pieces, or optimised by Dask.
    """
    X = _settled(X) if da.array_expr_enabled() else X
    graph, original = graph_of(X), f"original-{X.name}"
    layers = graph.layers
    if X.ndim != 2 or X.name not in layers:
        return None
    if original in layers:
        node: Any = dict(layers[original]).get(original)
        value: Any = getattr(node, "value", node)
        if original not in graph.dependencies.get(X.name, ()):
            return None
        found = value if isinstance(value, Source) else _source_behind(value)
        shape, known = X.shape, not np.isnan(X.shape[0])
        whole = isinstance(found, Source) and (found.shape == shape if known else found.shape[1:] == shape[1:])
        return found if whole else None
    values = dict(layers[X.name]) if not hasattr(layers[X.name], "indices") else {}
    array = _array_behind(X, {key: getattr(value, "value", value) for key, value in values.items()})
    return None if array is None else held_rows(array)


def _source_behind(value: Any) -> Any:
    """Return the source of what a graph reads: CSR in memory, or an open matrix; others as they are."""
    if is_csr(value):
        return held_rows(value)
    if containers.is_zarr_array(value) or isinstance(value, ZarrReader):
        reader = value if isinstance(value, ZarrReader) else ZarrReader(value)
        return ZarrRows.of(reader) if reader.ndim == 2 else None
    if containers.is_hdf5_dataset(value) and value.ndim == 2:
        from bigpca.data.files import file_source  # all formats of files, of no use to other arrays
        from bigpca.data.hdf5 import dataset_place

        return file_source(*dataset_place(value), "raise", None)
    return value


def _array_behind(X: da.Array, blocks: dict[Any, Any]) -> Array | None:
    """Return the array whose blocks are all views in their places, as created by ``da.from_array(ndarray)``."""
    if not blocks or not all(type(block) is np.ndarray for block in blocks.values()):
        return None
    if len(blocks) == 1:
        block: Array = next(iter(blocks.values()))
        return block if block.shape == X.shape else None
    base: Any = next(iter(blocks.values())).base
    if type(base) is not np.ndarray or base.shape != X.shape or base.dtype != X.dtype:
        return None
    for key, where in zip(chain.from_iterable(X.__dask_keys__()), da.core.slices_from_chunks(X.chunks), strict=True):
        held, place = blocks.get(key), base[where]
        if held is None or (held.ctypes.data, held.shape, held.strides) != (
            place.ctypes.data,
            place.shape,
            place.strides,
        ):
            return None
    return base


def whole_rows(X: da.Array, dtype: np.dtype[Any], width: int) -> da.Array:
    """Return X in a dtype, and in dense chunks of whole rows in the host's memory, of :func:`dense_chunk_rows`."""
    rows = dense_chunk_rows(X, dtype, width)
    X = X.rechunk((tuple(part for chunk in X.chunks[0] for part in regular_chunks(chunk, rows)), -1))
    if not is_csr(X._meta) and not place_name(X._meta):
        return X.astype(dtype)
    return X.map_blocks(_dense_block, dtype, dtype=dtype, meta=np.empty((0, 0), dtype))


def dense_chunk_rows(X: da.Array, dtype: np.dtype[Any], width: int) -> int:
    """Return the rows of the largest chunk of :func:`whole_rows`: with ``width`` numbers a row, 64 MiB at most.

    Sparse rows, made dense, count all their columns.
    """
    width = max(width, int(X.shape[1])) if is_csr(X._meta) else width
    return min(max(X.chunks[0], default=0), max(1, DASK_CHUNK_BYTES // max(1, width * dtype.itemsize)))


def _dense_block(block: Any, dtype: np.dtype[Any]) -> Array:
    dense: Array = block.toarray() if is_csr(block) else host_array(block)  # chunks without rows may be dense
    return dense.astype(dtype, copy=False)
