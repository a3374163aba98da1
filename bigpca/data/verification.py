"""Check all chunks of a Zarr store and report which are missing or damaged."""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import zarr

from bigpca.arrays import Path
from bigpca.data import zarr_format
from bigpca.data.checks import is_decode_error
from bigpca.data.zarr_arrays import Cell, ChunkFiles, Opened, arrays_of, open_node
from bigpca.storage.files import is_objects, local_path, path_of, public, without_credentials

MANIFEST = "bigpca_manifest"
THREADS = 4  # that decode chunks
DECODED_BYTES = 512 * 2**20  # chunks decoded at once, together


@dataclass(frozen=True)
class VerifyReport:
    """The result of checking all chunks.

    Attributes
    ----------
    path : str
    chunks : int
        Stored objects (chunks, or shards) checked.
    missing, damaged : tuple of str
        Keys, prefixed by the array's path inside a group.
    checksummed : bool
        Whether a flipped bit would have been detected in every array (a checksum codec or a bigpca manifest).
    seconds : float
    skipped : tuple of str
        Arrays that were not checked (such as labels stored as strings), with the reason.
    unread : tuple of str
        Arrays of numbers that bigpca does not read, and so did not check, with the reason.
    """

    path: str
    chunks: int
    missing: tuple[str, ...]
    damaged: tuple[str, ...]
    checksummed: bool
    seconds: float
    skipped: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all numbers were read, and nothing is missing or damaged."""
        return not (self.missing or self.damaged or self.unread)

    def __str__(self) -> str:
        bad = len(self.missing) + len(self.damaged)
        head = "all chunks exist and decode" if self.ok else f"{bad:,} of {self.chunks:,} chunks are bad"
        if self.unread:
            head = f"{head if bad else 'no chunk is bad'}, but not all were read"
        counted = "1 chunk" if self.chunks == 1 else f"{self.chunks:,} chunks"
        lines = [f"{self.path}: {head} ({counted}, {self.seconds:.1f} s)"]
        for what, keys in (("missing", self.missing), ("damaged", self.damaged)):
            if keys:
                lines.append(f"  {what} {len(keys):,}: {', '.join(keys[:10])}{', ...' if len(keys) > 10 else ''}")
        if self.missing:
            lines.append("  A missing chunk was lost, or held only the fill value and was dropped by its writer.")
        if not self.checksummed:
            lines.append("  The store has no checksum codec and no bigpca manifest: flipped bits cannot be detected.")
        lines += [f"  not checked: {one}" for one in (*self.unread, *self.skipped)]
        return "\n".join(lines)


def verify(path: Path) -> VerifyReport:
    """Decode every chunk of a Zarr array, or of each array of a group, and list those that are missing or damaged.

    Parameters
    ----------
    path : str, path, store of Zarr, obstore store or :class:`bigpca.ObjectStore`
        Zarr array or group, v2 or v3; also one inside another, such as a sparse matrix.

    Returns
    -------
    VerifyReport
        One read of the store; up to 4 chunks (512 MiB) in memory. If the store has a bigpca manifest, the bytes of each
        file are compared too, which also detects swapped chunks.

    Raises
    ------
    FileNotFoundError
        If the path holds no Zarr store.
    """
    given: Any = path if is_objects(path) else local_path(path_of(path, "path"))
    location = given
    if not isinstance(given, str):
        from bigpca.storage.places import ObjectStore  # for object stores only

        location = ObjectStore(given).describe()
    return _verified(given, location)


def _verified(given: Any, location: str) -> VerifyReport:
    started = time.perf_counter()
    found: dict[str, list[str]] = {"missing": [], "damaged": []}
    chunks, checksummed, skipped, unread = 0, True, list[str](), list[str]()
    for name, array in _arrays(given, location):
        try:
            zarr_format.check_document(zarr_format.array_document(array), name or public(location))
        except TypeError as error:
            skipped.append(str(error))
            continue
        except ValueError as error:
            unread.append(str(error))
            continue
        walk = _Walk(ChunkFiles.of(array), _manifest(array))
        checksummed &= bool(walk.manifest) or zarr_format.has_checksum(walk.files.document)
        with without_credentials(location):
            for key, verdict in walk.run():
                chunks += 1
                if verdict:
                    found[verdict].append(f"{name}/{key}" if name else key)
    sorted_keys = {what: tuple(keys) for what, keys in found.items()}
    return VerifyReport(
        public(location),
        chunks,
        **sorted_keys,
        checksummed=checksummed,
        seconds=time.perf_counter() - started,
        skipped=tuple(skipped),
        unread=tuple(unread),
    )


def _arrays(given: Any, location: str) -> list[tuple[str, zarr.Array[Any]]]:
    if not is_objects(given) and not os.path.isdir(given):
        why = "is not a directory" if os.path.exists(given) else "does not exist"
        raise FileNotFoundError(f"{location} {why}; a Zarr store was expected. Check the path.")
    try:
        with without_credentials(location), zarr_format.naming_damage(public(location)):
            node = open_node(given)
            return [("", node)] if isinstance(node, zarr.Array) else list(arrays_of(node))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{public(location)} holds no Zarr array or group. Check the path.") from error


def _manifest(array: zarr.Array[Any]) -> Mapping[str, int]:
    manifest: Any = array.attrs.get(MANIFEST)
    if array.shards or not isinstance(manifest, Mapping) or manifest.get("algorithm") != "crc32":
        return {}
    return manifest.get("chunks") or {}


@dataclass(frozen=True)
class _Walk:
    files: ChunkFiles
    manifest: Mapping[str, int]

    def run(self) -> Iterator[tuple[str, str]]:
        """Yield (key, verdict) of every chunk in order; the verdict of a good chunk is empty."""
        threads = max(1, min(THREADS, DECODED_BYTES // max(self.files.cell_bytes, 1)))
        cells = self.files.all_cells()
        with ThreadPoolExecutor(threads, thread_name_prefix="bigpca-verify") as pool:
            while batch := list(itertools.islice(cells, 1024)):
                yield from pool.map(self._judge, batch)

    def _judge(self, cell: Cell) -> tuple[str, str]:
        with closing(self.files.whole(cell)) as opened:
            return self.files.key(cell), self._verdict(cell, opened)

    def _verdict(self, cell: Cell, opened: Iterator[Opened]) -> str:
        files, known = self.files, self.manifest.get(self.files.key(cell))
        try:
            one = next(opened)
            if one.file is None:
                return "missing"
            if known is not None and one.size <= files.decoder.max_stored and zlib.crc32(one.file.read()) == known:
                return ""
            files.decoder.decode(one.file, one.size, files.empty([part.stop for part in one.own]), one.own)
        except Exception as error:
            if not is_decode_error(error):
                raise
            return "damaged"
        return "" if known is None else "damaged"
