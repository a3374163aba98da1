"""Print the tables of a release as Markdown: bigpca beside what users would pick instead, on a tall and a wide store.

usage: python examples/benchmarks/release.py [--directory DIR] [--size 1.0] [--rounds 3] [CONTENDER ...]
"""

import argparse
import os
import platform
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import psutil
from contenders import run_apart
from dump import write_dump

import bigpca as bp

CASES = {  # rows, columns, components, and contenders; the first is what the ratios are to
    "PCA with a d x d matrix": (131_072, 1024, 32, ("bigpca", "bigpca-cluster", "dask-gram", "sklearn-covariance")),
    "PCA without one": (16_384, 8192, 32, ("bigpca solver=krylov", "sklearn-randomized", "dask-ml-randomized")),
}


def main() -> None:
    """Run each contender in turn, in processes of their own, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="*", help="only these")
    parser.add_argument("--directory", default=str(Path(tempfile.gettempdir()) / "bigpca-benchmarks"))
    parser.add_argument("--size", type=float, default=1.0, help="a share of the rows")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    Path(given.directory).mkdir(parents=True, exist_ok=True)
    memory = psutil.virtual_memory().total / 2**30
    print(
        f"# Benchmarks of {bp.__version__}\n\n"
        f"`python examples/benchmarks/release.py`, {datetime.now(UTC):%d %B %Y}: {os.cpu_count()} cores "
        f"({platform.machine()}), {memory:.0f} GiB, Python {platform.python_version()}. Medians of {given.rounds} "
        "runs in turn. Others may share the machine: compare seconds within a table. Memory is the peak above the idle "
        "process, with all its children. The last column is the last eigenvalue over that of the first line.\n\n"
        "{doc}`performance` has larger sizes, other fits and other libraries."
    )
    for title, (rows, columns, k, contenders) in CASES.items():
        n = max(200, int(rows * given.size))
        store = write_dump(Path(given.directory, f"release-{n}x{columns}.zarr"), n, columns)
        done: dict[str, list[dict]] = {one: [] for one in contenders if one in (given.contenders or contenders)}
        for _ in range(given.rounds):
            for one in done:
                done[one].append(run_apart(one, store, k))
        print(f"\n## {title}\n\n{n:,} x {columns:,} float32, {k} components:\n")
        print("| | seconds | CPU seconds | against bigpca | peak, MiB | last eigenvalue |\n|---|---|---|---|---|---|")
        base, last = 0.0, 0.0
        for one, found in done.items():
            if "failed" in found[0]:
                print(f"| {one} | {found[0]['failed']} | | | | |")
                continue
            seconds, cpu, peak = (
                statistics.median(row[key] for row in found) for key in ("seconds", "cpu_s", "peak_mib")
            )
            base, last = base or seconds, last or found[0]["last"]
            ratio, value = seconds / base, found[0]["last"] / last
            print(f"| {one} | {seconds:.2f} | {cpu:.2f} | {ratio:.2f} | {peak:.0f} | {value:.5f} |")


if __name__ == "__main__":
    main()
