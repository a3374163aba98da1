"""Files that are complete or absent: durable writes, replacement by two renames, and repair after a crash.

Reading of regular files only: a pipe, a socket or a device under an untrusted name could block a reader for ever.
Arrays in untrusted ``.npz`` files: a declared size is rejected if the file's own bytes cannot produce it. Conversion
to portable JSON: no NaN literals, no NumPy scalars, no objects.

Paths and URLs: where they keep their bytes, and the form in which they may be shown, logged and stored: without user
names, passwords, queries and signatures.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import uuid
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import parse_qsl, unquote

import numpy as np

from bigpca.arrays import Array
from bigpca.blas import during
from bigpca.errors import CorruptedChunkError, InputChangedError, OutputExistsError, OutputWriteError, an, brief
from bigpca.storage.grammar import PUBLISHED, ROOT, declared, sort_keys

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")
R = TypeVar("R")
UNBLOCKED = getattr(os, "O_NONBLOCK", 0)  # opens without waiting, if someone put a pipe there
MANY_FILES = 2000  # beyond this, one os.sync() is cheaper than an fsync per file
MUTEX_SECONDS = 10.0  # for which a folder is locked by others, at most
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # of a URL, as a part of a path
LONGEST_NAME = 255 - len("..partial.new-") - 32  # bytes of an output's name, with the longest addition to it
MAX_DOCUMENT_BYTES = 64 * 2**20  # of metadata; parsing takes about 20 times the memory
MARKERS = ("zarr.json", ".zarray", ".zgroup")  # of an array or a group of Zarr
DOCUMENTS = (*MARKERS, ".zattrs", ".zmetadata")
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
PROOF = "bigpca"  # in a temporary sibling, the file that repeats its name
OLD = "old"  # in it, what is being replaced
ABSENT = (-1, 0)
LOOKERS = 32  # threads that look at many files
NON_FINITE = "__non_finite__"  # {"__non_finite__": "nan" | "inf" | "-inf"}
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*://"
# Of a user with a password, the last part also holds "/", "?" and "#", which users forget to encode; no port does.
_USER = re.compile(rf"({_SCHEME})([^\s/?#'\"]*|[^\s/?#'\"\[]*:(?!\d*[/?#])[^\s'\"]*)@")
_QUERY = re.compile(rf"({_SCHEME}[^\s?#'\"]*)[?#][^\s'\"]*")
HIDDEN = "***"
_PASSED = (FileNotFoundError, PermissionError, ValueError, TypeError, LookupError, ImportError)
_CLIENTS = ("obstore", "botocore", "aiobotocore", "google", "gcsfs", "azure")  # of object stores
# The answer to a HEAD request has no body, so a status of 400 alone may be an expired token.
_DENIED = re.compile(
    r"status code: 40[13]|status code: 400[^<{\n]*$|Expired|InvalidToken|InvalidAccessKeyId|SignatureDoesNotMatch|"
    r"[Cc]redential|169\.254\.169\.254|metadata\.google|Unauthenticated|PermissionDenied|AccessDenied",
    re.MULTILINE,
)
MIN_SECRET_LENGTH = 8  # shorter query values are numbers and names, which would be masked wherever they occur
PLACES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")  # schemes of URLs that are written to
BUCKETS = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}  # obstore's classes, and schemes of their URLs
OBJECT_STORES = ("bigpca.storage.places", "obstore.store", "zarr.storage._obstore")  # modules of what holds objects
CARRIED = "zarr-memory://"  # a MemoryStore, which is sent to workers with its values
CHANGES = {"etag", "version", "versionid", "generation", "md5hash", "lastmodified", "updated", "mtime", "created"}


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
        if (length := len(os.fsencode(target.name))) > LONGEST_NAME:
            raise OSError(
                errno.ENAMETOOLONG, f"its name has {length} bytes, but at most {LONGEST_NAME} are possible here"
            )
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
    bigpca.errors.OutputWriteError: s3://bucket/x.zarr is a URL, but this output is written to a local folder. ...
    """
    start = next((i for i, part in enumerate(path.parts[:-1]) if SCHEME.fullmatch(part)), None)
    if start is not None:
        url = brief(public(f"{path.parts[start]}//{'/'.join(path.parts[start + 1 :])}"))
        raise OutputWriteError(
            f"{url} is a URL, but this output is written to a local folder. Write to a local path, and copy it; where "
            "URLs are accepted, pass them as a str."
        )


