"""Rows as kernels take them, and blocks of kernel values worked over strip by strip, so that they stay in cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Block = NDArray[np.floating]
FIXED_BYTES = 8 << 20  # what a block draws on whatever its size: strips, tiles in float64
STRIP = 1 << 17  # entries of a strip
MAX_FACTOR32 = 1e6  # of kernel values in float32, and its inverse the least


def checked_rows(X: ArrayLike, name: str) -> NDArray[Any]:
    """Return X as a matrix of finite float32 or float64; bool and integers of up to 16 bits become float32.

    Raises
    ------
    ValueError
        Where X is no matrix of finite numbers.
    """
    rows = np.asarray(X)
    if rows.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {rows.dtype}; numbers were expected. Convert them.")
    if rows.dtype not in (np.float32, np.float64):
        narrow = rows.dtype.kind == "b" or rows.dtype.itemsize <= 2
        rows = rows.astype(np.float32 if narrow else np.float64)
    if rows.ndim != 2:
        raise ValueError(f"{name} has shape {rows.shape}; (rows, columns) was expected. Reshape it.")
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise ValueError(
            f"{name}[{row}, {column}] = {rows[row, column]}; finite numbers were expected. Repair the data."
        )
    return rows


def checked_switch(name: str, value: object) -> None:
    """Refuse a switch that is neither True nor False.

    Raises
    ------
    TypeError
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} = {value!r} is a {type(value).__name__}; True or False was expected.")


def strips(block: Block) -> Iterator[tuple[slice, Block]]:
    """Yield the rows of a block in views of at most :data:`STRIP` entries (one row at least), with where they lie."""
    height = max(1, STRIP // max(1, block.shape[1]))
    for start in range(0, len(block), height):
        where = slice(start, min(start + height, len(block)))
        yield where, block[where]


def widens(*factors: float) -> bool:
    """Whether kernel values times one of these leave what float32 holds; values themselves are
    between 1e-18 and 1e18.
    """
    return any(factor and not 1 / MAX_FACTOR32 <= abs(factor) <= MAX_FACTOR32 for factor in factors)


def widened(block: Block, *factors: float) -> Block:
    """Return a block that may be multiplied by these, in float64 where float32 would overflow or vanish."""
    return block.astype(np.float64, copy=False) if widens(*factors) else block


def raise_to(block: Block, exponent: int) -> None:
    """Overwrite a block with its integer power by repeated multiplication: negative entries keep their sign."""
    if exponent == 1:
        return
    for _, strip in strips(block):
        base = strip.copy()
        for _ in range(exponent - 1):
            strip *= base


def refuse_overflow(block: Block, what: str) -> None:
    """Refuse a block with values that float64 does not hold, looked for strip by strip.

    Raises
    ------
    ValueError
    """
    for _, strip in strips(block):
        if not np.isfinite(strip).all():
            raise ValueError(
                f"{what} is over 1.8e308, the largest float64; smaller values were expected. Scale the rows, or "
                "normalise the kernels."
            )
