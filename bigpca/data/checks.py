"""Checks of every source before a row is read: dtype, shape, chunks, encoded values, integers that float64 rounds."""

from __future__ import annotations

import base64
import binascii
import contextlib
import gzip
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from bigpca.arrays import FILLS, PACKED, Array
from bigpca.engine.interfaces import notes
from bigpca.errors import CorruptedChunkError, brief
from bigpca.storage.files import content_digest, is_denied, is_of_client

LARGE_CHUNK_BYTES = 64 * 2**20
MAX_CELLS = 10**7  # chunks of one array; the bookkeeping of more would fill the memory
MAX_ROW_CHUNKS = 10**6  # chunks of rows: a plan and a layout list each of them
NATIVE_BYTES = 16 * 2**20  # row chunk of sparse rows, and of files that are written
READABLE_BYTES = 4 * 2**20  # row chunk of formats that can be read from any row: of the smallest group

_REMEDIES = {
    "c": "Take the real and imaginary parts as columns.",
    "O": "Convert the values to float32 and store them.",
    "S": "Encode the strings as numbers first.",
    "U": "Encode the strings as numbers first.",
    "T": "Encode the strings as numbers first.",
    "M": "Convert to a number of seconds or days first.",
    "m": "Convert to a number of seconds or days first.",
    "V": "Choose one field, or store the fields as the columns of one array; convert float8 to float32.",
}
LARGEST_EXACT = 2**53  # beyond it, float64 cannot represent every integer
RANGES = ("valid_range", "valid_min", "valid_max")
NETCDF = "_NCProperties"  # of the file, by which netCDF-4 is told from other HDF5
MATLAB = "MATLAB_class"
SPOKEN = {*PACKED, *FILLS, *RANGES, "_Unsigned", "units", NETCDF, MATLAB}  # attributes that say something of numbers
# What netCDF-4 writes where a variable without _FillValue was never written (NC_FILL_* in netcdf.h).
_DEFAULT_FILLS = {f"i{size}": 1 - 2 ** (8 * size - 1) for size in (1, 2, 4)}
_DEFAULT_FILLS |= {f"u{size}": 2 ** (8 * size) - 1 for size in (1, 2, 4)}
_DEFAULT_FILLS |= {"i8": 2 - 2**63, "u8": 2**64 - 2, "f": 15 * 2.0**119}


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
    if found.kind in "iub" or (found.kind == "f" and 2 <= found.itemsize <= 8):
        return found.newbyteorder("=")
    remedy = "Convert to float64." if found.kind == "f" else _REMEDIES.get(found.kind, "Convert to float32.")
    if found.type.__module__ == "ml_dtypes":  # bfloat16 and smaller floats, which NumPy treats as raw bytes
        remedy = "Convert with X.astype(np.float32), which represents every value."
    raise TypeError(
        f"dtype {brief(found)} cannot be used: PCA needs real numbers (float16/32/64, integers or bool). {remedy} "
        "Nothing was read."
    )


