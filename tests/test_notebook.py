"""The notebook of ``cluster/jupyter`` runs against a real cluster over TLS, stops when interrupted, and goes on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from distributed.utils import key_split

import bigpca as bp
from tests.passes.kit import normal, reads_in, tasks_on, wait_for_none, write_store
from tests.test_examples import load
from tests.tls_cluster import ROOT, Recipe, local_recipe

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")

NOTEBOOK = ROOT / "cluster" / "jupyter" / "bigpca.ipynb"
N, D, CHUNK = 4000, 24, 25
SECONDS = 600
# In the place of the notebook's X: 160 reads in 80 groups, each leaving a file; the second half waits for the gate.
SLOW = """
from bigpca.engine import layout
from tests.passes.kit import logged
layout.MIN_GROUP_BYTES, layout.MIN_GROUPS = 256, 80
X = logged(folder / "x.zarr", folder / "log", gate=str(folder / "gate"), gate_row=2000)
"""
pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    with local_recipe(tmp_path_factory.mktemp("recipe")) as running:
        yield running


@pytest.fixture
def onlooker(recipe: Recipe) -> Iterator[Client]:
    """A second client of the same cluster."""
    with Client(recipe.address, security=recipe.security(), set_as_default=False) as client:
        client.wait_for_workers(2, timeout=SECONDS)
        yield client


def cells() -> list[Any]:
    return list(nbformat.read(NOTEBOOK, as_version=4).cells)


def cell_with(text: str) -> str:
    (found,) = (cell.source for cell in cells() if cell.cell_type == "code" and text in cell.source)
    return str(found)


def running_on(client: Client) -> dict[str, list[str]]:
    """Return the workers whose threads are busy, with the keys of what they run."""
    found = client.run(lambda dask_worker: [str(key) for key in dask_worker.active_threads.values()])
    return {worker: keys for worker, keys in found.items() if keys}


def texts(outputs: list[Any], kind: str) -> str:
    return "\n".join("".join(output["data"][kind]) for output in outputs if kind in output.get("data", {}))


def test_the_notebook_is_what_its_script_makes() -> None:
    maker = load(ROOT / "cluster" / "jupyter" / "make_notebook.py")
    assert nbformat.read(NOTEBOOK, as_version=4) == maker.notebook_of(maker.SOURCE.read_text())
    nbformat.validate(nbformat.read(NOTEBOOK, as_version=4))


def test_the_notebook_runs_over_tls_and_leaves_nothing_in_the_cluster(
    recipe: Recipe, onlooker: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (recipe.environment | {"SHARED_FOLDER": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    document = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(document, timeout=SECONDS, kernel_name="python3").execute()
    shown = {cell.source: cell.outputs for cell in document.cells if cell.cell_type == "code"}
    assert "http://127.0.0.1:" in texts(shown[cell_with("dashboard_link")], "text/plain")
    plan = texts(shown[cell_with("pca.plan(X)")], "text/html")
    assert plan.startswith("<table>")
    assert "peak memory" in plan
    assert "moments  100 %" in texts(shown[cell_with("checkpoint=")], "text/html")
    assert texts(shown[cell_with("who_has")], "text/plain") == "{}"
    assert texts(shown[cell_with("bp.plots.scores(")], "image/png")
    assert len(nbformat.writes(document)) < 300_000  # a table, a picture, a few rows: never the scores
    wait_for_none(lambda: tasks_on(onlooker))
    assert onlooker.who_has() == {}
    np.testing.assert_array_equal(
        bp.open(tmp_path / "scores.zarr").compute(),
        bp.load(tmp_path / "model.zarr")
        .transform(bp.open(tmp_path / "rows.zarr"), out=tmp_path / "local.zarr")
        .compute(),
    )


def test_the_dashboard_groups_the_tasks_of_a_pass_under_its_name(
    recipe: Recipe, onlooker: Client, tmp_path: Path
) -> None:
    before = prefixes(onlooker)
    with onlooker.as_current():
        X = bp.open(write_store(tmp_path / "x.zarr", normal(N, D), (CHUNK, D)))
        bp.PCA(2, solver="covariance").fit(X)
        bp.PCA(2, solver="krylov").fit(X, checkpoint=tmp_path / "c")
        bp.PCA(2, solver="covariance").fit(X).transform(X, out=tmp_path / "scores.zarr")
    found = prefixes(onlooker)
    assert {"bigpca-moments", "bigpca-product", "bigpca-scores"} <= found
    assert all(name.startswith("bigpca-") for name in found - before), found
    assert all(key_split(f"{name}-0123456789ab-17") == name for name in found if name.startswith("bigpca-"))


def prefixes(client: Client) -> set[str]:
    return set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.task_prefixes)))


class Kernel:
    """A kernel as Jupyter starts one, cell by cell."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.manager = jupyter_client.KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=environment, cwd=str(ROOT))
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)

    def send(self, code: str) -> str:
        return str(self.client.execute(code))

    def outputs(self, request: str) -> tuple[str, list[Any]]:
        """Wait until a cell has ended; returns its status and what it displayed, updates among it."""
        shown: list[Any] = []
        while True:
            message = self.client.get_iopub_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] in ("display_data", "update_display_data", "execute_result"):
                shown.append(message["content"])
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        while True:
            reply = self.client.get_shell_msg(timeout=SECONDS)
            if reply["parent_header"].get("msg_id") == request:
                content = reply["content"]
                return str(content.get("ename", content["status"])), shown

    def run(self, code: str) -> list[Any]:
        status, shown = self.outputs(self.send(code))
        assert status == "ok", status
        return shown

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture
def kernel(recipe: Recipe, tmp_path: Path) -> Iterator[Kernel]:
    started = Kernel(recipe.environment | {"SHARED_FOLDER": str(tmp_path)})
    yield started
    started.close()


