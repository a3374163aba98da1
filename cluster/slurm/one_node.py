"""A SLURM of one node, to try the recipe where there is none: munged, slurmctld and slurmd in a directory of their own.

Debian's ``slurm-wlm`` and ``munge``, as root, no systemd and no cgroups; everything listens on free ports and ends with
the ``with`` block.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

DAEMONS = ("munged", "slurmctld", "slurmd")
CPUS = 8  # more than there are: jobs of this check wait more than they compute
CONFIGURATION = """\
ClusterName=bigpca
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MinJobAge=7200
SchedulerParameters=sched_interval=2,bf_interval=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory}
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Say why no SLURM can be started here; empty where one can."""
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found: apt-get install --no-install-recommends slurm-wlm munge"
    return "" if os.geteuid() == 0 else "starting SLURM's daemons needs root"


@contextmanager
def one_node(place: Path) -> Iterator[Path]:
    """Run the daemons with their files in ``place``; yields the ``slurm.conf`` that ``SLURM_CONF`` is to name.

    Raises
    ------
    TimeoutError
        Where the node is not ready after 60 s.
    """
    configuration = write_configuration(place)
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    commands = {
        "munged": ["--foreground", "--force", f"--socket={place}/munge.socket", f"--key-file={place}/munge.key",
                   f"--seed-file={place}/munge.seed", f"--pid-file={place}/munge.pid"],
        "slurmctld": ["-D", "-f", str(configuration)],
        "slurmd": ["-D", "-f", str(configuration)],
    }  # fmt: skip
    with ExitStack() as stack:
        for name, options in commands.items():
            with (place / f"{name}.log").open("wb") as log:
                daemon = subprocess.Popen([name, *options], stdout=log, stderr=log, env=environment)
            stack.callback(stop, daemon)
            if name == "munged":
                wait_until((place / "munge.socket").exists, 300, f"munged is not ready; see {place}/munged.log")
        stack.callback(empty_queue, environment)
        ready = ["sinfo", "--noheader", "--states=idle", "--format=%n"]
        wait_until(lambda: run(ready, environment) != "", 300, f"the node is not ready; see {place}/slurmd.log")
        yield configuration


def write_configuration(place: Path) -> Path:
    """Write key and configuration; returns the ``slurm.conf``."""
    place.chmod(0o755)  # munged wants clients to reach its socket
    for name in ("state", "spool"):
        (place / name).mkdir()
    key = place / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    controller_port, node_port = free_ports(2)
    configuration = place / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0], place=place, cpus=CPUS,
            memory=psutil.virtual_memory().total >> 20, controller_port=controller_port, node_port=node_port,
        )
    )  # fmt: skip
    return configuration


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def run(command: list[str], environment: dict[str, str] | None = None) -> str:
    """Output of a command, empty where it fails."""
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60).stdout


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a condition, at most so long.

    Raises
    ------
    TimeoutError
        With ``what`` as its text.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} ({seconds:.0f} s)")
        time.sleep(0.2)


def empty_queue(environment: dict[str, str]) -> None:
    """Cancel what is left, so that no job outlives the daemons."""
    run(["scancel", "--full", "--signal=KILL", "--state=RUNNING"], environment)
    run(["scancel", "--state=PENDING"], environment)
    wait_until(lambda: run(["squeue", "--noheader"], environment) == "", 300, "jobs do not end")


def stop(daemon: subprocess.Popen[bytes]) -> None:
    """Ask a daemon to end; SIGKILL after 30 s."""
    daemon.terminate()
    try:
        daemon.wait(30)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
