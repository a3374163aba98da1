"""Names of arrays in signatures, rows on a device, and symmetric matrices stored as one triangle."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import each_piece

Array: TypeAlias = NDArray[Any]  # of whatever dtype: rows as they are stored, blocks in the precision of a pass
DType: TypeAlias = np.dtype[Any]
Vector: TypeAlias = NDArray[np.float64]
Matrix: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Path: TypeAlias = str | os.PathLike[str]
SUMMED = 1 << 15  # values of a piece of a sum
BFLOAT16 = "bfloat16"  # which NumPy does not have: read as the integers of its bits
TIED = 1e-10  # relative difference of neighbours that sums in another order may have
# Attributes of stored numbers: those by which they are packed, with the neutral values, and those that name codes of
# missing values, in CF conventions and in images of the Earth.
PACKED = {"scale_factor": 1.0, "add_offset": 0.0}
FILLS = ("_FillValue", "missing_value", "nodata", "nodatavals")
LEAST_NORM = 1e-140  # whose square is far from the ends of float64, with that of each part that counts
# The packed form is one vector: the upper triangle in strips of 256 rows, each a block that starts at the diagonal, so
# that every operation runs at memory speed and none needs a second d x d array.
STRIP = 256  # rows of a triangle that are processed at a time
OUTER = 8  # rows of an outer product that are computed at a time


class Shaped(Protocol):
    """An array, a table or a matrix of any library, in memory or not: NumPy, Dask, Zarr, xarray, pandas, torch, ..."""

    @property
    def shape(self) -> tuple[int | float, ...]: ...


Input: TypeAlias = Shaped | Path | Sequence[object] | Mapping[str, object]  # X, y or rows, as a user passes them


def working_dtype(dtype: DType) -> DType:
    """Return the dtype in which blocks of ``dtype`` are multiplied: float32 if it represents every value, else float64.

    >>> [working_dtype(np.dtype(t)).name for t in ("f2", "u1", "?", "i4", "f8")]
    ['float32', 'float32', 'float32', 'float64', 'float64']
    """
    exact = dtype.kind == "b" or dtype.itemsize <= 2 or dtype == np.float32
    return np.dtype(np.float32) if exact else np.dtype(np.float64)


def named(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the arrays whose names start with a prefix, which is removed."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def norm_of(values: Array, axis: int | None = None) -> Any:
    """Return Euclidean norms along an axis, or that of all values, also where squares leave the range of float64.

    >>> f"{norm_of(np.array([3e200, 4e200])):.6g}"
    '5e+200'
    """
    with np.errstate(over="ignore", under="ignore"):
        found = np.linalg.norm(values, axis=axis)
        if np.min(found, initial=1.0) > LEAST_NORM and np.max(found, initial=1.0) < 1 / LEAST_NORM:
            return found
        exponent = int(np.frexp(np.max(np.abs(values), initial=0.0))[1])  # by a power of two, which rounds nothing
        return np.ldexp(np.linalg.norm(np.ldexp(values, -exponent), axis=axis), exponent)


def norm_of_upper(S: Matrix) -> float:
    """Return ``|S|_F`` of a symmetric S (d, d) from its upper triangle; the other may be filled.

    NOTE: the rounding of one sum of d^2 equal numbers, as of columns that are equally correlated, adds up: the norm of
    NumPy, one product of d^2 terms, was off by 20 d eps. These are sums of d squares, added in pairs.
    """
    squares, step, diagonal = np.zeros(len(S)), STRIP // 4, S.diagonal()
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for i in range(0, len(S), step):
            tile, beyond = S[i : i + step, i : i + step], S[i : i + step, i + step :]
            upper = np.where(np.tri(len(tile), dtype=bool).T, tile, 0.0)
            squares[i : i + step] += np.einsum("ij,ij->j", upper, upper)
            squares[i + step :] += np.einsum("ij,ij->j", beyond, beyond)
        found = float(np.sqrt(2 * squares.sum() - diagonal @ diagonal))
    return found if LEAST_NORM < found < 1 / LEAST_NORM else float(norm_of(mirror_upper(S)))


def tied(values: Vector) -> Vector:
    """Return the values, made equal where they are equal to rounding: choices then do not depend on the rounding.

    In the order of the values, neighbours that differ by at most 1e-10 of the larger are in one chain, whose values all
    become the smallest of them. A stable sort then orders them by their places.

    Examples
    --------
    >>> tied(np.array([1.0, 0.3, 0.1 + 0.2, 2.0, 0.3])) == [1.0, 0.3, 0.3, 2.0, 0.3]
    array([ True,  True,  True,  True,  True])
    """
    order = np.argsort(values, kind="stable")
    ascending, found = values[order], np.empty_like(values)
    with np.errstate(invalid="ignore"):  # NaN, and differences of infinities, are in no chain
        near = np.diff(ascending) <= TIED * np.maximum(np.abs(ascending[1:]), np.abs(ascending[:-1]))
    starts = np.flatnonzero(np.append(True, ~near)[: len(values)])
    found[order] = np.repeat(ascending[starts], np.diff(starts, append=len(values)))
    return found


def unmasked(X: Any) -> Array:
    """Return the values with NaN in place of masked ones; if there are any, in a float dtype that represents the rest.

    Floats of one or two bytes of ml_dtypes, such as bfloat16, become float32, which represents all of them.

    >>> unmasked(np.ma.masked_equal(np.array([1, 2], "i2"), 2))
    array([ 1., nan], dtype=float32)
    """
    if isinstance(X, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in X):
        X = np.ma.stack(X)  # NumPy would drop the masks of rows
    values, mask = np.asarray(np.ma.getdata(X) if isinstance(X, np.ma.MaskedArray) else X), np.ma.getmask(X)
    if values.dtype.type.__module__ == "ml_dtypes" and values.dtype.itemsize <= 2:
        values = values.astype(np.float32)
    if not mask.any():
        return values
    exact = values.dtype.kind == "b" or values.dtype.itemsize <= 2
    filled = values.astype(values.dtype if values.dtype.kind == "f" else np.float32 if exact else np.float64)
    filled[mask] = np.nan
    return filled


def widened(bits: NDArray[Any]) -> NDArray[np.float32]:
    """Return bfloat16 numbers as float32, exactly: they are its upper 16 bits.

    >>> widened(np.array([0x3FC0, 0xC000], np.uint16))
    array([ 1.5, -2. ], dtype=float32)
    """
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def not_converted(X: Any, name: str) -> Array:
    """Return :func:`unmasked` values as they are, for a caller that converts them to floats.

    Raises
    ------
    ValueError
        For dates, complex numbers and records, which NumPy would convert without an error, or without these words.
    """
    values = unmasked(X)
    if values.dtype.kind in "cmMV":
        raise ValueError(f"{name} has dtype {values.dtype}, which holds no real numbers. Convert it.")
    return values


def held_array(X: Any, name: str) -> Array:
    """Return an array in memory, such as rows, with NaN in place of masked values.

    Raises
    ------
    TypeError
        For arrays in stores and files, whose lost chunks NumPy would read as zeros, and for encoded numbers.
    ValueError
        As of :func:`not_converted`.
    """
    library = type(X).__module__.partition(".")[0]
    try:
        encoded = {*PACKED, *FILLS} & {*getattr(X, "attrs", ())}
        if library not in ("dask", "h5py", "zarr") and getattr(X, "chunks", None) is None and not encoded:
            return not_converted(X, name)
        remedy = f"bigpca.open({name}).compute(), which notices lost chunks and encoded numbers"
    except RuntimeError:  # of a tensor
        remedy = f"{name}.detach().cpu().numpy()"
    raise TypeError(f"{name} is a {library}.{type(X).__name__}; an array in memory was expected. Pass {remedy}.")


def packed_size(d: int) -> int:
    """Return the length of the packed upper triangle of a (d, d) matrix.

    >>> packed_size(300) == 256 * 300 + 44 * 44
    True
    """
    whole, rest = divmod(d, STRIP)
    return STRIP * (whole * d - STRIP * (whole * (whole - 1) // 2)) + rest * rest


def packed_strips(packed: Vector, d: int) -> Iterator[tuple[slice, Matrix]]:
    """Yield (slice of rows i : i + 256, view (rows, d - i) of their columns from i on) of a packed triangle."""
    start = 0
    for i in range(0, d, STRIP):
        stop = min(i + STRIP, d)
        size = (stop - i) * (d - i)
        yield slice(i, stop), packed[start : start + size].reshape(stop - i, d - i)
        start += size


def unpack_upper(packed: Vector, d: int) -> Matrix:
    """Return the (d, d) matrix of a packed upper triangle, with zeros below the diagonal blocks."""
    matrix = np.zeros((d, d))
    for rows, strip in packed_strips(packed, d):
        matrix[rows, rows.start :] = strip
    return matrix


def unpack(packed: Vector, d: int) -> Matrix:
    """Return the symmetric (d, d) matrix of a packed upper triangle."""
    return mirror_upper(unpack_upper(packed, d))


def packed_diagonal(packed: Vector, d: int) -> Vector:
    """Return the diagonal (d,) of a packed upper triangle."""
    return np.concatenate([np.diagonal(strip) for _, strip in packed_strips(packed, d)] or [np.zeros(0)])


def add_packed(packed: Vector, term: NDArray[Any]) -> None:
    """Add the upper triangle of ``term`` (d, d) to a packed one, in place."""

    def add(piece: tuple[slice, Matrix]) -> None:
        rows, strip = piece
        strip += term[rows, rows.start :]

    each_piece(add, packed_strips(packed, len(term)))


def add_outer_upper(S: Matrix, factor: float, vector: Vector) -> None:
    """Add the upper triangle of ``factor * vector vector'`` to that of S (d, d), in place."""
    for i in range(0, len(S), STRIP):
        S[i : i + STRIP, i:] += np.multiply.outer(factor * vector[i : i + STRIP], vector[i:])


