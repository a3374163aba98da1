"""``bigpca doctor``: is this machine (and this cluster) fit for the work?"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bigpca.cli import options as o
from bigpca.cli.exits import ExitCode
from bigpca.cli.output import reporting, table
from bigpca.cli.runtime import check_workers, running
from bigpca.errors import format_bytes
from bigpca.passes.events import format_seconds

if TYPE_CHECKING:
    from distributed import Client

MUST_AGREE = ("python", "bigpca", "numpy", "zarr", "numcodecs", "dask", "distributed")


def doctor(
    directory: Annotated[Path, typer.Option("--dir", help="Where outputs would go: its free disk is shown.")] = Path(),
    scheduler: o.Scheduler = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Show versions, cores, memory, disk and BLAS, and run a short self-test; with --scheduler, look at its workers."""
    with reporting(as_json, debug) as output:
        record = machine_facts(directory)
        output.say(_machine_table(record))
        record["self_test"] = self_test()
        output.say(f"\nself-test: {record['self_test']['result']}, {format_seconds(record['self_test']['seconds'])}")
        problems = [] if record["self_test"]["passed"] else [str(record["self_test"]["result"])]
        if scheduler is not None:
            with running(o.Cluster(scheduler=scheduler)) as client:
                record["workers"] = worker_facts(client)
            output.say("\n" + "\n".join(_worker_line(worker) for worker in record["workers"]))
            problems += version_differences(record["versions"], record["workers"])
        for problem in problems:
            output.say(f"problem: {problem}")
        output.finish({"command": "doctor", **record, "problems": problems})
        if problems:
            raise typer.Exit(int(ExitCode.UNEXPECTED if not record["self_test"]["passed"] else ExitCode.CLUSTER))


def machine_facts(directory: Path) -> dict[str, Any]:
    """Collect what the doctor shows about this machine."""
    import dask.config
    import distributed  # noqa: F401  registers the default of the start method

    from bigpca.cli.facts import blas, cores, free_disk, memory_total, versions

    return {
        "versions": versions(),
        "cores": cores(),
        "memory_bytes": memory_total(),
        "free_disk_bytes": free_disk(directory),
        "worker_start_method": dask.config.get("distributed.worker.multiprocessing-method"),
        "blas": blas(),
    }


def self_test() -> dict[str, Any]:
    """Ingest, verify and fit a small matrix of known spectrum in a temporary directory (about a second)."""
    import numpy as np

    import bigpca

    start = time.monotonic()
    rows = np.random.default_rng(0).standard_normal((2000, 64)) * np.linspace(3.0, 1.0, 64) + 10.0
    with tempfile.TemporaryDirectory(prefix="bigpca-doctor-") as folder:
        store = str(Path(folder) / "rows.zarr")
        bigpca.ingest(rows, store, chunk_rows=300)
        intact = bool(bigpca.verify(store).ok)
        fitted = bigpca.PCA(n_components=8).fit(bigpca.open(store))
    expected = np.linalg.eigvalsh(np.cov(rows.T))[::-1][:8]
    error = float(np.abs(fitted.explained_variance_ - expected).max() / expected[0])
    passed = intact and error < 1e-10
    result = f"passed (eigenvalues within {error:.0e})" if passed else f"FAILED: intact={intact}, error={error:.1e}"
    return {"passed": passed, "result": result, "eigenvalue_error": error, "seconds": time.monotonic() - start}


def worker_facts(client: Client | None) -> list[dict[str, Any]]:
    """Address, threads, memory per thread and versions of every worker of the cluster."""
    if client is None:
        return []
    found = check_workers(client)
    workers = client.scheduler_info(n_workers=-1)["workers"]
    facts = []
    for address, versions in sorted(found.items()):
        threads, limit = int(workers[address]["nthreads"]), int(workers[address]["memory_limit"] or 0)
        facts.append(
            {
                "address": address,
                "threads": threads,
                "memory_bytes": limit,
                "memory_per_thread": limit // threads,
                "versions": versions,
            }
        )
    return facts


def version_differences(here: dict[str, Any], workers: list[dict[str, Any]]) -> list[str]:
    """Name the packages whose versions differ between this process and a worker.

    >>> worker = {"address": "tcp://a", "versions": {"python": "3.11.0"}}
    >>> version_differences({"python": "3.12.1"}, [worker])[0]
    'tcp://a has python 3.11.0, but 3.12.1 runs here. Install the same version on both.'
    """
    return [
        f"{worker['address']} has {name} {worker['versions'].get(name)}, but {here[name]} runs here. "
        "Install the same version on both."
        for worker in workers
        for name in MUST_AGREE
        if name in here and worker["versions"].get(name) != here[name]
    ]


def _machine_table(record: dict[str, Any]) -> str:
    rows: dict[str, object] = dict(record["versions"])
    for pool in record["blas"]:
        rows["BLAS"] = (
            f"{pool['internal_api']} {pool['version']}, {pool['architecture']}, {pool['num_threads']} threads"
        )
    rows["cores"] = record["cores"]
    rows["memory"] = format_bytes(record["memory_bytes"])
    rows["free disk"] = format_bytes(record["free_disk_bytes"])
    rows["worker processes"] = record["worker_start_method"]
    return table(rows)


def _worker_line(worker: dict[str, Any]) -> str:
    memory = format_bytes(worker["memory_per_thread"]) if worker["memory_bytes"] else "no limit"
    return f"{worker['address']}: {worker['threads']} threads, {memory} per thread"