def segments_in(checkpoint: Path) -> int:
    """Number of finished segments: those folded into the prefix, and later ones."""
    found = [path.stem.split("-") for path in checkpoint.rglob("*.npz") if path.name[0] != "."]
    covered = max((int(index) for kind, index in found if kind == "prefix"), default=0)
    return covered + sum(kind == "segment" and int(index) >= covered for kind, index in found)


def test_an_interrupted_cell_frees_the_workers_and_its_rerun_begins_where_it_stopped(
    kernel: Kernel, onlooker: Client, tmp_path: Path
) -> None:
    write_store(tmp_path / "x.zarr", normal(N, D, mean=10.0), (CHUNK, D))
    (tmp_path / "rows.zarr").symlink_to(tmp_path / "x.zarr")
    fit, checkpoint, log = cell_with("checkpoint="), tmp_path / "run.ckpt", tmp_path / "log"
    kernel.run(cell_with("Client(address)"))
    kernel.run(cell_with("bp.open(") + SLOW)
    kernel.run(cell_with("pca.plan(X)"))

    request = kernel.send(fit)
    wait_for_none(lambda: [] if segments_in(checkpoint) >= 4 else "fewer than 4 segments")
    kernel.manager.interrupt_kernel()
    (tmp_path / "gate").touch()
    status, shown = kernel.outputs(request)
    assert status == "KeyboardInterrupt"
    assert "stopped" in texts(shown, "text/html").splitlines()[-1]
    wait_for_none(lambda: tasks_on(onlooker))
    wait_for_none(lambda: running_on(onlooker))
    read, finished = len(reads_in(log)), segments_in(checkpoint)
    assert finished >= 4
    assert read < N // CHUNK

    kernel.run(
        "client.close()\n" + cell_with("Client(address)")
    )  # the client of a new kernel, or after a lost connection
    bar = texts(kernel.run(fit), "text/html")
    assert "groups resumed" in bar.splitlines()[0]
    assert 'value="0.0000"' not in bar
    assert "100 %" in bar
    assert len(reads_in(log)) - read <= N // CHUNK - finished  # a segment has at least one read
    kernel.run(cell_with("who_has"))
    expected = bp.PCA(8).fit(bp.open(tmp_path / "x.zarr"))
    np.testing.assert_allclose(bp.load(tmp_path / "model.zarr").mean_, expected.mean_, rtol=1e-6)
    wait_for_none(lambda: tasks_on(onlooker))
