"""Sampling weights of rows: small picklable functions of a block, evaluated where the rows are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, content_digest
from bigpca.costs import BlockForm
from bigpca.kernels.base import Kernel
from bigpca.kernels.rows import FIXED_BYTES
from bigpca.passes.accumulators.landmark_blocks import (
    TILE_BYTES,
    landmark_block,
    prepare_landmarks,
    prepare_tile,
    tile_rows,
)
from bigpca.passes.reading.blocks import Block

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


class RowWeight(ABC):
    """A sampling weight of at least 0 for every row; rows of weight 0 are never drawn."""

    by_driver = False  # whether it is too large to be sent with every task, and so is a broadcast value

    @abstractmethod
    def weigh(self, block: Block, prepared: object) -> tuple[Vector, Vector]:
        """Return the weights (b,) of a block's rows, and their k(x, x) (b,), zeros without a kernel."""

    def prepared(self) -> object:
        """Return the prepared landmarks for :meth:`weigh`, computed once per group; None if it needs none."""
        return None

    def for_rows(self, start: int, stop: int) -> Self:
        """Return the weight with only what rows ``start:stop`` need; itself by default."""
        return self

    @property
    def takes_csr(self) -> bool:
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

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Return what identifies the weights in fingerprints."""


class Known(RowWeight):
    """Weights that take no kernel."""

    @property
    def evaluations_per_row(self) -> int:
        return 0

    def flops(self, rows: BlockForm) -> float:
        return 1.0

    def working_bytes(self, d: int, itemsize: int) -> int:
        return 0


@dataclass(frozen=True)
class Ones(Known):
    """Equal weights: uniform sampling."""

    def weigh(self, block: Block, prepared: object) -> tuple[Vector, Vector]:
        return np.ones(block.count), np.zeros(block.count)

    def describe(self) -> dict[str, object]:
        return {"weight": "ones"}


@dataclass(frozen=True)
class Given(Known):
    """Weights that were computed before, one for each row of X.

    Attributes
    ----------
    values : ndarray of shape (rows,), float64; those of rows ``first_row : first_row + rows``
    """

    values: Vector
    first_row: int = 0

    def weigh(self, block: Block, prepared: object) -> tuple[Vector, Vector]:
        return self.values[block.rows - self.first_row], np.zeros(block.count)

    def for_rows(self, start: int, stop: int) -> Given:
        return Given(self.values[start - self.first_row : stop - self.first_row], start)

    def describe(self) -> dict[str, object]:
        return {"weight": "given", "values": content_digest(self.values)}


@dataclass(frozen=True)
class Diagonal(RowWeight):
    """``k(x, x)^power``: 1 for the first round of pivoted Cholesky, 2 for diagonal sampling (tutorial, eq. 64)."""

    kernel: Kernel
    power: int
    shift: Vector | None = None

    def weigh(self, block: Block, prepared: object) -> tuple[Vector, Vector]:
        d = block.values.shape[1]
        step = tile_rows(self.kernel.prepared_bytes(d, block.values.dtype.itemsize))
        diagonal = np.zeros(block.count)
        for i in range(0, len(diagonal), step):
            A = prepare_tile(self.kernel, block, i, i + step, self.shift)
            diagonal[i : i + step] = self.kernel.diagonal_of(A)
        return diagonal**self.power, diagonal

    @property
    def evaluations_per_row(self) -> int:
        return 1

    def flops(self, rows: BlockForm) -> float:
        return self.kernel.entry_flops(rows)

    @property
    def takes_csr(self) -> bool:
        return self.kernel.accepts_csr

    def working_bytes(self, d: int, itemsize: int) -> int:
        return TILE_BYTES + FIXED_BYTES + self.kernel.prepared_bytes(d, itemsize)

    def describe(self) -> dict[str, object]:
        return {"weight": "diagonal", "power": self.power, **_described(self.kernel, self.shift)}


@dataclass(frozen=True)
class Residual(RowWeight):
    """The residual of the landmarks: ``d(x) = k(x, x) - |k(x, L) T|^2``, always computed from scratch, never updated.

    With ``T T' = pinv(k(L, L))`` this is the residual of pivoted Cholesky; with ``T T' = (k(L, L) + ridge W^-2)^-1``
    and ``cap = ridge``, ``min(1, d(x) / ridge)`` is a ridge leverage score (Musco & Musco 2017).

    Attributes
    ----------
    landmarks : ndarray of shape (m, d)
        Rows ``indices`` (m,) of X, which have a weight of exactly 0 unless ``cap`` is given.
    T : ndarray of shape (m, r), float64
    rounding : float
        Residuals below this share of k(x, x) are rounding errors, and are set to 0.
    shift : ndarray of shape (d,) or None
        Subtracted by translation-invariant kernels.
    cap : float or None
    """

    kernel: Kernel
    landmarks: Array
    indices: NDArray[np.int64]
    T: Matrix
    rounding: float
    shift: Vector | None = None
    cap: float | None = None

    by_driver = True

    def prepared(self) -> object:
        return prepare_landmarks(self.kernel, self.landmarks, self.indices, self.shift)

    def weigh(self, block: Block, prepared: object) -> tuple[Vector, Vector]:
        values = block.values
        step = tile_rows(self._tile_row_bytes(values.shape[1], values.dtype.itemsize))
        residual, diagonal = np.zeros(block.count), np.zeros(block.count)
        for i in range(0, block.count, step):
            A = prepare_tile(self.kernel, block, i, i + step, self.shift)
            K_im = landmark_block(self.kernel, A, prepared)  # (step, m)
            B = K_im @ self.T.astype(K_im.dtype, copy=False)  # (step, r)
            diagonal[i : i + step] = self.kernel.diagonal_of(A)
            residual[i : i + step] = diagonal[i : i + step] - np.einsum("ij,ij->i", B, B, dtype=np.float64)
        if self.cap is not None:
            return np.minimum(1.0, np.maximum(residual, 0.0) / self.cap), diagonal
        residual[residual <= self.rounding * diagonal] = 0.0  # NaN compares false, stays, and is rejected
        residual[np.isin(block.rows, self.indices)] = 0.0
        return residual, diagonal

    def _tile_row_bytes(self, d: int, itemsize: int) -> int:
        m, r = len(self.landmarks), len(self.T.T)
        return self.kernel.prepared_bytes(d, itemsize) + m * self.kernel.entry_bytes(itemsize) + 8 * r

    @property
    def evaluations_per_row(self) -> int:
        return len(self.landmarks) + 1

    def flops(self, rows: BlockForm) -> float:
        return (len(self.landmarks) + 1) * self.kernel.entry_flops(rows) + 2 * self.T.size

    @property
    def takes_csr(self) -> bool:
        return self.kernel.accepts_csr

    def working_bytes(self, d: int, itemsize: int) -> int:
        m, r = len(self.landmarks), len(self.T.T)
        kept = m * self.kernel.prepared_bytes(d, itemsize) + 4 * m * r  # and T in float32
        return kept + FIXED_BYTES + max(TILE_BYTES, self._tile_row_bytes(d, itemsize))

    def describe(self) -> dict[str, object]:
        digest = content_digest(self.landmarks, self.T)
        own = {"weight": "residual", "landmarks": digest, "cap": self.cap, "rounding": self.rounding}
        return own | _described(self.kernel, self.shift)


def _described(kernel: Kernel, shift: Vector | None) -> dict[str, object]:
    moved = "" if shift is None else content_digest(shift)
    return {"kernel": kernel.describe(), "shift": moved}
