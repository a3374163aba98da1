"""Principal axes of a few rows by their dot matrix: what a sample of the rows says before all of them are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import blas_threads, symmetric_rank_update
from bigpca.solvers.eigh import numerical_rank, top_eigenpairs

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
STRIP = 4096  # columns centred at a time: no second copy of the rows


@dataclass(frozen=True)
class SampleAxes:
    """What a sample of rows says about all of them.

    Attributes
    ----------
    count : int
        Rows, m.
    mean, squares : ndarray of shape (d,)
        Column means, and sums of squared deviations from them.
    variances : ndarray of shape (j,)
        Eigenvalues of the sample's covariance (divided by m - 1), descending; j <= min(k, rank).
    axes : ndarray of shape (d, j)
        Its eigenvectors, orthonormal columns to the rows' precision.
    """

    count: int
    mean: Vector
    squares: Vector
    variances: Vector
    axes: Matrix


def leading_axes(
    pieces: Sequence[NDArray[Any]], k: int, *, center: bool = True, scale: bool = False, threads: int | None = None
) -> SampleAxes:
    """Compute the leading principal axes of m rows by their m x m dot matrix (tutorial, algorithm 2; dual PCA).

    Costs ``m^2 d`` flops; memory beside the rows: two m x m matrices, m x 4,096 numbers and the axes.

    Parameters
    ----------
    pieces : arrays of shape (m_i, d), float32 or float64
        The rows; they are not changed.
    k : int
        How many axes at most.
    center, scale : bool
        Subtract the mean; divide by the sample's standard deviations (1 where a column is constant in the sample).

    Examples
    --------
    >>> found = leading_axes([np.array([[0.0, 1], [2, 1]]), np.array([[4.0, 1]])], 2)
    >>> found.variances.round(12).tolist(), np.abs(found.axes).round(12).tolist()
    ([4.0], [[1.0], [0.0]])
    """
    m, d = sum(len(p) for p in pieces), pieces[0].shape[1]
    mean, squares = np.zeros(d), np.zeros(d)
    G = np.zeros((m, m))
    with blas_threads(threads):
        for columns, rows in _strips(pieces):
            about = rows.astype(np.float64)
            mean[columns] = about.mean(axis=0)
            about -= mean[columns]
            squares[columns] = np.einsum("ij,ij->j", about, about)
            values = _scaled(rows, mean[columns], squares[columns], center, scale)
            product = np.zeros((m, m), values.dtype)
            symmetric_rank_update(values.T, product)
            G += product
    eigenvalues, V = top_eigenpairs(G, min(k, m), threads=threads)  # rows of V: (k, m)
    rank = min(numerical_rank(eigenvalues, m), int(np.count_nonzero(eigenvalues > 1e-6 * eigenvalues[0])))
    axes = np.empty((d, rank))
    weights = (V[:rank] / np.sqrt(eigenvalues[:rank, None])).T  # (m, j)
    with blas_threads(threads):
        for columns, rows in _strips(pieces):
            values = _scaled(rows, mean[columns], squares[columns], center, scale)
            axes[columns] = values.T @ weights.astype(values.dtype)
    return SampleAxes(m, mean, squares, eigenvalues[:rank] / max(1, m - 1), axes)


def _strips(pieces: Sequence[NDArray[Any]]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield columns and a new array of all rows in them."""
    for j in range(0, pieces[0].shape[1], STRIP):
        columns = slice(j, min(j + STRIP, pieces[0].shape[1]))
        yield columns, np.concatenate([p[:, columns] for p in pieces])


def _scaled(rows: NDArray[Any], mean: Vector, squares: Vector, center: bool, scale: bool) -> NDArray[Any]:
    """Centre and scale new rows in place, in their own precision."""
    if center:
        rows -= mean.astype(rows.dtype)
    if scale:
        deviations = np.sqrt(squares / len(rows))
        deviations[deviations <= 1e-7 * np.abs(mean)] = 1.0
        deviations[deviations == 0] = 1.0
        rows /= deviations.astype(rows.dtype)
    return rows


def axes_bytes(m: int, d: int, k: int, itemsize: int) -> int:
    """Peak bytes of :func:`leading_axes` beside its rows."""
    return 3 * 8 * m * m + m * min(STRIP, d) * (2 * itemsize + 8) + 8 * d * (k + 2)
