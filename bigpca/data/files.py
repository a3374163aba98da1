"""From a path to a Source: the format is determined by extension and content."""

from __future__ import annotations

import glob
import os

from bigpca.data.checks import natural_key
from bigpca.data.flat_files import FLAT, joined_shards, npy_file, shard_paths, suffix_of
from bigpca.data.genotypes import BedRows, PgenRows
from bigpca.data.hdf5 import HDF5_SUFFIXES, hdf5_rows
from bigpca.data.source import Source, Wanted
from bigpca.data.tables import PARQUET_SUFFIXES, TableRows, table_paths, table_rows
from bigpca.data.zarr_arrays import is_zarr_directory, place_at, zarr_source
from bigpca.errors import brief, listed
from bigpca.storage.files import kind_of, local_path, open_regular, public

_REMEDIES = {  # by extension
    ".csv .tsv .part": "Pass pandas.read_csv(path), with header=None if it has no names. If it does not fit in memory, "
    "write it as Parquet once, dask.dataframe.read_csv(path).to_parquet('rows'), and pass that folder.",
    ".arrow .feather .ipc": "Write it as Parquet once: pandas.read_feather(path).to_parquet('rows.parquet'), or "
    "one split of Hugging Face, datasets.load_from_disk(folder).to_parquet('rows.parquet').",
    ".npz": "Pass numpy.load(path)['x'] or scipy.sparse.load_npz(path). An array that does not fit in memory you "
    "extract, python -m zipfile -e FILE FOLDER, and pass its .npy file.",
    ".bin .dat .raw": "For plain bytes open a np.memmap and pass that.",
    ".tar .tgz .zip": "Extract it, and pass the folder or the list of its files.",
    ".gz .bz2 .xz .zst": "Decompress it first.",
    ".mat": "Pass scipy.io.loadmat(path)['x'], one of its variables.",
    "": "Read it with a library for this format, and pass the array.",
}
GENOTYPES: dict[str, type[BedRows] | type[PgenRows]] = {".bed": BedRows, ".pgen": PgenRows}


def _remedy(path: str) -> str:
    """Return what to do with a file that is not read."""
    suffix = suffix_of(path)
    return next((words for ends, words in _REMEDIES.items() if suffix in ends.split()), _REMEDIES[""])


def file_source(path: str, member: str | None, missing_chunks: str, wanted: Wanted | None = None) -> Source:
    """Describe the rows at a path, a glob pattern or a URL; reads headers only.

    Raises
    ------
    FileNotFoundError
        If nothing is there.
    ValueError
        If the format is unknown.
    """
    if kind_of(path) != "disk":
        return _at_url(path, member, missing_chunks, wanted or Wanted())
    path, wanted = local_path(path), wanted or Wanted()
    found = None
    if os.path.isdir(path):
        zarr = is_zarr_directory(path)
        found = zarr_source(path, member, missing_chunks) if zarr else _directory(path, member, wanted)
    elif os.path.exists(path):
        found = _file(path, member, missing_chunks, wanted)
    elif glob.has_magic(path):
        found = _glob(path, member, wanted)
    if found is not None and wanted.keys is not None and not isinstance(found, TableRows):
        raise ValueError(
            f"keys = {wanted.keys!r} names a column of Parquet, but {path} is not one. Store "
            "the keys beside the rows: bigpca.ingest(path, out, keys=...)."
        )
    if found is not None:
        return found
    raise FileNotFoundError(
        f"{path} does not exist: a Zarr store, a .npy, .h5, .parquet, .pt or .safetensors file, a folder of shards or "
        "a glob pattern was expected. Check the path."
    )


