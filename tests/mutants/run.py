"""Which small faults do the tests notice? ``python tests/mutants/run.py --help``; see README.md in this folder.

Every mutant is written into a scratch copy and tested there by a forked child, which has imported the libraries.
Its tests are those that execute the mutated line, the fastest first, until one fails.
"""

import argparse
import importlib
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutations import Mutant, mutants_of

SEED, DRAWN = 14, 150
FOLDERS = ("solvers", "engine", "passes", "estimators", "storage")
STAGES = (40, 400, 100_000)  # tests that a child collects at once
LIBRARIES = (
    "dask.array", "dask.dataframe", "distributed", "numba", "pandas", "scipy.linalg", "xarray", "zarr",
    "sklearn.decomposition", "sklearn.utils.estimator_checks", "moto.server", "hypothesis", "pyarrow.parquet", "h5py",
)  # fmt: skip
IGNORED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # of what is imported before the fork
Seconds = dict[str, float]
Lines = dict[str, dict[int, list[str]]]


def recorded(prefixes: list[Path]) -> tuple[Lines, Seconds]:
    """Read the tests of every line of every file, and the CPU seconds of every test."""
    lines: Lines = {}
    seconds: Seconds = {}
    for prefix in prefixes:
        import coverage

        seconds |= {test: cpu for test, (_, cpu) in json.loads(prefix.with_suffix(".json").read_text()).items()}
        data = coverage.CoverageData(str(prefix.with_suffix(".coverage")))
        data.read()
        for path in data.measured_files():
            file = "bigpca" + path.split("/bigpca")[-1]
            of_file = lines.setdefault(file, {})
            for line, contexts in data.contexts_by_lineno(path).items():
                of_file.setdefault(line, []).extend(context for context in contexts if context)
    return lines, seconds


def drawn(folder: Path, lines: Lines) -> list[Mutant]:
    """Draw mutants of lines that tests execute."""
    everything = [
        mutant
        for room in FOLDERS
        for path in sorted((folder / "bigpca" / room).rglob("*.py"))
        for mutant in mutants_of(folder, str(path.relative_to(folder)))
        if tests_of(mutant, lines)
    ]
    return sorted(random.Random(SEED).sample(everything, DRAWN))


def tests_of(mutant: Mutant, lines: Lines) -> list[str]:
    of_file = lines.get(mutant.file, {})
    return of_file.get(mutant.line) or of_file.get(mutant.statement) or []


