"""Rows with the rows that follow them: the lagged windows of a time series, and the series of such windows.

PCA of them is the extended EOF analysis of many columns (Weare & Nasstrom 1982), and of one column the singular
spectrum analysis (Broomhead & King 1986).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

import bigpca.dask_array as da
from bigpca.arrays import Array, Input
from bigpca.data.checks import READABLE_BYTES
from bigpca.data.containers import is_labelled
from bigpca.data.dask_arrays import carried, carrying, named, open_source, source_of
from bigpca.data.grids import Coordinate
from bigpca.data.source import DerivedRows, Source, Stamp, parts_of
from bigpca.data.sources import feature_names
from bigpca.data.sources import open as open_array
from bigpca.data.views import NO_CODES
from bigpca.engine.layout import coalesce
from bigpca.errors import brief

LAG = "lag"  # the dimension of the columns, of windows of a DataArray
Runs = NDArray[np.int64]


def lagged(X: Input, lags: Iterable[int], *, groups: Input | None = None) -> da.Array:
    """Return the windows of a time series as rows: row t is row t of X beside the rows t + lag, for each lag.

    ``PCA(k).fit(lagged(X, range(L)))`` is the extended EOF analysis of X (Weare & Nasstrom 1982), and with one column
    the singular spectrum analysis (Broomhead & King 1986): each position in the window has its own mean. Windows are
    made where rows are read, and nothing is copied; a fit multiplies matrices of L d columns, which its plan states.

    Parameters
    ----------
    X : array of shape (n, d), path or URL
        As for :func:`bigpca.open`; rows in the order of time. Dense rows.
    lags : iterable of int
        Increasing, from 0: ``range(12)`` for windows of 12 rows.
    groups : labels of shape (n,), optional
        Trajectories: no window has rows of two labels. Each change of label begins another one; those that are shorter
        than a window have none.

    Returns
    -------
    dask.array.Array of shape (windows, L d)
        The columns of lag 0 first. n - lags[-1] windows without groups.

    Raises
    ------
    ValueError
        For lags that are not increasing from 0, no windows, sparse rows, an unknown number of rows, and groups that do
        not belong to the rows.

    Examples
    --------
    >>> import numpy as np
    >>> lagged(np.arange(8.0).reshape(4, 2), range(2)).compute().tolist()
    [[0.0, 1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0], [4.0, 5.0, 6.0, 7.0]]
    >>> lagged(np.arange(8.0).reshape(4, 2), range(2), groups=["a", "a", "b", "b"]).compute().tolist()
    [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]
    """
    chosen, opened = _checked(lags), open_array(X)
    if np.isnan(opened.shape[0]):
        raise ValueError("X has an unknown number of rows, but windows are numbered. Write it to a store first.")
    starts, counts = _runs(opened, chosen[-1], X if groups is not None else None, groups)
    source, names = source_of(opened), feature_names(opened if isinstance(X, str) else X)
    if source is not None and (source.sparse or source.format == "batches"):
        raise ValueError(
            f"the rows of {source.label} are {'sparse' if source.sparse else 'read once, in their order'}, but windows "
            "need dense rows that can be read at any place. Write them to a store as dense rows."
        )
    if carried(opened).view is not None or source is None:
        first = _first_rows(starts, counts)
        parts = [_taken(opened, first + lag) for lag in chosen]
        rows = da.concatenate([part.rechunk({0: parts[0].chunks[0]}) for part in parts], axis=1).rechunk({1: -1})
    else:
        rows = open_source(LaggedRows.of(source, chosen, starts, np.cumsum(counts)))
    labels = carried(opened).labels
    if labels is None or labels.grid.kept is not None or len(labels.sizes) > 1:
        return named(rows, None if names is None else np.array(_lagged_names(names, chosen), dtype=object))
    grid = labels.grid
    own = {LAG: Coordinate((LAG,), np.array(chosen), {}), **grid.coords}
    grid = replace(grid, dims=(LAG, *grid.dims), sizes=(len(chosen), *grid.sizes), coords=own, missing=NO_CODES)
    first = _first_rows(starts, counts)
    return carrying(rows, labels=replace(labels.at(first), grid=grid, shown=True))


def unlagged(rows: Input, lags: Iterable[int], *, groups: Input | None = None, like: Input | None = None) -> Any:
    """Return the series of windows: the mean of all values that windows have of a row (diagonal averaging).

    With the reconstruction from some components, these are the reconstructed components of singular spectrum analysis
    (Vautard, Yiou & Ghil 1992, eq. 2.9): ``unlagged(model.inverse_transform(scores), lags)``.

    Parameters
    ----------
    rows : array of shape (windows, L d), or DataArray with a dimension ``lag``, as ``inverse_transform`` returns it
    lags : iterable of int
    groups : labels of shape (n,), optional
        As they were given to :func:`lagged`.
    like : DataArray, optional
        The series, for the coordinates of its samples: windows have those of their first rows only.

    Returns
    -------
    dask.array.Array of shape (n, d), or DataArray, lazy, with the grid of the series
        NaN where no window has a row.

    Raises
    ------
    ValueError
        For rows that are not the windows of these lags and groups.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.arange(8.0).reshape(4, 2)
    >>> unlagged(lagged(X, range(2)), range(2)).compute().tolist() == X.tolist()
    True
    """
    if is_labelled(rows) and LAG in cast("Any", rows).dims:
        return _unlagged_fields(rows, _checked(lags), groups, like)
    chosen, opened = _checked(lags), open_array(rows)
    windows, columns = opened.shape
    d = columns // len(chosen)
    if groups is None:
        starts, counts, n = np.zeros(1, np.int64), np.array([windows]), windows + chosen[-1]
    else:
        n = len(found := _labels(groups))
        starts, counts = _windows(found, chosen[-1])
    if columns != d * len(chosen) or counts.sum() != windows:
        raise ValueError(
            f"rows have shape {opened.shape}, but {len(chosen)} lags make windows of {len(chosen)} d columns, and "
            f"{int(counts.sum()):,} of them from {n:,} rows. Give the lags and groups of the windows."
        )
    total, held = None, np.zeros((n, 1))
    for i, lag in enumerate(chosen):
        window = np.full(n, -1)  # that has the row at this lag
        window[_first_rows(starts, counts) + lag] = np.arange(windows)
        values = _taken(opened[:, i * d : (i + 1) * d], np.maximum.accumulate(window).clip(0))
        part = da.where(window[:, None] >= 0, values, np.zeros((), values.dtype))
        total = part if total is None else total + part.rechunk(total.chunks)
        held += window[:, None] >= 0
    held[held == 0] = np.nan
    return (total / held).astype(np.result_type(opened.dtype, np.float32))


def _unlagged_fields(windows: Any, lags: tuple[int, ...], groups: Any, like: Any) -> Any:
    """Return the series of a DataArray of windows as a DataArray."""
    import xarray as xr  # installed where there are DataArrays

    sample = next(dim for dim in windows.dims if dim != LAG)
    windows = windows.transpose(sample, LAG, ...)
    if windows.sizes[LAG] != len(lags) or (LAG in windows.coords and windows[LAG].values.tolist() != list(lags)):
        raise ValueError(
            f"rows have {windows.sizes[LAG]} lags, not lags = {brief(lags)}. Give the lags of the windows."
        )
    series = unlagged(windows.data.reshape(len(windows), -1), lags, groups=groups)
    coords = {name: one for name, one in windows.coords.items() if not {sample, LAG} & set(one.dims)}
    if is_labelled(like):
        if (n := like.sizes.get(sample, len(series))) != len(series):
            raise ValueError(
                f"like has {n:,} rows along {sample!r}, but these windows are of a series of {len(series):,}. Give the "
                "series that they were made of."
            )
        coords |= {name: one for name, one in like.coords.items() if set(one.dims) == {sample}}
    values = series.reshape(-1, *windows.shape[2:])
    return xr.DataArray(values, coords, (sample, *windows.dims[2:]), windows.name)


def _first_rows(starts: Runs, counts: Runs) -> Runs:
    """Return the row of the series that each window begins with."""
    return np.concatenate([start + np.arange(n) for start, n in zip(starts, counts, strict=True)])


def _taken(rows: Any, places: Runs) -> Any:
    """Return rows at places in ascending order; those of one run without an index."""
    first, last = int(places[0]), int(places[-1])
    return rows[first : last + 1] if last - first + 1 == len(places) else rows[places]


def _checked(lags: Iterable[int]) -> tuple[int, ...]:
    given = tuple(lags) if isinstance(lags, Iterable) else ()
    whole = all(isinstance(lag, int | np.integer) and not isinstance(lag, bool) for lag in given)
    chosen = tuple(map(int, given)) if whole else ()
    if not chosen or chosen[0] != 0 or any(b <= a for a, b in pairwise(chosen)):
        raise ValueError(
            f"lags = {brief(lags)} are not integers that increase from 0. Give range(12) for windows of 12 rows."
        )
    return chosen


def _labels(groups: Any, X: Any = None, n: int | None = None) -> Array:
    from bigpca.data.keys import in_row_order  # imports all formats of labels
    from bigpca.data.labels import one_each

    return one_each(groups if X is None else in_row_order(groups, X, word="group"), n, "group").values


def _windows(labels: Array, reach: int) -> tuple[Runs, Runs]:
    """Return the first row, and the number of windows, of each trajectory that has some."""
    starts = np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]]))
    counts = np.diff([*starts, len(labels)]) - reach
    return starts[counts > 0], counts[counts > 0]


def _runs(opened: da.Array, reach: int, given: Any, groups: Any) -> tuple[Runs, Runs]:
    n = int(opened.shape[0])
    if groups is None:
        starts, counts = np.zeros(int(n > reach), np.int64), np.full(int(n > reach), n - reach)
    else:
        starts, counts = _windows(_labels(groups, given, n), reach)
    if not len(starts):
        raise ValueError(
            f"no window of {reach + 1:,} rows fits into the {n:,} rows. Give fewer lags, or longer trajectories."
        )
    return starts, counts


@dataclass(frozen=True, eq=False, repr=False)
class LaggedRows(DerivedRows):
    """Windows of a series: row t has the stored rows t + lag, for each lag; (windows, lags, d) as columns.

    Attributes
    ----------
    stored : Source
        The series.
    lags : tuple of int
        Increasing.
    starts, ends : ndarray of shape (runs,)
        Of each run of windows, the stored row of its first one, and the number of windows up to its end.
    """

    stored: Source
    lags: tuple[int, ...]
    starts: Runs
    ends: Runs

    @classmethod
    def of(cls, stored: Source, lags: tuple[int, ...], starts: Runs, ends: Runs) -> LaggedRows:
        """Return the windows of a stored series."""
        shape = (int(ends[-1]), len(lags), *stored.array_shape[1:])
        return cls(shape, stored, lags, starts, ends, path=stored.path, member=stored.member, format=stored.format)

    def facts(self) -> dict[str, Any]:
        """Windows have rows of those after their own; their bytes are those of the series, from the first row of a
        window to the last one.
        """
        begin, end = self._series(0, self.shape[0])
        row_bytes = (end - begin) / self.shape[0] * self.stored.row_bytes
        return {"dtype": self.stored.dtype, "reach": self.lags[-1] - self.lags[0], "row_bytes": row_bytes}

    @property
    def home(self) -> str:
        """Nothing: the keys and names there are those of single rows."""
        return ""

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Array:
        """Read the rows from the first to the last of the windows once, piece by piece, and copy them to each lag."""
        width, (begin, end) = self.stored.shape[1], self._series(start, stop)
        block = np.empty((stop - start, columns[1] - columns[0]), self.dtype)
        runs = zip(*parts_of(self.ends, start, stop), strict=True)  # an array of them
        own, first, last = map(np.array, runs) if stop > start else [np.zeros(0, np.int64)] * 3
        windows = _first_rows(self.starts[own] + first, last - first)
        edges = np.cumsum([0, *self._pieces])
        edges = edges[np.searchsorted(edges, begin, "right") - 1 : np.searchsorted(edges, end) + 1].clip(begin, end)
        # The first window whose row at a lag is in each piece or after it.
        held = np.searchsorted(windows, np.subtract.outer(edges, self.lags))
        for (p, q), (firsts, lasts) in zip(pairwise(edges.tolist()), pairwise(held.tolist()), strict=True):
            if firsts == lasts:
                continue
            rows = np.asarray(self.stored.read(p, q))
            for i, (lag, a, b) in enumerate(zip(self.lags, firsts, lasts, strict=True)):
                left, right = max(columns[0], i * width), min(columns[1], (i + 1) * width)
                if a < b and left < right:
                    to = slice(left - columns[0], right - columns[0])
                    block[a:b, to] = _taken(rows[:, left - i * width : right - i * width], windows[a:b] + lag - p)
            del rows  # before the next piece is read
        return block

    @property
    def _pieces(self) -> tuple[int, ...]:
        """Rows of the series that are held at a time: whole chunks of it."""
        return coalesce(self.stored.row_chunks(), self.stored.row_bytes, READABLE_BYTES)

    def _series(self, start: int, stop: int) -> tuple[int, int]:
        """Return the stored rows of windows ``start:stop``."""
        first, last = (int(np.searchsorted(self.ends, at, "right")) for at in (start, max(start, stop - 1)))
        before = np.concatenate([[0], self.ends])
        begin, end = self.starts[first] + start - before[first], self.starts[last] + stop - before[last]
        return int(begin) + self.lags[0], int(end) + self.lags[-1]

    def row_chunks(self) -> tuple[int, ...]:
        """The windows that begin in each chunk of the series."""
        places = np.cumsum(self.stored.row_chunks()) - self.lags[0]
        run = np.searchsorted(self.starts, places, "left") - 1  # whose windows begin before the end of the chunk
        before = np.concatenate([[0], self.ends])
        counts = np.minimum(before[run] + places - self.starts[run], self.ends[run])
        return tuple(np.diff(np.unique(np.concatenate([[0], np.where(run < 0, 0, counts)]))).tolist())

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Those of the rows of the windows."""
        return self.stored.stamps(*self._series(start, stop)) if stop > start else []

    @property
    def parts(self) -> tuple[Source, ...]:
        return (self.stored,)

    def decoded(self, start: int, stop: int) -> tuple[int, int]:
        return start, min(stop + self.reach, self.shape[0])

    def decoding_bytes(self, columns: int) -> int:
        """Those of the series, and a piece of it."""
        return self.stored.decoding_bytes(self.stored.shape[1]) + int(max(self._pieces) * self.stored.row_bytes)

    @property
    def column_names(self) -> list[str] | None:
        names = self.stored.column_names
        return None if names is None else _lagged_names(names, self.lags)

    def details(self) -> dict[str, Any]:
        """Return those of the series, the lags and a digest of the runs."""
        runs = hashlib.sha256(np.concatenate([self.starts, self.ends]).astype("<i8").tobytes()).hexdigest()
        return {"stored": self.stored.describe(), "lags": list(self.lags), "runs": runs}


def _lagged_names(names: Iterable[object], lags: tuple[int, ...]) -> list[str]:
    return [f"{name} lag {lag}" for lag in lags for name in names]
