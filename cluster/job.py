"""The job that all recipes run: plan, fit with a checkpoint, write the scores. After a failure, run it again.

    python cluster/job.py SOURCE OUT --components 64 --scheduler tls://10.0.0.1:8786 --tls-ca-file ca.pem ...
    python cluster/job.py SOURCE OUT --components 64 --cluster cluster/ssh/cluster.py

``OUT`` gets ``model.zarr``, ``scores.zarr``, ``checkpoint/`` and ``job.json``, which records the job.
``SOURCE`` and ``OUT`` must have the same path on all workers, or be URLs of an object store (s3://, gs://, az://),
for which every process has credentials: then nothing is on a shared disk.

A file given to ``--cluster`` is Python code that you trust: it is executed here. Its function ``start()`` returns a
Dask cluster object (``SSHCluster``, ``SLURMCluster``, ``GatewayCluster``, ...), which is closed at the end.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import runpy
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from distributed import Client
from distributed.security import Security

import bigpca as bp
from bigpca.cli.output import RESUMABLE, ExitCode, describe, exit_code_for
from bigpca.engine.events import LogProgress, TerminalProgress
from bigpca.storage.files import kind_of

TLS_FILES = ("tls_ca_file", "tls_cert", "tls_key")
PASSING = (ExitCode.CLUSTER, ExitCode.UNEXPECTED)  # errors that may pass; all others come again
PAUSE = 30.0  # seconds before the next attempt


@dataclass(frozen=True)
class Job:
    """What is computed; written to ``OUT/job.json``, so that another job's results are never taken for this one's."""

    source: str
    components: int
    solver: str
    solve_threads: int


def main(arguments: list[str] | None = None) -> int:
    """Run the requested job and return its exit code, one of those in ``bigpca --help``."""
    options = parser().parse_args(arguments)
    given = [name for name in TLS_FILES if getattr(options, name) is not None]
    if given and len(given) < len(TLS_FILES):
        parser().error("TLS needs --tls-ca-file, --tls-cert and --tls-key together")
    logging.basicConfig(format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("bigpca").setLevel(logging.INFO)
    # SIGTERM precedes a walltime or a preemption: treat it as an interrupt.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = attempt(options)
    for left in range(options.attempts - 1, 0, -1):
        if code not in PASSING:
            break
        print(f"job: attempts left: {left}; the next one in {PAUSE:g} s.", file=sys.stderr)
        code = attempt(options, PAUSE)
    return int(code)


def attempt(options: argparse.Namespace, pause: float = 0) -> ExitCode:
    """Run the job once, after a pause, and say why it failed."""
    try:
        time.sleep(pause)
        job = Job(absolute(options.source), options.components, options.solver, options.solve_threads)
        with joined(options) as client:
            run_job(client, job, absolute(options.out), options.checkpoint, options.wait_for_workers)
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code_for(error)
        if code is ExitCode.UNEXPECTED:
            logging.exception("the job failed")
        print(f"job: {'interrupted.' if code is ExitCode.INTERRUPTED else describe(error)}", file=sys.stderr)
        if code in RESUMABLE:
            print("Finished segments are kept. Run the same command again to resume.", file=sys.stderr)
        return code
    return ExitCode.OK


def run_job(client: Client, job: Job, out: Path | str, checkpoint: Path | str | None = None, wait: float = 600) -> None:
    """Plan, fit, save and score on the workers of ``client``; what an earlier run finished is not repeated.

    Parameters
    ----------
    out : directory of the model and the scores, created if missing, or a URL.
    checkpoint : directory or URL of the finished segments; ``checkpoint`` in ``out`` if not given.
    wait : seconds without any worker, at the start or later, after which the job fails (a queue may be long).

    Raises
    ------
    FileExistsError
        If ``out`` holds the results of another job.
    TimeoutError
        If there is no worker for ``wait`` seconds.
    """
    keep_apart(job, out)
    wait_for_worker(client, wait)
    model_path, scores_path = f"{out}/model.zarr", f"{out}/scores.zarr"
    settings = bp.config(solve_threads=job.solve_threads, workers_timeout=wait)
    with client.as_current(), settings, TerminalProgress() as bar:
        show = bar if bar.shown else LogProgress(interval=30)
        X = bp.open(job.source)
        if exists(model_path):
            model = bp.load(model_path)
        else:
            # For another estimator, change this line and the fields of `Job`.
            model = bp.PCA(job.components, solver=job.solver)
            print(model.plan(X), flush=True)
            model.fit(X, checkpoint=checkpoint or f"{out}/checkpoint", progress=show)
            model.save(model_path)
        print(f"model: {model_path} ({model.n_components_} components)", flush=True)
        if not exists(scores_path):
            model.transform(X, out=scores_path, progress=show)
        print(f"scores: {scores_path}", flush=True)


@contextmanager
def joined(options: argparse.Namespace) -> Iterator[Client]:
    """Connect to the given scheduler, or start the cluster of a recipe's file and close it at the end."""
    if options.cluster is not None:
        with runpy.run_path(str(options.cluster))["start"]() as cluster, cluster.get_client() as client:
            yield client
        return
    files = {f"tls_client_{name[4:]}" if name != "tls_ca_file" else name: getattr(options, name) for name in TLS_FILES}
    # Without files, Dask's own configuration (distributed.comm.tls) applies.
    security = Security(require_encryption=True, **files) if options.tls_ca_file else None
    address = options.scheduler or address_in(options.scheduler_file, options.connect_timeout)
    try:
        client = Client(address, security=security, timeout=options.connect_timeout)
    except (OSError, TypeError, ValueError) as error:
        raise ConnectionError(
            f"no Dask scheduler answered at {address} within {options.connect_timeout:.0f} s ({error}). "
            "Check that it runs at this address and that both sides have certificates of the same authority."
        ) from error
    with client:
        yield client


