"""Interrupts and running clusters: real processes."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import bigpca as bp
from bigpca.engine.cluster.watch import Watch
from bigpca.engine.run import Run
from tests.cli.running import interrupted, run, run_json
from tests.engine.conftest import cluster_here


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_fit_says_how_to_resume_and_resumes_to_the_same_bits(tall: Path, number: int) -> None:
    arguments = ("fit", tall, "-k", "3", "--model", "m.zarr", "--checkpoint", "my ckpt")
    code, _, errors = interrupted(*arguments, number=number, once=lambda: any(Path("my ckpt").rglob("*.npz")))
    assert code == 130, errors
    assert "interrupted." in errors
    assert f"bigpca fit {tall} -k 3 --model m.zarr --checkpoint 'my ckpt'" in errors
    assert "Traceback" not in errors
    assert not Path("m.zarr").exists()
    record = run_json(*arguments)
    assert record["exit_code"] == 0
    assert 1 <= record["groups_resumed"] < 16
    undisturbed = bp.PCA(n_components=3).fit(bp.open(tall))
    np.testing.assert_array_equal(bp.load("m.zarr").components_, undisturbed.components_)


def test_an_interrupt_without_a_checkpoint_says_that_progress_was_not_kept(tall: Path) -> None:
    code, out, errors = interrupted("fit", tall, "-k", "3", "--json", number=signal.SIGINT, once=lambda: True)
    assert code == 130, errors
    assert "Progress was not stored. Give --checkpoint PATH" in errors
    assert json.loads(out)["error"]["exit_code"] == 130


@pytest.mark.cluster
def test_doctor_and_fit_join_a_running_scheduler(store: Path) -> None:
    with cluster_here(1) as cluster:
        address = cluster.scheduler_address
        record = run_json("doctor", "--scheduler", address)
        fitted = run_json("fit", store, "-k", 2, "--scheduler", address)
    assert (record["exit_code"], record["problems"], len(record["workers"])) == (0, [], 1)
    assert record["workers"][0]["memory_per_thread"] > 0
    assert fitted["exit_code"] == 0
    assert fitted["baseline_bytes"] > 100 * 2**20


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("there", "code", "kind", "expected"),
    [
        ("1.26.4", 7, "problems", "numpy and zarr in the major version"),
        (f"{np.__version__}.1", 0, "notes", "last bits"),
    ],
)
def test_doctor_separates_versions_that_break_a_run_from_those_that_do_not(
    there: str, code: int, kind: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bigpca.engine.cluster import watch as joining

    def other(packages: list[str]) -> dict[str, dict[str, str | None]]:
        found: dict[str, dict[str, str | None]] = get_versions(packages)
        return {**found, "packages": {**found["packages"], "numpy": there}}

    get_versions = joining.get_versions
    monkeypatch.setattr(joining, "get_versions", other)
    with cluster_here(1) as cluster:
        record = run_json("doctor", "--scheduler", cluster.scheduler_address)
    assert record["exit_code"] == code
    assert (len(record["problems"]), len(record["notes"])) == ((1, 0) if code else (0, 1))
    assert f"numpy is {np.__version__} on worker tcp://" in record[kind][0]
    assert expected in record[kind][0]
    assert record["workers"][0]["versions"]["numpy"] == np.__version__


@pytest.mark.cluster
def test_a_scheduler_without_workers_is_waited_for_and_exits_7(store: Path) -> None:
    with cluster_here(0) as cluster:
        address = cluster.scheduler_address
        for command in (("fit", store), ("doctor",)):
            result = run(*command, "--scheduler", address, "--workers-timeout", "0.5")
            assert result.exit_code == 7
            assert f"no worker on {address} for 0.5 s (workers_timeout). Start workers" in result.stderr


@pytest.mark.cluster
def test_the_timeout_holds_for_every_wait_of_a_command(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float] = []
    begin = Watch.__init__

    def note(watch: Watch, client: Client, options: Run, join: Any) -> None:
        timeouts.append(options.workers_timeout)
        begin(watch, client, options, join)

    monkeypatch.setattr(Watch, "__init__", note)
    with cluster_here(1) as cluster:
        given = ("--scheduler", cluster.scheduler_address, "--workers-timeout", "0")  # a worker that is there is enough
        for command in (
            ("plan", store),
            ("fit", store, "-k", 2),
            ("transform", store),
            ("ingest", store, "other.zarr"),
        ):
            assert run_json(*command, *given)["exit_code"] == 0
    assert len(timeouts) > 4
    assert set(timeouts) == {0}
