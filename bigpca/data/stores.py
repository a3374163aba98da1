"""Whole stores of rows: copied from any source, written batch by batch, and checked chunk by chunk."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import DTypeLike

import bigpca.dask_array as da
from bigpca.arrays import Array, Input, Path, working_dtype
from bigpca.csr import form_of
from bigpca.data import zarr_format
from bigpca.data.batches import same_columns, split_batch
from bigpca.data.checks import NATIVE_BYTES, check_dtype, check_shape, is_decode_error, row_width
from bigpca.data.containers import is_zarr_array
from bigpca.data.keys import KeyList
from bigpca.data.provenance import Made, Provenance
from bigpca.data.sources import open as open_array
from bigpca.data.sparse import row_range
from bigpca.data.zarr_arrays import Cell, ChunkFiles, arrays_of, open_node
from bigpca.engine.events import ProgressArgument, resolve_progress
from bigpca.engine.layout import SLAB_BYTES
from bigpca.engine.planning import MIN_GROUP_BYTES, PIECES
from bigpca.engine.run import Run
from bigpca.errors import OutputWriteError, brief, format_bytes
from bigpca.passes.project import project_to
from bigpca.passes.reading.row_maps import Copy
from bigpca.passes.rows import Rows
from bigpca.storage.carriers import create_output, reserve
from bigpca.storage.files import is_objects, local_path, name_of, path_of, public, without_credentials
from bigpca.storage.outputs import STORES, Annotations, ChunkRecord, Output, OutputLayout, check_extension, fitted

if TYPE_CHECKING:
    import zarr

IDENTITY = "features written in batches"  # of their outputs, which may be continued
MANIFEST = "bigpca_manifest"
THREADS = 4  # that decode chunks
DECODED_BYTES = 512 * 2**20  # chunks decoded at once, together


def ingest(
    source: Input,
    out: str | os.PathLike[str],
    *,
    dtype: DTypeLike | None = None,
    chunk_rows: int | None = None,
    keys: Input | None = None,
    overwrite: bool = False,
    progress: ProgressArgument = None,
) -> da.Array:
    """Copy any source that :func:`bigpca.open` accepts into one Zarr array of whole-row chunks, and return it opened.

    The chunks hold about 64 MiB, or less, down to 4 MiB, so that there are at least 64 of them. They are compressed by
    zstd with a checksum, and written even if empty; a float store's fill value is NaN, so that a lost chunk is never
    mistaken for data. The output is invisible until complete; if a killed run is started again with the same arguments,
    it writes only what is missing. One read of the source.

    Parameters
    ----------
    source : anything for :func:`bigpca.open`, or what it returned, such as that of a member
    out : path of the new Zarr array
    dtype : dtype to store; None for the source's (float16 stays float16), default None
    chunk_rows : rows per chunk; None for 4 to 64 MiB, default None
    keys : array-like of shape (n,), or path such as ``"labels.csv::name"``, default None
        One string or integer for each row, stored beside the rows (:func:`bigpca.data.keys.row_keys`); None for the
        keys of the source, if it has any: those of a store on disk, or the index of a frame that names rows.
    overwrite : replace an existing output once the new one is complete, default False
    progress : True for a bar, or a callable that receives events, default None

    Returns
    -------
    dask.array.Array of shape (n, d)

    Raises
    ------
    OutputExistsError, OutputLockedError, MissingChunksError, CorruptedChunkError, MemoryBudgetError, OSError
    TypeError
        For dtypes that cannot be used, and for sparse rows, which would be written dense.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for i in range(3):
    ...     np.save(folder / f"shard_{i}.npy", np.full((4, 2), i, "f2"))
    >>> X = ingest(folder, folder / "all.zarr")
    >>> X.shape, X.dtype.name, X[-1].compute().tolist()
    ((12, 2), 'float16', [2.0, 2.0])
    """
    X = open_array(source)
    rows = Rows.of(X)
    if rows.n_rows == 0 or rows.n_columns == 0:
        raise ValueError(f"the source has shape {X.shape}: at least one row and one column were expected.")
    _reject_sparse(rows)
    if dtype is not None:
        check_dtype(np.dtype(dtype))
    f = Copy(None if dtype is None else np.dtype(dtype).str)
    row_bytes = max(
        1, rows.n_columns * max(f.output_dtype(rows.dtype).itemsize, working_dtype(rows.dtype).itemsize // 2)
    )
    native, most = max(rows.origin.row_chunks, default=1) or 1, max(1, min(rows.n_rows, SLAB_BYTES // row_bytes))
    fitting = min(most, max(1, MIN_GROUP_BYTES // row_bytes, rows.n_rows // PIECES))
    # Whole chunks of the source, or parts of one, which is decoded for each of them: 64 or more decode one chunk each.
    parts = (size for size in range(fitting, fitting // 2, -1) if native % size == 0)
    size = chunk_rows or (fitting // native * native if native <= fitting else next(parts, fitting))
    with resolve_progress(progress) as report:
        run = Run(None, report, scheduler="local" if rows.order.in_process else None)
        return project_to(
            rows,
            f,
            rows.n_columns,
            out,
            name="ingest",
            run=run,
            made=Made(call="bigpca.ingest", keys=keys),
            overwrite=overwrite,
            chunk_rows=size,
        )


def _reject_sparse(rows: Rows) -> None:
    """Reject sparse rows: a dense copy is of no use to a fit, and many times as large.

    Raises
    ------
    TypeError
        States both sizes, and what copies sparse rows, or writes dense ones after all.
    """
    if not rows.sparse:
        return
    source = rows.source
    dense = format_bytes(rows.n_rows * rows.n_columns * rows.dtype.itemsize)
    stored = "" if source is None else f" where {format_bytes(rows.n_rows * source.row_bytes)} are stored"
    raise TypeError(
        f"{'the source' if source is None else source.label} is sparse, {rows.n_rows:,} x {rows.n_columns:,}, and "
        f"ingest writes dense rows: {dense}{stored}. A fit reads sparse stores as they are. To copy one to Zarr, still "
        'sparse: anndata.io.write_elem(zarr.open_group(out, mode="w"), "X", bigpca.open(source)). For dense rows pass '
        "bigpca.open(source).map_blocks(lambda block: block.toarray(), meta=np.empty((0, 0)))."
    )


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
        self.path: pathlib.Path | str = target if isinstance(target, pathlib.Path) else target.describe()
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


@dataclass(frozen=True)
class VerifyReport:
    """The result of checking all chunks.

    Attributes
    ----------
    path : str
    chunks : int
        Stored objects (chunks, or shards) checked.
    missing, damaged : tuple of str
        Keys, prefixed by the array's path inside a group.
    checksummed : bool
        Whether a flipped bit would have been detected in every array (a checksum codec or a bigpca manifest).
    seconds : float
    skipped : tuple of str
        Arrays that were not checked (such as labels stored as strings), with the reason.
    unread : tuple of str
        Arrays of numbers that bigpca does not read, and so did not check, with the reason.
    """

    path: str
    chunks: int
    missing: tuple[str, ...]
    damaged: tuple[str, ...]
    checksummed: bool
    seconds: float
    skipped: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all numbers were read, and nothing is missing or damaged."""
        return not (self.missing or self.damaged or self.unread)

    def __str__(self) -> str:
        bad = len(self.missing) + len(self.damaged)
        head = "all chunks exist and decode" if self.ok else f"{bad:,} of {self.chunks:,} chunks are bad"
        if self.unread:
            head = f"{head if bad else 'no chunk is bad'}, but not all were read"
        counted = "1 chunk" if self.chunks == 1 else f"{self.chunks:,} chunks"
        lines = [f"{self.path}: {head} ({counted}, {self.seconds:.1f} s)"]
        for what, keys in (("missing", self.missing), ("damaged", self.damaged)):
            if keys:
                lines.append(f"  {what} {len(keys):,}: {', '.join(keys[:10])}{', ...' if len(keys) > 10 else ''}")
        if self.missing:
            lines.append("  A missing chunk was lost, or held only the fill value and was dropped by its writer.")
        if not self.checksummed:
            lines.append("  The store has no checksum codec and no bigpca manifest: flipped bits cannot be detected.")
        lines += [f"  not checked: {one}" for one in (*self.unread, *self.skipped)]
        return "\n".join(lines)


