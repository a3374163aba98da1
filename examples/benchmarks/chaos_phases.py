"""What happens to workers and connections at each phase of each kind of work: the same bits, or an error that is true.

usage: python examples/benchmarks/chaos_phases.py [--trials 100] [--seed 1] [--only NAME ...] [--acts ACT ...]
[--phases PHASE ...] [--log FILE]

A trial is one work of ``chaos_runs.py`` on two worker processes of a LocalCluster. At one phase of it, which is drawn
from those in ``PHASES``, one thing of ``ACTS`` happens, such as SIGSTOP to a worker. The run ends with the bits of one
undisturbed thread, or with an error that the act explains; then it is started again, with the same checkpoint if it has
one. Exits with 1 for other bits, other errors, files or tasks that are left behind, and two minutes without an event or
a warning. Limits of waits are a tenth of the usual ones.
"""

import argparse
import faulthandler
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
from chaos_runs import CHUNKS, ESTIMATORS, NAMES, PATIENCE, WORKERS, Places, Work, compute, prepare
from distributed import Client, LocalCluster

from bigpca.engine import run as engine
from bigpca.engine.cluster import run as cluster_run
from bigpca.engine.cluster import watch
from bigpca.engine.events import GroupEvent, PassEvent, PlanEvent

FOLDER = Path(__file__).resolve().parent
SILENCE_SECONDS = 120.0 * PATIENCE
MAX_ATTEMPTS = 4
PHASES = ("plan", "workers", "first pass", "second pass", "copies", "first group", "last group", "solve", "solved")
SETTINGS = {"distributed.worker.multiprocessing-method": "forkserver", "distributed.scheduler.worker-ttl": "30 s"}
EXPECTED = {  # how a run may end after an act
    "kill": ("workers died", "no worker"),
    "kill all": ("workers died", "no worker"),
    "restart worker": ("were cancelled",),
    "restart all": ("were cancelled", "no worker"),
    "break connection": ("were cancelled",),
    "adapt": ("no worker",),
}


@dataclass
class Scene:
    """A cluster in the midst of a run."""

    cluster: LocalCluster
    client: Client
    processes: dict[str, int]
    stopped: list[int] = field(default_factory=list)

    def signal(self, number: int, count: int) -> None:
        """Send a signal to so many worker processes."""
        for pid in sorted(self.processes.values())[:count]:
            os.kill(pid, number)
            self.stopped += [pid] if number == signal.SIGSTOP else []

    def elsewhere(self, act: Callable[[Client], Any]) -> None:
        """Let another client do something meanwhile."""

        def run() -> None:
            with suppress(Exception), Client(self.cluster.scheduler_address, set_as_default=False) as other:
                act(other)  # which fails if the run is over before it

        threading.Thread(target=run, daemon=True).start()
        time.sleep(0.2)  # so that it is under way before the run, which a hook of a phase holds here, goes on

    def mend(self) -> None:
        """Ensure that there is a worker: a nanny that could not restart its own in time is gone."""
        self.resume()
        self.cluster.scale(WORKERS)
        self.client.wait_for_workers(1, timeout=SILENCE_SECONDS)

    def resume(self) -> None:
        """Continue what was stopped."""
        for pid in self.stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


ACTS: dict[str, Callable[[Scene], Any]] = {
    "kill": lambda scene: scene.signal(signal.SIGKILL, 1),
    "kill all": lambda scene: scene.signal(signal.SIGKILL, WORKERS),
    "stop": lambda scene: scene.signal(signal.SIGSTOP, 1),
    "restart worker": lambda scene: scene.elsewhere(lambda c: c.restart_workers([min(scene.processes)], timeout=40)),
    "restart all": lambda scene: scene.elsewhere(lambda c: c.restart(timeout=40, wait_for_workers=False)),
    "break connection": lambda scene: scene.client.loop.add_callback(lambda: scene.client.scheduler_comm.comm.abort()),
    "join": lambda scene: scene.cluster.scale(WORKERS + 1),
    "adapt": lambda scene: scene.cluster.adapt(minimum=1, maximum=WORKERS + 1, interval="200ms", wait_count=1),
}


@dataclass
class Phases:
    """Finds the phases of a run from its events, and calls ``act`` once, when ``wanted`` begins."""

    wanted: str = ""
    act: Callable[[], Any] | None = None
    reached: bool = False
    passes: int = 0
    left: int = 0
    heard: float = 0.0
    silence: float = 0.0

    def begin(self, wanted: str, act: Callable[[], Any]) -> None:
        """Wait for a phase."""
        vars(self).update(vars(Phases(wanted, act, heard=time.monotonic())))

    def at(self, phase: str) -> None:
        """A phase begins."""
        if phase == self.wanted and self.act is not None:
            act, self.act, self.reached = self.act, None, True
            act()

    def hear(self, event: Any) -> None:
        """An event, a warning or the end."""
        self.silence, self.heard = max(self.silence, time.monotonic() - self.heard), time.monotonic()
        if isinstance(event, PlanEvent):
            self.at("plan")
        elif isinstance(event, PassEvent):
            self.passes, self.left = self.passes + 1, event.groups_total - event.groups_resumed
            self.at("first pass" if self.passes == 1 else "second pass")
        elif isinstance(event, GroupEvent):
            self.at("first group")
            self.left -= 1
            if self.left <= 0:
                self.at("last group")

    def hook(self, owner: Any, name: str, before: str = "", after: str = "") -> None:
        """Let calls of a function begin phases."""
        function = getattr(owner, name)

        def called(*arguments: Any, **options: Any) -> Any:
            self.at(before)
            result = function(*arguments, **options)
            self.at(after)
            return result

        setattr(owner, name, called)


