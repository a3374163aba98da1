"""Scored PCA: PCA of the features that depend on the labels most (Bair et al. 2006; SPCA paper, section 4).

How many features scored PCA keeps, by cross-validation: one read of the scatter of every fold. Scores of how much each
feature depends on the labels, and the share of the labels that the best ones explain. The reads of scored PCA before
its estimator: one for the scores of features, one for a cross-validation. Row maps between all features and the
selected ones.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

import bigpca.dask_array as da
from bigpca.arrays import Array, DType, Integers, Matrix, Vector, tied, unpack
from bigpca.data.dask_arrays import carries_beside, columns_of
from bigpca.engine.jobs import PassState
from bigpca.engine.layout import plan_layout
from bigpca.engine.planning import SolveCost
from bigpca.engine.run import Run
from bigpca.errors import an
from bigpca.estimators.linear.pca import PCA
from bigpca.estimators.linear.sketch_transformer import SketchTransformer
from bigpca.estimators.shared.exporting import Inverts, LinearExports
from bigpca.estimators.shared.files import OF_MODELS
from bigpca.estimators.shared.fit import (
    Fit,
    RandomState,
    Reading,
    fit_seed,
    running_part,
    unfitted,
    with_reads,
)
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.opening import opened, policies, rows_of_fit
from bigpca.estimators.shared.outputs import whole_map
from bigpca.estimators.shared.results import Result, Traits
from bigpca.estimators.shared.tables import components_index
from bigpca.estimators.shared.transformer import AnyEstimator, Estimator, finish, with_parameters
from bigpca.estimators.supervised.fits import LabelledReading
from bigpca.estimators.supervised.problems import Labelled, LabelUse, read_labels
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.export.linear import LinearMap, LinearRowMap
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.moments import ClassMoments
from bigpca.passes.fold import Declared, Read, costs
from bigpca.passes.project import mapped_lazily
from bigpca.passes.reading.row_maps import Beside, MapStep, RowMap, chained
from bigpca.passes.rows import Rows
from bigpca.records import Coding, of_part, stored
from bigpca.seeds import draw_seed, integers
from bigpca.solvers.components import NComponents, check_total, resolve_components
from bigpca.solvers.eigh import top_eigenpairs

if TYPE_CHECKING:
    import pandas as pd

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
        found = getattr(self.inner, "linear", None)
        if found is None:
            raise ValueError(
                "the model of the selected columns has no linear map: it is a kernel model, or preprocesses its rows. "
                "Use a linear estimator without preprocess, such as bp.PCA(2)."
            )
        inner: LinearMap = found(len(self.columns))
        return inner.placed(self.columns, d)

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


@dataclass(frozen=True)
class Placed(RowMap):
    """Rows of the selected columns (q,) as rows of all columns; the others are set to their means.

    Attributes
    ----------
    columns : ndarray of shape (q,), int64
    mean : ndarray of shape (d,)
    """

    columns: Integers
    mean: NDArray[np.float64]

    def output_dtype(self, dtype: DType) -> DType:
        """That of the columns."""
        return dtype

    def apply(self, rows: Array, where: str) -> Array:
        """Return rows (b, d); NaN where the columns are NaN."""
        placed = np.tile(self.mean.astype(rows.dtype), (len(rows), 1))
        placed[:, self.columns] = rows
        placed[np.isnan(rows).any(axis=1)] = np.nan
        return placed

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The rows and a copy."""
        return 2 * rows * len(self.mean) * itemsize, 0


def one_hot(codes: NDArray[np.int32], n_classes: int) -> Matrix:
    """Return one-hot classes (n, c); zeros for rows of code -1."""
    hot: Matrix = (codes[:, None] == np.arange(n_classes)).astype(np.float64)
    return hot


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


