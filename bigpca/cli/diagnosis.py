"""``bigpca doctor``: checks of this machine and of a cluster; and ``bigpca demo``."""

from __future__ import annotations

import shlex
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bigpca.cli import options as o
from bigpca.cli.output import ExitCode, plain, reporting
from bigpca.cli.runtime import running, shown
from bigpca.engine.events import TerminalProgress
from bigpca.engine.planning import format_seconds
from bigpca.errors import brief, counted, format_bytes
from bigpca.storage.files import public

if TYPE_CHECKING:
    from distributed import Client

    from bigpca.demo import DemoReport


PACKAGES = ("bigpca", "numpy", "scipy", "zarr", "numcodecs", "dask", "distributed", "scikit-learn", "dask-ml")
TRIED = 9  # puts that are timed
CONDITIONS = {
    "enforced": "enforced: of two runs one wins",
    "rejected": "rejected: outputs need --exclusive",
    "ignored": "ignored: outputs need --exclusive",
}


def doctor(
    shows: o.Shows,
    url: Annotated[
        str | None,
        typer.Argument(help="Try an object store, such as s3://bucket/folder.", metavar="URL", show_default=False),
    ] = None,
    *,
    directory: Path = Path(),
    scheduler: str | None = None,
    workers_timeout: float = 60,
) -> None:
    """Show versions, cores, memory, disk and BLAS, and run a short self-test; with --scheduler, check its workers.

    With a URL, try instead what this process may do in that object store, and how long a put takes.

    Parameters
    ----------
    directory : --dir PATH
        Show the free disk space of this directory.

    Examples
    --------
    bigpca doctor
    bigpca doctor --scheduler tcp://10.0.0.1:8786
    bigpca doctor s3://bucket/folder
    """
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        if url is not None:
            output.doing(f"trying {public(url)} ...")
            tried = store_facts(url)
            output.show(tried)
            failed = [f"{verb}: {said}" for verb, said in tried.items() if said.startswith("no: ")]
            output.finish({"command": "doctor", **tried, "problems": failed})
            if failed:
                raise typer.Exit(int(ExitCode.INPUT))
            return
        record = machine_facts(directory)
        rows: dict[str, object] = dict(record["versions"])
        for pool in record["blas"]:
            rows["BLAS"] = (
                f"{pool['internal_api']} {pool['version']}, {pool['architecture']}, {pool['num_threads']} threads"
            )
        rows["cores"] = record["cores"]
        rows["memory"] = format_bytes(record["memory_bytes"])
        rows["free disk"] = format_bytes(record["free_disk_bytes"])
        rows["worker processes"] = record["worker_start_method"]
        output.show(rows)
        output.doing("self-test ...")
        record["self_test"] = self_test()
        output.say(f"\nself-test: {record['self_test']['result']}, {format_seconds(record['self_test']['seconds'])}")
        problems = [] if record["self_test"]["passed"] else [str(record["self_test"]["result"])]
        if scheduler is not None:
            with running(o.Cluster(scheduler=scheduler, workers_timeout=workers_timeout)) as client:
                found = cluster_facts(client)
            record |= {"workers": found["workers"], "notes": found["notes"]}
            output.say("\n" + "\n".join(_worker_line(worker) for worker in found["workers"]))
            problems += found["problems"]
        for kind, lines in (("problem", problems), ("note", record.get("notes", []))):
            for line in lines:
                output.say(f"{kind}: {line}")
        output.finish({"command": "doctor", **record, "problems": problems})
        if problems:
            raise typer.Exit(int(ExitCode.UNEXPECTED if not record["self_test"]["passed"] else ExitCode.CLUSTER))


def machine_facts(directory: Path) -> dict[str, Any]:
    """Return what the command shows about this machine."""
    import dask.config
    import distributed  # noqa: F401  registers the default start method
    import scipy.linalg  # noqa: F401  loads SciPy's own BLAS, which may differ from NumPy's
    from dask.system import CPU_COUNT
    from threadpoolctl import threadpool_info

    from bigpca.data.provenance import versions
    from bigpca.settings import memory_limit
    from bigpca.storage import free_bytes

    wanted = ("internal_api", "version", "num_threads", "architecture")
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {
        "versions": dict(versions(PACKAGES)),
        "cores": int(CPU_COUNT),
        "memory_bytes": memory_limit(),
        "free_disk_bytes": free_bytes(directory),
        "worker_start_method": dask.config.get("distributed.worker.multiprocessing-method"),
        "blas": [{name: pool.get(name) for name in wanted} for pool in pools],
    }


def self_test() -> dict[str, Any]:
    """Ingest, verify and fit a small matrix with known spectrum in a temporary directory (about a second)."""
    import numpy as np

    import bigpca

    start = time.monotonic()
    rows = np.random.default_rng(0).standard_normal((2000, 64)) * np.linspace(3.0, 1.0, 64) + 10.0
    with tempfile.TemporaryDirectory(prefix="bigpca-doctor-") as folder:
        store = str(Path(folder) / "rows.zarr")
        bigpca.ingest(rows, store, chunk_rows=300)
        intact = bool(bigpca.data.verify(store).ok)
        fitted = bigpca.PCA(n_components=8).fit(bigpca.open(store))
    expected = np.linalg.eigvalsh(np.cov(rows.T))[::-1][:8]
    error = float(np.abs(fitted.explained_variance_ - expected).max() / expected[0])
    passed = intact and error < 1e-10
    result = f"passed (eigenvalues within {error:.0e})" if passed else f"FAILED: intact={intact}, error={error:.1e}"
    return {"passed": passed, "result": result, "eigenvalue_error": error, "seconds": time.monotonic() - start}


