"""Subsampled randomised Hadamard transform: a dense W that costs far less than a dense product."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import hadamard

from bigpca.planning import LOOPS, BlockForm, Work
from bigpca.seeds import signs, uniforms
from bigpca.sketches.base import CACHE, Matrix, RandomSketch, Vector, pair_products, spans

STREAM = "SRHT sketch"
HADAMARD_BYTES = 128 << 20  # upper limit for the selected columns of H_t
STRIP = 1 << 16  # entries of H computed at a time: their indices take twice the memory of the entries
TILE_BYTES = 16 << 20  # of padded rows at a time: fewer make the small products inefficient, more exceed the cache


@dataclass(frozen=True)
class SRHT(RandomSketch):
    """W = sqrt(d2/q) D H S: random signs D, the orthonormal Hadamard matrix H, and a choice S of q of its d2 columns.

    See Tropp 2011, sec. 1.1. d2 is the smallest power of two >= d; X is padded with zero columns, and the q columns are
    drawn without replacement.
    ``Var <W'x, W'y> = (d2 - q) / (q (d2 - 1)) (|x|^2 |y|^2 + (x'y)^2 - 2 sum_i x_i^2 y_i^2)``: below Gaussian's, and 0
    at q = d2, where W is orthogonal.

    H of size d2 = s t is the Kronecker product of two small ones, so a row, as an (s, t) matrix, needs two products:
    H_s from the left, then only the selected columns of H_t from the right. With s near sqrt(q) this takes about
    4 d2 sqrt(q) flops instead of 2 d q.

    Parameters
    ----------
    q : int >= 1
    seed : int >= 0, default 0

    Examples
    --------
    >>> W = SRHT(4).matrix(4)
    >>> np.array_equal(W @ W.T, np.eye(4))
    True
    """

    @property
    def unbiased(self) -> bool:
        return True

    def _factors(self, d: int) -> tuple[int, int]:
        """Return s, the power of two nearest to sqrt(q) (larger if H_t would be too large), and t = d2 / s."""
        d2 = 1 << (d - 1).bit_length()
        needed = -(-d2 * self.q * 8 // HADAMARD_BYTES)
        s = min(d2, max(1 << round(np.log2(self.q) / 2), 1 << (needed - 1).bit_length()))
        return s, d2 // s

    def _signs(self, start: int, stop: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        return signs(self.seed, f"{STREAM}, signs", start, stop, 1, dtype)[:, 0]

    def _columns(self, d: int) -> NDArray[np.int64]:
        """Draw q of the d2 columns, in ascending order: those of the q smallest of d2 random numbers."""
        s, t = self._factors(d)
        numbers = uniforms(self.seed, f"{STREAM}, columns", 0, s * t, 1)[:, 0]
        return np.sort(np.argsort(numbers, kind="stable")[: self.q])

    def _rows(self, d: int, start: int, stop: int) -> Matrix:
        rows = _hadamard_entries(np.arange(start, stop), self._columns(d), np.dtype(np.float64))
        rows *= (self._signs(start, stop, np.dtype(np.float64)) / np.sqrt(self.q))[:, None]
        return rows

    def _parts(self, d: int, dtype: np.dtype[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Yield the signs D with H_s, then for each row i of the (s, t) matrix the selected columns of H_t."""
        s, t = self._factors(d)
        left, right = np.divmod(self._columns(d), t)
        yield self._signs(0, d, dtype), hadamard(s, dtype=dtype)[:, : -(-d // t)]
        for i in range(s):
            wanted = np.flatnonzero(left == i)  # consecutive, because the columns ascend
            if len(wanted):
                yield np.array([i, wanted[0]]), _hadamard_entries(np.arange(t), right[wanted], dtype)

    def _part_bytes(self, d: int, itemsize: int) -> tuple[int, int]:
        s, t = self._factors(d)
        total = d * itemsize + s * s * itemsize + t * self.q * itemsize + 1024 * s
        building = max(24 * s * t, 2 * s * s * itemsize)
        return total, building + (0 if CACHE.fits(total) else total)

    def _apply(self, rows: NDArray[Any], parts: Iterable[Any], out: NDArray[Any]) -> None:
        first, *others = parts
        for start, stop in spans(len(rows), self._tile(rows.shape[1], rows.itemsize)):
            self._apply_tile(rows[start:stop], first, others, out[start:stop])
        np.multiply(out, out.dtype.type(1 / np.sqrt(self.q)), out=out)

    def _apply_tile(self, rows: NDArray[Any], first: Any, others: list[Any], out: NDArray[Any]) -> None:
        signs_of, H_s = first
        d, t = rows.shape[1], self._factors(rows.shape[1])[1]
        blocks = H_s.shape[1]
        padded = np.empty((len(rows), blocks * t), rows.dtype)
        np.multiply(rows, signs_of, out=padded[:, :d])
        padded[:, d:] = 0
        turned = H_s @ padded.reshape(len(rows), blocks, t)  # (rows, s, t)
        for (i, place), H_t in others:
            np.matmul(turned[:, i], H_t, out=out[:, place : place + H_t.shape[1]])

    def _tile(self, d: int, itemsize: int) -> int:
        s, t = self._factors(d)
        return max(1, TILE_BYTES // (s * t * itemsize))

    def _work(self, rows: BlockForm) -> Work:
        d, (s, t) = rows.columns, self._factors(rows.columns)
        flops = float(d + 2 * s * (-(-d // t)) * t + 2 * self.q * t)
        return Work(0, flops, loops=LOOPS.padded_byte * s * t * rows.itemsize)

    def _scratch_bytes(self, rows: BlockForm) -> int:
        s, t = self._factors(rows.columns)
        return 2 * min(rows.rows, self._tile(rows.columns, rows.itemsize)) * s * t * rows.itemsize

    def _moments(self, x: Matrix, y: Matrix) -> tuple[Vector, Vector]:
        dots, norms, squares = pair_products(x, y)
        s, t = self._factors(x.shape[1])
        d2 = s * t
        share = (d2 - self.q) / (self.q * max(1, d2 - 1))
        return np.zeros_like(dots), share * (norms + dots**2 - 2 * squares)


def _hadamard_entries(rows: NDArray[np.int64], columns: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return entries (-1)^popcount(i & j) of Sylvester's Hadamard matrix of any size."""
    entries = np.empty((len(rows), len(columns)), dtype)
    for start, stop in spans(len(rows), max(1, STRIP // len(columns))):
        entries[start:stop] = np.bitwise_count(rows[start:stop, None] & columns) & 1
    np.multiply(entries, -2, out=entries)
    np.add(entries, 1, out=entries)
    return entries
