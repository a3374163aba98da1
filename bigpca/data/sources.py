"""``bigpca.open``: anything that holds rows as one row-chunked Dask array; the source behind one, and its stamp."""

from __future__ import annotations

import math
import os
import warnings
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from dask.base import tokenize
from numpy.typing import ArrayLike

import bigpca.dask_array as da
from bigpca.arrays import Array, Input, unmasked
from bigpca.data import containers
from bigpca.data.checks import ValidRange, check_dtype, check_shape, decoding, regular_chunks
from bigpca.data.dask_arrays import (
    carried,
    carrying,
    held_rows,
    named,
    names_of,
    open_graph,
    open_source,
    source_of,
    view_of,
    viewed,
    with_beside,
    with_index,
)
from bigpca.data.grids import (
    Labels,
    check_field,
    kept_view,
    label,
    lazy_table,
    masked_places,
    sample_rows,
)
from bigpca.data.source import (
    Source,
    Stamp,
    StoredRows,
    Wanted,
    choose_member,
    file_stamp,
    stored_values,
)
from bigpca.data.sparse import CsrRows, is_csr, is_sparse
from bigpca.data.views import NO_CODES, Names, RowPattern, View
from bigpca.data.zarr_arrays import ZarrReader, ZarrRows, node_source, store_source
from bigpca.errors import CorruptedChunkError, ShortTraceback, brief, check_choice
from bigpca.storage.files import digest, kind_of, local_path, open_regular


def row_source(
    source: Any, *, member: str | None = None, missing_chunks: str = "raise", wanted: Any = None, single: bool = False
) -> Source:
    """Create the source of anything that :func:`open` accepts except Dask arrays (same parameters and errors).

    ``wanted`` is what a caller said of the columns of a table (:class:`bigpca.data.source.Wanted`). With ``single``, a
    number for each row is one column.
    """
    if isinstance(source, (str, os.PathLike)):
        from bigpca.data.files import file_source  # all formats of files, of no use to arrays

        found = file_source(os.fspath(source), member, missing_chunks, wanted)
    else:
        found = _open_source(source, member, missing_chunks, wanted)
    if len(found.array_shape) < 2 - single:
        check_shape(found.array_shape, found.label)
    return found


def _open_source(source: Any, member: str | None, missing_chunks: str, wanted: Wanted | None) -> Source:
    """Create the source of an object: a store, a map of memory, an open dataset, or rows in memory."""
    if wanted is not None and wanted.keys is not None:
        raise ValueError(
            f"keys = {wanted.keys!r} names a column of Parquet, but the source is "
            f"{containers.type_names(source)[0].removeprefix('builtins.')}. For a frame, pass "
            f"X.set_index({wanted.keys!r}); for other rows, store keys: bigpca.ingest(X, out, keys=...)."
        )
    if containers.is_place(source):
        from bigpca.storage.places import ObjectStore  # for object stores only

        return row_source(ObjectStore(source).openable(), member=member, missing_chunks=missing_chunks, wanted=wanted)
    if containers.is_zarr_store(source):
        return store_source(source, member, missing_chunks)
    if containers.is_zarr_group(source) or containers.is_zarr_array(source):
        return node_source(source, member, missing_chunks)
    if isinstance(source, ZarrReader):
        return ZarrRows.of(source)
    if isinstance(source, np.memmap) and source.filename is not None:
        # A whole memory map, in any shape and dtype, is read from its file; a part of one is an array in memory.
        from bigpca.data.flat_files import raw_file  # as the other formats of files

        held = source.base if isinstance(source.base, np.memmap) and source.flags.c_contiguous else source
        # Values assigned to a copy-on-write map are not in its file.
        whole = type(held.base).__name__ == "mmap" and held.nbytes == source.nbytes > 0 and source.mode != "c"
        path = os.path.abspath(str(source.filename))
        if not whole:
            check_dtype(source.dtype)
            return held_rows(np.asarray(source))
        order = "C" if source.flags.c_contiguous else "F"
        return raw_file(path, int(source.offset), source.shape, source.dtype, order, format="raw")
    in_group = containers.is_stored_sparse(source)  # a sparse matrix that AnnData has opened in a Zarr or HDF5 group
    if in_group and containers.is_zarr_group(source.group):
        return node_source(source.group, None, missing_chunks)
    if in_group or containers.is_hdf5_dataset(source):
        from bigpca.data.files import file_source  # as above
        from bigpca.data.hdf5 import dataset_place

        return file_source(*dataset_place(source.group if in_group else source), missing_chunks)
    if is_sparse(source):
        return held_rows(source)
    containers.reject_sparse_forms(source, "the source")
    containers.reject_foreign(source, "the source")
    source = containers.table_rows(containers.embeddings(source, "the source", member), "the source")
    if hasattr(source, "__array__"):
        values = unmasked(source)
        check_dtype(values.dtype)
        return held_rows(values)
    raise TypeError(
        f"{type(source).__module__}.{type(source).__name__} cannot be opened: a path or a list of paths, a Zarr "
        "array or group, a NumPy, Dask or xarray array, a Dask DataFrame or an h5py dataset was expected."
    )


