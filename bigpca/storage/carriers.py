"""The door of models, outputs and files: checked here, and done by one of two modules with the same functions.

:mod:`bigpca.storage.disk` keeps what is written on a disk, :mod:`bigpca.storage.objects` at object stores. A model is
one Zarr v3 group of named arrays and JSON attributes, complete or absent, and checked when it is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from bigpca.arrays import Array
from bigpca.errors import ModelFormatError, an, brief
from bigpca.storage import disk
from bigpca.storage.files import (
    MAX_DOCUMENT_BYTES,
    MISSING,
    PLACES,
    Look,
    Stored,
    canonical_json,
    changed,
    content_digest,
    from_json,
    is_objects,
    look_at,
    max_encoded,
    name_of,
    parsed_document,
    split_url,
    to_json,
)
from bigpca.storage.grammar import PROVENANCE, Kind
from bigpca.storage.outputs import (
    GROWING,
    MAX_PROVENANCE_BYTES,
    NOTHING,
    SCORES,
    STORE,
    STORES,
    Annotations,
    Form,
    Output,
    OutputLayout,
    Reserved,
    array_metadata,
    check_extension,
    is_storable,
)

R = TypeVar("R")
LARGEST_CHUNK = 2**31 - 1  # numcodecs' limit per buffer
MODEL_FORMAT = (1, 0)  # of models, the newest that is written and read
CHUNK_BYTES = 64 * 2**20  # of an array of a model
LEVEL = 3  # of zstd
REPLACED_SECONDS = 0.1  # in which a path is renamed that another process replaces


def carrier(out: Any) -> Any:
    """Return the module that keeps outputs where ``out`` is, as ``os.path`` is one of two: ``disk`` or ``objects``."""
    if is_objects(out):
        from bigpca.storage import objects  # for object stores only

        return objects
    return disk


def reserve(out: Any, kind: Kind, *, overwrite: bool, resume: bool) -> Reserved:
    """Reserve the place of an output whose shape is not known yet; raises as :func:`create_output`."""
    reserved: Reserved = carrier(out).reserve(out, kind, overwrite=overwrite, resume=resume)
    return reserved


def create_output(
    out: Any,
    *,
    shape: tuple[int | None, ...],
    dtype: DTypeLike,
    chunk_rows: int,
    identity: str,
    form: Form = STORE,
    overwrite: bool = False,
    resume: bool = True,
    joins: bool = True,
) -> Output:
    """Create, or resume, one Zarr v3 array, or table, that becomes visible only when it is complete.

    On a disk it is written in ``<path>.partial`` under the lock ``<path>.lock``, and renamed. At an object store it is
    written in its place under a claim there, and its root metadata are put last. Chunks are (chunk_rows, d), zstd with
    a checksum; the fill value is NaN for floats. Chunks finished by a killed run with the same ``identity`` are kept.

    Parameters
    ----------
    out : path of the array, whose missing parent folders are created; URL, store, ObjectStore, or what :func:`reserve`
        returns.
    shape : (n, d), d >= 1; for a Zarr array also (n, c, h, w), and None for an n that :meth:`Output.set_rows` sets.
    dtype : bool, integer or floating; float16 stays float16.
    chunk_rows : rows per chunk (at most n are used).
    identity : fingerprint of the content; a partial output with another one is removed.
    form : what becomes of the chunks: a Zarr array, or a table.
    overwrite : replace rows or scores that bigpca wrote (a table: a file that begins as one), which stay until the new
        ones are complete.
    resume : False starts again. At an object store, a run that does not join needs True to take over the claim of
        another one, which may be alive.
    joins : whether runs of equal identity write equal bytes, and so may write one output at an object store together.

    Raises
    ------
    OutputExistsError
        If something is there, and ``overwrite`` is False or would not replace it (:mod:`bigpca.storage.grammar`).
    OutputLockedError
        If a live run holds it, or an object store has the unfinished output of another run.
    OutputWriteError
        If the file system rejects it: missing permission, a name that is too long. If the object store does not enforce
        conditional writes, and nobody said that this is the only run.
    MemoryBudgetError
        If the free disk space is less than the remaining rows, uncompressed, plus 1 %.
    ValueError, TypeError
        If shape, dtype or chunk_rows cannot be stored, or the path has the extension of another form.

    Examples
    --------
    >>> import pathlib, tempfile, zarr
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "scores.zarr"
    >>> with create_output(path, shape=(5, 2), dtype="float32", chunk_rows=3, identity="a1") as output:
    ...     for index in output.pending():
    ...         start, stop = output.writer.row_range(index)
    ...         record = output.writer.write(index, np.ones((stop - start, 2), np.float32))
    ...     output.finish()
    >>> float(zarr.open_array(path, mode="r")[...].sum())
    10.0
    """
    reserved = out if isinstance(out, Reserved) else Reserved(out)
    layout = _layout(shape, dtype, chunk_rows, identity)
    check_extension(name_of(reserved.target), *(SCORES if form.kind == "table" else STORES))
    begin = carrier(reserved.target).begin
    output: Output = begin(reserved, layout, form, overwrite=overwrite, resume=resume, joins=joins)
    return output


def _layout(given: tuple[int | None, ...], dtype: DTypeLike, chunk_rows: int, identity: str) -> OutputLayout:
    """Check the requested output and return it in its stored form."""
    shape, kind = tuple(GROWING if size is None else size for size in given), np.dtype(dtype)
    if not is_storable(kind):
        raise TypeError(
            f"an output of dtype {kind} was requested, but only bool, integers and floats (up to 64 bits) are written. "
            "Choose float32 or float64."
        )
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows is {chunk_rows}, but it must be at least 1.")
    n, d = int(shape[0]), math.prod(shape[1:])
    rows = min(int(chunk_rows), max(n, 1))
    if rows * d * kind.itemsize > LARGEST_CHUNK:
        largest = LARGEST_CHUNK // (d * kind.itemsize)
        raise ValueError(
            f"chunk_rows = {rows} makes chunks of {rows * d * kind.itemsize:,} bytes, but one chunk holds at most "
            f"{LARGEST_CHUNK:,}. Use chunk_rows <= {largest}."
        )
    return OutputLayout((n, *map(int, shape[1:])), kind.newbyteorder("<"), rows, str(identity))


def reject_file(path: str | os.PathLike[str], overwrite: bool, *accepted: str) -> None:
    """Raise unless a file may be written here: a new path or URL, or with ``overwrite`` one that exists.

    And of an accepted extension.
    """
    carrier(path).reject_output(path, overwrite, "table")
    check_extension(name_of(path), *accepted)


def write_file(path: str | os.PathLike[str], data: bytes, *, overwrite: bool) -> Path | str:
    """Write a file, complete or not at all, and return its path or URL; what a killed run left of it is removed.

    An object is put whole by one request, which creates it unless ``overwrite`` is True.

    Raises
    ------
    OutputExistsError
        As :func:`reject_file` does; of two runs that write one new path, one raises it.
    """
    written: Path | str = carrier(path).write_file(path, data, overwrite=overwrite)
    return written


def read_provenance(store: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the provenance in an untrusted store as JSON values; None if it has none.

    Raises
    ------
    CorruptedChunkError
        If it is larger than 1 MiB, not JSON, or not an object.
    """
    if isinstance(store, str) and split_url(store)[0] not in ("", *PLACES):
        return None  # bigpca writes nothing to other URLs
    try:
        attributes = document_at(store, f"{PROVENANCE}/zarr.json", MAX_PROVENANCE_BYTES).get("attributes")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return attributes if isinstance(attributes, dict) else {}


