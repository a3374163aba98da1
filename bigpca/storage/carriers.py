"""The door of outputs and files: what is asked is checked here, and done by one of two modules with the same functions.

:mod:`bigpca.storage.disk` keeps what is written on a disk, :mod:`bigpca.storage.objects` at object stores.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from bigpca.storage import disk
from bigpca.storage.chunks import is_storable
from bigpca.storage.files import (
    MAX_DOCUMENT_BYTES,
    PLACES,
    is_objects,
    name_of,
    parsed_document,
    split_url,
)
from bigpca.storage.forms import MAX_PROVENANCE_BYTES, SCORES, STORE, STORES, Form, check_extension
from bigpca.storage.grammar import PROVENANCE, Kind
from bigpca.storage.outputs import GROWING, Output, OutputLayout, Reserved

R = TypeVar("R")
LARGEST_CHUNK = 2**31 - 1  # numcodecs' limit per buffer


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
