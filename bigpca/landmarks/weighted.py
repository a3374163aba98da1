"""Landmarks drawn with weights that are known from the rows alone, or from one sweep over the kernel matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bigpca.landmarks.base import LandmarkRequest, Landmarks, draw_rows, rows_of
from bigpca.passes.accumulators.drawn_rows import BestRows
from bigpca.passes.accumulators.row_weights import Diagonal, Given, Ones

Vector = NDArray[np.float64]
RowSquares = Callable[[], tuple[Vector, int, float]]


def uniform(request: LandmarkRequest) -> Landmarks:
    """Draw every row with the same probability, without replacement. One pass, no kernel evaluation."""
    return _landmarks(draw_rows(request, Ones(), request.count), request)


def diagonal(request: LandmarkRequest) -> Landmarks:
    """Draw rows with ``p_i = k(x_i, x_i)^2 / sum_j k(x_j, x_j)^2``, without replacement. One pass, n evaluations.

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
    drawn = draw_rows(request, Diagonal(request.kernel, 2, request.shift), request.count)
    reject_zero(drawn.weight_sum, f"all {drawn.count} values k(x, x) of {request.kernel}")
    return _landmarks(drawn, request, trace=drawn.diagonal_sum)


def column_norm(request: LandmarkRequest, row_squares: RowSquares | None) -> Landmarks:
    """Draw rows with ``p_j ~ sum_i k(x_i, x_j)^2``, without replacement: one sweep over the kernel matrix and one pass.

    The sweep costs n^2 kernel evaluations, or half of that if symmetry is used. Estimating the sums from a few columns
    is not accurate enough.

    Parameters
    ----------
    row_squares : callable
        Performs the sweep; returns ``sum_j k(x_i, x_j)^2`` of every row (n,), float64, and the numbers of kernel
        evaluations and reads of X.

    Raises
    ------
    ValueError
        If it is not given, or returns another shape or only zeros.

    Notes
    -----
    Tutorial, eq. 65.
    """
    if row_squares is None:
        raise ValueError(
            'sampling="column-norm" requires row_squares, a function that returns the row sums of the squared kernel '
            'matrix from one sweep over it. Use sampling="diagonal" or "rpcholesky", which need no sweep.'
        )
    weights, evaluations, reads = row_squares()
    if weights.shape != (request.rows.n_rows,):
        raise ValueError(
            f"row_squares returned shape {weights.shape}; one sum for each of {request.rows.n_rows} rows was expected. "
            f"Return an array of shape ({request.rows.n_rows},)."
        )
    drawn = draw_rows(request, Given(weights), request.count)
    reject_zero(drawn.weight_sum, f"all {drawn.count} columns of the matrix of {request.kernel}")
    return replace(_landmarks(drawn, request), passes=1.0 + reads, evaluations=evaluations)


def reject_zero(weight_sum: float, what: str) -> None:
    """Raise if no row has a weight.

    Raises
    ------
    ValueError
    """
    if weight_sum == 0:
        raise ValueError(
            f"{what} are 0, so no row can be drawn. At least one row of positive weight was expected. Check "
            "the data (are all rows zero?) and the kernel."
        )


def _landmarks(drawn: BestRows, request: LandmarkRequest, trace: float | None = None) -> Landmarks:
    return Landmarks(rows_of(drawn, request), drawn.indices, 1.0, drawn.evaluations, trace)
