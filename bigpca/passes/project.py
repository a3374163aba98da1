"""Map row blocks: lazily to a Dask array with the same row chunks, or at once to an array in memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import dask
import dask.array as da
import numpy as np
from dask.base import tokenize

from bigpca.arrays import Array
from bigpca.blas import one_blas_thread, solve_paused
from bigpca.data.batches import reject_batches
from bigpca.data.containers import check_chunk_shape, dense_rows
from bigpca.data.marks import mark
from bigpca.data.rounding import note_rounded
from bigpca.data.sparse import csr_meta, is_csr, sparse_rows
from bigpca.data.storages import MemoryRows
from bigpca.errors import MemoryBudgetError
from bigpca.passes.engine.local import local_threads
from bigpca.passes.engine.ordered import check_end
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.graphs import wrap_sources
from bigpca.passes.reading.arithmetic import Values
from bigpca.passes.reading.row_maps import Chain, MapStep, RowMap, map_run
from bigpca.passes.rows import RowInput


def project_lazily(
    X: da.Array, f: RowMap, width: int, *, missing_chunks: str = "raise", chunk_rows: int | None = None
) -> da.Array:
    """Return ``f`` of the rows of X as a Dask array (n, width), sparse if f keeps them so; nothing is computed.

    Its row chunks are those of X, or of ``chunk_rows`` rows.
    """
    reject_batches(X, "the map of rows")
    given = X
    X = wrap_sources(X if chunk_rows is None else X.rechunk({0: chunk_rows}), missing_chunks)
    if len(X.chunks[1]) > 1:
        X = X.rechunk({1: -1})
    name = f"bigpca-map-{tokenize(X.name, f.describe(), width)}"  # equal for the same map of the same rows
    shared, dtype = dask.delayed(f, name=f"{name}-function", pure=True), f.output_dtype(X.dtype)
    sparse = is_csr(X._meta) and f.keeps_csr
    meta = csr_meta(dtype) if sparse else np.empty((0, 0), dtype)
    mapped = da.map_blocks(
        _apply_block,
        X,
        shared,
        int(X.shape[1]),
        X.dtype.str,
        is_csr(X._meta),
        name=name,
        dtype=dtype,
        chunks=(X.chunks[0], (width,)),
        meta=meta,
    )
    return mark(mapped, "rows", given)  # whose keys are those of the result


def mapped_lazily(rows: RowInput) -> da.Array:
    """Return X with the maps of its rows applied, as a Dask array: for readers of Dask arrays."""
    if not rows.steps:
        return rows.X
    whole = Chain(rows.maps[:-1], rows.maps[-1])
    return project_lazily(rows.X, whole, rows.n_columns, missing_chunks=rows.missing_chunks)


def _apply_block(block: object, f: RowMap, n_columns: int, dtype: str, sparse: bool) -> Array:
    rows: Values = (sparse_rows if sparse else dense_rows)(block, "the Dask array", np.dtype(dtype))
    check_chunk_shape(rows.shape, (n_columns,), "the Dask array")
    note_rounded(np.asarray(rows.data) if sparse else rows)
    with one_blas_thread():
        return map_run((MapStep(f, 0),), rows, 0, "a block of the input")


def project_in_memory(rows: RowInput, f: RowMap, width: int) -> Array:
    """Return ``f`` of the rows of an array in memory, 8,192 rows at a time per thread; same bits as the lazy result."""
    out, steps = np.empty((rows.n_rows, width), f.output_dtype(rows.dtype)), (*rows.steps, MapStep(f, width))

    def write(start: int) -> None:
        stop = min(start + 8192, rows.n_rows)
        reader, _ = rows.reader(start, stop)
        held = rows.source.storage if rows.source is not None else None
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


def project_in_order(rows: RowInput, f: RowMap, width: int, memory_limit: int | str | None = None) -> Array:
    """Return ``f`` of the rows of batches, read once in this thread; same bits as those of the rows in memory.

    Raises
    ------
    MemoryBudgetError
        If the result does not fit in memory; before the read, if the number of rows is known.
    """
    steps, room = (*rows.steps, MapStep(f, width)), find_resources(memory_limit, in_process=True).room_bytes
    row_bytes, done, parts = width * f.output_dtype(rows.dtype).itemsize, 0, list[Array]()
    _check_held(1 if rows.open_ended else rows.n_rows, row_bytes, room)
    while done < rows.n_rows and (not rows.open_ended or rows.has(done)):
        stop = min(done + 8192, rows.n_rows)
        reader, _ = rows.reader(done, stop)
        values = reader.read(done, stop)
        with one_blas_thread():
            parts.append(map_run(steps, values, done, reader.where(done, stop)))
        done += len(values)
        _check_held(done, row_bytes, room)
    check_end(rows.n_rows, rows.has, open_ended=rows.open_ended)
    return np.concatenate(parts)


def _check_held(n: int, row_bytes: int, room: int) -> None:
    needed = 2 * n * row_bytes  # the parts, and the whole
    if needed > room:
        raise MemoryBudgetError(
            f"the results of {n:,} rows of batches, {row_bytes:,} bytes each, need {needed:,} bytes until they are "
            f"joined; {max(0, room):,} are available. Write them to a store: out=path."
        )
