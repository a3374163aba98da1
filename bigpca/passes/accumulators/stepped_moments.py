"""Sums of pairs of rows at a lag, formed in the task that reads the rows; exact for any groups."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Integers, Matrix, Vector
from bigpca.costs import BlockForm, Work
from bigpca.passes.accumulators.base import KEPT, Accumulator, kept
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.blocks import Block, Codes


@dataclass
class PairedRows(Accumulator):
    """Rows in an order, and sums of the pairs ``x_t, x_{t+lag}`` at several lags, which a subclass forms.

    A state has the rows at its two ends, from which a merge forms the pairs across the border: so a pair counts once,
    however the rows are cut. A pair counts if both of its rows are there, have one code, and are not on two sides of
    the end of a line.

    Attributes
    ----------
    n_features : int
    lags : tuple of int
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
    head, tail : ndarray of shape (reach, d)
        Rows ``first : first + reach`` and ``last - reach + 1 : last + 1``; any numbers where there is no row.
    head_codes, tail_codes : ndarray of shape (reach,)
        Their codes, 0 without any; NaN where there is no row.
    """

    by_row: ClassVar[str | None] = "codes"
    gaps: ClassVar[tuple[str, ...]] = ("head_codes", "tail_codes")

    n_features: int
    lags: tuple[int, ...]
    edges: tuple[tuple[int, int], ...] = ()
    codes: Codes | None = None
    first_row: int = 0
    ends: bool = True
    count: int = kept(default=0)
    first: int = kept(default=0)
    last: int = kept(default=0)
    head: Matrix = kept("_ends", "n_features")
    tail: Matrix = kept("_ends", "n_features")
    head_codes: Vector = kept("_ends", here=True)
    tail_codes: Vector = kept("_ends", here=True)
    _shift: Vector | None = field(default=None, repr=False)
    _recent: Matrix | None = field(default=None, repr=False)
    _numbers: Integers | None = field(default=None, repr=False)
    _codes: Vector | None = field(default=None, repr=False)

    @abstractmethod
    def _add_rows(self, block: Block) -> None:
        """Add the rows of a block themselves, in place."""

    @abstractmethod
    def _add_pairs(self, i: int, earlier: Matrix, later: Matrix, block: Block) -> None:
        """Add pairs at the i-th lag, about the shift of the block that has the later rows; they may be overwritten."""

    @abstractmethod
    def _add_across(self, i: int, earlier: Matrix, later: Matrix) -> None:
        """Add pairs across the border of two states, to the sums of both."""

    @abstractmethod
    def _merged(self, other: Self) -> Self:
        """Return a state with the sums of both."""

    @property
    def reach(self) -> int:
        """The largest lag."""
        return max(self.lags)

    @property
    def _ends(self) -> int:
        return self.reach * self.ends

    def bare(self) -> Self:
        return replace(self, codes=None)

    def finished(self) -> Self:
        """Return the state of whole trajectories, without its ends: rows that are added begin others."""
        rows, codes = np.zeros((0, self.n_features)), np.zeros(0)
        return replace(self, ends=False, head=rows, tail=rows, head_codes=codes, tail_codes=codes)

    def update(self, block: Block) -> None:
        if not block.count:
            return
        numbers, xp = block.rows.astype(np.int64), self.xp
        if self._recent is None or self._numbers is None or self._codes is None:
            self.first, self._shift = int(numbers[0]), block.shift
            self._recent, self._numbers, self._codes = self.head[:0, :], numbers[:0], np.zeros(0)
            self.head_codes = np.full(self.reach, np.nan)
        rows = self.put(block.values.astype(np.float64, copy=False))
        codes = self._codes_of(numbers)
        self._add_rows(block)
        # 1. Pairs whose later row is in this block; rows are in order of their numbers.
        known, of_known = xp.concat([self._recent, rows]), np.concatenate([self._numbers, numbers])
        codes_known = np.concatenate([self._codes, codes])
        # Without a search, where each pair of known rows counts.
        single = not self.edges and bool((codes_known == codes_known[0]).all())
        single &= len(of_known) == 1 + int(of_known[-1]) - int(of_known[0])
        for i, lag in enumerate(self.lags):
            if single:
                begin = max(0, lag - len(of_known) + block.count)
                if begin < block.count:
                    earlier = known[len(of_known) - block.count + begin - lag : len(of_known) - lag, :]
                    later = xp.asarray(rows[begin:, :], copy=True)
                    self._add_pairs(i, xp.asarray(earlier, copy=True), later, block)
                continue
            at = np.searchsorted(of_known, numbers - lag)
            own = np.flatnonzero(of_known[at] == numbers - lag)
            own = own[self._counted(codes_known[at[own]], codes[own], numbers[own] - lag)]
            if len(own):
                self._add_pairs(i, self._taken(known, at[own]), self._taken(rows, own), block)
        # 2. The rows at both ends.
        self.count, self.last = self.count + block.count, int(numbers[-1])
        head = np.flatnonzero(numbers < self.first + self.reach)
        if len(head):
            at = numbers[head] - self.first
            self.head, self.head_codes[at] = self._placed(self.head, at, self._taken(rows, head)), codes[head]
        recent = np.flatnonzero(of_known > self.last - self.reach)
        self._recent, self._numbers = self._taken(known, recent), of_known[recent]
        self._codes = codes_known[recent]

    def _codes_of(self, numbers: Integers) -> Vector:
        """Return the codes of rows."""
        return np.zeros(len(numbers)) if self.codes is None else self.codes[numbers - self.first_row].astype(np.float64)

    def _taken(self, rows: Matrix, which: Integers) -> Matrix:
        """Return a copy of some of the rows."""
        found: Matrix = self.xp.take(rows, self.put(which), axis=0)
        return found

    def _placed(self, end: Matrix, at: Integers, rows: Matrix) -> Matrix:
        """Return one of the ends with rows at some of its places."""
        source = np.arange(self.reach)
        source[at] = self.reach + np.arange(len(at))
        return self._taken(self.xp.concat([end, rows]), source)

    def _counted(self, earlier: Vector, later: Vector, numbers: Integers) -> NDArray[np.bool_]:
        """Return which pairs count, from the codes of both of their rows and the number of the earlier one."""
        own: NDArray[np.bool_] = earlier == later
        for stride, size in self.edges:
            own &= numbers // stride % size != size - 1
        return own

    def close(self) -> None:
        self.codes = None
        if self._recent is not None and self._numbers is not None and self._shift is not None:
            at, shift = self._numbers - (self.last - self.reach + 1), self.put(self._shift)
            self.head, self.tail = self.head + shift, self._placed(self.tail, at, self._recent) + shift
            self.tail_codes = np.full(self.reach, np.nan)
            self.tail_codes[at] = self._codes
        self._shift = self._recent = self._numbers = self._codes = None

    def merge(self, other: Self) -> Self:
        if not other.count or not self.count:
            return self if self.count else other
        a, b = (self, other) if self.first <= other.first else (other, self)
        both, reach = replace(a._merged(b), count=a.count + b.count, last=b.last), self.reach
        if not self.ends:
            return both
        gap = b.first - a.last - 1  # rows without values
        for i, lag in enumerate(self.lags):
            if gap < lag:
                # Pairs across the border; the tail of a and the head of b hold all of their rows.
                numbers = a.last - lag + 1 + gap + np.arange(lag - gap)
                before = reach - lag + gap
                # NaN, of no row, equals nothing.
                own = np.flatnonzero(self._counted(a.tail_codes[before:], b.head_codes[: lag - gap], numbers))
                if len(own):
                    both._add_across(i, self._taken(a.tail, before + own), self._taken(b.head, own))
        # The ends of both: one that is shorter than the lag lends the rows of the other.
        begun, added, xp = min(reach, b.first - a.first), min(reach, b.last - a.last), self.xp
        both.head = xp.concat([a.head[:begun, :], b.head[: reach - begun, :]])
        both.head_codes = np.concatenate([a.head_codes[:begun], b.head_codes[: reach - begun]])
        both.tail = xp.concat([a.tail[added:, :], b.tail[reach - added :, :]])
        both.tail_codes = np.concatenate([a.tail_codes[added:], b.tail_codes[reach - added :]])
        return both


@dataclass
class SteppedMoments(PairedRows):
    """Moments of the rows, or of the sums ``x_t + x_{t+lag}``, and of the differences ``x_{t+lag} - x_t``.

    Differences are rows with moments of their own: slow columns keep the digits that the difference of two scatters
    would cancel.

    Attributes
    ----------
    level : tuple of Moments
        Of the sums at each lag, or one of the rows.
    steps : tuple of Moments
        Of the differences at each lag.
    sums : bool
        Whether ``level`` is of sums.
    """

    tag: ClassVar[str] = "SteppedMoments"
    lives_there: ClassVar[bool] = True

    level: tuple[Moments, ...] = field(kw_only=True, metadata=KEPT)
    steps: tuple[Moments, ...] = field(kw_only=True, metadata=KEPT)
    sums: bool = False
    _steps: dict[int, Vector] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, d: int, *lags: int, sums: bool = False, edges: tuple[tuple[int, int], ...] = ()) -> SteppedMoments:
        """Return a template."""
        steps = (Moments(d),) * len(lags)
        return cls(d, lags, edges, sums=sums, level=steps if sums else steps[:1], steps=steps)

    def of_lag(self, lag: int) -> SteppedMoments:
        """Return the finished state of one of its lags."""
        i = self.lags.index(lag)
        return replace(self.finished(), lags=(lag,), level=self.level[i : i + 1], steps=self.steps[i : i + 1])

    def _add_rows(self, block: Block) -> None:
        if not self.sums:
            self.level[0].update(block)

    def _add_pairs(self, i: int, earlier: Matrix, later: Matrix, block: Block) -> None:
        steps = later
        steps -= earlier
        if self.sums:
            earlier *= 2
            earlier += steps
            self.level[i].update(self._block(earlier, 2 * block.shift, block))
        if i not in self._steps:
            self._steps[i] = self.xp.mean(steps, axis=0)
        steps -= self._steps[i]
        self.steps[i].update(self._block(steps, self._steps[i], block))

    def _block(self, values: Matrix, shift: Vector, like: Block) -> Block:
        """Return rows of pairs, less a shift, as a block."""
        rows, there = like.rows[: values.shape[0]], self.device.rows(values)
        return replace(like, values=there, rows=rows, shift=shift, sums=like.form.column_sums(there))

    def close(self) -> None:
        for one in (*self.level, *self.steps):
            one.close()
        self._steps = {}
        super().close()

    def _merged(self, other: SteppedMoments) -> SteppedMoments:
        level = tuple(a.merge(b) for a, b in zip(self.level, other.level, strict=True))
        return replace(self, level=level, steps=tuple(a.merge(b) for a, b in zip(self.steps, other.steps, strict=True)))

    def _add_across(self, i: int, earlier: Matrix, later: Matrix) -> None:
        self.steps = self._with(self.steps, i, later - earlier)
        if self.sums:
            self.level = self._with(self.level, i, earlier + later)

    def _with(self, states: tuple[Moments, ...], i: int, rows: Matrix) -> tuple[Moments, ...]:
        """Return the states with a few rows added to the i-th."""
        state = Moments(self.n_features).there(self.device).fresh(0, rows.shape[0])
        state.update(Block.about(rows, np.arange(rows.shape[0]), None, self.device))
        state.close()
        return (*states[:i], states[i].merge(state), *states[i + 1 :])

    def device_bytes(self, rows: BlockForm) -> int:
        # Rows in float64, and those before them too; the ends; and pairs, whose sums are added one after the other.
        held = 8 * self.n_features * (2 * rows.rows + 6 * self.reach) + sum(one.bytes_there for one in self.steps)
        return held + sum(one.device_bytes(replace(rows, itemsize=8)) for one in self.level)

    def cost(self, rows: BlockForm) -> Work:
        d = self.n_features
        held = 8 * (d + 1) * (4 * rows.rows + 4 * self.reach) + 64 * rows.rows  # rows, after the last ones, and pairs
        products = float(2 * rows.columns * (rows.columns + 1) + 4 * d)
        return Work(len(self.lags) * 32 * d**2 + held, len(self.lags) * products)
