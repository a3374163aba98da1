"""``bigpca fit`` on one and on two workers of one BLAS thread each, on work that is compute-bound.

usage: python examples/benchmarks/scaling.py [--directory DIR] [--rows 262144] [--columns 4096] [--rounds 3]

The command line runs as a user runs it; "seconds" is what it reports for the fit, "whole" the process with its start-up.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dump import write_dump


def fit(store: Path, model: Path, workers: int) -> dict[str, float]:
    """Run the command line once."""
    command = [
        *(sys.executable, "-m", "bigpca.cli", "fit", str(store), "--n-components", "32", "--solver", "covariance"),
        *("--model", str(model), "--overwrite", "--json", "--workers", str(workers), "--threads", "1"),
    ]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    row = json.loads(done.stdout)
    return {"workers": workers, "seconds": row["seconds"]["fit"], "whole": time.perf_counter() - began}


def main() -> None:
    """Fit with one and two workers in turn; print medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=str(Path(tempfile.gettempdir()) / "bigpca-benchmarks"))
    parser.add_argument("--rows", type=int, default=262_144)
    parser.add_argument("--columns", type=int, default=4_096)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    directory = Path(given.directory)
    directory.mkdir(parents=True, exist_ok=True)
    store = write_dump(directory / f"dump-{given.rows}x{given.columns}.zarr", given.rows, given.columns)
    rows = []
    for _ in range(given.rounds):
        for workers in (1, 2):
            rows.append(fit(store, directory / "scaling-model.zarr", workers))
            print(json.dumps(rows[-1]), flush=True)
    for what in ("seconds", "whole"):
        one, two = (statistics.median(r[what] for r in rows if r["workers"] == w) for w in (1, 2))
        print(f"{what}: {one:.2f} s on one worker, {two:.2f} s on two: {one / two:.2f} x")


if __name__ == "__main__":
    main()
