"""Principal axes of a few rows by their dot matrix: the estimate from a sample, before all rows are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array
from bigpca.blas import blas_threads, symmetric_rank_update
from bigpca.solvers.eigh import numerical_rank, top_eigenpairs

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
STRIP = 4096  # columns centred at a time: no second copy of the rows


@dataclass(frozen=True)
class SampleAxes:
    """Estimates for all rows from a sample of them.

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
    pieces: Sequence[Array], k: int, *, center: bool = True, scale: bool = False, threads: int | None = None
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
    m, d, exponent = sum(len(p) for p in pieces), pieces[0].shape[1], _exponent(pieces)
    mean, squares = np.zeros(d), np.zeros(d)
    G = np.zeros((m, m))
    with blas_threads(threads):
        for columns, rows in _strips(pieces, exponent):
            about = rows.astype(np.float64)
            mean[columns] = about.mean(axis=0)
            about -= mean[columns]
            squares[columns] = np.einsum("ij,ij->j", about, about)
            values = _scaled(rows, mean[columns], squares[columns], center, scale)
            product = np.zeros((m, m), values.dtype)
            symmetric_rank_update(values.T, product)
            G += product
            del about, rows, values  # before the next strip is made
    eigenvalues, V = top_eigenpairs(G, min(k, m), threads=threads)  # rows of V: (k, m)
    rank = min(numerical_rank(eigenvalues, m), int(np.count_nonzero(eigenvalues > 1e-6 * eigenvalues[0])))
    axes = np.empty((d, rank))
    weights = (V[:rank] / np.sqrt(eigenvalues[:rank, None])).T  # (m, j)
    with blas_threads(threads):
        for columns, rows in _strips(pieces, exponent):
            values = _scaled(rows, mean[columns], squares[columns], center, scale)
            axes[columns] = values.T @ weights.astype(values.dtype)
            del rows, values
    variances = eigenvalues[:rank] / max(1, m - 1)
    with np.errstate(over="ignore"):
        mean, squares = np.ldexp(mean, exponent), np.ldexp(squares, 2 * exponent)
        return SampleAxes(m, mean, squares, variances if scale else np.ldexp(variances, 2 * exponent), axes)


def _exponent(pieces: Sequence[Array]) -> int:
    """Return the binary exponent of the largest value; division by that power of two keeps squares in range."""
    return int(np.frexp(max(max(float(p.max()), -float(p.min())) for p in pieces if p.size))[1])


def _strips(pieces: Sequence[Array], exponent: int) -> Iterator[tuple[slice, Array]]:
    """Yield columns and a new array of all rows in them, divided by a power of two."""
    for j in range(0, pieces[0].shape[1], STRIP):
        columns = slice(j, min(j + STRIP, pieces[0].shape[1]))
        yield columns, _strip(pieces, columns, exponent)


def _strip(pieces: Sequence[Array], columns: slice, exponent: int) -> Array:
    rows = np.concatenate([p[:, columns] for p in pieces])
    strip: Array = np.ldexp(rows, -exponent, out=rows)
    return strip


def _scaled(rows: Array, mean: Vector, squares: Vector, center: bool, scale: bool) -> Array:
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
