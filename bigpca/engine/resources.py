"""What the processes of a run may use: threads, memory limit and idle memory, queried from Dask or the machine.

The speed at which this machine multiplies and reads, measured once in about a second, for time estimates of plans.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy.sparse import csr_array

from bigpca.arrays import Array
from bigpca.blas import add_product, numerical_environment, one_blas_thread
from bigpca.devices import Device
from bigpca.engine.local import Eligible, current_client, local_threads, workers_of
from bigpca.engine.planning import LOOPS, Resources
from bigpca.passes.reading.blocks import prepare_block
from bigpca.settings import memory_limit as machine_limit

IMPORTED_BYTES = 250 << 20  # a worker after it has imported what a fold needs; a new one reports less


def parse_limit(memory_limit: int | str | None) -> int | None:
    """Return a memory limit in bytes; ``"2 GiB"`` and plain numbers are accepted.

    Raises
    ------
    ValueError
        If it is not a positive size.
    """
    if memory_limit is None:
        return None
    try:
        size = read_size(memory_limit) if isinstance(memory_limit, str) else int(memory_limit)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f'memory_limit = {memory_limit!r} is not a size; a number of bytes or "2 GiB" was expected.'
        ) from error
    if size <= 0:
        raise ValueError(
            f"memory_limit = {memory_limit!r} is not positive; a number of bytes or a size like '2 GiB' was expected."
        )
    return int(size)


def read_size(text: str) -> int:
    """Return the bytes of a size such as "512MiB", "2 GB" or "1e9"; raises ValueError for other texts."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2] or " "))


def find_resources(memory_limit: int | str | None, *, in_process: bool = False) -> Resources:
    """Return what one process of the run may use.

    Parameters
    ----------
    memory_limit : int, str or None
        Limit per process; None for the limit of the live workers, or the machine's free memory. Whatever is given, a
        run is rejected if a worker's own limit is smaller than its plan.
    in_process : bool
        Whether the run stays in this process even if there is a client (NumPy input).
    """
    given = parse_limit(memory_limit)
    client = None if in_process else current_client()
    if client is not None:
        # The tightest worker; without any worker yet, one thread within the given limit.
        workers = workers_of(client)
        eligible = Eligible.here().threads_of(workers)
        found = [_of_worker(address, workers[address], threads, given) for address, threads in eligible.items()]
        if not found:
            where = "memory_limit" if given else "this machine (no worker yet)"
            return Resources(1, given or machine_limit(), 0, where, local=False)
        smallest = replace(min(found, key=lambda r: r.room_bytes / r.threads), processes=len(found))
        if given:
            return replace(smallest, where="memory_limit")
        if len({(r.limit_bytes, r.threads) for r in found}) == 1:
            return replace(smallest, where="the workers' memory limit")
        return smallest
    idle = int(psutil.Process(os.getpid()).memory_info().rss)
    if given is not None:
        return Resources(local_threads(), given, idle, "memory_limit")
    free = min(psutil.virtual_memory().available, max(0, machine_limit() - idle))
    return Resources(local_threads(), free + idle, idle, "this machine's free memory")


def _of_worker(address: str, worker: Mapping[str, Any], threads: int, given: int | None) -> Resources:
    limit = given or int(worker.get("memory_limit") or 0) or machine_limit()
    idle = max(IMPORTED_BYTES, int(worker.get("metrics", {}).get("memory", 0)))
    where = f"the memory limit of the smallest worker, {address},"
    return Resources(threads, limit, idle, where, local=False)


# No solver is chosen by it, because the choice, and with it the bits, must not depend on the machine.
SIDE = 1024  # columns of the rows that are read
ROWS, COLUMNS, WIDTH = 512, 8192, 100  # rows multiplied there and back by a block as thin as those of an iteration
STORED = 16 << 20  # bytes of a chunk
VALUES, THIN = 64, 32  # stored in each of COLUMNS sparse rows, which are multiplied by so many columns
ROUNDS = 8
SQUARE = 2048  # rows and columns that a device multiplies
VERSION = 4  # of the measurement


