"""What exists at a path and whether it may be replaced, and which dtypes can be stored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from bigpca.errors import OutputExistsError
from bigpca.storage.regular import read_document

MARKERS = ("zarr.json", ".zarray", ".zgroup")


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
