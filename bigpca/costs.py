"""What is done with a block of rows, as far as costs depend on it: its form, and the work."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Self

STRIP_BYTES = 4 << 20  # of sparse rows that are made dense at a time
PLACE_BYTES = 12  # beside a stored value: its column, and its row while it is mapped


@dataclass(frozen=True)
class BlockForm:
    """What the rows of a block are, as far as costs depend on them: dense rows are those that store every value.

    Attributes
    ----------
    columns : int
    rows : int
        At most.
    stored : float or None
        Values that a mean sparse row stores; None for dense rows.
    itemsize : int
        Bytes of a number.
    factors : bool
        Whether the product of two thin factors is added to CSR.
    sparse : bool
        Whether rows are CSR.
    values : float
        Of a mean row: the stored ones, or all.
    value_bytes : int
        Bytes of a value, and of its place in a sparse row.
    """

    columns: int
    rows: int = 1
    stored: float | None = None
    itemsize: int = 8
    factors: bool = False
    sparse: bool = field(init=False)
    values: float = field(init=False)
    value_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        sparse, values = (False, float(self.columns)) if self.stored is None else (True, self.stored)
        vars(self).update(sparse=sparse, values=values, value_bytes=self.itemsize + sparse * PLACE_BYTES)

    def strips(self) -> Self:
        """Return the form of the dense strips into which sparse rows are cut."""
        most = max(1, STRIP_BYTES // max(1, self.columns * self.itemsize))
        return replace(self, rows=min(self.rows, most), stored=None, factors=False)

    def taken(self, whole: bool) -> tuple[int, Self]:
        """Return the memory and the form of what takes sparse rows as they are (``whole``), or as dense strips."""
        return (0, self) if whole or self.stored is None else (STRIP_BYTES, self.strips())

    def mapped(self, width: int, count: int, kept: bool, factors: bool) -> tuple[Self, tuple[int, int]]:
        """Return the form of ``count`` rows after a map, which leaves sparse rows sparse if they are ``kept`` so, with
        ``factors`` in float64; and the columns and bytes of a value that it costs.
        """
        if self.stored is None or not kept:
            after = replace(self, columns=width, rows=count, stored=None, factors=False)
            return after, (self.columns, self.itemsize)
        stored = self.values * width / max(1, self.columns)
        after = replace(self, columns=width, rows=count, stored=stored, factors=factors)
        after = replace(after, itemsize=8) if factors else after
        return after, (math.ceil(self.values), self.value_bytes)


@dataclass(frozen=True)
class Work:
    """What is done with a block: the memory that it takes, and its operations per row.

    Attributes
    ----------
    bytes : int
    flops : float
        At the speed of a dense product: others count as more. Fits and precisions are chosen by them, so they depend on
        no machine.
    """

    bytes: int = 0
    flops: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.flops + other.flops)
