"""Every example runs as a person would run it, in a fresh process with warnings as errors, and draws its picture."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("[0-9][0-9]_*.py"))
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if done.stdout.startswith("skipped: "):
        pytest.skip(done.stdout.removeprefix("skipped: ").strip())
    for picture in tmp_path.rglob("*.png"):
        assert picture.read_bytes().startswith(PNG)
    if "real_data" in path.stem:
        pytest.importorskip("matplotlib")
        assert len(list(tmp_path.rglob("*.png"))) == 1


@pytest.mark.parametrize("path", [path for path in EXAMPLES if "real_data" in path.stem], ids=lambda path: path.stem)
def test_an_example_without_its_data_says_what_to_install(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    monkeypatch.setattr(example, "find_data", lambda: None)
    example.main()
    said = capsys.readouterr().out
    assert said.startswith("skipped: ")
    assert "install" in said
