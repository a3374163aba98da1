"""A Zarr array through ZarrReader: equal to NumPy, never zeros for lost chunks, broken chunks named."""

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import zarr
from numcodecs import GZip, get_codec
from obstore.store import MemoryStore
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec

import bigpca as bp
import bigpca.data.sources as sources
from bigpca.data import zarr_arrays
from bigpca.data.stores import verify
from bigpca.data.zarr_arrays import ZarrReader
from bigpca.errors import CorruptedChunkError, MissingChunksError

X = np.random.default_rng(5).normal(size=(23, 11)).astype("f4")


def store(folder: Path, x: np.ndarray = X, name: str = "x.zarr", **options: Any) -> str:
    z = zarr.create_array(folder / name, shape=x.shape, dtype=x.dtype, **{"chunks": (4, 6), **options})
    z[...] = x
    return str(folder / name)


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"zarr_format": 2},
    {"zarr_format": 2, "compressors": GZip()},
    {"shards": (8, 12)},
    {"compressors": None},
    {"compressors": BloscCodec()},
    {"compressors": [ZstdCodec(checksum=True), Crc32cCodec()]},
    {"chunk_key_encoding": {"name": "v2", "separator": "."}},
]
INDICES: list[Any] = [
    slice(None),
    5,
    -1,
    (slice(3, 9), slice(2, 5)),
    (slice(None, None, 3), slice(None, None, -2)),
    (Ellipsis, 4),
    (2, 3),
    (slice(20, 2, -4),),
    (slice(9, 3),),
    ([1, 7, 2], slice(1, 4)),
    (np.arange(23) % 2 == 0,),
]


CODECS: dict[str, tuple[str, list[dict[str, Any]], list[dict[str, Any]]]] = {  # dtype, filters, of bytes
    "adler32": ("<f4", [], [{"id": "adler32"}]),
    "bitround": ("<f4", [{"id": "bitround", "keepbits": 5}], []),
    "blosc": ("<f4", [], [{"id": "blosc"}]),
    "crc32": ("<f4", [], [{"id": "crc32"}, {"id": "lz4"}, {"id": "crc32", "location": "end"}]),
    "crc32c": ("<f4", [], [{"id": "crc32c"}]),
    "fletcher32": ("<f4", [], [{"id": "fletcher32"}]),
    "gzip": ("<f8", [], [{"id": "gzip"}]),
    "lz4": ("<f4", [], [{"id": "lz4"}]),
    "shuffle": ("<f4", [], [{"id": "shuffle", "elementsize": 4}, {"id": "zlib"}]),
    "zlib": ("<f4", [], [{"id": "zlib"}]),
    "zstd": ("<f4", [], [{"id": "zstd"}]),
}  # fmt: skip


def of_version_3(codec: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"numcodecs.{codec['id']}", "configuration": {k: v for k, v in codec.items() if k != "id"}}


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
@pytest.mark.parametrize(
    ("name", "version"),
    [
        *((name, version) for name in CODECS for version in ("v2", "v3")),
        *(("zlib", version) for version in ("shards", "big-endian")),
    ],
)
def test_every_codec_is_undone_as_zarr_does(name: str, version: str, tmp_path: Path) -> None:
    dtype, filters, after = CODECS[name]
    x = (50 * X).astype(dtype)
    if version.startswith("v2"):
        made: dict[str, Any] = {"filters": [*map(get_codec, [*filters, *after[:-1]])], "zarr_format": 2}
        made["compressors"] = get_codec(after[-1]) if after else None
    else:
        made = {"filters": [*map(of_version_3, filters)], "compressors": [*map(of_version_3, after)]}
        made |= {"shards": (8, 12)} if version == "shards" else {}
        made |= {"serializer": BytesCodec(endian="big")} if version == "big-endian" else {}
    path = store(tmp_path, x, **made)
    expected = zarr.open_array(path, mode="r")[...]
    assert np.array_equal(ZarrReader(path)[:], expected)
    assert np.array_equal(ZarrReader(path)[3:9, 2:5], expected[3:9, 2:5])
    assert verify(path).ok


