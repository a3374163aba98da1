"""Rows drawn by weight in one read of X, and the weights: functions of a block, evaluated where the rows are read.

The draw is an exponential race by (seed, absolute row), so it does not depend on how the rows are cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, cast

import numpy as np

from bigpca.arrays import Array, Integers, Matrix, Vector
from bigpca.blas import each_piece
from bigpca.costs import BlockForm, Work
from bigpca.devices import Namespace
from bigpca.host import HOST
from bigpca.kernels.base import FIXED_BYTES, Kernel
from bigpca.passes.accumulators.base import KEPT, Accumulator, broadcast, kept
from bigpca.passes.accumulators.landmark_moments import (
    TILE_BYTES,
    features_with_squares,
    landmark_block,
    prepare_landmarks,
    prepare_tile,
    tile_rows,
)
from bigpca.passes.reading.blocks import Block
from bigpca.seeds import uniforms


class RowWeight(ABC):
    """A sampling weight of at least 0 for every row; rows of weight 0 are never drawn."""

    by_driver = False  # whether it is too large to be sent with every task, and so is a broadcast value

    @abstractmethod
    def weigh(self, block: Block, prepared: object) -> tuple[Vector, Vector]:
        """Return the weights (b,) of a block's rows, and their k(x, x) (b,), zeros without a kernel."""

    def prepared(self, block: Block) -> object:
        """Return the prepared landmarks for :meth:`weigh`, computed once per group where its first block is; None if it
        needs none.
        """
        return None

    def for_rows(self, start: int, stop: int) -> Self:
        """Return the weight with only what rows ``start:stop`` need; itself by default."""
        return self

    @property
    def accepts_csr(self) -> bool:
        """Whether :meth:`weigh` takes blocks of sparse rows; others are given dense strips."""
        return True

    @property
    @abstractmethod
    def evaluations_per_row(self) -> int:
        """Kernel evaluations per row."""

    @abstractmethod
    def flops(self, rows: BlockForm) -> float:
        """Return the floating-point operations per row."""

    @abstractmethod
    def working_bytes(self, d: int, itemsize: int) -> int:
        """Return the memory of :meth:`weigh`, for a block of any size, and of the result of :meth:`prepared`."""


class KnownWeight(RowWeight):
    """Weights that take no kernel."""

    evaluations_per_row: ClassVar[int] = 0

    def flops(self, rows: BlockForm) -> float:
        return 1.0

    def working_bytes(self, d: int, itemsize: int) -> int:
        return 0


@dataclass(frozen=True)
class Ones(KnownWeight):
    """Equal weights: uniform sampling."""

    def weigh(self, block: Block, prepared: object) -> tuple[Vector, Vector]:
        return np.ones(block.count), np.zeros(block.count)


@dataclass(frozen=True)
class GivenWeight(KnownWeight):
    """Weights that were computed before, one for each row of X.

    Attributes
    ----------
    values : ndarray of shape (rows,), float64; those of rows ``first_row : first_row + rows``
    """

    values: Vector
    first_row: int = 0

    def weigh(self, block: Block, prepared: object) -> tuple[Vector, Vector]:
        return self.values[block.rows - self.first_row], np.zeros(block.count)

    def for_rows(self, start: int, stop: int) -> GivenWeight:
        return GivenWeight(self.values[start - self.first_row : stop - self.first_row], start)


@dataclass(frozen=True)
class Diagonal(RowWeight):
    """``k(x, x)^power``: 1 for the first read of pivoted Cholesky, 2 for diagonal sampling (tutorial, eq. 64)."""

    evaluations_per_row: ClassVar[int] = 1

    kernel: Kernel
    power: int
    shift: Vector | None = None

    def weigh(self, block: Block, prepared: object) -> tuple[Vector, Vector]:
        d = block.values.shape[1]
        step = tile_rows(self.kernel.prepared_bytes(d, block.values.dtype.itemsize))
        diagonal = np.zeros(block.count)

        def prepare(i: int) -> None:
            A = prepare_tile(self.kernel, block, i, i + step, self.shift)
            diagonal[i : i + step] = self.kernel.diagonal_of(A)

        each_piece(prepare, range(0, len(diagonal), step))
        return diagonal**self.power, diagonal

    def flops(self, rows: BlockForm) -> float:
        return self.kernel.entry_flops(rows)

    @property
    def accepts_csr(self) -> bool:
        return self.kernel.accepts_csr

    def working_bytes(self, d: int, itemsize: int) -> int:
        return TILE_BYTES + FIXED_BYTES + self.kernel.prepared_bytes(d, itemsize)