def fsync_path(path: Path) -> None:
    """Force one file, or the entries of one directory, to the disk."""
    if sys.platform == "win32" and path.is_dir():  # which Windows neither opens nor forces
        return
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else UNBLOCKED)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(directory: Path) -> None:
    """Force ``directory`` and every file and directory under it to the disk."""
    paths = [directory]
    for root, directories, files in os.walk(directory):
        paths += [Path(root, name) for name in (*files, *directories)]
        if sys.platform != "win32" and len(paths) > MANY_FILES:
            os.sync()
            return
    for path in reversed(paths):
        fsync_path(path)


@contextmanager
def replacing(target: Path, temporary: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a new file, and rename it over ``target`` once it is whole and, if ``durable``, on the disk."""
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


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
    with replacing(target, target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")) as file:
        file.write(data)
    fsync_path(target.parent)


def write_files(folder: Path, contents: Iterable[tuple[str, bytes]]) -> None:
    """Write files, given by their keys, below a new folder."""
    for key, data in contents:
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Return the free bytes for this user where ``path`` is or would be: those of its nearest existing parent."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def local_path(given: str | os.PathLike[str]) -> str:
    """Return the absolute path at which a user's path is read and written; no other function makes one.

    ``~`` is a home; ``..`` leads out of the folder to which a link before it leads, as for the system; a link at the
    end stays.

    Examples
    --------
    >>> local_path("/data/rows/../x.zarr"), local_path("~/x.zarr") == str(Path.home() / "x.zarr")
    ('/data/x.zarr', True)
    """
    path = os.path.expanduser(os.fspath(given))
    head, dots, tail = path.rpartition(f"..{os.sep}")
    return os.path.abspath(os.path.join(os.path.realpath(head + dots), tail) if dots else path)


def real_path(given: str | os.PathLike[str]) -> str:
    """Return the path to which a user's path leads, also through a link at its end."""
    return os.path.realpath(local_path(given))


def remove(path: Path, members: Collection[str] | None = None) -> None:
    """Remove a file, a link or a directory, if it exists, even if that is interrupted once.

    Of a directory with the names of ``members``, an output, only what bigpca writes there is removed
    (:mod:`bigpca.storage.grammar`); without them, it is in a temporary one that this package has named.
    """
    try:
        _remove(path, members)
    except BaseException:
        _remove(path, members)
        raise


def _remove(path: Path, members: Collection[str] | None) -> None:
    if path.is_dir() and not path.is_symlink():
        if members is None:
            shutil.rmtree(path, ignore_errors=True)
            return
        own, _ = sort_keys(keys_below(path), members)
        for key in sorted(own, key=(ROOT, PUBLISHED).count):  # last what says whose the rest is, should this be killed
            with suppress(OSError):
                Path(path, key).unlink()
        for folder, *_ in os.walk(path, topdown=False):
            with suppress(OSError):  # what others have put there stays
                os.rmdir(folder)
    else:
        path.unlink(missing_ok=True)


def keys_below(folder: Path) -> Iterator[str]:
    """Iterate over the files below a folder, and the links, by their keys."""
    for here, folders, files in os.walk(folder):
        key = "" if here == str(folder) else f"{os.path.relpath(here, folder)}/"
        yield from (key + name for name in files)
        yield from (key + name for name in folders if os.path.islink(os.path.join(here, name)))


@contextmanager
def flock(path: Path, *, wait_seconds: float) -> Iterator[bool]:
    """Hold the kernel's advisory lock on ``path`` (file or directory); yield whether it was obtained.

    The kernel releases it when the process dies. File systems without such locks, and Windows, yield False.
    """
    if sys.platform == "win32":
        os.stat(path)  # raises as below
        yield False
    else:
        descriptor = os.open(path, UNBLOCKED)
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
    """Make a directory beside ``target``, to be filled and published; what it holds in the end is removed.

    Siblings of killed processes are removed first: a live owner holds the kernel's lock on its sibling. A sibling is
    known by the 32 digits of its name and by its proof, a file that repeats it; others of such names stay.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    sibling = target.with_name(f".{target.name}.new-{uuid.uuid4().hex}")
    try:
        try:
            with ExitStack() as held:
                with flock(target.parent, wait_seconds=MUTEX_SECONDS):
                    _repair(target)
                    sibling.mkdir()
                    held.enter_context(flock(sibling, wait_seconds=0))
                    Path(sibling, PROOF).write_text(sibling.name)
                yield sibling
        finally:
            _end(sibling, target)
    except BaseException:
        _end(sibling, target)
        raise


def remove_at_once(path: Path, target: Path) -> None:
    """Remove what belongs to a target, so that no kill leaves a part of it that nothing tells from files of others."""
    with temporary_sibling(target) as sibling, suppress(FileNotFoundError):
        os.rename(path, sibling / "gone")


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make an empty folder where the system keeps temporary files, for what goes to objects or comes from them.

    Raises
    ------
    OutputWriteError
        If there is none, or it is full: names it.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="bigpca-") as folder:
            yield Path(folder)
    except OSError as error:
        home = tempfile.tempdir or "TMPDIR"
        if error.errno not in NO_SPACE and os.path.isdir(home) and os.access(home, os.W_OK):
            raise
        reason = brief(error.strerror or str(error))
        raise OutputWriteError(
            error.errno,
            f"the temporary folder {home} cannot be written ({reason}). Set TMPDIR to a folder with free space",
        ) from error


def publish(source: Path, target: Path, *, replace: bool, sibling: Path) -> None:
    """Rename the finished ``source`` to ``target``, keeping the old ``target`` until the new one is in place.

    A replacement is two renames, of the old one into a temporary ``sibling`` and of the new one; :func:`repair` undoes
    the first after a crash between the two.

    Raises
    ------
    FileExistsError
        If ``target`` exists and ``replace`` is False.
    """
    with flock(target.parent, wait_seconds=MUTEX_SECONDS):
        _repair(target)
        if os.path.lexists(target):
            if not replace:
                raise FileExistsError(str(target))
            os.rename(target, sibling / OLD)
        try:
            os.rename(source, target)
        except BaseException:
            _restore(sibling, target)
            raise
        fsync_path(target.parent)


def file_mark(path: Path) -> str:
    """Return what tells a file from all others, and stays when it is renamed."""
    found = path.stat()
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"


def repair(target: Path) -> None:
    """Complete a :func:`publish` that a crash interrupted: restore the old target, or remove it if replaced.

    And remove what failed writers left beside it, which they could not remove themselves.
    """
    if _siblings(target):
        with suppress(OSError), flock(target.parent, wait_seconds=MUTEX_SECONDS):
            _repair(target)


def standing(target: Path) -> Path:
    """Return where what belongs at a path is: there, or where a crash in the middle of :func:`publish` has left it."""
    olds = (sibling / OLD for sibling in _siblings(target))
    return target if os.path.lexists(target) else next(filter(os.path.lexists, olds), target)


def _repair(target: Path) -> None:
    for sibling in _siblings(target):
        _restore(sibling, target)
        with suppress(OSError), flock(sibling, wait_seconds=0) as dead:
            if dead:
                _end(sibling, target)


def _restore(sibling: Path, target: Path) -> None:
    old = sibling / OLD
    if not os.path.lexists(target) and (old.is_file() or os.path.lexists(old / ROOT)):
        os.rename(old, target)
        fsync_path(target.parent)


def _end(sibling: Path, target: Path) -> None:
    """Remove a temporary sibling, its proof last."""
    _restore(sibling, target)
    found = None
    with suppress(OSError, ValueError):
        found = declared(read_document(sibling / OLD / ROOT))
    remove(sibling / OLD, () if found is None else found[1])
    for path in sibling.glob("*"):
        if path.name not in (OLD, PROOF):
            remove(path)
    if all(path.name == PROOF for path in sibling.glob("*")):  # else the next run removes what could not be removed now
        remove(sibling / PROOF)
        with suppress(OSError):
            sibling.rmdir()


def _siblings(target: Path) -> list[Path]:
    """Return the temporary siblings of a path, the youngest first; an empty one was not yet given its proof."""
    try:
        named = re.compile(re.escape(f".{target.name}.new-") + "[0-9a-f]{32}")
        found = [target.parent / name for name in os.listdir(target.parent) if named.fullmatch(name)]
        found.sort(key=lambda path: path.lstat().st_ctime_ns, reverse=True)
        return [path for path in found if path.is_dir() and not path.is_symlink() and _is_ours(path)]
    except OSError:
        return []


def _is_ours(sibling: Path) -> bool:
    with suppress(OSError, ValueError):
        return read_regular(sibling / PROOF) == sibling.name.encode()
    return not os.listdir(sibling)


# Every reader of the package opens files by :func:`open_regular`, or calls :func:`check_regular` before a library
# opens them.
def open_regular(path: str | os.PathLike[str], buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading, as :func:`open` does, without ever blocking on a pipe.

    Raises
    ------
    CorruptedChunkError
        If the path leads to a pipe, a socket or a device.
    OSError
        As :func:`open` does.
    """
    opened: BinaryIO = open(path, "rb", buffering, opener=_opened)  # noqa: SIM115  (the caller closes it)
    return opened


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | UNBLOCKED)
    try:
        check_regular(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def changed(before: Look, now: Look) -> bool:
    """Whether a file is not as it was: the time of its last change tells what a restored time of modification hides.

    That time also moves with hard links, permissions and owners, which are no change. The inode alone tells nothing:
    some file systems in user space number a file anew.
    """
    explained = before[3] == now[3] and before[4] != now[4]
    return before[:2] != now[:2] or (before[2] != now[2] and not explained)


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


class Content(NamedTuple):
    """One object that was got: its bytes, its ETag, and the mark of the run that put it."""

    data: bytes
    etag: str
    mark: str


Contents: TypeAlias = Callable[[], Iterator[tuple[str, bytes]]]  # what yields keys and bytes of files, the root last


class Stored(NamedTuple):
    """A group of arrays that is read: where it is; what returns one of its files, of at most so many bytes; and what
    makes calls, at the same time where each waits for a network."""

    where: str
    get: Callable[[str, int], bytes]
    each: Callable[[Iterable[Callable[[], Any]]], Iterable[Any]]


class OccupiedError(FileExistsError):
    """An object exists with other bytes than those that were to be put there, or was changed meanwhile.

    Attributes
    ----------
    found : Content
    """

    def __init__(self, message: str, found: Content) -> None:
        super().__init__(message)
        self.found = found


@dataclass(frozen=True)
class Folder:
    """A local folder with the verbs of :class:`bigpca.storage.places.ObjectStore` that checkpoints need.

    A file is complete or absent: it is written beside its path, synced and renamed. One run at a time holds the folder,
    so conditions on what is there need no more than a look.

    Attributes
    ----------
    path : str
        Absolute.
    shared : None
        Whether workers see the folder: each has to look.
    """

    path: str
    shared: ClassVar[None] = None

    def describe(self, key: str = "") -> str:
        """Return the path of the folder, or of a file there."""
        return os.path.join(self.path, key) if key else self.path

    def at(self, key: str) -> Folder:
        """Return the folder below this one."""
        return Folder(self.describe(key))

    def survey(self) -> dict[str, None]:
        """Return the names in the folder, and in those that it holds."""
        here = Path(self.path)
        return {one.relative_to(here).as_posix(): None for deep in ("*", "*/*") for one in here.glob(deep)}

    def get(self, key: str) -> Content:
        """Return a whole file; raises like :func:`read_regular`."""
        return Content(read_regular(self.describe(key)), "", "")

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_etag: str | None = None) -> None:
        """Write a file whole, as :meth:`bigpca.storage.places.ObjectStore.put`."""
        path = Path(self.path, key)
        if if_absent and path.exists():
            found = self.get(key)
            if found.data != data:
                raise OccupiedError(f"{path} exists with other bytes", found)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(path, data)

    def fill(self, key: str, write: Callable[[Any], object], *, if_etag: str | None = None) -> int:
        """Write what a function writes to a file, in place of what is there, and return its bytes."""
        target = Path(self.path, key)
        with replacing(target, target.with_name(f".{key}.{uuid.uuid4().hex}")) as file:
            write(file)
        return target.stat().st_size

    opened = describe

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, as far as they exist."""
        for key in keys:
            Path(self.path, key).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete the temporary files of :meth:`put` and :meth:`fill`."""
        for unfinished in Path(self.path).glob(".*"):
            if re.fullmatch(r"\..+\.[0-9a-f]{32}(\.tmp)?", unfinished.name):
                with suppress(OSError):
                    unfinished.unlink(missing_ok=True)


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
    return parsed_document(read_regular(path), path)


