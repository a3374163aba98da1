"""Labels that come with the rows of batches: all of them in advance, or known once their rows were read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class LabelColumn:
    """The labels of the rows of batches, filled as rows are read: codes of given classes, or real targets.

    Parameters
    ----------
    classes : ndarray of shape (c,), sorted, or None for real targets
    width : int
        Columns of real targets.
    chunk : int
        Rows that are always read together, from a multiple of their number on.
    missing : {"raise", "drop"}
    present : ndarray of bool or None
        False for rows that need no label.

    Attributes
    ----------
    rows : int
        Rows whose labels are known.
    """

    def __init__(
        self, classes: NDArray[Any] | None, width: int, chunk: int, missing: str, present: NDArray[np.bool_] | None
    ) -> None:
        self.classes, self.chunk, self.missing, self.present = classes, chunk, missing, present
        self.rows = 0
        self._values: NDArray[Any] = np.zeros(0, np.int32) if classes is not None else np.zeros((0, width))
        self._origin: NDArray[np.float64] | None = None
        self._lock = Lock()

    def add(self, row: int, labels: Any) -> None:
        """Keep the labels of rows ``row : row + len(labels)``.

        Raises
        ------
        TypeError, ValueError
            For labels that are missing, not among the classes, or no finite numbers; names the rows.
        """
        from bigpca.data.label_values import label_values, rows_shown  # imports file formats

        where = f"labels of rows {row:,} to {row + len(labels) - 1:,}"
        try:
            values, gaps = label_values(labels)
            found = self._targets(values) if self.classes is None else self._codes(values, gaps)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: {error}") from None
        if self.present is not None:
            gaps = gaps & self.present[row : row + len(gaps)]
        if self.missing == "raise" and gaps.any():
            numbers = np.zeros(row + len(gaps), bool)
            numbers[row:] = gaps
            raise ValueError(
                f"{where}: {gaps.sum()} are missing ({rows_shown(numbers)}); a label for each row was expected. Fill "
                'them in, or leave those rows out: missing_labels="drop".'
            )
        stop = row + len(found)
        with self._lock:
            if stop > len(self._values):
                larger = np.empty((max(stop, 2 * len(self._values), 4096), *found.shape[1:]), found.dtype)
                larger[: self.rows] = self._values[: self.rows]
                self._values = larger
            self._values[row:stop] = found
            self.rows = max(self.rows, stop)

    def __getitem__(self, rows: Integers) -> NDArray[Any]:
        """Return the labels of rows that were read: codes (b,), -1 where missing, or targets (b, t), then NaN."""
        with self._lock:
            found: NDArray[Any] = self._values[rows]
        return found

    @property
    def empty(self) -> NDArray[Any]:
        """Labels of no rows."""
        return self._values[:0].copy()

    @property
    def nbytes(self) -> int:
        """Bytes that are held now."""
        return int(self._values.nbytes)

    @property
    def origin(self) -> NDArray[np.float64]:
        """Medians (t,) of the targets in the first chunk that has any; requires that a known one was read.

        They do not depend on where batches end, and lie within ``sqrt(2 n / chunk)`` standard deviations of the mean.
        """
        for start in range(0, self.rows if self._origin is None else 0, self.chunk):
            values = self[np.arange(start, min(start + self.chunk, self.rows))]
            known = ~np.isnan(values).any(axis=1)
            if known.any():
                self._origin = np.median(values[known], axis=0)
                break
        return np.zeros(self._values.shape[1:]) if self._origin is None else self._origin

    def labels(self) -> NDArray[Any]:
        """Return the labels of all rows that need one, after the read."""
        values = self._values[: self.rows]
        return values if self.present is None else values[self.present[: self.rows]]

    def _targets(self, values: NDArray[Any]) -> NDArray[np.float64]:
        from bigpca.data.label_checks import target_columns

        found, width = target_columns(values), self._values.shape[1]
        if found.shape[1] != width:
            raise ValueError(f"they have {found.shape[1]} columns; {width} were expected, as in the first rows.")
        return found

    def _codes(self, values: NDArray[Any], gaps: NDArray[np.bool_]) -> NDArray[np.int32]:
        from bigpca.data.labels import ClassLabels

        codes = np.full(len(gaps), -1, np.int32)
        if not gaps.all():
            codes[~gaps] = ClassLabels(codes[:0], np.asarray(self.classes), 0).encode(values[~gaps])
        return codes


@dataclass(frozen=True)
class ColumnRows:
    """The labels of some rows of a column, in place of an array of them.

    Attributes
    ----------
    column : LabelColumn
    first, stop : int
    repeats : int
        Rows that a pattern makes of one sample, which has the label.
    coded : bool
        Whether targets are returned as codes: 0, or -1 where they are missing.
    """

    column: LabelColumn
    first: int
    stop: int
    repeats: int = 1
    coded: bool = False

    def __len__(self) -> int:
        """Number of rows."""
        return self.stop - self.first

    @property
    def nbytes(self) -> int:
        """Bytes of the labels that are held."""
        return self.column.nbytes

    @overload
    def __getitem__(self, rows: slice[Any, int, None]) -> ColumnRows | NDArray[Any]: ...
    @overload
    def __getitem__(self, rows: Integers) -> NDArray[Any]: ...
    def __getitem__(self, rows: slice[Any, int, None] | Integers) -> ColumnRows | NDArray[Any]:
        """Return the same for a slice of rows (an array if it is empty), or the labels of rows that were read."""
        if not isinstance(rows, slice):
            found = self.column[(self.first + rows) // self.repeats]
            return np.where(np.isnan(found).any(axis=1), np.int32(-1), np.int32(0)) if self.coded else found
        start, stop, _ = rows.indices(len(self))
        if stop <= start:
            return np.zeros(0, np.int32) if self.coded else self.column.empty
        return replace(self, first=self.first + start, stop=self.first + stop)

    def digest(self) -> str:
        """What identifies the labels in advance; the labels themselves are digested with their rows."""
        classes = [] if self.column.classes is None else self.column.classes.tolist()
        return f"labels of batches: {self.column.missing} {self.repeats} {classes}"


@dataclass(frozen=True)
class BatchLabels:
    """The labels that come with batches, as the y of a fit.

    Attributes
    ----------
    stream : BatchStream
    chunk : int
        Rows that are always read together.
    repeats : int
        Rows that a pattern makes of one sample, which has the label.
    """

    stream: Any
    chunk: int
    repeats: int

    @property
    def classes(self) -> NDArray[Any] | None:
        """The classes that were named, sorted."""
        classes: NDArray[Any] | None = self.stream.classes
        return classes

    @property
    def at_hand(self) -> bool:
        """Whether the batches are in memory, so that labels in advance cost nothing."""
        return isinstance(self.stream.batches, list | tuple)

    @property
    def width(self) -> int:
        """Columns of real targets; 0 for classes."""
        from bigpca.data.label_checks import kind_by_dtype, target_columns
        from bigpca.data.label_values import label_values

        values, _ = label_values(self.stream.first_labels)
        return target_columns(values).shape[1] if kind_by_dtype(values) == "targets" else 0

    def beside(self, n: int, classes: Any, width: int, missing: str, weights: NDArray[np.float64] | None) -> ColumnRows:
        """Return the labels of n rows, which are known once the rows were read."""
        present: NDArray[np.bool_] | None = None
        if weights is not None:
            present = np.asarray((weights > 0).reshape(-1, self.repeats).any(axis=1))
        column = LabelColumn(classes, width, self.chunk, missing, present)
        self.stream.keep_labels(column)
        return ColumnRows(column, 0, n, self.repeats)

    def in_advance(self) -> NDArray[Any]:
        """Return all labels: one iteration of the batches.

        Raises
        ------
        ValueError
            For an iterator, which could not be iterated again for its rows.
        """
        labels: NDArray[Any] = self.stream.labels()
        return np.repeat(labels, self.repeats, axis=0)