def address_in(file: Path, seconds: float) -> str:
    """Return the address in a scheduler file, which the scheduler writes once it listens.

    Raises
    ------
    TimeoutError
        If there is none after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            return str(json.loads(file.read_text())["address"])
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.1)
    raise TimeoutError(
        f"{file} held no scheduler's address after {seconds:.0f} s; `dask scheduler --scheduler-file` was expected to "
        "write it. See the scheduler's log."
    )


def wait_for_worker(client: Client, seconds: float) -> None:
    """Wait until there is a worker: the plan needs its memory limit."""
    try:
        client.wait_for_workers(1, timeout=seconds)
    except TimeoutError as error:
        raise TimeoutError(
            f"0 workers joined {client.scheduler.address} within {seconds:.0f} s, but at least 1 is needed. See the "
            "workers' logs and the queue, or wait longer with --wait-for-workers."
        ) from error


def exists(store: str) -> bool:
    """Whether a store is complete at a path or URL."""
    return os.path.exists(store) if kind_of(store) == "disk" else bp.ObjectStore(store).exists("zarr.json")


def keep_apart(job: Job, out: Path | str) -> None:
    """Record the job in ``out``, or raise if it holds the results of another job."""
    record = asdict(job)
    text, found = json.dumps(record, indent=1) + "\n", record
    if kind_of(str(out)) != "disk":
        try:
            bp.ObjectStore(str(out)).put("job.json", text.encode(), if_absent=True)
        except FileExistsError as error:
            found = json.loads(error.found.data)  # type: ignore[attr-defined]
    elif (note := Path(out, "job.json")).exists():
        found = json.loads(note.read_text())
    else:
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_name(f".job.json.{os.getpid()}")
        partial.write_text(text)
        partial.replace(note)
    if found != record:
        raise FileExistsError(
            f"{out} holds the results of another job, {found}, but this one is {record}. Choose another OUT."
        )


def absolute(source: str) -> str:
    """Make a local path or glob absolute: workers have other working directories."""
    return os.path.abspath(source) if kind_of(source) == "disk" else source


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    found = argparse.ArgumentParser(
        prog="job.py",
        description="Plan, fit PCA with a checkpoint and write the scores on a Dask cluster. Run again, it resumes.",
        epilog="Model, scores and checkpoint are in OUT. SOURCE and OUT must be visible to all workers, or URLs.",
    )
    found.add_argument(
        "source",
        metavar="SOURCE",
        help="Zarr store, HDF5 or Parquet file, folder of .npy shards, or URL of an object store",
    )
    found.add_argument("out", metavar="OUT", help="directory on storage that workers share, or URL, of the results")
    found.add_argument("--components", type=int, default=64, metavar="K", help="number of components (default 64)")
    found.add_argument("--solver", default="auto", help='solver of bigpca.PCA (default "auto")')
    found.add_argument(
        "--solve-threads", type=int, default=1, metavar="N", help="BLAS threads of the final small problem (default 1)"
    )
    found.add_argument(
        "--checkpoint", metavar="DIR", help="directory or URL of finished segments (default OUT/checkpoint)"
    )
    where = found.add_argument_group("where it runs (one of the first three)")
    one = where.add_mutually_exclusive_group(required=True)
    one.add_argument("--scheduler", metavar="ADDRESS", help="such as tls://10.0.0.1:8786")
    one.add_argument("--scheduler-file", type=Path, metavar="FILE", help="written by dask scheduler --scheduler-file")
    one.add_argument("--cluster", type=Path, metavar="FILE.py", help="Python file whose start() returns a Dask cluster")
    where.add_argument("--tls-ca-file", metavar="FILE", help="certificate of the cluster's own authority")
    where.add_argument("--tls-cert", metavar="FILE", help="certificate of this client")
    where.add_argument("--tls-key", metavar="FILE", help="key of this client")
    where.add_argument("--connect-timeout", type=float, default=60, metavar="SECONDS", help="default 60")
    where.add_argument(
        "--wait-for-workers", type=float, default=600, metavar="SECONDS", help="longest time without any (default 600)"
    )
    where.add_argument(
        "--attempts",
        type=int,
        default=1,
        metavar="N",
        help="runs in all, if the cluster or its scheduler is lost; other errors end the job (default 1)",
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
