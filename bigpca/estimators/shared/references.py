"""Rows with which a kernel compares new rows: training rows or landmarks, in memory or read again from their store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, DType, content_digest
from bigpca.data.row_source import RowSource
from bigpca.passes.engine.states import digest
from bigpca.passes.reading.readers import DirectReader

TILE_ROWS = 1024
STREAM_BYTES = 32 << 20  # of reference rows read at a time
FINGERPRINT_ROWS = 8
GONE = "which is gone; new rows are compared with them. Put them back there, or fit again."


@dataclass(frozen=True)
class References:
    """Rows with which a kernel compares others: in memory, or read from their store.

    Attributes
    ----------
    rows : ndarray of shape (p, d), or None if they are read
    source : RowSource or None
    indices : ndarray of shape (p,), or None if row i of X is reference i
        Row numbers, for kernels that identify rows by them.
    stamp : str
        Digest of (key, size, mtime) of the files of ``source``, which must not change.
    """

    rows: Array | None
    source: RowSource | None = None
    indices: NDArray[np.int64] | None = None
    stamp: str = ""

    @classmethod
    def stored(cls, source: RowSource) -> References:
        """Return references that are read from a store in its present state."""
        return cls(None, source, None, digest(source.stamps(0, source.shape[0])))

    @property
    def _store(self) -> RowSource:
        """The store of rows that are not in memory."""
        if self.source is None:
            raise TypeError("the references are neither in memory nor in a store")
        return self.source

    @property
    def shape(self) -> tuple[int, int]:
        """(p, d)."""
        p, d = (self._store if self.rows is None else self.rows).shape
        return int(p), int(d)

    @property
    def dtype(self) -> DType:
        """Dtype of the rows in memory or in the store."""
        return np.dtype((self._store if self.rows is None else self.rows).dtype)

    def tiles(self) -> Iterator[tuple[int, Array]]:
        """Yield (first row, rows) in tiles of 1,024 rows; one read of a store."""
        count, d = self.shape
        if self.rows is not None:
            for start in range(0, count, TILE_ROWS):
                yield start, self.rows[start : start + TILE_ROWS]
            return
        self._check_stamp()
        reader = DirectReader(self._store)
        step = max(1, STREAM_BYTES // (TILE_ROWS * d * self._store.dtype.itemsize)) * TILE_ROWS
        for first in range(0, count, step):
            try:
                rows = reader.read(first, min(first + step, count))
            except FileNotFoundError as error:
                raise FileNotFoundError(
                    f"the model's training rows were in {self._store.path}, {GONE} ({error})"
                ) from error
            for start in range(0, len(rows), TILE_ROWS):
                yield first + start, rows[start : start + TILE_ROWS]

    def _check_stamp(self) -> None:
        source = self._store
        try:
            stamp = digest(source.stamps(0, source.shape[0]))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"the model's training rows were in {source.path}, {GONE} ({error})") from error
        if stamp != self.stamp:
            raise ValueError(
                f"the model's training rows were in {source.path}, whose files changed after the fit; new rows are "
                f"compared with them. The files as they were were expected. Put them back and load the model again, or "
                f"fit again."
            )

    def fingerprint(self) -> str:
        """Digest of the values of some rows, including the first and last: the same wherever they are stored."""
        count = self.shape[0]
        chosen = np.unique(np.linspace(0, count - 1, FINGERPRINT_ROWS).astype(np.int64))
        if self.rows is not None:
            return content_digest(self.rows[chosen])
        source = self._store
        return content_digest(*(source.read(int(i), int(i) + 1) for i in chosen))

    @property
    def held_bytes(self) -> int:
        """Bytes of the rows in memory, or of the rows that are read at a time."""
        return self.rows.nbytes if self.rows is not None else STREAM_BYTES

    def describe(self) -> dict[str, object]:
        """What identifies the rows."""
        if self.source is not None:
            return {"source": self.source.describe(), "stamp": self.stamp}
        return {"rows": content_digest(self.rows)}