def parsed_document(data: bytes, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the JSON object in the content of a file; raises as :func:`read_document`."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptedChunkError(
            f"{os.fspath(path)} is not valid JSON ({type(error).__name__}: {brief(error)}). Restore it from a copy."
        ) from error
    if not isinstance(found, dict):
        raise CorruptedChunkError(
            f"{os.fspath(path)} holds {brief(json.dumps(found), 40)}; a JSON object was expected. "
            "Restore it from a copy."
        )
    return found


def check_regular(path: str | os.PathLike[str], descriptor: int | None = None) -> os.stat_result:
    """Return the ``stat`` of a file (or directory) that may be opened, or is open; raises like :func:`open_regular`."""
    found = os.stat(path if descriptor is None else descriptor)
    if (kind := KINDS.get(stat.S_IFMT(found.st_mode))) is not None:
        raise CorruptedChunkError(
            f"{os.fspath(path)} is {kind}, but only regular files are read. Remove it, or restore the file from a copy."
        )
    return found


def check_size(size: int, path: str | os.PathLike[str], limit: int) -> None:
    """Raise :class:`CorruptedChunkError` for a file of more bytes than ``limit``."""
    if size > limit:
        raise CorruptedChunkError(
            f"{os.fspath(path)} has {size:,} bytes; at most {limit:,} were expected, so it was not read. It is "
            "damaged or forged: restore it from a copy."
        )


