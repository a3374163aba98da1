"""Run the recipe on a real Dask Gateway server from end to end: ``python cluster/gateway/check.py``; about two minutes.

Needs ``dask-gateway``, ``dask-gateway-server``, ``sqlalchemy`` and ``openssl``; where one is missing, it prints
the reason and exits with 77. It touches nothing outside a temporary directory and listens only on 127.0.0.1.
"""

from __future__ import annotations

import os
import runpy
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MISSING = [name for name in ("dask_gateway", "dask_gateway_server", "sqlalchemy") if find_spec(name) is None]
if MISSING or shutil.which("openssl") is None:
    print(f"skipped: missing {', '.join(MISSING) or 'the program openssl'}")
    sys.exit(77)

import dask  # noqa: E402
import psutil  # noqa: E402
from distributed import Client  # noqa: E402
from distributed.security import Security  # noqa: E402

RECIPE = Path(__file__).resolve().parent
CLUSTER = RECIPE.parent
sys.path.insert(0, str(CLUSTER))
from verify import measured_pace  # noqa: E402

SERVER = [str(Path(sys.executable).with_name("dask-gateway-server")), "--config"]
NOT_PASSED_ON = ("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES")  # by the server; bits depend on them
PAGES = ("", "/status", "/info/main/workers.html", "/json/counts.json", "/individual-plots.json", "/metrics", "/health")
CERTIFICATE = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=gateway"
CHANGES = """\
load_subconfig({recipe!r})
c = get_config()
c.ClusterConfig.worker_memory = "1 G"
c.ClusterConfig.worker_threads = 1
c.ClusterConfig.idle_timeout = 60
c.ClusterConfig.environment |= {{"DASK_DISTRIBUTED__WORKER__PRELOAD": '["{preload}"]', "SECONDS_PER_GROUP": "2"}}
"""


