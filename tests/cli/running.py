"""Run the command line in this process, in a child, or in a fork of a process that has imported everything."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Collection
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
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


def forked(*arguments: object, streams: Collection[int], slow: bool = False) -> ForkServerProcess:
    """Run a command here, in a fork; stdin, stdout and stderr are descriptors, which this process then closes."""
    links = [Connection(os.dup(stream)) for stream in streams]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "TERM")}
    given = (links, [str(argument) for argument in arguments], slow, environment)
    process = multiprocessing.get_context("forkserver").Process(target=_be_command, args=given)
    process.start()
    for stream in set(streams):
        os.close(stream)
    return process


def interrupted(*arguments: object, number: int, once: Callable[[], object]) -> tuple[int | None, str, str]:
    """Run a slow fit of ``tall``, and send a signal in its pass; returns the exit code, stdout and stderr."""
    (out, writing), (said, saying) = os.pipe(), os.pipe()
    child = forked(*arguments, streams=(os.open(os.devnull, os.O_RDONLY), writing, saying), slow=True)
    with open(out) as output, open(said) as errors:
        seen = next(line for line in errors if "moments: 131,072 rows" in line)  # the pass has begun
        wait_for(once)
        os.killpg(child.pid or 0, number)
        seen += errors.read()
        child.join(300)
        return child.exitcode, output.read(), seen


def _be_command(links: list[Connection], arguments: list[str], slow: bool, environment: dict[str, str]) -> None:
    os.setsid()
    for number, link in enumerate(links):
        os.dup2(link.fileno(), number)
        link.close()
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ |= environment | {"TERM": "xterm-256color"}
    sys.argv = ["bigpca", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    exec(SLOW if slow else "from bigpca.cli import main\nmain()", {})


def wait_for(found: Any, seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
