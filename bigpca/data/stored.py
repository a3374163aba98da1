"""The source of rows in a path, a stored array, or an array in memory."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from bigpca.data.checks import check_dtype
from bigpca.data.containers import (
    is_hdf5_dataset,
    is_stored_sparse,
    is_zarr_array,
    is_zarr_group,
    reject_foreign,
    reject_sparse_forms,
    table_rows,
    unmasked,
)
from bigpca.data.conventions import MATLAB, Limits, check_decoded
from bigpca.data.parquet import ParquetTable
from bigpca.data.row_source import RowSource
from bigpca.data.sparse import held_csr, is_sparse
from bigpca.data.storages import MemoryRows, ZarrRows
from bigpca.data.views import Names
from bigpca.data.zarr_groups import array_source, group_source
from bigpca.data.zarr_reader import ZarrReader, wrap_zarr


def held_rows(array: Any) -> RowSource:
    """Return the source of an array or CSR in memory."""
    if is_sparse(array):
        return RowSource("scipy", "", "", held_csr(array))
    return RowSource("numpy", "", "", MemoryRows(array))


def stored_values(source: RowSource, fill: str | None) -> RowSource:
    """Return the source of a file's array with what its attributes say of its numbers, unless ``fill`` is None.

    Raises
    ------
    ValueError
        If the numbers are encoded values, or their axes reversed; has the line that decodes them, and the one that uses
        the stored numbers.
    """
    storage: Any = source.storage
    if hasattr(type(storage), "attributes"):  # Zarr and HDF5
        group, name = os.path.split(source.member)
        kind = 'engine="zarr", ' if isinstance(storage, ZarrRows) else ""
        inside = f"group={group!r}, " if group else ""
        decode = f"xarray.open_dataset({source.path!r}, {kind}{inside}chunks={{}})[{name!r}]"
        raw = "dask.array.from_zarr" if kind else "dask.array.from_array(h5py_dataset)"
        remedy = f"Pass {decode}, or {raw} to use the stored numbers"
        attributes = storage.attributes
        check_decoded(attributes, source.label, remedy)
        if MATLAB in attributes:
            raise ValueError(
                f"{source.label} was written by MATLAB 7.3, which reverses the axes: its rows are columns here, in "
                f"shape {source.array_shape}. Rows of features were expected. Pass "
                f"dask.array.from_array(h5py.File({source.path!r})[{source.member!r}]).T."
            )
        if fill is not None:
            return replace(source, limits=Limits.of(attributes, source.dtype))
    return source


def row_source(source: Any, *, member: str | None = None, missing_chunks: str = "raise") -> RowSource:
    """Create the RowSource of anything that :func:`open` accepts except Dask arrays (same parameters and errors)."""
    if isinstance(source, (str, os.PathLike)):
        from bigpca.data.files import file_source  # all formats of files, of no use to arrays

        return file_source(os.fspath(source), member, missing_chunks)
    if is_zarr_group(source):
        return group_source(source, member, lambda array: wrap_zarr(array, missing_chunks))
    if is_zarr_array(source):
        source = wrap_zarr(source, missing_chunks)
    if isinstance(source, ZarrReader):
        return array_source(source)
    if isinstance(source, np.memmap) and source.filename is not None:
        return _memmap_source(source)
    if is_hdf5_dataset(source):
        from bigpca.data.files import file_source  # as above
        from bigpca.data.hdf5 import dataset_place

        return file_source(*dataset_place(source), missing_chunks)
    if is_stored_sparse(source):
        return _stored_sparse(source.group, missing_chunks)
    if is_sparse(source):
        return held_rows(source)
    reject_sparse_forms(source, "the source")
    reject_foreign(source, "the source")
    source = table_rows(source, "the source")
    if hasattr(source, "__array__"):
        check_dtype(np.asarray(source).dtype)
        array = unmasked(source) if isinstance(source, np.ma.MaskedArray) else np.asarray(source)
        return held_rows(array)
    raise TypeError(
        f"a {type(source).__module__}.{type(source).__name__} cannot be opened: a path or a list of paths, a Zarr "
        "array or group, a NumPy, Dask or xarray array, a Dask DataFrame or an h5py dataset was expected."
    )


def _stored_sparse(group: Any, missing_chunks: str) -> RowSource:
    """Return the rows of a sparse matrix that AnnData has opened in a Zarr or HDF5 group."""
    if is_zarr_group(group):
        return group_source(group, None, lambda array: wrap_zarr(array, missing_chunks))
    from bigpca.data.files import file_source  # all formats of files, as above
    from bigpca.data.hdf5 import dataset_place

    return file_source(*dataset_place(group), missing_chunks)


def names_in_file(source: RowSource) -> Names:
    """Return the names of the columns of a table, or of a matrix of AnnData or 10x Genomics in a file."""
    if isinstance(source.storage, ParquetTable):
        return np.array(source.storage.column_names, dtype=object)
    place = f"{source.path}/{source.member}".rstrip("/").split("/")
    if source.format not in ("zarr", "hdf5") or not (source.sparse or {"X", "layers"} & set(place[-2:])):
        return None
    from bigpca.data.cell_files import gene_names  # reads labels, which few sources have

    return gene_names(source.path, source.member, source.shape[1])


def _memmap_source(array: np.memmap[Any, Any]) -> RowSource:
    """Read a memory map from its file if it is the whole map; a view of one is treated as an array in memory."""
    from bigpca.data.flat_files import raw_file  # as the other formats of files

    whole = type(array.base).__name__ == "mmap" and array.size * array.itemsize > 0
    path = os.path.abspath(str(array.filename))
    if not whole:
        check_dtype(array.dtype)
        return held_rows(np.asarray(array))
    order = "C" if array.flags.c_contiguous else "F"
    return RowSource("raw", path, "", raw_file(path, int(array.offset), array.shape, array.dtype, order))
