"""Every format gives the rows that NumPy has."""

import json
import mmap
import pickle
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr

import bigpca as bp
import bigpca.data.sources as sources
from bigpca.data.checks import MemberError
from bigpca.data.flat_files import shard_paths
from bigpca.data.keys import stored_keys
from tests.data.savers import (
    FLATTENING,
    SAVERS,
    D,
    N,
    matrix,
    open_zarr_in_memory,
    save_hdf5,
    save_memmap,
    save_npy,
    save_numpy,
    save_parquet_of_pandas,
    save_shards,
    save_zarr,
    save_zarr_columns,
)

TORCH = Path(__file__).with_name("torch_2_13.pt")  # by torch 2.13
X24 = np.arange(24.0).reshape(6, 4)


@pytest.mark.parametrize(
    ("save", "dtype"),
    [*((save, "f4") for save in SAVERS), *((save, "u1") for save in SAVERS),
     *((SAVERS[0], dtype) for dtype in ("f2", "f8", "i8", "?"))],
)  # fmt: skip
def test_every_format_gives_the_rows_that_were_stored(
    save: Any, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = matrix(dtype)
    saved = save(tmp_path, x)
    monkeypatch.setattr(mmap, "mmap", None)  # a process dies if another one truncates what it has mapped
    monkeypatch.setattr(pa, "memory_map", None)
    X = sources.open(saved)
    source = sources.source_of(X)
    assert source is not None
    assert (X.shape, X.dtype, X.numblocks[1]) == (x.shape, x.dtype, 1)
    assert np.array_equal(X.compute(scheduler="sync"), x)
    assert np.array_equal(X[3:9, ::-2].compute(scheduler="sync"), x[3:9, ::-2])
    assert sum(source.row_chunks()) == N
    copy = pickle.loads(pickle.dumps(source))
    for start, stop in [(0, N), (0, 1), (4, 23), (36, 37), (7, 7)]:
        for columns in [slice(0, x.shape[1]), slice(2, 7), slice(1, None, 3), slice(4, 4)]:
            whole = columns.step is None  # a read takes a range, Dask any slice
            rows = copy.read(start, stop, (columns.start, columns.stop)) if whole else copy[start:stop, columns]
            assert np.array_equal(rows, x[start:stop, columns])
            assert rows.dtype == x.dtype
            assert rows.dtype.isnative
            assert rows.flags.c_contiguous
            rows[...] = 0  # the caller owns it: the next reads must not see this
    assert np.array_equal(source.read(0, N), x)


@pytest.mark.parametrize("save", FLATTENING, ids=lambda save: save.__name__)
def test_feature_maps_are_flattened_row_by_row(save: Any, tmp_path: Path) -> None:
    x = matrix("f4", (N, 3, 2, 5))
    source = sources.row_source(save(tmp_path, x))
    assert source.shape == (N, 30)
    assert source.array_shape == x.shape
    assert source.column_chunk == 30
    assert np.array_equal(source.read(5, 30, (4, 20)), x.reshape(N, -1)[5:30, 4:20])


@pytest.mark.parametrize(
    ("member", "dtype", "expected"),
    [
        ("layers/33", "f4", X24),  # bfloat16
        ("rows", "f4", X24[2:5]),
        ("turned", "f4", X24.T),
        ("half", "f2", X24),
        ("u2", "u2", X24),
        ("weight", "f8", X24),
    ],
)
def test_tensors_of_a_file_that_torch_wrote_are_read_as_numpy_has_them(member: str, dtype: str, expected: Any) -> None:
    pytest.importorskip("torch")
    X = sources.open(TORCH, member=member)
    assert X.dtype == dtype
    assert np.array_equal(X.compute(scheduler="sync"), expected)


@pytest.mark.parametrize("save", SAVERS, ids=lambda save: save.__name__)
def test_a_source_pickles_to_under_two_kilobytes_and_describes_itself_in_json(save: Any, tmp_path: Path) -> None:
    given = save(tmp_path, matrix("f4"))
    source = sources.row_source(given)
    if save not in (save_numpy, open_zarr_in_memory):
        assert len(pickle.dumps(source)) < 2048
    assert json.loads(json.dumps(source.describe())) == sources.row_source(given).describe()
    stamps = source.stamps(3, 9)
    assert stamps
    assert all(isinstance(key, str) and size > 0 and isinstance(changed, int) for key, size, changed in stamps)


def test_shards_are_joined_in_natural_order_and_chunks_never_cross_them(tmp_path: Path) -> None:
    x = matrix("f4")
    save_shards(tmp_path, x)
    assert [Path(p).name for p in shard_paths(str(tmp_path))][:3] == ["img_0.npy", "img_1.npy", "img_2.npy"]
    assert Path(shard_paths(str(tmp_path))[-1]).name == "img_11.npy"
    source = sources.row_source(tmp_path)
    assert source.row_chunks() == tuple(len(rows) for rows in np.array_split(x, 12))
    assert [Path(key).name for key, _, _ in source.stamps(3, 5)] == ["img_0.npy", "img_1.npy"]


def test_dask_chunks_are_whole_native_chunks_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigpca.data.dask_arrays.DASK_CHUNK_BYTES", 11 * D * 4)
    assert sources.open(save_zarr(tmp_path, matrix("f4"))).chunks == ((10, 10, 10, 7), (D,))


def test_the_width_of_column_chunks_is_known(tmp_path: Path) -> None:
    assert sources.row_source(save_zarr_columns(tmp_path, matrix("f4"))).column_chunk == 4
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("x", data=matrix("f4"), chunks=(8, 3))
        assert sources.row_source(file["x"]).column_chunk == 3


def test_no_rows_are_allowed(tmp_path: Path) -> None:
    for given in (np.zeros((0, 5), "f4"), save_npy(tmp_path, np.zeros((0, 5), "f4"))):
        X = sources.open(given)
        assert X.shape == (0, 5)
        assert X.compute(scheduler="sync").shape == (0, 5)


def test_xarray_keeps_its_rows_and_h5py_datasets_are_opened_from_their_file(tmp_path: Path) -> None:
    x = matrix("f4", (N, 3, 4))
    labelled = sources.open(xr.DataArray(x, dims=("time", "y", "x")))
    assert np.array_equal(labelled.compute(scheduler="sync"), x.reshape(N, -1))
    with h5py.File(save_hdf5(tmp_path, x), "r") as file:
        source = sources.row_source(file["group/features"])
    assert (source.format, source.member) == ("hdf5", "group/features")
    assert np.array_equal(source.read(0, N), x.reshape(N, -1))


def test_a_view_of_a_memory_map_is_taken_as_it_lies(tmp_path: Path) -> None:
    x = matrix("f4")
    mapped = save_memmap(tmp_path, x)
    assert sources.row_source(mapped).format == "raw"
    for view, expected in [(mapped[3:9], x[3:9]), (mapped.T, x.T), (mapped[:, ::2], x[:, ::2])]:
        source = sources.row_source(view)
        assert np.array_equal(source.read(0, len(expected)), expected)


@pytest.mark.parametrize("columns", [(0, 8), (1, 4)])
def test_bfloat16_is_read_exactly_where_it_is_known(columns: tuple[int, int], tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    small = np.resize(np.arange(65536, dtype="u2")[::257].view(ml_dtypes.bfloat16), (32, 8))  # with NaN and infinities
    places: list[Any] = [small, *(tmp_path / name for name in ("x.safetensors", "x.npy", "columns.npy", "[12].safe*"))]
    save_file({"features": small}, places[1])
    np.save(places[2], small)
    np.save(places[3], np.asfortranarray(small))
    save_file({"features": small[:9]}, tmp_path / "1.safetensors")
    save_file({"features": small[9:]}, tmp_path / "2.safetensors")
    for place in places:
        source = sources.row_source(place)
        assert source.dtype == np.float32
        assert np.array_equal(source.read(2, 30, columns), small[2:30, slice(*columns)].astype("f4"), equal_nan=True)
        assert np.array_equal(source.read(0, 32), small.astype("f4"), equal_nan=True)
    np.save(tmp_path / "8.npy", small.astype(ml_dtypes.float8_e4m3fn))
    with pytest.raises(TypeError, match="convert float8 to float32"):
        sources.row_source(tmp_path / "8.npy")


def test_columns_of_the_other_byte_order_are_numbers() -> None:
    pd = pytest.importorskip("pandas")
    x = matrix("f4")
    frame = pd.DataFrame({"a": x[:, 0].astype(">f8"), "b": x[:, 1].astype(">i2"), "c": x[:, 2]})
    found = sources.row_source(frame).read(0, N)
    assert np.array_equal(found, np.c_[x[:, 0].astype("f8"), x[:, 1].astype("i2"), x[:, 2]])


def test_columns_of_tables_are_labels_and_keys(tmp_path: Path) -> None:
    x = matrix("f4")
    rows = sources.open(save_parquet_of_pandas(tmp_path, x))
    assert stored_keys(rows[[3, 1]]).tolist() == ["row 3", "row 1"]
    pq.write_table(pa.table({"id": [str(one) for one in x[:, 0]], "e": list(x)}), tmp_path / "named.parquet")
    rows = sources.open(tmp_path / "named.parquet", keys="id")
    assert stored_keys(rows).tolist() == [str(one) for one in x[:, 0]]
    with pytest.raises(ValueError, match=r"keys = 'id' names a column of Parquet, but .*x.npy is not one"):
        sources.open(save_npy(tmp_path, x), keys="id")
    with pytest.raises(ValueError, match=r"keys = 'id' names a column of Parquet, .* X.set_index\('id'\)"):
        sources.open(x, keys="id")
    with pytest.raises(MemberError, match=r"has no column 'ID', which keys= names.* id \(string\), e"):
        sources.open(tmp_path / "named.parquet", keys="ID")


@pytest.mark.parametrize("added", [1.0, 1, "text"])
def test_a_new_column_does_not_stop_a_command_that_names_its_columns(added: Any, tmp_path: Path) -> None:
    frame, old, new = pd.DataFrame(matrix("f8")[:, :4], columns=list("abcd")), *(tmp_path / f"{i}.pq" for i in range(2))
    frame.to_parquet(old)
    model = bp.PCA(2).fit(bp.open(old, columns=["c", "a"]))
    frame.assign(e=added)[list("ebadc")].to_parquet(new)
    X = bp.open(new, columns=["c", "a"])
    np.testing.assert_array_equal(X, frame[["c", "a"]])
    np.testing.assert_array_equal(model.transform(X), model.transform(bp.open(old, columns=["c", "a"])))
    np.testing.assert_array_equal(bp.open(tmp_path, columns=["c", "a"]), pd.concat([frame, frame])[["c", "a"]])
    with pytest.raises(ValueError, match=r"differ from the 4 of|these columns of .* do not hold numbers"):
        bp.open(tmp_path)
    frame[list("bad")].to_parquet(new)
    with pytest.raises(ValueError, match="3 columns whose names, types or order differ from the 4 of"):
        bp.open(tmp_path, columns=["c", "a"])


TENSORS = matrix("f4", (30, 6, 4))
FLAT = TENSORS.reshape(30, -1)
ABSENT = pa.array([None if i in (0, 7) else row for i, row in enumerate(FLAT.tolist())], pa.list_(pa.float32()))
TURNED = pa.fixed_shape_tensor(pa.float32(), (4, 6), permutation=[1, 0])
OF_LISTS: dict[str, tuple[Any, bool]] = {  # a column, and whether its type has the shape of a row
    "fixed lists of fixed lists": (pa.FixedSizeListArray.from_arrays(
        pa.FixedSizeListArray.from_arrays(pa.array(TENSORS.ravel()), 4), 6), True),
    "a tensor": (pa.FixedShapeTensorArray.from_numpy_ndarray(TENSORS), True),
    "a tensor stored by columns": (pa.ExtensionArray.from_storage(
        TURNED, pa.FixedSizeListArray.from_arrays(pa.array(TENSORS.transpose(0, 2, 1).ravel()), 24)), True),
    "lists": (pa.array(FLAT.tolist(), pa.list_(pa.float32())), False),
    "lists, some missing": (ABSENT, False),
    "fixed lists, some missing": (ABSENT.cast(pa.list_(pa.float32(), 24)), False),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_LISTS)
@pytest.mark.parametrize("form", ["parquet", "table"])
def test_columns_of_lists_of_every_type_are_rows_and_null_lists_are_missing(
    form: str, name: str, tmp_path: Path
) -> None:
    column, shaped = OF_LISTS[name]
    table = pa.table({"layer": pa.array([[1.0]] * 30), "layer.0": column})  # names with dots, one of which begins so
    source: Any = table
    if form == "parquet":
        pq.write_table(table, source := tmp_path / "x.parquet", row_group_size=10)
    expected = FLAT.copy()
    expected[[0, 7]] = np.nan if "missing" in name else expected[[0, 7]]
    rows = bp.open(source, member="layer.0")
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(rows[7], expected[7])
    if shaped:
        tokens = bp.open(source, member="layer.0", pattern="n t d -> (n t) d")
        np.testing.assert_array_equal(tokens, TENSORS.reshape(-1, 4))
    if "missing" in name:
        assert bp.PCA(2, nan_policy="omit").fit(rows).n_omitted_ == 2
