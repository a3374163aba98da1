"""Downsampling of images and feature maps: the sketch that averages neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bigpca.arrays import Array, Matrix
from bigpca.costs import BlockForm, Work
from bigpca.errors import an, positive_integer
from bigpca.sketches.base import CACHE, REARRANGED_BYTES, Sketch, spans


@dataclass(frozen=True)
class Downsample(Sketch):
    """Area averaging of every row from ``shape`` to ``to``, times sqrt(d/q) (Marukatat 2022, algorithm 3).

    Each axis is reduced separately: a cell of the small image is the mean of the area that it covers, with partial
    cells weighted by their share. Axes that keep their size are skipped. W is the Kronecker product of these averaging
    matrices. Nothing is random: the variance is 0, the seed has no effect, and dot products are biased by details finer
    than the small image. If every size divides, W'W = I exactly; constant images always keep their length.

    NOTE: the tutorial omits the scale, so its eigenvalues are q/d of the true ones.

    Parameters
    ----------
    shape : sizes of the image that a row flattens: (h, w), (h, w, c) or (c, h, w).
    to : equally many sizes, none larger.
    random_state : int >= 0; has no effect, default 0

    Examples
    --------
    >>> Downsample((2, 4), (1, 2)).apply(np.array([[1.0, 1, 0, 0, 1, 1, 0, 0]])).tolist()
    [[2.0, 0.0]]
    """

    shape: tuple[int, ...]
    to: tuple[int, ...]

    def _check_fields(self) -> None:
        for name in ("shape", "to"):
            given: Any = getattr(self, name)
            if not isinstance(given, tuple | list):
                raise TypeError(f"{name} = {given!r} is {an(type(given).__name__)}, but a tuple of sizes is required.")
            object.__setattr__(self, name, tuple(positive_integer(f"each size of {name}", size) for size in given))
        if len(self.to) != len(self.shape) or not self.to or any(np.greater(self.to, self.shape)):
            raise ValueError(
                f"to = {self.to} does not shrink shape = {self.shape}: the same number of sizes is required, none of "
                "them larger. Give the new size of each axis, or its old size to keep it."
            )

    def _width(self, d: int) -> int:
        if math.prod(self.shape) != d:
            raise ValueError(
                f"shape = {self.shape} has {math.prod(self.shape)} numbers, but the data has {d} columns. "
                "Give the sizes in the order in which rows were flattened."
            )
        return math.prod(self.to)

    def _scale(self) -> float:
        return math.sqrt(math.prod(self.shape) / math.prod(self.to))

    def _steps(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (product of sizes before, size, new size, product of sizes after) for each axis that is reduced."""
        for i, (n, m) in enumerate(zip(self.shape, self.to, strict=True)):
            if n != m:
                yield math.prod(self.to[:i]), n, m, math.prod(self.shape[i + 1 :])

    def _rows(self, d: int, start: int, stop: int) -> Matrix:
        places = np.unravel_index(np.arange(start, stop), self.shape)
        rows = np.ones((stop - start, 1))
        for place, n, m in zip(places, self.shape, self.to, strict=True):
            rows = (rows[:, :, None] * _averaging(n, m, rows.dtype)[place][:, None, :]).reshape(
                len(rows), rows.shape[1] * m
            )
        rows *= self._scale()
        return rows

    def _parts(self, d: int, dtype: np.dtype[Any]) -> Iterator[Array]:
        return (_averaging(n, m, dtype) for _, n, m, _ in self._steps())

    def _part_bytes(self, d: int, itemsize: int) -> tuple[int, int]:
        total = sum(n * m for _, n, m, _ in self._steps()) * itemsize + 1024
        return total, 48 * max(self.shape) + (0 if CACHE.fits(total) else total)

    def _apply(self, rows: Array, parts: Iterable[Array], out: Array) -> None:
        matrices = list(parts)
        for start, stop in spans(len(rows), self._tile(rows.itemsize)):
            image = rows[start:stop]
            for A, (pre, n, _, post) in zip(matrices, self._steps(), strict=True):  # A (n, m)
                if post == 1:
                    image = image.reshape(-1, n) @ A
                else:
                    image = A.T @ image.reshape((stop - start) * pre, n, post)
            np.multiply(image.reshape(stop - start, -1), out.dtype.type(self._scale()), out=out[start:stop])

    def _tile(self, itemsize: int) -> int:
        return max(1, REARRANGED_BYTES // (math.prod(self.shape) * itemsize))

    def _work(self, rows: BlockForm) -> Work:
        return Work(0, float(sum(2 * pre * n * m * post for pre, n, m, post in self._steps()) + math.prod(self.to)))

    def _scratch_bytes(self, rows: BlockForm) -> int:
        sizes = [0] + [
            pre * m * post for pre, _, m, post in self._steps()
        ]  # each step's result is the next one's input
        largest = max((a + b for a, b in pairwise(sizes)), default=0)
        return min(rows.rows, self._tile(rows.itemsize)) * largest * rows.itemsize


def _averaging(n: int, m: int, dtype: np.dtype[Any]) -> Array:
    """Return the (n, m) matrix that averages n cells to m <= n; each cell contributes to one mean or two."""
    cells = np.arange(n)  # cell i covers i m ... (i + 1) m, mean k covers k n ... (k + 1) n, in exact integers
    first, last = cells * m // n, ((cells + 1) * m - 1) // n
    A = np.zeros((n, m), dtype)
    A[cells, last] = ((cells + 1) * m - last * n) / n
    A[cells, first] = (np.minimum((cells + 1) * m, (first + 1) * n) - cells * m) / n
    return A
