"""Checks of untrusted Zarr metadata: dtype and codecs must be on a list before any chunk is decoded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from bigpca.data.checks import check_cells, check_chunk, check_dtype, is_decode_error
from bigpca.errors import CorruptedChunkError, brief

if TYPE_CHECKING:
    import zarr

# Decoders that only convert bytes to numbers. Excluded: pickle, json2, msgpack2, vlen-*, categorize.
ALLOWED_CODECS = {
    *("bytes", "endian", "transpose", "sharding_indexed"),
    *("blosc", "zstd", "gzip", "zlib", "lz4", "lzma", "bz2", "snappy", "pcodec", "zfpy"),
    *("crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3"),
    *("shuffle", "bitround", "delta", "quantize", "fixedscaleoffset", "packbits", "astype"),
}
# Decoders whose output can be far larger than their input: at most one is allowed, and its output size is checked.
COMPRESSORS = {"blosc", "zstd", "gzip", "zlib", "lz4", "lzma", "bz2", "snappy", "pcodec", "zfpy"}
INDEX_CODECS = {"bytes", "crc32c"}  # for a shard's index, whose size must be known
CHECKSUM_CODECS = {"crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3", "gzip", "zlib", "bz2", "lzma"}


@contextmanager
def naming_damage(label: str) -> Iterator[None]:
    """Name the store in errors that forged or damaged metadata cause in this package's and Zarr's readers.

    Raises
    ------
    CorruptedChunkError
        Instead of an error that does not name the store.
    """
    try:
        yield
    except Exception as error:
        if not is_decode_error(error) or label in str(error):
            raise
        raise CorruptedChunkError(
            f"{label}: its metadata are damaged or forged ({type(error).__name__}: {brief(error)}). Restore them, or "
            "rewrite the store."
        ) from error


def array_document(array: zarr.Array[Any]) -> dict[str, Any]:
    """Return the metadata of an open array as plain JSON values."""
    text = json.dumps(array.metadata.to_dict(), default=_plain)
    document: dict[str, Any] = json.loads(text)
    return document


def _plain(value: Any) -> Any:
    for name in ("get_config", "to_dict"):
        if hasattr(value, name):
            return getattr(value, name)()
    return str(value)


def layout_digest(array: zarr.Array[Any]) -> str:
    """Return the SHA-256 of the metadata that define how chunks are decoded (without attributes)."""
    document = array_document(array)
    kept = {key: document[key] for key in sorted(document) if key not in ("attributes", "consolidated_metadata")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def codecs_of(document: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (name, configuration) of all codecs and filters, including those inside shards, for Zarr v2 and v3."""
    if document.get("zarr_format") == 2:
        filters = [*(document.get("filters") or ()), document.get("compressor")]
        return [(str(one["id"]), one) for one in filters if one]
    return list(_v3_codecs(document.get("codecs") or ()))


