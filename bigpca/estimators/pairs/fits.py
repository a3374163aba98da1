"""One read of rows side by side into their joint moments, with folds, and the solve of a problem from them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import ClassVar, Generic, TypeVar, cast

import numpy as np

from bigpca.arrays import Matrix, Vector
from bigpca.data.batches import has_batches
from bigpca.estimators.linear.maps import projected, read_again
from bigpca.estimators.shared.fit import Fit
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.labelled import open_side
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.cross_moments import FoldStates
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import Folded, fold, row_pass
from bigpca.passes.reading.blocks import PRECISE
from bigpca.passes.rows import Rows, blocks_of_batches, naming_sides, side_by_side
from bigpca.planning import PassCost, SolveCost, Times
from bigpca.solvers.eigh import eigh_bytes
from bigpca.solvers.moments import Frame

Found = TypeVar("Found")
State = TypeVar("State", bound=Accumulator)


def open_pair(rows: Rows, Y: Unchecked, owner: str, names: str = "XY") -> Rows:
    """Return opened rows of X with those of Y side by side; Y of None stands for the second arrays of batches.

    Raises
    ------
    ValueError
        If there is no Y; as :func:`bigpca.passes.rows.side_by_side`, and for batches of a different number of arrays.
    """
    if Y is None and has_batches(rows.X):
        joined = blocks_of_batches(rows)
        if joined is not None and len(joined.widths) != 2:
            raise ValueError(f"the batches have {len(joined.widths)} blocks; pairs (X, Y) were expected.")
        if joined is not None:
            return joined
    if Y is None:
        raise ValueError(f"{owner} requires y to be passed, but the target y is None. Give {names[1]} of shape (n, q).")
    return side_by_side([rows, open_side(Y, owner, names[1])], names)


def placed_in_folds(states: FoldStates, joined: Rows, groups: Unchecked = None, least: int = 2) -> FoldStates:
    """Return the states of folds, with the fold of each row of sides that are begun.

    Rows of one label are a fold. Without labels, a fold is a hash of the key of the row, and where rows have no keys,
    of its number. So rows with keys have the same folds in any order and in any process, and all rows that a pattern
    makes of one sample are in one fold.

    Raises
    ------
    ValueError
        For labels that are missing or do not belong to the rows, and for fewer than ``least`` groups.
    """
    from bigpca.data.keys import in_row_order, keys_of_rows  # imports all formats of labels
    from bigpca.data.labels import class_values, label_values

    sides = joined.origin.sides or (joined.origin,)
    if groups is not None:
        values, gaps = label_values(in_row_order(groups, sides[0].given, word="group"), "group")
        n = "unknown number of" if joined.order.open_ended else f"{joined.n_rows:,}"
        names, codes = np.unique(values, return_inverse=True)
        if joined.order.open_ended or values.shape != (joined.n_rows,) or gaps.any() or len(names) < least:
            raise ValueError(
                f"groups must have one label for each of the {n} rows, of at least {least} groups; they have shape "
                f"{values.shape}, {gaps.sum():,} gaps and {len(names):,} different labels."
            )
        labels = class_values(names, np.zeros(len(names), bool))
        return replace(states, n_folds=len(names), codes=codes.astype(np.int32), labels=labels)
    for keys in (keys_of_rows(side.given) for side in sides):
        if keys.names is not None and not keys.loose:
            hashes = (hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=4) for key in keys.names)
            drawn = np.fromiter((int.from_bytes(one.digest(), "big") for one in hashes), np.int64)
            folds = (drawn * states.n_folds >> 32).astype(np.int32)
            return replace(states, codes=folds if keys.places is None else folds[keys.places])
    return states


@dataclass(frozen=True)
class Refinement:
    """The rows of a second read, in which the scatters of both sides are near the identity, and their state.

    ``T_x'(x - mean_x)`` beside ``T_y'(y - mean_y)``, or beside ``y - mean_y - B'(x - mean_x)``.

    Attributes
    ----------
    mean : ndarray of shape (p + q,)
    x : Frame
    y : Frame or None
    B : ndarray of shape (p, q), or None
    state : Accumulator or None
        Once it is read.
    """

    mean: Vector
    x: Frame
    y: Frame | None = None
    B: Matrix | None = None
    state: Accumulator | None = None

    def of(self, rows: Rows) -> Rows:
        """Return the rows of the second read, from those of the first."""
        p, d = len(self.x.T), len(self.mean)
        M = np.eye(d)
        M[:p, :p] = self.x.T
        if self.y is not None:
            M[p:, p:] = self.y.T
        if self.B is not None:
            M[:p, p:] = -self.B
        return projected(rows, self.mean, M)


@dataclass(frozen=True)
class PairFit(Fit[Found], Generic[Found, State]):
    """One read of both sides, and a solve from their moments; one more where that has too few digits.

    Attributes
    ----------
    template : Accumulator
        Moments of all columns, or one state for each fold.
    solve : callable
        (state, omitted, refinement or None) -> the result.
    before : Accumulator or None
        The state to which that of these rows is added.
    refine : callable or None
        Result -> the rows of a second read, or None where it has enough digits.
    """

    solver: ClassVar[str] = "covariance"

    template: State
    solve: Callable[[State, int, Refinement | None], Found]
    before: State | None = None
    refine: Callable[[Found], Refinement | None] | None = None

    @property
    def account(self) -> str:
        d = self.rows.n_columns
        folds = f", for each of {self.template.n_folds} folds" if isinstance(self.template, FoldStates) else ""
        return (
            f"one read of both sides, {' + '.join(map(str, self.rows.widths))} columns, and a {d} x {d} matrix{folds}"
        )

    @cached_property
    def moments(self) -> PassPlan:
        """The read."""
        return row_pass(self.rows, "pairs", [self.template], cut_bytes=self.template.state_bytes, dtype=PRECISE)

    @cached_property
    def again(self) -> PassPlan | None:
        """The second read, if there may be one: of values that are stored in float64, which can be read again."""
        rows = None if self.refine is None else read_again(self.rows)
        size, times = self.template.state_bytes, Times(0, 1)
        if rows is None:
            return None
        return row_pass(rows, "refined", [self.template], cut_bytes=size, times=times, dtype=PRECISE)

    def passes(self) -> tuple[PassCost, ...]:
        return (self.moments,) if self.again is None else (self.moments, self.again)

    def solve_cost(self) -> SolveCost:
        d = self.rows.n_columns
        states, size = getattr(self.template, "n_folds", 1), self.template.state_bytes
        if isinstance(self.template, FoldStates) and isinstance(self.before, FoldStates):
            states = len(self.before.union(self.template)[0])
            size = states * self.template.template.state_bytes
        flops = 9.0 * sum(float(width) ** 3 for width in self.rows.widths) * states
        return SolveCost(flops, bytes=3 * size + 9 * 8 * d * d + eigh_bytes(d), output_bytes=size + 16 * d * 64)

    def identity(self) -> dict[str, object]:
        """The moments depend on the input alone, so one checkpoint serves any number of components and penalties."""
        return {"computes": "pairs", "input": self.rows.describe(), "state": self.template.describe()}

    def read(self, run: Run) -> Folded[State]:
        """Return the state of X and Y."""
        return self._folded(run, self.moments, self.rows)

    def _folded(self, run: Run, cost: PassPlan, rows: Rows) -> Folded[State]:
        with naming_sides(self.rows.widths):
            read = fold(run, cost, rows, self.template)  # one pass over X and Y
        if isinstance(read.state, FoldStates):
            read.state.n_rows = read.rows
        return read

    def run(self, run: Run) -> Found:
        read = self.read(run)
        found = self.solve(read.state, read.omitted, None)
        second = None if self.again is None or self.refine is None else self.refine(found)
        if second is None or self.again is None:
            return found
        state = self._folded(run, self.again, second.of(self.rows)).state
        return self.solve(read.state, read.omitted, replace(second, state=state))


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


def jackknife(values: Vector) -> float:
    """Return the standard error of a statistic from its values (f,) without each of f folds (Efron & Tibshirani 1993,
    eq. 11.5).
    """
    f = len(values)
    return float(np.sqrt((f - 1) / f * np.sum((values - values.mean()) ** 2)))


def whole_moments(state: Accumulator) -> Moments:
    """Return the moments of all rows of a state, which may be one for each fold."""
    if isinstance(state, FoldStates):
        return whole_moments(merged(state.states))
    found = getattr(state, "moments", state)
    if not isinstance(found, Moments):
        raise TypeError(f"the state holds {type(found).__name__}, Moments were expected")
    return found
