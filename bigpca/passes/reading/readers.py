"""Readers: rows of X inside a task, from a store or by running the Dask nodes that compute them; and maps
of rows as they are stored: checked, and filled.

A reader is a small picklable record. ``read(start, stop)`` returns rows in the stored dtype; ``owned`` is whether the
caller may overwrite them. I/O errors and undecodable chunks are retried twice, after a pause.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Self, cast

import cloudpickle
import numpy as np
from dask.task_spec import GraphNode
from dask.typing import Key
from numpy.typing import NDArray

from bigpca.arrays import Array, DType, Integers, Vector
from bigpca.csr import KEPT, Forms, form_of
from bigpca.data.batches import BatchRows
from bigpca.data.checks import note_first, owned
from bigpca.data.containers import check_chunk_shape
from bigpca.data.source import MemoryRows, Source
from bigpca.data.sparse import computed_rows, in_blocks, row_range, stacked
from bigpca.data.views import View
from bigpca.devices import Namespace, RowsThere, settled
from bigpca.engine.group import AHEAD
from bigpca.engine.interfaces import Inputs, RowSource
from bigpca.errors import CorruptedChunkError, UnansweredError
from bigpca.forms import Values, cached_rows
from bigpca.passes.reading.row_maps import Float64Map, NumberedMap, RowMap

ROUNDING = 1e-6  # by which values may exceed their limits
ATTEMPTS, PAUSE = 3, 0.2  # of a read that fails; seconds before the second
FIRST_BYTES = 1 << 20  # of the first rows, whose digest every read of a fit compares
MAPS = "bigpca-maps"  # the key of the row maps among the broadcast values
SHIFT = "bigpca-shift"  # the key of the shift


class StoredMap(RowMap):
    """A map of rows as they are stored, before incomplete ones are rejected: the first of a chain."""

    of_stored: ClassVar[bool] = True
    forms: ClassVar[Forms] = KEPT

    @abstractmethod
    def of_columns(self, start: int, stop: int) -> StoredMap:
        """Return the same map of these columns alone."""


@dataclass(frozen=True)
class Limits(StoredMap, NumberedMap):
    """The range that all values must be in; missing ones are in no range.

    Attributes
    ----------
    low, high : float
    what : str
        What the values are and who expects them, for messages.
    first : int
        Number of the first column.
    """

    changes: ClassVar[bool] = False

    low: float
    high: float
    what: str
    first: int = 0

    def of_columns(self, start: int, stop: int) -> Limits:
        """The same: columns are numbered from ``start`` on."""
        return replace(self, first=self.first + start)

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return the same rows."""
        self.check(rows, where, numbers)
        return rows

    def output_dtype(self, dtype: DType) -> DType:
        """That of the rows."""
        return dtype

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """None."""
        return 0, 0

    def check(self, rows: Values, where: str, numbers: Integers | None = None) -> None:
        """Reject values outside the range, of rows with these ``numbers``.

        Raises
        ------
        ValueError
            Names the first such value, its row and its column.
        """
        form, stored = form_of(rows), form_of(rows).stored(rows)
        step = cached_rows(stored[:1].nbytes)
        if all(self._inside(stored[i : i + step]) for i in range(0, len(stored), step)):
            return
        with np.errstate(invalid="ignore"):
            beyond = (stored < self.low - ROUNDING) | (stored > self.high + ROUNDING)
        row, own = (int(places[0]) for places in form.places(rows, beyond))
        value, number = stored[beyond][0].item(), row if numbers is None else numbers[row]
        raise ValueError(
            f"row {number}, column {own + self.first} of {where} holds {value:g}; {self.what}, "
            f"{self.low:g} to {self.high:g}, were expected. If {value:g} is the code of missing values, open the rows "
            f"by bp.open(source, missing_value={value:g}); sparse rows store NaN instead."
        )

    def _inside(self, values: Array) -> bool:
        if not values.size:
            return True
        low, high = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)  # which pass over NaN
        return not (low < self.low - ROUNDING or high > self.high + ROUNDING)