@pytest.mark.parametrize("options", LAYOUTS, ids=range(len(LAYOUTS)))
def test_every_layout_reads_as_numpy_does(options: dict[str, Any], tmp_path: Path) -> None:
    reader = ZarrReader(store(tmp_path, **options))
    assert (reader.shape, reader.dtype, reader.ndim, reader.chunks) == ((23, 11), X.dtype, 2, (4, 6))
    for index in INDICES:
        block = reader[index]
        assert np.array_equal(block, X[index])
        assert isinstance(block, np.ndarray)
        assert block.flags.writeable
        assert block.flags.c_contiguous


def test_big_endian_arrays_come_in_native_byte_order(tmp_path: Path) -> None:
    reader = ZarrReader(store(tmp_path, X.astype(">f4"), zarr_format=2))
    assert reader.dtype == np.dtype("f4")
    assert reader[:].dtype.isnative
    assert np.array_equal(reader[:], X)


def test_any_number_of_dimensions_is_read(tmp_path: Path) -> None:
    x = X.reshape(23, 11, 1)[:, :, [0, 0, 0]]
    reader = ZarrReader(store(tmp_path, x, chunks=(5, 3, 2)))
    assert np.array_equal(reader[2:9, 3, ::2], x[2:9, 3, ::2])
    assert np.array_equal(ZarrReader(store(tmp_path, X[:, 0], "v.zarr", chunks=(4,)))[3:7], X[3:7, 0])


