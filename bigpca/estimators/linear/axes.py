"""The axes of a model as a matrix: whether they are orthonormal, their duals, their numbers, a covariance of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import MemoryBudgetError, format_bytes
from bigpca.estimators.shared.inputs import Input

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


def orthonormality_error(components: Matrix) -> float:
    """Return the largest entry of ``|components components' - I|``."""
    k = len(components)
    return float(np.abs(components @ components.T - np.eye(k)).max()) if k else 0.0


def dual_axes(axes: Matrix) -> Matrix:
    """Return ``(C C')^+ C`` for axes C (k, d): it turns the scores ``X C'`` into least-squares coefficients."""
    return np.asarray(np.linalg.pinv(axes @ axes.T, hermitian=True) @ axes)


def component_numbers(given: Input, k: int) -> NDArray[np.int64]:
    """Return the numbers of components, of which there are k.

    Raises
    ------
    ValueError
        For other numbers than 0 to k - 1, and repeated ones.

    Examples
    --------
    >>> component_numbers(2, 3).tolist(), component_numbers([0, 2], 3).tolist()
    ([2], [0, 2])
    """
    numbers = np.atleast_1d(np.asarray(given))
    valid = numbers.ndim == 1 and numbers.dtype.kind in "iu" and ((numbers >= 0) & (numbers < k)).all()
    if not valid or len(np.unique(numbers)) < len(numbers):
        raise ValueError(
            f"components = {given!r}; distinct integers from 0 to {k - 1} were expected, because the model has "
            f"{k} components."
        )
    return numbers.astype(np.int64)


def low_rank_plus_diagonal(components: Matrix, weights: Vector, diagonal: float) -> Matrix:
    """Return ``components' diag(weights) components + diagonal I`` (d, d): a model's covariance or its inverse.

    Raises
    ------
    MemoryBudgetError
        If a dense d x d matrix would exceed 16 GiB.
    """
    d = components.shape[1]
    if 8 * d * d > 16 << 30:
        raise MemoryBudgetError(
            f"a dense {d} x {d} matrix takes {format_bytes(8 * d * d)}, more than 16 GiB. Use components_, "
            f"explained_variance_ and noise_variance_, which hold the same."
        )
    dense: Matrix = (components.T * weights) @ components
    dense.flat[:: d + 1] += diagonal
    return dense
