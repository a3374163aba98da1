"""How fast this machine multiplies and decodes: measured once, in a second, for the time that a plan states.

No solver is chosen by it: what is chosen, and with it the bits, must not depend on the machine.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

import numpy as np

from bigpca.blas import numerical_environment, one_blas_thread
from bigpca.costs import Speed

SIDE = 1024  # of the matrices multiplied
DECODED = 16 << 20  # bytes
ROUNDS = 3


@cache
def machine_speed() -> Speed:
    """Return the speed of one core of this machine, from the cache or measured now."""
    key = json.dumps([platform.node(), platform.machine(), numerical_environment()])
    with suppress(OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError):
        stored = json.loads(_cache_file().read_text())
        if stored["key"] == key:
            return Speed(**{name: float(value) for name, value in stored["speed"].items()})
    speed = measure()
    with suppress(OSError, RuntimeError):  # no room, or no home
        path = _cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"key": key, "speed": asdict(speed)}))
        partial.replace(path)
    return speed


def _cache_file() -> Path:
    """Return where it is kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "bigpca" / "speed.json"


def measure() -> Speed:
    """Measure products in both precisions, and the decoding of a chunk as Zarr stores it by default."""
    from numcodecs import Zstd  # with Zarr, and needed here only

    rng = np.random.default_rng(0)
    rates = []
    with one_blas_thread():
        for dtype in (np.float32, np.float64):
            A = rng.standard_normal((SIDE, SIDE)).astype(dtype)
            rates.append(2.0 * SIDE**3 / _least_seconds(partial(np.matmul, A, A)))
    codec, rows = Zstd(), rng.standard_normal(DECODED // 2).astype(np.float16)
    encoded = codec.encode(rows)
    return Speed(rates[0], rates[1], DECODED / _least_seconds(partial(codec.decode, encoded)))


def _least_seconds(action: Callable[[], object]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
