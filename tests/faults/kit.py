"""What the fault tests share: processes of their own, a network namespace, a memory control group, a slow relay."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from distributed import Client

from tests.forks import Module

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]),
    "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver",
}
PYTHON = [sys.executable, "-m"]
CGROUPS = Path("/sys/fs/cgroup/memory")


def wait_until(condition: Callable[[], object], seconds: float = 600.0) -> None:
    """Wait for a condition; one that does not come true is an error and not a hang."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition did not come true within {seconds:.0f} s")
        time.sleep(0.05)


def start(command: Sequence[str], **settings: str) -> subprocess.Popen[bytes] | Module:
    """Run a command beside the test, without its output: a module of this Python in a fork."""
    environment = ENVIRONMENT | {f"DASK_DISTRIBUTED__{name}": value for name, value in settings.items()}
    if [*command[:2]] == PYTHON:
        return Module(*command[2:], environment=environment)
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)


@contextlib.contextmanager
def process(command: Sequence[str], **settings: str) -> Iterator[subprocess.Popen[bytes] | Module]:
    """Run a command as :func:`start` does; it is ended with the test."""
    started = start(command, **settings)
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait(600)


def worker_command(address: str, folder: Path, *options: str) -> list[str]:
    """Command line of a nanny with a worker of one thread."""
    command = [*PYTHON, "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
    return [*command, "--local-directory", str(folder), *options]


@contextlib.contextmanager
def client_of(scheduler_file: object, seconds: float) -> Iterator[Client]:
    """Make a client the current one that, once connected, tries to reach a lost scheduler again for so many seconds."""
    with Client(scheduler_file=str(scheduler_file), set_as_default=False, timeout=600) as client, client.as_current():
        client._timeout = seconds
        yield client


def need_root(*commands: str) -> None:
    """Skip a test that needs the rights of root, or commands that are not installed."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for command in commands:
        if shutil.which(command) is None:
            pytest.skip(f"needs the command {command} (Debian: iproute2 or util-linux)")


@contextlib.contextmanager
def when(condition: Callable[[], object], act: Callable[[], object]) -> Iterator[None]:
    """Act in another thread as soon as a condition holds, or does not for too long; not after the block has ended."""
    over = threading.Event()

    def wait() -> None:
        deadline = time.monotonic() + 300
        while not (holds := condition()) and not over.wait(0.01) and time.monotonic() < deadline:
            pass
        if holds or condition() or not over.is_set():
            act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


@dataclass(frozen=True)
class Link:
    """A network namespace with one link to this one: ``here`` and ``there`` are the addresses of its ends."""

    namespace: str
    device: str
    here: str
    there: str

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command as run in the namespace."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def set(self, state: str) -> None:
        """Take the link "down" or "up"."""
        subprocess.run(["ip", "link", "set", self.device, state], check=True)

    def limit_rate(self, rate: str) -> None:
        """Let so much through in each direction, such as "4mbit"; queues of 50 ms are dropped from."""
        shape = ["root", "tbf", "rate", rate, "burst", "32kbit", "latency", "50ms"]
        subprocess.run(["tc", "qdisc", "replace", "dev", self.device, *shape], check=True)
        subprocess.run(self.inside(["tc", "qdisc", "replace", "dev", f"{self.device}p", *shape]), check=True)


@contextlib.contextmanager
def linked_namespace() -> Iterator[Link]:
    """Make a network namespace, and take it away."""
    need_root("ip", "tc")
    for _ in range(100):  # numbers, until nobody else has it
        name = f"bp{uuid.uuid4().hex[:6]}"
        third = int(name[2:], 16) % 250 + 1
        # While the link is down, nothing that is sent there goes by another way.
        nowhere = ["unreachable", f"10.213.{third}.0/24", "metric", "9999"]
        if not subprocess.run(["ip", "route", "add", *nowhere], capture_output=True, check=False).returncode:
            break
    else:
        pytest.skip("routes cannot be made here")
    link = Link(name, f"{name}h", f"10.213.{third}.1", f"10.213.{third}.2")
    peer = f"{link.device}p"
    steps = [
        ["ip", "netns", "add", name],
        ["ip", "link", "add", link.device, "type", "veth", "peer", "name", peer],
        ["ip", "link", "set", peer, "netns", name],
        ["ip", "addr", "add", f"{link.here}/24", "dev", link.device],
        ["ip", "link", "set", link.device, "up"],
        link.inside(["ip", "addr", "add", f"{link.there}/24", "dev", peer]),
        link.inside(["ip", "link", "set", peer, "up"]),
        link.inside(["ip", "link", "set", "lo", "up"]),
    ]
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"a network namespace cannot be made here: {done.stderr.strip()}")
        yield link
    finally:
        subprocess.run(["ip", "link", "del", link.device], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "route", "del", *nowhere], capture_output=True, check=False)


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """Make a control group (version 1) whose processes together may hold ``limit`` bytes; beyond it one is killed."""
    need_root()
    group = CGROUPS / f"bigpca-{uuid.uuid4().hex[:6]}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as error:
        pytest.skip(f"memory control groups of version 1 are not writable here: {error}")
    try:
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def worker_inside(group: Path, folder: Path) -> list[str]:
    """Return the options of a worker that joins the control group and believes that it has 2 GiB.

    Its nanny stays outside: in the group, the system could kill it as well, and no worker would come back.
    """
    preload = folder / "joining.py"
    preload.write_text(
        f"import os\n\ndef dask_setup(worker):\n    open('{group}/cgroup.procs', 'w').write(str(os.getpid()))\n"
    )
    return ["--memory-limit", "2GiB", "--preload", str(preload)]


class SlowRelay:
    """Passes TCP connections on to an address, every piece late by ``delay`` seconds.

    Attributes
    ----------
    address : str
        Where to connect instead.
    """

    def __init__(self, target: str, delay: float) -> None:
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self.target, self.delay = (host, int(port)), delay
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self.passed = 0

    def __enter__(self) -> SlowRelay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._server.close()
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self.target)
                self._open += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                select.select([source], [], [])
                data = source.recv(1 << 16)
                time.sleep(self.delay)  # what arrives meanwhile is passed on together
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
                self.passed += 1
