"""The containers that users of scikit-learn, dask-ml, xeofs and scanpy hold, each made from one float64 matrix."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray

from bigpca.data.sources import open as open_array

CHUNKS = (20, 6)


def lazy(X: NDArray[Any]) -> Any:
    return da.from_array(X, chunks=(20, *X.shape[1:]))


def named(library: str, name: str, **attributes: Any) -> Any:
    """An object whose type has this name: what the doors go by for libraries that are not here."""
    return type(name, (), {"__module__": library, **attributes})()


def _hdf5(folder: Path, X: NDArray[Any]) -> Any:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.h5", "w") as file:
        file["rows"] = X
    return h5py.File(folder / "x.h5", "r")


def _zarr(folder: Path, X: NDArray[Any]) -> Any:
    return zarr.create_array(folder / "x.zarr", data=X, chunks=(10, *X.shape[1:]), overwrite=True)


def _shards(folder: Path, X: NDArray[Any], save: Callable[[Path, NDArray[Any]], object], end: str) -> list[Path]:
    paths = [folder / f"{name}.{end}" for name in ("last", "first", "middle")]
    for path, rows in zip(paths, np.array_split(X, 3), strict=True):
        save(path, rows)
    return paths


def _frame(X: NDArray[Any]) -> Any:
    return pytest.importorskip("pandas").DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])])


def _dask_frame(X: NDArray[Any], **options: Any) -> Any:
    pytest.importorskip("pyarrow")
    frame = pytest.importorskip("dask.dataframe").from_pandas(_frame(X), npartitions=3)
    return frame.astype(options["dtype"]) if options else frame


def _hidden(frame: Any) -> Any:
    """A frame whose first partitions hold dates where it declares numbers."""
    return frame.map_partitions(lambda part: part.assign(f0=part.f0.astype("M8[ns]")), meta=frame._meta)


def _touched(self: Any, place: Any) -> Any:
    raise AssertionError("NumPy took it apart")


def _polars(X: NDArray[Any], when: Any) -> Any:
    return pytest.importorskip("polars").DataFrame({"a": X[:, 0], "when": when, "b": X[:, 1]})


def _arrow(X: NDArray[Any], when: Any) -> Any:
    return pytest.importorskip("pyarrow").table({"a": X[:, 0], "when": when, "b": X[:, 1]})


def _arrow_frame(X: NDArray[Any], when: Any) -> Any:
    return _arrow(X, when).to_pandas(types_mapper=pytest.importorskip("pandas").ArrowDtype)


def _listed(folder: Path, X: NDArray[Any]) -> Any:
    pa = pytest.importorskip("pyarrow")
    rows = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
    return pa.table({"e": pa.chunked_array([rows[:9], rows[9:]]), "id": range(len(X))})


def _arrow_type(kind: Any) -> Any:
    return pytest.importorskip("pandas").ArrowDtype(kind)


def _plain_frame(X: NDArray[Any], when: Any) -> Any:
    return pytest.importorskip("pandas").DataFrame({"a": X[:, 0], "when": when, "b": X[:, 1]})


TABLES = {"polars": _polars, "pyarrow": _arrow, "Arrow-backed pandas": _arrow_frame, "pandas": _plain_frame}


def _labelled(X: Any, **options: Any) -> Any:
    xr = pytest.importorskip("xarray")
    return xr.DataArray(X, dims=("time", "lat", "lon")[: X.ndim], **options)


def _netcdf(folder: Path, X: NDArray[Any]) -> Any:
    xr = pytest.importorskip("xarray")
    xr.Dataset({"t": (("time", "x"), X)}).to_zarr(folder / "ds.zarr", consolidated=False)
    return xr.open_zarr(folder / "ds.zarr", consolidated=False, chunks=None)["t"]


class Door(NamedTuple):
    """A container: how it is made, and None where the answer is NumPy's, or the words of the rejection."""

    make: Callable[[Path, NDArray[Any]], Any]
    words: str | None = None