def feature_names(X: Any, axes: tuple[int, ...] | None = None) -> Names:
    """Return the names of the features of a table, or None if it has none.

    For a Dask DataFrame, its columns if they are strings; for a DataArray, the coordinates of all dimensions but the
    first as strings, joined by commas if features have several dimensions; ``axes`` are those of a sample that make
    features, by default all. For a Dask array, those that :func:`bigpca.open` gave it.

    Raises
    ------
    TypeError
        If some column names are strings and others are not, as in scikit-learn.
    """
    if isinstance(X, da.Array):
        return names_of(X)
    if (schema := containers.table_schema(X)) is not None:
        return string_names([name for name, _ in schema])
    return label(X, None)[1].grid.names(axes) if containers.is_labelled(X) else None


def string_names(names: Sequence[Any]) -> Names:
    """Return the names of columns if they are strings; None for numbers; raises as :func:`feature_names`."""
    kinds = sorted({type(name).__qualname__ for name in names})
    if len(kinds) > 1 and "str" in kinds:
        raise TypeError(
            f"Feature names are only supported if all input features have string names, but X has {kinds}. Convert "
            "them all: X.columns = X.columns.astype(str)."
        )
    return np.array(names, dtype=object) if kinds == ["str"] else None


def names_in_file(source: Source) -> Names:
    """Return the names of the columns of a table, or of a matrix of AnnData or 10x Genomics in a file."""
    if source.format not in ("zarr", "hdf5"):
        names = source.column_names
        return None if names is None else np.array(names, dtype=object)
    place = f"{source.path}/{source.member}".rstrip("/").split("/")
    if not (source.sparse or {"X", "layers"} & set(place[-2:])):
        return None
    from bigpca.data.label_files import gene_names  # reads labels, which few sources have

    home, member = (source.path, source.member) if isinstance(source.home, str) else (source.home, "")
    return gene_names(home, member, source.shape[1])


__all__ = ["Source", "check_dtype", "open", "row_source"]


