"""A pytest plugin that records which tests execute which lines, and how long each test takes.

``python -m pytest -p tests.mutants.contexts`` writes ``$MUTANTS_DATA.coverage`` (one context per test) and
``$MUTANTS_DATA.json`` (seconds per test).
"""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

OUTPUT = os.environ["MUTANTS_DATA"]
FOLDERS = ("solvers", "engine", "passes", "estimators", "storage")
recorder = coverage.Coverage(
    data_file=f"{OUTPUT}.coverage", include=[f"*/bigpca/{folder}/*" for folder in FOLDERS], config_file=False
)
recorder.set_option("run:core", "ctrace")
recorder.start()
seconds: dict[str, tuple[float, float]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    recorder.switch_context(item.nodeid)
    wall, cpu = time.perf_counter(), time.process_time()
    result = yield
    seconds[item.nodeid] = (time.perf_counter() - wall, time.process_time() - cpu)
    recorder.switch_context("")
    return result


def pytest_unconfigure() -> None:
    recorder.stop()
    recorder.save()
    Path(f"{OUTPUT}.json").write_text(json.dumps(seconds), encoding="utf-8")
