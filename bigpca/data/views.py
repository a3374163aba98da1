"""Views: which numbers of each stored sample are analysed, and what a row is.

A view is applied where rows are read, and nothing is copied. A Dask array carries it, in one record with all that is
known of its rows (:class:`Carried`): :func:`viewed` makes one, and :func:`view_of` finds array and view again, so that
the engine reads the samples directly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import Alias, TaskRef
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix, issparse

import bigpca.dask_array as da
from bigpca.data.containers import check_chunk_shape, is_cells
from bigpca.data.patterns import NO_CODES, MissingCodes, Positions, RowPattern, Taken, pool
from bigpca.data.sparse import is_csr
from bigpca.errors import NonFiniteError
from bigpca.storage.files import content_digest

Names: TypeAlias = NDArray[np.object_] | None
BESIDE = "bigpca-beside-"  # in names of rows with what belongs to them, which Dask keeps where it drops records
LEFT_OUT = (
    "the rows were opened with covariates, weights, labels or groups, which this call does not use. Open them without: "
    "bigpca.open(X). Estimators, such as bigpca.PCA and NystromKernelPCA, use them."
)
COPIED_ROWS = 32  # of a transposed sample at a time: two cache lines of each column
COPIED_BYTES = 2**18  # of smaller samples, which are transposed together


@dataclass(frozen=True, eq=False)
class View:
    """Rows of stored samples: some axes of a sample number its rows, some make their columns, the others are pooled.

    Row ``sample * rows_per_sample + position`` is the row at a position of a sample.

    Attributes
    ----------
    sample : tuple of int
        Shape of one stored sample.
    row_axes : tuple of int
        Axes of the sample that number its rows, the slowest first; none where a sample is a row.
    column_axes : tuple of int
        Axes that make the columns, the slowest first.
    reduce : str or None
        How the remaining axes are pooled, one of :data:`bigpca.data.patterns.RULES`; None if there are none.
    taken : tuple of slice or ndarray of int64, or ()
        Which positions of each axis are used, in this order; () for all of all axes.
    columns : ndarray of int64, or None
        Which columns are kept, in this order; None for all.
    pattern : RowPattern or None
        What the view was made of, if a user described it.
    absent : {"", "nan", "masked"}
        Why the other places of a grid are left out: they are NaN in every row, which is checked, or a mask excludes
        them, whatever they hold; "" where no grid is involved.
    missing : MissingCodes
        Samples have these values where there is none: they become NaN, before anything else.
    complete : ndarray of int64, or None
        Columns without which a row is NaN: where one of them is not finite, so are all that are kept.
    """

    sample: tuple[int, ...]
    row_axes: tuple[int, ...] = ()
    column_axes: tuple[int, ...] = (0,)
    reduce: str | None = None
    taken: tuple[Taken, ...] = ()
    columns: NDArray[np.int64] | None = None
    pattern: RowPattern | None = None
    absent: str = ""
    missing: MissingCodes = NO_CODES
    complete: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, pattern: RowPattern, shape: tuple[int, ...], names: Names = None) -> View:
        """Return the view that a pattern describes of samples of a shape.

        ``names`` are those of the columns before some are chosen.

        Raises
        ------
        ValueError
            If the pattern does not fit, or chooses what there is not.
        """
        sizes = pattern.sample(shape)
        positions = pattern.positions(sizes)
        missing = pattern.missing.on(math.prod(shape), names)
        whole = cls(sizes, *pattern.axes(len(sizes)), pattern.reduce, positions, pattern=pattern, missing=missing)
        if pattern.columns is None:
            return whole
        chosen = pattern.columns.on(whole.width, "columns", names)
        if isinstance(chosen, slice):
            chosen = np.arange(*chosen.indices(whole.width), dtype=np.int64)
        return replace(whole, columns=chosen)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values of a view of a pattern: the pattern, with named columns by their positions."""
        pattern = replace(self.pattern or RowPattern(), missing=self.missing)
        if self.columns is not None and pattern.columns is not None and not isinstance(pattern.columns.given, slice):
            pattern = replace(pattern, columns=Positions(tuple(self.columns.tolist()), pattern.columns.length))
        return {"sample": list(self.sample), **pattern.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], width: int) -> View:
        """Return what :meth:`to_json` gave of a view of ``width`` columns.

        Raises
        ------
        KeyError, TypeError, ValueError
            For values that it does not give.
        """
        pattern, sizes = RowPattern.from_json(values), tuple(int(size) for size in values["sample"])
        if min(sizes, default=0) < 1:
            raise ValueError(f"its samples have the shape {sizes}")
        shape = pattern.shape(sizes)
        found = cls.of(replace(pattern, columns=None), shape).width
        if pattern.columns is not None:
            found = pattern.columns.count(found)  # before memory is allocated for so many
        if found != width:
            raise ValueError(f"its pattern makes rows of {found} columns, not {width}")
        return cls.of(pattern, shape)

    @property
    def rows_per_sample(self) -> int:
        """Rows of one sample."""
        return self._places(self.row_axes)

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self._places(self.column_axes) if self.columns is None else len(self.columns)

    @property
    def column_sizes(self) -> tuple[int, ...]:
        """Sizes of the axes that make the columns; some positions and columns may be left out."""
        return tuple(self.sample[axis] for axis in self.column_axes)

    @property
    def pooled_axes(self) -> tuple[int, ...]:
        """Axes of the sample over which values are pooled."""
        return tuple(axis for axis in range(len(self.sample)) if axis not in self.row_axes + self.column_axes)

    @property
    def kept(self) -> bool:
        """Whether a model keeps the view, and applies it to new samples."""
        return bool(self.absent) or (self.pattern is not None and not self.plain)

    @property
    def plain(self) -> bool:
        """Whether rows are the samples, as they are without a view."""
        return not self.copies and self.rows_per_sample == 1 and self.width == math.prod(self.sample)

    @property
    def copies(self) -> bool:
        """Whether rows are never the memory of the samples."""
        order = self.row_axes + self.column_axes
        chosen = bool(self.missing) or any(not isinstance(one, slice) for one in self.taken)
        return chosen or self.columns is not None or self.reduce is not None or order != tuple(sorted(order))

    def _places(self, axes: tuple[int, ...]) -> int:
        return math.prod(
            _length(self.taken[axis], self.sample[axis]) if self.taken else self.sample[axis] for axis in axes
        )

    def dtype(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of rows of samples in a dtype: float32 or float64 where values are averaged or missing."""
        stored = self.missing.dtype(stored) if self.missing else stored
        return np.result_type(stored, np.float32) if self.reduce not in (None, "max") else stored

    def samples(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of samples that hold rows ``start:stop``."""
        return start // self.rows_per_sample, -(-stop // self.rows_per_sample)

    def chunks(self, samples: tuple[int, ...]) -> tuple[int, ...]:
        """Return the rows of chunks of so many samples."""
        each = self.rows_per_sample
        return tuple(count * each for count in samples)

    def apply(
        self, samples: NDArray[Any], *, owned: bool = False, present: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """Return the rows (b * rows_per_sample, width) of samples (b, d), which may be overwritten if ``owned``.

        Columns that are NaN are those of the rows that are ``present``; None for all.
        """
        if issparse(samples):
            chosen: NDArray[Any] = self._sparse(samples)
            return chosen
        if self.missing:
            samples, owned = self.missing.decoded(samples), True
        check_chunk_shape(samples.shape, (math.prod(self.sample),), "the Dask array")
        cells = samples.reshape(len(samples), *self.sample)
        for axis, taken in enumerate(self.taken):
            cells = cells[(slice(None),) * (axis + 1) + (taken,)]
        axes = list(range(len(self.sample)))
        if self.reduce is not None:
            cells = pool(cells, tuple(axis + 1 for axis in self.pooled_axes), self.reduce, self.dtype(samples.dtype))
            axes = [axis for axis in axes if axis not in self.pooled_axes]
        order = (0, *(axes.index(axis) + 1 for axis in self.row_axes + self.column_axes))
        rows = cells.transpose(order).reshape(len(cells), self.rows_per_sample, self._places(self.column_axes))
        whole = owned and not self.taken and self.reduce is None and samples.flags.c_contiguous
        flat = _contiguous(rows, samples if whole else None).reshape(-1, rows.shape[2])
        if self.columns is None:
            return flat
        if self.absent == "nan":
            _check_absent(flat, self.columns, present)
        found: NDArray[Any] = np.take(flat, self.columns, axis=1)
        if self.complete is not None and found.dtype.kind == "f":
            found[~np.isfinite(flat).take(self.complete, axis=1).all(axis=1)] = np.nan
        return found

    def of_rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of rows, given by sample and by the axes that number its rows, such as a mask of tokens.

        The axes are in the order in which they are stored. Values of another shape are returned unchanged.
        """
        axes = sorted(self.row_axes)
        sizes = tuple(self.sample[axis] for axis in axes)
        if not sizes or values.shape[1:] != sizes:
            return values
        taken = tuple(self.taken[axis] for axis in axes) if self.taken else ()
        rows = View(sizes, tuple(axes.index(axis) for axis in self.row_axes), (), taken=taken)
        return rows.apply(values.reshape(len(values), -1))[:, 0]

    def _sparse(self, samples: Any) -> Any:
        """Return the chosen columns of CSR rows, with sorted indices."""
        if self.absent == "nan" and self.columns is not None:  # what is not stored is 0, which is a value
            _check_absent(np.zeros((min(samples.shape[0], 1), samples.shape[1])), self.columns)
        rows = samples if self.columns is None else samples[:, self.columns]
        if self.complete is not None and rows.dtype.kind == "f":
            stored = samples[:, self.complete].tocoo()
            gaps = np.unique(stored.row[~np.isfinite(stored.data)])
            places = (gaps, np.zeros_like(gaps))  # one NaN in each such row
            rows = rows + type(rows)((np.full(len(gaps), np.nan, rows.dtype), places), shape=rows.shape)
        rows.sort_indices()
        return rows

    def describe(self) -> dict[str, Any]:
        """Return what identifies the view, for fingerprints."""
        columns = None if self.columns is None else content_digest(self.columns)
        taken = [str(one if isinstance(one, slice) else one.tolist()) for one in self.taken]
        shape = {"sample": list(self.sample), "row_axes": list(self.row_axes), "column_axes": list(self.column_axes)}
        checked = {"absent": self.absent} if self.absent else {}
        coded = {"missing": self.missing.to_json()} if self.missing else {}
        needed = {} if self.complete is None else {"complete": content_digest(self.complete)}
        return {**shape, "reduce": self.reduce, "taken": taken, "columns": columns, **checked, **coded, **needed}

    def __dask_tokenize__(self) -> object:
        return "bigpca.View", self.describe()


def _check_absent(rows: NDArray[Any], columns: NDArray[np.int64], counted: NDArray[np.bool_] | None = None) -> None:
    """Check that all columns (b, d) but some are NaN, in the rows that count.

    Raises
    ------
    NonFiniteError
        Has the positions of those that are not, as ``stored_columns``.
    """
    rest = np.ones(rows.shape[1], bool)
    rest[columns] = False
    places, present = np.flatnonzero(rest), np.zeros(len(rest) - len(columns), bool)
    step = max(1, COPIED_BYTES // max(1, rows.itemsize * len(places)))
    own = np.ones(len(rows), bool) if counted is None else counted
    for i in range(0, len(rows), step):
        strip = own[i : i + step]
        present |= ~np.isnan(rows[i : i + step, places][strip]).all(axis=0)
    if not present.any():
        return
    found = places[present]
    value = next(one for one in rows[own, found[0]] if not np.isnan(one))
    error = NonFiniteError(
        f"{len(found)} column{'s hold' if len(found) > 1 else ' holds'} NaN in some rows and values in others: the "
        f"first is column {found[0]}, with the value {value}. Columns that are NaN in every row of a fit are left out, "
        f"and may hold no value elsewhere. Fill in such columns, or set them to NaN."
    )
    error.stored_columns = tuple(found.tolist())
    raise error


def _length(taken: Taken, size: int) -> int:
    return len(range(*taken.indices(size))) if isinstance(taken, slice) else len(taken)


def _contiguous(rows: NDArray[Any], memory: NDArray[Any] | None) -> NDArray[Any]:
    """Return rows (b, places, d) in C order: transposed a few lines at a time, so that what is read stays cached.

    ``memory`` is that of the rows, if it may be overwritten: sample by sample, which saves an array of all rows.
    """
    if rows.flags.c_contiguous:
        return rows
    out = np.empty(rows.shape, rows.dtype) if memory is None else memory.reshape(rows.shape)
    together = max(1, COPIED_BYTES // max(1, math.prod(rows.shape[1:]) * rows.itemsize))
    for s in range(0, len(rows), together):
        samples, into = rows[s : s + together], out[s : s + together]
        lines = into if memory is None else np.empty(samples.shape, rows.dtype)
        for i in range(0, rows.shape[1], COPIED_ROWS):
            lines[:, i : i + COPIED_ROWS] = samples[:, i : i + COPIED_ROWS]
        if memory is not None:
            into[...] = lines
    return out


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
    repeats : bool
        Whether rows of the same key are meant, as those of one sample.
    parts : tuple of dask.array.Array
        The arrays of a list, whose rows these are, one after the other.
    beside : mapping of str to what a user gave
        What belongs to the rows, by the names of :func:`bigpca.open`: weights, labels, groups and covariates.
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
    repeats: bool = False
    parts: tuple[da.Array, ...] = ()
    beside: Mapping[str, Any] = field(default_factory=dict)


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


def with_beside(X: da.Array, **given: Any) -> da.Array:
    """Return the same rows with what belongs to them, under another name: elsewhere, the same rows may have other.

    What is None is not given.

    Raises
    ------
    ValueError
        For rows that have it.
    """
    given = {name: one for name, one in given.items() if one is not None}
    if not given:
        return X
    known = carried(X)
    for name in sorted(known.beside.keys() & given.keys() if known.beside else _beside_before(X)):
        more = "" if name in given else ", ".join(["", *(f"{one}=..." for one in given)])
        raise ValueError(
            f"the rows were opened with {name} already. Open them once, open(X, {name}=...{more}), and then take rows "
            "or columns of what it returns."
        )
    name = f"{BESIDE}{tokenize(X.name, given)}"
    meta = X._meta
    if type(meta) is np.ndarray:
        meta = meta.view(WithBeside)
    elif is_csr(meta):
        meta = (CSRWithBeside if isinstance(meta, csr_matrix) else CSRArrayWithBeside)(meta)
    rows = da.map_blocks(_as_they_are, X, name=name, dtype=X.dtype, chunks=X.chunks, meta=meta)
    return carrying(rows, **vars(known) | {"before": X, "beside": {**known.beside, **given}})


def _beside_before(X: da.Array) -> set[str]:
    """Return the names of what was opened with the rows that those of X are, not with those that a model mapped."""
    found = set[str]()
    for one in map(carried, taken_from(X)[0]):
        first = one.beside or one.before is None or one.made is not None
        found |= set(one.beside) if first else _beside_before(one.before)
    return found


class WithBeside(np.ndarray[Any, Any]):
    """The kind of array that Dask has for rows with what belongs to them: it stays where records are dropped."""

    __array_priority__ = 1.0  # also beside other arrays


class CSRWithBeside(csr_matrix):  # type: ignore[misc]  # SciPy has no types
    """The same for sparse rows."""


class CSRArrayWithBeside(csr_array):  # type: ignore[misc]
    """The same for sparse rows."""


def _as_they_are(rows: Any) -> Any:
    return rows


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


def taken_from(X: da.Array, *, ordered: bool = False) -> tuple[list[da.Array], NDArray[np.int64] | None]:
    """Return the arrays that X has rows of, and the places of the rows of X in these, one after the other.

    Steps are known by the names of Dask's functions: a subclass of its arrays would be lost where these are pickled,
    joined or optimized. A step that is not known costs the rows their keys, with an error that says so.

    They are arrays that carry what names rows, or that read a source directly, to which slices, lists of rows, masks,
    new chunks and dtypes, and rows that are joined lead. X alone where X is such an array itself, and where other steps
    lie between, such as columns in another order if they must be ``ordered``. Places are None for all rows in order.
    """
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
            return [X], None
    if X.name in known or any(np.isnan(size) for chunks in known.values() for size in chunks[0]):
        return [X], None
    starts = dict[str, NDArray[np.int64]]()  # of the chunks of each array, in the order in which X has rows of them

    @cache
    def rows_of(key: Any) -> NDArray[np.int64]:
        if key[0] in known:
            if key[0] not in starts:
                before = next((ends[-1] for ends in reversed(starts.values())), 0)
                starts[key[0]] = before + np.cumsum([0, *known[key[0]][0]])
            return np.arange(*starts[key[0]][key[1] : key[1] + 2])
        node: Any = steps[key]
        if isinstance(node, Alias) or (isinstance(node, tuple) and isinstance(node[0], str)):  # another key
            return rows_of(getattr(node, "target", node))
        called = _called(node)
        args: Any = node.args if called else (None,)
        given, *rest = args
        if called == "astype":
            return rows_of(given.key)
        if called in ("getitem", "_getitem"):
            place = rest[0] if called == "getitem" else steps[rest[0].key].value[1]
            index, *columns = (None,) if isinstance(place, TaskRef) else place
            if ordered and any(not isinstance(one, slice) or one.step not in (None, 1) for one in columns):
                raise LookupError
            if isinstance(index, slice | np.ndarray):
                return rows_of(given.key)[index]
        if called == "concatenate_shaped":
            parts, width = list(given), math.prod(rest[0][1:])
            return np.concatenate([beside(parts[i : i + width]) for i in range(0, len(parts), width)])
        if called == "concatenate3":  # rows of blocks
            return np.concatenate([beside(parts.args) for parts in given.args])
        if called == "concatenate_arrays":  # the blocks from which a list takes, and the order in which it does
            order, axis = np.argsort(steps[rest[0].key].value[1]), rest[1]
            return beside(given) if axis else np.concatenate([rows_of(part.key) for part in given])[order]
        raise LookupError

    def beside(parts: Iterable[Any]) -> NDArray[np.int64]:
        """Return the rows of blocks of columns, if they are the same in all."""
        rows, *others = (rows_of(getattr(part, "key", part)) for part in parts)
        if not all(np.array_equal(rows, other) for other in others):
            raise LookupError
        return rows

    columns = list(np.ndindex(X.numblocks[1:]))
    try:
        places = [beside((X.name, i, *at) for at in columns) for i in range(X.numblocks[0])]
    except LookupError:
        return [X], None
    bases = [array_of(graph, name, known[name], X._meta) for name in starts]
    ends = np.cumsum([len(one) for one in places])
    whole = ends[-1] == sum(int(one.shape[0]) for one in bases) and all(
        np.array_equal(one, np.arange(end - len(one), end)) for one, end in zip(places, ends, strict=True)
    )
    return bases, None if whole else np.concatenate(places)


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
    if found is not None and not (found.before is found.labels is found.index is None):
        return found.chunks
    if f"original-{name}" not in layers:
        return None
    deps = [layers[name], *getattr(layers[name], "io_deps", {}).values()]
    return next((dep.chunks for dep in deps if hasattr(dep, "chunks")), None)


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
        if view.sample != (X.shape[1],) or view.column_axes != (0,) or view.taken or view.reduce is not None:
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
    if is_cells(X):
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
