"""Containers of rows, recognised by their attributes and type names, without importing their libraries."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from numbers import Number, Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import unmasked
from bigpca.data.checks import MemberError, arrow_rows, check_lengths, check_promised
from bigpca.devices import RowsThere
from bigpca.errors import brief, closest, listed

if TYPE_CHECKING:
    import zarr
    from typing_extensions import TypeIs


Names = NDArray[np.object_]
_FILE_LIBRARIES = 'Open the file with xarray.open_dataset(path, chunks={}) and pass one variable, such as ds["x"].'

_STAYING = "bigpca.from_batches([X]) to compute where it is"

_BATCHES = "Pass bigpca.from_batches(X), or write the features to disk and pass their path."

# Types of columns, as pandas (NumPy's, nullable, Arrow's and sparse ones), polars and pyarrow write them.
_NUMBERS = re.compile(
    r"(sparse\[)?(u?int\d+|(half)?float(16|32|64)?|double|bool(ean)?|decimal\d*|null|>[fiu][248])\b", re.IGNORECASE
)

# "library.Type" (any class of the type's MRO) -> what to pass instead.
_REMEDIES = {
    "anndata.AnnData": 'Pass bigpca.open(adata), which is its X, or bigpca.open(adata, member="obsm/X_pca"); or call '
    "bigpca.cells.pca(adata).",
    "mudata.MuData": 'Pass one matrix of one modality, such as mdata["rna"].X if it is dense.',
    "h5py.Group": 'Pass one of its datasets, such as file["features"], or the path of the file with member=.',
    "xarray.Dataset": 'Pass one of its variables, such as ds["features"], or stack them with ds.to_dataarray().',
    "xarray.DataTree": 'Pass one of its variables, such as tree["group/features"].',
    "xarray.Variable": "Pass the DataArray that holds it.",
    "netCDF4.Variable": _FILE_LIBRARIES,
    "netCDF4.Dataset": _FILE_LIBRARIES,
    "h5netcdf.Variable": _FILE_LIBRARIES,
    "h5netcdf.File": _FILE_LIBRARIES,
    "scipy.netcdf_variable": _FILE_LIBRARIES,
    "polars.LazyFrame": "Pass X.collect() if it fits in memory; else write Parquet and pass "
    "dask.dataframe.read_parquet(path).",
    "pyspark.DataFrame": "Write Parquet and pass dask.dataframe.read_parquet(path).",
    "pyarrow.Dataset": "Pass X.to_table() if it fits in memory, or bigpca.from_batches(X).",
    "pyarrow.Scanner": "Pass bigpca.from_batches(X).",
    "duckdb.DuckDBPyRelation": "Pass X.df() if it fits in memory, or bigpca.from_batches(X.to_arrow_reader(8192)).",
    "cudf.DataFrame": "Pass X.to_pandas().",
    "dask.Delayed": "Pass dask.array.from_delayed(X, shape=(n, d), dtype=...).",
    "dask.Bag": "Pass X.to_dataframe(), or store the rows as arrays.",
    "dask.Series": "Pass a table: X.to_frame() for one feature.",
    "distributed.Future": "Pass X.result(), or a Dask array over futures (dask.array.from_delayed).",
    "torch.DataLoader": _BATCHES,
    "torch.Dataset": _BATCHES,
    "tensorflow.DatasetV2": _BATCHES,
    "datasets.Dataset": "Pass X.with_format('numpy')['features'], or write Parquet once: X.to_parquet('rows.parquet').",
    "datasets.Column": "Pass X[:], or write Parquet once: dataset.to_parquet('rows.parquet').",
    "datasets.IterableDataset": "Pass bigpca.from_batches(X.with_format('numpy').iter(4096), column='features').",
    "anndata.AnnCollection": "Pass the list of its files, bigpca.open([path, ...]), or write them as one by "
    "anndata.experimental.concat_on_disk.",
    "pandas.MultiIndex": "Pass one level, X.get_level_values(0), or all levels as columns, X.to_frame().",
    "builtins.set": "Pass a list, which has an order.",
    "builtins.NoneType": "Pass rows of features, (n, d).",
    "builtins.bytes": "Pass a path as a str (os.fsdecode).",
}
_LISTS = re.compile(
    r"(fixed_size_|large_)?list(_view)?<|(List|Array)\(|extension<(.*[Aa]rray|arrow.fixed_shape_tensor)"
)


class Foreign(NamedTuple):
    """A container whose rows cannot be read.

    Attributes
    ----------
    what : str
        Its description.
    remedy : str
        What to pass instead, in a sentence.
    convert : str
        Method call that converts it to dense NumPy rows, such as ``".toarray()"``; empty if there is none.
    """

    what: str
    remedy: str
    convert: str


def foreign(X: Any) -> Foreign | None:
    """Return why X cannot be read and what to pass instead, or None if it can be read."""
    if isinstance(X, np.ndarray):
        return None
    names = type_names(X)
    name = names[0].removeprefix("builtins.")
    known = next((_REMEDIES[one] for one in names if one in _REMEDIES), None)
    if known is not None:
        return Foreign(f"{name}, which is not an array of rows", known, "")
    if hasattr(X, "tocsr") or name.startswith("sparse."):
        convert = ".todense()" if name.startswith("sparse.") else ".toarray()"
        what = f"sparse data, {name} of shape {getattr(X, 'shape', '?')}, but dense data is required"
        return Foreign(what, f"Pass X{convert} if it fits in memory.", convert)
    if "torch.Tensor" in names:
        return _torch_tensor(X)
    if hasattr(X, "__cuda_array_interface__") and not name.startswith("jax"):  # which NumPy can copy
        convert = {"cupy": ".get()", "numba": ".copy_to_host()"}.get(name.partition(".")[0], "")
        return Foreign(
            f"{name}, which is on a GPU", f"Pass X{convert}, a copy in the host's memory, or {_STAYING}.", convert
        )
    if isinstance(X, Mapping):
        keys = ", ".join(repr(key) for key in list(X)[:3])
        return Foreign(f"{name} of several arrays ({keys})", "Pass one of them.", "")
    if isinstance(X, Iterator) or (
        hasattr(X, "__iter__") and not hasattr(X, "__len__") and not hasattr(X, "__array__")
    ):
        return Foreign(
            f"{name}, which yields its rows only once", "Pass bigpca.from_batches(X), or np.array(list(X)).", ""
        )
    if hasattr(X, "__array_namespace__") and hasattr(X, "to_device"):
        try:
            np.asarray(X)
        except RuntimeError:
            remedy = "Pass a copy in the host's memory, such as X.to_device('cpu')."
            return Foreign(f"{name} on {X.device}, which NumPy cannot read", remedy, "")
    if isinstance(X, list | tuple):
        return _foreign_items(X, name)
    if isinstance(X, Number | str) or any(hasattr(X, one) for one in ("__array__", "__array_interface__")):
        return None
    if not hasattr(X, "__len__"):
        return Foreign(f"{name}, which NumPy cannot convert to an array", "Pass a NumPy or Dask array (n, d).", "")
    if type(X).__module__ in ("builtins", "collections", "array"):  # range, deque
        return None
    return Foreign(
        f"{name}, which NumPy would read number by number",
        "Pass the array, Arrow table or file behind it, or batches of its rows: bigpca.from_batches.",
        "",
    )


def _foreign_items(X: list[Any] | tuple[Any, ...], name: str) -> Foreign | None:
    """Return why a list cannot be read: it holds what NumPy would compute, or take apart, item by item."""
    for kind, one in {type(one): one for one in X}.items():
        known = type_names(one)[0] in _REMEDIES or (hasattr(kind, "__getitem__") and not hasattr(kind, "__array__"))
        found = foreign(one) if kind.__module__ != "builtins" and known else None
        if found is not None:
            remedy = found.remedy
            if hasattr(one, "__dask_graph__") or type_names(one)[0] == "distributed.Future":
                remedy = "Pass dask.array.concatenate([dask.array.from_delayed(part, (b, d), dtype) for part in X])."
            return Foreign(f"{name} of {found.what}", remedy, "")
    lengths = sorted({len(one) for one in X if isinstance(one, list | tuple)})
    if len(lengths) > 1:
        what = f"{name} of rows of different lengths, from {lengths[0]} to {lengths[-1]}"
        return Foreign(what, "Give all rows the same columns, with NaN where values are missing.", "")
    return None


def reject_foreign(X: Any, label: str = "X", expected: str = "An array of rows, (n, d),") -> None:
    """Reject a container whose rows cannot be read.

    Raises
    ------
    TypeError
        Names the container and what to pass.
    """
    found = foreign(X)
    if found is not None:
        raise TypeError(f"{label} is {found.what}. {expected} was expected. {found.remedy}")


def table_schema(X: Any) -> list[tuple[Any, Any]] | None:
    """Return the names and types of the columns of a table (pandas, polars, pyarrow, Dask); None for anything else.

    Raises
    ------
    ValueError
        For columns of one name.
    """
    if hasattr(X, "schema") and hasattr(X.schema, "types"):  # of Arrow
        names, types = X.schema.names, X.schema.types
    elif hasattr(X, "columns") and hasattr(X, "dtypes"):
        names, types = list(X.columns), X.dtypes
    else:
        return None
    if shared := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(
            f"{names.count(shared[0])} of {len(names)} columns of the table are named {brief(repr(shared[0]))}, but "
            "columns are compared by their names, which must differ. Rename them, or pass the values alone."
        )
    return list(zip(names, types, strict=True))


def check_columns(X: Any, label: str = "X") -> None:
    """Reject a table (pandas, polars, pyarrow, Dask) whose columns are not all numbers, by its schema.

    NumPy would make numbers of dates that stand beside numbers.

    Raises
    ------
    TypeError
        Names the columns and their types.
    """
    schema = table_schema(X)
    if schema is None and str(getattr(X, "dtype", "")).startswith("Struct"):  # a Series of polars
        schema = list(X.struct.schema.items())
    wrong = []
    for j, (name, dtype) in enumerate(schema or ()):
        kind = str(dtype)
        if kind == "object" and hasattr(X, "iloc") and not is_dask_frame(X):
            others = (one for one in X.iloc[:, j] if not _is_number(one))
            if (other := next(others, None)) is None:
                continue
            kind = f"such as {other!r}"
        if not _NUMBERS.match(kind):
            wrong.append(f"{brief(repr(name))} ({brief(kind)})")
    if wrong:
        raise TypeError(
            f"columns of {label} do not hold numbers: {listed(wrong)}. Numbers were expected in every column. Leave "
            "these out, convert them (dates to days, categories by pandas.get_dummies), or pass one as the labels y."
        )


def embeddings(X: Any, label: str = "X", member: str | None = None, *, by: str = "member") -> Any:
    """Return the rows in a column of equally long lists or arrays; other containers unchanged.

    A Series of pandas or polars, an array of Arrow, or a frame of either in which one column, or the named one, holds
    lists: (n, d), or more dimensions where lists hold lists.

    Raises
    ------
    MemberError
        If the frame has no such column of lists.
    ValueError
        For several columns of lists, rows that are missing, and lists of several lengths.
    """
    if (schema := table_schema(X)) is None:
        return _rows_of_lists(X, label) if _holds_lists(X) else X
    found = [] if is_dask_frame(X) else [name for name, _ in schema if _holds_lists(X[name])]
    if member is None and not found:
        return X
    wanted = found if member is None else [name for name in found if name == member]
    if len(wanted) != 1:
        error = f"{len(found)} columns of {label} hold lists" if member is None else f"{member!r} is not one of them"
        listed = ", ".join(brief(repr(name)) for name in found) or "none"
        raise MemberError(f"{error}. Choose one column of equally long lists with {by}=: {listed}.")
    return _rows_of_lists(X[wanted[0]], f"column {brief(repr(wanted[0]))} of {label}")


def _holds_lists(column: Any) -> bool:
    """Whether a Series or an array of Arrow holds lists or arrays."""
    kind = getattr(column, "type", None)
    kind = getattr(column, "dtype", "") if not hasattr(column, "value_lengths") and kind is None else kind
    if getattr(column, "ndim", 1) != 1 or isinstance(column, np.ndarray | list | tuple):
        return False
    if str(kind) == "object" and hasattr(column, "iloc"):
        return isinstance(next((one for one in column if one is not None), None), np.ndarray | list | tuple)
    return bool(_LISTS.match(str(kind)))


def _rows_of_lists(column: Any, label: str) -> NDArray[Any]:
    if hasattr(column, "to_arrow"):  # polars
        column = column.to_arrow()
    elif hasattr(column, "iloc") and str(column.dtype) != "object":
        column = column.array.__arrow_array__()
    if hasattr(column, "type"):
        return arrow_rows(column, label)
    present = np.array([isinstance(one, np.ndarray | list | tuple) for one in column], bool)
    rows = [np.asarray(one) for one in column if isinstance(one, np.ndarray | list | tuple)]
    gaps = bool(rows) and rows[0].dtype.kind == "f"  # which can be NaN
    check_lengths(np.array([row.size for row in rows]), len(rows) if gaps else len(column), label)
    found = np.stack(rows) if rows else np.zeros((0, 0))
    if len(rows) < len(column):
        filled = np.full((len(column), *found.shape[1:]), np.nan, found.dtype)
        filled[present] = found
        return filled
    return found


def _is_number(value: object) -> bool:
    """Whether a Python object in a column is a number, or missing."""
    if isinstance(value, np.timedelta64):  # an integer, says NumPy
        return False
    return value is None or isinstance(value, Real | Decimal | np.bool_) or type(value).__name__ == "NAType"


def table_rows(X: Any, label: str) -> Any:
    """Return a table as an array of numbers, after :func:`check_columns`; anything else as it is."""
    check_columns(X, label)
    if not hasattr(X, "columns") or isinstance(X, np.ndarray) or (rows := np.asarray(X)).dtype != object:
        return X
    return X.to_numpy(dtype=np.float64, na_value=np.nan) if hasattr(X, "iloc") else rows.astype(np.float64)


def reject_sparse_forms(X: Any, label: str = "X") -> None:
    """Reject sparse arrays that are not rows (n, d).

    Raises
    ------
    TypeError
        Names the form and the shape.
    """
    names = type_names(X)
    if names[0].startswith(("scipy.", "sparse.")) and hasattr(X, "tocsr"):
        raise TypeError(
            f"{label} is sparse data, {names[0]} of shape {getattr(X, 'shape', '?')}, but sparse rows (n, d) were "
            "expected. Reshape it."
        )


def reject_chunks(chunk: Any, label: str) -> None:
    """Reject chunks of a Dask array that are not dense arrays in the host's memory.

    Raises
    ------
    TypeError
        Names their type and the call that converts them.
    """
    found = foreign(chunk)
    if found is None or RowsThere.of(chunk) is not None:
        return
    if type_names(chunk)[0].startswith(("scipy.", "sparse.")):
        meta = "meta=scipy.sparse.csr_matrix((0, 0), dtype=X.dtype)"
        raise TypeError(
            f"the chunks of {label} are sparse data, {type_names(chunk)[0]} of shape {chunk.shape}, which the "
            f"Dask array does not declare, or in a form that cannot be read row by row. CSR was expected. Pass "
            f"X.map_blocks(scipy.sparse.csr_matrix, dtype=X.dtype, {meta})."
        )
    convert = f"lambda block: block{found.convert}, dtype=X.dtype, meta=np.empty((0, 0), X.dtype)"
    remedy = f"Pass X.map_blocks({convert})." if found.convert else found.remedy
    raise TypeError(f"the chunks of {label} are {found.what}. Dense NumPy chunks were expected. {remedy}")


def dense_rows(chunk: Any, label: str, dtype: np.dtype[Any], *, there: bool = False) -> Any:
    """Return a computed chunk of a Dask array as a plain NumPy array; masked entries become NaN.

    A chunk on a device stays there if ``there``.

    Parameters
    ----------
    dtype : numpy.dtype
        What the Dask array promised. A chunk may have a larger one of the same kind, which is kept.

    Raises
    ------
    TypeError
        For chunks that are not dense arrays of numbers, in the host's memory or on a device, or not of the kind that
        was promised: what a Dask array says of its chunks need not be true.
    """
    rows: Any = chunk
    if not isinstance(chunk, np.ndarray):
        reject_chunks(chunk, label)
        on_device = RowsThere.of(chunk)
        rows = on_device if there and on_device is not None else np.asarray(chunk if on_device is None else on_device)
    check_promised(rows.dtype, dtype, label)
    if not isinstance(rows, RowsThere):
        rows = unmasked(rows)
    return rows.astype(dtype, copy=False) if np.can_cast(rows.dtype, dtype) else rows


def check_chunk_shape(shape: tuple[int, ...], declared: tuple[int, ...], label: str) -> None:
    """Reject a chunk that does not have its declared shape: NumPy would broadcast a single column.

    Parameters
    ----------
    declared : (rows, columns), or (columns,) if the number of rows is unknown
    """
    if len(shape) != 2 or shape[2 - len(declared) :] != declared:
        raise ValueError(
            f"a chunk of {label} has shape {shape}, but the Dask array declares {declared}. Correct the chunks "
            "(compute_chunk_sizes) before fitting."
        )


def is_labelled(X: Any) -> bool:
    """Whether this is an xarray.DataArray."""
    kind: Any = type(X)
    return _has(kind, "dims", "coords", "data", "to_dataset")


def is_dask_frame(X: Any) -> bool:
    """Whether this is a Dask DataFrame."""
    kind: Any = type(X)
    return _has(kind, "map_partitions", "columns", "dtypes") and X.ndim == 2


def is_hdf5_dataset(X: Any) -> bool:
    """Whether this is an h5py.Dataset."""
    return type(X).__name__ == "Dataset" and type(X).__module__.startswith("h5py.")


def is_stored_sparse(X: Any) -> bool:
    """Whether this is a sparse matrix in a file, as AnnData opens it (anndata.abc.CSRDataset and CSCDataset)."""
    return type_names(X)[0].startswith("anndata.") and hasattr(X, "to_memory") and hasattr(X, "format")


def is_zarr_array(X: Any) -> TypeIs[zarr.Array[Any]]:
    """Whether this is a zarr.Array, which can exist only in a process that has imported Zarr."""
    library = sys.modules.get("zarr")
    return library is not None and isinstance(X, library.Array)


def is_zarr_group(X: Any) -> TypeIs[zarr.Group]:
    """Whether this is a zarr.Group."""
    library = sys.modules.get("zarr")
    return library is not None and isinstance(X, library.Group)


def is_zarr_store(X: Any) -> bool:
    """Whether this is a store of Zarr, such as a ZipStore or an ObjectStore."""
    return "zarr.Store" in type_names(X)


def is_place(X: Any) -> bool:
    """Whether this is a place of objects, or an obstore store."""
    return type_names(X)[0].startswith(("bigpca.ObjectStore", "obstore."))


def is_zarr(X: Any) -> bool:
    """Whether this is an array, a group or a store of Zarr, or a place of objects."""
    return any(is_one(X) for is_one in (is_zarr_array, is_zarr_group, is_zarr_store, is_place))


def is_path_list(X: Any, kinds: tuple[type, ...] = (str, os.PathLike)) -> bool:
    """Whether this is a list of paths, which are shards."""
    return isinstance(X, list | tuple) and len(X) > 0 and all(isinstance(one, kinds) for one in X)


def type_names(X: Any) -> tuple[str, ...]:
    """List "library.Type" of all classes of X."""
    kind: Any = type(X)
    return _class_names(kind)


@lru_cache(maxsize=256)
def _class_names(kind: Any) -> tuple[str, ...]:
    return tuple(f"{one.__module__.partition('.')[0]}.{one.__name__}" for one in kind.__mro__)


@lru_cache(maxsize=256)
def _has(kind: Any, *names: str) -> bool:
    """Whether a class has all attributes of these names."""
    return all(hasattr(kind, name) for name in names)


def _torch_tensor(X: Any) -> Foreign | None:
    """Return why NumPy cannot read a tensor, or None if it can."""
    dtype, device, layout = str(X.dtype), str(X.device), str(getattr(X, "layout", "torch.strided"))
    steps = [
        (".detach()", bool(getattr(X, "requires_grad", False))),
        (".resolve_conj()", hasattr(X, "is_conj") and X.is_conj()),
        (".resolve_neg()", hasattr(X, "is_neg") and X.is_neg()),  # the imaginary part of a conjugate
        (".to_dense()", layout != "torch.strided"),
        (".cpu()", device != "cpu"),
        (".float()", "bfloat16" in dtype or "float8" in dtype),
    ]
    convert = "".join(step for step, needed in steps if needed)
    if not convert:
        return None
    what = f"torch.Tensor of {dtype} on {device}, which NumPy cannot read as it is"
    staying = f", or {_STAYING}" if device != "cpu" else ""
    return Foreign(what, f"Pass X{convert}.numpy(){staying}.", f"{convert}.numpy()")


def is_cells(X: Any) -> bool:
    """Whether this is an anndata.AnnData."""
    return "anndata.AnnData" in type_names(X)


def cell_matrix(adata: Any, member: str | None = None) -> tuple[Any, Names | None]:
    """Return a matrix of AnnData as it is held (in memory, in a file, on Dask), and the names of its columns.

    Parameters
    ----------
    member : str, optional
        "X", "layers/NAME" or "obsm/NAME", as in AnnData's files; None for X.

    Raises
    ------
    MemberError
        If it has no matrix of that name; lists those that it has.
    ValueError
        For a view of AnnData that is backed by a file: anndata would read the selection into memory.
    """
    if adata.isbacked and adata.is_view:
        raise ValueError(
            f"the AnnData of shape {adata.shape} is a selection from the file {adata.filename}, which anndata would "
            f"read into memory, and which cannot store results. Choose genes by mask_var= (or columns=), or write the "
            'selection: adata.copy("selection.h5ad"), or adata.to_memory() if it fits.'
        )
    place = "X" if member is None else member.strip("/")
    folder, _, name = place.partition("/")
    matrix = adata.X if place == "X" else {"layers": adata.layers, "obsm": adata.obsm}.get(folder, {}).get(name)
    if matrix is None:
        known = ["X"] * (adata.X is not None)
        known += [f"{kind}/{one}" for kind in ("layers", "obsm") for one in getattr(adata, kind)]
        raise MemberError(
            f"the AnnData has no matrix {brief(repr(place))}; it has {brief(', '.join(known) or 'none')}."
            f"{closest(place, known)}"
        )
    names = getattr(matrix, "columns", None) if folder == "obsm" else adata.var_names
    return matrix, None if names is None else np.array([str(one) for one in names], dtype=object)
