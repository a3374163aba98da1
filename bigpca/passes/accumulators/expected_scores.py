"""The expectation step of a probabilistic PCA of rows with missing values: what the next loadings are solved from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bigpca.arrays import Array, Matrix, Vector
from bigpca.costs import BlockForm, Work
from bigpca.engine.layout import MIB
from bigpca.passes.accumulators.base import Accumulator, Weighted, WeightSums, add_weights, broadcast, kept
from bigpca.passes.reading.blocks import Block

TILE_BYTES = 4 * MIB  # of rows whose scores are expected at a time


@dataclass(frozen=True)
class LatentModel:
    """A model ``x = W z + mean + noise`` of rows, with standard normal scores z and noise of one variance.

    Attributes
    ----------
    W : ndarray of shape (d, k)
    mean : ndarray of shape (d,); about the shift of the rows
    noise : float; a variance
    """

    W: Matrix
    mean: Vector
    noise: float

    @property
    def variances(self) -> Vector:
        """Variances along the axes, descending, and the noise (k + 1,)."""
        found = np.linalg.eigvalsh(self.W.T @ self.W)[::-1] + self.noise
        return np.append(found, self.noise)


@dataclass
class ExpectedScores(Weighted, Accumulator):
    """Expected products of the scores of rows, given what each row has, with each other and with each column.

    With the columns o of a row, ``A = W_o'W_o + noise I``, scores have the mean ``z = A^-1 W_o'(x_o - mean_o)`` and the
    covariance ``C = noise A^-1`` (Tipping & Bishop 1999; Roweis 1998). With ``b = [z, 1]``, and the sums of each column
    over the rows that have it, the state holds ``(k + 1)(k + 2) / 2 + (k + 1) + 2`` numbers a column.

    Attributes
    ----------
    n_features, n_scores : int
        d and k.
    latent : LatentModel
        A broadcast value: the model in whose expectation the scores are.
    count, weight_sums
        As of :class:`bigpca.passes.accumulators.moments.Moments`.
    seconds : ndarray of shape (d, p), float64; ``sum b b' + C``, its upper triangle as of numpy.triu_indices(k + 1)
    firsts : ndarray of shape (d, k + 1), float64; ``sum x b``
    squares, weights : ndarray of shape (d,), float64; ``sum x^2``, and the weight of the rows
    scores : ndarray of shape (p,), float64; as ``seconds``, over the rows that have any column
    likelihood : float
        Logarithm of that of what is there.
    """

    tag: ClassVar[str] = "ExpectedScores"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights", "nan"})
    shared_field: ClassVar[str | None] = "latent"

    n_features: int
    n_scores: int
    latent: LatentModel | None
    count: int = kept(default=0)
    weight_sums: WeightSums = kept(default=None)
    seconds: Matrix = kept("n_features", "n_products")
    firsts: Matrix = kept("n_features", "n_terms")
    squares: Vector = kept("n_features")
    weights: Vector = kept("n_features")
    scores: Vector = kept("n_products")
    likelihood: float = kept(default=0.0)

    @property
    def n_terms(self) -> int:
        """Number of entries of b."""
        return self.n_scores + 1

    @property
    def n_products(self) -> int:
        """Number of entries of the upper triangle of ``b b'``."""
        return self.n_terms * (self.n_terms + 1) // 2

    def update(self, block: Block) -> None:
        model = broadcast(self.latent)
        i, j = np.triu_indices(self.n_scores)
        pairs = model.W[:, i] * model.W[:, j]
        self.weight_sums = add_weights(self.count, self.weight_sums, block.count, block.weights)
        self.count += block.count
        own, step = np.ones(block.count) if block.weights is None else block.weights, self._tile_rows
        for start in range(0, block.count, step):
            rows = slice(start, start + step)
            self._add(np.asarray(block.values[rows], np.float64), own[rows], model, pairs)

    def _add(self, values: Array, weights: Vector, model: LatentModel, pairs: Matrix) -> None:
        k, w = self.n_scores, weights[:, None]
        i, j = np.triu_indices(k)
        there = np.isfinite(values)
        x = np.where(there, values, 0.0)
        left, mask = x - there * model.mean, there.astype(np.float64)
        # 1. Scores of each row, given what it has: their mean z, and their covariance C.
        A = np.empty((len(x), k, k))
        A[:, i, j] = A[:, j, i] = mask @ pairs
        A[:, range(k), range(k)] += model.noise
        inverse, across = np.linalg.inv(A), left @ model.W
        b = np.ones((len(x), k + 1))
        b[:, :k] = z = np.einsum("nij,nj->ni", inverse, across)
        p, q = np.triu_indices(k + 1)
        products = b[:, p] * b[:, q]
        products[:, q < k] += model.noise * inverse[:, i, j]
        # 2. The likelihood of what is there.
        sizes = there.sum(axis=1)
        fit = (np.einsum("nd,nd->n", left, left) - np.einsum("nk,nk->n", across, z)) / model.noise
        logs = sizes * np.log(2 * np.pi) + np.linalg.slogdet(A)[1] + (sizes - k) * np.log(model.noise)
        self.likelihood -= float(weights @ (logs + fit)) / 2
        # 3. Sums over the rows that have each column, and over the rows that have any.
        self.scores += (weights * (sizes > 0)) @ products
        self.seconds += mask.T @ (w * products)
        self.firsts += x.T @ (w * b)
        self.squares += weights @ x**2
        self.weights += weights @ mask

    def close(self) -> None:
        self.latent = None

    def merge(self, other: ExpectedScores) -> ExpectedScores:
        if not other.count or not self.count:
            return self if self.count else other
        sums = add_weights(self.count, self.weight_sums, other.count, other.weight_sums)
        names = ("count", "seconds", "firsts", "squares", "weights", "scores", "likelihood")
        return replace(self, weight_sums=sums, **{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def _tile_rows(self) -> int:
        return max(16, TILE_BYTES // (8 * (4 * self.n_features + 6 * self.n_terms**2)))

    def cost(self, rows: BlockForm) -> Work:
        d, k, p = self.n_features, self.n_scores, self.n_products
        tile = 8 * min(rows.rows, self._tile_rows) * (5 * d + 6 * self.n_terms**2)
        return Work(tile + 8 * d * (2 * p + 3 * k), 4.0 * d * (p + k) + 4.0 * k**3)
