"""Every benchmark says how it is used, and runs at a size where nothing is measured but the answers are checked."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "benchmarks"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))


@pytest.fixture(autouse=True)
def _siblings_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def run(name: str, *arguments: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(FOLDER / name), run_name="__main__")


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    found: dict[str, float] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_says_how_it_is_used(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        run(name, "--help", monkeypatch=monkeypatch)
    assert end.value.code == 0
    assert f"usage: python examples/benchmarks/{name}" in capsys.readouterr().out


def test_wide_agrees_with_the_svd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ("--rows", 120, "--columns", 600, "-k", 5, "--limit", 8192)
    run("wide.py", "--directory", tmp_path, *size, monkeypatch=monkeypatch)
    assert last_line(capsys)["eigenvalue_error"] < 1e-6


def test_accuracy_holds_1e_6_of_lambda_1_at_every_offset(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("accuracy.py", "--rows", 3000, "--columns", 64, monkeypatch=monkeypatch)
    rows = [json.loads(line) for line in capsys.readouterr().out.strip().splitlines()]
    assert [row["mean_over_std"] for row in rows] == [0, 1, 10, 100, 1e4]
    assert max(row["bigpca_to_lambda_1"] for row in rows) < 1e-6


def test_overhead_counts_tasks_and_times_the_first_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("overhead.py", "--directory", tmp_path, "--rows", 4000, monkeypatch=monkeypatch)
    row = last_line(capsys)
    assert row["direct_tasks"] <= 2000
    assert 0 < row["direct_first_group_s"] <= row["direct_s"]


def test_all_contenders_in_process_find_the_same_eigenvalue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "dump.zarr"
    run("dump.py", store, 2000, 50, 500, monkeypatch=monkeypatch)
    first = []
    for name in ("bigpca", "dask-gram", "sklearn-covariance", "sklearn-incremental"):
        run("contenders.py", name, store, 5, monkeypatch=monkeypatch)
        first.append(last_line(capsys)["first"])
    assert max(first) / min(first) - 1 < 1e-3
    run("contenders.py", "roofline", store, 5, monkeypatch=monkeypatch)
    assert last_line(capsys)["bound_s"] > 0


def test_tall_prints_a_ratio_for_each_contender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ("--rows", 2000, "--columns", 50, "--chunk-rows", 500, "-k", 5, "--rounds", 1)
    run("tall.py", "roofline", "bigpca", "--directory", tmp_path, *size, monkeypatch=monkeypatch)
    said = capsys.readouterr().out
    assert "1.00 x bigpca" in said
    assert "bigpca less the eigenproblem" in said
