"""The recipes of cluster/: the job script says what is wrong, the manifests keep their promises, and the recipes run.

``BIGPCA_CLUSTER_TESTS=1`` also runs the long ones: two hosts by SSH (root, openssh-server, asyncssh), a SLURM queue
(root, slurm-wlm, munge, dask-jobqueue), a Dask Gateway (dask-gateway-server), and the commands of the image in a fresh
virtual environment (installs from the package index; minutes).
"""

import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
import zarr
from dask import config
from dask.utils import parse_bytes
from distributed import LocalCluster

import bigpca as bp
from bigpca.cli.output import ExitCode
from tests.engine.conftest import cluster_here

CLUSTER = Path(__file__).resolve().parent.parent / "cluster"
SKIPPED, LIMIT = 77, 1500 if os.environ.get("BIGPCA_CLUSTER_TESTS") else 600
long = pytest.mark.skipif(not os.environ.get("BIGPCA_CLUSTER_TESTS"), reason="runs with BIGPCA_CLUSTER_TESTS=1")


@pytest.fixture
def job() -> Iterator[Callable[..., int]]:
    """Return the ``main`` of job.py; its handler of SIGTERM goes away again."""
    before = signal.getsignal(signal.SIGTERM)
    main = runpy.run_path(str(CLUSTER / "job.py"))["main"]
    yield lambda *arguments: int(main([str(one) for one in arguments]))
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=(400, 12), chunks=(50, 12), dtype="f4")
    array[...] = np.random.default_rng(0).standard_normal((400, 12))
    return tmp_path / "x.zarr"


@pytest.fixture(scope="module")
def scheduler() -> Iterator[LocalCluster]:
    """A scheduler of one worker, all in this process."""
    with cluster_here(1) as cluster:
        yield cluster


