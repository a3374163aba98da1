"""Everything shown runs: README blocks and doctests (examples: test_examples.py); what is said
twice is said the same.
"""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import bigpca
from bigpca.cli.commands import app
from bigpca.cli.exits import MEANINGS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
LANE = "-n 2 --dist loadfile -m"
TESTS = f"{LANE} 'not cluster' && .venv/bin/python -m pytest -q {LANE} cluster"
MODULES = sorted(module.name for module in pkgutil.walk_packages(bigpca.__path__, "bigpca."))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_readme_python_and_command_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("bigpca ")]
    assert len(commands) >= 6
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, f"{command}\n{result.output}"


def test_readme_has_exactly_two_commands_that_set_up() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if "venv" in line]
    assert len(lines) == 2
    assert all(line.startswith("python3 -m venv .venv && .venv/bin/pip install -q '.[") for line in lines)
    assert lines[0].endswith(".venv/bin/bigpca demo")
    assert lines[1].endswith(TESTS)


def test_ci_runs_the_test_command_of_the_readme() -> None:
    pattern = re.search(r"grep -m 1 '(.*)' README.md", (ROOT / ".ci" / "run").read_text())
    assert pattern is not None
    found = [line for line in README.splitlines() if re.match(pattern[1], line)]
    assert found == [line for block in blocks("sh") for line in block.splitlines() if line.endswith(TESTS)]


def test_readme_lists_the_exit_codes_that_help_lists() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", README, re.MULTILINE)
    assert rows == [(str(int(code)), meaning) for code, meaning in MEANINGS.items()]


@pytest.mark.parametrize("name", MODULES)
def test_doctests_hold(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    with np.printoptions(legacy=False):
        failed, _ = doctest.testmod(module, extraglobs={"np": np, "bp": bigpca})  # taken as imported
    assert failed == 0
