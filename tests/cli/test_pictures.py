"""``bigpca report``: a file, complete, from a saved model and its scores."""

from pathlib import Path

import numpy as np
import pytest

import bigpca as bp
from tests.cli.running import ROWS, run, run_json


@pytest.fixture
def model(store: Path) -> Path:
    X = bp.open(store)
    fitted = bp.PCA(3).fit(X)
    fitted.save("m.zarr")
    fitted.transform(X, out="s.zarr")
    Path("labels.csv").write_text("class,value\n" + "".join(f"{row % 4},{row / 8}\n" for row in range(ROWS)))
    return Path("m.zarr")


@pytest.mark.usefixtures("undrawn")
def test_report_writes_a_page_and_prints_its_checks(model: Path) -> None:
    record = run_json("report", model, "--scores", "s.zarr", "--labels", "labels.csv::class", "--image-shape", "4x3")
    assert (record["exit_code"], record["out"]) == (0, "report.html")
    assert {light["name"]: light["verdict"] for light in record["lights"]}["converged"] == "pass"
    page = Path("report.html").read_text()
    assert record["bytes"] == len(page.encode())
    assert "by position" in page
    assert "bigpca transform ROWS --model m.zarr --scores new.zarr" in page
    assert "bigpca report m.zarr --scores s.zarr --labels labels.csv::class" in page
    assert "standard error" not in page
    run("report", model, "--rows", "rows.zarr", "--overwrite")
    assert "Standard errors say how far eigenvalues would vary" in Path("report.html").read_text()
    shown = run("report", model, "--no-provenance", "--overwrite")
    assert "No scores were given" in shown.stdout
    assert "rows omitted  pass: 0 of 3,000" in shown.stdout
    assert "m.zarr" not in Path("report.html").read_text().replace("model.zarr", "").replace("bp.load", "")


FAULTS = {
    "shape": (("report", "m.zarr", "--image-shape", "4*3"), 2, "not the shape of an image"),
    "exists": (("report", "m.zarr", "--out", "old.html"), 5, "exists already"),
    "labels": (
        ("report", "m.zarr", "--scores", "s.zarr", "--labels", "labels.csv"),
        3,
        "Name the one that holds the labels",
    ),
    "own labels": (
        ("report", "m.zarr", "--labels", "old.html", "--out", "old.html", "--overwrite"),
        5,
        "the same path",
    ),
}


def test_what_cannot_be_written_or_drawn_is_one_paragraph_and_leaves_nothing(model: Path) -> None:
    np.save("labels.npy", np.zeros(3))
    Path("old.html").touch()
    before = sorted(Path.cwd().rglob("*"))
    for arguments, code, text in FAULTS.values():
        result = run(*arguments)
        assert text in " ".join(result.output.replace("│", " ").split()), result.output
        assert result.exit_code == code, result.output
        assert sorted(Path.cwd().rglob("*")) == before
