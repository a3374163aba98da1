"""Rows that come in batches, such as a network produces them, as a source like any other."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from bigpca.data.batch_labels import BatchLabels
from bigpca.data.batch_stream import BatchStream
from bigpca.data.batch_values import split_batch
from bigpca.data.checks import check_dtype, readable_chunks, row_width
from bigpca.data.row_source import IN_ORDER, RowSource
from bigpca.data.sources import open_source, source_of
from bigpca.data.storages import Stamp
from bigpca.data.views import view_of

OPEN_BYTES = 1 << 40  # of float32 rows, for which an unknown number of rows is laid out
FORMAT = "batches"


@dataclass(frozen=True, eq=False)
class BatchRows:
    """Rows of a stream of batches, for the process that iterates; read in order.

    Attributes
    ----------
    stream : BatchStream
    rows : int
        Number of rows; if it is not known, the number for which they are laid out.
    open_ended : bool
        Whether it is not known.
    """

    stream: BatchStream
    rows: int
    open_ended: bool

    @classmethod
    def of(cls, stream: BatchStream) -> BatchRows:
        """Return the rows of a stream, whose number may have become known."""
        width = max(1, row_width((0, *stream.row_shape)))
        count = stream.count
        return cls(stream, max(1, OPEN_BYTES // (4 * width)) if count is None else count, count is None)

    @property
    def array_shape(self) -> tuple[int, ...]:
        """Shape of all batches together."""
        return self.rows, *self.stream.row_shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype in native byte order."""
        return self.stream.dtype

    def row_chunks(self) -> tuple[int, ...]:
        """Chunks of about 16 MiB, as those of an array in memory, wherever batches end."""
        return readable_chunks(self.rows, row_width(self.array_shape) * self.dtype.itemsize)

    def read(self, start: int, stop: int, columns: tuple[int, int]) -> NDArray[Any]:
        """Read on to a block; fewer rows at the end if their number is not known."""
        rows = self.stream.read(start, stop)
        return rows if columns == (0, rows.shape[1]) else rows[:, slice(*columns)]

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return the CRC-32 of those rows in place of a file's mtime; reads on to them if necessary."""
        return [("batches", rows, crc) for rows, crc in self.stream.digests(start, stop)]

    def describe(self) -> dict[str, Any]:
        """Return nothing more than shape and dtype; from now on the stream keeps what :meth:`stamps` returns."""
        self.stream.digest_rows(max(self.row_chunks()))
        return {"number of rows known": not self.open_ended}


def from_batches(
    batches: Iterable[Any],
    shape: tuple[int, ...] | None = None,
    dtype: DTypeLike | None = None,
    *,
    classes: ArrayLike | None = None,
) -> da.Array:
    """Return the rows of an iterable of batches as a source for fits, such as features that a network produces.

    A fit iterates in the thread that called it, and holds a few slabs of rows at a time. Rows are cut again by absolute
    row: results have the same bits wherever batches end, and, if the number of rows is known, those of the same rows in
    memory. A checkpoint records a digest of the rows; a rerun skips rows that were folded, and is rejected if they
    changed, as those of a loader that shuffles do.

    Parameters
    ----------
    batches : iterable of batches
        A batch is an array (b, d) or (b, c, h, w) of any number of rows b: NumPy, a torch tensor (on any device, with
        gradients, of any floating dtype), or whatever has ``__array__``. Or a pair (rows, labels), whose labels fits
        that require them use if y is None. An iterable that can be iterated again (a list, a DataLoader) serves fits
        of several reads; an iterator only those of one read.
    shape : tuple of int, optional
        (n, d) or (n, c, h, w) of all rows. Without it, a fit of one read finds n in that read.
    dtype : dtype, optional
        Batches are converted to it; None for the dtype of the first batch, which all must then have. bfloat16 becomes
        float32, which represents each value.
    classes : array-like of shape (c,), optional
        The classes that labels of pairs may have, such as ``range(10)``; those without rows get a count of 0. A fit
        then takes labels and rows in one read. Without it, that holds for real labels with a linear label kernel; other
        labels are collected first, in one more iteration.

    Returns
    -------
    dask.array.Array of shape (n, d), or (nan, d) if n is not known
        For ``plan``, ``fit``, ``partial_fit``, ``transform`` and other methods that map rows, not for operations of
        Dask, which computes chunks in any order.

    Raises
    ------
    TypeError, ValueError
        If ``batches`` is not iterable or is empty, and for a shape or dtype that rows cannot have. The first batch is
        taken unless both shape and dtype are given. Errors in later batches are raised by the fit, which names their
        rows.

    Examples
    --------
    >>> X = from_batches([np.ones((3, 2), "f4"), np.zeros((2, 2), "f4")])
    >>> X.shape, X.dtype
    ((5, 2), dtype('float32'))
    """
    if not hasattr(batches, "__iter__") or isinstance(batches, str | bytes | dict | np.ndarray | da.Array):
        raise TypeError(
            f"batches is a {type(batches).__name__}; an iterable of arrays (b, d) was expected: a list, a generator "
            "that was called, or a DataLoader. Pass one array to fit itself."
        )
    row_shape, count = None, None
    if shape is not None:
        shape = _checked_shape(shape)
        row_shape, count = shape[1:], shape[0]
    elif isinstance(batches, list | tuple):
        count = sum(len(split_batch(batch, f"batch {i}")[0]) for i, batch in enumerate(batches))
        if count == 0:
            raise ValueError("the batches are empty: there are no rows. Give at least one batch.")
    known = None
    if classes is not None:
        from bigpca.data.labels import merge_classes  # imports file formats

        known = merge_classes(classes, classes)[0]
    stream = BatchStream(batches, row_shape, None if dtype is None else check_dtype(dtype), count, known)
    source = RowSource(FORMAT, "", "", BatchRows.of(stream))
    X = open_source(source, uuid.uuid4().hex)
    return X if count is not None else da.Array(X.dask, X.name, ((np.nan,), X.chunks[1]), meta=X._meta)


