"""Twenty random kills, as ``examples/benchmarks/chaos.py`` makes them: the same bits, nothing lost, nothing left
behind; and what ``chaos_phases.py`` does to workers and connections at one phase of a run.

More: ``python examples/benchmarks/chaos.py --kills 1000``, and ``chaos_phases.py --trials 100``.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bigpca.engine.events import RetryEvent

# A busy machine is no hang: only what never ends fails.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.getcwd(), "CHAOS_PATIENCE": "10"}
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "benchmarks" / "chaos.py"


def chaos(folder: Path, *options: object) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """Run the script; return its table, the lines of its log, and its exit code."""
    log = folder / "kills.jsonl"
    command = [sys.executable, str(SCRIPT), "--directory", str(folder), "--log", str(log), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.stdout, done.stderr[-3000:]
    return (
        json.loads(done.stdout.splitlines()[-1]),
        list(map(json.loads, log.read_text().splitlines())),
        done.returncode,
    )


@pytest.mark.cluster
@pytest.mark.timeout(3000)
def test_random_kills_change_no_bit_and_lose_nothing(tmp_path: Path) -> None:
    row, kills, code = chaos(tmp_path, "--kills", 12, "--seed", 1)
    assert [fault for kill in kills for fault in kill["faults"]] == []
    assert code == 0
    assert row["kills"] == len(kills) == 12
    assert row["identical"] == row["results"] >= 2
    assert (row["rows lost"], row["wrong answers"], row["hangs"], row["other faults"]) == (0, 0, 0, 0)
    assert row["groups read again per kill, at most"] <= 5
    assert len({kill["victim"] for kill in kills}) >= 3
    assert [path.name for path in tmp_path.iterdir()] == ["kills.jsonl"]


def test_what_chaos_looks_for_is_found_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import chaos

    monkeypatch.setattr(chaos, "LITTER_SECONDS", 0.0)
    work, n = chaos.Work("covariance", (25, 64)), chaos.SHAPES["tall"][0]
    read = f"0 {n} 0 64\n"
    cases = {
        "rows lost: 99 of 100": lambda trial: trial.compare("bits", 99),
        "wrong answer": lambda trial: trial.compare("other bits", 100),
        "pass 0 resumed 0 groups of the 1": lambda trial: [
            trial.take_event(event) for event in (("stored", 0, 7), ("pass", 0, n, 50, 0))
        ],
        "an error that no kill explains": lambda trial: trial.take_end(
            ("error", "ConnectionError", "the Dask scheduler is lost")
        ),
        "25.0 groups read again": lambda trial: (trial.places.log.write_text(read * 2), trial.check_reads()),
        "left behind: ['partial']": lambda trial: ((trial.places.run / "partial").touch(), trial.check_litter()),
    }
    for number, (fault, make) in enumerate(cases.items()):
        run = tmp_path / str(number)
        run.mkdir()
        reference = chaos.Reference("bits", 100, n * 64, n * 64 // 50, 50)
        trial = chaos.Trial(work, chaos.Places(tmp_path, run, True), reference, None, on_cluster=True)
        trial.kills = [{"victim": "worker", "attempt": 0}, {"victim": "client", "attempt": 0}]
        make(trial)
        assert len(trial.faults) == 1
        assert trial.faults[0].startswith(fault)


@pytest.mark.cluster
@pytest.mark.timeout(3000)
def test_a_worker_killed_and_a_connection_broken_at_a_phase_change_no_bit() -> None:
    command = [sys.executable, str(SCRIPT.with_name("chaos_phases.py")), "--trials", "2", "--only", "extremes"]
    command += ["--phases", "last group", "--acts", "kill", "break connection"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    row = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, row["faults"], row["reached"]) == (0, 0, 2), done.stdout
    assert row["kill"] == row["break connection"] == 1


def test_what_chaos_looks_for_at_a_phase_is_found_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import chaos_phases as chaos

    @contextmanager
    def scene() -> Iterator[Any]:
        yield SimpleNamespace(client=SimpleNamespace(futures={}), mend=lambda: None)

    def compute(work: Any, places: Any, hear: Any) -> tuple[str, int]:
        hear(RetryEvent("worker lost", 1))
        if errors[-1]:
            raise RuntimeError(errors[-1])
        return "others", 1

    for name in ("dump_traceback_later", "cancel_dump_traceback_later"):  # which would end this process
        monkeypatch.setattr(chaos.faulthandler, name, lambda *arguments, **options: None)
    monkeypatch.setattr(chaos, "scene", scene)
    monkeypatch.setattr(chaos, "compute", compute)
    work, places, lost = chaos.Work("covariance", (25, 64)), chaos.Places(tmp_path, tmp_path), "no worker for 45 s"
    errors = list[str]()
    for act, error, silence, fault in (
        ("join", "", 60.0, "wrong answer: other bits"),
        ("kill", lost, 60.0, "no result"),
        ("join", lost, 60.0, f"an error that nothing explains: RuntimeError: {lost}"),
        ("stop", "", -1.0, "hang: no event for 0 s"),
    ):
        errors.append(error)
        monkeypatch.setattr(chaos, "SILENCE_SECONDS", silence)
        assert fault in chaos.trial(work, places, "solve", act, "bits", chaos.Phases())["faults"]
