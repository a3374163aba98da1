"""A store of 100,000 tiny chunks: what the engine costs beside reading it.

usage: python examples/benchmarks/overhead.py [--directory DIR] [--rows 800000]

Compares a fit with the time that Zarr itself takes to read the store in slabs of 8,000 rows, counts tasks, and times
the first group of a general array (``(X - 1) * 2``) over the same store.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import dask.array as da
import numpy as np
import zarr
from contenders import PeakMemory

import bigpca as bp
from bigpca.engine.events import GroupEvent

COLUMNS, CHUNK = 64, 8


def write_store(path: Path, rows: int) -> Path:
    """Write chunks of 8 rows, unless they are there already."""
    if not path.exists():
        partial = path.with_name(path.name + ".partial")
        array = zarr.create_array(partial, shape=(rows, COLUMNS), chunks=(CHUNK, COLUMNS), dtype="f4", compressors=None)
        generator = np.random.default_rng(0)
        for start in range(0, rows, 8_000):
            array[start : start + 8_000] = generator.standard_normal((min(8_000, rows - start), COLUMNS), dtype="f4")
        partial.rename(path)
    return path


def main() -> None:
    """Read by Zarr, fit directly, fit a general array; print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=str(Path(tempfile.gettempdir()) / "bigpca-benchmarks"))
    parser.add_argument("--rows", type=int, default=800_000)
    given = parser.parse_args()
    directory = Path(given.directory)
    directory.mkdir(parents=True, exist_ok=True)
    store = write_store(directory / f"tiny-chunks-{given.rows}.zarr", given.rows)
    array = zarr.open_array(store, mode="r")
    bp.PCA(4).fit(np.random.default_rng(0).normal(size=(100, 8)))  # imports
    row: dict[str, float] = {}
    began = time.perf_counter()
    for start in range(0, given.rows, 8_000):
        array[start : start + 8_000]
    row["zarr_s"] = time.perf_counter() - began
    for name, X in (("direct", bp.open(store)), ("general", (da.from_zarr(store) - 1) * 2)):
        groups: list[float] = []
        began = time.perf_counter()

        def note(event: object, began: float = began, groups: list[float] = groups) -> None:
            if isinstance(event, GroupEvent):
                groups.append(time.perf_counter() - began)

        with PeakMemory() as memory:
            pca = bp.PCA(10).fit(X, progress=note)
        row[f"{name}_s"] = time.perf_counter() - began
        row[f"{name}_first_group_s"] = groups[0]
        row[f"{name}_tasks"] = pca.plan_.tasks
        row[f"{name}_peak_mib"] = (memory.peak - memory.baseline) / 2**20
    row["direct_over_zarr"] = row["direct_s"] / row["zarr_s"]
    print(json.dumps({name: round(value, 3) for name, value in row.items()}))


if __name__ == "__main__":
    main()