def open(
    source: Input,
    *,
    member: str | None = None,
    missing_chunks: str = "raise",
    sample_dims: str | Sequence[str] | None = None,
    pattern: str | None = None,
    columns: slice | Sequence[int] | Sequence[str] | Array | None = None,
    keys: str | None = None,
    missing_value: float | Sequence[float] | None = None,
    fill: str | float | None = "default",
    mask: ArrayLike | None = None,
    covariates: Input | None = None,
    sample_weight: Input | None = None,
    labels: Input | None = None,
    groups: Input | None = None,
    **axes: int,
) -> da.Array:
    """Open stored features as a Dask array of shape (n, d), chunked in rows; no data is read.

    By default each sample is a row, and all its numbers are columns. A pattern changes that. Nothing is copied to disk:
    samples are cut into rows as they are read.

    Parameters
    ----------
    source : str, path, zarr.Array, zarr.Group, dask array or DataFrame, xarray.DataArray, AnnData, h5py.Dataset, array
        or CSR
        A path is a Zarr store (v2, v3; array or group), a .npy, .h5, .nc, .parquet, .bed, .pt or .safetensors file, a
        folder or glob of shards (.npy, .pt or .safetensors, read in natural order) or of Parquet, also in partitions; a
        list of paths is read as shards in its order. Zarr stores are opened too. Rows of tables are the columns of
        numbers, or a column of equally long lists. netCDF has the grid that xarray finds.
        Feature maps (n, c, h, w) become (n, c*h*w). Masked entries become NaN. Sparse rows (SciPy's CSR, arrays of
        ``sparse``, Dask arrays of either in chunks of whole rows; CSR in a Zarr or HDF5 group, as AnnData writes it)
        stay sparse.
    member : str, optional
        The array of a group or file, or the column of lists; required if more than one has two dimensions. For AnnData,
        in memory or in a file: "X" (the default), "layers/NAME" or "obsm/NAME". Columns have the names of the
        variables; the columns of a table keep their names.
    missing_chunks : {"raise", "fill"}, default "raise"
        What to do about a chunk that is missing from a Zarr store or an HDF5 file: raise an error, or use the fill
        value. It is part of what identifies the rows in checkpoints.
    sample_dims : str or sequence of str, optional
        Dimensions of an xarray.DataArray, or of netCDF at a path, whose positions are the rows, such as ``"time"`` or
        ``("time", "member")``, in C order; by default its first. The other dimensions, in their order, make the
        columns. A model that is fitted to these rows keeps the grid of the columns, see :meth:`bigpca.PCA.to_xarray`.
    pattern : str, optional
        What is a row, in the notation of einops: ``"n c h w -> (n h w) c"`` makes every pixel of a feature map a row of
        c columns. The left side names the dimensions of ``source``, samples first; the right side has the rows, samples
        first, and the columns.
    columns : slice, list of int, mask or list of names, optional
        Which columns are kept, in this order. Names also say which columns of a table are features: the others may
        then hold text. Positions are among the columns of a table that hold numbers: ``slice(None)`` is all of them.
    keys : str, optional
        The column of Parquet that names the rows, and is not a feature. By default an
        index that pandas wrote, if it has a name or holds strings. Labels, weights and scores are joined by it.
    missing_value : number or list of numbers, optional
        The code of missing values, such as -1 in genotypes, or a list of codes. They become NaN as rows are read, in
        float32 for integers of up to 16 bits and in float64 for others. By default there is none.
    fill : {"default"}, int, float or None, default "default"
        How to treat netCDF variables without an attribute for missing values. By default, the default fill of netCDF-4
        in variables without ``_FillValue`` is missing: it becomes NaN in floats, and is an error in integers, where it
        may be a value. Numbers out of ``valid_range`` are an error. Both hold for a DataArray that xarray decoded
        from a file, too. None treats every stored number as a value; a number treats all but this one as values,
        like None with ``missing_value``.
    mask : array-like or xarray.DataArray of bool, optional
        Which places of a sample are columns, such as those of the sea: of the shape of a sample, or for a DataArray of
        that of its grid, or a DataArray along some of its dimensions, whose coordinates are compared. What the other
        places hold is never looked at. A model of a DataArray keeps grid and mask: it maps whole fields, and its own
        are NaN elsewhere.
    covariates : anything that ``source`` may be, of n rows, optional
        What is known of each row, such as its batch or age, whose linear effect estimators take out. Joined as labels
        are: by key where both have keys, else in the order of the rows. Slices, masks and lists of the rows have those
        of their rows. What Dask computes of these otherwise, or persists, is rejected: compute or persist rows that
        were opened without, then open the result with covariates. Steps of scikit-learn, ``compute``, ``dask.delayed``
        and ``to_zarr`` keep the numbers alone: give covariates to the fit of these.
    sample_weight : one number for each row, as for fits, optional
        They belong to the rows as covariates do, and fits and measures use them as if they had been passed.
    labels, groups : one for each row, as ``y`` and ``groups`` of fits, optional
        They belong to the rows as covariates do; fits without labels leave the labels unread.
    **axes
        By the name of an axis in the pattern: its positions (a slice, a list of int or a mask), such as
        ``t=slice(1, None)`` for all tokens but the first, or its size (an integer), for axes in brackets on the left.

    Returns
    -------
    dask.array.Array of shape (n, d)
        Each Dask chunk has whole chunks of the store, up to about 64 MiB. Chunks of sparse rows are ``csr_matrix``. A
        Dask array is returned unchanged, except that it is flattened to two dimensions. A model that is fitted with a
        pattern or a missing value keeps them, and applies them to stored samples again.

    Raises
    ------
    FileNotFoundError
        If the path does not exist.
    TypeError
        For complex, object, string, date and structured dtypes, and for containers without rows of numbers in the
        host's memory (compressed columns, on a GPU), before any read; the message has the remedy.
    ValueError
        If a member must be named, if the data have one dimension, and for unknown formats. For a pattern that does not
        fit the shape, axes that it does not have, and positions or names that do not exist. For
        ``sample_dims`` that the DataArray does not have, or together with a pattern.

    Examples
    --------
    >>> X = open(np.zeros((10, 2, 3), dtype="f2"))
    >>> X.shape, X.dtype
    ((10, 6), dtype('float16'))
    >>> open(np.zeros((10, 5, 8)), pattern="n tokens d -> (n tokens) d", tokens=slice(1, None)).shape
    (40, 8)
    """
    if not isinstance(fill, str | None):
        if missing_value is not None:
            raise ValueError(
                f"fill = {fill} and missing_value = {missing_value} are two codes for missing values. Give one."
            )
        fill, missing_value = None, fill
    check_choice("missing_chunks", missing_chunks, ("raise", "fill"))
    if fill is not None:
        check_choice("fill", fill, ("default",))
    described, asked = RowPattern(), axes or any(one is not None for one in (pattern, columns, missing_value))
    if asked:
        described = RowPattern.of(pattern, columns, axes, missing_value)
    options: dict[str, Any] = {"missing_chunks": missing_chunks, "sample_dims": sample_dims, "fill": fill}
    options["gridded"] = described == RowPattern()
    with ShortTraceback():
        if sample_dims is not None:
            _check_sample_dims(source, sample_dims, described, fill)
        at_path = isinstance(source, str | os.PathLike)
        if not at_path and containers.is_cells(source):
            matrix, names = containers.cell_matrix(source, member)
            rows = open_samples(matrix, missing_chunks=missing_chunks)[0]
            source, member = with_index(named(rows, names), source), None
        if asked:
            options["codes"] = described.missing.codes
        if keys is not None or (columns is not None and (at_path or isinstance(source, list))):
            own = columns if isinstance(columns, list | tuple) else (None,)
            texts = tuple([one for one in own if isinstance(one, str)])
            options["wanted"] = Wanted(keys, None if columns is None else texts if len(texts) == len(own) else ())
        X, shape = open_samples(source, member=member, **options)
        if asked or mask is not None:
            X = _cut(X, source, shape, described, mask)
    given = {"covariates": covariates, "sample_weight": sample_weight, "labels": labels, "groups": groups}
    beside = {name: one for name, one in given.items() if one is not None}
    return with_beside(X, beside) if beside else X


