"""Rows drawn by weight in one read of X: an exponential race, which does not depend on how the rows are cut.

Row i gets the key ``E_i / w_i``, where the standard exponential E_i depends on the seed and i alone; the m smallest
keys win. This is sampling without replacement, each row with probability proportional to its weight among the remaining
rows (Efraimidis & Spirakis 2006), and the winners of two sets of rows include those of their union.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca.arrays import Array
from bigpca.costs import BlockForm, Work
from bigpca.passes.accumulators.base import Accumulator, Arrays, broadcast
from bigpca.passes.accumulators.row_weights import RowWeight
from bigpca.passes.reading.blocks import STRIP_BYTES, Block, dense_rows
from bigpca.seeds import uniforms

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass
class BestRows(Accumulator):
    """The rows that win the race, with their keys, and the sums of weights over all rows.

    If the weights do not depend on the layout, neither do the winners; the two sums agree to rounding.

    Attributes
    ----------
    n_features, wanted : int
        d, and the maximum number m of rows drawn; fewer are drawn if fewer have a positive weight.
    weight : RowWeight or None
        None in closed states, and in templates without their broadcast value.
    seed, stream : int, str
        Seed and name of the random numbers.
    count, evaluations : int
        Rows read (without omitted ones), and kernel evaluations spent on them.
    rows : ndarray of shape (m, d), with indices (m,), keys (m,) (their logarithms) and weights (m,), best first
    weight_sum, diagonal_sum : float
        Sums over all rows read of the weight and of k(x, x); the latter is 0 for weights without a kernel.
    """

    tag: ClassVar[str] = "BestRows"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr"})
    shared_field: ClassVar[str | None] = "weight"

    n_features: int
    wanted: int
    weight: RowWeight | None
    seed: int
    stream: str
    itemsize: int = 8
    count: int = 0
    evaluations: int = 0
    rows: Array | None = None
    indices: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    keys: Vector = field(default_factory=lambda: np.zeros(0))
    weights: Vector = field(default_factory=lambda: np.zeros(0))
    weight_sum: float = 0.0
    diagonal_sum: float = 0.0
    _prepared: object = field(default=None, repr=False)

    @property
    def shared(self) -> object:
        return self.weight if self.weight is not None and self.weight.by_driver else None

    def for_rows(self, start: int, stop: int) -> BestRows:
        return self if self.weight is None else replace(self, weight=self.weight.for_rows(start, stop))

    def bare(self) -> BestRows:
        return replace(self, weight=None)

    def fresh(self, start: int, stop: int) -> BestRows:
        own = self.for_rows(start, stop)
        prepared = None if own.weight is None else own.weight.prepared()
        return replace(own, count=0, evaluations=0, rows=None, weight_sum=0.0, diagonal_sum=0.0, _prepared=prepared)

    def update(self, block: Block) -> None:
        weight = broadcast(self.weight)
        if isinstance(block.values, csr_array) and not weight.takes_csr:
            for strip in block.strips(block.shift):
                self.update(strip)
            return
        weights, diagonal = weight.weigh(block, self._prepared)
        _check_weights(weights, block.rows)
        self.count += len(weights)
        self.evaluations += len(weights) * weight.evaluations_per_row
        self.weight_sum += float(weights.sum())
        self.diagonal_sum += float(diagonal.sum())
        keys = self._race(weights, block.rows)
        near = np.flatnonzero((keys <= self._worst()) & (weights > 0))
        if len(near) > self.wanted:
            near = near[np.lexsort((block.rows[near], keys[near]))[: self.wanted]]
        if len(near):
            self._insert(dense_rows(block.values[near]), block.rows[near], keys[near], weights[near])

    def _race(self, weights: Vector, rows: Integers) -> Vector:
        first = int(rows[0])
        drawn = uniforms(self.seed, self.stream, first, int(rows[-1]) + 1, 1)[rows - first, 0]
        # log(E / w) with E = -log(1 - u): logarithms, because E / w overflows for tiny weights
        with np.errstate(divide="ignore"):  # a uniform of 0 gives the key -inf, a weight of 0 the key inf
            keys: Vector = np.log(-np.log1p(-drawn)) - np.log(weights)
        return keys

    def _worst(self) -> float:
        return float(self.keys[-1]) if len(self.keys) == self.wanted else np.inf

    def _insert(self, rows: Array, indices: Integers, keys: Vector, weights: Vector) -> None:
        """Merge rows into the best ones, in place; ties go to the lower row number."""
        if self.rows is not None:
            rows, indices = np.concatenate([self.rows, rows]), np.concatenate([self.indices, indices])
            keys, weights = np.concatenate([self.keys, keys]), np.concatenate([self.weights, weights])
        best = np.lexsort((indices, keys))[: self.wanted]
        self.rows, self.indices, self.keys, self.weights = rows[best], indices[best], keys[best], weights[best]

    def close(self) -> None:
        self.weight = self._prepared = None

    def merge(self, other: BestRows) -> BestRows:
        merged = replace(
            self,
            count=self.count + other.count,
            evaluations=self.evaluations + other.evaluations,
            weight_sum=self.weight_sum + other.weight_sum,
            diagonal_sum=self.diagonal_sum + other.diagonal_sum,
        )
        if other.rows is not None:
            merged._insert(other.rows, other.indices, other.keys, other.weights)
        return merged

    @property
    def state_bytes(self) -> int:
        return self.wanted * (self.n_features * self.itemsize + 24) + 32

    def cost(self, rows: BlockForm) -> Work:
        strip = STRIP_BYTES if rows.sparse else 0
        held = strip + 2 * self.state_bytes  # new rows, and their concatenation with the best ones
        if self.weight is None:
            return Work(held)
        return Work(held + self.weight.working_bytes(self.n_features, self.itemsize), self.weight.flops(rows))

    def to_arrays(self) -> Arrays:
        rows = np.zeros((0, self.n_features)) if self.rows is None else self.rows
        return {
            "counts": np.array([self.count, self.evaluations]), "sums": np.array([self.weight_sum, self.diagonal_sum]),
            "rows": rows, "indices": self.indices, "keys": self.keys, "weights": self.weights,
        }  # fmt: skip

    def with_arrays(self, arrays: Mapping[str, Array]) -> BestRows:
        return replace(
            self, weight=None, count=int(arrays["counts"][0]), evaluations=int(arrays["counts"][1]),
            weight_sum=float(arrays["sums"][0]), diagonal_sum=float(arrays["sums"][1]),
            rows=arrays["rows"] if len(arrays["rows"]) else None, indices=arrays["indices"], keys=arrays["keys"],
            weights=arrays["weights"],
        )  # fmt: skip

    def identity(self) -> dict[str, object]:
        weight = {} if self.weight is None else self.weight.describe()
        return {"wanted": self.wanted, "seed": self.seed, "stream": self.stream, **weight}


def _check_weights(weights: Vector, rows: Integers) -> None:
    good = np.isfinite(weights) & (weights >= 0)
    if not good.all():
        at = int(np.flatnonzero(~good)[0])
        raise ValueError(
            f"the sampling weight of row {rows[at]} is {weights[at]}; a finite number of at least 0 was expected. "
            f'Divide the data by a constant, normalise the kernel, or use sampling="uniform".'
        )
