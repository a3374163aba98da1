"""What rows of a pattern cost beside the same numbers stored as rows, and judging rows beside transforming them.

usage: python examples/benchmarks/patterns.py [--samples 2000] [--channels 512] [--side 28] [--rows 524288]
       [--columns 2048] [-k 64] [--rounds 3] [--folder DIR]

"pattern" fits a PCA to the places of stored maps (n, c, h, w), by "n c h w -> (n h w) c"; "rows" to the same numbers
stored as (n h w, c). "judge" computes T2 and SPE in one read of stored rows; "transform" and "inverse" compute scores,
and rows from scores, which are dropped. Rounds take turns; medians of wall and CPU seconds, and of the ratios to "rows"
and to the sum of "transform" and "inverse" in the same round. Stores are written to the folder (3.0 GiB of maps, twice,
and 4.0 GiB of rows) unless they are there. Ends with one JSON line.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dask.array as da
import numpy as np

import bigpca as bp

PATTERN = "n c h w -> (n h w) c"
BATCH = 16  # samples that are written together


def write_maps(maps: Path, rows: Path, samples: int, channels: int, side: int) -> None:
    """Write maps of random numbers, and the same numbers as rows, unless both are there."""
    if maps.exists() and rows.exists():
        return
    scales = (np.arange(1, channels + 1, dtype=np.float32) ** -0.5)[:, None, None]
    with bp.FeatureWriter(maps, overwrite=True) as one, bp.FeatureWriter(rows, overwrite=True) as other:
        for start in range(min(one.n_rows, other.n_rows // side**2), samples, BATCH):
            shape = (min(BATCH, samples - start), channels, side, side)
            batch = np.random.default_rng(start).standard_normal(shape, np.float32) * scales
            one.write(batch)
            other.write(batch.transpose(0, 2, 3, 1).reshape(-1, channels))


def write_rows(store: Path, rows: int, columns: int) -> None:
    """Write random rows, unless they are there."""
    if store.exists():
        return
    scales = np.arange(1, columns + 1, dtype=np.float32) ** -0.5
    with bp.FeatureWriter(store) as writer:
        while writer.n_rows < rows:
            shape = (min(4096, rows - writer.n_rows), columns)
            writer.write(np.random.default_rng(writer.n_rows).standard_normal(shape, np.float32) * scales)


def dropped(X: da.Array) -> None:
    """Compute an array and keep none of it."""
    X.map_blocks(lambda block: block[:1, :1], chunks=((1,) * X.numblocks[0], (1,)), dtype=X.dtype).compute()


def main() -> None:
    """Run all contenders in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"samples": 2000, "channels": 512, "side": 28, "rows": 524_288, "columns": 2048, "k": 64, "rounds": 3}
    for name, default in numbers.items():
        parser.add_argument(f"-{name}" if name == "k" else f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "bigpca_patterns")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    maps = given.folder / f"maps_{given.samples}x{given.channels}x{given.side}.zarr"
    places, rows = maps.with_name(f"places_{maps.stem}.zarr"), given.folder / f"rows_{given.rows}x{given.columns}.zarr"
    write_maps(maps, places, given.samples, given.channels, given.side)
    write_rows(rows, given.rows, given.columns)
    X, k = bp.open(rows), min(given.k, given.channels)
    model = bp.PCA(given.k, solver="covariance").fit(X)
    scores = da.from_array(np.asarray(model.transform(X)), chunks=(X.chunks[0], -1))
    calls: dict[str, Callable[[], object]] = {
        "rows": lambda: bp.PCA(k, solver="covariance").fit(bp.open(places)),
        "pattern": lambda: bp.PCA(k, solver="covariance").fit(bp.open(maps, pattern=PATTERN)),
        "transform": lambda: dropped(model.transform(X)),
        "inverse": lambda: dropped(model.inverse_transform(scores)),
        "judge": lambda: np.asarray(model.statistics(X, ["t2", "spe"])),
    }
    wall: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(given.rounds):
        for name, call in calls.items():
            began, used = time.perf_counter(), time.process_time()
            call()
            wall[name].append(time.perf_counter() - began)
            cpu[name].append(time.process_time() - used)
    table = {name: {"seconds": statistics.median(wall[name]), "cpu": statistics.median(cpu[name])} for name in calls}
    for name, values in table.items():
        print(f"{name:<10}" + "".join(f"  {key} {value:<10.4g}" for key, value in values.items()))
    ratios = {}
    for what, spent in (("wall", wall), ("cpu", cpu)):
        both = [a + b for a, b in zip(spent["transform"], spent["inverse"], strict=True)]
        pattern = statistics.median(a / b for a, b in zip(spent["pattern"], spent["rows"], strict=True))
        judge = statistics.median(a / b for a, b in zip(spent["judge"], both, strict=True))
        ratios[what] = {"pattern over rows": pattern, "judge over transform and inverse": judge}
        print(f"{what}: pattern over rows {pattern:.3f}, judge over transform and inverse {judge:.3f}")
    print(json.dumps({**table, "ratios": ratios}))


if __name__ == "__main__":
    main()
