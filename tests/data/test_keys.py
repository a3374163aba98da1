"""Row keys: read as labels are, checked before any row is read, stored beside the rows, read back from every output."""

from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from obstore.store import MemoryStore
from zarr.storage import ObjectStore

import bigpca as bp
from bigpca.data.dask_arrays import carried, carrying, columns_of
from bigpca.data.keys import MAX_KEY_LENGTH, row_keys, stored_keys
from bigpca.passes.graphs import GraphSource
from tests.estimators.stores import unreadable

NAMES = ["im2.jpg", "im10.jpg", "é", "01", "1"]


def saved_csv(folder: Path) -> str:
    pd.DataFrame({"name": NAMES, "y": range(5)}).to_csv(folder / "labels.csv", index=False)
    return f"{folder}/labels.csv::name"


def saved_npy(folder: Path) -> Path:
    np.save(folder / "keys.npy", np.array(NAMES))
    return folder / "keys.npy"


def saved_zarr(folder: Path) -> Path:
    zarr.create_array(folder / "own.zarr", shape=(5,), dtype=str, chunks=(2,))[...] = np.array(NAMES)
    return folder / "own.zarr"


@pytest.mark.parametrize(
    "given",
    [NAMES, np.array(NAMES), np.array(NAMES, object), pd.Series(NAMES), saved_csv, saved_npy, saved_zarr],
    ids=["list", "array", "objects", "series", "csv", "npy", "zarr"],
)
def test_keys_are_read_from_anything_that_labels_are_read_from(given: Any, tmp_path: Path) -> None:
    keys = row_keys(given(tmp_path) if callable(given) else given, 5)
    assert keys.tolist() == NAMES
    assert keys.dtype.kind == "U"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (["a", "b", "a", "c", "b"], ValueError, r"4 of 5 rows share their key .*: 'a', 'b' \(rows 0, 1, 2, 4\)"),
        (["a", None, "b", "", "c"], ValueError, r"2 of 5 rows have no key \(rows 1, 3\)"),
        ([None] * 5, ValueError, "5 of 5 rows have no key"),
        (["a", "b"], ValueError, "there are 2 keys for 5 rows"),
        ([0.5, 1, 2, 3, 4], TypeError, "keys have dtype float64; strings or integers"),
        ([True, False, True, False, True], TypeError, "keys have dtype bool"),
        (np.ones((5, 2)), ValueError, "there are 5 keys in 2 columns for 5 rows"),
        (["a" * (MAX_KEY_LENGTH + 1), *"bcde"], ValueError, r"1 of 5 keys have more than 1,024 .* \(row 0\)"),
    ],
)
def test_keys_that_do_not_name_each_row_once_are_rejected_before_a_read(
    given: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    rows = unreadable(5, 2)
    model = bp.PCA(1).fit(np.eye(2))
    for call in (lambda: model.transform(rows, out=tmp_path / "s.zarr", keys=given),
                 lambda: bp.ingest(rows, tmp_path / "s.zarr", keys=given)):  # fmt: skip
        with pytest.raises(error, match=message):
            call()
    assert list(tmp_path.iterdir()) == []


def kept_by(process: int, folder: Path, keys: list[str]) -> Path:
    """Return the rows that one of several processes wrote."""
    with bp.FeatureWriter(folder / f"rank_{process}.zarr") as writer:
        writer.write(np.random.default_rng(process).standard_normal((40, 3)), keys=keys)
    return folder / f"rank_{process}.zarr"


def test_rows_of_several_stores_keep_their_keys(tmp_path: Path) -> None:
    names = [f"im{i}" for i in range(120)]
    paths = [kept_by(i, tmp_path, names[first : first + 40]) for i, first in enumerate((0, 35, 80))]  # 35 to 39 twice
    own = np.array([*names[:40], *names[35:75], *names[80:]])
    X, joined, apart = bp.open(paths), da.concatenate([bp.open(one) for one in paths]), paths[::2]
    chosen = np.array([100, 3, 36, 41])
    for rows, expected in (
        (X, own), (joined, own), (X[::-3], own[::-3]), (X[chosen].astype("f4"), own[chosen]),
        (bp.open(paths, columns=[2, 0]), own), (da.concatenate([X[50:], bp.open(paths[0])]), [*own[50:], *own[:40]]),
    ):  # fmt: skip
        np.testing.assert_array_equal(stored_keys(rows), expected)
    model, y = bp.PCA(1).fit(bp.open(apart)), pd.Series(range(120), names)[::-1] % 2
    for rows in (apart, X[:40], bp.open(paths[1])):  # without repeats: no warning, and keys in outputs
        bp.PCA(1).fit(rows)
        model.transform(rows, out=tmp_path / "s.zarr", overwrite=True)
        assert len(stored_keys(tmp_path / "s.zarr")) in (80, 40)  # type: ignore[arg-type]
    first = np.sort(np.unique(own, return_index=True)[1])
    assert bp.SupervisedPCA(1).fit(X[first], y).n_samples_ == 115
    for rows in (paths, joined, X[30:50], X[chosen]):
        with pytest.raises(ValueError, match=r"rows share their key .* Keys must be distinct"):
            model.transform(rows, out=tmp_path / "t.zarr")
        with pytest.raises(ValueError, match=r"rows share their key .* If they are in the order of the rows, declare"):
            bp.SupervisedPCA(1).fit(rows, y)


def test_keys_without_an_output_are_rejected() -> None:
    with pytest.raises(ValueError, match="requires out"):
        bp.PCA(1).fit(np.eye(3)).transform(np.eye(3), keys=["a", "b", "c"])


def test_keys_come_back_from_every_output_and_follow_a_store_that_has_them(tmp_path: Path) -> None:
    X = np.arange(10.0).reshape(5, 2) ** 2
    rows = bp.ingest(X, tmp_path / "rows.zarr", keys=NAMES, chunk_rows=2)
    model = bp.PCA(1).fit(rows)
    for name in ("scores.zarr", "scores.parquet"):
        model.transform(rows, out=tmp_path / name)
    with pytest.warns(
        UserWarning, match=r"the rows have keys, for which .*scores\.npy has no room: .* by position only"
    ):
        model.transform(rows, out=tmp_path / "scores.npy")
    assert np.load(tmp_path / "scores.npy").shape == (5, 1)
    assert stored_keys(tmp_path / "scores.npy") is None
    with pytest.raises(ValueError, match=r"keys were given, but .*y\.npy has no room for them\. Write \.zarr or"):
        model.transform(X, out=tmp_path / "y.npy", keys=NAMES)
    model.transform(X, out=tmp_path / "scores.zarr", keys=np.arange(5), overwrite=True)
    expected = {"rows.zarr": NAMES, "scores.zarr": list("01234"), "scores.parquet": NAMES}
    for name, keys in expected.items():
        assert np.array_equal(np.array(stored_keys(tmp_path / name)), keys), name
    assert zarr.open_array(tmp_path / "rows.zarr" / "keys", mode="r")[...].tolist() == NAMES, "by Zarr alone"
    assert np.array_equal(np.array(stored_keys(rows)), NAMES)
    store, below = MemoryStore(), bp.ObjectStore(MemoryStore()).at("rows.zarr")
    lazily = bp.ingest(X, below, keys=NAMES)
    bp.ingest(X, store, keys=NAMES)
    for given in (lazily, below, store, ObjectStore(store), bp.open(store)[::1]):
        assert np.array_equal(np.array(stored_keys(given)), NAMES)
        assert bp.data.by_key(range(5), given, NAMES[::-1]).tolist() == [4, 3, 2, 1, 0]
    assert row_keys(bp.ObjectStore(store).at("keys")).tolist() == NAMES
    for checked in (tmp_path / "rows.zarr", store, ObjectStore(store), below):
        assert bp.data.verify(checked).ok


def test_a_store_without_keys_has_none(tmp_path: Path) -> None:
    bp.ingest(np.eye(3), tmp_path / "rows.zarr")
    np.save(tmp_path / "rows.npy", np.eye(3))
    pq.write_table(pa.table({"key": ["a", "a"], "x": [1.0, 2.0]}), tmp_path / "others.parquet")
    bp.PCA(1).fit(np.eye(3)).save(tmp_path / "model.zarr")
    group = zarr.create_group(tmp_path / "group.zarr")
    group.create_array("keys", shape=(3,), dtype=str)
    for name in ("rows.zarr", "rows.npy", "others.parquet", "model.zarr", "group.zarr", "absent.zarr"):
        assert stored_keys(tmp_path / name) is None, name
    rows = bp.open(tmp_path / "rows.zarr")
    assert stored_keys(rows) is None
    assert stored_keys(rows[:2]) is None
    assert stored_keys(np.eye(3)) is None
    held = zarr.create_array(zarr.storage.MemoryStore(), shape=(3, 3), dtype="f4")
    assert stored_keys(held) is stored_keys(bp.open(held)) is None


def test_a_path_has_the_keys_that_it_has_when_it_is_opened(tmp_path: Path) -> None:
    pd.DataFrame(np.eye(5), NAMES, list("vwxyz")).to_parquet(tmp_path / "rows.parquet")
    for rows in (tmp_path / "rows.parquet", bp.open(tmp_path / "rows.parquet")):
        keys = stored_keys(rows)
        assert keys is not None
        assert keys.tolist() == NAMES


def test_names_of_rows_do_not_travel_with_blocks() -> None:
    index = pd.Index([f"row {i:090}" for i in range(1000)], name="key")
    X = carrying(da.from_array(np.zeros((1000, 2)), chunks=(10, 2)) + 1, index=index)
    for rows in (X, X[5:500], columns_of(X, np.array([1])), columns_of(X, np.array([0]))[::2] * 2):
        assert carried(X).index is index
        (optimized,) = dask.optimize(rows.blocks[0])
        reader = GraphSource(rows).cut(0, 10)[0]
        for sent in (optimized.__dask_graph__(), reader):
            assert b"row 000" not in cloudpickle.dumps(sent)
    assert b"row 000" in cloudpickle.dumps(X)