@dataclass(repr=False)
class ColumnFill(Float64Map, StoredMap):
    """What replaces missing values, or is subtracted beside them: the mean of each column, once a read has found it.

    Attributes
    ----------
    means : ndarray of shape (d,), or None before that read
    leaves : bool
        Whether NaN stay in the rows, for states that take what is there: these are about the means.
    """

    means: Vector | None = None
    leaves: bool = False

    @property
    def found(self) -> ColumnFill:
        """Itself, as a read of the fit finds its means."""
        return self

    def __repr__(self) -> str:
        return "missing values"

    def of_columns(self, start: int, stop: int) -> ColumnFill:
        """The means of these columns."""
        return ColumnFill(None if self.means is None else self.means[start:stop], self.leaves)

    def apply(self, rows: Values, where: str) -> Values:
        """Return the filled rows, in float64."""
        return self._filled(rows, owned=False)

    def apply_in_place(self, rows: Values, where: str) -> Values:
        """Fill float64 rows."""
        return self._filled(rows, owned=True)

    def _filled(self, rows: Values, *, owned: bool) -> Values:
        if self.means is None:
            raise RuntimeError("rows were read before the means that replace missing values were known")
        return rows.astype(np.float64, copy=not owned) if self.leaves else fill(rows, self.means, owned=owned)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The filled rows."""
        return 8 * rows * d, 0

    def describe(self) -> dict[str, object]:
        """The class: what is read says which the means are."""
        return {"class": type(self).__name__}


def fill(rows: Values, means: Vector, *, owned: bool) -> Values:
    """Return rows with the means of their columns in the place of NaN, in place if ``owned``.

    In float64, whatever is stored: a mean rounded to float32 is as far from the mean as the values' own rounding, but
    the same in all rows, so it would add variance, and covariance with what is missing together.
    """
    values = rows.astype(np.float64, copy=not owned)
    return form_of(values).mapped(values, _fill, means)


def _fill(values: Array, means: Vector) -> Array:
    """Set NaN to the means of their columns, in place, a few values at a time."""
    means, step = np.broadcast_to(means, values.shape), cached_rows(values[:1].nbytes)
    for i in range(0, len(values), step):
        strip = values[i : i + step]
        np.copyto(strip, means[i : i + step], where=np.isnan(strip))
    return values


class Reader:
    """Rows of X by absolute row number: a :class:`bigpca.engine.interfaces.RowSource`."""

    @property
    @abstractmethod
    def owned(self) -> bool:
        """Whether the result of ``read`` may be overwritten."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Values:
        """Return rows ``start:stop``, of shape (stop - start, d), in the stored dtype; sparse rows as ``csr_array``."""

    @abstractmethod
    def where(self, start: int, stop: int) -> str:
        """Name those rows in an error."""

    def slabs(self, rows: Values, first: int, ranges: Iterable[tuple[int, int]]) -> Generator[tuple[int, Values]]:
        """Yield (first row, rows) of slabs, of what was read, by another thread, from row ``first`` on."""
        last = first + rows.shape[0]
        with settled(rows):
            for start, stop in ranges:
                if start < last:
                    yield start, row_range(rows, start - first, min(stop, last) - first)

    def with_inputs(self, inputs: Inputs) -> Self:
        """Return the reader with the values of nodes that Dask computed or holds."""
        return self


@dataclass(frozen=True)
class ReaderOfReader(Reader):
    """Rows that another reader returns, changed."""

    base: RowSource[Values]

    def where(self, start: int, stop: int) -> str:
        return self.base.where(start, stop)

    def slabs(self, rows: Values, first: int, ranges: Iterable[tuple[int, int]]) -> Generator[tuple[int, Values]]:
        yield from self.base.slabs(rows, first, ranges)

    def with_inputs(self, inputs: Inputs) -> Self:
        return replace(self, base=self.base.with_inputs(inputs))


