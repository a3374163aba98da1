"""Accumulators of the Nyström features of rows instead of the rows: kernel versions of whatever one read adds up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.passes.accumulators.base import Accumulator, Arrays
from bigpca.passes.accumulators.landmark_moments import LandmarkMap
from bigpca.passes.reading.blocks import Block, column_sums, group_shift


@dataclass
class OnFeatures(Accumulator):
    """States of ``B = k(X, L) T`` (n, r) of one kernel.

    Attributes
    ----------
    n_features : int
        d.
    features : LandmarkMap, or None in states (the driver hands it over)
    inner : dict of str to Accumulator
        Of rows of r columns.
    evaluations : int
    """

    tag: ClassVar[str] = "OnFeatures"
    shared_field: ClassVar[str | None] = "features"

    n_features: int
    features: LandmarkMap | None
    inner: dict[str, Accumulator]
    evaluations: int = 0
    _prepared: Any = field(default=None, repr=False)
    _shift: NDArray[Any] | None = field(default=None, repr=False)

    def bare(self) -> OnFeatures:
        return replace(self, features=None, inner={name: a.bare() for name, a in self.inner.items()})

    def for_rows(self, start: int, stop: int) -> OnFeatures:
        return replace(self, inner={name: a.for_rows(start, stop) for name, a in self.inner.items()})

    def fresh(self, start: int, stop: int) -> OnFeatures:
        inner = {name: a.fresh(start, stop) for name, a in self.inner.items()}
        return replace(self, inner=inner, evaluations=0, _prepared=None, _shift=None)

    def update(self, block: Block) -> None:
        features: Any = self.features
        values = block.values
        if self._prepared is None or self._prepared[0] != values.dtype:
            self._prepared = (values.dtype, features.prepare(values.dtype))
        for i in range(0, len(values), features.tile_rows):
            self._add(values[i : i + features.tile_rows], features, block.rows[i : i + features.tile_rows])

    def _add(self, rows: NDArray[Any], features: LandmarkMap, numbers: NDArray[np.int64]) -> None:
        A = features.kernels[0].prepare(rows, features.shift, int(numbers[0]))
        for K in features.blocks(A, self._prepared[1]):
            B = K @ features.transforms[0].astype(K.dtype, copy=False)
            self.evaluations += K.size
            if self._shift is None or self._shift.dtype != B.dtype:
                self._shift = group_shift(B) if self._shift is None else self._shift.astype(B.dtype)
            B -= self._shift
            mapped = Block(B, numbers, self._shift.astype(np.float64), column_sums(B))
            for part in self.inner.values():
                part.update(mapped)

    def close(self) -> None:
        self.features = self._prepared = self._shift = None
        for part in self.inner.values():
            part.close()

    def merge(self, other: OnFeatures) -> OnFeatures:
        inner = {name: part.merge(other.inner[name]) for name, part in self.inner.items()}
        return replace(self, inner=inner, evaluations=self.evaluations + other.evaluations)

    @property
    def state_bytes(self) -> int:
        return sum(part.state_bytes for part in self.inner.values())

    @property
    def product_bytes(self) -> int:
        held = sum(part.product_bytes for part in self.inner.values())
        return held + (0 if self.features is None else self.features.working_bytes(self.n_features, 8))

    @property
    def flops_per_row(self) -> int:
        total = sum(part.flops_per_row for part in self.inner.values())
        if self.features is not None:
            m = len(self.features.landmarks)
            total += (
                int(m * self.features.kernels[0].flops_per_entry(self.n_features))
                + 2 * self.features.transforms[0].size
            )
        return total

    def to_arrays(self) -> Arrays:
        arrays = {f"{name}-{own}": a for name, part in self.inner.items() for own, a in part.to_arrays().items()}
        return arrays | {"evaluations": np.array(self.evaluations)}

    def with_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> OnFeatures:
        inner = {
            name: part.with_arrays(
                {k.removeprefix(f"{name}-"): a for k, a in arrays.items() if k.startswith(f"{name}-")}
            )
            for name, part in self.inner.items()
        }
        return replace(self, features=None, inner=inner, evaluations=int(arrays["evaluations"]))

    def identity(self) -> dict[str, Any]:
        inner = {name: part.describe() for name, part in self.inner.items()}
        return {
            "inner": inner,
            **({} if self.features is None else self.features.describe()),
        }
