"""The Fisher kernel: two rows are similar if they would change a model's parameters in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.kernels.base import Rows
from bigpca.kernels.features import FeatureKernel
from bigpca.kernels.mixture import GaussianMixtureScore


@dataclass(frozen=True)
class Fisher(FeatureKernel):
    """``k(x, y) = phi(x)' I^(-1) phi(y)``, where phi is the gradient of a model's log-likelihood.

    See Jaakkola & Haussler 1999, eq. 5. The scores ``I^(-1/2) phi(x)`` are its exact feature map. Costs 2 D flops,
    besides the scores of each row.

    Parameters
    ----------
    score : GaussianMixtureScore, its description, an object with ``scores(rows) -> (a, D)``, or such a function
        The scores of rows (a, d), ALREADY multiplied by ``I^(-1/2)``; each depends on its own row only.
    D : int >= 1 or None, default None
        Number of columns of the scores; None for ``score.width(d)``.

    Raises
    ------
    TypeError
        If the score is none of these, or its number of columns is unknown.
    ValueError
        From :meth:`prepare` and :meth:`features`, for scores that are not finite or of another shape.

    Examples
    --------
    >>> Fisher(GaussianMixtureScore([1.0], [[0.0]], [[1.0]]))([[1.0], [2.0]]).round(2).tolist()
    [[1.0, 2.0], [2.0, 8.5]]
    """

    score: Any
    D: int | None = None

    def __post_init__(self) -> None:
        given = self.score
        if isinstance(given, dict) and given.get("score") == GaussianMixtureScore.__name__:
            object.__setattr__(self, "score", GaussianMixtureScore.from_description(given))
        elif not hasattr(given, "scores") and not callable(given):
            raise TypeError(
                f"score = {given!r} is a {type(given).__name__}; an object with scores(rows), or a function of rows, "
                "was expected. Use GaussianMixtureScore.of(mixture) for a Gaussian mixture."
            )
        if self.D is not None and (isinstance(self.D, bool) or not isinstance(self.D, int) or self.D < 1):
            raise ValueError(f"D = {self.D!r} is no number of score columns. Give an integer of at least 1, or None.")
        if self.D is None and not hasattr(self.score, "width"):
            raise TypeError(
                "the number of score columns is unknown: the score has no width(d), and D = None. Give D, or add a "
                "method width(d)."
            )

    def feature_width(self, d: int) -> int:
        return int(self.score.width(d)) if self.D is None else self.D

    def features(self, rows: Rows, first_row: int = 0) -> NDArray[np.floating]:
        scores = np.asarray(self.score.scores(rows) if hasattr(self.score, "scores") else self.score(rows))
        expected = (len(rows), self.feature_width(rows.shape[1]))
        if scores.shape != expected:
            raise ValueError(
                f"scores of {len(rows)} rows have shape {scores.shape}; {expected} was expected, one row of scores for "
                "each row. Correct the score, or D."
            )
        if not np.isfinite(scores).all():
            row, column = np.argwhere(~np.isfinite(scores))[0]
            raise ValueError(
                f"score {column} of row {first_row + row} is {scores[row, column]}, which is not finite. Scale "
                "the data, or give float64."
            )
        return scores.astype(rows.dtype)
