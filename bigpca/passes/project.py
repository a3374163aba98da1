"""Rows mapped to rows: lazily, in memory, or written to a new Zarr array or table, chunk by whole chunk."""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import astuple, dataclass, replace
from itertools import chain
from typing import ClassVar, cast

import dask
import numpy as np
from dask.base import tokenize

import bigpca.dask_array as da
from bigpca.arrays import Array, working_dtype
from bigpca.blas import one_blas_thread, solve_paused
from bigpca.csr import KEPT
from bigpca.data.batches import has_batches, reject_batches
from bigpca.data.containers import check_chunk_shape
from bigpca.data.dask_arrays import carrying
from bigpca.data.provenance import Made, Provenance
from bigpca.data.source import MemoryRows, Source
from bigpca.data.sources import open as open_array
from bigpca.data.sparse import computed_rows, form_of_meta, is_csr
from bigpca.devices import Namespace
from bigpca.engine.driver import run_pass
from bigpca.engine.events import Event, PassEvent
from bigpca.engine.group import SHARED, Folding, Group
from bigpca.engine.interfaces import Inputs
from bigpca.engine.jobs import GroupTask, PassState
from bigpca.engine.layout import MIB, SLAB_ROWS
from bigpca.engine.local import check_end, current_client, local_threads
from bigpca.engine.planning import THREAD_BYTES, Layout, Plan, SolveCost, plan_of
from bigpca.engine.run import Run
from bigpca.errors import MemoryBudgetError, OutputExistsError, OutputWriteError, warn_caller
from bigpca.forms import Values
from bigpca.host import HOST
from bigpca.passes.graphs import wrap_sources
from bigpca.passes.prices import priced, read_cost
from bigpca.passes.reading.readers import MAPS
from bigpca.passes.reading.row_maps import Chain, MapStep, RowMap, map_run
from bigpca.passes.rows import Rows, may_have_keys, pass_over, unchanged
from bigpca.storage import Annotations, ChunkRecord, ChunkWriter, Output, create_output
from bigpca.storage.files import content_digest, digest, is_objects, is_within, name_of, public
from bigpca.storage.outputs import STORE, Form, NpyForm

log = logging.getLogger("bigpca")
# Writing is a pass with one output chunk per group and an empty state. The output is invisible until it is complete,
# and a killed run resumes with the chunks that were not written.
OUTPUT_CHUNK_BYTES = 16 * MIB
OUTPUT_CHUNKS = 64  # at least, if the input's chunks allow it, so that all workers have work
UNRECORDED = Made()
MAP_FIRST = (
    "would be computed by Dask, in any order, but batches come in one. Map each batch before from_batches, or write "
    "the batches with bigpca.FeatureWriter and open the store."
)
AHEAD_BYTES = 32 * MIB  # of reads that an object store answers meanwhile: more than arrive while one answer is awaited
MAX_AHEAD = 16  # small reads: more would only wait for the limits of requests in flight
REMOTE_GROUP_BYTES = 512 * MIB  # of input: a task waits at its start and its end
REMOTE_GROUP_CHUNKS = 256  # of output, at most: a rerun gets and checks those of a killed task


def project_lazily(X: da.Array, f: RowMap, width: int, *, chunk_rows: int | None = None) -> da.Array:
    """Return ``f`` of the rows of X as a Dask array (n, width), sparse if f keeps them so; nothing is computed.

    Its row chunks are those of X, or of ``chunk_rows`` rows.
    """
    if has_batches(X):
        reject_batches(X, "what is made of rows before they are read several times", MAP_FIRST)
    reject_batches(X, "the map of rows")
    given, (f, device) = X, _on_device(Rows.opened(X), f)
    X = wrap_sources(X if chunk_rows is None else X.rechunk({0: chunk_rows}))
    if len(X.chunks[1]) > 1:
        X = X.rechunk({1: -1})
    name = f"bigpca-map-{tokenize(X.name, f.describe(), width)}"  # equal for the same map of the same rows
    declared, dtype = (f, X.chunks[0], int(X.shape[1])), f.output_dtype(X.dtype)
    shared = dask.delayed(declared, name=f"{name}-function", pure=True, traverse=False)
    meta = form_of_meta(X._meta, f.forms is KEPT).meta(dtype)
    mapped = da.map_blocks(
        _apply_block,
        X,
        shared,
        X.dtype.str,
        is_csr(X._meta),
        device.driven,
        name=name,
        dtype=dtype,
        chunks=(X.chunks[0], (width,)),
        meta=meta,
    )
    return carrying(mapped, before=given, made=UNRECORDED)  # of rows whose keys are those of the result