RIGHT: dict[str, Door] = {
    "list of lists": Door(lambda p, X: X.tolist()),
    "tuple of rows": Door(lambda p, X: tuple(X)),
    "NumPy, Fortran order": Door(lambda p, X: np.asfortranarray(X)),
    "NumPy, objects that are numbers": Door(lambda p, X: X.astype(object)),
    "NumPy, four dimensions": Door(lambda p, X: X.reshape(-1, 3, 1, 2)),
    "nested lists, three dimensions": Door(lambda p, X: X.reshape(-1, 3, 2).tolist()),
    "NumPy, masked array with nothing masked": Door(lambda p, X: np.ma.masked_array(X)),
    "np.memmap": Door(lambda p, X: _memmap(p, X)),
    "np.memmap, assigned to and not written": Door(lambda p, X: _copied_on_write(p, X)),
    "pandas.DataFrame": Door(lambda p, X: _frame(X)),
    "NumPy, the other byte order": Door(lambda p, X: X.astype(">f8")),
    "pandas.DataFrame, the other byte order in one column": Door(
        lambda p, X: _frame(X).assign(f1=X[:, 1].astype(">f8"))
    ),
    "pandas.DataFrame of nullable numbers and objects": Door(
        lambda p, X: _frame(X).astype({"f0": "Float64", "f1": object})
    ),
    "polars.DataFrame": Door(
        lambda p, X: pytest.importorskip("polars").DataFrame(dict(zip("abcdef", X.T, strict=True)))
    ),
    "pyarrow.Table": Door(lambda p, X: pytest.importorskip("pyarrow").table(dict(zip("abcdef", X.T, strict=True)))),
    "pandas.Series of arrays": Door(lambda p, X: pytest.importorskip("pandas").Series(list(X), index=range(7, 67))),
    "pandas.Series of lists of Arrow": Door(lambda p, X: _listed(p, X).to_pandas(types_mapper=_arrow_type)["e"]),
    "pandas.DataFrame with one column of lists": Door(lambda p, X: _listed(p, X).to_pandas()),
    "polars.Series of Array": Door(lambda p, X: pytest.importorskip("polars").Series(X)),
    "polars.DataFrame with one column of List": Door(
        lambda p, X: pytest.importorskip("polars").DataFrame({"e": X.tolist(), "id": range(len(X))})
    ),
    "pyarrow.FixedSizeListArray": Door(lambda p, X: _listed(p, X)["e"].combine_chunks()),
    "pyarrow.Table with one column of lists": Door(lambda p, X: _listed(p, X)),
    "pyarrow.ListArray of lists": Door(lambda p, X: pytest.importorskip("pyarrow").array(X.reshape(-1, 3, 2).tolist())),
    "path of netCDF": Door(lambda p, X: _labelled(X).to_netcdf(p / "x.nc", engine="netcdf4") or p / "x.nc"),
    "SciPy CSR matrix": Door(lambda p, X: sp.csr_matrix(X)),
    "SciPy CSR array, reversed and doubled indices": Door(lambda p, X: _untidy(X)),
    "SciPy COO array": Door(lambda p, X: sp.coo_array(X)),
    "SciPy CSC array": Door(lambda p, X: sp.csc_array(X)),
    "SciPy DIA matrix": Door(lambda p, X: sp.dia_matrix(X)),
    "sparse.COO": Door(lambda p, X: pytest.importorskip("sparse").COO(X)),
    "Dask array of CSR": Door(lambda p, X: chunks_as(sp.csr_matrix, X, dtype="f8", meta=sp.csr_matrix((0, 0)))),
    "Dask array of CSC": Door(lambda p, X: chunks_as(sp.csc_matrix, X, dtype="f8", meta=sp.csc_matrix((0, 0)))),
    "Dask array that declares CSR, of CSC": Door(
        lambda p, X: chunks_as(sp.csc_matrix, X, dtype="f8", meta=sp.csr_matrix((0, 0)))
    ),
    "Dask array of a CSR array": Door(lambda p, X: da.from_array(sp.csr_array(X), chunks=CHUNKS)),
    "Dask array of sparse.COO": Door(lambda p, X: chunks_as(pytest.importorskip("sparse").COO, X)),
    "Dask array": Door(lambda p, X: lazy(X)),
    "Dask array, four dimensions": Door(lambda p, X: lazy(X.reshape(-1, 3, 1, 2))),
    "Dask array, masked chunks with nothing masked": Door(lambda p, X: da.ma.masked_greater(lazy(X), 1e9)),
    "Dask array, float32 chunks under a float64 promise": Door(
        lambda p, X: lazy(X).map_blocks(
            lambda b: b.astype("f4").astype("f8").astype("f4"), dtype="f8", meta=np.empty((0, 0))
        )
    ),
    "Dask array of an h5py.Dataset": Door(lambda p, X: da.from_array(_hdf5(p, X)["rows"], chunks=CHUNKS)),
    "Dask array computed of an h5py.Dataset": Door(
        lambda p, X: da.from_array(_hdf5(p, 2 * X)["rows"], chunks=CHUNKS) / 2
    ),
    "Dask array of a Zarr array": Door(lambda p, X: da.from_zarr(_zarr(p, X))),
    "Dask DataFrame": Door(lambda p, X: _dask_frame(X)),
    "Dask DataFrame of nullable floats": Door(lambda p, X: _dask_frame(X, dtype="Float64")),
    "zarr.Array": Door(lambda p, X: _zarr(p, X)),
    "zarr.Group": Door(lambda p, X: _group(p, X)),
    "zarr.storage.LocalStore": Door(lambda p, X: _zarr(p, X).store),
    "h5py.Dataset": Door(lambda p, X: _hdf5(p, X)["rows"]),
    "h5py.Dataset, three dimensions": Door(lambda p, X: _hdf5(p, X.reshape(-1, 3, 2))["rows"]),
    "path": Door(lambda p, X: str(_npy(p / "x.npy", X))),
    "list of paths": Door(lambda p, X: _shards(p, X, np.save, "npy")),
    "list of str": Door(lambda p, X: [str(path) for path in _shards(p, X, np.save, "npy")]),
    "list of paths of Zarr arrays": Door(
        lambda p, X: _shards(p, X, lambda path, rows: zarr.create_array(path, data=rows), "zarr")
    ),
    "xarray.DataArray": Door(lambda p, X: _labelled(X)),
    "xarray.DataArray of Dask, three dimensions": Door(lambda p, X: _labelled(lazy(X.reshape(-1, 3, 2)))),
    "xarray.DataArray that was not read": Door(_netcdf),
}