def check_promised(dtype: DTypeLike, promised: np.dtype[Any], label: str) -> None:
    """Reject a chunk whose kind of numbers is not that of its Dask array; a larger dtype of the kind is accepted."""
    found = check_dtype(dtype)
    if not np.can_cast(found, promised, "same_kind"):
        raise TypeError(
            f"a chunk of {label} has dtype {found}, but the Dask array says {promised}. Chunks of that dtype were "
            f"expected. Correct the dtype, such as X.map_blocks(..., dtype={found.name!r})."
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
    """Reject a large chunk that is mostly outside its array: it is decoded whole, which no plan accounts for.

    Raises
    ------
    ValueError
        States the bytes of both.
    """
    whole = math.prod(chunk) * itemsize
    inside = math.prod(map(min, shape, chunk)) * itemsize
    if whole > LARGE_CHUNK_BYTES and 0 < inside < whole / 2:
        raise ValueError(
            f"a chunk of {label} decodes to {whole:,} bytes, but at most {inside:,} of them are inside the array of "
            f"shape {brief(tuple(shape))}. If you trust the store, rewrite it with chunks smaller than "
            f"{brief(tuple(chunk))}."
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


def regular_chunks(n: int, rows: int | None = None, *, row_bytes: int = 0) -> tuple[int, ...]:
    """Divide n rows into chunks of ``rows``; the last may be shorter, and no rows give one empty chunk.

    Without ``rows``, for formats that can be read from any row: into chunks of about 4 MiB, or a million chunks.

    Raises
    ------
    ValueError
        For more than a million chunks, whose list alone would take long or fill the memory.

    Examples
    --------
    >>> regular_chunks(10, 4)
    (4, 4, 2)
    """
    if n == 0:
        return (0,)
    if rows is None:
        rows = max(READABLE_BYTES // max(row_bytes, 1), -(-n // MAX_ROW_CHUNKS))
    rows = min(max(rows, 1), n)
    if n // rows > MAX_ROW_CHUNKS:
        raise ValueError(
            f"{n:,} rows in chunks of {rows:,} are {-(-n // rows):,} chunks; at most {MAX_ROW_CHUNKS:,} were expected. "
            "The file states a false shape, or was written in chunks that are far too small: rewrite it. For "
            "sparse rows, the densest row sets the size of a chunk: leave out the columns that fill it, or fit the "
            "rows in parts."
        )
    whole, rest = divmod(n, rows)
    return (rows,) * whole + ((rest,) if rest else ())


def whole_chunks(chunks: Sequence[int], start: int, stop: int) -> tuple[int, int]:
    """Return the rows of all chunks that have some of rows ``start:stop``, which are not none.

    Examples
    --------
    >>> whole_chunks((4, 4, 2), 5, 9)
    (4, 10)
    """
    ends = np.cumsum(chunks)
    first, last = np.searchsorted(ends, [start, stop - 1], side="right")
    return int(ends[first]) - chunks[first], int(ends[last])


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sorting key that puts ``img_2`` before ``img_10``.

    Examples
    --------
    >>> sorted(["img_10.npy", "img_2.npy"], key=natural_key)
    ['img_2.npy', 'img_10.npy']
    """
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(part), part) if part.isdecimal() else (0, 0, part) for part in parts)


def check_numbering(paths: Iterable[str]) -> None:
    """Reject files named ``i-of-n``, counted from 0 or 1, if some are missing; other names are not looked at.

    Raises
    ------
    ValueError
        Names the first that is not there, and files of two numberings, such as those of an earlier write.

    Examples
    --------
    >>> check_numbering(["a-1-of-2.npy", "a-2-of-2.npy", "b.npy"])
    >>> check_numbering(["a-1-of-3.npy", "a-3-of-3.npy"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: 'a-1-of-3.npy' is one of 3 files, but 2 are there, without number 2. Copy or write the rest, or pass ...
    """
    found: dict[tuple[str, str], list[re.Match[str]]] = {}
    for path in paths:
        # Hugging Face wrote a digest of its own in the name of each.
        plain = re.sub(r"-[0-9a-f]{8,}(?=\.\w+$)", "", path)
        if (named := re.fullmatch(r"(.*?)(\d+)([-_]of[-_])(\d+)(.*)", plain, re.DOTALL)) is not None:
            found.setdefault((named[1], named[3] + named[5]), []).append(named)
    for each in found.values():
        first, numbers = each[0], sorted(int(one[2]) for one in each)
        shown, other = brief(repr(first[0])), next((one for one in each if int(one[4]) != int(first[4])), None)
        if other is not None:
            raise ValueError(
                f"{shown} is one of {int(first[4])} files, and {brief(repr(other[0]))} one of {int(other[4])}: files "
                "of two numberings. Remove those of an earlier write, or pass the list of the files to read."
            )
        whole = [range(start, start + int(first[4])) for start in (0, 1)]
        if numbers not in [list(one) for one in whole]:
            absent = next((i for i in whole[0 not in numbers] if i not in numbers), None)
            raise ValueError(
                f"{shown} is one of {int(first[4])} files, but {len(each)} are there"
                f"{'' if absent is None else f', without number {absent}'}. Copy or write the rest, or pass the list "
                "of the files to read."
            )


def owned(rows: Any, dtype: np.dtype[Any]) -> Any:
    """Return rows that the caller may overwrite: own memory, C order, native byte order; copied only if necessary.

    Rows that are not NumPy's are returned as they are.
    """
    if not isinstance(rows, np.ndarray):
        return rows
    rows = np.ascontiguousarray(rows, dtype=dtype)
    base = rows.base
    mine = base is None or (type(base) is np.ndarray and base.base is None and base.size == rows.size)
    return rows if mine and rows.flags.writeable else rows.copy()


def is_decode_error(error: Exception) -> bool:
    """Whether an exception is caused by undecodable bytes, rather than by the file system or a lack of memory."""
    if isinstance(error, MemoryError) or is_denied(error) or is_of_client(error):
        return False
    # gzip, bz2, HDF5 and Arrow report bad data as OSErrors without an errno.
    return not isinstance(error, OSError) or isinstance(error, gzip.BadGzipFile) or error.errno is None


@contextmanager
def decoding(
    what: str,
    remedy: str = "Copy or write it again.",
    *,
    errors: tuple[type[Exception], ...] = (OSError, ValueError, LookupError, EOFError),
) -> Iterator[None]:
    """Turn errors that undecodable bytes cause in the block into one that says what cannot be decoded, and what to do.

    Raises
    ------
    CorruptedChunkError
        Instead of one of these errors.
    """
    try:
        yield
    except errors as error:
        if isinstance(error, CorruptedChunkError) or not is_decode_error(error):
            raise
        raise CorruptedChunkError(f"{what} ({brief(error)}). {remedy}") from error


def arrow_leaf(kind: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the type of what lists of Arrow hold, and the shape of one row; -1 for lists of any length."""
    shape, order = _tensor_shape(kind)
    sizes = list[int]()
    while True:
        kind = getattr(kind, "storage_type", kind)
        if not hasattr(kind, "value_type"):
            return kind, tuple(sizes) if shape is None else tuple(shape[axis] for axis in order)
        sizes.append(getattr(kind, "list_size", -1))
        kind = kind.value_type


def _tensor_shape(kind: Any) -> tuple[tuple[int, ...] | None, Sequence[int]]:
    """Return the shape in which the values of a tensor are stored, and the order of its axes; None for lists."""
    shape = getattr(kind, "shape", None)
    if shape is None or None in shape:
        return None, ()
    return tuple(shape), getattr(kind, "permutation", None) or range(len(shape))


def arrow_rows(column: Any, label: str, width: int | None = None) -> Array:
    """Return the numbers of a column of lists of Arrow, (n, d), or with more dimensions for lists of lists.

    Nulls in place of a list of floats are rows of NaN; they have ``width`` columns where there is nothing else.

    Raises
    ------
    ValueError
        For other nulls, and for lists of another length than that of the first, or of another width; names it.
    """
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    (shape, order), column = _tensor_shape(column.type), getattr(column, "storage", column)
    n, sizes = len(column), list[int]()
    leaf = arrow_leaf(column.type)[0].to_pandas_dtype()
    if column.null_count and hasattr(column, "value_lengths") and np.dtype(leaf).kind == "f":
        present = np.asarray(column.is_valid())
        rows = arrow_rows(column.drop_null(), label, width) if present.any() else np.zeros((0, width or 0), leaf)
        filled = np.full((n, *rows.shape[1:]), np.nan, rows.dtype)
        filled[present] = rows
        return filled if shape is None else filled.reshape(n, *shape).transpose(0, *(axis + 1 for axis in order))
    while hasattr(column, "value_lengths"):
        values, present = column.flatten(), len(column) - column.null_count
        lengths = np.asarray(column.drop_null().value_lengths())
        if len(column) == present and not len(lengths):
            return np.zeros((n, *sizes, 0), leaf)
        check_lengths(lengths, len(column), label)
        sizes.append(int(lengths[0]))
        column = getattr(values, "storage", values)
    if column.null_count:
        raise ValueError(f"{label} has nulls. Drop or fill those rows first.")
    if width not in (None, size := math.prod(sizes)):
        raise ValueError(
            f"{label}: the list of row 0 has {size} values; {width} were expected, as in the first rows. Drop or "
            "repair such rows first."
        )
    rows = np.asarray(column.to_numpy(zero_copy_only=False)).reshape(n, *(shape or sizes))
    return rows if shape is None else rows.transpose(0, *(axis + 1 for axis in order))


def check_lengths(lengths: Array, n: int, label: str) -> None:
    """Reject fewer lists than n rows, and lists of another length than the first."""
    if len(lengths) < n:
        raise ValueError(f"{label} has {n - len(lengths):,} nulls in {n:,} rows. Drop or fill those rows first.")
    others = np.flatnonzero(lengths != lengths[:1])
    if len(others):
        raise ValueError(
            f"{label}: the list of row {others[0]} has {lengths[others[0]]} values; {lengths[0]} were expected, as in "
            "the first rows. Drop or repair such rows first."
        )


def note_first(name: str, *values: Array) -> None:
    """Note a digest of the first rows of a Dask array, which must be the same at every read of a fit."""
    if (own := notes.get()) is not None:
        own[name] = content_digest(*values)


@dataclass(frozen=True)
class ValidRange:
    """Which stored numbers of a variable are not values: the default fill of netCDF-4, and those out of its range.

    Attributes
    ----------
    fill : int, float or None
    low, high : int, float or None
        ``valid_range`` in the units of the stored numbers, ends included.
    way_out : str
        What to pass if a number is a value after all, and if it is missing.
    """

    fill: float | None
    low: float | None
    high: float | None
    way_out: str = "bigpca.open(path, fill=None) (--fill none); if it is missing, pass fill={value}"

    @classmethod
    def of(cls, attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> ValidRange | None:
        """Return what the attributes of a variable of a dtype say; None if all numbers are values."""
        given = {name: numbers_of(attributes[name]) for name in RANGES if name in attributes}
        ends = given.get("valid_range", [*given.get("valid_min", [None]), *given.get("valid_max", [None])])
        if len(ends) != 2 or not all(one is None or isinstance(one, int | float) for one in ends):
            ends = [None, None]
        unfilled = NETCDF in attributes and not set(FILLS[:1]) & set(attributes)
        fill = _DEFAULT_FILLS.get("f" if dtype.kind == "f" else f"{dtype.kind}{dtype.itemsize}") if unfilled else None
        return None if fill is ends[0] is ends[1] is None else cls(fill, *ends)

    @classmethod
    def of_decoded(cls, field: Any) -> ValidRange | None:
        """Return those of a DataArray in its units; None if all numbers are values, and if it was computed.

        NOTE: xarray masks neither. What it read from a file has an encoding, which arithmetic removes.
        """
        stored = field.encoding
        dtype = np.dtype(stored.get("dtype", field.dtype))
        if "dtype" not in stored or math.prod(stored.get("original_shape", field.shape)) < field.size:  # or joined
            return None
        # Which variables of one byte are filled, only the file says.
        filled = dtype.itemsize > 1 and str(stored.get("source", "")).endswith((".nc", ".nc4", ".cdf"))
        found = cls.of({**field.attrs, **stored, **({NETCDF: True} if filled else {})}, dtype)
        if found is None:
            return None

        def decoded(end: float | None) -> float | None:
            # Ends in a wider type than the stored numbers are in units of the values (NetCDF User's Guide, A.1).
            if end is None or not set(PACKED) & set(stored) or (dtype.kind != "f" and isinstance(end, float)):
                return end
            value = np.array([end], field.dtype)  # rounded as xarray rounds
            value *= stored.get("scale_factor", 1.0)
            value += stored.get("add_offset", 0.0)
            return float(value[0])

        ends = decoded(found.low), decoded(found.high)
        low, high = ends[::-1] if stored.get("scale_factor", 1.0) < 0 else ends
        way_out = "bigpca.open(field, fill=None) of the DataArray; if it is missing, field.where(field != {value})"
        return cls(decoded(found.fill), low, high, way_out)

    def values(self, rows: Array, label: str, first: int, left: int = 0) -> Array:
        """Return rows, which are overwritten, with NaN in place of the default fill.

        Raises
        ------
        ValueError
            For integers that are the default fill, and for numbers out of the range; names the first row.
        """
        why = ""
        if self.fill is not None and (missing := rows == self.fill).any():
            if rows.dtype.kind == "f":
                rows[missing] = np.nan
            else:
                why = "netCDF-4's default for values that were never written, and the variable has no _FillValue"
        for end, beyond in ((self.low, np.less), (self.high, np.greater)):
            if not why and end is not None:
                # float32 numbers may equal an end that the attribute has in float64
                missing = beyond(rows, rows.dtype.type(end) if rows.dtype.kind == "f" else end)
                why = f"out of its valid range, {self.low} to {self.high}" if missing.any() else ""
        if why:
            row, column = (int(place) for place in np.argwhere(missing)[0])
            raise ValueError(
                f"row {first + row:,}, column {left + column} of {label} is {rows[row, column]}: {why}. If it is a "
                f"value, pass {self.way_out.format(value=rows[row, column])}."
            )
        return rows


def check_decoded(
    attributes: Mapping[str, Any],
    label: str,
    remedy: str,
    fill: str | None = "default",
    known: Iterable[Any] = (),
    missing: str = "bigpca.open(..., missing_value={code}) (--missing-value={code}), or fill=None (--fill none)",
) -> None:
    """Reject values that are stored scaled, shifted, or with numbers in place of missing values or of dates.

    Parameters
    ----------
    attributes : mapping
        The array's attributes: CF conventions, sections 2.5.1, 4.4 and 8.1; and ``nodata`` of images of the Earth.
    remedy : str
        How to decode them.
    missing : str
        How to open numbers with one code for missing values, which becomes NaN, and if it is a value.
    fill, known : optional
        What the caller said of numbers in place of missing values: with ``fill=None`` they are values, and those of
        ``known`` become NaN, or did.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_decoded({"_FillValue": float("nan"), "scale_factor": 1.0}, "x", "")
    >>> check_decoded({"scale_factor": 0.1, "units": "K"}, "x", "Open it decoded")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: x has scale_factor = 0.1, so its stored numbers are encoded values. Decoded values were expected. ...
    """
    given = {name: numbers_of(attributes[name]) for name in (*PACKED, *FILLS) if name in attributes}
    found: dict[str, Any] = {
        name: given[name] for name, same in PACKED.items() if name in given and given[name] != [same]
    }
    filled = {name: given[name] for name in FILLS if name in given}
    # NaN is missing without a code, and some writers say None for no code.
    codes = {one for fills in filled.values() for one in fills if isinstance(one, int | float | bytes) and one == one}
    if fill is not None and codes - {*known}:
        found |= {name: fills for name, fills in filled.items() if not codes.isdisjoint(fills)}
    if "true" in str(attributes.get("_Unsigned", "")).lower():  # text of HDF5 may come as bytes
        found["_Unsigned"] = ["true"]
    units = attributes.get("units", "")
    units = units.decode(errors="replace") if isinstance(units, bytes) else str(units)
    if re.search(r"\bsince\s+[-+]?\d", units):  # dates, section 4.4
        found["units"] = [units]
    if found:
        if found.keys() <= {*FILLS} and len(codes) == 1:
            remedy = f"Pass {missing.format(code=codes.pop())} if that is a value"
        shown = ", ".join(f"{name} = {', '.join(map(str, values[:3]))}" for name, values in found.items())
        raise ValueError(
            f"{label} has {shown}, so its stored numbers are encoded values. Decoded values were expected. {remedy}."
        )


def numbers_of(value: Any) -> list[Any]:
    """Return the numbers of an attribute; in Zarr v3, xarray writes those of floats as base64 little-endian doubles."""
    if isinstance(value, str):
        with contextlib.suppress(binascii.Error, struct.error, ValueError):
            return [struct.unpack("<d", base64.standard_b64decode(value))[0]]
        with contextlib.suppress(ValueError):
            return [float(value)]
    return np.asarray(value).ravel().tolist()
