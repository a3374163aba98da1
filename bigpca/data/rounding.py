"""What a task notes of the rows that it reads: integers that float64 cannot represent, and a digest of the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import content_digest

LARGEST_EXACT = 2**53  # beyond it, float64 cannot represent every integer


@dataclass
class Tally:
    """The number of integers rounded in one task, and digests of the first rows of Dask arrays, by the array's name."""

    count: int = 0
    first: dict[str, str] = field(default_factory=dict)


_TALLY: ContextVar[Tally | None] = ContextVar("bigpca-rounded", default=None)


@contextmanager
def tally_rounded() -> Iterator[Tally]:
    """Count the integers passed to :func:`note_rounded` in this task, and in threads that run in its context."""
    token = _TALLY.set(tally := Tally())
    try:
        yield tally
    finally:
        _TALLY.reset(token)


def note_rounded(values: NDArray[Any]) -> None:
    """Add the integers that conversion to float64 will round to the tally of this task, if there is one."""
    tally = _TALLY.get()
    if tally is not None:
        tally.count += rounded_integers(values)


def note_first(name: str, *values: NDArray[Any]) -> None:
    """Note a digest of the first rows of a Dask array, which must be the same at every read of a fit."""
    tally = _TALLY.get()
    if tally is not None:
        tally.first[name] = content_digest(*values)


def rounded_integers(values: NDArray[Any]) -> int:
    """Count the integers that float64 cannot represent; most arrays are settled by their smallest and largest value.

    Examples
    --------
    >>> rounded_integers(np.array([2**53, 2**53 + 1, 2**53 + 2, -(2**62), -(2**62) - 1]))
    2
    """
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8 or not values.size:
        return 0
    if int(values.min()) >= -LARGEST_EXACT and int(values.max()) <= LARGEST_EXACT:
        return 0
    sizes = (np.abs(values) if values.dtype.kind == "i" else values).astype(np.uint64)  # 2^63 too
    sizes = sizes[sizes > LARGEST_EXACT]
    lowest_bits = sizes & (~sizes + np.uint64(1))
    return int(np.count_nonzero(sizes // lowest_bits > LARGEST_EXACT))
