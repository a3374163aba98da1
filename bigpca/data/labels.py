"""Labels aligned with the rows of X: converted, checked for gaps and classes, before any row of X is read."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Complex, Integral, Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bigpca.data.containers import check_columns
from bigpca.data.label_files import read_label_file, whole
from bigpca.errors import counted, listed

BOOLEANS, INTEGERS, REALS, STRINGS, BYTES = "booleans", "integers", "real numbers", "strings", "bytes"
# The arguments that messages name.
ARGUMENTS = {"label": "y", "weight": "sample_weight"}
ARGUMENTS |= {word: f"{word}s" for word in ("key", "value", "group", "picture")}
_OF_GAPS = {  # remedies for missing labels; other words have that of values
    "label": 'Fill them in, or leave those rows out: missing_labels="drop".',
    "group": 'Give these rows a group of their own, such as "unknown", or leave them out.',
}
_REMEDIES = {"c": "Take real and imaginary parts as columns.", "M": "Convert to numbers of seconds or days."}
MAX_EXACT = 2.0**53 - 1  # 2^53 itself may be a rounded 2^53 + 1
_FAMILIES = {"U": "strings", "S": "bytes"}


class LabelValues(NamedTuple):
    """Labels in one of a few dtypes.

    Attributes
    ----------
    values : ndarray of shape (n,) or (n, m > 1), bool, int64, uint64, float64, U or S
        Values of missing labels are arbitrary, except for NaN among real numbers.
    gaps : ndarray of shape (n,), bool
        True where a row has no label, or lacks one of its columns.
    """

    values: NDArray[Any]
    gaps: NDArray[np.bool_]


def label_values(y: Any, word: str = "label") -> LabelValues:
    """Read labels of any kind into one typed array.

    Parameters
    ----------
    y : array, list, pandas or Dask object, zarr.Array, zarr.Group, store of Zarr, place of objects or path
        See :func:`bigpca.data.labels.open_labels`. A single column, (n, 1), counts as (n,).
    word : {"label", "weight", "key", "value"}, default "label"
        What they are, for messages.

    Raises
    ------
    TypeError
        For complex numbers, dates, structured dtypes, and objects that mix strings and numbers.
    ValueError
        For zero or more than two dimensions, no columns, integers beyond 64 bits, and strings that end in a zero
        character.

    Examples
    --------
    >>> values, gaps = label_values(["b", None, "a"])
    >>> values[~gaps].tolist(), gaps.tolist()
    (['b', 'a'], [False, True, False])
    """
    given = as_array(y, word)
    if given.ndim not in (1, 2) or 0 in given.shape[1:]:
        raise ValueError(
            f"{word}s ({type(y).__name__}) have shape {given.shape}; (n,), or (n, m) with m >= 1, was expected. "
            f"Give one row of {word}s for each row of X."
        )
    if given.dtype.kind in "OT":
        values, gaps = _from_objects(given, word)
    else:
        values = _plain(given, word)
        gaps = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    return LabelValues(values, np.any(gaps, axis=1) if gaps.ndim == 2 else gaps)


def one_each(
    y: Any,
    n: int | None = None,
    word: str = "label",
    of: str = "row",
    *,
    columns: bool = False,
    gaps: bool = False,
) -> LabelValues:
    """Read one label for each of n rows, or of as many as there are: the door for whatever belongs to rows.

    Parameters
    ----------
    y, word : as of :func:`label_values`; what that returned is read already
    of : str
        What n counts, for messages.
    columns, gaps : bool
        Whether a label may have several columns, and whether some may be missing.

    Raises
    ------
    ValueError
        For another number of them, and unless they are allowed, for several columns and missing ones.
    """
    found = y if isinstance(y, LabelValues) else label_values(y, word)
    n, wide = len(found.values) if n is None else n, found.values.ndim > 1 and not columns
    if len(found.values) != n or wide:
        columns_given = f" in {found.values.shape[1]} columns" if wide else ""
        raise ValueError(
            f"there are {len(found.values):,} {word}s{columns_given} for {counted(n, of)}. Give one {word} for each "
            f"{of}, in the order of the {of}s{', as one column: path::column of a file' if wide else ''}."
        )
    if not gaps:
        reject_gaps(found.gaps, word)
    return found


def with_gaps(values: NDArray[Any], gaps: NDArray[np.bool_]) -> NDArray[Any]:
    """Return values with None in the gaps; real numbers, which have NaN there, unchanged.

    >>> with_gaps(np.array([1, 0]), np.array([False, True])).tolist()
    [1, None]
    """
    if not gaps.any() or values.dtype.kind == "f":
        return values
    objects = values.astype(object)
    objects[gaps] = None
    return objects


def rows_shown(rows: NDArray[np.bool_], start: int = 0) -> str:
    """Format the first of the rows that are True, which are numbered from ``start``, for messages.

    >>> rows_shown(np.array([False, True, True])), rows_shown(np.arange(9) > 0)
    ('rows 1, 2', 'rows 1, 2, 3, 4, 5, ...')
    """
    found = np.flatnonzero(rows) + start
    return f"row{'s' if len(found) > 1 else ''} {listed(found)}"


def as_array(y: Any, word: str) -> NDArray[Any]:
    """Return the argument as a NumPy array, with None or NaN in its gaps."""
    if isinstance(y, (str, os.PathLike)):
        return read_label_file(os.fspath(y), word)
    y = whole(y, ARGUMENTS[word], word, f"One {word} for each row")
    if isinstance(y, list | tuple) and any(isinstance(row, np.ma.MaskedArray) and row.ndim for row in y):
        y = np.ma.stack(y)
    if isinstance(y, np.ma.MaskedArray):
        return _with_gaps(np.ma.getdata(y), np.ma.getmaskarray(y))
    if hasattr(y, "isna") and hasattr(y, "to_numpy"):
        return _from_pandas(y.iloc[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y)
    if len(getattr(y, "shape", ())) == 2 and y.shape[1] > 1:
        check_columns(y, ARGUMENTS[word])  # of polars: NumPy would make numbers of dates
    # NumPy would convert both ["a", 1] and ["a", None] to strings, so lists are examined value by value.
    return np.asarray(y) if hasattr(y, "__array__") else np.array(y, dtype=object)


def _from_pandas(y: Any) -> NDArray[Any]:
    """Read a pandas object, not imported here; where there are gaps, its own conversion rounds integers to floats."""
    gaps = np.asarray(y.isna())
    if not gaps.any():
        return np.asarray(y.to_numpy())
    categories = getattr(getattr(y, "cat", None), "categories", None)
    if y.ndim == 1 and categories is not None:
        return _with_gaps(np.asarray(categories, dtype=object)[np.asarray(y.cat.codes)], gaps)
    return _with_gaps(y.to_numpy(dtype=object), gaps)


def _with_gaps(values: Any, gaps: NDArray[np.bool_]) -> NDArray[Any]:
    objects = np.array(values, dtype=object)
    objects[gaps] = None
    return objects


def _plain(values: NDArray[Any], word: str) -> NDArray[Any]:
    """Convert to the one dtype of its kind."""
    kind = values.dtype.kind
    if kind == "u" and values.size and values.max() > np.iinfo(np.int64).max:
        return values.astype(np.uint64)
    if kind in "iu":
        return values.astype(np.int64)
    if kind == "f":
        return values.astype(np.float64)
    if kind in "bUS":
        return values.astype(values.dtype.newbyteorder("="))
    raise TypeError(
        f"{word}s have dtype {values.dtype}; integers, booleans, strings or real numbers were expected. "
        f"{_REMEDIES.get(kind, 'Convert them to one of these.')}"
    )


def _is_missing(value: Any) -> bool:
    if isinstance(value, Decimal):
        return value.is_nan()
    not_a_number = isinstance(value, (float, np.floating)) and value != value
    return value is None or bool(not_a_number) or type(value).__name__ in ("NAType", "NaTType", "MaskedConstant")


def _family(kind: type) -> str:
    for family, kinds in (
        (BOOLEANS, (bool, np.bool_)),
        (INTEGERS, (Integral,)),
        (REALS, (Real, Decimal)),
        (STRINGS, (str,)),
        (BYTES, (bytes,)),
        ("complex numbers", (Complex,)),
    ):
        if issubclass(kind, kinds):
            return family
    return kind.__name__


def _from_objects(objects: NDArray[Any], word: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Find the one dtype that holds all the objects, and which of them are missing (same shape)."""
    flat = objects.ravel().tolist()
    # Texts and integers are never missing, so that their types are asked, not millions of labels.
    whole = all(issubclass(kind, str | bytes | Integral) for kind in set(map(type, flat)))
    gaps = np.zeros(len(flat), bool) if whole else np.fromiter(map(_is_missing, flat), bool, len(flat))
    given = [value for value, gap in zip(flat, gaps, strict=True) if not gap]
    compact = _compact(given, {_family(kind) for kind in set(map(type, given))}, word)
    filler = np.nan if compact.dtype.kind == "f" else np.zeros((), compact.dtype)
    values = np.full(len(flat), filler, compact.dtype)
    values[~gaps] = compact
    return values.reshape(objects.shape), gaps.reshape(objects.shape)


