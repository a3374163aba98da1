"""Scripts in processes that are forks of one that has imported bigpca: they start in 0.1 instead of 2 seconds."""

import fcntl
import multiprocessing
import os
import signal
import subprocess
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


def kill_after(line: str, script: str, *arguments: object) -> None:
    """Run a script, and send it SIGKILL once it has printed a line."""
    reading, writing = os.pipe()
    process = forked(script, *arguments, streams=(os.open(os.devnull, os.O_RDONLY), writing, os.dup(2)))
    with open(reading) as printed:
        if any(text.strip() == line for text in printed):
            process.kill()
    process.join(600)
    assert process.exitcode == -signal.SIGKILL


class Module:
    """``python -m`` with a module that has a ``main``, without its output; with methods of ``subprocess.Popen``.

    Its configuration of Dask is that of its environment.
    """

    def __init__(self, name: str, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        script = f"import dask; dask.config.refresh(); from {name} import main; main()"
        streams = (os.open(os.devnull, os.O_RDWR),) * 3
        self._process = forked(script, *arguments, streams=streams, environment=environment)
        self.pid, self.kill, self.terminate = self._process.pid or 0, self._process.kill, self._process.terminate

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float) -> int:
        """Return the exit code.

        Raises
        ------
        subprocess.TimeoutExpired
            If it does not end in time.
        """
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(["python", "-m"], seconds)
        return self._process.exitcode


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