def document_at(store: str | os.PathLike[str], key: str, limit: int = MAX_DOCUMENT_BYTES) -> dict[str, Any]:
    """Return an untrusted JSON object in a local store, or at a place of objects; raises as :func:`read_document`."""
    return parsed_document(carrier(store).got_bytes(store, key, limit), f"{store}/{key}")


@dataclass(frozen=True)
class GotGroup:
    """A stored model.

    Attributes
    ----------
    kind : str
        What the arrays represent, such as ``"PCA"``.
    format : (int, int)
        Major and minor version of the layout.
    arrays : dict of str to ndarray
    attributes : dict of str to JSON values
    """

    kind: str
    format: tuple[int, int]
    arrays: dict[str, Array]
    attributes: dict[str, Any]


def write_group(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Array],
    attributes: Mapping[str, Any],
    *,
    kind: str,
    format_version: tuple[int, int],
    overwrite: bool = False,
    annotations: Annotations = NOTHING,
) -> None:
    """Write one Zarr v3 group of named arrays and JSON attributes, invisible until it is complete.

    The arrays (bool, integer or floating; any shape) are stored in chunks of at most 64 MiB, compressed by zstd with a
    checksum; their SHA-256 and that of everything else go into the attributes. Costs one pass over the arrays and an
    fsync of every file.

    Parameters
    ----------
    path : path of the group.
    arrays : names are Python identifiers.
    attributes : None, bool, int, str, float (NaN and infinities too), NumPy scalars, and lists, tuples (read back as
        lists) and str-keyed dicts of those.
    kind, format_version : the kind of model, and the version of its layout.
    overwrite : replace an existing model, which stays until the new one is complete.
    annotations : members that no digest covers.

    Raises
    ------
    OutputExistsError
        If ``path`` exists, and ``overwrite`` is False or would not replace it (:mod:`bigpca.storage.grammar`).
    OutputWriteError
        If the file system rejects it.
    TypeError, ValueError
        If an array or an attribute cannot be stored, or the path has the extension of another format.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.zarr"
    >>> write_group(path, {"mean": np.arange(3.0)}, {"tol": 1e-6}, kind="PCA", format_version=(1, 0))
    >>> read_group(path, kind="PCA", newest=(1, 0)).arrays["mean"]
    array([0., 1., 2.])
    """
    ready = {name: _storable(name, array) for name, array in arrays.items()}
    body = {
        "kind": kind,
        "format": list(format_version),
        "arrays": {
            name: {"shape": list(array.shape), "dtype": array.dtype.name, "sha256": content_digest(array)}
            for name, array in ready.items()
        },
    }
    values = to_json(dict(attributes), "attributes")
    digest = _attributes_digest(body, values)

    def contents() -> Iterator[tuple[str, bytes]]:
        for name, array in ready.items():
            yield from _files_of(name, array)
        yield from annotations.files()
        own = {"bigpca": {**body, "attributes_sha256": digest}, "attributes": values}
        yield "zarr.json", _encoded({"attributes": own, "zarr_format": 3, "node_type": "group"})

    check_extension(name_of(path), *STORES)
    carrier(path).put_group(path, contents, digest, ready, overwrite=overwrite)


