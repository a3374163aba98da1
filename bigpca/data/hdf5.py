"""Datasets of an HDF5 file. h5py is imported when the first one is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.checks import check_chunk, check_dtype, is_decode_error, readable_chunks, regular_chunks, row_width
from bigpca.data.members import choose_member
from bigpca.data.storages import Stamp, file_stamp
from bigpca.errors import CorruptedChunkError
from bigpca.storage.regular import check_regular

MOST_LINKS = 32


@dataclass(frozen=True)
class Hdf5Rows:
    """Rows of an HDF5 dataset; the file is open only while a block is read, so no handle is ever shared or pickled.

    Attributes
    ----------
    path, name : str
        File, and path of the dataset inside it.
    array_shape : tuple of int
    stored : str
        Dtype with its byte order.
    chunks : tuple of int or None
        None where the dataset is contiguous.
    """

    path: str
    name: str
    array_shape: tuple[int, ...]
    stored: str
    chunks: tuple[int, ...] | None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Stored dtype, in native byte order."""
        return check_dtype(self.stored)

    @property
    def column_chunk(self) -> int:
        """Width of a chunk for a matrix; all columns otherwise."""
        d = row_width(self.array_shape)
        return min(self.chunks[1], d) if self.chunks is not None and len(self.array_shape) == 2 else d

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the dataset."""
        with _opened(self.path) as file:
            return dict(file[self.name].attrs)

    def row_chunks(self) -> tuple[int, ...]:
        """Rows of a chunk; about 16 MiB where the dataset is contiguous."""
        if self.chunks is None:
            return readable_chunks(self.array_shape[0], row_width(self.array_shape) * self.dtype.itemsize)
        return regular_chunks(self.array_shape[0], self.chunks[0])

    def read(self, start: int, stop: int, columns: tuple[int, int]) -> NDArray[Any]:
        """Read a block; for feature maps whole rows are decoded, then cut."""
        with _opened(self.path) as file:
            dataset = _node(file, self.name, self.path)
            shape = getattr(dataset, "shape", None)
            if shape != self.array_shape:
                raise ValueError(
                    f"{self.path}: {self.name} has shape {shape} now, {self.array_shape} when it was opened. "
                    "Open it again."
                )
            try:
                if dataset.ndim == 2:
                    rows: NDArray[Any] = dataset[start:stop, slice(*columns)]
                    return rows
                rows = dataset[start:stop].reshape(stop - start, row_width(self.array_shape))
            except OSError as error:
                if not is_decode_error(error):
                    raise
                raise CorruptedChunkError(
                    f"{self.path}: rows {start}:{stop} of {self.name} cannot be decoded ({error}). Copy the file again."
                ) from error
        return rows[:, slice(*columns)]

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """The one file."""
        return [file_stamp(self.path)]

    def describe(self) -> dict[str, Any]:
        """Chunks and byte order."""
        return {"chunks": None if self.chunks is None else list(self.chunks), "stored": self.stored}


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"{path} needs h5py, which is not installed. Run: pip install 'bigpca[formats]'") from error
    check_regular(path)
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        if not is_decode_error(error):
            raise
        raise CorruptedChunkError(f"{path} is not a complete HDF5 file ({error}). Copy or write it again.") from error
    with file:
        yield file


def hdf5_rows(path: str, member: str | None) -> Hdf5Rows:
    """Describe a dataset: where none is named, X of AnnData, or the only one with two dimensions or more.

    Raises
    ------
    ValueError
        When a dataset must be named, and for data that lie in another file (external links, external storage,
        virtual datasets), which untrusted files could use to read any file of yours.
    """
    with _opened(path) as file:
        if member is None:
            anndata = str(file.attrs.get("encoding-type", "")) == "anndata"
            member = choose_member(path, None, _shapes(file), anndata=anndata)
        name = member.strip("/")
        dataset = _node(file, name, path)
        if not hasattr(dataset, "shape"):
            choose_member(path, name, _shapes(file))  # raises, with the names that are there
        if dataset.external or dataset.is_virtual:
            raise ValueError(_elsewhere(path, name))
        try:
            check_dtype(dataset.dtype)
        except TypeError as error:
            raise TypeError(f"{path}: {name}: {error}") from None
        if dataset.chunks is not None:
            check_chunk(dataset.shape, dataset.chunks, dataset.dtype.itemsize, f"{path}: {name}")
        return Hdf5Rows(path, name, dataset.shape or (), dataset.dtype.str, dataset.chunks)


def dataset_place(dataset: Any) -> tuple[str, str]:
    """Return path and name of an open h5py.Dataset, which is read through a handle of its own, closed or not.

    Raises
    ------
    ValueError
        For a closed dataset, and for one in a file that is in memory only.
    """
    if not dataset:
        raise ValueError(
            "the h5py.Dataset is closed; an open one was expected. Pass the path of its file with member=."
        )
    path, name = os.path.abspath(dataset.file.filename), str(dataset.name)
    if dataset.file.driver in ("core", "fileobj") or not os.path.exists(path):
        raise ValueError(
            f"the h5py.Dataset {name} lies in {dataset.file.filename!r}, which is no file on disk (driver {dataset.file.driver!r}); "
            f"a file was expected. Pass dataset[...] where it fits in memory."
        )
    return path, name


def _shapes(file: Any) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}

    def visit(name: str, node: Any) -> None:
        if getattr(node, "shape", None) is not None:
            found[name] = node.shape

    file.visititems(visit)  # follows hard links only
    return found


def _node(file: Any, name: str, path: str) -> Any:
    """Return what a name inside the file stands for, None where nothing: soft links are followed here, step by step.

    HDF5 would follow an external link on its own as far as opening the other file, which may be anything.

    Raises
    ------
    ValueError
        For external links, and for more than ``MOST_LINKS`` soft ones.
    """
    node, parts, followed = file, name.split("/"), 0
    while parts:
        part = parts.pop(0)
        if part in ("", "."):
            continue
        link: Any = node.get(part, getlink=True) if hasattr(node, "keys") else None
        kind = type(link).__name__
        if kind == "ExternalLink":
            raise ValueError(_elsewhere(path, name))
        if kind == "SoftLink":
            followed += 1
            if followed > MOST_LINKS:
                raise ValueError(
                    f"{path}: {name} is a chain of more than {MOST_LINKS} links, or a loop of them; a dataset was expected. "
                    f"Name the dataset itself."
                )
            parts = [*link.path.split("/"), *parts]
            node = file if link.path.startswith("/") else node
        elif link is None:
            return None
        else:
            node = node[part]
    return node


def _elsewhere(path: str, name: str) -> str:
    return (
        f"{path}: {name} lies in another file (an external link, external storage or a virtual dataset), which is not "
        "followed; data inside the file were expected. Open the other file itself, or copy the data with h5repack."
    )