@dataclass(frozen=True)
class Residual(RowWeight):
    """The residual of the landmarks: ``d(x) = k(x, x) - |k(x, L) T|^2``, always computed from scratch, never updated.

    With ``T T' = pinv(k(L, L))`` this is the residual of pivoted Cholesky.

    Attributes
    ----------
    landmarks : ndarray of shape (m, d)
        Rows ``indices`` (m,) of X, which have a weight of exactly 0.
    T : ndarray of shape (m, r), float64
    rounding : float
        Residuals below this share of k(x, x) are rounding errors, and are set to 0.
    shift : ndarray of shape (d,) or None
        Subtracted by translation-invariant kernels.
    """

    kernel: Kernel
    landmarks: Array
    indices: Integers
    T: Matrix
    rounding: float
    shift: Vector | None = None

    by_driver = True

    def prepared(self, block: Block) -> tuple[object, Array, Array | None]:
        landmarks = block.device.beside(self.landmarks, block.values.dtype)
        shift = None if self.shift is None else block.device.put(self.shift)
        return prepare_landmarks(self.kernel, landmarks, self.indices, shift), block.device.put(self.T), shift

    def weigh(self, block: Block, prepared: object) -> tuple[Vector, Vector]:
        (landmarks, T, shift), device = cast("tuple[object, Array, Array | None]", prepared), block.device
        step = self.tile_rows(block.values.shape[1], block.values.dtype.itemsize, device)
        residual, diagonal = np.zeros(block.count), np.zeros(block.count)

        def compare(i: int) -> None:
            A = prepare_tile(self.kernel, block, i, i + step, shift)
            squares = features_with_squares(landmark_block(self.kernel, A, landmarks), T, device)[1]
            diagonal[i : i + step] = self.kernel.diagonal_of(A)
            residual[i : i + step] = diagonal[i : i + step] - squares

        each_piece(compare, range(0, block.count, step))
        residual[residual <= self.rounding * diagonal] = 0.0  # NaN compares false, stays, and is rejected
        residual[np.isin(block.rows, self.indices)] = 0.0
        return residual, diagonal

    def tile_rows(self, d: int, itemsize: int, device: Namespace = HOST) -> int:
        """Return the rows that are compared at a time, here or on a device."""
        row_bytes = self._tile_row_bytes(d, itemsize)
        return device.tile_rows(tile_rows(row_bytes), row_bytes)

    def _tile_row_bytes(self, d: int, itemsize: int) -> int:
        m, r = len(self.landmarks), len(self.T.T)
        return self.kernel.prepared_bytes(d, itemsize) + m * self.kernel.entry_bytes(itemsize) + 8 * r

    @property
    def evaluations_per_row(self) -> int:
        return len(self.landmarks) + 1

    def flops(self, rows: BlockForm) -> float:
        return (len(self.landmarks) + 1) * self.kernel.entry_flops(rows) + 2 * self.T.size

    @property
    def accepts_csr(self) -> bool:
        return self.kernel.accepts_csr

    def working_bytes(self, d: int, itemsize: int) -> int:
        m, r = len(self.landmarks), len(self.T.T)
        kept = m * self.kernel.prepared_bytes(d, itemsize) + 4 * m * r  # and T in float32
        return kept + FIXED_BYTES + max(TILE_BYTES, self._tile_row_bytes(d, itemsize))