def verify(path: Path) -> VerifyReport:
    """Decode every chunk of a Zarr array, or of each array of a group, and list those that are missing or damaged.

    Parameters
    ----------
    path : str, path, store of Zarr, obstore store or :class:`bigpca.ObjectStore`
        Zarr array or group, v2 or v3; also one inside another, such as a sparse matrix.

    Returns
    -------
    VerifyReport
        One read of the store; up to 4 chunks (512 MiB) in memory. If the store has a bigpca manifest, the bytes of each
        file are compared too, which also detects swapped chunks.

    Raises
    ------
    FileNotFoundError
        If the path holds no Zarr store.
    """
    given: Any = path if is_objects(path) else local_path(path_of(path, "path"))
    location = given
    if not isinstance(given, str):
        from bigpca.storage.places import ObjectStore  # for object stores only

        location = ObjectStore(given).describe()
    return _verified(given, location)


def _verified(given: Any, location: str) -> VerifyReport:
    started = time.perf_counter()
    found: dict[str, list[str]] = {"missing": [], "damaged": []}
    chunks, checksummed, skipped, unread = 0, True, list[str](), list[str]()
    for name, array in _arrays(given, location):
        try:
            zarr_format.check_document(zarr_format.array_document(array), name or public(location))
        except TypeError as error:
            skipped.append(str(error))
            continue
        except ValueError as error:
            unread.append(str(error))
            continue
        files, manifest = ChunkFiles.of(array), _manifest(array)
        checksummed &= bool(manifest) or zarr_format.has_checksum(files.document)
        with without_credentials(location):
            for key, verdict in _verdicts(files, manifest):
                chunks += 1
                if verdict:
                    found[verdict].append(f"{name}/{key}" if name else key)
    sorted_keys = {what: tuple(keys) for what, keys in found.items()}
    return VerifyReport(
        public(location),
        chunks,
        **sorted_keys,
        checksummed=checksummed,
        seconds=time.perf_counter() - started,
        skipped=tuple(skipped),
        unread=tuple(unread),
    )


