"""Sparse sign sketch: a few random signs per column of X, at distinct places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.seeds import integers, signs
from bigpca.sketches.base import Matrix, Vector, pair_products, positive_integer
from bigpca.sketches.sparse import SparseSketch

STREAM = "sparse sign sketch"


@dataclass(frozen=True)
class SparseSign(SparseSketch):
    """W with ``nnz`` entries +-1/sqrt(nnz) at distinct places of every row (Kane & Nelson 2014, sec. 1).

    Every row of W has length 1, so unit vectors along the axes keep their length exactly.
    ``Var <W'x, W'y> = (|x|^2 |y|^2 + (x'y)^2 - 2 sum_i x_i^2 y_i^2) / q`` for any nnz; more entries make the worst case
    less likely. Costs 2 d nnz flops per row.

    Parameters
    ----------
    q : int >= 1
    nnz : int in [1, q], default 8
        8 suffices for all but adversarial data (Martinsson & Tropp 2020, sec. 9.2).
    seed : int >= 0, default 0

    Examples
    --------
    >>> W = SparseSign(5, nnz=4).matrix(6)
    >>> np.count_nonzero(W, axis=1).tolist(), np.unique(np.abs(W)).tolist()
    ([4, 4, 4, 4, 4, 4], [0.0, 0.5])
    """

    nnz: int = 8

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def entries(self) -> int:
        return self.nnz

    def _check_options(self) -> None:
        object.__setattr__(self, "nnz", positive_integer("nnz", self.nnz))
        if self.nnz > self.q:
            raise ValueError(
                f"nnz = {self.nnz} distinct places were requested, but q = {self.q} columns have only {self.q}. "
                f"Use nnz <= {self.q}."
            )

    def _entries_of(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Draw a uniform subset per row by Floyd's algorithm: a number drawn twice is replaced by the newest one."""
        places = np.empty((stop - start, self.nnz), np.int64)
        for i in range(self.nnz):
            newest = self.q - self.nnz + i
            drawn = integers(self.seed, f"{STREAM}, place {i}", start, stop, 1, newest + 1)
            taken = (places[:, :i] == drawn).any(axis=1)
            places[:, i] = np.where(taken, newest, drawn[:, 0])
        return places, signs(self.seed, f"{STREAM}, signs", start, stop, self.nnz, np.int8)

    def _moments(self, x: Matrix, y: Matrix) -> tuple[Vector, Vector]:
        dots, norms, squares = pair_products(x, y)
        return np.zeros_like(dots), (norms + dots**2 - 2 * squares) / self.q
