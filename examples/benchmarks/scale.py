"""Replay the graphs of a 10 TB job on a real scheduler in its own process, with hundreds of workers that sleep.

usage: python examples/benchmarks/scale.py [covariance krylov transform sketch nystrom kernel] [--workers 400]
[--processes 4] [--seconds 2] [--terabytes 10] [--wait 120]

Real: the fit and its client (a process for each solver), the scheduler, every graph, task, message, key and placement,
the states that reach the client, the left fold over segments, the solve. Replaced, in ``scale_workers.py``: reading and
folding a group is a sleep, and states below a segment's root are a few bytes that Dask takes for the real size, so the
bytes moved are counted, not sent. Scheduler time is processor time; its share at rest, with all workers connected, is
measured first and subtracted.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from distributed import Client
from scale_fit import CASES
from scale_workers import Traffic, take_traffic

FOLDER = Path(__file__).resolve().parent
AT_REST = 10.0  # seconds for which the idle scheduler is watched
TARGET_WORKERS = 1000


@dataclass(frozen=True)
class Cluster:
    """A scheduler process with its workers, and a client that only looks."""

    client: Client
    processes: tuple[psutil.Process, ...]  # the scheduler, and those of the workers

    @property
    def scheduler(self) -> psutil.Process:
        """The process of the scheduler."""
        return self.processes[0]

    def cpu(self) -> np.ndarray:
        """Processor seconds of the scheduler and of each process of workers so far."""
        return np.array([sum(one.cpu_times()[:2]) for one in self.processes])

    def share_at_rest(self) -> np.ndarray:
        """Processor seconds a second of each process while nothing runs."""
        before, began = self.cpu(), time.monotonic()
        time.sleep(AT_REST)
        shares: np.ndarray = (self.cpu() - before) / (time.monotonic() - began)
        return shares

    def peak(self) -> int:
        """Most bytes that the scheduler has held."""
        status = Path(f"/proc/{self.scheduler.pid}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        kib = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
        return 1024 * kib[0] if kib else int(self.scheduler.memory_info().rss)

    def traffic(self) -> list[Traffic]:
        """What the workers did since they were last asked."""
        return list(self.client.run(take_traffic).values())


@contextmanager
def running(command: list[str]) -> Iterator[psutil.Process]:
    """Run a Python process until the end of the block."""
    path = os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])  # the scheduler unpickles what tasks hold
    environment = os.environ | {"DASK_LOGGING__DISTRIBUTED": "critical", "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, *command], env=environment) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


@contextmanager
def cluster_of(workers: int, processes: int, wait: float) -> Iterator[Cluster]:
    """Start a scheduler, and workers in so many processes; wait so many seconds for each."""
    with ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory()), "scheduler.json")
        options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
        scheduler = stack.enter_context(running(["-m", "distributed.cli.dask_scheduler", *options]))
        deadline = time.monotonic() + wait
        while not (file.exists() and file.stat().st_size):
            if time.monotonic() > deadline or not scheduler.is_running():
                raise SystemExit(f"the scheduler did not start within {wait:g} s. Use a larger --wait.")
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        counts = [workers * (i + 1) // processes - workers * i // processes for i in range(processes)]
        commands = [[str(FOLDER / "scale_workers.py"), address, str(count)] for count in counts]
        hosts = [stack.enter_context(running(command)) for command in commands]
        client = stack.enter_context(Client(address, set_as_default=False))
        try:
            client.wait_for_workers(workers, timeout=wait)
        except TimeoutError as error:
            joined = len(client.scheduler_info(n_workers=-1)["workers"])
            raise SystemExit(f"{joined} of {workers} workers joined within {wait:g} s. Use a larger --wait.") from error
        yield Cluster(client, (scheduler, *hosts))


def replay(cluster: Cluster, solver: str, given: argparse.Namespace, at_rest: float) -> dict[str, Any]:
    """Fit once and count."""
    tasks_before = sum(worker.tasks for worker in cluster.traffic())
    cpu, began = cluster.cpu(), time.monotonic()
    command = [str(FOLDER / "scale_fit.py"), solver, cluster.client.scheduler.address]
    sizes = ["--terabytes", str(given.terabytes), "--seconds", str(given.seconds)]
    done = subprocess.run([sys.executable, *command, *sizes], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    (cpu, *hosts), seconds = cluster.cpu() - cpu, time.monotonic() - began
    fit, traffic = json.loads(done.stdout), cluster.traffic()
    tasks = sum(worker.tasks for worker in traffic) - tasks_before
    moved = [move for worker in traffic for move in worker.moved]
    shared = sum("-shared-" in key for key, _ in moved)
    states = [size for key, size in moved if "-shared-" not in key]
    runs = [run for runs in {w.process: w.runs for w in traffic}.values() for run in runs.items()]
    runs = [(name, begun, groups) for name, (begun, groups) in runs if begun > fit["called"]]
    groups, passes = sum(groups for *_, groups in runs), len({name for name, *_ in runs})
    of_each = Counter[str]()
    for name, _, count in runs:
        of_each[name] += count
    largest = max(of_each.values())  # passes of the whole data have so many groups
    return {
        "solver": solver, "tasks": tasks, "groups": groups, "passes": passes, "fit_s": round(fit["fit_s"], 1),
        "work_by_workers_s": round(groups * given.seconds / given.workers, 1),
        "first_task_s": round(min(at for _, at, _ in runs) - fit["called"], 2),
        "scheduler_ms_per_task": round(1e3 * (cpu - at_rest * seconds) / tasks, 2),
        "scheduler_ms_per_task_with_rest": round(1e3 * cpu / tasks, 2), "scheduler_busy": round(cpu / seconds, 2),
        "busiest_process_of_workers": round(max(hosts) / seconds, 2),
        "scheduler_mib": round(cluster.peak() / 2**20), "client_mib": round(fit["peak"] / 2**20),
        "client_mib_over_idle": round((fit["peak"] - fit["idle"]) / 2**20),
        "client_cpu_s": round(fit["cpu_s"], 1), "states_per_group": round(len(states) / groups, 2),
        "moved_per_byte_read": round(sum(states) / (fit["bytes"] * max(1, groups // largest)), 5),
        "shared_copies": shared,
    }  # fmt: skip


def solver_name(name: str) -> str:
    """Check the name of a solver (argparse takes no list as the default of positional arguments with choices)."""
    if name not in CASES:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(CASES)}")
    return name


def main() -> None:
    """Replay the solvers in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("solvers", nargs="*", type=solver_name, default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--workers", type=int, default=400)
    parser.add_argument(
        "--processes", type=int, default=4, help="in which the workers run; each opens some 10,000 files"
    )
    parser.add_argument("--seconds", type=float, default=2, help="that a group takes")
    parser.add_argument("--terabytes", type=float, default=10)
    parser.add_argument("--wait", type=float, default=120, help="seconds for the scheduler and workers to start")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the processes that were started, as Ctrl-C does
    with cluster_of(given.workers, given.processes, given.wait) as cluster:
        at_rest, *hosts = cluster.share_at_rest()
        rest = {"scheduler_at_rest": round(at_rest, 4), "busiest_process_of_workers": round(max(hosts), 4)}
        print(json.dumps({"workers": given.workers, **rest}), flush=True)
        for solver in given.solvers:
            print(json.dumps(replay(cluster, solver, given, at_rest)), flush=True)


if __name__ == "__main__":
    main()
