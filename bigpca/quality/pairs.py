"""How similar two sets of features of the same rows are: aligned kernels and shapes, with errors.

All pairs of the layers of one or two networks, in one read of all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from scipy.linalg import svdvals
from scipy.stats import chi2

from bigpca.arrays import Input, Matrix, Vector, unpack
from bigpca.data.batches import blocks_in_batches
from bigpca.data.dask_arrays import LEFT_OUT
from bigpca.data.keys import brought
from bigpca.engine.events import ProgressArgument
from bigpca.errors import (
    ApproximationWarning,
    Shown,
    check_choice,
    positive_integer,
    required,
)
from bigpca.estimators.pairs.model import open_pair
from bigpca.estimators.shared.inputs import open_rows
from bigpca.estimators.shared.labelled import open_side
from bigpca.estimators.shared.opening import given_beside, placed_in_folds, read_once
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.folds import FoldStates, left_out, merged
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.accumulators.paired_moments import CrossMoments
from bigpca.passes.rows import Rows
from bigpca.passes.side_by_side import blocks_of_batches, side_by_side
from bigpca.solvers.components import MAX_FOLDS, check_total
from bigpca.solvers.pairs import alignment, block_edges, block_squares, unbiased_hsic, unbiased_rounding

if TYPE_CHECKING:
    import pandas as pd

State = TypeVar("State", bound=Accumulator)
Statistics: TypeAlias = Callable[[Any, Rows, Sequence[str]], Matrix]  # of every two blocks
LEAST_SQUARE = float(np.finfo(np.float64).tiny / np.finfo(np.float64).eps)  # above which terms keep their digits


@dataclass(frozen=True)
class Alignment:
    """How similar two sides are.

    Attributes
    ----------
    value : float
        The statistic; ``float(alignment)`` is it, too.
    standard_error : float or None
        By the jackknife over folds of the rows; None without folds, or if it is not defined without one of them.
    p_value : float or None
        Of the hypothesis that X and Y are independent, for debiased CKA.
    n_rows, n_omitted : int, default 0 omitted
        Rows used, and rows with missing values.
    """

    value: float
    standard_error: float | None
    p_value: float | None
    n_rows: int
    n_omitted: int = 0

    def __float__(self) -> float:
        return self.value


def cka(
    X: Input,
    Y: Input | None = None,
    *,
    debiased: bool = True,
    n_folds: int | None = 10,
    groups: Input | None = None,
    sample_weight: Input | None = None,
    nan_policy: str = "raise",
    memory_limit: int | str | None = None,
    progress: ProgressArgument = None,
) -> Alignment:
    """Return the centred kernel alignment of linear kernels of X and Y, exact at any number of rows, in one read.

    ``|C_xy|_F^2 / (|C_xx|_F |C_yy|_F)`` of the covariances. It is biased: independent features of many columns and few
    rows seem similar. ``debiased`` replaces each term by the unbiased HSIC (Song et al. 2012, eq. 5), which is about 0
    for independent features, and may be below 0. Both equal the computation from the n x n kernel matrices, which are
    never formed; a mean of batches does not. Invariant to rotations, isotropic scales and offsets of each side.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, p)
        Features of n rows; or :func:`bigpca.from_batches` of pairs.
    Y : the same of shape (n, q), default None
        Other features of the same rows, in the same order. None for batches of pairs.
    debiased : bool, default True
    n_folds : int from 2 to 20, or None, default 10
        Folds of the jackknife, by a hash of the keys of the rows, or of their numbers if they have none; each takes
        memory for (p + q)^2 / 2 numbers. None for no standard error.
    groups : labels of the rows, default None
        Groups of rows that belong together, such as those of one subject, in place of the folds: as many as fit in
        memory. Joined to the rows as labels are, see :func:`bigpca.data.by_key`.
    sample_weight : array-like of shape (n,), default None
        How often each row counts; not with ``debiased``.
    nan_policy : {"raise", "omit"}, default "raise"
        Rows with missing values on either side are rejected, or left out.
    memory_limit : int, str or None, default None
        Per process.
    progress : True for a bar, or a callable that receives events, default None

    Returns
    -------
    Alignment
        The value, its standard error, and the p-value of independence by ``n CKA`` against chi-square(1) - 1 (Shen,
        Panda & Vogelstein 2022), if ``debiased``.

    Raises
    ------
    ValueError
        For sides of other numbers of rows or another order of keys, fewer than 4 rows, a constant side, and sides whose
        unbiased HSIC with themselves is not positive.
    TypeError
        For weights with ``debiased``.

    Notes
    -----
    Kornblith et al. 2019; Song et al. 2012; Murphy et al. 2024 on the bias.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.standard_normal((64, 300)), rng.standard_normal((64, 300))
    >>> round(cka(X, Y, debiased=False).value, 2), abs(cka(X, Y).value) < 0.1
    (0.82, True)
    """
    if debiased and sample_weight is not None:
        raise TypeError(
            "sample_weight was given, but debiased CKA compares pairs of rows: copies of a row would count as "
            "independent pairs. Use debiased=False, or leave the weights out."
        )
    rows, groups = _pair(X, Y, "cka", sample_weight, groups, nan_policy, memory_limit)
    template = CrossMoments(rows.widths, Moments(rows.n_columns)) if debiased else Moments(rows.n_columns)
    found = _alignment(rows, template, _cka_of, n_folds, groups, progress)
    return replace(found, p_value=float(chi2.sf(found.n_rows * found.value + 1, 1)) if debiased else None)


def procrustes(
    X: Input,
    Y: Input | None = None,
    *,
    n_folds: int | None = 10,
    groups: Input | None = None,
    sample_weight: Input | None = None,
    nan_policy: str = "raise",
    memory_limit: int | str | None = None,
    progress: ProgressArgument = None,
) -> Alignment:
    """Return how well X, rotated and scaled, fits Y: the similarity of their shapes, in one read.

    ``|C_xy|_* / sqrt(tr C_xx tr C_yy)`` of the covariances, with the sum of singular values in the numerator: 1 if one
    side is a rotation of the other, times a factor, with an offset. With v = this value, ``sqrt(2 - 2 v)`` is the shape
    distance and ``arccos(v)`` the angular one, both metrics (Williams et al. 2021, eqs. 3 and 4, alpha = 1); the former
    is also the Bures distance of the two Gram matrices of trace 1. Like biased CKA, it is not 0 for independent
    features: about ``sqrt(min(p, q) / n)``, for p and q directions of equal variance.

    Parameters
    ----------
    X, Y, n_folds, groups, sample_weight, nan_policy, memory_limit, progress
        As for :func:`cka`, with the same defaults; weights are always allowed.

    Returns
    -------
    Alignment
        The similarity and its standard error; ``p_value`` is None.

    Raises
    ------
    ValueError
        As :func:`cka`.

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((200, 2))
    >>> round(procrustes(X, 3 * X @ [[0, 1, 0], [-1, 0, 0]] + 7).value, 6)
    1.0
    """
    rows, groups = _pair(X, Y, "procrustes", sample_weight, groups, nan_policy, memory_limit)
    return _alignment(rows, Moments(rows.n_columns), _procrustes_of, n_folds, groups, progress)


@dataclass(frozen=True, repr=False)
class LayerComparison(Shown):
    """How similar every two layers are.

    Attributes
    ----------
    values : ndarray of shape (rows, columns)
    rows, columns : tuple of str
        Names of the layers.
    metric : str
    n_rows : int
        Rows used.
    standard_errors : ndarray of shape (rows, columns), or None, default None
        By the jackknife over folds of the rows; None without folds, or if a value is not defined without one of them.
    """

    values: Matrix
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    metric: str
    n_rows: int
    standard_errors: Matrix | None = None

    def cells(self) -> list[tuple[str, ...]]:
        """Return the names of the columns, and each row."""
        rows = zip(self.rows, self.values, strict=True)
        return [(self.metric, *self.columns), *((name, *(f"{value:.3f}" for value in row)) for name, row in rows)]

    def to_frame(self) -> pd.DataFrame:
        """Return the table as a pandas.DataFrame."""
        return required("pandas", "to_frame", "pandas").DataFrame(self.values, self.rows, self.columns)


def compare_layers(
    X: Input,
    Y: Mapping[str, Any] | None = None,
    *,
    metric: str = "cka",
    debiased: bool = True,
    n_folds: int | None = None,
    groups: Input | None = None,
    nan_policy: str = "raise",
    memory_limit: int | str | None = None,
    progress: ProgressArgument = None,
) -> LayerComparison:
    """Return how similar every layer of X is to every layer of Y, in one read of all layers side by side.

    Memory and operations grow with (sum of widths)^2, as for one matrix of all columns.

    Parameters
    ----------
    X : dict of str to array-like, Dask array or path, each of shape (n, d_i); or from_batches of dicts
        Features of the same rows in layers of a network.
    Y : the same for another network, default None
        None compares the layers of X with each other.
    metric : {"cka", "procrustes"}, default "cka"
        As :func:`bigpca.quality.cka` or :func:`bigpca.quality.procrustes`.
    debiased : bool, default True
        As for :func:`bigpca.quality.cka`; the other metric has no debiased form.
    n_folds : int from 2 to 20, or None, default None
        Folds of the jackknife; each takes as much memory as the sums of all rows. None for no standard errors.
    groups : labels of the rows, default None
        As for :func:`bigpca.quality.cka`.
    nan_policy : {"raise", "omit"}, default "raise"
        Rows with missing values in any layer are rejected, or left out.
    memory_limit : int, str or None, default None
        Per process.
    progress : True for a bar, or a callable that receives events, default None

    Returns
    -------
    LayerComparison
        A table: ``print`` shows it, ``values`` holds it.

    Raises
    ------
    ValueError
        As :func:`bigpca.quality.cka`, with the name of the layer.

    Examples
    --------
    >>> A = np.random.default_rng(0).standard_normal((50, 4))
    >>> found = compare_layers({"first": A, "second": A[:, :2]})
    >>> found.values.shape, float(found.values[0, 0])
    ((2, 2), 1.0)
    """
    metrics: dict[str, Statistics] = {"cka": _cka_of, "procrustes": _procrustes_of}
    check_choice("metric", metric, metrics)
    if isinstance(X, Mapping):
        layers = [(f"{name}", one) for network in (X, Y or {}) for name, one in network.items()]
        opened = [open_side(one, "compare_layers", f"layer {name!r}").alone() for name, one in layers]
        names, rows = [name for name, _ in layers], side_by_side(opened, [name for name, _ in layers])
        split = len(X)
    else:
        whole = open_rows(X, "compare_layers").alone()
        found, blocks = blocks_of_batches(whole), blocks_in_batches(whole.X)
        if found is None or blocks is None or Y is not None:
            raise TypeError("dicts {name: rows}, or from_batches of such dicts, were expected for X and Y.")
        rows, names, split = found, [str(name) for name in blocks[1]], len(blocks[1])
    rows = rows.begun(nan_policy=nan_policy, memory_limit=memory_limit)
    of_all = Moments(rows.n_columns)
    template = CrossMoments(rows.widths, of_all) if debiased and metric == "cka" else of_all
    states: list[Any]
    states, _ = _states(rows, template, n_folds, groups, progress)
    whole, own, others = merged(states), tuple(names[:split]), tuple(names[split:] or names)

    def table(state: Any) -> Matrix:
        return metrics[metric](state, rows, names)[:split, split if Y else 0 :]

    return LayerComparison(table(whole), own, others, metric, whole.count, _error(states, table))


def _pair(
    X: Any, Y: Any, owner: str, weights: Any, groups: Any, nan_policy: str, memory_limit: int | str | None
) -> tuple[Rows, Any]:
    """Return both sides as one, and the groups of their rows."""
    rows = open_rows(X, owner)
    groups = given_beside(rows, "groups", groups)
    rows = rows.weighted(given_beside(rows, "sample_weight", weights))
    if rows.origin.brings and brought(rows.X, "covariates")[0]:
        raise TypeError(LEFT_OUT)
    joined = open_pair(rows, Y, owner)
    return joined.begun(nan_policy=nan_policy, memory_limit=memory_limit), groups


def _alignment(
    rows: Rows, template: State, statistic: Statistics, n_folds: int | None, groups: Any, progress: ProgressArgument
) -> Alignment:
    """Return a statistic of two sides, with its error."""
    states, omitted = _states(rows, template, n_folds, groups, progress)
    whole: Any = merged(states)

    def value(state: State) -> float:
        return float(statistic(state, rows, "XY")[0, 1])

    return Alignment(value(whole), _error(states, value), None, whole.count, omitted)


def _states(
    rows: Rows, template: State, n_folds: int | None, groups: Any, progress: ProgressArgument
) -> tuple[list[State], int]:
    """Return the states of the folds that have rows, or one of all rows, and the number of rows that were left out."""
    if n_folds is not None and not 2 <= positive_integer("n_folds", n_folds) <= MAX_FOLDS:
        raise ValueError(f"n_folds = {n_folds}; 2 to {MAX_FOLDS} were expected, or None.")
    single = n_folds is None and groups is None
    read: Accumulator = template if single else placed_in_folds(FoldStates(template, n_folds or 2), rows, groups)
    found: Any = read_once(rows, read, "pairs", progress=progress)
    states = [found] if single else [state for state in found.states if state.count]
    n = sum(state.count for state in states)
    if n < 4:
        raise ValueError(f"{n} rows can be used; at least 4 were expected, of all sides. Give more rows.")
    return states, rows.counted.count(rows.rows_read) - n


def _error(states: Sequence[State], statistic: Callable[[State], Any]) -> Any:
    """Return the standard error of a statistic of the states of folds, or of each of several."""
    if len(states) < 2:
        return None
    try:
        with warnings.catch_warnings(action="ignore", category=ApproximationWarning):  # the whole was judged
            values = np.array([statistic(state) for state in left_out(states)])
    except ValueError:  # of too few rows
        return None
    f = len(values)
    # The jackknife over f folds (Efron & Tibshirani 1993, eq. 11.5): s^2 = (f - 1) / f sum_g (t_g - mean t)^2.
    found = np.sqrt((f - 1) / f * np.sum((values - values.mean(axis=0)) ** 2, axis=0))
    return found if found.ndim else float(found)


def _cka_of(state: Any, rows: Rows, names: Sequence[str]) -> Matrix:
    """Return the alignment (L, L) of every two blocks: debiased if the state has the sums for it."""
    moments = state.moments if isinstance(state, CrossMoments) else state
    n, edges = moments.count, block_edges(rows.widths)
    squares = block_squares(unpack(moments.packed, moments.n_features), edges)
    _traces(moments, edges, names)
    if not np.isfinite(squares).all() or not (np.diagonal(squares) > LEAST_SQUARE).all():
        raise ValueError(
            "squares of the covariances are too large or too small for float64. Divide the data by a constant first."
        )
    if moments is state:
        return alignment(squares)
    if n < 4:
        raise ValueError(
            f"the unbiased HSIC requires at least 4 rows, but X has {n}. Give more rows, or debiased=False."
        )
    hsic = unbiased_hsic(squares, state.norms, state.products, n)
    eps = max(moments.precision, float(np.finfo(np.float64).eps))
    least = unbiased_rounding(squares, state.norms, state.products, n, eps)
    bad = np.flatnonzero(~(np.diagonal(hsic) > least))
    if len(bad):
        raise ValueError(
            f"the unbiased HSIC of {names[bad[0]]} with itself is {hsic[bad[0], bad[0]]:.3g}, which is not above its "
            f"rounding, {least[bad[0]]:.1g}: {n} rows of it share nothing. Debiased CKA is not defined; give more "
            "rows, or use debiased=False."
        )
    return alignment(hsic)


def _procrustes_of(moments: Any, rows: Rows, names: Sequence[str]) -> Matrix:
    """Return the Procrustes similarity (L, L) of every two blocks."""
    edges, S = block_edges(rows.widths), unpack(moments.packed, moments.n_features)
    roots, found = np.sqrt(_traces(moments, edges, names)), np.eye(len(edges))
    for (i, a), (j, b) in combinations(enumerate(edges), 2):
        found[i, j] = found[j, i] = min(1.0, svdvals(S[a, b]).sum() / roots[i] / roots[j])
    return found


def _traces(moments: Any, edges: Sequence[slice], names: Sequence[str]) -> Vector:
    """Return the trace (L,) of the scatter of each block; raises ValueError if it is constant, or not in float64."""
    parts = [(moments.squares[one].sum(), moments.mean[one]) for one in edges]
    for name, (trace, mean) in zip(names, parts, strict=True):
        check_total(float(trace), f"the total variance of {name}", mean)
        if not trace > 0:
            raise ValueError(
                f"{name} is constant in all {moments.count} rows, so nothing is similar to it. Leave it out."
            )
    return np.array([trace for trace, _ in parts])