class Check:
    """The server's directory, the store, and the server while it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files, self.store = folder, folder / "files", folder / "store.zarr"
        self.files.mkdir(mode=0o700)
        self.password = secrets.token_hex(32)
        (self.files / "password").write_text(self.password)
        keys = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
        subprocess.run([*CERTIFICATE.split(), *keys], cwd=self.files, check=True, capture_output=True)
        self.configuration = folder / "changed.py"
        names = {"recipe": str(RECIPE / "dask_gateway_config.py"), "preload": CLUSTER / "slurm/slow_folds.py"}
        self.configuration.write_text(CHANGES.format(**names))
        os.environ |= {
            "GATEWAY_FILES": str(self.files), "GATEWAY_ADDRESS": f"127.0.0.1:{free_port()}",
            "GATEWAY_PASSWORD": self.password, "SSL_CERT_FILE": str(self.files / "cert.pem"),
            "DASK_CONFIG": str(RECIPE / "gateway.yaml"),
        }  # fmt: skip
        dask.config.refresh(paths=[str(RECIPE / "gateway.yaml")])
        for name in NOT_PASSED_ON:
            os.environ.pop(name, None)
        verify("store", self.store)

    @contextmanager
    def server(self) -> Iterator[psutil.Popen]:
        """Run the server; at its end no cluster, no file of a cluster and no password in the log may remain."""
        with (self.folder / "server.log").open("wb") as log:
            server = psutil.Popen([*SERVER, str(self.configuration)], stdout=log, stderr=log)
        try:
            wait_until(lambda: status("/api/health") == 200, 60, "the server does not answer")
            yield server
            files = self.files / "clusters"
            wait_until(
                lambda: not of_clusters(server) and not any(files.iterdir()), 60, "something of a cluster is left"
            )
        finally:
            stop(server, signal.SIGTERM)
        expect(self.password not in (self.folder / "server.log").read_text(), "the server's log holds the password")

    def job(self, out: Path, **settings: str) -> subprocess.Popen[str]:
        """Start ``job.py``."""
        command = [CLUSTER / "job.py", self.store, out, "--cluster", RECIPE / "cluster.py", "--components", 8]
        command += ["--solver", "covariance"]
        environment = {**os.environ, **settings}
        return subprocess.Popen(
            [sys.executable, *map(str, command)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    def same_bits(self, out: Path, job: subprocess.Popen[str], line: str) -> None:
        """Wait for a job, and expect a line in its log and the results of a fit in one process."""
        log = job.communicate(timeout=600 * measured_pace())[0]
        expect(
            job.returncode == 0 and line in log, f"the job exited with {job.returncode}; {line!r} is missing:\n{log}"
        )
        expect(self.password not in log, "the job's log holds the password")
        verify("same", out)


def missing_or_readable_secrets_are_rejected(check: Check) -> None:
    """The server does not start where others can read its directory, or with an empty password."""

    def said() -> str:
        done = subprocess.run(
            [*SERVER, str(check.configuration)],
            capture_output=True,
            text=True,
            timeout=60 * measured_pace(),
            check=False,
        )
        return done.stderr if done.returncode else "it started"

    check.files.chmod(0o755)
    expect("has mode 0755; 0700 was expected" in said(), "the server started with secrets that all can read")
    check.files.chmod(0o700)
    (check.files / "password").write_text("\n")
    expect("holds 0 characters" in said(), "the server started with an empty password")
    (check.files / "password").write_text(check.password)


def strangers_are_rejected(check: Check) -> None:
    """By the server without the password, by a scheduler without the certificate; no page is shown to them."""
    with check.server() as server, runpy.run_path(str(RECIPE / "cluster.py"))["start"]() as cluster:
        answers = [status("/api/v1/clusters/", given) for given in ("", "wrong", check.password)]
        expect(answers == [401, 401, 200], f"the server answers no, a wrong and the right password with {answers}")
        job = check.job(check.folder / "rejected", GATEWAY_PASSWORD="wrong")
        said = job.communicate(timeout=120 * measured_pace())[0]
        expect(
            job.returncode != 0 and "401" in said, f"a job with a wrong password ended with {job.returncode}: {said}"
        )
        with cluster.get_client() as client:
            client.wait_for_workers(2, timeout=120 * measured_pace())
            known = client.scheduler_info(-1)
        for address in (known["address"], *known["workers"]):
            expect(address.startswith("tls://"), f"{address} does not speak TLS")
        for protocol, security in {"tcp": Security(require_encryption=False), "tls": Security.temporary()}.items():
            address = known["address"].replace("tls", protocol)
            expect(is_rejected(address, security), f"a client of {protocol} without the certificate was admitted")
        shown = [page for page in PAGES if status(f"/clusters/{cluster.name}{page}") != 404]
        expect(not shown, f"pages that anyone can see: {shown}")
        verify("listens", "127.0.0.1", server.pid)


def a_killed_worker_is_replaced(check: Check) -> None:
    """A worker and its nanny are killed in mid-run."""
    out = check.folder / "worker"
    with check.server() as server:
        job = check.job(out)
        wait_for_segment(out, job)
        victim = next(
            process for process in of_clusters(server) if "distributed.cli.dask_worker" in command_of(process)
        )
        for process in [victim, *victim.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        logs = check.files / "clusters"  # one for each worker that was ever started
        wait_until(lambda: len([*logs.rglob("worker-*.log")]) == 3, 60, "no worker took its place")
        check.same_bits(out, job, "lost 1 worker(s)")


def a_killed_client_leaves_nothing_and_its_job_resumes(check: Check) -> None:
    """The cluster ends when it has been idle for as long as the configuration says."""
    out = check.folder / "client"
    with check.server() as server:
        killed = check.job(out)
        wait_for_segment(out, killed)
        killed.kill()
        killed.communicate()
        wait_until(lambda: not of_clusters(server), 240, "the cluster of a dead client is left")
        check.same_bits(out, check.job(out), "of 16 groups resumed")


def a_stopped_server_takes_its_clusters_along(check: Check) -> None:
    """The job ends with the exit code of a lost cluster, and goes on when there is a server again."""
    out = check.folder / "server"
    with check.server() as server:
        job = check.job(out)
        wait_for_segment(out, job)
        stop(server, signal.SIGINT)
        log = job.communicate(timeout=300 * measured_pace())[0]
        expect(job.returncode == 7 and "Run the same command again" in log, f"it ended with {job.returncode}:\n{log}")
    with check.server():
        check.same_bits(out, check.job(out), "of 16 groups resumed")


def stop(server: psutil.Popen, how: signal.Signals) -> None:
    """Stop the server; nothing that it has started may be left."""
    if server.poll() is None:
        started = server.children(recursive=True)
        server.send_signal(how)
        server.wait(120 * measured_pace())
        left = psutil.wait_procs(started, timeout=60 * measured_pace())[1]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        expect(not left, f"the server left {left}")


def verify(*arguments: Any) -> None:
    """Run ``cluster/verify.py``, which reports what is wrong."""
    subprocess.run([sys.executable, CLUSTER / "verify.py", *map(str, arguments)], check=True, timeout=1800)


def expect(condition: bool, otherwise: str) -> None:
    """Stop the check where a claim does not hold."""
    if not condition:
        raise SystemExit(f"FAILED: {otherwise}")


def wait_until(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Wait for a condition, at most so many seconds at a pace of 1."""
    limit = seconds * measured_pace()
    deadline = time.monotonic() + limit
    while not condition():
        expect(time.monotonic() < deadline, f"{otherwise} ({limit:.0f} s)")
        time.sleep(0.1)


