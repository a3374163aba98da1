"""Moments of pairs: of rows at a lag, formed in the task that reads them, and of blocks of columns side by side."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Integers, Matrix, Vector, multiply_packed
from bigpca.costs import BlockForm, Work
from bigpca.data.weights import Codes
from bigpca.forms import cached_rows
from bigpca.passes.accumulators.base import KEPT, Accumulator, kept
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.blocks import Block
from bigpca.solvers.pairs import Columns, block_edges


@dataclass
class SteppedMoments(Accumulator):
    """Moments of rows in an order, or of the sums ``x_t + x_{t+lag}``, and of the differences ``x_{t+lag} - x_t``.

    Differences are rows with moments of their own: slow columns keep the digits that the difference of two scatters
    would cancel. A state has the rows at its two ends, from which a merge forms the pairs across the border: so a pair
    counts once, however the rows are cut. A pair counts if both of its rows are there, have one code, and are not on
    two sides of the end of a line.

    Attributes
    ----------
    n_features, lag : int
    level : Moments
        Of the rows, or of the sums.
    steps : Moments
        Of the differences.
    sums : bool
        Whether ``level`` is of sums.
    width : int or None
        Rows of a line, at whose end no pair begins.
    codes : ndarray of shape (rows,), int32, or ColumnRows, or None
        Trajectories of rows ``first_row : first_row + rows``.
    ends : bool
        Whether the state has its ends, so that rows that follow can be added.
    count : int
        Number of rows.
    first, last : int
        Numbers of the first and the last row.
    head, tail : ndarray of shape (lag, d)
        Rows ``first : first + lag`` and ``last - lag + 1 : last + 1``; any numbers where there is no row.
    head_codes, tail_codes : ndarray of shape (lag,)
        Their codes, 0 without any; NaN where there is no row.
    """

    tag: ClassVar[str] = "SteppedMoments"
    lives_there: ClassVar[bool] = True
    by_row: ClassVar[str | None] = "codes"
    gaps: ClassVar[tuple[str, ...]] = ("head_codes", "tail_codes")

    n_features: int
    lag: int
    level: Moments = field(metadata=KEPT)
    steps: Moments = field(metadata=KEPT)
    sums: bool = False
    width: int | None = None
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
    _step: Vector | None = field(default=None, repr=False)

    @classmethod
    def of(cls, d: int, lag: int, *, sums: bool = False, width: int | None = None) -> SteppedMoments:
        """Return a template."""
        return cls(d, lag, Moments(d), Moments(d), sums, width)

    @property
    def _ends(self) -> int:
        return self.lag * self.ends

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
            self.head_codes = np.full(self.lag, np.nan)
        rows = self.put(block.values.astype(np.float64, copy=False))
        codes = self._codes_of(numbers)
        if not self.sums:
            self.level.update(block)
        # 1. Pairs whose later row is in this block; rows are in order of their numbers.
        known, of_known = xp.concat([self._recent, rows]), np.concatenate([self._numbers, numbers])
        codes_known, lag = np.concatenate([self._codes, codes]), self.lag
        # Without a search, where each pair of known rows counts.
        single = not self.width and bool((codes_known == codes_known[0]).all())
        if single and len(of_known) == 1 + int(of_known[-1]) - int(of_known[0]):
            begin = max(0, lag - len(of_known) + block.count)
            if begin < block.count:
                earlier = known[len(of_known) - block.count + begin - lag : len(of_known) - lag, :]
                self._add_pairs(xp.asarray(earlier, copy=True), xp.asarray(rows[begin:, :], copy=True), block)
        else:
            at = np.searchsorted(of_known, numbers - lag)
            own = np.flatnonzero(of_known[at] == numbers - lag)
            own = own[self._counted(codes_known[at[own]], codes[own], numbers[own] - lag)]
            if len(own):
                self._add_pairs(self._taken(known, at[own]), self._taken(rows, own), block)
        # 2. The rows at both ends.
        self.count, self.last = self.count + block.count, int(numbers[-1])
        head = np.flatnonzero(numbers < self.first + self.lag)
        if len(head):
            at = numbers[head] - self.first
            self.head, self.head_codes[at] = self._placed(self.head, at, self._taken(rows, head)), codes[head]
        recent = np.flatnonzero(of_known > self.last - self.lag)
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
        source = np.arange(self.lag)
        source[at] = self.lag + np.arange(len(at))
        return self._taken(self.xp.concat([end, rows]), source)

    def _counted(self, earlier: Vector, later: Vector, numbers: Integers) -> NDArray[np.bool_]:
        """Return which pairs count, from the codes of both of their rows and the number of the earlier one."""
        own: NDArray[np.bool_] = earlier == later
        return own if self.width is None else own & (numbers % self.width != self.width - 1)

    def close(self) -> None:
        if self._recent is not None and self._numbers is not None and self._shift is not None:
            at, shift = self._numbers - (self.last - self.lag + 1), self.put(self._shift)
            self.head, self.tail = self.head + shift, self._placed(self.tail, at, self._recent) + shift
            self.tail_codes = np.full(self.lag, np.nan)
            self.tail_codes[at] = self._codes
        super().close()

    def merge(self, other: Self) -> Self:
        if not other.count or not self.count:
            return self if self.count else other
        a, b = (self, other) if self.first <= other.first else (other, self)
        level, steps, lag = a.level.merge(b.level), a.steps.merge(b.steps), self.lag
        both = replace(a, level=level, steps=steps, count=a.count + b.count, last=b.last)
        if not self.ends:
            return both
        gap = b.first - a.last - 1  # rows without values
        if gap < lag:
            # Pairs across the border; the tail of a and the head of b hold all of their rows. NaN, of no row, equals
            # nothing.
            numbers = a.last - lag + 1 + gap + np.arange(lag - gap)
            own = np.flatnonzero(self._counted(a.tail_codes[gap:], b.head_codes[: lag - gap], numbers))
            if len(own):
                earlier, later = self._taken(a.tail, gap + own), self._taken(b.head, own)
                both.steps = self._with(steps, later - earlier)
                both.level = self._with(level, earlier + later) if self.sums else level
        # The ends of both: one that is shorter than the lag lends the rows of the other.
        begun, added, xp = min(lag, b.first - a.first), min(lag, b.last - a.last), self.xp
        both.head = xp.concat([a.head[:begun, :], b.head[: lag - begun, :]])
        both.head_codes = np.concatenate([a.head_codes[:begun], b.head_codes[: lag - begun]])
        both.tail = xp.concat([a.tail[added:, :], b.tail[lag - added :, :]])
        both.tail_codes = np.concatenate([a.tail_codes[added:], b.tail_codes[lag - added :]])
        return both

    def _add_pairs(self, earlier: Matrix, later: Matrix, block: Block) -> None:
        """Add pairs, about the shift of the block that has the later rows; they are overwritten."""
        steps = later
        steps -= earlier
        if self.sums:
            earlier *= 2
            earlier += steps
            self.level.update(self._block(earlier, 2 * block.shift, block))
        self._step = self.xp.mean(steps, axis=0) if self._step is None else self._step
        steps -= self._step
        self.steps.update(self._block(steps, self._step, block))

    def _block(self, values: Matrix, shift: Vector, like: Block) -> Block:
        """Return rows of pairs, less a shift, as a block."""
        rows, there = like.rows[: values.shape[0]], self.device.rows(values)
        return replace(like, values=there, rows=rows, shift=shift, sums=like.form.column_sums(there))

    def _with(self, state: Moments, rows: Matrix) -> Moments:
        """Return a state with a few rows added."""
        more = Moments(self.n_features).there(self.device).fresh(0, rows.shape[0])
        more.update(Block.about(rows, np.arange(rows.shape[0]), None, self.device))
        more.close()
        return state.merge(more)

    def device_bytes(self, rows: BlockForm) -> int:
        # Rows in float64, and those before them too; the ends; and pairs, whose sums are added one after the other.
        held = 8 * self.n_features * (2 * rows.rows + 6 * self.lag) + self.steps.bytes_there
        return held + self.level.device_bytes(replace(rows, itemsize=8))

    def cost(self, rows: BlockForm) -> Work:
        d = self.n_features
        held = 8 * (d + 1) * (4 * rows.rows + 4 * self.lag) + 64 * rows.rows  # rows, after the last ones, and pairs
        products = float(2 * rows.columns * (rows.columns + 1) + 4 * d)
        return Work(32 * d**2 + held, products)


@dataclass
class CrossMoments(Accumulator):
    """Moments of L blocks of columns side by side, and the sums of their row norms, all about the mean.

    With ``u_i(t) = |x_i(t) - mean_i|^2`` of block i of row t: ``norms = sum_t u(t)`` (L,), ``products = sum_t u(t)
    u(t)'`` (L, L) and ``vectors = sum_t u(t) (x(t) - mean)'`` (L, d), in float64. Beside the scatter they give the
    unbiased HSIC of every two blocks (Song et al. 2012, eq. 5). Inside a group the sums are about its shift; they are
    moved to its mean when it closes, and to the common mean when two states merge. Third and fourth moments move with
    the scatter, exactly: sums about a distant shift would lose them.

    Rows have no weights: copies would count as independent pairs.

    Attributes
    ----------
    widths : tuple of int
        Columns of each block.
    moments : Moments of all columns
    norms : ndarray of shape (L,), products : ndarray of shape (L, L), vectors : ndarray of shape (L, d)
    """

    tag: ClassVar[str] = "CrossMoments"

    widths: tuple[int, ...]
    moments: Moments = field(metadata=KEPT)
    norms: Vector = kept("_blocks")
    products: Matrix = kept("_blocks", "_blocks")
    vectors: Matrix = kept("_blocks", "n_features")
    _shift: Vector | None = field(default=None, repr=False)

    @property
    def n_features(self) -> int:
        """Columns of all blocks."""
        return sum(self.widths)

    @property
    def _blocks(self) -> int:
        return len(self.widths)

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.moments.count

    @property
    def edges(self) -> list[Columns]:
        """The columns of each block."""
        return block_edges(self.widths)

    def update(self, block: Block) -> None:
        self._shift = block.shift
        self.moments.update(block)
        edges, step = self.edges, cached_rows(8 * self.n_features)
        for i in range(0, block.count, step):
            rows = block.values[i : i + step].astype(np.float64, copy=False)
            # u_i(t) = |x_i(t)|^2 of each block: the diagonal of its kernel matrix, which the unbiased estimate leaves
            # out.
            u = np.stack([np.einsum("ij,ij->i", rows[:, one], rows[:, one]) for one in edges])
            self.norms += u.sum(axis=1)
            self.products += u @ u.T
            self.vectors += u @ rows

    def close(self) -> None:
        shift = self._shift
        super().close()
        if shift is not None and self.count:
            # From sums about the shift to sums about the mean: z = x - shift becomes z - offset.
            offset = self.moments.mean - shift
            self.norms, self.products, self.vectors = self._moved(-offset, self.count * offset)

    def _moved(self, d: Vector, sums: Vector) -> tuple[Vector, Matrix, Matrix]:
        """Return the sums moved from rows z to rows z + d; ``sums = sum_t z(t)``, and the moments are final.

        z -> z + d gives u -> u + e with e = 2 d_i'z_i + |d_i|^2 for each block i.
        """
        n, edges = self.count, self.edges
        D = np.zeros((self.n_features, len(edges)))
        for i, one in enumerate(edges):
            D[one, i] = d[one]
        c = np.array([d[one] @ d[one] for one in edges])
        # Of the rows z: G = (sum z z') D, from the scatter about their mean; ds = D' sum z, e1 = sum e, and sum e e'.
        ds = D.T @ sums
        G = multiply_packed(self.moments.packed, D) + np.outer(sums / max(n, 1), ds)
        e1 = 2 * ds + n * c
        ee = 4 * D.T @ G + 2 * np.outer(ds, c) + 2 * np.outer(c, ds) + n * np.outer(c, c)
        # sum u e' = 2 (sum u z') D + (sum u) c', and (u + e)(u + e)' = u u' + u e' + e u' + e e'.
        shared = 2 * self.vectors @ D + np.outer(self.norms, c)
        added = np.outer(self.norms, d) + 2 * G.T + np.outer(c, sums) + np.outer(e1, d)
        return self.norms + e1, self.products + (shared + shared.T + ee), self.vectors + added

    def merge(self, other: CrossMoments) -> CrossMoments:
        if not other.count or not self.count:
            return self if self.count else other
        moments = self.moments.merge(other.moments)
        # Each side's sums move from its own mean to the common one, and then add up.
        still = np.zeros(self.n_features)
        parts = [one._moved(one.moments.mean - moments.mean, still) for one in (self, other)]
        return CrossMoments(self.widths, moments, *(a + b for a, b in zip(*parts, strict=True)))

    def cost(self, rows: BlockForm) -> Work:
        d, size = self.n_features, len(self.widths)
        strip = 16 * d * min(rows.rows, cached_rows(8 * d)) + 8 * 6 * size * d
        return self.moments.cost(rows) + Work(strip, float((2 + 2 * size) * d))
