"""Gaussian sketch: independent normal entries, one dense product."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca import csr
from bigpca.costs import BlockForm, Work
from bigpca.seeds import normals
from bigpca.sketches.base import TILE_BYTES, Matrix, RandomSketch, Vector, pair_products, spans

STREAM = "gaussian sketch"


@dataclass(frozen=True)
class Gaussian(RandomSketch):
    """W with independent N(0, 1/q) entries (Johnson & Lindenstrauss 1984): the reference for every other sketch.

    ``Var <W'x, W'y> = (|x|^2 |y|^2 + (x'y)^2) / q``. Costs 2 d q flops per row. If W takes more than 256 MiB, it is
    drawn again, tile by tile, for every call: 12 ns per entry and call, however many rows a block has.

    Parameters
    ----------
    q : int >= 1
    seed : int >= 0, default 0

    Examples
    --------
    >>> Gaussian(2).apply(np.eye(3)).shape
    (3, 2)
    """

    _multiplies_csr: ClassVar[bool] = True

    @property
    def unbiased(self) -> bool:
        return True

    def _rows(self, d: int, start: int, stop: int) -> Matrix:
        rows = self._normals(start, stop).astype(np.float64)
        rows /= np.sqrt(self.q)
        return rows

    def _parts(self, d: int, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        return (self._normals(start, stop).astype(dtype, copy=False) for start, stop in spans(d, self._tile))

    def _part_bytes(self, d: int, itemsize: int) -> tuple[int, int]:
        tile = min(self._tile, d) * self.q
        return d * self.q * itemsize + 256 * (-(-d // self._tile)), tile * (itemsize + (4 if itemsize == 8 else 0))

    def _apply(self, rows: NDArray[Any], parts: Iterable[NDArray[Any]], out: NDArray[Any]) -> None:
        start, product = 0, np.empty_like(out)
        out[...] = 0
        for tile in parts:
            np.matmul(rows[:, start : start + len(tile)], tile, out=product)
            np.add(out, product, out=out)
            start += len(tile)
            del tile  # before the next one is drawn
        # W's entries are cached unscaled: float32 numbers, exact in both precisions.
        np.multiply(out, out.dtype.type(1 / np.sqrt(self.q)), out=out)

    def _apply_csr(self, rows: csr_array, parts: Iterable[NDArray[Any]], out: NDArray[Any]) -> None:
        start = 0
        out[...] = 0
        for tile in parts:
            own = rows if len(tile) == rows.shape[1] else rows[:, start : start + len(tile)]
            out += csr.multiply(own, tile)
            start += len(tile)
            del tile
        np.multiply(out, out.dtype.type(1 / np.sqrt(self.q)), out=out)

    def _work(self, rows: BlockForm) -> Work:
        return csr.multiply_work(rows, self.q)

    def _scratch_bytes(self, rows: BlockForm) -> int:
        product = rows.rows * self.q * rows.itemsize
        if not rows.sparse:
            return product
        cut = int(2 * rows.rows * rows.values * (rows.itemsize + 4)) if self._tile < rows.columns else 0
        return 2 * product + cut + csr.product_bytes(rows, self.q)

    def _moments(self, x: Matrix, y: Matrix) -> tuple[Vector, Vector]:
        dots, norms, _ = pair_products(x, y)
        return np.zeros_like(dots), (norms + dots**2) / self.q

    @property
    def _tile(self) -> int:
        """Rows of W in one part: a power of two, so that parts hold whole blocks of random numbers if possible."""
        return 1 << (max(1, TILE_BYTES // (4 * self.q)).bit_length() - 1)

    def _normals(self, start: int, stop: int) -> NDArray[np.float32]:
        return normals(self.seed, STREAM, start, stop, self.q, np.float32)