def _with_attempts(read: Callable[[], Values]) -> Values:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return read()
        except (FileNotFoundError, UnansweredError):  # those who wait for a store repeat its requests themselves
            raise
        except (OSError, CorruptedChunkError):  # object stores may also return short answers
            if attempt == ATTEMPTS:
                raise
            time.sleep(PAUSE * attempt)
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class DirectReader(Reader):
    """Rows read from a :class:`Source`, without Dask nodes; those on a device stay there if ``there``."""

    source: Source
    owned: bool = True
    there: bool = False
    begins: int = 0  # number of the first row of the source
    copied: bool = False  # whether rows that stay are, because the next batch may overwrite them while they are used

    def read(self, start: int, stop: int) -> Values:
        start, stop = start - self.begins, stop - self.begins
        if not self.owned and isinstance(self.source, MemoryRows) and self.source.array.dtype.isnative:
            return self.source.view(start, stop)
        rows = _with_attempts(lambda: self.source.read(start, stop))
        if not isinstance(rows, RowsThere):
            return rows
        return rows.astype(rows.dtype, self.copied) if self.there else owned(np.asarray(rows), rows.dtype)

    def where(self, start: int, stop: int) -> str:
        return f"rows {start}:{stop} of {self.source.label}"

    def with_inputs(self, inputs: Inputs) -> Self:
        return replace(self, copied=isinstance(self.source, BatchRows) and inputs.get(AHEAD, 0) > 0)


@dataclass(frozen=True)
class ColumnReader(Reader):
    """Columns ``start:stop`` of a source, all rows: the rows of X'. Blocks keep their (n, columns) shape."""

    source: Source
    owned: bool = True

    def read(self, start: int, stop: int) -> Values:
        return _with_attempts(lambda: self.source.read(0, self.source.shape[0], (start, stop)))

    def where(self, start: int, stop: int) -> str:
        return f"columns {start}:{stop} of {self.source.label}"

    def slabs(self, rows: Values, first: int, ranges: Iterable[tuple[int, int]]) -> Generator[tuple[int, Values]]:
        for start, stop in ranges:
            yield start, rows[:, start - first : stop - first]


