"""Outputs: what is rejected, with which numbers, and what a full disk leaves."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bigpca as bp
from bigpca.errors import CheckpointError, MemoryBudgetError, OutputWriteError
from bigpca.storage import files
from tests.storage.writing import DIMENSION, N, begin, fill, read, rows_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "scores.zarr"


def test_too_little_disk_is_rejected_before_anything_is_made(path, monkeypatch):
    needed = N * DIMENSION * 4 * 101 // 100
    monkeypatch.setattr(files, "free_bytes", lambda place: needed - 1)
    with pytest.raises(MemoryBudgetError, match=rf"scores.zarr needs {needed} bytes .*but {needed - 1} are free"):
        begin(path)
    assert os.listdir(path.parent) == []
    monkeypatch.setattr(files, "free_bytes", lambda place: needed)
    with begin(path) as output:
        fill(output, [0, 1, 2])
    # Only what remains is needed for a resume.
    monkeypatch.setattr(files, "free_bytes", lambda place: 8 * DIMENSION * 4 * 101 // 100)
    begin(path).abort()
    monkeypatch.setattr(files, "free_bytes", lambda place: 8 * DIMENSION * 4 * 101 // 100 - 1)
    with pytest.raises(MemoryBudgetError, match="8 rows of 3 float32, and 1 %"):
        begin(path)
    assert os.listdir(path.parent) == ["scores.zarr.partial"]


def test_other_errors_of_the_file_system_pass_through(path, monkeypatch):
    def fails(*args):
        raise OSError(5, "Input/output error")

    with begin(path) as output:
        monkeypatch.setattr("bigpca.storage.disk.os.replace", fails)
        with pytest.raises(OSError, match="Input/output error"):
            output.writer.write(0, rows_of(output, 0))
        monkeypatch.undo()
        assert output.pending() == [0, 1, 2, 3, 4]
        assert not list(path.parent.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("index", "rows", "error", "message"),
    [
        (5, np.zeros((5, 3), "f4"), ValueError, "chunk 5 was given, but the output has chunks 0 to 4"),
        (-1, np.zeros((5, 3), "f4"), ValueError, "chunk -1 was given"),
        (0, np.zeros((4, 3), "f4"), ValueError, r"shape \(4, 3\), but rows 0 to 5 of the output are \(5, 3\)"),
        (4, np.zeros((5, 3), "f4"), ValueError, r"rows 20 to 23 of the output are \(3, 3\). Write whole chunks"),
        (0, np.zeros((5, 2), "f4"), ValueError, r"has shape \(5, 2\)"),
        (0, np.zeros((5, 3), complex), TypeError, "has dtype complex128, which an output of dtype float32 cannot hold"),
        (0, np.zeros((5, 3), object), TypeError, "has dtype object"),
        (
            1,
            np.full((5, 3), 1e39),
            ValueError,
            r"row 5 has 1e\+39, which float32 cannot hold: its largest number is 3.4",
        ),
    ],
)
def test_wrong_rows_are_rejected_with_the_numbers(path, index, rows, error, message):
    with begin(path) as output:
        with pytest.raises(error, match=message):
            output.writer.write(index, rows)
        assert output.pending() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("value", "given", "stored", "message"),
    [
        (70000.0, "float32", "float16", "has 70000.0, which float16 cannot hold: its largest number is 65504"),
        (-300, "int64", "int8", "has -300, which int8 cannot hold: its largest number is 127"),
        (255, "uint8", "int8", "has 255, which int8"),
    ],
)
def test_values_beyond_the_output_dtype_are_rejected(path, value, given, stored, message):
    with begin(path, dtype=stored) as output, pytest.raises(ValueError, match=message):
        output.writer.write(0, np.full((5, 3), value, given))


def test_floats_do_not_become_integers(path):
    with begin(path, dtype="int32") as output, pytest.raises(TypeError, match=r"dtype float32, which .* int32 cannot"):
        output.writer.write(0, rows_of(output, 0))


def test_narrowing_keeps_nan_and_infinity_that_were_there(path):
    rows = np.full((5, 3), 1 / 3)
    rows[0] = np.nan, np.inf, -np.inf
    with begin(path) as output:
        output.writer.write(0, rows)
        fill(output)
        output.finish()
    assert np.array_equal(read(path)[:5], rows.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"chunk_rows": 0}, ValueError, "chunk_rows is 0, but it must be at least 1"),
        ({"dtype": "complex64"}, TypeError, "an output of dtype complex64 was requested"),
        ({"dtype": object}, TypeError, "an output of dtype object was requested"),
        ({"shape": (10**6, 10**4), "chunk_rows": 10**6}, ValueError, r"40,000,000,000 bytes.*chunk_rows <= 53687"),
    ],
)
def test_impossible_outputs_are_rejected_before_anything_is_made(path, changes, error, message):
    with pytest.raises(error, match=message):
        begin(path, **changes)
    assert os.listdir(path.parent) == []


def test_no_output_at_a_url_or_of_another_form_becomes_a_local_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, url = np.eye(4), Path("s3://bucket/x.zarr")
    model = bp.PCA(2).fit(X)
    for write in (model.save, model.to_onnx, model.report, lambda out: bp.ingest(X, out),
                  lambda out: model.transform(X, out=out)):  # fmt: skip
        with pytest.raises(
            OutputWriteError, match=r"s3://bucket/x\.zarr is a URL, but this output is written to a local"
        ):
            write(url)
    with pytest.raises(CheckpointError, match=r"s3://bucket/x\.zarr is a URL"):
        bp.PCA(2).fit(X, checkpoint=url)
    assert list(tmp_path.iterdir()) == []


OUTPUTS: dict[str, tuple[Callable[[str], object], str, str]] = {  # writes, foreign extensions, what is written
    "scores": (lambda out: PLANE.transform(np.eye(4), out=out), ".nc .PKL .xlsx .json .arrow .h5ad .zip .png .avro",
               ".zarr, .npy or .parquet"),
    "statistics": (lambda out: PLANE.statistics(np.eye(4), ["spe"], out=out), ".html .npz", ".zarr, .npy or .parquet"),
    "store": (lambda out: bp.ingest(np.eye(4), out), ".npy .parquet .h5", ".zarr"),
    "features": (bp.FeatureWriter, ".npy .pt", ".zarr"),
    "model": (lambda out: PLANE.save(out), ".onnx .npz .h5 .pkl .joblib .npy", ".zarr"),
    "report": (lambda out: PLANE.report(out), ".pdf .md .zarr .ipynb", ".html or .htm"),
    "network": (lambda out: PLANE.to_onnx(out), ".pt .zarr .npz", ".onnx"),
}  # fmt: skip
PLANE = bp.PCA(2).fit(np.eye(4))


@pytest.mark.parametrize(("write", "foreign", "written"), OUTPUTS.values(), ids=OUTPUTS)
def test_an_output_with_the_extension_of_another_format_is_rejected_before_anything_is_made(
    write, foreign, written, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for suffix in foreign.split():
        with pytest.raises(
            ValueError, match=rf"^x{suffix}: {suffix.lower()} cannot be written here. Choose {written}\.$"
        ):
            write(f"x{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_any_other_suffix_is_part_of_a_name(tmp_path):
    PLANE.save(tmp_path / "pca_k0.5")
    assert bp.load(tmp_path / "pca_k0.5").n_components_ == 2
    assert PLANE.transform(np.eye(4), out=tmp_path / "run.v2").shape == (4, 2)
    assert PLANE.report(tmp_path / "report.2026-11").read_text().startswith("<!")
