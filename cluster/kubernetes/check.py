"""Check this recipe as far as that goes without a Kubernetes cluster: nothing here ran on one.

    check.py manifests     the manifests against the schemas of Kubernetes and of the operator
    check.py image         the image's commands in a fresh virtual environment, then its
    containers' commands as processes
    check.py bucket        the containers' commands as processes without a shared disk, on a bucket of a server of S3

The operator's own code makes the objects of the DaskJob (Deployments, Service, Pods), which are then validated too.
Ends with 77 and the reason where a package (dask-kubernetes, kubernetes-validate, snailmail) or a program (openssl) is
missing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SECONDS = 900  # for what hangs: a busy machine is not a failure
KUBERNETES = "1.31"
SKIPPED = 77


def main(what: str) -> int:
    """Run one of the checks."""
    if what == "manifests":
        missing = [name for name in ("dask_kubernetes", "kubernetes_validate") if find_spec(name) is None]
        check = check_manifests
    else:
        missing = [] if shutil.which("openssl") else ["openssl"]
        missing += ["snailmail"] if what == "bucket" and find_spec("snailmail") is None else []
        check = check_bucket if what == "bucket" else check_image
    if missing:
        print(f"skipped: {', '.join(missing)} is missing")
        return SKIPPED
    check()
    print(f"kubernetes: {what} as expected")
    return 0


def documents(*, bucket: bool = False) -> dict[str, dict[str, Any]]:
    """The documents of both files by their kind; with what is to be uncommented for a bucket."""
    text = "\n---\n".join((HERE / name).read_text() for name in ("volume.yaml", "job.yaml"))
    if bucket:
        text = re.sub(r"(?m)^( +)# (envFrom:|- to:|    - ipBlock:|  ports:|    - \{protocol)", r"\1\2", text)
    return {found["kind"]: found for found in yaml.safe_load_all(text)}


def check_manifests() -> None:
    """Validate every document, and every object that the operator makes of the DaskJob."""
    import dask_kubernetes
    import jsonschema
    import kubernetes_validate

    charts = Path(dask_kubernetes.__file__).parent / "operator/deployment/helm/dask-kubernetes-operator/crds"
    definition = yaml.safe_load((charts / "daskjob.yaml").read_text())
    for found in (documents(), documents(bucket=True)):
        job = found.pop("DaskJob")
        jsonschema.validate(job, definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
        print(f"DaskJob: valid for dask-kubernetes {dask_kubernetes.__version__}")
        for made in [*found.values(), *made_by_operator(job)]:
            kubernetes_validate.validate(made, KUBERNETES, strict=True)
            print(f"{made['kind']} {made['metadata']['name']}: valid for Kubernetes {KUBERNETES}")


def made_by_operator(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The operator's Deployments, Service and Pod of a DaskJob, one worker for all."""
    from dask_kubernetes.operator.controller import controller

    name, cluster, none = job["metadata"]["name"], job["spec"]["cluster"]["spec"], {}
    scheduler, worker = cluster["scheduler"], cluster["worker"]
    return [
        controller.build_scheduler_deployment_spec(name, scheduler["spec"], none, none),
        controller.build_scheduler_service_spec(name, scheduler["service"], none, none),
        controller.build_worker_deployment_spec(f"{name}-default", "default", name, "0", worker["spec"], none, none),
        controller.build_job_pod_spec(name, name, "default", job["spec"]["job"]["spec"], none, none),
    ]


