"""Files that are complete or absent: durable writes, replacement by two renames, and repair after a crash."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bigpca.errors import OutputExistsError, OutputWriteError, brief

MANY_FILES = 2000  # beyond this, one os.sync() is cheaper than an fsync per file
MUTEX_SECONDS = 10.0
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # of a URL, as a part of a path
SUFFIX_BYTES = len("..partial.new-") + 32  # the longest addition to an output's name


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the output's path to file-system errors, and reject URLs and names too long for their temporary siblings.

    Raises
    ------
    OutputWriteError
        Instead of an OSError that does not come from this package; keeps its ``errno``.
    """
    target = Path(path)
    reject_url(target)
    try:
        length, most = len(os.fsencode(target.name)), _longest_name(target)
        if length > most:
            raise OSError(errno.ENAMETOOLONG, f"its name has {length} bytes, but at most {most} are possible here")
        yield
    except (OutputExistsError, OutputWriteError, BlockingIOError):
        raise
    except OSError as error:
        if error.errno in NO_SPACE and error.filename is None:  # has its message already, with the bytes required
            raise
        reason = brief(error.strerror or str(error))
        raise OutputWriteError(
            error.errno, f"{target} cannot be written ({reason}). Choose another path, or remove the obstacle"
        ) from error


def reject_url(path: Path) -> None:
    """Reject the path of an output that is a URL, which would become local folders such as ``s3:``.

    Raises
    ------
    OutputWriteError

    Examples
    --------
    >>> reject_url(Path("s3://bucket/x.zarr"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bigpca.errors.OutputWriteError: s3://bucket/x.zarr is a URL, but outputs are written to local folders. Write ...
    """
    start = next((i for i, part in enumerate(path.parts[:-1]) if SCHEME.fullmatch(part)), None)
    if start is not None:
        url = brief(f"{path.parts[start]}//{'/'.join(path.parts[start + 1 :])}")
        raise OutputWriteError(
            f"{url} is a URL, but outputs are written to local folders. Write to a local path, and copy what is there."
        )


def _longest_name(target: Path) -> int:
    """Return how many bytes an output's name may have, so that its temporary siblings can be named too."""
    place = target.absolute().parent
    while not os.path.isdir(place) and place != place.parent:
        place = place.parent
    return os.pathconf(place, "PC_NAME_MAX") - SUFFIX_BYTES


def fsync_path(path: Path) -> None:
    """Force one file, or the entries of one directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # do not block if someone put a pipe there
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(directory: Path) -> None:
    """Force ``directory`` and every file and directory under it to the disk."""
    paths = [directory]
    for root, directories, files in os.walk(directory):
        paths += [Path(root, name) for name in (*files, *directories)]
        if len(paths) > MANY_FILES:
            os.sync()
            return
    for path in reversed(paths):
        fsync_path(path)


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes | bytearray | memoryview) -> None:
    """Write a file that holds, after any crash, either its old content or all of ``data``.

    A temporary sibling is written, fsynced and renamed over ``path``; then the directory is fsynced.

    Raises
    ------
    OSError
        From the file system (disk full, no permission); ``path`` is then unchanged and the temporary file removed.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "state.json"
    >>> atomic_write_bytes(target, b"{}")
    >>> target.read_bytes()
    b'{}'
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    fsync_path(target.parent)


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Return the free bytes for this user where ``path`` is or would be: those of its nearest existing parent."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def exists(path: Path) -> bool:
    """Whether anything has this name, a dangling link included."""
    return os.path.lexists(path)


def remove(path: Path) -> None:
    """Remove a file, a link or a whole directory, if it exists, even if that is interrupted once."""
    try:
        _remove(path)
    except BaseException:
        _remove(path)
        raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def flock(path: Path, *, wait_seconds: float) -> Iterator[bool]:
    """Hold the kernel's advisory lock on ``path`` (file or directory); yield whether it was obtained.

    The kernel releases it when the process dies. File systems without such locks yield False.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # do not block if someone put a pipe there
    deadline = time.monotonic() + wait_seconds
    held = False
    try:
        while not held:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.01)
            except OSError:
                break
        yield held
    finally:
        os.close(descriptor)


@contextmanager
def temporary_sibling(target: Path) -> Iterator[Path]:
    """Make an empty directory beside ``target``, to be filled and published; removed on exit if it was not.

    Siblings of killed processes are removed first: a live owner holds the kernel's lock on its sibling.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    sibling = target.with_name(f".{target.name}.new-{uuid.uuid4().hex}")
    try:
        with ExitStack() as held:
            with flock(target.parent, wait_seconds=MUTEX_SECONDS):
                for other in _siblings(target, "new"):
                    with suppress(OSError), flock(other, wait_seconds=0) as dead:
                        if dead:
                            remove(other)
                sibling.mkdir()
                held.enter_context(flock(sibling, wait_seconds=0))
            yield sibling
    finally:
        remove(sibling)


def publish(source: Path, target: Path, *, replace: bool) -> None:
    """Rename the finished ``source`` to ``target``, keeping the old ``target`` until the new one is in place.

    A replacement is two renames, target -> ``.<name>.old-<id>`` and source -> target, then the old one is removed;
    :func:`repair` undoes the first after a crash between the two.

    Raises
    ------
    FileExistsError
        If ``target`` exists and ``replace`` is False.
    """
    with flock(target.parent, wait_seconds=MUTEX_SECONDS):
        _repair(target)
        if exists(target):
            if not replace:
                raise FileExistsError(str(target))
            old = target.with_name(f".{target.name}.old-{uuid.uuid4().hex}")
            os.rename(target, old)
            try:
                os.rename(source, target)
            except BaseException:
                os.rename(old, target)
                raise
            fsync_path(target.parent)
            remove(old)
        else:
            os.rename(source, target)
        fsync_path(target.parent)


def repair(target: Path) -> None:
    """Complete a :func:`publish` that a crash interrupted: restore the old target, or remove it if replaced."""
    if _siblings(target, "old"):
        with flock(target.parent, wait_seconds=MUTEX_SECONDS):
            _repair(target)


def _repair(target: Path) -> None:
    for old in _siblings(target, "old"):
        if exists(target):
            remove(old)
        else:
            os.rename(old, target)
            fsync_path(target.parent)


def _siblings(target: Path, what: str) -> list[Path]:
    prefix = f".{target.name}.{what}-"
    try:
        entries = os.listdir(target.parent)
    except OSError:
        return []
    found = [target.parent / entry for entry in entries if entry.startswith(prefix)]
    return sorted(found, key=lambda path: path.lstat().st_ctime_ns if exists(path) else 0, reverse=True)
