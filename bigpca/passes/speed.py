"""The speed at which this machine multiplies and reads, measured once in a process, for time estimates of plans."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial

import numpy as np

from bigpca.arrays import Array
from bigpca.blas import add_product, one_blas_thread
from bigpca.forms import DENSE

# No solver is chosen by it, because the choice, and with it the bits, must not depend on the machine.
SIDE = 1024  # columns of the rows that are read
# Rows of 16 MiB, which are multiplied there and back by a block as thin as those of an iteration.
ROWS, COLUMNS, WIDTH = 512, 8192, 100
ROUNDS = 2


def known_speed() -> dict[str, float]:
    """Return the speed if this process has asked for it, else nothing; nothing is measured."""
    return machine_speed() if machine_speed.cache_info().currsize else {}


@cache
def machine_speed() -> dict[str, float]:
    """Measure products in both precisions; and reading: a chunk is decoded, copied, shifted and searched for NaN."""
    from numcodecs import Zstd  # installed with Zarr; only needed here

    drawn = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)
    rates = []
    with one_blas_thread():
        for dtype in (np.float32, np.float64):
            V = drawn.astype(dtype)
            W, out = V[:WIDTH].T.copy(), np.zeros((WIDTH, COLUMNS), dtype).T
            rates.append(4.0 * ROWS * COLUMNS * WIDTH / _least_seconds(partial(_multiply, V, W, out)))
    codec, zero = Zstd(), np.zeros(SIDE, np.float32)
    encoded = codec.encode(drawn)

    def read() -> None:
        rows = np.frombuffer(codec.decode(encoded), np.float32).reshape(-1, SIDE).copy()
        DENSE.centred(rows, zero, owned=True, dtype=rows.dtype, find_largest=False)

    return {"single": rates[0], "double": rates[1], "read": drawn.nbytes / _least_seconds(read)}


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
