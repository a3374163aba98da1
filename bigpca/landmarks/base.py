"""What a choice of landmarks is asked for, and what it returns; the one pass that all of them draw rows by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.kernels.base import Kernel
from bigpca.passes.accumulators.drawn_rows import BestRows
from bigpca.passes.accumulators.row_weights import RowWeight
from bigpca.passes.engine.jobs import RunOptions
from bigpca.passes.engine.states import PassState
from bigpca.passes.fold import fold
from bigpca.passes.reading.blocks import product_dtype
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.rows import RowInput

Vector = NDArray[np.float64]
STREAM = "landmarks"


@dataclass(frozen=True)
class LandmarkRequest:
    """Which landmarks are wanted.

    Attributes
    ----------
    rows : RowInput
    kernel : Kernel
        Resolved: nothing left to depend on d.
    count : int
        m, at most n.
    seed : int
    shift : ndarray of shape (d,) or None
        What translation-invariant kernels subtract; near the mean of the rows.
    options : RunOptions
    number : int
        Of the first pass: checkpoints are named by it.
    threads : int or None
        BLAS threads of the m x m solves.
    rounds : int
        Of pivoted Cholesky.
    """

    rows: RowInput
    kernel: Kernel
    count: int
    seed: int = 0
    shift: Vector | None = None
    options: RunOptions = field(default_factory=RunOptions)
    number: int = 1
    threads: int | None = None
    rounds: int = 3

    @property
    def dtype(self) -> np.dtype[Any]:
        """In which precision kernels are evaluated for all rows: by the cost of all rounds, so the same in each."""
        n, d = self.rows.n_rows, self.rows.n_columns
        return product_dtype(self.rows.dtype, n * self.count * (self.kernel.flops_per_entry(d) + 2.0 * self.count))

    @property
    def precision(self) -> float:
        """eps of :attr:`dtype`."""
        return float(np.finfo(self.dtype).eps)


@dataclass(frozen=True)
class Landmarks:
    """The rows that stand for all.

    Attributes
    ----------
    rows : ndarray of shape (m, d), in the working dtype of X
    indices : ndarray of shape (m,), int64, or None
        Their row numbers, in the order in which they were chosen; None for centres, which are no rows.
    passes : float
        Reads of X.
    evaluations : int
        Kernel evaluations spent, those of k(x, x) included.
    method : str
    requested : int
        How many were asked for.
    trace : float or None
        ``sum_i k(x_i, x_i)`` over all rows, where it was computed.
    residual_trace : float or None
        ``trace(K - B B')`` before the last round's landmarks joined: at least that of all landmarks.
    """

    rows: NDArray[np.floating]
    indices: NDArray[np.int64] | None
    passes: float
    evaluations: int
    method: str
    requested: int
    trace: float | None = None
    residual_trace: float | None = None

    @property
    def short(self) -> bool:
        """Whether there are fewer than requested: no other row has any weight, so more would add nothing."""
        return len(self.rows) < self.requested


def draw_rows(
    request: LandmarkRequest, weight: RowWeight, count: int, *, stream: str = STREAM, turn: int = 0
) -> BestRows:
    """Draw up to ``count`` rows with probability proportional to ``weight``, without replacement: one pass over X.

    Parameters
    ----------
    stream : str
        Names the random numbers; the same stream and proportional weights draw the same rows.
    turn : int
        Which pass of this choice it is, from 0.

    Raises
    ------
    ValueError
        Where a weight is negative or not finite, with its row; where missing values leave fewer rows than landmarks.
    """
    d = request.rows.n_columns
    template = BestRows(d, count, weight, request.seed, stream, request.dtype.itemsize)
    drawn: BestRows = fold(  # one pass over X
        request.rows, {"landmarks": template}, _take_drawn, name="landmarks", number=request.number + turn,
        options=request.options, shift=np.zeros(d), dtype=request.dtype,
    )  # fmt: skip
    if drawn.count < request.count:
        raise ValueError(
            f"{request.count} landmarks were asked for, and {drawn.count} of {request.rows.n_rows} rows are free of "
            "missing values. At most as many landmarks as rows were expected. Ask for fewer, or repair the data."
        )
    return drawn


def rows_of(drawn: BestRows, request: LandmarkRequest) -> NDArray[np.floating]:
    """Return the rows that were drawn (m, d) in the working dtype of X, which holds them exactly."""
    if drawn.rows is None:
        return np.zeros((0, request.rows.n_columns), working_dtype(request.rows.dtype))
    return drawn.rows.astype(working_dtype(request.rows.dtype), copy=False)


def _take_drawn(state: PassState) -> BestRows:
    part: Any = state.parts["landmarks"]
    drawn: BestRows = part
    return drawn


def reject_indefinite(kernel: Kernel, method: str) -> None:
    """Refuse a kernel that is not positive semi-definite where a method needs one.

    Raises
    ------
    ValueError
    """
    if not kernel.positive_semidefinite:
        raise ValueError(
            f"{kernel} is not positive semi-definite: what landmarks leave of k(x, x) can be negative, and is no "
            f'probability. sampling="{method}" needs a positive semi-definite kernel. Use sampling="uniform".'
        )
