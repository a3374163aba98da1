"""Moments of the steps between rows at a lag, formed in the task that reads the rows; exact for any groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Integers, Matrix, Vector
from bigpca.passes.accumulators.base import KEPT, Accumulator, Codes, kept
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.blocks import Block, column_sums
from bigpca.planning import BlockForm, Work


@dataclass
class SteppedMoments(Accumulator):
    """Moments of the rows, or of the sums ``x_t + x_{t+lag}``, and of the differences ``x_{t+lag} - x_t``.

    Differences are rows with moments of their own: slow columns keep the digits that the difference of two scatters
    would cancel. A state has the rows at its two ends, from which a merge forms the pairs across the border: so a pair
    counts once, however the rows are cut. A pair counts if both of its rows are there, have one code, and are not on
    two sides of the end of a line.

    Attributes
    ----------
    n_features : int
    lag : int
    level : Moments
        Of the rows, or of the sums of pairs.
    steps : Moments
        Of the differences of pairs.
    sums : bool
        Whether ``level`` is of sums.
    edges : tuple of (stride, size)
        Dimensions of a grid whose samples are the rows, along which a step goes: from the last position it does not
        count. The next row along a dimension is ``stride`` rows later.
    codes : ndarray of shape (rows,), int32, or CodeRows, or None
        Trajectories of rows ``first_row : first_row + rows``.
    ends : bool
        Whether the state has its ends, so that rows that follow can be added.
    count : int
        Number of rows.
    first, last : int
        Numbers of the first and the last row.
    head, tail : ndarray of shape (lag, d + 1)
        Rows ``first : first + lag`` and ``last - lag + 1 : last + 1``, with their codes; NaN where there is no row.
    """

    tag: ClassVar[str] = "SteppedMoments"
    gaps: ClassVar[tuple[str, ...]] = ("head", "tail")

    n_features: int
    lag: int
    level: Moments = field(metadata=KEPT)
    steps: Moments = field(metadata=KEPT)
    sums: bool = False
    edges: tuple[tuple[int, int], ...] = ()
    codes: Codes | None = None
    first_row: int = 0
    ends: bool = True
    count: int = kept(default=0)
    first: int = kept(default=0)
    last: int = kept(default=0)
    head: Matrix = kept("_ends", "_columns")
    tail: Matrix = kept("_ends", "_columns")
    _shift: Vector | None = field(default=None, repr=False)
    _step: Vector | None = field(default=None, repr=False)
    _recent: Matrix | None = field(default=None, repr=False)
    _numbers: Integers | None = field(default=None, repr=False)

    @classmethod
    def of(cls, d: int, lag: int, *, sums: bool = False, edges: tuple[tuple[int, int], ...] = ()) -> SteppedMoments:
        """Return a template."""
        return cls(d, lag, Moments(d), Moments(d), sums, edges)

    def placed(self, codes: Codes) -> SteppedMoments:
        """Return a template of rows with these codes."""
        return replace(self, codes=codes)

    @property
    def _ends(self) -> int:
        return self.lag * self.ends

    @property
    def _columns(self) -> int:
        return self.n_features + 1

    def for_rows(self, start: int, stop: int) -> SteppedMoments:
        if self.codes is None:
            return self
        return replace(self, codes=self.codes[start - self.first_row : stop - self.first_row], first_row=start)

    def bare(self) -> SteppedMoments:
        return replace(self, codes=None)

    def finished(self) -> SteppedMoments:
        """Return the state of whole trajectories, without its ends: rows that are added begin others."""
        return replace(self, ends=False, head=np.zeros((0, self._columns)), tail=np.zeros((0, self._columns)))

    def update(self, block: Block) -> None:
        if not block.count:
            return
        numbers, d = block.rows.astype(np.int64), self.n_features
        if self._recent is None or self._numbers is None:
            self.first, self._shift = int(numbers[0]), block.shift
            self._recent, self._numbers = np.zeros((0, self._columns)), numbers[:0]
            self.head = np.full((self.lag, self._columns), np.nan)
        rows = np.zeros((block.count, self._columns))
        rows[:, :d] = block.values
        if self.codes is not None:
            rows[:, d] = self.codes[numbers - self.first_row]
        if not self.sums:
            self.level.update(block)
        # 1. Pairs whose later row is in this block; rows are in order of their numbers.
        known, of_known = np.concatenate([self._recent, rows]), np.concatenate([self._numbers, numbers])
        at = np.searchsorted(of_known, numbers - self.lag)
        own = np.flatnonzero(of_known[at] == numbers - self.lag)
        own = own[self._counted(known[at[own], d], rows[own, d], numbers[own] - self.lag)]
        if len(own):
            earlier, steps = known[at[own], :d], rows[own, :d]
            steps -= earlier
            if self.sums:
                earlier *= 2
                earlier += steps
                self.level.update(_block(earlier, 2 * block.shift, block))
            self._step = steps.mean(axis=0) if self._step is None else self._step
            steps -= self._step
            self.steps.update(_block(steps, self._step, block))
        # 2. The rows at both ends.
        self.count, self.last = self.count + block.count, int(numbers[-1])
        head = numbers < self.first + self.lag
        self.head[numbers[head] - self.first] = rows[head]
        recent = of_known > self.last - self.lag
        self._recent, self._numbers = known[recent], of_known[recent]

    def _counted(self, earlier: Vector, later: Vector, numbers: Integers) -> NDArray[np.bool_]:
        """Return which pairs count, from the codes of both of their rows and the number of the earlier one."""
        own: NDArray[np.bool_] = earlier == later
        for stride, size in self.edges:
            own &= numbers // stride % size != size - 1
        return own

    def close(self) -> None:
        self.level.close()
        self.steps.close()
        self.codes = None
        if self._recent is not None and self._numbers is not None and self._shift is not None:
            self.tail = np.full((self.lag, self._columns), np.nan)
            self.tail[self._numbers - (self.last - self.lag + 1)] = self._recent
            for end in (self.head, self.tail):
                end[:, : self.n_features] += self._shift
        self._shift = self._step = self._recent = self._numbers = None

    def merge(self, other: SteppedMoments) -> SteppedMoments:
        if not other.count or not self.count:
            return self if self.count else other
        a, b = (self, other) if self.first <= other.first else (other, self)
        level, steps, lag = a.level.merge(b.level), a.steps.merge(b.steps), self.lag
        both = replace(a, level=level, steps=steps, count=a.count + b.count, last=b.last)
        if not self.ends:
            return both
        gap = b.first - a.last - 1  # rows without values
        if gap < lag:
            # Pairs across the border; the tail of a and the head of b hold all of their rows.
            earlier, later = a.tail[gap:], b.head[: lag - gap]
            numbers = a.last - lag + 1 + gap + np.arange(lag - gap)
            own = self._counted(earlier[:, -1], later[:, -1], numbers)  # NaN, of no row, equals nothing
            earlier, later = earlier[own, :-1], later[own, :-1]
            if len(later):
                both.steps = steps.merge(_moments(later - earlier))
                both.level = level.merge(_moments(earlier + later)) if self.sums else level
        # The ends of both: one that is shorter than the lag lends the rows of the other.
        both.head, both.tail = a.head.copy(), b.tail.copy()
        if (begun := b.first - a.first) < lag:
            both.head[begun:] = b.head[: lag - begun]
        if (added := b.last - a.last) < lag:
            both.tail[: lag - added] = a.tail[added:]
        return both

    def cost(self, rows: BlockForm) -> Work:
        d = self.n_features
        held = 8 * (d + 1) * (4 * rows.rows + 4 * self.lag) + 64 * rows.rows  # rows, after the last ones, and pairs
        return Work(32 * d**2 + held, float(2 * rows.columns * (rows.columns + 1) + 4 * d))


@dataclass
class LagStates(Accumulator):
    """One state for each of several lags, of the same rows.

    Attributes
    ----------
    states : tuple of SteppedMoments
    """

    tag: ClassVar[str] = "LagStates"

    states: tuple[SteppedMoments, ...] = field(metadata=KEPT)

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.states[0].count

    def _each(self, f: Callable[[SteppedMoments], SteppedMoments]) -> LagStates:
        return replace(self, states=tuple(map(f, self.states)))

    def placed(self, codes: Codes) -> LagStates:
        """Return a template of rows with these codes."""
        return self._each(lambda one: one.placed(codes))

    def for_rows(self, start: int, stop: int) -> LagStates:
        return self._each(lambda one: one.for_rows(start, stop))

    def bare(self) -> LagStates:
        return self._each(SteppedMoments.bare)

    def finished(self) -> LagStates:
        """Return the states of whole trajectories."""
        return self._each(SteppedMoments.finished)

    def update(self, block: Block) -> None:
        for one in self.states:
            one.update(block)

    def close(self) -> None:
        for one in self.states:
            one.close()

    def merge(self, other: LagStates) -> LagStates:
        return replace(self, states=tuple(a.merge(b) for a, b in zip(self.states, other.states, strict=True)))

    def cost(self, rows: BlockForm) -> Work:
        return sum((one.cost(rows) for one in self.states), Work())


def _block(values: Matrix, shift: Vector, like: Block) -> Block:
    """Return rows of pairs, less a shift, as a block."""
    return replace(like, values=values, rows=like.rows[: len(values)], shift=shift, sums=column_sums(values))


def _moments(rows: Matrix) -> Moments:
    """Return the moments of a few rows."""
    state = Moments(rows.shape[1]).fresh(0, len(rows))
    state.update(Block.about(rows, np.arange(len(rows)), None))
    state.close()
    return state
