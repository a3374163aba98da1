"""Nothing is read whole before its size is looked at: files of gigabytes of nothing, metadata of millions of chunks."""

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numcodecs
import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
import scipy.sparse
import zarr

import bigpca as bp
from bigpca.data import hdf5, sparse, zarr_arrays
from bigpca.data.label_files import read_label_file
from bigpca.data.sources import row_source
from bigpca.errors import CorruptedChunkError, MissingChunksError, ModelFormatError
from bigpca.storage.files import max_encoded
from tests.security.attacks import little_memory

X = np.random.default_rng(0).normal(size=(20, 6)).astype("f4")
HUGE = 8 * 2**30
STORES: dict[str, dict[str, Any]] = {
    "zstd": {"compressors": zarr.codecs.ZstdCodec()},
    "gzip": {"compressors": zarr.codecs.GzipCodec()},
    "blosc": {"compressors": zarr.codecs.BloscCodec()},
    "plain": {"compressors": None},
    "sharded": {"chunks": (5, 6), "shards": (10, 6)},
    "columns": {"chunks": (10, 3)},
    "v2": {"zarr_format": 2},
}


def store(folder: Path, **options: Any) -> Path:
    zarr.create_array(folder / "x.zarr", shape=X.shape, dtype=X.dtype, **({"chunks": (10, 6)} | options))[...] = X
    return folder / "x.zarr"


def grow(path: Path) -> None:
    """Make a file 8 GiB long, of which the disk holds nothing."""
    os.truncate(path, HUGE)


@pytest.mark.parametrize("name", STORES)
def test_a_chunk_file_larger_than_its_chunk_can_be_is_not_read(name: str, tmp_path: Path) -> None:
    path = store(tmp_path, **STORES[name])
    chunk = sorted(
        file for file in path.rglob("*") if file.is_file() and not file.name.startswith((".z", "zarr.json"))
    )[-1]
    grow(chunk)
    with little_memory():
        with pytest.raises(
            CorruptedChunkError, match=r"its file has 8,589,934,592 bytes.*at most .* so it was not read"
        ):
            bp.open(path).compute()
        report = bp.data.verify(path)
    assert len(report.damaged) == 1
    labels = tmp_path / "labels.zarr"
    bp.ingest(X, labels, chunk_rows=10)
    grow(labels / "c" / "1" / "0")
    with little_memory():
        assert bp.data.verify(labels).damaged == ("c/1/0",)  # of a manifest too
        with pytest.raises(CorruptedChunkError):
            read_label_file(str(labels))


@pytest.mark.parametrize("codec", ["zstd", "gzip", "lz4", "snappy", "blosc"])
def test_no_codec_makes_more_of_a_chunk_than_the_limit(codec: str) -> None:
    if codec == "snappy":  # which numcodecs does not have
        encode = partial(pyarrow.compress, codec=codec, asbytes=True)
    else:
        encode = numcodecs.get_codec({"id": codec}).encode
    for nbytes in (4, 1000, 2**20):
        noise = np.random.default_rng(0).integers(0, 256, nbytes, dtype="u1").view("f4")
        assert len(bytes(encode(noise))) <= max_encoded(nbytes)


