"""Batches written to one array: complete or absent, resumed after a kill anywhere, with a key for each row."""

import errno
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray
from pandas import DataFrame

import bigpca as bp
from bigpca.errors import OutputExistsError, OutputLockedError, OutputWriteError
from bigpca.storage import disk, files, outputs
from bigpca.storage.files import atomic_write_bytes
from tests.conftest import everywhere, local_or_memory
from tests.storage.writing import opened

Array = NDArray[Any]
X = np.random.default_rng(0).standard_normal((50, 2, 3)).astype("f4")
KEYS = [f"image {i}" for i in range(50)]
CHUNK = 8
DIES: dict[str, tuple[Any, str, int]] = {
    "between a chunk and its record": (disk.DiskChunks, "_log", 3),
    "between keys and their chunk": (outputs.ChunkWriter, "begin", 3),
    "before the last chunk": (outputs.ChunkWriter, "begin", 6),
    "between the last chunk and its record": (disk.DiskChunks, "_log", 6),
    "before the manifest": (files, "atomic_write_bytes", 9),
    "before it becomes visible": (files, "publish", 1),
    "after it became visible": (disk, "remove_journals", 2),
}


def extract(out: Path, rows: Array = X, *, batch: int = 5, **options: Any) -> int:
    """Write the rows that are not there yet, and return how many were there."""
    with bp.FeatureWriter(out, chunk_rows=CHUNK, **options) as writer:
        begun = writer.n_rows
        for start in range(begun, len(rows), batch):
            writer.write(rows[start : start + batch], KEYS[start : start + batch][: len(rows) - start])
    return begun


