"""Columns of a labelled array that have no values, such as land in a field of the sea: found, and left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bigpca.costs import PassCost, SolveCost
from bigpca.data.grids import Grid, Labels, labels_of, with_labels
from bigpca.data.views import View, view_of, viewed
from bigpca.errors import warn_caller
from bigpca.estimators.shared.fit import Reading
from bigpca.estimators.shared.grids import naming_places
from bigpca.estimators.shared.inputs import Opened
from bigpca.estimators.shared.running import running
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.holes import search_columns, search_passes, with_search
from bigpca.passes.rows import RowInput
from bigpca.planning import Resources


@dataclass(frozen=True)
class LandSearch(Reading):
    """The reads before a fit that find the columns without values."""

    @property
    def solver(self) -> str:
        return "columns without values"

    @property
    def account(self) -> str:
        return "they are left out, so the fit is planned once they are known"

    def passes(self) -> tuple[PassCost, ...]:
        return search_passes(self.rows)

    def solve_cost(self) -> SolveCost:
        return SolveCost()

    def identity(self) -> dict[str, object]:
        return {"computes": self.solver, "input": self.rows.describe()}


def may_have_land(opened: Opened) -> bool:
    """Whether columns of X may have no values and are left out then: those of a DataArray of floats."""
    X = opened.array
    return labels_of(X) is not None and view_of(X)[1] is None and X.dtype.kind == "f" and X.shape[0] > 0


def leave_out(opened: Opened, rows: RowInput, resources: Resources, progress: ProgressArgument = None) -> Opened:
    """Find the columns of a DataArray that are NaN in every row, and return the rows without them.

    Raises
    ------
    ValueError
        If all columns are NaN.
    NonFiniteError
        For infinities in the rows that are read.
    """
    labels, search = labels_of(opened.array), LandSearch(rows, resources)
    if labels is None:
        return opened
    reported = None if rows.nan_policy == "raise" else progress
    with (
        naming_places(opened),
        running(search, progress=reported, workers_timeout=rows.workers_timeout) as run,
    ):
        found, made = search_columns(run, rows)
    kept = np.flatnonzero(~found.absent)
    if not len(kept):
        count = int(found.totals[0])
        read = "every row" if count == rows.n_present else f"the first {count} rows" if count > 1 else "the first row"
        raise ValueError(
            f"all {len(found.absent)} columns of X are NaN in {read}, so none has values. Drop such rows: "
            f"X.dropna({labels.grid.samples[0]!r}, how='all')."
        )
    if len(kept) < len(found.absent):
        opened = _cut(opened, replace(labels, grid=replace(labels.grid, kept=kept)))
    if made.found is not None:
        made = replace(made, found=made.found.columns(kept))
    return replace(opened, array=with_search(opened.array, made))


def kept_view(grid: Grid) -> View | None:
    """Return the view of all places of a grid that are its columns, which are checked to have all values."""
    return None if grid.kept is None else View((grid.width,), columns=grid.kept, absent=True)


def like_fitted(opened: Opened, grid: Grid, owner: str) -> Opened:
    """Return new labelled rows on the grid of a fit, without the columns that it left out.

    Raises
    ------
    ValueError
        For another grid.

    Warns
    -----
    UserWarning
        If the rows have fewer coordinates than the fit, along which they are taken by position.
    """
    labels = labels_of(opened.array)
    if labels is None:
        return opened
    grid.check_same(labels.grid, owner)
    unknown = [dim for dim in grid.dims if dim in grid.coords and dim not in labels.grid.coords]
    if unknown:
        warn_caller(
            f"X has no coordinates along {', '.join(unknown)}, but {owner} was fitted with them: its columns are taken "
            f"by position",
            UserWarning,
        )
    opened = replace(opened, names=grid.like(labels.grid).names())
    if view_of(opened.array)[1] is not None:
        return opened
    return _cut(opened, replace(labels, grid=replace(labels.grid, kept=grid.kept)))


def _cut(opened: Opened, labels: Labels) -> Opened:
    view = kept_view(labels.grid)
    if view is None or view.columns is None:
        return opened
    names = None if opened.names is None else opened.names[view.columns]
    array = with_labels(viewed(opened.array, view, names), labels)
    return replace(opened, array=array, names=names, sample=(view.width,))
