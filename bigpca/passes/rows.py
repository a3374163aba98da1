"""X as the engine sees it: where rows are stored, a view, maps, weights, and policies for bad rows and lost chunks.

Rows of several origins may stand side by side (:mod:`bigpca.passes.side_by_side`).
"""

from __future__ import annotations

import math
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

import bigpca.dask_array as da
from bigpca.arrays import DType, Vector, working_dtype
from bigpca.csr import SPARSE_SLAB_BYTES
from bigpca.data.batches import BatchRows, batches_of, reject_batches
from bigpca.data.checks import READABLE_BYTES, whole_chunks
from bigpca.data.dask_arrays import (
    LEFT_OUT,
    array_of,
    carried,
    carries_beside,
    graph_of,
    held_rows,
    largest_chunk,
    open_source,
    source_of,
    view_of,
    viewed,
)
from bigpca.data.grids import Labels
from bigpca.data.source import Source, of_task
from bigpca.data.sparse import form_of_meta
from bigpca.data.views import View
from bigpca.data.weights import CountedRows, one_weight_each
from bigpca.data.zarr_arrays import place_at
from bigpca.devices import Namespace, namespace, place_name
from bigpca.engine.interfaces import Inputs
from bigpca.engine.jobs import Finish, GroupTask, Pass, R
from bigpca.engine.layout import MIB, SLAB_BYTES, Cut, coalesce, plan_layout
from bigpca.engine.planning import Layout, PassCost, Resources
from bigpca.engine.resources import find_resources
from bigpca.engine.run import Run
from bigpca.errors import brief
from bigpca.forms import DenseForm, Values
from bigpca.host import HOST
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.observed_columns import ColumnSearch
from bigpca.passes.graphs import GraphSource, computed, paths_in, sources_of_graph, unknown_layer
from bigpca.passes.reading.readers import (
    MAPS,
    SHIFT,
    ColumnFill,
    DirectReader,
    Reader,
    ViewReader,
)
from bigpca.passes.reading.row_maps import MapStep, RowPreprocessor
from bigpca.settings import setting
from bigpca.storage.files import (
    Seen,
    changed,
    digest,
    input_changed,
    kind_of,
    look_at,
    looking,
    one_look,
)

COUNTED_BYTES = 64 << 20  # of a sparse chunk, if it stored its zeros, beyond which its values are counted


# Of an unknown number of rows, which many fits may read in step, each holding slabs: half of SLAB_ROWS at least.
OPEN_SLAB_BYTES, OPEN_SLAB_ROWS = 16 * MIB, 4096


class Given(TypedDict, total=False):
    """How X was given; see :class:`Origin`."""

    names: NDArray[np.object_] | None
    sample: tuple[int, ...]
    lazy: bool


class Arrays(NamedTuple):
    """Rows as Dask arrays: as they are read, as they were given, and the samples that they are made of."""

    X: da.Array
    given: da.Array
    samples: da.Array


