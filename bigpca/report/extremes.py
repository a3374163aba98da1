"""One read of the scores: the rows that figures draw, and those at both ends of each component."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.sources import open as open_array
from bigpca.passes.ends import Ends, read_ends
from bigpca.passes.rows import RowInput
from bigpca.plots.drawn import DrawnScores, drawn_rows
from bigpca.report.companions import Companions
from bigpca.report.records import Extreme, Extremes

MAX_COMPONENTS = 6  # whose extremes are shown
ROWS_AT_AN_END = 5


@dataclass(frozen=True)
class ScoresRead:
    """What one read of the scores found.

    Attributes
    ----------
    drawn : DrawnScores
    ends : Ends
    without : int
        Rows that have no scores.
    """

    drawn: DrawnScores
    ends: Ends
    without: int


def read_scores(scores: Any, k: int, *, seed: int = 0) -> ScoresRead:
    """Read scores (n, k) once.

    Raises
    ------
    ValueError
        For scores of another width than k.
    """
    opened = open_array(scores)
    if opened.shape[1] != k:
        raise ValueError(
            f"the scores have {opened.shape[1]} columns, but the model has {k} components. Give the scores that this "
            "model wrote."
        )
    n = int(opened.shape[0])
    rows = drawn_rows(n, seed)
    found = read_ends(RowInput(opened, nan_policy="omit"), ROWS_AT_AN_END, columns=MAX_COMPONENTS, chosen=rows)
    values = found.chosen.astype(np.float64)
    drawn = DrawnScores(values, found.chosen_rows, n, len(rows) - len(values))
    return ScoresRead(drawn, found.ends, found.omitted)


def describe_ends(ends: Ends, names: list[str], known: Companions) -> tuple[Extremes, ...]:
    """Return the rows at both ends of each component, with their names, labels and pictures."""

    def described(rows: NDArray[np.int64], scores: NDArray[np.float64]) -> tuple[Extreme, ...]:
        return tuple(
            Extreme(int(row), float(score), known.name(row), known.label(row), known.picture(row))
            for row, score in zip(rows, scores, strict=True)
        )

    sides = zip(ends.lowest, ends.lowest_scores, ends.highest, ends.highest_scores, strict=True)
    return tuple(
        Extremes(name, described(low, low_scores), described(high, high_scores))
        for name, (low, low_scores, high, high_scores) in zip(names, sides, strict=False)
    )
