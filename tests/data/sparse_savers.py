"""One sparse matrix in every store that bigpca opens as it lies there: rows of values, columns and ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.sparse as sp
import zarr

PARTS = ("data", "indices", "indptr")
Saver = Callable[[Path, Any], Any]  # returns the path, or (path, member)


def counts(dtype: str = "f4", n: int = 61, d: int = 13) -> Any:
    """Rows with none, few and many values, empty ones first and last, and a column without any."""
    rng = np.random.default_rng(5)
    x = rng.poisson(3, (n, d)) * (rng.random((n, d)) < np.linspace(0, 0.9, n)[:, None])
    x[[0, 1, 30, n - 1]], x[:, 4] = 0, 0
    return sp.csr_matrix(x.astype(dtype))


def disordered(X: Any) -> Any:
    """The same rows as a writer may leave them: columns in another order, values in parts, stored zeros."""
    order = np.concatenate([np.arange(a, b)[::-1] for a, b in zip(X.indptr[:-1], X.indptr[1:], strict=True)])
    data = np.repeat(X.data[order], 2)
    data[1::2] = 0
    return sp.csr_matrix((data, np.repeat(X.indices[order], 2), 2 * X.indptr), X.shape)


def write_parts(group: Any, X: Any, options: dict[str, Any], only: tuple[str, ...] = PARTS) -> None:
    """Write the three vectors into a group of Zarr or HDF5, and what AnnData says of them."""
    group.attrs["encoding-type"], group.attrs["shape"] = f"{X.format}_matrix", [int(size) for size in X.shape]
    for name in only:
        values = getattr(X, name)
        if isinstance(group, h5py.Group):
            group.create_dataset(name, data=values, **options)
        else:
            array = group.create_array(name, shape=values.shape, dtype=values.dtype, **options)
            array[...] = values


def to_zarr(folder: Path, X: Any, zarr_format: Any = 3, **options: Any) -> Path:
    path = folder / "cells.zarr"
    root = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    root.attrs["encoding-type"] = "anndata"
    write_parts(root.create_group("X"), X, {"config": {"write_empty_chunks": True}, **options})
    return path


def to_zarr_v2(folder: Path, X: Any) -> Any:
    return to_zarr(folder, X, 2, chunks=(17,))


def to_zarr_sharded(folder: Path, X: Any) -> Any:
    return to_zarr(folder, X, chunks=(8,), shards=(32,))


def to_zarr_plain(folder: Path, X: Any) -> Any:
    return to_zarr(folder, X, chunks=(1000,), compressors=None)


def to_layer(folder: Path, X: Any) -> Any:
    path = to_zarr(folder, X[:5])
    write_parts(zarr.open_group(path).create_group("layers/counts"), X, {"chunks": (19,)})
    return path, "layers/counts"


def to_zarr_group(folder: Path, X: Any) -> Any:
    return zarr.open_group(to_zarr(folder, X), mode="r")


def to_zarr_in_memory(folder: Path, X: Any) -> Any:
    group = zarr.open_group(zarr.storage.MemoryStore(), mode="w")
    write_parts(group, X, {"chunks": (50,)})
    return group


def to_h5ad(folder: Path, X: Any, **options: Any) -> Path:
    with h5py.File(folder / "cells.h5ad", "w") as file:
        file.attrs["encoding-type"] = "anndata"
        file["obsm/X_pca"] = np.zeros((X.shape[0], 2))
        write_parts(file.create_group("X"), X, options)
    return folder / "cells.h5ad"


def to_h5ad_chunked(folder: Path, X: Any) -> Any:
    return to_h5ad(folder, X, chunks=(20,), compression="gzip")


def to_tenx(folder: Path, X: Any) -> Any:
    """As Cell Ranger: (genes, cells) compressed by cell, which are rows of cells."""
    with h5py.File(folder / "tenx.h5", "w") as file:
        for name in PARTS:
            file[f"matrix/{name}"] = getattr(X, name)
        file["matrix/shape"] = np.array(X.shape[::-1], "i4")
        file["matrix/barcodes"] = np.array([f"cell {i}" for i in range(X.shape[0])], "S8")
        file["matrix/features/name"] = np.array([f"gene {j}" for j in range(X.shape[1])], "S8")
    return folder / "tenx.h5"


SPARSE_SAVERS: list[Saver] = [
    to_zarr, to_zarr_v2, to_zarr_sharded, to_zarr_plain, to_layer, to_zarr_group, to_zarr_in_memory, to_h5ad,
    to_h5ad_chunked, to_tenx,
]  # fmt: skip