# Row i gets the key ``E_i / w_i``, where the standard exponential E_i depends on the seed and i alone; the m smallest
# keys win. This is sampling without replacement, each row with probability proportional to its weight among the
# remaining rows (Efraimidis & Spirakis 2006), and the winners of two sets of rows include those of their union.


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
    count: int = kept(default=0)
    evaluations: int = kept(default=0)
    rows: Array | None = kept(default=None)
    indices: Integers = field(default_factory=lambda: np.zeros(0, np.int64), metadata=KEPT)
    keys: Vector = field(default_factory=lambda: np.zeros(0), metadata=KEPT)
    weights: Vector = field(default_factory=lambda: np.zeros(0), metadata=KEPT)
    weight_sum: float = kept(default=0.0)
    diagonal_sum: float = kept(default=0.0)
    _prepared: object = field(default=None, repr=False)

    @property
    def shared(self) -> object:
        return self.weight if self.weight is not None and self.weight.by_driver else None

    def for_rows(self, start: int, stop: int) -> BestRows:
        own = super().for_rows(start, stop)
        return own if own.weight is None else replace(own, weight=own.weight.for_rows(start, stop))

    def update(self, block: Block) -> None:
        weight = broadcast(self.weight)
        for part in block.taken(weight.accepts_csr):
            self._draw(part, weight)

    def _draw(self, block: Block, weight: RowWeight) -> None:
        with block.device.precise():
            self._prepared = weight.prepared(block) if self._prepared is None else self._prepared
            weights, diagonal = weight.weigh(block, self._prepared)
        good = np.isfinite(weights) & (weights >= 0)
        if not good.all():
            at = int(np.flatnonzero(~good)[0])
            raise ValueError(
                f"the sampling weight of row {block.rows[at]} is {weights[at]}; a finite number of at least 0 was "
                f'expected. Divide the data by a constant, normalise the kernel, or use sampling="uniform".'
            )
        self.count += len(weights)
        self.evaluations += len(weights) * weight.evaluations_per_row
        self.weight_sum += float(weights.sum())
        self.diagonal_sum += float(diagonal.sum())
        # E / w with E exponential by (seed, row): the smallest keys are a draw by weight without replacement,
        # which does not depend on how rows are cut (Efraimidis & Spirakis 2006). They are log(E / w) with
        # E = -log(1 - u): logarithms, because E / w overflows for tiny weights.
        first = int(block.rows[0])
        drawn = uniforms(self.seed, self.stream, first, int(block.rows[-1]) + 1, 1)[block.rows - first, 0]
        with np.errstate(divide="ignore"):  # a uniform of 0 gives the key -inf, a weight of 0 the key inf
            keys: Vector = np.log(-np.log1p(-drawn)) - np.log(weights)
        worst = self.keys[-1] if len(self.keys) == self.wanted else np.inf
        near = np.flatnonzero((keys <= worst) & (weights > 0))
        if len(near) > self.wanted:
            # Ties by row number, so that equal keys have one order.
            near = near[np.lexsort((block.rows[near], keys[near]))[: self.wanted]]
        if len(near):
            self._insert(block.form.dense(block.values[near]), block.rows[near], keys[near], weights[near])

    def _insert(self, rows: Array, indices: Integers, keys: Vector, weights: Vector) -> None:
        """Merge rows into the best ones, in place; ties go to the lower row number."""
        if self.rows is not None:
            rows, indices = np.concatenate([self.rows, rows]), np.concatenate([self.indices, indices])
            keys, weights = np.concatenate([self.keys, keys]), np.concatenate([self.weights, weights])
        # The smallest keys of a union are among the smallest of its parts: any grouping draws the same rows.
        best = np.lexsort((indices, keys))[: self.wanted]
        self.rows, self.indices, self.keys, self.weights = rows[best], indices[best], keys[best], weights[best]

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
        held = rows.taken(False)[0] + 2 * self.state_bytes  # new rows, and their concatenation with the best ones
        if self.weight is None:
            return Work(held)
        return Work(held + self.weight.working_bytes(self.n_features, self.itemsize), self.weight.flops(rows))

    def device_bytes(self, rows: BlockForm) -> int:
        return 0  # beside what its weights take: those of kernels for devices
