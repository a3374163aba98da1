"""Rows in an object store: bigpca beside bare obstore with as many requests in flight, and a fit beside one of a disk.

usage: python examples/benchmarks/places.py [--objects 96] [--mib 1] [--rows 65536] [--columns 2048] [--listed 2500]
       [--latency 40] [--bandwidth 500] [--rounds 7]

The store is an S3 server (snailmail over moto) in another process, which answers after --latency milliseconds and sends
at most --bandwidth MB/s. Reading: --objects chunks of --mib MiB, by bare obstore with 64 requests in flight, by Zarr's
ObjectStore as it is, and as bigpca's tasks read. Fitting: PCA(10) of float32 rows by one thread, from a disk and from
the store. Transforming: scores of 64 columns of these rows, read from and written to the disk or the store; and these
rows by bare obstore, which is what the store can do. Each round runs the contenders in turn; medians of seconds, and of
the seconds of this process's processor.
Listing: the requests for --listed objects. Ends with one JSON line.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dask
import numpy as np
import obstore
import zarr
from threadpoolctl import threadpool_limits
from zarr.storage import ObjectStore as ZarrStore

import bigpca as bp
from bigpca.data.sources import row_source
from bigpca.storage.places import ObjectStore

MIB = 2**20
IN_FLIGHT = 64


# A server until its input ends; each line has latency and bandwidth, and is answered by the requests since the last.
SERVER = """
import json, logging, sys
import snailmail

logging.getLogger("werkzeug").setLevel(logging.ERROR)
with snailmail.ObjectStore(bucket="rows") as server:
    print(server.endpoint_url, flush=True)
    for line in sys.stdin:
        latency, bandwidth = map(float, line.split())
        print(json.dumps(server.stats()["ops"]), flush=True)
        server.reset_counts()
        server.set_latency(snailmail.Fixed(latency))
        server.set_bandwidth_mbs(bandwidth or None)
"""


class Server:
    """The server in its process."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", SERVER]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.process.stdout.readline().strip(),
        }

    def set(self, latency: float, bandwidth: float) -> dict[str, int]:
        """Set how the server answers, and return the requests since the last call by their kind."""
        self.process.stdin.write(f"{latency} {bandwidth}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def bare(place: ObjectStore, keys: list[str]) -> list[bytes]:
    """Get objects by obstore, 64 at a time."""

    async def all_of_them() -> list[bytes]:
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def one(key: str) -> bytes:
            async with gate:
                return await (await obstore.get_async(place.store, place.key(key))).bytes_async()

        return await asyncio.gather(*map(one, keys))

    return asyncio.run(all_of_them())


def in_turn(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """Return medians of seconds and processor seconds of contenders that take turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, action in contenders.items():
            began, worked = time.perf_counter(), time.process_time()
            action()
            times[name].append((time.perf_counter() - began, time.process_time() - worked))
    keys = ("seconds", "cpu_seconds")
    return {
        name: {
            key: round(statistics.median(values), 4) for key, values in zip(keys, zip(*found, strict=True), strict=True)
        }
        for name, found in times.items()
    }


def reading(server: Server, options: argparse.Namespace) -> dict[str, object]:
    rows = np.random.default_rng(0).standard_normal((options.objects * 256, options.mib * MIB // 1024), np.float32)
    url = "s3://rows/read.zarr"
    write(url, rows, 256)
    server.set(options.latency, options.bandwidth)
    source, place = row_source(url), ObjectStore(url)
    keys = [entry.key for entry in place.list("c")]
    array = zarr.open_array(ZarrStore(place.whole), mode="r")
    assert np.array_equal(source.read(0, len(rows)), rows)
    found = in_turn(
        {"bare": lambda: bare(place, keys), "zarr": lambda: array[:], "bigpca": lambda: source.read(0, len(rows))},
        options.rounds,
    )
    return found | {"bigpca / bare": round(found["bigpca"]["seconds"] / found["bare"]["seconds"], 3)}


def fitting(server: Server, options: argparse.Namespace, folder: Path) -> dict[str, object]:
    rows = np.random.default_rng(0).standard_normal((options.rows, options.columns), np.float32)
    url, path, step = "s3://rows/fit.zarr", str(folder / "fit.zarr"), max(1, MIB // (4 * options.columns))
    server.set(0, 0)
    write(url, rows, step)
    write(path, rows, step)
    server.set(options.latency, options.bandwidth)
    models = {}

    def fit(place: str) -> None:
        with dask.config.set(scheduler="synchronous"), threadpool_limits(1), bp.config(solve_threads=1):
            models[place] = bp.PCA(10, solver="covariance").fit(place)

    found = in_turn({"disk": lambda: fit(path), "store": lambda: fit(url)}, options.rounds)
    same = models[url].components_.tobytes() == models[path].components_.tobytes()
    return found | {"store / disk": ratio(found), "same bits": same}


def transforming(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Of the rows that :func:`fitting` has written."""
    url, path = "s3://rows/fit.zarr", str(folder / "fit.zarr")
    with dask.config.set(scheduler="synchronous"):
        model = bp.PCA(64, solver="covariance").fit(path)

    made = itertools.count()

    def transform(rows: str, scores: str) -> None:
        with dask.config.set(scheduler="synchronous"), threadpool_limits(1):
            model.transform(rows, out=f"{scores}-{next(made) // 2}.zarr")

    disk, store = str(folder / "scores"), "s3://rows/scores"
    place = ObjectStore(url)
    keys = [entry.key for entry in place.list("c")]
    contenders = {"disk": lambda: transform(path, disk), "store": lambda: transform(url, store)}
    found = in_turn(contenders | {"bare": lambda: bare(place, keys)}, options.rounds)
    same = np.array_equal(bp.open(f"{store}-0.zarr").compute(), bp.open(f"{disk}-0.zarr").compute())
    return found | {"store / disk": ratio(found), "same bits": same}


def ratio(found: dict[str, dict[str, float]]) -> float:
    return round(found["store"]["seconds"] / found["disk"]["seconds"], 3)


def listing(server: Server, options: argparse.Namespace) -> int:
    url = "s3://rows/listed.zarr"
    write(url, np.zeros((options.listed, 1), np.float32), 1)
    server.set(0, 0)
    assert len(row_source(url).stamps(0, options.listed)) == options.listed
    return server.set(0, 0)["LIST"]


def write(url: str, rows: np.ndarray, step: int) -> None:
    store = ZarrStore(ObjectStore(url).whole) if "://" in url else url
    made = zarr.create_array(
        store, shape=rows.shape, chunks=(step, rows.shape[1]), dtype="f4", compressors=None, overwrite=True,
        config={"write_empty_chunks": True},
    )  # fmt: skip
    made[:] = rows


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__.partition("usage: ")[2].partition("\n\n")[0], description=__doc__)
    for name, default in {"objects": 96, "mib": 1, "rows": 65536, "columns": 2048, "listed": 2500, "rounds": 7}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--latency", type=float, default=40.0)
    parser.add_argument("--bandwidth", type=float, default=500.0)
    options = parser.parse_args()
    server = Server()
    try:
        with tempfile.TemporaryDirectory() as folder:
            found: dict[str, object] = {"reading": reading(server, options)}
            found["fitting"] = fitting(server, options, Path(folder))
            found["transforming"] = transforming(options, Path(folder))
            found["listing requests"] = listing(server, options)
    finally:
        server.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
