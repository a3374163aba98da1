"""Run the command line in this process, or in a fork of a process that has imported everything."""

import json
import os
import time
from collections.abc import Callable, Collection
from functools import cache
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from typer import testing

from bigpca.cli.commands import app
from tests import forks

ROWS, COLUMNS = 3000, 12
testing._get_command = cache(testing._get_command)  # else each call makes all commands anew, which takes 20 ms

# A test run started in the background ignores SIGINT, and so would its children.
COMMAND = """
import signal, sys
from bigpca.cli import main
sys.argv[0] = "bigpca"
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
# Reads on one thread, slow enough to be seen; those of the second half of ``tall`` wait until a file is there.
SLOWLY = """
import os, time
import dask
from bigpca.data.source import Source
read = Source.read
def slow(source, start, *more, **options):
    time.sleep(0.1)
    while start >= 2**16 and not os.path.exists("interrupted"):
        time.sleep(0.01)
    return read(source, start, *more, **options)
Source.read = slow
dask.config.set(num_workers=1)
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


def forked(*arguments: object, streams: Collection[int], slow: bool = False) -> ForkServerProcess:
    """Run a command here, in a fork; stdin, stdout and stderr are descriptors, which this process then closes."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "TERM")}
    environment["TERM"] = "xterm-256color"
    return forks.forked(SLOWLY * slow + COMMAND, *arguments, streams=streams, environment=environment)


def interrupted(*arguments: object, number: int, once: Callable[[], object]) -> tuple[int | None, str, str]:
    """Run a slow fit of ``tall``, and send a signal in its pass; returns the exit code, stdout and stderr."""
    (out, writing), (said, saying) = os.pipe(), os.pipe()
    child = forked(*arguments, streams=(os.open(os.devnull, os.O_RDONLY), writing, saying), slow=True)
    with open(out) as output, open(said) as errors:
        seen = next(line for line in errors if "moments: 131,072 rows" in line)  # the pass has begun
        wait_for(once)
        os.killpg(child.pid or 0, number)
        Path("interrupted").touch()
        seen += errors.read()
        child.join(300)
        return child.exitcode, output.read(), seen


def wait_for(found: Any, seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
