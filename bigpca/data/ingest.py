"""``ingest``: copy any source to one Zarr array that every later pass reads efficiently."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import DTypeLike

import bigpca.dask_array as da
from bigpca.arrays import Input, working_dtype
from bigpca.data.checks import check_dtype
from bigpca.data.provenance import Made
from bigpca.data.sources import open as open_array
from bigpca.engine.events import ProgressArgument, resolve_progress
from bigpca.engine.layout import SLAB_BYTES
from bigpca.engine.planning import MIN_GROUP_BYTES, PIECES
from bigpca.engine.run import Run
from bigpca.errors import format_bytes
from bigpca.passes.project import project_to
from bigpca.passes.reading.row_maps import Copy
from bigpca.passes.rows import Rows


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