@pytest.mark.parametrize("index", [23, (0, 0, 0), (slice(None), -12), None, [[1]], [23], np.ones(3, bool), "a"])
def test_wrong_indices_are_index_errors(index: Any, tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        ZarrReader(store(tmp_path))[index]


def test_a_reader_pickles_to_under_a_kilobyte_and_is_opened_once_per_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = ZarrReader(store(tmp_path), missing_chunks="fill")
    blob = pickle.dumps(reader)
    assert len(blob) < 1024
    monkeypatch.setattr(zarr, "open_array", None)  # a second opening would fail
    copy = pickle.loads(blob)
    assert copy.missing_chunks == "fill"
    assert np.array_equal(copy[:], X)
    assert copy.files() is reader.files()


def test_a_store_written_anew_is_opened_anew_or_rejected(tmp_path: Path) -> None:
    reader = ZarrReader(store(tmp_path))
    store(tmp_path, X + 1, overwrite=True)
    assert np.array_equal(reader[:], X + 1)
    store(tmp_path, X[:9], overwrite=True)
    with pytest.raises(ValueError, match=r"is not the array that was opened: .*shape \(23, 11\) then, \(9, 11\) now"):
        reader[:3]


def test_metadata_are_looked_at_as_a_store_is_opened_and_for_each_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Mock(wraps=zarr_arrays._metadata_file)
    monkeypatch.setattr(zarr_arrays, "_metadata_file", looks)
    rows = sources.open(store(tmp_path, chunks=X.shape))
    assert looks.call_count == 1
    bp.PCA(2, solver="covariance").fit(rows)
    assert looks.call_count == 2


def test_a_store_without_a_folder_is_named_whole() -> None:
    z = zarr.create_array(zarr.storage.ObjectStore(MemoryStore()), shape=X.shape, chunks=(4, 6), dtype="f4")
    assert ZarrReader(z).label == "memory://"


def test_arrays_in_memory_are_held(tmp_path: Path) -> None:
    z = zarr.create_array(zarr.storage.MemoryStore(), shape=X.shape, chunks=(4, 6), dtype="f4")
    z[...] = X
    reader = ZarrReader(z)
    assert np.array_equal(reader[2:20], X[2:20])
    del z.store._store_dict["c/3/1"]  # type: ignore[attr-defined]
    with pytest.raises(MissingChunksError, match=r"1 of the 12 chunks needed here are not in the store: c/3/1"):
        reader[:]
    assert np.array_equal(reader[:12], X[:12])


@pytest.mark.parametrize(
    ("options", "key", "touched"),
    [({}, "c/2/1", 12), ({"zarr_format": 2}, "2.1", 12), ({"shards": (8, 12)}, "c/1/0", 3)],
    ids=["v3", "v2", "shards"],
)
def test_a_missing_chunk_is_an_error_with_both_causes_and_the_remedy(
    options: dict[str, Any], key: str, touched: int, tmp_path: Path
) -> None:
    path = store(tmp_path, **options)
    os.unlink(f"{path}/{key}")
    reader = ZarrReader(path)
    with pytest.raises(MissingChunksError) as caught:
        reader[:]
    message = str(caught.value)
    assert f"{path}: 1 of the {touched} chunks needed here are not in the store: {key}." in message
    assert "files were lost" in message
    assert "write_empty_chunks=False" in message
    assert 'pass missing_chunks="fill"' in message
    assert np.array_equal(reader[:8], X[:8])  # rows that do not need it are read
    filled = ZarrReader(path, missing_chunks="fill")[:]
    assert np.array_equal(filled == 0, filled != X)


DAMAGES = {
    "truncated": lambda data: data[:-7],
    "halved": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "flipped": lambda data: data[:30] + bytes([data[30] ^ 4]) + data[31:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("compressors", "checksummed"),
    [
        (None, False),
        (ZstdCodec(checksum=True), True),
        (BloscCodec(), False),
        (GzipCodec(), True),
        ([ZstdCodec(), Crc32cCodec()], True),
    ],
    ids=["none", "zstd", "blosc", "gzip", "crc32c"],
)
def test_a_broken_chunk_is_named_with_its_size(
    compressors: Any, checksummed: bool, damage: str, tmp_path: Path
) -> None:
    path = store(tmp_path, compressors=compressors)
    chunk = Path(path, "c/1/1")
    chunk.write_bytes(DAMAGES[damage](chunk.read_bytes()))
    if damage == "flipped" and not checksummed:
        return  # nothing in such a store can tell; `verify` says so
    size = chunk.stat().st_size
    reader = ZarrReader(path)
    with pytest.raises(
        CorruptedChunkError, match=rf"chunk c/1/1 cannot be decoded: its file has {size} bytes, .* 96 b"
    ):
        reader[:]
    assert np.array_equal(reader[8:], X[8:])


def test_a_blosc_chunk_in_a_shard_is_not_read_beyond_its_bytes(tmp_path: Path) -> None:
    path = store(tmp_path, shards=(24, 12), compressors=BloscCodec())
    shard = Path(path, "c/0/0")
    stored, count = bytearray(shard.read_bytes()), 6 * 2
    start, size = np.frombuffer(stored[-16 * count - 4 : -4], "<u8").reshape(-1, 2)[3].tolist()
    stored[start + 12 : start + 16] = (size + 1).to_bytes(4, "little")
    shard.write_bytes(stored)
    with pytest.raises(CorruptedChunkError, match=r"c/0/0 cannot be decoded: .* its Blosc header states more"):
        ZarrReader(path)[:]
    assert verify(path).damaged == ("c/0/0",)


def test_all_broken_chunks_of_a_read_are_listed(tmp_path: Path) -> None:
    path = store(tmp_path, shards=(8, 12))
    for key in ("c/0/0", "c/2/0"):
        Path(path, key).write_bytes(b"abc")
    with pytest.raises(CorruptedChunkError, match=r"chunk c/0/0 cannot be decoded.* Nor can c/2/0\."):
        ZarrReader(path)[:]


def test_errors_of_the_file_system_pass_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ZarrReader(store(tmp_path))
    monkeypatch.setattr("bigpca.data.zarr_arrays.open_regular", Mock(side_effect=OSError(5, "Input/output error")))
    with pytest.raises(OSError, match="Input/output error"):
        reader[:]


def test_a_chunk_in_a_form_that_only_zarr_reads_is_read_by_zarr(tmp_path: Path) -> None:
    path = store(tmp_path, compressors=GzipCodec())
    chunk = Path(path, "c/1/1")
    content = gzip.decompress(chunk.read_bytes())
    chunk.write_bytes(gzip.compress(content[:40]) + gzip.compress(content[40:]))
    assert np.array_equal(ZarrReader(path)[:], X)


def edit(path: str, **changes: Any) -> None:
    document = Path(path, ".zarray") if Path(path, ".zarray").exists() else Path(path, "zarr.json")
    document.write_text(json.dumps(json.loads(document.read_text()) | changes))


@pytest.mark.parametrize("stored", ["<c8", "|S5", "<U3", "<M8[s]", [["a", "<f4"]], "bfloat16"])
def test_v2_dtypes_that_are_not_real_numbers_are_rejected(stored: Any, tmp_path: Path) -> None:
    path = store(tmp_path, zarr_format=2)
    edit(path, dtype=stored)
    with pytest.raises(TypeError, match=r"x.zarr: dtype"):
        sources.open(path)


@pytest.mark.parametrize("stored", ["complex64", "string", "bfloat16", {"name": "struct", "configuration": {}}])
def test_v3_dtypes_that_are_not_real_numbers_are_rejected(stored: Any, tmp_path: Path) -> None:
    path = store(tmp_path)
    edit(path, data_type=stored)
    with pytest.raises(TypeError, match=r"x.zarr: dtype"):
        sources.open(path)
    if stored == "bfloat16":
        with pytest.raises(TypeError, match=r"x.zarr holds bfloat16, which Zarr cannot open. Store float32"):
            sources.open(f"file://{path}")


def test_what_is_not_an_array_is_rejected_in_words(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "g.zarr")
    with pytest.raises(ValueError, match=r"is a Zarr group, not an array. Name the array"):
        ZarrReader(tmp_path / "g.zarr")
    with pytest.raises(FileNotFoundError, match=r"holds no Zarr array: it has neither zarr.json nor .zarray"):
        ZarrReader(tmp_path / "none.zarr")
    with pytest.raises(ValueError, match=r"missing_chunks = 'zero' is unknown. Use 'raise' or 'fill'"):
        ZarrReader(store(tmp_path), missing_chunks="zero")
    with pytest.raises(ValueError, match=r"missing_chunks = 'zero' is unknown. Use 'raise' or 'fill'"):
        sources.open(X, missing_chunks="zero")


@pytest.mark.parametrize("version", [2, 3])
def test_members_of_groups_are_found_or_listed(version: Any, tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g.zarr", zarr_format=version)
    group.create_array("deep/features", data=X)
    group.create_array("labels", data=np.arange(23))
    for source in (tmp_path / "g.zarr", group):
        assert np.array_equal(sources.open(source).compute(scheduler="sync"), X)
        found = sources.row_source(source, member="deep/features")
        assert (found.member, found.path) == ("deep/features", str(tmp_path / "g.zarr"))
        with pytest.raises(KeyError, match=r"no array 'nothing'; it holds .*deep/features \(23, 11\)"):
            sources.open(source, member="nothing")
        with pytest.raises(ValueError, match=r"labels has shape \(23,\); rows of features"):
            sources.open(source, member="labels")
    assert np.array_equal(sources.row_source(tmp_path / "g.zarr/deep/features").read(0, 23), X)
    assert np.array_equal(sources.row_source(group["deep"]).read(0, 23), X)
    group.create_array("more", data=X)
    with pytest.raises(ValueError, match="holds 2 arrays with two dimensions or more"):
        sources.open(tmp_path / "g.zarr")
    for array in (store(tmp_path), zarr.open_array(f"{tmp_path}/x.zarr"), zarr.array(X)):
        with pytest.raises(KeyError, match="is one Zarr array, so it has no member 'a'"):
            sources.open(array, member="a")


def test_urls_are_left_to_zarr(tmp_path: Path) -> None:
    url = "file://" + store(tmp_path)
    source = sources.row_source(url)
    assert (source.format, source.path) == ("zarr", url)
    assert np.array_equal(pickle.loads(pickle.dumps(source)).read(3, 20), X[3:20])


def test_row_chunks_follow_shards_until_these_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store(tmp_path, shards=(8, 12))
    source = sources.row_source(path)
    assert source.row_chunks() == (8, 8, 7)
    assert [key for key, _, _ in source.stamps(7, 9)] == ["c/0/0", "c/1/0"]
    monkeypatch.setattr("bigpca.data.zarr_arrays.WHOLE_SHARD_BYTES", 100)
    assert sources.row_source(path).row_chunks() == (4, 4, 4, 4, 4, 3)


def test_what_is_missing_is_filled_as_a_store_is_opened_and_not_later(tmp_path: Path) -> None:
    path = store(tmp_path)
    os.unlink(f"{path}/c/0/0")
    assert sources.row_source(path).stamps(0, 4)[0] == ("c/0/0", -1, 0)
    assert sources.open(path, missing_chunks="fill").name != sources.open(path).name
    with pytest.raises(ValueError, match=r"the Dask array .* already reads one. Open the store itself: bp.open\(path"):
        sources.open(sources.open(path), missing_chunks="fill")
