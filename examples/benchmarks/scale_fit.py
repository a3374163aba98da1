"""One fit of ``scale.py`` in a process of its own, whose memory is measured; prints a line of JSON.

usage: python examples/benchmarks/scale_fit.py SOLVER SCHEDULER [--terabytes 10] [--seconds 2]
"""

import argparse
import json
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np
import psutil
from distributed import Client
from scale_workers import SleepingRows

import bigpca as bp
from bigpca.data.dask_arrays import open_source
from bigpca.engine.layout import plan_layout

KERNEL_ROWS = 100_000  # a sweep costs n^2 / 2 kernel evaluations: 5e9, whatever the terabytes
LANDMARKS = 1_000


@dataclass(frozen=True)
class Case:
    """One estimator on data of its kind.

    Attributes
    ----------
    columns : int
    fit : callable
        X -> None.
    rows : int or None
        None for as many as the terabytes hold.
    pairs : bool
        Whether the pass is over pairs of rows: a panel is a segment.
    """

    columns: int
    fit: Callable[[Any], Any]
    rows: int | None = None
    pairs: bool = False


def fit_nystrom(X: Any) -> None:
    """Fit by given landmarks: one pass."""
    landmarks = np.random.default_rng(1).standard_normal((LANDMARKS, X.shape[1]), np.float32)
    bp.NystromKernelPCA(32, kernel="rbf", n_landmarks=LANDMARKS, sampling=landmarks).fit(X)


def fit_kernel(X: Any) -> None:
    """Fit by an approximate sweep over all pairs."""
    sketch = bp.sketches.Gaussian(32)
    bp.ApproximateKernelPCA(16, kernel="rbf", sketch=sketch).fit(X)


def transform(X: Any) -> None:
    """Fit few rows, and give each row its scores."""
    rows = np.random.default_rng(1).standard_normal((4_096, X.shape[1]), np.float32)
    with dask.config.set(scheduler="sync"):
        model = bp.PCA(10).fit(rows)
    with tempfile.TemporaryDirectory() as folder:
        model.transform(X, out=f"{folder}/scores.zarr")


CASES = {
    "covariance": Case(2_048, lambda X: bp.PCA(32, solver="covariance").fit(X)),
    "krylov": Case(25_088, lambda X: bp.PCA(32, solver="krylov").fit(X)),
    "transform": Case(2_048, transform),
    "sketch": Case(25_088, lambda X: bp.ApproximatePCA(32, sketch=bp.sketches.Gaussian(100)).fit(X)),
    "nystrom": Case(2_048, fit_nystrom),
    "kernel": Case(784, fit_kernel, KERNEL_ROWS, pairs=True),
}


def open_sleeping(case: Case, terabytes: float, seconds: float) -> Any:
    """Return the Dask array of a float32 store that is not there, in chunks of about 64 MiB."""
    rows = case.rows or int(terabytes * 1e12) // (4 * case.columns)
    store = SleepingRows((rows, case.columns), (64 << 20) // (4 * case.columns), seconds, format="sleeping")
    if not case.pairs:  # states here are too small to change the layout
        layout = plan_layout(store.row_chunks(), case.columns, store.dtype, state_bytes=0)
        store = replace(store, segment_ends=tuple(groups.stop for groups in layout.segments))
    return open_source(store)


def main() -> None:
    """Fit the solver that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("solver", choices=CASES)
    parser.add_argument("scheduler")
    parser.add_argument("--terabytes", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=2)
    given = parser.parse_args()
    case = CASES[given.solver]
    warnings.simplefilter("ignore", bp.errors.ApproximationWarning)  # the data are of rank 96
    X = open_sleeping(case, given.terabytes, given.seconds)
    with Client(given.scheduler), bp.config(max_kernel_evaluations=1e15):
        idle, called = psutil.Process().memory_info().rss, time.time()
        case.fit(X)
        done = time.time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    cpu = psutil.Process().cpu_times()
    print(
        json.dumps(
            {"called": called, "fit_s": done - called, "idle": idle, "peak": peak, "cpu_s": cpu.user + cpu.system,
             "bytes": X.nbytes}
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
