"""Open stored data as one row-chunked Dask array, without reading it, and find the source behind a Dask array."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from bigpca.data.checks import check_dtype, check_shape, coalesce, row_width
from bigpca.data.containers import (
    is_hdf5_dataset,
    is_path_list,
    is_zarr_array,
    is_zarr_group,
    reject_chunks,
    reject_foreign,
    unmasked,
)
from bigpca.data.conventions import check_decoded
from bigpca.data.labelled import feature_names, lazy_table
from bigpca.data.patterns import RowPattern
from bigpca.data.row_source import RowSource
from bigpca.data.storages import MemoryRows, ZarrRows
from bigpca.data.urls import public
from bigpca.data.views import Names, View, view_of, viewed
from bigpca.data.zarr_groups import group_member
from bigpca.data.zarr_reader import ZarrReader, wrap_zarr
from bigpca.errors import ShortTraceback

__all__ = ["DASK_CHUNK_BYTES", "RowSource", "check_dtype", "open", "open_source", "row_source", "source_of"]

DASK_CHUNK_BYTES = 64 * 2**20


def open(
    source: Any,
    *,
    member: str | None = None,
    missing_chunks: str = "raise",
    pattern: str | None = None,
    reduce: str | None = None,
    columns: Any = None,
    **axes: Any,
) -> da.Array:
    """Open stored features as a Dask array of shape (n, d), chunked in rows; no data is read.

    By default each sample is a row, and all its numbers are columns. A pattern says otherwise, and nothing is copied to
    disk: samples are cut into rows where they are read.

    Parameters
    ----------
    source : str, path, zarr.Array, zarr.Group, dask array or DataFrame, xarray.DataArray, h5py.Dataset, memmap or array
        A path is a Zarr store (v2, v3; array or group), a .npy, .npz, .h5, .parquet or .safetensors file, a folder or
        glob of .npy shards (read in natural order) or of Parquet files; a list of paths is read as shards in its order.
        Feature maps (n, c, h, w) become (n, c*h*w). Masked entries become NaN.
    member : str, optional
        Which array of a group or file, or which column; required if more than one has two dimensions.
    missing_chunks : {"raise", "fill"}, default "raise"
        What to do about a chunk that is missing from a Zarr store or an HDF5 file: raise an error, or use the fill
        value.
    pattern : str, optional
        What is a row, in the notation of einops: ``"n c h w -> (n h w) c"`` makes every pixel of a feature map a row of
        c columns. The left side names the dimensions of ``source``, samples first; the right side has the rows, samples
        first, and the columns.
    reduce : {"mean", "max", "gem"}, optional
        How values are pooled over the axes that the right side leaves out, as in ``"n c h w -> n c"``. "gem" is the
        generalised mean of power 3 (Radenovic et al. 2019), in which values below 1e-6 count as 1e-6.
    columns : slice, list of int, mask or list of names, optional
        Which columns are kept, in this order.
    **axes
        By the name of an axis in the pattern: its positions (a slice, a list of int or a mask), such as
        ``t=slice(1, None)`` for all tokens but the first, or its size (an integer), for axes in brackets on the left.

    Returns
    -------
    dask.array.Array of shape (n, d)
        One Dask chunk is up to about 64 MiB of whole native chunks. A Dask array is returned unchanged, flattened to
        two dimensions. A model that is fitted to rows of a pattern keeps it, and applies it to stored samples again.

    Raises
    ------
    FileNotFoundError
        If nothing is at the path.
    TypeError
        For complex, object, string, date and structured dtypes, and for containers without dense rows of numbers in
        the host's memory (sparse, on a GPU), before any read; the message has the remedy.
    ValueError
        If a member must be named, for one-dimensional data, and for unknown formats. For a pattern that does not fit
        the shape, axes that it does not have, pooling without a rule, and positions or names that there are not.

    Examples
    --------
    >>> X = open(np.zeros((10, 2, 3), dtype="f2"))
    >>> X.shape, X.dtype
    ((10, 6), dtype('float16'))
    >>> open(np.zeros((10, 5, 8)), pattern="n tokens d -> (n tokens) d", tokens=slice(1, None)).shape
    (40, 8)
    """
    described = RowPattern.of(pattern, reduce, columns, axes)
    with ShortTraceback():
        X, shape = open_samples(source, member=member, missing_chunks=missing_chunks)
    if described == RowPattern():
        return X
    if view_of(X)[1] is not None:
        raise ValueError(
            "the array was opened with a pattern or columns already. Give pattern=, reduce= and columns= in one call."
        )
    return viewed(X, *row_view(source, described, shape))


def open_samples(
    source: Any, *, member: str | None = None, missing_chunks: str = "raise"
) -> tuple[da.Array, tuple[int, ...]]:
    """Open stored samples as a Dask array (n, d), and return the shape of one sample too; raises as :func:`open`."""
    if missing_chunks not in ("raise", "fill"):
        raise ValueError(f'missing_chunks is {missing_chunks!r}; "raise" or "fill" was expected.')
    if is_path_list(source):
        return _open_shards([os.fspath(path) for path in source], member, missing_chunks)
    source = lazy_table(source)
    if isinstance(source, da.Array):
        X = _flatten(source)
        found = source_of(source) if source.ndim == 2 and view_of(source)[1] is None else None
        return X, tuple(map(int, source.shape[1:])) if found is None else found.array_shape[1:]
    found = row_source(source, member=member, missing_chunks=missing_chunks)
    check_stored_values(found)
    return open_source(found), found.array_shape[1:]


def row_view(source: Any, pattern: RowPattern, shape: tuple[int, ...]) -> tuple[View, Names]:
    """Return the view that a pattern describes of a source whose samples have a shape, and the names of its columns."""
    whole = View.of(replace(pattern, columns=None), shape)
    names = _column_names(source, whole, shape)
    view = View.of(pattern, shape, names)
    return view, names if names is None or view.columns is None else names[view.columns]


def _column_names(source: Any, view: View, shape: tuple[int, ...]) -> Names:
    """Return the names of the columns of a view, where the source names its features."""
    if view.row_axes or view.reduce is not None:  # the columns are some axes of a sample
        if view.sample != shape:
            return None
        names = feature_names(source, view.column_axes)
        sizes = tuple(view.sample[axis] for axis in view.column_axes)
        taken = tuple(view.taken[axis] for axis in view.column_axes) if view.taken else ()
        view = View(sizes, column_axes=tuple(range(len(sizes))), taken=taken)
    else:
        names = feature_names(source)
    return None if names is None else names[view.apply(np.arange(len(names))[None])[0]]


def open_in_memory(array: NDArray[Any]) -> da.Array:
    """Create the Dask array of an array (n, d) in memory, with a random name, so that no value is read for it."""
    return open_source(RowSource("numpy", "", "", MemoryRows(array)), uuid.uuid4().hex)


def open_source(source: RowSource, token: str | None = None) -> da.Array:
    """Create the Dask array whose single ``original-`` node is the source; ``token`` names it."""
    d = source.shape[1]
    rows = coalesce(source.row_chunks(), d * source.dtype.itemsize, DASK_CHUNK_BYTES)
    return da.from_array(
        source,
        chunks=(rows, (d,)),
        name="bigpca-open-" + (token or source.token()),
        inline_array=False,
        asarray=False,
        fancy=False,
        meta=np.empty((0, 0), source.dtype),
    )


def check_stored_values(source: RowSource) -> None:
    """Reject a file's array whose attributes show that its numbers are encoded values.

    Raises
    ------
    ValueError
        Has the line that decodes them, and the one that uses the stored numbers.
    """
    storage: Any = source.storage
    if hasattr(type(storage), "attributes"):  # Zarr and HDF5
        group, name = os.path.split(source.member)
        kind = 'engine="zarr", ' if isinstance(storage, ZarrRows) else ""
        inside = f"group={group!r}, " if group else ""
        decode = f"xarray.open_dataset({source.path!r}, {kind}{inside}chunks={{}})[{name!r}]"
        raw = "dask.array.from_zarr" if kind else "dask.array.from_array(h5py_dataset)"
        remedy = f"Pass {decode}, or {raw} to use the stored numbers"
        check_decoded(storage.attributes, source.label, remedy)


def row_source(source: Any, *, member: str | None = None, missing_chunks: str = "raise") -> RowSource:
    """Create the RowSource of anything that :func:`open` accepts except Dask arrays (same parameters and errors)."""
    if isinstance(source, (str, os.PathLike)):
        from bigpca.data.files import file_source  # all formats of files, of no use to arrays

        return file_source(os.fspath(source), member, missing_chunks)
    if is_zarr_group(source):
        source = group_member(source, member)
    if is_zarr_array(source):
        source = wrap_zarr(source, missing_chunks)
    if isinstance(source, ZarrReader):
        return RowSource("zarr", public(source.store), source.path_in_group, ZarrRows(source))
    if isinstance(source, np.memmap) and source.filename is not None:
        return _memmap_source(source)
    if is_hdf5_dataset(source):
        from bigpca.data.files import file_source  # as above
        from bigpca.data.hdf5 import dataset_place

        return file_source(*dataset_place(source), missing_chunks)
    reject_foreign(source, "the source")
    if hasattr(source, "__array__"):
        check_dtype(np.asarray(source).dtype)
        array = unmasked(source) if isinstance(source, np.ma.MaskedArray) else np.asarray(source)
        return RowSource("numpy", "", "", MemoryRows(array))
    raise TypeError(
        f"a {type(source).__module__}.{type(source).__name__} cannot be opened: a path or a list of paths, a Zarr "
        "array or group, a NumPy, Dask or xarray array, a Dask DataFrame or an h5py dataset was expected."
    )


def _open_shards(paths: list[str], member: str | None, missing_chunks: str) -> tuple[da.Array, tuple[int, ...]]:
    """Open a list of paths: .npy files as one source, others as joined Dask arrays."""
    from bigpca.data.shards import Shard, check_shard, npy_shards  # as the other formats of files

    if member is None and all(path.endswith(".npy") for path in paths):
        files = [os.path.abspath(path) for path in paths]
        folder = os.path.commonpath(map(os.path.dirname, files))
        source = RowSource("npy-folder", folder, "", npy_shards(tuple(files)))
        return open_source(source), source.array_shape[1:]
    found = [open_samples(path, member=member, missing_chunks=missing_chunks) for path in paths]
    parts, shapes = [part for part, _ in found], {shape for _, shape in found}
    shards = [Shard(path, part.shape, part.dtype) for path, part in zip(paths, parts, strict=True)]
    for shard in shards:
        check_shard(shard, shards[0])
    joined = da.concatenate(parts)
    return joined, shapes.pop() if len(shapes) == 1 else (int(joined.shape[1]),)


def _flatten(X: da.Array) -> da.Array:
    label = f"the Dask array {X.name}"
    check_dtype(X.dtype)
    reject_chunks(X._meta, label)
    check_shape(X.shape, "the Dask array")
    if any(np.isnan(size) for size in X.shape[1:]):
        raise ValueError(
            f"{label} has shape {X.shape}, so its number of columns is unknown. Call X.compute_chunk_sizes() first."
        )
    if X.ndim == 2:
        return X
    width, whole = row_width(X.shape), X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    if not np.isnan(X.shape[0]):
        return whole.reshape(X.shape[0], width)
    return whole.map_blocks(  # Dask reshapes known numbers of rows only
        _flat_block, width, drop_axis=list(range(2, X.ndim)), chunks=(X.chunks[0], (width,)), meta=X._meta.reshape(0, 0)
    )


def _flat_block(block: NDArray[Any], width: int) -> NDArray[Any]:
    return block.reshape(len(block), width)


def _memmap_source(array: np.memmap[Any, Any]) -> RowSource:
    """Read a memory map from its file if it is the whole map; a view of one is treated as an array in memory."""
    from bigpca.data.flat_files import raw_file  # as the other formats of files

    whole = type(array.base).__name__ == "mmap" and array.size * array.itemsize > 0
    path = os.path.abspath(str(array.filename))
    if not whole:
        check_dtype(array.dtype)
        return RowSource("numpy", "", "", MemoryRows(np.asarray(array)))
    order = "C" if array.flags.c_contiguous else "F"
    return RowSource("raw", path, "", raw_file(path, int(array.offset), array.shape, array.dtype, order))


def source_of(X: da.Array) -> RowSource | None:
    """Find the source that a Dask array reads directly.

    Returns
    -------
    RowSource or None
        The source of a fresh :func:`open`, ``da.from_zarr`` or ``da.from_array`` of a 2-d Zarr or NumPy array; None
        once X was sliced, rechunked, transformed, persisted in pieces, or optimised by Dask.
    """
    layers = getattr(X.dask, "layers", {})
    if X.ndim != 2 or X.name not in layers:
        return None
    original = f"original-{X.name}"
    if original in layers:
        node = dict(layers[original]).get(original)
        value = getattr(node, "value", node)
        reads_it = original in X.dask.dependencies.get(X.name, ())
        return _direct(value, X.shape) if reads_it else None
    values = dict(layers[X.name]) if not hasattr(layers[X.name], "indices") else {}
    array = _array_behind(X, {key: getattr(value, "value", value) for key, value in values.items()})
    return None if array is None else RowSource("numpy", "", "", MemoryRows(array))


def _direct(value: Any, shape: tuple[int, ...]) -> RowSource | None:
    if is_zarr_array(value):
        value = wrap_zarr(value)
    if isinstance(value, ZarrReader) or is_hdf5_dataset(value):
        value = row_source(value) if value.ndim == 2 else None
    whole = isinstance(value, RowSource) and (
        value.shape == shape or (np.isnan(shape[0]) and value.shape[1:] == shape[1:])
    )
    return value if whole else None


def _array_behind(X: da.Array, blocks: dict[Any, Any]) -> NDArray[Any] | None:
    """Return the array of which all blocks are views in their places, as created by ``da.from_array(ndarray)``."""
    if not blocks or not all(type(block) is np.ndarray for block in blocks.values()):
        return None
    if len(blocks) == 1:
        block: NDArray[Any] = next(iter(blocks.values()))
        return block if block.shape == X.shape else None
    base: Any = next(iter(blocks.values())).base
    if type(base) is not np.ndarray or base.shape != X.shape or base.dtype != X.dtype:
        return None
    for key, where in zip(_keys(X), da.core.slices_from_chunks(X.chunks), strict=True):
        held, place = blocks.get(key), base[where]
        if held is None or (held.ctypes.data, held.shape, held.strides) != (
            place.ctypes.data,
            place.shape,
            place.strides,
        ):
            return None
    array: NDArray[Any] = base
    return array


def _keys(X: da.Array) -> list[Any]:
    return [key for row in X.__dask_keys__() for key in row]


def whole_rows(X: da.Array, dtype: np.dtype[Any]) -> da.Array:
    """Return X in a dtype, and in chunks of whole rows."""
    return X.astype(dtype).rechunk({1: -1})
