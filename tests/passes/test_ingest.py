"""Ingest: one Zarr array of the same values whatever the source, with every chunk written; a full disk loses
nothing.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import zarr

import bigpca as bp
from tests.passes.kit import normal, write_store


def test_a_folder_of_float16_shards_becomes_one_array_of_the_same_values_and_dtype(tmp_path: Path) -> None:
    X = normal(70, 6).astype("f2")
    (tmp_path / "shards").mkdir()
    for i, start in enumerate(range(0, 70, 7)):
        np.save(tmp_path / "shards" / f"part_{i}.npy", X[start : start + 7])
    found = bp.ingest(tmp_path / "shards", tmp_path / "all.zarr", chunk_rows=16)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found.compute(), X)
    z = zarr.open_array(tmp_path / "all.zarr", mode="r")
    assert (z.chunks, np.isnan(z.fill_value)) == ((16, 6), True)


@pytest.mark.parametrize("dtype", ["f4", "u1", "i8"])
def test_chunks_of_zeros_are_written_so_that_a_lost_one_is_seen(dtype: str, tmp_path: Path) -> None:
    X = np.zeros((100, 4), dtype)
    bp.ingest(X, tmp_path / "z.zarr", chunk_rows=10)
    assert len(list((tmp_path / "z.zarr" / "c").glob("*/0"))) == 10
    os.remove(tmp_path / "z.zarr" / "c" / "3" / "0")
    with pytest.raises(bp.errors.MissingChunksError, match="c/3/0"):
        bp.open(tmp_path / "z.zarr").compute(scheduler="sync")


def test_ingested_dtype_can_be_chosen(tmp_path: Path) -> None:
    X = normal(30, 4)
    assert bp.ingest(X, tmp_path / "a.zarr", dtype="f2").dtype == np.float16
    with pytest.raises(TypeError, match="dtype complex64 cannot be used"):
        bp.ingest(X, tmp_path / "b.zarr", dtype="c8")


@pytest.mark.parametrize(
    ("least", "native", "rows"),
    [(1, 1000, 40), (1, 10, 40), (1, 7, 42), (1, 47, 46), (100, 1000, 100), (100, 30, 90), (5000, 1000, 2000)],
)
def test_a_store_has_64_chunks_of_4_mib_or_more_which_are_whole_chunks_or_parts_of_them(
    least: int, native: int, rows: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bigpca.data.ingest.MIN_GROUP_BYTES", least * 16)
    monkeypatch.setattr("bigpca.data.ingest.SLAB_BYTES", 2000 * 16)
    X = normal(3000, 4)
    write_store(tmp_path / "x.zarr", X, (native, 4))
    found = bp.ingest(tmp_path / "x.zarr", tmp_path / "a.zarr")
    np.testing.assert_array_equal(found.compute(), X)
    assert zarr.open_array(tmp_path / "a.zarr", mode="r").chunks == (rows, 4)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_nothing_to_ingest_is_rejected(shape: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the source has shape .*: at least one row and one column were expected"):
        bp.ingest(np.zeros(shape), tmp_path / "a.zarr")


def test_nan_in_the_source_is_copied_as_it_is(tmp_path: Path) -> None:
    X = normal(30, 4)
    X[3, 2] = np.nan
    np.testing.assert_array_equal(bp.ingest(X, tmp_path / "a.zarr").compute(), X)
