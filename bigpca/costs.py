"""What is done with a block of rows, as far as costs depend on it: its form, and the work."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self


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
    sparse : bool
        Whether rows are CSR.
    values : float
        Of a mean row: the stored ones, or all.
    """

    columns: int
    rows: int = 1
    stored: float | None = None
    itemsize: int = 8
    sparse: bool = field(init=False)
    values: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sparse", self.stored is not None)
        object.__setattr__(self, "values", float(self.columns) if self.stored is None else self.stored)

    def strips(self, strip_bytes: int) -> Self:
        """Return the form of the dense strips of that size into which sparse rows are cut."""
        most = max(1, strip_bytes // max(1, self.columns * self.itemsize))
        return replace(self, rows=min(self.rows, most), stored=None)


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