def scores_of_numbers(statistics: LabelStatistics, mean: Vector, scatter: Matrix) -> Vector:
    """Return R^2 of every feature (d,) and labels of a mean (m,) and a scatter (m, m); 0 for constant features.

    ``R^2 = r'C^-1 r`` with the correlations r of a feature and the labels, C those among the labels.
    """
    check_total(float(np.trace(scatter)), "the scatter of the labels", mean)
    n, within, cross = statistics.count, np.maximum(statistics.moments.within, 0.0), statistics.psi  # (m, d)
    # Psi_j'(Y'H Y)^-1 Psi_j, the scatter that regression on the labels explains; their columns may be collinear.
    explained = np.einsum("md,md->d", cross, np.linalg.pinv(scatter, hermitian=True) @ cross)
    constant = within <= np.finfo(np.float64).eps ** 2 * n * statistics.mean**2
    return np.where(constant, 0.0, np.minimum(explained / np.where(constant, 1.0, within), 1.0))


def ranked(scores: Vector) -> Integers:
    """Return the features (d,) from the highest score to the lowest; of equal scores the first feature first."""
    return np.argsort(-tied(scores), kind="stable")


def explained_shares(folds: list[ClassMoments], ranked: Integers, n_components: NComponents) -> dict[int, float]:
    """Return the mean explained share of the folds left out by number of features: q, q / 2, q / 4, and so on.

    Parameters
    ----------
    folds : list of ClassMoments
        Of the q candidate columns, and the labels after them.
    ranked : ndarray of shape (q,)
        The candidates among the columns of the folds, from the highest score to the lowest.
    n_components : int, float, a rule or None
        No fewer features than an integer are tried.
    """
    q = len(ranked)
    least = min(q, int(n_components)) if isinstance(n_components, Integral) else 1
    counts = sorted({max(least, q >> i) for i in range(q.bit_length())}, reverse=True)
    return {
        count: float(np.mean([explained_share(folds, f, ranked[:count], q, n_components) for f in range(len(folds))]))
        for count in counts
    }


def explained_share(
    folds: list[ClassMoments], left_out: int, columns: Integers, q: int, n_components: NComponents
) -> float:
    """Return the share of the labels' variance in one fold that components and regression of the others explain."""
    train = None
    for f, own in enumerate(folds):
        if f != left_out:
            train = own if train is None else train.merge(own)
    test = folds[left_out]
    if train is None or test.count < 2:
        return 0.0
    S, mean = unpack(train.within, train.n_features), train.means[0]
    targets = np.arange(q, S.shape[0])
    most = min(int(n_components), len(columns)) if isinstance(n_components, int | np.integer) else None
    values, axes = top_eigenpairs(S[np.ix_(columns, columns)].copy(), most)
    k = len(values) if most else resolve_components(n_components, values, values.sum(), train.count, len(columns))
    axes = axes[:k][values[:k] > len(columns) * np.finfo(np.float64).eps * values[0]]
    variances = axes @ S[np.ix_(columns, columns)] @ axes.T
    B = np.linalg.pinv(variances, hermitian=True) @ axes @ S[np.ix_(columns, targets)]  # (k, m)
    W = axes.T @ B
    off = test.means[0] - mean  # residual of y - mean_y - (x - mean_x) W, summed over the fold by its moments
    T = unpack(test.within, test.n_features) + test.count * np.outer(off, off)
    residual = np.trace(
        T[np.ix_(targets, targets)] - 2 * W.T @ T[np.ix_(columns, targets)] + W.T @ T[np.ix_(columns, columns)] @ W
    )
    total = float(np.trace(T[np.ix_(targets, targets)]))
    return 1.0 - float(residual) / total if total > 0 else 0.0


