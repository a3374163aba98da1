"""The driver's side of an output: written in chunks of rows, locked, resumable, and invisible until complete.

Unfinished outputs: their layout, whether an earlier run's can be resumed, and whether the disk has room.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from bigpca.errors import MemoryBudgetError, OutputExistsError
from bigpca.storage.chunks import (
    MAX_LOG_BYTES,
    ChunkRecord,
    ChunkWriter,
    DiskChunks,
    array_metadata,
    fill_value,
    is_storable,
    reject_existing,
)
from bigpca.storage.files import (
    atomic_write_bytes,
    exists,
    file_mark,
    free_bytes,
    keys_below,
    name_of,
    publish,
    read_document,
    read_regular,
    remove,
    repair,
    temporary_sibling,
    writing,
)
from bigpca.storage.forms import NOTHING, SCORES, STORE, STORES, Annotations, Form, check_extension
from bigpca.storage.grammar import JOURNAL, MEMBERS, PUBLISHED, Kind, check_replaced
from bigpca.storage.lock import RunLock

FORMAT = (1, 0)
LEVEL = 1  # of zstd; scores and features hardly compress further
LARGEST_CHUNK = 2**31 - 1  # numcodecs' limit per buffer
GROWING = 2**62  # rows of an output whose number of rows is set before its last chunk is written


@dataclass(frozen=True)
class OutputLayout:
    """What must agree for a partial output to be resumed."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    identity: str

    @property
    def grows(self) -> bool:
        """Whether the number of rows is set at the end; the metadata have 0 until then."""
        return self.shape[0] == GROWING

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        """Whether the Zarr metadata of a partial output describe this layout."""
        return bool(
            tuple(metadata["shape"][1:]) == self.shape[1:]
            and (self.grows or metadata["shape"][0] == self.shape[0])
            and metadata["data_type"] == self.dtype.name
            and metadata["chunk_grid"]["configuration"]["chunk_shape"] == [self.chunk_rows, *self.shape[1:]]
            and metadata["attributes"]["bigpca"]["identity"] == self.identity
            and metadata["attributes"]["bigpca"]["format"] == list(FORMAT)
        )


def check_layout(shape: tuple[int, ...], dtype: DTypeLike, chunk_rows: int, identity: str) -> OutputLayout:
    """Check the requested output and return it in its stored form."""
    kind = np.dtype(dtype)
    if not is_storable(kind):
        raise TypeError(
            f"an output of dtype {kind} was requested, but only bool, integers and floats (up to 64 bits) are written. "
            "Choose float32 or float64."
        )
    if len(shape) < 2 or shape[0] < 0 or min(shape[1:]) < 1:
        raise ValueError(f"an output of shape {tuple(shape)} was requested, but it must be (n, d) with d >= 1.")
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


