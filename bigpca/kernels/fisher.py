"""The Fisher kernel: two rows are similar if they would change a model's parameters in the same way.

With the scores of a diagonal Gaussian mixture, these are the Fisher vectors of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, held_array
from bigpca.kernels.base import FeatureKernel, json_value
from bigpca.records import described

Table = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class GaussianMixtureScore:
    """``I^(-1/2)`` times the gradient of ``log sum_c w_c N(x; mean_c, diag(covariance_c))`` (a, K (1 + 2 d)).

    With the posteriors gamma_c and the standard deviations s_c, the columns are (Sanchez et al. 2013, eqs. 16-18, of
    one descriptor; Perronnin & Dance 2007, sec. 3)

    - ``(gamma_c - w_c) / sqrt(w_c)``, the weights as a softmax, K columns,
    - ``gamma_c (x - mean_c) / s_c / sqrt(w_c)``, K d columns,
    - ``gamma_c ((x - mean_c)^2 / s_c^2 - 1) / sqrt(2 w_c)``, K d columns.

    I is the papers' diagonal approximation for components that do not overlap: w_c for a weight, w_c / s_c^2 for a
    mean, 2 w_c / s_c^2 for a standard deviation. The exact information of the weights is ``diag(w) - w w'``, of
    rank K - 1.

    Parameters
    ----------
    weights : K numbers > 0 with sum 1
    means : K rows of d numbers
    covariances : K rows of d variances > 0
        As ``weights_``, ``means_`` and ``covariances_`` of ``sklearn.mixture.GaussianMixture(covariance_type="diag")``.

    Raises
    ------
    ValueError
        If shapes do not match, or numbers are out of range.

    Examples
    --------
    >>> score = GaussianMixtureScore([1.0], [[0.0]], [[4.0]])
    >>> score.scores(np.array([[2.0], [4.0]])).round(3).tolist()
    [[0.0, 1.0, 0.0], [0.0, 2.0, 2.121]]
    """

    weights: tuple[float, ...] | Sequence[float]
    means: Table | Sequence[Sequence[float]]
    covariances: Table | Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        parts = {name: getattr(self, name) for name in ("weights", "means", "covariances")}
        weights, means, covariances = (held_array(one, name).astype(np.float64) for name, one in parts.items())
        if weights.ndim != 1 or means.ndim != 2 or len(means) != len(weights) or covariances.shape != means.shape:
            raise ValueError(
                f"weights, means and covariances have shapes {weights.shape}, {means.shape} and {covariances.shape}; "
                "(K,), (K, d) and (K, d) were expected. Give the variances of a diagonal mixture, "
                'as scikit-learn fits them with GaussianMixture(K, covariance_type="diag").'
            )
        if not (weights > 0).all() or not abs(weights.sum() - 1) <= 1e-6:
            raise ValueError(
                f"weights have minimum {weights.min(initial=1)} and sum {weights.sum()}; positive weights with sum 1 "
                "were expected. Leave empty components out."
            )
        if not np.isfinite(means).all() or not (np.isfinite(covariances) & (covariances > 0)).all():
            raise ValueError(
                "means or covariances are not finite, or a variance is not positive (the smallest is "
                f"{covariances.min()}). Fit with a larger reg_covar."
            )
        object.__setattr__(self, "weights", tuple(weights.tolist()))
        object.__setattr__(self, "means", tuple(map(tuple, means.tolist())))
        object.__setattr__(self, "covariances", tuple(map(tuple, covariances.tolist())))

    def width(self, d: int) -> int:
        """Return K (1 + 2 d), the number of score columns for rows of d columns.

        Raises
        ------
        ValueError
            If the mixture was fitted to a different number of columns.
        """
        columns = len(self.means[0])
        if d != columns:
            raise ValueError(f"rows have {d} columns, but the mixture was fitted to {columns}. Fit it to these rows.")
        return len(self.weights) * (1 + 2 * d)

    def scores(self, rows: Array) -> NDArray[np.floating]:
        """Return the scores (a, K (1 + 2 d)) of rows (a, d), in their precision.

        Computed in float64, with 4 K d flops per row and as much additional memory as the result in float64.
        """
        count, d = rows.shape
        out = np.empty((count, self.width(d)))
        weights, means = np.array(self.weights), np.array(self.means)
        deviations = np.sqrt(np.array(self.covariances))
        K = len(weights)
        units = out[:, K : K + K * d].reshape(count, K, d)
        squares = out[:, K + K * d :].reshape(count, K, d)
        np.subtract(rows[:, None, :], means, out=units)
        units /= deviations
        np.square(units, out=squares)
        # Squared differences, because their expansion x^2 - 2 x m + m^2 would cancel for data far from 0.
        logarithms = np.log(weights) - np.log(deviations).sum(axis=1) - squares.sum(axis=2) / 2
        logarithms -= logarithms.max(axis=1, keepdims=True)  # exp then underflows to 0 at worst, and one is 1
        posteriors = np.exp(logarithms)
        posteriors /= posteriors.sum(axis=1, keepdims=True)
        # Scores of weights, means and deviations, each divided by the root of its own Fisher information: with the
        # posterior g and u = (x - m) / s they are (g - w) / sqrt(w), g u / sqrt(w) and g (u^2 - 1) / sqrt(2 w).
        out[:, :K] = (posteriors - weights) / np.sqrt(weights)
        shares = (posteriors / np.sqrt(weights))[:, :, None]
        units *= shares
        squares -= 1
        squares *= shares / np.sqrt(2)
        return out.astype(rows.dtype, copy=False)

    def describe(self) -> dict[str, Any]:
        """Return the parameters as JSON values, which :class:`bigpca.kernels.Fisher` accepts in place of the score."""
        own = {one.name: json_value(one.name, getattr(self, one.name)) for one in fields(self)}
        return {"score": type(self).__name__} | own


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
        if isinstance(given, dict) and "score" in given:
            kinds = {GaussianMixtureScore.__name__: GaussianMixtureScore}
            object.__setattr__(self, "score", described("score", kinds, given))
        elif not hasattr(given, "scores") and not callable(given):
            raise TypeError(
                f"score = {given!r} is of type {type(given).__name__}; an object with scores(rows), or a function of "
                "rows, was expected. Use GaussianMixtureScore for a Gaussian mixture."
            )
        if self.D is not None and (isinstance(self.D, bool) or not isinstance(self.D, int) or self.D < 1):
            raise ValueError(f"D = {self.D!r} is not a count of score columns. Give an integer of at least 1, or None.")
        if self.D is None and not hasattr(self.score, "width"):
            raise TypeError(
                "the number of score columns is unknown: the score has no width(d), and D = None. Give D, or add a "
                "method width(d)."
            )

    def feature_width(self, d: int) -> int:
        return int(self.score.width(d)) if self.D is None else self.D

    def features(self, rows: Array, first_row: int = 0) -> NDArray[np.floating]:
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
