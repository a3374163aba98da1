"""The reads that find what there is in each column: which have no values, and the means that fill missing ones.

The verb that finds the rows at both ends of each column, in one read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, Integers, Vector, working_dtype
from bigpca.engine.events import ProgressArgument, resolve_progress
from bigpca.engine.jobs import PassState
from bigpca.engine.planning import SolveCost, plan_of
from bigpca.engine.run import Run
from bigpca.errors import Shown, counted, listed, warn_approximation
from bigpca.passes.accumulators.base import Accumulator, centring_error
from bigpca.passes.accumulators.kept_rows import Furthest, RowsAt, RowTotals
from bigpca.passes.accumulators.moments import StoredColumnMoments
from bigpca.passes.accumulators.observed_columns import ColumnSearch, ObservedBlocks, ObservedColumns
from bigpca.passes.fold import Folded, Read
from bigpca.passes.panels import ColumnRead, column_layout
from bigpca.passes.reading.blocks import INCOMPLETE, PRECISE
from bigpca.passes.reading.readers import ColumnFill
from bigpca.passes.reading.row_maps import Learning, NormalizeTotal, PearsonResiduals, RowPreprocessor, Standardize
from bigpca.passes.rows import Rows

SHOWN_COLUMNS = 5  # in messages


def observing(rows: Rows, name: str, *, first: bool = False) -> Read[Folded[ObservedColumns]]:
    """Declare the read that counts what there is in every column; of the ``first`` rows that are stored together."""
    template, layout = ObservedColumns(rows.viewed_columns), None
    if first:
        start, stop = _first_rows(rows)
        one = (range(1),)
        layout = replace(
            rows.layout(template.state_bytes), n_rows=stop - start, reads=((start, stop),), groups=one, segments=one
        )
    checks = tuple(step for step in rows.steps if not step.f.changes)
    by_columns = None if first else column_layout(replace(rows, steps=checks))
    if by_columns is not None:
        blocks = ObservedBlocks(rows.n_rows, rows.viewed_columns)
        read = ColumnRead.of_columns(replace(rows, steps=checks), name, blocks, by_columns, dtype=np.dtype(np.float64))
        return replace(read, finish=partial(_of_blocks, weights=rows.counted.weights))  # type: ignore[arg-type,return-value]
    return Read.into(replace(rows, steps=checks), name, template, layout=layout)


def _of_blocks(state: PassState, weights: Vector | None) -> Folded[ObservedColumns]:
    found = state.part("dot", ObservedBlocks).whole(weights)
    return Folded(found, 0, int(found.totals[0]))


def _first_rows(rows: Rows) -> tuple[int, int]:
    """Return the first row of positive weight, in memory; elsewhere all rows of its chunk, which are read with it."""
    row = int(np.argmax(rows.counted.which(rows.n_rows)))
    if rows.in_memory:
        return row, row + 1
    ends = np.cumsum(rows.origin.row_chunks)
    chunk = int(np.searchsorted(ends, row, side="right"))
    return int(ends[chunk]) - rows.origin.row_chunks[chunk], int(ends[chunk])


def searches(rows: Rows) -> tuple[Read[Folded[ObservedColumns]], ...]:
    """Declare the reads that find which columns have values, before a fit.

    Where every other column must be complete (``nan_policy="raise"``), the first rows show it: the reads of the fit
    check that no row differs. With "omit", all rows are read if a column has no value in the first; with "mean"
    and the like, the one read finds the means too.
    """
    whole = observing(rows, "columns with values")
    if rows.nan_policy in INCOMPLETE:
        return (whole,)
    first = observing(rows, "columns of the first rows", first=True)
    return (first,) if rows.nan_policy == "raise" else (first, whole.repeated(0, 1))


def search_columns(run: Run, rows: Rows) -> tuple[ObservedColumns, ColumnSearch]:
    """Execute :func:`searches`, and return the last state, with the reads that were made."""
    first, *further = searches(rows)
    state = first(run).state
    if not further or not state.absent.any():
        return state, ColumnSearch((first.cost,), state if rows.nan_policy in INCOMPLETE else None)
    return further[0](run).state, ColumnSearch((first.cost, further[0].cost.repeated(1)))


@dataclass(frozen=True)
class Lesson:
    """A read before a map of a fit, which finds what the map was not given.

    Attributes
    ----------
    of : Learning
    rows : Rows
        What is read.
    name : str
        What is found.
    states : dict of str to Accumulator
    taught : callable
        Returns what the map becomes, from what it is and the merged states.
    about_zero : bool
        Whether rows are unshifted, so that sums of counts are exact.
    """

    of: Learning
    rows: Rows
    name: str
    states: Mapping[str, Accumulator]
    taught: Callable[[Learning, Mapping[str, Accumulator]], RowPreprocessor]
    about_zero: bool = True

    @cached_property
    def read(self) -> Read[dict[str, Accumulator]]:
        """The read."""
        kinds = _Parts({name: type(one) for name, one in self.states.items()})
        return Read.into(self.rows, self.name, self.states, dtype=PRECISE).to(kinds)

    def learn(self, run: Run) -> None:
        """Read, and put what was found into the map."""
        shift = np.zeros(self.rows.n_columns) if self.about_zero else None
        self.of.found = self.taught(self.of, self.read(run, shift=shift))


@dataclass(frozen=True)
class FillLesson(Lesson):
    """The read that finds the means which fill missing values, or about which rows with gaps are."""

    @cached_property
    def read(self) -> Read[dict[str, Accumulator]]:
        """The read, with another result."""
        return cast("Read[dict[str, Accumulator]]", observing(self.rows, self.name))

    def learn(self, run: Run) -> None:
        """Read; raises ValueError for columns without any value."""
        fill, found = cast("ColumnFill", self.of), cast("Folded[ObservedColumns]", self.read(run)).state
        empty = np.flatnonzero(found.absent)
        if len(empty) and found.totals[0]:
            raise ValueError(
                f"{len(empty)} of {len(found.weights)} columns have no value in any row, so there is no mean to fill "
                f"in: {listed(empty, SHOWN_COLUMNS)}. Leave them out by bp.open(source, columns=...)."
            )
        fill.means = found.means
        if not fill.leaves:
            warn_of_filled(found)


@dataclass(frozen=True)
class _Parts:
    """Picklable; runs where the merged states are, and returns them."""

    kinds: Mapping[str, type[Accumulator]]

    def __call__(self, state: PassState) -> dict[str, Accumulator]:
        return {name: state.part(name, kind) for name, kind in self.kinds.items()}


def lessons(rows: Rows) -> tuple[Lesson, ...]:
    """Declare the reads that find what maps of these rows were not given, in order: each needs those before it."""
    found = list[Lesson]()
    for i, step in enumerate(rows.steps):
        before = replace(rows, steps=rows.steps[:i])
        if isinstance(step.f, ColumnFill) and step.f.means is None and rows.origin.search is None:  # which finds them
            found.append(FillLesson(cast("Learning", step.f), before, "means of the observed values", {}, _sharing))
        if not isinstance(step.f, Learning):
            continue
        own = cast("Sequence[Lesson]", step.f.lessons(before))
        if isinstance(step.f.found, NormalizeTotal):
            own = (totals_lesson(step.f, before),)
        elif isinstance(step.f.found, PearsonResiduals):
            sums = {"state": StoredColumnMoments(before.n_columns)}
            own = (Lesson(step.f, before, "shares of the columns", sums, _sharing),)
        elif isinstance(step.f.found, Standardize):
            moments = StoredColumnMoments(before.n_columns)
            name, states = "means and deviations of the columns", {"state": moments}
            own = (Lesson(step.f, before, name, states, _standardizing, about_zero=False),)
        found += own
    return tuple(found)


def totals_lesson(of: Learning, rows: Rows) -> Lesson:
    """Declare the read that finds the target of a map to the median of the sums of the rows."""
    return Lesson(of, rows, "sums of the rows", {"totals": RowTotals(16 * rows.n_rows)}, _with_target)


def _with_target(of: Learning, states: Mapping[str, Accumulator]) -> RowPreprocessor:
    return replace(of.found, target=cast("RowTotals", states["totals"]).median)  # type: ignore[type-var]


def _standardizing(of: Learning, states: Mapping[str, Accumulator]) -> RowPreprocessor:
    state = cast("StoredColumnMoments", states["state"])
    if state.lost is not None:
        centring_error(state.lost, state.squares)  # or raises
    scale = np.sqrt(np.maximum(state.squares, 0) / (state.weight - 1))
    given = cast("Standardize", of.found)
    return replace(given, mean=tuple(state.mean.tolist()), scale=tuple(scale.tolist()))


def _sharing(of: Learning, states: Mapping[str, Accumulator]) -> RowPreprocessor:
    state, given = cast("StoredColumnMoments", states["state"]), cast("PearsonResiduals", of.found)
    return given.with_sums(state.mean, state.weight)


def warn_of_filled(found: ObservedColumns) -> None:
    """Report the share of the missing entries, if there are any."""
    share, without = found.missing_share, int(found.totals[2])
    if not share > 0:
        return
    rows = f" {counted(without, 'row')} without any value became the mean row." if without else ""
    warn_approximation(
        f"{share:.3g} of the entries are missing and were replaced by the means of their columns.{rows} The "
        f"decomposition is that of the filled matrix: if entries are missing at random, the total variance is "
        f"{1 - share:.3g} of that of complete rows, and eigenvalues far above the variance of a column are about "
        f"{(1 - share) ** 2:.3g} of theirs."
    )


@dataclass(frozen=True, repr=False)
class Ends(Shown):
    """Rows with the lowest and highest values of each column, the furthest first.

    Attributes
    ----------
    lowest, highest : ndarray of shape (c, m), int64
        Numbers of the rows; m is the number asked for, or that of all rows with values if there are fewer.
    lowest_scores, highest_scores : ndarray of shape (c, m), float64
    lowest_keys, highest_keys : ndarray of shape (c, m), str, or None, default None
        Keys of those rows; None where rows have no keys.
    names : tuple of str, or None, default None
        Of the columns, which are components; None where they are not known.
    """

    lowest: Integers
    lowest_scores: NDArray[np.float64]
    highest: Integers
    highest_scores: NDArray[np.float64]
    lowest_keys: NDArray[np.str_] | None = None
    highest_keys: NDArray[np.str_] | None = None
    names: tuple[str, ...] | None = None

    def cells(self) -> list[tuple[str, ...]]:
        """Return the first rows at both ends of each column."""
        sides = [
            (self.lowest if self.lowest_keys is None else self.lowest_keys, self.lowest_scores),
            (self.highest if self.highest_keys is None else self.highest_keys, self.highest_scores),
        ]
        shown = (
            tuple(
                ", ".join(f"{row} ({score:.3g})" for row, score in zip(names[i][:3], scores[i][:3], strict=True))
                + (", ..." if len(names[i]) > 3 else "")
                for names, scores in sides
            )
            for i in range(len(self.lowest))
        )
        columns = self.names or map(str, range(len(self.lowest)))
        return [("component", "lowest", "highest"), *((name, *ends) for name, ends in zip(columns, shown, strict=True))]


@dataclass(frozen=True)
class EndsRead:
    """What one read found.

    Attributes
    ----------
    ends : Ends
    chosen : ndarray of shape (m, n_columns), with ``chosen_rows`` (m,)
        The chosen rows that have values, and their numbers, ascending.
    omitted : int
        Rows omitted because of missing values.
    """

    ends: Ends
    chosen: Array
    chosen_rows: Integers
    omitted: int


def _ends_of(state: PassState) -> EndsRead:
    """Picklable; runs where the merged state is."""
    found, (numbers, chosen) = state.part("ends", Furthest), state.part("chosen", RowsAt).found()
    ends = Ends(found.rows[0], found.values[0], found.rows[1], -found.values[1])
    return EndsRead(ends, chosen, numbers, state.omitted)


def read_ends(
    rows: Rows, n: int, *, columns: int | None = None, chosen: Integers | None = None, progress: ProgressArgument = None
) -> EndsRead:
    """Return the n rows with the lowest and the n with the highest values of each column, and chosen rows: one read.

    Parameters
    ----------
    rows : Rows
        Rows of n_columns numbers, after the maps. With ``nan_policy="omit"``, rows with NaN are at no end.
    columns : int or None
        c, the leading columns whose ends are wanted, at most n_columns; None for all.
    chosen : ndarray of int64, ascending, or None
        Numbers of further rows to return.

    Raises
    ------
    MemoryBudgetError
        Before any read, if the blocks do not fit.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read; names rows and block.
    """
    width = rows.n_columns
    wanted = np.zeros(0, np.int64) if chosen is None else chosen
    states: dict[str, Accumulator] = {
        "ends": Furthest(min(width, columns or width), n),
        "chosen": RowsAt(width, wanted),
    }
    read = Read.into(rows, "ends of the columns", states, dtype=working_dtype(rows.dtype)).to(_ends_of)
    plan = plan_of([read.cost], SolveCost(), rows.order.resources, solver=read.cost.name, reason="one read")
    plan.check()
    with resolve_progress(progress) as report:
        run = Run(None, report, "local" if rows.order.in_process else None, plan.peak_bytes)
        return read(run, shift=np.zeros(width))  # one pass over X