def _cut(X: da.Array, source: Any, shape: tuple[int, ...], described: RowPattern, mask: Any) -> da.Array:
    """Return the rows that a user described of samples of a shape, at the places that a mask keeps."""
    known, sparse, plain = carried(X), is_csr(X._meta), described == RowPattern(missing=described.missing)
    cut = known.view is not None or (known.labels is not None and known.labels.grid.kept is not None)
    coded = bool(described.missing) and not sparse
    if known.labels is not None and not cut and (mask is not None or (coded and plain)):
        return _on_grid(X, known.labels, described, mask)
    if mask is not None:
        described = described.masked(masked_places(mask, shape))
    if cut:
        raise ValueError(
            "the array was already opened with a pattern, columns or a missing value. Give pattern=, columns= and "
            "missing_value= in one call."
        )
    if described.missing and sparse:
        raise ValueError(
            f"missing_value = {described.missing} cannot be used with sparse rows, whose unstored entries are 0. Store "
            "NaN where values are missing."
        )
    described.missing.check(X.dtype)
    return viewed(X, *row_view(source if known.names is None else X, described, shape))


def _on_grid(X: da.Array, labels: Labels, described: RowPattern, mask: Any) -> da.Array:
    """Return the rows of a DataArray without codes of missing values, at the places of its grid that a mask keeps."""
    grid = labels.grid if mask is None else labels.grid.masked(mask)
    if grid.kept is not None:
        described.masked(grid.kept)
    described.missing.check(X.dtype)
    grid = replace(grid, missing=described.missing)
    return carrying(viewed(X, cast("View", kept_view(grid))), labels=replace(labels, grid=grid))


