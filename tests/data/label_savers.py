"""Labels of every kind, and ways to hold or store one column of them."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr
import zarr

N = 23
RNG = np.random.default_rng(5)
INTEGERS = RNG.integers(-3, 4, N)
BOOLEANS = INTEGERS > 0
WORDS = np.array(["ape", "bee", "", "zoé", "cat"])[RNG.integers(0, 5, N)]
WORDS[:2] = "ape", "bee"
NAMES = np.where(WORDS == "", "dog", WORDS)  # without the empty string, which is a gap in CSV
REALS = RNG.standard_normal(N)
VECTORS = RNG.standard_normal((N, 3))


def save_npy(folder: Path, y: np.ndarray) -> Any:
    np.save(folder / "y.npy", y)
    return folder / "y.npy"


def save_zarr(folder: Path, y: np.ndarray, **options: Any) -> Any:
    dtype = str if y.dtype.kind == "U" else y.dtype
    options = {"config": {"write_empty_chunks": True}, "chunks": (5, *y.shape[1:]), **options}
    z = zarr.create_array(folder / "y.zarr", shape=y.shape, dtype=dtype, **options)
    z[...] = y
    return folder / "y.zarr"


def save_zarr_v2(folder: Path, y: np.ndarray) -> Any:
    return save_zarr(folder, y, zarr_format=2)


def open_zarr(folder: Path, y: np.ndarray) -> Any:
    return zarr.open_array(save_zarr(folder, y), mode="r")


def save_zarr_group(folder: Path, y: np.ndarray) -> Any:
    group = zarr.create_group(folder / "g.zarr")
    group.create_array("features", shape=(4, 2), dtype="f4")
    labels = group.create_array("here/y", shape=y.shape, dtype=str if y.dtype.kind == "U" else y.dtype, fill_value=None)
    labels[...] = y
    return f"{folder}/g.zarr::here/y"


def save_csv(folder: Path, y: np.ndarray) -> Any:
    pd.DataFrame({"id": range(len(y)), "a,b": y}).to_csv(folder / "y.csv", index=False)
    return f"{folder}/y.csv::a,b"


def save_csv_alone(folder: Path, y: np.ndarray) -> Any:
    pd.DataFrame({"y": y}).to_csv(folder / "y.csv", index=False, encoding="utf-8-sig", lineterminator="\r\n")
    return folder / "y.csv"


def save_parquet(folder: Path, y: np.ndarray) -> Any:
    pq.write_table(pa.table({"id": range(len(y)), "y": y}), folder / "y.parquet", row_group_size=7)
    return f"{folder}/y.parquet::y"


def save_parquet_folder(folder: Path, y: np.ndarray) -> Any:
    for i, rows in enumerate(np.array_split(y, 11)):
        pq.write_table(pa.table({"y": rows}), folder / f"part_{i}.parquet")
    return folder


def save_parquet_dictionary(folder: Path, y: np.ndarray) -> Any:
    pq.write_table(pa.table({"y": pa.array(y).dictionary_encode()}), folder / "y.parquet")
    return folder / "y.parquet"


def hold(make: Any) -> Any:
    return lambda folder, y: make(y)


HOLDERS = {
    "array": hold(lambda y: y),
    "column": hold(lambda y: y[:, None]),
    "strided": hold(lambda y: np.repeat(y, 2)[::2]),
    "swapped": hold(lambda y: y.astype(y.dtype.newbyteorder(">"))),
    "list": hold(lambda y: y.tolist()),
    "tuple of scalars": hold(tuple),
    "objects": hold(lambda y: y.astype(object)),
    "series": hold(lambda y: pd.Series(y, index=np.arange(len(y))[::-1])),
    "series of nullable values": hold(lambda y: pd.Series(y).convert_dtypes()),
    "series of a category": hold(lambda y: pd.Series(y).astype("category")),
    "data frame": hold(lambda y: pd.DataFrame({"y": y})),
    "masked": hold(lambda y: np.ma.MaskedArray(y)),
    "dask": hold(lambda y: da.from_array(y, chunks=4)),
    "xarray": hold(lambda y: xr.DataArray(y, dims="row")),
    "npy": save_npy,
    "zarr": save_zarr,
    "zarr 2": save_zarr_v2,
    "zarr array": open_zarr,
    "zarr group": save_zarr_group,
    "dask from zarr": lambda folder, y: da.from_zarr(save_zarr(folder, y)),
    "csv": save_csv,
    "csv of one column": save_csv_alone,
    "parquet": save_parquet,
    "parquet folder": save_parquet_folder,
    "parquet dictionary": save_parquet_dictionary,
}
