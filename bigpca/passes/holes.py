"""The reads that find what there is in each column: which have no values, and the means that fill missing ones."""

from __future__ import annotations

from dataclasses import replace

import dask.array as da
import numpy as np

from bigpca.costs import Times
from bigpca.data.marks import mark
from bigpca.errors import warn_approximation
from bigpca.passes.accumulators.observed_columns import SEARCH, ColumnSearch, ObservedColumns
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import fold, row_pass
from bigpca.passes.rows import RowInput

SHOWN_COLUMNS = 5  # in messages


def observed_pass(rows: RowInput, name: str, *, first: bool = False) -> PassPlan:
    """Declare the read that counts what there is in every column; of the ``first`` rows that are stored together."""
    template, layout = ObservedColumns(rows.viewed_columns), None
    size, work = template.state_bytes, rows.dense_work(template)
    if first:
        start, stop = _first_rows(rows)
        one = (range(1),)
        layout = replace(rows.layout(size), n_rows=stop - start, reads=((start, stop),), groups=one, segments=one)
    return row_pass(rows.unfilled(), name, [template], cut_bytes=size, work=work, layout=layout)


def _first_rows(rows: RowInput) -> tuple[int, int]:
    """Return the first row of positive weight, in memory; elsewhere all rows of its chunk, which are read with it."""
    row = 0 if rows.weights is None else int(np.argmax(rows.weights > 0))
    if rows.in_memory:
        return row, row + 1
    ends = np.cumsum(rows.row_chunks)
    chunk = int(np.searchsorted(ends, row, side="right"))
    return int(ends[chunk]) - rows.row_chunks[chunk], int(ends[chunk])


def observe(run: Run, rows: RowInput, cost: PassPlan) -> ObservedColumns:
    """Count what there is in every column, by a read that :func:`observed_pass` declared."""
    return fold(run, cost, rows.unfilled(), ObservedColumns(rows.viewed_columns)).state


def search_passes(rows: RowInput) -> tuple[PassPlan, ...]:
    """Declare the reads that find which columns have values, before a fit.

    Where every other column must be complete (``nan_policy="raise"``), the first rows show it: the reads of the fit
    check that no row differs. With "omit", all rows are read if a column has no value in the first; with "mean", the
    one read finds the means too.
    """
    whole = observed_pass(rows, "what is there")
    if rows.nan_policy == "mean":
        return (whole,)
    first = observed_pass(rows, "columns of the first rows", first=True)
    return (first,) if rows.nan_policy == "raise" else (first, whole.repeated(Times(0, 1)))


def search_columns(run: Run, rows: RowInput) -> tuple[ObservedColumns, ColumnSearch]:
    """Execute :func:`search_passes`, and return the last state, with the reads that were made."""
    first, *further = search_passes(rows)
    state = observe(run, rows, first)
    if not further or not state.absent.any():
        return state, ColumnSearch((first,), state if rows.nan_policy == "mean" else None)
    return observe(run, rows, further[0]), ColumnSearch((first, further[0].repeated(Times(1, 1))))


def with_search(X: da.Array, search: ColumnSearch) -> da.Array:
    """Return rows (n, d) with the reads that find which columns have values, for :class:`RowInput`."""
    return mark(X, SEARCH, search)


def holes_pass(rows: RowInput) -> tuple[PassPlan, ...]:
    """Declare the read that finds the means of what is there; nothing if none are needed, or they were found."""
    if rows.fill is None or rows.search is not None:
        return ()
    return (observed_pass(rows, "means of what is there"),)


def find_fill(run: Run, rows: RowInput) -> None:
    """Find the means by which missing values are filled, if they are, in the read that :func:`holes_pass` declares.

    Raises
    ------
    ValueError
        For columns without any value.

    Warns
    -----
    ApproximationWarning
        With the share of the missing entries, if there are any.
    """
    found = None if rows.search is None else rows.search.found
    for cost in holes_pass(rows):
        found = observe(run, rows, cost)
    if rows.fill is None or found is None:
        return
    empty = np.flatnonzero(found.absent)
    if len(empty) and found.totals[0]:
        shown = ", ".join(map(str, empty[:SHOWN_COLUMNS])) + (", ..." if len(empty) > SHOWN_COLUMNS else "")
        raise ValueError(
            f"{len(empty)} of {len(found.weights)} columns have no value in any row, and so no mean to fill in: "
            f"{shown}. Leave them out by bp.open(source, columns=...)."
        )
    rows.fill.means = found.means
    if found.missing_share > 0:
        warn_approximation(_filled(found))


def _filled(found: ObservedColumns) -> str:
    share, without = found.missing_share, int(found.totals[2])
    rows = f" {without} rows without any value became the mean row." if without else ""
    return (
        f"{share:.3g} of the entries are missing and were replaced by the means of their columns.{rows} The "
        f"decomposition is that of the filled matrix: where entries are missing at random, the total variance is "
        f"{1 - share:.3g} of that of complete rows, and eigenvalues far above the variance of a column are about "
        f"{(1 - share) ** 2:.3g} of theirs."
    )