@dataclass(eq=False)
class Origin:
    """Where rows come from: X as it was given and as it is read, and what is found out about its stores.

    What is found out is found when it is first needed, and known to all rows of the origin. Row numbers are those of
    the rows of the view.

    Attributes
    ----------
    stored : Source or None
        The source from which samples are read directly; None for graphs.
    arrays : Arrays or None
        The rows as Dask arrays; None for rows in memory, which few calls need as such: see :attr:`lazily`.
    view : View or None
    names : ndarray of shape (d,), or None
        Feature names.
    sample : tuple of int
        Shape of one stored sample as a user gave it; that of a row if X is a view.
    lazy : bool
        Whether the user gave something that the engine reads, so that results are lazy; False for arrays in memory.
    opened_as : str
        Digest of the files, if the present call has opened X, which its first question about them has for an answer.
    seen : dict
        What the last look has seen of each file.
    direct : tuple of Source
        The sources from which rows are read without a graph.
    shape : tuple of int
        (n, d) of the rows, before any map; n may be NaN.
    dtype : numpy.dtype
        Of these.
    form : DenseForm
        What the rows that tasks read do in the way of their kind.
    in_memory : bool
        Whether rows are an array of this process, which is never sent to workers.
    widths : tuple of int
        Columns of each side; empty for rows of one origin.
    owned : bool
        Whether rows may be overwritten as they are read.
    rows_per_sample : int
        Rows that the view makes of a sample.
    labels : Labels or None
        The dimensions and coordinates of a DataArray.
    search : ColumnSearch or None
        The reads that found which columns of X have values.
    brings : bool
        Whether X was opened with what belongs to its rows, or computed from rows that were.
    """

    stored: Source | None
    arrays: Arrays | None = None
    view: View | None = None
    names: NDArray[np.object_] | None = None
    sample: tuple[int, ...] = ()
    lazy: bool = True
    opened_as: str = ""
    seen: Seen = field(default_factory=dict)
    direct: tuple[Source, ...] = field(init=False)
    shape: tuple[int, int] = field(init=False)
    dtype: DType = field(init=False)
    form: DenseForm = field(init=False)
    in_memory: bool = field(init=False)
    widths: tuple[int, ...] = field(init=False)
    owned: bool = field(init=False)
    rows_per_sample: int = field(init=False)
    labels: Labels | None = field(init=False)
    search: ColumnSearch | None = field(init=False)
    brings: bool = field(default=False, init=False)
    _digest: str | None = field(default=None, init=False)
    _graph: GraphSource | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        view, arrays, source = self.view, self.arrays, self.stored
        self.rows_per_sample = 1 if view is None else view.rows_per_sample
        self.owned, self.labels, self.search, self.widths = source is not None, None, None, ()
        self.direct, self.in_memory = () if source is None else (source,), source is not None and source.in_memory
        if arrays is not None:
            self.shape, self.dtype = arrays.X.shape, arrays.X.dtype
            self.form = form_of_meta(arrays.samples._meta) if source is None else source.form
            self.owned |= len(arrays.samples.chunks[1]) > 1 or (view is not None and view.copies)
            self.labels, self.search = carried(arrays.given).labels, carried(arrays.X).search
            self.brings = carries_beside(arrays.X)
        elif source is not None:
            self.shape, self.dtype, self.form = source.shape, source.dtype, source.form

    @classmethod
    def of(cls, X: da.Array, **given: Unpack[Given]) -> Origin:
        """Return the origin of the rows of X (n, d), with the view that X carries. Nothing is read."""
        samples, view = view_of(X)
        return cls(source_of(samples), Arrays(X, X, samples), view, **given)

    @cached_property
    def lazily(self) -> Arrays:
        """The rows as Dask arrays; one is made of rows in memory when it is first needed."""
        if self.arrays is not None:
            return self.arrays
        X = open_source(self.direct[0])  # named by its values: a checkpoint of what is made of it is found again
        return Arrays(X, X, X)

    @property
    def sides(self) -> tuple[Origin, ...]:
        """The origins of rows that stand side by side: of one origin, itself."""
        return (self,)

    @property
    def X(self) -> da.Array:
        """The rows (n, d) as a Dask array, before any map."""
        return self.lazily.X

    @property
    def given(self) -> da.Array:
        """The same as it was given: it has the keys of its rows, also where these were counted."""
        return self.lazily.given

    @property
    def samples(self) -> da.Array:
        """The stored samples that the view makes rows of; X if there is no view."""
        return self.lazily.samples

    @property
    def label(self) -> str:
        """What X is, for messages."""
        return f"the Dask array {self.samples.name}" if self.stored is None else self.stored.label

    @property
    def graph(self) -> GraphSource:
        """The graph to cut; its shared nodes are computed on first use."""
        with self._lock:  # the first groups are cut in several threads
            if self._graph is None:
                self._graph = GraphSource(self.samples, self.label)
        return self._graph

    @cached_property
    def values_per_sample(self) -> float:
        """Stored values of a mean sample; of sparse ones in a graph, what :attr:`looked_at` shows, or all columns."""
        known = None if self.stored is None else self.stored.stored_values
        n, d = map(int, self.shape if self.view is None else self.samples.shape)
        rows, values = self.looked_at if known is None else (max(1, n), known)
        return values / rows if rows else float(d)

    @cached_property
    def looked_at(self) -> tuple[int, int]:
        """The samples of a sparse graph whose stored values were counted, and these; (0, 0) for others.

        They are some of the chunks, if these would be large without zeros: what a graph stores is not known before it
        is computed.
        """
        if self.stored is not None or self.arrays is None:
            return 0, 0
        X = self.samples
        largest = max(X.chunks[0], default=0) * int(X.shape[1]) * X.dtype.itemsize
        return self.graph.stored_values() if not self.form.shifts and largest > COUNTED_BYTES else (0, 0)

    @cached_property
    def row_chunks(self) -> tuple[int, ...]:
        """Native row chunks: the store's for direct arrays, Dask's for general ones and for views."""
        if self.view is not None:
            return self.view.chunks(self.sample_chunks)
        return tuple(int(c) for c in self.X.chunks[0]) if self.stored is None else self.stored.row_chunks()

    @property
    def sample_chunks(self) -> tuple[int, ...]:
        """Samples that are cut into rows together: those of Dask's chunks, or fewer where a source is read."""
        if self.stored is not None:
            return coalesce(self.stored.row_chunks(), self.sample_bytes, READABLE_BYTES)
        return tuple(int(c) for c in self.samples.chunks[0])

    @property
    def sample_bytes(self) -> float:
        """Stored bytes of a sample; of sparse ones, on average."""
        if self.stored is not None:
            return self.stored.row_bytes
        return self.form.row_bytes(self.values_per_sample, int(self.samples.dtype.itemsize))

    @property
    def row_bytes(self) -> float:
        """Stored bytes decoded for one row."""
        return self.sample_bytes / self.rows_per_sample

    def decoded(self, start: int, stop: int) -> tuple[int, int]:
        """Return the rows that are decoded where rows ``start:stop`` are read."""
        first, last = (start, stop) if self.view is None else self.view.samples(start, stop)
        if self.stored is not None:
            with one_look(self.seen):
                first, last = self.stored.decoded(first, last)
        else:
            first, last = whole_chunks(self.samples.chunks[0], first, last)
        return first * self.rows_per_sample, last * self.rows_per_sample

    @property
    def paths(self) -> dict[str, str]:
        """Files and directories that tasks read, for :attr:`bigpca.engine.jobs.Pass.paths`."""
        return {source.path: "reads" for source in self.direct} if self.direct else paths_in(self.samples)

    @cached_property
    def requests(self) -> tuple[int, int]:
        """Requests to an object store for one read, and the most bytes in flight in a process; (0, 0) elsewhere."""
        return (0, 0) if self.stored is None else self.stored.requests

    @cached_property
    def sources(self) -> Sequence[Source]:
        """All sources that tasks read; nothing of a graph is computed."""
        return self.direct or sources_of_graph(self.samples)

    def reader(self, start: int, stop: int, *, owned: bool, there: bool) -> tuple[Reader, Inputs]:
        """Return a reader of samples ``start:stop``, and the futures its task must be given; as :meth:`Rows.reader`."""
        if self.stored is not None:
            return DirectReader(of_task(self.stored, start, stop), owned, there), {}
        reader, futures = self.graph.cut(start, stop)
        return replace(reader, there=there), futures

    def stamp(self, start: int, stop: int) -> str:
        """Digest of (key, size, change) of the files that hold those rows; of the content for arrays in memory.

        Files are as :meth:`files_digest` last saw them, so that all groups and passes of a run share one look, taken
        before any of them is read. Of a graph, and of a store that is listed as a whole, it is the digest of all files.
        """
        if self.view is not None:
            start, stop = self.view.samples(start, stop)
        if self.stored is not None and kind_of(self.stored.path) == "disk":
            with one_look(self.seen):
                return digest(self.stored.stamps(start, stop))
        return self.files_digest() if self._digest is None else self._digest

    def files_digest(self) -> str:
        """Digest of (key, size, change) of all files, as they are now or were just opened; "" where there is none."""
        held = self.stored is not None and (self.stored.in_memory or isinstance(self.stored, BatchRows))
        if held or self.unstamped:
            return ""
        found, self.opened_as = self.opened_as, ""
        if not found:
            with one_look() as self.seen:
                found = digest([source.token() for source in self.sources])
        self._digest = found
        return found

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk that is read for the rows of a slab, beyond these: it is made whole, and then cut."""
        chunk = math.ceil(max(self.sample_chunks, default=0) * self.sample_bytes)
        if self.view is not None:
            return 2 * chunk  # and its decoded form
        return 0 if self.stored is not None else max(0, largest_chunk(self.samples) - chunk)

    @cached_property
    def unstamped(self) -> str:
        """What is said of rows whose store does not tell when they change; empty for all others."""
        for source in self.sources:
            if source.unseen is None:
                return f"changes of {source.label} go unnoticed: its store has no ETags and no times of change"
        return ""

    @cached_property
    def unnoticed(self) -> tuple[str, ...]:
        """The line of a plan about changes that go unnoticed: of a store, or of a layer that is not a source."""
        if self.unstamped:
            return (f"{self.unstamped}, and the run cannot be resumed",)
        layer = "" if self.direct else unknown_layer(self.samples)
        for source in self.sources:
            layer = layer or source.unseen or ""
        return (f"changes of the files behind {layer} go unnoticed while they are read",) if layer else ()

    def describe(self) -> object:
        """JSON-able description for fingerprints."""
        if self.stored is not None:
            return self.stored.describe()
        sources = [source.describe() for source in self.sources]
        return {"format": "dask", "name": self.samples.name, "sources": sources}


@dataclass(frozen=True)
class Order:
    """How rows that are begun are read: in any order, or once, in that of batches; and with what.

    Attributes
    ----------
    batches : BatchRows or None
        The batches that this process reads in order; None for rows that are read in any order.
    in_order : bool
        Whether this process must read rows in order, because they come in batches.
    once : bool
        Whether rows can be read once only.
    open_ended : bool
        Whether the number of rows is found as they are read.
    rows_per_sample : int
        Rows of each of their samples.
    widths : tuple of int
        Columns of each of several blocks in a batch; empty for one.
    counted : bool
        Whether the rows were counted, in a read of X.
    in_process : bool
        Whether X is computed from an array of this process, which is never sent to workers, or from batches.
    memory_limit : int, str or None
        Of each process that reads them; None for the setting, or else the limit of the live workers, or the machine's
        free memory.
    """

    batches: BatchRows | None = None
    in_order: bool = False
    once: bool = False
    open_ended: bool = False
    rows_per_sample: int = 1
    widths: tuple[int, ...] = ()
    counted: bool = False
    in_process: bool = False
    memory_limit: int | str | None = None

    @cached_property
    def resources(self) -> Resources:
        """What each process that reads the rows may use, found once: later changes of the cluster do not count."""
        return find_resources(setting(self, "memory_limit"), in_process=self.in_process)

    def has(self, row: int) -> bool:
        """Whether batches have that row, which is not before the next one."""
        return self.batches is not None and self.batches.stream.has(row // self.rows_per_sample)

    @property
    def n_rows(self) -> int | None:
        """The number of rows that was found as they were read; None for others."""
        count = self.batches.stream.count if self.batches is not None and self.open_ended else None
        return None if count is None else count * self.rows_per_sample


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """X as the engine sees it: where rows come from, a view, a chain of row maps, weights, and policies.

    A view defines which numbers of a stored sample form a row, and so what a row number means. Maps are applied in
    order, inside the task that reads, to the finite rows. Weights are aligned with the rows of the view by absolute row
    number. :func:`bigpca.estimators.shared.inputs.open_rows` makes the rows of what a user gives, and :meth:`opened`
    those of a Dask array, without reading; :meth:`begun` makes them ready to be read. Other rows of the same array are
    made by :func:`dataclasses.replace`.

    Attributes
    ----------
    origin : Origin
        X, its view, and its stores.
    order : Order
        Whether rows come in batches, and how many there are.
    seed : int
        Seed of all random draws of a fit.
    nan_policy : {"raise", "omit", "mean", "pairwise", "em"}
        Of rows with NaN or infinities. With "mean", NaN are filled in the rows that :func:`filled` returns, and
        rejected in others; with "pairwise" and "em" they stay there.
    steps : tuple of MapStep
        Those of rows as they are stored come first: limits of values, and what fills in missing ones.
    counted : CountedRows
        Which rows count, and how often: weights, and labels.
    covariates : Rows or None
        Of the same samples, whose linear effect a fit takes out.
    groups : labels of the rows, as they were given, or None
        The folds of a fit that leaves out each group in turn.
    y : labels of the rows in their order, labels of batches, or rows of Y; None without
    preprocessing : tuple of RowPreprocessor, or None
        What a new fit applies to each row first; None for what its model says.
    stored_steps : tuple of MapStep
        The first maps, of rows as they are stored.
    sparse : bool
        Whether tasks read CSR.
    n_rows : int
        Number of rows, NaN until they are counted; of batches whose number of rows is not known, that for which they
        are laid out.
    viewed_columns, n_columns : int
        Number of columns of a row before the maps, and after them.
    widths : tuple of int
        Columns of each of several blocks that stand side by side; empty for one, also what a map made of several.
    dtype : numpy.dtype
        As stored; float64 where missing values are filled by means.
    """

    origin: Origin
    order: Order = Order()
    seed: int = 0
    nan_policy: str = "raise"
    steps: tuple[MapStep, ...] = ()
    counted: CountedRows = field(default_factory=CountedRows)
    covariates: Rows | None = None
    groups: object = None
    y: object = None
    preprocessing: tuple[RowPreprocessor, ...] | None = None
    stored_steps: tuple[MapStep, ...] = field(init=False)
    sparse: bool = field(init=False)
    n_rows: int = field(init=False)
    viewed_columns: int = field(init=False)
    n_columns: int = field(init=False)
    widths: tuple[int, ...] = field(init=False)
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        origin, steps, stored = self.origin, self.steps, tuple(step for step in self.steps if step.f.of_stored)
        (n, d), dtype = origin.shape, origin.dtype
        for step in stored:
            dtype = step.f.output_dtype(dtype)
        width = steps[-1].width if steps else int(d)
        widths = origin.widths or self.order.widths
        vars(self).update(
            stored_steps=stored,
            sparse=not origin.form.shifts,
            n_rows=n if np.isnan(n) else int(n),
            viewed_columns=int(d),
            n_columns=width,
            widths=widths if sum(widths) == width else (),
            dtype=dtype,
        )

    @classmethod
    def opened(cls, X: da.Array, **given: Unpack[Given]) -> Rows:
        """Return the rows of X (n, d), with the view that X carries. Nothing is read, and n may be unknown."""
        return cls(origin=Origin.of(X, **given))

    @classmethod
    def held(cls, values: Values, **given: Unpack[Given]) -> Rows:
        """Return rows of an array or CSR in memory, without a Dask array."""
        given["lazy"] = False
        return cls(origin=Origin(held_rows(values), **given))

    def shown(self, X: da.Array, **changed: Unpack[Given]) -> Rows:
        """Return the same rows in another array, such as that of another view, as if they were given otherwise."""
        own = self.origin
        kept: Given = {"names": own.names, "sample": own.sample, "lazy": own.lazy}
        origin = Origin.of(X, **(kept | changed))
        return replace(self, origin=origin, order=Order(), steps=())

    @classmethod
    def of(
        cls, X: da.Array, *, nan_policy: str = "raise", in_process: bool = False, memory_limit: int | str | None = None
    ) -> Rows:
        """Return the rows of X (n, d), ready to be read: :meth:`opened` and :meth:`begun`."""
        rows = cls.opened(X).alone()
        return rows.begun(nan_policy=nan_policy, in_process=in_process, memory_limit=memory_limit)

    def alone(self) -> Rows:
        """Return the rows, for a call that uses their values alone; raises TypeError if anything belongs to them."""
        if self.origin.brings:
            raise TypeError(LEFT_OUT)
        return self

    def begun(
        self, *, nan_policy: str = "raise", in_process: bool = False, memory_limit: int | str | None = None
    ) -> Rows:
        """Return the rows as a run reads them, by these policies.

        Unknown row chunks are counted first, in one more read; the rows of batches are counted as they are read.
        ``in_process`` is implied by arrays in memory.

        Raises
        ------
        TypeError
            For rows whose covariates were not taken, and for batches of several arrays.
        """
        if self.covariates is not None:
            raise TypeError(LEFT_OUT)
        origin, counted = replace(self.origin), False
        if np.isnan(origin.shape[0]):
            known = batches_of(origin.samples)
            samples, counted = count_rows(origin.samples) if known is None else known, known is None
            X = samples if origin.view is None else viewed(samples, origin.view)
            origin = replace(origin, arrays=Arrays(X, origin.given, samples), stored=source_of(samples))
        if origin.stored is None and origin.arrays is not None:
            reject_batches(origin.samples, f"the Dask array {origin.samples.name}")
        batches = origin.stored if isinstance(origin.stored, BatchRows) else None
        if batches is not None:
            blocks = batches.stream.blocks
            if blocks and not self.widths:
                raise TypeError(
                    f"the batches are dicts of several arrays, {brief(list(blocks))}, but this call takes one matrix. "
                    "Name one, from_batches(batches, column=...), or use what takes several, such as bigpca.CCA."
                )
            batches.stream.begin_fit()
        order = replace(
            self.order,
            batches=batches,
            in_order=batches is not None,
            once=batches is not None and batches.stream.once,
            open_ended=batches is not None and batches.open_ended,
            rows_per_sample=origin.rows_per_sample,
            counted=counted,
            in_process=in_process or batches is not None or origin.in_memory,
            memory_limit=memory_limit,
        )
        one_weight_each(self.counted.weights, origin.shape[0], open_ended=order.open_ended)
        return replace(self, origin=origin, order=order, nan_policy=nan_policy)

    def mapped(self, *steps: MapStep) -> Rows:
        """Return the same rows with ``steps`` appended to the chain of maps."""
        return replace(self, steps=(*self.steps, *steps))

    def weighted(self, weights: object) -> Rows:
        """Return the same rows with weights, as :meth:`bigpca.data.weights.CountedRows.of`; None changes nothing."""
        if weights is None:
            return self
        apart = self.origin.arrays is None and isinstance(weights, np.ndarray)  # neither has keys
        X, n = None if apart else self.origin.given, self.origin.shape[0]
        return replace(self, counted=CountedRows.of(weights, X, n, open_ended=self.order.open_ended))

    @property
    def X(self) -> da.Array:
        """The rows as a Dask array (n, d), before the maps."""
        return self.origin.X

    @property
    def source(self) -> Source | None:
        """The source, if its rows are analysed as they are stored; None for graphs, views, maps and filled rows."""
        changed = self.origin.view is not None or any(step.f.changes for step in self.steps)
        return None if changed else self.origin.stored

    @property
    def by_columns(self) -> Source | None:
        """The source, if blocks of all rows of its columns are those of the rows, maybe with missing values filled."""
        kept = len(self.stored_steps) == len(self.steps) and not self.with_gaps
        return self.origin.stored if self.origin.view is None and kept else None

    @property
    def in_memory(self) -> bool:
        """Whether the rows are an array of this process, analysed as it is."""
        return self.source is not None and self.source.in_memory

    @property
    def rows_read(self) -> int:
        """Number of rows, which is known for batches too after they were read."""
        count = self.order.n_rows
        return self.n_rows if count is None else count

    @property
    def n_present(self) -> int:
        """Number of rows that count."""
        return self.counted.count(self.n_rows)

    @property
    def weight(self) -> float:
        """Sum of the weights; the number of rows without weights."""
        return self.counted.total(self.n_rows)

    @property
    def with_gaps(self) -> bool:
        """Whether NaN stay in the rows that states get."""
        return any(step.f.leaves for step in self.steps)

    @property
    def means(self) -> Vector | None:
        """The means of what is there (n_columns,), after the maps, about which rows with gaps are; None of others."""
        known = [step.f.means for step in self.steps if isinstance(step.f, ColumnFill) and step.f.leaves]
        if not known or known[0] is None:
            return None
        found: Values = known[0][None]
        for step in self.steps[len(self.stored_steps) :]:
            found = step.f.apply(found, "the means")
        return np.asarray(found[0], np.float64)

    @property
    def roundings(self) -> tuple[float, ...]:
        """Relative rounding of the stored values of each side, as a standard deviation: eps / sqrt(12) of short floats,
        and otherwise float64's eps, to which rows are centred."""
        sides = self.origin.sides
        dtypes = [side.dtype for side in sides] if len(sides) > 1 else [self.dtype] * max(1, len(self.widths))
        finer, short = float(np.finfo(np.float64).eps), np.sqrt(12)
        return tuple(
            float(np.finfo(one).eps) / short if one.kind == "f" and one.itemsize < 8 else finer
            for one in dtypes[: max(1, len(self.widths))]
        )

    def row_bytes(self, dtype: DType) -> float:
        """Bytes of a row of the view in a dtype: its columns, or the stored values of the densest sparse rows."""
        origin, values = self.origin, float(self.viewed_columns)
        if not origin.form.shifts:
            densest = None if origin.stored is None else origin.stored.densest
            values = origin.values_per_sample if densest is None else densest
        return origin.form.row_bytes(values, dtype.itemsize)

    def layout(self, state_bytes: int, work: float | None = None) -> Layout:
        """Cut the rows for states of ``state_bytes`` and so many operations, if they are known."""
        view = self.origin.view  # as a user described it, or columns without values
        described = view is not None and (view.pattern is not None or view.absent)
        least = int(self.origin.row_bytes) if described else 0
        row_bytes = math.ceil(self.row_bytes(working_dtype(self.dtype)))
        chunks, d, (device, own) = self.origin.row_chunks, self.viewed_columns, self.device
        form, ends = self.origin.form, self.order.open_ended
        most = SLAB_BYTES if form.shifts else SPARSE_SLAB_BYTES
        most = min(most, max(OPEN_SLAB_BYTES, OPEN_SLAB_ROWS * row_bytes)) if ends else most
        # Sparse products are not those of BLAS, and have no strips.
        kind = Cut(most, own.slab_bytes, device.driven, strips=form.shifts, ends=ends)
        cut = plan_layout(chunks, d, self.dtype, state_bytes, least, row_bytes, work, kind)
        several = view is not None and view.rows_per_sample > 1
        if several or self.origin.stored is None or not self.origin.stored.reach:
            return cut
        decoded = (self.origin.decoded(*read) for read in cut.reads)
        return replace(cut, decoded=tuple(last - first for first, last in decoded))

    @property
    def solver(self) -> Namespace:
        """What solves large problems: the device that is set, or that of the rows."""
        return namespace(setting(None, "arithmetic") or place_of(self))

    @property
    def device(self) -> tuple[Namespace, Namespace]:
        """What multiplies dense rows, and where they stay: there, if they come from its library, else on the host."""
        solver = HOST if self.sparse else self.solver
        return solver, solver if place_of(self).partition(":")[0] == solver.library else HOST

    def reader(
        self, start: int, stop: int, cost: PassCost | None = None, *, there: bool = False
    ) -> tuple[Reader, Inputs]:
        """Return a reader of rows ``start:stop`` of the view, and the futures its task must be given.

        Rows on a device stay there if ``there``, or as the pass of ``cost`` has them; else they are copied to the
        host's memory. Rows in memory are copied, unless they are multiplied elsewhere, and so never changed.
        """
        owned = cost is None or cost.by_cores or bool(self.steps)
        there = there if cost is None else cost.there
        origin, view = self.origin, self.origin.view
        first, last = (start, stop) if view is None else view.samples(start, stop)
        reader, futures = origin.reader(first, last, owned=owned or view is not None, there=there)
        if view is not None:
            ends = np.cumsum(origin.sample_chunks)
            present = self.counted.part(start, stop).present if view.absent else None
            reader = ViewReader(reader, view, ends[(ends > first) & (ends < last)], present, start)
        return reader, futures

    @property
    def identity(self) -> dict[str, object]:
        """What identifies view, maps and weights in fingerprints; empty if there are none."""
        view = self.origin.view
        own: dict[str, object] = {} if view is None else {"view": view.describe()}
        if self.steps:
            own["maps"] = [step.f.describe() for step in self.steps]
        return own | self.counted.describe()

    def describe(self) -> dict[str, object]:
        """JSON-able description for fingerprints."""
        return {
            "source": self.origin.describe(),
            "shape": [self.n_rows, self.viewed_columns],
            "dtype": self.dtype.str,
            "row_chunks": digest(self.origin.row_chunks),
            "nan_policy": self.nan_policy,
            **self.identity,
        }