def test_the_job_leaves_model_scores_and_a_note_and_run_again_does_nothing_twice(
    job: Any, store: Path, scheduler: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    out = store.parent / "out"
    command = (store, out, "--components", 3, "--scheduler", scheduler.scheduler_address)
    assert job(*command) == 0
    said = capsys.readouterr().out
    assert "reads" in said
    assert str(out / "model.zarr") in said
    assert str(out / "scores.zarr") in said
    written = (out / "model.zarr" / "zarr.json").stat().st_mtime_ns
    expected = bp.PCA(3).fit(bp.open(store))
    assert np.array_equal(bp.load(out / "model.zarr").components_, expected.components_)
    assert zarr.open_array(str(out / "scores.zarr"), mode="r").shape == (400, 3)
    assert json.loads((out / "job.json").read_text())["components"] == 3

    assert job(*command) == 0
    assert "reads" not in capsys.readouterr().out
    assert (out / "model.zarr" / "zarr.json").stat().st_mtime_ns == written


@pytest.mark.usefixtures("object_server")
def test_the_job_needs_no_shared_disk(
    job: Any, store: Path, scheduler: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bp.ingest(store, url := f"s3://rows/{store.parent.name}/x.zarr", chunk_rows=50)
    out = f"s3://rows/{store.parent.name}/out"
    command = (url, out, "--scheduler", scheduler.scheduler_address, "--components")
    assert (job(*command, 3), job(*command, 3), job(*command, 4)) == (0, 0, ExitCode.OUTPUT)
    said = capsys.readouterr()
    assert said.out.count("reads") == 1
    assert "holds the results of another job" in said.err
    assert np.array_equal(bp.load(f"{out}/model.zarr").components_, bp.PCA(3).fit(bp.open(store)).components_)
    assert bp.open(f"{out}/scores.zarr").shape == (400, 3)


def test_a_cluster_that_cannot_be_joined_is_named(
    job: Any, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = (store, tmp_path / "out", "--connect-timeout", 1)
    with socket.socket() as deaf:  # has a port, and does not listen
        deaf.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{deaf.getsockname()[1]}"
        assert job(*wanted, "--scheduler", address) == ExitCode.CLUSTER
    assert f"no Dask scheduler answered at {address}" in capsys.readouterr().err
    assert job(*wanted, "--scheduler-file", tmp_path / "none.json") == ExitCode.CLUSTER
    error = capsys.readouterr().err
    assert "held no scheduler's address after 1 s" in error
    assert "Run the same command again" in error


def test_a_queue_that_gives_no_worker_is_not_waited_for_without_end(
    job: Any, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster_here(0) as empty:
        arguments = ("--scheduler", empty.scheduler_address, "--wait-for-workers", 0.5)
        assert job(store, tmp_path / "out", *arguments) == ExitCode.CLUSTER
    assert "0 workers joined" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scheduler", "tls://host:1", "--tls-cert", "cert.pem"], "--tls-key together"),
        ([], "one of the arguments --scheduler --scheduler-file --cluster is required"),
    ],
)
def test_an_incomplete_command_line_is_rejected(
    job: Any, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        job("x.zarr", "out", *arguments)
    assert end.value.code == ExitCode.USAGE
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["local", "ssh"])
def test_a_recipe_without_its_configuration_says_how_to_make_one(name: str) -> None:
    with config.set({f"{name}-cluster": None}), pytest.raises(ValueError, match=rf"no {name}-cluster; .*configure\.sh"):
        runpy.run_path(str(CLUSTER / name / "cluster.py"))["start"]()


def test_a_directory_of_certificates_is_private_and_never_overwritten(tmp_path: Path) -> None:
    command = [str(CLUSTER / "configure.sh"), str(tmp_path / "made")]
    assert run(command).returncode == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in [tmp_path / "made", *(tmp_path / "made").iterdir()])
    again = run(command)
    assert again.returncode == ExitCode.OUTPUT
    assert "a new directory was expected" in again.stderr


def pods() -> dict[str, dict[str, Any]]:
    """The pods of the DaskJob by their role."""
    spec = documents()["DaskJob"]["spec"]
    cluster = spec["cluster"]["spec"]
    return {"job": spec["job"]["spec"], **{role: cluster[role]["spec"] for role in ("scheduler", "worker")}}


def documents() -> dict[str, dict[str, Any]]:
    text = (CLUSTER / "kubernetes" / "job.yaml").read_text()
    return {found["kind"]: found for found in yaml.safe_load_all(text)}


@pytest.mark.parametrize("role", ["job", "scheduler", "worker"])
def test_pods_run_as_nobody_special_with_memory_that_is_limited(role: str) -> None:
    pod = pods()[role]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"]["limits"] == container["resources"]["requests"]
    if role == "worker":
        (limit,) = (one.partition("=")[2] for one in container["args"] if one.startswith("--memory-limit="))
        assert parse_bytes(limit) <= 7 / 8 * parse_bytes(f"{container['resources']['limits']['memory']}B")


def test_a_pod_whose_job_fails_for_good_is_not_started_again_and_the_volume_outlives_it() -> None:
    job = pods()["job"]
    assert job["restartPolicy"] == "Never"
    assert any(one.startswith("--attempts=") for one in job["containers"][0]["args"])
    assert "PersistentVolumeClaim" not in documents()
    volume = {one["kind"]: one for one in yaml.safe_load_all((CLUSTER / "kubernetes" / "volume.yaml").read_text())}
    assert volume["Pod"]["spec"]["securityContext"] == job["securityContext"]
    claim = volume["PersistentVolumeClaim"]["metadata"]["name"]
    assert all(claim in str(pod["volumes"]) for pod in (volume["Pod"]["spec"], *pods().values()))


@pytest.mark.parametrize(
    ("error", "code", "pauses"),
    [("ConnectionError", 7, [0, 30, 30]), ("FileNotFoundError", 3, [0]), ("TypeError", 3, [0])],
)
def test_a_job_tries_again_only_after_errors_that_may_pass(
    error: str, code: int, pauses: list[float], tmp_path: Path, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, slept = tmp_path / "cluster.py", list[float]()
    recipe.write_text(f"def start():\n    raise {error}('no')\n")
    monkeypatch.setattr(time, "sleep", slept.append)
    assert job("source", tmp_path / "out", "--cluster", recipe, "--attempts", 3) == code
    assert slept == pauses


def test_only_the_rule_for_s3_lets_a_pod_reach_anything_but_its_job_and_the_name_service() -> None:
    text = (CLUSTER / "kubernetes" / "job.yaml").read_text()
    hidden = re.search(r"    # - to:\n(    #   .*\n)+", text)
    assert hidden is not None
    as_given, with_s3 = (
        next(one for one in yaml.safe_load_all(found) if one["kind"] == "NetworkPolicy")["spec"]["egress"]
        for found in (text, text.replace(hidden[0], hidden[0].replace("    # ", "    ")))
    )
    assert [set(place) for rule in as_given for place in rule["to"]] == [{"podSelector"}, {"namespaceSelector"}]
    assert with_s3[:2] == as_given
    assert with_s3[2]["ports"] == [{"protocol": "TCP", "port": 443}]
    assert with_s3[2]["to"][0]["ipBlock"]["except"] == ["169.254.169.254/32"]


def test_the_pods_speak_tls_and_no_dashboard_leaves_them() -> None:
    dask, tls = (yaml.safe_load(documents()["ConfigMap"]["data"][name]) for name in ("dask.yaml", "tls.yaml"))
    assert dask == yaml.safe_load((CLUSTER / "dask.yaml").read_text())
    assert dask["distributed"]["comm"]["require-encryption"] is True
    assert set(tls["distributed"]["comm"]["tls"]) == {"ca-file", "scheduler", "worker", "client"}
    service = documents()["DaskJob"]["spec"]["cluster"]["spec"]["scheduler"]["service"]
    assert [port["name"] for port in service["ports"]] == ["tcp-comm"]
    for role in ("scheduler", "worker"):
        arguments = pods()[role]["containers"][0]["args"]
        assert "--protocol=tls" in arguments
        assert any(one.startswith("--dashboard-address=127.0.0.1:") for one in arguments)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a script of a recipe to its end, with this interpreter, in less time than the test has."""
    environment = {**os.environ, "PYTHON": sys.executable, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT, check=False)


def check(*command: str) -> None:
    """Run the check of a recipe; 77 skips with the reason that it printed last."""
    found = run([str(CLUSTER / command[0]), *command[1:]] if command[0].endswith(".sh") else
                [sys.executable, str(CLUSTER / command[0]), *command[1:]])  # fmt: skip
    if found.returncode == SKIPPED:
        pytest.skip(found.stdout.strip().splitlines()[-1])
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.cluster
def test_the_recipe_for_one_machine_resumes_gives_the_same_bits_and_rejects_strangers() -> None:
    check("local/check.sh")


def test_the_manifests_are_valid() -> None:
    check("kubernetes/check.py", "manifests")


@pytest.mark.parametrize("how", ["ended", "a zombie"])
def test_a_child_that_ended_since_it_was_listed_listens_nowhere(
    how: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    child = subprocess.Popen(["sleep", "60"])
    listed = psutil.Process(child.pid)
    child.kill()
    if how == "ended":
        child.wait(60)
    monkeypatch.setattr(psutil.Process, "children", lambda process, recursive: [listed])
    main = runpy.run_path(str(CLUSTER / "verify.py"))["main"]
    with socket.create_server(("127.0.0.1", 0)):
        assert main("listens", "127.0.0.1", str(os.getpid())) == 0
    child.wait(60)
    assert "sockets listen" in capfd.readouterr().out


@long
@pytest.mark.timeout(2000)
def test_the_recipe_for_ssh_runs_on_two_hosts() -> None:
    check("ssh/check.sh")


@long
@pytest.mark.timeout(2000)
def test_what_the_image_runs_gives_the_same_bits() -> None:
    check("kubernetes/check.py", "image")


@long
@pytest.mark.timeout(2000)
def test_the_recipe_for_kubernetes_needs_no_shared_disk() -> None:
    check("kubernetes/check.py", "bucket")


@long
@pytest.mark.timeout(3000)
def test_the_recipe_for_slurm_survives_walltimes() -> None:
    check("slurm/check.py")


@long
@pytest.mark.timeout(2000)
def test_the_recipe_for_a_gateway_survives_kills() -> None:
    check("gateway/check.py")
