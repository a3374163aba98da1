"""Scored PCA: PCA of the features that depend on the labels most (Bair et al. 2006; SPCA paper, section 4)."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, Self

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from bigpca.data.labels import ClassLabels, Labels, open_labels
from bigpca.data.sources import with_columns
from bigpca.estimators.feature_scores import centred_targets, explained_share, feature_scores, one_hot
from bigpca.estimators.fitting import running
from bigpca.estimators.inputs import as_dask
from bigpca.estimators.label_statistics import fold_labels, label_templates
from bigpca.estimators.model_io import StoredModel
from bigpca.estimators.pca import PCA
from bigpca.estimators.planned_model import PlannedModel
from bigpca.estimators.row_transformer import RowTransformer
from bigpca.estimators.supervised_model import plan_labels
from bigpca.passes.accumulators import Accumulator
from bigpca.passes.class_moments import ClassMoments
from bigpca.passes.jobs import RunOptions
from bigpca.passes.progress import ProgressArgument
from bigpca.passes.project import RowMap
from bigpca.passes.resources import find_resources
from bigpca.passes.rows import RowInput, fold
from bigpca.planning import Plan
from bigpca.seeds import check_seed, integers
from bigpca.sketches.base import positive_integer

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
MOST_CANDIDATES = 2048  # columns among which cross-validation chooses


@dataclass(frozen=True)
class Selected:
    """A row map on some columns.

    Attributes
    ----------
    columns : ndarray of shape (q,), int64
    inner : RowMap
    """

    columns: NDArray[np.int64]
    inner: RowMap

    def output_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """That of the inner map."""
        return self.inner.output_dtype(dtype)

    def apply(self, rows: NDArray[Any], where: str) -> NDArray[Any]:
        """Return the map of those columns; a row that is not finite elsewhere counts as one that is not."""
        chosen = rows[:, self.columns]
        if rows.dtype.kind == "f":
            chosen[~np.isfinite(rows).all(axis=1)] = np.nan
        return self.inner.apply(chosen, where)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The columns' copy, and what the inner map needs."""
        mapping, kept = self.inner.bytes_for(len(self.columns), rows, itemsize)
        return mapping + rows * (len(self.columns) * itemsize + d), kept

    def describe(self) -> dict[str, Any]:
        """What identifies the map."""
        return {"map": "selected", "columns": self.columns.tolist(), "inner": self.inner.describe()}