DOCUMENTS: dict[str, Callable[[Path], None]] = {
    "8 GiB of nothing": grow,
    "a list": lambda path: path.write_text("[1, 2]") and None,
    "null": lambda path: path.write_text("null") and None,
    "nested 200,000 deep": lambda path: path.write_text("[" * 200_000 + "]" * 200_000) and None,
    "nested in attributes": lambda path: (
        path.write_text('{"attributes": ' + "[" * 200_000 + "]" * 200_000 + "}") and None
    ),
    "cut": lambda path: path.write_text(path.read_text()[:40]) and None,
    "not text": lambda path: path.write_bytes(b"\xff\xfe\x00") and None,
    "nothing": lambda path: path.write_bytes(b"") and None,
}


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("document", ["zarr.json", "inner/zarr.json", ".zarray", "inner/.zattrs", "model"])
def test_metadata_are_looked_at_before_they_are_parsed_and_named(document: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    if document == "model":
        bp.PCA(2).fit(X).save(path)
        target = path / "zarr.json"
    elif "inner" in document:
        group = zarr.create_group(path, zarr_format=2 if ".z" in document else 3)
        group.create_array("inner", shape=X.shape, dtype=X.dtype, chunks=(10, 6), attributes={"a": 1})[...] = X
        target = path / document
    else:
        target = store(tmp_path, zarr_format=2 if ".z" in document else 3) / document
    DOCUMENTS[name](target)
    with little_memory():
        if document == "model":
            with pytest.raises(ModelFormatError, match=r"x\.zarr"):
                bp.load(path)
        elif "zattrs" in document and name in ("a list", "null", "cut"):  # versions of Zarr ignore them, or raise
            with contextlib.suppress(CorruptedChunkError):
                np.testing.assert_array_equal(bp.open(path).compute(), X)
        else:
            with pytest.raises((ValueError, FileNotFoundError), match=r"x\.zarr"):
                bp.open(path).compute()


def test_a_model_whose_chunk_is_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    bp.PCA(2).fit(X).save(tmp_path / "m.zarr")
    grow(tmp_path / "m.zarr" / "components" / "c" / "0" / "0")
    with little_memory(), pytest.raises(ModelFormatError, match=r"'components' is missing.* 8,589,934,592 bytes"):
        bp.load(tmp_path / "m.zarr")


def test_a_checkpoint_whose_record_is_of_gigabytes_is_an_error(tmp_path: Path) -> None:
    bp.PCA(2).fit(bp.ingest(X, tmp_path / "x.zarr"), checkpoint=tmp_path / "c")
    (record,) = (tmp_path / "c").glob("*/run.json")
    grow(record)
    with little_memory(), pytest.raises(bp.errors.CheckpointError, match=r"run\.json has 8,589,934,592 bytes"):
        bp.PCA(2).fit(bp.open(tmp_path / "x.zarr"), checkpoint=tmp_path / "c")


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((5 * 10**7, 4), (1, 4)), ((5000, 10**4), (1, 1)), ((10**9, 4), (10, 4)), ((2 * 10**6, 4), (1, 4))],
)
def test_metadata_of_more_chunks_than_can_be_listed_are_rejected(shape: Any, chunks: Any, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", shape=shape, chunks=chunks, dtype="f4")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", shape, "f4", chunks=chunks)
    for path in (tmp_path / "x.zarr", tmp_path / "x.h5"):
        with little_memory(), pytest.raises(ValueError, match=r" chunks.*; at most 10?,000,000 were expected"):
            bp.open(path)


def test_sparse_rows_of_more_chunks_than_can_be_listed_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "NATIVE_BYTES", 16)  # which one row fills, as one of millions of values does
    rows = scipy.sparse.csr_array((np.ones(4), np.arange(4), np.r_[np.zeros(1_500_000, int), 4]), (1_500_000, 4))
    with pytest.raises(ValueError, match=r"1,500,000 chunks; at most 1,000,000 were expected.* densest row"):
        bp.open(rows)


def test_a_plan_of_sparse_rows_does_nothing_for_each_column() -> None:
    rows = scipy.sparse.csr_array((np.ones(4), [0, 5, 7, 10**12 - 1], range(5)), shape=(4, 10**12))
    assert bp.PCA(2, solver="krylov").plan(rows).solver == "krylov"
    with pytest.raises(bp.errors.MemoryBudgetError):
        bp.PCA(2).plan(rows)


def test_a_footer_of_parquet_is_parsed_once_whatever_the_number_of_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table({name: np.arange(40.0) for name in "ab"}), path, row_group_size=1)
    opened, footers = mock.Mock(wraps=parquet.ParquetFile), mock.Mock(wraps=parquet.read_metadata)
    monkeypatch.setattr(parquet, "ParquetFile", opened)
    monkeypatch.setattr(parquet, "read_metadata", footers)
    np.testing.assert_array_equal(bp.open(path), np.repeat(np.arange(40.0), 2).reshape(40, 2))
    assert opened.call_count == 40
    assert footers.call_count == 1
    assert all(call.kwargs["metadata"] is not None for call in opened.call_args_list)


@pytest.mark.parametrize("nested", [True, False], ids=["deep", "wide"])
def test_groups_without_end_are_not_looked_through(
    nested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5, "MAX_NAMES", 20_000)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = X
        group = file
        for i in range(200):
            made = group.create_group(str(i))
            group = made if nested else group
    with pytest.raises(ValueError, match=r"too many or too deeply nested groups .* with member="):
        bp.open(tmp_path / "x.h5")
    assert bp.open(tmp_path / "x.h5", member="x").shape == X.shape


def test_missing_chunks_are_counted_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_arrays, "BATCH", 100)
    zarr.create_array(tmp_path / "x.zarr", shape=(2000, 5000), chunks=(1, 1), dtype="f4")  # 10 million chunks
    with pytest.raises(
        MissingChunksError, match=r"5000 of the 5000 chunks needed here .* c/7/0, c/7/1, .*, c/7/9, \.\.\."
    ):
        row_source(tmp_path / "x.zarr").read(7, 8)
