"""One state for each fold of the rows, or for each group of them, from one read; and what is left without each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import ClassVar, TypeVar, cast

import numpy as np

from bigpca.arrays import Array, Integers, Vector
from bigpca.costs import BlockForm, Work
from bigpca.data.weights import Codes
from bigpca.devices import Namespace
from bigpca.host import HOST
from bigpca.passes.accumulators.base import KEPT, Accumulator, WeightSums, add_weights, cost_of, kept, update_all
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.blocks import Block
from bigpca.seeds import uniforms

State = TypeVar("State", bound=Accumulator)


@dataclass
class FoldStates(Accumulator):
    """One state for each fold of the rows, or for each group of them, all from one read.

    Each fold has its own shift in a task, so means of folds that are far apart cost no digits. What is left without a
    fold is merged from the others; nothing is subtracted. Groups merge by their labels.

    Attributes
    ----------
    template : Accumulator
        Of every fold.
    n_folds : int
    codes : ndarray of shape (rows,), int32, or ColumnRows, or None
        Folds of rows ``first_row : first_row + rows``; None draws them by row number, whatever the order of values.
    labels : ndarray of shape (n_folds,), sorted, or None
        Of groups, if the folds are such.
    seed : int
    offset, n_rows : int
        Rows that were read before these, from which numbers continue, and in all. Those without weight or values count.
    states : tuple of Accumulator
    """

    tag: ClassVar[str] = "FoldStates"
    by_row: ClassVar[str | None] = "codes"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr", "weights"})
    lives_there: ClassVar[bool] = True

    template: Accumulator
    n_folds: int
    codes: Codes | None = None
    labels: Array | None = None
    seed: int = 0
    offset: int = 0
    n_rows: int = kept(default=0)
    first_row: int = 0
    states: tuple[Accumulator, ...] = field(default=(), metadata=KEPT)
    _shifts: dict[int, Vector | None] = field(default_factory=dict, repr=False)  # beside that of blocks

    def bare(self) -> FoldStates:
        return replace(self, codes=None, states=(self.template,) * self.n_folds)

    def there(self, device: Namespace) -> FoldStates:
        return replace(super().there(device), template=self.template.there(device))

    def here(self) -> FoldStates:
        return replace(super().here(), template=self.template.there(HOST))

    def fresh(self, start: int, stop: int) -> FoldStates:
        states = tuple(self.template.fresh(start, stop) for _ in range(self.n_folds))
        return replace(super().fresh(start, stop), states=states)

    def _folds_of(self, rows: Integers) -> Integers:
        if self.codes is not None:
            return self.codes[rows - self.first_row].astype(np.int64)
        # A fold is a function of the seed and the row's number: the same in every division of the rows into groups.
        first, last = int(rows.min()), int(rows.max()) + 1
        drawn = uniforms(self.seed, "folds", first + self.offset, last + self.offset, 1)[:, 0]
        return (drawn[rows - first] * self.n_folds).astype(np.int64)

    def update(self, block: Block) -> None:
        if not block.count:
            return
        folds = self._folds_of(block.rows)
        for fold, state in enumerate(self.states):
            own = np.flatnonzero(folds == fold)
            if not len(own):
                continue
            # About the fold's own shift, beside that of the block: the mean of its first rows.
            shift = self._shifts.get(fold)
            part = block.about(block.values[own], block.rows[own], shift, block.device)
            if block.form.shifts:
                part, shift = part.moved(block.origin), part.shift
            self._shifts[fold] = update_all([state], part.weighted(block.weights_at(own)), shift)

    def note_rows(self, count: int) -> None:
        self.n_rows = count

    def merge(self, other: FoldStates) -> FoldStates:
        # Groups that only one side has are taken as they are; those of both merge.
        union, own, others = self.union(other)
        found = dict(zip(own.tolist(), self.states, strict=True))
        for i, state in zip(others.tolist(), other.states, strict=True):
            found[i] = found[i].merge(state) if i in found else state
        states, labels = tuple(found[i] for i in range(len(union))), None if self.labels is None else union
        n_rows = self.n_rows + other.n_rows
        return replace(self, n_folds=len(union), codes=None, labels=labels, states=states, n_rows=n_rows)

    def union(self, other: FoldStates) -> tuple[Array, Integers, Integers]:
        """Return the folds of both, and where those of each are among them.

        Raises
        ------
        ValueError, TypeError
            If only one has groups, if labels are numbers on one side and strings on the other, or if rows without
            groups have other numbers of folds.
        """
        if self.labels is other.labels:  # of one read, or of rows without groups
            if self.n_folds != other.n_folds:
                raise ValueError(f"some rows have {self.n_folds} folds, others {other.n_folds}. Give one cv for all.")
            same = np.arange(self.n_folds)
            return same if self.labels is None else self.labels, same, same
        if self.labels is None or other.labels is None:
            raise ValueError(
                "the folds of some rows are groups, those of others are not. Give groups= for all rows, or for none."
            )
        from bigpca.data.labels import merge_classes  # imports file formats

        return merge_classes(self.labels, other.labels)

    def filled(self, instead: str) -> list[Accumulator]:
        """Return the states of folds that have rows; raises ValueError for fewer than two."""
        states = [state for state in self.states if getattr(state, "count", 0)]
        if len(states) < 2:
            raise ValueError(f"only {len(states)} of {self.n_folds} folds have rows. Give more rows, or {instead}.")
        return states

    @property
    def present(self) -> FoldStates:
        """Without the groups that have no rows: rows that weigh 0, or are left out, are as if they were not there."""
        held = [i for i, state in enumerate(self.states) if getattr(state, "count", 1)]
        if self.labels is None or len(held) == self.n_folds:
            return self
        states = tuple(self.states[i] for i in held)
        return replace(self, n_folds=len(held), labels=self.labels[held], states=states)

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(int(getattr(state, "count", 0)) for state in self.states)

    @property
    def weight_sums(self) -> WeightSums:
        """Of all rows, as of :class:`bigpca.passes.accumulators.base.Weighted`."""
        count, sums = 0, None
        for state in self.states:
            more = int(getattr(state, "count", 0))
            sums, count = add_weights(count, sums, more, getattr(state, "weight_sums", None)), count + more
        return sums

    @property
    def state_bytes(self) -> int:
        return self.n_folds * self.template.state_bytes

    @property
    def bytes_there(self) -> int:
        return self.n_folds * self.template.bytes_there

    def device_bytes(self, rows: BlockForm) -> float:
        # Rows of a fold; of short floats also what their products take once more, before that of the last fold is free.
        copied = (1 if rows.itemsize == 8 else 4) * rows.rows * rows.columns * rows.itemsize
        return self.template.device_bytes(rows) + copied + (self.n_folds - 1) * self.template.bytes_there

    def cost(self, rows: BlockForm) -> Work:
        work = cost_of(self.template, rows)
        copied = 2 * rows.rows * rows.columns * rows.itemsize
        return replace(work, bytes=self.n_folds * (work.bytes + 8 * rows.columns) + copied)


def left_out(states: Sequence[State]) -> Iterator[State]:
    """Iterate over the merged states of all but one: two sweeps of merges, one of them held, and nothing subtracted."""
    after, before = [states[-1]], None  # of states i and later, the last first; and of those before i
    for state in states[-2:0:-1]:
        after.append(state.merge(after[-1]))
    for state in states:
        rest = after.pop() if after else None
        if before is None or rest is None:
            yield cast("State", rest if before is None else before)
        else:
            yield before.merge(rest)
        before = state if before is None else before.merge(state)


def merged(states: Sequence[State]) -> State:
    """Return the state of all."""
    return reduce(lambda a, b: a.merge(b), states)


def whole_moments(state: Accumulator) -> Moments:
    """Return the moments of all rows of a state, which may be one for each fold."""
    if isinstance(state, FoldStates):
        return whole_moments(merged(state.states))
    found = getattr(state, "moments", state)
    if not isinstance(found, Moments):
        raise TypeError(f"the state holds {type(found).__name__}, Moments were expected")
    return found


def check_folds(before: Accumulator | None, added: Accumulator) -> None:
    """Reject states of rows with other folds than those before; raises as :meth:`FoldStates.union`."""
    if before is None:
        return
    if isinstance(before, FoldStates) and isinstance(added, FoldStates):
        before.union(added)
    elif isinstance(before, FoldStates) or isinstance(added, FoldStates):
        raise ValueError(
            "some rows were fitted with a state for each fold or group, others with one. Fit all rows by the same "
            "parameters, and give groups= for all or for none."
        )