def die(name: str, out: str) -> None:
    """Extract, and be killed at the call of a function."""
    place, function, calls = DIES[name]
    before, count = getattr(place, function), 0

    def killed(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        if count == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        return before(*arguments, **options)

    setattr(place, function, killed)
    extract(Path(out))


@pytest.mark.parametrize("name", DIES)
def test_a_writer_that_is_killed_anywhere_is_continued_after_its_whole_chunks(name: str, tmp_path: Path) -> None:
    out, calls = tmp_path / "features.zarr", DIES[name][2]
    child = multiprocessing.get_context("forkserver").Process(target=die, args=(name, str(out)))
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    if name == "after it became visible":
        with pytest.raises(OutputExistsError):
            bp.FeatureWriter(out)
        assert not list(out.glob(".bigpca-*"))
    else:
        assert not out.exists()
        begun = extract(out)
        assert begun % CHUNK == 0
        assert begun == (24 if calls == 3 else 48)
    stored = zarr.open_array(out, mode="r")
    assert stored.shape == X.shape
    assert np.array_equal(stored[:], X)
    assert np.array_equal(bp.open(out).compute(), X.reshape(50, 6))
    assert bp.data.stored_keys(out).tolist() == KEYS
    assert bp.data.verify(out).ok
    assert {path.name for path in tmp_path.iterdir()} <= {"features.zarr", "features.zarr.lock"}


@local_or_memory
@pytest.mark.parametrize("sizes", [[50], [1] * 50, [8] * 6 + [2], [16, 0, 34], [3, 40, 7]], ids=str)
def test_the_store_does_not_depend_on_the_batches(sizes: list[int], place: Any) -> None:
    with bp.FeatureWriter(place, chunk_rows=CHUNK) as writer:
        for stop, size in zip(np.cumsum(sizes), sizes, strict=True):
            writer.write(X[stop - size : stop])
            assert writer.n_rows == stop
        with pytest.raises(FileNotFoundError):
            opened(place)
    found = opened(place)
    assert np.array_equal(found[:], X)
    assert found.chunks == (CHUNK, 2, 3)
    assert bp.data.provenance_of(place).rows == 50
    if isinstance(place, Path):
        assert bp.data.stored_keys(place) is None
        assert bp.data.verify(place).ok


@local_or_memory
@pytest.mark.parametrize(("dtype", "stored"), [(None, "float32"), ("f2", "float16"), ("f8", "float64")])
def test_dtypes_are_converted_and_bfloat16_is_exact(dtype: Any, stored: str, place: Any) -> None:
    half = X.astype(ml_dtypes.bfloat16)
    with bp.FeatureWriter(place, dtype=dtype) as writer:
        writer.write(half)
    found = opened(place)
    assert found.dtype == stored
    assert np.array_equal(found[:], half.astype("f4").astype(stored))


def test_a_model_of_the_store_is_that_of_the_rows(tmp_path: Path) -> None:
    with bp.FeatureWriter(tmp_path / "x.zarr") as writer:
        for start in range(0, 50, 9):
            writer.write([X[start : start + 9]])  # as a DataLoader gives batches without labels
    found, expected = bp.PCA(2).fit(tmp_path / "x.zarr"), bp.PCA(2).fit(X)
    assert np.array_equal(found.components_, expected.components_)


def _fail(out: Path, keys: Any) -> None:
    """Write 19 rows, and leave the context by an error."""
    with suppress(ZeroDivisionError), bp.FeatureWriter(out, chunk_rows=CHUNK) as writer:
        writer.write(X[:19], keys)
        raise ZeroDivisionError


def test_sparse_batches_are_stored_as_dense_rows(tmp_path: Path) -> None:
    rows = sp.random_array((50, 7), density=0.3, format="csr", dtype="f4", rng=np.random.default_rng(0))
    with bp.FeatureWriter(tmp_path / "x.zarr", chunk_rows=CHUNK) as writer:
        for start in range(0, 50, 21):  # parts of chunks, and several of them
            writer.write(rows[start : start + 21], KEYS[start : start + 21])
    np.testing.assert_array_equal(bp.open(tmp_path / "x.zarr").compute(), rows.toarray())
    assert bp.data.stored_keys(tmp_path / "x.zarr").tolist() == KEYS


def test_an_error_keeps_whole_chunks_and_an_empty_writer_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "x.zarr"
    _fail(out, KEYS[:19])
    assert extract(out) == 16
    assert np.array_equal(zarr.open_array(out, mode="r")[:], X)
    with pytest.raises(ValueError, match="no rows were written"), bp.FeatureWriter(tmp_path / "y.zarr"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"x.zarr"}


def _write(*batches: Any, **options: Any) -> Callable[[Path], None]:
    def write(out: Path) -> None:
        with bp.FeatureWriter(out, chunk_rows=CHUNK, **options) as writer:
            for batch, keys in batches:
                writer.write(batch, keys)

    return write


def _two(out: Path) -> None:
    with bp.FeatureWriter(out), bp.FeatureWriter(out):
        pass


def _other(out: Path, **options: Any) -> None:
    _fail(out, None)
    bp.FeatureWriter(out, **options)


def _closed(out: Path) -> None:
    with bp.FeatureWriter(out) as writer:
        writer.write(X)
    writer.write(X)


BAD: dict[str, tuple[Callable[[Path], None], type[Exception], str]] = {
    "ragged": (_write((X, None), (X[:, :1], None)), ValueError, r"rows of shape \(1, 3\), but the first .* \(2, 3\)"),
    "one dimension": (_write((X[:, 0, 0], None)), ValueError, r"the batch from row 0 has shape \(50,\)"),
    "other dtype": (_write((X, None), (X.astype("c8"), None)), TypeError, "dtype complex64 cannot be used"),
    "floats to integers": (_write((X, None), dtype="i2"), TypeError, "is float32, which int16, the dtype of"),
    "overflow": (_write((X, None), (X * 1e6, None), dtype="f2"), ValueError, r"row 50 has .* float16 cannot hold"),
    "keys doubled": (_write((X[:9], KEYS[:9]), (X[9:], KEYS[8:49])), ValueError, "1 key of earlier rows: 'image 8'"),
    "keys doubled in a batch": (_write((X[:2], ["a", "a"])), ValueError, "share their key with another row: 'a'"),
    "keys too few": (_write((X, KEYS[:9])), ValueError, "there are 9 keys for 50 rows"),
    "keys missing": (_write((X[:9], KEYS[:9]), (X[9:], None)), ValueError, "row 9 has no keys, unlike earlier batches"),
    "keys too late": (_write((X[:9], None), (X[9:], KEYS[9:])), ValueError, "row 9 has keys, unlike earlier batches"),
    "two writers": (_two, OutputLockedError, "is held by run"),
    "other chunks": (lambda out: _other(out, chunk_rows=9), ValueError, "has chunk_rows = 8, but 9 was given"),
    "another dtype": (lambda out: _other(out, dtype="f2"), ValueError, "has dtype = float32, but float16 was given"),
    "closed": (_closed, RuntimeError, "is closed"),
    "a pair": (_write(((X, X), None)), TypeError, r"has rows and labels; rows alone are stored. Call write\(rows\)"),
    "keys of no encoding": (_write((X[:2], ["a", "b\udc80"])), ValueError, r"1 of 2 keys cannot .* UTF-8 \(row 1\)"),
    "columns in another order": (
        _write((DataFrame(X[:, 0]), None), (DataFrame(X[:, 0])[[2, 0, 1]], None)), ValueError, r"columns \[2, 0, 1\]",
    ),
    "a table": (lambda out: _other(out.with_suffix(".parquet")), ValueError, ".parquet cannot be written here"),
    "a URL": (lambda out: _other(Path("s3://bucket", out.name)), OutputWriteError, "s3://bucket/x.zarr is a URL"),
    "a part of a row": (lambda out: _other(out, chunk_rows=8.5), ValueError, "chunk_rows = 8.5; a number of rows"),
    "chunk_rows": (lambda out: _other(out, chunk_rows=0), ValueError, "chunk_rows = 0; a number of rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_written_is_rejected(name: str, tmp_path: Path) -> None:
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call(tmp_path / "x.zarr")


@everywhere
def test_a_rejected_batch_is_not_written_and_an_existing_store_is_replaced_only_if_asked(place: Any) -> None:
    out = place
    with bp.FeatureWriter(out, dtype="f2", chunk_rows=CHUNK) as writer:
        writer.write(X[:3], KEYS[:3])
        for rows, keys in ((X[3:] * 1e6, KEYS[3:]), (X[3:], KEYS[:47])):
            with pytest.raises(ValueError):
                writer.write(rows, keys)
        writer.write(X[3:], KEYS[3:])
    assert np.array_equal(opened(out)[:], X.astype("f2"))
    with pytest.raises(OutputExistsError):
        bp.FeatureWriter(out)
    with bp.FeatureWriter(out, overwrite=True) as writer:
        writer.write(X[:4])
    assert opened(out).shape == (4, 2, 3)


def test_a_write_that_fails_is_not_closed_and_a_key_file_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x.zarr"

    def fail(path: Path, data: bytes) -> None:
        if path.name.startswith("keys"):
            raise OSError(errno.EIO, "Input/output error")
        atomic_write_bytes(path, data)

    writer = bp.FeatureWriter(out, chunk_rows=CHUNK)
    with monkeypatch.context() as patch:
        patch.setattr(files, "atomic_write_bytes", fail)
        with pytest.raises(OutputWriteError, match=r"keys-0\.json of 88 bytes cannot be written .*Input/output error"):
            writer.write(X[:19], KEYS[:19])
    with pytest.raises(
        RuntimeError, match=r"is closed\. .*; a new one for the same path continues after the complete chunks\."
    ):
        writer.close()
    assert extract(out) == 0
    assert bp.data.stored_keys(out).tolist() == KEYS


def test_a_second_close_goes_on_after_an_interrupt_in_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = bp.FeatureWriter(tmp_path / "x.zarr", chunk_rows=CHUNK)
    writer.write(X, KEYS)

    def interrupt(target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(disk, "remove_journals", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.close()
    writer.close()
    assert bp.data.verify(tmp_path / "x.zarr").ok
    assert bp.data.stored_keys(tmp_path / "x.zarr").tolist() == KEYS
    assert {path.name for path in tmp_path.iterdir()} == {"x.zarr"}
    assert not list((tmp_path / "x.zarr").glob(".bigpca-*"))


def test_a_damaged_number_of_rows_in_an_unfinished_output_is_named(tmp_path: Path) -> None:
    out = tmp_path / "x.zarr"
    writer = bp.FeatureWriter(out, chunk_rows=CHUNK)
    writer.write(X)
    writer.abort()
    (journal,) = Path(f"{out}.partial").glob(".bigpca-*")
    for damage in (b"\xff", b"-3", b"1" * 5000):
        (journal / "rows").write_bytes(damage)
        with pytest.raises(OutputWriteError, match=r"rows holds .* is damaged or forged\. Remove .*x\.zarr\.partial"):
            bp.FeatureWriter(out)