class ScoredPCA(RowTransformer):
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
        read: the share of the labels' variance that linear regression on the components explains in the fold left out.
    estimator : a bigpca estimator, or None
        None for ``PCA(n_components)``.
    folds : int
        Of the cross-validation.
    random_state : int
        Of the folds.
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
        random_state: int = 0,
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
        """Return what the scores and the estimator will cost; X is not read."""
        opened = as_dask(copy(self), X, reset=True, minimum=2)
        q, estimator = self._count(opened.shape[1]), self._inner()
        rows, _, templates = self._scoring(opened, y)
        inner = estimator.plan(opened[:, : q or min(opened.shape[1], MOST_CANDIDATES)])
        own = self._plan(rows, templates)
        passes = own.passes + inner.passes + (q is None)
        return replace(
            inner, solver=f"scores, then {inner.solver}", reason=f"one read of rows and labels; {inner.reason}", passes=passes,
            bytes_read=own.bytes_read + inner.bytes_read * opened.shape[1] // max(1, q or 1),
            peak_bytes=max(own.peak_bytes, inner.peak_bytes), state_bytes=max(own.state_bytes, inner.state_bytes),
        )  # fmt: skip

    def fit(self, X: Any, y: Any = None, *, progress: ProgressArgument = None) -> Self:
        """Score the features, choose, and fit the estimator to the chosen ones.

        Raises
        ------
        ValueError
            For labels that are missing or all alike, and more features than there are.
        """
        seen = copy(self)
        opened = as_dask(seen, X, reset=True, minimum=2)
        q, found, inner = self._count(opened.shape[1]), None, self._inner()
        rows, labels, templates = self._scoring(opened, y)
        self._plan(rows, templates).check()
        with running(rows, None, checkpoint=None, progress=progress, workers_timeout=self.workers_timeout) as options:
            scores = feature_scores(fold_labels(rows, templates, options), labels)
        order = np.lexsort((np.arange(len(scores)), -scores))
        if q is None:
            with running(
                rows, None, checkpoint=None, progress=progress, workers_timeout=self.workers_timeout
            ) as options:
                found = self._cross_validate(opened, order, labels, options)
            q = max(found, key=lambda count: (found[count], -count))
        selected = np.sort(order[:q])
        inner.fit(opened[:, selected], y, progress=progress)
        self._remember_features(seen)
        self.scores_, self.selected_, self.estimator_ = scores, selected, inner
        self.__dict__.pop("cv_scores_", None)
        if found is not None:
            self.cv_scores_ = found
        return self

    # Inside ---------------------------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "estimator_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

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
            check_seed(self.random_state, "random_state")
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

    def _scoring(self, opened: da.Array, y: Any) -> tuple[RowInput, Labels, dict[str, Accumulator]]:
        rows = RowInput(opened, **self._policies)
        if y is None:
            raise ValueError(
                f"ScoredPCA requires y to be passed, but the target y is None. Give one label for each of {rows.n_rows} rows."
            )
        labels = open_labels(y, rows.n_rows, missing=self.missing_labels)
        if isinstance(labels, ClassLabels):
            return rows, labels, label_templates(rows.n_columns, labels.codes, labels.n_classes, None, whole=False)
        codes, delta = np.where(labels.used, 0, -1).astype(np.int32), centred_targets(labels)
        return rows, labels, label_templates(rows.n_columns, codes, 1, delta, whole=False)

    def _plan(self, rows: RowInput, templates: dict[str, Accumulator]) -> Plan:
        resources = find_resources(self.memory_limit, in_process=rows.in_process)
        return plan_labels(rows, templates, resources, "scores", whole=False)

    def _cross_validate(
        self, opened: da.Array, order: NDArray[np.int64], labels: Labels, options: RunOptions
    ) -> dict[int, float]:
        """Return the explained share in the folds left out, for every number of features: one read of the candidates."""
        candidates = order[:MOST_CANDIDATES]
        n, q = labels.n, len(candidates)
        rows_of = opened[:, np.sort(candidates)]
        place = np.searchsorted(np.sort(candidates), candidates)
        if isinstance(labels, ClassLabels):
            c = labels.n_classes
            joined = with_columns(rows_of, labels.codes, partial(one_hot, n_classes=c), c)
        else:
            targets = centred_targets(labels)
            joined = with_columns(rows_of, targets, np.asarray, targets.shape[1])
        folds = integers(self.random_state, "folds", 0, n, 1, int(self.folds))[:, 0]
        used = labels.used
        templates: dict[str, Accumulator] = {
            f"fold-{f}": ClassMoments(joined.shape[1], 1, np.where(used & (folds == f), 0, -1).astype(np.int32))
            for f in range(int(self.folds))
        }
        parts = fold(  # one pass over X
            RowInput(joined, **self._policies), templates, _parts, name="folds", number=2, options=options
        )
        held_out = list(parts.values())
        counts = sorted({max(1, q >> i) for i in range(q.bit_length())}, reverse=True)
        k = self.n_components if isinstance(self.n_components, Integral) else 1
        return {
            count: float(
                np.mean([explained_share(held_out, f, place[:count], q, int(k)) for f in range(len(held_out))])
            )
            for count in counts
        }

    def _fitted_values(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        inner = StoredModel.of(self.estimator_)
        arrays = {f"inner_{name}": array for name, array in inner.arrays.items()}
        attributes = {
            "inner": {"kind": inner.kind, "attributes": inner.attributes}, "n_features": self.n_features_in_,
            "cv_scores": [[int(q), share] for q, share in getattr(self, "cv_scores_", {}).items()],
        }  # fmt: skip
        return arrays | {"scores": self.scores_, "selected": self.selected_}, attributes

    def _restore(self, stored: StoredModel) -> None:
        from bigpca.estimators.loading import restored  # it knows all classes, this one among them

        arrays, attributes = stored.arrays, stored.attributes
        own = {n.removeprefix("inner_"): a for n, a in arrays.items() if n.startswith("inner_")}
        inner = attributes["inner"]
        self.estimator_ = restored(StoredModel(inner["kind"], own, inner["attributes"]))
        self.scores_, self.selected_ = arrays["scores"], arrays["selected"]
        self.n_features_in_ = int(attributes["n_features"])
        if len(self.scores_) != self.n_features_in_ or len(self.selected_) != self.estimator_.n_features_in_:
            raise ValueError(f"it has {len(self.scores_)} scores of {self.n_features_in_} features")
        if attributes["cv_scores"]:
            self.cv_scores_ = {int(q): float(share) for q, share in attributes["cv_scores"]}


def _parts(state: Any) -> dict[str, ClassMoments]:
    parts: dict[str, ClassMoments] = state.parts
    return parts
