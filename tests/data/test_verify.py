"""verify() finds every kind of damage, and says what it could not see."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import Crc32cCodec, GzipCodec, ZstdCodec

from bigpca.data.stores import VerifyReport, verify

X = np.random.default_rng(2).normal(size=(20, 6)).astype("f4")


def store(folder: Path, manifest: bool = False, **options: Any) -> Path:
    path = folder / "x.zarr"
    z = zarr.create_array(path, shape=X.shape, dtype="f4", **{"chunks": (4, 6), **options})
    z[...] = X
    if manifest:
        crcs = {f"c/{i}/0": zlib.crc32((path / f"c/{i}/0").read_bytes()) for i in range(5)}
        z.attrs["bigpca_manifest"] = {"algorithm": "crc32", "chunks": crcs}
    return path


def damage(chunk: Path, how: str) -> None:
    data = chunk.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
    chunk.write_bytes({"empty": b"", "short": data[:-3], "flip": flipped}[how])


CHECKSUMMED = {
    "zstd": {"compressors": ZstdCodec(checksum=True)},
    "gzip": {"compressors": GzipCodec()},
    "crc32c": {"compressors": [ZstdCodec(), Crc32cCodec()]},
    "manifest": {"manifest": True},
    "manifest, no codec": {"manifest": True, "compressors": None},
}


@pytest.mark.parametrize("options", CHECKSUMMED.values(), ids=CHECKSUMMED)
def test_a_checksummed_store_shows_every_damage(options: dict[str, Any], tmp_path: Path) -> None:
    path = store(tmp_path, **options)
    report = verify(path)
    assert (report.ok, report.chunks, report.checksummed) == (True, 5, True)
    assert "all chunks exist and decode (5 chunks" in str(report)
    (path / "c/0/0").unlink()
    damage(path / "c/1/0", "empty")
    damage(path / "c/2/0", "flip")
    report = verify(path)
    assert report.missing == ("c/0/0",)
    assert report.damaged == ("c/1/0", "c/2/0")
    assert not report.ok
    assert "3 of 5 chunks are bad" in str(report)
    assert "missing 1: c/0/0" in str(report)
    assert "was lost, or held only the fill value" in str(report)


def test_swapped_chunks_are_found_with_a_manifest(tmp_path: Path) -> None:
    path = store(tmp_path, manifest=True)
    a, b = (path / "c/1/0").read_bytes(), (path / "c/2/0").read_bytes()
    (path / "c/1/0").write_bytes(b)
    (path / "c/2/0").write_bytes(a)
    assert verify(path).damaged == ("c/1/0", "c/2/0")


def test_a_store_without_checksums_says_that_flipped_bits_cannot_be_seen(tmp_path: Path) -> None:
    path = store(tmp_path, compressors=None)
    damage(path / "c/2/0", "flip")
    report = verify(path)
    assert report.ok
    assert not report.checksummed
    assert "no checksum codec and no bigpca manifest: flipped bits cannot be detected" in str(report)


@pytest.mark.parametrize("version", [2, 3])
def test_all_arrays_of_a_group_are_walked_and_labels_are_listed_as_not_looked_at(version: Any, tmp_path: Path) -> None:
    path = tmp_path / "g.zarr"
    group = zarr.create_group(path, zarr_format=version)
    group.create_array("a", data=X, chunks=(5, 6))
    group.create_array("deep/b", data=X, chunks=(10, 3))
    group.create_array("when", data=np.array(["2020-01-01"], "M8[s]"))
    lost = path / "deep/b" / ("c/1/1" if version == 3 else "1.1")
    lost.unlink()
    report = verify(path)
    assert report.chunks == 8
    assert report.missing == ("deep/b/" + ("c/1/1" if version == 3 else "1.1"),)
    assert len(report.skipped) == 1
    assert "not checked: when" in str(report)
    assert verify(path / "a").ok
    assert verify(path / "deep/b").missing == (lost.relative_to(path / "deep/b").as_posix(),)


def test_a_store_of_numbers_that_are_not_read_is_not_called_whole(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", shape=(4, 3), chunks=(2, 3), dtype="f4", zarr_format=2, order="F")[...] = 1.0
    (tmp_path / "x.zarr" / "1.0").unlink()
    report = verify(tmp_path / "x.zarr")
    assert not report.ok
    assert "no chunk is bad, but not all were read (0 chunks" in str(report)
    assert "not checked" in str(report)
    assert "order F" in str(report)


def test_shards_are_walked_as_whole_objects(tmp_path: Path) -> None:
    path = store(tmp_path, chunks=(2, 6), shards=(8, 6))
    assert verify(path).chunks == 3
    damage(path / "c/1/0", "short")
    assert verify(path).damaged == ("c/1/0",)


def test_what_is_not_a_zarr_store_is_rejected_in_words(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none does not exist; a Zarr store was expected"):
        verify(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="holds no Zarr array or group"):
        verify(tmp_path)


def test_a_report_lists_ten_keys_and_counts_the_rest() -> None:
    report = VerifyReport("x", 30, tuple(f"c/{i}" for i in range(12)), (), True, 1.0)
    assert "missing 12: c/0, c/1, c/2, c/3, c/4, c/5, c/6, c/7, c/8, c/9, ..." in str(report)
