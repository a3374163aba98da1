"""Random kills of workers, scheduler and client over random solvers, chunkings and schedulers, until so many kills.

usage: python examples/benchmarks/chaos.py [--kills 1000] [--seed 1] [--directory DIRECTORY] [--log FILE]

Workers and scheduler die of SIGKILL, the client (a process) of SIGKILL or of an interrupt. Every disturbed run is
started again until it ends, and its result is compared, bit by bit, with that of an undisturbed run of one thread.
Nothing may be lost: rows are counted, no unfinished output may be seen, no temporary file may stay, no wait may be
endless, and a rerun reads again no more groups than were in flight. Exits with 1 where any of that does not hold.
"""

import argparse
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import numpy as np
from chaos_runs import (
    CHUNKS,
    ESTIMATORS,
    NAMES,
    PATIENCE,
    SHAPES,
    START_SECONDS,
    WORKERS,
    Cluster,
    Places,
    Work,
    compute,
    digest_of_output,
    prepare,
    serve,
    values_read,
)

from bigpca.engine.events import GroupEvent

SILENCE_SECONDS = 120.0 * PATIENCE  # without any word from the client: a hang
LITTER_SECONDS = 10.0 * PATIENCE  # orphaned tasks may end in
MAX_ATTEMPTS = 30
IN_FLIGHT = 2 * WORKERS + 1  # groups: twice the threads, and the one that is being taken in
VICTIMS = {"worker": 10, "both workers": 1, "scheduler": 3, "client": 4, "client interrupted": 3}
DIED = ("RuntimeError: workers died", "tasks of this pass failed", "TimeoutError: no worker")
EXPECTED = {  # how a client may end after a kill
    "worker": DIED,
    "both workers": DIED,
    "scheduler": ("ConnectionError: the Dask scheduler is lost", "OSError: Timed out"),
    # The second: Dask's client gives its own closing up, which an interrupt in the wrong moment
    # blocks once in some hundred.
    "client interrupted": ("interrupted", "TimeoutError: timed out after 60 s"),
}
FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Reference:
    """An undisturbed run: its result, the values it read, and the most values that one group reads."""

    digest: str
    rows: int
    values: int
    group_values: int
    groups: int

    @classmethod
    def of(cls, work: Work, folder: Path) -> "Reference":
        """Run with one thread, in this process."""
        place = Path(tempfile.mkdtemp(dir=folder))
        events: list[Any] = []
        with dask.config.set(scheduler="sync"):
            digest, rows = compute(work, Places(folder, place, slow=False), events.append)
        groups = [event.rows for event in events if isinstance(event, GroupEvent)]
        n, d = SHAPES[work.shape_name]
        most = n * d if work.shape_name == "short" else max(groups) * (n if work.shape_name == "wide" else d)
        values = values_read(place / "reads")
        shutil.rmtree(place)
        return cls(digest, rows, values, most, len(groups))


