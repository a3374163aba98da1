"""Kernels that are computed as dot products of their exact feature maps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigpca.kernels.base import Kernel, Rows, Vector
from bigpca.kernels.rows import Block


@dataclass(frozen=True)
class FeatureKernel(Kernel):
    """``k(x, y) = phi(x)'phi(y)``: a prepared block holds the features of its rows. Costs 2 D flops."""

    @abstractmethod
    def feature_width(self, d: int) -> int:
        """Return the number of features D."""

    @abstractmethod
    def features(self, rows: Rows, first_row: int = 0) -> Block:
        """Return the features (a, D); reject rows outside the kernel's domain."""

    @property
    def positive_semidefinite(self) -> bool:
        return True

    def prepare(self, rows: Rows, shift: Vector | None = None, first_row: int = 0) -> Block:
        return self.features(rows, first_row)

    def block(self, A: Any, B: Any) -> Block:
        products: Block = A @ B.T
        return products

    def diagonal_of(self, A: Any) -> Vector:
        squares: Vector = np.einsum("ij,ij->i", A, A, dtype=np.float64)
        return squares

    def flops_per_entry(self, d: int) -> float:
        return 2.0 * self.feature_width(d)

    def entry_bytes(self, itemsize: int) -> int:
        return itemsize

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return self.feature_width(d) * itemsize
