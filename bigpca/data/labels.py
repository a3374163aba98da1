"""Labels aligned with the rows of X: classes or real targets, checked before any row of X is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bigpca.data.label_checks import (
    check_missing,
    class_values,
    join_classes,
    kind_by_dtype,
    one_hot_columns,
    target_columns,
)
from bigpca.data.label_values import label_values
from bigpca.errors import check_choice

KINDS = ("auto", "classes", "one-hot", "targets")
_FAMILIES = {"U": "strings", "S": "bytes"}


@dataclass(frozen=True, eq=False)
class ClassLabels:
    """One class for each row, or none.

    Attributes
    ----------
    codes : ndarray of shape (n,), int32
        Position in ``classes``; -1 if the label is missing.
    classes : ndarray of shape (c,), sorted and distinct: bool, int64, uint64, strings or bytes
    missing : int
        Number of rows without a label.
    """

    codes: NDArray[np.int32]
    classes: NDArray[Any]
    missing: int

    @property
    def n(self) -> int:
        """Number of rows, including those without a label."""
        return len(self.codes)

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return len(self.classes)

    @property
    def used(self) -> NDArray[np.bool_]:
        """True for rows that have a label, of shape (n,)."""
        return self.codes >= 0

    @property
    def counts(self) -> NDArray[np.int64]:
        """Rows of each class, of shape (c,)."""
        return np.bincount(self.codes[self.used], minlength=self.n_classes).astype(np.int64)

    @property
    def singletons(self) -> NDArray[Any]:
        """Classes with one row, which contribute nothing to the within-class scatter."""
        found: NDArray[Any] = self.classes[self.counts == 1]
        return found

    def among(self, present: NDArray[np.bool_]) -> ClassLabels:
        """Return the labels of the rows that are present; the others have none, and are not missing."""
        labels = _coded(self.classes[self.codes[self.used & present]], ~(self.used & present))
        return replace(labels, missing=int(np.count_nonzero(~self.used & present)))

    def encode(self, y: Any, *, missing: str = "raise") -> NDArray[np.int32]:
        """Return the codes of other labels in these classes; the same ``y`` and errors as :func:`open_labels`.

        Raises
        ------
        ValueError
            If a label is not one of these classes.
        """
        values, gaps = label_values(y)
        check_missing(gaps, missing)
        labels = _coded(class_values(values, gaps), gaps)
        return labels.with_classes(self.classes).codes

    def with_classes(self, classes: ArrayLike) -> ClassLabels:
        """Code the same rows in more classes, as returned by :func:`merge_classes`; the new ones may have no rows.

        Raises
        ------
        ValueError
            If a class of these labels is not among ``classes``.
        """
        union, own, given = merge_classes(self.classes, classes)
        if len(given) < len(union):
            unknown = np.delete(union, given)
            raise ValueError(
                f"{len(unknown)} classes are new: {_listed(unknown)}. The {len(given)} known classes are "
                f"{_listed(union[given])}. Name every class."
            )
        codes = np.full(self.n, -1, np.int32)
        codes[self.used] = own[self.codes[self.used]]
        return ClassLabels(codes, union, self.missing)


@dataclass(frozen=True, eq=False)
class TargetLabels:
    """Real targets of each row.

    Attributes
    ----------
    values : ndarray of shape (n, m), float64
        NaN for missing values; no infinities.
    missing : int
        Number of rows with a missing value.
    """

    values: NDArray[np.float64]
    missing: int

    @property
    def n(self) -> int:
        """Number of rows, including those with missing values."""
        return len(self.values)

    @property
    def used(self) -> NDArray[np.bool_]:
        """True for rows that have all their values, of shape (n,)."""
        known: NDArray[np.bool_] = ~np.any(np.isnan(self.values), axis=1)
        return known

    def among(self, present: NDArray[np.bool_]) -> TargetLabels:
        """Return the labels of the rows that are present; the others have none, and are not missing."""
        values = np.where(present[:, None], self.values, np.nan)
        return TargetLabels(values, int(np.count_nonzero(~self.used & present)))


Labels: TypeAlias = ClassLabels | TargetLabels


def open_labels(y: Any, n: int, *, kind: str = "auto", missing: str = "raise", min_classes: int = 2) -> Labels:
    """Read the labels of n rows, in memory or stored, as classes or as real targets.

    Parameters
    ----------
    y : array, list, pandas or Dask object, zarr.Array or path
        A path is a ``.npy`` file, a ``.csv`` file with a header, Parquet or a Zarr store; ``"path::name"`` names one of
        several columns or arrays. Labels are small, so they are read whole.
    n : int >= 1, rows of X
    kind : {"auto", "classes", "one-hot", "targets"}
        "auto" interprets integers, booleans and strings as classes, a bool or integer (n, c) array of 0 and 1 as
        one-hot (the classes are the numbers of its columns that occur), and real numbers, (n,) or (n, m), as targets.
        "classes" also accepts real numbers, if they are integers or one-hot.
    missing : {"raise", "drop"}
        None, NaN, nulls, masked values and empty CSV fields are missing; "" in an array of strings is a class. "drop"
        keeps such rows with the code -1, or as NaN, and counts them.
    min_classes : int >= 1
        1 for a batch of rows that may have a single class.

    Returns
    -------
    ClassLabels or TargetLabels

    Raises
    ------
    ValueError
        For another number of labels than n, missing labels, too few classes, infinite targets, one-hot rows without
        exactly one 1, more than two dimensions, and unknown options.
    TypeError
        For complex numbers, dates, and strings among numbers.
    FileNotFoundError, MemberError
        If there is no such file, or no such column in it.

    Examples
    --------
    >>> labels = open_labels(["cat", "dog", None, "cat"], 4, missing="drop")
    >>> labels.codes.tolist(), labels.classes.tolist(), labels.counts.tolist(), labels.missing
    ([0, 1, -1, 0], ['cat', 'dog'], [2, 1], 1)
    >>> open_labels([0.5, 1.5], 2).values.shape
    (2, 1)
    """
    _check_options(n, kind, min_classes)
    values, gaps = label_values(y)
    if len(values) != n:
        raise ValueError(
            f"there are {len(values)} labels, but X has {n} rows. Give one label for each row, in the order of the "
            "rows."
        )
    check_missing(gaps, missing)
    kind = kind_by_dtype(values) if kind == "auto" else kind
    if kind == "targets":
        return TargetLabels(target_columns(values), int(gaps.sum()))
    labels = _coded((one_hot_columns if kind == "one-hot" else class_values)(values, gaps), gaps)
    check_several(labels.classes, n - labels.missing, min_classes)
    return labels


def check_several(classes: NDArray[Any], labelled: int, min_classes: int) -> None:
    """Reject too few classes of so many labelled rows.

    Raises
    ------
    ValueError
    """
    if len(classes) < min_classes:
        raise ValueError(
            f"all {labelled} labels belong to {len(classes)} class ({_listed(classes)}); at least "
            f"{min_classes} classes were expected. Use an unsupervised method such as PCA, or other labels."
        )


def _check_options(n: int, kind: str, min_classes: int) -> None:
    for name, number in (("n", n), ("min_classes", min_classes)):
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
            raise ValueError(f"{name} is {number!r}; an integer >= 1 was expected. Labels need at least one row.")
    check_choice("kind", kind, KINDS)


def _coded(present: NDArray[Any], gaps: NDArray[np.bool_]) -> ClassLabels:
    """Number the classes of the rows without a gap."""
    classes, found = np.unique(present, return_inverse=True)
    codes = np.full(len(gaps), -1, np.int32)
    codes[~gaps] = found
    return ClassLabels(codes, classes, int(gaps.sum()))


def merge_classes(old: ArrayLike, new: ArrayLike) -> tuple[NDArray[Any], NDArray[np.intp], NDArray[np.intp]]:
    """Join two sets of classes in sorted order, so the codes of the old ones may change.

    Parameters
    ----------
    old : array-like of shape (c,)
    new : array-like of shape (b,)

    Returns
    -------
    union : ndarray, sorted and distinct
    old_positions : ndarray of shape (c,); ``union[old_positions] == old``
    new_positions : ndarray of shape (b,); ``union[new_positions] == new``

    Raises
    ------
    TypeError
        If one holds numbers and the other strings, or bytes.

    Examples
    --------
    >>> union, old, new = merge_classes(["cat", "dog"], ["ape", "dog"])
    >>> union.tolist(), old.tolist(), new.tolist()
    (['ape', 'cat', 'dog'], [1, 2], [0, 2])
    """
    first, second = (class_values(*label_values(classes)) for classes in (old, new))
    families = [_FAMILIES.get(one.dtype.kind, "numbers") for one in (first, second)]
    if families[0] != families[1]:
        raise TypeError(
            f"the classes so far are {families[0]} ({_listed(first)}), but the new ones are {families[1]} "
            f"({_listed(second)}). Convert the new labels to the type of the old ones."
        )
    union = join_classes(first, second)
    # In the dtype of the union, which represents both: NumPy would compare int64 and uint64 in float64.
    old_positions, new_positions = (np.searchsorted(union, one.astype(union.dtype)) for one in (first, second))
    return union, old_positions, new_positions


def _listed(classes: NDArray[Any]) -> str:
    return ", ".join(map(str, classes[:5].tolist())) + (", ..." if len(classes) > 5 else "")
