"""Sparse rows as one form of CSR: checked in memory, and read from the three arrays of a file or store."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca.arrays import Array, Integers
from bigpca.csr import INDEX_BYTES, SPARSE, form_of
from bigpca.data.checks import NATIVE_BYTES, check_decoded, check_dtype, check_promised, regular_chunks
from bigpca.data.containers import dense_rows
from bigpca.data.source import SPARSE_PARTS, DerivedRows, MemoryRows, Source, Stamp
from bigpca.devices import joined
from bigpca.errors import CorruptedChunkError, MemoryBudgetError, brief, format_bytes
from bigpca.forms import DENSE, DenseForm
from bigpca.settings import memory_now
from bigpca.storage.files import kind_of

CHECKED = 1 << 22  # indices that are checked at a time
WINDOW_ROWS = 2**18  # of indptr that are decoded at a time: 2 MiB
WINDOWS_HELD = 8  # in a process: AnnData writes indptr as one chunk, which each read would decode again
MAX_SHAPE = 8  # numbers of an array "shape" that are read: a damaged one may be of any size


def is_csr(X: Any) -> bool:
    """Whether this is a matrix or array of SciPy in CSR form."""
    return bool(sp.issparse(X)) and X.format == "csr"


def is_sliced(value: Any) -> bool:
    """Whether this is CSR or a source in memory: all the rows of an array, whose slices are sent in its place."""
    return is_csr(value) or (isinstance(value, Source) and value.in_memory)


def is_rows(value: Any) -> bool:
    """Whether this is an array of NumPy, or CSR."""
    return isinstance(value, np.ndarray) or is_csr(value)


def is_sparse(X: Any) -> bool:
    """Whether these are sparse rows of two dimensions, of SciPy or ``sparse``, which convert themselves to CSR."""
    if sp.issparse(X):
        return bool(X.ndim == 2)
    return type(X).__module__.partition(".")[0] == "sparse" and hasattr(X, "tocsr") and X.ndim == 2


def as_csr(X: Any) -> Any:
    """Return sparse rows as a CSR matrix or array of SciPy; one that is CSR is returned as it is.

    Raises
    ------
    MemoryBudgetError
        If the copy does not fit in the memory of this machine.
    """
    if is_csr(X):
        return X
    needed = int(X.nnz) * (X.dtype.itemsize + INDEX_BYTES) + INDEX_BYTES * int(X.shape[0])
    _, free = memory_now()
    if needed > free:
        raise MemoryBudgetError(
            f"rows are read from CSR, and a copy of this {type(X).__name__} of shape {X.shape} in that form takes "
            f"{format_bytes(needed)}, but {format_bytes(free)} are free. Write it once as CSR where memory suffices, "
            "anndata.AnnData(X.tocsr()).write_zarr(path), and pass the path."
        )
    return X.tocsr()


def form_of_meta(meta: Any, kept: bool = True) -> DenseForm:
    """Return what the chunks of a Dask array with that ``meta`` do in their own way, or what a map makes of them, which
    leaves sparse ones sparse if they are ``kept`` so.
    """
    return SPARSE if kept and is_csr(meta) else DENSE


def in_form(form: DenseForm, rows: Any, label: str) -> csr_array:
    """Return a dense batch of rows in the form of the first batch, which is another one."""
    if form is not SPARSE:
        raise TypeError(f"{label} is sparse, but the first batch is dense. Give all batches in one form.")
    return csr_array(rows)


def beside(metas: Sequence[Any]) -> tuple[np.dtype[Any], DenseForm]:
    """Return dtype and form of rows of several kinds side by side: sparse ones if some are, which have no float16."""
    form = SPARSE if any(map(is_csr, metas)) else DENSE
    return np.result_type(*(one.dtype for one in metas), *[np.float32] * (form is SPARSE)), form


def stacked(parts: Sequence[Any]) -> Any:
    """Return blocks of rows, all dense or all CSR, as one block; a single one as it is."""
    if len(parts) == 1:
        return parts[0]
    return csr_array(sp.vstack(parts, format="csr")) if sp.issparse(parts[0]) else np.concatenate(parts)


def in_blocks(blocks: Sequence[Sequence[Any]]) -> Any:
    """Return blocks of rows and columns, ``blocks[i][j]``, all dense or all CSR, as one; a single one as it is."""
    if len(blocks) == len(blocks[0]) == 1:
        return blocks[0][0]
    if sp.issparse(blocks[0][0]):
        return stacked([csr_array(sp.hstack(columns, format="csr")) for columns in blocks])
    return joined(blocks)


def columns_beside(blocks: Sequence[Any], label: str) -> Any:
    """Return columns side by side, as CSR if one of them is: like stores side by side."""
    if not any(map(sp.issparse, blocks)):
        return np.concatenate(blocks, axis=1)
    whole = sp.hstack(blocks, format="csr")
    return sparse_rows(whole, label, check_dtype(whole.dtype))


def row_range(rows: Any, start: int, stop: int) -> Any:
    """Return rows ``start:stop`` of dense or CSR rows that share their memory.

    SciPy's slices of CSR are always copies; these only where they are less than about half of the rows.
    """
    if not sp.issparse(rows):
        return rows[start:stop]
    ends = rows.indptr[start : stop + 1]
    low, high = int(ends[0]), int(ends[-1])
    part = csr_array((rows.data[low:high], rows.indices[low:high], ends - low), (len(ends) - 1, rows.shape[1]))
    part.has_canonical_format = rows.has_canonical_format
    return part


def scaled_rows(rows: Any, factors: NDArray[np.float64]) -> Any:
    """Return every row times its factor (b,), in the precision of the rows."""
    return form_of(rows).mapped(rows, np.multiply, by_row=(factors.astype(rows.dtype),))


def without_values(rows: Any, own: NDArray[np.bool_], value: int) -> Any:
    """Return rows with a value, or stored zeros, in all but the own rows, which may hold anything."""
    if isinstance(rows, csr_array):
        return SPARSE.mapped(rows, lambda values, there: np.where(there, values, 0), by_row=(own,))
    return np.where(own[:, None], rows, rows.dtype.type(value))


def transposed(rows: Any) -> Any:
    """Return rows' transpose in their own form."""
    return csr_array(rows.T) if isinstance(rows, csr_array) else rows.T


