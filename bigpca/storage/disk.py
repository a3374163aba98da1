"""Outputs, models and files on a disk: written beside their path, locked, and renamed once they are complete.

An unfinished output is ``<path>.partial``: an array without manifest, and the journal of its run. What is at the path
stays until the new output has its place. :mod:`bigpca.storage.objects` has the same functions for object stores.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import socket
import uuid
import zlib
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bigpca.errors import CorruptedChunkError, MemoryBudgetError, OutputExistsError, OutputLockedError, OutputWriteError
from bigpca.storage import files
from bigpca.storage.files import Contents, Stored, read_document, read_regular, temporary_sibling, writing
from bigpca.storage.grammar import (
    JOURNAL,
    MEMBERS,
    PUBLISHED,
    ROOT,
    Kind,
    check_begins,
    check_replaced,
    declared,
    described,
    sort_keys,
    there,
)
from bigpca.storage.lock import RunLock
from bigpca.storage.outputs import (
    FORMAT,
    Annotations,
    ChunkRecord,
    ChunkWriter,
    First,
    Form,
    Output,
    OutputLayout,
    Reserved,
    TableForm,
    partial_document,
    rows_at_end,
    with_manifest,
)

MAX_LOG_BYTES = 2**30  # of the journal of one process
FSYNC_BYTES = 2**20  # smaller chunks are not fsynced one by one; a resume checks their bytes instead
_PROCESS: dict[int, str] = {}  # pid -> name of the process's log, so that a forked child gets its own


@dataclass(frozen=True)
class DiskChunks(ChunkWriter):
    """Chunks as files of a folder.

    Writers share no file: a chunk appears under its name by a rename, and its record goes to a log of its process. The
    name of the journal is unique to the run's identity, so late tasks of other runs fail.

    Attributes
    ----------
    journal : str
        Directory of the logs, inside the store.
    """

    journal: str

    def chunk_path(self, index: int) -> Path:
        """Return the path of one chunk's file, in Zarr v3's default naming."""
        return Path(self.store, self.chunk_key(index))

    def _stored(self) -> Iterator[bytes]:
        return (read_regular(self.chunk_path(i), files.max_encoded(self.nbytes)) for i in range(self.n_chunks))

    def _begin(self, index: int, data: bytes, first: First) -> Future[ChunkRecord]:
        done: Future[ChunkRecord] = Future()
        if first is not None:
            first()
        with self.storing(f"chunk {index}", len(data)):
            record = self._write_file(index, data)
            self._log(record)
        done.set_result(record)
        return done

    @contextmanager
    def storing(self, what: str, size: int) -> Iterator[None]:
        """Say in errors of the file system what was not written, and that finished chunks are kept."""
        try:
            yield
        except FileNotFoundError as error:
            message = f"{self.store} is gone or now belongs to another run, so {what} was not written"
            raise FileNotFoundError(errno.ENOENT, message) from error
        except OSError as error:
            kind = OSError if error.errno in files.NO_SPACE else OutputWriteError
            message = (
                f"{what} of {size:,} bytes cannot be written at {self.store}, where {files.free_bytes(self.store):,} "
                f"are free ({error.strerror}). Free space, raise the limit (ulimit -f) or mend the disk, and rerun: "
                "finished chunks are kept"
            )
            raise kind(error.errno, message) from error

    def _write_file(self, index: int, data: bytes) -> ChunkRecord:
        final, durable = self.chunk_path(index), len(data) >= FSYNC_BYTES
        with files.replacing(final, Path(self.journal, f"{uuid.uuid4().hex}.tmp"), durable=durable) as file:
            file.write(data)
            file.flush()
            modified_ns = os.fstat(file.fileno()).st_mtime_ns
            final.parent.mkdir(parents=len(self.shape) > 2, exist_ok=True)
        return ChunkRecord(index, zlib.crc32(data), len(data), modified_ns, durable)

    def _log(self, record: ChunkRecord) -> None:
        # The line break in front ends a line that a full disk may have cut. Opened and closed each time: closing is
        # what makes it visible to the driver on network file systems.
        pid = os.getpid()
        if pid not in _PROCESS:
            _PROCESS[pid] = f"{socket.gethostname()}-{pid}-{uuid.uuid4().hex[:8]}.log"
        with open(Path(self.journal, _PROCESS[pid]), "ab", buffering=0) as file:
            line = f"\n{json.dumps(astuple(record))}\n".encode()
            while file.write(line) < len(line):  # a part of it is not a record
                pass

    def records(self) -> Iterator[ChunkRecord]:
        """Iterate over the records of all processes, skipping lines that a crash truncated."""
        for log in sorted(Path(self.journal).glob("*.log")):
            for line in read_regular(log, MAX_LOG_BYTES).decode(errors="replace").splitlines():
                with suppress(ValueError, TypeError):
                    record = ChunkRecord(*json.loads(line))
                    if 0 <= record.index < self.n_chunks:
                        yield record

    def is_intact(self, record: ChunkRecord, *, check_bytes: bool) -> bool:
        """Whether the chunk's file matches its record: its size, and its bytes unless fsynced and unchanged since."""
        path = self.chunk_path(record.index)
        try:
            found = path.stat()
            if found.st_size != record.size:
                return False
            if not check_bytes or (record.durable and found.st_mtime_ns == record.modified_ns):
                return True
            return zlib.crc32(read_regular(path, record.size)) == record.crc32
        except (OSError, CorruptedChunkError):
            return False


