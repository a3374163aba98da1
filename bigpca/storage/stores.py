"""Where a path, URL or store keeps its bytes, what exists there and may be replaced, and which dtypes can be stored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bigpca.errors import OutputExistsError
from bigpca.storage.regular import read_document

MARKERS = ("zarr.json", ".zarray", ".zgroup")
Kind = Literal["disk", "remote", "process"]
CARRIED = "zarr-memory://"  # a MemoryStore, which is sent to workers with its values


def kind_of(place: str | os.PathLike[str]) -> Kind:
    """Return where a path, a URL or the address of a store (:func:`address_of`) keeps its bytes.

    Returns
    -------
    {"disk", "remote", "process"}
        On a file system that processes can mount; behind a URL that any process may use; or in the memory of this
        process.

    Examples
    --------
    >>> kind_of("/data/x.zarr"), kind_of("s3://bucket/x.zarr"), kind_of("simplecache::memory://x.zarr")
    ('disk', 'remote', 'process')
    """
    scheme, mark, _ = os.fspath(place).partition("://")
    if not mark:
        return "disk"
    return "process" if scheme.rpartition("::")[2] == "memory" else "remote"


def path_of(given: Any, name: str) -> str:
    """Return a path as a string.

    Raises
    ------
    TypeError
        For anything else, such as an open array.

    Examples
    --------
    >>> path_of(3, "out")
    Traceback (most recent call last):
    TypeError: out is an int, but a path was expected, as a str or os.PathLike.
    """
    if isinstance(given, str | os.PathLike):
        return os.fspath(given)
    kind = type(given).__name__
    place = f" Pass that of the store: {address_of(given.store)!r}." if hasattr(given, "store_path") else ""
    article = "an" if kind[0].lower() in "aeiou" else "a"
    raise TypeError(f"{name} is {article} {kind}, but a path was expected, as a str or os.PathLike.{place}")


def address_of(store: Any) -> str:
    """Return the path or URL of a Zarr store, which does not depend on the process that opened it."""
    path, name, inner = disk_path(store), type(store).__name__, getattr(store, "store", None)
    if path is not None:
        return path
    if name == "FsspecStore":
        path = str(store.path)  # which is a URL for some file systems
        return path if "://" in path else f"{_protocols(store)[0]}://{path.lstrip('/')}"
    if name == "MemoryStore":
        return CARRIED
    if name == "ManagedMemoryStore" or type(inner).__name__ == "MemoryStore":
        return "memory://"
    if name == "IcechunkStore":
        return "icechunk://"
    return str(store) if "://" in str(store) else f"{name}://"


def disk_path(store: Any) -> str | None:
    """Return the directory of a store on a disk, also behind fsspec (``da.from_zarr`` of a path), else None."""
    from zarr.storage import LocalStore

    from bigpca.storage.regular_store import RegularStore

    if isinstance(store, LocalStore) and type(store) in (LocalStore, RegularStore):
        return os.path.abspath(store.root)
    if type(store).__name__ == "FsspecStore" and "file" in _protocols(store):
        return os.path.abspath(str(store.path))
    return None


def _protocols(store: Any) -> tuple[str, ...]:
    found = getattr(getattr(store.fs, "sync_fs", store.fs), "protocol", ())
    return found if isinstance(found, tuple) else (found,)


def is_storable(dtype: np.dtype[Any]) -> bool:
    """Whether every Zarr reader supports the dtype: bool, integers, floats up to 64 bits; nothing that needs pickle."""
    return dtype.kind in "fiub" and dtype.itemsize <= 8


def describe(path: Path) -> str:
    """Describe what is there in a few words: ``a Zarr array (1000, 64) float32``, ``a folder of 3 entries``."""
    if path.is_symlink():
        return "a dangling link"
    if path.is_file():
        return f"a file of {path.stat().st_size:,} bytes"
    try:
        metadata = read_document(path / "zarr.json")
        if metadata["node_type"] == "group":
            kind = metadata.get("attributes", {}).get("bigpca", {}).get("kind")
            return "a Zarr group" if kind is None else f"a bigpca {kind} model"
        return f"a Zarr array {tuple(metadata['shape'])} {metadata['data_type']}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "a Zarr v2 store" if is_replaceable(path) else f"a folder of {len(list(path.iterdir()))} entries"


def is_replaceable(path: Path, *, table: bool = False) -> bool:
    """Whether overwriting may remove this: a Zarr store or an empty folder; a file only if a ``table`` replaces it."""
    if table and path.is_file():
        return True
    return path.is_dir() and (any((path / marker).is_file() for marker in MARKERS) or not any(path.iterdir()))


def reject_existing(target: Path, overwrite: bool, *, table: bool = False) -> None:
    """Raise OutputExistsError unless ``target`` is free, or a Zarr store (for a ``table``: or a file) to overwrite."""
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise OutputExistsError(
            f"{target} exists already ({describe(target)}). Choose another path, or replace it with overwrite=True "
            "(--overwrite on the command line)."
        )
    if not is_replaceable(target, table=table):
        raise OutputExistsError(
            f"{target} is {describe(target)}, and overwriting replaces only Zarr stores. Choose another path, or "
            "remove it yourself."
        )
