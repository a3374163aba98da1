"""``roweis_map``: the models of a grid of (r1, r2) from one read, and their errors on new rows from one more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from bigpca.arrays import Array, Input, Integers, Matrix
from bigpca.blas import blas_threads
from bigpca.data.labels import ClassLabels, open_labels
from bigpca.engine.driver import solving_with
from bigpca.engine.events import ProgressArgument
from bigpca.errors import check_choice
from bigpca.estimators.linear.maps import Projection
from bigpca.estimators.linear.sums import SumsFit
from bigpca.estimators.shared.fit import execute, fit_seed
from bigpca.estimators.shared.opening import opened, read_mapped, rows_like
from bigpca.estimators.shared.transformer import finish
from bigpca.estimators.supervised.linear_supervised import RoweisDiscriminantAnalysis
from bigpca.estimators.supervised.model import SupervisedResult
from bigpca.estimators.supervised.problems import check_classes, labels_of
from bigpca.estimators.supervised.statistics import KeptLabels
from bigpca.parameters import FACTOR
from bigpca.passes.accumulators.kept_rows import RowsAt
from bigpca.settings import setting

CRITERIA = ("nearest-mean", "1-nn")


@dataclass(frozen=True)
class RoweisMap:
    """Fitted models on a grid.

    Attributes
    ----------
    r1, r2 : ndarray of shape (a,), (b,)
    models : list of a lists of b fitted models
        ``models[i][j]`` is fitted with ``r1[i]`` and ``r2[j]``.
    """

    r1: NDArray[np.float64]
    r2: NDArray[np.float64]
    models: list[list[RoweisDiscriminantAnalysis]]

    def errors(self, X: Input, y: Input, *, criterion: str = "nearest-mean") -> NDArray[np.float64]:
        """Return the share of held-out rows that are classified wrongly by their scores, (a, b): one read of X.

        Parameters
        ----------
        X, y
            Rows that were not fitted, and their classes.
        criterion : {"nearest-mean", "1-nn"}, default "nearest-mean"
            The class of the nearest mean of the training classes, or of the nearest other held-out row.

        Returns
        -------
        ndarray of shape (a, b), float64
            Shares of the rows in [0, 1].

        Raises
        ------
        ValueError
            For an unknown criterion, or classes that the models do not have.
        """
        check_choice("criterion", criterion, CRITERIA)
        first = self.models[0][0]
        flat = [model for line in self.models for model in line]
        rows, missing = rows_like(first, X, y, use="more"), first.missing_labels
        labels = cast("ClassLabels", open_labels(rows.y, rows.n_rows, kind="classes", missing=missing, min_classes=1))
        truth = labels.with_classes(first.classes_).codes
        ends = np.cumsum([model.n_components_ for model in flat])
        width, labelled = int(ends[-1]), RowsAt(int(ends[-1]), np.flatnonzero(labels.used))
        flops = 2 * first.n_features_in_ * width
        # The scores of all models, side by side.
        components = np.concatenate([model.components_ for model in flat])
        joint = Projection(first.mean_, None, components, None, first.nan_policy)
        numbers, scores = read_mapped(rows, joint, labelled, "scores of the map", width=width, flops=flops).found()
        seen = np.flatnonzero(first.class_counts_)  # a class whose rows were all omitted has no mean
        means = first.class_means_[seen] - first.mean_
        parts = zip(flat, np.split(scores, ends[:-1], axis=1), strict=True)
        found = [_error(seen, means @ one.components_.T, part, truth[numbers], criterion) for one, part in parts]
        return np.array(found).reshape(len(self.r1), len(self.r2))


def _error(classes: Integers, means: Matrix, scores: Array, truth: Array, criterion: str) -> float:
    """Return the share of rows whose nearest mean (c, k), of these classes (c,), or neighbour is of another class."""
    from sklearn.neighbors import NearestNeighbors

    least = 1 if criterion == "nearest-mean" else 2
    if len(truth) < least:
        raise ValueError(
            f"{len(truth)} held-out rows have labels and no missing values; at least {least} were expected for "
            f'criterion = "{criterion}". Give more rows.'
        )
    if criterion == "nearest-mean":
        nearest = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(means)
        return float(np.mean(classes[nearest.kneighbors(scores, return_distance=False)[:, 0]] != truth))
    nearest = NearestNeighbors(n_neighbors=1).fit(scores)
    return float(np.mean(truth[nearest.kneighbors(None, return_distance=False)[:, 0]] != truth))


def grid_values(grid: int | Sequence[float]) -> NDArray[np.float64]:
    """Return the values of r1 or r2: the given ones, or the given number of them from 0 to 1.

    Raises
    ------
    TypeError, ValueError
        For values outside [0, 1], and fewer than one of them or than two to choose.
    """
    if isinstance(grid, Sequence | np.ndarray):
        if not len(grid):
            raise ValueError("grid has no values. Give numbers from 0 to 1, or how many of them.")
        for value in grid:
            FACTOR.check("grid value", value)
        return np.array(grid, float)
    if isinstance(grid, bool) or int(grid) != grid or grid < 2:
        raise ValueError(
            f"grid = {grid} values; an integer of at least 2 was expected. Give 11, or the values themselves."
        )
    return np.linspace(0.0, 1.0, int(grid))


def roweis_map(
    X: Input,
    y: Input,
    grid: int | Sequence[float] = 11,
    *,
    model: RoweisDiscriminantAnalysis | None = None,
    progress: ProgressArgument = None,
) -> RoweisMap:
    """Fit Roweis discriminant analysis at every (r1, r2) of a grid, from one read of X.

    It also costs one complete eigenproblem of order d, and one for the leading k pairs of each model. For a kernel,
    give the scores of all axes of :class:`bigpca.NystromKernelPCA`.

    Parameters
    ----------
    X, y
        Rows, and their classes.
    grid : int, or sequence of float in [0, 1], default 11
        Values of r1 and of r2; a number of them is evenly spaced. For large n, an even grid of the printed formula
        shows only its corners: give ``[0, *np.logspace(-2 * np.log10(n), 0, 10)]``, or a model with
        ``normalize=True``.
    model : RoweisDiscriminantAnalysis
        Its parameters are used for all models; r1 and r2 are replaced. By default of two components.
    progress : default None
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
    if not isinstance(template, RoweisDiscriminantAnalysis):
        raise TypeError(
            f"model = {template!r} has no parameters r1 and r2 for a linear map. Give a RoweisDiscriminantAnalysis; "
            "Fisher's discriminant is the map's corner (0, 1)."
        )
    given, template = template, clone(template).set_params(r1=0.5, r2=0.5)  # the whole scatter determines all points
    problem, rows = template._problem(), replace(opened(template, X, y), seed=fit_seed(template))
    fit = cast("SumsFit[SupervisedResult]", template._fit(rows, rows.y))
    values = grid_values(grid)
    # Rejected before the read, as are values outside [0, 1]: a scatter that must be singular.
    if 1.0 in values:
        problem.at(0.5, 1.0).check_labels(labels_of(fit.rows), fit.rows.n_columns)
    found, made = execute(given, fit, fit.read, "bigpca.roweis_map(X, y, model={})", progress=progress)
    kept = cast("KeptLabels", found)
    statistics = kept.state
    check_classes(statistics, 1.0, 1.0)
    flops = 20.0 * statistics.moments.n_features**3  # as of one fit, so that the models have its bits
    with solving_with(setting(template, "solve_threads")), blas_threads(problem.threads, flops):
        # One rotation into the eigenvectors of S_W serves all points; each then takes its k leading pairs.
        family = problem.at(1.0, 1.0).family(statistics)
        models: list[list[RoweisDiscriminantAnalysis]] = []
        for r1 in values:
            models.append([])
            for r2 in values:
                own = clone(template).set_params(r1=float(r1), r2=float(r2))
                axes = problem.at(r1, r2).axes(family, statistics)
                finish(own, rows, fit.plan, own._result_of(kept, supervision=kept.supervision, axes=axes))
                own._provenance = made
                models[-1].append(own)
    return RoweisMap(values, values.copy(), models)
