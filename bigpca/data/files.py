"""From a path to a Source: the format is determined by extension and content."""

from __future__ import annotations

import glob
import os

from bigpca.data.checks import MemberError, natural_key
from bigpca.data.flat_files import npy_file, npy_shards, npz_member, safetensors_file
from bigpca.data.hdf5 import hdf5_rows
from bigpca.data.parquet import parquet_rows
from bigpca.data.source import Source
from bigpca.data.zarr_arrays import is_zarr_directory, zarr_source
from bigpca.errors import brief
from bigpca.storage.files import kind_of, open_regular

HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5", ".h5ad")
PARQUET_SUFFIXES = (".parquet", ".pq")
TORCH_SUFFIXES = (".pt", ".pth")
SHARD_SUFFIXES = (".npz", ".safetensors", *HDF5_SUFFIXES)
_CONVERTED = (
    "Convert each file: x = torch.load({!r}, weights_only=True); np.save(path, x.float().numpy()). A tensor of "
    "feature maps keeps its shape."
)


def file_source(path: str, member: str | None, missing_chunks: str) -> Source:
    """Describe the rows at a path, a glob pattern or a URL; reads headers only.

    Raises
    ------
    FileNotFoundError
        If nothing is there.
    ValueError
        If the format is unknown.
    """
    if kind_of(path) != "disk":
        return zarr_source(path, member, missing_chunks)
    path = os.path.abspath(os.path.expanduser(path))
    if os.path.isdir(path):
        return _directory(path, member, missing_chunks)
    if os.path.exists(path):
        return _file(path, member, missing_chunks)
    if glob.has_magic(path):
        return _glob(path, member)
    raise FileNotFoundError(
        f"{path} does not exist: a Zarr store, a .npy, .npz, .h5, .parquet or .safetensors file, a folder of .npy "
        "shards or a glob pattern was expected. Check the path."
    )


def _directory(path: str, member: str | None, missing_chunks: str) -> Source:
    if is_zarr_directory(path):
        return zarr_source(path, member, missing_chunks)
    names = sorted(os.listdir(path), key=natural_key)
    if any(name.endswith(".npy") for name in names):
        return _without_member(path, member, npy_shards(path))
    parquet = [os.path.join(path, name) for name in names if name.endswith(PARQUET_SUFFIXES)]
    if parquet:
        return parquet_rows(path, member)
    _reject_shards(path, names)
    shown = ", ".join(map(brief, names[:5])) + (", ..." if len(names) > 5 else "") if names else "nothing"
    raise FileNotFoundError(
        f"{path} holds {shown}: a Zarr store, .npy shards or .parquet files were expected. Check the folder."
    )


def _reject_shards(path: str, names: list[str]) -> None:
    """Reject a folder of shards that are opened as a list, or converted first."""
    for name in names:
        suffix = os.path.splitext(name)[1].lower()
        if suffix in TORCH_SUFFIXES:
            raise ValueError(f"{path} holds {brief(name)}, a file of PyTorch. {_CONVERTED.format(name)}")
        if suffix in SHARD_SUFFIXES or is_zarr_directory(os.path.join(path, name)):
            raise ValueError(
                f"{path} holds {brief(name)}; a folder is read as shards only if these are .npy or .parquet files. "
                "Pass the list of its files, in order: bp.open([path, ...])."
            )


def _glob(pattern: str, member: str | None) -> Source:
    found = glob.glob(pattern)
    if any(name.endswith(PARQUET_SUFFIXES) for name in found):
        return parquet_rows(pattern, member)
    others = [name for name in found if not name.endswith(".npy")]
    if others:
        raise ValueError(
            f"{pattern} matches {others[0]}, but a pattern may match only .npy or .parquet files. Narrow the pattern."
        )
    return _without_member(pattern, member, npy_shards(pattern))


def _file(path: str, member: str | None, missing_chunks: str) -> Source:
    with open_regular(path) as file:
        head = file.read(8)
    suffix = os.path.splitext(path)[1].lower()
    if head.startswith(b"\x93NUMPY") or suffix == ".npy":
        return _without_member(path, member, npy_file(path))
    if suffix == ".npz":
        return npz_member(path, member)
    if head in (b"\x89HDF\r\n\x1a\n", b"MATLAB 7") or suffix in HDF5_SUFFIXES:
        return hdf5_rows(path, member, missing_chunks)
    if head.startswith(b"PAR1") or suffix in PARQUET_SUFFIXES:
        return parquet_rows(path, member)
    if suffix == ".safetensors":
        return safetensors_file(path, member)
    if head.startswith(b"CDF"):
        raise ValueError(
            f"{path} is a netCDF-3 file, which is not read directly; netCDF-4 (HDF5) or another format was expected. "
            f'Pass xarray.open_dataset({path!r}, chunks={{}})["x"], one of its variables.'
        )
    if suffix in TORCH_SUFFIXES:
        raise ValueError(f"{path} is a file of PyTorch, which can run code. {_CONVERTED.format(path)}")
    raise ValueError(
        f"{path} is of unknown format: .npy, .npz, .h5, .parquet, .safetensors or a Zarr directory was expected. "
        "For plain bytes open a np.memmap and pass that."
    )


def _without_member(path: str, member: str | None, source: Source) -> Source:
    if member is not None:
        raise MemberError(f"{path} is one array, so it has no member {member!r}. Leave member out.")
    return source