@cache
def machine_speed() -> dict[str, float]:
    """Return the speed of one core of this machine, from the cache or measured now."""
    key = json.dumps([VERSION, platform.node(), platform.machine(), numerical_environment()])
    with suppress(OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError):
        stored = json.loads(_cache_file().read_text())
        if stored["key"] == key:
            return {name: float(stored["speed"][name]) for name in ("single", "double", "read", "loops")}
    speed = measure()
    with suppress(OSError, RuntimeError):  # disk full, or no home directory
        path = _cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"key": key, "speed": speed}))
        partial.replace(path)
    return speed


def speed_with(device: Device | None) -> dict[str, float]:
    """Return the speed of one core, and that of a device, which is measured once in a process."""
    if device is None:
        return machine_speed()
    single, double = _device_speed(device)
    return machine_speed() | {"there_single": single, "there_double": double}


@cache
def _device_speed(device: Device) -> tuple[float, float]:
    """Measure products in both precisions, until one number of each is here."""
    rates = []
    with device.precise():
        for dtype in (np.float32, np.float64):
            V, seconds = device.put(np.ones((SQUARE, SQUARE), dtype)), []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                device.fetch((V @ V)[:1, :1])
                seconds.append(time.perf_counter() - began)
            rates.append(2.0 * SQUARE**3 / min(seconds))
    return rates[0], rates[1]


def known_speed() -> dict[str, float]:
    """Return the speed if this process has asked for it, else nothing; nothing is measured."""
    return machine_speed() if machine_speed.cache_info().currsize else {}


def _cache_file() -> Path:
    """Return the path of the cached measurement."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "bigpca" / "speed.json"


def measure() -> dict[str, float]:
    """Measure products in both precisions; reading: a chunk is decoded, copied, shifted and searched for NaN; and
    SciPy's sparse product, the yardstick of everything but dense products, because it needs no compiler.
    """
    from numcodecs import Zstd  # installed with Zarr; only needed here

    rng = np.random.default_rng(0)
    rates = []
    with one_blas_thread():
        for dtype in (np.float32, np.float64):
            V = rng.standard_normal((ROWS, COLUMNS), np.float32).astype(dtype)
            W, out = V[:WIDTH].T.copy(), np.zeros((WIDTH, COLUMNS), dtype).T
            rates.append(4.0 * ROWS * COLUMNS * WIDTH / _least_seconds(partial(_multiply, V, W, out)))
    codec, zero = Zstd(), np.zeros(SIDE, np.float32)
    encoded = codec.encode(rng.standard_normal((STORED // (4 * SIDE), SIDE)).astype(np.float32))

    def read() -> None:
        rows = np.frombuffer(codec.decode(encoded), np.float32).reshape(-1, SIDE).copy()
        prepare_block(rows, 0, zero, owned=True, nan_policy="raise", where="")

    Q, places = rng.standard_normal((COLUMNS, THIN), np.float32), rng.integers(0, COLUMNS, VALUES * COLUMNS)
    parts = np.ones(len(places), np.float32), places.astype(np.int32), np.arange(0, len(places) + 1, VALUES)
    product = partial(csr_array(parts, shape=(COLUMNS, COLUMNS)).__matmul__, Q)
    loops = LOOPS.reference_value * len(places) / _least_seconds(product)
    return {"single": rates[0], "double": rates[1], "read": STORED / _least_seconds(read), "loops": loops}


def _multiply(V: Array, W: Array, out: Array) -> None:
    add_product(V, V @ W, out)


def _least_seconds(action: Callable[[], object]) -> float:
    """Return processor time: what this core does in a second that it has, whatever else the machine does."""
    seconds = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        action()
        seconds.append(time.thread_time() - began)
    return min(seconds)
