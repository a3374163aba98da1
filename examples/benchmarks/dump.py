"""Write a synthetic feature dump to Zarr: ReLU features with a mean, a power-law spectrum and a heavy tail.

usage: python examples/benchmarks/dump.py STORE ROWS COLUMNS [CHUNK_ROWS]
"""

import argparse
import shutil
from pathlib import Path

import numpy as np
import zarr

RANK = 1_000


def write_dump(store: str | Path, rows: int, columns: int, chunk_rows: int | None = None) -> Path:
    """Write ``rows x columns`` float32 features, uncompressed, in chunks of about 48 MiB, unless they are there already."""
    path = Path(store)
    if path.exists():
        return path
    chunk = chunk_rows or max(1, 12_500_000 // columns)
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    generator = np.random.default_rng(1)
    rank = min(RANK, columns)
    weights = np.arange(1, rank + 1, dtype="f4")[:, None] ** -0.7
    directions = generator.standard_normal((rank, columns), dtype="f4") * weights
    mean = generator.standard_normal(columns).astype("f4") * 0.5
    array = zarr.create_array(partial, shape=(rows, columns), chunks=(chunk, columns), dtype="f4", compressors=None)
    step = -(-12_500_000 // columns // chunk) * chunk
    for start in range(0, rows, step):
        count = min(step, rows - start)
        signal = generator.standard_normal((count, rank), dtype="f4") @ directions
        noise = 0.3 * generator.standard_normal((count, columns), dtype="f4")
        array[start : start + count] = np.maximum(signal + mean + noise, 0)
    partial.rename(path)
    return path


def main() -> None:
    """Write the dump that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("rows", type=int)
    parser.add_argument("columns", type=int)
    parser.add_argument("chunk_rows", type=int, nargs="?", help="about 48 MiB a chunk if left out")
    given = parser.parse_args()
    print(write_dump(given.store, given.rows, given.columns, given.chunk_rows))


if __name__ == "__main__":
    main()
