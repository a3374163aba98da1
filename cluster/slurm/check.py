"""Run the recipe on SLURM from end to end: ``python cluster/slurm/check.py``; about 20 minutes.

usage: python cluster/slurm/check.py [--pace N] [WORD ...]

Words choose the parts whose names contain one of them. All parts are run, whichever fail; the failed ones are listed
at the end, and the exit code is 1. Waits, walltimes and slow reads are N times as long on a slow machine: by default,
N is measured by the start of a Python process that imports what a worker imports.

Where ``sinfo`` finds no SLURM, one of one node is started (root, Debian's ``slurm-wlm`` and ``munge``); where that
cannot be, the reason is said and the exit code is 77. Jobs are killed by walltimes of N minutes; SLURM has none
shorter than one minute. Results are compared, bit for bit, with a fit in this process.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
import psutil
import yaml
from distributed import Client

RECIPE = Path(__file__).resolve().parent
ROOT = RECIPE.parents[1]
sys.path[:0] = [str(RECIPE), str(RECIPE.parent)]
from one_node import one_node, run, wait_until, why_not  # noqa: E402
from verify import measured_pace  # noqa: E402

SECONDS_PER_GROUP = 10  # 80 s for the 16 groups with two workers, more than the walltime; and as long for the scores
OWN_JOBS = ("bigpca-worker", "bigpca")  # their names in the queue
EVERYONE = {"0.0.0.0", "::"}
SKIPPED = 77


class Place:
    """A directory that this check and all jobs see: the store, Dask's configuration, and an OUT for each part.

    ``pace`` is by how much everything takes longer than on the machine for which the seconds were chosen.
    """

    def __init__(self, folder: Path, pace: int) -> None:
        self.pace = pace
        self.folder, self.store, self.configuration = folder, folder / "store.zarr", folder / "dask"
        os.environ["DASK_CONFIG"] = str(self.configuration)
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        for arguments in ([self.configuration, RECIPE / "jobqueue.yaml"], [folder / "stranger"]):
            subprocess.run([ROOT / "cluster/configure.sh", *arguments], check=True, stdout=subprocess.DEVNULL)
        verify("store", self.store)

    def configure(self, seconds_per_group: float, minutes: int, lifetime: int = 600, stagger: int = 60) -> None:
        """Edit ``jobqueue.yaml``: what is known only here, slow folds, and how long a worker's job may run.

        The walltime is given in minutes, the lifetime in seconds, all at a pace of 1.
        """
        pace = self.pace
        settings = yaml.safe_load((RECIPE / "jobqueue.yaml").read_text())
        jobs = settings["jobqueue"]["slurm"]
        arguments = jobs["worker-extra-args"]
        arguments[arguments.index("--lifetime") + 1] = f"{pace * lifetime}s"
        arguments[arguments.index("--lifetime-stagger") + 1] = f"{pace * stagger}s"
        arguments += ["--preload", str(RECIPE / "slow_folds.py")]
        jobs["job-script-prologue"].append(f"export SECONDS_PER_GROUP={pace * seconds_per_group}")
        jobs |= {"memory": "1GiB", "job-mem": "2G", "cores": 1, "interface": interface()}
        jobs |= {"walltime": f"{pace * minutes}", "death-timeout": 60 * pace}  # SLURM reads a number as minutes
        jobs |= {"log-directory": str(self.folder / "logs"), "local-directory": str(self.folder)}
        (self.configuration / "jobqueue.yaml").write_text(yaml.safe_dump(settings))

    def job(self, out: Path) -> list[str]:
        """Arguments of ``job.py``, all but the cluster."""
        return [str(self.store), str(out), "--components", "8", "--solver", "covariance"]

    def start_job(self, out: Path, **settings: str) -> subprocess.Popen[str]:
        """Start ``job.py`` on this recipe's cluster."""
        command = [
            sys.executable,
            str(ROOT / "cluster/job.py"),
            *self.job(out),
            "--cluster",
            str(RECIPE / "cluster.py"),
        ]
        environment = {**os.environ, **settings}
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run_job(self, out: Path, **settings: str) -> tuple[int, str]:
        """Run ``job.py``; returns its exit code and what it printed."""
        job = self.start_job(out, **settings)
        try:
            log = job.communicate(timeout=1200 * self.pace)[0]
        except subprocess.TimeoutExpired:
            job.kill()
            raise Failure(f"job.py has not ended:\n{job.communicate()[0]}") from None
        return job.returncode, log

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for a condition, at most so many seconds at a pace of 1."""
        wait_until(condition, self.pace * seconds, what)


def verify(*arguments: Any) -> None:
    """Ask ``cluster/verify.py``, which says what is wrong."""
    subprocess.run([sys.executable, ROOT / "cluster/verify.py", *map(str, arguments)], check=True, timeout=1800)


class Failure(Exception):
    """A claim of the recipe that does not hold."""


def expect(condition: bool, otherwise: str) -> None:
    """End a part where a claim does not hold."""
    if not condition:
        raise Failure(otherwise)


def interface() -> str:
    """An interface that other machines can reach, where there is one."""
    up = [name for name, state in psutil.net_if_stats().items() if state.isup and name != "lo"]
    addresses = psutil.net_if_addrs()
    return next((name for name in up if any(a.family == socket.AF_INET for a in addresses[name])), "lo")


def states(name: str) -> dict[str, str]:
    """State of each job of that name that SLURM still knows, those that ended in the last minutes among them."""
    found = {}
    for line in run(["scontrol", "--oneliner", "show", "jobs"]).splitlines():
        job, state = re.search(r"JobId=(\d+) JobName=(\S+)", line), re.search(r"JobState=(\S+)", line)
        if job and state and job[2] == name:
            found[job[1]] = state[1]
    return found


def state_at_end(place: Place, driver: str) -> str:
    """Wait for a job of ``driver.sbatch`` and return its last state."""

    def state() -> str:
        return states("bigpca").get(driver, "")

    place.wait(lambda: state() not in ("PENDING", "RUNNING", "COMPLETING"), 900, f"the job {driver} runs on")
    return state()


def without_certificates_nothing_starts(place: Place, out: Path) -> None:
    """``cluster.py`` rejects Dask's defaults, under which workers would be open to anyone."""
    code, log = place.run_job(out, DASK_CONFIG=str(out))
    expect(code != 0 and "Make one with cluster/configure.sh" in log, f"it ran: {log}")