class DiskOutput(Output):
    """An output in a local folder: written beside it, and renamed."""

    writer: DiskChunks
    path: Path

    def __init__(self, path: Path, writer: DiskChunks, lock: RunLock, form: Form, replace: bool) -> None:
        super().__init__(path, writer)
        self._lock = lock
        self._form = form
        self._replace = replace
        # Chunks of earlier runs are trusted only after their bytes are checked; those of this run, by their size.
        self._earlier = {r.index: r for r in writer.records() if writer.is_intact(r, check_bytes=True)}
        self._distrusted = {r for r in writer.records() if self._earlier.get(r.index) != r}

    def _finished(self) -> dict[int, ChunkRecord]:
        """One log per process and one stat per chunk are looked at."""
        found = dict(self._earlier)
        for record in self.writer.records():
            if record not in self._distrusted and self.writer.is_intact(record, check_bytes=False):
                found[record.index] = record
        return found

    def _is_visible(self) -> bool:
        """Whether the unfinished output was renamed, which nobody else does while the lock is held."""
        return not os.path.lexists(self.writer.store)

    def _publish(self, finished: dict[int, ChunkRecord], annotations: Annotations) -> None:
        """Force all to the disk, and rename it: the store, or a table of its chunks, after which these may go."""
        store = Path(self.writer.store)
        with writing(self.path):
            if isinstance(self._form, TableForm):
                with temporary_sibling(self.path) as sibling:
                    file = sibling / "table"
                    self._form.write(file, self.writer, annotations)
                    files.fsync_path(file)
                    _reject_existing(self.path, self._replace, "table")
                    Path(store, PUBLISHED).write_text(files.file_mark(file))
                    files.publish(file, self.path, replace=self._replace, sibling=sibling)
                return
            metadata = with_manifest(read_document(store / ROOT), self.writer, finished, annotations)
            files.atomic_write_bytes(store / ROOT, json.dumps(metadata).encode())
            for name in MEMBERS:  # of a run that was killed here
                files.remove(store / name, ())
            files.write_files(store, annotations.files())
            files.fsync_tree(store)
            _reject_existing(self.path, self._replace, "array")
            with temporary_sibling(self.path) as sibling:
                files.publish(store, self.path, replace=self._replace, sibling=sibling)

    def _close(self) -> None:
        remove_journals(self.path)
        self._lock.release()

    def abort(self) -> None:
        """Release the lock and keep finished chunks for the next run; remove the output if there are none."""
        if not self._lock.held:
            return
        try:
            remove_journals(self.path)  # if an error came after the output had become visible
            if not self._finished():
                _remove_partial(Path(self.writer.store))
        finally:
            self._lock.release()

    def keep(self, name: str, data: bytes) -> None:
        """Write the record into the journal."""
        with self.writer.storing(name, len(data)):
            files.atomic_write_bytes(Path(self.writer.journal, name), data)

    def kept(self, name: str) -> bytes | None:
        """Read the record in the journal."""
        path = Path(self.writer.journal, name)
        return read_regular(path, MAX_LOG_BYTES) if path.exists() else None

    def _is_open(self) -> bool:
        return self._lock.held


def remove_journals(target: Path) -> None:
    """Remove what a run needs no longer once its output is visible: the logs in it, or the chunks beside a table."""
    store = _partial(target)
    with suppress(OSError, ValueError, LookupError, TypeError):
        if (journal := target / _journal(read_document(target / ROOT), target)).is_dir():
            files.remove_at_once(journal, target)
    with suppress(OSError, ValueError):
        if read_regular(store / PUBLISHED) == files.file_mark(target).encode() and _read_partial(store) is not None:
            _remove_partial(store)  # after a kill, by the next run


