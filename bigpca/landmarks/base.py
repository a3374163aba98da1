"""What a fit by landmarks asks for and gets, the pass by which samplings draw rows, and the simplest choices.

Landmarks that the caller chose, and landmarks drawn with weights that are known from the rows alone or from one sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bigpca import csr
from bigpca.arrays import Array, DType, Integers, Vector, unmasked
from bigpca.data.checks import row_width
from bigpca.data.containers import table_rows
from bigpca.data.label_files import whole
from bigpca.data.sparse import as_csr, is_sparse
from bigpca.kernels.base import Kernel
from bigpca.operators.kernel import kernel_row_squares, squares_pass
from bigpca.passes.accumulators.kept_rows import RowsAt
from bigpca.passes.accumulators.landmark_moments import TILE_BYTES, compared_bytes, entries_work, tile_rows
from bigpca.passes.accumulators.row_weights import BestRows, Diagonal, GivenWeight, Ones, Residual, RowWeight
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import fold, row_pass
from bigpca.passes.reading.blocks import product_dtype
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.reading.row_maps import map_run
from bigpca.passes.rows import Rows
from bigpca.planning import LOOPS, PassCost, Work

STREAM = "landmarks"


@dataclass(frozen=True)
class LandmarkRequest:
    """A request for landmarks.

    Attributes
    ----------
    rows : Rows
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
    """

    rows: Rows
    kernel: Kernel
    count: int
    seed: int = 0
    shift: Vector | None = None
    run: Run = field(default_factory=Run)
    threads: int | None = None

    @property
    def dtype(self) -> DType:
        """The precision of kernel evaluations for all rows; chosen by the cost of all reads, so the same in each."""
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
    indices: Integers | None
    trace: float | None = None


def draw_pass(request: LandmarkRequest, count: int, *, name: str = STREAM, compared: Sequence[int] = ()) -> PassCost:
    """Declare draws of up to ``count`` rows, each compared with so many in the first draw, the second and so on."""
    rows, m, d = request.rows, request.count, request.rows.n_columns
    template = BestRows(d, count, Ones(), request.seed, name, request.dtype.itemsize)
    n, draws, itemsize = float(rows.n_rows), max(1, len(compared)), request.dtype.itemsize
    form, working, tile = (
        rows.prices.block(itemsize=itemsize)[0],
        0,
        tile_rows(request.kernel.prepared_bytes(d, itemsize)),
    )
    each = entries_work(request.kernel, form, sum(compared) / draws)
    each += Work(0, 2.0 * m * sum(compared) / draws)
    cost = row_pass(rows, name, [template], work=n * each.flops, dtype=request.dtype)
    if max(compared, default=0) > 1:
        landmarks, T = np.broadcast_to(np.float32(0), (m, d)), np.broadcast_to(0.0, (m, m))
        weight = Residual(request.kernel, landmarks, np.zeros(m, np.int64), T, 0.0)
        tile = min(cost.block_rows, weight.tile_rows(d, itemsize, cost.device if cost.there else None))
        working = weight.working_bytes(d, itemsize) + 2 * m * d * itemsize  # and the landmarks, once more as they join
        working += 2 * TILE_BYTES + csr.product_bytes(form, m) if form.sparse else 0  # rows and products of a tile
    # In each group rows are drawn once, and the landmarks prepared
    once = LOOPS.drawn_byte * cost.state_bytes
    once += LOOPS.kernel_byte * request.kernel.prepared_bytes(d, itemsize) * sum(compared) / draws
    if compared and cost.there and not request.kernel.for_devices:
        cost = replace(cost, device=None, there=False, device_bytes=0)
    elif compared and cost.there:
        cost = replace(cost, device_bytes=cost.device_bytes + compared_bytes(tile, d, itemsize, max(compared)))
    return replace(
        cost,
        peak_bytes=cost.peak_bytes + working,
        evaluations=n * sum(compared) / draws,
        flops=n * each.flops,
        products=n * each.products,
        loops=cost.loops + n * each.loops + len(cost.layout.groups) * once,
    )


def draw_rows(
    request: LandmarkRequest, cost: PassCost, weight: RowWeight, count: int, *, stream: str = STREAM
) -> BestRows:
    """Draw up to ``count`` rows with probability proportional to ``weight``, without replacement, in one read.

    Parameters
    ----------
    cost : PassCost
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


