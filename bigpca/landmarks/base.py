"""The request for landmarks, the landmarks returned, and the pass by which all samplings draw rows."""

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
    """A request for landmarks.

    Attributes
    ----------
    rows : RowInput
    kernel : Kernel
        Resolved, so that nothing depends on d any more.
    count : int
        m, at most n.
    seed : int
    shift : ndarray of shape (d,) or None
        Subtracted by translation-invariant kernels; close to the mean of the rows.
    options : RunOptions
    number : int
        Number of the first pass, which names its checkpoint.
    threads : int or None
        BLAS threads of the m x m solves.
    rounds : int
        Rounds of pivoted Cholesky.
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
        """The precision of kernel evaluations for all rows; chosen by the cost of all rounds, so the same in each."""
        n, d = self.rows.n_rows, self.rows.n_columns
        return product_dtype(self.rows.dtype, n * self.count * (self.kernel.flops_per_entry(d) + 2.0 * self.count))

    @property
    def precision(self) -> float:
        """eps of :attr:`dtype`."""
        return float(np.finfo(self.dtype).eps)


@dataclass(frozen=True)
class Landmarks:
    """The chosen rows: fewer than requested if no other row has any weight.

    Attributes
    ----------
    rows : ndarray of shape (m, d), in the working dtype of X
    indices : ndarray of shape (m,), int64, or None
        Their row numbers, in the order in which they were chosen; None for rows that are not in X, such as centres.
    passes : float
        Reads of X.
    evaluations : int
        Kernel evaluations, including those of k(x, x).
    trace : float or None
        ``sum_i k(x_i, x_i)`` over all rows, if it was computed.
    """

    rows: NDArray[np.floating]
    indices: NDArray[np.int64] | None
    passes: float
    evaluations: int
    trace: float | None = None


def draw_rows(
    request: LandmarkRequest, weight: RowWeight, count: int, *, stream: str = STREAM, turn: int = 0
) -> BestRows:
    """Draw up to ``count`` rows with probability proportional to ``weight``, without replacement: one pass over X.

    Parameters
    ----------
    stream : str
        Name of the random stream; the same stream and proportional weights draw the same rows.
    turn : int
        Number of this pass within the sampling, from 0.

    Raises
    ------
    ValueError
        If a weight is negative or not finite (names its row), or missing values leave fewer rows than landmarks.
    """
    d = request.rows.n_columns
    template = BestRows(d, count, weight, request.seed, stream, request.dtype.itemsize)
    drawn: BestRows = fold(  # one pass over X
        request.rows, {"landmarks": template}, _take_drawn, name="landmarks", number=request.number + turn,
        options=request.options, shift=np.zeros(d), dtype=request.dtype,
    )  # fmt: skip
    if drawn.count < request.count:
        raise ValueError(
            f"{request.count} landmarks were requested, but only {drawn.count} of {request.rows.n_rows} rows are free "
            "of missing values. Request fewer, or repair the data."
        )
    return drawn


def rows_of(drawn: BestRows, request: LandmarkRequest) -> NDArray[np.floating]:
    """Return the drawn rows (m, d) in the working dtype of X, which represents them exactly."""
    if drawn.rows is None:
        return np.zeros((0, request.rows.n_columns), working_dtype(request.rows.dtype))
    return drawn.rows.astype(working_dtype(request.rows.dtype), copy=False)


def _take_drawn(state: PassState) -> BestRows:
    part: Any = state.parts["landmarks"]
    drawn: BestRows = part
    return drawn


def reject_indefinite(kernel: Kernel, method: str) -> None:
    """Reject a kernel that is not positive semi-definite, for methods that require one.

    Raises
    ------
    ValueError
    """
    if not kernel.positive_semidefinite:
        raise ValueError(
            f'{kernel} is not positive semi-definite, but sampling="{method}" requires a kernel that is: its residuals '
            'of k(x, x), which may be negative here, are used as probabilities. Use sampling="uniform".'
        )
