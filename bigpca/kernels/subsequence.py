"""The dynamic programme of gap-weighted subsequences, compiled on first use in each process."""

from __future__ import annotations

import importlib
import threading
from typing import Any

import numpy as np

LANES = 16  # pairs of strings processed together, so that the compiler can use vector instructions
_lock = threading.Lock()
_built: list[Any] = []


def pair_sums() -> Any:
    """Return ``sums(A, B, length, decay, out, symmetric)``: it writes the kernel of strings A (a, L), B (b, M) to out.

    Codes are int32, padded with zeros; out is float64 (a, b). Releases the GIL. Needs 128 length M bytes.
    """
    with _lock:
        if not _built:
            _built.append(_compile(importlib.import_module("numba")))
        return _built[0]


def _compile_tile(numba: Any) -> Any:
    """Compile the dynamic programme for one string of A and ``LANES`` strings of B."""

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator]
    def sum_tile(x: Any, tile: Any, length: int, decay: float, prefixes: Any, ending: Any, total: Any) -> None:
        """Add up Lodhi's recursion: ``prefixes[l, j]`` is K'_l(x[:i], y[:j]), ``ending`` is K''_(l + 1).

        Both are updated in place as i grows, from the longest l down, so that level l - 1 still belongs to i - 1.
        """
        prefixes[1:] = 0.0
        total[:] = 0.0
        for i in range(len(x)):
            code = x[i]
            if code == 0:
                break
            for j in range(len(tile)):
                for lane in range(LANES):
                    match = decay * decay if tile[j, lane] == code else 0.0
                    total[lane] += match * prefixes[length - 1, j, lane]
            for level in range(length - 1, 0, -1):
                ending[:] = 0.0
                for j in range(len(tile)):
                    for lane in range(LANES):
                        match = decay * decay if tile[j, lane] == code else 0.0
                        ending[lane] = decay * ending[lane] + match * prefixes[level - 1, j, lane]
                        prefixes[level, j + 1, lane] = decay * prefixes[level, j + 1, lane] + ending[lane]

    return sum_tile


def _compile(numba: Any) -> Any:
    """Compile the loop over all pairs of strings."""
    sum_tile = _compile_tile(numba)

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator]
    def sums(A: Any, B: Any, length: int, decay: float, out: Any, symmetric: bool) -> None:
        positions = B.shape[1]
        tile = np.zeros((positions, LANES), np.int32)
        prefixes = np.ones((length, positions + 1, LANES))
        ending, total = np.zeros(LANES), np.zeros(LANES)
        for j0 in range(0, len(B), LANES):
            tile[:] = 0
            width = min(LANES, len(B) - j0)
            for lane in range(width):
                for j in range(positions):
                    tile[j, lane] = B[j0 + lane, j]
            last = j0 + width if symmetric else len(A)
            for i in range(last):
                sum_tile(A[i], tile, length, decay, prefixes, ending, total)
                for lane in range(width):
                    out[i, j0 + lane] = total[lane]
                    if symmetric:
                        out[j0 + lane, i] = total[lane]

    return sums