def as_given(rows: Rows, **changed: Unpack[Given]) -> Rows:
    """Return the same rows, as if they were given otherwise."""
    return replace(rows, origin=replace(rows.origin, **changed))


def filled(rows: Rows) -> Rows:
    """Return the same rows with missing values filled, or left, about means.

    The means are those that the search of columns found, or a read of the fit finds them. Rows of integers, which have
    no missing values, are returned as they are.
    """
    known = None if rows.origin.search is None else rows.origin.search.found
    fill = ColumnFill(None if known is None else known.means, leaves=rows.nan_policy != "mean")
    return rows.mapped(MapStep(fill, rows.n_columns)) if rows.dtype.kind == "f" else rows


def place_of(rows: Rows) -> str:
    """Return the name of the device of rows that are analysed as they come from it; empty for all others."""
    origin = rows.origin
    batches = rows.order.batches
    if origin.view or rows.steps or origin.arrays is None:
        return ""
    return place_name(origin.arrays.samples._meta if batches is None else batches.stream.first_array)


def may_have_keys(origin: Origin) -> bool:
    """Whether a store can be asked for keys: servers of other URLs answer in their own ways to what is missing."""
    return all(kind_of(path) != "remote" or place_at(path) is not None for path in origin.paths if path)


@contextmanager
def unchanged(origin: Origin, before: str) -> Iterator[None]:
    """Look at all files as the body ends, and compare them with :meth:`Origin.files_digest` ``before``, if it has any.

    Each read compares what it has read with how it was when it was opened. What that does not tell is seen here: where
    other libraries read, or workers have other files under the same path.

    Raises
    ------
    InputChangedError
        Instead of what the body raises: a mixture of old and new rows fails in many ways.
    """
    seen: Seen = ChainMap(*(one.seen for one in origin.sides))
    try:
        yield
    except Exception:
        _look_again(origin, before, seen)
        raise
    _look_again(origin, before, seen)