@dataclass(frozen=True)
class FoldScores(Reading):
    """The read of the scatter of each fold of the rows, of the candidate columns and the labels.

    Attributes
    ----------
    templates : dict of str to Accumulator
    """

    reads: ClassVar[tuple[str, ...]] = ("folds",)
    depends_on: ClassVar[tuple[str, ...]] = ("templates",)
    solver: ClassVar[str] = "folds"
    account: ClassVar[str] = "one read of rows and labels"

    templates: dict[str, Accumulator]

    @classmethod
    def of(cls, rows: Rows, labelled: Labelled, candidates: Integers, folds: int, seed: int) -> FoldScores:
        """Return the read of rows of the candidate columns, beside which it puts the labels.

        Parameters
        ----------
        folds : int
            Each labelled row is in one of them, drawn by the seed.
        """
        features = labelled.features
        if features is None:
            beside, m = Beside(labelled.known_codes, partial(one_hot, n_classes=labelled.n_classes)), labelled.n_classes
        else:
            beside, m = Beside(features.whole(), np.asarray), features.shape[1]
        # Features and labels side by side: the scatter of a fold has their products, too.
        rows = rows.mapped(MapStep(beside, rows.n_columns + m))
        # A row's fold depends on the seed and its number alone. Rows of other folds, or without a label, have code -1.
        drawn, used = integers(seed, "folds", 0, len(labelled.known_codes), 1, folds)[:, 0], labelled.known_codes >= 0
        templates: dict[str, Accumulator] = {
            f"fold-{f}": ClassMoments(rows.n_columns, 1, np.where(used & (drawn == f), 0, -1).astype(np.int32))
            for f in range(folds)
        }
        return cls(replace(rows, counted=labelled.counted), templates)

    @cached_property
    def folds(self) -> Read[list[ClassMoments]]:
        """The read."""
        states = self.templates.values()
        rows, exact = self.rows, np.dtype(np.float64)  # of rows and labels side by side
        layout = plan_layout(rows.origin.row_chunks, rows.n_columns, exact, sum(one.state_bytes for one in states))
        return Read.of(rows, "folds", self.templates, _take_folds, layout=layout, dtype=exact)

    def solve_cost(self) -> SolveCost:
        return SolveCost(4.0 * self.folds.cost.state_bytes / 8, bytes=3 * self.folds.cost.state_bytes)

    def read(self, run: Run) -> list[ClassMoments]:
        """Return the scatter of each fold."""
        return self.folds(run)  # one pass over X


def _take_folds(state: PassState) -> list[ClassMoments]:
    return [state.part(name, ClassMoments) for name in state.parts]


