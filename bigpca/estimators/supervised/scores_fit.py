"""The reads of scored PCA before its estimator: one for the scores of features, one for a cross-validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from bigpca.costs import PassCost, SolveCost
from bigpca.estimators.shared.fit import Reading
from bigpca.estimators.supervised.kept import KeptStatistics
from bigpca.estimators.supervised.labels import Labelled
from bigpca.estimators.supervised.labels_fit import LabelledReading
from bigpca.estimators.supervised.scores import LabelSpread, one_hot
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


@dataclass(frozen=True)
class Scoring(LabelledReading):
    """The read that the scores of features are computed from."""

    @property
    def account(self) -> str:
        return "one read of rows and labels"

    def passes(self) -> tuple[PassCost, ...]:
        return (self.labels,)

    @property
    def spread(self) -> LabelSpread | None:
        """The spread of real labels; None for classes."""
        features, codes = self.labelled.features, self.labelled.known_codes
        return None if features is None else LabelSpread.of(features.values[np.flatnonzero(codes >= 0)])

    def solve_cost(self) -> SolveCost:
        return SolveCost(4.0 * self.labels.state_bytes / 8, bytes=3 * self.labels.state_bytes)

    def identity(self) -> dict[str, object]:
        return {
            "computes": "feature scores", "input": self.rows.describe(), "labels": self.labelled.describe(),
        }  # fmt: skip


@dataclass(frozen=True)
class ScoredResult:
    """The result of scored PCA.

    Attributes
    ----------
    kept : KeptStatistics
        Statistics of the labelled rows.
    spread : LabelSpread or None
        Of real labels.
    scores : ndarray of shape (d,)
    selected : ndarray of shape (q,)
        Features, in order.
    estimator : Estimator
        Fitted to those.
    cv_scores : dict of int to float, or None
        Explained share by number of features.
    """

    kept: KeptStatistics
    spread: LabelSpread | None
    scores: NDArray[np.float64]
    selected: NDArray[np.int64]
    estimator: BaseEstimator
    cv_scores: dict[int, float] | None


@dataclass(frozen=True)
class ScoredFit(Reading):
    """The scores of features, a cross-validation if requested, and a fit to some columns, each as a separate run.

    Attributes
    ----------
    scoring : Scoring
    folding : Folding or None
    fit : Fit
        To the number of columns that will be selected, whichever they are.
    """

    scoring: Scoring
    folding: Folding | None
    fit: Reading

    @property
    def solver(self) -> str:
        return f"scores, then {self.fit.solver}"

    @property
    def account(self) -> str:
        return f"{self.scoring.account}; {self.fit.reason}"

    @property
    def notes(self) -> tuple[str, ...]:
        return self.fit.notes

    @property
    def max_evaluations(self) -> float:
        return self.fit.max_evaluations

    @property
    def parts(self) -> tuple[Reading, ...]:
        """All of them, in order."""
        return (self.scoring, *(() if self.folding is None else (self.folding,)), self.fit)

    def passes(self) -> tuple[PassCost, ...]:
        """Declare the passes of all parts."""
        names = ("scores", "folds", "fit") if self.folding else ("scores", "fit")
        declared = (self.scoring.passes(), *(part.declared for part in self.parts[1:]))
        return tuple(
            replace(one, name=f"{name}: {one.name}")
            for name, passes in zip(names, declared, strict=True)
            for one in passes
        )

    def solve_cost(self) -> SolveCost:
        costs = [part.solve_cost() for part in self.parts]
        return SolveCost(
            flops=sum(cost.flops for cost in costs), between=sum(cost.between for cost in costs),
            bytes=max(cost.bytes for cost in costs), held_bytes=max(cost.held_bytes for cost in costs),
            output_bytes=costs[-1].output_bytes + self.output_bytes,
        )  # fmt: skip

    @property
    def output_bytes(self) -> int:
        """Bytes of scores, chosen features, and statistics."""
        labelled, d, m = self.scoring.labelled, self.rows.n_columns, self.scoring.labelled.columns
        spread = 0 if labelled.features is None else 8 * (1 + m + m * m)
        return labelled.kept_bytes(d, whole=False) + 8 * (4 + d + self.fit.rows.n_columns) + spread

    def identity(self) -> dict[str, object]:
        return {"computes": "scored", "parts": [part.identity() for part in self.parts]}


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
        size, work = sum(one.state_bytes for one in states), sum(one.flops_per_row for one in states)
        rows, exact = self.rows, np.dtype(np.float64)  # of rows and labels side by side
        layout = plan_layout(rows.row_chunks, rows.n_columns, exact, size)
        return row_pass(
            rows, "folds", states, cut_bytes=size, work=float(rows.n_rows) * work, layout=layout, dtype=exact
        )

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