def mapped_lazily(rows: Rows) -> da.Array:
    """Return X with the maps of its rows applied, as a Dask array: for readers of Dask arrays."""
    if not rows.steps:
        return rows.X
    return project_lazily(rows.X, Chain(tuple(step.f for step in rows.steps[:-1]), rows.steps[-1].f), rows.n_columns)


def _apply_block(
    block: object,
    shared: tuple[RowMap, tuple[float, ...], int],
    dtype: str,
    sparse: bool,
    there: bool,
    block_id: tuple[int, ...] = (),
) -> Array:
    f, chunks, n_columns = shared
    rows: Values = computed_rows(block, "the Dask array", np.dtype(dtype), sparse=sparse, there=there)
    count = chunks[block_id[0]] if block_id else np.nan
    check_chunk_shape(rows.shape, (n_columns,) if np.isnan(count) else (int(count), n_columns), "the Dask array")
    with one_blas_thread():
        return map_run((MapStep(f, 0),), rows, 0, "a block of the input")


def project_in_memory(rows: Rows, f: RowMap, width: int) -> Array:
    """Return ``f`` of the rows of an array in memory, 8,192 at a time per thread, with the bits of such chunks."""
    out, steps = np.empty((rows.n_rows, width), f.output_dtype(rows.dtype)), (*rows.steps, MapStep(f, width))

    def write(start: int) -> None:
        stop = min(start + 8192, rows.n_rows)
        reader, _ = rows.reader(start, stop)
        held = rows.source
        values = held.view(start, stop) if isinstance(held, MemoryRows) else reader.read(start, stop)
        with one_blas_thread():
            out[start:stop] = map_run(steps, values, start, reader.where(start, stop))

    starts = range(0, rows.n_rows, 8192)
    threads = min(local_threads(), len(starts))
    if threads <= 1:
        for start in starts:
            write(start)
        return out
    with solve_paused(), ThreadPoolExecutor(threads, thread_name_prefix="bigpca-map") as pool:
        for done in [pool.submit(copy_context().run, write, start) for start in starts]:
            done.result()
    return out


def _on_device(rows: Rows, f: RowMap) -> tuple[RowMap, Namespace]:
    """Return the map where the rows stay, and where it takes them; it takes others as it was made."""
    own = rows.device[1]
    return f.on(own) if own.driven else (f, HOST)


def project_in_order(rows: Rows, f: RowMap, width: int) -> Array:
    """Return ``f`` of the rows of batches, read once in this thread; same bits as those of the rows in memory.

    Raises
    ------
    MemoryBudgetError
        If the result does not fit in memory; before the read, if the number of rows is known.
    """
    f, device = _on_device(rows, f)
    steps, room = (*rows.steps, MapStep(f, width)), rows.order.resources.room_bytes
    row_bytes, done, parts = width * f.output_dtype(rows.dtype).itemsize, 0, list[Array]()
    _check_held(1 if rows.order.open_ended else rows.n_rows, row_bytes, room)
    step = device.tile_rows(SLAB_ROWS, int(rows.origin.row_bytes), SLAB_ROWS)
    while done < rows.n_rows and (not rows.order.open_ended or rows.order.has(done)):
        stop = min(done + step, rows.n_rows)
        reader, _ = rows.reader(done, stop, there=device.driven)
        values = reader.read(done, stop)
        with one_blas_thread():
            parts.append(map_run(steps, values, done, reader.where(done, stop)))
        done += values.shape[0]
        _check_held(done, row_bytes, room)
    check_end(rows.n_rows, rows.order.has, open_ended=rows.order.open_ended)
    return np.concatenate(parts)