def _v3_codecs(codecs: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for codec in codecs:
        name, configuration = (codec, {}) if isinstance(codec, str) else (codec["name"], codec.get("configuration"))
        configuration = configuration or {}
        yield str(name), configuration
        yield from _v3_codecs(configuration.get("codecs") or ())
        for index, _ in _v3_codecs(configuration.get("index_codecs") or ()):
            if index not in INDEX_CODECS:
                yield f"{index} of a shard's index", {}


def short_name(codec: str) -> str:
    """Return the name of a codec without the ``numcodecs.`` prefix of Zarr v3 extensions."""
    return codec.removeprefix("numcodecs.")


def has_checksum(document: Mapping[str, Any]) -> bool:
    """Whether a flipped bit in a chunk is detected when the chunk is decoded."""
    return any(
        short_name(name) in CHECKSUM_CODECS or (short_name(name) == "zstd" and bool(configuration.get("checksum")))
        for name, configuration in codecs_of(document)
    )


def is_uncompressed(document: Mapping[str, Any]) -> bool:
    """Whether a stored chunk is exactly as large as its values."""
    return {short_name(name) for name, _ in codecs_of(document)} <= {"bytes", "endian", "transpose", "shuffle"}


def check_document(document: Mapping[str, Any], label: str) -> None:
    """Reject non-numeric dtypes, codecs that are not allowed, and impossible sizes, before any chunk is read.

    Raises
    ------
    TypeError
        For a dtype that PCA cannot use.
    ValueError
        For a codec or filter that could do more than decode numbers (``pickle``), for nested compressors or shards, and
        for chunks that extend far beyond the array.
    """
    stored = document["dtype"] if document.get("zarr_format") == 2 else document.get("data_type")
    itemsize = check_stored_dtype(stored, label).itemsize
    check_codecs(document, label)
    check_grid(document, label, itemsize)


def check_codecs(document: Mapping[str, Any], label: str) -> None:
    """Reject codecs that are not on the list, and chains whose decoded size cannot be known."""
    names = [short_name(name) for name, _ in codecs_of(document)]
    unknown = [
        name
        for name, options in codecs_of(document)
        if short_name(name) not in ALLOWED_CODECS or (short_name(name) == "lzma" and options.get("format") == 3)
    ]
    if unknown:
        raise ValueError(
            f"{label} uses the codec or filter {brief(repr(unknown[0]))}, which is not one of the number decoders "
            "allowed for untrusted input; no chunk was read. If you trust the store, decode it by Zarr and rewrite it."
        )
    chained = [name for name in names if name in COMPRESSORS]
    if len(chained) > 1 or names.count("sharding_indexed") > 1:
        raise ValueError(
            f"{label} uses {brief(', '.join(chained)) if len(chained) > 1 else 'shards'} inside one another, so that "
            "the size of a decoded chunk is unknown before it is decoded; one compressor, in one layer of shards, was "
            "expected. If you trust the store, decode it with Zarr and rewrite it."
        )


def check_grid(document: Mapping[str, Any], label: str, itemsize: int) -> None:
    """Reject impossible shapes and chunks, and chunks far larger than the array itself."""
    shape: Any = document.get("shape")
    chunks: Any = _chunk_shape(document)
    sizes = [*(shape or ()), *(chunks or ())]
    sound = isinstance(shape, list) and isinstance(chunks, list) and len(shape) == len(chunks)
    if not sound or not all(type(size) is int and size >= 0 for size in sizes) or 0 in (chunks or ()):
        raise ValueError(
            f"{label} has shape {brief(shape)} and chunks {brief(chunks)}; integers, equally many of both, and chunks "
            "of at least 1 were expected. Its metadata are damaged: restore them, or rewrite the store."
        )
    for one in (chunks, _grid_shape(document) or chunks):  # the chunk, and its shard, whose index is read whole
        check_chunk(shape, one, itemsize, label)
    check_cells(shape, chunks, label)


def _chunk_shape(document: Mapping[str, Any]) -> Any:
    """Return the shape that is decoded at a time: that of a chunk, inside a shard if there are shards."""
    if document.get("zarr_format") == 2:
        return document.get("chunks")
    for name, configuration in codecs_of(document):
        if name == "sharding_indexed":
            return configuration.get("chunk_shape")
    return _grid_shape(document)


def _grid_shape(document: Mapping[str, Any]) -> Any:
    """Return the shape of a stored object in Zarr v3 metadata, or None."""
    grid = document.get("chunk_grid")
    return (grid.get("configuration") or {}).get("chunk_shape") if isinstance(grid, Mapping) else None


def check_stored_dtype(stored: Any, label: str) -> np.dtype[Any]:
    """Return the dtype that Zarr metadata spell; raise if PCA cannot use it."""
    try:
        if isinstance(stored, list):
            stored = [tuple(field) for field in stored]
        elif not isinstance(stored, str):
            raise TypeError(stored)
        found = check_dtype(stored)
        if found.type.__module__ == "ml_dtypes":  # which NumPy knows once that was imported, but Zarr does not
            raise TypeError(stored)
        return found
    except TypeError as error:
        reason = (
            str(error)
            if "cannot be used" in str(error)
            else f"dtype {brief(repr(stored))} is not one of NumPy's numbers."
        )
        raise TypeError(f"{label}: {reason}") from None
