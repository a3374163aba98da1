"""Scored PCA: PCA of the features that depend on the labels most (Bair et al. 2006; SPCA paper, section 4).

A selection: one read for the scores of features, and one for a cross-validation of their number. Then another fit, to
the selected columns, and row maps between these and all features.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

import bigpca.dask_array as da
from bigpca.arrays import Array, DType, Integers, Matrix, Vector, tied, unpack
from bigpca.data.dask_arrays import carries_beside, columns_of
from bigpca.engine.planning import SolveCost
from bigpca.engine.run import Run
from bigpca.errors import an
from bigpca.estimators.linear.pca import PCA
from bigpca.estimators.linear.sketch_transformer import SketchTransformer
from bigpca.estimators.pairs.model import squared_errors
from bigpca.estimators.shared.exporting import LinearExports
from bigpca.estimators.shared.files import OF_MODELS
from bigpca.estimators.shared.fit import Fit, RandomState, running_part, unfitted, with_reads
from bigpca.estimators.shared.inputs import Unchecked, policies
from bigpca.estimators.shared.opening import opened, rows_of_fit
from bigpca.estimators.shared.outputs import whole_map
from bigpca.estimators.shared.results import Result, Traits
from bigpca.estimators.shared.transformer import AnyEstimator, Estimator, finish, with_parameters
from bigpca.estimators.supervised.problems import Labelled, Problem, labels_of, read_labels
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.export.linear import LinearMap, LinearRowMap
from bigpca.passes.accumulators.folds import FoldStates, left_out
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.fold import Declared, Folded, Read, costs
from bigpca.passes.project import mapped_lazily
from bigpca.passes.reading.blocks import PRECISE
from bigpca.passes.reading.row_maps import MapStep, RowMap
from bigpca.passes.rows import Rows
from bigpca.records import Coding, of_part, stored
from bigpca.seeds import draw_seed, integers
from bigpca.solvers.components import NComponents, check_total, resolve_components
from bigpca.solvers.eigh import top_eigenpairs

if TYPE_CHECKING:
    pass

MAX_CANDIDATES = 2048  # columns among which cross-validation chooses


@dataclass(frozen=True)
class Selected(LinearRowMap):
    """A row map on some columns.

    Attributes
    ----------
    columns : ndarray of shape (q,), int64
    inner : RowMap
    """

    columns: Integers
    inner: RowMap

    def linear(self, d: int) -> LinearMap:
        """Return the inner map, if it is linear, with zeros for the other columns.

        Raises
        ------
        ValueError
            For kernel models.
        """
        if not isinstance(self.inner, LinearRowMap):
            raise ValueError(
                "the model of the selected columns has no linear map: it is a kernel model, or preprocesses its rows. "
                "Use a linear estimator without preprocess, such as bp.PCA(2)."
            )
        return self.inner.linear(len(self.columns)).placed(self.columns, d)

    def sklearn_steps(self, d: int, facts: dict[str, object]) -> list[object]:
        """Return the same map as a transformer of scikit-learn."""
        from bigpca.export.sklearn import fitted_pca  # imports more of scikit-learn than a fit

        return [fitted_pca(self.linear(d), facts)]

    def output_dtype(self, dtype: DType) -> DType:
        """That of the inner map."""
        return self.inner.output_dtype(dtype)

    def apply(self, rows: Array, where: str) -> Array:
        """Return the map of those columns; rows with non-finite values in other columns are NaN, too."""
        chosen = rows[:, self.columns]
        if rows.dtype.kind == "f":
            chosen[~np.isfinite(rows).all(axis=1)] = np.nan
        return self.inner.apply(chosen, where)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The columns' copy, and what the inner map needs."""
        mapping, kept = self.inner.bytes_for(len(self.columns), rows, itemsize)
        return mapping + rows * (len(self.columns) * itemsize + d), kept


