"""What is shown or kept names no password, and what a notebook draws runs no script of the data's."""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import dask
import fsspec
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from zarr.storage import FsspecStore

import bigpca as bp
from bigpca.data.label_files import read_label_file
from bigpca.data.labels import open_labels
from bigpca.data.sources import row_source
from bigpca.engine.checkpoint import Checkpoint
from bigpca.engine.events import LogProgress, NotebookProgress, PassEvent
from bigpca.errors import MAX_MESSAGE
from bigpca.storage.files import public
from tests.cli.running import run

X = np.random.default_rng(0).normal(size=(60, 4)).astype("f4")
SECRETS = ("jane", "s3cret", "X-Amz", "1f2e3d4c5b6a")
URL = "memory://jane:s3cret@host/{}.zarr?X-Amz-Signature=1f2e3d4c5b6a&X-Amz-Date=20260101"


def assert_no_secret(*texts: object) -> None:
    for text in texts:
        assert not [secret for secret in SECRETS if secret in str(text)], text


@pytest.fixture
def url() -> Iterator[str]:
    """A store behind a URL with credentials, in fsspec's own memory file system."""
    array = zarr.create_array(
        URL.format("x"), shape=X.shape, chunks=(20, 4), dtype="f4", config={"write_empty_chunks": True}
    )
    array[...] = X
    yield URL.format("x")
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:secret@bucket/x.zarr", "s3://bucket/x.zarr"),
        ("https://me:p@ss@host:8443/x?sig=a%2Fb#c", "https://host:8443/x"),
        ("simplecache::https://me:pw@host/x?a=b", "simplecache::https://host/x"),
        ("no 'gs://token@bucket/a b', nor abfs://a:b@c/d?e", "no 'gs://bucket/a b', nor abfs://c/d"),
        ("/data/a@b?c.zarr", "/data/a@b?c.zarr"),
        ("tls://10.0.0.1:8786", "tls://10.0.0.1:8786"),
        ("s3://key:se/cret@b/x 's3://key:se/cret@b'", "s3://b/x 's3://b'"),
        ("https://me:pa?ss@host/x, https://me:p#s/s@host/x", "https://host/x, https://host/x"),
        ("s3://bucket/a@b.zarr", "s3://bucket/a@b.zarr"),
        ("s3://key:secret@bucket/a@b.zarr", "s3://bucket/a@b.zarr"),
        ("https://host:8443/y:1/a@b", "https://host:8443/y:1/a@b"),
        ("https://[fe80::1]:9000/a@b?c=d@e", "https://[fe80::1]:9000/a@b"),
    ],
)
def test_urls_lose_user_password_and_query_and_keep_the_rest(text: str, shown: str) -> None:
    assert public(text) == shown


def test_no_repr_plan_model_or_checkpoint_holds_the_credentials_of_a_url(url: str, tmp_path: Path) -> None:
    rows = bp.open(url)
    np.testing.assert_array_equal(rows.compute(), X)
    source = row_source(url)
    assert_no_secret(
        source, source.label, source.path, json.dumps(source.describe()), source.reader, rows, rows._repr_html_()
    )
    with dask.config.set(scheduler="sync"):
        model = bp.PCA(2).fit(rows, checkpoint=tmp_path / "c")
        kernel = bp.KernelPCA(2, kernel="rbf").fit(rows, checkpoint=tmp_path / "k")
        model.transform(rows, out=tmp_path / "scores.zarr")
    model.save(tmp_path / "model.zarr")
    kernel.save(tmp_path / "kernel.zarr")
    assert_no_secret(model, model.plan(rows), model.plan(rows)._repr_html_(), model._repr_html_(), bp.data.verify(url))
    assert_no_secret(*(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()))


