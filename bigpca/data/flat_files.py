"""Arrays as plain bytes: ``.npy``, raw maps, safetensors, ``.pt``, and folders or lists of shards."""

from __future__ import annotations

import glob
import hashlib
import io
import json
import math
import os
import pickle
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bigpca.arrays import BFLOAT16
from bigpca.data.checks import (
    MemberError,
    check_dtype,
    check_numbering,
    check_shape,
    decoding,
    natural_key,
)
from bigpca.data.source import Stamp, StoredRows, choose_member, file_stamp, parts_of
from bigpca.data.zarr_format import fill_from
from bigpca.errors import CorruptedChunkError, brief, printable, required
from bigpca.storage.files import (
    check_regular,
    kind_of,
    open_regular,
    read_npy_header,
)

_SAFETENSORS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "?", "U8": "u1", "I8": "i1"} | {
    f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (2, 4, 8)
}
_SAFETENSORS |= {"BF16": BFLOAT16}
BFLOAT16_NPY = np.dtype("V2")  # as np.save writes bfloat16 of ml_dtypes
# RuntimeError: encrypted members; NotImplementedError, its subclass: compression that zipfile does not support
BAD_ZIP = (zipfile.BadZipFile, EOFError, zlib.error, struct.error, RuntimeError, UnicodeError)
STEP_BYTES = 2**20  # read at a time of parts of rows or columns
SHORT_RUN = 2**14  # bytes of rows that are read whole where some columns are wanted


