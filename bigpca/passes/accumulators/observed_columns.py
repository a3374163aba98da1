"""What there is in each column of rows with missing values: its weight, and the mean; and the reads that found it.

And the moments of what there is in each pair of columns, and the expectation step of factors, from which the next
loadings are solved.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, Matrix, Vector, sum_of, unpack_upper
from bigpca.costs import BlockForm, Work
from bigpca.engine.layout import MIB
from bigpca.engine.planning import PassCost
from bigpca.errors import listed
from bigpca.forms import cached_rows
from bigpca.host import HOST, Gram
from bigpca.passes.accumulators.base import Accumulator, Weighted, WeightSums, add_weights, broadcast, kept
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.blocks import Block

TILE_BYTES = 4 * MIB  # of rows whose scores are expected at a time


@dataclass
class ObservedColumns(Accumulator):
    """Weight and mean of the values of every column that are not NaN.

    Sums are about the shift of a group; groups merge by the difference of their means, column by column.

    Attributes
    ----------
    n_features : int
    totals : ndarray of shape (3,), float64
        Number of rows, sum of their weights, and number of rows without any value.
    weights : ndarray of shape (d,), float64
        Sum of the weights of the values that are there: their number, if rows are not weighted.
    means : ndarray of shape (d,), float64
        0 for columns without values.
    """

    tag: ClassVar[str] = "ObservedColumns"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights", "nan"})

    n_features: int
    totals: NDArray[np.float64] = kept(3)
    weights: NDArray[np.float64] = kept("n_features")
    means: NDArray[np.float64] = kept("n_features")
    _shift: NDArray[np.float64] | None = field(default=None, repr=False)

    @property
    def absent(self) -> NDArray[np.bool_]:
        """Which columns (d,) have no value."""
        absent: NDArray[np.bool_] = self.weights == 0
        return absent

    def columns(self, kept: NDArray[np.int64]) -> ObservedColumns:
        """Return the same of some columns."""
        return ObservedColumns(len(kept), self.totals, self.weights[kept], self.means[kept])

    @property
    def missing_share(self) -> float:
        """Share of the entries that are missing, by weight."""
        whole = self.totals[1] * self.n_features
        return float(1 - self.weights.sum() / whole) if whole else 0.0

    def update(self, block: Block) -> None:
        self._shift = block.shift
        values, own = np.asarray(block.values), block.each
        step = cached_rows(8 * max(1, self.n_features))
        for i in range(0, len(values), step):
            strip, w = values[i : i + step].astype(np.float64), own[i : i + step]
            missing = np.isnan(strip)
            strip[missing] = 0
            self.weights += w @ ~missing
            self.means += w @ strip  # sums about the shift, until the state is closed
            self.totals += [len(strip), w.sum(), np.count_nonzero(missing.all(axis=1))]

    def close(self) -> None:
        if self._shift is not None:
            there = self.weights > 0
            self.means = np.where(there, self._shift + self.means / np.where(there, self.weights, 1), 0.0)
        super().close()

    def merge(self, other: ObservedColumns) -> ObservedColumns:
        weights = self.weights + other.weights
        share = other.weights / np.where(weights > 0, weights, 1)
        # Chan, Golub & LeVeque, eq. 2.1, column by column: each has the weights of its own values.
        means = np.where(self.weights > 0, self.means + (other.means - self.means) * share, other.means)
        return ObservedColumns(self.n_features, self.totals + other.totals, weights, means)

    def cost(self, rows: BlockForm) -> Work:
        return Work(0, 4.0 * self.n_features)


@dataclass
class ObservedBlocks(Accumulator):
    """The same as :class:`ObservedColumns`, from blocks of columns of all rows, which have 0 in the other columns.

    Attributes
    ----------
    n_rows, n_features : int
    weights, means
        As of ObservedColumns.
    seen : ndarray of shape (n_rows,), float64
        In how many columns a row has a value.
    """

    tag: ClassVar[str] = "ObservedBlocks"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights", "nan"})
    center: ClassVar[bool] = False

    n_rows: int
    n_features: int
    weights: NDArray[np.float64] = kept("n_features")
    means: NDArray[np.float64] = kept("n_features")
    seen: NDArray[np.float64] = kept("n_rows")

    def update(self, block: Block) -> None:
        values, first = np.asarray(block.values, np.float64), int(block.rows[0])  # block.rows numbers columns of X
        there, columns, own = ~np.isnan(values), slice(first, first + values.shape[1]), block.each
        weights = own @ there
        divisors, means = np.where(weights > 0, weights, 1), np.zeros(values.shape[1])
        for _ in range(2):  # about the first mean, so that an offset costs no digits
            means += own @ np.where(there, values - means, 0) / divisors
        self.weights[columns], self.means[columns] = weights, means
        self.seen += there.sum(axis=1)

    def whole(self, weights: Vector | None) -> ObservedColumns:
        """Return that of all rows, with their weights."""
        own = np.ones(self.n_rows) if weights is None else weights
        totals = np.array([np.count_nonzero(own), own.sum(), np.count_nonzero(own * (self.seen == 0))])
        return ObservedColumns(self.n_features, totals, self.weights, self.means)

    def cost(self, rows: BlockForm) -> Work:
        return Work(0, 8.0 * self.n_rows)


@dataclass
class ObservedPairs(Weighted, Accumulator):
    """Products of columns over the rows that have both, and the weight of these rows.

    All rows are about the means of what is there, which an earlier read found and which are the shift of this one. So
    states are added, and their products need no correction.

    Attributes
    ----------
    n_features, count, weight_sums
        As of :class:`bigpca.passes.accumulators.moments.Moments`.
    mean : ndarray of shape (d,), float64
        That shift.
    packed, pairs : ndarray of shape (packed_size(d),), float64
        Upper triangles, as :func:`bigpca.arrays.packed_strips` lays them out.
    """

    tag: ClassVar[str] = "ObservedPairs"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights", "nan"})

    n_features: int
    count: int = kept(default=0)
    weight_sums: WeightSums = kept(default=None)
    mean: Vector = kept("n_features")
    packed: Vector = kept("n_features", square=True)
    pairs: Vector = kept("n_features", square=True)
    _grams: tuple[Gram, Gram] | None = field(default=None, repr=False)

    def update(self, block: Block) -> None:
        if self._grams is None:
            self._grams, self.mean = (HOST.gram(self.n_features), HOST.gram(self.n_features)), block.shift
        self.weight_sums = add_weights(self.count, self.weight_sums, block.count, block.weights)
        self.count += block.count
        values = np.asarray(block.values)
        there = ~np.isnan(values)
        products, pairs = self._grams
        # About the shift a gap counts as 0: it adds nothing to a product, and its pair is not counted.
        values = np.where(there, values, 0).astype(np.float64, copy=False)
        self.packed = products.add(self.packed, values, block.weights)
        self.pairs = pairs.add(self.pairs, there.astype(values.dtype), block.weights)

    def close(self) -> None:
        if self._grams is not None:
            products, pairs = self._grams
            self.packed, self.pairs = products.close(self.packed), pairs.close(self.pairs)
        super().close()

    def merge(self, other: ObservedPairs) -> ObservedPairs:
        if not other.count or not self.count:
            return self if self.count else other
        sums = add_weights(self.count, self.weight_sums, other.count, other.weight_sums)
        packed, pairs = sum_of(self.packed, other.packed), sum_of(self.pairs, other.pairs)
        return replace(self, count=self.count + other.count, weight_sums=sums, packed=packed, pairs=pairs)

    @property
    def moments(self) -> Moments:
        """The moments of rows as if all pairs were there: each product over the share of its pair (Lounici 2014).

        NOTE: Lounici divides by the product of the shares of both columns, which is that of the pair only if gaps are
        independent. The shares of the pairs are right for any gaps that do not depend on the values, such as those of
        a sensor that all its columns share.

        Raises
        ------
        ValueError
            For pairs of columns that no row has.
        """
        # Below the diagonal, the packed strips hold no products and no weights.
        packed = self.weight * self.packed
        np.divide(packed, self.pairs, out=packed, where=self.pairs > 0)
        unseen = np.argwhere(np.triu(unpack_upper(self.pairs, self.n_features) == 0))
        if len(unseen):
            raise ValueError(
                f"{len(unseen)} pairs of columns are in no row together, such as {listed(unseen[0])}, so their "
                "covariance is not known. Leave such columns out by bp.open(source, columns=...), or use "
                'nan_policy="em" or "mean".'
            )
        precision = float(np.finfo(np.float64).eps)
        return Moments(self.n_features, self.count, self.mean, self.weight_sums, packed=packed, precision=precision)

    def cost(self, rows: BlockForm) -> Work:
        # Both products, a copy of the rows, and what is there.
        d = self.n_features
        return Work(4 * 8 * d * d + 3 * 8 * d * rows.rows, 2.0 * d * (d + 1))


@dataclass(frozen=True)
class ColumnSearch:
    """The reads, before those of a fit, that find which columns have values: a fit counts them with its own.

    Attributes
    ----------
    costs : tuple of PassCost
        As often as they are declared or, once they are done, as often as they were made.
    found : ObservedColumns or None
        What there is in the columns that have values, in all rows; None if not all were read.
    """

    costs: tuple[PassCost, ...]
    found: ObservedColumns | None = None


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
    # The prior of the scores is N(0, I), so A = V_o'V_o + I has an inverse also for rows with few values.
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
        own, step = block.each, rows_of_tile(self.n_features, self.n_scores)
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

    def merge(self, other: ExpectedScores) -> ExpectedScores:
        sums = add_weights(self.count, self.weight_sums, other.count, other.weight_sums)
        return replace(super().merge(other), weight_sums=sums)

    def cost(self, rows: BlockForm) -> Work:
        d, k, p = self.n_features, self.n_scores, self.n_products
        tile = 8 * min(rows.rows, rows_of_tile(d, k)) * (5 * d + 6 * self.n_terms**2)
        return Work(tile + 8 * d * (2 * p + 3 * k), 4.0 * d * (p + k) + 4.0 * k**3)
