"""One planned read of X for a measurement, of all rows or of chosen ones, and the row maps that several share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

import numpy as np

from bigpca.arrays import Array, DType, Integers, Matrix, Vector, working_dtype
from bigpca.estimators.shared.fit import Reading, running
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.kept_rows import RowsAt
from bigpca.passes.engine.events import ProgressArgument
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import fold, row_pass, runs_layout
from bigpca.passes.reading.layout import MIB
from bigpca.passes.reading.row_maps import Float64Map, MapStep
from bigpca.passes.rows import Rows
from bigpca.planning import Layout, PassCost

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
    about_zero : bool
        Whether rows are unshifted, so that sums of integers are exact.
    """

    reads: ClassVar[tuple[str, ...]] = ("pass_plan",)
    depends_on: ClassVar[tuple[str, ...]] = ("name",)
    account: ClassVar[str] = "one read"

    name: str
    template: State
    part: Layout | None = None
    dtype: DType | None = None
    about_zero: bool = False

    @property
    def solver(self) -> str:
        return self.name

    @cached_property
    def pass_plan(self) -> PassCost:
        """The read."""
        dtype = self.dtype if self.part is None else working_dtype(self.rows.dtype)
        return row_pass(self.rows, self.name, [self.template], layout=self.part, dtype=dtype)

    def read(self, run: Run) -> State:
        """Return the state."""
        unshifted = np.zeros(self.rows.n_columns) if self.about_zero or self.part is not None else None
        return fold(run, self.pass_plan, self.rows, self.template, shift=unshifted).state  # one pass over X


def read_once(
    rows: Rows,
    template: State,
    name: str,
    *,
    progress: ProgressArgument = None,
    layout: Layout | None = None,
    dtype: DType | None = None,
    about_zero: bool = False,
) -> State:
    """Fold one read of X into ``template`` and return its state.  # one pass over X

    Parameters
    ----------
    layout : Layout or None
        The rows to read, unshifted and in their own precision; None for all rows.
    dtype : numpy.dtype or None
        Of the products; None chooses by their number.
    about_zero : bool
        Whether rows are unshifted.

    Raises
    ------
    MemoryBudgetError
        Before any read, if blocks and state do not fit.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read; names rows and block.
    """
    measurement = Measurement(rows, name, template, layout, dtype, about_zero)
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
class SquaredScores(Float64Map):
    """Row map to the squares of the scores and of what they leave: ``(t_1^2, ..., t_k^2, |x - sum t_i v_i|^2) / unit``.

    What is left is squared itself, because a difference of two large sums would lose a small one.

    Attributes
    ----------
    mean : ndarray of shape (d,)
    components : ndarray of shape (k, d)
        Orthonormal rows.
    scale : ndarray of shape (d,) or None
        Divisors of the columns.
    unit : float
        A power of 2 near the total variance, so that fourth powers of the scores neither overflow nor underflow.
    """

    mean: Vector
    components: Matrix
    scale: Vector | None = None
    unit: float = 1.0

    @property
    def step(self) -> MapStep:
        """The map, in tiles."""
        k, d = self.components.shape
        return MapStep(self, k + 1, 4 * k * d + 4 * d, strip_rows(d))

    def apply(self, rows: Array, where: str) -> Array:
        """Return the squares (b, k + 1), in float64."""
        centred = rows - self.mean
        if self.scale is not None:
            centred /= self.scale
        scores = centred @ self.components.T
        centred -= scores @ self.components
        left = np.einsum("ij,ij->i", centred, centred)
        squares: Array = np.column_stack([scores**2, left])
        squares /= self.unit
        return squares

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred rows, what the scores explain of them, scores and squares, in float64."""
        return 8 * rows * (2 * d + 2 * len(self.components) + 2), 0


@dataclass(frozen=True)
class Replaced(Float64Map):
    """Row map to rows beside their change by replacing features: ``(x, x - x[replacements])``.

    Attributes
    ----------
    replacements : ndarray of shape (d,), int64
    """

    replacements: Integers

    @property
    def step(self) -> MapStep:
        """The map, in tiles."""
        d = len(self.replacements)
        return MapStep(self, 2 * d, 2 * d, strip_rows(2 * d))

    def apply(self, rows: Array, where: str) -> Array:
        """Return rows and changes (b, 2 d), in float64."""
        exact = rows.astype(np.float64)
        return np.hstack([exact, exact - exact[:, self.replacements]])

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Rows in float64, those of replacements, changes, and both together."""
        return 8 * rows * 5 * d, 0
