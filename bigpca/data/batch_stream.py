"""Batches as one sequence of rows: iterated in order, checked, and cut again by absolute row."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.batch_labels import LabelColumn
from bigpca.data.batch_values import Rows, fitting, same_columns, split_batch
from bigpca.data.checks import check_shape, row_width
from bigpca.errors import brief, counted


class BatchStream:
    """The rows of an iterable of batches, as one process reads them: in order, whatever the sizes of batches are.

    The first rows that were read are kept until later ones are read, so that a fit may look at them before its pass. A
    read that begins earlier iterates again, unless the iterable is an iterator. Rows that later iterations give are
    compared with those of the first one, by the first row of each read. After an interrupt, which may have come between
    the batch that was taken and the rows that were kept of it, an iterable is iterated again, and an iterator rejected.

    Parameters
    ----------
    batches : iterable of batches
    row_shape : tuple of int, or None
        Shape of one row as the batches have it; None for that of the first batch.
    dtype : numpy.dtype or None
        Dtype to which batches are converted; None for that of the first batch, which all must then have.
    count : int or None
        Number of rows, if it is known.
    classes : ndarray or None
        The classes that the labels of pairs (rows, labels) may have, sorted, if they are known.

    Attributes
    ----------
    once : bool
        Whether ``batches`` is an iterator, which gives its batches once.
    position : int
        The row that is read next.
    """

    def __init__(
        self, batches: Iterable[Any], row_shape: tuple[int, ...] | None, dtype: np.dtype[Any] | None, count: int | None,
        classes: NDArray[Any] | None = None,
    ) -> None:  # fmt: skip
        self.batches, self.count, self.classes = batches, count, classes
        self.once = isinstance(batches, Iterator)
        self.position = 0
        self._declared, self._asked = count is not None, dtype
        self._row_shape, self._dtype = row_shape, dtype
        self._names: list[Any] | None = None
        self._given_shape: tuple[int, ...] | None = None  # of a row, as the batches have it
        self._lock = RLock()
        self._head: Rows | None = None
        self._first_rows: dict[int, int] = {}
        self._digests: dict[int, tuple[int, int]] | None = None
        self._label_digests: dict[int, int] = {}
        self._digested_rows = 1
        self._column: LabelColumn | None = None
        self._restart()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclude other threads, and begin again after a failure, or an interrupt that came between two rows."""
        with self._lock:
            if self._torn and self.once:
                raise ValueError(
                    f"the batches were interrupted at row {self.position:,}, and an iterator gives its batches once: "
                    "rows may be lost. Make a new iterator; a fit with checkpoint= then skips the rows that it has."
                )
            if (self._torn or self._failure is not None) and not self.once:
                self._restart()
            yield

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; takes the first batch if it is not known."""
        if self._row_shape is None:
            self._require_first()
        return self._row_shape or ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the rows; takes the first batch if it is not known."""
        if self._dtype is None:
            self._require_first()
        return np.dtype(self._dtype)

    @property
    def labelled(self) -> bool:
        """Whether batches are pairs (rows, labels); takes the first batch."""
        self._require_first()
        return self._labels is not None

    @property
    def first_labels(self) -> Any:
        """The labels of the first batch, as long as no later one was taken."""
        self._require_first()
        return self._labels

    def read(self, start: int, stop: int) -> Rows:
        """Return rows ``start:stop`` as a new (stop - start, d) array; fewer at the end if their number is not known.

        Raises
        ------
        ValueError
            If batches are ragged or end early, for rows of an iterator that were read before, and if a later iteration
            gives other rows.
        TypeError
            For batches of other dtypes, or that are no arrays of numbers.
        """
        with self._alone():
            out = np.empty((stop - start, row_width((0, *self.row_shape))), self.dtype)
            done = self._copy_head(start, out)
            if done == 0:
                self._skip_to(start)
            while done < len(out) and self._advance():
                done += self._take(out[done:])
            if done < len(out) and self._declared:
                raise ValueError(
                    f"the batches ended after {counted(self.position, 'row')}; shape says {self.count:,}. Correct "
                    "shape, or leave it out: the rows are then counted as they are read."
                )
            if done:
                self._compare(start, out[0])
            if start == 0 and self.position == done:
                self._head = out[:done].copy()
            return out[:done]

    def has(self, row: int) -> bool:
        """Whether there is a row of that number, which is not before the next one; takes a batch if necessary."""
        with self._alone():
            if row < self.position:
                return self._head is not None and row < len(self._head)
            self._skip_to(row)
            return self._advance()

    def begin_fit(self) -> None:
        """Forget what rows are compared with: those of a loader that shuffles differ from one fit to the next."""
        self._first_rows, self._digests = {}, None

    def keep_labels(self, column: LabelColumn) -> None:
        """Add the labels of all rows to a column from now on, as the rows are read."""
        with self._alone():
            if self.position:
                self._skip_to(0)
            self._column = column

    def digest_rows(self, chunk: int) -> None:
        """Compute the CRC-32 of each ``chunk`` rows from now on, as they are read."""
        if self._digests is None:
            if self.position and not self.once:
                self._restart()
            self._digests, self._label_digests, self._digested_rows = {}, {}, chunk

    def digests(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return (rows, CRC-32) of each chunk that begins in rows ``start:stop``; reads on to them if necessary."""
        with self._alone():
            if self._digests is None:
                raise ValueError("rows were read before they were to be digested")
            self._skip_to(max(stop, self.position), short=True)
            chunks = range(start // self._digested_rows, -(-stop // self._digested_rows))
            found, labels = self._digests, self._label_digests
            return [(found[i][0], found[i][1] | labels.get(i, 0) << 32) for i in chunks if i in found]

    def labels(self) -> NDArray[Any]:
        """Return the labels of all batches, of shape (n,) or (n, m); one iteration.

        Raises
        ------
        ValueError
            For an iterator, which could not be iterated again for its rows, and for an unknown number of rows.
        """
        with self._alone():
            if self.once:
                raise ValueError(
                    "the labels come with the batches of an iterator, which gives them once, but this fit requires "
                    "something of all labels before it reads the rows. For classes, name them: "
                    "from_batches(batches, classes=[...]). Else pass an iterable that can be iterated again (a list, "
                    "a DataLoader), pass all labels as y, or call partial_fit(X, y) for each batch."
                )
            if not self._declared:
                raise ValueError(
                    "the labels come with the batches, whose number of rows is not known, but this fit requires "
                    "something of all labels before it reads the rows. Pass from_batches(batches, shape=(n, d)); for "
                    "classes it is enough to name them: from_batches(batches, classes=[...])."
                )
            if self.position or self._head is not None:
                self._restart()
            found = []
            while self._advance():
                found.append(np.asarray(self._labels))
                self.position += len(self._batch)
            self._restart()
            return np.concatenate(found) if found else np.zeros(0)

    def _require_first(self) -> None:
        with self._alone():
            if self._number == 0 and not self._advance():
                raise ValueError(
                    "the batches are empty: there is no first batch. An iterator that was used before has none left; "
                    "make a new one."
                )

    def _restart(self) -> None:
        """Begin to iterate, at the next batch that is needed."""
        self._torn = True  # while the fields below are not those of one row
        self._iterator: Iterator[Any] | None = None
        self._failure: Exception | None = None
        self._batch: Rows = np.zeros((0, 0))
        self._labels: Any = None
        self._first = self._number = self.position = 0  # row and number of the batch, and the next row
        self._ended = False
        self._head = None
        self._torn = False

    def _copy_head(self, start: int, out: Rows) -> int:
        """Copy rows that are kept, if the next rows continue them; return how many."""
        head = self._head
        if head is None or start >= len(head) or self.position != len(head):
            self._head = None
            return 0
        kept = head[start : start + len(out)]
        out[: len(kept)] = kept
        return len(kept)

    def _skip_to(self, row: int, *, short: bool = False) -> None:
        """Read on to a row, or iterate again if it lies behind; ``short`` if there may be fewer rows."""
        if row < self.position:
            if self.once:
                raise ValueError(
                    f"row {row:,} was read already, and an iterator gives its batches once. Make a new iterator, or "
                    "pass an iterable that can be iterated again (a list, a DataLoader)."
                )
            self._restart()
        while self.position < row and self._advance():
            step = min(row - self.position, self._digested_rows if self._digests is not None else row)
            self._take(np.empty((min(step, self._left), self._batch.shape[1]), self.dtype))
        if self.position < row and self._declared and not short:
            raise ValueError(f"the batches ended after {self.position:,} rows, before row {row:,}.")

    @property
    def _left(self) -> int:
        return self._first + len(self._batch) - self.position

    def _take(self, out: Rows) -> int:
        """Copy rows of the current batch to the start of ``out``; return how many."""
        count, offset = min(self._left, len(out)), self.position - self._first
        out[:count] = fitting(self._batch[offset : offset + count], out.dtype, self.position)
        if self._column is not None:
            self._column.add(self.position, self._labels[offset : offset + count])
        self._torn = True
        self._digest(out[:count])
        self.position += count
        self._torn = False
        return count

    def _digest(self, rows: Rows) -> None:
        digests, size, done = self._digests, self._digested_rows, 0
        if digests is None:
            return
        while done < len(rows):
            chunk, within = divmod(self.position + done, size)
            part = rows[done : done + size - within]
            before, crc = digests.get(chunk, (0, 0)) if within else (0, 0)
            digests[chunk] = before + len(part), zlib.crc32(part.data, crc)
            if self._column is not None:
                labels = self._column[np.arange(self.position + done, self.position + done + len(part))]
                self._label_digests[chunk] = zlib.crc32(labels.data, self._label_digests.get(chunk, 0) if within else 0)
            done += len(part)

    def _compare(self, start: int, row: Rows) -> None:
        crc = zlib.crc32(row.data)
        if self._first_rows.setdefault(start, crc) != crc:
            raise ValueError(
                f"row {start:,} is not the one that an earlier iteration of the batches gave: they are shuffled, or "
                "were augmented at random. A fit that reads X more than once requires the same rows in the same "
                "order. Turn shuffling off, or use a solver of one read."
            )

    def _advance(self) -> bool:
        """Take the next batch that has rows, once those of the current one are used up; False at the end."""
        while self._left == 0 and not self._ended:
            if self._failure is not None:
                raise self._failure
            self._torn = True
            try:
                if self._iterator is None:
                    self._iterator = iter(self.batches)
                batch, labels = self._checked(next(self._iterator))
            except StopIteration:
                self._batch, self._first = self._batch[:0], self.position
                self._ended, self._torn = True, False
                self._check_count(self.position)
                return False
            except Exception as error:  # raised again if the read is repeated: the iterator may have ended by it
                self._failure, self._torn = error, False
                raise
            self._batch, self._labels, self._first = batch, labels, self.position
            self._number += 1
            self._torn = False
        return self._left > 0

    def _check_count(self, rows: int) -> None:
        if not self._declared:
            if self.count is not None and self.count != rows:
                raise ValueError(
                    f"the batches have {rows:,} rows, but an earlier iteration had {self.count:,}. The same rows were "
                    "expected each time."
                )
            self.count = rows

    def _checked(self, batch: Any) -> tuple[Rows, Any]:
        """Return the rows (b, d) and the labels of a batch, after comparing them with those of the first."""
        label = f"batch {self._number} (from row {self.position:,})"
        rows, labels = split_batch(batch, label)
        check_shape(rows.shape, label)
        self._names = same_columns(batch, self._names, label)
        given = rows.shape[1:]
        if self._row_shape is None:
            self._row_shape = given
        flat = 1 in (len(given), len(self._row_shape))
        fits = given == self._row_shape or (flat and row_width(rows.shape) == row_width((0, *self._row_shape)))
        if not fits or given != (self._given_shape or given):
            raise ValueError(
                f"{label} has shape {brief(rows.shape)}, but shape or the first batch announced rows of shape "
                f"{brief(self._given_shape or self._row_shape)}. Give every batch the same features."
            )
        self._given_shape = given
        if self._dtype is None:
            self._dtype = rows.dtype
        if self._asked is None and rows.dtype != self._dtype:
            raise TypeError(
                f"{label} is {rows.dtype}, but the first batch {self._dtype}. One dtype was expected: convert the "
                f'batches, or pass dtype="{np.promote_types(rows.dtype, self._dtype)}".'
            )
        if not np.can_cast(rows.dtype, self._dtype, "same_kind"):
            raise TypeError(
                f"{label} is {rows.dtype}, which {self._dtype} does not represent. Pass dtype="
                f'"{np.promote_types(rows.dtype, self._dtype)}".'
            )
        if labels is None and self._column is not None:
            raise ValueError(f"{label} has no labels, but the first batch has. Give pairs (rows, labels).")
        if labels is not None and len(labels) != len(rows):
            counts = f"{counted(len(rows), 'row')} and {counted(len(labels), 'label')}"
            raise ValueError(f"{label} has {counts}. Give one label for each row.")
        return rows.reshape(len(rows), row_width(rows.shape)), labels
