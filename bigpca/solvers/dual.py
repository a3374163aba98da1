"""Principal axes of a few rows by their dot matrix: the estimate from a sample, before all rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from bigpca.arrays import Array, Matrix, Vector
from bigpca.blas import blas_threads, symmetric_rank_update
from bigpca.csr import form_of
from bigpca.solvers.eigh import numerical_rank, top_eigenpairs
from bigpca.solvers.strips import PARTS, STRIP_WIDTH, Strip, each_strip, sum_strips

SUM_BYTES = 64 << 20  # of the sums of dot matrices that threads make beside each other


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
    pieces: Sequence[Array | csr_array], k: int, *, center: bool = True, scale: bool = False, threads: int | None = None
) -> SampleAxes:
    """Compute the leading principal axes of m rows by their m x m dot matrix (tutorial, algorithm 2; dual PCA).

    Costs ``m^2 d`` flops; memory beside the rows: a few m x m matrices, some strips of 1,024 columns and the axes.

    Parameters
    ----------
    pieces : arrays or CSR of shape (m_i, d), float32 or float64
        The rows; they are not changed. CSR is made dense in strips of columns.
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
    m, d, exponent = sum(p.shape[0] for p in pieces), pieces[0].shape[1], _exponent(pieces)
    mean, squares = np.zeros(d), np.zeros(d)

    def products(columns: Strip) -> Matrix:
        rows = _strip(pieces, columns, exponent)
        about = rows.astype(np.float64)
        # Means, squares and products come from one look at each strip.
        mean[columns] = about.mean(axis=0)
        about -= mean[columns]
        squares[columns] = np.einsum("ij,ij->j", about, about)
        del about  # before the product is made
        values = _scaled(rows, mean[columns], squares[columns], center, scale)
        product = np.zeros((m, m), values.dtype)
        # X X' is a sum over strips of columns: no copy of all centred rows is made.
        symmetric_rank_update(values.T, product)
        return product.astype(np.float64, copy=False)

    with blas_threads(threads, 2 / 3 * m**3):  # those of few eigenpairs
        G = sum_strips(products, d, m * m, _parts(m))
        eigenvalues, V = top_eigenpairs(G, min(k, m))  # rows of V: (k, m)
    # Smaller eigenvalues of products in float32 are rounding, and their axes would be noise.
    rank = min(numerical_rank(eigenvalues, m), int(np.count_nonzero(eigenvalues > 1e-6 * eigenvalues[0])))
    axes = np.empty((rank, d))
    # With X X' = V s^2 V', the axes of X'X are X'V / s.
    weights = V[:rank] / np.sqrt(eigenvalues[:rank, None])  # (j, m)

    def multiply(columns: Strip) -> None:
        values = _scaled(_strip(pieces, columns, exponent), mean[columns], squares[columns], center, scale)
        axes[:, columns] = weights.astype(values.dtype) @ values

    with blas_threads(threads):
        each_strip(multiply, d, rank * m)
    variances = eigenvalues[:rank] / max(1, m - 1)
    with np.errstate(over="ignore"):
        mean, squares = np.ldexp(mean, exponent), np.ldexp(squares, 2 * exponent)
        return SampleAxes(m, mean, squares, variances if scale else np.ldexp(variances, 2 * exponent), axes.T)


def _exponent(pieces: Sequence[Array | csr_array]) -> int:
    """Return the binary exponent of the largest value; division by that power of two keeps squares in range."""
    values = [form_of(p).stored(p) for p in pieces]
    return int(np.frexp(max((max(float(v.max()), -float(v.min())) for v in values if v.size), default=0.0))[1])


def _strip(pieces: Sequence[Array | csr_array], columns: Strip, exponent: int) -> Array:
    rows = np.concatenate([form_of(p).dense(p[:, columns]) for p in pieces])
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


def _parts(m: int) -> int:
    """Return how many sums of m x m numbers are made beside each other."""
    return max(1, min(PARTS, SUM_BYTES // (8 * m * m)))


def axes_bytes(m: int, d: int, k: int, itemsize: int) -> int:
    """Peak bytes of :func:`leading_axes` beside its rows."""
    parts = min(_parts(m), -(-d // STRIP_WIDTH))
    return (1 + 2 * parts) * 8 * m * m + parts * m * min(STRIP_WIDTH, d) * (2 * itemsize + 8) + 8 * d * (k + 2)


def axes_flops(m: int, d: int, k: int) -> float:
    """Floating-point operations of :func:`leading_axes`; its eigenproblem counts by its measured time."""
    return float(m) ** 2 * d + 2.0 * m * d * k + 3.0 * float(m) ** 3
