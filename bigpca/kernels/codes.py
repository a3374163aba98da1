"""Strings as rows of numbers: the codes of their characters, with zeros at the end."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bigpca.kernels.base import Rows

LARGEST_CODE = 0x10FFFF  # of Unicode; exact in float32


def string_codes(X: ArrayLike, width: int | None = None) -> NDArray[np.integer[Any]]:
    """Return the character codes of each string, one string per row, padded with zeros.

    Parameters
    ----------
    X : array of strings or of bytes, of shape (n,) or (n, 1); of dtype U, S or object.
    width : columns of the result; None for the length of the longest string, default None

    Returns
    -------
    ndarray of shape (n, width), uint8 for bytes and int32 for strings

    Raises
    ------
    ValueError
        If a value is not a string (or bytes and strings are mixed), holds a zero character, or is longer than
        ``width``.

    Examples
    --------
    >>> string_codes(["ab", "c"]).tolist()
    [[97, 98], [99, 0]]
    """
    # NumPy would convert numbers and bytes in a list to strings.
    strings = X if isinstance(X, np.ndarray) else np.asarray(X, dtype=object if isinstance(X, list | tuple) else None)
    if strings.ndim == 2 and strings.shape[1] == 1:
        strings = strings[:, 0]
    if strings.ndim != 1:
        raise ValueError(f"strings have shape {strings.shape}. Give one string per row, in shape (n,) or (n, 1).")
    if strings.dtype.kind in "OT":
        strings = _from_objects(list(strings))
    if strings.dtype.kind not in "SU":
        raise ValueError(
            f"X has dtype {strings.dtype}, but the kernel compares strings or bytes. Use a kernel of numbers."
        )
    unit = np.uint8 if strings.dtype.kind == "S" else np.int32
    native = np.ascontiguousarray(strings, dtype=strings.dtype.newbyteorder("="))
    codes: NDArray[Any] = native.view(unit).reshape(len(native), native.dtype.itemsize // np.dtype(unit).itemsize)
    codes = codes[:, : int(np.flatnonzero(codes.any(axis=0)).max(initial=-1)) + 1]
    check_codes(codes, 0)
    if width is None:
        return codes.copy()
    if codes.shape[1] > width:
        row = int(np.flatnonzero(codes[:, width])[0])
        raise ValueError(f"string {row} is longer than width = {width} characters. Raise width.")
    return np.pad(codes, ((0, 0), (0, width - codes.shape[1])))


def check_codes(rows: Rows, first_row: int) -> None:
    """Check that rows are character codes followed by zeros.

    Raises
    ------
    ValueError
        If they are not; names the first such row and column.
    """
    if not rows.size:
        return
    if rows.dtype.kind == "f":
        wrong = (rows < 0) | (rows > LARGEST_CODE) | (rows != np.floor(rows))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise ValueError(
                f"row {first_row + row}, column {column} is {rows[row, column]}; the code of a character (an integer "
                f"up to {LARGEST_CODE}) was expected. Make rows by string_codes."
            )
    gaps = (rows[:, :-1] == 0) & (rows[:, 1:] != 0)
    if gaps.any():
        row, column = np.argwhere(gaps)[0]
        raise ValueError(
            f"row {first_row + row}, column {column} is 0, but a character follows; zeros may only pad the end of a "
            "string. Remove zero characters."
        )


def lengths_of(rows: Rows) -> NDArray[np.int64]:
    """Return the number of characters of each row."""
    lengths: NDArray[np.int64] = np.count_nonzero(rows, axis=1).astype(np.int64)
    return lengths


def checked_length(length: Any) -> int:
    """Return the length of substrings or subsequences as an int.

    Raises
    ------
    ValueError
        If it is not an integer of at least 1.
    """
    if isinstance(length, bool) or not isinstance(length, Integral) or length < 1:
        raise ValueError(
            f"substrings cannot have length = {length!r}. Give an integer of at least 1; 3 to 5 are usual."
        )
    return int(length)


def _from_objects(values: list[Any]) -> NDArray[Any]:
    kind = bytes if values and isinstance(values[0], bytes) else str
    for row, value in enumerate(values):
        if not isinstance(value, kind):
            raise ValueError(
                f"value {row} is {value!r}, a {type(value).__name__}, among {kind.__name__} values; use strings only, "
                "or bytes only. Convert the value, or leave the row out."
            )
        if value[-1:] in ("\0", b"\0"):
            raise ValueError(
                f"value {row} = {value!r} ends in a zero character, which marks the end of strings. "
                "Remove zero characters."
            )
    return np.array(values, dtype=np.bytes_ if kind is bytes else np.str_)
