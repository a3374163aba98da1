"""Data files are not trusted: no code of theirs runs, and no memory is asked for that their bytes cannot fill."""

import gzip
import json
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import google_crc32c
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from numcodecs import LZ4, Blosc, Zstd

import bigpca as bp
from bigpca.data.label_files import read_label_file
from bigpca.data.sources import row_source
from bigpca.data.zarr_arrays import ZarrReader
from bigpca.errors import CorruptedChunkError, MemoryBudgetError
from tests.security.attacks import BOMB, Explosive, little_memory, npy_header

X = np.random.default_rng(0).normal(size=(20, 6)).astype("f4")


def store(folder: Path, **options: Any) -> Path:
    options = {"chunks": (10, 6), **options}
    array = zarr.create_array(folder / "x.zarr", shape=X.shape, dtype=X.dtype, **options)
    array[...] = X
    return folder / "x.zarr"


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = path / ".zarray" if (path / ".zarray").exists() else path / "zarr.json"
    content = json.loads(document.read_text())
    change(content)
    document.write_text(json.dumps(content))


def plant(path: Path) -> None:
    """Put a pickle that goes off in the place of every chunk."""
    for chunk in [p for p in path.rglob("*") if p.is_file() and not p.name.startswith((".z", "zarr.json"))]:
        chunk.write_bytes(pickle.dumps(Explosive()))


SHARDING = {
    "name": "sharding_indexed",
    "configuration": {
        "chunk_shape": [10, 6], "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "index_location": "end",
    },
}  # fmt: skip
PLAIN = {"name": "bytes", "configuration": {"endian": "little"}}


def with_index(*codecs: str) -> dict[str, Any]:
    configuration = SHARDING["configuration"] | {"index_codecs": [PLAIN, *({"name": name} for name in codecs)]}
    return {"codecs": [SHARDING | {"configuration": configuration}]}


def nested() -> dict[str, Any]:
    configuration = SHARDING["configuration"] | {"codecs": [SHARDING]}
    return {"codecs": [SHARDING | {"configuration": configuration}]}