def store_facts(url: str) -> dict[str, str]:
    """Try list, put, conditional put, get and delete in an object store; everything that is put is deleted again."""
    from bigpca.storage.places import ObjectStore

    place = ObjectStore(url)
    own = place.at(f".bigpca/doctor-{uuid.uuid4().hex}")

    def delete() -> str:
        own.delete(["small"])
        return "yes"

    def put() -> str:
        began = time.perf_counter()
        for _ in range(TRIED):
            own.put("small", b"bigpca")
        return f"yes, {1000 * (time.perf_counter() - began) / TRIED:.0f} ms each"

    steps: dict[str, Callable[[], str]] = {
        "list": lambda: "yes" if next(place.list(), None) is not None else "yes; nothing is there",
        "put": put,
        "conditional put": lambda: CONDITIONS[own.conditions()],
        "get": lambda: "yes" if own.get("small").data == b"bigpca" else "no: other bytes were read",
        "delete": delete,
    }
    found = {"store": place.describe()}
    for name, step in steps.items():
        try:
            found[name] = step()
        except OSError as error:
            found[name] = f"no: {brief(error, 200)}"
            if name in ("list", "put") and not isinstance(error, PermissionError):
                break  # nothing else can be tried
    return found


def cluster_facts(client: Client) -> dict[str, Any]:
    """Return versions, threads and memory of every worker, and which of them would raise or warn in a run.

    Returns
    -------
    dict
        ``workers``: a dict for each; ``problems`` and ``notes``: sentences.
    """
    from bigpca.engine.cluster.watch import join_workers, package_versions
    from bigpca.engine.local import workers_of

    workers = workers_of(client)
    _, found = package_versions(client, workers)
    facts: list[dict[str, Any]] = [
        {
            "address": address,
            "threads": (threads := int(worker["nthreads"])),
            "memory_bytes": (limit := int(worker["memory_limit"] or 0)),
            "memory_per_thread": limit // threads,
            "versions": found.get(f"worker {address}", {}),
        }
        for address, worker in sorted(workers.items())
    ]
    problems = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            join_workers(client, {fact["address"]: fact["threads"] for fact in facts}, {}, 0)
        except ConnectionError as error:
            problems.append(str(error))
    return {"workers": facts, "problems": problems, "notes": [str(warning.message) for warning in caught]}


def _worker_line(worker: dict[str, Any]) -> str:
    memory = format_bytes(worker["memory_per_thread"]) if worker["memory_bytes"] else "no limit"
    return f"{worker['address']}: {worker['threads']} threads, {memory} per thread"


def demo(shows: o.Shows, *, small: bool = False, directory: Path = Path("bigpca-demo")) -> None:
    """Fit 515,000 x 768 image patches (1.5 GiB) in a budget of 512 MiB, and draw their leading components.

    Parameters
    ----------
    small
        A sixteenth of the data: a few seconds.
    directory : --dir PATH
        Where to work (3 GiB free for the full size).

    Examples
    --------
    bigpca demo --small
    """
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        from bigpca.demo import PATCH, run_demo

        with TerminalProgress() as bar:
            report = run_demo(directory, small=small, progress=tuple(shown(bar, output)))
        output.show(_summary(report))
        made = [*map(str, (report.model, "--scores", report.scores, "--image-shape", "x".join(map(str, PATCH))))]
        output.say(f"\nNext: bigpca report {shlex.join(made)}")
        output.finish({"command": "demo", "within_budget": report.within_budget, **plain(report)})
        if not report.within_budget:
            raise typer.Exit(int(ExitCode.SPACE))


def _summary(report: DemoReport) -> dict[str, object]:
    steps = ", ".join(f"{name} {format_seconds(value)}" for name, value in report.seconds.items())
    baseline = format_bytes(report.baseline_bytes)
    rows: dict[str, object] = {
        "data": f"{report.n_samples:,} x {report.n_features} float32 = {format_bytes(report.data_bytes)}",
        "solver": f"{report.solver}, {counted(report.passes, 'read')} of the data",
        "peak memory": f"{format_bytes(report.peak_bytes)} measured above {baseline} idle, all processes",
        "memory budget": f"{format_bytes(report.budget_bytes)}: {'kept' if report.within_budget else 'EXCEEDED'}",
        "time": f"{format_seconds(sum(report.seconds.values()))} ({steps})",
        "variance captured": f"{100 * report.variance_captured:.2f} % by {report.n_components} components",
        "data store": report.store,
        "model": report.model,
        "scores": report.scores,
        "picture": report.picture or "not drawn: matplotlib is missing (pip install 'bigpca[plot]')",
    }
    return rows
