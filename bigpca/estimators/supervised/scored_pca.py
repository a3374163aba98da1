"""Scored PCA: PCA of the features that depend on the labels most (Bair et al. 2006; SPCA paper, section 4)."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from numbers import Integral
from pathlib import Path as Place
from typing import Self, cast

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array
from bigpca.data.views import columns_of
from bigpca.errors import warn_approximation
from bigpca.estimators.linear.pca import PCA
from bigpca.estimators.linear.sketch_transformer import SketchTransformer
from bigpca.estimators.shared.exporting import linear_map, to_faiss, to_onnx, to_sklearn, to_torch
from bigpca.estimators.shared.files import StoredModel, Values, pack_values, unpack_values
from bigpca.estimators.shared.inputs import Input, Lazy, Opened, open_rows
from bigpca.estimators.shared.opening import labels_of_fit, open_weighted, planned_weighted
from bigpca.estimators.shared.outputs import Destination, Path
from bigpca.estimators.shared.running import execute, with_plan
from bigpca.estimators.shared.seeding import RandomState, draw_fit_seed, fit_seed
from bigpca.estimators.shared.transformer import AnyEstimator, Estimator
from bigpca.estimators.shared.transforming import mapped_as_given
from bigpca.estimators.supervised.columns import Placed, Selected
from bigpca.estimators.supervised.kept import KeptStatistics, Supervision, merge_labelled
from bigpca.estimators.supervised.labels import Labelled, read_labels
from bigpca.estimators.supervised.problems import LabelUse
from bigpca.estimators.supervised.scores import LabelSpread, feature_scores, ranked
from bigpca.estimators.supervised.scores_fit import ScoredFit, ScoredResult, Scoring
from bigpca.estimators.supervised.selection import MAX_CANDIDATES, Folding, explained_shares, some_columns
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.engine.resources import find_resources
from bigpca.passes.engine.solving import solving
from bigpca.passes.project import mapped_lazily
from bigpca.passes.reading.preprocessing import Preprocess
from bigpca.passes.rows import RowInput
from bigpca.settings import setting
from bigpca.sketches.base import positive_integer
from bigpca.solvers.components import NComponents


def _estimator_has(method: str) -> Callable[[ScoredPCA], bool]:
    """Return the condition that the estimator (by default a PCA) has a method; its AttributeError gives the reason."""

    def check(model: ScoredPCA) -> bool:
        inner = getattr(model, "estimator_", model.estimator)
        return inner is None or getattr(inner, method) is not None

    return check


class ScoredPCA(Estimator[ScoredResult]):
    """PCA, or another estimator, of the q features with the highest scores.

    One read for the scores; then the estimator reads the chosen columns. For classes the score is the one-way F
    statistic (for two classes it ranks as the correlation does), for real labels R^2, the squared multiple correlation.
    NOTE: class codes are never used as numbers.

    Parameters
    ----------
    n_components : int, float in (0, 1), a rule, or None, default None
        Number of components of the PCA; unused with an ``estimator``.
    n_features_to_select : int, float in (0, 1), or "cv", default 0.5
        q; a share of the features; or the best of d, d/2, d/4, ... (at most 2,048 of them) by cross-validation, in one
        further read: the share of the labels' variance that linear regression on the principal components, as many as
        ``n_components`` says (the estimator's, where one is given), explains in the fold left out. No fewer features
        than components are tried.
    estimator : a bigpca estimator, or None, default None
        None for ``PCA(n_components)``.
    folds : int, default 5
        Of the cross-validation.
    random_state : int, RandomState, Generator or None, default 0
        Of the folds; as in :class:`bigpca.PCA`.
    missing_labels : {"raise", "drop"}, default "raise"
        Rows without a label are used by the PCA, but not for the scores.
    preprocess, nan_policy, missing_chunks, memory_limit, workers_timeout
        As in :class:`bigpca.PCA`; defaults None, "raise", "raise", None and 60.0.

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

    cv_scores_: dict[int, float]
    _labelled = True

    _unweighted = "its scores of features and its folds count every row once"

    def __init__(
        self,
        n_components: NComponents = None,
        *,
        n_features_to_select: int | float | str = 0.5,
        estimator: Input = None,
        folds: int = 5,
        random_state: RandomState = 0,
        missing_labels: str = "raise",
        preprocess: Preprocess = None,
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
        self.preprocess = preprocess
        self.nan_policy = nan_policy
        self.missing_chunks = missing_chunks
        self.memory_limit = memory_limit
        self.workers_timeout = workers_timeout

    linear_map = linear_map
    to_sklearn = to_sklearn
    to_onnx = to_onnx
    to_torch = to_torch
    to_faiss = to_faiss

    @solving
    def fit(
        self, X: Input, y: Input = None, *, sample_weight: Input = None, checkpoint: Path | None = None,
        progress: ProgressArgument = None,
    ) -> Self:  # fmt: skip
        """Score the features, choose, and fit the estimator to the chosen ones.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, d)
            Rows, as for :meth:`fit`.
        y : array-like of shape (n,) or (n, c), or path such as "labels.csv::class", default None
            Labels of the rows; required.
        sample_weight : default None
            Weights of rows are not supported yet: anything but None is rejected.
        checkpoint : path of a directory, default None
            Of one checkpoint for each part; see :meth:`bigpca.PCA.fit`.
        progress : True, "auto", a callable that receives events, or None, default None
            True shows a bar, "auto" one after two seconds.

        Returns
        -------
        Self
            The estimator itself.

        Raises
        ------
        ValueError
            For labels that are missing, all alike or all different classes, and more features than there are.
        """
        places = {name: None if checkpoint is None else Place(checkpoint) / name for name in ("scores", "folds", "fit")}
        opened = replace(open_weighted(self, X, sample_weight), seed=draw_fit_seed(self, places["folds"]))
        y = labels_of_fit(self, opened.array, y)
        planned = cast("ScoredFit", planned_weighted(self, opened, y))
        planned.plan.check()
        scoring, X, found = planned.scoring, mapped_lazily(planned.rows), None
        began = time.perf_counter()
        kept, made = execute(
            self, scoring, scoring.read, f"{self._called}.fit(X)", progress=progress, checkpoint=places["scores"]
        )
        spread = scoring.spread
        scores = feature_scores(kept.statistics, spread)
        order = ranked(scores)
        q = self._count(len(scores))
        if q is None:
            found = self._cross_validate(X, order, scoring.labelled, opened.seed, places["folds"], progress)
            q = max(found, key=lambda count: (found[count], -count))
        selected, inner = np.sort(order[:q]), self._inner()
        inner.fit(columns_of(X, selected), y, checkpoint=places["fit"], progress=progress)
        self._finish(opened, planned.plan, ScoredResult(kept, spread, scores, selected, inner, found))
        part = inner.provenance_
        reads = (made.reads or 0) + (found is not None) + (part.reads if part and part.reads else 0)
        made = with_plan(made, planned.plan)
        self._provenance = replace(made, seconds=time.perf_counter() - began, reads=reads)
        return self

    @available_if(_estimator_has("partial_fit"))  # type: ignore[untyped-decorator]
    @solving
    def partial_fit(self, X: Input, y: Input = None, *, progress: ProgressArgument = None) -> Self:
        """Add labelled rows, in two reads of them. The scores become those of all rows; the selection does not change.

        It warns if a fit on all rows would select others; otherwise the result equals that fit to rounding. The method
        does not exist if the estimator has none.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (m, d)
            New rows, as for :meth:`fit`.
        y : array-like of shape (m,) or (m, c), or path such as "labels.csv::class", default None
            Labels of the new rows.
        progress : True, "auto", a callable that receives events, or None, default None
            True shows a bar, "auto" one after two seconds.

        Returns
        -------
        Self
            The estimator itself.
        """
        if not hasattr(self, "estimator_"):
            return self.fit(X, y, progress=progress)
        inner = copy(self.estimator_)
        opened = self._open_like(X)
        y = labels_of_fit(self, opened, y)
        rows, resources = self._rows(opened)
        labelled = self._read_labels(y, rows.n_rows, self._supervision)
        scoring = Scoring(rows, resources, "scores", labelled, False)
        new, made = execute(self, scoring, scoring.read, f"{self._called}.partial_fit(X, y)", progress=progress)
        merged = merge_labelled(self._statistics, self._supervision, new.statistics, new.supervision)
        kept = KeptStatistics(*merged)
        spread, own = self._spread, scoring.spread
        if spread is not None and own is not None:
            spread = spread.merge(own)
        inner.partial_fit(columns_of(mapped_lazily(rows), self.selected_), y, progress=progress)
        scores = feature_scores(kept.statistics, spread)
        best = ranked(scores)[: len(self.selected_)]
        others = np.setdiff1d(best, self.selected_)
        if len(others):
            warn_approximation(
                f"of the {len(best)} features with the highest scores over all rows, {len(others)} were not among "
                f"those of the first fit (such as feature {others[0]}), which are kept. Fit again with all rows to "
                f"choose anew."
            )
        self._take(ScoredResult(kept, spread, scores, self.selected_, inner, vars(self).get("cv_scores_")), "")
        self._record_rows(replace(made, reads=2.0))
        return self

    @available_if(_estimator_has("inverse_transform"))  # type: ignore[untyped-decorator]
    def inverse_transform(self, X: Input, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
        """Return rows (n, d) from scores (n, k): the estimator's in the selected features, the means elsewhere.

        Parameters
        ----------
        X : array-like, Dask array, path and so on, of shape (n, k)
            Scores.
        out : path of a new Zarr array, or None, default None
            Write to this store in one read, as :meth:`transform` does.
        overwrite : bool, default False
            Replace an existing ``out``.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, d)
            Rows in the space of the features. Lazy if X is lazy.
        """
        check_is_fitted(self)
        back = self.estimator_.inverse_transform(X)
        placed = Placed(self.selected_, self.mean_)
        opened = open_rows(back, type(self).__name__).array
        return mapped_as_given(self, X, opened, placed, self.n_features_in_, Destination(out, overwrite))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "estimator_")

    @property
    def solve_threads(self) -> int | None:
        """The estimator's."""
        given: int | None = getattr(self.estimator, "solve_threads", None)
        return given

    def _read_labels(self, y: Input, n: int, like: Supervision | None = None) -> Labelled:
        return read_labels(y, n, LabelUse(), missing=self.missing_labels, owner=type(self).__name__, like=like)

    def _scorable(self, y: Input, n: int) -> Labelled:
        labelled = self._read_labels(y, n)
        used = int(np.count_nonzero(labelled.known_codes >= 0))
        if labelled.features is None and used <= labelled.n_classes:
            raise ValueError(
                f"{used} rows have {labelled.n_classes} classes, one row each: nothing is left to compare differences "
                f"between classes with. Give classes of several rows, or numbers as real labels."
            )
        return labelled

    @property
    def _n_features_out(self) -> int:
        return int(self.estimator_._n_features_out)

    def _row_map(self) -> Selected:
        return Selected(self.selected_, self.estimator_._whole_map())

    def _inner(self) -> AnyEstimator:
        if self.estimator is None:
            policies = {
                name: getattr(self, name)
                for name in ("nan_policy", "missing_chunks", "memory_limit", "workers_timeout")
            }
            return PCA(self.n_components, **policies)
        if not isinstance(self.estimator, Estimator) or isinstance(self.estimator, ScoredPCA | SketchTransformer):
            raise TypeError(
                f"estimator = {self.estimator!r} is a {type(self.estimator).__name__}; an estimator of bigpca was "
                f"expected, such as bigpca.KernelPCA(10). Pass one."
            )
        inner: AnyEstimator = clone(self.estimator)
        return inner

    def _count(self, d: int) -> int | None:
        """Return q; None if cross-validation selects it."""
        given: Input = self.n_features_to_select
        if isinstance(given, str) and given == "cv":
            fit_seed(self)  # raises if random_state is not one
            if positive_integer("folds", self.folds) < 2:
                raise ValueError(
                    f"folds = {self.folds} leaves no rows to fit to. Use 2 or more, of which each is left out in turn."
                )
            return None
        if not isinstance(given, bool) and isinstance(given, Integral) and 1 <= int(given) <= d:
            return int(given)
        if isinstance(given, float) and 0 < given < 1:
            return max(1, round(float(given) * d))
        raise ValueError(
            f'n_features_to_select = {given!r}; an integer from 1 to {d}, a share in (0, 1) or "cv" was expected.'
        )

    def _fit(self, opened: Opened, y: Input) -> ScoredFit:
        d, estimator = opened.n_features, self._inner()
        q, (rows, resources) = self._count(d), self._rows(opened.array)
        labelled = self._scorable(y, rows.n_rows)  # unknown row chunks are counted once for all reads
        scoring = Scoring(rows, resources, "scores", labelled, False)
        X = mapped_lazily(rows)
        some = estimator._open(some_columns(X, q), minimum=2)
        inner = estimator._fit(replace(some, seed=fit_seed(estimator)), y)
        folding = None
        if q is None:
            folding = self._folding(X, np.arange(min(d, MAX_CANDIDATES)), scoring.labelled, opened.seed)
        return ScoredFit(rows, inner.resources, scoring, folding, inner)

    def _take(self, found: ScoredResult, solver: str) -> None:
        self._statistics, self._supervision, self._spread = found.kept.statistics, found.kept.supervision, found.spread
        self.scores_, self.selected_, self.estimator_ = found.scores, found.selected, found.estimator
        self.mean_ = found.kept.statistics.mean
        self._set_known(cv_scores_=found.cv_scores)

    def _folding(self, opened: da.Array, candidates: NDArray[np.int64], labelled: Labelled, seed: int) -> Folding:
        """Return the read of the candidate columns, with the labels beside them, for the scatter of each fold."""
        rows = RowInput(columns_of(opened, np.sort(candidates)), **self._policies)
        resources = find_resources(setting(self, "memory_limit"), in_process=rows.in_process)
        return Folding.of(rows, resources, labelled, candidates, int(self.folds), seed)

    def _cross_validate(
        self, opened: da.Array, order: NDArray[np.int64], labelled: Labelled, seed: int,
        checkpoint: Place | None, progress: ProgressArgument,
    ) -> dict[int, float]:  # fmt: skip
        """Return the explained share in the folds left out, by number of features: one read of the candidates."""
        candidates = order[:MAX_CANDIDATES]
        folding = self._folding(opened, candidates, labelled, seed)
        held_out, _ = execute(self, folding, folding.read, "", progress=progress, checkpoint=checkpoint, seed=seed)
        k = self.n_components if self.estimator is None else getattr(self.estimator, "n_components", None)
        return explained_shares(held_out, np.searchsorted(np.sort(candidates), candidates), k)

    def _fitted_values(self) -> tuple[dict[str, Array], Values]:
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
        arrays, attributes = stored.arrays, stored.attributes
        self.n_features_in_ = d = int(attributes["n_features"])
        classes = None if attributes["classes"] is None else unpack_values(attributes["classes"])
        kept = KeptStatistics.of_arrays(stored.named("kept_"), d, classes)
        spread = None if classes is not None else LabelSpread.of_arrays(stored.named("spread_"))
        tried = {int(q): float(share) for q, share in attributes["cv_scores"]} or None
        self._take(ScoredResult(kept, spread, arrays["scores"], arrays["selected"], stored.inner, tried), "")
        if not len(self.scores_) == len(self.mean_) == d or len(self.selected_) != self.estimator_.n_features_in_:
            raise ValueError(f"it has {len(self.scores_)} scores of {d} features")
