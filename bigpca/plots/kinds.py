"""What the labels of drawn rows are: a few classes, the largest of many, or values on a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.alignment import in_row_order
from bigpca.data.label_values import label_values
from bigpca.plots.style import COLOURS

MAX_KINDS = len(COLOURS)


@dataclass(frozen=True)
class Kinds:
    """Classes of rows, in the order of a legend.

    Attributes
    ----------
    names : tuple of str
        At most ten; of more classes the nine with most rows, and "others (21 classes)".
    codes : ndarray of shape (m,), int
        Position in ``names`` of each drawn row; -1 without a label.
    """

    names: tuple[str, ...]
    codes: NDArray[np.intp]


@dataclass(frozen=True)
class Values:
    """Real labels of rows.

    Attributes
    ----------
    values : ndarray of shape (m,), float64
        NaN without a label.
    """

    values: NDArray[np.float64]


def kinds_of(labels: Any, n: int, rows: NDArray[np.int64], X: Any = None) -> Kinds | Values:
    """Return the kinds of some rows; integers, booleans and text are classes, real numbers are values.

    Parameters
    ----------
    labels : array-like of shape (n,), or the path of a file of labels
        Of all n rows, or with keys. None, NaN and empty fields are rows without a label.
    n : int
    rows : ndarray of shape (m,)
        The rows that are drawn.
    X : path or array, optional
        What was given as the rows or their scores, by whose keys labels are joined
        (:func:`bigpca.data.alignment.aligned`).

    Raises
    ------
    ValueError
        For another number of labels than n, several columns, and files that cannot be joined.
    TypeError
        For labels that are neither numbers nor text.
    """
    values, gaps = label_values(in_row_order(labels, X, absent=None))
    if len(values) != n or values.ndim != 1:
        columns = "" if values.ndim == 1 else f" in {values.shape[1]} columns"
        raise ValueError(
            f"there are {len(values)} labels{columns} for {n} rows; one label for each row was expected, in the order "
            "of the rows. Of a file with several columns, name one: labels.csv::column."
        )
    if values.dtype.kind == "f":
        return Values(np.where(gaps, np.nan, values)[rows])
    classes, codes, counts = np.unique(values[~gaps], return_inverse=True, return_counts=True)
    names = [one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in classes.tolist()]
    whole = np.full(n, -1, np.intp)
    if len(names) > MAX_KINDS:
        largest = np.sort(np.argsort(-counts, kind="stable")[: MAX_KINDS - 1])
        place = np.full(len(names), MAX_KINDS - 1, np.intp)
        place[largest] = np.arange(MAX_KINDS - 1)
        others = f"{len(names) - len(largest):,} classes"  # at least two
        names, codes = [*(names[i] for i in largest), f"others ({others})"], place[codes]
    whole[~gaps] = codes
    return Kinds(tuple(names), whole[rows])