def scores_of_classes(statistics: LabelStatistics) -> Vector:
    """Return F of every feature (d,); 0 for constant features.

    ``F = (sum_c n_c (mean_c - mean)^2 / (c - 1)) / (S_W / (n - c))``.
    """
    n, within = statistics.count, np.maximum(statistics.moments.within, 0.0)
    between = (statistics.between**2).sum(axis=0)
    c = int(np.count_nonzero(statistics.moments.counts))
    # S_W of a feature is known to about n eps of its scatter: below that it counts as n eps, so F stays finite.
    noise = np.finfo(np.float64).eps * n * (within + between)
    # A constant feature differs from its mean by rounding: at most eps |mean| in each of n rows.
    constant = within + between <= np.finfo(np.float64).eps ** 2 * n * statistics.mean**2
    F = between / max(1, c - 1) / np.maximum(within, np.maximum(noise, np.finfo(np.float64).tiny)) * max(1, n - c)
    return np.where(constant, 0.0, F)


def scores_of_numbers(statistics: LabelStatistics, d: int, scatter: Matrix) -> Vector:
    """Return R^2 of each of the first d columns (d,) and labels of a scatter (m, m); 0 for constant features.

    ``R^2 = r'C^-1 r`` with the correlations r of a feature and the labels, C those among the labels.
    """
    check_total(float(np.trace(scatter)), "the scatter of the labels")
    n, within, cross = statistics.count, np.maximum(statistics.moments.within[:d], 0.0), statistics.psi[:, :d]
    # Psi_j'(Y'H Y)^-1 Psi_j, the scatter that regression on the labels explains; their columns may be collinear.
    explained = np.einsum("md,md->d", cross, np.linalg.pinv(scatter, hermitian=True) @ cross)
    constant = within <= np.finfo(np.float64).eps ** 2 * n * statistics.mean[:d] ** 2
    return np.where(constant, 0.0, np.minimum(explained / np.where(constant, 1.0, within), 1.0))


def _with_labels(rows: Rows, labelled: Labelled) -> Rows:
    """Return rows with their labels as columns behind the others."""
    return rows.mapped(MapStep(labelled.beside, rows.n_columns + labelled.columns))


def explained_share(train: Moments, test: Moments, columns: Integers, q: int, n_components: NComponents) -> float:
    """Return the share of the labels' variance in one fold that components and regression of the others explain.

    Parameters
    ----------
    train, test : Moments
        Of the other folds, and of the one: of q candidate columns, and the labels after them.
    columns : ndarray
        Features among the candidates.
    """
    if test.count < 2:
        return 0.0
    S = unpack(train.packed, train.n_features)[np.ix_(columns, columns)]
    most = min(int(n_components), len(columns)) if isinstance(n_components, int | np.integer) else None
    values, axes = top_eigenpairs(S, most)
    k = len(values) if most else resolve_components(n_components, values, values.sum(), train.count, len(columns))
    axes = axes[:k][values[:k] > len(columns) * np.finfo(np.float64).eps * values[0]]
    # The moments of scores beside labels, and the regression of these on the scores of the other folds.
    k, m = len(axes), test.n_features - q
    M = np.zeros((q + m, k + m))
    M[columns, :k], M[q:, k:] = axes.T, np.eye(m)
    known, own = train.times(M), test.times(M)
    S = unpack(known.packed, k + m)
    # B = (T'T)^+ T'Y, of centred scores T and labels Y.
    B = np.linalg.pinv(S[:k, :k], hermitian=True) @ S[:k, k:]  # (k, m)
    residual, total = (
        float(squared_errors(own, k, D, known.mean[:k], known.mean[k:])[0].sum()) for D in (B, np.zeros_like(B))
    )
    return 1.0 - residual / total if total > 0 else 0.0


OF_SHARES: Coding = (
    lambda found: ([[int(q), share] for q, share in found.items()], {}),
    lambda pairs, own, held: {int(q): float(share) for q, share in pairs},
)


