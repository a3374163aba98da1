"""What the tests of estimators are given: stores, arrays that must not be read, and NumPy's answers."""

import builtins
import io
import itertools
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.typing import DTypeLike, NDArray

import bigpca as bp
from bigpca.estimators.shared.files import StoredModel, save_model

Array = NDArray[Any]
_numbers = itertools.count()


def stored(folder: Path, X: Array, chunks: tuple[int, int], **layout: Any) -> da.Array:
    """X in a new Zarr store, opened."""
    path, whole = folder / f"store-{next(_numbers)}.zarr", {"write_empty_chunks": True}
    zarr.create_array(path, shape=X.shape, dtype=X.dtype, chunks=chunks, config=whole, **layout)[:] = X
    return bp.open(path)


class Looks(Counter[tuple[str, str]]):
    """Counts calls of the file system by name and path, for the chunks of the stores in a folder and its listings."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        for name in ("stat", "lstat", "scandir", "listdir", "open"):
            monkeypatch.setattr(os, name, partial(self._count, getattr(os, name), name, str(folder)))
        for module in (io, builtins):  # pathlib takes the first
            monkeypatch.setattr(module, "open", partial(self._count, open, "open", str(folder)))

    def _count(self, call: Any, name: str, folder: str, path: Any = ".", *rest: Any, **options: Any) -> Any:
        found = "" if isinstance(path, int) else os.path.normpath(os.fspath(path))
        looks = isinstance(found, str) and found.startswith(folder) and "opener" not in options  # of os.open
        if looks and (name in ("scandir", "listdir") or re.search(r"\.zarr/.*\d$", found)):
            self[name, found.removeprefix(folder)] += 1
        return call(path, *rest, **options)

    def most(self, name: str) -> int:
        """Return the calls for the chunk that has most."""
        return max((count for (called, _), count in self.items() if called == name), default=0)


def _reject(block_info: Any = None) -> Array:
    raise AssertionError("a row was read")


def unreadable(n: int, d: int, chunk: int = 10, dtype: DTypeLike = np.float64) -> da.Array:
    """A lazy array of that shape that fails the test when any of it is read."""
    rows = tuple(min(chunk, n - i) for i in range(0, n, chunk)) or (0,)
    return da.map_blocks(_reject, chunks=(rows, (d,)), dtype=dtype, meta=np.empty((0, 0), dtype))


def exact(
    X: Array, k: int, *, center: bool = True, scale: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Leading eigenvalues, axes and total variance of X, by NumPy's SVD of the whole matrix in float64."""
    Y = X.astype(np.float64)
    deviations = Y.std(axis=0) if scale else 1.0
    Y = (Y - Y.mean(axis=0) if center else Y) / deviations
    _, singular, V = np.linalg.svd(Y, full_matrices=False)
    eigenvalues = singular**2 / (len(X) - 1)
    return eigenvalues[:k], V[:k], float(eigenvalues.sum())


def largest_angle(A: Array, B: Array) -> float:
    """The largest principal angle, in radians, between the row spaces of two matrices with orthonormal rows."""
    residual = A - (A @ B.T) @ B
    return float(np.arcsin(min(1.0, np.linalg.norm(residual, 2))))


def save_changed(model: Any, changes: Mapping[str, Any], path: Path) -> Path:
    """Save a model with other arrays, or without those that are None."""
    held = StoredModel.of(model)
    kept = {name: array for name, array in (held.arrays | changes).items() if array is not None}
    save_model(path, replace(held, arrays=kept), overwrite=False)
    return path
