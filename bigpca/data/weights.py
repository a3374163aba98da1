"""Weights of rows: read from wherever they are, checked, and scaled for samples that are not counts.

What weights make of the number of rows is in :mod:`bigpca.solvers.components`: the degrees of freedom.
"""

from __future__ import annotations

from numbers import Number
from typing import Any

import numpy as np

from bigpca.arrays import Input, Vector
from bigpca.data.dask_arrays import view_of
from bigpca.errors import brief

MAX_TOTAL = 1e150  # of weights: the square of a larger sum is near the end of float64


def open_weights(weights: Any, X: Any = None) -> Vector:
    """Read one weight for each row, in memory or stored.

    Parameters
    ----------
    weights : array, list, pandas or Dask object, zarr.Array or path
        As the labels of :func:`bigpca.data.labels.open_labels`. For the rows of a pattern, an array may have the axes
        that number them: (n, t) for "n t d -> (n t) d", such as a mask of tokens.
    X : the opened rows, by whose keys weights are joined as in :func:`bigpca.data.keys.aligned`, default None

    Raises
    ------
    TypeError
        If they are not numbers.
    ValueError
        If they are not one column, or a weight is missing, negative or not finite.
    """
    from bigpca.data.labels import as_array, one_each, rows_shown  # which imports the formats of files

    if isinstance(weights, Number):
        raise ValueError(f"sample_weight = {weights!r} is one number. Give one weight for each row.")
    view = None if X is None else view_of(X)[1]
    if view is not None and view.row_axes and len(getattr(weights, "shape", ())) == 1 + len(view.row_axes):
        weights = view.of_rows(as_array(weights, "weight"))
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
