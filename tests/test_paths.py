"""A path names one place for all that reads and writes: ``~`` is a home, and ``..`` leads out of a link's target."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

import bigpca as bp
from tests.cli.running import run

X = np.random.default_rng(0).standard_normal((24, 4))
MODEL = bp.PCA(2, random_state=0).fit(X)


def features(out: str) -> None:
    with bp.FeatureWriter(out, chunk_rows=8) as writer:
        writer.write(X)


def checkpoint(out: str) -> None:
    bp.PCA(2).fit(bp.open(np.asarray(X)), checkpoint=out)


def picture(out: str) -> None:
    bp.plots.style.save_picture(bp.plots.style.plain_figure(2, 2), out)


# By name: what writes to a path, and what reads it there, if anything does.
CALLS: dict[str, tuple[str, Callable[[str], Any], Callable[[str], Any] | None]] = {
    "ingest": ("x.zarr", lambda p: bp.ingest(X, p), bp.open),
    "transform": ("s.zarr", lambda p: MODEL.transform(X, out=p), bp.open),
    "table": ("s.npy", lambda p: MODEL.transform(X, out=p), bp.open),
    "shards": ("s.npy", lambda p: MODEL.transform(X, out=p), lambda p: bp.open([p])),
    "FeatureWriter": ("f.zarr", features, bp.data.verify),
    "keys": ("k.zarr", lambda p: bp.ingest(X, p, keys=list(map(str, range(24)))), bp.data.verify),
    "save": ("m.zarr", MODEL.save, bp.load),
    "report": ("r.html", MODEL.report, None),
    "to_onnx": ("m.onnx", MODEL.to_onnx, None),
    "picture": ("p.png", picture, None),
    "checkpoint": ("ck", checkpoint, None),
    "command": ("c.zarr", lambda p: run("ingest", "../x.npy", p, "--quiet"), lambda p: run("verify", p)),
}


@pytest.mark.parametrize("spelling", ["~/{}", "~/work/sub/../{}"])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_written_at_a_path_is_read_there(
    call: str, spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, write, read = CALLS[call]
    if call == "to_onnx":
        pytest.importorskip("onnx")
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    (home / "away" / "deep").mkdir(parents=True)
    (home / "work" / "sub").symlink_to(home / "away" / "deep")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "work")
    np.save(home / "x.npy", X)
    with dask.config.set(scheduler="sync"):
        write(spelling.format(name))
        there = (home if spelling == "~/{}" else home / "away") / name
        assert there.exists()
        assert os.listdir(home / "work") == ["sub"]
        assert read is None or getattr(read(spelling.format(name)), "exit_code", 0) == 0


@pytest.mark.parametrize("spelling", ["~/kinds.csv::kind", "sub/../kinds.csv::kind"])
def test_labels_are_read_at_the_same_paths(spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "away" / "deep").mkdir(parents=True)
    (tmp_path / "sub").symlink_to(tmp_path / "away" / "deep")
    monkeypatch.setenv("HOME", str(tmp_path / "away"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "away" / "kinds.csv").write_text("kind\n" + "a\nb\n" * 12)
    assert bp.FisherDiscriminantAnalysis(1).fit(X, spelling).n_components_ == 1
