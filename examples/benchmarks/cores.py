"""Fits on 1, 2, 4, ... threads of one warm process, and scikit-learn's beside them with all of its threads.

usage: python examples/benchmarks/cores.py [--threads 1 2 4 ...] [--size 1.0] [--rows covariance krylov ...] [--profile]

Prints a table in Markdown, row by row: the seconds of each number of threads (best of --rounds, after a fit to a
sixteenth of the rows), the speed-up of the most over the fewest, and how much more processor time they take. "products"
are as many matrix products of one thread each at once: what the machine allows. scikit-learn loads the rows into
memory first. --size multiplies the rows, and the columns by its square root. --profile lists, for the most threads, the
share of time in which fewer than two threads ran, and the lines at which the only one was found.
"""

import argparse
import collections
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from dump import relu_features, write_dump

import bigpca as bp
from bigpca.blas import one_blas_thread, symmetric_rank_update

PRODUCTS, PRODUCT_COLUMNS = 64, 2048
SAMPLE_SECONDS = 0.01  # between looks at the threads


@dataclass
class Data:
    """Rows in stores and in memory, made when they are first asked for."""

    size: float
    folder: Path
    made: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    def rows(self, n: int, d: int) -> tuple[int, int]:
        """Return numbers of rows and columns at this size."""
        return max(400, int(n * self.size)), max(16, int(d * self.size**0.5))

    def count(self, m: int) -> int:
        """Return a number of landmarks or classes at this size."""
        return max(8, int(m * self.size**0.5))

    def store(self, n: int, d: int, salt: str = "") -> Path:
        n, d = self.rows(n, d)
        return write_dump(self.folder / f"cores{salt}-{n}x{d}.zarr", n, d, max(1, (64 << 20) // (4 * d)))

    def array(self, n: int, d: int) -> np.ndarray:
        size = n, d = self.rows(n, d)
        if size not in self.made:
            self.made[size] = np.concatenate(list(relu_features(n, d, 50_000)))
        return self.made[size]

    @cached_property
    def labels(self) -> np.ndarray:
        n, _ = self.rows(*TALL)
        return np.random.default_rng(4).integers(0, self.count(100), n)


TALL, KERNEL, LANDMARKS, PAIR = (262_144, 2048), (20_000, 256), (200_000, 256), (262_144, 1024)
FEATURES = 1_000


def tall(data: Data) -> da.Array:
    return bp.open(data.store(*TALL))


def pair(data: Data) -> da.Array:
    return bp.open(data.store(*PAIR))


def held(n: int, d: int, data: Data) -> da.Array:
    """Rows in memory, in chunks of 64 MiB."""
    X = data.array(n, d)
    return da.from_array(X, chunks=(max(1, (64 << 20) // X[:1].nbytes), X.shape[1]))


def loaded(data: Data) -> np.ndarray:
    return zarr.open_array(data.store(*TALL), mode="r")[:]


def covariance(data: Data, X: Any) -> Any:
    return bp.PCA(10, solver="covariance").fit(X)


def sklearn_covariance(data: Data) -> Any:
    from sklearn.decomposition import PCA

    return PCA(10, svd_solver="covariance_eigh").fit(loaded(data))


def krylov(data: Data, X: Any) -> Any:
    return bp.PCA(10, solver="krylov").fit(X)


def sklearn_randomized(data: Data) -> Any:
    from sklearn.decomposition import PCA

    return PCA(10, svd_solver="randomized", random_state=0).fit(loaded(data))


def kernel(data: Data, X: Any) -> Any:
    return bp.KernelPCA(10, kernel="rbf", gamma=1 / X.shape[1]).fit(X)


def sklearn_kernel(data: Data) -> Any:
    from sklearn.decomposition import KernelPCA

    X = data.array(*KERNEL)
    return KernelPCA(10, kernel="rbf", gamma=1 / X.shape[1], eigen_solver="arpack").fit(X)


def nystrom(data: Data, X: Any) -> Any:
    m = data.count(FEATURES)
    return bp.NystromKernelPCA(10, kernel="rbf", gamma=1 / X.shape[1], n_landmarks=m, sampling="uniform").fit(X)


def sklearn_nystroem(data: Data) -> Any:
    from sklearn.decomposition import PCA
    from sklearn.kernel_approximation import Nystroem

    X = data.array(*LANDMARKS)
    features = Nystroem(gamma=1 / X.shape[1], n_components=data.count(FEATURES), random_state=0).fit_transform(X)
    return PCA(10).fit(features)


def fisher(data: Data, X: Any) -> Any:
    return bp.FisherDiscriminantAnalysis(10).fit(X, data.labels[: X.shape[0]])


def cca(data: Data, X: Any) -> Any:
    Y = bp.open(data.store(*PAIR, salt="-y"))[: X.shape[0]]
    return bp.CCA(10).fit(X, Y)


def transform(data: Data, X: Any) -> Any:
    model = MODELS.setdefault(X.shape[1], bp.PCA(10, solver="covariance").fit(X[:4096]))
    return model.transform(X, out=str(data.folder / "scores.zarr"), overwrite=True)


MODELS: dict[int, Any] = {}


@dataclass(frozen=True)
class Row:
    """What is timed: rows, a fit to them, and what scikit-learn does with the same rows."""

    text: str
    rows: Callable[[Data], Any]
    fit: Callable[[Data, Any], Any]
    beside: Callable[[Data], Any] | None = None


ROWS = {
    "covariance": Row("covariance, from Zarr", tall, covariance, sklearn_covariance),
    "krylov": Row("krylov, from Zarr", tall, krylov, sklearn_randomized),
    "kernel": Row("KernelPCA", partial(held, *KERNEL), kernel, sklearn_kernel),
    "nystrom": Row(f"NystromKernelPCA, m {FEATURES:,}", partial(held, *LANDMARKS), nystrom, sklearn_nystroem),
    "fisher": Row("Fisher, from Zarr", tall, fisher),
    "cca": Row("CCA, from Zarr", pair, cca),
    "transform": Row("transform to a store", tall, transform),
}


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Run passes and solves with so many threads."""
    with dask.config.set(scheduler="threads", num_workers=count), bp.config(solve_threads=count):
        yield


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds and the processor seconds of a call."""
    start, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start, time.process_time() - cpu


def products(size: float, threads: int) -> None:
    """Multiply slabs with themselves, each on one thread."""
    rows = np.random.default_rng(0).standard_normal((max(256, int(8192 * size)), PRODUCT_COLUMNS // 2), np.float32)
    left = iter(range(max(8, int(PRODUCTS * size))))

    def work() -> None:
        out = np.empty((rows.shape[1],) * 2, np.float32)
        for _ in left:  # shared: what one thread takes, no other does
            symmetric_rank_update(rows, out)

    with one_blas_thread():
        several = [threading.Thread(target=work) for _ in range(threads)]
        for one in several:
            one.start()
        for one in several:
            one.join()


class Profile:
    """Looks every 10 ms at which threads run (Linux), and where the only one that does is."""

    def __init__(self) -> None:
        self.running: collections.Counter[int] = collections.Counter()
        self.alone: collections.Counter[str] = collections.Counter()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def watch(self) -> None:
        own = threading.get_native_id()
        while not self.stopped.wait(SAMPLE_SECONDS):
            found = []
            for task in os.listdir("/proc/self/task"):
                with suppress(OSError):  # a thread that ended
                    state = Path(f"/proc/self/task/{task}/stat").read_text().rpartition(")")[2].split()[0]
                    found += [int(task)] if state == "R" and int(task) != own else []
            self.running[len(found)] += 1
            if len(found) == 1:
                self.alone[self.place(found[0])] += 1

    def place(self, native: int) -> str:
        """Return the innermost lines of bigpca and of all, of a thread."""
        known = {one.native_id: one.ident for one in threading.enumerate()}
        frame = sys._current_frames().get(known.get(native) or -1)
        lines, ours = [], None
        while frame is not None:
            text = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
            ours = ours or (text if "bigpca" in frame.f_code.co_filename else None)
            lines.append(text)
            frame = frame.f_back
        return f"{ours} <- {lines[0]}" if lines else "a thread of BLAS"

    def __enter__(self) -> "Profile":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()

    def __str__(self) -> str:
        looks = max(1, self.running.total())
        mean = sum(count * times for count, times in self.running.items()) / looks
        said = [
            f"{mean:.1f} threads ran on average, one {self.running[1] / looks:.0%}, none {self.running[0] / looks:.0%}"
        ]
        return "\n".join(said + [f"    {times / looks:6.1%}  {at}" for at, times in self.alone.most_common(12)])


def line(cells: list[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def measured(name: str, calls: dict[int, Callable[[], Any]], rounds: int, beside: str) -> None:
    """Time the calls by number of threads, and print their row."""
    best: dict[int, tuple[float, float]] = {}
    for count, call in calls.items():
        with on_threads(count):
            best[count] = min(timed(call) for _ in range(rounds))
    (few, few_cpu), (most, most_cpu) = best[min(best)], best[max(best)]
    grown = f"{most_cpu / few_cpu - 1:+.0%}"
    line([name, *(f"{one[0]:.3g}" for one in best.values()), f"{few / most:.2f}", grown, beside])


def main() -> None:
    """Print one row after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", help="1, 2, 4, ... up to the cores")
    parser.add_argument("--size", type=float, default=1.0, help="times the rows")
    parser.add_argument("--rows", nargs="+", choices=["products", *ROWS], default=["products", *ROWS])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "bigpca-benchmarks")
    parser.add_argument("--alone", action="store_true", help="without scikit-learn")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = sorted(given.threads or {*(2**i for i in range(cores.bit_length())), cores} - {0})
    threads = [count for count in threads if given.threads or count <= cores]
    data = Data(given.size, given.directory)
    warnings.filterwarnings("ignore")  # of fits that do not converge on noise, and of scikit-learn
    heads = ["seconds", *(f"{count} thread{'s'[: count != 1]}" for count in threads)]
    line([*heads, "speed-up", "processor time", "scikit-learn"])
    line(["---"] * (len(heads) + 3))
    for name in given.rows:
        if name == "products":
            calls = {count: partial(products, given.size, count) for count in threads}
            measured("products alone", calls, given.rounds, "")
            continue
        row = ROWS[name]
        X = row.rows(data)
        with on_threads(max(threads)):
            row.fit(data, X[: max(400, len(X) // 16)])  # modules, compiled loops, files in the cache
        beside = ""
        if row.beside is not None and not given.alone:
            beside = f"{min(timed(partial(row.beside, data))[0] for _ in range(given.rounds)):.3g}"
        text = f"{row.text}, {X.shape[0]:,} x {X.shape[1]:,}"
        measured(text, dict.fromkeys(threads, partial(row.fit, data, X)), given.rounds, beside)
        if given.profile:
            with on_threads(max(threads)), Profile() as profile:
                row.fit(data, X)
            print(f"\n{row.text}, {max(threads)} threads: {profile}\n", flush=True)


if __name__ == "__main__":
    main()
