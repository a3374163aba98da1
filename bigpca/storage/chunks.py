"""The worker's side of an output: whole chunks of rows, written by any process, each with a record.

And which dtypes can be stored, and the metadata of arrays.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigpca.arrays import Array
from bigpca.errors import CorruptedChunkError, brief

LEVEL = 1  # of zstd; scores and features hardly compress further
First = Callable[[], object] | None  # what is stored before a chunk, such as the keys of its rows


@dataclass(frozen=True)
class ChunkRecord:
    """The record of one written chunk: CRC-32, size, and its file's time stamp and fsync, or its object's ETag."""

    index: int
    crc32: int
    size: int
    modified_ns: int = 0
    durable: bool = True
    etag: str = ""


@dataclass(frozen=True)
class ChunkWriter(ABC):
    """Write whole row chunks of one Zarr v3 array from any process; small, and safe to pickle into tasks.

    A chunk that is written twice has equal bytes.

    Attributes
    ----------
    store : str
        Directory of the unfinished array, or the URL of its prefix.
    shape : tuple of int
        Rows first; of an array that grows, more rows than there will be.
    dtype : str
        Little-endian, such as ``"<f4"``.
    chunk_rows : int
        Rows per chunk.
    """

    store: str
    shape: tuple[int, ...]
    dtype: str
    chunk_rows: int

    @property
    def n_chunks(self) -> int:
        """Number of row chunks."""
        return -(-self.shape[0] // self.chunk_rows)

    def row_range(self, index: int) -> tuple[int, int]:
        """Return the rows [start, stop) of one chunk."""
        return index * self.chunk_rows, min((index + 1) * self.chunk_rows, self.shape[0])

    def chunk_key(self, index: int) -> str:
        """Return the Zarr key of one chunk."""
        return "/".join(("c", str(index), *("0" for _ in self.shape[1:])))

    def write(self, index: int, rows: Array) -> ChunkRecord:
        """Write one whole chunk and its record; memory: one chunk and its compressed bytes.

        Parameters
        ----------
        index : int
            Which chunk.
        rows : ndarray of shape (stop - start, ...)
            All its rows. Another dtype is cast if that loses only precision, not range.

        Returns
        -------
        ChunkRecord

        Raises
        ------
        ValueError
            If the shape is not the chunk's, or a value overflows the output's dtype.
        TypeError
            If the dtype cannot be cast to the output's (floats to integers, complex, objects).
        OSError
            If the disk is full, or files may not be that large: states the bytes required and free, and where.
        FileNotFoundError
            If the unfinished output is gone: finished, or started again by another run.
        """
        return self.begin(index, rows).result()

    def begin(self, index: int, rows: Array, *, first: First = None) -> Future[ChunkRecord]:
        """Encode a chunk and begin to write it, as :meth:`write`, once ``first`` is done; rows may be overwritten."""
        from numcodecs.zstd import Zstd  # with its libraries: whoever only reads an array has no use for it

        block = self._block(index, rows)
        # A new Zstd per call: the codec has no state worth sharing between threads.
        return self._begin(index, bytes(Zstd(level=LEVEL, checksum=True).encode(block)), first)

    def chunks(self) -> Iterator[tuple[int, Array]]:
        """Iterate over (first row, rows) of all chunks in order; one is in memory at a time."""
        for index, data in enumerate(self._stored()):
            start, stop = self.row_range(index)
            yield start, self.decoded(index, data)[: stop - start]

    def decoded(self, index: int, data: bytes) -> Array:
        """Return the rows of a whole chunk; the frame's checksum is checked.

        Raises
        ------
        CorruptedChunkError
        """
        from numcodecs.zstd import Zstd  # as in begin

        shape = (self.chunk_rows, *self.shape[1:])
        try:
            return np.frombuffer(Zstd().decode(data), self.dtype).reshape(shape)
        except (ValueError, RuntimeError) as error:
            raise CorruptedChunkError(
                f"{self.store}/{self.chunk_key(index)} cannot be decoded ({brief(error)}); a chunk of the shape "
                f"{shape} was expected. Delete it, and run again."
            ) from error

    @property
    def nbytes(self) -> int:
        """Bytes of a decoded chunk."""
        return self.chunk_rows * math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize

    @abstractmethod
    def _stored(self) -> Iterator[bytes]:
        """Iterate over the bytes of all chunks in order."""

    @abstractmethod
    def _begin(self, index: int, data: bytes, first: First) -> Future[ChunkRecord]:
        """Begin to store the encoded chunk, once ``first`` is done."""

    def _block(self, index: int, rows: Array) -> Array:
        """Check and cast the rows, and pad the last chunk with the fill value to the full size that Zarr stores."""
        if not 0 <= index < self.n_chunks:
            raise ValueError(f"chunk {index} was given, but the output has chunks 0 to {self.n_chunks - 1}.")
        start, stop = self.row_range(index)
        if rows.shape != (stop - start, *self.shape[1:]):
            raise ValueError(
                f"chunk {index} has shape {rows.shape}, but rows {start} to {stop} of the output are "
                f"{(stop - start, *self.shape[1:])}. Write whole chunks."
            )
        dtype = np.dtype(self.dtype)
        if rows.dtype.kind not in "fiub" or not np.can_cast(rows.dtype, dtype, "same_kind"):
            raise TypeError(
                f"chunk {index} has dtype {rows.dtype}, which an output of dtype {dtype.name} cannot hold. "
                "Convert the rows, or choose another output dtype."
            )
        rows = np.ascontiguousarray(fitted(rows, dtype, start))
        if stop - start == self.chunk_rows:
            return rows
        block = np.full((self.chunk_rows, *self.shape[1:]), fill_value(rows.dtype), dtype=rows.dtype)
        block[: stop - start] = rows
        return block


def fill_value(dtype: np.dtype[Any]) -> float | int:
    """Return the fill value of chunks that were never written: NaN for floats, 0 otherwise."""
    return float("nan") if dtype.kind == "f" else 0


def array_metadata(
    shape: Sequence[int], dtype: np.dtype[Any], chunks: Sequence[int], fill: Any, level: int, attributes: Any
) -> dict[str, Any]:
    """Return the metadata of an array of zstd chunks with checksums as Zarr writes them, which takes milliseconds."""
    order = {"configuration": {"endian": "little"}} if dtype.itemsize > 1 else {}
    return {
        "shape": list(shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN" if fill != fill else dtype.type(fill).item(),
        "codecs": [{"name": "bytes", **order}, {"name": "zstd", "configuration": {"level": level, "checksum": True}}],
        "attributes": attributes,
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def fitted(rows: Array, dtype: np.dtype[Any], first: int) -> Array:
    """Return rows in a dtype that may lose precision, not range; ``first`` is the number of the first row.

    Raises
    ------
    ValueError
        If a finite value overflows it, or is not an integer where integers are stored; names the first row.
    """
    if rows.dtype == dtype:
        return rows
    with np.errstate(over="ignore", invalid="ignore"):  # of NaN in integers, too
        cast: Array = rows.astype(dtype)
    changed = np.isinf(cast) & np.isfinite(rows) if dtype.kind == "f" else cast != rows
    if changed.any():
        place = tuple(np.argwhere(changed)[0])
        most = float(np.finfo(dtype).max if dtype.kind == "f" else np.iinfo(dtype).max if dtype.kind in "iu" else 1)
        raise ValueError(
            f"row {first + place[0]:,} has {rows[place]}, which {dtype.name} cannot hold: its largest number is "
            f"{most:.6g}. Choose a wider dtype."
        )
    return cast


def is_storable(dtype: np.dtype[Any]) -> bool:
    """Whether every Zarr reader supports the dtype: bool, integers, floats up to 64 bits; nothing that needs pickle."""
    return dtype.kind in "fiub" and dtype.itemsize <= 8