def open_partial(target: Path, layout: OutputLayout, resume: bool, *, copied: bool = False) -> DiskChunks:
    """Resume the partial output if it belongs to this run, else create it.

    Raises if the disk cannot hold it, and its copy beside it where it will be ``copied``.
    """
    store = target.with_name(target.name + ".partial")
    # Tasks of a run with another identity look for another journal, and so fail instead of mixing two outputs.
    journal = JOURNAL + hashlib.sha256(layout.identity.encode()).hexdigest()[:16]
    writer = DiskChunks(str(store), str(store / journal), layout.shape, layout.dtype.str, layout.chunk_rows, LEVEL)
    ours = _read_partial(store)
    for unfinished in store.glob(".zarr.json.*.tmp"):  # of a run that was killed while it wrote the metadata
        remove(unfinished)
    if ours is not None and resume and layout.matches(ours) and Path(writer.journal).is_dir():
        ended = Path(writer.journal, "rows")
        if ended.exists():  # by a run killed at its end: it grows again without its last chunk, if that is a short one
            n = int(read_regular(ended, MAX_LOG_BYTES))
            if n % layout.chunk_rows:
                writer.chunk_path(n // layout.chunk_rows).unlink(missing_ok=True)
            ended.unlink()
        done = {record.index for record in writer.records() if writer.is_intact(record, check_bytes=False)}
        _check_disk(target, layout, sum(stop - start for start, stop in map(writer.row_range, done)), copied)
        return writer
    if ours is not None:
        check_replaced(str(store), str, [*keys_below(store)], "array", ("array", MEMBERS))
        remove(store, MEMBERS)
    _check_disk(target, layout, 0, copied)
    document = json.dumps(partial_document(layout)).encode()
    with temporary_sibling(store) as sibling:
        atomic_write_bytes(sibling / "zarr.json", document)
        (sibling / journal).mkdir()
        (sibling / "c").mkdir()
        publish(sibling, store, replace=False)
    return writer


def partial_document(layout: OutputLayout) -> dict[str, Any]:
    """Return the metadata of an unfinished array."""
    shape = (0, *layout.shape[1:]) if layout.grows else layout.shape
    chunks = (layout.chunk_rows, *layout.shape[1:])
    attributes = {"kind": "partial array", "format": list(FORMAT), "identity": layout.identity}
    return array_metadata(shape, layout.dtype, chunks, fill_value(layout.dtype), LEVEL, {"bigpca": attributes})


def remove_journals(target: Path) -> None:
    """Remove what a run needs no longer once its output is visible: the logs in it, or the chunks beside a table."""
    for journal in target.glob(f"{JOURNAL}{'[0-9a-f]' * 16}"):
        remove(journal)
    store = target.with_name(target.name + ".partial")
    with suppress(FileNotFoundError, NotADirectoryError):
        if (store / PUBLISHED).read_text() == file_mark(target):
            remove(store, MEMBERS)  # after a kill, by the next run


def read_layout(target: Path) -> OutputLayout | None:
    """Return the layout of the partial output beside a path, whatever has its identity; None if there is none."""
    metadata = _read_partial(target.with_name(target.name + ".partial"))
    if metadata is None:
        return None
    identity, chunks = metadata["attributes"]["bigpca"]["identity"], metadata["chunk_grid"]["configuration"]
    return OutputLayout(tuple(metadata["shape"]), np.dtype(metadata["data_type"]), chunks["chunk_shape"][0], identity)


def _read_partial(store: Path) -> dict[str, Any] | None:
    """Read a partial output's metadata; None if there is none. Raises if unrelated files have its name."""
    if not exists(store):
        return None
    if store.is_symlink():
        raise OutputExistsError(
            f"{store} is a symbolic link, which is not followed: the unfinished output would be written to its target. "
            "Remove it."
        )
    try:
        metadata = read_document(store / "zarr.json")
        metadata["attributes"]["bigpca"]["identity"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputExistsError(
            f"{store} exists and was not written by bigpca. Unfinished output would be written there: move it to "
            f"another place."
        ) from error
    return dict(metadata)


def _check_disk(target: Path, layout: OutputLayout, rows_done: int, copied: bool) -> None:
    if layout.grows:
        return
    rows = layout.shape[0] * (2 if copied else 1) - rows_done
    d = math.prod(layout.shape[1:])
    needed = rows * d * layout.dtype.itemsize * 101 // 100
    free = free_bytes(target)
    if needed > free:
        twice = ", and all of them again in a table" if copied else ""
        raise MemoryBudgetError(
            f"{target} needs {needed:,} bytes of disk ({layout.shape[0] - rows_done:,} rows of {d} "
            f"{layout.dtype.name}{twice}, and 1 %), but {free:,} are free. Free space, or write to another disk."
        )


class Output(ABC):
    """An output being written: pass :attr:`writer` to the tasks, then :meth:`finish`; made by :func:`create_output`.

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
    place : bigpca.storage.places.Place or None
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

    @property
    def saturated(self) -> int:
        """How many values of the finished chunks are at the end of a range of codes."""
        return sum(record.saturated for record in self._finished().values())

    def finish(self, annotations: Annotations = NOTHING, then: Callable[[], Any] = lambda: None) -> Any:
        """Make the output visible: check that it is complete, give it its form, make it durable, publish it.

        A Zarr array's attributes get ``bigpca_manifest`` (CRC-32 of every stored chunk) and ``bigpca`` (kind, format,
        identity). Other runs may then write to the path.

        Parameters
        ----------
        annotations : Annotations
            Row keys, provenance, and what its numbers are.
        then : callable
            Called once the output is visible, while what it no longer needs is removed; its result is returned.

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
        ended = self._close()
        found = then()
        ended()
        return found

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
        """Take note of a chunk that a task or this process has written, and logged where that is a file."""

    def review(self) -> None:  # noqa: B027  # as above
        """Begin to look at all chunks once more for :meth:`finish`, where that takes long: no more are written."""

    def stamps(self) -> list[tuple[str, int, int | str | None]] | None:
        """Return the stamps of the chunks as they were published; None if that takes another look."""
        return None

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
    def _close(self) -> Callable[[], object]:
        """Begin to remove what is of no use once the output is visible, and let other runs write; return the end."""

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
        return not exists(Path(self.writer.store))

    def _publish(self, finished: dict[int, ChunkRecord], annotations: Annotations) -> None:
        crc32 = {index: record.crc32 for index, record in finished.items()}
        with writing(self.path):
            self._form.commit(self.writer, crc32, self.path, annotations, self._replace)

    def _close(self) -> Callable[[], object]:
        remove_journals(self.path)
        self._lock.release()
        return lambda: None

    def abort(self) -> None:
        """Release the lock and keep finished chunks for the next run; remove the output if there are none."""
        if not self._lock.held:
            return
        try:
            remove_journals(self.path)  # if an error came after the output had become visible
            if not self._finished():
                remove(Path(self.writer.store), MEMBERS)
        finally:
            self._lock.release()

    def keep(self, name: str, data: bytes) -> None:
        """Write the record into the journal."""
        with self.writer.storing(name, len(data)):
            atomic_write_bytes(Path(self.writer.journal, name), data)

    def kept(self, name: str) -> bytes | None:
        """Read the record in the journal."""
        path = Path(self.writer.journal, name)
        return read_regular(path, MAX_LOG_BYTES) if path.exists() else None

    def _is_open(self) -> bool:
        return self._lock.held


def output_lock(target: Path) -> RunLock:
    """Return the lock of an output, which is not acquired yet."""
    return RunLock(target.with_name(target.name + ".lock"), f"the output {target}")


@contextmanager
def locked(target: Path, lock: RunLock, overwrite: bool, kind: Kind) -> Iterator[None]:
    """Lock a path where an output of this kind may be written, for this run; released if the body fails."""
    repair(target)
    remove_journals(target)
    reject_existing(target, overwrite, kind)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire()
        repair(target)
        reject_existing(target, overwrite, kind)
        yield
    except BaseException:
        lock.release()
        raise


def check_output(
    path: Any, shape: tuple[int | None, ...], dtype: DTypeLike, chunk_rows: int, identity: str, form: Form
) -> OutputLayout:
    """Check what is asked of a new output, and return its layout."""
    layout = check_layout(tuple(GROWING if size is None else size for size in shape), dtype, chunk_rows, identity)
    check_extension(name_of(path), *(SCORES if form.kind == "table" else STORES))
    return layout


def create_output(
    path: str | os.PathLike[str],
    *,
    shape: tuple[int | None, ...],
    dtype: DTypeLike,
    chunk_rows: int,
    identity: str,
    form: Form = STORE,
    overwrite: bool = False,
    resume: bool = True,
    lock: RunLock | None = None,
) -> Output:
    """Create, or resume, one Zarr v3 array, or table, that becomes visible at ``path`` only when it is complete.

    It is written in ``<path>.partial`` under the lock ``<path>.lock``. Chunks are (chunk_rows, d), zstd with a
    checksum; the fill value is NaN for floats. Chunks finished by a killed run with the same ``identity`` are kept.

    Parameters
    ----------
    path : path of the array; missing parent folders are created. For URLs see
        :func:`bigpca.storage.objects.create_objects`.
    shape : (n, d), d >= 1; for a Zarr array also (n, c, h, w), and None for an n that :meth:`Output.set_rows` sets.
    dtype : bool, integer or floating; float16 stays float16.
    chunk_rows : rows per chunk (at most n are used).
    identity : fingerprint of the content; a partial output with another one is removed.
    form : what becomes of the chunks: a Zarr array, or a table.
    overwrite : replace rows or scores that bigpca wrote (a table: a file), which stay until the new ones are complete.
    resume : False starts again.
    lock : the lock of the output, if the caller holds it already.

    Raises
    ------
    OutputExistsError
        If ``path`` exists, and ``overwrite`` is False or would not replace it (:mod:`bigpca.storage.grammar`).
    OutputLockedError
        If a live run holds it.
    OutputWriteError
        If the file system rejects it: missing permission, a name that is too long.
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
    layout = check_output(path, shape, dtype, chunk_rows, identity, form)
    target = Path(os.path.realpath(path))
    lock = output_lock(target) if lock is None else lock
    with writing(target), locked(target, lock, overwrite, form.kind):
        writer = open_partial(target, layout, resume, copied=form.kind == "table")
        return DiskOutput(target, writer, lock, form, overwrite)