WITH_PASSWORD = {
    "open": bp.open,
    "open a list": lambda url: bp.open([url, url]),
    "open a table": lambda url: bp.open(url.replace("zarr", "csv")),
    "verify": bp.data.verify,
    "keys": bp.data.stored_keys,
    "labels": lambda url: open_labels(url, 60),
    "load": bp.load,
    "save": lambda url: bp.PCA(1).fit(X).save(url),
    "save as a path": lambda url: bp.PCA(1).fit(X).save(Path(url)),
    "save as text": lambda url: bp.PCA(1).fit(X).save(url.replace("zarr", "csv")),
    "ingest": lambda url: bp.ingest(X, url),
    "writer": bp.FeatureWriter,
    "checkpoint": lambda url: bp.PCA(1).fit(X, checkpoint=url),
    "place": bp.ObjectStore,
}


@pytest.mark.parametrize(
    "url", ["s3://jane:s3cret@b/x.zarr", "s3://jane:s3/s3cret@b/x.zarr", "https://jane:s3/s3cret@localhost/x.zarr"]
)
@pytest.mark.parametrize("call", WITH_PASSWORD)
def test_no_call_shows_the_password_that_a_url_was_given_with(call: str, url: str) -> None:
    with pytest.raises((ValueError, OSError, RuntimeError)) as caught:
        WITH_PASSWORD[call](url)
    raised: BaseException | None = caught.value
    while raised is not None:  # a traceback shows the causes, too
        assert_no_secret(f"{raised} {raised!r}")
        raised = raised.__cause__ or (None if raised.__suppress_context__ else raised.__context__)


def test_no_error_names_the_credentials_of_a_url(url: str, tmp_path: Path) -> None:
    attempts = {
        "absent": lambda: bp.open(URL.format("absent")),
        "member": lambda: bp.open(url, member="y"),
        "labels": lambda: open_labels(URL.format("absent"), 60),
        "verify": lambda: bp.data.verify(URL.format("absent")),
        "protocol": lambda: bp.open(URL.format("x").replace("memory", "nothing")),
        "missing chunk": lambda: _without_chunk(url, bp.open(url)).compute(),
    }
    for name, attempt in attempts.items():
        with pytest.raises((OSError, ValueError, KeyError, RuntimeError)) as caught:
            attempt()
        assert_no_secret(f"{name}: {caught.value!r} {caught.value}")
        assert caught.value.__cause__ is None or caught.value.__suppress_context__, name
    Checkpoint(tmp_path / "c", {"input": row_source(np.zeros((2, 2))).describe()}).release()
    with pytest.raises(bp.errors.CheckpointError) as rejected, dask.config.set(scheduler="sync"):
        bp.PCA(2).fit(bp.ingest(X, tmp_path / "rows.zarr"), checkpoint=tmp_path / "c")
    assert_no_secret(rejected.value)


def _without_chunk(url: str, rows: Any) -> Any:
    memory = fsspec.filesystem("memory")
    memory.rm(next(path for path in memory.store if path.endswith("c/1/0")))
    return rows


def test_an_error_of_a_read_names_no_credentials(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = bp.open(url)

    async def fail(*_: Any) -> Any:
        raise OSError(5, f"403 Forbidden, url={url!r}")  # what HTTP clients say

    monkeypatch.setattr(FsspecStore, "get", fail)
    with pytest.raises(OSError, match=r"403 Forbidden, url='memory://host/x\.zarr") as caught:
        rows.compute(scheduler="sync")
    assert_no_secret(caught.value, repr(caught.value))


def test_no_command_prints_the_credentials_of_a_url(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["bigpca", "fit", url])
    results = [
        run("fit", url, "-k", 2, "--json"), run("plan", url, "-k", 2), run("info", url), run("verify", url),
        run("fit", URL.format("absent"), "--debug"), run("fit", url, "-k", 2), run("transform", url, "--out", "s.zarr"),
    ]  # fmt: skip
    assert [result.exit_code for result in results[:4]] == [0, 0, 0, 0]
    assert_no_secret(*(result.stdout + result.stderr for result in results))


def test_no_line_of_the_log_holds_credentials(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), dask.config.set(scheduler="sync"):
        bp.PCA(2).fit(bp.open(url), progress=LogProgress(0.0))
    assert any(record.name == "bigpca" for record in caplog.records)
    assert_no_secret(*(record.getMessage() for record in caplog.records if record.name.startswith("bigpca")))


ATTACKS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td><svg onload=alert(1)>",
    "'><b onclick=alert(1)>",
)


