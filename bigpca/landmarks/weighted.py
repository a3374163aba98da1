"""Landmarks drawn with weights that are known from the rows alone, or from one sweep over the kernel matrix."""

from __future__ import annotations

import numpy as np

from bigpca.landmarks.base import LandmarkRequest, Landmarks, draw_pass, draw_rows, rows_of
from bigpca.operators.kernel import kernel_row_squares, squares_pass
from bigpca.passes.accumulators.drawn_rows import BestRows
from bigpca.passes.accumulators.row_weights import Diagonal, Given, Ones
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.sweeps import SweepPlan


def uniform(request: LandmarkRequest) -> Landmarks:
    """Draw every row with the same probability, without replacement, in one read without kernel evaluations."""
    return _landmarks(draw_rows(request, *uniform_passes(request), Ones(), request.count), request)


def uniform_passes(request: LandmarkRequest) -> tuple[PassPlan]:
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


def diagonal_passes(request: LandmarkRequest) -> tuple[PassPlan]:
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
    drawn = draw_rows(request, draw, Given(weights), request.count)
    reject_zero(drawn.weight_sum, f"all {drawn.count} columns of the matrix of {request.kernel}")
    return _landmarks(drawn, request)


def column_norm_passes(request: LandmarkRequest) -> tuple[SweepPlan, PassPlan]:
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