def csr_block(data: Array, indices: Array, indptr: Array, width: int, label: str, first_row: int = 0) -> csr_array:
    """Return rows from the three vectors of CSR in canonical form: sorted, duplicates summed, int32 where it suffices.

    Parameters
    ----------
    data, indices : ndarray of shape (stored values,)
        Overwritten, unless they are copied for another dtype.
    indptr : ndarray of shape (rows + 1,)
        From 0.
    width : int
        Number of columns.
    label : str
        Place of the rows in messages; ``first_row`` is the absolute number of their first.

    Raises
    ------
    ValueError
        If the vectors contradict each other.
    """
    check_csr(indices, indptr, len(data), width, label, first_row)
    most = max(width, len(data))
    index = np.dtype(np.int32 if most <= np.iinfo(np.int32).max else np.int64)
    vectors = data, indices.astype(index, copy=False), indptr.astype(index, copy=False)
    block = csr_array(vectors, shape=(len(indptr) - 1, width))
    block.sort_indices()
    if not block.has_canonical_format:
        _check_sums(block, label, first_row)
        block.indptr = block.indptr.copy()  # which SciPy changes, and may be the caller's
        block.sum_duplicates()
    return block


def _check_sums(block: csr_array, label: str, first_row: int) -> None:
    """Reject sorted duplicates of integers whose sum their dtype cannot hold: SciPy would wrap it around."""
    if block.dtype.kind not in "iu":
        return
    first = np.ones(block.nnz, np.bool_)
    first[1:] = block.indices[1:] != block.indices[:-1]
    first[block.indptr[:-1][np.diff(block.indptr) > 0]] = True
    at = np.flatnonzero(first)
    sums = np.add.reduceat(block.data, at, dtype=block.dtype)
    missed = np.abs(np.add.reduceat(block.data, at, dtype=np.float64) - sums)
    if missed.max() >= 2.0 ** (8 * block.dtype.itemsize - 1):
        place = at[int(np.argmax(missed))]
        row = first_row + int(np.searchsorted(block.indptr, place, side="right")) - 1
        raise ValueError(
            f"{label}: row {row} has several values in column {int(block.indices[place])}, and {block.dtype} cannot "
            f"hold their sum. Store the values in a larger dtype, such as float32."
        )


def _damaged(label: str, what: str) -> CorruptedChunkError:
    return CorruptedChunkError(f"{label}: {what}. It is damaged or was not written completely: write the matrix again.")