@dataclass(frozen=True)
class Scoring(LabelledReading):
    """The read from which the scores of features are computed.

    If rows may be omitted, real labels are read beside them, so that their spread is that of the same rows.
    """

    reads: ClassVar[tuple[str, ...]] = ("labels",)
    account: ClassVar[str] = "one read of rows and labels"

    @classmethod
    def of(cls, rows: Rows, labelled: Labelled) -> Self:
        """Return the read of rows, and of labels beside them if some may be omitted."""
        features = labelled.features
        if features is not None and rows.nan_policy == "omit":
            rows = rows.mapped(MapStep(Beside(features.whole(), np.asarray), rows.n_columns + features.shape[1]))
        return cls(replace(rows, counted=labelled.counted), "scores", labelled, False)

    def read_scored(self, run: Run) -> tuple[LabelStatistics, Vector]:
        """Return the statistics of the labelled rows, and the scores of the features."""
        found, features = self.read(run).statistics, self.labelled.features
        if features is None:
            return found, scores_of_classes(found)
        if self.rows.nan_policy != "omit":
            values = features.values[np.flatnonzero(self.labelled.known_codes >= 0)]
            mean = values[0] + (values - values[0]).mean(axis=0)
            return found, scores_of_numbers(found, mean, (values - mean).T @ (values - mean))
        # Psi of the columns that are the labels is their scatter, and their means are less the offset of the features.
        d = self.rows.n_columns - features.shape[1]
        mean, scatter = found.mean[d:] - features.maker.features(np.zeros((1, features.shape[1])))[0], found.psi[:, d:]
        found = found.of_columns(d)
        return found, scores_of_numbers(found, mean, scatter)

    def solve_cost(self) -> SolveCost:
        return SolveCost(4.0 * self.labels.cost.state_bytes / 8, bytes=3 * self.labels.cost.state_bytes)


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
    """The scores of features, a cross-validation if requested, and a fit to the chosen columns.

    Attributes
    ----------
    owner : ScoredPCA
        With the parameters of the fit.
    y : labels
    scoring : Scoring
    folding : FoldScores or None
    fit : Reading
        To the number of columns that will be selected, whichever they are.
    """

    depends_on: ClassVar[tuple[str, ...]] = ("scoring", "folding", "fit")

    owner: ScoredPCA
    y: Unchecked
    scoring: Scoring
    folding: FoldScores | None
    fit: Reading

    @property
    def solver(self) -> str:
        return f"scores, then {self.fit.solver}"

    @property
    def account(self) -> str:
        return f"{self.scoring.account}; {self.fit.reason}"

    notes = of_part("fit", "notes")

    max_evaluations = of_part("fit", "max_evaluations")

    @property
    def parts(self) -> dict[str, Reading]:
        """All of them, in order, by the names before those of their passes."""
        folds = {} if self.folding is None else {"folds:": self.folding}
        return {"scores:": self.scoring, **folds, "fit:": self.fit}

    def passes(self) -> tuple[Declared, ...]:
        """Declare the passes of all parts; those before the scores are of all of them."""
        return tuple(
            replace(one, name=f"{name} {one.name}")
            for name, part in self.parts.items()
            for one in (costs(part.passes()) if part is self.scoring else part.declared)
        )

    def solve_cost(self) -> SolveCost:
        costs = [part.solve_cost() for part in self.parts.values()]
        scores = 8 * (2 * self.rows.n_columns + self.fit.rows.n_columns)  # their means, and the chosen features
        return SolveCost(
            flops=sum(cost.flops for cost in costs),
            between=sum(cost.between for cost in costs),
            bytes=max(cost.bytes for cost in costs),
            held_bytes=max(cost.held_bytes for cost in costs),
            output_bytes=costs[-1].output_bytes + scores,
        )

    def run(self, run: Run) -> ScoredResult:
        """Read X for the scores, for the folds if they choose the number of features, and for the fit."""
        owner, X, shares = self.owner, mapped_lazily(self.rows), None
        with run.within("scores:"):
            kept, scores = self.scoring.read_scored(run)
        order = ranked(scores)
        q = owner._count(len(scores))
        if q is None:
            candidates = order[:MAX_CANDIDATES]
            folding = owner._folding(X, candidates, self.scoring.labelled, self.rows.seed)
            with running_part(run, "folds:", folding):
                held_out = folding.read(run)
            k = owner.n_components if owner.estimator is None else getattr(owner.estimator, "n_components", None)
            shares = explained_shares(held_out, np.searchsorted(np.sort(candidates), candidates), k)
            # The best share; of equal ones, the fewest features.
            found = tied(np.array(list(shares.values())))
            q = min(count for count, share in zip(shares, found, strict=True) if share == found.max())
        selected = np.sort(order[:q])
        inner, rows, fit = owner._inner_fit(X, selected, self.y, self.rows.seed)
        with running_part(run, "fit:", fit):
            fitted = with_reads(fit.run(run), run.reads)
        finish(inner, rows, fit.plan, fitted)
        return ScoredResult(scores, kept.mean, selected, inner, kept.count, kept.omitted, shares)


