"""Fits, and a transform, on one and on two worker processes of one BLAS thread each, on work that is compute-bound.

usage: python examples/benchmarks/scaling.py [--solvers covariance krylov ...] [--rows N] [--rounds 3]
[--pinned] [--directory DIR]

"products" are bare matrix products of the same kind, which read nothing: what two processes gain on this
machine at most. "outside" is the share of a fit on two workers that is no group's: from the last group of
each pass to the next pass or the end, merges and solves included, and before the first pass. A first fit on
1/16 of the rows warms the workers up.

A worker reads ahead in a thread of its own. On a machine with a core to spare that thread takes it, and one worker uses
more than the one core that a cluster would give it: --pinned keeps each worker, whatever its threads, on one core.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster
from dump import write_dump

import bigpca as bp
from bigpca.blas import one_blas_thread, symmetric_rank_update
from bigpca.engine.events import Event, GroupEvent, PassEvent

WARM_UP = 16
PRODUCTS = 16  # tasks of bare products


@dataclass(frozen=True)
class Case:
    """One solver, and a size that takes some ten seconds on one core."""

    rows: int
    columns: int
    fit: Callable[[Any, Any], Any]


CASES = {
    "covariance": Case(262_144, 4_096, lambda X, p: bp.PCA(32, solver="covariance").fit(X, progress=p)),
    "krylov": Case(32_768, 25_088, lambda X, p: bp.PCA(64, solver="krylov").fit(X, progress=p)),
    "sketch": Case(
        32_768, 25_088, lambda X, p: bp.ApproximatePCA(64, sketch=bp.sketches.Gaussian(400)).fit(X, progress=p)
    ),
    "kernel": Case(
        40_000, 784, lambda X,
        p: bp.ApproximateKernelPCA(32, kernel="rbf", sketch=bp.sketches.Gaussian(64)).fit(X, progress=p)
    ),
    "nystrom": Case(
        400_000, 784, lambda X,
        p: bp.NystromKernelPCA(32, kernel="rbf", n_landmarks=1_000, sampling="uniform").fit(X, progress=p)
    ),
    "transform": Case(131_072, 4_096, lambda X, p: transform(X, p)),
}  # fmt: skip


@cache
def map_of(columns: int) -> bp.PCA:
    """Fit few rows of a dump, in this process."""
    with dask.config.set(scheduler="sync"):
        return bp.PCA(256).fit(np.random.default_rng(0).standard_normal((1_024, columns), np.float32))


def transform(X: Any, progress: Any) -> None:
    """Write the scores of all rows to a store that is removed again."""
    with tempfile.TemporaryDirectory() as folder:
        map_of(X.shape[1]).transform(X, out=f"{folder}/scores.zarr", progress=progress)


@dataclass
class Phases:
    """How long groups were being folded, told from the progress of a fit."""

    folding: float = 0.0
    _begun: float = field(default_factory=time.perf_counter)
    _last: float = field(default_factory=time.perf_counter)

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, PassEvent):
            self._last = time.perf_counter()
        elif isinstance(event, GroupEvent):
            now = time.perf_counter()
            self.folding, self._last = self.folding + now - self._last, now

    def seconds(self) -> dict[str, float]:
        """Of the whole fit, and outside the groups."""
        whole = time.perf_counter() - self._begun
        return {"seconds": whole, "outside": whole - self.folding}


def multiply(number: int, columns: int = 4_096) -> int:
    """Multiply a slab with itself four times."""
    rows = np.random.default_rng(number).standard_normal((2_048, columns), np.float32)
    out = np.empty((columns, columns), np.float32)
    with one_blas_thread():
        for _ in range(4):
            symmetric_rank_update(rows, out)
    return number


def run(client: Client, name: str, X: Any) -> dict[str, float]:
    """Run one case on the workers of a client."""
    with client.as_current():
        phases = Phases()
        if name == "products":
            client.gather(client.map(multiply, range(PRODUCTS), pure=False))
            return {"seconds": phases.seconds()["seconds"], "outside": 0.0}
        CASES[name].fit(X, phases)
        return phases.seconds()


def compare(clients: dict[int, Client], name: str, X: Any, rounds: int) -> dict[str, Any]:
    """Run a case on one and on two workers in turn; return medians and their ratio."""
    if X is not None:
        for client in clients.values():
            run(client, name, X[: len(X) // WARM_UP])
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, client in clients.items():
            found[workers].append(run(client, name, X))
    one, two = (statistics.median(r["seconds"] for r in found[w]) for w in (1, 2))
    outside = {w: statistics.median(r["outside"] for r in found[w]) for w in (1, 2)}
    groups = (one - outside[1]) / (two - outside[2])
    return {
        "solver": name, "one_s": round(one, 2), "two_s": round(two, 2), "ratio": round(one / two, 2),
        "ratio_of_groups": round(groups, 2), "outside_s": round(outside[2], 2), "outside": round(outside[2] / two, 3),
    }  # fmt: skip


def pin(cores: Iterable[int]) -> None:
    """Keep all threads of this process, and what they start, on these cores."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def start_workers(client: Client, count: int, pinned: bool) -> None:
    """Start workers one after another, each on a core of its own where that is asked for."""
    cores = sorted(os.sched_getaffinity(0)) if pinned else []
    for i in range(count):
        if pinned:
            pin(cores[i : i + 1])
        client.cluster.scale(i + 1)
        client.wait_for_workers(i + 1)
        if pinned:
            pin(cores)


def main() -> None:
    """Compare the solvers in turn; print a line of JSON for each, then a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=str(Path(tempfile.gettempdir()) / "bigpca-benchmarks"))
    parser.add_argument("--solvers", nargs="+", choices=["products", *CASES], default=["products", *CASES])
    parser.add_argument("--rows", type=int, help="instead of each solver's own")
    parser.add_argument("--columns", type=int, help="instead of each solver's own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pinned", action="store_true", help="each worker on a core of its own (Linux)")
    given = parser.parse_args()
    rows = []
    with ExitStack() as stack:
        clients = {}
        for workers in (1, 2):
            cluster = LocalCluster(
                n_workers=0, threads_per_worker=1, processes=True, host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
            )  # fmt: skip
            stack.enter_context(cluster)
            clients[workers] = stack.enter_context(Client(cluster, set_as_default=False))
            start_workers(clients[workers], workers, given.pinned)
        for name in given.solvers:
            rows.append(compare(clients, name, open_case(name, given), given.rounds))
            print(json.dumps(rows[-1]), flush=True)
    print(f"{'solver':12}{'one worker':>12}{'two':>9}{'ratio':>8}{'of groups':>11}{'outside':>9}")
    for row in rows:
        print(
            f"{row['solver']:12}{row['one_s']:>10.1f} s{row['two_s']:>7.1f} s{row['ratio']:>8.2f}"
            f"{row['ratio_of_groups']:>11.2f}{row['outside']:>9.1%}"
        )


def open_case(name: str, given: argparse.Namespace) -> Any:
    """Write the rows of a case unless they are there, and open them; bare products have none."""
    if name == "products":
        return None
    n, d = given.rows or CASES[name].rows, given.columns or CASES[name].columns
    directory = Path(given.directory)
    directory.mkdir(parents=True, exist_ok=True)
    return bp.open(write_dump(directory / f"dump-{n}x{d}.zarr", n, d))


if __name__ == "__main__":
    main()