def check_csr(indices: Array, indptr: Array, stored: int, width: int, label: str, first_row: int = 0) -> None:
    """Reject vectors of CSR that contradict each other, which SciPy would read beyond their ends.

    Raises
    ------
    CorruptedChunkError
        Names the row or the numbers that are wrong.
    """
    if len(indptr) == 0 or int(indptr[-1]) != stored or len(indices) != stored:
        ends = f"{int(indptr[-1]):,}" if len(indptr) else "nothing"
        raise _damaged(
            label, f"its indptr ends at {ends}, but there are {stored:,} values and {len(indices):,} indices"
        )
    check_ends(indptr, stored, label, first_row)
    for start in range(0, stored, CHECKED):
        part = indices[start : start + CHECKED]
        if int(part.min()) < 0 or int(part.max()) >= width:
            place = start + int(np.flatnonzero((part < 0) | (part >= width))[0])
            row = first_row + int(np.searchsorted(indptr, place, side="right")) - 1
            raise _damaged(
                label, f"row {row} has a value in column {int(indices[place])}, but there are {width} columns, from 0"
            )


def check_ends(indptr: Array, stored: int, label: str, first_row: int = 0, *, whole: bool = True) -> None:
    """Reject an indptr that falls, or is beyond the stored values; that of ``whole`` rows begins at 0."""
    wrong = ""
    if whole and indptr[0] != 0:
        wrong = f"starts at {indptr[0]:,}; it must start at 0"
    elif (falls := np.flatnonzero(indptr[1:] < indptr[:-1])).size:
        t = int(falls[0])
        wrong = f"falls from {indptr[t]:,} to {indptr[t + 1]:,} at row {first_row + t:,}; it must never fall"
        wrong += " (32-bit integers that wrapped around?)" if indptr[t + 1] < 0 else ""
    elif (beyond := np.flatnonzero((indptr < 0) | (indptr > stored))).size:
        t = int(beyond[0])
        wrong = f"is {indptr[t]:,} at row {first_row + t:,}, but there are only {stored:,} stored values"
    if wrong:
        raise _damaged(label, f"its indptr {wrong}")


def sparse_rows(chunk: Any, label: str, dtype: np.dtype[Any]) -> csr_array:
    """Return a computed chunk of a Dask array of sparse rows in canonical form; the chunk is not changed.

    Parameters
    ----------
    dtype : numpy.dtype
        What the Dask array promised. A chunk may have a larger one of the same kind, which is kept.

    Raises
    ------
    TypeError
        For chunks of another kind than promised.
    ValueError
        For damaged CSR.
    """
    if isinstance(chunk, np.ndarray) and chunk.ndim == 2:
        chunk = csr_array(chunk)
    if not is_sparse(chunk):
        raise TypeError(
            f"a chunk of {label} is {brief(type(chunk).__name__)}, but the Dask array declares CSR. Correct the graph, "
            "such as X.map_blocks(scipy.sparse.csr_matrix)."
        )
    rows = as_csr(chunk)
    check_promised(rows.dtype, dtype, label)
    stored = int(rows.indptr[-1])  # the vectors may be longer
    values = rows.data[:stored].astype(dtype if np.can_cast(rows.dtype, dtype) else rows.dtype)
    return csr_block(values, rows.indices[:stored].copy(), rows.indptr, int(rows.shape[1]), label)


def computed_rows(chunk: Any, label: str, dtype: np.dtype[Any], *, sparse: bool, there: bool = False) -> Any:
    """Return a computed chunk of a Dask array in the form of its rows; see :func:`sparse_rows`, :func:`dense_rows`."""
    return sparse_rows(chunk, label, dtype) if sparse else dense_rows(chunk, label, dtype, there=there)


def held_csr(X: Any) -> CsrRows:
    """Return sparse rows in memory as a source, after a check of their structure; nothing is copied from CSR.

    Raises
    ------
    TypeError
        For dtypes without principal components.
    ValueError
        For damaged CSR.
    """
    rows = as_csr(X)
    check_dtype(rows.dtype)
    n, ends = int(rows.shape[0]), len(rows.indptr)
    if ends != n + 1:
        raise _damaged("X", f"its indptr has {ends} numbers, but {n} rows have {n + 1}")
    stored = int(rows.indptr[-1])  # the vectors may be longer
    check_csr(rows.indices[:stored], rows.indptr, len(rows.data[:stored]), int(rows.shape[1]), "X")
    vectors = rows.data[:stored], rows.indices[:stored], rows.indptr
    data, indices, indptr = (MemoryRows(one.shape, np.asarray(one)) for one in vectors)
    return CsrRows((n, int(rows.shape[1])), data, indices, indptr, stored_values=stored, format="scipy")