def workers_use_tls_and_reject_strangers(place: Place, out: Path) -> None:
    """dask-jobqueue has dropped ``security`` before (its issues 397 and 438), so that each listener is tried."""
    place.configure(0, 5)
    dask.config.refresh(paths=[str(place.configuration)])
    with runpy.run_path(str(RECIPE / "cluster.py"))["start"]() as cluster, cluster.get_client() as client:
        client.wait_for_workers(2, timeout=300 * place.pace)
        addresses = [cluster.scheduler_address, *listeners_of_workers(client)]
        for address in addresses:
            expect(address.startswith("tls://"), f"{address} does not speak TLS")
            expect(wants_a_certificate(address), f"{address} lets in who has no certificate")
        own = {c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"}
        expect(not own & EVERYONE, f"the scheduler listens on all interfaces: {own}")
        verify("rejects", cluster.scheduler_address, place.folder / "stranger")
        print(f"  {len(addresses)} listeners: scheduler, workers, nannies")


def listeners_of_workers(client: Client) -> list[str]:
    """Addresses of workers and nannies, after a look at all sockets that they have open."""

    def listening(dask_worker: Any) -> tuple[str, set[str]]:
        family = [psutil.Process(pid) for pid in (os.getpid(), os.getppid())]  # the worker and its nanny
        return dask_worker.nanny, {c.laddr.ip for p in family for c in p.net_connections("tcp") if c.status == "LISTEN"}

    found = client.run(listening)
    for name, (_, ips) in found.items():
        expect(not ips & EVERYONE, f"the worker {name} listens on all interfaces: {ips}")
    return [*found, *(nanny for nanny, _ in found.values())]


def wants_a_certificate(address: str) -> bool:
    """Whether a listener ends a TLS handshake that brings no certificate, and for that reason."""
    host, port = address.removeprefix("tls://").rsplit(":", 1)
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, int(port)), timeout=120) as plain, anyone.wrap_socket(plain) as wrapped:
            wrapped.recv(1)  # TLS 1.3 says no to what follows the handshake
    except ssl.SSLError as error:
        return error.reason == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    return False


def workers_retire_before_their_walltime(place: Place, out: Path) -> None:
    """None is killed, more than two have worked."""
    place.configure(SECONDS_PER_GROUP / 4, 1, lifetime=25, stagger=5)
    before = states("bigpca-worker")
    code, log = place.run_job(out)
    expect(code == 0, f"job.py failed with {code}:\n{log}")
    new = {job: state for job, state in states("bigpca-worker").items() if job not in before}
    expect(len(new) > 2 and "TIMEOUT" not in new.values(), f"jobs ended so: {new}\n{log}")
    print(f"  states of worker jobs: {new}")


def workers_are_killed_by_their_walltime(place: Place, out: Path) -> None:
    """Their lifetime is longer than the walltime, as where it was forgotten."""
    place.configure(SECONDS_PER_GROUP, 1)
    before = states("bigpca-worker")
    code, log = place.run_job(out)
    expect(code == 0, f"job.py failed with {code}:\n{log}")
    new = {job: state for job, state in states("bigpca-worker").items() if job not in before}
    expect("TIMEOUT" in new.values() and "lost" in log, f"no worker was killed: {new}\n{log}")
    print(f"  states of worker jobs: {new}")


