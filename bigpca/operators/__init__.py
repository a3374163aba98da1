"""Symmetric matrices that are never formed and can only be multiplied by a thin block, in one read or sweep.

- ``covariance``  The covariance matrix (d, d) and the dot matrix (n, n) as operators: never formed, multiplied by a
  thin block in one read.
- ``kernel``  The centred kernel matrix as an operator: ``HKH`` (n, n), never formed, multiplied by a thin block in
  one sweep.

Here is what every operator promises, and what its products are: of blocks, and of the probes that bound eigenvalues.

A fit declares the products (``CovariancePasses``, ``dot_pass``, ``product_pass``) and makes an operator; a solver calls
``begin`` with its first block, then ``multiply``. Each call folds or sweeps the rows, with their view and row maps
(the dot matrix requires rows as they are stored), and returns the centred product. The first one also yields the
statistics of the matrix (mean, scale, trace) and the products of the probes for the certificates; ``refine``
switches to float64.
Sketches, Nyström approximations, Krylov iterations and certificates are written once, on ``multiply``. Rows with
weights are rejected, because the states of products do not accept them.

Add an operator: a subclass of :class:`~bigpca.operators.Operator`, and a test in ``tests/operators`` against NumPy
that counts reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bigpca.arrays import DType, Matrix

PROBES = 10


@dataclass(frozen=True)
class Probes:
    """Gaussian vectors and their products, independent of any basis, from which tighter bounds are computed.

    Attributes
    ----------
    vectors, products : ndarray of shape (N, r)
    """

    vectors: Matrix
    products: Matrix


@dataclass(frozen=True)
class Products:
    """A block that was multiplied, and its product: ``AB = A B``.

    Attributes
    ----------
    B, AB : ndarray of shape (N, l)
    """

    B: Matrix
    AB: Matrix


class Operator(ABC):
    """A symmetric matrix A (N, N) that can only be multiplied, by one read or sweep of X at a time.

    A solver calls :meth:`begin` once, with its first block, and then :meth:`multiply`. Both return products of A to
    ``precision``. When a solver needs more digits, :meth:`refine` makes later products those of float64, of the same A.

    Attributes
    ----------
    of_rows : bool
        Whether vectors have a number for each row of X, or for each column.
    omitted : int
        Rows of X that were omitted.
    other_reads : int
        Reads that are not multiplications of the solver: those of :meth:`begin`, and those after the last.
    sigma : float
        Multiple of I that was added to the matrix whose eigenvalues are wanted.
    trace, trace_error : float
        Trace of A, and a bound of its error.
    dtype : numpy.dtype
        Of the products.
    probes : Probes
    resolution : float
        Eigenvalues up to it are rounding of what is stored, and are not wanted; 0 where all are.
        All are known after :meth:`begin`.
    """

    of_rows: ClassVar[bool] = True
    omitted: int = 0
    # Kept apart from the solver's own products, so that max_passes limits all reads of a fit together.
    other_reads: int = 0
    # An indefinite A is made semi-definite by sigma I: Krylov spaces stay the same, and bounds of lambda + sigma hold.
    sigma: float = 0.0
    # Bounds of what a basis misses are differences from the trace, so the error of the trace widens all of them.
    trace: float = 0.0
    trace_error: float = 0.0
    resolution: float = 0.0
    dtype: DType
    probes: Probes

    @property
    @abstractmethod
    def size(self) -> int:
        """N."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows counted so far, and columns: both limit the number of components."""

    @property
    @abstractmethod
    def weight(self) -> float:
        """Sum of the weights of these rows, or their number."""

    @property
    def precision(self) -> float:
        """Rounding error of products, relative to the largest eigenvalue, or to |A|_F: eps of their precision."""
        return float(np.finfo(self.dtype).eps)

    @property
    def rounding(self) -> float:
        """Rounding error that bounds allow for, relative to |A|_F."""
        return self.precision

    @property
    def refinable(self) -> bool:
        """Whether products are computed in float32, and memory is planned for float64."""
        return self.dtype != np.float64

    def refine(self) -> None:
        """Multiply in float64 from now on, where float32 rows are exact; the next product computes the trace again."""
        self.dtype = np.dtype(np.float64)

    @abstractmethod
    def begin(self, V: Matrix, /) -> Products:
        """Multiply a first block (N, l), and the probes with it; the block returned may be another of the same span."""

    @abstractmethod
    def multiply(self, V: Matrix, /) -> Matrix:
        """Return ``A V`` (N, l)."""