def _look_again(origin: Origin, before: str, seen: Seen) -> None:
    if not before:
        return
    now = dict(zip(seen, looking(look_at, seen), strict=True))
    path = next((path for path, found in now.items() if changed(seen[path], found)), "")
    with one_look(now):
        if path or origin.files_digest() != before:
            raise input_changed(path)


def one_stamp(run: Run, rows: Rows) -> Callable[[int], str]:
    """Return the stamp of the groups of a pass in which each reads most rows: that of all, computed once."""
    whole = rows.origin.stamp(0, rows.n_rows) if run.checkpoint else ""
    return lambda group: whole


def pass_over(
    run: Run,
    cost: PassCost,
    rows: Rows,
    templates: Mapping[str, Accumulator],
    cut: Callable[[int], tuple[GroupTask, Inputs]],
    finish: Finish[R],
    *,
    stamp: Callable[[int], str] | None,
    shift: Vector | None = None,
) -> Pass[R]:
    """Return a pass over rows, ready to run: its broadcast values, and what identifies the rows in checkpoints.

    Parameters
    ----------
    cost : PassCost
        As the fit declared it.
    templates : dict of str to Accumulator
        By the names of the states.
    cut, finish, stamp
        As in :class:`bigpca.engine.jobs.Pass`.
    shift : ndarray of shape (d,) or None
        What tasks subtract from rows, if that is the same in all groups.
    """
    shared = {key: a.shared for key, a in templates.items() if a.shared is not None}
    if shift is not None:
        shared[SHIFT] = shift  # 200 KB at 25,000 columns, too much for each of 4,096 tasks
    if rows.steps:
        shared[MAPS] = rows.steps
    return Pass(
        cost=cost,
        templates=templates,
        cut=cut,
        stamp=stamp,
        finish=finish,
        shared=shared,
        paths=rows.origin.paths,
        unit_bytes=rows.origin.row_bytes,
        whole=rows.n_rows,
        input=rows.identity | cost.device.identity if run.checkpoint else {},
        has_row=rows.order.has if rows.order.in_order else None,
        open_ended=rows.order.open_ended,
        alone=cost.device.reads_too,
    )


