"""Which columns of a DataArray have no values: NaN in every sample. Its chunks are read as they are, one at a time."""

from __future__ import annotations

from functools import partial

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array
from bigpca.data.grids import Labels
from bigpca.data.labelled import lazy_table
from bigpca.passes.engine.cluster.get import get_watched
from bigpca.passes.graphs import paths_in, wrap_sources
from bigpca.passes.rows import RowInput


def absent_columns(rows: RowInput, labels: Labels, *, complete: bool) -> tuple[NDArray[np.bool_], float]:
    """Return whether each column (d,) has no value in any row of positive weight, and the reads of X that this took.

    Parameters
    ----------
    complete : bool
        Whether a column that has a value in one sample has values in all: then one sample is read, with its chunks.
        Otherwise all are, if a value is missing in the first.
    """
    first = 0 if rows.weights is None else int(np.argmax(rows.weights > 0))
    at = np.unravel_index(first, labels.sizes)
    sample = labels.field.isel(dict(zip(labels.grid.samples, map(int, at), strict=True)))
    values = sample.values if sample.chunks is None else _computed(sample.data, rows)
    absent = np.isnan(np.asarray(values)).ravel()
    chunk = 1 if labels.field.chunks is None else int(np.prod([labels.field.chunks[i][0] for i in range(len(at))]))
    if complete or not absent.any():
        return absent, chunk / rows.n_rows
    field = da.asarray(lazy_table(labels.field))
    missing = da.isnan(field)
    if rows.weights is not None:
        without = rows.weights.reshape(labels.sizes + (1,) * len(labels.grid.sizes)) == 0
        missing |= da.from_array(without, chunks=(*field.chunks[: len(at)], *((1,),) * len(labels.grid.sizes)))
    found = missing.all(axis=tuple(range(len(at))))  # one read of X
    return _computed(found, rows).ravel(), 1 + chunk / rows.n_rows


def _computed(X: da.Array, rows: RowInput) -> Array:
    """Compute a part of X where the passes run."""
    get = partial(get_watched, paths=paths_in(X), workers_timeout=rows.workers_timeout)
    return np.asarray(wrap_sources(X, rows.missing_chunks).compute(scheduler=get))
