"""Conversion of labels, weights or keys of any kind to one typed array, and the rows that have none."""

from __future__ import annotations

import os
from collections.abc import Iterable
from decimal import Decimal
from numbers import Complex, Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import solve_paused
from bigpca.data.containers import check_columns, is_zarr_array, is_zarr_group, reject_foreign
from bigpca.data.label_files import check_chunks, read_label_file, read_zarr

BOOLEANS, INTEGERS, REALS, STRINGS, BYTES = "booleans", "integers", "real numbers", "strings", "bytes"
ARGUMENTS = {"label": "y", "weight": "sample_weight", "key": "keys", "value": "values"}  # that messages name
_REMEDIES = {"c": "Take real and imaginary parts as columns.", "M": "Convert to numbers of seconds or days."}


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
    y : array, list, pandas or Dask object, zarr.Array, zarr.Group or path
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
    given = _as_array(y, word)
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


def rows_shown(rows: NDArray[np.bool_]) -> str:
    """Format the first of the rows that are True, for messages.

    >>> rows_shown(np.array([False, True, True])), rows_shown(np.arange(9) > 0)
    ('rows 1, 2', 'rows 1, 2, 3, 4, 5, ...')
    """
    found = np.flatnonzero(rows)
    listed = ", ".join(map(str, found[:5])) + (", ..." if len(found) > 5 else "")
    return f"row{'s' if len(found) > 1 else ''} {listed}"


def _as_array(y: Any, word: str) -> NDArray[Any]:
    """Return the argument as a NumPy array, with None or NaN in its gaps."""
    if isinstance(y, (str, os.PathLike)):
        return read_label_file(os.fspath(y), word)
    if is_zarr_array(y) or is_zarr_group(y):
        return read_zarr(y, word=word)
    if hasattr(y, "__dask_graph__") and hasattr(y, "compute"):
        import dask.array as da  # which imports pandas

        for node in dict(y.__dask_graph__() or {}).values():
            if is_zarr_array(held := getattr(node, "value", node)):
                check_chunks(held, word)
        y = y.data if isinstance(getattr(y, "data", None), da.Array) else y  # of xarray
        if isinstance(y, da.Array):
            y = y.map_blocks(_declared, y.dtype, word, dtype=y.dtype, meta=y._meta)
        with solve_paused():
            y = y.compute()
    if y is not None:
        reject_foreign(y, ARGUMENTS[word], f"One {word} for each row")
    if isinstance(y, np.ma.MaskedArray):
        return _with_gaps(np.ma.getdata(y), np.ma.getmaskarray(y))
    if hasattr(y, "isna") and hasattr(y, "to_numpy"):
        return _from_pandas(y.iloc[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y)
    if len(getattr(y, "shape", ())) == 2 and y.shape[1] > 1:
        check_columns(y, ARGUMENTS[word])  # of polars: NumPy would make numbers of dates
    # NumPy would convert both ["a", 1] and ["a", None] to strings, so lists are examined value by value.
    return np.asarray(y) if hasattr(y, "__array__") else np.array(y, dtype=object)


def _declared(block: Any, dtype: np.dtype[Any], word: str) -> Any:
    """Return a chunk in the dtype that its Dask array declares: Dask itself would cast
    all to that of the first, unchecked.
    """
    own = getattr(block, "dtype", dtype)
    if own == dtype or own.kind not in "biufc" or dtype.kind not in "biuf":
        return block
    if not np.can_cast(own, dtype, "safe"):
        raise TypeError(
            f"a chunk of the {word}s has dtype {own}, but the Dask array declares {dtype}, to which {word}s would be "
            "rounded or wrapped. Convert the chunks first: y.map_blocks(lambda block: block.astype(...), dtype=...)."
        )
    return block.astype(dtype)


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
    return value is None or bool(not_a_number) or type(value).__name__ in ("NAType", "NaTType")  # of pandas


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
    gaps = np.fromiter(map(_is_missing, flat), bool, len(flat))
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
        return np.array(given, np.float64) if REALS in families or not given else _integers(given)
    except OverflowError:
        largest = max(given, key=abs)
        raise ValueError(
            f"the {word} {_shortened(largest)} does not fit its type; integers of 64 bits or real numbers up to "
            "1.8e308 were expected. Scale them, or give classes as strings."
        ) from None


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _integers(given: Iterable[Any]) -> NDArray[Any]:
    exact = [int(value) for value in given]  # NumPy alone would round [2**63, -1] to float64
    return np.array(exact, np.int64 if max(exact) <= np.iinfo(np.int64).max else np.uint64)


def _texts(given: list[Any], dtype: Any, word: str) -> NDArray[Any]:
    texts: NDArray[Any] = np.array(given, dtype=dtype)
    lost = [text for text, kept in zip(given, texts.tolist(), strict=True) if text != kept]
    if lost:
        raise ValueError(
            f"{len(lost)} {word}s end in a zero character, such as {_shortened(lost[0])}; NumPy's strings cannot hold "
            "it, so two of them could become one. Strip it."
        )
    return texts
