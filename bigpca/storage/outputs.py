"""An output: whole chunks of rows, written by any process; what becomes of them; and the side of the driver.

``ChunkWriter`` is what tasks get. A ``Form`` is what a complete output is, a Zarr array or a table in one file. An
``Output`` is resumable, and invisible until complete; :mod:`bigpca.storage.carriers` makes it, on a disk or at an
object store.
"""

from __future__ import annotations

import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array
from bigpca.errors import CorruptedChunkError, OutputWriteError, brief
from bigpca.storage.files import public, to_json
from bigpca.storage.grammar import KEYS, PROVENANCE, Kind
from bigpca.storage.lock import RunLock

LEVEL = 1  # of zstd; scores and features hardly compress further
FORMAT = (1, 0)
GROWING = 2**62  # rows of an output whose number of rows is set before its last chunk is written
KEY_COLUMN = "key"  # the same in a table
KEYS_PER_CHUNK = 2**16  # of the Zarr array that holds them
MAX_PROVENANCE_BYTES = 2**20  # of its JSON, in a store or a table
TABLE_MARK = b"bigpca"  # the provenance, in the metadata of a Parquet table
STORES = (".zarr",)
# What a reader expects of these is not written; any other suffix is part of a name, as in pca_k0.5.
_FOREIGN = """
.7z .arrow .avro .bin .bmp .bz2 .csv .db .doc .docx .dta .feather .fits .gif .gz .h5 .h5ad .hdf .hdf5 .ipc
.ipynb .joblib .jpeg .jpg .json .jsonl .loom .mat .md .nc .nc4 .odp .ods .odt .orc .pdf .pickle .pkl .png
.ppt .pptx .pt .pth .rda .rds .rst .rtf .safetensors .sqlite .svg .tar .tex .tfrecord .tif .tiff .tsv .txt
.webp .xls .xlsx .xml .yaml .yml .zip
"""
FOREIGN = tuple(_FOREIGN.split())
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


@dataclass(frozen=True, eq=False)
class Annotations:
    """Members of a store that change none of its numbers.

    Attributes
    ----------
    keys : ndarray of shape (n,), str, or None
    provenance : mapping of JSON values, or None
    """

    keys: NDArray[np.str_] | None = None
    provenance: Mapping[str, Any] | None = None

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield both as files of a store: (key, bytes)."""
        if self.keys is not None:
            yield from _files_of_keys(self.keys)
        if self.provenance is not None:
            attributes = to_json(dict(self.provenance), PROVENANCE)
            document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
            yield f"{PROVENANCE}/zarr.json", json.dumps(document).encode()


NOTHING = Annotations()


def _files_of_keys(keys: NDArray[np.str_]) -> Iterator[tuple[str, bytes]]:
    import zarr  # heavy: only what writes a store loads it
    from zarr.codecs import ZstdCodec

    held = dict[str, Any]()
    stored = zarr.create_array(
        zarr.storage.MemoryStore(held),
        shape=keys.shape,
        dtype=str,
        chunks=(max(1, min(len(keys), KEYS_PER_CHUNK)),),
        compressors=[ZstdCodec(level=3, checksum=True)],
        filters=None,
        config={"write_empty_chunks": True},
    )
    for start in range(0, len(keys), KEYS_PER_CHUNK):
        stored[start : start + KEYS_PER_CHUNK] = keys[start : start + KEYS_PER_CHUNK]
    for key, data in held.items():
        yield f"{KEYS}/{key}", data.to_bytes()


@dataclass(frozen=True)
class Form:
    """The form of a finished output: here the chunks as they are, one Zarr array with a manifest."""

    kind: ClassVar[Kind] = "array"

    def commit_bytes(self, chunk_bytes: int) -> int:
        """Return the memory that publishing takes, for chunks of that size."""
        return 0


STORE = Form()


def with_manifest(
    metadata: dict[str, Any], writer: ChunkWriter, finished: Mapping[int, ChunkRecord], annotations: Annotations
) -> dict[str, Any]:
    """Return the metadata of a complete array: those of the unfinished one, and the CRC-32 of every chunk."""
    chunks = {writer.chunk_key(index): finished[index].crc32 for index in range(writer.n_chunks)}
    metadata["attributes"]["bigpca_manifest"] = {"algorithm": "crc32", "chunks": chunks}
    metadata["attributes"]["bigpca"]["kind"] = "array"
    metadata["shape"] = list(writer.shape)
    return metadata


@dataclass(frozen=True)
class TableForm(Form, ABC):
    """The chunks are copied in order, one at a time, by the process that commits, into one file that is then renamed.

    Attributes
    ----------
    names : tuple of str
        Of the k columns.
    """

    kind: ClassVar[Kind] = "table"

    names: tuple[str, ...]

    @abstractmethod
    def write(self, path: Path, writer: ChunkWriter, annotations: Annotations) -> None:
        """Write the whole file."""

    def commit_bytes(self, chunk_bytes: int) -> int:
        """A chunk as stored, decoded, in columns, and encoded."""
        return 4 * chunk_bytes


@dataclass(frozen=True)
class NpyForm(TableForm):
    """A ``.npy`` file of shape (n, k), which has no room for keys and provenance."""

    def write(self, path: Path, writer: ChunkWriter, annotations: Annotations) -> None:
        """Write header and rows."""
        descr = np.lib.format.dtype_to_descr(np.dtype(writer.dtype))
        header = {"descr": descr, "fortran_order": False, "shape": writer.shape}
        with open(path, "xb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for _, rows in writer.chunks():
                file.write(np.ascontiguousarray(rows).data)


@dataclass(frozen=True)
class ParquetForm(TableForm):
    """A Parquet file of one column per name, after ``key`` where rows have keys; a row group per chunk.

    Provenance is in the metadata of the file under ``bigpca``.
    """

    def write(self, path: Path, writer: ChunkWriter, annotations: Annotations) -> None:
        """Write row groups and footer."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        fields = [pa.field(name, pa.from_numpy_dtype(np.dtype(writer.dtype)), nullable=False) for name in self.names]
        if annotations.keys is not None:
            fields.insert(0, pa.field(KEY_COLUMN, pa.string(), nullable=False))
        metadata = {TABLE_MARK: json.dumps(annotations.provenance).encode()}
        schema = pa.schema(fields, metadata)
        with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False, write_page_checksum=True) as file:
            for start, rows in writer.chunks():
                columns = [pa.array(np.ascontiguousarray(column)) for column in rows.T]
                if annotations.keys is not None:
                    columns.insert(0, pa.array(annotations.keys[start : start + len(rows)], pa.string()))
                batch = pa.Table.from_arrays(columns, schema=schema)
                file.write_table(batch, row_group_size=max(1, len(rows)))


