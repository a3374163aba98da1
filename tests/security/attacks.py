"""What the tests of security attack with: pickles that go off, files that promise more memory than they hold."""

import io
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

BOMB = bytes(64 << 20)  # what the files of a few kilobytes below decode to
ENOUGH = 32 << 20  # what reading the small arrays here may allocate


class Explosive:
    went_off = False

    def __reduce__(self) -> Any:
        return setattr, (Explosive, "went_off", True)


@contextmanager
def little_memory() -> Iterator[None]:
    """Fail where Python or NumPy was asked for more than ENOUGH at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < ENOUGH
    finally:
        tracemalloc.stop()


def npy_header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()
