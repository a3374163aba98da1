"""Checks of the recipes: are the results bit for bit those of one process, and are strangers rejected?

    verify.py store STORE                     write the small store of the checks (128 MiB)
    verify.py kill OUT PID                    kill the job of OUT once it has finished a segment
    verify.py same OUT                        compare OUT with the same job in this process, bit for bit
    verify.py rejects ADDRESS DIRECTORY       a plain client, and one with the certificate of DIRECTORY, are rejected
    verify.py listens HOST PID ...            processes and their children listen on HOST and loopback only

Exits with 1 and a message if a check fails.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil

ROWS, COLUMNS, CHUNK = 32_768, 1_024, 1_024
SECONDS = 900.0  # for what hangs: a busy machine is not a failure
REPORT_SECONDS = 30.0  # between lines that say what is waited for
STRANGER_SECONDS = 2.0  # and four times as long as a member needed to join: being slow is not being rejected
START_SECONDS = 4.0  # of a process that imports what a worker imports, where a pace of 1 is enough


class Failed(Exception):
    """A check does not hold."""


@cache
def measured_pace() -> int:
    """Return by how much a worker starts more slowly here than in ``START_SECONDS``, rounded up."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import bigpca, distributed.cli.dask_worker"], check=True)
    return max(1, math.ceil((time.monotonic() - began) / START_SECONDS))


def store(path: str) -> None:
    """Write normal rows whose columns have standard deviations 1 to 1/8, in 32 chunks."""
    import numpy as np
    import zarr

    array = zarr.create_array(path, shape=(ROWS, COLUMNS), chunks=(CHUNK, COLUMNS), dtype="f4")
    rng = np.random.Generator(np.random.Philox(1))
    for start in range(0, ROWS, CHUNK):
        rows = rng.standard_normal((CHUNK, COLUMNS), dtype="f4")
        array[start : start + CHUNK] = rows * np.geomspace(1, 1 / 8, COLUMNS, dtype="f4") + 1


def kill(out: str, pid: str) -> None:
    """Wait for the first file of a finished segment, or of several folded into one, then send SIGKILL."""
    process, began, told = psutil.Process(int(pid)), time.monotonic(), 0.0
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if [*Path(out, "checkpoint").rglob("segment-*.npz"), *Path(out, "checkpoint").rglob("prefix-*.npz")]:
            process.kill()
            return
        waited = time.monotonic() - began
        if waited > SECONDS:
            raise Failed(f"the job runs, but no segment was finished under {out}/checkpoint in {SECONDS:.0f} s")
        if waited - told > REPORT_SECONDS:
            told = waited
            print(f"waiting for a segment under {out}/checkpoint ({waited:.0f} s)", file=sys.stderr, flush=True)
        time.sleep(0.01)
    raise Failed(f"the job ended before a segment was finished under {out}/checkpoint")


def same(out: str) -> None:
    """Run the job of ``job.json`` in this process, and compare model and scores."""
    import dask

    import bigpca as bp

    note = Path(out, "job.json")
    job = json.loads(note.read_text() if note.exists() else bp.ObjectStore(out).get("job.json").data)
    with dask.config.set(scheduler="threads"), tempfile.TemporaryDirectory() as work:
        X = bp.open(job["source"])
        with bp.config(solve_threads=job["solve_threads"]):
            model = bp.PCA(job["components"], solver=job["solver"]).fit(X)
        model.save(Path(work, "model.zarr"))
        model.transform(X, out=Path(work, "scores.zarr"))
        expected = _digests(work)
    found = _digests(out)
    wrong = [name for name in expected if found[name] != expected[name]]
    if wrong:
        raise Failed(f"{out} differs from the results of one process: {', '.join(wrong)}")
    print(f"same bits as in one process: {', '.join(expected)}")


def _digests(out: str) -> dict[str, tuple[str, str]]:
    """Type and SHA-256 of the model's arrays and the scores, at a path or URL."""
    import bigpca as bp

    model = bp.load(f"{out}/model.zarr")
    names = ("components_", "mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_")
    arrays = {name: getattr(model, name) for name in names}
    arrays["scores"] = bp.open(f"{out}/scores.zarr").compute()
    return {name: (str(array.dtype), sha256(array.tobytes()).hexdigest()) for name, array in arrays.items()}


def rejects(address: str, directory: str) -> None:
    """Try a member, a client without TLS, a stranger with a certificate of another authority, and the member again."""
    import dask
    from distributed.security import Security

    plain = Security(require_encryption=False)
    files = {f"tls_client_{name}": str(Path(directory, f"{name}.pem")) for name in ("cert", "key")}
    stranger = Security(require_encryption=True, tls_ca_file=str(Path(directory, "ca.pem")), **files)
    # A client that trusts the cluster's authority, or skips verification, still has no certificate of that authority.
    intruder = Security(require_encryption=True, tls_ca_file=dask.config.get("distributed.comm.tls.ca-file"), **files)
    began = time.monotonic()
    if not _joins(address, None, SECONDS):
        raise Failed(f"a client with the cluster's own certificate could not join {address} within {SECONDS:.0f} s")
    enough = STRANGER_SECONDS + 4 * (time.monotonic() - began)
    for name, at, security in (
        ("a plain client", address.replace("tls://", "tcp://"), plain),
        ("a client with another authority's certificate", address, stranger),
        ("a client that trusts the cluster but has another authority's certificate", address, intruder),
    ):
        if _joins(at, security, enough):
            raise Failed(f"{name} could join {at}")
        print(f"rejected: {name}")
    if not _joins(address, None, SECONDS):
        raise Failed(f"{address} no longer answers its own clients")


def _joins(address: str, security: Any, seconds: float) -> bool:
    from distributed import Client

    try:
        with Client(address, security=security, timeout=seconds, set_as_default=False) as client:
            return len(client.nthreads()) >= 0
    except OSError:
        return False


def listens(host: str, *pids: str) -> None:
    """Look at the sockets of processes and all their children; at least one must listen on ``host``."""
    processes = [psutil.Process(int(pid)) for pid in pids]
    processes += [child for process in processes for child in process.children(recursive=True)]
    found = {address for process in processes for address in _listening(process)}
    open_to_others = sorted(f"{at.ip}:{at.port}" for at in found if at.ip not in (host, "127.0.0.1"))
    if open_to_others or host not in {at.ip for at in found}:
        raise Failed(f"listens on {open_to_others or sorted(found)}; {host} and 127.0.0.1 only were expected")
    print(f"{len(found)} sockets listen, all on {' or '.join(sorted({at.ip for at in found}))}")


def _listening(process: psutil.Process) -> list[Any]:
    """Addresses on which a process listens; none where it has ended since it was listed."""
    try:
        return [one.laddr for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    except psutil.NoSuchProcess:
        return []


def main(command: str, *arguments: str) -> int:
    """Run one of the commands above."""
    commands = {function.__name__: function for function in (store, kill, same, rejects, listens)}
    if command not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        commands[command](*arguments)
    except Failed as error:
        print(f"verify.py: {error}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
