"""The contract of accumulators: small states that fold blocks, merge, and are stored as named arrays.

An accumulator is a template until :meth:`Accumulator.fresh` returns an empty copy for the rows of one group. The task
that owns a copy may update it in place; ``merge`` never changes its inputs, because Dask may use them again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca.arrays import Array
from bigpca.costs import BlockForm, Work
from bigpca.passes.reading.blocks import STRIP_BYTES, Block

Arrays = dict[str, Array]
Vector = NDArray[np.float64]
T = TypeVar("T")


@dataclass
class Accumulator(ABC):
    """One state folded over row blocks and merged by a fixed tree.

    The life of a state, in this order, which the shared suite (``tests/passes/accumulators/test_accumulators.py``)
    walks every accumulator through::

        template                  made by the caller: sizes and parameters, no rows
        for_rows(start, stop)     in the driver: only what the rows of one group need
        without_shared()          is sent to the task without the broadcast value, which every group needs
        with_shared(value)        in the task: has the broadcast value again
        fresh(start, stop)        an empty state for the group; ``for_rows`` has been applied
        update(block) ...         in place, in order of rows, all blocks about one shift
        close()                   once, in place, at the end of the group; drops the broadcast value
        merge(other) ...          any grouping of closed states; changes neither
        to_arrays()               into a checkpoint, and back by ``template.bare().with_arrays(arrays)``

    Attributes
    ----------
    tag : str
        Name of the state in checkpoints and fingerprints; unlike the class name, it never changes.
    shared_field : str or None
        The field that holds the broadcast value: a parameter that every group needs to fold, and that is too large to
        be sent with each task. It is None in templates being sent and in closed states.
    needs_largest : bool
        Whether ``update`` uses the largest magnitude in its block.
    accepts : frozenset of {"dense", "csr", "weights", "nan"}
        The blocks that ``update`` can use. Sparse rows are made dense in strips for states that do not accept "csr";
        weighted rows are rejected before the read if a state does not accept "weights". NaN stay in blocks if all
        states of a read accept "nan".
    """

    tag: ClassVar[str]
    accepts: ClassVar[frozenset[str]] = frozenset({"dense"})
    shared_field: ClassVar[str | None] = None
    needs_largest: ClassVar[bool] = False

    @abstractmethod
    def fresh(self, start: int, stop: int) -> Self:
        """Return an empty state for rows ``start:stop``."""

    @abstractmethod
    def update(self, block: Block) -> None:
        """Add the rows of one block, in place. All blocks of one group have the same shift."""

    def close(self) -> None:  # noqa: B027  (optional)
        """Finish the state in place, once, at the end of a group."""

    def for_rows(self, start: int, stop: int) -> Self:
        """Return a template with only the parameters that rows ``start:stop`` need."""
        return self

    def bare(self) -> Self:
        """Return a template without the parameters that only folding needs."""
        return self.without_shared()

    @property
    def shared(self) -> object:
        """The broadcast value, or None if there is none, or if it is sent with the state."""
        return None if self.shared_field is None else getattr(self, self.shared_field)

    def without_shared(self) -> Self:
        """Return a template without the broadcast value, to be sent to tasks."""
        return self if self.shared is None else self.with_shared(None)

    def with_shared(self, value: object) -> Self:
        """Return a template that has the broadcast value again."""
        return self if self.shared_field is None else replace(self, **{self.shared_field: value})

    @abstractmethod
    def merge(self, other: Self) -> Self:
        """Return the state of both row ranges; associative to rounding."""

    @property
    @abstractmethod
    def state_bytes(self) -> int:
        """Bytes of the closed state."""

    @abstractmethod
    def cost(self, rows: BlockForm) -> Work:
        """Return the scratch space that ``update`` keeps while a group is folded, and the operations per row.

        ``rows`` are sparse only if the state accepts "csr"; see :func:`cost_of`.
        """

    @abstractmethod
    def to_arrays(self) -> Arrays:
        """Return the closed state as named arrays."""

    @abstractmethod
    def with_arrays(self, arrays: Mapping[str, Array]) -> Self:
        """Return the closed state whose :meth:`to_arrays` returned ``arrays``."""

    def describe(self) -> dict[str, object]:
        """Return what identifies the computation in fingerprints: the tag and :meth:`identity`."""
        return {"accumulator": self.tag, **self.identity()}

    def identity(self) -> dict[str, object]:
        """Return the parameters that the state depends on, arrays as digests."""
        return {}


WeightSums = tuple[float, float] | None


def add_weights(count: int, sums: WeightSums, more: int, weights: Vector | WeightSums) -> WeightSums:
    """Return ``(sum w, sum w^2)`` of ``count`` rows and ``more`` others; None if every row counts once."""
    if sums is None and weights is None:
        return None
    if isinstance(weights, np.ndarray):
        weights = float(weights.sum()), float(weights @ weights)
    (total, squares), (added, more_squares) = sums or (count, count), weights or (more, more)
    return total + added, squares + more_squares


def stored_weights(arrays: Mapping[str, Array], name: str) -> WeightSums:
    """Return ``(sum w, sum w^2)`` from an array of that name, or None without it, as in files of rows without weights.

    Raises
    ------
    ValueError
        If it holds fewer than two numbers.
    """
    if name not in arrays:
        return None
    total, squares = arrays[name][:2]
    return float(total), float(squares)


def broadcast(value: T | None) -> T:
    """Return the broadcast value of a state that is being updated.

    Raises
    ------
    ValueError
        If :meth:`Accumulator.with_shared` has not been called.
    """
    if value is None:
        raise ValueError("the state has no broadcast value; call with_shared(value) before fresh and update.")
    return value


def cost_of(state: Accumulator, rows: BlockForm) -> Work:
    """Return what :func:`feed` takes to update a state: sparse rows are made dense for those that require it."""
    if rows.sparse and "csr" not in state.accepts:
        return Work(STRIP_BYTES) + rows.strip_work + state.cost(rows.strips(STRIP_BYTES))
    return state.cost(rows)


def feed(states: Iterable[Accumulator], block: Block, strip_shift: Vector | None) -> Vector | None:
    """Update states with a block; states that require dense rows, with dense strips of a sparse block.

    Returns
    -------
    ndarray of shape (d,) or None
        The shift of the strips, for the next block of the group.
    """
    dense = []
    for state in states:
        if isinstance(block.values, csr_array) and "csr" not in state.accepts:
            dense.append(state)
        else:
            state.update(block)
    for strip in block.strips(strip_shift) if dense else ():
        strip_shift = strip.shift
        for state in dense:
            state.update(strip)
    return strip_shift