def _check_sample_dims(source: Any, sample_dims: str | Sequence[str], described: RowPattern, fill: str | None) -> None:
    if not containers.is_labelled(source) and not is_netcdf(source):
        containers.reject_foreign(source, "the source")  # a Dataset, with a remedy of its own
        remedy = "Pass xr.DataArray(source, dims=(...)), or describe the rows with pattern=."
        if isinstance(source, str | os.PathLike):
            remedy = "Open it by xarray and pass one of its variables, such as xr.open_dataset(path)['sst']."
        raise TypeError(
            f"sample_dims = {sample_dims!r} names dimensions, but only an xarray.DataArray has named dimensions; the "
            f"source is {containers.type_names(source)[0].removeprefix('builtins.')}. {remedy}"
        )
    missing = described.missing if containers.is_labelled(source) else NO_CODES
    if described != RowPattern(missing=missing) or (fill is None and not containers.is_labelled(source)):
        raise ValueError(
            f"sample_dims = {sample_dims!r} and a pattern, columns, or a path with a missing value or fill=None were "
            "given. Give one; DataArray.isel, stack and where choose and join positions, and replace values."
        )


def open_samples(
    source: Any,
    *,
    member: str | None = None,
    missing_chunks: str = "raise",
    sample_dims: str | Sequence[str] | None = None,
    fill: str | None = "default",
    codes: Collection[float] = (),
    gridded: bool = True,
    wanted: Wanted | None = None,
    single: bool = False,
) -> tuple[da.Array, tuple[int, ...]]:
    """Open stored samples as a Dask array (n, d), and return the shape of one sample too; raises as :func:`open`.

    ``codes`` of missing values are those that a caller named. ``gridded`` says whether a netCDF file has the
    dimensions that xarray reads. With ``single``, a number for each row is one column: the shape of its samples is ().
    """
    if isinstance(source, da.Array):
        if missing_chunks == "fill":
            raise ValueError(
                f'missing_chunks = "fill" is for stores, but the Dask array {source.name} already reads one. Open the '
                'store itself: bp.open(path, missing_chunks="fill"), and compute with the array that this returns.'
            )
        return open_graph(source, single=single)
    options: dict[str, Any] = {"missing_chunks": missing_chunks, "wanted": wanted, "single": single}
    field = _netcdf_field(local_path(source), member) if gridded and fill is not None and is_netcdf(source) else None
    if field is not None:
        check_field(field, fill, codes)
        arranged, labels = label(field, sample_dims)
        if arranged.dims == field.dims and len(labels.sizes) == 1 and field.dtype.kind in "fiub":
            found = _as_stored(source, member or field.name, missing_chunks)
            if found is not None and found.array_shape == field.shape:
                found = stored_values(found, fill, codes)
            else:
                found = FieldRows.of(field, local_path(source), member or str(field.name))
            return carrying(open_source(found), labels=labels), field.shape[1:]
        X, shape = open_samples(field, sample_dims=sample_dims, missing_chunks=missing_chunks, codes=codes)
        return carrying(X, place=(local_path(source), str(field.name), *map(str, arranged.dims))), shape
    if isinstance(source, str | os.PathLike):
        found = stored_values(row_source(source, member=member, **options), fill, codes)
        X, names = open_source(found), names_in_file(found)
        return X if names is None else named(X, names), found.array_shape[1:]
    if containers.is_path_list(source):
        of_each = {"member": member, "missing_chunks": missing_chunks, "fill": fill, "codes": codes, "wanted": wanted}
        return _open_shards([os.fspath(path) for path in source], of_each)
    if containers.is_labelled(source):
        arranged, labels = label(source, sample_dims)
        values = sample_rows(arranged, len(labels.sizes), fill, codes)
        X, shape = open_samples(values, missing_chunks=missing_chunks)
        limits = None if fill is None or is_csr(X._meta) else ValidRange.of_decoded(source)
        if limits is not None:
            place = source.encoding.get("source")
            name = f"{place}:{source.name}" if place else f"the DataArray {source.name!r}"
            X = X.map_blocks(_limited, limits, name, dtype=X.dtype, meta=X._meta)
        return carrying(X, labels=labels), shape
    if containers.is_dask_frame(source):
        X, shape = open_samples(lazy_table(source), missing_chunks=missing_chunks, single=single)
        return with_index(named(X, feature_names(source)), source), shape
    found = stored_values(row_source(source, member=member, **options), fill, codes)
    names, given = names_in_file(found), feature_names(source)  # a frame in memory has its own
    names = given if names is None and given is not None and len(given) == found.shape[1] else names
    return with_index(named(open_source(found), names), source), found.array_shape[1:]