@dataclass
class Trial:
    """One result, and the kills on the way to it."""

    work: Work
    places: Places
    reference: Reference
    cluster: Cluster
    on_cluster: bool
    kills: list[dict[str, Any]] = field(default_factory=list)
    attempts: int = 0
    faults: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    stored: dict[int, set[int]] = field(default_factory=dict)
    groups_again: float = 0.0

    def run(self, wanted: int, rng: random.Random) -> None:
        """Run until there is a result, with at most ``wanted`` kills on the way."""
        ended = False
        while not ended and not self.faults:
            self.attempts += 1
            if self.attempts > MAX_ATTEMPTS:
                self.faults.append(f"no result after {MAX_ATTEMPTS} attempts: {dict(self.errors)}")
                return
            if self.on_cluster:
                self.cluster.start()
            ended = self.attempt(wanted, rng)
            if not ended and self.work.makes_output and self.places.out.exists():
                self.compare(*digest_of_output(self.places.out))  # it was killed after its last step
                ended = True
        self.check_reads()
        self.check_litter()

    def attempt(self, wanted: int, rng: random.Random) -> bool:
        """Start the client once, and kill what is to be killed; whether it came to its result."""
        receiver, sender = self.cluster.context.Pipe(duplex=False)
        address = self.cluster.address if self.on_cluster else ""
        client = self.cluster.context.Process(target=serve, args=(self.work, self.places, address, sender))
        client.start()
        sender.close()
        seen = 0
        due = self.next_kill(seen, wanted, rng)
        try:
            while True:
                if not receiver.poll(SILENCE_SECONDS):
                    self.hang(client)
                    return False
                message = receiver.recv()
                if message[0] in ("done", "error", "interrupted"):
                    return self.take_end(message)
                self.take_event(message)
                seen += message[0] == "group"
                if seen >= due and self.kill(client, seen, rng):
                    due = self.next_kill(seen, wanted, rng)
        except (EOFError, OSError):
            return False  # it was killed
        finally:
            receiver.close()
            client.join(START_SECONDS)
            if client.is_alive():
                self.hang(client)

    def next_kill(self, seen: int, wanted: int, rng: random.Random) -> float:
        """Return after how many groups the next kill is due."""
        if len(self.kills) >= wanted:
            return float("inf")
        return seen + rng.randint(1, max(2, self.reference.groups // (wanted + 1)))

    def take_event(self, message: tuple[Any, ...]) -> None:
        """Check that what was stored is not read again."""
        if message[0] == "stored":
            self.stored.setdefault(message[1], set()).add(message[2])
        elif message[0] == "pass" and not self.work.makes_output:
            number, resumed, known = message[1], message[4], len(self.stored.get(message[1], ()))
            if resumed < known:
                self.faults.append(f"pass {number} resumed {resumed} groups of the {known} that were stored")

    def take_end(self, message: tuple[Any, ...]) -> bool:
        """Compare a result; count an error."""
        if message[0] == "done":
            if self.kills and self.kills[-1]["attempt"] == self.attempts and "client" in self.kills[-1]["victim"]:
                self.kills.pop()  # it was done before the signal came
            self.compare(message[1], message[2])
            return True
        name = ": ".join(message)
        self.errors[name.split(". ")[0]] += 1
        killed = {kill["victim"] for kill in self.kills if kill["attempt"] == self.attempts}
        if not any(part in name for victim, parts in EXPECTED.items() if victim in killed for part in parts):
            self.faults.append(f"an error that no kill explains: {name}")
        return False

    def compare(self, digest: str, rows: int) -> None:
        """Hold a result against the undisturbed one."""
        if rows != self.reference.rows:
            self.faults.append(f"rows lost: {rows} of {self.reference.rows}")
        if digest != self.reference.digest:
            self.faults.append("wrong answer: other bits than the undisturbed run's")

    def kill(self, client: Any, seen: int, rng: random.Random) -> bool:
        """Kill something that is alive."""
        names = list(VICTIMS) if self.on_cluster else ["client", "client interrupted"]
        victim = rng.choices(names, [VICTIMS[name] for name in names])[0]
        if victim == "worker":
            killed = self.cluster.kill_worker(rng.randrange(WORKERS))
        elif victim == "both workers":
            killed = all(list(map(self.cluster.kill_worker, range(WORKERS))))
        elif victim == "scheduler":
            killed = self.cluster.kill_scheduler()
        else:
            os.kill(client.pid, signal.SIGKILL if victim == "client" else signal.SIGINT)
            killed = True
        if killed:
            self.kills.append({"victim": victim, "attempt": self.attempts, "after_groups": seen})
        return killed

    def hang(self, client: Any) -> None:
        """Write down where every thread of a client that says nothing stands, and end it."""
        os.kill(client.pid, signal.SIGUSR1)
        time.sleep(3)
        client.kill()
        client.join(START_SECONDS)
        stacks = (self.places.run / "stderr").read_text()[-4000:]
        self.faults.append(f"hang: no word for {SILENCE_SECONDS:.0f} s\n{stacks}")
        self.cluster.stop()

    def check_reads(self) -> None:
        """Check that no more was read again than was in flight at each kill, where finished groups are kept."""
        only_workers = all("worker" in kill["victim"] for kill in self.kills)
        if not (self.places.checkpoint or self.work.makes_output or only_workers) or not self.kills:
            return
        extra = values_read(self.places.log) - self.reference.values
        if self.work.shape_name == "short":  # a kernel's solvers also look at rows outside their passes, once a start
            extra -= (self.attempts - 1) * int(np.prod(SHAPES["short"]))
        self.groups_again = max(0.0, extra / self.reference.group_values / len(self.kills))
        if self.groups_again > IN_FLIGHT:
            self.faults.append(f"{self.groups_again:.1f} groups read again for each of {len(self.kills)} kills")

    def check_litter(self) -> None:
        """Check that nothing is left but the result and the checkpoint; tasks that were orphaned may take a moment."""
        if self.faults:
            return
        deadline = time.monotonic() + LITTER_SECONDS
        while litter := self.litter():
            if time.monotonic() > deadline:
                self.faults.append(f"left behind: {litter[:5]}")
                return
            time.sleep(0.1)

    def litter(self) -> list[str]:
        """Names that should not be there."""
        known = {"reads", "stderr", "out.zarr", "out.html", "checkpoint"}
        found = [path.name for path in self.places.run.iterdir() if path.name not in known]
        hidden = [str(p) for name in ("out.zarr", "checkpoint") for p in (self.places.run / name).rglob(".*")]
        return found + hidden + self.places.unfinished()


def random_work(rng: random.Random, names: tuple[str, ...]) -> Work:
    """Draw what to compute, its chunks, and whether it is read through a Dask graph."""
    name = rng.choice(names)
    shape = ESTIMATORS[name][0] if name in ESTIMATORS else "tall"
    return Work(name, rng.choice(CHUNKS[shape]), general=shape != "wide" and rng.random() < 0.3)


def report(trials: list[Trial], seconds: float) -> dict[str, Any]:
    """Print the table and return it."""
    kills = [kill for trial in trials for kill in trial.kills]
    faults = [fault for trial in trials for fault in trial.faults]
    row: dict[str, Any] = {"kills": len(kills), **Counter(kill["victim"] for kill in kills)}
    row |= {
        "results": len(trials),
        "identical": sum(not t.faults for t in trials),
        "attempts": sum(t.attempts for t in trials),
    }
    kinds = {"rows lost": "rows lost", "wrong answers": "wrong answer", "hangs": "hang"}
    row |= {name: sum(fault.startswith(start) for fault in faults) for name, start in kinds.items()}
    row |= {"other faults": len(faults) - sum(row[name] for name in kinds)}
    row |= {"groups read again per kill, at most": round(max((t.groups_again for t in trials), default=0.0), 2)}
    row |= {"seconds per kill": round(seconds / max(1, len(kills)), 2)}
    for name, value in row.items():
        print(f"{name:>40}  {value}")
    return row


def main() -> None:
    """Kill until there were so many kills."""
    parser = argparse.ArgumentParser(
        usage="python examples/benchmarks/chaos.py [--kills 1000] [--seed 1] [--directory DIRECTORY] [--log FILE]",
        description=__doc__.split("\n")[0],
    )
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--log", type=Path, help="a line of JSON for each kill")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--kills-per-run", type=int, default=8, help="at most")
    given = parser.parse_args()
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": f"{FOLDER}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=given.directory))
    try:
        trials, seconds = run_trials(given, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    row = report(trials, seconds)
    print(json.dumps(row))
    sys.exit(any(trial.faults for trial in trials))


def run_trials(given: argparse.Namespace, folder: Path) -> tuple[list[Trial], float]:
    """Run one trial after the other until there were enough kills."""
    prepare(folder)
    rng = random.Random(given.seed)
    cluster, references = Cluster(folder), {}
    trials: list[Trial] = []
    began = time.perf_counter()
    try:
        while (killed := sum(len(trial.kills) for trial in trials)) < given.kills:
            work = random_work(rng, tuple(given.only))
            if work not in references:
                references[work] = Reference.of(work, folder)
            place = Path(tempfile.mkdtemp(dir=folder))
            places = Places(folder, place, checkpoint=work.takes_checkpoint and rng.random() < 0.75)
            trial = Trial(work, places, references[work], cluster, on_cluster=rng.random() < 0.8)
            trial.run(min(rng.randint(1, given.kills_per_run), given.kills - killed), rng)
            trials.append(trial)
            note(trial, len(trials), given.log)
            shutil.rmtree(place, ignore_errors=True)
    finally:
        cluster.stop()
    return trials, time.perf_counter() - began


def note(trial: Trial, number: int, log: Path | None) -> None:
    """Print a line for the trial, and log one for each of its kills."""
    work = trial.work
    where = "cluster" if trial.on_cluster else "threads"
    what = {"run": number, "work": work.name, "chunks": list(work.chunks), "general": work.general, "scheduler": where}
    what |= {"checkpoint": trial.places.checkpoint, "attempts": trial.attempts, "errors": dict(trial.errors)}
    what |= {"groups_read_again_per_kill": round(trial.groups_again, 2), "faults": trial.faults}
    print(
        f"{time.strftime('%H:%M:%S')} {json.dumps(what | {'kills': [kill['victim'] for kill in trial.kills]})}",
        flush=True,
    )
    if log is not None:
        with log.open("a") as file:
            file.writelines(json.dumps(kill | what) + "\n" for kill in trial.kills)


if __name__ == "__main__":
    main()
