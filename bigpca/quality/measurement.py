"""One planned read of X for a measurement, of all rows or of chosen ones, and the states that it fills."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from bigpca.arrays import Array, DType, Integers, Matrix, Vector
from bigpca.estimators.shared.fit import Reading, running
from bigpca.passes.accumulators.base import KEPT, Accumulator, broadcast, kept
from bigpca.passes.accumulators.kept_rows import RowsAt
from bigpca.passes.accumulators.moments import ColumnMoments
from bigpca.passes.engine.events import ProgressArgument
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import fold, row_pass, runs_layout
from bigpca.passes.reading.blocks import Block
from bigpca.passes.reading.layout import MIB, Layout, working_dtype
from bigpca.passes.rows import Rows
from bigpca.planning import BlockForm, PassCost, SolveCost, Work
from bigpca.storage.files import content_digest

State = TypeVar("State", bound=Accumulator)
STRIP_BYTES = 4 * MIB  # of float64 rows processed at a time, so that no second slab is needed


@dataclass(frozen=True)
class Measurement(Reading, Generic[State]):
    """One read that is folded into an accumulator.

    Attributes
    ----------
    solver : str
        Name of the read.
    template : Accumulator
    part : Layout or None
        The rows that are read, unshifted and in their own precision; None for all rows.
    dtype : numpy.dtype or None
        Of the products; None chooses by their number.
    """

    account: ClassVar[str] = "one read"

    name: str
    template: State
    part: Layout | None = None
    dtype: DType | None = None

    @property
    def solver(self) -> str:
        return self.name

    @cached_property
    def pass_plan(self) -> PassPlan:
        """The read."""
        dtype = self.dtype if self.part is None else working_dtype(self.rows.dtype)
        return row_pass(self.rows, self.name, [self.template], layout=self.part, dtype=dtype)

    def passes(self) -> tuple[PassCost, ...]:
        return (self.pass_plan,)

    def solve_cost(self) -> SolveCost:
        return SolveCost()

    def identity(self) -> dict[str, Any]:
        return {"computes": self.name, "input": self.rows.describe()}

    def read(self, run: Run) -> State:
        """Return the state."""
        unshifted = None if self.part is None else np.zeros(self.rows.n_columns)
        return fold(run, self.pass_plan, self.rows, self.template, shift=unshifted).state  # one pass over X


def read_once(
    rows: Rows,
    template: State,
    name: str,
    *,
    memory_limit: int | str | None = None,
    progress: ProgressArgument = None,
    layout: Layout | None = None,
    dtype: DType | None = None,
) -> State:
    """Fold one read of X into ``template`` and return its state.  # one pass over X

    Parameters
    ----------
    layout : Layout or None
        The rows to read, unshifted and in their own precision; None for all rows.
    dtype : numpy.dtype or None
        Of the products; None chooses by their number.

    Raises
    ------
    MemoryBudgetError
        Before any read, if blocks and state do not fit ``memory_limit`` (None for that of the processes).
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read; names rows and block.
    """
    resources = find_resources(memory_limit, in_process=rows.order.in_process)
    measurement = Measurement(rows, resources, name, template, layout, dtype)
    measurement.plan.check()
    with running(measurement, progress=progress) as run:
        return measurement.read(run)


def read_rows(rows: Rows, wanted: Integers, name: str) -> Array:
    """Return the rows of X at ascending row numbers, reading only these and rows stored with them.

    What is stored together is decoded once.

    Returns
    -------
    ndarray of shape (m, d), float32 or float64
    """
    held = np.split(wanted, np.flatnonzero(np.diff(wanted) > 1) + 1)
    layout = runs_layout(rows, [(int(numbers[0]), int(numbers[-1]) + 1) for numbers in held if len(numbers)])
    found = read_once(rows, RowsAt(rows.n_columns, wanted, working_dtype(rows.dtype).itemsize), name, layout=layout)
    kept = np.zeros((0, rows.n_columns)) if found.rows is None else found.rows
    return kept[np.argsort(found.indices)]


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
    axes: Matrix

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
    count: int = kept(default=0)
    residual: float = kept(default=0.0)
    total: float = kept(default=0.0)

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

    def cost(self, rows: BlockForm) -> Work:
        scratch = 8 * strip_rows(self.n_features) * (2 * self.n_features + self.n_components)
        return Work(scratch, 4.0 * self.n_features * (self.n_components + 1))

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

    replacements: Integers
    own: ColumnMoments = field(metadata=KEPT)
    difference: ColumnMoments = field(metadata=KEPT)

    @classmethod
    def of(cls, replacements: Integers) -> ReplacementMoments:
        """Return a template."""
        return cls(replacements, ColumnMoments(len(replacements)), ColumnMoments(len(replacements)))

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

    def cost(self, rows: BlockForm) -> Work:
        d = len(self.replacements)
        return Work(16 * strip_rows(d) * d, 6.0 * d)

    def identity(self) -> dict[str, object]:
        return {"replacements": content_digest(self.replacements)}
