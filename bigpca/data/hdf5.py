"""Datasets of an HDF5 file. h5py is imported when the first one is opened."""

from __future__ import annotations

import errno
import math
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import FILLS, PACKED
from bigpca.data.checks import (
    MATLAB,
    NETCDF,
    RANGES,
    check_cells,
    check_chunk,
    check_dtype,
    decoding,
    is_decode_error,
    regular_chunks,
)
from bigpca.data.source import SPARSE_PARTS, Stamp, StoredRows, choose_member, file_stamp, stored_values
from bigpca.data.sparse import CsrRows, SparseGroup
from bigpca.data.zarr_format import SPARE_BYTES, overlaps
from bigpca.errors import CorruptedChunkError, MissingChunksError, brief, required
from bigpca.storage.files import check_regular, max_encoded

HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5", ".h5ad")
MAX_NAMES = 10**7  # letters of the names that are looked through: of 100,000 objects, or of groups 4,000 deep
NAME_COST = 100  # letters that the visit of an object counts as
_DEFLATE, _SHUFFLE, _FLETCHER32 = 1, 2, 3  # H5Z_FILTER_*
_NEVER_FILLED = 1  # H5D_FILL_TIME_NEVER, which netCDF-4 sets for variables that are not filled


@dataclass(frozen=True, eq=False, repr=False)
class Hdf5Rows(StoredRows):
    """Rows of an HDF5 dataset; the file is open only while a block is read, so no handle is ever shared or pickled.

    Attributes
    ----------
    stored : str
        Dtype with its byte order.
    chunks : tuple of int or None
        None if the dataset is contiguous.
    missing_chunks : {"raise", "fill"}
        What to do about a chunk that is not in the file: raise an error, or use HDF5's fill value. Files that allocate
        all chunks when the dataset is created (``H5D_ALLOC_TIME_EARLY``, parallel HDF5) do not record which were
        written.
    """

    chunks: tuple[int, ...] | None
    missing_chunks: str = "raise"
    format: str = field(default="hdf5", kw_only=True)

    def facts(self) -> dict[str, Any]:
        """Rows and columns are decoded by chunks, if the dataset is not contiguous; of feature maps whole rows are."""
        chunks, d = self.chunks or (1, self.shape[1]), max(self.shape[1], 1)
        across = min(chunks[1], d) if len(self.array_shape) == 2 else d
        return super().facts() | {"decoded_rows": chunks[0], "column_chunk": across}

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes that define how the numbers are stored; others, which may be large, are not read."""
        with _opened(self.path) as file:
            node = _node(file, self.member, self.path)
            known = (*PACKED, *FILLS, *RANGES, "_Unsigned", "units", MATLAB)
            found = {name: node.attrs[name] for name in known if name in node.attrs}
            if NETCDF in file.attrs and node.id.get_create_plist().get_fill_time() != _NEVER_FILLED:
                found[NETCDF] = True
            return found

    def row_chunks(self) -> tuple[int, ...]:
        """Return the rows of each chunk; about 4 MiB if the dataset is contiguous."""
        row_bytes = self.shape[1] * self.dtype.itemsize
        return regular_chunks(self.array_shape[0], None if self.chunks is None else self.chunks[0], row_bytes=row_bytes)

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> NDArray[Any]:
        """Read a block; for feature maps, whole rows are decoded and then cut."""
        with _opened(self.path) as file:
            dataset = _node(file, self.member, self.path)
            shape = getattr(dataset, "shape", None)
            if shape != self.array_shape:
                raise ValueError(
                    f"{self.path}: {brief(self.member)} has shape {shape} now, but had {self.array_shape} when opened. "
                    "Open it again."
                )
            if self.missing_chunks == "raise":
                self._check_present(dataset, start, stop, columns)
            what = f"{self.path}: rows {start}:{stop} of {brief(self.member)} cannot be decoded"
            with decoding(what, errors=(Exception,)):
                rows = self._inflated(dataset, start, stop, columns) if dataset.compression == "gzip" else None
                if rows is None and dataset.ndim == 2:
                    rows = dataset[start:stop, slice(*columns)]
                rows = dataset[start:stop] if rows is None else rows
        return rows if rows.ndim == 2 else rows.reshape(stop - start, self.shape[1])[:, slice(*columns)]

    def _inflated(self, dataset: Any, start: int, stop: int, columns: tuple[int, int]) -> NDArray[Any] | None:
        """Decode a block, each chunk read once: HDF5 would decode a forged chunk to any size.

        None, once the sizes of the chunks were checked, if they have filters of other kinds or numbers of other bits.
        """
        h5t, plist = required("h5py", self.path).h5t, dataset.id.get_create_plist()
        filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
        plain, chunks = dataset.id.get_type() == h5t.py_create(dataset.dtype, logical=True), self.chunks or ()
        bounds = self._bounds(start, stop, columns)
        out = np.empty([hi - lo for lo, hi in bounds], dataset.dtype)
        there = _chunks_there(file_stamp(self.path), self.member, self.array_shape, chunks)
        expected = math.prod(chunks) * dataset.dtype.itemsize
        for cell, part, own in overlaps(bounds, chunks):
            if not there[cell]:
                out[part] = dataset.fillvalue
                continue
            at = tuple(i * c for i, c in zip(cell, chunks, strict=True))
            data: bytes | None = None
            size, most = dataset.id.get_chunk_info_by_coord(at).size, expected + SPARE_BYTES
            if size <= max_encoded(most):
                stored = dataset.id.read_direct_chunk(at)
                data = _unfiltered(stored, filters, dataset.dtype.itemsize, most)
                size = len(data or b"")
            if size > most:
                raise CorruptedChunkError(
                    f"{self.path}: the chunk at {at} of {brief(self.member)} would decode to {size:,} bytes or more, "
                    f"but its shape {chunks} has {expected:,}, and was not decoded: it is damaged or forged. Copy the "
                    "file again."
                )
            if plain := plain and data is not None:
                out[part] = np.frombuffer(data, dataset.dtype).reshape(chunks)[own]
        return out if plain else None

    def _check_present(self, dataset: Any, start: int, stop: int, columns: tuple[int, int]) -> None:
        """Raise if chunks (or, in a contiguous dataset, all values) of these rows are not in the file."""
        if stop <= start or columns[1] <= columns[0]:
            return
        if self.chunks is None:
            if dataset.id.get_storage_size():
                return
            what = "its values were never written"
        else:
            bounds = self._bounds(start, stop, columns)
            cells = tuple(slice(lo // c, -(-hi // c)) for (lo, hi), c in zip(bounds, self.chunks, strict=True))
            there = _chunks_there(file_stamp(self.path), self.member, self.array_shape, self.chunks)[cells]
            if there.all():
                return
            gap = [int(i) + cell.start for i, cell in zip(np.argwhere(~there)[0], cells, strict=True)]
            at = tuple(i * c for i, c in zip(gap, self.chunks, strict=True))
            what = (
                f"{there.size - int(there.sum()):,} of the {there.size:,} chunks needed here, the first at {at}, "
                "were never written"
            )
        raise MissingChunksError(
            f"{self.path}: {brief(self.member)}: {what}; HDF5 would return the fill value. The writer stopped early, "
            'or intended the fill value. Write them or, if they should hold it, pass missing_chunks="fill".'
        )

    def _bounds(self, start: int, stop: int, columns: tuple[int, int]) -> list[tuple[int, int]]:
        """Return the ranges that hold those rows and columns; of feature maps, whole rows."""
        rest = [(0, size) for size in self.array_shape[1:]]
        return [(start, stop), *([columns] if len(rest) == 1 else rest)]

    def details(self) -> dict[str, Any]:
        """Return chunks, byte order, and the policy for missing chunks."""
        chunks = None if self.chunks is None else list(self.chunks)
        return {"chunks": chunks, "stored": self.stored, "missing_chunks": self.missing_chunks}


def _unfiltered(chunk: tuple[int, bytes], filters: list[int], itemsize: int, most: int) -> bytes | None:
    """Undo the filters of a chunk but those it ``skipped``; ends above ``most`` bytes, and with None at other kinds."""
    skipped, data = chunk
    for i in reversed(range(len(filters))):
        if skipped >> i & 1:
            continue
        if filters[i] == _DEFLATE:
            stream = zlib.decompressobj()
            data = stream.decompress(data, most + 1)
            if len(data) > most:
                break
            if not stream.eof:
                raise ValueError("a compressed chunk ends early")
        elif filters[i] == _FLETCHER32:  # beside the checksum of zlib
            data = data[:-4]
        elif filters[i] == _SHUFFLE:
            data = np.frombuffer(data, np.uint8).reshape(itemsize, -1).T.tobytes()
        else:
            return None
    return data


@lru_cache(maxsize=16)
def _chunks_there(stamp: Stamp, name: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which chunks of its grid a dataset has; the chunk index is traversed once for each state of the file."""
    grid = tuple(-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True))
    with _opened(stamp[0]) as file:
        dataset = _node(file, name, stamp[0])
        if dataset.id.get_num_chunks() == math.prod(grid):
            return np.broadcast_to(np.True_, grid)
        there = np.zeros(grid, np.bool_)

        def mark(chunk: Any) -> None:
            cell = tuple(at // size for at, size in zip(chunk.chunk_offset, chunks, strict=True))
            if all(i < count for i, count in zip(cell, grid, strict=True)):
                there[cell] = True

        dataset.id.chunk_iter(mark)
    return there


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    h5py = required("h5py", path)
    check_regular(path)
    try:
        with decoding(f"{path} is not a complete HDF5 file"):
            file = h5py.File(path, "r")
    except (BlockingIOError, CorruptedChunkError) as error:
        if "already open for write" not in str(error) and not isinstance(error, BlockingIOError):
            raise
        raise BlockingIOError(
            errno.EAGAIN,
            "another process has this HDF5 file open for writing, and rows that may change are not read: close it "
            "there. If that process was killed, clear its mark with h5clear -s",
            path,
        ) from error
    with file:
        try:
            yield file
        except Exception as error:
            # Damaged metadata raise errors of many kinds; errors that name the file come from this package.
            if not is_decode_error(error) or path in str(error):
                raise
            raise CorruptedChunkError(
                f"{path} is damaged: HDF5 cannot follow it ({type(error).__name__}: {brief(error)}). "
                "Copy or write it again."
            ) from error


def hdf5_rows(path: str, member: str | None, missing_chunks: str = "raise") -> Hdf5Rows | CsrRows:
    """Describe the named dataset or sparse matrix, X of AnnData, or the only matrix.

    Raises
    ------
    ValueError
        If a dataset must be named, and for data in another file (external links, external storage, virtual datasets),
        which an untrusted file could use to read any of your files.
    """
    with _opened(path) as file:
        if member is None:
            anndata = str(file.attrs.get("encoding-type", "")) == "anndata"
            shapes = _shapes(file)
            if not shapes and (linked := file.visititems_links(_external)):
                raise ValueError(_elsewhere(path, linked))
            member = choose_member(path, None, shapes, anndata=anndata)
        name = member.strip("/")
        node = _node(file, name, path)
        if not hasattr(node, "shape"):
            if not all(hasattr(_node(file, f"{name}/{part}", path), "shape") for part in SPARSE_PARTS):
                choose_member(path, name, _shapes(file))  # raises an error that lists the names
            return _sparse_rows(file, name, path, missing_chunks)
        return _dataset_rows(node, name, path, missing_chunks)


def _dataset_rows(dataset: Any, name: str, path: str, missing_chunks: str) -> Hdf5Rows:
    if dataset.external or dataset.is_virtual:
        raise ValueError(_elsewhere(path, name))
    try:
        check_dtype(dataset.dtype)
    except TypeError as error:
        raise TypeError(f"{path}: {brief(name)}: {error}") from None
    if dataset.chunks is not None:
        check_chunk(dataset.shape, dataset.chunks, dataset.dtype.itemsize, f"{path}: {brief(name)}")
        check_cells(dataset.shape, dataset.chunks, f"{path}: {brief(name)}")
    sizes, stored = dataset.shape or (), dataset.dtype.str
    return Hdf5Rows(sizes, stored, dataset.chunks, missing_chunks, path=path, member=name)


def _sparse_rows(file: Any, name: str, path: str, missing_chunks: str) -> CsrRows:
    """Describe the sparse matrix of a group whose three datasets are there."""
    found = {}
    for part in (*SPARSE_PARTS, "shape"):
        place = f"{name}/{part}".lstrip("/")
        node = _node(file, place, path)
        if hasattr(node, "shape"):
            found[part] = _dataset_rows(node, place, path, missing_chunks)
    group = _node(file, name, path)
    return SparseGroup.of(path, name, group.attrs, found.get("shape"), set(group)).rows(found)


@contextmanager
def hdf5_nodes(path: str) -> Iterator[Callable[[str], Any]]:
    """Open a file, and yield a function from a name to what is there: a group, a dataset, or None; "" is the file."""
    with _opened(path) as file:
        yield lambda name: _node(file, name, path)


def hdf5_names(path: str, *places: str) -> NDArray[np.object_] | None:
    """Return the strings of the first of these datasets that there is and that has one dimension; None if none is.

    Raises
    ------
    MissingChunksError, CorruptedChunkError, ValueError
        If they were not written, are damaged, or are in another file.
    """
    with _opened(path) as file:
        for name in places:
            stored: Any = _node(file, name, path)
            if getattr(stored, "shape", None) is None or stored.ndim != 1 or stored.dtype.kind not in "OS":
                continue
            if stored.external or stored.is_virtual:
                raise ValueError(_elsewhere(path, name))
            written(stored)
            return np.asarray(stored.asstr()[:], dtype=np.object_)
    return None


def written(dataset: Any) -> None:
    """Check that all chunks of an open dataset, or its values, were written.

    Raises
    ------
    MissingChunksError
    """
    shape, place = dataset.shape, {"path": os.path.abspath(dataset.file.filename), "member": str(dataset.name)[1:]}
    held = Hdf5Rows(shape, dataset.dtype.str, dataset.chunks, **place)
    held._check_present(dataset, 0, shape[0], (0, held.shape[1]))


def dataset_place(dataset: Any) -> tuple[str, str]:
    """Return path and name of an open h5py.Dataset, or of the Group of a sparse matrix, for a separate handle.

    Raises
    ------
    ValueError
        For a closed dataset, and for one in a file that exists only in memory.
    """
    if not dataset:
        raise ValueError(
            "the h5py.Dataset is closed; an open one was expected. Pass the path of its file with member=."
        )
    if dataset.file.mode == "r+":
        dataset.file.flush()  # what was just written would change the file while it is read
    path, name = os.path.abspath(dataset.file.filename), str(dataset.name)
    if dataset.file.driver in ("core", "fileobj") or not os.path.exists(path):
        raise ValueError(
            f"the h5py.Dataset {name} is in {dataset.file.filename!r}, which is not a file on disk (driver "
            f"{dataset.file.driver!r}). Pass dataset[...] if it fits in memory."
        )
    return path, name


def read_dataset(dataset: Any) -> NDArray[Any]:
    """Return the values of an open dataset, which must all be written: texts of one dimension, or numbers as of X."""
    path, name = dataset_place(dataset)
    texts = hdf5_names(path, name) if dataset.dtype.kind in "OS" else None
    if texts is not None:
        return texts
    rows = stored_values(hdf5_rows(path, name), "default")
    return np.asarray(rows.read(0, rows.shape[0])).reshape(rows.array_shape)


def _shapes(file: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all datasets.

    Raises
    ------
    ValueError
        For more than ``MAX_NAMES``: a name is as long as its object is deep.
    """
    found: dict[str, tuple[int, ...]] = {}
    letters = 0

    def visit(name: str, node: Any) -> bool | None:
        nonlocal letters
        letters += len(name) + NAME_COST
        if getattr(node, "shape", None) is not None:
            found[name] = node.shape
        return True if letters > MAX_NAMES else None  # True ends the visit

    if file.visititems(visit):  # follows hard links only
        raise ValueError(
            f"{file.filename} has too many or too deeply nested groups and datasets to look through: at most 100,000 "
            "were expected. Name one of its datasets with member=."
        )
    return found


def _node(file: Any, name: str, path: str) -> Any:
    """Return the object of a name inside the file, or None.

    HDF5 itself would follow an external link and open the other file, which may be anything.

    Raises
    ------
    ValueError
        For external and soft links.
    """
    node = file
    for part in name.split("/"):
        if part in ("", "."):
            continue
        link: Any = node.get(part, getlink=True) if hasattr(node, "keys") else None
        kind = type(link).__name__
        if kind == "ExternalLink":
            raise ValueError(_elsewhere(path, name))
        if kind == "SoftLink":
            raise ValueError(
                f"{path}: {brief(name)} is a link to {brief(link.path)}. Name the dataset itself, with member=."
            )
        if link is None:
            return None
        node = node[part]
    return node


def _external(name: str, link: Any) -> str | None:
    """Return the name of a link into another file, which ends a visit."""
    return name if type(link).__name__ == "ExternalLink" else None


def _elsewhere(path: str, name: str) -> str:
    return (
        f"{path}: {brief(name)} is in another file (an external link, external storage or a virtual dataset), which is "
        "not followed. Open the other file itself, or copy the data with h5repack."
    )
