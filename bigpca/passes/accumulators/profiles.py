"""Moments of the profiles of rows, in which each row weighs its sum."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array

from bigpca.arrays import Vector
from bigpca.passes.accumulators.base import KEPT, Accumulator
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.blocks import Block
from bigpca.passes.reading.row_maps import Profile, row_totals
from bigpca.planning import BlockForm, Work

PROFILE = Profile(1.0)


@dataclass
class ProfileMoments(Accumulator):
    """Moments of rows of amounts divided by their sums, which are their weights; rows of zeros have none.

    Attributes
    ----------
    n_features : int
    moments : Moments
        Of the profiles: the mean is the share of each column in all amounts, and ``moments.weight`` their sum.
    """

    tag: ClassVar[str] = "ProfileMoments"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr"})

    n_features: int
    moments: Moments = field(metadata=KEPT)
    _shift: Vector | None = field(default=None, repr=False)

    @classmethod
    def of(cls, d: int) -> ProfileMoments:
        """Return a template."""
        return cls(d, Moments(d))

    @property
    def count(self) -> int:
        """Number of rows that are not zero."""
        return self.moments.count

    def update(self, block: Block) -> None:
        if not block.count:
            return
        sparse = isinstance(block.values, csr_array)
        rows = block.values.astype(np.float64, copy=False)
        rows = rows if sparse else np.asarray(rows + block.shift)  # at least 0 where x is
        profiles, masses = PROFILE.apply_at(rows, block.rows, "X"), row_totals(rows)
        own = np.flatnonzero(masses)
        profiles, numbers = profiles[own], block.rows[own]
        if not len(own):
            return
        if sparse:
            part = Block.of_csr(profiles, numbers)
        else:
            part = Block.about(profiles, numbers, self._shift)
            self._shift = part.shift
        self.moments.update(part.weighted(masses[own]))

    def close(self) -> None:
        self._shift = None
        self.moments.close()

    def merge(self, other: ProfileMoments) -> ProfileMoments:
        return replace(self, moments=self.moments.merge(other.moments))

    def cost(self, rows: BlockForm) -> Work:
        work = self.moments.cost(rows)
        return replace(work, bytes=work.bytes + int(32 * rows.rows * (rows.values + 1)))
