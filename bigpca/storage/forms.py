"""Forms of a complete output: a Zarr array, or a table in one file; and the records beside its numbers."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import brief
from bigpca.storage.chunks import ChunkRecord, ChunkWriter
from bigpca.storage.files import public, to_json
from bigpca.storage.grammar import KEYS, PROVENANCE, Kind

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
