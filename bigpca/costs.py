"""What is done with a block of rows, as far as costs depend on it: its form, the work, and what loops take."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self


class LOOPS:
    """What loops other than dense products take on one core of the machine where they were measured, in seconds.

    Only estimates of time use them, divided by the speed of a core (``Resources.loops`` of the plan): no fit and no
    precision is chosen by them, because a choice, and with it the bits, must not depend on a machine. "Value" means a
    stored value of sparse rows; "byte" a byte of what is named.
    """

    reference_value = 6.8e-9  # of the product by which a core is compared with the reference
    prepared_value = 1.4e-8  # copied, converted, checked and summed
    noted_value = 5.7e-9  # the same for its square, and constant columns found
    product_value = 3e-9  # of X Q, beside
    product_byte = 2.5e-11  # a row of Q
    added_value = 8e-9  # of X'Z, beside
    added_byte = 2.9e-11  # a row of Z
    gram_value = 3e-8  # of X'X, beside
    gram_pair = 6e-10  # two values of a row
    gram_result = 1e-9  # an entry of the result for each tile, which is read and written again
    scattered_value = 4e-9  # of the product with a sparse matrix, beside
    scattered_term = 1.6e-9  # each of its entries
    strip_byte = 4e-10  # a dense row that is made of a sparse one, about a shift
    mapped_byte = 5e-10  # a row that a map changes
    transposed_byte = 2.5e-10  # a dense row, for a sparse sketch, beside
    sketched_byte = 3e-11  # the same for each entry of a column of the sketch
    padded_byte = 6.5e-10  # a row padded and turned by Hadamard's transform
    kernel_byte = 1.2e-9  # a dense row prepared for a kernel
    kernel_value = 1.2e-8  # the same of sparse rows
    kernel_entry_byte = 3e-10  # an entry of a sparse product that is added to its block
    drawn_byte = 1e-9  # a drawn row that is inserted among the best ones, or merged with them


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

    @property
    def strip_work(self) -> Work:
        """What it takes to make sparse rows dense, without memory."""
        return Work(loops=LOOPS.strip_byte * self.columns * self.itemsize)


@dataclass(frozen=True)
class Work:
    """What is done with a block: the memory that it takes, and its operations per row.

    Attributes
    ----------
    bytes : int
    flops : float
        At the speed of a dense product. Fits and precisions are chosen by them, so they depend on no machine.
    looped : float
        The part of ``flops`` that is not a dense product; ``loops`` has its time.
    loops : float
        Seconds of what is not a dense product, on the core where the constants were measured; see
        ``Resources.loops``. For estimates of time alone: no fit is chosen by them.
    """

    bytes: int = 0
    flops: float = 0.0
    looped: float = 0.0
    loops: float = 0.0

    @property
    def products(self) -> float:
        """Operations of dense products."""
        return self.flops - self.looped

    def __add__(self, other: Work) -> Work:
        return Work(
            self.bytes + other.bytes, self.flops + other.flops, self.looped + other.looped, self.loops + other.loops
        )
