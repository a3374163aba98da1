"""X as the engine sees it: where rows are stored, a view, maps, weights, and policies for bad rows and lost chunks.

Rows of several origins may stand side by side (:func:`side_by_side`): row i of the first, then row i of the second.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

import bigpca.dask_array as da
from bigpca.arrays import DType
from bigpca.data.batches import BatchRows, batches_of, blocks_in_batches, reject_batches
from bigpca.data.checks import READABLE_BYTES, coalesce, whole_chunks
from bigpca.data.grids import Labels
from bigpca.data.source import Source, stored_row_bytes
from bigpca.data.sources import open_source, source_of
from bigpca.data.sparse import csr_meta, is_csr
from bigpca.data.views import View, array_of, carried, graph_of, sources_in, view_of, viewed
from bigpca.data.weights import open_weights, weight_sum
from bigpca.data.zarr_arrays import ZarrReader, place_at
from bigpca.devices import Device, RowsThere
from bigpca.errors import NonFiniteError, brief, warn_caller
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.observed_columns import ColumnSearch
from bigpca.passes.engine.driver import get_watched
from bigpca.passes.engine.jobs import Inputs, digest
from bigpca.passes.engine.run import Run
from bigpca.passes.graphs import GraphSource, paths_in, sources_of_graph, unknown_layer
from bigpca.passes.reading.layout import Layout, plan_layout, working_dtype
from bigpca.passes.reading.readers import (
    FILL,
    ColumnFill,
    DirectReader,
    Limits,
    Reader,
    ValueReader,
    ViewReader,
    filled_dtype,
)
from bigpca.passes.reading.row_maps import PLACE_BYTES, MapStep, RowMap, chain_cost
from bigpca.planning import LOOPS, BlockForm, PassCost, Work
from bigpca.settings import setting
from bigpca.storage.files import Seen, content_digest, kind_of, one_look
from bigpca.storage.forms import KEYS_PER_CHUNK

COUNTED_BYTES = 64 << 20  # of a sparse chunk, if it stored its zeros, beyond which its values are counted


PIECE_BYTES = 1 << 20  # of small stored chunks that are read together, of rows beside others


class Policies(TypedDict, total=False):
    """How rows are read; see :class:`Rows`."""

    nan_policy: str
    in_process: bool


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
    X : dask.array.Array of shape (n, d), with known chunks
        The rows, before the maps.
    given : dask.array.Array
        The same as it was given: it has the keys of its rows, also where these were counted.
    samples : dask.array.Array
        The stored samples that the view makes rows of; X if there is no view.
    inspected : Inspected
        What is found out about the samples when it is first needed.
    stored : Source or None
        The source from which samples are read directly; None for graphs.
    batches : BatchRows or None
        The batches that this process reads in order; None for rows that are read in any order.
    in_order : bool
        Whether this process must read rows in order, because they come in batches.
    once : bool
        Whether rows can be read once only.
    open_ended : bool
        Whether the number of rows is found as they are read.
    sparse : bool
        Whether tasks read CSR.
    counted : bool
        Whether the rows were counted, in a read of X.
    in_process : bool
        Whether X is computed from an array of this process, which is never sent to workers, or from batches.
    nan_policy : {"raise", "omit", "mean"}
        Of rows with NaN or infinities. With "mean", NaN are filled in the rows that :meth:`filled` returns, and
        rejected in others.
    view : View or None
    steps : tuple of MapStep
    weights : ndarray of shape (n,), float64, or None
    fill : ColumnFill or None
        What replaces missing values, before the maps; None if nothing does.
    limits : Limits or None
        Of the values as they are stored, or viewed: what is outside is rejected as it is read.
    search : ColumnSearch or None
        The reads that found which columns have values, which X carries.
    names : ndarray of shape (d,), or None
        Feature names.
    sample : tuple of int
        Shape of one stored sample as a user gave it; that of a row if X is a view.
    lazy : bool
        Whether the user gave something that the engine reads, so that results are lazy; False for arrays in memory.
    seed : int
        Seed of all random draws of a fit.
    sides : tuple of Rows
        The rows of several origins that stand side by side in X; empty for rows of one origin, and for batches.
    widths : tuple of int
        Columns of each of several blocks that stand side by side; empty for one.
    covariates : Rows or None
        Of the same samples, whose linear effect a fit takes out.
    groups : labels of the rows, as they were given, or None
        The folds of a fit that leaves out each group in turn.
    """

    X: da.Array
    given: da.Array
    samples: da.Array
    inspected: Inspected
    stored: Source | None
    sparse: bool
    view: View | None
    search: ColumnSearch | None
    names: NDArray[np.object_] | None = None
    sample: tuple[int, ...] = ()
    lazy: bool = True
    seed: int = 0
    batches: BatchRows | None = None
    in_order: bool = False
    once: bool = False
    open_ended: bool = False
    counted: bool = False
    in_process: bool = False
    nan_policy: str = "raise"
    steps: tuple[MapStep, ...] = ()
    weights: NDArray[np.float64] | None = None
    fill: ColumnFill | None = None
    limits: Limits | None = None
    sides: tuple[Rows, ...] = ()
    widths: tuple[int, ...] = ()
    covariates: Rows | None = None
    groups: object = None

    @classmethod
    def opened(
        cls, X: da.Array, *, names: NDArray[np.object_] | None = None, sample: tuple[int, ...] = (), lazy: bool = True
    ) -> Rows:
        """Return the rows of X (n, d), with the view that X carries. Nothing is read, and n may be unknown."""
        samples, view = view_of(X)
        stored = source_of(samples)
        return cls(
            X=X, given=X, samples=samples, view=view, stored=stored, sparse=is_csr(samples._meta),
            inspected=Inspected(samples, stored), search=carried(X).search,
            names=names, sample=sample, lazy=lazy,
        )  # fmt: skip

    def shown(self, X: da.Array) -> Rows:
        """Return the same rows in another array, such as that of another view."""
        made = Rows.opened(X, names=self.names, sample=self.sample, lazy=self.lazy)
        return replace(made, seed=self.seed, weights=self.weights)

    @classmethod
    def of(cls, X: da.Array, **policies: Unpack[Policies]) -> Rows:
        """Return the rows of X (n, d), ready to be read: :meth:`opened` and :meth:`begun`."""
        return cls.opened(X).begun(**policies)

    def begun(self, *, nan_policy: str = "raise", in_process: bool = False) -> Rows:
        """Return the rows as a run reads them, by these policies.

        Unknown row chunks are counted first, in one more read; the rows of batches are counted as they are read.
        ``in_process`` is implied by arrays in memory.
        """
        X, samples, stored, counted = self.X, self.samples, self.stored, False
        if np.isnan(samples.shape[0]):
            known = batches_of(samples)
            counted = known is None
            samples = count_rows(samples) if known is None else known
            X, stored = samples if self.view is None else viewed(samples, self.view), source_of(samples)
        if stored is None:
            reject_batches(samples, f"the Dask array {samples.name}")
        batches = stored if isinstance(stored, BatchRows) else None
        if batches is not None:
            blocks = batches.stream.blocks
            if blocks and not self.widths:
                raise TypeError(
                    f"the batches are dicts of several arrays, {brief(list(blocks))}, but this call takes one matrix. "
                    f"Give batches of one of them, or use what takes several, such as bigpca.CCA."
                )
            batches.stream.begin_fit()
        return replace(
            self, X=X, samples=samples, stored=stored, counted=counted, batches=batches,
            inspected=Inspected(
                samples, stored, " beside ".join(side.inspected.label for side in self.sides), self.inspected.opened,
                self.inspected.seen,
            ),
            in_order=batches is not None,
            once=batches is not None and batches.stream.once,
            open_ended=batches is not None and batches.open_ended,
            in_process=in_process or batches is not None
            or any(one is not None and one.in_memory for one in (stored, *(side.stored for side in self.sides))),
            nan_policy=nan_policy,
        )._weights_checked()  # fmt: skip

    def filled(self) -> Rows:
        """Return the same rows with missing values filled by :attr:`fill`, which a read finds.

        That is :func:`bigpca.passes.summaries.find_fill`. Rows of integers, which have no missing values, are returned
        as they are.
        """
        return replace(self, fill=ColumnFill() if self.dtype.kind == "f" else None)

    def beside_covariates(self) -> Rows:
        """Return the rows with their covariates behind them, (n, d + q); the same rows where there are none."""
        if self.covariates is None:
            return self
        return replace(side_by_side([self, self.covariates], "XZ"), given=self.given)

    def mapped(self, *steps: MapStep) -> Rows:
        """Return the same rows with ``steps`` appended to the chain of maps."""
        return replace(self, steps=(*self.steps, *steps))

    def weighted(self, weights: object) -> Rows:
        """Return the same rows with weights (n,), by absolute row number: w equals w repetitions, and 0 absence.

        ``weights`` are as for :func:`bigpca.data.weights.open_weights`; the same rows are returned for None.

        Raises
        ------
        TypeError, ValueError
            If there is not one weight per row, a weight is not a number, negative or not finite, or their sum is
            beyond 1e150.
        """
        if weights is None:
            return self
        given = open_weights(weights, self.given)
        weight_sum(given)
        return replace(self, weights=given)._weights_checked()

    def _weights_checked(self) -> Rows:
        """Return these rows once there is one weight per row, or no weights, or the number of rows is unknown yet."""
        if self.weights is None or np.isnan(self.X.shape[0]):
            return self
        count = len(self.weights)
        if self.open_ended:
            raise ValueError(
                f"there are {count} weights, but batches of an unknown number of rows. Give it: "
                "from_batches(batches, shape=(n, d))."
            )
        if count != self.n_rows:
            raise ValueError(f"there are {count} weights, but X has {self.n_rows} rows. Give one weight per row.")
        return self

    @property
    def labels(self) -> Labels | None:
        """The dimensions and coordinates of a DataArray."""
        found: Labels | None = carried(self.given).labels
        return found

    @property
    def source(self) -> Source | None:
        """The source, if its rows are analysed as they are stored; None for graphs, views, maps and filled rows."""
        return self.stored if self.view is None and not self.steps and self.fill is None else None

    @property
    def in_memory(self) -> bool:
        """Whether the rows are an array of this process, analysed as it is."""
        return self.source is not None and self.source.in_memory

    @property
    def n_rows(self) -> int:
        """Number of rows; of batches whose number of rows is not known, that for which they are laid out."""
        return int(self.X.shape[0])

    @property
    def rows_read(self) -> int:
        """Number of rows, which is known for batches too after they were read."""
        count = None if self.batches is None or not self.open_ended else self.batches.stream.count
        return self.n_rows if count is None else count * self._rows_per_sample

    def has(self, row: int) -> bool:
        """Whether batches have that row, which is not before the next one."""
        return self.batches is not None and self.batches.stream.has(row // self._rows_per_sample)

    @property
    def _rows_per_sample(self) -> int:
        return 1 if self.view is None else self.view.rows_per_sample

    @property
    def n_present(self) -> int:
        """Number of rows whose weight is not 0."""
        return self.n_rows if self.weights is None else int(np.count_nonzero(self.weights))

    @property
    def weight_sums(self) -> tuple[float, float] | None:
        """Sums of the weights and of their squares."""
        w = self.weights
        return None if w is None else (float(w.sum()), float(w @ w))

    @property
    def weight(self) -> float:
        """Sum of the weights; the number of rows without weights."""
        return float(self.n_rows) if self.weights is None else float(self.weights.sum())

    @property
    def n_columns(self) -> int:
        """Number of columns, after the maps."""
        return self.steps[-1].width if self.steps else self.viewed_columns

    @property
    def viewed_columns(self) -> int:
        """Number of columns of a row before the maps."""
        return int(self.X.shape[1])

    @property
    def dtype(self) -> DType:
        """Stored dtype; the working dtype where missing values are filled."""
        dtype: DType = np.dtype(self.X.dtype)
        return dtype if self.fill is None else filled_dtype(dtype)

    @property
    def values_per_row(self) -> float:
        """Stored values of a mean row that tasks read; the number of columns of dense rows."""
        return self.inspected.values_per_row if self.sparse else float(self.viewed_columns)

    def form(self, block_rows: int = 1, itemsize: int = 8) -> BlockForm:
        """Return what blocks of these rows are before the maps, as far as costs depend on it."""
        stored = self.values_per_row if self.sparse else None
        return BlockForm(self.viewed_columns, block_rows, stored, itemsize)

    def mapped_form(self, block_rows: int = 1, itemsize: int = 8) -> BlockForm:
        """Return the same after the maps: what states are updated with."""
        return self._map_cost(block_rows, itemsize)[1]

    def _map_cost(self, block_rows: int = 1, itemsize: int = 8) -> tuple[Work, BlockForm]:
        """Return what the maps take for a block, and what it becomes."""
        form = self.form(block_rows, itemsize)
        return chain_cost(self.steps, form) if self.steps else (Work(), form)

    def dense_work(self, *states: Accumulator) -> float:
        """Return the operations of one read of dense rows, which decide the precision of products."""
        return float(self.n_rows) * sum(state.cost(BlockForm(self.n_columns)).flops for state in states)

    @property
    def roundings(self) -> tuple[float, ...]:
        """Relative rounding of the stored values of each side, as a standard deviation: eps / sqrt(12) of short floats,
        and otherwise float64's eps, to which rows are centred."""
        dtypes = [side.dtype for side in self.sides] or [self.dtype] * max(1, len(self.widths))
        short = [dtype.kind == "f" and dtype.itemsize < 8 for dtype in dtypes]
        finer = float(np.finfo(np.float64).eps)
        return tuple(
            float(np.finfo(dtype).eps) / np.sqrt(12) if one else finer for dtype, one in zip(dtypes, short, strict=True)
        )

    @property
    def row_chunks(self) -> tuple[int, ...]:
        """Native row chunks: the store's for direct arrays, Dask's for general ones and for views."""
        if self.view is not None:
            return self.view.chunks(self._sample_chunks)
        return tuple(int(c) for c in self.X.chunks[0]) if self.stored is None else self.stored.row_chunks()

    @property
    def _sample_chunks(self) -> tuple[int, ...]:
        """Samples that are cut into rows together: those of Dask's chunks, or fewer where a source is read."""
        if self._described and self.stored is not None:
            return coalesce(self.stored.row_chunks(), self._sample_bytes, READABLE_BYTES)
        return tuple(int(c) for c in self.samples.chunks[0])

    @property
    def _sample_bytes(self) -> float:
        """Stored bytes of a sample; of sparse ones, on average."""
        d, itemsize = int(self.samples.shape[1]), int(self.samples.dtype.itemsize)
        return stored_row_bytes(1, self.inspected.values_per_row, itemsize) if self.sparse else d * itemsize

    @property
    def _described(self) -> bool:
        return self.view is not None and (self.view.pattern is not None or self.view.absent)

    @property
    def row_bytes(self) -> float:
        """Stored bytes decoded for one row."""
        if self.sides:
            return sum(side.row_bytes for side in self.sides)
        return self._sample_bytes / self._rows_per_sample

    @property
    def counting(self) -> tuple[PassCost, ...]:
        """The reads that counted rows of unknown number and stored values, and that found columns without values."""
        counted: tuple[PassCost, ...] = ()
        if self.counted:
            counted = (PassCost(name="count", bytes_read=self.bytes_of(self.n_rows)),)
        rows = self.inspected.counted[0]
        if rows:
            share, size = rows / max(1, int(self.samples.shape[0])), int(rows * self._sample_bytes)
            counted = (*counted, PassCost(name="stored values", reads=share, bytes_read=size))
        return counted if self.search is None else (*counted, *self.search.costs)

    def decoded(self, start: int, stop: int) -> tuple[int, int]:
        """Return the rows that are decoded where rows ``start:stop`` are read."""
        first, last = (start, stop) if self.view is None else self.view.samples(start, stop)
        if self.stored is not None:
            with one_look(self.inspected.seen):
                first, last = self.stored.decoded(first, last)
        else:
            first, last = whole_chunks(self.samples.chunks[0], first, last)
        return first * self._rows_per_sample, last * self._rows_per_sample

    def bytes_of(self, rows: int) -> int:
        """Return the stored bytes of ``rows`` rows."""
        return int(rows * self.row_bytes)

    def read_bytes(self, rows: int) -> int:
        """Return the bytes of ``rows`` rows as they are read, before the maps; twice, where filling copies them."""
        copies = 1 if self.fill is None or self._owned else 2
        return math.ceil(copies * rows * self._read_row_bytes(self.dtype))

    def held_row_bytes(self, dtype: DType) -> float:
        """Bytes of a mapped row in a dtype; of sparse rows, on average."""
        sparse = self.mapped_form().sparse
        return self._read_row_bytes(dtype) if sparse or not self.steps else self.n_columns * dtype.itemsize

    def _read_row_bytes(self, dtype: DType) -> float:
        """Bytes of a row of the view in a dtype: its columns, or the stored values of the densest sparse rows."""
        if not self.sparse:
            return self.viewed_columns * dtype.itemsize
        densest = None if self.stored is None else self.stored.densest
        return stored_row_bytes(1, self.inspected.values_per_row if densest is None else densest, dtype.itemsize)

    @property
    def _owned(self) -> bool:
        """Whether rows may be overwritten as they are read."""
        copied = len(self.samples.chunks[1]) > 1 or (self.view is not None and self.view.copies)
        return copied or self.stored is not None

    def copied_row_bytes(self, dtype: DType) -> int:
        """Return the bytes of a row's copy in ``dtype``; 0 if rows are read in that dtype and may be overwritten."""
        if self.sparse:
            return math.ceil(self._read_row_bytes(dtype))
        owned = self._owned or self.fill is not None
        return 0 if owned and dtype == self.dtype else self.viewed_columns * dtype.itemsize

    def scratch_bytes(self, rows: int, itemsize: int) -> int:
        """Return the bytes that formats, view, maps and weights need beside a read, for ``rows`` rows at a time."""
        chunk = 0
        if self.view is not None:
            chunk = math.ceil(max(self._sample_chunks, default=0) * self._sample_bytes)
        mapping, form = self._map_cost(rows, itemsize)
        row_bytes = form.values * (itemsize + PLACE_BYTES if form.sparse else itemsize)
        weighted = 0 if self.weights is None else math.ceil(2 * form.rows * (8 + row_bytes))
        decoding = 0 if self.stored is None else self.stored.decoding_bytes(self.viewed_columns)
        return 2 * chunk + mapping.bytes + weighted + decoding  # the chunk being read, and its decoded form

    @property
    def maps(self) -> tuple[RowMap, ...]:
        """The maps, in order."""
        return tuple(step.f for step in self.steps)

    def prepared_work(self, itemsize: int) -> Work:
        """Return what maps and sums of sparse columns take per row, in that precision, without memory."""
        work = replace(self._map_cost(itemsize=itemsize)[0], bytes=0)
        return work + Work(loops=LOOPS.prepared_value * self.values_per_row) if self.sparse else work

    @property
    def paths(self) -> dict[str, str]:
        """Files and directories that tasks read, for :attr:`bigpca.passes.engine.jobs.Pass.paths`."""
        return paths_in(self.samples) if self.stored is None else {self.stored.path: "reads"}

    @property
    def member(self) -> str:
        """Array or column inside the source of the rows; empty if there is none, or no single source."""
        return "" if self.source is None else self.source.member

    def layout(self, state_bytes: int, work: float | None = None) -> Layout:
        """Cut the rows for states of ``state_bytes`` and so many operations, if they are known."""
        least = int(self.row_bytes) if self._described else 0
        own = math.ceil(self._read_row_bytes(working_dtype(self.dtype))) if self.sparse else None
        chunks, d, (device, there) = self.row_chunks, self.viewed_columns, self.device
        on_device = device is not None and not self.sparse
        work = None if on_device else work  # one thread has all of it
        return plan_layout(chunks, d, self.dtype, state_bytes, least, own, self.open_ended, work, on_device, there)

    @property
    def on_device(self) -> RowsThere | None:
        """The first rows on their device, or none of them, if they are analysed as they come from it."""
        if self.view or self.steps or self.fill or self.limits or self.sides or self.sparse:
            return None
        one = self.samples._meta if self.batches is None else self.batches.stream.first_array
        return None if type(one) is np.ndarray else RowsThere.of(one)

    @property
    def device(self) -> tuple[Device | None, bool]:
        """The device that multiplies the rows, the one that is set or theirs, and whether they stay in its library."""
        chosen, own = setting(None, "arithmetic"), self.on_device
        if chosen is not None:
            same = own is not None and own.place.partition(":")[0] == chosen.partition(":")[0]
            return (None, False) if chosen == "numpy" else (Device.of(chosen), same)
        try:
            return (None, False) if own is None else (Device.of(own.place), True)
        except ValueError:  # a device without float64
            return None, False

    def reader(self, start: int, stop: int, *, there: bool = False, owned: bool = True) -> tuple[Reader, Inputs]:
        """Return a reader of rows ``start:stop`` of the view, and the futures its task must be given.

        Rows on a device stay there if ``there``; else they are copied to the host's memory. Rows in memory are copied,
        if the task may change them (``owned``).
        """
        first, last = (start, stop) if self.view is None else self.view.samples(start, stop)
        reader: Reader
        futures: Inputs = {}
        if self.stored is not None:
            reader = DirectReader(self.stored, owned or self.view is not None, there)
        else:
            cut = self.inspected.graph.cut(first, last)
            reader, futures = replace(cut.reader, there=there), cut.futures
        if self.view is not None:
            ends = np.cumsum(self._sample_chunks)
            reader = ViewReader(reader, self.view, ends[(ends > first) & (ends < last)])
        if self.fill is not None or self.limits is not None:
            present = None if self.weights is None else self.weights[start:stop] > 0
            reader = ValueReader(reader, self.limits, self.fill is not None, present, start)
        return reader, futures

    @property
    def broadcast(self) -> dict[str, object]:
        """What readers need of the broadcast values: those that fill missing ones."""
        return {} if self.fill is None else {FILL: self.fill.found}

    @property
    def identity(self) -> dict[str, object]:
        """What identifies view, maps and weights in fingerprints; empty if there are none."""
        own: dict[str, object] = {} if self.view is None else {"view": self.view.describe()}
        if self.steps:
            own["maps"] = [step.f.describe() for step in self.steps]
        if self.weights is not None:
            own["weights"] = content_digest(self.weights)
        return own

    def describe(self) -> dict[str, object]:
        """JSON-able description for fingerprints."""
        return {
            "source": [side.describe() for side in self.sides] if self.sides else self.inspected.describe(),
            "shape": [self.n_rows, self.viewed_columns],
            "dtype": self.dtype.str,
            "row_chunks": digest(self.row_chunks),
            "nan_policy": self.nan_policy,
            **self.identity,
        }

    def stamp(self, start: int, stop: int) -> str:
        """Digest of (key, size, change) of the files that hold those rows; of the content for arrays in memory."""
        if self.sides:
            return digest([side.stamp(start, stop) for side in self.sides])
        return self.inspected.stamp(*((start, stop) if self.view is None else self.view.samples(start, stop)))

    def files_digest(self) -> str:
        """Digest of (key, size, change) of all files as they are now; empty where there is none."""
        if self.sides:
            each = [side.files_digest() for side in self.sides]
            return digest(each) if any(each) else ""
        held = self.stored is not None and self.stored.in_memory
        return "" if held or self.in_order or self.unstamped else self.inspected.stamp_of_all()

    @property
    def unstamped(self) -> str:
        """What is said of rows whose store does not tell when they change; empty for all others."""
        label = self.inspected.unstamped
        return f"changes of {label} go unnoticed: its store has no ETags and no times of change" if label else ""

    @cached_property
    def requests(self) -> tuple[int, int]:
        """Requests to an object store for one read, and the most bytes in flight in a process; (0, 0) elsewhere."""
        return (0, 0) if self.stored is None else self.stored.requests

    @property
    def unnoticed(self) -> tuple[str, ...]:
        """The line of a plan about changes that go unnoticed."""
        if self.unstamped:
            return (f"{self.unstamped}, and the run cannot be resumed",)
        layer = self.inspected.unknown
        return (f"changes of the files behind {layer} go unnoticed while they are read",) if layer else ()

    def check_unchanged(self, before: str) -> None:
        """Compare the files with their digest before a run.

        Raises
        ------
        ValueError
        """
        if before and self.files_digest() != before:
            raise ValueError(
                "the input changed while it was read: some files no longer have the size, ETag or modification time "
                "that they had at the start, so the result would mix old and new rows. Start again, and do not "
                "change the input during the run."
            )


def may_have_keys(rows: Rows) -> bool:
    """Whether a store can be asked for keys: servers of other URLs answer in their own ways to what is missing."""
    return all(kind_of(path) != "remote" or place_at(path) is not None for path in rows.paths if path)


def keys_bytes(rows: Rows) -> int:
    """Return the memory in which the keys of several stores are compared; 0 for one."""
    counts = [int(one.shape[0]) for one in sources_in(rows.given) if getattr(one, "shape", ())]
    if rows.sides or len(counts) < 2 or not may_have_keys(rows):
        return max((keys_bytes(side) for side in rows.sides), default=0)
    from bigpca.data.keys import KEY_BYTES  # imports all formats of labels

    chosen = 0 if rows.n_rows == sum(counts) else 16 * rows.n_rows
    return 8 * sum(counts) + chosen + KEY_BYTES * min(KEYS_PER_CHUNK, max(counts))


def warn_repeats(rows: Rows) -> None:
    """Warn of rows of several stores that have the key of another row."""
    for side in rows.sides:
        warn_repeats(side)
    if rows.sides or not keys_bytes(rows):
        return
    from bigpca.data.keys import REPEATED, repeats  # as above

    if count := repeats(rows.given):
        warn_caller(f"{count:,} of {rows.n_rows:,} rows have the key of an earlier row. {REPEATED}", UserWarning)


def one_stamp(run: Run, rows: Rows) -> Callable[[int], str]:
    """Return the stamp of the groups of a pass in which each reads most rows: that of all, computed once."""
    whole = rows.stamp(0, rows.n_rows) if run.checkpoint else ""
    return lambda group: whole


class Inspected:
    """What is found out about stored samples when it is first asked for, and then known to all rows of them.

    Parameters
    ----------
    X : dask.array.Array of shape (n, d), with known chunks
    source : Source or None
        From which X is read directly; None for graphs.
    label : str
        What X is, for messages.
    opened : str
        Digest of the files, if the present call has opened X: its first question about them has that answer.
    seen : dict, optional
        What the look that ``opened`` is of has seen of each file.
    """

    def __init__(
        self, X: da.Array, source: Source | None, label: str = "", opened: str = "", seen: Seen | None = None
    ) -> None:
        self.X, self.source = X, source
        self.label = label or (f"the Dask array {X.name}" if source is None else source.label)
        self._graph: GraphSource | None = None
        self._lock = threading.Lock()
        self._digest: str | None = None
        self.opened = opened
        self.seen: Seen = {} if seen is None else seen

    @property
    def graph(self) -> GraphSource:
        """The graph to cut; its shared nodes are computed on first use."""
        with self._lock:  # the first groups are cut in several threads
            if self._graph is None:
                self._graph = GraphSource(self.X, self.label)
        return self._graph

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
    def sources(self) -> Sequence[Source | ZarrReader]:
        """All sources that tasks read."""
        return [self.source] if self.source is not None else self.graph.sources()

    def stamp(self, start: int, stop: int) -> str:
        """Digest of (key, size, change) of the files that hold those samples; of the content for arrays in memory.

        Files are as :meth:`stamp_of_all` last saw them, so that all groups and passes of a run share one look, taken
        before any of them is read. Of a graph, and of a store that is listed as a whole, it is the digest of all files.
        """
        if self.source is not None and kind_of(self.source.path) == "disk":
            with one_look(self.seen):
                return digest(self.source.stamps(start, stop))
        return self.stamp_of_all() if self._digest is None else self._digest

    def stamp_of_all(self) -> str:
        """Digest of (key, size, change) of all files as they are now, or as they were just opened."""
        opened, self.opened = self.opened, ""
        if not opened:
            self.seen = {}
            with one_look(self.seen):
                opened = digest([s.token() if isinstance(s, Source) else s.stamps() for s in self.sources])
        self._digest = opened
        return opened

    @cached_property
    def unstamped(self) -> str:
        """The first source that does not say when its objects change; empty if all do."""
        sources = sources_of_graph(self.X) if self.source is None else [self.source]
        return next((source.label for source in sources if not source.stamped), "")

    @cached_property
    def unknown(self) -> str:
        """What is read through something other than a source, such as a layer of a graph; empty if there is none."""
        sources = sources_of_graph(self.X) if self.source is None else [self.source]
        layer = unknown_layer(self.X) if self.source is None else ""
        return layer or next(filter(None, (source.unseen for source in sources)), "")

    def describe(self) -> object:
        """JSON-able description for fingerprints."""
        if self.source is not None:
            return self.source.describe()
        sources = [
            s.describe() if isinstance(s, Source) else [s.label, s.digest, list(s.shape), s.missing_chunks]
            for s in self.sources
        ]
        return {"format": "dask", "name": self.X.name, "sources": sources}


def side_by_side(sides: Sequence[Rows], names: Sequence[str] = "XY") -> Rows:
    """Return rows of several origins as one: row i is row i of each, in order. One read of it is one read of each.

    They are cut where the chunks of any end; where one is sparse, all are read as CSR. Views, filled values and limits
    act on each; row maps, and the policy for incomplete rows, act on the whole. Weights are those of the first.

    Parameters
    ----------
    sides : sequence of Rows, opened
    names : sequence of str
        What users call each of them.

    Raises
    ------
    ValueError
        For other numbers of rows, and for keys that differ, or that come in another order.
    TypeError
        For rows in batches beside others.
    """
    from bigpca.data.alignment import keys_of_rows  # imports all formats of labels, which other fits do not need
    from bigpca.data.keys import keys_listed, label_places

    for side in sides:
        reject_batches(side.X, "rows beside others")
    sides = [side.begun() if np.isnan(side.X.shape[0]) else side for side in sides]
    arrays = [side.X for side in sides]
    n, own = int(arrays[0].shape[0]), keys_of_rows(sides[0].given)
    for name, array, side in zip(names[1:], arrays[1:], sides[1:], strict=True):
        if int(array.shape[0]) != n:
            raise ValueError(
                f"{names[0]} has {n:,} rows, and {name} {int(array.shape[0]):,}: row i of {name} belongs to row i of "
                f"{names[0]}. Give one row of {name} for each row of {names[0]}, in the same order."
            )
        others = keys_of_rows(side.given)
        first, second = own.of_rows, others.of_rows
        places = label_places(own, others, absent=None, word="value")
        if places is not None and first is not None and second is not None:
            lacking = first[~places[1]]
            if len(lacking):
                raise ValueError(
                    f"{len(lacking):,} of {n:,} rows of {names[0]} have no row of {name}: {keys_listed(lacking)}. Give "
                    f"{name} the keys of {names[0]} or, for pairs by position, such as lagged ones, no keys: "
                    f"{name}.drop_vars(dimension) of a DataArray, {name}.reset_index(drop=True) of a frame."
                )
            raise ValueError(
                f"the rows of {name} have the keys of the rows of {names[0]}, but in another order: "
                f"{keys_listed(first[:2])} and {keys_listed(second[:2])}. Both are read in the order of their stores. "
                f"bigpca.data.by_key({name}, {names[0]}) returns {name} in the order of {names[0]}."
            )
    widths, sparse = tuple(side.viewed_columns for side in sides), any(side.sparse for side in sides)
    # Chunks are those of the side with the longest rows. Chunks of others that end within them are held, and decoded
    # once for each group that they belong to.
    lead = max(range(len(sides)), key=lambda i: sides[i].row_bytes)
    arrays[lead] = _in_pieces(sides[lead], arrays[lead])
    arrays = [array if i == lead else _in_pieces(side, array, arrays[lead].chunks[0])
              for i, (side, array) in enumerate(zip(sides, arrays, strict=True))]  # fmt: skip
    # Each side is a block of columns, which readers copy once, to its place. CSR cannot have float16.
    cut = [array.rechunk({0: arrays[lead].chunks[0], 1: -1}) for array in arrays]
    dtype = np.result_type(*(array.dtype for array in arrays), *[np.float32] * sparse)
    whole = da.concatenate([array.astype(dtype) for array in cut], axis=1)
    joined = array_of(graph_of(whole), whole.name, whole.chunks, csr_meta(dtype) if sparse else whole._meta)
    known = tuple(replace(side, X=array) for side, array in zip(sides, arrays, strict=True))
    return replace(
        Rows.opened(joined), sides=known, widths=widths, weights=sides[0].weights, seed=sides[0].seed,
        lazy=any(side.lazy for side in sides),
    )  # fmt: skip


@contextmanager
def naming_sides(widths: Sequence[int], names: Sequence[str] = "XY") -> Iterator[None]:
    """Name side and column in errors about values of rows side by side; nothing is added where there is one side."""
    try:
        yield
    except NonFiniteError as error:
        if not error.columns or not widths:
            raise
        ends = np.cumsum([0, *widths])
        side = int(np.searchsorted(ends, error.columns[0], side="right")) - 1
        named = NonFiniteError(f"{error} Column {error.columns[0]} is column {error.columns[0] - ends[side]} of "
                               f"{names[side] if side < len(names) else f'block {side}'}.")  # fmt: skip
        named.columns = error.columns
        raise named from None


def _in_pieces(side: Rows, array: da.Array, chunks: tuple[int, ...] = ()) -> da.Array:
    """Return an array that a source is read into in its stored chunks, not in the larger ones of Dask; others as given.

    Pieces of at least 1 MiB, so that what is decoded beyond the ends of a group is little beside the group. Rows in
    memory have the ``chunks`` of the side beside them, if that is known.
    """
    if side.stored is None or side.view is not None:
        return array
    held = side.stored.in_memory and chunks
    rows = chunks if held else coalesce(side.stored.row_chunks(), side.row_bytes, PIECE_BYTES)
    return open_source(side.stored, f"{array.name.removeprefix('bigpca-open-')}-pieces", rows)


def blocks_of_batches(rows: Rows) -> Rows | None:
    """Return rows in batches with the arrays of each batch side by side; None for rows of other origins."""
    found = blocks_in_batches(rows.X)
    if found is None:
        return None
    return replace(rows.shown(found[0]), names=None, widths=tuple(found[1].values()))


def count_rows(X: da.Array) -> da.Array:
    """Return X with known row chunks, which are counted in one read."""  # one pass over X
    lengths = da.map_blocks(
        lambda block: np.array([[block.shape[0]]]),
        X,
        dtype=np.int64,
        chunks=((1,) * X.numblocks[0], (1,) * X.numblocks[1]),
    )
    get = partial(get_watched, paths=paths_in(X))
    known = tuple(int(c) for c in lengths[:, 0].compute(scheduler=get))
    return array_of(graph_of(X), X.name, (known, X.chunks[1]), X._meta)


def check_states(rows: Rows, states: Iterable[Accumulator]) -> None:
    """Reject weighted rows if a state cannot use their weights.

    Raises
    ------
    TypeError
        Names the states.
    """
    reject_weights(rows, sorted({state.tag for state in states if "weights" not in state.accepts}))


def reject_weights(rows: Rows, states: Sequence[str], because: str = "") -> None:
    """Reject weighted rows for states that cannot use their weights, if there are any such states.

    ``because`` is a clause that says why they cannot.

    Raises
    ------
    TypeError
        Names the states.
    """
    if states and rows.weights is not None:
        why = f": {because}" if because else ""
        raise TypeError(
            f"the rows have weights (sample_weight), which {', '.join(states)} cannot use{why}. Fit without "
            "weights, or by a method that can use them: PCA, ApproximatePCA, NystromKernelPCA with given "
            "landmarks, or a supervised linear model."
        )


def check_any_order(rows: Rows, what: str) -> None:
    """Reject rows that can be read in one order only.

    Raises
    ------
    ValueError
    """
    if rows.in_order:
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
