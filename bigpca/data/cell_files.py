"""Cells in files of AnnData and 10x Genomics: beside the matrix, the names of cells and genes, and columns of obs."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array
from bigpca.data.checks import MemberError
from bigpca.data.containers import is_zarr_array, is_zarr_group
from bigpca.data.hdf5 import HDF5_SUFFIXES, hdf5_column, hdf5_frame, hdf5_index, hdf5_names
from bigpca.data.zarr_arrays import is_zarr_directory, open_node, read_whole
from bigpca.data.zarr_format import naming_damage
from bigpca.errors import MAX_MESSAGE, brief, closest, shorten
from bigpca.storage.files import kind_of, public, without_credentials

log = logging.getLogger("bigpca")
OF_CELLS = ("X", "layers", "obsm", "raw")  # whose rows are cells
OF_GENES = ("X", "layers", "raw")  # whose columns are genes
TENX = "matrix"  # the group in files of Cell Ranger 3 and later; earlier ones name it after the genome
TENX_CELLS, TENX_GENES = ("barcodes",), ("features/name", "gene_names")  # those that scanpy.read_10x_h5 takes
Names = NDArray[np.object_]


def cell_names(path: str) -> Names | None:
    """Return the names of the cells of a matrix: ``obs_names`` or barcodes; None if they are not distinct.

    Parameters
    ----------
    path : str
        The file or store, or a matrix in it, such as ``"cells.zarr/X"``.
    """
    place, name = _in_file(path, "")
    names = _index(place, "obs") if name.split("/")[0] in OF_CELLS else None
    names = _of_tenx(place, name, TENX_CELLS) if names is None else names
    if names is not None and len(set(names)) < len(names):
        log.warning("the names of the cells in %s are not distinct, so they are not used as keys of the rows.", place)
        return None
    return names


def gene_names(path: str, member: str, width: int) -> Names | None:
    """Return the names of the ``width`` columns of a matrix, ``var_names`` or features; None for other matrices.

    Raises
    ------
    ValueError
        For another number of names.
    """
    place, name = _in_file(path, member)
    frame = "raw/var" if name.startswith("raw/") else "var"
    names = _index(place, frame) if name.split("/")[0] in OF_GENES else None
    if names is None:
        frame, names = "its list of features", _of_tenx(place, name, TENX_GENES)
    if names is not None and len(names) != width:
        raise ValueError(
            f"{place}: {brief(name)} has {width:,} columns, but {frame} has {len(names):,} names; the same number "
            f"was expected. The file was not written completely: write it again."
        )
    return names


def cell_column(path: str, name: str | None, word: str) -> Array | None:
    """Return a column of ``obs``, one value for each cell, such as ``"type"`` or ``"obs/type"``; gaps are None.

    None for a file that is not AnnData. ``word`` says what is read, for messages.

    Raises
    ------
    MemberError
        If there is no such column; lists those that there are.
    """
    columns = obs_columns(path)
    if columns is None:
        return None
    short = (name or "").strip("/").removeprefix("obs/")
    if short not in columns and "/" in (name or ""):
        return None  # the place of an array
    if short not in columns:
        listed = shorten(", ".join(map(brief, columns)), MAX_MESSAGE // 4) or "none"
        what = f"obs has no column {brief(repr(short))}" if short else f"name the column of obs that holds the {word}s"
        raise MemberError(f"{path}: {what}, as in 'path::name'.{closest(short, columns)} It has: {listed}.")
    parts = _stored(path, f"obs/{short}", word)
    if parts is None:
        raise MemberError(f"{path}: obs/{brief(short)} does not hold one value for each cell. Pass the values.")
    if {"codes", "categories"} <= parts.keys():
        return np.array([*parts["categories"], None], dtype=object)[parts["codes"].astype(np.int64)]  # -1: a gap
    if {"values", "mask"} <= parts.keys():
        values = parts["values"].astype(object)
        values[parts["mask"].astype(bool)] = None
        return values
    return next(iter(parts.values()))


def obs_columns(path: str) -> list[str] | None:
    """Return the names of the columns of ``obs``; None in a file that is not AnnData."""
    if os.path.isfile(path):
        return hdf5_frame(path, "obs") if path.lower().endswith(HDF5_SUFFIXES) else None
    root = open_node(path)
    if not is_zarr_group(root) or root.attrs.get("encoding-type") != "anndata":
        return None
    found: Any = root.get("obs")
    stated: Any = found.attrs.get("column-order", ()) if is_zarr_group(found) else ()
    return [str(name) for name in stated]


def _stored(path: str, name: str, word: str) -> dict[str, Array] | None:
    if os.path.isfile(path):
        return hdf5_column(path, name)
    root: Any = open_node(path)
    node = root[name]
    arrays = {"": node} if is_zarr_array(node) else dict(node.arrays())
    return {part: read_whole(array, word) for part, array in arrays.items()}


def _in_file(path: str, member: str) -> tuple[str, str]:
    """Return the file or store of a matrix, and its name there; X where none is given."""
    path = path if kind_of(path) != "disk" else os.path.abspath(os.path.expanduser(path))
    if member:
        return path, member.strip("/")
    parts = path.rstrip("/").split("/")
    for depth, folders in ((1, ("X",)), (2, OF_CELLS)):
        if len(parts) > depth and parts[-depth] in folders:
            return "/".join(parts[:-depth]), "/".join(parts[-depth:])
    return path, "X"


def _index(path: str, frame: str) -> Names | None:
    """Return the names of the rows of a data frame of AnnData; None in a file of another kind."""
    if os.path.isfile(path):
        return hdf5_index(path, frame) if path.lower().endswith(HDF5_SUFFIXES) else None
    if kind_of(path) == "disk" and not is_zarr_directory(path):
        return None
    with without_credentials(path), naming_damage(public(path)):
        root = open_node(path)
        if not is_zarr_group(root) or root.attrs.get("encoding-type") != "anndata":
            return None
        found: Any = root.get(frame)
        stored = found.get(str(found.attrs.get("_index"))) if is_zarr_group(found) else None
        return read_whole(stored, "name").astype(object) if is_zarr_array(stored) and stored.ndim == 1 else None


def _of_tenx(path: str, name: str, columns: tuple[str, ...]) -> Names | None:
    """Return names in an HDF5 file of 10x Genomics, which are in the group of the matrix; None in other files."""
    group = TENX if name == "X" else name
    if not os.path.isfile(path):  # the path may name the group
        path, group = os.path.split(path)
    if not os.path.isfile(path) or not path.lower().endswith(HDF5_SUFFIXES):
        return None
    return hdf5_names(path, *(f"{group}/{column}" for column in columns))
