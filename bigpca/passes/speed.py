"""The speed at which this machine multiplies and reads, measured once, in a second, for time estimates of plans."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import numpy as np

from bigpca.arrays import Array
from bigpca.blas import add_product, numerical_environment, one_blas_thread
from bigpca.devices import Namespace, speed_of
from bigpca.passes.reading.blocks import prepare_block

# No solver is chosen by it, because the choice, and with it the bits, must not depend on the machine.
SIDE = 1024  # columns of the rows that are read
ROWS, COLUMNS, WIDTH = 512, 8192, 100  # rows multiplied there and back by a block as thin as those of an iteration
STORED = 16 << 20  # bytes of a chunk
ROUNDS = 8
SQUARE = 2048  # rows and columns that a device multiplies
VERSION = 5  # of the measurement


@cache
def machine_speed() -> dict[str, float]:
    """Return the speed of one core of this machine, from the cache or measured now."""
    key = json.dumps([VERSION, platform.node(), platform.machine(), numerical_environment()])
    with suppress(OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError):
        stored = json.loads(_cache_file().read_text())
        if stored["key"] == key:
            return {name: float(stored["speed"][name]) for name in ("single", "double", "read")}
    speed = measure()
    with suppress(OSError, RuntimeError):  # disk full, or no home directory
        path = _cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"key": key, "speed": speed}))
        partial.replace(path)
    return speed


def speed_with(device: Namespace) -> dict[str, float]:
    """Return the speed of one core, and that of a device, which is measured once in a process."""
    return machine_speed() | speed_of(device)


def known_speed() -> dict[str, float]:
    """Return the speed if this process has asked for it, else nothing; nothing is measured."""
    return machine_speed() if machine_speed.cache_info().currsize else {}


def _cache_file() -> Path:
    """Return the path of the cached measurement."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "bigpca" / "speed.json"


def measure() -> dict[str, float]:
    """Measure products in both precisions; and reading: a chunk is decoded, copied, shifted and searched for NaN."""
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

    return {"single": rates[0], "double": rates[1], "read": STORED / _least_seconds(read)}


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
