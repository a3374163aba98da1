"""The driver's side of an output: written in chunks of rows, locked, resumable, and invisible until complete."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from bigpca.storage.annotations import NOTHING, Annotations
from bigpca.storage.chunks import ChunkRecord, ChunkWriter
from bigpca.storage.files import exists, remove, repair, writing
from bigpca.storage.forms import SCORES, STORE, STORES, Form, check_extension
from bigpca.storage.lock import RunLock
from bigpca.storage.partial import GROWING, check_layout, open_partial, remove_journals, set_rows
from bigpca.storage.stores import reject_existing


class Output:
    """An output being written: pass :attr:`writer` to the tasks, then :meth:`finish`; made by :func:`create_output`.

    Leaving its context without :meth:`finish` aborts it, and it can be resumed.

    Attributes
    ----------
    path : Path
        Path of the finished array or table.
    writer : ChunkWriter
        Small and picklable; ``writer.write(index, rows)`` in any process.
    shape : tuple of int
    dtype : dtype
    n_chunks : int
    """

    def __init__(self, path: Path, writer: ChunkWriter, lock: RunLock, form: Form, replace: bool) -> None:
        self.path = path
        self.writer = writer
        self.shape = writer.shape
        self.dtype = np.dtype(writer.dtype)
        self.n_chunks = writer.n_chunks
        self._lock = lock
        self._form = form
        self._replace = replace
        # Chunks of earlier runs are trusted only after their bytes are checked; those of this run, by their size.
        self._earlier = {r.index: r for r in writer.records() if writer.is_intact(r, check_bytes=True)}
        self._distrusted = {r for r in writer.records() if self._earlier.get(r.index) != r}

    def _finished(self) -> dict[int, ChunkRecord]:
        found = dict(self._earlier)
        for record in self.writer.records():
            if record not in self._distrusted and self.writer.is_intact(record, check_bytes=False):
                found[record.index] = record
        return found

    def row_range(self, index: int) -> tuple[int, int]:
        """Return the rows [start, stop) of one chunk."""
        return self.writer.row_range(index)

    def leading(self) -> int:
        """Return how many chunks are finished before the first one that is not."""
        finished = self._finished()
        return next(index for index in range(len(finished) + 1) if index not in finished)

    def set_rows(self, n: int) -> bool:
        """Set the number of rows of an output that grows, before its last chunk is written and it is finished.

        False if an interrupted :meth:`finish` has made it visible already.
        """
        self._check_open()
        if not self._is_visible():
            set_rows(self.writer, n)
        self.writer = replace(self.writer, shape=(n, *self.shape[1:]))
        self.shape, self.n_chunks = self.writer.shape, self.writer.n_chunks
        return not self._is_visible()

    def _is_visible(self) -> bool:
        """Whether the unfinished output was renamed, which nobody else does while the lock is held."""
        return not exists(Path(self.writer.store))

    def pending(self) -> list[int]:
        """List the chunks still to be written, in order; costs one log per process and one stat per chunk."""
        finished = self._finished()
        return [index for index in range(self.n_chunks) if index not in finished]

    def finish(self, annotations: Annotations = NOTHING) -> None:
        """Make the output visible: check that it is complete, give it its form, force it to the disk, rename it.

        A Zarr array's attributes get ``bigpca_manifest`` (CRC-32 of every chunk's file) and ``bigpca`` (kind, format,
        identity). The lock is released.

        Parameters
        ----------
        annotations : Annotations
            Row keys and provenance.

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
            crc32 = {index: record.crc32 for index, record in finished.items()}
            with writing(self.path):
                self._form.commit(self.writer, crc32, self.path, annotations, self._replace)
        remove_journals(self.path)
        self._lock.release()

    def abort(self) -> None:
        """Release the lock and keep finished chunks for the next run; remove the output if there are none.

        A no-op after :meth:`finish`.
        """
        if not self._lock.held:
            return
        try:
            if not self._finished():
                remove(Path(self.writer.store))
        finally:
            self._lock.release()

    def _check_open(self) -> None:
        if not self._lock.held:
            raise RuntimeError(f"the output {self.path} is finished or aborted already. Create it again to resume.")

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()


def output_lock(target: Path) -> RunLock:
    """Return the lock of an output, which is not acquired yet."""
    return RunLock(target.with_name(target.name + ".lock"), f"the output {target}")


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
    path : path of the array; missing parent folders are created.
    shape : (n, d), d >= 1; for a Zarr array also (n, c, h, w), and None for an n that :meth:`Output.set_rows` sets.
    dtype : bool, integer or floating; float16 stays float16.
    chunk_rows : rows per chunk (at most n are used).
    identity : fingerprint of the content; a partial output with another one is removed.
    form : what becomes of the chunks: a Zarr array, or a table.
    overwrite : replace an existing Zarr store (by a table also a file), which stays until the new one is complete.
    resume : False starts again.
    lock : the lock of the output, if the caller holds it already.

    Raises
    ------
    OutputExistsError
        If ``path`` exists and ``overwrite`` is False, or it is not a Zarr store.
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
    ...         start, stop = output.row_range(index)
    ...         size = output.writer.write(index, np.ones((stop - start, 2), np.float32))
    ...     output.finish()
    >>> float(zarr.open_array(path, mode="r")[...].sum())
    10.0
    """
    layout = check_layout(tuple(GROWING if size is None else size for size in shape), dtype, chunk_rows, identity)
    form.check()
    check_extension(path, *(SCORES if form.is_table else STORES))
    target = Path(os.path.realpath(path))
    with writing(target):
        repair(target)
        remove_journals(target)
        reject_existing(target, overwrite, table=form.is_table)
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = output_lock(target) if lock is None else lock
        try:
            lock.acquire()
            repair(target)
            reject_existing(target, overwrite, table=form.is_table)
            writer = open_partial(target, layout, resume, copied=form.is_table)
            return Output(target, writer, lock, form, overwrite)
        except BaseException:
            lock.release()
            raise