def _check_held(n: int, row_bytes: int, room: int) -> None:
    needed = 2 * n * row_bytes  # the parts, and the whole
    if needed > room:
        raise MemoryBudgetError(
            f"the results of {n:,} rows of batches, {row_bytes:,} bytes each, need {needed:,} bytes until they are "
            f"joined; {max(0, room):,} are available. Write them to a store: out=path."
        )


@dataclass(frozen=True, kw_only=True)
class WriteGroup(Group[Values]):
    """Reads the rows of some output chunks, maps them, and writes those chunks whole.

    Memory: the slab in use and those being read, one mapped slab and one output chunk.
    """

    waits: ClassVar[bool] = True

    writer: ChunkWriter
    ahead: int

    @contextmanager
    def begin(self, inputs: Inputs, check: object) -> Iterator[Folding]:
        reader, steps = self.reader.with_inputs(inputs), inputs[SHARED].get(MAPS, ())
        begun, done = list[Future[ChunkRecord]](), 0
        out, chunk, end = cast("Array | None", None), 0, 0

        def apply(slab: Values, row: int) -> Iterator[tuple[int, Array]]:
            yield row, map_run(steps, slab, row, reader.where(row, row + slab.shape[0]))

        def add(block: tuple[int, Array]) -> None:
            nonlocal out, chunk, end
            (row, mapped), chunk = block, block[0] // self.writer.chunk_rows
            start, stop = self.writer.row_range(chunk)
            end = row + len(mapped)
            if out is None:
                out = mapped if end - start == stop - start else np.empty((stop - start, mapped.shape[1]), mapped.dtype)
            if out is not mapped:
                out[row - start : end - start] = mapped
            if end == stop:
                write()

        def write() -> None:
            nonlocal out, done
            start, stop = self.writer.row_range(chunk)
            # Batches of an unknown number of rows may end in this chunk.
            writer = self.writer if end == stop else replace(self.writer, shape=(end, *self.writer.shape[1:]))
            if out is not None:
                begun.append(writer.begin(chunk, out[: end - start]))
                out, done = None, done + end - start
            for one in filter(Future.done, begun):
                one.result()  # raises, before more is read

        def close() -> PassState:
            if out is not None:
                write()
            records = [one.result() for one in begun]
            return PassState({}, done, 0, {self.index: json.dumps([astuple(record) for record in records])})

        try:
            yield Folding(reader, apply, add, close, self.ahead)
        finally:
            wait(begun)  # whoever deletes an output that has no chunks must see them