TABLES: dict[str, type[TableForm]] = {".npy": NpyForm, ".parquet": ParquetForm}
SCORES = (*STORES, *TABLES)
WRITTEN = (*SCORES, ".htm", ".html", ".npz", ".onnx")  # somewhere


def check_extension(path: str | os.PathLike[str], *accepted: str) -> None:
    """Reject a path whose extension is that of a format which is not written there.

    Parameters
    ----------
    path : path
    accepted : str
        The extensions of what is written.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_extension("scores.parquet", *SCORES)
    >>> check_extension("pca_k0.5", *STORES)
    >>> check_extension("scores.csv", *SCORES)
    Traceback (most recent call last):
    ValueError: scores.csv: .csv cannot be written here. Choose .zarr, .npy or .parquet.
    """
    suffix = Path(path).suffix.lower()
    if suffix in (*FOREIGN, *WRITTEN) and suffix not in accepted:
        *others, last = accepted
        choices = f"{', '.join(others)} or {last}" if others else last
        raise ValueError(f"{brief(public(os.fspath(path)))}: {suffix} cannot be written here. Choose {choices}.")


def form_of(path: str | os.PathLike[str], names: tuple[str, ...]) -> Form:
    """Return the form that a path's extension asks for: ``.npy`` and ``.parquet`` are tables, all else is a Zarr array.

    >>> form_of("scores.parquet", ("pca0",)).kind, form_of("scores.zarr", ("pca0",)).kind
    ('table', 'array')
    """
    check_extension(path, *SCORES)
    table = TABLES.get(Path(path).suffix.lower())
    return STORE if table is None else table(names)


