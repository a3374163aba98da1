"""One read of the scores: the rows that figures draw, and those at both ends of each component."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.sources import open as open_array
from bigpca.plots.drawn import DrawnScores, drawn_rows
from bigpca.report.companions import Companions
from bigpca.report.records import Extreme, Extremes

MAX_COMPONENTS = 6  # whose extremes are shown
ROWS_AT_AN_END = 5


@dataclass(frozen=True)
class Ends:
    """Rows with the lowest and highest scores of the leading components, the furthest first.

    Attributes
    ----------
    lowest, highest : ndarray of shape (c, m), int64
    lowest_scores, highest_scores : ndarray of shape (c, m), float64
    """

    lowest: NDArray[np.int64]
    lowest_scores: NDArray[np.float64]
    highest: NDArray[np.int64]
    highest_scores: NDArray[np.float64]


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
    """Read scores (n, k) once, block by block.

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
    rows, leading = drawn_rows(n, seed), min(k, MAX_COMPONENTS)
    low, high, parts, without = _Furthest(leading), _Furthest(leading), [], 0
    for start, block in _blocks(opened):
        known = np.isfinite(block).all(axis=1)
        without += int(len(block) - known.sum())
        absolute = start + np.flatnonzero(known)
        low.add(block[known, :leading].T, absolute)
        high.add(-block[known, :leading].T, absolute)
        first, last = np.searchsorted(rows, (start, start + len(block)))
        parts.append(block[rows[first:last] - start])
    values = np.concatenate(parts)
    shown = np.isfinite(values).all(axis=1)
    drawn = DrawnScores(values[shown], rows[shown], n, int(len(rows) - shown.sum()))
    return ScoresRead(drawn, Ends(low.rows, low.scores, high.rows, -high.scores), without)


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


class _Furthest:
    """The rows with the lowest values so far, of several columns; of equal values, the first rows."""

    def __init__(self, columns: int) -> None:
        self.rows = np.empty((columns, 0), np.int64)
        self.scores = np.empty((columns, 0))

    def add(self, values: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
        """Take in values (columns, b) of b rows."""
        taken = np.concatenate([self.scores, values], axis=1)
        numbered = np.concatenate([self.rows, np.broadcast_to(rows, values.shape)], axis=1)
        lowest = np.argsort(taken, axis=1, kind="stable")[:, :ROWS_AT_AN_END]
        self.scores = np.take_along_axis(taken, lowest, axis=1)
        self.rows = np.take_along_axis(numbered, lowest, axis=1)


def _blocks(opened: Any) -> Iterator[tuple[int, NDArray[np.float64]]]:
    start = 0
    for rows in opened.chunks[0]:
        yield start, np.asarray(opened[start : start + rows], dtype=np.float64)
        start += rows
