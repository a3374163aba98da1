"""The expectation step of factors of rows with missing values: what the next loadings are solved from."""

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
    """A model ``x = W z + mean + noise`` of rows, with standard normal scores z and independent noise.

    Attributes
    ----------
    W : ndarray of shape (d, k)
    mean : ndarray of shape (d,); about the shift of the rows
    noise : ndarray of shape (d,); variances, 0 for columns that are not in the model
    """

    W: Matrix
    mean: Vector
    noise: Vector

    @property
    def roots(self) -> Vector:
        """Deviations of the noise (d,), 1 where there is none."""
        return np.sqrt(np.where(self.noise > 0, self.noise, 1.0))


def products_of(V: Matrix) -> Matrix:
    """Return the products of the columns of V (d, k) with each other (d, k (k + 1) / 2): its upper triangle of each."""
    i, j = np.triu_indices(V.shape[1])
    return V[:, i] * V[:, j]


def expected(left: Matrix, there: Matrix, V: Matrix, products: Matrix) -> tuple[Matrix, ...]:
    """Return A (n, k, k), its inverse, b and ``A^-1 b`` (n, k): the expected scores of rows, given what each row has.

    ``A = V_o'V_o + I`` and ``b = V_o'left_o`` of the columns o of a row, where ``there`` is 1, for rows about the mean
    and loadings V, both divided by the deviations of the noise. ``left`` is 0 elsewhere. The covariance of the scores
    is ``A^-1``.
    """
    k = V.shape[1]
    i, j = np.triu_indices(k)
    A = np.empty((len(left), k, k))
    A[:, i, j] = A[:, j, i] = there @ products
    A[:, range(k), range(k)] += 1
    inverse, across = np.asarray(np.linalg.inv(A), np.float64), left @ V
    return A, inverse, across, np.einsum("nij,nj->ni", inverse, across)


def expected_scores(rows: Array, model: LatentModel) -> Matrix:
    """Return the expected scores (n, k) of rows with NaN, given the columns that each has."""
    V = model.W / model.roots[:, None]
    products, step = products_of(V), rows_of_tile(*V.shape)
    scores = np.empty((len(rows), V.shape[1]))
    for start in range(0, len(rows), step):
        left = (np.asarray(rows[start : start + step], np.float64) - model.mean) / model.roots
        there = np.isfinite(left)
        scores[start : start + step] = expected(np.where(there, left, 0.0), there.astype(np.float64), V, products)[3]
    return scores


def rows_of_tile(d: int, k: int) -> int:
    """Return how many rows are taken at a time."""
    return max(16, TILE_BYTES // (8 * (4 * d + 6 * (k + 1) ** 2)))


@dataclass
class ExpectedScores(Weighted, Accumulator):
    """Expected products of the scores of rows, given what each row has, with each other and with each column.

    With the columns o of a row and the diagonal N of the noise, ``A = W_o'N_o^-1 W_o + I``, scores have the mean
    ``z = A^-1 W_o'N_o^-1 (x_o - mean_o)`` and the covariance ``C = A^-1`` (Rubin & Thayer 1982; Tipping & Bishop 1999).
    With ``b = [z, 1]``, and the sums of each column over the rows that have it, the state holds ``(k + 1)(k + 2) / 2 +
    (k + 1) + 2`` numbers a column.

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
        V = model.W / model.roots[:, None]
        products = products_of(V)
        self.weight_sums = add_weights(self.count, self.weight_sums, block.count, block.weights)
        self.count += block.count
        own, step = (
            np.ones(block.count) if block.weights is None else block.weights,
            rows_of_tile(self.n_features, self.n_scores),
        )
        # A tile of rows at a time: the posterior of every row needs a k x k matrix of its own observed columns.
        for start in range(0, block.count, step):
            rows = slice(start, start + step)
            self._add(np.asarray(block.values[rows], np.float64), own[rows], model, V, products)

    def _add(self, values: Array, weights: Vector, model: LatentModel, V: Matrix, products: Matrix) -> None:
        k, w = self.n_scores, weights[:, None]
        has = np.isfinite(values) & (model.noise > 0)
        x, there = np.where(has, values, 0.0), has.astype(np.float64)
        # 1. Scores of each row, given what it has: their mean z, and their covariance C.
        left = (x - there * model.mean) / model.roots
        A, C, across, z = expected(left, there, V, products)
        b = np.ones((len(x), k + 1))
        b[:, :k] = z
        (i, j), (p, q) = np.triu_indices(k), np.triu_indices(k + 1)
        seconds = b[:, p] * b[:, q]
        seconds[:, q < k] += C[:, i, j]
        # 2. The likelihood of what is there.
        sizes = has.sum(axis=1)
        fit = np.einsum("nd,nd->n", left, left) - np.einsum("nk,nk->n", across, z)
        logs = sizes * np.log(2 * np.pi) + np.linalg.slogdet(A)[1] + 2 * there @ np.log(model.roots)
        self.likelihood -= float(weights @ (logs + fit)) / 2
        # 3. Sums over the rows that have each column, and over the rows that have any.
        self.scores += (weights * (sizes > 0)) @ seconds
        self.seconds += there.T @ (w * seconds)
        self.firsts += x.T @ (w * b)
        self.squares += weights @ x**2
        self.weights += weights @ there

    def close(self) -> None:
        self.latent = None

    def merge(self, other: ExpectedScores) -> ExpectedScores:
        if not other.count or not self.count:
            return self if self.count else other
        sums = add_weights(self.count, self.weight_sums, other.count, other.weight_sums)
        names = ("count", "seconds", "firsts", "squares", "weights", "scores", "likelihood")
        return replace(self, weight_sums=sums, **{name: getattr(self, name) + getattr(other, name) for name in names})

    def cost(self, rows: BlockForm) -> Work:
        d, k, p = self.n_features, self.n_scores, self.n_products
        tile = 8 * min(rows.rows, rows_of_tile(d, k)) * (5 * d + 6 * self.n_terms**2)
        return Work(tile + 8 * d * (2 * p + 3 * k), 4.0 * d * (p + k) + 4.0 * k**3)