def _arrays(given: Any, location: str) -> list[tuple[str, zarr.Array[Any]]]:
    if not is_objects(given) and not os.path.isdir(given):
        why = "is not a directory" if os.path.exists(given) else "does not exist"
        raise FileNotFoundError(f"{location} {why}; a Zarr store was expected. Check the path.")
    try:
        with without_credentials(location), zarr_format.naming_damage(public(location)):
            node = open_node(given)
            return [("", node)] if is_zarr_array(node) else list(arrays_of(node))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{public(location)} holds no Zarr array or group. Check the path.") from error


def _manifest(array: zarr.Array[Any]) -> Mapping[str, int]:
    manifest: Any = array.attrs.get(MANIFEST)
    if array.shards or not isinstance(manifest, Mapping) or manifest.get("algorithm") != "crc32":
        return {}
    return manifest.get("chunks") or {}


def _verdicts(files: ChunkFiles, manifest: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield (key, verdict) of every chunk in order; the verdict of a good chunk is empty."""
    threads = max(1, min(THREADS, DECODED_BYTES // max(files.cell_bytes, 1)))
    cells = files.all_cells()
    with ThreadPoolExecutor(threads, thread_name_prefix="bigpca-verify") as pool:
        while batch := list(itertools.islice(cells, 1024)):
            yield from pool.map(partial(_verdict, files, manifest), batch)


def _verdict(files: ChunkFiles, manifest: Mapping[str, int], cell: Cell) -> tuple[str, str]:
    key = files.key(cell)
    known = manifest.get(key)
    try:
        with closing(files.whole(cell)) as opened:
            one = next(opened)
            if one.file is None:
                return key, "missing"
            if known is not None and one.size <= files.decoder.max_stored and zlib.crc32(one.file.read()) == known:
                return key, ""
            files.decoder.decode(one.file, one.size, files.empty([part.stop for part in one.own]), one.own)
    except Exception as error:
        if not is_decode_error(error):
            raise
        return key, "damaged"
    return key, "" if known is None else "damaged"
