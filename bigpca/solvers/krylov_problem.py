"""What a block Krylov iteration is given and returns, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bigpca.solvers.basis_approximation import BasisApproximation
from bigpca.solvers.strips import PARTS, STRIP

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


class Multiplied(Protocol):
    """A symmetric positive semi-definite A of size N, given by its products, whose precision may be raised."""

    @property
    def trace(self) -> float:
        """Trace of A, with the rounding of the products."""

    @property
    def precision(self) -> float:
        """Relative rounding of the products: 1.2e-7 for float32, 2.2e-16 for float64."""

    def multiply(self, V: Matrix, /) -> Matrix:
        """Return ``A V`` (N, l)."""

    @property
    def refinable(self) -> bool:
        """Whether :meth:`refine` would make products more precise."""

    def refine(self) -> None:
        """Make later products, and the trace, more precise."""


@dataclass(frozen=True)
class Known:
    """The start of the iteration: a first block with its product, and probes.

    The basis holds copies, so a caller that drops these arrays frees their memory.

    Attributes
    ----------
    B, AB : ndarray of shape (N, c); any B with its product A B.
    probes : ndarray of shape (N, r); Gaussian columns with a covariance of at least I, on which no column of B depends.
    probe_products : ndarray of shape (N, r)
    """

    B: Matrix
    AB: Matrix
    probes: Matrix
    probe_products: Matrix


@dataclass(frozen=True)
class KrylovOptions:
    """Limits and tolerance of :func:`~bigpca.solvers.krylov.block_krylov`.

    Attributes
    ----------
    tol : float in (0, 1); relative error of each wanted eigenvalue.
    max_multiplications : int >= 0; each reads all data once.
    max_columns : int; the basis is restarted rather than exceed it. At least twice the wanted
        eigenpairs, or the rank of A.
    block : int; columns per multiplication, beside the probes.
    rank : int or None; the rank of A is at most this. None for N.
    shift : A is this multiple of I more than the matrix whose eigenvalues are wanted, and to which tol is relative.
    seed : of the random columns.
    threads : BLAS threads between multiplications; None leaves the process's setting.
    """

    tol: float
    max_multiplications: int
    max_columns: int
    block: int
    rank: int | None = None
    shift: float = 0.0
    seed: int = 0
    threads: int | None = None


@dataclass(frozen=True)
class KrylovResult:
    """The k leading eigenpairs, and why the iteration stopped.

    Attributes
    ----------
    approximation : BasisApproximation
        From all stored products: ``values`` and ``vectors``, its trace and basis, and products with probes.
    ritz_values, residuals : ndarray of shape (k,); ``residuals[i] = |A u_i - ritz_values[i] u_i|`` of the Ritz vectors.
    stopped : {"tol", "unresolved", "multiplications", "stagnation"}
        The reason: tol is met; tol is met except by values below the precision of the products; max_multiplications is
        reached; multiplications in a row, three or as many as make up for a restart, in which neither a value nor the
        estimated error moved by more than rounding.
    largest_error : float; estimate of the largest relative error of a value, which is compared with tol.
    unresolved : int; how many of the last values lie below ``10 precision lambda_1 / tol``.
    norm_bound : float
        c_m: ``|A - A_hat|_2`` is at most this with probability 1 - 1e-3. Infinite where no probe was multiplied.
    multiplications : int; the products computed here.
    """

    approximation: BasisApproximation
    ritz_values: Vector
    residuals: Vector
    stopped: str
    largest_error: float
    unresolved: int
    norm_bound: float
    multiplications: int

    @property
    def converged(self) -> bool:
        return self.stopped == "tol"

    @property
    def values(self) -> Vector:
        """The k eigenvalues (k,): by Nyström, between the Ritz values and the true ones."""
        return self.approximation.values[: len(self.ritz_values)]

    @property
    def vectors(self) -> Matrix:
        """Orthonormal rows (k, N)."""
        return self.approximation.vectors

    @property
    def basis(self) -> Matrix:
        """The orthonormal columns (N, c) that were multiplied: the approximation is exact on them."""
        return self.approximation.basis


def krylov_bytes(N: int, columns: int, block: int, k: int, probes: int) -> int:
    """Peak bytes of :func:`~bigpca.solvers.krylov.block_krylov`, its result included.

    Basis and remainders, one block, and its product or the finish; strips and sums of several threads.

    Parameters
    ----------
    N : size of the matrix.
    columns : max_columns.
    block : columns per multiplication.
    k : eigenpairs wanted.
    probes : columns multiplied together with each block.

    Examples
    --------
    >>> f"{krylov_bytes(100_352, 300, 100, 50, 10) / 2**20:.0f} MiB"
    '821 MiB'
    """
    columns, block = min(columns, N), max(block, k)
    held = 16 * N * columns + 56 * N * probes + 160 * columns**2
    first = 16 * N * (min(2 * block, columns) + block + probes) - held  # what is known, and the copies of it
    sums = 8 * PARTS * (STRIP * (2 * columns + block) + columns**2)
    product = 16 * N * (block + probes) + 8 * N * block
    return held + max(first, product, 24 * N * k) + sums


def krylov_flops(N: int, block: int, k: int, products: int) -> float:
    """Floating-point operations of :func:`~bigpca.solvers.krylov.block_krylov` for so many products, beside them.

    Small eigenproblems are counted as 100 c^3, by their measured time.

    Examples
    --------
    >>> f"{krylov_flops(25_088, 100, 50, 3) / 1e9:.1f} Gflop"
    '34.8 Gflop'
    """
    bases = [min(block * i, N) for i in range(1, products + 1)]
    c = bases[-1]
    splits = sum(8.0 * b * block for b in bases)
    residuals = sum(2.0 * b * block + b * b for b in bases)
    orthogonal = 7.0 * block**2 * products + sum(4.0 * b * block for b in bases[:-1])
    finish = 4.0 * k * (c + block) + 4.0 * k * (2 * c + k)
    return N * (splits + residuals + orthogonal + finish) + 100.0 * c**3
