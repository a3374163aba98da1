"""Reading of regular files only: a pipe, a socket or a device under an untrusted name could block a reader for ever.

Every reader of the package opens files by :func:`open_regular`, or calls :func:`check_regular` before a library
opens them.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, BinaryIO

from bigpca.errors import CorruptedChunkError, brief

MAX_DOCUMENT_BYTES = 64 * 2**20  # of metadata; parsing takes about 20 times the memory
DOCUMENTS = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def open_regular(path: str | os.PathLike[str], buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading, as :func:`open` does, without ever blocking on a pipe.

    Raises
    ------
    CorruptedChunkError
        If the path leads to a pipe, a socket or a device.
    OSError
        As :func:`open` does.
    """
    return open(path, "rb", buffering, opener=_opened)


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        _check_mode(os.fstat(descriptor).st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | os.PathLike[str], limit: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes; raises like :func:`open_regular`.

    Raises
    ------
    CorruptedChunkError
        If the file is larger: a sparse file of any size takes only a few bytes of disk.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        check_size(size, path, limit)
        return file.read(size)


def max_encoded(nbytes: int) -> int:
    """Return the largest encoded size of a chunk of ``nbytes``.

    Incompressible data grow: by at most 1/6 with Snappy, 1/255 with LZ4, 1/8 with zfp, and by less with other codecs.
    """
    return nbytes + nbytes // 4 + 2**16


def read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the JSON object in an untrusted file.

    Raises
    ------
    CorruptedChunkError
        If it is larger than 64 MiB, not JSON, nested too deeply, or not an object.
    OSError
        As :func:`open` does.
    """
    try:
        found = json.loads(read_regular(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, CorruptedChunkError):
            raise
        raise CorruptedChunkError(
            f"{os.fspath(path)} is not valid JSON ({type(error).__name__}: {brief(error)}). Restore it from a copy."
        ) from error
    if not isinstance(found, dict):
        raise CorruptedChunkError(
            f"{os.fspath(path)} holds {brief(json.dumps(found), 40)}; a JSON object was expected. "
            "Restore it from a copy."
        )
    return found


def check_regular(path: str | os.PathLike[str]) -> os.stat_result:
    """Return the ``stat`` of a file (or directory) that is safe to open; raises like :func:`open_regular`."""
    found = os.stat(path)
    _check_mode(found.st_mode, path)
    return found


def check_size(size: int, path: str | os.PathLike[str], limit: int) -> None:
    """Raise :class:`CorruptedChunkError` for a file of more bytes than ``limit``."""
    if size > limit:
        raise CorruptedChunkError(
            f"{os.fspath(path)} has {size:,} bytes; at most {limit:,} were expected, so it was not read. It is "
            "damaged or forged: restore it from a copy."
        )


def is_there(path: str | os.PathLike[str]) -> bool:
    """Whether a file that is safe to open exists there; raises like :func:`check_regular` for pipes and devices."""
    try:
        check_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _check_mode(mode: int, path: str | os.PathLike[str]) -> None:
    kind = KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        raise CorruptedChunkError(
            f"{os.fspath(path)} is {kind}, but only regular files are read. Remove it, or restore the file from a copy."
        )
