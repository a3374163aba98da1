"""What rows, passes and solves cost, as a fit declares them: plain numbers, of which a plan is the sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

STRIP_SECONDS = 4e-10  # to make a sparse row dense, about a shift: of one core, per byte of the dense row


def peak_bytes(read_bytes: int, copy_bytes: int, product_bytes: int, state_bytes: int) -> int:
    """Return the peak bytes of one worker thread: 3 reads + 1 slab (if it is copied) + product + 4 states.

    Two reads are held (one in use, the next being read) and a third accounts for the decoder's buffers. A slab is a
    copy if rows are upcast or owned by someone else, and otherwise a view of its read.
    """
    return 3 * read_bytes + copy_bytes + product_bytes + 4 * state_bytes


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
    """

    columns: int
    rows: int = 1
    stored: float | None = None
    itemsize: int = 8

    @property
    def sparse(self) -> bool:
        """Whether rows are CSR."""
        return self.stored is not None

    @property
    def values(self) -> float:
        """Values of a mean row: the stored ones, or all."""
        return float(self.columns) if self.stored is None else self.stored

    def strips(self, strip_bytes: int) -> Self:
        """Return the form of the dense strips of that size into which sparse rows are cut."""
        most = max(1, strip_bytes // max(1, self.columns * self.itemsize))
        return replace(self, rows=min(self.rows, most), stored=None)

    @property
    def strip_work(self) -> Work:
        """What it takes to make sparse rows dense, without memory."""
        return Work(loops=STRIP_SECONDS * self.columns * self.itemsize)


@dataclass(frozen=True)
class Work:
    """What is done with a block: the memory that it takes, and its operations per row.

    Attributes
    ----------
    bytes : int
    flops : float
        At the speed of a dense product. Fits and precisions are chosen by them, so they depend on no machine.
    looped : float
        The part of ``flops`` that is no dense product, of which ``loops`` has the time.
    loops : float
        Seconds of what is no dense product, on the core where the constants were measured; see :attr:`Speed.loops`.
        For estimates of time alone: no fit is chosen by them.
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


@dataclass(frozen=True)
class Speed:
    """What one core does in a second.

    Attributes
    ----------
    single, double : float
        Floating-point operations of matrix products in float32 and in float64.
    read : float
        Bytes of stored rows, decoded and prepared for a product.
    loops : float
        Speed at what is no dense product, such as sparse products, relative to the core where its constants were
        measured.
    """

    single: float
    double: float
    read: float
    loops: float = 1.0


@dataclass(frozen=True)
class Times:
    """How often a pass runs: typically, and at most. They differ where the data decide."""

    typical: float = 1
    most: float = 1


ONCE = Times()


@dataclass(frozen=True, kw_only=True)
class PassCost:
    """One pass as a fit declares it: the plan is the sum of these, and a run that exceeds one of them fails.

    Attributes
    ----------
    name : str
        Of the pass; unique within a fit.
    reads : float
        Share of X that one execution decodes.
    most_reads : float
        The same in float64, where the fit may go over to it; 0 where that is no more.
    times : Times
    bytes_read : int
        Of one execution.
    tasks : int
    block_rows : int
        Most rows multiplied at a time.
    state_bytes : int
        Most that one state may hold.
    peak_bytes : int
        Peak memory of one worker thread above the idle process.
    finish_bytes : int
        What the finish takes where the merged state lies, beyond the three states that are counted for merges.
    driver_bytes : int
        What the fitting process holds beside this pass.
    collected : bool
        Whether the states of groups are disjoint parts of one, which ``finish_bytes`` then counts.
    flops, evaluations : float
        Floating-point operations and kernel evaluations of one execution.
    products : float or None
        Those of ``flops`` that are dense products, for estimates of time alone; None if all are.
    loops : float
        Seconds of what is no dense product, as of :class:`Work`.
    single : bool
        Whether blocks are multiplied in float32.
    """

    name: str
    reads: float = 1.0
    most_reads: float = 0.0
    times: Times = ONCE
    bytes_read: int = 0
    tasks: int = 1
    block_rows: int = 0
    state_bytes: int = 0
    peak_bytes: int = 0
    finish_bytes: int = 0
    driver_bytes: int = 0
    collected: bool = False
    flops: float = 0.0
    evaluations: float = 0.0
    products: float | None = None
    loops: float = 0.0
    single: bool = False

    @property
    def timed_flops(self) -> float:
        """Operations that take the time of a dense product."""
        return self.flops if self.products is None else self.products

    def repeated(self, times: Times) -> Self:
        """Return the same pass, run so many times."""
        return replace(self, times=times)


@dataclass(frozen=True)
class SolveCost:
    """What a fit computes and holds in the fitting process once its passes are done, and what it returns.

    Attributes
    ----------
    flops : float
    between : float
        Floating-point operations in float64 between the passes and beside ``flops``, for estimates of time alone: no
        fit is chosen by them.
    bytes : int
        Peak memory of the solve.
    held_bytes : int
        What the fitting process holds during all passes as well.
    output_bytes : int
        Of the model.
    """

    flops: float = 0.0
    between: float = 0.0
    bytes: int = 0
    held_bytes: int = 0
    output_bytes: int = 0
