"""A file that is broken, ambiguous or of another kind is named, with what was expected."""

import json
import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr

import bigpca.data.sources as sources
from bigpca.data.checks import MemberError
from bigpca.data.flat_files import FlatFile
from bigpca.data.label_files import read_label_file
from bigpca.errors import CorruptedChunkError
from tests.data.savers import (
    D,
    N,
    matrix,
    save_hdf5,
    save_hdf5_chunked,
    save_memmap,
    save_npy,
    save_npy_fortran,
    save_parquet,
    save_safetensors,
    save_shards,
)


def test_a_shard_of_another_width_or_dtype_is_named_with_what_was_expected(tmp_path: Path) -> None:
    save_shards(tmp_path, matrix("f4"))
    np.save(tmp_path / "img_7.npy", np.zeros((3, D + 1), "f4"))
    with pytest.raises(
        ValueError, match=r"img_7.npy has rows of shape \(13,\), but \(12,\) was expected, as in .*img_0"
    ):
        sources.open(tmp_path)
    np.save(tmp_path / "img_7.npy", np.zeros((3, D), "f8"))
    with pytest.raises(TypeError, match=r"img_7.npy has dtype float64, but float32 was expected"):
        sources.open(tmp_path)


def test_shards_that_changed_since_they_were_opened_are_noticed(tmp_path: Path) -> None:
    from bigpca.data import flat_files

    source = sources.row_source(save_shards(tmp_path, matrix("f4")))
    np.save(tmp_path / "img_99.npy", np.zeros((2, D), "f4"))
    flat_files._listed.cache_clear()  # another process lists the folder anew
    with pytest.raises(ValueError, match="not the set of shards that was opened"):
        source.read(0, 3)


def test_shards_written_again_in_the_other_memory_order_are_listed_anew(tmp_path: Path) -> None:
    rows = matrix("f4")
    np.save(tmp_path / "a.npy", rows)
    before = sources.open(tmp_path)
    before.compute()
    np.save(tmp_path / "a.npy", np.asfortranarray(rows))
    np.testing.assert_array_equal(sources.open(tmp_path).compute(), rows)


