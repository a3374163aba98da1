"""Stores that grow: which rows a model has seen, and whether these are still the same."""

from __future__ import annotations

import hashlib
import json
import zlib

import numpy as np

import bigpca.dask_array as da
from bigpca.data.provenance import Provenance
from bigpca.data.source import Source
from bigpca.data.sources import source_of
from bigpca.data.sparse import CsrRows
from bigpca.data.zarr_arrays import ZarrRows


def rows_stamp(X: da.Array, n: int) -> str | None:
    """Return what identifies the first n rows of a store, also after rows were appended.

    It is the digest of the names, sizes and times of the files of whole chunks; rows in the last chunk, which appending
    fills up, are read. Of sparse rows these are the chunks of values and of their columns, and the ends of all rows are
    read, which AnnData writes as one chunk. None for arrays in memory, computed arrays, and stores that do not say when
    their objects change.
    """
    source = source_of(X)
    if source is None or not source.path or not source.stamped:
        return None
    found: list[object] = [source.shape[1], source.dtype.str]
    if isinstance(source, CsrRows):
        ends = source.ends(0, n)
        found += [zlib.crc32(ends.data), *(_stamp(part, int(ends[-1]), 1) for part in (source.data, source.indices))]
    elif source.sparse:  # in a form that is only read as a whole
        return None
    else:
        found += _stamp(source, n, source.shape[1])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:32]


def _stamp(part: Source, n: int, width: int) -> list[object]:
    """Return what identifies the first n rows of an array: the stamps of whole chunks, and the values of the rest."""
    whole = n - n % part.decoded_rows if isinstance(part, ZarrRows) else n
    tail = np.ascontiguousarray(part.read_block(whole, n, (0, width)))
    return [part.stamps(0, whole), n - whole, zlib.crc32(tail.data)]


def appended_rows(X: da.Array, seen: Provenance | None) -> da.Array:
    """Return the rows of X that were appended since a model was made of the others.

    Raises
    ------
    ValueError
        If the model has no record of its rows; if these changed, are gone, or are elsewhere; and if none were appended.
    """
    n = int(X.shape[0])
    if seen is None or seen.stamp is None:
        raise ValueError(
            "the model has no record of its rows: it was not made from a store by `bigpca fit`, or was merged. "
            "Fit again, or add new rows with partial_fit."
        )
    if n < seen.rows or rows_stamp(X, seen.rows) != seen.stamp:
        source = source_of(X)
        place = source.path if source is not None else "the source"
        raise ValueError(
            f"the model was made of {seen.rows:,} rows of {seen.source}, but {place} has {n:,} rows that do not start "
            "with the same rows: earlier rows changed, were removed, or were moved. A model of old and new rows would "
            "be wrong: fit again without --update."
        )
    if n == seen.rows:
        raise ValueError(f"no rows were appended: the model has all {n:,} rows. There is nothing to update.")
    return X[seen.rows :]