def landmark_values(landmarks: Any) -> Array:
    """Return the caller's landmarks as an array: row numbers (m,) or rows (m, d); masked entries become NaN.

    Dimensions after the first are flattened, like those of X; sparse rows are made dense, as landmarks are held.

    Raises
    ------
    TypeError, ValueError
        For containers that cannot be read, for row numbers that are not integers, and for other dimensions.
    """
    if is_sparse(landmarks):
        landmarks = as_csr(landmarks).toarray()
    landmarks = table_rows(whole(landmarks, "sampling", "landmark", "Row numbers (m,) or rows (m, d)"), "sampling")
    values = unmasked(landmarks)
    if values.dtype.kind not in "iuf" or (values.ndim == 1 and values.dtype.kind == "f"):
        raise TypeError(
            f"sampling has dtype {values.dtype} and shape {values.shape}; row numbers, integers (m,), or rows, numbers "
            "(m, d), were expected. Convert it."
        )
    if not values.ndim:
        raise ValueError("sampling has no dimension; (m,) for row numbers or (m, d) for rows was expected. Reshape it.")
    return values.reshape(len(values), row_width(values.shape)) if values.ndim > 2 else values


def given(landmarks: Array, request: LandmarkRequest) -> Landmarks:
    """Return the rows with given numbers (m,), read once and in the given order, or given rows (m, d), mapped as those
    of X are.

    Raises
    ------
    ValueError
        If there are not m of them; if a row number is out of range or repeated; if rows have a different number of
        columns or are not finite.
    """
    if len(landmarks) != request.count:
        raise ValueError(
            f"{len(landmarks)} landmarks were given, but n_landmarks = {request.count}. Give "
            f"n_landmarks={len(landmarks)}."
        )
    return _given_rows(landmarks, request) if landmarks.ndim == 2 else _given_numbers(landmarks, request)


def _given_rows(rows: Array, request: LandmarkRequest) -> Landmarks:
    d = request.rows.n_columns
    if rows.shape[1] != d:
        raise ValueError(
            f"the given landmarks have {rows.shape[1]} columns, but X has {d}. Give rows with the columns of X."
        )
    if not np.isfinite(rows).all():
        i, j = np.argwhere(~np.isfinite(rows))[0]
        raise ValueError(
            f"landmark {i} has {rows[i, j]} in column {j}, which is not finite. Repair it, or give another row."
        )
    converted = rows.astype(working_dtype(request.rows.dtype))
    return Landmarks(map_run(request.rows.steps, converted, 0, "the given landmarks"), None)


def _given_numbers(numbers: Array, request: LandmarkRequest) -> Landmarks:
    n = request.rows.n_rows
    outside = np.flatnonzero((numbers < 0) | (numbers >= n))
    if len(outside):
        raise ValueError(
            f"landmark {outside[0]} is row {numbers[outside[0]]}, but X has rows 0 to {n - 1}. Correct it."
        )
    values, counts = np.unique(numbers, return_counts=True)
    if (counts > 1).any():
        twice = values[counts > 1][0]
        raise ValueError(f"row {twice} is given as a landmark more than once. Remove the duplicates.")
    wanted, d = numbers.astype(np.int64), request.rows.n_columns
    (cost,) = given_passes(numbers, request)
    template = RowsAt(d, np.sort(wanted), cost.dtype.itemsize)
    found = fold(request.run, cost, request.rows, template, shift=np.zeros(d)).state  # one pass over X
    missing = np.setdiff1d(wanted, found.indices)
    if len(missing) or found.rows is None:
        raise ValueError(
            f"row {missing[0]} was given as a landmark, but it is omitted because of missing values, or has weight "
            f"0. Choose another, or repair the data."
        )
    # The read finds rows in ascending order; landmarks are in the order that was given.
    return Landmarks(found.rows[np.searchsorted(found.indices, wanted)], wanted)


