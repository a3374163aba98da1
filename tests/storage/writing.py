"""A small output of known content, for the tests of outputs."""

import uuid

import numpy as np
import zarr
from zarr.storage import ObjectStore as ZarrStore

from bigpca.storage import create_output, files
from bigpca.storage.places import ObjectStore

N, DIMENSION, ROWS = 23, 3, 5  # five chunks, the last of three rows


def rows_of(output, index, dtype=np.float32):
    start, stop = output.writer.row_range(index)
    columns = output.shape[1]
    return np.arange(start * columns, stop * columns).reshape(stop - start, columns).astype(dtype) % 251


def begin(path, **changes):
    standard = {"shape": (N, DIMENSION), "dtype": "float32", "chunk_rows": ROWS, "identity": "one"}
    return create_output(path, **({"resume": not isinstance(path, ObjectStore)} | standard | changes))


def beside(place, suffix):
    """Return the place whose name is this one's and a suffix."""
    other = ObjectStore(place)
    other.prefix += suffix
    return other


def fill(output, indices=None, change=0):
    for index in output.pending() if indices is None else indices:
        output.note(output.writer.write(index, rows_of(output, index) + np.float32(change)))


def write(path, **changes):
    with begin(path, **changes) as output:
        fill(output)
        output.finish()
    return path


def opened(path):
    if isinstance(path, ObjectStore):
        return zarr.open_array(ZarrStore(path.store), path=path.prefix, mode="r")
    return zarr.open_array(path, mode="r")


def read(path):
    return opened(path)[...]


def stored(path):
    """Return the bytes of all files of a folder, or of all objects of a prefix, by their keys."""
    if isinstance(path, ObjectStore):
        return {entry.key: path.get(entry.key).data for entry in path.list()}
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


EXPECTED = np.arange(N * DIMENSION, dtype=np.float32).reshape(N, DIMENSION) % 251


def dead(path, old=None):
    """Make what a killed writer leaves beside a path: its temporary sibling, with a file that it was to replace."""
    sibling = path.with_name(f".{path.name}.new-{uuid.uuid4().hex}")
    sibling.mkdir()
    (sibling / files.PROOF).write_text(sibling.name)
    if old is not None:
        (sibling / files.OLD).write_text(old)
    return sibling
