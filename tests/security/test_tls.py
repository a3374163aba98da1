"""The recipes' clusters speak TLS and nothing else, on loopback, to those who hold their certificate."""

from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client
from distributed.security import Security

import bigpca as bp
from bigpca.cli import runtime
from tests.cli.running import run
from tests.tls_cluster import SECONDS, Recipe, configure, local_recipe

pytestmark = pytest.mark.cluster
PLAIN = Security(require_encryption=False)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    with local_recipe(tmp_path_factory.mktemp("recipe")) as running:
        yield running


def joins(address: str, security: Security, seconds: float) -> bool:
    try:
        with Client(address, security=security, timeout=seconds, set_as_default=False) as client:
            client.nthreads()
            return True
    except OSError:
        return False


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rows = np.random.default_rng(0).normal(size=(600, 8)) * np.arange(1.0, 9.0)
    bp.ingest(rows, tmp_path / "rows.zarr", chunk_rows=100)
    return tmp_path / "rows.zarr"


def test_a_member_is_let_in_and_strangers_are_rejected(recipe: Recipe, tmp_path: Path) -> None:
    other = configure(tmp_path / "stranger")
    assert recipe.address.startswith("tls://127.0.0.1:")
    assert joins(recipe.address, recipe.security(), SECONDS)
    assert not joins(recipe.address.replace("tls://", "tcp://"), PLAIN, 2)
    assert not joins(recipe.address, recipe.security(certificates=other), 2)
    assert joins(recipe.address, recipe.security(), SECONDS)  # and the strangers did not bring it down


def test_every_connection_of_the_cluster_is_encrypted_and_plain_ones_are_not_even_configured(recipe: Recipe) -> None:
    with Client(recipe.address, security=recipe.security(), set_as_default=False) as client:
        client.wait_for_workers(2, timeout=SECONDS)
        assert all(address.startswith("tls://127.0.0.1:") for address in client.nthreads())
        required = client.run(lambda dask_worker: dask_worker.security.require_encryption)
        assert set(required.values()) == {True}
        assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.security.require_encryption) is True


def test_the_command_line_joins_by_the_certificates_of_dask_s_configuration(recipe: Recipe, store: Path) -> None:
    model = store.with_name("model.zarr")
    with dask.config.set(recipe.settings):
        done = run("fit", store, "-k", 2, "--model", model, "--scheduler", recipe.address)
    assert done.exit_code == 0, done.stderr
    expected = bp.PCA(2).fit(bp.open(store))
    np.testing.assert_array_equal(bp.load(model).components_, expected.components_)


@pytest.mark.parametrize("scheme", ["tls", "tcp"])
def test_the_command_line_without_certificates_says_what_to_set(
    scheme: str, recipe: Recipe, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "CONNECT_SECONDS", 2)
    address = recipe.address.replace("tls://", f"{scheme}://")
    done = run("fit", store, "--scheduler", address)
    assert done.exit_code == 7, done.stderr
    assert f"no Dask scheduler answered at {address}" in done.stderr
    assert "certificates are required: set DASK_CONFIG" in done.stderr


def test_the_command_line_never_connects_in_plain_text_where_encryption_is_required(
    recipe: Recipe, store: Path
) -> None:
    with dask.config.set(recipe.settings):
        done = run("fit", store, "--scheduler", recipe.address.replace("tls://", "tcp://"))
    assert done.exit_code == 7, done.stderr
    assert "encryption required" in done.stderr
