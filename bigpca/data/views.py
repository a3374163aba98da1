"""Views: which numbers of each stored sample are analysed, and what a row is.

A view is applied where rows are read, and nothing is copied. A Dask array carries it
(:class:`bigpca.data.dask_arrays.Carried`), so that the engine reads the samples directly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from bigpca.data.containers import check_chunk_shape
from bigpca.data.patterns import NO_CODES, MissingCodes, Positions, RowPattern, Taken
from bigpca.errors import NonFiniteError
from bigpca.storage.files import content_digest

Names: TypeAlias = NDArray[np.object_] | None
COPIED_ROWS = 32  # of a transposed sample at a time: two cache lines of each column
COPIED_BYTES = 2**18  # of smaller samples, which are transposed together


@dataclass(frozen=True, eq=False)
class View:
    """Rows of stored samples: some axes of a sample number its rows, the others make their columns.

    Row ``sample * rows_per_sample + position`` is the row at a position of a sample.

    Attributes
    ----------
    sample : tuple of int
        Shape of one stored sample.
    row_axes : tuple of int
        Axes of the sample that number its rows, the slowest first; none where a sample is a row.
    column_axes : tuple of int
        Axes that make the columns, the slowest first.
    taken : tuple of slice or ndarray of int64, or ()
        Which positions of each axis are used, in this order; () for all of all axes.
    columns : ndarray of int64, or None
        Which columns are kept, in this order; None for all.
    pattern : RowPattern or None
        What the view was made of, if a user described it.
    absent : {"", "nan", "masked"}
        Why the other places of a grid are left out: they are NaN in every row, which is checked, or a mask excludes
        them, whatever they hold; "" where no grid is involved.
    missing : MissingCodes
        Samples have these values where there is none: they become NaN, before anything else.
    complete : ndarray of int64, or None
        Columns without which a row is NaN: where one of them is not finite, so are all that are kept.
    """

    sample: tuple[int, ...]
    row_axes: tuple[int, ...] = ()
    column_axes: tuple[int, ...] = (0,)
    taken: tuple[Taken, ...] = ()
    columns: NDArray[np.int64] | None = None
    pattern: RowPattern | None = None
    absent: str = ""
    missing: MissingCodes = NO_CODES
    complete: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, pattern: RowPattern, shape: tuple[int, ...], names: Names = None) -> View:
        """Return the view that a pattern describes of samples of a shape.

        ``names`` are those of the columns before some are chosen.

        Raises
        ------
        ValueError
            If the pattern does not fit, or chooses what there is not.
        """
        sizes = pattern.sample(shape)
        positions = pattern.positions(sizes)
        whole = cls(sizes, *pattern.axes(len(sizes)), positions, pattern=pattern, missing=pattern.missing)
        if pattern.columns is None:
            return whole
        chosen = pattern.columns.on(whole.width, "columns", names)
        if isinstance(chosen, slice):
            chosen = np.arange(*chosen.indices(whole.width), dtype=np.int64)
        return replace(whole, columns=chosen)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values of a view of a pattern: the pattern, with named columns by their positions."""
        pattern = replace(self.pattern or RowPattern(), missing=self.missing)
        if self.columns is not None and pattern.columns is not None and not isinstance(pattern.columns.given, slice):
            pattern = replace(pattern, columns=Positions(tuple(self.columns.tolist()), pattern.columns.length))
        return {"sample": list(self.sample), **pattern.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], width: int) -> View:
        """Return what :meth:`to_json` gave of a view of ``width`` columns.

        Raises
        ------
        KeyError, TypeError, ValueError
            For values that it does not give.
        """
        pattern, sizes = RowPattern.from_json(values), tuple(int(size) for size in values["sample"])
        if min(sizes, default=0) < 1:
            raise ValueError(f"its samples have the shape {sizes}")
        shape = pattern.shape(sizes)
        found = cls.of(replace(pattern, columns=None), shape).width
        if pattern.columns is not None:
            found = pattern.columns.count(found)  # before memory is allocated for so many
        if found != width:
            raise ValueError(f"its pattern makes rows of {found} columns, not {width}")
        return cls.of(pattern, shape)

    @property
    def rows_per_sample(self) -> int:
        """Rows of one sample."""
        return self._places(self.row_axes)

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self._places(self.column_axes) if self.columns is None else len(self.columns)

    @property
    def column_sizes(self) -> tuple[int, ...]:
        """Sizes of the axes that make the columns; some positions and columns may be left out."""
        return tuple(self.sample[axis] for axis in self.column_axes)

    @property
    def kept(self) -> bool:
        """Whether a model keeps the view, and applies it to new samples."""
        return bool(self.absent) or (self.pattern is not None and not self.plain)

    @property
    def plain(self) -> bool:
        """Whether rows are the samples, as they are without a view."""
        return not self.copies and self.rows_per_sample == 1 and self.width == math.prod(self.sample)

    @property
    def copies(self) -> bool:
        """Whether rows are never the memory of the samples."""
        order = self.row_axes + self.column_axes
        chosen = bool(self.missing) or any(not isinstance(one, slice) for one in self.taken)
        return chosen or self.columns is not None or order != tuple(sorted(order))

    def _places(self, axes: tuple[int, ...]) -> int:
        return math.prod(
            _length(self.taken[axis], self.sample[axis]) if self.taken else self.sample[axis] for axis in axes
        )

    def dtype(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of rows of samples in a dtype: float32 or float64 where values are missing."""
        return self.missing.dtype(stored) if self.missing else stored

    def samples(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of samples that hold rows ``start:stop``."""
        return start // self.rows_per_sample, -(-stop // self.rows_per_sample)

    def chunks(self, samples: tuple[int, ...]) -> tuple[int, ...]:
        """Return the rows of chunks of so many samples."""
        each = self.rows_per_sample
        return tuple(count * each for count in samples)

    def apply(
        self, samples: NDArray[Any], *, owned: bool = False, present: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """Return the rows (b * rows_per_sample, width) of samples (b, d), which may be overwritten if ``owned``.

        Columns that are NaN are those of the rows that are ``present``; None for all.
        """
        if issparse(samples):
            chosen: NDArray[Any] = self._sparse(samples)
            return chosen
        if self.missing:
            samples, owned = self.missing.decoded(samples), True
        check_chunk_shape(samples.shape, (math.prod(self.sample),), "the Dask array")
        cells = samples.reshape(len(samples), *self.sample)
        for axis, taken in enumerate(self.taken):
            cells = cells[(slice(None),) * (axis + 1) + (taken,)]
        order = (0, *(axis + 1 for axis in self.row_axes + self.column_axes))
        rows = cells.transpose(order).reshape(len(cells), self.rows_per_sample, self._places(self.column_axes))
        whole = owned and not self.taken and samples.flags.c_contiguous
        flat = _contiguous(rows, samples if whole else None).reshape(-1, rows.shape[2])
        if self.columns is None:
            return flat
        if self.absent == "nan":
            _check_absent(flat, self.columns, present)
        found: NDArray[Any] = np.take(flat, self.columns, axis=1)
        if self.complete is not None and found.dtype.kind == "f":
            found[~np.isfinite(flat).take(self.complete, axis=1).all(axis=1)] = np.nan
        return found

    def _sparse(self, samples: Any) -> Any:
        """Return the chosen columns of CSR rows, with sorted indices."""
        if self.absent == "nan" and self.columns is not None:  # what is not stored is 0, which is a value
            _check_absent(np.zeros((min(samples.shape[0], 1), samples.shape[1])), self.columns)
        rows = samples if self.columns is None else samples[:, self.columns]
        if self.complete is not None and rows.dtype.kind == "f":
            stored = samples[:, self.complete].tocoo()
            gaps = np.unique(stored.row[~np.isfinite(stored.data)])
            places = (gaps, np.zeros_like(gaps))  # one NaN in each such row
            rows = rows + type(rows)((np.full(len(gaps), np.nan, rows.dtype), places), shape=rows.shape)
        rows.sort_indices()
        return rows

    def describe(self) -> dict[str, Any]:
        """Return what identifies the view, for fingerprints."""
        columns = None if self.columns is None else content_digest(self.columns)
        taken = [str(one if isinstance(one, slice) else one.tolist()) for one in self.taken]
        shape = {"sample": list(self.sample), "row_axes": list(self.row_axes), "column_axes": list(self.column_axes)}
        checked = {"absent": self.absent} if self.absent else {}
        coded = {"missing": self.missing.to_json()} if self.missing else {}
        needed = {} if self.complete is None else {"complete": content_digest(self.complete)}
        return {**shape, "taken": taken, "columns": columns, **checked, **coded, **needed}

    def __dask_tokenize__(self) -> object:
        return "bigpca.View", self.describe()


def _check_absent(rows: NDArray[Any], columns: NDArray[np.int64], counted: NDArray[np.bool_] | None = None) -> None:
    """Check that all columns (b, d) but some are NaN, in the rows that count.

    Raises
    ------
    NonFiniteError
        Has the positions of those that are not, as ``stored_columns``.
    """
    rest = np.ones(rows.shape[1], bool)
    rest[columns] = False
    places, present = np.flatnonzero(rest), np.zeros(len(rest) - len(columns), bool)
    step = max(1, COPIED_BYTES // max(1, rows.itemsize * len(places)))
    own = np.ones(len(rows), bool) if counted is None else counted
    for i in range(0, len(rows), step):
        strip = own[i : i + step]
        present |= ~np.isnan(rows[i : i + step, places][strip]).all(axis=0)
    if not present.any():
        return
    found = places[present]
    value = next(one for one in rows[own, found[0]] if not np.isnan(one))
    error = NonFiniteError(
        f"{len(found)} column{'s hold' if len(found) > 1 else ' holds'} NaN in some rows and values in others: the "
        f"first is column {found[0]}, with the value {value}. Columns that are NaN in every row of a fit are left out, "
        f"and may hold no value elsewhere. Fill in such columns, or set them to NaN."
    )
    error.stored_columns = tuple(found.tolist())
    raise error


def _length(taken: Taken, size: int) -> int:
    return len(range(*taken.indices(size))) if isinstance(taken, slice) else len(taken)


def _contiguous(rows: NDArray[Any], memory: NDArray[Any] | None) -> NDArray[Any]:
    """Return rows (b, places, d) in C order: transposed a few lines at a time, so that what is read stays cached.

    ``memory`` is that of the rows, if it may be overwritten: sample by sample, which saves an array of all rows.
    """
    if rows.flags.c_contiguous:
        return rows
    out = np.empty(rows.shape, rows.dtype) if memory is None else memory.reshape(rows.shape)
    together = max(1, COPIED_BYTES // max(1, math.prod(rows.shape[1:]) * rows.itemsize))
    for s in range(0, len(rows), together):
        samples, into = rows[s : s + together], out[s : s + together]
        lines = into if memory is None else np.empty(samples.shape, rows.dtype)
        for i in range(0, rows.shape[1], COPIED_ROWS):
            lines[:, i : i + COPIED_ROWS] = samples[:, i : i + COPIED_ROWS]
        if memory is not None:
            into[...] = lines
    return out