def _compact(given: list[Any], families: set[str], word: str) -> NDArray[Any]:
    if families in ({STRINGS}, {BYTES}):
        return _texts(given, str if families == {STRINGS} else np.bytes_, word)
    if families == {BOOLEANS}:
        return np.array(given, dtype=bool)
    if not families <= {BOOLEANS, INTEGERS, REALS}:
        examples = {_family(type(value)): value for value in reversed(given)}
        shown = " and ".join(f"{family} ({_shortened(examples[family])})" for family in sorted(families))
        raise TypeError(
            f"{word}s hold {shown}, but must be all numbers, all strings or all bytes. "
            f"Convert them to one type, such as [str({word}) for {word} in {ARGUMENTS[word]}]."
        )
    try:
        if REALS in families or not given:
            return np.array(given, np.float64)
        exact = [int(value) for value in given]  # NumPy alone would round [2**63, -1] to float64
        return np.array(exact, np.int64 if max(exact) <= np.iinfo(np.int64).max else np.uint64)
    except OverflowError:
        largest = max(given, key=abs)
        raise ValueError(
            f"the {word} {_shortened(largest)} does not fit its type; integers of 64 bits or real numbers up to "
            "1.8e308 were expected. Scale them, or give classes as strings."
        ) from None


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _texts(given: list[Any], dtype: Any, word: str) -> NDArray[Any]:
    texts: NDArray[Any] = np.array(given, dtype=dtype)
    lost = [text for text, kept in zip(given, texts.tolist(), strict=True) if text != kept]
    if lost:
        raise ValueError(
            f"{len(lost)} {word}s end in a zero character, such as {_shortened(lost[0])}; NumPy strings drop it, so "
            f"two different {word}s could become equal. Strip it."
        )
    return texts