def _journal(document: dict[str, Any], target: Path) -> str:
    """Return the name of the journal of an output, by its metadata and path: the proof that what it is in is bigpca's.

    Tasks of a run with another identity look for another journal, and so fail instead of mixing two outputs.
    """
    of = f"{document['attributes']['bigpca']['identity']} {target.name}"
    return JOURNAL + hashlib.sha256(of.encode(errors="surrogateescape")).hexdigest()[:32]


def _remove_partial(store: Path) -> None:
    """Remove an unfinished output; what others have put there stays."""
    if sort_keys(files.keys_below(store))[1]:
        files.remove(store, MEMBERS)
    else:
        files.remove_at_once(store, store)


def reserve(out: Any, kind: Kind, *, overwrite: bool, resume: bool) -> Reserved:
    """Lock a path, and return the layout of the unfinished output there, which is continued: no run writes it."""
    target = Path(files.real_path(out))
    lock = _lock_of(target)
    with _locked(target, lock, overwrite, kind):
        return Reserved(target, _read_partial(_partial(target)), lock)


def begin(
    reserved: Reserved, layout: OutputLayout, form: Form, *, overwrite: bool, resume: bool, joins: bool
) -> DiskOutput:
    """Lock the path of an output, and create or resume it: see :func:`bigpca.storage.carriers.create_output`."""
    target = Path(files.real_path(files.path_of(reserved.target, "out")))
    lock = reserved.lock or _lock_of(target)
    with _locked(target, lock, overwrite, form.kind):
        return DiskOutput(target, _open_partial(target, layout, resume, form.kind == "table"), lock, form, overwrite)


@contextmanager
def _locked(target: Path, lock: RunLock, overwrite: bool, kind: Kind) -> Iterator[None]:
    """Lock a path where an output of this kind may be written, for this run; released if the body fails."""
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
            _repair(target)
            _reject_existing(target, overwrite, kind)
            yield
        except BaseException:
            lock.release()
            raise


def tidy(out: Any) -> None:
    """Remove what a run has left that was killed after its output was visible, unless another one holds it."""
    target = Path(files.real_path(out))
    with suppress(OSError, OutputLockedError), _lock_of(target):
        _repair(target)


def _repair(target: Path) -> None:
    """Complete what a killed run has left half-done, and remove what it needs no longer."""
    files.repair(target)
    files.repair(_partial(target))
    remove_journals(target)


def _lock_of(target: Path) -> RunLock:
    return RunLock(target.with_name(target.name + ".lock"), f"the output {target}")


def _partial(target: Path) -> Path:
    return target.with_name(target.name + ".partial")


