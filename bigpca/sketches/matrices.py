"""The matrices: Gaussian, sparse signs, feature hashing, subsampled randomised Hadamard transform; and averages.

``Gaussian`` is one dense product; the sparse ones have a few entries of W per column of X, applied in O(nonzeros);
``SRHT`` is a dense W that costs far less than a dense product. ``Downsample``, for images and feature maps, is not
random.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import hadamard
from scipy.sparse import csc_array

from bigpca import csr
from bigpca.arrays import Array, Integers, Matrix
from bigpca.costs import BlockForm, Work
from bigpca.errors import an, check_switch, positive_integer
from bigpca.seeds import integers, normals, signs, uniforms
from bigpca.sketches.base import CACHE, REARRANGED_BYTES, RandomSketch, Sketch, spans

STREAM = "gaussian sketch"
# Columns and rows of X that are transposed at a time. The sparse product streams through such a tile while its (q, 16)
# result stays in cache. Measured on 200 x 100,352 float32, q = 2,000: more rows are slower, especially if d is a
# multiple of 1,024.
TILE_COLUMNS, TILE_ROWS = 8192, 16
STREAM_SPARSE_SIGN = "sparse sign sketch"
STREAM_FEATURE_HASH = "feature hash sketch"
STREAM_SRHT = "SRHT sketch"
HADAMARD_BYTES = 128 << 20  # upper limit for the selected columns of H_t
HADAMARD_ENTRIES = 1 << 16  # entries of H computed at a time: their indices take twice the memory of the entries
PADDED_BYTES = 16 << 20  # of padded rows at a time: fewer make the small products inefficient, more exceed the cache


@dataclass(frozen=True)
class Gaussian(RandomSketch):
    """W with independent N(0, 1/q) entries (Johnson & Lindenstrauss 1984): the reference for every other sketch.

    ``Var <W'x, W'y> = (|x|^2 |y|^2 + (x'y)^2) / q``. Costs 2 d q flops per row. If W takes more than 256 MiB, it is
    drawn again, tile by tile, for every call: 12 ns per entry and call, however many rows a block has.

    Parameters
    ----------
    q : int >= 1
    random_state : int >= 0, default 0

    Examples
    --------
    >>> Gaussian(2).apply(np.eye(3)).shape
    (3, 2)
    """

    accepts_csr: ClassVar[bool] = True

    def _rows(self, d: int, start: int, stop: int) -> Matrix:
        # Entries of N(0, 1 / q), so that E[W W'] = I.
        rows = self._normals(start, stop).astype(np.float64)
        rows /= np.sqrt(self.q)
        return rows

    def _parts(self, d: int, dtype: np.dtype[Any]) -> Iterator[Array]:
        return (self._normals(start, stop).astype(dtype, copy=False) for start, stop in spans(d, self._tile))

    def _part_bytes(self, d: int, itemsize: int) -> tuple[int, int]:
        tile = min(self._tile, d) * self.q
        return d * self.q * itemsize + 256 * (-(-d // self._tile)), tile * (itemsize + (4 if itemsize == 8 else 0))

    def _apply(self, rows: Any, parts: Iterable[Array], out: Array) -> None:
        start, product, form = 0, None, csr.form_of(rows)
        out[...] = 0
        for tile in parts:
            own = _columns(rows, start, len(tile))
            product = form.multiply(own, tile, product)
            out += product
            start += len(tile)
            del tile  # before the next one is drawn
        # W's entries are cached unscaled: float32 numbers, exact in both precisions.
        np.multiply(out, out.dtype.type(1 / np.sqrt(self.q)), out=out)

    def _work(self, rows: BlockForm) -> Work:
        return Work(0, csr.product_flops(rows, self.q))

    def _scratch_bytes(self, rows: BlockForm) -> int:
        return csr.made_bytes(rows, self.q) + csr.cut_bytes(rows, self._tile) + csr.product_bytes(rows, self.q)

    @property
    def _tile(self) -> int:
        """Rows of W in one part: a power of two, so that parts hold whole blocks of random numbers if possible."""
        return 1 << (max(1, REARRANGED_BYTES // (4 * self.q)).bit_length() - 1)

    def _normals(self, start: int, stop: int) -> NDArray[np.float32]:
        return normals(self.random_state, STREAM, start, stop, self.q, np.float32)


@dataclass(frozen=True)
class SparseSketch(RandomSketch):
    """W with ``entries`` entries +-1/sqrt(entries) in each of its rows.

    A tile of X is transposed and multiplied from the left by a tile of W', so each number of X is read once and added
    to whole runs of rows. Costs 2 d entries flops per row, for any q.
    """

    accepts_csr: ClassVar[bool] = True

    @property
    @abstractmethod
    def entries(self) -> int:
        """Entries of W per column of X."""

    @abstractmethod
    def _entries_of(self, start: int, stop: int) -> tuple[Integers, NDArray[np.int8]]:
        """Return positions in [0, q) and signs, (stop - start, entries) each, for columns ``start:stop`` of X."""

    def _rows(self, d: int, start: int, stop: int) -> Matrix:
        rows = np.zeros((stop - start, self.q))
        for first, last in spans(stop - start, TILE_COLUMNS):
            positions, signs = self._entries_of(start + first, start + last)
            np.add.at(rows, (np.arange(first, last)[:, None], positions), signs)  # colliding hashes add up
        # So many entries of +-1 in each row of W: after this division E[W W'] = I.
        rows /= np.sqrt(self.entries)
        return rows

    def _parts(self, d: int, dtype: np.dtype[Any]) -> Iterator[csc_array]:
        for start, stop in spans(d, TILE_COLUMNS):
            positions, signs = self._entries_of(start, stop)
            ends = np.arange(0, positions.size + 1, self.entries, dtype=np.int32)
            values, indices = signs.ravel().astype(dtype), positions.ravel().astype(np.int32)
            yield csc_array((values, indices, ends), shape=(self.q, stop - start))

    def _part_bytes(self, d: int, itemsize: int) -> tuple[int, int]:
        tiles = -(-d // TILE_COLUMNS)
        building = min(d, TILE_COLUMNS) * self.entries * 32  # positions, signs, their copies, and random numbers
        return d * (self.entries * (itemsize + 4) + 4) + 4096 * tiles, building

    def _apply(self, rows: Any, parts: Iterable[csc_array], out: Array) -> None:
        start = 0
        out[...] = 0
        for part in parts:
            own = _columns(rows, start, part.shape[1])
            start += part.shape[1]
            csr.form_of(own).add_sketched(own, part, out, TILE_ROWS)
        # Entries are cached as +-1, exact in both precisions.
        np.multiply(out, out.dtype.type(1 / np.sqrt(self.entries)), out=out)

    def _work(self, rows: BlockForm) -> Work:
        return Work(0, csr.sparse_product_flops(rows, self.entries))

    def _scratch_bytes(self, rows: BlockForm) -> int:
        tile = 2 * min(rows.rows, TILE_ROWS) * (min(rows.columns, TILE_COLUMNS) + self.q) * rows.itemsize
        return tile + csr.cut_bytes(rows, TILE_COLUMNS)


@dataclass(frozen=True)
class SparseSign(SparseSketch):
    """W with ``nnz`` entries +-1/sqrt(nnz) at distinct places of every row (Kane & Nelson 2014, sec. 1).

    Every row of W has length 1, so unit vectors along the axes keep their length exactly.
    ``Var <W'x, W'y> = (|x|^2 |y|^2 + (x'y)^2 - 2 sum_i x_i^2 y_i^2) / q`` for any nnz; more entries make the worst case
    less likely. Costs 2 d nnz flops per row.

    Parameters
    ----------
    q : int >= 1
    nnz : int in [1, q], default 8
        8 is enough for all but adversarial data (Martinsson & Tropp 2020, sec. 9.2).
    random_state : int >= 0, default 0

    Examples
    --------
    >>> W = SparseSign(5, nnz=4).matrix(6)
    >>> np.count_nonzero(W, axis=1).tolist(), np.unique(np.abs(W)).tolist()
    ([4, 4, 4, 4, 4, 4], [0.0, 0.5])
    """

    nnz: int = 8

    @property
    def entries(self) -> int:
        return self.nnz

    def _check_options(self) -> None:
        object.__setattr__(self, "nnz", positive_integer("nnz", self.nnz))
        if self.nnz > self.q:
            raise ValueError(
                f"nnz = {self.nnz} distinct places were requested, but q = {self.q} columns have only {self.q}. "
                f"Use nnz <= {self.q}."
            )

    def _entries_of(self, start: int, stop: int) -> tuple[Integers, NDArray[np.int8]]:
        """Draw a uniform subset per row by Floyd's algorithm: a number drawn twice is replaced by the newest one."""
        places = np.empty((stop - start, self.nnz), np.int64)
        for i in range(self.nnz):
            # Every earlier number is below the newest, which therefore is not among them.
            newest = self.q - self.nnz + i
            drawn = integers(self.random_state, f"{STREAM_SPARSE_SIGN}, place {i}", start, stop, 1, newest + 1)
            taken = (places[:, :i] == drawn).any(axis=1)
            places[:, i] = np.where(taken, newest, drawn[:, 0])
        return places, signs(self.random_state, f"{STREAM_SPARSE_SIGN}, signs", start, stop, self.nnz, np.int8)


@dataclass(frozen=True)
class FeatureHash(SparseSketch):
    """W with ``n_hashes`` entries +-1/sqrt(n_hashes) per row, at independent places that may collide.

    See Weinberger et al. 2009. ``signed=False`` makes all entries positive: hash kernels (Shi et al. 2009), biased by
    collisions. With
    ``B = |x|^2 |y|^2 + (x'y)^2 - (2 / n_hashes) sum_i x_i^2 y_i^2``::

        signed    E <W'x, W'y> = x'y                                                       Var = B / q
        unsigned  E <W'x, W'y> = x'y + (n_hashes (sum_i x_i)(sum_i y_i) - x'y) / q         Var = B (1 - 1/q) / q

    NOTE: the tutorial (Marukatat 2022, eq. 46) scales by 1/n_hashes, which divides dot products by n_hashes; the scale
    that preserves them is 1/sqrt(n_hashes). Costs 2 d n_hashes flops per row.

    Parameters
    ----------
    q : int >= 1
    n_hashes : int >= 1, default 1
    signed : bool, default True
    random_state : int >= 0, default 0

    Examples
    --------
    >>> FeatureHash(4).apply(np.eye(6)).sum(axis=1).tolist() == FeatureHash(4).matrix(6).sum(axis=1).tolist()
    True
    """

    n_hashes: int = 1
    signed: bool = True

    @property
    def entries(self) -> int:
        return self.n_hashes

    def _check_options(self) -> None:
        object.__setattr__(self, "n_hashes", positive_integer("n_hashes", self.n_hashes))
        check_switch("signed", self.signed)
        object.__setattr__(self, "signed", bool(self.signed))

    def _entries_of(self, start: int, stop: int) -> tuple[Integers, NDArray[np.int8]]:
        places = integers(self.random_state, f"{STREAM_FEATURE_HASH}, places", start, stop, self.n_hashes, self.q)
        if not self.signed:
            return places, np.ones(places.shape, np.int8)
        return places, signs(self.random_state, f"{STREAM_FEATURE_HASH}, signs", start, stop, self.n_hashes, np.int8)


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
    random_state : int >= 0, default 0

    Examples
    --------
    >>> W = SRHT(4).matrix(4)
    >>> np.array_equal(W @ W.T, np.eye(4))
    True
    """

    def _factors(self, d: int) -> tuple[int, int]:
        """Return s, the power of two nearest to sqrt(q) (larger if H_t would be too large), and t = d2 / s."""
        d2 = 1 << (d - 1).bit_length()
        needed = -(-d2 * self.q * 8 // HADAMARD_BYTES)
        s = min(d2, max(1 << round(np.log2(self.q) / 2), 1 << (needed - 1).bit_length()))
        return s, d2 // s

    def _signs(self, start: int, stop: int, dtype: np.dtype[Any]) -> Array:
        return signs(self.random_state, f"{STREAM_SRHT}, signs", start, stop, 1, dtype)[:, 0]

    def _columns(self, d: int) -> Integers:
        """Draw q of the d2 columns, in ascending order: those of the q smallest of d2 random numbers."""
        s, t = self._factors(d)
        numbers = uniforms(self.random_state, f"{STREAM_SRHT}, columns", 0, s * t, 1)[:, 0]
        return np.sort(np.argsort(numbers, kind="stable")[: self.q])

    def _rows(self, d: int, start: int, stop: int) -> Matrix:
        rows = _hadamard_entries(np.arange(start, stop), self._columns(d), np.dtype(np.float64))
        rows *= (self._signs(start, stop, np.dtype(np.float64)) / np.sqrt(self.q))[:, None]
        return rows

    def _parts(self, d: int, dtype: np.dtype[Any]) -> Iterator[tuple[Array, Array]]:
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

    def _apply(self, rows: Array, parts: Iterable[Any], out: Array) -> None:
        (signs_of, H_s), *others = parts
        d, t, blocks = rows.shape[1], self._factors(rows.shape[1])[1], H_s.shape[1]
        for start, stop in spans(len(rows), self._tile(d, rows.itemsize)):
            padded = np.empty((stop - start, blocks * t), rows.dtype)
            np.multiply(rows[start:stop], signs_of, out=padded[:, :d])
            padded[:, d:] = 0
            # H = H_s x H_t (Kronecker) makes H_s M H_t of a row, seen as M (s, t): only the selected columns of it.
            turned = H_s @ padded.reshape(stop - start, blocks, t)  # (rows, s, t)
            for (i, place), H_t in others:
                np.matmul(turned[:, i], H_t, out=out[start:stop, place : place + H_t.shape[1]])
        np.multiply(out, out.dtype.type(1 / np.sqrt(self.q)), out=out)

    def _tile(self, d: int, itemsize: int) -> int:
        s, t = self._factors(d)
        return max(1, PADDED_BYTES // (s * t * itemsize))

    def _work(self, rows: BlockForm) -> Work:
        d, (s, t) = rows.columns, self._factors(rows.columns)
        return Work(0, float(d + 2 * s * (-(-d // t)) * t + 2 * self.q * t))

    def _scratch_bytes(self, rows: BlockForm) -> int:
        s, t = self._factors(rows.columns)
        return 2 * min(rows.rows, self._tile(rows.columns, rows.itemsize)) * s * t * rows.itemsize


def _columns(rows: Any, start: int, count: int) -> Any:
    """Return so many columns of rows; sparse ones are cut only where that is needed, because a cut is a copy."""
    return rows if count == rows.shape[1] else rows[:, start : start + count]


def _hadamard_entries(rows: Integers, columns: Integers, dtype: np.dtype[Any]) -> Array:
    """Return entries (-1)^popcount(i & j) of Sylvester's Hadamard matrix of any size."""
    entries = np.empty((len(rows), len(columns)), dtype)
    for start, stop in spans(len(rows), max(1, HADAMARD_ENTRIES // len(columns))):
        entries[start:stop] = np.bitwise_count(rows[start:stop, None] & columns) & 1
    np.multiply(entries, -2, out=entries)
    np.add(entries, 1, out=entries)
    return entries


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
        # Averaging makes a constant image shorter by sqrt(q / d).
        return math.sqrt(math.prod(self.shape) / math.prod(self.to))

    def _steps(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (product of sizes before, size, new size, product of sizes after) for each axis that is reduced."""
        for i, (n, m) in enumerate(zip(self.shape, self.to, strict=True)):
            if n != m:
                yield math.prod(self.to[:i]), n, m, math.prod(self.shape[i + 1 :])

    def _rows(self, d: int, start: int, stop: int) -> Matrix:
        # W is the Kronecker product of the averaging matrices of the axes, and so is each row that of their rows.
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
            # (A_1 x A_2 x ...)' x, axis by axis: those before are reduced already, those after are whole.
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