def check_missing(gaps: NDArray[np.bool_], missing: str, present: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """Reject missing labels if ``missing`` is "raise", and labels that are all missing in any case.

    Rows that are not ``present`` need no label; those that lack one are returned.
    """
    needed = len(gaps) if present is None else int(np.count_nonzero(present))
    lacking = gaps if present is None else gaps & present
    if lacking.sum() == needed:
        raise ValueError(f"all {needed} labels are missing. Give the column that holds them.")
    if missing == "raise":
        reject_gaps(lacking)
    return lacking


def reject_gaps(gaps: NDArray[np.bool_], word: str = "label", start: int = 0) -> None:
    """Reject missing labels of rows from ``start`` on."""
    if gaps.any():
        raise ValueError(
            f"{gaps.sum():,} of {len(gaps):,} {word}s are missing ({rows_shown(gaps, start)}); one for each row was "
            f"expected. {_OF_GAPS.get(word, 'Fill them in, or leave those rows out.')}"
        )


def target_columns(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return finite targets (n, m) with NaN in their gaps."""
    if values.dtype.kind in "US":
        raise ValueError(
            f"targets have dtype {values.dtype}; real numbers were expected. Convert them to float64, or use strings "
            'as classes (kind="classes").'
        )
    columns: NDArray[np.float64] = values.astype(np.float64).reshape(len(values), -1)
    infinite = np.any(np.isinf(columns), axis=1)
    if infinite.any():
        raise ValueError(
            f"{infinite.sum()} of {len(columns)} targets are infinite ({rows_shown(infinite)}); finite numbers were "
            "expected. Repair them, or set them to NaN to mark them as missing."
        )
    return columns


def class_values(values: NDArray[Any], gaps: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the classes of the rows that have one, in a dtype whose values compare exactly."""
    if values.ndim == 2:
        raise ValueError(
            f"labels have shape {values.shape} and dtype {values.dtype}; one column of classes, (n,), was expected, or "
            "targets as float64. Of one-hot rows, each with one 1, pass numpy.argmax(y, axis=1)."
        )
    present: NDArray[Any] = values[~gaps]
    if present.dtype.kind != "f":
        return present
    whole = (np.abs(present) <= MAX_EXACT) & (present == np.round(present))
    if not whole.all():
        raise ValueError(
            f"{np.count_nonzero(~whole)} of {len(present)} labels are not integers below 2^53, such as "
            f"{present[~whole][0]:g}; classes were expected. Round them, or use them as real targets."
        )
    return present.astype(np.int64)


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

    def encode(self, y: Any, *, missing: str = "raise") -> NDArray[np.int32]:
        """Return the codes of other labels in these classes; the same ``y`` and errors as :func:`open_labels`.

        Raises
        ------
        ValueError
            If a label is not one of these classes.
        """
        values, gaps = label_values(y)
        check_missing(gaps, missing)
        return _coded(class_values(values, gaps), gaps).with_classes(self.classes).codes

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
                f"{len(unknown)} classes are new: {listed(unknown)}. The {len(given)} known classes are "
                f"{listed(union[given])}. Name every class."
            )
        codes = np.full(len(self.codes), -1, np.int32)
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
    def used(self) -> NDArray[np.bool_]:
        """True for rows that have all their values, of shape (n,)."""
        known: NDArray[np.bool_] = ~np.any(np.isnan(self.values), axis=1)
        return known


Labels: TypeAlias = ClassLabels | TargetLabels


def open_labels(
    y: Any,
    n: int,
    *,
    kind: str = "auto",
    missing: str = "raise",
    min_classes: int = 2,
    present: NDArray[np.bool_] | None = None,
) -> Labels:
    """Read the labels of n rows, in memory or stored, as classes or as real targets.

    Parameters
    ----------
    y : array, list, pandas or Dask object, zarr.Array or path
        A path is a ``.npy`` file, a ``.csv`` file with a header, Parquet or a Zarr store; ``"path::name"`` names one of
        several columns or arrays. Labels are small, so they are read whole.
    n : int >= 1, rows of X
    kind : {"auto", "classes", "targets"}
        "auto" interprets integers, booleans and strings as classes, and real numbers, (n,) or (n, m), as targets.
        "classes" also accepts real numbers, if they are integers.
    missing : {"raise", "drop"}
        None, NaN, nulls, masked values and empty CSV fields are missing; "" in an array of strings is a class. "drop"
        keeps such rows with the code -1, or as NaN, and counts them.
    min_classes : int >= 1
        1 for a batch of rows that may have a single class.
    present : ndarray of bool, of shape (n,), or None
        False for rows that do not count: whatever their labels are, they have none, and these are not missing.

    Returns
    -------
    ClassLabels or TargetLabels

    Raises
    ------
    ValueError
        For a different number of labels than n, missing labels, too few classes, several columns of classes, infinite
        targets, more than two dimensions, and unknown options.
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
    values, gaps = one_each(y, n, columns=True, gaps=True)
    lacking = int(check_missing(gaps, missing, present).sum())
    absent = np.zeros(n, bool) if present is None else ~present
    if absent.any() and values.dtype.kind == "f":
        values = np.where(absent.reshape(-1, *[1] * (values.ndim - 1)), np.nan, values)
    gaps = gaps | absent
    kind = ("targets" if values.dtype.kind == "f" else "classes") if kind == "auto" else kind
    if kind == "targets":
        targets = target_columns(values)
        targets[absent] = np.nan
        return TargetLabels(targets, lacking)
    labels = replace(_coded(class_values(values, gaps), gaps), missing=lacking)
    check_several(labels.classes, int(labels.used.sum()), min_classes)
    return labels


def check_several(classes: NDArray[Any], labelled: int, min_classes: int) -> None:
    """Reject too few classes of so many labelled rows.

    Raises
    ------
    ValueError
    """
    if len(classes) < min_classes:
        raise ValueError(
            f"all {labelled} labels belong to {len(classes)} class ({listed(classes)}); at least "
            f"{min_classes} classes were expected. Use an unsupervised method such as PCA, or other labels."
        )


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
            f"the classes so far are {families[0]} ({listed(first)}), but the new ones are {families[1]} "
            f"({listed(second)}). Convert the new labels to the type of the old ones."
        )
    if {first.dtype.kind, second.dtype.kind} != {"i", "u"}:
        union = np.unique(np.concatenate([first, second]))
    else:  # NumPy would convert int64 and uint64 to float64
        both = sorted({*first.tolist(), *second.tolist()})
        if both[0] < 0:
            raise ValueError(
                f"classes from {both[0]} to {both[-1]} do not fit one 64-bit integer type. Give such labels as strings."
            )
        union = np.array(both, np.uint64)
    # In the dtype of the union, which represents both: NumPy would compare int64 and uint64 in float64.
    old_positions, new_positions = (np.searchsorted(union, one.astype(union.dtype)) for one in (first, second))
    return union, old_positions, new_positions