def _limited(block: Array, limits: ValidRange, label: str, block_info: Any = None) -> Array:
    """Return a block of decoded values without those that are out of the limits of the file."""
    (first, _), (left, _) = block_info[0]["array-location"]
    return limits.values(block.copy(), label, first, left)


def is_netcdf(source: Any) -> bool:
    """Whether this is the path of a netCDF file, by its extension, whose variables have dimensions."""
    named = isinstance(source, str | os.PathLike) and os.fspath(source).lower().endswith((".nc", ".nc4", ".cdf"))
    return named and os.path.isfile(local_path(source))


@dataclass(frozen=True, eq=False, repr=False)
class FieldRows(StoredRows):
    """Rows of a variable of a netCDF file, which xarray decodes: along its first dimension."""

    decoded_rows: int = field(kw_only=True)

    @classmethod
    def of(cls, variable: Any, path: str, member: str) -> FieldRows:
        """Describe the rows of a lazy DataArray of the file."""
        together = int((variable.encoding.get("chunksizes") or (1,))[0])
        own: dict[str, Any] = {"path": path, "member": member, "limits": ValidRange.of_decoded(variable)}
        return cls(variable.shape, variable.dtype.str, decoded_rows=together, format="netcdf", **own)

    def row_chunks(self) -> tuple[int, ...]:
        """Chunks of the file, if it has them."""
        together = self.decoded_rows
        return super().row_chunks() if together == 1 else regular_chunks(self.array_shape[0], together)

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Array:
        """Decode a range of rows."""
        with decoding(f"rows {start}:{stop} of {self.label} cannot be decoded", errors=(OSError, RuntimeError)):
            rows: Array = _lazy_field(file_stamp(self.path), self.member)[start:stop].values
        return rows.reshape(stop - start, self.shape[1])[:, slice(*columns)]


@lru_cache(maxsize=8)
def _lazy_field(stamp: Stamp, member: str) -> Any:
    """Return a variable of a file that has not changed since it was last opened in this process."""
    return _netcdf_field(stamp[0], member, lazy=False)


