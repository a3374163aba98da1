"""Run the command line in this process, or in a child that can be interrupted."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import cache
from typing import Any

from typer import testing

from bigpca.cli.commands import app

ROWS, COLUMNS = 3000, 12
testing._get_command = cache(testing._get_command)  # else each call makes all commands anew, which takes 20 ms

# The command line with reads slow enough to be interrupted in mid-pass, on one thread.
# A test run started in the background ignores SIGINT, and so would its children.
SLOW = """
import signal
import time
import dask
from bigpca.cli import main
from bigpca.data.source import Source
read = Source.read
def slow(*arguments, **options):
    time.sleep(0.1)
    return read(*arguments, **options)
Source.read = slow
dask.config.set(num_workers=1)
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


def run(*arguments: object) -> Any:
    return testing.CliRunner().invoke(app, [str(argument) for argument in arguments])


def words(text: str) -> str:
    """A text without line breaks and frames."""
    return " ".join(text.replace("│", " ").split())


def line_of(said: str, name: str) -> str:
    """The text of a row of a table; of its first line if it has several."""
    return next(line for line in said.splitlines() if line.startswith(f"{name} ")).removeprefix(name).strip()


def run_json(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert len(result.stdout.splitlines()) == 1, result.stdout
    return json.loads(result.stdout) | {"exit_code": result.exit_code}


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(found: Any, seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