# Size, times of modification and of change in ns, inode, and a digest of links, permissions and owner. A look is of one
# run: stamps, which are kept and compared with those of copies and other mounts, have size and modification only.
Look: TypeAlias = tuple[int, int, int, int, int]
MISSING: Look = (*ABSENT, 0, 0, 0)
Seen: TypeAlias = MutableMapping[str, Look]
_look: ContextVar[Seen | None] = ContextVar("bigpca-look", default=None)


@contextmanager
def one_look(seen: Seen | None = None) -> Iterator[Seen]:
    """Look at each file at most once in the body, and keep in ``seen`` what :func:`seen_file` found.

    None for the caller's look, which may be that of a fit that reads its rows in several runs, or else a new one.
    """
    seen = _look.get() if seen is None else seen
    found: Seen = {} if seen is None else seen
    with during(_look, found):
        yield found


Mark: TypeAlias = tuple[str, int, str]  # URL or key, size and ETag of an object
_got: ContextVar[set[Mark] | None] = ContextVar("bigpca-got", default=None)


def noting_got(marks: set[Mark]) -> AbstractContextManager[None]:
    """Add to ``marks`` what a store says of the objects that this thread gets in the body, as it gives their bytes."""
    return during(_got, marks)


def note_got(url: str, size: int, change: str | None) -> None:
    """Note that an object was got, where somebody asks."""
    marks = _got.get()
    if marks is not None and not url.endswith(DOCUMENTS):
        marks.update(mark for mark in marks_of([(url, size, change)]) if mark[2] != change)


