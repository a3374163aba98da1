"""The cluster of the recipe ``cluster/local``, with certificates of its own, for tests that must speak TLS."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from distributed.security import Security

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 600


@dataclass(frozen=True)
class Recipe:
    """A running cluster.

    Attributes
    ----------
    address : str
    configuration : Path
        The directory for DASK_CONFIG.
    pid : int
        Of the script that started it.
    """

    address: str
    configuration: Path
    pid: int

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a process that joins it."""
        return environment() | {"DASK_CONFIG": str(self.configuration), "DASK_SCHEDULER_ADDRESS": self.address}

    @property
    def settings(self) -> dict[str, object]:
        """The same as ``configuration`` for a client in this process, for ``dask.config.set``."""
        files = {"client.cert": "cert.pem", "client.key": "key.pem", "ca-file": "ca.pem"}
        found: dict[str, object] = {f"distributed.comm.tls.{k}": str(self.configuration / v) for k, v in files.items()}
        return found | {"distributed.comm.require-encryption": True}

    def security(self, certificates: Path | None = None) -> Security:
        """What a client shows: the recipe's certificate, or that of another configuration."""
        own = certificates or self.configuration
        return Security(
            require_encryption=True,
            tls_ca_file=str(self.configuration / "ca.pem"),
            tls_client_cert=str(own / "cert.pem"),
            tls_client_key=str(own / "key.pem"),
        )


def environment() -> dict[str, str]:
    """This environment, with the programs of this interpreter and the tests' own modules."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


def configure(directory: Path) -> Path:
    """Make certificates and configuration as the recipes do."""
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl is missing")
    command = ["bash", str(ROOT / "cluster" / "configure.sh"), str(directory)]
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
    return directory


@contextmanager
def local_recipe(folder: Path) -> Iterator[Recipe]:
    """Start scheduler and two workers by ``cluster/local/start.sh``, and stop them."""
    configuration, file = configure(folder / "config"), folder / "scheduler.json"
    settings = {"DASK_CONFIG": str(configuration), "LOCAL_DIRECTORY": str(folder), "MEMORY": "1GiB"}
    command = ["bash", str(ROOT / "cluster" / "local" / "start.sh"), str(file)]
    with open(folder / "start.log", "wb") as log:
        started = subprocess.Popen(command, env=environment() | settings, stdout=log, stderr=log)
    try:
        yield Recipe(_address(file, started), configuration, started.pid)
    finally:
        started.terminate()
        started.wait(SECONDS)


def _address(file: Path, started: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and started.poll() is None:
        try:
            return str(json.loads(file.read_text())["address"])
        except (FileNotFoundError, ValueError):
            time.sleep(0.1)
    raise TimeoutError((file.parent / "start.log").read_text())
