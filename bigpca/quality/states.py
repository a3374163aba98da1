"""States of measurements over one read of X: residuals, moments of replaced features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, content_digest
from bigpca.costs import BlockForm, Work
from bigpca.passes.accumulators.base import Accumulator, Arrays, broadcast
from bigpca.passes.accumulators.moments import ColumnMoments
from bigpca.passes.reading.blocks import Block
from bigpca.passes.reading.layout import MIB

Vector = NDArray[np.float64]
STRIP_BYTES = 4 * MIB  # of float64 rows processed at a time, so that no second slab is needed


def strip_rows(d: int) -> int:
    """Return the rows of d float64 numbers in one strip."""
    return max(1, STRIP_BYTES // (8 * max(1, d)))


@dataclass(frozen=True)
class Subspace:
    """An affine subspace: ``mean + scale * span(axes)``.

    Attributes
    ----------
    mean : ndarray of shape (d,)
    scale : ndarray of shape (d,) or None
    axes : ndarray of shape (k, d), orthonormal rows
    """

    mean: Vector
    scale: Vector | None
    axes: NDArray[np.float64]

    def digest(self) -> str:
        """Identify the subspace by its values."""
        return content_digest(self.mean, self.scale, self.axes)


@dataclass
class Residuals(Accumulator):
    """Squared distances of rows to a subspace, and to its mean, both in units of ``scale``.

    With ``x_s = (x - mean) / scale``: ``residual = sum_t |x_s - axes' axes x_s|^2`` and ``total = sum_t |x_s|^2``. The
    residual vector itself is squared, in float64, because a difference of two large sums would lose a small residual.

    Attributes
    ----------
    n_features, n_components : int
    subspace : Subspace or None
        A broadcast value: None in closed states, and in templates being sent.
    count : int
    residual, total : float
    """

    tag: ClassVar[str] = "Residuals"
    shared_field: ClassVar[str | None] = "subspace"

    n_features: int
    n_components: int
    subspace: Subspace | None
    count: int = 0
    residual: float = 0.0
    total: float = 0.0

    def fresh(self, start: int, stop: int) -> Residuals:
        return Residuals(self.n_features, self.n_components, self.subspace)

    def update(self, block: Block) -> None:
        subspace = broadcast(self.subspace)
        step, offset = strip_rows(self.n_features), block.shift - subspace.mean
        for i in range(0, len(block.values), step):
            rows = block.values[i : i + step] + offset  # float64
            if subspace.scale is not None:
                rows /= subspace.scale
            self.total += float(np.einsum("ij,ij->", rows, rows))
            rows -= (rows @ subspace.axes.T) @ subspace.axes
            self.residual += float(np.einsum("ij,ij->", rows, rows))
        self.count += len(block.values)

    def close(self) -> None:
        self.subspace = None

    def merge(self, other: Residuals) -> Residuals:
        total, residual = self.total + other.total, self.residual + other.residual
        return replace(self.bare(), count=self.count + other.count, residual=residual, total=total)

    @property
    def state_bytes(self) -> int:
        return 24

    def cost(self, rows: BlockForm) -> Work:
        scratch = 8 * strip_rows(self.n_features) * (2 * self.n_features + self.n_components)
        return Work(scratch, 4.0 * self.n_features * (self.n_components + 1))

    def to_arrays(self) -> Arrays:
        return {"count": np.array(self.count), "sums": np.array([self.residual, self.total])}

    def with_arrays(self, arrays: Mapping[str, Array]) -> Residuals:
        residual, total = (float(value) for value in arrays["sums"])
        return replace(self.bare(), count=int(arrays["count"]), residual=residual, total=total)

    def identity(self) -> dict[str, object]:
        return {"subspace": None if self.subspace is None else self.subspace.digest()}


@dataclass
class ReplacementMoments(Accumulator):
    """Column moments of X, and of ``X - X[:, replacements]``, the change by replacing features.

    Attributes
    ----------
    replacements : ndarray of shape (d,), int64
    own, difference : ColumnMoments
    """

    tag: ClassVar[str] = "ReplacementMoments"

    replacements: NDArray[np.int64]
    own: ColumnMoments = field(default_factory=lambda: ColumnMoments(0))
    difference: ColumnMoments = field(default_factory=lambda: ColumnMoments(0))

    def fresh(self, start: int, stop: int) -> ReplacementMoments:
        empty = ColumnMoments(len(self.replacements))
        return ReplacementMoments(self.replacements, empty.fresh(start, stop), empty.fresh(start, stop))

    def update(self, block: Block) -> None:
        self.own.update(block)
        # With u = x - s:  x - x[r] = (u - u[r]) + (s - s[r]), so the differences have one shift too.
        shift = block.shift - block.shift[self.replacements]
        for i in range(0, len(block.values), step := strip_rows(len(self.replacements))):
            rows = block.values[i : i + step].astype(np.float64)
            rows -= rows[:, self.replacements]
            self.difference.update(Block(rows, block.rows[i : i + step], shift, rows.sum(axis=0)))

    def close(self) -> None:
        self.own.close()
        self.difference.close()

    def merge(self, other: ReplacementMoments) -> ReplacementMoments:
        return replace(self, own=self.own.merge(other.own), difference=self.difference.merge(other.difference))

    @property
    def state_bytes(self) -> int:
        return 40 * len(self.replacements)

    def cost(self, rows: BlockForm) -> Work:
        d = len(self.replacements)
        return Work(16 * strip_rows(d) * d, 6.0 * d)

    def to_arrays(self) -> Arrays:
        parts = {"own": self.own, "difference": self.difference}
        return {f"{name}_{key}": array for name, part in parts.items() for key, array in part.to_arrays().items()}

    def with_arrays(self, arrays: Mapping[str, Array]) -> ReplacementMoments:
        empty = ColumnMoments(len(self.replacements))
        own, difference = (
            empty.with_arrays({key: arrays[f"{name}_{key}"] for key in ("count", "mean", "squares")})
            for name in ("own", "difference")
        )
        return ReplacementMoments(self.replacements, own, difference)

    def identity(self) -> dict[str, object]:
        return {"replacements": content_digest(self.replacements)}
