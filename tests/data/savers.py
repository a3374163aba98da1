"""Savers: one matrix in every format that bigpca opens."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

N, D = 37, 12


def matrix(dtype: str, shape: tuple[int, ...] = (N, D)) -> np.ndarray:
    return (np.random.default_rng(3).normal(size=shape) * 40).astype("i8" if dtype == "?" else dtype).astype(dtype)


def save_zarr(folder: Path, x: np.ndarray, **options: Any) -> Any:
    z = zarr.create_array(folder / "x.zarr", shape=x.shape, dtype=x.dtype, **{"chunks": (5, *x.shape[1:]), **options})
    z[...] = x
    return folder / "x.zarr"


def save_zarr_columns(folder: Path, x: np.ndarray) -> Any:
    return save_zarr(folder, x, chunks=(5, 4))


def save_zarr_v2(folder: Path, x: np.ndarray) -> Any:
    return save_zarr(folder, x, zarr_format=2)


def save_zarr_sharded(folder: Path, x: np.ndarray) -> Any:
    return save_zarr(folder, x, chunks=(2, D), shards=(8, D))


def open_zarr(folder: Path, x: np.ndarray) -> Any:
    return zarr.open_array(save_zarr(folder, x))


def open_zarr_in_memory(folder: Path, x: np.ndarray) -> Any:
    z = zarr.create_array(zarr.storage.MemoryStore(), shape=x.shape, dtype=x.dtype, chunks=(5, D))
    z[...] = x
    return z


def save_npy(folder: Path, x: np.ndarray) -> Any:
    np.save(folder / "x.npy", x)
    return str(folder / "x.npy")


def save_npy_fortran(folder: Path, x: np.ndarray) -> Any:
    return save_npy(folder, np.asfortranarray(x))


def save_npy_swapped(folder: Path, x: np.ndarray) -> Any:
    return save_npy(folder, x.astype(x.dtype.newbyteorder(">")))


def save_shards(folder: Path, x: np.ndarray) -> Any:
    for i, rows in enumerate(np.array_split(x, 12)):
        np.save(folder / f"img_{i}.npy", rows)
    return folder


def save_glob(folder: Path, x: np.ndarray) -> Any:
    return f"{save_shards(folder, x)}/img_*.npy"


def save_hdf5(folder: Path, x: np.ndarray) -> Any:
    with h5py.File(folder / "x.h5", "w") as file:
        file["group/features"] = x
    return folder / "x.h5"


def save_hdf5_chunked(folder: Path, x: np.ndarray) -> Any:
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("features", data=x, chunks=(8, *x.shape[1:]), compression="gzip")
    return folder / "x.h5"


def save_safetensors(folder: Path, x: np.ndarray) -> Any:
    from safetensors.numpy import save_file

    save_file({"features": x, "labels": np.arange(3)}, folder / "x.safetensors")
    return folder / "x.safetensors"


def save_torch(folder: Path, x: np.ndarray, name: str = "x.pt") -> Any:
    import torch

    torch.save({"features": torch.from_numpy(x)}, folder / name)
    return folder / name


def save_torch_folder(folder: Path, x: np.ndarray) -> Any:
    for i, rows in enumerate(np.array_split(x, 11)):
        save_torch(folder, rows, f"part_{i}.pt")
    return folder


def save_memmap(folder: Path, x: np.ndarray) -> Any:
    (folder / "x.bin").write_bytes(b"seven b" + x.tobytes())
    return np.memmap(folder / "x.bin", x.dtype, "r", 7, x.shape)


def save_numpy(folder: Path, x: np.ndarray) -> Any:
    return x


def save_parquet(folder: Path, x: np.ndarray) -> Any:
    values = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), x.shape[1])
    table = pa.table({"id": list(range(len(x))), "embedding": values})
    pq.write_table(table, folder / "x.parquet", row_group_size=10)
    return folder / "x.parquet"


def save_parquet_table(folder: Path, x: np.ndarray) -> Any:
    for i, rows in enumerate(np.array_split(x, 3)):
        columns = {f"feature {j}": column for j, column in enumerate(rows.T)}
        pq.write_table(pa.table(columns), folder / f"part_{i}.parquet", row_group_size=10)
    return folder


def save_parquet_folder(folder: Path, x: np.ndarray) -> Any:
    for i, rows in enumerate(np.array_split(x, 11)):
        pq.write_table(pa.table({"embedding": list(rows)}), folder / f"part_{i}.parquet")
    return folder


def save_parquet_partitions(folder: Path, x: np.ndarray) -> Any:
    for year, rows in zip((9, 10), np.array_split(x, 2), strict=True):
        (folder / f"year={year}").mkdir()
        pq.write_table(
            pa.table({f"f{j}": column for j, column in enumerate(rows.T)}), folder / f"year={year}/0.parquet"
        )
    return folder


def save_parquet_of_pandas(folder: Path, x: np.ndarray) -> Any:
    columns = {f"f{j}": column for j, column in enumerate(x.T)} | {"name": [f"row {i}" for i in range(len(x))]}
    index = json.dumps({"index_columns": ["name"]})
    pq.write_table(pa.table(columns).replace_schema_metadata({"pandas": index}), folder / "x.parquet")
    return folder / "x.parquet"


SAVERS: list[Callable[[Path, np.ndarray], Any]] = [
    save_zarr,
    save_zarr_columns,
    save_zarr_v2,
    save_zarr_sharded,
    open_zarr,
    open_zarr_in_memory,
    save_npy,
    save_npy_fortran,
    save_npy_swapped,
    save_shards,
    save_glob,
    save_hdf5,
    save_hdf5_chunked,
    save_safetensors,
    *((save_torch, save_torch_folder) if find_spec("torch") else ()),
    save_memmap,
    save_numpy,
    save_parquet,
    save_parquet_folder,
    save_parquet_table,
    save_parquet_partitions,
    save_parquet_of_pandas,
]
FLATTENING = [save_zarr, save_zarr_v2, save_npy, save_npy_fortran, save_shards, save_hdf5_chunked]
