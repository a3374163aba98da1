"""The main job against the roofline and against what users would pick instead, in turn, on the same store.

usage: python examples/benchmarks/tall.py [--directory DIR] [--rows 524288] [--rounds 3] [--cold] [CONTENDER ...]

Prints every run and then medians; ratios are to bigpca's median in this run. The slow peers (sklearn-incremental,
dask-ml-full) are meant for --rows 65536.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from contenders import run_apart
from dump import write_dump

DEFAULT = ["roofline", "bigpca", "bigpca-cluster", "dask-gram", "sklearn-covariance"]


def main() -> None:
    """Parse the arguments, run the contenders in turn, print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="*", default=DEFAULT)
    parser.add_argument("--directory", default=str(Path(tempfile.gettempdir()) / "bigpca-benchmarks"))
    parser.add_argument("--rows", type=int, default=524_288)
    parser.add_argument("--columns", type=int, default=2_048)
    parser.add_argument("--chunk-rows", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-k", type=int, default=64)
    parser.add_argument("--cold", action="store_true", help="drop the dump from the page cache before each run")
    given = parser.parse_args()
    Path(given.directory).mkdir(parents=True, exist_ok=True)
    store = write_dump(
        Path(given.directory, f"dump-{given.rows}x{given.columns}.zarr"), given.rows, given.columns, given.chunk_rows
    )
    rows: dict[str, list[dict]] = {}
    for _ in range(given.rounds):
        for contender in given.contenders:
            row = run_apart(contender, store, given.k, *(["--cold"] if given.cold else []))
            print(json.dumps(row), flush=True)
            rows.setdefault(contender, []).append(row)
    medians = {c: statistics.median(r["seconds"] for r in done) for c, done in rows.items() if "failed" not in done[0]}
    base = medians.get("bigpca")
    for contender, seconds in medians.items():
        peak = statistics.median(r.get("peak_mib", 0) for r in rows[contender])
        ratio = f"{seconds / base:6.2f} x bigpca" if base else ""
        print(f"{contender:<32} {seconds:8.2f} s {peak:8.0f} MiB over idle {ratio}")
    if base and "roofline" in rows:
        bound = statistics.median(r["bound_s"] for r in rows["roofline"])
        eigh = statistics.median(r["eigh_s"] for r in rows["roofline"])
        print(f"bigpca less the eigenproblem: {(base - eigh) / bound:.2f} x (syrk_s + read_s / cores)")


if __name__ == "__main__":
    main()