def test_empty_folders_and_missing_paths_say_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds nothing: a Zarr store, .npy shards or .parquet"):
        sources.open(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist: a Zarr store, a .npy"):
        sources.open(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no shards were found for .*/none_\*.npy"):
        sources.open(tmp_path / "none_*.npy")
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"a.txt has an unknown format"):
        sources.open(tmp_path / "a.txt")
    with pytest.raises(ValueError, match=r"matches .*a.txt, which is not read. Read it with a library"):
        sources.open(tmp_path / "a.*")
    np.save(tmp_path / "a.npy", np.eye(3))
    with pytest.raises(ValueError, match=r"matches .*a.txt, but a pattern may match only files of one format. Narrow"):
        sources.open(tmp_path / "a.*")
    with pytest.raises(TypeError, match=r"the source is dict of several arrays"):
        sources.open({})


def test_truncated_flat_files_are_named_with_both_sizes(tmp_path: Path) -> None:
    path = Path(save_npy(tmp_path, matrix("f4")))
    source = sources.row_source(path)
    path.write_bytes(path.read_bytes()[:-100])
    for attempt in (lambda: source.read(0, 2), lambda: sources.open(path)):
        with pytest.raises(CorruptedChunkError, match=r"x.npy has 1,804 bytes, but .* needs 1,904: the file is trunc"):
            attempt()
    path.write_bytes(b"\x93NUMPY")
    with pytest.raises(CorruptedChunkError, match=r"not a complete .npy file"):
        sources.open(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [(b"{'descr'", b"{{descr(", "not a complete .npy file"), (b"(37, 12)", b"(37, 12 ", "not a complete .npy file"),
     (b"(37, 12)", b"(-7, 12)", r"impossible shape \(-7, 12\)"),
     (b"NUMPY\x01", b"NUMPY\x09", r"its version is 9\.0; 1\.0"),
     (b"'<f4'", b"'<q4'", "not a complete .npy file"), (b"{'", b"\0'", "not a complete .npy file")],
)  # fmt: skip
def test_damaged_headers_of_npy_are_named(old: bytes, new: bytes, words: str, tmp_path: Path) -> None:
    path = Path(save_npy(tmp_path, matrix("f4")))
    whole = path.read_bytes()
    assert len(old) == len(new)
    assert old in whole
    path.write_bytes(whole.replace(old, new, 1))
    for read in (sources.open, read_label_file):
        with pytest.raises(CorruptedChunkError, match=rf"x\.npy.*{words}"):
            read(str(path))


def test_an_array_without_dimensions_says_what_was_expected(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.float32(3))
    with pytest.raises(ValueError, match=r"has shape \(\); rows of features"):
        sources.open(tmp_path / "x.npy")


def test_object_arrays_are_rejected_without_unpickling(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([[{}]], object), allow_pickle=True)
    with pytest.raises(TypeError, match=r"o.npy: dtype object cannot be used.* Nothing was read"):
        sources.open(tmp_path / "o.npy")


def test_a_member_must_be_named_where_several_could_be_meant(tmp_path: Path) -> None:
    x = matrix("f4")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"], file["g/b"] = x, x + 1
    with pytest.raises(ValueError, match=r"2 arrays with two dimensions or more.*a \(37, 12\), g/b \(37, 12\)"):
        sources.open(tmp_path / "x.h5")
    with pytest.raises(KeyError, match=r"has no array 'c'; it holds a \(37, 12\), g/b"):
        sources.open(tmp_path / "x.h5", member="c")
    assert np.array_equal(sources.row_source(tmp_path / "x.h5", member="/g/b").read(0, N), x + 1)
    with pytest.raises(KeyError, match="is one array, so it has no member 'a'"):
        sources.open(save_npy(tmp_path, x), member="a")


@pytest.mark.parametrize("columns", [(0, D), (2, 5)])
@pytest.mark.parametrize("save", [save_npy, save_npy_fortran, save_memmap])
def test_a_file_that_is_truncated_as_it_is_read_is_an_error(
    save: Callable[[Path, np.ndarray], Any], columns: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sources.row_source(save(tmp_path, matrix("f4")))
    monkeypatch.setattr(FlatFile, "check_size", lambda self: os.truncate(self.path, 200))
    with pytest.raises(CorruptedChunkError, match=r"ended [0-9,]+ bytes early"):
        source.read(0, N, columns)


def test_hdf5_data_in_other_files_are_rejected(tmp_path: Path) -> None:
    save_hdf5(tmp_path, matrix("f4"))
    with h5py.File(tmp_path / "links.h5", "w") as file:
        file["away"] = h5py.ExternalLink("x.h5", "/group/features")
        file["hidden"] = h5py.SoftLink("/away")
        file.create_dataset("stored", (4, 4), "f4", external=[(str(tmp_path / "raw.bin"), 0, 64)])
        layout = h5py.VirtualLayout((N, D), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "x.h5"), "group/features", (N, D))
        file.create_virtual_dataset("virtual", layout)
    words = dict.fromkeys(("away", "stored", "virtual"), "is in another file") | {"hidden": "is a link to /away. Name"}
    for name, said in words.items():
        with pytest.raises(ValueError, match=f"links.h5: {name} {said}"):
            sources.open(tmp_path / "links.h5", member=name)


@pytest.mark.parametrize("name", ["x", "group/inside/x"])
def test_an_hdf5_file_of_external_links_alone_says_so(name: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "links.h5", "w") as file:
        file[name] = h5py.ExternalLink("x.h5", "/group/features")
    with pytest.raises(ValueError, match=f"links.h5: {name} is in another file"):
        sources.open(tmp_path / "links.h5")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a.tar", "Extract it, and pass the folder"), ("a.npy.gz", "Decompress it first"),
        ("a.MAT", "Pass scipy.io.loadmat"), ("a.zip", "Extract it, and pass the folder"),
        ("a.csv", r"Pass pandas\.read_csv\(path\), .*dask\.dataframe\.read_csv\(path\)\.to_parquet"),
        ("a.feather", r"Write it as Parquet once: pandas\.read_feather\(path\)\.to_parquet"),
        ("a.npz", r"Pass numpy\.load\(path\)\['x'\] or scipy\.sparse\.load_npz\(path\)"),
        ("a.orc", "Read it with a library for this format"),
        ("a.bin", "For plain bytes open a np.memmap"), ("a", "For plain bytes open a np.memmap"),
    ],
)  # fmt: skip
def test_a_file_of_another_format_has_a_remedy_of_its_own(name: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"what it holds")
    with pytest.raises(ValueError, match=rf"{name} has an unknown format: .* was expected\. {remedy}"):
        sources.open(tmp_path / name)