def _open_partial(target: Path, layout: OutputLayout, resume: bool, copied: bool) -> DiskChunks:
    """Resume the partial output if it belongs to this run, else create it.

    Raises if the disk cannot hold it, and its copy beside it where it will be ``copied``.
    """
    store, document = _partial(target), partial_document(layout)
    journal = _journal(document, target)
    writer = DiskChunks(str(store), *layout.fields, str(store / journal))
    ours = _read_partial(store)
    for unfinished in store.glob(f".zarr.json.{'[0-9a-f]' * 32}.tmp"):  # of a run killed as it wrote the metadata
        files.remove(unfinished)
    if ours is not None and layout.grows:
        ours = replace(ours, shape=(layout.shape[0], *ours.shape[1:]))
    if ours == layout and resume and Path(writer.journal).is_dir():
        ended = Path(writer.journal, "rows")
        if ended.exists():  # by a run killed at its end: it grows again without its last chunk, if that is a short one
            n = rows_at_end(read_regular(ended, MAX_LOG_BYTES), str(ended), f"Remove {store}, and run this again.")
            if n % layout.chunk_rows:
                writer.chunk_path(n // layout.chunk_rows).unlink(missing_ok=True)
            ended.unlink()
        done = {record.index for record in writer.records() if writer.is_intact(record, check_bytes=False)}
        _check_disk(target, layout, sum(stop - start for start, stop in map(writer.row_range, done)), copied)
        return writer
    if ours is not None:
        check_replaced(str(store), str, [*files.keys_below(store)], "array", ("array", MEMBERS))
        _remove_partial(store)
    _check_disk(target, layout, 0, copied)
    with temporary_sibling(store) as sibling:
        made = sibling / f"new-{store.name}"
        (made / journal).mkdir(parents=True)
        (made / "c").mkdir()
        files.atomic_write_bytes(made / ROOT, json.dumps(document).encode())
        files.publish(made, store, replace=False, sibling=sibling)
    return writer


def _read_partial(store: Path) -> OutputLayout | None:
    """Read the layout of a partial output; None if there is none. Raises if unrelated files have its name."""
    if not os.path.lexists(store):
        return None
    if store.is_symlink():
        raise OutputExistsError(
            f"{store} is a symbolic link, which is not followed: the unfinished output would be written to its target. "
            "Remove it."
        )
    try:
        metadata = read_document(store / ROOT)
        own, grid = metadata["attributes"]["bigpca"], metadata["chunk_grid"]["configuration"]["chunk_shape"]
        ours = own["identity"] if own["format"] == list(FORMAT) and grid[1:] == metadata["shape"][1:] else ""
        if not (store / _journal(metadata, store.with_name(store.name.removesuffix(".partial")))).is_dir():
            raise ValueError("it has no journal of such an output")
        return OutputLayout(tuple(metadata["shape"]), np.dtype(metadata["data_type"]), int(grid[0]), ours)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OutputExistsError(
            f"{store} exists and is not an unfinished output of bigpca. Unfinished output would be written there: "
            "move it to another place."
        ) from error


def _check_disk(target: Path, layout: OutputLayout, rows_done: int, copied: bool) -> None:
    if layout.grows:
        return
    rows = layout.shape[0] * (2 if copied else 1) - rows_done
    d = math.prod(layout.shape[1:])
    needed = rows * d * layout.dtype.itemsize * 101 // 100
    free = files.free_bytes(target)
    if needed > free:
        twice = ", and all of them again in a table" if copied else ""
        raise MemoryBudgetError(
            f"{target} needs {needed:,} bytes of disk ({layout.shape[0] - rows_done:,} rows of {d} "
            f"{layout.dtype.name}{twice}, and 1 %), but {free:,} are free. Free space, or write to another disk."
        )


def reject_output(out: Any, overwrite: bool, kind: Kind, instead: str = "") -> None:
    """Raise OutputExistsError before the work if an output of this kind could not be written here after it."""
    with writing(out):  # rejects a name that is too long
        _reject_existing(Path(files.real_path(out)), overwrite, kind, instead)


def _reject_existing(target: Path, overwrite: bool, kind: Kind, instead: str = "") -> None:
    """Raise OutputExistsError unless ``target`` is free or an empty folder, or an output of this kind to overwrite."""
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise there(target, _describe(target), instead)
    if target.is_dir() and not os.listdir(target):
        return
    found: tuple[Kind, tuple[str, ...]] | None = ("table", ()) if target.is_file() else None
    if kind == "table" and found is not None:
        _check_begins(target)
    with suppress(OSError, ValueError):
        found = declared(read_document(target / ROOT))
    check_replaced(str(target), lambda: _describe(target), [*files.keys_below(target)], kind, found)


def _describe(path: Path) -> str:
    """Describe what is there in a few words: ``a Zarr array (1000, 64) float32``, ``a folder of other things``."""
    try:
        return described(read_document(path / ROOT))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "a folder of other things" if path.is_dir() else "a file"


def put_group(out: Any, contents: Contents, identity: str, members: Collection[str], *, overwrite: bool) -> None:
    """Write the files of a group; what it replaces stays until it is complete."""
    target = Path(files.real_path(files.path_of(out, "path")))
    with writing(target):
        files.repair(target)
        _reject_existing(target, overwrite, "model")
        with temporary_sibling(target) as sibling:
            files.write_files(made := sibling / f"new-{target.name}", contents())
            files.fsync_tree(made)
            _reject_existing(target, overwrite, "model")  # again: others may have put something there
            files.publish(made, target, replace=overwrite, sibling=sibling)


def got_group(out: Any) -> Stored:
    """Return what reads a group."""
    target = Path(files.real_path(out))
    folder = files.standing(target)
    if not folder.exists():
        raise FileNotFoundError(f"{target} does not exist. Check the path.")
    return Stored(
        str(target), lambda key, most: read_regular(folder / key, most), lambda reads: [one() for one in reads]
    )


def got_bytes(store: Any, key: str, limit: int) -> bytes:
    """Return a file of a store."""
    return read_regular(files.standing(Path(files.local_path(store))) / key, limit)


def _check_begins(path: Path) -> None:
    with path.open("rb") as file:
        check_begins(path, file.read(64))


def write_file(out: Any, data: bytes, *, overwrite: bool) -> Path:
    """Write a file beside its path, and rename it."""
    target = Path(files.local_path(out))
    with writing(target), temporary_sibling(target) as sibling:
        file = sibling / "file"
        files.atomic_write_bytes(file, data)
        with files.flock(target.parent, wait_seconds=files.MUTEX_SECONDS):
            _reject_existing(target, overwrite, "table")
            os.replace(file, target)
            files.fsync_path(target.parent)
    return target
