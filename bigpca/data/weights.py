"""Which rows count, and how often: weights are read, checked, and scaled if they are not counts.

What weights make of the number of rows is in :mod:`bigpca.solvers.components`: the degrees of freedom.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Input, Integers, Matrix, Vector
from bigpca.data.sparse import scaled_rows, without_values
from bigpca.errors import brief
from bigpca.forms import Values
from bigpca.storage.files import content_digest

if TYPE_CHECKING:
    from bigpca.data.batches import ColumnRows

MAX_TOTAL = 1e150  # of weights: the square of a larger sum is near the end of float64


def open_weights(weights: Any, X: Any = None) -> Vector:
    """Read one weight for each row, in memory or stored.

    Parameters
    ----------
    weights : array, list, pandas or Dask object, zarr.Array or path
        As the labels of :func:`bigpca.data.labels.open_labels`.
    X : the opened rows, by whose keys weights are joined as in :func:`bigpca.data.keys.aligned`, default None

    Raises
    ------
    TypeError
        If they are not numbers.
    ValueError
        If they are not one column, or a weight is missing, negative or not finite.
    """
    from bigpca.data.labels import one_each, rows_shown  # which imports the formats of files

    if isinstance(weights, Number):
        raise ValueError(f"sample_weight = {weights!r} is one number. Give one weight for each row.")
    if X is not None and not isinstance(weights, np.ndarray):
        from bigpca.data.keys import in_row_order

        weights = in_row_order(weights, X, word="weight")
    if type(weights) is np.ndarray and weights.ndim == 1 and weights.dtype.kind in "biuf":
        values, gaps = weights, np.zeros(len(weights), bool)
    else:
        values, gaps = one_each(weights, word="weight", gaps=True)
    if values.dtype.kind not in "biuf":
        first = next((row for row, one in enumerate(values.tolist()) if not _is_number(one)), 0)
        raise TypeError(
            f"the weights are not numbers, such as {brief(repr(values[first].item()))} of row {first}. Give one number "
            "per row."
        )
    given = values.astype(np.float64)
    given[gaps] = np.nan
    wrong = ~(np.isfinite(given) & (given >= 0))
    if wrong.any():
        raise ValueError(
            f"{int(wrong.sum())} of {len(given)} weights are missing, negative or not finite: {rows_shown(wrong)}; "
            f"the first is {given[wrong][0]}. A weight is how often a row counts; 0 leaves it out."
        )
    return given


def one_weight_each(weights: Vector | None, n: float, *, open_ended: bool) -> None:
    """Check that there is one weight for each of n rows, if there are weights and n is known, not NaN.

    Raises
    ------
    ValueError
        Also for batches that may end anywhere.
    """
    if weights is None or np.isnan(n):
        return
    count = len(weights)
    if open_ended:
        raise ValueError(
            f"there are {count} weights, but batches of an unknown number of rows. Give it: "
            "from_batches(batches, shape=(n, d))."
        )
    if count != n:
        raise ValueError(f"there are {count} weights, but X has {n} rows. Give one weight per row.")


def _is_number(given: Any) -> bool:
    try:
        float(given)
    except (TypeError, ValueError):
        return False
    return True


def reliability(weights: Input) -> Vector:
    """Scale weights that measure reliability, not counts, so that their sum is the effective number of rows.

    ``w * sum(w) / sum(w^2)``: the sum is then Kish's effective number of rows, ``sum(w)^2 / sum(w^2)``. A fit divides
    by the sum of its weights minus 1, so it gives the unbiased covariance for reliability weights, ``sum_t w_t (x_t -
    mean)(x_t - mean)' / (sum w - sum w^2 / sum w)``. The result does not depend on the unit of the weights.

    Parameters
    ----------
    weights : array, list, pandas or Dask object, zarr.Array or path, of length n
        Precisions, sampling weights, or any other non-negative numbers.

    Returns
    -------
    ndarray of shape (n,), float64
        To be passed as ``sample_weight``.

    Raises
    ------
    TypeError
        If the weights are not numbers.
    ValueError
        If they are not a single column, if one is missing, negative or not finite, or if all are 0.

    Notes
    -----
    Kish 1965 (Survey sampling), section 8.2.

    Examples
    --------
    >>> reliability([0.2, 0.2, 0.4]).round(3).tolist()
    [0.667, 0.667, 1.333]
    """
    given = open_weights(weights)
    if not len(given):
        raise ValueError("there are no weights. Give one weight per row.")
    if not given.any():
        weight_sum(given)
    given = given / given.max()  # so that squares neither overflow nor underflow
    scaled: Vector = given * (given.sum() / (given @ given))
    return scaled


def weight_sum(weights: Vector) -> float:
    """Return the sum of weights; reject 0, and one whose square could overflow.

    Raises
    ------
    ValueError
    """
    with np.errstate(over="ignore"):
        total = float(weights.sum())
    if len(weights) and total == 0:
        raise ValueError("all weights are zero, so no row is used. Give positive weights to the rows that count.")
    if total > MAX_TOTAL:
        raise ValueError(
            f"the weights add up to {total:g}, which exceeds {MAX_TOTAL:g}, the largest number whose square fits in "
            "float64. Divide them by a constant, or pass sample_weight=bp.data.reliability(w)."
        )
    return total


Codes: TypeAlias = "NDArray[np.int32] | ColumnRows"


@dataclass(frozen=True)
class CountedRows:
    """Which rows count, and how often. What the others hold is never looked at.

    Attributes
    ----------
    weights : ndarray of shape (n,), float64, or None
        How often; None for once.
    present : ndarray of shape (n,), bool, or None
        Which rows have a weight above 0, and the label that a fit requires; None for all.
    coming : ndarray of int32, or ColumnRows, or None
        Of labels that come with the rows: below 0 for rows without one.
    """

    weights: NDArray[np.float64] | None = None
    present: NDArray[np.bool_] | None = None
    coming: Codes | None = None

    @classmethod
    def of(cls, weights: object, X: Any, n: float, *, open_ended: bool) -> CountedRows:
        """Return n rows with weights, as for :func:`open_weights`: w equals w repetitions, and 0 absence.

        Raises
        ------
        TypeError, ValueError
            If there is not one weight per row, a weight is not a number, negative or not finite, or their sum is
            beyond 1e150.
        """
        given = open_weights(weights, X)
        weight_sum(given)
        one_weight_each(given, n, open_ended=open_ended)
        return cls(given, None if given.all() else given > 0)

    def count(self, n: int) -> int:
        """Return how many of n rows count."""
        return n if self.present is None else int(np.count_nonzero(self.present))

    def total(self, n: int) -> float:
        """Return the sum of the weights of n rows."""
        return float(n) if self.weights is None else float(self.weights.sum())

    def which(self, n: int) -> NDArray[np.bool_]:
        """Return which of n rows count."""
        return np.ones(n, bool) if self.present is None else self.present

    @property
    def every(self) -> bool:
        """Whether every row counts once."""
        return self.weights is None and self.present is None and self.coming is None

    def emptied(self, rows: Values, first: int, value: int = 1) -> Values:
        """Return rows with a value, or stored zeros, in those that do not count: ones pass through any map."""
        if self.present is None:
            return rows
        return without_values(rows, self.present[first : first + rows.shape[0]], value)

    def rooted(self, rows: Values, first: int) -> Values:
        """Return rows times the roots of their weights."""
        if self.weights is None:
            return rows
        return scaled_rows(rows, np.sqrt(self.weights[first : first + rows.shape[0]]))

    def weigh(self, block: Any, first: int) -> Any:
        """Return a block with the weights of its rows; ``first`` is the number of the first row of this."""
        return block if self.weights is None else block.weighted(self.weights[block.rows - first])

    def bytes_for(self, rows: int, row_bytes: float) -> int:
        """Return what choosing rows, and their weights, take of memory beside a slab."""
        return 0 if self.every else math.ceil(2 * rows * (8 + row_bytes))

    def describe(self) -> dict[str, object]:
        """Return what identifies the rows that count; empty if all count once."""
        own = self.present if self.weights is None else self.weights
        return {} if own is None else {"counted": content_digest(own)}

    def notes(self, n: int) -> tuple[str, ...]:
        """Return the line of a plan about the weights of n rows."""
        if (sums := self.sums) is None:
            return ()
        effective = sums[0] ** 2 / sums[1]
        return (f"weights: {self.count(n):,} rows, sum {sums[0]:,.6g}, effective number {effective:,.6g}",)

    def unweighted(self, V: Matrix) -> Matrix:
        """Return vectors (n, k) over the square roots of the weights: read with these, they sum to V' sqrt(W) X."""
        if self.weights is None:
            return V
        root = np.sqrt(self.weights)[:, None]
        return np.divide(V, root, out=np.zeros_like(V), where=root > 0)

    @property
    def sums(self) -> tuple[float, float] | None:
        """Sums of the weights and of their squares."""
        w = self.weights
        return None if w is None else (float(w.sum()), float(w @ w))

    def among(self, labels: Codes) -> CountedRows:
        """Return the same without rows whose code is below 0."""
        if not isinstance(labels, np.ndarray):
            return replace(self, coming=labels)
        own = labels >= 0
        present = own if self.present is None else own & self.present
        return CountedRows(None if self.weights is None else np.where(own, self.weights, 0.0), present)

    def part(self, start: int, stop: int) -> CountedRows:
        """Return those of rows ``start:stop``, numbered from 0."""
        own, (w, present, coming) = slice(start, stop), (self.weights, self.present, self.coming)
        coming = None if coming is None else coming[own]
        return CountedRows(None if w is None else w[own], None if present is None else present[own], coming)

    def absent(self, n: int) -> int:
        """Return how many of the first n rows do not count, once the labels that come with them are known."""
        step = 2**20
        strips = (self.of_slab(np.empty((min(step, n - row), 0)), row)[0] for row in range(0, n, step))
        return n - sum(int(strip.shape[0]) for strip in strips)

    def of_slab(self, slab: Values, row: int, first: int = 0) -> tuple[Values, Integers | None]:
        """Return the rows of a slab that count, and their numbers unless these are consecutive, from ``row`` on.

        ``first`` is the number of the first row of this.
        """
        if self.present is None and self.coming is None:
            return slab, None
        numbers = np.arange(row, row + slab.shape[0])
        present = np.ones(len(numbers), bool) if self.present is None else self.present[numbers - first]
        if self.coming is not None:
            present = present & (self.coming[numbers - first] >= 0)
        return (slab, None) if present.all() else (slab[present], numbers[present])
