"""Moments of rows side by side, with the sums of row norms that debiased statistics need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from bigpca.arrays import Matrix, Vector, multiply_packed, sum_of, unpack
from bigpca.blas import STRIP_COLUMNS, each_piece, strips_of
from bigpca.costs import BlockForm, Work
from bigpca.forms import cached_rows
from bigpca.host import squares_held
from bigpca.passes.accumulators.base import KEPT, Accumulator, kept
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.blocks import Block
from bigpca.solvers.pairs import Columns, block_edges


@dataclass
class PairedMoments(Accumulator):
    """Moments of each block of columns, and of the pairs of one of the first ``split`` blocks and one of the others.

    What :class:`Moments` of all columns holds, without the products of two blocks of the same side.

    Attributes
    ----------
    own : tuple of Moments
        Of each block: P columns in the first ``split``, Q in the others.
    split : int
    cross : ndarray of shape (P, Q), float64
    """

    tag: ClassVar[str] = "PairedMoments"

    own: tuple[Moments, ...] = field(metadata=KEPT)
    split: int
    cross: Matrix = kept("_left", "_right")
    _shift: Vector | None = field(default=None, repr=False)

    @property
    def _widths(self) -> list[int]:
        return [one.n_features for one in self.own]

    @property
    def _left(self) -> int:
        return sum(self._widths[: self.split])

    @property
    def _right(self) -> int:
        return sum(self._widths[self.split :])

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.own[0].count

    @property
    def weight(self) -> float:
        """The sum of their weights."""
        return self.own[0].weight

    @property
    def mean(self) -> Vector:
        """The mean of all columns."""
        return np.concatenate([one.mean for one in self.own])

    @property
    def precision(self) -> float:
        """As of :class:`Moments`."""
        return max(one.precision for one in self.own)

    def update(self, block: Block) -> None:
        rows, p, self._shift = block.values, self._left, block.shift
        for state, one in zip(self.own, block_edges(self._widths), strict=True):
            values = np.ascontiguousarray(rows[:, one])
            state.update(replace(block, values=values, shift=block.shift[one], sums=block.sums[one]))
        # By Cauchy-Schwarz, float32 holds the products of columns whose squares it holds.
        if rows.dtype != np.float64 and not squares_held(np.einsum("ij,ij->j", rows, rows), rows):
            rows = rows.astype(np.float64)

        def add(strip: tuple[int, int]) -> None:
            self.cross[slice(*strip)] += rows[:, slice(*strip)].T @ rows[:, p:]

        each_piece(add, strips_of(p, STRIP_COLUMNS))

    def close(self) -> None:
        for state in self.own:
            state.close()
        if self._shift is not None and self.count:
            self._add_outer(-self.count, self.mean - self._shift)
        self._shift = None

    def _add_outer(self, weight: float, e: Vector) -> None:
        p = self._left
        self.cross += np.outer(weight * e[:p], e[p:])

    def merge(self, other: PairedMoments) -> PairedMoments:
        if not other.count or not self.count:
            return self if self.count else other
        own = tuple(a.merge(b) for a, b in zip(self.own, other.own, strict=True))
        both = replace(self, own=own, cross=sum_of(self.cross, other.cross))
        both._add_outer(self.count * (other.count / both.count), other.mean - self.mean)
        return both

    def times(self, D: Matrix) -> Matrix:
        """Return what is known of the scatter, times D (d, m)."""
        p = self._left
        found = np.concatenate([self.cross @ D[p:], self.cross.T @ D[:p]])
        for state, one in zip(self.own, block_edges(self._widths), strict=True):
            found[one] += multiply_packed(state.packed, D[one])
        return found

    def squares(self, edges: Sequence[Columns]) -> Matrix:
        """Return ``|S_ij|_F^2`` (L, L), with 0 for pairs of the same side."""
        p, k = self._left, self.split
        found = np.diag([float((unpack(one.packed, one.n_features) ** 2).sum()) for one in self.own])
        for i, a in enumerate(edges[:k]):
            for j, b in enumerate(edges[k:], k):
                part = self.cross[a, b.start - p : b.stop - p]
                found[i, j] = found[j, i] = np.einsum("ij,ij->", part, part)
        return found

    def cost(self, rows: BlockForm) -> Work:
        p, q, copied = self._left, self._right, rows.rows * max(self._widths) * rows.itemsize
        flops = sum(width * (width + 1) for width in self._widths) + 2 * p * q
        return Work(16 * sum(width**2 for width in self._widths) + 16 * p * q + copied, float(flops))


@dataclass
class CrossMoments(Accumulator):
    """Moments of L blocks of columns side by side, and the sums of their row norms, all about the mean.

    With ``u_i(t) = |x_i(t) - mean_i|^2`` of block i of row t: ``norms = sum_t u(t)`` (L,), ``products = sum_t u(t)
    u(t)'`` (L, L) and ``vectors = sum_t u(t) (x(t) - mean)'`` (L, d), in float64. Beside the scatter they give the
    unbiased HSIC of every two blocks (Song et al. 2012, eq. 5). Inside a group the sums are about its shift; they are
    moved to its mean when it closes, and to the common mean when two states merge. Third and fourth moments move with
    the scatter, exactly: sums about a distant shift would lose them.

    Rows have no weights: copies would count as independent pairs.

    Attributes
    ----------
    widths : tuple of int
        Columns of each block.
    moments : Moments of all columns, or PairedMoments if only some pairs of blocks have an HSIC
    norms : ndarray of shape (L,), products : ndarray of shape (L, L), vectors : ndarray of shape (L, d)
    """

    tag: ClassVar[str] = "CrossMoments"

    widths: tuple[int, ...]
    moments: Moments | PairedMoments = field(metadata=KEPT)
    norms: Vector = kept("_blocks")
    products: Matrix = kept("_blocks", "_blocks")
    vectors: Matrix = kept("_blocks", "n_features")
    _shift: Vector | None = field(default=None, repr=False)

    @property
    def n_features(self) -> int:
        """Columns of all blocks."""
        return sum(self.widths)

    @property
    def _blocks(self) -> int:
        return len(self.widths)

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.moments.count

    @property
    def edges(self) -> list[Columns]:
        """The columns of each block."""
        return block_edges(self.widths)

    def update(self, block: Block) -> None:
        if block.weights is not None:
            raise TypeError("the rows have weights, which CrossMoments cannot use: copies are not independent pairs.")
        self._shift = block.shift
        self.moments.update(block)
        edges, step = self.edges, cached_rows(8 * self.n_features)
        for i in range(0, block.count, step):
            rows = block.values[i : i + step].astype(np.float64, copy=False)
            u = np.stack([np.einsum("ij,ij->i", rows[:, one], rows[:, one]) for one in edges])
            self.norms += u.sum(axis=1)
            self.products += u @ u.T
            self.vectors += u @ rows

    def close(self) -> None:
        self.moments.close()
        if self._shift is None or not self.count:
            return
        offset = self.moments.mean - self._shift
        self.norms, self.products, self.vectors = self._moved(-offset, self.count * offset)
        self._shift = None

    def _moved(self, d: Vector, sums: Vector) -> tuple[Vector, Matrix, Matrix]:
        """Return the sums moved from rows z to rows z + d; ``sums = sum_t z(t)``, and the moments are final.

        z -> z + d gives u -> u + e with e = 2 d_i'z_i + |d_i|^2 for each block i.
        """
        n, edges = self.count, self.edges
        D = np.zeros((self.n_features, len(edges)))
        for i, one in enumerate(edges):
            D[one, i] = d[one]
        c = np.array([d[one] @ d[one] for one in edges])
        # Of the rows z: G = (sum z z') D, from the scatter about their mean; ds = D' sum z, e1 = sum e, and sum e e'.
        ds = D.T @ sums
        own = self.moments
        times = own.times(D) if isinstance(own, PairedMoments) else multiply_packed(own.packed, D)
        G = times + np.outer(sums / max(n, 1), ds)
        e1 = 2 * ds + n * c
        ee = 4 * D.T @ G + 2 * np.outer(ds, c) + 2 * np.outer(c, ds) + n * np.outer(c, c)
        shared = 2 * self.vectors @ D + np.outer(self.norms, c)
        added = np.outer(self.norms, d) + 2 * G.T + np.outer(c, sums) + np.outer(e1, d)
        return self.norms + e1, self.products + (shared + shared.T + ee), self.vectors + added

    def merge(self, other: CrossMoments) -> CrossMoments:
        if not other.count or not self.count:
            return self if self.count else other
        moments = self.moments.merge(other.moments)  # type: ignore[arg-type]  # both are of one kind
        # Each side's sums move from its own mean to the common one, and then add up.
        still = np.zeros(self.n_features)
        parts = [one._moved(one.moments.mean - moments.mean, still) for one in (self, other)]
        return CrossMoments(self.widths, moments, *(a + b for a, b in zip(*parts, strict=True)))

    def cost(self, rows: BlockForm) -> Work:
        d, size = self.n_features, len(self.widths)
        strip = 16 * d * min(rows.rows, cached_rows(8 * d)) + 8 * 6 * size * d
        return self.moments.cost(rows) + Work(strip, float((2 + 2 * size) * d))
