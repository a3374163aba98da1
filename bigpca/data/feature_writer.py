"""Write batches of rows, such as a network produces them, to one Zarr array that is complete or absent."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from bigpca.arrays import Array, Input
from bigpca.csr import form_of
from bigpca.data.batches import same_columns, split_batch
from bigpca.data.checks import NATIVE_BYTES, check_dtype, check_shape, row_width
from bigpca.data.keys import KeyList
from bigpca.data.provenance import Provenance
from bigpca.data.sparse import row_range
from bigpca.errors import OutputWriteError, brief
from bigpca.storage.carriers import create_output, reserve
from bigpca.storage.chunks import ChunkRecord, fitted
from bigpca.storage.files import name_of
from bigpca.storage.forms import STORES, Annotations, check_extension
from bigpca.storage.outputs import Output, OutputLayout

IDENTITY = "features written in batches"


class FeatureWriter:
    """Write batches of rows to a Zarr array, in whole chunks with checksums; it becomes visible when it is closed.

    At most two chunks of rows are held in memory, and up to 64 MiB that are being sent to an object store. If the
    process is killed, the complete chunks are kept: a new writer with the same path continues after them, and
    ``n_rows`` is the first row to write next. As a context manager, it closes at the end of the block. If an error is
    raised, the complete chunks are kept as after a kill. An interrupt leaves a batch either complete or absent;
    ``n_rows`` says which.

    Only one process may write to a path; others are rejected. Each process needs its own path. A distributed sampler
    changes the order of samples and repeats some, so use keys to identify rows.

    Parameters
    ----------
    out : path, URL or :class:`bigpca.ObjectStore` of the new array
    dtype : dtype, optional
        Dtype to store; None for that of the first batch. Values that it cannot hold are rejected; bfloat16 becomes
        float32.
    chunk_rows : int, optional
        Rows per chunk; None for about 16 MiB.
    overwrite : bool, default False
        Replace rows that bigpca wrote once the new ones are complete; at a URL, delete them first.
    resume : bool, default False
        At a URL, continue what a killed writer left there. On a disk, the lock shows whether the other writer has
        ended; at a URL, only you know.

    Attributes
    ----------
    n_rows : int
        Rows so far, including those of an earlier writer of the same path that was killed.
    path : Path, or str of a URL

    Raises
    ------
    OutputExistsError
        If something is at the path.
    OutputLockedError
        If a live writer holds it.
    ValueError
        If an unfinished output of the path has another dtype or chunks than the given ones.

    Examples
    --------
    >>> import pathlib, tempfile, bigpca as bp
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "features.zarr"
    >>> with FeatureWriter(out) as writer:
    ...     writer.write(np.ones((3, 2, 2, 2), np.float16), keys=["a", "b", "c"])
    ...     writer.write(np.zeros((1, 2, 2, 2), np.float16), keys=["d"])
    >>> bp.open(out).shape, bp.data.stored_keys(out).tolist()
    ((4, 8), ['a', 'b', 'c', 'd'])
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        dtype: DTypeLike | None = None,
        chunk_rows: int | None = None,
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        check_extension(name_of(out), *STORES)
        whole = isinstance(chunk_rows, int | np.integer) and not isinstance(chunk_rows, bool)
        if chunk_rows is not None and (not whole or chunk_rows < 1):
            raise ValueError(f"chunk_rows = {chunk_rows!r}; a number of rows, at least 1, was expected.")
        self._dtype = None if dtype is None else check_dtype(dtype)
        self._chunk_rows = None if chunk_rows is None else int(chunk_rows)
        self._began = time.perf_counter()
        self._output: Output | None = None
        # Rows so far, and the buffer of the chunk that they end in: changed by one assignment once a batch is appended.
        # What an interrupt leaves beyond those rows, in the buffer, the keys and the files, is written over.
        self._state: tuple[int, Array] = (0, np.zeros((0, 0)))
        self._keys = KeyList()
        self._names: list[Any] | None = None  # of columns
        self._begun: deque[Future[ChunkRecord]] = deque()  # chunks that are being stored
        self._failed = self._closed = False
        self._overwrite, self._continues = overwrite, resume
        self._reserved = reserve(out, "array", overwrite=overwrite, resume=resume)
        target, self._lock = self._reserved.target, self._reserved.lock
        self.path: Path | str = target if isinstance(target, Path) else target.describe()
        try:
            self._resume(self._reserved.layout)
        except BaseException:
            self.abort()
            raise

    @property
    def n_rows(self) -> int:
        """Rows so far."""
        return self._state[0]

    def write(self, batch: Input, keys: Input | None = None) -> None:
        """Append a batch of rows; chunks are written once they are complete.

        At a URL, up to 64 MiB of chunks may still be in flight when this returns.

        Parameters
        ----------
        batch : array or tensor of shape (b, d), (b, t, d) or (b, c, h, w)
            Any number of rows b; the other dimensions are those of the first batch, and are stored. Sparse rows are
            stored dense. Or a table of numbers, or of one column of vectors.
        keys : array-like of shape (b,), optional
            A distinct string or integer for each row, with each batch or with none.

        Raises
        ------
        ValueError
            For another shape of rows than that of the first batch; values that the dtype cannot hold; keys that are
            missing, repeated (within this batch or from an earlier one), or not one per row. None of the batch is
            written.
        TypeError
            For dtypes that cannot be stored or cast to the stored dtype.
        OSError
            If the disk is full: the writer is closed, and a new one for the same path continues after the complete
            chunks.
        RuntimeError
            If the writer is closed.
        """
        self._check_open()
        label = f"the batch from row {self.n_rows:,}"
        given, labels = split_batch(batch, label)
        rows = form_of(given).here(given)
        if labels is not None:
            raise TypeError(f"{label} has rows and labels; rows alone are stored. Call write(rows), or give keys.")
        check_shape(rows.shape, label)
        names = same_columns(batch, self._names, label)
        output = self._output
        if output is None:
            dtype = rows.dtype if self._dtype is None else self._dtype
            row_bytes = max(1, row_width(rows.shape) * dtype.itemsize)
            output = self._open(rows.shape[1:], dtype, self._chunk_rows or max(1, NATIVE_BYTES // row_bytes))
        if rows.shape[1:] != output.shape[1:]:
            raise ValueError(
                f"{label} has rows of shape {brief(rows.shape[1:])}, but the first batch has "
                f"{brief(output.shape[1:])}. The same shape was expected: write other features to another path."
            )
        if not np.can_cast(rows.dtype, output.dtype, "same_kind"):
            raise TypeError(
                f"{label} is {rows.dtype}, which {output.dtype.name}, the dtype of the output, cannot represent. "
                "Convert the batches, or write them to another path."
            )
        rows = _fitting(rows, output.dtype, self.n_rows)
        self._add_keys(keys, rows.shape[0], label)
        self._names = names
        try:
            self._append(rows, output)
        except BaseException:
            self._failed = True
            self.abort()
            raise

    def close(self) -> None:
        """Write the last chunk and make the array visible. A second call does nothing, or completes an interrupted one.

        Raises
        ------
        ValueError
            If no rows were written.
        RuntimeError
            If an earlier batch failed: complete chunks are kept, and nothing becomes visible.
        """
        if self._failed:
            self._check_open()
        if not self._is_open():
            return
        if self._output is None or self.n_rows == 0:
            self.abort()
            raise ValueError(f"no rows were written to {self.path}; at least one was expected. Nothing was created.")
        output, (n, buffer) = self._output, self._state
        self._note(output, all_of=True)
        self._keys.keep(n)
        texts = self._keys.texts
        if texts and len(texts) != n:
            raise RuntimeError(f"{n:,} rows have {len(texts):,} keys; one for each was expected. Write them anew.")
        held = n % len(buffer)
        if output.set_rows(n) and held:
            self._write_chunk(n - held, buffer[:held], output)
        self._note(output, all_of=True)
        seconds = time.perf_counter() - self._began
        call = f"FeatureWriter({str(self.path).rpartition('/')[2]!r})"
        made = Provenance.now([], "", self.n_rows, call, seconds=seconds, reads=0.0)
        keys = np.array(texts) if texts else None
        output.finish(Annotations(keys, replace(made, reads=None).to_json()))
        self._closed = True

    def abort(self) -> None:
        """Close without finishing; complete chunks are kept for the next writer of the path."""
        try:
            if self._output is not None:
                wait(self._begun)
                self._output.abort()
        finally:
            self._closed = True
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.close()
        finally:
            self.abort()

    def __repr__(self) -> str:
        return f"<FeatureWriter {self.path} n_rows={self.n_rows}{'' if self._is_open() else ' closed'}>"

    def _is_open(self) -> bool:
        return not self._closed and (self._lock is None or self._lock.held)

    def _check_open(self) -> None:
        if not self._is_open() or self._failed:
            raise RuntimeError(
                f"the writer of {self.path} is closed. Make a new one for another path"
                + ("; a new one for the same path continues after the complete chunks." if self._failed else ".")
            )

    def _resume(self, found: OutputLayout | None) -> None:
        """Continue the unfinished output of a killed writer, if there is one."""
        if found is None or found.identity != IDENTITY:
            return
        for name, given, stored in (
            ("dtype", self._dtype, found.dtype.newbyteorder("=")),
            ("chunk_rows", self._chunk_rows, found.chunk_rows),
        ):
            if given is not None and given != stored:
                raise ValueError(
                    f"{self.path}.partial, which a writer left unfinished, has {name} = {stored}, but {given} was "
                    f"given. Give {stored} to continue it, or remove it to start again."
                )
        output = self._open(found.shape[1:], found.dtype, found.chunk_rows)
        chunks = output.leading()
        self._state, texts = (chunks * found.chunk_rows, self._state[1]), list[str]()
        for index in range(chunks):
            keys: Any = None
            with suppress(ValueError, RecursionError):
                keys = json.loads(output.kept(f"keys-{index}.json") or "[]")
            whole = isinstance(keys, list) and len(keys) in (0, found.chunk_rows)
            if not whole or not all(isinstance(key, str) for key in keys):
                raise OutputWriteError(
                    f"{self.path}: the keys of chunk {index} in its unfinished output are damaged: "
                    f"{brief(repr(keys))}; {found.chunk_rows:,} texts were expected. Run it again with "
                    "overwrite=True."
                )
            if not keys:  # no rows have keys
                break
            texts += keys
        self._keys = KeyList(texts)

    def _open(self, row_shape: tuple[int, ...], dtype: np.dtype[Any], chunk_rows: int) -> Output:
        output = create_output(
            self._reserved,
            shape=(None, *row_shape),
            dtype=dtype,
            chunk_rows=chunk_rows,
            identity=IDENTITY,
            overwrite=self._overwrite,
            resume=self._continues or self._lock is not None,
            joins=False,
        )
        self._state = 0, np.empty((chunk_rows, *row_shape), dtype)
        self._output = output
        return output

    def _append(self, rows: Any, output: Output) -> None:
        """Add rows to the buffer; write it, and what follows, as far as chunks are full. Sparse rows become dense."""
        (n, buffer), done, count = self._state, 0, int(rows.shape[0])
        size = len(buffer)
        while done < count:
            first, held = n + done - (n + done) % size, (n + done) % size
            part = row_range(rows, done, min(count, done + size - held))
            taken = form_of(part).dense(part)
            if done and n % size and len(taken) < size:
                buffer = np.empty_like(buffer)  # until the batch is appended, the rows of the other one count
            if held or len(taken) < size:
                buffer[held : held + len(taken)] = taken
            if held + len(taken) == size:
                self._write_chunk(first, buffer if held else taken, output)
            done += len(taken)
        self._state = n + count, buffer

    def _write_chunk(self, first: int, rows: Array, output: Output) -> None:
        """Write the keys of a chunk's rows, then the chunk."""
        index = first // len(self._state[1])
        keys = json.dumps(self._keys.texts[first : first + len(rows)]).encode()
        keep = partial(output.keep, f"keys-{index}.json", keys) if self._keys.texts else None
        self._begun.append(output.writer.begin(index, rows, first=keep))
        self._note(output)

    def _note(self, output: Output, *, all_of: bool = False) -> None:
        """Note chunks that are stored, in order; at an object store, many are in flight."""
        while self._begun and (all_of or self._begun[0].done()):
            output.note(self._begun[0].result())
            self._begun.popleft()

    def _add_keys(self, keys: Any, count: int, label: str) -> None:
        self._keys.keep(self.n_rows)
        if (keys is not None) != bool(self._keys.texts) and self.n_rows:
            given = "no keys" if keys is None else "keys"
            raise ValueError(f"{label} has {given}, unlike earlier batches. Give keys with every batch, or with none.")
        if keys is not None:
            self._keys.add(keys, count, label)


def _fitting(rows: Any, dtype: np.dtype[Any], first: int) -> Any:
    """Return rows in a dtype, in the host's memory.

    Raises
    ------
    ValueError
        If finite values overflow it; names the first row.
    """
    form = form_of(rows)
    with suppress(ValueError):
        return form.mapped(form.here(rows), lambda values: fitted(values, dtype, first))
    return fitted(form.dense(rows), dtype, first)  # whose error names the row