@dataclass(frozen=True)
class ScoredResult(Result):
    """The result of scored PCA: the fitted attributes.

    Attributes
    ----------
    scores_, mean_ : ndarray of shape (d,)
        Of the labelled rows, as are their numbers.
    selected_ : ndarray of shape (q,)
        Features, in order.
    estimator_ : Estimator
        Fitted to those.
    n_samples_, n_omitted_ : int
    cv_scores_ : dict of int to float, or None
        Explained share by number of features.
    """

    scores_: NDArray[np.float64] = stored("d")
    mean_: NDArray[np.float64] = stored("d")
    selected_: Integers = stored("s")
    estimator_: AnyEstimator = stored(coding=OF_MODELS)
    n_samples_: int = stored(of=int, least=0)
    n_omitted_: int = stored(of=int, least=0)
    cv_scores_: dict[int, float] | None = stored(coding=OF_SHARES, default=None)

    @property
    def width(self) -> int:
        """Columns of the output of the estimator."""
        return int(self.estimator_._result.width)

    def checked(self) -> Self:
        """Return itself; raises ValueError if the estimator is of other columns."""
        if len(self.selected_) != self.estimator_.n_features_in_:
            raise ValueError(f"it has {len(self.selected_)} of {len(self.scores_)} features in selected")
        return self


@dataclass(frozen=True)
class ScoredFit(Fit[ScoredResult]):
    """The read for the scores of features, a cross-validation if requested, and a fit to the chosen columns.

    Attributes
    ----------
    owner : ScoredPCA
        With the parameters of the fit.
    y : labels
    scores : Read
        Of labelled rows, beside which are real labels if rows may be omitted, so that their spread is that of the same
        rows.
    folds : Read or None
        Of the candidate columns, whichever they are.
    fit : Fit
        To the number of columns that will be selected, whichever they are.
    """

    reads: ClassVar[tuple[str, ...]] = ("scores", "folds")
    depends_on: ClassVar[tuple[str, ...]] = ("scores.states", "owner.cv", "rows.seed", "fit")

    owner: ScoredPCA
    y: Unchecked
    scores: Read[Folded[LabelStatistics]]
    folds: Read[Folded[FoldStates]] | None
    fit: Fit[Unchecked]

    @property
    def solver(self) -> str:
        return f"scores, then {self.fit.solver}"

    @property
    def account(self) -> str:
        return f"one read of rows and labels; {self.fit.plan.reason}"

    notes = of_part("fit", "notes")

    max_evaluations = of_part("fit", "max_evaluations")

    def passes(self) -> tuple[Declared, ...]:
        """Declare the own reads, and those of the fit."""
        return (*super().passes(), *(replace(one, name=f"fit: {one.name}") for one in self.fit.declared))

    def solve_cost(self) -> SolveCost:
        cost, state = self.fit.solve_cost(), max(one.state_bytes for one in costs(super().passes()))
        return replace(cost, bytes=max(cost.bytes, 3 * state), flops=cost.flops + 0.5 * state)

    def _scored(self, found: LabelStatistics) -> Vector:
        """Return the scores of features, from the statistics of the labelled rows."""
        labelled, d = labels_of(self.scores.rows), self.rows.viewed_columns
        if labelled.features is None:
            return scores_of_classes(found)
        if self.rows.nan_policy == "omit":
            return scores_of_numbers(found, d, found.psi[:, d:])  # Psi of the columns that are the labels
        values = labelled.features.values[np.flatnonzero(labelled.known_codes >= 0)]
        values = values - (values[0] + (values - values[0]).mean(axis=0))
        return scores_of_numbers(found, d, values.T @ values)

    def run(self, run: Run) -> ScoredResult:
        """Read X for the scores, for the folds if they choose the number of features, and for the fit."""
        owner, shares = self.owner, None
        read = self.scores(run)  # one pass over X
        kept = read.state.finished()
        scores = self._scored(kept)
        order = np.argsort(-tied(scores), kind="stable")  # of equal scores the first feature first
        q = owner._count(len(scores))
        if q is None:
            shares = self._shares(run, order[:MAX_CANDIDATES])
            # The best share; of equal ones, the fewest features.
            found = tied(np.array(list(shares.values())))
            q = min(count for count, share in zip(shares, found, strict=True) if share == found.max())
        selected = np.sort(order[:q])
        inner, rows, fit = owner._inner_fit(self.rows, selected, self.y)
        with running_part(run, "fit:", fit):
            fitted = with_reads(fit.run(run), run.reads)
        finish(inner, rows, fit.plan, fitted)
        mean = kept.mean[: len(scores)]
        return ScoredResult(scores, mean, selected, inner, kept.count, read.omitted, shares)

    def _shares(self, run: Run, candidates: Integers) -> dict[int, float]:
        """Return the mean explained share of the folds left out by number of features: q, q / 2, q / 4, and so on."""
        owner, q = self.owner, len(candidates)
        read = owner._folding(self.rows, candidates, self.scores.rows)
        states = cast("tuple[Moments, ...]", read(run).state.states)  # one pass over X
        k = owner.n_components if owner.estimator is None else getattr(owner.estimator, "n_components", None)
        ranked = np.searchsorted(np.sort(candidates), candidates)
        least = min(q, int(k)) if isinstance(k, Integral) else 1
        counts = sorted({max(least, q >> i) for i in range(q.bit_length())}, reverse=True)
        folds = list(zip(left_out(states), states, strict=True))
        return {
            count: float(np.mean([explained_share(*fold, ranked[:count], q, k) for fold in folds])) for count in counts
        }


