"""Scripts in processes that are forks of one that has imported bigpca: they start in 0.1 instead of 2 seconds."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import sys
import termios
from collections.abc import Collection, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any


def forked(
    script: str, *arguments: object, streams: Collection[int] = (), environment: Mapping[str, str] | None = None
) -> ForkServerProcess:
    """Run a script as ``python -c`` does, here and with this environment.

    Its stdin, stdout and stderr are these descriptors, which this process then closes; without them, those of pytest.
    """
    links = [Connection(os.dup(stream)) for stream in streams]
    given: tuple[Any, ...] = (links, script, [*map(str, arguments)], dict(environment or os.environ))
    process = multiprocessing.get_context("forkserver").Process(target=_run, args=given)
    process.start()
    for stream in set(streams):
        os.close(stream)
    return process


def ended(script: str, *arguments: object) -> int | None:
    """Run a script to its end, and return its exit code, which is negative for a signal."""
    process = forked(script, *arguments)
    process.join(600)
    return process.exitcode


def kill_after(line: str, count: int, script: str, *arguments: object) -> None:
    """Run a script, and send it SIGKILL once it has printed a line so many times."""
    reading, writing = os.pipe()
    process = forked(script, *arguments, streams=(os.open(os.devnull, os.O_RDONLY), writing, os.dup(2)))
    with open(reading) as printed:
        for text in printed:
            count -= text.strip() == line
            if count == 0:
                process.kill()
                break
    process.join(600)
    assert process.exitcode == -signal.SIGKILL


def _run(links: list[Connection], script: str, arguments: list[str], environment: dict[str, str]) -> None:
    os.setsid()
    for number, link in enumerate(links):
        os.dup2(link.fileno(), number)
        link.close()
    if links and os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ |= environment
    sys.argv = ["-c", *arguments]
    exec(script, {"__name__": "__main__"})
