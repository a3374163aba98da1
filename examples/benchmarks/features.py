"""Features with neither d x d nor n x n in memory: block Krylov and one pass against what users would pick instead.

usage: python examples/benchmarks/features.py [--shape vgg16] [--dtype float16] [--rows N] [--cold] [CONTENDER ...]

Writes the dump unless it is there (25,000 rows: 2.4 GiB for vgg16, 9.4 GiB for resnet50), computes reference
eigenvalues beside it unless they are there, and runs the contenders in turn, each in a process of its own. Prints every
run, then medians. "x reads" is seconds over 2.5 reads of the store by Zarr, "x bound" over 2.5 times a read or a
product with 2k columns, whichever takes longer: both from this run. Peak memory is of all processes of a contender:
over what they hold when the fit begins, and in all. "cpu" is the CPU time of all cores. Ends with one JSON line.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
import psutil
import zarr
from contenders import run_apart
from dump import BLOCK, write_dump

SHAPES = {"vgg16": (25_000, 25_088), "resnet50": (25_000, 100_352)}  # Marukatat (2022), table 3
ROOFLINE = "roofline-multiply"
DEFAULT = [ROOFLINE, "bigpca solver=krylov", "bigpca-one-pass", "sklearn-randomized", "dask-compressed"]
COPIES = {"sklearn-randomized": 2.1, "dask-ml-randomized": 2.1}  # of the data that they hold
COLUMNS = (  # head, number, format
    ("seconds", "seconds", ".2f"), ("cpu", "cpu_s", ".2f"), ("x reads", "over_reads", ".2f"),
    ("x bound", "over_bound", ".2f"), ("MiB over idle", "peak_mib", ".0f"), ("MiB in all", "whole_mib", ".0f"),
    ("reads of X", "reads", ".2f"), ("most", "most_reads", ".2f"), ("largest error", "max_error", ".2g"),
)  # fmt: skip
READS = 2.5
SETTLED = 1e-5


def reference_eigenvalues(store: Path, k: int, most: int = 30) -> np.ndarray:
    """Subspace iteration on 4k columns in plain NumPy, until no eigenvalue changes by more than 1e-5 of itself."""
    array = zarr.open_array(store, mode="r")
    (n, d), step = array.shape, array.chunks[0]
    starts = range(0, n, step)
    mean = (sum(array[i : i + step].sum(axis=0, dtype="f8") for i in starts) / n).astype("f4")
    Q = np.linalg.qr(np.random.default_rng(7).standard_normal((d, min(4 * k, n, d))))[0]
    values = np.full(k, np.inf)
    for _ in range(most):
        Y, Q4 = np.zeros_like(Q), Q.astype("f4")
        for i in starts:
            block = array[i : i + step].astype("f4", copy=False)
            block -= mean
            Y += block.T @ (block @ Q4)
        before, values = values, np.linalg.eigvalsh(Q.T @ Y)[::-1][:k] / (n - 1)
        if np.abs(values / before - 1).max() < SETTLED:
            return values
        Q = np.linalg.qr(Y)[0]
    raise SystemExit(f"the reference eigenvalues of {store} did not settle in {most} iterations: ask for a smaller -k.")


def find_reference(store: Path, k: int) -> Path:
    """Path of the eigenvalues beside the store, computed where there are none."""
    path = store.with_name(store.name + ".eigenvalues.npy")
    if not path.exists():
        np.save(path, reference_eigenvalues(store, k))
        print(f"reference: {path.name}, by subspace iteration on {4 * k} columns until it settled to {SETTLED:g}")
        return path
    if (held := len(np.load(path))) < k:
        raise SystemExit(f"{path} holds {held} eigenvalues, {k} are needed: remove it, or ask for a smaller -k.")
    print(f"reference: {path.name}, which was there")
    return path


def run_all(contenders: list[str], store: Path, k: int, rounds: int, options: list[str]) -> dict[str, list[dict]]:
    """Run the contenders in turn, as often as asked; those that need more memory than there is are left out."""
    size = zarr.open_array(store, mode="r").size * 4
    rows: dict[str, list[dict]] = {}
    for _ in range(rounds):
        for contender in contenders:
            needed = COPIES.get(contender.split()[0], 0) * size
            if needed > psutil.virtual_memory().available:
                print(f"{contender} is left out: it holds about {needed / 2**30:.0f} GiB", flush=True)
                continue
            row = run_apart(contender, store, k, *options)
            print(json.dumps(row), flush=True)
            if "failed" not in row:
                rows.setdefault(contender, []).append(row)
    return rows


def medians_of(rows: dict[str, list[dict]]) -> dict[str, dict[str, float]]:
    """Medians of every number of every contender, and seconds over 2.5 reads and over 2.5 times the slower of both."""
    medians = {
        contender: {key: statistics.median(row[key] for row in done) for key in done[0] if key != "contender"}
        for contender, done in rows.items()
    }
    roof = medians.get(ROOFLINE)
    for row in medians.values() if roof else ():
        row["over_reads"] = row["seconds"] / (READS * roof["read_s"])
        row["over_bound"] = row["seconds"] / (READS * max(roof["read_s"], roof["multiply_s"]))
    return medians


def print_table(medians: dict[str, dict[str, float]]) -> None:
    """One line for each contender, and one for the machine."""
    if roof := medians.get(ROOFLINE):
        print(f"one read {roof['read_s']:.2f} s, one product with 2k columns {roof['multiply_s']:.2f} s")
    print(f"{'':32}" + "".join(f"{head:>15}" for head, _, _ in COLUMNS))
    for contender, row in medians.items():
        if contender != ROOFLINE:
            numbers = (f"{row.get(key, np.nan):15{shown}}" for _, key, shown in COLUMNS)
            print(f"{contender:32}" + "".join(numbers))


def main() -> None:
    """Write, refer, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="*", default=DEFAULT, help='as "NAME key=value ..." of contenders.py')
    parser.add_argument("--directory", default=str(Path(tempfile.gettempdir()) / "bigpca-benchmarks"))
    parser.add_argument("--shape", choices=SHAPES, default="vgg16")
    parser.add_argument("--rows", type=int, help="fewer (or more) than the shape has")
    parser.add_argument("--columns", type=int, help="fewer (or more) than the shape has")
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float32")
    parser.add_argument("--cold", action="store_true", help="drop the dump from the page cache before each run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("-k", type=int, default=50)
    given = parser.parse_args()
    rows, columns = given.rows or SHAPES[given.shape][0], given.columns or SHAPES[given.shape][1]
    parts = [given.shape, *([f"{rows}x{columns}"] if (rows, columns) != SHAPES[given.shape] else [])]
    parts += [given.dtype] if given.dtype != "float32" else []
    Path(given.directory).mkdir(parents=True, exist_ok=True)
    path = Path(given.directory, "-".join(parts) + ".zarr")
    store = write_dump(path, rows, columns, min(rows, max(250, BLOCK // columns)), given.dtype)
    options = ["--reference", str(find_reference(store, given.k)), *(["--cold"] if given.cold else [])]
    medians = medians_of(run_all(given.contenders, store, given.k, given.rounds, options))
    print(f"{rows:,} x {columns:,} {given.dtype}, k = {given.k}, {'cold' if given.cold else 'warm'} cache")
    print_table(medians)
    rounded = {c: {key: float(f"{value:.4g}") for key, value in row.items()} for c, row in medians.items()}
    print(json.dumps(rounded))


if __name__ == "__main__":
    main()