V2 = {
    "pickle filter": ({"filters": [{"id": "pickle", "protocol": 5}]}, "filter 'pickle'"),
    "pickle compressor": ({"compressor": {"id": "pickle"}}, "filter 'pickle'"),
    "unknown": ({"compressor": {"id": "evil"}}, "filter 'evil'"),
    "objects by strings": ({"filters": [{"id": "vlen-utf8"}, {"id": "pickle"}]}, "filter 'vlen-utf8'"),
    "json": ({"filters": [{"id": "json2"}]}, "filter 'json2'"),
    "two compressors": ({"filters": [{"id": "zlib"}], "compressor": {"id": "gzip"}}, "zlib, gzip inside one another"),
    "by columns": ({"order": "F"}, r"filter 'order F'.* dask\.array\.from_zarr\(path\)\.to_zarr\('rows\.zarr'\)"),
    "numbers that are computed": ({"filters": [{"id": "delta", "dtype": "<f4"}]}, "filter 'delta'"),
    "a compressor of unknown size": ({"compressor": {"id": "zfpy"}}, "filter 'zfpy'"),
}
V3 = {
    "pickle": ({"codecs": [PLAIN, {"name": "numcodecs.pickle"}]}, r"filter 'numcodecs\.pickle'"),
    "unknown": ({"codecs": [PLAIN, {"name": "evil"}]}, "filter 'evil'"),
    "transposed": (
        {"codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}}, PLAIN]},
        "filter 'transpose'",
    ),
    "pickle in a shard's index": (with_index("numcodecs.pickle"), "numcodecs.pickle of a shard's index"),
    "compressed index": (with_index("gzip"), "gzip of a shard's index"),
    "two compressors": ({"codecs": [PLAIN, {"name": "zstd"}, {"name": "gzip"}]}, "zstd, gzip inside one another"),
    "shards in shards": (nested(), "shards inside one another"),
}


@pytest.mark.parametrize(("version", "name"), [*((2, name) for name in V2), *((3, name) for name in V3)])
def test_codecs_that_are_not_on_the_list_are_rejected_before_the_first_chunk(
    version: Any, name: str, tmp_path: Path
) -> None:
    changes, message = (V2 if version == 2 else V3)[name]
    path = store(tmp_path, zarr_format=version)
    edit(path, lambda content: content.update(changes))
    plant(path)
    with pytest.raises(ValueError, match=message):
        bp.open(path)


@pytest.mark.parametrize("version", [2, 3])
def test_object_dtypes_are_rejected_before_the_first_chunk(version: Any, tmp_path: Path) -> None:
    path = store(tmp_path, zarr_format=version)
    edit(
        path,
        lambda content: content.update({"dtype": "|O"} if version == 2 else {"data_type": "variable_length_bytes"}),
    )
    plant(path)
    with pytest.raises(TypeError, match=r"x\.zarr: dtype"):
        bp.open(path)


def test_a_zarr_array_in_a_graph_is_checked_too(tmp_path: Path) -> None:
    path = store(tmp_path, zarr_format=2)
    array = zarr.open_array(path, mode="r")
    edit(path, lambda content: content.update(filters=[{"id": "pickle", "protocol": 5}]))
    with pytest.raises(ValueError, match="filter 'pickle'"):
        bp.PCA(2).fit(da.from_array(array) * 2)


GRIDS: dict[str, tuple[dict[str, Any], str]] = {
    "rows without end": (
        {"shape": [10**15, 6]},
        "600,000,000,000,000 bytes|chunks; at most|in 100,000,000,000,000 chunks",
    ),
    "columns without end": ({"shape": [20, 10**18], "chunks": [10, 6]}, "chunks of .*; at most 10,000,000"),
    "a chunk of 240 GB": ({"chunks": [10**10, 6]}, r"240,000,000,000 bytes, but at most 480 of them"),
    "negative": ({"shape": [-1, 6]}, "integers, equally many"),
    "no chunk": ({"chunks": [0, 6]}, "chunks of at least 1"),
    "not numbers": ({"shape": ["9", 6]}, "integers, equally many"),
    "too few": ({"chunks": [10]}, "equally many of both"),
    "null": ({"chunks": None}, "integers, equally many"),
}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", GRIDS)
def test_false_shapes_and_chunks_are_rejected_before_memory_is_asked_for(
    name: str, version: Any, tmp_path: Path
) -> None:
    changes, message = GRIDS[name]
    path = store(tmp_path, zarr_format=version)

    def change(content: dict[str, Any]) -> None:
        content.update({"shape": changes.get("shape", content["shape"])})
        if "chunks" in changes and version == 2:
            content["chunks"] = changes["chunks"]
        elif "chunks" in changes:
            content["chunk_grid"]["configuration"]["chunk_shape"] = changes["chunks"]

    edit(path, change)
    with little_memory(), pytest.raises(ValueError, match=message):
        bp.open(path)


def test_a_shard_far_larger_than_its_array_is_rejected(tmp_path: Path) -> None:
    path = store(tmp_path, chunks=(5, 6), shards=(10, 6))
    edit(path, lambda content: content["chunk_grid"]["configuration"].update(chunk_shape=[10**9, 6]))
    with little_memory(), pytest.raises(ValueError, match="24,000,000,000 bytes, but at most 480 of them"):
        bp.open(path)


def test_rows_that_no_list_can_hold_are_rejected_in_every_format(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:  # nothing is stored: 3 KiB
        file.create_dataset("x", (10**12, 4), "f4", chunks=(100, 4))
    with (
        little_memory(),
        pytest.raises(ValueError, match=r"shape \(1000000000000, 4\) in 10,000,000,000 chunks of \(100, 4\); at most"),
    ):
        bp.open(tmp_path / "x.h5")
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file.create_dataset("y", (100, 4), "f4", chunks=(10**8, 4), maxshape=(None, 4))
    with pytest.raises(ValueError, match=r"a chunk of .*y decodes to 1,600,000,000 bytes"):
        bp.open(tmp_path / "y.h5")


def test_large_chunks_inside_the_array_are_rejected_by_the_plan(tmp_path: Path) -> None:
    path = store(tmp_path)

    def change(content: dict[str, Any]) -> None:
        content["shape"] = [10**10, 6]
        content["chunk_grid"]["configuration"]["chunk_shape"] = [10**9, 6]

    edit(path, change)
    with little_memory(), pytest.raises(MemoryBudgetError, match=r"needs .* per process"):
        bp.PCA(2, solver="covariance", memory_limit="2 GiB").fit(bp.open(path))
    pq.write_table(
        pa.table({"v": pa.FixedSizeListArray.from_arrays(np.zeros(4 * 10**6, "f4"), 4)}), tmp_path / "x.parquet"
    )
    assert (tmp_path / "x.parquet").stat().st_size < 100_000  # one row group of 16 MB
    with little_memory(), pytest.raises(MemoryBudgetError, match=r"needs .* per process"):
        bp.PCA(2, solver="covariance", memory_limit="300 MiB").fit(bp.open(tmp_path / "x.parquet"))


def zstd_of_unknown_size(content: bytes) -> bytes:
    """A zstd frame of run-length blocks that does not state its size (RFC 8878, section 3.1.1)."""
    count = len(content) // 2**17
    blocks = b"".join(((2**17 << 3) | 2 | (i == count - 1)).to_bytes(3, "little") + b"\0" for i in range(count))
    return b"\x28\xb5\x2f\xfd" + bytes([0, 0x58]) + blocks


SMALLER = 2**23  # so that the file itself is not too large
BOMBS: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[bytes], bytes]]] = {
    "blosc": (
        {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
        {"name": "blosc"},
        lambda c: Blosc().encode(c[:SMALLER]),
    ),
    "zstd": ({"id": "zstd", "level": 1}, {"name": "zstd"}, Zstd().encode),
    "zstd without its size": ({"id": "zstd", "level": 1}, {"name": "zstd"}, zstd_of_unknown_size),
    "gzip": ({"id": "gzip", "level": 5}, {"name": "gzip"}, lambda content: gzip.compress(content, 9)),
    "gzip in members": (
        {"id": "gzip", "level": 5},
        {"name": "gzip"},
        lambda c: gzip.compress(bytes(480)) + gzip.compress(c),
    ),
    "zlib": ({"id": "zlib", "level": 5}, {}, zlib.compress),
    "lz4": ({"id": "lz4"}, {}, lambda c: LZ4().encode(c[:SMALLER])),
}
HONEST = {"zstd without its size": Zstd().encode, "gzip in members": gzip.compress}
V3_ONLY = {
    "blosc": {"typesize": 4, "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0},
    "zstd": {"level": 1, "checksum": False}, "gzip": {"level": 5},
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_chunk_that_decodes_to_more_than_its_shape_is_not_decoded(name: str, tmp_path: Path) -> None:
    compressor, codec, encode = BOMBS[name]
    bomb = encode(BOMB)
    assert len(bomb) < 2**21
    if codec:
        path = store(tmp_path, compressors=None)
        there = codec | {"configuration": V3_ONLY[codec["name"]]}
        edit(path, lambda content: content.update(codecs=[PLAIN, there, {"name": "crc32c"}]))
        for i, content in enumerate((HONEST.get(name, encode)(X[:10].tobytes()), bomb)):
            (path / "c" / f"{i}" / "0").write_bytes(content + google_crc32c.value(content).to_bytes(4, "little"))
        with little_memory(), pytest.raises(CorruptedChunkError, match=r"bytes or more, and was not"):
            bp.open(path)[10:].compute()
        assert bp.data.verify(path).damaged
    (tmp_path / "v2").mkdir()
    path = store(tmp_path / "v2", zarr_format=2, compressors=None)
    edit(path, lambda content: content.update(compressor=compressor))
    (path / "0.0").write_bytes(HONEST.get(name, encode)(X[:10].tobytes()))
    (path / "1.0").write_bytes(bomb)
    with (
        little_memory(),
        pytest.raises(CorruptedChunkError, match=r"chunk 1\.0 cannot be decoded.* bytes or more, and was not"),
    ):
        bp.open(path)[10:, ::2].compute()


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "fletcher32": True}])
def test_a_gzip_chunk_of_hdf5_that_decodes_to_more_than_its_shape_is_not_decoded(
    options: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=X, chunks=(10, 3), compression="gzip", **options)
    np.testing.assert_array_equal(bp.open(path).compute(), X)
    with h5py.File(path, "a") as file:
        file["x"].id.write_direct_chunk((10, 3), zlib.compress(BOMB))
    with little_memory():
        for columns in ((0, 3), (2, 3)):
            np.testing.assert_array_equal(row_source(path).read(0, 20, columns), X[:, slice(*columns)])
        with pytest.raises(CorruptedChunkError, match=r"x.h5: the chunk at \(10, 3\) of x would decode to .* has 120"):
            bp.open(path).compute()


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_bomb_inside_a_shard_is_not_decoded(location: Any, tmp_path: Path) -> None:
    path = store(tmp_path, shards={"shape": (20, 6), "index_location": location}, compressors=zarr.codecs.GzipCodec())
    shard = bytearray((path / "c" / "0" / "0").read_bytes())
    bomb, index = gzip.compress(BOMB), 2 * 16 + 4
    table = shard[:index] if location == "start" else shard[-index:]
    entries = [*struct.unpack("<4Q", table[:32])]
    entries[2:] = [len(shard), len(bomb)] if location == "start" else [len(shard) - index, len(bomb)]
    packed = struct.pack("<4Q", *entries)
    from numcodecs.checksum32 import CRC32C

    packed = bytes(CRC32C().encode(packed))  # the checksum comes last
    body = shard[index:] if location == "start" else shard[:-index]
    (path / "c" / "0" / "0").write_bytes(packed + body + bomb if location == "start" else body + bomb + packed)
    np.testing.assert_array_equal(ZarrReader(path)[:10], X[:10])  # the other chunk of the shard is whole
    with little_memory(), pytest.raises(CorruptedChunkError, match="bytes or more, and was not"):
        bp.open(path)[10:].compute()