@dataclass(frozen=True)
class OutputLayout:
    """What must agree for a partial output to be resumed."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    identity: str

    @property
    def fields(self) -> tuple[tuple[int, ...], str, int]:
        """Shape, dtype and rows per chunk, as writers and claims have them."""
        return self.shape, self.dtype.str, self.chunk_rows

    @property
    def grows(self) -> bool:
        """Whether the number of rows is set at the end; the metadata have 0 until then."""
        return self.shape[0] == GROWING


def rows_at_end(data: bytes, where: str, remedy: str) -> int:
    """Return the number of rows that a run recorded at the end of an output that grows, and was killed there.

    Raises
    ------
    OutputWriteError
        If it is none.
    """
    if not re.fullmatch(rb"\d{1,18}", data):
        raise OutputWriteError(
            f"{where} holds {brief(data)}; a number of rows was expected: it is damaged or forged. {remedy}"
        )
    return int(data)


def partial_document(layout: OutputLayout) -> dict[str, Any]:
    """Return the metadata of an unfinished array."""
    shape = (0, *layout.shape[1:]) if layout.grows else layout.shape
    chunks = (layout.chunk_rows, *layout.shape[1:])
    attributes = {"kind": "partial array", "format": list(FORMAT), "identity": layout.identity}
    return array_metadata(shape, layout.dtype, chunks, fill_value(layout.dtype), LEVEL, {"bigpca": attributes})


@dataclass(frozen=True)
class Reserved:
    """Where an output will be, and what is known of it before the output is.

    Attributes
    ----------
    target : path, URL, store or ObjectStore
    layout : OutputLayout or None
        Of the unfinished output there, which is to be continued.
    lock : RunLock or None
        On a disk: held until the output is finished or aborted.
    """

    target: Any
    layout: OutputLayout | None = None
    lock: RunLock | None = None


class Output(ABC):
    """An output being written: pass :attr:`writer` to the tasks, then :meth:`finish`.

    Made by :func:`bigpca.storage.carriers.create_output`.

    Leaving its context without :meth:`finish` aborts it, and it can be resumed.

    Attributes
    ----------
    path : Path, or str
        Path of the finished array or table; URL without secrets.
    writer : ChunkWriter
        Small and picklable; ``writer.write(index, rows)`` in any process.
    shape : tuple of int
    dtype : dtype
    n_chunks : int
    place : bigpca.storage.places.ObjectStore or None
        The prefix of its objects; None on a disk.
    joins : bool
        Whether chunks of runs of equal identity are its own.
    published : bool
        Whether a killed run of equal identity had published it, and had only to remove its journal.
    """

    place: Any = None
    published: bool = False

    def __init__(self, path: Path | str, writer: ChunkWriter, *, joins: bool = True) -> None:
        self.path, self.writer, self.joins = path, writer, joins
        self.shape = writer.shape
        self.dtype = np.dtype(writer.dtype)
        self.n_chunks = writer.n_chunks

    def leading(self) -> int:
        """Return how many chunks are finished before the first one that is not."""
        finished = self._finished()
        return next(index for index in range(len(finished) + 1) if index not in finished)

    def set_rows(self, n: int) -> bool:
        """Set the number of rows of an output that grows, before its last chunk is written and it is finished.

        False if an interrupted :meth:`finish` has made it visible already.
        """
        self._check_open()
        hidden = not self._is_visible()
        if hidden:
            self.keep("rows", str(n).encode())
        self.writer = replace(self.writer, shape=(n, *self.shape[1:]))
        self.shape, self.n_chunks = self.writer.shape, self.writer.n_chunks
        return hidden

    def pending(self) -> list[int]:
        """List the chunks still to be written, in order."""
        finished = self._finished()
        return [index for index in range(self.n_chunks) if index not in finished]

    def finish(self, annotations: Annotations = NOTHING) -> None:
        """Make the output visible: check that it is complete, give it its form, make it durable, publish it.

        A Zarr array's attributes get ``bigpca_manifest`` (CRC-32 of every stored chunk) and ``bigpca`` (kind, format,
        identity). Other runs may then write to the path.

        Parameters
        ----------
        annotations : Annotations
            Row keys, provenance, and what its numbers are.

        Raises
        ------
        RuntimeError
            If chunks are missing: states how many, and the first ones. The output stays open.
        OutputExistsError
            If something appeared at ``path`` meanwhile and ``overwrite`` is False.
        """
        self._check_open()
        if not self._is_visible():
            finished = self._finished()
            missing = [index for index in range(self.n_chunks) if index not in finished]
            if missing:
                raise RuntimeError(
                    f"{len(missing)} of {self.n_chunks} chunks of {self.path} are not written (first: {missing[:10]}). "
                    "Write them, or abort and rerun: finished chunks are kept."
                )
            self._publish(finished, annotations)
        self._close()

    @abstractmethod
    def abort(self) -> None:
        """Let other runs write, and keep finished chunks for the next one; remove the output if there are none.

        A no-op after :meth:`finish`.
        """

    @abstractmethod
    def keep(self, name: str, data: bytes) -> None:
        """Store a small record beside the chunks of the unfinished output."""

    @abstractmethod
    def kept(self, name: str) -> bytes | None:
        """Return a record that :meth:`keep` stored, or None."""

    def note(self, record: ChunkRecord) -> None:  # noqa: B027  # an output on a disk has nothing to do
        """Take note of a chunk that a task or this process has written."""

    @abstractmethod
    def _finished(self) -> dict[int, ChunkRecord]:
        """Return the records of the chunks that are written."""

    @abstractmethod
    def _is_visible(self) -> bool:
        """Whether the output was published by this run, or one of the same identity."""

    @abstractmethod
    def _publish(self, finished: dict[int, ChunkRecord], annotations: Annotations) -> None:
        """Make the chunks visible at the path, all at once."""

    @abstractmethod
    def _close(self) -> None:
        """Remove what is of no use once the output is visible, and let other runs write."""

    @abstractmethod
    def _is_open(self) -> bool:
        """Whether it is neither finished nor aborted."""

    def _check_open(self) -> None:
        if not self._is_open():
            raise RuntimeError(f"the output {self.path} is finished or aborted already. Create it again to resume.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()