@with_parameters
class ScoredPCA(Estimator[ScoredResult], LinearExports, Inverts):
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

    def summary(self) -> pd.DataFrame:
        """Return a table of the components of ``estimator_``, as :meth:`bigpca.PCA.summary`.

        Returns
        -------
        pandas.DataFrame of k rows
        """
        check_is_fitted(self)
        return self.estimator_.summary().set_axis(components_index(self, "summary"))

    @property
    def _why_one_way(self) -> str:
        inner = getattr(self, "estimator_", self.estimator)
        return "" if inner is None else getattr(inner, "_why_one_way", f"{inner!r} has no inverse_transform.")

    def _reconstruction(self) -> RowMap:
        return chained((self.estimator_._reconstruction(),), Placed(self.selected_, self.mean_))

    def _row_map(self) -> Selected:
        return Selected(self.selected_, whole_map(self.estimator_))

    def _inner(self) -> AnyEstimator:
        if self.estimator is None:
            return PCA(self.n_components, nan_policy=self.nan_policy, memory_limit=self.memory_limit)
        if not isinstance(self.estimator, Estimator) or isinstance(self.estimator, ScoredPCA | SketchTransformer):
            raise TypeError(
                f"estimator = {self.estimator!r} is {an(type(self.estimator).__name__)}; an estimator of bigpca was "
                f"expected, such as bigpca.KernelPCA(10). Pass one."
            )
        inner: AnyEstimator = clone(self.estimator)
        return inner

    def _count(self, d: int) -> int | None:
        """Return q; None if cross-validation selects it."""
        given: Unchecked = self.n_features_to_select
        if isinstance(given, str) and given == "cv":
            fit_seed(self)  # raises if random_state is not one
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
        labelled = read_labels(self, rows, y, LabelUse())[1]
        used = int(np.count_nonzero(labelled.known_codes >= 0))
        if labelled.features is None and used <= labelled.n_classes:
            raise ValueError(
                f"{used} rows have {labelled.n_classes} classes, one row each, so there is no variation within "
                f"classes to compare with. Give classes of several rows, or numbers as real labels."
            )
        X = mapped_lazily(rows)
        scoring, folding = Scoring.of(self._rows_of_all_parts(rows, X), labelled), None
        if q is None:
            folding = self._folding(X, np.arange(min(d, MAX_CANDIDATES)), scoring.labelled, rows.seed)
        # To plan with: q columns of X, or as many as cross-validation chooses among.
        some = np.arange(q or min(X.shape[1], MAX_CANDIDATES))
        return ScoredFit(rows, unfitted(self), y, scoring, folding, self._inner_fit(X, some, y, rows.seed)[-1])

    def _inner_fit(
        self, X: da.Array, columns: Integers, y: Unchecked, seed: int
    ) -> tuple[AnyEstimator, Rows, Fit[Unchecked]]:
        """Return the estimator, the rows of these columns, and its fit to them; the seed is for one that has none."""
        inner = self._inner()
        y = None if carries_beside(X) else y  # which the columns bring, as X does
        rows = opened(inner, self._columns(X, columns), y, use="plan")
        given = getattr(inner, "random_state", 0)
        rows = replace(rows, seed=seed if given is None else draw_seed(given))
        return inner, rows, cast("Fit[Unchecked]", inner._fit(rows, rows.y))

    def _rows_of_all_parts(self, rows: Rows, X: da.Array) -> Rows:
        """Return the rows to score: of a preprocessed graph those that the other parts read, whose digests are kept."""
        return Rows.opened(X).begun(**policies(self)) if rows.steps and rows.source is None else rows

    def _columns(self, X: da.Array, columns: Integers) -> da.Array:
        """Return columns for the other parts, which omit the rows that the scores omit: those incomplete in any."""
        return columns_of(X, columns, complete=self.nan_policy == "omit" and len(columns) < X.shape[1])

    def _folding(self, opened: da.Array, candidates: Integers, labelled: Labelled, seed: int) -> FoldScores:
        """Return the read of the candidate columns, with the labels beside them, for the scatter of each fold."""
        rows = Rows.opened(self._columns(opened, np.sort(candidates))).begun(**policies(self))
        return FoldScores.of(rows, labelled, candidates, int(self.cv), seed)