def _netcdf_field(path: str, member: str | None, lazy: bool = True) -> Any | None:
    """Return a variable of a netCDF file as a lazy DataArray: the named one, or the only one of two dimensions or more.

    None where xarray is not installed or has no reader for the file, and where the file names no dimensions.
    """
    try:
        import xarray as xr

        folder, _, name = (member or "").strip("/").rpartition("/")
        with warnings.catch_warnings():  # of other variables
            warnings.simplefilter("ignore", xr.SerializationWarning)
            data = xr.open_dataset(path, chunks={} if lazy else None, group=folder or None)
    except (ImportError, ValueError):  # xarray says by a ValueError that no engine is there
        return None
    except (OSError, RuntimeError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise CorruptedChunkError(f"{path} cannot be read as netCDF ({brief(error)}). Copy it again.") from error
    if any(str(dim).startswith("phony_dim") for dim in data.dims):  # HDF5 of another kind, which names none
        return None
    bounds = {one.attrs.get("bounds", one.encoding.get("bounds")) for one in data.variables.values()}
    shapes = {str(key): one.shape for key, one in data.data_vars.items() if key not in bounds or key == name}
    return data[choose_member(path, name or None, shapes)]


def _as_stored(path: Any, member: str | None, missing_chunks: str) -> Source | None:
    """Return a variable whose stored numbers are its values as the source that reads it without xarray."""
    with open_regular(local_path(path)) as file:
        if not file.read(8).startswith(b"\x89HDF"):
            return None
    found = row_source(path, member=member, missing_chunks=missing_chunks)
    try:
        stored_values(found, "default")
    except ValueError:  # encoded
        return None
    return found


def row_view(source: Any, pattern: RowPattern, shape: tuple[int, ...]) -> tuple[View, Names]:
    """Return the view that a pattern describes of a source whose samples have a shape, and the names of its columns."""
    names = _column_names(source, View.of(replace(pattern, columns=None, missing=NO_CODES), shape), shape)
    view = View.of(pattern, shape, names)
    return view, names if names is None or view.columns is None else names[view.columns]


def _column_names(source: Any, view: View, shape: tuple[int, ...]) -> Names:
    """Return the names of the columns of a view, where the source names its features."""
    if view.row_axes:  # the columns are some axes of a sample
        if view.sample != shape:
            return None
        names = feature_names(source, view.column_axes)
        sizes = tuple(view.sample[axis] for axis in view.column_axes)
        taken = tuple(view.taken[axis] for axis in view.column_axes) if view.taken else ()
        view = View(sizes, column_axes=tuple(range(len(sizes))), taken=taken)
    else:
        names = feature_names(source)
    view = replace(view, missing=NO_CODES)
    # A column of lists has one name.
    return (
        None
        if names is None or len(names) != math.prod(view.sample)
        else names[view.apply(np.arange(len(names))[None])[0]]
    )


def _open_shards(paths: list[str], options: dict[str, Any]) -> tuple[da.Array, tuple[int, ...]]:
    """Open a list of paths: flat files as one source, others as joined Dask arrays."""
    from bigpca.data import flat_files as flat  # as the other formats of files

    here = [local_path(path) for path in paths if kind_of(path) == "disk"]
    if len(here) == len(paths) and all(flat.suffix_of(path) in flat.FLAT and os.path.isfile(path) for path in here):
        source = flat.joined_shards(here, options["member"])
        return open_source(source), source.array_shape[1:]
    found = [open_samples(path, **options) for path in paths]
    parts, shapes = [part for part, _ in found], {shape for _, shape in found}
    shards = [flat.Shard(path, part.shape, part.dtype) for path, part in zip(paths, parts, strict=True)]
    for shard in shards:
        flat.check_shard(shard, shards[0])
    names = [carried(part).names for part in parts]
    for path, own in zip(paths, names, strict=True):
        flat.check_names(path, own, paths[0], names[0])
    joined = carrying(named(da.concatenate(parts), names[0]), parts=tuple(parts))
    return joined, shapes.pop() if len(shapes) == 1 else (int(joined.shape[1]),)


def rows_stamp(X: da.Array, n: int) -> str | None:
    """Return what identifies the first n rows of a store, also after rows were appended.

    That of a view is that of its samples, and the view; that of a list is that of its members, as far as they have
    these rows. It is the digest of the names, sizes and times of the files of
    whole chunks; rows in the last chunk, which appending fills up, are read. Of sparse rows these are the chunks of
    values and of their columns, and the ends of all rows are read, which AnnData writes as one chunk. None for arrays
    in memory, computed arrays, and stores that do not say when their objects change.
    """
    base, view = view_of(X)
    if view is not None:
        samples, rest = divmod(n, view.rows_per_sample)
        stamp = None if rest else rows_stamp(base, samples)
        return None if stamp is None else digest([stamp, tokenize(replace(view, pattern=None))])
    if parts := carried(X).parts:
        ends = np.cumsum([0, *(part.shape[0] for part in parts)])
        own = [(part, min(n - end, part.shape[0])) for part, end in zip(parts, ends, strict=False) if n > end]
        stamps = [rows_stamp(*one) for one in own]
        return None if None in stamps else digest(stamps)
    if (place := carried(X).place) is not None:
        return digest([file_stamp(place[0]), *place[1:]]) if n == X.shape[0] else None
    source = source_of(X)
    if source is None or not source.path or source.unseen is None:
        return None
    found: list[object] = [source.shape[1], source.dtype.str, source.member]
    if isinstance(source, CsrRows):
        ends = source.ends(0, n)
        found += [zlib.crc32(ends.data), *(_stamp(part, int(ends[-1]), 1) for part in (source.data, source.indices))]
    elif source.sparse:  # in a form that is only read as a whole
        return None
    else:
        found += _stamp(source, n, source.shape[1])
    return digest(found)


def _stamp(part: Source, n: int, width: int) -> list[object]:
    """Return what identifies the first n rows of an array: the stamps of whole chunks, and the values of the rest."""
    whole = n - n % part.reader.chunks[0] if isinstance(part, ZarrRows) else n
    tail = np.ascontiguousarray(part.read_block(whole, n, (0, width)))
    return [part.stamps(0, whole), n - whole, zlib.crc32(tail.data)]