@pytest.mark.parametrize("form", ["glob", "list", "folder"])
def test_shards_of_tensors_of_different_names_are_not_joined(form: str, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    paths = [tmp_path / f"{i}.safetensors" for i in range(2)]
    for path, name in zip(paths, "ab", strict=True):
        save_file({name: matrix("f4"), "both": matrix("f4")[:, 0]}, path)
    given: Any = {"glob": str(tmp_path / "*.safetensors"), "list": paths, "folder": tmp_path}[form]
    with pytest.raises(ValueError, match=r"shard .*1.safetensors holds the tensor 'b', but 'a' was expected, as in "):
        sources.open(given)


def test_shards_of_two_formats_are_read_as_a_list_and_not_in_part_as_a_folder(tmp_path: Path) -> None:
    x = matrix("f4")
    paths = [save_npy(tmp_path, x), save_safetensors(tmp_path, x + 1)]
    with pytest.raises(
        ValueError, match=r"several formats: 1 such as .*x.npy, 1 such as .*x.safetensors. Name .* '\*\.npy', or "
    ):
        sources.open(tmp_path)
    assert np.array_equal(sources.open(paths).compute(), np.concatenate([x, x + 1]))


OF_SHARDS: dict[str, tuple[list[str], str | None]] = {
    "one lacks": (["e-00001-of-00003", "e-00003-of-00003"], "one of 3 files, but 2 are there, without number 2"),
    "the last lacks, from 0 on": (["e_0_of_3", "e_1_of_3"], "one of 3 files, but 2 are there, without number 2"),
    "the first lacks": (["e-2-of-3", "e-3-of-3"], "without number 1"),
    "an earlier write": (["e-1-of-2", "e-2-of-2", "e-1-of-1"], "files of two numberings"),
    "numbers of two kinds": (["e-0-of-2", "e-1-of-2", "e-2-of-2"], r"one of 2 files, but 3 are there\."),
    "one is there twice": (["e-1-of-2", "e-01-of-2", "e-2-of-2"], r"one of 2 files, but 3 are there\."),
    "digests in names": (["e-0-of-2-0a1b2c3d4e", "e-1-of-2-ff1b2c3d4e"], None),
    "all from 1 on, and another": (["e-1-of-2", "e-2-of-2", "other"], None),
    "two complete series": (["a-0-of-1", "b-0-of-2", "b-1-of-2"], None),
    "no numbers of a whole": (["e-1-of", "of-3", "3-of-a-kind"], None),
}


SHARD_SAVERS: dict[str, Callable[[Path, Any], Any]] = {
    "npy": save_npy,
    "safetensors": save_safetensors,
    "parquet": save_parquet,
}


@pytest.mark.parametrize(
    ("end", "case", "form"),
    [*(("npy", case, "folder") for case in OF_SHARDS), *(("parquet", case, "folder") for case in OF_SHARDS),
     *((end, "one lacks", "folder") for end in SHARD_SAVERS), ("npy", "one lacks", "glob"),
     ("parquet", "one lacks", "glob"), ("parquet", "an earlier write", "partition"), ("npy", "one lacks", "list"),
     ("parquet", "one lacks", "list")],
)  # fmt: skip
def test_shards_of_a_stated_number_are_all_there(end: str, case: str, form: str, tmp_path: Path) -> None:
    names, words = OF_SHARDS[case]
    folder, x = tmp_path / "year=2020" if form == "partition" else tmp_path, matrix("f4")
    (tmp_path / "one").mkdir()
    SHARD_SAVERS[end](tmp_path / "one", x)
    folder.mkdir(exist_ok=True)
    made = next((tmp_path / "one").iterdir())
    paths = [shutil.copy(made, folder / f"{name}.{end}") for name in names]
    shutil.rmtree(tmp_path / "one")
    given: Any = {"glob": str(tmp_path / f"*.{end}"), "list": paths}.get(form, tmp_path)
    if words is None or form == "list":
        assert len(sources.open(given)) == len(names) * len(x)
        return
    with pytest.raises(ValueError, match=rf"{words}.*pass the list of the files"):
        sources.open(given)
    assert len(sources.open(paths[0])) == len(x)


@pytest.mark.parametrize("save", [save_npy, save_parquet])
def test_files_of_a_folder_count_whatever_the_case_of_their_names(tmp_path: Path, save: Callable[..., Any]) -> None:
    x = matrix("f4")
    path = Path(save(tmp_path, x))
    shutil.copy(path, path.with_name("Y" + path.suffix.upper()))
    shutil.copy(path, path.with_name(".hidden" + path.suffix))
    assert sources.open(tmp_path).shape == (2 * len(x), x.shape[1])


def test_chunks_of_several_sizes_are_named_as_what_they_are(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", shape=(10, 4), chunks=(5, 4), dtype="f4")
    document = json.loads((tmp_path / "x.zarr" / "zarr.json").read_text())
    sizes = {"kind": "inline", "chunk_shapes": [[4, 6], [4]]}
    document["chunk_grid"] = {"name": "rectilinear", "configuration": sizes}
    (tmp_path / "x.zarr" / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="has the chunk grid 'rectilinear', with chunks of several sizes; a regular"):
        sources.open(tmp_path / "x.zarr")


def test_broken_hdf5_is_named(tmp_path: Path) -> None:
    path = Path(save_hdf5(tmp_path, matrix("f4")))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(CorruptedChunkError, match=r"x.h5 is not a complete HDF5 file"):
        sources.open(path)


def test_broken_hdf5_chunks_and_changed_shapes_are_named(tmp_path: Path) -> None:
    path = Path(save_hdf5_chunked(tmp_path, matrix("f4")))
    source = sources.row_source(path)
    with h5py.File(path, "r") as file:
        where = file["features"].id.get_chunk_info(1)
    data = bytearray(path.read_bytes())
    data[where.byte_offset : where.byte_offset + 40] = bytes(40)
    path.write_bytes(data)
    assert source.read(0, 8).shape == (8, D)
    with pytest.raises(CorruptedChunkError, match="rows 8:16 of features cannot be decoded"):
        source.read(8, 16)
    save_hdf5_chunked(tmp_path, matrix("f4", (9, D)))
    with pytest.raises(ValueError, match=r"features has shape \(9, 12\) now, but had \(37, 12\) when opened"):
        source.read(0, 3)


def test_parquet_columns_that_are_not_rows_of_numbers_are_named(tmp_path: Path) -> None:
    def write(**columns: Any) -> Path:
        pq.write_table(pa.table(columns), tmp_path / "x.parquet")
        return tmp_path / "x.parquet"

    with pytest.raises(
        ValueError,
        match=r"do not hold numbers: 'b' \(string\).* pass keys='b' if it names the rows; .* columns: a \(int64\), b",
    ):
        sources.open(write(a=[1, 2], b=["x", "y"]))
    np.testing.assert_array_equal(sources.open(write(b=["x", "y"], a=[1, 2]), columns=slice(None)), [[1], [2]])
    with pytest.raises(TypeError, match=r"columns have 2 dtypes, such as a \(int64\), b \(float64\)"):
        sources.open(write(a=[1, 2], b=[1.0, 2.0]))
    pq.write_table(pa.table([[1.0], [2.0], [3.0]], names=["a", "b", "a"]), tmp_path / "twice.parquet")
    with pytest.raises(ValueError, match="2 of its columns have the name 'a', but names in a table must be unique"):
        sources.open(tmp_path / "twice.parquet")
    source = sources.row_source(write(a=[1, 2], b=[None, 3]))
    with pytest.raises(ValueError, match="column 'b' has nulls"):
        source.read(0, 2)
    with pytest.raises(ValueError, match="column 'a' is not a column of lists"):
        sources.open(write(a=[1], b=[[1.0, 2.0]]), member="a")
    with pytest.raises(ValueError, match="2 columns hold lists"):
        sources.open(write(a=[[1.0]], b=[[1.0, 2.0]]))
    with pytest.raises(ValueError, match="has 3 values in 2 rows: lists of one length were expected"):
        sources.open(write(a=[[1.0], [1.0, 2.0]]))
    source = sources.row_source(write(a=[[1.0], [1.0, 2.0, 3.0]]))
    with pytest.raises(ValueError, match="the list of row 1 has 3 values; 1 were expected"):
        source.read(0, 2)
    with pytest.raises(ValueError, match="has nulls"):
        sources.row_source(write(a=[[1.0, None], [2.0, 3.0]]))
    with pytest.raises(TypeError, match=r"column 'a' holds list<.*string"):
        sources.open(write(a=[["x", "y"]]))


def test_broken_chunks_that_xarray_decodes_are_named(tmp_path: Path) -> None:
    numbers, path = np.random.default_rng(0).integers(-9000, 9000, (80, 100), "i2"), tmp_path / "x.nc"
    stored = xr.Dataset({"t": (("n", "c"), numbers, {"scale_factor": 0.01})})
    stored.to_netcdf(path, encoding={"t": {"zlib": True, "chunksizes": (20, 100)}}, engine="netcdf4")
    source = sources.source_of(sources.open(path))
    assert source is not None
    np.testing.assert_allclose(source.read(30, 50, (7, 9)), 0.01 * numbers[30:50, 7:9])
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = bytes(200)
    path.write_bytes(data)
    again = sources.source_of(sources.open(path))
    assert again is not None
    with pytest.raises(CorruptedChunkError, match=r"rows 0:80 of .*x.nc:t cannot be decoded .*HDF error"):
        again.read(0, 80)


def test_broken_parquet_is_named(tmp_path: Path) -> None:
    path = Path(save_parquet(tmp_path, matrix("f4")))
    source = sources.row_source(path)
    data = bytearray(path.read_bytes())
    at = pq.read_metadata(path).row_group(1).column(1).data_page_offset
    data[at : at + 60] = bytes([255]) * 60
    path.write_bytes(data)
    with pytest.raises(CorruptedChunkError, match="row group 1, column 'embedding' cannot be decoded"):
        source.read(12, 15)
    path.write_bytes(data[:100])
    with pytest.raises(CorruptedChunkError, match=r"x.parquet is not a complete Parquet file"):
        sources.open(path)


def test_a_missing_reader_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_hdf5(tmp_path, matrix("f4"))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"is not installed. Run: pip install 'bigpca\[formats\]'"):
        sources.open(path)


def test_parquet_files_that_disagree_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [[1.0, 2.0]]}), tmp_path / "p1.parquet")
    pq.write_table(pa.table({"a": [[1.0, 2.0, 3.0]]}), tmp_path / "p2.parquet")
    with pytest.raises(ValueError, match=r"p2.parquet: 'a' has lists of 3; 2 were expected, as in .*p1"):
        sources.open(tmp_path)
    pq.write_table(pa.table({"a": [[1, 2]]}), tmp_path / "p2.parquet")
    with pytest.raises(TypeError, match=r"p2.parquet: 'a' has dtype <i8; <f8 was expected"):
        sources.open(tmp_path / "p*.parquet")
    pq.write_table(pa.table({"a": [[1.0, 2.0]] * 3}), tmp_path / "p2.parquet")
    source = sources.row_source(tmp_path)
    pq.write_table(pa.table({"a": [[1.0, 2.0]] * 9}), tmp_path / "p2.parquet")
    with pytest.raises(ValueError, match="has 10 rows now, but had 4 when opened"):
        source.read(0, 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("b.safetensors", r"b.safetensors is not a complete safetensors file"),
        ("data-00000.arrow", r"holds data-00000.arrow, which is not read\. .*datasets\.load_from_disk\(folder\)"),
        ("dataset_dict.json", r"holds dataset_dict.json, which is not read\. .*datasets\.load_from_disk\(folder\)"),
        ("b.h5", r"holds b.h5; a folder is read as shards only if .* bp.open\(\[path, ...\]\)"),
    ],
)
def test_a_folder_of_other_shards_is_rejected_with_the_remedy(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ValueError, match=message):
        sources.open(tmp_path)