def a_client_killed_by_its_walltime_goes_on_in_the_next_job(place: Place, out: Path) -> None:
    """``driver.sbatch`` runs out of its minute; the same again, which waits for that, reads what was missing."""
    place.configure(SECONDS_PER_GROUP, 15)
    driver = [str(RECIPE / "driver.sbatch"), *place.job(out)]
    submit = ["sbatch", "--parsable", f"--chdir={ROOT}", f"--output={out}/driver-%j.log"]
    first = run([*submit, f"--time={place.pace}", *driver]).strip()
    second = run(
        [*submit, f"--time={15 * place.pace}", "--kill-on-invalid-dep=yes", f"--dependency=afternotok:{first}", *driver]
    ).strip()
    ended = [state_at_end(place, one) for one in (first, second)]  # in turn: SLURM soon forgets jobs
    logs = {job: (out / f"driver-{job}.log").read_text() for job in (first, second)}
    expect(ended == ["TIMEOUT", "COMPLETED"], f"jobs ended so: {ended}\n{logs}")
    resumed = re.search(r"(\d+) of 16 groups resumed", logs[second])
    expect(resumed is not None and int(resumed[1]) > 0, f"nothing was resumed:\n{logs}")
    print(f"  first {ended[0]}, then {ended[1]} with {resumed[0]}" if resumed else "")


def workers_of_a_killed_client_leave_the_queue(place: Place, out: Path) -> None:
    """They stop by themselves, long before their walltime."""
    place.configure(SECONDS_PER_GROUP, 15)
    before = states("bigpca-worker")
    client = place.start_job(out)

    def running() -> list[str]:
        return [state for job, state in states("bigpca-worker").items() if job not in before and state == "RUNNING"]

    try:
        place.wait(lambda: len(running()) == 2 and (out / "checkpoint").exists(), 120, "no run has begun")
    finally:
        client.kill()
        client.communicate()
    place.wait(lambda: not running(), 180, "workers of a dead client hold the queue")


PARTS = (
    without_certificates_nothing_starts,
    workers_use_tls_and_reject_strangers,
    workers_retire_before_their_walltime,
    workers_are_killed_by_their_walltime,
    a_client_killed_by_its_walltime_goes_on_in_the_next_job,
    workers_of_a_killed_client_leave_the_queue,
)


def run_parts(folder: Path, wanted: list[str], pace: int) -> int:
    """Run the parts whose names contain one of the words wanted, or all; return 1 if any of them failed."""
    print(f"{run(['sinfo', '--version']).strip()}, pace {pace}", flush=True)
    place, failed, earlier = Place(folder, pace), [], own_jobs()
    for part in PARTS:
        name = part.__name__.replace("_", " ")
        if wanted and not any(word in name for word in wanted):
            continue
        began, out = time.monotonic(), folder / part.__name__
        out.mkdir()
        try:
            part(place, out)
            if (out / "scores.zarr").exists():
                verify("same", out)
            place.wait(lambda: own_jobs() <= earlier, 180, "jobs are left in the queue")
            result = "passed"
        except Exception:  # of any kind: the other parts are to be tried all the same
            print(traceback.format_exc(), flush=True)
            result = "FAILED"
            failed.append(name)
            run(["scancel", *sorted(own_jobs() - earlier)])
        print(f"{result}: {name} ({time.monotonic() - began:.0f} s)", flush=True)
    if failed:
        print(f"{len(failed)} failed: {'; '.join(failed)}. On a slow or busy machine, try --pace {2 * pace}")
    return 1 if failed else 0


def own_jobs() -> set[str]:
    """Jobs in the queue with the names of this recipe, of this user."""
    found = run(["squeue", "--noheader", "--me", f"--name={','.join(OWN_JOBS)}", "--format=%i"])
    return set(found.split())


def main(arguments: list[str]) -> int:
    """Find a SLURM or start one, and run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="run only parts whose names contain one of them")
    parser.add_argument("--pace", type=int, metavar="N", help="waits and walltimes are N times as long")
    given = parser.parse_args(arguments)
    if find_spec("dask_jobqueue") is None:
        print("skipped: missing dask_jobqueue: pip install dask-jobqueue")
        return SKIPPED
    pace = measured_pace() if given.pace is None else max(1, given.pace)
    with tempfile.TemporaryDirectory(prefix="bigpca-slurm-", dir=os.environ.get("SHARED")) as folder:
        if shutil.which("sinfo") and run(["sinfo", "--noheader"]):
            return run_parts(Path(folder), given.words, pace)
        if why_not():
            print(f"skipped: sinfo finds no SLURM, and none can be started: {why_not()}")
            return SKIPPED
        (Path(folder) / "slurm").mkdir()
        with one_node(Path(folder) / "slurm") as configuration:
            os.environ["SLURM_CONF"] = str(configuration)
            return run_parts(Path(folder), given.words, pace)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
