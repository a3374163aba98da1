"""What operators return: products of blocks, and of the probes from which bounds are computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
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
