"""Stores that grow: which rows a model has seen, and whether these are still the same."""

from __future__ import annotations

import hashlib
import json
import zlib

import dask.array as da
import numpy as np

from bigpca.data.provenance import Provenance
from bigpca.data.row_source import RowSource
from bigpca.data.sources import source_of


def rows_stamp(X: da.Array, n: int) -> str | None:
    """Return what identifies the first n rows of a local store, also after rows were appended.

    It is the digest of the names, sizes and times of the files of whole chunks; rows in the last chunk, which appending
    fills up, are read. None for arrays in memory, computed arrays and URLs, and for sparse rows: appending to them
    changes files of earlier rows too.
    """
    source = source_of(X)
    if source is None or source.sparse or not source.path or "://" in source.path:
        return None
    whole = n
    if source.format == "zarr":
        whole -= n % max(source.row_chunks())
    tail = np.ascontiguousarray(source.read(whole, n))
    found = [source.shape[1], source.dtype.str, source.stamps(0, whole), n - whole, zlib.crc32(tail.data)]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:32]


def appended_rows(X: da.Array, seen: Provenance | None) -> da.Array:
    """Return the rows of X that were appended since a model was made of the others.

    Raises
    ------
    ValueError
        If the model has no record of its rows; if these changed, are gone, or lie elsewhere; and if none were appended.
    """
    n = int(X.shape[0])
    if seen is None or seen.stamp is None:
        raise ValueError(
            "the model has no record of its rows: it was not made from a local store of dense rows by `bigpca fit`, or "
            "was merged. Fit again, or add new rows with partial_fit."
        )
    if n < seen.rows or rows_stamp(X, seen.rows) != seen.stamp:
        source = source_of(X)
        place = source.path if isinstance(source, RowSource) else "the source"
        raise ValueError(
            f"the model was made of {seen.rows:,} rows of {seen.source}, but {place} has {n:,} rows that do not begin "
            "with these: earlier rows changed, were removed, or lie elsewhere. A model of old and new rows would be "
            "wrong: fit again without --update."
        )
    if n == seen.rows:
        raise ValueError(f"no rows were appended: the model has all {n:,} rows. There is nothing to update.")
    return X[seen.rows :]