@dataclass
class GraphReader(Reader):
    """Rows computed by the Dask nodes of one group, stored as one pickle that is opaque to Dask.

    Attributes
    ----------
    offsets : ndarray of shape (chunks + 1,)
        First row of each row chunk of the group, and the end of the last.
    keys : list of list
        Keys of the column chunks of each row chunk.
    blob : bytes or mapping
        Pickled mapping of key to Dask node; the mapping itself if it has arrays on a device, or cannot be pickled.
    n_columns, dtype, sparse : int, str, bool
        What the Dask array declares about its rows.
    there : bool
        Whether rows on a device stay there.
    inputs : mapping
        Values of nodes that Dask computed or holds (shared small nodes, persisted chunks), set by the task.
    """

    offsets: Integers
    keys: list[list[Key]]
    blob: bytes | Mapping[Key, GraphNode]
    n_columns: int
    dtype: str
    label: str = "the array"
    sparse: bool = False
    there: bool = False
    inputs: Mapping[Key, object] = field(default_factory=dict)
    _nodes: Nodes | None = None

    @property
    def owned(self) -> bool:
        """Whether rows are a copy: those of several column chunks are."""
        return len(self.keys[0]) > 1

    def read(self, start: int, stop: int) -> Values:
        return _with_attempts(lambda: self._read(start, stop))

    def _read(self, start: int, stop: int) -> Values:
        if self._nodes is None:
            nodes = cloudpickle.loads(self.blob) if isinstance(self.blob, bytes) else self.blob
            self._nodes = Nodes(nodes, self.inputs)
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        last = int(np.searchsorted(self.offsets, stop, side="left"))
        parts = []
        for i in range(first, last):
            if self.offsets[i] == self.offsets[i + 1]:
                continue
            dtype = np.dtype(self.dtype)
            found = map(self._nodes.evaluate, self.keys[i])
            columns = [computed_rows(one, self.label, dtype, sparse=self.sparse, there=self.there) for one in found]
            shape = columns[0].shape
            shape = shape if len(columns) == 1 else (shape[0], sum(part.shape[1] for part in columns))
            declared = int(self.offsets[i + 1] - self.offsets[i]), self.n_columns
            check_chunk_shape(shape, declared, f"{self.label} (rows {self.offsets[i]}:{self.offsets[i + 1]})")
            if not self.offsets[i]:
                few = max(1, FIRST_BYTES // max(1, self.n_columns * dtype.itemsize))
                first_rows = in_blocks([[row_range(part, 0, few) for part in columns]])
                note_first(self.label, np.asarray(form_of(first_rows).content(first_rows, 0)))
            lo, hi = max(start - self.offsets[i], 0), min(stop, self.offsets[i + 1]) - self.offsets[i]
            parts.append([part if (lo, hi) == (0, shape[0]) else part[lo:hi] for part in columns])
        return in_blocks(parts)

    def where(self, start: int, stop: int) -> str:
        return f"rows {start}:{stop} of {self.label}"

    def with_inputs(self, inputs: Inputs) -> Self:
        return replace(self, inputs=inputs)


class Nodes:
    """The Dask nodes of one group, run one after another (0.1 ms per chunk; a scheduler takes 48 ms per group).

    A node that several chunks use, such as a stored chunk that ``rechunk`` divides, runs once: its value is kept until
    its last user has run.
    """

    def __init__(self, nodes: Mapping[Key, GraphNode], inputs: Mapping[Key, object]) -> None:
        self.nodes, self.inputs = nodes, inputs
        self._uses = Counter(k for node in nodes.values() for k in node.dependencies)
        self._held: dict[Key, object] = {}

    def evaluate(self, key: Key) -> object:
        """Run the nodes that ``key`` needs, unless their values are held, and return its value."""
        stack = [key]
        while stack:
            top = stack[-1]
            waiting = [] if self._has(top) else [k for k in self.nodes[top].dependencies if not self._has(k)]
            stack.extend(waiting)
            if not waiting:
                if not self._has(top):
                    self._run(top)
                stack.pop()
        return self._held[key] if self._uses[key] > 0 else self._held.pop(key, self.inputs.get(key))

    def _has(self, key: Key) -> bool:
        return key in self._held or key in self.inputs

    def _run(self, key: Key) -> None:
        node = self.nodes[key]
        values = {k: self._held[k] if k in self._held else self.inputs[k] for k in node.dependencies}
        self._held[key] = node(values)
        for k in node.dependencies:
            self._uses[k] -= 1
            if self._uses[k] <= 0:
                self._held.pop(k, None)


@dataclass(frozen=True)
class ViewReader(ReaderOfReader):
    """Rows of a view, cut from samples that another reader returns.

    Attributes
    ----------
    base : Reader
    view : View
    ends : ndarray of int64
        Ends of chunks of samples: one chunk is read at a time, so that at most one is held in addition to its rows.
    present : ndarray of bool, or None
        Of whole samples, which count, from row ``first`` on: columns without values may have some in the others.
    """

    view: View
    ends: Integers
    present: NDArray[np.bool_] | None = None
    first: int = 0

    @property
    def owned(self) -> bool:
        """Whether the rows are a copy, or the samples may be overwritten."""
        return self.base.owned or self.view.copies

    def read(self, start: int, stop: int) -> Values:
        first, last = self.view.samples(start, stop)
        edges = [first, *self.ends[(self.ends > first) & (self.ends < last)].tolist(), last]
        parts = []
        for a, b in pairwise(edges):
            row = a * self.view.rows_per_sample
            present = None if self.present is None else self.present[a - self.first : b - self.first]
            rows = self.view.apply(self.base.read(a, b), owned=self.base.owned, present=present)
            parts.append(rows[max(start - row, 0) : stop - row])
        return stacked(parts)

    def where(self, start: int, stop: int) -> str:
        samples = self.base.where(*self.view.samples(start, stop))
        return samples if self.view.rows_per_sample == 1 else f"rows {start}:{stop}, of {samples},"


@dataclass(frozen=True)
class SendingReader(ReaderOfReader):
    """Rows of another reader, on their way to a device when they are returned: beside what is done there."""

    device: Namespace
    owned: bool = True

    def read(self, start: int, stop: int) -> Values:
        return self.device.sent(self.base.read(start, stop))


def sent_to(
    device: Namespace, reader: RowSource[Values], inputs: Inputs, *, stored: bool
) -> tuple[RowSource[Values], int]:
    """Return the reader of rows that a device takes in as they are ``stored``, and how many reads it makes ahead."""
    sending = SendingReader(reader, device) if stored else reader
    return device.reading(reader, sending, cast("int", inputs.get(AHEAD, 1)))
