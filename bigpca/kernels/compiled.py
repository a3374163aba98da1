"""Compiled kernels that are sums over columns of a term of two numbers, without a temporary per pair.

Compiled on first use in each process (about 1 s per term and precision) and kept only in memory: a disk cache would
fail on a read-only or shared installation. The compiled code releases the GIL, so threads run in parallel.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

Rows = NDArray[Any]
LANES = 64  # rows of Y processed together, so that the compiler can use vector instructions
STRIP = 256  # rows of X per strip of sums
COLUMNS = 512  # columns of Y transposed at a time: with LANES, 256 KiB that stay in cache
RUN = 16  # columns summed in the precision of the rows before they are added to a float64 sum
STRICT = {"contract", "nsz"}  # no reordering of sums: the same bits for any division of the rows into blocks
_lock = threading.Lock()
_built: dict[tuple[str, str], Any] = {}


def column_sums(term: str, X: Rows, X_extra: Rows, Y: Rows, Y_extra: Rows, symmetric: bool) -> Rows:
    """Compute ``K[i, j] = sum_c term(X[i, c], Y[j, c])`` (a, b), in the precision of the rows.

    Runs of ``RUN`` columns are summed in the precision of the rows, and the runs in float64: for float32 rows and terms
    of one sign this adds at most 16 * 6e-8 = 1e-6 of the sum to the error of the terms themselves. The bits of an entry
    depend only on its two rows, not on their block.

    Parameters
    ----------
    term : "minimum", "chi square" or "jensen shannon"
    X : ndarray of shape (a, d), C-contiguous, float32 or float64
    X_extra : ndarray of shape (a, d), same dtype; binary logarithms of X (0 for 0), or X itself if the term needs none.
    Y, Y_extra : likewise, of shape (b, d) and of the same dtype
    symmetric : whether Y is X, so that one triangle suffices.
    """
    out = np.empty((len(X), len(Y)), X.dtype)
    _build(term, X.dtype)(X, X_extra, Y, Y_extra, out, symmetric)
    return out


def _build(term: str, dtype: np.dtype[Any]) -> Any:
    with _lock:
        key = (term, dtype.char)
        if key not in _built:
            numba = importlib.import_module("numba")
            compiled_term = numba.njit(_TERMS[term](dtype.type), inline="always", fastmath=STRICT)
            _built[key] = _sums(numba, compiled_term, dtype.type)
        return _built[key]


def _tile_sums(numba: Any, term: Any, number: Any) -> tuple[Any, Any]:
    """Compile the transposition of a tile of Y, and the sums of one row of X with the ``LANES`` rows of a tile."""

    @numba.njit(fastmath=STRICT, nogil=True)  # type: ignore[untyped-decorator]
    def transpose(Y: Any, j0: int, j1: int, c0: int, c1: int, tile: Any) -> None:
        for j in range(j0, j1):
            for c in range(c0, c1):
                tile[c - c0, j - j0] = Y[j, c]

    @numba.njit(fastmath=STRICT, nogil=True)  # type: ignore[untyped-decorator]
    def add_tile(x: Any, lx: Any, tile: Any, extra: Any, short: Any, total: Any) -> None:
        for start in range(0, len(x), RUN):
            stop = min(start + RUN, len(x))
            short[:] = number(0)
            c = start
            while c + 4 <= stop:
                for j in range(LANES):
                    first = term(x[c], tile[c, j], lx[c], extra[c, j])
                    second = term(x[c + 1], tile[c + 1, j], lx[c + 1], extra[c + 1, j])
                    third = term(x[c + 2], tile[c + 2, j], lx[c + 2], extra[c + 2, j])
                    fourth = term(x[c + 3], tile[c + 3, j], lx[c + 3], extra[c + 3, j])
                    short[j] += (first + second) + (third + fourth)
                c += 4
            while c < stop:
                for j in range(LANES):
                    short[j] += term(x[c], tile[c, j], lx[c], extra[c, j])
                c += 1
            for j in range(LANES):
                total[j] += short[j]

    return transpose, add_tile


def _sums(numba: Any, term: Any, number: Any) -> Any:
    """Compile the sums of all pairs of rows, in strips of X and transposed tiles of Y."""
    transpose, add_tile = _tile_sums(numba, term, number)

    @numba.njit(fastmath=STRICT, nogil=True)  # type: ignore[untyped-decorator]
    def sums(X: Any, X_extra: Any, Y: Any, Y_extra: Any, out: Any, symmetric: bool) -> None:
        (a, d), b = X.shape, len(Y)
        tile, extra = np.zeros((COLUMNS, LANES), X.dtype), np.zeros((COLUMNS, LANES), X.dtype)
        short, totals = np.zeros(LANES, X.dtype), np.zeros((STRIP, LANES), np.float64)
        for j0 in range(0, b, LANES):
            j1 = min(j0 + LANES, b)
            last = j1 if symmetric else a
            for i0 in range(0, last, STRIP):
                i1 = min(i0 + STRIP, last)
                totals[:] = 0.0
                for c0 in range(0, d, COLUMNS):
                    c1 = min(c0 + COLUMNS, d)
                    transpose(Y, j0, j1, c0, c1, tile)
                    transpose(Y_extra, j0, j1, c0, c1, extra)
                    for i in range(i0, i1):
                        add_tile(X[i, c0:c1], X_extra[i, c0:c1], tile, extra, short, totals[i - i0])
                for i in range(i0, i1):
                    for j in range(j0, j1):
                        out[i, j] = totals[i - i0, j - j0]
                        if symmetric:
                            out[j, i] = totals[i - i0, j - j0]

    return sums


def _minimum(number: Any) -> Callable[..., Any]:
    def term(x: Any, y: Any, _lx: Any, _ly: Any) -> Any:
        return x if x < y else y

    return term


def _chi_square(number: Any) -> Callable[..., Any]:
    """x y / (x + y) as low (high / (x + y)): the product x y alone would overflow or underflow long before the term."""
    zero, one = number(0), number(1)

    def term(x: Any, y: Any, _lx: Any, _ly: Any) -> Any:
        low = x if x < y else y
        high = y if x < y else x
        both = low + high
        return low * (high / (both if both > zero else one))

    return term


def _jensen_shannon(number: Any) -> Callable[..., Any]:
    """low (Q(low / high) + |log2 x - log2 y|) with Q(r) = (1 + r) log2(1 + r) / r: a sum of positive parts."""
    zero, one, two = number(0), number(1), number(2)
    coefficients = [number(c) for c in growth_polynomial(9 if number is np.float32 else 19)]
    odd, even = tuple(coefficients[::-2]), tuple(coefficients[-2::-2])  # highest first; short loops are unrolled
    half = len(odd)

    def term(x: Any, y: Any, lx: Any, ly: Any) -> Any:
        low = x if x < y else y
        high = y if x < y else x
        t = two * (low / (high if high > zero else one)) - one
        square = t * t
        odd_part, even_part = odd[0], even[0]
        for i in range(1, half):
            odd_part = odd_part * square + odd[i]
            even_part = even_part * square + even[i]
        gap = lx - ly
        return low * (odd_part * t + even_part + (gap if gap > zero else -gap))

    return term


def growth_polynomial(degree: int) -> NDArray[np.float64]:
    """Return the coefficients in t = 2 r - 1, lowest first, of an approximation of (1 + r) log2(1 + r) / r on [0, 1].

    The nearest singularity is r = -1, so each degree gains a factor 3 + sqrt(8) = 5.8 (Bernstein's ellipse; Trefethen
    2013, theorem 8.2): degree 9 suffices for float32, degree 19 for float64.
    """

    def growth(t: NDArray[np.float64]) -> NDArray[np.float64]:
        r = (1 + t) / 2
        values: NDArray[np.float64] = (1 + r) * np.log1p(r) / (r * np.log(2))
        return values

    coefficients = np.zeros(degree + 1)
    nodes = chebyshev.chebpts1(degree + 1)
    found = chebyshev.cheb2poly(chebyshev.chebfit(nodes, growth(nodes), degree))
    coefficients[: len(found)] = found  # NumPy drops trailing zeros
    return coefficients


_TERMS = {"minimum": _minimum, "chi square": _chi_square, "jensen shannon": _jensen_shannon}
