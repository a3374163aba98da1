"""Input checks of kernels, and blocks of kernel values processed in strips that stay in cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Block = NDArray[np.floating]
FIXED_BYTES = 8 << 20  # temporaries of a block of any size: strips, tiles in float64
STRIP = 1 << 17  # entries of a strip
MAX_FACTOR32 = 1e6  # float32 kernel values may be multiplied by 1 / MAX_FACTOR32 to MAX_FACTOR32


def checked_rows(X: ArrayLike, name: str) -> NDArray[Any]:
    """Return X as a matrix of finite float32 or float64; bool and integers of up to 16 bits become float32.

    Raises
    ------
    ValueError
        If X is not a matrix of finite numbers.
    """
    rows = np.asarray(X)
    if rows.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {rows.dtype}, which holds no real numbers. Convert it.")
    if rows.dtype not in (np.float32, np.float64):
        narrow = rows.dtype.kind == "b" or rows.dtype.itemsize <= 2
        rows = rows.astype(np.float32 if narrow else np.float64)
    if rows.ndim != 2:
        raise ValueError(f"{name} has shape {rows.shape}. Reshape it to (rows, columns).")
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise ValueError(f"{name}[{row}, {column}] = {rows[row, column]} is not finite. Repair the data.")
    return rows


def checked_switch(name: str, value: object) -> None:
    """Check that a switch is True or False.

    Raises
    ------
    TypeError
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} = {value!r} is a {type(value).__name__}; True or False was expected.")


def strips(block: Block) -> Iterator[tuple[slice, Block]]:
    """Yield (slice, view) for strips of rows of a block, of at most :data:`STRIP` entries (but at least one row)."""
    height = max(1, STRIP // max(1, block.shape[1]))
    for start in range(0, len(block), height):
        where = slice(start, min(start + height, len(block)))
        yield where, block[where]


def widens(*factors: float) -> bool:
    """Whether kernel values (1e-18 to 1e18) times one of these factors leave the range of float32."""
    return any(factor and not 1 / MAX_FACTOR32 <= abs(factor) <= MAX_FACTOR32 for factor in factors)


def widened(block: Block, *factors: float) -> Block:
    """Return a block that may be multiplied by these factors: in float64 if float32 would overflow or underflow."""
    return block.astype(np.float64, copy=False) if widens(*factors) else block


def raise_to(block: Block, exponent: int) -> None:
    """Raise a block to an integer power in place, by repeated multiplication: negative entries keep their sign."""
    if exponent == 1:
        return
    for _, strip in strips(block):
        base = strip.copy()
        for _ in range(exponent - 1):
            strip *= base


def reject_overflow(block: Block, what: str) -> None:
    """Raise if a block holds values outside the range of float64, checked strip by strip.

    Raises
    ------
    ValueError
    """
    for _, strip in strips(block):
        if not np.isfinite(strip).all():
            raise ValueError(f"{what} is over 1.8e308, the largest float64. Scale the rows, or normalise the kernels.")