@pytest.mark.parametrize(
    ("member", "error", "message"),
    [
        (None, ValueError, r"holds 8 arrays with two dimensions or more, so one must be named with member="),
        ("x", MemberError, r"has no array 'x'; it holds layers/33 \(6, 4\), rows"),
        ("labels", ValueError, r"labels has shape \(6,\); rows of features"),
    ],
)
def test_what_a_file_of_torch_does_not_hold_as_rows_is_named(
    member: str | None, error: type[Exception], message: str
) -> None:
    pytest.importorskip("torch")
    with pytest.raises(error, match=message):
        sources.open(Path(__file__).with_name("torch_2_13.pt"), member=member)


def test_a_file_of_torch_needs_torch_or_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.pt").write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"x\.pt was .* Install torch, or convert .* np\.save\('x\.npy'"):
        sources.open(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.to_sparse(), r"tensor 'x' is not stored row by row. Save x\.contiguous\(\), of a dense x"),
        (lambda x: x[:, 1:], r"tensor 'x' is not stored row by row. Save x\.contiguous\(\)"),
        (lambda x: x.to(dtype=x.dtype.to_complex()), r"x.pt: tensor 'x': .*complex64"),
    ],
    ids=["sparse", "columns", "complex"],
)
def test_a_tensor_of_other_numbers_is_named(change: Any, message: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"x": change(torch.eye(3))}, tmp_path / "x.pt")
    with pytest.raises((TypeError, ValueError), match=message):
        sources.open(tmp_path / "x.pt")


def test_broken_safetensors_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for data in (b"x", struct.pack("<Q", 10**9) + b"{}", struct.pack("<Q", 4) + b"nope"):
        path.write_bytes(data)
        with pytest.raises(CorruptedChunkError, match=r"x\.safetensors is not a complete safetensors file"):
            sources.open(path)
    header = json.dumps({"w": {"dtype": "C64", "shape": [1, 2], "data_offsets": [0, 16]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    with pytest.raises(TypeError, match="tensor 'w' has dtype C64, which NumPy does not support"):
        sources.open(path)
