"""Kernels that the caller brings: a precomputed matrix, a Python function of two blocks of rows, or a model.

The Fisher kernel: two rows are similar if they would change a model's parameters in the same way. With the scores of a
diagonal Gaussian mixture, these are the Fisher vectors of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, Integers, Vector, held_array
from bigpca.errors import brief, check_switch
from bigpca.kernels.base import Block, FeatureKernel, Kernel, json_value, strips
from bigpca.records import described

SYMMETRY = 1e-6  # largest accepted |K[i, j] - K[j, i]|, relative to the largest entry of the block
FUNCTION_SYMMETRY = 1e-5  # the same of what a function returns, whose two calls may round differently
DIAGONAL_TILE = 8  # rows of the blocks computed for their diagonals: the other entries are wasted

Table = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class NumberedRows:
    """Rows of a kernel matrix, and the absolute number of the first."""

    rows: Array
    start: int

    @property
    def stop(self) -> int:
        return self.start + len(self.rows)


@dataclass(frozen=True)
class Precomputed(Kernel):
    """``k(x_i, x_j) = X[i, j]``: row i of X is row i of the kernel matrix.

    The rows of B are identified by their absolute numbers ``first_row``, ``first_row + 1``, ..., which are columns of
    the rows of A; their contents are not used. New rows hold their kernel with all training rows, and have no diagonal.
    Blocks on the diagonal are checked for symmetry; other blocks are used unchecked.

    Parameters
    ----------
    indefinite : bool, default False
        Whether the matrix may have negative eigenvalues, as a matrix of distances does. The largest eigenvalues by
        value are then kept, with a warning. Otherwise a fit raises ValueError if it finds significant negative
        eigenvalues. Only a fit that computes the whole spectrum is certain to find them (KernelPCA up to a few thousand
        rows, or all rows as landmarks).

    Raises
    ------
    ValueError
        From :meth:`block`, for a missing column, or ``block(A, A)`` not symmetric to 1e-6 of its largest entry.

    Examples
    --------
    >>> Precomputed()([[2.0, 1.0], [1.0, 3.0]]).tolist()
    [[2.0, 1.0], [1.0, 3.0]]
    """

    needs_rows: ClassVar[bool] = False

    indefinite: bool = False

    def __post_init__(self) -> None:
        check_switch("indefinite", self.indefinite)

    @property
    def positive_semidefinite(self) -> bool:
        return not self.indefinite

    @property
    def taken_on_trust(self) -> bool:
        return not self.indefinite

    def prepare(self, rows: Array, shift: Vector | None = None, first_row: int = 0) -> NumberedRows:
        return NumberedRows(rows.copy(), first_row)

    def block(self, A: Any, B: Any) -> NDArray[np.floating]:
        columns = A.rows.shape[1]
        if B.stop > columns:
            raise ValueError(
                f"rows have {columns} columns, but their kernel with rows {B.start}:{B.stop} was requested; one column "
                "per training row is required. Give the kernel matrix (n, n), and (new rows, n) for new rows."
            )
        # k(x_i, x_j) is entry j of row i: the numbers of B's rows are columns of A's.
        entries: NDArray[np.floating] = A.rows[:, B.start : B.stop].copy()
        if A is B:
            reject_asymmetric(entries, entries.T, A.start + np.arange(len(entries)), B.start + np.arange(len(entries)))
        return entries

    def diagonal_of(self, A: Any) -> Vector:
        columns = A.rows.shape[1]
        if A.stop > columns:
            raise ValueError(
                f"k(x, x) of row {max(A.start, columns)} was requested, but rows have {columns} columns, one per "
                "training row; a precomputed matrix has no k(x, x) of new rows. Use a kernel that computes entries."
            )
        # Row i of the block is row start + i of the matrix, where its diagonal is.
        places = np.arange(len(A.rows))
        diagonal: Vector = A.rows[places, A.start + places].astype(np.float64)
        least = int(np.argmin(diagonal)) if len(diagonal) else 0
        if not self.indefinite and len(diagonal) and diagonal[least] < -SYMMETRY * np.abs(A.rows[least]).max():
            raise ValueError(
                f"K[{A.start + least}, {A.start + least}] = {diagonal[least]:.6g}, but k(x, x) is at least 0 where no "
                "eigenvalue is negative. Check that the rows are in the order of the columns; for a matrix with "
                "negative eigenvalues, such as one of distances, use KernelPCA with Precomputed(indefinite=True)."
            )
        return diagonal

    def flops_per_entry(self, d: int) -> float:
        return 2.0

    def entry_bytes(self, itemsize: int) -> int:
        return 2 * itemsize


def reject_asymmetric(
    entries: NDArray[np.floating], mirrored: NDArray[np.floating], rows: Integers, columns: Integers
) -> None:
    """Reject ``K[rows, columns]`` (a, b) that differs from ``K[columns, rows]'``, which is ``mirrored``.

    Raises
    ------
    ValueError
    """
    if not entries.size:
        return
    differences = entries - mirrored
    np.abs(differences, out=differences)
    i, j = np.unravel_index(np.argmax(differences), differences.shape)
    if differences[i, j] > SYMMETRY * max(entries.max(), -entries.min()):
        raise ValueError(
            f"K[{rows[i]}, {columns[j]}] = {entries[i, j]}, but K[{columns[j]}, {rows[i]}] = {mirrored[i, j]}; a "
            "symmetric kernel matrix was expected. Use (K + K') / 2, or check the order of its rows."
        )


@dataclass(frozen=True)
class FromFunction(Kernel):
    """``K = function(A, B)`` of two blocks of rows (a, d) and (b, d), an (a, b) array.

    It is called with blocks, not with single rows. Its cost is assumed to be 100 flops per column, its memory four
    numbers per entry; its diagonal costs 8 entries per row.

    Parameters
    ----------
    function : callable
        Must return the same entries for any division into blocks; called from several threads.
    positive_semidefinite : bool, default False
        Whether the kernel is known to be so; sampling by residuals and the bounds require it. Fits raise ValueError if
        they find that it is not.

    Raises
    ------
    ValueError
        From :meth:`block`, for a wrong shape, values that are not finite, or k(x, y) != k(y, x).

    Examples
    --------
    >>> FromFunction(lambda A, B: A @ B.T)([[1.0, 2.0]], [[3.0, 4.0]]).tolist()
    [[11.0]]
    """

    function: Callable[[Array, Array], Any]
    positive_semidefinite: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"function = {self.function!r} is not a function. Give one of two blocks of rows, (a, d) and (b, d), "
                "that returns (a, b)."
            )
        check_switch("positive_semidefinite", self.positive_semidefinite)

    @property
    def taken_on_trust(self) -> bool:
        return self.positive_semidefinite

    def prepare(self, rows: Array, shift: Vector | None = None, first_row: int = 0) -> Array:
        return rows.copy()

    def block(self, A: Array, B: Array) -> Block:
        result = self._checked_block(A, B)
        if A is B:
            largest = max(abs(float(result.max(initial=0.0))), abs(float(result.min(initial=0.0))))
            for where, strip in strips(result):
                gap = np.abs(strip - result[:, where].T)
                if gap.max(initial=0.0) > FUNCTION_SYMMETRY * largest:
                    i, j = (int(place) for place in np.unravel_index(np.argmax(gap), gap.shape))
                    raise ValueError(
                        f"the kernel function returned {strip[i, j]:.6g} for rows ({where.start + i}, {j}) of a block "
                        f"and {result[j, where.start + i]:.6g} for ({j}, {where.start + i}); a kernel is symmetric. "
                        "Make it k(x, y) = k(y, x)."
                    )
        return result

    def diagonal_of(self, A: Array) -> Vector:
        result = np.empty(len(A))
        for start in range(0, len(A), DIAGONAL_TILE):
            rows = A[start : start + DIAGONAL_TILE]
            result[start : start + DIAGONAL_TILE] = np.diagonal(self._checked_block(rows, rows))
        return result

    def flops_per_entry(self, d: int) -> float:
        return 100.0 * d

    def entry_bytes(self, itemsize: int) -> int:
        return 32

    def _checked_block(self, A: Array, B: Array) -> Block:
        try:
            result = np.asarray(self.function(A, B))
        except (TypeError, ValueError) as error:
            of_rows = False
            with suppress(Exception):  # whatever it raises for two rows, it is not a function of these
                of_rows = np.ndim(self.function(A[0], B[0])) == 0
            if not of_rows:
                raise
            raise ValueError(
                f"the kernel function takes two rows, but it is called with two blocks of rows, of shapes {A.shape} "
                f"and {B.shape}, for which it raised {type(error).__name__} ({brief(error)}). Write it for blocks, "
                "such as lambda A, B: A @ B.T; or, slowly, np.array([[function(a, b) for b in B] for a in A])."
            ) from error
        if result.shape != (len(A), len(B)):
            raise ValueError(
                f"the kernel function returned shape {result.shape} for blocks of {len(A)} and {len(B)} rows; "
                f"({len(A)}, {len(B)}) was expected. Write it for two blocks of rows, (a, d) and (b, d), not for "
                f"two single rows."
            )
        if result.dtype not in (np.float32, np.float64):
            if result.dtype.kind not in "biuf":
                raise ValueError(f"the kernel function returned {result.dtype}, not real numbers. Convert them.")
            result = result.astype(np.float64)
        for where, strip in strips(result):
            if not np.isfinite(strip).all():
                i, j = np.argwhere(~np.isfinite(strip))[0]
                raise ValueError(
                    f"the kernel function returned {strip[i, j]} for rows {where.start + i} and {j} of its blocks, "
                    "which is not finite. Correct the function, or scale the rows."
                )
        return result.copy() if result.base is not None or not result.flags.writeable else result


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