def output_chunk_rows(rows: Rows, row_bytes: int) -> int:
    """Choose rows per output chunk: whole input chunks, about 16 MiB, and at least 64 chunks if possible."""
    native = max(rows.origin.row_chunks, default=1) or 1
    fitting = max(1, OUTPUT_CHUNK_BYTES // max(1, row_bytes * native))
    spread = max(1, rows.n_rows // (OUTPUT_CHUNKS * native))
    whole = native * min(fitting, spread)
    if whole * row_bytes > 4 * OUTPUT_CHUNK_BYTES:  # one huge input chunk: cut it
        return int(max(1, OUTPUT_CHUNK_BYTES // row_bytes))
    return int(max(1, min(whole, rows.n_rows)))


def project_to(
    rows: Rows,
    f: RowMap,
    width: int,
    out: str | os.PathLike[str],
    *,
    name: str,
    run: Run,
    made: Made = UNRECORDED,
    form: Form = STORE,
    overwrite: bool = False,
    chunk_rows: int | None = None,
) -> da.Array:
    """Write ``f`` of the rows of X to a new Zarr array or table and return the Dask array over it.  # one pass over X

    Workers write chunks of an unfinished Zarr array in any order. If the form is a table, this process then copies
    them in order, one at a time, into one file.

    Parameters
    ----------
    rows : Rows
    f : RowMap
    width : int
        Columns of the result.
    out : path-like
        Invisible until complete; a rerun of the same call resumes a killed run there.
    made : Made
        Row keys and provenance, stored with the output.
    form : Form
        A Zarr array, or a table.

    Raises
    ------
    OutputExistsError, OutputLockedError
    MemoryBudgetError
        Before any read, if the blocks do not fit in a process, or the output does not fit on the disk.
    OSError
        With ``errno.ENOSPC`` if the disk fills up during the run; finished chunks are kept.
    """
    began = time.perf_counter()
    f, device = _on_device(rows, f)
    if not rows.order.in_order:
        reject_batches(rows.X, "the output")
    _reject_own_source(rows, f, out, form)
    keyed = not isinstance(form, NpyForm)
    if made.keys is not None and not keyed:
        raise ValueError(f"keys were given, but {name_of(out)} has no room for them. Write .zarr or .parquet.")
    keys = keys_of(rows, made.keys)
    if keys is not None and not keyed:
        keys = None
        warn_caller(
            f"the rows have keys, for which {name_of(out)} has no room: labels join it by position only. Write .zarr "
            "or .parquet to keep them.",
            UserWarning,
        )
    dtype = f.output_dtype(rows.dtype)
    size = chunk_rows or output_chunk_rows(rows, width * dtype.itemsize)
    # Batches are iterated again in any case, and may be shuffled: an unfinished output of theirs is not continued.
    # Nor is one of rows that may have changed without a sign of it.
    before, again = rows.origin.files_digest(), not rows.order.in_order and not rows.origin.unstamped
    known = {"stamp": before or rows.origin.stamp(0, rows.n_rows)} if again else {"run": uuid.uuid4().hex}
    described = {"input": {} if rows.order.in_order else rows.describe(), "map": f.describe(), "chunk": size, **known}
    if keys is not None:
        described["keys"] = content_digest(keys)
    identity = digest(described)
    shape = (None if rows.order.open_ended else rows.n_rows, width)
    plan = plan_writing(rows, f, width, size, name, form, place=out if is_objects(out) else None)
    plan.check()
    opened = create_output(
        out,
        shape=shape,
        dtype=dtype,
        chunk_rows=size,
        identity=identity,
        form=form,
        overwrite=overwrite,
        joins=again,
    )
    for note in plan.notes[len(rows.origin.unnoticed) :]:
        log.warning("%s: %s", opened.path, note)
    with opened as output:
        with unchanged(rows.origin, before):
            written = _write_pending(rows.mapped(MapStep(f, width)), output, plan, run, there=device.driven)
        if rows.order.open_ended:
            output.set_rows(written)
        if keys is None and rows.order.batches is not None:  # which came with the rows
            keys = rows.order.batches.stream.keys
        seconds = time.perf_counter() - began
        record = Provenance.now(
            rows.origin.paths,
            getattr(rows.origin.stored, "member", ""),
            rows.rows_read,
            made.call or "",
            seconds=seconds,
            reads=1.0,
            made=made,
        )

        output.finish(Annotations(keys, record.to_json()))
    return open_array(out if output.place is None else output.place.openable())


def keys_of(rows: Rows, given: object = None) -> Array | None:
    """Return the given keys of the rows, or those of a source on disk, or of a frame's index, if it has any."""
    from bigpca.data.keys import names_of_index, row_keys, stored_keys  # imports all formats of labels, unlike fits

    if given is not None and rows.order.open_ended:
        raise ValueError(
            "keys were given, one for each row, but the batches have an unknown number of rows. Give it: "
            "from_batches(batches, shape=(n, d))."
        )
    if given is not None:
        return row_keys(given, rows.n_rows)
    found = stored_keys(rows.origin.given) if may_have_keys(rows.origin) else None
    return names_of_index(rows.origin.given) if found is None else row_keys(found, rows.n_rows)


def _reject_own_source(rows: Rows, f: RowMap, out: str | os.PathLike[str], form: Form) -> None:
    """Reject an output that is what the run reads, one of its files, or a folder around it, whatever they are called.

    The run reads its rows, and the stores in its maps, such as the training rows of a kernel model.
    """
    for source in (*rows.origin.sources, *_held_by(f), *_held_by(rows.steps)):
        named = [source.home] if source.home else []
        if form.kind == "table" and source.path and source.format != "zarr":
            named += [key for key, _, _ in source.stamps(0, source.shape[0])]  # the files of a folder
        if any(is_within(read, out) for read in named):
            raise OutputExistsError(
                f"the output {public(str(out))} is, or contains, the input that is read ({source.label}). Choose "
                "another path for the output."
            )


def _held_by(value: object) -> Iterator[Source]:
    """Yield the sources that a map reads."""
    if isinstance(value, Source):
        yield value
    elif isinstance(value, list | tuple):
        yield from chain.from_iterable(map(_held_by, value))
    elif type(value).__module__.startswith("bigpca."):
        yield from _held_by([*getattr(value, "__dict__", {}).values()])


def _reads_ahead(rows: Rows, read_rows: int) -> int:
    """Return how many reads are in flight while one is in use: several from an object store, if they are small."""
    if not rows.origin.requests[0]:
        return 1
    return max(1, min(MAX_AHEAD, AHEAD_BYTES // max(1, priced(rows).read_bytes(read_rows))))


def plan_writing(
    rows: Rows, f: RowMap, width: int, chunk_rows: int, name: str, form: Form = STORE, *, place: object = None
) -> Plan:
    """Return the cost of writing mapped rows in one read: reads, maps, and one output chunk, raw and encoded.

    ``place`` is that of the output, if it is an object store.
    """
    base, resources = rows.layout(0), rows.order.resources
    dtype, working = f.output_dtype(rows.dtype), working_dtype(rows.dtype)
    read_rows = min(max(base.slab_rows, base.read_rows), max(base.read_rows, chunk_rows))
    price, row = priced(rows, read_rows, rows.origin.form.projected_dtype(working)), width * dtype.itemsize
    read, (mapping, kept) = price.read_bytes(read_rows), f.bytes_for(rows.n_columns, read_rows, working.itemsize)
    chunk, chunks = min(chunk_rows, rows.n_rows) * row, -(-rows.n_rows // chunk_rows)
    layout = _layout_of(rows, [(i, min(i + chunk_rows, rows.n_rows)) for i in range(0, rows.n_rows, chunk_rows)])
    cost = read_cost(
        rows,
        name,
        layout,
        (),
        working,
        flops=2.0 * rows.n_rows * rows.n_columns * width,
        read=read,
        copied=read_rows * price.copied,
        scratch=mapping + price.work.bytes + 2 * chunk,
        held=(_reads_ahead(rows, read_rows) - 1) * read,
    )
    peak = max(cost.peak_bytes + -(-kept // resources.threads), -(-form.commit_bytes(chunk) // resources.threads))
    (requests, in_flight), notes = rows.origin.requests, rows.origin.unnoticed
    if place is not None:
        from bigpca.storage import places  # for object stores only
        from bigpca.storage.requests import MAX_BYTES, flight_bytes

        put = flight_bytes(chunks, chunk)
        requests, in_flight = requests + chunks, max(in_flight, put, min(in_flight + put, MAX_BYTES))
        if form.kind == "table" and rows.n_rows * row > places.LARGEST_PUT:
            where = places.ObjectStore(place).describe()
            raise OutputWriteError(
                f"a table of {rows.n_rows * row:,} bytes cannot be put at {where}, where one object has at most "
                f"{places.LARGEST_PUT:,}. Write a Zarr array (.zarr) there, or the table to a disk."
            )
    cost = replace(cost, block_rows=read_rows, peak_bytes=peak, device=HOST)
    plan = plan_of([cost], SolveCost(), resources, solver=name, reason="one read", notes=notes)
    # Writing merges nothing, and every thread of every process may write.
    return replace(
        plan,
        tasks=chunks,
        peak_bytes=peak + THREAD_BYTES,
        output_bytes=rows.n_rows * row,
        requests=requests,
        flight_bytes=in_flight,
    )


def _layout_of(rows: Rows, ranges: Sequence[tuple[int, int]]) -> Layout:
    """Return the layout of a read of whole output chunks, a group for each range of rows."""
    base, groups = rows.layout(0), tuple(range(i, i + 1) for i in range(len(ranges)))
    slab_rows, per_segment = max(base.slab_rows, base.read_rows), max(1, -(-len(groups) // 256))
    segments = tuple(range(i, min(i + per_segment, len(groups))) for i in range(0, len(groups), per_segment))
    n_rows = sum(b - a for a, b in ranges)
    return Layout(n_rows, base.n_columns, base.row_bytes, slab_rows, tuple(ranges), groups, segments)


def _write_pending(rows: Rows, output: Output, plan: Plan, run: Run, *, there: bool) -> int:
    """Write the chunks that are missing, and return how many rows they have."""
    pending = list(range(-(-rows.n_rows // output.writer.chunk_rows))) if rows.order.open_ended else output.pending()
    if not pending or output.published:
        return 0
    most = 1
    if (output.place is not None or rows.origin.requests[0]) and not rows.order.in_order:
        threads = plan.resources.threads * plan.resources.processes
        chunk_bytes = max(1, int(output.writer.chunk_rows * rows.origin.row_bytes))
        share = len(pending) // (2 * threads) if threads > 1 else len(pending)
        most = max(1, min(REMOTE_GROUP_BYTES // chunk_bytes, REMOTE_GROUP_CHUNKS, share))
    parts = _consecutive(pending, most)
    of = output.writer.row_range
    ranges = tuple((of(part[0])[0], min(of(part[-1])[1], rows.n_rows)) for part in parts)
    layout = _layout_of(rows, ranges)
    ahead = _reads_ahead(rows, min(layout.slab_rows, output.writer.chunk_rows))

    def cut(group: int) -> tuple[GroupTask, Inputs]:
        reader, futures = rows.reader(*ranges[group], there=there)
        size, chunks = layout.slab_rows, map(of, parts[group])
        reads = tuple((i, min(i + size, stop)) for start, stop in chunks for i in range(start, stop, size))
        writer = output.writer
        return WriteGroup(index=group, reader=reader, reads=reads, slab_rows=size, writer=writer, ahead=ahead), futures

    cost = replace(plan.costs[0], reads=layout.n_rows / max(1, rows.n_rows), layout=layout)
    places = {output.writer.store: "writes"} if output.place is None else {}
    job = pass_over(run, cost, rows, {}, cut, _written, stamp=None)
    job = replace(job, paths={**job.paths, **places})
    resumed = 0 if rows.order.open_ended else output.writer.n_chunks - len(pending)

    client = current_client()
    if client is not None and output.place is not None and not rows.order.in_process:
        output.place.check_sendable()
    elif client is not None and output.place is None and rows.order.in_process:  # written here
        from bigpca.engine.cluster.watch import check_visible  # imports distributed, which is slow

        check_visible(client, output.writer.store)

    def of_all_chunks(event: Event) -> None:
        if isinstance(event, PassEvent):
            event = replace(
                event,
                rows_total=rows.n_rows,
                bytes_total=int(rows.n_rows * rows.origin.row_bytes),
                groups_total=resumed + len(parts),
                groups_resumed=resumed,
            )
        run.progress(event)

    written, records = run_pass(job, replace(run, checkpoint=None, progress=of_all_chunks, peak_bytes=plan.peak_bytes))
    for record in records:
        output.note(record)
    return written


def _consecutive(chunks: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """Divide chunks in order into runs without gaps, of at most so many."""
    parts: list[tuple[int, ...]] = []
    for chunk in chunks:
        if parts and parts[-1][-1] == chunk - 1 and len(parts[-1]) < most:
            parts[-1] += (chunk,)
        else:
            parts.append((chunk,))
    return parts


def _written(state: PassState) -> tuple[int, list[ChunkRecord]]:
    """Return how many rows were written, and the records of their chunks."""
    return state.rows, [ChunkRecord(*fields) for records in state.stamps.values() for fields in json.loads(records)]
