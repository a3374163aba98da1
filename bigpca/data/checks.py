"""Checks of every source before a row is read: dtype, shape, chunk sizes; and the natural order of names."""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bigpca.errors import brief

LARGE_CHUNK_BYTES = 64 * 2**20
MAX_CELLS = 10**7  # chunks of one array; the bookkeeping of more would fill the memory
NATIVE_BYTES = 16 * 2**20  # row chunk of formats that can be read from any row

_REMEDIES = {
    "c": "Take the real and imaginary parts as columns.",
    "O": "Convert the values to float32 and store them as numbers.",
    "S": "Encode the strings as numbers first.",
    "U": "Encode the strings as numbers first.",
    "T": "Encode the strings as numbers first.",
    "M": "Convert to a number of seconds or days first.",
    "m": "Convert to a number of seconds or days first.",
    "V": "Choose one field, or store the fields as columns of one array.",
}


class MemberError(KeyError, ValueError):
    """A file or store has no array (or column) of the requested name."""

    __str__ = Exception.__str__  # KeyError would quote the message


def check_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Reject dtypes that PCA cannot use; return others in native byte order.

    Parameters
    ----------
    dtype : dtype-like
        float16, float32, float64, bool and all integers are accepted.

    Raises
    ------
    TypeError
        For complex, long double, bfloat16, object, string, date and structured dtypes; the message has the remedy.

    Examples
    --------
    >>> check_dtype(">f4")
    dtype('float32')
    >>> check_dtype("c8")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    TypeError: dtype complex64 cannot be used: PCA needs real numbers (float16/32/64, ...
    """
    try:
        found = np.dtype(dtype)
    except TypeError as error:  # of another array library, such as those in a Dask array
        raise TypeError(f"dtype {dtype} is not one of NumPy's. Convert the chunks with numpy.asarray.") from error
    if found.kind in "iub" or (found.kind == "f" and found.itemsize <= 8):
        return found.newbyteorder("=")
    remedy = "Convert to float64." if found.kind == "f" else _REMEDIES.get(found.kind, "Convert to float32.")
    if found.type.__module__ == "ml_dtypes":  # bfloat16 and smaller floats, which NumPy treats as raw bytes
        remedy = "Convert with X.astype(np.float32), which represents every value."
    raise TypeError(
        f"dtype {brief(found)} cannot be used: PCA needs real numbers (float16/32/64, integers or bool). {remedy} "
        "Nothing was read."
    )


def check_shape(shape: tuple[int, ...], label: str) -> None:
    """Require at least two dimensions: rows, then features."""
    if len(shape) < 2:
        raise ValueError(
            f"{label} has shape {brief(shape)}; rows of features, (n, d) or (n, c, h, w), were expected. "
            "Reshape it to (n, d) first, such as x.reshape(-1, 1) for one feature."
        )


def row_width(shape: tuple[int, ...]) -> int:
    """Return the number of columns of the (n, d) view: the product of all dimensions but the first."""
    return math.prod(shape[1:])


def check_chunk(shape: Sequence[int], chunk: Sequence[int], itemsize: int, label: str) -> None:
    """Reject a large chunk that lies mostly outside its array: it is decoded whole, which no plan accounts for.

    Raises
    ------
    ValueError
        States the bytes of both.
    """
    whole = math.prod(chunk) * itemsize
    inside = math.prod(map(min, shape, chunk)) * itemsize
    if whole > LARGE_CHUNK_BYTES and 0 < inside < whole / 2:
        raise ValueError(
            f"{label} has shape {brief(tuple(shape))} in chunks of {brief(tuple(chunk))}: {whole:,} bytes would be "
            f"decoded for at most {inside:,} inside the array. Smaller chunks were expected. If you trust the store, "
            "rewrite it with those."
        )


def check_cells(shape: Sequence[int], chunks: Sequence[int], label: str) -> None:
    """Reject an array in more than 10 million chunks, before any of them is listed.

    Raises
    ------
    ValueError
        States their number.
    """
    cells = math.prod(-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True))
    if cells > MAX_CELLS:
        raise ValueError(
            f"{label} has shape {brief(shape)} in {cells:,} chunks of {brief(chunks)}; at most {MAX_CELLS:,} were "
            "expected. Its metadata are damaged or forged: restore them, or rewrite the store in larger chunks."
        )


def regular_chunks(n: int, rows: int) -> tuple[int, ...]:
    """Divide n rows into chunks of ``rows``; the last may be shorter, and no rows give one empty chunk.

    Raises
    ------
    ValueError
        For more than 10 million chunks, whose list alone would fill the memory.

    Examples
    --------
    >>> regular_chunks(10, 4)
    (4, 4, 2)
    """
    if n == 0:
        return (0,)
    rows = min(max(rows, 1), n)
    if n // rows > MAX_CELLS:
        raise ValueError(
            f"{n:,} rows in chunks of {rows:,} are {-(-n // rows):,} chunks; at most {MAX_CELLS:,} were expected. The "
            "file states a false shape, or was written in chunks that are far too small: rewrite it."
        )
    whole, rest = divmod(n, rows)
    return (rows,) * whole + ((rest,) if rest else ())


def readable_chunks(n: int, row_bytes: int) -> tuple[int, ...]:
    """Return row chunks of about 16 MiB, for formats that can be read from any row."""
    return regular_chunks(n, NATIVE_BYTES // max(row_bytes, 1))


def coalesce(chunks: Iterable[int], row_bytes: float, limit: int) -> tuple[int, ...]:
    """Join neighbouring whole chunks up to ``limit`` bytes; a chunk over the limit stays alone.

    Examples
    --------
    >>> coalesce((4, 4, 4, 2), row_bytes=1, limit=8)
    (8, 6)
    """
    joined: list[int] = []
    for rows in chunks:
        if joined and (joined[-1] + rows) * row_bytes <= limit:
            joined[-1] += rows
        else:
            joined.append(rows)
    return tuple(joined) or (0,)


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sorting key that puts ``img_2`` before ``img_10``.

    Examples
    --------
    >>> sorted(["img_10.npy", "img_2.npy"], key=natural_key)
    ['img_2.npy', 'img_10.npy']
    """
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(part), part) if part.isdecimal() else (0, 0, part) for part in parts)


def owned(rows: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return rows that the caller may overwrite: own memory, C order, native byte order; copied only if necessary."""
    rows = np.ascontiguousarray(rows, dtype=dtype)
    base = rows.base
    mine = base is None or (type(base) is np.ndarray and base.base is None and base.size == rows.size)
    return rows if mine and rows.flags.writeable else rows.copy()


def is_decode_error(error: Exception) -> bool:
    """Whether an exception is caused by undecodable bytes, rather than by the file system or a lack of memory."""
    if isinstance(error, MemoryError):
        return False
    # gzip, bz2, HDF5 and Arrow report bad data as OSErrors without an errno.
    return not isinstance(error, OSError) or isinstance(error, gzip.BadGzipFile) or error.errno is None