@with_parameters
class ScoredPCA(Estimator[ScoredResult], LinearExports):
    """PCA, or another estimator, of the q features with the highest scores.

    One read computes the scores; then the estimator reads the chosen columns. For classes the score is the one-way F
    statistic (for two classes it gives the same ranking as the correlation), for real labels R^2, the squared multiple
    correlation. NOTE: class codes are never used as numbers.

    Parameters
    ----------
    n_components : int, float in (0, 1), a rule, or None, default None
        Number of components of the PCA; unused with an ``estimator``.
    n_features_to_select : int, float in (0, 1), or "cv", default 0.5
        q; a share of the features; or the best of d, d/2, d/4, ... (at most 2,048 of them) by cross-validation, in one
        further read: the share of the labels' variance in the left-out fold that is explained by linear regression on
        ``n_components`` principal components (those of the estimator, if one is given). No fewer features than
        components are tried.
    estimator : a bigpca estimator, or None, default None
        None for ``PCA(n_components)``.
    cv : int, default 5
        Of the cross-validation.
    random_state : int, RandomState, Generator or None, default 0
        Seed of the folds; as in :class:`bigpca.PCA`.
    missing_labels : {"raise", "drop"}, default "raise"
        Rows without a label are used by the PCA, but not for the scores.
    preprocess, nan_policy, memory_limit
        As in :class:`bigpca.PCA`; defaults None, "raise" and None.

    Attributes
    ----------
    scores_ : ndarray of shape (d,)
        F, or R^2; 0 for constant features.
    selected_ : ndarray of shape (q,), int64, ascending
    estimator_ : the fitted estimator of those columns
    cv_scores_ : dict of int to float
        With "cv": the explained share for every q that was tried.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 6)) * [9, 1, 1, 9, 1, 1]
    >>> model = ScoredPCA(1, n_features_to_select=2).fit(X, X[:, 1] + X[:, 4])
    >>> model.selected_.tolist()
    [1, 4]
    """

    _traits = Traits(
        ScoredResult,
        "scored",
        frozenset({"labels"}),
        "its feature scores and folds count each row once",
        core="estimator_",
    )

    n_components: NComponents = None
    _: KW_ONLY
    n_features_to_select: int | float | str = 0.5
    estimator: Unchecked = None
    cv: int = 5
    random_state: RandomState = 0
    missing_labels: str = "raise"

    def _row_map(self) -> Selected:
        return Selected(self.selected_, whole_map(self.estimator_))

    def _count(self, d: int) -> int | None:
        """Return q; None if cross-validation selects it."""
        given: Unchecked = self.n_features_to_select
        if isinstance(given, str) and given == "cv":
            return None
        if not isinstance(given, bool) and isinstance(given, Integral) and 1 <= int(given) <= d:
            return int(given)
        if isinstance(given, float) and 0 < given < 1:
            return max(1, round(float(given) * d))
        raise ValueError(
            f'n_features_to_select = {given!r}; an integer from 1 to {d}, a share in (0, 1) or "cv" was expected.'
        )

    def _fit(self, rows: Rows, y: Unchecked) -> ScoredFit:
        d = rows.viewed_columns
        q, rows = self._count(d), rows_of_fit(self, rows, weighted=False)
        # The estimator reads all rows. Unknown row chunks are counted once for all reads.
        counted = read_labels(self, rows, y, Problem(None, None))
        labelled = labels_of(counted)
        used = int(np.count_nonzero(labelled.known_codes >= 0))
        if labelled.features is None and used <= labelled.n_classes:
            raise ValueError(
                f"{used} rows have {labelled.n_classes} classes, one row each, so there is no variation within "
                f"classes to compare with. Give classes of several rows, or numbers as real labels."
            )
        # Of a preprocessed graph, the rows that the other parts read, whose digests are kept.
        shared = bool(rows.steps) and rows.source is None
        scored = Rows.opened(mapped_lazily(rows)).begun(**policies(self)) if shared else rows
        if labelled.features is not None and rows.nan_policy == "omit":
            scored = _with_labels(scored, labelled)
        scored = replace(scored, counted=counted.counted, y=labelled)
        # To plan with: q columns of X, or as many as cross-validation chooses among.
        some = np.arange(q or min(d, MAX_CANDIDATES))
        folds = self._folding(rows, some, scored) if q is None else None
        fit = self._inner_fit(rows, some, y)[-1]
        scores = Read.into(scored, "labels", labelled.template(scored.n_columns, whole=False))
        return ScoredFit(rows, unfitted(self), y, scores, folds, fit)

    def _inner_fit(self, rows: Rows, columns: Integers, y: Unchecked) -> tuple[AnyEstimator, Rows, Fit[Unchecked]]:
        """Return the estimator, the rows of these columns, and its fit to them, with the seed of all if it has none."""
        inner: Unchecked = self.estimator
        if inner is None:
            inner = PCA(self.n_components, nan_policy=self.nan_policy, memory_limit=self.memory_limit)
        if not isinstance(inner, Estimator) or isinstance(inner, ScoredPCA | SketchTransformer):
            raise TypeError(
                f"estimator = {inner!r} is {an(type(inner).__name__)}; an estimator of bigpca was expected, such as "
                "bigpca.KernelPCA(10). Pass one."
            )
        inner, X, seed = clone(inner), self._columns(rows, columns), rows.seed
        rows = opened(inner, X, None if carries_beside(X) else y, use="plan")  # which the columns bring, as X does
        state = getattr(inner, "random_state", 0)
        rows = replace(rows, seed=seed if state is None else draw_seed(state))
        return inner, rows, cast("Fit[Unchecked]", inner._fit(rows, rows.y))

    def _columns(self, rows: Rows, columns: Integers) -> da.Array:
        """Return columns for the other parts, which omit the rows that the scores omit: those incomplete in any."""
        complete = self.nan_policy == "omit" and len(columns) < rows.n_columns
        return columns_of(mapped_lazily(rows), columns, complete=complete)

    def _folding(self, rows: Rows, candidates: Integers, scored: Rows) -> Read[Folded[FoldStates]]:
        """Return the read of the candidate columns, with the labels beside them, for the moments of each fold."""
        labelled, columns = labels_of(scored), self._columns(rows, np.sort(candidates))
        own = replace(_with_labels(Rows.opened(columns).begun(**policies(self)), labelled), counted=scored.counted)
        # A row's fold depends on the seed and its number alone. Rows without a label have none, -1.
        codes = labelled.known_codes
        drawn = np.where(codes >= 0, integers(rows.seed, "folds", 0, len(codes), 1, self.cv)[:, 0], -1).astype(np.int32)
        return Read.into(own, "folds", FoldStates(Moments(own.n_columns), self.cv, drawn), dtype=PRECISE)
