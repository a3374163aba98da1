"""String kernels: common substrings, and common subsequences."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigpca.kernels.base import Kernel, Rows, Vector
from bigpca.kernels.codes import check_codes, checked_length, lengths_of
from bigpca.kernels.subsequence import pair_sums

WIDEST_MAP = 20_000  # columns up to which the spectrum kernel has a feature map


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
    alphabet : str or None, default None
        If given, strings may contain only these characters, and the kernel has an exact feature map: the counts of all
        ``len(alphabet)^length`` words, if these are at most 20,000.

    Raises
    ------
    ValueError
        From :meth:`prepare`, for rows that are not character codes, or a character outside the alphabet.

    Examples
    --------
    >>> from bigpca.kernels.codes import string_codes
    >>> Spectrum(2)(string_codes(["banana", "an"])).tolist()
    [[9.0, 2.0], [2.0, 1.0]]
    """

    length: int
    alphabet: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", checked_length(self.length))
        given: Any = self.alphabet
        if given is not None and not isinstance(given, str):
            raise TypeError(
                f"alphabet = {given!r} is a {type(given).__name__}. Give a str of the characters, or None for all."
            )
        if self.alphabet is not None and (not self.alphabet or len(set(self.alphabet)) < len(self.alphabet)):
            raise ValueError(f"alphabet = {self.alphabet!r} is empty or repeats a character. Give each character once.")

    @property
    def positive_semidefinite(self) -> bool:
        return True

    @property
    def accepts_strings(self) -> bool:
        return True

    def prepare(self, rows: Rows, shift: Vector | None = None, first_row: int = 0) -> CountedWords:
        owners, windows = self._windows(rows, first_row)
        # A window of codes is, byte for byte, a NumPy string, a type that can be sorted and matched.
        strings = windows.astype(np.int32).view(f"U{self.length}")[:, 0]
        words, places = np.unique(strings, return_inverse=True)
        ones = np.ones(len(owners))
        counts = sparse.csr_matrix((ones, (owners, places)), shape=(len(rows), len(words)))  # sums duplicates
        return CountedWords(words, counts)

    def block(self, A: CountedWords, B: CountedWords) -> NDArray[np.floating]:
        if A is B:
            left, right = A.counts, B.counts
        else:
            _, in_A, in_B = np.intersect1d(A.words, B.words, assume_unique=True, return_indices=True)
            left, right = A.counts[:, in_A], B.counts[:, in_B]
        products: NDArray[np.float64] = (left @ right.T).toarray()
        return products

    def diagonal_of(self, A: CountedWords) -> Vector:
        return np.asarray(A.counts.multiply(A.counts).sum(axis=1), dtype=np.float64).ravel()

    def flops_per_entry(self, d: int) -> float:
        return 16.0 * d

    def entry_bytes(self, itemsize: int) -> int:
        return 24  # the dense result, and a sparse one with up to as many entries (8 + 4 bytes each), rounded up

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return d * (4 * self.length + 16) + 8

    def feature_width(self, d: int) -> int | None:
        if self.alphabet is None or len(self.alphabet) ** self.length > WIDEST_MAP:
            return None
        return int(len(self.alphabet) ** self.length)

    def features(self, rows: Rows, first_row: int = 0) -> NDArray[np.floating]:
        width = self.feature_width(rows.shape[1])
        if width is None or self.alphabet is None:
            return super().features(rows, first_row)
        owners, windows = self._windows(rows, first_row)
        letters = np.array([ord(letter) for letter in self.alphabet])
        order = np.argsort(letters)
        digits = order[np.searchsorted(letters[order], windows)]
        words = digits @ len(letters) ** np.arange(self.length - 1, -1, -1)
        counts = np.bincount(owners * width + words, minlength=len(rows) * width)
        return counts.reshape(len(rows), width).astype(rows.dtype)

    def _windows(self, rows: Rows, first_row: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row of each substring, and the codes of the substrings (substrings, length), in row order."""
        check_codes(rows, first_row)
        codes = rows.astype(np.int64)
        if self.alphabet is not None:
            foreign = (codes != 0) & ~np.isin(codes, [ord(letter) for letter in self.alphabet])
            if foreign.any():
                row, column = np.argwhere(foreign)[0]
                raise ValueError(
                    f"row {first_row + row}, character {column} is {chr(codes[row, column])!r}, which is not in the "
                    f"alphabet {self.alphabet!r}. Add it to the alphabet, or use alphabet=None."
                )
        if codes.shape[1] < self.length:
            return np.empty(0, np.int64), np.empty((0, self.length), np.int64)
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
    >>> from bigpca.kernels.codes import string_codes
    >>> Subsequence(2, decay=0.5)(string_codes(["cat", "car"])).tolist()
    [[0.140625, 0.0625], [0.0625, 0.140625]]
    """

    length: int
    decay: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", checked_length(self.length))
        given: Any = self.decay
        if isinstance(given, bool) or not isinstance(given, Real) or not 0 < float(given) <= 1:
            raise ValueError(f"decay = {given!r} is outside (0, 1]. 0.5 is usual.")
        object.__setattr__(self, "decay", float(given))

    @property
    def positive_semidefinite(self) -> bool:
        return True

    @property
    def accepts_strings(self) -> bool:
        return True

    def prepare(self, rows: Rows, shift: Vector | None = None, first_row: int = 0) -> NDArray[np.int32]:
        check_codes(rows, first_row)
        longest = int(lengths_of(rows).max(initial=0))
        return np.array(rows[:, :longest], dtype=np.int32, order="C")

    def block(self, A: Any, B: Any) -> NDArray[np.floating]:
        out = np.zeros((len(A), len(B)))
        pair_sums()(A, B, self.length, self.decay, out, A is B)
        return out

    def diagonal_of(self, A: Any) -> Vector:
        diagonal = np.zeros((len(A), 1))
        sums = pair_sums()
        for row in range(len(A)):
            sums(A[row : row + 1], A[row : row + 1], self.length, self.decay, diagonal[row : row + 1], False)
        return diagonal[:, 0]

    def flops_per_entry(self, d: int) -> float:
        return 40.0 * self.length * d * d

    def entry_bytes(self, itemsize: int) -> int:
        return 8

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return 4 * d
