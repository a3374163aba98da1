"""Sparse rows: recognised, checked, brought to one form of CSR, and read from memory."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca.data.checks import NATIVE_BYTES, check_dtype, regular_chunks
from bigpca.errors import brief

INDEX_BYTES = 4  # of a stored value's column, in the blocks that tasks read
CHECKED = 1 << 22  # indices that are checked at a time


def is_csr(X: Any) -> bool:
    """Whether this is a matrix or array of SciPy in CSR form."""
    return bool(sp.issparse(X)) and X.format == "csr"


def is_sparse(X: Any) -> bool:
    """Whether these are sparse rows: CSR or COO of SciPy, or an array of ``sparse`` that converts itself to CSR."""
    if sp.issparse(X):
        return X.format in ("csr", "coo") and X.ndim == 2
    return type(X).__module__.partition(".")[0] == "sparse" and hasattr(X, "tocsr") and X.ndim == 2


def as_csr(X: Any) -> Any:
    """Return sparse rows as a CSR matrix or array of SciPy; one that is CSR is returned as it is."""
    return X if is_csr(X) else X.tocsr()


def csr_meta(dtype: np.dtype[Any]) -> Any:
    """Return the ``meta`` of Dask arrays whose chunks are CSR: ``csr_matrix``, as in anndata and scanpy."""
    return sp.csr_matrix((0, 0), dtype=dtype)


def stacked(parts: Sequence[Any]) -> Any:
    """Return blocks of rows, all dense or all CSR, as one block; a single one as it is."""
    if len(parts) == 1:
        return parts[0]
    return csr_array(sp.vstack(parts, format="csr")) if sp.issparse(parts[0]) else np.concatenate(parts)


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


def with_values(rows: csr_array, values: NDArray[Any]) -> csr_array:
    """Return CSR with other stored values in the same places."""
    return csr_array((values, rows.indices, rows.indptr), rows.shape)


def csr_block(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], width: int, label: str, first_row: int = 0
) -> csr_array:
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
            f"{label}: row {row} has several values in column {int(block.indices[place])}, whose sum {block.dtype} "
            "cannot hold. Store the values in a larger dtype, such as float32."
        )


def check_csr(
    indices: NDArray[Any], indptr: NDArray[Any], stored: int, width: int, label: str, first_row: int = 0
) -> None:
    """Reject vectors of CSR that contradict each other, which SciPy would read beyond their ends.

    Raises
    ------
    ValueError
        Names the row or the numbers that are wrong.
    """
    if len(indptr) == 0 or int(indptr[0]) != 0 or int(indptr[-1]) != stored or len(indices) != stored:
        ends = f"{int(indptr[0])} to {int(indptr[-1])}" if len(indptr) else "nothing"
        raise ValueError(
            f"{label}: its indptr counts values from {ends}, but there are {stored} values and {len(indices)} indices. "
            "The CSR vectors are damaged; write them again."
        )
    falling = np.flatnonzero(indptr[1:] < indptr[:-1])
    if len(falling):
        row = int(falling[0])
        raise ValueError(
            f"{label}: its indptr falls from {int(indptr[row])} to {int(indptr[row + 1])} at row {first_row + row}; it "
            "must never fall. The CSR vectors are damaged; write them again."
        )
    for start in range(0, stored, CHECKED):
        part = indices[start : start + CHECKED]
        if int(part.min()) < 0 or int(part.max()) >= width:
            place = start + int(np.flatnonzero((part < 0) | (part >= width))[0])
            row = first_row + int(np.searchsorted(indptr, place, side="right")) - 1
            raise ValueError(
                f"{label}: row {row} has a value in column {int(indices[place])}, but there are {width} columns, from "
                "0. The CSR vectors are damaged; write them again."
            )


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
    if not np.can_cast(check_dtype(rows.dtype), dtype, "same_kind"):
        raise TypeError(
            f"a chunk of {label} has dtype {rows.dtype}, but the Dask array says {dtype}. Chunks of that dtype were "
            f"expected. Correct the dtype, such as X.map_blocks(..., dtype={rows.dtype.name!r})."
        )
    stored = int(rows.indptr[-1])  # the vectors may be longer
    values = rows.data[:stored].astype(dtype if np.can_cast(rows.dtype, dtype) else rows.dtype)
    return csr_block(values, rows.indices[:stored].copy(), rows.indptr, int(rows.shape[1]), label)


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows of a CSR matrix in memory; pickled with its values.

    Attributes
    ----------
    matrix : scipy.sparse.csr_array or csr_matrix
    """

    matrix: Any

    @property
    def array_shape(self) -> tuple[int, ...]:
        """Shape of the matrix."""
        return tuple(map(int, self.matrix.shape))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype in native byte order."""
        return check_dtype(self.matrix.dtype)

    @property
    def stored_values(self) -> int:
        """Number of stored values."""
        return int(self.matrix.indptr[-1])

    def row_chunks(self) -> tuple[int, ...]:
        """Chunks of equally many rows, of about 16 MiB of stored values where they are densest."""
        piece = NATIVE_BYTES // (self.dtype.itemsize + INDEX_BYTES)
        n = self.array_shape[0]
        return regular_chunks(n, fewest_rows(self.matrix.indptr, piece, min(n, NATIVE_BYTES // INDEX_BYTES)))

    @property
    def densest(self) -> float:
        """Stored values of a mean row of the densest chunk."""
        chunks = np.array(self.row_chunks())
        ends = np.concatenate([[0], np.cumsum(chunks)])
        return densest_rows(np.asarray(self.matrix.indptr)[ends], chunks)

    def read(self, start: int, stop: int, columns: tuple[int, int]) -> csr_array:
        """Copy rows, in canonical form."""
        found, width = self.matrix, self.array_shape[1]
        low, high = int(found.indptr[start]), int(found.indptr[stop])
        indptr = found.indptr[start : stop + 1] - low
        data, indices = found.data[low:high].astype(self.dtype), found.indices[low:high].copy()
        block = csr_block(data, indices, indptr, width, "the sparse rows in memory", start)
        return block if columns == (0, width) else block[:, slice(*columns)]

    def stamps(self, start: int, stop: int) -> list[tuple[str, int, int | str | None]]:
        """Return the CRC-32 of those rows in place of a file's mtime."""
        rows = self.read(start, stop, (0, self.array_shape[1]))
        return [("memory", rows.data.nbytes, _crc(rows, 0))]

    def describe(self) -> dict[str, Any]:
        """Return the CRC-32 of all rows, in canonical form."""
        crc, start, width = 0, 0, self.array_shape[1]
        for rows in self.row_chunks():
            crc = _crc(self.read(start, start + rows, (0, width)), crc)
            start += rows
        return {"crc32": crc, "stored_values": self.stored_values}