def _untidy(X: NDArray[Any]) -> Any:
    """CSR with int64 indices in descending order, every value in two halves, and room after the last of them."""
    n, d = X.shape
    columns = np.repeat(np.arange(d - 1, -1, -1), 2)
    rest = np.zeros(5)
    untidy = sp.csr_array((n, d))
    untidy.data = np.concatenate([(X[:, columns] / 2).ravel(), rest])
    untidy.indices = np.concatenate([np.tile(columns, n), rest.astype("i8")])
    untidy.indptr = np.arange(0, 2 * n * d + 1, 2 * d)
    return untidy


def _npy(path: Path, X: NDArray[Any]) -> Path:
    np.save(path, X)
    return path


def _memmap(folder: Path, X: NDArray[Any]) -> Any:
    mapped = np.memmap(folder / "x.raw", X.dtype, "w+", shape=X.shape)
    mapped[...] = X
    return mapped


def _copied_on_write(folder: Path, X: NDArray[Any]) -> Any:
    mapped = np.load(_npy(folder / "zeros.npy", np.zeros_like(X)), mmap_mode="c")
    mapped[...] = X
    return mapped


def _group(folder: Path, X: NDArray[Any]) -> Any:
    _zarr(folder, X)
    group = zarr.open_group(folder / "group.zarr", mode="w")
    group.create_array("rows", data=X)
    return group


def chunks_as(convert: Callable[[NDArray[Any]], Any], X: NDArray[Any], **promise: Any) -> Any:
    return lazy(X).map_blocks(convert, **promise)