@dataclass(frozen=True, eq=False, repr=False)
class CsrRows(DerivedRows):
    """Rows of a matrix, stored or in memory, in compressed sparse rows: row t is ``data[indptr[t]:indptr[t + 1]]``.

    The columns of these values are ``indices[indptr[t]:indptr[t + 1]]``, in any order; duplicates are added up. A read
    of some rows reads their part of each array, and checks it: no number outside the matrix is ever used as a place.

    Attributes
    ----------
    data, indices, indptr : Source
        The arrays, of one dimension each.
    stored_values : int
        Entries of all rows, zeros among them: the last number of ``indptr``.
    """

    gives_rows: ClassVar[bool] = True

    data: Source
    indices: Source
    indptr: Source
    stored_values: int = field(kw_only=True)
    form: DenseForm = field(default=SPARSE, init=False)

    @property
    def home(self) -> Any:
        """That of the group, also in a store that is only open."""
        home = self.data.home
        return super().home if isinstance(home, str) else type(home)(home.store, home.path.rpartition("/")[0])

    def facts(self) -> dict[str, Any]:
        """The dtype is float32 for float16, which SciPy's sparse matrices do not have."""
        return {"dtype": np.dtype(np.float32) if self.data.dtype == np.float16 else self.data.dtype}

    def row_chunks(self) -> tuple[int, ...]:
        """Return chunks of equally many rows, of 16 to 64 MiB where they are densest; reads ``indptr`` once."""
        return _chunked(self)[0]

    def decoded(self, start: int, stop: int) -> tuple[int, int]:
        """Return as many rows as have, on average, the values of the chunks that are decoded."""
        lo, hi = map(int, self.ends(start, stop)[[0, -1]])
        first, last = zip(*(part.decoded(lo, hi) for part in (self.data, self.indices)), strict=True)
        n, values = self.array_shape[0], max(1, self.stored_values)
        return max(0, start - (lo - min(first)) * n // values), min(n, stop + (max(last) - hi) * n // values)

    @property
    def densest(self) -> float:
        """Stored values of a mean row of the densest chunk."""
        return _chunked(self)[1]

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> csr_array:
        """Read rows as SciPy's CSR in canonical form: columns sorted, duplicates added up; zeros are kept."""
        offsets, d = self.ends(start, stop), self.array_shape[1]
        lo, hi = int(offsets[0]), int(offsets[-1])
        data = values_of(self.data, lo, hi).astype(self.dtype, copy=False)
        rows = csr_block(data, values_of(self.indices, lo, hi), offsets - lo, d, self.label, start)
        return rows if columns == (0, d) else rows[:, slice(*columns)]

    def ends(self, start: int, stop: int) -> Integers:
        """Return ``indptr[start : stop + 1]``, checked: where these rows begin, and where the last of them ends."""
        if start >= stop:
            return np.zeros(1, np.int64)
        parts, end = [], 0
        for first in range(start - start % WINDOW_ROWS, stop, WINDOW_ROWS):
            window = self._window(first)
            lo, hi = max(start - first, 0), min(stop - first, WINDOW_ROWS)
            parts.append(window[lo:hi])
            end = int(window[hi])
        return np.append(np.concatenate(parts) if len(parts) > 1 else parts[0], end)

    def _window(self, first: int) -> Integers:
        """Return ``indptr`` of up to ``WINDOW_ROWS`` rows from ``first`` on, and where their last row ends."""
        last = min(first + WINDOW_ROWS, self.array_shape[0])
        # Elsewhere stamps take as long as these numbers, which are read again.
        local = not self.in_memory and kind_of(self.label) == "disk"
        stamps = self.indptr.stamps(first, last + 1) if local else []
        key = _Window(self.label, tuple(stamps), first, last, self)
        return _held_window(key) if local else _checked_window(key)

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return stamps of what holds those rows, in each of the three arrays."""
        whole = (start, stop) == (0, self.array_shape[0])
        lo, hi = (0, self.stored_values) if whole else tuple(map(int, self.ends(start, stop)[[0, -1]]))
        found: dict[Stamp, None] = {}
        for name, bounds in {"indptr": (start, stop + 1), "indices": (lo, hi), "data": (lo, hi)}.items():
            part: Source = getattr(self, name)
            for key, size, changed in part.stamps(*bounds):
                found[key if os.path.isabs(key) else f"{name}/{key}", size, changed] = None
        return list(found)

    @property
    def parts(self) -> tuple[Source, ...]:
        return self.data, self.indices, self.indptr

    def details(self) -> dict[str, Any]:
        """Return what the three arrays say of themselves, and the number of stored values."""
        found = (part.details() for part in self.parts)
        return {"stored_values": self.stored_values, **dict(zip(SPARSE_PARTS, found, strict=True))}


def values_of(part: Source, start: int, stop: int) -> Array:
    """Read a range of an array of one dimension."""
    if start == stop:
        return np.empty(0, part.dtype)
    values: Array = part.read_block(start, stop, (0, 1))
    return values.reshape(-1)


@dataclass(frozen=True)
class _Window:
    """Rows of an ``indptr`` in one state of its files."""

    label: str
    stamps: tuple[Stamp, ...]
    first: int
    last: int
    rows: CsrRows = field(compare=False)


def _checked_window(window: _Window) -> Integers:
    """Read a part of ``indptr``; raises as :func:`check_ends`."""
    rows, first = window.rows, window.first
    stored = values_of(rows.indptr, first, window.last + 1)
    check_ends(stored, rows.data.array_shape[0], rows.label, first, whole=first == 0)
    return stored.astype(np.int64, copy=False)


_held_window = lru_cache(maxsize=WINDOWS_HELD)(_checked_window)


def _chunked(rows: CsrRows) -> tuple[tuple[int, ...], float]:
    """Return what :func:`_row_chunks` does; nothing that is known of a matrix in memory keeps it there."""
    return _row_chunks(rows) if rows.in_memory else _known_chunks(rows)


def _row_chunks(rows: CsrRows) -> tuple[tuple[int, ...], float]:
    """Cut rows into chunks of one size, each of at most about two pieces: 16 MiB, or up to 64 MiB if chunks are large.

    And return the stored values of a mean row of the densest chunk. A piece has four chunks of the arrays, or one if
    they are larger than it, because the chunks where it begins and ends are decoded for its neighbours too. The size is
    that of the densest piece, so that what is planned for chunks of any density is what they take. Rows without values
    count too: no chunk is longer than ``WINDOW_ROWS``.
    """
    value_bytes = rows.data.dtype.itemsize + rows.indices.dtype.itemsize  # with its column
    wanted = max(1, NATIVE_BYTES // value_bytes)
    decoded = max(part.decoded_rows or 1 for part in (rows.data, rows.indices))
    piece = max(wanted, min(4 * decoded, 4 * wanted), decoded)
    n = rows.array_shape[0]
    fewest = min(n, WINDOW_ROWS)
    for first in range(0, n, WINDOW_ROWS):
        window = rows._window(first)
        starts = np.arange(int(window[0]), int(window[-1]) - piece + 1, piece)
        counts = np.searchsorted(window, starts + piece) - np.searchsorted(window, starts, side="right") + 1
        fewest = max(1, int(counts.min(initial=fewest)))
    chunks = regular_chunks(n, fewest)
    edges = np.concatenate([[0], np.cumsum(chunks)])
    ends = np.zeros(len(edges), np.int64)
    for first in range(0, n, WINDOW_ROWS):
        here = (edges >= first) & (edges <= first + WINDOW_ROWS)
        ends[here] = rows._window(first)[edges[here] - first]
    return chunks, float((np.diff(ends) / np.maximum(chunks, 1)).max(initial=0.0))


_known_chunks = lru_cache(maxsize=16)(_row_chunks)


@dataclass(frozen=True)
class SparseGroup:
    """What a group says of its sparse matrix, beside the three arrays.

    Attributes
    ----------
    path, name : str
        File or store, and the group in it; the name is empty for the file itself.
    form : str
        Format, such as "csr" or "csc"; empty if it is not stated.
    shape : tuple of int, or None
        None if it is not stated.
    by_columns : bool
        Whether samples are the columns of that shape. Files of 10x Genomics are (genes, cells), compressed by cell.
    """

    path: str
    name: str
    form: str
    shape: tuple[int, ...] | None
    by_columns: bool = False

    @classmethod
    def of(
        cls, path: str, name: str, stated: Mapping[str, Any], shape: Source | None, members: Collection[str]
    ) -> SparseGroup:
        """Describe a group by its attributes, its array "shape" if it has one, and the names of its members."""
        form = _text(stated.get("encoding-type", ""))
        sizes = np.asarray(stated.get("shape", ())).ravel()
        if shape is not None and not sizes.size and len(shape.array_shape) == 1:
            sizes = values_of(shape, 0, min(shape.array_shape[0], MAX_SHAPE))
        form = form.removesuffix("_matrix").removesuffix("_array")
        known = tuple(map(int, sizes)) if sizes.dtype.kind in "iu" else None
        return cls(path, name, form, known, "barcodes" in members)

    @property
    def label(self) -> str:
        """Location of the matrix, for messages."""
        return f"{self.path}:{self.name}" if self.name else self.path

    def rows(self, parts: Mapping[str, Source]) -> CsrRows:
        """Return the rows of the three arrays of the group; reads the last number of ``indptr``.

        Raises
        ------
        TypeError
            For compressed columns and other formats, and for places that are not integers.
        ValueError
            If the arrays do not fit the shape, or one another.
        """
        if self.form not in ("", "csr"):
            columns = "compressed columns (csc), where no row can be read without reading all"
            raise TypeError(
                f"{self.label} is a sparse matrix of shape {brief(self.shape)} in "
                f"{columns if self.form == 'csc' else f'the format {brief(self.form)}'}; compressed rows (csr) were "
                f"expected. Write it again by row: {_by_anndata(self.path, self.name)}."
            )
        lost = [name for name in SPARSE_PARTS if name not in parts]
        if lost:
            expected = ", ".join(SPARSE_PARTS)
            raise _damaged(self.label, f"a sparse matrix without {' and '.join(lost)}; {expected} were expected")
        for name in SPARSE_PARTS:
            shape, dtype = parts[name].array_shape, parts[name].dtype
            if len(shape) != 1:
                raise ValueError(f"{self.label}: {name} has shape {brief(shape)}; one dimension was expected.")
            if name != "data" and dtype.kind not in "iu":
                raise TypeError(
                    f"{self.label}: {name} has dtype {dtype}; integers were expected, because they are positions. "
                    "Write the matrix again by SciPy or AnnData."
                )
        held, places, starts = (parts[name].array_shape[0] for name in SPARSE_PARTS)
        n, d = self._shape(starts)
        if held != places:
            raise _damaged(self.label, f"{held:,} values in data, but {places:,} columns in indices")
        check_decoded(
            parts["data"].attributes, f"{self.label}/data", "Decode the values, and write them as a sparse matrix again"
        )
        last = int(values_of(parts["indptr"], n, n + 1)[0])
        if not 0 <= last <= held:
            raise _damaged(self.label, f"indptr ends at {last:,}, but there are {held:,} stored values")
        data, indices, indptr = (parts[name] for name in SPARSE_PARTS)
        place: dict[str, Any] = {"path": self.path, "member": self.name, "format": data.format}
        return CsrRows((n, d), data, indices, indptr, stored_values=last, **place)

    def _shape(self, starts: int) -> tuple[int, int]:
        """Return (n, d), which ``indptr`` of so many numbers must fit."""
        if self.shape is None or len(self.shape) != 2 or min(self.shape) < 0:
            raise ValueError(
                f"{self.label} has the arrays of a sparse matrix, but its shape is "
                f"{'not stated' if self.shape is None else brief(self.shape)}; two sizes were "
                'expected, as an attribute "shape". Write it again with AnnData.'
            )
        n, d = self.shape[::-1] if self.by_columns else self.shape
        if not self.form and not self.by_columns:
            raise ValueError(
                f"{self.label} is a sparse matrix of shape {n:,} x {d:,}, and nothing says whether it is compressed by "
                'row or by column. Set the attribute "encoding-type" of the group to "csr_matrix" if it is by row.'
            )
        if starts != n + 1:
            raise _damaged(
                self.label, f"of shape {n:,} x {d:,}, its indptr must have {n + 1:,} numbers, but it has {starts:,}"
            )
        return n, d


def _by_anndata(path: str, name: str) -> str:
    """Return the lines that write a matrix of AnnData again by row."""
    kind = "zarr" if path.endswith(".zarr") else "h5ad"
    matrix = f"adata.layers[{name.removeprefix('layers/')!r}]" if name.startswith("layers/") else "adata.X"
    read, write = f"adata = anndata.read_{kind}({path!r})", f"adata.write_{kind}('rows.{kind}')"
    return f"{read}; {matrix} = {matrix}.tocsr(); {write}"


def _text(value: object) -> str:
    """Return an attribute as text: HDF5 may give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