@contextmanager
def scene() -> Iterator[Scene]:
    """Start two worker processes with a nanny each."""
    options = {"dashboard_address": "127.0.0.1:0", "silence_logs": 50, "memory_limit": "1GiB"}
    with LocalCluster(n_workers=WORKERS, threads_per_worker=1, **options) as cluster, Client(cluster) as client:
        client.wait_for_workers(WORKERS, timeout=SILENCE_SECONDS)
        made = Scene(cluster, client, client.run(os.getpid))
        try:
            yield made
        finally:
            made.resume()


def trial(work: Work, places: Places, phase: str, act: str, expected: str, phases: Phases) -> dict[str, Any]:
    """Run one work until it has a result, with one act on the way; return a record of the trial."""
    found: dict[str, Any] = {"work": work.name, "checkpoint": places.checkpoint, "phase": phase, "act": act}
    errors, faults, explained = list[str](), list[str](), EXPECTED.get(act, ())
    faulthandler.dump_traceback_later(SILENCE_SECONDS * MAX_ATTEMPTS, exit=True)
    began = time.monotonic()
    with scene() as there:
        phases.begin(phase, lambda: ACTS[act](there))
        while len(errors) < MAX_ATTEMPTS:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("always")
                    warnings.showwarning = lambda *warning: phases.hear(warning[0])
                    faults += [] if compute(work, places, phases.hear)[0] == expected else ["wrong answer: other bits"]
                break
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}"[:300])
                there.mend()
        phases.hear(None)
        faults += ["no result"] if len(errors) == MAX_ATTEMPTS else []
        faults += [f"an error that nothing explains: {e}" for e in errors if not any(part in e for part in explained)]
        faults += [f"hang: no event for {phases.silence:.0f} s"] if phases.silence > SILENCE_SECONDS else []
        faults += [f"left behind: {name}" for name in [*places.unfinished(), *there.client.futures]]
    faulthandler.cancel_dump_traceback_later()
    seconds, silence = round(time.monotonic() - began, 1), round(phases.silence, 1)
    found |= {"reached": phases.reached, "seconds": seconds, "silence": silence}
    return found | {"errors": errors, "faults": faults}


def main() -> None:
    """Draw trials without repetition, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--acts", nargs="+", choices=ACTS, default=[*ACTS])
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    parser.add_argument("--log", type=Path, help="a line of JSON for each trial")
    given = parser.parse_args()
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": f"{FOLDER}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    for name in ("distributed", "tornado", "asyncio"):  # of nannies and connections that end with a trial
        logging.getLogger(name).setLevel(logging.CRITICAL)
    phases = Phases()
    phases.hook(watch.Watch, "wait_for_workers", before="workers")
    phases.hook(cluster_run.SharedCopies, "take", after="copies")
    phases.hook(cluster_run, "_finish", before="solve", after="solved")
    engine.STALLED_SECONDS, watch.ANSWER_SECONDS = 6, 5
    every = [
        (name, checkpoint, phase, act)
        for name in given.only
        for checkpoint in ((False, True) if Work(name, (0, 0)).takes_checkpoint else (False,))
        for phase in given.phases
        for act in given.acts
    ]
    random.Random(given.seed).shuffle(every)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    expected, found = dict[str, str](), list[dict[str, Any]]()
    try:
        with dask.config.set(SETTINGS):
            prepare(folder)
            for name, checkpoint, phase, act in every:
                if len(found) == given.trials:
                    break
                work = Work(name, CHUNKS[ESTIMATORS[name][0] if name in ESTIMATORS else "tall"][0])
                places = Places(folder, Path(tempfile.mkdtemp(dir=folder)), checkpoint)
                if name not in expected:
                    alone = Places(folder, Path(tempfile.mkdtemp(dir=folder)), slow=False)
                    with dask.config.set(scheduler="sync"):
                        expected[name] = compute(work, alone, lambda event: None)[0]
                found.append(trial(work, places, phase, act, expected[name], phases))
                print(time.strftime("%H:%M:%S"), json.dumps(found[-1]), flush=True)
                if given.log is not None:
                    with given.log.open("a") as file:
                        file.write(json.dumps(found[-1]) + "\n")
                shutil.rmtree(places.run, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    row = {"trials": len(found), "reached": sum(one["reached"] for one in found)}
    row |= {"faults": sum(bool(one["faults"]) for one in found), "errors": sum(len(one["errors"]) for one in found)}
    row |= {"longest silence": max((one["silence"] for one in found), default=0.0)}
    row |= Counter(one["act"] for one in found if one["reached"])
    print(json.dumps(row))
    sys.exit(row["faults"] > 0)


if __name__ == "__main__":
    main()
