"""The request for landmarks, the landmarks returned, and the pass by which all samplings draw rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bigpca import csr
from bigpca.arrays import Array, DType
from bigpca.costs import ONCE, Times, Work
from bigpca.kernels.base import Kernel
from bigpca.passes.accumulators.drawn_rows import BestRows
from bigpca.passes.accumulators.landmark_blocks import PREPARED_SECONDS, TILE_BYTES, entries_work
from bigpca.passes.accumulators.row_weights import Ones, Residual, RowWeight
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import fold, row_pass
from bigpca.passes.reading.blocks import product_dtype
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.rows import RowInput

Vector = NDArray[np.float64]
STREAM = "landmarks"
DRAWN_SECONDS = 1e-9  # to insert drawn rows among the best ones, and to merge them: of one core, per byte


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
        Subtracted by translation-invariant kernels; near the mean of the rows.
    run : Run
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
    run: Run = field(default_factory=Run)
    threads: int | None = None
    rounds: int = 3

    @property
    def dtype(self) -> DType:
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
        Their row numbers, in the order in which they were chosen; None for cluster centres, which are not rows.
    trace : float or None
        ``sum_i k(x_i, x_i)`` over all rows, if it was computed.
    """

    rows: Array
    indices: NDArray[np.int64] | None
    trace: float | None = None


def draw_pass(
    request: LandmarkRequest, count: int, *, name: str = STREAM, times: Times = ONCE, compared: Sequence[int] = ()
) -> PassPlan:
    """Declare draws of up to ``count`` rows, each compared with so many in the first draw, the second and so on."""
    rows, m, d = request.rows, request.count, request.rows.n_columns
    template = BestRows(d, count, Ones(), request.seed, name, request.dtype.itemsize)
    cost = row_pass(rows, name, [template], cut_bytes=template.state_bytes, work=0.0, dtype=request.dtype, times=times)
    n, draws, itemsize = float(rows.n_rows), max(1, len(compared)), request.dtype.itemsize
    form, working = rows.mapped_form(itemsize=itemsize), 0
    if max(compared, default=0) > 1:
        landmarks, T = np.broadcast_to(np.float32(0), (m, d)), np.broadcast_to(0.0, (m, m))
        weight = Residual(request.kernel, landmarks, np.zeros(m, np.int64), T, 0.0)
        working = weight.working_bytes(d, itemsize) + 2 * m * d * itemsize  # and the landmarks, once more as they join
        working += 2 * TILE_BYTES + csr.product_bytes(form, m) if form.sparse else 0  # rows and products of a tile
    each = entries_work(request.kernel, form, sum(compared) / draws)
    each += Work(0, 2.0 * m * sum(compared) / draws)
    # In each group rows are drawn once, and the landmarks prepared
    once = DRAWN_SECONDS * cost.state_bytes
    once += PREPARED_SECONDS * request.kernel.prepared_bytes(d, itemsize) * sum(compared) / draws
    return replace(
        cost, peak_bytes=cost.peak_bytes + working, evaluations=n * sum(compared) / draws, flops=n * each.flops,
        products=n * each.products, loops=cost.loops + n * each.loops + len(cost.layout.groups) * once,
    )  # fmt: skip


def draw_rows(
    request: LandmarkRequest, cost: PassPlan, weight: RowWeight, count: int, *, stream: str = STREAM
) -> BestRows:
    """Draw up to ``count`` rows with probability proportional to ``weight``, without replacement, in one read.

    Parameters
    ----------
    cost : PassPlan
        From :func:`draw_pass`.
    stream : str
        Names the random numbers; the same stream and proportional weights draw the same rows.

    Raises
    ------
    ValueError
        If a weight is negative or not finite (names its row), or missing values leave fewer rows than landmarks.
    """
    d = request.rows.n_columns
    template = BestRows(d, count, weight, request.seed, stream, request.dtype.itemsize)
    drawn = fold(request.run, cost, request.rows, template, shift=np.zeros(d)).state  # one pass over X
    request.run.add_evaluations(drawn.evaluations)
    if drawn.count < request.count:
        raise ValueError(
            f"{request.count} landmarks were requested, but only {drawn.count} of {request.rows.n_rows} rows are free "
            "of missing values. Request fewer, or repair the data."
        )
    return drawn


def rows_of(drawn: BestRows, request: LandmarkRequest) -> Array:
    """Return the drawn rows (m, d) in the working dtype of X, which represents them exactly."""
    if drawn.rows is None:
        return np.zeros((0, request.rows.n_columns), working_dtype(request.rows.dtype))
    return drawn.rows.astype(working_dtype(request.rows.dtype), copy=False)


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