class Elements(HTMLParser):
    """Collects the elements and handlers of a page that only an attack can have brought."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.script = tag == "script"
        self.found += [
            f"{tag} {name}={value}" for name, value in attrs if name.startswith("on") and "alert" in str(value)
        ]
        self.found += [tag] if tag == "img" and ("src", "x") in attrs else []

    def handle_data(self, data: str) -> None:
        if self.script and "alert(1)" in data:
            self.found.append(data)

    def handle_endtag(self, tag: str) -> None:
        self.script = False


def attacks_in(html: str) -> list[str]:
    page = Elements()
    page.feed(html)
    return page.found


@pytest.mark.parametrize("attack", ATTACKS[:3])
def test_an_attack_that_is_not_escaped_is_seen(attack: str) -> None:
    assert attacks_in(f"<table><td>{attack}</td></table>")


@pytest.mark.parametrize("attack", ATTACKS)
def test_names_labels_paths_and_parameters_run_nothing_in_a_notebook(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.DataFrame(X, columns=[attack, "b", "c", attack + "2"])
    labels = np.array([attack, "b"])[np.arange(60) % 2]
    plan = bp.PCA(2).plan(X)
    reprs = [
        bp.PCA(2).fit(frame),
        bp.FisherDiscriminantAnalysis(1).fit(frame, labels),
        bp.SupervisedPCA(1).fit(frame, labels),
        bp.PCA(2, solver=attack, memory_limit=attack),
        bp.KernelPCA(2, kernel=attack),
        replace(plan, reason=attack, solver=attack, notes=(attack,), resources=replace(plan.resources, where=attack)),
    ]
    path = tmp_path / attack.replace("/", "")
    reprs.append(bp.ingest(X, path))
    assert [attacks_in(one._repr_html_()) for one in reprs] == [[]] * len(reprs)

    shown: list[Any] = []
    display = pytest.importorskip("IPython.display")
    monkeypatch.setattr(display, "display", lambda html, display_id: shown.append(html.data))
    NotebookProgress()(PassEvent(attack, 10, 80, 1))
    assert len(shown) == 1
    assert attacks_in(shown[0]) == []


NAME = "\x1b[31m" + "n" * 3000


def hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file[f"{NAME}1"] = file[f"{NAME}2"] = X


def folder(path: Path) -> None:
    path.mkdir()
    for i in range(8):
        (path / f"\x1b[31m{'n' * 240}{i}").touch()


FILES: dict[str, Callable[[Path], None]] = {
    "x.h5": hdf5,
    "x.parquet": lambda path: pq.write_table(pa.table({f"{NAME}{i}": ["a", "b"] for i in range(20)}), path),
    "y.csv": lambda path: path.write_text(",".join(f"{NAME}{i}" for i in range(30)) + "\n") and None,
    "folder": folder,
}


@pytest.mark.parametrize("name", FILES)
def test_no_name_in_a_file_reaches_a_terminal_raw_or_makes_a_long_message(name: str, tmp_path: Path) -> None:
    FILES[name](tmp_path / name)
    attempts: list[Callable[[], Any]] = [lambda: read_label_file(str(tmp_path / name))]
    if name != "y.csv":
        attempts = [lambda: bp.open(tmp_path / name), lambda: bp.open(tmp_path / name, member=NAME)]
    for attempt in attempts:
        with pytest.raises((ValueError, FileNotFoundError)) as caught:
            attempt()
        text = str(caught.value)
        assert str(tmp_path) in text
        assert "\x1b" not in text
        assert len(text) <= MAX_MESSAGE
