"""One read of a store, as fast as this machine reads: warm, or with its files dropped from the page cache first.

usage: python examples/benchmarks/reading.py STORE [--cold] [--rounds 3]

Also what the other benchmarks count reads with: a store and a row source that note which
rows were read, chunk by chunk.
"""

import argparse
import json
import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr
from zarr.storage import LocalStore, WrapperStore

from bigpca.data.dask_arrays import open_source
from bigpca.data.zarr_arrays import ZarrReader, ZarrRows


class Reads:
    """How often each row was read; threads may count at the same time."""

    def __init__(self, rows: int, chunk: int) -> None:
        self.counts, self.chunk, self.lock = np.zeros(rows, np.int64), chunk, threading.Lock()

    def add(self, start: int, stop: int) -> None:
        with self.lock:
            self.counts[start:stop] += 1

    def summary(self) -> dict[str, float]:
        """Reads per chunk (rows read / rows of the chunk): the mean, weighted by rows, and the most."""
        firsts = np.arange(0, len(self.counts), self.chunk)
        per_chunk = np.add.reduceat(self.counts, firsts) / np.diff(firsts, append=len(self.counts))
        return {"reads": round(float(self.counts.mean()), 3), "most_reads": round(float(per_chunk.max()), 3)}


@dataclass(frozen=True)
class CountedRows(ZarrRows):
    """Rows of a Zarr array that are counted as they are read, in this process."""

    reads: Reads

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> np.ndarray:
        self.reads.add(start, stop)
        return super().read_block(start, stop, columns)


class CountedStore(WrapperStore[LocalStore]):
    """A local store of whole-row chunks that are counted as they are fetched."""

    reads: Reads

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        if key.startswith("c/"):
            first = int(key.split("/")[1]) * self.reads.chunk
            self.reads.add(first, first + self.reads.chunk)
        return await super().get(key, *arguments, **options)


def open_counted(store: str | Path) -> tuple[da.Array, Reads]:
    """Open a store as ``bp.open`` does, counting what bigpca reads."""
    reader = ZarrReader(store)
    reads = Reads(reader.shape[0], reader.chunks[0])
    return open_source(CountedRows.of(reader, reads)), reads


def zarr_counted(store: str | Path) -> tuple[zarr.Array, Reads]:
    """Open a store by Zarr, counting the chunks that it fetches."""
    shape, chunks = (found := zarr.open_array(store, mode="r")).shape, found.chunks
    counted = CountedStore(LocalStore(store, read_only=True))
    counted.reads = Reads(shape[0], chunks[0])
    return zarr.open_array(counted, mode="r"), counted.reads


def drop_from_cache(store: str | Path) -> None:
    """Ask the system to forget the store's files (written out first), so that the next read is from the disk."""
    if not hasattr(os, "posix_fadvise"):
        raise SystemExit("this system cannot drop files from its cache (no posix_fadvise): leave out --cold.")
    for path in Path(store).rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def read_once(store: str | Path, threads: int = 2) -> float:
    """Return the seconds that reading every chunk once into memory takes, on two threads."""
    array = zarr.open_array(store, mode="r")
    step = array.chunks[0]
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        list(pool.map(lambda start: array[start : start + step].shape, range(0, array.shape[0], step)))
        return time.perf_counter() - began


def main() -> None:
    """Read as often as asked, and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    seconds = []
    for _ in range(given.rounds):
        if given.cold:
            drop_from_cache(given.store)
        seconds.append(read_once(given.store))
    median = statistics.median(seconds)
    size = zarr.open_array(given.store, mode="r").nbytes / 2**20
    print(json.dumps({"cold": given.cold, "seconds": round(median, 3), "mib_per_s": round(size / max(median, 1e-9))}))


if __name__ == "__main__":
    main()