def count_rows(X: da.Array) -> da.Array:
    """Return X with known row chunks, which are counted in one read."""  # one pass over X
    lengths = da.map_blocks(
        lambda block: np.array([[block.shape[0]]]),
        X,
        dtype=np.int64,
        chunks=((1,) * X.numblocks[0], (1,) * X.numblocks[1]),
    )
    known = tuple(int(c) for c in computed(lengths[:, 0]))
    return array_of(graph_of(X), X.name, (known, X.chunks[1]), X._meta)


def reject_weights(rows: Rows, states: Sequence[str], because: str = "") -> None:
    """Reject weighted rows for states that cannot use their weights, if there are any such states.

    ``because`` is a clause that says why they cannot.

    Raises
    ------
    TypeError
        Names the states.
    """
    if states and rows.counted.weights is not None:
        why = f": {because}" if because else ""
        raise TypeError(
            f"the rows have weights (sample_weight), which {', '.join(sorted({*states}))} cannot use{why}. Fit without "
            "weights, or by a method that can use them: PCA, ApproximatePCA, NystromKernelPCA with given "
            "landmarks, or a supervised linear model."
        )


def check_any_order(rows: Rows, what: str) -> None:
    """Reject rows that can be read in one order only.

    Raises
    ------
    ValueError
    """
    if rows.order.in_order:
        raise ValueError(
            f"{what} reads rows in any order, but batches come in one. Write them with bigpca.FeatureWriter and "
            'pass the store, or use a solver that reads the rows once: PCA(solver="covariance"), ApproximatePCA, '
            "NystromKernelPCA with given landmarks."
        )


def check_dense(rows: Rows, what: str) -> None:
    """Reject sparse rows, which ``what`` cannot read.

    Raises
    ------
    TypeError
    """
    if rows.sparse:
        raise TypeError(
            f"X is sparse, and {what} requires dense rows. Use a method that reads sparse rows, such as "
            'PCA(solver="covariance"), or pass X.toarray() if that fits in memory (of a Dask array, '
            "X.map_blocks(lambda block: block.toarray()))."
        )