def check_image() -> None:
    """Build what the Dockerfile builds, run the containers' commands on a small store, compare with one process."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for name in ("context", "data"):
            (work / name).mkdir()
        run_dockerfile(work)
        run(["python", str(ROOT / "cluster/verify.py"), "store", f"{work}/data/features.zarr"], work)
        run([str(ROOT / "cluster/configure.sh"), f"{work}/tls"], work)
        run_containers(work, f"{work}/data")
        run(["python", str(ROOT / "cluster/verify.py"), "same", f"{work}/data/out"], work)


def check_bucket() -> None:
    """Run the containers' commands on a bucket, with this environment's packages, and compare with one process."""
    import snailmail

    with tempfile.TemporaryDirectory() as temporary, snailmail.ObjectStore(bucket="rows") as server:
        work = Path(temporary)
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": server.endpoint_url,
        }  # fmt: skip
        (work / "venv").symlink_to(Path(sys.executable).parent.parent)
        (work / "context").mkdir()
        copy(ROOT / "cluster/job.py", work / "context")
        run(["python", str(ROOT / "cluster/verify.py"), "store", f"{work}/rows.zarr"], work)
        run(["bigpca", "ingest", f"{work}/rows.zarr", "--out", "s3://rows/features.zarr"], work)
        run([str(ROOT / "cluster/configure.sh"), f"{work}/tls"], work)
        run_containers(work, "s3://rows", bucket=True)
        run(["python", str(ROOT / "cluster/verify.py"), "same", "s3://rows/out"], work)


def run_dockerfile(work: Path) -> None:
    """Run COPY and RUN with the image's working directory under ``work`` and a fresh virtual
    environment for its Python.
    """
    subprocess.run([sys.executable, "-m", "venv", str(work / "venv")], check=True)
    for line in (HERE / "Dockerfile").read_text().splitlines():
        word, *rest = line.split(maxsplit=1)
        if word == "COPY":
            *sources, target = rest[0].split()
            for source in sources:
                copy(ROOT / source, work / "context" / target)
        elif word == "RUN":
            run(shlex.split(rest[0]), work, cwd=work / "context")


def copy(source: Path, target: Path) -> None:
    """Copy as COPY does: the content of a directory, or a file into one."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def run_containers(work: Path, data: str, *, bucket: bool = False) -> None:
    """Start the scheduler's and two workers' commands, run the job's, and stop them."""
    spec = documents(bucket=bucket)["DaskJob"]["spec"]
    cluster = spec["cluster"]["spec"]
    started: list[subprocess.Popen[bytes]] = []
    port = free_port()
    try:
        for name, role in (("scheduler", "scheduler"), ("worker-0", "worker"), ("worker-1", "worker")):
            command, variables = container(cluster[role]["spec"], places(work, data, name, port))
            with open(work / f"{name}.log", "wb") as log:
                started.append(subprocess.Popen(command, env=environment(work) | variables, stderr=log))
        command, variables = container(spec["job"]["spec"], places(work, data, "", port))
        command.append("--solver=covariance")  # one read
        print("+", " ".join(command), flush=True)
        subprocess.run(command, env=environment(work) | variables, timeout=SECONDS, check=True)
    except subprocess.SubprocessError:
        for log in sorted(work.glob("*.log")):
            print(f"== {log.name}\n{log.read_text()}", flush=True)
        raise
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            process.wait(SECONDS)


def places(work: Path, data: str, name: str, port: int) -> dict[str, str]:
    """What stands on this machine for the addresses and directories of the pods."""
    return {
        "$(POD_IP)": "127.0.0.1",
        "$(DASK_SCHEDULER_ADDRESS)": f"tls://127.0.0.1:{port}",
        "bigpca-scheduler:8786": f"127.0.0.1:{port}",
        "$(DASK_WORKER_NAME)": name,
        "--port=8786": f"--port={port}",
        "/etc/bigpca-dask": str(work / "config"),
        "/opt/bigpca": str(work / "context"),
        "/data": data,
        "=/tmp": f"={work}",
        "=64": "=8",
    }


def container(pod: dict[str, Any], there: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command and the variables of a pod's container, on this machine; the Secret of a bucket's is in its own."""
    (found,) = pod["containers"]
    secret = {name: value for name, value in os.environ.items() if name.startswith("AWS_") and "envFrom" in found}

    def here(text: str) -> str:
        for place, real in there.items():
            text = text.replace(place, real)
        return text

    given = {v["name"]: here(v["value"]) for v in found["env"] if "value" in v}
    return [here(word) for word in found["args"]], given | secret


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def environment(work: Path) -> dict[str, str]:
    """The environment of the image: its Python first, the ConfigMap's files, no home."""
    config = work / "config"
    config.mkdir(exist_ok=True)
    for name, text in documents()["ConfigMap"]["data"].items():
        (config / name).write_text(text.replace("/etc/bigpca-tls", str(work / "tls")))
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "LANG", "SSL_"))}
    return {**kept, "PATH": f"{work}/venv/bin:{os.environ['PATH']}", "HOME": "/nonexistent"}


def run(command: list[str], work: Path, cwd: Path | None = None) -> None:
    """Run a command in the image's environment and with a bucket's credentials; its failure ends the check."""
    print("+", " ".join(command), flush=True)
    secret = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    subprocess.run(command, env=environment(work) | secret, cwd=cwd, check=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
