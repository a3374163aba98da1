"""A small output of known content, for the tests of outputs."""

from __future__ import annotations

import numpy as np
import zarr

from bigpca.storage import create_output
from bigpca.storage.objects import create_objects
from bigpca.storage.places import Place

N, DIMENSION, ROWS = 23, 3, 5  # five chunks, the last of three rows


def rows_of(output, index, dtype=np.float32):
    start, stop = output.row_range(index)
    columns = output.shape[1]
    return np.arange(start * columns, stop * columns).reshape(stop - start, columns).astype(dtype) % 251


def begin(path, **changes):
    standard = {"shape": (N, DIMENSION), "dtype": "float32", "chunk_rows": ROWS, "identity": "one"}
    create = create_objects if isinstance(path, Place) else create_output
    return create(path, **(standard | changes))


def fill(output, indices=None):
    for index in output.pending() if indices is None else indices:
        output.writer.write(index, rows_of(output, index))


def write(path, **changes):
    with begin(path, **changes) as output:
        fill(output)
        output.finish()
    return path


def read(path):
    return zarr.open_array(path, mode="r")[...]


EXPECTED = np.arange(N * DIMENSION, dtype=np.float32).reshape(N, DIMENSION) % 251
