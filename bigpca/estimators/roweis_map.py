"""``roweis_map``: the models of a whole grid of (r1, r2) from one read, and their scores on held-out rows from one more."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from bigpca.data.labels import open_labels
from bigpca.estimators.fitting import running
from bigpca.estimators.label_statistics import fold_labels
from bigpca.estimators.projection import Projection
from bigpca.estimators.roweis import RoweisDiscriminantAnalysis
from bigpca.estimators.roweis_axes import check_classes, check_factor, family_axes, family_of
from bigpca.estimators.supervised_model import SupervisedFit
from bigpca.passes.progress import ProgressArgument
from bigpca.passes.project import project_in_memory, project_lazily
from bigpca.passes.rows import RowInput

CRITERIA = ("nearest-mean", "1-nn")
SPACINGS = ("even", "log")


@dataclass(frozen=True)
class RoweisMap:
    """Fitted models on a grid.

    Attributes
    ----------
    r1, r2 : ndarray of shape (a,), (b,)
    models : list of a lists of b RoweisDiscriminantAnalysis
        ``models[i][j]`` is fitted with ``r1[i]`` and ``r2[j]``.
    """

    r1: NDArray[np.float64]
    r2: NDArray[np.float64]
    models: list[list[RoweisDiscriminantAnalysis]]

    def errors(self, X: Any, y: Any, *, criterion: str = "nearest-mean") -> NDArray[np.float64]:
        """Return the share of held-out rows that are classified wrongly by their scores, (a, b): one read of X.

        Parameters
        ----------
        X, y
            Rows that were not fitted, and their classes.
        criterion : {"nearest-mean", "1-nn"}
            By the nearest mean of the training classes, or by the nearest of the other held-out rows.

        Raises
        ------
        ValueError
            For another criterion, or classes that the models do not know.
        """
        if criterion not in CRITERIA:
            raise ValueError(f'criterion = {criterion!r} is unknown; "nearest-mean" or "1-nn" was expected.')
        first = self.models[0][0]
        flat = [model for line in self.models for model in line]
        opened = first._open(X, reset=False)
        rows = RowInput(opened, **first._policies)
        labels: Any = open_labels(y, rows.n_rows, kind="classes", missing=first.missing_labels, min_classes=1)
        truth = labels.with_classes(first.classes_).codes
        stacked = np.concatenate([model.components_ for model in flat])
        projection = Projection(first.mean_, None, stacked, None, first.nan_policy)
        if rows.in_memory:
            scores = project_in_memory(rows, projection, len(stacked))
        else:
            scores = np.asarray(project_lazily(opened, projection, len(stacked), missing_chunks=first.missing_chunks))
        ends = np.cumsum([len(model.components_) for model in flat])
        found = [
            _error(model, own, truth, criterion)
            for model, own in zip(flat, np.split(scores, ends[:-1], axis=1), strict=True)
        ]
        return np.array(found).reshape(len(self.r1), len(self.r2))


def _error(model: RoweisDiscriminantAnalysis, scores: NDArray[Any], truth: NDArray[Any], criterion: str) -> float:
    """Return the share of rows whose nearest mean or neighbour is of another class."""
    from sklearn.neighbors import NearestNeighbors

    known = np.isfinite(scores).all(axis=1) & (truth >= 0)
    scores, truth = scores[known], truth[known]
    least = 1 if criterion == "nearest-mean" else 2
    if len(truth) < least:
        raise ValueError(
            f"{len(truth)} held-out rows have labels and no missing values; at least {least} were expected for "
            f'criterion = "{criterion}". Give more rows.'
        )
    if criterion == "nearest-mean":
        seen = np.flatnonzero(model.class_counts_)  # a class whose rows were all left out has no mean
        means = (model.class_means_[seen] - model.mean_) @ model.components_.T
        nearest = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(means)
        return float(np.mean(seen[nearest.kneighbors(scores, return_distance=False)[:, 0]] != truth))
    nearest = NearestNeighbors(n_neighbors=1).fit(scores)
    return float(np.mean(truth[nearest.kneighbors(None, return_distance=False)[:, 0]] != truth))


def grid_values(grid: int | Sequence[float], spacing: str, n: int) -> NDArray[np.float64]:
    """Return the values of r1 or r2: given ones, or so many from 0 to 1.

    Logarithmic ones are 0 and ``n^-2 ... 1``: the range in which the terms of R1 and R2 outweigh each other.

    Raises
    ------
    TypeError, ValueError
        For values outside [0, 1], fewer than one of them or than two to choose, and an unknown spacing.
    """
    if spacing not in SPACINGS:
        raise ValueError(f'spacing = {spacing!r} is unknown; "even" or "log" was expected.')
    if isinstance(grid, Sequence | np.ndarray):
        values = np.array([check_factor("grid value", value) for value in grid])
        if not len(values):
            raise ValueError("grid has no values; numbers from 0 to 1 were expected. Give some, or how many.")
        return values
    if isinstance(grid, bool) or int(grid) != grid or grid < 2:
        raise ValueError(
            f"grid = {grid} values; an integer of at least 2 was expected. Give 11, or the values themselves."
        )
    if spacing == "even":
        return np.linspace(0.0, 1.0, int(grid))
    most = 2 * float(np.log10(max(n, 2)))
    return np.concatenate([[0.0], np.logspace(0.0, -most, int(grid) - 1)[::-1]])


def roweis_map(
    X: Any,
    y: Any,
    grid: int | Sequence[float] = 11,
    *,
    spacing: str = "even",
    model: RoweisDiscriminantAnalysis | None = None,
    progress: ProgressArgument = None,
) -> RoweisMap:
    """Fit Roweis discriminant analysis at every (r1, r2) of a grid, from ONE read of X.

    Cost beyond the read: one whole eigenproblem of order d, and one of the leading k pairs for each model.

    Parameters
    ----------
    X, y
        Rows, and their classes.
    grid : int, or sequence of float in [0, 1]
        Values of r1 and of r2.
    spacing : {"even", "log"}
        Of so many values. On large n an even grid of the printed formula holds its corners only: use "log", or a model with
        ``normalize=True``.
    model : RoweisDiscriminantAnalysis
        With the parameters of all models; r1 and r2 are replaced. By default of two components.
    progress
        As in ``fit``.

    Returns
    -------
    RoweisMap

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1, 2], 40)
    >>> X = rng.standard_normal((120, 4)) + 4 * np.eye(4)[y]
    >>> found = roweis_map(X, y, 3)
    >>> found.errors(X, y).shape
    (3, 3)
    """
    template = RoweisDiscriminantAnalysis(2) if model is None else model
    seen = copy(template)
    job = (
        clone(template).set_params(r1=0.5, r2=0.5, solver="covariance")._job(seen, X, y)
    )  # the (d, d) scatter serves every point
    job.plan.check()
    grid_values(grid, spacing, job.rows.n_rows)  # refused before the read
    with running(
        job.rows, None, checkpoint=None, progress=progress, workers_timeout=template.workers_timeout, plan=job.plan
    ) as options:
        statistics = fold_labels(job.rows, job.templates, options)
    check_classes(statistics, 1.0, 1.0)
    family = family_of(statistics, normalize=template._normalized, threads=template.solve_threads)
    values = grid_values(grid, spacing, statistics.count)
    models = []
    for r1 in values:
        line = []
        for r2 in values:
            own = clone(template).set_params(r1=float(r1), r2=float(r2))
            axes = family_axes(family, r1, r2, own.n_components, own._conditioning, statistics.n_classes)
            own._remember_features(seen)
            own._take(SupervisedFit(statistics, job.supervision, axes), job.plan.solver)
            own.plan_ = job.plan
            line.append(own)
        models.append(line)
    return RoweisMap(values, values.copy(), models)
