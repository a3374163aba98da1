"""Rows, weights and labels as users pass them to a fit: opened, checked, and planned before any of them is read."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Protocol

import dask.array as da
import numpy as np

from bigpca.data.batch_labels import BatchLabels
from bigpca.data.batches import batch_labels
from bigpca.data.weights import degrees_of_freedom, open_weights, weight_sum
from bigpca.estimators.shared.fit import Reading
from bigpca.estimators.shared.inputs import Input, Opened
from bigpca.estimators.shared.land import leave_out, may_have_land
from bigpca.estimators.shared.seeding import fit_seed
from bigpca.passes.accumulators.observed_columns import ColumnSearch
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.engine.speed import machine_speed
from bigpca.passes.holes import search_passes, with_search
from bigpca.passes.row_checks import reject_weights
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan
from bigpca.settings import setting


class Fitting(Protocol):
    """An estimator that is to be fitted."""

    nan_policy: str
    _min_rows: ClassVar[int]
    _unweighted: ClassVar[str]
    _labelled: ClassVar[bool]
    _labels_beside_rows: ClassVar[bool]

    @property
    def _policies(self) -> dict[str, Input]: ...

    def _open(self, X: Input, *, minimum: int = 1) -> Opened: ...

    def _fit(self, opened: Opened, y: Input) -> Reading: ...


def plan(self: Fitting, X: Input, y: Input = None, *, sample_weight: Input = None) -> Plan:
    """Return the cost of ``fit(X, y, sample_weight=...)`` without reading X: print the plan, or use its fields.

    The first plan on a machine takes about a second, to measure the speed from which times are estimated.
    Of a lazy DataArray all columns are counted, because only a read shows which have no values: ``plan_`` after the
    fit has the numbers of the others.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.
    y : labels as for :meth:`fit`, default None
    sample_weight : weights of the rows as for :meth:`fit`, default None

    Returns
    -------
    Plan
        Solver, reads, bytes, memory in bytes and time in seconds.

    Raises
    ------
    MemoryBudgetError
        If no solver fits in memory (``solver="auto"``); the plan of a named solver has ``fits = False`` instead.
    """
    opened = replace(open_weighted(self, X, sample_weight, read=False), seed=fit_seed(self))
    planned = planned_weighted(self, opened, y)
    planned.check_readable()
    return replace(planned.plan, speed=machine_speed())


def open_weighted(
    self: Fitting, X: Input, weights: Input, *, read: bool = True, progress: ProgressArgument = None
) -> Opened:
    """Open X with the weights of its rows, for a fit; the options are those of :func:`without_land`."""
    opened = with_weights(self._open(X, minimum=self._min_rows), weights)
    if opened.weights is not None:
        sums = weight_sum(opened.weights), float(opened.weights @ opened.weights)
        degrees_of_freedom(int(np.count_nonzero(opened.weights)), sums)
    return without_land(self, opened, read=read, progress=progress)


def with_weights(opened: Opened, weights: Input) -> Opened:
    """Return the rows with their weights, if there are any."""
    if weights is None:
        return opened
    return replace(opened, weights=open_weights(weights, opened.array))


def without_land(self: Fitting, opened: Opened, *, read: bool = True, progress: ProgressArgument = None) -> Opened:
    """Return the rows of a DataArray without the columns that have no values, others unchanged.

    Unless ``read`` is True or the rows are in memory, those columns remain, and only the reads that will find them are
    declared.
    """
    if not may_have_land(opened):
        return opened
    rows = RowInput(opened.array, **self._policies)
    rows = rows if opened.weights is None else rows.weighted(opened.weights)
    if not read and not rows.in_memory:
        return replace(opened, array=with_search(opened.array, ColumnSearch(search_passes(rows))))
    resources = find_resources(setting(self, "memory_limit"), in_process=rows.in_process)
    return leave_out(opened, rows, resources, progress)


def labels_of_fit(self: Input, X: da.Array, y: Input) -> Input:
    """Return the labels of a fit in the order of the rows: y, or those that come with batches.

    The latter are returned in advance if the fit requires that. Labels that the estimator ignores are not looked at.
    """
    if not self._labelled:
        return y
    from bigpca.data.alignment import in_row_order  # imports all formats of labels, which other fits do not need

    drop = getattr(self, "missing_labels", "raise") == "drop"
    found = batch_labels(X, in_row_order(y, X, absent=None if drop else "raise"))
    return found.in_advance() if isinstance(found, BatchLabels) and not self._labels_beside_rows else found


def planned_weighted(self: Fitting, opened: Opened, y: Input) -> Reading:
    """Plan the fit, and reject weights that it does not read.

    Raises
    ------
    TypeError
    """
    planned = self._fit(opened, labels_of_fit(self, opened.array, y))
    if opened.weights is not None and planned.rows.weights is None:
        reject_weights(planned.rows.weighted(opened.weights), [type(self).__name__], self._unweighted)
    return planned
