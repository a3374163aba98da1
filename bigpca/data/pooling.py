"""Pooling: one value in place of many, such as the mean over the pixels of a feature map."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

GEM_MIN = 1e-6
STRIP_BYTES = 2**20  # of samples in float64: they stay in a core's cache

Rule = Callable[[NDArray[np.float64], tuple[int, ...]], NDArray[np.float64]]


def _mean(values: NDArray[np.float64], axes: tuple[int, ...]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = values.mean(axis=axes)
    return found


def _gem(values: NDArray[np.float64], axes: tuple[int, ...]) -> NDArray[np.float64]:
    """Generalised mean of power 3 (Radenovic et al. 2019, eq. 3); values below 1e-6 count as 1e-6, as there."""
    positive = np.maximum(values, GEM_MIN)
    found: NDArray[np.float64] = np.cbrt((positive * positive * positive).mean(axis=axes))
    return found


RULES: dict[str, Rule | None] = {"mean": _mean, "max": None, "gem": _gem}


def pool(cells: NDArray[Any], axes: tuple[int, ...], rule: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return cells (b, ...) pooled over ``axes``; averages are computed in float64. NaN makes NaN.

    >>> pool(np.arange(6.0).reshape(1, 2, 3), (2,), "mean", np.dtype("f4"))
    array([[1., 4.]], dtype=float32)
    """
    average = RULES[rule]
    if average is None:
        largest: NDArray[Any] = cells.max(axis=axes)
        return largest
    out = np.empty(tuple(size for axis, size in enumerate(cells.shape) if axis not in axes), dtype)
    step = max(1, STRIP_BYTES // (8 * math.prod(cells.shape[1:])))
    for i in range(0, len(cells), step):
        with np.errstate(all="ignore"):
            out[i : i + step] = average(cells[i : i + step].astype(np.float64), axes)
    return out