def test_the_attacks_work_on_who_does_not_look() -> None:
    pickle.loads(pickle.dumps(Explosive()))
    assert Explosive.went_off
    Explosive.went_off = False
    with pytest.raises(AssertionError), little_memory():
        gzip.decompress(gzip.compress(BOMB))


# Files of arrays are not trusted: their headers promise nothing that is believed, and no object in them comes to life


def test_an_npy_of_labels_that_promises_more_than_it_holds_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "y.npy").write_bytes(npy_header((10**12,), "<i8") + bytes(64))
    with pytest.raises(
        CorruptedChunkError,
        match=r"y\.npy is not a complete .npy file .64 bytes of values, but its header states 8,000,000,000,000",
    ):
        read_label_file(str(tmp_path / "y.npy"))


def test_a_torch_file_is_never_unpickled(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"x": torch.eye(3), "y": Explosive()}, tmp_path / "x.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Explosive()))
    for name in ("x.pt", "old.pt"):
        with pytest.raises(CorruptedChunkError, match=r"torch cannot read .*weights_only=True\)"):
            bp.open(tmp_path / name)
    nested: list[Any] = []
    for _ in range(99):  # 2 to the 99th lists
        nested = [nested, nested]
    torch.save(nested, tmp_path / "x.pt")
    with little_memory(), pytest.raises(ValueError, match=r"x\.pt holds 0 arrays with two dimensions"):
        bp.open(tmp_path / "x.pt")