def _checked_shape(shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
    whole = all(isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0 for size in sizes)
    if len(sizes) < 2 or not whole:
        raise ValueError(
            f"shape = {shape!r}; positive integers (n, d) or (n, c, h, w) were expected. Leave it out if n is unknown."
        )
    return tuple(int(size) for size in sizes)


def batches_of(X: da.Array) -> da.Array | None:
    """Return rows in batches with known chunks: those of their number, or those for which they are laid out.

    None for any other array.
    """
    original = f"original-{X.name}"
    source = _behind(getattr(X.dask, "layers", {}).get(original, {}), original)
    if not (isinstance(source, RowSource) and isinstance(source.storage, BatchRows)):
        return None
    if not np.isnan(X.shape[0]):
        return X if source_of(X) is source else None
    found = RowSource(FORMAT, "", "", BatchRows.of(source.storage.stream))
    return open_source(found, uuid.uuid4().hex)


def has_batches(X: da.Array) -> bool:
    """Whether an array, or the one that a view of it shows, is what :func:`from_batches` returned."""
    return batches_of(view_of(X)[0]) is not None


def reject_batches(X: da.Array, what: str) -> None:
    """Reject a Dask array that is computed from batches.

    Raises
    ------
    TypeError
    """
    for name, layer in getattr(X.dask, "layers", {}).items():
        if name.startswith("original-") and getattr(_behind(layer, name), "format", "") == FORMAT:
            raise TypeError(f"{what} would be computed from batches by Dask, {IN_ORDER}")


def _behind(layer: Any, name: str) -> Any:
    node = dict(layer).get(name)
    return getattr(node, "value", node)


def batch_labels(X: da.Array, y: Any) -> Any:
    """Return y, or the labels that come with batches if it is None, as :class:`BatchLabels`.

    Raises
    ------
    ValueError
        For labels of batches whose number of rows is not known.
    """
    if y is not None and not np.isnan(X.shape[0]):
        return y
    base, view = view_of(X)
    known = batches_of(base)
    source = None if known is None else source_of(known)
    if source is None or not isinstance(source.storage, BatchRows):
        return y
    if y is not None and source.storage.open_ended:
        raise ValueError(
            "labels were given for batches whose number of rows is not known; it was expected, because there is one "
            "label for each row. Pass from_batches(batches, shape=(n, d))."
        )
    stream = source.storage.stream
    repeats = 1 if view is None else view.rows_per_sample
    return BatchLabels(stream, source.row_chunks()[0], repeats) if y is None and stream.labelled else y