def _damaged(X: NDArray[Any], vector: str, place: int, value: int) -> Any:
    """CSR with one wrong number."""
    rows = sp.csr_matrix(X)
    getattr(rows, vector)[place] = value
    return rows


def _shortened(X: NDArray[Any]) -> Any:
    rows = sp.csr_matrix(X)
    rows.indptr = rows.indptr[:-1]
    return rows


LIES: dict[str, Any] = {"dtype": "f8", "meta": np.empty((0, 0))}

REJECTED: dict[str, Door] = {
    "None": Door(lambda p, X: None, "X is NoneType.* Pass rows of features"),
    "lists of several lengths": Door(
        lambda p, X: pytest.importorskip("pandas").Series([row[: 6 - (i == 7)] for i, row in enumerate(X)]),
        "the list of row 7 has 5 values; 6 were expected.* Drop or repair",
    ),
    "polars.Series of lists of several lengths": Door(
        lambda p, X: pytest.importorskip("polars").Series([[1.0, 2.0], [3.0]] * 30), "the list of row 1 has 1 values; 2"
    ),
    "pyarrow lists of several lengths": Door(
        lambda p, X: pytest.importorskip("pyarrow").array([[[1.0, 2.0]], [[3.0]]] * 30), "list of row 1 has 1 values; 2"
    ),
    "lists that are missing": Door(
        lambda p, X: pytest.importorskip("polars").Series([[1, 2], None] * 30), "has 30 nulls in 60 rows.* Drop or"
    ),
    "several columns of lists": Door(
        lambda p, X: _listed(p, X).to_pandas().assign(other=list(X)), "2 columns of .* hold lists.*'e', 'other'"
    ),
    "number": Door(lambda p, X: 3.0, "Expected 2D array, got scalar array"),
    "one dimension": Door(lambda p, X: X[0], "Expected 2D array, got 1D array"),
    "Dask array, one dimension": Door(lambda p, X: lazy(X)[:, 0], r"has shape \(60,\); rows of features"),
    "generator": Door(lambda p, X: (row for row in X), "X is generator, which yields its rows only once.*from_batches"),
    "dict of arrays": Door(lambda p, X: {"a": X, "b": X}, "X is dict of several arrays .'a', 'b'.* Pass one of them"),
    "bytes": Door(lambda p, X: b"x.npy", "X is bytes.* Pass a path as a str"),
    "numbers in strings": Door(lambda p, X: X.astype("U"), "arrays of bytes/strings"),
    "strings": Door(lambda p, X: np.array([["a"], ["b"]], object), "could not convert string to float"),
    "complex numbers": Door(lambda p, X: X * 1j, "Complex data not supported.* real and imaginary parts"),
    "dates": Door(lambda p, X: X.astype("M8[s]"), r"dtype datetime64\[s\] cannot be used.* seconds or days"),
    "structured": Door(lambda p, X: np.zeros(5, "f4,f4"), "cannot be used.* Choose one field"),
    "Dask array of bfloat16": Door(
        lambda p, X: lazy(X).astype(pytest.importorskip("ml_dtypes").bfloat16), r"bfloat16 cannot be used.* X\.astype"
    ),
    "SciPy CSR whose indptr falls": Door(lambda p, X: _damaged(X, "indptr", 3, 99), "falls from 99 to 24 at row 3"),
    "SciPy CSR whose indptr ends late": Door(
        lambda p, X: _damaged(X, "indptr", -1, 900), "its indptr ends at 900, but there are 360 values"
    ),
    "SciPy CSR whose indptr is short": Door(lambda p, X: _shortened(X), "indptr has 60 numbers, but 60 rows have 61"),
    "SciPy CSR with a column too many": Door(
        lambda p, X: _damaged(X, "indices", 20, 6), "row 3 has a value in column 6, but there are 6 columns"
    ),
    "Dask array of CSR in column chunks": Door(
        lambda p, X: da.from_array(sp.csr_matrix(X), chunks=(20, 3)), r"2 column blocks.* X\.rechunk\(\(20, -1\)\)"
    ),
    "Dask array of CSC in column chunks": Door(
        lambda p, X: da.from_array(sp.csc_matrix(X), chunks=(60, 3)), r"2 column blocks.* adata\.X\.tocsr\(\)"
    ),
    "Dask array that hides CSR": Door(
        lambda p, X: chunks_as(sp.csr_matrix, X, **LIES),
        r"scipy.csr_matrix of shape \(20, 6\), which the Dask array does not declare",
    ),
    "Dask array that hides damaged CSR": Door(
        lambda p, X: chunks_as(lambda b: _damaged(b, "indices", 20, 6), X, dtype="f8", meta=sp.csr_matrix((0, 0))),
        "row 3 has a value in column 6",
    ),
    "Dask array that hides complex numbers": Door(
        lambda p, X: chunks_as(lambda b: b * 1j, X, **LIES), "dtype complex128 cannot be used"
    ),
    "Dask array that hides objects": Door(
        lambda p, X: chunks_as(lambda b: b.astype(object), X, **LIES), "dtype object cannot be used"
    ),
    "Dask array with too few columns": Door(
        lambda p, X: chunks_as(lambda b: b[:, :1], X, **LIES), r"has shape \(20, 1\), but the Dask array declares"
    ),
    "Dask array with too few rows": Door(
        lambda p, X: chunks_as(lambda b: b[:-1], X, **LIES), r"has shape \(19, 6\), but the Dask array declares"
    ),
    "Dask array with too many rows": Door(
        lambda p, X: chunks_as(lambda b: np.vstack([b, b[:1]]), X, **LIES), r"has shape \(21, 6\), but the Dask array"
    ),
    "chosen columns of a Dask array with too few": Door(
        lambda p, X: open_array(chunks_as(lambda b: b[:, :4], X, **LIES), columns=[*range(6)]),
        r"has shape \(20, 4\), but the Dask array declares",
    ),
    "Dask array of unknown columns": Door(
        lambda p, X: lazy(X)[:, lazy(X)[0] > 0], "number of columns is unknown.* Call X.compute_chunk_sizes"
    ),
    "Dask array of a wide h5py.Dataset": Door(
        lambda p, X: da.from_array(_hdf5(p, X.reshape(-1, 3, 2))["rows"], chunks=(20, 3, 2)),
        "h5py.Dataset /rows of shape .* Pass the dataset",
    ),
    "Dask DataFrame with strings": Door(
        lambda p, X: _dask_frame(X).assign(s="x"), "columns of X do not hold numbers: 's' .(string|object)"
    ),
    "Dask DataFrame that hides dates": Door(
        lambda p, X: _hidden(_dask_frame(X)), r"columns of X do not hold numbers: 'f0' .datetime64\[ns\]"
    ),
    **{
        f"{library} frame with {kind}": Door(
            lambda p, X, make=make, values=values: make(X, values),
            rf"columns of [\w ()]+ do not hold numbers: 'when' .{words}.*Leave these out, convert them",
        )
        for kind, values, *types in (
            ("dates", [datetime.date(2020, 1, 1)] * 60, "Date", "date32", "date32", r"such as datetime\.date"),
            ("times", np.arange(60).astype("M8[us]"), "Datetime", "timestamp", "timestamp", "datetime64"),
            ("durations", np.arange(60).astype("m8[us]"), "Duration", "duration", "duration", "timedelta64"),
            ("clocks", [datetime.time(3)] * 60, "Time", "time64", "time64", r"such as datetime\.time"),
            ("text", ["x"] * 60, "String", "string", "string", "such as 'x'"),
        )
        for (library, make), words in zip(TABLES.items(), types, strict=True)
    },
    "polars Series of structs with dates": Door(
        lambda p, X: _polars(X, [datetime.date(2020, 1, 1)] * 60).to_struct("rows"),
        r"columns of [\w ()]+ do not hold numbers: 'when' .Date",
    ),
    "pandas frame with categories of numbers": Door(
        lambda p, X: _frame(X).astype({"f2": "category"}), "columns of [\\w ()]+ do not hold numbers: 'f2' .category"
    ),
    "dates beside numbers in a list": Door(lambda p, X: [[1.0, np.datetime64("2020")]] * 9, "dtype datetime64 cannot"),
    "AnnCollection": Door(
        lambda p, X: named("anndata.experimental", "AnnCollection", __len__=len, __getitem__=_touched),
        r"X is anndata.AnnCollection.* Pass the list of its files",
    ),
    "list of dask.delayed": Door(
        lambda p, X: [pytest.importorskip("dask").delayed(X)] * 2, "X is list of dask.Delayed.*from_delayed"
    ),
    "list of futures": Door(
        lambda p, X: [named("distributed.client", "Future", result=_touched)] * 2,
        r"X is list of distributed.Future.*from_delayed\(part",
    ),
    "duckdb relation": Door(
        lambda p, X: named("_duckdb", "DuckDBPyRelation", __len__=len, __getitem__=_touched, columns=[], dtypes=[]),
        "X is _duckdb.DuckDBPyRelation, which NumPy would read number by number.*Arrow table",
    ),
    "list of unknown sequences": Door(
        lambda p, X: [named("elsewhere", "Column", __len__=len, __getitem__=_touched)] * 3,
        "X is list of elsewhere.Column, which NumPy would read number by number",
    ),
    "Dask DataFrame, one column": Door(lambda p, X: _dask_frame(X)["f0"], r"X is dask.Series.* X\.to_frame\(\)"),
    "dask.delayed": Door(lambda p, X: pytest.importorskip("dask").delayed(X), "X is dask.Delayed.*from_delayed"),
    "h5py.File": Door(_hdf5, r"X is h5py.File.* file\[\"features\"\]"),
    "h5py.Group": Door(lambda p, X: _hdf5(p, X)["/"], "X is h5py.Group.* Pass one of its datasets"),
    "closed h5py.Dataset": Door(lambda p, X: _closed(p, X), "h5py.Dataset is closed.* Pass the path"),
    "h5py.Dataset in memory": Door(
        lambda p, X: _in_memory(X), r"is in 'none.h5', which is not a file on disk.* dataset\[\.\.\.\]"
    ),
    "NpzFile": Door(lambda p, X: _npz(p, X), "NpzFile of several arrays .'a'.* Pass one of them"),
    "xarray.Dataset": Door(lambda p, X: _labelled(X).to_dataset(name="a"), r"X is xarray.Dataset.* ds\[\"features\"\]"),
    "xarray.Variable": Door(lambda p, X: _labelled(X).variable, "X is xarray.Variable.* Pass the DataArray"),
    "xarray.DataArray, encoded": Door(
        lambda p, X: _labelled(X, attrs={"scale_factor": 0.1, "missing_value": -9}),
        "scale_factor = 0.1, missing_value = -9.* mask_and_scale",
    ),
    "AnnData": Door(
        lambda p, X: pytest.importorskip("anndata").AnnData(X), r"X is anndata.AnnData.* bigpca\.open\(adata\)"
    ),
    "list of paths of other widths": Door(
        lambda p, X: [_npy(p / "a.npy", X), _npy(p / "b.npy", X[:, :3])],
        r"shard .*b.npy has rows of shape \(3,\), but \(6,\)",
    ),
    "list of paths of other formats": Door(
        lambda p, X: [_npy(p / "a.npy", X), p / "x.zarr", _zarr(p, X[:, :3])][:2],
        r"shard .*x.zarr has rows of shape \(3,\)",
    ),
    "polars.LazyFrame": Door(
        lambda p, X: named("polars.lazyframe.frame", "LazyFrame"), r"X is polars.LazyFrame.* X\.collect\(\)"
    ),
    "pyspark.DataFrame": Door(
        lambda p, X: named("pyspark.sql.dataframe", "DataFrame"), "X is pyspark.DataFrame.* Write Parquet"
    ),
    "pyarrow dataset": Door(
        lambda p, X: named("pyarrow._dataset", "Dataset"), r"X is pyarrow.Dataset.* X\.to_table\(\).*from_batches\(X\)"
    ),
    "pyarrow scanner": Door(lambda p, X: named("pyarrow._dataset", "Scanner"), r"pyarrow.Scanner.*from_batches\(X\)"),
    "DuckDB relation": Door(
        lambda p, X: named("duckdb._relation", "DuckDBPyRelation"), r"from_batches\(X\.to_arrow_reader\(8192\)\)"
    ),
    "datasets.IterableDataset": Door(
        lambda p, X: named("datasets.iterable_dataset", "IterableDataset"), r"\.iter\(4096\), column='features'\)"
    ),
    "netCDF4.Variable": Door(lambda p, X: named("netCDF4", "Variable"), r"X is netCDF4.Variable.* xarray.open_dataset"),
    "distributed.Future": Door(
        lambda p, X: named("distributed.client", "Future"), r"X is distributed.Future.* X\.result\(\)"
    ),
    "cupy.ndarray": Door(
        lambda p, X: named("cupy", "ndarray", __cuda_array_interface__={}),
        r"X is cupy.ndarray, which is on a GPU.* X\.get\(\)",
    ),
    "cudf.DataFrame": Door(
        lambda p, X: named("cudf.core.dataframe", "DataFrame"), r"X is cudf.DataFrame.* X\.to_pandas\(\)"
    ),
    "torch.Tensor on a GPU": Door(
        lambda p, X: named("torch", "Tensor", dtype="torch.bfloat16", device="cuda:0", requires_grad=True),
        r"X is torch.Tensor of torch.bfloat16 on cuda:0.* X\.detach\(\)\.cpu\(\)\.float\(\)\.numpy\(\)",
    ),
    "jitted device array": Door(
        lambda p, X: named("numba.cuda", "DeviceNDArray", __cuda_array_interface__={}),
        r"is on a GPU.* X\.copy_to_host\(\)",
    ),
    "datasets.Column": Door(
        lambda p, X: named("datasets.arrow_dataset", "Column"), r"X is datasets.Column.* dataset\.to_parquet\("
    ),
    "datasets.Dataset": Door(
        lambda p, X: named("datasets.arrow_dataset", "Dataset"), r"with_format\('numpy'\)\['features'\], .*to_parquet"
    ),
    "pandas.MultiIndex": Door(
        lambda p, X: pytest.importorskip("pandas").MultiIndex.from_arrays(X.T.tolist()),
        "X is pandas.MultiIndex.* or all levels as columns, X.to_f",
    ),
    "set": Door(lambda p, X: {1.0, 2.0}, "X is set.* Pass a list, which has an order"),
    "unknown object": Door(
        lambda p, X: object(), "X is object, which NumPy cannot convert to an array.* Pass a NumPy or Dask array"
    ),
    "torch DataLoader": Door(
        lambda p, X: named("torch.utils.data.dataloader", "DataLoader"),
        r"X is torch.DataLoader.* Pass bigpca\.from_batches\(X\)",
    ),
}


def _closed(folder: Path, X: NDArray[Any]) -> Any:
    file = _hdf5(folder, X)
    dataset = file["rows"]
    file.close()
    return dataset


def _in_memory(X: NDArray[Any]) -> Any:
    file = pytest.importorskip("h5py").File("none.h5", "w", driver="core", backing_store=False)
    file["rows"] = X
    return file["rows"]


def _npz(folder: Path, X: NDArray[Any]) -> Any:
    np.savez(folder / "x.npz", a=X)
    return np.load(folder / "x.npz")


DENSE_ONLY: dict[str, Door] = {  # right as X, wrong as labels
    "SciPy CSR matrix": RIGHT["SciPy CSR matrix"]._replace(
        words=r"sparse data, scipy.csr_matrix of shape \(60, 6\), but dense.* X\.toarray"
    ),
    "sparse.COO": RIGHT["sparse.COO"]._replace(words=r"sparse.COO of shape .* X\.todense\(\)"),
}