def safetensors(path: Path, tensors: Any, held: int) -> Path:
    text = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(held))
    return path


def tensor(start: int, stop: int, shape: tuple[int, ...] = (4, 2), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("tensors", "held"),
    [([], 64), ({"x": 3}, 64), ({"x": tensor(0, 8, (-1, 2))}, 8), ({"x": tensor(0, 24)}, 24),
     ({"x": tensor(8, 40)}, 40), ({"x": tensor(0, 32), "y": tensor(16, 48)}, 48),
     ({"x": tensor(0, 32)}, 31), ({"x": tensor(0, 32)}, 33)],
)  # fmt: skip
def test_tensors_fill_a_safetensors_file_without_holes_and_overlaps(tensors: Any, held: int, tmp_path: Path) -> None:
    with (
        little_memory(),
        pytest.raises(CorruptedChunkError, match=r"x\.safetensors is not a complete safetensors file"),
    ):
        bp.open(safetensors(tmp_path / "x.safetensors", tensors, held), member="x")


def test_a_page_of_parquet_whose_checksum_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    column = pa.FixedSizeListArray.from_arrays(X.ravel(), 6)
    pq.write_table(pa.table({"v": column}), path, write_page_checksum=True, compression="none", use_dictionary=False)
    np.testing.assert_array_equal(bp.open(path).compute(), X)
    content = bytearray(path.read_bytes())
    content[content.index(X[3].tobytes()) + 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptedChunkError, match=r"row group 0, column 'v' cannot be decoded .*CRC"):
        bp.open(path).compute()


def test_a_filter_plugin_of_hdf5_is_not_loaded(tmp_path: Path) -> None:
    """HDF5 loads plugins from a folder that the environment names, never from the file; an absent one is an error."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", X.shape, X.dtype, chunks=X.shape, compression=511, allow_unknown_filter=True)
        dataset.id.write_direct_chunk((0, 0), X.tobytes())
    with pytest.raises(CorruptedChunkError, match=r"rows 0:20 of x cannot be decoded .*plugin"):
        bp.open(tmp_path / "x.h5").compute()
