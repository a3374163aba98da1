"""The reads of scored PCA before its estimator: one for the scores of features, one for a cross-validation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from bigpca.costs import PassCost, SolveCost
from bigpca.estimators.shared.fit import Reading
from bigpca.estimators.supervised.kept import KeptStatistics
from bigpca.estimators.supervised.labels_fit import LabelledReading
from bigpca.estimators.supervised.scores import LabelSpread
from bigpca.estimators.supervised.selection import Folding


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
