"""The read before a fit whose missing values are replaced by the means of their columns."""

from __future__ import annotations

import numpy as np

from bigpca.errors import warn_approximation
from bigpca.passes.accumulators.observed_columns import ObservedColumns
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import fold, row_pass
from bigpca.passes.rows import RowInput

SHOWN_COLUMNS = 5  # in messages


def holes_pass(rows: RowInput) -> tuple[PassPlan, ...]:
    """Declare the read that finds the means of what is there; nothing for rows that are not filled."""
    if rows.fill is None:
        return ()
    template = ObservedColumns(rows.viewed_columns)
    work = float(rows.n_rows) * template.flops_per_row
    cost = row_pass(rows.unfilled(), "means of what is there", [template], cut_bytes=template.state_bytes, work=work)
    return (cost,)


def find_fill(run: Run, rows: RowInput) -> None:
    """Find the means by which missing values are filled, in the read that :func:`holes_pass` declares, if it does.

    Raises
    ------
    ValueError
        For columns without any value.

    Warns
    -----
    ApproximationWarning
        With the share of the missing entries, if there are any.
    """
    for cost in holes_pass(rows):
        found = fold(run, cost, rows.unfilled(), ObservedColumns(rows.viewed_columns)).state
        empty = np.flatnonzero(found.weights == 0)
        if len(empty) and found.totals[0]:
            shown = ", ".join(map(str, empty[:SHOWN_COLUMNS])) + (", ..." if len(empty) > SHOWN_COLUMNS else "")
            raise ValueError(
                f"{len(empty)} of {len(found.weights)} columns have no value in any row, and so no mean to fill in: "
                f"{shown}. Leave them out by bp.open(source, columns=...)."
            )
        if rows.fill is not None:
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