def _at_url(url: str, member: str | None, missing_chunks: str, wanted: Wanted) -> Source:
    """Describe the rows at a URL: Zarr, and in object stores .npy shards and Parquet, by their names."""
    end = suffix_of(url.rstrip("/"))
    if end and any(end in ends.split() for ends in _REMEDIES):
        raise ValueError(f"{public(url)} is a {end} file, which is not read. {_remedy(url)}")
    if end in (*HDF5_SUFFIXES, *list(FLAT)[1:], *GENOTYPES):
        raise ValueError(
            f"{public(url)} is a {end} file, which can only be read from a disk; Zarr, .npy and Parquet are read at "
            f"URLs. Copy it to a disk, and write it as Zarr for workers: bp.ingest({os.path.basename(public(url))!r}, "
            '"rows.zarr").'
        )
    if place_at(url) is None:
        return zarr_source(url, member, missing_chunks)
    if end not in (".npy", *PARQUET_SUFFIXES):
        try:
            return zarr_source(url, member, missing_chunks)
        except FileNotFoundError:
            pass
    if shard_paths(url):
        return joined_shards(url, member)
    if table_paths(url):
        return table_rows(url, member, wanted)
    raise FileNotFoundError(
        f"{public(url)} holds no rows: a Zarr store, .npy shards or .parquet files were expected. Check the URL."
    )


def _directory(path: str, member: str | None, wanted: Wanted) -> Source:
    names = sorted(os.listdir(path), key=natural_key)
    if shard_paths(path):
        return joined_shards(path, member)
    if table_paths(path):
        return table_rows(path, member, wanted)
    for name in names:
        kind = "splits.arrow" if name == "dataset_dict.json" else name  # of Hugging Face
        if any(suffix_of(kind) in ends.split() for ends in _REMEDIES):
            raise ValueError(f"{path} holds {brief(name)}, which is not read. {_remedy(kind)}")
        if suffix_of(name) in HDF5_SUFFIXES or is_zarr_directory(os.path.join(path, name)):
            raise ValueError(
                f"{path} holds {brief(name)}; a folder is read as shards only if it contains .npy, .parquet, .pt or "
                ".safetensors files. Pass the list of its files, in order: bp.open([path, ...])."
            )
    raise FileNotFoundError(
        f"{path} holds {listed(names) or 'nothing'}: a Zarr store, .npy shards or .parquet files were expected. "
        "Check the folder."
    )


def _glob(pattern: str, member: str | None, wanted: Wanted) -> Source:
    found = glob.glob(pattern)
    if any(suffix_of(name) in PARQUET_SUFFIXES for name in found):
        return table_rows(pattern, member, wanted)
    first = next((suffix for suffix in FLAT if any(suffix_of(name) == suffix for name in found)), ".npy")
    others = [name for name in found if suffix_of(name) != first]
    if others:
        why, remedy = "but a pattern may match only files of one format", "Narrow the pattern."
        if len(others) == len(found):
            why, remedy = "which is not read", _remedy(others[0])
        if others[0].lower().endswith((".nc", ".nc4")):
            remedy = f'Pass xarray.open_mfdataset({pattern!r})["x"], one of the variables.'
        raise ValueError(f"{pattern} matches {others[0]}, {why}. {remedy}")
    return joined_shards(pattern, member)


def _file(path: str, member: str | None, missing_chunks: str, wanted: Wanted) -> Source:
    with open_regular(path) as file:
        head = file.read(8)
    suffix = suffix_of(path)
    if head.startswith(b"\x93NUMPY"):
        return npy_file(path, member)
    if suffix in FLAT:
        return FLAT[suffix](path, member)
    if suffix in GENOTYPES:
        return GENOTYPES[suffix].of(path, member)
    if head in (b"\x89HDF\r\n\x1a\n", b"MATLAB 7") or suffix in HDF5_SUFFIXES:
        return hdf5_rows(path, member, missing_chunks)
    if head.startswith(b"PAR1") or suffix in PARQUET_SUFFIXES:
        return table_rows(path, member, wanted)
    if head.startswith(b"CDF"):
        raise ValueError(
            f"{path} is a netCDF-3 file, which xarray reads. Install it: pip install xarray. Without the extension "
            f'.nc, or with fill=None, pass xarray.open_dataset({path!r}, chunks={{}})["x"], one of its variables.'
        )
    if path.endswith(".safetensors.index.json"):
        raise ValueError(f"{path} says which file has which tensor. Pass that file, with member= the tensor.")
    raise ValueError(
        f"{path} has an unknown format: .npy, .h5, .parquet, .safetensors, .pt, .bed or a Zarr directory was expected. "
        f"{_remedy(path) if suffix else _REMEDIES['.bin .dat .raw']}"
    )
