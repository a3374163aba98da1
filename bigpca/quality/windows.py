"""PCA in windows along the columns: how the pattern of the rows changes along a genome, a spectrum or a time axis.

Windows are planned, slabs of columns that hold some of them are read, and each window is solved by the smaller of its
two products. Of a window, its leading eigenvalues and unit scores are kept, from which windows are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, Input, Integers, Matrix, Vector, unmasked
from bigpca.data.label_files import whole
from bigpca.errors import MemoryBudgetError, NonFiniteError, Shown, check_choice, format_bytes, positive_integer
from bigpca.estimators.shared.inputs import open_rows
from bigpca.passes.project import project_in_memory
from bigpca.passes.reading.row_maps import Copy
from bigpca.passes.rows import Rows
from bigpca.solvers.eigh import EPS, fix_signs, numerical_rank, top_eigenpairs

PIECE = 4096  # columns in float64 at a time


@dataclass(frozen=True, repr=False)
class ColumnWindows(Shown):
    """Windows of columns, and what their PCAs take: printed, or by its fields.

    Attributes
    ----------
    starts, stops : ndarray of shape (w,), int64
        First column of each window, and the end of its last.
    begins, ends : ndarray of shape (w,)
        The same as positions, if there are positions; ends are excluded.
    chromosomes : ndarray of shape (w,), object, or None
    groups : tuple of (range, tuple of (int, int))
        Windows that are solved together, and the slabs of columns that are read for them: one, or several for a single
        window that does not fit. Columns that two groups share are read twice.
    reads : float
        Decoded columns over all columns. Where chunks hold all columns of some rows, each slab decodes everything.
    kept_bytes : int
        Of the result.
    peak_bytes : int
        Of everything beside arrays that are in memory already.
    """

    starts: Integers
    stops: Integers
    begins: Array
    ends: Array
    chromosomes: NDArray[np.object_] | None
    groups: tuple[tuple[range, tuple[tuple[int, int], ...]], ...]
    reads: float
    kept_bytes: int
    peak_bytes: int

    def cells(self) -> list[tuple[str, ...]]:
        """Return a line for each number."""
        widths = self.stops - self.starts
        shown = f"{len(widths):,}" + (f", of {widths.min():,} to {widths.max():,} columns" if len(widths) else "")
        reads = f"{self.reads:.3g} of all columns, in {sum(len(slabs) for _, slabs in self.groups):,} slabs"
        sizes = (("kept", format_bytes(self.kept_bytes)), ("peak memory", format_bytes(self.peak_bytes)))
        return [("windows", shown), ("reads", reads), *sizes]


@dataclass(frozen=True)
class LocalPCA:
    """PCAs of windows of columns, each about the means of its columns.

    Attributes
    ----------
    windows : ColumnWindows
    explained_variance_ : ndarray of shape (w, k)
        Eigenvalues of each window's covariance, divided by n - 1; NaN for windows that fail, as all that follows.
    total_variance_ : ndarray of shape (w,)
        The trace of that covariance C.
    squared_covariance_ : ndarray of shape (w,)
        The sum of the squares of its entries: ``|C - sum_i l_i v_i v_i'|_F^2`` is this minus the sum of ``l_i^2``.
    unit_scores_ : ndarray of shape (w, n, k)
        Scores divided by their norms. The sign of each agrees with the window before it that did not fail.
    """

    windows: ColumnWindows
    explained_variance_: Matrix
    total_variance_: Vector
    squared_covariance_: Vector
    unit_scores_: Array

    def scores(self, window: int) -> Matrix:
        """Return the scores (n, k) of the rows in a window."""
        n = self.unit_scores_.shape[1]
        return np.asarray(self.unit_scores_[window] * np.sqrt((n - 1) * self.explained_variance_[window]))

    def distances(self, normalize: str | None = "L1") -> Matrix:
        """Return the distances (w, w) of windows: Frobenius norms of differences of their rank-k dot matrices.

        Parameters
        ----------
        normalize : {"L1", "L2", None}, default "L1"
            Whether the eigenvalues of each window are divided by their sum, by the root of the sum of their squares, or
            not at all.

        Returns
        -------
        ndarray of shape (w, w), float64
            NaN in rows and columns of windows that failed.

        Notes
        -----
        ``pc_dist`` of lostruct (Li & Ralph 2019, "Local PCA shows how the effect of population structure differs along
        the genome", Genetics 211).
        """
        check_choice("normalize", str(normalize), ("L1", "L2", "None"))
        values, (w, n, k) = self.explained_variance_, self.unit_scores_.shape
        with np.errstate(invalid="ignore"):
            if normalize is not None:
                lengths = np.abs(values).sum(axis=1) if normalize == "L1" else np.sqrt((values**2).sum(axis=1))
                values = values / lengths[:, None]
            vectors, squares = self.unit_scores_.transpose(1, 0, 2).reshape(n, w * k), (values**2).sum(axis=1)
            found = np.empty((w, w))
            for i in range(w):
                common = ((self.unit_scores_[i].T @ vectors) ** 2).reshape(k, w, k)
                both = np.einsum("i,iwj,wj->w", values[i], common, values)
                found[i] = np.sqrt(np.maximum(squares[i] + squares - 2 * both, 0.0))
        found[np.diag_indices(w)] = np.where(np.isnan(squares), np.nan, 0.0)
        return found


def plan_local_pca(
    X: Input,
    window: int,
    *,
    step: int | None = None,
    positions: Input | None = None,
    n_components: int = 2,
    memory_limit: int | str | None = None,
) -> ColumnWindows:
    """Return the windows of :func:`local_pca`, what it reads and what it keeps, without reading X.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, which are not read.
    window : int
        As for :func:`local_pca`, as all that follows.
    step : int or None, default None
    positions : "names", array-like of shape (d,), or None, default None
    n_components : int, default 2
    memory_limit : int, str or None, default None

    Returns
    -------
    ColumnWindows

    Raises
    ------
    MemoryBudgetError, ValueError
        As :func:`local_pca`.
    """
    rows = open_rows(X, "local_pca", minimum=2).alone().begun(nan_policy="pairwise", memory_limit=memory_limit)
    return _planned(rows, window, step, positions, positive_integer("n_components", n_components))


def local_pca(
    X: Input,
    window: int,
    *,
    step: int | None = None,
    positions: Input | None = None,
    n_components: int = 2,
    min_columns: int | None = None,
    nan_policy: str = "raise",
    memory_limit: int | str | None = None,
) -> LocalPCA:
    """Compute a PCA in each window along the columns, such as variants along a genome.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows are samples; columns are in the order of their positions.
    window : int
        Length of a window: columns, or with ``positions`` their unit, such as base pairs.
    step : int or None, default None
        From the start of a window to that of the next; None for ``window``.
    positions : "names", array-like of shape (d,), or None, default None
        Position of each column, ascending; where they descend, another chromosome begins. "names": from the names of
        columns, ``chromosome:position`` and maybe more after another colon. No window crosses two chromosomes. None for
        windows by number of columns; windows that are not whole are left out.
    n_components : int, default 2
        k, kept of each window.
    min_columns : int or None, default None
        Windows with fewer columns fail; None for ``n_components``.
    nan_policy : {"raise", "mean"}, default "raise"
        "mean": missing values are replaced by the means of their columns.
    memory_limit : int, str or None, default None
        As for :class:`bigpca.PCA`.

    Returns
    -------
    LocalPCA
        With NaN for windows of too few columns, or with fewer than k directions.

    Raises
    ------
    MemoryBudgetError
        Before any read, if the result and one window do not fit.
    NonFiniteError
        During the read, for infinities and, with "raise", NaN.
    ValueError
        For positions that are not ascending, not one per column, or not in the names.

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((20, 300))
    >>> found = local_pca(X, 100)
    >>> found.explained_variance_.shape, found.unit_scores_.shape, found.distances().shape
    ((3, 2), (3, 20, 2), (3, 3))
    """
    check_choice("nan_policy", nan_policy, ("raise", "mean"))
    k = positive_integer("n_components", n_components)
    least = k if min_columns is None else max(k, positive_integer("min_columns", min_columns))
    rows = open_rows(X, "local_pca", minimum=2).alone().begun(nan_policy="pairwise", memory_limit=memory_limit)
    windows = _planned(rows, window, step, positions, k)
    w, n = len(windows.starts), rows.n_rows
    found = LocalPCA(windows, *(np.full(shape, np.nan) for shape in ((w, k), w, w, (w, n, k))))
    before: Matrix | None = None
    for group, slabs in windows.groups:
        product: Matrix | None = None  # of a window that is read in several slabs
        for start, stop in slabs:
            slab = _read(rows, start, stop)
            if len(slabs) > 1:
                product = _product(slab, start, nan_policy, product)
        for i in group:
            first, last = int(windows.starts[i]) - start, int(windows.stops[i]) - start
            if windows.stops[i] - windows.starts[i] < least:
                continue
            if product is None:
                solved = _solved(slab[:, first:last], start + first, nan_policy, k)
            else:
                solved = _of_product(product, n, k)
            if solved is None:
                continue
            found.explained_variance_[i], found.total_variance_[i], found.squared_covariance_[i], vectors = solved
            if before is not None:
                vectors = vectors * np.where((vectors * before).sum(axis=0) < 0, -1.0, 1.0)
            before = found.unit_scores_[i] = vectors
    return found


def _read(rows: Rows, start: int, stop: int) -> Array:
    part = Rows.opened(rows.X[:, start:stop]).begun(nan_policy="pairwise", memory_limit=rows.order.memory_limit)
    return project_in_memory(part, Copy(), stop - start)


def _centred(columns: Array, first: int, nan_policy: str) -> Matrix:
    """Return columns (n, p) about their means, in float64; missing values are 0."""
    Y = columns.astype(np.float64)
    gaps = np.isnan(Y)
    bad = np.isinf(Y) | (gaps & (nan_policy == "raise"))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise NonFiniteError(
            f"{Y[row, column]} in row {row}, column {first + column}. nan_policy='mean' replaces NaN by the means of "
            "columns; repair infinities."
        )
    Y[gaps] = 0.0
    mean = Y.sum(axis=0) / np.maximum((~gaps).sum(axis=0), 1)
    Y -= mean
    Y[gaps] = 0.0
    Y[:, np.abs(Y).max(axis=0) <= len(Y) * EPS * np.abs(mean)] = 0.0  # of constant columns, the rounding of their mean
    return Y


def _product(columns: Array, first: int, nan_policy: str, before: Matrix | None = None) -> Matrix:
    """Return the dot matrix (n, n) of centred columns, added to another."""
    n = len(columns)
    found = np.zeros((n, n)) if before is None else before
    for i in range(0, columns.shape[1], PIECE):
        Y = _centred(columns[:, i : i + PIECE], first + i, nan_policy)
        found += Y @ Y.T
    return found


def _of_product(G: Matrix, n: int, k: int, Y: Matrix | None = None) -> tuple[Vector, float, float, Matrix] | None:
    """Return eigenvalues (k,), trace and sum of squares of the covariance, and unit scores; None for a lower rank.

    G is ``Y Y'``, or ``Y'Y`` if Y is given, with the same eigenvalues. It is destroyed.
    """
    total, squares = float(np.trace(G)) / (n - 1), float((G**2).sum()) / (n - 1) ** 2
    if len(G) < k or not total > 0:
        return None
    values, vectors = top_eigenpairs(G, k)
    if numerical_rank(values, len(G)) < k:
        return None
    vectors = vectors if Y is None else (Y @ vectors.T / np.sqrt(values)).T
    return values / (n - 1), total, squares, fix_signs(np.ascontiguousarray(vectors)).T


def _solved(columns: Array, first: int, nan_policy: str, k: int) -> tuple[Vector, float, float, Matrix] | None:
    n, p = columns.shape
    if n <= p:
        return _of_product(_product(columns, first, nan_policy), n, k)
    Y = _centred(columns, first, nan_policy)
    return _of_product(Y.T @ Y, n, k, Y)


def _planned(rows: Rows, window: int, step: int | None, positions: Input | None, k: int) -> ColumnWindows:
    """Return the windows, and slabs that fit in memory with one window and the result."""
    length, d, n = positive_integer("window", window), rows.n_columns, rows.n_rows
    step, parts = length if step is None else positive_integer("step", step), []
    at, names = _positions(rows, positions)
    new = np.diff(at) < 0 if names is None else names[1:] != names[:-1]
    for first, last in pairwise([0, *(np.flatnonzero(new) + 1).tolist(), d]):
        own = at[first:last]
        if (np.diff(own) < 0).any():
            raise ValueError(f"positions of columns {first} to {last - 1} are not ascending. Sort the columns.")
        begins = np.arange(own[0], own[-1] + 1, step)
        parts.append((*(first + np.searchsorted(own, one) for one in (begins, begins + length)), begins))
    starts, stops, begins = (np.concatenate(one) for one in zip(*parts, strict=True))
    if positions is None:
        starts, stops, begins = (one[begins + length <= d] for one in (starts, stops, begins))
    chunk = (
        1 if rows.in_memory else max(1, min(d, int(getattr(rows.origin.stored, "column_chunk", rows.X.chunks[1][0]))))
    )
    widest, itemsize = int((stops - starts).max(initial=1)), rows.dtype.itemsize
    kept = 8 * len(starts) * (k * (n + 1) + 2)
    solving = 8 * (3 * min(n, widest) ** 2 + n * (4 * min(widest, PIECE if n <= widest else widest) + 4 * k))
    solving += 0 if rows.in_memory else max(rows.X.chunks[0]) * chunk * itemsize  # decoded
    read = 2 * n * itemsize  # of a column: the slab, and what its read decodes
    left = rows.order.resources.room_bytes
    columns = min(d, max(0, left - kept - solving) // read)
    if columns < (1 if n <= widest else widest):
        raise MemoryBudgetError(
            f"{len(starts):,} windows keep {format_bytes(kept)}, and one of {widest:,} columns and {n:,} rows needs "
            f"{format_bytes(solving + read * widest)}; {format_bytes(max(0, left))} are left. Use shorter windows, a "
            "longer step, or fewer components."
        )
    groups = tuple(_groups(starts, stops, int(columns)))
    slabs = [slab for _, own in groups for slab in own]
    decoded = sum(min(d, -(-stop // chunk) * chunk) - start // chunk * chunk for start, stop in slabs)
    peak = kept + solving + read * max((stop - start for start, stop in slabs), default=0)
    chromosomes = None if names is None else names[starts]
    return ColumnWindows(starts, stops, begins, begins + length, chromosomes, groups, decoded / d, kept, peak)


def _groups(starts: Integers, stops: Integers, columns: int) -> Iterator[tuple[range, tuple[tuple[int, int], ...]]]:
    """Yield as many windows as fit in a slab of columns, and the slab; several for a wider window."""
    i, ends = 0, np.maximum(stops, starts + 1)  # a window without columns reads one
    while i < len(starts):
        start = int(starts[i])
        last = max(i + 1, int(np.searchsorted(ends, start + columns, side="right")))
        stop = int(ends[last - 1])
        yield range(i, last), tuple((at, min(stop, at + columns)) for at in range(start, stop, columns))
        i = last


def _positions(rows: Rows, given: Input | None) -> tuple[Vector, NDArray[np.object_] | None]:
    """Return the position of each column, and its chromosome if names say it."""
    d = rows.n_columns
    if given is None:
        return np.arange(d, dtype=np.float64), None
    if isinstance(given, str) and given == "names":
        parts = [str(name).split(":") for name in (() if rows.origin.names is None else rows.origin.names)]
        if not parts or not all(len(one) > 1 and one[1].isdecimal() for one in parts):
            raise ValueError(
                "positions = 'names' needs columns named chromosome:position, such as 1:752566:G:A. Give an array."
            )
        return np.array([float(one[1]) for one in parts]), np.array([one[0] for one in parts], object)
    held = unmasked(whole(given, "positions", "number", f"A vector of {d} numbers"))
    at = held.astype(np.float64) if held.dtype.kind in "iuf" else np.full(held.shape, np.nan)
    if at.shape != (d,) or not np.isfinite(at).all():
        raise ValueError(
            f"positions of shape {at.shape} have {np.isfinite(at).sum():,} finite numbers; one for each of {d:,} "
            "columns was expected."
        )
    return at, None
