"""Which rows are drawn, and their scores: at most 20,000, the same whatever the chunks and workers are."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.containers import is_dask_frame, is_path_list
from bigpca.data.sources import open as open_array
from bigpca.errors import format_bytes
from bigpca.plots.numbers import fitted, is_array, name_of
from bigpca.seeds import uniforms

MAX_ROWS = 20_000
SILENT_BYTES = 256 * 2**20  # reads of less are not announced

log = logging.getLogger("bigpca")


@dataclass(frozen=True)
class DrawnScores:
    """Scores of the rows that a figure shows.

    Attributes
    ----------
    scores : ndarray of shape (m, k), float64
        Without the rows that have none (NaN).
    rows : ndarray of shape (m,), int64
        Their absolute numbers, ascending.
    n : int
        Rows that there are.
    omitted : int
        Rows of the sample without scores.
    """

    scores: NDArray[np.float64]
    rows: NDArray[np.int64]
    n: int
    omitted: int

    def title(self) -> str:
        """Return what is shown, in words."""
        shown = len(self.rows) + self.omitted
        text = f"{self.n:,} rows" if shown == self.n else f"{shown:,} of {self.n:,} rows"
        return text + (f", {self.omitted:,} without scores" if self.omitted else "")


def drawn_rows(n: int, seed: int = 0, most: int = MAX_ROWS) -> NDArray[np.int64]:
    """Return which rows of n are drawn: all, or one at a random place in each of ``most`` equal strata.

    >>> drawn_rows(3).tolist(), drawn_rows(10, seed=1, most=5).tolist()
    ([0, 1, 2], [1, 3, 5, 6, 8])
    """
    if n <= most:
        return np.arange(n)
    edges = np.array([i * n // most for i in range(most + 1)])
    places = uniforms(seed, "drawn rows", 0, most, 1)[:, 0]
    chosen: NDArray[np.int64] = edges[:-1] + (places * np.diff(edges)).astype(np.int64)
    return chosen


def drawn_scores(model: Any, X: Any = None, *, seed: int = 0) -> DrawnScores:
    """Return the scores of the rows that are drawn.

    Parameters
    ----------
    model : fitted model, or scores of shape (n, k)
    X : rows (n, d) or scores (n, k), in memory, lazy or stored
        With as many columns as the model has components, and another number than it has features, these are scores;
        otherwise rows, of which the drawn ones are transformed. That reads lazy rows once, which a line of the log
        announces with its bytes.

    Raises
    ------
    TypeError
        Where neither rows nor scores are given.
    ValueError
        For arrays of another width, and rows whose number is unknown.
    """
    if X is None:
        if not is_array(model) and hasattr(model, "fit"):
            raise TypeError(f"no rows were given beside the {name_of(model)}; X, or its scores, were expected.")
        model, X = None, model
    if _in_memory(X):
        frame = hasattr(X, "iloc")
        held: Any = X if frame else np.asarray(X)
        if getattr(model, "pattern_", None) is not None and not _are_scores(model, held.shape):
            held, model = np.asarray(model.transform(held)), None  # a sample may have several rows
        rows = drawn_rows(len(held), seed)
        taken = held.iloc[rows] if frame else held[rows]
        scores = taken if _are_scores(model, held.shape) else model.transform(taken)
        return _shown(np.asarray(scores), rows, len(held))
    opened = open_array(X)
    scores = opened if _are_scores(model, opened.shape) else model.transform(X)
    n = scores.shape[0]
    if np.isnan(n):
        raise ValueError("the number of rows is unknown. Call X.compute_chunk_sizes() first.")
    rows = drawn_rows(int(n), seed)
    if scores is not opened and opened.nbytes > SILENT_BYTES:
        log.warning(
            "the scores of %s drawn rows take one read of X, %s. Scores stored once, by transform(X, out=path), are "
            "drawn without it.", f"{len(rows):,}", format_bytes(opened.nbytes),
        )  # fmt: skip
    return _shown(np.asarray(scores[rows]), rows, int(n))


def _are_scores(model: Any, shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape holds scores."""
    if model is None:
        if len(shape) != 2:
            raise ValueError(f"scores have shape {shape}; (n, k) was expected.")
        return True
    k, d = int(fitted(model).n_components_), int(model.n_features_in_)
    return len(shape) == 2 and shape[1] == k != d


def _shown(scores: NDArray[Any], rows: NDArray[np.int64], n: int) -> DrawnScores:
    known = np.isfinite(scores).all(axis=1)
    return DrawnScores(scores[known].astype(np.float64), rows[known], n, int(len(rows) - known.sum()))


def _in_memory(X: Any) -> bool:
    if isinstance(X, np.memmap | str | os.PathLike):
        return False
    if isinstance(X, list | tuple):
        return not is_path_list(X)
    return isinstance(X, np.ndarray) or (hasattr(X, "iloc") and not is_dask_frame(X))