def of_clusters(server: psutil.Popen) -> list[psutil.Process]:
    """Schedulers and workers that the server has started."""
    children = server.children() if server.poll() is None else []
    return [process for process in children if any("distributed.cli" in word for word in command_of(process))]


def command_of(process: psutil.Process) -> list[str]:
    """Command line of a process; empty where it has ended since it was listed."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def wait_for_segment(out: Path, job: subprocess.Popen[str]) -> None:
    """Wait until the checkpoint of a job holds a segment, or several folded into one."""

    def found() -> bool:
        if job.poll() is not None:
            raise SystemExit(f"FAILED: the job ended early:\n{job.communicate()[0]}")
        return any(any((out / "checkpoint").rglob(name)) for name in ("segment-*.npz", "prefix-*.npz"))

    wait_until(found, 120, "no segment was finished")


def status(path: str, password: str = "") -> int:
    """What the proxy answers; 0 where nothing answers."""
    given = {"Authorization": "Basic " + b64encode(f"ann:{password}".encode()).decode()} if password else {}
    request = urllib.request.Request(f"https://{os.environ['GATEWAY_ADDRESS']}{path}", headers=given)
    try:
        return int(urllib.request.urlopen(request, timeout=60 * measured_pace()).status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def is_rejected(address: str, security: Security) -> bool:
    """Whether a client cannot connect."""
    try:
        with Client(address, security=security, timeout=5 * measured_pace(), set_as_default=False):
            return False
    except OSError:
        return True


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


PARTS = (
    missing_or_readable_secrets_are_rejected,
    strangers_are_rejected,
    a_killed_worker_is_replaced,
    a_killed_client_leaves_nothing_and_its_job_resumes,
    a_stopped_server_takes_its_clusters_along,
)


def main(wanted: list[str]) -> int:
    """Run the parts whose names hold one of the words wanted, or all."""
    with tempfile.TemporaryDirectory(prefix="bigpca-gateway-") as folder:
        check = Check(Path(folder))
        for part in PARTS:
            name, began = part.__name__.replace("_", " "), time.monotonic()
            if wanted and not any(word in name for word in wanted):
                continue
            part(check)
            print(f"passed: {name} ({time.monotonic() - began:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
