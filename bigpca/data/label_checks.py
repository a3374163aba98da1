"""Interpretation of typed labels, with checks: gaps, classes, one-hot rows, targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.label_values import rows_shown
from bigpca.data.rounding import rounded_integers
from bigpca.errors import check_choice, warn_rounded

MAX_EXACT = 2.0**53 - 1  # 2^53 itself may be a rounded 2^53 + 1


def check_missing(gaps: NDArray[np.bool_], missing: str) -> None:
    """Reject missing labels if ``missing`` is "raise", and labels that are all missing in any case."""
    check_choice("missing", missing, ("raise", "drop"))
    if gaps.all():
        raise ValueError(f"all {len(gaps)} labels are missing. Give the column that holds them.")
    if missing == "raise" and gaps.any():
        raise ValueError(
            f"{gaps.sum()} of {len(gaps)} labels are missing ({rows_shown(gaps)}); a label for each row was expected. "
            'Fill them in, or leave those rows out: missing="drop" (missing_labels="drop" of an estimator).'
        )


def kind_by_dtype(values: NDArray[Any]) -> str:
    """Choose between "classes" and "targets"."""
    kind = values.dtype.kind
    if kind == "f":
        return "targets"
    if values.ndim == 1 or kind in "US" or _is_binary(values).all():
        return "classes"
    raise ValueError(
        f"labels have shape {values.shape} and dtype {values.dtype}; (n,), one-hot rows of 0 and 1, or real numbers "
        "were expected. Give one column of classes, or targets as float64."
    )


def target_columns(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return finite targets (n, m) with NaN in their gaps."""
    if values.dtype.kind in "US":
        raise ValueError(
            f"targets have dtype {values.dtype}; real numbers were expected. Convert them to float64, or use strings "
            'as classes (kind="classes").'
        )
    rounded = rounded_integers(values)
    if rounded:
        warn_rounded(rounded)
    columns: NDArray[np.float64] = values.astype(np.float64).reshape(len(values), -1)
    infinite = np.any(np.isinf(columns), axis=1)
    if infinite.any():
        raise ValueError(
            f"{infinite.sum()} of {len(columns)} targets are infinite ({rows_shown(infinite)}); finite numbers were "
            "expected. Repair them, or set them to NaN, so that they are missing."
        )
    return columns


def class_values(values: NDArray[Any], gaps: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the classes of the rows that have one, in a dtype whose values compare exactly."""
    if values.ndim == 2:
        return one_hot_columns(values, gaps)
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


def one_hot_columns(values: NDArray[Any], gaps: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the column number of the 1 in each row that has a label."""
    if values.ndim != 2 or values.dtype.kind in "US":
        raise ValueError(
            f"one-hot labels have shape {values.shape} and dtype {values.dtype}; numbers 0 and 1 of shape (n, c) with "
            "c >= 2 were expected. Give one column, (n,), for other classes."
        )
    ones = np.count_nonzero(values == 1, axis=1)
    bad = ~gaps & ((ones != 1) | ~_is_binary(values).all(axis=1))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"{bad.sum()} of {len(values)} one-hot rows do not have exactly one 1 among zeros ({rows_shown(bad)}): row "
            f"{row} has {ones[row]} ones and adds up to {values[row].sum():g}; 1 and 1 were expected. Repair them, or "
            "give targets as float64 where a row may have several labels."
        )
    columns: NDArray[np.int64] = np.argmax(values[~gaps] == 1, axis=1).astype(np.int64)
    return columns


def join_classes(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return all classes of both, sorted and distinct, without rounding any."""
    if {first.dtype.kind, second.dtype.kind} != {"i", "u"}:
        return np.unique(np.concatenate([first, second]))
    both = sorted({*first.tolist(), *second.tolist()})
    if both[0] < 0:
        raise ValueError(
            f"classes from {both[0]} to {both[-1]} do not fit one 64-bit integer type. Give such labels as strings."
        )
    return np.array(both, np.uint64)  # NumPy would convert int64 and uint64 to float64


def _is_binary(values: NDArray[Any]) -> NDArray[np.bool_]:
    binary: NDArray[np.bool_] = (values == 0) | (values == 1)
    return binary