def marks_of(stamps: Iterable[tuple[str, int, int | str | None]]) -> Iterator[Mark]:
    """Yield the marks of objects: their ETag if they have one, because listings round times otherwise than answers do.

    >>> list(marks_of([("c/0", 8, 'e_tag "a" last_modified 1'), ("c/1", 8, "mtime 2"), ("c/2", 8, None)]))
    [('c/0', 8, '"a"'), ('c/1', 8, 'mtime 2')]
    """
    for key, size, change in stamps:
        etag = re.search(r"(?:^| )e_?tag (\S+)", str(change), re.IGNORECASE)
        if change is not None:
            yield key, size, etag[1] if etag else str(change)


def input_changed(path: str) -> InputChangedError:
    """Return the error about a file of the input, or several where the path is empty."""
    what = f"{path} no longer has" if path else "some files no longer have"
    return InputChangedError(
        f"the input changed while it was read: {what} the size, ETag or modification time of the start, so the result "
        "would mix old and new rows. Start again with bp.open, and do not change the input during the run."
    )


def seen_file(path: str, *, regular: bool = False) -> tuple[int, int]:
    """Return size and modification of a file, as it is now or as this look has seen it; ``ABSENT`` if it is missing.

    ``regular`` rejects pipes and devices, as :func:`check_regular` does.
    """
    seen = _look.get()
    found = seen.get(path) if seen is not None else None
    found = found or look_at(path, regular)
    if seen is not None:
        seen[path] = found
    return found[:2]


def look_at(path: str, regular: bool = False) -> Look:
    """Return what a file is now; :data:`MISSING` if there is none."""
    try:
        found = check_regular(path) if regular else os.stat(path)
    except FileNotFoundError:
        return MISSING
    others = hash((found.st_nlink, found.st_mode, found.st_uid, found.st_gid))
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, others