def read_group(
    path: str | os.PathLike[str], *, kind: str | Collection[str] | None, newest: tuple[int, int]
) -> GotGroup:
    """Read a group that :func:`write_group` wrote, trusting nothing that is not checked.

    Parameters
    ----------
    path : the group's directory.
    kind : the kind, or kinds, that the caller accepts; None for any.
    newest : the newest format that the caller knows. A newer minor version is read, a newer major one rejected.

    Returns
    -------
    GotGroup

    Raises
    ------
    ModelFormatError
        If it is absent, not a bigpca store, incomplete, altered, of another kind or of a newer major format.
        No code from the store is executed, and no array is allocated that is larger than the files can justify.
    """
    before = _look(path)
    try:
        return _got_group(path, kind, newest)
    except Exception:
        if not is_objects(path) and not changed(before, _look(path)):
            raise
    time.sleep(REPLACED_SECONDS)  # another process may be replacing it
    return _got_group(path, kind, newest)


def _look(path: object) -> Look:
    with suppress(OSError, ValueError):
        return look_at(str(path))
    return MISSING


def _got_group(path: str | os.PathLike[str], kind: str | Collection[str] | None, newest: tuple[int, int]) -> GotGroup:
    stored = carrier(path).got_group(path)
    body, values = _read_header(stored, newest)
    if kind is not None and body["kind"] not in ({kind} if isinstance(kind, str) else set(kind)):
        known = kind if isinstance(kind, str) else ", ".join(sorted(kind))
        raise ModelFormatError(
            f"{stored.where} holds {an(repr(body['kind']))}, but {known} was expected. "
            "Load it with the function for its kind."
        )
    reads = [partial(_read_array, stored, name, declared) for name, declared in body["arrays"].items()]
    major, minor = body["format"]
    return GotGroup(body["kind"], (major, minor), dict(zip(body["arrays"], stored.each(reads), strict=True)), values)


