"""Moments of rows side by side, with the sums of row norms that debiased statistics need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from bigpca.arrays import Matrix, Vector, multiply_packed
from bigpca.costs import BlockForm, Work
from bigpca.forms import cached_rows
from bigpca.passes.accumulators.base import KEPT, Accumulator, kept
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.blocks import Block
from bigpca.solvers.pairs import Columns, block_edges


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
    moments : Moments of all columns
    norms : ndarray of shape (L,), products : ndarray of shape (L, L), vectors : ndarray of shape (L, d)
    """

    tag: ClassVar[str] = "CrossMoments"

    widths: tuple[int, ...]
    moments: Moments = field(metadata=KEPT)
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
        G = multiply_packed(self.moments.packed, D) + np.outer(sums / max(n, 1), ds)
        e1 = 2 * ds + n * c
        ee = 4 * D.T @ G + 2 * np.outer(ds, c) + 2 * np.outer(c, ds) + n * np.outer(c, c)
        shared = 2 * self.vectors @ D + np.outer(self.norms, c)
        added = np.outer(self.norms, d) + 2 * G.T + np.outer(c, sums) + np.outer(e1, d)
        return self.norms + e1, self.products + (shared + shared.T + ee), self.vectors + added

    def merge(self, other: CrossMoments) -> CrossMoments:
        if not other.count or not self.count:
            return self if self.count else other
        moments = self.moments.merge(other.moments)
        # Each side's sums move from its own mean to the common one, and then add up.
        still = np.zeros(self.n_features)
        parts = [one._moved(one.moments.mean - moments.mean, still) for one in (self, other)]
        return CrossMoments(self.widths, moments, *(a + b for a, b in zip(*parts, strict=True)))

    def cost(self, rows: BlockForm) -> Work:
        d, size = self.n_features, len(self.widths)
        strip = 16 * d * min(rows.rows, cached_rows(8 * d)) + 8 * 6 * size * d
        return self.moments.cost(rows) + Work(strip, float((2 + 2 * size) * d))