def fewest_rows(indptr: NDArray[Any], piece: int, most: int) -> int:
    """Return the fewest rows that hold a piece of so many values, where rows are densest; at most ``most``."""
    starts = np.arange(int(indptr[0]), int(indptr[-1]) - piece + 1, piece)
    counts = np.searchsorted(indptr, starts + piece) - np.searchsorted(indptr, starts, side="right") + 1
    return max(1, int(counts.min(initial=most)))


def densest_rows(ends: NDArray[Any], chunks: NDArray[Any]) -> float:
    """Return the stored values of a mean row of the densest chunk, from where the values of chunks end."""
    return float((np.diff(ends) / np.maximum(chunks, 1)).max(initial=0.0))


def stored_row_bytes(n: int, stored_values: float, itemsize: int) -> float:
    """Return the bytes of a mean row as CSR: its values, their columns, and its end."""
    return stored_values * (itemsize + INDEX_BYTES) / max(1, n) + INDEX_BYTES


def held_csr(X: Any) -> SparseRows:
    """Return sparse rows in memory as a storage, after a check of their structure; nothing is copied from CSR.

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
        raise ValueError(
            f"X: its indptr has {ends} numbers, but {n} rows have {n + 1}. The CSR vectors are damaged; write them "
            "again."
        )
    stored = int(rows.indptr[-1])  # the vectors may be longer
    check_csr(rows.indices[:stored], rows.indptr, len(rows.data[:stored]), int(rows.shape[1]), "X")
    return SparseRows(rows)


def _crc(rows: csr_array, crc: int) -> int:
    for vector in (np.diff(rows.indptr).astype(np.int64), rows.indices, rows.data):
        crc = zlib.crc32(np.ascontiguousarray(vector).data, crc)
    return crc