def looking(look: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield ``look`` of each item, from several threads: the file system of a network takes up to 1 ms for a file."""
    seen = _look.get()

    def one(item: T) -> R:
        with during(_look, seen):
            return look(item)

    with ThreadPoolExecutor(LOOKERS, thread_name_prefix="bigpca-look") as pool:
        yield from pool.map(one, items)


def is_there(path: str | os.PathLike[str]) -> bool:
    """Whether a file that is safe to open exists there; raises like :func:`check_regular` for pipes and devices."""
    try:
        check_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_arrays(path: str | os.PathLike[str] | io.BytesIO, limit: int) -> dict[str, Array]:
    """Read all arrays of a ``.npz`` file that :func:`numpy.savez` wrote, of at most ``limit`` bytes; never unpickles.

    Raises
    ------
    zipfile.BadZipFile, ValueError, EOFError
        If it is truncated or altered, or its arrays have more bytes; raised before any memory is allocated for it.
    """
    arrays = {}
    with path if isinstance(path, io.BytesIO) else open_regular(path) as file, zipfile.ZipFile(file) as archive:
        if (promised := sum(info.file_size for info in archive.infolist())) > limit:
            raise ValueError(f"its arrays have {promised:,} bytes, and at most {limit:,} were expected")
        for info in archive.infolist():
            if info.header_offset < 0:  # to seek there would be an unexplained OSError
                raise zipfile.BadZipFile(f"{info.filename} would start at byte {info.header_offset:,}")
            with archive.open(info) as member:
                shape, _, dtype = read_npy_header(member)
                if info.file_size != member.tell() + (nbytes := math.prod(shape) * dtype.itemsize):
                    raise ValueError(f"{info.filename} declares {nbytes:,} bytes of values in {info.file_size:,} bytes")
            with archive.open(info) as member:
                arrays[info.filename.removesuffix(".npy")] = np.lib.format.read_array(member, allow_pickle=False)
    return arrays


def read_npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, Fortran order and dtype of a ``.npy`` with NumPy's reader, which leaves the file at the first value.

    Raises
    ------
    ValueError
        For another version and a damaged header, for which NumPy's parser raises errors of many kinds.
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"its version is {version[0]}.{version[1]}; 1.0, 2.0 or 3.0 was expected")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = read(file)
    except (MemoryError, OSError, EOFError, zipfile.BadZipFile, zlib.error):
        raise
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error
    if min(shape, default=0) < 0:
        raise ValueError(f"its header states the impossible shape {brief(shape)}")
    return shape, fortran, dtype


def to_json(value: Any, where: str) -> Any:
    """Convert a value to plain JSON values; non-finite floats become ``{"__non_finite__": "nan"}``.

    Parameters
    ----------
    value : None, bool, int, float, str, NumPy scalar, or list, tuple, str-keyed mapping of those.
    where : the value's name in error messages.

    Raises
    ------
    TypeError
        If an entry cannot be represented; names the entry.

    Examples
    --------
    >>> to_json({"tol": np.float32(0.5), "limits": (1, float("inf"))}, "attributes")
    {'tol': 0.5, 'limits': [1, {'__non_finite__': 'inf'}]}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {NON_FINITE: repr(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [to_json(entry, f"{where}[{index}]") for index, entry in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == NON_FINITE:
                raise TypeError(
                    f"{where} has the key {key!r}, but keys must be str other than {NON_FINITE!r}. Rename it."
                )
        return {key: to_json(entry, f"{where}[{key!r}]") for key, entry in value.items()}
    raise TypeError(
        f"{where} is {an(type(value).__name__)}, which JSON cannot represent. Give numbers, strings, lists or dicts; "
        "store arrays as arrays."
    )


def from_json(value: Any) -> Any:
    """Undo :func:`to_json` (tuples stay lists)."""
    if isinstance(value, list):
        return [from_json(entry) for entry in value]
    if isinstance(value, dict):
        if set(value) == {NON_FINITE}:
            return float(value[NON_FINITE])
        return {key: from_json(entry) for key, entry in value.items()}
    return value


def canonical_json(value: Any) -> bytes:
    """Return one byte string per JSON value, independent of the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def public(text: str) -> str:
    """Return a text without the credentials of the URLs in it: the part before ``@``, and their queries.

    Examples
    --------
    >>> public("s3://key:secret@bucket/x.zarr"), public("https://host/x.zarr?X-Amz-Signature=1f")
    ('s3://bucket/x.zarr', 'https://host/x.zarr')
    >>> public("/data/what?.zarr")
    '/data/what?.zarr'
    """
    return _QUERY.sub(r"\1", _USER.sub(r"\1", text))


def secrets_of(url: str) -> list[str]:
    """Return the parts of a URL that :func:`public` removes, as they may appear in messages; longest first.

    Examples
    --------
    >>> secrets_of("https://me:pass@host/x?sig=4be9a0c1&part=1")
    ['sig=4be9a0c1&part=1', '4be9a0c1', 'me:pass', 'pass']
    """
    user = [part for _, part in _USER.findall(url)]
    query = re.findall(rf"{_SCHEME}[^\s?#'\"]*[?#]([^\s'\"]*)", url)
    passwords = [part.partition(":")[2] for part in user]
    values = [value for part in query for _, value in parse_qsl(part) if len(value) >= MIN_SECRET_LENGTH]
    found = {form for part in (*user, *query, *passwords, *values) for form in (part, unquote(part))}
    return sorted(filter(None, found), key=lambda part: (-len(part), part))


def is_of_client(error: BaseException) -> bool:
    """Whether a client of an object store raised this, of a request that failed."""
    return type(error).__module__.partition(".")[0] in _CLIENTS and not isinstance(error, FileNotFoundError)


def is_denied(error: BaseException) -> bool:
    """Whether a client of an object store says that credentials are missing or expired, or do not suffice."""
    return isinstance(error, PermissionError) or (
        is_of_client(error) and _DENIED.search(f"{type(error).__name__} {error}") is not None
    )


def denied(where: str, verb: str, why: str) -> PermissionError:
    """Return the error for credentials that a store does not accept."""
    return PermissionError(
        f"{where}: the store does not let these credentials {verb} it: none were found, they do not suffice, or they "
        f"have expired ({brief(why, 300)}). Renew them in the environment of each process, and run it again."
    )


@contextmanager
def without_credentials(url: str) -> Iterator[None]:
    """Pass errors of other libraries through, except those that show what :func:`public` removes.

    Errors that are only of a client of a store (no credentials, no network) become an OSError that names the URL.

    Raises
    ------
    FileNotFoundError, OSError, RuntimeError
        Instead of an error whose text contains a secret: the same text with ``***`` in its place.
    PermissionError
        If the store does not accept the credentials.
    ValueError
        If a password ends the host of its URL: libraries would take its parts for ports, buckets and keys.
    """
    if any(re.search("[/?#]", user) for _, user in _USER.findall(url)):
        raise ValueError(
            f"{public(url)} was given with a password that holds '/', '?' or '#', which end the host of a URL. Write "
            "them as %2F, %3F and %23, or set the password in the environment."
        )
    try:
        yield
    except Exception as error:
        text, secrets = public(str(error)), secrets_of(url)
        if is_denied(error) and not isinstance(error, PermissionError):
            for secret in secrets:
                text = text.replace(secret, HIDDEN)
            raise denied(public(url), "read", text) from None
        if not any(secret in str(error) for secret in secrets):
            if isinstance(error, _PASSED) or type(error).__module__.partition(".")[0] in ("builtins", "bigpca"):
                raise
            raise OSError(
                f"{public(url)} cannot be read ({type(error).__name__}: {brief(text)}). Check the address, the network "
                "and the credentials of this process."
            ) from error
        for secret in secrets:
            text = text.replace(secret, HIDDEN)
        kinds = (FileNotFoundError, PermissionError, OSError, ValueError)
        kind = next((one for one in kinds if isinstance(error, one)), RuntimeError)
        raise kind(f"{public(url)}: {text} ({type(error).__name__})") from None


Kind = Literal["disk", "remote", "process"]


def split_url(place: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the scheme of a URL and what follows it; "" and the path for a path. No other function looks for them.

    >>> split_url("s3://bucket/x.zarr"), split_url("/data/x.zarr")
    (('s3', 'bucket/x.zarr'), ('', '/data/x.zarr'))
    """
    scheme, mark, rest = os.fspath(place).partition("://")
    return (scheme, rest) if mark else ("", scheme)


def url_of(scheme: str, rest: str = "") -> str:
    """Return the URL of a scheme and what follows it."""
    return f"{scheme}://{rest}"


def kind_of(place: str | os.PathLike[str]) -> Kind:
    """Return where a path, a URL or the address of a store (:func:`address_of`) keeps its bytes.

    Returns
    -------
    {"disk", "remote", "process"}
        On a file system that processes can mount; behind a URL that any process may use; or in the memory of this
        process.

    Examples
    --------
    >>> kind_of("/data/x.zarr"), kind_of("s3://bucket/x.zarr"), kind_of("simplecache::memory://x.zarr")
    ('disk', 'remote', 'process')
    """
    scheme = split_url(place)[0].rpartition("::")[2]
    return "process" if scheme == "memory" else "remote" if scheme else "disk"


def is_objects(given: Any) -> bool:
    """Whether an output goes to objects: to a URL, a :class:`bigpca.storage.places.ObjectStore` or an obstore store.

    >>> is_objects("s3://bucket/x.zarr"), is_objects("x.zarr")
    (True, False)
    """
    if isinstance(given, str | os.PathLike):
        return isinstance(given, str) and kind_of(given) != "disk"
    return type(given).__module__ in OBJECT_STORES


Located: TypeAlias = tuple[object, tuple[str, ...]]  # what holds bytes, and the parts of a name in it


def located(given: Any) -> list[Located]:
    """Return where a path, URL, store or place keeps its bytes, whatever it is called; several for a chain of URLs.

    A bucket is known by its name, whatever its scheme, endpoint and client; a store in memory by itself.

    Examples
    --------
    >>> located("simplecache::s3://bucket/x.zarr/") == located("gs://bucket/x.zarr")
    True
    """
    if isinstance(given, str | os.PathLike):
        if kind_of(given) == "disk":
            return [("", Path(real_path(given)).parts)]
        return [found for url in os.fspath(given).split("::") if split_url(url)[0] for found in _located_at(url)]
    held = getattr(given, "_held", given)  # of an ObjectStore
    if held is None:
        return _located_at(given.url)
    at = getattr(held, "store_path", held)  # of an array of Zarr
    store, path = getattr(at, "store", at), f"{getattr(given, 'prefix', '') or ''}/{getattr(at, 'path', '')}"
    while hasattr(store, "_store") and type(store).__module__.startswith("zarr."):  # around another one
        store = store._store
    inner = getattr(store, "store", store)
    if type(inner).__module__.startswith("obstore") and type(inner).__name__ == "MemoryStore":
        return [(id(inner), _parts(path))]
    if type(inner).__name__ in BUCKETS and (bucket := bucket_of(inner)):
        return [("bucket", (bucket, *_parts(f"{getattr(inner, 'prefix', None) or ''}/{path}")))]
    return located(f"{address_of(store)}/{path}")


def _located_at(url: str) -> list[Located]:
    scheme, rest = split_url(public(url))
    if scheme in ("file", "local"):
        return located(rest)
    if not scheme.startswith("http"):
        return [("bucket", _parts(rest))]
    host, *key = _parts(unquote(rest))  # of a store: its buckets are folders, or names of hosts
    return [("bucket", (*key,)), ("bucket", (host.partition(".")[0], *key))]


def _parts(path: str) -> tuple[str, ...]:
    return tuple(filter(None, path.split("/")))


def is_within(read: Any, out: Any) -> bool:
    """Whether what is read is at the place of an output, or in it."""
    there = located(out)
    return any(one == other and key[: len(to)] == to for one, key in located(read) for other, to in there)


def name_of(given: Any) -> str:
    """Return the path, or the last part of the URL or place, whose extension says what is written."""
    return os.fspath(given) if isinstance(given, str | os.PathLike) else str(getattr(given, "prefix", None) or "")


def path_of(given: Any, name: str) -> str:
    """Return a path as a string.

    Raises
    ------
    TypeError
        For anything else, such as an open array.

    Examples
    --------
    >>> path_of(3, "out")
    Traceback (most recent call last):
    TypeError: out is an int, but a path was expected, as a str or os.PathLike.
    """
    if isinstance(given, str | os.PathLike):
        return os.fspath(given)
    kind = type(given).__name__
    place = f" Pass that of the store: {public(address_of(given.store))!r}." if hasattr(given, "store_path") else ""
    article = "an" if kind[0].lower() in "aeiou" else "a"
    raise TypeError(f"{name} is {article} {kind}, but a path was expected, as a str or os.PathLike.{place}")


def address_of(store: Any) -> str:
    """Return the path or URL of a Zarr store, which does not depend on the process that opened it."""
    path, name, inner = disk_path(store), type(store).__name__, getattr(store, "store", None)
    if path is not None:
        return path
    if name == "FsspecStore":
        path = str(store.path)  # which is a URL for some file systems
        return path if kind_of(path) != "disk" else url_of(_protocols(store)[0], path.lstrip("/"))
    if name == "MemoryStore":
        return CARRIED
    if name == "ManagedMemoryStore" or type(inner).__name__ == "MemoryStore":
        return "memory://"
    if name == "IcechunkStore":
        return "icechunk://"
    if type(inner).__name__ in BUCKETS and (bucket := bucket_of(inner)):
        return url_of(BUCKETS[type(inner).__name__], f"{bucket}/{getattr(inner, 'prefix', None) or ''}".rstrip("/"))
    return str(store) if kind_of(str(store)) != "disk" else url_of(name)


def bucket_of(store: Any) -> str:
    """Return the bucket of an obstore store; "" if it has none."""
    found = re.search(r'(?:bucket|container_name)="([^"]*)"', repr(store))
    return found[1] if found else ""


def change_of(facts: Mapping[str, Any]) -> tuple[int, str | None]:
    """Return the size of an object, and its ETag, version and time of change, as far as its store has them."""
    named = [key for key in sorted(facts) if re.sub("[-_]", "", key.lower()) in CHANGES and facts[key] is not None]
    return int(facts["size"] or 0), " ".join(f"{key} {facts[key]}" for key in named) or None


def disk_path(store: Any) -> str | None:
    """Return the directory of a store on a disk, also behind fsspec (``da.from_zarr`` of a path), else None."""
    from zarr.storage import LocalStore

    if isinstance(store, LocalStore) and type(store).__name__ in ("LocalStore", "RegularStore"):
        return os.path.abspath(store.root)
    if type(store).__name__ == "FsspecStore" and "file" in _protocols(store):
        return os.path.abspath(str(store.path))
    return None


def _protocols(store: Any) -> tuple[str, ...]:
    found = getattr(getattr(store.fs, "sync_fs", store.fs), "protocol", ())
    return found if isinstance(found, tuple) else (found,)


def digest(value: object) -> str:
    """Return a short digest of JSON-able metadata."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]


def content_digest(*arrays: Array | None) -> str:
    """Return the digest of arrays' values, in row order; it also says which of them are None."""
    content = hashlib.sha256()
    for array in arrays:
        content.update(b"-" if array is None else np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return content.hexdigest()
