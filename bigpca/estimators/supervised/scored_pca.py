"""Scored PCA: PCA of the features that depend on the labels most (Bair et al. 2006; SPCA paper, section 4)."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path as Place
from typing import Any, Self

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.data.labels import TargetLabels
from bigpca.data.sources import columns_of, with_columns
from bigpca.errors import warn_approximation
from bigpca.estimators.linear.pca import PCA
from bigpca.estimators.shared.files import StoredModel, pack_values, unpack_values
from bigpca.estimators.shared.inputs import open_rows
from bigpca.estimators.shared.planned import PlannedModel
from bigpca.estimators.shared.running import running
from bigpca.estimators.shared.transformer import Destination, Lazy, Path, RandomState, RowTransformer
from bigpca.estimators.supervised.columns import Placed, Selected
from bigpca.estimators.supervised.label_features import LabelFeatures, LinearLabels, label_width
from bigpca.estimators.supervised.labels import KeptStatistics, Labelled, LabelReader, merge_labelled
from bigpca.estimators.supervised.scores import LabelSpread, explained_share, feature_scores, one_hot
from bigpca.estimators.supervised.scores_fit import Folding, Scoring
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.class_moments import ClassMoments
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.engine.solving import solving
from bigpca.passes.reading.row_maps import RowMap
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan
from bigpca.seeds import integers
from bigpca.sketches.base import positive_integer

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
MAX_CANDIDATES = 2048  # columns among which cross-validation chooses


def _estimator_has(method: str) -> Callable[[Any], bool]:
    """Return whether the estimator, a PCA by default, has a method; its own AttributeError says why not."""

    def check(model: ScoredPCA) -> bool:
        inner = getattr(model, "estimator_", model.estimator)
        return inner is None or getattr(inner, method) is not None

    return check


class ScoredPCA(LabelReader, RowTransformer):
    """PCA, or another estimator, of the q features with the highest scores.

    One read for the scores; then the estimator reads the chosen columns. For classes the score is the one-way F statistic
    (for two classes it ranks as the correlation does), for real labels R^2, the squared multiple correlation. NOTE: class codes
    are never taken for numbers.

    Parameters
    ----------
    n_components : int, float in (0, 1), a rule, or None
        Of the PCA; unused where an estimator is given.
    n_features_to_select : int, float in (0, 1), or "cv"
        q; a share of the features; or the best of d, d/2, d/4, ... (at most 2,048 of them) by cross-validation, in one further
        read: the share of the labels' variance that linear regression on the principal components, as many as
        ``n_components`` says (the estimator's, where one is given), explains in the fold left out. No fewer features than
        components are tried.
    estimator : a bigpca estimator, or None
        None for ``PCA(n_components)``.
    folds : int
        Of the cross-validation.
    random_state : int, RandomState, Generator or None
        Of the folds; as in :class:`bigpca.PCA`.
    missing_labels : {"raise", "drop"}
        Rows without a label count in the PCA, not in the scores.
    nan_policy, missing_chunks, memory_limit, workers_timeout
        As in :class:`bigpca.PCA`.

    Attributes
    ----------
    scores_ : ndarray of shape (d,)
        F, or R^2; 0 for constant features.
    selected_ : ndarray of shape (q,), int64, ascending
    estimator_ : the fitted estimator of those columns
    cv_scores_ : dict of int to float
        By "cv": the explained share for every q that was tried.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 6)) * [9, 1, 1, 9, 1, 1]
    >>> model = ScoredPCA(1, n_features_to_select=2).fit(X, X[:, 1] + X[:, 4])
    >>> model.selected_.tolist()
    [1, 4]
    """

    _output_name = "scores"

    def __init__(
        self,
        n_components: Any = None,
        *,
        n_features_to_select: int | float | str = 0.5,
        estimator: Any = None,
        folds: int = 5,
        random_state: RandomState = 0,
        missing_labels: str = "raise",
        nan_policy: str = "raise",
        missing_chunks: str = "raise",
        memory_limit: int | str | None = None,
        workers_timeout: float = 60.0,
    ) -> None:
        self.n_components = n_components
        self.n_features_to_select = n_features_to_select
        self.estimator = estimator
        self.folds = folds
        self.random_state = random_state
        self.missing_labels = missing_labels
        self.nan_policy = nan_policy
        self.missing_chunks = missing_chunks
        self.memory_limit = memory_limit
        self.workers_timeout = workers_timeout

    def plan(self, X: Any, y: Any = None) -> Plan:
        """Return what the scores, a cross-validation and the estimator will cost; X is not read."""
        opened = self._open(X, minimum=2)
        d = opened.n_features
        q, estimator = self._count(d), self._inner()
        rows = RowInput(opened.array, **self._policies)
        labelled = self._scorable(y, rows.n_rows)
        inner = estimator.plan(some_columns(rows.X, q), y)
        parts: list[Plan] = [self._scoring(rows, labelled).plan, inner]
        if q is None:
            parts.append(self._folding(rows.X, np.arange(min(d, MAX_CANDIDATES)), labelled, self._seed).plan)
        return replace(
            inner, solver=f"scores, then {inner.solver}", reason=f"one read of rows and labels; {inner.reason}",
            passes=sum(plan.passes for plan in parts), flops=sum(plan.flops for plan in parts),
            bytes_read=parts[0].bytes_read * (1 + (q is None)) + inner.bytes_read * d // max(1, q or 1),
            peak_bytes=max(plan.peak_bytes for plan in parts), state_bytes=max(plan.state_bytes for plan in parts),
        )  # fmt: skip

    @solving
    def fit(self, X: Any, y: Any = None, *, checkpoint: Path | None = None, progress: ProgressArgument = None) -> Self:
        """Score the features, choose, and fit the estimator to the chosen ones.

        Parameters
        ----------
        checkpoint : path of a directory
            Of one checkpoint for each part; see :meth:`bigpca.PCA.fit`.

        Raises
        ------
        ValueError
            For labels that are missing, all alike or all different classes, and more features than there are.
        """
        places = {name: None if checkpoint is None else Place(checkpoint) / name for name in ("scores", "folds", "fit")}
        opened = replace(self._open(X, minimum=2), seed=self._drawn_seed(places["folds"]))
        q, found, inner = self._count(opened.n_features), None, self._inner()
        rows = RowInput(opened.array, **self._policies)
        labelled = self._scorable(y, rows.n_rows)  # unknown row chunks are counted once for all reads
        inner.plan(some_columns(rows.X, q), y).check()  # its refusals need no read
        statistics = self._score(rows, labelled, places["scores"], progress)
        spread = spread_of(labelled)
        scores = feature_scores(statistics, spread)
        order = np.lexsort((np.arange(len(scores)), -scores))
        if q is None:
            found = self._cross_validate(rows.X, order, labelled, opened.seed, places["folds"], progress)
            q = max(found, key=lambda count: (found[count], -count))
        selected = np.sort(order[:q])
        inner.fit(columns_of(rows.X, selected), y, checkpoint=places["fit"], progress=progress)
        self._remember(opened)
        self.seed_ = opened.seed
        self._statistics, self._supervision, self._spread = statistics, labelled.supervision, spread
        self.scores_, self.selected_, self.estimator_, self.mean_ = scores, selected, inner, statistics.mean
        self.__dict__.pop("cv_scores_", None)
        if found is not None:
            self.cv_scores_ = found
        return self

    @available_if(_estimator_has("partial_fit"))  # type: ignore[untyped-decorator]
    @solving
    def partial_fit(self, X: Any, y: Any = None, *, progress: ProgressArgument = None) -> Self:
        """Add labelled rows: two reads of them. The scores are those of all rows; the features stay those of the first fit.

        Where a fit on all rows would choose others it warns, else the result equals that fit to rounding. There is none where
        the estimator has none.
        """
        if not hasattr(self, "estimator_"):
            return self.fit(X, y, progress=progress)
        inner: Any = copy(self.estimator_)
        rows = RowInput(self._open_like(X), **self._policies)
        labelled = self._labelled(y, rows.n_rows, self._supervision)
        new = self._score(rows, labelled, None, progress)
        statistics, supervision = merge_labelled(self._statistics, self._supervision, new, labelled.supervision)
        spread, own = self._spread, spread_of(labelled)
        if spread is not None and own is not None:
            spread = spread.merge(own)
        inner.partial_fit(columns_of(rows.X, self.selected_), y, progress=progress)
        scores = feature_scores(statistics, spread)
        best = np.lexsort((np.arange(len(scores)), -scores))[: len(self.selected_)]
        others = np.setdiff1d(best, self.selected_)
        if len(others):
            warn_approximation(
                f"of the {len(best)} features with the highest scores over all rows, {len(others)} were not among those of the "
                f"first fit (such as feature {others[0]}), which are kept. Fit again with all rows to choose anew."
            )
        self._statistics, self._supervision, self._spread = statistics, supervision, spread
        self.scores_, self.estimator_, self.mean_ = scores, inner, statistics.mean
        return self

    @available_if(_estimator_has("inverse_transform"))  # type: ignore[untyped-decorator]
    def inverse_transform(self, X: Any, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
        """Return rows (n, d) from scores (n, k): the estimator's in the chosen features, means of the labelled rows elsewhere."""
        check_is_fitted(self)
        inner: Any = self.estimator_
        back = inner.inverse_transform(X)
        placed = Placed(self.selected_, self.mean_)
        opened = open_rows(back, type(self).__name__).array
        return self._map(X, opened, placed, self.n_features_in_, Destination(out, overwrite))

    # Inside ---------------------------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "estimator_")

    @property
    def solve_threads(self) -> int | None:
        """The estimator's."""
        given: int | None = getattr(self.estimator, "solve_threads", None)
        return given

    @property
    def _whole(self) -> bool:
        return False

    def _features(self, labels: TargetLabels, seed: int) -> LabelFeatures:
        known = labels.values[labels.used]
        label_width(known)  # refuses labels that are all equal
        return LinearLabels.of(known)

    def _scorable(self, y: Any, n: int) -> Labelled:
        labelled = self._labelled(y, n)
        used = int(np.count_nonzero(labelled.codes >= 0))
        if labelled.features is None and used <= labelled.n_classes:
            raise ValueError(
                f"{used} rows have {labelled.n_classes} classes, one row each: nothing is left to compare differences between "
                f"classes with. A class of several rows was expected. Give such classes, or numbers as real labels."
            )
        return labelled

    @property
    def _n_features_out(self) -> int:
        return int(self.estimator_._n_features_out)

    def _row_map(self) -> RowMap:
        return Selected(self.selected_, self.estimator_._row_map())

    def _inner(self) -> PlannedModel[Any]:
        if self.estimator is None:
            policies = {
                name: getattr(self, name)
                for name in ("nan_policy", "missing_chunks", "memory_limit", "workers_timeout")
            }
            return PCA(self.n_components, **policies)
        if not isinstance(self.estimator, PlannedModel):
            raise TypeError(
                f"estimator = {self.estimator!r} is a {type(self.estimator).__name__}; an estimator of bigpca was expected, such "
                f"as bigpca.KernelPCA(10). Pass one."
            )
        inner: PlannedModel[Any] = clone(self.estimator)
        return inner

    def _count(self, d: int) -> int | None:
        """Return q; None where cross-validation chooses."""
        given: Any = self.n_features_to_select
        if isinstance(given, str) and given == "cv":
            _ = self._seed  # refuses what is none
            if positive_integer("folds", self.folds) < 2:
                raise ValueError(f"folds = {self.folds}; at least 2 were expected, one of which is left out in turn.")
            return None
        if not isinstance(given, bool) and isinstance(given, Integral) and 1 <= int(given) <= d:
            return int(given)
        if isinstance(given, float) and 0 < given < 1:
            return max(1, round(float(given) * d))
        raise ValueError(
            f'n_features_to_select = {given!r}; an integer from 1 to {d}, a share in (0, 1) or "cv" was expected.'
        )

    def _scoring(self, rows: RowInput, labelled: Labelled) -> Scoring:
        """Return the read that the scores are computed from."""
        resources = find_resources(self.memory_limit, in_process=rows.in_process)
        return Scoring(rows, resources, "scores", labelled, False)

    def _score(
        self, rows: RowInput, labelled: Labelled, checkpoint: Place | None, progress: ProgressArgument
    ) -> LabelStatistics:
        """Return what the scores are computed from: one read."""
        scoring = self._scoring(rows, labelled)
        scoring.plan.check()
        with running(scoring, checkpoint=checkpoint, progress=progress, workers_timeout=self.workers_timeout) as run:
            return scoring.read(run).statistics

    def _folding(self, opened: da.Array, candidates: NDArray[np.int64], labelled: Labelled, seed: int) -> Folding:
        """Return the read of the candidate columns with the labels at their right, for the scatter of each fold of the rows."""
        rows_of = columns_of(opened, np.sort(candidates))
        features = labelled.features
        if features is None:
            hot = partial(one_hot, n_classes=labelled.n_classes)
            joined = with_columns(rows_of, labelled.codes, hot, labelled.n_classes)
        else:
            joined = with_columns(rows_of, features.whole(), np.asarray, features.shape[1])
        folds = integers(seed, "folds", 0, len(labelled.codes), 1, int(self.folds))[:, 0]
        used = labelled.codes >= 0
        templates: dict[str, Accumulator] = {
            f"fold-{f}": ClassMoments(joined.shape[1], 1, np.where(used & (folds == f), 0, -1).astype(np.int32))
            for f in range(int(self.folds))
        }
        rows = RowInput(joined, **self._policies)
        resources = find_resources(self.memory_limit, in_process=rows.in_process)
        about = {"candidates": candidates.tolist(), "folds": [int(self.folds), seed]}
        return Folding(rows, resources, templates, {"labels": labelled.describe(), **about})

    def _cross_validate(
        self, opened: da.Array, order: NDArray[np.int64], labelled: Labelled, seed: int,
        checkpoint: Place | None, progress: ProgressArgument,
    ) -> dict[int, float]:  # fmt: skip
        """Return the explained share in the folds left out, for every number of features: one read of the candidates."""
        candidates = order[:MAX_CANDIDATES]
        q, place = len(candidates), np.searchsorted(np.sort(candidates), candidates)
        folding = self._folding(opened, candidates, labelled, seed)
        folding.plan.check()
        with running(
            folding, checkpoint=checkpoint, progress=progress, workers_timeout=self.workers_timeout, seed=seed
        ) as run:
            held_out = folding.read(run)
        k = self.n_components if self.estimator is None else getattr(self.estimator, "n_components", None)
        least = min(q, int(k)) if isinstance(k, Integral) else 1
        counts = sorted({max(least, q >> i) for i in range(q.bit_length())}, reverse=True)
        return {
            count: float(np.mean([explained_share(held_out, f, place[:count], q, k) for f in range(len(held_out))]))
            for count in counts
        }

    def _fitted_values(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        inner, supervision = StoredModel.of(self.estimator_), self._supervision
        arrays = {f"inner_{name}": array for name, array in inner.arrays.items()}
        kept = KeptStatistics(self._statistics, supervision).to_arrays()
        arrays |= {f"kept_{name}": array for name, array in kept.items()}
        if self._spread is not None:
            arrays |= {f"spread_{name}": array for name, array in self._spread.to_arrays().items()}
        attributes = {
            "inner": {"kind": inner.kind, "attributes": inner.attributes}, "n_features": self.n_features_in_,
            "cv_scores": [[int(q), share] for q, share in getattr(self, "cv_scores_", {}).items()],
            "classes": None if supervision.classes is None else pack_values(supervision.classes),
        }  # fmt: skip
        return arrays | {"scores": self.scores_, "selected": self.selected_}, attributes

    def _restore(self, stored: StoredModel) -> None:
        attributes = stored.attributes
        self.estimator_ = stored.inner
        self.scores_, self.selected_ = stored.arrays["scores"], stored.arrays["selected"]
        self.n_features_in_ = d = int(attributes["n_features"])
        classes = None if attributes["classes"] is None else unpack_values(attributes["classes"])
        kept = KeptStatistics.of_arrays(stored.named("kept_"), d, classes)
        self._statistics, self._supervision, self.mean_ = kept.statistics, kept.supervision, kept.statistics.mean
        self._spread = None if classes is not None else LabelSpread.of_arrays(stored.named("spread_"))
        if not len(self.scores_) == len(self.mean_) == d or len(self.selected_) != self.estimator_.n_features_in_:
            raise ValueError(f"it has {len(self.scores_)} scores of {d} features")
        if attributes["cv_scores"]:
            self.cv_scores_ = {int(q): float(share) for q, share in attributes["cv_scores"]}


def some_columns(X: da.Array, q: int | None) -> da.Array:
    """Return q columns of X, or as many as cross-validation chooses among: to plan with."""
    return columns_of(X, slice(q or min(X.shape[1], MAX_CANDIDATES)))


def spread_of(labelled: Labelled) -> LabelSpread | None:
    """Return the spread of real labels; None for classes."""
    if labelled.features is None:
        return None
    return LabelSpread.of(labelled.features.values[labelled.codes >= 0])
