"""Rows that come in batches, such as a network produces them, with their labels, as a source like any other."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from sys import getrefcount
from threading import Lock, RLock
from typing import Any, ClassVar, NoReturn, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array

import bigpca.dask_array as da
from bigpca.arrays import Array, Integers, unmasked
from bigpca.csr import SPARSE, form_of
from bigpca.data.checks import MemberError, check_dtype, check_shape, row_width
from bigpca.data.containers import embeddings, foreign, table_rows, table_schema
from bigpca.data.dask_arrays import LEFT_OUT, array_of, carries_beside, graph_of, named, open_source, source_of, view_of
from bigpca.data.source import IN_ORDER, Source, Stamp
from bigpca.data.sources import string_names
from bigpca.data.sparse import columns_beside, in_form, is_sparse, row_range, sparse_rows, stacked
from bigpca.devices import RowsThere, host_array, is_on_gpu, joined
from bigpca.errors import MemoryBudgetError, an, brief, counted
from bigpca.forms import DENSE, DenseForm

OPEN_BYTES = 1 << 40  # of float32 rows, for which an unknown number of rows is laid out
MOST_UNSEEN = 64  # each look at rows on a device waits for all that it was asked to do
FORMAT = "batches"
DENSEST = 8192  # stored values of a row of sparse batches, for which memory is planned: cells and texts have fewer
AGAIN = "an iterable that can be iterated again (a list, a DataLoader)"
FEW = 256  # rows that may store more


class LabelColumn:
    """The labels of the rows of batches, filled as rows are read: codes of given classes, or real targets.

    Parameters
    ----------
    classes : ndarray of shape (c,), sorted, or None for real targets
    width : int
        Columns of real targets.
    chunk : int
        Rows that are always read together, from a multiple of their number on.
    missing : {"raise", "drop"}
    present : ndarray of bool or None
        False for rows that need no label.

    Attributes
    ----------
    rows : int
        Rows whose labels are known.
    """

    def __init__(
        self, classes: Array | None, width: int, chunk: int, missing: str, present: NDArray[np.bool_] | None
    ) -> None:
        self.classes, self.chunk, self.missing, self.present = classes, chunk, missing, present
        self.rows = 0
        self._values: Array = np.zeros(0, np.int32) if classes is not None else np.zeros((0, width))
        self._origin: NDArray[np.float64] | None = None
        self._lock = Lock()

    def add(self, row: int, labels: Any) -> None:
        """Keep the labels of rows ``row : row + len(labels)``.

        Raises
        ------
        TypeError, ValueError
            For labels that are missing, not finite, or not among the classes; names the rows.
        """
        from bigpca.data.labels import ClassLabels, label_values, reject_gaps, target_columns  # imports file formats

        found: Array
        try:
            values, gaps = label_values(labels)
            if self.classes is None:
                found, width = target_columns(values), self._values.shape[1]
                if found.shape[1] != width:
                    raise ValueError(
                        f"they have {found.shape[1]} columns; {width} were expected, as in the first rows."
                    )
            else:
                found = np.full(len(gaps), -1, np.int32)
                if not gaps.all():
                    found[~gaps] = ClassLabels(found[:0], self.classes, 0).encode(values[~gaps])
            if self.missing == "raise":
                reject_gaps(gaps if self.present is None else gaps & self.present[row : row + len(gaps)], start=row)
        except (TypeError, ValueError) as error:
            raise type(error)(f"labels of rows {row:,} to {row + len(labels) - 1:,}: {error}") from None
        stop = row + len(found)
        with self._lock:
            if stop > len(self._values):
                larger = np.empty((max(stop, 2 * len(self._values), 4096), *found.shape[1:]), found.dtype)
                larger[: self.rows] = self._values[: self.rows]
                self._values = larger
            self._values[row:stop] = found
            self.rows = max(self.rows, stop)

    def __getitem__(self, rows: Integers) -> Array:
        """Return the labels of rows that were read: codes (b,), -1 where missing, or targets (b, t), then NaN."""
        with self._lock:
            found: Array = self._values[rows]
        return found

    @property
    def nbytes(self) -> int:
        """Bytes that are held now."""
        return int(self._values.nbytes)

    @property
    def origin(self) -> NDArray[np.float64]:
        """Medians (t,) of the targets in the first chunk that has any; requires that a known one was read.

        They do not depend on where batches end, and are within ``sqrt(2 n / chunk)`` standard deviations of the mean.
        """
        for start in range(0, self.rows if self._origin is None else 0, self.chunk):
            values = self[np.arange(start, min(start + self.chunk, self.rows))]
            known = ~np.isnan(values).any(axis=1)
            if known.any():
                self._origin = np.median(values[known], axis=0)
                break
        return np.zeros(self._values.shape[1:]) if self._origin is None else self._origin

    def labels(self) -> Array:
        """Return the labels of all rows that need one, after the read."""
        values = self._values[: self.rows]
        return values if self.present is None else values[self.present[: self.rows]]


@dataclass(frozen=True)
class ColumnRows:
    """The labels of some rows of a column, in place of an array of them.

    Attributes
    ----------
    column : LabelColumn
    first, stop : int
    repeats : int
        Rows that a pattern makes of one sample, which has the label.
    coded : bool
        Whether targets are returned as codes: 0, or -1 where they are missing.
    """

    column: LabelColumn
    first: int
    stop: int
    repeats: int = 1
    coded: bool = False

    def __len__(self) -> int:
        """Number of rows."""
        return self.stop - self.first

    @property
    def nbytes(self) -> int:
        """Bytes of the labels that are held."""
        return self.column.nbytes

    @overload
    def __getitem__(self, rows: slice[Any, int, None]) -> ColumnRows | Array: ...
    @overload
    def __getitem__(self, rows: Integers) -> Array: ...
    def __getitem__(self, rows: slice[Any, int, None] | Integers) -> ColumnRows | Array:
        """Return the same for a slice of rows (an array if it is empty), or the labels of rows that were read."""
        if not isinstance(rows, slice):
            found = self.column[(self.first + rows) // self.repeats]
            return np.where(np.isnan(found).any(axis=1), np.int32(-1), np.int32(0)) if self.coded else found
        start, stop, _ = rows.indices(len(self))
        if stop <= start:
            return np.zeros(0, np.int32) if self.coded else self.column[np.zeros(0, np.intp)]
        return replace(self, first=self.first + start, stop=self.first + stop)

    def digest(self) -> str:
        """What identifies the labels in advance; the labels themselves are digested with their rows."""
        classes = [] if self.column.classes is None else self.column.classes.tolist()
        return f"labels of batches: {self.column.missing} {self.repeats} {classes}"


@dataclass(frozen=True)
class BatchLabels:
    """The labels that come with batches, as the y of a fit.

    Attributes
    ----------
    stream : BatchStream
    chunk : int
        Rows that are always read together.
    repeats : int
        Rows that a pattern makes of one sample, which has the label.
    """

    stream: Any
    chunk: int
    repeats: int

    @property
    def width(self) -> int:
        """Columns of real targets; 0 for classes, and where the first batch does not show what its labels are."""
        from bigpca.data.labels import as_array, label_values, target_columns

        given = as_array(self.stream.first_labels, "label")
        values, gaps = label_values(given)
        if gaps.all() and given.dtype.kind in "OT":
            return 0
        return target_columns(values).shape[1] if values.dtype.kind == "f" else 0

    def beside(self, n: int, classes: Any, width: int, missing: str, weights: NDArray[np.float64] | None) -> ColumnRows:
        """Return the labels of n rows, which are known once the rows were read."""
        present: NDArray[np.bool_] | None = None
        if weights is not None:
            present = np.asarray((weights > 0).reshape(-1, self.repeats).any(axis=1))
        column = LabelColumn(classes, width, self.chunk, missing, present)
        self.stream.keep_labels(column)
        return ColumnRows(column, 0, n, self.repeats)

    def reject(self) -> NoReturn:
        """Reject labels that must be known before the rows are read.

        Raises
        ------
        ValueError
        """
        raise ValueError(
            "the labels come with the batches, but all labels are needed before the rows are read. Discriminants and "
            "supervised PCA take named classes: classes=[...] of from_batches or fit_layers. Or give batches of the "
            "rows alone and all labels as y, or call partial_fit(X, y) for each batch."
        )


def why_once(batches: Any) -> tuple[str, str]:
    """Return why batches come once, and what to do instead."""
    return getattr(batches, "why_once", ("the batches are an iterator, which gives them once", f"Pass {AGAIN}"))


def split_batch(batch: Any, label: str) -> tuple[Any, Any]:
    """Return the rows of a batch, as :func:`batch_values` does, and its labels or None.

    A list or tuple of one or two arrays is (rows,) or (rows, labels), as a DataLoader yields it.

    Raises
    ------
    TypeError
        For what is not an array of numbers.
    """
    parts = _parts(batch)
    if len(parts) > 2:
        raise TypeError(
            f"{label} has {len(parts)} arrays. Give the rows, or the rows and their labels; blocks of rows that belong "
            "side by side are a dict, {name: rows}."
        )
    return batch_values(parts[0], label), _batch_labels(parts[1]) if len(parts) == 2 else None


def _batch_labels(labels: Any) -> Any:
    """Return labels as an array of NumPy."""
    if hasattr(labels, "detach") or is_on_gpu(labels):
        return host_array(labels)
    from bigpca.data.labels import as_array  # imports file formats

    return as_array(labels, "label")


def _parts(batch: Any) -> Sequence[Any]:
    pair = isinstance(batch, list | tuple) and len(batch) > 0 and len(getattr(batch[0], "shape", ())) > 1
    return batch if pair else (batch,)


def same_columns(batch: Any, names: list[Any] | None, label: str) -> list[Any] | None:
    """Return the names of the columns of the batches so far; this batch may be a table.

    Raises
    ------
    ValueError
        If this one has other names than those before, or another order.
    """
    columns = names_of_columns(_parts(batch)[0])
    found = names if columns is None else columns
    if names is not None and found != names:
        raise ValueError(
            f"{label} has the columns {brief(found)}, but earlier batches have {brief(names)}. The same columns in the "
            "same order were expected."
        )
    return found


def names_of_columns(rows: Any) -> list[Any] | None:
    """Return the names of the columns of a table or a dict; None for anything else."""
    if isinstance(rows, Mapping):
        return list(rows)
    schema = table_schema(rows)
    return None if schema is None else [name for name, _ in schema]


@dataclass(frozen=True)
class Columns:
    """Which columns of batches that are tables or dicts hold the rows, and which one their keys.

    Attributes
    ----------
    column : str or None
        The column of vectors; None for all columns but the keys (a dict then has only one).
    keys : str or None
    """

    column: str | None = None
    keys: str | None = None

    def of(self, batch: Any, label: str) -> tuple[Any, Any]:
        """Return a batch, or a pair of it and labels, with its rows in place of the columns, and the keys or None.

        Raises
        ------
        TypeError
            For a batch without columns.
        MemberError
            For columns that it does not have, and if several may be meant.
        """
        if self.column is None and self.keys is None:
            return batch, None
        rows, *labels = _parts(batch)
        names = names_of_columns(rows)
        if names is None:
            raise TypeError(f"{label} is {an(type(rows).__name__)}, which has no columns. Leave column= and keys= out.")
        for name in (self.column, self.keys):
            if name is not None and name not in names:
                raise MemberError(f"{label} has no column {name!r}; it has {brief(names)}.")
        others = [name for name in names if name != self.keys]
        if isinstance(rows, Mapping) and self.column is None and len(others) != 1:
            raise MemberError(f"{label} has the columns {brief(others)} beside its keys. Choose with column=.")
        if isinstance(rows, Mapping) or self.column is not None:
            values = rows[others[0] if self.column is None else self.column]
        else:
            values = rows.select(others) if hasattr(rows, "select") else rows[others]
        return (values, *labels) if labels else values, None if self.keys is None else _batch_labels(rows[self.keys])


def _references(arrays: list[Array]) -> list[int]:
    """Return the number of references to each, its views included: equal for all arrays that only a list holds."""
    return [getrefcount(array) for array in arrays]


def batch_values(rows: Any, label: str) -> Any:
    """Return an array, tensor or CSR in a dtype that PCA can use: NumPy's, or on its device; bfloat16 becomes float32.

    Sparse rows of any form of SciPy become CSR: a batch is small.
    """
    there = RowsThere.of(rows)
    if there is not None:
        return there
    if hasattr(rows, "obs_names") and hasattr(rows, "X"):
        raise TypeError(f"{label} is {type(rows).__name__}. Give its rows: from_batches(batch.X for batch in loader).")
    if isinstance(rows, da.Array) and carries_beside(rows):
        raise TypeError(LEFT_OUT)
    rows = sparse_of_torch(rows)
    if is_sparse(rows):
        return sparse_rows(rows, label, _checked_dtype(rows, label))
    if hasattr(rows, "detach") or is_on_gpu(rows):
        rows = host_array(rows)
    elif not isinstance(rows, np.ndarray):
        from bigpca.data.label_files import whole  # imports file formats

        rows = embeddings(rows, label, by="column")
        rows = table_rows(whole(rows, label, "value", "An array of rows, (n, d),"), label)
    try:
        array = unmasked(rows)
    except ValueError:
        raise TypeError(
            f"{label} is {an(type(rows).__name__)} that is not an array of numbers. Give an array (b, d), or a pair of "
            "such rows and their labels."
        ) from None
    return array.astype(_checked_dtype(array, label), copy=False)


def _checked_dtype(rows: Any, label: str) -> np.dtype[Any]:
    try:
        return check_dtype(rows.dtype)
    except TypeError as error:
        raise TypeError(f"{label}: {error}") from None


def sparse_of_torch(rows: Any) -> Any:
    """Return a sparse tensor of torch in the form of SciPy; anything else as it is."""
    layout, shape = str(getattr(rows, "layout", "")), tuple(getattr(rows, "shape", ()))
    if layout == "torch.sparse_csr":
        parts = rows.detach()
        vectors = [host_array(one) for one in (parts.values(), parts.col_indices(), parts.crow_indices())]
        return csr_array(tuple(vectors), shape=shape)
    if layout == "torch.sparse_coo":
        parts = rows.detach().coalesce()
        return coo_array((host_array(parts.values()), tuple(host_array(parts.indices()))), shape=shape)
    return rows


def as_table(rows: Any) -> Any:
    """Return rows of any shape as rows (b, d)."""
    return rows if len(rows.shape) == 2 else rows.reshape(rows.shape[0], row_width(rows.shape))


class SparseRoom:
    """Room for rows of CSR, which are put behind each other: what reads use of an array.

    Attributes
    ----------
    shape : (int, int)
    dtype : numpy.dtype
    """

    def __init__(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype
        self._parts: list[Any] = [csr_array((0, shape[1]), dtype=dtype)]

    def __setitem__(self, rows: slice[Any, Any, None], values: Any) -> None:
        self._parts.append(values)

    def __getitem__(self, rows: slice[Any, Any, None]) -> Any:
        self._parts = [stacked(self._parts)]
        return row_range(self._parts[0], *rows.indices(self._parts[0].shape[0])[:2])


class BatchStream:
    """The rows of an iterable of batches, as one process reads them: in order, whatever the sizes of batches are.

    The first rows that were read are kept until later ones are read, so that a fit may look at them before its pass. A
    read that begins earlier iterates again, unless the iterable is an iterator. Rows that later iterations give are
    compared with those of the first one, by the first row of each read. After an interrupt, which may have come between
    the batch that was taken and the rows that were kept of it, an iterable is iterated again, and an iterator rejected.

    Parameters
    ----------
    batches : iterable of batches
    row_shape : tuple of int, or None
        Shape of one row as the batches have it; None for that of the first batch.
    count : int or None
        Number of rows, if it is known.
    classes : ndarray or None
        The classes that the labels of pairs (rows, labels) may have, sorted, if they are known.
    columns : Columns
        Which columns of tables and dicts are the rows.
    beside : bool
        Whether the arrays of a batch are blocks of rows, which stand side by side in one row. Dicts always are.

    Attributes
    ----------
    once : bool
        Whether ``batches`` is an iterator, which yields its batches only once.
    position : int
        The row that is read next.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        row_shape: tuple[int, ...] | None,
        count: int | None,
        classes: Array | None = None,
        columns: Columns = Columns(),
        beside: bool = False,
    ) -> None:
        self.batches, self.count, self.classes, self.beside = batches, count, classes, beside
        self._columns = columns
        self._blocks: dict[Any, tuple[int, ...]] = {}  # the shape of one row of each block, by name
        self.single: list[bool] = []  # whether each block of the first batch is a number for each row
        self.once = isinstance(batches, Iterator)
        self.position = 0
        self._declared, self._row_shape = count is not None, row_shape
        self._dtype: np.dtype[Any] | None = None
        self._names: list[Any] | None = None
        self._form: DenseForm | None = None
        self._given_shape: tuple[int, ...] | None = None  # of a row, as the batches have it
        self._lock = RLock()
        self._head: Any = None
        self._rooms: list[Array] = []  # of reads, which callers may hold still
        self._first_rows: dict[int, int] = {}
        self._unseen: list[tuple[int, RowsThere]] = []  # first rows of reads that are on a device, to be looked at
        self._digests: dict[int, tuple[int, int]] | None = None
        self._label_digests: dict[int, int] = {}
        self._digested_rows = 1
        self._ends: dict[int, tuple[int, int]] = {}  # of chunks up to where reads ended within them
        self._column: LabelColumn | None = None
        self._restart()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclude other threads, and begin again after a failure, or an interrupt that came between two rows."""
        with self._lock:
            if self._torn and self.once:
                raise ValueError(
                    f"the batches were interrupted at row {self.position:,}, and an iterator yields its batches only "
                    "once: rows may be lost. Make a new iterator; a fit with checkpoint= then skips the rows that it "
                    "has."
                )
            if (self._torn or self._failure is not None) and not self.once:
                self._restart()
            yield

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; takes the first batch if it is not known."""
        if self._row_shape is None:
            self._require_first()
        return self._row_shape or ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the rows; takes the first batch if it is not known."""
        if self._dtype is None:
            self._require_first()
        return np.dtype(self._dtype)

    @property
    def labelled(self) -> bool:
        """Whether batches are pairs (rows, labels); takes the first batch."""
        self._require_first()
        return self._labels is not None

    @property
    def first_labels(self) -> Any:
        """The labels of the first batch, as long as no later one was taken."""
        self._require_first()
        return self._labels

    @property
    def form(self) -> DenseForm:
        """What the rows of the first batch do in the way of their kind, and so those of all; takes the first batch."""
        if self._form is None:
            self._require_first()
        return self._form or DENSE

    @property
    def keys(self) -> Array | None:
        """The keys that came with the rows read so far; None if no column of keys is named."""
        return None if self._keys is None else np.array(self._keys.texts)

    @property
    def first_array(self) -> Any:
        """An array of the library, and on the device, of the first batch."""
        self._require_first()
        return getattr(self._batch, "array", self._batch)

    @property
    def names(self) -> Array | None:
        """The names of the columns of batches that are tables; None for others, and for a column of vectors."""
        self._require_first()
        names = self._names or []
        return string_names(names) if len(names) == row_width((0, *self.row_shape)) else None

    def read(self, start: int, stop: int) -> Any:
        """Return rows ``start:stop``, (stop - start, d), where the batches are; fewer at the end of an unknown number.

        The array is the caller's: its memory is used again only after the caller has let go of it. On a device, rows of
        one batch are that batch's, and may be read until the next rows are asked for.

        Raises
        ------
        ValueError
            If batches are ragged or end early, for rows of an iterator that were read before, and if a later iteration
            gives other rows.
        TypeError
            For batches of other dtypes, or that are not arrays of numbers.
        """
        with self._alone():
            if self._number == 0:
                self._advance()  # which tells where rows are
            out = self._shown(start, stop - start)
            done = 0 if out is None else stop - start
            if out is None:
                out = self._room(stop - start)
                done = self._copy_head(start, out)
            if done == 0:
                self._skip_to(start)
            while done < out.shape[0] and self._advance():
                done += self._take(out, done)
            if done < out.shape[0] and self._declared:
                raise ValueError(
                    f"the batches ended after {counted(self.position, 'row')}; shape says {self.count:,}. Correct "
                    "shape, or leave it out: the rows are then counted as they are read."
                )
            if done:
                self._compare(start, out[:1], last=self._ended or start + done == self.count)
                self._note_end(start + done)
            if start == 0 and self.position == done and not self._passing:
                self._head = out[:done].astype(self.dtype)  # a copy
            return out[:done]

    def has(self, row: int) -> bool:
        """Whether there is a row of that number, which is not before the next one; takes a batch if necessary.

        A pass asks this before it reads: first rows that are read then are not kept.
        """
        with self._alone():
            if row < self.position and (self.once or self._continues(row)):
                self._passing = True
                return self._continues(row)
            self._skip_to(row)
            self._passing = True
            return self._advance()

    def begin_fit(self) -> None:
        """Forget what rows are compared with: those of a loader that shuffles differ from one fit to the next."""
        self._first_rows, self._digests = {}, None

    def keep_labels(self, column: LabelColumn) -> None:
        """Add the labels of all rows to a column from now on, as the rows are read."""
        with self._alone():
            if self.position:
                self._skip_to(0)
            self._column = column

    def digest_rows(self, chunk: int) -> None:
        """Compute the CRC-32 of each ``chunk`` rows from now on, as they are read."""
        if self._digests is None:
            if self.position and not self.once:
                self._restart()
            self._digests, self._label_digests, self._digested_rows, self._ends = {}, {}, chunk, {}

    def digests(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return (rows, CRC-32) of each chunk of rows ``start:stop``, up to ``stop``; reads on to them if necessary."""
        with self._alone():
            if self._digests is None:
                raise ValueError("rows were read before they were to be digested")
            whole, within = divmod(stop, self._digested_rows)
            known = stop in self._ends or not within or self.once
            self._skip_to(max(stop, self.position) if known else stop, short=True)
            self._note_end(stop)
            found, labels = self._digests, self._label_digests
            chunks = range(start // self._digested_rows, whole + (within > 0))
            each = {i: (found[i][0], found[i][1] | labels.get(i, 0) << 32) for i in chunks if i in found}
            if stop in self._ends:
                each[whole] = self._ends[stop]
            return list(each.values())

    def _note_end(self, end: int) -> None:
        """Keep the digest of a chunk up to where a read ends within it: reads ahead go on with it meanwhile."""
        chunk, within = divmod(end, self._digested_rows)
        if self._digests is None or not within or end in self._ends:
            return
        if end == self.position:
            crc, labels = self._digests.get(chunk, (0, 0))[1], self._label_digests.get(chunk, 0)
        elif self._head is not None and end < self._head.shape[0]:
            crc = zlib.crc32(self.form.content(self._head[end - within : end], end - within))
            column = None if self._column is None else self._column[np.arange(end - within, end)]
            labels = 0 if column is None else zlib.crc32(column.data)
        else:
            return
        self._ends[end] = within, crc | labels << 32

    def _require_first(self) -> None:
        with self._alone():
            if self._number == 0 and not self._advance(least=0):
                raise ValueError(
                    "the batches are empty: there is no first batch. An iterator can be used only once; make a new one."
                )

    def _restart(self) -> None:
        """Begin to iterate, at the next batch that is needed."""
        self._torn = True  # while the fields below are not those of one row
        self._keys: Any = None
        if self._columns.keys is not None:
            from bigpca.data.keys import KeyList  # imports file formats

            self._keys = KeyList()
        self._iterator: Iterator[Any] | None = None
        self._failure: Exception | None = None
        self._batch: Any = np.zeros((0, 0))  # or RowsThere, as what is read of it
        self._given: Any = None  # the first batch, as it was given, until another is taken
        self._labels: Any = None
        self._first = self._number = self.position = 0  # row and number of the batch, and the next row
        self._ended = False
        self._head = None
        self._passing = self._torn = False

    def _room(self, rows: int) -> Any:
        """Return an array of so many rows: one of an earlier read that nobody holds any more, or a new one.

        The first touch of new memory takes as long as the copy of the rows.
        """
        if isinstance(self._batch, RowsThere):
            return self._batch.room(rows, self.dtype)
        if self.form is SPARSE:
            return SparseRoom((rows, row_width((0, *self.row_shape))), self.dtype)
        (unused,), counts = _references([np.empty(0)]), _references(self._rooms)
        held = [room for room, count in zip(self._rooms, counts, strict=True) if count > unused]
        free = [room for room, count in zip(self._rooms, counts, strict=True) if count == unused and len(room) >= rows]
        room = free[0] if free else np.empty((rows, row_width((0, *self.row_shape))), self.dtype)
        self._rooms = [] if self._ended else [*held, room]
        return room[:rows]

    def _shown(self, start: int, count: int) -> RowsThere | None:
        """Return so many rows of one batch on a device, where they are; None for others, which are copied."""
        if not isinstance(self._batch, RowsThere) or self._continues(start):
            return None
        self._skip_to(start)
        if not self._advance() or self._left < count:
            return None
        rows = self._batch[start - self._first : start - self._first + count]
        self._pass(rows)
        return rows

    def _continues(self, start: int) -> bool:
        """Whether the next rows continue those that are kept, which are forgotten otherwise."""
        if self._head is None or start >= self._head.shape[0] or self.position != self._head.shape[0]:
            self._head = None
        return self._head is not None

    def _copy_head(self, start: int, out: Any) -> int:
        """Copy rows that are kept, if the next rows continue them; return how many."""
        if not self._continues(start):
            return 0
        kept = self._head[start : start + out.shape[0]]
        out[: kept.shape[0]] = kept
        return int(kept.shape[0])

    def _skip_to(self, row: int, *, short: bool = False) -> None:
        """Read on to a row, or iterate again if it is behind; ``short`` if there may be fewer rows."""
        if row < self.position:
            if self.once:
                why, other = why_once(self.batches)
                raise ValueError(
                    f"row {row:,} was read already, but {why}. Make a new iterator, or {other[0].lower()}{other[1:]}."
                )
            self._restart()
        while self.position < row and self._advance():
            if self._digests is None and self._column is None:  # nothing is to be found out about these rows
                self.position += min(row - self.position, self._left)
                continue
            step = min(row - self.position, self._digested_rows if self._digests is not None else row)
            self._take(self._room(min(step, self._left)), 0)
        if self.position < row and self._declared and not short:
            raise ValueError(
                f"the batches ended after {counted(self.position, 'row')}, but an earlier iteration had row {row:,}. "
                "Give the same rows each time."
            )

    @property
    def _left(self) -> int:
        return self._first + int(self._batch.shape[0]) - self.position

    def _take(self, out: Any, done: int) -> int:
        """Copy rows of the current batch to ``out``, behind those that are ``done``; return how many."""
        count, offset = min(self._left, int(out.shape[0]) - done), self.position - self._first
        rows = row_range(self._batch, offset, offset + count)
        out[done : done + count] = rows
        self._pass(rows)
        return count

    def _pass(self, rows: Any) -> None:
        """Take note of the next rows of the current batch, which were read, and of their labels."""
        count, offset = int(rows.shape[0]), self.position - self._first
        if self._column is not None:
            self._column.add(self.position, self._labels[offset : offset + count])
        self._torn = True
        self._digest(rows)
        self.position += count
        self._torn = False

    def _digest(self, rows: Any) -> None:
        digests, size, done = self._digests, self._digested_rows, 0
        if digests is None:
            return
        while done < rows.shape[0]:
            chunk, within = divmod(self.position + done, size)
            part = row_range(rows, done, min(done + size - within, rows.shape[0]))
            before, crc = digests.get(chunk, (0, 0)) if within else (0, 0)
            count = int(part.shape[0])
            digests[chunk] = before + count, zlib.crc32(form_of(part).content(part, self.position + done), crc)
            if self._column is not None:
                labels = self._column[np.arange(self.position + done, self.position + done + count)]
                self._label_digests[chunk] = zlib.crc32(labels.data, self._label_digests.get(chunk, 0) if within else 0)
            done += count

    def _compare(self, start: int, row: Any, *, last: bool) -> None:
        """Compare the first row of a read with that of an earlier iteration; rows on a device, many at a time."""
        if not isinstance(row, RowsThere):
            self._compare_here(start, row)
            return
        self._unseen.append((start, row.astype(row.dtype)))  # a copy, which holds no other rows
        if last or len(self._unseen) == MOST_UNSEEN:
            starts, rows = zip(*self._unseen, strict=True)
            self._unseen = []
            fetched = np.asarray(joined([[one] for one in rows]))
            for one, values in zip(starts, fetched, strict=True):
                self._compare_here(one, values)

    def _compare_here(self, start: int, row: Any) -> None:
        crc = zlib.crc32(form_of(row).content(row, start))
        if self._first_rows.setdefault(start, crc) != crc:
            raise ValueError(
                f"row {start:,} differs from an earlier iteration of the batches: they are shuffled, or augmented "
                f"at random. A fit that reads X more than once requires the same rows in the same "
                "order. Turn shuffling off, or use a solver of one read."
            )

    def _advance(self, least: int = 1) -> bool:
        """Take the next batch that has rows, once those of the current one are used up; False at the end.

        With ``least`` = 0 one batch is taken, which may have none: its shape and dtype are those of rows.
        """
        while self._left == 0 and not self._ended:
            if self._failure is not None:
                raise self._failure
            self._torn = True
            try:
                if self._iterator is None:
                    self._iterator = iter(self.batches)
                given = next(self._iterator)
                batch, labels = self._checked(given)
            except StopIteration:
                self._batch, self._first = self._batch[:0], self.position
                self._ended, self._torn, self._rooms = True, False, []
                if not self._declared and self.count not in (None, self.position):
                    raise ValueError(
                        f"this iteration of the batches has {self.position:,} rows, but an earlier one had "
                        f"{self.count:,}. The same rows were expected each time."
                    ) from None
                self.count = self.count if self._declared else self.position
                return False
            except Exception as error:  # raised again if the read is repeated: the iterator may have ended by it
                self._failure, self._torn, self._rooms = error, False, []
                raise
            self._given = given if self.position == 0 else None
            self._batch, self._labels, self._first = batch, labels, self.position
            self._number += 1
            self._torn = False
            if not least:
                return True
        return self._left > 0

    def _checked(self, batch: Any) -> tuple[Any, Any]:
        """Return the rows (b, d) and the labels of a batch, after comparing them with those of the first."""
        label = f"batch {self._number} (from row {self.position:,})"
        batch, keys = self._columns.of(batch, label)
        if self.beside or isinstance(batch, Mapping):
            rows, labels = self._side_by_side(batch, label), None
        else:
            rows, labels = split_batch(batch, label)
            self._names = same_columns(batch, self._names, label)
        check_shape(rows.shape, label)
        form = self._form = self._form or form_of(rows)
        if form_of(rows).shifts != form.shifts:
            rows = in_form(form, as_table(rows), label)
        if not rows.shape[0] and 0 in rows.shape[1:] and self._row_shape is not None:  # an empty column of lists
            rows = np.zeros((0, *self._row_shape), self._dtype)
        given = rows.shape[1:]
        if self._row_shape is None:
            self._row_shape = given
        flat = 1 in (len(given), len(self._row_shape))
        fits = given == self._row_shape or (flat and row_width(rows.shape) == row_width((0, *self._row_shape)))
        if not fits or given != (self._given_shape or given):
            raise ValueError(
                f"{label} has shape {brief(rows.shape)}, but shape or the first batch announced rows of shape "
                f"{brief(self._given_shape or self._row_shape)}. Give every batch the same features."
            )
        self._given_shape = given
        if self._dtype is None:
            self._dtype = rows.dtype
        if rows.dtype != self._dtype:
            raise TypeError(
                f"{label} is {rows.dtype}, but the first batch is {self._dtype}. One dtype was expected: convert the "
                "batches."
            )
        if labels is None and self._column is not None:
            raise ValueError(f"{label} has no labels, but the first batch has. Give pairs (rows, labels).")
        if labels is not None and len(labels) != rows.shape[0]:
            counts = f"{counted(rows.shape[0], 'row')} and {counted(len(labels), 'label')}"
            raise ValueError(f"{label} has {counts}. Give one label for each row.")
        if self._keys is not None:
            self._keys.keep(self.position)
            self._keys.add(keys, rows.shape[0], label)
        return as_table(rows), labels

    def _side_by_side(self, batch: Any, label: str) -> Any:
        """Return the blocks of a batch as rows (b, sum of their columns), in the order of the first batch."""
        named = batch if isinstance(batch, Mapping) else dict(enumerate(_parts(batch)))
        try:
            values = {name: batch_values(block, f"{label}, block {name!r}") for name, block in named.items()}
        except TypeError as error:
            vectors = [name for name, block in named.items() if len(getattr(block, "shape", ())) > 1]
            if not isinstance(batch, Mapping):
                raise
            raise TypeError(
                f"{error} If one column of the dict holds the rows, name it: from_batches(batches, "
                f"column={vectors[0] if vectors else 'name'!r}), and keys= for texts that name them."
            ) from None
        shapes = {name: block.shape[1:] or (1,) for name, block in values.items()}
        if not self._blocks:
            self._blocks, self.single = shapes, [block.ndim == 1 for block in values.values()]
        counts = {name: int(block.shape[0]) for name, block in values.items()}
        if shapes != self._blocks:
            raise ValueError(
                f"{label} has blocks of rows of shapes {brief(shapes)}, but the first batch has {brief(self._blocks)}. "
                "Give every batch the same blocks."
            )
        if len(set(counts.values())) != 1:
            raise ValueError(
                f"{label} has blocks of {brief(counts)} rows; row i of each belongs to row i of the others. Give all "
                "blocks of a batch the same number of rows."
            )
        blocks = (values[name] for name in self._blocks)
        return columns_beside([as_table(one) for one in blocks], label)

    def side_by_side(self) -> BatchStream:
        """Return a stream of the same batches, whose arrays are blocks side by side; this one is then used no more.

        Raises
        ------
        ValueError
            For batches of one array, and for an iterator from which more than one batch was taken.
        """
        self._require_first()
        if self._blocks:
            return self
        if self._labels is None:
            raise ValueError(
                "the batches have one array each; pairs (X, Y) of blocks of rows were expected. Give tuples, or dicts "
                "{name: rows}; or pass X and Y as two stores."
            )
        count = self.count if self._declared else None
        return BatchStream(self.unread(), None, count, beside=True)

    def unread(self) -> Iterable[Any]:
        """Return the batches if at most the first one was taken; this stream must not be used afterwards.

        Raises
        ------
        ValueError
            For an iterator from which more than one batch was taken.
        """
        batches = self.batches
        if self.once and self._number:
            if self._given is None or self._iterator is None:
                raise ValueError("rows of the iterator were read already. Make a new one.")
            batches = chain([self._given], self._iterator)
        if self._columns == Columns():
            return batches
        return (self._columns.of(batch, f"batch {i}")[0] for i, batch in enumerate(batches))

    @property
    def blocks(self) -> dict[Any, int]:
        """Columns of each block by name, for batches of several blocks."""
        self._require_first()
        return {name: row_width((0, *shape)) for name, shape in self._blocks.items()}


@dataclass(frozen=True, eq=False, repr=False)
class BatchRows(Source):
    """Rows of a stream of batches, for the process that iterates; read in order.

    Attributes
    ----------
    stream : BatchStream
    open_ended : bool
        Whether the number of rows is not known; the shape then has that for which they are laid out.
    """

    gives_rows: ClassVar[bool] = True

    stream: BatchStream
    open_ended: bool
    format: str = field(default=FORMAT, kw_only=True)

    @classmethod
    def of(cls, stream: BatchStream) -> BatchRows:
        """Return the rows of a stream, whose number may have become known."""
        width = max(1, row_width((0, *stream.row_shape)))
        rows = max(1, OPEN_BYTES // (4 * width)) if stream.count is None else stream.count
        return cls((rows, *stream.row_shape), stream, stream.count is None)

    def facts(self) -> dict[str, Any]:
        """Stored values of sparse rows are a number that a plan and the cut of rows do not read off the first batch, as
        bits would then depend on where it ends: one in ten, and at most those of a long text.
        """
        (n, d), form = self.shape, self.stream.form  # that of the first batch
        values = None if form.shifts else max(1, int(min(d / 10, DENSEST / 8) * n))
        return {"dtype": self.stream.dtype, "form": form, "stored_values": values}

    @property
    def densest(self) -> float | None:
        """The most for which memory is planned: denser rows are rejected as they come."""
        return None if self.form.shifts else float(min(self.shape[1], DENSEST))

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Any:
        """Read on to a block; fewer rows at the end if their number is not known."""
        rows = self.stream.read(start, stop)
        if self.densest is not None and rows.nnz > DENSEST * max(rows.shape[0], FEW):
            raise MemoryBudgetError(
                f"rows {start:,} to {start + rows.shape[0] - 1:,} of the batches store {rows.nnz / rows.shape[0]:,.0f} "
                f"values each; memory is planned for at most {DENSEST:,} of sparse batches. Pass dense batches, "
                "toarray(), or store the rows as CSR and open them."
            )
        if columns == (0, rows.shape[1]):
            return rows
        return form_of(rows).mapped(rows[:, slice(*columns)], np.ascontiguousarray)

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return the CRC-32 of those rows in place of a file's mtime; reads on to them if necessary."""
        return [("batches", rows, crc) for rows, crc in self.stream.digests(start, stop)]

    def details(self) -> dict[str, Any]:
        """Return nothing more than shape and dtype; from now on the stream keeps what :meth:`stamps` returns."""
        self.stream.digest_rows(max(self.row_chunks()))
        return {"number of rows known": not self.open_ended}


def from_batches(
    batches: Iterable[Any],
    shape: tuple[int, ...] | None = None,
    *,
    classes: ArrayLike | None = None,
    column: str | None = None,
    keys: str | None = None,
) -> da.Array:
    """Return the rows of an iterable of batches as a source for fits, such as features that a network produces.

    A fit iterates in the calling thread, and holds a few slabs of rows at a time. Rows are cut again by absolute row:
    results have the same bits wherever batches end. If the number of dense rows is known, they also equal those of the
    same rows in memory. A checkpoint records a digest of the rows; a rerun skips rows that are already in it, and is
    rejected if they changed, for example because a loader shuffles.

    Parameters
    ----------
    batches : iterable of batches
        A batch is an array (b, d) or (b, c, h, w) of any number of rows b: NumPy, a torch tensor (with gradients, of
        any floating dtype: bfloat16 becomes float32), CuPy, JAX, or whatever has ``__array__``. Rows on a GPU stay
        there in reads that can use it, if array-api-compat is installed, and are copied in others. Sparse rows, of
        SciPy or torch, stay sparse. Or a pair (rows, labels); fits that need labels use these if y is None, and fits of
        two sides, such as CCA, take the second array (b, q) as rows of Y. Or a dict {name: rows} of blocks with the
        same number of rows, which are joined side by side in the order of the first batch, such as layers of a network.
        Or a table of pandas, polars or Arrow: its only column of vectors, or all columns, are the features, with their
        names. With ``column``, those of a table or of a dict. An iterable that can be iterated again (a list, a
        DataLoader), or a Dataset, Scanner or Table of Arrow, works for fits of several reads; an iterator works only
        for fits of one read.
    shape : tuple of int, optional
        (n, d) or (n, c, h, w) of all rows. Without it, a fit of one read finds n in that read.
    classes : array-like of shape (c,), optional
        The classes that may occur in pairs, such as ``range(10)``; those without rows get a count of 0. A fit then
        takes labels and rows in one read. Without it, this works only for real labels with a linear label kernel: pass
        other labels to the fit, as y, and batches of the rows alone.
    column : str, optional
        The column that holds the vectors, of batches that are tables or dicts. A table with one column of vectors needs
        none.
    keys : str, optional
        The column that names the rows, by distinct strings or integers, and is not a feature. ``transform(X, out=...)``
        stores these keys. They are held in memory while rows are read.

    Returns
    -------
    dask.array.Array of shape (n, d), or (nan, d) if n is not known
        For ``plan``, ``fit``, ``partial_fit``, ``transform`` and other methods that map rows, but not for Dask
        operations, which compute chunks in any order.

    Raises
    ------
    TypeError, ValueError
        If ``batches`` is not iterable or is empty, and for a shape that rows cannot have. The first batch is
        taken at once. Errors in later batches are raised by the fit, which names their rows.

    Examples
    --------
    >>> X = from_batches([np.ones((3, 2), "f4"), np.zeros((2, 2), "f4")])
    >>> X.shape, X.dtype
    ((5, 2), dtype('float32'))
    """
    if hasattr(batches, "to_batches") and not hasattr(batches, "__iter__"):
        batches = ReadAgain(batches)
    if not hasattr(batches, "__iter__") or isinstance(batches, str | bytes | dict | np.ndarray | da.Array):
        found = foreign(batches)
        raise TypeError(
            f"batches is {an(type(batches).__name__)}; an iterable of arrays (b, d) was expected: a list, a generator "
            f"that was called, or a DataLoader. {'Pass one array to fit itself.' if found is None else found.remedy}"
        )
    columns = Columns(column, keys)
    row_shape, count = None, None
    if shape is not None:
        sizes = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
        whole = all(isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0 for size in sizes)
        if len(sizes) < 2 or not whole:
            raise ValueError(
                f"shape = {shape!r}; positive integers (n, d) or (n, c, h, w) were expected. Leave it out if n is "
                "unknown."
            )
        shape = tuple(int(size) for size in sizes)
        row_shape, count = shape[1:], shape[0]
    elif isinstance(batches, list | tuple):
        count = sum(_count_rows(columns.of(one, f"batch {i}")[0], f"batch {i}") for i, one in enumerate(batches))
        if count == 0:
            raise ValueError("the batches are empty: there are no rows. Give at least one batch.")
    known = None
    if classes is not None:
        from bigpca.data.labels import merge_classes  # imports file formats

        known = merge_classes(classes, classes)[0]
    return _open_stream(BatchStream(batches, row_shape, count, known, columns))


@dataclass(frozen=True)
class ReadAgain:
    """The batches of a Dataset, a Scanner or a Table of Arrow, or of Lance, which can be read again.

    Attributes
    ----------
    reader : object with a method ``to_batches``
    """

    reader: Any

    def __iter__(self) -> Iterator[Any]:
        return iter(self.reader.to_batches())


def _open_stream(stream: BatchStream) -> da.Array:
    X = _laid_out(stream)
    if stream.count is None:
        X = array_of(graph_of(X), X.name, ((np.nan,), X.chunks[1]), X._meta)
    return named(X, stream.names)


def _laid_out(stream: BatchStream) -> da.Array:
    source = BatchRows.of(stream)
    return open_source(source, uuid.uuid4().hex, source.shape[:1] if source.open_ended else None)


def _count_rows(batch: Any, label: str) -> int:
    if not isinstance(batch, Mapping):
        rows = _parts(batch)[0]  # not copied from a device: the fit does that
        return int(rows.shape[0]) if len(getattr(rows, "shape", ())) else len(split_batch(batch, label)[0])
    counts = (block.shape[0] if getattr(block, "shape", ()) else len(block) for block in batch.values())
    return max(counts, default=0)


def blocks_in_batches(X: da.Array) -> tuple[da.Array, dict[Any, int]] | None:
    """Return rows in batches with the arrays of each batch side by side, and the columns of each; None for others.

    Raises
    ------
    ValueError
        For batches of one array, and for rows of a pattern.
    """
    base, view = view_of(X)
    source = rows_of_batches(base)
    if source is None:
        return None
    if view is not None:
        raise ValueError("pattern= cannot be used with batches of several blocks. Reshape the blocks in the batches.")
    stream = source.stream.side_by_side()
    return (X if stream is source.stream else _open_stream(stream)), stream.blocks


def batches_of(X: da.Array) -> da.Array | None:
    """Return rows in batches with known chunks: those of their number, or those for which they are laid out.

    None for any other array.
    """
    source = rows_of_batches(X)
    return None if source is None else X if not np.isnan(X.shape[0]) else _laid_out(source.stream)


def rows_of_batches(X: da.Array) -> BatchRows | None:
    """Return the source of rows in batches, as they are laid out now; None for any other array."""
    original = f"original-{X.name}"
    source = _behind(graph_of(X).layers.get(original, {}), original)
    if not isinstance(source, BatchRows) or np.isnan(X.shape[0]):
        return BatchRows.of(source.stream) if isinstance(source, BatchRows) else None
    return source if source_of(X) is source else None


def has_batches(X: da.Array) -> bool:
    """Whether an array, or the one that a view of it shows, is what :func:`from_batches` returned."""
    return rows_of_batches(view_of(X)[0]) is not None


def unread_batches(X: da.Array) -> Iterable[Any]:
    """Return the batches of what :func:`from_batches` returned, as they were given; raises as the stream's."""
    source = rows_of_batches(X)
    if source is None:
        raise TypeError("a Dask array is not batches. Pass what from_batches returned, or an iterable of batches.")
    return source.stream.unread()


def reject_batches(X: da.Array, what: str, why: str = f"would be computed from batches by Dask, {IN_ORDER}") -> None:
    """Reject a Dask array that is computed from batches; ``what`` and ``why`` are the message.

    Raises
    ------
    TypeError
    """
    for name, layer in graph_of(X).layers.items():
        if name.startswith("original-") and getattr(_behind(layer, name), "format", "") == FORMAT:
            raise TypeError(f"{what} {why}")


def _behind(layer: Any, name: str) -> Any:
    node = dict(layer).get(name)
    return getattr(node, "value", node)


def batch_labels(X: da.Array, y: Any) -> Any:
    """Return y, or the labels that come with batches if it is None, as :class:`BatchLabels`.

    Raises
    ------
    ValueError
        If labels are given for batches whose number of rows is not known, or that bring labels of their own.
    """
    base, view = view_of(X)
    source = rows_of_batches(base)
    if source is None:
        return y
    if y is not None and source.open_ended:
        raise ValueError(
            "labels were given for batches whose number of rows is not known, so labels and rows cannot be matched. "
            "Pass from_batches(batches, shape=(n, d))."
        )
    stream = source.stream
    if not stream.labelled:
        return y
    if y is not None:
        raise ValueError(
            "y was given for batches that bring labels of their own, pairs (rows, labels). Leave it out, or give "
            "batches of the rows alone."
        )
    return BatchLabels(stream, source.row_chunks()[0], 1 if view is None else view.rows_per_sample)