def given_passes(landmarks: Array, request: LandmarkRequest) -> tuple[PassCost, ...]:
    """Declare the pass of :func:`given`; none if rows were given."""
    if landmarks.ndim != 1:
        return ()
    rows, dtype = request.rows, working_dtype(request.rows.dtype)
    template = RowsAt(rows.n_columns, np.broadcast_to(np.int64(0), (len(landmarks),)), dtype.itemsize)
    return (row_pass(rows, "landmarks", [template], dtype=dtype),)


def uniform(request: LandmarkRequest) -> Landmarks:
    """Draw every row with the same probability, without replacement, in one read without kernel evaluations."""
    return _landmarks(draw_rows(request, *uniform_passes(request), Ones(), request.count), request)


def uniform_passes(request: LandmarkRequest) -> tuple[PassCost]:
    """Declare the pass of :func:`uniform`."""
    return (draw_pass(request, request.count),)


def diagonal(request: LandmarkRequest) -> Landmarks:
    """Draw rows with ``p_i = k(x_i, x_i)^2 / sum_j k(x_j, x_j)^2``, without replacement: one read, n evaluations.

    For RBF, Laplacian, cosine and normalised kernels, whose diagonal is constant, this is uniform sampling, and draws
    the same rows for the same seed. For polynomial kernels it is far better.

    Raises
    ------
    ValueError
        If all k(x, x) are 0.

    Notes
    -----
    Tutorial, eq. 64. NOTE: its denominator is printed as another sum, with which the p_i do not add up to 1.
    """
    drawn = draw_rows(request, *diagonal_passes(request), Diagonal(request.kernel, 2, request.shift), request.count)
    reject_zero(drawn.weight_sum, f"all {drawn.count} values k(x, x) of {request.kernel}")
    return _landmarks(drawn, request, trace=drawn.diagonal_sum)


def diagonal_passes(request: LandmarkRequest) -> tuple[PassCost]:
    """Declare the pass of :func:`diagonal`."""
    return (draw_pass(request, request.count, compared=(1,)),)


def column_norm(request: LandmarkRequest) -> Landmarks:
    """Draw rows with ``p_j ~ sum_i k(x_i, x_j)^2``, without replacement.

    One sweep over the kernel matrix, and one read. The sweep costs n^2 / 2 kernel evaluations, because K is symmetric.
    Estimating the sums from a few columns is not reliable.

    Raises
    ------
    ValueError
        If all entries of K are 0.

    Notes
    -----
    Tutorial, eq. 65.
    """
    sweep, draw = column_norm_passes(request)
    shift = np.zeros(request.rows.n_columns) if request.shift is None else request.shift
    weights = kernel_row_squares(request.run, sweep, request.rows, request.kernel, shift=shift)
    drawn = draw_rows(request, draw, GivenWeight(weights), request.count)
    reject_zero(drawn.weight_sum, f"all {drawn.count} columns of the matrix of {request.kernel}")
    return _landmarks(drawn, request)


def column_norm_passes(request: LandmarkRequest) -> tuple[PassCost, PassCost]:
    """Declare the sweep and the pass of :func:`column_norm`."""
    return squares_pass(request.rows, request.kernel), draw_pass(request, request.count)


def reject_zero(weight_sum: float, what: str) -> None:
    """Raise if no row has a weight.

    Raises
    ------
    ValueError
    """
    if weight_sum == 0:
        raise ValueError(
            f"{what} are 0, or their squares are, so no row can be drawn. Check the data (are all rows zero?) and the "
            f"kernel."
        )


def _landmarks(drawn: BestRows, request: LandmarkRequest, trace: float | None = None) -> Landmarks:
    return Landmarks(rows_of(drawn, request), drawn.indices, trace)