@dataclass(frozen=True, eq=False, repr=False)
class FlatFile(StoredRows):
    """An array at an offset of a file, in C or Fortran order.

    Nothing stays mapped or open between reads: mapped pages would count as the worker's memory, and a file that was
    replaced or truncated meanwhile is detected instead of crashing the process.

    Attributes
    ----------
    offset : int, bytes
    order : {"C", "F"}
    """

    offset: int
    order: str = "C"
    format: str = field(default="npy", kw_only=True)

    @property
    def _nbytes(self) -> int:
        return math.prod(self.array_shape) * self.bits.itemsize

    def check_size(self, size: int | None = None) -> None:
        """Check that the file, or an object of that size, is as large as its header states."""
        size = check_regular(self.path).st_size if size is None else size
        if size < self.offset + self._nbytes:
            raise CorruptedChunkError(
                f"{self.path} has {size:,} bytes, but an array of shape {self.array_shape} and dtype {self.dtype} "
                f"at offset {self.offset} needs {self.offset + self._nbytes:,}: the file is truncated. Copy it again."
            )

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> NDArray[Any]:
        """Read a block: whole rows in C order directly into new memory, others in strips."""
        return self.numbers(self._read_bits(start, stop, columns))

    def _read_bits(self, start: int, stop: int, columns: tuple[int, int]) -> NDArray[Any]:
        width, stored = self.shape[1], self.bits
        if self.remote:
            from bigpca.storage.requests import read_range  # imports clients of object stores

            first, last = (self.offset + row * width * stored.itemsize for row in (start, stop))
            rows = read_range(self.path, first, last).view(stored).reshape(stop - start, width)
            return np.ascontiguousarray(rows[:, slice(*columns)])
        self.check_size()
        if self.order == "C" and columns == (0, width):
            block = np.empty((stop - start, width), stored)
            with open_regular(self.path, buffering=0) as file:
                file.seek(self.offset + start * width * stored.itemsize)
                _fill(file, block, self.path)
            return block
        block = np.empty((stop - start, columns[1] - columns[0]), stored.newbyteorder("="))
        if block.size:
            with open_regular(self.path, buffering=0) as file:
                self._fill_parts(file, block, start, columns)
        return block

    def _fill_parts(self, file: BinaryIO, block: NDArray[Any], start: int, columns: tuple[int, int]) -> None:
        """Read the parts of stored runs that make a block, 1 MiB at a time: runs are rows, or columns in Fortran order.

        NOTE: a map would need fewer calls, but the process dies (SIGBUS) if another one truncates what is mapped.
        """
        rows, trail = (start, start + len(block)), self.array_shape[1:]
        runs, part, length, filled = np.arange(*rows), columns, self.shape[1], block
        if self.order == "F":
            places: Any = np.unravel_index(np.arange(*columns), trail or (1,))
            runs = np.ravel_multi_index(places, trail or (1,), order="F")
            part, length, filled = rows, self.array_shape[0], block.T
        stored, whole = self.bits, self.order == "C" and length * self.bits.itemsize <= SHORT_RUN
        first, last = (0, length) if whole else part
        step = max(1, STEP_BYTES // ((last - first) * stored.itemsize))
        for i in range(0, len(runs), step):
            held = np.empty((len(runs[i : i + step]), last - first), stored)
            pieces = [held] if whole else held
            for run, values in zip(runs[i : i + len(pieces)].tolist(), pieces, strict=True):
                file.seek(self.offset + (run * length + first) * stored.itemsize)
                _fill(file, values, self.path)
            filled[i : i + step] = held[:, part[0] - first : part[1] - first]

    @property
    def remote(self) -> bool:
        """Whether the file is an object at a URL."""
        return kind_of(self.path) != "disk"

    @property
    def requests(self) -> tuple[int, int]:
        """Of an object, those for its parts."""
        if not self.remote:
            return 0, 0
        from bigpca.storage.requests import PART_BYTES, flight_bytes

        count = -(-self._nbytes // PART_BYTES) + 1
        return count, flight_bytes(count, PART_BYTES)

    def details(self) -> dict[str, Any]:
        """Return offset, byte order and layout."""
        return {"offset": self.offset, "stored": self.stored, "order": self.order}


def _fill(file: BinaryIO, block: NDArray[Any], path: str) -> None:
    missing = block.nbytes - fill_from(file, block)
    if missing:
        raise CorruptedChunkError(f"{path} ended {missing:,} bytes early while being read. Copy it again.")


def raw_file(
    path: str,
    offset: int,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    order: str = "C",
    *,
    format: str = "npy",
    member: str = "",
) -> FlatFile:
    """Describe plain bytes, such as those behind a ``np.memmap``."""
    stored = BFLOAT16 if str(dtype) == BFLOAT16 else check_dtype(dtype) and np.dtype(dtype).str
    flat = FlatFile(tuple(map(int, shape)), stored, offset, order, path=path, format=format, member=member)
    flat.check_size()
    return flat


def npy_file(path: str, member: str | None = None) -> FlatFile:
    """Describe a .npy file from its header: an array; objects are rejected, never unpickled."""
    check_whole(path, member)
    with open_regular(path) as file:
        return _npy_described(file, path)


def _npy_described(file: Any, path: str, size: int | None = None) -> FlatFile:
    """Describe a .npy file, or an object of that size, from its first bytes."""
    shape, order, dtype = npy_header(file, path)
    stored = BFLOAT16 if dtype == BFLOAT16_NPY else dtype.str
    flat = FlatFile(shape, stored, file.tell(), order, path=path)
    flat.check_size(size)
    return flat


def check_whole(path: str, member: str | None) -> None:
    """Reject a member of a file that is one array."""
    if member is not None:
        raise MemberError(f"{path} is one array, so it has no member {member!r}. Leave member out.")


def npy_objects(urls: list[str]) -> list[FlatFile]:
    """Describe .npy files at URLs from their headers, which are got at the same time."""
    from bigpca.storage.requests import TAIL_BYTES, Request, requests, split

    place = split(urls[0])[0]
    wanted = [Request(url.rpartition("/")[2], TAIL_BYTES, (0, TAIL_BYTES)) for url in urls]
    found = []
    for url, got in zip(urls, requests().all(place, wanted), strict=True):
        found.append(_npy_described(io.BytesIO(bytes(got.data)), url, got.size))
        if found[-1].order == "F" and len(found[-1].array_shape) > 1:
            raise ValueError(
                f"{url} is stored in Fortran order, by columns, which is read from local disks only. Write it again "
                "with np.save(path, np.ascontiguousarray(x)), or copy it to a disk."
            )
    return found


def npy_header(file: Any, label: str) -> tuple[tuple[int, ...], str, np.dtype[Any]]:
    """Read shape, order and dtype with NumPy's own header reader, which leaves the file at the first value."""
    try:
        with decoding(f"{label} is not a complete .npy file", "Write it again with np.save."):
            shape, fortran, dtype = read_npy_header(file)
        check_dtype(np.float32 if dtype == BFLOAT16_NPY else dtype)
    except TypeError as error:
        raise TypeError(f"{label}: {error}") from None
    return shape, "F" if fortran else "C", dtype


def safetensors_file(path: str, member: str | None) -> FlatFile:
    """Describe a tensor of a safetensors file: the named one, or the only one with two dimensions or more.

    The library checks the header, and that the tensors fill the file without holes and overlaps.

    Raises
    ------
    ImportError
        Without safetensors.
    CorruptedChunkError
        For a file that it rejects.
    """
    library = required("safetensors", path)
    check_regular(path)
    with decoding(f"{path} is not a complete safetensors file", errors=(library.SafetensorError,)):
        library.safe_open(path, framework="numpy")
    with open_regular(path) as file:
        length = struct.unpack("<Q", file.read(8))[0]
        tensors = json.loads(file.read(length))
    name = choose_member(path, member, {one: tuple(tensors[one]["shape"]) for one in tensors if one != "__metadata__"})
    one = tensors[name]
    if one["dtype"] not in _SAFETENSORS:
        raise TypeError(
            f"{path}: tensor {brief(repr(name))} has dtype {one['dtype']}, which NumPy does not support. Save it as "
            "float32."
        )
    start, stored = 8 + length + one["data_offsets"][0], _SAFETENSORS[one["dtype"]]
    return raw_file(path, start, one["shape"], stored, format="safetensors", member=name)


def torch_file(path: str, member: str | None) -> FlatFile:
    """Describe a tensor that ``torch.save`` wrote: the named one, or the only one with two dimensions or more.

    Torch says where its numbers are, without reading any: these are read as those of other files are.

    Raises
    ------
    TypeError
        For a tensor whose numbers are not those of rows, one after the other, or that NumPy cannot hold.
    """
    tensors = torch_tensors(path)
    name = choose_member(path, member, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    one, what = tensors[name], f"{path}: tensor {brief(repr(name))}"
    start = getattr(one.untyped_storage(), "_checkpoint_offset", None) if str(one.layout) == "torch.strided" else None
    whole, turned = (start is not None and tensor.is_contiguous() for tensor in (one, one.T if one.ndim == 2 else one))
    if not (whole or turned) or one.is_conj() or one.is_neg():
        raise TypeError(f"{what} is not stored row by row. Save x.contiguous(), of a dense x, with torch 2.6 or newer.")
    try:
        offset, stored = start + one.storage_offset() * one.itemsize, str(one.dtype).removeprefix("torch.")
        shape, order = tuple(one.shape), "C" if whole else "F"
        return raw_file(path, offset, shape, stored, order, format="torch", member=name)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None


def torch_tensors(path: str) -> dict[str, Any]:
    """Return the tensors of a file with their names, such as ``"layers/3"``, without their numbers.

    Raises
    ------
    ImportError
        Without torch.
    CorruptedChunkError
        For a file that torch does not read, or rejects because it would call functions of other libraries.
    """
    convert = f"np.save('x.npy', torch.load({path!r}, weights_only=True).numpy())"
    try:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError as error:
        raise ImportError(
            f"{path} was written by torch, which reads it. Install torch, or convert the file where it is installed: "
            f"{convert}."
        ) from error
    check_regular(path)
    broken = (*BAD_ZIP, pickle.UnpicklingError, LookupError, AttributeError)
    with (
        decoding(f"torch cannot read {path}", f"Copy it again, or convert it: {convert}.", errors=broken),
        warnings.catch_warnings(action="ignore"),  # of pickles of others, which are errors below
        FakeTensorMode(),  # in which torch.load reads no numbers, but notes where they are
    ):
        found = torch.load(path, map_location="cpu", weights_only=True)
    return {name: one for name, one in _named(found, "", set()) if isinstance(one, torch.Tensor)}


def _named(found: Any, name: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield what an object of dicts and lists holds, with its name."""
    if not isinstance(found, dict | list | tuple):
        yield name, found
    elif id(found) not in seen:
        seen.add(id(found))  # a small file can hold the same list in many others
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from _named(value, f"{name}/{key}".lstrip("/"), seen)


class _Listing(NamedTuple):
    files: tuple[FlatFile, ...]
    ends: tuple[int, ...]  # row after the last of each shard
    digest: str


# The formats of shards; a folder or a pattern may hold one of these. These read headers only.
FLAT: dict[str, Callable[[str, str | None], FlatFile]] = {
    ".npy": npy_file,
    ".safetensors": safetensors_file,
    ".pt": torch_file,
    ".pth": torch_file,
}


@dataclass(frozen=True, eq=False, repr=False)
class Shards(StoredRows):
    """Rows of .npy, safetensors or .pt shards joined in natural order (img_2 before img_10), or in a list's order.

    Its path is the folder or glob pattern, or the folder of the shards of a list. Each process lists it once, and reads
    only the headers.

    Attributes
    ----------
    digest : str
        Digest of names, shapes, dtypes and memory orders, by which a changed folder is detected.
    packed : bytes
        The paths of a list, compressed because every task contains them; empty otherwise.
    """

    digest: str
    packed: bytes = b""
    format: str = field(default="npy-folder", kw_only=True)

    def _listing(self) -> _Listing:
        listing = _listed(self.path, self.packed, self.member, self.digest)
        if listing.digest != self.digest:
            paths = _unpacked(self.packed)
            shown = f"the list of {len(paths)} files from {paths[0]} on" if paths else self.path
            raise ValueError(
                f"{shown} is not the set of shards that was opened: files were added, removed or changed size. Open it "
                "again."
            )
        return listing

    def row_chunks(self) -> tuple[int, ...]:
        """Return chunks of about 4 MiB that never cross a shard."""
        return tuple(rows for file in self._listing().files for rows in file.row_chunks() if rows) or (0,)

    def _parts(self, start: int, stop: int) -> list[tuple[FlatFile, int, int]]:
        """Return the shards of those rows, with the row range within each."""
        listing = self._listing()
        return [(listing.files[i], lo, hi) for i, lo, hi in parts_of(listing.ends, start, stop)]

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> NDArray[Any]:
        """Read a block, opening each shard once."""
        parts = self._parts(start, stop)
        if len(parts) == 1:
            file, lo, hi = parts[0]
            return file.read_block(lo, hi, columns)
        block = np.empty((stop - start, columns[1] - columns[0]), self.dtype)
        done = 0
        for file, lo, hi in parts:
            block[done : done + hi - lo] = file.read_block(lo, hi, columns)
            done += hi - lo
        return block

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return a stamp for each shard of those rows; for a URL, of all shards that it lists now."""
        if kind_of(self.path) != "disk":
            from bigpca.storage.requests import objects_at

            now = {stamp[0]: stamp for stamp in objects_at(self.path, (".npy",))}
            return [now.get(file.path, (file.path, -1, None)) for file, _, _ in self._parts(start, stop)]
        return [file_stamp(file.path) for file, _, _ in self._parts(start, stop)]

    def details(self) -> dict[str, Any]:
        """Return the digest of names, sizes and row counts."""
        return {"shards_sha256": self.digest, "stored": self.stored}

    @property
    def requests(self) -> tuple[int, int]:
        """The requests of all shards, and the most bytes that one of them has in flight."""
        counts = [file.requests for file in self._listing().files]
        return sum(count for count, _ in counts), max(flight for _, flight in counts)


def _unpacked(packed: bytes) -> list[str]:
    return zlib.decompress(packed).decode().split("\0") if packed else []


def joined_shards(pattern: str | list[str], member: str | None = None) -> Shards:
    """Describe a folder, a glob or a list of flat files from their headers.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError, TypeError
        If a shard has another width or dtype than the first; names the file.
    """
    if isinstance(pattern, str):
        path, packed = pattern, b""
    else:
        path = os.path.commonpath(map(os.path.dirname, pattern))
        packed = zlib.compress("\0".join(pattern).encode(), 1)
    listing = _list(path, packed, member)
    first = listing.files[0]
    return Shards(
        (listing.ends[-1], *first.array_shape[1:]),
        first.stored,
        listing.digest,
        packed,
        path=path,
        member=member or "",
        format=f"{first.format}-folder",
    )


def suffix_of(path: str) -> str:
    """Return the extension of a path, in lower case."""
    return os.path.splitext(path)[1].lower()


def files_in(folder: str, *suffixes: str) -> list[str]:
    """Return the files of a folder whose names end so, in either case; hidden ones are left out."""
    return [path for path in glob.glob(os.path.join(glob.escape(folder), "*")) if suffix_of(path) in suffixes]


def shard_paths(pattern: str) -> list[str]:
    """Return the files of a glob, or the shards of a folder, in natural order; at a URL .npy files only."""
    if kind_of(pattern) != "disk":
        from bigpca.storage.requests import objects_at

        return sorted((url for url, *_ in objects_at(pattern, (".npy",))), key=natural_key)
    if os.path.isdir(pattern):
        found = list(filter(None, (files_in(pattern, suffix) for suffix in FLAT)))
        if len(found) > 1:
            a, b = found[0][0], found[1][0]
            raise ValueError(
                f"{printable(pattern)} holds shards of several formats: {len(found[0])} such as {printable(a)}, "
                f"{len(found[1])} such as {printable(b)}. Name those to read: a pattern for one format, such as "
                f"'*{suffix_of(a)}', or the list of files, in order."
            )
        return sorted(found[0] if found else [], key=natural_key)
    return sorted(glob.glob(pattern), key=natural_key)


def _list(path: str, packed: bytes, member: str | None) -> _Listing:
    """List a folder or glob in natural order, or a list in its order, and read the headers."""
    paths = _unpacked(packed)  # those of a list are as the caller chose
    if not paths:
        check_numbering(paths := shard_paths(path))
    if not paths:
        raise FileNotFoundError(
            f"no shards were found for {path}; {', '.join(FLAT)} files were expected. Check the folder or the pattern."
        )
    files: list[FlatFile] = []
    sha = hashlib.sha256()
    local = kind_of(path) == "disk"
    check_whole(path, None if local else member)
    described = (FLAT[suffix_of(one)](one, member) for one in paths) if local else npy_objects(paths)
    for path, file in zip(paths, described, strict=True):
        check_shape(file.array_shape, path)
        files.append(file)
        check_shard(*(Shard(each.path, each.array_shape, each.dtype) for each in (file, files[0])))
        if file.member != files[0].member and file.member and files[0].member:  # a .npy file has no names
            raise ValueError(
                f"shard {printable(file.path)} holds the tensor {brief(repr(file.member))}, but "
                f"{brief(repr(files[0].member))} was expected, as in {printable(files[0].path)}. Name one that all "
                "have with member=, or open each file and join them with dask.array.concatenate."
            )
        sha.update(f"{path}\0{file.array_shape}\0{json.dumps(file.details(), sort_keys=True)}\0".encode())
    return _Listing(tuple(files), tuple(accumulate(file.array_shape[0] for file in files)), sha.hexdigest())


@lru_cache(maxsize=8)
def _listed(path: str, packed: bytes, member: str, digest: str) -> _Listing:
    # The digest is part of the key, so that a changed folder is listed again when it is opened again.
    return _list(path, packed, member or None)


class Shard(NamedTuple):
    """What all shards of one array share: everything but the number of rows."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def check_shard(shard: Shard, first: Shard) -> None:
    """Check that a shard has rows like those of the first."""
    if shard.shape[1:] != first.shape[1:]:
        raise ValueError(
            f"shard {printable(shard.path)} has rows of shape {shard.shape[1:]}, but {first.shape[1:]} was expected, "
            f"as in {printable(first.path)}. Remove it or write it again."
        )
    if shard.dtype != first.dtype:
        raise TypeError(
            f"shard {printable(shard.path)} has dtype {shard.dtype}, but {first.dtype} was expected, as in "
            f"{printable(first.path)}. Convert it, so that no precision is lost silently."
        )


def check_names(path: str, names: NDArray[np.object_] | None, first: str, expected: NDArray[np.object_] | None) -> None:
    """Check that the columns of a shard have the names of those of the first, in their order."""
    if names is None or expected is None or np.array_equal(names, expected):
        return
    at = int(np.argmax(names != expected))
    raise ValueError(
        f"shard {printable(path)}: column {at} is {brief(repr(names[at]))}, but {brief(repr(expected[at]))} was "
        f"expected, as in {printable(first)}. Write the files with the same columns in the same order, such as "
        "table.select(names) or adata[:, other.var_names]."
    )