def kind_at(path: str | os.PathLike[str]) -> str | None:
    """Return the kind of what bigpca has stored at a path or URL, such as "PCA" or "array"; None for anything else."""
    try:
        return str(document_at(path, "zarr.json")["attributes"]["bigpca"]["kind"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _storable(name: str, array: Array) -> Array:
    if not name.isidentifier():
        raise ValueError(f"array name {name!r} is not a Python identifier. Rename it.")
    array = np.asarray(array)
    if not is_storable(array.dtype):
        raise TypeError(
            f"array {name!r} has dtype {array.dtype}, but only bool, integer and floating arrays (up to 64 bits) are "
            "stored. Convert it first."
        )
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _attributes_digest(body: Mapping[str, Any], values: Any) -> str:
    return hashlib.sha256(canonical_json([body["kind"], body["format"], body["arrays"], values])).hexdigest()


def _files_of(name: str, array: Array) -> Iterator[tuple[str, bytes]]:
    """Yield the files that Zarr would write, whose event loop takes several milliseconds for each array."""
    from numcodecs.zstd import Zstd  # with its libraries: only what writes or reads a model loads it

    chunks = [max(1, length) for length in array.shape]
    for axis in range(array.ndim):
        # Cutting the leading axes first keeps a chunk contiguous in memory.
        below = int(np.prod(chunks[axis + 1 :], dtype=np.int64)) * array.dtype.itemsize
        chunks[axis] = max(1, min(chunks[axis], CHUNK_BYTES // max(below, 1)))
    for key, cut in _chunks(name, array.shape, chunks):
        block = np.zeros(chunks, array.dtype)  # Zarr stores chunks at the end whole too
        block[tuple(slice(length) for length in array[cut].shape)] = array[cut]
        yield key, bytes(Zstd(level=LEVEL, checksum=True).encode(block))
    yield f"{name}/zarr.json", _encoded(array_metadata(array.shape, array.dtype, chunks, 0, LEVEL, {}))


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode()


def _chunks(name: str, shape: tuple[int, ...], chunks: Sequence[int]) -> Iterator[tuple[str, tuple[slice, ...]]]:
    """Iterate over the keys of an array's chunks, and what each holds of the array."""
    counts = [-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True)]
    for number in range(math.prod(counts)):
        place = np.unravel_index(number, counts)  # np.ndindex holds every index of each axis: too much for a forged one
        cut = tuple(slice(i * chunk, (i + 1) * chunk) for i, chunk in zip(place, chunks, strict=True))
        yield "/".join([name, "c", *map(str, place)]), cut


def _fail(target: str, cause: str) -> ModelFormatError:
    return ModelFormatError(
        f"{target} cannot be read as a bigpca store: {cause}. Restore it from a copy, or fit again."
    )


def _read_header(stored: Stored, newest: tuple[int, int]) -> tuple[dict[str, Any], Any]:
    """Read and check the group's zarr.json: everything but the arrays."""
    target = stored.where
    try:
        document = parsed_document(stored.get("zarr.json", MAX_DOCUMENT_BYTES), f"{target}/zarr.json")
        if document.get("node_type") == "array":
            raise ModelFormatError(
                f"{target} is a Zarr array, such as data or scores, and not a saved model. Open rows with "
                "bigpca.open, and give the path of the model here."
            )
        attributes = document["attributes"]
        body, values = attributes["bigpca"], attributes["attributes"]
        declared_format, digest = body["format"], body["attributes_sha256"]
        major, minor = (int(number) for number in declared_format)
        own = {"kind": body["kind"], "format": declared_format, "arrays": body["arrays"]}
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFormatError(f"{target} is not a saved model: it has no zarr.json. Check the path.") from None
    except ModelFormatError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _fail(
            target, f"its zarr.json is not one of bigpca's ({type(error).__name__}: {brief(error, 1000)})"
        ) from error
    if major > newest[0]:
        raise ModelFormatError(
            f"{target} has format {major}.{minor}, newer than {newest[0]}.{newest[1]}, the newest that this bigpca "
            "reads. Upgrade bigpca."
        )
    try:
        intact = isinstance(own["kind"], str) and all(name.isidentifier() for name in own["arrays"])
        intact = intact and isinstance(values, dict) and _attributes_digest(own, values) == digest
        values = from_json(values)
    except (ValueError, TypeError, AttributeError, RecursionError):
        intact = False
    if not intact:
        raise _fail(target, "its attributes were altered (their SHA-256 is not the recorded one)")
    return own, values


def _read_array(stored: Stored, name: str, declared: Any) -> Array:
    """Read one array, comparing the declaration, the array's own metadata, the files and the content."""
    from numcodecs.zstd import Zstd  # as above

    try:
        shape = tuple(int(length) for length in declared["shape"])
        dtype = np.dtype(str(declared["dtype"]))
        if not is_storable(dtype) or min(shape, default=0) < 0:
            raise ValueError(f"dtype {dtype} and shape {shape} are not storable")
        key = f"{name}/zarr.json"
        chunks = _checked_chunks(parsed_document(stored.get(key, MAX_DOCUMENT_BYTES), key), shape, dtype)
        array = np.empty(shape, dtype.newbyteorder("<"))  # no memory is taken before a chunk is there
        for key, cut in _chunks(name, shape, chunks):
            block = np.empty(chunks, array.dtype)
            Zstd().decode(stored.get(key, max_encoded(block.nbytes)), block)
            array[cut] = block[tuple(slice(length) for length in array[cut].shape)]
        if content_digest(array) != declared["sha256"]:
            raise ValueError("its content was altered (its SHA-256 is not the recorded one)")
    except Exception as error:
        raise _fail(stored.where, f"array {name!r} is missing, truncated or altered ({brief(error, 1000)})") from error
    return array.astype(dtype, copy=False)


def _checked_chunks(metadata: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[int]:
    """Return the shape of a chunk; reject what :func:`write_group` never writes.

    That is another shape, huge chunks, and other codecs.
    """
    chunks = [int(length) for length in metadata["chunk_grid"]["configuration"]["chunk_shape"]]
    names = [codec["name"] for codec in metadata["codecs"]]
    if tuple(metadata["shape"]) != shape or metadata["data_type"] != dtype.name:
        raise ValueError(f"its metadata says {metadata['shape']} {metadata['data_type']}, declared {shape} {dtype}")
    if names != ["bytes", "zstd"]:
        raise ValueError(f"it uses the codecs {names}, but bigpca writes bytes, zstd")
    if len(chunks) != len(shape) or any(not 1 <= c <= max(n, 1) for c, n in zip(chunks, shape, strict=True)):
        raise ValueError(f"its chunks are {chunks}, impossible for the shape {shape}")
    if math.prod(chunks) * dtype.itemsize > CHUNK_BYTES:
        raise ValueError(f"its chunks are {chunks} of {dtype}, more than {CHUNK_BYTES:,} bytes")
    if metadata.get("storage_transformers"):
        raise ValueError("it names storage transformers, which bigpca never writes")
    return chunks
