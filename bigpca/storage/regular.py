"""Only regular files are read: whatever else an untrusted name leads to (a pipe, a socket, a device) could keep a reader for ever.

Every reader of the package opens by :func:`open_regular`, or looks by :func:`check_regular` before a library opens by itself.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from zarr.storage import LocalStore

from bigpca.errors import CorruptedChunkError

KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def open_regular(path: str | os.PathLike[str], buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading, as :func:`open` does, without ever waiting for somebody to write.

    Raises
    ------
    CorruptedChunkError
        Where the path leads to a pipe, a socket or a device.
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


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file; raises as :func:`open_regular`."""
    with open_regular(path) as file:
        return file.read()


def check_regular(path: str | os.PathLike[str]) -> os.stat_result:
    """Return the ``stat`` of a file (or directory) that may be opened; raises as :func:`open_regular`."""
    found = os.stat(path)
    _check_mode(found.st_mode, path)
    return found


def is_there(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file that may be opened; raises as :func:`check_regular` for other things."""
    try:
        check_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _check_mode(mode: int, path: str | os.PathLike[str]) -> None:
    kind = KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        raise CorruptedChunkError(
            f"{os.fspath(path)} is {kind}; a regular file was expected, and nothing else is read. Remove it, or restore the "
            f"file from a copy."
        )


class RegularStore(LocalStore):
    """A local Zarr store that reads regular files only."""

    def __init__(self, root: str | Path, *, read_only: bool = True) -> None:
        super().__init__(root, read_only=read_only)

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """Return the bytes of one object; see :func:`check_regular`."""
        is_there(self.root / key)
        return await super().get(key, *arguments, **options)

    def get_sync(self, key: str, **options: Any) -> Any:
        """Return the bytes of one object; see :func:`check_regular`."""
        is_there(self.root / key)
        return super().get_sync(key, **options)
