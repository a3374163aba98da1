"""Random numbers as a function of (seed, stream, absolute row), independent of worker, thread and order.

Rows are drawn in fixed blocks of absolute rows. A block is one run of NumPy's counter-based Philox, whose key is a hash
of the distribution, the stream's name, the seed and the width, and whose counter starts at the block's number. A range
is cut from the blocks that hold it, so no row depends on the range in which it was requested.

Signs, integers and uniforms come from Philox's raw bits, which NumPy guarantees never to change. Normals use NumPy's
ziggurat, which a future NumPy may change: a test pins its present numbers, and models record the version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

BLOCK = 16_384  # numbers in one block: 0.2 ms, a tenth of it to start the generator
LARGEST_BOUND = 2**63
Draw = Callable[[np.random.Philox, NDArray[Any]], None]


def check_seed(seed: int, name: str = "seed") -> int:
    """Return the seed as an int, of any size.

    Raises
    ------
    TypeError, ValueError
        When it is not an integer, or negative.

    Examples
    --------
    >>> check_seed(-1)
    Traceback (most recent call last):
    ...
    ValueError: seed = -1 is negative, but a seed must be an integer of at least 0. Give for example 0.
    """
    given: Any = seed
    if isinstance(given, bool | np.bool_) or not isinstance(given, Integral):
        raise TypeError(
            f"{name} = {seed!r} is of type {type(seed).__name__}, but a seed must be an integer of at least 0, so that "
            f"the same numbers can be drawn again. Give for example 0."
        )
    if given < 0:
        raise ValueError(
            f"{name} = {seed} is negative, but a seed must be an integer of at least 0. Give for example 0."
        )
    return int(given)


def draw_seed(random_state: Any) -> int:
    """Return an integer unchanged; draw a seed in [0, 2^31 - 1) from the other kinds of scikit-learn's random_state.

    Parameters
    ----------
    random_state : int, numpy.random.RandomState, numpy.random.Generator, or None
        None draws from NumPy's global generator, which ``numpy.random.seed`` sets.

    Raises
    ------
    TypeError, ValueError
        For any other type, or a negative integer.

    Examples
    --------
    >>> draw_seed(7), draw_seed(np.random.RandomState(0)) == draw_seed(np.random.RandomState(0))
    (7, True)
    """
    if random_state is None:
        random_state = np.random.mtrand._rand
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    return check_seed(random_state, "random_state")


def draws_seed(random_state: Any) -> bool:
    """Whether :func:`draw_seed` draws a number rather than returning the one given."""
    return random_state is None or isinstance(random_state, np.random.RandomState | np.random.Generator)


def normals(seed: int, stream: str, start: int, stop: int, width: int, dtype: DTypeLike) -> NDArray[Any]:
    """Draw rows ``start:stop`` of an endless matrix of independent standard normals.

    Row i depends only on (seed, stream, i, width) and the dtype, never on start and stop: any split of a range gives
    the same bits. float32 has its own numbers, not rounded float64 ones. About 8e7 numbers per second and core.

    Parameters
    ----------
    seed : int >= 0
    stream : name of the sequence; different streams, or seeds, are independent.
    start, stop : absolute rows, 0 <= start <= stop.
    width : numbers per row, at least 1.
    dtype : float32 or float64.

    Returns
    -------
    ndarray of shape (stop - start, width)

    Raises
    ------
    TypeError, ValueError
        When the seed, the range, the width or the dtype is invalid.

    Examples
    --------
    >>> whole = normals(7, "probes", 0, 1000, 3, "f4")
    >>> bool(np.array_equal(whole[900:], normals(7, "probes", 900, 1000, 3, "f4")))
    True
    """
    kind = np.dtype(dtype)
    if kind not in (np.float32, np.float64):
        raise TypeError(
            f"normals of dtype {kind} were requested, but only float32 and float64 are available. Use one of these."
        )
    precision: Any = kind

    def draw(bits: np.random.Philox, out: NDArray[Any]) -> None:
        np.random.Generator(bits).standard_normal(out=out, dtype=precision)

    return _rows(("normals", stream, seed, width), start, stop, kind, draw)


def signs(seed: int, stream: str, start: int, stop: int, width: int, dtype: DTypeLike) -> NDArray[Any]:
    """Draw rows ``start:stop`` of an endless matrix of independent -1 and +1, each with probability 1/2.

    Parameters, independence of the split, and errors as in :func:`normals`; the dtype may be any signed one, and does
    not change the signs.

    Examples
    --------
    >>> signs(0, "example", 0, 2, 4, np.int8).tolist()
    [[1, -1, 1, -1], [1, -1, 1, -1]]
    """
    kind = np.dtype(dtype)
    if kind.kind not in "if":
        raise TypeError(
            f"signs of dtype {kind} were requested, but -1 needs a signed dtype. Use int8, float32 or float64."
        )

    def draw(bits: np.random.Philox, out: NDArray[Any]) -> None:
        raw = np.asarray(bits.random_raw(-(-out.size // 64)), dtype="<u8").view(np.uint8)
        out[...] = np.unpackbits(raw, count=out.size).reshape(out.shape)
        np.multiply(out, 2, out=out)
        np.subtract(out, 1, out=out)

    return _rows(("signs", stream, seed, width), start, stop, kind, draw)


def integers(seed: int, stream: str, start: int, stop: int, width: int, bound: int) -> NDArray[np.int64]:
    """Draw rows ``start:stop`` of an endless matrix of independent integers, uniform on 0, ..., bound - 1.

    Exactly uniform, by rejection: raw 64-bit numbers at or above the largest multiple of the bound are drawn again,
    within their block. Parameters, independence of the split, and errors as in :func:`normals`; row i also depends on
    the bound, which lies in [1, 2^63].

    Examples
    --------
    >>> integers(0, "example", 5, 7, 4, 10).tolist()
    [[7, 6, 7, 0], [3, 4, 3, 4]]
    """
    if not 1 <= bound <= LARGEST_BOUND:
        raise ValueError(
            f"integers below {bound} were requested, but the bound must be in [1, 2^63]. Use such a bound."
        )
    excess = 2**64 % bound  # raw numbers above 2^64 - 1 - excess would favour the smallest remainders
    last = np.uint64(2**64 - 1 - excess)

    def draw(bits: np.random.Philox, out: NDArray[Any]) -> None:
        raw = np.asarray(bits.random_raw(out.size), dtype=np.uint64)
        while excess and len(again := np.flatnonzero(raw > last)):
            raw[again] = bits.random_raw(len(again))
        out[...] = (raw % np.uint64(bound)).reshape(out.shape)

    return _rows(("integers", stream, seed, width), start, stop, np.dtype(np.int64), draw, whole=True)


def uniforms(seed: int, stream: str, start: int, stop: int, width: int) -> NDArray[np.float64]:
    """Draw rows ``start:stop`` of an endless matrix of independent uniforms: multiples of 2^-53 in [0, 1), float64.

    Parameters, independence of the split, and errors as in :func:`normals`.

    Examples
    --------
    >>> uniforms(0, "example", 0, 1, 2).round(4).tolist()
    [[0.1082, 0.4]]
    """

    def draw(bits: np.random.Philox, out: NDArray[Any]) -> None:
        raw = np.asarray(bits.random_raw(out.size), dtype=np.uint64)
        np.multiply((raw >> np.uint64(11)).reshape(out.shape), 2.0**-53, out=out)

    return _rows(("uniforms", stream, seed, width), start, stop, np.dtype(np.float64), draw)


def _rows(
    name: tuple[str, str, int, int], start: int, stop: int, dtype: np.dtype[Any], draw: Draw, *, whole: bool = False
) -> NDArray[Any]:
    """Draw every block that overlaps rows ``start:stop``, up to its last row there, and cut the range out.

    ``whole`` draws blocks whole: those whose first rows may be drawn again with numbers that follow the last.
    """
    kind, stream, seed, width = name
    seed = check_seed(seed)
    if width < 1 or not 0 <= start <= stop:
        raise ValueError(
            f"rows {start}:{stop} of width {width} were requested, but 0 <= start <= stop and a width of at least 1 "
            "are required. Correct the range."
        )
    digest = hashlib.blake2b(f"{kind}\0{stream}\0{seed}\0{width}".encode(), digest_size=16).digest()
    key = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
    height = 1 << (max(1, BLOCK // width).bit_length() - 1)  # absolute rows per block: a power of two
    out = np.empty((stop - start, width), dtype)
    for block in range(start // height, -(-stop // height)):
        bits = np.random.Philox(key=key, counter=np.array([0, 0, block, 0], dtype=np.uint64))
        first, end = max(start, block * height), min(stop, (block + 1) * height)
        wanted, before = out[first - start : end - start], first - block * height
        if not before and (len(wanted) == height or not whole):
            draw(bits, wanted)
        else:
            drawn = np.empty((height if whole else before + len(wanted), width), dtype)
            draw(bits, drawn)
            wanted[...] = drawn[before : before + len(wanted)]
    return out