def add_outer_packed(packed: Any, factor: float, vector: Any) -> Any:
    """Add ``factor * vector vector'`` to a packed upper triangle, or to a square of another library; in place, if that
    has arrays that change.
    """
    if not isinstance(packed, np.ndarray):
        packed += (factor * vector)[:, None] * vector  # in these steps, which round as those below
        return packed

    def add(piece: tuple[slice, Matrix]) -> None:
        rows, strip = piece
        left, right = factor * vector[rows], vector[rows.start :]
        for i in range(0, len(left), OUTER):  # the product stays in cache, so memory is read and written once
            strip[i : i + OUTER] += np.multiply.outer(left[i : i + OUTER], right)

    each_piece(add, packed_strips(packed, len(vector)))
    return packed


def sum_packed(a: Any, b: Any, factor: float, vector: Any) -> Any:
    """Return a new packed triangle, or square of another library: the sum of two and ``factor * vector vector'``."""
    if not isinstance(a, np.ndarray):
        return add_outer_packed(a + b, factor, vector)
    total, d = np.empty_like(a), len(vector)

    def add(pieces: tuple[tuple[slice, Matrix], ...]) -> None:
        (rows, strip), (_, left), (_, right) = pieces
        own, beyond = factor * vector[rows], vector[rows.start :]
        for i in range(0, len(own), OUTER):  # as above
            one = slice(i, i + OUTER)
            np.add(left[one], right[one], out=strip[one])
            strip[one] += np.multiply.outer(own[one], beyond)

    each_piece(add, zip(*(packed_strips(one, d) for one in (total, a, b)), strict=True))
    return total


