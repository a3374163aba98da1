"""Feature hashing: every column of X is added to, or subtracted from, a few columns of the sketch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.seeds import integers, signs
from bigpca.sketches.base import Matrix, Vector, pair_products, positive_integer
from bigpca.sketches.sparse import SparseSketch

STREAM = "feature hash sketch"


@dataclass(frozen=True)
class FeatureHash(SparseSketch):
    """W with ``n_hashes`` entries +-1/sqrt(n_hashes) per row, at independent places that may collide.

    See Weinberger et al. 2009. ``signed=False`` makes all entries positive: hash kernels (Shi et al. 2009), biased by
    collisions. With
    ``B = |x|^2 |y|^2 + (x'y)^2 - (2 / n_hashes) sum_i x_i^2 y_i^2``::

        signed    E <W'x, W'y> = x'y                                                       Var = B / q
        unsigned  E <W'x, W'y> = x'y + (n_hashes (sum_i x_i)(sum_i y_i) - x'y) / q         Var = B (1 - 1/q) / q

    NOTE: the tutorial (Marukatat 2022, eq. 46) scales by 1/n_hashes, which divides dot products by n_hashes; the scale
    that preserves them is 1/sqrt(n_hashes). Costs 2 d n_hashes flops per row.

    Parameters
    ----------
    q : int >= 1
    n_hashes : int >= 1, default 1
    signed : bool, default True
    seed : int >= 0, default 0

    Examples
    --------
    >>> FeatureHash(4).apply(np.eye(6)).sum(axis=1).tolist() == FeatureHash(4).matrix(6).sum(axis=1).tolist()
    True
    >>> FeatureHash(4, signed=False).unbiased
    False
    """

    n_hashes: int = 1
    signed: bool = True

    @property
    def unbiased(self) -> bool:
        return self.signed

    @property
    def entries(self) -> int:
        return self.n_hashes

    def _check_options(self) -> None:
        object.__setattr__(self, "n_hashes", positive_integer("n_hashes", self.n_hashes))
        if not isinstance(self.signed, bool | np.bool_):
            raise TypeError(f"signed = {self.signed!r} is a {type(self.signed).__name__}, not True or False.")
        object.__setattr__(self, "signed", bool(self.signed))

    def _entries_of(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        places = integers(self.seed, f"{STREAM}, places", start, stop, self.n_hashes, self.q)
        if not self.signed:
            return places, np.ones(places.shape, np.int8)
        return places, signs(self.seed, f"{STREAM}, signs", start, stop, self.n_hashes, np.int8)

    def _moments(self, x: Matrix, y: Matrix) -> tuple[Vector, Vector]:
        dots, norms, squares = pair_products(x, y)
        meetings = (norms + dots**2 - (2 / self.n_hashes) * squares) / self.q
        if self.signed:
            return np.zeros_like(dots), meetings
        bias = (self.n_hashes * x.sum(axis=1) * y.sum(axis=1) - dots) / self.q
        return bias, meetings * (1 - 1 / self.q)
