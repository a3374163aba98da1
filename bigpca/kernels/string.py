"""String kernels: common substrings, and common subsequences by a compiled dynamic programme.

Strings are rows of numbers: the codes of their characters, with zeros at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from bigpca.arrays import Array, Integers, Vector
from bigpca.errors import an, positive_integer, real_number
from bigpca.kernels.base import Kernel

LARGEST_CODE = 0x10FFFF  # of Unicode; exact in float32


def string_codes(X: ArrayLike) -> NDArray[np.integer[Any]]:
    """Return the character codes of each string, one string per row, padded with zeros.

    Parameters
    ----------
    X : array of strings or of bytes, of shape (n,) or (n, 1); of dtype U, S or object.

    Returns
    -------
    ndarray of shape (n, length of the longest string), uint8 for bytes and int32 for strings

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
    codes: Array = native.view(unit).reshape(len(native), native.dtype.itemsize // np.dtype(unit).itemsize)
    # NumPy pads to the longest string that the dtype allows: columns without a character go.
    codes = codes[:, : int(np.flatnonzero(codes.any(axis=0)).max(initial=-1)) + 1]
    check_codes(codes, 0)
    return codes.copy()


def check_codes(rows: Array, first_row: int) -> None:
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


def _from_objects(values: list[Any]) -> Array:
    kind = bytes if values and isinstance(values[0], bytes) else str
    for row, value in enumerate(values):
        if not isinstance(value, kind):
            raise ValueError(
                f"value {row} is {value!r}, {an(type(value).__name__)}, among {kind.__name__} values; use strings "
                "only, or bytes only. Convert the value, or leave the row out."
            )
        if value[-1:] in ("\0", b"\0"):
            raise ValueError(
                f"value {row} = {value!r} ends in a zero character, which marks the end of strings. "
                "Remove zero characters."
            )
    return np.array(values, dtype=np.bytes_ if kind is bytes else np.str_)


@dataclass(frozen=True)
class CountedWords:
    """The distinct substrings of a block of strings, sorted, and their counts in each string."""

    words: NDArray[np.str_]
    counts: Any


@dataclass(frozen=True)
class Spectrum(Kernel):
    """``k(x, y) = sum_u count_u(x) count_u(y)`` over all substrings u of a given length.

    See Leslie, Eskin & Noble 2002, sec. 2. Strings shorter than ``length`` have no substrings, so their kernel is 0.
    Rows come from :func:`bigpca.kernels.string_codes`. A block is a product of sparse count matrices. Entries are
    float64, exact up to 2^53.

    Parameters
    ----------
    length : int >= 1

    Raises
    ------
    ValueError
        From :meth:`prepare`, for rows that are not character codes.

    Examples
    --------
    >>> from bigpca.kernels.string import string_codes
    >>> Spectrum(2)(string_codes(["banana", "an"])).tolist()
    [[9.0, 2.0], [2.0, 1.0]]
    """

    positive_semidefinite: ClassVar[bool] = True
    accepts_strings: ClassVar[bool] = True

    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", positive_integer("length", self.length))

    def prepare(self, rows: Array, shift: Vector | None = None, first_row: int = 0) -> CountedWords:
        owners, windows = self._windows(rows, first_row)
        # A window of codes is, byte for byte, a NumPy string, a type that can be sorted and matched.
        strings = windows.astype(np.int32).view(f"U{self.length}")[:, 0]
        words, places = np.unique(strings, return_inverse=True)
        ones = np.ones(len(owners))
        counts = sparse.csr_matrix((ones, (owners, places)), shape=(len(rows), len(words)))  # sums duplicates
        return CountedWords(words, counts)

    def block(self, A: CountedWords, B: CountedWords) -> NDArray[np.floating]:
        # k(x, y) = sum_w n_w(x) n_w(y): words that one of the blocks lacks add nothing.
        if A is B:
            left, right = A.counts, B.counts
        else:
            _, in_A, in_B = np.intersect1d(A.words, B.words, assume_unique=True, return_indices=True)
            left, right = A.counts[:, in_A], B.counts[:, in_B]
        products: NDArray[np.float64] = (left @ right.T).toarray()
        return products

    def diagonal_of(self, A: CountedWords) -> Vector:
        # sum_w n_w(x)^2
        return np.asarray(A.counts.multiply(A.counts).sum(axis=1), dtype=np.float64).ravel()

    def flops_per_entry(self, d: int) -> float:
        return 16.0 * d

    def entry_bytes(self, itemsize: int) -> int:
        return 24  # the dense result, and a sparse one with up to as many entries (8 + 4 bytes each), rounded up

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return d * (4 * self.length + 16) + 8

    def _windows(self, rows: Array, first_row: int) -> tuple[Integers, Integers]:
        """Return the row of each substring, and the codes of the substrings (substrings, length), in row order."""
        check_codes(rows, first_row)
        codes = rows.astype(np.int64)
        if codes.shape[1] < self.length:
            return np.empty(0, np.int64), np.empty((0, self.length), np.int64)
        # Strings end with zeros: a window whose last code is 0 reaches beyond the end.
        windows = np.lib.stride_tricks.sliding_window_view(codes, self.length, axis=1)
        owners, starts = np.nonzero(windows[:, :, -1])
        return owners, windows[owners, starts]


@dataclass(frozen=True)
class Subsequence(Kernel):
    """Gap-weighted common subsequences: ``k(x, y) = sum_u sum_(i: x[i] = u) sum_(j: y[j] = u) decay^(l(i) + l(j))``.

    u runs over all words of the given length, i and j over their occurrences in x and y, and l is the length that they
    span, gaps included. Dynamic programming over positions takes O(length |x| |y|) operations per pair of strings
    (Lodhi et al. 2002, sec. 4 and definition 2); it is compiled on first use, and handles 16 pairs at a time. Not
    normalised: use ``normalized(k)`` for the kernel of that paper's experiments. Rows come from
    :func:`bigpca.kernels.string_codes`.

    Parameters
    ----------
    length : int >= 1
    decay : float in (0, 1], default 0.5

    Raises
    ------
    ValueError
        From :meth:`prepare`, for rows that are not character codes.

    Examples
    --------
    >>> from bigpca.kernels.string import string_codes
    >>> Subsequence(2, decay=0.5)(string_codes(["cat", "car"])).tolist()
    [[0.140625, 0.0625], [0.0625, 0.140625]]
    """

    positive_semidefinite: ClassVar[bool] = True
    accepts_strings: ClassVar[bool] = True

    length: int
    decay: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", positive_integer("length", self.length))
        object.__setattr__(self, "decay", real_number("decay", self.decay, "(0, 1]", "a factor such as 0.5"))

    def prepare(self, rows: Array, shift: Vector | None = None, first_row: int = 0) -> NDArray[np.int32]:
        check_codes(rows, first_row)
        longest = int(np.count_nonzero(rows, axis=1).max(initial=0))
        return np.array(rows[:, :longest], dtype=np.int32, order="C")

    def block(self, A: Any, B: Any) -> NDArray[np.floating]:
        from bigpca.kernels import loops  # Numba is imported with it

        out = np.zeros((len(A), len(B)))
        loops.subsequence_sums(A, B, self.length, self.decay, out, A is B)
        return out

    def diagonal_of(self, A: Any) -> Vector:
        return np.array([self.block(row, row)[0, 0] for row in A[:, None]])

    def flops_per_entry(self, d: int) -> float:
        return 40.0 * self.length * d * d

    def entry_bytes(self, itemsize: int) -> int:
        return 8

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return 4 * d