class Judge:
    """Stops at the first failure, after ``limit`` CPU seconds, or in a test that takes ten times what it took."""

    def __init__(self, order: list[str], seconds: Seconds, limit: float) -> None:
        self.rank = {test: i for i, test in enumerate(order)}
        self.seconds, self.limit, self.failed, self.ended = seconds, limit, "", False

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.rank.get(item.nodeid, len(self.rank)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if time.process_time() > self.limit:
            self.ended, item.session.shouldstop = True, "the limit"
        signal.setitimer(signal.ITIMER_PROF, 10 + 10 * self.seconds.get(item.nodeid, 10.0))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed = self.failed or (f"import of {report.nodeid}" if report.failed else "")


def judge_in_child(tests: list[str], seconds: Seconds, limit: float) -> tuple[str, float, bool]:
    """Run tests in a forked child: what failed, the CPU seconds, and whether the limit was reached."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        judge = Judge(tests, seconds, limit)
        try:
            status = int(
                pytest.main(["-xq", "-p", "no:cacheprovider", "-o", "timeout=300", *IGNORED, *tests], plugins=[judge])
            )
        except BaseException as error:  # this is a fork: nothing may return from here
            status, judge.failed = 1, f"pytest raised {error!r}"
        failed = judge.failed or (f"pytest ended with {status}" if status not in (0, 1, 2, 5) else "")
        os.write(writing, json.dumps([failed, judge.ended]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    _, status, usage = os.wait4(child, 0)
    failed, ended = json.loads(answer) if answer else (f"ended by signal {os.WTERMSIG(status)}", False)
    if failed == "pytest ended with 4":
        sys.exit(f"some of these tests are not there: {tests}")
    return failed, usage.ru_utime + usage.ru_stime, ended


def judged(mutant: Mutant, scratch: Path, tests: list[str], seconds: Seconds, limit: float) -> tuple[str, float, bool]:
    """Return the test that failed or "", the CPU seconds, and whether all tests were run that had to be."""
    path = scratch / mutant.file
    original = path.read_bytes()
    path.write_bytes(mutant.source(scratch))
    used, begun = 0.0, 0
    try:
        for stage in STAGES:
            batch, begun = tests[begun : begun + stage], begun + stage
            if not batch:
                break
            failed, cpu, ended = judge_in_child(batch, seconds, limit - used)
            used += cpu
            if failed or ended or used > limit:
                return failed, used, bool(failed)
    finally:
        path.write_bytes(original)
    return "", used, True


def warm() -> None:
    """Import what the tests import, once for all children."""
    for name in LIBRARIES:
        importlib.import_module(name)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scratch", type=Path, help="a copy of the repository that nothing else uses")
    parser.add_argument("results", type=Path, help="JSON lines, one per mutant; those that it holds are not run again")
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="what contexts.py wrote, without endings")
    parser.add_argument(
        "--draw", type=Path, required=True,
        help="the mutants drawn; made from --data where it does not exist. Without --data, the tests that it names run",
    )  # fmt: skip
    parser.add_argument("--kept", type=Path, help="tests to keep, a line each: those that are to go are run after them")
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds per mutant")
    return parser.parse_args()


def planned(given: argparse.Namespace, lines: Lines, seconds: Seconds) -> dict[int, tuple[Mutant, list[list[str]]]]:
    """Return every mutant with its tests: those that are kept, and then the others."""
    if not given.draw.exists():
        rows = [
            {"mutant": number, "redrawn": False, "tests": [], "fault": vars(mutant)}
            for number, mutant in enumerate(drawn(given.scratch, lines))
        ]
        given.draw.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    kept = set(given.kept.read_text().splitlines()) if given.kept else set(seconds)
    found = {}
    for row in map(json.loads, given.draw.read_text().splitlines()):
        number, mutant = row["mutant"], Mutant(**row["fault"])
        if not given.data:
            found[number] = mutant, [[test] for test in row["tests"]]
            continue
        known_by_name = (test for test in set(tests_of(mutant, lines)) if " at 0x" not in test)  # not by an address
        tests = sorted(known_by_name, key=lambda test: seconds.get(test, 1e9))
        found[number] = mutant, [[t for t in tests if t in kept], [t for t in tests if t not in kept]]
    return found


def main() -> None:
    given = arguments()
    lines, seconds = recorded([path.absolute() for path in given.data])
    mutants = planned(given, lines, seconds)
    known = given.results.read_text().splitlines() if given.results.exists() else []
    done = {json.loads(row)["mutant"] for row in known}
    results = given.results.absolute()
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.chdir(given.scratch)
    sys.path.insert(0, os.getcwd())
    warm()
    for number in random.Random(SEED).sample(sorted(mutants), len(mutants)):  # what is done is a fair sample of all
        mutant, groups = mutants[number]
        if number in done:
            continue
        total, failed, complete, kept = 0.0, "", True, False
        for turn, group in enumerate(groups):
            if not failed:
                failed, cpu, complete = judged(mutant, Path.cwd(), group, seconds, given.limit)
                total += cpu
                kept = bool(failed) and (not given.data or turn == 0 or failed[:6] == "import")
        row = {"mutant": number, "killed by": failed, "kept": kept, "seconds": round(total, 1),
               "tests": sum(map(len, groups)), "complete": complete}  # fmt: skip
        with results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{number}: {mutant.file}:{mutant.line} {mutant.shown(Path.cwd())}: {failed or 'SURVIVED'}", flush=True)


if __name__ == "__main__":
    main()
