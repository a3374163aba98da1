"""Write synthetic features to Zarr: a ReLU layer's with a mean and a heavy tail, or rows of a spectrum known exactly.

usage: python examples/benchmarks/dump.py STORE ROWS COLUMNS [CHUNK_ROWS] [--dtype float16] [--power 1]
"""

import argparse
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import zarr
from scipy.fft import idct

RANK = 1_000
BLOCK = 12_500_000  # values written at a time
MEAN = 3.0  # of every column of the rows with a known spectrum


def write_dump(
    store: str | Path, rows: int, columns: int, chunk_rows: int | None = None, dtype: str = "float32"
) -> Path:
    """Write ``rows x columns`` features, uncompressed, in chunks of about 12.5 million values,
    unless they are there.
    """
    return write_rows(store, rows, columns, chunk_rows, dtype, partial(relu_features, rows, columns))


def write_known(
    store: str | Path, rows: int, columns: int, power: float, chunk_rows: int | None = None, dtype: str = "float32"
) -> Path:
    """Write rows whose covariance has the eigenvalues ``i^-power``, i <= min(rows - 1, columns),
    unless they are there.
    """
    return write_rows(store, rows, columns, chunk_rows, dtype, partial(known_rows, rows, columns, power))


def write_rows(
    store: str | Path,
    rows: int,
    columns: int,
    chunk_rows: int | None,
    dtype: str,
    blocks: Callable[[int], Iterator[np.ndarray]],
) -> Path:
    """Write what ``blocks(step)`` yields, ``step`` rows at a time, to a store that appears when it is complete."""
    path = Path(store)
    if path.exists():
        return path
    chunk = chunk_rows or max(1, BLOCK // columns)
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    array = zarr.create_array(
        partial, shape=(rows, columns), chunks=(chunk, columns), dtype=np.dtype(dtype), compressors=None
    )
    start = 0
    for block in blocks(max(chunk, BLOCK // columns // chunk * chunk)):
        array[start : start + len(block)] = block
        start += len(block)
    partial.rename(path)
    return path


def relu_features(rows: int, columns: int, step: int) -> Iterator[np.ndarray]:
    """Yield rectified rows: a signal of rank 1,000 that falls like i^-0.7, a mean for each column, noise."""
    generator = np.random.default_rng(1)
    rank = min(RANK, columns)
    weights = np.arange(1, rank + 1, dtype="f4")[:, None] ** -0.7
    directions = generator.standard_normal((rank, columns), dtype="f4") * weights
    mean = generator.standard_normal(columns).astype("f4") * 0.5
    for start in range(0, rows, step):
        count = min(step, rows - start)
        signal = generator.standard_normal((count, rank), dtype="f4") @ directions
        noise = 0.3 * generator.standard_normal((count, columns), dtype="f4")
        yield np.maximum(signal + mean + noise, 0)


def known_rows(rows: int, columns: int, power: float, step: int) -> Iterator[np.ndarray]:
    """Yield rows of ``P U diag(s) V + 3``: U cosines over the rows, P a permutation of them, V as :func:`known_axes`.

    The columns of U and the rows of V are orthonormal, and those of U sum to zero, so the covariance is known exactly.
    """
    rank = min(rows - 1, columns)
    order = np.random.default_rng(2).permutation(rows)
    number = np.arange(1.0, rank + 1)
    s = np.sqrt((rows - 1.0) * number**-power)
    for start in range(0, rows, step):
        places = order[start : start + step, None] + 0.5
        coefficients = np.zeros((len(places), columns))
        coefficients[:, :rank] = np.sqrt(2 / rows) * np.cos(np.pi / rows * places * number) * s
        yield idct(coefficients, norm="ortho", axis=1, overwrite_x=True) * _signs(columns) + MEAN


def known_axes(columns: int, k: int) -> np.ndarray:
    """Return the k leading axes (k, columns) of :func:`known_rows`: cosines with random signs."""
    return idct(np.eye(k, columns), norm="ortho", axis=1) * _signs(columns)


def _signs(columns: int) -> np.ndarray:
    return np.random.default_rng(3).choice([-1.0, 1.0], columns)


def main() -> None:
    """Write the dump that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("rows", type=int)
    parser.add_argument("columns", type=int)
    parser.add_argument("chunk_rows", type=int, nargs="?", help="12.5 million values a chunk if left out")
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float32")
    parser.add_argument("--power", type=float, help="eigenvalues i^-POWER, known exactly, instead of features")
    given = parser.parse_args()
    size = given.store, given.rows, given.columns
    if given.power is None:
        print(write_dump(*size, given.chunk_rows, given.dtype))
    else:
        print(write_known(*size, given.power, given.chunk_rows, given.dtype))


if __name__ == "__main__":
    main()
