"""A folder (or glob) of .npy shards, read as one array in natural order; or a list of shards, in list order."""

from __future__ import annotations

import glob
import hashlib
import os
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigpca.data.checks import check_dtype, check_shape, natural_key
from bigpca.data.flat_files import FlatFile, npy_file
from bigpca.data.storages import Stamp, file_stamp
from bigpca.errors import brief, printable


class _Listing(NamedTuple):
    files: tuple[FlatFile, ...]
    ends: tuple[int, ...]  # row after the last of each shard
    digest: str


@dataclass(frozen=True)
class NpyShards:
    """Rows of .npy shards joined in natural order (img_2 before img_10), or in the order of a list.

    Pickled as the pattern (or the list) and a digest; each process lists the folder once and reads only the headers.

    Attributes
    ----------
    pattern : str or tuple of str
        Folder, glob pattern, or the paths of the shards.
    array_shape : tuple of int
        Rows of all shards together, then the shape of one row.
    stored : str
        Dtype with its byte order.
    digest : str
        Digest of names, shapes, dtypes and memory orders, by which a changed folder is detected.
    """

    pattern: str | tuple[str, ...]
    array_shape: tuple[int, ...]
    stored: str
    digest: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """Stored dtype, in native byte order."""
        return check_dtype(self.stored)

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.pattern, str):
            return NpyShards, (self.pattern, self.array_shape, self.stored, self.digest)
        packed = zlib.compress("\0".join(self.pattern).encode(), 1)  # because every task contains it
        return _listed_shards, (packed, self.array_shape, self.stored, self.digest)

    def _listing(self) -> _Listing:
        listing = _listed(self.pattern, self.digest)
        if listing.digest != self.digest:
            raise ValueError(
                f"{_shown(self.pattern)} is not the set of shards that was opened: files were added, removed or "
                "changed size. Open it again."
            )
        return listing

    def row_chunks(self) -> tuple[int, ...]:
        """Return chunks of about 16 MiB that never cross a shard."""
        return tuple(rows for file in self._listing().files for rows in file.row_chunks() if rows) or (0,)

    def _parts(self, start: int, stop: int) -> list[tuple[FlatFile, int, int]]:
        """Return the shards of those rows, with the row range within each."""
        listing = self._listing()
        parts = []
        for i in range(bisect_right(listing.ends, start), len(listing.files)):
            first = listing.ends[i] - listing.files[i].array_shape[0]
            if first >= stop:
                break
            parts.append((listing.files[i], max(start - first, 0), min(stop, listing.ends[i]) - first))
        return parts

    def read(self, start: int, stop: int, columns: tuple[int, int]) -> NDArray[Any]:
        """Read a block, opening each shard once."""
        parts = self._parts(start, stop)
        if len(parts) == 1:
            file, lo, hi = parts[0]
            return file.read(lo, hi, columns)
        block = np.empty((stop - start, columns[1] - columns[0]), self.dtype)
        done = 0
        for file, lo, hi in parts:
            block[done : done + hi - lo] = file.read(lo, hi, columns)
            done += hi - lo
        return block

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return a stamp for each shard of those rows."""
        return [file_stamp(file.path) for file, _, _ in self._parts(start, stop)]

    def describe(self) -> dict[str, Any]:
        """Return the digest of names, sizes and row counts."""
        return {"shards_sha256": self.digest, "stored": self.stored}


def _listed_shards(packed: bytes, *others: Any) -> NpyShards:
    return NpyShards(tuple(zlib.decompress(packed).decode().split("\0")), *others)


def npy_shards(pattern: str | tuple[str, ...]) -> NpyShards:
    """Describe a folder, a glob or a list of .npy files from their headers.

    Raises
    ------
    FileNotFoundError
        If there is no .npy file.
    ValueError, TypeError
        If a shard has another width or dtype than the first; names the file.
    """
    listing = _list(pattern)
    first = listing.files[0]
    return NpyShards(pattern, (listing.ends[-1], *first.array_shape[1:]), first.stored, listing.digest)


def shard_paths(pattern: str | tuple[str, ...]) -> list[str]:
    """Return the .npy files of a folder or glob in natural order, or those of a list in list order."""
    if isinstance(pattern, tuple):
        return list(pattern)
    found = glob.glob(os.path.join(glob.escape(pattern), "*.npy") if os.path.isdir(pattern) else pattern)
    return sorted(found, key=natural_key)


def _shown(pattern: str | tuple[str, ...]) -> str:
    return pattern if isinstance(pattern, str) else f"the list of {len(pattern)} files from {pattern[0]} on"


def _list(pattern: str | tuple[str, ...]) -> _Listing:
    paths = shard_paths(pattern)
    if not paths:
        raise FileNotFoundError(
            f"no .npy files were found for {pattern}; at least one shard was expected. Check the folder or the pattern."
        )
    files: list[FlatFile] = []
    sha = hashlib.sha256()
    for path in paths:
        file = npy_file(path)
        check_shape(file.array_shape, path)
        files.append(file)
        check_shard(*(Shard(each.path, each.array_shape, each.dtype) for each in (file, files[0])))
        sha.update(f"{path}\0{file.offset}\0{file.array_shape}\0{file.stored}\0{file.order}\0".encode())
    return _Listing(tuple(files), tuple(accumulate(file.array_shape[0] for file in files)), sha.hexdigest())


@lru_cache(maxsize=8)
def _listed(pattern: str | tuple[str, ...], digest: str) -> _Listing:
    # The digest is part of the key, so that a changed folder is listed again when it is opened again.
    return _list(pattern)


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