def sum_of(a: Any, b: Any) -> Any:
    """Return the sum of two float64 arrays of one shape; large ones in pieces, unless they are of another library."""
    if not isinstance(a, np.ndarray):
        return a + b
    total, step = np.empty_like(a), max(1, SUMMED * len(a) // max(1, a.size))

    def add(i: int) -> None:
        np.add(a[i : i + step], b[i : i + step], out=total[i : i + step])

    each_piece(add, range(0, len(a), step))
    return total


def add_product_packed(packed: Vector, sign: float, rows: Matrix) -> None:
    """Add ``sign rows' rows`` of rows (m, d) to a packed upper triangle, in place."""
    for columns, strip in packed_strips(packed, rows.shape[1]):
        strip += sign * (rows[:, columns].T @ rows[:, columns.start :])


def multiply_packed(packed: Vector, V: Matrix) -> Matrix:
    """Return the product (d, l) of the symmetric matrix of a packed upper triangle with V (d, l)."""
    out = np.zeros(V.shape)
    for rows, strip in packed_strips(packed, len(V)):
        tile, beyond = strip[:, : len(strip)], strip[:, len(strip) :]
        out[rows] += (np.triu(tile) + np.triu(tile, 1).T) @ V[rows] + beyond @ V[rows.stop :]
        out[rows.stop :] += beyond.T @ V[rows]
    return out


def mirror_upper(S: NDArray[Any]) -> NDArray[Any]:
    """Copy the upper triangle of S (d, d) onto the lower one, in place and tile by tile."""
    for i in range(0, len(S), STRIP):
        for j in range(0, i, STRIP):
            S[i : i + STRIP, j : j + STRIP] = S[j : j + STRIP, i : i + STRIP].T
        tile = S[i : i + STRIP, i : i + STRIP]
        np.copyto(tile, tile.T, where=np.tri(len(tile), k=-1, dtype=bool))
    return S
