"""The stores that the tests of the command line read; each test works in its own directory."""

from pathlib import Path

import numpy as np
import pytest

import bigpca as bp
from tests.cli.running import COLUMNS, ROWS


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    scales = np.linspace(5.0, 1.0, COLUMNS)
    rows = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)) * scales + 3.0
    bp.ingest(rows.astype("float32"), tmp_path / "rows.zarr", chunk_rows=500)
    return tmp_path / "rows.zarr"


@pytest.fixture(scope="session")
def tall_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 MiB in 64 chunks: 16 groups."""
    rows = np.random.default_rng(1).standard_normal((2**17, 128), dtype=np.float32)
    bp.ingest(rows, path := tmp_path_factory.mktemp("tall") / "tall.zarr", chunk_rows=2**11)
    return path


@pytest.fixture
def tall(tall_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tall.zarr").symlink_to(tall_rows)
    return tmp_path / "tall.zarr"
