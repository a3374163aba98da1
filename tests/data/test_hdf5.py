"""What an HDF5 file does not hold never passes for its fill value unasked, and damage in it is named."""

import fcntl
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest

import bigpca as bp
from bigpca.data.sources import row_source
from bigpca.errors import CorruptedChunkError, MissingChunksError

X = np.random.default_rng(0).normal(size=(40, 6)).astype("f4")
# What is asked of the dataset, and which of its rows and columns are written before the writer stops.
STOPPED: dict[str, tuple[dict[str, Any], Any, str]] = {
    "row chunks": ({"chunks": (10, 6)}, np.s_[:20], r"2 of the 4 chunks needed here, the first at \(20, 0\)"),
    "column chunks": ({"chunks": (40, 2)}, np.s_[:, :4], r"1 of the 3 chunks needed here, the first at \(0, 4\)"),
    "one chunk": ({"chunks": (40, 6)}, None, r"1 of the 1 chunks needed here, the first at \(0, 0\)"),
    "a hole": ({"chunks": (8, 6), "compression": "gzip"}, np.s_[np.r_[0:16, 24:40]],
        r"1 of the 5 .* the first at \(16, 0\)"),
    "a fill value": ({"chunks": (10, 6), "fillvalue": 7.0}, np.s_[:30], r"1 of the 4 .* the first at \(30, 0\)"),
    "contiguous": ({}, None, "its values were never written"),
}  # fmt: skip


@pytest.mark.parametrize("name", STOPPED)
def test_chunks_that_were_never_written_are_an_error_or_filled_on_request(name: str, tmp_path: Path) -> None:
    options, written, message = STOPPED[name]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", X.shape, X.dtype, **options)
        if written is not None:
            dataset[written] = X[written]
        expected = dataset[:]
    path = tmp_path / "x.h5"
    for attempt in (
        lambda: bp.open(path).compute(),
        lambda: bp.PCA(2).fit(bp.open(path)),
        lambda: bp.PCA(2).fit(bp.open(path)[:, ::-1]),
        lambda: bp.PCA(2).fit(da.from_array(h5py.File(path, "r")["x"], chunks=(20, 6))),
    ):
        with pytest.raises(MissingChunksError, match=rf"x\.h5: x: {message}.* were never written|{message}"):
            attempt()
    np.testing.assert_array_equal(bp.open(path, missing_chunks="fill").compute(), expected)
    if name == "a hole":
        np.testing.assert_array_equal(row_source(path).read(24, 40), X[24:])  # what is there is read
        filled = bp.PCA(2).fit(bp.open(path, missing_chunks="fill")).components_
        np.testing.assert_array_equal(filled, bp.PCA(2).fit(expected).components_)


def test_whole_datasets_of_every_layout_are_read_and_what_is_written_later_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("maps", (40, 3, 2), "f4", chunks=(10, 2, 2))[:] = X.reshape(40, 3, 2)
        file.create_dataset("longer", (0, 6), "f4", chunks=(16, 6), maxshape=(None, 6))
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple(X.shape)
        h5py.h5d.create(file.id, b"compact", h5py.h5t.IEEE_F32LE, space, dcpl=compact).write(
            h5py.h5s.ALL, h5py.h5s.ALL, X
        )
        file.create_dataset("late", X.shape, X.dtype, chunks=(10, 6))[:10] = X[:10]
    np.testing.assert_array_equal(row_source(path, member="maps").read(0, 40), X)
    np.testing.assert_array_equal(row_source(path, member="compact").read(0, 40), X)
    assert row_source(path, member="longer").shape == (0, 6)
    with pytest.raises(MissingChunksError):
        row_source(path, member="late").read(0, 40)
    with h5py.File(path, "a") as file:
        file["late"][10:] = X[10:]
    np.testing.assert_array_equal(row_source(path, member="late").read(0, 40), X)


def test_a_file_that_is_still_open_for_writing_is_read_as_it_is_now(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((2000, 40))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", data=rows, chunks=(100, 40))
        for i, given in enumerate((dataset, da.from_array(dataset))):
            dataset[0] = rows[0] = i
            np.testing.assert_allclose(bp.PCA(2).fit(given).mean_, rows.mean(0), atol=1e-12)


def test_a_file_that_another_process_writes_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w", libver="latest") as file:
        file.create_dataset("x", data=X, chunks=(10, 6))
        file.swmr_mode = True
        file.flush()
        shutil.copy(tmp_path / "x.h5", tmp_path / "killed.h5")  # with the mark of a writer
    words = "another process has this HDF5 file open for writing, .* clear its mark with h5clear -s"
    with pytest.raises(BlockingIOError, match=words):
        bp.open(tmp_path / "killed.h5")
    with open(tmp_path / "x.h5", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as HDF5 holds what it writes
        with pytest.raises(BlockingIOError, match=words):
            bp.open(tmp_path / "x.h5")
    np.testing.assert_array_equal(bp.open(tmp_path / "x.h5"), X)


@pytest.mark.parametrize("seed", range(40))
def test_damage_anywhere_in_a_file_is_named_or_changes_only_values(seed: int, tmp_path: Path) -> None:
    path, rng = tmp_path / "x.h5", np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        file.create_dataset("g/x", data=X, chunks=(10, 6), compression="gzip", fletcher32=True)
    content = bytearray(path.read_bytes())
    for at in rng.integers(0, len(content), size=1 + seed):
        content[at] = rng.integers(256)
    path.write_bytes(content)
    assert str(path) in (_error_of(path) or str(path))


def _error_of(path: Path) -> str:
    """The words of the error that reading gives; any other kind of error is one of the test."""
    try:
        bp.open(path).compute()
    except (ValueError, TypeError, OSError) as error:
        return str(error)
    return ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the bytes that a process reads are in /proc")
@pytest.mark.parametrize(
    "filters", [{}, {"shuffle": True}, {"fletcher32": True}, {"shuffle": True, "fletcher32": True}]
)
def test_a_compressed_chunk_is_read_once(filters: dict[str, bool], tmp_path: Path) -> None:
    path, rows = tmp_path / "x.h5", np.random.default_rng(0).standard_normal((4096, 64), dtype="f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=rows, chunks=(100, 30), compression="gzip", **filters)
    source = row_source(path)

    def read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    source.read(0, 200)  # h5py is imported, and the index of the chunks is known
    before = read()
    np.testing.assert_array_equal(source.read(150, 4000, (7, 61)), rows[150:4000, 7:61])
    assert read() - before < 1.3 * path.stat().st_size


def test_a_compressed_chunk_without_its_last_bytes_is_damaged(tmp_path: Path) -> None:
    """Those are the checksum of zlib, without which all values are there."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", shape=X.shape, dtype=X.dtype, chunks=X.shape, compression="gzip")
        dataset.id.write_direct_chunk((0, 0), zlib.compress(X.tobytes())[:-4])
    with pytest.raises(CorruptedChunkError, match="rows 0:40 of x cannot be decoded"):
        bp.open(path).compute()
