"""How many features scored PCA keeps, by cross-validation: one read of the scatter of every fold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from bigpca.costs import PassCost, SolveCost
from bigpca.data.views import columns_of
from bigpca.estimators.shared.fit import Reading
from bigpca.estimators.shared.inputs import Input
from bigpca.estimators.supervised.labels import Labelled
from bigpca.estimators.supervised.scores import one_hot
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.class_moments import ClassMoments
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.engine.states import PassState
from bigpca.passes.fold import fold_to, row_pass
from bigpca.passes.reading.layout import plan_layout
from bigpca.passes.reading.row_maps import Beside, MapStep
from bigpca.passes.rows import RowInput
from bigpca.planning import Resources
from bigpca.seeds import integers
from bigpca.solvers.components import resolve_components
from bigpca.solvers.eigh import top_eigenpairs
from bigpca.triangles import unpack

MAX_CANDIDATES = 2048  # columns among which cross-validation chooses


def some_columns(X: da.Array, q: int | None) -> da.Array:
    """Return q columns of X, or as many as cross-validation chooses among: to plan with."""
    return columns_of(X, np.arange(q or min(X.shape[1], MAX_CANDIDATES)))


def explained_shares(folds: list[ClassMoments], ranked: NDArray[np.int64], n_components: Input) -> dict[int, float]:
    """Return the mean explained share of the folds left out by number of features: q, q / 2, q / 4, and so on.

    Parameters
    ----------
    folds : list of ClassMoments
        Of the q candidate columns, and the labels after them.
    ranked : ndarray of shape (q,)
        The candidates among the columns of the folds, from the highest score to the lowest.
    n_components : int, float, a rule or None
        No fewer features than an integer are tried.
    """
    q = len(ranked)
    least = min(q, int(n_components)) if isinstance(n_components, Integral) else 1
    counts = sorted({max(least, q >> i) for i in range(q.bit_length())}, reverse=True)
    return {
        count: float(np.mean([explained_share(folds, f, ranked[:count], q, n_components) for f in range(len(folds))]))
        for count in counts
    }


def explained_share(
    folds: list[ClassMoments], left_out: int, columns: NDArray[np.int64], q: int, n_components: Input
) -> float:
    """Return the share of the labels' variance in one fold that components and regression of the others explain."""
    train = None
    for f, own in enumerate(folds):
        if f != left_out:
            train = own if train is None else train.merge(own)
    test = folds[left_out]
    if train is None or test.count < 2:
        return 0.0
    S, mean = unpack(train.within, train.n_features), train.means[0]
    targets = np.arange(q, S.shape[0])
    counted = isinstance(n_components, Integral)
    values, axes = top_eigenpairs(
        S[np.ix_(columns, columns)].copy(), min(int(n_components), len(columns)) if counted else None
    )
    k = len(values) if counted else resolve_components(n_components, values, values.sum(), train.count, len(columns))
    axes = axes[:k][values[:k] > len(columns) * np.finfo(np.float64).eps * values[0]]
    variances = axes @ S[np.ix_(columns, columns)] @ axes.T
    B = np.linalg.pinv(variances, hermitian=True) @ axes @ S[np.ix_(columns, targets)]  # (k, m)
    W = axes.T @ B
    off = test.means[0] - mean  # residual of y - mean_y - (x - mean_x) W, summed over the fold by its moments
    T = unpack(test.within, test.n_features) + test.count * np.outer(off, off)
    residual = np.trace(
        T[np.ix_(targets, targets)] - 2 * W.T @ T[np.ix_(columns, targets)] + W.T @ T[np.ix_(columns, columns)] @ W
    )
    total = float(np.trace(T[np.ix_(targets, targets)]))
    return 1.0 - float(residual) / total if total > 0 else 0.0


@dataclass(frozen=True)
class Folding(Reading):
    """The read of the scatter of each fold of the rows, of the candidate columns and the labels.

    Attributes
    ----------
    templates : dict of str to Accumulator
    about : dict
        The identity of labels, candidates and folds.
    """

    templates: dict[str, Accumulator]
    about: Mapping[str, object]

    @classmethod
    def of(
        cls, rows: RowInput, resources: Resources, labelled: Labelled, candidates: NDArray[np.int64], folds: int,
        seed: int,
    ) -> Folding:  # fmt: skip
        """Return the read of rows of the candidate columns, beside which it puts the labels.

        Parameters
        ----------
        folds : int
            Each labelled row is in one of them, drawn by the seed.
        """
        features = labelled.features
        if features is None:
            beside, m = Beside(labelled.known_codes, partial(one_hot, n_classes=labelled.n_classes)), labelled.n_classes
        else:
            beside, m = Beside(features.whole(), np.asarray), features.shape[1]
        rows = rows.mapped(MapStep(beside, rows.n_columns + m))
        drawn, used = integers(seed, "folds", 0, len(labelled.known_codes), 1, folds)[:, 0], labelled.known_codes >= 0
        templates: dict[str, Accumulator] = {
            f"fold-{f}": ClassMoments(rows.n_columns, 1, np.where(used & (drawn == f), 0, -1).astype(np.int32))
            for f in range(folds)
        }
        about = {"labels": labelled.describe(), "candidates": candidates.tolist(), "folds": [folds, seed]}
        return cls(rows, resources, templates, about)

    @property
    def solver(self) -> str:
        return "folds"

    @property
    def account(self) -> str:
        return "one read of rows and labels"

    @cached_property
    def folds(self) -> PassPlan:
        """The read."""
        states = self.templates.values()
        size, work = sum(one.state_bytes for one in states), self.rows.dense_work(*states)
        rows, exact = self.rows, np.dtype(np.float64)  # of rows and labels side by side
        layout = plan_layout(rows.row_chunks, rows.n_columns, exact, size)
        return row_pass(rows, "folds", states, cut_bytes=size, work=work, layout=layout, dtype=exact)

    def passes(self) -> tuple[PassCost, ...]:
        return (self.folds,)

    def solve_cost(self) -> SolveCost:
        return SolveCost(4.0 * self.folds.state_bytes / 8, bytes=3 * self.folds.state_bytes)

    def identity(self) -> dict[str, object]:
        return {"computes": "folds", "input": self.rows.describe(), **self.about}

    def read(self, run: Run) -> list[ClassMoments]:
        """Return the scatter of each fold."""
        return fold_to(run, self.folds, self.rows, self.templates, _take_folds)  # one pass over X


def _take_folds(state: PassState) -> list[ClassMoments]:
    return [state.part(name, ClassMoments) for name in state.parts]
